// Products by cuBLASLt, over one that multiplies on the CPU and refuses what the real one forbids.

#include "worker/cuda/products.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/common/io/temp_directory.h"
#include "tests/worker/fake_gpu/open_fake_gpu.h"
#include "worker/cuda/cuda_device.h"
#include "worker/cuda_kernels/launch.h"

namespace regroup::worker {
namespace {

constexpr char kHeuristic[] = "cublasLtMatmulAlgoGetHeuristic";

class ProductsTest : public testing::Test {
 protected:
  ProductsTest() { device_->SetProducts(*CublasLt::Create(*OpenCublasLt(FakeGpu::path()))); }
  ~ProductsTest() override {
    EXPECT_EQ(gpu_.Refusals(), "");
    device_.reset();
    EXPECT_EQ(gpu_.live_products(), 0);
    EXPECT_EQ(gpu_.live(), 0);
  }
  std::unique_ptr<Stream> NewStream() { return device_->NewStream(StreamKind::kCompute); }
  static bool Multiply(Stream& stream, const MatrixProduct& product) {
    auto& on = static_cast<CudaStream&>(stream);
    return on.products()->Multiply(on, product);
  }

  FakeGpu gpu_;
  std::unique_ptr<CudaDevice> device_ = *CudaDevice::Create(gpu_.cuda(), 0);
};

TEST_F(ProductsTest, OfEveryKindAreRightAndAskedForOnce) {
  EXPECT_EQ(CublasLt::Check(*device_), absl::OkStatus());
  EXPECT_EQ(gpu_.products_calls(kHeuristic), CublasLt::kChecked);
  EXPECT_EQ(CublasLt::Check(*device_), absl::OkStatus());
  EXPECT_EQ(gpu_.products_calls(kHeuristic), 0);
  EXPECT_EQ(gpu_.products_calls("cublasLtMatmul"), 2 * CublasLt::kChecked);
}

// (m, k) and (k, n) of every order, at addresses that only hold a number.
TEST_F(ProductsTest, OfOddSizesAnywhereInMemory) {
  const auto stream = NewStream();
  for (const std::int64_t m : {1, 3, 8}) {
    for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{1, 5}, {7, 1}, {16, 24}}) {
      for (int order = 0; order < 4; ++order) {
        for (const std::int64_t shift : {0, 1}) {
          Arena arena = *device_->Allocate(MemoryKind::kShared, 8192);
          BFloat16* const a = arena.Take<BFloat16>(200).data() + shift;
          BFloat16* const b = arena.Take<BFloat16>(400).data() + shift;
          float* const c = arena.Take<float>(200).data() + shift;
          MatrixProduct product{.type = DType::kBF16,
                                .result = DType::kF32,
                                .m = m,
                                .n = n,
                                .k = k,
                                .a = a,
                                .b = b,
                                .a_transposed = order % 2 == 1,
                                .b_transposed = order / 2 == 1,
                                .c = c,
                                .add = true};
          for (std::int64_t i = 0; i < m * k; ++i) a[i] = BFloat16(float(i % 7));
          for (std::int64_t i = 0; i < k * n; ++i) b[i] = BFloat16(float(i % 5));
          for (std::int64_t i = 0; i < m * n; ++i) c[i] = float(i);
          ASSERT_TRUE(Multiply(*stream, product));
          ASSERT_EQ(stream->Await(), absl::OkStatus());
          for (std::int64_t i = 0; i < m; ++i) {
            for (std::int64_t j = 0; j < n; ++j) {
              float sum = float(i * n + j);
              for (std::int64_t l = 0; l < k; ++l) {
                sum += float(a[product.a_transposed ? l * m + i : i * k + l]) *
                       float(b[product.b_transposed ? j * k + l : l * n + j]);
              }
              ASSERT_EQ(c[i * n + j], sum) << m << " " << n << " " << k << " order " << order;
            }
          }
        }
      }
    }
  }
}

// At a multiple of 16 bytes, or of an element: it is asked for once each.
TEST_F(ProductsTest, ABiasMayBeginAnywhereAndSoMayX) {
  const auto stream = NewStream();
  Arena arena = *device_->Allocate(MemoryKind::kShared, 4096);
  const Half* const a = arena.Take<Half>(64).data();
  const Half* const b = arena.Take<Half>(64).data();
  Half* const bias = arena.Take<Half>(64).data();
  Half* const c = arena.Take<Half>(64).data();
  for (int i = 0; i < 64; ++i) bias[i] = Half(float(i));
  for (const int at : {0, 8, 1, 2, 4, 16}) {
    ASSERT_TRUE(Multiply(*stream, {.type = DType::kF16,
                                   .result = DType::kF16,
                                   .m = 2,
                                   .n = 8,
                                   .k = 8,
                                   .a = a,
                                   .b = b,
                                   .bias = bias + at,
                                   .c = c}));
    ASSERT_EQ(stream->Await(), absl::OkStatus());
    EXPECT_EQ(float(c[15]), float(at + 7));
    ASSERT_TRUE(Multiply(*stream, {.type = DType::kF16,
                                   .result = DType::kF16,
                                   .m = 2,
                                   .n = 8,
                                   .k = 8,
                                   .a = a,
                                   .b = b,
                                   .c = c,
                                   .x = bias + at}));
    ASSERT_EQ(stream->Await(), absl::OkStatus());
  }
  EXPECT_EQ(gpu_.products_calls(kHeuristic), 4);
}

// What is kept of x must be a multiple of 8 wide; the rest is own kernels'.
// Each of these, alone, makes of two products others than they were, which no graph may do.
TEST_F(ProductsTest, WhatMattersInAGraphIsCompared) {
  const auto stream = NewStream();
  Arena arena = *device_->Allocate(MemoryKind::kShared, 16384);
  const auto take = [&] { return arena.Take<float>(128).data(); };
  float *const a = take(), *const b = take(), *const c = take(), *const other = take();
  const MatrixProduct usual{.m = 8, .n = 8, .k = 8, .a = a, .b = b, .c = c};
  std::vector<MatrixProduct> others(11, usual);
  others[0].m = others[1].n = others[2].k = 4;
  others[3].a = others[4].b = others[6].bias = others[7].x = other;
  others[5].c = other;
  others[8].a_transposed = others[9].b_transposed = others[10].add = true;
  const auto twice = [&](const MatrixProduct& product) {
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(Multiply(*stream, product));
    stream->Submit();
  };
  for (int step = 0; step < 2; ++step) twice(usual);
  for (const MatrixProduct& product : others) twice(product);
  EXPECT_EQ(stream->Await(), absl::OkStatus());
  EXPECT_EQ(gpu_.captures(), 0);
  for (float* x = a; x < a + 64; ++x) *x = 1;
  for (float* x = b; x < b + 64; ++x) *x = 2;
  twice(usual);
  EXPECT_EQ(stream->Await(), absl::OkStatus());
  EXPECT_EQ(gpu_.captures(), 1);
  EXPECT_EQ(c[63], 16);
}

TEST_F(ProductsTest, BySlopesOfOtherWidthsHaveNoWay) {
  const auto stream = NewStream();
  Arena arena = *device_->Allocate(MemoryKind::kShared, 4096);
  const float* const at = arena.Take<float>(256).data();
  float* const c = arena.Take<float>(64).data();
  for (const std::int64_t n : {7, 8, 12, 16}) {
    EXPECT_EQ(
        Multiply(*stream, {.m = 2, .n = n, .k = 3, .a = at, .b = at + 64, .c = c, .x = at + 128}),
        n % 8 == 0);
  }
  EXPECT_EQ(stream->Await(), absl::OkStatus());
}

TEST_F(ProductsTest, OfNothingAreNotAskedFor) {
  const auto stream = NewStream();
  const std::uint64_t before = stream->Record().work;
  EXPECT_TRUE(Multiply(*stream, {.m = 0, .n = 4, .k = 4}));
  EXPECT_TRUE(Multiply(*stream, {.m = 4, .n = 0, .k = 4}));
  EXPECT_FALSE(Multiply(*stream, {.m = 4, .n = 4, .k = 0}));  // Zeros, or the bias: own kernels'.
  EXPECT_EQ(stream->Record().work, before);
  EXPECT_EQ(gpu_.products_calls(kHeuristic), 0);
}

TEST_F(ProductsTest, WithoutAWayNothingIsPutAndItIsAskedForOnce) {
  gpu_.play_products(FakeProducts::kNoWay, 0);
  const auto stream = NewStream();
  const std::uint64_t before = stream->Record().work;
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(Multiply(*stream, {.m = 2, .n = 2, .k = 2}));
  EXPECT_EQ(stream->Record().work, before);
  EXPECT_EQ(gpu_.products_calls(kHeuristic), 1);
  EXPECT_EQ(CublasLt::Check(*device_),
            absl::FailedPreconditionError(absl::StrCat(
                "cuBLASLt 13.1.0 (", FakeGpu::path(),
                ") has no way to multiply on this GPU: f32 (16, 24) and (24, 32), to f32")));
}

TEST_F(ProductsTest, WhatFailsIsTheStreamWithTheSizes) {
  gpu_.play_products(FakeProducts::kFails, 0);
  EXPECT_EQ(CublasLt::Check(*device_),
            absl::InternalError("cublasLtMatmul of (16, 24) and (24, 32): the function failed to "
                                "launch on the GPU (cuBLAS status 13)"));
}

// Whoever awaits it has it behind them.
TEST_F(ProductsTest, WhatWasBegunBeforeAFailureIsWaitedFor) {
  gpu_.play_products(FakeProducts::kFails, 0);
  const auto stream = NewStream();
  std::atomic<bool> begun = false, over = false;
  stream->Run([&] {
    begun = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    over = true;
  });
  while (!begun) std::this_thread::yield();
  Arena arena = *device_->Allocate(MemoryKind::kShared, 1024);
  float* const at = arena.Take<float>(64).data();
  EXPECT_TRUE(Multiply(*stream, {.m = 2, .n = 2, .k = 2, .a = at, .b = at + 8, .c = at + 16}));
  EXPECT_EQ(stream->Await().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(over);
}

TEST_F(ProductsTest, AStreamThatHasFailedIsGivenNone) {
  const auto stream = NewStream();
  static_cast<CudaStream&>(*stream).progress()->Fail(absl::CancelledError("before"));
  Arena arena = *device_->Allocate(MemoryKind::kShared, 1024);
  float* const at = arena.Take<float>(64).data();
  EXPECT_TRUE(Multiply(*stream, {.m = 2, .n = 2, .k = 2, .a = at, .b = at + 8, .c = at + 16}));
  EXPECT_EQ(gpu_.products_calls("cublasLtMatmul"), 0);
  EXPECT_EQ(stream->Await(), absl::CancelledError("before"));
}

// Of whatever kind: the first that is wrong is said, and slopes alone are done without.
TEST_F(ProductsTest, ALibraryThatMultipliesWronglyIsFoundOut) {
  constexpr int kOfType = 8 + 2 + 2;
  std::set<std::string> said;
  for (int right = 0; right < 3 * kOfType; ++right) {
    device_->SetProducts(*CublasLt::Create(*OpenCublasLt(FakeGpu::path())));
    gpu_.play_products(FakeProducts::kWrong, right);
    const absl::Status status = CublasLt::Check(*device_);
    const bool last = right >= 3 * kOfType - 2;  // Nothing but slopes comes after.
    EXPECT_EQ(device_->products()->has_slopes(), right % kOfType < kOfType - 2);
    if (last) {
      EXPECT_EQ(status, absl::OkStatus());
    } else {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << right;
      said.insert(std::string(status.message()));
    }
  }
  // Those whose slopes are wrong first are said by what comes next.
  EXPECT_EQ(said.size(), 3 * (8 + 2));
  EXPECT_EQ(said.count(absl::StrCat("cuBLASLt 13.1.0 (", FakeGpu::path(),
                                    ") says that -25 is -24 on this GPU: f32 (16, 24) and (24, "
                                    "32), to f32")),
            1u);
}

// Of the sizes that were tried too.
TEST_F(ProductsTest, SlopesThatItHasNoWayForOrWrongOnesAreDoneWithout) {
  const std::pair<FakeProducts, int> plays[] = {{FakeProducts::kNoSlope, 0},
                                                {FakeProducts::kWrong, CublasLt::kChecked - 1}};
  for (const auto& [play, after] : plays) {
    device_->SetProducts(*CublasLt::Create(*OpenCublasLt(FakeGpu::path())));
    gpu_.play_products(play, after);
    EXPECT_EQ(CublasLt::Check(*device_), absl::OkStatus());
    EXPECT_FALSE(device_->products()->has_slopes());
    gpu_.play_products(FakeProducts::kRight, 0);
    const auto stream = NewStream();
    Arena arena = *device_->Allocate(MemoryKind::kShared, 16 << 10);
    float* const at = arena.Take<float>(4096).data();
    for (const std::int64_t m : {2, 16}) {
      MatrixProduct product{.m = m, .n = 32, .k = 24, .a = at, .b = at + 1024, .c = at + 2048};
      EXPECT_TRUE(Multiply(*stream, product));
      product.x = at + 3072;
      EXPECT_FALSE(Multiply(*stream, product));
    }
    EXPECT_EQ(stream->Await(), absl::OkStatus());
  }
}

TEST_F(ProductsTest, WhatIsFoundMayBeNoneOrOfNoUse) {
  for (const FakeProducts plays : {FakeProducts::kFindsNone, FakeProducts::kBadState}) {
    device_->SetProducts(*CublasLt::Create(*OpenCublasLt(FakeGpu::path())));
    gpu_.play_products(plays, 0);
    EXPECT_FALSE(Multiply(*NewStream(), {.m = 2, .n = 2, .k = 2}));
  }
}

// What kernels ask for.
TEST_F(ProductsTest, KernelsMultiplyByWhatTheStreamHas) {
  const auto compute = NewStream(), moves = device_->NewStream(StreamKind::kMove);
  Arena arena = *device_->Allocate(MemoryKind::kShared, 1024);
  float* const at = arena.Take<float>(256).data();
  const MatrixProduct product{.m = 1, .n = 1, .k = 2, .a = at, .b = at + 64, .c = at + 128};
  at[0] = at[64] = 3;
  EXPECT_TRUE(cuda::MultiplyByLibrary(*compute, product));
  EXPECT_FALSE(cuda::MultiplyByLibrary(*moves, product));
  EXPECT_EQ(compute->Await(), absl::OkStatus());
  EXPECT_EQ(at[128], 9);
}

TEST_F(ProductsTest, OnlyStreamsThatComputeHaveAWorkspaceEachItsOwn) {
  const auto one = NewStream(), other = NewStream(), moves = device_->NewStream(StreamKind::kMove);
  const std::span<std::byte> workspace = static_cast<CudaStream&>(*one).workspace();
  EXPECT_EQ(workspace.size(), CublasLt::kWorkspaceBytes);
  EXPECT_NE(workspace.data(), static_cast<CudaStream&>(*other).workspace().data());
  EXPECT_EQ(static_cast<CudaStream&>(*moves).products(), nullptr);
  EXPECT_TRUE(static_cast<CudaStream&>(*moves).workspace().empty());
}

TEST_F(ProductsTest, AWorkspaceThatDoesNotFitIsTheStreamsFailure) {
  gpu_.set_memory(1 << 20);
  const auto stream = NewStream();
  EXPECT_EQ(stream->Await().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(cuda::MultiplyByLibrary(*stream, {.m = 2, .n = 2, .k = 2}));
  EXPECT_EQ(CublasLt::Check(*device_), stream->Await());
  gpu_.set_memory(std::size_t{1} << 40);
}

// As when a text is generated, token by token.
TEST_F(ProductsTest, OfManySizesAreNotAllRemembered) {
  const auto stream = NewStream();
  Arena arena = *device_->Allocate(MemoryKind::kShared, 3 * 4 * 5000 + 768);
  const float* const a = arena.Take<float>(5000).data();
  const float* const b = arena.Take<float>(5000).data();
  float* const c = arena.Take<float>(1).data();
  int most = 0;
  for (std::int64_t k = 1; k <= 5000; ++k) {
    ASSERT_TRUE(Multiply(*stream, {.m = 1, .n = 1, .k = k, .a = a, .b = b, .c = c}));
    if (k % 64 == 0) {
      ASSERT_EQ(stream->Await(), absl::OkStatus());
    }
    most = std::max(most, gpu_.live_products());
  }
  EXPECT_LE(most, 1 + 4 * 4096);
  EXPECT_GE(most, 4 * 4096);
  EXPECT_EQ(stream->Await(), absl::OkStatus());
}

TEST(CublasLtApiTest, WhatCannotBeOpenedIsASentence) {
  const FakeGpu gpu;
  EXPECT_EQ(OpenCublasLt("/no/such/libcublasLt.so.13").status().code(),
            absl::StatusCode::kNotFound);
  const absl::Status other = OpenCublasLt("libm.so.6").status();
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(other.message().find("libm.so.6 has no cublasLtGetVersion, cublasLtCreate, "),
            std::string::npos)
      << other;
  gpu.set_products_version(110805);
  const absl::Status old = OpenCublasLt(FakeGpu::path()).status();
  EXPECT_EQ(old, absl::FailedPreconditionError(
                     absl::StrCat(FakeGpu::path(), " is cuBLASLt 11.8.5; 12.0.0 is needed")));
  // One of no use says more than those that are not there, and a good one behind it is found.
  EXPECT_EQ(FindCublasLt({"/no/such", FakeGpu::path()}).status(), old);
  // So does one that is there and cannot be loaded, but less than one that can.
  const io::TempDirectory folder;
  const std::string broken = folder.path() + "/libcublasLt.so.13";
  std::ofstream(broken) << "no library";
  EXPECT_EQ(FindCublasLt({broken, FakeGpu::path()}).status(), old);
  const absl::Status unloadable = FindCublasLt({"/no/such", broken}).status();
  EXPECT_EQ(unloadable.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(unloadable.message().find("file too short"), std::string::npos) << unloadable;
  EXPECT_EQ(FindCublasLt({"libno-such.so.13"}).status(),
            absl::NotFoundError("no cuBLASLt was found, neither as libno-such.so.13"));
  EXPECT_EQ(FindCublasLt({"/no/such"}).status().message(),
            "no cuBLASLt was found, neither as /no/such");
  gpu.set_products_version(kOldestCublasLt);
  EXPECT_TRUE(FindCublasLt({"libm.so.6", FakeGpu::path()}).ok());
  gpu.play_products(FakeProducts::kNone, 0);
  EXPECT_EQ(CublasLt::Create(*OpenCublasLt(FakeGpu::path())).status(),
            absl::UnavailableError(absl::StrCat("cublasLtCreate of ", FakeGpu::path(),
                                                ": the library was not initialized (cuBLAS status "
                                                "1)")));
}

TEST(CublasLtApiTest, ThatOf13IsLookedForFirst) {
  const std::vector<std::string> places = CublasLtPlaces();
  EXPECT_EQ(places.front(), "libcublasLt.so.13");
  const auto has = [&](const char* place) {
    return std::find(places.begin(), places.end(), place) - places.begin();
  };
  EXPECT_LT(has("/usr/lib/python3*/dist-packages/nvidia/cu13/lib/libcublasLt.so.13"),
            has("libcublasLt.so.12"));
  EXPECT_LT(has("/usr/lib/python3*/dist-packages/nvidia/cublas/lib/libcublasLt.so.12"),
            static_cast<std::ptrdiff_t>(places.size()));
}

// The real one, which describes products without a GPU too: names, sizes and numbers are its own.
TEST(CublasLtApiTest, TheRealOneTakesWhatItIsTold) {
  constexpr char kToolkits[] = "/usr/local/cuda/lib64/libcublasLt.so.13";
  if (::access(kToolkits, R_OK) != 0) GTEST_SKIP() << kToolkits << " is not here";
  const absl::StatusOr<CublasLtApi> api = OpenCublasLt(kToolkits);
  ASSERT_TRUE(api.ok()) << api.status();
  CublasLtDesc desc = nullptr;
  ASSERT_EQ(api->desc_create(&desc, kCublasCompute32F, kCudaR32F), kCublasSuccess);
  const void* bias = nullptr;
  EXPECT_EQ(api->desc_set(desc, kCublasLtDescTransA, &kCublasOpT, 4), kCublasSuccess);
  EXPECT_EQ(api->desc_set(desc, kCublasLtDescTransB, &kCublasOpN, 4), kCublasSuccess);
  EXPECT_EQ(api->desc_set(desc, kCublasLtDescEpilogue, &kCublasLtEpilogueBias, 4), kCublasSuccess);
  EXPECT_EQ(api->desc_set(desc, kCublasLtDescBiasPointer, &bias, sizeof bias), kCublasSuccess);
  const std::int64_t leading = 8;
  EXPECT_EQ(api->desc_set(desc, kCublasLtDescEpilogue, &kCublasLtEpilogueDGelu, 4), kCublasSuccess);
  EXPECT_EQ(api->desc_set(desc, kCublasLtDescAuxPointer, &bias, sizeof bias), kCublasSuccess);
  EXPECT_EQ(api->desc_set(desc, kCublasLtDescAuxLd, &leading, sizeof leading), kCublasSuccess);
  EXPECT_NE(api->desc_set(desc, kCublasLtDescEpilogue, &bias, sizeof bias), kCublasSuccess);
  CublasLtLayout layout = nullptr;
  ASSERT_EQ(api->layout_create(&layout, kCudaR16BF, 3, 5, 3), kCublasSuccess);
  CublasLtPreference preference = nullptr;
  ASSERT_EQ(api->preference_create(&preference), kCublasSuccess);
  const std::uint64_t bytes = CublasLt::kWorkspaceBytes;
  EXPECT_EQ(api->preference_set(preference, kCublasLtPrefMaxWorkspaceBytes, &bytes, 8),
            kCublasSuccess);
  for (const int attribute : {kCublasLtPrefReductionSchemeMask, kCublasLtPrefMinAlignmentABytes,
                              kCublasLtPrefMinAlignmentBBytes, kCublasLtPrefMinAlignmentCBytes,
                              kCublasLtPrefMinAlignmentDBytes}) {
    EXPECT_EQ(api->preference_set(preference, attribute, &kCublasLtReductionComputeType, 4),
              kCublasSuccess)
        << attribute;
  }
  EXPECT_EQ(api->preference_destroy(preference), kCublasSuccess);
  EXPECT_EQ(api->layout_destroy(layout), kCublasSuccess);
  EXPECT_EQ(api->desc_destroy(desc), kCublasSuccess);
}

}  // namespace
}  // namespace regroup::worker
