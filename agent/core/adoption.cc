#include "agent/core/adoption.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "agent/core/group.h"
#include "agent/core/in_place.h"
#include "agent/core/leftovers.h"
#include "agent/core/prepare.h"
#include "agent/core/session.h"
#include "agent/core/stops.h"
#include "common/base/check.h"
#include "common/base/control.h"

namespace regroup::agent {
namespace {

// What an earlier life had begun and not ended.
void GoOn(Step& step, const RunRecord& record, Group& group) {
  if (group.stop_deadline) AwaitShim(step, group);
  if (group.supervisor_lost && group.busy()) {
    group.signalled_at = step.now();
    KillLeftovers(step, record.key, group);
  } else if (group.phase == Phase::kPreparing) {
    if (group.store.hosted && (!group.store.address || !record.store.alive)) {
      group.store.address.reset();
      group.store.lost = false;  // No rank has used it yet: another one does.
      group.store.spawned = true;
      step.Do(SpawnStore{record.key});
    }
    MaybePrepared(group);
  } else if (group.phase == Phase::kStarting || group.phase == Phase::kRunning) {
    AwaitKept(step, group);  // Whether they have taken this generation is not recorded.
  }
}

}  // namespace

void On(Step& step, const Scanned& scanned) {
  State& state = step.state;
  CHECK(!state.scanned);
  state.scanned = true;
  for (const RunRecord& record : scanned.records) {
    // Another boot killed everything in it. A directory without a shim that never started a rank is
    // an unfinished prepare: nothing runs, and the coordinator, which sees no such group in our
    // Hello, prepares again or gives up.
    const bool other_boot = record.boot != state.config.boot;
    const bool nothing_runs =
        !record.shim_alive && !record.started && !record.checking && record.starts.empty();
    if (other_boot || nothing_runs) {
      step.Note(absl::StrCat("removing the run directory of ", NameOf(record.key),
                             other_boot ? ": of another boot" : ": its shim never ran"));
      step.Do(RemoveRunDirectory{record.key});
      continue;
    }
    Group& group = state.groups.emplace(record.key, Adopt(record)).first->second;
    if (group.workers == 0) group.workers = state.config.slots;
    Job& job = state.jobs[record.key.job];
    job.highest = std::max(job.highest, record.key.generation);
    if (group.started) state.ever_ran = true;
    step.Note(absl::StrCat("adopted ", NameOf(record.key)));
    GoOn(step, record, group);
  }
  NumberSlots(state);
  SayHello(step);
}

}  // namespace regroup::agent
