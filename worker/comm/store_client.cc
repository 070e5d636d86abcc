#include "worker/comm/store_client.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/io/address.h"

namespace regroup::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::uint8_t kSet = 1, kGet = 3, kAdd = 4, kCheck = 5, kWait = 6, kCancelWait = 12,
                       kPing = 13;
constexpr char kValidate[] = {0x00, '\xce', '\xf7', '\x85', 0x3c};
constexpr std::uint64_t kMaxValueBytes = 8u << 20;  // The limit of the reference server.

template <class T>
void AppendRaw(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void AppendVector(std::string& out, std::string_view value) {
  AppendRaw<std::uint64_t>(out, value.size());
  out.append(value);
}

void AppendKey(std::string& out, std::string_view key) {
  AppendVector(out, absl::StrCat("/", std::string(key)));
}

int MillisecondsUntil(steady_clock::time_point end) {
  const auto left = std::chrono::ceil<milliseconds>(end - steady_clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000));
}

// Polls until ready, an error, or the deadline.
bool WaitFor(int fd, short events, steady_clock::time_point end) {
  for (;;) {
    pollfd item{fd, events, 0};
    const int left = MillisecondsUntil(end);
    const int ready = poll(&item, 1, left);
    if (ready > 0) return true;
    if (ready == 0 && left == 0) return false;
    if (ready < 0 && errno != EINTR) return true;  // The following call reports it.
  }
}

// A connected socket, or -1 with `error` telling why the last address did not answer.
int Dial(const addrinfo* addresses, steady_clock::time_point end, std::string& error) {
  for (const addrinfo* a = addresses; a != nullptr; a = a->ai_next) {
    const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
      error = std::strerror(errno);
      continue;
    }
    int failure = connect(fd, a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
    if (failure == EINPROGRESS) {
      socklen_t size = sizeof failure;
      if (!WaitFor(fd, POLLOUT, end)) {
        failure = ETIMEDOUT;
      } else {
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &size);
      }
    }
    if (failure == 0) {
      const int on = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      return fd;
    }
    error = std::strerror(failure);
    close(fd);
  }
  return -1;
}

}  // namespace

StoreClient::StoreClient(int fd, const std::string& host, std::uint16_t port)
    : fd_(fd), host_(host), port_(port), peer_(absl::StrCat(host, ":", port)) {}

StoreClient::StoreClient(StoreClient&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      patience_(other.patience_),
      host_(std::move(other.host_)),
      port_(other.port_),
      peer_(std::move(other.peer_)),
      failure_(std::move(other.failure_)) {}

StoreClient& StoreClient::operator=(StoreClient&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(patience_, other.patience_);
  std::swap(host_, other.host_);
  std::swap(port_, other.port_);
  std::swap(peer_, other.peer_);
  std::swap(failure_, other.failure_);
  return *this;
}

StoreClient::~StoreClient() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<StoreClient> StoreClient::Connect(const std::string& host, std::uint16_t port,
                                                 Duration deadline) {
  const auto end = steady_clock::now() + deadline;
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  std::string error = "no address";
  for (milliseconds pause(5);; pause = std::min<milliseconds>(pause * 2, milliseconds(250))) {
    addrinfo* addresses = nullptr;
    if (const int failed =
            getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &addresses)) {
      error = gai_strerror(failed);
    } else {
      const int fd = Dial(addresses, end, error);
      freeaddrinfo(addresses);
      if (fd >= 0) {
        StoreClient client(fd, host, port);
        const absl::Status greeted = client.Handshake(end - steady_clock::now());
        if (greeted.ok()) return client;
        error = std::string(greeted.message());
      }
    }
    if (steady_clock::now() + pause >= end) break;
    std::this_thread::sleep_for(pause);
  }
  return absl::UnavailableError(absl::StrCat("the generation's store at ", host, ":", port,
                                             " does not answer within ", Seconds(deadline),
                                             " s: ", error));
}

absl::Status StoreClient::Handshake(Duration deadline) {
  const std::uint32_t nonce = static_cast<std::uint32_t>(getpid());
  std::string request(kValidate, sizeof kValidate);
  AppendRaw(request, kPing);
  AppendRaw(request, nonce);
  RETURN_IF_ERROR(Send(request, deadline));
  std::uint32_t echo = 0;
  RETURN_IF_ERROR(Receive(&echo, sizeof echo, deadline));
  if (echo != nonce) return absl::UnavailableError("what answers is not a TCPStore");
  return absl::OkStatus();
}

absl::Status StoreClient::Renew(Duration deadline) {
  if (failure_.ok()) return absl::OkStatus();
  ASSIGN_OR_RETURN(*this, Connect(host_, port_, deadline));
  return absl::OkStatus();
}

absl::Status StoreClient::Fail(absl::Status why) {
  failure_ = why;
  return why;
}

absl::Status StoreClient::Send(std::string_view bytes, Duration deadline) {
  RETURN_IF_ERROR(failure_);
  const auto end = steady_clock::now() + deadline;
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
      if (!WaitFor(fd_, POLLOUT, end))
        return Fail(absl::UnavailableError(absl::StrCat("store ", peer_, " does not read")));
    } else {
      return Fail(
          absl::UnavailableError(absl::StrCat("store ", peer_, ": ", std::strerror(errno))));
    }
  }
  return absl::OkStatus();
}

absl::Status StoreClient::Receive(void* out, std::size_t size, Duration deadline) {
  RETURN_IF_ERROR(failure_);
  const auto end = steady_clock::now() + deadline;
  char* at = static_cast<char*>(out);
  while (size > 0) {
    const ssize_t got = recv(fd_, at, size, 0);
    if (got > 0) {
      at += got;
      size -= static_cast<std::size_t>(got);
    } else if (got == 0) {
      return Fail(absl::UnavailableError(absl::StrCat("store ", peer_, " closed the connection")));
    } else if (errno == EAGAIN || errno == EINTR) {
      if (WaitFor(fd_, POLLIN, end)) continue;
      failure_ = absl::UnavailableError(absl::StrCat("store ", peer_, " did not answer in time"));
      return absl::DeadlineExceededError(failure_.message());
    } else {
      return Fail(
          absl::UnavailableError(absl::StrCat("store ", peer_, ": ", std::strerror(errno))));
    }
  }
  return absl::OkStatus();
}

absl::Status StoreClient::Set(std::string_view key, std::string_view value) {
  std::string request;
  AppendRaw(request, kSet);
  AppendKey(request, key);
  AppendVector(request, value);
  return Send(request, patience_);
}

absl::StatusOr<std::string> StoreClient::Get(std::string_view key) {
  std::string request;
  AppendRaw(request, kGet);
  AppendKey(request, key);
  RETURN_IF_ERROR(Send(request, patience_));
  std::uint64_t size = 0;
  RETURN_IF_ERROR(Receive(&size, sizeof size, patience_));
  if (size > kMaxValueBytes) {
    return Fail(absl::ResourceExhaustedError(absl::StrCat("store ", peer_, " announces a value of ",
                                                          size, " bytes for ", std::string(key),
                                                          "; limit ", kMaxValueBytes)));
  }
  std::string value(size, '\0');
  RETURN_IF_ERROR(Receive(value.data(), value.size(), patience_));
  return value;
}

absl::StatusOr<std::int64_t> StoreClient::Add(std::string_view key, std::int64_t delta) {
  std::string request;
  AppendRaw(request, kAdd);
  AppendKey(request, key);
  AppendRaw(request, delta);
  RETURN_IF_ERROR(Send(request, patience_));
  std::int64_t value = 0;
  RETURN_IF_ERROR(Receive(&value, sizeof value, patience_));
  return value;
}

absl::Status StoreClient::SendQuestion(std::uint8_t opcode, const std::vector<std::string>& keys) {
  std::string request;
  AppendRaw(request, opcode);
  AppendRaw<std::uint64_t>(request, keys.size());
  for (const std::string& key : keys) AppendKey(request, key);
  return Send(request, patience_);
}

absl::StatusOr<bool> StoreClient::Check(const std::vector<std::string>& keys) {
  RETURN_IF_ERROR(SendQuestion(kCheck, keys));
  std::uint8_t answer = 0;
  RETURN_IF_ERROR(Receive(&answer, sizeof answer, patience_));
  return answer == 0;
}

absl::StatusOr<std::string> StoreClient::LocalIp() const {
  ASSIGN_OR_RETURN(const Address local, io::LocalAddressOf(fd_));
  return local.host;
}

absl::Status StoreClient::Wait(const std::vector<std::string>& keys, Duration deadline) {
  RETURN_IF_ERROR(SendQuestion(kWait, keys));
  std::uint8_t answer = 0;
  if (const absl::Status all = Receive(&answer, 1, deadline); !absl::IsDeadlineExceeded(all))
    return all;
  failure_ = absl::OkStatus();
  // The server answers a cancel with 1 in any case; a late 0 may come before it.
  std::string request;
  AppendRaw(request, kCancelWait);
  RETURN_IF_ERROR(Send(request, patience_));
  const auto end = steady_clock::now() + patience_;
  while (answer != 1) {
    if (const absl::Status cancelled = Receive(&answer, 1, end - steady_clock::now());
        !cancelled.ok())
      return Fail(absl::UnavailableError(cancelled.message()));
  }
  return absl::DeadlineExceededError(absl::StrCat("store ", peer_, ": not all of ", keys.size(),
                                                  " keys were set within ", Seconds(deadline),
                                                  " s"));
}

}  // namespace regroup::worker
