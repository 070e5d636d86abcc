#include "agent/core/progress.h"

#include <climits>

namespace regroup::agent {

void KeepProgress(Step& step, const GroupKey& key, int local_rank, const WorkerProgress& progress) {
  Progress& kept = step.state.progress[{key, local_rank}];
  // Each word is absolute, so that the newest says all that those before it said.
  kept.last = progress;
  kept.unsent = true;
}

void FlushProgress(Step& step, const GroupKey& key) {
  if (!step.state.attached()) return;
  for (auto& [owner, progress] : step.state.progress) {
    // Ahead of its time, which goes on as it was: flushing is rare (an exit, a commit).
    if (owner.first != key || !progress.unsent) continue;
    progress.unsent = false;
    step.Do(SendProgress{progress.last});
  }
}

void SendDueProgress(Step& step) {
  if (!step.state.attached()) return;
  for (auto& [owner, progress] : step.state.progress) {
    if (!progress.unsent || progress.not_before > step.now()) continue;
    progress.unsent = false;
    progress.not_before = step.now() + step.waits().progress;
    step.Do(SendProgress{progress.last});
  }
}

std::optional<Instant> NextProgress(const State& state) {
  std::optional<Instant> next;
  for (const auto& [owner, progress] : state.progress) {
    if (progress.unsent && (!next || progress.not_before < *next)) next = progress.not_before;
  }
  return next;
}

void RepeatProgress(Step& step) {
  // Each keeps its own pace: thousands of ranks at once would delay what matters more. Those of a
  // group that asks for a commit again do not wait (commits.cc).
  for (auto& [owner, progress] : step.state.progress) progress.unsent = true;
}

void DropProgress(State& state, const GroupKey& key) {
  state.progress.erase(state.progress.lower_bound({key, INT_MIN}),
                       state.progress.upper_bound({key, INT_MAX}));
}

}  // namespace regroup::agent
