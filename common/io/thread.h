#pragma once

// Threads on a host that may have none to give: a limit of processes (ulimit -u, pids.max of a
// cgroup) counts threads, and those of all workers; or there is no memory for one.

#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"

namespace regroup::io {

absl::Status NoThread();

// What a program can do without, or try again later. RESOURCE_EXHAUSTED when there is none; then
// `run` is gone, and was not called.
template <class Run>
absl::StatusOr<std::thread> StartThread(Run run) {
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error&) {
    return NoThread();
  }
}

// Once, first of all: a thread that a program cannot be without and does not get ends it with a
// clear error and this status.
void EndClearlyWithoutThreads(int status);

}  // namespace regroup::io
