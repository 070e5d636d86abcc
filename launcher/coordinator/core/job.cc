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

const Course* CourseOf(const Job& job, Generation generation) {
  auto soft = job.soft.find(generation);
  return soft == job.soft.end() ? nullptr : CourseOf(soft->second);
}

const Causes* CausesOf(const Job& job, Generation generation) {
  if (const Over* over = In<Over>(job, generation)) return &over->causes;
  const Course* course = CourseOf(job, generation);
  return course == nullptr ? nullptr : &course->causes;
}

bool IsEnding(const Job& job) { return In<Ending>(job, job.state.last_formed) != nullptr; }

std::vector<Duration> ChargeAges(const Job& job, Instant now) {
  std::vector<Duration> ages;
  for (Instant at : job.charge_times) ages.push_back(now - at);
  return ages;
}

}  // namespace regroup::coordinator
