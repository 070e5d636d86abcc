// Random lives of a cluster with crashes between any commit and any action; every life is one seed.
// A failure prints the seed and what was done. The checker is itself tested: by bugs that are
// planted between the core and its journal.
//
// REGROUP_LIVES=N: N lives per shard (there are twenty) in place of the default.
// REGROUP_SEED=N: only that life, with what the core said.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "tests/sim/chaos.h"

namespace regroup {
namespace {

using coordinator::Effects;
using sim::ChaosOptions;
using sim::ChaosResult;
using sim::World;

#ifdef __SANITIZE_ADDRESS__
constexpr std::uint64_t kLives = 1'000;  // Per shard: twenty make 2 · 10^4.
#else
constexpr std::uint64_t kLives = 5'000;  // 10^5.
#endif
constexpr int kShards = 20;

std::string Story(std::uint64_t seed, const ChaosResult& result) {
  std::string story = "seed " + std::to_string(seed) + "\n";
  for (const std::string& line : result.history) story += "  " + line + "\n";
  for (const std::string& line : result.violations) story += "violated: " + line + "\n";
  return story;
}

std::uint64_t LivesPerShard() {
  const char* asked = std::getenv("REGROUP_LIVES");
  return asked ? std::strtoull(asked, nullptr, 10) : kLives;
}

class Random : public ::testing::TestWithParam<int> {};

TEST_P(Random, LivesKeepTheInvariants) {
  int generations = 0;
  const std::uint64_t lives = LivesPerShard();
  for (std::uint64_t i = 0; i < lives; ++i) {
    const std::uint64_t seed = 1 + static_cast<std::uint64_t>(GetParam()) * 1'000'000 + i;
    const ChaosResult result = sim::RunChaos(seed);
    generations += result.generations;
    ASSERT_THAT(result.violations, ::testing::IsEmpty()) << Story(seed, result);
  }
  EXPECT_GT(generations, static_cast<int>(lives) / 2);  // The lives are worth living.
}
INSTANTIATE_TEST_SUITE_P(Shard, Random, ::testing::Range(0, kShards));

// One life with what the core said; for the eye where REGROUP_SEED names it.
TEST(RandomLife, OneSeed) {
  const char* asked = std::getenv("REGROUP_SEED");
  const std::uint64_t seed = asked ? std::strtoull(asked, nullptr, 10) : 1;
  ChaosOptions options;
  options.tracing = true;
  const ChaosResult result = sim::RunChaos(seed, options);
  if (asked) std::fputs(Story(seed, result).c_str(), stderr);
  EXPECT_THAT(result.history, ::testing::Contains(::testing::HasSubstr("node attached")));
  EXPECT_THAT(result.violations, ::testing::IsEmpty()) << Story(seed, result);
}

// Equal seeds, equal lives.
TEST(RandomLife, IsDeterministic) {
  for (std::uint64_t seed = 8; seed < 200; seed += 8) {
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
};
void Tamper(World& world, std::function<void(Effects&)> tamper) {
  world.tamper = std::move(tamper);
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
           ChangeRows<JobStateRow>(e, [](JobStateRow& r) { r.restarts_charged *= 2; });
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

void ExpectCaught(const Bug& bug) {
  ChaosOptions options;
  options.rest_every = 2;
  options.plant = bug.plant;
  for (std::uint64_t seed = 1; seed <= 1'000; ++seed)
    if (!sim::RunChaos(seed, options).violations.empty()) return;
  ADD_FAILURE() << "not caught in 1,000 lives: " << bug.name;
}

TEST(PlantedBugs, InRowsAreCaught) {
  for (const Bug& bug : RowBugs()) ExpectCaught(bug);
}
TEST(PlantedBugs, InActionsAreCaught) {
  for (const Bug& bug : ActionBugs()) ExpectCaught(bug);
}
TEST(PlantedBugs, AShortLeaseIsCaught) {
  ChaosOptions options;
  options.config.lease = std::chrono::milliseconds(1500);
  options.plant = [](World& world) { world.checker.lease = std::chrono::seconds(5); };
  bool caught = false;
  for (std::uint64_t seed = 1; seed <= 1'000 && !caught; ++seed)
    caught = !sim::RunChaos(seed, options).violations.empty();
  EXPECT_TRUE(caught);
}

}  // namespace
}  // namespace regroup
