#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/base/time.h"
#include "common/io/fd.h"

namespace regroup::io {

absl::StatusOr<BootId> ReadBootId();
// CLOCK_BOOTTIME: since boot, sleep included; the same for all processes of this boot.
// CLOCK_MONOTONIC's twin is for coordinators. WallNow is for display.
Instant BootNow();
Instant MonotonicNow();
WallTime WallNow();

// One process as /proc/<pid>/stat shows it. A pid with its start time names one process of this
// boot for ever.
struct ProcessStat {
  pid_t pid = 0, parent = 0, group = 0, session = 0;
  char state = '?';               // 'Z' and 'X' are dead.
  std::uint64_t start_ticks = 0;  // Field 22.
  bool dead() const { return state == 'Z' || state == 'X' || state == 'x'; }
};
std::optional<ProcessStat> ReadProcessStat(pid_t pid);
// Alive (a zombie is not) and the same process.
bool IsAlive(pid_t pid, std::uint64_t start_ticks);

// Its memory, what it shares with others included; 0: there is no such process.
std::uint64_t ResidentBytes(pid_t pid);

// All processes; the living or dead descendants of `root` (without itself), parents before
// children.
std::vector<ProcessStat> ListProcesses();
std::vector<ProcessStat> DescendantsOf(pid_t root);

// NOT_FOUND when there is no such process.
absl::StatusOr<UniqueFd> OpenPidfd(pid_t pid);
absl::Status SignalPidfd(int pidfd, int signal);
// Signals exactly that process: NOT_FOUND when it is gone or the pid belongs to another one by now.
absl::Status SignalProcess(pid_t pid, std::uint64_t start_ticks, int signal);

}  // namespace regroup::io
