#include "launcher/coordinator/core/causes.h"

#include <algorithm>
#include <cstddef>
#include <variant>

#include "common/base/check.h"

namespace regroup::coordinator {
namespace {

constexpr std::size_t kMaxConsequences = 8;

}  // namespace

void Causes::Fold(CauseAt cause) {
  if (!worst) {
    worst = std::move(cause);
    return;
  }
  // From here on `cause` is the lesser one: either may have been a rank's failure that is kept
  // beside the root cause.
  if (IsWorse(cause, *worst)) std::swap(*worst, cause);
  const auto* failed = std::get_if<WorkerFailed>(&cause.reason);
  if (failed == nullptr) return;
  auto at = std::upper_bound(consequences.begin(), consequences.end(), cause.at,
                             [](Instant when, const auto& entry) { return when < entry.first; });
  consequences.emplace(at, cause.at, failed->cause);
  if (consequences.size() > kMaxConsequences) consequences.pop_back();
}

bool Causes::Learn(const std::string& node, const RankExit& exit) {
  bool found = false, other_class = false;
  // Evidence decides the class of a cause, so that new evidence may make another rank
  // the root cause.
  const auto learn = [&](RankCause& cause) {
    if (cause.node != node || cause.local_rank != exit.local_rank) return;
    found = true;
    other_class = other_class || cause.exit.evidence != exit.evidence;
    cause.exit.evidence = exit.evidence;
    if (cause.exit.error.empty()) cause.exit.error = exit.error.substr(0, kMaxErrorBytes);
  };
  if (worst) {
    if (auto* failed = std::get_if<WorkerFailed>(&worst->reason)) learn(failed->cause);
  }
  for (auto& [at, consequence] : consequences) learn(consequence);
  if (!other_class) return found;
  // Weighed again from the start; what is known stays the same, only its order may change.
  for (auto& [at, consequence] : std::exchange(consequences, {}))
    Fold({WorkerFailed{std::move(consequence)}, at});
  return found;
}

EndReason Causes::Reason() const {
  CHECK(known());
  if (!worst) return *fallback;
  // It lost a peer, and that peer had been told to go: not all ranks hear of a notice in one step.
  const auto* failed = std::get_if<WorkerFailed>(&worst->reason);
  if (failed && failed->cause.exit.evidence == ErrorEvidence::kCommunicator &&
      !ended_by_notice.empty())
    return Preempted{ended_by_notice, false};
  return worst->reason;
}

}  // namespace regroup::coordinator
