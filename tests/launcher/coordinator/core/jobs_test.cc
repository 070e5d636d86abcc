// The core and its jobs: queue, failures, budget, growth, commits, reads, bounds. PROTOCOL §1, §2,
// §3, §6.

#include <cerrno>
#include <csignal>

#include "absl/strings/str_cat.h"
#include "common/base/user_error.h"
#include "tests/scenario/testing.h"

namespace regroup {
namespace {

using coordinator::CancelReply;
using coordinator::ReadReply;
using coordinator::Reply;
using coordinator::SubmitReply;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Jobs : public Scenario {
 protected:
  absl::Status ErrorOf(CallId call) {
    const Reply* reply = world().ReplyTo(call);
    const absl::Status* status = reply ? std::get_if<absl::Status>(reply) : nullptr;
    return status ? *status : absl::OkStatus();
  }
  void FinishAll(const JobId& job, int code = 0) {
    for (auto& entry : world().nodes()) entry.second->ExitRank(job, 0, code);
  }
  std::optional<WaitReason> WhyOf(const std::string& job) { return world().View(JobId(job)).why; }
};

// ---- queue

// A strict gang queue: the head waits for enough nodes, the others wait behind it.
TEST_F(Jobs, queue_is_first_in_first_out) {
  Start();
  AddDaemons({"a", "b"});
  const JobId first = Running(SpecOf("one", 2, 2));
  world().Submit(SpecOf("two", 2, 2), "k2");
  world().Submit(SpecOf("three", 1, 1), "k3");
  world().RunFor(1s);
  const std::optional<WaitReason> head = WhyOf("two-2"), behind = WhyOf("three-3");
  ASSERT_TRUE(head && std::holds_alternative<BelowMinimum>(*head));
  EXPECT_EQ(std::get<BelowMinimum>(*head).have, 0);
  EXPECT_EQ(std::get<BelowMinimum>(*head).need, 2);
  ASSERT_TRUE(behind && std::holds_alternative<BehindJob>(*behind));
  EXPECT_EQ(std::get<BehindJob>(*behind).job, JobId("two-2"));
  FinishAll(first);
  ASSERT_TRUE(Reaches(JobId("two-2"), "running", 5s));
  EXPECT_EQ(world().StateOf(JobId("three-3")), "queued");
  FinishAll(JobId("two-2"));
  ASSERT_TRUE(Reaches(JobId("three-3"), "running", 5s));
}

// Slots: two jobs share a node as long as both fit.
TEST_F(Jobs, slots_are_shared_and_bounded) {
  Start();
  sim::NodeOptions two;
  two.slots = 2;
  world().Add("a", two);
  JobSpec wide = SpecOf("wide", 1, 1);
  wide.workers_per_node = 2;
  const JobId first = Running(SpecOf("one", 1, 1));
  world().Submit(wide, "wide");
  world().RunFor(1s);
  EXPECT_EQ(world().StateOf(JobId("wide-2")), "queued");
  FinishAll(first);
  ASSERT_TRUE(Reaches(JobId("wide-2"), "running", 5s));
  EXPECT_EQ(world().LiveRanks(JobId("wide-2")), 2);
}

// §2: below its minimum a submitted job holds its nodes for `hold`, then queues in its old place.
TEST_F(Jobs, holds_its_nodes_then_queues_again) {
  Start();
  AddDaemons({"a", "b"});
  const JobId first = Running(SpecOf("one", 2, 2));
  world().Submit(SpecOf("two", 1, 1), "two");
  world().node("b").CutPower();
  world().RunFor(30s);
  EXPECT_EQ(world().StateOf(first), "regrouping");
  EXPECT_EQ(world().StateOf(JobId("two-2")), "queued");
  world().RunFor(45s);
  EXPECT_EQ(world().StateOf(first), "queued");
  EXPECT_EQ(world().StateOf(JobId("two-2")), "running");  // One node can not run the first.
  world().node("b").Reboot();
  world().RunFor(1s);
  world().Submit(SpecOf("three", 1, 1), "three");
  world().RunFor(1s);
  const std::optional<WaitReason> behind = WhyOf("three-3");  // It is before the others, as ever.
  ASSERT_TRUE(behind && std::holds_alternative<BehindJob>(*behind));
  EXPECT_EQ(std::get<BehindJob>(*behind).job, first);
  FinishAll(JobId("two-2"));
  ASSERT_TRUE(Reaches(first, "running", 10s));
  EXPECT_EQ(world().View(first).generation, Generation(2));
}

// The head that is cancelled before it ran lets the next one start; everybody behind names the
// head.
TEST_F(Jobs, a_cancelled_head_lets_the_next_one_start) {
  Start();
  AddDaemons({"a", "b"});
  Running(SpecOf("held", 1, 1));
  world().Submit(SpecOf("wide", 2, 2), "k1");
  world().Submit(SpecOf("two", 1, 1), "k2");
  world().Submit(SpecOf("three", 1, 1), "k3");
  world().RunFor(1s);
  EXPECT_EQ(std::get<BehindJob>(*WhyOf("three-4")).job, JobId("wide-2"));
  world().Cancel("wide-2");
  ASSERT_TRUE(Reaches(JobId("two-3"), "running", 1s));
  world().Submit(SpecOf("four", 1, 1), "k4");
  FinishAll(JobId("two-3"));
  ASSERT_TRUE(Reaches(JobId("three-4"), "running", 1s));
  world().Submit(SpecOf("five", 1, 1), "k5");
  EXPECT_EQ(std::get<BehindJob>(*WhyOf("five-6")).job, JobId("four-5"));
}

// ---- failures

// §3: the first restart is immediate, later ones without progress wait; the budget, then the exit
// code.
TEST_F(Jobs, restarts_back_off_until_the_budget_is_spent) {
  Start();
  AddDaemons({"a"});
  const JobId job = Running(SpecOf("job", 1, 1, 2));
  world().node("a").ExitRank(job, 0, 7);
  ASSERT_TRUE(ReachesGeneration(job, 2, 500ms));
  world().node("a").ExitRank(job, 0, 8);
  world().RunFor(700ms);
  ASSERT_TRUE(WhyOf("job-1").has_value());
  EXPECT_TRUE(std::holds_alternative<BackingOff>(*WhyOf("job-1")));
  ASSERT_TRUE(ReachesGeneration(job, 3, 1s));
  world().node("a").ExitRank(job, 0, 9);
  ASSERT_TRUE(Reaches(job, "failed", 1s));
  const JobView view = world().View(job);
  EXPECT_EQ(view.exit_code, 9);
  EXPECT_EQ(view.restarts_charged, 2);
  EXPECT_EQ(std::get<BudgetSpent>(*view.failed).used, 2);
}

// §3: an exit is told before its words are, and only they say whose failure was the others'.
TEST_F(Jobs, words_told_later_choose_the_root_cause) {
  Start();
  sim::NodeOptions two;
  two.slots = 2;
  sim::Behaviour slow;
  slow.die = 300ms;
  for (const char* name : {"a", "b"}) world().Add(name, two, slow);
  JobSpec spec = SpecOf("job", 2, 2);
  spec.workers_per_node = 2;
  const JobId job = Running(spec);
  world().node("a").ExitRank(job, 1, 1);  // Of two at the same time the lower rank counts.
  world().node("b").ExitRank(job, 0, 3);
  world().RunFor(20ms);
  const auto cause = [&] {
    return std::get<WorkerFailed>(*world().View(job).generations.at(0).ended).cause;
  };
  world().node("a").TellWords(job, Generation(1), 1, "Connection closed by peer",
                              ErrorEvidence::kCommunicator);
  world().node("b").TellWords(job, Generation(1), 0, "no such layer", ErrorEvidence::kErrorFile);
  ASSERT_TRUE(Reaches(job, "failed", 2s));
  EXPECT_EQ(cause().node, "b");
  EXPECT_EQ(cause().rank, 2);
  EXPECT_EQ(cause().exit.error, "no such layer");
  EXPECT_EQ(world().View(job).exit_code, 3);
  const std::vector<RankCause> others = world().View(job).generations.at(0).consequences;
  ASSERT_EQ(others.size(), 1u);
  EXPECT_EQ(others[0].exit.error, "Connection closed by peer");
}

// §2: what a change writes about generations, commit by commit.
TEST_F(Jobs, a_restart_is_two_commits_and_an_elective_change_three) {
  Start();
  AddDaemons({"a", "b"});
  const JobId job = Running(SpecOf("job", 1, 3, 1));
  std::map<Generation, coordinator::GenerationPhase> known = {
      {Generation(1), coordinator::GenerationPhase::kFormed}};
  std::vector<std::string> commits;
  world().tamper = [&](coordinator::Effects& effects) {
    constexpr const char* kPhases[] = {"proposed", "formed", "over"};
    std::string commit;
    for (const coordinator::Row& row : effects.rows) {
      const auto* value =
          row.value ? std::get_if<coordinator::GenerationRow>(&*row.value) : nullptr;
      if (value == nullptr) continue;
      const auto [at, is_new] = known.emplace(value->generation, value->phase);
      if (!is_new && std::exchange(at->second, value->phase) == value->phase) continue;
      commit += absl::StrCat(commit.empty() ? "" : ", ", value->generation.value(), " ",
                             kPhases[static_cast<int>(value->phase)]);
    }
    if (!commit.empty()) commits.push_back(commit);
  };
  world().node("b").ExitRank(job, 0, 1);
  EXPECT_TRUE(ReachesGeneration(job, 2));
  EXPECT_THAT(commits, ElementsAre("1 over, 2 proposed", "2 formed"));
  commits.clear();
  AddDaemons({"c"});
  EXPECT_TRUE(ReachesGeneration(job, 3));
  EXPECT_THAT(commits, ElementsAre("3 proposed", "2 over", "3 formed"));
  world().tamper = nullptr;
}

// §3: an exit that is told late happened its age before it was told, and is the first one here.
TEST_F(Jobs, the_time_of_an_exit_is_its_age_before_it_was_told) {
  Start();
  AddDaemons({"a", "b"});
  const JobId job = Running(SpecOf("job", 2, 2, 1));
  world().node("a").SetSilent(true);
  world().node("a").ExitRank(job, 0, 3);
  world().RunFor(100ms);
  world().node("b").ExitRank(job, 0, 1);
  world().RunFor(100ms);
  EXPECT_EQ(world().StateOf(job), "regrouping");  // As far as is known, because of b.
  world().node("a").ResetSession();
  world().node("a").SetSilent(false);
  ASSERT_TRUE(ReachesGeneration(job, 2));
  const GenerationView ended = GenerationOf(job, 1);
  EXPECT_EQ(std::get<WorkerFailed>(*ended.ended).cause.node, "a");
  ASSERT_EQ(ended.consequences.size(), 1u);
  EXPECT_EQ(ended.consequences[0].node, "b");
}

// A notice reaches a rank that does not speak yet as SIGTERM, and then its peers lose it.
TEST_F(Jobs, who_loses_a_peer_to_a_notice_has_not_failed) {
  Start();
  sim::NodeOptions three;  // The third rank keeps the verdict open until the words are read.
  three.slots = 3;
  sim::Behaviour saves;
  saves.speaks = true;
  saves.save = 10s;
  saves.die = 300ms;
  world().Add("a", three, saves);
  JobSpec spec = SpecOf("job", 1, 1);
  spec.workers_per_node = 3;
  spec.max_restarts = 0;
  const JobId job = Running(spec);
  world().node("a").Notice(30s);
  world().RunFor(20ms);
  world().node("a").EndRankByNotice(job, 0);
  world().node("a").ExitRank(job, 1, 1);
  world().RunFor(20ms);
  world().node("a").TellWords(job, Generation(1), 1, "Connection closed by peer",
                              ErrorEvidence::kCommunicator);
  world().RunFor(1s);
  EXPECT_TRUE(EndedBy<Preempted>(GenerationOf(job, 1)));
  EXPECT_NE(world().StateOf(job), "failed");
  EXPECT_EQ(world().View(job).restarts_charged, 0);
}

// The root cause where so many ranks failed because of it that it was not even remembered.
TEST_F(Jobs, the_root_cause_is_found_among_many_failures) {
  Start();
  constexpr int kWorkers = 24;
  sim::NodeOptions wide;
  wide.slots = kWorkers;
  sim::Behaviour slow;
  slow.die = 300ms;
  world().Add("a", wide, slow);
  JobSpec spec = SpecOf("job", 1, 1);
  spec.workers_per_node = kWorkers;
  const JobId job = Running(spec);
  for (int i = 0; i + 1 < kWorkers; ++i) world().node("a").ExitRank(job, i, 1);
  world().RunFor(20ms);
  for (int i = 0; i + 2 < kWorkers; ++i)
    world().node("a").TellWords(job, Generation(1), i, "reset", ErrorEvidence::kCommunicator);
  world().node("a").TellWords(job, Generation(1), kWorkers - 2, "why", ErrorEvidence::kErrorFile);
  ASSERT_TRUE(Reaches(job, "failed", 2s));
  const RankCause cause = std::get<WorkerFailed>(*world().View(job).generations.at(0).ended).cause;
  EXPECT_EQ(cause.rank, kWorkers - 2);
  EXPECT_EQ(cause.exit.error, "why");
}

TEST_F(Jobs, crash_loop_fails_with_an_explanation) {
  Start();
  AddDaemons({"a"});
  const JobId job = Running(SpecOf("job", 1, 1, 100));
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(Reaches(job, "running", 60s));
    world().node("a").SignalRank(job, 0, SIGSEGV);
    world().RunFor(100ms);
  }
  ASSERT_TRUE(Reaches(job, "failed", 60s));
  EXPECT_EQ(std::get<CrashLoop>(*world().View(job).failed).failures, 5);
  EXPECT_EQ(world().View(job).exit_code, 139);
}

// §3 Progress: a higher step, or 60 s alive for a worker that does not speak, begins the counting
// anew. One that speaks and has told of no step yet only wants to hear of notices.
class SilentJobs : public Jobs, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Speaks, SilentJobs, ::testing::Bool());
TEST_P(SilentJobs, progress_makes_the_next_restart_immediate) {
  Start();
  sim::Behaviour behaviour;
  behaviour.speaks = GetParam();
  behaviour.step = 10min;
  AddDaemons({"a"}, behaviour);
  const JobId job = Running(SpecOf("job", 1, 1, 100));
  for (std::uint64_t i = 0; i < 8; ++i) {
    world().RunFor(61s);
    world().node("a").ExitRank(job, 0, 1);
    ASSERT_TRUE(ReachesGeneration(job, 2 + i, 500ms));
  }
}

// An ended job shows how far it came, not how far the generation before the last did.
TEST_F(Jobs, the_last_step_outlives_the_job) {
  Start();
  sim::Behaviour speaks;
  speaks.speaks = true;
  AddDaemons({"a"}, speaks);
  const JobId job = Running(SpecOf("job", 1, 1));
  world().RunFor(10s);
  const std::optional<std::int64_t> reached = world().View(job).step;
  ASSERT_GE(reached.value_or(0), 1);
  world().node("a").ExitRank(job, 0, 0);
  ASSERT_TRUE(Reaches(job, "succeeded", 5s));
  EXPECT_GE(world().View(job).step.value_or(0), *reached);
}

// Nor how far one came that began anew and failed before it was as far.
TEST_F(Jobs, how_far_a_job_came_never_falls) {
  Start();
  sim::Behaviour speaks;
  speaks.speaks = true;
  AddDaemons({"a"}, speaks);
  const JobId job = Running(SpecOf("job", 1, 1, 1));
  world().RunFor(10s);
  const std::optional<std::int64_t> reached = world().View(job).step;
  ASSERT_GE(reached.value_or(0), 50);
  world().node("a").ExitRank(job, 0, 1);
  ASSERT_TRUE(ReachesGeneration(job, 2));
  world().RunFor(1s);
  ASSERT_LT(world().View(job).step.value_or(*reached), *reached);
  world().node("a").ExitRank(job, 0, 1);
  ASSERT_TRUE(Reaches(job, "failed"));
  EXPECT_GE(world().View(job).step.value_or(0), *reached);
}

TEST_F(Jobs, exit_codes_map_to_actions) {
  Start();
  AddDaemons({"a"});
  JobSpec spec = SpecOf("job", 1, 1, 10);
  spec.exit_codes = {{77, ExitAction::kFail}};
  const JobId job = Running(spec);
  world().node("a").ExitRank(job, 0, 77);
  ASSERT_TRUE(Reaches(job, "failed", 1s));
  EXPECT_EQ(world().View(job).exit_code, 77);
  EXPECT_TRUE(std::holds_alternative<ExitCodeSaysFail>(*world().View(job).failed));
}

// §3: a restart window forgets old charges.
TEST_F(Jobs, budget_counts_within_its_window) {
  Start();
  AddDaemons({"a"});
  JobSpec spec = SpecOf("job", 1, 1, 1);
  spec.restart_window = 100s;
  const JobId job = Running(spec);
  for (std::uint64_t i = 0; i < 4; ++i) {
    world().node("a").ExitRank(job, 0, 1);
    ASSERT_TRUE(ReachesGeneration(job, 2 + i, 5s));
    world().RunFor(110s);
    if (i == 1) {  // Durable, too.
      world().CrashCoordinator();
      world().StartCoordinator();
      world().RunFor(5s);
    }
  }
  world().node("a").ExitRank(job, 0, 1);
  ASSERT_TRUE(ReachesGeneration(job, 6, 5s));
  world().node("a").ExitRank(job, 0, 1);
  ASSERT_TRUE(Reaches(job, "failed", 5s));
}

// §2 Run: a member that has not started all ranks within start_timeout ends the generation, at its
// own charge.
TEST_F(Jobs, late_start_is_charged) {
  Start();
  sim::Behaviour stuck;
  stuck.never_starts = true;
  AddDaemons({"a"}, stuck);
  world().RunFor(1s);
  world().Submit(SpecOf("job", 1, 1, 0), "k");
  const JobId job("job-1");
  ASSERT_TRUE(Reaches(job, "failed", 20s));
  EXPECT_GT(world().SinceStart(), 11s);
  EXPECT_TRUE(EndedBy<StartTimedOut>(GenerationOf(job, 1)));
  EXPECT_EQ(world().View(job).exit_code, 125);
}

// §3: exec failure is free and excludes the node; the same errno on two nodes fails the job.
TEST_F(Jobs, exec_failure_excludes_the_node) {
  Start();
  sim::Behaviour broken;
  broken.exec_error = ENOENT;
  world().Add("a", {}, broken);
  AddDaemons({"b"});
  world().RunFor(1s);
  world().Submit(SpecOf("job", 1, 1, 0), "k");
  ASSERT_TRUE(Reaches(JobId("job-1"), "running", 5s));
  EXPECT_THAT(Members(GenerationOf(JobId("job-1"), 2)), ElementsAre("b"));
  EXPECT_TRUE(EndedBy<ExecFailed>(GenerationOf(JobId("job-1"), 1)));
  FinishAll(JobId("job-1"));
  world().RunFor(1s);
  world().node("b").behaviour().exec_error = ENOENT;
  world().Submit(SpecOf("next", 1, 1, 0), "n");
  ASSERT_TRUE(Reaches(JobId("next-2"), "failed", 5s));
  EXPECT_EQ(world().View(JobId("next-2")).exit_code, 127);
}

// §4: the store's death ends the generation, free; so does a supervisor's.
TEST_F(Jobs, store_and_supervisor_losses_are_free) {
  Start();
  AddDaemons({"a", "b"});
  const JobId job = Running(SpecOf("job", 2, 2, 0));
  world().node("a").LoseStore(job);
  ASSERT_TRUE(ReachesGeneration(job, 2, 5s));
  EXPECT_TRUE(EndedBy<StoreLost>(GenerationOf(job, 1)));
  world().node("b").LoseSupervisor(job);
  ASSERT_TRUE(ReachesGeneration(job, 3, 10s));
  EXPECT_TRUE(EndedBy<SupervisorLost>(GenerationOf(job, 2)));
  EXPECT_EQ(world().View(job).restarts_charged, 0);
}

// CLI.md: the phases of a restart sum to the outage.
TEST_F(Jobs, phases_sum_to_the_outage) {
  Start();
  AddDaemons({"a", "b"});
  world().commit_delay = 2ms;
  const JobId job = Running(SpecOf("job", 2, 2, 3));
  world().node("b").SignalRank(job, 0, SIGKILL);
  ASSERT_TRUE(ReachesGeneration(job, 2, 5s));
  const RestartPhases phases = GenerationOf(job, 2).phases;
  ASSERT_TRUE(phases.detect && phases.stop && phases.decide && phases.form && phases.spawn);
  EXPECT_EQ(*phases.detect + *phases.stop + *phases.decide + *phases.form + *phases.spawn,
            phases.down);
  EXPECT_GT(phases.down, 10ms);
  EXPECT_LT(phases.down, 100ms);
}

// ---- growth

// §2: the first growth at once, the next ones at most once per 30 s, joins close together as one.
TEST_F(Jobs, growth_settles) {
  Start();
  AddDaemons({"a"});
  const JobId job = Running(SpecOf("job", 1, 5));
  world().Add("b");
  world().RunFor(100ms);
  world().Add("c");
  ASSERT_TRUE(ReachesGeneration(job, 2, 2s));
  EXPECT_THAT(Members(GenerationOf(job, 2)), ElementsAre("a", "b", "c"));
  EXPECT_TRUE(EndedBy<Resized>(GenerationOf(job, 1)));
  world().Add("d");
  world().RunFor(25s);
  EXPECT_EQ(world().View(job).generation, Generation(2));
  ASSERT_TRUE(ReachesGeneration(job, 3, 10s));
  EXPECT_EQ(world().View(job).restarts_charged, 0);
}

// §2: each newcomer that is soon lost doubles the time to the next growth.
TEST_F(Jobs, a_lost_newcomer_doubles_the_settling) {
  Start();
  AddDaemons({"a"});
  const JobId job = Running(SpecOf("job", 1, 5));
  world().Add("b");
  ASSERT_TRUE(ReachesGeneration(job, 2, 2s));
  world().node("b").KillNode();
  ASSERT_TRUE(ReachesGeneration(job, 3, 2s));
  world().Add("c");
  world().RunFor(55s);
  EXPECT_EQ(world().View(job).generation, Generation(3));
  ASSERT_TRUE(ReachesGeneration(job, 4, 10s));
  EXPECT_THAT(Members(GenerationOf(job, 4)), ElementsAre("a", "c"));
}

TEST_F(Jobs, growth_never_and_next) {
  Start();
  AddDaemons({"a", "b"});
  JobSpec never = SpecOf("never", 1, 3, 3);
  never.scale_up = ScaleUp::kNever;
  const JobId job = Running(never);
  world().Add("c");
  world().RunFor(60s);
  EXPECT_EQ(world().View(job).generation, Generation(1));
  world().node("a").ExitRank(job, 0, 1);
  ASSERT_TRUE(ReachesGeneration(job, 2, 5s));
  EXPECT_EQ(world().View(job).nodes, 2);
  world().Cancel(job.value());
  world().RunFor(5s);
  world().node("c").KillNode();
  world().RunFor(10s);
  JobSpec next = SpecOf("next", 1, 3, 3);
  next.scale_up = ScaleUp::kNext;
  world().Submit(next, "next");
  ASSERT_TRUE(Reaches(JobId("next-2"), "running"));
  world().node("c").StartAgent();
  world().RunFor(60s);
  EXPECT_EQ(world().View(JobId("next-2")).nodes, 2);
  world().node("a").ExitRank(JobId("next-2"), 0, 1);
  ASSERT_TRUE(ReachesGeneration(JobId("next-2"), 2, 5s));
  EXPECT_EQ(world().View(JobId("next-2")).nodes, 3);
}

// §2: workers that speak save before a growth stops them.
TEST_F(Jobs, growth_saves_first) {
  Start();
  sim::Behaviour speaks;
  speaks.speaks = true;
  AddDaemons({"a"}, speaks);
  const JobId job = Running(SpecOf("job", 1, 2));
  world().RunFor(2s);
  world().Add("b", {}, speaks);
  ASSERT_TRUE(ReachesGeneration(job, 2, 5s));
  ASSERT_TRUE(world().View(job).committed_step.has_value());
  EXPECT_EQ(world().node("a").Live(job)->run->resume_step, *world().View(job).committed_step);
}

// §2: workers that speak and take no notice are told by SIGTERM, which ends them: still a growth.
TEST_F(Jobs, growth_of_workers_that_a_notice_ends) {
  Start();
  sim::Behaviour ends;
  ends.speaks = ends.ends_on_notice = true;
  AddDaemons({"a", "b"}, ends);
  const JobId job = Running(SpecOf("job", 2, 3));
  world().RunFor(2s);
  world().Add("c", {}, ends);
  ASSERT_TRUE(ReachesGeneration(job, 2, 2s));
  EXPECT_TRUE(EndedBy<Resized>(GenerationOf(job, 1)));
  EXPECT_THAT(Members(GenerationOf(job, 2)), ElementsAre("a", "b", "c"));
}

// Kills "c" every 5 s; it is back before it was missed, or a moment later. How often the job formed
// anew.
int FormedWhileFlapping(sim::World& world, const JobId& job, int flaps) {
  const Generation first = world.View(job).generation;
  for (int flap = 0; flap < flaps; ++flap) {
    world.node("c").KillNode();
    world.RunFor(flap % 3 * 20ms);
    world.node("c").StartAgent();
    world.RunFor(5s);
  }
  int formed = 0;
  for (const GenerationView& view : world.View(job).generations)
    formed += view.generation > first && view.state != GenerationView::State::kVoided;
  return formed;
}

// §2: a node that comes and goes disturbs the others ever more seldom.
TEST_F(Jobs, a_flapping_node_settles) {
  Start();
  AddDaemons({"a", "b", "c"});
  const JobId job = Running(SpecOf("job", 2, 3));
  EXPECT_LE(FormedWhileFlapping(world(), job, 24), 5);
  EXPECT_EQ(world().StateOf(job), "running");
}

// Where the job can't run without it, it is taken as soon as restarts allow.
TEST_F(Jobs, a_flapping_node_that_is_needed_is_taken) {
  Start();
  AddDaemons({"a", "b", "c"});
  const JobId job = Running(SpecOf("job", 3, 3));
  EXPECT_GE(FormedWhileFlapping(world(), job, 24), 6);
}

// A crash while members that have saved wait to be stopped: the next coordinator stops them.
TEST_F(Jobs, a_save_is_followed_by_a_stop_across_a_crash) {
  Start();
  sim::Behaviour speaks;
  speaks.speaks = true;
  AddDaemons({"a", "b"}, speaks);
  const JobId job = Running(SpecOf("job", 1, 2));
  world().RunFor(2s);
  world().commit_delay = 1ms;
  world().node("b").Notice(30s);
  ASSERT_TRUE(
      world().RunUntil([&] { return world().rows().contains(coordinator::CommitKey(job)); }));
  world().CrashCoordinator();
  world().RunFor(1s);
  world().StartCoordinator();
  ASSERT_TRUE(world().RunUntil(
      [&] {
        return world().StateOf(job) == "running" && world().View(job).generation > Generation(1);
      },
      30s));
  EXPECT_THAT(Members(GenerationOf(job, world().View(job).generation.value())), ElementsAre("a"));
}

// ---- commits

// DESIGN §8: only for the current generation, and a step above the one it resumed from or last
// committed.
TEST_F(Jobs, commits_are_fenced) {
  Start();
  AddDaemons({"a"});
  const JobId job = Running(SpecOf("job", 1, 1, 5));
  sim::Node& node = world().node("a");
  auto ask = [&](std::uint64_t generation, std::int64_t step) {
    node.AskCommit(job, Generation(generation), step);
    world().RunFor(10ms);
    return node.commit_answers.back();
  };
  EXPECT_FALSE(ask(1, 0).accepted);
  EXPECT_TRUE(ask(1, 10).accepted);
  EXPECT_TRUE(ask(1, 10).accepted);  // The same one again.
  EXPECT_FALSE(ask(1, 9).accepted);
  EXPECT_FALSE(ask(2, 20).accepted);
  node.ExitRank(job, 0, 1);
  ASSERT_TRUE(ReachesGeneration(job, 2, 5s));
  EXPECT_EQ(node.Live(job)->run->resume_step, 10);
  EXPECT_FALSE(ask(1, 20).accepted);
  EXPECT_THAT(node.commit_answers.back().why_not, HasSubstr("generation 1"));
  EXPECT_FALSE(ask(2, 10).accepted);
  EXPECT_TRUE(ask(2, 11).accepted);
  EXPECT_EQ(world().View(job).committed_step, 11);
}

// ---- calls

// §1: every mutating call carries a key; a retried submit is one job, a retried cancel one cancel.
TEST_F(Jobs, retries_are_one) {
  Start();
  const CallId a = world().Submit(SpecOf("job", 1, 1), "same"),
               b = world().Submit(SpecOf("job", 1, 1), "same");
  EXPECT_EQ(std::get<SubmitReply>(*world().ReplyTo(a)).job,
            std::get<SubmitReply>(*world().ReplyTo(b)).job);
  JobSpec other = SpecOf("job", 1, 1);
  other.command = {"other"};
  for (const JobSpec& spec : {other, SpecOf("another", 1, 1)})
    EXPECT_TRUE(absl::IsAlreadyExists(ErrorOf(world().Submit(spec, "same"))));
  world().Ask(coordinator::CancelAsked{CallId(900), "last", "me", false, 0, "c"});
  world().Ask(coordinator::CancelAsked{CallId(901), "last", "me", false, 0, "c"});
  EXPECT_TRUE(std::holds_alternative<CancelReply>(*world().ReplyTo(CallId(900))));
  EXPECT_TRUE(std::holds_alternative<CancelReply>(*world().ReplyTo(CallId(901))));
  world().Ask(coordinator::CancelAsked{CallId(902), "last", "me", false, 0, "d"});
  EXPECT_FALSE(ErrorOf(CallId(902)).ok());
}

// After an acknowledged cancel nothing starts; its grace, and the second one without.
TEST_F(Jobs, cancel_with_grace_then_now) {
  Start();
  sim::Behaviour slow;
  slow.ignores_term = true;
  AddDaemons({"a"}, slow);
  const JobId job = Running(SpecOf("job", 1, 1, 3));
  world().Cancel(job.value());
  world().RunFor(10s);
  EXPECT_EQ(world().StateOf(job), "ending");
  EXPECT_EQ(world().LiveRanks(job), 1);
  world().Cancel(job.value(), true);
  ASSERT_TRUE(Reaches(job, "cancelled", 1s));
  EXPECT_EQ(world().View(job).exit_code, 143);
  EXPECT_EQ(world().LiveRanks(job), 0);
}

TEST_F(Jobs, waiting_reads_are_answered_at_the_end) {
  Start();
  AddDaemons({"a"});
  const JobId job = Running(SpecOf("job", 1, 1));
  const CallId wait = world().WaitFor("job");
  world().RunFor(1s);
  EXPECT_EQ(world().ReplyTo(wait), nullptr);
  FinishAll(job);
  world().RunFor(1s);
  ASSERT_NE(world().ReplyTo(wait), nullptr);
  const JobView& view = std::get<ReadReply>(*world().ReplyTo(wait)).jobs.at(0);
  EXPECT_EQ(view.state, "succeeded");
  EXPECT_EQ(view.exit_code, 0);
  const CallId again = world().WaitFor("last");
  EXPECT_NE(world().ReplyTo(again), nullptr);
}

// Exact id, then the name's job that is not over, then the beginning of an id: never for a cancel.
TEST_F(Jobs, references_to_jobs) {
  Start();
  for (const char* name : {"train", "train", "eval"})
    world().Submit(SpecOf(name, 1, 1), std::string(name) + std::to_string(world().steps));
  EXPECT_EQ(PartsOf(ErrorOf(world().WaitFor("train"))).because, "it could be train-1, train-2");
  EXPECT_EQ(ErrorOf(world().WaitFor("nothing")).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ErrorOf(world().WaitFor("")).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(world().ReplyTo(world().WaitFor("ev")), nullptr);  // Waits.
  EXPECT_EQ(ErrorOf(world().Cancel("ev")).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ErrorOf(world().Cancel("train")).code(), absl::StatusCode::kInvalidArgument);
  world().Cancel("train-1");
  ASSERT_TRUE(Reaches(JobId("train-1"), "cancelled"));
  EXPECT_EQ(world().ReplyTo(world().WaitFor("train")), nullptr);
  world().Cancel("train");
  ASSERT_TRUE(Reaches(JobId("train-2"), "cancelled"));
  EXPECT_EQ(world().StateOf(JobId("eval-3")), "queued");
}

// A coordinator that could not go on for ten minutes hears then that the job was long over.
TEST_F(Jobs, time_after_the_last_rank_has_ended_is_not_productive) {
  Start();
  AddDaemons({"a"});
  const JobId job = Running(SpecOf("job", 1, 1));
  world().RunFor(20s);
  world().CrashCoordinator();
  world().RunFor(1s);
  FinishAll(job);
  world().RunFor(60s);
  world().StartCoordinator();
  ASSERT_TRUE(Reaches(job, "succeeded", 30s));
  const TimeAccount& time = world().View(job).time;
  const JobView& view = world().View(job);
  ASSERT_TRUE(view.started_at && view.ended_at);
  EXPECT_GE(*view.started_at, view.created_at);
  EXPECT_NEAR(Seconds(*view.ended_at - *view.started_at), 81, 5);
  EXPECT_NEAR(Seconds(time.productive), 21, 1);
  EXPECT_GE(Seconds(time.idle), 60);
}

// ---- bounds

TEST_F(Jobs, bounds_are_errors) {
  coordinator::Config config;
  config.limits.pending_submits = 2;
  config.limits.waiting_reads = 1;
  Start(config);
  world().Submit(SpecOf("a", 1, 1), "1");
  world().Submit(SpecOf("b", 1, 1), "2");
  EXPECT_EQ(ErrorOf(world().Submit(SpecOf("c", 1, 1), "3")).code(),
            absl::StatusCode::kResourceExhausted);
  world().WaitFor("a");
  const CallId second = world().WaitFor("b");
  EXPECT_EQ(ErrorOf(second).code(), absl::StatusCode::kResourceExhausted);
  world().Cancel("a-1");
  coordinator::SubmitAsked full;
  full.call = CallId(800);
  full.key = "full";
  full.spec = SpecOf("d", 1, 1);
  full.free_bytes = 10 << 20;
  world().Ask(full);
  EXPECT_EQ(ErrorOf(CallId(800)).code(), absl::StatusCode::kResourceExhausted);
  full.call = CallId(801);
  full.free_bytes = std::uint64_t{1} << 40;
  full.spec.min_nodes = full.spec.max_nodes = 5'000;
  world().Ask(full);
  EXPECT_EQ(ErrorOf(CallId(801)).code(), absl::StatusCode::kInvalidArgument);
}

// §1: a journal that lost its end had given numbers up to 7.
TEST_F(Jobs, numbers_go_on_after_those_of_a_lost_journal) {
  coordinator::Config config;
  config.journal.first_job = 8;
  Start(config);
  world().Submit(SpecOf("a", 1, 1), "1");
  world().Submit(SpecOf("b", 1, 1), "2");
  EXPECT_EQ(world().StateOf(JobId("a-8")), "queued");
  EXPECT_EQ(world().StateOf(JobId("b-9")), "queued");
}

// §6: ended jobs and their events are kept up to a number; ids are never given out again.
TEST_F(Jobs, ended_jobs_are_purged) {
  coordinator::Config config;
  config.limits.ended_jobs = 3;
  config.limits.events_per_job = 5;
  Start(config);
  AddDaemons({"a"});
  for (int i = 1; i <= 8; ++i) {
    world().Submit(SpecOf("job", 1, 1, 20), "k" + std::to_string(i));
    const JobId job("job-" + std::to_string(i));
    ASSERT_TRUE(Reaches(job, "running"));
    for (std::uint64_t failure = 0; i == 8 && failure < 4; ++failure) {
      world().RunFor(61s);
      world().node("a").ExitRank(job, 0, 1);
      ASSERT_TRUE(ReachesGeneration(job, 2 + failure));
    }
    FinishAll(job);
    ASSERT_TRUE(Reaches(job, "succeeded"));
  }
  world().RunFor(1s);
  int specs = 0, events = 0;
  for (const auto& row : world().rows()) {
    specs += std::holds_alternative<coordinator::JobSpecRow>(row.second) ? 1 : 0;
    events += row.first.starts_with("job/job-8/event/") ? 1 : 0;
  }
  EXPECT_EQ(specs, 3);
  EXPECT_EQ(events, 5);
  world().CrashCoordinator();
  world().StartCoordinator();
  const CallId call = world().Submit(SpecOf("job", 1, 1), "k9");
  EXPECT_EQ(std::get<SubmitReply>(*world().ReplyTo(call)).job, JobId("job-9"));
}

// A thousand nodes vanish in one moment: every step stays within its bounds, the rest follows in
// the next Ticks.
TEST_F(Jobs, a_thousand_losses_are_split) {
  Start();
  for (int i = 0; i < 300; ++i) world().Add("n" + std::to_string(i));
  JobSpec spec = SpecOf("job", 2, 300);
  const JobId job = Running(spec);
  ASSERT_EQ(world().View(job).nodes, 300);
  for (int i = 0; i < 298; ++i) world().node("n" + std::to_string(i)).CutPower();
  ASSERT_TRUE(ReachesGeneration(job, 2, 90s));  // All in one moment, at the end of the brake.
  EXPECT_EQ(world().View(job).nodes, 2);
}

}  // namespace
}  // namespace regroup
