// Numbers of 16 bits: what they round to, and the kernels that store them against the twins that
// round alike.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/worker/device/host_compute.h"
#include "tests/worker/golden/golden.h"
#include "tests/worker/kernels/tables.h"
#include "tests/worker/kernels/tiled_attention.h"
#include "worker/kernels/kernels.h"
#include "worker/tensor/counter_rng.h"
#include "worker/tensor/dtype.h"
#if defined(REGROUP_GPU_EMULATOR)
#include "tests/worker/gpu_emulator/gpu_emulator.h"
#endif

namespace regroup::worker {
namespace {

std::size_t Size(std::int64_t elements) { return static_cast<std::size_t>(elements); }

template <typename T>
class ShortNumbers : public testing::Test {
 protected:
  HostCompute host_;
  static std::vector<const KernelTable<T>*> Tables() { return FastTables<T>(); }
  static std::vector<T> Some(const std::string& name, std::int64_t elements, double scale = 1) {
    std::vector<T> numbers;
    for (const float value : Given<float>(name, elements, scale)) numbers.emplace_back(value);
    return numbers;
  }
  // The same, or neighbours where the sum lies so near the middle of two numbers that the order of
  // adding decides. That is so for few of them, most where sums cancel.
  static void ExpectRoundedAlike(const std::vector<T>& fast, const std::vector<T>& twin) {
    ASSERT_EQ(fast.size(), twin.size());
    std::size_t apart = 0;
    double largest = 0;
    for (const T value : twin) largest = std::max(largest, std::fabs(double{value}));
    for (std::size_t i = 0; i < fast.size(); ++i) {
      if (fast[i].bits == twin[i].bits) continue;
      ++apart;
      // Beside numbers much larger, what is left of a difference may be nothing but rounding.
      constexpr double kLastBit = std::is_same_v<T, Half> ? 0x1p-10 : 0x1p-7;
      const double near = std::max(kLastBit * std::fabs(double{twin[i]}), 1e-6 * largest);
      EXPECT_LE(std::fabs(double{fast[i]} - double{twin[i]}), near) << i;
    }
    EXPECT_LE(apart, 2 + fast.size() / 50);
  }
  static void ExpectNear(const std::vector<float>& fast, const std::vector<float>& twin) {
    EXPECT_LT(RelativeError(fast, std::vector<double>(twin.begin(), twin.end())), 1e-5);
  }
};

// Half of a number's last bit, relative.
template <typename T>
constexpr double kHalfBit = std::is_same_v<T, Half> ? 0x1p-11 : 0x1p-8;

// Relative in the 2-norm.
template <typename T>
double Apart(const std::vector<T>& fast, const std::vector<T>& twin) {
  double apart = 0, of = 0;
  for (std::size_t i = 0; i < twin.size(); ++i) {
    const double difference = double{float{fast[i]}} - double{float{twin[i]}};
    apart += difference * difference, of += double{float{twin[i]}} * double{float{twin[i]}};
  }
  return std::sqrt(apart / of);
}

using Types = testing::Types<BFloat16, Half>;
TYPED_TEST_SUITE(ShortNumbers, Types);

TYPED_TEST(ShortNumbers, RoundToTheNearestAndOfTwoToTheEven) {
  using T = TypeParam;
  // Every number but those that are none comes back as it was, and what lies between two of them
  // goes to the nearer one.
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    T number;
    number.bits = static_cast<std::uint16_t>(bits);
    const float value = number;
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(static_cast<float>(T(value))));
      continue;
    }
    ASSERT_EQ(T(value).bits, number.bits) << bits;
    T next;
    next.bits = static_cast<std::uint16_t>(bits + 1);
    const double upper = static_cast<float>(next), lower = value;
    if (!std::isfinite(upper) || !std::isfinite(lower)) continue;
    const auto middle = static_cast<float>((lower + upper) / 2);
    if (static_cast<double>(middle) != (lower + upper) / 2) continue;  // No float lies there.
    ASSERT_EQ(T(middle).bits, bits % 2 == 0 ? number.bits : next.bits) << bits;
    ASSERT_EQ(T(std::nextafter(middle, static_cast<float>(lower))).bits, number.bits) << bits;
    ASSERT_EQ(T(std::nextafter(middle, static_cast<float>(upper))).bits, next.bits) << bits;
  }
  EXPECT_TRUE(std::isinf(static_cast<float>(T(std::numeric_limits<float>::infinity()))));
}

TEST(Half, EndsWhereItMust) {
  EXPECT_EQ(static_cast<float>(Half(65519.0f)), 65504.0f);
  EXPECT_TRUE(std::isinf(static_cast<float>(Half(65520.0f))));
  EXPECT_EQ(static_cast<float>(Half(0x1p-24f)), 0x1p-24f);
  EXPECT_EQ(static_cast<float>(Half(0x1p-26f)), 0.0f);
}

// The elementwise kernels are exact enough that vectors and scalars must agree on every number.
TYPED_TEST(ShortNumbers, VectorsConvertAsScalarsDo) {
  using T = TypeParam;
  std::vector<T> all(0x10000), bits(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<std::uint16_t>(i);
  std::vector<float> wide(all.begin(), all.end());
  for (std::size_t i = 1; i + 1 < wide.size(); i += 3) wide[i] *= 1.00123f;
  for (const KernelTable<T>* table : this->Tables()) {
    SCOPED_TRACE(table->name);
    const std::vector<std::int32_t> first(all.size(), 0);
    // One row of the embedding per number, and a position of nothing.
    std::vector<T> rows(all.size()), nothing(1);
    std::vector<std::int32_t> tokens(all.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i);
    nothing[0] = T(0.0f);
    table->embedding_forward(
        this->host_.On(), {static_cast<std::int64_t>(all.size()), 1, 1, tokens.data(), all.data(),
                           nothing.data(), rows.data()});
    for (std::size_t i = 0; i < all.size(); ++i) {
      const float value = all[i];
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(static_cast<float>(rows[i]))) << i;
      } else {
        ASSERT_EQ(static_cast<float>(rows[i]), value) << i;
      }
    }
    if constexpr (std::is_same_v<T, Half>) {
      const auto n = static_cast<std::int64_t>(wide.size());
      table->round_weights(this->host_.On(),
                           {.elements = n, .weights = wide.data(), .rounded = bits.data()});
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (std::isnan(wide[i])) continue;
        ASSERT_EQ(bits[i].bits, T(wide[i]).bits) << i;
      }
    }
  }
}

TEST(RoundWeights, RandomlyToEitherNeighbourAndByElementAlone) {
  HostCompute host;
  constexpr std::int64_t kCount = 5003;
  std::vector<float> weights = Given<float>("w", kCount);
  std::fill(weights.begin() + 1000, weights.begin() + 3000,
            1.0f + 0x1p-9f);  // A fourth of the way.
  weights[7] = std::numeric_limits<float>::infinity();
  weights[8] = std::nanf("");
  std::vector<BFloat16> twin(Size(kCount));
  ReferenceKernels<BFloat16>().round_weights(
      host.On(),
      {.elements = kCount, .weights = weights.data(), .rounded = twin.data(), .key = 77});
  for (const KernelTable<BFloat16>* table : FastTables<BFloat16>()) {
    std::vector<BFloat16> fast(Size(kCount));
    const auto& round = table->round_weights;
    for (const std::int64_t cut : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1234}}) {
      round(host.On(),
            {.elements = cut, .weights = weights.data(), .rounded = fast.data(), .key = 77});
      round(host.On(), {.elements = kCount - cut,
                        .weights = weights.data() + cut,
                        .rounded = fast.data() + cut,
                        .first = cut,
                        .key = 77});
      for (std::size_t i = 0; i < fast.size(); ++i) ASSERT_EQ(fast[i].bits, twin[i].bits) << i;
    }
  }
  const std::vector<float> odd = {
      std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
      std::bit_cast<float>(0x7FFFFFFFu)};  // A NaN that no sum may carry beyond.
  for (const KernelTable<BFloat16>* table : FastTables<BFloat16>()) {
    for (std::uint32_t key = 0; key < 20; ++key) {
      std::vector<BFloat16> rounded(odd.size());
      table->round_weights(
          host.On(), {.elements = 3, .weights = odd.data(), .rounded = rounded.data(), .key = key});
      EXPECT_EQ(static_cast<float>(rounded[0]), odd[0]) << table->name;
      EXPECT_EQ(static_cast<float>(rounded[1]), odd[1]) << table->name;
      EXPECT_TRUE(std::isnan(static_cast<float>(rounded[2]))) << table->name;
    }
  }
  double up = 0;
  for (std::size_t i = 1000; i < 3000; ++i) {
    const float value = twin[i];
    ASSERT_TRUE(value == 1.0f || value == 1.0f + 0x1p-7f);
    up += value > 1.0f;
  }
  EXPECT_NEAR(up / 2000, 0.25, 0.04);  // Four standard deviations.
  EXPECT_TRUE(std::isinf(static_cast<float>(twin[7])));
  EXPECT_TRUE(std::isnan(static_cast<float>(twin[8])));
  std::vector<BFloat16> other(Size(kCount));
  ReferenceKernels<BFloat16>().round_weights(
      host.On(),
      {.elements = kCount, .weights = weights.data(), .rounded = other.data(), .key = 78});
  std::size_t same = 0;
  for (std::size_t i = 1000; i < 3000; ++i) same += other[i].bits == twin[i].bits;
  EXPECT_NEAR(static_cast<double>(same) / 2000, 0.625, 0.05);
}

TYPED_TEST(ShortNumbers, Products) {
  using T = TypeParam;
  const KernelTable<T>& twins = ReferenceKernels<T>();
  for (const KernelTable<T>* table : this->Tables()) {
    for (const WeightOrder order : {WeightOrder::kInOut, WeightOrder::kOutIn}) {
      for (const LinearShape& s : {LinearShape{1, 1, 1}, {3, 64, 17}, {65, 16, 48}}) {
        SCOPED_TRACE(testing::Message() << table->name << " " << s.rows << " " << s.in << " "
                                        << s.out << " " << static_cast<int>(order));
        const auto x = this->Some("x", s.rows * s.in), w = this->Some("w", s.in * s.out),
                   dy = this->Some("dy", s.rows * s.out), bias = this->Some("b", s.out);
        for (const T* b : {static_cast<const T*>(nullptr), bias.data()}) {
          for (const bool add : {false, true}) {
            auto y = this->Some("y", s.rows * s.out), twin = y;
            table->linear_forward(this->host_.On(),
                                  {s, order, x.data(), w.data(), b, y.data(), add});
            ASSERT_TRUE(this->host_.stream->Await().ok());
            twins.linear_forward(this->host_.On(),
                                 {s, order, x.data(), w.data(), b, twin.data(), add});
            ASSERT_TRUE(this->host_.stream->Await().ok());
            this->ExpectRoundedAlike(y, twin);
          }
        }
        std::vector<T> dx(x.size()), twin_dx(x.size());
        table->linear_input_grad(this->host_.On(), {s, order, dy.data(), w.data(), dx.data()});
        ASSERT_TRUE(this->host_.stream->Await().ok());
        twins.linear_input_grad(this->host_.On(), {s, order, dy.data(), w.data(), twin_dx.data()});
        ASSERT_TRUE(this->host_.stream->Await().ok());
        this->ExpectRoundedAlike(dx, twin_dx);
        for (const bool add : {false, true}) {
          std::vector<float> dw = Given<float>("dw", s.in * s.out), twin_dw = dw;
          table->linear_weight_grad(this->host_.On(),
                                    {s, order, x.data(), dy.data(), dw.data(), add});
          ASSERT_TRUE(this->host_.stream->Await().ok());
          twins.linear_weight_grad(this->host_.On(),
                                   {s, order, x.data(), dy.data(), twin_dw.data(), add});
          ASSERT_TRUE(this->host_.stream->Await().ok());
          this->ExpectNear(dw, twin_dw);
        }
      }
    }
  }
}

TYPED_TEST(ShortNumbers, NormsAndSums) {
  using T = TypeParam;
  const KernelTable<T>& twins = ReferenceKernels<T>();
  for (const KernelTable<T>* table : this->Tables()) {
    for (const auto& [rows, width] : {std::pair<std::int64_t, std::int64_t>{3, 40}, {40, 100}}) {
      SCOPED_TRACE(testing::Message() << table->name << " " << rows << " " << width);
      const std::int64_t all = rows * width;
      const auto x = this->Some("x", all), residual = this->Some("r", all),
                 gain = this->Some("gain", width), bias = this->Some("bias", width),
                 dy = this->Some("dy", all);
      std::vector<T> sum(x.size()), y(x.size()), twin_sum(x.size()), twin_y(x.size());
      std::vector<float> mean(Size(rows)), rstd(Size(rows)), twin_mean(Size(rows)),
          twin_rstd(Size(rows));
      table->layer_norm_forward(this->host_.On(),
                                {rows, width, x.data(), residual.data(), sum.data(), gain.data(),
                                 bias.data(), y.data(), mean.data(), rstd.data()});
      twins.layer_norm_forward(
          this->host_.On(), {rows, width, x.data(), residual.data(), twin_sum.data(), gain.data(),
                             bias.data(), twin_y.data(), twin_mean.data(), twin_rstd.data()});
      this->ExpectRoundedAlike(sum, twin_sum);
      this->ExpectRoundedAlike(y, twin_y);
      this->ExpectNear(rstd, twin_rstd);
      auto dx = this->Some("dx", all), twin_dx = dx;
      std::vector<float> dgain(Size(width)), dbias(Size(width)), twin_dgain(Size(width)),
          twin_dbias(Size(width)), scratch(Size(LayerNormElements(rows, width)));
      table->layer_norm_backward(this->host_.On(scratch.data()),
                                 {rows, width, dy.data(), sum.data(), gain.data(), mean.data(),
                                  rstd.data(), dx.data(), true, dgain.data(), dbias.data(), false});
      twins.layer_norm_backward(
          this->host_.On(),
          {rows, width, dy.data(), sum.data(), gain.data(), twin_mean.data(), twin_rstd.data(),
           twin_dx.data(), true, twin_dgain.data(), twin_dbias.data(), false});
      this->ExpectRoundedAlike(dx, twin_dx);
      this->ExpectNear(dgain, twin_dgain);
      this->ExpectNear(dbias, twin_dbias);
      table->bias_grad(this->host_.On(scratch.data()),
                       {rows, width, dy.data(), dbias.data(), true});
      twins.bias_grad(this->host_.On(), {rows, width, dy.data(), twin_dbias.data(), true});
      this->ExpectNear(dbias, twin_dbias);
    }
  }
}

TYPED_TEST(ShortNumbers, GeluAndLoss) {
  using T = TypeParam;
  const KernelTable<T>& twins = ReferenceKernels<T>();
  for (const KernelTable<T>* table : this->Tables()) {
    SCOPED_TRACE(table->name);
    const auto x = this->Some("x", 2003, 2), dy = this->Some("dy", 2003);
    std::vector<T> y(x.size()), twin_y(x.size()), dx(x.size()), twin_dx(x.size());
    table->gelu_forward(this->host_.On(), {2003, x.data(), y.data()});
    twins.gelu_forward(this->host_.On(), {2003, x.data(), twin_y.data()});
    this->ExpectRoundedAlike(y, twin_y);
    table->gelu_backward(this->host_.On(), {2003, x.data(), dy.data(), dx.data()});
    twins.gelu_backward(this->host_.On(), {2003, x.data(), dy.data(), twin_dx.data()});
    this->ExpectRoundedAlike(dx, twin_dx);
    for (const std::int64_t V : {1, 5, 257}) {
      auto logits = this->Some("logits", 6 * V, 4), twin = logits;
      std::vector<float> losses(6), twin_losses(6);
      const auto targets = GivenTokens("targets", 6, static_cast<int>(V));
      table->cross_entropy(this->host_.On(),
                           {6, V, logits.data(), targets.data(), 32, losses.data()});
      twins.cross_entropy(this->host_.On(),
                          {6, V, twin.data(), targets.data(), 32, twin_losses.data()});
      this->ExpectRoundedAlike(logits, twin);
      this->ExpectNear(losses, twin_losses);
    }
  }
}

TYPED_TEST(ShortNumbers, AttentionAndEmbedding) {
  using T = TypeParam;
  for (const KernelTable<T>* table : this->Tables()) {
    const KernelTable<T>& twins = ReferenceKernels<T>();
    for (const auto& [time, head_width] :
         {std::pair<std::int64_t, std::int64_t>{15, 16}, {65, 17}, {130, 8}}) {
      SCOPED_TRACE(testing::Message() << table->name << " " << time << " " << head_width);
      const AttentionShape s{1, time, 2, head_width};
      if (&TwinOf(*table) != &twins && OnTensorCores(s)) continue;  // Tested by itself.
      const std::int64_t wide = time * s.width();
      const auto qkv = this->Some("qkv", 3 * wide), dout = this->Some("dout", wide);
      std::vector<T> out(Size(wide)), twin_out(Size(wide)), dqkv(Size(3 * wide)),
          twin_dqkv(Size(3 * wide));
      std::vector<float> lse(Size(2 * time)), twin_lse(Size(2 * time)),
          scratch(Size(AttentionElements(s)), std::nanf(""));
      table->attention_forward(this->host_.On(scratch.data()),
                               {s, qkv.data(), out.data(), lse.data()});
      twins.attention_forward(this->host_.On(), {s, qkv.data(), twin_out.data(), twin_lse.data()});
      this->ExpectRoundedAlike(out, twin_out);
      this->ExpectNear(lse, twin_lse);
      // The same output for both: else its rounding would be seen twice.
      table->attention_backward(
          this->host_.On(scratch.data()),
          {s, qkv.data(), twin_out.data(), lse.data(), dout.data(), dqkv.data()});
      twins.attention_backward(this->host_.On(), {s, qkv.data(), twin_out.data(), twin_lse.data(),
                                                  dout.data(), twin_dqkv.data()});
      this->ExpectRoundedAlike(dqkv, twin_dqkv);
    }
    const EmbeddingShape shape{.batch = 2, .time = 3, .width = 70, .vocabulary = 5, .positions = 4};
    const auto tokens = GivenTokens("tokens", 6, 5);
    const auto dout = this->Some("dout", 6 * 70);
    std::vector<float> dtoken(350), dposition(280), twin_token(350), twin_position(280);
    table->embedding_backward(this->host_.On(), {shape, tokens.data(), dout.data(), dtoken.data(),
                                                 false, dposition.data(), false});
    twins.embedding_backward(
        this->host_.On(),
        {shape, tokens.data(), dout.data(), twin_token.data(), false, twin_position.data(), false});
    this->ExpectNear(dtoken, twin_token);
    this->ExpectNear(dposition, twin_position);
  }
}

#if defined(REGROUP_CUDA_TABLE)
// Against scalars in the same tiles that round where they do, so that few numbers differ, by one
// bit; and against what rounds only its results. Rounding once more, by half of a bit at most, adds
// to a sum an error of a third of that in its square's mean.
TYPED_TEST(ShortNumbers, AttentionOnTensorCores) {
  using T = TypeParam;
  const KernelTable<T>& table = CudaKernels<T>();
  for (const std::int64_t time : {1, 64, 65, 150}) {
    for (const std::int64_t head_width : {8, 64, 72, 128}) {
      if (time != 65 && head_width > 64) continue;
      SCOPED_TRACE(testing::Message() << time << " " << head_width);
      const AttentionShape s{time < 100 ? 2 : 1, time, 2, head_width};
      const std::int64_t wide = s.batch * time * s.width(), rows = s.batch * time * s.heads;
      const auto qkv = this->Some("qkv", 3 * wide, 2), dout = this->Some("dout", wide);
      std::vector<T> out(Size(wide)), of_twin(out), dqkv(Size(3 * wide)), of_twin_dqkv(dqkv);
      std::vector<float> lse(Size(rows)), of_twin_lse(lse), scratch(Size(AttentionElements(s)));
      const auto on = this->host_.On(scratch.data());
      table.attention_forward(on, {s, qkv.data(), out.data(), lse.data()});
      // The same output for all: else its rounding would be seen twice.
      table.attention_backward(on,
                               {s, qkv.data(), out.data(), lse.data(), dout.data(), dqkv.data()});
      for (const KernelTable<T>* twin : {&TwinOf(table), &ReferenceKernels<T>()}) {
        const double most = twin == &TwinOf(table) ? kHalfBit<T> / 4 : kHalfBit<T>;
        twin->attention_forward(on, {s, qkv.data(), of_twin.data(), of_twin_lse.data()});
        twin->attention_backward(
            on, {s, qkv.data(), out.data(), lse.data(), dout.data(), of_twin_dqkv.data()});
        EXPECT_LT(Apart(out, of_twin), most);
        this->ExpectNear(lse, of_twin_lse);
        EXPECT_LT(Apart(dqkv, of_twin_dqkv), most);
      }
    }
  }
}

#if defined(REGROUP_GPU_EMULATOR)
// Nor which warps are ahead of which: a barrier too few would show.
TYPED_TEST(ShortNumbers, TheOrderOfWarpsChangesNoBitOfTensorCores) {
  using T = TypeParam;
  const AttentionShape s{1, 130, 1, 16};
  const auto qkv = this->Some("qkv", 3 * s.time * 16), dout = this->Some("dout", s.time * 16);
  std::vector<float> lse(Size(s.time)), scratch(Size(AttentionElements(s)));
  std::vector<std::vector<T>> seen;
  for (const auto order : {gpu_emulator::Order::kForward, gpu_emulator::Order::kBackward,
                           gpu_emulator::Order::kShuffled}) {
    gpu_emulator::SetOrder(order);
    std::vector<T> out(dout.size()), dqkv(qkv.size());
    const auto on = this->host_.On(scratch.data());
    CudaKernels<T>().attention_forward(on, {s, qkv.data(), out.data(), lse.data()});
    CudaKernels<T>().attention_backward(
        on, {s, qkv.data(), out.data(), lse.data(), dout.data(), dqkv.data()});
    dqkv.insert(dqkv.end(), out.begin(), out.end());
    seen.push_back(std::move(dqkv));
  }
  gpu_emulator::SetOrder(gpu_emulator::Order::kForward);
  for (const std::vector<T>& other : {seen[1], seen[2]})
    EXPECT_EQ(std::memcmp(other.data(), seen[0].data(), other.size() * sizeof(T)), 0);
}
#endif

// Not so: numbers that cannot be read eight at a time, which lie as they like, and wide heads.
TYPED_TEST(ShortNumbers, AttentionBesideTensorCores) {
  using T = TypeParam;
  struct Case {
    std::int64_t head_width, qkv_at, out_at, dout_at, dqkv_at;  // How far from such an address.
  };
  for (const Case& c : {Case{16, 1, 1, 1, 1},
                        {16, 4, 4, 4, 4},
                        {16, 0, 2, 2, 0},
                        {16, 0, 2, 0, 2},
                        {136, 0, 0, 0, 0}}) {
    SCOPED_TRACE(testing::Message() << c.head_width << " " << c.qkv_at << " " << c.dqkv_at);
    const AttentionShape s{1, 65, 1, c.head_width};
    const std::int64_t wide = 65 * c.head_width;
    const auto room = [](std::int64_t numbers) { return std::vector<T>(Size(numbers + 8)); };
    const auto qkv = this->Some("qkv", 3 * wide + 8), dout = this->Some("dout", wide + 8);
    std::vector<T> out = room(wide), twin_out = out, dqkv = room(3 * wide), twin_dqkv = dqkv;
    std::vector<float> lse(65), twin_lse(65), scratch(Size(AttentionElements(s)));
    const auto on = this->host_.On(scratch.data());
    const KernelTable<T>&table = CudaKernels<T>(), &twin = ReferenceKernels<T>();
    const T *at = qkv.data() + c.qkv_at, *dout_at = dout.data() + c.dout_at;
    table.attention_forward(on, {s, at, out.data() + c.out_at, lse.data()});
    twin.attention_forward(on, {s, at, twin_out.data() + c.out_at, twin_lse.data()});
    this->ExpectRoundedAlike(out, twin_out);
    out = twin_out;
    table.attention_backward(
        on, {s, at, out.data() + c.out_at, twin_lse.data(), dout_at, dqkv.data() + c.dqkv_at});
    twin.attention_backward(
        on, {s, at, out.data() + c.out_at, twin_lse.data(), dout_at, twin_dqkv.data() + c.dqkv_at});
    this->ExpectRoundedAlike(dqkv, twin_dqkv);
  }
}
#endif

TYPED_TEST(ShortNumbers, NarrowAndWiden) {
  using T = TypeParam;
  std::vector<const KernelTable<T>*> tables = this->Tables();
  tables.push_back(&ReferenceKernels<T>());
  for (const KernelTable<T>* table : tables) {
    for (const std::int64_t n : {0, 1, 15, 16, 17, 33'001, 300'001}) {
      const std::vector<float> x = Given<float>("x", n, 3);
      std::vector<T> y(Size(n + 1), T(7.0f));
      std::vector<float> back(Size(n + 1), 7);
      table->narrow(this->host_.On(), {n, x.data(), y.data()});
      table->widen(this->host_.On(), {n, y.data(), back.data()});
      for (std::size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(y[i].bits, T(x[i]).bits) << table->name << " " << i;
        ASSERT_EQ(back[i], static_cast<float>(y[i]));
      }
      EXPECT_EQ(back.back(), 7);
      EXPECT_EQ(static_cast<float>(y.back()), 7);
    }
  }
}

// Each sum is rounded once, and half-way between two numbers to the even one.
TYPED_TEST(ShortNumbers, NarrowAddsToWhatIsThere) {
  using T = TypeParam;
  constexpr float kLast = std::is_same_v<T, BFloat16> ? 0x1p-7f : 0x1p-10f;  // Last bit of 1.
  std::vector<const KernelTable<T>*> tables = this->Tables();
  tables.push_back(&ReferenceKernels<T>());
  for (const KernelTable<T>* table : tables) {
    for (const std::int64_t n : {1, 17, 33'001}) {
      SCOPED_TRACE(testing::Message() << table->name << " " << n);
      std::vector<float> x = Given<float>("x", n, 0.01);
      std::vector<T> before = this->Some("y", n + 1);
      const std::pair<float, float> ties[] = {
          {1, kLast / 2}, {1 + kLast, kLast / 2}, {1, kLast * 0.51f}, {1, -kLast / 4}};
      for (std::size_t i = 0; i < std::size(ties) && n > 1; ++i)
        before[i] = T(ties[i].first), x[i] = ties[i].second;
      std::vector<T> y = before;
      table->narrow(this->host_.On(), {n, x.data(), y.data(), /*add=*/true});
      for (std::size_t i = 0; i < x.size(); ++i)
        ASSERT_EQ(y[i].bits, T(static_cast<float>(before[i]) + x[i]).bits) << i;
      EXPECT_EQ(y.back().bits, before.back().bits);
      if (n == 1) continue;
      const float expected[] = {1, 1 + 2 * kLast, 1 + kLast, 1};
      for (std::size_t i = 0; i < std::size(expected); ++i)
        EXPECT_EQ(static_cast<float>(y[i]), expected[i]) << i;
    }
  }
}

// And what comes after it is not done.
TYPED_TEST(ShortNumbers, AProductThatCanNotBeIsTheStreamsFailure) {
  TypeParam number{};
  const KernelTable<TypeParam>& k = KernelsOf<TypeParam>(BestIsa());
  k.linear_forward(this->host_.On(),
                   {{-1, 2, 3}, WeightOrder::kInOut, &number, &number, nullptr, &number, false});
  const absl::Status status = this->host_.stream->Await();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_NE(status.message().find("-1 x 2 x 3"), std::string::npos) << status;
  float wide = 7;
  k.widen(this->host_.On(), {1, &number, &wide});
  EXPECT_EQ(wide, 7);
}

}  // namespace
}  // namespace regroup::worker
