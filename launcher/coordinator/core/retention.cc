#include "launcher/coordinator/core/retention.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "launcher/coordinator/core/answers.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/node_in_job.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {
namespace {

// REQUIRES: it is over. In an earlier life by the calendar, if that was written down; but before
// this life, whatever the calendar says.
Instant OverSince(const State& state, const Job& job) {
  if (job.times.over_at) return *job.times.over_at;
  if (!job.state.ended_at) return state.recovered_at;
  const auto ago = std::chrono::duration_cast<Duration>(state.wall - *job.state.ended_at);
  return std::min(state.recovered_at, state.now - std::max(ago, Duration{}));
}

// As far as is known this launch command waits for its job's end; behind a cut its ranks run on
// until it is reached again. Where its host answers and it does not, it is gone; one without a job
// waits for no end.
bool WaitsForEnd(const Node& node) {
  if (!node.row.launch || node.row.launch->left) return false;
  return !node.lost() || (!node.lost()->proved && node.row.lost_how != kHowAway);
}

bool MayBeAskedFor(const State& state, const Job& job) {
  return state.now < OverSince(state, job) + state.config.holds.unreachable &&
         std::any_of(job.launch.nodes.begin(), job.launch.nodes.end(), [&](const NodeId& id) {
           const Node* node = state.FindNode(id);
           return node != nullptr && WaitsForEnd(*node);
         });
}

// Its id is never given out again, nothing of it may still run anywhere, no verdict is open, and
// nobody waits for its end.
bool MayPurge(const State& state, const Job& job) {
  // The newest number tells a coordinator that starts anew which one comes next.
  if (job.spec.sequence == state.index.by_sequence.rbegin()->first || !job.soft.empty() ||
      MayBeAskedFor(state, job))
    return false;
  for (const NodeId& id : job.nodes.touched) {
    const Node* node = state.FindNode(id);
    if (node == nullptr) continue;
    const bool held = std::any_of(node->row.taken.begin(), node->row.taken.end(),
                                  [&](const TakenSlots& taken) { return taken.job == job.id(); });
    if (held || !SlotsFree(job, *node)) return false;
  }
  return true;
}

// The oldest job that is over, when there are too many; one at a time.
void ChoosePurge(Step& step) {
  if (!step.state.retention.purging.empty() ||
      step.state.index.over.size() <= static_cast<std::size_t>(step.config().limits.ended_jobs))
    return;
  for (std::uint64_t sequence : step.state.index.over) {
    const Job& job = step.state.jobs.at(step.state.index.by_sequence.at(sequence));
    if (!MayPurge(step.state, job)) continue;
    step.state.retention.purging.push_back(job.id());
    return;
  }
}

// Whoever waits has been answered. Of thousands of jobs that are over, nobody asks for most.
void ForgetHistory(Job& job) {
  std::vector<JobEvent>().swap(job.events);
  job.done.clear();
  while (job.generations.size() > kGenerationsKept) job.generations.erase(job.generations.begin());
}

constexpr Instant kWithoutEnd = Instant::max();

// How long a launch command needs an ad-hoc coordinator when all jobs are over: it must have read
// its job's end from this coordinator, since no other can tell it.
std::optional<Instant> NeededUntil(const State& state, const Node& node) {
  if (!node.row.launched || (node.row.launch && node.row.launch->left)) return std::nullopt;
  if (node.lost()) {
    const Job* job = WaitsForEnd(node) ? state.FindJob(node.row.launch->job) : nullptr;
    // A command that was given no endpoint starts its coordinator again by itself.
    if (job == nullptr || job->spec.standalone) return std::nullopt;
    return OverSince(state, *job) + state.config.holds.unreachable;
  }
  // One that hangs does not say that it has read its result. A lease later it has it, or is lost.
  const bool read = node.attached() && node.row.launch && node.told_result &&
                    node.lease.last_heard > *state.retention.last_told + state.config.leases.lease;
  return read ? std::nullopt : std::optional(kWithoutEnd);
}

}  // namespace

void NoteOver(Step& step, Job& job) {
  step.state.retention.last_told = step.now();
  job.times.over_at = step.now();
  AnswerWaiters(step, job);
  SendResults(step, job);
  if (job.state.phase == JobPhase::kEnded) ForgetHistory(job);  // A preempted one may go on.
  ChoosePurge(step);
}

void SweepOldJobs(Step& step) {
  if (!step.state.retention.next_sweep) step.state.retention.next_sweep = step.now();
  if (step.now() < *step.state.retention.next_sweep) return;
  step.state.retention.next_sweep = step.now() + step.config().retention.sweep;
  for (std::uint64_t sequence : step.state.index.over) {
    const Job& job = step.state.jobs.at(step.state.index.by_sequence.at(sequence));
    // The larger of two clocks that are both too short: the monotonic one knows this life only, and
    // the wall clock may have been set back.
    const Duration here = job.times.over_at ? step.now() - *job.times.over_at : Duration{};
    const Duration by_wall =
        job.state.ended_at ? std::chrono::duration_cast<Duration>(step.wall() - *job.state.ended_at)
                           : step.now() - step.state.recovered_at;
    const bool listed =
        std::find(step.state.retention.purging.begin(), step.state.retention.purging.end(),
                  job.id()) != step.state.retention.purging.end();
    if (std::max(here, by_wall) >= step.config().retention.ended_jobs && !listed &&
        MayPurge(step.state, job))
      step.state.retention.purging.push_back(job.id());
  }
}

void PurgeOne(Step& step) {
  if (step.state.retention.purging.empty()) return;
  Job* job = step.state.FindJob(step.state.retention.purging.front());
  if (job == nullptr) {
    step.state.retention.purging.pop_front();
    return;
  }
  const JobId id = job->id();
  if (!step.state.index.over.contains(job->spec.sequence) ||
      !MayPurge(step.state, *job)) {  // A preempted one goes on again.
    step.state.retention.purging.pop_front();
    return;
  }
  step.Disarm(*job);
  const std::set<NodeId> touched = job->nodes.touched;
  for (const NodeId& node : touched)
    if (Node* known = step.state.FindNode(node)) Untouch(*job, *known);
  step.state.agenda.orders_dirty.erase(id);
  step.state.agenda.dirty.erase(job->spec.sequence);
  step.Delete(JobFolder(id));
  step.state.retention.purging.pop_front();
  ChoosePurge(step);
}

std::optional<Instant> AdHocExitAt(const State& state) {
  if (!state.config.ad_hoc.on || state.finished ||
      state.index.over.size() < state.index.by_sequence.size())
    return std::nullopt;
  const Retention& retention = state.retention;
  if (!retention.last_told && !state.fleet.sessions.empty()) return std::nullopt;
  Instant at = retention.last_told ? *retention.last_told + state.config.ad_hoc.exit_delay
                                   : retention.idle_since.value_or(state.recovered_at) +
                                         state.config.ad_hoc.idle_exit;
  if (at > state.now) return at;  // Thousands of nodes are not looked at before.
  for (const auto& entry : state.nodes) {
    const std::optional<Instant> needed = NeededUntil(state, entry.second);
    if (needed == kWithoutEnd) return std::nullopt;
    if (needed) at = std::max(at, *needed);
  }
  return at;
}

void CheckAdHocExit(Step& step) {
  if (!step.config().ad_hoc.on) return;
  if (!step.state.fleet.sessions.empty()) step.state.retention.idle_since.reset();
  if (step.state.fleet.sessions.empty() && !step.state.retention.idle_since)
    step.state.retention.idle_since = step.now();
  const std::optional<Instant> at = AdHocExitAt(step.state);
  if (!at || step.now() < *at) return;
  step.state.finished = true;
  step.Do(Quit{});
}

}  // namespace regroup::coordinator
