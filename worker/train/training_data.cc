#include "worker/train/training_data.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "worker/data/open_dataset.h"
#include "worker/model/gpt.h"
#include "worker/train/worker_exit.h"

namespace regroup::worker {
namespace {

absl::Status BadData(const absl::Status& status) {
  return WithExit(
      UserError(absl::StatusCode::kInvalidArgument, "cannot train on this data",
                std::string(status.message()),
                absl::IsOutOfRange(status) ? "a larger --vocabulary, or another --data-format"
                                           : "other --data, or a smaller --context"),
      WorkerExit::kUsage);
}

}  // namespace

absl::StatusOr<TrainingData> OpenTrainingData(const TrainConfig& config) {
  TrainingData data;
  DataOptions options{
      .format = config.data_format, .vocabulary = config.vocabulary, .context = config.context};
  absl::StatusOr<std::unique_ptr<Dataset>> train = OpenDataset(config.data, options);
  if (!train.ok()) return BadData(train.status());
  data.train = *std::move(train);
  // The vocabulary may be one that only the data has told.
  options.vocabulary = data.train->vocabulary();
  if (absl::Status model = Validate(config.Model(options.vocabulary)); !model.ok())
    return BadData(model);
  if (config.eval_data.empty()) return data;
  absl::StatusOr<std::unique_ptr<Dataset>> validation = OpenDataset(config.eval_data, options);
  if (!validation.ok()) return BadData(validation.status());
  data.validation = *std::move(validation);
  if (data.validation->samples() >= config.batch) return data;
  return BadData(absl::InvalidArgumentError(
      absl::StrCat("--eval-data has ", data.validation->samples(), " samples of ", config.context,
                   " tokens, fewer than one --batch of ", config.batch)));
}

absl::StatusOr<std::string> FingerprintOf(Dataset* data) {
  if (data == nullptr) return std::string();
  const absl::StatusOr<std::uint64_t> fingerprint = data->Fingerprint();
  if (!fingerprint.ok()) return BadData(fingerprint.status());
  return absl::StrFormat("%016x", *fingerprint);
}

}  // namespace regroup::worker
