// A coordinator that is started over a journal of many jobs: from its exec until a call is
// answered. Most have ended, each with a history; some run, and their nodes are awaited. One JSON
// line with seconds.

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/rpc/places.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/shell/records.h"
#include "launcher/coordinator/shell/sqlite_journal.h"
#include "tests/bench/coordinator_client.h"
#include "tests/launcher/coordinator/shell/coordinator_process.h"

namespace regroup::bench {
namespace {

using coordinator::Journal;
using Clock = std::chrono::steady_clock;
using regroup::testing::CoordinatorProcess;

struct Size {
  int ended = 10'000, generations = 20, events = 100, running = 1'000;
};

class Writer {
 public:
  explicit Writer(const std::string& path) : journal_(coordinator::MakeSqliteJournal(path)) {
    std::promise<absl::Status> loaded;
    journal_->Load(nullptr, [&](const absl::StatusOr<Journal::Batch>& rows) {
      loaded.set_value(rows.status());
    });
    CHECK(loaded.get_future().get().ok());
  }
  ~Writer() { Flush(); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void Put(const coordinator::Key& key, coordinator::Value value) {
    batch_.push_back(coordinator::EncodeRow({key, std::move(value)}));
    if (batch_.size() == 50'000) Flush();
  }

 private:
  void Flush() {
    std::promise<absl::Status> written;
    journal_->Commit(std::exchange(batch_, {}),
                     [&](const absl::Status& status) { written.set_value(status); });
    CHECK(written.get_future().get().ok());
  }

  std::unique_ptr<Journal> journal_;
  Journal::Batch batch_;
};

void PutNode(Writer& journal, const std::string& name) {
  coordinator::NodeRow node;
  node.node = NodeId(name);
  node.name = name;
  node.boot = BootId("boot");
  node.address = node.dialled = "10.0.0.1";
  node.slots = 8;
  journal.Put(coordinator::NodeKey(node.node), node);
}

void PutJob(Writer& journal, int number, const Size& size, bool ended, const std::string& node) {
  const JobId job(absl::StrCat("train-", number));
  const WallTime at(std::chrono::hours(24 * 365 * 60));
  coordinator::JobSpecRow spec;
  spec.job = job;
  spec.sequence = static_cast<std::uint64_t>(number);
  spec.key = absl::StrCat("key-", number);
  spec.spec.name = "train";
  spec.spec.command = {"python3", "train.py", "--steps", "1000"};
  spec.spec.directory = "/data/project";
  spec.created_at = at;
  journal.Put(coordinator::JobSpecKey(job), spec);
  const int generations = ended ? size.generations : 1;
  coordinator::JobStateRow state;
  state.job = job;
  state.phase = ended ? coordinator::JobPhase::kEnded : coordinator::JobPhase::kRunning;
  state.last_number = state.last_formed = Generation(static_cast<std::uint64_t>(generations));
  state.started_at = at;
  if (ended) {
    state.verdict = coordinator::Verdict{coordinator::VerdictState::kSucceeded, 0, std::nullopt};
    state.ended_at =
        std::chrono::time_point_cast<WallTime::duration>(std::chrono::system_clock::now());
  }
  journal.Put(coordinator::JobStateKey(job), state);
  for (int i = 1; i <= generations; ++i) {
    coordinator::GenerationRow generation;
    generation.job = job;
    generation.generation = Generation(static_cast<std::uint64_t>(i));
    generation.phase =
        ended ? coordinator::GenerationPhase::kOver : coordinator::GenerationPhase::kFormed;
    generation.members.push_back(
        {NodeId(node), node, "10.0.0.1", 1, std::nullopt, true, {4711}, 0});
    generation.proposed_at = at;
    generation.formed_at = at;
    if (ended) generation.ended = NodeLost{node, "silent", std::chrono::seconds(3)};
    journal.Put(coordinator::GenerationKey(job, generation.generation), generation);
  }
  for (int i = 1; ended && i <= size.events; ++i) {
    const auto number_of_event = static_cast<std::uint64_t>(i);
    journal.Put(coordinator::JobEventKey(job, number_of_event),
                coordinator::JobEventRow{
                    job, {number_of_event, at, NodeJoined{absl::StrCat("node", i), 1, 1, 8}}});
  }
}

void Write(const std::string& path, const Size& size) {
  Writer journal(path);
  journal.Put(coordinator::MetaKey(),
              coordinator::MetaRow{ClusterId("cluster"), Epoch(1), 0, Epoch()});
  for (int i = 0; i < size.running; ++i) PutNode(journal, absl::StrCat("node", i));
  int number = 0;
  for (int i = 0; i < size.ended; ++i)
    PutJob(journal, ++number, size, true, absl::StrCat("node", i % (size.running + 1)));
  for (int i = 0; i < size.running; ++i)
    PutJob(journal, ++number, size, false, absl::StrCat("node", i));
}

int Main(int argc, char** argv) {
  std::string bin_dir, folder;
  Size size;
  int repeats = 5;
  CLI::App app{"a coordinator's start over a large journal, in seconds"};
  app.add_option("--bin-dir", bin_dir)->required();
  app.add_option("--folder", folder)->required();
  app.add_option("--ended", size.ended);
  app.add_option("--generations", size.generations);
  app.add_option("--events", size.events);
  app.add_option("--running", size.running);
  app.add_option("--repeats", repeats);
  CLI11_PARSE(app, argc, argv);
  const std::uint16_t port = regroup::testing::FreePort();
  const std::string place = CoordinatorFolder(folder, port);
  std::filesystem::create_directories(place);
  std::filesystem::permissions(place, std::filesystem::perms::owner_all);
  const std::string journal = place + "/" + kCoordinatorJournalName;
  Write(journal, size);
  const std::uintmax_t bytes = std::filesystem::file_size(journal);
  nlohmann::json samples = nlohmann::json::array();
  for (int i = 0; i < repeats; ++i) {
    CoordinatorProcess process;
    const Clock::time_point begin = Clock::now();
    process.Start({bin_dir + "/regroup", "coordinator", "--state-dir", folder, "--listen",
                   "127.0.0.1:" + std::to_string(port)},
                  folder + "/log");
    CoordinatorClient client(place + "/" + kCoordinatorSocketName);
    const std::size_t found = client.Jobs().size();
    samples.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    process.Kill();
    if (found == static_cast<std::size_t>(size.running)) continue;
    std::fprintf(stderr, "%zu of %d jobs run\n", found, size.running);
    return 1;
  }
  char setup[300];
  std::snprintf(
      setup, sizeof setup,
      "exec of a coordinator to its first answer, a list of the running jobs: %d ended jobs of "
      "%d generations and %d events, %d running ones on as many nodes, journal %.0f MB, SIGKILL "
      "before each start",
      size.ended, size.generations, size.events, size.running, static_cast<double>(bytes) / 1e6);
  std::printf("%s\n", nlohmann::json{{"samples", samples}, {"setup", setup}}.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace regroup::bench

int main(int argc, char** argv) { return regroup::bench::Main(argc, argv); }
