#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "worker/tensor/dtype.h"

namespace regroup::worker {

// What the loss is multiplied by so that gradients of few bits neither vanish nor overflow. Halved
// when gradients of any rank overflow, by which the step is void; doubled after kGrowthSteps steps
// in a row. Ranks decide by the same votes and so keep equal ones. A power of two: it changes no
// bit of a gradient that neither vanishes nor overflows. Always 1, but for f16.
class LossScaler {
 public:
  static constexpr int kFirst = 16, kLargest = 24;  // Powers of two.
  static constexpr std::int64_t kGrowthSteps = 2000;

  explicit LossScaler(DType type) : scales_(type == DType::kF16), power_(scales_ ? kFirst : 0) {}

  double scale() const { return static_cast<double>(std::int64_t{1} << power_); }
  // Gradients overflowed. False: they would do so at any scale.
  bool Halve();
  void NoteStep();

  // In a checkpoint's counters; nothing where there is no scaling.
  void Save(std::map<std::string, std::int64_t>& counters) const;
  // Starts anew where a checkpoint has none. Data loss if what it has can not be.
  absl::Status Restore(const std::map<std::string, std::int64_t>& counters);

 private:
  bool scales_;
  int power_;               // Of two.
  std::int64_t steps_ = 0;  // Since it changed, below kGrowthSteps.
};

}  // namespace regroup::worker
