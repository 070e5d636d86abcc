#pragma once

// The one loop of the coordinator: events in, steps of the core, rows to the journal, effects out
// in order.
//
//  - Anything may Post from any thread; work is stamped on receipt, under one lock, and run in that
//  order.
//  - The core is ticked for every deadline that is due before the stamp of the event that is
//  stepped.
//  - One batch of rows is in flight; what later steps wrote collects meanwhile. Actions, notes and
//  events of a step are
//    carried out once its rows and those of all earlier steps are durable, in order. The loop never
//    waits for the disk.
//  - A loop that stood still, or whose commit takes long, says so to the core before anything else
//  (Standstill).

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/base/time.h"
#include "common/obs/logger.h"
#include "launcher/coordinator/core/core.h"
#include "launcher/coordinator/core/standstill.h"
#include "launcher/coordinator/shell/job_numbers.h"
#include "launcher/coordinator/shell/journal.h"

namespace regroup::coordinator {

// Where effects go. Called on the loop's thread; may Post, never steps.
class Outlet {
 public:
  virtual ~Outlet() = default;
  virtual void CarryOut(Action action) = 0;
  // A job's event that is durable now.
  virtual void Happened(const JobId& job, const JobEvent& event) = 0;
  // The journal failed: nothing is carried out any more, this process must end.
  virtual void Fatal(const absl::Status& why) = 0;
};

class CoreLoop {
 public:
  using Work = std::function<void(Instant received)>;

  CoreLoop(boost::asio::io_context& io, Journal& journal, obs::Logger& log, Outlet& outlet);

  // Any thread.
  void Post(Work work);
  // For what nobody waits for: it is stamped and ordered likewise, and the loop is woken for it
  // within 2 ms, unless something else does so.
  void PostSoon(Work work);

  // The rest on the loop's thread.

  // Before Start: jobs take their numbers from there.
  void NumberJobsBy(JobNumbers numbers) { numbers_.emplace(std::move(numbers)); }
  // Takes the core and steps its first Tick.
  void Start(Core core);
  // REQUIRES: Start was called; `received` as a Work got it.
  void Step(Instant received, const Event& event);
  // Commits what is pending, carries it out, then calls `done`; nothing is stepped any more.
  void Stop(std::function<void()> done);

  // What is decided, durable or not: not to be told before the answer of a ReadAsked that is
  // stepped later. REQUIRES: Start was called.
  absl::StatusOr<ReadReply> Read(const ReadFilter& filter) const;

  bool started() const { return core_.has_value(); }
  // Rises with every step that wrote rows.
  std::uint64_t rows() const { return rows_; }
  boost::asio::io_context& io() { return io_; }

 private:
  struct Received {
    Instant at{};
    Work work;
  };
  struct Output {  // Of one step.
    Journal::Batch rows;
    std::size_t bytes = 0;
    std::size_t weight = 0;  // Rows, and for a folder as many as it may hold.
    std::vector<JobEventRow> events;
    std::vector<Action> actions;
    std::vector<Note> notes;
  };

  void Put(Work work, bool soon);
  void Drain();
  void RunReceived();
  void Enter();  // Every entry into the loop's thread: notices that it stood still.
  void Watch();
  void TickUntil(Instant limit);
  void StepNumbered(Instant now, Event event);
  void StepCore(Instant now, const Event& event);
  void Arm();
  void Flush();
  void CommitFirst();
  void OnCommitted(const absl::Status& status);
  void Release(std::size_t outputs);
  void Fail(const absl::Status& why);

  boost::asio::io_context& io_;
  Journal& journal_;
  obs::Logger& log_;
  Outlet& outlet_;
  std::optional<Core> core_;
  std::optional<JobNumbers> numbers_;

  std::mutex mutex_;
  std::vector<Received> inbox_;  // Guarded by mutex_, as are the next three.
  Instant last_stamp_{};
  bool woken_ = false, dozing_ = false;  // The inbox is looked at: at once; soon.

  Instant now_{};  // Of the last step; never decreases.
  Standstill standstill_;
  Duration slow_{};  // Told so far of the commit that is in flight.
  boost::asio::steady_timer deadline_timer_, watch_timer_, retry_timer_, soon_timer_;
  std::optional<Instant> armed_for_;

  std::deque<Output> pending_;
  std::size_t pending_bytes_ = 0;
  std::uint64_t rows_ = 0;
  std::size_t in_flight_ = 0;  // Outputs of pending_ whose rows are being committed.
  bool failed_ = false, stopping_ = false;
  int disk_full_tries_ = 0;
  std::function<void()> stopped_;
};

}  // namespace regroup::coordinator
