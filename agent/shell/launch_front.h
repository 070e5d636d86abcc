#pragma once

// The face of a launch command: worker output and `regroup:` lines, on its stdout and stderr. Loop
// thread.

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "agent/shell/agent.h"
#include "agent/shell/dialler.h"
#include "agent/shell/relay.h"
#include "agent/shell/torch_events.h"
#include "common/report/run_screen.h"

namespace regroup::agent {

class LaunchFront : public Front {
 public:
  LaunchFront(boost::asio::io_context& loop, const LaunchConfig& launch,
              const LaunchDialler& dialler);

  void Attached(const std::string& node_name) override;
  void Away(const std::string& why) override;
  void JobKnown(const JobId& job) override;
  void Happened(const JobEvent& event) override;
  void Over(JobView view) override;
  void Output(const GroupKey& key, const std::vector<GroupHost::RankLog>& logs) override;
  std::map<GroupKey, shim::Shown> ShownSoFar() const override;
  void WhenShown(std::function<void()> changed) override { shown_changed_ = std::move(changed); }
  void Leaving(int signal, Duration left, bool again) override;
  void Warned(const std::string& text) override;

  // After the loop: shows what is left of the output, then the end. Waits for a reader that is
  // slow, unless the user has asked twice to leave, now or before. Returns the exit code of this
  // command.
  int Finish(const Agent::End& end);
  // For a launcher above this one: why the job failed, if it did. After the loop, before Finish.
  void LeaveErrorFile(const std::string& path);

 private:
  Duration Now() const;
  void Say(std::string text, bool at_once = false);
  std::string CannotWrite(LineMixer::Sink sink, int error);
  void ArmTimer();
  void OnProgress();
  void WaitForReader(const std::string& words);

  boost::asio::io_context& loop_;
  const LaunchConfig& launch_;
  const LaunchDialler& dialler_;
  RunScreen screen_;
  std::mutex mutex_;  // Guards these two: CannotWrite is called on the relay's thread.
  std::string job_;
  bool failed_ = false;  // To write, where that is to end the job.
  std::function<void()> shown_changed_;
  std::atomic<bool> progress_posted_ = false;
  std::optional<TorchEvents> events_;  // Where --event-log-handler asks for them.
  Relay relay_;
  boost::asio::steady_timer timer_;
  const std::string host_;
  std::string node_name_;
  std::map<GroupKey, std::set<std::string>> followed_;
  std::map<std::string, std::pair<GroupKey, int>> showing_;  // Directory → whose, local rank.
  std::optional<JobView> view_;
  std::map<std::string, Duration> warned_;  // Text → when.
  bool away_ = false;
  bool leaving_ = false, hurried_ = false;
};

}  // namespace regroup::agent
