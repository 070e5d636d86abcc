// A coordinator process with its journal on disk, and thousands of logical agents, a gRPC session
// each, in this process: how long from the last agent's welcome until every agent has been told its
// ranks, what their heartbeats cost from then on, and what a session takes of memory. One JSON
// line.

#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
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
  double formed = 0;     // From the last welcome.
  double all = 0;        // From the first dial.
  double cpu = 0;        // Of one core, while agents beat.
  double kibibytes = 0;  // Resident, for each agent.
};

double CpuSeconds(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string word;
  std::getline(stat, word, ')');  // The name may hold blanks.
  double ticks = 0;
  for (int field = 3; field <= 15 && stat >> word; ++field)
    if (field >= 14) ticks += std::stod(word);  // Of user and system.
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double ResidentKibibytes(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  std::string word;
  double kibibytes = 0;
  while (status >> word)
    if (word == "VmRSS:") status >> kibibytes;
  return kibibytes;
}

std::optional<Sample> Measure(const std::string& regroup, const std::string& folder,
                              const std::vector<int>& sizes, bool tcp, int beat_seconds) {
  const std::uint16_t port = regroup::testing::FreePort();
  CoordinatorProcess process;
  process.Start({regroup, "coordinator", "--insecure", "--state-dir", folder, "--listen",
                 "127.0.0.1:" + std::to_string(port)},
                folder + ".log");
  const std::string socket = CoordinatorFolder(folder, port) + "/" + kCoordinatorSocketName;
  CoordinatorClient client(socket);
  std::vector<JobId> jobs;
  int agents = 0;
  for (const int size : sizes) {
    jobs.push_back(client.Submit("fleet", size, "key-" + std::to_string(jobs.size())));
    agents += size;
  }
  const double empty = ResidentKibibytes(process.pid());
  LogicalFleet fleet;
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < agents; ++i) {
    LogicalAgentOptions options;
    if (tcp) options.coordinator = {"127.0.0.1", port};
    if (!tcp) options.socket_path = socket;
    options.name = "node" + std::to_string(i);
    fleet.Add(options);
  }
  const auto wait = [&](int i, const auto& condition) {
    return fleet.at(static_cast<std::size_t>(i)).WaitFor(condition, std::chrono::seconds(120));
  };
  for (int i = 0; i < agents; ++i) {
    if (!wait(i, [](const auto& state) { return state.attached; })) return std::nullopt;
  }
  const Clock::time_point joined = Clock::now();
  for (int i = 0; i < agents; ++i) {
    if (!wait(i, [](const auto& state) { return !state.runs.empty(); })) return std::nullopt;
  }
  Sample sample{Since(joined), Since(begin)};
  if (beat_seconds == 0) return sample;
  std::this_thread::sleep_for(std::chrono::seconds(2));  // What forming has left is over by then.
  const double used = CpuSeconds(process.pid());
  const Clock::time_point beating = Clock::now();
  std::this_thread::sleep_for(std::chrono::seconds(beat_seconds));
  sample.cpu = (CpuSeconds(process.pid()) - used) / Since(beating);
  sample.kibibytes = (ResidentKibibytes(process.pid()) - empty) / agents;
  return sample;
}

int Main(int argc, char** argv) {
  std::string bin_dir, folder, what = "formed";
  std::vector<int> sizes = {1'000};
  int repeats = 3, beat_seconds = 20;
  bool unix_socket = false;
  CLI::App app{"thousands of agents, joined to formed and after it"};
  app.add_option("--bin-dir", bin_dir)->required();
  app.add_option("--folder", folder)->required();
  app.add_option("--jobs", sizes, "nodes of each job; as many agents as they need together")
      ->delimiter(',');
  app.add_option("--what", what, "formed: seconds; cpu: of a core, while they beat; kib: an agent")
      ->check(CLI::IsMember({"formed", "cpu", "kib"}));
  app.add_flag("--unix", unix_socket, "by the Unix socket: a session over TCP takes 3 descriptors");
  app.add_option("--repeats", repeats);
  CLI11_PARSE(app, argc, argv);
  if (what == "formed") beat_seconds = 0;
  nlohmann::json samples = nlohmann::json::array();
  double all = 0;
  for (int i = 0; i < repeats; ++i) {
    const std::optional<Sample> sample =
        Measure(bin_dir + "/regroup", folder + "/fleet-" + std::to_string(i), sizes, !unix_socket,
                beat_seconds);
    if (!sample) {
      std::fprintf(stderr, "the fleet did not form within 120 s\n");
      return 1;
    }
    samples.push_back(what == "formed" ? sample->formed
                      : what == "cpu"  ? sample->cpu
                                       : sample->kibibytes);
    all = std::max(all, sample->all);
  }
  const std::map<std::string, std::string> measured = {
      {"formed", "last welcome to every agent told its ranks"},
      {"cpu", "CPU seconds of the coordinator per second, over 20 s of heartbeats at 1 Hz"},
      {"kib", "resident memory beyond that of an empty coordinator, per agent, after 20 s"}};
  std::string jobs;
  for (const int size : sizes) jobs += (jobs.empty() ? "" : " + ") + std::to_string(size);
  char setup[320];
  std::snprintf(
      setup, sizeof setup,
      "jobs of %s logical agents in another process, a session each over %s, one journal on disk: "
      "%s; from the first dial to formed at most %.2f s",
      jobs.c_str(), unix_socket ? "the Unix socket" : "TCP", measured.at(what).c_str(), all);
  std::printf("%s\n", nlohmann::json{{"samples", samples}, {"setup", setup}}.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace regroup::bench

int main(int argc, char** argv) { return regroup::bench::Main(argc, argv); }
