// Orders that are on their way to a node, said to a core as its shell would.

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>

#include "tests/launcher/coordinator/core/told_core.h"
#include "tests/sim/world.h"

namespace regroup {
namespace {

using namespace std::chrono_literals;

// One node that answers when the test does.
class Orders : public testing::Test, protected ToldCore {
 protected:
  Orders() {
    Step(coordinator::Tick{});
    Open(1);
    Pass(2s);
  }
  void Submit(const std::string& name) {
    ToldCore::Submit(sim::SpecOf(name, 1, 1, /*max_restarts=*/3));
  }
  void Cancel(const std::string& job) {
    Step(coordinator::CancelAsked{
        .call = NextCall(), .job = job, .by = "me", .now = true, .key = "cancel"});
  }
  void Report(const std::string& job, int generation, Phase phase,
              std::optional<int> exit_code = std::nullopt) {
    ToldCore::Report(SessionId(1), JobId(job), Generation(generation), phase, exit_code);
  }
  // The generation that the node was last asked to prepare; 0: it was not.
  int Asked(const std::string& job) const {
    const auto found = prepares_.find(job);
    return found == prepares_.end() ? 0 : static_cast<int>(found->second.value());
  }

 private:
  void Take(const coordinator::Action& action) override {
    const auto* send = std::get_if<coordinator::SendOrder>(&action);
    if (send != nullptr && send->order.prepare)
      prepares_[send->order.job.value()] = send->order.prepare->generation;
  }

  std::map<std::string, Generation> prepares_;
};

// A Prepare may take the slots until the node has said what became of it; what it says of the
// generation before is no answer, nor is a cancel of the job.
TEST_F(Orders, a_report_of_an_older_generation_answers_no_prepare) {
  Submit("first");
  ASSERT_EQ(Asked("first-1"), 1);
  Report("first-1", 1, Phase::kPrepared);
  Report("first-1", 1, Phase::kFree, /*exit_code=*/1);
  Pass(5s);
  ASSERT_EQ(Asked("first-1"), 2);
  Submit("second");
  Cancel("first-1");
  Report("first-1", 1, Phase::kFree, /*exit_code=*/1);
  Pass(100ms);
  EXPECT_EQ(Asked("second-2"), 0);
  Report("first-1", 2, Phase::kFree);
  Pass(100ms);
  EXPECT_EQ(Asked("second-2"), 1);
}

}  // namespace
}  // namespace regroup
