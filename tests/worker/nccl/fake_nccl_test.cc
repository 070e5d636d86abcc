// The fake is strict: whatever the rules of CUDA and NCCL forbid is refused by name, so that what
// passes the other tests keeps them.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/worker/fake_gpu/open_fake_gpu.h"
#include "worker/nccl/nccl_api.h"

namespace regroup::worker {
namespace {

constexpr auto kF32 = NcclType::kFloat32;

// A rank of a world of two, in the hands of a test.
class FakeNccl : public testing::Test {
 protected:
  FakeNccl() {
    gpu_.Bind("ncclCommFinalize", finalize_);
    gpu_.Bind("ncclCommDestroy", destroy_);
    for (void*& stream : streams_) EXPECT_EQ(gpu_.cuda().stream_create(&stream, 1, 0), 0);
    void* memory = nullptr;
    EXPECT_EQ(gpu_.cuda().malloc(&memory, 4096), 0);
    memory_ = static_cast<std::byte*>(memory);
    std::memset(memory_, 0, 4096);
  }
  ~FakeNccl() override {
    gpu_.release();
    for (const NcclComm comm : comms_) (void)nccl_.comm_abort(comm);
    for (void* stream : streams_) (void)gpu_.cuda().stream_destroy(stream);
    (void)gpu_.cuda().free(memory_);
  }

  NcclComm Init(const NcclUniqueId& id, int rank, int world = 2) {
    NcclConfig config = nccl_.Config();
    NcclComm comm = nullptr;
    (void)nccl_.comm_init_rank_config(&comm, world, id, rank, &config);
    if (comm != nullptr) comms_.push_back(comm);
    return comm;
  }
  NcclUniqueId Id() {
    NcclUniqueId id{};
    EXPECT_EQ(nccl_.get_unique_id(&id), NcclResult::kSuccess);
    return id;
  }
  std::array<NcclComm, 2> Pair() {
    const NcclUniqueId id = Id();
    const std::array<NcclComm, 2> pair = {Init(id, 0), Init(id, 1)};
    for (const NcclComm comm : pair) Await(comm);
    return pair;
  }
  NcclResult State(NcclComm comm) {
    NcclResult state = NcclResult::kSuccess;
    EXPECT_EQ(nccl_.comm_get_async_error(comm, &state), NcclResult::kSuccess);
    return state;
  }
  void Await(NcclComm comm) {
    while (State(comm) == NcclResult::kInProgress) std::this_thread::yield();
  }
  NcclResult Sum(NcclComm comm, std::size_t count = 16, NcclType type = kF32, int op = kNcclSum,
                 std::byte* at = nullptr, int stream = 0) {
    std::byte* buffer = at == nullptr ? memory_ : at;
    (void)nccl_.group_start();
    const NcclResult result =
        nccl_.all_reduce(buffer, buffer, count, type, op, comm, streams_.at(stream));
    (void)nccl_.group_end();
    return result;
  }
  NcclResult Reduce(NcclComm comm, int root, int stream = 0, std::size_t count = 16) {
    (void)nccl_.group_start();
    const NcclResult result = nccl_.reduce(memory_, memory_ + 1024, count, kF32, kNcclSum, root,
                                           comm, streams_.at(stream));
    (void)nccl_.group_end();
    return result;
  }
  void Forget(NcclComm comm) { std::erase(comms_, comm); }
  // Each rank on a stream of its own; until the two have been compared.
  void ExpectRefusedTogether(const std::function<void(NcclComm)>& first,
                             const std::function<void(NcclComm)>& second, const std::string& rule) {
    const auto [a, b] = Pair();
    first(a);
    second(b);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (gpu_.Refusals().empty() && std::chrono::steady_clock::now() < end)
      std::this_thread::yield();
    for (const NcclComm comm : {a, b}) {
      (void)nccl_.comm_abort(comm);
      Forget(comm);
    }
    Expect(rule);  // Both may have said it.
  }
  // What was refused since this was asked last.
  void Expect(const std::string& rule) {
    const std::string refused = "\n" + gpu_.Refusals();
    EXPECT_NE(refused.find("\n" + rule + ": "), std::string::npos) << refused << "lacks " << rule;
    gpu_.forget();
  }

  FakeGpu gpu_;
  const NcclApi nccl_ = *OpenNccl(FakeGpu::path());
  NcclResult (*finalize_)(NcclComm) = nullptr;
  NcclResult (*destroy_)(NcclComm) = nullptr;
  std::array<void*, 2> streams_{};
  std::byte* memory_ = nullptr;
  std::vector<NcclComm> comms_;
};

TEST_F(FakeNccl, WhatCudaForbids) {
  EXPECT_NE(gpu_.cuda().free(&gpu_), 0);
  Expect("free");
  EXPECT_NE(gpu_.cuda().event_query(&gpu_), 0);
  Expect("event");
  EXPECT_NE(gpu_.cuda().memset_async(memory_, 0, 16, nullptr), 0);
  Expect("stream");
  void* stream = nullptr;
  EXPECT_EQ(gpu_.cuda().stream_create(&stream, 0, 0), 0);
  Expect("blocking stream");
  EXPECT_EQ(gpu_.cuda().stream_destroy(stream), 0);
}

TEST_F(FakeNccl, WhatACaptureForbids) {
  const CudaApi& cuda = gpu_.cuda();
  void *stream = nullptr, *event = nullptr, *memory = nullptr, *graph = nullptr, *exec = nullptr;
  ASSERT_EQ(cuda.stream_create(&stream, kCudaStreamNonBlocking, 0), 0);
  ASSERT_EQ(cuda.event_create(&event, kCudaEventDisableTiming), 0);
  EXPECT_NE(cuda.stream_end_capture(stream, &graph), 0);
  ASSERT_EQ(cuda.stream_begin_capture(stream, kCudaStreamCaptureThreadLocal), 0);
  const auto forbids = [&](int error, const char* rule) {
    EXPECT_NE(error, 0);
    Expect(rule);
  };
  forbids(cuda.stream_begin_capture(stream, kCudaStreamCaptureThreadLocal), "capture");
  forbids(cuda.malloc(&memory, 64), "capture");
  forbids(cuda.host_alloc(&memory, 64, 0), "capture");
  forbids(cuda.free(memory_), "capture");
  forbids(cuda.event_record(event, stream), "capture");
  forbids(cuda.event_query(event), "capture");
  forbids(cuda.stream_wait_event(stream, event, 0), "capture");
  forbids(cuda.launch_host_func(
              stream, [](void*) {}, nullptr),
          "capture");
  forbids(cuda.func_set_attribute(&gpu_, kCudaFuncMaxDynamicSharedMemory, 64 << 10), "capture");
  // Another thread's is its own.
  std::thread([&] {
    (void)cuda.set_device(0);
    EXPECT_EQ(cuda.event_query(event), 0);
  }).join();
  EXPECT_EQ(cuda.memset_async(memory_, 7, 16, stream), 0);
  ASSERT_EQ(cuda.stream_end_capture(stream, &graph), 0);
  ASSERT_EQ(cuda.graph_instantiate(&exec, graph, 0), 0);
  EXPECT_EQ(cuda.graph_destroy(graph), 0);
  EXPECT_NE(cuda.graph_destroy(graph), 0);
  EXPECT_NE(cuda.graph_launch(graph, stream), 0);
  // What is under way keeps its graph.
  static std::atomic<bool> go;
  go = false;
  const auto hold = [](void*) {
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  EXPECT_EQ(cuda.launch_host_func(stream, hold, nullptr), 0);
  EXPECT_EQ(cuda.graph_launch(exec, stream), 0);
  EXPECT_EQ(cuda.event_record(event, stream), 0);
  forbids(cuda.graph_exec_destroy(exec), "graph");
  go = true;
  while (cuda.event_query(event) != 0) std::this_thread::yield();
  EXPECT_EQ(cuda.graph_exec_destroy(exec), 0);
  EXPECT_EQ(cuda.event_destroy(event), 0);
  EXPECT_EQ(cuda.stream_destroy(stream), 0);
}

// A thread uses GPU 0 until it says otherwise, and streams and events are of what it uses.
TEST_F(FakeNccl, WhatIsOfOneGpuIsOfNoUseOnAnother) {
  const CudaApi& cuda = gpu_.cuda();
  gpu_.set_devices(2, 0);
  const NcclComm comm = Init(Id(), 0, 1);
  Await(comm);
  void *stream = nullptr, *event = nullptr, *memory = nullptr;
  std::thread([&] {
    EXPECT_EQ(cuda.set_device(1), 0);
    EXPECT_EQ(cuda.stream_create(&stream, kCudaStreamNonBlocking, 0), 0);
    EXPECT_EQ(cuda.event_create(&event, 0), 0);
    EXPECT_EQ(cuda.malloc(&memory, 4096), 0);
    EXPECT_NE(cuda.event_record(event, streams_[0]), 0);
    Expect("current device");
  }).join();
  EXPECT_NE(cuda.memset_async(memory, 0, 16, stream), 0);
  Expect("current device");
  EXPECT_NE(cuda.launch_host_func(
                stream, [](void*) {}, nullptr),
            0);
  Expect("current device");
  EXPECT_NE(cuda.event_record(event, streams_[0]), 0);
  Expect("event of another device");
  EXPECT_EQ(Sum(comm, 16, kF32, kNcclSum, static_cast<std::byte*>(memory)),
            NcclResult::kInvalidArgument);
  Expect("not memory of the device");
  std::swap(streams_[1], stream);
  EXPECT_EQ(Sum(comm, 16, kF32, kNcclSum, nullptr, 1), NcclResult::kInvalidArgument);
  Expect("stream of another device");
  std::swap(streams_[1], stream);
  EXPECT_EQ(cuda.set_device(1), 0);
  EXPECT_EQ(cuda.event_record(event, stream), 0);
  EXPECT_EQ(cuda.event_destroy(event), 0);
  EXPECT_EQ(cuda.stream_destroy(stream), 0);
  EXPECT_EQ(cuda.free(memory), 0);
  EXPECT_EQ(cuda.set_device(0), 0);
}

TEST_F(FakeNccl, WhatAStreamCallsMayCallNeitherCudaNorNccl) {
  struct Inside {
    const CudaApi& cuda;
    const NcclApi& nccl;
    void* stream;
    NcclComm comm;
    int error = 0;
    std::atomic<bool> over = false;
  } inside{gpu_.cuda(), nccl_, streams_[0], Init(Id(), 0, 1)};
  Await(inside.comm);
  const auto run = [&](void (*call)(void*)) {
    inside.over = false;
    ASSERT_EQ(gpu_.cuda().launch_host_func(streams_[0], call, &inside), 0);
    while (!inside.over) std::this_thread::yield();
    Expect("host function");
  };
  run([](void* argument) {
    auto& own = *static_cast<Inside*>(argument);
    own.error = own.cuda.memset_async(nullptr, 0, 0, own.stream);
    own.over = true;
  });
  EXPECT_NE(inside.error, 0);
  run([](void* argument) {
    auto& own = *static_cast<Inside*>(argument);
    own.error = own.cuda.event_query(nullptr);
    own.over = true;
  });
  EXPECT_NE(inside.error, 0);
  run([](void* argument) {
    auto& own = *static_cast<Inside*>(argument);
    NcclResult state{};
    (void)own.nccl.comm_get_async_error(own.comm, &state);
    own.over = true;
  });
}

TEST_F(FakeNccl, WhatAnInitForbids) {
  NcclConfig config = nccl_.Config();
  NcclComm comm = nullptr;
  EXPECT_EQ(nccl_.comm_init_rank_config(&comm, 2, NcclUniqueId{}, 0, &config),
            NcclResult::kInvalidArgument);
  Expect("no id");
  EXPECT_EQ(nccl_.comm_init_rank_config(&comm, 2, Id(), 2, &config), NcclResult::kInvalidArgument);
  Expect("rank out of range");
  const auto with = [&](const std::function<void(NcclConfig&)>& change, const std::string& rule) {
    NcclConfig changed = nccl_.Config();
    change(changed);
    NcclComm made = nullptr;
    (void)nccl_.comm_init_rank_config(&made, 1, Id(), 0, &changed);
    comms_.push_back(made);
    Expect(rule);
  };
  with([](NcclConfig& c) { c.magic = 1; }, "config");
  with([](NcclConfig& c) { c.size += 8; }, "config size");
  with([](NcclConfig& c) { c.blocking = 1; }, "blocking");
  with([](NcclConfig& c) { c.split_share = 1; }, "split share");
  const NcclUniqueId id = Id();
  Init(id, 0);
  const NcclComm larger = Init(id, 1, 3);
  Expect("other world size");
  EXPECT_EQ(State(larger), NcclResult::kInvalidUsage);
  const NcclComm twice = Init(id, 0);
  Expect("rank twice, or an id used again");
  EXPECT_EQ(State(twice), NcclResult::kInvalidUsage);
  gpu_.set_version(NcclVersion(2, 27, 5));
  const NcclComm older = Init(id, 1);
  gpu_.set_version(NcclVersion(2, 28, 9));
  EXPECT_EQ(State(older), NcclResult::kInvalidUsage);
  Expect("other version");
}

TEST_F(FakeNccl, WhatACallForbids) {
  const auto [a, b] = Pair();
  EXPECT_EQ(Sum(a, 16, static_cast<NcclType>(0)), NcclResult::kInvalidUsage);
  Expect("type");
  EXPECT_EQ(Sum(a, 16, kF32, /*op=*/2), NcclResult::kInvalidUsage);
  Expect("reduction");
  EXPECT_EQ(Reduce(a, 2), NcclResult::kInvalidArgument);
  Expect("root out of range");
  EXPECT_EQ(Sum(a, 4096), NcclResult::kInvalidArgument);
  Expect("not memory of the device");
  EXPECT_EQ(Sum(a, 16, kF32, kNcclSum, memory_ + 2), NcclResult::kInvalidArgument);
  Expect("not aligned");
  (void)nccl_.group_start();
  EXPECT_EQ(nccl_.all_reduce(nullptr, memory_, 16, kF32, kNcclSum, a, streams_[0]),
            NcclResult::kInvalidArgument);
  (void)nccl_.group_end();
  Expect("no buffer");
  EXPECT_EQ(nccl_.all_reduce(memory_, memory_, 16, kF32, kNcclSum, a, streams_[0]),
            NcclResult::kInvalidUsage);
  Expect("no group");
  EXPECT_EQ(nccl_.group_end(), NcclResult::kInvalidUsage);
  Expect("no group");
  (void)nccl_.group_start();
  (void)nccl_.group_start();
  Expect("group in a group");
  (void)nccl_.group_end();
  EXPECT_EQ(nccl_.all_reduce(memory_, memory_, 0, kF32, kNcclSum, a, streams_[0]),
            NcclResult::kSuccess);
  EXPECT_EQ(nccl_.all_reduce(memory_, memory_, 0, kF32, kNcclSum, a, streams_[1]),
            NcclResult::kInvalidUsage);
  Expect("two streams");
  EXPECT_EQ(nccl_.all_reduce(memory_, memory_, 0, kF32, kNcclSum, b, streams_[0]),
            NcclResult::kInvalidUsage);
  Expect("two communicators");
  (void)nccl_.group_end();
  // It is in progress for a moment.
  EXPECT_EQ(Sum(a), NcclResult::kInvalidUsage);
  Expect("in progress");
}

TEST_F(FakeNccl, ThePartOfARankIsInItsPlaceOrElsewhere) {
  const NcclComm comm = Pair()[1];
  for (const std::ptrdiff_t at : {0, 32, 96}) {
    (void)nccl_.group_start();
    EXPECT_EQ(nccl_.reduce_scatter(memory_, memory_ + at, 16, kF32, kNcclSum, comm, streams_[0]),
              NcclResult::kInvalidUsage);
    Expect("overlapping buffers");
    EXPECT_EQ(nccl_.all_gather(memory_ + at, memory_, 16, kF32, comm, streams_[0]),
              NcclResult::kInvalidUsage);
    Expect("overlapping buffers");
    EXPECT_EQ(nccl_.all_gather(memory_, memory_ + 4096 - 64, 16, kF32, comm, streams_[0]),
              NcclResult::kInvalidArgument);
    Expect("not memory of the device");
    (void)nccl_.group_end();
  }
  EXPECT_EQ(gpu_.Refusals(), "");
}

TEST_F(FakeNccl, WhatRanksMustBringAlike) {
  const auto sum = [&](std::size_t count, NcclType type, int stream) {
    return [=, this](NcclComm comm) { Sum(comm, count, type, kNcclSum, nullptr, stream); };
  };
  const auto reduce = [&](int root, int stream) {
    return [=, this](NcclComm comm) { Reduce(comm, root, stream); };
  };
  ExpectRefusedTogether(sum(16, kF32, 0), sum(17, kF32, 1), "other count");
  ExpectRefusedTogether(sum(16, kF32, 0), sum(16, NcclType::kBFloat16, 1), "other data type");
  ExpectRefusedTogether(sum(16, kF32, 0), reduce(0, 1), "other order of operations");
  ExpectRefusedTogether(reduce(1, 0), reduce(0, 1), "other root");
}

TEST_F(FakeNccl, WhatABrokenOneForbids) {
  auto [a, b] = Pair();
  EXPECT_EQ(nccl_.comm_revoke(a, 1), NcclResult::kInvalidUsage);
  Expect("revoke flags");
  EXPECT_EQ(nccl_.comm_revoke(a, 0), NcclResult::kSuccess);
  EXPECT_EQ(nccl_.comm_revoke(a, 0), NcclResult::kInvalidArgument);
  Expect("second revoke");
  EXPECT_EQ(Sum(a), NcclResult::kInvalidUsage);
  Expect("after a revoke");
  EXPECT_EQ(finalize_(a), NcclResult::kInvalidUsage);
  Expect("after a revoke");
  EXPECT_EQ(destroy_(a), NcclResult::kInvalidUsage);
  Expect("destroy after an error");
  EXPECT_EQ(destroy_(b), NcclResult::kInvalidUsage);
  Expect("destroy before finalize");
  EXPECT_EQ(finalize_(b), NcclResult::kSuccess);
  EXPECT_EQ(Sum(b), NcclResult::kInvalidUsage);
  Expect("after finalize");
  EXPECT_EQ(destroy_(b), NcclResult::kSuccess);
  Forget(b);
  EXPECT_EQ(nccl_.comm_abort(b), NcclResult::kInvalidArgument);
  Expect("dead communicator");
  const FakeScript remote{FakeFault::kOpRemoteError, 0, 0};
  gpu_.play(&remote);
  auto [c, d] = Pair();
  Sum(c);
  while (State(c) != NcclResult::kRemoteError) std::this_thread::yield();
  EXPECT_EQ(Sum(c), NcclResult::kInvalidUsage);
  Expect("after an error");
  NcclConfig config = nccl_.Config();
  NcclComm made = nullptr;
  Sum(d, 16, kF32, kNcclSum, nullptr, 1);
  Await(d);
  EXPECT_EQ(nccl_.comm_split(d, 0, 0, &made, &config), NcclResult::kInvalidUsage);
  Expect("split");
}

TEST_F(FakeNccl, ThatCommunicatorsWhichWaitAreAbortedTogether) {
  std::array<NcclComm, 2> ranks{};
  for (int i = 0; i < 2; ++i) {
    ranks.at(i) = Pair()[0];
    Sum(ranks.at(i), 16, kF32, kNcclSum, nullptr, i);
  }
  (void)nccl_.group_start();
  for (const NcclComm comm : ranks) (void)nccl_.comm_abort(comm);
  (void)nccl_.group_end();
  EXPECT_EQ(gpu_.Refusals(), "");
  for (const NcclComm comm : ranks) Forget(comm);
  for (int i = 0; i < 2; ++i) {
    ranks.at(i) = Pair()[0];
    Sum(ranks.at(i), 16, kF32, kNcclSum, nullptr, i);
  }
  (void)nccl_.comm_abort(ranks[0]);
  Expect("aborts one by one");
  Forget(ranks[0]);
}

TEST_F(FakeNccl, ASecondThreadInside) {
  const FakeScript blocks{FakeFault::kCallBlocks, 0, 0, 100'000};
  gpu_.play(&blocks);
  const NcclComm comm = Pair()[0];
  std::thread inside([&] { Sum(comm); });
  while (gpu_.Refusals().empty()) (void)State(comm);
  Expect("two threads");
  gpu_.release();
  inside.join();
}

}  // namespace
}  // namespace regroup::worker
