// regroup-shim: supervisor of one worker group, or (--store) the store of one generation. Started
// by an agent only, through SpawnShim; everything it needs lies in its run directory and in
// inherited descriptors. Or (--c10d) the store where real torchrun agents meet; started by a
// coordinator only.

#include <malloc.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/numbers.h"
#include "agent/shim/c10d_host.h"
#include "agent/shim/nursery_exec.h"
#include "agent/shim/run_directory.h"
#include "agent/shim/spawn_fds.h"
#include "agent/shim/store_host.h"
#include "agent/shim/supervisor.h"
#include "common/base/status_macros.h"
#include "common/io/files.h"
#include "common/io/standard_fds.h"

namespace regroup::shim {
namespace {

struct Arguments {
  bool store = false, lifeline = false, standard_input = false;
  pid_t warm = 0;  // The child at kWarmFd; 0: none.
};

// Signals that would end a process by default stay blocked for good; faults of our own must still
// end it.
void BlockSignals() {
  sigset_t blocked;
  ::sigfillset(&blocked);
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS, SIGTRAP})
    ::sigdelset(&blocked, signal);
  ::sigprocmask(SIG_SETMASK, &blocked, nullptr);
}

absl::Status Serve(const Arguments& arguments, bool& finished) {
  io::UniqueFd directory(kDirectoryFd), socket(kSocketFd), listener(kListenerFd),
      lifeline(arguments.lifeline ? kLifelineFd : -1),
      standard_input(arguments.standard_input ? kStdinFd : -1),
      warm(arguments.warm > 0 ? kWarmFd : -1);
  // kLockFd stays open, and so the lock held, until the kernel ends this process, or until only its
  // logs are waited for.
  ::syscall(SYS_close_range, 3u, ~0u, 4u /* CLOSE_RANGE_CLOEXEC */);
  ASSIGN_OR_RETURN(std::string bytes, io::ReadFileAt(directory.get(), kSpecFile, 8u << 20));
  ASSIGN_OR_RETURN(Spec spec, DecodeSpec(bytes));
  if (arguments.store) {
    StoreHost::Fds fds{std::move(directory), std::move(socket), std::move(listener),
                       std::move(lifeline)};
    ASSIGN_OR_RETURN(std::unique_ptr<StoreHost> host,
                     StoreHost::Create(std::move(spec), std::move(fds)));
    host->Run();
    finished = true;
    return absl::OkStatus();
  }
  SupervisorFds fds{std::move(directory), std::move(socket), std::move(listener),
                    std::move(lifeline), std::move(standard_input)};
  std::optional<WarmStart> warm_start;
  if (warm) warm_start.emplace(std::move(warm), arguments.warm);
  ASSIGN_OR_RETURN(std::unique_ptr<Supervisor> supervisor,
                   Supervisor::Create(std::move(spec), std::move(fds), std::move(warm_start)));
  finished = supervisor->Run();
  if (!finished) ::_exit(0);  // The log thread hangs on a disk, and is waited for no longer.
  return absl::OkStatus();
}

absl::Status ServeC10d() {
  io::UniqueFd listener(kC10dListenerFd);
  ::syscall(SYS_close_range, 4u, ~0u, 0u);
  ASSIGN_OR_RETURN(std::unique_ptr<C10dHost> host, C10dHost::Create(std::move(listener)));
  host->Run();
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  if (argc > 1 && argv[1] == kC10dMode && ::fcntl(kC10dListenerFd, F_GETFD) >= 0) {
    BlockSignals();
    if (::chdir("/") < 0) return 1;
    const absl::Status served = ServeC10d();
    if (!served.ok()) std::fprintf(stderr, "%s\n", served.ToString().c_str());
    return served.ok() ? 0 : 1;
  }
  if (argc > 1 && argv[1] == std::string_view(kNurseryMode)) return ExecNursery(argc - 2, argv + 2);
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    arguments.store = arguments.store || word == kStoreMode;
    arguments.lifeline = arguments.lifeline || word == kWithLifeline;
    arguments.standard_input = arguments.standard_input || word == kWithStdin;
    if (word == kWithWarm && i + 1 < argc && !absl::SimpleAtoi(argv[i + 1], &arguments.warm))
      return 2;
  }
  if (argc < 3 || ::fcntl(kLockFd, F_GETFD) < 0) {
    std::fprintf(stderr, "regroup-shim is started by regroup-agent, never by hand\n");
    return 2;
  }
  BlockSignals();
  ::mallopt(M_ARENA_MAX, 1);  // A second arena for the log thread would only cost memory.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  if (::chdir("/") < 0) return 1;  // Keeps no mount busy.
  bool finished = false;
  absl::Status served = Serve(arguments, finished);
  if (served.ok()) return 0;
  std::fprintf(stderr, "%s\n", served.ToString().c_str());
  return 1;
}

}  // namespace
}  // namespace regroup::shim

int main(int argc, char** argv) {
  regroup::io::OpenStandardDescriptors();
  return regroup::shim::Main(argc, argv);
}
