// The core and its nodes: sessions, names, witnesses, notices, retention. PROTOCOL §4, §5, §6.

#include <csignal>

#include "common/base/user_error.h"
#include "tests/scenario/testing.h"

namespace regroup {
namespace {

using coordinator::NodeRow;
using ::testing::HasSubstr;
using ::testing::Not;

class Nodes : public Scenario {
 protected:
  NodeView ViewOfNode(const std::string& name) {
    coordinator::ReadFilter filter;
    filter.jobs = false;
    filter.nodes = true;
    filter.node = name;
    auto reply = world().core().Read(filter, world().clock().now(), world().clock().wall());
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok() ? reply->nodes.at(0) : NodeView{};
  }
  // A session of a node that is not modelled: said to the core as the shell would.
  SessionId Open(const Hello& hello) {
    const SessionId session = world().NewSession();
    world().Ask(coordinator::SessionOpened{session, hello});
    return session;
  }
  Hello HelloOf(const std::string& id, const std::string& name) {
    Hello hello;
    hello.node = NodeId(id);
    hello.name = name;
    hello.incarnation = Incarnation(1);
    hello.boot = BootId("boot");
    hello.address = "10.1.1.1";
    return hello;
  }
  NodeRow RowOf(const std::string& id) {
    auto found = world().rows().find(coordinator::NodeKey(NodeId(id)));
    return found == world().rows().end() ? NodeRow{} : std::get<NodeRow>(found->second);
  }
};

// §1: a gap in which the coordinator could not act gives time up to now. Who was heard within it is
// not given more.
TEST_F(Nodes, a_gap_gives_no_time_to_come) {
  Start();
  Open(HelloOf("x", "host"));
  world().RunFor(100ms);
  world().Ask(coordinator::Stalled{10s, world().clock().now(), false});
  world().RunFor(4950ms);
  EXPECT_FALSE(RowOf("x").lost);
  world().RunFor(100ms);
  EXPECT_TRUE(RowOf("x").lost);
}

// Whoever has said something can be heard while only the disk takes long.
TEST_F(Nodes, a_slow_disk_gives_no_time_to_who_is_silent) {
  Start();
  const SessionId session = Open(HelloOf("x", "host"));
  world().RunFor(50ms);
  world().Ask(coordinator::HeartbeatReceived{session, OrderNo()});
  world().RunFor(3s);
  world().Ask(coordinator::Stalled{2s, world().clock().now(), true});
  world().RunFor(1950ms);
  EXPECT_FALSE(RowOf("x").lost);
  world().RunFor(100ms);
  EXPECT_TRUE(RowOf("x").lost);
}

// §4: another id with the default name of a live node takes NAME-2, NAME-3; the name of a lost node
// is free.
TEST_F(Nodes, default_names_get_suffixes) {
  Start();
  Open(HelloOf("x", "host"));
  Open(HelloOf("y", "host"));
  Open(HelloOf("z", "host"));
  EXPECT_EQ(RowOf("x").name, "host");
  EXPECT_EQ(RowOf("y").name, "host-2");
  EXPECT_EQ(RowOf("z").name, "host-3");
  Open(HelloOf("y", "host"));  // It reconnects, and keeps what it was given.
  EXPECT_EQ(RowOf("y").name, "host-2");
  world().RunFor(66s);  // None beats: all are lost, after the brake.
  EXPECT_TRUE(RowOf("x").lost);
  Open(HelloOf("w", "host"));
  EXPECT_EQ(RowOf("w").name, "host");
}

// What its slots stand for is as its agent says, each time anew.
TEST_F(Nodes, slots_of_gpus_are_told_from_others) {
  Start();
  Hello hello = HelloOf("x", "host");
  hello.gpu_slots = true;
  Open(hello);
  EXPECT_TRUE(ViewOfNode("host").gpu_slots);
  hello.gpu_slots = false;
  Open(hello);
  EXPECT_FALSE(ViewOfNode("host").gpu_slots);
}

// §4: with an explicit --node-name a clash is refused.
TEST_F(Nodes, explicit_names_are_refused) {
  Start();
  Open(HelloOf("x", "host"));
  Hello hello = HelloOf("y", "host");
  hello.name_explicit = true;
  Open(hello);
  EXPECT_TRUE(RowOf("y").name.empty());
}

// A launch command that left has nothing to come back to: the next one on this host may have taken
// another node folder, and has the name at once.
TEST_F(Nodes, a_command_that_left_frees_its_name) {
  Start();
  Hello hello = HelloOf("x", "host");
  hello.name_explicit = hello.launched = true;
  const SessionId session = Open(hello);
  world().Ask(coordinator::LaunchAsked{session, sim::LaunchOf("key", SpecOf("train", 2, 2))});
  hello.node = NodeId("y");
  Open(hello);
  EXPECT_TRUE(RowOf("y").name.empty());  // It is there.
  EXPECT_EQ(ViewOfNode("x").state, "ready");
  world().Ask(coordinator::LeaveAsked{session, SIGTERM, false});
  world().Ask(coordinator::SessionBroken{session});
  EXPECT_EQ(ViewOfNode("x").state, "left");  // Nothing is lost.
  Open(hello);
  EXPECT_EQ(RowOf("y").name, "host");
}

// §4: same id, higher incarnation replaces at once; an older one changes nothing; events of old
// sessions are dropped.
TEST_F(Nodes, newer_incarnation_replaces) {
  Start();
  Hello hello = HelloOf("x", "host");
  hello.incarnation = Incarnation(5);
  const SessionId first = Open(hello);
  hello.incarnation = Incarnation(6);
  const SessionId second = Open(hello);
  hello.incarnation = Incarnation(4);
  Open(hello);
  EXPECT_EQ(RowOf("x").incarnation, Incarnation(6));
  world().Ask(coordinator::SessionBroken{first});
  EXPECT_EQ(ViewOfNode("host").state, "ready");
  world().Ask(coordinator::SessionBroken{second});
  EXPECT_EQ(ViewOfNode("host").state, "suspect");
}

// §4 Fencing: an agent that holds a higher generation than the journal ever gave is stopped by
// nobody.
TEST_F(Nodes, unknown_generations_are_not_stopped) {
  Start();
  AddDaemons({"a"});
  const JobId job = Running(SpecOf("job", 1, 1));
  Hello hello = HelloOf("x", "host");
  GroupReport group;
  group.job = job;
  group.generation = Generation(9);
  group.phase = Phase::kRunning;
  hello.groups = {group};
  Open(hello);
  EXPECT_TRUE(RowOf("x").name.empty());
  hello.groups[0].job =
      JobId("other-77");  // A job that this journal does not know: shown, and left alone.
  Open(hello);
  EXPECT_EQ(RowOf("x").name, "host");
  EXPECT_THAT(ViewOfNode("host").note, HasSubstr("other-77"));
}

// §6: agents one minor apart work, others are refused.
TEST_F(Nodes, version_is_checked) {
  Start();
  Hello hello = HelloOf("x", "host");
  hello.version.major = 2;
  Open(hello);
  EXPECT_TRUE(RowOf("x").name.empty());
}

// §4, §2: a wholly lost generation is replaced on proof of death, or after unreachable_hold.
TEST_F(Nodes, wholly_lost_generation_is_held) {
  Start();
  AddDaemons({"a", "b", "c"});
  const JobId job = Running(SpecOf("job", 1, 1));
  const std::string member = Members(GenerationOf(job, 1))[0];
  world().node(member).SetSilent(true);
  world().RunFor(60s);
  EXPECT_EQ(world().View(job).generation, Generation(1));
  ASSERT_TRUE(world().View(job).why.has_value());
  EXPECT_TRUE(std::holds_alternative<UnreachableHold>(*world().View(job).why));
  ASSERT_TRUE(ReachesGeneration(job, 2, 300s));
  EXPECT_GT(world().SinceStart(), 300s);
}

TEST_F(Nodes, forgetting_a_node_is_proof_of_death) {
  Start();
  AddDaemons({"a", "b"});
  const JobId job = Running(SpecOf("job", 1, 1));
  const std::string member = Members(GenerationOf(job, 1))[0];
  const CallId alive = world().Forget(member);
  EXPECT_TRUE(std::holds_alternative<absl::Status>(*world().ReplyTo(alive)));
  world().node(member).CutPower();
  world().RunFor(10s);
  EXPECT_EQ(world().View(job).generation, Generation(1));
  const CallId call = world().Forget(member);
  EXPECT_TRUE(std::holds_alternative<coordinator::ForgetNodeReply>(*world().ReplyTo(call)));
  ASSERT_TRUE(ReachesGeneration(job, 2, 5s));
}

// §2: the ended job does not wait for an unreachable node; its slots stay taken until an inventory
// clears them.
TEST_F(Nodes, slots_of_unreachable_nodes_stay_taken) {
  Start();
  AddDaemons({"a", "b"});
  const JobId job = Running(SpecOf("job", 2, 2));
  world().node("b").SetSilent(true);
  world().RunFor(1s);
  world().Cancel("last");
  ASSERT_TRUE(Reaches(job, "cancelled", 60s));
  world().RunFor(10s);
  ASSERT_EQ(world().NodeRowOf("b").taken.size(), 1u);
  EXPECT_EQ(world().node("b").LiveRanks(), 1);
  world().node("b").SetSilent(false);
  world().RunFor(10s);
  EXPECT_EQ(world().node("b").LiveRanks(), 0);
  EXPECT_TRUE(world().NodeRowOf("b").taken.empty());
}

// §2: an unkillable process blocks its slot and is shown; the job does not wait for it.
TEST_F(Nodes, unkillable_slot_is_not_used_again) {
  Start();
  sim::Behaviour stuck;
  stuck.unkillable = true;
  AddDaemons({"a"}, stuck);
  const JobId job = Running(SpecOf("job", 1, 1));
  world().Cancel(job.value(), true);
  ASSERT_TRUE(Reaches(job, "cancelled"));
  EXPECT_TRUE(world().NodeRowOf("a").taken.at(0).unkillable);
  EXPECT_EQ(ViewOfNode("a").slots_used, 1);
  world().Submit(SpecOf("next", 1, 1), "next");
  world().RunFor(30s);
  EXPECT_EQ(world().StateOf(JobId("next-2")), "queued");
}

// Preemption of a daemon's node: the cluster-wide save, then the group goes on without it.
TEST_F(Nodes, cloud_notice_saves_and_moves_on) {
  Start();
  sim::Behaviour speaks;
  speaks.speaks = true;
  AddDaemons({"a", "b", "c"}, speaks);
  const JobId job = Running(SpecOf("job", 2, 3));
  world().RunFor(2s);
  world().node("b").Notice(20s);
  ASSERT_TRUE(ReachesGeneration(job, 2, 5s));
  EXPECT_TRUE(std::get<Preempted>(*GenerationOf(job, 1).ended).saved);
  EXPECT_THAT(Members(GenerationOf(job, 2)), ::testing::ElementsAre("a", "c"));
  EXPECT_EQ(ViewOfNode("b").state, "leaving");
  EXPECT_GT(world().node("a").Live(job)->run->resume_step, 0);
}

// Workers that never spoke can not be told to save: they are stopped with grace at once.
TEST_F(Nodes, notice_to_silent_workers_stops_at_once) {
  Start();
  AddDaemons({"a", "b"});
  const JobId job = Running(SpecOf("job", 1, 2));
  world().node("b").Notice(20s);
  ASSERT_TRUE(ReachesGeneration(job, 2, 1s));
  EXPECT_FALSE(std::get<Preempted>(*GenerationOf(job, 1).ended).saved);
}

// §4: whatever an agent says is a sign of life, a notice too.
TEST_F(Nodes, a_notice_is_heard) {
  Start();
  const SessionId session = Open(HelloOf("x", "host"));
  world().RunFor(4s);
  world().Ask(coordinator::Noticed{session, Notice{NoticeSource::kSignal, SIGTERM, 60s}});
  world().RunFor(4s);
  EXPECT_FALSE(RowOf("x").lost);
  world().RunFor(2s);
  EXPECT_TRUE(RowOf("x").lost);
}

// A save that never comes does not eat the time that stopping needs.
TEST_F(Nodes, notice_does_not_wait_for_ever) {
  Start();
  sim::Behaviour slow;
  slow.speaks = true;
  slow.save = 60s;
  AddDaemons({"a", "b"}, slow);
  const JobId job = Running(SpecOf("job", 1, 2));
  world().RunFor(1s);
  world().node("b").Notice(10s);
  const Duration before = world().SinceStart();
  ASSERT_TRUE(ReachesGeneration(job, 2, 10s));
  EXPECT_LT(world().SinceStart() - before, 9s);
  EXPECT_FALSE(std::get<Preempted>(*GenerationOf(job, 1).ended).saved);
}

// Several may go: the save is over in time for the first of them, whoever told first.
TEST_F(Nodes, of_several_notices_the_first_to_go_counts) {
  Start();
  sim::Behaviour slow;
  slow.speaks = true;
  slow.save = 60s;
  AddDaemons({"a", "b", "c"}, slow);
  const JobId job = Running(SpecOf("job", 1, 3));
  world().RunFor(1s);
  world().node("b").Notice(40s);
  world().RunFor(1s);
  world().node("c").Notice(5s);
  world().RunFor(2900ms);
  EXPECT_EQ(world().LiveRanks(job), 3);
  ASSERT_TRUE(ReachesGeneration(job, 2, 500ms));
  EXPECT_THAT(Members(GenerationOf(job, 2)), ::testing::ElementsAre("a"));
}

// It is said again, and what is left counts from then: the node still goes when it said first.
TEST_F(Nodes, a_notice_that_is_said_again_gives_no_more_time) {
  Start();
  sim::Behaviour slow;
  slow.speaks = true;
  slow.save = 60s;
  slow.ignores_term = true;
  AddDaemons({"a", "b"}, slow);
  const JobId job = Running(SpecOf("job", 1, 2));
  world().RunFor(1s);
  world().node("b").Notice(10s);
  world().RunFor(1s);
  world().node("b").Notice(40s);
  world().RunFor(9s - 100ms);
  EXPECT_EQ(world().node("b").LiveRanks(), 1);
  world().RunFor(200ms);
  EXPECT_EQ(world().node("b").LiveRanks(), 0);
}

// §6: lost nodes are kept for a while, then forgotten.
TEST_F(Nodes, lost_nodes_are_dropped_after_a_week) {
  coordinator::Config config;
  config.retention.lost_nodes = 100s;
  Start(config);
  Open(HelloOf("x", "host"));
  world().RunFor(50s);
  EXPECT_TRUE(RowOf("x").lost);
  world().RunFor(100s);
  EXPECT_TRUE(RowOf("x").name.empty());
}

// §6: whoever says hello makes a node; of those that are lost and hold nothing only so many stay.
TEST_F(Nodes, lost_nodes_are_capped_the_oldest_go_first) {
  coordinator::Config config;
  config.limits.lost_nodes = 3;
  Start(config);
  for (const char* id : {"n1", "n2", "n3", "n4", "n5"}) {
    Open(HelloOf(id, std::string("host-") + id));
    world().RunFor(50s);
    EXPECT_TRUE(RowOf(id).lost);
  }
  EXPECT_TRUE(RowOf("n1").name.empty());
  EXPECT_TRUE(RowOf("n2").name.empty());
  EXPECT_EQ(RowOf("n3").name, "host-n3");
  Open(HelloOf("n3", "host-n3"));  // It is back, and then the one that was lost last.
  world().RunFor(50s);
  Open(HelloOf("n6", "host-n6"));
  world().RunFor(50s);
  EXPECT_TRUE(RowOf("n4").name.empty());
  EXPECT_EQ(RowOf("n3").name, "host-n3");
  EXPECT_EQ(RowOf("n5").name, "host-n5");
}

// §6: whoever says hello and leaves is not waited for once too many are; who holds something is.
TEST_F(Nodes, of_a_crowd_that_leaves_only_so_many_are_waited_for) {
  coordinator::Config config;
  config.limits.away_nodes = 2;
  config.limits.lost_nodes = 2;
  Start(config);
  for (const char* id : {"n1", "n2", "n3", "n4", "n5", "n6"}) {
    const SessionId session = Open(HelloOf(id, std::string("host-") + id));
    world().Ask(coordinator::SessionBroken{session});
  }
  world().RunFor(100ms);
  EXPECT_EQ(ViewOfNode("host-n2").state, "suspect");
  EXPECT_EQ(RowOf("n3").name, "");  // Lost first, and forgotten first.
  EXPECT_EQ(RowOf("n4").name, "");
  EXPECT_TRUE(RowOf("n5").lost);
  EXPECT_THAT(RowOf("n6").lost_how, HasSubstr("too many others"));
  Open(HelloOf("n6", "host-n6"));
  EXPECT_EQ(ViewOfNode("host-n6").state, "ready");
}

// §6: what a node shows of jobs that this journal does not know is bounded.
TEST_F(Nodes, unknown_groups_are_bounded) {
  Start();
  const auto group = [](std::size_t job, std::size_t generation) {
    GroupReport report;
    report.job = JobId("other-" + std::to_string(job));
    report.generation = Generation(generation);
    report.phase = Phase::kRunning;
    return report;
  };
  Hello hello = HelloOf("x", "host");
  for (std::size_t i = 1; i <= coordinator::kMaxUnknownJobsPerNode + 1; ++i)
    hello.groups.push_back(group(i, 1));
  Open(hello);
  EXPECT_TRUE(RowOf("x").name.empty());
  hello.groups.pop_back();
  const SessionId session = Open(hello);
  EXPECT_EQ(RowOf("x").name, "host");
  EXPECT_EQ(ViewOfNode("host").jobs.size(), coordinator::kMaxUnknownJobsPerNode);
  world().Ask(coordinator::Reported{session, group(1'000, 1)});
  EXPECT_EQ(ViewOfNode("host").jobs.size(), coordinator::kMaxUnknownJobsPerNode);
  for (std::size_t i = 2; i <= 100; ++i) world().Ask(coordinator::Reported{session, group(1, i)});
  EXPECT_EQ(ViewOfNode("host").slots_used, static_cast<int>(coordinator::kMaxUnknownJobsPerNode -
                                                            1 + coordinator::kMaxGroupsPerJob));
  world().Ask(coordinator::SessionBroken{session});
  EXPECT_EQ(ViewOfNode("host").slots_used, 0);  // Its next Hello shows them again.
}

// §5: a node without a cgroup is marked, as its newest Hello says, until it is lost.
TEST_F(Nodes, a_node_without_a_cgroup_is_marked) {
  Start();
  Open(HelloOf("x", "host"));
  EXPECT_EQ(ViewOfNode("host").note, "");
  Hello hello = HelloOf("x", "host");
  hello.no_cgroup = "/sys/fs/cgroup is not writable by this user";
  Open(hello);
  EXPECT_EQ(ViewOfNode("host").note, "no cgroup: /sys/fs/cgroup is not writable by this user");
  Open(HelloOf("x", "host"));
  EXPECT_EQ(ViewOfNode("host").note, "");
  Open(hello);
  world().RunFor(20s);
  EXPECT_EQ(ViewOfNode("host").state, "lost");
  EXPECT_THAT(ViewOfNode("host").note, Not(HasSubstr("cgroup")));
}

// §5: the member beside the coordinator is known by the address at which others reached it.
TEST_F(Nodes, loopback_member_is_advertised_as_others_reach_it) {
  Start();
  sim::NodeOptions host;
  host.address = "127.0.0.1";
  host.dialled = "127.0.0.1";
  world().Add("a", host);
  sim::NodeOptions other;
  other.address = "192.0.2.7";
  other.dialled = "192.0.2.1";
  world().Add("b", other);
  const JobId job = Running(SpecOf("job", 2, 2));
  EXPECT_EQ(GenerationOf(job, 1).members[0].address, "192.0.2.1");
  EXPECT_EQ(GenerationOf(job, 1).members[1].address, "192.0.2.7");
  EXPECT_EQ(GenerationOf(job, 1).store->host, "192.0.2.1");
  EXPECT_TRUE(world().node("a").Live(job)->run->many_hosts);
  EXPECT_TRUE(ViewOfNode("a").coordinator_host);
}

}  // namespace
}  // namespace regroup
