// A coordinator process with its journal on disk, and thousands of logical agents, a gRPC session
// each, in as many other processes as their descriptors need: how long from the last agent's
// welcome until every agent has been told its ranks, what their heartbeats cost from then on, and
// what a session takes of memory; and what the same heartbeats cost a server that is gRPC alone.
// One JSON line.

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "common/io/fd.h"
#include "common/rpc/places.h"
#include "tests/bench/coordinator_client.h"
#include "tests/bench/grpc_floor.h"
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
  double formed = 0;        // From the last welcome.
  double all = 0;           // From the first dial.
  double until_formed = 0;  // CPU seconds of the coordinator.
  double cpu = 0;           // Of one core, while agents beat.
  double floor = 0;         // Likewise, of a server that is gRPC alone.
  double kibibytes = 0;     // Resident, for each agent.
  int processes = 0;        // That the agents are in.
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

// Agents that dial at once: a thousand that are turned away by a full backlog cost more than they
// tell.
constexpr int kDialling = 256;
constexpr int kDescriptorsEach = 2;  // In a fleet's process.
constexpr int kDescriptorsKept = 500;

struct Part {
  int first = 0, count = 0;
  std::string socket;      // Or
  std::uint16_t port = 0;  // over TCP,
  std::string token;       // which is proved.
};

double Now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

// A fleet's process: tells on standard output when all of its agents were welcomed and when all
// were told their ranks, and lives until its standard input ends.
int BeFleet(const Part& part) {
  io::RaiseDescriptorLimit();
  LogicalFleet fleet;
  const auto wait = [&](int i, const auto& condition) {
    return fleet.at(static_cast<std::size_t>(i)).WaitFor(condition, std::chrono::seconds(120));
  };
  const auto attached = [](const auto& state) { return state.attached; };
  for (int i = 0; i < part.count + kDialling; ++i) {
    if (i < part.count) {
      LogicalAgentOptions options;
      if (part.socket.empty()) options.coordinator = {"127.0.0.1", part.port};
      options.socket_path = part.socket;
      options.token = part.token;
      options.name = "node" + std::to_string(part.first + i);
      fleet.Add(options);
    }
    const int earlier = i - kDialling;
    if (earlier >= 0 && earlier < part.count && !wait(earlier, attached)) _exit(1);
  }
  std::printf("%.9f\n", Now());
  std::fflush(stdout);
  for (int i = 0; i < part.count; ++i)
    if (!wait(i, [](const auto& state) { return !state.runs.empty(); })) _exit(1);
  std::printf("%.9f\n", Now());
  std::fflush(stdout);
  while (std::getchar() != EOF) continue;
  _exit(0);  // To end each session in order would take longer than all else.
}

class FleetProcess {
 public:
  explicit FleetProcess(const Part& part) {
    int in[2], out[2];
    CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, out[1], STDOUT_FILENO);
    std::vector<std::string> words = {"bench_fleet",
                                      "--part-first",
                                      std::to_string(part.first),
                                      "--part-count",
                                      std::to_string(part.count),
                                      "--part-port",
                                      std::to_string(part.port),
                                      "--part-token",
                                      part.token};
    if (!part.socket.empty()) words.push_back("--part-socket=" + part.socket);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    CHECK(posix_spawn(&pid_, "/proc/self/exe", &files, nullptr, arguments.data(), environ) == 0);
    posix_spawn_file_actions_destroy(&files);
    close(in[0]);
    close(out[1]);
    in_ = io::UniqueFd(in[1]);
    out_ = fdopen(out[0], "r");
  }
  ~FleetProcess() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    std::fclose(out_);
  }
  FleetProcess(const FleetProcess&) = delete;
  FleetProcess& operator=(const FleetProcess&) = delete;

  // When its agents had come as far as the next of the two. Nothing: they did not.
  std::optional<double> Next() {
    double at = 0;
    if (std::fscanf(out_, "%lf", &at) != 1) return std::nullopt;
    return at;
  }

 private:
  pid_t pid_ = -1;
  io::UniqueFd in_;
  FILE* out_ = nullptr;
};

using Fleets = std::vector<std::unique_ptr<FleetProcess>>;

// Each with a part of `whole`.
Fleets StartFleets(int agents, const Part& whole) {
  const int room = (static_cast<int>(std::min<std::size_t>(io::RaiseDescriptorLimit(), 1u << 20)) -
                    kDescriptorsKept) /
                   kDescriptorsEach;
  const int processes = (agents + room - 1) / room;
  Fleets fleets;
  for (int i = 0, first = 0; i < processes; ++i) {
    const int count = agents / processes + (i < agents % processes ? 1 : 0);
    Part part = whole;
    part.first = first;
    part.count = count;
    fleets.push_back(std::make_unique<FleetProcess>(part));
    first += count;
  }
  return fleets;
}

std::optional<double> LastOf(const Fleets& fleets) {
  double last = 0;
  for (const auto& fleet : fleets) {
    const std::optional<double> at = fleet->Next();
    if (!at) return std::nullopt;
    last = std::max(last, *at);
  }
  return last;
}

// CPU of `pid`, as a share of one core.
double ShareOfCore(pid_t pid, int seconds) {
  std::this_thread::sleep_for(std::chrono::seconds(2));  // What came before is over by then.
  const double used = CpuSeconds(pid);
  const Clock::time_point begin = Clock::now();
  std::this_thread::sleep_for(std::chrono::seconds(seconds));
  return (CpuSeconds(pid) - used) / Since(begin);
}

std::optional<double> MeasureFloor(const std::string& folder, int agents, int beat_seconds) {
  const std::string socket = folder + ".socket";
  CoordinatorProcess process;
  process.Start({"/proc/self/exe", "--floor", socket}, folder + ".log");
  for (int ms = 0; access(socket.c_str(), F_OK) != 0; ++ms) {
    if (ms == 10'000) return std::nullopt;
    usleep(1'000);
  }
  Part whole;
  whole.socket = socket;
  const Fleets fleets = StartFleets(agents, whole);
  if (!LastOf(fleets)) return std::nullopt;
  return ShareOfCore(process.pid(), beat_seconds);
}

std::optional<Sample> Measure(const std::string& regroup, const std::string& folder,
                              const std::vector<int>& sizes, bool tcp, int beat_seconds) {
  const std::uint16_t port = regroup::testing::FreePort();
  CoordinatorProcess process;
  process.Start({regroup, "coordinator", "--state-dir", folder, "--listen",
                 "127.0.0.1:" + std::to_string(port)},
                folder + ".log");
  const std::string own = CoordinatorFolder(folder, port) + "/";
  CoordinatorClient client(own + kCoordinatorSocketName);
  std::vector<JobId> jobs;
  int agents = 0;
  for (const int size : sizes) {
    jobs.push_back(client.Submit("fleet", size, "key-" + std::to_string(jobs.size())));
    agents += size;
  }
  const double empty = ResidentKibibytes(process.pid());
  const double begin = Now();
  Part whole;
  whole.port = port;
  if (tcp) {
    std::ifstream(own + kCoordinatorTokenName) >> whole.token;
  } else {
    whole.socket = own + kCoordinatorSocketName;
  }
  const Fleets fleets = StartFleets(agents, whole);
  const std::optional<double> joined = LastOf(fleets);
  const std::optional<double> formed = LastOf(fleets);
  if (!joined || !formed) return std::nullopt;
  Sample sample;
  sample.formed = *formed - *joined;
  sample.all = *formed - begin;
  sample.until_formed = CpuSeconds(process.pid());
  sample.processes = static_cast<int>(fleets.size());
  if (beat_seconds == 0) return sample;
  sample.cpu = ShareOfCore(process.pid(), beat_seconds);
  sample.kibibytes = (ResidentKibibytes(process.pid()) - empty) / agents;
  return sample;
}

std::string SumText(const std::vector<int>& sizes) {
  std::string text;
  for (const int size : sizes) text += (text.empty() ? "" : " + ") + std::to_string(size);
  return text;
}

int Main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);  // As the coordinator.
  std::string bin_dir, folder, floor, what = "formed";
  std::vector<int> sizes = {1'000};
  int repeats = 3, beat_seconds = 20;
  bool unix_socket = false;
  CLI::App app{"thousands of agents, joined to formed and after it"};
  Part part;
  app.add_option("--bin-dir", bin_dir);
  app.add_option("--folder", folder);
  app.add_option("--jobs", sizes, "nodes of each job; as many agents as they need together")
      ->delimiter(',');
  app.add_option("--what", what,
                 "formed: seconds; cpu: of a core, while they beat; floor: that, over what gRPC "
                 "alone takes; kib: an agent")
      ->check(CLI::IsMember({"formed", "cpu", "floor", "kib"}));
  app.add_flag("--unix", unix_socket, "by the Unix socket");
  app.add_option("--repeats", repeats);
  app.add_option("--part-first", part.first)->group("");  // What this program starts itself with.
  app.add_option("--part-count", part.count)->group("");
  app.add_option("--part-port", part.port)->group("");
  app.add_option("--part-token", part.token)->group("");
  app.add_option("--part-socket", part.socket)->group("");
  app.add_option("--floor", floor)->group("");
  CLI11_PARSE(app, argc, argv);
  if (!floor.empty()) ServeFloor(floor);
  if (part.count > 0) return BeFleet(part);
  if (what == "formed") beat_seconds = 0;
  unix_socket = unix_socket || what == "floor";  // What it is compared with has no other.
  nlohmann::json samples = nlohmann::json::array();
  Sample most;
  for (int i = 0; i < repeats; ++i) {
    const std::string fleet = absl::StrCat(folder, "/fleet-", i);
    std::optional<Sample> sample =
        Measure(bin_dir + "/regroup", fleet, sizes, !unix_socket, beat_seconds);
    if (sample && what == "floor") {
      const int agents = std::accumulate(sizes.begin(), sizes.end(), 0);
      sample->floor = MeasureFloor(fleet + ".floor", agents, beat_seconds).value_or(0);
    }
    if (!sample || (what == "floor" && sample->floor == 0)) {
      std::fprintf(stderr, "the fleet did not form within 120 s\n");
      return 1;
    }
    samples.push_back(what == "formed" ? sample->formed
                      : what == "cpu"  ? sample->cpu
                      : what == "kib"  ? sample->kibibytes
                                       : sample->cpu / sample->floor);
    most.floor = std::max(most.floor, sample->floor);
    most.all = std::max(most.all, sample->all);
    most.until_formed = std::max(most.until_formed, sample->until_formed);
    most.processes = sample->processes;
  }
  const std::map<std::string, std::string> measured = {
      {"formed", "last welcome to every agent told its ranks"},
      {"cpu", "CPU seconds of the coordinator per second, over 20 s of heartbeats at 1 Hz"},
      {"floor",
       "CPU over 20 s of heartbeats at 1 Hz, over that of a gRPC server that only answers, at "
       "most " +
           std::to_string(most.floor) + " of a core"},
      {"kib", "resident memory beyond that of an empty coordinator, per agent, after 20 s"}};
  char setup[600];
  std::snprintf(
      setup, sizeof setup,
      "jobs of %s logical agents in %d other processes, a session each over %s, one journal on "
      "disk: %s; from the first dial to formed at most %.2f s, %.2f CPU seconds of the coordinator",
      SumText(sizes).c_str(), most.processes, unix_socket ? "the Unix socket" : "TCP with a proof",
      measured.at(what).c_str(), most.all, most.until_formed);
  std::printf("%s\n", nlohmann::json{{"samples", samples}, {"setup", setup}}.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace regroup::bench

int main(int argc, char** argv) { return regroup::bench::Main(argc, argv); }
