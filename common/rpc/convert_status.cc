#include <grpcpp/support/status.h>

#include <cerrno>
#include <cstring>
#include <string>

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

// Of what gRPC itself says, people are told only the words of the operating system, as in "failed
// to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.4:29400: Failed to connect to
// remote host: Connection refused". The rest is said in our own.
constexpr int kErrors[] = {ECONNREFUSED, ECONNRESET,    ECONNABORTED, ENOENT,  EACCES, EPERM,
                           EHOSTUNREACH, ENETUNREACH,   ETIMEDOUT,    EPIPE,   EMFILE, ENFILE,
                           ENOBUFS,      EADDRNOTAVAIL, EHOSTDOWN,    ENETDOWN};

std::string TransportText(grpc::StatusCode code, const std::string& said) {
  for (int error : kErrors) {
    const std::string text = std::strerror(error);
    if (said.find(text) != std::string::npos) return text;
  }
  switch (code) {
    case grpc::StatusCode::DEADLINE_EXCEEDED: return "it has not answered in time";
    case grpc::StatusCode::UNAVAILABLE: return "the connection was closed";
    case grpc::StatusCode::CANCELLED: return "the call was ended";
    case grpc::StatusCode::RESOURCE_EXHAUSTED: return "the message is too large";
    case grpc::StatusCode::UNIMPLEMENTED: return "it does not know this call; its version differs";
    default: return "the connection failed, code " + std::to_string(code);
  }
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
  return absl::Status(CodeOf(status.error_code()),
                      TransportText(status.error_code(), status.error_message()));
}

}  // namespace regroup
