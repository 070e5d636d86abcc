#pragma once

// One message of an agent's session as the coordinator takes it, checked field by field. Pure.

#include <cstddef>
#include <string_view>
#include <variant>

#include "absl/status/statusor.h"
#include "common/base/control.h"
#include "proto/coordinator.pb.h"

namespace regroup::coordinator {

struct LeaveRequest {  // As LeaveAsked of the core.
  int signal = 0;
  bool now = false;
};
using AgentSaid = std::variant<Hello, LaunchRequest, HeartbeatMessage, GroupReport, WorkerProgress,
                               CommitRequest, Notice, LeaveRequest>;

// What a message of these bytes takes in memory, guessed from above without parsing it: a message
// inside another is two bytes on the wire, and more than a hundred once parsed.
std::size_t BytesWhenParsed(std::string_view wire);

// InvalidArgument names the field, its value and its limit.
absl::StatusOr<AgentSaid> DecodeAgentMessage(const v1::AgentMessage& message);

}  // namespace regroup::coordinator
