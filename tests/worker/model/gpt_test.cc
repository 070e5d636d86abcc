#include "worker/model/gpt.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "tests/worker/device/host_compute.h"
#include "tests/worker/golden/golden.h"
#include "tests/worker/kernels/tables.h"
#include "worker/kernels/parallel_for.h"
#include "worker/model/runner.h"
#include "worker/optim/optimizer.h"
#include "worker/optim/schedule.h"
#include "worker/plan/plan.h"
#include "worker/tensor/counter_rng.h"

namespace regroup::worker {
namespace {

constexpr GptConfig kTiny = {.layers = 2, .width = 24, .heads = 3, .vocabulary = 29, .context = 12};
constexpr std::int64_t kBatch = 4;

struct Tokens {
  std::vector<std::int32_t> tokens, targets;
};

Tokens GoldenBatch(int step) {
  const std::int64_t count = kBatch * kTiny.context;
  return {GivenTokens("gpt tokens " + std::to_string(step), count, 29),
          GivenTokens("gpt targets " + std::to_string(step), count, 29)};
}

template <typename T>
class Trainer {
 public:
  Trainer(const GptConfig& config, const KernelTable<T>& kernels, std::int64_t batch,
          std::int64_t logit_bytes = kLogitBytes)
      : config_(config),
        model_(MakeGpt<T>(config, logit_bytes)),
        layout_(*ParamLayout::Replicated(model_.UnitSpecs(), 1)),
        plan_(*MakePlan(layout_, {})),
        weights_(static_cast<std::size_t>(layout_.flat_elements())),
        gradients_(weights_.size(), T(7)),  // Not zero: the first micro-batch must overwrite it.
        first_(weights_.size()),
        second_(weights_.size()),
        runner_(*UnitRunner<T>::Create(model_, layout_, host_.With(kernels),
                                       {batch, config.context, /*logits=*/true}, weights_,
                                       gradients_)),
        optimizer_(*Optimizer<T>::Create(layout_, {}, host_.With(kernels),
                                         {weights_, gradients_, {first_, second_}})) {
    ClearPadding();
    InitializeWeights<T>(layout_, kGoldenSeed, weights_);
  }

  // As tiny_gpt() of make_golden.py.
  void LoadGoldenWeights() {
    for (const ParamPlace& param : layout_.params()) {
      const auto shift = Given<double>("shift " + param.spec.name, param.flat.size, 0.3);
      for (std::int64_t i = 0; i < param.flat.size; ++i) {
        T& weight = weights_[static_cast<std::size_t>(param.flat.begin + i)];
        const double value = static_cast<double>(weight);
        weight = static_cast<T>(
            param.spec.shape.rank() > 1 ? value * 8 : value + shift[static_cast<std::size_t>(i)]);
      }
    }
  }

  // The mean loss. Sequences [first, first + count) of the batch.
  double Pass(const Tokens& all, std::int64_t first, std::int64_t count, bool accumulate,
              bool backward = true) {
    const std::int64_t T_ = config_.context;
    const auto part = [&](const std::vector<std::int32_t>& v) {
      return std::span(v).subspan(static_cast<std::size_t>(first * T_),
                                  static_cast<std::size_t>(count * T_));
    };
    const double scale = 1.0 / static_cast<double>(all.tokens.size());
    const MicroBatch batch = {.batch = count,
                              .time = T_,
                              .tokens = part(all.tokens),
                              .targets = part(all.targets),
                              .loss_scale = scale,
                              .backward = backward};
    const UnitId units = static_cast<UnitId>(layout_.units().size());
    for (UnitId u = 0; u < units; ++u) EXPECT_TRUE(runner_->Forward(u, batch).ok());
    for (UnitId u = units - 1; backward && u >= 0; --u)
      runner_->Backward(u, kWholeUnit, batch, AddsOf(plan_, layout_, u, accumulate ? 1 : 0));
    EXPECT_TRUE(host_.stream->Await().ok());
    return runner_->LossSum() * scale;
  }

  std::vector<T> Values(const std::vector<T>& flat, const ParamPlace& param) const {
    const auto begin = flat.begin() + param.flat.begin;
    return {begin, begin + param.flat.size};
  }

  // Padding belongs to nobody; execution zeroes it once.
  void ClearPadding() {
    std::vector<T> clean(gradients_.size(), T(0));
    for (const ParamPlace& param : layout_.params()) {
      std::copy_n(gradients_.begin() + param.flat.begin, param.flat.size,
                  clean.begin() + param.flat.begin);
    }
    std::copy(clean.begin(), clean.end(), gradients_.begin());
  }

  const GptConfig config_;
  const Model<T> model_;
  const ParamLayout layout_;
  const Plan plan_;
  std::vector<T> weights_, gradients_, first_, second_;
  HostCompute host_;
  std::unique_ptr<UnitRunner<T>> runner_;
  std::unique_ptr<Optimizer<T>> optimizer_;
};

template <typename T>
void CheckGradients(const KernelTable<T>& kernels, double tolerance, double loss_tolerance) {
  SCOPED_TRACE(kernels.name);
  const Golden golden("gpt");
  Trainer<T> trainer(kTiny, kernels, kBatch);
  trainer.LoadGoldenWeights();
  const double loss = trainer.Pass(GoldenBatch(0), 0, kBatch, false);
  EXPECT_NEAR(loss, golden["loss"][0], loss_tolerance);
  for (const ParamPlace& param : trainer.layout_.params()) {
    EXPECT_LT(RelativeError(trainer.Values(trainer.gradients_, param), golden[param.spec.name]),
              tolerance)
        << param.spec.name;
  }
}

TEST(Gpt, LossAndEveryGradientAgreeWithPyTorch) {
  CheckGradients<double>(ReferenceKernels<double>(), 1e-11, 1e-12);
  for (const Kernels* table : FloatTables()) CheckGradients<float>(*table, kFloatTolerance, 1e-5);
}

// A head of its own: what it and the embedding bring to a tied gradient come apart, and no step
// leaves anything to the next.
template <typename T>
void CheckUntiedHead(const KernelTable<T>& kernels, double tolerance) {
  SCOPED_TRACE(kernels.name);
  GptConfig apart = kTiny;
  apart.tied_head = false;
  Trainer<T> tied(kTiny, kernels, kBatch), untied(apart, kernels, kBatch);
  tied.LoadGoldenWeights();
  untied.LoadGoldenWeights();
  const auto place = [](const Trainer<T>& t, const char* name) -> const ParamPlace& {
    return t.layout_.params()[static_cast<std::size_t>(*t.layout_.Find(name))];
  };
  const ParamPlace &tokens = place(untied, "wte.weight"), &head = place(untied, "lm_head.weight");
  std::copy_n(untied.weights_.begin() + tokens.flat.begin, tokens.flat.size,
              untied.weights_.begin() + head.flat.begin);
  std::vector<T> first;
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(tied.Pass(GoldenBatch(0), 0, kBatch, false),
              untied.Pass(GoldenBatch(0), 0, kBatch, false));
    std::vector<T> sum = untied.Values(untied.gradients_, tokens);
    const std::vector<T> of_head = untied.Values(untied.gradients_, head);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += of_head[i];
    EXPECT_LT(RelativeError(sum, tied.Values(tied.gradients_, place(tied, "wte.weight"))),
              tolerance);
    if (step == 0) first = untied.gradients_;
    EXPECT_EQ(untied.gradients_, first) << step;
  }
  untied.Pass(GoldenBatch(0), 0, 2, false);
  untied.Pass(GoldenBatch(0), 2, 2, true);
  EXPECT_LT(RelativeError(untied.Values(untied.gradients_, tokens), untied.Values(first, tokens)),
            tolerance);
}

TEST(Gpt, AnUntiedHeadHasAGradientOfItsOwn) {
  CheckUntiedHead<double>(ReferenceKernels<double>(), 1e-13);
  for (const Kernels* table : FloatTables()) CheckUntiedHead<float>(*table, kFloatTolerance);
}

template <typename T>
void CheckTraining(const KernelTable<T>& kernels, double loss_tolerance, double weight_tolerance) {
  SCOPED_TRACE(kernels.name);
  const Golden golden("training");
  const auto losses = golden["losses"], rates = golden["rates"], norms = golden["norms"];
  Trainer<T> trainer(kTiny, kernels, kBatch);
  trainer.LoadGoldenWeights();
  const Schedule schedule = {.lr = 1e-2, .min_lr = 1e-3, .warmup_steps = 4, .total_steps = 9};
  for (int step = 0; step < 9; ++step) {
    const auto s = static_cast<std::size_t>(step);
    EXPECT_NEAR(trainer.Pass(GoldenBatch(step), 0, kBatch, false), losses[s], loss_tolerance);
    double sum_squares = 0;
    trainer.optimizer_->SumSquares(&sum_squares);
    EXPECT_NEAR(std::sqrt(sum_squares), norms[s], 10 * loss_tolerance);
    const StepInfo info = {step, LearningRate(schedule, step), ClipScale(sum_squares, 0.5)};
    EXPECT_NEAR(info.lr, rates[s], 1e-15);
    for (UnitId u = 0; u < static_cast<UnitId>(trainer.layout_.units().size()); ++u) {
      trainer.optimizer_->Step(u, info);
    }
  }
  for (const ParamPlace& param : trainer.layout_.params()) {
    // The 2-norm: one key's bias, whose gradient is nothing but rounding, may go anywhere.
    EXPECT_LT(DeviationOf(trainer.Values(trainer.weights_, param), golden[param.spec.name]).norm,
              weight_tolerance)
        << param.spec.name;
  }
}

TEST(Gpt, NineStepsAgreeWithPyTorch) {
  CheckTraining<double>(ReferenceKernels<double>(), 1e-10, 1e-8);
  // Adam divides by the root of a second moment: tiny gradients of noisy sign move weights by ±lr.
  for (const Kernels* table : FloatTables()) CheckTraining<float>(*table, 1e-5, 1e-3);
}

TEST(Gpt, GradientsAreThoseOfCentralDifferences) {
  const GptConfig config = {.layers = 2, .width = 8, .heads = 2, .vocabulary = 7, .context = 5};
  Trainer<double> trainer(config, ReferenceKernels<double>(), 2);
  trainer.LoadGoldenWeights();
  const Tokens batch = {GivenTokens("a", 10, 7), GivenTokens("b", 10, 7)};
  trainer.Pass(batch, 0, 2, false);
  constexpr double kStep = 1e-5;
  for (const ParamPlace& param : trainer.layout_.params()) {
    std::vector<double> slopes;
    for (std::int64_t i = param.flat.begin; i < param.flat.end(); ++i) {
      double& weight = trainer.weights_[static_cast<std::size_t>(i)];
      const double here = weight;
      weight = here + kStep;
      const double above = trainer.Pass(batch, 0, 2, false, false);
      weight = here - kStep;
      const double below = trainer.Pass(batch, 0, 2, false, false);
      weight = here;
      slopes.push_back((above - below) / (2 * kStep));
    }
    EXPECT_LT(RelativeError(trainer.Values(trainer.gradients_, param), slopes), 1e-6)
        << param.spec.name;
  }
}

TEST(Gpt, MicroBatchesOfAnySizeAddUpToTheBatch) {
  const Tokens batch = GoldenBatch(0);
  for (const Kernels* table : FloatTables()) {
    SCOPED_TRACE(table->name);
    Trainer<float> whole(kTiny, *table, kBatch), parts(kTiny, *table, 3);
    const double loss = whole.Pass(batch, 0, kBatch, false);
    const double part_loss = parts.Pass(batch, 0, 3, false) + parts.Pass(batch, 3, 1, true);
    EXPECT_NEAR(part_loss, loss, 1e-6);
    EXPECT_LT(RelativeError(parts.gradients_, whole.gradients_), kFloatTolerance);
  }
}

std::int64_t ScratchOfHead(const Model<double>& model, const Extent& extent) {
  return model.units().back().layer->Spec(extent).scratch_bytes;
}

// 48 tokens, of which so many have logits at one time.
TEST(Gpt, LogitsAreThereForSomeTokensAtATime) {
  const Tokens tokens = GoldenBatch(0);
  Trainer<double> whole(kTiny, ReferenceKernels<double>(), kBatch);
  const double loss = whole.Pass(tokens, 0, kBatch, false);
  whole.Pass(GoldenBatch(1), 0, kBatch, true);
  const Extent extent{kBatch, kTiny.context};
  for (const std::int64_t at_once : {1, 7, 47, 48}) {
    const std::int64_t bytes_of_one = kTiny.vocabulary * 8, bytes = at_once * bytes_of_one + 8;
    Trainer<double> some(kTiny, ReferenceKernels<double>(), kBatch, bytes);
    EXPECT_NEAR(some.Pass(tokens, 0, kBatch, false, /*backward=*/false), loss, 1e-12);
    EXPECT_NEAR(some.Pass(tokens, 0, kBatch, false), loss, 1e-12);
    some.Pass(GoldenBatch(1), 0, kBatch, true);
    EXPECT_LT(RelativeError(some.gradients_, whole.gradients_), 1e-13) << at_once;
    const std::int64_t less =
        ScratchOfHead(whole.model_, extent) - ScratchOfHead(some.model_, extent);
    EXPECT_NEAR(static_cast<double>(less), static_cast<double>((48 - at_once) * bytes_of_one), 256);
  }
  // Less than a token's: nothing smaller is possible.
  Trainer<double> least(kTiny, ReferenceKernels<double>(), kBatch, 1);
  EXPECT_NEAR(least.Pass(tokens, 0, kBatch, false), loss, 1e-12);
}

int losses_made = 0;  // Calls of the kernel.

// Its backward makes them if there is one, else its forward.
TEST(Gpt, LossesAreMadeOnce) {
  KernelTable<double> counting = ReferenceKernels<double>();
  counting.cross_entropy = Kernel<CrossEntropyArgs<double>>(
      +[](const Launch& launch, const CrossEntropyArgs<double>& args) {
        ++losses_made;
        ReferenceKernels<double>().cross_entropy(launch, args);
      });
  Trainer<double> trainer(kTiny, counting, kBatch);
  for (const bool backward : {true, false}) {
    losses_made = 0;
    trainer.Pass(GoldenBatch(0), 0, kBatch, false, backward);
    EXPECT_EQ(losses_made, 1) << backward;
  }
}

// From 64 tokens on as many as kernels have in a tile.
TEST(Gpt, LogitsAreOfWholeTiles) {
  const auto bytes = [](std::int64_t logit_bytes) {
    return ScratchOfHead(MakeGpt<double>(kTiny, logit_bytes), {32, 12});
  };
  constexpr std::int64_t kOne = 29 * 8;
  EXPECT_EQ(bytes(100 * kOne), bytes(64 * kOne));
  EXPECT_EQ(bytes(128 * kOne) - bytes(127 * kOne), 64 * kOne);
  EXPECT_EQ(bytes(kLogitBytes), bytes(384 * kOne));
  // Those of all tokens are kept where somebody wants them.
  const auto product = [](bool logits) {
    const Model<double> model = MakeGpt<double>(kTiny, 64 * kOne);
    return model.units().back().layer->Spec({32, 12, logits}).largest_product.rows;
  };
  EXPECT_EQ(product(true), 32 * 12);
  EXPECT_EQ(product(false), 64);
  const auto kept = [](bool logits) {
    return *UnitRunner<double>::ActivationBytes(MakeGpt<double>(kTiny), {32, 12, logits});
  };
  EXPECT_EQ(kept(true) - kept(false), Arena::Footprint<double>(std::size_t{32} * 12 * 29));
}

TEST(Gpt, PartsOfABackwardMakeTheBitsOfTheWhole) {
  std::vector<std::vector<float>> made;
  for (const bool in_parts : {false, true}) {
    Trainer<float> trainer(kTiny, KernelsFor(BestIsa()), kBatch);
    const Tokens tokens = GoldenBatch(0);
    const MicroBatch batch = {kBatch, kTiny.context, tokens.tokens, tokens.targets, 1.0};
    const std::vector<float> before = trainer.gradients_;
    const std::vector<UnitPlace>& units = trainer.layout_.units();
    EXPECT_EQ(units[1].parts.size(), 2u);
    for (std::size_t u = 0; u < units.size(); ++u)
      ASSERT_TRUE(trainer.runner_->Forward(static_cast<UnitId>(u), batch).ok());
    for (std::size_t u = units.size(); u-- > 0;) {
      const int parts = in_parts ? static_cast<int>(units[u].parts.size()) : 1;
      for (int part = parts - 1; part >= 0; --part) {
        const auto unit = static_cast<UnitId>(u);
        trainer.runner_->Backward(unit, parts == 1 ? kWholeUnit : part, batch,
                                  AddsOf(trainer.plan_, trainer.layout_, unit, 0));
        if (part == 0) continue;
        // What has been made is whole; of what comes before it nothing is touched yet.
        ASSERT_TRUE(trainer.host_.stream->Await().ok());
        for (const ParamId p : units[u].params) {
          const ParamPlace& param = trainer.layout_.params()[static_cast<std::size_t>(p)];
          const std::vector<float> now = trainer.Values(trainer.gradients_, param);
          const bool is_made = units[u].parts[1].Has(param.flat);
          EXPECT_EQ(now, trainer.Values(is_made ? made[0] : before, param)) << param.spec.name;
        }
      }
    }
    ASSERT_TRUE(trainer.host_.stream->Await().ok());
    made.push_back(trainer.gradients_);
  }
  EXPECT_EQ(made[0], made[1]);
}

TEST(Gpt, AShorterSequenceUsesOnlyTheFirstPositions) {
  Trainer<double> trainer(kTiny, ReferenceKernels<double>(), 2);
  const auto tokens = GivenTokens("short", 2 * 5, 29);
  const MicroBatch batch = {2, 5, tokens, tokens, 1.0};
  const UnitId units = static_cast<UnitId>(trainer.layout_.units().size());
  for (UnitId u = 0; u < units; ++u) ASSERT_TRUE(trainer.runner_->Forward(u, batch).ok());
  for (UnitId u = units - 1; u >= 0; --u) trainer.runner_->Backward(u, kWholeUnit, batch, false);
  ASSERT_TRUE(trainer.host_.stream->Await().ok());
  const ParamPlace& positions =
      trainer.layout_.params()[static_cast<std::size_t>(*trainer.layout_.Find("wpe.weight"))];
  const auto gradient = trainer.Values(trainer.gradients_, positions);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    EXPECT_EQ(gradient[i] != 0, i < 5 * 24) << i;
  }
}

TEST(Gpt, ThreadsDoNotChangeABit) {
  const int before = ThreadCount();
  std::vector<float> first;
  for (const int threads : {1, 2, 3}) {
    SetThreadCount(threads);
    Trainer<float> trainer(kTiny, KernelsFor(BestIsa()), kBatch);
    trainer.Pass(GoldenBatch(0), 0, kBatch, false);
    if (first.empty()) first = trainer.gradients_;
    ExpectSameProducts(first, trainer.gradients_);
  }
  SetThreadCount(before);
}

TEST(Gpt, WithoutTargetsTheLogitsStay) {
  Trainer<double> trainer(kTiny, ReferenceKernels<double>(), 1);
  const auto tokens = GivenTokens("t", 12, 29), targets = GivenTokens("u", 12, 29);
  const UnitId units = static_cast<UnitId>(trainer.layout_.units().size());
  const MicroBatch prompt = {1, 12, tokens, {}, 1};
  for (UnitId u = 0; u < units; ++u) ASSERT_TRUE(trainer.runner_->Forward(u, prompt).ok());
  const auto logits = trainer.runner_->Logits();
  ASSERT_EQ(logits.size(), 12u * 29);
  double loss = 0;
  for (std::size_t t = 0; t < 12; ++t) {
    double total = 0;
    for (std::size_t v = 0; v < 29; ++v) total += std::exp(logits[t * 29 + v]);
    loss += std::log(total) - logits[t * 29 + static_cast<std::size_t>(targets[t])];
  }
  const MicroBatch taught = {1, 12, tokens, targets, 1};
  for (UnitId u = 0; u < units; ++u) ASSERT_TRUE(trainer.runner_->Forward(u, taught).ok());
  EXPECT_NEAR(trainer.runner_->LossSum(), loss, 1e-9);
  EXPECT_TRUE(trainer.runner_->Logits().empty());
}

TEST(Gpt, BadMicroBatchesAreRefusedWithNumbers) {
  Trainer<float> trainer(kTiny, KernelsFor(Isa::kBaseline), 2);
  const std::vector<std::int32_t> good(24, 3), far(24, 29), below(24, -1), few(23, 3), many(36, 3);
  const struct {
    const char* what;
    MicroBatch batch;
    const char* says;
  } kRows[] = {
      {"token", {2, 12, far, good, 1}, "token 29 is outside the vocabulary of 29"},
      {"negative", {2, 12, below, good, 1}, "token -1"},
      {"target", {2, 12, good, far, 1}, "target 29"},
      {"few", {2, 12, few, good, 1}, "24 tokens brings 23"},
      {"targets", {2, 12, good, few, 1}, "23 targets"},
      {"batch", {3, 12, many, many, 1}, "3 x 12 where 2 x 12 is the largest"},
      {"none", {0, 12, {}, {}, 1}, "0 x 12"},
      {"no room", {2, 12, good, {}, 1}, "no room for its logits"},
  };
  const auto runner = *UnitRunner<float>::Create(trainer.model_, trainer.layout_,
                                                 trainer.host_.With(KernelsFor(Isa::kBaseline)),
                                                 {2, 12}, trainer.weights_, trainer.gradients_);
  for (const auto& row : kRows) {
    const absl::Status status = runner->Forward(0, row.batch);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << row.what;
    EXPECT_NE(status.message().find(row.says), std::string::npos) << status;
  }
  for (const Extent& extent : {Extent{1, 13}, {0, 12}, {std::int64_t{1} << 40, 12}}) {
    EXPECT_EQ(UnitRunner<float>::Create(trainer.model_, trainer.layout_,
                                        trainer.host_.With(KernelsFor(Isa::kBaseline)), extent,
                                        trainer.weights_, {})
                  .status()
                  .code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(Gpt, ConfigurationsAreChecked) {
  EXPECT_TRUE(Validate(GptConfig{}).ok());
  const struct {
    GptConfig config;
    const char* says;
  } kRows[] = {
      {{.layers = 0}, "layers 0"},
      {{.width = -3}, "width -3"},
      {{.vocabulary = std::int64_t{1} << 25}, "vocabulary 33554432"},
      {{.layers = 1000, .width = 1 << 24, .heads = 1 << 16}, "3.38e+18 parameters"},
      {{.width = 384, .heads = 5}, "384 is not a multiple of its 5 heads"},
      {{.width = 514, .heads = 2}, "257 wide"},
  };
  for (const auto& row : kRows) {
    const absl::Status status = Validate(row.config);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(row.says), std::string::npos) << status;
  }
}

TEST(Gpt, ParametersAreThoseOfHuggingFace) {
  const Model<float> model = MakeGpt<float>(kTiny);
  const ParamLayout layout = *ParamLayout::Replicated(model.UnitSpecs(), 3);
  EXPECT_EQ(layout.units().size(), 4u);
  EXPECT_EQ(layout.units()[3].shared, std::vector<ParamId>{*layout.Find("wte.weight")});
  EXPECT_EQ(layout.params().size(), 2u + 2 * 12 + 2);
  const std::int64_t block = 12 * 24 * 24 + 13 * 24;
  EXPECT_EQ(layout.param_elements(), (29 + 12) * 24 + 2 * block + 2 * 24);
  const auto shape = [&](const char* name) {
    return layout.params()[static_cast<std::size_t>(*layout.Find(name))].spec.shape;
  };
  EXPECT_EQ(shape("h.1.attn.c_attn.weight"), (Shape{24, 72}));
  EXPECT_EQ(shape("h.0.mlp.c_proj.weight"), (Shape{96, 24}));
}

TEST(InitializeWeights, IsAFunctionOfSeedNameAndElement) {
  GptConfig deeper = kTiny;
  deeper.context = 20;
  const auto model = MakeGpt<float>(kTiny);
  const auto other = MakeGpt<float>(deeper);
  const ParamLayout layout = *ParamLayout::Replicated(model.UnitSpecs(), 1);
  const ParamLayout other_layout = *ParamLayout::Replicated(other.UnitSpecs(), 2);
  std::vector<float> a(static_cast<std::size_t>(layout.flat_elements()), 9), b = a;
  std::vector<float> c(static_cast<std::size_t>(other_layout.flat_elements()));
  InitializeWeights<float>(layout, 1, a);
  InitializeWeights<float>(layout, 2, b);
  InitializeWeights<float>(other_layout, 1, c);
  const auto of = [](const ParamLayout& l, std::span<float> flat, const char* name) {
    const Range& range = l.params()[static_cast<std::size_t>(*l.Find(name))].flat;
    return flat.subspan(static_cast<std::size_t>(range.begin),
                        static_cast<std::size_t>(range.size));
  };
  const char* kName = "h.1.mlp.c_fc.weight";
  EXPECT_TRUE(std::ranges::equal(of(layout, a, kName), of(other_layout, c, kName)));
  EXPECT_FALSE(std::ranges::equal(of(layout, a, kName), of(layout, b, kName)));
  double squares = 0;
  for (float v : of(layout, a, kName)) squares += static_cast<double>(v) * v;
  EXPECT_NEAR(std::sqrt(squares / (24 * 96)), 0.02, 0.001);
  for (float v : of(layout, a, "h.0.ln_1.weight")) EXPECT_EQ(v, 1);
  EXPECT_EQ(a.back(), 0);  // Padding after ln_f.bias.
}

}  // namespace
}  // namespace regroup::worker
