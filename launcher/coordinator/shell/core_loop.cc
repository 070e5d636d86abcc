#include "launcher/coordinator/shell/core_loop.h"

#include <boost/asio/post.hpp>

#include "common/base/check.h"
#include "common/base/user_error.h"
#include "common/io/proc.h"
#include "launcher/coordinator/shell/records.h"

namespace regroup::coordinator {
namespace {

constexpr auto kWatchInterval = std::chrono::milliseconds(500);
constexpr auto kSoon = std::chrono::milliseconds(2);

// One transaction. Whole steps only, and at least one.
constexpr std::size_t kMaxBatchRows = 4'096;
constexpr std::size_t kRowsOfFolder = 1'024;  // Of a job with a full history.
constexpr std::size_t kMaxBatchBytes = 8u << 20;
// What may collect behind a disk that hangs, before giving up is better than growing.
constexpr std::size_t kMaxPendingBytes = 256u << 20;

constexpr auto kDiskFullRetry = std::chrono::milliseconds(500);
constexpr int kDiskFullTries = 120;

obs::Level LevelOf(Severity severity) {
  switch (severity) {
    case Severity::kDebug: return obs::Level::kDebug;
    case Severity::kInfo: return obs::Level::kInfo;
    case Severity::kWarning: return obs::Level::kWarning;
    case Severity::kError: return obs::Level::kError;
  }
  return obs::Level::kError;
}

absl::Status NotWritten(const absl::Status& unreadable) {
  return UserError(absl::StatusCode::kDataLoss, "a row would not be readable again",
                   PartsOf(unreadable).because + "; its step is not written, the journal is whole",
                   "keep the folder and report this");
}

}  // namespace

CoreLoop::CoreLoop(boost::asio::io_context& io, Journal& journal, obs::Logger& log, Outlet& outlet)
    : io_(io),
      journal_(journal),
      log_(log),
      outlet_(outlet),
      standstill_(io::MonotonicNow()),
      deadline_timer_(io),
      watch_timer_(io),
      retry_timer_(io),
      soon_timer_(io) {}

void CoreLoop::Post(Work work) { Put(std::move(work), false); }

void CoreLoop::PostSoon(Work work) { Put(std::move(work), true); }

void CoreLoop::Put(Work work, bool soon) {
  {
    std::lock_guard lock(mutex_);
    last_stamp_ = std::max(last_stamp_, io::MonotonicNow());
    inbox_.push_back({last_stamp_, std::move(work)});
    if (woken_ || (soon && dozing_)) return;
    (soon ? dozing_ : woken_) = true;
  }
  if (!soon) return boost::asio::post(io_, [this] { Drain(); });
  boost::asio::post(io_, [this] {
    soon_timer_.expires_after(kSoon);
    soon_timer_.async_wait([this](const boost::system::error_code& error) {
      if (!error) Drain();
    });
  });
}

void CoreLoop::Drain() {
  Enter();
  RunReceived();
  Arm();
  Flush();
}

void CoreLoop::RunReceived() {
  std::vector<Received> received;
  {
    std::lock_guard lock(mutex_);
    received.swap(inbox_);
    woken_ = dozing_ = false;
  }
  for (Received& one : received) one.work(one.at);
}

void CoreLoop::Enter() {
  const Instant now = io::MonotonicNow();
  const std::optional<Standstill::Gap> gap = standstill_.Enter(now);
  if (!gap || !started() || stopping_ || failed_) return;
  if (!gap->heard) {
    log_.Warning("the loop stood still: leases are extended by the gap",
                 {{"seconds", std::to_string(Seconds(gap->gap))}});
  } else if (std::exchange(slow_, slow_ + gap->gap) <= Standstill::kLoop &&
             slow_ > Standstill::kLoop) {
    log_.Warning("the disk of the journal takes long: nothing is answered until it has written");
  }
  // At the time of the last step, so that no deadline in between comes first.
  StepCore(now_, Stalled{gap->gap, now, gap->heard});
}

void CoreLoop::Watch() {
  watch_timer_.expires_after(kWatchInterval);
  watch_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    Enter();
    Watch();
    Arm();
    Flush();
  });
}

void CoreLoop::Start(Core core) {
  core_.emplace(std::move(core));
  now_ = io::MonotonicNow();
  standstill_ = Standstill(now_);
  if (numbers_) numbers_->Take().Use(core_->newest_number());
  StepCore(now_, Tick{});
  Watch();
  Arm();
  Flush();
}

absl::StatusOr<ReadReply> CoreLoop::Read(const ReadFilter& filter) const {
  return core_->Read(filter, now_, io::WallNow());
}

void CoreLoop::Step(Instant received, const Event& event) {
  CHECK(started());
  if (stopping_ || failed_) return;
  TickUntil(received);
  const Instant now = std::max(now_, received);
  const bool may_begin =
      std::holds_alternative<SubmitAsked>(event) || std::holds_alternative<LaunchAsked>(event);
  if (numbers_ && may_begin) return StepNumbered(now, event);
  StepCore(now, event);
}

void CoreLoop::StepNumbered(Instant now, Event event) {
  JobNumbers::Turn turn = numbers_->Take();
  if (auto* submit = std::get_if<SubmitAsked>(&event)) submit->number_used = turn.used();
  if (auto* launch = std::get_if<LaunchAsked>(&event)) launch->number_used = turn.used();
  StepCore(now, event);
  turn.Use(core_->newest_number());
}

void CoreLoop::TickUntil(Instant limit) {
  while (!failed_) {
    const std::optional<Instant> due = core_->NextDeadline();
    if (!due || *due > limit) return;
    StepCore(std::max(now_, *due), Tick{});
  }
}

void CoreLoop::StepCore(Instant now, const Event& event) {
  now_ = now;
  Effects effects = core_->Step(now, io::WallNow(), event);
  Output output;
  output.rows.reserve(effects.rows.size());
  if (!effects.rows.empty()) ++rows_;
  for (Row& row : effects.rows) {
    JournalRow encoded = EncodeRow(row);
    const bool is_event = row.value && std::holds_alternative<JobEventRow>(*row.value);
    if (const absl::Status readable = CheckReadable(row, encoded); !readable.ok()) {
      // Of a row that no later start could read nothing is written. An event is only history.
      if (!is_event) return Fail(NotWritten(readable));
      log_.Warning("an event is left out", {{"because", PartsOf(readable).because}});
      continue;
    }
    output.bytes += encoded.key.size() + (encoded.value ? encoded.value->size() : 0);
    output.weight += !encoded.value && encoded.key.ends_with('/') ? kRowsOfFolder : 1;
    output.rows.push_back(std::move(encoded));
    if (is_event) output.events.push_back(std::get<JobEventRow>(*std::move(row.value)));
  }
  output.actions = std::move(effects.actions);
  output.notes = std::move(effects.notes);
  if (output.rows.empty() && output.actions.empty() && output.notes.empty()) return;
  pending_bytes_ += output.bytes;
  pending_.push_back(std::move(output));
  if (pending_bytes_ > kMaxPendingBytes) {
    Fail(UserError(absl::StatusCode::kResourceExhausted, "the journal is too slow",
                   std::to_string(pending_bytes_) + " bytes wait to be written, at most " +
                       std::to_string(kMaxPendingBytes) + " may",
                   "look at the disk that holds the state directory"));
  }
}

void CoreLoop::Arm() {
  if (!started() || stopping_ || failed_) return;
  const std::optional<Instant> due = core_->NextDeadline();
  // A timer that comes too early looks again, and costs less than one that each event puts off.
  if (!due || (armed_for_ && *armed_for_ <= *due)) return;
  armed_for_ = due;
  deadline_timer_.expires_after(std::max(*due - io::MonotonicNow(), Duration(0)));
  deadline_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error || stopping_ || failed_) return;
    Enter();
    armed_for_.reset();
    RunReceived();  // What came before the deadline counts.
    if (stopping_ || failed_) return;
    TickUntil(std::max(now_, io::MonotonicNow()));
    Arm();
    Flush();
  });
}

void CoreLoop::Flush() {
  if (in_flight_ > 0 || failed_) return;
  // What wrote nothing has nothing to wait for.
  std::size_t free = 0;
  while (free < pending_.size() && pending_[free].rows.empty()) ++free;
  Release(free);
  if (failed_) return;
  if (!pending_.empty()) {
    standstill_.BeginCommit(io::MonotonicNow());
    return CommitFirst();
  }
  if (stopping_ && stopped_) std::exchange(stopped_, nullptr)();
}

void CoreLoop::CommitFirst() {
  Journal::Batch batch;
  std::size_t bytes = 0, count = 0, weight = 0;
  for (const Output& output : pending_) {
    const bool fits =
        weight + output.weight <= kMaxBatchRows && bytes + output.bytes <= kMaxBatchBytes;
    if (count > 0 && !fits) break;
    batch.insert(batch.end(), output.rows.begin(), output.rows.end());
    bytes += output.bytes;
    weight += output.weight;
    ++count;
  }
  in_flight_ = count;
  journal_.Commit(std::move(batch), [this](absl::Status status) {
    boost::asio::post(io_, [this, status = std::move(status)] { OnCommitted(status); });
  });
}

void CoreLoop::OnCommitted(const absl::Status& status) {
  Enter();
  if (failed_) return;
  if (absl::IsResourceExhausted(status) && ++disk_full_tries_ < kDiskFullTries) {
    if (disk_full_tries_ == 1) {
      log_.Error("the disk of the journal is full: nothing is answered until there is room",
                 {{"because", PartsOf(status).because}});
    }
    retry_timer_.expires_after(kDiskFullRetry);
    retry_timer_.async_wait([this](const boost::system::error_code& error) {
      if (!error) CommitFirst();
    });
    return;
  }
  if (!status.ok()) return Fail(status);
  if (disk_full_tries_ > 0) log_.Info("the journal can be written again");
  disk_full_tries_ = 0;
  const Duration late = standstill_.EndCommit(io::MonotonicNow());
  if (std::exchange(slow_, Duration()) > Standstill::kLoop) {
    log_.Info("the disk of the journal has written", {{"late_s", std::to_string(Seconds(late))}});
  }
  const std::size_t count = std::exchange(in_flight_, 0);
  Release(count);
  Arm();
  Flush();
}

void CoreLoop::Release(std::size_t outputs) {
  for (; outputs > 0 && !failed_; --outputs) {
    Output output = std::move(pending_.front());
    pending_.pop_front();
    pending_bytes_ -= output.bytes;
    for (const Note& note : output.notes) log_.Log(LevelOf(note.severity), note.what, note.fields);
    for (const JobEventRow& row : output.events) outlet_.Happened(row.job, row.event);
    for (Action& action : output.actions) {
      // Nothing of this journal may be seen after it was found to be the wrong one.
      if (std::holds_alternative<StepDown>(action)) failed_ = true;
      outlet_.CarryOut(std::move(action));
      if (failed_) return;
    }
  }
}

void CoreLoop::Stop(std::function<void()> done) {
  stopping_ = true;
  stopped_ = std::move(done);
  deadline_timer_.cancel();
  watch_timer_.cancel();
  if (failed_) return std::exchange(stopped_, nullptr)();
  Flush();
}

void CoreLoop::Fail(const absl::Status& why) {
  if (std::exchange(failed_, true)) return;
  deadline_timer_.cancel();
  watch_timer_.cancel();
  outlet_.Fatal(why);
}

}  // namespace regroup::coordinator
