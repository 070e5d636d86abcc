#include "launcher/cli/commands/client.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/build_info.h"
#include "common/config/text.h"
#include "common/config/token.h"
#include "common/config/values.h"
#include "common/io/files.h"
#include "common/io/proc.h"
#include "common/io/unix_socket.h"
#include "common/report/text_style.h"
#include "common/rpc/convert.h"
#include "common/rpc/describe_listener.h"
#include "common/rpc/local_coordinator.h"
#include "common/rpc/proof.h"
#include "common/rpc/resolve.h"

namespace regroup::cli {
namespace {

using namespace std::chrono_literals;
constexpr Duration kCallLimit = 10s;
constexpr Duration kBusyRetry = 200ms;
constexpr Duration kBusyLimit = 8s;  // Readers that do not read are cut after 5 s.
constexpr std::size_t kMaxWarnings = 8, kMaxWarningBytes = 1'024;
constexpr Duration kFollowLimit = std::chrono::hours(24 * 365);

void SetDeadline(grpc::ClientContext& context, Duration limit) {
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::duration_cast<std::chrono::system_clock::duration>(limit));
}

}  // namespace

absl::Status Refused(const absl::Status& status) {
  if (status.code() != absl::StatusCode::kInvalidArgument) return status;
  UserErrorParts parts = PartsOf(status);
  return UserError(absl::StatusCode::kFailedPrecondition, parts.what, parts.because,
                   parts.try_this);
}

std::string NewKey() { return io::RandomHex(16); }

Client::Client(Place place, std::vector<Way> ways)
    : place_(std::move(place)), ways_(std::move(ways)) {}

absl::StatusOr<Connection> Client::ConnectionBy(Way& way) const {
  if (way.connection.channel != nullptr) return way.connection;
  absl::StatusOr<Connection> made = DialProved(*way.proved, place_.token);
  // Who listens there instead is told as of any other coordinator that does not answer.
  if (absl::IsFailedPrecondition(made.status()))
    return absl::UnavailableError(std::string(made.status().message()));
  if (made.ok()) way.connection = *made;
  return made;
}

absl::StatusOr<Client> Client::Dial(const Place& place) {
  std::vector<Way> ways;
  if (!place.socket.empty()) {
    absl::StatusOr<Connection> local = DialUnix(place.socket);
    if (local.ok()) {
      ways.push_back({*std::move(local), std::nullopt});
    } else if (!place.tcp) {
      return UserError(absl::StatusCode::kUnavailable, Cat("no coordinator at ", place.label),
                       std::string(local.status().message()), "regroup ps");
    }
  }
  if (place.tcp && (place.insecure || !place.token.empty())) {
    absl::StatusOr<std::vector<std::string>> hosts = ResolveHost(place.tcp->host);
    if (!hosts.ok()) {
      return UserError(absl::StatusCode::kUnavailable, Cat("cannot resolve ", place.tcp->host),
                       std::string(hosts.status().message()), "--coordinator with an IP address");
    }
    for (const std::string& host : *hosts) {
      const Address address{host, place.tcp->port};
      if (place.insecure) {
        ways.push_back({regroup::Dial(address), std::nullopt});
      } else {
        ways.push_back({Connection(), address});
      }
    }
  }
  return Client(place, std::move(ways));
}

// Says who listens there instead, where somebody does.
absl::Status Client::Explained(const absl::Status& status) const {
  if (status.code() == absl::StatusCode::kInvalidArgument) return Refused(status);
  const bool silent = status.code() == absl::StatusCode::kDeadlineExceeded;
  if (!silent && status.code() != absl::StatusCode::kUnavailable) return status;
  std::string because(status.message());
  bool another = false;
  // One that has this user's Unix socket asks nobody there for a token.
  const absl::Status local = place_.socket.empty() ? absl::NotFoundError("no socket")
                                                   : io::ConnectUnix(place_.socket).status();
  if (place_.tcp && !local.ok() && !absl::IsResourceExhausted(local)) {
    absl::StatusOr<std::vector<std::string>> hosts = ResolveHost(place_.tcp->host);
    if (hosts.ok() && !hosts->empty()) {
      ListenerDescription listener = DescribeListener(Address{hosts->front(), place_.tcp->port});
      const bool there =
          listener.kind == ListenerKind::kAsksForToken || listener.kind == ListenerKind::kRegroup;
      if (there && !place_.insecure && place_.token.empty())
        return NeedsToken(place_.label, place_.command);
      if (listener.kind != ListenerKind::kRegroup) because = listener.sentence;
      another = listener.kind == ListenerKind::kTorchStore || listener.kind == ListenerKind::kGrpc;
    }
  }
  if (silent && !another) {
    return UserError(status.code(), Cat("the coordinator at ", place_.label, " does not answer"),
                     "it takes the connection, but is stopped, stuck or very busy",
                     "again in a moment; regroup ps shows what its journal says");
  }
  const std::optional<CoordinatorLock> lock =
      place_.folder.empty() ? std::nullopt : ReadCoordinatorLock(place_.folder);
  return UserError(absl::StatusCode::kUnavailable,
                   Cat("the coordinator at ", place_.label, " cannot be reached"), because,
                   lock && !lock->command.empty()
                       ? lock->command
                       : "is it running? regroup ps shows what this host knows");
}

// What a coordinator sent is no fault of this command's line.
absl::Status Client::NoAnswer(const absl::Status& why) const {
  return UserError(absl::StatusCode::kDataLoss,
                   Cat("the coordinator at ", place_.label, " sent what is no answer"),
                   std::string(why.message()), "the regroup of that coordinator's build");
}

// Every command reads before it changes anything.
absl::Status Client::CheckVersion(const Version& theirs) const {
  const std::uint32_t apart =
      std::max(theirs.minor, kProtocolMinor) - std::min(theirs.minor, kProtocolMinor);
  if (theirs.major == kProtocolMajor && apart <= 1) return absl::OkStatus();
  return UserError(
      absl::StatusCode::kFailedPrecondition,
      Cat("the coordinator at ", place_.label, " speaks another protocol"),
      Cat("it speaks ", theirs.major, ".", theirs.minor, " (", theirs.build, "), this command ",
          kProtocolMajor, ".", kProtocolMinor, " (", BuildId(), ")"),
      "use the regroup of that coordinator's host, or install the same version on both");
}

template <class Reply, class Call>
absl::StatusOr<Reply> Client::Try(Duration limit, Call call) const {
  absl::Status last = absl::UnavailableError("it does not answer");
  for (Way& way : ways_) {
    // One that both ends have proved does not heal by itself: it is made anew, once.
    for (bool again = true; again;) {
      again = way.proved && way.connection.channel != nullptr;
      const absl::StatusOr<Connection> connection = ConnectionBy(way);
      last = connection.status();
      if (!connection.ok()) break;
      auto stub = regroup::v1::Coordinator::NewStub(connection->channel);
      grpc::ClientContext context;
      SetDeadline(context, limit);
      Reply reply;
      grpc::Status status = call(*stub, context, reply);
      if (status.ok()) return reply;
      last = FromGrpcStatus(status);
      if (last.code() != absl::StatusCode::kUnavailable) break;
      if (way.proved) way.connection = Connection();
    }
    if (last.code() != absl::StatusCode::kUnavailable) break;
  }
  return Explained(last);
}

absl::StatusOr<Reading> Client::Read(const regroup::v1::ReadRequest& request,
                                     Duration limit) const {
  const Instant begun = io::MonotonicNow();
  const auto call = [&](auto& stub, auto& context, auto& out) {
    return stub.Read(&context, request, &out);
  };
  absl::StatusOr<regroup::v1::ReadReply> answer = Try<regroup::v1::ReadReply>(limit, call);
  // Others read so much now that it takes no more.
  while (absl::IsResourceExhausted(answer.status()) && io::MonotonicNow() < begun + kBusyLimit) {
    std::this_thread::sleep_for(kBusyRetry);
    answer = Try<regroup::v1::ReadReply>(limit, call);
  }
  RETURN_IF_ERROR(answer.status());
  const regroup::v1::ReadReply& reply = *answer;
  Reading reading;
  absl::StatusOr<Version> version = FromProto(reply.version());
  if (!version.ok()) return NoAnswer(version.status());
  reading.version = *std::move(version);
  RETURN_IF_ERROR(CheckVersion(reading.version));
  const auto note = [&](const absl::Status& problem) {
    if (problem.ok()) return;
    const UserErrorParts parts = PartsOf(problem);
    reading.warnings.push_back(EscapeControls(Cat(parts.what, ": ", parts.because)));
  };
  absl::Status problem;
  for (const auto& job : reply.jobs()) {
    reading.jobs.push_back(ShowableJob(job, &problem));
    note(problem);
  }
  for (const auto& node : reply.nodes()) {
    reading.nodes.push_back(ShowableNode(node, &problem));
    note(problem);
  }
  for (const std::string& warning : reply.warnings()) {
    if (reading.warnings.size() < kMaxWarnings && warning.size() <= kMaxWarningBytes)
      reading.warnings.push_back(EscapeControls(warning));
  }
  if (reply.has_memory()) reading.memory = FromProto(reply.memory());
  return reading;
}

absl::StatusOr<Submitted> Client::Submit(const JobSpec& spec, const std::string& key, bool dry_run,
                                         bool now_or_never) const {
  regroup::v1::SubmitRequest request;
  request.set_key(key);
  *request.mutable_spec() = ToProto(spec);
  request.set_dry_run(dry_run);
  request.set_now_or_never(now_or_never);
  ASSIGN_OR_RETURN(auto reply, Try<regroup::v1::SubmitReply>(
                                   kCallLimit, [&](auto& stub, auto& context, auto& out) {
                                     return stub.Submit(&context, request, &out);
                                   }));
  Submitted submitted{reply.job(), std::nullopt};
  if (reply.has_waits()) {
    ASSIGN_OR_RETURN(submitted.waits, FromProto(reply.waits()));
  }
  return submitted;
}

absl::StatusOr<std::string> Client::Cancel(const std::string& job, bool now,
                                           const std::string& who) const {
  regroup::v1::CancelRequest request;
  request.set_key(NewKey());
  request.set_job(job);
  request.set_now(now);
  request.set_who(who);
  ASSIGN_OR_RETURN(auto reply, Try<regroup::v1::CancelReply>(
                                   kCallLimit, [&](auto& stub, auto& context, auto& out) {
                                     return stub.Cancel(&context, request, &out);
                                   }));
  return reply.job();
}

absl::StatusOr<std::string> Client::ForgetNode(const std::string& node) const {
  regroup::v1::ForgetNodeRequest request;
  request.set_node(node);
  ASSIGN_OR_RETURN(auto reply, Try<regroup::v1::ForgetNodeReply>(
                                   kCallLimit, [&](auto& stub, auto& context, auto& out) {
                                     return stub.ForgetNode(&context, request, &out);
                                   }));
  return reply.node();
}

absl::Status Client::Logs(const regroup::v1::LogSelection& selection,
                          const std::function<bool(const regroup::v1::LogsReply&)>& take) const {
  absl::Status last = absl::UnavailableError("it does not answer");
  for (Way& way : ways_) {
    const absl::StatusOr<Connection> connection = ConnectionBy(way);
    if (!connection.ok()) {
      last = connection.status();
      continue;
    }
    auto stub = regroup::v1::Coordinator::NewStub(connection->channel);
    grpc::ClientContext context;
    SetDeadline(context, kFollowLimit);
    auto stream = stub->Logs(&context, selection);
    regroup::v1::LogsReply reply;
    bool any = false;
    while (stream->Read(&reply)) {
      any = true;
      if (take(reply)) continue;
      context.TryCancel();
      while (stream->Read(&reply)) {
      }
      stream->Finish();
      return absl::OkStatus();
    }
    grpc::Status status = stream->Finish();
    if (status.ok()) return absl::OkStatus();
    last = FromGrpcStatus(status);
    if (way.proved) way.connection = Connection();
    if (any || last.code() != absl::StatusCode::kUnavailable) return last;
  }
  return Explained(last);
}

}  // namespace regroup::cli
