// The loop's side of real shims: prepare, run, exit, what failed ranks leave behind, adoption by
// another life.

#include "agent/shell/group_host.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <utility>

#include "common/io/address.h"
#include "common/io/fd.h"
#include "common/io/files.h"
#include "common/io/proc.h"
#include "tests/agent/shell/kill_rounds.h"
#include "tests/agent/shell/scratch.h"

namespace regroup::agent {
namespace {

using namespace std::chrono_literals;
using namespace testing;  // NOLINT: what a host tells is all that these are about.

std::string ShimProgram() {
  const char* folder = std::getenv("REGROUP_BIN_DIR");
  return std::string(folder != nullptr ? folder : REGROUP_BIN_DIR_DEFAULT) + "/regroup-shim";
}

GroupKey Key() { return {JobId("a-1"), Generation(1)}; }

bool Connects(const Address& address) {
  const io::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const io::SocketAddress target = *io::ToSocketAddress(address);
  return ::connect(fd.get(), target.get(), target.size) == 0;
}

// One life of an agent, without its core.
class Life {
 public:
  Life(const Scratch& scratch, std::string script, const NodeCheck& check = {},
       bool launched = false)
      : runs_(scratch.path() + "/run") {
    GroupHost::Options options;
    options.launched = launched;
    options.node_base = runs_;
    std::filesystem::create_directories(runs_);
    options.shim_program = ShimProgram();
    options.log_root = scratch.path() + "/logs";
    options.worker_socket = "/nowhere";
    options.cgroup_base = shim::FindCgroupBase().value_or("");
    options.node = NodeId("n");
    options.boot = *io::ReadBootId();
    options.program = [script, check](const Prepare&) {
      return GroupProgram{{"/bin/sh", "-c", script}, {{"PATH", "/usr/bin:/bin"}}, "/", check};
    };
    host_.emplace(
        loop_, disk_, std::move(options),
        GroupHost::Handler{[this](const Event& event) { telling_(event); },
                           {},
                           [this](std::string text) { warnings_.push_back(std::move(text)); },
                           launched ? Told() : nullptr});
  }

  // Of a group that is empty: once its words are there.
  template <class T>
  const T* Find() const {
    for (const Happening& event : telling_.told()) {
      const T* found = std::get_if<T>(&event);
      if constexpr (std::is_same_v<T, GroupEmpty>) {
        if (found != nullptr && found->awaits_words) continue;
      }
      if (found != nullptr) return found;
    }
    return nullptr;
  }
  bool AwaitsWords() const {
    return std::any_of(telling_.told().begin(), telling_.told().end(), [](const Happening& event) {
      const auto* empty = std::get_if<GroupEmpty>(&event);
      return empty != nullptr && empty->awaits_words;
    });
  }
  void RunUntil(const std::function<bool()>& condition) {
    const auto limit = std::chrono::steady_clock::now() + 10s;
    while (!condition() && std::chrono::steady_clock::now() < limit) {
      loop_.restart();
      loop_.run_one_for(50ms);
    }
    EXPECT_TRUE(condition());
  }
  template <class T>
  const T* WaitFor() {
    RunUntil([&] { return Find<T>() != nullptr; });
    return Find<T>();
  }
  std::vector<RunRecord> Scan() {
    std::optional<std::vector<RunRecord>> found;
    host_->Scan([&](std::vector<RunRecord> records) { found = std::move(records); });
    const auto limit = std::chrono::steady_clock::now() + 10s;
    while (!found && std::chrono::steady_clock::now() < limit) loop_.run_one_for(50ms);
    EXPECT_TRUE(found);
    for (const RunRecord& record : *found) telling_.Begin(record);
    return *found;
  }
  void PrepareGroup(int workers, bool host_store = false, const JobSpec& job = {},
                    const std::string& advertise = "127.0.0.1") {
    Prepare prepare;
    prepare.spec.job = job;
    prepare.generation = Generation(1);
    prepare.spec.workers = workers;
    prepare.host_store = host_store;
    prepare.advertise = advertise;
    host_->Carry(WriteRunDirectory{Key(), prepare});
    ASSERT_NE(WaitFor<RunDirectoryWritten>(), nullptr);
    host_->Carry(SpawnShim{Key()});
    if (host_store) host_->Carry(SpawnStore{Key()});
    ASSERT_NE(WaitFor<ShimReady>(), nullptr);
  }
  io::ProcessStat FirstRank() const {
    const auto pid = static_cast<pid_t>(Find<RanksStarted>()->starts.at(0).pid);
    return io::ReadProcessStat(pid).value();
  }
  void KillAll(const GroupKey& key) { testing::KillAll(*host_, telling_.told(), key); }
  // Its shim is about to be gone.
  void ExpectKilled(const io::ProcessStat& rank) {
    ASSERT_NE(WaitFor<ShimGone>(), nullptr);
    KillAll(Key());
    EXPECT_FALSE(io::IsAlive(rank.pid, rank.start_ticks));
  }
  void StartGroup(int workers, const Address& store = {"127.0.0.1", 1}, bool many_hosts = false) {
    regroup::Run run;
    run.generation = Generation(1);
    run.store = store;
    run.many_hosts = many_hosts;
    for (int i = 0; i < workers; ++i) run.mine.push_back({i, i});
    run.world_size = workers;
    host_->Carry(StartRanks{Key(), run});
    ASSERT_NE(WaitFor<RanksStarted>(), nullptr);
  }
  GroupHost& host() { return *host_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  const std::vector<std::string>& told() const { return told_; }
  // The group's directory: it is gone once no shim, which may still write output, holds its lock.
  void Remove() {
    host_->Carry(RemoveRunDirectory{Key()});
    RunUntil([&] { return std::filesystem::is_empty(runs_); });
  }
  void RunFor(std::chrono::milliseconds time) {
    loop_.restart();
    loop_.run_for(time);
  }

 private:
  std::function<void(std::string)> Told() {
    return [this](std::string text) { told_.push_back(std::move(text)); };
  }

  const std::string runs_;
  boost::asio::io_context loop_{1};
  boost::asio::thread_pool disk_{1};
  Telling telling_;
  std::vector<std::string> warnings_, told_;
  std::optional<GroupHost> host_;
};

TEST(GroupHost, AGroupRunsAndLeavesItsErrorBehind) {
  Scratch scratch;
  Life life(scratch, "echo out; echo why >&2; exit 7");
  life.PrepareGroup(1);
  EXPECT_TRUE(life.Find<ShimReady>()->witness);
  life.StartGroup(1);
  const RankExited* exited = life.WaitFor<RankExited>();
  ASSERT_NE(exited, nullptr);
  EXPECT_EQ(exited->exit.kind, ExitKind::kExited);
  EXPECT_EQ(exited->exit.code, 7);
  ASSERT_NE(life.WaitFor<GroupEmpty>(), nullptr);
  EXPECT_FALSE(life.host().OutputPending(Key().job));
  ASSERT_NE(life.Find<RankErrorRead>(), nullptr) << "said before the group is free";
  EXPECT_EQ(life.Find<RankErrorRead>()->error, "why");
  life.Remove();
  EXPECT_EQ(io::TailText(io::LogDirectory(scratch.path() + "/logs", Key().job, Key().generation, 0),
                         io::LogStream::kStdout, 10, 100),
            "out\n");
}

TEST(GroupHost, TheStoreListensAtTheAdvertisedAddressOnly) {
  Scratch scratch;
  Life life(scratch, "");
  life.PrepareGroup(1, true, {}, "127.0.0.3");
  const Address store = life.Find<StoreBound>()->address;
  EXPECT_EQ(store.host, "127.0.0.3");
  EXPECT_TRUE(Connects(store));
  EXPECT_FALSE(Connects({"127.0.0.1", store.port}));
  life.host().Carry(CloseStore{Key()});
  life.host().Carry(StopRanks{Key(), io::BootNow()});
  ASSERT_NE(life.WaitFor<GroupEmpty>(), nullptr);
  life.Remove();
}

TEST(GroupHost, TheNextAgentKnowsTheRanksByTheirTokens) {
  Scratch scratch;
  const std::string said = scratch.path() + "/token";
  Life before(scratch, "printf %s $REGROUP_WORKER_TOKEN >" + said + ".tmp; mv " + said + ".tmp " +
                           said + "; sleep 60");
  before.PrepareGroup(1);
  before.StartGroup(1);
  while (!std::filesystem::exists(said)) before.RunFor(20ms);
  const std::string token = *io::ReadFile(said, 100);
  Life after(scratch, "");
  ASSERT_EQ(after.Scan().size(), 1u);
  for (Life* life : {&before, &after}) {
    EXPECT_TRUE(life->host().IsRank(Key(), 0, 0, token));
    EXPECT_FALSE(life->host().IsRank(Key(), 1, 1, token));
    EXPECT_FALSE(life->host().IsRank(Key(), 0, 0, ""));
    EXPECT_FALSE(life->host().IsRank({Key().job, Generation(2)}, 0, 0, token));
  }
  after.KillAll(Key());
  after.Remove();
}

TEST(GroupHost, AGroupWithoutRanksStopsAtOnce) {
  Scratch scratch;
  Life life(scratch, "");
  life.PrepareGroup(2);
  life.host().Carry(StopRanks{Key(), io::BootNow()});
  ASSERT_NE(life.WaitFor<GroupEmpty>(), nullptr);
  EXPECT_EQ(life.Find<RanksStarted>(), nullptr);
  life.Remove();
}

// The first thing that is heard of it may be its end.
TEST(GroupHost, ACheckThatHasFailedIsNotCalledReady) {
  Scratch scratch;
  Life life(scratch, "", {"echo no GPU; exit 3", 10s});
  Prepare prepare;
  prepare.generation = Generation(1);
  life.host().Carry(WriteRunDirectory{Key(), prepare});
  life.host().Carry(SpawnShim{Key()});
  const auto over = [&] {  // Long before the loop runs and could hear of it.
    const absl::StatusOr<shim::RunScan> scan = shim::ScanRunDirectories(scratch.path() + "/run");
    return scan.ok() && scan->records.size() == 1 && scan->records[0].state &&
           scan->records[0].state->phase == Phase::kFree;
  };
  const auto limit = std::chrono::steady_clock::now() + 10s;
  while (!over() && std::chrono::steady_clock::now() < limit) {
  }
  ASSERT_TRUE(over());
  ASSERT_NE(life.WaitFor<PrepareFailed>(), nullptr);
  EXPECT_EQ(life.Find<PrepareFailed>()->why, "its node check exited with 3: no GPU");
  ASSERT_NE(life.Find<ShimReady>(), nullptr);
  EXPECT_TRUE(life.Find<ShimReady>()->checking);
  EXPECT_EQ(life.Find<NodeChecked>(), nullptr);
  ASSERT_NE(life.WaitFor<GroupEmpty>(), nullptr);
  life.Remove();
}

TEST(GroupHost, AnotherLifeAdoptsWhatRuns) {
  Scratch scratch;
  std::int64_t pid = 0;
  std::optional<Address> store;
  {
    Life life(scratch, "exec sleep 60");
    life.PrepareGroup(1, /*host_store=*/true);
    life.StartGroup(1);
    pid = life.Find<RanksStarted>()->starts.at(0).pid;
    store = life.Find<StoreBound>()->address;
  }
  Life life(scratch, "");
  const std::vector<RunRecord> records = life.Scan();
  ASSERT_EQ(records.size(), 1u);
  const RunRecord& record = records[0];
  EXPECT_EQ(record.key, Key());
  EXPECT_TRUE(record.shim_alive && record.started && record.store.alive && record.store.hosted);
  EXPECT_EQ(record.store.address, store);
  ASSERT_EQ(record.starts.size(), 1u);
  EXPECT_EQ(record.starts[0].pid, pid);
  EXPECT_EQ(::kill(static_cast<pid_t>(pid), 0), 0);
  life.host().Carry(StopRanks{Key(), io::BootNow() + 5s});
  const RankExited* exited = life.WaitFor<RankExited>();
  ASSERT_NE(exited, nullptr);
  EXPECT_EQ(exited->exit.code, SIGTERM);
  EXPECT_TRUE(exited->exit.after_stop);
  ASSERT_NE(life.WaitFor<GroupEmpty>(), nullptr);
  life.Remove();
}

// An older agent did not name them; what has another type says nothing, and ends no agent.
TEST(GroupHost, AnotherLifeReadsWhomItsMarkNames) {
  Scratch scratch;
  {
    Life life(scratch, "exec sleep 60");
    life.PrepareGroup(2);
    life.StartGroup(2);
    life.host().Carry(SignalRank{Key(), 1, SIGCONT});
  }
  const auto read = [&] {
    Life life(scratch, "");
    const std::vector<RunRecord> records = life.Scan();
    return records.size() == 1 ? records[0].signalled : std::set<int>{-1};
  };
  EXPECT_EQ(read(), (std::set<int>{1}));
  const std::vector<std::pair<const char*, std::set<int>>> notes = {
      {R"({"noticed":true})", {0, 1}},
      {R"({"noticed":true,"signalled":[0]})", {0}},
      {R"({"noticed":true,"signalled":["a"]})", {0, 1}},
      {R"({"noticed":"x","signalled":"y"})", {}},
      {"rubbish", {}}};
  for (const auto& [note, signalled] : notes) {
    ASSERT_TRUE(shim::WriteAgentNotes(scratch.path() + "/run/a-1.1", note).ok());
    EXPECT_EQ(read(), signalled) << note;
  }
  Life life(scratch, "");
  ASSERT_EQ(life.Scan().size(), 1u);
  life.host().Carry(StopRanks{Key(), io::BootNow() + 5s});
  ASSERT_NE(life.WaitFor<GroupEmpty>(), nullptr);
  life.Remove();
}

// What a job file asks of its workers is known to whoever starts them.
TEST(GroupHost, AnotherLifeStartsRanksAsTheJobWantsThem) {
  Scratch scratch;
  {
    JobSpec job;
    job.role = "trainer";
    job.virtual_local_rank = true;
    Life life(scratch, "echo $ROLE_NAME $LOCAL_RANK $CUDA_VISIBLE_DEVICES > " + scratch.path() +
                           "/seen-$RANK");
    life.PrepareGroup(2, /*host_store=*/false, job);
  }
  Life life(scratch, "");
  ASSERT_EQ(life.Scan().size(), 1u);
  life.StartGroup(2);
  ASSERT_NE(life.WaitFor<GroupEmpty>(), nullptr);
  for (int rank = 0; rank < 2; ++rank) {
    std::ifstream seen(scratch.path() + "/seen-" + std::to_string(rank));
    std::string line;
    std::getline(seen, line);
    EXPECT_EQ(line, "trainer 0 " + std::to_string(rank));
  }
  life.Remove();
}

TEST(GroupHost, AStoreThatThisNodeDoesNotReachIsTold) {
  Scratch scratch;
  const io::UniqueFd listener = std::move(*io::ListenTcp({"127.0.0.1", 0}));
  const Address reached = *io::LocalAddressOf(listener.get());
  for (const Address& store : {reached, Address{"127.0.0.1", 1}}) {
    Life life(scratch, "");
    life.PrepareGroup(1);
    life.StartGroup(1, store, /*many_hosts=*/true);
    ASSERT_NE(life.WaitFor<GroupEmpty>(), nullptr);
    if (store.port == 1) {
      ASSERT_EQ(life.warnings().size(), 1u);
      EXPECT_THAT(life.warnings()[0],
                  ::testing::AllOf(::testing::HasSubstr("does not reach 127.0.0.1:1,"),
                                   ::testing::HasSubstr("(Connection refused)")));
    } else {
      EXPECT_TRUE(life.warnings().empty()) << life.warnings()[0];
    }
    life.Remove();
  }
}

TEST(GroupHost, AShimThatDoesNotAnswerIsKilledWithItsRanks) {
  Scratch scratch;
  Life life(scratch, "exec sleep 60");
  life.PrepareGroup(1);
  life.StartGroup(1);
  const io::ProcessStat rank = life.FirstRank();
  ASSERT_EQ(::kill(rank.parent, SIGSTOP), 0);
  life.host().Carry(KillShim{Key()});
  life.ExpectKilled(rank);
  life.Remove();
}

// H3: it used to be removed, its ranks lived on and nobody could ever stop them.
TEST(GroupHost, ADirectoryThatCannotBeReadKeepsItsGroupUntilThatIsEnded) {
  // Another cluster's, of the same name.
  Scratch elsewhere;
  Life neighbour(elsewhere, "exec sleep 60");
  neighbour.PrepareGroup(1);
  neighbour.StartGroup(1);
  const io::ProcessStat theirs = neighbour.FirstRank();
  for (const char* file : {"state", "spec"}) {
    Scratch scratch;
    const std::string folder = scratch.path() + "/run/a-1.1";
    std::optional<io::ProcessStat> rank;
    {
      Life life(scratch, "setsid sleep 60 & exec sleep 60");
      life.PrepareGroup(3);
      life.StartGroup(3);
      rank = life.FirstRank();
      // What is told is written after it; what is written below is to stay.
      life.RunUntil([&] { return shim::ReadRunDirectory(folder)->state->ever_started; });
      ASSERT_EQ(::kill(rank->parent, SIGSTOP), 0);
      life.RunUntil([&] { return io::ReadProcessStat(rank->parent)->state == 'T'; });
    }
    std::ofstream(folder + "/" + file) << "rubbish";
    Life life(scratch, "");
    const std::vector<RunRecord> records = life.Scan();
    ASSERT_EQ(records.size(), 1u);
    const RunRecord& record = records[0];
    EXPECT_EQ(record.key, Key());
    EXPECT_TRUE(record.started && !record.shim_alive && !record.empty && !record.killed);
    EXPECT_EQ(record.workers, std::string(file) == "spec" ? 0 : 3);
    EXPECT_TRUE(io::IsAlive(rank->pid, rank->start_ticks));
    EXPECT_TRUE(std::filesystem::exists(folder));
    life.KillAll(Key());
    EXPECT_FALSE(io::IsAlive(rank->pid, rank->start_ticks));
    EXPECT_FALSE(io::IsAlive(rank->parent, 0)) << "its shim";
    EXPECT_TRUE(io::IsAlive(theirs.pid, theirs.start_ticks));
    life.Remove();
  }
  neighbour.host().Carry(StopRanks{Key(), io::BootNow()});
  ASSERT_NE(neighbour.WaitFor<GroupEmpty>(), nullptr);
  neighbour.Remove();
}

TEST(GroupHost, WithoutDescriptorsTheScanWaitsAndTouchesNothing) {
  Scratch scratch;
  std::optional<io::ProcessStat> rank;
  {
    Life life(scratch, "exec sleep 60");
    life.PrepareGroup(1);
    life.StartGroup(1);
    rank = life.FirstRank();
  }
  Life life(scratch, "");
  // UBSan looks at the vtable of a type that it has not seen yet through a pipe, for which no
  // descriptor will be left: it sees the timer of a later look now.
  boost::asio::io_context unused;
  EXPECT_EQ(std::make_shared<boost::asio::steady_timer>(unused)->cancel(), 0u);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const io::UniqueFd lowest(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const rlimit none{static_cast<rlim_t>(lowest.get()) + 1, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  std::optional<std::vector<RunRecord>> found;
  life.host().Scan([&](std::vector<RunRecord> records) { found = std::move(records); });
  EXPECT_FALSE(found);
  EXPECT_EQ(life.warnings().size(), 1u);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  for (int round = 0; round < 100 && !found; ++round) life.RunFor(100ms);
  ASSERT_TRUE(found);
  ASSERT_EQ(found->size(), 1u);
  EXPECT_TRUE((*found)[0].shim_alive);
  EXPECT_TRUE(io::IsAlive(rank->pid, rank->start_ticks));
  life.host().Carry(StopRanks{Key(), io::BootNow()});
  ASSERT_NE(life.WaitFor<GroupEmpty>(), nullptr);
  life.Remove();
}

// An agent that dies between the directory and the shim leaves an empty cgroup, which the
// directory names.
TEST(GroupHost, ACgroupWithoutAShimGoesWithItsDirectory) {
  const absl::StatusOr<std::string> base = shim::FindCgroupBase();
  if (!base.ok()) GTEST_SKIP() << base.status();
  Scratch scratch;
  {
    Life life(scratch, "");
    Prepare prepare;
    prepare.generation = Generation(1);
    life.host().Carry(WriteRunDirectory{Key(), prepare});
  }
  const absl::StatusOr<shim::RunScan> scan = shim::ScanRunDirectories(scratch.path() + "/run");
  ASSERT_TRUE(scan.ok() && scan->records.size() == 1);
  const std::string cgroup = scan->records[0].spec.cgroup;
  ASSERT_TRUE(std::filesystem::exists(cgroup)) << cgroup;
  Life next(scratch, "");
  ASSERT_EQ(next.Scan().size(), 1u);
  next.Remove();
  EXPECT_FALSE(std::filesystem::exists(cgroup));
}

// Stopped as one is that waits for a disk: the shim lives and answers, its logs are not written.
class StoppedLogThread {
 public:
  explicit StoppedLogThread(pid_t shim) {
    for (const auto& task :
         std::filesystem::directory_iterator("/proc/" + std::to_string(shim) + "/task")) {
      const auto thread = static_cast<pid_t>(std::stoi(task.path().filename()));
      if (thread != shim) thread_ = thread;
    }
    stopped_ = ::ptrace(PTRACE_SEIZE, thread_, nullptr, nullptr) == 0 &&
               ::ptrace(PTRACE_INTERRUPT, thread_, nullptr, nullptr) == 0 &&
               ::waitpid(thread_, nullptr, __WALL) == thread_;
  }
  ~StoppedLogThread() {
    if (stopped_) ::ptrace(PTRACE_DETACH, thread_, nullptr, nullptr);
  }
  bool stopped() const { return stopped_; }

 private:
  pid_t thread_ = 0;
  bool stopped_ = false;
};

TEST(GroupHost, OutputThatIsNotWrittenInTimeIsTold) {
  Scratch scratch;
  const std::string stopped = scratch.path() + "/stopped";
  Life life(scratch, "until [ -e " + stopped + " ]; do sleep 0.02; done; echo late", {},
            /*launched=*/true);
  life.PrepareGroup(1);
  life.StartGroup(1);
  {
    const StoppedLogThread disk(life.FirstRank().parent);
    if (!disk.stopped()) GTEST_SKIP() << "needs the right to trace";
    std::ofstream(stopped) << "yes";
    life.RunUntil([&] { return life.AwaitsWords(); });
    EXPECT_EQ(life.Find<GroupEmpty>(), nullptr);
    life.host().Carry(ShowLateOutput{Key()});
  }
  ASSERT_NE(life.WaitFor<GroupEmpty>(), nullptr) << "the disk writes again";
  EXPECT_THAT(life.told(), ::testing::Contains(::testing::HasSubstr(
                               "the last output of rank 0 may not be shown: its disk has not "
                               "taken it in time · it comes to " +
                               scratch.path() + "/logs/a-1/1/0")));
  life.Remove();
}

TEST(GroupHost, ADeadShimIsSeenAndItsRanksAreKilled) {
  Scratch scratch;
  Life life(scratch, "setsid sleep 60 & exec sleep 60");
  life.PrepareGroup(1);
  life.StartGroup(1);
  const io::ProcessStat rank = life.FirstRank();
  ASSERT_EQ(::kill(rank.parent, SIGKILL), 0);
  life.ExpectKilled(rank);
  Life next(scratch, "");
  const std::vector<RunRecord> records = next.Scan();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_TRUE(records[0].killed && records[0].started && !records[0].shim_alive);
  next.Remove();
}

}  // namespace
}  // namespace regroup::agent
