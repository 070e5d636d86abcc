#include "agent/shell/launch_front.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/shell/exit_error.h"
#include "agent/shell/output_rules.h"
#include "common/config/state_dir.h"
#include "common/io/fd.h"
#include "common/io/files.h"
#include "common/io/proc.h"
#include "common/report/failure_report.h"
#include "common/report/format.h"

namespace regroup::agent {
namespace {

using namespace std::chrono_literals;

// The logs of the generation before may still be written to while the next one starts.
constexpr std::size_t kFollowedGenerations = 2;
constexpr Duration kFinishSlice = 50ms;
constexpr Duration kHurried = 1s;
constexpr int kJoinTimeoutCode = 124;
constexpr int kOutputFailedCode = 1;  // As a worker's that writes there itself.

// The relay may be stuck in a write to a reader that does not read; nobody waits for stderr either.
void SayAtOnce(std::string_view text) {
  pollfd ready{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&ready, 1, 0) > 0) io::WriteAll(STDERR_FILENO, text).IgnoreError();
}

}  // namespace

LaunchFront::LaunchFront(boost::asio::io_context& loop, const LaunchConfig& launch,
                         const LaunchDialler& dialler)
    : loop_(loop),
      launch_(launch),
      dialler_(dialler),
      screen_(launch, StyleOf(STDERR_FILENO)),
      relay_(
          STDOUT_FILENO, STDERR_FILENO,
          [this](LineMixer::Sink sink, int error) { return CannotWrite(sink, error); },
          [this] { OnProgress(); },
          [this](const std::string& directory, io::LogStream stream, const std::string& what) {
            return screen_.OutputGap(io::NameOf(stream), what, directory);
          }),
      timer_(loop),
      host_(HostName()),
      node_name_(launch.node_name) {
  if (!launch.output.events.empty()) events_.emplace(launch, host_);
}

Duration LaunchFront::Now() const {
  return Duration(BoottimeNanoseconds() - launch_.started_boottime_ns);
}

void LaunchFront::Say(std::string text, bool at_once) {
  relay_.Say(std::move(text), at_once);
  ArmTimer();
}

void LaunchFront::ArmTimer() {
  const std::optional<Duration> next = screen_.NextTick();
  if (!next) {
    timer_.cancel();
    return;
  }
  timer_.expires_after(std::max(Duration::zero(), *next - Now()));
  timer_.async_wait([this](boost::system::error_code error) {
    if (!error) Say(screen_.Tick(Now()));
  });
}

void LaunchFront::Attached(const std::string& node_name) {
  node_name_ = node_name;
  if (std::exchange(away_, false)) Say(screen_.CoordinatorBack(Now()));
}

void LaunchFront::Away(const std::string& why) {
  away_ = true;
  Say(screen_.CoordinatorAway(Now(), why));
}

// Under --stdout-errors fail this node leaves as on a signal, which the user may follow up.
std::string LaunchFront::CannotWrite(LineMixer::Sink sink, int error) {
  std::lock_guard lock(mutex_);
  const char* stream = sink == LineMixer::Sink::kStdout ? "stdout" : "stderr";
  const std::string why = std::strerror(error);
  if (!job_.empty()) {
    const std::string folder = absl::StrCat(launch_.output.notes_dir, "/", job_);
    const std::string line =
        absl::StrCat(host_, ": ", stream, " of the launch command could not be written from ",
                     Rfc3339(io::WallNow()), " on: ", why, "\n");
    // Where the disk of the notes is full as well, the line on the other stream has to do.
    io::AppendToFile(absl::StrCat(folder, "/", kOutputNotes), line).IgnoreError();
  }
  if (launch_.output.errors_fail && !std::exchange(failed_, true)) ::kill(::getpid(), SIGTERM);
  return screen_.OutputTrouble(
      stream, why, job_.empty() ? launch_.log_dir : absl::StrCat(launch_.log_dir, "/", job_));
}

void LaunchFront::JobKnown(const JobId& job) {
  {
    std::lock_guard lock(mutex_);
    job_ = job.value();
  }
  if (events_) events_->JobKnown(job);
  RunStart start;
  start.job = job;
  start.node_name = node_name_;
  start.coordinator = dialler_.ForOthers();
  start.token = dialler_.TokenForOthers();
  start.log_path = absl::StrCat(launch_.log_dir, "/", job.value());
  start.hosts_coordinator = dialler_.hosts();
  Say(screen_.Started(Now(), start));
}

void LaunchFront::Happened(const JobEvent& event) {
  Say(screen_.OnEvent(Now(), event));
  if (events_) Say(events_->On(event.body, node_name_, Now()));
}

void LaunchFront::Over(JobView view) { view_ = std::move(view); }

void LaunchFront::Output(const GroupKey& key, const std::vector<GroupHost::RankLog>& logs) {
  auto [group, first] = followed_.try_emplace(key);
  for (const GroupHost::RankLog& log : logs) {
    if (!group->second.insert(log.directory).second) continue;
    if (events_) Say(events_->Started(log.rank, log.local_rank, log.pid, Now()));
    Relay::Rules rules = RulesFor(launch_, {.node = node_name_,
                                            .host = host_,
                                            .job = key.job.value(),
                                            .generation = static_cast<int>(key.generation.value()),
                                            .rank = log.rank,
                                            .local_rank = log.local_rank});
    rules.passing = log.passing;
    rules.limits = log.limits;
    relay_.Follow(log.directory, std::move(rules));
    showing_[log.directory] = {key, log.local_rank};
  }
  if (first && shown_changed_) shown_changed_();
  relay_.Poke();
  while (first && followed_.size() > kFollowedGenerations) {
    for (const std::string& directory : followed_.begin()->second) relay_.Unfollow(directory);
    followed_.erase(followed_.begin());
  }
}

// The relay's thread. One message at a time is under way, whatever comes in between is in it.
void LaunchFront::OnProgress() {
  if (progress_posted_.exchange(true)) return;
  boost::asio::post(loop_, [this] {
    progress_posted_ = false;
    const auto shown = relay_.ShownSoFar();
    std::erase_if(showing_, [&](const auto& entry) { return !shown.contains(entry.first); });
    if (shown_changed_) shown_changed_();
  });
}

std::map<GroupKey, shim::Shown> LaunchFront::ShownSoFar() const {
  std::map<GroupKey, shim::Shown> groups;
  for (const auto& [directory, shown] : relay_.ShownSoFar()) {
    const auto whose = showing_.find(directory);
    if (whose == showing_.end()) continue;
    const auto& [key, local_rank] = whose->second;
    auto& streams = groups[key].streams;
    streams.push_back({local_rank, false, shown.out});
    streams.push_back({local_rank, true, shown.err});
  }
  return groups;
}

void LaunchFront::Leaving(int signal, Duration left, bool again) {
  leaving_ = true;
  hurried_ = hurried_ || again;
  Say(screen_.Leaving(Now(), signal, left, again), /*at_once=*/true);
}

// What happens again and again is told seldom.
void LaunchFront::Warned(const std::string& text) {
  constexpr Duration kInterval = 30s;
  constexpr std::size_t kRemembered = 64;
  const auto before = warned_.find(text);
  if (before != warned_.end() && Now() < before->second + kInterval) return;
  if (warned_.size() >= kRemembered) warned_.clear();
  warned_[text] = Now();
  Say(screen_.Warning(text));
}

void LaunchFront::LeaveErrorFile(const std::string& path) {
  const GenerationView* generation =
      view_ && view_->state == "failed" ? DecidingGeneration(*view_) : nullptr;
  const RankCause* cause = generation == nullptr ? nullptr : CauseOf(generation);
  if (cause == nullptr) return;
  const absl::Status written =
      io::ReplaceFile(path, ErrorFileOf(*cause), io::Durability::kVolatile, 0644);
  if (!written.ok()) Warned(absl::StrCat("error file: ", std::string(written.message())));
}

int LaunchFront::Finish(const Agent::End& end) {
  std::string words;
  if (!end.why.empty()) {
    words = end.why;
  } else if (view_) {
    words = screen_.Ended(Now(), *view_, end.exit_code);
    if (events_) words.insert(0, events_->Ended(*view_, node_name_, Now()));
  } else if (end.exit_code == kJoinTimeoutCode) {
    words = screen_.JoinTimedOut(Now());
  } else if (leaving_) {
    words = screen_.LeftJob(Now());
  }
  WaitForReader(words);
  std::lock_guard lock(mutex_);
  return failed_ && (end.exit_code == 0 || end.exit_code == 128 + SIGTERM) ? kOutputFailedCode
                                                                           : end.exit_code;
}

// The job is over; only the reader of this command's output may still be busy. Signals are for this
// function alone by now, and shims hear on how far the show is.
void LaunchFront::WaitForReader(const std::string& words) {
  boost::asio::signal_set signals(loop_);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) == 0 && action.sa_handler != SIG_IGN)
      signals.add(signal);
  }
  int interrupts = leaving_ ? 1 : 0;
  std::function<void()> wait_for_signal = [&] {
    signals.async_wait([&](boost::system::error_code error, int signal) {
      if (error) return;
      hurried_ = hurried_ || signal != SIGINT || ++interrupts >= 2;
      if (!hurried_) SayAtOnce("regroup: showing the rest of the output · Ctrl-C again drops it\n");
      wait_for_signal();
    });
  };
  wait_for_signal();
  while (!hurried_ && !relay_.Finish(words, kFinishSlice)) {
    loop_.restart();
    loop_.poll();
  }
  if (hurried_) relay_.Finish(words, kHurried);
  signals.cancel();
}

}  // namespace regroup::agent
