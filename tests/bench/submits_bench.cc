// Durable submits: clients that submit one job per call as fast as they are answered, the
// coordinator SIGKILLed half-way and started again. Every acknowledged job has to be there at the
// end. One JSON line with jobs per second, outage included.

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/rpc/places.h"
#include "tests/bench/coordinator_client.h"
#include "tests/launcher/coordinator/shell/coordinator_process.h"

namespace regroup::bench {
namespace {

using Clock = std::chrono::steady_clock;
using regroup::testing::CoordinatorProcess;

// Jobs per second; nullopt: an acknowledged job was lost.
std::optional<double> Measure(const std::string& regroup, const std::string& folder, int clients,
                              int jobs) {
  const std::uint16_t port = regroup::testing::FreePort();
  const std::vector<std::string> command = {regroup,       "coordinator",
                                            "--state-dir", folder,
                                            "--listen",    "127.0.0.1:" + std::to_string(port)};
  CoordinatorProcess process;
  process.Start(command, folder + ".log");
  const std::string socket = CoordinatorFolder(folder, port) + "/" + kCoordinatorSocketName;
  CoordinatorClient reader(socket);
  reader.AwaitAnswer();

  std::mutex mutex;
  std::set<JobId> acknowledged;
  std::atomic<int> next = 0, done = 0;
  const Clock::time_point begin = Clock::now();
  std::vector<std::thread> threads;
  for (int c = 0; c < clients; ++c) {
    threads.emplace_back([&] {
      CoordinatorClient client(socket);
      for (int i = next++; i < jobs; i = next++) {
        const JobId job = client.Submit("bench", 1, "key-" + std::to_string(i));
        ++done;
        std::lock_guard lock(mutex);
        acknowledged.insert(job);
      }
    });
  }
  while (done < jobs / 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  process.Kill();
  process.Start(command, folder + ".log");
  for (std::thread& thread : threads) thread.join();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const std::set<JobId> found = reader.Jobs();
  for (const JobId& job : acknowledged) {
    if (found.count(job) > 0) continue;
    std::fprintf(stderr, "%s was acknowledged and is lost\n", job.value().c_str());
    return std::nullopt;
  }
  if (static_cast<int>(acknowledged.size()) != jobs) {
    std::fprintf(stderr, "%d jobs for %d keys\n", static_cast<int>(acknowledged.size()), jobs);
    return std::nullopt;
  }
  return jobs / seconds;
}

int Main(int argc, char** argv) {
  std::string bin_dir, folder;
  int clients = 32, jobs = 6'000, repeats = 3;
  CLI::App app{"durable submits per second"};
  app.add_option("--bin-dir", bin_dir)->required();
  app.add_option("--folder", folder)->required();
  app.add_option("--clients", clients);
  app.add_option("--jobs", jobs);
  app.add_option("--repeats", repeats);
  CLI11_PARSE(app, argc, argv);
  nlohmann::json samples = nlohmann::json::array();
  for (int i = 0; i < repeats; ++i) {
    const std::optional<double> rate =
        Measure(bin_dir + "/regroup", folder + "/submits-" + std::to_string(i), clients, jobs);
    if (!rate) return 1;
    samples.push_back(*rate);
  }
  char setup[256];
  std::snprintf(setup, sizeof setup,
                "%d clients on the Unix socket, %d jobs one per call, coordinator SIGKILLed and "
                "started again half-way, "
                "outage included; every acknowledged job found afterwards",
                clients, jobs);
  std::printf("%s\n", nlohmann::json{{"samples", samples}, {"setup", setup}}.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace regroup::bench

int main(int argc, char** argv) { return regroup::bench::Main(argc, argv); }
