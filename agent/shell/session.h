#pragma once

// One gRPC session with a coordinator, from dial to break. Its callbacks only post; the loop alone
// reads and writes.

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/rpc/channel.h"
#include "proto/coordinator.pb.h"

namespace regroup::agent {

class Session {
 public:
  struct Handler {  // Called on the loop, never from within a call of Session.
    std::function<void(v1::CoordinatorMessage)> message;
    std::function<void(absl::Status)> broken;  // Once, last; also when it never came up.
  };
  // Starts to connect. The io_context must outlive every callback: run it until `broken`, or leave
  // the process.
  Session(boost::asio::io_context& loop, const Connection& connection, Handler handler);
  ~Session();  // Cancels; no callback follows.
  Session(const Session&) = delete;

  // Queued, one in flight. A peer that does not read while kMaxQueued messages wait is cut.
  void Send(v1::AgentMessage message);
  std::size_t queued() const;
  // Sends what is queued, then ends the stream in order; `broken` follows when the coordinator has
  // read all.
  void Finish();

  static constexpr std::size_t kMaxQueued = 4096;

 private:
  class Call;
  std::shared_ptr<Call> call_;  // Shared with gRPC's callbacks in flight.
};

}  // namespace regroup::agent
