// What a failure costs, and what is left of it: verdicts, back-off, restart windows, retention, and
// groups that no job asks for any more. PROTOCOL §3, §5, §6.

#include <malloc.h>

#include <csignal>

#include "absl/strings/str_cat.h"
#include "tests/launcher/coordinator/core/told_core.h"
#include "tests/scenario/testing.h"

#ifdef __SANITIZE_ADDRESS__
// From sanitizer/allocator_interface.h, which not every compiler brings.
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" std::size_t __sanitizer_get_current_allocated_bytes();
#endif

namespace regroup {
namespace {

using coordinator::GenerationRow;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Verdicts : public Scenario {
 protected:
  GenerationRow RowOf(const JobId& job, std::uint64_t generation) {
    auto found = world().rows().find(coordinator::GenerationKey(job, Generation(generation)));
    return found == world().rows().end() ? GenerationRow{} : std::get<GenerationRow>(found->second);
  }
  bool IsKept(const std::string& job) {
    return world().rows().contains(coordinator::JobSpecKey(JobId(job)));
  }
  // The first generation, on `a` among others, is told to stop as the job grows.
  bool IsStoppedFor(const char* newcomer, const JobId& job) {
    AddDaemons({newcomer});
    return world().RunUntil([&] {
      const sim::Group* group = world().node("a").Find(job, Generation(1));
      return group != nullptr && group->stop_deadline.has_value();
    });
  }
  void FinishAll(const JobId& job) {
    for (auto& entry : world().nodes()) entry.second->ExitRank(job, 0, 0);
  }
  // Runs on whatever node is free, and is over at once.
  void RunOne(const std::string& name, const std::string& key) {
    const CallId call = world().Submit(SpecOf(name, 1, 1), key);
    ASSERT_TRUE(world().RunUntil([&] { return world().ReplyTo(call) != nullptr; }));
    const JobId job = std::get<coordinator::SubmitReply>(*world().ReplyTo(call)).job;
    ASSERT_TRUE(Reaches(job, "running"));
    FinishAll(job);
    ASSERT_TRUE(Reaches(job, "succeeded"));
  }
};

// A coordinator that dies in the middle of a stop has not recorded what it was for. Nobody's
// supervisor has died.
TEST_F(Verdicts, workers_that_were_stopped_by_a_coordinator_of_before_lost_no_supervisor) {
  Start();
  AddDaemons({"a", "b"});
  JobSpec spec = SpecOf("job", 1, 3);
  spec.scale_up = ScaleUp::kNow;
  const JobId job = Running(spec);
  ASSERT_TRUE(IsStoppedFor("c", job));
  world().CrashCoordinator();
  world().RunFor(1s);
  world().StartCoordinator();
  ASSERT_TRUE(ReachesGeneration(job, RowOf(job, 2).voided ? 3 : 2));
  const EndReason reason = *RowOf(job, 1).ended;
  ASSERT_TRUE(std::holds_alternative<SupervisorLost>(reason)) << reason.index();
  EXPECT_TRUE(std::get<SupervisorLost>(reason).stopped);
}

// Nor did they not start; and those that hang are not waited for.
TEST_F(Verdicts, workers_that_a_coordinator_of_before_stops_did_start) {
  sim::Behaviour slow, stuck;
  slow.ignores_term = true;
  stuck.unkillable = true;
  for (const sim::Behaviour& behaviour : {slow, stuck}) {
    Start();
    AddDaemons({"a", "b"}, behaviour);
    JobSpec spec = SpecOf("job", 1, 3);
    spec.scale_up = ScaleUp::kNow;
    spec.grace = spec.start_timeout + 10s;
    const JobId job = Running(spec);
    ASSERT_TRUE(IsStoppedFor("c", job));
    world().CrashCoordinator();
    world().node("c").KillNode();
    world().RunFor(1s);
    world().StartCoordinator();
    ASSERT_TRUE(world().RunUntil([&] { return RowOf(job, 1).ended.has_value(); }));
    const EndReason reason = *RowOf(job, 1).ended;
    ASSERT_TRUE(std::holds_alternative<SupervisorLost>(reason)) << reason.index();
    EXPECT_TRUE(std::get<SupervisorLost>(reason).stopped);
  }
}

// ---- back-off

// A worker fails, and its node is killed 2 s later: who is left is not to blame, and goes on.
TEST_F(Verdicts, a_worker_and_then_its_node_cost_no_wait) {
  Start();
  AddDaemons({"a", "b", "c"});
  const JobId job = Running(SpecOf("job", 2, 3, 3));
  world().node("c").ExitRank(job, 0, 1);
  ASSERT_TRUE(ReachesGeneration(job, 2));
  world().RunFor(2s);
  world().node("c").KillNode();
  ASSERT_TRUE(ReachesGeneration(job, 3, 100ms));
  EXPECT_TRUE(EndedBy<NodeLost>(GenerationOf(job, 2)));
}

// The same node twice waits; so does whoever comes third, be it another.
TEST_F(Verdicts, a_free_end_waits_for_the_same_node_or_the_third) {
  Start();
  AddDaemons({"a", "b", "c"});
  JobSpec spec = SpecOf("job", 3, 3);
  spec.scale_up = ScaleUp::kNow;
  const JobId job = Running(spec);
  world().node("a").LoseSupervisor(job);
  ASSERT_TRUE(ReachesGeneration(job, 2, 500ms));
  world().node("b").LoseSupervisor(job);
  ASSERT_TRUE(ReachesGeneration(job, 3, 500ms));
  world().node("b").LoseSupervisor(job);
  world().RunFor(700ms);
  EXPECT_EQ(world().StateOf(job), "regrouping");
  ASSERT_TRUE(ReachesGeneration(job, 4, 1s));
}

// ---- restart windows

// A coordinator that starts anew between failures forgets none of them.
TEST_F(Verdicts, a_restart_window_outlives_the_coordinator) {
  Start();
  AddDaemons({"a"});
  JobSpec spec = SpecOf("job", 1, 1, 1);
  spec.restart_window = 1000s;
  const JobId job = Running(spec);
  world().node("a").ExitRank(job, 0, 1);
  ASSERT_TRUE(ReachesGeneration(job, 2));
  world().RunFor(75s);
  for (int i = 0; i < 2; ++i) {
    world().CrashCoordinator();
    world().StartCoordinator();
    world().RunFor(10s);
  }
  world().node("a").ExitRank(job, 0, 1);
  ASSERT_TRUE(Reaches(job, "failed", 5s));
  EXPECT_TRUE(std::holds_alternative<BudgetSpent>(*world().View(job).failed));
}

// ---- preemptions

// One fewer than its limit changes nothing, and own faults do not count.
TEST_F(Verdicts, a_notice_too_many_fails_the_job) {
  Start();
  AddDaemons({"a", "b", "c", "d"});
  JobSpec spec = SpecOf("job", 1, 3, 3);
  spec.scale_up = ScaleUp::kNever;
  spec.max_preemptions = 1;
  const JobId job = Running(spec);
  const std::string first = Members(GenerationOf(job, 1)).front();
  world().node(first).Notice(20s);
  ASSERT_TRUE(ReachesGeneration(job, 2, 5s));
  EXPECT_EQ(world().View(job).preemptions, 1);
  const std::string second = Members(GenerationOf(job, 2)).front();
  world().node(second).ExitRank(job, 0, 1);
  ASSERT_TRUE(ReachesGeneration(job, 3, 5s));
  EXPECT_EQ(world().View(job).preemptions, 1);
  world().node(second).Notice(20s);
  ASSERT_TRUE(Reaches(job, "failed", 10s));
  const JobView view = world().View(job);
  EXPECT_EQ(view.exit_code, 143);
  EXPECT_EQ(std::get<PreemptionsSpent>(*view.failed).used, 1);
  EXPECT_EQ(std::get<PreemptionsSpent>(*view.failed).max, 1);
  EXPECT_EQ(view.preemptions, 2);
  EXPECT_EQ(view.generations.size(), 3u);
}

TEST_F(Verdicts, preemptions_outlive_the_coordinator) {
  Start();
  AddDaemons({"a", "b"});
  JobSpec spec = SpecOf("job", 1, 2, 0);
  spec.max_preemptions = 1;
  const JobId job = Running(spec);
  world().node("a").Notice(20s);
  ASSERT_TRUE(ReachesGeneration(job, 2, 5s));
  world().RunFor(2s);
  world().CrashCoordinator();
  world().StartCoordinator();
  world().RunFor(10s);
  EXPECT_EQ(world().View(job).preemptions, 1);
  world().node("b").Notice(20s);
  ASSERT_TRUE(Reaches(job, "failed", 10s));
  EXPECT_EQ(world().View(job).exit_code, 143);
}

// All nodes of a launched job leave at once: without a limit the job is kept, and can go on.
TEST_F(Verdicts, a_launched_job_fails_instead_of_being_preempted) {
  for (const bool limited : {false, true}) {
    Start();
    JobSpec spec = SpecOf("train", 2, 2);
    if (limited) spec.max_preemptions = 0;
    for (const char* node : {"a", "b"}) world().AddLauncher(node, spec);
    const JobId job("train-1");
    ASSERT_TRUE(Reaches(job, "running"));
    for (const char* node : {"a", "b"}) world().node(node).Signal(SIGTERM);
    ASSERT_TRUE(Reaches(job, limited ? "failed" : "preempted", 60s));
    EXPECT_EQ(world().View(job).exit_code, 143);
    EXPECT_EQ(std::holds_alternative<PreemptionsSpent>(*world().View(job).failed), limited);
  }
}

// ---- verdicts

// Nobody asks what else a silent member had to tell once the job is over: it is closed, and
// charged.
TEST_F(Verdicts, no_verdict_is_open_after_its_job) {
  Start();
  AddDaemons({"a", "b", "c"});
  JobSpec spec = SpecOf("job", 1, 2, 3);
  const JobId job = Running(spec);
  ASSERT_THAT(Members(GenerationOf(job, 1)), ElementsAre("a", "b"));
  world().node("b").CutPower();
  world().RunFor(40ms);
  world().node("a").ExitRank(job, 0, 1);
  ASSERT_TRUE(ReachesGeneration(job, 2, 4s));
  EXPECT_TRUE(RowOf(job, 1).verdict_open);
  FinishAll(job);
  ASSERT_TRUE(Reaches(job, "succeeded", 10s));
  EXPECT_FALSE(RowOf(job, 1).verdict_open);
}

// A crash while it is being cancelled: its groups are forgotten all the same.
TEST_F(Verdicts, a_crash_while_ending_leaves_no_groups) {
  Start();
  AddDaemons({"a", "b", "c"});
  JobSpec spec = SpecOf("job", 3, 3, 3);
  const JobId job = Running(spec);
  world().node("c").CutPower();
  world().RunFor(40ms);
  world().node("b").ExitRank(job, 0, 1);
  world().RunFor(500ms);
  world().Cancel(job.value());
  world().RunFor(2ms);
  world().CrashCoordinator();
  world().StartCoordinator();
  ASSERT_TRUE(Reaches(job, "cancelled", 120s));
  world().RunFor(10s);
  EXPECT_FALSE(RowOf(job, 1).verdict_open);
  for (const char* name : {"a", "b"})
    for (const auto& groups : world().node(name).groups())
      EXPECT_THAT(groups.second, IsEmpty()) << name;
}

// An attached agent whose shim neither ends a stop nor says why: the verdict is closed without it.
TEST_F(Verdicts, a_wedged_member_keeps_no_verdict_open) {
  Start();
  sim::Behaviour wedged;
  wedged.wedged = true;
  AddDaemons({"a"});
  AddDaemons({"b"}, wedged);
  const JobId job = Running(SpecOf("job", 1, 2, 0));
  world().node("a").ExitRank(job, 0, 3);
  world().RunFor(60s);
  ASSERT_TRUE(world().View(job).why.has_value());
  EXPECT_TRUE(std::holds_alternative<BudgetVerdictOpen>(*world().View(job).why));
  ASSERT_TRUE(Reaches(job, "failed", 10s));
  EXPECT_EQ(world().View(job).exit_code, 3);
}

// Nor one that tells of a notice: nothing is formed before it is known whether that was one too
// many.
TEST_F(Verdicts, an_open_verdict_of_a_notice_forms_nothing) {
  Start();
  sim::Behaviour wedged;
  wedged.wedged = true;
  AddDaemons({"a"});
  AddDaemons({"b"}, wedged);
  JobSpec spec = SpecOf("job", 1, 2, 3);
  spec.max_preemptions = 0;
  const JobId job = Running(spec);
  AddDaemons({"c"});  // Would be enough.
  world().node("a").Notice(20s);
  world().RunFor(60s);
  ASSERT_TRUE(world().View(job).why.has_value());
  EXPECT_TRUE(std::holds_alternative<BudgetVerdictOpen>(*world().View(job).why));
  ASSERT_TRUE(Reaches(job, "failed", 60s));
  EXPECT_EQ(world().View(job).exit_code, 143);
  EXPECT_EQ(world().View(job).generations.size(), 1u);
}

// Several of them count together with those that are closed.
TEST_F(Verdicts, open_verdicts_of_notices_add_up) {
  Start();
  sim::Behaviour wedged;
  wedged.wedged = true;
  AddDaemons({"a", "b"});
  AddDaemons({"c"}, wedged);
  JobSpec spec = SpecOf("job", 1, 3, 3);
  spec.scale_up = ScaleUp::kNever;
  spec.max_preemptions = 1;
  const JobId job = Running(spec);
  ASSERT_THAT(Members(GenerationOf(job, 1)), ElementsAre("a", "b", "c"));
  world().node("a").Notice(20s);
  ASSERT_TRUE(ReachesGeneration(job, 2, 60s));
  EXPECT_EQ(world().View(job).preemptions, 1);
  AddDaemons({"d"});  // Would be enough.
  world().node("b").Notice(20s);
  world().RunFor(30s);  // It has gone.
  ASSERT_TRUE(RowOf(job, 1).verdict_open);
  EXPECT_FALSE(RowOf(job, 2).verdict_open);
  EXPECT_EQ(world().View(job).preemptions, 2);
  EXPECT_TRUE(std::holds_alternative<BudgetVerdictOpen>(*world().View(job).why));
  ASSERT_TRUE(Reaches(job, "failed", 120s));
  EXPECT_EQ(world().View(job).exit_code, 143);
  EXPECT_EQ(world().View(job).preemptions, 2);
  EXPECT_EQ(world().View(job).generations.size(), 2u);
}

// Its nodes have all left; a job that may have failed by that is not kept as one that can go on.
TEST_F(Verdicts, an_open_verdict_of_a_notice_preempts_no_job) {
  Start();
  JobSpec spec = SpecOf("train", 2, 2);
  spec.max_preemptions = 0;
  for (const char* node : {"a", "b"}) world().AddLauncher(node, spec);
  world().node("b").behaviour().wedged = true;
  const JobId job("train-1");
  ASSERT_TRUE(Reaches(job, "running"));
  for (const char* node : {"a", "b"}) world().node(node).Signal(SIGTERM);
  ASSERT_TRUE(world().RunUntil([&] { return RowOf(job, 1).verdict_open; }, 60s));
  while (RowOf(job, 1).verdict_open) {
    ASSERT_NE(world().StateOf(job), "preempted");
    world().RunFor(100ms);
  }
  ASSERT_TRUE(Reaches(job, "failed", 10s));
}

// A cancel changes nothing about why the generation ended that was ending already.
TEST_F(Verdicts, a_cancel_leaves_the_cause) {
  Start();
  sim::Behaviour slow;
  slow.ignores_term = true;
  AddDaemons({"a", "b"}, slow);
  const JobId job = Running(SpecOf("job", 2, 2, 3));
  world().node("a").ExitRank(job, 0, 1);
  world().RunFor(500ms);
  world().Cancel(job.value());
  ASSERT_TRUE(Reaches(job, "cancelled"));
  EXPECT_TRUE(EndedBy<WorkerFailed>(GenerationOf(job, 1)));
  EXPECT_TRUE(GenerationOf(job, 1).charged);
}

// ---- retention

// Ages are looked at though no job ends, and go on while no coordinator runs.
TEST_F(Verdicts, old_jobs_are_purged_by_age) {
  coordinator::Config config;
  config.retention.ended_jobs = 100s;
  config.retention.sweep = 5s;
  Start(config);
  AddDaemons({"a"});
  world().RunFor(1s);
  RunOne("one", "k1");
  RunOne("two", "k2");
  world().RunFor(60s);
  world().CrashCoordinator();
  world().RunFor(20s);
  world().StartCoordinator();
  world().RunFor(10s);
  EXPECT_TRUE(IsKept("one-1"));
  world().RunFor(20s);
  EXPECT_FALSE(IsKept("one-1"));
  EXPECT_TRUE(IsKept("two-2"));  // The newest: its number is not given again.
}

// What is in memory of a job that has ended does not grow with what happened to it, before a
// restart as after; who asks is shown all of it.
TEST_F(Verdicts, most_of_an_ended_jobs_history_is_in_the_journal_alone) {
  Start();
  AddDaemons({"a"});
  const JobId job = Running(SpecOf("job", 1, 1, 20));
  for (std::uint64_t failure = 0; failure < 12; ++failure) {
    world().RunFor(61s);
    world().node("a").ExitRank(job, 0, 1);
    ASSERT_TRUE(ReachesGeneration(job, 2 + failure));
  }
  FinishAll(job);
  ASSERT_TRUE(Reaches(job, "succeeded"));
  for (const bool again : {false, true}) {
    if (again) {
      world().CrashCoordinator();
      world().StartCoordinator();
    }
    coordinator::ReadFilter filter;
    filter.job = job.value();
    filter.detail = true;
    const auto read = world().core().Read(filter, Instant(), WallTime());
    ASSERT_TRUE(read.ok());
    EXPECT_TRUE(read->jobs[0].history_away);
    EXPECT_EQ(read->jobs[0].generations.size(), coordinator::kGenerationsKept);
    EXPECT_EQ(read->jobs[0].generations.back().generation, Generation(13));
    EXPECT_TRUE(read->jobs[0].events.empty());
    filter.detail = false;
    EXPECT_FALSE(world().core().Read(filter, Instant(), WallTime())->jobs[0].history_away);
    const JobView whole = world().View(job);
    EXPECT_EQ(whole.generations.size(), 13u);
    EXPECT_EQ(whole.events.front().number, 1u);
    EXPECT_TRUE(std::holds_alternative<JobEnded>(whole.events.back().body));
    EXPECT_EQ(whole.restarts_charged, 12);
  }
}

// A preempted job whose verdict is open is not purged: rows of it are still written.
TEST_F(Verdicts, an_open_verdict_keeps_its_job) {
  coordinator::Config config;
  config.limits.ended_jobs = 1;
  Start(config);
  sim::NodeOptions options;
  options.launched = true;
  sim::Behaviour wedged;
  wedged.wedged = true;
  const JobSpec spec = SpecOf("train", 1, 2, 3);
  world().AddLauncher("node1", spec);
  options.launch = sim::LaunchOf("key-node2", spec);
  world().Add("node2", options, wedged);
  const JobId job("train-1");
  ASSERT_TRUE(Reaches(job, "running"));
  world().node("node1").ExitRank(job, 0, 1);
  for (const char* name : {"node1", "node2"}) world().node(name).Signal(SIGTERM);
  ASSERT_TRUE(Reaches(job, "preempted"));
  AddDaemons({"a"});
  for (int i = 0; i < 3; ++i) RunOne("other", absl::StrCat("k", i));
  world().RunFor(5s);
  EXPECT_TRUE(IsKept("train-1"));
}

// ---- groups without a job

// A node that was silent is forgotten, its job is over and purged: what still runs there when it
// comes back is stopped, and its slot is free again.
TEST_F(Verdicts, a_group_of_a_purged_job_is_stopped) {
  coordinator::Config config;
  config.limits.ended_jobs = 1;
  Start(config);
  AddDaemons({"a"});
  const JobId job = Running(SpecOf("job", 1, 1));
  AddDaemons({"b"});
  world().RunFor(1s);
  world().node("a").SetSilent(true);
  world().RunFor(10s);
  world().Cancel(job.value(), true);
  ASSERT_TRUE(Reaches(job, "cancelled"));
  world().Forget("a");
  for (int i = 0; i < 3; ++i) RunOne("other", absl::StrCat("k", i));
  world().RunFor(1s);
  ASSERT_FALSE(IsKept(job.value()));
  ASSERT_EQ(world().node("a").LiveRanks(), 1);
  world().node("a").SetSilent(false);
  world().RunFor(10s);
  EXPECT_EQ(world().node("a").LiveRanks(), 0);
  for (const auto& groups : world().node("a").groups()) EXPECT_THAT(groups.second, IsEmpty());
  world().node("b").KillNode();
  world().RunFor(10s);
  RunOne("again", "again");  // On the slot of a.
}

// ---- memory

std::size_t HeapBytes() {
#ifdef __SANITIZE_ADDRESS__
  return __sanitizer_get_current_allocated_bytes();
#else
  return mallinfo2().uordblks;
#endif
}

// One node that runs and forgets one job after the other.
class OneNode : ToldCore {
 public:
  OneNode() : ToldCore(ConfigOf()) {
    Step(coordinator::Tick{});
    Open(1);
    Pass(2s);
  }
  void RunJobs(int jobs) {
    for (int i = 0; i < jobs; ++i) {
      Submit(SpecOf("job", 1, 1));
      Step(coordinator::HeartbeatReceived{SessionId(1), OrderNo()});
    }
  }

 private:
  static coordinator::Config ConfigOf() {
    coordinator::Config config;
    config.limits.ended_jobs = 4;
    return config;
  }
  void Take(const coordinator::Action& action) override {
    if (const auto* send = std::get_if<coordinator::SendOrder>(&action)) Obey(*send);
  }
};

// Nothing is kept of a job that is purged, not even on the node that ran it.
TEST(Memory, does_not_grow_with_jobs) {
  OneNode node;
  node.RunJobs(500);
  const std::size_t before = HeapBytes();
  node.RunJobs(2'000);
  EXPECT_LT(HeapBytes(), before + 2'000 * 16);
}

}  // namespace
}  // namespace regroup
