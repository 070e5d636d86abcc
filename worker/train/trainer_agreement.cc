// What the ranks of a training agree on before they build anything.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "worker/comm/agreement.h"
#include "worker/train/trainer.h"
#include "worker/train/training_data.h"
#include "worker/train/worker_exit.h"

namespace regroup::worker {
namespace {

constexpr std::size_t kMaxMarkBytes = 64;

}  // namespace

// Ranks that train different things would still sum their gradients.
absl::Status Trainer::Agree() {
  RETURN_IF_ERROR(AgreeOnMachine());
  RETURN_IF_ERROR(AgreeOnSettings());
  return AgreeOnDirectory();
}

// Kernels of two devices or instruction sets round differently, and so would the replicas' weights;
// and who moves tensors by NCCL would wait for who does not.
absl::Status Trainer::AgreeOnMachine() {
  RETURN_IF_ERROR(device_->AgreeOnLeast(*ranks_));
  if (device_->holds_back() && !first()) Say(device_->words());
  if (!config_.precision && device_->is_cuda()) config_.precision = DType::kBF16;
  ASSIGN_OR_RETURN(const std::optional<Disagreement> found,
                   FindDisagreement(*ranks_, {{"device", device_->name()},
                                              {"transport", device_->transport()},
                                              {"kernels", device_->kernels().Of<float>().name}}));
  if (!found) return absl::OkStatus();
  const bool kernels = found->name == "kernels";
  if (!kernels && !device_->words().empty()) Say(device_->words());  // Each rank, of its own.
  const std::string both =
      absl::StrCat(found->theirs, " on rank ", found->rank, ", ", found->ours, " on rank 0");
  return WithExit(
      kernels
          ? UserError(
                absl::StatusCode::kFailedPrecondition,
                absl::StrCat("rank ", found->rank, " would compute with other kernels than rank 0"),
                absl::StrCat(both, "; their weights would not stay equal"),
                absl::StrCat("--kernels ", std::min(found->ours, found->theirs), " on every rank"))
          : UserError(absl::StatusCode::kFailedPrecondition,
                      absl::StrCat("rank ", found->rank, " would train by another ", found->name,
                                   " than rank 0"),
                      both, absl::StrCat("the same --", found->name, " on every rank")),
      WorkerExit::kRanksDisagree);
}

absl::Status Trainer::AgreeOnSettings() {
  // Each rank reads all of its data first, at its own pace.
  ranks_->SetDeadline(config_.restore_timeout);
  ASSIGN_OR_RETURN(fingerprint_, FingerprintOf(data_.train.get()));
  ASSIGN_OR_RETURN(const std::string of_eval_data, FingerprintOf(data_.validation.get()));
  const std::map<std::string, std::string> settings = Settings();
  Terms terms(settings.begin(), settings.end());
  terms.emplace_back("micro-batch", absl::StrCat(config_.micro_batch));
  terms.emplace_back("strategy", NameOf(config_.strategy));
  terms.emplace_back(
      config_.hybrid && config_.shard_group == 0 ? "LOCAL_WORLD_SIZE" : "shard-group",
      absl::StrCat(config_.ShardGroup(environment_.ranks_of_node)));
  terms.emplace_back("reshard-after-forward", config_.reshard_after_forward ? "true" : "false");
  terms.emplace_back("wrap", ToString(config_.wrap));
  terms.emplace_back("eval-data", of_eval_data);
  terms.emplace_back("eval-every", absl::StrCat(config_.eval_every));
  terms.emplace_back("eval-batches", absl::StrCat(config_.eval_batches));
  terms.emplace_back("recompute", NameOf(config_.recompute));
  // Products of short numbers and of widened ones round differently, and so do those of libraries.
  const DType type = config_.Precision();
  terms.emplace_back("products",
                     absl::StrCat(NameOf(type), device_->is_cuda() ? " by " + device_->products()
                                                : MultipliesNatively(type, config_.Kernels())
                                                    ? " multiplied as such"
                                                    : " widened to f32"));
  ASSIGN_OR_RETURN(const std::optional<Disagreement> found, FindDisagreement(*ranks_, terms));
  ranks_->SetDeadline(config_.collective_timeout);
  if (!found) return absl::OkStatus();
  // What is as it always was is not among them.
  const auto of = [](const std::string& value) { return value.empty() ? "the default" : value; };
  return WithExit(
      UserError(absl::StatusCode::kFailedPrecondition,
                absl::StrCat("rank ", found->rank,
                             " was told other settings than rank 0, or reads other data"),
                absl::StrCat(found->name, found->name.ends_with("data") ? " has the hash " : " is ",
                             of(found->theirs), " on rank ", found->rank, " and ", of(found->ours),
                             " on rank 0"),
                "start every rank with the same flags and the same files"),
      WorkerExit::kRanksDisagree);
}

// Every rank has a part of every checkpoint.
absl::Status Trainer::AgreeOnDirectory() {
  const std::string every = repository_ ? absl::StrCat(config_.checkpoint_every) : "none";
  ASSIGN_OR_RETURN(const std::optional<Disagreement> found,
                   FindDisagreement(*ranks_, {{"checkpoint-every", every}}));
  if (found) return Elsewhere(found->rank);
  if (!repository_ || environment_.world_size == 1) return absl::OkStatus();
  std::string mark;
  if (first()) {
    absl::StatusOr<std::string> left = repository_->LeaveMark();
    if (!left.ok()) return WithExit(left.status(), WorkerExit::kCheckpointDirectory);
    mark = *std::move(left);
  }
  const absl::StatusOr<int> elsewhere = FirstElsewhere(mark);
  if (first()) repository_->RemoveMark(mark);
  if (!elsewhere.ok()) return elsewhere.status();
  return *elsewhere == 0 ? absl::OkStatus() : Elsewhere(*elsewhere);
}

// The highest rank that does not see rank 0's mark, on every rank; 0: all do. Collective.
absl::StatusOr<int> Trainer::FirstElsewhere(std::string mark) {
  mark.resize(kMaxMarkBytes);
  RETURN_IF_ERROR(ranks_->Broadcast(std::as_writable_bytes(std::span(mark)), 0));
  mark.resize(std::min(mark.size(), mark.find('\0')));
  const Duration patience = std::min(repository_->MarkDelay(), config_.collective_timeout / 2);
  std::int64_t rank = repository_->SeesMark(mark, patience) ? 0 : environment_.rank;
  RETURN_IF_ERROR(ranks_->AllReduce(std::span(&rank, 1), Reduction::kMax));
  return static_cast<int>(rank);
}

absl::Status Trainer::Elsewhere(int rank) const {
  std::error_code ignored;
  return WithExit(
      UserError(
          absl::StatusCode::kFailedPrecondition,
          absl::StrCat("rank ", rank,
                       " would keep its checkpoints elsewhere than rank 0,"
                       " or at other steps"),
          repository_
              ? absl::StrCat("this is rank ", environment_.rank, " with ",
                             std::filesystem::absolute(repository_->path(), ignored).string(),
                             ", every ", config_.checkpoint_every, " steps")
              : absl::StrCat("this is rank ", environment_.rank, " without checkpoints"),
          "start every rank with the same absolute --checkpoint-dir, on a disk that all share"),
      WorkerExit::kRanksDisagree);
}

}  // namespace regroup::worker
