// Scenarios about who is alive: sessions, witnesses, leases, restarts of agents and coordinator.
// PROTOCOL §1, §4.

#include "tests/scenario/testing.h"

namespace regroup {
namespace {

class Liveness : public Scenario {};

// §4 Witness and §2: an agent's restart touches nobody. (The store and `new_group` are the
// end-to-end test's.)
TEST_F(Liveness, agent_of_rank_0_restarts) {
  Start();
  AddDaemons({"a", "b"});
  const JobId job = Running(SpecOf("job", 2, 2));
  const std::vector<std::int64_t> pids = world().Pids(job);
  const std::optional<Address> store = GenerationOf(job, 1).store;
  ASSERT_TRUE(store.has_value());
  world().node("a").KillAgent();
  world().RunFor(20s);
  world().node("a").StartAgent();
  world().RunFor(10s);
  EXPECT_EQ(world().Pids(job), pids);
  EXPECT_EQ(world().View(job).generation, Generation(1));
  EXPECT_EQ(GenerationOf(job, 1).store, store);
}

// §4: session broken and port refused: dead now. Session broken and port accepts: only the agent is
// away.
TEST_F(Liveness, witness_refused_or_accepting) {
  Start();
  AddDaemons({"a", "b", "c"});
  JobSpec spec = SpecOf("job", 2, 3);
  const JobId job = Running(spec);
  world().RunFor(1s);
  world().node("c").KillNode();
  const Duration before = world().SinceStart();
  ASSERT_TRUE(ReachesGeneration(job, 2, 1s));
  EXPECT_LT(world().SinceStart() - before, 1s);
  EXPECT_EQ(world().NodeRowOf("c").lost_how, "connection refused");

  world().node("b").KillAgent();
  world().RunFor(110s);
  EXPECT_EQ(world().View(job).generation, Generation(2));
  EXPECT_FALSE(world().NodeRowOf("b").lost);
  world().RunFor(15s);
  EXPECT_TRUE(world().NodeRowOf("b").lost);
}

// §4: an unverified witness proves nothing.
TEST_F(Liveness, without_a_witness_the_lease_decides) {
  Start();
  sim::Behaviour dark;
  dark.witness = false;
  AddDaemons({"a", "b", "c"}, dark);
  const JobId job = Running(SpecOf("job", 2, 3));
  world().node("c").KillNode();
  world().RunFor(4500ms);
  EXPECT_EQ(world().View(job).generation, Generation(1));
  ASSERT_TRUE(ReachesGeneration(job, 2, 2s));
}

// §4: nor does one that a firewall refuses, also for a coordinator that never asked it before.
TEST_F(Liveness, a_witness_that_never_accepted_proves_nothing) {
  Start();
  sim::NodeOptions walled;
  walled.walled = true;
  world().Add("a", walled);
  const JobId job = Running(SpecOf("job", 1, 1));
  world().CrashCoordinator();
  world().node("a").KillAgent();
  world().StartCoordinator();
  world().RunFor(6s);
  EXPECT_FALSE(world().NodeRowOf("a").lost);
  world().node("a").StartAgent();
  world().RunFor(2s);
  EXPECT_EQ(world().View(job).generation, Generation(1));
  EXPECT_EQ(world().LiveRanks(job), 1);
}

// §4: nor does what was asked of a generation that has ended since.
TEST_F(Liveness, an_old_refusal_proves_nothing) {
  Start();
  AddDaemons({"a", "b"});
  JobSpec spec = SpecOf("job", 2, 2, 5);
  const JobId job = Running(spec);
  world().node("a").ExitRank(job, 0, 1);
  ASSERT_TRUE(ReachesGeneration(job, 2));
  world().RunFor(1s);
  world().node("b").KillAgent();
  world().RunFor(100ms);
  world().Ask(coordinator::Probed{world().node("b").id(), job, Generation(1),
                                  coordinator::ProbeResult::kRefused});
  world().RunFor(1s);
  EXPECT_FALSE(world().NodeRowOf("b").lost);
  EXPECT_EQ(world().View(job).generation, Generation(2));
}

// §4: a refused witness speaks for its own group. A group of another job that has none may live,
// and then its lease decides.
TEST_F(Liveness, a_refused_witness_proves_nothing_of_a_group_without_one) {
  Start();
  sim::NodeOptions two;
  two.slots = 2;
  world().Add("a", two);
  const JobId seen = Running(SpecOf("seen", 1, 1));
  world().node("a").behaviour().witness = false;
  world().Submit(SpecOf("unseen", 1, 1), "another");
  const JobId unseen("unseen-2");
  ASSERT_TRUE(Reaches(unseen, "running"));
  const std::vector<std::int64_t> pids = world().Pids(unseen);
  world().node("a").KillAgent();
  world().node("a").LoseSupervisor(seen);
  world().RunFor(2s);
  EXPECT_FALSE(world().NodeRowOf("a").lost);
  world().node("a").StartAgent();
  ASSERT_TRUE(ReachesGeneration(seen, 2));
  EXPECT_EQ(world().Pids(unseen), pids);
  EXPECT_EQ(world().View(unseen).generation, Generation(1));
}

// The same where the coordinator was started anew, and only its rows say what the node may hold.
TEST_F(Liveness, a_refused_witness_proves_nothing_of_a_group_of_the_rows_without_one) {
  Start();
  sim::NodeOptions two;
  two.slots = 2;
  world().Add("a", two);
  const JobId seen = Running(SpecOf("seen", 1, 1));
  world().node("a").behaviour().witness = false;
  world().Submit(SpecOf("unseen", 1, 1), "another");
  const JobId unseen("unseen-2");
  ASSERT_TRUE(Reaches(unseen, "running"));
  world().node("a").KillAgent();
  world().CrashCoordinator();
  world().node("a").LoseSupervisor(seen);
  world().StartCoordinator();
  world().RunFor(5s);  // Beyond the time to redial.
  EXPECT_FALSE(world().NodeRowOf("a").lost);
  world().node("a").StartAgent();
  ASSERT_TRUE(ReachesGeneration(seen, 2));
  EXPECT_EQ(world().View(unseen).generation, Generation(1));
}

// §11 of the design: a silent host costs at most the lease and a little.
TEST_F(Liveness, silent_host_is_lost_after_its_lease) {
  Start();
  AddDaemons({"a", "b", "c"});
  const JobId job = Running(SpecOf("job", 2, 3));
  world().node("c").CutPower();
  const Duration before = world().SinceStart();
  ASSERT_TRUE(ReachesGeneration(job, 2, 6s));
  EXPECT_LT(world().SinceStart() - before, 5500ms);
  const auto ended = std::get<NodeLost>(*GenerationOf(job, 1).ended);
  EXPECT_EQ(ended.how, "silent");
}

// §4: silence of an agent while its job begins and finishes steps proves that all ranks live.
TEST_F(Liveness, a_job_that_steps_keeps_its_silent_member) {
  Start();
  sim::Behaviour speaks;
  speaks.speaks = true;
  AddDaemons({"a", "b"}, speaks);
  const JobId job = Running(SpecOf("job", 2, 2));
  const std::vector<std::int64_t> pids = world().Pids(job);
  world().RunFor(2s);
  world().node("b").SetSilent(true);
  world().RunFor(20s);
  EXPECT_EQ(world().View(job).generation, Generation(1));
  EXPECT_EQ(world().Pids(job), pids);
}

// §1: a stalled loop extends every lease; §4: a blink is no loss.
TEST_F(Liveness, blink_and_stall) {
  Start();
  AddDaemons({"a", "b"});
  const JobId job = Running(SpecOf("job", 2, 2));
  const std::vector<std::int64_t> pids = world().Pids(job);
  world().node("b").ResetSession();
  world().node("b").SetSilent(true);
  world().RunFor(3s);
  world().node("b").SetSilent(false);
  world().RunFor(1s);
  world().StallCoordinator(8s);
  world().RunFor(20s);
  EXPECT_EQ(world().View(job).generation, Generation(1));
  EXPECT_EQ(world().Pids(job), pids);
  EXPECT_FALSE(world().NodeRowOf("a").lost);
  EXPECT_FALSE(world().NodeRowOf("b").lost);
}

// §1: what was not durable was told to nobody, so nobody is late with his answer to it. With a disk
// that takes 3 s for each commit, a proposal waited 2 s for answers that were asked for after 3 s.
TEST_F(Liveness, a_slow_disk_makes_nobody_late) {
  Start();
  AddDaemons({"a", "b", "c"});
  world().RunFor(1s);
  world().commit_delay = 3s;
  world().Submit(SpecOf("job", 2, 3, 3), "key");
  const JobId job("job-1");
  ASSERT_TRUE(Reaches(job, "running", 60s));
  EXPECT_EQ(world().View(job).generation, Generation(1));
  const std::vector<std::int64_t> pids = world().Pids(job);
  ASSERT_EQ(pids.size(), 3u);
  world().RunFor(30s);
  EXPECT_EQ(world().Pids(job), pids);

  // Survivors are stopped in time, too, and all of them go on.
  world().node("b").ExitRank(job, 0, 1);
  ASSERT_TRUE(ReachesGeneration(job, 2, 60s));
  EXPECT_THAT(Members(GenerationOf(job, 2)), ::testing::ElementsAre("a", "b", "c"));
  // Who dies is found all the same.
  world().RunFor(10s);
  world().node("c").CutPower();
  ASSERT_TRUE(ReachesGeneration(job, 3, 30s));
  EXPECT_THAT(Members(GenerationOf(job, 3)), ::testing::ElementsAre("a", "b"));
}

// §1: nor whoever joins: an agent says nothing before its welcome, which waits for two commits.
TEST_F(Liveness, a_slow_disk_loses_nobody_who_joins) {
  Start();
  world().tracing = true;
  world().commit_delay = 2700ms;
  for (const char* name : {"a", "b", "c"}) {
    AddDaemons({name});
    world().RunFor(100ms);
  }
  world().RunFor(30s);
  for (const char* name : {"a", "b", "c"}) EXPECT_FALSE(world().NodeRowOf(name).lost) << name;
  for (const std::string& line : world().trace) EXPECT_EQ(line.find("lost"), line.npos) << line;
}

// §4: after recovery every member is awaited: 3 leases and 10 ms per node.
TEST_F(Liveness, fleet_returns_slowly) {
  Start();
  constexpr int kNodes = 400;
  auto name = [](int i) { return "n" + std::to_string(i); };
  for (int i = 0; i < kNodes; ++i) world().Add(name(i));
  JobSpec spec = SpecOf("job", 2, kNodes);
  spec.scale_up = ScaleUp::kNever;
  const JobId job = Running(spec);
  ASSERT_EQ(world().View(job).nodes, kNodes);
  world().RunFor(2s);
  world().CrashCoordinator();
  world().node("n7").CutPower();
  for (int i = 0; i < kNodes; ++i) world().node(name(i)).SetSilent(true);
  world().RunFor(60s);
  world().StartCoordinator();
  for (int i = 0; i < kNodes; ++i) {
    world().RunFor(45ms);
    if (i != 7) world().node(name(i)).SetSilent(false);
  }
  std::set<std::string> lost;
  ASSERT_TRUE(ReachesGeneration(job, 2, 60s));
  for (int i = 0; i < kNodes; ++i)
    if (world().NodeRowOf(name(i)).lost) lost.insert(name(i));
  EXPECT_THAT(lost, ::testing::ElementsAre("n7"));
  EXPECT_EQ(world().View(job).nodes, kNodes - 1);
}

// §1, §4 Fencing: another cluster, or a lower epoch, stops nothing; a submit retried with its key
// is one job.
TEST_F(Liveness, wrong_journal_stops_nothing) {
  Start();
  AddDaemons({"a", "b"});
  const JobId job = Running(SpecOf("job", 2, 2));
  const std::vector<std::int64_t> pids = world().Pids(job);
  const auto good = world().rows();
  // The fleet is at epoch 9.
  for (int i = 0; i < 8; ++i) {
    world().CrashCoordinator();
    world().StartCoordinator();
    world().RunFor(3s);
  }
  EXPECT_EQ(world().node("a").highest_epoch, Epoch(9));
  const auto newest = world().rows();

  world().CrashCoordinator();
  world().rows() = {};  // An empty state directory: another cluster.
  coordinator::MetaRow other{ClusterId("other"), Epoch(20), coordinator::kRowFormat, Epoch()};
  world().rows()[coordinator::MetaKey()] = other;
  world().checker.OnJournalReplaced();
  world().StartCoordinator();
  world().RunFor(5s);
  ASSERT_TRUE(world().node("a").refused.has_value());
  const std::string message = world().node("a").refused->ToString();
  EXPECT_THAT(message, ::testing::HasSubstr("cluster-1"));
  EXPECT_THAT(message, ::testing::HasSubstr("other"));
  EXPECT_EQ(world().Pids(job), pids);

  world().CrashCoordinator();
  world().checker.OnJournalReplaced();
  world().rows() = good;  // A restored one: this cluster, an older epoch.
  world().StartCoordinator();
  world().RunFor(5s);
  EXPECT_TRUE(world().stepped_down());
  EXPECT_THAT(std::string(world().why_stepped_down()->ToString()), ::testing::HasSubstr("epoch 9"));
  EXPECT_EQ(world().Pids(job), pids);
  for (int i = 0; i < 10;
       ++i) {  // Nor does starting it again and again climb to an epoch that is obeyed.
    world().checker.OnJournalReplaced();
    world().StartCoordinator();
    world().RunFor(3s);
    EXPECT_TRUE(world().stepped_down());
  }
  EXPECT_EQ(world().Pids(job), pids);

  world().rows() = newest;  // The right one again.
  world().checker.OnJournalReplaced();
  world().StartCoordinator();
  world().RunFor(20s);
  EXPECT_EQ(world().StateOf(job), "running");
  EXPECT_EQ(world().Pids(job), pids);

  const CallId first = world().Submit(SpecOf("next", 1, 1), "once");
  world().RunFor(10ms);
  world().CrashCoordinator();
  world().StartCoordinator();
  const CallId again = world().Submit(SpecOf("next", 1, 1), "once");
  ASSERT_NE(world().ReplyTo(again), nullptr);
  EXPECT_EQ(std::get<coordinator::SubmitReply>(*world().ReplyTo(first)).job,
            std::get<coordinator::SubmitReply>(*world().ReplyTo(again)).job);
}

// §4: names of nodes.
TEST_F(Liveness, names_of_nodes) {
  Start();
  AddDaemons({"a"});
  world().RunFor(1s);
  EXPECT_EQ(world().node("a").given_name(), "a");
}

}  // namespace
}  // namespace regroup
