// A CUDA device over a runtime without a GPU, whose streams are threads.

#include "worker/cuda/cuda_device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/worker/fake_gpu/open_fake_gpu.h"
#include "worker/cuda_kernels/launch.h"

namespace regroup::worker {
namespace {

using std::chrono::milliseconds;

class CudaDeviceTest : public testing::Test {
 protected:
  ~CudaDeviceTest() override { EXPECT_EQ(gpu_.Refusals(), ""); }
  FakeGpu gpu_;
  const std::unique_ptr<CudaDevice> device_ = *CudaDevice::Create(gpu_.cuda(), 0);
};

TEST_F(CudaDeviceTest, MemoryIsZeroedAlignedAndGivenBack) {
  for (const MemoryKind kind : {MemoryKind::kDevice, MemoryKind::kShared}) {
    absl::StatusOr<Arena> arena = device_->Allocate(kind, 1000);
    ASSERT_TRUE(arena.ok()) << arena.status();
    EXPECT_EQ(arena->size_bytes(), 1024u);
    const std::span<std::byte> bytes = arena->Take<std::byte>(1000);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes.data()) % Arena::kAlignment, 0u);
    for (const std::byte b : bytes) ASSERT_EQ(b, std::byte(0));
    EXPECT_EQ(gpu_.live(), 1);
  }
  EXPECT_EQ(gpu_.live(), 0);
  EXPECT_EQ(device_->Allocate(MemoryKind::kDevice, 0)->size_bytes(), 0u);
}

TEST_F(CudaDeviceTest, TooLittleMemoryIsSaidWithTheSize) {
  gpu_.set_memory(4096);
  const auto arena = device_->Allocate(MemoryKind::kDevice, 5000);
  EXPECT_EQ(arena.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(arena.status().message(),
            "no memory for an arena of 5000 bytes on GPU 0: cudaMalloc: out of memory (CUDA error "
            "2)");
  EXPECT_FALSE(device_->Allocate(MemoryKind::kDevice, ~std::size_t(0)).ok());
  EXPECT_TRUE(device_->Allocate(MemoryKind::kShared, 4096).ok());
}

TEST_F(CudaDeviceTest, AMissingGpuOrDriverIsASentence) {
  EXPECT_EQ(CudaDevice::Create(gpu_.cuda(), 1).status(),
            absl::UnavailableError("there is no GPU 1 among the 1 that this process may use"));
  gpu_.set_devices(0, kCudaErrorInsufficientDriver);
  EXPECT_EQ(CudaDevice::Create(gpu_.cuda(), 0).status(),
            absl::UnavailableError("cudaGetDeviceCount: CUDA driver version is insufficient for "
                                   "CUDA runtime version (CUDA error 35)"));
}

TEST_F(CudaDeviceTest, AStreamKeepsItsOrderAndAnotherWaitsForWhatWasRecorded) {
  std::vector<int> seen;
  std::atomic<bool> open = false;
  const auto first = device_->NewStream(StreamKind::kCompute);
  const auto second = device_->NewStream(StreamKind::kMove);
  first->Run([&] {
    while (!open) std::this_thread::yield();
    seen.push_back(1);
  });
  const Event event = first->Record();
  second->Wait(event);
  second->Run([&] { seen.push_back(2); });
  first->Run([] { std::this_thread::sleep_for(milliseconds(50)); });  // Nobody waits for it.
  open = true;
  ASSERT_TRUE(second->Await().ok());
  EXPECT_EQ(seen, (std::vector<int>{1, 2}));
  ASSERT_TRUE(first->Await(event).ok());
  ASSERT_TRUE(first->Await().ok());
}

TEST_F(CudaDeviceTest, CopiesAndZeroesInOrder) {
  const auto stream = device_->NewStream(StreamKind::kCompute);
  Arena arena = *device_->Allocate(MemoryKind::kDevice, 64);
  std::byte* memory = arena.Take<std::byte>(64).data();
  std::vector<char> text(64, 'x'), back(64, 'y');
  stream->Copy(memory, text.data(), 64);
  stream->Zero(memory + 32, 16);
  stream->Copy(back.data(), memory, 64);
  stream->Copy(back.data(), memory, 0);
  ASSERT_TRUE(stream->Await().ok());
  EXPECT_EQ(std::string(back.begin(), back.end()),
            std::string(32, 'x') + std::string(16, '\0') + std::string(16, 'x'));
}

TEST_F(CudaDeviceTest, AFailureEndsItsStreamAndThoseThatWaitForIt) {
  bool later = false;
  const auto first = device_->NewStream(StreamKind::kCompute);
  const auto second = device_->NewStream(StreamKind::kMove);
  first->Run([] { return absl::DataLossError("gone"); });
  first->Run([&] { later = true; });
  second->Wait(first->Record());
  EXPECT_EQ(second->Await(), absl::DataLossError("gone"));
  EXPECT_EQ(first->Await(), absl::DataLossError("gone"));
  EXPECT_FALSE(later);
}

// Events are taken again once they have passed, however many pieces there are.
TEST_F(CudaDeviceTest, ALongStreamNeedsFewEvents) {
  const auto stream = device_->NewStream(StreamKind::kCompute);
  int count = 0;
  for (int i = 0; i < 1000; ++i) {
    stream->Run([&] { ++count; });
    ASSERT_TRUE(stream->Await().ok());
  }
  EXPECT_EQ(count, 1000);
  EXPECT_LE(gpu_.live(), 4);
}

// Of a queue that is full, CUDA lets the caller wait inside of it: no watch could end that.
TEST_F(CudaDeviceTest, WhoIsFarAheadOfAStreamWaitsOutsideOfCuda) {
  const auto stream = device_->NewStream(StreamKind::kCompute);
  auto* const cuda = static_cast<CudaStream*>(stream.get());
  Arena memory = *device_->Allocate(MemoryKind::kShared, 1024);
  void* const bytes = memory.Take<std::byte>(1024).data();
  std::atomic<bool> go{false};
  const auto hold = [&] {
    stream->Run([&] {
      while (!go) std::this_thread::sleep_for(milliseconds(1));
    });
  };
  hold();
  std::atomic<int> begun{0};
  std::thread ahead([&] {
    for (; begun < 3000; ++begun) {
      stream->Zero(bytes, 1024);
      if (begun % 3 == 0) (void)stream->Record();
    }
  });
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_LT(begun, static_cast<int>(CudaStream::kMostAhead));
  go = true;
  ahead.join();
  EXPECT_EQ(stream->Await(), absl::OkStatus());
  // Nor does it wait for what a failure has ended.
  go = false;
  hold();
  std::thread fails([&] {
    std::this_thread::sleep_for(milliseconds(50));
    cuda->progress()->Fail(absl::UnavailableError("a rank has died"));
  });
  for (int i = 0; i < 3000; ++i) stream->Run([] {});
  fails.join();
  go = true;
  EXPECT_EQ(stream->Await(), absl::UnavailableError("a rank has died"));
}

TEST_F(CudaDeviceTest, TheEndOfAStreamWaitsForThePieceUnderWayAndBeginsNone) {
  std::atomic<int> begun = 0, ended = 0;
  {
    const auto stream = device_->NewStream(StreamKind::kCompute);
    for (int i = 0; i < 3; ++i) {
      stream->Run([&] {
        ++begun;
        std::this_thread::sleep_for(milliseconds(100));
        ++ended;
      });
    }
    while (begun == 0) std::this_thread::yield();
  }
  EXPECT_EQ(begun, 1);
  EXPECT_EQ(ended, 1);
  EXPECT_EQ(gpu_.live(), 0);
}

// Who watches over a piece that may never be over says what is wrong in two steps.
TEST_F(CudaDeviceTest, WhoeverAwaitsAFailingPieceLearnsOfItAtTheEnd) {
  std::atomic<bool> open = false, told = false;
  const auto made = device_->NewStream(StreamKind::kMove);
  auto& stream = dynamic_cast<CudaStream&>(*made);
  stream.Run([&] {
    while (!open) std::this_thread::yield();
  });
  const Event event = stream.Record();
  EXPECT_FALSE(stream.progress()->IsOver(event.work));
  ASSERT_TRUE(stream.progress()->BeginFailure(event.work));
  const auto other = device_->NewStream(StreamKind::kCompute);
  other->Wait(event);
  std::thread awaits([&] {
    EXPECT_EQ(other->Await(), absl::UnavailableError("a rank died"));
    told = true;
  });
  open = true;
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_TRUE(stream.progress()->IsOver(event.work));
  EXPECT_FALSE(told);
  stream.progress()->EndFailure(absl::UnavailableError("a rank died"));
  awaits.join();
  EXPECT_EQ(stream.Await(), absl::UnavailableError("a rank died"));
  EXPECT_FALSE(stream.progress()->BeginFailure(event.work));  // It is over.
}

// Its progress may be asked for when the stream is no more.
TEST_F(CudaDeviceTest, ProgressOutlivesItsStream) {
  std::shared_ptr<CudaProgress> progress;
  std::uint64_t work = 0;
  {
    CudaStream stream(gpu_.cuda());
    stream.Run([] {});
    work = stream.Record().work;
    progress = stream.progress();
  }
  EXPECT_TRUE(progress->IsOver(work));
}

// Asked for once, and for more: no capture may ask.
TEST_F(CudaDeviceTest, AKernelIsGivenLeaveForItsMemoryOnce) {
  static std::vector<int> given;
  given = {};
  CudaApi api = gpu_.cuda();
  api.func_set_attribute = [](const void*, int, int bytes) {
    given.push_back(bytes);
    return kCudaSuccess;
  };
  api.launch_kernel = [](const void*, CudaDim3, CudaDim3, void**, std::size_t, CudaStreamHandle) {
    return kCudaSuccess;
  };
  CudaStream stream(api);
  const std::byte argument[1] = {};
  for (const int bytes : {60'000, 60'000, 50'000, 70'000, 70'000}) {
    cuda::PutOnStream(stream, &given,
                      {.blocks = 1, .threads = 1, .block_bytes = static_cast<std::size_t>(bytes)},
                      argument);
  }
  EXPECT_EQ(stream.Await(), absl::OkStatus());
  EXPECT_EQ(given, (std::vector<int>{60'000, 70'000}));
}

// What a runtime was asked for by Launch; it answers with `error`.
struct Asked {
  const void* kernel = nullptr;
  CudaDim3 blocks, threads;
  std::size_t bytes = 0;
  int argument = 0;
  int launches = 0, allowed_bytes = 0, error = kCudaSuccess;
};
Asked g_asked;

TEST_F(CudaDeviceTest, AKernelIsLaunchedWithItsGeometryAndMemory) {
  CudaApi api = gpu_.cuda();
  api.func_set_attribute = [](const void*, int attribute, int value) {
    EXPECT_EQ(attribute, kCudaFuncMaxDynamicSharedMemory);
    g_asked.allowed_bytes = value;
    return kCudaSuccess;
  };
  api.launch_kernel = [](const void* kernel, CudaDim3 blocks, CudaDim3 threads, void** arguments,
                         std::size_t bytes, CudaStreamHandle) {
    const int launches = g_asked.launches + 1, allowed = g_asked.allowed_bytes;
    g_asked = {kernel,   blocks,  threads,      bytes, *static_cast<int*>(arguments[0]),
               launches, allowed, g_asked.error};
    return g_asked.error;
  };
  g_asked = {};
  const auto device = *CudaDevice::Create(api, 0);
  CudaStream stream(api);
  const int kernel = 0;
  int number = 41;
  const auto argument = std::as_bytes(std::span(&number, 1));
  const cuda::Geometry geometry{
      .blocks = 7, .blocks_y = 5, .threads = 64, .threads_y = 2, .block_bytes = 48 << 10};
  cuda::PutOnStream(stream, &kernel, geometry, argument);
  number = 42;  // It is copied.
  stream.Submit();
  EXPECT_EQ(g_asked.kernel, &kernel);
  EXPECT_EQ(g_asked.argument, 41);
  EXPECT_EQ(g_asked.blocks.x, 7u);
  EXPECT_EQ(g_asked.blocks.y, 5u);
  EXPECT_EQ(g_asked.threads.x, 64u);
  EXPECT_EQ(g_asked.threads.y, 2u);
  EXPECT_EQ(g_asked.bytes, 48u << 10);
  EXPECT_EQ(g_asked.allowed_bytes, 0);  // Needs no leave.
  cuda::PutOnStream(stream, &kernel, {.blocks = 1, .threads = 1, .block_bytes = (48 << 10) + 1},
                    argument);
  stream.Submit();
  EXPECT_EQ(g_asked.allowed_bytes, (48 << 10) + 1);
  EXPECT_EQ(g_asked.launches, 2);
  cuda::PutOnStream(stream, &kernel, {.blocks = 0, .threads = 1}, argument);
  EXPECT_EQ(g_asked.launches, 2);
  EXPECT_EQ(stream.Await(), absl::OkStatus());

  g_asked.error = kCudaErrorMemoryAllocation;
  cuda::PutOnStream(stream, &kernel, {.blocks = 1, .threads = 1}, argument);
  cuda::PutOnStream(stream, &kernel, {.blocks = 1, .threads = 1}, argument);
  EXPECT_EQ(stream.Await(),
            absl::ResourceExhaustedError("cudaLaunchKernel: out of memory (CUDA error 2)"));
  cuda::PutOnStream(stream, &kernel, {.blocks = 1, .threads = 1}, argument);
  stream.Submit();
  EXPECT_EQ(g_asked.launches, 3);  // None after a failure.
  for (const cuda::Geometry& large :
       {cuda::Geometry{.blocks = std::int64_t{1} << 31, .threads = 1},
        cuda::Geometry{.blocks = 1, .blocks_y = 65536, .threads = 1}}) {
    CudaStream other(api);
    cuda::PutOnStream(other, &kernel, large, argument);
    EXPECT_EQ(g_asked.launches, 3);
    EXPECT_EQ(other.Await(),
              absl::InvalidArgumentError("a tensor is too large for one launch on a GPU"));
  }
}

TEST_F(CudaDeviceTest, AKernelIsAwaitedAndItsFailureToBeSetUpIsTheStreams) {
  static const CudaApi* fake = nullptr;
  static std::atomic<bool> done;
  fake = &gpu_.cuda(), done = false;
  CudaApi api = gpu_.cuda();
  api.launch_kernel = [](const void*, CudaDim3, CudaDim3, void**, std::size_t,
                         CudaStreamHandle stream) {
    const auto kernel = [](void*) {
      std::this_thread::sleep_for(milliseconds(50));
      done = true;
    };
    return fake->launch_host_func(stream, kernel, nullptr);
  };
  api.func_set_attribute = [](const void*, int, int) { return kCudaErrorMemoryAllocation; };
  CudaStream stream(api);
  const std::byte argument[1] = {};
  cuda::PutOnStream(stream, &done, {.blocks = 1, .threads = 1}, argument);
  EXPECT_EQ(stream.Await(), absl::OkStatus());
  EXPECT_TRUE(done);
  done = false;
  cuda::PutOnStream(stream, &done, {.blocks = 1, .threads = 1, .block_bytes = 50 << 10}, argument);
  EXPECT_EQ(stream.Await(),
            absl::ResourceExhaustedError("cudaFuncSetAttribute: out of memory (CUDA error 2)"));
  EXPECT_FALSE(done);
}

// A kernel of a fake: adds to a number, and says that it did.
struct AddTo {
  std::vector<int>* seen;
  int number;
};
std::function<void()> WorkOfAddTo(const void* /*kernel*/, FakeDim3 /*blocks*/, FakeDim3 /*threads*/,
                                  void** arguments, std::size_t /*block_bytes*/) {
  return [own = *static_cast<const AddTo*>(arguments[0])] { own.seen->push_back(own.number); };
}

class GraphsTest : public CudaDeviceTest {
 protected:
  GraphsTest() {
    gpu_.set_kernels(WorkOfAddTo);
    stream_ = std::make_unique<CudaStream>(gpu_.cuda());
    memory_ = *device_->Allocate(MemoryKind::kShared, 1024);
    bytes_ = memory_.Take<std::byte>(1024).data();
  }
  void Add(int number, std::size_t block_bytes = 0) {
    AddTo add;
    std::memset(static_cast<void*>(&add), 0, sizeof add);  // Also what lies behind its number.
    add.seen = &seen_, add.number = number;
    cuda::PutOnStream(*stream_, &seen_, {.blocks = 1, .threads = 1, .block_bytes = block_bytes},
                      std::as_bytes(std::span(&add, 1)));
  }
  // What a step does: so many numbers from this one, and a zero between them.
  void Step(int first, int count = 3) {
    for (int i = 0; i < count; ++i) {
      Add(first + i);
      if (i == 0) stream_->Zero(bytes_, 1024);
    }
    stream_->Submit();
  }
  std::vector<int> Seen() {
    EXPECT_EQ(stream_->Await(), absl::OkStatus());
    return std::exchange(seen_, {});
  }
  std::vector<int> seen_;
  Arena memory_;
  std::byte* bytes_ = nullptr;
  std::unique_ptr<CudaStream> stream_;
};

TEST_F(GraphsTest, WhatComesTheThirdTimeComesAsOne) {
  for (int step = 1; step <= 5; ++step) {
    Step(7);
    *bytes_ = std::byte(9);
    EXPECT_EQ(Seen(), (std::vector<int>{7, 8, 9}));
    EXPECT_EQ(gpu_.captures(), step == 3 ? 1 : 0) << step;
    EXPECT_EQ(gpu_.graph_launches(), step >= 3 ? 1 : 0) << step;
  }
  Step(7);
  EXPECT_EQ(Seen().size(), 3u);
  EXPECT_EQ(*bytes_, std::byte(0));
}

TEST_F(GraphsTest, WhatDiffersIsAnother) {
  for (int step = 0; step < 4; ++step) {
    Step(7);
    Step(step == 3 ? 8 : 7, 4);
    Add(step);  // An optimizer's, whose arguments are never the same.
    Add(step);
    stream_->Submit();
  }
  EXPECT_EQ(Seen(), (std::vector<int>{7, 8, 9, 7, 8, 9,  10, 0, 0,  //
                                      7, 8, 9, 7, 8, 9,  10, 1, 1,  //
                                      7, 8, 9, 7, 8, 9,  10, 2, 2,  //
                                      7, 8, 9, 8, 9, 10, 11, 3, 3}));
  EXPECT_EQ(gpu_.captures(), 2);
  EXPECT_EQ(gpu_.graph_launches(), 3);
  // So is one that zeroes other bytes, or whose block has other memory.
  for (int step = 0; step < 3; ++step) {
    for (const std::size_t block_bytes : {0, 1, 50 << 10}) {
      Add(1, block_bytes);
      stream_->Zero(bytes_, 1 + static_cast<std::size_t>(step));
      stream_->Submit();
    }
  }
  EXPECT_EQ(Seen().size(), 9u);
  EXPECT_EQ(gpu_.captures(), 0);
}

TEST_F(GraphsTest, OnePieceIsNoGraph) {
  for (int step = 0; step < 5; ++step) {
    Add(1);
    stream_->Submit();
  }
  EXPECT_EQ(Seen().size(), 5u);
  EXPECT_EQ(gpu_.captures(), 0);
}

// Whatever else there is comes behind what was put off.
TEST_F(GraphsTest, OtherWorkComesInItsOrder) {
  std::vector<std::byte> from(1024, std::byte(5)), back(1024);
  for (int step = 0; step < 4; ++step) {
    Add(1);
    stream_->Zero(bytes_, 1024);
    stream_->Copy(back.data(), bytes_, 1024);
    Add(2);
    Add(3);
    stream_->Run([&] { seen_.push_back(static_cast<int>(back[3])); });
    stream_->Copy(bytes_, from.data(), 1024);
    Add(4);
    Add(5);
    EXPECT_TRUE(stream_->MakeRoom());
    EXPECT_EQ(gpu_.cuda().launch_host_func(
                  stream_->handle(),
                  [](void* seen) { static_cast<std::vector<int>*>(seen)->push_back(6); }, &seen_),
              kCudaSuccess);
    stream_->Began();
    EXPECT_EQ(Seen(), (std::vector<int>{1, 2, 3, 0, 4, 5, 6}));
  }
  EXPECT_EQ(gpu_.captures(), 3);
  // An event, and a stream that waits for it.
  CudaStream other(gpu_.cuda());
  Add(1);
  other.Wait(stream_->Record());
  other.Run([&] { seen_.push_back(2); });
  EXPECT_EQ(other.Await(), absl::OkStatus());
  Add(3);
  stream_->Wait(other.Record());
  EXPECT_EQ(Seen(), (std::vector<int>{1, 2, 3}));
}

TEST_F(GraphsTest, WhatIsPutOffHasABound) {
  for (int step = 0; step < 4; ++step) {
    for (int i = 0; i < 2 * static_cast<int>(CudaStream::kMostDeferred); ++i) Add(i);
    EXPECT_EQ(Seen().size(), 2 * CudaStream::kMostDeferred);
  }
  EXPECT_EQ(gpu_.captures(), 2);
  EXPECT_EQ(gpu_.graph_launches(), 4);
}

TEST_F(GraphsTest, WhereThereCanBeNoneEachComesByItself) {
  for (const FakeCapture fails :
       {FakeCapture::kCannotBegin, FakeCapture::kRefusesWork, FakeCapture::kCannotEnd,
        FakeCapture::kCannotInstantiate, FakeCapture::kCannotLaunch}) {
    stream_ = std::make_unique<CudaStream>(gpu_.cuda());
    gpu_.play_capture(fails);
    for (int step = 0; step < 6; ++step) {
      Step(7);
      EXPECT_EQ(Seen(), (std::vector<int>{7, 8, 9})) << step;
    }
    // None is tried again.
    EXPECT_EQ(gpu_.graph_launches(), fails == FakeCapture::kCannotLaunch ? 1 : 0);
    EXPECT_EQ(gpu_.captures(), fails == FakeCapture::kCannotBegin ? 0 : 1);
  }
  gpu_.play_capture(FakeCapture::kRight);
  CudaApi lacks = gpu_.cuda();
  lacks.stream_begin_capture = nullptr;
  for (const bool graphs : {false, true}) {
    stream_ = std::make_unique<CudaStream>(graphs ? lacks : gpu_.cuda(), nullptr, Arena(), graphs);
    for (int step = 0; step < 4; ++step) Step(7);
    EXPECT_EQ(Seen().size(), 12u);
    EXPECT_EQ(gpu_.captures(), 0);
    stream_ = nullptr;
  }
}

// Graphs that work go on where another one cannot be made.
TEST_F(GraphsTest, WhatCannotBeMadeLeavesTheOthers) {
  for (int step = 0; step < 3; ++step) Step(7);
  gpu_.play_capture(FakeCapture::kCannotEnd);
  for (int step = 0; step < 3; ++step) Step(8);
  gpu_.play_capture(FakeCapture::kRight);
  EXPECT_EQ(Seen().size(), 18u);
  EXPECT_EQ(gpu_.graph_launches(), 1);
  Step(7);
  Step(8);
  EXPECT_EQ(Seen(), (std::vector<int>{7, 8, 9, 8, 9, 10}));
  EXPECT_EQ(gpu_.graph_launches(), 1);
}

// However many pieces a step has, it is cut in the same places: its room is looked for in between.
TEST_F(GraphsTest, ALongTrainingHasTheGraphsOfItsThirdStep) {
  for (int step = 0; step < 100; ++step) {
    Step(1, 6);
    Step(7, 4);
  }
  EXPECT_EQ(Seen().size(), 1000u);
  EXPECT_EQ(gpu_.captures(), 2);
  EXPECT_EQ(gpu_.graph_launches(), 196);
}

// Each of these, alone, makes of two pieces others than they were.
TEST_F(GraphsTest, EverythingThatMattersIsCompared) {
  static const int kOne = 0, kOther = 0;
  struct Segment {
    const int* kernel = &kOne;
    int blocks = 1, blocks_y = 1, threads = 1, threads_y = 1, number = 1;
    std::size_t block_bytes = 0, zero_at = 0, zero_bytes = 64;
    bool zeroes_first = false;
  };
  const auto put = [&](const Segment& s) {
    AddTo add;
    std::memset(static_cast<void*>(&add), 0, sizeof add);
    add.seen = &seen_, add.number = s.number;
    if (s.zeroes_first) stream_->Zero(bytes_ + s.zero_at, s.zero_bytes);
    cuda::PutOnStream(*stream_, s.kernel,
                      {.blocks = s.blocks,
                       .blocks_y = s.blocks_y,
                       .threads = s.threads,
                       .threads_y = s.threads_y,
                       .block_bytes = s.block_bytes},
                      std::as_bytes(std::span(&add, 1)));
    if (!s.zeroes_first) stream_->Zero(bytes_ + s.zero_at, s.zero_bytes);
    stream_->Submit();
  };
  std::vector<Segment> others(10);
  others[0].kernel = &kOther;
  others[1].blocks = others[2].blocks_y = others[3].threads = others[4].threads_y = 2;
  others[5].number = 2;
  others[6].block_bytes = 8;
  others[7].zero_at = 64;
  others[8].zero_bytes = 128;
  others[9].zeroes_first = true;
  for (int step = 0; step < 2; ++step) put({});
  for (const Segment& other : others) put(other);
  EXPECT_EQ(Seen().size(), 12u);
  EXPECT_EQ(gpu_.captures(), 0);
  put({});
  EXPECT_EQ(Seen().size(), 1u);
  EXPECT_EQ(gpu_.captures(), 1);
}

// Nor does what came twice, and is forgotten where there is too much of it.
TEST_F(GraphsTest, WhatIsRememberedHasABound) {
  const int most = static_cast<int>(Repeats::kMostSeen), all = most + 76;
  for (int i = 0; i < all; ++i) {
    for (int step = 0; step < 2; ++step) Step(10 * i);
  }
  for (int i = 0; i < all; ++i) Step(10 * i);
  EXPECT_EQ(Seen().size(), static_cast<std::size_t>(9 * all));
  EXPECT_EQ(gpu_.captures(), all - most);
}

// Beside much that never comes again, what does is found in the end.
TEST_F(GraphsTest, WhatComesOnceHoldsNothingUp) {
  int other = 1'000'000;
  for (int step = 0; step < 12; ++step) {
    for (int i = 0; i < 300; ++i) {
      Step(10 * i);
      for (int once = 0; once < 2; ++once) Step(other += 10);
    }
  }
  EXPECT_EQ(Seen().size(), 3u * 12 * 900);
  EXPECT_EQ(gpu_.captures(), 300);
}

TEST_F(GraphsTest, GraphsHaveABound) {
  const int live = gpu_.live(), most = static_cast<int>(Repeats::kMostGraphs);
  for (int i = 0; i < most + 10; ++i) {
    for (int step = 0; step < 4; ++step) Step(10 * i);
  }
  EXPECT_EQ(Seen().size(), 12 * (Repeats::kMostGraphs + 10));
  EXPECT_EQ(gpu_.captures(), most);
  EXPECT_EQ(gpu_.graph_launches(), 2 * most);
  EXPECT_LE(gpu_.live(), live + most + 10);
  stream_ = nullptr;
  EXPECT_LE(gpu_.live(), live);
}

TEST_F(GraphsTest, NothingThatWasPutOffBeginsAfterAFailure) {
  stream_->Run([] { return absl::DataLossError("gone"); });
  EXPECT_EQ(stream_->Await(), absl::DataLossError("gone"));
  for (int step = 0; step < 4; ++step) Step(7);
  EXPECT_EQ(stream_->Await(), absl::DataLossError("gone"));
  EXPECT_EQ(seen_.size(), 0u);
  // Nor as its stream ends.
  stream_ = std::make_unique<CudaStream>(gpu_.cuda());
  Add(1);
  stream_ = nullptr;
  EXPECT_EQ(seen_.size(), 0u);
}

TEST_F(CudaDeviceTest, WhatIsRefusedFailsTheStream) {
  CudaStream stream(gpu_.cuda());
  cuda::Refuse(stream, "too wide");
  EXPECT_EQ(stream.Await(), absl::InvalidArgumentError("too wide"));
}

}  // namespace
}  // namespace regroup::worker
