#include "agent/core/session.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "agent/core/commits.h"
#include "agent/core/group.h"
#include "agent/core/leave.h"
#include "agent/core/orders.h"
#include "agent/core/progress.h"
#include "agent/core/reports.h"
#include "common/base/control.h"
#include "common/base/ids.h"
#include "common/base/user_error.h"

namespace regroup::agent {
namespace {

using namespace std::chrono_literals;

// A Hello is 1 MiB at most, and has other things to tell.
constexpr std::size_t kMaxHelloErrorBytes = 512 << 10;

// One minor apart works both ways.
bool IsSpokenBy(const Version& mine, const Version& theirs) {
  return mine.major == theirs.major &&
         std::max(mine.minor, theirs.minor) - std::min(mine.minor, theirs.minor) <= 1;
}

std::optional<std::string> WhyNot(const Config& config, const Welcome& welcome) {
  const Version& mine = config.version;
  const Version& theirs = welcome.version;
  if (!IsSpokenBy(mine, theirs)) {
    return absl::StrFormat("the coordinator speaks protocol %d.%d (%s), this agent %d.%d (%s)",
                           theirs.major, theirs.minor, theirs.build, mine.major, mine.minor,
                           mine.build);
  }
  if (!config.cluster.empty() && welcome.cluster != config.cluster) {
    return absl::StrFormat(
        "this node belongs to cluster %s (epoch %d), the coordinator that answers leads cluster %s "
        "(epoch %d)",
        config.cluster.value(), config.highest_epoch.value(), welcome.cluster.value(),
        welcome.epoch.value());
  }
  if (welcome.epoch < config.highest_epoch) {
    return absl::StrFormat(
        "cluster %s: this node has followed epoch %d, the coordinator that answers is of epoch %d: "
        "its journal is older than the fleet",
        welcome.cluster.value(), config.highest_epoch.value(), welcome.epoch.value());
  }
  return std::nullopt;
}

Duration WelcomeLimit(const State& state) {
  return std::max(state.lease, state.config.waits.welcome);
}

Hello Introduction(const Config& config, const CoordinatorFound& found) {
  return {.cluster = config.cluster,
          .highest_epoch = config.highest_epoch,
          .node = config.node,
          .incarnation = config.incarnation,
          .boot = config.boot,
          .name = config.name,
          .name_explicit = config.name_explicit,
          .slots = config.slots,
          .gpu_slots = config.gpu_slots,
          .version = config.version,
          .address = found.address,
          .dialled = found.dialled,
          .launched = config.launched,
          .groups = {},
          .notices = {},
          .no_cgroup = config.no_cgroup};
}

// No session of the right coordinator: it is dialled again, patiently, unless this command is of
// no use anywhere near it.
void Refuse(Step& step, const Welcome& welcome, std::string why) {
  step.Note(why);
  step.state.session = Away{};
  // Nothing runs that would be worth waiting for the right one.
  if (step.config().launched && !step.state.AnyBusy() &&
      !IsSpokenBy(step.config().version, welcome.version)) {
    return LeaveNow(
        step, 125,
        RenderUserError(UserError(absl::StatusCode::kFailedPrecondition,
                                  "this command cannot follow the coordinator that answers", why,
                                  "install the same Regroup on all nodes")));
  }
  step.Do(RefuseCoordinator{std::move(why)});
}

void Attach(Step& step, const Welcome& welcome) {
  Attached session;
  // A peer's word: it may neither keep this loop busy nor have the lease pass between two beats.
  session.heartbeat = std::clamp<Duration>(welcome.heartbeat, 10ms, 1min);
  session.next_heartbeat = step.now() + session.heartbeat;
  // One answer that is lost is no silence.
  step.state.lease = std::max<Duration>(welcome.lease, 2 * session.heartbeat);
  if (welcome.answers_heartbeats) session.silent_at = step.now() + step.state.lease;
  step.state.session = session;
  step.state.next_coordinator_start.reset();
}

}  // namespace

void On(Step& step, const CoordinatorFound& found) {
  step.state.session = Opened{found, step.now() + WelcomeLimit(step.state)};
  SayHello(step);
}

void SayHello(Step& step) {
  State& state = step.state;
  const Opened* opened = std::get_if<Opened>(&state.session);
  // Hello is the whole inventory: before all directories are read it would deny groups that run.
  if (!state.scanned || opened == nullptr) return;
  if (state.config.launched && state.groups.empty()) {
    // A launch command follows one coordinator only as long as it has something of it.
    state.config.cluster = ClusterId();
    state.config.highest_epoch = Epoch();
  }
  Hello hello = Introduction(state.config, opened->found);
  // Numbers what has changed since; nothing leaves before the session is attached.
  SendReports(step, /*all=*/false);
  // In the order of their keys: what ranks of the last groups said may find no room.
  std::size_t room = kMaxHelloErrorBytes;
  for (auto& [key, group] : state.groups) {
    GroupReport& report = hello.groups.emplace_back(ReportOf(key, group, step.now()));
    for (RankExit& exit : report.exits) {
      exit.error.resize(std::min(exit.error.size(), room));
      room -= exit.error.size();
    }
  }
  if (const auto& leaving = state.ending.leaving; leaving && leaving->signal != 0) {
    hello.notices.push_back({.source = NoticeSource::kSignal,
                             .signal = leaving->signal,
                             .left = std::max(Duration::zero(), leaving->deadline - step.now())});
  }
  step.Do(SendHello{std::move(hello)});
}

void On(Step& step, const Welcomed& welcomed) {
  State& state = step.state;
  if (!std::holds_alternative<Opened>(state.session)) return;
  const Welcome& welcome = welcomed.welcome;
  if (std::optional<std::string> why = WhyNot(state.config, welcome))
    return Refuse(step, welcome, *std::move(why));
  if (state.config.cluster != welcome.cluster || state.config.highest_epoch != welcome.epoch) {
    state.config.cluster = welcome.cluster;
    state.config.highest_epoch = welcome.epoch;
    step.Do(RememberCoordinator{welcome.cluster, welcome.epoch});
  }
  Attach(step, welcome);
  if (state.config.launched) step.Do(SendLaunch{});
  // Whatever was unacknowledged may have been lost with the session or the coordinator: all of it
  // again.
  SendReports(step, /*all=*/true);
  RepeatProgress(step);
  RepeatCommits(step);
  SayLeaving(step);
}

void On(Step& step, const CoordinatorRefused& refused) {
  State& state = step.state;
  Ending& ending = state.ending;
  // Running workers are nobody's business but the coordinator's that formed them.
  if (!step.config().launched || state.AnyBusy() || ending.leaving) return;
  const Duration patience = ending.accepted ? step.waits().refusal : Duration{};
  std::optional<Refusals>& refusals = ending.refusals;
  // Refusals follow each other every few seconds while it is the same coordinator that refuses.
  if (!refusals || step.now() - refusals->last > patience / 2)
    refusals = Refusals{step.now(), step.now()};
  refusals->last = step.now();
  if (step.now() - refusals->first >= patience) return LeaveNow(step, 125, refused.why);
  if (!state.attached()) return;
  // Where it was the answer to a launch, nothing is asked again on this session.
  step.Do(RefuseCoordinator{refused.why});
  On(step, CoordinatorAway{});
}

void On(Step& step, const CoordinatorAway&) {
  State& state = step.state;
  if (state.attached()) step.Note("the coordinator is away");
  state.session = Away{};
  ForgetCommitsInFlight(state);
  // Its successor compares what it sees with what it wants, and orders anew.
  ForgetWishes(state);
  if (state.config.starts_coordinator && !state.next_coordinator_start)
    state.next_coordinator_start = step.now();
  // An agent that leaves has waited for its orders until now.
  StopWhereLeaving(step);
}

void On(Step& step, const CoordinatorSpoke&) {
  if (Attached* session = step.state.attachment(); session != nullptr && session->silent_at)
    session->silent_at = step.now() + step.state.lease;
}

void ForgiveStandstill(State& state, Instant now) {
  Attached* session = state.attachment();
  if (session == nullptr || !session->silent_at) return;
  // Attached, a step comes at least each heartbeat.
  *session->silent_at += std::max(Duration::zero(), now - state.now - session->heartbeat);
}

void BreakIfSilent(Step& step) {
  const State& state = step.state;
  std::optional<Instant> silent_at;
  Duration silence = state.lease;
  if (const auto* opened = std::get_if<Opened>(&state.session)) {
    silent_at = opened->silent_at;
    silence = WelcomeLimit(state);
  } else if (const Attached* session = state.attachment()) {
    silent_at = session->silent_at;
  }
  if (!silent_at || *silent_at > step.now()) return;
  std::string why =
      absl::StrFormat("nothing was heard from the coordinator for %g s", Seconds(silence));
  step.Note(why);
  step.Do(BreakSession{std::move(why)});
  On(step, CoordinatorAway{});
}

void HeartbeatIfDue(Step& step) {
  Attached* session = step.state.attachment();
  if (session == nullptr || session->next_heartbeat > step.now()) return;
  session->next_heartbeat = step.now() + session->heartbeat;
  step.Do(SendHeartbeat{session->obeyed});
}

void CoordinatorIfDue(Step& step) {
  State& state = step.state;
  if (state.attached() || state.ending.result || !state.next_coordinator_start ||
      *state.next_coordinator_start > step.now())
    return;
  state.next_coordinator_start = step.now() + step.waits().coordinator_restart;
  step.Do(StartCoordinator{});
}

std::optional<Instant> NextOfSession(const State& state) {
  if (const Attached* session = state.attachment()) {
    if (!session->silent_at) return session->next_heartbeat;
    return std::min(*session->silent_at, session->next_heartbeat);
  }
  std::optional<Instant> next;
  if (!state.ending.result) next = state.next_coordinator_start;
  const auto* opened = std::get_if<Opened>(&state.session);
  if (opened != nullptr && (!next || opened->silent_at < *next)) next = opened->silent_at;
  return next;
}

}  // namespace regroup::agent
