#include "launcher/coordinator/core/decide_generation.h"

#include <algorithm>
#include <cstdint>

#include "launcher/coordinator/core/config.h"
#include "launcher/coordinator/core/ranks.h"

namespace regroup::coordinator {
namespace {

constexpr std::size_t kMaxNamesInReason = 16;

// Candidates that wait for the same thing, as the reason will name them.
struct Group {
  std::vector<std::string> names;
  std::string why;  // Of the first.
  int count = 0;
  Instant first = Instant::max(), last{};
  void Add(const Candidate& candidate) {
    if (count == 0) why = candidate.why;
    if (names.size() < kMaxNamesInReason) names.push_back(candidate.name);
    ++count;
    first = std::min(first, candidate.until);
    last = std::max(last, candidate.until);
  }
};

// How many of those that are preferred can be in one generation. Nobody knew when the job was asked
// for: launch commands bring as many ranks as they were told to, nodes have their GPUs.
int CountThatFit(std::span<const Candidate> candidates) {
  std::int64_t ranks = 0;
  for (const Candidate& candidate : candidates) ranks += candidate.workers;
  if (ranks <= kMaxRanksPerJob) return static_cast<int>(candidates.size());
  std::vector<Candidate> ready(candidates.begin(), candidates.end());
  std::sort(ready.begin(), ready.end(), Preferred);
  while (ranks > kMaxRanksPerJob) {
    ranks -= ready.back().workers;
    ready.pop_back();
  }
  return static_cast<int>(ready.size());
}

Form FormOf(std::vector<Candidate> ready, int size) {
  std::sort(ready.begin(), ready.end(), Preferred);
  Form form;
  for (int i = 0; i < size; ++i) form.members.push_back(ready[i].node);
  std::sort(form.members.begin(), form.members.end());
  return form;
}

}  // namespace

bool Preferred(const Candidate& a, const Candidate& b) {
  if (a.previous != b.previous) return a.previous;
  if (a.former != b.former) return a.former;
  if (a.free_slots != b.free_slots) return a.free_slots > b.free_slots;
  if (a.name != b.name) return NaturalLess(a.name, b.name);
  return a.node < b.node;
}

int UsableSize(int nodes, int min, int max, int unit) {
  int size = std::min(nodes, max);
  size -= size % unit;
  return size >= min && size > 0 ? size : 0;
}

int SmallestSize(int min, int unit) { return (min + unit - 1) / unit * unit; }

GenerationDecision DecideGeneration(const GenerationPolicy& policy,
                                    std::span<const Candidate> candidates, Instant now) {
  std::vector<Candidate> ready;
  Group stopping, awaited, backing_off;
  for (const Candidate& candidate : candidates) {
    const bool waits = candidate.until > now;
    if (candidate.readiness == Readiness::kReady) ready.push_back(candidate);
    if (candidate.readiness == Readiness::kStopping && waits) stopping.Add(candidate);
    if (candidate.readiness == Readiness::kAwaited && waits) awaited.Add(candidate);
    if (candidate.readiness == Readiness::kBackingOff) backing_off.Add(candidate);
  }
  const int have = CountThatFit(ready);
  const int size = UsableSize(have, policy.min, policy.max, policy.unit);
  // The order of these tests is the order of PROTOCOL §2, "Gather": slots that are
  // about to be free, then who may come back, then whether there are enough, and only
  // then what holds the job itself.
  const int best = UsableSize(policy.max, policy.min, policy.max, policy.unit);

  if (stopping.count > 0)
    return Wait{SlotsStopping{stopping.names, stopping.last - now}, stopping.first};
  // A full generation needs none of those that are away.
  if (awaited.count > 0 && size < best)
    return Wait{AwaitReattach{awaited.names, awaited.last - now}, awaited.first};
  if (size == 0) {
    if (UsableSize(have + backing_off.count, policy.min, policy.max, policy.unit) > 0)
      return Wait{BackingOff{policy.failures, backing_off.first - now, backing_off.names.front(),
                             backing_off.why},
                  backing_off.first};
    std::optional<Instant> again;
    if (backing_off.count > 0) again = backing_off.first;
    const int need = SmallestSize(policy.min, policy.unit);
    return Wait{BelowMinimum{have, need, Duration{}, policy.missing}, again};
  }
  if (policy.unreachable_until > now)
    return Wait{UnreachableHold{policy.unreachable, policy.unreachable_until - now},
                policy.unreachable_until};
  if (!policy.verdict_open.empty())
    return Wait{BudgetVerdictOpen{policy.verdict_open}, std::nullopt};
  if (policy.not_before > now)
    return Wait{BackingOff{policy.failures, policy.not_before - now, "", ""}, policy.not_before};
  // The last call is for nodes that nobody knows yet; when the job is full there is
  // nothing to wait for.
  if (policy.last_call_until && *policy.last_call_until > now && size < best)
    return Wait{LastCall{have, *policy.last_call_until - now}, policy.last_call_until};
  return FormOf(std::move(ready), size);
}

}  // namespace regroup::coordinator
