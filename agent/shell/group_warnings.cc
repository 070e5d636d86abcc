#include "agent/shell/group_warnings.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/io/address.h"
#include "common/io/connections.h"
#include "common/report/text_style.h"

namespace regroup::agent {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using namespace std::chrono_literals;

constexpr auto kReachLimit = 3s;
constexpr auto kMeetingLimit = 10s;

}  // namespace

std::string HostNameProblem() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return "";
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int error = ::getaddrinfo(name, nullptr, &hints, &found);
  if (error != 0) {
    return absl::StrCat("this host's own name ", name, " has no address (", ::gai_strerror(error),
                        "), and gloo asks for it");
  }
  bool usable = false;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    char host[NI_MAXHOST] = {};
    if (::getnameinfo(at->ai_addr, at->ai_addrlen, host, sizeof host, nullptr, 0, NI_NUMERICHOST) ==
        0)
      usable = usable || !io::IsLoopback(host);
  }
  ::freeaddrinfo(found);
  return usable ? ""
                : absl::StrCat("this host's own name ", name,
                               " is an address of this host alone, and gloo gives it to others");
}

std::string LeftBehindSentence(const shim::State& state) {
  std::set<int> ranks;
  std::string names;
  for (const shim::LeftBehind& left : state.left_behind) {
    const auto of = std::find_if(state.ranks.begin(), state.ranks.end(), [&](const auto& rank) {
      return rank.local_rank == left.local_rank;
    });
    if (of != state.ranks.end()) ranks.insert(of->rank);
    absl::StrAppend(&names, names.empty() ? "" : ", ", EscapeControls(left.name), " (", left.pid,
                    ")");
  }
  const int count = state.left_behind_count;
  if (count > static_cast<int>(state.left_behind.size())) names += ", ...";
  std::string by = ranks.empty() ? "" : ranks.size() == 1 ? " by rank" : " by ranks";
  for (const int rank : ranks) absl::StrAppend(&by, " ", rank);
  const bool one = count == 1;
  return absl::StrCat(count, one ? " process" : " processes", " left behind", by,
                      state.left_behind_kept ? (one ? " runs on: " : " run on: ")
                                             : (one ? " was ended: " : " were ended: "),
                      names);
}

std::string OwnPortSentence() {
  return "no rank here has come to the job's store: the program sets MASTER_PORT itself, and ranks "
         "that wait at a port of their own wait for ever under a launcher · leave MASTER_ADDR and "
         "MASTER_PORT as they are, or set TORCHELASTIC_USE_AGENT_STORE=False beside them";
}

MeetingWarnings::MeetingWarnings(asio::io_context& loop, asio::thread_pool& disk, Tell tell)
    : loop_(loop), disk_(disk), tell_(std::move(tell)), alive_(std::make_shared<bool>(true)) {}

MeetingWarnings::~MeetingWarnings() { *alive_ = false; }

void MeetingWarnings::OfHostName(const Environment& group, const std::string& interface) {
  if (!interface.empty() || group.contains("GLOO_SOCKET_IFNAME")) return;
  asio::post(disk_, [this, alive = alive_] {
    std::string problem = HostNameProblem();
    if (problem.empty()) return;
    asio::post(loop_, [this, alive, problem = std::move(problem)] {
      if (*alive) tell_(absl::StrCat(problem, "; export GLOO_SOCKET_IFNAME=INTERFACE"));
    });
  });
}

void MeetingWarnings::OfStore(const GroupKey& key, const Address& store) {
  error_code bad;
  const asio::ip::address address = asio::ip::make_address(store.host, bad);
  if (bad) return;
  auto socket = std::make_shared<asio::ip::tcp::socket>(loop_);
  auto limit = std::make_shared<asio::steady_timer>(loop_, kReachLimit);
  limit->async_wait([socket](error_code error) {
    error_code ignored;
    if (!error) socket->close(ignored);
  });
  socket->async_connect({address, store.port}, [this, alive = alive_, socket, limit, key,
                                                store](error_code error) {
    limit->cancel();
    if (!error || !*alive) return;
    const std::string why = error == asio::error::operation_aborted ? "no answer" : error.message();
    tell_(absl::StrCat(
        "this node does not reach ", io::FormatAddress(store), ", where the ranks of ",
        key.job.value(), " generation ", key.generation.value(), " meet (", why,
        "); if other nodes cannot reach it either, start that node with another --local-addr"));
  });
}

void MeetingWarnings::OfOwnPort(std::uint16_t store_port, std::function<bool()> runs) {
  auto timer = std::make_shared<asio::steady_timer>(loop_, kMeetingLimit);
  timer->async_wait(
      [this, alive = alive_, timer, store_port, runs = std::move(runs)](error_code error) {
        if (error || !*alive || !runs()) return;
        if (!io::IsConnectedTo(store_port)) tell_(OwnPortSentence());
      });
}

}  // namespace regroup::agent
