// What a job's rows allow it: budgets, waits, and who may be in what comes next.

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

constexpr Duration kMargin = std::chrono::seconds(1);          // Of waits that are looked at later.
constexpr Duration kInFlight = std::chrono::milliseconds(50);  // Network and commit.

template <class T>
const T* RowIn(const std::map<Key, Value>& rows, const Key& key) {
  auto found = rows.find(key);
  return found == rows.end() ? nullptr : std::get_if<T>(&found->second);
}

// A generation that the job's own end has stopped, not by a verdict about it.
bool EndedWithJob(const EndReason& reason) {
  return std::holds_alternative<Cancelled>(reason) ||
         std::holds_alternative<regroup::Finished>(reason);
}

int WorkersOf(const JobSpec& spec, const Node& node) {
  return spec.workers_per_node == kWorkerPerGpu ? node.options().slots : spec.workers_per_node;
}

}  // namespace

// What the verdicts of a job cost it, open ones as things stand.
Checker::Spent Checker::SpentBy(const Judged& judged, const JobId& job) const {
  Spent spent;
  const auto known = judged.find(job);
  if (known == judged.end()) return spent;
  for (const auto& [generation, row] : known->second) {
    spent.charges += row.verdict_open ? ChargesBudget(*row.ended) : row.charged;
    spent.preemptions += std::holds_alternative<Preempted>(*row.ended);
    if (row.verdict_open && ChargesBudget(*row.ended) &&
        std::any_of(row.members.begin(), row.members.end(), [&](const GenerationMember& member) {
          const auto lost = lost_.find(member.node);
          return lost != lost_.end() && lost->second;
        }))
      ++spent.of_generations_with_a_loss;
  }
  return spent;
}

// 56. Nothing is proposed that open verdicts will forbid if nothing worse is told. The row of a
// generation that has ended does not tell of a member that was lost after that, before its verdict.
void Checker::CheckBudget(const GenerationRow& proposed) {
  const auto spec = specs_.find(proposed.job);
  if (proposed.elective || spec == specs_.end()) return;
  const Spent spent = SpentBy(judging_, proposed.job);
  const std::string name = Text(proposed.job, " generation ", proposed.generation);
  const int charges = spent.charges - spent.of_generations_with_a_loss;
  Expect(spec->second.restart_window || charges <= spec->second.max_restarts,
         Text("56: ", name, " is proposed after ", charges, " charges"));
  Expect(spent.preemptions <= spec->second.max_preemptions.value_or(spent.preemptions),
         Text("56: ", name, " is proposed after ", spent.preemptions, " preemptions"));
}

// 55. A rank that still ran beside the next generation could write over its checkpoints. What has
// retired trains no more; it may have to stop after all, for a notice of its node, say.
void Checker::CheckAllStopped(const GenerationRow& proposed, Instant now) {
  auto last = decided_formed_.lower_bound({proposed.job, proposed.generation});
  if (proposed.elective || last == decided_formed_.begin()) return;
  const GenerationId previous = *--last;
  if (previous.first != proposed.job) return;
  const auto due = stop_due_.find(previous);
  const bool first = std::next(placed_.find(previous))->first.second == proposed.generation;
  if (!first || due == stop_due_.end() || now >= due->second + config.ending.stop_margin) return;
  for (const NodeId& node : placed_[previous]) {
    // One that was lost as the generation ended is not waited for.
    const auto began = began_[previous].find(node);
    const bool lost = lost_last_.contains(node) &&
                      (began == began_[previous].end() || lost_last_[node] >= began->second);
    if (!open_sessions_.contains(node) || lost || retired_[node].contains(previous)) continue;
    const auto& groups = shown_[node][proposed.job];
    const auto shown = groups.find(previous.second);
    Expect(shown == groups.end() || shown->second == Phase::kFree ||
               shown->second == Phase::kUnkillable,
           Text("55: generation ", proposed.generation, " of ", proposed.job, " is proposed while ",
                node, " still stops ", previous.second));
  }
}

// 53. Who could not execute the program is in no later generation, unless it is in the one that
// runs and can by now; what stood in the way of two is the program's.
void Checker::CheckAble(const GenerationRow& proposed) {
  const auto unable = unable_.find(proposed.job);
  if (unable == unable_.end()) return;
  const GenerationId running{proposed.job, formed_[proposed.job]};
  for (const GenerationMember& member : proposed.members)
    Expect(!unable->second.contains(member.node) ||
               (proposed.elective && IsMember(running, member.node)),
           Text("53: ", member.node, " could not execute the program of ", proposed.job));
}

void Checker::OnClosed(const GenerationRow& closed) {
  const auto* failed = std::get_if<ExecFailed>(&*closed.ended);
  if (failed == nullptr) return;
  const RankExit& exit = failed->cause.exit;
  for (const GenerationMember& member : closed.members)
    if (member.name == failed->cause.node)
      unable_[closed.job][member.node] = {exit.code, exit.obstacle};
}

// 53, and 54: ends in a row without progress are counted, each kind by itself. 64. So are
// generations after the first.
void Checker::CheckCounts(const std::map<Key, Value>& before, const std::vector<Row>& batch) {
  for (const Row& row : batch) {
    const auto* state = row.value ? std::get_if<JobStateRow>(&*row.value) : nullptr;
    if (state == nullptr) continue;
    const JobId& job = state->job;
    const auto* was = RowIn<JobStateRow>(before, row.key);
    int own = was ? was->ends.own : 0, free = was ? was->ends.free : 0;
    for (const auto& [generation, past] : ended_[job]) {
      const auto* known = RowIn<GenerationRow>(before, GenerationKey(job, generation));
      const bool closed = known != nullptr && !past.verdict_open && !past.voided &&
                          (known->phase != GenerationPhase::kOver || known->verdict_open);
      if (!closed || EndedWithJob(*past.ended)) continue;
      if (past.progressed) own = free = 0;
      if (ChargesBudget(*past.ended)) {
        ++own;
      } else if (!std::holds_alternative<Preempted>(*past.ended) &&
                 !std::holds_alternative<Resized>(*past.ended)) {
        ++free;
      }
    }
    // Nobody counts on for a job that is over.
    Expect(state->verdict || (state->ends.own == own && state->ends.free == free),
           Text("54: ", job, " counts ", state->ends.own, " and ", state->ends.free,
                " ends in a row, which are ", own, " and ", free));
    const int again = std::max(0, formed_of_[job] - 1);
    Expect(state->regroups == again,
           Text("64: ", job, " counts ", state->regroups, " regroups of ", again));
    std::map<std::pair<int, ExecObstacle>, int> same;
    for (const auto& unable : unable_[job])
      Expect(++same[unable.second] < 2 || unable.second.first != ENOENT || verdicts_.contains(job),
             Text("53: ", job, " goes on though two nodes could not execute its program"));
  }
}

// 58. A launch whose nodes are all gone may be typed again in time; one that notices have ended too
// often has failed.
void Checker::CheckPreempted(const JobId& job, Instant now) {
  const auto spec = specs_.find(job);
  if (spec == specs_.end()) return;
  const int preemptions = SpentBy(judging_, job).preemptions;
  Expect(preemptions <= spec->second.max_preemptions.value_or(preemptions),
         Text("58: ", job, " is preempted after ", preemptions, " preemptions"));
  std::optional<Instant> lost;
  for (const auto& [node, launch] : launches_) {
    if (launch.job != job || launch.left || leaving_.contains(node)) continue;
    const auto when = lost_when_.find(node);
    Expect(when != lost_when_.end(), Text("58: ", job, " is preempted, and ", node, " is there"));
    if (when != lost_when_.end()) lost = std::max(lost.value_or(Instant{}), when->second);
  }
  Expect(!lost || standalone_.contains(job) || now >= *lost + config.holds.orphan,
         Text("58: ", job, " is preempted as soon as it has lost all its nodes"));
}

// 59. Ranks that failed without progress a second time in a row may have been kept once too often.
void Checker::CheckAnew(const JobId& job, const GenerationRunning& running) {
  const auto ends = ended_.find(job);
  if (running.kept == 0 || ends == ended_.end()) return;
  auto end = std::make_reverse_iterator(ends->second.lower_bound(running.generation));
  while (end != ends->second.rend() && end->second.voided) ++end;
  if (end == ends->second.rend()) return;
  const auto told = stop_reasons_.find({job, end->first});
  if (told == stop_reasons_.end() || told->second.first != StopReason::kFailure) return;
  // Of those that ran for so long a first step may have been told after they were told to stop.
  const GenerationId id{job, end->first};
  bool progressed = end->second.progressed;
  for (const auto& began : began_[id])
    progressed |= told->second.second - began.second >= config.retries.silent_progress;
  for (++end; end != ends->second.rend() && !progressed; ++end) {
    if (end->second.voided) continue;
    progressed = end->second.progressed;
    if (KindOf(*end->second.ended) != EndKind::kNeutral) break;
  }
  Expect(progressed, Text("59: ", running.kept, " ranks of ", job, " generation ",
                          running.generation, " were kept through a second failure"));
}

// 60. Of members that fell silent the cause is who did so first.
void Checker::CheckFirstSilent(const GenerationRow& closed, const NodeLost& lost) {
  const GenerationId id{closed.job, closed.generation};
  const auto cause = std::find_if(closed.members.begin(), closed.members.end(),
                                  [&](const auto& member) { return member.name == lost.node; });
  if (lost.how != "silent" || cause == closed.members.end()) return;
  // Whoever was lost later may have been free before.
  const auto since = [&](const NodeId& node) -> std::optional<Instant> {
    const auto silent = silent_since_.find(node);
    const auto noticed = noticed_.find(id);
    if (silent == silent_since_.end() || noticed == noticed_.end()) return std::nullopt;
    if (lost_when_[node] > noticed->second) return std::nullopt;
    return silent->second;
  };
  const std::optional<Instant> first = since(cause->node);
  for (const GenerationMember& member : closed.members) {
    const std::optional<Instant> other = since(member.node);
    Expect(!first || !other || *first <= *other + kInFlight,
           Text("60: ", closed.job, " generation ", closed.generation, " ended for ", lost.node,
                ", and ", member.name, " had fallen silent before it"));
  }
}

// 61. The slots of a node: what other jobs have there, were asked for and not answered, and this
// one.
void Checker::CheckRoom(const GenerationRow& proposed) {
  for (const GenerationMember& member : proposed.members) {
    const Node* node = node_of(member.node);
    if (node == nullptr || node->options().launched) continue;
    std::map<JobId, int> taken;
    for (const auto& [job, groups] : shown_[member.node])
      for (const auto& group : groups)
        if (group.second != Phase::kFree && specs_.contains(job))
          taken[job] = WorkersOf(specs_[job], *node);
    for (const auto& [job, asked] : preparing_[member.node]) taken[job] = asked.second;
    taken[proposed.job] = member.workers;
    if (const auto spec = specs_.find(proposed.job); spec != specs_.end()) {
      const bool of_gpus = spec->second.workers_per_node == kWorkerPerGpu;
      Expect(member.workers == WorkersOf(spec->second, *node) &&
                 (!of_gpus || node->options().gpu_slots),
             Text("61: ", proposed.job, " generation ", proposed.generation, " has ",
                  member.workers, " ranks on ", member.node));
    }
    int slots = 0;
    for (const auto& entry : taken) slots += entry.second;
    Expect(slots <= node->options().slots,
           Text("61: ", proposed.job, " generation ", proposed.generation, " wants ",
                member.workers, " slots of ", member.node, ", where ", slots, " are wanted"));
  }
}

void Checker::CheckSent(const SendOrder& send, Instant now) {
  const Order& order = send.order;
  const NodeId& node = sessions_[send.session];
  if (order.prepare && !shown_[node][order.job].contains(order.prepare->generation))
    preparing_[node][order.job] = {order.number, order.prepare->spec.workers};
  if (order.stop && !order.stop->in_place) {
    Generation& ended = told_to_end_[send.session][order.job];
    ended = std::max(ended, order.stop->up_to);
  }
  if (order.notice) {
    const Instant until = now + order.notice->left;
    const auto [told, first] =
        notices_.try_emplace({node, {order.job, order.notice->generation}}, until);
    Expect(until <= std::max(told->second, now) + kInFlight,
           Text("69: ", node, " is told that workers of ", order.job, " have ",
                Seconds(until - told->second), " s more"));
    told->second = std::min(told->second, until);
  }
  if (!order.run) return;
  told_to_run_[send.session].insert({order.job, order.run->generation});
  const auto shown = shown_[node][order.job].find(order.run->generation);
  Expect(shown != shown_[node][order.job].end() && shown->second != Phase::kPreparing,
         Text("65: ", node, " is told to run ", order.job, " generation ", order.run->generation,
              ", which it has not prepared"));
}

// 68. Of a member that is ready in its present session, and could always be reached in it.
void Checker::CheckToldAgain(const GenerationRow& closed, const StartTimedOut& late, Instant now) {
  const GenerationId id{closed.job, closed.generation};
  for (const GenerationMember& member : closed.members) {
    const auto session = open_sessions_.find(member.node);
    if (member.name != late.node || session == open_sessions_.end()) continue;
    if (now < welcomed_[session->second] + kMargin + stalled_) continue;
    const auto& groups = shown_[member.node][id.first];
    const auto shown = groups.find(id.second);
    Expect(shown == groups.end() || shown->second != Phase::kPrepared ||
               told_to_run_[session->second].contains(id),
           Text("68: ", member.node, " was not told again to run ", id.first, " generation ",
                id.second));
  }
}

// 70.
void Checker::CheckLeftOut(const GenerationRow& formed) {
  for (const auto& [node, session] : open_sessions_) {
    const bool member = std::any_of(formed.members.begin(), formed.members.end(),
                                    [&, id = node](const auto& m) { return m.node == id; });
    if (member) continue;
    for (const auto& [generation, phase] : shown_[node][formed.job])
      Expect(phase != Phase::kRetired || generation >= formed.generation ||
                 told_to_end_[session][formed.job] >= generation,
             Text("70: ", node, " has retired from ", formed.job, " generation ", generation,
                  " and may live on beside ", formed.generation));
  }
}

// 71. Steps of a job may speak for a node for a while; a brake holds all back.
void Checker::CheckSilence(const Effects& effects, Instant now) {
  for (const Note& note : effects.notes)
    if (note.what.starts_with("many nodes fell silent")) brake_until_ = now + config.brake.lasts;
  const Duration believed = lease + config.holds.unreachable + 2 * kMargin + stalled_;
  if (now < brake_until_ + believed || now < started_ + believed) return;
  for (const auto& [node, session] : open_sessions_)
    Expect(now < std::max(heard_[node], welcomed_[session]) + believed,
           Text("71: nothing was heard of ", node, " for ", Seconds(now - heard_[node]), " s"));
}

// 66. Its name may be used again.
void Checker::CheckPurged(const std::string& folder) {
  for (const auto& [id, jobs] : shown_)
    for (const auto& [job, groups] : jobs)
      for (const auto& group : groups)
        Expect(JobFolder(job) != folder || !open_sessions_.contains(id) ||
                   group.second == Phase::kFree,
               Text("66: ", job, " is purged, and ", id, " has its generation ", group.first));
}

// What a job is said to wait for. 56. A verdict that could end it. 62. The return of a generation
// that nobody has proved dead. 63. More nodes, which it does not hold its own for longer than it
// may.
void Checker::CheckWait(const JobView& view) {
  const auto spec = specs_.find(view.id);
  if (!view.why || spec == specs_.end()) return;
  const Spent spent = SpentBy(ended_, view.id);
  if (std::holds_alternative<BudgetVerdictOpen>(*view.why))
    Expect(spent.charges > spec->second.max_restarts ||
               spent.preemptions > spec->second.max_preemptions.value_or(spent.preemptions),
           Text("56: ", view.id, " waits for a verdict that it can afford"));
  if (std::holds_alternative<UnreachableHold>(*view.why)) {
    const GenerationId id{view.id, view.generation};
    std::set<NodeId> done;
    for (const Exit& exit : exits_[id])
      if (exit.ended.kind == ExitKind::kExited && exit.ended.code == 0) done.insert(exit.node);
    const auto members = members_.find(id);
    for (const NodeId& node : members == members_.end() ? std::set<NodeId>{} : members->second)
      Expect(!dead_.contains(node) || done.contains(node),
             Text("62: ", view.id, " is held, and ", node, " is known to be dead"));
  }
  const auto* below = std::get_if<BelowMinimum>(&*view.why);
  const bool holds = view.state == "regrouping" && spec->second.origin != JobOrigin::kLaunched;
  if (below != nullptr && holds && stalled_ == Duration{})
    Expect(below->since <= config.holds.nodes + kMargin,
           Text("63: ", view.id, " holds its nodes for ", Seconds(below->since), " s"));
}

// 72. Of the one that ended its job, until that is purged, which the caller is told.
void Checker::OnCancelAnswered(const std::string& key, bool accepted) {
  Expect(accepted || !cancels_.contains(key), Text("72: ", key, " was accepted before"));
}

}  // namespace regroup::sim
