#include "agent/core/orders.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/core/group.h"
#include "agent/core/in_place.h"
#include "agent/core/notices.h"
#include "agent/core/prepare.h"
#include "agent/core/progress.h"
#include "agent/core/ranks.h"
#include "agent/core/stops.h"
#include "common/base/control.h"
#include "common/base/ids.h"

namespace regroup::agent {
namespace {

// A run order comes from a peer: it must name every local rank of the group once.
bool CoversGroup(const Run& run, const Group& group) {
  std::set<int> ranks;
  for (const RankAssignment& assignment : run.mine) ranks.insert(assignment.local_rank);
  return static_cast<int>(run.mine.size()) == group.workers && !ranks.empty() &&
         *ranks.begin() == 0 && *ranks.rbegin() == group.workers - 1 &&
         static_cast<int>(ranks.size()) == group.workers;
}

// Below the highest, a later generation has taken this one's place.
bool IsStale(const Job& job, Generation generation) {
  return generation <= job.stopped_up_to || generation <= job.forgotten_up_to ||
         generation < job.highest;
}

// The last that this node knows of the group: its report was acknowledged, or its job is gone.
void Remove(Step& step, const GroupKey& key) {
  const Group& group = step.state.groups.at(key);
  if (group.shim.stage != ShimStage::kNone) step.Do(RemoveRunDirectory{key});
  step.state.groups.erase(key);
  KeepNursery(step, key.job);
  step.state.commits.erase(key);
  DropProgress(step.state, key);
}

void ForgetGroups(Step& step, const JobId& id, const Job& job) {
  auto& groups = step.state.groups;
  for (auto it = groups.lower_bound({id, Generation()});
       it != groups.end() && it->first.job == id;) {
    const GroupKey key = it->first;
    // A shim that is being handed over may still answer in its name.
    const bool gone = key.generation <= job.forgotten_up_to && it->second.phase == Phase::kFree &&
                      !step.state.IsHandingOver(key);
    ++it;
    if (gone) Remove(step, key);
  }
}

// Where it is not prepared yet, the order is kept and looked at again after the next event.
void StartIfPrepared(Step& step, const GroupKey& key, Job& job) {
  Group* group = step.state.Find(key);
  if (group == nullptr || group->started || group->phase != Phase::kPrepared ||
      step.state.ending.leaving)
    return;
  if (!CoversGroup(*job.run, *group)) {
    step.Note(absl::StrCat("the run order of ", NameOf(key), " does not name each of ",
                           group->workers, " local ranks once"));
    job.run.reset();
    return;
  }
  // Were it kept, the group would be prepared anew once it has been forgotten.
  job.prepare.reset();
  // From here on ranks may run, whatever becomes of this process: the shim's mark tells the next.
  EndLegacyOf(step, key);
  std::set<int> kept;
  for (const auto& [local_rank, start] : group->ranks.kept) kept.insert(local_rank);
  step.Do(StartRanks{key, *job.run, std::move(kept)});
  BeginRanks(step, key, *group);
}

}  // namespace

void On(Step& step, const Ordered& ordered) {
  State& state = step.state;
  const Order& order = ordered.order;
  Attached* session = state.attachment();
  // Each order says all that is wanted of its job, so that an older one has nothing to add.
  if (session == nullptr || order.number < session->obeyed) return;
  session->obeyed = order.number;
  Job& job = state.jobs[order.job];
  if (order.stop) {
    // Kept as a number as well: whatever is prepared later at or below it is stale.
    job.stopped_up_to = std::max(job.stopped_up_to, order.stop->up_to);
    for (auto& [key, group] : state.groups) {
      if (key.job != order.job || key.generation > order.stop->up_to) continue;
      const Instant deadline = step.now() + order.stop->grace;
      if (order.stop->in_place) {
        RetireGroup(step, key, group, deadline, order.stop->reason);
      } else {
        StopGroup(step, key, group, deadline, order.stop->reason);
      }
    }
  }
  if (order.forget) job.forgotten_up_to = std::max(job.forgotten_up_to, order.forget->up_to);
  // What it does not name is wanted no more.
  job.prepare = order.prepare;
  job.run = order.run;
  if (order.notice) {
    const GroupKey key{order.job, order.notice->generation};
    if (Group* group = state.Find(key); group != nullptr && group->busy()) {
      std::optional<Instant>& known = group->notice.deadline;
      const Instant deadline = step.now() + order.notice->left;
      // Workers save within the time that they heard of first; more of it would not reach them.
      known = known ? std::min(*known, deadline) : deadline;
      NotifyWorkers(step, key, *group);
    }
  }
}

void ForgetWishes(State& state) {
  for (auto& [id, job] : state.jobs) {
    job.prepare.reset();
    job.run.reset();
  }
}

void Reconcile(Step& step) {
  State& state = step.state;
  for (auto it = state.jobs.begin(); it != state.jobs.end();) {
    const JobId& id = it->first;
    Job& job = it->second;
    ForgetGroups(step, id, job);
    if (job.prepare && !IsStale(job, job.prepare->generation))
      StartPreparing(step, id, *job.prepare);
    if (job.run) StartIfPrepared(step, {id, job.run->generation}, job);
    const auto first = state.groups.lower_bound({id, Generation()});
    const bool any_group = first != state.groups.end() && first->first.job == id;
    // Nothing is left to be stale against: within a session orders arrive in sequence and are
    // cumulative.
    it = any_group || job.prepare || job.run ? std::next(it) : state.jobs.erase(it);
  }
}

}  // namespace regroup::agent
