// Scenarios about generations: numbers, crashes between rows, ends and their causes. PROTOCOL §2,
// §3.

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "tests/scenario/testing.h"

namespace regroup {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

class Generations : public Scenario {
 protected:
  // Node b is away for a moment and comes back from a reboot: that ends generation 1, at no charge.
  void RebootFreeOfCharge(const JobId& job) {
    world().node("b").SetSilent(true);
    world().RunFor(2s);
    world().node("b").Reboot();
    ASSERT_TRUE(ReachesGeneration(job, 2));
    EXPECT_TRUE(EndedBy<NodeRebooted>(GenerationOf(job, 1)));
    EXPECT_FALSE(GenerationOf(job, 1).charged);
  }
  // When a proposal had this node as a member.
  std::vector<Duration> TimesAsked(const JobId& job, const std::string& name) {
    std::vector<Duration> times;
    for (const auto& entry : world().rows()) {
      const auto* row = std::get_if<coordinator::GenerationRow>(&entry.second);
      if (row == nullptr || row->job != job) continue;
      for (const coordinator::GenerationMember& member : row->members)
        if (member.name == name) times.push_back(row->proposed_at.time_since_epoch());
    }
    return times;
  }
  NodeView NodeOf(const std::string& name) {
    coordinator::ReadFilter filter;
    filter.jobs = false;
    filter.nodes = true;
    filter.node = name;
    sim::Clock& clock = world().clock();
    return world().core().Read(filter, clock.now(), clock.wall())->nodes.at(0);
  }
  int SlotsUsed(const std::string& name) { return NodeOf(name).slots_used; }
  std::string NodeNote(const std::string& name) { return NodeOf(name).note; }
};

// §3 Back-off: rows hold no instants, so after a crash the wait begins again, in full.
TEST_F(Generations, a_crash_shortens_no_back_off) {
  for (const Duration crash_after : {5ms, 100ms, 1500ms}) {  // While it ends, soon after, late.
    Start();
    AddDaemons({"a", "b"});
    const JobId job = Running(SpecOf("job", 2, 2, 9));
    for (std::uint64_t failed = 1; failed <= 3; ++failed) {
      world().node("b").ExitRank(job, 0, 1);
      if (failed < 3) {
        ASSERT_TRUE(ReachesGeneration(job, failed + 1));
      }
    }
    world().RunFor(crash_after);  // The third failure in a row waits 2 s, less a fifth at most.
    world().CrashCoordinator();
    world().StartCoordinator();
    world().RunFor(1500ms);
    EXPECT_EQ(world().StateOf(job), "regrouping");
    EXPECT_TRUE(std::holds_alternative<BackingOff>(*world().View(job).why));
    ASSERT_TRUE(ReachesGeneration(job, 4, 2s));
  }
}

// §3: a node is left out of a job whose program it cannot execute. One that has no process to give
// now may have some in a moment: a job that needs it tries again.
TEST_F(Generations, who_lacks_processes_for_a_moment_stays) {
  Start();
  sim::Behaviour full;
  full.exec_error = EAGAIN;
  world().Add("a", {}, full);
  world().RunFor(1s);
  world().Submit(SpecOf("job", 1, 1, 3), "k");
  const JobId job("job-1");
  world().RunFor(500ms);
  EXPECT_TRUE(EndedBy<WorkerFailed>(GenerationOf(job, 1)));
  EXPECT_TRUE(GenerationOf(job, 1).charged);
  world().node("a").behaviour().exec_error = 0;
  ASSERT_TRUE(ReachesGeneration(job, 3, 5s));
  EXPECT_THAT(Members(GenerationOf(job, 3)), ElementsAre("a"));
}

TEST_F(Generations, who_lacks_processes_is_left_out_where_others_are_enough) {
  Start();
  sim::Behaviour full;
  full.exec_error = EAGAIN;
  AddDaemons({"a", "b"}, full);
  AddDaemons({"c", "d"});
  world().RunFor(1s);
  world().Submit(SpecOf("job", 2, 4, 0), "k");
  const JobId job("job-1");
  ASSERT_TRUE(ReachesGeneration(job, 3));
  EXPECT_TRUE(EndedBy<ExecFailed>(GenerationOf(job, 1)));
  EXPECT_TRUE(EndedBy<ExecFailed>(GenerationOf(job, 2)));
  EXPECT_THAT(Members(GenerationOf(job, 3)), UnorderedElementsAre("c", "d"));
}

// §2 Propose: the number is durable before the first Prepare; a voided one is never used again.
TEST_F(Generations, number_burned_by_a_dead_proposal) {
  Start();
  AddDaemons({"a", "b"});
  world().RunFor(1s);
  const JobId job("job-1");
  world().Submit(SpecOf("job", 2, 2), "k");
  ASSERT_TRUE(
      world().RunUntil([&] { return world().node("a").Find(job, Generation(1)) != nullptr; }));
  world().CrashCoordinator();
  world().node("b").KillNode();
  world().Add("c");
  world().RunFor(1s);
  EXPECT_EQ(world().node("a").Find(job, Generation(1))->phase, Phase::kPrepared);
  world().StartCoordinator();
  ASSERT_TRUE(Reaches(job, "running", 60s));
  EXPECT_EQ(GenerationOf(job, 1).state, GenerationView::State::kVoided);
  EXPECT_EQ(world().View(job).generation, Generation(2));
  EXPECT_THAT(Members(GenerationOf(job, 2)), ElementsAre("a", "c"));
  EXPECT_EQ(world().node("a").Find(job, Generation(1)), nullptr);
}

// Its agent first, its shim and its ranks a moment later, as when a cgroup is killed.
// Of whom the coordinator before has asked what is not known: its proposal is nobody's.
TEST_F(Generations, what_a_coordinator_proposed_dies_with_it) {
  Start();
  sim::Behaviour slow;
  slow.prepare = 500ms;
  AddDaemons({"a", "b"}, slow);
  world().RunFor(1s);
  world().Submit(SpecOf("job", 2, 2), "submit");
  world().RunFor(100ms);
  world().CrashCoordinator();
  world().StartCoordinator();
  world().RunFor(50ms);
  EXPECT_EQ(world().StateOf(JobId("job-1")), "queued");
  ASSERT_TRUE(ReachesGeneration(JobId("job-1"), 2, 10s));
}

TEST_F(Generations, a_node_that_dies_in_pieces_is_lost_within_milliseconds) {
  Start();
  AddDaemons({"a", "b", "c"});
  const JobId job = Running(SpecOf("job", 2, 2));
  for (const auto& [pieces, limit] : {std::pair{5ms, 30ms}, std::pair{50ms, 60ms}}) {
    world().RunFor(20s);
    const std::uint64_t next = world().View(job).generation.value() + 1;
    const std::string victim = Members(GenerationOf(job, next - 1)).back();
    world().node(victim).KillAgent();
    world().RunFor(pieces);
    world().node(victim).KillNode();
    ASSERT_TRUE(ReachesGeneration(job, next, limit)) << victim;
    world().node(victim).Reboot();
  }
}

struct Life {
  std::string state;
  int restarts = -1;
  std::int64_t points = 0;
  std::vector<std::string> violations;
  int starts = 0;
};

// One scripted life, with the coordinator dying at its n-th commit or action (-1: never), back half
// a second later.
Life LiveOnce(std::int64_t crash_at) {
  sim::World world;
  for (const char* name : {"a", "b"}) world.Add(name);
  world.RunFor(1s);
  world.CrashAt(crash_at);
  const JobId job("job-1");
  auto revive = [&] {
    if (world.coordinator_up()) return;
    world.RunFor(500ms);
    world.StartCoordinator();
  };
  auto until = [&](const std::function<bool()>& condition) {
    world.RunUntil([&] { return condition() || !world.coordinator_up(); }, 60s);
    revive();
    return world.RunUntil(condition, 60s);
  };
  JobSpec spec = SpecOf("job", 2, 2, 1);
  // A client repeats its submit until it is answered.
  CallId call = world.Submit(spec, "key");
  revive();
  if (world.ReplyTo(call) == nullptr) call = world.Submit(spec, "key");
  revive();
  Life life;
  life.state = "never ran";
  if (!until([&] { return world.StateOf(job) == "running" && world.LiveRanks(job) == 2; }))
    return life;
  const std::vector<std::int64_t> first = world.Pids(job);
  world.RunFor(2s);
  revive();
  life.state = "workers were touched";
  if (world.Pids(job) != first) return life;
  life.state = "was not restarted";
  world.node("b").ExitRank(job, 0, 1);
  if (!until(
          [&] { return world.StateOf(job) == "running" && world.View(job).restarts_charged == 1; }))
    return life;
  const std::vector<std::int64_t> second = world.Pids(job);
  world.RunFor(2s);
  revive();
  life.state = "workers were touched after a restart";
  if (world.Pids(job) != second) return life;
  for (const char* name : {"a", "b"}) world.node(name).ExitRank(job, 0, 0);
  until([&] { return world.StateOf(job) == "succeeded"; });
  life.state = world.StateOf(job);
  life.restarts = world.View(job).restarts_charged;
  life.points = world.points();
  world.checker.AtEnd(world.rows());
  life.violations = world.checker.violations;
  return life;
}

// §1: state is the fold of the rows; nothing seen outside runs ahead of them.
TEST_F(Generations, crash_after_every_row) {
  const Life calm = LiveOnce(-1);
  ASSERT_EQ(calm.state, "succeeded");
  ASSERT_EQ(calm.restarts, 1);
  ASSERT_GT(calm.points, 30);
  for (std::int64_t point = 0; point < calm.points; ++point) {
    const Life life = LiveOnce(point);
    EXPECT_EQ(life.state, "succeeded") << "crash at point " << point;
    EXPECT_EQ(life.restarts, 1) << "crash at point " << point;
    EXPECT_THAT(life.violations, ::testing::IsEmpty()) << "crash at point " << point;
  }
}

// §2 Run: an agent obeys `run g` once, ever; an exit that was not reported is reported again.
TEST_F(Generations, run_is_obeyed_once) {
  Start();
  AddDaemons({"a", "b"});
  const JobId job = Running(SpecOf("job", 2, 2));
  world().CrashCoordinator();
  world().node("a").ExitRank(job, 0, 0);
  world().RunFor(1s);
  world().StartCoordinator();
  world().RunFor(5s);
  EXPECT_EQ(world().StateOf(job), "running");
  EXPECT_EQ(world().LiveRanks(job), 1);
  EXPECT_TRUE(world().rows().contains(coordinator::DoneKey(job, world().node("a").id())));
  world().node("b").ExitRank(job, 0, 0);
  ASSERT_TRUE(Reaches(job, "succeeded"));
  world().RunFor(2s);
  EXPECT_TRUE(world().node("a").groups().at(job).empty());  // Forgotten.
}

// §2 Compare: one that shows no part of g has lost it, and ends g; a reboot is free.
TEST_F(Generations, rebooted_member) {
  Start();
  AddDaemons({"a", "b"});
  const JobId job = Running(SpecOf("job", 2, 2));
  const std::size_t started = world().node("b").Pids(job).size();
  EXPECT_EQ(started, 1u);
  RebootFreeOfCharge(job);
  EXPECT_EQ(world().View(job).restarts_charged, 0);
}

// The same before any rank of g was started: none of them ever is, nor are those of the others.
TEST_F(Generations, rebooted_member_before_its_ranks_start) {
  Start();
  sim::Behaviour slow;
  slow.start = 3s;
  AddDaemons({"a", "b"}, slow);
  world().RunFor(1s);
  world().Submit(SpecOf("job", 2, 2), "submit");
  const JobId job("job-1");
  ASSERT_TRUE(world().RunUntil([&] {
    const sim::Group* group = world().node("b").Find(job, Generation(1));
    return group != nullptr && group->phase == Phase::kStarting;
  }));
  RebootFreeOfCharge(job);
  EXPECT_THAT(world().Pids(job), ElementsAre(1001, 1002));  // Nothing was started before.
}

// §2 Done: the done row outlives the coordinator; another rank's failure reruns all; nothing reruns
// before finish_hold.
TEST_F(Generations, done_then_failed_then_lost) {
  Start();
  AddDaemons({"a", "b"});
  const JobId job = Running(SpecOf("job", 2, 2, 3));
  world().node("a").ExitRank(job, 0, 0);
  world().RunFor(100ms);
  EXPECT_TRUE(world().rows().contains(coordinator::DoneKey(job, world().node("a").id())));
  world().node("b").ExitRank(job, 0, 1);
  ASSERT_TRUE(ReachesGeneration(job, 2));
  EXPECT_EQ(world().LiveRanks(job), 2);  // All ranks run again.
  EXPECT_TRUE(GenerationOf(job, 1).charged);

  world().node("a").ExitRank(job, 0, 0);
  world().RunFor(100ms);
  world().node("b").SetSilent(true);
  world().RunFor(50s);
  EXPECT_EQ(world().View(job).generation, Generation(2));
  ASSERT_TRUE(world().View(job).why.has_value());
  EXPECT_TRUE(std::holds_alternative<FinishHold>(*world().View(job).why));
  const auto& events = world().View(job).events;
  const auto* waits = std::get_if<Waits>(&events.back().body);
  ASSERT_NE(waits, nullptr);
  EXPECT_EQ(std::get<FinishHold>(waits->reason).left, 60s)
      << "as long as it may take, when it is told";
  world().node("b").SetSilent(false);  // It comes back and finishes: nobody reran.
  world().RunFor(5s);
  world().node("b").ExitRank(job, 0, 0);
  ASSERT_TRUE(Reaches(job, "succeeded"));
  EXPECT_EQ(world().View(job).generation, Generation(2));
}

// §2: all ranks are done while the stop for a growth is on its way: nothing of the job runs again.
TEST_F(Generations, done_before_the_stop_of_a_growth_arrives) {
  Start();
  sim::Behaviour slow;
  slow.net = 20ms;
  AddDaemons({"a"}, slow);
  const JobId job = Running(SpecOf("job", 1, 2));
  world().Add("b");
  ASSERT_TRUE(world().RunUntil([&] {
    const auto why = world().View(job).why;
    return why && std::holds_alternative<SlotsStopping>(*why);
  }));
  world().node("a").ExitRank(job, 0, 0);
  ASSERT_TRUE(Reaches(job, "succeeded"));
  EXPECT_EQ(world().View(job).generation, Generation(1));
  EXPECT_TRUE(EndedBy<Finished>(GenerationOf(job, 1)));
  for (const char* name : {"a", "b"}) EXPECT_EQ(world().node(name).Live(job), nullptr);
}

TEST_F(Generations, finish_hold_ends) {
  Start();
  AddDaemons({"a", "b", "c"});
  const JobId job = Running(SpecOf("job", 2, 2, 3));
  world().node("a").ExitRank(job, 0, 0);
  world().RunFor(100ms);
  world().node("b").SetSilent(true);
  ASSERT_TRUE(ReachesGeneration(job, 2, 90s));
  EXPECT_GT(world().SinceStart(), 60s);
  EXPECT_TRUE(EndedBy<NodeLost>(GenerationOf(job, 1)));
}

// §3: the verdict window; a worse class found later wins; with a spent budget the restart waits for
// the verdict.
TEST_F(Generations, secondary_failure_is_free) {
  Start();
  AddDaemons({"a", "b", "c"});
  JobSpec spec = SpecOf("job", 2, 3, 0);
  spec.scale_up = ScaleUp::kNever;
  const JobId job = Running(spec);
  ASSERT_EQ(world().View(job).nodes, 3);
  world().node("c").CutPower();
  world().RunFor(40ms);
  world().node("b").ExitRank(job, 0, 1);
  world().RunFor(4s);
  ASSERT_TRUE(world().View(job).why.has_value());
  EXPECT_TRUE(std::holds_alternative<BudgetVerdictOpen>(*world().View(job).why));
  ASSERT_TRUE(ReachesGeneration(job, 2));
  EXPECT_TRUE(EndedBy<NodeLost>(GenerationOf(job, 1)));
  EXPECT_FALSE(GenerationOf(job, 1).charged);
  ASSERT_EQ(GenerationOf(job, 1).consequences.size(), 1u);
  EXPECT_EQ(GenerationOf(job, 1).consequences[0].node, "b");
  EXPECT_EQ(world().View(job).restarts_charged, 0);
}

// §2 Gather: slow stops are waited for; a flapping member is backed off; an unkillable slot is left
// behind.
TEST_F(Generations, slow_stop_flap_unkillable) {
  Start();
  sim::Behaviour slow;
  slow.ignores_term = true;
  world().Add("slow", {}, slow);
  sim::Behaviour stuck;
  stuck.unkillable = true;
  world().Add("stuck", {}, stuck);
  AddDaemons({"a"});
  JobSpec spec = SpecOf("job", 2, 5, 3);
  spec.grace = 20s;
  spec.scale_up = ScaleUp::kNow;
  const JobId job = Running(spec);
  ASSERT_EQ(world().View(job).nodes, 3);

  // It dies of every Prepare and is back at once: asked more and more seldom.
  sim::Behaviour flaps;
  flaps.dies_in_prepare = true;
  world().Add("flapper", {}, flaps);
  const auto flap_for = [&](Duration duration) {
    for (Duration past{}; past < duration; past += 100ms) {
      world().RunFor(100ms);
      if (!world().node("flapper").running()) world().node("flapper").StartAgent();
    }
  };
  flap_for(45s);
  EXPECT_EQ(world().View(job).generation, Generation(1));  // Nobody was touched.

  // A growth stops everybody, with the job's grace.
  world().Add("new");
  const Duration before = world().SinceStart();
  while (world().SinceStart() < before + 40s && world().View(job).generation == Generation(1))
    flap_for(100ms);
  EXPECT_GE(world().SinceStart() - before, 20s);  // The slow one was waited for,
  EXPECT_LE(world().SinceStart() - before, 21s);  // the dead one no longer, nor the flapper.
  ASSERT_TRUE(world().RunUntil([&] { return world().StateOf(job) == "running"; }));
  const std::uint64_t formed = world().View(job).generation.value();
  EXPECT_THAT(Members(GenerationOf(job, formed)),
              ::testing::UnorderedElementsAre("a", "new", "slow"));

  // The slot of the dead one stays taken, and the flapper is asked as seldom as before.
  flap_for(60s);
  EXPECT_EQ(world().node("stuck").LiveRanks(), 1);
  EXPECT_EQ(SlotsUsed("stuck"), 1);
  EXPECT_THAT(Members(GenerationOf(job, world().View(job).generation.value())),
              ::testing::UnorderedElementsAre("a", "new", "slow"));
  const std::vector<Duration> asked = TimesAsked(job, "flapper");
  EXPECT_EQ(asked.size(), 7u);
  for (std::size_t i = 1; i < asked.size(); ++i)
    EXPECT_GE(asked[i] - asked[i - 1], 1s * (1 << (i - 1))) << i;
}

// §5 A stop deadline never moves later: who is told to stop now is not told to take its time by a
// cancel. (The checker compares the orders.)
TEST_F(Generations, a_cancel_gives_nobody_more_time) {
  Start();
  const JobSpec spec = SpecOf("job", 1, 3);
  for (const char* name : {"a", "b", "c"})
    world().AddLauncher(name, spec).behaviour().ignores_term = true;
  const JobId job("job-1");
  ASSERT_TRUE(Reaches(job, "running"));
  world().node("a").Signal(SIGINT);
  world().RunFor(600ms);  // Sooner, a second one would be the echo of the first.
  EXPECT_EQ(world().LiveRanks(job), 3);
  world().node("a").Signal(SIGINT, /*now=*/true);
  world().RunFor(1ms);
  world().Cancel(job.value());
  world().RunFor(100ms);
  EXPECT_EQ(world().node("a").LiveRanks(), 0);
  EXPECT_EQ(world().LiveRanks(job), 2);  // The others have the grace.
  ASSERT_TRUE(Reaches(job, "cancelled", 40s));
}

// §2 Elective changes: newcomers prepare first; if they fail, nobody was touched.
TEST_F(Generations, joiner_dies_first) {
  Start();
  AddDaemons({"a", "b"});
  JobSpec spec = SpecOf("job", 2, 3);
  const JobId job = Running(spec);
  const std::vector<std::int64_t> pids = world().Pids(job);
  sim::Behaviour dies;
  dies.dies_in_prepare = true;
  world().Add("c", {}, dies);
  int voided = 0;
  for (int i = 0; i < 5; ++i) {
    world().RunFor(20s);
    world().node("c").StartAgent();
  }
  world().RunFor(60s);
  for (const GenerationView& view : world().View(job).generations)
    voided += view.state == GenerationView::State::kVoided ? 1 : 0;
  EXPECT_GE(voided, 5);
  EXPECT_EQ(world().Pids(job), pids);
  EXPECT_EQ(world().View(job).generation, Generation(1));
  // Once it behaves, the group grows.
  world().node("c").behaviour().dies_in_prepare = false;
  world().node("c").StartAgent();
  ASSERT_TRUE(world().RunUntil(
      [&] { return world().StateOf(job) == "running" && world().View(job).nodes == 3; }, 300s));
  EXPECT_THAT(Members(GenerationOf(job, world().View(job).generation.value())),
              ElementsAre("a", "b", "c"));
}

// §2 Prepare: where many answer one after the other, as thousands do, the last ones are not left
// out for it. One that does not answer is, 2 s after the last one that has.
TEST_F(Generations, while_members_answer_the_others_are_waited_for) {
  for (const bool hangs : {false, true}) {
    Start();
    const char* const kNames[] = {"a", "b", "c", "d"};
    for (int i = 0; i < 4; ++i) {
      sim::Behaviour slow;
      slow.prepare = 1500ms * (i + 1);
      AddDaemons({kNames[i]}, slow);
    }
    sim::Behaviour stuck;
    stuck.never_prepares = hangs;
    AddDaemons({"e"}, stuck);
    world().RunFor(1s);
    world().Submit(SpecOf("job", 5, 5), "k");
    const JobId job("job-1");
    if (!hangs) {
      ASSERT_TRUE(ReachesGeneration(job, 1, 7s));
      continue;
    }
    world().RunFor(7900ms);
    EXPECT_EQ(GenerationOf(job, 1).state, GenerationView::State::kProposed);
    world().RunFor(300ms);
    EXPECT_EQ(GenerationOf(job, 1).state, GenerationView::State::kVoided);
  }
}

// And one that dials anew while its word is awaited has its whole time once more, however long the
// others took before.
TEST_F(Generations, after_slow_members_too_who_dials_anew_has_its_time) {
  Start();
  const char* const kNames[] = {"a", "b", "c", "d"};
  sim::Behaviour slow;
  for (int i = 0; i < 4; ++i) {
    slow.prepare = 1500ms * (i + 1);
    AddDaemons({kNames[i]}, slow);
  }
  slow.prepare = 9s;
  AddDaemons({"e"}, slow);
  world().RunFor(1s);
  world().Submit(SpecOf("job", 5, 5), "k");
  world().RunFor(7800ms);  // It has until 8 s, two after the last of the others.
  world().node("e").ResetSession();
  ASSERT_TRUE(ReachesGeneration(JobId("job-1"), 1, 3s));
  EXPECT_NE(GenerationOf(JobId("job-1"), 1).state, GenerationView::State::kVoided);
}

// §2 Prepare: a member may take as long as the job's node check may, and no longer.
TEST_F(Generations, a_node_check_has_its_own_time) {
  JobSpec spec = SpecOf("job", 2, 2);
  sim::Behaviour slow;
  slow.prepare = 9s;
  for (const bool checked : {true, false}) {
    Start();
    AddDaemons({"a"});
    AddDaemons({"b"}, slow);
    spec.node_check.command = checked ? "nvidia-smi" : "";
    spec.node_check.timeout = 10s;
    world().RunFor(1s);
    world().Submit(spec, "k");
    const JobId job("job-1");
    if (checked) {
      ASSERT_TRUE(ReachesGeneration(job, 1));
      continue;
    }
    world().RunFor(5s);
    EXPECT_EQ(GenerationOf(job, 1).state, GenerationView::State::kVoided);
  }
  Start();
  slow.prepare = 13s;  // Its check is over time, and the agent does not say so.
  AddDaemons({"a"});
  AddDaemons({"b"}, slow);
  world().RunFor(1s);
  spec.node_check.command = "nvidia-smi";
  world().Submit(spec, "k");
  world().RunFor(11s);
  EXPECT_EQ(GenerationOf(JobId("job-1"), 1).state, GenerationView::State::kProposed);
  world().RunFor(2s);
  EXPECT_EQ(GenerationOf(JobId("job-1"), 1).state, GenerationView::State::kVoided);
}

// §2 Prepare: whoever fails its check is left out, says why, and is asked again until it passes.
TEST_F(Generations, a_node_that_fails_its_check_is_left_out) {
  const std::string why = "its node check exited with 3: 7 GPUs";
  Start();
  sim::Behaviour bad;
  bad.refuses = why;
  AddDaemons({"a", "b"});
  AddDaemons({"c"}, bad);
  JobSpec spec = SpecOf("job", 2, 3);
  spec.node_check.command = "nvidia-smi";
  spec.scale_up = ScaleUp::kNow;
  const JobId job = Running(spec);
  EXPECT_THAT(Members(GenerationOf(job, world().View(job).generation.value())),
              ElementsAre("a", "b"));
  EXPECT_EQ(world().View(job).restarts_charged, 0);
  EXPECT_THAT(NodeNote("c"), ::testing::AllOf(::testing::StartsWith("not in job-1 for "),
                                              ::testing::EndsWith(why)));
  EXPECT_EQ(NodeNote("a"), "");
  const auto left_out = [&] { return world().View(job).left_out; };
  ASSERT_EQ(left_out().size(), 1u);
  EXPECT_EQ(left_out()[0].name, "c");
  EXPECT_EQ(left_out()[0].why, why);
  EXPECT_GT(left_out()[0].left, 0s);
  const std::vector<std::int64_t> pids = world().Pids(job);
  world().RunFor(120s);
  EXPECT_EQ(world().Pids(job), pids) << "a check elsewhere touches nobody";
  EXPECT_GE(TimesAsked(job, "c").size(), 4u);
  EXPECT_LE(TimesAsked(job, "c").size(), 9u);
  world().node("c").behaviour().refuses = "";
  ASSERT_TRUE(world().RunUntil([&] { return world().View(job).nodes == 3; }, 120s));
  EXPECT_EQ(NodeNote("c"), "");
  EXPECT_TRUE(left_out().empty());
}

// The first few of those left out are shown, and none that is lost.
TEST_F(Generations, of_many_that_are_left_out_some_are_shown) {
  Start();
  sim::Behaviour bad;
  bad.refuses = "7 GPUs";
  AddDaemons({"a"});
  const int many = static_cast<int>(kMaxLeftOutShown) + 1;
  for (int i = 0; i < many; ++i) world().Add("bad" + std::to_string(i), {}, bad);
  JobSpec spec = SpecOf("job", 1, many + 1);
  spec.scale_up = ScaleUp::kNow;
  const JobId job = Running(spec);
  const auto shown = [&] { return world().View(job).left_out.size(); };
  ASSERT_TRUE(world().RunUntil([&] { return shown() == kMaxLeftOutShown; }, 60s));
  world().RunFor(10s);
  EXPECT_EQ(shown(), kMaxLeftOutShown);
  for (const char* name : {"bad1", "bad3"}) world().node(name).CutPower();
  world().RunFor(30s);
  EXPECT_EQ(shown(), kMaxLeftOutShown - 1) << "two are lost";
  world().Cancel(job.value());
  ASSERT_TRUE(Reaches(job, "cancelled"));
  EXPECT_EQ(shown(), 0u) << "nobody is asked again";
  EXPECT_EQ(NodeNote("bad0"), "");
}

// §2 Prepare: a check that runs into its time keeps only its own node, not the restarts of others.
TEST_F(Generations, a_check_that_hangs_delays_no_restart) {
  for (const ScaleUp scale_up : {ScaleUp::kSettle, ScaleUp::kNow}) {
    Start();
    sim::Behaviour hangs;
    hangs.never_prepares = true;
    AddDaemons({"a", "b"});
    JobSpec spec = SpecOf("job", 2, 4, 9);
    spec.node_check = {"nvidia-smi", 30s};
    spec.scale_up = scale_up;
    const JobId job = Running(spec);
    AddDaemons({"c"}, hangs);
    world().RunFor(200s);
    const std::vector<Duration> asked = TimesAsked(job, "c");
    EXPECT_GE(asked.size(), 3u);
    for (std::size_t i = 1; i < asked.size(); ++i)
      EXPECT_GE(asked[i] - asked[i - 1], 60s) << "others can join meanwhile";
    for (int i = 0; i < 3; ++i) {
      const std::uint64_t before = world().View(job).generation.value();
      world().RunFor(70s);  // Sometimes in a check, sometimes between two.
      world().node("b").ExitRank(job, 0, 1);
      ASSERT_TRUE(world().RunUntil(
          [&] {
            return world().StateOf(job) == "running" &&
                   world().View(job).generation > Generation(before);
          },
          8s));
      EXPECT_THAT(Members(GenerationOf(job, world().View(job).generation.value())),
                  ElementsAre("a", "b"));
    }
  }
}

// Imports are awaited for two minutes and no longer, and a restart meanwhile does not wait for
// them.
TEST_F(Generations, imports_that_hang_delay_no_restart) {
  for (const ScaleUp scale_up : {ScaleUp::kSettle, ScaleUp::kNow}) {
    Start();
    sim::Behaviour hangs;
    hangs.never_warms_up = true;
    AddDaemons({"a", "b"});
    JobSpec spec = SpecOf("job", 2, 4, 9);
    spec.warm.emplace();
    spec.scale_up = scale_up;
    const JobId job = Running(spec);
    AddDaemons({"c"}, hangs);
    world().RunFor(70s);
    world().node("b").ExitRank(job, 0, 1);
    ASSERT_TRUE(ReachesGeneration(job, 3, 8s));
    EXPECT_THAT(Members(GenerationOf(job, 3)), ElementsAre("a", "b"));
    world().RunFor(200s);
    const JobView view = world().View(job);
    EXPECT_EQ(view.state, "running");
    EXPECT_THAT(Members(GenerationOf(job, view.generation.value())), ElementsAre("a", "b", "c"));
    world().node("b").ExitRank(job, 0, 1);
    ASSERT_TRUE(ReachesGeneration(job, view.generation.value() + 1, 8s));
  }
}

TEST_F(Generations, a_check_comes_after_the_imports_and_has_its_own_time) {
  Start();
  sim::Behaviour slow;
  slow.warm_up = 100s;
  slow.prepare = 50s;
  AddDaemons({"a", "b"}, slow);
  JobSpec spec = SpecOf("job", 2, 2, 9);
  spec.warm.emplace();
  spec.node_check = {"nvidia-smi", 60s};
  world().RunFor(1s);
  world().Submit(spec, "submit");
  ASSERT_TRUE(Reaches(JobId("job-1"), "running", 160s));
  EXPECT_EQ(world().View(JobId("job-1")).generation, Generation(1));
}

TEST_F(Generations, who_dies_while_it_imports_is_not_awaited) {
  Start();
  sim::Behaviour hangs;
  hangs.never_warms_up = true;
  AddDaemons({"a", "c"});
  AddDaemons({"b"}, hangs);
  JobSpec spec = SpecOf("job", 2, 2, 9);
  spec.warm.emplace();
  world().RunFor(1s);
  world().node("c").KillAgent();
  world().Submit(spec, "submit");
  const JobId job("job-1");
  world().RunFor(5s);
  EXPECT_NE(world().StateOf(job), "running");
  world().node("c").StartAgent();
  world().node("b").KillNode();
  ASSERT_TRUE(Reaches(job, "running", 10s));
}

// §2 Elective changes: `settle` doubles for newcomers that are lost, not for one that keeps
// refusing.
TEST_F(Generations, a_node_that_fails_its_check_delays_no_other) {
  Start();
  sim::Behaviour bad;
  bad.refuses = "its node check exited with 3";
  AddDaemons({"a", "b"});
  const JobId job = Running(SpecOf("job", 2, 4));
  world().Add("c");  // The first growth is at once.
  ASSERT_TRUE(world().RunUntil([&] { return world().View(job).nodes == 3; }));
  AddDaemons({"d"}, bad);
  world().RunFor(130min);
  const JobView view = world().View(job);
  EXPECT_EQ(view.nodes, 3);
  EXPECT_GE(view.generations.back().generation, Generation(120)) << "it was asked each minute";
  EXPECT_LE(view.generations.size(), 101u);
  EXPECT_EQ(GenerationOf(job, 1).state, GenerationView::State::kOver) << "what ran is kept";
  const auto refusals = std::count_if(
      view.events.begin(), view.events.end(),
      [](const JobEvent& event) { return std::holds_alternative<NodeLeft>(event.body); });
  EXPECT_LE(refusals, 8) << "told ever more rarely";
  world().Add("e");
  EXPECT_TRUE(world().RunUntil([&] { return world().View(job).nodes == 4; }, 5s));
}

// Nodes count for as long as the job holds them; what a failure made necessary is lost.
TEST_F(Generations, cost_of_nodes_while_they_are_held) {
  Start();
  sim::Behaviour speaks;
  speaks.speaks = true;
  AddDaemons({"a", "b"}, speaks);
  JobSpec spec = SpecOf("job", 2, 2, 3);
  spec.price_per_node_hour = 3600;  // 1 per second of a node.
  const JobId job = Running(spec);
  world().RunFor(100s);
  const CostView running = *world().View(job).cost;
  EXPECT_NEAR(running.total, 200, 1);
  EXPECT_EQ(running.lost, 0);
  EXPECT_NEAR(*running.per_million_tokens, 200, 2);  // 1,000 steps of 1,000 tokens.
  EXPECT_FALSE(running.per_million_samples);

  // The node that is left is held for a minute. Then the job queues, and holds none.
  world().node("b").KillNode();
  ASSERT_TRUE(Reaches(job, "queued", 120s));
  world().RunFor(1h);
  const JobView queued = world().View(job);
  EXPECT_NEAR(queued.cost->lost, 60, 1);
  EXPECT_NEAR(queued.cost->total, running.total + queued.cost->lost, 1);

  world().Add("c", {}, speaks);
  ASSERT_TRUE(Reaches(job, "running"));
  world().RunFor(10s);
  const JobView again = world().View(job);
  EXPECT_NEAR(again.cost->total, queued.cost->total + 20, 2);
  EXPECT_NEAR(again.cost->lost, 80, 2);  // These ten seconds repeat what had been done.

  // Time that ended a generation is not counted twice.
  const TimeAccount& time = again.time;
  EXPECT_NEAR(Seconds(time.productive), 100, 1);
  EXPECT_NEAR(Seconds(time.recompute), 10, 1);
  EXPECT_NEAR(Seconds(time.productive + time.checkpoint + time.detect + time.regroup +
                      time.restore + time.recompute + time.idle),
              Seconds(again.age), 0.001);
}

}  // namespace
}  // namespace regroup
