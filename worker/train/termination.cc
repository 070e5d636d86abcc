#include "worker/train/termination.h"

#include <pthread.h>
#include <signal.h>

#include <cstdio>

#include "common/base/check.h"

namespace regroup::worker {
namespace {

sigset_t OnlySigterm() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  return set;
}

[[noreturn]] void DieOfSigterm() {
  std::fflush(stdout);
  const sigset_t set = OnlySigterm();
  signal(SIGTERM, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  raise(SIGTERM);
  CHECK(false);
}

}  // namespace

Termination::Termination() {
  const sigset_t set = OnlySigterm();
  CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
  thread_ = std::thread([this] { Run(); });
}

Termination::~Termination() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  // Wakes sigwait in that thread alone, which has it blocked; is not taken for one from outside.
  pthread_kill(thread_.native_handle(), SIGTERM);  // NOLINT(bugprone-bad-signal-to-kill-thread)
  thread_.join();
}

void Termination::Run() {
  const sigset_t set = OnlySigterm();
  for (;;) {
    int number = 0;
    CHECK(sigwait(&set, &number) == 0);
    const std::scoped_lock lock(mutex_);
    if (stop_) return;
    if (!saving_) End();
    received_ = true;
  }
}

void Termination::End() {
  if (last_) last_();
  DieOfSigterm();
}

void Termination::BeginSaving() {
  const std::scoped_lock lock(mutex_);
  saving_ = true;
}

void Termination::EndSaving() {
  const std::scoped_lock lock(mutex_);
  saving_ = false;
  if (received_) End();
}

}  // namespace regroup::worker
