// Records what an agent's core decides: one line for each seed, or the text of one.
//
//   agent_recorder FIRST LAST    prints SEED, steps and hash of each life, then how often each
//                                action was ordered and the hash of all
//   agent_recorder SEED          prints all that the core decided in that life

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "tests/sim/agent_storm.h"

constexpr int kSteps = 400;

int main(int argc, char** argv) {
  using regroup::sim::RunStorm;
  if (argc != 2 && argc != 3) {
    std::fprintf(stderr, "usage: %s FIRST LAST | SEED\n", argv[0]);
    return 2;
  }
  const std::uint64_t first = std::strtoull(argv[1], nullptr, 10);
  if (argc == 2) {
    std::fputs(RunStorm(first, kSteps, /*keep_text=*/true).text.c_str(), stdout);
    return 0;
  }
  const std::uint64_t last = std::strtoull(argv[2], nullptr, 10);
  std::uint64_t steps = 0, all = 0;
  std::map<std::size_t, int> actions;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    const regroup::sim::Storm life = RunStorm(seed, kSteps, /*keep_text=*/false);
    std::printf("%" PRIu64 " %" PRIu64 " %016" PRIx64 "\n", seed, life.steps, life.hash);
    steps += life.steps;
    all = all * 1099511628211ull + life.hash;
    for (const auto& [action, count] : life.actions) actions[action] += count;
  }
  for (const auto& [action, count] : actions) std::printf("action %zu %d\n", action, count);
  std::printf("all %" PRIu64 " %016" PRIx64 "\n", steps, all);
  return 0;
}
