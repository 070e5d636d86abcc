// What compares each step with the policy is itself tested: by an offer that is forgotten.

#include "launcher/coordinator/core/withheld.h"

#include <gtest/gtest.h>

#include "launcher/coordinator/core/links.h"
#include "launcher/coordinator/core/news.h"
#include "launcher/coordinator/core/slots.h"
#include "launcher/coordinator/core/step.h"

namespace regroup::coordinator {
namespace {

// A queued job of one node has waited for it, and now the node is there.
class Withheld : public ::testing::Test {
 protected:
  Withheld() : state_(Config{}, Epoch(1), Instant{}), step_(state_, Instant{}, WallTime{}) {
    JobSpecRow spec;
    spec.job = JobId("job-1");
    spec.sequence = 1;
    step_.Put(spec);
    JobStateRow queued;
    queued.job = spec.job;
    step_.Put(queued);
    NodeRow row;
    row.node = NodeId("n");
    row.name = "n";
    row.slots = 1;
    step_.Put(row);
    SetLink(step_, state_.nodes.at(row.node), Attached{SessionId(1), Instant{}});
    CountFreeSlots(step_);
    state_.agenda.dirty.clear();
  }
  Job& job() { return state_.jobs.at(JobId("job-1")); }

  State state_;
  Step step_;
};

TEST_F(Withheld, AForgottenOfferIsCaught) {
  SetWait(step_, job(), BelowMinimum{0, 1, Duration{}, {}}, std::nullopt);
  state_.placement.TakeOffers();
  EXPECT_DEATH(CheckNothingIsWithheld(state_), "CHECK failed");
}

TEST_F(Withheld, AWrongReasonIsCaught) {
  state_.nodes.at(NodeId("n")).leaving = Leaving{};
  SetWait(step_, job(), BehindJob{JobId("job-2")}, std::nullopt);
  EXPECT_DEATH(CheckNothingIsWithheld(state_), "CHECK failed");
  SetWait(step_, job(), BelowMinimum{0, 1, Duration{}, {}}, std::nullopt);
  CheckNothingIsWithheld(state_);
}

TEST_F(Withheld, WhoWaitsForSomethingElseIsNotMeant) {
  SetWait(step_, job(), LastCall{1, Duration{}}, std::nullopt);
  CheckNothingIsWithheld(state_);
  OfferCapacity(step_);  // Told to look, it is no longer meant either.
  EXPECT_TRUE(state_.agenda.dirty.contains(1));
}

}  // namespace
}  // namespace regroup::coordinator
