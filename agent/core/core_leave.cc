// The half of Core that ends: signals, the result of a launch command's job, its join timeout.

#include <algorithm>
#include <csignal>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "agent/core/core.h"

namespace regroup::agent {
namespace {

using namespace std::chrono_literals;

// One Ctrl-C under `timeout` arrives twice within 1 ms; a second one of a person is later than
// this.
constexpr Duration kSameSignal = 500ms;
// After our own groups are gone: for the coordinator's word that the whole job ended with us.
constexpr Duration kResultWait = 500ms;
// Beyond a deadline that the shim keeps: then we no longer wait for the coordinator, and after as
// much again for nobody.
constexpr Duration kSlack = 1s;
constexpr Duration kKillWait = 3s;
constexpr int kJoinTimeoutCode = 124;

}  // namespace

bool Core::AnyBusy() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const auto& entry) { return entry.second.busy(); });
}

bool Core::AllAcked() const {
  return std::all_of(groups_.begin(), groups_.end(),
                     [](const auto& entry) { return entry.second.acked; });
}

void Core::On(const SignalCaught& caught) {
  const bool leaves = config_.launched || (config_.sigterm_is_notice && caught.signal == SIGTERM);
  if (!leaves) {
    Note(absl::StrFormat("signal %d: detaching, %d groups run on", caught.signal, groups_.size()));
    LeaveNow(0, "");
    return;
  }
  if (!leaving_) {
    Do(ShowLeaving{caught.signal, config_.grace, false});
    BeginLeaving(caught.signal, now_ + config_.grace);
    return;
  }
  if (leaving_->now || now_ - leaving_->since < kSameSignal) return;
  leaving_->now = true;
  leaving_->deadline = now_;
  Do(ShowLeaving{caught.signal, Duration::zero(), true});
  if (attached_ && config_.launched) Do(SendLeave{caught.signal, true});
  StopEverything(now_);
}

void Core::BeginLeaving(int signal, Instant deadline) {
  leaving_ = Leaving{.signal = signal,
                     .since = now_,
                     .deadline = deadline,
                     .now = false,
                     .idle_since = std::nullopt};
  SayLeaving();
  // With a coordinator its orders do it: a notice first where workers save on one. Without, nobody
  // else will.
  if (!attached_) StopEverything(deadline);
}

void Core::SayLeaving() {
  if (!leaving_ || !attached_) return;
  if (config_.launched) {
    Do(SendLeave{leaving_->signal, leaving_->now});
  } else {
    Do(SendNotice{{.source = NoticeSource::kSignal,
                   .signal = leaving_->signal,
                   .left = std::max(Duration::zero(), leaving_->deadline - now_),
                   .withdrawn = false}});
  }
}

void Core::On(const EnoughJoined&) { enough_joined_ = true; }

void Core::On(const JobOver& over) {
  if (!config_.launched || result_) return;
  result_ = over.exit_code;
  result_at_ = now_;
  StopEverything(now_ + kSlack);
}

std::optional<Instant> Core::JoinDeadline() const {
  const bool waits = !ever_ran_ && !enough_joined_ && !leaving_ && !result_;
  if (!config_.join_timeout || !waits) return std::nullopt;
  return started_at_ + *config_.join_timeout;
}

std::vector<Instant> Core::LeaveDeadlines() const {
  std::vector<Instant> deadlines;
  if (result_at_) deadlines.push_back(*result_at_ + kSlack + kKillWait);
  if (leaving_) {
    deadlines.push_back(leaving_->deadline + kSlack);
    deadlines.push_back(leaving_->deadline + kSlack + kKillWait);
    if (leaving_->idle_since) deadlines.push_back(*leaving_->idle_since + kResultWait);
  }
  if (const auto timeout = JoinDeadline()) deadlines.push_back(*timeout);
  return deadlines;
}

void Core::LeaveIfDue() {
  if (left_) return;
  if (const auto timeout = JoinDeadline(); timeout && now_ >= *timeout) {
    BeginLeaving(0, now_);
    leaving_->now = true;
    StopEverything(now_);
  }
  if (result_) {
    if (!AnyBusy() || now_ >= *result_at_ + kSlack + kKillWait) LeaveNow(*result_, "");
    return;
  }
  if (!leaving_) return;
  const int code = !config_.launched       ? 0
                   : leaving_->signal == 0 ? kJoinTimeoutCode
                                           : 128 + leaving_->signal;
  const Instant patience = leaving_->deadline + kSlack;
  if (AnyBusy()) {
    leaving_->idle_since.reset();
    if (now_ >= patience) StopEverything(now_);
    if (now_ >= patience + kKillWait) LeaveNow(code, "");
    return;
  }
  if (!leaving_->idle_since) leaving_->idle_since = now_;
  const bool heard =
      !attached_ ||
      (AllAcked() && (!config_.launched || now_ >= *leaving_->idle_since + kResultWait));
  if (leaving_->now || heard || now_ >= patience) LeaveNow(code, "");
}

void Core::LeaveNow(int exit_code, std::string why) {
  left_ = true;
  // What is over needs no directory any more: it was reported, or nobody is left to ask. A
  // detaching service keeps all.
  if (leaving_ || result_) {
    for (const auto& [key, group] : groups_) {
      if (group.phase == Phase::kFree && group.has_directory) Do(RemoveRunDirectory{key});
    }
  }
  Do(Leave{exit_code, std::move(why), leaving_ || result_});
}

}  // namespace regroup::agent
