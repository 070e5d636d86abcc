#include "launcher/coordinator/shell/agent_messages.h"

#include <utility>

#include "common/rpc/convert.h"

namespace regroup::coordinator {

absl::StatusOr<AgentSaid> DecodeAgentMessage(const pb::AgentMessage& message) {
  const auto wrap = [](auto value) -> absl::StatusOr<AgentSaid> {
    if (!value.ok()) return value.status();
    return AgentSaid(*std::move(value));
  };
  switch (message.body_case()) {
    case pb::AgentMessage::kHello: return wrap(FromProto(message.hello()));
    case pb::AgentMessage::kLaunch: return wrap(FromProto(message.launch()));
    case pb::AgentMessage::kHeartbeat: return wrap(FromProto(message.heartbeat()));
    case pb::AgentMessage::kReport: return wrap(FromProto(message.report()));
    case pb::AgentMessage::kProgress: return wrap(FromProto(message.progress()));
    case pb::AgentMessage::kCommit: return wrap(FromProto(message.commit()));
    case pb::AgentMessage::kNotice: return wrap(FromProto(message.notice()));
    case pb::AgentMessage::kLeave: {
      const int signal = message.leave().signal();
      if (signal < 0 || signal > 64)
        return absl::InvalidArgumentError("leave.signal: is not in [0, 64]");
      return AgentSaid(LeaveRequest{signal, message.leave().now()});
    }
    case pb::AgentMessage::BODY_NOT_SET:
      return absl::InvalidArgumentError("message: is empty or of a kind not known here");
  }
  return absl::InvalidArgumentError("message: is of a kind not known here");
}

}  // namespace regroup::coordinator
