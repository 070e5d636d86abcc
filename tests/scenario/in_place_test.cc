// Ranks that live through the end of a generation: who keeps its process, who does not, and that
// nothing of them outlives what they were kept for.

#include "tests/scenario/testing.h"

namespace regroup {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::IsSubsetOf;
using ::testing::Not;

class InPlace : public Scenario {
 protected:
  // Workers that speak and can retire, one to a node.
  JobId Steps(std::initializer_list<const char*> names, int min, int max) {
    sim::Behaviour behaviour;
    behaviour.speaks = behaviour.in_place = true;
    AddDaemons(names, behaviour);
    JobSpec spec = SpecOf("job", min, max, 9);
    spec.in_place = true;
    spec.scale_up = ScaleUp::kNow;
    const JobId job = Running(spec);
    world().RunFor(1s);  // Some steps.
    return job;
  }
  std::vector<std::int64_t> Pids(const char* node, const JobId& job) {
    return world().node(node).Pids(job);
  }
  void AddAble(const char* name) {
    sim::Behaviour behaviour;
    behaviour.speaks = behaviour.in_place = true;
    world().Add(name, {}, behaviour);
  }
};

TEST_F(InPlace, survivors_keep_their_process_when_a_rank_fails) {
  Start();
  const JobId job = Steps({"a", "b", "c"}, 3, 3);
  const auto a = Pids("a", job), b = Pids("b", job), c = Pids("c", job);
  world().node("b").ExitRank(job, 0, 1);
  ASSERT_TRUE(ReachesGeneration(job, 2, 1s));
  EXPECT_EQ(Pids("a", job), a);
  EXPECT_EQ(Pids("c", job), c);
  EXPECT_THAT(Pids("b", job), Not(ElementsAre(b.front())));
  EXPECT_EQ(world().View(job).restarts_charged, 1);
  world().RunFor(5s);
  EXPECT_EQ(world().View(job).generation, Generation(2));
}

TEST_F(InPlace, survivors_go_on_without_a_node_that_is_lost) {
  Start();
  const JobId job = Steps({"a", "b", "c"}, 2, 3);
  const auto a = Pids("a", job), b = Pids("b", job);
  world().node("c").KillNode();
  ASSERT_TRUE(ReachesGeneration(job, 2, 1s));
  EXPECT_EQ(Pids("a", job), a);
  EXPECT_EQ(Pids("b", job), b);
  EXPECT_THAT(Members(GenerationOf(job, 2)), ElementsAre("a", "b"));
}

TEST_F(InPlace, a_growth_stops_and_saves_nobody) {
  Start();
  const JobId job = Steps({"a", "b"}, 2, 3);
  const auto a = Pids("a", job), b = Pids("b", job);
  AddAble("c");
  ASSERT_TRUE(ReachesGeneration(job, 2, 2s));
  EXPECT_EQ(Pids("a", job), a);
  EXPECT_EQ(Pids("b", job), b);
  EXPECT_EQ(GenerationOf(job, 2).world, 3);
}

// A second loss before a step is no fault of theirs; after a third they may have been kept once too
// often.
TEST_F(InPlace, twice_without_progress_all_start_anew) {
  Start();
  const JobId job = Steps({"a", "b"}, 2, 2);
  const auto a = Pids("a", job);
  for (const std::uint64_t generation : {2, 3}) {
    world().node("b").ExitRank(job, 0, 1);
    ASSERT_TRUE(ReachesGeneration(job, generation));
    EXPECT_EQ(Pids("a", job), a);
  }
  world().node("b").ExitRank(job, 0, 1);
  ASSERT_TRUE(ReachesGeneration(job, 4));
  EXPECT_THAT(Pids("a", job), Not(IsSubsetOf(a)));
}

TEST_F(InPlace, a_growth_before_a_step_is_no_failure) {
  Start();
  sim::Behaviour behaviour;
  behaviour.speaks = behaviour.in_place = true;
  behaviour.step = 10s;
  AddDaemons({"a", "b"}, behaviour);
  JobSpec spec = SpecOf("job", 2, 4, 9);
  spec.in_place = true;
  spec.scale_up = ScaleUp::kNow;
  const JobId job = Running(spec);
  world().RunFor(15s);
  const auto a = Pids("a", job);
  for (const auto& [name, generation] : {std::pair("c", 2u), std::pair("d", 3u)}) {
    world().Add(name, {}, behaviour);
    ASSERT_TRUE(ReachesGeneration(job, generation, 2s));
  }
  world().node("d").ExitRank(job, 0, 1);
  ASSERT_TRUE(ReachesGeneration(job, 4, 2s));
  EXPECT_EQ(Pids("a", job), a);
}

// Of three ranks of one node one fails, and the next one before the first one's successor has come
// to its loop.
TEST_F(InPlace, who_cannot_retire_yet_costs_the_others_nothing) {
  Start();
  sim::Behaviour behaviour;
  behaviour.speaks = behaviour.in_place = true;
  behaviour.joins = 300ms;
  sim::NodeOptions three;
  three.slots = 3;
  world().Add("a", three, behaviour);
  JobSpec spec = SpecOf("job", 1, 1, 9);
  spec.workers_per_node = 3;
  spec.in_place = true;
  const JobId job = Running(spec);
  world().RunFor(1s);
  const auto pids = Pids("a", job);
  world().node("a").ExitRank(job, 0, 1);
  ASSERT_TRUE(ReachesGeneration(job, 2, 1s));
  const auto second = Pids("a", job);
  EXPECT_THAT(second, ElementsAre(Not(pids[0]), pids[1], pids[2]));
  world().node("a").ExitRank(job, 1, 1);
  ASSERT_TRUE(ReachesGeneration(job, 3, 2s));
  const auto third = Pids("a", job);
  EXPECT_THAT(third, ElementsAre(Not(second[0]), Not(pids[1]), pids[2]));
  EXPECT_EQ(world().View(job).restarts_charged, 2);
  world().RunFor(1s);
  EXPECT_EQ(Pids("a", job), third);
}

TEST_F(InPlace, a_job_that_did_not_ask_for_it_restarts_all) {
  Start();
  sim::Behaviour behaviour;
  behaviour.speaks = behaviour.in_place = true;
  AddDaemons({"a", "b"}, behaviour);
  const JobId job = Running(SpecOf("job", 2, 2, 9));
  world().RunFor(1s);
  const auto a = Pids("a", job);
  world().node("b").ExitRank(job, 0, 1);
  ASSERT_TRUE(ReachesGeneration(job, 2, 1s));
  EXPECT_THAT(Pids("a", job), Not(IsSubsetOf(a)));
}

TEST_F(InPlace, who_waits_for_a_next_generation_ends_with_its_job) {
  Start();
  const JobId job = Steps({"a", "b"}, 2, 2);
  const auto a = Pids("a", job);
  world().node("b").KillNode();
  world().RunFor(1s);
  EXPECT_EQ(world().StateOf(job), "regrouping");
  EXPECT_EQ(Pids("a", job), a) << "it waits for another node";
  world().Cancel(job.value());
  ASSERT_TRUE(Reaches(job, "cancelled", 5s));
  EXPECT_THAT(Pids("a", job), IsEmpty());
}

TEST_F(InPlace, who_waits_goes_on_with_the_next_node_that_comes) {
  Start();
  const JobId job = Steps({"a", "b"}, 2, 2);
  const auto a = Pids("a", job);
  world().node("b").KillNode();
  world().RunFor(20s);
  AddAble("c");
  ASSERT_TRUE(ReachesGeneration(job, 2, 2s));
  EXPECT_EQ(Pids("a", job), a);
}

TEST_F(InPlace, a_job_that_gives_its_nodes_back_leaves_none_behind) {
  Start();
  const JobId job = Steps({"a", "b"}, 2, 2);
  world().node("b").KillNode();
  ASSERT_TRUE(Reaches(job, "queued", 120s));
  world().RunFor(5s);
  EXPECT_THAT(Pids("a", job), IsEmpty());
  const JobId other("other-2");
  world().Submit(SpecOf("other", 1, 1), "other");
  ASSERT_TRUE(Reaches(other, "running", 5s)) << "the slots are free";
}

TEST_F(InPlace, who_is_left_out_of_the_next_generation_ends) {
  Start();
  const JobId job = Steps({"a", "b", "c"}, 2, 3);
  world().node("b").behaviour().keeps_shim = true;
  world().node("c").ExitRank(job, 0, 1);
  ASSERT_TRUE(ReachesGeneration(job, 3, 1s));
  EXPECT_THAT(Members(GenerationOf(job, 3)), ElementsAre("a", "c"));
  world().RunFor(100ms);
  EXPECT_THAT(Pids("b", job), IsEmpty()) << "its supervisor was not handed over";
}

// The end of a generation is not durable before its members are free or have retired: whoever finds
// them so afterwards starts all anew, and leaves nothing.
TEST_F(InPlace, a_crash_of_the_coordinator_while_they_wait_costs_their_process) {
  Start();
  const JobId job = Steps({"a", "b"}, 2, 2);
  const auto a = Pids("a", job);
  world().node("b").KillNode();
  world().RunFor(2s);
  world().CrashCoordinator();
  world().StartCoordinator();
  AddAble("c");
  ASSERT_TRUE(ReachesGeneration(job, 2, 60s));
  EXPECT_EQ(Pids("a", job).size(), 1u);
  EXPECT_THAT(Pids("a", job), Not(IsSubsetOf(a)));
}

TEST_F(InPlace, a_node_that_leaves_keeps_nothing) {
  Start();
  const JobId job = Steps({"a", "b", "c"}, 2, 3);
  const auto a = Pids("a", job);
  world().node("c").Notice(5s);
  ASSERT_TRUE(ReachesGeneration(job, 2, 10s));
  EXPECT_THAT(Pids("c", job), IsEmpty());
  EXPECT_THAT(Members(GenerationOf(job, 2)), ElementsAre("a", "b"));
}

}  // namespace
}  // namespace regroup
