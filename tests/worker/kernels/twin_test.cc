// Fast kernels against their plain twins in double, at sizes around every border; and what goldens
// can not show: adding to what is there, extreme numbers, independence of the number of threads.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "tests/worker/device/host_compute.h"
#include "tests/worker/golden/golden.h"
#if defined(REGROUP_GPU_EMULATOR)
#include "tests/worker/gpu_emulator/gpu_emulator.h"
#endif
#include "tests/worker/kernels/tables.h"
#include "worker/kernels/fixed_chunks.h"
#include "worker/kernels/parallel_for.h"

namespace regroup::worker {
namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

Doubles Widened(const Floats& values) { return Doubles(values.begin(), values.end()); }

std::size_t Size(std::int64_t elements) { return static_cast<std::size_t>(elements); }

const KernelTable<double>& Twins() { return ReferenceKernels<double>(); }

struct Named {
  const Kernels* table;
  friend void PrintTo(const Named& named, std::ostream* out) { *out << named.table->name; }
};

std::vector<Named> NamedTables() {
  std::vector<Named> tables;
  for (const Kernels* table : FloatTables()) tables.push_back({table});
  return tables;
}

class EveryTable : public testing::TestWithParam<Named> {
 protected:
  const Kernels& k() const { return *GetParam().table; }
  double SumSquares(std::int64_t elements, const float* x) const {
    double sum = -1;
    k().sum_squares(host_.On(), {elements, x, &sum});
    Doubles workspace(Size(kSumChunks), std::nan(""));
    double other = -1;
    k().sum_squares(host_.On(workspace.data()), {elements, x, &other});
    EXPECT_EQ(host_.stream->Await(), absl::OkStatus());
    EXPECT_EQ(std::bit_cast<std::uint64_t>(sum), std::bit_cast<std::uint64_t>(other)) << elements;
    return sum;
  }
  HostCompute host_;
};

INSTANTIATE_TEST_SUITE_P(Tables, EveryTable, testing::ValuesIn(NamedTables()),
                         [](const auto& info) {
                           std::string name = info.param.table->name;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

TEST_P(EveryTable, LinearAddsWhenAsked) {
  for (const WeightOrder order : {WeightOrder::kInOut, WeightOrder::kOutIn}) {
    for (const LinearShape& s : {LinearShape{1, 1, 1}, {3, 64, 17}, {65, 16, 48}, {70, 20, 150}}) {
      SCOPED_TRACE(testing::Message() << s.rows << " " << s.in << " " << s.out);
      const Floats x = Given<float>("x", s.rows * s.in), w = Given<float>("w", s.in * s.out);
      const Floats dy = Given<float>("dy", s.rows * s.out), bias = Given<float>("b", s.out);
      for (const float* b : {static_cast<const float*>(nullptr), bias.data()}) {
        Floats y = Given<float>("y", s.rows * s.out);
        Doubles twin_y = Widened(y);
        const Doubles wide_bias = Widened(bias);
        k().linear_forward(host_.On(), {s, order, x.data(), w.data(), b, y.data(), true});
        ASSERT_TRUE(host_.stream->Await().ok());
        Twins().linear_forward(host_.On(),
                               {s, order, Widened(x).data(), Widened(w).data(),
                                b == nullptr ? nullptr : wide_bias.data(), twin_y.data(), true});
        ASSERT_TRUE(host_.stream->Await().ok());
        EXPECT_LT(RelativeError(y, twin_y), kFloatTolerance);
      }
      Floats dw = Given<float>("dw", s.in * s.out);
      Doubles twin_dw = Widened(dw);
      k().linear_weight_grad(host_.On(), {s, order, x.data(), dy.data(), dw.data(), true});
      ASSERT_TRUE(host_.stream->Await().ok());
      Twins().linear_weight_grad(
          host_.On(), {s, order, Widened(x).data(), Widened(dy).data(), twin_dw.data(), true});
      ASSERT_TRUE(host_.stream->Await().ok());
      EXPECT_LT(RelativeError(dw, twin_dw), kFloatTolerance);
    }
  }
}

TEST_P(EveryTable, InputGradientsOfFewAndManyRows) {
  for (const WeightOrder order : {WeightOrder::kInOut, WeightOrder::kOutIn}) {
    for (const LinearShape& s : {LinearShape{1024, 8, 19}, {1024, 19, 8}, {7, 8, 19}}) {
      const Floats w = Given<float>("w", s.in * s.out), dy = Given<float>("dy", s.rows * s.out);
      Floats dx(Size(s.rows * s.in), 3.0f);
      Doubles twin(dx.size());
      k().linear_input_grad(host_.On(), {s, order, dy.data(), w.data(), dx.data()});
      ASSERT_TRUE(host_.stream->Await().ok());
      Twins().linear_input_grad(host_.On(),
                                {s, order, Widened(dy).data(), Widened(w).data(), twin.data()});
      ASSERT_TRUE(host_.stream->Await().ok());
      EXPECT_LT(RelativeError(dx, twin), kFloatTolerance) << s.rows << " " << s.in;
    }
  }
}

TEST_P(EveryTable, ColumnSums) {
  for (const bool add : {false, true}) {
    for (const std::int64_t rows : {1, 15, 16, 17, 64 * 16, 64 * 16 + 1, 2100}) {
      for (const std::int64_t out : {1, 15, 33, 600}) {
        SCOPED_TRACE(testing::Message() << rows << " " << out);
        const Floats dy = Given<float>("dy", rows * out, 1, 1);
        Floats db = Given<float>("db", out), scratch(Size(ColumnSumElements(rows, out)));
        Doubles twin = Widened(db);
        k().bias_grad(host_.On(scratch.data()), {rows, out, dy.data(), db.data(), add});
        Twins().bias_grad(host_.On(), {rows, out, Widened(dy).data(), twin.data(), add});
        EXPECT_LT(RelativeError(db, twin), kFloatTolerance);
      }
    }
  }
}

TEST_P(EveryTable, LayerNormAddsWhenAsked) {
  for (const std::int64_t rows : {1, 3, 40, 1100}) {
    for (const std::int64_t width : {1, 7, 16, 64, 100}) {
      if (rows == 1100 && width != 7) continue;
      SCOPED_TRACE(testing::Message() << rows << " " << width);
      const std::int64_t all = rows * width;
      const Floats x = Given<float>("x", all), gain = Given<float>("gain", width);
      const Floats bias = Given<float>("bias", width), dy = Given<float>("dy", all);
      Floats y(Size(all)), mean(Size(rows)), rstd(Size(rows)), dx = Given<float>("dx", all);
      Floats dgain = Given<float>("dg", width), dbias = Given<float>("db", width);
      Floats scratch(Size(LayerNormElements(rows, width)));
      Doubles ty(Size(all)), tmean(Size(rows)), trstd(Size(rows)), tdx = Widened(dx);
      Doubles tdgain = Widened(dgain), tdbias = Widened(dbias);
      k().layer_norm_forward(host_.On(), {rows, width, x.data(), nullptr, nullptr, gain.data(),
                                          bias.data(), y.data(), mean.data(), rstd.data()});
      k().layer_norm_backward(host_.On(scratch.data()),
                              {rows, width, dy.data(), x.data(), gain.data(), mean.data(),
                               rstd.data(), dx.data(), true, dgain.data(), dbias.data(), true});
      Twins().layer_norm_forward(
          host_.On(), {rows, width, Widened(x).data(), nullptr, nullptr, Widened(gain).data(),
                       Widened(bias).data(), ty.data(), tmean.data(), trstd.data()});
      Twins().layer_norm_backward(
          host_.On(),
          {rows, width, Widened(dy).data(), Widened(x).data(), Widened(gain).data(), tmean.data(),
           trstd.data(), tdx.data(), true, tdgain.data(), tdbias.data(), true});
      EXPECT_LT(RelativeError(y, ty), kFloatTolerance);
      // Rows of few numbers may be nearly constant; then the norm magnifies the rounding of its
      // input.
      EXPECT_LT(RelativeError(dx, tdx), width < 16 ? 1e-3 : kFloatTolerance);
      EXPECT_LT(RelativeError(dgain, tdgain), width < 16 ? 1e-3 : kFloatTolerance);
      EXPECT_LT(RelativeError(dbias, tdbias), kFloatTolerance);
    }
  }
}

TEST_P(EveryTable, GeluAtExtremes) {
  const Floats x = {0.0f, -0.0f, 1e-30f, 20, -20, 100, -100, 1e4f, -1e4f, -5.5f, -3, 3};
  const Floats dy(x.size(), 1.0f);
  Floats y(x.size()), dx(x.size());
  Doubles twin_y(x.size()), twin_dx(x.size());
  const auto n = static_cast<std::int64_t>(x.size());
  k().gelu_forward(host_.On(), {n, x.data(), y.data()});
  k().gelu_backward(host_.On(), {n, x.data(), dy.data(), dx.data()});
  Twins().gelu_forward(host_.On(), {n, Widened(x).data(), twin_y.data()});
  Twins().gelu_backward(host_.On(), {n, Widened(x).data(), Widened(dy).data(), twin_dx.data()});
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(y[i], twin_y[i], 1e-6 * std::fabs(twin_y[i]) + 1e-6) << x[i];
    EXPECT_NEAR(dx[i], twin_dx[i], 1e-6 * std::fabs(twin_dx[i]) + 1e-6) << x[i];
  }
}

TEST_P(EveryTable, NotANumberIsNotHidden) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Floats x(40, 0.5f), y(40), losses(1);
  x[35] = nan;
  k().gelu_forward(host_.On(), {40, x.data(), y.data()});
  EXPECT_TRUE(std::isnan(y[35]));
  EXPECT_FALSE(std::isnan(y[34]));
  EXPECT_TRUE(std::isnan(SumSquares(40, x.data())));
  const std::int32_t target = 3;
  k().cross_entropy(host_.On(), {1, 40, x.data(), &target, 1, losses.data()});
  EXPECT_TRUE(std::isnan(losses[0]));
}

TEST_P(EveryTable, CrossEntropyOfHugeLogits) {
  for (const std::int64_t V : {1, 5, 16, 257, 1300}) {
    Floats logits = Given<float>("logits", 3 * V, 300), losses(3);
    Doubles twin = Widened(logits), twin_losses(3);
    const auto targets = GivenTokens("targets", 3, static_cast<int>(V));
    k().cross_entropy(host_.On(), {3, V, logits.data(), targets.data(), 2, losses.data()});
    Twins().cross_entropy(host_.On(), {3, V, twin.data(), targets.data(), 2, twin_losses.data()});
    EXPECT_LT(RelativeError(losses, twin_losses), kFloatTolerance) << V;
    EXPECT_LT(RelativeError(logits, twin), 1e-4) << V;  // exp magnifies the rounding of 1000.
  }
}

TEST_P(EveryTable, AttentionAroundBlockBorders) {
  for (const std::int64_t time : {1, 15, 16, 63, 64, 65, 130}) {
    for (const std::int64_t head_width : {1, 16, 17, 64, 70, 130}) {
      if (head_width > 64 && time != 65) continue;
      SCOPED_TRACE(testing::Message() << time << " " << head_width);
      const AttentionShape s{1, time, 2, head_width};
      const std::int64_t wide = time * s.width();
      const Floats qkv = Given<float>("qkv", 3 * wide), dout = Given<float>("dout", wide);
      Floats out(Size(wide)), lse(Size(2 * time)), dqkv(Size(3 * wide), 9.0f);
      Floats scratch(Size(AttentionElements(s)), std::nanf(""));
      Doubles tout(Size(wide)), tlse(Size(2 * time)), tdqkv(Size(3 * wide));
      k().attention_forward(host_.On(scratch.data()), {s, qkv.data(), out.data(), lse.data()});
      k().attention_backward(host_.On(scratch.data()),
                             {s, qkv.data(), out.data(), lse.data(), dout.data(), dqkv.data()});
      Twins().attention_forward(host_.On(), {s, Widened(qkv).data(), tout.data(), tlse.data()});
      Twins().attention_backward(host_.On(), {s, Widened(qkv).data(), tout.data(), tlse.data(),
                                              Widened(dout).data(), tdqkv.data()});
      EXPECT_LT(RelativeError(out, tout), kFloatTolerance);
      EXPECT_LT(RelativeError(lse, tlse), kFloatTolerance);
      EXPECT_LT(RelativeError(dqkv, tdqkv), kFloatTolerance);
    }
  }
}

// Also of more rows and numbers of one than a block of a GPU has threads.
TEST_P(EveryTable, EachEmbeddingGradientIsAddedToOrWritten) {
  for (const EmbeddingShape& shape :
       {EmbeddingShape{.batch = 2, .time = 3, .width = 70, .vocabulary = 5, .positions = 4},
        {.batch = 6, .time = 130, .width = 300, .vocabulary = 40, .positions = 132}}) {
    const std::int64_t rows = shape.batch * shape.time, C = shape.width;
    const auto tokens = GivenTokens("tokens", rows, shape.vocabulary);
    const Floats dout = Given<float>("dout", rows * C);
    const Floats tokens_table = Given<float>("wte", shape.vocabulary * C);
    const Floats positions_table = Given<float>("wpe", shape.positions * C);
    Floats out(Size(rows * C));
    Doubles twin_out(out.size());
    k().embedding_forward(host_.On(), {shape.batch, shape.time, C, tokens.data(),
                                       tokens_table.data(), positions_table.data(), out.data()});
    Twins().embedding_forward(
        host_.On(), {shape.batch, shape.time, C, tokens.data(), Widened(tokens_table).data(),
                     Widened(positions_table).data(), twin_out.data()});
    EXPECT_LT(RelativeError(out, twin_out), kFloatTolerance);
    for (const bool add_token : {false, true}) {
      for (const bool add_position : {false, true}) {
        Floats dtoken = Given<float>("dt", shape.vocabulary * C);
        Floats dposition = Given<float>("dp", shape.positions * C);
        Doubles twin_token = Widened(dtoken), twin_position = Widened(dposition);
        k().embedding_backward(host_.On(), {shape, tokens.data(), dout.data(), dtoken.data(),
                                            add_token, dposition.data(), add_position});
        Twins().embedding_backward(
            host_.On(), {shape, tokens.data(), Widened(dout).data(), twin_token.data(), add_token,
                         twin_position.data(), add_position});
        EXPECT_LT(RelativeError(dtoken, twin_token), kFloatTolerance);
        EXPECT_LT(RelativeError(dposition, twin_position), kFloatTolerance);
      }
    }
  }
}

// The largest scores are those of the first keys, and what later ones add is nothing beside them.
TEST_P(EveryTable, AttentionWhoseScoresFall) {
  const AttentionShape s{1, 130, 1, 16};
  Floats qkv = Given<float>("qkv", 3 * s.time * 16), out(Size(s.time * 16)), lse(Size(s.time));
  for (std::int64_t t = 0; t < s.time; ++t) {
    for (std::int64_t d = 0; d < 16; ++d) {
      qkv[Size(t * 48 + d)] = 4;
      qkv[Size(t * 48 + 16 + d)] = static_cast<float>(s.time - t) / 4;
    }
  }
  Floats scratch(Size(AttentionElements(s)), std::nanf(""));
  Doubles tout(out.size()), tlse(lse.size());
  k().attention_forward(host_.On(scratch.data()), {s, qkv.data(), out.data(), lse.data()});
  Twins().attention_forward(host_.On(), {s, Widened(qkv).data(), tout.data(), tlse.data()});
  EXPECT_LT(RelativeError(out, tout), kFloatTolerance);
  EXPECT_LT(RelativeError(lse, tlse), kFloatTolerance);
}

TEST_P(EveryTable, AdamWOfGradientsBelowEpsilon) {
  const AdamWStep step{.lr = 0.5,
                       .beta1 = 0.9,
                       .beta2 = 0.95,
                       .epsilon = 1e-8,
                       .weight_decay = 0,
                       .correction1 = 0.1,
                       .correction2 = 0.05};
  const Floats gradient(40, 1e-9f);
  Floats weight(40), first(40), second(40);
  Doubles twin(40), twin_first(40), twin_second(40);
  k().adamw(host_.On(), {40, step, gradient.data(), weight.data(), first.data(), second.data()});
  Twins().adamw(host_.On(), {40, step, Widened(gradient).data(), twin.data(), twin_first.data(),
                             twin_second.data()});
  EXPECT_LT(RelativeError(weight, twin), kFloatTolerance);
}

TEST_P(EveryTable, SumsOverFlatBuffers) {
  for (const std::int64_t n : {1, 15, 1024, 1025, 300'001}) {
    const Floats x = Given<float>("x", n, 1, 0.5);
    double squares = 0, sum = 0;
    for (float v : x) squares += static_cast<double>(v) * v, sum += v;
    EXPECT_NEAR(SumSquares(n, x.data()), squares, 1e-6 * squares) << n;
    double total = -1;
    k().sum(host_.On(), {n, x.data(), &total});
    EXPECT_NEAR(total, sum, 1e-6 * squares) << n;
    // To what is there, to the bit.
    const double once = total;
    k().sum(host_.On(), {n, x.data(), &total, /*add=*/true});
    EXPECT_EQ(total, once + once) << n;
    double twice = 0.5;
    k().sum_squares(host_.On(), {n, x.data(), &twice, /*add=*/true});
    EXPECT_EQ(twice, 0.5 + SumSquares(n, x.data())) << n;
  }
}

// Whoever sums which blocks, and in whatever pieces: what they add up to has the same bits.
TEST_P(EveryTable, BlocksAddUpToTheSameSumOfSquares) {
  for (const std::int64_t n : {1, 1023, 1024, 1025, 40'000, 262'144, 1'000'001}) {
    const Floats x = Given<float>("x", n, 1, 0.5);
    const std::int64_t blocks = (n + kSumBlock - 1) / kSumBlock;
    Doubles sums(Size(blocks), -1);
    const std::int64_t cut = blocks / 3 * kSumBlock;
    k().square_blocks(host_.On(), {cut, x.data(), sums.data()});
    k().square_blocks(host_.On(), {n - cut, x.data() + cut, sums.data() + cut / kSumBlock});
    const double squares = SumSquares(n, x.data());
    const bool twin = &k() == &ReferenceKernels<float>();  // It adds one by one.
    EXPECT_NEAR(AddBlocks(n, sums.data()), squares, twin ? 1e-12 * squares : 0) << n;
  }
}

// A product of oneDNN's; by one thread, where its bits depend on how many there are.
template <class Product>
void Multiply(const Product& product) {
  const int threads = ThreadCount();
  if (!ProductsKeepBits()) SetThreadCount(1);
  product();
  SetThreadCount(threads);
}

// All results of one table for one thread count, end to end.
Floats Everything(const Kernels& k) {
  HostCompute host;
  const std::int64_t rows = 130, C = 48, V = 50;
  const AttentionShape attention{2, 65, 3, 16};
  const Floats x = Given<float>("x", rows * C), w = Given<float>("w", C * 3 * C);
  const Floats gain = Given<float>("gain", C), bias = Given<float>("bias", C);
  Floats y(Size(rows * C)), mean(Size(rows)), rstd(Size(rows)), qkv(Size(rows * 3 * C));
  Floats out(Size(rows * C)), lse(Size(rows * 3)), dqkv(Size(rows * 3 * C)), dw(Size(C * 3 * C));
  Floats dx(Size(rows * C)), dnorm(Size(rows * C)), dgain(Size(C)), dbias(Size(C)),
      dqkv_bias(Size(3 * C));
  Floats scratch(Size(ColumnSumElements(rows, 4 * C) + AttentionElements(attention)));
  const LinearShape qkv_shape{rows, C, 3 * C};
  k.layer_norm_forward(host.On(), {rows, C, x.data(), nullptr, nullptr, gain.data(), bias.data(),
                                   y.data(), mean.data(), rstd.data()});
  Multiply([&] {
    k.linear_forward(host.On(), {qkv_shape, WeightOrder::kInOut, y.data(), w.data(), nullptr,
                                 qkv.data(), false});
  });
  k.attention_forward(host.On(scratch.data()), {attention, qkv.data(), out.data(), lse.data()});
  k.attention_backward(host.On(scratch.data()),
                       {attention, qkv.data(), out.data(), lse.data(), x.data(), dqkv.data()});
  k.bias_grad(host.On(scratch.data()), {rows, 3 * C, dqkv.data(), dqkv_bias.data(), false});
  Multiply([&] {
    k.linear_weight_grad(host.On(),
                         {qkv_shape, WeightOrder::kInOut, y.data(), dqkv.data(), dw.data(), false});
  });
  Multiply([&] {
    k.linear_input_grad(host.On(),
                        {qkv_shape, WeightOrder::kInOut, dqkv.data(), w.data(), dnorm.data()});
  });
  k.layer_norm_backward(host.On(scratch.data()),
                        {rows, C, dnorm.data(), x.data(), gain.data(), mean.data(), rstd.data(),
                         dx.data(), false, dgain.data(), dbias.data(), false});
  Floats logits = Given<float>("logits", rows * V), losses(Size(rows));
  const auto targets = GivenTokens("t", rows, V);
  k.cross_entropy(host.On(), {rows, V, logits.data(), targets.data(), 1, losses.data()});
  const EmbeddingShape embedding{2, 65, C, V, 70};
  Floats dtoken(Size(V * C)), dposition(Size(70 * C));
  k.embedding_backward(host.On(), {embedding, targets.data(), dx.data(), dtoken.data(), false,
                                   dposition.data(), false});
  double squares = 0;
  k.sum_squares(host.On(), {rows * C, dx.data(), &squares});
  EXPECT_TRUE(host.stream->Await().ok());
  Floats all = {static_cast<float>(squares)};
  for (const Floats* part : {&y, &qkv, &out, &lse, &dqkv, &dqkv_bias, &dw, &dx, &dgain, &dbias,
                             &logits, &losses, &dtoken, &dposition}) {
    all.insert(all.end(), part->begin(), part->end());
  }
  return all;
}

TEST_P(EveryTable, ThreadsDoNotChangeABit) {
  const int before = ThreadCount();
  SetThreadCount(1);
  const Floats one = Everything(k());
  for (const int threads : {2, 3, 5}) {
    SetThreadCount(threads);
    const Floats many = Everything(k());
    EXPECT_EQ(std::memcmp(one.data(), many.data(), one.size() * sizeof(float)), 0) << threads;
  }
  SetThreadCount(before);
}

#if defined(REGROUP_CUDA_TABLE)
#if defined(REGROUP_GPU_EMULATOR)
constexpr double kSlopeTolerance = kFloatTolerance;
#else
constexpr double kSlopeTolerance = 2e-3;
#endif
// Of what GELU was given, in one; 16 numbers wide, and 19.
TEST(CudaKernels, InputGradientsThroughGelu) {
  const HostCompute host;
  for (const WeightOrder order : {WeightOrder::kInOut, WeightOrder::kOutIn}) {
    for (const LinearShape& s : {LinearShape{33, 16, 19}, {7, 19, 8}}) {
      const Floats w = Given<float>("w", s.in * s.out), dy = Given<float>("dy", s.rows * s.out),
                   x = Given<float>("x", s.rows * s.in);
      Floats dx(Size(s.rows * s.in), 3.0f);
      Doubles twin(dx.size());
      CudaKernels<float>().linear_gelu_input_grad(
          host.On(), {{s, order, dy.data(), w.data(), dx.data()}, x.data()});
      ASSERT_TRUE(host.stream->Await().ok());
      Twins().linear_input_grad(host.On(),
                                {s, order, Widened(dy).data(), Widened(w).data(), twin.data()});
      Twins().gelu_backward(host.On(),
                            {s.rows * s.in, Widened(x).data(), twin.data(), twin.data()});
      ASSERT_TRUE(host.stream->Await().ok());
      // A library may take the slope by tanh as GPUs have it, to 2^-11.
      EXPECT_LT(RelativeError(dx, twin), kSlopeTolerance) << s.rows << " " << s.in;
    }
  }
}
#endif

#if defined(REGROUP_GPU_EMULATOR)
// Nor which threads of a GPU are ahead of which: a barrier too few would show.
TEST(CudaKernels, TheOrderOfThreadsChangesNoBit) {
  // A chunk of it is more than the warps of a block have at once.
  const Floats many = Given<float>("many", kSumChunks * 9 * kSumBlock, 1, 0.5);
  const auto sum = [&] {
    HostCompute host;
    Doubles workspace(Size(kSumChunks));
    double total = 0;
    CudaKernels<float>().sum(host.On(workspace.data()),
                             {static_cast<std::int64_t>(many.size()), many.data(), &total});
    return total;
  };
  const Floats forward = Everything(CudaKernels<float>());
  const double forward_sum = sum();
  for (const auto order : {gpu_emulator::Order::kBackward, gpu_emulator::Order::kShuffled}) {
    gpu_emulator::SetOrder(order);
    EXPECT_EQ(sum(), forward_sum);
    const Floats other = Everything(CudaKernels<float>());
    EXPECT_EQ(std::memcmp(forward.data(), other.data(), forward.size() * sizeof(float)), 0);
  }
  gpu_emulator::SetOrder(gpu_emulator::Order::kForward);
}

TEST(CudaKernels, HeadsThatAreTooWideAreRefused) {
  for (const std::int64_t width : {65, 129, 256, 257}) {
    HostCompute host;
    const AttentionShape s{1, 3, 1, width};
    const Floats qkv = Given<float>("qkv", 9 * width);
    Floats out(Size(3 * width)), lse(3);
    Doubles twin(out.size()), twin_lse(3);
    CudaKernels<float>().attention_forward(host.On(), {s, qkv.data(), out.data(), lse.data()});
    Twins().attention_forward(host.On(), {s, Widened(qkv).data(), twin.data(), twin_lse.data()});
    if (width <= 256) {
      EXPECT_LT(RelativeError(out, twin), kFloatTolerance);
      EXPECT_EQ(host.stream->Await(), absl::OkStatus());
    } else {
      EXPECT_EQ(host.stream->Await(),
                absl::InvalidArgumentError("attention on a GPU: a head has more than 256 numbers"));
    }
  }
}
#endif

// GPT-2's products, and those of the default model; some sizes are known to round by thread count.
TEST(Onednn, ThreadsDoNotChangeABitOfCommonProducts) {
  HostCompute host;
  const Kernels& k = KernelsFor(BestIsa());
  const int before = ThreadCount();
  for (const LinearShape& s : {LinearShape{256, 768, 3072},
                               {256, 3072, 768},
                               {256, 768, 2304},
                               {512, 384, 1536},
                               {512, 384, 1152}}) {
    const Floats x = Given<float>("x", s.rows * s.in), w = Given<float>("w", s.in * s.out);
    const Floats dy = Given<float>("dy", s.rows * s.out);
    std::vector<Floats> results;
    for (const int threads : {1, 2, 3}) {
      SetThreadCount(threads);
      Floats y(dy.size()), dx(x.size()), dw(w.size());
      k.linear_forward(host.On(),
                       {s, WeightOrder::kInOut, x.data(), w.data(), nullptr, y.data(), false});
      ASSERT_TRUE(host.stream->Await().ok());
      k.linear_input_grad(host.On(), {s, WeightOrder::kInOut, dy.data(), w.data(), dx.data()});
      ASSERT_TRUE(host.stream->Await().ok());
      k.linear_weight_grad(host.On(),
                           {s, WeightOrder::kInOut, x.data(), dy.data(), dw.data(), false});
      ASSERT_TRUE(host.stream->Await().ok());
      for (const Floats* part : {&dx, &dw}) y.insert(y.end(), part->begin(), part->end());
      results.push_back(std::move(y));
    }
    SCOPED_TRACE(::testing::Message() << s.rows << " " << s.in << " " << s.out);
    for (const Floats& other : {results[1], results[2]}) ExpectSameProducts(results[0], other);
  }
  SetThreadCount(before);
}

TEST(FixedChunks, ScratchCoversEveryNumberOfRowsUpToTheLargest) {
  for (std::int64_t rows = 1; rows <= 3000; ++rows) {
    const std::int64_t chunk = ChunkRows(rows), chunks = (rows + chunk - 1) / chunk;
    ASSERT_LE(chunks, kMaxRowChunks);
    ASSERT_LE(chunks, ColumnSumElements(rows, 1));
    ASSERT_LE(ColumnSumElements(rows, 1), ColumnSumElements(rows + 1, 1));
  }
}

TEST(AttentionElements, HaveANumberForEachRowOfEveryHead) {
  EXPECT_GE(AttentionElements({.batch = 4096, .time = 16, .heads = 4, .head_width = 8}),
            4096 * 16 * 4);
}

TEST(ParallelFor, EveryTaskOnceOnAKnownThread) {
  const int before = ThreadCount();
  for (const int threads : {1, 2, 4}) {
    SetThreadCount(threads);
    for (const std::int64_t tasks : {0, 1, 2, 1000}) {
      std::vector<int> runs(Size(tasks)), thread_of(Size(tasks), -1);
      ParallelFor(tasks, [&](std::int64_t task, int thread) {
        ++runs[Size(task)];
        thread_of[Size(task)] = thread;
      });
      for (std::int64_t t = 0; t < tasks; ++t) {
        ASSERT_EQ(runs[Size(t)], 1);
        ASSERT_GE(thread_of[Size(t)], 0);
        ASSERT_LT(thread_of[Size(t)], threads);
      }
    }
  }
  SetThreadCount(before);
}

// And what comes after it is not done.
TEST(Onednn, AFailureIsTheStreamsWithTheShape) {
  HostCompute host;
  float number = 2;
  const Kernels& k = KernelsFor(Isa::kBaseline);
  k.linear_forward(host.On(),
                   {{-1, 2, 3}, WeightOrder::kInOut, &number, &number, nullptr, &number, false});
  const absl::Status status = host.stream->Await();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_NE(status.message().find("-1 x 2 x 3"), std::string::npos) << status;
  double sum = 7;
  k.sum(host.On(), {1, &number, &sum});
  EXPECT_EQ(sum, 7);
}

// Whoever does which part of a tensor, and by how many threads.
TEST_P(EveryTable, UpdatesAreOfEachElementAlone) {
  constexpr std::int64_t kFirst = 5 * kSumBlock + 100, kCount = 40 * kSumBlock + 17,
                         kCut = 6 * kSumBlock - kFirst;  // On a border of blocks.
  const Floats gradient = Given<float>("g", kCount);
  const std::size_t blocks = Size((kFirst + kCount - 1) / kSumBlock - kFirst / kSumBlock + 1);
  const SgdStep<float> sgd{
      .scale = 0.5f, .decay = 0.1f, .momentum = 0.9f, .rate = 0.7f, .lr = 0.01f};
  const LambStep<float> lamb{.scale = 0.5f,
                             .rate1 = 0.1f,
                             .beta2 = 0.95f,
                             .rate2 = 0.05f,
                             .correction1 = 2,
                             .root2 = 3,
                             .epsilon = 1e-6f,
                             .decay = 0.1f,
                             .lr = 0.01f};
  struct Updated {
    Floats weight = Given<float>("w", kCount), first = Given<float>("m", kCount),
           second = Floats(Size(kCount), 0.25f);
    Doubles of_weights, of_others;
  };
  const auto update = [&](const Kernels& table, int threads, std::int64_t cut) {
    const int before = ThreadCount();
    SetThreadCount(threads);
    Updated u;
    u.of_weights.resize(2 * blocks), u.of_others.resize(2 * blocks);
    for (const auto& [from, count] : {std::pair(std::int64_t{0}, cut), {cut, kCount - cut}}) {
      const float* g = gradient.data() + from;
      float *w = u.weight.data() + from, *m = u.first.data() + from, *v = u.second.data() + from;
      const std::int64_t block = (kFirst + from) / kSumBlock - kFirst / kSumBlock;
      for (const bool moments : {false, true}) {
        const std::size_t at = (moments ? blocks : 0) + Size(block);
        table.trust_squares(host_.On(),
                            {kFirst + from, count, lamb, g, w, moments ? m : nullptr,
                             moments ? v : nullptr, &u.of_weights[at], &u.of_others[at]});
      }
      table.sgd(host_.On(), {count, sgd, g, w, m});
      table.lamb(host_.On(), {count, lamb, g, w, m, v});
    }
    SetThreadCount(before);
    return u;
  };
  const Updated whole = update(k(), 1, 0);
  const Updated twin = update(ReferenceKernels<float>(), 1, 0);
  EXPECT_LT(RelativeError(whole.weight, Widened(twin.weight)), 1e-6);
  EXPECT_LT(RelativeError(whole.first, Widened(twin.first)), 1e-6);
  EXPECT_LT(RelativeError(whole.second, Widened(twin.second)), 1e-6);
  for (std::size_t b = 0; b < whole.of_others.size(); ++b) {
    EXPECT_NEAR(whole.of_weights[b], twin.of_weights[b], 1e-6 * twin.of_weights[b]) << b;
    EXPECT_NEAR(whole.of_others[b], twin.of_others[b], 1e-6 * twin.of_others[b]) << b;
  }
  double weights = 0, squares = 0;
  for (const float w : Given<float>("w", kCount)) weights += static_cast<double>(w) * w;
  for (std::size_t b = 0; b < blocks; ++b) squares += whole.of_weights[b];
  EXPECT_NEAR(squares, weights, 1e-9 * weights);
  for (const Updated& parts : {update(k(), 3, 0), update(k(), 2, kCut)}) {
    EXPECT_EQ(parts.weight, whole.weight);
    EXPECT_EQ(parts.first, whole.first);
    EXPECT_EQ(parts.second, whole.second);
    EXPECT_EQ(parts.of_weights, whole.of_weights);
    EXPECT_EQ(parts.of_others, whole.of_others);
  }
}

}  // namespace
}  // namespace regroup::worker
