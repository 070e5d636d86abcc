// Ranks of several hosts, each a process: their sums, and what they hear of each other's ends.

#include "worker/comm/multi_host_communicator.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "common/base/rng.h"
#include "tests/worker/comm/processes.h"
#include "worker/comm/store_client.h"

namespace regroup::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Counts = std::vector<int>;  // Ranks of each host.

constexpr int kMaxWorld = 6;
// Sanitizers slow everything down, and other builds share the cores; the bench holds the tight
// limits.
constexpr double kSlack = 3.0;

int WorldOf(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), 0); }

std::string NameOf(const Counts& counts) {
  std::string name = "Hosts";
  for (const int count : counts) name += "_" + std::to_string(count);
  return name;
}

std::uint64_t HashOf(std::span<const float> data) {
  std::uint64_t hash = 1469598103934665603ull;
  for (const float x : data) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &x, sizeof bits);
    hash = (hash ^ bits) * 1099511628211ull;
  }
  return hash;
}

struct Seen {
  std::array<std::atomic<std::uint64_t>, kMaxWorld> hash{};
  std::array<std::atomic<int>, kMaxWorld> code{};
  std::array<std::atomic<double>, kMaxWorld> back{};
  std::array<std::atomic<bool>, kMaxWorld> names_culprit{};
  std::atomic<int> there{0};
  std::atomic<double> ended{0};
};

// Parts of all owners, some of them empty.
std::vector<Stretch> StretchesOf(int world) {
  std::vector<Stretch> stretches;
  std::int64_t from = 0;
  for (int i = 0; i < 3 * world; ++i) {
    const std::int64_t size = i % 5 == 4 ? 0 : 1000 * (i + 1) + i;
    stretches.push_back({i % world, from, from, size});
    from += size;
  }
  return stretches;
}
constexpr std::size_t kFloats = 300'000;

constexpr const char* kCalls[] = {"AllReduceSum in an arena",
                                  "AllReduceSum",
                                  "AllReduce",
                                  "Broadcast",
                                  "Barrier",
                                  "ReduceScatter",
                                  "AllGather",
                                  "AllocateArena",
                                  "AllReduceSum of bf16",
                                  "AllocateShared"};
constexpr int kCallCount = 10;

absl::Status Issue(int call, Communicator& c, std::span<float> arena) {
  const std::vector<Stretch> stretches = StretchesOf(c.world_size());
  double number = c.rank() + 0.1;
  std::vector<BFloat16> shorts(100'000, BFloat16(1.0F));
  switch (call) {
    case 0: return c.AllReduceSum(arena);
    case 1: return c.AllReduceSum(arena.first(999));
    case 2: return c.AllReduce(std::span(&number, 1), Reduction::kSum);
    case 3: return c.Broadcast(std::as_writable_bytes(arena), c.world_size() - 1);
    case 4: return c.Barrier();
    case 5: return c.ReduceScatter(arena, stretches, arena, c.world_size());
    case 6: return c.AllGather(arena, stretches, arena, c.world_size());
    case 7: return c.AllocateArena(1000).status();
    case 8: return c.AllReduceSum(std::span(shorts));
    default: return c.AllocateShared(DType::kF32, 1000, c.world_size()).status();
  }
}

void Fill(Communicator& c, std::span<float> arena) {
  Rng rng(static_cast<std::uint64_t>(c.rank()));
  for (float& x : arena) x = static_cast<float>(rng.Unit() - 0.5);
}

class MultiHostTest : public testing::TestWithParam<Counts> {};
INSTANTIATE_TEST_SUITE_P(Worlds, MultiHostTest,
                         testing::Values(Counts{1, 3}, Counts{2, 2}, Counts{1, 1, 2},
                                         Counts{1, 1, 1, 1}),
                         [](const auto& info) { return NameOf(info.param); });

// Its host has not come because the others wait for it in a gather of their own, a call before.
TEST(MultiHostEndTest, WhoIsLateInAGatherOfItsHostIsNamed) {
  for (const int stopped : {3, 4}) {
    const auto body = [stopped](int rank, Communicator& c) {
      auto arena = c.AllocateArena(90);
      if (!arena.ok()) return 1;
      if (rank == stopped) raise(SIGSTOP);
      c.SetDeadline(seconds(rank < 3 ? 2 : 6));  // Its host does not find out before.
      const std::vector<Stretch> thirds = {{0, 0, 0, 30}, {1, 30, 30, 30}, {2, 60, 60, 30}};
      absl::Status status = c.AllGather(*arena, thirds, *arena, 3);
      if (status.ok()) status = c.Barrier();
      const std::string who = "waited for rank " + std::to_string(stopped) + " ";
      return status.message().find(who) != std::string::npos ? 0 : 2;
    };
    RankProcesses ranks(6, body, seconds(30), nullptr, Counts{3, 3});
    for (const int r : {0, 1, 2, 7 - stopped, 5})
      EXPECT_EQ(ranks.Wait(r), 0) << r << " where " << stopped << " is stopped";
  }
}

// Such a gather waits for no other host, and who has made its last call may be gone. The last call
// of all of them is one that waits.
TEST(MultiHostEndTest, WhoIsDoneMayLeaveOnceAllHostsAre) {
  for (const bool waits : {true, false}) {
    const auto body = [waits](int rank, Communicator& c) {
      auto arena = c.AllocateArena(100);
      std::int64_t number = 1;
      if (!arena.ok() || !c.AllReduce(std::span(&number, 1), Reduction::kSum).ok()) return 1;
      if (rank >= 2) std::this_thread::sleep_for(std::chrono::milliseconds(300));
      const std::vector<Stretch> halves = {{0, 0, 0, 50}, {1, 50, 50, 50}};
      if (!c.AllGather(*arena, halves, *arena, 2).ok()) return 2;
      if (waits && !c.Barrier().ok()) return 3;
      _exit(0);
    };
    std::vector<int> codes = RankProcesses(4, body, seconds(30), nullptr, Counts{2, 2}).WaitAll();
    EXPECT_EQ(codes, waits ? std::vector({0, 0, 0, 0}) : std::vector({0, 0, 2, 2}));
  }
}

TEST_P(MultiHostTest, ResultsHaveTheBitsOfOneHost) {
  const int world = WorldOf(GetParam());
  Shared<Seen> one, several;
  const auto body = [](Seen& seen) {
    return [&seen](int rank, Communicator& c) {
      auto arena = c.AllocateArena(kFloats);
      if (!arena.ok()) return 1;
      Fill(c, *arena);
      for (int i = 0; i < 2 * kCallCount; ++i) {
        if (!Issue(i % kCallCount, c, *arena).ok()) return 2;
        std::vector<double> norms(100, arena->front() + 0.1);
        if (!c.AllReduce(norms, Reduction::kSum).ok()) return 3;
        arena->back() += static_cast<float>(norms.back());
      }
      seen.hash[static_cast<std::size_t>(rank)] = HashOf(*arena);
      return 0;
    };
  };
  for (const int code : RankProcesses(world, body(*one)).WaitAll()) EXPECT_EQ(code, 0);
  for (const int code :
       RankProcesses(world, body(*several), seconds(30), nullptr, GetParam()).WaitAll())
    EXPECT_EQ(code, 0);
  for (std::size_t r = 0; r < static_cast<std::size_t>(world); ++r)
    EXPECT_EQ(several->hash[r], one->hash[r]) << r;
}

// The last call of a training: what a rank sent may still be on its way when its process ends.
TEST_P(MultiHostTest, ARankThatEndsAfterACallFailsNobodyInIt) {
  for (int round = 0; round < 4; ++round) {
    RankProcesses ranks(
        WorldOf(GetParam()),
        [&](int, Communicator& c) {
          auto arena = c.AllocateArena(kFloats);
          if (!arena.ok()) return 1;
          _exit(Issue(2 * round % kCallCount, c, *arena).ok() && c.Barrier().ok() ? 0 : 2);
        },
        seconds(30), nullptr, GetParam());
    for (const int code : ranks.WaitAll()) EXPECT_EQ(code, 0) << round;
  }
}

// It moves nothing between hosts, so one may have left before the other has come.
TEST(MultiHostGroupTest, AHostThatEndsAfterACallOfEachHostFailsNobodyInIt) {
  const Counts counts{2, 2};
  Shared<Seen> seen;
  RankProcesses ranks(
      WorldOf(counts),
      [&](int rank, Communicator& c) {
        auto arena = c.AllocateArena(kFloats);
        if (!arena.ok()) return 1;
        if (rank == 3) {
          while (seen->ended == 0 || NowSeconds() < seen->ended + 0.2)
            std::this_thread::sleep_for(milliseconds(10));
        }
        _exit(c.AllGather(*arena, StretchesOf(2), *arena, /*group=*/2).ok() ? 0 : 2);
      },
      seconds(30), nullptr, counts);
  EXPECT_EQ(ranks.Wait(0), 0);
  EXPECT_EQ(ranks.Wait(1), 0);
  seen->ended = NowSeconds();
  EXPECT_EQ(ranks.Wait(2), 0);
  EXPECT_EQ(ranks.Wait(3), 0);
}

struct FailureCase {
  Counts counts;
  int call;
};
std::vector<FailureCase> FailureCases() {
  std::vector<FailureCase> cases;
  for (const Counts& counts : {Counts{1, 2}, Counts{1, 1, 1}}) {
    for (int call = 0; call < kCallCount; ++call) cases.push_back({counts, call});
  }
  return cases;
}

// All ranks make every call before it, then `end` ends the culprit in place of the call. Survivors
// make it, and note what they see.
class MultiHostFailureTest : public testing::TestWithParam<FailureCase> {
 protected:
  void EndEachRankAtTheCall(const std::function<void(Communicator&)>& end, absl::StatusCode code,
                            Duration deadline, double longest) {
    const auto& [counts, call] = GetParam();
    const int world = WorldOf(counts);
    for (int culprit = 0; culprit < world; ++culprit) {
      Shared<Seen> seen;
      RankProcesses ranks(
          world, [&](int rank, Communicator& c) { return Survive(rank, c, *seen, culprit, end); },
          deadline, nullptr, counts);
      for (int r = 0; r < world; ++r) {
        if (r == culprit) continue;
        const auto at = static_cast<std::size_t>(r);
        EXPECT_EQ(ranks.Wait(r), 0) << "rank " << r;
        EXPECT_EQ(seen->code[at], static_cast<int>(code)) << "rank " << r << " of " << culprit;
        EXPECT_TRUE(seen->names_culprit[at]) << "rank " << r << " of " << culprit;
        EXPECT_LT(seen->back[at] - seen->ended, longest) << "rank " << r << " of " << culprit;
      }
    }
  }

  static int Survive(int rank, Communicator& c, Seen& seen, int culprit,
                     const std::function<void(Communicator&)>& end) {
    auto arena = c.AllocateArena(kFloats);
    if (!arena.ok()) return 1;
    const int call = GetParam().call;
    for (int i = 0; i < call; ++i) {
      if (!Issue(i, c, *arena).ok()) return 2;
    }
    ++seen.there;
    if (rank == culprit) {
      while (seen.there < c.world_size()) std::this_thread::yield();
      seen.ended = NowSeconds();
      end(c);
      return 0;
    }
    // A gather or broadcast may be over for who brings what it needs.
    absl::Status status;
    for (int i = 0; i < 3 && status.ok(); ++i) status = Issue(call, c, *arena);
    const auto at = static_cast<std::size_t>(rank);
    seen.back[at] = NowSeconds();
    seen.code[at] = static_cast<int>(status.code());
    const std::string text(status.message());
    const std::string name = "rank " + std::to_string(culprit) + " ";
    seen.names_culprit[at] = text.find(name) != std::string::npos;
    if (!seen.names_culprit[at]) fprintf(stderr, "rank %d: %s\n", rank, text.c_str());
    return IsCommunicatorFailure(status) && !c.Barrier().ok() ? 0 : 3;
  }
};
INSTANTIATE_TEST_SUITE_P(Calls, MultiHostFailureTest, testing::ValuesIn(FailureCases()),
                         [](const auto& info) {
                           return NameOf(info.param.counts) + "_Call_" +
                                  std::to_string(info.param.call);
                         });

TEST_P(MultiHostFailureTest, ARankThatIsKilledIsNamedToAll) {
  SCOPED_TRACE(kCalls[GetParam().call]);
  EndEachRankAtTheCall([](Communicator&) { raise(SIGKILL); }, absl::StatusCode::kUnavailable,
                       seconds(30), kSlack);
}

TEST_P(MultiHostFailureTest, ARankThatAbortsIsNamedToAll) {
  SCOPED_TRACE(kCalls[GetParam().call]);
  EndEachRankAtTheCall(
      [](Communicator& c) {
        c.Abort();
        _exit(0);  // As a worker does: at once.
      },
      absl::StatusCode::kAborted, seconds(30), kSlack);
}

// By the time that it looks, who was told of the loss has left as well.
TEST(MultiHostLossTest, WhoLooksLateNamesTheRankThatWasLostFirst) {
  constexpr int kLate = 0, kVictim = 2;
  Shared<Seen> seen;
  std::atomic<std::uint64_t>& late = seen->hash[kLate];  // Its pid.
  RankProcesses ranks(
      3,
      [&](int rank, Communicator& c) {
        if (rank == kLate) late = static_cast<std::uint64_t>(getpid());
        if (!c.Barrier().ok()) return 1;
        if (rank == kVictim) {
          std::this_thread::sleep_for(std::chrono::milliseconds(100));  // Until it is in its call.
          kill(static_cast<pid_t>(late.load()), SIGSTOP);
          raise(SIGKILL);
        }
        // One that hears of it between two calls has failed in none, and tells nobody that.
        if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
        const absl::Status status = c.Barrier();
        seen->names_culprit[static_cast<std::size_t>(rank)] =
            std::string(status.message()).find("rank 2 ") != std::string::npos;
        return status.ok() ? 2 : 0;
      },
      seconds(30), nullptr, {1, 1, 1});
  EXPECT_EQ(ranks.Wait(1), 0);
  kill(static_cast<pid_t>(late.load()), SIGCONT);
  EXPECT_EQ(ranks.Wait(kLate), 0);
  for (const std::size_t rank : {0u, 1u}) EXPECT_TRUE(seen->names_culprit[rank]) << rank;
}

using MultiHostStopTest = MultiHostFailureTest;
INSTANTIATE_TEST_SUITE_P(Calls, MultiHostStopTest,
                         testing::Values(FailureCase{{1, 2}, 4}, FailureCase{{2, 1}, 0},
                                         FailureCase{{1, 1, 1}, 0}),
                         [](const auto& info) { return NameOf(info.param.counts); });

TEST_P(MultiHostStopTest, AStoppedRankIsNamedAtTheDeadline) {
  EndEachRankAtTheCall([](Communicator&) { raise(SIGSTOP); }, absl::StatusCode::kDeadlineExceeded,
                       seconds(2), 2 + kSlack);
}

TEST(MultiHostJoinTest, RanksThatAlternateBetweenHostsAreSeveralHosts) {
  // Of two machines, one has ranks 0 and 2.
  TinyStore store;
  store.Start();
  std::vector<std::thread> threads;
  for (int r = 0; r < 4; ++r) {
    threads.emplace_back([&, r] {
      auto c = JoinHostCommunicator({.rank = r,
                                     .world_size = 4,
                                     .store_host = "127.0.0.1",
                                     .store_port = store.port(),
                                     .host_name = r % 2 == 0 ? "even" : "odd",
                                     .host_address = r % 2 == 0 ? "127.0.0.2" : "127.0.0.3"});
      ASSERT_TRUE(c.ok()) << c.status();
      std::int64_t sum = r;
      ASSERT_TRUE((*c)->AllReduce(std::span(&sum, 1), Reduction::kSum).ok());
      EXPECT_EQ(sum, 6);
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST(MultiHostJoinTest, GarbageInTheStoreIsRefused) {
  for (const auto& [key, garbage] : {std::pair("regroup/comm/world/host/secret", "abc"),
                                     std::pair("regroup/comm/world/host/0", "nowhere"),
                                     std::pair("regroup/comm/world/host/0", "")}) {
    TinyStore store;
    store.Start();
    auto client = StoreClient::Connect("127.0.0.1", store.port(), seconds(5));
    ASSERT_TRUE(client.ok());
    const std::string presence = "boot\nother-host\npid:[1]\n1\n1\n1\n3\n5\n";
    ASSERT_TRUE(client->Set("regroup/comm/world/0", presence).ok());
    ASSERT_TRUE(client->Set("regroup/comm/world/host/secret", std::string(64, 'a')).ok());
    ASSERT_TRUE(client->Set("regroup/comm/world/host/0", "127.0.0.1:1").ok());
    ASSERT_TRUE(client->Set(key, garbage).ok());
    const auto joined = JoinHostCommunicator({.rank = 1,
                                              .world_size = 2,
                                              .store_host = "127.0.0.1",
                                              .store_port = store.port(),
                                              .join_deadline = seconds(5)});
    EXPECT_EQ(joined.status().code(), absl::StatusCode::kDataLoss) << joined.status();
  }
}

TEST(MultiHostJoinTest, AHostThatDoesNotListenIsNamedByItsAddress) {
  TinyStore store;
  store.Start();
  auto client = StoreClient::Connect("127.0.0.1", store.port(), seconds(5));
  ASSERT_TRUE(client.ok());
  ASSERT_TRUE(
      client->Set("regroup/comm/world/0", "boot\nother-host\npid:[1]\n1\n1\n1\n3\n5\n").ok());
  ASSERT_TRUE(client->Set("regroup/comm/world/host/secret", std::string(64, 'a')).ok());
  ASSERT_TRUE(client->Set("regroup/comm/world/host/0", "127.0.0.1:1").ok());
  const auto joined = JoinHostCommunicator({.rank = 1,
                                            .world_size = 2,
                                            .store_host = "127.0.0.1",
                                            .store_port = store.port(),
                                            .join_deadline = milliseconds(500)});
  EXPECT_EQ(joined.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(std::string(joined.status().message())
                .find("from 127.0.0.1 to the host before this one, at 127.0.0.1:1: "),
            std::string::npos)
      << joined.status();
}

}  // namespace
}  // namespace regroup::worker
