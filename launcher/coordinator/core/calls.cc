#include "launcher/coordinator/core/calls.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/job_word.h"
#include "common/base/user_error.h"
#include "launcher/coordinator/core/actions.h"
#include "launcher/coordinator/core/admission.h"
#include "launcher/coordinator/core/answers.h"
#include "launcher/coordinator/core/decide_generation.h"
#include "launcher/coordinator/core/events.h"
#include "launcher/coordinator/core/failure_policy.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/links.h"
#include "launcher/coordinator/core/members.h"
#include "launcher/coordinator/core/news.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/node_in_job.h"
#include "launcher/coordinator/core/placement.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/step.h"
#include "launcher/coordinator/core/verdict.h"
#include "launcher/coordinator/core/views.h"

namespace regroup::coordinator {
namespace {

absl::Status NoFit(const CannotFit& fit) {
  const std::string with =
      fit.slots == kWorkerPerGpu
          ? std::string(" nodes whose slots are GPUs, this cluster has ")
          : absl::StrCat(" nodes with ", fit.slots, " slots each, this cluster has ");
  std::string because = absl::StrCat("it needs ", fit.need, with, fit.known);
  if (!fit.node.empty() && fit.largest < fit.slots)
    because = absl::StrCat("it needs ", fit.slots, " slots on a node; the largest (", fit.node,
                           ") has ", fit.largest);
  return UserError(absl::StatusCode::kFailedPrecondition, "no nodes here could run this job",
                   because, "regroup nodes");
}

absl::StatusOr<JobId> AdmitJob(Step& step, const JobSpec& spec, const std::string& key,
                               bool standalone, std::uint64_t free_bytes,
                               std::uint64_t number_used) {
  if (free_bytes < step.config().limits.min_free_bytes)
    return UserError(absl::StatusCode::kResourceExhausted, "the disk of the coordinator is full",
                     absl::StrCat(free_bytes >> 20, " MiB are free, a new job needs ",
                                  step.config().limits.min_free_bytes >> 20),
                     "regroup prune");
  if (spec.min_nodes > kMaxNodesPerJob)
    return UserError(
        absl::StatusCode::kInvalidArgument, "the job asks for too many nodes",
        absl::StrCat("it asks for ", spec.min_nodes, ", one job has at most ", kMaxNodesPerJob),
        "");
  // Higher than any number that this journal knows, that one before it gave (first_job), or that
  // the asker saw in use: a job's id is never given twice, even by a journal that lost its end.
  const std::uint64_t sequence =
      std::max({step.config().journal.first_job - 1, step.state.newest_number(), number_used}) + 1;
  JobSpecRow row;
  row.job = JobId(absl::StrCat(spec.name, "-", sequence));
  row.sequence = sequence;
  row.spec = spec;
  row.key = key;
  row.standalone = standalone;
  row.created_at = step.wall();
  // It is sent to every node of the job in every generation, and has to fit into a
  // step beside other rows.
  const std::size_t bytes = EstimateBytes(Row{JobSpecKey(row.job), row});
  if (bytes > kMaxSpecBytes)
    return UserError(absl::StatusCode::kInvalidArgument,
                     "the job's command and environment are too large",
                     absl::StrCat(bytes, " bytes, at most ", kMaxSpecBytes), "");
  const JobId id = row.job;
  JobStateRow state;
  state.job = id;
  // A launched job brings its nodes along and stands in no queue.
  state.phase = spec.origin == JobOrigin::kLaunched ? JobPhase::kGathering : JobPhase::kQueued;
  step.Put(std::move(row));
  step.Put(std::move(state));
  Job& job = step.state.jobs.at(id);
  job.times.created = step.now();
  step.LookAt(job);
  step.Say(Severity::kInfo, "job admitted", {{"job", id.value()}});
  return id;
}

std::optional<LaunchedJob> LaunchedJobOf(const State& state, const Job* job) {
  if (job == nullptr) return std::nullopt;
  LaunchedJob known{job->id(), job->spec.spec, job->state.phase == JobPhase::kEnded, std::nullopt};
  // From its verdict on a job takes nobody in: who comes now is shown its result, or begins the
  // next.
  if (job->state.verdict) known.ended = true;
  if (job->times.ended) known.ended_for = state.now - *job->times.ended;
  if (job->state.phase == JobPhase::kEnding) known.ended_for = Duration{};
  return known;
}

// Of a job with very many launch commands: all that ever came; nobody counts them by hand.
int NodesStaying(const State& state, const Job& job) {
  constexpr std::size_t kMany = 64;
  if (job.launch.nodes.size() > kMany) return static_cast<int>(job.launch.nodes.size());
  return static_cast<int>(
      std::count_if(job.launch.nodes.begin(), job.launch.nodes.end(), [&](const NodeId& id) {
        const Node* node = state.FindNode(id);
        return node && !node->Is<Lost>() && !IsLeaving(job, *node);
      }));
}

// A launch command takes part. It asks again after each reconnect, so that all but its row happens
// once: its join is told once, and is followed by one last call.
void Join(Step& step, Job& job, Node& node, const LaunchRequest& request) {
  const bool again =
      node.row.launch && node.row.launch->key == request.key && node.row.launch->job == job.id();
  if (!again) {
    NodeRow row = node.row;
    row.launch =
        NodeLaunch{request.key, job.id(), std::max(request.spec.workers_per_node, 1), false};
    step.Put(std::move(row));
  }
  if (job.state.verdict) return;
  // One that was silent until its job was preempted goes on with it.
  const bool resumes = job.state.phase == JobPhase::kPreempted && !node.row.launch->left;
  if (again && !resumes) return;
  // Of very many launch commands one prints what concerns all; when that one is gone the next that
  // joins takes its place.
  if (!job.launch.first || !step.state.FindNode(*job.launch.first) ||
      step.state.FindNode(*job.launch.first)->Is<Lost>())
    job.launch.first = node.row.node;
  job.launch.last_join = step.now();
  if (job.state.phase == JobPhase::kPreempted) {
    step.UpdateState(job, [](JobStateRow& state) {
      state.phase = state.last_formed > Generation() ? JobPhase::kRegrouping : JobPhase::kGathering;
    });
    job.gather.membership_known = false;
  }
  // The job was below its minimum, and this may be the first of several nodes that
  // come: they get a last call.
  if (job.gather.below_since || !FormedOf(job))
    job.gather.membership_known = job.gather.membership_known && !job.gather.below_since;
  const JobSpec& spec = job.spec.spec;
  AddEvent(
      step, job,
      NodeJoined{node.row.name, NodesStaying(step.state, job), spec.min_nodes, spec.max_nodes});
  // Whether it is one too many concerns itself, however many there are.
  if (job.launch.nodes.size() > kFewLaunchers && node.attached() &&
      job.launch.first != node.row.node)
    step.Do(SendNews{node.attached()->session, job.id(), job.events.back()});
  Touch(job, node);
  RefreshMember(step, job, node);
  step.LookAt(job);
}

// The key goes into the job's row with the verdict, so that a cancel that is sent again is answered
// as the first one was.
void CancelJob(Step& step, Job& job, const std::string& by, int signal, bool now,
               const std::string& key) {
  const CancelledBy cancelled{by, signal};
  const int exit_code = ExitCodeOf(cancelled, std::nullopt);
  SetVerdict(step, job, Verdict{VerdictState::kCancelled, exit_code, cancelled}, Cancelled{by},
             StopReason::kCancelled, now ? Duration{} : job.spec.spec.grace);
  step.UpdateState(job, [&](JobStateRow& state) {
    state.cancel.key = key;
    state.cancel.now = now;
  });
  step.LookAt(job);
}

// A second cancel, or a second Ctrl-C: what is left of the grace is given up.
void HurryCancel(Step& step, Job& job) {
  if (!job.stop || job.stop->deadline <= step.now()) return;
  job.stop->deadline = step.now();
  job.stop->give_up = step.now() + step.config().ending.stop_margin;
  step.UpdateState(job, [](JobStateRow& state) { state.cancel.now = true; });
  for (const NodeId& id : job.nodes.touched) step.Reorder(job, id);
  step.LookAt(job);
}

// What a person has in mind that submits a job again: the rest may come from where he does it.
bool IsAnother(const JobSpec& known, const JobSpec& asked) {
  return known.name != asked.name || known.command != asked.command;
}

}  // namespace

void On(Step& step, const SubmitAsked& event) {
  const Placement& placement = step.state.placement;
  // A submit that was not answered may have been accepted: sent again with its key it
  // finds the job.
  if (auto known = step.state.index.by_key.find(event.key);
      known != step.state.index.by_key.end()) {
    const Job* const job = step.state.FindJob(known->second);
    if (job != nullptr && IsAnother(job->spec.spec, event.spec)) {
      step.Do(Answer{
          event.call,
          UserError(absl::StatusCode::kAlreadyExists, "this key was given to another job",
                    absl::StrCat(job->id().value(), " has it, and is of another ",
                                 job->spec.spec.name == event.spec.name ? "command" : "name"),
                    "another --key, or none")});
      return;
    }
    step.Do(Answer{event.call, SubmitReply{known->second}});
    return;
  }
  const std::optional<CannotFit> unfit = placement.WhyUnfit(
      SmallestSize(event.spec.min_nodes, event.spec.unit), event.spec.workers_per_node);
  if (event.now_or_never && unfit) {
    step.Do(Answer{event.call, NoFit(*unfit)});
    return;
  }
  // After the key: a job that waits already is found, however full the queue is.
  if (static_cast<int>(placement.queued()) >= step.config().limits.pending_submits) {
    step.Do(Answer{event.call,
                   UserError(absl::StatusCode::kResourceExhausted, "too many jobs wait already",
                             absl::StrCat(placement.queued(), " are queued, at most ",
                                          step.config().limits.pending_submits),
                             "submit again when some have started")});
    return;
  }
  JobSpec spec = event.spec;
  spec.origin = JobOrigin::kSubmitted;
  absl::StatusOr<JobId> id =
      AdmitJob(step, spec, event.key, false, event.free_bytes, event.number_used);
  if (!id.ok()) {
    step.Do(Answer{event.call, id.status()});
    return;
  }
  SubmitReply reply{*id};
  if (unfit) reply.waits = *unfit;
  step.Do(Answer{event.call, std::move(reply)});
}

void On(Step& step, const LaunchAsked& event) {
  Node* node = step.state.NodeOf(event.session);
  if (node == nullptr) return;
  Heard(step, *node);
  const LaunchRequest& request = event.request;
  // Two jobs count: the one that this very command belongs to, and the newest of the
  // name that it asks for.
  const Job* mine = nullptr;
  if (node->row.launch && node->row.launch->key == request.key)
    mine = step.state.FindJob(node->row.launch->job);
  auto newest = step.state.index.newest_by_name.find(request.rdzv_id);
  const LaunchDecision decision =
      DecideLaunch(request, LaunchedJobOf(step.state, mine),
                   LaunchedJobOf(step.state, newest == step.state.index.newest_by_name.end()
                                                 ? nullptr
                                                 : step.state.FindJob(newest->second)));
  if (const auto* refused = std::get_if<absl::Status>(&decision)) {
    step.Do(AnswerLaunch{event.session, *refused, JobId()});
    return;
  }
  JobId id;
  if (const auto* join = std::get_if<JoinJob>(&decision)) id = join->id;
  if (const auto* result = std::get_if<ShowResult>(&decision)) id = result->id;
  if (std::holds_alternative<BeginJob>(decision)) {
    JobSpec spec = request.spec;
    spec.name = request.rdzv_id;
    spec.origin = JobOrigin::kLaunched;
    absl::StatusOr<JobId> begun =
        AdmitJob(step, spec, request.key, request.standalone, event.free_bytes, event.number_used);
    if (!begun.ok()) {
      step.Do(AnswerLaunch{event.session, begun.status(), JobId()});
      return;
    }
    id = *begun;
  }
  Job& job = step.state.jobs.at(id);
  step.Do(AnswerLaunch{event.session, absl::OkStatus(),
                       id});  // Before the news: it names the job they are of.
  Join(step, job, *node, request);
  std::shared_ptr<const JobView> result;
  if (job.state.phase == JobPhase::kEnded) SendResultTo(step, job, *node, result);
}

void On(Step& step, const LeaveAsked& event) {
  Node* node = step.state.NodeOf(event.session);
  if (node == nullptr) return;
  Heard(step, *node);
  if (!node->row.launch) return;
  Job* job = step.state.FindJob(node->row.launch->job);
  if (job == nullptr) return;
  const bool first = !node->row.launch->left;
  if (first) {
    NodeRow row = node->row;
    row.launch->left = true;
    step.Put(std::move(row));
  }
  // The second Ctrl-C: the job ends already, and now without what is left of its grace.
  if (job->state.verdict) {
    if (job->state.phase == JobPhase::kEnding && event.now) HurryCancel(step, *job);
    return;
  }
  // Leaving is a notice that a node gives about itself, with the job's grace as its time.
  const Duration left = event.now ? Duration{} : job->spec.spec.grace;
  if (first) {
    int others = 0;
    for (const NodeId& id : job->launch.nodes) {
      const Node* other = step.state.FindNode(id);
      if (other && id != node->row.node && !other->Is<Lost>() && !IsLeaving(*job, *other)) ++others;
    }
    if (DecideLeave(job->spec.spec, event.signal, others) == LeaveOutcome::kCancels) {
      CancelJob(step, *job, node->row.name, event.signal, event.now,
                absl::StrCat("leave/", node->row.launch->key));
      return;
    }
    // While a generation runs, its end tells who left.
    if (!FormedOf(*job))
      AddEvent(step, *job,
               NodeLeft{node->row.name, event.signal == 0 ? "--join-timeout"
                                                          : absl::StrCat("signal ", event.signal)});
  }
  SetLeaving(step, *node, Notice{NoticeSource::kSignal, event.signal, left});
  RefreshJobs(step, *node);
}

void On(Step& step, const CancelAsked& event) {
  absl::StatusOr<JobId> id = Resolve(step.state, event.job, JobPrefixes::kRefused);
  if (!id.ok()) {
    step.Do(Answer{event.call, id.status()});
    return;
  }
  Job& job = step.state.jobs.at(*id);
  // Refused where the job is over by another verdict, and where another cancel's end is reached; a
  // repeated cancel is answered like the first.
  const bool cancelled = job.state.verdict && job.state.verdict->state == VerdictState::kCancelled;
  if (job.state.verdict && !(cancelled && job.state.phase == JobPhase::kEnding) &&
      job.state.cancel.key != event.key) {
    step.Do(Answer{event.call, UserError(absl::StatusCode::kFailedPrecondition,
                                         absl::StrCat(id->value(), " is over already"),
                                         absl::StrCat("it has ", StateName(job)),
                                         absl::StrCat("regroup explain ", id->value()))});
    return;
  }
  if (!job.state.verdict) CancelJob(step, job, event.by, event.signal, event.now, event.key);
  if (cancelled && job.state.phase == JobPhase::kEnding && event.now) HurryCancel(step, job);
  step.Do(Answer{event.call, CancelReply{*id}});
}

void On(Step& step, const ReadAsked& event) {
  if (!event.wait_for_end) {
    absl::StatusOr<ReadReply> reply = Read(step.state, event.filter, step.now(), step.wall());
    if (!reply.ok()) {
      step.Do(Answer{event.call, reply.status()});
    } else {
      step.Do(Answer{event.call, *std::move(reply)});
    }
    return;
  }
  absl::StatusOr<JobId> id = Resolve(step.state, event.filter.job, JobPrefixes::kAllowed);
  if (!id.ok()) {
    step.Do(Answer{event.call, id.status()});
    return;
  }
  Job& job = step.state.jobs.at(*id);
  if (step.state.index.over.contains(job.spec.sequence)) {
    step.Do(
        Answer{event.call,
               ReadReply{{ViewOf(step.state, job, event.filter.detail, step.state.moment())}, {}}});
    return;
  }
  if (static_cast<int>(step.state.waiting_calls.size()) >= step.config().limits.waiting_reads) {
    step.Do(Answer{
        event.call,
        UserError(absl::StatusCode::kResourceExhausted, "too many callers wait for jobs already",
                  absl::StrCat(step.state.waiting_calls.size(), " wait, at most ",
                               step.config().limits.waiting_reads),
                  "ask again later")});
    return;
  }
  // Answered by AnswerWaiters when the job is over, or dropped with the call.
  step.state.waiting_calls[event.call] = *id;
  job.waiters.insert(event.call);
}

void On(Step& step, const ForgetNodeAsked& event) {
  Node* found = nullptr;
  for (auto& entry : step.state.nodes) {
    Node& node = entry.second;
    const bool named = node.row.name == event.node || entry.first.value() == event.node;
    // Names are given again once their node is lost: of several the one that is alive counts, so
    // that it is refused below instead of a dead one being forgotten in its place.
    if (named && (found == nullptr || found->row.lost)) found = &node;
  }
  if (found == nullptr) {
    step.Do(Answer{
        event.call,
        UserError(absl::StatusCode::kNotFound, absl::StrCat("no node ", event.node),
                  absl::StrCat(step.state.nodes.size(), " nodes are known"), "regroup nodes")});
    return;
  }
  if (found->attached()) {
    step.Do(Answer{
        event.call,
        UserError(absl::StatusCode::kFailedPrecondition, absl::StrCat(event.node, " is alive"),
                  absl::StrFormat("its agent at %s was heard %.1f s ago", found->row.address,
                                  Seconds(step.now() - found->lease.last_heard)),
                  "stop its agent first")});
    return;
  }
  const NodeId id = found->row.node;
  // The operator vouches for its death: what it held is free at once.
  LoseNode(step, *found, kHowForgotten, true);
  step.Do(Answer{event.call, ForgetNodeReply{id}});
}

}  // namespace regroup::coordinator
