#include "common/rpc/describe_listener.h"

#include <grpcpp/client_context.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "common/io/address.h"
#include "common/io/fd.h"
#include "common/rpc/channel.h"
#include "common/rpc/convert.h"
#include "common/rpc/proof.h"
#include "proto/coordinator.grpc.pb.h"

namespace regroup {
namespace {

using Clock = std::chrono::steady_clock;

int LeftMs(Clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::max<std::int64_t>(left, 0));
}

struct Dialled {
  io::UniqueFd fd;
  int error = 0;  // Errno; ETIMEDOUT when nothing answered in time.
};

Dialled Connect(const Address& address, Clock::time_point deadline) {
  absl::StatusOr<io::SocketAddress> socket_address = io::ToSocketAddress(address);
  if (!socket_address.ok()) return {{}, EINVAL};
  Dialled out;
  out.fd.reset(
      socket(socket_address->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!out.fd) return {{}, errno};
  if (connect(out.fd.get(), socket_address->get(), socket_address->size) == 0) return out;
  if (errno != EINPROGRESS) return {{}, errno};
  pollfd waiting{out.fd.get(), POLLOUT, 0};
  if (poll(&waiting, 1, LeftMs(deadline)) <= 0) return {{}, ETIMEDOUT};
  socklen_t size = sizeof out.error;
  getsockopt(out.fd.get(), SOL_SOCKET, SO_ERROR, &out.error, &size);
  return out;
}

// What arrives until `deadline` or the first `enough` bytes; nullopt when the other side closed
// without a byte.
std::optional<std::string> ReadSome(int fd, std::size_t enough, Clock::time_point deadline) {
  std::string text;
  while (text.size() < enough) {
    pollfd waiting{fd, POLLIN, 0};
    if (poll(&waiting, 1, LeftMs(deadline)) <= 0) break;
    char bytes[256];
    const ssize_t size = recv(fd, bytes, sizeof bytes, 0);
    if (size > 0) {
      text.append(bytes, static_cast<std::size_t>(size));
      continue;
    }
    if (text.empty()) return std::nullopt;
    break;
  }
  return text;
}

// An HTTP/2 server opens with a SETTINGS frame: 3 bytes length, type 4, flags 0, stream 0.
bool IsHttp2Settings(const std::string& text) {
  return text.size() >= 9 && text[3] == 4 && text[4] == 0 &&
         text.compare(5, 4, std::string(4, '\0')) == 0;
}

// What answers a client's part of HTTP/2's beginning: a server says its own, a store closes.
std::optional<std::string> GreetingOf(int fd, Clock::time_point deadline) {
  constexpr std::string_view kPreface("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
  (void)!send(fd, kPreface.data(), kPreface.size(), MSG_NOSIGNAL);
  return ReadSome(fd, 9, deadline);
}

// A TCPStore echoes the number of a ping that follows its magic number.
bool IsTorchStore(const Address& address, Clock::time_point deadline) {
  const Dialled dialled = Connect(address, deadline);
  if (dialled.error != 0) return false;
  constexpr char kValidateAndPing[] =
      "\x00\xce\xf7\x85\x3c\x0d"
      "rGrp";
  const std::string hello(kValidateAndPing, sizeof kValidateAndPing - 1);
  if (send(dialled.fd.get(), hello.data(), hello.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(hello.size())) {
    return false;
  }
  const std::optional<std::string> answer = ReadSome(dialled.fd.get(), 4, deadline);
  return answer && *answer == "rGrp";
}

// Any answer that carries our details, a refusal too, is ours.
bool IsRegroup(const Address& address, Clock::time_point deadline) {
  const Connection connection = Dial(address);
  const std::unique_ptr<pb::Coordinator::Stub> stub = pb::Coordinator::NewStub(connection.channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(LeftMs(deadline)));
  context.set_wait_for_ready(true);
  pb::ReadRequest request;
  pb::ReadReply reply;
  request.set_what(pb::ReadRequest::WHAT_NODES);
  const grpc::Status status = stub->Read(&context, request, &reply);
  pb::Refused refused;
  return status.ok() ||
         (!status.error_details().empty() && refused.ParseFromString(status.error_details()));
}

std::optional<ListenerDescription> Coordinator(std::optional<char> takes,
                                               const std::string& where) {
  if (takes == kTakesEverybody)
    return ListenerDescription{ListenerKind::kRegroup, "a Regroup coordinator listens on " + where};
  if (takes == kAsks) {
    return ListenerDescription{ListenerKind::kAsksForToken, "a Regroup coordinator listens on " +
                                                                where + " and asks for its token"};
  }
  return std::nullopt;
}

}  // namespace

ListenerDescription DescribeListener(const Address& address, Duration limit) {
  const std::string where = io::FormatAddress(address);
  const Clock::time_point deadline = Clock::now() + limit;
  const Dialled dialled = Connect(address, deadline);
  if (dialled.error == ECONNREFUSED) return {ListenerKind::kNobody, "nobody listens on " + where};
  if (dialled.error == ETIMEDOUT) return {ListenerKind::kSilent, where + " does not answer"};
  if (dialled.error != 0) {
    return {ListenerKind::kSilent, where + " cannot be reached: " + std::strerror(dialled.error)};
  }
  const Duration patience = limit / 5;
  if (const auto ours = Coordinator(AskWhoIsTaken(dialled.fd.get(), patience), where)) return *ours;
  const Dialled again = Connect(address, deadline);
  const std::optional<std::string> greeting =
      again.error == 0 ? GreetingOf(again.fd.get(), std::min(deadline, Clock::now() + patience))
                       : std::nullopt;
  if (greeting && IsHttp2Settings(*greeting)) {
    if (IsRegroup(address, deadline))
      return {ListenerKind::kRegroup, "a Regroup coordinator listens on " + where};
    return {ListenerKind::kGrpc, "another gRPC service listens on " + where};
  }
  const bool store = IsTorchStore(address, deadline);
  const Dialled last = Connect(address, Clock::now() + patience);
  // What took us but said nothing may have been on its way out.
  if (!store && !greeting && last.error == ECONNREFUSED)
    return {ListenerKind::kNobody, "nobody listens on " + where + " any more"};
  // A coordinator that was loading its journal did not answer in time, and is a store, too.
  if (last.error == 0) {
    if (const auto ours = Coordinator(AskWhoIsTaken(last.fd.get(), patience), where)) return *ours;
  }
  if (store) return {ListenerKind::kTorchStore, "a torchrun seems to listen on " + where};
  if (again.error == 0 && !greeting) {
    return {
        ListenerKind::kSilent,
        where +
            " ends every connection without a word; a coordinator does so for up to a minute when "
            "many connections of this host were cut, made no call or left their replies"};
  }
  return {ListenerKind::kSomething, "something that is not Regroup listens on " + where};
}

}  // namespace regroup
