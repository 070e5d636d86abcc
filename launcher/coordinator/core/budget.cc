#include "launcher/coordinator/core/budget.h"

#include <chrono>
#include <cstdint>
#include <vector>

#include "launcher/coordinator/core/failure_policy.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {
namespace {

// Equal on every machine, unlike std::hash.
std::uint64_t SeedOf(const JobId& job, Generation generation) {
  std::uint64_t hash = 14695981039346656037ull;  // FNV-1a.
  for (char c : job.value()) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash ^ generation.value();
}

// From rows alone, so that a coordinator that has just started sees the same row of
// ends as the one before it.
int SameNodeUpTo(const Job& job, const GenerationRow& row) {
  std::vector<PastEnd> ends;
  for (const auto& [generation, past] : job.generations)
    if (generation <= row.generation && past.ended) ends.push_back({&*past.ended, past.progressed});
  return SameNodeEnds(ends);
}

}  // namespace

Streak StreakWith(const Job& job, const GenerationRow& row) {
  Streak streak =
      AfterEnd({job.state.ends.own, job.state.ends.free}, row.progressed, KindOf(*row.ended));
  streak.same_node = SameNodeUpTo(job, row);
  return streak;
}

Duration BackOffAfter(const State& state, const Job& job, const GenerationRow& row,
                      const Streak& streak) {
  return RestartDelay(streak, KindOf(*row.ended), state.config, SeedOf(job.id(), row.generation));
}

void RecoverBackOff(Step& step, Job& job) {
  auto last = job.generations.find(job.state.last_formed);
  // While the verdict was open the row of ends was not counted yet; what stands in the generation's
  // row is then counted here.
  if (last == job.generations.end() || !last->second.ended) return;
  Streak streak{job.state.ends.own, job.state.ends.free, SameNodeUpTo(job, last->second)};
  if (last->second.verdict_open) streak = StreakWith(job, last->second);
  job.gather.not_before = step.now() + BackOffAfter(step.state, job, last->second, streak);
}

void DropOldCharges(Step& step, Job& job) {
  const bool ended = job.state.phase == JobPhase::kEnded;
  if (ended || job.charge_times.empty() || !job.spec.spec.restart_window) return;
  const Duration window = *job.spec.spec.restart_window;
  const auto left =
      std::erase_if(job.charge_times, [&](Instant at) { return step.now() - at > window; });
  // UpdateState writes the ages anew; nothing else of the row changes.
  if (left > 0) step.UpdateState(job, [](JobStateRow&) {});
  if (!job.charge_times.empty())
    step.Wake(job, job.charge_times.front() + window + std::chrono::milliseconds(1));
}

int Charges(const State& state, const Job& job) {
  return ChargesInWindow(job.state.ends.charged, ChargeAges(job, state.now),
                         job.spec.spec.restart_window);
}

int OpenCharges(const Job& job) {
  int open = 0;
  for (const auto& entry : job.soft) {
    const Over* over = std::get_if<Over>(&entry.second.state);
    if (over && ChargesBudget(over->causes.Reason())) ++open;
  }
  return open;
}

int Preemptions(const Job& job) {
  int preemptions = job.state.ends.preemptions;
  for (const auto& entry : job.soft) {
    const Over* over = std::get_if<Over>(&entry.second.state);
    if (over && std::holds_alternative<Preempted>(over->causes.Reason())) ++preemptions;
  }
  return preemptions;
}

bool OpenPreemptionsFail(const Job& job) {
  const std::optional<int> most = job.spec.spec.max_preemptions;
  return most && Preemptions(job) > *most;
}

}  // namespace regroup::coordinator
