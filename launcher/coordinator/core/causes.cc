#include "launcher/coordinator/core/causes.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "launcher/coordinator/core/failure_policy.h"
#include "launcher/coordinator/core/job.h"

namespace regroup::coordinator {
namespace {

constexpr std::size_t kMaxConsequences = 8;

}  // namespace

EndReason ReasonOf(const GenerationSoft& soft) {
  if (!soft.cause) return *soft.fallback;
  // It lost a peer, and that peer had been told to go: not all ranks hear of a notice in one step.
  const auto* failed = std::get_if<WorkerFailed>(&soft.cause->reason);
  if (failed && failed->cause.exit.evidence == ErrorEvidence::kCommunicator &&
      !soft.ended_by_notice.empty())
    return Preempted{soft.ended_by_notice, false};
  return soft.cause->reason;
}

bool LearnError(GenerationSoft& soft, const std::string& node, const RankExit& exit) {
  bool known = false, other_class = false;
  const auto learn = [&](RankCause& cause) {
    if (cause.node != node || cause.local_rank != exit.local_rank) return;
    known = true;
    other_class = other_class || cause.exit.evidence != exit.evidence;
    cause.exit.evidence = exit.evidence;
    if (cause.exit.error.empty()) cause.exit.error = exit.error.substr(0, kMaxErrorBytes);
  };
  if (soft.cause) {
    if (auto* failed = std::get_if<WorkerFailed>(&soft.cause->reason)) learn(failed->cause);
  }
  for (auto& [at, consequence] : soft.consequences) learn(consequence);
  if (!other_class) return known;
  for (auto& [at, consequence] : std::exchange(soft.consequences, {}))
    FoldCause(soft, {WorkerFailed{std::move(consequence)}, at});
  return known;
}

void FoldCause(GenerationSoft& soft, CauseAt cause) {
  if (!soft.cause) {
    soft.cause = std::move(cause);
    return;
  }
  if (IsWorse(cause, *soft.cause)) std::swap(*soft.cause, cause);
  const auto* failed = std::get_if<WorkerFailed>(&cause.reason);
  if (failed == nullptr) return;
  auto at = std::upper_bound(soft.consequences.begin(), soft.consequences.end(), cause.at,
                             [](Instant when, const auto& entry) { return when < entry.first; });
  soft.consequences.emplace(at, cause.at, failed->cause);
  if (soft.consequences.size() > kMaxConsequences) soft.consequences.pop_back();
}

}  // namespace regroup::coordinator
