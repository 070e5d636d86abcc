#include "launcher/coordinator/shell/core_loop.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "common/base/check.h"
#include "common/base/user_error.h"
#include "common/io/files.h"
#include "common/io/proc.h"
#include "tests/launcher/coordinator/shell/daemon_fixture.h"
#include "tests/launcher/coordinator/shell/temp_dir.h"

namespace regroup::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A disk that takes as long as the test says.
class HeldJournal final : public Journal {
 public:
  void Load(HasEnded, Loaded) override {}
  void ReadFolder(std::string, Loaded) override {}
  void Commit(Batch batch, Done done) override {
    CHECK(!done_);  // One is in flight.
    batches.push_back(std::move(batch));
    done_ = std::move(done);
  }
  bool held() const { return done_ != nullptr; }
  void Finish(absl::Status status) { std::exchange(done_, nullptr)(std::move(status)); }

  std::vector<Batch> batches;

 private:
  Done done_;
};

class Recorder final : public Outlet {
 public:
  void CarryOut(Action action) override {
    if (const auto* answer = std::get_if<Answer>(&action)) answered.push_back(answer->call.value());
  }
  void Happened(const JobId&, const JobEvent&) override {}
  void Fatal(const absl::Status& why) override { fatal = why; }

  std::vector<std::uint64_t> answered;
  absl::Status fatal;
};

class CoreLoopTest : public ::testing::Test {
 protected:
  CoreLoopTest() {
    Config config;
    config.journal.new_cluster = ClusterId("c0ffee");
    loop_.Start(Core(config, Epoch(1), {}, io::MonotonicNow()));
    Run();
  }
  void Submit(std::uint64_t call) {
    SubmitAsked event;
    event.call = CallId(call);
    event.key = "key-" + std::to_string(call);
    event.spec = SubmittedJob("train", 1, 1);
    event.free_bytes = std::uint64_t{1} << 40;
    loop_.Post([this, event](Instant received) { loop_.Step(received, event); });
    Run();
  }
  void Read(std::uint64_t call) {
    ReadAsked event;
    event.call = CallId(call);
    loop_.Post([this, event](Instant received) { loop_.Step(received, event); });
    Run();
  }
  void Finish(absl::Status status = absl::OkStatus()) {
    journal_.Finish(std::move(status));
    Run();
  }
  void Run() {
    io_.restart();
    io_.poll();
  }

  testing::TempDir dir_;
  std::unique_ptr<obs::Logger> log_ =
      *obs::Logger::Create({.path = dir_.path() + "/log", .max_bytes = 1 << 20});
  boost::asio::io_context io_{1};
  HeldJournal journal_;
  Recorder outlet_;
  CoreLoop loop_{io_, journal_, *log_, outlet_};
};

TEST_F(CoreLoopTest, WhileTheDiskIsBusyItGoesOnAndSaysNothing) {
  ASSERT_EQ(journal_.batches.size(), 1u);  // What the recovery wrote.
  for (std::uint64_t call : {1, 2}) Submit(call);
  Read(3);
  Submit(4);
  EXPECT_EQ(journal_.batches.size(), 1u);
  EXPECT_THAT(outlet_.answered, IsEmpty());
  Finish();
  ASSERT_EQ(journal_.batches.size(), 2u);  // All that collected.
  EXPECT_GE(journal_.batches[1].size(), 3u);
  EXPECT_THAT(outlet_.answered, IsEmpty());
  Finish();
  EXPECT_THAT(outlet_.answered, ElementsAre(1, 2, 3, 4));
  Read(5);  // Nothing is on its way: there is nothing to wait for.
  EXPECT_THAT(outlet_.answered, ElementsAre(1, 2, 3, 4, 5));
}

TEST_F(CoreLoopTest, WhatNobodyWaitsForKeepsItsPlaceAndComesSoon) {
  std::vector<int> ran;
  loop_.PostSoon([&](Instant) { ran.push_back(1); });
  loop_.PostSoon([&](Instant) { ran.push_back(2); });
  Run();
  EXPECT_THAT(ran, IsEmpty());
  // Whatever wakes the loop takes it along, in order.
  loop_.Post([&](Instant) { ran.push_back(3); });
  Run();
  EXPECT_THAT(ran, ElementsAre(1, 2, 3));
  // And without anything else it comes by itself.
  loop_.PostSoon([&](Instant) { ran.push_back(4); });
  io_.restart();
  for (const Instant limit = io::MonotonicNow() + std::chrono::seconds(20);
       ran.size() < 4 && io::MonotonicNow() < limit;) {
    io_.run_one_for(std::chrono::seconds(1));
  }
  EXPECT_THAT(ran, ElementsAre(1, 2, 3, 4));
}

// A loop of its own that a node has joined.
class CoreLoopWithANode : public CoreLoopTest {
 protected:
  void StartWith(Config config) {
    config.journal.new_cluster = ClusterId("c0ffee");
    with_node_.Start(Core(config, Epoch(1), {}, io::MonotonicNow()));
    SessionOpened opened;
    opened.session = SessionId(1);
    opened.hello.node = NodeId("node-a");
    opened.hello.name = "n1";
    opened.hello.incarnation = Incarnation(1);
    opened.hello.address = "127.0.0.1";
    opened.hello.slots = 1;
    with_node_.Post([this, opened](Instant received) { with_node_.Step(received, opened); });
    Run();
  }
  void FinishAll() {
    for (; held_.held(); Run()) held_.Finish(absl::OkStatus());
  }
  std::string State() {
    ReadFilter filter;
    filter.nodes = true;
    const absl::StatusOr<ReadReply> reply = with_node_.Read(filter);
    return reply.ok() && reply->nodes.size() == 1 ? reply->nodes[0].state : "?";
  }
  std::optional<GenerationView::State> FirstGeneration() {
    ReadFilter filter;
    filter.detail = true;
    const absl::StatusOr<ReadReply> reply = with_node_.Read(filter);
    if (!reply.ok() || reply->jobs.size() != 1 || reply->jobs[0].generations.empty())
      return std::nullopt;
    return reply->jobs[0].generations[0].state;
  }
  void RunFor(Duration duration) {
    io_.restart();
    io_.run_for(duration);
  }

  HeldJournal held_;
  CoreLoop with_node_{io_, held_, *log_, outlet_};
};

// It came before the deadline, though nobody had looked.
TEST_F(CoreLoopWithANode, ADeadlineLooksFirstAtWhatCameBefore) {
  constexpr Duration kLease = std::chrono::milliseconds(100);
  Config config;
  config.leases.lease = kLease;
  StartWith(config);
  FinishAll();
  ASSERT_EQ(State(), "ready");
  std::string found;
  with_node_.PostSoon([&](Instant) { found = State(); });
  std::this_thread::sleep_for(2 * kLease);
  Run();
  EXPECT_EQ(found, "ready");
  EXPECT_NE(State(), "ready");  // It was due.
}

// Who shall prepare has not even been asked while the proposal is not durable.
TEST_F(CoreLoopWithANode, NobodyIsLateWhileTheDiskTakesLong) {
  Config config;
  config.forming.ack = std::chrono::seconds(1);
  StartWith(config);
  FinishAll();
  SubmitAsked event;
  event.key = "key";
  event.spec = SubmittedJob("train", 1, 1);
  event.free_bytes = std::uint64_t{1} << 40;
  with_node_.Post([this, event](Instant received) { with_node_.Step(received, event); });
  Run();
  ASSERT_TRUE(held_.held());
  RunFor(std::chrono::seconds(3));
  EXPECT_EQ(FirstGeneration(), GenerationView::State::kProposed);
  const auto said = [&](const char* what) {
    log_->Flush();
    const absl::StatusOr<std::string> log = io::ReadFile(dir_.path() + "/log", 1 << 20);
    return log.ok() ? absl::StrContains(*log, what) : false;
  };
  EXPECT_TRUE(said("the disk of the journal takes long"));
  FinishAll();
  EXPECT_TRUE(said("the disk of the journal has written"));
  RunFor(std::chrono::milliseconds(200));
  EXPECT_EQ(FirstGeneration(), GenerationView::State::kProposed);
  for (const Instant limit = io::MonotonicNow() + std::chrono::seconds(20);
       FirstGeneration() == GenerationView::State::kProposed && io::MonotonicNow() < limit;
       FinishAll()) {
    RunFor(std::chrono::milliseconds(50));
  }
  EXPECT_EQ(FirstGeneration(), GenerationView::State::kVoided);
}

// After a month in which no coordinator ran thousands of jobs are too old at once. One commit
// purges a few of them, since whatever else is decided waits for it.
TEST_F(CoreLoopTest, ACommitPurgesAFewJobs) {
  constexpr int kJobs = 40;
  Config config;
  config.retention.ended_jobs = Duration{};
  std::vector<Row> rows = {{MetaKey(), MetaRow{ClusterId("c"), Epoch(1), 0, Epoch()}}};
  for (int i = 1; i <= kJobs; ++i) {
    const JobId job("train-" + std::to_string(i));
    JobSpecRow spec;
    spec.job = job;
    spec.sequence = static_cast<std::uint64_t>(i);
    spec.spec = SubmittedJob("train", 1, 1);
    spec.key = job.value();
    JobStateRow state;
    state.job = job;
    state.phase = JobPhase::kEnded;
    state.verdict = Verdict{VerdictState::kSucceeded, 0, std::nullopt};
    rows.push_back({JobSpecKey(job), spec});
    rows.push_back({JobStateKey(job), state});
  }
  HeldJournal journal;
  Recorder outlet;
  CoreLoop loop(io_, journal, *log_, outlet);
  loop.Start(Core(config, Epoch(2), rows, io::MonotonicNow()));
  Run();
  int purged = 0;
  for (std::size_t i = 0; i < journal.batches.size(); ++i) {
    const auto folders = std::count_if(journal.batches[i].begin(), journal.batches[i].end(),
                                       [](const JournalRow& row) { return !row.value; });
    EXPECT_LE(folders, 4);
    purged += static_cast<int>(folders);
    journal.Finish(absl::OkStatus());
    Run();
  }
  EXPECT_EQ(purged, kJobs - 1);  // The newest keeps its number.
}

// What waits for a disk that hangs has a bound, and behind it nothing is accepted.
TEST_F(CoreLoopTest, ADiskThatHangsIsFatalBeforeMemoryIsFull) {
  constexpr std::size_t kEach = 100'000, kMost = std::size_t{256} << 20;
  SubmitAsked event;
  event.spec = SubmittedJob("train", 1, 1);
  event.spec.command = {"train", std::string(kEach, 'x')};
  event.free_bytes = std::uint64_t{1} << 40;
  std::size_t call = 1;
  for (; outlet_.fatal.ok(); ++call) {
    ASSERT_LE(call, kMost / kEach + 1);
    event.call = CallId(call);
    event.key = "key-" + std::to_string(call);
    loop_.Post([this, event](Instant received) { loop_.Step(received, event); });
    Run();
  }
  EXPECT_GT(call, kMost / kEach * 9 / 10);
  EXPECT_THAT(RenderUserError(outlet_.fatal),
              AllOf(HasSubstr("the journal is too slow"), HasSubstr("at most 268435456 may")));
  EXPECT_THAT(outlet_.answered, IsEmpty());
}

TEST_F(CoreLoopTest, AJournalThatFailsIsFatalAndNothingIsSaidAnyMore) {
  Finish();
  Submit(1);
  Finish(absl::InternalError("the disk is gone"));
  EXPECT_EQ(outlet_.fatal, absl::InternalError("the disk is gone"));
  Submit(2);
  Read(3);
  EXPECT_THAT(outlet_.answered, IsEmpty());
}

}  // namespace
}  // namespace regroup::coordinator
