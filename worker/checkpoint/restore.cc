#include "worker/checkpoint/restore.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace regroup::worker {
namespace {

constexpr std::int64_t kMaxCandidates = 64;
constexpr int kSound = 0, kDamaged = 1, kOtherModel = 2;

// The text of rank `root`, cut at 1 KiB, on every rank.
absl::StatusOr<std::string> ShareText(Group& ranks, int root, std::string_view text) {
  std::array<char, 1024> buffer{};
  if (ranks.rank() == root)
    std::memcpy(buffer.data(), text.data(), std::min(text.size(), buffer.size() - 1));
  RETURN_IF_ERROR(ranks.Broadcast(std::as_writable_bytes(std::span(buffer)), root));
  return std::string(buffer.data());
}

// Rank 0's list, newest first; its failure on every rank.
absl::StatusOr<std::vector<std::int64_t>> ShareSteps(Group& ranks, const Repository& repository) {
  std::array<std::int64_t, kMaxCandidates + 1> message{};  // Count, or -1; steps.
  std::string failure;
  if (ranks.rank() == 0) {
    const absl::StatusOr<std::vector<std::int64_t>> steps = repository.CommittedSteps();
    if (steps.ok()) {
      message[0] = std::min<std::int64_t>(kMaxCandidates, static_cast<std::int64_t>(steps->size()));
      std::copy_n(steps->begin(), message[0], message.begin() + 1);
    } else {
      message[0] = -1;
      failure = std::string(steps.status().message());
    }
  }
  RETURN_IF_ERROR(ranks.Broadcast(std::as_writable_bytes(std::span(message)), 0));
  if (message[0] < 0) {
    ASSIGN_OR_RETURN(const std::string text, ShareText(ranks, 0, failure));
    return absl::DataLossError(text);
  }
  return std::vector<std::int64_t>(message.begin() + 1, message.begin() + 1 + message[0]);
}

// Rank 0's record on every rank, so that all judge the same bytes. Empty if it could not be read.
absl::StatusOr<std::string> ShareRecord(Group& ranks, const absl::StatusOr<std::string>& own) {
  std::int64_t size = ranks.rank() == 0 && own.ok() ? static_cast<std::int64_t>(own->size()) : 0;
  RETURN_IF_ERROR(ranks.Broadcast(std::as_writable_bytes(std::span(&size, 1)), 0));
  std::string record =
      ranks.rank() == 0 && own.ok() ? *own : std::string(static_cast<std::size_t>(size), '\0');
  RETURN_IF_ERROR(ranks.Broadcast(std::as_writable_bytes(std::span(record)), 0));
  return record;
}

absl::StatusOr<Manifest> LoadRecord(const Repository& repository, const std::string& record,
                                    std::int64_t step, const std::vector<StateTensor>& state,
                                    const std::function<absl::Status(const Manifest&)>& accept) {
  ASSIGN_OR_RETURN(Manifest manifest, ParseManifest(record));
  if (manifest.step != step)
    return absl::DataLossError(absl::StrCat("its record is one of step ", manifest.step));
  if (accept) RETURN_IF_ERROR(accept(manifest));
  RETURN_IF_ERROR(repository.Load(manifest, state));
  return manifest;
}

}  // namespace

absl::StatusOr<Restored> RestoreNewest(Group& ranks, const Repository& repository,
                                       const std::vector<StateTensor>& state,
                                       const std::function<absl::Status(const Manifest&)>& accept) {
  ASSIGN_OR_RETURN(const std::vector<std::int64_t> steps, ShareSteps(ranks, repository));
  Restored restored;
  for (std::int64_t step : steps) {
    const absl::StatusOr<std::string> own =
        ranks.rank() == 0 ? repository.ReadRecord(step) : absl::StatusOr<std::string>("");
    ASSIGN_OR_RETURN(const std::string record, ShareRecord(ranks, own));
    absl::StatusOr<Manifest> manifest = own.ok()
                                            ? LoadRecord(repository, record, step, state, accept)
                                            : absl::DataLossError(own.status().message());
    // The worst verdict counts, and among equal ones the lowest rank's words.
    const int verdict = manifest.ok()                                   ? kSound
                        : absl::IsFailedPrecondition(manifest.status()) ? kOtherModel
                                                                        : kDamaged;
    std::int64_t worst = verdict == kSound ? 0
                                           : std::int64_t{verdict} * ranks.world_size() +
                                                 ranks.world_size() - 1 - ranks.rank();
    RETURN_IF_ERROR(ranks.AllReduce(std::span(&worst, 1), Reduction::kMax));
    if (worst == 0) {
      restored.manifest = *std::move(manifest);
      restored.record = record;
      return restored;
    }
    const int speaker = ranks.world_size() - 1 - static_cast<int>(worst % ranks.world_size());
    ASSIGN_OR_RETURN(const std::string why,
                     ShareText(ranks, speaker, std::string(manifest.status().message())));
    if (worst / ranks.world_size() == kOtherModel) return absl::FailedPreconditionError(why);
    restored.skipped.push_back(absl::StrCat("the commit of step ", step, " is not usable: ", why));
  }
  if (!steps.empty()) {
    return absl::DataLossError(absl::StrCat("none of ", steps.size(), " commits in ",
                                            repository.path(),
                                            " verifies: ", absl::StrJoin(restored.skipped, "; ")));
  }
  return restored;
}

}  // namespace regroup::worker
