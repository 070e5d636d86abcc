#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "common/base/time.h"
#include "common/io/fd.h"
#include "worker/checkpoint/saver.h"

namespace regroup::worker {

struct ControlOptions {
  std::string socket;  // Path.
  std::string job;
  std::uint64_t generation = 0;
  int rank = 0, local_rank = 0;
  std::string token{};       // By which the agent knows this rank.
  bool takes_notice = true;  // Saves on a notice; else the agent sends SIGTERM at once.
};

// What a rank tells about itself; absolute, so that only the newest one matters.
struct WorkerReport {
  std::int64_t step = 0, samples = 0;  // Done so far, over all restarts, by the whole job.
  std::optional<std::int64_t> tokens;  // Likewise.
  std::optional<double> loss, tokens_per_second;
  std::optional<std::int64_t> restored_step;
  std::optional<double> init_s, restore_s, first_step_s, checkpoint_s;
};

// This rank's connection to its agent (proto/local.proto), served by a thread of its own: training
// never waits for it. The agent may restart at any time; the client dials again, says hello and
// repeats what still counts. Any thread.
class ControlClient final : public CommitGate {
 public:
  // Never fails: an agent that is not there is dialled until it is.
  static std::unique_ptr<ControlClient> Start(ControlOptions options);
  ~ControlClient() override;

  void Report(const WorkerReport& report);
  // Returns once it is sent, at the latest after 100 ms.
  void CommunicatorFailed(std::string text);
  // Returns once everything said is sent, at the latest after 100 ms.
  void Flush();
  // Set once the agent has told of a preemption: how long was left then.
  std::optional<Duration> notice() const;
  absl::Status Ask(const CommitQuestion& question, const std::function<bool()>& cancelled) override;

 private:
  explicit ControlClient(ControlOptions options);
  void Run();
  void Dial();
  void HangUp();
  // Queues whatever is due; returns when to look again if nothing happens.
  std::chrono::steady_clock::time_point Collect(std::chrono::steady_clock::time_point now);
  void Write();
  void Read();
  void Obey(const std::string& line);
  void Wake();
  bool Sent() const;  // REQUIRES: mutex_ held.

  const ControlOptions options_;
  io::UniqueFd wake_;  // An eventfd.

  // Of the thread.
  io::UniqueFd socket_;
  std::string incoming_, outgoing_;
  Duration redial_after_;
  std::chrono::steady_clock::time_point next_dial_, next_report_;

  mutable std::mutex mutex_;  // Guards all below.
  std::condition_variable changed_;
  bool stop_ = false;
  bool idle_ = true;                    // The thread has nothing queued.
  std::optional<WorkerReport> report_;  // The newest; kept, for it is repeated on a new connection.
  bool report_due_ = false;
  std::optional<std::string> failure_;
  bool failure_due_ = false;
  std::optional<CommitQuestion> question_;  // Asked and not answered.
  bool question_due_ = false;
  std::optional<absl::Status> answer_;
  std::optional<Duration> notice_;
  std::thread thread_;
};

}  // namespace regroup::worker
