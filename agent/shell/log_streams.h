#pragma once

// This node's part of `regroup logs`: when the coordinator asks (open_logs), a stream is opened and
// fed from the log files by a thread of its own. The stream's flow control bounds what is read
// ahead.

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "common/base/ids.h"
#include "common/rpc/channel.h"
#include "proto/coordinator.pb.h"

namespace regroup::agent {

class LogStreams {
 public:
  explicit LogStreams(std::string log_root);
  ~LogStreams();  // Cuts every stream and waits for its thread.

  // Asked for: `node` and `name` are this node's. The same stream asked for again without `follow`
  // ends once it has sent what there is.
  void Open(const Connection& connection, const NodeId& node, const std::string& name,
            const v1::OpenLogs& asked);

  static constexpr std::size_t kMaxStreams = 64;

 private:
  class Feeder;
  const std::string log_root_;
  std::map<std::uint64_t, std::unique_ptr<Feeder>> feeders_;
};

}  // namespace regroup::agent
