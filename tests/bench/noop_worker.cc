// The worker of the control-plane benchmarks: says on disk when it started and when it was told to
// stop, reports one step through its agent's socket, and otherwise does nothing. Times are
// CLOCK_MONOTONIC nanoseconds, comparable between the processes of one machine.
//
//   noop_worker FOLDER      writes FOLDER/<generation>.<rank>.<pid>.start, later ….stop

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

namespace {

std::int64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000ll + now.tv_nsec;
}

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "0" : value;
}

// A reader must never see half a number: written under another name, then renamed.
void WriteTime(const std::string& path, std::int64_t time_ns) {
  std::string temporary = path + ".tmp";
  int fd = open(temporary.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) _exit(3);
  std::string text = std::to_string(time_ns);
  if (write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) _exit(3);
  close(fd);
  if (rename(temporary.c_str(), path.c_str()) != 0) _exit(3);
}

// One step of progress, so that the next failure is the first after progress and restarts at once.
void ReportStep() {
  std::string path = Variable("REGROUP_SOCKET");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path == "0" || path.size() >= sizeof(address.sun_path)) return;
  std::memcpy(address.sun_path, path.data(), path.size());
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return;
  std::string generation = Variable("REGROUP_GENERATION");
  std::string lines = "{\"hello\":{\"version\":1,\"job\":\"" + Variable("REGROUP_JOB") +
                      "\",\"generation\":\"" + generation + "\",\"rank\":" + Variable("RANK") +
                      ",\"localRank\":" + Variable("LOCAL_RANK") + ",\"token\":\"" +
                      Variable("REGROUP_WORKER_TOKEN") + "\"}}\n" + "{\"progress\":{\"step\":\"" +
                      generation + "\",\"samples\":\"" + generation + "\"}}\n";
  if (write(fd, lines.data(), lines.size()) < 0) _exit(3);
  // The descriptor stays open for the life of the process, as a real worker's does.
}

}  // namespace

int main(int argc, char** argv) {
  std::int64_t started = NowNs();
  if (argc != 2) {
    std::fprintf(stderr, "usage: noop_worker FOLDER\n");
    return 2;
  }
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigprocmask(SIG_BLOCK, &stop, nullptr);
  std::string path = std::string(argv[1]) + "/" + Variable("REGROUP_GENERATION") + "." +
                     Variable("RANK") + "." + std::to_string(getpid());
  WriteTime(path + ".start", started);
  ReportStep();
  int signal = 0;
  sigwait(&stop, &signal);
  WriteTime(path + ".stop", NowNs());
  return 0;
}
