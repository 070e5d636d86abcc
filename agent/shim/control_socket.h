#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/shim/protocol.h"
#include "common/io/fd.h"

namespace regroup::shim {

// The shim's end of its Unix socket: a few agents, usually one (two while an agent is replaced).
// Adds its descriptors to the caller's epoll set, with the descriptor as data. One thread; never
// blocks.
class ControlSocket {
 public:
  // `listener`: bound by the agent; listen() is called again, so that SO_PEERCRED names this
  // process from now on.
  static absl::StatusOr<ControlSocket> Open(int epoll_fd, io::UniqueFd listener, std::string nonce);

  bool Owns(int fd) const { return fd == listener_.get() || clients_.contains(fd); }
  struct Received {
    Command command;
    std::vector<io::UniqueFd> fds;  // Of an Adopt. Any that come with something else are closed.
  };
  // Commands that arrived, without Hello and Query: those make Asked() true.
  std::vector<Received> OnEvent(int fd, std::uint32_t events);
  // As OnEvent, of all that have connected, or said something, by now.
  std::vector<Received> OnAll();
  bool Asked() const;  // Somebody waits for the state.
  bool OutputWanted() const;
  bool HasAgent() const;  // One that has said hello is connected.

  enum class To { kAll, kAsking, kOutputWanting };
  // A state replaces one that a slow reader has not taken yet. Commands of one that has closed are
  // still received.
  void Send(const State& state, To to);

 private:
  struct Client {
    io::UniqueFd fd;
    std::string incoming, sending, next;  // `sending`: rest of a frame that has begun to leave.
    std::vector<io::UniqueFd> fds;        // Came with the unfinished frame in `incoming`.
    bool greeted = false, wants_output = false, asks = false, watched_for_write = false;
    std::uint64_t number = 0;
  };
  ControlSocket(int epoll_fd, io::UniqueFd listener, std::string nonce)
      : epoll_fd_(epoll_fd), listener_(std::move(listener)), nonce_(std::move(nonce)) {}
  void AcceptAll();
  // False: the connection is over.
  bool Read(Client& client, std::vector<Received>& commands);
  bool TakeCommands(Client& client, std::vector<io::UniqueFd> fds, std::vector<Received>& commands);
  void Flush(Client& client);
  void EndAfterReading(Client& client);

  int epoll_fd_;
  io::UniqueFd listener_;
  std::string nonce_;
  std::map<int, Client> clients_;
  std::uint64_t next_number_ = 0;
};

}  // namespace regroup::shim
