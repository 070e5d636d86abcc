// Random lives of a cluster with crashes between any commit and any action; every life is one seed.
// A failure prints the seed and what was done. The checker is itself tested: by bugs that are
// planted between the core and its journal.
//
// REGROUP_LIVES=N: N short lives per shard (there are twenty) in place of the default.
// REGROUP_SEED=N: only that life, with what the core said.
// REGROUP_LONG_SEED=N: likewise, of a long life. REGROUP_TRACED=n4: with all that the agent of this
// node heard, ordered and reported.
// REGROUP_LONG_LIVES=N, REGROUP_TIMER_LIVES=N: N long lives per shard, and N of which each timer
// has to decide something, in place of the default. `./dev test -R lives` sets them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "tests/sim/chaos.h"
#include "tests/sim/recorder.h"
#include "tests/sim/timers.h"

#ifdef __SANITIZE_ADDRESS__
// A life is little else than allocations: a fifth of its time went into keeping where each was
// made, and into the pages of what was freed. ASAN_OPTIONS brings that back for one seed.
extern "C" const char* __asan_default_options() {
  return "malloc_context_size=2:quarantine_size_mb=64";
}
#endif

namespace regroup {
namespace {

using coordinator::Effects;
using sim::ChaosOptions;
using sim::ChaosResult;
using sim::World;

constexpr std::uint64_t kLives = 1'000;
constexpr int kShards = 20;

std::string Story(std::uint64_t seed, const ChaosResult& result) {
  std::string story = "seed " + std::to_string(seed) + "\n";
  for (const std::string& line : result.history) story += "  " + line + "\n";
  for (const std::string& line : result.violations) story += "violated: " + line + "\n";
  return story;
}

class Random : public ::testing::TestWithParam<int> {};

// At least twenty generations each, on a bad network, with short waits and small limits.
constexpr std::uint64_t kLongLives = 5;
// Lives of the recorder. 7956: a node that flaps was left out for one that no longer came. 57662: a
// node that a job held was not offered to it once another job had left it.
constexpr std::uint64_t kLivesThatWereBroken[] = {7956, 57662};
// Long ones. 596: ranks that hung as they were told to retire, and a coordinator that crashed then:
// "did not start in time" was said of them. 611: an older report was taken for the answer to a
// Prepare that was on its way as its job failed, which was purged before. 3688, 4343: a generation
// that waited for the news of one was not held when the others fell silent. 658: one in which what
// is left of a job that ended outlasts it. 4243, 8181: the shim of a group that had ended left an
// agent whose coordinator was away, and the group ran again. 1216: a rank that had died was kept no
// more once its agent had restarted. 3940: a calendar that was set back made the second failure the
// first. 5549, 6642, 6716, 8612: faults of the world. 6177, 7008: a generation that ended twice, as
// its coordinator was killed in between. 8846: a rank that failed in the instant in which it was
// told to retire. 6895: Ctrl-C twice for a command that leaves anyhow, as nobody joined in time.
// 7420: a launch command that came late was told its result by a coordinator that ended at once.
constexpr std::uint64_t kLongLivesThatWereBroken[] = {596,  611,  658,  1216, 3688, 3940, 4243,
                                                      4343, 5549, 5556, 6177, 6642, 6716, 6895,
                                                      7008, 7420, 8060, 8181, 8612, 8846};
// Lives and the timers that they reach. It only saves time: what they miss is looked for in others.
const std::pair<std::uint64_t, std::vector<std::string>> kRich[] = {
    {75,
     {"coordinator leases heartbeat",
      "coordinator leases lease",
      "coordinator leases first_probe_interval",
      "coordinator leases probe_interval",
      "coordinator leases awaited_leases",
      "coordinator leases awaited_per_node",
      "coordinator forming last_call_quiet",
      "coordinator forming ack",
      "coordinator forming warm_up",
      "coordinator forming member_backoff_first",
      "coordinator ending failure_grace",
      "coordinator ending notice_margin",
      "coordinator holds nodes",
      "coordinator retries backoff_first",
      "coordinator retries crash_loop",
      "coordinator limits ended_jobs",
      "coordinator limits away_nodes",
      "coordinator limits events_per_job",
      "coordinator limits min_free_bytes",
      "coordinator retention ended_jobs",
      "coordinator retention sweep",
      "coordinator ad_hoc exit_delay",
      "agent join_timeout",
      "agent waits progress",
      "agent waits nursery",
      "agent waits slack",
      "agent waits kill"}},
    {10,
     {"coordinator leases agent_restart", "coordinator leases launched_restart_margin",
      "coordinator forming join_batch", "coordinator ending verdict_limit",
      "coordinator holds finish", "coordinator limits waiting_reads", "agent waits warm_up",
      "agent waits same_signal"}},
    {27,
     {"coordinator brake lasts", "coordinator brake nodes",
      "coordinator forming member_backoff_limit", "coordinator holds unreachable"}},
    {17, {"coordinator brake share"}},
    {22, {"coordinator forming last_call_limit", "coordinator retention lost_nodes"}},
    {77, {"coordinator forming settle"}},
    {50, {"coordinator forming newcomer_trial"}},
    {11, {"coordinator retries free_backoff_limit"}},
    {1, {"coordinator leases redial"}},
    {48,
     {"coordinator ending stop_margin", "coordinator limits pending_submits",
      "agent waits shim_silence", "agent waits kill_again", "agent waits adopt"}},
    {26,
     {"coordinator holds orphan", "coordinator retries silent_progress",
      "coordinator limits lost_nodes", "coordinator limits generations_per_job", "agent grace"}},
    {14, {"coordinator retries backoff_limit", "agent waits redial", "agent waits result"}},
    {15, {"coordinator ad_hoc idle_exit"}},
    {4, {"agent waits welcome"}},
    {106, {"agent waits kill_limit"}},
    {187, {"agent waits stuck"}},
};

std::uint64_t FromEnvironment(const char* name, std::uint64_t otherwise) {
  const char* asked = std::getenv(name);
  return asked ? std::strtoull(asked, nullptr, 10) : otherwise;
}

TEST(RandomLife, WhatWasBrokenOnceIsWhole) {
  for (const std::uint64_t seed : kLivesThatWereBroken) {
    const ChaosResult result = sim::RunChaos(seed, sim::RecordedLife(seed));
    EXPECT_THAT(result.violations, ::testing::IsEmpty()) << Story(seed, result);
  }
  for (const std::uint64_t seed : kLongLivesThatWereBroken) {
    const ChaosResult result = sim::RunChaos(seed, sim::LongLife(seed));
    EXPECT_THAT(result.violations, ::testing::IsEmpty()) << Story(seed, result);
  }
}

TEST_P(Random, LongLivesKeepTheInvariants) {
  int reached = 0;
  const std::uint64_t lives = FromEnvironment("REGROUP_LONG_LIVES", kLongLives);
  for (std::uint64_t i = 0; i < lives; ++i) {
    const std::uint64_t seed = 1 + static_cast<std::uint64_t>(GetParam()) * lives + i;
    const ChaosResult result = sim::RunChaos(seed, sim::LongLife(seed));
    ASSERT_THAT(result.violations, ::testing::IsEmpty()) << Story(seed, result);
    reached += result.generations >= 20 ? 1 : 0;
  }
  EXPECT_GE(reached, static_cast<int>(lives - std::max<std::uint64_t>(lives / 10, 1)));
}

TEST_P(Random, LivesKeepTheInvariants) {
  int generations = 0;
  const std::uint64_t lives = FromEnvironment("REGROUP_LIVES", kLives);
  for (std::uint64_t i = 0; i < lives; ++i) {
    const std::uint64_t seed = 1 + static_cast<std::uint64_t>(GetParam()) * 1'000'000 + i;
    const ChaosResult result = sim::RunChaos(seed);
    generations += result.generations;
    ASSERT_THAT(result.violations, ::testing::IsEmpty()) << Story(seed, result);
  }
  EXPECT_GT(generations, static_cast<int>(lives) / 2);  // The lives are worth living.
}
INSTANTIATE_TEST_SUITE_P(Shard, Random, ::testing::Range(0, kShards));

// What no life reaches is checked by nothing. The table is for the eye.
TEST(RandomLife, TogetherTheyReachEverything) {
  sim::Coverage coverage;
  for (std::uint64_t seed = 1; seed <= 200 && (seed <= 20 || !coverage.Missing().empty()); ++seed)
    coverage.Add(sim::RunChaos(seed, sim::LongLife(seed)).coverage);
  std::fputs(coverage.Table().c_str(), stdout);
  EXPECT_THAT(coverage.Missing(), ::testing::IsEmpty());
}

// Nor is a timer or a limit that could have any other value. The table is for the eye.
TEST(RandomLife, TogetherTheyReachEveryTimer) {
  const std::size_t enough = FromEnvironment("REGROUP_TIMER_LIVES", 1);
  sim::TimerCoverage coverage;
  for (const auto& [seed, timers] : kRich) coverage.Add(seed, sim::LongLife(seed), enough, timers);
  for (std::uint64_t seed = 1; seed <= 200 && !coverage.AllReached(enough); ++seed)
    coverage.Add(seed, sim::LongLife(seed), enough);
  std::fputs(coverage.Table().c_str(), stdout);
  EXPECT_THAT(coverage.Missing(), ::testing::IsEmpty());
}

TEST(RandomLife, CountsOnceForATimerAndOnlyForThoseLookedFor) {
  sim::TimerCoverage coverage;
  for (int i = 0; i < 2; ++i) coverage.Add(75, sim::LongLife(75), 2, {"agent waits kill"});
  EXPECT_THAT(coverage.Table(), ::testing::HasSubstr(" 1  agent waits kill, first in 75\n"));
  EXPECT_THAT(coverage.Table(), ::testing::HasSubstr(" 0  coordinator leases lease\n"));
}

// One life with what the core said; for the eye where REGROUP_SEED names it.
TEST(RandomLife, OneSeed) {
  const char* asked_long = std::getenv("REGROUP_LONG_SEED");
  const char* asked = asked_long != nullptr ? asked_long : std::getenv("REGROUP_SEED");
  const std::uint64_t seed = asked ? std::strtoull(asked, nullptr, 10) : 1;
  ChaosOptions options = asked_long != nullptr ? sim::LongLife(seed) : ChaosOptions{};
  options.tracing = true;
  if (const char* node = std::getenv("REGROUP_TRACED")) options.traced = node;
  const ChaosResult result = sim::RunChaos(seed, options);
  if (asked) std::fputs(Story(seed, result).c_str(), stderr);
  EXPECT_THAT(result.history, ::testing::Contains(::testing::HasSubstr("node attached")));
  EXPECT_THAT(result.violations, ::testing::IsEmpty()) << Story(seed, result);
}

// Equal seeds, equal lives.
TEST(RandomLife, IsDeterministic) {
  for (std::uint64_t seed = 13; seed < 400; seed += 13) {  // Every third one rests.
    const ChaosResult a = sim::RunChaos(seed), b = sim::RunChaos(seed);
    EXPECT_EQ(a.history, b.history) << seed;
    EXPECT_EQ(a.steps, b.steps) << seed;
  }
}

// ---- planted bugs

template <class RowType, class Change>
void ChangeRows(Effects& effects, const Change& change) {
  for (coordinator::Row& row : effects.rows)
    if (row.value)
      if (auto* value = std::get_if<RowType>(&*row.value)) change(*value);
}
template <class RowType, class Which>
void DropRows(Effects& effects, const Which& which) {
  std::erase_if(effects.rows, [&](const coordinator::Row& row) {
    const RowType* value = row.value ? std::get_if<RowType>(&*row.value) : nullptr;
    return value && which(*value);
  });
}
template <class ActionType, class Change>
void ChangeActions(Effects& effects, const Change& change) {
  for (coordinator::Action& action : effects.actions)
    if (auto* value = std::get_if<ActionType>(&action)) change(*value);
}

struct Bug {
  const char* name;
  std::function<void(World&)> plant;
  std::string caught_by = "";  // How the violation begins; empty: any will do.
};
void Tamper(World& world, std::function<void(Effects&)> tamper) {
  world.tamper = std::move(tamper);
}

// In the rows of generations proposed from then on.
void MakeLostNodesMembers(World& world) {
  using namespace coordinator;  // NOLINT
  auto lost = std::make_shared<NodeId>();
  auto placed = std::make_shared<std::map<Key, NodeId>>();
  Tamper(world, [lost, placed](Effects& e) {
    ChangeRows<NodeRow>(e, [&](NodeRow& r) {
      if (r.lost) *lost = r.node;
    });
    ChangeRows<GenerationRow>(e, [&](GenerationRow& r) {
      const Key key = GenerationKey(r.job, r.generation);
      if (r.phase == GenerationPhase::kProposed && *lost != NodeId()) (*placed)[key] = *lost;
      if (auto found = placed->find(key); found != placed->end())
        r.members.back().node = found->second;
    });
  });
}

void DoubleOrders(World& world) {
  using namespace coordinator;  // NOLINT
  auto sessions = std::make_shared<std::set<SessionId>>();
  Tamper(world, [sessions](Effects& e) {
    std::vector<Action> doubled;
    for (const Action& action : e.actions) {
      doubled.push_back(action);
      if (const auto* welcome = std::get_if<SendWelcome>(&action))
        sessions->insert(welcome->session);
      const auto* send = std::get_if<SendOrder>(&action);
      if (send == nullptr || sessions->empty()) continue;
      SendOrder other = *send;
      other.session = *sessions->rbegin();
      if (other.session != send->session) doubled.push_back(other);
    }
    e.actions = std::move(doubled);
  });
}

// Whoever has been told to run and is told so in another session; `crash`: of another coordinator.
void StopWhoReturns(World& world, bool crash) {
  using namespace coordinator;  // NOLINT
  struct Told {
    SessionId session;
    int life = 0;
  };
  auto life = std::make_shared<int>(0);
  auto told = std::make_shared<std::map<std::tuple<JobId, Generation, int>, Told>>();
  Tamper(world, [life, told, crash](Effects& e) {
    ChangeRows<MetaRow>(e, [&](MetaRow&) { ++*life; });
    ChangeActions<SendOrder>(e, [&](SendOrder& a) {
      if (!a.order.run) return;
      const Told now{a.session, *life};
      auto [before, first] =
          told->try_emplace({a.order.job, a.order.run->generation, a.order.run->group_rank}, now);
      const bool returns = before->second.session != a.session;
      if (!first && returns && (before->second.life != *life) == crash)
        a.order.stop = Stop{a.order.run->generation, std::chrono::seconds(2)};
      before->second = now;
    });
  });
}

std::vector<Bug> RowBugs() {
  using namespace coordinator;  // NOLINT
  return {
      {"the number of a proposal is not made durable",
       [](World& w) {
         Tamper(w, [](Effects& e) {
           DropRows<GenerationRow>(
               e, [](const GenerationRow& r) { return r.phase == GenerationPhase::kProposed; });
         });
       }},
      {"the highest number is forgotten",
       [](World& w) {
         Tamper(w, [](Effects& e) {
           ChangeRows<JobStateRow>(e, [](JobStateRow& r) { r.last_number = r.last_formed; });
         });
       }},
      {"answered before it is durable", [](World& w) { w.answers_before_commit = true; }},
      {"an acknowledged submit is not kept",
       [](World& w) {
         Tamper(w, [](Effects& e) {
           DropRows<JobSpecRow>(e, [](const JobSpecRow&) { return true; });
         });
       }},
      {"charged twice",
       [](World& w) {
         Tamper(w, [](Effects& e) {
           ChangeRows<JobStateRow>(e, [](JobStateRow& r) { r.ends.charged *= 2; });
         });
       }},
      {"the epoch does not rise",
       [](World& w) {
         Tamper(w, [](Effects& e) { DropRows<MetaRow>(e, [](const MetaRow&) { return true; }); });
       }},
      {"an event is lost",
       [](World& w) {
         Tamper(w, [](Effects& e) {
           DropRows<JobEventRow>(e, [](const JobEventRow& r) { return r.event.number == 3; });
         });
       }},
      {"a verdict changes",
       [](World& w) {
         Tamper(w, [](Effects& e) {
           ChangeRows<JobStateRow>(e, [](JobStateRow& r) {
             if (r.phase == JobPhase::kEnded) r.verdict->exit_code = 99;
           });
         });
       }},
  };
}

std::vector<Bug> ActionBugs() {
  using namespace coordinator;  // NOLINT
  return {
      {"ranks given to two nodes",
       [](World& w) {
         Tamper(w, [](Effects& e) {
           ChangeActions<SendOrder>(e, [](SendOrder& a) {
             if (a.order.run && !a.order.run->mine.empty()) a.order.run->mine[0].rank = 0;
           });
         });
       }},
      {"nobody is told to stop",
       [](World& w) {
         Tamper(w, [](Effects& e) {
           ChangeActions<SendOrder>(e, [](SendOrder& a) { a.order.stop.reset(); });
         });
       }},
      {"who has retired is never told to end",
       [](World& w) {
         Tamper(w, [](Effects& e) {
           ChangeActions<SendOrder>(e, [](SendOrder& a) {
             if (a.order.stop) a.order.stop->in_place = true;
           });
         });
       }},
      {"members are told other stores",
       [](World& w) {
         auto count = std::make_shared<std::uint16_t>(0);
         Tamper(w, [count](Effects& e) {
           ChangeActions<SendOrder>(e, [&](SendOrder& a) {
             if (a.order.run) a.order.run->store.port = ++*count;
           });
         });
       }},
      {"stale commits are accepted",
       [](World& w) {
         Tamper(w, [](Effects& e) {
           ChangeActions<AnswerCommit>(e, [](AnswerCommit& a) { a.answer.accepted = true; });
         });
       }},
  };
}

// What must not happen to a node, a generation, a commit or a reader: one bug for each number.
std::vector<Bug> MemberBugs() {
  using namespace coordinator;  // NOLINT
  return {
      {"a lost node is taken back without a Hello", MakeLostNodesMembers, "9: "},
      {"a member has prepared nothing", MakeLostNodesMembers, "7: "},
      {"what has formed is not recorded",
       [](World& w) {
         Tamper(w, [](Effects& e) {
           DropRows<GenerationRow>(
               e, [](const GenerationRow& r) { return r.phase == GenerationPhase::kFormed; });
         });
       },
       "8: started without"},
      {"orders reach another node, too", DoubleOrders, "8: started on a node"},
      {"an older agent replaces a newer one",
       [](World& w) {
         Tamper(w, [](Effects& e) {
           ChangeRows<NodeRow>(
               e, [](NodeRow& r) { r.incarnation = Incarnation(1000 - r.incarnation.value()); });
         });
       },
       "10: "},
      {"an agent that comes back has to stop", [](World& w) { StopWhoReturns(w, false); }, "17: "},
      {"after a crash everybody has to stop", [](World& w) { StopWhoReturns(w, true); }, "18: "},
      {"a stop that is told again begins again",
       [](World& w) {
         auto told = std::make_shared<int>(0);
         Tamper(w, [told](Effects& e) {
           ChangeActions<SendOrder>(e, [&](SendOrder& a) {
             if (a.order.stop) a.order.stop->grace += std::chrono::seconds(10 * ++*told);
           });
         });
       },
       "19: "},
  };
}

std::vector<Bug> CommitAndReadBugs() {
  using namespace coordinator;  // NOLINT
  return {
      {"a generation resumes from nothing",
       [](World& w) {
         Tamper(w, [](Effects& e) {
           ChangeRows<GenerationRow>(e, [](GenerationRow& r) { r.resume_step = 0; });
         });
       },
       "21: "},
      {"a step is committed twice, with other contents",
       [](World& w) {
         Tamper(w, [](Effects& e) {
           ChangeActions<AnswerCommit>(e, [](AnswerCommit& a) {
             if (a.answer.why_not.find("was committed already") != std::string::npos)
               a.answer.accepted = true;
           });
         });
       },
       "24: "},
      {"an old answer is read again",
       [](World& w) {
         auto old = std::make_shared<std::optional<Reply>>();
         auto reads = std::make_shared<int>(0);
         Tamper(w, [old, reads](Effects& e) {
           ChangeActions<Answer>(e, [&](Answer& a) {
             if (!std::holds_alternative<ReadReply>(a.reply) || ++*reads % 2 != 0) return;
             if (!*old) *old = a.reply;
             a.reply = **old;
           });
         });
       },
       "29: "},
  };
}

// The core hears that a rank which was done has failed.
void MishearsDone(World& world) {
  world.mishear = [](coordinator::Event& event) {
    const auto fail = [](GroupReport& report) {
      for (RankExit& exit : report.exits)
        if (exit.kind == ExitKind::kExited && exit.code == 0) exit.code = 1;
    };
    if (auto* reported = std::get_if<coordinator::Reported>(&event)) fail(reported->report);
    if (auto* opened = std::get_if<coordinator::SessionOpened>(&event))
      for (GroupReport& report : opened->hello.groups) fail(report);
  };
}

// Members of a generation are told to stop as soon as one with newcomers is proposed.
void StopsBeforeNewcomers(World& world) {
  using namespace coordinator;  // NOLINT
  struct Member {
    SessionId session;
    Generation generation;
  };
  auto running = std::make_shared<std::map<JobId, Member>>();
  Tamper(world, [running](Effects& e) {
    ChangeActions<SendOrder>(e, [&](SendOrder& a) {
      if (a.order.run) (*running)[a.order.job] = {a.session, a.order.run->generation};
    });
    std::vector<Action> early;
    ChangeRows<GenerationRow>(e, [&](GenerationRow& r) {
      auto member = running->find(r.job);
      if (!r.elective || r.phase != GenerationPhase::kProposed || member == running->end()) return;
      SendOrder order;
      order.session = member->second.session;
      order.order.job = r.job;
      order.order.stop =
          Stop{member->second.generation, std::chrono::seconds(2), StopReason::kElective};
      early.push_back(order);
    });
    e.actions.insert(e.actions.end(), early.begin(), early.end());
  });
}

// What the world knows better than the coordinator: one bug for each number.
std::vector<Bug> UntrueBugs() {
  using namespace coordinator;  // NOLINT
  return {
      {"a charge is forgotten",
       [](World& w) {
         Tamper(w, [](Effects& e) {
           ChangeRows<JobStateRow>(e, [](JobStateRow& r) { r.ends.charged = 0; });
         });
       },
       "35: "},
      {"an own fault is not charged",
       [](World& w) {
         Tamper(w, [](Effects& e) {
           ChangeRows<GenerationRow>(e, [](GenerationRow& r) { r.charged = false; });
         });
       },
       "35: generation"},
      {"a silent node is called dead",
       [](World& w) {
         Tamper(w, [](Effects& e) {
           ChangeRows<NodeRow>(e, [](NodeRow& r) {
             if (r.lost && r.lost_how == "silent") r.lost_how = "connection refused";
           });
         });
       },
       "45: "},
      {"a rank that is done counts as failed", MishearsDone, "46: "},
      {"survivors change their ranks",
       [](World& w) {
         Tamper(w, [](Effects& e) {
           ChangeRows<GenerationRow>(e, [](GenerationRow& r) {
             if (r.generation.value() % 2 == 0 && r.members.size() > 1)
               std::swap(r.members[0], r.members[1]);
           });
         });
       },
       "47: "},
      {"a cause that was none", MishearsDone, "48: "},
      {"a free survivor is left out",
       [](World& w) {
         Tamper(w, [](Effects& e) {
           ChangeRows<GenerationRow>(e, [](GenerationRow& r) {
             if (r.generation.value() > 1 && r.members.size() > 1) r.members.pop_back();
           });
         });
       },
       "50: "},
      {"a growth stops who runs before its newcomers are ready", StopsBeforeNewcomers, "51: "},
      {"a rank that was started counts as kept",
       [](World& w) {
         Tamper(w, [](Effects& e) {
           ChangeRows<JobEventRow>(e, [](JobEventRow& r) {
             if (auto* running = std::get_if<GenerationRunning>(&r.event.body)) ++running->kept;
           });
         });
       },
       "52: "},
  };
}

bool Catches(const ChaosOptions& options, const std::string& caught_by) {
  for (std::uint64_t seed = 1; seed <= 1'000; ++seed)
    for (const std::string& violation : sim::RunChaos(seed, options).violations)
      if (violation.rfind(caught_by, 0) == 0) return true;
  return false;
}

void ExpectCaught(const Bug& bug) {
  ChaosOptions options;
  options.rest_every = 2;
  options.plant = bug.plant;
  EXPECT_TRUE(Catches(options, bug.caught_by)) << "not caught in 1,000 lives: " << bug.name;
}

TEST(PlantedBugs, InRowsAreCaught) {
  for (const Bug& bug : RowBugs()) ExpectCaught(bug);
}
TEST(PlantedBugs, InActionsAreCaught) {
  for (const Bug& bug : ActionBugs()) ExpectCaught(bug);
}
TEST(PlantedBugs, OfMembersAreCaught) {
  for (const Bug& bug : MemberBugs()) ExpectCaught(bug);
}
TEST(PlantedBugs, InCommitsAndReadsAreCaught) {
  for (const Bug& bug : CommitAndReadBugs()) ExpectCaught(bug);
}
TEST(PlantedBugs, OfTruthAreCaught) {
  for (const Bug& bug : UntrueBugs()) ExpectCaught(bug);
}
TEST(PlantedBugs, AShortLeaseIsCaught) {
  ChaosOptions options;
  options.config.leases.lease = std::chrono::milliseconds(1500);
  options.plant = [](World& world) { world.checker.lease = std::chrono::seconds(5); };
  EXPECT_TRUE(Catches(options, "32: "));
}
TEST(PlantedBugs, AShortHoldIsCaught) {
  ChaosOptions options;
  options.config.holds.unreachable = std::chrono::seconds(0);
  options.plant = [](World& world) { world.checker.unreachable_hold = std::chrono::minutes(5); };
  EXPECT_TRUE(Catches(options, "42: "));
}
TEST(PlantedBugs, AMissingBrakeIsCaught) {
  ChaosOptions options;
  options.config.brake.nodes = 100;
  EXPECT_TRUE(Catches(options, "37: "));
}
// Too rare a life to be drawn: so many failures of one job, a crash in between.
TEST(PlantedBugs, AForgottenWindowIsCaught) {
  using std::chrono::seconds;
  World world;
  Tamper(world, [](Effects& e) {
    ChangeRows<coordinator::JobStateRow>(
        e, [](coordinator::JobStateRow& r) { r.ends.charges.clear(); });
  });
  world.Add("a");
  world.RunFor(seconds(1));
  JobSpec spec = sim::SpecOf("job", 1, 1, 1);
  spec.restart_window = seconds(1000);
  world.Submit(spec, "key");
  for (int i = 0; i < 3; ++i) {
    world.RunFor(seconds(10));
    world.node("a").ExitRank(JobId("job-1"), 0, 1);
    world.RunFor(seconds(10));
    world.CrashCoordinator();
    world.StartCoordinator();
  }
  EXPECT_THAT(world.checker.violations, ::testing::Contains(::testing::StartsWith("35: ")));
}
// Two failures that are told at once, a while apart: where no coordinator was there to stop anyone.
TEST(PlantedBugs, AConsequenceThatIsCalledTheCauseIsCaught) {
  using std::chrono::seconds;
  World world;
  Tamper(world, [](Effects& e) {
    ChangeRows<coordinator::GenerationRow>(e, [](coordinator::GenerationRow& r) {
      auto* failed = r.ended ? std::get_if<WorkerFailed>(&*r.ended) : nullptr;
      if (failed != nullptr && !r.consequences.empty()) failed->cause = r.consequences.back();
    });
  });
  world.Add("a");
  world.Add("b");
  world.RunFor(seconds(1));
  world.Submit(sim::SpecOf("job", 2, 2, 3), "key");
  world.RunFor(seconds(5));
  world.CrashCoordinator();
  world.node("a").ExitRank(JobId("job-1"), 0, 1);
  world.RunFor(seconds(2));
  world.node("b").ExitRank(JobId("job-1"), 0, 2);
  world.RunFor(seconds(2));
  world.StartCoordinator();
  world.RunFor(seconds(90));
  EXPECT_THAT(world.checker.violations, ::testing::Contains(::testing::StartsWith("49: ")));
}
TEST(PlantedBugs, AForgottenPreemptionIsCaught) {
  ChaosOptions options;
  options.plant = [](World& world) {
    Tamper(world, [](Effects& e) {
      ChangeRows<coordinator::JobStateRow>(
          e, [](coordinator::JobStateRow& r) { r.ends.preemptions = 0; });
    });
  };
  EXPECT_TRUE(Catches(options, "44: "));
}
TEST(PlantedBugs, AShortBackOffIsCaught) {
  ChaosOptions options;
  options.config.retries.backoff_first = std::chrono::milliseconds(1);
  options.plant = [](World& world) { world.checker.first_backoff = std::chrono::seconds(1); };
  EXPECT_TRUE(Catches(options, "36: "));
}

}  // namespace
}  // namespace regroup
