#pragma once

// A peer that says on a session whatever it is told to. Blocking; of one thread.

#include <grpcpp/client_context.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/rpc/channel.h"
#include "common/rpc/convert.h"
#include "proto/coordinator.grpc.pb.h"

namespace regroup::testing {

class FakeAgent {
 public:
  // The whole session lasts for `limit` at most.
  explicit FakeAgent(Connection connection,
                     std::chrono::milliseconds limit = std::chrono::seconds(20));
  ~FakeAgent();  // Cancels.

  // What an honest agent would begin with.
  static pb::AgentMessage Hello(const std::string& name);

  // False: the stream is over.
  bool Send(const pb::AgentMessage& message);
  // The next message; unset: the stream is over.
  std::optional<pb::CoordinatorMessage> Next();
  // Skips what is not looked for; unset: the stream ended before.
  std::optional<pb::CoordinatorMessage> Until(
      const std::function<bool(const pb::CoordinatorMessage&)>& wanted);
  // Says hello and waits for the welcome; false: refused or ended.
  bool Join(const std::string& name);
  // Becomes a running member of the next job it is asked to prepare: all its order's ranks "run".
  // Unset: the stream ended before.
  std::optional<pb::GroupReport> TakeJob();
  // How the stream ended. Cancels it first.
  grpc::Status Leave();

 private:
  Connection connection_;
  std::unique_ptr<pb::Coordinator::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<pb::AgentMessage, pb::CoordinatorMessage>> stream_;
  std::uint64_t reports_ = 0;
};

}  // namespace regroup::testing
