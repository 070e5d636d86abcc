#include "common/rpc/proof.h"

#include <grpcpp/create_channel_posix.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/io/address.h"
#include "common/io/fd.h"
#include "common/io/files.h"
#include "common/io/proc.h"

namespace regroup {
namespace {

constexpr std::string_view kTurnedAway =
    "this Regroup coordinator asks for its token: regroup token on its host prints it";

std::string Proof(std::string_view token, std::string_view end, const Nonces& nonces) {
  std::string said(end);
  said += '\0';
  said += nonces.caller;
  said += nonces.coordinator;
  return HmacSha256(token, said);
}

int LeftMs(Instant until) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(until - io::MonotonicNow()).count();
  return static_cast<int>(std::max<std::int64_t>(left, 0));
}

absl::Status Failed(int error) { return absl::UnavailableError(std::strerror(error)); }

absl::StatusOr<io::UniqueFd> Connect(const Address& address, Instant until) {
  ASSIGN_OR_RETURN(const io::SocketAddress at, io::ToSocketAddress(address));
  io::UniqueFd fd(::socket(at.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return Failed(errno);
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (::connect(fd.get(), at.get(), at.size) == 0) return fd;
  if (errno != EINPROGRESS) return Failed(errno);
  pollfd waiting{fd.get(), POLLOUT, 0};
  if (::poll(&waiting, 1, LeftMs(until)) <= 0) return Failed(ETIMEDOUT);
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return Failed(error);
  return fd;
}

// Some dozens of bytes on a fresh connection: they always fit.
absl::Status Say(int fd, std::string_view bytes) {
  const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(bytes.size()) ? absl::OkStatus() : Failed(errno);
}

// Exactly so many bytes; fewer where the other end closed.
absl::StatusOr<std::string> Hear(int fd, std::size_t size, Instant until) {
  std::string bytes(size, '\0');
  std::size_t got = 0;
  while (got < size) {
    pollfd waiting{fd, POLLIN, 0};
    if (::poll(&waiting, 1, LeftMs(until)) <= 0) return Failed(ETIMEDOUT);
    const ssize_t more = ::recv(fd, bytes.data() + got, size - got, 0);
    if (more < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (more < 0) return Failed(errno);
    if (more == 0) break;
    got += static_cast<std::size_t>(more);
  }
  bytes.resize(got);
  return bytes;
}

bool IsGreeting(const std::string& bytes) {
  return bytes.size() == 1 + kNonceBytes &&
         (bytes.front() == kAsks || bytes.front() == kTakesEverybody);
}

absl::Status NoCoordinator(const std::string& where) {
  return absl::FailedPreconditionError(
      absl::StrCat("what listens on ", where, " is no Regroup coordinator, or is ending"));
}

}  // namespace

std::string HmacSha256(std::string_view key, std::string_view text) {
  unsigned char bytes[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  const unsigned char* made =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), bytes, &size);
  CHECK(made != nullptr && size == kProofBytes);
  return std::string(reinterpret_cast<const char*>(bytes), size);
}

std::string NewNonce() { return io::RandomHex(kNonceBytes / 2); }

std::string CoordinatorProof(std::string_view token, const Nonces& nonces) {
  return Proof(token, "coordinator", nonces);
}

std::string CallerProof(std::string_view token, const Nonces& nonces) {
  return Proof(token, "caller", nonces);
}

bool SameSecret(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string TurnedAway() {
  // Frames: 3 bytes length, type, flags, 4 bytes stream. SETTINGS (4), empty; GOAWAY (7): last
  // stream 0, INADEQUATE_SECURITY (12), a text.
  const std::size_t size = 8 + kTurnedAway.size();
  std::string frames("\0\0\0\4\0\0\0\0\0", 9);
  frames += std::string("\0\0", 2) + static_cast<char>(size);
  frames += std::string("\7\0\0\0\0\0", 6);
  frames += std::string("\0\0\0\0\0\0\0\14", 8);
  return frames += kTurnedAway;
}

bool IsTurnedAway(std::string_view answer) {
  return answer.find(kTurnedAway) != std::string_view::npos;
}

std::optional<char> AskWhoIsTaken(int fd, Duration limit) {
  if (!Say(fd, std::string(kProofMagic) + NewNonce()).ok()) return std::nullopt;
  const absl::StatusOr<std::string> greeting =
      Hear(fd, 1 + kNonceBytes, io::MonotonicNow() + limit);
  if (!greeting.ok() || !IsGreeting(*greeting)) return std::nullopt;
  return greeting->front();
}

absl::Status ProveTo(int fd, std::string_view token, const std::string& where, Instant until) {
  Nonces nonces;
  nonces.caller = NewNonce();
  RETURN_IF_ERROR(Say(fd, std::string(kProofMagic) + nonces.caller));
  ASSIGN_OR_RETURN(const std::string greeting, Hear(fd, 1 + kNonceBytes, until));
  if (!IsGreeting(greeting)) return NoCoordinator(where);
  nonces.coordinator = greeting.substr(1);
  RETURN_IF_ERROR(Say(fd, CallerProof(token, nonces)));
  ASSIGN_OR_RETURN(const std::string answer, Hear(fd, 1 + kProofBytes, until));
  if (answer.empty()) return NoCoordinator(where);
  const bool proved =
      answer.front() == kProved && SameSecret(answer.substr(1), CoordinatorProof(token, nonces));
  if (proved) return absl::OkStatus();
  return UserError(absl::StatusCode::kUnauthenticated,
                   absl::StrCat("the coordinator at ", where, " has another token"),
                   "REGROUP_TOKEN or --token-file gives one that it does not know",
                   "regroup token on its host prints the right one");
}

absl::StatusOr<Connection> DialProved(const Address& address, std::string_view token,
                                      const DialOptions& options) {
  const Instant until = io::MonotonicNow() + options.connect_limit;
  Connection connection;
  connection.target = io::FormatAddress(address);
  ASSIGN_OR_RETURN(io::UniqueFd fd, Connect(address, until));
  RETURN_IF_ERROR(ProveTo(fd.get(), token, connection.target, until));
  connection.channel = grpc::CreateCustomInsecureChannelFromFd(connection.target, fd.release(),
                                                               TransportArguments(options));
  return connection;
}

}  // namespace regroup
