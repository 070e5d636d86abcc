#include "agent/core/stops.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace regroup::agent {
namespace {

bool AllExitedWell(const Group& group) {
  const auto& exits = group.ranks.exits;
  return static_cast<int>(exits.size()) == group.workers &&
         std::all_of(exits.begin(), exits.end(), [](const auto& entry) {
           return entry.second.kind == ExitKind::kExited && entry.second.code == 0;
         });
}

}  // namespace

void CloseStoreOf(Step& step, const GroupKey& key, Group& group, StopReason reason) {
  const bool breaks = reason == StopReason::kFailure || reason == StopReason::kCancelled ||
                      reason == StopReason::kSuperseded;
  if (!breaks || !group.store.hosted || group.store.closed) return;
  // Stops nobody; keeps stragglers elsewhere from rendezvousing in a generation that is over.
  group.store.closed = true;
  if (group.store.spawned) step.Do(CloseStore{key});
  group.report.dirty = true;
}

void AwaitShim(Step& step, Group& group) {
  group.shim.kill_at = std::max(step.now(), *group.stop_deadline) + step.waits().shim_silence;
}

void StopGroup(Step& step, const GroupKey& key, Group& group, Instant deadline, StopReason reason) {
  if (group.phase == Phase::kFree) return;
  CloseStoreOf(step, key, group, reason);
  if (group.stop_deadline && *group.stop_deadline <= deadline) return;
  group.stop_deadline = deadline;
  ForsakeRanks(group);
  AwaitShim(step, group);
  if (!group.signalled_at) group.signalled_at = step.now();
  if (group.phase != Phase::kUnkillable && group.phase != Phase::kStopping) {
    group.phase = Phase::kStopping;
    group.report.dirty = true;
  }
  // A generation with a rank that has exited 0 neither grows nor moves: that stop ends the job.
  const bool finished = reason == StopReason::kElective && AllExitedWell(group);
  // One that is being handed over may be another group's by now: its answer comes first.
  if (group.shim.stage == ShimStage::kReady && !step.state.IsHandingOver(key))
    step.Do(StopRanks{key, deadline, finished});
  // Nothing was started, so nothing has to be stopped.
  if (group.shim.stage == ShimStage::kWarming) MarkFree(group);
}

void StopEverything(Step& step, Instant deadline) {
  for (auto& [key, group] : step.state.groups)
    StopGroup(step, key, group, deadline, StopReason::kNotice);
}

// A live shim kills its ranks at the deadline and says so; then its group is free or unkillable.
std::optional<Instant> KillShimAt(const Group& group) {
  const bool awaited = group.phase == Phase::kStopping && group.has_shim() && !group.words_until;
  return awaited ? group.shim.kill_at : std::nullopt;
}

void KillSilentShims(Step& step) {
  for (auto& [key, group] : step.state.groups) {
    const std::optional<Instant> at = KillShimAt(group);
    if (!at || step.now() < *at) continue;
    step.Note(absl::StrCat("the shim of ", NameOf(key), " does not answer and is killed"));
    AwaitShim(step, group);  // The kill may be lost as well.
    // Until it has taken this generation, it is the shim of the one before.
    const bool asked = group.in_place.from && group.shim.stage == ShimStage::kSpawned;
    step.Do(KillShim{asked ? GroupKey{key.job, *group.in_place.from} : key});
  }
}

}  // namespace regroup::agent
