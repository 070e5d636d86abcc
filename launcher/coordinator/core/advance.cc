#include "launcher/coordinator/core/advance.h"

#include <cstdint>

#include "launcher/coordinator/core/budget.h"
#include "launcher/coordinator/core/formed.h"
#include "launcher/coordinator/core/gather.h"
#include "launcher/coordinator/core/job.h"
#include "launcher/coordinator/core/proposal.h"
#include "launcher/coordinator/core/rows.h"
#include "launcher/coordinator/core/slots.h"
#include "launcher/coordinator/core/step.h"
#include "launcher/coordinator/core/verdict.h"

namespace regroup::coordinator {
namespace {

// Above this no further transition is taken in this step: each writes one large row at most.
constexpr std::size_t kBytesBeforeTransition = 250u << 10;
constexpr int kMaxTransitions = 8;  // Of one job in one step; the rest follows in the next Tick.

bool AdvanceOnce(Step& step, Job& job) {
  if (job.state.phase == JobPhase::kEnded) return false;
  // A verdict may fail the job, so that it comes before whatever the job would do next.
  if (CloseVerdicts(step, job)) return true;
  if (job.state.phase == JobPhase::kEnding) return FinishEnding(step, job);
  if (job.state.phase == JobPhase::kPreempted) return false;
  if (FormedOf(job)) {
    if (AdvanceFormed(step, job)) return true;
  } else if (!ProposedOf(job)) {
    return Gather(step, job);
  }
  return ProposedOf(job) ? AdvanceProposal(step, job) : false;
}

}  // namespace

void Advance(Step& step, Job& job) {
  step.Disarm(job);
  int transitions = 0;
  // A job with much to do gives way to the others and goes on in the next step, with
  // what is durable by then.
  while (AdvanceOnce(step, job)) {
    if (++transitions < kMaxTransitions && step.bytes() < kBytesBeforeTransition) continue;
    step.LookAt(job);
    break;
  }
  if (job.nodes.claims_dirty) UpdateClaims(step, job);
  DropOldCharges(step, job);
}

}  // namespace regroup::coordinator
