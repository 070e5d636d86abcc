#pragma once

// An agent without processes: it speaks the session protocol over a real gRPC stream and pretends
// the rest. For tests and benchmarks of the coordinator; a fleet of thousands lives on one thread.

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/base/control.h"
#include "common/base/views.h"

namespace regroup::testing {

struct LogicalAgentOptions {
  Address coordinator;      // TCP, or
  std::string socket_path;  // a Unix socket.
  std::string token;        // What it proves over TCP. Empty: nothing.
  std::string name;         // Node name; its id is "id-" + name unless given.
  std::string id;
  int slots = 1;
  bool launched = false;
  bool witness = false;  // A real listening port per group.
  std::string address = "127.0.0.1";
  std::uint64_t incarnation = 1;
};

// What has happened to one agent so far.
struct LogicalAgentState {
  bool attached = false;  // Welcomed and not broken since.
  int welcomes = 0, breaks = 0, orders = 0;
  std::string name;  // As welcomed.
  ClusterId cluster;
  Epoch epoch;
  std::map<JobId, GroupReport> groups;  // The inventory.
  std::map<JobId, Run> runs;            // The last run obeyed.
  std::map<JobId, int> times_started;   // How often ranks were started.
  std::optional<JobId> launch_job;
  absl::Status launch_refused;
  std::vector<JobEvent> news;
  std::optional<JobView> result;
  std::optional<CommitAnswer> commit_answer;
  absl::Status refused;  // By a refusal that ends the session: the agent stays away.
};

class LogicalFleet;

// Every call may come from any thread and is done on the fleet's.
class LogicalAgent {
 public:
  ~LogicalAgent();
  // A rank of the group exits by itself.
  void Exit(const JobId& job, int local_rank, ExitKind kind = ExitKind::kExited, int code = 0);
  void ExitAll(const JobId& job, ExitKind kind = ExitKind::kExited, int code = 0);
  void Progress(const JobId& job, std::int64_t step);
  void AskCommit(const CommitRequest& request);
  void SendNotice(const Notice& notice);
  void Launch(const LaunchRequest& request);  // Repeated after every reconnect.
  void Leave(int signal, bool now);
  void Break();  // The session only; it redials.
  void Kill();   // As if the host had lost power: session and witnesses are gone, for ever.
  void Revive(std::uint64_t incarnation,
              const std::string& boot);  // After Kill: another life, no groups.

  LogicalAgentState state() const;
  // False when it did not become true in time.
  bool WaitFor(const std::function<bool(const LogicalAgentState&)>& condition,
               std::chrono::milliseconds limit = std::chrono::seconds(10)) const;

 private:
  friend class LogicalFleet;
  class Impl;
  explicit LogicalAgent(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;  // Shared with its pending callbacks.
};

class LogicalFleet {
 public:
  LogicalFleet();
  ~LogicalFleet();  // Ends every session first.
  // Begins to dial at once.
  LogicalAgent& Add(const LogicalAgentOptions& options);
  std::size_t size() const { return agents_.size(); }
  LogicalAgent& at(std::size_t i) { return *agents_[i]; }

 private:
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  boost::asio::thread_pool proving_{8};  // Blocks until a coordinator has answered.
  std::vector<std::unique_ptr<LogicalAgent>> agents_;
  std::thread thread_;
};

}  // namespace regroup::testing
