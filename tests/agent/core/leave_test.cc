// How an agent ends: PROTOCOL §5, last third, and CLI.md's exit codes as far as the agent decides
// them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/agent/core/driver.h"

namespace regroup::agent {
namespace {

using namespace regroup::agent::testing;

TEST(AgentLeave, ASignalDetachesAService) {
  for (int signal : {SIGTERM, SIGINT, SIGHUP}) {
    Driver agent(ServiceConfig());
    agent.Attach();
    BringUp(agent, 1, 1);
    agent.Do(SignalCaught{signal});
    ASSERT_NE(agent.Last<Leave>(), nullptr) << signal;
    EXPECT_EQ(agent.Last<Leave>()->exit_code, 0);
    EXPECT_EQ(agent.CountEver<StopRanks>(), 0);
    EXPECT_EQ(agent.CountEver<RemoveRunDirectory>(), 0);
    EXPECT_TRUE(agent.Do(GroupEmpty{Key("a-1", 1)}).actions.empty()) << "nothing follows";
  }
}

Config NoticedService() {
  Config config = ServiceConfig();
  config.sigterm_is_notice = true;
  config.grace = 20s;
  return config;
}

TEST(AgentLeave, SigtermIsANoticeWhereAsked) {
  const Config config = NoticedService();
  Driver agent(config);
  agent.Attach();
  BringUp(agent, 1, 1);
  agent.Do(SignalCaught{SIGTERM});
  ASSERT_NE(agent.Last<SendNotice>(), nullptr);
  EXPECT_EQ(agent.Last<SendNotice>()->notice.left, 20s);
  EXPECT_EQ(agent.Last<StopRanks>(), nullptr) << "the coordinator orders the save first";
  agent.Do(Ordered{StopOrder(3, 1, 5s, StopReason::kNotice)});
  agent.Do(GroupEmpty{Key("a-1", 1)});
  EXPECT_EQ(agent.Last<Leave>(), nullptr) << "its report is not durable yet";
  agent.Do(ReportAcked{agent.Last<SendReport>()->report.number});
  ASSERT_NE(agent.Last<Leave>(), nullptr);
  EXPECT_EQ(agent.Last<Leave>()->exit_code, 0);
  // SIGINT detaches even then.
  Driver other(config);
  other.Do(SignalCaught{SIGINT});
  EXPECT_NE(other.Last<Leave>(), nullptr);
}

TEST(AgentLeave, LaunchersLeaveWithGrace) {
  struct Row {
    int signal;
    int code;
  };
  for (const Row& row : {Row{SIGINT, 130}, Row{SIGTERM, 143}, Row{SIGHUP, 129}}) {
    Driver agent(LaunchedConfig());
    agent.Attach();
    BringUp(agent, 1, 1);
    agent.Do(SignalCaught{row.signal});
    ASSERT_NE(agent.Last<SendLeave>(), nullptr);
    EXPECT_FALSE(agent.Last<SendLeave>()->now);
    agent.Do(Ordered{StopOrder(3, 1, 30s, StopReason::kNotice)});
    agent.AdvanceTo(10s);
    agent.Do(GroupEmpty{Key("a-1", 1)});
    agent.Do(ReportAcked{agent.Last<SendReport>()->report.number});
    EXPECT_EQ(agent.Last<Leave>(), nullptr)
        << "perhaps the job ended with us: the coordinator says so in a moment";
    agent.AdvanceTo(11s);
    ASSERT_NE(agent.Last<Leave>(), nullptr);
    EXPECT_EQ(agent.Last<Leave>()->exit_code, row.code);
    EXPECT_NE(agent.Last<RemoveRunDirectory>(), nullptr);
  }
}

TEST(AgentLeave, ANoticeIsPartOfTheNextHello) {
  const Config config = NoticedService();
  Driver agent(config);
  agent.Attach();
  BringUp(agent, 1, 1);
  agent.Do(SignalCaught{SIGTERM});
  agent.Do(CoordinatorAway{});
  agent.AdvanceTo(5s);
  agent.Do(CoordinatorFound{"10.0.0.2", "10.0.0.1"});
  const Hello& hello = agent.Last<SendHello>()->hello;
  EXPECT_EQ(hello.groups.size(), 1u);
  ASSERT_EQ(hello.notices.size(), 1u);
  EXPECT_EQ(hello.notices[0].signal, SIGTERM);
  EXPECT_EQ(hello.notices[0].left, 15s);
}

TEST(AgentLeave, OneCtrlCUnderTimeoutArrivesTwice) {
  Driver agent(LaunchedConfig());
  agent.Attach();
  BringUp(agent, 1, 1);
  agent.Do(SignalCaught{SIGINT});
  agent.AdvanceTo(1ms);
  EXPECT_TRUE(agent.Do(SignalCaught{SIGINT}).actions.empty());
  agent.AdvanceTo(499ms);
  EXPECT_TRUE(agent.Do(SignalCaught{SIGINT}).actions.empty());
  agent.AdvanceTo(500ms);
  agent.Do(SignalCaught{SIGINT});
  ASSERT_NE(agent.Last<StopRanks>(), nullptr);
  EXPECT_EQ(agent.Last<StopRanks>()->deadline, At(500ms));
  EXPECT_TRUE(agent.Last<SendLeave>()->now);
  agent.Do(GroupEmpty{Key("a-1", 1)});
  ASSERT_NE(agent.Last<Leave>(), nullptr);
  EXPECT_EQ(agent.Last<Leave>()->exit_code, 130);
}

TEST(AgentLeave, WithoutACoordinatorItStopsItsOwn) {
  Driver agent(LaunchedConfig());
  agent.Attach();
  BringUp(agent, 1, 1);
  agent.Do(CoordinatorAway{});
  agent.Do(SignalCaught{SIGINT});
  ASSERT_NE(agent.Last<StopRanks>(), nullptr);
  EXPECT_EQ(agent.Last<StopRanks>()->deadline, At(30s));
  agent.Do(GroupEmpty{Key("a-1", 1)});
  EXPECT_EQ(agent.Last<Leave>()->exit_code, 130);
  // With nothing running it goes at once.
  Driver idle(LaunchedConfig());
  idle.Do(SignalCaught{SIGINT});
  EXPECT_EQ(idle.Last<Leave>()->exit_code, 130);
}

TEST(AgentLeave, ASilentCoordinatorIsNotWaitedForBeyondTheGrace) {
  Driver agent(LaunchedConfig());
  agent.Attach();
  BringUp(agent, 1, 1);
  agent.Do(SignalCaught{SIGINT});
  agent.AdvanceTo(30s);
  EXPECT_EQ(agent.CountEver<StopRanks>(), 0);
  agent.AdvanceTo(31s);
  EXPECT_EQ(agent.CountEver<StopRanks>(), 1);
  // Nor a group that does not die.
  agent.AdvanceTo(34s);
  ASSERT_NE(agent.Last<Leave>(), nullptr);
}

TEST(AgentLeave, TheJobsExitCodeIsTheLaunchCommands) {
  Driver agent(LaunchedConfig());
  agent.Attach();
  BringUp(agent, 1, 1);
  agent.Do(RankExited{Key("a-1", 1), {.local_rank = 0, .code = 7, .at = agent.now()}});
  agent.Do(GroupEmpty{Key("a-1", 1)});
  agent.Do(JobOver{7});
  ASSERT_NE(agent.Last<Leave>(), nullptr);
  EXPECT_EQ(agent.Last<Leave>()->exit_code, 7);
}

// Its coordinator stays until it knows; where the session broke on the way, it tells the end again.
TEST(AgentLeave, ThatTheJobIsOverIsAcknowledgedEachTime) {
  Driver agent(LaunchedConfig());
  agent.Attach();
  BringUp(agent, 1, 1);
  agent.Do(JobOver{7});
  ASSERT_NE(agent.Last<SendLeave>(), nullptr);
  EXPECT_EQ(agent.Last<SendLeave>()->signal, 0);
  EXPECT_FALSE(agent.Last<SendLeave>()->now);
  agent.Do(CoordinatorAway{});
  agent.Attach();
  agent.Do(JobOver{7});
  EXPECT_NE(agent.Last<SendLeave>(), nullptr);
}

TEST(AgentLeave, JoinTimeout) {
  Config config = LaunchedConfig();
  config.join_timeout = 10s;
  Driver waiting(config);
  waiting.Attach();
  waiting.AdvanceTo(9999ms);
  EXPECT_EQ(waiting.Last<Leave>(), nullptr);
  waiting.AdvanceTo(10s);
  ASSERT_NE(waiting.Last<Leave>(), nullptr);
  EXPECT_EQ(waiting.Last<Leave>()->exit_code, 124);
  // Also when nobody ever answered; but not once a rank has run.
  Driver alone(config);
  alone.AdvanceTo(10s);
  EXPECT_EQ(alone.Last<Leave>()->exit_code, 124);
  Driver ran(config);
  ran.Attach();
  BringUp(ran, 1, 1);
  ran.AdvanceTo(60s);
  EXPECT_EQ(ran.CountEver<Leave>(), 0);
  Driver spare(config);
  spare.Attach();
  spare.Do(EnoughJoined{});
  spare.AdvanceTo(60s);
  EXPECT_EQ(spare.CountEver<Leave>(), 0);
}

TEST(AgentLeave, ARefusedLaunchEndsUnlessItsWorkersRun) {
  Driver agent(LaunchedConfig());
  agent.Attach();
  agent.Do(CoordinatorRefused{"--nnodes 2 here, 3 there"});
  ASSERT_NE(agent.Last<Leave>(), nullptr);
  EXPECT_EQ(agent.Last<Leave>()->exit_code, 125);
  EXPECT_EQ(agent.Last<Leave>()->why, "--nnodes 2 here, 3 there");

  Driver running(LaunchedConfig());
  running.Attach();
  running.Do(LaunchAccepted{});
  BringUp(running, 1, 1);
  running.Do(CoordinatorRefused{"journal older than the fleet"});
  running.AdvanceTo(40s);
  EXPECT_EQ(running.CountEver<Leave>(), 0);
  // Of what has ended it would tell nobody but the coordinator that is gone.
  running.Do(CoordinatorAway{});
  running.Do(GroupEmpty{Key("a-1", 1)});
  running.AdvanceTo(80s);
  EXPECT_EQ(running.CountEver<Leave>(), 0) << "who refused may be gone by now";
  for (int at = 80; at <= 110; at += 2) {
    EXPECT_EQ(running.CountEver<Leave>(), 0) << at;
    running.AdvanceTo(std::chrono::seconds(at));
    running.Do(CoordinatorRefused{"journal older than the fleet"});
    if (at < 110) running.Do(CoordinatorAway{});
  }
  ASSERT_NE(running.Last<Leave>(), nullptr);
  EXPECT_EQ(running.Last<Leave>()->exit_code, 125);
}

// A stranger's coordinator may have the port for a moment.
TEST(AgentLeave, ALaunchThatBelongsToAJobIsNotRefusedAtOnce) {
  for (const bool returns : {false, true}) {
    Driver agent(LaunchedConfig());
    agent.Attach();
    agent.Do(LaunchAccepted{});
    agent.Do(CoordinatorAway{});
    agent.AdvanceTo(5s);
    agent.Do(CoordinatorRefused{"no token of this cluster"});
    agent.AdvanceTo(20s);
    agent.Do(CoordinatorRefused{"no token of this cluster"});
    agent.AdvanceTo(30s);
    agent.Do(CoordinatorRefused{"no token of this cluster"});
    EXPECT_EQ(agent.CountEver<Leave>(), 0);
    if (returns) agent.Do(LaunchAccepted{});
    agent.AdvanceTo(35s);
    agent.Do(CoordinatorRefused{"this coordinator serves another cluster"});
    EXPECT_EQ(agent.CountEver<Leave>(), returns ? 0 : 1);
    if (returns) continue;
    EXPECT_EQ(agent.Last<Leave>()->exit_code, 125);
    EXPECT_EQ(agent.Last<Leave>()->why, "this coordinator serves another cluster");
  }
}

// It asks once on each session.
TEST(AgentLeave, ALaunchThatIsRefusedAfterItsJobIsAskedForAgain) {
  Driver agent(LaunchedConfig());
  agent.Attach();
  agent.Do(LaunchAccepted{});
  agent.Do(CoordinatorAway{});
  agent.Attach();
  agent.Do(CoordinatorRefused{"--nnodes 2 here, 3 there"});
  EXPECT_NE(agent.Last<RefuseCoordinator>(), nullptr);
  EXPECT_EQ(agent.CountEver<Leave>(), 0);
}

TEST(AgentLeave, RefusalsThatLieFarApartDoNotAddUp) {
  Driver agent(LaunchedConfig());
  agent.Attach();
  agent.Do(LaunchAccepted{});
  agent.Do(CoordinatorAway{});
  for (const Duration at : {5s, 60s}) {
    agent.AdvanceTo(at);
    agent.Do(CoordinatorRefused{"no token of this cluster"});
    EXPECT_EQ(agent.CountEver<Leave>(), 0);
  }
}

// Ctrl-C, and then only strangers answer: the code of the signal.
TEST(AgentLeave, WhoLeavesIsNotRefused) {
  Driver agent(LaunchedConfig());
  agent.Attach();
  BringUp(agent, 1, 1);
  agent.Do(SignalCaught{SIGINT});
  agent.Do(GroupEmpty{Key("a-1", 1)});
  EXPECT_EQ(agent.CountEver<Leave>(), 0) << "the result may follow";
  agent.Do(CoordinatorRefused{"journal older than the fleet"});
  EXPECT_EQ(agent.CountEver<Leave>(), 0);
  agent.Do(CoordinatorAway{});
  ASSERT_NE(agent.Last<Leave>(), nullptr);
  EXPECT_EQ(agent.Last<Leave>()->exit_code, 130);
}

TEST(AgentLeave, AnotherProtocolEndsALaunchUnlessItsWorkersRun) {
  Welcome welcome = Driver::WelcomeOf();
  welcome.version.major = 9;
  for (bool runs : {false, true}) {
    Driver agent(LaunchedConfig());
    if (runs) {
      agent.Attach();
      BringUp(agent, 1, 1);
      agent.Do(CoordinatorAway{});
    }
    agent.Do(CoordinatorFound{"10.0.0.2", "10.0.0.1"});
    agent.Do(Welcomed{welcome});
    EXPECT_EQ(agent.Last<Leave>() != nullptr, !runs);
    if (runs) continue;
    EXPECT_EQ(agent.Last<Leave>()->exit_code, 125);
    EXPECT_NE(agent.Last<Leave>()->why.find("protocol 9.0"), std::string::npos);
  }
}

TEST(AgentLeave, TheHostRestartsItsCoordinator) {
  Config config = LaunchedConfig();
  config.starts_coordinator = true;
  Driver agent(config);
  agent.Attach();
  BringUp(agent, 1, 1);
  agent.Do(CoordinatorAway{});
  EXPECT_NE(agent.Last<StartCoordinator>(), nullptr);
  agent.Do(CoordinatorAway{});
  EXPECT_EQ(agent.Last<StartCoordinator>(), nullptr) << "at most one a second";
  agent.AdvanceTo(1s);
  EXPECT_NE(agent.Last<StartCoordinator>(), nullptr);
  agent.Attach("c", 2);
  agent.AdvanceTo(1500ms);
  EXPECT_EQ(agent.CountEver<StartCoordinator>(), 2);
}

// Its shell would tick again and again until this command leaves.
TEST(AgentLeave, NoCoordinatorIsDueOnceTheJobIsOver) {
  Config config = LaunchedConfig();
  config.starts_coordinator = true;
  Driver agent(config);
  agent.Attach();
  BringUp(agent, 1, 1);
  agent.Do(JobOver{0});  // Its group is being stopped.
  agent.Do(CoordinatorAway{});
  EXPECT_EQ(agent.Last<StartCoordinator>(), nullptr);
  ASSERT_TRUE(agent.core().NextDeadline());
  EXPECT_GT(*agent.core().NextDeadline(), agent.now());
}

}  // namespace
}  // namespace regroup::agent
