// What bounds the calls of the command line, and what makes room again.

#include "launcher/coordinator/shell/calls.h"

#include <gmock/gmock.h>

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "common/base/user_error.h"
#include "tests/launcher/coordinator/shell/daemon_fixture.h"

namespace regroup::coordinator {
namespace {

using ::testing::HasSubstr;

class CallsTest : public DaemonFixture {};

// Waits for a job's end that another word than its id names, on one connection.
class Waiters {
 public:
  explicit Waiters(Client client) : client_(std::move(client)) {}
  ~Waiters() {
    Leave();
    EXPECT_TRUE(Eventually([this] { return Open() == 0; }));
  }
  void Add(int count) {
    for (int i = 0; i < count; ++i) {
      Wait& wait = *waits_.emplace_back(std::make_unique<Wait>());
      wait.context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(5));
      wait.request.set_what(pb::ReadRequest::WHAT_JOBS);
      wait.request.set_selector("train");
      wait.request.set_wait_for_end(true);
      const std::scoped_lock lock(mutex_);
      ++open_;
      client_.stub().async()->Read(&wait.context, &wait.request, &wait.reply,
                                   [this](const grpc::Status& status) { Ended(status); });
    }
  }
  void Leave() {
    for (const auto& wait : waits_) wait->context.TryCancel();
  }
  int Open() {
    const std::scoped_lock lock(mutex_);
    return open_;
  }
  // Of the last one that was refused.
  std::string Refusal() {
    const std::scoped_lock lock(mutex_);
    return refusal_;
  }

 private:
  struct Wait {
    grpc::ClientContext context;
    pb::ReadRequest request;
    pb::ReadReply reply;
  };
  void Ended(const grpc::Status& status) {
    const std::scoped_lock lock(mutex_);
    --open_;
    if (status.error_code() != grpc::StatusCode::CANCELLED)
      refusal_ = RenderUserError(FromGrpcStatus(status));
  }

  Client client_;
  std::deque<std::unique_ptr<Wait>> waits_;
  std::mutex mutex_;
  int open_ = 0;
  std::string refusal_;
};

TEST_F(CallsTest, WhoLeavesAWaitMakesRoomForAnother) {
  Start();
  ASSERT_TRUE(OverUnix().Submit(SubmittedJob("train", 1, 1), "key").ok());
  const int most = static_cast<int>(kMaxWaitsByWord);
  Waiters first(OverUnix()), second(OverUnix()), third(OverUnix());
  first.Add(most / 2);
  second.Add(most / 2 + 1);
  EXPECT_TRUE(Eventually([&] { return first.Open() + second.Open() == most; }));
  EXPECT_THAT(first.Refusal() + second.Refusal(), HasSubstr("at most 256 may"));
  first.Leave();
  EXPECT_TRUE(Eventually([&] { return first.Open() == 0; }));
  // Whoever asks now may come before the last of them is known to have left.
  EXPECT_TRUE(Eventually([&] {
    if (third.Open() == 0) third.Add(1);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return third.Open() == 1;
  }));
}

}  // namespace
}  // namespace regroup::coordinator
