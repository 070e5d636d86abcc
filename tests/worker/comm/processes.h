#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "tests/worker/comm/tiny_store.h"
#include "worker/comm/host_communicator.h"

namespace regroup::worker {

// Memory that forked children and the test share.
template <class T>
class Shared {
 public:
  Shared() {
    void* memory =
        mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    value_ = new (memory) T();
  }
  ~Shared() { munmap(value_, sizeof(T)); }
  T* operator->() const { return value_; }
  T& operator*() const { return *value_; }

 private:
  T* value_;
};

inline double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// One process per rank, joined through a store of this test. Kills what is left when it goes.
class RankProcesses {
 public:
  using Body =
      std::function<int(int rank, Communicator& communicator)>;  // Its value is the exit code.
  static constexpr int kNotJoined = 99;

  // `prepare` runs in each process before it joins. `hosts`: how many ranks each host has, which
  // are told apart by name, and reach each other over addresses of the loopback network.
  RankProcesses(int world_size, const Body& body, Duration deadline = std::chrono::seconds(30),
                void (*prepare)(int rank, int world_size) = nullptr,
                const std::vector<int>& hosts = {})
      : hosts_(hosts) {
    for (int r = 0; r < world_size; ++r) {
      const pid_t pid = fork();
      CHECK(pid >= 0);
      if (pid == 0) {
        if (prepare != nullptr) prepare(r, world_size);
        _exit(Run(r, world_size, body, deadline));
      }
      pids_.push_back(pid);
    }
    store_.Start();
  }
  ~RankProcesses() {
    for (pid_t pid : pids_) {
      if (pid > 0) kill(pid, SIGKILL);
    }
    for (int r = 0; r < static_cast<int>(pids_.size()); ++r) Wait(r);
  }

  pid_t pid(int rank) const { return pids_[rank]; }
  std::uint16_t store_port() const { return store_.port(); }
  // Exit code, or 128 + signal.
  int Wait(int rank) {
    if (pids_[rank] <= 0) return -1;
    int status = 0;
    CHECK(waitpid(pids_[rank], &status, 0) == pids_[rank]);
    pids_[rank] = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::vector<int> WaitAll() {
    std::vector<int> codes;
    for (int r = 0; r < static_cast<int>(pids_.size()); ++r) codes.push_back(Wait(r));
    return codes;
  }

 private:
  int Run(int rank, int world_size, const Body& body, Duration deadline) {
    HostCommunicatorOptions options{.rank = rank,
                                    .world_size = world_size,
                                    .store_host = "127.0.0.1",
                                    .store_port = store_.port(),
                                    .join_deadline = std::chrono::seconds(30),
                                    .deadline = deadline};
    for (int h = 0, first = 0; h < static_cast<int>(hosts_.size()); first += hosts_[h++]) {
      if (rank < first || rank >= first + hosts_[h]) continue;
      options.host_name = "host-" + std::to_string(h);
      options.host_address = "127.0.0." + std::to_string(h + 2);
    }
    auto communicator = JoinHostCommunicator(options);
    if (!communicator.ok()) {
      fprintf(stderr, "rank %d: %s\n", rank, communicator.status().ToString().c_str());
      return kNotJoined;
    }
    const int code = body(rank, **communicator);
    communicator->reset();
    return code;
  }

  const std::vector<int> hosts_;
  TinyStore store_;
  std::vector<pid_t> pids_;
};

}  // namespace regroup::worker
