#include "agent/core/leftovers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace regroup::agent {
namespace {

constexpr int kCleanRounds = 2;

void MarkUnkillable(Step& step, const GroupKey& key, Group& group) {
  if (group.phase == Phase::kFree || group.phase == Phase::kUnkillable) return;
  step.Note(absl::StrCat(NameOf(key), " was killed and is not gone: its ", group.workers,
                         " slots stay taken"));
  group.phase = Phase::kUnkillable;
  ForsakeRanks(group);
  group.report.dirty = true;
}

}  // namespace

void KillLeftovers(Step& step, const GroupKey& key, Group& group) {
  group.words_until.reset();
  group.killing = Killing{step.now()};
  step.Do(KillGroup{key});
}

void On(Step& step, const LeftoversKilled& killed) {
  Group* group = step.state.Find(killed.key);
  if (group == nullptr || !group->killing || group->killing->again) return;
  Killing& killing = *group->killing;
  killing.clean = killed.none ? killing.clean + 1 : 0;
  if (killing.clean == kCleanRounds) {
    // Before anybody is told: the next life of this agent must not kill in the name of a group
    // whose slots were given away.
    step.Do(MarkKilled{killed.key});
    return MarkFree(*group);
  }
  if (step.now() >= killing.since + step.waits().stuck) MarkUnkillable(step, killed.key, *group);
  const bool first = killed.none || killing.wait == Duration::zero();
  killing.wait =
      first ? step.waits().kill_again : std::min(2 * killing.wait, step.waits().kill_limit);
  killing.again = step.now() + killing.wait;
}

void SeeEmpty(Step& step, Group& group, const RunRecord& record) {
  if (record.unkillable) MarkUnkillable(step, record.key, group);
  if (!record.empty || group.phase == Phase::kFree) return;
  if (!record.awaits_words) return MarkFree(group);
  const Duration wait = step.config().launched ? step.waits().output : step.waits().words;
  if (!group.words_until) group.words_until = step.now() + wait;
}

void KillAgain(Step& step) {
  for (auto& [key, group] : step.state.groups) {
    if (!group.killing || !group.killing->again || step.now() < *group.killing->again) continue;
    group.killing->again.reset();
    step.Do(KillGroup{key});
  }
}

void EndWords(Step& step) {
  for (auto& [key, group] : step.state.groups) {
    if (!group.words_until || step.now() < *group.words_until) continue;
    if (step.config().launched) step.Do(ShowLateOutput{key});
    MarkFree(group);
  }
}

std::optional<Instant> NextOfLeftovers(const Group& group) {
  if (group.killing) return group.killing->again;
  return group.words_until;
}

}  // namespace regroup::agent
