// What the world knows, because it is omniscient, held against what the coordinator says.

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>
#include <variant>

#include "launcher/coordinator/core/failure_policy.h"
#include "launcher/coordinator/core/node.h"
#include "tests/sim/checker.h"

namespace regroup::sim {
using namespace coordinator;  // NOLINT: rows are all this file is about.

namespace {

// Two agents' clocks are compared through the network and the commit before.
constexpr Duration kSameTime = std::chrono::milliseconds(60);
constexpr Duration kOnItsWay = std::chrono::seconds(1);

NodeId MemberNamed(const GenerationRow& row, const std::string& name) {
  for (const GenerationMember& member : row.members)
    if (member.name == name) return member.node;
  return {};
}

bool IsDone(const agent::RankEnded& ended) {
  return ended.kind == ExitKind::kExited && ended.code == 0;
}

}  // namespace

void Checker::OnRankEnded(const Node& node, const Group& group, const Rank& rank) {
  Exit exit{node.id(), rank.exit->local_rank, *rank.exit};
  exit.ended.after_stop |= group.noticed;  // A notice's signal is as good as a stop's.
  exits_[{group.job, group.generation}].push_back(std::move(exit));
}

void Checker::OnStruck(const NodeId& node) {
  struck_nodes_.insert(node);
  for (const auto& formed_members : members_)
    if (formed_members.second.contains(node)) struck_.insert(formed_members.first);
}

// Of a purged job nobody is told any more, and its key may be used again.
void Checker::OnPurged(const std::string& folder) {
  std::erase_if(submitted_, [&](const auto& entry) { return JobFolder(entry.second) == folder; });
  std::erase_if(views_, [&](const auto& entry) { return JobFolder(entry.first) == folder; });
}

// 45. Nothing of a node runs that was proved dead, unless nothing can kill it. Ranks that have
// retired run no more: a coordinator that recovers does not know of them.
void Checker::CheckProof(const NodeRow& lost) {
  if (lost.lost_how != kHowRefused && lost.lost_how != kHowOver) return;
  const Node* node = node_of(lost.node);
  if (node == nullptr) return;
  for (const auto& job : node->groups()) {
    const bool all = lost.lost_how == kHowRefused;
    if (!all && (!lost.launch || lost.launch->job != job.first)) continue;
    for (const auto& group : job.second)
      Expect(!group.second.lives() || group.second.shim != ShimState::kAlive ||
                 group.second.retiring || group.second.stuck,
             Text("45: ", lost.name, " is lost (", lost.lost_how, "), and ranks of ", job.first,
                  " generation ", group.first, " live there"));
  }
}

// 46. What excuses it: one of its nodes, supervisors or stores was lost, and with it the news.
void Checker::CheckAgain(const GenerationId& started, const std::string& name) {
  auto previous = members_.lower_bound(started);
  if (previous == members_.begin() || std::prev(previous)->first.first != started.first) return;
  const GenerationId id = (--previous)->first;
  if (disturbed_.contains(id) || struck_.contains(id)) return;
  for (const NodeId& node : members_[id])  // It may have been stopped before it could tell.
    if (!node_of(node)->steady()) return;
  std::set<std::pair<NodeId, int>> done;
  for (const Exit& exit : exits_[id])
    if (IsDone(exit.ended) && !exit.ended.after_stop) done.emplace(exit.node, exit.local_rank);
  Expect(static_cast<int>(done.size()) < worlds_[id],
         Text("46: all ranks of generation ", id.second, " were done, yet starts ", name));
}

const Checker::Exit* Checker::Failed(const GenerationId& id, const NodeId& node,
                                     int local_rank) const {
  auto exits = exits_.find(id);
  if (exits == exits_.end()) return nullptr;
  for (const Exit& exit : exits->second)
    if (exit.node == node && exit.local_rank == local_rank && !IsDone(exit.ended)) return &exit;
  return nullptr;
}

// 48, 49. Of two failures on nodes that could always be heard the first one is the cause. What a
// job's own end closes in a hurry is closed with what is known.
void Checker::CheckFailure(const GenerationRow& closed, const RankCause& cause, bool exec) {
  const GenerationId id{closed.job, closed.generation};
  const Exit* exit = Failed(id, MemberNamed(closed, cause.node), cause.local_rank);
  // What only lacks something for a moment may be either.
  const bool unstarted = exit != nullptr && exit->ended.kind == ExitKind::kExecFailed;
  const bool fits = exec ? unstarted : !unstarted || exit->ended.code != ENOENT;
  const bool failed = exit != nullptr && !exit->ended.after_stop && fits;
  Expect(failed, Text("48: ", closed.job, " generation ", closed.generation, " ended for rank ",
                      cause.rank, " on ", cause.node, ", which has not failed"));
  Instant begun = Instant::max();
  for (const auto& began : began_[id]) begun = std::min(begun, began.second);
  if (!failed || exec || judged_.contains(closed.job) || stalled_until_ >= begun) return;
  for (const Exit& other : exits_[id]) {
    const Node* node = node_of(other.node);
    const bool own = !IsDone(other.ended) && !other.ended.after_stop &&
                     (other.ended.kind != ExitKind::kExecFailed || other.ended.code != ENOENT);
    if (!own || node == nullptr || !node->steady()) continue;
    // Of two that a coordinator hears of at once, a crash is the cause of an exit before it.
    if (exit->ended.kind == ExitKind::kSignaled && other.ended.kind != ExitKind::kSignaled)
      continue;
    Expect(other.ended.at + kSameTime >= exit->ended.at,
           Text("49: ", closed.job, " generation ", closed.generation, " failed first on ",
                node->name(), ", not on ", cause.node));
  }
}

// 48. What is said to have ended a generation has happened to it.
void Checker::CheckReason(const GenerationRow& closed, Instant now) {
  const GenerationId id{closed.job, closed.generation};
  if (!members_.contains(id)) return;
  const std::string name =
      Text("48: ", closed.job, " generation ", closed.generation, " ended for ");
  const EndReason& reason = *closed.ended;
  if (const auto* failed = std::get_if<WorkerFailed>(&reason)) {
    CheckFailure(closed, failed->cause, /*exec=*/false);
  } else if (const auto* unable = std::get_if<ExecFailed>(&reason)) {
    CheckFailure(closed, unable->cause, /*exec=*/true);
  } else if (const auto* rebooted = std::get_if<NodeRebooted>(&reason)) {
    const NodeId member = MemberNamed(closed, rebooted->node);
    const Node* node = node_of(member);
    auto boot = boots_[id].find(member);
    const bool same =
        node != nullptr && boot != boots_[id].end() && boot->second == node->boot_id();
    Expect(!same, name + "a reboot of " + rebooted->node);
  } else if (const auto* late = std::get_if<StartTimedOut>(&reason)) {
    CheckToldAgain(closed, *late, now);
    auto began = began_[id].find(MemberNamed(closed, late->node));
    const bool ran = began != began_[id].end() && began->second + kOnItsWay < now - stalled_;
    Expect(!ran || closed.ended->index() != reason.index() || !node_of(began->first)->steady(),
           name + "a start on " + late->node + ", which was in time");
  } else if (const auto* preempted = std::get_if<Preempted>(&reason)) {
    Expect(leaving_.contains(MemberNamed(closed, preempted->node)),
           name + "a notice of " + preempted->node);
  } else if (std::holds_alternative<Resized>(reason)) {
    // Of a save before a coordinator's crash the journal does not say what it was for, and an agent
    // that was killed after its notice says no more that it leaves.
    const auto saved = saved_.find(id);
    const bool withdrawn = std::any_of(
        members_[id].begin(), members_[id].end(),
        [&](const auto& m) { return leaving_.contains(m) && agents_restarted_.contains(m); });
    Expect(elective_[closed.job] > closed.generation ||
               (saved != saved_.end() && (saved->second < epoch_ || withdrawn)),
           name + "a growth");
  } else if (std::holds_alternative<regroup::Finished>(reason)) {
    std::set<std::pair<NodeId, int>> done;
    for (const Exit& exit : exits_[id])
      if (IsDone(exit.ended)) done.emplace(exit.node, exit.local_rank);
    Expect(static_cast<int>(done.size()) == worlds_[id], name + "its success");
  } else if (const auto* lost = std::get_if<NodeLost>(&reason)) {
    // A shim that a coordinator of before has stopped is released, and answers no more.
    const bool stopped = lost->how == kHowRefused && noticed_.contains(id);
    CheckFirstSilent(closed, *lost);
    Expect(disturbed_.contains(id) || struck_.contains(id) || stopped,
           name + Text("the loss of ", lost->node, ": ", lost->how));
  } else if (!std::holds_alternative<Cancelled>(reason)) {
    // A shim is killed at the end of a stop that was told, perhaps by the coordinator before.
    Expect(disturbed_.contains(id) || struck_.contains(id) || noticed_.contains(id),
           name + Text("reason ", reason.index()));
  }
}

// 35. Each own fault is charged, once, unless it ended the job; nothing else is.
void Checker::CheckCharges(const JobStateRow& state) {
  int charged = 0;
  for (const auto& [generation, past] : ended_[state.job]) {
    if (past.verdict_open) continue;
    charged += past.charged ? 1 : 0;
    const bool owed = ChargesBudget(*past.ended);
    Expect(past.charged ? owed : !owed || state.verdict,
           Text("35: generation ", generation, " of ", state.job,
                past.charged ? " is charged" : " is not charged"));
  }
  Expect(state.ends.charged == charged,
         Text("35: ", state.job, " counts ", state.ends.charged, " of ", charged, " charges"));
}

// 47, 50.
void Checker::CheckSurvivors(const GenerationRow& proposed) {
  std::vector<NodeId> placed;
  for (const GenerationMember& member : proposed.members) placed.push_back(member.node);
  const GenerationId id{proposed.job, proposed.generation};
  placed_[id] = placed;
  if (proposed.elective) growing_[proposed.job] = proposed.generation;
  auto last = decided_formed_.lower_bound(id);
  if (last == decided_formed_.begin() || std::prev(last)->first != proposed.job) return;
  const GenerationId previous = *--last;
  const std::vector<NodeId>& before = placed_[previous];
  const std::string name = Text(proposed.job, " generation ", proposed.generation);
  for (std::size_t rank = 0; rank < std::min(before.size(), placed.size()); ++rank) {
    const bool stays = std::find(placed.begin(), placed.end(), before[rank]) != placed.end();
    Expect(!stays || placed[rank] == before[rank],
           Text("47: ", before[rank], " had rank ", rank, " and has another one in ", name));
  }
  const JobSpec& spec = specs_[proposed.job];
  const bool full = static_cast<int>(placed.size()) >= spec.max_nodes || spec.unit > 1;
  if (proposed.elective || full || spec.origin == JobOrigin::kLaunched) return;
  for (const NodeId& node : before)
    Expect(std::find(placed.begin(), placed.end(), node) != placed.end() ||
               MayBeLeftOut(node, previous, proposed.generation),
           Text("50: ", node, " is free and not in ", name));
}

// Why a survivor may not be in the next generation: it cannot be, or its job need not trust it.
bool Checker::MayBeLeftOut(const NodeId& id, const GenerationId& previous, Generation next) const {
  const JobId& job = previous.first;
  const Node* node = node_of(id);
  auto lost = lost_.find(id);
  auto excluded = excluded_.find(job);
  if (node == nullptr || !node->attached() || !open_sessions_.contains(id)) return true;
  if ((lost != lost_.end() && lost->second) || leaving_.contains(id) || queued_.contains(job))
    return true;
  if (excluded != excluded_.end() && excluded->second.contains(id)) return true;
  if (lost_at_.contains(id) || struck_nodes_.contains(id)) return true;  // It may be on trial.
  // Until one runs that it is in, what was held against it still is.
  const auto ran = [&](const GenerationId& generation) {
    const auto of = running_.find(generation);
    return of != running_.end() && of->second.contains(id) && members_.contains(generation) &&
           of->second.size() == members_.at(generation).size();
  };
  GenerationId since = previous;
  while (since.second > Generation(0) && !ran(since))
    since.second = Generation(since.second.value() - 1);
  for (const auto& [proposal, members] : placed_) {
    const bool has = std::find(members.begin(), members.end(), id) != members.end();
    const bool voided = !members_.contains(proposal) && proposal.second > since.second;
    // A proposal that was voided, perhaps for it; or another job, which may hold its slots.
    if (has && (proposal.first != job || (voided && proposal.second < next))) return true;
  }
  auto shown = shown_.find(id);
  if (shown == shown_.end()) return true;
  for (const auto& [shown_job, groups] : shown->second)
    for (const auto& group : groups)
      if (group.second != Phase::kFree && group.second != Phase::kRetired) return true;
  return false;
}

// 52. Ranks are said to have kept their process that have. One that dies as its shim is handed over
// or as it is told to go on may be among them: its agent hears of that later.
void Checker::CheckKept(const JobId& job, const GenerationRunning& running) {
  int kept = 0, taken_over = 0;
  for (const NodeId& id : members_[{job, running.generation}]) {
    const Node* node = node_of(id);
    const auto groups = node->groups().find(job);
    if (groups == node->groups().end() || !groups->second.contains(running.generation)) return;
    const Group& group = groups->second.at(running.generation);
    taken_over += group.taken_over;
    for (const Rank& rank : group.ranks) kept += rank.kept ? 1 : 0;
  }
  Expect(kept <= running.kept && running.kept <= taken_over,
         Text("52: ", running.kept, " ranks are said to be kept in ", job, " generation ",
              running.generation, ", and ", kept, " are of ", taken_over, " that were there"));
}

// 51. Unless what it grows into was given up, or its workers have saved and wait to be stopped.
void Checker::CheckEarly(const SendOrder& send) {
  const Stop& stop = *send.order.stop;
  const JobId& job = send.order.job;
  const GenerationId next{job, growing_[job]};
  if (stop.reason != StopReason::kElective || judged_.contains(job)) return;
  if (next.second <= stop.up_to || decided_over_.contains(next)) return;
  auto running = members_.upper_bound({job, stop.up_to});
  if (running == members_.begin() || (--running)->first.first != job) return;
  if (saved_.contains(running->first)) return;
  for (const NodeId& node : placed_[next])
    Expect(running->second.contains(node) || acked_[next].contains(node),
           Text("51: ", job, " generation ", stop.up_to, " is stopped before ", node,
                " is ready for ", next.second));
}

}  // namespace regroup::sim
