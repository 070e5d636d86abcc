// What workers write, whatever it is, reaches the log files and stalls nobody.

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#include "absl/strings/str_cat.h"
#include "agent/shim/log_drain.h"
#include "common/io/files.h"
#include "common/io/proc.h"
#include "tests/agent/shim/shim_fixture.h"

namespace regroup::shim {
namespace {

TEST_F(ShimTest, OutputIsByteExact) {
  Group group =
      Run(ShellSpec("printf 'a\\0\\377\\303(\\033[31m\\r\\nno newline'; printf 'err' >&2"));
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_TRUE(group.rank().logs_complete);
  EXPECT_EQ(Log(group), std::string("a\0\xff\xc3(\033[31m\r\nno newline", 22));
  EXPECT_EQ(Log(group, 10, io::LogStream::kStderr), "err");
  EXPECT_EQ(group.state.output_bytes, 25u);
}

TEST_F(ShimTest, AFastWriterIsNotLostAndNotKept) {
  Spec spec = ShellSpec("head -c 50000000 /dev/zero; echo; echo end");
  spec.log_limits = {.segment_bytes = 4 << 20, .segments = 3};
  Group group = Run(spec);
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(group.state.output_bytes, 50000005u);
  EXPECT_EQ(group.state.lost_log_bytes, 0u);
  const std::string kept = Log(group);
  EXPECT_LE(kept.size(), 12u << 20);
  EXPECT_GE(kept.size(), 8u << 20);
  EXPECT_EQ(kept.substr(kept.size() - 5), "\nend\n");
}

TEST_F(ShimTest, ClosedStreamsAreNoExit) {
  Group group = Run(ShellSpec("exec >&- 2>&-; sleep 0.1; exit 8"));
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(group.rank().code, 8);
}

TEST_F(ShimTest, AnOrphanThatKeepsWritingDoesNotDelayTheRanksLog) {
  Group group =
      Run(ShellSpec("(setsid sh -c 'while :; do echo noise; done' &); echo mine; exit 1"));
  ASSERT_TRUE(group.WaitFor([](const State& s) { return s.ranks[0].logs_complete; }));
  EXPECT_EQ(group.state.phase, Phase::kRunning);
  ASSERT_TRUE(group.link->Send(Kill{}).ok());
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_THAT(Log(group), testing::HasSubstr("mine\n"));
}

TEST_F(ShimTest, WhoWantsOutputIsToldWithinMilliseconds) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  Group talker = Spawn(ShellSpec("while read line; do echo $line; done"), -1, ends[0], true);
  ::close(ends[0]);
  talker.Start();
  ASSERT_TRUE(talker.WaitForPhase(Phase::kRunning));
  for (std::uint64_t i = 1; i <= 20; ++i) {
    const Instant asked = io::BootNow();
    ASSERT_EQ(::write(ends[1], "x\n", 2), 2);
    ASSERT_TRUE(talker.WaitFor([i](const State& s) { return s.output_bytes >= 2 * i; }));
    EXPECT_LT(io::BootNow() - asked, std::chrono::seconds(5));
  }
  ::close(ends[1]);
  ASSERT_TRUE(talker.WaitForEnd());
  EXPECT_EQ(Log(talker).size(), 40u);
}

std::string Xs(std::size_t count) { return std::string(count, 'x'); }

// Shows what there is, as a launch command does.
class Viewer {
 public:
  explicit Viewer(Group& group, const std::string& passing = "")
      : group_(group),
        reader_(io::LogDirectory(group.spec.log_root, group.spec.job, group.spec.generation, 10),
                io::LogStream::kStdout, {}, passing) {}
  // Until `bytes` were shown in all, or 20 s have gone.
  const std::string& ShowUpTo(std::size_t bytes) {
    const Instant limit = io::BootNow() + std::chrono::seconds(20);
    while (shown_.size() < bytes && io::BootNow() < limit) {
      absl::StatusOr<io::LogReader::Chunk> chunk = reader_.Next();
      EXPECT_TRUE(chunk.ok()) << chunk.status();
      if (!chunk.ok()) break;
      if (!chunk->note) shown_ += chunk->bytes;
      if (!chunk->bytes.empty()) Tell();
    }
    return shown_;
  }
  void Tell(std::uint64_t room = 1 << 20) {
    Shown shown{{{0, false, reader_.position()}, {0, true, io::kNotAwaited}}, room};
    group_.link->Send(shown).IgnoreError();  // The shim need not wait for the end of the show.
  }

 private:
  Group& group_;
  io::LogReader reader_;
  std::string shown_;
};

constexpr char kWriteTenMillion[] = "head -c 10000000 /dev/zero | tr '\\0' x; exit 4";

TEST_F(ShimTest, AWorkerWaitsForASlowReaderAndNothingIsLost) {
  Spec spec = ShellSpec(kWriteTenMillion);
  spec.log_limits = {.segment_bytes = 64 << 10, .segments = 3};
  Group group = Spawn(spec, -1, -1, /*wants_output=*/true);
  Viewer viewer(group);
  viewer.Tell();
  group.Start();
  ASSERT_TRUE(group.WaitFor([](const State& s) { return s.output_bytes >= 1 << 20; }));
  // A little more fits: what was being read, and the pipe, which the drain does not read now.
  EXPECT_LT(group.state.output_bytes, (1 << 20) + (1 << 20));
  EXPECT_EQ(group.rank().phase, RankPhase::kRunning);
  EXPECT_EQ(viewer.ShowUpTo(10'000'000), Xs(10'000'000));
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(group.rank().code, 4);
  EXPECT_EQ(group.state.lost_log_bytes, 0u);
}

TEST_F(ShimTest, WithoutItsReaderAWorkerRunsOn) {
  Group group = Spawn(ShellSpec(kWriteTenMillion), -1, -1, /*wants_output=*/true);
  Viewer(group).Tell();
  group.Start();
  ASSERT_TRUE(group.WaitFor([](const State& s) { return s.output_bytes >= 1 << 20; }));
  group.link.reset();
  group.link = std::move(*Link::Connect(group.directory, group.spec, /*wants_output=*/false));
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(group.state.output_bytes, 10'000'000u);
}

TEST_F(ShimTest, AnExitAndAStopWaitForNoReader) {
  Group killed = Spawn(ShellSpec("trap '' TERM; head -c 9000000 /dev/zero; exit 6"), -1, -1,
                       /*wants_output=*/true);
  Viewer(killed).Tell(/*room=*/0);
  killed.Start();
  ASSERT_TRUE(killed.WaitFor([](const State& s) { return s.output_bytes > 0; }));
  killed.Stop(std::chrono::seconds(15));
  const Instant stopped = io::BootNow();
  ASSERT_TRUE(killed.WaitForEnd());
  EXPECT_LT(io::BootNow() - stopped, std::chrono::seconds(10)) << "not at the end of its grace";
  EXPECT_EQ(killed.rank().code, 6);
  Group ended = Spawn(ShellSpec("printf 'last words'; exit 7"), -1, -1, /*wants_output=*/true);
  Viewer(ended).Tell(/*room=*/0);
  ended.Start();
  ASSERT_TRUE(ended.WaitForEnd());
  EXPECT_EQ(Log(ended), "last words");
}

TEST_F(ShimTest, AFullDiskIsPassedByInMemory) {
  ASSERT_TRUE(io::MakeDirectories(work_ / "small").ok());
  if (::mount("regroup-test", (work_ / "small").c_str(), "tmpfs", 0, "size=68m") < 0) {
    GTEST_SKIP() << "needs the right to mount a small tmpfs";
  }
  Spec spec = ShellSpec("head -c 30000000 /dev/zero | tr '\\0' x; exit 4");
  spec.log_root = work_ / "small";
  spec.passing = base_ / "passing";
  Group group = Spawn(spec, -1, -1, /*wants_output=*/true);
  Viewer viewer(group, spec.passing + "/10");
  viewer.Tell();
  group.Start();
  EXPECT_EQ(viewer.ShowUpTo(30'000'000), Xs(30'000'000));
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(group.rank().code, 4);
  EXPECT_TRUE(group.state.disk_full);
  EXPECT_EQ(group.state.lost_log_bytes, 0u);
  struct statvfs disk {};
  ASSERT_EQ(::statvfs((work_ / "small").c_str(), &disk), 0);
  EXPECT_GE(disk.f_bavail * disk.f_frsize, (64u << 20) - (4u << 20)) << "left for the journal";
  ::umount2((work_ / "small").c_str(), MNT_DETACH);
}

// The agent that has seen the end of its group lets go while it still shows the rest.
TEST(LogDrain, WhoLeavesAfterTheEndFindsAllOfIt) {
  for (int round = 0; round < 50; ++round) {
    const io::TempDirectory work;
    const io::UniqueFd notify(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    absl::StatusOr<std::unique_ptr<LogDrain>> drain = LogDrain::Start(notify.get());
    ASSERT_TRUE(drain.ok());
    int out[2], err[2];
    ASSERT_TRUE(::pipe2(out, O_CLOEXEC | O_NONBLOCK) == 0 &&
                ::pipe2(err, O_CLOEXEC | O_NONBLOCK) == 0);
    const io::UniqueFd other(err[1]);
    io::UniqueFd writer(out[1]);
    const LogDrain::Reader reader{.present = true, .waits = true, .room_bytes = 0, .shown = {}};
    (*drain)->SetReader(reader);
    (*drain)->AddRank(
        {.id = 1, .directory = work / "0", .limits = {.segment_bytes = 4096, .segments = 2}},
        io::UniqueFd(out[0]), io::UniqueFd(err[0]));
    const std::string block(4096, 'x');
    for (int i = 0; i < 10; ++i) ASSERT_EQ(::write(writer.get(), block.data(), 4096), 4096);
    writer.reset();
    (*drain)->Finish();
    (*drain)->SetReader({});
    while (!(*drain)->Look().done) ::usleep(100);
    io::LogReader rest(work / "0", io::LogStream::kStdout);
    std::string read;
    for (auto chunk = rest.Next(); chunk.ok() && !chunk->bytes.empty(); chunk = rest.Next())
      read += chunk->bytes;
    ASSERT_EQ(read.size(), 40960u) << "in round " << round;
  }
}

// As much as may be unshown, and what a pipe holds; then the rank waits until the reader has shown
// some of it, or is gone.
TEST(LogDrain, ARankWaitsWhereTheReaderHasNoRoom) {
  const io::TempDirectory work;
  const io::UniqueFd notify(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  absl::StatusOr<std::unique_ptr<LogDrain>> drain = LogDrain::Start(notify.get());
  ASSERT_TRUE(drain.ok());
  int out[2], err[2];
  ASSERT_TRUE(::pipe2(out, O_CLOEXEC | O_NONBLOCK) == 0 &&
              ::pipe2(err, O_CLOEXEC | O_NONBLOCK) == 0);
  io::UniqueFd writer(out[1]), other(err[1]);
  (*drain)->SetReader({.present = true, .waits = true, .room_bytes = 64 << 10, .shown = {}});
  (*drain)->AddRank({.id = 1, .directory = work / "0"}, io::UniqueFd(out[0]), io::UniqueFd(err[0]));
  const std::string block(4096, 'x');
  // Until nothing is taken for half a second, or all of it was.
  const auto write_on = [&](std::size_t most) {
    std::size_t written = 0;
    pollfd ready{writer.get(), POLLOUT, 0};
    while (written<most&& ::poll(&ready, 1, 500)> 0)
      written += ::write(writer.get(), block.data(), block.size()) > 0 ? block.size() : 0;
    return written;
  };
  EXPECT_GE(write_on(8 << 20), 64u << 10);
  EXPECT_LT((*drain)->Look().output_bytes, 1u << 20);
  EXPECT_EQ(write_on(8 << 20), 0u);
  (*drain)->SetReader({});
  EXPECT_EQ(write_on(8 << 20), 8u << 20);
  writer.reset();
  other.reset();
  (*drain)->Finish();
  while (!(*drain)->Look().done) ::usleep(100);
}

std::string AllOf(const std::string& directory) {
  io::LogReader reader(directory, io::LogStream::kStdout);
  std::string all;
  for (auto chunk = reader.Next(); chunk.ok() && !chunk->bytes.empty(); chunk = reader.Next())
    all += chunk->bytes;
  return all;
}

// One rank's drain, whose output moves from folder 0 to 1.
class MovedRank {
 public:
  MovedRank() : notify_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    drain_ = std::move(*LogDrain::Start(notify_.get()));
    int out[2], err[2];
    EXPECT_TRUE(::pipe2(out, O_CLOEXEC | O_NONBLOCK) == 0 &&
                ::pipe2(err, O_CLOEXEC | O_NONBLOCK) == 0);
    out_.reset(out[1]);
    err_.reset(err[1]);
    drain_->AddRank({.id = 1, .directory = work_ / "0"}, io::UniqueFd(out[0]),
                    io::UniqueFd(err[0]));
  }
  ~MovedRank() {
    drain_->Finish();
    drain_.reset();
  }
  void Write(const std::string& text) {
    const std::uint64_t before = written_;
    written_ += text.size();
    ASSERT_EQ(::write(out_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()))
        << before;
  }
  void WriteThrough(const std::string& text) {
    Write(text);
    EXPECT_TRUE(Eventually([this] { return drain_->Look().output_bytes == written_; }));
  }
  void CloseStdout() { out_.reset(); }
  void Move() { drain_->MoveRank(1, {.id = 2, .directory = work_ / "1"}); }
  void ExpectMoved() {
    EXPECT_TRUE(Eventually([this] { return drain_->Look().moved == std::set<int>{2}; }));
  }
  void Expect(const std::string& before, const std::string& after) {
    EXPECT_TRUE(
        Eventually([&] { return AllOf(work_ / "0") + AllOf(work_ / "1") == before + after; }));
    EXPECT_EQ(AllOf(work_ / "0"), before);
    EXPECT_EQ(AllOf(work_ / "1"), after);
  }
  LogDrain& drain() { return *drain_; }

 private:
  const io::TempDirectory work_;
  const io::UniqueFd notify_;
  io::UniqueFd out_, err_;
  std::unique_ptr<LogDrain> drain_;
  std::uint64_t written_ = 0;
};

TEST(LogDrain, WhatWasWrittenBeforeAMoveStays) {
  MovedRank rank;
  rank.Write("before\nalso\n");
  rank.Move();
  rank.ExpectMoved();
  rank.WriteThrough("after\n");
  rank.Expect("before\nalso\n", "after\n");
}

TEST(LogDrain, ALineThatHasBegunIsFinishedBeforeAMove) {
  MovedRank rank;
  rank.WriteThrough("par");
  rank.Move();
  rank.Write("tial\n");
  rank.ExpectMoved();
  rank.WriteThrough("after\n");
  rank.Expect("partial\n", "after\n");
}

TEST(LogDrain, ALineWithoutAnEndHoldsNoMoveUp) {
  MovedRank rank;
  rank.WriteThrough("10 %");
  rank.Move();
  rank.ExpectMoved();
  rank.WriteThrough("after\n");
  rank.Expect("10 %", "after\n");
}

TEST(LogDrain, ARankThatHasClosedItsOutputMovesToo) {
  MovedRank rank;
  rank.WriteThrough("last");
  rank.CloseStdout();
  rank.Move();
  rank.ExpectMoved();
  rank.Expect("last", "");
  rank.drain().Forget(2);
  EXPECT_TRUE(Eventually([&] { return rank.drain().Look().moved.empty(); }));
  rank.drain().RankEnded(2);
  EXPECT_TRUE(Eventually([&] { return rank.drain().Look().complete == std::set<int>{2}; }));
}

// One rank whose log is refused, since its folder is a file.
class RefusedLog : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(io::ReplaceFile(work_ / "0", "", io::Durability::kVolatile).ok());
    auto drain = LogDrain::Start(notify_.get());
    ASSERT_TRUE(drain.ok());
    drain_ = *std::move(drain);
    ASSERT_TRUE(::pipe2(out_, O_CLOEXEC | O_NONBLOCK) == 0 &&
                ::pipe2(err_, O_CLOEXEC | O_NONBLOCK) == 0);
  }
  void TearDown() override {
    ::close(out_[1]);
    ::close(err_[1]);
    drain_->Finish();
  }
  void Add(const std::string& passing = "") {
    drain_->AddRank({.id = 1, .directory = work_ / "0", .passing = passing}, io::UniqueFd(out_[0]),
                    io::UniqueFd(err_[0]));
  }
  template <class Condition>
  void Await(const Condition& condition) {
    while (!condition(drain_->Look())) ::usleep(100);
  }

  const io::TempDirectory work_;
  const io::UniqueFd notify_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::unique_ptr<LogDrain> drain_;
  int out_[2], err_[2];
};

TEST_F(RefusedLog, WhatIsMissingIsSaidAtEachKindOfEnd) {
  Add();
  for (int end = 0; end < 3; ++end) {
    const std::string folder = work_ / std::to_string(end);
    if (end > 0) {
      ASSERT_TRUE(io::ReplaceFile(folder, "", io::Durability::kVolatile).ok());
      drain_->MoveRank(end, {.id = end + 1, .directory = folder});
      Await([&](const LogDrain::Progress& now) { return now.moved.contains(end + 1); });
      // The one before was ended by the move, or by its rank's end.
    }
    ASSERT_EQ(::write(out_[1], "lost\n", 5), 5);
    Await([&](const LogDrain::Progress& now) { return now.lost_bytes == 5u * (end + 1); });
    ASSERT_EQ(::unlink(folder.c_str()), 0);
    if (end == 1) {
      drain_->RankEnded(2);
      Await([](const LogDrain::Progress& now) { return now.complete.contains(2); });
    } else if (end == 2) {
      ::close(std::exchange(out_[1], ::open("/dev/null", O_WRONLY | O_CLOEXEC)));
    } else {
      continue;  // The next round's move.
    }
    const auto said = [&] {
      io::LogReader log(folder, io::LogStream::kStdout);
      return log.Next()->bytes;
    };
    while (said().empty()) ::usleep(100);
    EXPECT_THAT(said(), testing::StartsWith("[regroup: 5 bytes of stdout lost here: "));
  }
  io::LogReader log(work_ / "0", io::LogStream::kStdout);
  EXPECT_THAT(log.Next()->bytes, testing::StartsWith("[regroup: 5 bytes of stdout lost here: "));
}

TEST_F(RefusedLog, WhatPassesInMemoryIsBounded) {
  drain_->SetReader({.present = true, .waits = false, .shown = {}});
  Add(work_ / "passing");
  const std::string block(64 << 10, 'x');
  while (drain_->Look().lost_bytes == 0) {
    if (::write(out_[1], block.data(), block.size()) < 0) ::usleep(100);
    ASSERT_LE(drain_->Look().output_bytes, LogDrain::kMostMemoryBytes + (64 << 10));
  }
  EXPECT_GE(drain_->Look().output_bytes, LogDrain::kMostMemoryBytes);
  EXPECT_THAT(drain_->Look().trouble, testing::HasSubstr("Not a directory"));
}

TEST(LogDrain, ADiskIsFullBeforeItsEnd) {
  constexpr std::uint64_t kMiB = 1 << 20, kGiB = 1 << 30;
  EXPECT_TRUE(LogDrain::DiskIsFull(63 * kMiB, 100 * kMiB, false));
  EXPECT_FALSE(LogDrain::DiskIsFull(64 * kMiB, 100 * kMiB, false));
  EXPECT_TRUE(LogDrain::DiskIsFull(9 * kGiB, 100 * kGiB, false));
  EXPECT_FALSE(LogDrain::DiskIsFull(10 * kGiB, 100 * kGiB, false));
  EXPECT_TRUE(LogDrain::DiskIsFull(11 * kGiB, 100 * kGiB, true)) << "not to and fro";
  EXPECT_FALSE(LogDrain::DiskIsFull(12 * kGiB, 100 * kGiB, true));
}

// A disk that hangs: the thread that writes logs stands still, and none other.
class HungDisk {
 public:
  explicit HungDisk(pid_t shim) {
    const std::string tasks = absl::StrCat("/proc/", shim, "/task");
    for (const std::string& name : io::ListDirectory(tasks).value_or(std::vector<std::string>{})) {
      const pid_t task = std::atoi(name.c_str());
      if (task != shim && hangs_ == 0) hangs_ = task;
    }
    held_ = hangs_ != 0 && ::ptrace(PTRACE_SEIZE, hangs_, nullptr, nullptr) == 0 &&
            ::ptrace(PTRACE_INTERRUPT, hangs_, nullptr, nullptr) == 0 &&
            ::waitpid(hangs_, nullptr, __WALL) == hangs_;
  }
  ~HungDisk() { GoOn(); }
  bool held() const { return held_; }
  // Its process with it: whoever traces one thread of it has to take its end.
  bool HasEnded() { return ::waitpid(hangs_, nullptr, __WALL | WNOHANG) == hangs_; }
  void GoOn() {
    if (std::exchange(held_, false)) ::ptrace(PTRACE_DETACH, hangs_, nullptr, nullptr);
  }

 private:
  pid_t hangs_ = 0;
  bool held_ = false;
};

class HungDiskTest : public ShimTest {
 protected:
  Spec LastWords(Duration log_patience) {
    Spec spec = ShellSpec("until [ -e $WORK/go ]; do sleep 0.01; done; echo last words");
    spec.log_patience = log_patience;
    return spec;
  }
  // For its agent, which is before its last words are written.
  void EndWithoutThem(Group& group) {
    ASSERT_TRUE(io::ReplaceFile(work_ / "go", "", io::Durability::kVolatile).ok());
    ASSERT_TRUE(group.WaitForPhase(Phase::kFree));
    EXPECT_FALSE(group.rank().logs_complete);
    ASSERT_TRUE(group.link->Send(Release{}).ok());
    ASSERT_TRUE(Eventually([&] { return !group.link->OnReadable().ok(); }));
    EXPECT_TRUE(Eventually([&] { return !ReadRunDirectory(group.directory.path)->shim_alive; }))
        << "it holds nobody up";
  }
  static bool HasEnded(const Group& group, int limit_ms) {
    pollfd process{group.shim.process.get(), POLLIN, 0};
    return ::poll(&process, 1, limit_ms) == 1;
  }
};

TEST_F(HungDiskTest, WhatItTakesLateIsWrittenWithoutTheAgent) {
  Group group = Run(LastWords(std::chrono::minutes(1)));
  ASSERT_TRUE(group.WaitForPhase(Phase::kRunning));
  HungDisk disk(group.shim.pid);
  if (!disk.held()) GTEST_SKIP() << "needs the right to trace";
  EndWithoutThem(group);
  disk.GoOn();
  EXPECT_TRUE(HasEnded(group, 20'000));
  EXPECT_EQ(Log(group), "last words\n");
}

TEST_F(HungDiskTest, OneThatHangsForGoodIsNotWaitedForAnyMore) {
  Group group = Run(LastWords(std::chrono::milliseconds(300)));
  ASSERT_TRUE(group.WaitForPhase(Phase::kRunning));
  HungDisk disk(group.shim.pid);
  if (!disk.held()) GTEST_SKIP() << "needs the right to trace";
  EndWithoutThem(group);
  EXPECT_TRUE(Eventually([&] { return disk.HasEnded(); }));
  EXPECT_TRUE(HasEnded(group, 20'000));
  EXPECT_EQ(Log(group), "");
}

TEST_F(ShimTest, AFullDiskStallsNobody) {
  ASSERT_TRUE(io::MakeDirectories(work_ / "small").ok());
  if (::mount("regroup-test", (work_ / "small").c_str(), "tmpfs", 0, "size=64k") < 0) {
    GTEST_SKIP() << "needs the right to mount a small tmpfs";
  }
  Spec spec = ShellSpec("head -c 3000000 /dev/zero; exit 3");
  spec.log_root = work_ / "small";
  Group group = Run(spec);
  EXPECT_TRUE(group.WaitForEnd());
  EXPECT_EQ(group.rank().code, 3);
  EXPECT_EQ(group.state.output_bytes + group.state.lost_log_bytes, 3000000u);
  EXPECT_EQ(group.state.lost_log_bytes, 3000000u) << "the rest is the journal's";
  EXPECT_THAT(Log(group), testing::HasSubstr("[regroup: 3000000 bytes of stdout lost here: "));
  EXPECT_TRUE(group.state.disk_full);
  EXPECT_THAT(group.state.log_trouble, testing::HasSubstr("No space left"));
  ::umount2((work_ / "small").c_str(), MNT_DETACH);
}

TEST_F(ShimTest, AnUnwritableLogDirectoryStallsNobody) {
  ASSERT_TRUE(io::ReplaceFile(work_ / "file", "", io::Durability::kVolatile).ok());
  Spec spec = ShellSpec("head -c 1000000 /dev/zero; exit 0");
  spec.log_root = work_ / "file";
  Group group = Run(spec);
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_EQ(group.state.lost_log_bytes, 1000000u);
  EXPECT_FALSE(group.state.log_trouble.empty());
}

}  // namespace
}  // namespace regroup::shim
