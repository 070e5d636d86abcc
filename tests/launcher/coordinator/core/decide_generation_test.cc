// PROTOCOL §2, "Gather": who may form a generation, and why not yet.

#include "launcher/coordinator/core/decide_generation.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace regroup::coordinator {
namespace {

using namespace std::chrono_literals;  // NOLINT
constexpr Instant kNow{1000s};

struct Wanted {
  std::string form;    // Members, or empty.
  std::size_t reason;  // Index of the WaitReason.
  std::optional<Duration> until;
};
template <class Reason>
Wanted Waits(std::optional<Duration> until = std::nullopt) {
  return {"", WaitReason(Reason{}).index(), until};
}
Wanted Forms(const std::string& members) { return {members, 99, std::nullopt}; }

Candidate Ready(const std::string& name, bool previous = true) {
  return {NodeId(name), name, Readiness::kReady, Instant{}, previous, false};
}
Candidate With(const std::string& name, int workers) {
  Candidate candidate = Ready(name);
  candidate.workers = workers;
  return candidate;
}
Candidate Not(const std::string& name, Readiness readiness, Duration until, bool previous = true) {
  return {NodeId(name), name, readiness, kNow + until, previous, false};
}

struct GatherCase {
  const char* what;
  GenerationPolicy policy;
  std::vector<Candidate> candidates;
  Wanted wanted;
};

GenerationPolicy Policy(int min, int max, int unit = 1) {
  GenerationPolicy policy;
  policy.min = min;
  policy.max = max;
  policy.unit = unit;
  return policy;
}

std::vector<GatherCase> Table() {
  GenerationPolicy backing_off = Policy(1, 2), last_call = Policy(1, 3), hidden = Policy(1, 2),
                   spent = Policy(1, 2);
  backing_off.not_before = kNow + 2s;
  last_call.last_call_until = kNow + 300ms;
  hidden.unreachable_until = kNow + 100s;
  spent.verdict_open = {"c"};
  GenerationPolicy called = last_call;
  called.last_call_until = kNow;
  return {
      {"all there", Policy(2, 2), {Ready("a"), Ready("b")}, Forms("ab")},
      {"below the minimum", Policy(3, 4), {Ready("a"), Ready("b")}, Waits<BelowMinimum>()},
      {"surplus nodes stay spare, members first",
       Policy(2, 2),
       {Ready("a", false), Ready("b"), Ready("c")},
       Forms("bc")},
      {"a multiple of the unit",
       Policy(2, 6, 2),
       {Ready("a"), Ready("b"), Ready("c")},
       Forms("ab")},
      {"no multiple of the unit is enough",
       Policy(3, 6, 2),
       {Ready("a"), Ready("b"), Ready("c")},
       Waits<BelowMinimum>()},
      {"a survivor still stops",
       Policy(1, 3),
       {Ready("a"), Not("b", Readiness::kStopping, 1s)},
       Waits<SlotsStopping>(1s)},
      {"its stop deadline has passed",
       Policy(1, 3),
       {Ready("a"), Not("b", Readiness::kStopping, 0s)},
       Forms("a")},
      {"a member that blinked",
       Policy(1, 3),
       {Ready("a"), Not("b", Readiness::kAwaited, 2s)},
       Waits<AwaitReattach>(2s)},
      {"it is not needed",
       Policy(1, 1),
       {Ready("a"), Not("b", Readiness::kAwaited, 2s)},
       Forms("a")},
      {"it was awaited long enough",
       Policy(1, 3),
       {Ready("a"), Not("b", Readiness::kAwaited, 0s)},
       Forms("a")},
      {"one refused lately, enough without it",
       Policy(1, 3),
       {Ready("a"), Not("b", Readiness::kBackingOff, 4s)},
       Forms("a")},
      {"one refused lately, and is needed",
       Policy(2, 3),
       {Ready("a"), Not("b", Readiness::kBackingOff, 4s)},
       Waits<BackingOff>(4s)},
      {"the job's back-off", backing_off, {Ready("a"), Ready("b")}, Waits<BackingOff>(2s)},
      {"last call still open", last_call, {Ready("a"), Ready("b")}, Waits<LastCall>(300ms)},
      {"last call over", called, {Ready("a"), Ready("b")}, Forms("ab")},
      {"nobody more can come", last_call, {Ready("a"), Ready("b"), Ready("c")}, Forms("abc")},
      {"the old generation may train on unseen",
       hidden,
       {Ready("a")},
       Waits<UnreachableHold>(100s)},
      {"the budget waits for a verdict", spent, {Ready("a")}, Waits<BudgetVerdictOpen>()},
      {"too few comes before the verdict", spent, {}, Waits<BelowMinimum>()},
  };
}

std::vector<GatherCase> OfRanks() {
  return {
      {"as many ranks as one job may have",
       Policy(1, 2),
       {With("a", 65'000), With("b", 536)},
       Forms("ab")},
      {"one more leaves a node out", Policy(1, 2), {With("a", 65'000), With("b", 537)}, Forms("a")},
      {"one more is too many",
       Policy(2, 2),
       {With("a", 65'000), With("b", 537)},
       Waits<BelowMinimum>()},
  };
}

void Check(const std::vector<GatherCase>& rows) {
  for (const GatherCase& row : rows) {
    const GenerationDecision decision = DecideGeneration(row.policy, row.candidates, kNow);
    if (const Form* form = std::get_if<Form>(&decision)) {
      std::string members;
      for (const NodeId& id : form->members) members += id.value();
      EXPECT_EQ(members, row.wanted.form) << row.what;
      continue;
    }
    const Wait& wait = std::get<Wait>(decision);
    EXPECT_EQ(row.wanted.form, "") << row.what;
    EXPECT_EQ(wait.reason.index(), row.wanted.reason) << row.what;
    EXPECT_EQ(wait.until.has_value(), row.wanted.until.has_value()) << row.what;
    if (wait.until && row.wanted.until) {
      EXPECT_EQ(*wait.until - kNow, *row.wanted.until) << row.what;
    }
  }
}

TEST(DecideGeneration, Table) { Check(Table()); }
TEST(DecideGeneration, AJobHasOnlySoManyRanks) { Check(OfRanks()); }

TEST(UsableSize, Table) {
  struct Row {
    int nodes, min, max, unit, size;
  };
  for (const Row& row : std::vector<Row>{{3, 2, 4, 1, 3},
                                         {5, 2, 4, 1, 4},
                                         {1, 2, 4, 1, 0},
                                         {5, 2, 4, 2, 4},
                                         {3, 2, 4, 2, 2},
                                         {3, 3, 5, 4, 0},
                                         {0, 1, 1, 1, 0}})
    EXPECT_EQ(UsableSize(row.nodes, row.min, row.max, row.unit), row.size)
        << row.nodes << " " << row.min << ":" << row.max;
}

}  // namespace
}  // namespace regroup::coordinator
