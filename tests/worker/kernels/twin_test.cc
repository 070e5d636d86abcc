// Fast kernels against their plain twins in double, at sizes around every border; and what goldens
// can not show: adding to what is there, extreme numbers, independence of the number of threads.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "tests/worker/golden/golden.h"
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
};

INSTANTIATE_TEST_SUITE_P(Tables, EveryTable, testing::ValuesIn(NamedTables()),
                         [](const auto& info) {
                           std::string name = info.param.table->name;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

TEST_P(EveryTable, LinearAddsWhenAsked) {
  for (const WeightOrder order : {WeightOrder::kInOut, WeightOrder::kOutIn}) {
    for (const LinearShape& s : {LinearShape{1, 1, 1}, {3, 64, 17}, {65, 16, 48}}) {
      SCOPED_TRACE(testing::Message() << s.rows << " " << s.in << " " << s.out);
      const Floats x = Given<float>("x", s.rows * s.in), w = Given<float>("w", s.in * s.out);
      const Floats dy = Given<float>("dy", s.rows * s.out), bias = Given<float>("b", s.out);
      for (const float* b : {static_cast<const float*>(nullptr), bias.data()}) {
        Floats y = Given<float>("y", s.rows * s.out);
        Doubles twin_y = Widened(y);
        const Doubles wide_bias = Widened(bias);
        ASSERT_TRUE(k().linear_forward(s, order, x.data(), w.data(), b, y.data(), true).ok());
        ASSERT_TRUE(Twins()
                        .linear_forward(s, order, Widened(x).data(), Widened(w).data(),
                                        b == nullptr ? nullptr : wide_bias.data(), twin_y.data(),
                                        true)
                        .ok());
        EXPECT_LT(RelativeError(y, twin_y), kFloatTolerance);
      }
      Floats dw = Given<float>("dw", s.in * s.out);
      Doubles twin_dw = Widened(dw);
      ASSERT_TRUE(k().linear_weight_grad(s, order, x.data(), dy.data(), dw.data(), true).ok());
      ASSERT_TRUE(Twins()
                      .linear_weight_grad(s, order, Widened(x).data(), Widened(dy).data(),
                                          twin_dw.data(), true)
                      .ok());
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
      ASSERT_TRUE(k().linear_input_grad(s, order, dy.data(), w.data(), dx.data()).ok());
      ASSERT_TRUE(
          Twins()
              .linear_input_grad(s, order, Widened(dy).data(), Widened(w).data(), twin.data())
              .ok());
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
        Floats db = Given<float>("db", out), scratch(Size(ColumnSumScratchElements(rows, out)));
        Doubles twin = Widened(db);
        k().bias_grad(rows, out, dy.data(), db.data(), add, scratch.data());
        Twins().bias_grad(rows, out, Widened(dy).data(), twin.data(), add, nullptr);
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
      Floats scratch(Size(LayerNormScratchElements(rows, width)));
      Doubles ty(Size(all)), tmean(Size(rows)), trstd(Size(rows)), tdx = Widened(dx);
      Doubles tdgain = Widened(dgain), tdbias = Widened(dbias);
      k().layer_norm_forward(rows, width, x.data(), nullptr, nullptr, gain.data(), bias.data(),
                             y.data(), mean.data(), rstd.data());
      k().layer_norm_backward(rows, width, dy.data(), x.data(), gain.data(), mean.data(),
                              rstd.data(), dx.data(), true, dgain.data(), dbias.data(), true,
                              scratch.data());
      Twins().layer_norm_forward(rows, width, Widened(x).data(), nullptr, nullptr,
                                 Widened(gain).data(), Widened(bias).data(), ty.data(),
                                 tmean.data(), trstd.data());
      Twins().layer_norm_backward(rows, width, Widened(dy).data(), Widened(x).data(),
                                  Widened(gain).data(), tmean.data(), trstd.data(), tdx.data(),
                                  true, tdgain.data(), tdbias.data(), true, nullptr);
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
  k().gelu_forward(n, x.data(), y.data());
  k().gelu_backward(n, x.data(), dy.data(), dx.data());
  Twins().gelu_forward(n, Widened(x).data(), twin_y.data());
  Twins().gelu_backward(n, Widened(x).data(), Widened(dy).data(), twin_dx.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(y[i], twin_y[i], 1e-6 * std::fabs(twin_y[i]) + 1e-6) << x[i];
    EXPECT_NEAR(dx[i], twin_dx[i], 1e-6 * std::fabs(twin_dx[i]) + 1e-6) << x[i];
  }
}

TEST_P(EveryTable, NotANumberIsNotHidden) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Floats x(40, 0.5f), y(40), losses(1);
  x[35] = nan;
  k().gelu_forward(40, x.data(), y.data());
  EXPECT_TRUE(std::isnan(y[35]));
  EXPECT_FALSE(std::isnan(y[34]));
  EXPECT_TRUE(std::isnan(k().sum_squares(40, x.data())));
  const std::int32_t target = 3;
  k().cross_entropy(1, 40, x.data(), &target, 1, losses.data());
  EXPECT_TRUE(std::isnan(losses[0]));
}

TEST_P(EveryTable, CrossEntropyOfHugeLogits) {
  for (const std::int64_t V : {1, 5, 16, 257}) {
    Floats logits = Given<float>("logits", 3 * V, 300), losses(3);
    Doubles twin = Widened(logits), twin_losses(3);
    const auto targets = GivenTokens("targets", 3, static_cast<int>(V));
    k().cross_entropy(3, V, logits.data(), targets.data(), 2, losses.data());
    Twins().cross_entropy(3, V, twin.data(), targets.data(), 2, twin_losses.data());
    EXPECT_LT(RelativeError(losses, twin_losses), kFloatTolerance) << V;
    EXPECT_LT(RelativeError(logits, twin), 1e-4) << V;  // exp magnifies the rounding of 1000.
  }
}

TEST_P(EveryTable, AttentionAroundBlockBorders) {
  for (const std::int64_t time : {1, 15, 16, 63, 64, 65, 130}) {
    for (const std::int64_t head_width : {1, 16, 17, 64}) {
      SCOPED_TRACE(testing::Message() << time << " " << head_width);
      const AttentionShape s{1, time, 2, head_width};
      const std::int64_t wide = time * s.width();
      const Floats qkv = Given<float>("qkv", 3 * wide), dout = Given<float>("dout", wide);
      Floats out(Size(wide)), lse(Size(2 * time)), dqkv(Size(3 * wide), 9.0f);
      Floats scratch(Size(AttentionScratchElements(s)), std::nanf(""));
      Doubles tout(Size(wide)), tlse(Size(2 * time)), tdqkv(Size(3 * wide));
      k().attention_forward(s, qkv.data(), out.data(), lse.data(), scratch.data());
      k().attention_backward(s, qkv.data(), out.data(), lse.data(), dout.data(), dqkv.data(),
                             scratch.data());
      Twins().attention_forward(s, Widened(qkv).data(), tout.data(), tlse.data(), nullptr);
      Twins().attention_backward(s, Widened(qkv).data(), tout.data(), tlse.data(),
                                 Widened(dout).data(), tdqkv.data(), nullptr);
      EXPECT_LT(RelativeError(out, tout), kFloatTolerance);
      EXPECT_LT(RelativeError(lse, tlse), kFloatTolerance);
      EXPECT_LT(RelativeError(dqkv, tdqkv), kFloatTolerance);
    }
  }
}

TEST_P(EveryTable, EachEmbeddingGradientIsAddedToOrWritten) {
  const EmbeddingShape shape{.batch = 2, .time = 3, .width = 70, .vocabulary = 5, .positions = 4};
  const std::int64_t rows = shape.batch * shape.time, C = shape.width;
  const auto tokens = GivenTokens("tokens", rows, shape.vocabulary);
  const Floats dout = Given<float>("dout", rows * C);
  for (const bool add_token : {false, true}) {
    for (const bool add_position : {false, true}) {
      Floats dtoken = Given<float>("dt", shape.vocabulary * C);
      Floats dposition = Given<float>("dp", shape.positions * C);
      Doubles twin_token = Widened(dtoken), twin_position = Widened(dposition);
      k().embedding_backward(shape, tokens.data(), dout.data(), dtoken.data(), add_token,
                             dposition.data(), add_position);
      Twins().embedding_backward(shape, tokens.data(), Widened(dout).data(), twin_token.data(),
                                 add_token, twin_position.data(), add_position);
      EXPECT_LT(RelativeError(dtoken, twin_token), kFloatTolerance);
      EXPECT_LT(RelativeError(dposition, twin_position), kFloatTolerance);
    }
  }
}

TEST_P(EveryTable, SumsOverFlatBuffers) {
  for (const std::int64_t n : {1, 15, 1024, 1025, 300'001}) {
    const Floats x = Given<float>("x", n, 1, 0.5);
    double squares = 0, sum = 0;
    for (float v : x) squares += static_cast<double>(v) * v, sum += v;
    EXPECT_NEAR(k().sum_squares(n, x.data()), squares, 1e-6 * squares) << n;
    EXPECT_NEAR(k().sum(n, x.data()), sum, 1e-6 * squares) << n;
  }
}

// Whoever sums which blocks, and in whatever pieces: what they add up to has the same bits.
TEST_P(EveryTable, BlocksAddUpToTheSameSumOfSquares) {
  for (const std::int64_t n : {1, 1023, 1024, 1025, 40'000, 262'144, 1'000'001}) {
    const Floats x = Given<float>("x", n, 1, 0.5);
    const std::int64_t blocks = (n + kSumBlock - 1) / kSumBlock;
    Doubles sums(Size(blocks), -1);
    const std::int64_t cut = blocks / 3 * kSumBlock;
    k().square_blocks(cut, x.data(), sums.data());
    k().square_blocks(n - cut, x.data() + cut, sums.data() + cut / kSumBlock);
    const double squares = k().sum_squares(n, x.data());
    const bool twin = &k() == &ReferenceKernels<float>();  // It adds one by one.
    EXPECT_NEAR(AddBlocks(n, sums.data()), squares, twin ? 1e-12 * squares : 0) << n;
  }
}

// A product of oneDNN's; by one thread, where its bits depend on how many there are.
template <class Product>
void ExpectDone(const Product& product) {
  const int threads = ThreadCount();
  if (!ProductsKeepBits()) SetThreadCount(1);
  EXPECT_TRUE(product().ok());
  SetThreadCount(threads);
}

// All results of one table for one thread count, end to end.
Floats Everything(const Kernels& k) {
  const std::int64_t rows = 130, C = 48, V = 50;
  const AttentionShape attention{2, 65, 3, 16};
  const Floats x = Given<float>("x", rows * C), w = Given<float>("w", C * 3 * C);
  const Floats gain = Given<float>("gain", C), bias = Given<float>("bias", C);
  Floats y(Size(rows * C)), mean(Size(rows)), rstd(Size(rows)), qkv(Size(rows * 3 * C));
  Floats out(Size(rows * C)), lse(Size(rows * 3)), dqkv(Size(rows * 3 * C)), dw(Size(C * 3 * C));
  Floats dx(Size(rows * C)), dnorm(Size(rows * C)), dgain(Size(C)), dbias(Size(C)),
      dqkv_bias(Size(3 * C));
  Floats scratch(Size(ColumnSumScratchElements(rows, 4 * C) + AttentionScratchElements(attention)));
  const LinearShape qkv_shape{rows, C, 3 * C};
  k.layer_norm_forward(rows, C, x.data(), nullptr, nullptr, gain.data(), bias.data(), y.data(),
                       mean.data(), rstd.data());
  ExpectDone([&] {
    return k.linear_forward(qkv_shape, WeightOrder::kInOut, y.data(), w.data(), nullptr, qkv.data(),
                            false);
  });
  k.attention_forward(attention, qkv.data(), out.data(), lse.data(), scratch.data());
  k.attention_backward(attention, qkv.data(), out.data(), lse.data(), x.data(), dqkv.data(),
                       scratch.data());
  k.bias_grad(rows, 3 * C, dqkv.data(), dqkv_bias.data(), false, scratch.data());
  ExpectDone([&] {
    return k.linear_weight_grad(qkv_shape, WeightOrder::kInOut, y.data(), dqkv.data(), dw.data(),
                                false);
  });
  ExpectDone([&] {
    return k.linear_input_grad(qkv_shape, WeightOrder::kInOut, dqkv.data(), w.data(), dnorm.data());
  });
  k.layer_norm_backward(rows, C, dnorm.data(), x.data(), gain.data(), mean.data(), rstd.data(),
                        dx.data(), false, dgain.data(), dbias.data(), false, scratch.data());
  Floats logits = Given<float>("logits", rows * V), losses(Size(rows));
  const auto targets = GivenTokens("t", rows, V);
  k.cross_entropy(rows, V, logits.data(), targets.data(), 1, losses.data());
  Floats all = {static_cast<float>(k.sum_squares(rows * C, dx.data()))};
  for (const Floats* part :
       {&y, &qkv, &out, &lse, &dqkv, &dqkv_bias, &dw, &dx, &dgain, &dbias, &logits, &losses}) {
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

// GPT-2's products, and those of the default model; some sizes are known to round by thread count.
TEST(Onednn, ThreadsDoNotChangeABitOfCommonProducts) {
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
      ASSERT_TRUE(
          k.linear_forward(s, WeightOrder::kInOut, x.data(), w.data(), nullptr, y.data(), false)
              .ok());
      ASSERT_TRUE(k.linear_input_grad(s, WeightOrder::kInOut, dy.data(), w.data(), dx.data()).ok());
      ASSERT_TRUE(
          k.linear_weight_grad(s, WeightOrder::kInOut, x.data(), dy.data(), dw.data(), false).ok());
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
    ASSERT_LE(chunks, ColumnSumScratchElements(rows, 1));
    ASSERT_LE(ColumnSumScratchElements(rows, 1), ColumnSumScratchElements(rows + 1, 1));
  }
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

TEST(Onednn, AFailureIsAStatusWithTheShape) {
  float number = 0;
  const absl::Status status = KernelsFor(Isa::kBaseline)
                                  .linear_forward({-1, 2, 3}, WeightOrder::kInOut, &number, &number,
                                                  nullptr, &number, false);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_NE(status.message().find("-1 x 2 x 3"), std::string::npos) << status;
}

}  // namespace
}  // namespace regroup::worker
