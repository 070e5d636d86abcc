#include "launcher/coordinator/core/accounts.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <variant>

#include "common/base/limits.h"
#include "launcher/coordinator/core/accounting.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/state.h"

namespace regroup::coordinator {
namespace {

void Add(TimeAccount& sum, const TimeAccount& more) {
  // Idle is left out: it is what the job's age leaves over (WholeAccountOf).
  for (const auto part : {&TimeAccount::productive, &TimeAccount::checkpoint, &TimeAccount::detect,
                          &TimeAccount::regroup, &TimeAccount::restore, &TimeAccount::recompute})
    sum.*part = SaturatingSum(sum.*part, more.*part);
}

void Add(HeldTime& sum, const HeldTime& more) {
  sum.held = SumOf(sum.held, more.held);
  sum.lost = SumOf(sum.lost, more.lost);
}

// Whether the generation that ran before `next` ended by anything but our own wish to resize it.
bool AfterFailure(const Job& job, Generation next) {
  for (auto it = job.generations.rbegin(); it != job.generations.rend(); ++it) {
    const GenerationRow& row = it->second;
    if (row.generation >= next || row.voided || row.phase == GenerationPhase::kProposed) continue;
    // While its verdict is open the causes that are known outweigh the row, which has
    // the first of them.
    const Causes* causes = CausesOf(job, row.generation);
    if (causes != nullptr && causes->worst)
      return !std::holds_alternative<Resized>(causes->worst->reason);
    return !row.ended || !std::holds_alternative<Resized>(*row.ended);
  }
  return false;
}

// What no row has yet: the change that is under way, and the run of the formed generation.
OpenAccount OpenAccountOf(const Job& job, Instant now) {
  OpenAccount open = OutageAccount(job, now);
  if (const GenerationRow* formed = FormedOf(job)) {
    const OpenAccount run = RunAccount(job, *formed, job.soft.at(formed->generation), now);
    Add(open.time, run.time);
    Add(open.held, run.held);
  }
  return open;
}

}  // namespace

Duration AgeOf(const Job& job, const Moment& at) {
  if (job.state.phase == JobPhase::kEnded && job.state.ended_at) return job.state.ran_for;
  // The wall clock may have been set; it counts only for what an earlier life of this
  // coordinator saw begin.
  if (job.times.created) return at.now - *job.times.created;
  return std::max<Duration>(at.wall - job.spec.created_at, Duration{});
}

OpenAccount RunAccount(const Job& job, const GenerationRow& row, const GenerationSoft& soft,
                       Instant now) {
  OpenAccount open;
  const Course& course = *CourseOf(soft);
  if (!course.running_at) return open;
  Instant until = now;
  // From its cause on a generation that ends belongs to the outage (OutageAccount), so that no
  // moment is booked twice.
  if (std::holds_alternative<Ending>(soft.state) && job.outage.detected_at)
    until = std::min(now, job.outage.event_at.value_or(*job.outage.detected_at));
  // What follows the end of its last rank is no work, however late that is heard.
  if (course.done.at && course.done.ranks >= WorldOf(row)) until = std::min(until, *course.done.at);
  RunFacts run;
  run.lasted = until - *course.running_at;
  run.start =
      course.progress.init.value_or(Duration{}) + course.progress.restore.value_or(Duration{});
  run.checkpoint = course.progress.checkpoint.value_or(Duration{});
  run.first_step = course.progress.first_step;
  run.last_step = course.progress.last_step;
  // What workers say they restored counts more than what they were told to: the
  // newest commit may have been unreadable.
  run.resumed_from = course.progress.restored_step.value_or(row.resume_step);
  run.best_step = job.state.reached.step;
  open.time = SplitRun(run);
  open.held =
      HeldByRun(open.time, static_cast<int>(row.members.size()), AfterFailure(job, row.generation));
  return open;
}

OpenAccount OutageAccount(const Job& job, Instant now) {
  OpenAccount open;
  const Outage& outage = job.outage;
  if (!outage.detected_at) return open;
  if (outage.event_at) open.time.detect = *outage.detected_at - *outage.event_at;
  open.time.regroup = std::max(now - *outage.detected_at, Duration{});
  const NodeTime since =
      NodeTimeOf(now - outage.held_until, static_cast<int>(job.nodes.claimed.size()));
  const GenerationRow* formed = FormedOf(job);
  // Whether it is lost depends on why the generation before the next one ended; while one is
  // ending, that is itself.
  const Generation next =
      formed && !IsEnding(job) ? formed->generation : job.state.last_number.Next();
  open.held = HeldByOutage(open.time.detect, outage.nodes, SumOf(outage.held, since),
                           AfterFailure(job, next));
  return open;
}

void Book(const OpenAccount& open, JobStateRow& state) {
  Add(state.account, open.time);
  Add(state.held, open.held);
}

void CountHeld(const State& state, Job& job) {
  // Called before each change of the claims, so that the time since the last one is booked with the
  // number of nodes that were held then.
  Outage& outage = job.outage;
  if (!outage.detected_at) return;
  outage.held = SumOf(outage.held, NodeTimeOf(state.now - outage.held_until,
                                              static_cast<int>(job.nodes.claimed.size())));
  outage.held_until = state.now;
}

TimeAccount WholeAccountOf(const Job& job, const Moment& at) {
  TimeAccount account = job.state.account;
  Add(account, OpenAccountOf(job, at.now).time);
  Duration told{};
  for (const Duration part : {account.productive, account.checkpoint, account.detect,
                              account.regroup, account.restore, account.recompute})
    told = SaturatingSum(told, part);
  account.idle = std::max(AgeOf(job, at) - told, Duration{});
  return account;
}

std::optional<CostView> CostOf(const Job& job, Instant now) {
  HeldTime held = job.state.held;
  Add(held, OpenAccountOf(job, now).held);
  std::int64_t samples = job.state.reached.samples, tokens = job.state.reached.tokens;
  if (const GenerationRow* formed = FormedOf(job)) {
    // Both are totals over the whole job, so that the newest word replaces what the row has.
    const Progress& progress = CourseOf(job, formed->generation)->progress;
    samples = std::max(samples, progress.samples);
    tokens = std::max(tokens, progress.tokens);
  }
  return coordinator::CostOf(job.spec.spec.price_per_node_hour, held, samples, tokens);
}

}  // namespace regroup::coordinator
