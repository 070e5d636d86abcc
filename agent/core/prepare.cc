#include "agent/core/prepare.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "agent/core/in_place.h"
#include "agent/core/stops.h"

namespace regroup::agent {
namespace {

constexpr std::size_t kMaxRefusalBytes = 2048;

// A refusal is a group that is free from birth: reported until acknowledged, then forgotten like
// any other.
void Refuse(Step& step, const GroupKey& key, int workers, std::string why) {
  step.Note(absl::StrCat("refused to prepare ", NameOf(key), ": ", why));
  Job& job = step.state.jobs[key.job];
  job.highest = std::max(job.highest, key.generation);
  Group group;
  group.phase = Phase::kFree;
  group.workers = std::max(0, workers);
  group.refused = std::move(why);
  step.state.groups.emplace(key, std::move(group));
}

void SpawnStoreIfHosted(Step& step, const GroupKey& key, Group& group) {
  if (!group.store.hosted) return;
  group.store.spawned = true;
  step.Do(SpawnStore{key});
}

// Side by side, because a restart waits for the slower of the two.
void SpawnParts(Step& step, const GroupKey& key, Group& group) {
  group.shim.stage = ShimStage::kSpawned;
  step.Do(SpawnShim{key});
  SpawnStoreIfHosted(step, key, group);
}

struct Slots {
  int taken = 0, freeing = 0;  // The second is a part of the first.
};
// Of all groups but `without`. A retired group's slots are those of the group that it goes on in.
Slots SlotsOf(const State& state, const GroupKey& without) {
  Slots slots;
  for (const auto& [key, group] : state.groups) {
    if (key == without || !group.holds_slots() || state.HeirOf(key)) continue;
    slots.taken += group.workers;
    if (group.phase == Phase::kStopping) slots.freeing += group.workers;
  }
  return slots;
}

// As many as that of the smallest numbers that no group but `without` holds.
std::vector<int> FreeSlots(const State& state, const GroupKey& without, int needed) {
  std::set<int> held;
  for (const auto& [key, group] : state.groups) {
    if (key != without && group.holds_slots()) held.insert(group.slots.begin(), group.slots.end());
  }
  std::vector<int> free;
  for (int slot = 0; static_cast<int>(free.size()) < needed; ++slot) {
    if (!held.contains(slot)) free.push_back(slot);
  }
  return free;
}

}  // namespace

void StartPreparing(Step& step, const JobId& job, const Prepare& prepare) {
  State& state = step.state;
  const GroupKey key{job, prepare.generation};
  // The order stands until the next one replaces it: this group is under way, or was refused.
  if (state.Find(key) != nullptr) return;
  const int needed = prepare.spec.workers, slots = step.config().slots;
  const Legacy legacy = LegacyFor(step, key, needed);
  const auto [taken, freeing] = SlotsOf(state, {job, legacy.from.value_or(prepare.generation)});
  if (needed < 1 || needed > slots) {
    return Refuse(step, key, needed,
                  absl::StrFormat("%d workers asked for, this node has %d slots", needed, slots));
  }
  if (state.ending.leaving) return Refuse(step, key, needed, "this node is leaving");
  if (taken + needed > slots) {
    if (taken - freeing + needed <= slots) return;  // Waits for what is stopping.
    return Refuse(
        step, key, needed,
        absl::StrFormat("%d workers asked for, %d of %d slots are taken", needed, taken, slots));
  }
  // Also where there are slots for both, nothing of a generation starts beside an older one's
  // ranks.
  if (legacy.unkillable) return Refuse(step, key, needed, "ranks of an older generation live on");
  if (legacy.stopping) return;
  Job& known = state.jobs[job];
  known.highest = std::max(known.highest, prepare.generation);
  Group group;
  group.workers = needed;
  group.slots =
      legacy.from ? state.Find({job, *legacy.from})->slots : FreeSlots(state, key, needed);
  group.in_place.from = legacy.from;
  group.store.hosted = prepare.host_store;
  group.shim.warm = prepare.spec.job.warm.has_value();
  // From now on there may be something of it on the disk, whether the shell has answered or not.
  group.shim.stage = ShimStage::kDirectory;
  step.Do(WriteRunDirectory{key, prepare, group.slots});
  state.groups.emplace(key, std::move(group));
  state.nurseries.erase(job);
}

void NumberSlots(State& state) {
  for (auto& [key, group] : state.groups) {
    if (group.holds_slots() && group.slots.empty())
      group.slots = FreeSlots(state, key, group.workers);
  }
}

std::optional<Instant> WarmUntil(const Group& group) {
  const bool waits = group.shim.stage == ShimStage::kWarming && group.phase != Phase::kFree;
  return waits ? group.shim.warm_until : std::nullopt;
}

void EndWarmUps(Step& step) {
  for (auto& [key, group] : step.state.groups) {
    const std::optional<Instant> until = WarmUntil(group);
    if (!until || step.now() < *until) continue;
    step.Note(absl::StrCat("ranks of ", NameOf(key), " do not wait for imports any longer"));
    SpawnParts(step, key, group);
  }
}

void KeepNursery(Step& step, const JobId& job) {
  const auto& groups = step.state.groups;
  const auto other = groups.lower_bound({job, Generation()});
  if (other != groups.end() && other->first.job == job) return;
  step.state.nurseries[job] = step.now() + step.waits().nursery;
}

std::optional<Instant> NextOfNurseries(const State& state) {
  std::optional<Instant> next;
  for (const auto& [job, until] : state.nurseries) next = std::min(next.value_or(until), until);
  return next;
}

void EndNurseries(Step& step) {
  std::erase_if(step.state.nurseries, [&](const auto& nursery) {
    if (step.now() < nursery.second) return false;
    step.Do(EndNursery{nursery.first});
    return true;
  });
}

void MaybePrepared(Group& group) {
  if (group.phase != Phase::kPreparing || group.shim.stage != ShimStage::kReady ||
      group.shim.checking || (group.store.hosted && !group.store.address))
    return;
  group.phase = Phase::kPrepared;
  group.report.dirty = true;
}

void On(Step& step, const RunDirectoryWritten& written) {
  Group* group = step.state.Find(written.key);
  if (group == nullptr || group->shim.stage >= ShimStage::kWarming) return;
  if (group->stop_deadline) {
    // Voided meanwhile: nothing was started, so nothing has to be stopped.
    MarkFree(*group);
    return;
  }
  if (group->in_place.from) {
    if (IsStillRetired(step.state, written.key, *group)) return TakeOver(step, written.key, *group);
    return On(step, PrepareFailed{written.key, "the ranks that were to go on in it have ended"});
  }
  if (!group->shim.warm) return SpawnParts(step, written.key, *group);
  group->shim.stage = ShimStage::kWarming;
  group->shim.warm_until = step.now() + step.waits().warm_up;
  step.Do(WarmUp{written.key});
}

void On(Step& step, const WarmedUp& warmed_up) {
  Group* group = step.state.Find(warmed_up.key);
  if (group == nullptr || !WarmUntil(*group)) return;
  SpawnParts(step, warmed_up.key, *group);
}

void On(Step& step, const PrepareFailed& failed) {
  Group* group = step.state.Find(failed.key);
  if (group == nullptr || group->phase == Phase::kFree || group->started) return;
  step.Note(absl::StrCat("cannot prepare ", NameOf(failed.key), ": ", failed.why));
  group->refused = failed.why.substr(0, kMaxRefusalBytes);
  group->report.dirty = true;
  if (group->shim.stage == ShimStage::kReady) {
    StopGroup(step, failed.key, *group, step.now(), StopReason::kFailure);
  } else {
    // No rank was ever started: whatever there is of a shim or store ends with the run directory.
    MarkFree(*group);
    OnNotTakenOver(step, failed.key, *group);
  }
}

void SeeShim(Step& step, Group& group, const RunRecord& record) {
  const GroupKey& key = record.key;
  if (!record.shim_alive || group.shim.stage >= ShimStage::kReady || group.phase == Phase::kFree)
    return;
  group.shim.stage = ShimStage::kReady;
  group.shim.witness = record.witness;
  group.shim.checking = record.checking;
  OnTakenOver(step.state, key, group);
  if (group.stop_deadline) {
    // It could not be told before.
    step.Do(StopRanks{key, *group.stop_deadline});
  } else if (group.in_place.retiring) {
    RetireKept(step, key, group);
  } else {
    // After the shim where that was handed over: until its answer has come, a failure of the store
    // could not be told from its refusal, and ranks would live in a group that is free.
    if (group.in_place.from) SpawnStoreIfHosted(step, key, group);
    MaybePrepared(group);
  }
}

void SeeNodeCheck(Step& step, Group& group, const RunRecord& record) {
  if (!record.check_failed.empty()) {
    if (group.refused.empty()) On(step, PrepareFailed{record.key, record.check_failed});
    return;
  }
  // A stop ends it as well.
  if (!record.shim_alive || record.checking || record.stop_deadline || record.empty) return;
  group.shim.checking = false;
  MaybePrepared(group);
}

void SeeStore(Step& step, Group& group, const RunRecord& record) {
  if (!record.store.address || !group.store.hosted || group.store.address) return;
  group.store.address = record.store.address;
  if (group.store.closed) step.Do(CloseStore{record.key});  // Stopped before it was bound.
  MaybePrepared(group);
}

}  // namespace regroup::agent
