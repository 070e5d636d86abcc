// What agents say about their groups: acks, starts, exits, progress, commits. PROTOCOL §2, §3.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "launcher/coordinator/core/engine.h"

namespace regroup::coordinator {
namespace {

constexpr std::size_t kMaxConsequences = 8;

bool IsDone(const RankExit& exit) {
  return exit.kind == ExitKind::kExited && exit.code == 0 && !exit.after_stop;
}
bool IsFailure(const RankExit& exit) {
  return !exit.after_stop && !(exit.kind == ExitKind::kExited && exit.code == 0);
}

int FirstRankOf(const GenerationRow& row, int group_rank) {
  int first = 0;
  for (int i = 0; i < group_rank; ++i) first += row.members[i].workers;
  return first;
}

template <class T>
void KeepLarger(std::optional<T>& kept, const std::optional<T>& told) {
  if (told && (!kept || *kept < *told)) kept = told;
}

}  // namespace

void Engine::On(const Reported& event) {
  Node* node = NodeOf(event.session);
  if (node == nullptr) return;
  Heard(*node);
  const GroupReport& report = event.report;
  Do(AckReport{event.session, report.number});
  Job* job = FindJob(report.job);
  SlotsChanged(*node);
  const bool kept =
      (job == nullptr || report.generation <= job->state.last_number) && Keep(*node, report);
  if (kept && job == nullptr && StopUnknown(*node, report.job)) return;
  if (!kept || job == nullptr || report.generation > job->state.last_number) {
    Say(Severity::kWarning, "report of a group that this journal does not know",
        {{"node", node->row.name},
         {"job", report.job.value()},
         {"generation", absl::StrCat(report.generation.value())}});
    return;
  }
  auto sent = node->sent.find(report.job);
  if (sent == node->sent.end() || report.generation >= sent->second.prepare)
    node->unanswered.erase(report.job);
  Touch(*job, *node);
  WatchGroup(*node, report);
  Refresh(*job, *node);
  MarkDirty(*job);
  MarkOrder(*job, node->row.node);
}

// An honest node has as many jobs as slots, and groups of a job that are not forgotten yet.
bool Engine::Keep(Node& node, const GroupReport& report) {
  auto groups = node.groups.find(report.job);
  if (groups == node.groups.end()) {
    const auto unknown =
        std::count_if(node.groups.begin(), node.groups.end(),
                      [&](const auto& entry) { return FindJob(entry.first) == nullptr; });
    if (FindJob(report.job) == nullptr &&
        static_cast<std::size_t>(unknown) >= kMaxUnknownJobsPerNode)
      return false;
    groups = node.groups.try_emplace(report.job).first;
  }
  if (groups->second.size() >= kMaxGroupsPerJob && !groups->second.contains(report.generation))
    return false;
  groups->second[report.generation] = report;
  return true;
}

const GroupReport* Engine::Shown(const Node& node, const JobId& job, Generation generation) const {
  auto groups = node.groups.find(job);
  if (groups == node.groups.end()) return nullptr;
  auto report = groups->second.find(generation);
  return report == groups->second.end() ? nullptr : &report->second;
}

bool Engine::GroupIsDead(const Node& node, const JobId& job, Generation generation) const {
  auto watch = node.watches.find(job);
  return watch != node.watches.end() && watch->second.generation == generation &&
         watch->second.dead;
}

// Nothing more will be learned about this member of a generation: its slots are free, or it is
// lost.
bool Engine::IsSettled(const Job& job, Generation generation, const NodeId& id) const {
  const Node* node = FindNode(id);
  if (node == nullptr || node->link == Link::kLost || GroupIsDead(*node, job.id(), generation))
    return true;
  if (node->link != Link::kAttached) return false;
  const GroupReport* report = Shown(*node, job.id(), generation);
  return report == nullptr || report->phase == Phase::kFree || report->phase == Phase::kUnkillable;
}

int Engine::DoneRanksOf(const Job& job, Generation generation, const NodeId& node) const {
  auto done = job.done.find(node);
  if (done == job.done.end() || done->second.generation != generation) return 0;
  return static_cast<int>(done->second.local_ranks.size());
}

// ---- one node's part in a job ----------------------------------------------------------------

void Engine::Refresh(Job& job, Node& node) {
  for (auto& entry : job.soft) {
    GenerationSoft& soft = entry.second;
    if (!soft.members.contains(node.row.node)) continue;
    switch (job.generations.at(entry.first).phase) {
      case GenerationPhase::kProposed: RefreshProposed(job, soft, entry.first, node); break;
      case GenerationPhase::kFormed: RefreshFormed(job, soft, entry.first, node); break;
      case GenerationPhase::kOver:
        if (!soft.waiting.contains(node.row.node)) break;
        if (const GroupReport* report = Shown(node, job.id(), entry.first))
          FoldExits(job, soft, entry.first, node, *report);
        RefreshLostMember(job, soft, entry.first, node);
        if (IsSettled(job, entry.first, node.row.node)) soft.waiting.erase(node.row.node);
        break;
    }
  }
}

void Engine::RefreshProposed(Job& job, GenerationSoft& soft, Generation generation, Node& node) {
  const NodeId& id = node.row.node;
  if (node.link == Link::kLost) soft.failed_members[id] = node.row.lost_how;
  if (IsLeaving(job, node)) soft.failed_members[id] = "it is leaving";
  // What answers there now is another command, with a program of its own.
  if (job.launched() && !job.launchers.contains(id))
    soft.failed_members[id] = "its launch command has ended";
  if (node.link != Link::kAttached || !soft.asked.contains(id)) return;
  const GroupReport* report = Shown(node, job.id(), generation);
  if (report == nullptr) {
    soft.unacked.insert(id);
    return;
  }
  const bool failed = report->phase == Phase::kFree || report->phase == Phase::kStopping ||
                      report->phase == Phase::kUnkillable || report->supervisor_lost ||
                      report->store_lost;
  if (failed) {
    soft.failed_members[id] =
        report->refused.empty() ? "its group ended while it was prepared" : report->refused;
  } else if (report->phase != Phase::kPreparing) {
    soft.unacked.erase(id);
    if (soft.members.at(id) == 0) soft.store = report->store;
  }
}

void Engine::RefreshFormed(Job& job, GenerationSoft& soft, Generation generation, Node& node) {
  const NodeId& id = node.row.node;
  if (IsLeaving(job, node)) {
    soft.leaving.insert(id);
  } else if (node.link == Link::kAttached) {
    soft.leaving.erase(id);
  }
  const int workers = job.generations.at(generation).members[soft.members.at(id)].workers;
  if (node.link == Link::kLost || GroupIsDead(node, job.id(), generation)) {
    RefreshLostMember(job, soft, generation, node);
  } else if (node.link == Link::kAttached) {
    const GroupReport* report = Shown(node, job.id(), generation);
    const bool all_done = DoneRanksOf(job, generation, id) >= workers;
    if (report == nullptr) {
      if (!all_done) soft.blinked.insert(id);
      if (!all_done && node.rebooted) FoldCause(soft, {NodeRebooted{node.row.name}, now_});
      if (!all_done && !node.rebooted)
        FoldCause(soft, {NodeLost{node.row.name, kHowWiped, Duration{}}, now_});
    } else {
      soft.lost.erase(id);
      FoldExits(job, soft, generation, node, *report);
      if (!soft.ending) RecordDone(job, soft, generation, node, *report);
      RecordStarts(soft, workers, node, *report);
      const bool undone = DoneRanksOf(job, generation, id) < workers;
      if (report->supervisor_lost && undone) {
        soft.blinked.insert(id);
        FoldCause(soft, {SupervisorLost{node.row.name}, now_});
      }
      if (report->store_lost && soft.members.at(id) == 0)
        FoldCause(soft, {StoreLost{node.row.name}, now_});
      const bool gone = report->phase == Phase::kFree && undone;
      if (gone && soft.saving) {
        soft.saving->stopped = true;
      } else if (gone && !soft.ending && !soft.cause) {
        // Stopped, but not by us: by its own launch command, or by us before a crash, and then
        // somebody else knows why.
        if (node.leaving) FoldCause(soft, {Preempted{node.row.name, false}, now_});
        if (!node.leaving && !soft.fallback) soft.fallback = SupervisorLost{node.row.name};
      }
    }
  }
  if (soft.ending && IsSettled(job, generation, id)) soft.waiting.erase(id);
}

void Engine::RefreshLostMember(Job& job, GenerationSoft& soft, Generation generation, Node& node) {
  const bool dead = GroupIsDead(node, job.id(), generation);
  if (node.link != Link::kLost && !dead) return;
  const NodeId& id = node.row.node;
  const int workers = job.generations.at(generation).members[soft.members.at(id)].workers;
  if (DoneRanksOf(job, generation, id) >= workers) return;
  soft.lost.try_emplace(id, now_);
  if (!soft.waiting.contains(id)) return;
  const std::string how = node.link == Link::kLost ? node.row.lost_how : kHowRefused;
  FoldCause(soft, {NodeLost{node.row.name, how, now_ - node.last_heard}, node.last_heard});
}

void Engine::FoldExits(Job& job, GenerationSoft& soft, Generation generation, Node& node,
                       const GroupReport& report) {
  const GenerationRow& row = job.generations.at(generation);
  const int group_rank = soft.members.at(node.row.node);
  for (const RankExit& exit : report.exits) {
    if (exit.local_rank < 0 || exit.local_rank >= row.members[group_rank].workers) continue;
    if (exit.after_stop && node.leaving) soft.ended_by_notice = node.row.name;
    if (!IsFailure(exit)) continue;
    // One that was left out of the consequences may turn out to be the cause.
    if (!soft.seen_exits.emplace(node.row.node, exit.local_rank).second &&
        (LearnError(soft, node.row.name, exit) || exit.evidence != ErrorEvidence::kErrorFile))
      continue;
    RankCause cause;
    cause.node = node.row.name;
    cause.local_rank = exit.local_rank;
    cause.rank = FirstRankOf(row, group_rank) + exit.local_rank;
    cause.exit = exit;
    if (cause.exit.error.size() > kMaxErrorBytes) cause.exit.error.resize(kMaxErrorBytes);
    const Duration age = cause.exit.age = std::min(exit.age, AgeOf(row, soft));
    cause.at = wall_ - std::chrono::duration_cast<WallTime::duration>(age);
    EndReason reason = WorkerFailed{cause};
    if (exit.kind == ExitKind::kExecFailed) reason = ExecFailed{cause};
    FoldCause(soft, {reason, now_ - age});
  }
}

// No age that a node tells of this generation is beyond this one. A clock of the wall that was set
// back meanwhile makes it no shorter than what this process has seen.
Duration Engine::AgeOf(const GenerationRow& row, const GenerationSoft& soft) const {
  return std::clamp<Duration>(wall_ - row.proposed_at, std::max(now_ - soft.since, Duration{}),
                              kMaxDuration);
}

// An exit is reported before anybody has read what its process wrote: the words, and what they tell
// about the cause, come with a later report. False: it is neither the cause nor a consequence.
bool Engine::LearnError(GenerationSoft& soft, const std::string& node, const RankExit& exit) {
  bool known = false, other_class = false;
  const auto learn = [&](RankCause& cause) {
    if (cause.node != node || cause.local_rank != exit.local_rank) return;
    known = true;
    other_class = other_class || cause.exit.evidence != exit.evidence;
    cause.exit.evidence = exit.evidence;
    if (cause.exit.error.empty()) cause.exit.error = exit.error.substr(0, kMaxErrorBytes);
  };
  if (soft.cause) {
    if (auto* failed = std::get_if<WorkerFailed>(&soft.cause->reason)) learn(failed->cause);
  }
  for (auto& [at, consequence] : soft.consequences) learn(consequence);
  if (!other_class) return known;
  for (auto& [at, consequence] : std::exchange(soft.consequences, {}))
    FoldCause(soft, {WorkerFailed{std::move(consequence)}, at});
  return known;
}

void Engine::FoldCause(GenerationSoft& soft, CauseAt cause) {
  if (!soft.cause) {
    soft.cause = std::move(cause);
    return;
  }
  if (IsWorse(cause, *soft.cause)) std::swap(*soft.cause, cause);
  const auto* failed = std::get_if<WorkerFailed>(&cause.reason);
  if (failed == nullptr) return;
  auto at = std::upper_bound(soft.consequences.begin(), soft.consequences.end(), cause.at,
                             [](Instant when, const auto& entry) { return when < entry.first; });
  soft.consequences.emplace(at, cause.at, failed->cause);
  if (soft.consequences.size() > kMaxConsequences) soft.consequences.pop_back();
}

void Engine::RecordDone(Job& job, GenerationSoft& soft, Generation generation, Node& node,
                        const GroupReport& report) {
  DoneRow row{job.id(), node.row.node, generation, {}};
  auto known = job.done.find(node.row.node);
  if (known != job.done.end() && known->second.generation == generation) row = known->second;
  const std::size_t before = row.local_ranks.size();
  for (const RankExit& exit : report.exits) {
    const bool fresh = std::find(row.local_ranks.begin(), row.local_ranks.end(), exit.local_rank) ==
                       row.local_ranks.end();
    if (!IsDone(exit) || !fresh) continue;
    row.local_ranks.push_back(exit.local_rank);
    soft.done_at = std::max(soft.done_at.value_or(Instant::min()), now_ - exit.age);
  }
  if (row.local_ranks.size() == before) return;
  std::sort(row.local_ranks.begin(), row.local_ranks.end());
  soft.done_ranks += static_cast<int>(row.local_ranks.size() - before);
  Put(std::move(row));
}

void Engine::RecordStarts(GenerationSoft& soft, int workers, Node& node,
                          const GroupReport& report) {
  soft.started[node.row.node] = report.started;
  const bool all_exited = static_cast<int>(report.exits.size()) >= workers;
  if (report.phase == Phase::kRunning || all_exited) soft.not_started.erase(node.row.node);
}

// ---- progress and commits --------------------------------------------------------------------

void Engine::On(const Progressed& event) {
  Node* node = NodeOf(event.session);
  if (node == nullptr) return;
  Heard(*node);
  Job* job = FindJob(event.progress.job);
  if (job == nullptr) return;
  auto found = job->soft.find(event.progress.generation);
  if (found == job->soft.end() || !found->second.members.contains(node->row.node)) return;
  if (job->generations.at(found->first).phase != GenerationPhase::kFormed) return;
  const bool first = !found->second.spoke;
  UpdateSteps(found->second, event.progress);
  if (first) MarkDirty(*job);
}

void Engine::UpdateSteps(GenerationSoft& soft, const WorkerProgress& progress) {
  soft.spoke = true;
  if (progress.step > 0 && !soft.first_step) soft.first_step = progress.step;
  if (!soft.last_step || progress.step > *soft.last_step) {
    soft.last_step = progress.step;
    soft.step_before_at = soft.last_step_at;
    soft.last_step_at = now_;
  }
  if (progress.restored_step) soft.restored_step = progress.restored_step;
  soft.samples = std::max(soft.samples, progress.samples);
  soft.tokens = std::max(soft.tokens, progress.tokens.value_or(0));
  if (progress.loss) soft.loss = progress.loss;
  if (progress.tokens_per_second) soft.tokens_per_second = progress.tokens_per_second;
  KeepLarger(soft.init, progress.init);
  KeepLarger(soft.restore, progress.restore);
  KeepLarger(soft.first_step_took, progress.first_step);
  KeepLarger(soft.checkpoint, progress.checkpoint);
}

// Empty: accept. `known`: the very same commit was accepted before.
std::string Engine::WhyNotCommit(const Job& job, const Node& node, const CommitRequest& request,
                                 bool* known) const {
  const JobStateRow& state = job.state;
  if (request.generation != state.last_formed)
    return absl::StrCat("generation ", request.generation.value(), " is over, the current one is ",
                        state.last_formed.value());
  if (state.phase == JobPhase::kEnded) return absl::StrCat(job.id().value(), " has ended");
  const GenerationRow& row = job.generations.at(request.generation);
  const bool member =
      std::any_of(row.members.begin(), row.members.end(),
                  [&](const GenerationMember& m) { return m.node == node.row.node; });
  if (!member)
    return absl::StrCat(node.row.name, " is no member of generation ", request.generation.value());
  if (job.commit && job.commit->generation == request.generation) {
    if (request.step > job.commit->step) return "";
    *known = request.step == job.commit->step && request.manifest_hash == job.commit->manifest_hash;
    if (*known) return "";
    return absl::StrCat("step ", job.commit->step, " was committed already, this is step ",
                        request.step);
  }
  std::int64_t floor = row.resume_step;
  auto soft = job.soft.find(request.generation);
  if (soft != job.soft.end() && soft->second.restored_step) floor = *soft->second.restored_step;
  if (soft == job.soft.end() && row.restored_step) floor = *row.restored_step;
  if (request.step > floor) return "";
  return absl::StrCat("generation ", request.generation.value(), " resumed from step ", floor,
                      ", this is step ", request.step);
}

void Engine::On(const CommitAsked& event) {
  Node* node = NodeOf(event.session);
  if (node == nullptr) return;
  Heard(*node);
  const CommitRequest& request = event.request;
  CommitAnswer answer{request.job, request.generation, request.attempt, request.step, false, ""};
  Job* job = FindJob(request.job);
  if (job == nullptr) {
    answer.why_not = absl::StrCat("no job ", request.job.value());
    Do(AnswerCommit{event.session, answer});
    return;
  }
  bool known = false;
  answer.why_not = WhyNotCommit(*job, *node, request, &known);
  answer.accepted = answer.why_not.empty();
  if (answer.accepted && !known) {
    Put(CommitRow{job->id(), request.generation, request.attempt, request.step,
                  request.manifest_hash, request.path, request.for_notice, wall_});
    AddEvent(*job, CommitAccepted{request.generation, request.step});
  }
  Do(AnswerCommit{event.session, answer});
  auto soft = job->soft.find(request.generation);
  if (!request.for_notice || soft == job->soft.end()) return;
  // No step follows: whether this save was needed or not, its workers now wait to be stopped.
  if (!soft->second.saving) soft->second.saving = GenerationSoft::Saving{"", now_, false};
  soft->second.saving->saved = true;
  MarkDirty(*job);
}

}  // namespace regroup::coordinator
