#include "tests/sim/checker.h"

#include <algorithm>
#include <sstream>
#include <utility>

namespace regroup::sim {
using namespace coordinator;  // NOLINT: rows are all this file is about.

namespace {

constexpr Duration kInFlight = std::chrono::milliseconds(50);  // Network and start of a rank.

template <class T>
const T* RowBefore(const std::map<Key, Value>& rows, const Key& key) {
  auto found = rows.find(key);
  return found == rows.end() ? nullptr : std::get_if<T>(&found->second);
}

template <class... Args>
std::string Text(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

bool MayFollow(JobPhase from, JobPhase to) {
  if (from == to) return true;
  switch (from) {
    case JobPhase::kQueued:
    case JobPhase::kGathering:
      return to == JobPhase::kForming || to == JobPhase::kRegrouping ||
             to == JobPhase::kPreempted || to == JobPhase::kEnding || to == JobPhase::kEnded;
    case JobPhase::kForming:
    case JobPhase::kRunning:
    case JobPhase::kRegrouping: return true;
    case JobPhase::kPreempted:
      return to == JobPhase::kGathering || to == JobPhase::kForming ||  // In one step.
             to == JobPhase::kRegrouping || to == JobPhase::kEnding || to == JobPhase::kEnded;
    case JobPhase::kEnding: return to == JobPhase::kEnded;
    case JobPhase::kEnded: return false;
  }
  return false;
}

bool SameRows(const std::vector<Row>& a, const std::vector<Row>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].key != b[i].key || a[i].value->index() != b[i].value->index()) return false;
    if (EstimateBytes(a[i]) != EstimateBytes(b[i])) return false;
    const auto *x = std::get_if<NodeRow>(&*a[i].value), *y = std::get_if<NodeRow>(&*b[i].value);
    if (x && y && !(*x == *y)) return false;
    const auto *s = std::get_if<JobStateRow>(&*a[i].value),
               *t = std::get_if<JobStateRow>(&*b[i].value);
    if (s && t &&
        (s->phase != t->phase || s->last_number != t->last_number ||
         s->restarts_charged != t->restarts_charged))
      return false;
  }
  return true;
}

}  // namespace

void Checker::Expect(bool condition, const std::string& what) {
  if (!condition && violations.size() < 20) violations.push_back(what);
}

void Checker::OnCoordinatorStart(Instant now, Epoch epoch) {
  epoch_ = epoch;
  seen_ = false;
  lost_.clear();
  started_ = now;
}

// 1. No two coordinators write, or are seen, under one epoch. One that dies before its epoch is
// durable was never there.
void Checker::OnCoordinatorSeen() {
  if (std::exchange(seen_, true)) return;
  Expect(epoch_ > seen_epoch_, Text("1: epoch ", epoch_, " after ", seen_epoch_));
  seen_epoch_ = std::max(seen_epoch_, epoch_);
}

// 31. Recovery is the fold of the durable rows.
void Checker::OnRecovery(const std::vector<Row>& durable, const std::vector<Row>& recovered) {
  Expect(SameRows(durable, recovered), "31: recovered state is not the fold of the durable rows");
}

void Checker::OnDecided(const std::map<Key, Value>& durable, const std::vector<Row>& batch,
                        Instant now) {
  for (const Row& row : batch) {
    const auto* node = row.value ? std::get_if<NodeRow>(&*row.value) : nullptr;
    if (node == nullptr) continue;
    const auto* before = RowBefore<NodeRow>(durable, row.key);
    auto [lost, fresh] = lost_.try_emplace(node->node, before != nullptr && before->lost);
    if (!lost->second && node->lost) CheckLost(*node, now);
    lost->second = node->lost;
  }
}

void Checker::OnCommit(const std::map<Key, Value>& before, const std::vector<Row>& batch) {
  if (!batch.empty()) OnCoordinatorSeen();
  Expect(batch.size() <= kMaxRowsPerStep, Text("a step wrote ", batch.size(), " rows"));
  for (const Row& row : batch) {
    if (!row.value) continue;
    if (const auto* spec = std::get_if<JobSpecRow>(&*row.value)) {
      Expect(!specs_.contains(spec->job), Text("26: ", spec->job, " was admitted twice"));
      specs_[spec->job] = spec->spec;
    } else if (const auto* state = std::get_if<JobStateRow>(&*row.value)) {
      CheckState(RowBefore<JobStateRow>(before, row.key), *state);
    } else if (const auto* generation = std::get_if<GenerationRow>(&*row.value)) {
      CheckGeneration(RowBefore<GenerationRow>(before, row.key), *generation);
    } else if (const auto* commit = std::get_if<CommitRow>(&*row.value)) {
      CheckCommitRow(RowBefore<CommitRow>(before, row.key), *commit);
    } else if (const auto* event = std::get_if<JobEventRow>(&*row.value)) {
      std::uint64_t& last = last_event_[event->job];  // 30. Gap-free.
      Expect(event->event.number == last + 1,
             Text("30: event ", event->event.number, " of ", event->job, " after ", last));
      last = event->event.number;
      const auto* ended = std::get_if<JobEnded>(&event->event.body);
      if (ended && ended->state != "preempted")
        Expect(++ends_[event->job] == 1, Text("27: ", event->job, " ended twice"));
    }
  }
}

// 27. Along the graph, verdicts final. 35. Counted restarts within the budget.
void Checker::CheckState(const JobStateRow* before, const JobStateRow& after) {
  const JobSpec& spec = specs_[after.job];
  if (!spec.restart_window)
    Expect(after.restarts_charged <= spec.max_restarts,
           Text("35: ", after.job, " charged ", after.restarts_charged, " of ", spec.max_restarts));
  if (before == nullptr) return;
  Expect(MayFollow(before->phase, after.phase),
         Text("27: ", after.job, " from phase ", static_cast<int>(before->phase), " to ",
              static_cast<int>(after.phase)));
  Expect(after.last_number >= before->last_number, Text("3: numbers of ", after.job, " fell"));
  Expect(after.restarts_charged >= before->restarts_charged,
         Text("35: charges of ", after.job, " fell"));
  if (before->verdict) {
    const bool same = after.verdict && after.verdict->state == before->verdict->state &&
                      after.verdict->exit_code == before->verdict->exit_code;
    Expect(same, Text("27: the verdict of ", after.job, " changed"));
  }
}

// 3. Numbers rise and are never used twice. 4. One formed generation. 6. World within bounds. 7.
// Every member acked.
void Checker::CheckGeneration(const GenerationRow* before, const GenerationRow& after) {
  const std::string name = Text(after.job, " generation ", after.generation);
  if (before == nullptr) {
    Expect(after.phase == GenerationPhase::kProposed, "3: " + name + " was not proposed first");
    Expect(after.generation > proposed_[after.job], "3: " + name + " was used before");
    proposed_[after.job] = after.generation;
  } else {
    bool same = before->members.size() == after.members.size();
    for (std::size_t i = 0; same && i < after.members.size(); ++i)
      same = before->members[i].node == after.members[i].node;
    Expect(same, "5: members of " + name + " changed");
    Expect(before->phase <= after.phase, "3: " + name + " went back");
  }
  if (after.phase == GenerationPhase::kOver && formed_[after.job] == after.generation)
    formed_[after.job] = Generation();
  if (after.phase != GenerationPhase::kFormed ||
      (before && before->phase == GenerationPhase::kFormed))
    return;
  Expect(formed_[after.job] == Generation(),
         Text("4: ", name, " formed beside ", formed_[after.job]));
  formed_[after.job] = after.generation;
  const JobSpec& spec = specs_[after.job];
  const int nodes = static_cast<int>(after.members.size());
  Expect(nodes >= spec.min_nodes && nodes <= spec.max_nodes && nodes % spec.unit == 0,
         Text("6: ", name, " has ", nodes));
  std::set<NodeId> members;
  for (const GenerationMember& member : after.members) members.insert(member.node);
  Expect(members.size() == after.members.size(), "6: a node is twice in " + name);
  Expect(after.store.has_value(), "5: " + name + " has no store");
}

// 20, 21. Commits of the current generation only, steps rising within it.
void Checker::CheckCommitRow(const CommitRow* before, const CommitRow& after) {
  if (before && before->generation == after.generation)
    Expect(after.step > before->step,
           Text("21: commit of step ", after.step, " after ", before->step));
  if (before) Expect(after.generation >= before->generation, "20: a commit of an older generation");
}

// 32. Nobody is lost by silence before a lease has passed, nor soon after recovery.
void Checker::CheckLost(const NodeRow& after, Instant now) {
  if (after.lost_how != "silent") return;
  const Instant heard = std::max(heard_[after.node], started_);
  Expect(now - heard >= lease,
         Text("32: ", after.name, " lost after ", Seconds(now - heard), " s"));
}

void Checker::OnOrder(const Node& node, const Order& order, Instant now) {
  if (!order.run) return;
  auto cancelled = cancelled_.find(order.job);
  Expect(cancelled == cancelled_.end() || now <= cancelled->second,
         Text("28: ", order.job, " is ordered to run after a cancel"));
  const Run& run = *order.run;
  // 5. Every member of a generation is told the same world.
  const std::string world = Text(run.world_size, "/", run.group_size, "/", run.store.host, ":",
                                 run.store.port, "/", run.restart_count, "/", run.resume_step);
  auto [told, fresh] = worlds_.try_emplace({order.job, run.generation}, world);
  Expect(fresh || told->second == world, Text("5: ", order.job, " generation ", run.generation,
                                              ": ", told->second, " and ", world));
  for (const RankAssignment& mine : run.mine) {
    auto [owner, first] = ranks_[{order.job, run.generation}].try_emplace(mine.rank, node.id());
    Expect(first || owner->second == node.id(),
           Text("6: rank ", mine.rank, " of ", order.job, " given to two nodes"));
    Expect(mine.rank >= 0 && mine.rank < run.world_size,
           Text("6: rank ", mine.rank, " of world ", run.world_size));
  }
}

void Checker::OnRankStarted(const Node& node, const Group& group, const Rank& rank, Instant now) {
  const std::string name =
      Text(group.job, " generation ", group.generation, " rank ", rank.rank, " on ", node.name());
  const int local = static_cast<int>(group.ranks.size()) - 1;
  // 12. A rank starts once.
  Expect(started_ranks_[{group.job, group.generation}].emplace(node.id(), local).second,
         "12: started twice: " + name);
  // 8. Only formed generations start, and only their members.
  Expect(formed_[group.job] == group.generation || proposed_[group.job] >= group.generation,
         "8: started without a formed generation: " + name);
  // 14. Nothing older of this job lives on this node. 13, 41. Slots hold.
  int live = 0;
  for (const auto& job : node.groups()) {
    for (const auto& entry : job.second) {
      const auto alive = std::count_if(entry.second.ranks.begin(), entry.second.ranks.end(),
                                       [](const Rank& r) { return r.alive; });
      live += static_cast<int>(alive);
      const bool older = job.first == group.job && entry.first < group.generation;
      Expect(!older || alive == 0, "14: started beside an older generation: " + name);
    }
  }
  Expect(node.options().launched || live <= node.options().slots,
         Text("41: ", live, " ranks on ", node.name()));
  // 28. Nothing starts after an acknowledged cancel, but what was ordered before it and then held
  // back by a network that was silent: nobody can take that back.
  auto cancelled = cancelled_.find(group.job);
  const bool held_back = node.silent_until() && now <= *node.silent_until() + kInFlight;
  Expect(cancelled == cancelled_.end() || now <= cancelled->second + kInFlight || held_back,
         "28: started after a cancel: " + name);
}

// 25, 26. One key, one job.
void Checker::OnSubmitAnswered(const std::string& key, const JobId& job) {
  auto [known, fresh] = submitted_.try_emplace(key, job);
  Expect(fresh || known->second == job, Text("26: key ", key, " is ", known->second, " and ", job));
  Expect(specs_.contains(job), Text("25: ", job, " was answered before it was durable"));
}

void Checker::OnCancelAnswered(const JobId& job, Instant now) { cancelled_.try_emplace(job, now); }

// 20. Accepted only for the generation that formed last.
void Checker::OnCommitAnswered(const CommitAnswer& answer) {
  if (!answer.accepted) return;
  const bool older = formed_[answer.job] > answer.generation;
  Expect(!older,
         Text("20: accepted a commit of generation ", answer.generation, " of ", answer.job));
}

// Nobody would take care of a job that goes on.
void Checker::OnFinished(const std::map<Key, Value>& rows) {
  for (const auto& row : rows) {
    const auto* state = std::get_if<JobStateRow>(&row.second);
    if (state == nullptr) continue;
    Expect(state->phase == JobPhase::kEnded || state->phase == JobPhase::kPreempted,
           Text("L3: the coordinator left ", state->job, " in phase ",
                static_cast<int>(state->phase)));
  }
}

void Checker::AtEnd(const std::map<Key, Value>& rows) {
  for (const auto& entry : submitted_) {
    Expect(rows.contains(JobSpecKey(entry.second)),
           Text("25: the acknowledged ", entry.second, " is lost"));
  }
}

}  // namespace regroup::sim
