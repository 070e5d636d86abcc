#pragma once

// Ends connections from outside of gRPC, which owns their descriptors: version 1.51 closes none
// while something is under way on it to a peer that does not read, whoever cancels what, and its
// server does not end before they have. Found among this process's descriptors by their names.

#include <set>
#include <string>
#include <vector>

#include "common/io/address.h"

namespace regroup::coordinator {

class OwnConnections {
 public:
  // What `listening_fd` accepts are ours from here on. Before the others are called.
  void Add(int listening_fd);

  // Of these peers, as gRPC names them. Those of the Unix socket have no names: of them, whatever
  // holds the same bytes unread for a while. Blocks for that long. How many ended. Any thread.
  int EndUnread(const std::set<std::string>& grpc_peers) const;
  int EndAll() const;

 private:
  bool AreOurs(int fd) const;
  std::vector<io::SocketAddress> listening_;
};

}  // namespace regroup::coordinator
