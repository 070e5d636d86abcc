#pragma once

// This node's part of `regroup logs`: when the coordinator asks (open_logs), a stream is opened and
// fed from the log files by a thread of its own. The stream's flow control bounds what is read
// ahead.

#include <atomic>
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
  // ends once it has sent what there is. Beyond kMaxStreams the reader is told that it is one too
  // many. `unfinished`: what is read to its end now is not all that will be in the files, which the
  // reader is told.
  void Open(const Connection& connection, const NodeId& node, const std::string& name,
            const v1::OpenLogs& asked, bool unfinished);

  // As many as a coordinator has readers. All of them together look for new output as often as a
  // few do, so that each is served more slowly rather than the node.
  static constexpr std::size_t kMaxStreams = 256;

 private:
  class Call;
  class Feeder;
  const std::string log_root_;
  std::atomic<int> serving_ = 0;  // Feeders that send lines. Before feeders_, whose threads count.
  std::map<std::uint64_t, std::unique_ptr<Feeder>> feeders_;
};

}  // namespace regroup::agent
