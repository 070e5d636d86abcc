#pragma once

// The agent's shell: one loop thread that steps the core and carries out what it orders. Every
// other thread only posts.

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "agent/core/core.h"
#include "agent/shell/backoff.h"
#include "agent/shell/dialler.h"
#include "agent/shell/gpu_watch.h"
#include "agent/shell/group_host.h"
#include "agent/shell/log_streams.h"
#include "agent/shell/node_folder.h"
#include "agent/shell/session.h"
#include "agent/shell/worker_server.h"
#include "common/base/views.h"
#include "common/obs/logger.h"

namespace regroup::agent {

// What a launch command shows of all this. Called on the loop; must not wait.
class Front {
 public:
  virtual ~Front() = default;
  virtual void Attached(const std::string& node_name) = 0;
  virtual void Away(const std::string& why) = 0;
  virtual void JobKnown(const JobId& job) = 0;
  virtual void Happened(const JobEvent& event) = 0;
  virtual void Over(JobView view) = 0;
  virtual void Output(const GroupKey& key, const std::vector<GroupHost::RankLog>& logs) = 0;
  // How far it is with the output of every group that it has not shown to the end. What WhenShown
  // was given is called on the loop whenever that has changed.
  virtual std::map<GroupKey, shim::Shown> ShownSoFar() const = 0;
  virtual void WhenShown(std::function<void()> changed) = 0;
  virtual void Leaving(int signal, Duration left, bool again) = 0;
  virtual void Warned(const std::string& text) = 0;
};

struct AgentOptions {
  Config core;
  GroupHost::Options groups;
  io::UniqueFd worker_listener;
  std::optional<LaunchRequest> launch;  // Its age is that at `started_at`.
  Instant started_at{};
  std::vector<int> ending_signals = {SIGTERM, SIGINT, SIGHUP};
  std::vector<int> forwarded_signals;  // Passed on to workers.
  bool durable_memory = false;         // A service remembers whom it follows on disk.
  bool tells_of_gpus = false;          // A service, those of `groups.devices`.
};

class Agent {
 public:
  // All of them outlive this object; `front` may be null, `log` too.
  Agent(boost::asio::io_context& loop, AgentOptions options, NodeFolder& folder, Dialler& dialler,
        Front* front, obs::Logger* log);
  ~Agent();

  struct End {
    int exit_code = 0;
    std::string why;    // Exit code 125: what to tell the user, whole lines.
    bool gone = false;  // It left, and did not detach: what is over need not be kept.
    std::set<std::string> removing = {};  // Run directories that are forgotten and yet to go.
  };
  // Runs the loop until the core leaves.
  End Run();
  // From the loop: something that this process can't go on with. Ends at once unless workers run.
  void Fatal(const absl::Status& why);
  // From the loop: logged, and shown by a launch command.
  void Warn(const std::string& text);

 private:
  void Post(Event event);
  void Step();
  void ArmTimer();
  void WatchSignals();
  void WaitForSignal();
  void Dial();
  void RedialLater(Duration wait);
  void Hurry();
  void Connect(const DialTarget& target);
  void OnMessage(const v1::CoordinatorMessage& message);
  void OnBroken(const absl::Status& why);
  void OnLaunchAnswer(const v1::LaunchAnswer& answer);
  void OpenLogs(const v1::OpenLogs& asked, Instant limit);
  void Away(const std::string& why);
  void Malformed(const absl::Status& why);
  void Log(const std::string& text, bool warning = false);
  void Refused(const absl::Status& why);
  bool WorthLogging(const std::string& why);

  template <class Message>
  void Send(void (v1::AgentMessage::*set)(Message*), Message message);

  void Carry(const SendHello& action);
  void Carry(const RememberCoordinator& action);
  void Carry(const RefuseCoordinator& action);
  void Carry(const BreakSession& action);
  void Carry(const SendLaunch& action);
  void Carry(const SendReport& action);
  void Carry(const SendProgress& action);
  void Carry(const SendCommit& action);
  void Carry(const SendNotice& action);
  void Carry(const SendLeave& action);
  void Carry(const ShowLeaving& action);
  void Carry(const SendHeartbeat& action);
  void Carry(const TellNotice& action);
  void Carry(const TellRetire& action);
  void Carry(const TellCommit& action);
  void Carry(const StartCoordinator& action);
  void Carry(const Leave& action);
  template <class GroupAction>
  void Carry(const GroupAction& action) {
    groups_.Carry(action);
  }

  boost::asio::io_context& loop_;
  boost::asio::thread_pool disk_;
  NodeFolder& folder_;
  Dialler& dialler_;
  Front* const front_;
  obs::Logger* const log_;
  const AgentOptions options_;
  Core core_;
  WorkerServer workers_;
  GroupHost groups_;
  LogStreams logs_;
  std::unique_ptr<GpuWatch> gpus_;  // Null: it tells of none.
  std::uint64_t gpus_told_ = 0;     // What this session has said of them.
  Backoff backoff_;

  boost::asio::signal_set signals_;
  boost::asio::steady_timer core_timer_, dial_timer_, end_timer_;
  std::optional<Instant> armed_;
  std::deque<Event> events_;
  bool stepping_ = false;

  std::optional<DialTarget> target_;
  Instant dialled_at_{};
  std::unique_ptr<Session> session_;
  std::string name_;      // As the coordinator named this node.
  bool refused_ = false;  // By the session that is about to end.
  std::optional<Instant> away_logged_;
  std::string away_why_;
  bool probing_ = false;  // A thread asks who listens at the coordinator's address.
  std::optional<End> end_;
  const std::shared_ptr<bool> alive_ =
      std::make_shared<bool>(true);  // Sole owner; others are weak.
};

}  // namespace regroup::agent
