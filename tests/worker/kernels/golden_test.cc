// Every kernel of every table against PyTorch's fp64.
#include <gtest/gtest.h>

#include <vector>

#include "tests/worker/device/host_compute.h"
#include "tests/worker/golden/golden.h"
#include "tests/worker/kernels/tables.h"

namespace regroup::worker {
namespace {

template <typename T>
class Checker {
 public:
  Checker(const KernelTable<T>& kernels, double tolerance) : k_(kernels), tolerance_(tolerance) {}

  void All() const {
    Linear(WeightOrder::kInOut);
    Linear(WeightOrder::kOutIn);
    LayerNorm();
    Gelu();
    Attention("attention_small", {2, 9, 2, 6});
    Attention("attention_blocks", {1, 141, 2, 20});
    Embedding();
    CrossEntropy();
    AdamW();
  }

 private:
  using Values = std::vector<T>;

  void Expect(const Golden& golden, const char* tensor, const Values& actual) const {
    EXPECT_LT(RelativeError(actual, golden[tensor]), tolerance_) << tensor;
  }
  static Values Room(std::int64_t elements) { return Values(static_cast<std::size_t>(elements)); }

  static Values Transposed(const Values& m, std::int64_t rows, std::int64_t columns) {
    Values t(m.size());
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < columns; ++c) {
        t[static_cast<std::size_t>(c * rows + r)] = m[static_cast<std::size_t>(r * columns + c)];
      }
    }
    return t;
  }

  void Linear(WeightOrder order) const {
    const Golden golden("linear");
    const LinearShape shape{37, 19, 23};
    const bool in_out = order == WeightOrder::kInOut;
    const Values x = Given<T>("x", 37 * 19), b = Given<T>("b", 23), dy = Given<T>("dy", 37 * 23);
    Values w = Given<T>("w", 19 * 23);
    if (!in_out) w = Transposed(w, 19, 23);
    Values y = Room(37 * 23), dx = Room(37 * 19), dw = Room(19 * 23), db = Room(23);
    Values scratch = Room(ColumnSumElements(37, 23));
    k_.linear_forward(host_.On(), {shape, order, x.data(), w.data(), b.data(), y.data(), false});
    ASSERT_TRUE(host_.stream->Await().ok());
    k_.linear_input_grad(host_.On(), {shape, order, dy.data(), w.data(), dx.data()});
    ASSERT_TRUE(host_.stream->Await().ok());
    k_.linear_weight_grad(host_.On(), {shape, order, x.data(), dy.data(), dw.data(), false});
    ASSERT_TRUE(host_.stream->Await().ok());
    k_.bias_grad(host_.On(scratch.data()), {37, 23, dy.data(), db.data(), false});
    Expect(golden, "y", y);
    Expect(golden, "dx", dx);
    Expect(golden, "dw", in_out ? dw : Transposed(dw, 23, 19));
    Expect(golden, "db", db);
  }

  void LayerNorm() const {
    const Golden golden("layer_norm");
    const std::int64_t rows = 35, width = 41, all = rows * width;
    const Values x = Given<T>("x", all, 3, 1), residual = Given<T>("residual", all);
    const Values gain = Given<T>("gain", width, 0.3, 1), bias = Given<T>("bias", width);
    const Values dy = Given<T>("dy", all);
    Values sum = Room(all), y = Room(all), mean = Room(rows), rstd = Room(rows), dx = Room(all);
    Values dgain = Room(width), dbias = Room(width);
    Values scratch = Room(LayerNormElements(rows, width));
    k_.layer_norm_forward(
        host_.On(), {rows, width, x.data(), residual.data(), sum.data(), gain.data(), bias.data(),
                     y.data(), mean.data(), rstd.data()});
    k_.layer_norm_backward(host_.On(scratch.data()),
                           {rows, width, dy.data(), sum.data(), gain.data(), mean.data(),
                            rstd.data(), dx.data(), false, dgain.data(), dbias.data(), false});
    Expect(golden, "sum", sum);
    Expect(golden, "y", y);
    Expect(golden, "dx", dx);
    Expect(golden, "dgain", dgain);
    Expect(golden, "dbias", dbias);
  }

  void Gelu() const {
    const Golden golden("gelu");
    const Values x = Given<T>("x", 1003, 3), dy = Given<T>("dy", 1003);
    Values y = Room(1003), dx = dy;
    k_.gelu_forward(host_.On(), {1003, x.data(), y.data()});
    k_.gelu_backward(host_.On(), {1003, x.data(), dx.data(), dx.data()});
    Expect(golden, "y", y);
    Expect(golden, "dx", dx);
  }

  void Attention(const char* name, const AttentionShape& s) const {
    const Golden golden(name);
    const std::int64_t wide = s.batch * s.time * s.width();
    const Values qkv = Given<T>("qkv", 3 * wide, 1.5), dout = Given<T>("dout", wide);
    Values out = Room(wide), lse = Room(s.batch * s.heads * s.time), dqkv = Room(3 * wide);
    Values scratch = Room(AttentionElements(s));
    k_.attention_forward(host_.On(scratch.data()), {s, qkv.data(), out.data(), lse.data()});
    k_.attention_backward(host_.On(scratch.data()),
                          {s, qkv.data(), out.data(), lse.data(), dout.data(), dqkv.data()});
    Expect(golden, "out", out);
    Expect(golden, "log_sum_exp", lse);
    Expect(golden, "dqkv", dqkv);
  }

  void Embedding() const {
    const Golden golden("embedding");
    const std::int64_t B = 3, time = 11, C = 21, V = 13, positions = 16;
    const auto tokens = GivenTokens("embedding", B * time, V);
    const Values token = Given<T>("token", V * C), position = Given<T>("position", positions * C);
    const Values dout = Given<T>("dout", B * time * C);
    Values out = Room(B * time * C), dtoken(V * C, T(5)), dposition(positions * C, T(5));
    k_.embedding_forward(host_.On(),
                         {B, time, C, tokens.data(), token.data(), position.data(), out.data()});
    k_.embedding_backward(host_.On(), {{B, time, C, V, positions},
                                       tokens.data(),
                                       dout.data(),
                                       dtoken.data(),
                                       false,
                                       dposition.data(),
                                       false});
    Expect(golden, "out", out);
    Expect(golden, "dtoken", dtoken);
    Expect(golden, "dposition", dposition);
  }

  void CrossEntropy() const {
    const Golden golden("cross_entropy");
    Values logits = Given<T>("logits", 33 * 53, 4), losses = Room(33);
    const auto targets = GivenTokens("cross_entropy", 33, 53);
    k_.cross_entropy(host_.On(), {33, 53, logits.data(), targets.data(), 0.25, losses.data()});
    Expect(golden, "losses", losses);
    Expect(golden, "dlogits", logits);
  }

  void AdamW() const {
    const Golden golden("adamw");
    Values weight = Given<T>("weight", 103), first = Room(103), second = Room(103);
    double power1 = 1, power2 = 1;
    for (int step = 0; step < 5; ++step) {
      power1 *= 0.9;
      power2 *= 0.95;
      const AdamWStep parameters = {.lr = 1e-2,
                                    .beta1 = 0.9,
                                    .beta2 = 0.95,
                                    .epsilon = 1e-8,
                                    .weight_decay = 0.1,
                                    .correction1 = 1 - power1,
                                    .correction2 = 1 - power2,
                                    .grad_scale = 0.5};
      const std::string number = std::to_string(step);
      const Values gradient = Given<T>("gradient " + number, 103, 2 * std::pow(10.0, -step));
      k_.adamw(host_.On(),
               {103, parameters, gradient.data(), weight.data(), first.data(), second.data()});
      Expect(golden, ("weight " + number).c_str(), weight);
    }
    Expect(golden, "exp_avg", first);
    Expect(golden, "exp_avg_sq", second);
  }

  HostCompute host_;
  const KernelTable<T>& k_;
  const double tolerance_;
};

TEST(KernelsGolden, TwinsInDouble) {
  Checker<double>(ReferenceKernels<double>(), kDoubleTolerance).All();
}

TEST(KernelsGolden, EveryFloatTable) {
  for (const Kernels* table : FloatTables()) {
    SCOPED_TRACE(table->name);
    Checker<float>(*table, kFloatTolerance).All();
  }
}

}  // namespace
}  // namespace regroup::worker
