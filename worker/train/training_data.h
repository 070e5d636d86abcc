#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/data/dataset.h"
#include "worker/train/train_config.h"

namespace regroup::worker {

struct TrainingData {
  std::unique_ptr<Dataset> train;
  std::unique_ptr<Dataset> validation;  // Null: none. As the other in vocabulary and context.
};

// Of --data and --eval-data; the model fits them. A failure is a UserError that bears kUsage.
absl::StatusOr<TrainingData> OpenTrainingData(const TrainConfig& config);

// The data's fingerprint as text, empty without data. Reads all of it the first time. Likewise.
absl::StatusOr<std::string> FingerprintOf(Dataset* data);

}  // namespace regroup::worker
