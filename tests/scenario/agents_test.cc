// Both cores, the coordinator's and the agents': what only their meeting shows. Around them are
// models of hosts, shims, workers and the network.

#include <optional>

#include "tests/scenario/testing.h"

namespace regroup {
namespace {

using ::testing::IsEmpty;

class Agents : public Scenario {
 protected:
  sim::Node& AddCommand(const std::string& name, const JobSpec& spec,
                        std::optional<Duration> join_timeout = {}) {
    sim::NodeOptions options;
    options.launched = true;
    options.launch = sim::LaunchOf("key-" + name, spec);
    options.join_timeout = join_timeout;
    return world().Add(name, options);
  }
};

// A failure of one rank restarts all, once, and costs one restart.
TEST_F(Agents, a_failed_rank_restarts_all) {
  Start();
  AddDaemons({"a", "b", "c"});
  const JobId job = Running(SpecOf("job", 3, 3, 1));
  world().node("a").ExitRank(job, 0, 1);
  ASSERT_TRUE(ReachesGeneration(job, 2));
  EXPECT_TRUE(GenerationOf(job, 1).charged);
  EXPECT_EQ(world().LiveRanks(job), 3);
  for (const char* name : {"a", "b", "c"}) world().node(name).ExitRank(job, 0, 0);
  ASSERT_TRUE(Reaches(job, "succeeded"));
  world().RunFor(5s);
  for (const auto& entry : world().nodes())  // Its run directories are gone.
    for (const auto& groups : entry.second->groups()) EXPECT_THAT(groups.second, IsEmpty());
}

// The next agent adopts what run directories say, and tells it: nothing is touched.
TEST_F(Agents, an_agent_that_is_replaced_keeps_its_ranks) {
  Start();
  AddDaemons({"a", "b"});
  const JobId job = Running(SpecOf("job", 2, 2));
  const std::vector<std::int64_t> pids = world().Pids(job);
  for (int i = 0; i < 5; ++i) {
    world().node("a").KillAgent();
    world().RunFor(10s);
    world().node("a").StartAgent();
    world().RunFor(3s);
  }
  EXPECT_EQ(world().Pids(job), pids);
  EXPECT_EQ(world().View(job).generation, Generation(1));
}

// What ended while the agent was away is read by the next one, and the group's witness has
// accepted until then: the job is over, and runs no second time.
TEST_F(Agents, an_end_while_the_agent_is_away_is_not_lost) {
  Start();
  AddDaemons({"a"});
  const JobId job = Running(SpecOf("job", 1, 1, 3));
  world().node("a").KillAgent();
  world().RunFor(1s);
  world().node("a").ExitRank(job, 0, 0);
  world().RunFor(20s);
  EXPECT_EQ(world().StateOf(job), "running");  // Nobody knows yet.
  world().node("a").StartAgent();
  ASSERT_TRUE(Reaches(job, "succeeded"));
  EXPECT_EQ(world().View(job).generation, Generation(1));
}

// Silent for longer than a lease: each agent breaks its session and dials anew; nobody restarts.
// Its shim stays while its agent does, which cannot tell anybody yet.
TEST_F(Agents, an_end_while_the_coordinator_is_away_for_long_is_not_lost) {
  Start();
  AddDaemons({"a", "b"});
  const JobId job = Running(SpecOf("job", 1, 1));
  const std::string name = Members(GenerationOf(job, 1)).at(0);
  world().CrashCoordinator();
  world().node(name).ExitRank(job, 0, 0);
  world().RunFor(coordinator::LeaseConfig{}.agent_restart + 10s);
  world().node(name).StallAgent(5s);  // The coordinator asks the witness first.
  world().StartCoordinator();
  ASSERT_TRUE(Reaches(job, "succeeded"));
  EXPECT_EQ(world().View(job).generation, Generation(1));
}

TEST_F(Agents, cut_off_nobody_restarts) {
  for (const Duration gap : {6s, 20s, 60s}) {
    Start();
    AddDaemons({"a", "b", "c", "d"});
    const JobId job = Running(SpecOf("job", 4, 4));
    const std::vector<std::int64_t> pids = world().Pids(job);
    for (const auto& entry : world().nodes()) entry.second->SetSilent(true);
    world().RunFor(gap);
    for (const auto& entry : world().nodes()) entry.second->SetSilent(false);
    world().RunFor(2s);
    for (const auto& entry : world().nodes()) EXPECT_TRUE(entry.second->attached());
    world().RunFor(60s);
    EXPECT_EQ(world().Pids(job), pids) << Seconds(gap) << " s";
    EXPECT_EQ(world().View(job).generation, Generation(1));
    EXPECT_THAT(world().checker.violations, IsEmpty());
  }
}

// A coordinator that dies between any two of its actions, while a restart is on its way: the job
// runs again, whatever was said twice or not at all.
TEST_F(Agents, the_coordinator_dies_anywhere_in_a_restart) {
  for (int at = 0; at < 40; ++at) {
    Start();
    AddDaemons({"a", "b", "c"});
    const JobId job = Running(SpecOf("job", 3, 3, 2));
    world().CrashAt(at);
    world().node("b").ExitRank(job, 0, 1);
    world().RunFor(5s);
    world().CrashAt(-1);
    world().StartCoordinator();
    const auto runs_again = [&] {  // A proposal that died with the coordinator took a number.
      return world().StateOf(job) == "running" && world().View(job).generation > Generation(1) &&
             world().LiveRanks(job) == 3;
    };
    ASSERT_TRUE(world().RunUntil(runs_again, 60s)) << "died at point " << at;
    EXPECT_THAT(world().checker.violations, IsEmpty()) << "died at point " << at;
  }
}

// A command that leaves waits for the word that its job has ended with it, and no longer; the rest
// goes on without it.
TEST_F(Agents, a_command_leaves_an_elastic_job) {
  Start();
  const JobSpec spec = SpecOf("train", 1, 2);
  AddCommand("node1", spec);
  AddCommand("node2", spec);
  const JobId job("train-1");
  ASSERT_TRUE(Reaches(job, "running"));
  world().node("node2").Signal(SIGINT);
  ASSERT_TRUE(ReachesGeneration(job, 2));
  EXPECT_TRUE(world().RunUntil([&] { return world().node("node2").done; }, 1s));
  EXPECT_EQ(world().View(job).nodes, 1);
  EXPECT_FALSE(GenerationOf(job, 1).charged);
  world().node("node1").ExitRank(job, 0, 0);
  EXPECT_TRUE(world().RunUntil([&] { return world().node("node1").done; }, 2s));
  EXPECT_EQ(world().node("node1").result->exit_code, 0);
}

// A shim that says nothing after a stop is killed, and its slots are used again.
TEST_F(Agents, a_shim_that_never_answers_gives_its_slots_back) {
  Start();
  AddDaemons({"a"});
  world().RunFor(1s);
  world().node("a").behaviour().never_prepares = true;
  world().Submit(SpecOf("first", 1, 1), "first");
  ASSERT_TRUE(Reaches(JobId("first-1"), "forming"));
  world().Cancel("first-1", /*now=*/true);
  world().RunFor(1s);
  world().node("a").behaviour().never_prepares = false;
  world().Submit(SpecOf("second", 1, 1), "second");
  ASSERT_TRUE(Reaches(JobId("second-2"), "running"));
}

// Nobody joins: the command leaves when its patience is over, and its job with it.
TEST_F(Agents, a_command_waits_no_longer_than_its_join_timeout) {
  Start();
  sim::Node& node = AddCommand("node1", SpecOf("train", 2, 2), 5s);
  world().RunFor(4900ms);
  EXPECT_FALSE(node.done);
  EXPECT_TRUE(world().RunUntil([&] { return node.done; }, 1s));
  EXPECT_EQ(world().LiveRanks(JobId("train-1")), 0);
}

}  // namespace
}  // namespace regroup
