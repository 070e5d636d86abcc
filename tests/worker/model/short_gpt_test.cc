// A whole model of 16-bit numbers: by the kernels that train it, by the twins that round alike, and
// in floats.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/worker/device/host_compute.h"
#include "tests/worker/golden/golden.h"
#include "tests/worker/kernels/tables.h"
#include "tests/worker/kernels/tiled_attention.h"
#include "worker/model/gpt.h"
#include "worker/model/runner.h"
#include "worker/plan/plan.h"

namespace regroup::worker {
namespace {

constexpr GptConfig kModel = {
    .layers = 2, .width = 48, .heads = 3, .vocabulary = 60, .context = 24};
constexpr std::int64_t kBatch = 3;
constexpr double kLossScale = 1024;

struct Result {
  double loss = 0;
  std::vector<std::vector<double>> gradients;  // By parameter.
};

// Of weights that T can have, so that nothing but the computation rounds; larger than initial ones,
// so that nothing is nearly zero.
template <typename T, typename Short>
Result GradientsOf(const KernelTable<T>& kernels) {
  const Model<T> model = MakeGpt<T>(kModel);
  const ParamLayout layout = *ParamLayout::Replicated(model.UnitSpecs(), 1);
  const Plan plan = *MakePlan(layout, {});
  std::vector<float> initial(static_cast<std::size_t>(layout.flat_elements()));
  InitializeWeights<float>(layout, kGoldenSeed, initial);
  std::vector<T> weights;
  for (const float weight : initial)
    weights.push_back(static_cast<T>(static_cast<float>(Short(4 * weight))));
  std::vector<Wide<T>> gradients(initial.size());
  HostCompute host;
  const auto runner =
      *UnitRunner<T>::Create(model, layout, host.With(kernels), {kBatch, kModel.context},
                             std::span<const T>(weights), std::span(gradients));
  const auto tokens = GivenTokens("tokens", kBatch * kModel.context, 60),
             targets = GivenTokens("targets", kBatch * kModel.context, 60);
  const double scale = kLossScale / static_cast<double>(tokens.size());
  const MicroBatch batch = {kBatch, kModel.context, tokens, targets, scale};
  const UnitId units = static_cast<UnitId>(layout.units().size());
  for (UnitId u = 0; u < units; ++u) EXPECT_TRUE(runner->Forward(u, batch).ok());
  for (UnitId u = units - 1; u >= 0; --u)
    runner->Backward(u, kWholeUnit, batch, AddsOf(plan, layout, u, 0));
  EXPECT_TRUE(host.stream->Await().ok());
  Result result{.loss = runner->LossSum() / static_cast<double>(tokens.size()), .gradients = {}};
  for (const ParamPlace& place : layout.params()) {
    const auto begin = gradients.begin() + place.flat.begin;
    result.gradients.emplace_back(begin, begin + place.flat.size);
  }
  return result;
}

double Worst(const Result& a, const Result& b) {
  double worst = 0;
  for (std::size_t p = 0; p < a.gradients.size(); ++p)
    worst = std::max(worst, DeviationOf(a.gradients[p], b.gradients[p]).norm);
  return worst;
}

// Twins and kernels differ where a sum lies between two numbers: so seldom that what comes of it is
// a small part of what rounding does.
template <typename T>
void CheckGradients(double tolerance) {
  const Result floats = GradientsOf<double, T>(ReferenceKernels<double>());
  for (const KernelTable<T>* table : FastTables<T>()) {
    SCOPED_TRACE(table->name);
    const Result twin = GradientsOf<T, T>(TwinOf(*table));
    EXPECT_LT(Worst(twin, floats), tolerance);
    EXPECT_NEAR(twin.loss, floats.loss, tolerance);
    const Result fast = GradientsOf<T, T>(*table);
    EXPECT_LT(Worst(fast, floats), tolerance);
    EXPECT_LT(Worst(fast, twin), Worst(twin, floats) / 2);
    EXPECT_NEAR(fast.loss, twin.loss, tolerance / 10);
    testing::Test::RecordProperty(std::string(table->name) + "_from_twin",
                                  std::to_string(Worst(fast, twin)));
    testing::Test::RecordProperty("twin_from_floats", std::to_string(Worst(twin, floats)));
  }
}

TEST(ShortGpt, GradientsOfBf16) { CheckGradients<BFloat16>(5e-2); }
TEST(ShortGpt, GradientsOfF16) { CheckGradients<Half>(1e-2); }

}  // namespace
}  // namespace regroup::worker
