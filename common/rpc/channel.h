#pragma once

// How Regroup dials a coordinator: always an IP literal or a Unix socket, never a name (resolve.h),
// never through a proxy, with back-off set on purpose (gRPC's own costs a second after the first
// refused dial).

#include <grpcpp/channel.h>
#include <grpcpp/support/channel_arguments.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/control.h"
#include "common/base/time.h"

namespace regroup {

inline constexpr int kMaxSessionMessageBytes = 4 << 20;  // To an agent: a result with detail.
inline constexpr int kMaxAgentMessageBytes = 1 << 20;    // Of an agent: a whole inventory.
inline constexpr int kMaxCallMessageBytes = 1 << 20;     // Requests of every other call.
inline constexpr int kMaxReplyBytes = 32 << 20;          // Replies to readers.

struct DialOptions {
  Duration first_backoff = std::chrono::milliseconds(50);
  Duration max_backoff =
      std::chrono::seconds(2);  // On loopback: equal to first_backoff, whatever is given here.
  Duration connect_limit = std::chrono::seconds(5);  // Of one attempt.
  int max_receive_bytes = kMaxReplyBytes;
};

// How gRPC uses a connection, whoever made it. Part of what a dial's channel is given.
grpc::ChannelArguments TransportArguments(const DialOptions& options);

// A channel and what has to live as long as it does. Copies share it. Channels never share a
// connection with another one, even to the same address.
struct Connection {
  std::shared_ptr<grpc::Channel> channel;
  std::shared_ptr<void> keep;  // Of a Unix socket: the open directory that its path goes through.
  std::string target;          // As people know it: "10.0.0.4:29400", "/path/to/socket".
};

// Connects in the background. REQUIRES: address.host is an IP literal.
Connection Dial(const Address& address, const DialOptions& options = {});
// A Unix socket at any path length. NOT_FOUND when its directory does not exist.
absl::StatusOr<Connection> DialUnix(const std::string& path, const DialOptions& options = {});

}  // namespace regroup
