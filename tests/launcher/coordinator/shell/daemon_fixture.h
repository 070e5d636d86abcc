#pragma once

// A real coordinator in this process, and a client of its calls.

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/rpc/channel.h"
#include "common/rpc/convert.h"
#include "launcher/coordinator/shell/daemon.h"
#include "proto/coordinator.grpc.pb.h"
#include "tests/launcher/coordinator/shell/logical_agent.h"
#include "tests/launcher/coordinator/shell/temp_dir.h"

namespace regroup::coordinator {

// Every call has a deadline of ten seconds unless told otherwise.
class Client {  // Of one thread.
 public:
  explicit Client(Connection connection)
      : connection_(std::move(connection)), stub_(pb::Coordinator::NewStub(connection_.channel)) {}

  absl::StatusOr<JobId> Submit(const JobSpec& spec, const std::string& key);
  absl::StatusOr<JobId> Cancel(const std::string& job, bool now = false);
  absl::StatusOr<JobView> ReadJob(const std::string& job, bool detail = true);
  absl::StatusOr<JobView> WaitForEnd(const std::string& job, std::chrono::milliseconds limit);
  absl::StatusOr<pb::ReadReply> Read(const pb::ReadRequest& request,
                                     std::chrono::milliseconds limit = std::chrono::seconds(10));
  pb::Coordinator::Stub& stub() { return *stub_; }

 private:
  Connection connection_;
  std::unique_ptr<pb::Coordinator::Stub> stub_;
};

// Waits in short naps; false when it did not become true in time.
bool Eventually(const std::function<bool()>& condition,
                std::chrono::milliseconds limit = std::chrono::seconds(10));

// What an agent of a node of this name says first.
pb::AgentMessage SomeHello(const std::string& node);

JobSpec SubmittedJob(const std::string& name, int min_nodes, int max_nodes, int workers = 1);

class DaemonFixture : public ::testing::Test {
 protected:
  // This process's memory is its clients' and its sanitizer's, too.
  DaemonFixture() { config_.memory_limit_bytes = std::uint64_t{8} << 30; }
  ~DaemonFixture() override { Stop(); }

  // Port 0 unless `config_` says otherwise; the same folder at every start after the first.
  void Start();
  int Stop();  // The exit status of Run; 0 when it was not running.
  Client OverUnix() { return Client(*DialUnix(daemon_->socket_path())); }
  Client OverTcp() { return Client(Dial(daemon_->addresses().front())); }
  testing::LogicalAgent& AddAgent(const std::string& name, int slots = 1);

  bool asks_for_token_ = false;  // Set before the first start.
  testing::TempDir dir_;
  CoordinatorConfig config_;
  std::unique_ptr<Daemon> daemon_;
  std::thread thread_;
  int exit_status_ = 0;
  testing::LogicalFleet fleet_;
};

}  // namespace regroup::coordinator
