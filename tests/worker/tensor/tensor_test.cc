#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

#include "worker/tensor/arena.h"
#include "worker/tensor/counter_rng.h"
#include "worker/tensor/shape.h"

namespace regroup::worker {
namespace {

TEST(Shape, CountsComparesAndPrints) {
  const Shape shape = {3, 4, 5};
  EXPECT_EQ(shape.elements(), 60);
  EXPECT_EQ(shape.ToString(), "(3, 4, 5)");
  EXPECT_EQ(Shape{}.elements(), 1);
  EXPECT_FALSE(shape == (Shape{3, 4}));
  EXPECT_EQ(shape, (Shape{3, 4, 5}));
}

TEST(Arena, HandsOutAlignedZeroedMemoryUntilItIsUsedUp) {
  Arena arena = *Arena::Create(2 * Arena::Footprint<float>(3) + Arena::Footprint<double>(100));
  const std::span<float> a = arena.Take<float>(3), b = arena.Take<float>(3);
  const std::span<double> c = arena.Take<double>(100);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b.data()) % Arena::kAlignment, 0u);
  EXPECT_GE(b.data(), a.data() + a.size());
  for (double v : c) EXPECT_EQ(v, 0);
  c[99] = 1;
  Arena moved = std::move(arena);
  EXPECT_EQ(c[99], 1);
  EXPECT_EQ(moved.used_bytes(), moved.size_bytes());
  EXPECT_DEATH((void)moved.Take<float>(1), "CHECK failed");
}

TEST(Arena, AnImpossibleSizeIsAStatus) {
  EXPECT_EQ(Arena::Create(std::size_t{1} << 62).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Arena::Create(~std::size_t{0}).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(CounterRng, StreamsAreKnownNumbers) {  // counter_rng.py gives the same.
  const RngKey key = SeedKey(7).Fold("init").Fold("wte.weight");
  EXPECT_EQ(key.Bits(0), 0x7678d6b75506e92aull);
  EXPECT_EQ(key.Bits(1), 0x37e187aea583359cull);
}

TEST(CounterRng, BellHasMeanZeroAndDeviationOne) {
  double sum = 0, squares = 0;
  constexpr int kCount = 100'000;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const double v = UnitBell(SeedKey(3).Bits(i));
    EXPECT_LT(v * v, 3.47 * 3.47);
    sum += v;
    squares += v * v;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.01);
  EXPECT_NEAR(squares / kCount, 1, 0.01);
}

}  // namespace
}  // namespace regroup::worker
