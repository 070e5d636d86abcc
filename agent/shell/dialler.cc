#include "agent/shell/dialler.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/shell/child_exit.h"
#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/token.h"
#include "common/config/values.h"
#include "common/io/files.h"
#include "common/io/proc.h"
#include "common/io/spawn.h"
#include "common/io/thread.h"
#include "common/io/unix_socket.h"
#include "common/report/run_screen.h"
#include "common/rpc/describe_listener.h"
#include "common/rpc/local_coordinator.h"
#include "common/rpc/places.h"
#include "common/rpc/proof.h"
#include "common/rpc/resolve.h"

extern char** environ;

namespace regroup::agent {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using namespace std::chrono_literals;

constexpr char kLoopback[] = "127.0.0.1";
constexpr char kStderrName[] = "stderr.log";
constexpr std::size_t kStderrBytes = 16 << 10;
// A coordinator that we have just started listens within tens of milliseconds: looking often costs
// little and is what the start-up time consists of.
constexpr auto kLookOften = 1ms, kLookSeldom = 20ms;
constexpr int kOftenLooks = 500;
constexpr Duration kSilenceLimit = 10s;
constexpr int kMostExits = 5;
constexpr Duration kRestartAfter = 100ms;  // Another command's coordinator may be about to listen.
constexpr Duration kRestartMost = 2s;      // One that ends again and again: a full disk, say.
// After it a coordinator of this host that does not take us is no one's of ours.
constexpr Duration kSettleLimit = 2s;
constexpr int kOneLine = 1 << 20;

// But for its connection.
absl::StatusOr<DialTarget> TargetOf(const Address& address) {
  DialTarget target;
  ASSIGN_OR_RETURN(target.address, io::LocalIpTowards(address));
  target.dialled = address.host;
  // An address of this host other than 127.0.0.1 is as near.
  target.loopback = io::IsLoopback(address.host) || target.address == address.host;
  return target;
}

// A socket, or the folder of a coordinator.
absl::StatusOr<DialTarget> TargetOf(const std::string& path) {
  struct stat info {};
  const bool folder = ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  DialTarget target;
  ASSIGN_OR_RETURN(target.connection,
                   DialUnix(folder ? absl::StrCat(path, "/", kCoordinatorSocketName) : path));
  target.address = target.dialled = kLoopback;
  target.loopback = true;
  return target;
}

// A coordinator of this host by its socket. Agents of other hosts reach this node where they reach
// the coordinator.
absl::StatusOr<DialTarget> TargetOf(const LocalCoordinator& local) {
  ASSIGN_OR_RETURN(DialTarget target, TargetOf(local.Socket()));
  if (local.lock.listening.empty()) return target;
  Address at = local.lock.listening.front();
  if (io::IsWildcard(at.host)) at = {"192.0.2.1", 9};  // As it leaves this host for elsewhere.
  absl::StatusOr<std::string> address = io::LocalIpTowards(at);
  if (address.ok()) target.address = target.dialled = *std::move(address);
  return target;
}

// On this host: known at once, either way.
bool AcceptsAt(const Address& address) {
  absl::StatusOr<io::SocketAddress> at = io::ToSocketAddress(address);
  io::UniqueFd fd(at.ok() ? ::socket(at->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1);
  return fd && ::connect(fd.get(), at->get(), at->size) == 0;
}

// Blocks: off the loop.
absl::StatusOr<Connection> ReachOverTcp(const Address& address, const std::string& token,
                                        const std::string& command, Duration limit) {
  if (!token.empty()) {
    absl::StatusOr<Connection> connection = DialProved(address, token, {.connect_limit = limit});
    if (!absl::IsFailedPrecondition(connection.status())) return connection;
  }
  const ListenerDescription found = DescribeListener(address);
  const bool ours =
      found.kind == ListenerKind::kRegroup || found.kind == ListenerKind::kAsksForToken;
  if (ours && token.empty()) return NeedsToken(io::FormatAddress(address), command);
  return absl::UnavailableError(found.sentence);
}

bool NotLetIn(const absl::Status& status) {
  return absl::IsPermissionDenied(status) || absl::IsUnauthenticated(status);
}

enum class Bind { kOurs, kInUse, kElsewhere };
// Ours: bind() succeeds. A name is never compared.
Bind TryBind(const Address& address) {
  absl::StatusOr<io::SocketAddress> at = io::ToSocketAddress(address);
  if (!at.ok()) return Bind::kElsewhere;
  io::UniqueFd fd(::socket(at->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (!fd || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0)
    return Bind::kElsewhere;
  if (::bind(fd.get(), at->get(), at->size) == 0) return Bind::kOurs;
  return errno == EADDRINUSE ? Bind::kInUse : Bind::kElsewhere;
}

// The last lines that a process which ended wrote to its stderr.
std::string StderrFrom(const std::string& path, off_t from) {
  const absl::StatusOr<io::UniqueFd> fd = io::OpenRegular(path, O_RDONLY);
  if (!fd.ok()) return "";
  std::string text(kStderrBytes, '\0');
  const ssize_t got = ::pread(fd->get(), text.data(), text.size(), from);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace

Dialler::Dialler(asio::io_context& loop, DialAccess access)
    : loop_(loop),
      access_(std::move(access)),
      alive_(std::make_shared<bool>(true)),
      home_(std::make_shared<Home>()) {
  home_->loop = &loop;
}

Dialler::~Dialler() {
  *alive_ = false;
  std::lock_guard lock(home_->mutex);
  home_->loop = nullptr;
}

void Dialler::ReachAt(const Address& address, const std::string& command, const Done& done) {
  absl::StatusOr<DialTarget> target = TargetOf(address);
  near_ = target.ok() && target->loopback;
  if (!target.ok()) return done(target.status());
  if (near_) {
    if (!AcceptsAt(address)) {
      return done(
          absl::UnavailableError(absl::StrCat("nobody listens on ", io::FormatAddress(address))));
    }
    if (const auto local = FindLocalCoordinator({address.host, address.port})) {
      absl::StatusOr<Connection> connection = DialUnix(local->Socket());
      if (!connection.ok()) return done(connection.status());
      target->connection = *std::move(connection);
      if (local->ad_hoc()) target->folder = local->folder;
      return done(*std::move(target));
    }
  }
  target->remote = address;
  if (access_.insecure) {
    target->connection = Dial(address, {.connect_limit = connect_limit_});
    return done(*std::move(target));
  }
  absl::StatusOr<std::thread> reaching =
      io::StartThread([home = home_, address, command, token = access_.token,
                       limit = connect_limit_, target = *target, done] {
        absl::StatusOr<Connection> connection = ReachOverTcp(address, token, command, limit);
        std::lock_guard lock(home->mutex);
        if (home->loop == nullptr) return;
        asio::post(*home->loop, [home, target, done, connection = std::move(connection)]() mutable {
          if (home->loop == nullptr) return;
          if (!connection.ok()) return done(connection.status());
          target.connection = *std::move(connection);
          done(std::move(target));
        });
      });
  if (!reaching.ok()) return done(reaching.status());
  reaching->detach();
}

// ---- a service's --------------------------------------------------------------------------------

absl::StatusOr<DialTarget> ServiceDialler::OfThisHost() const {
  std::vector<LocalCoordinator> running = LocalCoordinators();
  std::erase_if(running, [](const LocalCoordinator& each) { return each.ad_hoc(); });
  std::error_code failed;  // /proc knows no links.
  const std::string own = std::filesystem::weakly_canonical(state_dir_, failed).string();
  const auto elsewhere = [&own](const LocalCoordinator& each) {
    return !absl::StartsWith(each.folder, absl::StrCat(own, "/"));
  };
  if (only_there_ || !std::all_of(running.begin(), running.end(), elsewhere))
    std::erase_if(running, elsewhere);
  if (running.size() == 1) return TargetOf(running.front());
  if (running.empty()) {
    return absl::UnavailableError(
        absl::StrCat("no coordinator of this user runs ",
                     only_there_ ? absl::StrCat("in ", state_dir_) : "on this host",
                     " · regroup coordinator starts one, --coordinator HOST[:PORT] names one"));
  }
  std::string folders;
  for (const LocalCoordinator& each : running)
    absl::StrAppend(&folders, folders.empty() ? "" : ", ", each.folder);
  return absl::FailedPreconditionError(absl::StrCat(
      "more than one coordinator runs on this host: ", folders, " · --coordinator names one"));
}

void ServiceDialler::Find(Done done) {
  if (coordinators_.empty()) return done(OfThisHost());
  if (!std::exchange(answered_, false)) ++turn_;
  const std::string& coordinator = coordinators_[turn_ % coordinators_.size()];
  if (coordinator.find('/') != std::string::npos) return done(TargetOf(coordinator));
  absl::StatusOr<Endpoint> endpoint = ParseEndpoint(coordinator);
  if (!endpoint.ok()) return done(endpoint.status());
  const std::string command = absl::StrCat("regroup agent --coordinator ", coordinator);
  if (io::IsIp(endpoint->host))
    return ReachAt({endpoint->host, endpoint->port}, command, done);
  const std::size_t attempt = attempt_++ / coordinators_.size();
  ResolveLater({endpoint->host, endpoint->port},
               [this, &loop = loop_, alive = alive_, command, done = std::move(done),
                attempt](absl::StatusOr<std::vector<Address>> addresses) {
                 asio::post(
                     loop, [this, alive, command, done, attempt, addresses = std::move(addresses)] {
                       if (!*alive) return;
                       if (!addresses.ok()) return done(addresses.status());
                       if (addresses->empty())
                         return done(absl::NotFoundError("the name has no address"));
                       ReachAt((*addresses)[attempt % addresses->size()], command, done);
                     });
               });
}

// ---- a launch command's -------------------------------------------------------------------------

LaunchDialler::LaunchDialler(asio::io_context& loop, const LaunchConfig& launch,
                             std::string regroup_program, std::function<void(absl::Status)> fatal,
                             std::function<void(std::string)> warn)
    : Dialler(loop, {launch.token, launch.insecure}),
      launch_(launch),
      regroup_program_(std::move(regroup_program)),
      fatal_(std::move(fatal)),
      warn_(std::move(warn)),
      timer_(loop) {}

void LaunchDialler::StartEarly() {
  if (!launch_.endpoint) {
    decided_ = hosts_ = true;
    folder_ = LocalCoordinatorFolder(launch_.state_dir);
    if (!Listens()) StartCoordinator();
  } else if (io::IsIp(launch_.endpoint->host)) {
    Decide({Address{launch_.endpoint->host, launch_.endpoint->port}});
  }
}

// Which of the endpoint's addresses are ours is looked at once: what we host stays ours when its
// port is taken, by our own coordinator.
void LaunchDialler::Decide(const std::vector<Address>& addresses) {
  if (decided_ || addresses.empty()) {
    if (!hosts_) all_ = addresses;
    return;
  }
  decided_ = true;
  all_ = addresses;
  endpoint_ = addresses.front();
  for (const Address& address : addresses) {
    const Bind bind = TryBind(address);
    if (bind == Bind::kElsewhere) continue;
    hosts_ = true;
    in_use_ = bind == Bind::kInUse;
    endpoint_ = address;
    break;
  }
  if (!hosts_) return CheckListener();
  folder_ = CoordinatorFolder(launch_.state_dir, endpoint_.port);
  const std::string& host = launch_.endpoint->host;
  everywhere_ = !io::IsIp(host) && host != "localhost" && io::IsLoopback(endpoint_.host) &&
                launch_.spec.max_nodes > 1;
  if (in_use_) {
    CheckListener();
  } else {
    StartCoordinator();
  }
}

// Off the loop: what listens there may not be ours. A coordinator that is starting is silent for a
// moment; on this host one that stays so is none. Without a thread it stays unsaid.
void LaunchDialler::CheckListener() {
  absl::StatusOr<std::thread> checking =
      io::StartThread([this, alive = alive_, &loop = loop_, address = endpoint_, here = in_use_] {
        const Instant limit = io::BootNow() + kSilenceLimit;
        ListenerDescription found = DescribeListener(address);
        while (here && found.kind == ListenerKind::kSilent && io::BootNow() < limit)
          found = DescribeListener(address);
        const bool silent = here && found.kind == ListenerKind::kSilent;
        if (!silent && found.kind != ListenerKind::kTorchStore &&
            found.kind != ListenerKind::kGrpc && found.kind != ListenerKind::kSomething) {
          return;
        }
        asio::post(loop, [this, alive, address, sentence = found.sentence] {
          if (!*alive || answered_) return;
          fatal_(UserError(
              absl::StatusCode::kFailedPrecondition,
              absl::StrCat("cannot use ", io::FormatAddress(address), " as the endpoint"), sentence,
              "another port, as in --rdzv-endpoint HOST:PORT, the same on every node"));
        });
      });
  if (checking.ok()) checking->detach();
}

void LaunchDialler::Reach(Done done) {
  if (!launch_.endpoint) return done(TargetOf(absl::StrCat(folder_, "/", kCoordinatorSocketName)));
  if (!hosts_ && all_.empty())
    return done(absl::UnavailableError(absl::StrCat(launch_.endpoint->host, " has no address")));
  const Address& at = hosts_ ? endpoint_ : all_[attempt_ % all_.size()];
  // One line that can be pasted; its indentation goes.
  std::string line = CommandForOthers(launch_, at, "", kOneLine);
  absl::StripAsciiWhitespace(&line);
  ReachAt(at, line,
          [this, alive = alive_, done = std::move(done)](absl::StatusOr<DialTarget> target) {
            if (!*alive) return;
            if (target.ok()) {
              local_folder_ = target->folder;
              if (!launch_.local_address.empty()) target->address = launch_.local_address;
            }
            if (!NotLetIn(target.status())) {
              not_let_in_since_.reset();
              return done(std::move(target));
            }
            // Of this host: it may have begun to listen just now. Elsewhere waiting changes
            // nothing.
            if (!not_let_in_since_) not_let_in_since_ = io::BootNow();
            const bool for_good = !hosts_ || io::BootNow() > *not_let_in_since_ + kSettleLimit;
            if (for_good && !answered_) return fatal_(target.status());
            done(std::move(target));
          });
}

void LaunchDialler::Find(Done done) {
  if (hosts_) return WaitForListener(std::move(done), 0);
  if (decided_ && io::IsIp(launch_.endpoint->host)) return Reach(std::move(done));
  ++attempt_;
  ResolveLater(
      {launch_.endpoint->host, launch_.endpoint->port},
      [this, alive = alive_, &loop = loop_, done](absl::StatusOr<std::vector<Address>> addresses) {
        asio::post(loop, [this, alive, done, addresses = std::move(addresses)] {
          if (*alive) Resolved(addresses, done);
        });
      });
}

void LaunchDialler::Resolved(absl::StatusOr<std::vector<Address>> addresses, const Done& done) {
  if (!addresses.ok()) return done(addresses.status());
  Decide(*addresses);
  if (hosts_) {
    WaitForListener(done, 0);
  } else {
    Reach(done);
  }
}

bool LaunchDialler::Listens() const {
  if (!launch_.endpoint)
    return io::ConnectUnix(absl::StrCat(folder_, "/", kCoordinatorSocketName)).ok();
  return AcceptsAt(endpoint_);
}

void LaunchDialler::WaitForListener(Done done, int attempt) {
  if (Listens()) return Reach(std::move(done));
  // Nobody starts it but us: after a coordinator that we found has ended, the next one is ours.
  if (coordinator_ == 0 && attempt > 0) StartCoordinator();
  if (attempt < kOftenLooks) {
    timer_.expires_after(kLookOften);
  } else {
    timer_.expires_after(kLookSeldom);
  }
  timer_.async_wait([this, alive = alive_, done = std::move(done), attempt](error_code error) {
    if (!error && *alive) WaitForListener(done, attempt + 1);
  });
}

// Only an answer is proof that a coordinator works: one that can't read its journal listens before
// it knows.
void LaunchDialler::Answered() {
  answered_ = true;
  exits_in_a_row_ = 0;
}

void LaunchDialler::StartCoordinator() {
  if (!hosts_ || coordinator_ != 0 || io::BootNow() < not_before_ || Listens()) return;
  // The one that took us wrote its journal elsewhere: it is for a command with that state directory
  // to start it again. Ours would lead another cluster.
  const std::string journal = absl::StrCat(folder_, "/", kCoordinatorJournalName);
  if (answered_ && ::access(journal.c_str(), F_OK) != 0) return;
  absl::Status spawned = SpawnCoordinator();
  if (spawned.ok()) return;
  if (!answered_) return fatal_(spawned);
  warn_(absl::StrCat("cannot start the coordinator again: ", std::string(spawned.message())));
}

absl::Status LaunchDialler::SpawnCoordinator() {
  RETURN_IF_ERROR(io::MakePrivateDirectory(folder_));
  const std::string path = absl::StrCat(folder_, "/", kStderrName);
  ASSIGN_OR_RETURN(const io::UniqueFd out, io::OpenRegular(path, O_WRONLY | O_CREAT | O_APPEND));
  stderr_from_ = ::lseek(out.get(), 0, SEEK_END);
  AdHocCoordinator coordinator;
  coordinator.state_dir = launch_.state_dir;
  coordinator.insecure = launch_.insecure;
  coordinator.token_file = launch_.token_file;
  if (launch_.endpoint && everywhere_) {
    coordinator.listen.push_back(io::FormatAddress({"0.0.0.0", endpoint_.port}));
    if (TryBind({"::", endpoint_.port}) == Bind::kOurs) {
      coordinator.listen.push_back(io::FormatAddress({"::", endpoint_.port}));
    }
  } else if (launch_.endpoint) {
    coordinator.listen.push_back(io::FormatAddress(endpoint_));
  }
  ASSIGN_OR_RETURN(coordinator_, io::SpawnDetached(regroup_program_,
                                                   CoordinatorArguments(coordinator), out.get()));
  ASSIGN_OR_RETURN(io::UniqueFd pidfd, io::OpenPidfd(coordinator_));
  WhenOver(loop_, std::move(pidfd), coordinator_,
           [this, alive = alive_](std::optional<int> status) {
             if (*alive) OnCoordinatorExit(status.value_or(0));
           });
  return absl::OkStatus();
}

void LaunchDialler::OnCoordinatorExit(int status) {
  coordinator_ = 0;
  // Another launch command of this host may have been first: then its coordinator listens, and ours
  // had to go.
  const bool replaced = Listens();
  if (!replaced) ++exits_in_a_row_;
  not_before_ =
      io::BootNow() + std::min(kRestartAfter * std::max(exits_in_a_row_, 1), kRestartMost);
  // WaitForListener starts the next one. What has led this job once is waited for, however long.
  if (replaced || exits_in_a_row_ < kMostExits) return;
  const absl::Status why = WhyItEnded(status);
  if (!answered_) return fatal_(why);
  warn_(absl::StrCat(std::string(why.message()), ": ", PartsOf(why).because));
}

absl::Status LaunchDialler::WhyItEnded(int status) const {
  const std::string said = StderrFrom(absl::StrCat(folder_, "/", kStderrName), stderr_from_);
  const std::string how = WIFSIGNALED(status)
                              ? absl::StrCat("was killed by signal ", WTERMSIG(status))
                              : absl::StrCat("exited with ", WEXITSTATUS(status));
  if (std::optional<UserErrorParts> parts = ParseUserError(said)) {
    const std::string because =
        absl::StrCat(parts->what, parts->because.empty() ? "" : ": ", parts->because);
    return UserError(absl::StatusCode::kUnavailable, "the coordinator of this run cannot start",
                     because, parts->try_this);
  }
  return UserError(absl::StatusCode::kUnavailable, "the coordinator of this run cannot start",
                   absl::StrCat("it ", how, said.empty() ? "" : ": ", said),
                   absl::StrCat("cat ", folder_, "/*.log"));
}

std::optional<Address> LaunchDialler::ForOthers() const {
  if (!launch_.endpoint) return std::nullopt;
  if (!everywhere_) return endpoint_;
  // Where this host's packets to elsewhere come from: an address that others can dial.
  absl::StatusOr<std::string> outward = io::LocalIpTowards({"192.0.2.1", 9});
  return Address{outward.ok() ? *outward : endpoint_.host, endpoint_.port};
}

std::string LaunchDialler::TokenForOthers() const {
  if (!hosts_ || !launch_.endpoint || launch_.insecure || !launch_.token.empty()) return "";
  if (local_folder_.empty()) return "";
  return ReadCoordinatorToken(local_folder_).value_or("");
}

}  // namespace regroup::agent
