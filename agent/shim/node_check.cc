#include "agent/shim/node_check.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "agent/shim/spawn_rank.h"
#include "common/base/status_macros.h"
#include "common/io/files.h"
#include "common/io/proc.h"

namespace regroup::shim {
namespace {

constexpr std::size_t kMaxTailBytes = 4096, kMaxLineBytes = 256;

}  // namespace

absl::StatusOr<NodeCheckProcess> NodeCheckProcess::Start(const Spec& spec, int dev_null_fd,
                                                         int cgroup_fd, int default_oom_score_adj) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) < 0) return io::ErrnoStatus(errno, "make output pipe");
  NodeCheckProcess check;
  check.output_.reset(ends[0]);
  const io::UniqueFd write_end(ends[1]);
  RETURN_IF_ERROR(io::SetNonBlocking(ends[0], true));
  RankPlan plan;
  plan.command = {"/bin/sh", "-c", spec.node_check.command};
  const RankFds fds{.standard_input = dev_null_fd,
                    .standard_output = write_end.get(),
                    .standard_error = write_end.get(),
                    .cgroup = cgroup_fd};
  check.timeout_ = spec.node_check.timeout;
  check.deadline_ = io::BootNow() + check.timeout_;
  ASSIGN_OR_RETURN(SpawnedRank spawned, SpawnRank(spec, plan, fds, default_oom_score_adj));
  check.pid_ = spawned.pid;
  check.in_cgroup_ = spawned.in_cgroup;
  check.exec_status_ = std::move(spawned.exec_status);
  return check;
}

void NodeCheckProcess::ReadOutput() {
  char bytes[4096];
  for (int i = 0; i < 16 && output_; ++i) {  // Others wait for their turn too.
    const ssize_t n = ::read(output_.get(), bytes, sizeof(bytes));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) return output_.reset();
    tail_.append(bytes, static_cast<std::size_t>(n));
    if (tail_.size() > kMaxTailBytes) tail_.erase(0, tail_.size() - kMaxTailBytes);
  }
}

std::string NodeCheckProcess::WithLastLine(const std::string& what) {
  ReadOutput();
  absl::string_view line = absl::StripAsciiWhitespace(tail_);
  line = line.substr(line.find_last_of("\r\n") + 1).substr(0, kMaxLineBytes);
  return line.empty() ? what : absl::StrCat(what, ": ", line);
}

std::string NodeCheckProcess::Judge(int code, int status, OomEvidence oom) {
  const std::optional<ExecStatus> exec = ReadExecStatus(exec_status_.get());
  if (exec && !exec->failed_stage.empty()) {
    return absl::StrCat("its node check could not be started: ", exec->failed_stage, ": ",
                        std::strerror(exec->error));
  }
  if (code != CLD_EXITED) {
    return WithLastLine(absl::StrCat("its node check was ended by signal ", status,
                                     oom == OomEvidence::kNone ? "" : ", out of memory"));
  }
  return status == 0 ? "" : WithLastLine(absl::StrCat("its node check exited with ", status));
}

std::string NodeCheckProcess::TimedOut() {
  const double seconds = std::chrono::duration<double>(timeout_).count();
  return WithLastLine(absl::StrCat("its node check did not end within ", seconds, " s"));
}

}  // namespace regroup::shim
