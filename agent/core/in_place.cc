#include "agent/core/in_place.h"

#include <algorithm>
#include <csignal>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "agent/core/stops.h"

namespace regroup::agent {
namespace {

bool IsLive(const Group& group, int local_rank) {
  return group.ranks.starts.contains(local_rank) && !group.ranks.exits.contains(local_rank);
}

// Ranks that have started and neither ended nor retired.
std::vector<int> Unretired(const Group& group) {
  std::vector<int> ranks;
  for (const auto& [local_rank, start] : group.ranks.starts) {
    if (IsLive(group, local_rank) && !group.in_place.retired.contains(local_rank))
      ranks.push_back(local_rank);
  }
  return ranks;
}

// By a signal, of a notice or of an earlier stop: sooner or later it ends, perhaps in the next
// generation.
bool IsToldToEnd(const Group& group, int local_rank) {
  return group.notice.signalled_at.contains(local_rank);
}

bool IsAble(const Group& group, int local_rank) {
  return group.in_place.able.contains(local_rank) && !IsToldToEnd(group, local_rank);
}

// One that only lacks its connection is told as soon as it has another one.
bool MayRetire(const Group& group, int local_rank) {
  return IsAble(group, local_rank) ||
         (group.in_place.were_able.contains(local_rank) && !IsToldToEnd(group, local_rank));
}

// Its work of this generation is lost, or nothing yet: the others have it.
void Signal(Step& step, const GroupKey& key, Group& group, int local_rank) {
  group.in_place.retiring->signalled.insert(local_rank);
  if (IsToldToEnd(group, local_rank)) return;
  step.Note(absl::StrCat("local rank ", local_rank, " of ", NameOf(key),
                         " cannot retire and is signalled"));
  step.Do(SignalRank{key, local_rank, SIGTERM});
}

// They wait as they did before: nothing of this generation was said to them.
bool HasIdleKept(const Group& group) {
  const bool idle = group.phase == Phase::kPreparing || group.phase == Phase::kPrepared;
  return idle && group.shim.stage >= ShimStage::kSpawned && !group.ranks.kept.empty();
}

void MaybeRetired(Step& step, const GroupKey& key, Group& group) {
  if (!group.in_place.retiring || !Unretired(group).empty()) return;
  // Not for the generation's reason: its store was closed for that, or others may still need it.
  if (group.in_place.retired.empty())
    return StopGroup(step, key, group, step.now(), StopReason::kNotice);
  group.in_place.retiring.reset();
  group.phase = Phase::kRetired;
  group.report.dirty = true;
}

// Who has dialled again by now was told to retire. Where nobody has, all ends as it would have.
void EndRedial(Step& step, const GroupKey& key, Group& group) {
  Retiring& retiring = *group.in_place.retiring;
  retiring.redial_until.reset();
  const std::vector<int> live = Unretired(group);
  if (group.in_place.retired.empty() && std::none_of(live.begin(), live.end(), [&](int local_rank) {
        return IsAble(group, local_rank);
      })) {
    const Instant deadline = retiring.until;
    return StopGroup(step, key, group, deadline, StopReason::kNotice);
  }
  for (int local_rank : live)
    if (!IsAble(group, local_rank) && !retiring.signalled.contains(local_rank))
      Signal(step, key, group, local_rank);
}

void GiveUp(Step& step, const GroupKey& key, Group& group, int local_rank, std::string why) {
  step.Note(absl::StrCat("local rank ", local_rank, " of ", NameOf(key), " is killed: ", why));
  group.in_place.awaited.erase(local_rank);
  group.in_place.given_up.emplace(local_rank, std::move(why));
  step.Do(KillRank{key, local_rank});
}

}  // namespace

void RetireGroup(Step& step, const GroupKey& key, Group& group, Instant deadline,
                 StopReason reason) {
  if (group.phase == Phase::kRetired) return;
  if (std::optional<Retiring>& retiring = group.in_place.retiring) {
    if (!retiring->killed) retiring->until = std::min(retiring->until, deadline);
    return;
  }
  const bool idle = HasIdleKept(group);
  const std::vector<int> live = Unretired(group);
  const bool can = group.phase == Phase::kRunning &&
                   std::any_of(live.begin(), live.end(),
                               [&](int local_rank) { return MayRetire(group, local_rank); });
  if (!idle && !can) return StopGroup(step, key, group, deadline, reason);
  CloseStoreOf(step, key, group, reason);
  // From now on an end of a rank is no failure of this generation.
  if (!group.signalled_at) group.signalled_at = step.now();
  Retiring& retiring = group.in_place.retiring.emplace(Retiring{deadline});
  group.in_place.awaited.clear();
  group.phase = Phase::kStopping;
  group.report.dirty = true;
  if (idle) return RetireKept(step, key, group);
  for (int local_rank : live) {
    if (IsAble(group, local_rank)) {
      TellToRetire(step, key, group, local_rank);
    } else if (MayRetire(group, local_rank)) {
      const Duration left = std::max(Duration::zero(), deadline - step.now());
      retiring.redial_until = step.now() + std::min(step.waits().redial, left / 2);
    } else {
      Signal(step, key, group, local_rank);
    }
  }
}

void RetireKept(Step& step, const GroupKey& key, Group& group) {
  // Before, the answer to the handing over decides.
  if (group.shim.stage != ShimStage::kReady) return;
  for (const auto& [local_rank, start] : group.ranks.kept)
    group.in_place.retired.insert(local_rank);
  MaybeRetired(step, key, group);
}

void TellToRetire(Step& step, const GroupKey& key, const Group& group, int local_rank) {
  const InPlace& in_place = group.in_place;
  if (!in_place.retiring || in_place.retired.contains(local_rank)) return;
  if (in_place.retiring->signalled.contains(local_rank)) return;  // It ends, sooner or later.
  const Duration left = std::max(Duration::zero(), in_place.retiring->until - step.now());
  step.Do(TellRetire{key, local_rank, left});
}

void RankHasRetired(Step& step, const GroupKey& key, Group& group, int local_rank) {
  if (!group.in_place.retiring || !IsLive(group, local_rank)) return;
  if (group.in_place.retiring->signalled.contains(local_rank)) return;
  group.in_place.retired.insert(local_rank);
  MaybeRetired(step, key, group);
}

void RankCannotGoOn(Step& step, const GroupKey& key, Group& group, int local_rank,
                    const std::string& why) {
  if (!IsLive(group, local_rank) || group.shim.stage != ShimStage::kReady) return;
  const bool begun = group.phase == Phase::kStarting || group.phase == Phase::kRunning;
  if (begun && group.ranks.kept.contains(local_rank)) {
    GiveUp(step, key, group, local_rank,
           absl::StrCat("it cannot go on in its new generation: ", why));
  } else if (group.in_place.retiring ||
             (group.phase == Phase::kRetired && !step.state.IsHandingOver(key))) {
    step.Note(
        absl::StrCat("local rank ", local_rank, " of ", NameOf(key), " cannot retire: ", why));
    step.Do(KillRank{key, local_rank});
  }
}

void RankIsGone(Step& step, const GroupKey& key, Group& group, int local_rank) {
  group.in_place.retired.erase(local_rank);
  group.in_place.awaited.erase(local_rank);
  if (const std::optional<GroupKey> heir = step.state.HeirOf(key)) {
    Group& next = *step.state.Find(*heir);
    if (!next.started) next.ranks.kept.erase(local_rank);
  }
  if (group.phase == Phase::kRetired && group.in_place.retired.empty())
    return StopGroup(step, key, group, step.now(), StopReason::kNotice);
  MaybeRetired(step, key, group);
}

Legacy LegacyFor(Step& step, const GroupKey& key, int workers) {
  auto& groups = step.state.groups;
  Legacy legacy;
  for (auto it = groups.lower_bound(key); it != groups.begin();) {
    auto& [last, group] = *--it;
    if (last.job != key.job) break;
    // Also where there are slots for both: ranks that retire soon spare new processes.
    legacy.stopping |= group.phase == Phase::kStopping;
    legacy.unkillable |= group.phase == Phase::kUnkillable;
    if (group.phase != Phase::kRetired || step.state.HeirOf(last)) continue;
    if (!legacy.from && group.workers == workers && !group.in_place.refused) {
      legacy.from = last.generation;
    } else {
      // Its ranks have nothing left to save, and the new generation waits for their end.
      StopGroup(step, last, group, step.now(), StopReason::kNotice);
      legacy.stopping = true;
    }
  }
  return legacy;
}

void EndLegacyOf(Step& step, const GroupKey& key) {
  auto& groups = step.state.groups;
  for (auto it = groups.lower_bound(key); it != groups.begin();) {
    auto& [last, group] = *--it;
    if (last.job != key.job) break;
    const bool waits = group.phase == Phase::kRetired || group.in_place.retiring;
    if (waits && group.shim.stage == ShimStage::kReady)
      StopGroup(step, last, group, step.now(), StopReason::kNotice);
  }
}

bool IsStillRetired(const State& state, const GroupKey& key, const Group& group) {
  const auto last = state.groups.find({key.job, *group.in_place.from});
  return last != state.groups.end() && last->second.phase == Phase::kRetired;
}

void TakeOver(Step& step, const GroupKey& key, Group& group) {
  const GroupKey from{key.job, *group.in_place.from};
  const Group& last = step.state.groups.at(from);
  group.shim.stage = ShimStage::kSpawned;
  for (int local_rank : last.in_place.retired) {
    // Where it was retired anew before it was told of a generation, it has not started in that.
    const auto start = last.ranks.starts.find(local_rank);
    group.ranks.kept.emplace(local_rank, start != last.ranks.starts.end()
                                             ? start->second
                                             : last.ranks.kept.at(local_rank));
  }
  step.Do(HandOver{from, key});
}

void OnTakenOver(State& state, const GroupKey& key, const Group& group) {
  if (!group.in_place.from) return;
  Group* last = state.Find({key.job, *group.in_place.from});
  // Nothing is to be said to it in the name of the group that it has left.
  if (last != nullptr) last->shim.stage = ShimStage::kGone;
}

void OnNotTakenOver(Step& step, const GroupKey& key, const Group& group) {
  if (!group.in_place.from || group.shim.stage != ShimStage::kSpawned) return;
  const GroupKey from{key.job, *group.in_place.from};
  Group* last = step.state.Find(from);
  if (last == nullptr || last->shim.stage != ShimStage::kReady) return;
  last->in_place.refused = true;
  // It could not be told before.
  if (last->phase == Phase::kStopping) step.Do(StopRanks{from, *last->stop_deadline});
}

void AwaitKept(Step& step, Group& group) {
  for (const auto& [local_rank, start] : group.ranks.kept) {
    group.ranks.starts.emplace(local_rank, start);
    group.in_place.were_able.insert(local_rank);
    if (!group.ranks.exits.contains(local_rank)) group.in_place.awaited.insert(local_rank);
  }
  // No hello of another rank makes it later: who is late holds up all of them.
  group.in_place.awaited_until = step.now() + step.waits().adopt;
}

void EndWaits(Step& step) {
  for (auto& [key, group] : step.state.groups) {
    InPlace& in_place = group.in_place;
    if (!in_place.awaited.empty() && step.now() >= in_place.awaited_until) {
      for (int local_rank : std::set<int>(in_place.awaited)) {
        GiveUp(step, key, group, local_rank,
               absl::StrFormat("it did not take its new generation within %g s",
                               Seconds(step.waits().adopt)));
      }
    }
    if (!in_place.retiring) continue;
    if (in_place.retiring->redial_until && step.now() >= *in_place.retiring->redial_until)
      EndRedial(step, key, group);
    if (!in_place.retiring || step.now() < in_place.retiring->until) continue;
    // A killed rank that is not gone, or a shim that does not answer: only a stop has the means.
    if (in_place.retiring->killed) {
      StopGroup(step, key, group, step.now(), StopReason::kNotice);
      continue;
    }
    const std::vector<int> late = Unretired(group);
    in_place.retiring = Retiring{step.now() + step.waits().shim_silence, /*killed=*/true,
                                 std::set<int>(late.begin(), late.end())};
    for (int local_rank : late) {
      step.Note(absl::StrCat("local rank ", local_rank, " of ", NameOf(key),
                             " has not retired and is killed"));
      step.Do(KillRank{key, local_rank});
    }
  }
}

std::optional<Instant> NextInPlace(const Group& group) {
  const InPlace& in_place = group.in_place;
  std::optional<Instant> next;
  if (!in_place.awaited.empty()) next = in_place.awaited_until;
  if (const std::optional<Retiring>& retiring = in_place.retiring)
    next = std::min({next.value_or(Instant::max()), retiring->until,
                     retiring->redial_until.value_or(Instant::max())});
  return next;
}

}  // namespace regroup::agent
