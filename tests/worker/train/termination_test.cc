#include "worker/train/termination.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <thread>

namespace regroup::worker {
namespace {

// Runs `body` in a process of its own, sends it SIGTERM once it has written a byte, and returns how
// it ended.
int StatusAfterSigterm(const std::function<void(Termination&, int ready)>& body) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    Termination termination;
    body(termination, ends[1]);
    _exit(7);
  }
  char byte = 0;
  EXPECT_EQ(read(ends[0], &byte, 1), 1);
  kill(pid, SIGTERM);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  close(ends[0]);
  close(ends[1]);
  return status;
}

void Tell(int fd) { (void)!write(fd, "x", 1); }

[[noreturn]] void WaitForEver() {
  for (;;) pause();
}

bool DiedOfSigterm(int status) { return WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM; }

TEST(TerminationTest, TheSignalEndsTheProcessAsTheSignal) {
  EXPECT_TRUE(DiedOfSigterm(StatusAfterSigterm([](Termination&, int ready) {
    Tell(ready);
    WaitForEver();
  })));
}

TEST(TerminationTest, ASaveIsBroughtToItsEndFirst) {
  int saved[2];
  ASSERT_EQ(pipe(saved), 0);
  const int status = StatusAfterSigterm([&](Termination& termination, int ready) {
    termination.BeginSaving();
    Tell(ready);
    sigset_t pending;
    // The thread that takes the signal has it as soon as it is no longer pending for the process.
    do {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      sigpending(&pending);
    } while (sigismember(&pending, SIGTERM) == 1);
    Tell(saved[1]);
    termination.EndSaving();
    WaitForEver();
  });
  EXPECT_TRUE(DiedOfSigterm(status));
  char byte = 0;
  EXPECT_EQ(read(saved[0], &byte, 1), 1);
  close(saved[0]);
  close(saved[1]);
}

TEST(TerminationTest, AfterASaveTheSignalEndsTheProcessAtOnce) {
  EXPECT_TRUE(DiedOfSigterm(StatusAfterSigterm([](Termination& termination, int ready) {
    termination.BeginSaving();
    termination.EndSaving();
    Tell(ready);
    WaitForEver();
  })));
}

TEST(TerminationTest, WithoutASignalNothingHappens) {
  const pid_t pid = fork();
  if (pid == 0) {
    { Termination termination; }
    _exit(7);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

}  // namespace
}  // namespace regroup::worker
