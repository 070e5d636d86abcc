// Who may come between two hosts, and what bytes of a peer can do.

#include "worker/comm/host_links.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "common/io/address.h"
#include "tests/worker/comm/in_process_hosts.h"

namespace regroup::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Secret SecretOf(int number) {
  Secret secret;
  secret.fill(std::byte(number));
  return secret;
}

// Two hosts that may meet, at addresses of the loopback network.
class HostLinksTest : public testing::Test {
 protected:
  HostLinksTest() {
    for (const char* ip : {"127.0.0.1", "127.0.0.2"}) {
      auto listener = ListenForHosts(ip);
      CHECK(listener.ok());
      addresses_.push_back(*io::LocalAddressOf(listener->get()));
      listeners_.push_back(*std::move(listener));
    }
  }
  HostMeeting Of(int own, int secret = 1, Duration deadline = seconds(10)) const {
    return {.own = own, .addresses = addresses_, .secret = SecretOf(secret), .deadline = deadline};
  }
  absl::StatusOr<HostLinks> Meet(const HostMeeting& meeting) {
    return MeetNeighbors(meeting, listeners_[static_cast<std::size_t>(meeting.own)]);
  }
  io::UniqueFd Stranger(const std::string& from, const std::string& says) const {
    io::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto source = io::ToSocketAddress({from, 0}), target = io::ToSocketAddress(addresses_[0]);
    CHECK(bind(fd.get(), source->get(), source->size) == 0);
    CHECK(connect(fd.get(), target->get(), target->size) == 0);
    CHECK(send(fd.get(), says.data(), says.size(), MSG_NOSIGNAL) >= 0);
    return fd;
  }

  std::vector<io::UniqueFd> listeners_;
  std::vector<Address> addresses_;
};

TEST_F(HostLinksTest, StrangersHoldNobodyUp) {
  std::vector<io::UniqueFd> strangers;
  for (int i = 0; i < 60; ++i) {  // More than are listened to at once.
    const char* from = i % 3 == 0 ? "127.0.0.9" : "127.0.0.2";
    strangers.push_back(
        Stranger(from, i % 3 == 1 ? "" : std::string(static_cast<std::size_t>(i), 'x')));
  }
  std::thread dials([&] {
    const auto links = Meet(Of(1));
    EXPECT_TRUE(links.ok()) << links.status();
  });
  const auto links = Meet(Of(0));
  ASSERT_TRUE(links.ok()) << links.status();
  EXPECT_GE(links->next.calls.get(), 0);
  EXPECT_GE(links->next.control.get(), 0);
  EXPECT_EQ(links->previous.calls.get(), -1);
  dials.join();
}

TEST_F(HostLinksTest, AnotherSecretIsTurnedAway) {
  std::thread dials([&] {
    const auto links = Meet(Of(1, 2, milliseconds(300)));
    EXPECT_EQ(links.status().code(), absl::StatusCode::kUnavailable) << links.status();
  });
  const auto links = Meet(Of(0, 1, milliseconds(600)));
  EXPECT_EQ(links.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(std::string(links.status().message()).find("127.0.0.2"), std::string::npos)
      << links.status();
  dials.join();
}

TEST_F(HostLinksTest, WhoListensMustKnowTheSecretToo) {
  std::thread impostor([&] {
    pollfd dialled{listeners_[0].get(), POLLIN, 0};  // It does not block.
    ASSERT_EQ(poll(&dialled, 1, 10'000), 1);
    const io::UniqueFd fd(accept(listeners_[0].get(), nullptr, nullptr));
    const std::string answer(40, 'x');
    EXPECT_EQ(send(fd.get(), answer.data(), answer.size(), MSG_NOSIGNAL), 40);
    char byte = 0;
    while (recv(fd.get(), &byte, 1, 0) > 0) continue;
  });
  const auto links = Meet(Of(1));
  EXPECT_EQ(links.status().code(), absl::StatusCode::kPermissionDenied) << links.status();
  impostor.join();
}

// Rank 0 on a host of its own; the test is rank 1, and says what it likes.
class HostileNeighborTest : public HostLinksTest {
 protected:
  void Meet2(Duration deadline) {
    std::thread dials([&] { fake_ = *Meet(Of(1)); });
    auto links = Meet(Of(0));
    dials.join();
    CHECK(links.ok());
    std::thread barrier([&] { AnswerBarrier(); });
    auto local = MakeInProcessHost(0, 1, deadline);
    auto made = MultiHostCommunicator::Create(0, {{0, 1}, {1, 1}}, std::move(local[0]),
                                              *std::move(links), seconds(10), deadline);
    barrier.join();
    CHECK(made.ok());
    rank_ = *std::move(made);
  }
  // What rank 0 says first, as its partner would answer it.
  void AnswerBarrier() {
    CallMessage message;
    std::int64_t value = 0;
    Read(&message, sizeof message);
    Read(&value, sizeof value);
    Say(fake_.previous.calls, &message, sizeof message);
    Say(fake_.previous.calls, &value, sizeof value);
  }
  void Read(void* out, std::size_t size) { CHECK(Wait(fake_.previous.calls.get(), out, size)); }
  static bool Wait(int fd, void* out, std::size_t size) {
    for (std::size_t have = 0; have < size;) {
      const ssize_t got = recv(fd, static_cast<char*>(out) + have, size - have, 0);
      if (got == 0) return false;
      if (got > 0) have += static_cast<std::size_t>(got);
    }
    return true;
  }
  static void Say(const io::UniqueFd& fd, const void* bytes, std::size_t size) {
    for (std::size_t at = 0; at < size;) {
      const ssize_t sent =
          send(fd.get(), static_cast<const char*>(bytes) + at, size - at, MSG_NOSIGNAL);
      CHECK(sent > 0 || errno == EAGAIN);
      if (sent > 0) at += static_cast<std::size_t>(sent);
    }
  }
  void ExpectEnd(const absl::Status& status, absl::StatusCode code, const char* says) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_NE(std::string(status.message()).find(says), std::string::npos) << status;
    EXPECT_TRUE(IsCommunicatorFailure(status));
  }

  HostLinks fake_;
  std::unique_ptr<Communicator> rank_;
};

TEST_F(HostileNeighborTest, GarbageInPlaceOfACallEndsTheGroupAndNamesThePeer) {
  Meet2(seconds(10));
  const std::string garbage(1 << 16, 'x');
  Say(fake_.previous.calls, garbage.data(), garbage.size());
  ExpectEnd(rank_->Barrier(), absl::StatusCode::kUnavailable,
            "rank 0 received bytes from rank 1 that are no message of this group");
}

TEST_F(HostileNeighborTest, GarbageOutsideOfCallsEndsTheGroupAndNamesThePeer) {
  std::vector<ControlMessage> rows(6, {.kind = kLeft, .value = 1, .call = 99});
  rows[0].magic = 1;
  rows[1].kind = 0;
  rows[2].kind = 9;
  rows[3].value = 2;  // No rank.
  rows[4] = {.kind = kFailed, .value = PackFailure(kGone, 0, 700)};
  rows[5] = {.kind = kAnswer, .call = 5};
  for (const ControlMessage& row : rows) {
    Meet2(seconds(10));
    Say(fake_.previous.control, &row, sizeof row);
    while (rank_->Health().ok()) std::this_thread::yield();
    ExpectEnd(rank_->Health(), absl::StatusCode::kUnavailable,
              "rank 0 received bytes from rank 1 that are no message of this group");
    rank_.reset();
  }
}

TEST_F(HostileNeighborTest, HalfACallThenSilenceIsNamedAtTheDeadline) {
  Meet2(milliseconds(100));
  const CallMessage message;
  Say(fake_.previous.calls, &message, sizeof message / 2);
  ExpectEnd(rank_->Barrier(), absl::StatusCode::kDeadlineExceeded, "rank 0 has waited for rank 1");
}

TEST_F(HostileNeighborTest, AConnectionThatIsResetIsNamed) {
  Meet2(seconds(10));
  const linger hard{1, 0};
  setsockopt(fake_.previous.calls.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  fake_.previous.calls.reset();
  ExpectEnd(rank_->Barrier(), absl::StatusCode::kUnavailable, "rank 1 is gone");
}

std::int64_t ResidentKiB() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stoll(line.substr(6));
  }
  return 0;
}

// It asks for ever and reads no answer: what waits for it is bounded.
TEST_F(HostileNeighborTest, APeerThatOnlyAsksMakesNobodyGrow) {
  Meet2(milliseconds(500));
  const std::int64_t before = ResidentKiB();
  const std::vector<ControlMessage> many(64 << 10, {.kind = kAsk, .value = 7, .call = 1});
  for (int i = 0; i < 8; ++i)
    Say(fake_.previous.control, many.data(), many.size() * sizeof(ControlMessage));
  ExpectEnd(rank_->Barrier(), absl::StatusCode::kDeadlineExceeded, "rank 1");
  EXPECT_LT(ResidentKiB() - before, 8 << 10);  // It has sent 16 MiB.
}

}  // namespace
}  // namespace regroup::worker
