#include "launcher/coordinator/core/views.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/job_word.h"
#include "common/base/user_error.h"
#include "launcher/coordinator/core/accounts.h"
#include "launcher/coordinator/core/actions.h"
#include "launcher/coordinator/core/admission.h"
#include "launcher/coordinator/core/budget.h"
#include "launcher/coordinator/core/events.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/leases.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/node_in_job.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/slots.h"
#include "launcher/coordinator/core/state.h"

namespace regroup::coordinator {
namespace {

constexpr std::size_t kGenerationsInResult = 3;
constexpr std::size_t kManyMembers = 16;
constexpr std::size_t kMaxNames = 16;
constexpr std::size_t kMaxNamesInError = 8;

// Keeps the members that the end of this generation is about.
// A result is sent to every launch command: a thousand results of a thousand members
// each would be a million.
void TrimMembers(GenerationView& view) {
  if (view.members.size() <= kManyMembers) return;
  std::set<std::string> named;
  if (view.ended) {
    if (auto* failed = std::get_if<WorkerFailed>(&*view.ended)) named.insert(failed->cause.node);
    if (auto* exec = std::get_if<ExecFailed>(&*view.ended)) named.insert(exec->cause.node);
  }
  for (const RankCause& cause : view.consequences) named.insert(cause.node);
  std::erase_if(view.members,
                [&](const MemberView& member) { return !named.contains(member.name); });
}

bool IsFull(std::size_t have, const ReadFilter& filter) {
  return filter.limit > 0 && have >= static_cast<std::size_t>(filter.limit);
}

const char* SignalText(int signal) {
  if (signal == SIGTERM) return "SIGTERM";
  if (signal == SIGINT) return "Ctrl-C";
  if (signal == SIGHUP) return "SIGHUP";
  return "notice";
}

// Its last line is shown in lists: thousands of whole tracebacks would not fit into one reply.
std::optional<RankCause> LastFailureOf(const Job& job) {
  constexpr std::size_t kShownBytes = 256;
  for (auto at = job.generations.rbegin(); at != job.generations.rend(); ++at) {
    if (!at->second.ended) continue;
    const auto* failed = std::get_if<WorkerFailed>(&*at->second.ended);
    // Only the newest end counts: an older failure explains nothing of where the job stands.
    if (failed == nullptr) return std::nullopt;
    RankCause cause = failed->cause;
    std::string& error = cause.exit.error;
    if (error.size() > kShownBytes) error.erase(0, error.size() - kShownBytes);
    return cause;
  }
  return std::nullopt;
}

// Some of those that prepare the generation that is proposed.
std::vector<std::string> Unacked(const State& state, const Job& job) {
  std::vector<std::string> names;
  const GenerationRow* next = ProposedOf(job);
  if (next == nullptr) return names;
  for (const NodeId& id : As<Proposed>(job.soft.at(next->generation)).unacked)
    if (names.size() < kMaxNames) names.push_back(state.NameOf(id));
  return names;
}

std::optional<WaitReason> WaitOf(const State& state, const Job& job, const Moment& at) {
  if (!job.wait.reason || job.state.verdict) return std::nullopt;
  const Duration left =
      job.wait.until ? std::max(*job.wait.until - at.now, Duration{}) : Duration{};
  WaitReason reason = WithLeft(*job.wait.reason, left);
  const Duration since = std::max(at.now - job.wait.since, Duration{});
  std::visit(
      [&](auto& r) {
        if constexpr (requires { r.since; }) r.since = since;
      },
      reason);
  // The queue moves on without this job being looked at: who is ahead is asked for when somebody
  // reads.
  if (std::holds_alternative<BehindJob>(reason) || std::holds_alternative<CannotFit>(reason))
    return state.placement.WhyNot(job.spec.sequence).value_or(reason);
  if (auto* preparing = std::get_if<MembersPreparing>(&reason))
    preparing->nodes = Unacked(state, job);
  return reason;
}

GenerationView GenerationViewOf(const Job& job, const GenerationRow& row) {
  GenerationView view;
  view.generation = row.generation;
  using State = GenerationView::State;
  const Course* course = CourseOf(job, row.generation);
  switch (row.phase) {
    case GenerationPhase::kProposed: view.state = State::kProposed; break;
    case GenerationPhase::kFormed:
      view.state = course != nullptr && course->running_at ? State::kRunning : State::kFormed;
      break;
    case GenerationPhase::kOver: view.state = row.voided ? State::kVoided : State::kOver; break;
  }
  for (std::size_t rank = 0; rank < row.members.size(); ++rank) {
    const GenerationMember& member = row.members[rank];
    MemberView mine{member.node, member.name, member.address,   static_cast<int>(rank),
                    {},          member.pids, member.free_slots};
    // Ranks follow the order of members, each with as many as it has workers.
    for (int local = 0; local < member.workers; ++local) mine.ranks.push_back(view.world++);
    mine.pids.resize(member.workers, 0);
    view.members.push_back(std::move(mine));
  }
  view.store = row.store;
  view.formed_at = row.formed_at;
  view.ended_at = row.ended_at;
  view.ended = row.ended;
  view.consequences = row.consequences;
  view.charged = row.charged;
  view.phases = row.phases;
  view.first_step = row.steps.first;
  view.last_step = row.steps.last;
  view.restored_step = row.steps.restored;
  // While it runs its workers' words are newer than its row, which gets them at its end.
  if (course == nullptr) return view;
  view.phases.init = course->progress.init;
  view.phases.restore = course->progress.restore;
  view.phases.first_step = course->progress.first_step_took;
  view.first_step = course->progress.first_step;
  view.last_step = course->progress.last_step;
  view.restored_step = course->progress.restored_step;
  return view;
}

// The node's state as people read it. `late`: two heartbeats are missing.
struct LinkWord {
  const Node& node;
  bool late;
  std::string operator()(const Attached&) const {
    return node.leaving ? "leaving" : late ? "suspect" : "ready";
  }
  std::string operator()(const Suspected&) const { return "suspect"; }
  std::string operator()(const AgentAway&) const { return "away"; }
  std::string operator()(const Awaited&) const { return "awaited"; }
  std::string operator()(const Lost&) const {
    return node.row.lost_how == kHowOver ? "left" : "lost";
  }
};

// Why a node that says nothing is not lost yet; empty: it is heard, or its lease runs.
std::string WhyKept(const State& state, const Node& node, const Moment& at) {
  const Duration silent = at.now - std::min(node.lease.last_heard, at.now);
  if (node.lease.kept_until && !node.Is<Lost>()) {
    for (const JobId& id : node.jobs) {
      const Job* job = state.FindJob(id);
      if (job && FormedOf(*job))
        return absl::StrFormat("silent for %.0f s, kept because %s steps", Seconds(silent),
                               id.value());
    }
  }
  if (node.Is<Attached>() && silent > state.config.leases.lease && state.fleet.IsBraked(at.now))
    return absl::StrFormat("silent for %.0f s, kept because many fell silent at once",
                           Seconds(silent));
  return "";
}

std::string NoteOf(const State& state, const Node& node, const Moment& at) {
  std::vector<std::string> notes;
  auto seconds = [](Duration d) {
    return d < std::chrono::minutes(1) ? absl::StrFormat("%.1f s", std::max(Seconds(d), 0.0))
                                       : absl::StrFormat("%.0f min", Seconds(d) / 60);
  };
  if (node.Is<Lost>()) notes.push_back(node.row.lost_how);
  if (const std::string kept = WhyKept(state, node, at); !kept.empty()) notes.push_back(kept);
  if (!node.lease.kept_until && AwayOf(node.link))
    notes.push_back(
        absl::StrCat("lost in ", seconds(*LeaseEnd(state, node) - at.now), " unless it reports"));
  if (node.leaving) {
    notes.push_back(absl::StrCat(SignalText(node.leaving->notice.signal), ", ",
                                 seconds(node.leaving->until - at.now), " left"));
    for (const JobId& id : node.jobs) {
      const Job* job = state.FindJob(id);
      const GenerationRow* formed = job ? FormedOf(*job) : nullptr;
      const Formed* runs = formed ? In<Formed>(*job, formed->generation) : nullptr;
      if (runs && runs->saving) notes.push_back("saving");
    }
  }
  for (const TakenSlots& taken : node.row.taken) {
    if (!taken.unkillable && node.Is<Attached>()) continue;  // Its groups show it.
    notes.push_back(absl::StrCat(taken.unkillable ? "unkillable group of " : "may still run ",
                                 taken.job.value()));
  }
  for (const auto& entry : node.groups)
    if (state.FindJob(entry.first) == nullptr)
      notes.push_back(absl::StrCat("runs unknown job ", entry.first.value()));
  if (!node.Is<Lost>() && !node.no_cgroup.empty())
    notes.push_back(absl::StrCat("no cgroup: ", node.no_cgroup));
  return absl::StrJoin(notes, ", ");
}

std::vector<LeftOutView> LeftOutOf(const State& state, const Job& job, const Moment& at) {
  std::vector<LeftOutView> left_out;
  if (job.state.phase == JobPhase::kEnded) return left_out;
  const GenerationRow* formed = FormedOf(job);
  for (const auto& [id, trial] : job.unsteady.trials) {
    const Node* node = state.FindNode(id);
    const bool gone = node == nullptr || node->Is<Lost>();
    if (gone || (formed && job.soft.at(formed->generation).members.contains(id))) continue;
    left_out.push_back(
        {id, node->row.name, trial.why, std::max(Duration::zero(), trial.until - at.now)});
  }
  return left_out;
}

// By node: which jobs leave it out at present, and why.
std::map<NodeId, std::vector<std::string>> LeftOut(const State& state, const Moment& at) {
  std::map<NodeId, std::vector<std::string>> notes;
  for (const auto& [id, job] : state.jobs) {
    for (const LeftOutView& out : LeftOutOf(state, job, at)) {
      if (out.left > Duration::zero())
        notes[out.node].push_back(
            absl::StrFormat("not in %s for %.1f s: %s", id.value(), Seconds(out.left), out.why));
    }
  }
  return notes;
}

}  // namespace

WaitReason WithLeft(WaitReason reason, Duration left) {
  std::visit(
      [&](auto& r) {
        if constexpr (requires { r.left; }) r.left = left;
      },
      reason);
  return reason;
}

absl::StatusOr<JobId> Resolve(const State& state, const std::string& word, JobPrefixes prefixes) {
  if (word == kLastJob && !state.index.by_sequence.empty())
    return state.index.by_sequence.rbegin()->second;
  // An id begins with its job's name: whatever the word may mean begins with it.
  std::vector<JobChoice> choices;
  for (auto it = state.jobs.lower_bound(JobId(word)); it != state.jobs.end(); ++it) {
    if (!it->first.value().starts_with(word)) break;
    const Job& job = it->second;
    choices.push_back({it->first, job.spec.spec.name, job.state.phase == JobPhase::kEnded,
                       static_cast<std::int64_t>(job.spec.sequence)});
  }
  const std::vector<std::size_t> meant = ChooseJobs(word, choices, prefixes);
  if (meant.size() == 1) return choices[meant[0]].id;
  if (meant.empty())
    return UserError(absl::StatusCode::kNotFound, absl::StrCat("no job ", word),
                     absl::StrCat(state.jobs.size(), " jobs are known"), "regroup ps -a");
  std::vector<std::string> ids;
  for (std::size_t i = 0; i < std::min(meant.size(), kMaxNamesInError); ++i)
    ids.push_back(choices[meant[i]].id.value());
  return AmbiguousJob(
      word, absl::StrCat(absl::StrJoin(ids, ", "), meant.size() > ids.size() ? " and others" : ""),
      ids[0]);
}

std::string StateName(const Job& job) {
  switch (job.state.phase) {
    case JobPhase::kQueued: return "queued";
    case JobPhase::kGathering: return "gathering";
    case JobPhase::kForming: return "forming";
    case JobPhase::kRunning: {
      return IsEnding(job) ? "regrouping" : "running";
    }
    case JobPhase::kRegrouping: return "regrouping";
    case JobPhase::kPreempted: return "preempted";
    case JobPhase::kEnding: return "ending";
    case JobPhase::kEnded: break;
  }
  switch (job.state.verdict->state) {
    case VerdictState::kSucceeded: return "succeeded";
    case VerdictState::kFailed: return "failed";
    case VerdictState::kCancelled: return "cancelled";
  }
  return "ended";
}

JobView ViewOf(const State& state, const Job& job, bool detail, const Moment& at) {
  JobView view;
  view.id = job.id();
  view.spec = job.spec.spec;
  view.state = StateName(job);
  view.generation = job.state.last_formed;
  if (const GenerationRow* formed = FormedOf(job)) {
    const Progress& progress = CourseOf(job, formed->generation)->progress;
    view.nodes = static_cast<int>(formed->members.size());
    for (const GenerationMember& member : formed->members) view.world += member.workers;
    view.step = progress.last_step;
    view.loss = progress.loss;
    view.tokens_per_second = progress.tokens_per_second;
  }
  if (!view.step && job.state.reached.step > 0) view.step = job.state.reached.step;
  view.restarts_charged = job.state.ends.charged;
  view.regroups = job.state.regroups;
  view.preemptions = Preemptions(job);
  if (job.commit) {
    view.committed_step = job.commit->step;
    view.commit_path = job.commit->path;
  }
  view.created_at = job.spec.created_at;
  view.started_at = job.state.started_at;
  view.ended_at = job.state.ended_at;
  view.age = AgeOf(job, at);
  if (job.state.phase == JobPhase::kEnded) view.ran_for = job.state.ran_for;
  view.why = WaitOf(state, job, at);
  if (job.state.verdict) {
    view.failed = job.state.verdict->failed;
    view.exit_code = job.state.verdict->exit_code;
  } else if (job.state.phase == JobPhase::kPreempted) {
    view.failed = PreemptedAll{};
    view.exit_code = 143;
  }
  view.last_failure = LastFailureOf(job);
  view.time = WholeAccountOf(job, at);
  view.cost = CostOf(job, at.now);
  if (!detail) return view;
  for (const auto& entry : job.generations)
    view.generations.push_back(GenerationViewOf(job, entry.second));
  view.events.assign(job.events.begin(), job.events.end());
  view.history_away = job.state.phase == JobPhase::kEnded && job.events.empty();
  view.left_out = LeftOutOf(state, job, at);
  if (view.left_out.size() > kMaxLeftOutShown) view.left_out.resize(kMaxLeftOutShown);
  return view;
}

JobView ResultOf(const State& state, const Job& job) {
  JobView view = ViewOf(state, job, false, state.moment());
  auto from = job.generations.end();
  for (std::size_t i = 0; i < kGenerationsInResult && from != job.generations.begin(); ++i) --from;
  for (; from != job.generations.end(); ++from) {
    view.generations.push_back(GenerationViewOf(job, from->second));
    TrimMembers(view.generations.back());
  }
  return view;
}

NodeView ViewOf(const State& state, const Node& node, const Moment& at) {
  NodeView view;
  view.id = node.row.node;
  view.name = node.row.name;
  view.address = node.row.address;
  const bool late = at.now - node.lease.last_heard > 2 * state.config.leases.heartbeat;
  view.state = std::visit(LinkWord{node, late}, node.link);
  view.slots = node.row.slots;
  view.gpu_slots = node.row.gpu_slots;
  view.slots_used = SlotsUsed(state, node);
  std::set<JobId> jobs = node.claims;
  for (const auto& entry : node.groups) {
    const Job* job = state.FindJob(entry.first);
    if (job == nullptr || !SlotsFree(*job, node)) jobs.insert(entry.first);
  }
  view.jobs.assign(jobs.begin(), jobs.end());
  view.seen = std::max(at.now - node.lease.last_heard, Duration{});
  view.note = NoteOf(state, node, at);
  view.launched = node.row.launched;
  view.coordinator_host = IsLoopback(node.row.dialled) || node.row.dialled == node.row.address;
  view.version = node.row.version;
  if (const Attached* attached = node.attached()) {
    view.warm_bytes = attached->warm_bytes;
    view.gpus = attached->gpus;
  }
  return view;
}

absl::StatusOr<ReadReply> Read(const State& state, const ReadFilter& filter, Instant now,
                               WallTime wall) {
  // Between two steps time has passed, but it never goes back behind the last one's.
  const Moment at{std::max(now, state.now), wall};
  ReadReply reply;
  if (state.fleet.IsBraked(at.now))
    reply.warnings.push_back(
        absl::StrFormat("%d of %d nodes fell silent at once, so this coordinator may be cut off: "
                        "no node is lost by "
                        "silence for another %.0f s",
                        state.fleet.brake.silent, state.fleet.brake.sessions,
                        Seconds(state.fleet.brake.until - at.now)));
  if (filter.jobs && !filter.job.empty()) {
    absl::StatusOr<JobId> id = Resolve(state, filter.job, JobPrefixes::kAllowed);
    if (!id.ok()) return id.status();
    reply.jobs.push_back(ViewOf(state, state.jobs.at(*id), filter.detail, at));
  } else if (filter.jobs) {
    std::uint64_t after = 0;
    if (!absl::SimpleAtoi(filter.after, &after)) after = 0;
    const auto& all = state.index.by_sequence;
    for (auto it = all.upper_bound(after); it != all.end(); ++it) {
      const Job& job = state.jobs.at(it->second);
      if (job.state.phase == JobPhase::kEnded && !filter.ended) continue;
      // Full, and one more was found: `next` stays as the last one set it, for the
      // caller to go on behind it.
      if (IsFull(reply.jobs.size(), filter)) return reply;
      reply.jobs.push_back(ViewOf(state, job, filter.detail, at));
      if (IsFull(reply.jobs.size(), filter)) reply.next = absl::StrCat(it->first);
    }
    reply.next.clear();
  }
  if (!filter.nodes) return reply;
  std::map<NodeId, std::vector<std::string>> notes = LeftOut(state, at);
  for (auto it = state.nodes.upper_bound(NodeId(filter.after)); it != state.nodes.end(); ++it) {
    const auto& [id, node] = *it;
    const bool asked =
        filter.node.empty() || node.row.name == filter.node || id.value() == filter.node;
    if (!asked) continue;
    if (IsFull(reply.nodes.size(), filter)) return reply;
    NodeView view = ViewOf(state, node, at);
    std::vector<std::string>& note = notes[id];
    if (!view.note.empty()) note.insert(note.begin(), view.note);
    view.note = absl::StrJoin(note, ", ");
    reply.nodes.push_back(std::move(view));
    if (IsFull(reply.nodes.size(), filter)) reply.next = id.value();
  }
  reply.next.clear();
  if (reply.nodes.empty() && !filter.node.empty())
    return UserError(absl::StatusCode::kNotFound, absl::StrCat("no node ", filter.node),
                     absl::StrCat(state.nodes.size(), " nodes are known"), "regroup nodes");
  return reply;
}

}  // namespace regroup::coordinator
