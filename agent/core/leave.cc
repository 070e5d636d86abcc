#include "agent/core/leave.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/str_format.h"
#include "agent/core/reports.h"
#include "agent/core/stops.h"
#include "common/base/control.h"

namespace regroup::agent {
namespace {

constexpr int kJoinTimeoutCode = 124;

void BeginLeaving(Step& step, int signal, Instant deadline) {
  step.state.ending.leaving = Leaving{.signal = signal,
                                      .since = step.now(),
                                      .deadline = deadline,
                                      .now = false,
                                      .idle_since = std::nullopt};
  SayLeaving(step);
  // With a coordinator its orders do it: a notice first where workers save on one.
  if (!step.state.attached()) StopEverything(step, deadline);
}

// A launch command that has never run anything waits for other nodes as long as it was told to.
std::optional<Instant> JoinDeadline(const State& state) {
  const Ending& ending = state.ending;
  const bool waits = !state.ever_ran && !ending.enough_joined && !ending.leaving && !ending.result;
  if (!state.config.join_timeout || !waits) return std::nullopt;
  return state.started_at + *state.config.join_timeout;
}

// What a shell makes of a process that a signal has ended.
int LeavingCode(const Config& config, const Leaving& leaving) {
  if (!config.launched) return 0;
  return leaving.signal == 0 ? kJoinTimeoutCode : 128 + leaving.signal;
}

// Whoever needs to know that all groups have ended knows it.
bool IsHeard(const Step& step, const Leaving& leaving) {
  if (!step.state.attached()) return true;
  const bool result_late =
      !step.config().launched || step.now() >= *leaving.idle_since + step.waits().result;
  return AllAcked(step.state) && result_late;
}

}  // namespace

void On(Step& step, const SignalCaught& caught) {
  const Config& config = step.config();
  const bool leaves = config.launched || (config.sigterm_is_notice && caught.signal == SIGTERM);
  if (!leaves) {
    step.Note(absl::StrFormat("signal %d: detaching, %d groups run on", caught.signal,
                              step.state.groups.size()));
    LeaveNow(step, 0, "");
    return;
  }
  std::optional<Leaving>& leaving = step.state.ending.leaving;
  if (!leaving) {
    step.Do(ShowLeaving{caught.signal, config.grace, false});
    BeginLeaving(step, caught.signal, step.now() + config.grace);
    return;
  }
  // A third signal asks for nothing that the second did not.
  if (leaving->now || step.now() - leaving->since < step.waits().same_signal) return;
  leaving->now = true;
  leaving->deadline = step.now();
  step.Do(ShowLeaving{caught.signal, Duration::zero(), true});
  if (step.state.attached() && config.launched) step.Do(SendLeave{caught.signal, true});
  StopEverything(step, step.now());
}

void On(Step& step, const LaunchAccepted&) {
  step.state.ending.accepted = true;
  step.state.ending.refusals.reset();
}

void On(Step& step, const EnoughJoined&) { step.state.ending.enough_joined = true; }

void On(Step& step, const JobOver& over) {
  if (!step.config().launched) return;
  // That it was read: a session that breaks just then says nothing of it.
  if (step.state.attached()) step.Do(SendLeave{});
  std::optional<Result>& result = step.state.ending.result;
  if (result) return;
  result = Result{over.exit_code, step.now()};
  // For an agent that loses its coordinator before the order to stop has come.
  StopEverything(step, step.now() + step.waits().slack);
}

void SayLeaving(Step& step) {
  const std::optional<Leaving>& leaving = step.state.ending.leaving;
  if (!leaving || !step.state.attached()) return;
  if (step.config().launched) {
    step.Do(SendLeave{leaving->signal, leaving->now});
  } else {
    step.Do(SendNotice{{.source = NoticeSource::kSignal,
                        .signal = leaving->signal,
                        .left = std::max(Duration::zero(), leaving->deadline - step.now())}});
  }
}

void StopWhereLeaving(Step& step) {
  if (const std::optional<Leaving>& leaving = step.state.ending.leaving)
    StopEverything(step, leaving->now ? step.now() : leaving->deadline);
}

std::optional<Instant> NextLeave(const State& state) {
  const Waits& waits = state.config.waits;
  const Ending& ending = state.ending;
  std::optional<Instant> next;
  const auto consider = [&](Instant at) {
    if (at > state.now && (!next || at < *next)) next = at;
  };
  if (ending.result) consider(ending.result->at + waits.slack + waits.kill);
  if (ending.leaving) {
    consider(ending.leaving->deadline + waits.slack);
    consider(ending.leaving->deadline + waits.slack + waits.kill);
    if (ending.leaving->idle_since) consider(*ending.leaving->idle_since + waits.result);
  }
  if (const auto timeout = JoinDeadline(state)) consider(*timeout);
  return next;
}

void LeaveIfDue(Step& step) {
  State& state = step.state;
  Ending& ending = state.ending;
  const Waits& waits = step.waits();
  if (ending.left) return;
  if (const auto timeout = JoinDeadline(state); timeout && step.now() >= *timeout) {
    // Nothing of it has ever run that could need a grace.
    BeginLeaving(step, 0, step.now());
    ending.leaving->now = true;
    StopEverything(step, step.now());
  }
  // A result outranks a signal: the job's own exit code tells more.
  if (ending.result) {
    const bool patient = step.now() < ending.result->at + waits.slack + waits.kill;
    if (!state.AnyBusy() || !patient) LeaveNow(step, ending.result->exit_code, "");
    return;
  }
  if (!ending.leaving) return;
  Leaving& leaving = *ending.leaving;
  const int code = LeavingCode(step.config(), leaving);
  const Instant patience = leaving.deadline + waits.slack;
  if (state.AnyBusy()) {
    leaving.idle_since.reset();
    if (step.now() >= patience) StopEverything(step, step.now());
    // What was killed and is still there sits in the kernel: waiting longer would change nothing.
    if (step.now() >= patience + waits.kill) LeaveNow(step, code, "");
    return;
  }
  if (!leaving.idle_since) leaving.idle_since = step.now();
  if (leaving.now || IsHeard(step, leaving) || step.now() >= patience) LeaveNow(step, code, "");
}

void LeaveNow(Step& step, int exit_code, std::string why) {
  Ending& ending = step.state.ending;
  ending.left = true;
  const bool gone = ending.leaving || ending.result;
  // What is over needs no directory any more: it was reported, or nobody is left to ask. A
  // detaching service keeps all.
  if (gone) {
    for (const auto& [key, group] : step.state.groups) {
      if (group.phase == Phase::kFree && group.shim.stage != ShimStage::kNone)
        step.Do(RemoveRunDirectory{key});
    }
  }
  step.Do(Leave{exit_code, std::move(why), gone});
}

}  // namespace regroup::agent
