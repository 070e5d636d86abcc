#include "worker/comm/host_links.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

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

constexpr std::uint64_t kHelloMagic = 0x5247434F484F5354;  // "RGCOHOST".
constexpr std::uint32_t kCalls = 1, kControl = 2;
constexpr std::size_t kMaxStrangers = 32;
constexpr Duration kStrangerPatience = std::chrono::seconds(5);

// Either side shows its half of the secret.
struct Hello {
  std::uint64_t magic = kHelloMagic;
  std::uint32_t channel = 0, from = 0, to = 0, hosts = 0;
  std::array<std::byte, 16> half{};
};

Hello HelloOf(const HostMeeting& meeting, std::uint32_t channel, int from, int to, bool dials) {
  Hello hello;
  hello.channel = channel;
  hello.from = static_cast<std::uint32_t>(from);
  hello.to = static_cast<std::uint32_t>(to);
  hello.hosts = static_cast<std::uint32_t>(meeting.addresses.size());
  std::memcpy(hello.half.data(), meeting.secret.data() + (dials ? 0 : hello.half.size()),
              hello.half.size());
  return hello;
}

// Takes as long whatever the first difference is.
bool Same(const Hello& a, const Hello& b) {
  const auto* x = reinterpret_cast<const unsigned char*>(&a);
  const auto* y = reinterpret_cast<const unsigned char*>(&b);
  unsigned difference = 0;
  for (std::size_t i = 0; i < sizeof(Hello); ++i) difference |= x[i] ^ y[i];
  return difference == 0;
}

int MillisecondsUntil(steady_clock::time_point end) {
  const auto left = std::chrono::ceil<milliseconds>(end - steady_clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000));
}

bool Ready(int fd, short events, steady_clock::time_point end) {
  for (;;) {
    pollfd item{fd, events, 0};
    const int left = MillisecondsUntil(end);
    const int ready = poll(&item, 1, left);
    if (ready > 0) return true;
    if (ready == 0 && left == 0) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

absl::Status Send(int fd, const Hello& hello) {  // To an empty buffer of a new connection.
  const ssize_t sent = send(fd, &hello, sizeof hello, MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(sizeof hello)) return absl::OkStatus();
  return absl::UnavailableError(sent < 0 ? std::strerror(errno) : "the connection takes no bytes");
}

absl::StatusOr<Hello> Receive(int fd, steady_clock::time_point end) {
  Hello hello;
  for (std::size_t have = 0; have < sizeof hello;) {
    const ssize_t got =
        recv(fd, reinterpret_cast<char*>(&hello) + have, sizeof hello - have, MSG_DONTWAIT);
    if (got > 0) {
      have += static_cast<std::size_t>(got);
    } else if (got == 0) {
      return absl::UnavailableError("it closed the connection");
    } else if (errno != EAGAIN && errno != EINTR) {
      return absl::UnavailableError(std::strerror(errno));
    } else if (!Ready(fd, POLLIN, end)) {
      return absl::DeadlineExceededError("it does not answer");
    }
  }
  return hello;
}

void SetUp(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

absl::StatusOr<io::UniqueFd> DialOnce(const HostMeeting& meeting, std::uint32_t channel,
                                      steady_clock::time_point end) {
  const auto own = static_cast<std::size_t>(meeting.own);
  ASSIGN_OR_RETURN(const io::SocketAddress source,
                   io::ToSocketAddress({meeting.addresses[own].host, 0}));
  ASSIGN_OR_RETURN(const io::SocketAddress target, io::ToSocketAddress(meeting.addresses[own - 1]));
  io::UniqueFd fd(socket(source.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.get() < 0) return io::ErrnoStatus(errno, "socket");
  if (bind(fd.get(), source.get(), source.size) != 0) return io::ErrnoStatus(errno, "bind");
  int failure = connect(fd.get(), target.get(), target.size) == 0 ? 0 : errno;
  if (failure == EINPROGRESS) {
    socklen_t size = sizeof failure;
    if (!Ready(fd.get(), POLLOUT, end)) return absl::DeadlineExceededError("it does not answer");
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &failure, &size);
  }
  if (failure != 0) return absl::UnavailableError(std::strerror(failure));
  SetUp(fd.get());
  RETURN_IF_ERROR(
      Send(fd.get(), HelloOf(meeting, channel, meeting.own, meeting.own - 1, /*dials=*/true)));
  ASSIGN_OR_RETURN(const Hello answer, Receive(fd.get(), end));
  if (!Same(answer, HelloOf(meeting, channel, meeting.own - 1, meeting.own, /*dials=*/false)))
    return absl::PermissionDeniedError("what answers there does not know this generation's secret");
  return fd;
}

absl::StatusOr<io::UniqueFd> Dial(const HostMeeting& meeting, std::uint32_t channel,
                                  steady_clock::time_point end) {
  for (milliseconds pause(5);; pause = std::min<milliseconds>(pause * 2, milliseconds(250))) {
    absl::StatusOr<io::UniqueFd> fd = DialOnce(meeting, channel, end);
    if (fd.ok()) return fd;
    if (!absl::IsUnavailable(fd.status()) || steady_clock::now() + pause >= end) {
      const auto own = static_cast<std::size_t>(meeting.own);
      return absl::Status(
          fd.status().code(),
          absl::StrCat("from ", meeting.addresses[own].host, " to the host before this one, at ",
                       io::FormatAddress(meeting.addresses[own - 1]), ": ",
                       std::string(fd.status().message())));
    }
    std::this_thread::sleep_for(pause);
  }
}

// The connections of the next host, among whatever else comes.
class Door {
 public:
  Door(const HostMeeting& meeting, int listener, steady_clock::time_point end)
      : meeting_(meeting), listener_(listener), end_(end) {}

  absl::StatusOr<HostLink> Await() {
    while (link_.calls.get() < 0 || link_.control.get() < 0) {
      std::vector<pollfd> items{{listener_, POLLIN, 0}};
      for (const Stranger& s : strangers_) items.push_back({s.fd.get(), POLLIN, 0});
      if (steady_clock::now() >= end_) return Missing();
      (void)poll(items.data(), items.size(), std::min(MillisecondsUntil(end_), 100));
      for (std::size_t i = items.size() - 1; i > 0; --i) {
        Stranger& stranger = strangers_[i - 1];
        const bool late = steady_clock::now() - stranger.since > kStrangerPatience;
        if (items[i].revents != 0 ? !Listen(stranger) : !late) continue;
        strangers_.erase(strangers_.begin() + static_cast<std::ptrdiff_t>(i - 1));
      }
      if (items[0].revents != 0) Accept();
    }
    return std::move(link_);
  }

 private:
  struct Stranger {
    io::UniqueFd fd;
    steady_clock::time_point since;
    Hello hello{};
    std::size_t have = 0;
  };

  int next() const { return meeting_.own + 1; }

  void Accept() {
    io::UniqueFd fd(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.get() < 0) return;
    const absl::StatusOr<Address> peer = io::PeerAddressOf(fd.get());
    if (!peer.ok() || peer->host != meeting_.addresses[static_cast<std::size_t>(next())].host)
      return;
    if (strangers_.size() == kMaxStrangers) strangers_.erase(strangers_.begin());
    strangers_.push_back({std::move(fd), steady_clock::now()});
  }

  // False: more of it is to come.
  bool Listen(Stranger& stranger) {
    const ssize_t got =
        recv(stranger.fd.get(), reinterpret_cast<char*>(&stranger.hello) + stranger.have,
             sizeof(Hello) - stranger.have, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got <= 0) return true;
    stranger.have += static_cast<std::size_t>(got);
    if (stranger.have < sizeof(Hello)) return false;
    for (const auto& [channel, fd] :
         {std::pair(kCalls, &link_.calls), {kControl, &link_.control}}) {
      if (fd->get() >= 0 || !Same(stranger.hello, HelloOf(meeting_, channel, next(), meeting_.own,
                                                          /*dials=*/true)))
        continue;
      if (!Send(stranger.fd.get(),
                HelloOf(meeting_, channel, meeting_.own, next(), /*dials=*/false))
               .ok())
        break;
      SetUp(stranger.fd.get());
      *fd = std::move(stranger.fd);
      break;
    }
    return true;
  }

  absl::Status Missing() const {
    const auto own = static_cast<std::size_t>(meeting_.own);
    return absl::DeadlineExceededError(absl::StrCat(
        "the host behind this one, at ", meeting_.addresses[own + 1].host, ", has not come to ",
        io::FormatAddress(meeting_.addresses[own]), " within ", Seconds(meeting_.deadline), " s"));
  }

  const HostMeeting& meeting_;
  const int listener_;
  const steady_clock::time_point end_;
  HostLink link_;
  std::vector<Stranger> strangers_;
};

}  // namespace

int HostOf(const Hosts& hosts, int rank) {
  const auto after = std::upper_bound(hosts.begin(), hosts.end(), rank,
                                      [](int r, const HostRanks& h) { return r < h.first; });
  return static_cast<int>(after - hosts.begin()) - 1;
}

absl::StatusOr<io::UniqueFd> ListenForHosts(const std::string& ip) {
  return io::ListenTcp({ip, 0}, /*backlog=*/128);
}

absl::StatusOr<HostLinks> MeetNeighbors(const HostMeeting& meeting, const io::UniqueFd& listener) {
  const auto end = steady_clock::now() + meeting.deadline;
  HostLinks links;
  if (meeting.own > 0) {
    ASSIGN_OR_RETURN(links.previous.calls, Dial(meeting, kCalls, end));
    ASSIGN_OR_RETURN(links.previous.control, Dial(meeting, kControl, end));
  }
  if (meeting.own + 1 < static_cast<int>(meeting.addresses.size())) {
    ASSIGN_OR_RETURN(links.next, Door(meeting, listener.get(), end).Await());
  }
  return links;
}

}  // namespace regroup::worker
