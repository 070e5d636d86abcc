// What people ask: launch, leave, submit, cancel, read. PROTOCOL §5, CLI.md.

#include <algorithm>
#include <csignal>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/user_error.h"
#include "launcher/coordinator/core/engine.h"
#include "launcher/coordinator/core/failure_policy.h"

namespace regroup::coordinator {
namespace {

constexpr std::size_t kMaxNamesInError = 8;
// With very many launch commands, what each of them need not print goes to the first one only.
constexpr std::size_t kFewLaunchers = 16;

absl::Status NoFit(const CannotFit& fit) {
  std::string because = absl::StrCat("it needs ", fit.need, " nodes with ", fit.slots,
                                     " slots each, this cluster has ", fit.known);
  if (!fit.node.empty() && fit.largest < fit.slots)
    because = absl::StrCat("it needs ", fit.slots, " slots on a node; the largest (", fit.node,
                           ") has ", fit.largest);
  return UserError(absl::StatusCode::kFailedPrecondition, "no nodes here could run this job",
                   because, "regroup nodes");
}

}  // namespace

// ---- new jobs --------------------------------------------------------------------------------

std::uint64_t Engine::newest_number() const {
  return by_sequence_.empty() ? 0 : by_sequence_.rbegin()->first;
}

absl::StatusOr<JobId> Engine::Admit(const JobSpec& spec, const std::string& key, bool standalone,
                                    std::uint64_t free_bytes, std::uint64_t number_used) {
  if (free_bytes < config_.min_free_bytes)
    return UserError(absl::StatusCode::kResourceExhausted, "the disk of the coordinator is full",
                     absl::StrCat(free_bytes >> 20, " MiB are free, a new job needs ",
                                  config_.min_free_bytes >> 20),
                     "regroup prune");
  if (spec.min_nodes > kMaxNodesPerJob)
    return UserError(
        absl::StatusCode::kInvalidArgument, "the job asks for too many nodes",
        absl::StrCat("it asks for ", spec.min_nodes, ", one job has at most ", kMaxNodesPerJob),
        "");
  const std::uint64_t sequence =
      std::max({config_.first_job - 1, newest_number(), number_used}) + 1;
  JobSpecRow row;
  row.job = JobId(absl::StrCat(spec.name, "-", sequence));
  row.sequence = sequence;
  row.spec = spec;
  row.key = key;
  row.standalone = standalone;
  row.created_at = wall_;
  const std::size_t bytes = EstimateBytes(Row{JobSpecKey(row.job), row});
  if (bytes > kMaxSpecBytes)
    return UserError(absl::StatusCode::kInvalidArgument,
                     "the job's command and environment are too large",
                     absl::StrCat(bytes, " bytes, at most ", kMaxSpecBytes), "");
  const JobId id = row.job;
  JobStateRow state;
  state.job = id;
  state.phase = spec.origin == JobOrigin::kLaunched ? JobPhase::kGathering : JobPhase::kQueued;
  Put(std::move(row));
  Put(std::move(state));
  Job& job = jobs_.at(id);
  job.created = job.gather_since = now_;
  MarkDirty(job);
  Say(Severity::kInfo, "job admitted", {{"job", id.value()}});
  return id;
}

void Engine::On(const SubmitAsked& event) {
  if (auto known = by_key_.find(event.key); known != by_key_.end()) {
    Do(Answer{event.call, SubmitReply{known->second}});
    return;
  }
  const CannotFit fit = FitOf(event.spec);
  if (event.now_or_never && !Fits(fit)) {
    Do(Answer{event.call, NoFit(fit)});
    return;
  }
  if (static_cast<int>(queue_.size()) >= config_.max_pending_submits) {
    Do(Answer{
        event.call,
        UserError(absl::StatusCode::kResourceExhausted, "too many jobs wait already",
                  absl::StrCat(queue_.size(), " are queued, at most ", config_.max_pending_submits),
                  "submit again when some have started")});
    return;
  }
  JobSpec spec = event.spec;
  spec.origin = JobOrigin::kSubmitted;
  absl::StatusOr<JobId> id = Admit(spec, event.key, false, event.free_bytes, event.number_used);
  if (!id.ok()) {
    Do(Answer{event.call, id.status()});
    return;
  }
  SubmitReply reply{*id};
  if (!Fits(fit)) reply.waits = fit;
  Do(Answer{event.call, std::move(reply)});
}

// ---- launch commands -------------------------------------------------------------------------

std::optional<LaunchedJob> Engine::LaunchedJobOf(const Job* job) const {
  if (job == nullptr) return std::nullopt;
  LaunchedJob known{job->id(), job->spec.spec, job->state.phase == JobPhase::kEnded, std::nullopt};
  // From its verdict on a job takes nobody in: who comes now is shown its result, or begins the
  // next.
  if (job->state.verdict) known.ended = true;
  if (job->ended) known.ended_for = now_ - *job->ended;
  if (job->state.phase == JobPhase::kEnding) known.ended_for = Duration{};
  return known;
}

void Engine::On(const LaunchAsked& event) {
  Node* node = NodeOf(event.session);
  if (node == nullptr) return;
  Heard(*node);
  const LaunchRequest& request = event.request;
  const Job* mine = nullptr;
  if (node->row.launch && node->row.launch->key == request.key)
    mine = FindJob(node->row.launch->job);
  auto newest = newest_by_name_.find(request.rdzv_id);
  const LaunchDecision decision = DecideLaunch(
      request, LaunchedJobOf(mine),
      LaunchedJobOf(newest == newest_by_name_.end() ? nullptr : FindJob(newest->second)));
  if (const auto* refused = std::get_if<absl::Status>(&decision)) {
    Do(AnswerLaunch{event.session, *refused, JobId()});
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
        Admit(spec, request.key, request.standalone, event.free_bytes, event.number_used);
    if (!begun.ok()) {
      Do(AnswerLaunch{event.session, begun.status(), JobId()});
      return;
    }
    id = *begun;
  }
  Job& job = jobs_.at(id);
  Do(AnswerLaunch{event.session, absl::OkStatus(),
                  id});  // Before the news: it names the job they are of.
  Join(job, *node, request);
  if (job.state.phase == JobPhase::kEnded) SendResultTo(job, *node);
}

// Of a job with very many launch commands: all that ever came; nobody counts them by hand.
int Engine::NodesStaying(const Job& job) const {
  constexpr std::size_t kMany = 64;
  if (job.launchers.size() > kMany) return static_cast<int>(job.launchers.size());
  return static_cast<int>(
      std::count_if(job.launchers.begin(), job.launchers.end(), [&](const NodeId& id) {
        const Node* node = FindNode(id);
        return node && node->link != Link::kLost && !IsLeaving(job, *node);
      }));
}

void Engine::Join(Job& job, Node& node, const LaunchRequest& request) {
  const bool again =
      node.row.launch && node.row.launch->key == request.key && node.row.launch->job == job.id();
  if (!again) {
    NodeRow row = node.row;
    row.launch =
        NodeLaunch{request.key, job.id(), std::max(request.spec.workers_per_node, 1), false};
    Put(std::move(row));
  }
  if (job.state.verdict) return;
  // One that was silent until its job was preempted goes on with it.
  const bool resumes = job.state.phase == JobPhase::kPreempted && !node.row.launch->left;
  if (again && !resumes) return;
  if (!job.first_launcher || !FindNode(*job.first_launcher) ||
      FindNode(*job.first_launcher)->link == Link::kLost)
    job.first_launcher = node.row.node;
  job.last_join = now_;
  if (job.state.phase == JobPhase::kPreempted) {
    UpdateState(job, [](JobStateRow& state) {
      state.phase = state.last_formed > Generation() ? JobPhase::kRegrouping : JobPhase::kGathering;
    });
    job.gather_since = now_;
    job.membership_known = false;
  }
  if (job.below_since || !FormedOf(job))
    job.membership_known = job.membership_known && !job.below_since;
  const JobSpec& spec = job.spec.spec;
  AddEvent(job, NodeJoined{node.row.name, NodesStaying(job), spec.min_nodes, spec.max_nodes});
  // Whether it is one too many concerns itself, however many there are.
  if (job.launchers.size() > kFewLaunchers && node.session && job.first_launcher != node.row.node)
    Do(SendNews{*node.session, job.id(), job.events.back()});
  Touch(job, node);
  Refresh(job, node);
  MarkDirty(job);
}

void Engine::On(const LeaveAsked& event) {
  Node* node = NodeOf(event.session);
  if (node == nullptr) return;
  Heard(*node);
  if (!node->row.launch) return;
  Job* job = FindJob(node->row.launch->job);
  if (job == nullptr || job->state.verdict) {
    if (job && job->state.phase == JobPhase::kEnding && event.now) HurryCancel(*job);
    return;
  }
  const Duration left = event.now ? Duration{} : job->spec.spec.grace;
  if (!node->row.launch->left) {
    int others = 0;
    for (const NodeId& id : job->launchers) {
      const Node* other = FindNode(id);
      if (other && id != node->row.node && other->link != Link::kLost && !IsLeaving(*job, *other))
        ++others;
    }
    if (DecideLeave(job->spec.spec, event.signal, others) == LeaveOutcome::kCancels) {
      CancelJob(*job, node->row.name, event.signal, event.now,
                absl::StrCat("leave/", node->row.launch->key));
      return;
    }
    NodeRow row = node->row;
    row.launch->left = true;
    Put(std::move(row));
    if (!FormedOf(*job))
      AddEvent(*job,
               NodeLeft{node->row.name, event.signal == 0 ? "--join-timeout"
                                                          : absl::StrCat("signal ", event.signal)});
  }
  SetLeaving(*node, Notice{NoticeSource::kSignal, event.signal, left, false});
  if (event.now && job->stop) {
    auto [sooner, fresh] = job->stop->sooner.try_emplace(node->row.node, now_);
    if (!fresh) sooner->second = std::min(sooner->second, now_);
  }
  RefreshJobs(*node);
}

// ---- cancel ----------------------------------------------------------------------------------

void Engine::CancelJob(Job& job, const std::string& by, int signal, bool now,
                       const std::string& key) {
  const CancelledBy cancelled{by, signal};
  const int exit_code = ExitCodeOf(cancelled, std::nullopt);
  SetVerdict(job, Verdict{VerdictState::kCancelled, exit_code, cancelled}, Cancelled{by},
             StopReason::kCancelled, now ? Duration{} : job.spec.spec.grace);
  UpdateState(job, [&](JobStateRow& state) {
    state.cancel_key = key;
    state.stop_now = now;
  });
  MarkDirty(job);
}

// A second cancel, or a second Ctrl-C: what is left of the grace is given up.
void Engine::HurryCancel(Job& job) {
  if (!job.stop || job.stop->deadline <= now_) return;
  job.stop->deadline = now_;
  job.stop->give_up = now_ + config_.stop_margin;
  UpdateState(job, [](JobStateRow& state) { state.stop_now = true; });
  for (const NodeId& id : job.touched) MarkOrder(job, id);
  MarkDirty(job);
}

void Engine::On(const CancelAsked& event) {
  absl::StatusOr<JobId> id = Resolve(event.job, JobPrefixes::kRefused);
  if (!id.ok()) {
    Do(Answer{event.call, id.status()});
    return;
  }
  Job& job = jobs_.at(*id);
  const bool cancelled = job.state.verdict && job.state.verdict->state == VerdictState::kCancelled;
  if (job.state.verdict && !(cancelled && job.state.phase == JobPhase::kEnding) &&
      job.state.cancel_key != event.key) {
    Do(Answer{event.call, UserError(absl::StatusCode::kFailedPrecondition,
                                    absl::StrCat(id->value(), " is over already"),
                                    absl::StrCat("it has ", StateName(job)),
                                    absl::StrCat("regroup explain ", id->value()))});
    return;
  }
  if (!job.state.verdict) CancelJob(job, event.by, event.signal, event.now, event.key);
  if (cancelled && job.state.phase == JobPhase::kEnding && event.now) HurryCancel(job);
  Do(Answer{event.call, CancelReply{*id}});
}

// ---- reads -----------------------------------------------------------------------------------

absl::StatusOr<JobId> Engine::Resolve(const std::string& word, JobPrefixes prefixes) const {
  if (word == kLastJob && !by_sequence_.empty()) return by_sequence_.rbegin()->second;
  // An id begins with its job's name: whatever the word may mean begins with it.
  std::vector<JobChoice> choices;
  for (auto it = jobs_.lower_bound(JobId(word)); it != jobs_.end(); ++it) {
    if (!it->first.value().starts_with(word)) break;
    const Job& job = it->second;
    choices.push_back({it->first, job.spec.spec.name, job.state.phase == JobPhase::kEnded,
                       static_cast<std::int64_t>(job.spec.sequence)});
  }
  const std::vector<std::size_t> meant = ChooseJobs(word, choices, prefixes);
  if (meant.size() == 1) return choices[meant[0]].id;
  if (meant.empty())
    return UserError(absl::StatusCode::kNotFound, absl::StrCat("no job ", word),
                     absl::StrCat(jobs_.size(), " jobs are known"), "regroup ps -a");
  std::vector<std::string> ids;
  for (std::size_t i = 0; i < std::min(meant.size(), kMaxNamesInError); ++i)
    ids.push_back(choices[meant[i]].id.value());
  return AmbiguousJob(
      word, absl::StrCat(absl::StrJoin(ids, ", "), meant.size() > ids.size() ? " and others" : ""),
      ids[0]);
}

void Engine::On(const ReadAsked& event) {
  if (!event.wait_for_end) {
    absl::StatusOr<ReadReply> reply = Read(event.filter, now_, wall_);
    if (!reply.ok()) {
      Do(Answer{event.call, reply.status()});
    } else {
      Do(Answer{event.call, *std::move(reply)});
    }
    return;
  }
  absl::StatusOr<JobId> id = Resolve(event.filter.job, JobPrefixes::kAllowed);
  if (!id.ok()) {
    Do(Answer{event.call, id.status()});
    return;
  }
  Job& job = jobs_.at(*id);
  if (over_.contains(job.spec.sequence)) {
    Do(Answer{event.call, ReadReply{{ViewOf(job, event.filter.detail, Here())}, {}}});
    return;
  }
  if (static_cast<int>(waiting_calls_.size()) >= config_.max_waiting_reads) {
    Do(Answer{
        event.call,
        UserError(absl::StatusCode::kResourceExhausted, "too many callers wait for jobs already",
                  absl::StrCat(waiting_calls_.size(), " wait, at most ", config_.max_waiting_reads),
                  "ask again later")});
    return;
  }
  waiting_calls_[event.call] = *id;
  job.waiters.insert(event.call);
}

void Engine::On(const CallDropped& event) {
  auto waiting = waiting_calls_.find(event.call);
  if (waiting == waiting_calls_.end()) return;
  if (Job* job = FindJob(waiting->second)) job->waiters.erase(event.call);
  waiting_calls_.erase(waiting);
}

void Engine::AnswerWaiters(Job& job) {
  if (job.waiters.empty()) return;
  const JobView view = ViewOf(job, true, Here());
  for (CallId call : job.waiters) {
    waiting_calls_.erase(call);
    Do(Answer{call, ReadReply{{view}, {}}});
  }
  job.waiters.clear();
}

void Engine::SendResults(Job& job) {
  for (const NodeId& id : job.launchers)
    if (Node* node = FindNode(id)) SendResultTo(job, *node);
}

void Engine::SendResultTo(Job& job, Node& node) {
  if (!node.session || node.told_result == job.id()) return;
  node.told_result = job.id();
  Do(SendResult{*node.session, ResultOf(job)});
}

void Engine::On(const ForgetNodeAsked& event) {
  Node* found = nullptr;
  for (auto& entry : nodes_) {
    Node& node = entry.second;
    const bool named = node.row.name == event.node || entry.first.value() == event.node;
    if (named && (found == nullptr || found->row.lost)) found = &node;
  }
  if (found == nullptr) {
    Do(Answer{event.call,
              UserError(absl::StatusCode::kNotFound, absl::StrCat("no node ", event.node),
                        absl::StrCat(nodes_.size(), " nodes are known"), "regroup nodes")});
    return;
  }
  if (found->session) {
    Do(Answer{
        event.call,
        UserError(absl::StatusCode::kFailedPrecondition, absl::StrCat(event.node, " is alive"),
                  absl::StrFormat("its agent at %s was heard %.1f s ago", found->row.address,
                                  Seconds(now_ - found->last_heard)),
                  "stop its agent first")});
    return;
  }
  const NodeId id = found->row.node;
  LoseNode(*found, kHowForgotten, true);
  Do(Answer{event.call, ForgetNodeReply{id}});
}

// ---- events ----------------------------------------------------------------------------------

void Engine::AddEvent(Job& job, JobEventBody body) {
  const bool minor =
      std::holds_alternative<NodeJoined>(body) || std::holds_alternative<Waits>(body) ||
      std::holds_alternative<CommitAccepted>(body) || std::holds_alternative<NodeLeft>(body);
  JobEvent event{job.events.empty() ? 1 : job.events.back().number + 1, wall_, std::move(body)};
  const bool to_first = minor && job.launchers.size() > kFewLaunchers && job.first_launcher;
  auto tell = [&](const NodeId& id) {
    const Node* node = FindNode(id);
    if (node && node->session) Do(SendNews{*node->session, job.id(), event});
  };
  if (to_first) {
    tell(*job.first_launcher);
  } else {
    for (const NodeId& id : job.launchers) tell(id);
  }
  Put(JobEventRow{job.id(), std::move(event)});
}

}  // namespace regroup::coordinator
