// Scenarios about silence: of one, of all, of many at once; and of the coordinator itself. PROTOCOL
// §1, §2, §4.

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/scenario/testing.h"

namespace regroup {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Silence : public Scenario {
 protected:
  void SetAllSilent(bool silent) {
    for (auto& entry : world().nodes()) entry.second->SetSilent(silent);
  }
  coordinator::ReadReply ReadAll() {
    coordinator::ReadFilter filter;
    filter.nodes = true;
    auto reply = world().core().Read(filter, world().clock().now(), world().clock().wall());
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok() ? *reply : coordinator::ReadReply{};
  }
  std::string NoteOf(const std::string& name) {
    for (const NodeView& node : ReadAll().nodes)
      if (node.name == name) return node.note;
    return "no node " + name;
  }
  template <class Reason>
  bool WaitsFor(const JobId& job) {
    const std::optional<WaitReason> why = world().View(job).why;
    return why && std::holds_alternative<Reason>(*why);
  }
};

// ---- the coordinator is cut off

struct Cut {
  int jobs, nodes_each;
  Duration lasts;
};
class CutOff : public Silence, public ::testing::WithParamInterface<Cut> {};

// Whether the brake holds (three nodes and more) or not: no training was touched, so none is.
TEST_P(CutOff, restarts_no_job) {
  const Cut cut = GetParam();
  Start();
  for (int i = 0; i < cut.jobs * cut.nodes_each; ++i) {
    world().Add(absl::StrCat("n", i));
    world().RunFor(130ms);  // They beat at different times.
  }
  std::map<JobId, std::vector<std::int64_t>> pids;
  for (int i = 1; i <= cut.jobs; ++i) {
    world().Submit(SpecOf("job", cut.nodes_each, cut.nodes_each), absl::StrCat("key", i));
    const JobId job(absl::StrCat("job-", i));
    ASSERT_TRUE(Reaches(job, "running"));
    pids[job] = world().Pids(job);
  }
  world().RunFor(3s);
  SetAllSilent(true);
  world().RunFor(cut.lasts);
  SetAllSilent(false);
  world().RunFor(60s);
  for (const auto& [job, before] : pids) {
    EXPECT_EQ(world().StateOf(job), "running");
    EXPECT_EQ(world().Pids(job), before);
    const JobView view = world().View(job);
    EXPECT_EQ(view.generation, Generation(1));
    EXPECT_EQ(view.regroups, 0);
    EXPECT_FALSE(view.why.has_value());
  }
}
INSTANTIATE_TEST_SUITE_P(Table, CutOff,
                         ::testing::Values(Cut{1, 1, 4500ms}, Cut{1, 1, 6s}, Cut{1, 1, 60s},
                                           Cut{1, 2, 4500ms}, Cut{1, 2, 5500ms}, Cut{1, 2, 6s},
                                           Cut{1, 2, 20s}, Cut{1, 2, 60s}, Cut{2, 2, 6s},
                                           Cut{2, 2, 20s}, Cut{2, 2, 60s}, Cut{2, 2, 90s},
                                           Cut{20, 2, 6s}, Cut{20, 2, 20s}, Cut{20, 2, 60s}));

// Ranks run, and only the word of it is on its way: that is no late start, whatever start_timeout
// is.
TEST_F(Silence, a_start_that_is_not_heard_of_is_not_late) {
  Start();
  AddDaemons({"a", "b", "c", "d"});
  world().RunFor(3s);
  world().Submit(SpecOf("job", 4, 4), "key");
  const JobId job("job-1");
  for (int ms = 0; ms < 1000 && world().Pids(job).size() < 4; ++ms) world().RunFor(1ms);
  const std::vector<std::int64_t> pids = world().Pids(job);
  ASSERT_EQ(pids.size(), 4u);
  SetAllSilent(true);
  world().RunFor(25s);
  SetAllSilent(false);
  world().RunFor(60s);
  EXPECT_EQ(world().StateOf(job), "running");
  EXPECT_EQ(world().Pids(job), pids);
  EXPECT_EQ(world().View(job).generation, Generation(1));
}

// After a stall of its agent a member's heartbeat comes before it has even read that it shall run.
class StalledAtItsStart : public Silence {
 protected:
  static constexpr Duration kStartTimeout = 2500ms;
  // Formed, and its order to run waits before an agent that stands still.
  JobId StalledFor(Duration gap) {
    Start();
    AddDaemons({"a", "b"});
    world().RunFor(3s);
    JobSpec spec = SpecOf("job", 2, 2);
    spec.start_timeout = kStartTimeout;
    world().Submit(spec, "key");
    const JobId job("job-1");
    const auto prepared = [&] {
      const sim::Group* group = world().node("b").Find(job, Generation(1));
      return group != nullptr && group->phase == Phase::kPrepared;
    };
    for (int ms = 0; ms < 5000 && !prepared(); ++ms) world().RunFor(1ms);
    EXPECT_TRUE(prepared());
    world().node("b").StallAgent(gap);
    return job;
  }
  void ExpectOneGeneration(const JobId& job) {
    ASSERT_TRUE(Reaches(job, "running", 5s));
    world().RunFor(20s);
    EXPECT_EQ(world().StateOf(job), "running");
    EXPECT_EQ(world().View(job).generation, Generation(1));
  }
};

TEST_F(StalledAtItsStart, is_not_late) {
  const JobId job = StalledFor(4500ms);
  world().RunFor(4500ms);
  ExpectOneGeneration(job);
}

TEST_F(StalledAtItsStart, nor_while_the_coordinator_stands_still) {
  const JobId job = StalledFor(4500ms);
  world().node("b").behaviour().start = 1s;
  world().RunFor(4600ms);
  world().StallCoordinator(3s);
  world().RunFor(3s);
  ExpectOneGeneration(job);
}

// It says what it waits for, and the others have a lease to follow the first that comes back.
TEST_F(Silence, who_does_not_follow_is_lost) {
  Start();
  AddDaemons({"a", "b"});
  const JobId job = Running(SpecOf("job", 1, 2));
  const std::vector<std::int64_t> pids = world().Pids(job);
  SetAllSilent(true);
  world().RunFor(20s);
  EXPECT_TRUE(WaitsFor<UnreachableHold>(job));
  EXPECT_EQ(world().StateOf(job), "running");
  world().node("a").SetSilent(false);
  world().RunFor(4s);
  EXPECT_TRUE(WaitsFor<AwaitReattach>(job));
  EXPECT_EQ(world().Pids(job), pids);
  ASSERT_TRUE(ReachesGeneration(job, 2, 2s));
  EXPECT_THAT(Members(GenerationOf(job, 2)), ElementsAre("a"));
}

TEST_F(Silence, proof_of_death_ends_the_hold) {
  Start();
  AddDaemons({"a", "b"});
  const JobId job = Running(SpecOf("job", 1, 2));
  SetAllSilent(true);
  world().RunFor(20s);
  world().node("a").Reboot();
  ASSERT_TRUE(ReachesGeneration(job, 2, 1s));
  EXPECT_TRUE(EndedBy<NodeRebooted>(GenerationOf(job, 1)));
}

// Until then it was not the network.
TEST_F(Silence, the_hold_begins_when_the_last_is_lost) {
  Start();
  AddDaemons({"a", "b"});
  const JobId job = Running(SpecOf("job", 2, 2));
  world().node("a").ExitRank(job, 0, 0);
  world().RunFor(100ms);
  world().node("b").SetSilent(true);
  world().RunFor(40s);  // It may still tell that it is done, too.
  world().node("a").SetSilent(true);
  world().RunFor(coordinator::HoldConfig{}.unreachable - 20s);
  EXPECT_TRUE(WaitsFor<UnreachableHold>(job));
  SetAllSilent(false);
  world().RunFor(10s);
  world().node("b").ExitRank(job, 0, 0);
  ASSERT_TRUE(Reaches(job, "succeeded"));
  EXPECT_EQ(world().View(job).generation, Generation(1));
}

TEST_F(Silence, who_was_heard_least_recently_is_the_cause) {
  Start();
  AddDaemons({"a", "b", "c"});
  const JobId job = Running(SpecOf("job", 2, 2));
  ASSERT_THAT(Members(GenerationOf(job, 1)), ElementsAre("a", "b"));
  world().node("b").SetSilent(true);
  world().RunFor(3s);
  world().node("a").SetSilent(true);
  world().RunFor(coordinator::HoldConfig{}.unreachable + 20s);
  const auto ended = GenerationOf(job, 1).ended;
  ASSERT_TRUE(ended && std::holds_alternative<NodeLost>(*ended));
  EXPECT_EQ(std::get<NodeLost>(*ended).node, "b");
}

// Nobody knows whether they stay, and they would not hear that they shall stop.
TEST_F(Silence, a_growth_waits_for_members_that_are_silent) {
  Start();
  AddDaemons({"a"});
  JobSpec spec = SpecOf("job", 1, 2);
  spec.scale_up = ScaleUp::kNow;
  const JobId job = Running(spec);
  const std::vector<std::int64_t> pids = world().Pids(job);
  world().node("a").SetSilent(true);
  world().RunFor(3s);
  world().Add("b");
  world().RunFor(60s);
  EXPECT_EQ(world().StateOf(job), "running");
  EXPECT_TRUE(WaitsFor<UnreachableHold>(job));
  world().node("a").SetSilent(false);
  ASSERT_TRUE(ReachesGeneration(job, 2));
  EXPECT_TRUE(EndedBy<Resized>(GenerationOf(job, 1)));
}

TEST_F(Silence, nobody_saves_for_a_growth_while_one_is_silent) {
  Start();
  sim::Behaviour speaks;
  speaks.speaks = true;
  AddDaemons({"a", "b"}, speaks);
  JobSpec spec = SpecOf("job", 2, 3);
  spec.scale_up = ScaleUp::kNow;
  const JobId job = Running(spec);
  world().RunFor(3s);
  sim::Behaviour slow = speaks;
  slow.prepare = 1900ms;
  world().Add("c", {}, slow);
  world().node("b").SetSilent(true);  // Heard when it is proposed, not when the newcomer is ready.
  world().RunFor(2500ms);
  ASSERT_EQ(world().node("c").Find(job, Generation(2))->phase, Phase::kPrepared);
  EXPECT_FALSE(world().node("a").Live(job)->saved);
  world().node("b").SetSilent(false);
  ASSERT_TRUE(ReachesGeneration(job, 2));
  EXPECT_EQ(world().View(job).nodes, 3);
}

// The save for it is no reason to end one that has fallen silent meanwhile.
TEST_F(Silence, nor_does_it_stop_who_fell_silent_while_they_saved) {
  Start();
  sim::Behaviour slow;
  slow.speaks = true;
  slow.save = 30s;
  AddDaemons({"a"}, slow);
  JobSpec spec = SpecOf("job", 1, 2);
  spec.scale_up = ScaleUp::kNow;
  spec.grace = 4s;
  const JobId job = Running(spec);
  world().RunFor(1s);
  world().Add("b");
  world().RunFor(1s);
  ASSERT_EQ(world().View(job).generation, Generation(1));
  world().node("a").SetSilent(true);
  world().RunFor(60s);
  EXPECT_TRUE(WaitsFor<UnreachableHold>(job));
  world().node("a").SetSilent(false);
  ASSERT_TRUE(ReachesGeneration(job, 3));  // The second waited for it in vain.
  EXPECT_TRUE(EndedBy<Resized>(GenerationOf(job, 1)));
}

// After a crash the hold begins again, and who comes back goes on.
TEST_F(Silence, the_hold_outlives_the_coordinator) {
  Start();
  AddDaemons({"a", "b"});
  const JobId job = Running(SpecOf("job", 2, 2));
  const std::vector<std::int64_t> pids = world().Pids(job);
  SetAllSilent(true);
  world().RunFor(20s);
  world().CrashCoordinator();
  world().StartCoordinator();
  world().RunFor(100s);
  EXPECT_TRUE(WaitsFor<UnreachableHold>(job));
  SetAllSilent(false);
  world().RunFor(10s);
  EXPECT_EQ(world().Pids(job), pids);
  EXPECT_EQ(world().View(job).generation, Generation(1));
}

// ---- the brake

// Three of five at once: for a minute silence expires none of them; a refused witness still counts.
TEST_F(Silence, many_at_once_are_not_believed) {
  Start();
  AddDaemons({"a", "b", "c", "d", "e"});
  world().RunFor(1s);
  for (int i = 1; i <= 5; ++i) world().Submit(SpecOf("job", 1, 1), absl::StrCat("key", i));
  ASSERT_TRUE(Reaches(JobId("job-5"), "running"));
  EXPECT_THAT(ReadAll().warnings, IsEmpty());
  for (const char* name : {"a", "b", "c"}) world().node(name).SetSilent(true);
  world().RunFor(20s);
  ASSERT_EQ(ReadAll().warnings.size(), 1u);
  EXPECT_THAT(ReadAll().warnings[0], HasSubstr("3 of 5 nodes fell silent at once"));
  EXPECT_THAT(NoteOf("a"), HasSubstr("kept because many fell silent at once"));
  world().node("d").KillNode();
  world().RunFor(1s);
  EXPECT_TRUE(world().NodeRowOf("d").lost);
  world().RunFor(43s);
  for (const char* name : {"a", "b", "c"}) EXPECT_FALSE(world().NodeRowOf(name).lost) << name;
  world().RunFor(6s);
  for (const char* name : {"a", "b", "c"}) EXPECT_TRUE(world().NodeRowOf(name).lost) << name;
  EXPECT_THAT(ReadAll().warnings, IsEmpty());
}

// Two of five, or three of sixteen, are lost as ever.
TEST_F(Silence, few_at_once_are_lost) {
  for (const auto& [nodes, silent] : {std::pair{5, 2}, std::pair{16, 3}}) {
    Start();
    for (int i = 0; i < nodes; ++i) world().Add(absl::StrCat("n", i));
    world().RunFor(2s);
    for (int i = 0; i < silent; ++i) world().node(absl::StrCat("n", i)).SetSilent(true);
    world().RunFor(6s);
    EXPECT_TRUE(world().NodeRowOf("n0").lost) << silent << " of " << nodes;
  }
}

// ---- steps of the others

// A job that is not synchronous steps on without its lost half: steps vouch for five minutes.
TEST_F(Silence, steps_keep_a_silent_member_for_a_while) {
  Start();
  sim::Behaviour speaks;
  speaks.speaks = true;
  AddDaemons({"a", "b"}, speaks);
  const JobId job = Running(SpecOf("job", 1, 2));
  world().RunFor(2s);
  world().node("b").CutPower();
  world().RunFor(93s);
  EXPECT_THAT(NoteOf("b"), HasSubstr("silent for 93 s, kept because job-1 steps"));
  world().RunFor(200s);
  EXPECT_EQ(world().View(job).generation, Generation(1));
  ASSERT_TRUE(ReachesGeneration(job, 2, 15s));
  EXPECT_THAT(Members(GenerationOf(job, 2)), ElementsAre("a"));
}

// ---- a loop that stands still

// What a restart decided: members with their ranks, causes and charges, by generation.
std::string DecisionsOf(const JobView& view) {
  std::string all = view.state;
  for (const GenerationView& generation : view.generations) {
    std::vector<std::string> names;
    for (const MemberView& member : generation.members) names.push_back(member.name);
    absl::StrAppend(&all, " | ", generation.generation.value(), ": ", absl::StrJoin(names, ","),
                    generation.charged ? " charged" : "");
    if (generation.ended) absl::StrAppend(&all, " reason ", generation.ended->index());
  }
  return all;
}

// A stall of the coordinator between each pair of events of a restart changes no decision. Slow
// stops, a node that fails its check, and one that is awaited are in it.
class Stalls : public Silence {
 protected:
  // How many events the restart takes; `stall_at` < 0: none.
  std::string Restart(int stall_at, int* events) {
    Start();
    AddDaemons({"a", "b", "c", "d"});
    world().node("c").behaviour().ignores_term = true;
    const JobId job = Running(SpecOf("job", 1, 4, 3));
    world().RunFor(2s);
    world().node("d").behaviour().prepare = 1500ms;
    world().node("b").ResetSession();
    world().node("a").ExitRank(job, 0, 1);
    int count = 0;
    const Instant until = world().clock().now() + 100s;
    const auto settled = [&] {
      return world().StateOf(job) == "running" && world().View(job).generation > Generation(1);
    };
    while (!settled() && world().clock().now() < until) {
      if (count++ == stall_at) world().StallCoordinator(8s);
      world().clock().RunOne(until);
    }
    if (events != nullptr) *events = count;
    EXPECT_THAT(world().checker.violations, IsEmpty());
    return DecisionsOf(world().View(job));
  }
};

TEST_F(Stalls, between_each_pair_of_events_change_no_decision) {
  int events = 0;
  const std::string plain = Restart(-1, &events);
  ASSERT_THAT(plain, HasSubstr("| 2: a,b,c,d"));
  ASSERT_GT(events, 30);
  for (int at = 0; at < events; ++at) ASSERT_EQ(Restart(at, nullptr), plain) << "stalled at " << at;
}

}  // namespace
}  // namespace regroup
