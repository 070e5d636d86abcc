// What is kept, and when an ad-hoc coordinator leaves. PROTOCOL §5, §6.

#include <algorithm>

#include "launcher/coordinator/core/engine.h"

namespace regroup::coordinator {
namespace {

constexpr int kRowsPerPurge = 24;

}  // namespace

// Its id is never given out again, nothing of it may still run anywhere, and no verdict is open.
bool Engine::MayPurge(const Job& job) const {
  if (job.spec.sequence == by_sequence_.rbegin()->first || !job.soft.empty()) return false;
  for (const NodeId& id : job.touched) {
    const Node* node = FindNode(id);
    if (node == nullptr) continue;
    const bool held = std::any_of(node->row.taken.begin(), node->row.taken.end(),
                                  [&](const TakenSlots& taken) { return taken.job == job.id(); });
    if (held || !SlotsFree(job, *node)) return false;
  }
  return true;
}

void Engine::NoteOver(Job& job) {
  last_over_ = now_;
  job.over_at = now_;
  hungry_.erase(job.spec.sequence);
  deferred_.erase(job.spec.sequence);
  AnswerWaiters(job);
  SendResults(job);
  ChoosePurge();
}

// The oldest job that is over, when there are too many; one at a time.
void Engine::ChoosePurge() {
  if (!purging_.empty() || over_.size() <= static_cast<std::size_t>(config_.max_ended_jobs)) return;
  for (std::uint64_t sequence : over_) {
    const Job& job = jobs_.at(by_sequence_.at(sequence));
    if (!MayPurge(job)) continue;
    purging_.push_back(job.id());
    return;
  }
}

// All that are too old. By the wall clock, the only one that goes on while no coordinator runs; in
// its own life none is younger than it has seen it.
void Engine::SweepOldJobs() {
  if (!retention_at_) retention_at_ = now_;
  if (now_ < *retention_at_) return;
  retention_at_ = now_ + config_.retention_sweep;
  for (std::uint64_t sequence : over_) {
    const Job& job = jobs_.at(by_sequence_.at(sequence));
    const Duration here = job.over_at ? now_ - *job.over_at : Duration{};
    const Duration by_wall = job.state.ended_at
                                 ? std::chrono::duration_cast<Duration>(wall_ - *job.state.ended_at)
                                 : now_ - recovered_at_;
    const bool listed = std::find(purging_.begin(), purging_.end(), job.id()) != purging_.end();
    if (std::max(here, by_wall) >= config_.keep_ended && !listed && MayPurge(job))
      purging_.push_back(job.id());
  }
}

// Some rows of a job that is not kept any longer; its spec goes last, so that a crash in between
// leaves a job with a shorter history, never rows without a job.
void Engine::PurgeSome() {
  if (purging_.empty()) return;
  Job* job = FindJob(purging_.front());
  if (job == nullptr) {
    purging_.pop_front();
    return;
  }
  const JobId id = job->id();
  if (!over_.contains(job->spec.sequence) || !MayPurge(*job)) {  // A preempted one goes on again.
    purging_.pop_front();
    return;
  }
  int left = kRowsPerPurge;
  const auto ring = static_cast<std::uint64_t>(config_.max_events_per_job);
  while (left > 0 && !job->events.empty()) {
    Delete(JobEventKey(id, job->events.front().number % ring));
    --left;
  }
  while (left > 0 && !job->generations.empty()) {
    Delete(GenerationKey(id, job->generations.begin()->first));
    --left;
  }
  while (left > 0 && !job->done.empty()) {
    Delete(DoneKey(id, job->done.begin()->first));
    --left;
  }
  if (left < 3) return;
  ArmJob(*job);
  const std::set<NodeId> touched = job->touched;
  for (const NodeId& node : touched)
    if (Node* known = FindNode(node)) Untouch(*job, *known);
  orders_dirty_.erase(id);
  dirty_.erase(job->spec.sequence);
  hungry_.erase(job->spec.sequence);
  if (job->commit) Delete(CommitKey(id));
  Delete(JobStateKey(id));
  Delete(JobSpecKey(id));
  purging_.pop_front();
  ChoosePurge();
}

// ---- ad-hoc mode -----------------------------------------------------------------------------

// 2 s after the last job ended or was preempted, once every attached launch command has been sent
// its result.
std::optional<Instant> Engine::AdHocExitAt() const {
  if (!config_.ad_hoc || finished_ || over_.size() < by_sequence_.size()) return std::nullopt;
  for (const auto& session : sessions_) {
    const Node* node = FindNode(session.second);
    if (node == nullptr) continue;
    const bool served =
        !node->row.launched || (node->row.launch && (node->told_result || node->row.launch->left));
    if (!served) return std::nullopt;
  }
  if (last_over_) return *last_over_ + config_.exit_delay;
  if (!sessions_.empty()) return std::nullopt;
  return idle_since_.value_or(recovered_at_) + config_.idle_exit;
}

void Engine::CheckAdHocExit() {
  if (!config_.ad_hoc) return;
  if (!sessions_.empty()) idle_since_.reset();
  if (sessions_.empty() && !idle_since_) idle_since_ = now_;
  const std::optional<Instant> at = AdHocExitAt();
  if (!at || now_ < *at) return;
  finished_ = true;
  Do(Finished{});
}

}  // namespace regroup::coordinator
