// What every rank does before a training's first step: the plans of all ranks, made and checked
// against each other. Prints a JSON line of seconds, and one of the memory that this took.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "worker/layout/layout.h"
#include "worker/model/gpt.h"
#include "worker/plan/plan.h"

namespace regroup::worker {
namespace {

using Clock = std::chrono::steady_clock;

double Since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Not getrusage's: that of a process begins with what its parent had before exec.
double PeakMebibytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stod(line.substr(6)) / 1024;
  }
  CHECK(false);
}

int Run(int argc, char** argv) {
  int world = 1024, micro_batches = 128, repeats = 5;
  CLI::App app("Makes and checks the plans of all ranks of a training under ZeRO-3.");
  app.add_option("--world", world)->check(CLI::PositiveNumber);
  app.add_option("--micro-batches", micro_batches, "of each rank")->check(CLI::PositiveNumber);
  app.add_option("--repeats", repeats)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  const GptConfig gpt2{
      .layers = 12, .width = 768, .heads = 12, .vocabulary = 50257, .context = 1024};
  const auto layout =
      ParamLayout::Create(MakeGpt<float>(gpt2).UnitSpecs(), world, Strategy::kZero3);
  CHECK(layout.ok());
  // A batch that does not divide evenly.
  std::vector<int> micro_batches_of_ranks(static_cast<std::size_t>(world), micro_batches);
  micro_batches_of_ranks.back() -= 1;
  const double before = PeakMebibytes();
  std::vector<double> whole, checks;
  std::size_t instructions = 0;
  for (int i = 0; i < repeats; ++i) {
    const Clock::time_point begin = Clock::now();
    const auto plans =
        MakePlans(*layout, {.rounds = micro_batches, .overlap = true}, micro_batches_of_ranks);
    CHECK(plans.ok());
    const Clock::time_point made = Clock::now();
    CHECK(CheckPlan(*layout, *plans).ok());
    checks.push_back(Since(made));
    whole.push_back(Since(begin));
    instructions = plans->front().instructions.size();
  }
  const std::string setup =
      absl::StrCat("GPT-2 of 124 M weights under ZeRO-3 with overlap, ", world, " ranks with ",
                   micro_batches, " micro-batches each, ", instructions, " instructions");
  for (const nlohmann::ordered_json& line :
       {nlohmann::ordered_json{
            {"name", "plans"},
            {"samples", whole},
            {"setup", absl::StrCat(setup, "; the check alone at most ",
                                   *std::max_element(checks.begin(), checks.end()), " s")}},
        nlohmann::ordered_json{
            {"name", "memory"}, {"samples", {PeakMebibytes() - before}}, {"setup", setup}}})
    std::printf("%s\n", line.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace regroup::worker

int main(int argc, char** argv) { return regroup::worker::Run(argc, argv); }
