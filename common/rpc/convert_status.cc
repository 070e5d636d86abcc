#include <grpcpp/support/status.h>

#include "common/base/check.h"
#include "common/base/user_error.h"
#include "common/rpc/convert.h"

namespace regroup {
namespace {

// gRPC's codes are abseil's, 0 to 16.
absl::StatusCode CodeOf(int code) {
  const bool known = code > 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown;
}

// A gRPC message travels in a header: text beyond this belongs into the details.
constexpr std::size_t kMaxHeaderText = 2048;

// "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.4:29400: Failed to connect
// to remote host: Connection refused": only its end says anything.
std::string WithoutDialling(std::string text) {
  constexpr char kLast[] = "last error: ", kFailed[] = "Failed to connect to remote host: ";
  const std::size_t last = text.find(kLast);
  if (last == std::string::npos) return text;
  std::size_t address = text.find(" ipv", last);
  if (address == std::string::npos) address = text.find(" unix:", last);
  std::size_t end = address == std::string::npos ? address : text.find(": ", address);
  if (end == std::string::npos) return text;
  std::string cause = text.substr(end + 2);
  if (cause.rfind(kFailed, 0) == 0) cause.erase(0, sizeof kFailed - 1);
  return cause.empty() ? text : cause;
}

}  // namespace

pb::Refused RefusedFrom(const absl::Status& status) {
  CHECK(!status.ok());
  const UserErrorParts parts = PartsOf(status);
  pb::Refused out;
  out.set_code(static_cast<int>(status.code()));
  out.set_what(parts.what.substr(0, kMaxTextBytes));
  out.set_because(parts.because.substr(0, kMaxTextBytes));
  out.set_try_this(parts.try_this.substr(0, kMaxTextBytes));
  return out;
}

absl::Status StatusFrom(const pb::Refused& refused) {
  return UserError(CodeOf(refused.code()), refused.what().substr(0, kMaxTextBytes),
                   refused.because().substr(0, kMaxTextBytes),
                   refused.try_this().substr(0, kMaxTextBytes));
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      std::string(status.message().substr(0, kMaxHeaderText)),
                      RefusedFrom(status).SerializeAsString());
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  pb::Refused refused;
  if (!status.error_details().empty() && refused.ParseFromString(status.error_details()) &&
      refused.code() != 0) {
    return StatusFrom(refused);
  }
  return absl::Status(CodeOf(status.error_code()), WithoutDialling(status.error_message()));
}

}  // namespace regroup
