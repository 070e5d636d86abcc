#include "worker/checkpoint/restore.h"

#include <algorithm>
#include <array>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "worker/checkpoint/load.h"

namespace regroup::worker {
namespace {

constexpr std::int64_t kMaxCandidates = 64;

// Rank 0's list, newest first; its failure on every rank.
absl::StatusOr<std::vector<std::int64_t>> ShareSteps(Group& ranks, const Repository& repository) {
  absl::StatusOr<std::vector<std::int64_t>> own =
      ranks.rank() == 0 ? repository.CommittedSteps() : std::vector<std::int64_t>();
  if (!own.ok()) own = absl::DataLossError(own.status().message());
  RETURN_IF_ERROR(AgreeOn(ranks, own.status()));
  std::array<std::int64_t, kMaxCandidates + 1> message{};  // Count; steps.
  message[0] = std::min<std::int64_t>(kMaxCandidates, static_cast<std::int64_t>(own->size()));
  std::copy_n(own->begin(), message[0], message.begin() + 1);
  RETURN_IF_ERROR(ranks.Broadcast(std::as_writable_bytes(std::span(message)), 0));
  return std::vector<std::int64_t>(message.begin() + 1, message.begin() + 1 + message[0]);
}

// Rank 0's record on every rank, so that all judge the same bytes; its failure on every rank.
absl::StatusOr<std::string> ShareRecord(Group& ranks, const Repository& repository,
                                        std::int64_t step) {
  absl::StatusOr<std::string> record =
      ranks.rank() == 0 ? repository.ReadRecord(step) : std::string();
  if (!record.ok()) record = absl::DataLossError(record.status().message());
  RETURN_IF_ERROR(AgreeOn(ranks, record.status()));
  auto size = static_cast<std::int64_t>(record->size());
  RETURN_IF_ERROR(ranks.Broadcast(std::as_writable_bytes(std::span(&size, 1)), 0));
  record->resize(static_cast<std::size_t>(size));
  RETURN_IF_ERROR(ranks.Broadcast(std::as_writable_bytes(std::span(*record)), 0));
  return record;
}

absl::StatusOr<Manifest> Judge(const std::string& record, std::int64_t step,
                               const std::function<absl::Status(const Manifest&)>& accept) {
  ASSIGN_OR_RETURN(Manifest manifest, ParseManifest(record));
  if (manifest.step != step)
    return absl::DataLossError(absl::StrCat("its record is one of step ", manifest.step));
  if (accept) RETURN_IF_ERROR(accept(manifest));
  return manifest;
}

// Collective, with the same result on all ranks.
absl::Status LoadStep(Group& ranks, const Repository& repository, std::int64_t step,
                      const std::vector<StateTensor>& state,
                      const std::function<absl::Status(const Manifest&)>& accept,
                      Restored& restored) {
  ASSIGN_OR_RETURN(std::string record, ShareRecord(ranks, repository, step));
  absl::StatusOr<Manifest> manifest = Judge(record, step, accept);
  RETURN_IF_ERROR(AgreeOn(ranks, manifest.status()));
  RETURN_IF_ERROR(Load(ranks, repository, *manifest, state));
  restored.manifest = *std::move(manifest);
  restored.record = std::move(record);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Restored> RestoreNewest(Group& ranks, const Repository& repository,
                                       const std::vector<StateTensor>& state,
                                       const std::function<absl::Status(const Manifest&)>& accept) {
  ASSIGN_OR_RETURN(const std::vector<std::int64_t> steps, ShareSteps(ranks, repository));
  Restored restored;
  for (std::int64_t step : steps) {
    const absl::Status loaded = LoadStep(ranks, repository, step, state, accept, restored);
    if (loaded.ok()) return restored;
    if (IsCommunicatorFailure(loaded) || absl::IsFailedPrecondition(loaded)) return loaded;
    restored.skipped.push_back(absl::StrCat("the commit of step ", step,
                                            " is not usable: ", std::string(loaded.message())));
  }
  if (!steps.empty()) {
    return absl::DataLossError(absl::StrCat("none of ", steps.size(), " commits in ",
                                            repository.path(),
                                            " verifies: ", absl::StrJoin(restored.skipped, "; ")));
  }
  return restored;
}

}  // namespace regroup::worker
