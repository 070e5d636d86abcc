// What a host tells its neighbours of one that has gone, at each stage of a call.

#include "worker/comm/host_watch.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "common/base/check.h"
#include "worker/comm/in_process_communicator.h"

namespace regroup::worker {
namespace {

using std::chrono::milliseconds;

// Longer than a look of the thread.
constexpr milliseconds kSilence(100);

// The second of three hosts, which has two ranks; the test is its neighbours.
class HostWatchTest : public testing::Test {
 protected:
  HostWatchTest() {
    auto ranks = MakeInProcessHost(/*first_rank=*/1, /*count=*/2, std::chrono::seconds(60));
    local_ = std::move(ranks[0]);
    beside_ = std::move(ranks[1]);
    auto [mine, first] = Pair();
    auto [mine_too, last] = Pair();
    first_host_ = std::move(first);
    last_host_ = std::move(last);
    watch_ = std::make_unique<HostWatch>(*local_, Hosts{{0, 1}, {1, 2}, {3, 1}}, /*own=*/1,
                                         std::move(mine), std::move(mine_too));
  }

  static std::pair<io::UniqueFd, io::UniqueFd> Pair() {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    return {io::UniqueFd(ends[0]), io::UniqueFd(ends[1])};
  }

  static std::optional<ControlMessage> Heard(const io::UniqueFd& host, milliseconds within) {
    pollfd item{host.get(), POLLIN, 0};
    if (poll(&item, 1, static_cast<int>(within.count())) <= 0) return std::nullopt;
    ControlMessage message;
    CHECK(recv(host.get(), &message, sizeof message, MSG_WAITALL) == sizeof message);
    return message;
  }
  std::optional<ControlMessage> FirstHostHears(milliseconds within) {
    return Heard(first_host_, within);
  }
  void ExpectFirstHostHearsThatLeft(std::uint64_t rank, std::uint64_t after) {
    const auto heard = FirstHostHears(milliseconds(5000));
    ASSERT_TRUE(heard.has_value());
    EXPECT_EQ(heard->kind, kLeft);
    EXPECT_EQ(heard->value, rank);
    EXPECT_EQ(heard->call, after);
  }
  static void Say(const io::UniqueFd& host, const ControlMessage& message) {
    CHECK(send(host.get(), &message, sizeof message, 0) == sizeof message);
  }

  std::unique_ptr<SharedMemoryCommunicator> local_, beside_;
  io::UniqueFd first_host_, last_host_;
  std::unique_ptr<HostWatch> watch_;  // Last: it uses the others.
};

TEST_F(HostWatchTest, WhoEndsOnceACallHasMovedHasLeftAfterIt) {
  watch_->BeginCall(7);
  watch_->BeginFlow(7);
  watch_->EndFlow(7);
  last_host_.reset();
  EXPECT_FALSE(FirstHostHears(kSilence).has_value());
  EXPECT_EQ(local_->FailureWord(), 0u);
  watch_->EndCall(7);
  ExpectFirstHostHearsThatLeft(/*rank=*/3, /*after=*/7);
}

TEST_F(HostWatchTest, WhoEndsBeforeACallHasMovedHasNotTakenPartInIt) {
  watch_->BeginCall(7);
  last_host_.reset();
  ExpectFirstHostHearsThatLeft(/*rank=*/3, /*after=*/6);
  EXPECT_NE(watch_->FailureWord(), 0u);
}

// Some of this host's ranks may have the result already.
TEST_F(HostWatchTest, WhatOthersTellOnceACallHasMovedIsPublishedWhenItIsOver) {
  watch_->BeginCall(7);
  watch_->BeginFlow(7);
  watch_->EndFlow(7);
  Say(last_host_, {.kind = kFailed, .value = PackFailure(kAbort, 3, 3)});
  ASSERT_TRUE(FirstHostHears(milliseconds(5000)).has_value());
  std::this_thread::sleep_for(kSilence);
  EXPECT_EQ(local_->FailureWord(), 0u);
  watch_->EndCall(7);
  EXPECT_EQ(local_->FailureWord(), PackFailure(kAbort, 3, 3));
}

TEST_F(HostWatchTest, InACallOnEachHostNothingOfOthersIsLookedAt) {
  watch_->BeginCallOnHost(7);
  last_host_.reset();
  EXPECT_FALSE(FirstHostHears(kSilence).has_value());
  EXPECT_EQ(local_->FailureWord(), 0u);
}

// Also while this host's first rank is in no call.
TEST_F(HostWatchTest, ARankBesideThatEndsBetweenCallsHasLeft) {
  watch_->BeginCall(7);
  watch_->EndCall(7);
  beside_.reset();
  ExpectFirstHostHearsThatLeft(/*rank=*/2, /*after=*/7);
}

TEST_F(HostWatchTest, AFailureThatAnotherHostTellsIsPassedOnOnce) {
  Say(last_host_, {.kind = kFailed, .value = PackFailure(kAbort, 3, 3)});
  const auto heard = FirstHostHears(milliseconds(5000));
  ASSERT_TRUE(heard.has_value());
  EXPECT_EQ(heard->kind, kFailed);
  EXPECT_EQ(heard->value, PackFailure(kAbort, 3, 3));
  while (local_->FailureWord() == 0) std::this_thread::yield();
  watch_->Tell();
  EXPECT_FALSE(FirstHostHears(kSilence).has_value());
}

TEST_F(HostWatchTest, TheFirstFailureThatOthersTellStays) {
  watch_->BeginCall(7);
  watch_->BeginFlow(7);
  const std::uint64_t first = PackFailure(kLate, 3, 0), second = PackFailure(kGone, 3, 3);
  for (const std::uint64_t word : {first, second}) {
    Say(last_host_, {.kind = kFailed, .value = word});
    ASSERT_TRUE(FirstHostHears(milliseconds(5000)).has_value());
  }
  while (watch_->FailureWord() == 0) std::this_thread::yield();
  EXPECT_EQ(watch_->FailureWord(), first);
}

// It may have been on its way since an earlier call was late.
TEST_F(HostWatchTest, AnAnswerToAnEarlierQuestionIsNone) {
  int missing = 0;
  std::thread asking([&] { missing = watch_->AwaitMissing(/*call=*/0); });
  const auto asked = Heard(last_host_, milliseconds(5000));
  Say(last_host_, {.kind = kAnswer, .rank = -1, .value = asked->value, .call = 2});
  Say(last_host_, {.kind = kAnswer, .rank = 3, .value = asked->value - 1, .call = 2});
  const auto passed_on = [&] { return Heard(first_host_, milliseconds(5000)); };
  while (passed_on()->value != asked->value - 1) continue;
  Say(first_host_, {.kind = kAnswer, .rank = -1, .value = asked->value, .call = 0});
  asking.join();
  EXPECT_EQ(missing, -1);
}

}  // namespace
}  // namespace regroup::worker
