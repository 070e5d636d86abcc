#include "launcher/coordinator/core/core.h"

#include <algorithm>
#include <utility>

#include "launcher/coordinator/core/advance.h"
#include "launcher/coordinator/core/answers.h"
#include "launcher/coordinator/core/calls.h"
#include "launcher/coordinator/core/links.h"
#include "launcher/coordinator/core/orders.h"
#include "launcher/coordinator/core/recovery.h"
#include "launcher/coordinator/core/reports.h"
#include "launcher/coordinator/core/retention.h"
#include "launcher/coordinator/core/sessions.h"
#include "launcher/coordinator/core/slots.h"
#include "launcher/coordinator/core/stall.h"
#include "launcher/coordinator/core/state.h"
#include "launcher/coordinator/core/step.h"
#include "launcher/coordinator/core/views.h"
#include "launcher/coordinator/core/withheld.h"

namespace regroup::coordinator {
namespace {

// Every job that changed goes on as far as it can, the oldest first, and then the slots that became
// free meanwhile are offered, which may give more jobs something to do. What has no room is left
// dirty, and NextDeadline asks for a Tick at once.
void Drain(Step& step) {
  std::set<std::uint64_t>& dirty = step.state.agenda.dirty;
  do {
    while (!dirty.empty() && step.HasRoom()) {
      const std::uint64_t sequence = *dirty.begin();
      dirty.erase(dirty.begin());
      if (Job* job = step.state.FindJob(step.state.index.by_sequence.at(sequence)))
        Advance(step, *job);
    }
    OfferCapacity(step);
  } while (!dirty.empty() && step.HasRoom());
}

void On(Step& step, const Tick&) {
  auto& deadlines = step.state.agenda.deadlines;
  while (!deadlines.empty() && step.HasRoom()) {
    const auto [at, kind, id] = *deadlines.begin();
    // Deadlines are in order: none behind this one is due.
    if (at > step.now()) return;
    if (kind == DueKind::kNode) {
      Node& node = step.state.NodeAt(NodeId(id));
      step.Arm(node, std::nullopt);
      OnNodeDeadline(step, node);
    } else {
      Job& job = step.state.jobs.at(JobId(id));
      step.Disarm(job);
      step.LookAt(job);
      Drain(step);
    }
  }
}

// Before anything else this life's epoch becomes durable, unless the fleet has seen a newer one.
void FirstStep(Step& step) {
  State& state = step.state;
  state.first_step_done = true;
  if (state.meta.older_than > Epoch() && !state.config.journal.accept) {
    StepDownNow(step);
    return;
  }
  MetaRow meta = state.meta;
  meta.epoch = state.epoch;
  meta.older_than = Epoch();
  step.Put(meta);
}

}  // namespace

Core::Core(Config config, Epoch epoch, std::span<const Row> rows, Instant now)
    : state_(std::make_unique<State>(std::move(config), epoch, now)) {
  // What a crash cut off is decided by the rows alone; Recover adds what was soft, and writes
  // nothing: this life has no epoch in the journal before its first step.
  for (const Row& row : rows) state_->Apply(row);
  Recover(*state_);
}
Core::~Core() = default;
Core::Core(Core&&) noexcept = default;
Core& Core::operator=(Core&&) noexcept = default;

Effects Core::Step(Instant now, WallTime wall, const Event& event) {
  coordinator::Step step(*state_, now, wall);
  if (!state_->first_step_done) FirstStep(step);
  if (!state_->stepped_down) {
    std::visit([&](const auto& e) { On(step, e); }, event);
    Drain(step);
    if (ChecksIndices(*state_) && state_->agenda.dirty.empty()) CheckNothingIsWithheld(*state_);
    SweepOldJobs(step);
    if (step.HasRoom()) PurgeOne(step);
    // Last of what jobs cause: an order says what is wanted after all decisions of this step, not
    // between two of them.
    FlushOrders(step);
    CheckAdHocExit(step);
  }
  return step.Take();
}

std::optional<Instant> Core::NextDeadline() const {
  const State& state = *state_;
  if (!state.first_step_done) return state.recovered_at;
  if (state.stepped_down || state.finished) return std::nullopt;
  // The step ran out of room: another one follows as soon as this one's rows are durable.
  if (!state.agenda.dirty.empty() || !state.retention.purging.empty()) return state.now;
  std::optional<Instant> next = AdHocExitAt(state);
  const auto sooner = [&](Instant at) { next = next ? std::min(*next, at) : at; };
  if (state.retention.next_sweep && !state.index.over.empty()) sooner(*state.retention.next_sweep);
  if (!state.agenda.deadlines.empty()) sooner(std::get<0>(*state.agenda.deadlines.begin()));
  return next;
}

absl::StatusOr<ReadReply> Core::Read(const ReadFilter& filter, Instant now, WallTime wall) const {
  return coordinator::Read(*state_, filter, now, wall);
}
std::vector<Row> Core::Rows() const { return state_->Rows(); }
const ClusterId& Core::cluster() const { return state_->meta.cluster; }
Epoch Core::epoch() const { return state_->epoch; }
std::uint64_t Core::newest_number() const { return state_->newest_number(); }

}  // namespace regroup::coordinator
