#pragma once

#include <memory>
#include <set>
#include <string>

#include "common/base/ids.h"
#include "common/rpc/channel.h"
#include "proto/coordinator.grpc.pb.h"

namespace regroup::bench {

// Calls of one thread on a coordinator's Unix socket. Each is repeated until it is answered: the
// coordinator may be away. Gives up, ending the process, after a minute.
class CoordinatorClient {
 public:
  explicit CoordinatorClient(std::string socket_path) : socket_path_(std::move(socket_path)) {}

  void AwaitAnswer() { Jobs(); }
  // A job of this many nodes, one worker each; the same key is the same job.
  JobId Submit(const std::string& name, int nodes, const std::string& key);
  std::set<JobId> Jobs();

 private:
  template <class Request, class Reply, class Call>
  Reply Repeat(const Request& request, Call call);

  const std::string socket_path_;
  Connection connection_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
};

}  // namespace regroup::bench
