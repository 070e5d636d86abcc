#include "launcher/coordinator/core/step.h"

#include <algorithm>
#include <chrono>

#include "common/base/check.h"

namespace regroup::coordinator {
namespace {

// A step takes on another job or deadline only below these, so that the largest one still fits.
constexpr std::size_t kRowsBeforeNext = 16;
constexpr std::size_t kBytesBeforeNext = 64u << 10;

// A look at a node takes some 1 us: so long at most a tenth of a core goes into looks.
constexpr Duration kRestOfNode = std::chrono::microseconds(10);

}  // namespace

Step::Step(State& state, Instant now, WallTime wall) : state(state) {
  // The clock may have been read before the step before this one was made.
  state.now = std::max(state.now, now);
  state.wall = wall;
}

Effects Step::Take() {
  // A step that outgrew the journal's limits could never be made durable: better to die here than
  // to act on it.
  CHECK(effects_.rows.size() <= kMaxRowsPerStep);
  CHECK(bytes_ <= kMaxBytesPerStep);
  return std::move(effects_);
}

bool Step::HasRoom() const {
  return effects_.rows.size() < kRowsBeforeNext && bytes_ < kBytesBeforeNext;
}

// ---- rows ------------------------------------------------------------------------------------

void Step::Put(Value value) {
  Key key = state.KeyOf(value);
  Add({std::move(key), std::move(value)});
}

void Step::Delete(Key key) { Add({std::move(key), std::nullopt}); }

void Step::Add(Row row) {
  state.Apply(row);
  // A batch has one row for each key: the last one wins, and only that is written.
  auto [slot, fresh] = row_of_.try_emplace(row.key, effects_.rows.size());
  bytes_ += EstimateBytes(row);
  if (fresh) {
    effects_.rows.push_back(std::move(row));
  } else {
    Row& before = effects_.rows[slot->second];
    bytes_ -= EstimateBytes(before);
    before = std::move(row);
  }
}

void Step::UpdateState(Job& job, const std::function<void(JobStateRow&)>& change) {
  JobStateRow next = job.state;
  change(next);
  // Ages are as of the moment at which the row is written; recovery counts back from its own.
  next.ends.charges = ChargeAges(job, now());
  Put(std::move(next));
}

void Step::UpdateGeneration(Job& job, Generation generation,
                            const std::function<void(GenerationRow&)>& change) {
  GenerationRow next = job.generations.at(generation);
  change(next);
  Put(std::move(next));
}

// ---- notes -----------------------------------------------------------------------------------

void Step::Say(Severity severity, std::string what,
               std::vector<std::pair<std::string, std::string>> fields) {
  effects_.notes.push_back({severity, std::move(what), std::move(fields)});
}

// ---- later -----------------------------------------------------------------------------------

void Step::LookAt(Job& job) { state.agenda.dirty.insert(job.spec.sequence); }

void Step::Reorder(Job& job, const NodeId& node) {
  job.nodes.order_dirty.insert(node);
  state.agenda.orders_dirty.insert(job.id());
}

void Step::ReorderMembers(Job& job, const GenerationSoft& soft) {
  for (const auto& member : soft.members) Reorder(job, member.first);
}

void Step::Wake(Job& job, Instant at) {
  // The earliest wins: a job that is looked at says anew what it waits for.
  if (job.wake && *job.wake <= at) return;
  Disarm(job);
  job.wake = at;
  state.agenda.deadlines.insert({at, DueKind::kJob, job.id().value()});
}

void Step::Disarm(Job& job) {
  if (job.wake) state.agenda.deadlines.erase({*job.wake, DueKind::kJob, job.id().value()});
  job.wake.reset();
}

void Step::Rest(Job& job, int nodes) {
  if (nodes >= kManyNodes) job.rests_until = now() + kRestOfNode * nodes;
}

bool Step::Rests(Job& job) {
  const bool rests = now() < job.rests_until;
  if (rests) Wake(job, job.rests_until);
  return rests;
}

void Step::Arm(Node& node, std::optional<Instant> at) {
  auto& deadlines = state.agenda.deadlines;
  if (node.wake) deadlines.erase({*node.wake, DueKind::kNode, node.row.node.value()});
  node.wake = at;
  if (at) deadlines.insert({*at, DueKind::kNode, node.row.node.value()});
}

}  // namespace regroup::coordinator
