#include "common/io/proc.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/io/files.h"

namespace regroup::io {
namespace {

Instant ClockNow(clockid_t clock) {
  timespec now{};
  CHECK(::clock_gettime(clock, &now) == 0);
  return Instant(std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec));
}

template <class T>
bool ParseNumber(std::string_view text, T& out) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

absl::StatusOr<BootId> ReadBootId() {
  ASSIGN_OR_RETURN(std::string text, ReadFile("/proc/sys/kernel/random/boot_id", 128));
  return BootId(std::string(absl::StripTrailingAsciiWhitespace(text)));
}

Instant BootNow() { return ClockNow(CLOCK_BOOTTIME); }
Instant MonotonicNow() { return ClockNow(CLOCK_MONOTONIC); }
WallTime WallNow() {
  return std::chrono::time_point_cast<std::chrono::microseconds>(std::chrono::system_clock::now());
}

std::uint64_t ResidentBytes(pid_t pid) {
  const absl::StatusOr<std::string> text = ReadFile(absl::StrCat("/proc/", pid, "/statm"), 256);
  if (!text.ok()) return 0;
  const std::vector<std::string> words = absl::StrSplit(*text, ' ');
  std::uint64_t pages = 0;
  if (words.size() < 2 || !absl::SimpleAtoi(words[1], &pages)) return 0;
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

std::optional<ProcessStat> ReadProcessStat(pid_t pid) {
  // Own reading, on the stack: a walk reads thousands of these.
  char path[32], buffer[1024];
  std::snprintf(path, sizeof(path), "/proc/%d/stat", pid);
  UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC));
  if (!fd) return std::nullopt;
  ssize_t size = ::read(fd.get(), buffer, sizeof(buffer));
  if (size <= 0) return std::nullopt;
  std::string_view text(buffer, static_cast<std::size_t>(size));
  std::size_t name_end = text.rfind(')');  // The name may hold anything, also spaces and brackets.
  if (name_end == std::string_view::npos || name_end + 2 >= text.size()) return std::nullopt;
  std::array<std::string_view, 20> fields;  // From the third on, "state".
  text.remove_prefix(name_end + 2);
  for (std::string_view& field : fields) {
    std::size_t space = text.find(' ');
    if (space == std::string_view::npos) return std::nullopt;
    field = text.substr(0, space);
    text.remove_prefix(space + 1);
  }
  ProcessStat stat;
  stat.pid = pid;
  if (fields[0].size() != 1 || !ParseNumber(fields[1], stat.parent) ||
      !ParseNumber(fields[2], stat.group) || !ParseNumber(fields[3], stat.session) ||
      !ParseNumber(fields[19], stat.start_ticks)) {
    return std::nullopt;
  }
  stat.state = fields[0][0];
  return stat;
}

bool IsAlive(pid_t pid, std::uint64_t start_ticks) {
  std::optional<ProcessStat> stat = ReadProcessStat(pid);
  return stat && !stat->dead() && stat->start_ticks == start_ticks;
}

std::vector<ProcessStat> ListProcesses() {
  std::vector<ProcessStat> processes;
  DIR* listing = ::opendir("/proc");
  if (listing == nullptr) return processes;
  while (dirent* entry = ::readdir(listing)) {
    pid_t pid = 0;
    if (!ParseNumber(std::string_view(entry->d_name), pid)) continue;
    if (std::optional<ProcessStat> stat = ReadProcessStat(pid)) processes.push_back(*stat);
  }
  ::closedir(listing);
  return processes;
}

std::vector<ProcessStat> DescendantsOf(pid_t root) {
  std::multimap<pid_t, ProcessStat> children;
  for (const ProcessStat& stat : ListProcesses()) children.emplace(stat.parent, stat);
  std::vector<ProcessStat> found;
  auto add_children = [&](pid_t parent) {
    auto [begin, end] = children.equal_range(parent);
    for (auto it = begin; it != end; ++it) found.push_back(it->second);
    children.erase(begin,
                   end);  // A listing is no snapshot: pids used twice must not make a circle.
  };
  add_children(root);
  for (std::size_t i = 0; i < found.size(); ++i) add_children(found[i].pid);
  return found;
}

absl::StatusOr<UniqueFd> OpenPidfd(pid_t pid) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (fd) return fd;
  if (errno == ESRCH) return absl::NotFoundError(absl::StrCat("no process ", pid));
  return ErrnoStatus(errno, absl::StrCat("pidfd_open ", pid));
}

absl::Status SignalPidfd(int pidfd, int signal) {
  if (::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) == 0) return absl::OkStatus();
  if (errno == ESRCH) return absl::NotFoundError("the process has ended");
  return ErrnoStatus(errno, absl::StrCat("pidfd_send_signal ", signal));
}

absl::Status SignalProcess(pid_t pid, std::uint64_t start_ticks, int signal) {
  // Opened first, compared then: what the descriptor names can not change any more.
  ASSIGN_OR_RETURN(UniqueFd pidfd, OpenPidfd(pid));
  std::optional<ProcessStat> stat = ReadProcessStat(pid);
  if (!stat || stat->start_ticks != start_ticks) {
    return absl::NotFoundError(absl::StrCat("pid ", pid, " belongs to another process now"));
  }
  return SignalPidfd(pidfd.get(), signal);
}

}  // namespace regroup::io
