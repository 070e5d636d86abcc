// A generation's store, as the process it is, and thousands of clients that speak what PyTorch's do
// (tests/agent/store/wire.h, held against a capture of 2.15): from the first connect until every
// one has validated, pinged, counted itself and read what its neighbour set. Real clients of
// PyTorch do the same at the same time. One JSON line.

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/shim/client.h"
#include "common/base/check.h"
#include "common/io/address.h"
#include "common/io/files.h"
#include "common/io/proc.h"
#include "tests/agent/store/wire.h"

namespace regroup::bench {
namespace {

using Clock = std::chrono::steady_clock;
namespace wire = regroup::store::wire;

constexpr int kLimitMs = 60'000;
const char* const kSources[] = {"127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"};

double Since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The store's process; killed at the end.
class Store {
 public:
  Store(const std::string& shim, const std::string& folder, int number) {
    shim::Spec spec;
    spec.role = shim::Role::kStore;
    spec.nonce = io::RandomHex(16);
    spec.boot = *io::ReadBootId();
    spec.node = NodeId("node");
    spec.job = JobId("store-1");
    spec.generation = Generation(static_cast<std::uint64_t>(number));
    spec.store_members.assign(std::begin(kSources), std::end(kSources));
    absl::StatusOr<shim::RunDirectory> directory = shim::CreateRunDirectory(folder, spec);
    CHECK(directory.ok());
    const io::UniqueFd listener = *io::ListenTcp({"127.0.0.1", 0});
    address_ = *io::LocalAddressOf(listener.get());
    absl::StatusOr<shim::SpawnedShim> spawned =
        shim::SpawnShim(shim, *directory, shim::Role::kStore, {.witness = listener.get()});
    CHECK(spawned.ok());
    shim_ = *std::move(spawned);
  }
  ~Store() {
    ::kill(shim_.pid, SIGKILL);
    while (!shim::TryReap(shim_.pid)) ::usleep(1000);
  }
  const Address& address() const { return address_; }

 private:
  shim::SpawnedShim shim_;
  Address address_;
};

// The clients of PyTorch, in a process that has imported it.
class PyTorch {
 public:
  PyTorch(const std::string& python, const std::string& script, int clients) {
    int down[2], up[2];
    CHECK(::pipe2(down, O_CLOEXEC) == 0 && ::pipe2(up, O_CLOEXEC) == 0);
    const std::string count = std::to_string(clients);
    pid_ = ::fork();
    CHECK(pid_ >= 0);
    if (pid_ == 0) {
      ::dup2(down[0], 0);
      ::dup2(up[1], 1);
      // Each of its clients asks for its own host's name first, and a name server that drops one of
      // many questions costs the whole time-out.
      ::setenv("RES_OPTIONS", "timeout:1 attempts:1", 1);
      ::execl(python.c_str(), python.c_str(), script.c_str(), count.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(down[0]);
    ::close(up[1]);
    to_ = ::fdopen(down[1], "w");
    from_ = ::fdopen(up[0], "r");
  }
  ~PyTorch() {
    std::fclose(to_);
    std::fclose(from_);
    ::kill(pid_, SIGKILL);
    while (!shim::TryReap(pid_)) ::usleep(1000);
  }
  void Begin(const Address& store) {
    std::fprintf(to_, "%s %d\n", store.host.c_str(), store.port);
    std::fflush(to_);
  }
  bool Says(const char* word) {
    char line[512] = {};
    if (std::fgets(line, sizeof line, from_) != nullptr &&
        std::strncmp(line, word, std::strlen(word)) == 0)
      return true;
    std::fprintf(stderr, "PyTorch's clients: %s\n", line);
    return false;
  }

 private:
  pid_t pid_ = -1;
  FILE *to_ = nullptr, *from_ = nullptr;
};

struct Client {
  io::UniqueFd fd;
  int step = 0;
  std::string reply;
};

// Many clients in one thread.
class Clients {
 public:
  Clients(const Address& store, int count)
      : store_(store), clients_(static_cast<std::size_t>(count)) {
    epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
    CHECK(epoll_);
  }
  bool Run() {
    for (std::size_t i = 0; i < clients_.size(); ++i)
      if (!Connect(i)) return false;
    while (left_ > 0) {
      epoll_event events[256];
      const int n = ::epoll_wait(epoll_.get(), events, 256, kLimitMs);
      if (n <= 0) return Failed("silence");
      for (int k = 0; k < n; ++k)
        if (!Turn(events[k].data.u64)) return false;
    }
    return true;
  }

 private:
  static std::string Key(std::size_t i) { return absl::StrCat("/rank/", i); }
  std::size_t Next(std::size_t i) const { return (i + 1) % clients_.size(); }
  bool Failed(const char* what) {
    std::fprintf(stderr, "clients: %s, %zu of %zu are not done\n", what, left_, clients_.size());
    return false;
  }
  bool Connect(std::size_t i) {
    io::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return Failed("too few descriptors");
    const io::SocketAddress source = *io::ToSocketAddress({kSources[i % std::size(kSources)], 0});
    const io::SocketAddress target = *io::ToSocketAddress(store_);
    CHECK(::bind(fd.get(), source.get(), source.size) == 0);
    if (::connect(fd.get(), target.get(), target.size) < 0 && errno != EINPROGRESS)
      return Failed("connect");
    epoll_event event{};
    event.events = EPOLLOUT;
    event.data.u64 = i;
    CHECK(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd.get(), &event) == 0);
    clients_[i].fd = std::move(fd);
    return true;
  }
  // What is sent at each step, and what the answer has to be (empty: of that size).
  std::string Request(std::size_t i) const {
    switch (clients_[i].step) {
      case 0: return wire::Validate() + wire::Ping(static_cast<std::uint32_t>(i));
      case 1: return wire::Add("init/", 1);
      case 2: return wire::Set(Key(i), std::to_string(i)) + wire::Wait({Key(Next(i))});
      default: return wire::Get(Key(Next(i)));
    }
  }
  std::string Answer(std::size_t i) const {
    switch (clients_[i].step) {
      case 0: return wire::Ping(static_cast<std::uint32_t>(i)).substr(1);
      case 2: return wire::kStop;
      default: return wire::String(std::to_string(Next(i)));
    }
  }
  bool Turn(std::size_t i) {
    Client& client = clients_[i];
    if (client.reply.empty() && client.step == 0 && !Watching(i)) return Failed("connect");
    char bytes[256];
    const ssize_t n = ::recv(client.fd.get(), bytes, sizeof bytes, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (n <= 0) return Failed("a connection was closed");
    client.reply.append(bytes, static_cast<std::size_t>(n));
    const bool counted = client.step == 1;
    const std::size_t size = counted ? 8 : Answer(i).size();
    if (client.reply.size() < size) return true;
    if (!counted && client.reply != Answer(i)) return Failed("a wrong answer");
    client.reply.clear();
    if (++client.step < 4) return Send(i);
    --left_;
    return true;
  }
  // Connected: the first request leaves, and from now on answers count.
  bool Watching(std::size_t i) {
    if (begun_.size() < clients_.size()) begun_.resize(clients_.size());
    if (begun_[i]) return true;
    begun_[i] = true;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = i;
    return ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, clients_[i].fd.get(), &event) == 0 && Send(i);
  }
  bool Send(std::size_t i) {
    const std::string request = Request(i);
    return ::send(clients_[i].fd.get(), request.data(), request.size(), MSG_NOSIGNAL) ==
               static_cast<ssize_t>(request.size()) ||
           Failed("send");
  }

  const Address store_;
  io::UniqueFd epoll_;
  std::vector<Client> clients_;
  std::vector<bool> begun_;
  std::size_t left_ = clients_.size();
};

struct Options {
  std::string bin_dir, folder, python, script;
  int clients = 4000, pytorch_clients = 64, repeats = 5;
};

int Measure(const Options& options) {
  std::optional<PyTorch> pytorch;
  if (!options.python.empty()) {
    pytorch.emplace(options.python, options.script, options.pytorch_clients);
    if (!pytorch->Says("ready")) return 1;
  }
  nlohmann::json samples = nlohmann::json::array();
  double ours = 0;
  for (int i = 1; i <= options.repeats; ++i) {
    Store store(options.bin_dir + "/regroup-shim", options.folder, i);
    const Clock::time_point begin = Clock::now();
    if (pytorch) pytorch->Begin(store.address());
    Clients clients(store.address(), options.clients);
    if (!clients.Run()) return 1;
    ours = std::max(ours, Since(begin));
    if (pytorch && !pytorch->Says("done")) return 1;
    samples.push_back(Since(begin));
  }
  const std::string with =
      pytorch ? absl::StrCat("and ", options.pytorch_clients,
                             " clients of PyTorch in another (name server time-out 1 s)")
              : "(no PyTorch here)";
  const std::string setup = absl::StrCat(
      options.clients, " sockets of one process ", with,
      ", a store's process started for each sample: first connect to the last neighbour's value "
      "read; the sockets alone at most ",
      static_cast<int>(ours * 1000), " ms");
  std::printf("%s\n", nlohmann::json{{"samples", samples}, {"setup", setup}}.dump().c_str());
  return 0;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app{"thousands of clients of one store"};
  app.add_option("--bin-dir", options.bin_dir)->required();
  app.add_option("--folder", options.folder)->required();
  app.add_option("--python", options.python, "an interpreter that can import PyTorch");
  app.add_option("--script", options.script, "store_clients.py");
  app.add_option("--clients", options.clients);
  app.add_option("--pytorch-clients", options.pytorch_clients);
  app.add_option("--repeats", options.repeats);
  CLI11_PARSE(app, argc, argv);
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  return Measure(options);
}

}  // namespace
}  // namespace regroup::bench

int main(int argc, char** argv) { return regroup::bench::Main(argc, argv); }
