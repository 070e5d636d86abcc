#include "common/io/spawn.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include "common/io/files.h"
#include "common/io/proc.h"
#include "tests/common/io/temp_directory.h"

namespace regroup::io {
namespace {

// What the parent ignores or holds back is none of the child's.
TEST(SpawnDetached, IsInASessionOfItsOwnWithDefaultDispositionsAndAnEmptyMask) {
  const TempDirectory scratch;
  UniqueFd out(::open((scratch / "status").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  sigset_t some, before;
  ::sigemptyset(&some);
  ::sigaddset(&some, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &some, &before);
  const auto handler = ::signal(SIGUSR1, SIG_IGN);
  const absl::StatusOr<pid_t> pid =
      SpawnDetached("/bin/cat", {"/proc/self/status", "/proc/self/stat"}, out.get());
  ::signal(SIGUSR1, handler);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  ASSERT_TRUE(pid.ok()) << pid.status();
  ASSERT_EQ(::waitpid(*pid, nullptr, 0), *pid);
  const std::string status = *ReadFile(scratch / "status", 1 << 16);
  const auto has = [&](const std::string& text) { return status.find(text) != status.npos; };
  EXPECT_TRUE(has("SigBlk:\t0000000000000000\n")) << status;
  const std::size_t ignored = status.find("SigIgn:\t");
  ASSERT_NE(ignored, status.npos);
  const auto mask = std::stoull(status.substr(ignored + 8), nullptr, 16);
  EXPECT_EQ(mask & 0x7fffffff, 0u);  // 32 and 33 are glibc's own.
  // State, parent, process group, session.
  const std::string own = std::to_string(*pid);
  EXPECT_TRUE(has("(cat) R " + std::to_string(::getpid()) + " " + own + " " + own + " ")) << status;
}

}  // namespace
}  // namespace regroup::io
