// What launch commands are told when their job is over, said to a core as its shell would.

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/launcher/coordinator/core/told_core.h"
#include "tests/sim/world.h"

namespace regroup {
namespace {

using namespace std::chrono_literals;
using coordinator::SendResult;

// Two launch commands of one job, which obey and never leave by themselves.
class LaunchResults : public testing::Test, protected ToldCore {
 protected:
  explicit LaunchResults(int nodes = 2) : ToldCore(ConfigOf()), members_(nodes) {
    Step(coordinator::Tick{});
    for (int node = 1; node <= nodes; ++node) Open(node, /*launched=*/true);
    for (int node = 1; node <= nodes; ++node) Launch(node);
  }
  void Launch(int node) {
    LaunchRequest request;
    request.key = absl::StrCat("key", node);
    request.rdzv_id = "train";
    request.standalone = members_ == 1;
    request.spec = sim::SpecOf("train", members_, members_);
    request.spec.origin = JobOrigin::kLaunched;
    Step(coordinator::LaunchAsked{SessionId(node), request});
  }
  void SayRead(int node) { Step(coordinator::LeaveAsked{SessionId(node), 0, false}); }

  std::map<SessionId, std::vector<std::shared_ptr<const JobView>>> results_;
  bool ended_ = false;

 private:
  const int members_;

  static coordinator::Config ConfigOf() {
    coordinator::Config config;
    config.ad_hoc.on = true;
    config.ad_hoc.exit_delay = 1s;
    config.holds.unreachable = 10s;
    config.limits.ended_jobs = 1;
    return config;
  }
  void Take(const coordinator::Action& action) override {
    if (const auto* result = std::get_if<SendResult>(&action))
      results_[result->session].push_back(result->job);
    if (std::holds_alternative<coordinator::Quit>(action)) ended_ = true;
    if (const auto* send = std::get_if<coordinator::SendOrder>(&action)) Obey(*send);
  }
};

TEST_F(LaunchResults, each_is_told_once_and_all_are_told_the_same) {
  Pass(900ms);
  ASSERT_EQ(results_.size(), 2u);
  ASSERT_EQ(results_[SessionId(1)].size(), 1u);
  EXPECT_EQ(results_[SessionId(1)][0]->state, "succeeded");
  EXPECT_EQ(results_[SessionId(1)], results_[SessionId(2)]) << "made once for all of them";
  Launch(1);  // As after a reconnect; on the same session nothing is new.
  EXPECT_EQ(results_[SessionId(1)].size(), 1u);
  Open(1, /*launched=*/true);
  Launch(1);
  EXPECT_EQ(results_[SessionId(1)].size(), 2u) << "on a new session it may not know";
}

// One that hangs with its result in hand would keep the coordinator that it has for itself.
TEST_F(LaunchResults, who_was_told_is_not_waited_for) {
  SayRead(1);
  Pass(4s);
  ASSERT_EQ(results_[SessionId(2)].size(), 1u);
  EXPECT_FALSE(ended_) << "what was heard may have been on its way before";
  Pass(2s);
  EXPECT_TRUE(ended_);
}

// While the disk keeps the result nobody can read it, though it is heard all the time.
TEST_F(LaunchResults, who_was_told_late_by_a_slow_disk_has_time_to_read_it) {
  SayRead(1);
  Pass(4s);
  WaitForDisk(4s);
  Pass(4s);
  EXPECT_FALSE(ended_);
  Pass(2s);
  EXPECT_TRUE(ended_);
}

// It dialled again when its job was long over. What it is told has a way to go.
TEST_F(LaunchResults, who_is_told_late_has_time_to_read_it) {
  Pass(900ms);
  Open(1, /*launched=*/true);
  SayRead(2);
  Pass(3s);
  EXPECT_FALSE(ended_) << "it has not been told on this session";
  Launch(1);
  SayRead(1);
  Pass(900ms);
  EXPECT_FALSE(ended_);
  Pass(200ms);
  EXPECT_TRUE(ended_);
}

// A session that breaks with the result on its way has not delivered it, as far as is known.
TEST_F(LaunchResults, whose_session_breaks_before_it_has_read_is_waited_for) {
  SayRead(1);
  Step(coordinator::SessionBroken{SessionId(2)});
  CutOff(2);
  Pass(5s);
  EXPECT_FALSE(ended_);
  Open(2, /*launched=*/true);
  Launch(2);
  ASSERT_EQ(results_[SessionId(2)].size(), 2u);
  SayRead(2);
  Step(coordinator::SessionBroken{SessionId(2)});
  CutOff(2);
  Pass(1100ms);
  EXPECT_TRUE(ended_) << "it has read it";
}

// Nobody else can tell it, and its ranks may run on until it is told.
TEST_F(LaunchResults, who_is_cut_off_is_waited_for) {
  CutOff(2);
  Pass(9s);
  EXPECT_FALSE(ended_) << "what was sent to it has not arrived";
  Open(2, /*launched=*/true);
  Launch(2);
  EXPECT_EQ(results_[SessionId(2)].size(), 2u);
  for (const int node : {1, 2}) SayRead(node);
  Pass(900ms);
  EXPECT_FALSE(ended_);
  Pass(200ms);
  EXPECT_TRUE(ended_);
}

TEST_F(LaunchResults, who_is_cut_off_is_not_waited_for_without_end) {
  CutOff(2);
  Pass(9500ms);
  EXPECT_FALSE(ended_);
  Pass(1s);
  EXPECT_TRUE(ended_) << "the hold has passed since the job's end";
}

// Others that are over take the place of a job, not of one whose end somebody may ask for.
TEST_F(LaunchResults, the_job_of_who_is_cut_off_is_kept_among_many) {
  CutOff(2);
  for (int other = 1; other <= 3; ++other) {
    Submit(sim::SpecOf(absl::StrCat("other", other), 9, 9));
    Step(coordinator::CancelAsked{NextCall(), "last", "me", false, 0, absl::StrCat("c", other)});
    Pass(other == 1 ? 100ms : 3s);  // Its session is open yet; it is lost.
  }
  Open(2, /*launched=*/true);
  Launch(2);
  ASSERT_EQ(results_[SessionId(2)].size(), 2u);
  EXPECT_EQ(results_[SessionId(2)][1]->state, "succeeded");
}

struct StandaloneResult : LaunchResults {
  StandaloneResult() : LaunchResults(/*nodes=*/1) {}
};

// It starts its coordinator again by itself, where it is still there.
TEST_F(StandaloneResult, who_has_no_endpoint_is_not_waited_for) {
  CutOff(1);
  Pass(4s);
  EXPECT_FALSE(ended_);
  Pass(3s);
  EXPECT_TRUE(ended_) << "its lease is over";
}

}  // namespace
}  // namespace regroup
