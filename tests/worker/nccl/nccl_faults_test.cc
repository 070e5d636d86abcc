// What happens to a rank, and at once to all, whatever NCCL does: nothing hangs, everybody is told
// why in the words of who noticed, and the next generation goes on.

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/worker/nccl/nccl_ranks.h"
#include "worker/comm/agreement.h"

namespace regroup::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr int kWorld = 4, kGroup = 2, kOps = 5;
constexpr Duration kDeadline = milliseconds(800);
constexpr Duration kPlenty = seconds(20);
// Within a second of the deadline, and what a busy machine takes.
constexpr Duration kInTime = kDeadline + seconds(1) + seconds(4);

// Sums are 0 and 3, reductions to owners 1 and 4, a gather is 2.
void BeginOps(NcclRanks::Rank& rank, Stream& stream) {
  const Tensor arena = *(*rank).AllocateTensor(DType::kF32, 4000);
  const std::vector<Stretch> whole = {
      {0, 0, 0, 1000}, {1, 1000, 1000, 1000}, {2, 2000, 2000, 1}, {3, 3000, 3000, 1000}};
  for (int op = 0; op < kOps; ++op) {
    switch (op % 3) {
      case 0: (*rank).AllReduceSum(stream, arena); break;
      case 1: (*rank).ReduceScatter(stream, arena, whole, arena, kWorld); break;
      case 2: (*rank).AllGather(stream, arena, whole, arena, kWorld); break;
    }
  }
}

struct Told {
  std::vector<absl::Status> ranks = std::vector<absl::Status>(kWorld);
  std::vector<std::string> stuck;
  Duration longest{};
};

class NcclFaults : public testing::Test {
 protected:
  NcclFaults() {
    ranks_.options.group = kGroup;
    ranks_.options.abort_patience = milliseconds(800);
    ranks_.options.stuck = [this](const std::string& why) {
      {
        const std::scoped_lock lock(mutex_);
        told_.stuck.push_back(why);
      }
      ranks_.gpu.release();  // Where a real process has ended.
    };
  }
  ~NcclFaults() override { EXPECT_EQ(ranks_.gpu.comms(), 0); }

  // With so little patience as it takes; without a script there is plenty.
  const Told& Play(const FakeScript& script, Duration deadline = kDeadline) {
    told_ = {};
    const bool never_begins =
        script.fault == FakeFault::kInitHangs || script.fault == FakeFault::kSplitHangs;
    ranks_.options.init_deadline = never_begins ? deadline : kPlenty;
    ranks_.options.deadline = deadline;
    ranks_.gpu.play(&script);
    Generation();
    ranks_.gpu.play(nullptr);
    return told_;
  }
  void Generation() {
    ranks_.Run([&](NcclRanks::Rank& rank) {
      const auto begin = steady_clock::now();
      absl::Status status = rank.nccl.status();
      if (status.ok()) {
        const auto stream = rank.device.NewStream(StreamKind::kMove);
        BeginOps(rank, *stream);
        status = stream->Await();
        // As a trainer does: who has failed leaves, who has not goes to the vote.
        if (status.ok()) status = rank.group.Barrier();
      }
      const std::scoped_lock lock(mutex_);
      told_.longest = std::max<Duration>(told_.longest, steady_clock::now() - begin);
      told_.ranks[static_cast<std::size_t>(rank.rank())] = status;
    });
  }
  void ExpectTheNextGenerationWorks() {
    told_ = {};
    ranks_.options.deadline = ranks_.options.init_deadline = kPlenty;
    Generation();
    for (const absl::Status& status : told_.ranks) EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(ranks_.gpu.Refusals(), "");
  }
  // `own`: the rank whose own NCCL could not begin, if there is one.
  void ExpectAllAreTold(const std::string& text, int own = -1) {
    for (const absl::Status& status : told_.ranks) {
      const bool its_own = own == static_cast<int>(&status - told_.ranks.data());
      EXPECT_EQ(IsCommunicatorFailure(status), !its_own) << status;
      EXPECT_TRUE(!its_own || absl::IsInternal(status)) << status;
      EXPECT_NE(status.message().find(text), std::string::npos) << status << "\nlacks " << text;
    }
    EXPECT_LT(Seconds(told_.longest), Seconds(kInTime));
  }

  NcclRanks ranks_{kWorld};
  std::mutex mutex_;
  Told told_;  // Guarded by mutex_ while ranks run.
};

struct Row {
  FakeScript script;
  const char* told;
  bool begins = true;
};

TEST_F(NcclFaults, EverybodyIsToldWhyAndTheNextGenerationGoesOn) {
  const std::vector<Row> rows = {
      // Nothing is said by NCCL. Scripts count from 0, sentences from 1.
      {{FakeFault::kOpHangs, 1, 0}, "all_reduce 1 (f32[4000]): not over after 0.8 s; every rank"},
      {{FakeFault::kOpHangs, 0, 1}, "reduce_scatter 2 (f32[3001]): not over after 0.8 s; every"},
      {{FakeFault::kOpHangs, 3, 2}, "all_gather 3 (f32[3001]): not over after 0.8 s; every rank"},
      {{FakeFault::kOpHangs, 2, 4}, "reduce_scatter 5"},
      {{FakeFault::kOpRemoteError, 1, 0}, "rank 1, all_reduce 1 (f32[4000]): NCCL: remote process"},
      {{FakeFault::kOpRemoteError, 3, 3}, "rank 3, all_reduce 4"},
      {{FakeFault::kOpSystemError, 2, 1}, "rank 2, reduce_scatter 2 (f32[3001]): NCCL: unhandled"},
      {{FakeFault::kOpInternalError, 0, 2}, "internal error (NCCL error 3): the fake was told to"},
      {{FakeFault::kCallError, 1, 0},
       "rank 1, all_reduce 1 (f32[4000]): all_reduce: unhandled sys"},
      {{FakeFault::kCallError, 2, 2},
       "rank 2, all_gather 3 (f32[3001]): all_gather: unhandled sys"},
      {{FakeFault::kFailsBeforeCall, 2, 2}, "NCCL: unhandled system error (NCCL error 2)"},
      {{FakeFault::kGroupEndError, 0, 1},
       "rank 0, reduce_scatter 2 (f32[3001]): reduce_scatter: in"},
      {{FakeFault::kGroupEndError, 3, 4}, "rank 3, reduce_scatter 5"},
      {{FakeFault::kCallInProgressFor, 1, 0}, "rank 1"},
      {{FakeFault::kCallInProgressFor, 2, 3}, "rank 2"},
      {{FakeFault::kAsyncQueryError, 1, 1}, "ncclCommGetAsyncError: internal error (NCCL error 3)"},
      // Nothing can be begun.
      {{FakeFault::kIdError, 0},
       "rank 0, init of 4 ranks: ncclGetUniqueId: unhandled system error (NCCL error 2): the fake",
       false},
      {{FakeFault::kInitError, 1},
       "rank 1, init of 4 ranks: ncclCommInitRankConfig: unhandled cuda error (NCCL error 1): the "
       "fake was told to",
       false},
      {{FakeFault::kInitError, 0},
       "rank 0, init of 4 ranks: ncclCommInitRankConfig: unhandled cuda error",
       false},
      {{FakeFault::kInitAsyncError, 2},
       "rank 2, init of 4 ranks: NCCL: unhandled system error (NCCL error 2): the fake was told to",
       false},
      {{FakeFault::kInitHangs, 3}, "init of 4 ranks: NCCL did not take it in time; every rank"},
      {{FakeFault::kSplitError, 1},
       "rank 1, init of 4 ranks: ncclCommSplit: unhandled system error (NCCL error 2): the fake",
       false},
      {{FakeFault::kSplitHangs, 2}, "init of 4 ranks: NCCL did not take it in time"},
      // Two things at once.
      {{FakeFault::kOpHangs, 1, 1, 300, int(FakeFault::kAbortIsSlow)}, "reduce_scatter 2"},
      {{FakeFault::kOpHangs, 1, 1, 0, int(FakeFault::kAbortNeedsQuiet)}, "reduce_scatter 2"},
      {{FakeFault::kOpHangs, 1, 1, 0, int(FakeFault::kRevokeError)}, "reduce_scatter 2"},
      {{FakeFault::kOpHangs, 2, 0, 0, int(FakeFault::kRevokeIsNotHeard)}, "all_reduce 1"},
      {{FakeFault::kOpRemoteError, 0, 2, 0, int(FakeFault::kRevokeIsNotHeard)}, "all_gather 3"},
      {{FakeFault::kOpRemoteError, 0, 2, 300, int(FakeFault::kAbortIsSlow)}, "all_gather 3"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.told);
    Play(row.script);
    ExpectAllAreTold(row.told, row.begins ? -1 : row.script.rank);
    EXPECT_TRUE(told_.stuck.empty());
    ExpectTheNextGenerationWorks();
  }
}

// NCCL 2.28 before .7 can not revoke.
TEST_F(NcclFaults, WithoutRevokeAnAbortIsEnough) {
  ranks_.gpu.set_version(NcclVersion(2, 18, 3));
  ranks_.api = *OpenNccl(FakeGpu::path());
  EXPECT_EQ(ranks_.api.comm_revoke, nullptr);
  for (const FakeFault fault : {FakeFault::kOpHangs, FakeFault::kOpRemoteError}) {
    Play({fault, 1, 2});
    ExpectAllAreTold("all_gather 3");
    ExpectTheNextGenerationWorks();
  }
}

TEST_F(NcclFaults, WhatIsOnlySlowIsAwaited) {
  for (const FakeScript& script : std::vector<FakeScript>{{FakeFault::kOpIsSlow, 1, 0, 200},
                                                          {FakeFault::kOpIsSlow, 2, 3, 200},
                                                          {FakeFault::kCallInProgress, 0, 1, 200},
                                                          {FakeFault::kCallBlocks, 3, 2, 200},
                                                          {FakeFault::kInitIsSlow, 1, 0, 200}}) {
    for (const absl::Status& status : Play(script, kPlenty).ranks)
      EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(ranks_.gpu.Refusals(), "");
  }
}

// A process in which an abort does not end, or a kernel goes on after it, can only be left.
TEST_F(NcclFaults, WhereAnAbortIsOfNoUseTheProcessEnds) {
  Play({FakeFault::kOpHangs, 1, 1, 0, int(FakeFault::kAbortHangs)});
  ASSERT_EQ(told_.stuck.size(), 1u);
  EXPECT_EQ(told_.stuck[0], "an abort of NCCL did not end within 0.8 s");
  ExpectTheNextGenerationWorks();
  Play({FakeFault::kOpRemoteError, 2, 0, 0, int(FakeFault::kAbortLeavesKernel)});
  ASSERT_FALSE(told_.stuck.empty());
  EXPECT_NE(told_.stuck[0].find("all_reduce 1 (f32[4000]): NCCL: remote process"),
            std::string::npos);
  EXPECT_NE(told_.stuck[0].find("; after its abort the GPU still waits"), std::string::npos);
  ExpectTheNextGenerationWorks();
  Play({FakeFault::kCallBlocks, 2, 1, 10'000});
  ASSERT_FALSE(told_.stuck.empty());
  EXPECT_EQ(told_.stuck[0], "a call of NCCL does not return");
  ExpectTheNextGenerationWorks();
}

// A rank that computes for ever, or is stopped, or has gone another way.
TEST_F(NcclFaults, WhoIsMissingIsNamed) {
  ranks_.options.deadline = kDeadline;
  told_ = {};
  ranks_.Run([&](NcclRanks::Rank& rank) {
    ASSERT_TRUE(rank.nccl.ok()) << rank.nccl.status();
    const auto stream = rank.device.NewStream(StreamKind::kMove);
    const Tensor arena = *(*rank).AllocateTensor(DType::kBF16, 100);
    (*rank).AllReduceSum(*stream, arena);
    ASSERT_TRUE(stream->Await().ok());
    if (rank.rank() == 2) std::this_thread::sleep_for(kDeadline * 3);
    (*rank).AllReduceSum(*stream, arena);
    const absl::Status status = stream->Await();
    const std::scoped_lock lock(mutex_);
    told_.ranks[static_cast<std::size_t>(rank.rank())] = status;
  });
  ExpectAllAreTold("all_reduce 2 (bf16[100]): not over after 0.8 s; rank 2 does not answer");
  ExpectTheNextGenerationWorks();
}

// The group of the ranks knows first, and names the rank.
TEST_F(NcclFaults, ARankThatLeavesIsNamedLongBeforeTheDeadline) {
  ranks_.options.deadline = seconds(60);
  told_ = {};
  const auto begin = steady_clock::now();
  ranks_.Run([&](NcclRanks::Rank& rank) {
    ASSERT_TRUE(rank.nccl.ok()) << rank.nccl.status();
    ASSERT_TRUE(rank.group.Barrier().ok());
    absl::Status status = MarkCommunicatorFailure(absl::UnavailableError("rank 3, rank 3 is gone"));
    if (rank.rank() != 3) {
      const auto stream = rank.device.NewStream(StreamKind::kMove);
      BeginOps(rank, *stream);
      status = stream->Await();
      EXPECT_NE(status.message().find("all_reduce 1 (f32[4000])"), std::string::npos) << status;
    }
    const std::scoped_lock lock(mutex_);
    told_.ranks[static_cast<std::size_t>(rank.rank())] = status;
  });
  EXPECT_LT(Seconds(steady_clock::now() - begin), 20);
  ExpectAllAreTold("rank 3");
  ExpectTheNextGenerationWorks();
}

// Who waits for its id does not wait for the deadline.
TEST_F(NcclFaults, ARankThatLeavesBeforeItHasMadeAnIdIsNamed) {
  TinyStore store;
  store.Start();
  ranks_.options = {.store_host = "127.0.0.1", .store_port = store.port()};
  auto groups = MakeInProcessCommunicators(2, seconds(20));
  std::thread leaves([&] {
    EXPECT_TRUE(FindDisagreement(*groups[0], {{"NCCL", NcclVersionName(ranks_.api.version)}}).ok());
    groups[0].reset();
  });
  const auto begin = steady_clock::now();
  const std::unique_ptr<CudaDevice> device = *CudaDevice::Create(ranks_.gpu.cuda(), 0);
  const absl::Status told =
      NcclCommunicator::Create(*groups[1], *device, ranks_.api, ranks_.options).status();
  leaves.join();
  EXPECT_TRUE(IsCommunicatorFailure(told)) << told;
  EXPECT_NE(told.message().find("rank 0"), std::string::npos) << told;
  EXPECT_LT(Seconds(steady_clock::now() - begin), 20);
}

// NCCL often says no more than that a connection is closed, and before the group knows of it.
TEST_F(NcclFaults, WhoFailsBecauseARankIsGoneNamesThatRank) {
  TinyStore store;
  store.Start();
  ranks_.options = {.store_host = "127.0.0.1", .store_port = store.port()};
  const FakeScript closed{FakeFault::kInitAsyncError, 1};
  ranks_.gpu.play(&closed);
  auto groups = MakeInProcessCommunicators(3, seconds(20));
  std::vector<std::thread> threads;
  for (const int rank : {0, 1, 2}) {
    threads.emplace_back([&, rank] {
      auto& group = groups[static_cast<std::size_t>(rank)];
      if (rank == 2) {
        const auto same = FindDisagreement(*group, {{"NCCL", "2.28.9"}});
        EXPECT_TRUE(same.ok() && !*same);
        std::this_thread::sleep_for(milliseconds(50));
        return group.reset();
      }
      const std::unique_ptr<CudaDevice> device = *CudaDevice::Create(ranks_.gpu.cuda(), 0);
      const absl::Status told =
          NcclCommunicator::Create(*group, *device, ranks_.api, ranks_.options).status();
      EXPECT_TRUE(IsCommunicatorFailure(told)) << told;
      EXPECT_NE(told.message().find("rank 2"), std::string::npos) << told;
    });
  }
  for (std::thread& t : threads) t.join();
}

// The agent that keeps the generation's store may be gone by then.
TEST_F(NcclFaults, WithoutAStoreEveryRankIsToldAllTheSame) {
  auto store = std::make_unique<TinyStore>();
  store->Start();
  ranks_.options.group = 1;
  ranks_.options.store_port = store->port();
  ranks_.options.deadline = kDeadline;
  const FakeScript hangs{FakeFault::kOpHangs, 1, 0};
  ranks_.gpu.play(&hangs);
  auto groups = MakeInProcessCommunicators(2, seconds(20));
  std::vector<std::thread> threads;
  const auto begin = steady_clock::now();
  for (auto& group : groups) {
    threads.emplace_back([&, c = group.get()] {
      const std::unique_ptr<CudaDevice> device = *CudaDevice::Create(ranks_.gpu.cuda(), 0);
      auto nccl = NcclCommunicator::Create(*c, *device, ranks_.api, ranks_.options);
      ASSERT_TRUE(nccl.ok()) << nccl.status();
      EXPECT_TRUE(c->Barrier().ok());
      if (c->rank() == 0) store.reset();
      EXPECT_TRUE(c->Barrier().ok());
      const auto stream = device->NewStream(StreamKind::kMove);
      const Tensor arena = *(*nccl)->AllocateTensor(DType::kF32, 100);
      (*nccl)->AllReduceSum(*stream, arena);
      const absl::Status told = stream->Await();
      EXPECT_TRUE(IsCommunicatorFailure(told)) << told;
      EXPECT_NE(told.message().find("all_reduce 1 (f32[100])"), std::string::npos) << told;
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_LT(Seconds(steady_clock::now() - begin), Seconds(kInTime));
}

TEST_F(NcclFaults, RanksWithOtherVersionsAreTold) {
  NcclApi older = ranks_.api;
  older.version = NcclVersion(2, 27, 5);
  ranks_.RunWith([&](int rank) -> const NcclApi& { return rank == 3 ? older : ranks_.api; },
                 [&](NcclRanks::Rank& rank) {
                   EXPECT_EQ(rank.nccl.status(),
                             absl::FailedPreconditionError(
                                 "rank 3 has NCCL 2.27.5, rank 0 has 2.28.9; all ranks need the "
                                 "same"));
                 });
  ExpectTheNextGenerationWorks();
}

}  // namespace
}  // namespace regroup::worker
