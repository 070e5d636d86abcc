// Scenarios about launch commands: joining, leaving, coming late. PROTOCOL §5, CLI.md.

#include <algorithm>
#include <csignal>

#include "tests/scenario/testing.h"

namespace regroup {
namespace {

class Launch : public Scenario {
 protected:
  JobId LaunchThree(const JobSpec& spec) {
    coordinator::Config config;
    config.ad_hoc.on = true;
    Start(config);
    for (const char* name : {"node1", "node2", "node3"}) world().AddLauncher(name, spec);
    const JobId job(spec.name + "-1");
    EXPECT_TRUE(world().RunUntil([&] { return world().StateOf(job) == "running"; }, 20s));
    EXPECT_EQ(world().View(job).nodes, 3);
    // Each was there for this job only: nobody chose.
    for (const MemberView& member : GenerationOf(job, 1).members) EXPECT_EQ(member.free_slots, 0);
    return job;
  }
  // Once its workers are gone and a word that the whole job has ended with them did not come.
  bool Leaves(const std::string& name) {
    return world().RunUntil([&] { return world().node(name).done; }, 1s);
  }
  int LiveEverywhere() {
    int live = 0;
    for (auto& entry : world().nodes()) live += entry.second->LiveRanks();
    return live;
  }
};

// §5: leaving never ends an elastic job that keeps its minimum; the last to leave cancels it.
TEST_F(Launch, launchers_leave) {
  const JobId job = LaunchThree(SpecOf("train", 1, 3));
  world().node("node1").KillAgent();  // The host's launcher, by SIGKILL; its lifeline closes.
  ASSERT_TRUE(ReachesGeneration(job, 2, 60s));
  EXPECT_EQ(world().View(job).nodes, 2);
  EXPECT_FALSE(GenerationOf(job, 1).charged);

  world().node("node2").Signal(SIGINT);
  ASSERT_TRUE(ReachesGeneration(job, 3, 60s));
  EXPECT_EQ(world().View(job).nodes, 1);
  EXPECT_TRUE(EndedBy<Preempted>(GenerationOf(job, 2)));
  EXPECT_TRUE(Leaves("node2"));

  world().node("node3").Signal(SIGINT);
  ASSERT_TRUE(Reaches(job, "cancelled"));
  EXPECT_EQ(world().View(job).exit_code, 130);
  world().RunFor(5s);
  EXPECT_EQ(LiveEverywhere(), 0);
  EXPECT_TRUE(world().node("node3").done);
  EXPECT_TRUE(world().finished());  // The ad-hoc coordinator leaves too.
}

// §4: a witness that still accepts keeps a launched node for its grace and a second, no longer.
TEST_F(Launch, a_launcher_that_is_gone_is_awaited_for_its_grace) {
  const JobSpec spec = SpecOf("train", 1, 3);
  const JobId job = LaunchThree(spec);
  world().node("node2").behaviour().unkillable = true;
  world().node("node2").KillAgent();
  world().RunFor(spec.grace + 900ms);
  EXPECT_EQ(world().View(job).generation, Generation(1));
  EXPECT_FALSE(world().NodeRowOf("node2").lost);
  ASSERT_TRUE(ReachesGeneration(job, 2, 500ms));
  EXPECT_TRUE(world().NodeRowOf("node2").lost);
}

// §4: what a recovery gives the fleet to dial again is over for whoever has dialled.
TEST_F(Launch, a_launcher_that_was_back_after_a_recovery_is_awaited_no_longer) {
  JobSpec spec = SpecOf("train", 1, 3);
  spec.grace = 2s;
  const JobId job = LaunchThree(spec);
  world().CrashCoordinator();
  world().StartCoordinator();
  world().RunFor(3s);
  ASSERT_TRUE(world().node("node2").attached());
  world().node("node2").behaviour().unkillable = true;
  world().node("node2").KillAgent();
  world().RunFor(spec.grace + 900ms);
  EXPECT_EQ(world().View(job).generation, Generation(1));
  EXPECT_FALSE(world().NodeRowOf("node2").lost);
  ASSERT_TRUE(ReachesGeneration(job, 2, 500ms));
  EXPECT_TRUE(world().NodeRowOf("node2").lost);
}

// §5: when all are gone, another one may come in time for the same job.
TEST_F(Launch, a_job_that_all_have_lost_is_held_for_a_second) {
  const JobId job = LaunchThree(SpecOf("train", 1, 3));
  for (const char* name : {"node1", "node2", "node3"}) world().node(name).KillAgent();
  const auto all_lost = [&] {
    return world().NodeRowOf("node1").lost && world().NodeRowOf("node2").lost &&
           world().NodeRowOf("node3").lost;
  };
  ASSERT_TRUE(world().RunUntil(all_lost, 120s));
  world().RunFor(900ms);
  EXPECT_EQ(world().StateOf(job), "regrouping");
  world().RunFor(200ms);
  EXPECT_EQ(world().StateOf(job), "preempted");
}

// §5: who is behind a cut when its job ends is told once it is reached again.
TEST_F(Launch, a_launcher_that_is_cut_off_hears_of_the_end) {
  const JobId job = LaunchThree(SpecOf("train", 3, 3));
  world().node("node3").SetSilent(true);
  world().RunFor(1s);
  world().node("node2").Signal(SIGINT);
  ASSERT_TRUE(Reaches(job, "cancelled"));
  world().RunFor(20s);
  EXPECT_FALSE(world().finished());
  EXPECT_GT(world().node("node3").LiveRanks(), 0);
  world().node("node3").SetSilent(false);
  world().RunFor(10s);
  EXPECT_EQ(LiveEverywhere(), 0);
  EXPECT_TRUE(world().node("node3").done);
  EXPECT_TRUE(world().finished());
}

// The hold begins with the job's end, however long ago the cut was.
TEST_F(Launch, a_launcher_that_was_cut_off_long_before_hears_of_the_end) {
  const JobId job = LaunchThree(SpecOf("train", 1, 3));
  world().node("node3").SetSilent(true);
  ASSERT_TRUE(ReachesGeneration(job, 2, 60s));
  world().RunFor(10min);
  for (const char* name : {"node1", "node2"}) world().node(name).ExitRank(job, 0, 0);
  ASSERT_TRUE(Reaches(job, "succeeded"));
  world().RunFor(4min);
  EXPECT_FALSE(world().finished());
  world().node("node3").SetSilent(false);
  world().RunFor(10s);
  EXPECT_TRUE(world().node("node3").done);
  EXPECT_TRUE(world().finished());
}

// Nor does a calendar that was set back meanwhile make it longer.
TEST_F(Launch, the_hold_for_who_is_cut_off_ends_whatever_the_calendar_says) {
  const JobId job = LaunchThree(SpecOf("train", 1, 3));
  world().node("node3").SetSilent(true);
  ASSERT_TRUE(ReachesGeneration(job, 2, 60s));
  for (const char* name : {"node1", "node2"}) world().node(name).ExitRank(job, 0, 0);
  ASSERT_TRUE(Reaches(job, "succeeded"));
  world().CrashCoordinator();
  world().wall_skew = -24h;
  world().StartCoordinator();
  world().RunFor(4min);
  EXPECT_FALSE(world().finished());
  world().RunFor(90s);
  EXPECT_TRUE(world().finished());
}

// A job of which nobody but one behind a cut is left, and which was done, does not run again.
TEST_F(Launch, who_was_done_behind_a_cut_runs_nothing_again) {
  const JobId job = LaunchThree(SpecOf("train", 3, 3));
  world().node("node3").SetSilent(true);
  for (const char* name : {"node1", "node2", "node3"}) world().node(name).ExitRank(job, 0, 0);
  world().RunFor(10min);
  EXPECT_EQ(world().StateOf(job), "regrouping");
  world().node("node3").SetSilent(false);
  ASSERT_TRUE(Reaches(job, "succeeded", 10s));
  EXPECT_EQ(world().View(job).generation, Generation(1));
  world().RunFor(10s);
  for (const char* name : {"node1", "node2", "node3"}) EXPECT_TRUE(world().node(name).done) << name;
  EXPECT_TRUE(world().finished());
}

TEST_F(Launch, who_alone_was_done_behind_a_cut_runs_again) {
  const JobId job = LaunchThree(SpecOf("train", 3, 3));
  world().node("node3").SetSilent(true);
  for (const char* name : {"node1", "node3"}) world().node(name).ExitRank(job, 0, 0);
  world().RunFor(10min);
  world().node("node3").SetSilent(false);
  EXPECT_TRUE(ReachesGeneration(job, 2, 60s));
}

// §5: below its minimum the job waits, visibly, for the next launch command.
TEST_F(Launch, below_the_minimum_it_waits) {
  const JobId job = LaunchThree(SpecOf("train", 3, 4));
  world().node("node2").Signal(SIGINT);
  ASSERT_TRUE(Reaches(job, "regrouping"));
  world().RunFor(5s);
  EXPECT_EQ(world().StateOf(job), "regrouping");
  const std::optional<WaitReason> why = world().View(job).why;
  ASSERT_TRUE(why.has_value());
  const auto* below = std::get_if<BelowMinimum>(&*why);
  ASSERT_NE(below, nullptr);
  EXPECT_EQ(below->have, 2);
  EXPECT_EQ(below->need, 3);
  world().AddLauncher("node4", SpecOf("train", 3, 4));
  ASSERT_TRUE(Reaches(job, "running"));
  EXPECT_THAT(Members(GenerationOf(job, 2)), ::testing::ElementsAre("node1", "node4", "node3"));
}

// §2 Ranks: spares. However many nodes there are, one too many is told so, and takes a lost one's
// place.
TEST_F(Launch, spare_of_many_is_told) {
  coordinator::Config config;
  config.ad_hoc.on = true;
  Start(config);
  constexpr int kNodes = 17;
  for (int i = 1; i <= kNodes; ++i)
    world().AddLauncher(absl::StrCat("node", i), SpecOf("train", kNodes, kNodes));
  const JobId job("train-1");
  ASSERT_TRUE(Reaches(job, "running"));
  world().AddLauncher("spare", SpecOf("train", kNodes, kNodes));
  world().RunFor(2s);
  const auto says = [](const JobEvent& event) {
    const auto* joined = std::get_if<NodeJoined>(&event.body);
    return joined && joined->node == "spare" && joined->have == kNodes + 1 && joined->max == kNodes;
  };
  const auto told = [&](const char* name) {
    const std::vector<JobEvent>& news = world().node(name).news;
    return std::count_if(news.begin(), news.end(), says);
  };
  EXPECT_EQ(told("spare"), 1);
  EXPECT_EQ(told("node2"), 0);
  world().node("node2").KillAgent();
  ASSERT_TRUE(ReachesGeneration(job, 2, 60s));
  EXPECT_EQ(Members(GenerationOf(job, 2))[1], "spare");
}

// §2 Preempted is not an end: who was only silent goes on with its job, as the same command would.
TEST_F(Launch, a_silent_launcher_resumes_its_preempted_job) {
  Start();
  world().AddLauncher("node1", SpecOf("train", 1, 2));
  const JobId job("train-1");
  ASSERT_TRUE(Reaches(job, "running"));
  world().node("node1").SetSilent(true);
  world().RunFor(200s);  // It may train on unseen.
  EXPECT_EQ(world().StateOf(job), "running");
  ASSERT_TRUE(Reaches(job, "preempted", 107s));
  world().RunFor(20s);
  world().node("node1").SetSilent(false);
  ASSERT_TRUE(ReachesGeneration(job, 2, 10s));
  EXPECT_EQ(world().LiveRanks(job), 1);
  world().node("node1").Signal(SIGTERM);
  ASSERT_TRUE(Reaches(job, "preempted", 60s));
  world().RunFor(30s);
  EXPECT_TRUE(world().node("node1").done);
  EXPECT_EQ(world().StateOf(job), "preempted");
}

// §5: a fixed-size job is cancelled by Ctrl-C on any node, and every launch command gets the same
// code.
TEST_F(Launch, fixed_size_job_is_cancelled_by_ctrl_c) {
  const JobId job = LaunchThree(SpecOf("train", 3, 3));
  world().node("node2").Signal(SIGINT);
  ASSERT_TRUE(Reaches(job, "cancelled"));
  world().RunFor(1s);
  for (const char* name : {"node1", "node3"}) {
    ASSERT_TRUE(world().node(name).result.has_value()) << name;
    EXPECT_EQ(world().node(name).result->exit_code, 130);
  }
}

// Issue: SIGTERM is a notice: the workers that speak save a commit, the node leaves uncharged,
// survivors re-form.
TEST_F(Launch, sigterm_saves_and_leaves) {
  const JobSpec spec = SpecOf("train", 1, 3);
  coordinator::Config config;
  config.ad_hoc.on = true;
  Start(config);
  for (const char* name : {"node1", "node2", "node3"}) {
    sim::NodeOptions options;
    options.launched = true;
    options.launch = sim::LaunchOf(std::string("key-") + name, spec);
    sim::Behaviour speaks;
    speaks.speaks = true;
    world().Add(name, options, speaks);
  }
  const JobId job("train-1");
  ASSERT_TRUE(Reaches(job, "running"));
  world().RunFor(3s);
  world().node("node3").Signal(SIGTERM);
  ASSERT_TRUE(ReachesGeneration(job, 2));
  const auto preempted = std::get<Preempted>(*GenerationOf(job, 1).ended);
  EXPECT_TRUE(preempted.saved);
  EXPECT_EQ(preempted.node, "node3");
  EXPECT_FALSE(GenerationOf(job, 1).charged);
  ASSERT_TRUE(world().View(job).committed_step.has_value());
  EXPECT_EQ(world().node("node1").Live(job)->run->resume_step, *world().View(job).committed_step);
  EXPECT_TRUE(Leaves("node3"));

  // The others too: the job is preempted, which is no end; the same command goes on with its next
  // generation.
  world().node("node1").Signal(SIGTERM);
  world().node("node2").Signal(SIGTERM);
  ASSERT_TRUE(Reaches(job, "preempted", 60s));
  EXPECT_EQ(LiveEverywhere(), 0);
  world().RunFor(5s);
  EXPECT_TRUE(world().finished());
  world().StartCoordinator();
  world().AddLauncher("again", spec);
  ASSERT_TRUE(Reaches(job, "running"));
  EXPECT_GT(world().View(job).generation, Generation(2));
  EXPECT_GT(world().node("again").Live(job)->run->resume_step, 0);
}

// §5: a second interrupt is for the workers of its node, not for those that are to go on.
TEST_F(Launch, a_second_interrupt_hurries_its_own_workers_only) {
  const JobSpec spec = SpecOf("train", 1, 3);
  Start();
  sim::NodeOptions options;
  options.launched = true;
  sim::Behaviour slow;
  slow.speaks = true;
  slow.save = 60s;
  slow.ignores_term = true;
  for (const char* name : {"node1", "node2", "node3"}) {
    options.launch = sim::LaunchOf(std::string("key-") + name, spec);
    world().Add(name, options, slow);
  }
  const JobId job("train-1");
  ASSERT_TRUE(Reaches(job, "running"));
  world().RunFor(3s);
  world().node("node2").Signal(SIGINT);
  world().RunFor(1s);
  EXPECT_EQ(world().LiveRanks(job), 3);
  world().node("node2").Signal(SIGINT);
  world().RunFor(100ms);
  EXPECT_EQ(world().node("node2").LiveRanks(), 0);
  EXPECT_EQ(world().LiveRanks(job), 2);
  ASSERT_TRUE(ReachesGeneration(job, 2, 5s));
}

// §5: who comes late to an id gets its result, or begins the next job of that name; bounds must
// agree.
TEST_F(Launch, late_and_repeated_id) {
  const JobSpec spec = SpecOf("train", 1, 2);
  Start();
  world().AddLauncher("node1", spec);
  const JobId job("train-1");
  ASSERT_TRUE(Reaches(job, "running"));
  world().AddLauncher("node9", SpecOf("train", 2, 3));
  world().RunFor(1s);
  ASSERT_TRUE(world().node("node9").refused.has_value());
  std::string why;
  world().node("node9").refused->ForEachPayload(
      [&](absl::string_view, const absl::Cord& part) { why += std::string(part); });
  EXPECT_THAT(why, ::testing::HasSubstr("1:2"));
  EXPECT_THAT(why, ::testing::HasSubstr("2:3"));
  world().node("node1").ExitRank(job, 0, 7);
  ASSERT_TRUE(Reaches(job, "failed"));
  EXPECT_EQ(world().View(job).exit_code, 7);
  ASSERT_TRUE(world().RunUntil([&] { return world().node("node1").result.has_value(); }));
  world().RunFor(2s);

  world().AddLauncher("older", spec, 60s);  // It started before the end.
  ASSERT_TRUE(world().RunUntil([&] { return world().node("older").result.has_value(); }));
  EXPECT_EQ(world().node("older").result->exit_code, 7);
  EXPECT_EQ(world().node("older").launched_job, job);

  world().AddLauncher("younger", spec);
  const JobId next("train-2");
  ASSERT_TRUE(Reaches(next, "running"));
  EXPECT_EQ(world().node("younger").launched_job, next);
}

// §5: a launch command that is killed while its node prepares leaves nothing to the next one there,
// whose program is another.
TEST_F(Launch, the_next_command_of_a_node_takes_over_nothing) {
  Start();
  JobSpec first = SpecOf("first", 1, 1);
  first.node_check.command = "sleep 700";
  sim::Node& node = world().AddLauncher("node1", first);
  node.behaviour().never_prepares = true;
  ASSERT_TRUE(Reaches(JobId("first-1"), "forming"));
  node.KillAgent();
  world().RunFor(100ms);
  node.behaviour().never_prepares = false;
  node.StartCommand(sim::LaunchOf("key-second", SpecOf("second", 1, 1)));
  ASSERT_TRUE(Reaches(JobId("second-2"), "running", 500ms)) << "its slots are its own";
  EXPECT_EQ(world().View(JobId("second-2")).generation, Generation(1));
  world().RunFor(5s);
  EXPECT_EQ(world().StateOf(JobId("first-1")), "preempted");
  EXPECT_EQ(GenerationOf(JobId("first-1"), 1).state, GenerationView::State::kVoided);
}

}  // namespace
}  // namespace regroup
