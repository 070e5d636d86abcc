#include "launcher/coordinator/core/recovery.h"

#include <algorithm>
#include <cstdint>
#include <variant>

#include "common/base/check.h"
#include "launcher/coordinator/core/budget.h"
#include "launcher/coordinator/core/failure_policy.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/links.h"
#include "launcher/coordinator/core/members.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/node_in_job.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/slots.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {
namespace {

// Causes that an inventory shows, and shows again to the next coordinator.
bool IsToldAgain(const EndReason& reason) {
  return std::holds_alternative<WorkerFailed>(reason) ||
         std::holds_alternative<ExecFailed>(reason) ||
         std::holds_alternative<SupervisorLost>(reason) ||
         std::holds_alternative<StoreLost>(reason);
}

void RecoverNodes(Step& step) {
  // A large fleet needs longer to dial again: its sessions are admitted one after the other.
  const auto known = std::count_if(step.state.nodes.begin(), step.state.nodes.end(),
                                   [](const auto& node) { return !node.second.row.lost; });
  const Instant until = step.now() +
                        step.config().leases.awaited_leases * step.config().leases.lease +
                        known * step.config().leases.awaited_per_node;
  for (auto& [id, node] : step.state.nodes) {
    node.lease.last_heard = node.lease.from = step.now();
    node.recovered = true;
    if (node.row.launch) {
      if (Job* job = step.state.FindJob(node.row.launch->job)) job->launch.nodes.insert(id);
    }
    if (node.row.lost) {
      // Of how a node was lost only the text is durable; the kinds that prove nothing are these.
      const bool proved = node.row.lost_how != kHowSilent && node.row.lost_how != kHowAway &&
                          node.row.lost_how != kHowCrowded;
      node.link = Lost{step.now(), proved};
      RememberLost(step, node);
    } else {
      const Instant probe_at = step.now() + step.config().leases.probe_interval;
      SetLink(step, node, Awaited{{step.now(), probe_at, until}});
      step.Arm(node, probe_at);
    }
    for (const TakenSlots& taken : node.row.taken) {
      if (Job* job = step.state.FindJob(taken.job)) Touch(*job, node);
    }
  }
}

Formed RecoverFormed(const Job& job, const GenerationRow& row, Instant now) {
  Formed formed;
  for (const GenerationMember& member : row.members) {
    formed.course.done.ranks += DoneRanksOf(job, row.generation, member.node);
    // Its ranks most likely run; each member's first inventory says so.
    formed.starts.not_started.insert(member.node);
  }
  if (job.commit && job.commit->generation == row.generation && job.commit->for_notice)
    formed.saving = Saving{"", now, true};
  return formed;
}

Over RecoverOver(const Step& step, const Job& job, const GenerationRow& row) {
  Over over;
  over.causes.fallback = row.ended;  // Unless its members' inventories tell it better.
  // No agent tells such a cause again. It is kept as a cause, behind those of its own class that
  // are told with their times.
  if (row.ended && !IsToldAgain(*row.ended))
    over.causes.worst = CauseAt{*row.ended, Instant::max()};
  over.close_by = step.now() + step.config().ending.failure_grace +
                  step.config().ending.stop_margin + step.config().ending.verdict_limit;
  for (const GenerationMember& member : row.members)
    if (!IsSettled(step.state, job, row.generation, member.node)) over.waiting.insert(member.node);
  return over;
}

void RecoverGeneration(Step& step, Job& job, const GenerationRow& row) {
  GenerationSoft& soft = job.soft[row.generation];
  soft.since = step.now();
  for (std::size_t rank = 0; rank < row.members.size(); ++rank) {
    const GenerationMember& member = row.members[rank];
    soft.members[member.node] = static_cast<int>(rank);
    Node* node = step.state.FindNode(member.node);
    if (node == nullptr) continue;
    Touch(job, *node);
    if (row.phase == GenerationPhase::kFormed && member.witness)
      // So the witness of a running group is probed before its agent comes back; from `redial` on a
      // refusal counts.
      node->watches[job.id()] =
          Watch{row.generation, *member.witness, member.witness_verified, false, false};
  }
  switch (row.phase) {
    case GenerationPhase::kProposed: As<Proposed>(soft).recovered = true; break;
    case GenerationPhase::kFormed: soft.state = RecoverFormed(job, row, step.now()); break;
    case GenerationPhase::kOver: soft.state = RecoverOver(step, job, row); break;
  }
  for (const auto& member : soft.members) {
    Node* node = step.state.FindNode(member.first);
    if (node != nullptr && node->Is<Lost>()) RefreshMember(step, job, *node);
  }
}

void RecoverJobs(Step& step) {
  for (auto& [id, job] : step.state.jobs) {
    if (job.spec.job.empty() || job.state.job.empty()) continue;
    // Nothing is soft about it.
    if (job.state.phase == JobPhase::kEnded) continue;
    // A generation ran: its members are who is waited for. A preempted job begins with a last call,
    // as a new one.
    job.gather.membership_known =
        job.state.last_formed > Generation() && job.state.phase != JobPhase::kPreempted;
    for (const auto& entry : job.generations) {
      const GenerationRow& row = entry.second;
      const bool newest =
          row.generation == job.state.last_formed || row.generation == job.state.last_number;
      if (row.phase != GenerationPhase::kOver || row.verdict_open)
        RecoverGeneration(step, job, row);
      if (!newest) continue;
      for (const GenerationMember& member : row.members) {
        if (Node* node = step.state.FindNode(member.node)) Touch(job, *node);
      }
    }
    for (const Duration age : job.state.ends.charges) job.charge_times.push_back(step.now() - age);
    RecoverBackOff(step, job);
    if (job.state.phase == JobPhase::kEnding) {
      const bool cancelled =
          job.state.verdict && job.state.verdict->state == VerdictState::kCancelled;
      const bool succeeded =
          job.state.verdict && job.state.verdict->state == VerdictState::kSucceeded;
      const Duration grace = cancelled && !job.state.cancel.now
                                 ? job.spec.spec.grace
                                 : step.config().ending.failure_grace;
      // When the stop began is not durable: survivors get the grace once more, at most.
      job.stop =
          StopOrder{job.state.last_number,
                    cancelled   ? StopReason::kCancelled
                    : succeeded ? StopReason::kElective
                                : StopReason::kFailure,
                    step.now() + grace, step.now() + grace + step.config().ending.stop_margin};
    }
    UpdateClaims(step, job);
    step.LookAt(job);
  }
}

}  // namespace

void Recover(State& state) {
  if (state.meta.cluster.empty()) state.meta.cluster = state.config.journal.new_cluster;
  if (state.config.ad_hoc.on) state.retention.idle_since = state.now;
  Step step(state, state.now, WallTime());
  RecoverNodes(step);
  RecoverJobs(step);
  CHECK(step.Take().rows.empty());
}

}  // namespace regroup::coordinator
