#include "worker/comm/reduce.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "common/base/rng.h"
#include "worker/comm/segment.h"
#include "worker/comm/sums.h"

namespace regroup::worker {
namespace {

std::vector<Isa> IsasHere() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kBaseline, Isa::kV3, Isa::kV4}) {
    if (isa <= BestIsa()) isas.push_back(isa);
  }
  return isas;
}

// Of both signs, over the whole range of a type, and now and then an odd one.
template <typename T>
std::vector<T> Numbers(Rng& rng, std::size_t count) {
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  const float kOdd[] = {0.0f, -0.0f, kInfinite, -kInfinite, std::nanf(""), 65504, 1e-7f, 1e-41f};
  const std::size_t shift = rng.Below(37);
  std::vector<T> numbers;
  for (std::size_t i = 0; i < count; ++i) {
    const auto exponent = static_cast<int>(rng.Unit() * 40) - 20;
    const auto number = static_cast<float>(std::ldexp(rng.Unit() - 0.5, exponent));
    numbers.push_back(T((i + shift) % 37 == 5 ? kOdd[rng.Below(std::size(kOdd))] : number));
  }
  return numbers;
}

std::uint32_t BitsOf(float number) { return std::bit_cast<std::uint32_t>(number); }
template <typename T>
std::uint32_t BitsOf(T number) {
  return number.bits;
}
template <typename T>
bool SameBits(T a, T b) {
  const auto wide_a = static_cast<float>(a), wide_b = static_cast<float>(b);
  return (std::isnan(wide_a) && std::isnan(wide_b)) || BitsOf(a) == BitsOf(b);
}

template <typename T>
class ReduceTest : public testing::Test {
 protected:
  // What the header promises, one number at a time.
  static float WideSum(const std::vector<std::vector<T>>& sources, std::size_t i) {
    auto sum = static_cast<float>(sources[0][i]);
    for (std::size_t s = 1; s < sources.size(); ++s) sum += static_cast<float>(sources[s][i]);
    return sum;
  }

  static std::vector<std::vector<T>> Sources(std::size_t of, std::size_t count) {
    Rng rng(of * 1000003 + count);
    std::vector<std::vector<T>> sources;
    for (std::size_t s = 0; s < of; ++s) sources.push_back(Numbers<T>(rng, count));
    return sources;
  }

  // Shorter than a vector, around a line, around a block, and blocks with a rest.
  static constexpr std::array<std::size_t, 13> kCounts = {0,  1,   3,    8,    15,   16,  17,
                                                          33, 100, 2047, 2048, 2049, 5000};
};
using Types = testing::Types<float, BFloat16, Half>;
TYPED_TEST_SUITE(ReduceTest, Types);

TYPED_TEST(ReduceTest, AllSetsSumToTheSameBits) {
  using T = TypeParam;
  for (const Isa isa : IsasHere()) {
    const SumTable<T> sums = SumsOf<T>(isa);
    for (const std::size_t of : {1, 2, 3, 4, 5, kMaxRanks}) {
      for (const std::size_t count : this->kCounts) {
        SCOPED_TRACE(std::string(NameOf(isa)) + ", " + std::to_string(of) + " sources of " +
                     std::to_string(count));
        // What lies before and behind the range is left alone.
        const std::size_t begin = count % 3, end = begin + count;
        const auto sources = this->Sources(of, end + 2);
        auto all = sources;
        std::vector<T*> each;
        for (auto& source : all) each.push_back(source.data());
        sums.into_all(each.data(), of, begin, end);
        auto one = sources;
        std::vector<const T*> read;
        for (auto& source : one) read.push_back(source.data());
        sums.into(read.data(), of, begin, end, one[of / 2].data());  // Which is a source.
        std::vector<T> apart(end + 2, T(7));
        read[of / 2] = sources[of / 2].data();
        sums.into(read.data(), of, begin, end, apart.data());
        for (std::size_t i = 0; i < end + 2; ++i) {
          const bool within = begin <= i && i < end;
          const auto sum = T(this->WideSum(sources, i));
          for (std::size_t s = 0; s < of; ++s) {
            ASSERT_TRUE(SameBits(all[s][i], within ? sum : sources[s][i])) << s << " at " << i;
            const bool written = within && s == of / 2;
            ASSERT_TRUE(SameBits(one[s][i], written ? sum : sources[s][i])) << s << " at " << i;
          }
          ASSERT_TRUE(SameBits(apart[i], within ? sum : T(7))) << i;
        }
      }
    }
  }
}

TYPED_TEST(ReduceTest, AllSetsWidenAddAndRoundToTheSameBits) {
  using T = TypeParam;
  for (const Isa isa : IsasHere()) {
    const SumTable<T> sums = SumsOf<T>(isa);
    for (const std::size_t count : this->kCounts) {
      SCOPED_TRACE(std::string(NameOf(isa)) + ", " + std::to_string(count));
      const auto sources = this->Sources(2, count);
      std::vector<float> sum(count + 1, 7);
      sums.widen(sum.data(), sources[0].data(), count);
      for (std::size_t i = 0; i < count; ++i)
        ASSERT_TRUE(SameBits(sum[i], static_cast<float>(sources[0][i]))) << i;
      sums.add_wide(sum.data(), sources[1].data(), count);
      for (std::size_t i = 0; i < count; ++i)
        ASSERT_TRUE(SameBits(sum[i], this->WideSum(sources, i))) << i;
      EXPECT_EQ(sum[count], 7);
      std::vector<T> apart(count + 1, T(7));
      sums.narrow(apart.data(), sum.data(), count);
      sums.narrow(reinterpret_cast<T*>(sum.data()), sum.data(), count);
      for (std::size_t i = 0; i < count; ++i) {
        const auto rounded = T(this->WideSum(sources, i));
        ASSERT_TRUE(SameBits(apart[i], rounded)) << i;
        T in_place;
        std::memcpy(&in_place, reinterpret_cast<const std::byte*>(sum.data()) + i * sizeof(T),
                    sizeof(T));
        ASSERT_TRUE(SameBits(in_place, rounded)) << i;
      }
      EXPECT_EQ(static_cast<float>(apart[count]), 7);
    }
  }
}

// IEEE 754: 5 bits of exponent, 10 behind the point, without a 1 before it where the exponent is 0.
TEST(HalfTest, AllSetsWidenEveryNumberExactly) {
  std::vector<Half> every(1 << 16);
  for (std::size_t i = 0; i < every.size(); ++i) every[i].bits = static_cast<std::uint16_t>(i);
  for (const Isa isa : IsasHere()) {
    std::vector<float> wide(every.size());
    SumsOf<Half>(isa).widen(wide.data(), every.data(), every.size());
    for (unsigned i = 0; i < every.size(); ++i) {
      const int exponent = i >> 10 & 31, digits = i & 1023;
      double value =
          exponent == 0 ? std::ldexp(digits, -24) : std::ldexp(1024 + digits, exponent - 25);
      if (exponent == 31) value = digits == 0 ? HUGE_VAL : std::nan("");
      if (i >> 15 != 0) value = -value;
      ASSERT_TRUE(SameBits(wide[i], static_cast<float>(value))) << i << " by " << NameOf(isa);
      ASSERT_TRUE(SameBits(static_cast<float>(every[i]), static_cast<float>(value))) << i;
    }
  }
}

TEST(CopyPastCachesTest, CopiesWhatItWasTold) {
  constexpr std::size_t kMost = (300 << 10) + 200;
  std::vector<std::byte> from(kMost + 64);
  Rng rng(1);
  for (std::byte& byte : from) byte = static_cast<std::byte>(rng.Below(256));
  // Below and above what goes through the caches, with whole and broken ends, from and to odd
  // places.
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{100}, std::size_t{256 << 10},
                                  std::size_t{(256 << 10) + 1}, std::size_t{288 << 10}, kMost}) {
    for (const std::size_t skew : {0, 1, 63}) {
      std::vector<std::byte> to(kMost + 128, std::byte{9});
      CopyPastCaches(to.data() + skew, from.data() + skew / 2, bytes);
      EXPECT_EQ(std::memcmp(to.data() + skew, from.data() + skew / 2, bytes), 0)
          << bytes << " at " << skew;
      for (std::size_t i = 0; i < to.size(); ++i) {
        const bool outside = i < skew || i >= skew + bytes;
        ASSERT_TRUE(!outside || to[i] == std::byte{9}) << i << " of " << bytes << " at " << skew;
      }
    }
  }
}

}  // namespace
}  // namespace regroup::worker
