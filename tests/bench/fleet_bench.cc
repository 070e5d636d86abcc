// A coordinator process with its journal on disk, and a thousand logical agents, a gRPC session
// each, in this process: how long from the last agent's welcome until every agent has been told its
// ranks. One JSON line.

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/check.h"
#include "common/rpc/places.h"
#include "tests/bench/coordinator_client.h"
#include "tests/launcher/coordinator/shell/coordinator_process.h"
#include "tests/launcher/coordinator/shell/logical_agent.h"

namespace regroup::bench {
namespace {

using Clock = std::chrono::steady_clock;
using regroup::testing::CoordinatorProcess;
using regroup::testing::LogicalAgentOptions;
using regroup::testing::LogicalFleet;

double Since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Sample {
  double formed = 0;  // From the last welcome.
  double all = 0;     // From the first dial.
};

std::optional<Sample> Measure(const std::string& regroup, const std::string& folder, int agents) {
  const std::uint16_t port = regroup::testing::FreePort();
  CoordinatorProcess process;
  process.Start({regroup, "coordinator", "--insecure", "--state-dir", folder, "--listen",
                 "127.0.0.1:" + std::to_string(port)},
                folder + ".log");
  CoordinatorClient client(CoordinatorFolder(folder, port) + "/" + kCoordinatorSocketName);
  const JobId job = client.Submit("fleet", agents, "key");
  LogicalFleet fleet;
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < agents; ++i) {
    LogicalAgentOptions options;
    options.coordinator = {"127.0.0.1", port};
    options.name = "node" + std::to_string(i);
    fleet.Add(options);
  }
  const auto wait = [&](int i, const auto& condition) {
    return fleet.at(static_cast<std::size_t>(i)).WaitFor(condition, std::chrono::seconds(60));
  };
  for (int i = 0; i < agents; ++i) {
    if (!wait(i, [](const auto& state) { return state.attached; })) return std::nullopt;
  }
  const Clock::time_point joined = Clock::now();
  for (int i = 0; i < agents; ++i) {
    if (!wait(i, [&](const auto& state) { return state.runs.count(job) > 0; })) return std::nullopt;
  }
  return Sample{Since(joined), Since(begin)};
}

int Main(int argc, char** argv) {
  std::string bin_dir, folder;
  int agents = 1'000, repeats = 3;
  CLI::App app{"a thousand agents joined to formed"};
  app.add_option("--bin-dir", bin_dir)->required();
  app.add_option("--folder", folder)->required();
  app.add_option("--agents", agents);
  app.add_option("--repeats", repeats);
  CLI11_PARSE(app, argc, argv);
  nlohmann::json samples = nlohmann::json::array();
  double all = 0;
  for (int i = 0; i < repeats; ++i) {
    const std::optional<Sample> sample =
        Measure(bin_dir + "/regroup", folder + "/fleet-" + std::to_string(i), agents);
    if (!sample) {
      std::fprintf(stderr, "the fleet did not form within 60 s\n");
      return 1;
    }
    samples.push_back(sample->formed);
    all = std::max(all, sample->all);
  }
  char setup[256];
  std::snprintf(setup, sizeof setup,
                "%d logical agents in another process, a session each, one journal on disk: last "
                "welcome to every agent "
                "told its ranks; from the first dial at most %.2f s",
                agents, all);
  std::printf("%s\n", nlohmann::json{{"samples", samples}, {"setup", setup}}.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace regroup::bench

int main(int argc, char** argv) { return regroup::bench::Main(argc, argv); }
