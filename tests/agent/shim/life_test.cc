// Who lives how long: witness, adoption, lifeline, a killed shim.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <array>
#include <csignal>
#include <optional>

#include "absl/strings/str_cat.h"
#include "agent/shim/cgroup.h"
#include "agent/shim/client.h"
#include "common/io/address.h"
#include "common/io/files.h"
#include "common/io/proc.h"
#include "common/io/unix_socket.h"
#include "tests/agent/shim/shim_fixture.h"

namespace regroup::shim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

enum class Witnessed { kAcceptedAndClosed, kRefused, kOther };
Witnessed Dial(const Address& address) {
  io::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  io::SocketAddress target = *io::ToSocketAddress(address);
  if (::connect(fd.get(), target.get(), target.size) < 0) {
    return errno == ECONNREFUSED ? Witnessed::kRefused : Witnessed::kOther;
  }
  pollfd poll{fd.get(), POLLIN, 0};
  char byte;
  return ::poll(&poll, 1, 5000) == 1 && ::recv(fd.get(), &byte, 1, 0) == 0
             ? Witnessed::kAcceptedAndClosed
             : Witnessed::kOther;
}

TEST_F(ShimTest, WitnessAnswersWhileTheGroupLives) {
  Group group = Spawn(ShellSpec("exec sleep 1000"));
  ASSERT_TRUE(group.WaitForPhase(Phase::kPrepared));
  EXPECT_EQ(Dial(group.witness), Witnessed::kAcceptedAndClosed);
  group.Start();
  ASSERT_TRUE(group.WaitForPhase(Phase::kRunning));
  for (int i = 0; i < 300; ++i) ASSERT_EQ(Dial(group.witness), Witnessed::kAcceptedAndClosed);
  group.Stop(seconds(10));
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(Dial(group.witness), Witnessed::kRefused);
}

TEST_F(ShimTest, WitnessIsSilentWhenTheShimIsStoppedAndRefusedWhenItIsKilled) {
  Group group = Run(ShellSpec("exec sleep 1000"));
  ASSERT_TRUE(group.WaitForPhase(Phase::kRunning));
  ::kill(group.shim.pid, SIGSTOP);
  io::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  io::SocketAddress target = *io::ToSocketAddress(group.witness);
  EXPECT_EQ(::connect(fd.get(), target.get(), target.size),
            0);  // The kernel's handshake proves nothing.
  pollfd poll{fd.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&poll, 1, 100), 0);
  ::kill(group.shim.pid, SIGKILL);
  EXPECT_TRUE(Eventually([&] { return Dial(group.witness) == Witnessed::kRefused; }));
  EXPECT_TRUE(Eventually([&] { return LiveWithMark(group.spec) == 0; }));
}

TEST_F(ShimTest, SignalsThatEndDaemonsDoNotEndAShim) {
  Group group = Spawn(ShellSpec("exec sleep 1000"));
  // From its first instruction on.
  for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGPIPE}) ::kill(group.shim.pid, signal);
  group.Start();
  ASSERT_TRUE(group.WaitForPhase(Phase::kRunning));
  for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGALRM})
    ::kill(group.shim.pid, signal);
  ASSERT_TRUE(group.link->Send(Query{}).ok());
  ASSERT_TRUE(group.WaitForPhase(Phase::kRunning));
  group.Stop(seconds(10));
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(ShimLog(group), "");
}

TEST_F(ShimTest, StartsInASessionOfItsOwnAndInheritsNoDisposition) {
  const auto handler = ::signal(SIGUSR1, SIG_IGN);
  sigset_t some, before;
  ::sigemptyset(&some);
  ::sigaddset(&some, SIGSEGV);
  ::sigprocmask(SIG_BLOCK, &some, &before);
  Group group = Run(ShellSpec("exec sleep 1000"));
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  ::signal(SIGUSR1, handler);
  ASSERT_TRUE(group.WaitForPhase(Phase::kRunning));
  EXPECT_EQ(::getsid(group.shim.pid), group.shim.pid);
  const std::string status =
      *io::ReadFile(absl::StrCat("/proc/", group.shim.pid, "/status"), 1 << 16);
  const auto mask = [&](const std::string& name) {
    return std::stoull(status.substr(status.find(name) + name.size()), nullptr, 16);
  };
  EXPECT_EQ(mask("SigIgn:\t") & (1u << (SIGUSR1 - 1)), 0u);
  // It holds back what would end a daemon, and not its own faults.
  EXPECT_NE(mask("SigBlk:\t") & (1u << (SIGTERM - 1)), 0u);
  EXPECT_EQ(mask("SigBlk:\t") & (1u << (SIGSEGV - 1)), 0u);
}

// A process that acts as the agent, and can be killed.
struct ForkedAgent {
  pid_t pid = 0;
  io::UniqueFd says;  // Readable once `body` is through.
};
ForkedAgent ForkAgent(const std::function<void()>& body) {
  int ends[2];
  CHECK(::pipe2(ends, O_CLOEXEC) == 0);
  ForkedAgent agent{::fork(), io::UniqueFd(ends[0])};
  if (agent.pid == 0) {
    body();
    if (::write(ends[1], "x", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  ::close(ends[1]);
  char byte;
  CHECK(::read(agent.says.get(), &byte, 1) == 1);
  return agent;
}
void KillAgent(const ForkedAgent& agent) {
  ::kill(agent.pid, SIGKILL);
  ::waitpid(agent.pid, nullptr, 0);
}

TEST_F(ShimTest, AnotherAgentAdoptsAfterASigkill) {
  Spec spec =
      ShellSpec("echo one; while [ ! -e $WORK/go ]; do sleep 0.01; done; echo two; exit 4", 2);
  ForkedAgent first = ForkAgent([&] {
    Group* group = new Group(Spawn(spec));  // Never destroyed: this process is killed.
    group->Start();
    group->WaitForPhase(Phase::kRunning);
  });
  KillAgent(first);

  RunScan scan = *ScanRunDirectories(base_.path());
  ASSERT_EQ(scan.records.size(), 1u);
  const RunRecord& record = scan.records[0];
  EXPECT_TRUE(record.shim_alive);
  EXPECT_TRUE(record.started);
  EXPECT_FALSE(record.supervisor_lost());
  EXPECT_EQ(record.spec.nonce, spec.nonce);

  Group group(record.spec);
  group.directory = std::move(*OpenRunDirectory(record.path));
  group.link = std::move(*Link::Connect(group.directory, record.spec, false));
  ASSERT_TRUE(group.WaitForPhase(Phase::kRunning));
  EXPECT_TRUE(io::IsAlive(group.rank(1).pid, group.rank(1).start_ticks));
  // What was told is written then.
  EXPECT_TRUE(
      Eventually([&] { return ReadRunDirectory(record.path)->state->ranks == group.state.ranks; }));
  ASSERT_TRUE(io::ReplaceFile(work_ / "go", "", io::Durability::kVolatile).ok());
  ASSERT_TRUE(group.WaitFor(
      [](const State& s) { return s.phase == Phase::kFree && s.ranks[1].logs_complete; }));
  EXPECT_EQ(group.rank(1).code, 4);
  EXPECT_EQ(Log(group, 11), "one\ntwo\n");
}

TEST_F(ShimTest, WhatEndsWhileNobodyIsThereIsFoundLater) {
  Spec spec = ShellSpec("sleep 0.3; exit 6");
  spec.agent_patience = std::chrono::milliseconds(100);
  ForkedAgent first = ForkAgent([&] {
    Group* group = new Group(Spawn(spec));
    group->Start();
    group->WaitForPhase(Phase::kRunning);
  });
  KillAgent(first);
  const std::string path =
      absl::StrCat(base_.path(), "/", RunDirectoryName(spec.job, spec.generation, spec.role));
  ASSERT_TRUE(Eventually([&] { return !ReadRunDirectory(path)->shim_alive; }));
  RunRecord record = *ReadRunDirectory(path);
  EXPECT_FALSE(record.supervisor_lost());
  ASSERT_TRUE(record.state);
  EXPECT_EQ(record.state->phase, Phase::kFree);
  EXPECT_EQ(record.state->ranks[0].code, 6);
}

// An agent killed while it looks would leave what it had made.
TEST_F(ShimTest, LookingForAPlaceForCgroupsMakesNothingThere) {
  const absl::StatusOr<std::string> base = FindCgroupBase();
  if (!base.ok()) GTEST_SKIP() << base.status();
  io::UniqueFd watch(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  ASSERT_GE(::inotify_add_watch(watch.get(), base->c_str(), IN_CREATE), 0);
  const std::string seen = absl::StrCat(*base, "/seen-by-", ::getpid());
  ASSERT_EQ(::mkdir(seen.c_str(), 0755), 0);
  ASSERT_EQ(::rmdir(seen.c_str()), 0);
  ASSERT_TRUE(FindCgroupBase().ok());
  alignas(inotify_event) char buffer[1 << 16];
  const ssize_t size = ::read(watch.get(), buffer, sizeof(buffer));
  std::vector<std::string> made;
  for (ssize_t at = 0; at < size;) {
    const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
    // Other tests make cgroups of groups meanwhile: "regroup-<job>.<generation>.<nonce>".
    if (const std::string name = event->name; name.find('.') == std::string::npos)
      made.push_back(name);
    at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
  }
  EXPECT_THAT(made, testing::ElementsAre(absl::StrCat("seen-by-", ::getpid())));
}

TEST(Cgroup, AKernelHasKillFrom514On) {
  for (const char* release : {"5.14.0-70.el9.x86_64", "5.14", "5.15.0", "6.1.0-18-amd64", "10.0"})
    EXPECT_TRUE(HasCgroupKill(release)) << release;
  for (const char* release : {"5.13.19", "5.4.0", "4.18.0", "4.19.0", "", "unknown"})
    EXPECT_FALSE(HasCgroupKill(release)) << release;
}

// Who may move processes there but make no folder gets no group there.
TEST_F(ShimTest, AFolderThatTakesNoFoldersIsNoPlaceForCgroups) {
  const absl::StatusOr<std::string> base = FindCgroupBase();
  if (!base.ok() || ::getuid() != 0) GTEST_SKIP() << "needs root, and " << base.status();
  constexpr uid_t kNobody = 65534;
  const std::string folder = absl::StrCat(*base, "/folderless-", ::getpid());
  ASSERT_EQ(::mkdir(folder.c_str(), 0755), 0);
  ASSERT_EQ(::chown(absl::StrCat(folder, "/cgroup.procs").c_str(), kNobody, kNobody), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const io::UniqueFd procs(::open(absl::StrCat(folder, "/cgroup.procs").c_str(), O_WRONLY));
    if (::write(procs.get(), "0", 1) != 1 || ::setuid(kNobody) != 0) _exit(1);
    const std::string why(FindCgroupBase().status().message());
    _exit(why == folder + " takes no folders of this user" ? 0 : 2);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(Eventually([&] { return ::rmdir(folder.c_str()) == 0; }));
}

TEST_F(ShimTest, SigkilledShimTakesItsRanksAndTheAgentFindsTheRest) {
  for (bool with_cgroup : {false, true}) {
    use_cgroup_ = with_cgroup;
    if (with_cgroup && !FindCgroupBase().ok()) break;
    // The rank dies with the shim; a daemon without the mark in its environment and one that keeps
    // it do not.
    const std::string own = absl::StrCat("1000.", ::getpid());  // Tells our sleepers from others'.
    Group group =
        Run(ShellSpec(absl::StrCat("(setsid sh -c 'sleep ", own, "' &); (setsid env -i sleep ", own,
                                   " &); env -i sleep ", own, " & sleep 0.1; touch ready; wait")));
    ASSERT_TRUE(Eventually([&] { return ::access((work_ / "ready").c_str(), F_OK) == 0; }));
    ASSERT_TRUE(group.WaitForPhase(Phase::kRunning));
    const pid_t rank = group.rank().pid;
    const std::uint64_t rank_start = group.rank().start_ticks;
    ::kill(group.shim.pid, SIGKILL);
    pollfd process{group.shim.process.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&process, 1, 10000), 1);
    EXPECT_TRUE(Eventually([&] { return !io::IsAlive(rank, rank_start); }));
    EXPECT_TRUE(Eventually([&] { return !group.link->OnReadable().ok(); }));
    group.gone = true;

    EXPECT_GE(LiveWithMark(group.spec), 1);
    RunRecord record;
    EXPECT_TRUE(Eventually(
        [&] { return (record = *ReadRunDirectory(group.directory.path)).supervisor_lost(); }));
    int empty = 0;
    EXPECT_TRUE(Eventually([&] {
      absl::StatusOr<int> found = KillLeftovers(record);
      EXPECT_TRUE(found.ok()) << found.status();
      empty = found.ok() && *found == 0 ? empty + 1 : 0;
      return empty >= 2;
    }));
    EXPECT_EQ(LiveWithMark(group.spec), 0);
    ::unlink((work_ / "ready").c_str());
    if (with_cgroup) {
      EXPECT_NE(::access(group.spec.cgroup.c_str(), F_OK), 0);
    } else {
      // Documented limit: without a cgroup one that left session, parent and environment can not be
      // told from a stranger. This test ends it.
      for (const io::ProcessStat& process : io::ListProcesses()) {
        absl::StatusOr<std::string> words =
            io::ReadFile(absl::StrCat("/proc/", process.pid, "/cmdline"), 100);
        if (words.ok() && words->find(own) != std::string::npos) {
          io::SignalProcess(process.pid, process.start_ticks, SIGKILL).IgnoreError();
        }
      }
    }
  }
}

TEST_F(ShimTest, AShimThatDoesNotAnswerCanBeKilled) {
  Group group = Run(ShellSpec("exec sleep 1000"));
  ASSERT_TRUE(group.WaitForPhase(Phase::kRunning));
  ::kill(group.shim.pid, SIGSTOP);
  ASSERT_TRUE(KillShim(*ReadRunDirectory(group.directory.path)).ok());
  pollfd process{group.shim.process.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&process, 1, 10000), 1);
  EXPECT_TRUE(
      Eventually([&] { return ReadRunDirectory(group.directory.path)->supervisor_lost(); }));
  EXPECT_TRUE(
      KillShim(*ReadRunDirectory(group.directory.path)).ok());  // Nobody there: nothing to do.
  EXPECT_TRUE(Eventually([&] { return LiveWithMark(group.spec) == 0; }));
}

TEST_F(ShimTest, ClosedLifelineStopsWithGrace) {
  Lifeline lifeline = std::move(*MakeLifeline());
  Spec spec =
      ShellSpec("trap 'echo saved; exit 0' TERM; touch ready; while :; do sleep 0.01; done");
  spec.lifeline_grace = seconds(15);
  Group group = Spawn(spec, lifeline.read_end.get());
  group.Start();
  ASSERT_TRUE(Eventually([&] { return ::access((work_ / "ready").c_str(), F_OK) == 0; }));
  lifeline.write_end.reset();
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(Log(group), "saved\n");
  EXPECT_TRUE(group.rank().after_stop);
}

TEST_F(ShimTest, LifelineBreaksWithASigkilledAgentAndKeepsAnEarlierStop) {
  for (bool told_to_stop : {false, true}) {
    Spec spec = ShellSpec("trap '' TERM; touch ready; sleep 1000");
    spec.lifeline_grace = told_to_stop ? seconds(3600) : Duration(milliseconds(100));
    ForkedAgent agent = ForkAgent([&] {
      Lifeline* lifeline = new Lifeline(std::move(*MakeLifeline()));
      Group* group = new Group(Spawn(spec, lifeline->read_end.get()));
      group->Start();
      group->WaitForPhase(Phase::kRunning);
      Eventually([&] { return ::unlink((work_ / "ready").c_str()) == 0; });
      if (told_to_stop) group->Stop(milliseconds(200));
    });
    KillAgent(agent);
    const std::string path =
        absl::StrCat(base_.path(), "/", RunDirectoryName(spec.job, spec.generation, spec.role));
    EXPECT_TRUE(Eventually([&] { return !ReadRunDirectory(path)->shim_alive; }));
    EXPECT_EQ(ReadRunDirectory(path)->state->ranks[0].code, SIGKILL);
    EXPECT_EQ(LiveWithMark(spec), 0);
  }
}

TEST_F(ShimTest, PreparedGroupEndsWithItsLifeline) {
  Lifeline lifeline = std::move(*MakeLifeline());
  Group group = Spawn(ShellSpec("true"), lifeline.read_end.get());
  ASSERT_TRUE(group.WaitForPhase(Phase::kPrepared));
  lifeline.write_end.reset();
  ASSERT_TRUE(group.WaitForEnd());
}

TEST_F(ShimTest, OnlyWhoKnowsTheNonceIsObeyed) {
  Group group = Run(ShellSpec("exec sleep 1000"));
  ASSERT_TRUE(group.WaitForPhase(Phase::kRunning));
  for (const std::string& bytes :
       {Frame(Encode(Command(Kill{}))), Frame(Encode(Command(Hello{.nonce = "wrong"}))),
        std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100, '\xff')}) {
    io::UniqueFd fd = std::move(*io::ConnectUnix(group.directory.fd.get(), kSocketFile));
    ASSERT_EQ(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    pollfd poll{fd.get(), POLLIN, 0};
    char byte;
    EXPECT_EQ(::poll(&poll, 1, 10000), 1);
    EXPECT_LE(::recv(fd.get(), &byte, 1, 0), 0);
  }
  // Many connections push each other out, and still a new one is served.
  std::vector<io::UniqueFd> crowd;
  for (int i = 0; i < 40; ++i)
    crowd.push_back(std::move(*io::ConnectUnix(group.directory.fd.get(), kSocketFile)));
  group.link = std::move(*Link::Connect(group.directory, group.spec, false));
  group.state = State{};
  ASSERT_TRUE(group.WaitForPhase(Phase::kRunning));
}

TEST_F(ShimTest, ASlowAgentGetsTheNewestState) {
  Group group = Spawn(ShellSpec("exit 0", 64));
  // Nothing is read while 64 ranks start and end.
  group.Start();
  ASSERT_TRUE(Eventually([&] {
    RunRecord record = *ReadRunDirectory(group.directory.path);
    return record.state && record.state->phase == Phase::kFree;
  }));
  ASSERT_TRUE(group.WaitForEnd());
  for (int i = 0; i < 64; ++i) EXPECT_EQ(group.rank(i).code, 0);
}

TEST_F(ShimTest, APlaceOfRunDirectoriesThatWasRemovedIsMadeAgainForItsOwner) {
  const std::string base = base_.path() + "/regroup-0", node_base = base + "/node";
  Spec spec = ShellSpec("true");
  std::uint64_t generation = 0;
  for (const std::string& removed : {base, node_base}) {
    spec.generation = Generation(++generation);
    ASSERT_TRUE(io::RemoveTree(removed).ok());
    const absl::StatusOr<RunDirectory> made = CreateRunDirectory(node_base, spec);
    ASSERT_TRUE(made.ok()) << made.status();
    for (const std::string& path : {base, node_base, made->path}) {
      struct stat info {};
      ASSERT_EQ(stat(path.c_str(), &info), 0) << path;
      EXPECT_EQ(info.st_mode & 0777, 0700u) << path;
    }
  }
}

TEST_F(ShimTest, RunDirectoriesOfOtherBootsAndDamagedOnesAreToldApart) {
  Spec old = ShellSpec("true");
  old.boot = BootId("another boot");
  ASSERT_TRUE(CreateRunDirectory(base_.path(), old).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(CreateRunDirectory(base_.path(), old).status()));
  Spec store = old;
  store.role = Role::kStore;
  absl::StatusOr<RunDirectory> second = CreateRunDirectory(base_.path(), store);
  ASSERT_TRUE(second.ok());
  ASSERT_TRUE(io::ReplaceFile(second->path + "/spec", "rubbish", io::Durability::kVolatile).ok());
  ASSERT_TRUE(WriteAgentNotes(absl::StrCat(base_.path(), "/",
                                           RunDirectoryName(old.job, old.generation, old.role)),
                              "notes")
                  .ok());
  RunScan scan = *ScanRunDirectories(base_.path());
  ASSERT_EQ(scan.records.size(), 1u);
  EXPECT_TRUE(scan.records[0].other_boot);
  EXPECT_FALSE(scan.records[0].supervisor_lost());
  EXPECT_FALSE(scan.records[0].started);
  EXPECT_EQ(scan.records[0].agent_notes, "notes");
  ASSERT_EQ(scan.unreadable.size(), 1u);
  EXPECT_EQ(scan.unreadable[0].job, old.job);
  EXPECT_EQ(scan.unreadable[0].generation, old.generation);
  EXPECT_EQ(scan.unreadable[0].role, Role::kStore);
  EXPECT_FALSE(scan.unreadable[0].held || scan.unreadable[0].had_shim || scan.unreadable[0].spec);
  // Whatever a worker has put there, an agent that starts waits for nothing.
  for (const char* name : {"spec", "state", "agent", "lock"}) {
    ASSERT_TRUE(RemoveRunDirectory(second->path).ok());
    ASSERT_TRUE(CreateRunDirectory(base_.path(), store).ok());
    ::unlink(absl::StrCat(second->path, "/", name).c_str());
    ASSERT_EQ(::mkfifo(absl::StrCat(second->path, "/", name).c_str(), 0600), 0);
    scan = *ScanRunDirectories(base_.path());
    if (std::string_view(name) == "lock") {  // A lock that nothing can hold.
      EXPECT_EQ(scan.records.size(), 2u);
      continue;
    }
    ASSERT_EQ(scan.unreadable.size(), 1u) << name;
    EXPECT_THAT(scan.unreadable[0].why, ::testing::HasSubstr("is a FIFO, not a regular file"));
  }
  EXPECT_TRUE(RemoveRunDirectory(second->path).ok());
  EXPECT_TRUE(ScanRunDirectories(base_.path())->unreadable.empty());
}

TEST_F(ShimTest, ADirectoryWhoseLockIsHeldIsNotRemoved) {
  Group group = Run(ShellSpec("exec sleep 600"));
  ASSERT_TRUE(group.WaitForPhase(Phase::kRunning));
  EXPECT_TRUE(absl::IsFailedPrecondition(RemoveRunDirectory(group.directory.path)));
  EXPECT_TRUE(*IsHeld(group.directory.path));
  group.Stop(Duration{}, 9);
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_TRUE(RemoveRunDirectory(group.directory.path).ok());
  EXPECT_FALSE(*IsHeld(group.directory.path));
}

// With its cgroup, and without one: what it has started is found as well.
TEST_F(ShimTest, WhatLivesOfAnUnreadableDirectoryIsEnded) {
  for (const bool cgroup : {true, false}) {
    use_cgroup_ = cgroup;
    Group group = Run(ShellSpec("setsid sleep 600 & exec sleep 600"));
    ASSERT_TRUE(group.WaitForPhase(Phase::kRunning));
    ASSERT_TRUE(Eventually([&] { return LiveWithMark(group.spec) == 2; }));
    for (const char* file : {"spec", "state"}) {
      ASSERT_TRUE(io::ReplaceFile(absl::StrCat(group.directory.path, "/", file), "rubbish",
                                  io::Durability::kVolatile)
                      .ok());
    }
    const RunScan scan = *ScanRunDirectories(base_.path());
    ASSERT_EQ(scan.unreadable.size(), 1u);
    EXPECT_TRUE(scan.unreadable[0].held);
    EXPECT_EQ(scan.unreadable[0].job, group.spec.job);
    int clean = 0;
    ASSERT_TRUE(Eventually([&] {
      const absl::StatusOr<int> found =
          KillUnreadable(scan.unreadable[0], FindCgroupBase().value_or(""));
      clean = found.ok() && *found == 0 ? clean + 1 : 0;
      return clean == 2;
    }));
    EXPECT_EQ(LiveWithMark(group.spec), 0);
    EXPECT_FALSE(*IsHeld(group.directory.path));
    ASSERT_TRUE(RemoveRunDirectory(group.directory.path).ok());
    group.gone = true;
  }
}

TEST_F(ShimTest, RunBaseIsOnATmpfs) {
  const NodeId node(io::RandomHex(8));
  absl::StatusOr<std::string> base =
      MakeRunBase(node, work_.path());  // Not a tmpfs, so not chosen.
  ASSERT_TRUE(base.ok()) << base.status();
  EXPECT_EQ(*io::FileSystemKindOf(*base), io::FileSystemKind::kMemory);
  EXPECT_THAT(*base, testing::Not(testing::HasSubstr(work_.path())));
  EXPECT_TRUE(io::RemoveTree(*base).ok());
}

TEST_F(ShimTest, AShimThatCannotStartSaysWhy) {
  Spec spec = ShellSpec("true");
  RunDirectory directory = std::move(*CreateRunDirectory(base_.path(), spec));
  io::UniqueFd witness = std::move(*io::ListenTcp({"127.0.0.1", 0}));
  absl::StatusOr<SpawnedShim> none =
      SpawnShim("/no/such/shim", directory, Role::kGroup, {.witness = witness.get()});
  EXPECT_TRUE(absl::IsNotFound(none.status())) << none.status();
  ASSERT_TRUE(io::ReplaceFile(directory.path + "/spec", "rubbish", io::Durability::kVolatile).ok());
  SpawnedShim shim =
      std::move(*SpawnShim(ShimProgram(), directory, Role::kGroup, {.witness = witness.get()}));
  pollfd process{shim.process.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&process, 1, 10000), 1);
  EXPECT_TRUE(TryReap(shim.pid));
  EXPECT_THAT(*io::ReadFile(directory.path + "/shim.log", 1000),
              testing::HasSubstr("damaged run directory spec"));
}

// It is asked whenever somebody looks, also before there is an answer.
TEST(AllowShim, WhoHasNotAnsweredYetIsAskedAgain) {
  int sockets[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets), 0);
  const io::UniqueFd ours(sockets[0]);
  io::UniqueFd theirs(sockets[1]);
  EXPECT_EQ(AllowShim(ours.get()), std::nullopt);
  ASSERT_EQ(::send(theirs.get(), "123", 3, 0), 3);
  EXPECT_EQ(AllowShim(ours.get()), true);
  std::array<char, 8> word{};
  EXPECT_EQ(::recv(theirs.get(), word.data(), word.size(), 0), 2);
  EXPECT_STREQ(word.data(), "go");
  theirs.reset();
  EXPECT_EQ(AllowShim(ours.get()), false);
}

}  // namespace
}  // namespace regroup::shim
