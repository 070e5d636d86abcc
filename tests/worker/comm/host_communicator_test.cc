#include "worker/comm/host_communicator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "common/base/rng.h"
#include "tests/worker/comm/processes.h"
#include "worker/comm/store_client.h"

namespace regroup::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kMaxWorld = 4;

std::uint64_t HashOf(std::span<const float> data) {
  std::uint64_t hash = 1469598103934665603ull;
  for (float x : data) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &x, sizeof bits);
    hash = (hash ^ bits) * 1099511628211ull;
  }
  return hash;
}

struct Results {
  std::array<std::atomic<std::uint64_t>, kMaxWorld> hash{};
  std::array<std::atomic<int>, kMaxWorld> code{};     // Status code of the failing call.
  std::array<std::atomic<double>, kMaxWorld> back{};  // When it returned.
  std::array<std::atomic<int>, kMaxWorld> steps{};
  std::array<std::atomic<int>, kMaxWorld> names_culprit{};
  std::atomic<int> ready{0};
};

class HostCommunicatorTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, HostCommunicatorTest, testing::Values(1, 2, 3, 4));

TEST_P(HostCommunicatorTest, SumsHaveEqualBitsOnAllRanksAndInAllRuns) {
  std::uint64_t first_run = 0;
  for (int run = 0; run < 2; ++run) {
    Shared<Results> results;
    RankProcesses ranks(GetParam(), [&](int rank, Communicator& c) {
      auto arena = c.AllocateArena(500'000);
      if (!arena.ok()) return 1;
      Rng rng(static_cast<std::uint64_t>(rank));
      for (float& x : *arena) x = static_cast<float>(rng.Unit() - 0.5);
      for (int i = 0; i < 5; ++i) {
        if (!c.AllReduceSum(arena->subspan(i * 7, 100'000 * (5 - i))).ok()) return 2;
        if (!c.AllReduceSum(arena->first(100)).ok()) return 3;
      }
      // What was not reduced differs by rank; hash what was.
      results->hash[rank] = HashOf(arena->first(500'000));
      return 0;
    });
    for (int code : ranks.WaitAll()) EXPECT_EQ(code, 0);
    for (int r = 1; r < GetParam(); ++r) EXPECT_EQ(results->hash[r], results->hash[0]);
    if (run == 0) first_run = results->hash[0];
    EXPECT_EQ(results->hash[0], first_run);
  }
}

// Ranks reduce until a call fails; returns what they saw.
int ReduceUntilFailure(int rank, Communicator& c, Results& results, std::string_view culprit) {
  auto arena = c.AllocateArena(1 << 20);
  if (!arena.ok()) return 1;
  ++results.ready;
  for (;;) {
    const absl::Status status = c.AllReduceSum(*arena);
    if (status.ok()) {
      ++results.steps[rank];
      continue;
    }
    results.back[rank] = NowSeconds();
    results.code[rank] = static_cast<int>(status.code());
    results.names_culprit[rank] = std::string(status.message()).find(culprit) != std::string::npos;
    return 0;
  }
}

// Ends the test, instead of hanging, when a rank has failed before it came that far.
void AwaitSteps(const Results& results, int world, int steps) {
  const double end = NowSeconds() + 60;
  for (int r = 0; r < world; ++r) {
    while (results.steps[r] < steps) {
      CHECK(results.code[r] == 0 && NowSeconds() < end);
      std::this_thread::yield();
    }
  }
}

// Sanitizers slow everything down, and other builds share the cores; the bench holds the tight
// limits.
constexpr double kSlack = 3.0;

// What they share in memory has the layout of one build.
TEST(HostCommunicatorFailureTest, RanksOfTwoBuildsMeetAndAllNameThem) {
  TinyStore store;
  store.Start();
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      const auto joined = JoinHostCommunicator({.rank = r,
                                                .world_size = 3,
                                                .store_host = "127.0.0.1",
                                                .store_port = store.port(),
                                                .build = r == 1 ? "new" : "old"});
      EXPECT_EQ(joined.status().code(), absl::StatusCode::kFailedPrecondition);
      const std::string text(joined.status().message());
      EXPECT_NE(text.find("runs build old and rank 1 on "), std::string::npos) << text;
      EXPECT_NE(text.find(" build new; "), std::string::npos) << text;
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST(HostCommunicatorFailureTest, SurvivorsOfASigkillReturnAndNameTheDeadRank) {
  for (int victim = 0; victim < 3; ++victim) {
    Shared<Results> results;
    const std::string culprit = "rank " + std::to_string(victim);
    RankProcesses ranks(3, [&](int rank, Communicator& c) {
      return ReduceUntilFailure(rank, c, *results, culprit);
    });
    AwaitSteps(*results, 3, 3);
    kill(ranks.pid(victim), SIGKILL);
    ranks.Wait(victim);
    const double killed = NowSeconds();
    for (int r = 0; r < 3; ++r) {
      if (r == victim) continue;
      EXPECT_EQ(ranks.Wait(r), 0);
      EXPECT_EQ(results->code[r], static_cast<int>(absl::StatusCode::kUnavailable));
      EXPECT_TRUE(results->names_culprit[r]);
      EXPECT_LT(results->back[r] - killed, kSlack);
    }
  }
}

TEST(HostCommunicatorFailureTest, AStoppedRankIsNamedAtTheDeadline) {
  Shared<Results> results;
  RankProcesses ranks(
      3,
      [&](int rank, Communicator& c) { return ReduceUntilFailure(rank, c, *results, "rank 1 "); },
      seconds(2));
  AwaitSteps(*results, 3, 3);
  kill(ranks.pid(1), SIGSTOP);
  for (int r : {0, 2}) {
    EXPECT_EQ(ranks.Wait(r), 0);
    EXPECT_EQ(results->code[r], static_cast<int>(absl::StatusCode::kDeadlineExceeded));
    EXPECT_TRUE(results->names_culprit[r]);
  }
  // It finds the communicator failed, or its peers gone, when it is woken.
  kill(ranks.pid(1), SIGCONT);
  EXPECT_EQ(ranks.Wait(1), 0);
  EXPECT_NE(results->code[1], 0);
}

TEST(HostCommunicatorFailureTest, AbortBringsAllRanksBack) {
  Shared<Results> results;
  Shared<std::atomic<double>> aborted;
  RankProcesses ranks(3, [&](int rank, Communicator& c) {
    std::thread aborter;
    if (rank == 2) {
      aborter = std::thread([&] {
        AwaitSteps(*results, 3, 3);
        *aborted = NowSeconds();
        c.Abort();
      });
    }
    const int code = ReduceUntilFailure(rank, c, *results, "rank 2 aborted");
    if (aborter.joinable()) aborter.join();
    return code;
  });
  for (int code : ranks.WaitAll()) EXPECT_EQ(code, 0);
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(results->code[r], static_cast<int>(absl::StatusCode::kAborted));
    EXPECT_LT(results->back[r] - *aborted, kSlack);
  }
}

std::vector<std::string> OpenFiles(pid_t pid) {
  std::vector<std::string> targets;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error)) {
    const auto target = std::filesystem::read_symlink(entry.path(), error).string();
    if (!error) targets.push_back(target);
  }
  return targets;
}

TEST(HostCommunicatorFailureTest, NothingIsLeftInDevShmAndNoDescriptorOfSharedMemoryStaysOpen) {
  const auto count = [] {
    return std::distance(std::filesystem::directory_iterator("/dev/shm"), {});
  };
  const auto before = count();
  Shared<Results> results;
  RankProcesses ranks(
      2, [&](int rank, Communicator& c) { return ReduceUntilFailure(rank, c, *results, ""); });
  AwaitSteps(*results, 2, 2);
  EXPECT_EQ(count(), before);
  for (int r = 0; r < 2; ++r) {
    for (const std::string& target : OpenFiles(ranks.pid(r))) {
      EXPECT_EQ(target.find("memfd"), std::string::npos) << target;
    }
  }
  for (int r = 0; r < 2; ++r) kill(ranks.pid(r), SIGKILL);
  for (int code : ranks.WaitAll()) EXPECT_EQ(code, 128 + SIGKILL);
  EXPECT_EQ(count(), before);
}

TEST(HostCommunicatorFailureTest, MissingRanksAreNamed) {
  TinyStore store;
  store.Start();
  const auto communicator = JoinHostCommunicator({.rank = 1,
                                                  .world_size = 3,
                                                  .store_host = "127.0.0.1",
                                                  .store_port = store.port(),
                                                  .join_deadline = milliseconds(200)});
  EXPECT_EQ(communicator.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(std::string(communicator.status().message()).find("no rank 0, 2 of 3"),
            std::string::npos)
      << communicator.status();
}

TEST(HostCommunicatorFailureTest, GarbageInTheStoreIsRefused) {
  for (const char* garbage : {"", "x", "a\nb\nc\nd\ne\nf\ng\nh", "a\nb\nc\n-1\n1\n1\n1\n1"}) {
    TinyStore store;
    store.Start();
    auto client = StoreClient::Connect("127.0.0.1", store.port(), seconds(5));
    ASSERT_TRUE(client.ok());
    ASSERT_TRUE(client->Set("regroup/comm/world/0", garbage).ok());
    const auto communicator = JoinHostCommunicator({.rank = 1,
                                                    .world_size = 2,
                                                    .store_host = "127.0.0.1",
                                                    .store_port = store.port(),
                                                    .join_deadline = seconds(5)});
    EXPECT_EQ(communicator.status().code(), absl::StatusCode::kDataLoss) << communicator.status();
  }
}

TEST(HostCommunicatorFailureTest, BadOptionsAreRefused) {
  for (const auto& [rank, world_size] :
       {std::pair(0, 0), std::pair(2, 2), std::pair(-1, 2), std::pair(0, 1000)}) {
    HostCommunicatorOptions options;
    options.rank = rank;
    options.world_size = world_size;
    EXPECT_EQ(JoinHostCommunicator(options).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace regroup::worker
