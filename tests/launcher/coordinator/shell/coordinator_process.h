#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace regroup::testing {

// A coordinator (or any program) as a child process; killed and reaped at the end.
class CoordinatorProcess {
 public:
  CoordinatorProcess() = default;
  ~CoordinatorProcess() { Kill(); }
  CoordinatorProcess(const CoordinatorProcess&) = delete;
  CoordinatorProcess& operator=(const CoordinatorProcess&) = delete;

  // In its own session; standard output and error go to `log_path`, appended. REQUIRES: nothing of
  // it runs.
  void Start(const std::vector<std::string>& command, const std::string& log_path);
  void Kill();  // SIGKILL and reap.
  void Signal(int signal);
  int Wait();                                    // Its exit status; 128 + n after signal n.
  bool WaitFor(int limit_ms, int* exit_status);  // False: it still runs.
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

// A TCP port of loopback that nobody has now.
std::uint16_t FreePort();

}  // namespace regroup::testing
