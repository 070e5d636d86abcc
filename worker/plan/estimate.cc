#include "worker/plan/estimate.h"

#include <algorithm>
#include <array>

namespace regroup::worker {

std::int64_t MostElements(const ParamLayout& layout, StateKind kind) {
  std::int64_t most = 0;
  for (int r = 0; r < layout.world(); ++r) most = std::max(most, layout.Elements(kind, r));
  return most;
}

std::int64_t MixedStateBytes(const ParamLayout& layout) {
  return kMixedWeightBytes * (layout.FreesWeights() ? MostElements(layout, StateKind::kWeights)
                                                    : layout.flat_elements()) +
         kMixedGradientBytes * MostElements(layout, StateKind::kGradients) +
         kMixedAdamBytes * MostElements(layout, StateKind::kMoments);
}

namespace {

double FlopsPerToken(const TrainedSize& size, double attention) {
  return 6.0 * static_cast<double>(size.parameters) + attention * static_cast<double>(size.layers) *
                                                          static_cast<double>(size.width) *
                                                          static_cast<double>(size.context);
}

}  // namespace

double CausalFlopsPerToken(const TrainedSize& size) { return FlopsPerToken(size, 6); }
double FullFlopsPerToken(const TrainedSize& size) { return FlopsPerToken(size, 12); }

std::span<const Gpu> KnownGpus() {
  constexpr std::int64_t kGigabyte = 1'000'000'000;
  static constexpr std::array<Gpu, 3> kGpus = {{
      {"a100", "A100 SXM 80 GB", 312e12, 19.5e12, 80 * kGigabyte, 2.039e12, 300e9},
      {"h100", "H100 SXM 80 GB", 989e12, 67e12, 80 * kGigabyte, 3.35e12, 450e9},
      {"h200", "H200 SXM 141 GB", 989e12, 67e12, 141 * kGigabyte, 4.8e12, 450e9},
  }};
  return kGpus;
}

StepTime EstimateStep(const StepWork& work, double peak_flops, double assumed_mfu,
                      double memory_bytes_per_second, double link_bytes_per_second) {
  return {.compute_s = work.flops * (1 + work.computed_again) / (peak_flops * assumed_mfu),
          .communication_s = work.moved_bytes / link_bytes_per_second,
          .optimizer_s = work.optimizer_bytes / memory_bytes_per_second};
}

}  // namespace regroup::worker
