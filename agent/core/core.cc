#include "agent/core/core.h"

#include <utility>
#include <variant>

#include "agent/core/adoption.h"
#include "agent/core/commits.h"
#include "agent/core/in_place.h"
#include "agent/core/leave.h"
#include "agent/core/leftovers.h"
#include "agent/core/orders.h"
#include "agent/core/prepare.h"
#include "agent/core/progress.h"
#include "agent/core/ranks.h"
#include "agent/core/reports.h"
#include "agent/core/seen.h"
#include "agent/core/session.h"
#include "agent/core/state.h"
#include "agent/core/step.h"
#include "agent/core/stops.h"
#include "agent/core/workers.h"
#include "common/base/check.h"

namespace regroup::agent {
namespace {

void On(Step&, const Tick&) {}

// After every event: what follows from the state. Reports leave before progress and heartbeats,
// since the coordinator judges those by what it knows of the group.
void Settle(Step& step) {
  EndWords(step);  // First: what waits for those slots need not wait for another event.
  Reconcile(step);
  EndWarmUps(step);
  EndNurseries(step);
  KillAgain(step);
  EndWaits(step);
  KillSilentShims(step);
  SendReports(step, /*all=*/false);
  SendDueProgress(step);
  BreakIfSilent(step);
  HeartbeatIfDue(step);
  CoordinatorIfDue(step);
  LeaveIfDue(step);
}

}  // namespace

Core::Core(Config config, Instant now) : state_(std::make_unique<State>(std::move(config), now)) {}
Core::~Core() = default;
Core::Core(Core&&) noexcept = default;
Core& Core::operator=(Core&&) noexcept = default;

Effects Core::Step(Instant now, const Event& event) {
  CHECK(now >= state_->now);
  ForgiveStandstill(*state_, now);
  agent::Step step(*state_, now);
  // The shell may still deliver what it had in hand when it was told to leave.
  if (state_->ending.left) return {};
  std::visit([&step](const auto& e) { On(step, e); }, event);
  Settle(step);
  return step.Take();
}

std::optional<Instant> Core::NextDeadline() const {
  const State& state = *state_;
  if (state.ending.left) return std::nullopt;
  std::optional<Instant> next = NextOfSession(state);
  const auto consider = [&next](std::optional<Instant> at) {
    if (at && (!next || *at < *next)) next = at;
  };
  // Without a session progress waits for the next one, not for a time.
  if (state.attached()) consider(NextProgress(state));
  for (const auto& [key, group] : state.groups) {
    consider(WarmUntil(group));
    consider(NextInPlace(group));
    consider(KillShimAt(group));
    consider(NextOfLeftovers(group));
  }
  consider(NextOfNurseries(state));
  consider(NextLeave(state));
  return next;
}

bool Core::attached() const { return state_->attached(); }
const std::map<GroupKey, Group>& Core::groups() const { return state_->groups; }

}  // namespace regroup::agent
