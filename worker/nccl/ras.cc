#include "worker/nccl/ras.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/config/env.h"
#include "common/io/address.h"
#include "worker/nccl/nccl_api.h"

namespace regroup::worker {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kAddress[] = "NCCL_RAS_ADDR", kEnable[] = "NCCL_RAS_ENABLE";
constexpr int kOldestWithRas = NcclVersion(2, 24, 1);
constexpr std::uint16_t kUsualPort = 28028;
constexpr std::size_t kMostRead = 64 << 10;

// One conversation, which is over at `end`.
class Conversation {
 public:
  explicit Conversation(Clock::time_point end) : end_(end) {}

  bool Connect(const Address& address) {
    const auto to = io::ToSocketAddress(address);
    if (!to.ok()) return false;
    socket_.reset(
        ::socket(to->get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
    if (!socket_) return false;
    if (::connect(socket_.get(), to->get(), to->size) == 0) return true;
    if (errno != EINPROGRESS || !Await(POLLOUT)) return false;
    int error = 0;
    socklen_t size = sizeof error;
    return getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
  }
  // What is said is shorter than what any socket takes at once.
  bool Say(std::string_view line) {
    return ::send(socket_.get(), line.data(), line.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(line.size());
  }
  // Up to a newline, which is left out.
  std::optional<std::string> HearLine() {
    for (;;) {
      if (const std::size_t newline = heard_.find('\n'); newline != std::string::npos) {
        std::string line = heard_.substr(0, newline);
        heard_.erase(0, newline + 1);
        return line;
      }
      if (!HearMore()) return std::nullopt;
    }
  }
  // Until the other side has ended it; `whole`: it has, in time and in bounds.
  std::string HearAll(bool& whole) {
    while (HearMore()) continue;
    whole = closed_;
    return heard_;
  }

 private:
  bool Await(short what) {
    for (;;) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now());
      if (left.count() <= 0) return false;
      pollfd item{socket_.get(), what, 0};
      const int ready = ::poll(&item, 1, static_cast<int>(left.count()));
      if (ready > 0) return true;
      if (ready < 0 && errno != EINTR) return false;
    }
  }
  bool HearMore() {
    if (closed_ || heard_.size() >= kMostRead || !Await(POLLIN)) return false;
    std::array<char, 4096> buffer;
    const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    closed_ = got == 0;
    heard_.append(buffer.data(), static_cast<std::size_t>(got));
    return !closed_;
  }

  const Clock::time_point end_;
  io::UniqueFd socket_;
  std::string heard_;
  bool closed_ = false;
};

// Without what every answer begins with, empty lines and rulers.
std::vector<std::string> LinesOf(std::string_view text) {
  const std::size_t from = text.find("Communicators...");
  if (from != std::string_view::npos) text.remove_prefix(from);
  std::vector<std::string> lines;
  while (!text.empty()) {
    std::string line(text.substr(0, text.find('\n')));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    absl::StripTrailingAsciiWhitespace(&line);
    if (line.find_first_not_of("= ") == std::string::npos) continue;
    for (char& c : line) {
      if (static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) >= 0x7f) c = ' ';
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

std::string Told(const std::string& address, std::string_view text, bool whole) {
  std::string told = absl::StrCat("NCCL's RAS service at ", address, " says:\n");
  const std::size_t head = told.size();
  std::size_t taken = 0;
  const std::vector<std::string> lines = LinesOf(text);
  for (const std::string& line : lines) {
    if (taken == kMostRasLines || told.size() - head + line.size() + 3 > kMostRasBytes) break;
    absl::StrAppend(&told, "  ", line, "\n");
    ++taken;
  }
  if (taken < lines.size()) {
    absl::StrAppend(&told, "  (and more, which was cut)\n");
  } else if (!whole) {
    absl::StrAppend(&told, "  (and had not ended in time)\n");
  }
  return told;
}

std::string AskAt(const Address& at, Clock::time_point end) {
  const std::string address = io::FormatAddress(at);
  Conversation with(end);
  if (!with.Connect(at)) return "";
  const std::string silent = absl::StrCat("NCCL's RAS service at ", address, " does not answer\n");
  if (!with.Say("CLIENT PROTOCOL 2\n")) return silent;
  const std::optional<std::string> greeting = with.HearLine();
  if (!greeting) return silent;
  if (!absl::StartsWithIgnoreCase(*greeting, "SERVER PROTOCOL "))
    return absl::StrCat("what listens at ", address, " is not NCCL's RAS service\n");
  // So long it waits for each process of the job, and half as long for what is behind those. One
  // that takes no fractions says so, and waits as it always does.
  const double left = Seconds(end - Clock::now());
  if (!with.Say(absl::StrCat("TIMEOUT ", std::max(0.05, left / 2), "\n")) || !with.HearLine() ||
      !with.Say("STATUS\n"))
    return silent;
  bool whole = false;
  const std::string text = with.HearAll(whole);
  return text.empty() ? silent : Told(address, text, whole);
}

}  // namespace

RasPlace ChooseRasPlace(int nccl_version) {
  if (nccl_version < kOldestWithRas || GetEnv(kEnable) == "0") return {};
  if (const auto set = GetEnv(kAddress)) {
    const auto parts = io::ParseHostPort(*set, kUsualPort);
    const bool asks = parts.ok() && (parts->host == "localhost" || io::IsIp(parts->host));
    return {asks ? *set : "", {}};
  }
  RasPlace place;
  place.held.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP));
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int on = 1;
  // As NCCL's own socket does, so both may have the port. A socket of another user may not.
  if (!place.held || setsockopt(place.held.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      setsockopt(place.held.get(), SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) != 0 ||
      ::bind(place.held.get(), reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0)
    return {};
  const absl::StatusOr<Address> at = io::LocalAddressOf(place.held.get());
  if (!at.ok()) return {};
  place.address = io::FormatAddress(*at);
  SetEnv(kAddress, place.address);
  return place;
}

std::string AskRas(const std::string& address, Duration patience) {
  const auto end = Clock::now() + patience;
  const auto parts = io::ParseHostPort(address, kUsualPort);
  if (!parts.ok()) return "";
  if (parts->host != "localhost") return AskAt({parts->host, parts->port}, end);
  std::string said = AskAt({"127.0.0.1", parts->port}, end);
  return said.empty() ? AskAt({"::1", parts->port}, end) : said;
}

}  // namespace regroup::worker
