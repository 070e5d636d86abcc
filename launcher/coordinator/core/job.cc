#include "launcher/coordinator/core/job.h"

#include <algorithm>

#include "launcher/coordinator/core/config.h"

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

int MaxNodesNow(const Job& job) {
  const int max = std::min(job.spec.spec.max_nodes, kMaxNodesPerJob);
  auto previous = job.generations.find(job.state.last_formed);
  if (job.spec.spec.scale_up != ScaleUp::kNever || previous == job.generations.end()) return max;
  std::size_t largest = previous->second.members.size();  // A loss may be made good, no more.
  for (const auto& entry : job.generations)
    if (!entry.second.voided) largest = std::max(largest, entry.second.members.size());
  return std::min(max, static_cast<int>(largest));
}

std::optional<Demand> DemandOf(const Job& job) {
  if (job.spec.job.empty() || job.state.job.empty() || job.launched()) return std::nullopt;
  const JobSpec& spec = job.spec.spec;
  const GenerationRow* formed = FormedOf(job);
  Demand demand{job.id(),         job.spec.sequence, Stage::kQueued,        spec.min_nodes,
                MaxNodesNow(job), spec.unit,         spec.workers_per_node, 0};
  switch (job.state.phase) {
    case JobPhase::kQueued: return demand;
    case JobPhase::kForming:
    case JobPhase::kRegrouping: demand.stage = Stage::kBetween; return demand;
    case JobPhase::kRunning:
      // Within a step its generation may be over before its own row says so.
      demand.stage = formed == nullptr ? Stage::kBetween : Stage::kGrowing;
      if (formed != nullptr) demand.has = static_cast<int>(formed->members.size());
      return demand.has < demand.max ? std::optional(demand) : std::nullopt;
    case JobPhase::kGathering:  // Of a launched job.
    case JobPhase::kPreempted:
    case JobPhase::kEnding:
    case JobPhase::kEnded: return std::nullopt;
  }
  return std::nullopt;
}

std::vector<Duration> ChargeAges(const Job& job, Instant now) {
  std::vector<Duration> ages;
  for (Instant at : job.charge_times) ages.push_back(now - at);
  return ages;
}

}  // namespace regroup::coordinator
