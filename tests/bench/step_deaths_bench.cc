// How long the other ranks of a step need to be back once one of them was killed, before any piece
// of work of any kind of plan. Prints one JSON line for each kind; fails where a survivor has not
// the state of a whole step, or on one host another step than the others.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/worker/train/step_deaths.h"

namespace regroup::worker {
namespace {

bool Measure(const DeathCase& c, std::int64_t every) {
  StepDeaths deaths(c);
  std::vector<double> samples;
  std::int64_t killed = 0;
  bool whole = true;
  for (int victim = 0; victim < c.world(); ++victim) {
    for (std::int64_t piece = killed % every; piece < deaths.PiecesOf(victim); piece += every) {
      ++killed;
      const auto survivors = deaths.KillAt(victim, piece);
      for (int r = 0; r < c.world(); ++r) {
        if (r == victim) continue;
        const StepDeaths::Survivor& survivor = survivors[static_cast<std::size_t>(r)];
        const int other = survivors[victim == 0 ? 1 : 0].updates;
        samples.push_back(survivor.seconds);
        if (survivor.whole && survivor.group_failed && survivor.names_the_dead &&
            (!c.one_host() || survivor.updates == other))
          continue;
        std::fprintf(stderr, "%s: rank %d killed before piece %lld: rank %d is not whole\n", c.name,
                     victim, static_cast<long long>(piece), r);
        whole = false;
      }
    }
  }
  std::sort(samples.begin(), samples.end());
  const nlohmann::ordered_json line = {
      {"name", c.name},
      {"ranks", c.world()},
      {"hosts", std::max<std::size_t>(1, c.hosts.size())},
      {"pieces", deaths.PiecesOf(0)},
      {"killed", killed},
      {"p50", samples[samples.size() / 2]},
      {"p99", samples[std::min(samples.size() - 1, samples.size() * 99 / 100)]},
      {"max", samples.back()},
      {"samples", samples}};
  std::printf("%s\n", line.dump().c_str());
  return whole;
}

int Run(int argc, char** argv) {
  std::int64_t every = 1;
  CLI::App app("Kills ranks in steps, and times the others' return.");
  app.add_option("--every", every, "piece of work of each rank")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  bool whole = true;
  for (const DeathCase& c : DeathCases()) whole = Measure(c, every) && whole;
  return whole ? 0 : 1;
}

}  // namespace
}  // namespace regroup::worker

int main(int argc, char** argv) { return regroup::worker::Run(argc, argv); }
