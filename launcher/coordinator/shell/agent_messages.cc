#include "launcher/coordinator/shell/agent_messages.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/rpc/convert.h"

namespace regroup::coordinator {
namespace {

bool Varint(std::string_view& bytes, std::uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    value |= std::uint64_t{byte & 127u} << shift;
    if (byte < 128) return true;
  }
  return false;
}

// Whatever has a length may be a message with fields of its own; text may look like one, too.
std::size_t FieldBytes(std::string_view bytes, int levels) {
  constexpr std::size_t kMessage = 256, kNumber = 32;
  std::size_t sum = 0;
  std::uint64_t tag = 0, value = 0;
  while (Varint(bytes, tag)) {
    switch (tag & 7) {
      case 0:
        if (!Varint(bytes, value)) return sum;
        sum += kNumber;
        break;
      case 1:
      case 5:
        bytes.remove_prefix(std::min<std::size_t>((tag & 7) == 1 ? 8 : 4, bytes.size()));
        sum += kNumber;
        break;
      case 2:
        if (!Varint(bytes, value) || value > bytes.size()) return sum;
        sum += kMessage;
        if (levels > 1) sum += FieldBytes(bytes.substr(0, value), levels - 1);
        bytes.remove_prefix(value);
        break;
      case 3: sum += kMessage; break;  // A group's fields follow, and its end.
      case 4: break;
      default: return sum;
    }
  }
  return sum;
}

}  // namespace

std::size_t BytesWhenParsed(std::string_view wire) {
  constexpr int kLevels = 5;
  return wire.size() + FieldBytes(wire, kLevels);
}

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
