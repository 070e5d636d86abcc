// Ranks that live through the end of their generation: one shim, from generation to generation.

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/io/files.h"
#include "common/io/proc.h"
#include "common/io/unix_socket.h"
#include "tests/agent/shim/shim_fixture.h"

namespace regroup::shim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Prints what it is told to, and exits with the code that it is told.
constexpr char kObeys[] =
    "while :; do if [ -e $WORK/say.$LOCAL_RANK ]; then cat $WORK/say.$LOCAL_RANK; rm "
    "$WORK/say.$LOCAL_RANK; fi; if [ -e $WORK/exit.$LOCAL_RANK ]; then read code < "
    "$WORK/exit.$LOCAL_RANK; rm $WORK/exit.$LOCAL_RANK; exit $code; fi; sleep 0.01; done";

int DescriptorsOf(pid_t pid) {
  int count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd")))
    ++count;
  return count;
}

// A state that is being written down is a descriptor more.
int SettledDescriptorsOf(pid_t pid) {
  int before = 0, same = 0;
  EXPECT_TRUE(Eventually([&] {
    const int now = DescriptorsOf(pid);
    same = now == before ? same + 1 : 0;
    before = now;
    return same >= 10;
  }));
  return before;
}

bool LivesAs(const RankState& rank, const RankState& before) {
  return rank.phase == RankPhase::kRunning && rank.pid == before.pid &&
         rank.start_ticks == before.start_ticks && io::IsAlive(rank.pid, rank.start_ticks);
}

class AdoptTest : public ShimTest, public testing::WithParamInterface<bool> {
 protected:
  AdoptTest() { use_cgroup_ = GetParam(); }
  void SetUp() override {
    if (use_cgroup_ && !FindCgroupBase().ok()) GTEST_SKIP() << FindCgroupBase().status();
  }
  Group RunAll(const std::string& script, int workers = 3) {
    Spec spec = ShellSpec(script, workers);
    spec.keeps_ranks = true;
    Group group = Run(std::move(spec));
    EXPECT_TRUE(group.WaitForPhase(Phase::kRunning)) << ShimLog(group);
    return group;
  }
  void KillRank(Group& group, int local_rank) {
    ASSERT_TRUE(
        io::SignalProcess(group.rank(local_rank).pid, group.rank(local_rank).start_ticks, SIGKILL)
            .ok());
    ASSERT_TRUE(group.WaitFor([local_rank](const State& s) {
      return s.ranks[static_cast<std::size_t>(local_rank)].phase == RankPhase::kEnded;
    }));
  }
  void StartNext(Group& group, int first) {
    group.Start(first);
    ASSERT_TRUE(group.WaitForPhase(Phase::kRunning)) << ShimLog(group);
  }
  void Tell(const std::string& what, int local_rank, const std::string& text) {
    const std::string path = work_ / absl::StrCat(what, ".", local_rank);
    ASSERT_TRUE(io::ReplaceFile(path, text, io::Durability::kVolatile).ok());
    ASSERT_TRUE(Eventually([&] { return !std::filesystem::exists(path); }));
  }
  std::string LogOf(const Spec& spec, int rank) {
    io::LogReader reader(io::LogDirectory(spec.log_root, spec.job, spec.generation, rank),
                         io::LogStream::kStdout);
    std::string all;
    for (auto chunk = reader.Next(); chunk.ok() && !chunk->bytes.empty(); chunk = reader.Next())
      all += chunk->bytes;
    return all;
  }
  void ExpectNothingLeft(const Group& group) {
    EXPECT_EQ(group.state.phase, Phase::kFree);
    EXPECT_EQ(LiveWithMark(group.spec), 0);
    EXPECT_NE(::access(group.spec.cgroup.c_str(), F_OK), 0);
  }
  void ExpectGoesOn(Group& group) {
    group.state = State{};
    ASSERT_TRUE(group.link->Send(Query{}).ok());
    ASSERT_TRUE(group.WaitForPhase(Phase::kRunning));
  }
  // As an agent does that finds its shim dead.
  void EndWhatIsLeft(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      RunRecord record;
      ASSERT_TRUE(Eventually([&] {
        absl::StatusOr<RunRecord> read = ReadRunDirectory(path);
        if (read.ok()) record = *std::move(read);
        return read.ok() && !record.shim_alive;
      })) << path;
      if (!record.supervisor_lost()) continue;
      int empty = 0;
      ASSERT_TRUE(Eventually([&] {
        const absl::StatusOr<int> found = KillLeftovers(record);
        empty = found.ok() && *found == 0 ? empty + 1 : 0;
        return empty >= 2;
      }));
    }
  }
};

TEST_P(AdoptTest, RanksThatLiveGoOnAndADeadOneIsReplaced) {
  Group group = RunAll(kObeys);
  const std::vector<RankState> first = group.state.ranks;
  KillRank(group, 1);
  Before before = HandOver(group);
  ASSERT_TRUE(group.WaitForPhase(Phase::kPrepared));
  EXPECT_FALSE(group.state.ever_started);
  EXPECT_TRUE(LivesAs(group.rank(0), first[0]) && LivesAs(group.rank(2), first[2]));
  EXPECT_EQ(group.rank(1).phase, RankPhase::kWaiting);
  EXPECT_EQ(group.rank(1).pid, 0);

  const RunRecord was = *ReadRunDirectory(before.directory.path);
  EXPECT_FALSE(was.shim_alive || was.supervisor_lost());
  ASSERT_TRUE(was.state && was.started);
  EXPECT_EQ(was.state->phase, Phase::kFree);
  EXPECT_EQ(was.state->ranks[0].phase, RankPhase::kKept);
  EXPECT_EQ(was.state->ranks[0].pid, first[0].pid);
  EXPECT_EQ(was.state->ranks[1].phase, RankPhase::kEnded);
  EXPECT_EQ(was.state->ranks[1].code, SIGKILL);
  EXPECT_TRUE(Eventually([&] { return !before.link.OnReadable().ok(); })) << "closed";
  EXPECT_FALSE(Link::Connect(before.directory, before.spec, false).ok());
  const RunRecord is = *ReadRunDirectory(group.directory.path);
  EXPECT_TRUE(is.shim_alive && !is.started);

  StartNext(group, 20);
  EXPECT_TRUE(ReadRunDirectory(group.directory.path)->started);
  EXPECT_TRUE(LivesAs(group.rank(0), first[0]) && LivesAs(group.rank(2), first[2]));
  EXPECT_NE(group.rank(1).pid, first[1].pid);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(group.rank(i).rank, 20 + i);
    EXPECT_EQ(group.rank(i).inherited, i != 1);
  }
  EXPECT_EQ(io::ReadProcessStat(group.rank(1).pid)->parent, group.shim.pid);
  EXPECT_EQ(group.state.cgroup_used, use_cgroup_);

  Tell("exit", 0, "5\n");
  Tell("exit", 1, "6\n");
  ASSERT_TRUE(group.WaitFor(
      [](const State& s) { return s.ranks[0].logs_complete && s.ranks[1].logs_complete; }));
  EXPECT_EQ(group.rank(0).code, 5);
  EXPECT_EQ(group.rank(1).code, 6);
  EXPECT_FALSE(group.rank(0).after_stop);
  group.Stop(seconds(20));
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(group.rank(2).code, SIGTERM);
  EXPECT_TRUE(group.rank(2).after_stop);
  ExpectNothingLeft(group);
}

TEST_P(AdoptTest, EachGenerationsLogHasWhatWasWrittenInIt) {
  Group group = RunAll(kObeys, 2);
  Tell("say", 0, "one\n");
  KillRank(group, 1);
  const Before before = HandOver(group);
  ASSERT_TRUE(group.WaitForPhase(Phase::kPrepared));
  Tell("say", 0, "between");
  StartNext(group, 20);
  Tell("say", 0, "two\n");
  Tell("say", 1, "new\n");
  const Spec second = group.spec;
  const Before again = HandOver(group);
  ASSERT_TRUE(group.WaitForPhase(Phase::kPrepared));
  StartNext(group, 30);
  Tell("say", 1, "three\n");
  group.Stop(seconds(20));
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(LogOf(before.spec, 10), "one\nbetween");
  EXPECT_EQ(LogOf(second, 20), "two\n");
  EXPECT_EQ(LogOf(second, 21), "new\n");
  EXPECT_EQ(LogOf(group.spec, 30), "");
  EXPECT_EQ(LogOf(group.spec, 31), "three\n");
}

TEST_P(AdoptTest, AStopBeforeTheStartEndsWhatWasKept) {
  Group group = RunAll("trap '' TERM; while :; do sleep 0.01; done");
  KillRank(group, 1);
  HandOver(group);
  ASSERT_TRUE(group.WaitForPhase(Phase::kPrepared));
  group.Stop(milliseconds(50));
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(group.rank(0).code, SIGKILL);
  EXPECT_TRUE(group.rank(0).after_stop);
  EXPECT_EQ(group.rank(1).phase, RankPhase::kWaiting);
  ExpectNothingLeft(group);
}

TEST_P(AdoptTest, AKeptRankThatDiesBeforeTheStartIsReplaced) {
  Group group = RunAll(kObeys);
  const std::vector<RankState> first = group.state.ranks;
  HandOver(group);
  ASSERT_TRUE(group.WaitForPhase(Phase::kPrepared));
  ASSERT_EQ(::kill(first[1].pid, SIGKILL), 0);
  ASSERT_TRUE(
      group.WaitFor([](const State& s) { return s.ranks[1].phase == RankPhase::kWaiting; }));
  EXPECT_EQ(group.state.phase, Phase::kPrepared);
  StartNext(group, 20);
  EXPECT_TRUE(LivesAs(group.rank(0), first[0]) && LivesAs(group.rank(2), first[2]));
  EXPECT_NE(group.rank(1).pid, first[1].pid);
  EXPECT_FALSE(group.rank(1).logs_complete);
}

TEST_P(AdoptTest, AGenerationThatNeverRanIsHandedOnToo) {
  Group group = RunAll(kObeys);
  const std::vector<RankState> first = group.state.ranks;
  KillRank(group, 1);
  HandOver(group);
  ASSERT_TRUE(group.WaitForPhase(Phase::kPrepared));
  const Before never = HandOver(group);
  ASSERT_TRUE(group.WaitForPhase(Phase::kPrepared));
  const RunRecord was = *ReadRunDirectory(never.directory.path);
  EXPECT_FALSE(was.started || was.shim_alive || was.supervisor_lost());
  EXPECT_EQ(was.state->ranks[0].phase, RankPhase::kKept);
  EXPECT_EQ(was.state->ranks[1].phase, RankPhase::kWaiting);
  StartNext(group, 20);
  EXPECT_TRUE(LivesAs(group.rank(0), first[0]) && LivesAs(group.rank(2), first[2]));
}

TEST_P(AdoptTest, WhatAnEndedRankLeftIsGoneBeforeItsSuccessorStarts) {
  // Of each rank: one of its session, one in a session of its own that carries its mark. The
  // successor looks before it says anything.
  const std::string script = absl::StrCat(
      "if [ $RANK -ge 20 ]; then for pid in $(cat $WORK/left.1); do kill -0 $pid 2>/dev/null && "
      "echo alive; done; echo looked; fi; sleep 1000 & a=$!; setsid sleep 1000 & b=$!; echo $a $b "
      "> $WORK/left.$LOCAL_RANK; touch $WORK/ready.$RANK; ",
      kObeys);
  Group group = RunAll(script, 2);
  for (const char* ready : {"ready.10", "ready.11"})
    ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(work_ / ready); }));
  KillRank(group, 1);
  pid_t kept[2];
  std::ifstream(work_ / "left.0") >> kept[0] >> kept[1];
  HandOver(group);
  group.Start(20);
  ASSERT_TRUE(group.WaitForPhase(Phase::kRunning));
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(work_ / "ready.21"); }));
  EXPECT_TRUE(Eventually([&] { return LogOf(group.spec, 21) == "looked\n"; }))
      << LogOf(group.spec, 21);
  for (const pid_t pid : kept) EXPECT_EQ(::kill(pid, 0), 0) << "of a rank that lives";
  ASSERT_TRUE(group.link->Send(Kill{}).ok());
  ASSERT_TRUE(group.WaitForEnd());
  ExpectNothingLeft(group);
}

TEST_P(AdoptTest, WhatDoesNotFitIsRefusedAndItsDescriptorsAreClosed) {
  Group group = RunAll(kObeys, 1);
  const RankState rank = group.rank();
  const int descriptors = SettledDescriptorsOf(group.shim.pid);
  const io::UniqueFd spare(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto send = [&](Link& link, const std::string& bytes, const std::vector<int>& fds) {
    EXPECT_TRUE(io::SendFds(link.fd(), bytes, fds).ok());
  };
  std::vector<int> many(io::kMaxSentFds, spare.get());
  for (const std::vector<int>& fds : {std::vector<int>{spare.get()}, many,
                                      std::vector<int>{spare.get(), spare.get(), spare.get()}}) {
    for (const Command& command : {Command(Query{}), Command(Shown{}), Command(Adopt{})})
      send(*group.link, Frame(Encode(command)), fds);
  }
  for (const bool other_nonce : {true, false}) {
    Spec spec = group.spec;
    spec.generation = other_nonce ? Generation(100) : Generation(0);
    if (other_nonce) spec.nonce = io::RandomHex(16);
    const RunDirectory directory = std::move(*CreateRunDirectory(base_.path(), spec));
    const Adoption adoption = std::move(*PrepareAdoption(directory));
    ASSERT_TRUE(group.link->SendAdopt(adoption, -1).ok());
  }
  ExpectGoesOn(group);
  EXPECT_TRUE(LivesAs(group.rank(), rank));
  EXPECT_EQ(SettledDescriptorsOf(group.shim.pid), descriptors);
  // Those that belong to half a frame go with its connection.
  {
    Link link = std::move(*Link::Connect(group.directory, group.spec, false));
    send(link, Frame(Encode(Command(Adopt{}))).substr(0, 3), many);
    ASSERT_TRUE(Eventually([&] { return DescriptorsOf(group.shim.pid) > descriptors; }));
  }
  EXPECT_TRUE(Eventually([&] { return DescriptorsOf(group.shim.pid) == descriptors; }));
  ExpectGoesOn(group);
}

TEST_P(AdoptTest, AfterAStopItIsRefused) {
  Group group = RunAll("trap '' TERM; : > $WORK/deaf; while :; do sleep 0.01; done", 1);
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(work_ / "deaf"); }));
  group.Stop(seconds(1000));
  ASSERT_TRUE(group.WaitForPhase(Phase::kStopping));
  Adoption adoption;
  Before before = PrepareHandOver(group, adoption);
  ASSERT_TRUE(before.link.SendAdopt(adoption, -1).ok());
  adoption = {};
  ASSERT_TRUE(Eventually([&] { return !group.link->OnReadable().ok(); }));
  EXPECT_FALSE(ReadRunDirectory(group.directory.path)->shim_alive);
  EXPECT_TRUE(ReadRunDirectory(before.directory.path)->shim_alive);
  group.spec = before.spec;
  group.directory = std::move(before.directory);
  group.link = std::move(before.link);
  ASSERT_TRUE(group.link->Send(Kill{}).ok());
  ASSERT_TRUE(group.WaitForEnd());
}

// Stops a shim at each of its system calls.
class Traced {
 public:
  explicit Traced(pid_t shim) : shim_(shim) {
    traced_ = ::ptrace(PTRACE_SEIZE, shim_, nullptr, PTRACE_O_TRACESYSGOOD) == 0 &&
              ::ptrace(PTRACE_INTERRUPT, shim_, nullptr, nullptr) == 0 &&
              ::waitpid(shim_, nullptr, __WALL) == shim_;
  }
  bool traced() const { return traced_; }
  // To its next entry to a call, or return from one. False: it waits for something.
  bool Step() {
    if (::ptrace(PTRACE_SYSCALL, shim_, nullptr, nullptr) < 0) return false;
    const Instant limit = io::BootNow() + milliseconds(200);
    while (io::BootNow() < limit) {
      if (::waitpid(shim_, nullptr, __WALL | WNOHANG) == shim_) return true;
      ::poll(nullptr, 0, 1);
    }
    return false;
  }

 private:
  const pid_t shim_;
  bool traced_ = false;
};

TEST_P(AdoptTest, KilledAtAnyMomentAShimLeavesNothing) {
  // Its pid outlives the shim: it has a session and, without a cgroup, the mark alone.
  const std::string script = "(setsid sleep 1000 &); while :; do sleep 0.01; done";
  bool over = false, any_before = false, any_after = false;
  int step = 1;
  for (; !over && step < 2000; step += 3) {
    Group group = RunAll(script, 2);
    Adoption adoption;
    Before before = PrepareHandOver(group, adoption);
    Traced traced(group.shim.pid);
    if (!traced.traced()) GTEST_SKIP() << "needs the right to trace";
    ASSERT_TRUE(before.link.SendAdopt(adoption, -1).ok());
    adoption = {};
    for (int i = 0; i < step && !over; ++i) over = !traced.Step();
    ASSERT_EQ(::kill(group.shim.pid, SIGKILL), 0);
    pollfd process{group.shim.process.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&process, 1, 10000), 1);
    group.gone = true;
    EndWhatIsLeft({before.directory.path, group.directory.path});
    EXPECT_EQ(LiveWithMark(group.spec), 0) << "killed after " << step << " stops";
    const std::optional<State> was = ReadRunDirectory(before.directory.path)->state;
    const bool final = was && was->phase == Phase::kFree;
    // Never may both say that they are not the group's.
    if (final) {
      EXPECT_TRUE(ReadRunDirectory(group.directory.path)->supervisor_lost());
    }
    any_before = any_before || !final;
    any_after = any_after || final;
    EXPECT_NE(::access(group.spec.cgroup.c_str(), F_OK), 0);
  }
  EXPECT_TRUE(any_before && any_after && over) << step;
}

TEST_P(AdoptTest, FiftyInARowCostNothing) {
  Group group = RunAll(kObeys);
  const RankState kept = group.rank(0);
  int descriptors = 0;
  std::uint64_t bytes = 0;
  for (int i = 1; i <= 50; ++i) {
    KillRank(group, 1);
    const Before before = HandOver(group);
    ASSERT_TRUE(group.WaitForPhase(Phase::kPrepared));
    StartNext(group, 10 * i);
    ASSERT_TRUE(LivesAs(group.rank(0), kept));
    ASSERT_TRUE(RemoveRunDirectory(before.directory.path).ok());
    if (i == 10) descriptors = SettledDescriptorsOf(group.shim.pid);
    if (i == 10) bytes = io::ResidentBytes(group.shim.pid);
  }
  EXPECT_EQ(SettledDescriptorsOf(group.shim.pid), descriptors);
#ifndef __SANITIZE_ADDRESS__
  EXPECT_LT(io::ResidentBytes(group.shim.pid), bytes + (256 << 10));
#else
  EXPECT_GT(bytes, 0u);  // What was freed is kept back there.
#endif
  EXPECT_LE(io::DescendantsOf(group.shim.pid).size(), 6u);  // Ranks, and what each sleeps in.
  group.Stop(seconds(20));
  ASSERT_TRUE(group.WaitForEnd());
  ExpectNothingLeft(group);
}

// ---- warm ---------------------------------------------------------------------------------------

constexpr char kWarmScript[] =
    "import os, sys\n"
    "sys.stdout.write('warm\\n' if 'slow' in sys.modules else 'cold\\n')\n"
    "sys.stdout.flush()\n"
    "import slow, time\n"
    "while True:\n"
    "    time.sleep(0.01)\n";

class WarmAdoptTest : public AdoptTest {
 protected:
  void SetUp() override {
    AdoptTest::SetUp();
    std::filesystem::create_directories(work_ / "site");
    std::ofstream(work_ / "site/slow.py") << "VALUE = 1\n";
    std::ofstream(work_ / "train.py") << kWarmScript;
  }
  ~WarmAdoptTest() override {
    nursery_.socket.reset();
    if (nursery_.child.pid <= 0) return;
    ::kill(nursery_.child.pid, SIGKILL);
    ::waitpid(nursery_.child.pid, nullptr, 0);
  }
  // A group whose shim a nursery has started.
  Group SpawnWarm(int workers) {
    Spec spec = CommandSpec({"python3", "-u", work_ / "train.py"}, workers);
    spec.environment.push_back("PYTHONPATH=" + (work_ / "site"));
    spec.keeps_ranks = true;
    nursery_ = std::move(*SpawnNursery(ShimProgram(), spec, {}));
    EXPECT_EQ(Receive(nursery_.socket.get()), "ready");
    Group group(std::move(spec));
    group.directory = std::move(*CreateRunDirectory(base_.path(), group.spec));
    const io::UniqueFd witness = std::move(*io::ListenTcp({"127.0.0.1", 0}));
    const ShimStart start = std::move(
        *PrepareShim(ShimProgram(), group.directory, Role::kGroup, {.witness = witness.get()}));
    io::UniqueFd answer = std::move(*AskForShim(nursery_.socket.get(), start));
    pollfd poll{answer.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&poll, 1, 20000), 1);
    char pid[16] = {};
    EXPECT_GT(::recv(answer.get(), pid, sizeof(pid) - 1, MSG_PEEK), 0);
    group.shim.pid = std::atoi(pid);
    group.shim.process = std::move(*io::OpenPidfd(group.shim.pid));
    EXPECT_EQ(AllowShim(answer.get()), true);
    group.link = std::move(*Link::Connect(group.directory, group.spec, false));
    return group;
  }
  static std::string Receive(int socket) {
    pollfd poll{socket, POLLIN, 0};
    EXPECT_EQ(::poll(&poll, 1, 20000), 1);
    char text[8192];
    const ssize_t n = ::recv(socket, text, sizeof(text), 0);
    return std::string(text, static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  }
  // Children of the shim that are no ranks.
  std::vector<io::ProcessStat> SparesOf(const Group& group) {
    std::vector<io::ProcessStat> children = io::DescendantsOf(group.shim.pid);
    std::erase_if(children, [&](const io::ProcessStat& process) {
      const bool is_rank =
          std::any_of(group.state.ranks.begin(), group.state.ranks.end(),
                      [&](const RankState& rank) { return rank.pid == process.pid; });
      return process.dead() || is_rank;
    });
    return children;
  }
  void ExpectLog(const Group& group, int rank, const std::string& text) {
    EXPECT_TRUE(Eventually([&] { return LogOf(group.spec, rank) == text; }))
        << LogOf(group.spec, rank) << ShimLog(group);
  }

  SpawnedNursery nursery_;
};

TEST_P(WarmAdoptTest, WhoIsReplacedStartsWarmInEachGeneration) {
  Group group = SpawnWarm(2);
  ASSERT_TRUE(group.WaitForPhase(Phase::kPrepared));
  StartNext(group, 10);
  ExpectLog(group, 10, "warm\n");
  ExpectLog(group, 11, "warm\n");
  const RankState kept = group.rank(0);
  for (int generation = 2; generation < 6; ++generation) {
    ASSERT_EQ(SparesOf(group).size(), 1u);
    KillRank(group, 1);
    HandOver(group);
    ASSERT_TRUE(group.WaitForPhase(Phase::kPrepared));
    StartNext(group, 10 * generation);
    ASSERT_TRUE(LivesAs(group.rank(0), kept));
    EXPECT_EQ(io::ReadProcessStat(group.rank(1).pid)->parent, group.shim.pid);
    EXPECT_EQ(group.state.cgroup_used, use_cgroup_);
    ExpectLog(group, 10 * generation + 1, "warm\n");
  }
  const std::vector<io::ProcessStat> spares = SparesOf(group);
  ASSERT_EQ(spares.size(), 1u);
  group.Stop(seconds(20));
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_FALSE(io::IsAlive(spares[0].pid, spares[0].start_ticks));
  ExpectNothingLeft(group);
}

TEST_P(WarmAdoptTest, AGenerationWithoutADeadRankKeepsTheSpare) {
  Group group = SpawnWarm(1);
  ASSERT_TRUE(group.WaitForPhase(Phase::kPrepared));
  StartNext(group, 10);
  const pid_t spare = SparesOf(group).at(0).pid;
  HandOver(group);
  ASSERT_TRUE(group.WaitForPhase(Phase::kPrepared));
  StartNext(group, 20);
  ASSERT_EQ(SparesOf(group).size(), 1u);
  EXPECT_EQ(SparesOf(group)[0].pid, spare);
}

TEST_P(WarmAdoptTest, WhatHasChangedSinceItsImportStartsCold) {
  Group group = SpawnWarm(2);
  ASSERT_TRUE(group.WaitForPhase(Phase::kPrepared));
  StartNext(group, 10);
  std::ofstream(work_ / "site/slow.py") << "VALUE = 'another'\n";
  KillRank(group, 1);
  HandOver(group);
  ASSERT_TRUE(group.WaitForPhase(Phase::kPrepared));
  StartNext(group, 20);
  ExpectLog(group, 21, "cold\n");
}

TEST_P(WarmAdoptTest, ASpareEndsWithItsShimAndWithItsGroup) {
  {
    Group group = SpawnWarm(1);
    ASSERT_TRUE(group.WaitForPhase(Phase::kPrepared));
    StartNext(group, 10);
    const io::ProcessStat spare = SparesOf(group).at(0);
    ASSERT_EQ(::kill(group.rank().pid, SIGKILL), 0);
    ASSERT_TRUE(group.WaitForEnd()) << "free, whatever the spare does";
    EXPECT_TRUE(Eventually([&] { return !io::IsAlive(spare.pid, spare.start_ticks); }));
    ExpectNothingLeft(group);
  }
  nursery_.socket.reset();
  ::kill(nursery_.child.pid, SIGKILL);
  ::waitpid(nursery_.child.pid, nullptr, 0);
  Group group = SpawnWarm(1);
  ASSERT_TRUE(group.WaitForPhase(Phase::kPrepared));
  StartNext(group, 10);
  const io::ProcessStat spare = SparesOf(group).at(0);
  ASSERT_EQ(::kill(group.shim.pid, SIGKILL), 0);
  EXPECT_TRUE(Eventually([&] { return !io::IsAlive(spare.pid, spare.start_ticks); }));
  group.gone = true;
  EndWhatIsLeft({group.directory.path});
}

std::string ModeName(const testing::TestParamInfo<bool>& info) {
  return info.param ? "Cgroup" : "Walk";
}
INSTANTIATE_TEST_SUITE_P(Mode, AdoptTest, testing::Bool(), ModeName);
INSTANTIATE_TEST_SUITE_P(Mode, WarmAdoptTest, testing::Bool(), ModeName);

}  // namespace
}  // namespace regroup::shim
