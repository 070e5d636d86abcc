#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace regroup::worker {

// What NCCL's RAS service says over TCP, or what else may listen at its port.
class RasServer {
 public:
  enum class Is {
    kSound,
    kSlow,
    kSilent,
    kSilentAtStatus,
    kEndless,
    kCloses,
    kClosesAtStatus,
    kOther
  };

  // Of a port that another socket may hold, as NCCL's does; 0: any.
  explicit RasServer(Is is, std::string says = Mismatch(), std::uint16_t port = 0)
      : is_(is), says_(std::move(says)), listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(port);
    const int on = 1;
    setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(listener_, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    socklen_t size = sizeof at;
    CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&at), size) == 0 &&
          listen(listener_, 8) == 0);
    CHECK(getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size) == 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(at.sin_port));
    thread_ = std::thread([this] { Serve(); });
  }
  ~RasServer() {
    stop_ = true;
    thread_.join();
    for (const int fd : clients_) close(fd);
    close(listener_);
  }
  RasServer(const RasServer&) = delete;
  RasServer& operator=(const RasServer&) = delete;

  const std::string& address() const { return address_; }
  int asked() const { return asked_; }  // So many have connected.

  // As NCCL 2.28.9 words it.
  static std::string Mismatch() {
    return "NCCL version 2.28.9+cuda13.0 compiled with CUDA 13.0\n"
           "CUDA runtime version 13000, driver version 13000\n\n"
           "Job summary\n===========\n\n"
           "  Nodes  Processes         GPUs  Processes     GPUs\n"
           "(total)   per node  per process    (total)  (total)\n"
           "      1          4            1          4        4\n\n"
           "Communicators... (0.01s)\n=============\n\n"
           "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
           "    #  in group  per comm  per node  per comm  in group\n"
           "    0         1         1         4         4         4   RUNNING  MISMATCH\n\n"
           "Errors\n======\n\n"
           "Warnings\n========\n\n"
           "#0-0 (9ed2a04ffa1f3a4b) MISMATCH\n"
           "  Communicator ranks have different collective operation counts\n"
           "  3 ranks have launched up to operation 2\n"
           "  1 rank has launched up to operation 1\n"
           "  Rank 2 -- GPU 2 managed by process 4711 on node 10.0.0.1\n\n";
  }

 private:
  void Serve() {
    while (!stop_) {
      std::vector<pollfd> items{{listener_, POLLIN, 0}};
      for (const int fd : clients_) items.push_back({fd, POLLIN, 0});
      if (poll(items.data(), items.size(), 2) <= 0) continue;
      for (std::size_t i = 1; i < items.size(); ++i) {
        if (items[i].revents == 0 || Answer(items[i].fd)) continue;
        close(items[i].fd);
        std::erase(clients_, items[i].fd);
      }
      if (items[0].revents == 0) continue;
      clients_.push_back(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
      ++asked_;
      if (is_ != Is::kCloses) continue;
      close(clients_.back());
      clients_.pop_back();
    }
  }
  // A line comes alone, since the one before it was answered. False: to be closed.
  bool Answer(int fd) {
    char buffer[256];
    const ssize_t got = recv(fd, buffer, sizeof buffer, 0);
    if (got <= 0) return false;
    const std::string line(buffer, static_cast<std::size_t>(got));
    if (is_ == Is::kSilent) return true;
    if (is_ == Is::kOther) return Say(fd, "SSH-2.0-OpenSSH_9.2\r\n");
    if (line == "CLIENT PROTOCOL 2\n") return Say(fd, "SERVER PROTOCOL 2\n");
    if (line.starts_with("TIMEOUT 0.")) return Say(fd, "OK\n");
    if (is_ == Is::kSlow) usleep(200'000);
    if (line != "STATUS\n") return Say(fd, "ERROR: Unknown command " + line);
    if (is_ == Is::kClosesAtStatus) return false;
    if (is_ == Is::kSilentAtStatus) return Say(fd, "NCCL version\n\nCommunicators...");
    while (is_ == Is::kEndless && !stop_ && Say(fd, "Rank 0 -- again\n")) continue;
    Say(fd, says_);
    return false;
  }
  static bool Say(int fd, const std::string& text) {
    return send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }

  const Is is_;
  const std::string says_;
  const int listener_;
  std::string address_;
  std::vector<int> clients_;  // Of thread_.
  std::atomic<int> asked_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace regroup::worker
