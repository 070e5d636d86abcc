#include "agent/shell/worker_server.h"

#include <google/protobuf/util/json_util.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/io/unix_socket.h"
#include "common/rpc/convert.h"
#include "proto/local.pb.h"

namespace regroup::agent {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr auto kAcceptPause = std::chrono::milliseconds(100);
constexpr std::size_t kMaxOutgoingBytes = 256 << 10;
constexpr std::uint32_t kLocalVersion = 1;
constexpr double kMaxSeconds = 1e9;
constexpr std::size_t kShownJobBytes = 64;
// 1,000 lines a second: reading them costs a hundredth of a core. A worker that has something to
// say says ten.
constexpr int kLinesPerWindow = 100;
constexpr auto kWindow = std::chrono::milliseconds(100);

std::optional<Duration> Time(bool has, double seconds) {
  if (!has || !std::isfinite(seconds) || seconds < 0 || seconds > kMaxSeconds) return std::nullopt;
  return FromSeconds(seconds);
}
std::optional<double> Finite(bool has, double value) {
  return has && std::isfinite(value) ? std::optional<double>(value) : std::nullopt;
}

WorkerProgress ProgressOf(const local::Progress& said, const GroupKey& key, int rank) {
  WorkerProgress progress;
  progress.job = key.job;
  progress.generation = key.generation;
  progress.rank = rank;
  progress.step = said.step();
  progress.samples = said.samples();
  if (said.has_tokens()) progress.tokens = said.tokens();
  progress.loss = Finite(said.has_loss(), said.loss());
  progress.tokens_per_second = Finite(said.has_tokens_per_second(), said.tokens_per_second());
  if (said.has_restored_step()) progress.restored_step = said.restored_step();
  progress.init = Time(said.has_init_s(), said.init_s());
  progress.restore = Time(said.has_restore_s(), said.restore_s());
  progress.first_step = Time(said.has_first_step_s(), said.first_step_s());
  progress.checkpoint = Time(said.has_checkpoint_s(), said.checkpoint_s());
  return progress;
}

CommitRequest RequestOf(const local::CommitRequest& said, const GroupKey& key) {
  CommitRequest request;
  request.job = key.job;
  request.generation = key.generation;
  request.attempt = said.attempt();
  request.step = said.step();
  request.manifest_hash = said.manifest_hash();
  request.path = said.path();
  request.for_notice = said.for_notice();
  return request;
}

}  // namespace

struct WorkerServer::Peer {
  explicit Peer(asio::local::stream_protocol::socket s)
      : socket(std::move(s)), pause(socket.get_executor()) {}
  asio::local::stream_protocol::socket socket;
  std::array<char, 16 << 10> buffer;
  std::string incoming, outgoing, writing;
  bool closed = false;
  bool greeted = false;
  bool ended = false;  // It has said its last; lines of it may still wait in `incoming`.
  asio::steady_timer pause;
  std::chrono::steady_clock::time_point window_start{};
  int lines = 0;  // Taken since window_start.
  GroupKey key;
  int rank = 0, local_rank = 0;
};

WorkerServer::WorkerServer(asio::io_context& loop, io::UniqueFd listener, int max_connections,
                           IsRank is_rank, Post post, Warn warn, NewerThan newer_than)
    : acceptor_(loop),
      pause_(loop),
      max_connections_(max_connections),
      is_rank_(std::move(is_rank)),
      newer_than_(std::move(newer_than)),
      post_(std::move(post)),
      warn_(std::move(warn)) {
  acceptor_.assign(asio::local::stream_protocol(), listener.release());
  Accept();
}

WorkerServer::~WorkerServer() {
  for (const auto& peer : peers_) peer->closed = true;
}

void WorkerServer::Accept() {
  acceptor_.async_accept([this](error_code error, asio::local::stream_protocol::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (error && error != asio::error::connection_aborted) return AcceptLater(error);
    if (!error) {
      auto peer = std::make_shared<Peer>(std::move(socket));
      absl::StatusOr<io::PeerCredentials> who = io::PeerCredentialsOf(peer->socket.native_handle());
      if (!who.ok() || (who->uid != ::geteuid() && who->uid != 0)) {
        warn_("a connection of another user to the worker socket was closed");
      } else if (static_cast<int>(peers_.size()) >= max_connections_ && !MakeRoom()) {
        warn_(absl::StrCat("more than ", max_connections_,
                           " connections to the worker socket: one was closed"));
      } else {
        peers_.push_back(peer);
        Read(peer);
      }
    }
    Accept();
  });
}

// No descriptors or memory: what waits stays in the backlog, and asking at once again would spin.
void WorkerServer::AcceptLater(error_code why) {
  if (why != told_) warn_(absl::StrCat("workers cannot connect now: ", why.message()));
  told_ = why;
  pause_.expires_after(kAcceptPause);
  pause_.async_wait([this](error_code error) {
    if (!error) Accept();
  });
}

// A worker says hello at once: of those that have not, the oldest goes.
bool WorkerServer::MakeRoom() {
  const auto silent =
      std::find_if(peers_.begin(), peers_.end(), [](const auto& peer) { return !peer->greeted; });
  if (silent == peers_.end()) return false;
  Close(std::shared_ptr<Peer>(*silent));
  return true;
}

void WorkerServer::Read(const std::shared_ptr<Peer>& peer) {
  peer->socket.async_read_some(asio::buffer(peer->buffer),
                               [this, peer](error_code error, std::size_t bytes) {
                                 if (peer->closed) return;
                                 peer->incoming.append(peer->buffer.data(), bytes);
                                 peer->ended = static_cast<bool>(error);
                                 Take(peer);
                               });
}

// A worker that says more than its share is not read for the rest of the window: what it says then
// fills its own socket, and costs nobody else anything.
void WorkerServer::Take(const std::shared_ptr<Peer>& peer) {
  if (!TakeLines(*peer)) return Close(peer);
  if (peer->incoming.find('\n') == std::string::npos) return peer->ended ? Close(peer) : Read(peer);
  peer->pause.expires_at(peer->window_start + kWindow);
  peer->pause.async_wait([this, peer](error_code error) {
    if (!error && !peer->closed) Take(peer);
  });
}

bool WorkerServer::TakeLines(Peer& peer) {
  if (const auto now = std::chrono::steady_clock::now(); now >= peer.window_start + kWindow) {
    peer.window_start = now;
    peer.lines = 0;
  }
  std::size_t from = 0;
  for (std::size_t end;
       peer.lines < kLinesPerWindow && (end = peer.incoming.find('\n', from)) != std::string::npos;
       from = end + 1) {
    ++peer.lines;
    if (end - from > kMaxLineBytes || !Handle(peer, peer.incoming.substr(from, end - from)))
      return false;
    if (peer.closed) return false;
  }
  peer.incoming.erase(0, from);
  if (peer.incoming.size() <= kMaxLineBytes || peer.incoming.find('\n') <= kMaxLineBytes)
    return true;
  warn_(absl::StrCat("a line of more than ", kMaxLineBytes,
                     " bytes on the worker socket: connection closed"));
  return false;
}

bool WorkerServer::Handle(Peer& peer, const std::string& text) {
  local::WorkerLine line;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;  // A newer worker may say more.
  if (!google::protobuf::util::JsonStringToMessage(text, &line, options).ok() ||
      (!peer.greeted && !line.has_hello())) {
    warn_("garbage on the worker socket: connection closed");
    return false;
  }
  WorkerSaid said{.key = peer.key, .rank = peer.rank, .local_rank = peer.local_rank, .what = {}};
  bool sound = true;
  const auto take = [&](auto value) {
    // What the coordinator would refuse costs this worker its connection, not this node its
    // session.
    sound = FromProto(ToProto(value)).ok();
    said.what = std::move(value);
  };
  switch (line.body_case()) {
    case local::WorkerLine::kHello: return Greet(peer, line);
    case local::WorkerLine::kProgress:
      take(ProgressOf(line.progress(), peer.key, peer.rank));
      break;
    case local::WorkerLine::kCommit: take(RequestOf(line.commit(), peer.key)); break;
    case local::WorkerLine::kCommunicatorFailed:
      said.what = CommunicatorFailed{line.communicator_failed().text()};
      break;
    case local::WorkerLine::kRetired:
      return OnRetired(peer, Generation(line.retired().generation()));
    case local::WorkerLine::kCannotGoOn:
      return OnCannotGoOn(peer, Generation(line.cannot_go_on().generation()),
                          line.cannot_go_on().why());
    case local::WorkerLine::BODY_NOT_SET: return true;  // Something newer than this agent.
  }
  if (!sound) {
    warn_("a worker said what cannot be: connection closed");
    return false;
  }
  post_(std::move(said));
  return true;
}

// What it says of a generation that it has left crosses what it is told, and is old by then.
bool WorkerServer::OnRetired(Peer& peer, Generation generation) {
  if (generation > peer.key.generation) {
    warn_("a worker left a generation that it is not in: connection closed");
    return false;
  }
  if (generation == peer.key.generation)
    post_(WorkerSaid{peer.key, peer.rank, peer.local_rank, WorkerRetired{}});
  return true;
}

// Also of the next one, instead of a hello.
bool WorkerServer::OnCannotGoOn(Peer& peer, Generation generation, const std::string& why) {
  WorkerSaid said{peer.key, peer.rank, peer.local_rank,
                  WorkerCannotGoOn{why.substr(0, kMaxErrorBytes)}};
  if (generation < peer.key.generation) return true;
  if (generation > peer.key.generation) {
    const std::optional<NewGeneration> next = NewerFor(peer);
    if (!next || next->key.generation != generation) {
      warn_("a worker told of a generation that it is not in: connection closed");
      return false;
    }
    said.key = next->key;
    said.rank = next->rank;
  }
  post_(std::move(said));
  return true;
}

std::optional<NewGeneration> WorkerServer::NewerFor(const Peer& peer) const {
  return newer_than_ ? newer_than_(peer.key, peer.local_rank) : std::nullopt;
}

bool WorkerServer::Greet(Peer& peer, const local::WorkerLine& line) {
  const local::WorkerHello& hello = line.hello();
  if (hello.version() != kLocalVersion) {
    warn_(absl::StrCat("a worker speaks version ", hello.version(),
                       " of the local protocol, this agent ", kLocalVersion));
    return false;
  }
  const GroupKey key{JobId(hello.job()), Generation(hello.generation())};
  const bool same =
      key == peer.key && hello.rank() == peer.rank && hello.local_rank() == peer.local_rank;
  const bool goes_on = key.job == peer.key.job && key.generation > peer.key.generation &&
                       hello.local_rank() == peer.local_rank;
  if (peer.greeted && !same && !goes_on) {
    warn_("a worker said to be another one: connection closed");
    return false;
  }
  if (!is_rank_(key, hello.rank(), hello.local_rank(), hello.token())) {
    Refused(absl::StrCat(
        "a connection to the worker socket said to be rank ", hello.rank(), " (local rank ",
        hello.local_rank(), ") of ", hello.job().substr(0, kShownJobBytes), " generation ",
        key.generation.value(), hello.token().empty() ? " without" : " with another rank's",
        " REGROUP_WORKER_TOKEN: closed. What it reports does not count"));
    return false;
  }
  peer.greeted = true;
  peer.key = key;
  peer.rank = hello.rank();
  peer.local_rank = hello.local_rank();
  local::AgentLine welcome;
  welcome.mutable_welcome()->set_version(kLocalVersion);
  Send(peer, welcome);
  const std::optional<NewGeneration> next = NewerFor(peer);
  post_(WorkerSaid{peer.key, peer.rank, peer.local_rank,
                   WorkerHello{hello.takes_notice(), hello.in_place()}});
  if (next && !peer.closed) SendNewGeneration(peer, *next);
  return true;
}

// It comes again every two seconds, or as often as somebody likes: each is told once, and few are.
void WorkerServer::Refused(const std::string& why) {
  if (refused_.size() < kMaxRefusalsTold && refused_.insert(why).second) warn_(why);
}

void WorkerServer::TellNotice(const GroupKey& key, int local_rank, Duration left) {
  local::AgentLine line;
  line.mutable_notice()->set_left_s(Seconds(left));
  const auto its = [&](const Peer& peer) {
    return peer.key == key && peer.local_rank == local_rank;
  };
  for (const auto& peer : PeersOf(its)) Send(*peer, line);
}

// Those that have said hello. A copy: one that does not read is closed when something is sent.
std::vector<std::shared_ptr<WorkerServer::Peer>> WorkerServer::PeersOf(
    const std::function<bool(const Peer&)>& wanted) const {
  std::vector<std::shared_ptr<Peer>> found;
  for (const auto& peer : peers_) {
    if (peer->greeted && wanted(*peer)) found.push_back(peer);
  }
  return found;
}

void WorkerServer::TellRetire(const GroupKey& key, int local_rank, Duration left) {
  local::AgentLine line;
  line.mutable_retire()->set_generation(key.generation.value());
  line.mutable_retire()->set_left_s(Seconds(left));
  const auto its = [&](const Peer& peer) {
    return peer.key == key && peer.local_rank == local_rank;
  };
  for (const auto& peer : PeersOf(its)) Send(*peer, line);
}

void WorkerServer::TellNewGeneration(const NewGeneration& next) {
  const auto its = [&](const Peer& peer) {
    return peer.key.job == next.key.job && peer.key.generation < next.key.generation &&
           peer.local_rank == next.local_rank;
  };
  for (const auto& peer : PeersOf(its)) SendNewGeneration(*peer, next);
}

void WorkerServer::SendNewGeneration(Peer& peer, const NewGeneration& next) {
  local::AgentLine line;
  line.mutable_new_generation()->set_generation(next.key.generation.value());
  for (const auto& [name, value] : next.environment)
    (*line.mutable_new_generation()->mutable_environment())[name] = value;
  Send(peer, line);
}

// Rank 0 of the generation asked, on whichever connection it has now.
void WorkerServer::TellCommit(const GroupKey& key, const CommitAnswer& answer) {
  local::AgentLine line;
  local::CommitAnswer& out = *line.mutable_commit();
  out.set_attempt(answer.attempt);
  out.set_step(answer.step);
  out.set_accepted(answer.accepted);
  out.set_why_not(answer.why_not);
  const auto its = [&](const Peer& peer) { return peer.key == key && peer.rank == 0; };
  for (const auto& peer : PeersOf(its)) Send(*peer, line);
}

void WorkerServer::Send(Peer& peer, const local::AgentLine& line) {
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(line, &text).ok()) return;
  peer.outgoing += text + "\n";
  for (const auto& shared : peers_) {
    if (shared.get() == &peer) return Write(shared);
  }
}

void WorkerServer::Write(const std::shared_ptr<Peer>& peer) {
  if (peer->closed || !peer->writing.empty() || peer->outgoing.empty()) return;
  if (peer->outgoing.size() > kMaxOutgoingBytes) return Close(peer);  // It does not read.
  peer->writing = std::exchange(peer->outgoing, {});
  asio::async_write(peer->socket, asio::buffer(peer->writing),
                    [this, peer](error_code error, std::size_t) {
                      if (peer->closed) return;
                      peer->writing.clear();
                      if (error) {
                        Close(peer);
                      } else {
                        Write(peer);
                      }
                    });
}

void WorkerServer::Close(const std::shared_ptr<Peer>& peer) {
  if (std::exchange(peer->closed, true)) return;
  error_code ignored;
  peer->socket.close(ignored);
  peer->pause.cancel();
  peers_.remove(peer);
  if (peer->greeted) post_(WorkerHungUp{peer->key, peer->local_rank});
}

}  // namespace regroup::agent
