// What every Communicator promises, on threads: ranks of one host, and of several with TCP between
// them. Processes are in host_communicator_test.cc.

#include "worker/comm/communicator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "common/base/rng.h"
#include "tests/worker/comm/collective_data.h"
#include "tests/worker/comm/in_process_hosts.h"
#include "worker/comm/in_process_communicator.h"
#include "worker/comm/segment.h"
#include "worker/comm/shared_memory_communicator.h"

namespace regroup::worker {
namespace {

// In floats, and rounded at the end.
template <typename T>
std::vector<T> SumInRankOrder(int world_size, std::size_t count) {
  std::vector<float> sum(count);
  for (int r = 0; r < world_size; ++r) {
    const std::vector<T> data = Data<T>(r, count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto x = static_cast<float>(data[i]);
      sum[i] = r == 0 ? x : sum[i] + x;
    }
  }
  std::vector<T> rounded(count);
  for (std::size_t i = 0; i < count; ++i) rounded[i] = T(sum[i]);
  return rounded;
}

template <typename T>
bool SameBits(std::span<const T> a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}
template <typename T>
bool SameBits(std::span<T> a, const std::vector<T>& b) {
  return SameBits(std::span<const T>(a), b);
}

template <typename T>
std::span<T> ArenaOf(Communicator& c, std::size_t count) {
  const absl::StatusOr<Tensor> arena = c.AllocateTensor(DTypeOf<T>(), count);
  EXPECT_TRUE(arena.ok()) << arena.status();
  return arena->Elements<T>();
}

// Ranks of each host.
using Counts = std::vector<int>;

std::string NameOf(const Counts& counts) {
  std::string name = "Hosts";
  for (const int count : counts) name += "_" + std::to_string(count);
  return name;
}

class CommunicatorTest : public testing::TestWithParam<Counts> {
 protected:
  int World() const { return std::accumulate(GetParam().begin(), GetParam().end(), 0); }
};
INSTANTIATE_TEST_SUITE_P(Worlds, CommunicatorTest,
                         testing::Values(Counts{1}, Counts{2}, Counts{3}, Counts{4}, Counts{7},
                                         Counts{1, 1}, Counts{1, 2}, Counts{2, 1}, Counts{1, 1, 1},
                                         Counts{2, 2}, Counts{2, 1, 3}, Counts{1, 1, 1, 1},
                                         Counts{3, 4}),
                         [](const auto& info) { return NameOf(info.param); });

// Between two questions another rank may get what this one waits for, and leave or abort.
TEST(LookOnce, WhatHasComeIsNoPartOfAFailure) {
  int asked = 0;
  const auto between = [&] { return asked++ > 0; };
  EXPECT_EQ(LookOnce(between, [] { return true; }), Look::kCome);
  EXPECT_EQ(LookOnce([] { return false; }, [] { return true; }), Look::kFailed);
  EXPECT_EQ(LookOnce([] { return false; }, [] { return false; }), Look::kNothing);
  EXPECT_EQ(LookOnce([] { return true; }, [] { return true; }), Look::kCome);
}

// Rank 1 arrives just when rank 0 asks whether it is still there.
class ArrivesWhenAskedFor final : public Peers {
 public:
  ArrivesWhenAskedFor(Segment* segment, bool ends) : segment_(segment), ends_(ends) {}
  bool Gone(int rank) override {
    segment_->slots[static_cast<std::size_t>(rank)].phase.store(1);
    return ends_;
  }
  std::string NameOf(int rank) const override { return std::to_string(rank); }
  absl::StatusOr<Arena> MakeArena(std::size_t) override { return absl::InternalError(""); }
  absl::StatusOr<Arena> OpenArena(const ArenaTicket&) override { return absl::InternalError(""); }
  void ArenaShared(const ArenaTicket&) override {}

 private:
  Segment* const segment_;
  const bool ends_;
};

// And then ends; or the call's deadline is over by then.
TEST(SharedMemory, WhoArrivesBetweenTwoLooksFailsNobody) {
  for (const bool ends : {true, false}) {
    std::vector<std::byte> memory(SegmentBytes(2) + alignof(Segment));
    void* at = memory.data();
    std::size_t room = memory.size();
    auto* segment = new (std::align(alignof(Segment), SegmentBytes(2), at, room)) Segment;
    segment->slots[1].header[1] = {kBarrier, kByte, 0, 0, 1};
    const auto deadline = std::chrono::seconds(ends ? 20 : 0);
    SharedMemoryCommunicator rank(0, 2, segment, {.deadline = deadline, .spin = 0},
                                  std::make_unique<ArrivesWhenAskedFor>(segment, ends));
    const absl::Status status = rank.Barrier();
    EXPECT_TRUE(status.ok()) << ends << ": " << status;
  }
}

template <typename T>
void SumsInRankOrder(const Counts& hosts) {
  const int world = std::accumulate(hosts.begin(), hosts.end(), 0);
  for (const std::size_t count : {0, 1, 15, 16, 1000, 16385, 65536, 100003, 300000}) {
    const std::vector<T> expected = SumInRankOrder<T>(world, count);
    OnEveryRank(hosts, [&](Communicator& c) {
      const std::vector<T> mine = Data<T>(c.rank(), count);
      std::vector<T> staged = mine;
      ASSERT_TRUE(c.AllReduceSum(std::span(staged)).ok());
      EXPECT_TRUE(SameBits(std::span(staged), expected)) << count;
      // A part of an arena, not aligned to anything; its surroundings stay as they are.
      const std::span<T> arena = ArenaOf<T>(c, count + 8);
      std::copy(mine.begin(), mine.end(), arena.begin() + 3);
      arena[2] = T(42.0F);
      arena[count + 3] = T(43.0F);
      ASSERT_TRUE(c.AllReduceSum(arena.subspan(3, count)).ok());
      EXPECT_TRUE(SameBits(arena.subspan(3, count), expected)) << count;
      EXPECT_EQ(static_cast<float>(arena[2]), 42);
      EXPECT_EQ(static_cast<float>(arena[count + 3]), 43);
    });
  }
}

TEST_P(CommunicatorTest, SumsInRankOrderInsideAndOutsideOfAnArena) {
  SumsInRankOrder<float>(GetParam());
  SumsInRankOrder<BFloat16>(GetParam());
  SumsInRankOrder<Half>(GetParam());
}

const std::vector<std::int64_t> kSizes = {1, 15, 16, 1000, 0, 2049, 70000, 64, 300000};
constexpr std::size_t kStretched = 400000;

struct Case {
  int group = 1;
  bool in_place = false;
};
std::vector<Case> CasesOf(int world_size) {
  std::vector<Case> cases;
  for (int group = 1; group <= world_size; ++group) {
    if (world_size % group == 0) cases.insert(cases.end(), {{group, true}, {group, false}});
  }
  return cases;
}

template <typename T>
void Scatters(const Counts& hosts, const Case& row) {
  const int world = std::accumulate(hosts.begin(), hosts.end(), 0);
  const int group = row.group;
  const bool in_place = row.in_place;
  const std::vector<T> sum = SumInRankOrder<T>(world, kStretched);
  const std::vector<Stretch> stretches = SomeStretches(group, in_place, kSizes);
  OnEveryRank(hosts, [&](Communicator& c) {
    const std::vector<T> mine = Data<T>(c.rank(), kStretched);
    ArenaOf<T>(c, 10);
    const std::span<T> arena = ArenaOf<T>(c, kStretched);
    std::vector<T> expected = mine, out(in_place ? 0 : kStretched, T(42.0F));
    if (!in_place) expected = out;
    for (const Stretch& s : stretches) {
      if (s.owner == c.rank() % group)
        std::copy_n(sum.begin() + s.from, s.size, expected.begin() + s.to);
    }
    for (int round = 0; round < 2; ++round) {  // The second finds what the first has left.
      std::copy(mine.begin(), mine.end(), arena.begin());
      const std::span<T> result = in_place ? arena : std::span<T>(out);
      ASSERT_TRUE(c.Barrier().ok());
      ASSERT_TRUE(c.ReduceScatter(arena, stretches, result, group).ok());
      EXPECT_TRUE(SameBits(result, expected)) << "groups of " << group;
      if (!in_place) {
        EXPECT_TRUE(SameBits(arena, mine));
      }
      std::fill(arena.begin(), arena.end(), T(-1.0F));  // All ranks have read it.
    }
  });
}

TEST_P(CommunicatorTest, ReduceScatterGivesTheOwnersTheSumInRankOrder) {
  for (const Case& row : CasesOf(World())) {
    Scatters<float>(GetParam(), row);
    row.in_place ? Scatters<BFloat16>(GetParam(), row) : Scatters<Half>(GetParam(), row);
  }
}

template <typename T>
void Gathers(const Counts& hosts, const Case& row) {
  const int group = row.group;
  const bool in_place = row.in_place;
  const std::vector<Stretch> stretches = SomeStretches(group, in_place, kSizes);
  OnEveryRank(hosts, [&](Communicator& c) {
    const std::span<T> arena = ArenaOf<T>(c, kStretched);
    std::vector<Stretch> packed = stretches;  // Of its own at from, and of all at to.
    for (Stretch& s : packed) std::swap(s.from, s.to);
    const std::vector<T> mine = Data<T>(c.rank() % group, kStretched);
    std::copy(mine.begin(), mine.end(), arena.begin());
    std::vector<T> out(kStretched, T(42.0F)), expected = in_place ? mine : out;
    for (const Stretch& s : packed)
      std::copy_n(Data<T>(s.owner, kStretched).begin() + s.from, s.size, expected.begin() + s.to);
    const std::span<T> result = in_place ? arena : std::span<T>(out);
    ASSERT_TRUE(c.AllGather(arena, packed, result, group).ok());
    if (!in_place) std::fill(arena.begin(), arena.end(), T(-1.0F));  // All ranks have read it.
    EXPECT_TRUE(SameBits(result, expected)) << "groups of " << group;
  });
}

TEST_P(CommunicatorTest, AllGatherGivesEveryRankWhatTheOwnersHave) {
  for (const Case& row : CasesOf(World())) {
    Gathers<float>(GetParam(), row);
    if (row.group == World()) Gathers<Half>(GetParam(), row);
  }
}

// What ranks of a host share needs no copy there, and all of them have what others gathered.
TEST_P(CommunicatorTest, WhatAGroupSharesIsGatheredInPlace) {
  constexpr std::int64_t kEach = 70001;
  for (int group = 1; group <= World(); ++group) {
    if (World() % group != 0) continue;
    OnEveryRank(GetParam(), [&](Communicator& c) {
      const auto count = static_cast<std::size_t>(kEach * group);
      const absl::StatusOr<Tensor> shared = c.AllocateShared(DType::kBF16, count, group);
      ASSERT_TRUE(shared.ok()) << shared.status();
      const std::span<BFloat16> all = shared->Elements<BFloat16>();
      // It is one memory for all of a group that are on one host.
      if (c.rank() % group == 0) all[0] = BFloat16(42.0F);
      ASSERT_TRUE(c.Barrier().ok());
      if (GetParam().size() == 1) {
        ASSERT_EQ(all[0], 42.0F);
      }
      ASSERT_TRUE(c.Barrier().ok());
      std::vector<Stretch> parts;
      for (int place = 0; place < group; ++place)
        parts.push_back({place, kEach * place, kEach * place, kEach});
      for (int round = 1; round <= 3; ++round) {
        const auto value = [&](int rank) { return static_cast<float>(10 * round + rank); };
        const std::span<BFloat16> own = all.subspan(
            static_cast<std::size_t>(kEach * (c.rank() % group)), static_cast<std::size_t>(kEach));
        std::fill(own.begin(), own.end(), BFloat16(value(c.rank() % group)));
        ASSERT_TRUE(c.AllGather(*shared, parts, *shared, group).ok());
        for (int place = 0; place < group; ++place) {
          ASSERT_EQ(all[static_cast<std::size_t>(kEach * place)], value(place));
          ASSERT_EQ(all[static_cast<std::size_t>(kEach * (place + 1) - 1)], value(place));
        }
        ASSERT_TRUE(c.Barrier().ok());  // All have looked.
      }
    });
  }
}

TEST_P(CommunicatorTest, ArenasAreZeroedAlignedAndIndependent) {
  OnEveryRank(GetParam(), [&](Communicator& c) {
    auto first = c.AllocateArena(70000), second = c.AllocateArena(40000);
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first->data()) % 256, 0u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(second->data()) % 256, 0u);
    for (float x : *first) ASSERT_EQ(x, 0);
    for (float& x : *second) x = 1;
    ASSERT_TRUE(c.AllReduceSum(*second).ok());
    EXPECT_EQ((*second)[39999], static_cast<float>(World()));
    EXPECT_EQ((*first)[0], 0);
  });
}

TEST_P(CommunicatorTest, SmallVectorsSumAndMax) {
  OnEveryRank(GetParam(), [&](Communicator& c) {
    const int world = World();
    std::vector<double> doubles{c.rank() + 0.5, -1.0 * c.rank()};
    ASSERT_TRUE(c.AllReduce(doubles, Reduction::kMax).ok());
    EXPECT_EQ(doubles, (std::vector<double>{world - 0.5, 0}));
    std::vector<std::int64_t> integers{1, c.rank()};
    ASSERT_TRUE(c.AllReduce(integers, Reduction::kSum).ok());
    EXPECT_EQ(integers, (std::vector<std::int64_t>{world, world * (world - 1) / 2}));
    ASSERT_TRUE(c.AllReduce(integers, Reduction::kMax).ok());
    EXPECT_EQ(integers[0], world);
  });
}

TEST_P(CommunicatorTest, ANanOfOneRankReachesAll) {
  OnEveryRank(GetParam(), [&](Communicator& c) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    std::vector<double> values{c.rank() == World() - 1 ? nan : 1.0};
    ASSERT_TRUE(c.AllReduce(values, Reduction::kMax).ok());
    EXPECT_TRUE(std::isnan(values[0]));
    values[0] = c.rank() == 0 ? nan : 1.0;
    ASSERT_TRUE(c.AllReduce(values, Reduction::kMax).ok());
    EXPECT_TRUE(std::isnan(values[0]));
  });
}

TEST_P(CommunicatorTest, BroadcastsFromEveryRoot) {
  for (const std::size_t size : {0, 5, 300000, (5 << 20) + 7}) {  // The last in several parts.
    std::vector<std::vector<std::uint64_t>> sent;
    for (int root = 0; root < World(); ++root) {
      Rng rng(static_cast<std::uint64_t>(root));
      std::vector<std::uint64_t>& words = sent.emplace_back(size / 8 + 1);
      for (std::uint64_t& word : words) word = rng.Next();
    }
    OnEveryRank(GetParam(), [&](Communicator& c) {
      std::vector<std::uint64_t> words(size / 8 + 1);
      const auto data = std::as_writable_bytes(std::span(words)).first(size);
      for (int root = 0; root < World(); ++root) {
        const void* const right = sent[static_cast<std::size_t>(root)].data();
        if (c.rank() == root) std::memcpy(data.data(), right, size);
        ASSERT_TRUE(c.Broadcast(data, root).ok());
        ASSERT_EQ(std::memcmp(data.data(), right, size), 0) << root;
      }
    });
  }
}

TEST_P(CommunicatorTest, ManyMixedCallsStayInStep) {
  OnEveryRank(GetParam(), [&](Communicator& c) {
    auto arena = c.AllocateArena(20000);
    ASSERT_TRUE(arena.ok());
    Rng rng(7);  // The same calls on every rank.
    for (int i = 0; i < 300; ++i) {
      const auto kind = rng.Below(4);
      std::int64_t one = 1;
      if (kind == 0) {
        ASSERT_TRUE(c.Barrier().ok());
      } else if (kind == 1) {
        ASSERT_TRUE(c.AllReduce(std::span(&one, 1), Reduction::kSum).ok());
        ASSERT_EQ(one, World());
      } else {
        const std::size_t count = 1 + rng.Below(20000);
        std::fill(arena->begin(), arena->end(), 1.0f);
        ASSERT_TRUE(c.AllReduceSum(arena->first(count)).ok());
        ASSERT_EQ((*arena)[count - 1], static_cast<float>(World()));
      }
    }
  });
}

struct Mismatch {
  const char* name;
  std::function<absl::Status(Communicator&, std::span<float>)> even, odd;
};

class ThreeRanksTest : public testing::TestWithParam<Counts> {};
INSTANTIATE_TEST_SUITE_P(Worlds, ThreeRanksTest,
                         testing::Values(Counts{3}, Counts{1, 2}, Counts{2, 1}, Counts{1, 1, 1}),
                         [](const auto& info) { return NameOf(info.param); });
class TwoRanksTest : public testing::TestWithParam<Counts> {};
INSTANTIATE_TEST_SUITE_P(Worlds, TwoRanksTest, testing::Values(Counts{2}, Counts{1, 1}),
                         [](const auto& info) { return NameOf(info.param); });

std::vector<Mismatch> MismatchesOfMemory() {
  return {
      {"type",
       [](Communicator& c, std::span<float>) {
         double x = 0;
         return c.AllReduce(std::span(&x, 1), Reduction::kSum);
       },
       [](Communicator& c, std::span<float>) {
         std::int64_t x = 0;
         return c.AllReduce(std::span(&x, 1), Reduction::kSum);
       }},
      {"type of a sum",
       [](Communicator& c, std::span<float> a) { return c.AllReduceSum(a.first(8)); },
       [](Communicator& c, std::span<float> a) {
         return c.AllReduceSum(Tensor(DType::kBF16, reinterpret_cast<std::byte*>(a.data()), 8));
       }},
      {"type of what is allocated",
       [](Communicator& c, std::span<float>) { return c.AllocateTensor(DType::kF16, 8).status(); },
       [](Communicator& c, std::span<float>) {
         return c.AllocateTensor(DType::kBF16, 8).status();
       }},
      {"who shares it",
       [](Communicator& c, std::span<float>) {
         return c.AllocateShared(DType::kF32, 8, c.world_size()).status();
       },
       [](Communicator& c, std::span<float>) {
         return c.AllocateTensor(DType::kF32, 8).status();
       }}};
}

std::vector<Mismatch> Mismatches() {
  return {
      {"count", [](Communicator& c, std::span<float> a) { return c.AllReduceSum(a.first(10)); },
       [](Communicator& c, std::span<float> a) { return c.AllReduceSum(a.first(11)); }},
      {"large count",
       [](Communicator& c, std::span<float> a) { return c.AllReduceSum(a.first(30000)); },
       [](Communicator& c, std::span<float> a) { return c.AllReduceSum(a.first(30001)); }},
      {"place",
       [](Communicator& c, std::span<float> a) { return c.AllReduceSum(a.subspan(0, 30000)); },
       [](Communicator& c, std::span<float> a) { return c.AllReduceSum(a.subspan(16, 30000)); }},
      {"operation", [](Communicator& c, std::span<float> a) { return c.AllReduceSum(a.first(1)); },
       [](Communicator& c, std::span<float>) { return c.Barrier(); }},
      {"reduction",
       [](Communicator& c, std::span<float>) {
         double x = 0;
         return c.AllReduce(std::span(&x, 1), Reduction::kSum);
       },
       [](Communicator& c, std::span<float>) {
         double x = 0;
         return c.AllReduce(std::span(&x, 1), Reduction::kMax);
       }},
      {"owner",
       [](Communicator& c, std::span<float> a) {
         return c.ReduceScatter(a, std::vector<Stretch>{{0, 0, 0, 10}, {1, 10, 10, 10}}, a,
                                c.world_size());
       },
       [](Communicator& c, std::span<float> a) {
         return c.ReduceScatter(a, std::vector<Stretch>{{1, 0, 0, 10}, {1, 10, 10, 10}}, a,
                                c.world_size());
       }},
      {"stretch",
       [](Communicator& c, std::span<float> a) {
         return c.AllGather(a, std::vector<Stretch>{{0, 0, 0, 10}}, a, c.world_size());
       },
       [](Communicator& c, std::span<float> a) {
         return c.AllGather(a, std::vector<Stretch>{{0, 0, 0, 11}}, a, c.world_size());
       }},
      {"group",
       [](Communicator& c, std::span<float> a) {
         return c.ReduceScatter(a, std::vector<Stretch>{{0, 0, 0, 10}}, a, 1);
       },
       [](Communicator& c, std::span<float> a) {
         return c.ReduceScatter(a, std::vector<Stretch>{{0, 0, 0, 10}}, a, c.world_size());
       }},
      {"direction",
       [](Communicator& c, std::span<float> a) {
         return c.AllGather(a, std::vector<Stretch>{{0, 0, 0, 10}}, a, c.world_size());
       },
       [](Communicator& c, std::span<float> a) {
         return c.ReduceScatter(a, std::vector<Stretch>{{0, 0, 0, 10}}, a, c.world_size());
       }},
      {"root", [](Communicator& c, std::span<float>) { return c.Broadcast({}, 0); },
       [](Communicator& c, std::span<float>) { return c.Broadcast({}, 1); }},
  };
}

TEST_P(ThreeRanksTest, DifferentCallsAreRefusedOnEveryRank) {
  std::vector<Mismatch> rows = Mismatches(), others = MismatchesOfMemory();
  rows.insert(rows.end(), others.begin(), others.end());
  for (const Mismatch& row : rows) {
    OnEveryRank(GetParam(), [&](Communicator& c) {
      auto arena = c.AllocateArena(40000);
      ASSERT_TRUE(arena.ok());
      const absl::Status status = (c.rank() % 2 == 0 ? row.even : row.odd)(c, *arena);
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << row.name << ": " << status;
      EXPECT_EQ(c.Barrier().code(), absl::StatusCode::kFailedPrecondition) << row.name;
    });
  }
}

TEST_P(TwoRanksTest, AbortFromAnotherThreadEndsAWaitingRank) {
  OnEveryRank(GetParam(), [&](Communicator& c) {
    if (c.rank() == 1) {
      c.Abort();
      EXPECT_EQ(c.Barrier().code(), absl::StatusCode::kAborted);
    } else {
      const absl::Status status = c.Barrier();
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
      EXPECT_NE(std::string(status.message()).find("rank 1"), std::string::npos) << status;
    }
  });
}

TEST_P(ThreeRanksTest, ARankThatDoesNotCallIsNamedAtTheDeadline) {
  std::atomic<int> returned{0};
  OnEveryRank(GetParam(), [&](Communicator& c) {
    if (c.rank() == 0) c.SetDeadline(std::chrono::milliseconds(10));
    while (c.rank() == 2 && returned < 2) std::this_thread::yield();
    const absl::Status status = c.Barrier();
    ++returned;
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_NE(std::string(status.message()).find("rank 0 has waited for rank 2"), std::string::npos)
        << status;
  });
}

TEST_P(TwoRanksTest, ARankThatLeftIsGone) {
  OnEveryRank(GetParam(), [&](Communicator& c) {
    ASSERT_TRUE(c.Barrier().ok());
    if (c.rank() == 1) return;
    while (c.Health().ok()) std::this_thread::yield();  // Also outside of any call.
    const absl::Status status = c.Barrier();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_NE(std::string(status.message()).find("rank 1 is gone"), std::string::npos) << status;
  });
}

// Memory that one rank can not make or map.
class PoorPeers final : public Peers {
 public:
  PoorPeers(std::vector<std::byte>& memory, bool poor) : memory_(memory), poor_(poor) {}
  bool Gone(int) override { return false; }
  std::string NameOf(int rank) const override { return "rank " + std::to_string(rank); }
  absl::StatusOr<Arena> MakeArena(std::size_t bytes) override {
    if (poor_) return absl::ResourceExhaustedError("no memory here");
    memory_.resize(bytes);
    return Arena{memory_.data(), {0, 0, bytes}};
  }
  absl::StatusOr<Arena> OpenArena(const ArenaTicket& ticket) override {
    if (poor_) return absl::ResourceExhaustedError("no memory here");
    return Arena{memory_.data(), ticket};
  }
  void ArenaShared(const ArenaTicket&) override {}

 private:
  std::vector<std::byte>& memory_;
  const bool poor_;
};

TEST(CommunicatorFailureTest, AnArenaThatOneRankCanNotHaveIsRefusedToAllAndTheyGoOn) {
  constexpr int kWorld = 3;
  for (int poor = 0; poor < kWorld; ++poor) {
    std::vector<std::byte> arena;
    std::vector<std::byte> memory(SegmentBytes(kWorld) + 4096);
    void* at = memory.data();
    std::size_t room = memory.size();
    auto* segment = new (std::align(4096, SegmentBytes(kWorld), at, room)) Segment;
    std::vector<std::thread> threads;
    for (int r = 0; r < kWorld; ++r) {
      threads.emplace_back([&, r] {
        SharedMemoryCommunicator c(r, kWorld, segment, SharedMemoryOptions{},
                                   std::make_unique<PoorPeers>(arena, r == poor));
        const auto refused = c.AllocateArena(1000);
        EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
        EXPECT_EQ(std::string(refused.status().message()).find("no memory here"),
                  r == poor ? 0 : std::string::npos)
            << refused.status();
        EXPECT_TRUE(c.Barrier().ok());  // In step still.
      });
    }
    for (std::thread& t : threads) t.join();
  }
}

TEST(CommunicatorFailureTest, MoreThanThereIsIsRefusedToARankAloneWithTheSize) {
  const auto ranks = MakeInProcessCommunicators(1);
  const auto refused = ranks[0]->AllocateTensor(DType::kF32, std::size_t{1} << 46);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(refused.status().message()).find(" 281474976"), std::string::npos)
      << refused.status();  // 2^48 bytes, and what rounds them up.
  EXPECT_TRUE(ranks[0]->AllocateTensor(DType::kF32, 100).ok());
}

}  // namespace
}  // namespace regroup::worker
