#include "worker/train/loss_scaler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace regroup::worker {
namespace {

constexpr char kPowerName[] = "loss-scale-power", kStepsName[] = "loss-scale-steps";

}  // namespace

bool LossScaler::Halve() {
  if (power_ == 0) return false;
  --power_;
  steps_ = 0;
  return true;
}

void LossScaler::NoteStep() {
  if (!scales_ || ++steps_ < kGrowthSteps) return;
  steps_ = 0;
  power_ = std::min(power_ + 1, kLargest);
}

void LossScaler::Save(std::map<std::string, std::int64_t>& counters) const {
  if (!scales_) return;
  counters[kPowerName] = power_;
  counters[kStepsName] = steps_;
}

absl::Status LossScaler::Restore(const std::map<std::string, std::int64_t>& counters) {
  const auto power = counters.find(kPowerName), steps = counters.find(kStepsName);
  if (!scales_ || power == counters.end() || steps == counters.end()) return absl::OkStatus();
  if (power->second < 0 || power->second > kLargest || steps->second < 0 ||
      steps->second >= kGrowthSteps) {
    return absl::DataLossError(absl::StrCat("a loss scale of 2^", power->second, " for ",
                                            steps->second, " steps can not be"));
  }
  power_ = static_cast<int>(power->second);
  steps_ = steps->second;
  return absl::OkStatus();
}

}  // namespace regroup::worker
