#include "tests/launcher/coordinator/shell/coordinator_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "common/base/check.h"
#include "common/io/address.h"
#include "common/io/proc.h"

namespace regroup::testing {

void CoordinatorProcess::Start(const std::vector<std::string>& command,
                               const std::string& log_path) {
  CHECK(pid_ < 0);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, log_path.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  const int error =
      posix_spawn(&pid_, command.front().c_str(), &files, &attributes, arguments.data(), environ);
  if (error != 0) std::fprintf(stderr, "%s: %s\n", command.front().c_str(), std::strerror(error));
  CHECK(error == 0);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
}

void CoordinatorProcess::Signal(int signal) {
  if (pid_ > 0) kill(pid_, signal);
}

void CoordinatorProcess::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  Wait();
}

int CoordinatorProcess::Wait() {
  CHECK(pid_ > 0);
  int status = 0;
  CHECK(waitpid(pid_, &status, 0) == pid_);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool CoordinatorProcess::WaitFor(int limit_ms, int* exit_status) {
  CHECK(pid_ > 0);
  absl::StatusOr<io::UniqueFd> pidfd = io::OpenPidfd(pid_);
  CHECK(pidfd.ok());
  pollfd waiting{pidfd->get(), POLLIN, 0};
  if (poll(&waiting, 1, limit_ms) != 1) return false;
  *exit_status = Wait();
  return true;
}

std::uint16_t FreePort() {
  absl::StatusOr<io::UniqueFd> fd = io::ListenTcp({"127.0.0.1", 0});
  CHECK(fd.ok());
  return io::LocalAddressOf(fd->get())->port;
}

}  // namespace regroup::testing
