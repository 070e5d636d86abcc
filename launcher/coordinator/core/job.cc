#include "launcher/coordinator/core/job.h"

namespace regroup::coordinator {

const GenerationRow* FormedOf(const Job& job) {
  // At most one is formed, and it is always the newest that was: what formed before
  // it is over (checker 4).
  auto found = job.generations.find(job.state.last_formed);
  const bool formed =
      found != job.generations.end() && found->second.phase == GenerationPhase::kFormed;
  return formed ? &found->second : nullptr;
}

const GenerationRow* ProposedOf(const Job& job) {
  auto found = job.generations.find(job.state.last_number);
  const bool proposed =
      found != job.generations.end() && found->second.phase == GenerationPhase::kProposed;
  return proposed ? &found->second : nullptr;
}

std::vector<Duration> ChargeAges(const Job& job, Instant now) {
  std::vector<Duration> ages;
  for (Instant at : job.charge_times) ages.push_back(now - at);
  return ages;
}

}  // namespace regroup::coordinator
