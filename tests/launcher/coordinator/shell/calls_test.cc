// What bounds the calls of the command line, and what makes room again.

#include "launcher/coordinator/shell/calls.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "common/base/user_error.h"
#include "tests/launcher/coordinator/shell/daemon_fixture.h"

namespace regroup::coordinator {
namespace {

using ::testing::HasSubstr;

class CallsTest : public DaemonFixture {};

// Waits for a job's end, on one connection; `more` bytes of each request are nobody's.
class Waiters {
 public:
  explicit Waiters(Client client, std::string job = "train", std::size_t more = 0)
      : client_(std::move(client)), job_(std::move(job)), more_(more, 'x') {}
  ~Waiters() {
    Leave();
    EXPECT_TRUE(Eventually([this] { return Open() == 0; }));
  }
  void Add(int count) {
    for (int i = 0; i < count; ++i) {
      Wait& wait = *waits_.emplace_back(std::make_unique<Wait>());
      wait.context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(5));
      wait.request.set_what(pb::ReadRequest::WHAT_JOBS);
      wait.request.set_selector(job_);
      if (!more_.empty()) {
        wait.request.GetReflection()
            ->MutableUnknownFields(&wait.request)
            ->AddLengthDelimited(1000, more_);
      }
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
  const std::string job_, more_;
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

// So many waits by id, which no other bound holds, on as many connections as they need: one more is
// refused, and taken once another has left.
TEST_F(CallsTest, SoManyCallsMayBePendingAndSoManyBytesOfTheirRequests) {
  Start();
  const auto job = OverUnix().Submit(SubmittedJob("train", 1, 1), "key");
  ASSERT_TRUE(job.ok());
  constexpr std::size_t kMore = 3900;
  constexpr int kOfConnection = 250;
  for (const auto& [more, count, says] :
       {std::tuple(kMore, static_cast<int>(kMaxPendingRequestBytes / kMore),
                   "at most requests of 16777216 bytes may be pending"),
        {std::size_t{0}, kMaxPendingCalls, "at most 20000 calls may be pending"}}) {
    std::deque<Waiters> waiters;
    const auto refusal = [&] {
      for (Waiters& each : waiters) {
        if (const std::string said = each.Refusal(); !said.empty()) return said;
      }
      return std::string();
    };
    for (int i = 0; i <= count; i += kOfConnection)
      waiters.emplace_back(OverUnix(), job->value(), more)
          .Add(std::min(kOfConnection, count + 1 - i));
    EXPECT_TRUE(Eventually([&] { return refusal() != ""; }));
    EXPECT_THAT(refusal(), HasSubstr(says));
    int open = 0;
    for (Waiters& each : waiters) open += each.Open();
    EXPECT_GT(open, count * 9 / 10);
    waiters.front().Leave();
    Waiters last(OverUnix(), job->value(), more);
    EXPECT_TRUE(Eventually([&] {
      if (last.Open() == 0) last.Add(1);
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      return last.Open() == 1;
    }));
  }
}

}  // namespace
}  // namespace regroup::coordinator
