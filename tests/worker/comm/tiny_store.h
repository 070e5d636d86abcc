#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "common/base/check.h"

namespace regroup::worker {

// As much of a TCPStore server as the ranks' meeting needs, in one thread: handshake, SET, GET,
// ADD, CHECK, WAIT, CANCEL_WAIT. It listens from its construction and answers from Start() on, so
// that a test can fork in between.
class TinyStore {
 public:
  TinyStore() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
          listen(listener_, 64) == 0);
    CHECK(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
  }
  ~TinyStore() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    for (const Client& c : clients_) close(c.fd);
    close(listener_);
  }
  void Start() {
    thread_ = std::thread([this] { Serve(); });
  }
  std::uint16_t port() const { return port_; }

 private:
  struct Client {
    int fd;
    std::string input;
    std::vector<std::string> waits_for;
  };

  void Serve() {
    while (!stop_) {
      std::vector<pollfd> items{{listener_, POLLIN, 0}};
      for (const Client& c : clients_) items.push_back({c.fd, POLLIN, 0});
      if (poll(items.data(), items.size(), 5) <= 0) continue;
      for (std::size_t i = items.size() - 1; i > 0; --i) {
        if (items[i].revents != 0 && !Read(clients_[i - 1])) {
          close(clients_[i - 1].fd);
          clients_.erase(clients_.begin() + static_cast<std::ptrdiff_t>(i - 1));
        }
      }
      if (items[0].revents != 0) {
        clients_.push_back({accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC), {}, {}});
        const int on = 1;  // As the real one: an answer of two parts waits for no acknowledgement.
        setsockopt(clients_.back().fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      }
    }
  }

  bool Read(Client& client) {
    char buffer[4096];
    const ssize_t got = recv(client.fd, buffer, sizeof buffer, 0);
    if (got <= 0) return false;
    client.input.append(buffer, static_cast<std::size_t>(got));
    for (;;) {
      std::size_t at = 0;
      if (!Command(client, at)) return true;  // Incomplete: again when more has come.
      client.input.erase(0, at);
    }
  }

  template <class T>
  static bool Take(const std::string& input, std::size_t& at, T& out) {
    if (input.size() - at < sizeof out) return false;
    std::memcpy(&out, input.data() + at, sizeof out);
    at += sizeof out;
    return true;
  }
  static bool TakeVector(const std::string& input, std::size_t& at, std::string& out) {
    std::uint64_t size = 0;
    if (!Take(input, at, size) || input.size() - at < size) return false;
    out = input.substr(at, size);
    at += size;
    return true;
  }
  static bool TakeKeys(const std::string& input, std::size_t& at, std::vector<std::string>& keys) {
    std::uint64_t count = 0;
    if (!Take(input, at, count)) return false;
    for (std::string key; count > 0; --count) {
      if (!TakeVector(input, at, key)) return false;
      keys.push_back(key);
    }
    return true;
  }
  template <class T>
  static void Answer(const Client& client, T value) {
    CHECK(send(client.fd, &value, sizeof value, MSG_NOSIGNAL) >= -1);
  }
  bool HasAll(const std::vector<std::string>& keys) const {
    for (const std::string& k : keys) {
      if (!values_.contains(k)) return false;
    }
    return true;
  }
  void Store(const std::string& key, const std::string& value) {
    values_[key] = value;
    for (Client& c : clients_) {
      if (!c.waits_for.empty() && HasAll(c.waits_for)) {
        c.waits_for.clear();
        Answer<std::uint8_t>(c, 0);
      }
    }
  }

  bool Command(Client& client, std::size_t& at) {
    const std::string& input = client.input;
    std::uint8_t opcode = 0;
    std::uint32_t word = 0;
    std::int64_t delta = 0;
    std::string key, value;
    std::vector<std::string> keys;
    if (!Take(input, at, opcode)) return false;
    switch (opcode) {
      case 0: return Take(input, at, word);
      case 13:
        if (!Take(input, at, word)) return false;
        Answer(client, word);
        return true;
      case 1:
        if (!TakeVector(input, at, key) || !TakeVector(input, at, value)) return false;
        Store(key, value);
        return true;
      case 3: {
        if (!TakeVector(input, at, key)) return false;
        const std::string found = values_.contains(key) ? values_[key] : "";
        Answer<std::uint64_t>(client, found.size());
        CHECK(send(client.fd, found.data(), found.size(), MSG_NOSIGNAL) >= -1);
        return true;
      }
      case 4:
        if (!TakeVector(input, at, key) || !Take(input, at, delta)) return false;
        delta += values_.contains(key) ? std::stoll(values_[key]) : 0;
        Store(key, std::to_string(delta));
        Answer(client, delta);
        return true;
      case 5:
        if (!TakeKeys(input, at, keys)) return false;
        Answer<std::uint8_t>(client, HasAll(keys) ? 0 : 1);
        return true;
      case 6:
        if (!TakeKeys(input, at, keys)) return false;
        if (HasAll(keys)) {
          Answer<std::uint8_t>(client, 0);
        } else {
          client.waits_for = keys;
        }
        return true;
      case 12:
        client.waits_for.clear();
        Answer<std::uint8_t>(client, 1);
        return true;
      default: CHECK(false);
    }
  }

  const int listener_;
  std::uint16_t port_ = 0;
  std::atomic<bool> stop_{false};
  std::vector<Client> clients_;  // Of the thread.
  std::map<std::string, std::string> values_;
  std::thread thread_;
};

}  // namespace regroup::worker
