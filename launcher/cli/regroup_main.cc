// `regroup`: the command line, and the coordinator.

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "common/io/standard_fds.h"
#include "common/io/thread.h"
#include "launcher/cli/commands/command.h"

namespace {

// What is ignored (nohup, background of a script) stays ignored.
sigset_t Watched() {
  sigset_t set;
  ::sigemptyset(&set);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction now {};
    if (::sigaction(signal, nullptr, &now) == 0 && now.sa_handler != SIG_IGN)
      ::sigaddset(&set, signal);
  }
  return set;
}

// Signals are taken by one thread, before any other exists; a command that wants them says what is
// to be told last.
void Watch(std::function<int(int)> handler) {
  sigset_t set = Watched();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::thread([handler = std::move(handler), set] {
    int signal = 0;
    while (::sigwait(&set, &signal) != 0) {
    }  // Interrupted by a debugger.
    ::_exit(handler(signal));
  }).detach();
}

}  // namespace

int main(int argc, char** argv) {
  regroup::io::OpenStandardDescriptors();
  regroup::io::EndClearlyWithoutThreads(1);
  std::vector<std::string> args(argv + (argc > 0 ? 1 : 0), argv + argc);
  // One program under two names: regroup-torchrun is a link, which may be called torchrun as well.
  std::string name = argc > 0 ? argv[0] : "";
  name = name.substr(name.find_last_of('/') + 1);
  if (name == "regroup-torchrun" || name == "torchrun") args.insert(args.begin(), "torchrun");
  return regroup::cli::Dispatch(args, Watch);
}
