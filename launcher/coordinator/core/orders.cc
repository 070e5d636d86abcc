#include "launcher/coordinator/core/orders.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "launcher/coordinator/core/actions.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/node.h"
#include "launcher/coordinator/core/node_in_job.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {
namespace {

// Counted once for each generation: with it, telling a gang of N members to run costs
// N, not N squared.
GroupShape ShapeOf(const GenerationRow& row) {
  GroupShape shape;
  shape.first_ranks.reserve(row.members.size());
  for (const GenerationMember& member : row.members) {
    shape.first_ranks.push_back(shape.world);
    shape.world += member.workers;
    shape.many_hosts = shape.many_hosts || member.address != row.members[0].address;
  }
  return shape;
}

Generation Before(Generation generation) { return Generation(generation.value() - 1); }

bool IsMember(const Job& job, const GenerationRow* row, const NodeId& node) {
  if (row == nullptr) return false;
  auto soft = job.soft.find(row->generation);
  return soft != job.soft.end() && soft->second.members.contains(node);
}

// The highest number of which nothing may run on this node.
Generation StopUpTo(const Job& job, const Node& node) {
  const JobPhase phase = job.state.phase;
  const bool over =
      phase == JobPhase::kEnding || phase == JobPhase::kEnded || phase == JobPhase::kPreempted;
  const GenerationRow *formed = FormedOf(job), *next = ProposedOf(job);
  if (!over && IsMember(job, formed, node.row.node) && !IsEnding(job))
    return Before(formed->generation);
  // The group that it prepares is spared; whatever is older goes.
  if (!over && IsMember(job, next, node.row.node)) return Before(next->generation);
  return job.state.last_number;
}

// Whether ranks that retire on this node may become ranks of the next generation. Once it is known
// that they will not, what has retired is ended.
bool KeepsRanks(const Job& job, const Node& node) {
  const JobPhase phase = job.state.phase;
  const bool between = phase == JobPhase::kRegrouping || IsEnding(job);
  if (!KeepsRetired(job) || job.state.verdict || !between) return false;
  if (IsLeaving(job, node) || IsExcluded(job, node.row.node)) return false;
  const GenerationRow* next = ProposedOf(job);
  return next == nullptr || IsMember(job, next, node.row.node);
}

void AddStop(const State& state, const Job& job, const Node& node, Order& order, SentOrder* key) {
  const Generation up_to = StopUpTo(job, node);
  if (up_to == Generation()) return;
  bool needed = false;
  if (auto groups = node.groups.find(job.id()); groups != node.groups.end()) {
    for (const auto& entry : groups->second)
      needed = needed || (entry.first <= up_to && entry.second.phase != Phase::kFree);
  }
  auto sent = node.orders.sent.find(
      job.id());  // A Prepare on its way, or a stop that was asked for already.
  if (sent != node.orders.sent.end() && node.orders.unanswered.contains(job.id()))
    needed = needed || (sent->second.prepare > Generation() && sent->second.prepare <= up_to) ||
             sent->second.stop > Generation();
  if (!needed) return;
  key->stop = up_to;
  if (job.stop && job.stop->up_to <= up_to) {
    const Instant deadline = job.stop->deadline;
    key->stop_reason = job.stop->reason;
    // The deadline as an instant: an order that repeats the same one in other words
    // is not sent again.
    key->stop_deadline = deadline;
    order.stop = Stop{up_to, std::max(deadline - state.now, Duration{}), job.stop->reason};
  } else {
    key->stop_reason = StopReason::kSuperseded;
    order.stop = Stop{up_to, state.config.ending.failure_grace, StopReason::kSuperseded};
  }
  key->stop_in_place = order.stop->in_place = KeepsRanks(job, node);
}

// Everything about this generation that its agents could tell is durable.
bool IsClosed(const Job& job, Generation generation) {
  return !job.soft.contains(generation) && job.state.phase != JobPhase::kEnding;
}

void AddForget(const Job& job, const Node& node, Order& order, SentOrder* key) {
  auto groups = node.groups.find(job.id());
  if (groups == node.groups.end()) return;
  for (const auto& entry : groups->second) {
    // In order, without gaps: Forget means everything up to a number.
    if (entry.second.phase != Phase::kFree || !IsClosed(job, entry.first)) break;
    key->forget = entry.first;
  }
  if (key->forget > Generation()) order.forget = Forget{key->forget};
}

Prepare PrepareOf(const Job& job, const GenerationRow& row, int group_rank) {
  const GenerationMember& mine = row.members[group_rank];
  Prepare prepare;
  prepare.generation = row.generation;
  prepare.spec = GroupSpec{mine.workers, job.spec.spec};
  prepare.host_store = group_rank == 0;
  prepare.advertise = mine.address;
  if (!prepare.host_store) return prepare;
  std::set<std::string> addresses;
  for (const GenerationMember& member : row.members) addresses.insert(member.address);
  prepare.store_members.assign(addresses.begin(), addresses.end());
  return prepare;
}

Run RunOf(const Job& job, const GenerationRow& row, const GroupShape& shape, int group_rank) {
  Run run;
  run.generation = row.generation;
  run.store = row.store.value_or(Address{});
  run.group_rank = group_rank;
  run.group_size = static_cast<int>(row.members.size());
  run.world_size = shape.world;
  run.many_hosts = shape.many_hosts;
  for (int local = 0; local < row.members[group_rank].workers; ++local)
    run.mine.push_back({local, shape.first_ranks[group_rank] + local});
  run.restart_count = row.restart_count;
  run.max_restarts = job.spec.spec.max_restarts;
  run.resume_step = row.resume_step;
  return run;
}

Order DesiredOrder(const State& state, Job& job, const Node& node, SentOrder* key) {
  Order order;
  order.job = job.id();
  AddForget(job, node, order, key);
  AddStop(state, job, node, order, key);
  if (job.state.verdict) return order;
  if (const GenerationRow* next = ProposedOf(job); IsMember(job, next, node.row.node)) {
    const GenerationSoft& soft = job.soft.at(next->generation);
    const Proposed& proposed = As<Proposed>(soft);
    if (proposed.asked.contains(node.row.node) && !proposed.recovered) {
      key->prepare = next->generation;
      order.prepare = PrepareOf(job, *next, soft.members.at(node.row.node));
    }
  }
  const GenerationRow* row = FormedOf(job);
  if (!IsMember(job, row, node.row.node)) return order;
  Formed* formed = In<Formed>(job, row->generation);
  if (formed == nullptr) return order;
  const GroupReport* shown = Shown(node, job.id(), row->generation);
  // A member that came back without its group is not told to run what it has not prepared.
  const bool may_run = shown && shown->phase != Phase::kPreparing;
  if (may_run && !formed->course.causes.known()) {
    key->run = row->generation;
    if (!formed->shape) formed->shape = ShapeOf(*row);
    const int group_rank = job.soft.at(row->generation).members.at(node.row.node);
    order.run = RunOf(job, *row, *formed->shape, group_rank);
  }
  if (formed->saving && formed->course.progress.spoke) {
    key->notice = row->generation;
    order.notice =
        WorkerNotice{row->generation, std::max(formed->saving->until - state.now, Duration{})};
  }
  return order;
}

// The last group of this job on this node was shown free: nothing stays taken there.
void ClearTaken(Step& step, const Job& job, Node& node) {
  const auto held = [&](const TakenSlots& taken) { return taken.job == job.id(); };
  if (std::none_of(node.row.taken.begin(), node.row.taken.end(), held)) return;
  NodeRow row = node.row;
  std::erase_if(row.taken, held);
  step.Put(std::move(row));
}

void SendOrderTo(Step& step, Job& job, Node& node) {
  SentOrder key;
  Order order = DesiredOrder(step.state, job, node, &key);
  auto sent = node.orders.sent.find(job.id());
  const bool empty = key == SentOrder{};
  // What was asked for last is still asked for, or nothing is and nothing was.
  if (sent != node.orders.sent.end() ? sent->second == key : empty) return;
  if (!empty) {
    node.orders.last = node.orders.last.Next();
    key.number = order.number = node.orders.last;
    // Until its agent answers, the slots count as taken (SlotsFree).
    if (order.prepare && Shown(node, job.id(), order.prepare->generation) == nullptr)
      node.orders.unanswered[job.id()] = order.prepare->generation;
    step.state.SlotsChanged(node);
    step.Do(SendOrder{node.attached()->session, std::move(order)});
  }
  node.orders.sent[job.id()] = key;
  if (key.forget == Generation()) return;
  // Nobody asks for it any more; were the order lost, the next Hello would show it again.
  auto groups = node.groups.find(job.id());
  if (groups == node.groups.end()) return;
  std::erase_if(groups->second, [&](const auto& entry) { return entry.first <= key.forget; });
  step.state.SlotsChanged(node);
  if (!groups->second.empty()) return;
  node.groups.erase(groups);
  const bool member = std::any_of(job.soft.begin(), job.soft.end(), [&](const auto& entry) {
    return entry.second.members.contains(node.row.node);
  });
  // Nothing of the job is left here and nothing will come: the node need not look at it again.
  if (member || node.orders.unanswered.contains(job.id())) return;
  Untouch(job, node);
  ClearTaken(step, job, node);
}

// An id of this journal that is no job's any more: purged while a group of it was out of sight, on
// a node that an operator had forgotten. An id that it never gave is none of its business.
bool WasPurged(const State& state, const JobId& id) {
  const std::string& text = id.value();
  const std::size_t dash = text.rfind('-');
  std::uint64_t sequence = 0;
  if (dash == std::string::npos || !absl::SimpleAtoi(text.substr(dash + 1), &sequence))
    return false;
  return sequence > 0 && !state.index.by_sequence.empty() &&
         sequence < state.index.by_sequence.rbegin()->first &&
         !state.index.by_sequence.contains(sequence);
}

}  // namespace

void FlushOrders(Step& step) {
  std::size_t nodes = 0;
  for (const JobId& id : step.state.agenda.orders_dirty)
    if (const Job* job = step.state.FindJob(id)) nodes += job->nodes.order_dirty.size();
  step.WillDo(nodes);
  for (const JobId& id : step.state.agenda.orders_dirty) {
    Job* job = step.state.FindJob(id);
    if (job == nullptr) continue;
    for (const NodeId& node : job->nodes.order_dirty) {
      Node* known = step.state.FindNode(node);
      if (known && known->attached()) SendOrderTo(step, *job, *known);
    }
    job->nodes.order_dirty.clear();
  }
  step.state.agenda.orders_dirty.clear();
}

bool StopUnknown(Step& step, Node& node, const JobId& id) {
  auto found = node.groups.find(id);
  if (found == node.groups.end() || !WasPurged(step.state, id)) return false;
  Order order;
  order.job = id;
  bool all_free = true;
  Generation newest;
  for (const auto& [generation, report] : found->second) {
    newest = std::max(newest, generation);
    all_free = all_free && report.phase == Phase::kFree;
  }
  SentOrder key;
  if (all_free) {
    key.forget = newest;
    order.forget = Forget{newest};
  } else {
    key.stop = newest;
    order.stop = Stop{newest, step.config().ending.failure_grace, StopReason::kSuperseded};
  }
  auto sent = node.orders.sent.find(id);
  if (sent == node.orders.sent.end() || !(sent->second == key)) {
    step.Say(Severity::kWarning, "a group of a job that is not kept any more is ended",
             {{"node", node.row.name}, {"job", id.value()}});
    node.orders.last = node.orders.last.Next();
    key.number = order.number = node.orders.last;
    step.Do(SendOrder{node.attached()->session, std::move(order)});
    node.orders.sent[id] = key;
  }
  if (all_free) {  // Were the order lost, the next Hello would show it again.
    node.groups.erase(found);
    node.orders.sent.erase(id);
    step.state.SlotsChanged(node);
  }
  return true;
}

}  // namespace regroup::coordinator
