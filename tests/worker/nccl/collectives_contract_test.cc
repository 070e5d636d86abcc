// What every means of moving tensors promises, whatever it is: ranks of one host in shared memory,
// hosts with TCP between them, GPUs by way of these, and GPUs with NCCL; what is below the last two
// is a strict fake, and where there is a GPU the real thing (gpu-nccl-test in tests/worker/gpu),
// with as many ranks of NCCL as there are GPUs. More of hosts, whose sums are in rank order, is in
// tests/worker/comm; more of NCCL in nccl_faults_test.cc.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "tests/worker/comm/collective_data.h"
#include "tests/worker/comm/in_process_hosts.h"
#include "tests/worker/nccl/nccl_ranks.h"
#include "worker/comm/host_staged_communicator.h"
#include "worker/device/host_device.h"

namespace regroup::worker {
namespace {

enum class Means { kHost, kStaged, kNccl };

struct Transport {
  const char* name;
  std::vector<int> hosts;  // Ranks of each; of NCCL one number.
  Means means = Means::kHost;
  int world() const { return std::accumulate(hosts.begin(), hosts.end(), 0); }
  friend void PrintTo(const Transport& t, std::ostream* out) { *out << t.name; }
};

// One rank, on a thread of its own.
struct Rank {
  Group& group;
  Collectives& collectives;
  Device& device;
  int rank() const { return group.rank(); }
};

class CollectivesContract : public testing::TestWithParam<Transport> {
 protected:
  ~CollectivesContract() override {
    EXPECT_EQ(nccl_.gpu.Refusals(), "");
    EXPECT_EQ(nccl_.gpu.live(), 0);
    EXPECT_EQ(nccl_.gpu.comms(), 0);
  }
#if defined(REGROUP_REAL_GPU)
  void SetUp() override {
    if (GetParam().means == Means::kNccl && World() > nccl_.gpu.count())
      GTEST_SKIP() << "there are " << nccl_.gpu.count() << " GPUs";
  }
  int GpuOf(int rank) const { return rank % nccl_.gpu.count(); }
#else
  static int GpuOf(int rank) { return rank; }
#endif
  int World() const { return GetParam().world(); }

  // Calls may divide by groups of so many ranks.
  void OnEveryRank(int group, Duration deadline, const std::function<void(Rank&)>& body) {
    if (GetParam().means != Means::kNccl) {
      InProcessHosts hosts(GetParam().hosts, deadline);
      std::vector<std::thread> threads;
      for (int r = 0; r < World(); ++r) {
        threads.emplace_back([&, r] {
          const auto communicator = *hosts.Join(r);
          if (GetParam().means == Means::kHost) {
            HostDevice device;
            Rank rank{*communicator, *communicator, device};
            return body(rank);
          }
          const std::unique_ptr<CudaDevice> device =
              *CudaDevice::Create(nccl_.gpu.cuda(), GpuOf(r));
          // Far less than what is moved.
          const auto staged = *HostStagedCommunicator::Create(*communicator, *device, 5000);
          Rank rank{*communicator, *staged, *device};
          body(rank);
        });
      }
      for (std::thread& t : threads) t.join();
      return;
    }
    nccl_.options.group = group;
    nccl_.options.deadline = deadline;
    nccl_.Run([&](NcclRanks::Rank& r) {
      ASSERT_TRUE(r.nccl.ok()) << r.nccl.status();
      Rank rank{r.group, *r, r.device};
      body(rank);
    });
  }
  void OnEveryRank(const std::function<void(Rank&)>& body) {
    OnEveryRank(1, std::chrono::seconds(20), body);
  }

  // How far a sum of numbers below 1/2 may be from the real one: hosts round it once, and NCCL at
  // each addition.
  template <typename T>
  double Near() const {
    const double ulp = sizeof(T) == 4 ? 1e-7 : std::is_same_v<T, Half> ? 1e-3 : 8e-3;
    return ulp * World() * World();
  }
  template <typename T>
  void SumsEverywhere();
  template <typename T>
  void ScattersAndGathers(int group, bool in_place);

  NcclRanks nccl_{World()};
};
INSTANTIATE_TEST_SUITE_P(
    Transports, CollectivesContract,
    testing::Values(Transport{"OneHost1", {1}}, Transport{"OneHost2", {2}},
                    Transport{"OneHost3", {3}}, Transport{"OneHost6", {6}},
                    Transport{"Hosts1_1", {1, 1}}, Transport{"Hosts2_1", {2, 1}},
                    Transport{"Hosts2_2", {2, 2}}, Transport{"Staged1", {1}, Means::kStaged},
                    Transport{"Staged2", {2}, Means::kStaged},
                    Transport{"Staged6", {6}, Means::kStaged},
                    Transport{"Staged2_1", {2, 1}, Means::kStaged},
                    Transport{"Nccl1", {1}, Means::kNccl}, Transport{"Nccl2", {2}, Means::kNccl},
                    Transport{"Nccl3", {3}, Means::kNccl}, Transport{"Nccl4", {4}, Means::kNccl},
                    Transport{"Nccl6", {6}, Means::kNccl}, Transport{"Nccl7", {7}, Means::kNccl}),
    [](const auto& info) { return std::string(info.param.name); });

template <typename T>
std::vector<double> SumOfData(int world, std::size_t count) {
  std::vector<double> sum(count);
  for (int r = 0; r < world; ++r) {
    const std::vector<T> data = Data<T>(r, count);
    for (std::size_t i = 0; i < count; ++i)
      sum[i] += static_cast<double>(static_cast<float>(data[i]));
  }
  return sum;
}

// What lies in a device's memory once the stream is over.
template <typename T>
std::vector<T> Fetched(Stream& stream, std::span<const T> from) {
  std::vector<T> values(from.size());
  stream.Copy(values.data(), from.data(), from.size_bytes());
  EXPECT_EQ(stream.Await(), absl::OkStatus());
  return values;
}

template <typename T>
void ExpectNear(std::span<const T> got, std::span<const double> expected, double near) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(static_cast<double>(static_cast<float>(got[i])), expected[i], near) << i;
}

template <typename T>
void CollectivesContract::SumsEverywhere() {
  constexpr std::size_t kCount = 100003;
  const std::vector<double> sum = SumOfData<T>(World(), kCount);
  OnEveryRank([&](Rank& rank) {
    const auto stream = rank.device.NewStream(StreamKind::kMove);
    const Tensor arena = *rank.collectives.AllocateTensor(DTypeOf<T>(), kCount + 8);
    const std::span<T> values = arena.Elements<T>();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(values.data()) % 256, 0u);
    for (const T x : Fetched<T>(*stream, values)) ASSERT_EQ(static_cast<float>(x), 0);
    const std::vector<T> mine = Data<T>(rank.rank(), kCount);
    for (int round = 0; round < 3; ++round) {
      stream->Copy(values.data() + 3, mine.data(), kCount * sizeof(T));
      rank.collectives.AllReduceSum(*stream, values.subspan(3, kCount));
      rank.collectives.AllReduceSum(*stream, values.subspan(3, 0));
      const std::vector<T> got = Fetched<T>(*stream, values);
      ExpectNear<T>(std::span(got).subspan(3, kCount), sum, Near<T>());
      EXPECT_EQ(static_cast<float>(got[2]) + static_cast<float>(got[kCount + 3]), 0);
    }
    ASSERT_TRUE(rank.group.Barrier().ok());
  });
}

TEST_P(CollectivesContract, SumsOnEveryRank) {
  SumsEverywhere<float>();
  SumsEverywhere<BFloat16>();
  SumsEverywhere<Half>();
}

const std::vector<std::int64_t> kSizes = {1, 15, 16, 1000, 0, 2049, 70000, 64};
constexpr std::size_t kStretched = 80000;

template <typename T>
void CollectivesContract::ScattersAndGathers(int group, bool in_place) {
  const std::vector<Stretch> stretches = SomeStretches(group, in_place, kSizes);
  std::vector<Stretch> packed = stretches;  // The way back.
  for (Stretch& s : packed) std::swap(s.from, s.to);
  const std::vector<double> sums = SumOfData<T>(World(), kStretched);
  OnEveryRank(group, std::chrono::seconds(20), [&](Rank& rank) {
    const auto stream = rank.device.NewStream(StreamKind::kMove);
    const Tensor arena = *rank.collectives.AllocateTensor(DTypeOf<T>(), kStretched);
    const Tensor back = *rank.collectives.AllocateTensor(DTypeOf<T>(), kStretched);
    Arena memory = *rank.device.Allocate(MemoryKind::kDevice, 2 * Arena::Footprint<T>(kStretched));
    const std::span<T> own = memory.Take<T>(kStretched), whole = memory.Take<T>(kStretched);
    const Tensor out = in_place ? arena : Tensor(own);
    const std::vector<T> mine = Data<T>(rank.rank(), kStretched);
    stream->Copy(arena.data, mine.data(), arena.bytes());
    rank.collectives.ReduceScatter(*stream, arena, stretches, out, group);
    std::vector<double> expected(kStretched);
    if (in_place) std::copy(mine.begin(), mine.end(), expected.begin());
    for (const Stretch& s : stretches) {
      if (s.owner == rank.rank() % group)
        std::copy_n(sums.begin() + s.from, s.size, expected.begin() + s.to);
    }
    ExpectNear<T>(Fetched<T>(*stream, out.Elements<T>()), expected, Near<T>());
    ASSERT_TRUE(rank.group.Barrier().ok());
    // What owners at one place hold is equal now; all ranks get it back.
    const Tensor from = in_place ? arena : back;
    if (!in_place) stream->Copy(back.data, own.data(), back.bytes());
    const Tensor all = in_place ? arena : Tensor(whole);
    rank.collectives.AllGather(*stream, from, packed, all, group);
    if (!in_place) expected.assign(kStretched, 0);
    for (const Stretch& s : stretches)
      std::copy_n(sums.begin() + s.from, s.size, expected.begin() + s.from);
    ExpectNear<T>(Fetched<T>(*stream, all.Elements<T>()), expected, Near<T>());
    ASSERT_TRUE(rank.group.Barrier().ok());
  });
}

TEST_P(CollectivesContract, OwnersGetTheSumAndAllGetItBack) {
  for (int group = std::min(2, World()); group <= World(); ++group) {
    if (World() % group != 0) continue;
    for (const bool in_place : {false, true}) {
      ScattersAndGathers<float>(group, in_place);
      ScattersAndGathers<BFloat16>(group, in_place);
    }
  }
}

// The next generation makes new collectives.
TEST_P(CollectivesContract, GenerationsFollowEachOther) {
  for (int generation = 0; generation < 3; ++generation) SumsEverywhere<float>();
}

TEST_P(CollectivesContract, ManyCallsInARowNeedNoWaitBetween) {
  OnEveryRank([&](Rank& rank) {
    const auto compute = rank.device.NewStream(StreamKind::kCompute);
    const auto moves = rank.device.NewStream(StreamKind::kMove);
    const Tensor arena = *rank.collectives.AllocateTensor(DType::kF32, 1000);
    const std::vector<float> ones(1000, 1);
    std::vector<float> last(100);
    for (float& sum : last) {
      compute->Copy(arena.data, ones.data(), arena.bytes());
      moves->Wait(compute->Record());
      rank.collectives.AllReduceSum(*moves, arena);
      compute->Wait(moves->Record());
      compute->Copy(&sum, arena.Elements<float>().data() + 999, sizeof sum);
    }
    ASSERT_EQ(compute->Await(), absl::OkStatus());
    EXPECT_EQ(last, std::vector<float>(100, static_cast<float>(World())));
    ASSERT_TRUE(rank.group.Barrier().ok());
  });
}

// Rank 0 makes no call: the others' end with the group, in its words, and so does what they begin
// later.
TEST_P(CollectivesContract, AGroupThatIsAbortedEndsItsCalls) {
  if (World() == 1) return;
  OnEveryRank([&](Rank& rank) {
    const auto stream = rank.device.NewStream(StreamKind::kMove);
    const Tensor arena = *rank.collectives.AllocateTensor(DType::kF32, 1000);
    if (rank.rank() == 0) {
      rank.group.Abort();
      return;
    }
    for (int call = 0; call < 2; ++call) {
      rank.collectives.AllReduceSum(*stream, arena);
      const absl::Status status = stream->Await();
      EXPECT_FALSE(status.ok());
      EXPECT_NE(status.message().find("rank 0"), std::string::npos) << status;
    }
  });
}

TEST_P(CollectivesContract, WhoDoesNotComeIsNamedAtTheDeadline) {
  if (World() == 1) return;
  const int late = World() - 1;
  std::atomic<int> ended = 0;
  OnEveryRank(1, std::chrono::milliseconds(500), [&](Rank& rank) {
    const auto stream = rank.device.NewStream(StreamKind::kMove);
    const Tensor arena = *rank.collectives.AllocateTensor(DType::kF32, 1000);
    if (rank.rank() == late) {
      while (ended < late) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    rank.collectives.AllReduceSum(*stream, arena);
    const absl::Status status = stream->Await();
    ++ended;
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find("rank " + std::to_string(late)), std::string::npos) << status;
  });
}

}  // namespace
}  // namespace regroup::worker
