// The coordinator as a process: killed, stopped, ended.

#include <gmock/gmock.h>
#include <signal.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "common/io/address.h"
#include "common/rpc/local_coordinator.h"
#include "common/rpc/places.h"
#include "tests/launcher/coordinator/shell/coordinator_process.h"
#include "tests/launcher/coordinator/shell/daemon_fixture.h"

namespace regroup::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using testing::LogicalAgent;

class ProcessTest : public ::testing::Test {
 protected:
  ProcessTest() : port_(testing::FreePort()) {}

  void Start(std::vector<std::string> more = {}) {
    std::vector<std::string> command = {"/proc/self/exe", "coordinator",
                                        "--state-dir",    state_dir(),
                                        "--listen",       "127.0.0.1:" + std::to_string(port_)};
    command.insert(command.end(), more.begin(), more.end());
    process_.Start(command, log_path());
  }
  std::string state_dir() const { return dir_.path() + "/state"; }
  std::string log_path() const { return dir_.path() + "/log"; }
  std::string socket_path() const {
    return CoordinatorFolder(state_dir(), port_) + "/" + kCoordinatorSocketName;
  }
  Client Dial() {
    // The folder appears with the first start.
    EXPECT_TRUE(Eventually([&] { return DialUnix(socket_path()).ok(); }));
    return Client(*DialUnix(socket_path()));
  }
  LogicalAgent& AddAgent(const std::string& name, bool launched = false) {
    testing::LogicalAgentOptions options;
    options.socket_path = socket_path();
    options.name = name;
    options.launched = launched;
    return fleet_.Add(options);
  }
  std::string Log() const {
    std::ifstream file(log_path());
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

  testing::TempDir dir_;
  const std::uint16_t port_;
  testing::CoordinatorProcess process_;
  testing::LogicalFleet fleet_;
};

bool Running(const LogicalAgent& agent, const JobId& job) {
  return agent.WaitFor([&](const auto& s) {
    const auto group = s.groups.find(job);
    return group != s.groups.end() && group->second.phase == Phase::kRunning;
  });
}

TEST_F(ProcessTest, KilledAgainAndAgainEveryJobGoesOnAndNoWorkerIsTouched) {
  Start();
  LogicalAgent& a = AddAgent("node0");
  LogicalAgent& b = AddAgent("node1");
  Client client = Dial();
  const JobId job = *client.Submit(SubmittedJob("train", 2, 2), "key");
  ASSERT_TRUE(Running(a, job));
  ASSERT_TRUE(Running(b, job));
  for (int round = 1; round <= 3; ++round) {
    process_.Kill();
    Start();
    for (LogicalAgent* agent : {&a, &b}) {
      ASSERT_TRUE(
          agent->WaitFor([&](const auto& s) { return s.attached && s.welcomes == round + 1; }));
    }
    ASSERT_TRUE(Eventually([&] {
      const auto view = client.ReadJob("train-1");
      return view.ok() && view->state == "running" && view->generation == Generation(1);
    }));
  }
  a.ExitAll(job);
  b.ExitAll(job);
  EXPECT_EQ(client.WaitForEnd("train-1", seconds(10))->state, "succeeded");
  for (LogicalAgent* agent : {&a, &b}) EXPECT_EQ(agent->state().times_started.at(job), 1);
}

// Commands that look meanwhile for who serves the port must not be led to its folder.
TEST_F(ProcessTest, WhoFindsItsPortTakenNeverSaidThatItListens) {
  const io::UniqueFd taker = *io::ListenTcp({"127.0.0.1", port_});
  Start();
  EXPECT_NE(process_.Wait(), 0);
  EXPECT_NE(Log().find("is taken"), std::string::npos) << Log();
  const std::string folder = CoordinatorFolder(state_dir(), port_);
  EXPECT_FALSE(ReadCoordinatorLock(folder).has_value());
  EXPECT_FALSE(std::filesystem::exists(socket_path()));
}

TEST_F(ProcessTest, AWorkerThatDiedWhileNobodyLookedIsFoundAndReplaced) {
  Start();
  LogicalAgent& a = AddAgent("node0");
  Client client = Dial();
  const JobId job = *client.Submit(SubmittedJob("train", 1, 1), "key");
  ASSERT_TRUE(Running(a, job));
  process_.Kill();
  a.Exit(job, 0, ExitKind::kExited, 7);
  Start();
  ASSERT_TRUE(a.WaitFor([&](const auto& s) {
    return s.times_started.count(job) > 0 && s.times_started.at(job) == 2;
  }));
  ASSERT_TRUE(Running(a, job));
  EXPECT_EQ(a.state().runs.at(job).generation, Generation(2));
}

TEST_F(ProcessTest, NoAcknowledgedSubmitIsLostWhenItIsKilled) {
  Start();
  Dial();
  std::mutex mutex;
  std::set<JobId> acknowledged;
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int c = 0; c < 4; ++c) {
    threads.emplace_back([&, c] {
      Client client(*DialUnix(socket_path()));
      for (int i = 0; !stop; ++i) {
        const std::string key = std::to_string(c) + "-" + std::to_string(i);
        absl::StatusOr<JobId> job = client.Submit(SubmittedJob("train", 1, 1), key);
        // As a client does: the same key until it is answered.
        while (!job.ok() && !stop) job = client.Submit(SubmittedJob("train", 1, 1), key);
        if (!job.ok()) return;
        std::lock_guard lock(mutex);
        EXPECT_TRUE(acknowledged.insert(*job).second) << *job << " was given twice";
      }
    });
  }
  const auto count = [&] {
    std::lock_guard lock(mutex);
    return acknowledged.size();
  };
  ASSERT_TRUE(Eventually([&] { return count() > 50; }));
  process_.Kill();
  const std::size_t at_kill = count();
  Start();
  ASSERT_TRUE(Eventually([&] { return count() > at_kill + 50; }));
  stop = true;
  for (std::thread& thread : threads) thread.join();
  pb::ReadRequest request;
  request.set_what(pb::ReadRequest::WHAT_JOBS);
  const auto reply = Dial().Read(request);
  ASSERT_TRUE(reply.ok()) << reply.status();
  std::set<JobId> found;
  for (const pb::JobView& job : reply->jobs()) found.insert(JobId(job.id()));
  for (const JobId& job : acknowledged) EXPECT_EQ(found.count(job), 1u) << job;
}

TEST_F(ProcessTest, SignalsEndItWithZero) {
  for (int signal : {SIGTERM, SIGINT, SIGHUP}) {
    Start();
    Dial();
    LogicalAgent& agent = AddAgent("node" + std::to_string(signal));
    ASSERT_TRUE(agent.WaitFor([](const auto& s) { return s.attached; }));
    process_.Signal(signal);
    int status = -1;
    ASSERT_TRUE(process_.WaitFor(10'000, &status)) << Log();
    EXPECT_EQ(status, 0) << Log();
  }
}

// It stood still for longer than the lease, and heartbeats waited: nobody is lost.
TEST_F(ProcessTest, AStoppedCoordinatorLosesNobody) {
  Start({"--agent-lease", "600ms", "--heartbeat", "100ms"});
  LogicalAgent& a = AddAgent("node0");
  Client client = Dial();
  const JobId job = *client.Submit(SubmittedJob("train", 1, 1), "key");
  ASSERT_TRUE(Running(a, job));
  process_.Signal(SIGSTOP);
  std::this_thread::sleep_for(milliseconds(2'000));
  process_.Signal(SIGCONT);
  ASSERT_TRUE(Eventually([&] { return Log().find("stood still") != std::string::npos; })) << Log();
  // Another lease, with heartbeats again.
  std::this_thread::sleep_for(milliseconds(800));
  const auto view = client.ReadJob("train-1");
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->state, "running");
  EXPECT_EQ(view->generation, Generation(1));
  EXPECT_EQ(a.state().times_started.at(job), 1);
}

TEST_F(ProcessTest, AnAdHocOneEndsWithItsLastJob) {
  Start({"--ad-hoc"});
  LogicalAgent& a = AddAgent("node0", /*launched=*/true);
  ASSERT_TRUE(a.WaitFor([](const auto& s) { return s.attached; }));
  LaunchRequest launch{"key", "train", false, SubmittedJob("train", 1, 1), {}};
  launch.spec.origin = JobOrigin::kLaunched;
  launch.spec.directory = "";
  a.Launch(launch);
  ASSERT_TRUE(a.WaitFor([](const auto& s) { return s.launch_job.has_value(); }))
      << a.state().launch_refused;
  const JobId job = *a.state().launch_job;
  ASSERT_TRUE(Running(a, job));
  a.ExitAll(job);
  ASSERT_TRUE(a.WaitFor([](const auto& s) { return s.result.has_value(); }));
  EXPECT_EQ(a.state().result->state, "succeeded");
  EXPECT_FALSE(a.state().news.empty());
  int status = -1;
  ASSERT_TRUE(process_.WaitFor(15'000, &status)) << Log();
  EXPECT_EQ(status, 0);
}

TEST_F(ProcessTest, AnAdHocOneLogsIntoItsFolder) {
  Start({"--ad-hoc"});
  Dial();
  const std::string path = CoordinatorFolder(state_dir(), port_) + "/" + kCoordinatorLogName;
  EXPECT_TRUE(Eventually([&] {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str().find("the coordinator serves") != std::string::npos;
  }));
}

TEST_F(ProcessTest, ASecondOneExitsNamingTheFirst) {
  Start();
  Dial();
  LogicalAgent& agent = AddAgent("node0");
  ASSERT_TRUE(agent.WaitFor([](const auto& s) { return s.attached; }));
  testing::CoordinatorProcess second;
  const std::string log = dir_.path() + "/second";
  second.Start({"/proc/self/exe", "coordinator", "--state-dir", state_dir(), "--listen",
                "127.0.0.1:" + std::to_string(port_)},
               log);
  EXPECT_EQ(second.Wait(), 125);
  std::ifstream file(log);
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_THAT(text.str(), HasSubstr("error: a coordinator already runs in"));
  EXPECT_THAT(text.str(), HasSubstr("because: pid " + std::to_string(process_.pid())));
}

}  // namespace
}  // namespace regroup::coordinator
