#include "worker/checkpoint/saver.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "common/base/rng.h"
#include "tests/worker/checkpoint/io_watch.h"
#include "tests/worker/checkpoint/testing.h"
#include "worker/checkpoint/restore.h"
#include "worker/comm/in_process_communicator.h"

namespace regroup::worker {
namespace {

using std::chrono::milliseconds;

// -1: none. What was loaded is what was saved.
std::int64_t RestoredStep(const Repository& repository) {
  auto alone = MakeInProcessCommunicators(1);
  TestState loaded;
  const auto restored = RestoreNewest(*alone[0], repository, loaded.tensors());
  if (!restored.ok() || !restored->manifest) return -1;
  EXPECT_TRUE(loaded.IsStep(restored->manifest->step));
  return restored->manifest->step;
}

class SaverTest : public testing::Test {
 protected:
  SaverTest() : repository_(*Repository::OpenForTraining(directory_ / "ckpt")) {}
  std::unique_ptr<Saver> Make(int rank, int world_size, CommitGate* gate = nullptr,
                              Duration patience = std::chrono::seconds(20), int group = 1) {
    SaverOptions options;
    options.rank = rank;
    options.group = group;
    options.world_size = world_size;
    options.job = "job-1";
    options.generation = 2;
    options.patience = patience;
    return *Saver::Create(repository_, gate, options, state_.infos());
  }
  std::int64_t RestoredStep() { return worker::RestoredStep(repository_); }
  std::size_t ShardBytes(int rank) const {
    return ShardImage::Create(state_.infos(), rank, 2)->bytes().size();
  }

  TemporaryDirectory directory_;
  TestState state_;
  Repository repository_;
};

TEST_F(SaverTest, AllRanksFilesMakeOneCommit) {
  std::vector<std::unique_ptr<Saver>> savers;
  for (int r = 0; r < 3; ++r) savers.push_back(Make(r, 3));
  for (std::int64_t step : {10, 20, 30}) {
    state_.SetStep(step);
    for (auto& saver : savers) saver->Save(step, {{"samples", step}}, false, state_.tensors());
    state_.SetStep(999);  // The snapshot is a copy.
    for (auto& saver : savers) saver->WaitIdle();
    for (auto& saver : savers) {
      for (const SaveOutcome& o : saver->TakeOutcomes()) {
        EXPECT_TRUE(o.status.ok()) << o.status;
        EXPECT_TRUE(o.retention.ok()) << o.retention;
        EXPECT_EQ(o.step, step);
      }
    }
    EXPECT_EQ(RestoredStep(), step);
  }
  EXPECT_EQ(*repository_.CommittedSteps(), (std::vector<std::int64_t>{30, 20}));
  // Nothing but records and files is left.
  EXPECT_EQ(AllFiles(repository_.path()).size(), 8u);
}

TEST_F(SaverTest, ARankThatCanNotWriteVoidsTheSaveOnly) {
  auto zero = Make(0, 2), one = Make(1, 2);
  ASSERT_TRUE(repository_.PrepareAttempt(10, 2, 1).ok());
  WriteAll(repository_.AttemptPath(10, 2, 1) + "/rank-1-of-2.safetensors", "in the way");
  for (auto* saver : {zero.get(), one.get()}) saver->Save(10, {}, false, state_.tensors());
  for (auto* saver : {zero.get(), one.get()}) saver->WaitIdle();
  EXPECT_EQ(one->TakeOutcomes().at(0).status.code(), absl::StatusCode::kAlreadyExists);
  const absl::Status status = zero->TakeOutcomes().at(0).status;
  EXPECT_NE(std::string(status.message()).find("rank 1 could not write"), std::string::npos)
      << status;
  EXPECT_TRUE(AllFiles(repository_.path()).empty());
  state_.SetStep(20);
  for (auto* saver : {zero.get(), one.get()}) saver->Save(20, {}, false, state_.tensors());
  for (auto* saver : {zero.get(), one.get()}) saver->WaitIdle();
  EXPECT_EQ(RestoredStep(), 20);
}

// Rank 0 fails and removes the attempt; a slower rank then writes its file all the same.
TEST_F(SaverTest, WhatASlowRankAddsToAVoidSaveGoesWithTheNext) {
  auto zero = Make(0, 2), one = Make(1, 2);
  ASSERT_TRUE(repository_.PrepareAttempt(10, 2, 1).ok());
  WriteAll(repository_.AttemptPath(10, 2, 1) + "/rank-0-of-2.safetensors", "in the way");
  for (const std::int64_t step : {10, 20}) {
    state_.SetStep(step);
    for (auto* saver : {zero.get(), one.get()}) {
      saver->Save(step, {}, false, state_.tensors());
      if (step == 10) saver->WaitIdle();
    }
    for (auto* saver : {zero.get(), one.get()}) saver->WaitIdle();
  }
  EXPECT_EQ(zero->TakeOutcomes().at(0).status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(RestoredStep(), 20);
  EXPECT_EQ(AllFiles(repository_.path()).size(), 3u);
  EXPECT_FALSE(std::filesystem::exists(repository_.path() + "/step-10"));
}

// Only a sound commit of the step is as good as one's own; a file that is in the way is not.
TEST_F(SaverTest, WhatIsInTheWayIsNoCommit) {
  CommitStep(repository_, state_, 10);
  auto saver = Make(0, 1);
  ASSERT_TRUE(repository_.PrepareAttempt(20, 2, 2).ok());
  WriteAll(repository_.AttemptPath(20, 2, 2) + "/rank-0-of-1.safetensors", "in the way");
  for (const std::int64_t step : {10, 20}) saver->Save(step, {}, false, state_.tensors());
  saver->WaitIdle();
  const auto outcomes = saver->TakeOutcomes();
  for (const SaveOutcome& o : outcomes)
    EXPECT_EQ(o.status.code(), absl::StatusCode::kAlreadyExists) << o.status;
  EXPECT_TRUE(outcomes.at(0).already_there);
  EXPECT_FALSE(outcomes.at(1).already_there);
  EXPECT_EQ(RestoredStep(), 10);
  EXPECT_FALSE(std::filesystem::exists(repository_.AttemptPath(10, 2, 1)))
      << "of the same number, and of another generation than the record's";
}

TEST_F(SaverTest, ARankThatNeverReportsIsNamedWhenPatienceEnds) {
  auto zero = Make(0, 2, nullptr, milliseconds(50));
  zero->Save(10, {}, false, state_.tensors());
  zero->WaitIdle();
  const absl::Status status = zero->TakeOutcomes().at(0).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(std::string(status.message()).find("rank 1"), std::string::npos);
  EXPECT_TRUE(AllFiles(repository_.path()).empty());
}

TEST_F(SaverTest, AllRanksThatAreLateAreNamedWithTheFlag) {
  auto zero = Make(0, 4, nullptr, milliseconds(50)), two = Make(2, 4);
  two->Save(10, {}, false, state_.tensors());
  two->WaitIdle();
  zero->Save(10, {}, false, state_.tensors());
  zero->WaitIdle();
  const absl::Status status = zero->TakeOutcomes().at(0).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(std::string(status.message()),
            "ranks 1, 3 have not written their files within 0.05 s; --save-timeout waits longer");
}

// Rank 0 believes what the others say of their files: it reads its own only.
TEST_F(SaverTest, EachRankReadsItsOwnFileBack) {
  for (const std::int64_t step : {5, 6}) CommitStep(repository_, state_, step, 2);
  auto zero = Make(0, 2), one = Make(1, 2);
  for (const std::int64_t step : {10, 20}) {
    state_.SetStep(step);
    one->Save(step, {}, false, state_.tensors());
    one->WaitIdle();
    // From here on only who reads it would know.
    WriteAll(repository_.AttemptPath(step, 2, static_cast<std::uint64_t>(step) / 10) +
                 "/rank-1-of-2.safetensors",
             std::string(ShardBytes(1), 'x'));
    zero->Save(step, {}, false, state_.tensors());
    zero->WaitIdle();
    const SaveOutcome outcome = zero->TakeOutcomes().at(0);
    EXPECT_TRUE(outcome.status.ok() && outcome.verification.ok() && outcome.retention.ok())
        << outcome.status << outcome.verification << outcome.retention;
  }
  EXPECT_EQ(*repository_.CommittedSteps(), (std::vector<std::int64_t>{20, 10}));
}

// A file that cannot be read back counts for nothing, so older commits stay in its place.
TEST_F(SaverTest, ARankThatFindsItsFileDamagedSaysSoAndOlderCommitsStay) {
  for (const std::int64_t step : {5, 6, 7}) CommitStep(repository_, state_, step, 2);
  auto zero = Make(0, 2), one = Make(1, 2);
  const std::string attempt = repository_.AttemptPath(10, 2, 1);
  {
    const IoWatch watch(attempt, nullptr, [&](const IoCall& call) {
      // Written, fsynced and reported; then the disk forgets.
      if (call.kind == IoCall::kRename && call.other == attempt + "/rank-1.report")
        std::filesystem::resize_file(attempt + "/rank-1-of-2.safetensors", 4096);
    });
    one->Save(10, {}, false, state_.tensors());
    one->WaitIdle();
  }
  // Rank 0 would not even begin with a file of another size.
  WriteAll(attempt + "/rank-1-of-2.safetensors", std::string(ShardBytes(1), 'x'));
  zero->Save(10, {}, false, state_.tensors());
  zero->WaitIdle();
  const SaveOutcome outcome = zero->TakeOutcomes().at(0);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_NE(std::string(outcome.verification.message()).find("rank 1 cannot read back its file: "),
            std::string::npos)
      << outcome.verification;
  EXPECT_EQ(*repository_.CommittedSteps(), (std::vector<std::int64_t>{10, 7, 6}));
  EXPECT_EQ(AllFiles(attempt).size(), 2u);
}

// Rank 1 does not say whether its file is sound. Were anything to wait for that, this test would
// not end.
TEST_F(SaverTest, ASaveForANoticeWaitsForNoVerification) {
  auto zero = Make(0, 2, nullptr, std::chrono::hours(1)), one = Make(1, 2);
  const auto save = [&](std::int64_t step, bool for_notice) {
    state_.SetStep(step);
    one->Save(step, {}, for_notice, state_.tensors());
    one->WaitIdle();
    const std::string verdict =
        repository_.AttemptPath(step, 2, static_cast<std::uint64_t>(step) / 10) +
        "/rank-1.verified";
    EXPECT_EQ(std::filesystem::remove(verdict), !for_notice);
    zero->Save(step, {}, for_notice, state_.tensors());
  };
  save(10, false);
  while (repository_.CommittedSteps()->empty()) std::this_thread::yield();
  save(20, false);
  // The first does not need its snapshot any more, a moment after its commit is there.
  while (zero->Busy()) std::this_thread::yield();
  zero->GiveUp();
  save(30, true);
  zero->WaitIdle();
  const auto outcomes = zero->TakeOutcomes();
  ASSERT_EQ(outcomes.size(), 3u);
  EXPECT_TRUE(outcomes[0].status.ok() && outcomes[0].verification.ok() &&
              outcomes[0].retention.ok());
  EXPECT_TRUE(absl::IsCancelled(outcomes[1].status)) << outcomes[1].status;
  EXPECT_TRUE(outcomes[2].status.ok() && outcomes[2].retention.ok()) << outcomes[2].status;
  EXPECT_EQ(RestoredStep(), 30);
  EXPECT_EQ(AllFiles(repository_.path()).size(), 6u);
}

// Who leaves has no time to read older ones, nor to delete them.
TEST_F(SaverTest, ASaveForANoticeTidiesNothingUp) {
  for (const std::int64_t step : {10, 20, 30}) CommitStep(repository_, state_, step);
  auto saver = Make(0, 1);
  for (const bool for_notice : {true, false}) {
    saver->Save(for_notice ? 40 : 50, {}, for_notice, state_.tensors());
    saver->WaitIdle();
    EXPECT_EQ(*repository_.CommittedSteps(), for_notice
                                                 ? (std::vector<std::int64_t>{40, 30, 20, 10})
                                                 : (std::vector<std::int64_t>{50, 40}));
  }
}

// What was restored was read by all ranks a moment before.
TEST_F(SaverTest, WhatWasRestoredIsNotReadAgain) {
  for (const std::int64_t step : {5, 6}) CommitStep(repository_, state_, step);
  SaverOptions options;
  options.generation = 2;
  options.known_sound = {6, *repository_.ReadRecord(6)};
  auto saver = *Saver::Create(repository_, nullptr, options, state_.infos());
  WriteAll(repository_.AttemptPath(6, 1, 1) + "/rank-0-of-1.safetensors", "x");
  saver->Save(10, {}, false, state_.tensors());
  saver->WaitIdle();
  EXPECT_TRUE(saver->TakeOutcomes().at(0).retention.ok());
  EXPECT_EQ(*repository_.CommittedSteps(), (std::vector<std::int64_t>{10, 6}));
}

// Also where no collective has compared them.
TEST_F(SaverTest, FilesOfTwoTrainingsAreNoCheckpoint) {
  struct Row {
    Saver::Hashes of[4];
    const char* told;  // Null: they are of one.
  };
  const Row rows[] = {{{{"a", "x"}, {"a", "y"}, {"b", "x"}, {"a", "y"}},
                       "rank 2 no longer holds the same as rank 0"},
                      {{{"a", "x"}, {"a", "y"}, {"a", "x"}, {"a", "x"}},
                       "rank 3 no longer holds the same as rank 1"},
                      {{{"a", "x"}, {"a", "y"}, {"a", "y"}, {"a", "y"}},
                       "rank 2 no longer holds the same as rank 0"},
                      {{{"a", "x"}, {"a", "y"}, {"a", "x"}, {"a", "y"}}, nullptr},
                      {{{"a", ""}, {"a", ""}, {"a", ""}, {"a", ""}}, nullptr}};
  std::vector<std::unique_ptr<Saver>> savers;
  for (int r = 0; r < 4; ++r)
    savers.push_back(Make(r, 4, nullptr, std::chrono::seconds(20), /*group=*/2));
  std::int64_t step = 0, sound = -1;
  for (const Row& row : rows) {
    state_.SetStep(step += 10);
    for (std::size_t r = 0; r < savers.size(); ++r)
      savers[r]->Save(step, {}, true, state_.tensors(), row.of[r]);
    for (auto& saver : savers) saver->WaitIdle();
    const absl::Status status = savers[0]->TakeOutcomes().at(0).status;
    EXPECT_EQ(status.ok(), row.told == nullptr) << status;
    if (row.told != nullptr) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
      EXPECT_NE(std::string(status.message()).find(row.told), std::string::npos) << status;
    } else {
      sound = step;
    }
    EXPECT_EQ(RestoredStep(), sound);
  }
}

class FakeGate final : public CommitGate {
 public:
  absl::Status Ask(const CommitQuestion& question,
                   const std::function<bool()>& cancelled) override {
    asked = question;
    ++entered;
    while (hold && !cancelled()) std::this_thread::yield();
    return cancelled() ? absl::CancelledError("cancelled") : answer;
  }
  CommitQuestion asked;
  std::atomic<int> entered{0};
  std::atomic<bool> hold{false};
  absl::Status answer;
};

TEST_F(SaverTest, TheGateDecides) {
  FakeGate gate;
  auto saver = Make(0, 1, &gate);
  state_.SetStep(10);
  saver->Save(10, {}, true, state_.tensors());
  saver->WaitIdle();
  EXPECT_TRUE(saver->TakeOutcomes().at(0).status.ok());
  EXPECT_EQ(gate.asked.step, 10);
  EXPECT_EQ(gate.asked.attempt, 1u);
  EXPECT_TRUE(gate.asked.for_notice);
  EXPECT_EQ(gate.asked.manifest_hash.size(), 32u);
  EXPECT_EQ(gate.asked.path, repository_.AttemptPath(10, 2, 1));
  gate.answer = absl::FailedPreconditionError("generation 2 is over");
  saver->Save(20, {}, false, state_.tensors());
  saver->WaitIdle();
  EXPECT_EQ(saver->TakeOutcomes().at(0).status, gate.answer);
  EXPECT_EQ(RestoredStep(), 10);
  EXPECT_FALSE(std::filesystem::exists(repository_.path() + "/step-20"));
  EXPECT_EQ(AllFiles(repository_.path() + "/commits"), std::vector<std::string>{"step-10"});
}

TEST_F(SaverTest, NothingIsPublishedInADirectoryThatAnotherJobTook) {
  const auto nobody = [](const std::string&, Duration) {};
  const auto owner = Owner::Take(repository_.path(), {.job = "job-1", .generation = 2}, nobody);
  ASSERT_TRUE(owner.ok()) << owner.status();
  SaverOptions options;
  options.job = "job-1";
  options.generation = 2;
  options.owner = owner->get();
  const auto saver = *Saver::Create(repository_, nullptr, options, state_.infos());
  const auto other = Owner::Take(repository_.path(), {.job = "job-2", .take_over = true}, nobody);
  ASSERT_TRUE(other.ok()) << other.status();
  saver->Save(10, {}, false, state_.tensors());
  saver->WaitIdle();
  const absl::Status status = saver->TakeOutcomes().at(0).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(status.message()).find("job-2"), std::string::npos) << status;
  EXPECT_TRUE(AllFiles(repository_.path() + "/commits").empty());
}

// The record is there and cannot be read: it may name this attempt, so its files stay.
TEST_F(SaverTest, FilesThatARecordMayNameStay) {
  const std::string record = repository_.path() + "/commits/step-10";
  auto saver = Make(0, 1);
  {
    const IoWatch watch(
        directory_.path(),
        [&](const IoCall& call) {
          if (call.kind != IoCall::kSync || call.path != repository_.path() + "/commits" ||
              !std::filesystem::exists(record))
            return 0;
          WriteAll(record, "no record");
          return EIO;
        },
        [](const IoCall&) {});
    saver->Save(10, {}, false, state_.tensors());
    saver->WaitIdle();
  }
  EXPECT_FALSE(saver->TakeOutcomes().at(0).status.ok());
  EXPECT_EQ(ReadAll(record), "no record");
  EXPECT_EQ(AllFiles(repository_.AttemptPath(10, 2, 1)).size(), 1u);
}

// Of a network file system, which asks again when the answer to a link that it made was lost.
TEST_F(SaverTest, ARecordThatIsThereAlreadyAndIsThisOneIsACommit) {
  auto saver = Make(0, 1);
  {
    const IoWatch watch(
        directory_.path(),
        [](const IoCall& call) {
          if (call.kind != IoCall::kLink) return 0;
          EXPECT_EQ(syscall(SYS_link, call.path.c_str(), call.other.c_str()), 0);
          return EEXIST;
        },
        [](const IoCall&) {});
    state_.SetStep(10);
    saver->Save(10, {}, false, state_.tensors());
    saver->WaitIdle();
  }
  const SaveOutcome outcome = saver->TakeOutcomes().at(0);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(RestoredStep(), 10);
}

// Rank 0 may be on another host, whose sync makes no name of this one durable.
TEST_F(SaverTest, AFileIsReportedOnceItsNameIsDurable) {
  const std::string attempt = repository_.AttemptPath(10, 2, 1);
  auto one = Make(1, 2);
  std::vector<std::string> order;
  {
    const IoWatch watch(directory_.path(), nullptr, [&](const IoCall& call) {
      if (call.kind == IoCall::kCreate && call.path == attempt + "/rank-1-of-2.safetensors")
        order.push_back("made");
      if (call.kind == IoCall::kSync && call.path == attempt) order.push_back("synced");
      if (call.kind == IoCall::kRename && call.other == attempt + "/rank-1.report")
        order.push_back("told");
    });
    one->Save(10, {}, true, state_.tensors());
    one->WaitIdle();
  }
  EXPECT_EQ(order, (std::vector<std::string>{"made", "synced", "told"}));
}

TEST_F(SaverTest, WhatWasAcceptedUnheardIsPublishedByTheNextGeneration) {
  FakeGate gate;
  gate.answer = absl::UnavailableError("stopped before the answer came");
  auto saver = Make(0, 1, &gate);
  for (std::int64_t step : {10, 20, 30}) {
    state_.SetStep(step);
    saver->Save(step, {}, false, state_.tensors());
    saver->WaitIdle();
  }
  saver.reset();
  EXPECT_EQ(RestoredStep(), -1) << "nobody has said yes";
  // The first, whose answer may have been lost, and the newest stay.
  EXPECT_FALSE(std::filesystem::exists(repository_.path() + "/step-20"));
  EXPECT_TRUE(absl::IsNotFound(repository_.PublishStaged("job-1", 20)));
  EXPECT_TRUE(absl::IsNotFound(repository_.PublishStaged("job-2", 30)));
  EXPECT_TRUE(repository_.PublishStaged("job-1", 10).ok());
  EXPECT_EQ(RestoredStep(), 10);
  EXPECT_TRUE(repository_.PublishStaged("job-1", 30).ok());
  EXPECT_EQ(RestoredStep(), 30);
  EXPECT_TRUE(repository_.PublishStaged("job-1", 30).ok()) << "it is there";
  EXPECT_TRUE(repository_.Sweep(3).ok());
  EXPECT_EQ(RestoredStep(), 30);
}

TEST_F(SaverTest, WhatStayedUnansweredGoesWithTheNextCommit) {
  FakeGate gate;
  gate.answer = absl::UnavailableError("the coordinator is away");
  auto saver = Make(0, 1, &gate);
  state_.SetStep(10);
  saver->Save(10, {}, false, state_.tensors());
  saver->WaitIdle();
  EXPECT_TRUE(std::filesystem::exists(repository_.path() + "/step-10"));
  gate.answer = absl::OkStatus();
  state_.SetStep(20);
  saver->Save(20, {}, false, state_.tensors());
  saver->WaitIdle();
  EXPECT_EQ(RestoredStep(), 20);
  EXPECT_FALSE(std::filesystem::exists(repository_.path() + "/step-10"));
  EXPECT_TRUE(absl::IsNotFound(repository_.PublishStaged("job-1", 10)));
}

TEST_F(SaverTest, AStagedCommitWhoseFilesAreDamagedIsNotPublished) {
  FakeGate gate;
  gate.answer = absl::UnavailableError("killed");
  auto saver = Make(0, 1, &gate);
  state_.SetStep(10);
  saver->Save(10, {}, false, state_.tensors());
  saver->WaitIdle();
  std::filesystem::resize_file(repository_.AttemptPath(10, 2, 1) + "/rank-0-of-1.safetensors", 100);
  EXPECT_TRUE(absl::IsNotFound(repository_.PublishStaged("job-1", 10)));
}

TEST_F(SaverTest, TwoSavesMayBeUnderWayAndGivingUpEndsThem) {
  FakeGate gate;
  gate.hold = true;
  auto saver = Make(0, 1, &gate);
  EXPECT_FALSE(saver->Busy());
  saver->Save(10, {}, false, state_.tensors());
  saver->Save(20, {}, false, state_.tensors());
  EXPECT_TRUE(saver->Busy());
  while (gate.entered == 0) std::this_thread::yield();
  saver->GiveUp();
  saver->WaitIdle();
  EXPECT_FALSE(saver->Busy());
  for (const SaveOutcome& o : saver->TakeOutcomes())
    EXPECT_EQ(o.status.code(), absl::StatusCode::kCancelled) << o.status;
  EXPECT_EQ(RestoredStep(), -1);
  gate.hold = false;
  state_.SetStep(30);
  saver->Save(30, {}, true, state_.tensors());
  saver->WaitIdle();
  EXPECT_EQ(RestoredStep(), 30);
}

TEST_F(SaverTest, DestroyingASaverGivesUpAndReturns) {
  FakeGate gate;
  gate.hold = true;
  auto saver = Make(0, 1, &gate);
  saver->Save(10, {}, false, state_.tensors());
  while (gate.entered == 0) std::this_thread::yield();
  saver.reset();
  EXPECT_EQ(RestoredStep(), -1);
}

// A process that saves one step after the other, as fast as it can, is killed at a random moment,
// over and over: whatever it had published before is there, whole, and it goes on from there.
TEST(SaverCrashTest, KilledAtRandomMomentsNoCommitIsEverLostOrWrong) {
  const TemporaryDirectory directory = TemporaryDirectory::InMemory();
  const Repository repository = *Repository::OpenForTraining(directory / "ckpt");
  TestState state;
  struct Board {
    std::atomic<std::int64_t> committed{0};
  };
  auto* board = static_cast<Board*>(
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  new (board) Board;
  const auto both_ranks = [&](std::uint64_t generation) {
    std::vector<std::unique_ptr<Saver>> savers;
    for (int r = 0; r < 2; ++r) {
      SaverOptions options;
      options.rank = r;
      options.world_size = 2;
      options.generation = generation;
      savers.push_back(*Saver::Create(repository, nullptr, options, state.infos()));
    }
    return savers;
  };
  const auto save = [&](const std::vector<std::unique_ptr<Saver>>& savers, std::int64_t step) {
    state.SetStep(step);
    for (const auto& saver : savers) saver->Save(step, {}, false, state.tensors());
    for (const auto& saver : savers) saver->WaitIdle();
    return savers[0]->TakeOutcomes().at(0).status;
  };
  Rng rng(11);
  std::int64_t commits_seen = 0;
  for (int round = 0; round < 40; ++round) {
    const std::uint64_t generation = static_cast<std::uint64_t>(round) + 1;
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      if (!repository.Sweep(generation).ok()) _exit(1);
      const auto savers = both_ranks(generation);
      for (std::int64_t step = board->committed + 1;; ++step) {
        if (!save(savers, step).ok()) _exit(2);
        board->committed = step;
      }
    }
    // Half of the rounds get somewhere however busy the machine is; the others die as they begin.
    const std::int64_t before = board->committed;
    for (int i = 0; round % 2 == 0 && board->committed == before && i < 10'000; ++i)
      std::this_thread::sleep_for(milliseconds(1));
    std::this_thread::sleep_for(std::chrono::microseconds(2000 + rng.Below(25'000)));
    kill(pid, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFSIGNALED(status)) << WEXITSTATUS(status);
    const std::int64_t acknowledged = board->committed, found = RestoredStep(repository);
    if (acknowledged == 0 && found == -1) continue;
    // The last one may have been published a moment before it could be acknowledged.
    ASSERT_GE(found, acknowledged);
    ASSERT_LE(found, acknowledged + 1);
    board->committed = found;
    commits_seen = found;
  }
  EXPECT_GT(commits_seen, 10);
  ASSERT_TRUE(repository.Sweep(1000).ok());
  // Of the last rounds each may have been cut short in its deletions; a save that is not keeps two.
  ASSERT_TRUE(save(both_ranks(1000), commits_seen + 1).ok());
  EXPECT_EQ(AllFiles(repository.path()).size(), 3u * 2);
  munmap(board, sizeof(Board));
}

}  // namespace
}  // namespace regroup::worker
