#include "launcher/coordinator/core/state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace regroup::coordinator {
namespace {

struct KeyMaker {
  std::uint64_t ring;
  Key operator()(const MetaRow&) const { return MetaKey(); }
  Key operator()(const NodeRow& row) const { return NodeKey(row.node); }
  Key operator()(const JobSpecRow& row) const { return JobSpecKey(row.job); }
  Key operator()(const JobStateRow& row) const { return JobStateKey(row.job); }
  Key operator()(const GenerationRow& row) const { return GenerationKey(row.job, row.generation); }
  Key operator()(const DoneRow& row) const { return DoneKey(row.job, row.node); }
  Key operator()(const CommitRow& row) const { return CommitKey(row.job); }
  Key operator()(const JobEventRow& row) const {
    return JobEventKey(row.job, row.event.number % ring);
  }
};

template <class Map>
auto* Find(Map& map, const typename Map::key_type& id) {
  auto found = map.find(id);
  return found == map.end() ? nullptr : &found->second;
}

}  // namespace

State::State(Config config, Epoch epoch, Instant now)
    : config(std::move(config)), epoch(epoch), recovered_at(now), now(now) {}

// ---- rows ------------------------------------------------------------------------------------

Key State::KeyOf(const Value& value) const {
  return std::visit(KeyMaker{static_cast<std::uint64_t>(config.limits.events_per_job)}, value);
}

void State::Apply(const Row& row) {
  if (row.value) {
    ApplyValue(*row.value);
  } else {
    ApplyDeletion(row.key);
  }
}

void State::ApplyValue(const Value& value) {
  if (auto* row = std::get_if<MetaRow>(&value)) {
    meta = *row;
  } else if (auto* node = std::get_if<NodeRow>(&value)) {
    Node& known = nodes[node->node];
    node_at_.Set(node->node, &known);
    // Before the row is replaced: the indices are told what was and what is.
    IndexNode(known.row.node.empty() ? nullptr : &known.row, node);
    known.row = *node;
    SlotsChanged(known);
  } else if (auto* spec = std::get_if<JobSpecRow>(&value)) {
    Job& job = jobs[spec->job];
    job.spec = *spec;
    IndexJob(job);
  } else if (auto* state = std::get_if<JobStateRow>(&value)) {
    Job& job = jobs[state->job];
    job.state = *state;
    IndexJob(job);
  } else if (auto* generation = std::get_if<GenerationRow>(&value)) {
    Job& job = jobs[generation->job];
    job.generations[generation->generation] = *generation;
    IndexDemand(job);
  } else if (auto* done = std::get_if<DoneRow>(&value)) {
    jobs[done->job].done[done->node] = *done;
  } else if (auto* commit = std::get_if<CommitRow>(&value)) {
    jobs[commit->job].commit = *commit;
  } else if (auto* event = std::get_if<JobEventRow>(&value)) {
    std::vector<JobEvent>& events = jobs[event->job].events;
    auto at =
        // Recovery reads the ring by its slots, where the oldest events need not be first.
        std::upper_bound(events.begin(), events.end(), event->event.number,
                         [](std::uint64_t number, const JobEvent& e) { return number < e.number; });
    events.insert(at, event->event);
    if (events.size() > static_cast<std::size_t>(config.limits.events_per_job))
      events.erase(events.begin());
  }
}

void State::ApplyDeletion(const Key& key) {
  if (key.starts_with("node/")) {
    auto node = nodes.find(NodeId(key.substr(5)));
    if (node == nodes.end()) return;
    IndexNode(&node->second.row, nullptr);
    SlotsChanged(node->second);
    node_at_.Erase(node->first);
    nodes.erase(node);
    return;
  }
  const std::vector<std::string> parts = absl::StrSplit(key, absl::MaxSplits('/', 3));
  if (parts.size() < 3 || parts[0] != "job") return;
  auto found = jobs.find(JobId(parts[1]));
  if (found == jobs.end()) return;
  Job& job = found->second;
  std::uint64_t number = 0;
  if (parts[2] == "gen" && absl::SimpleAtoi(parts[3], &number)) {
    job.generations.erase(Generation(number));
    IndexDemand(job);
  } else if (parts[2] == "done") {
    job.done.erase(NodeId(parts[3]));
  } else if (parts[2].empty()) {  // All of it.
    index.by_sequence.erase(job.spec.sequence);
    index.over.erase(job.spec.sequence);
    placement.Remove(job.spec.sequence);
    index.by_key.erase(job.spec.key);
    auto newest = index.newest_by_name.find(job.spec.spec.name);
    if (newest != index.newest_by_name.end() && newest->second == job.id())
      index.newest_by_name.erase(newest);
    for (const NodeId& id : job.nodes.touched)
      if (const Node* node = FindNode(id)) SlotsChanged(*node);
    jobs.erase(found);
  }
}

void State::IndexNode(const NodeRow* before, const NodeRow* after) {
  const NodeId& id = before ? before->node : after->node;
  if (before && !before->lost) {
    auto named = fleet.names.find(before->name);
    if (named != fleet.names.end() && named->second.erase(id) && named->second.empty())
      fleet.names.erase(named);
  }
  if (after && !after->lost) fleet.names[after->name].insert(id);
  // Launched nodes serve their own job only; a lost one serves none.
  const bool shared = after && !after->lost && !after->launched;
  placement.SetSize(id, shared ? after->name : std::string(), shared ? after->slots : 0,
                    shared && after->gpu_slots);
  agenda.dirty.merge(placement.TakeNews());
  if (before && before->launch) {
    if (Job* job = FindJob(before->launch->job)) job->launch.nodes.erase(id);
  }
  if (after && after->launch) {
    if (Job* job = FindJob(after->launch->job)) job->launch.nodes.insert(id);
  }
}

void State::IndexJob(const Job& job) {
  if (job.spec.job.empty() || job.state.job.empty()) return;
  const std::uint64_t sequence = job.spec.sequence;
  index.by_sequence[sequence] = job.id();
  if (!job.launched()) index.by_key[job.spec.key] = job.id();
  if (job.launched() && !job.spec.standalone) {
    auto [newest, fresh] = index.newest_by_name.try_emplace(job.spec.spec.name, job.id());
    if (!fresh && jobs.at(newest->second).spec.sequence < sequence) newest->second = job.id();
  }
  const bool over = job.state.phase == JobPhase::kEnded || job.state.phase == JobPhase::kPreempted;
  if (over) index.over.insert(sequence);
  if (!over) index.over.erase(sequence);
  IndexDemand(job);
}

void State::IndexDemand(const Job& job) {
  if (const std::optional<Demand> demand = DemandOf(job)) {
    placement.Set(*demand);
  } else {
    placement.Remove(job.spec.sequence);
  }
  agenda.dirty.merge(placement.TakeNews());
}

std::vector<Row> State::Rows() const {
  std::map<Key, Value> rows;
  auto add = [&](Value value) {
    Key name = KeyOf(value);
    rows.emplace(std::move(name), std::move(value));
  };
  if (meta.epoch > Epoch()) add(meta);
  for (const auto& [id, node] : nodes) add(node.row);
  for (const auto& [id, job] : jobs) {
    add(job.spec);
    add(job.state);
    for (const auto& entry : job.generations) add(entry.second);
    for (const auto& entry : job.done) add(entry.second);
    if (job.commit) add(*job.commit);
    for (const JobEvent& event : job.events) add(JobEventRow{job.id(), event});
  }
  std::vector<Row> all;
  all.reserve(rows.size());
  for (auto& entry : rows) all.push_back({entry.first, std::move(entry.second)});
  return all;
}

// ---- look-ups --------------------------------------------------------------------------------

Job* State::FindJob(const JobId& id) { return Find(jobs, id); }
const Job* State::FindJob(const JobId& id) const { return Find(jobs, id); }
Node* State::FindNode(const NodeId& id) {
  Node* const* found = node_at_.Find(id);
  return found ? *found : nullptr;
}
const Node* State::FindNode(const NodeId& id) const {
  Node* const* found = node_at_.Find(id);
  return found ? *found : nullptr;
}
Node& State::NodeAt(const NodeId& id) { return *node_at_.At(id); }
const Node& State::NodeAt(const NodeId& id) const { return *node_at_.At(id); }
Node* State::NodeOf(SessionId session) {
  Node* const* found = fleet.sessions.Find(session);
  return found ? *found : nullptr;
}
std::string State::NameOf(const NodeId& id) const {
  const Node* node = FindNode(id);
  return node ? node->row.name : id.value();
}

std::uint64_t State::newest_number() const {
  return index.by_sequence.empty() ? 0 : index.by_sequence.rbegin()->first;
}

}  // namespace regroup::coordinator
