#include "agent/shell/child_exit.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <csignal>
#include <optional>

#include "common/io/proc.h"

namespace regroup::agent {
namespace {

using namespace std::chrono_literals;
using boost::asio::posix::stream_descriptor;

// A pipe with something to read.
struct Full {
  explicit Full(boost::asio::io_context& loop) : read(loop) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    read.assign(ends[0]);
    write = io::UniqueFd(ends[1]);
    EXPECT_EQ(::write(ends[1], "x", 1), 1);
  }
  stream_descriptor read;
  io::UniqueFd write;
};

class WhenOverTest : public ::testing::Test {
 protected:
  void Start() {
    child_ = ::fork();
    ASSERT_GE(child_, 0);
    if (child_ == 0) {
      for (;;) ::pause();
    }
    auto pidfd = io::OpenPidfd(child_);
    ASSERT_TRUE(pidfd.ok()) << pidfd.status();
    WhenOver(loop_, *std::move(pidfd), child_, [this](std::optional<int> status) {
      ++calls_;
      status_ = status;
    });
  }
  void End() {
    ASSERT_EQ(::kill(child_, SIGKILL), 0);
    const auto limit = std::chrono::steady_clock::now() + 10s;
    while (calls_ == 0 && std::chrono::steady_clock::now() < limit) loop_.run_one_for(50ms);
    EXPECT_EQ(calls_, 1);
  }

  boost::asio::io_context loop_{1};
  pid_t child_ = 0;
  int calls_ = 0;
  std::optional<int> status_;
};

TEST_F(WhenOverTest, TheStatusIsToldOnce) {
  Start();
  End();
  ASSERT_TRUE(status_);
  EXPECT_EQ(WTERMSIG(*status_), SIGKILL);
  EXPECT_EQ(::waitpid(child_, nullptr, WNOHANG), -1) << "it is reaped";
}

// Two events of one turn: the handler of the first closes the other's descriptor, and the wait for
// the child takes its place in the loop, where the second event still is.
TEST_F(WhenOverTest, AnEventOfAClosedDescriptorIsNotTheEnd) {
  Full one(loop_), two(loop_);
  const auto close_other = [this](stream_descriptor& other) {
    if (child_ != 0) return;
    other.close();
    Start();
  };
  one.read.async_wait(stream_descriptor::wait_read, [&](auto error) {
    if (!error) close_other(two.read);
  });
  two.read.async_wait(stream_descriptor::wait_read, [&](auto error) {
    if (!error) close_other(one.read);
  });
  loop_.run_for(100ms);
  EXPECT_EQ(calls_, 0) << "it lives";
  End();
  ASSERT_TRUE(status_);
}

TEST_F(WhenOverTest, WhoWasReapedByAnotherHasNoStatus) {
  Start();
  ASSERT_EQ(::kill(child_, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child_, nullptr, 0), child_);
  const auto limit = std::chrono::steady_clock::now() + 10s;
  while (calls_ == 0 && std::chrono::steady_clock::now() < limit) loop_.run_one_for(50ms);
  EXPECT_EQ(calls_, 1);
  EXPECT_FALSE(status_);
}

}  // namespace
}  // namespace regroup::agent
