#include "agent/shim/store_host.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "agent/shim/run_directory.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/io/files.h"
#include "common/io/proc.h"

namespace regroup::shim {
namespace {

constexpr auto kLookAgain = std::chrono::seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<StoreHost>> StoreHost::Create(Spec spec, Fds fds) {
  std::unique_ptr<StoreHost> host(new StoreHost(std::move(spec), std::move(fds)));
  RETURN_IF_ERROR(host->SetUp());
  return host;
}

absl::Status StoreHost::SetUp() {
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return io::ErrnoStatus(errno, "set up store host");
  store::ServerOptions options;
  options.FitInto(io::RaiseDescriptorLimit(), 64);
  options.members = spec_.store_members;
  options.log = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  options.on_old_client = [this](const std::string& line) { trouble_ = line; };
  ASSIGN_OR_RETURN(server_, store::Server::Create(std::move(fds_.listener), std::move(options)));
  RETURN_IF_ERROR(io::Watch(epoll_.get(), server_->epoll_fd(), EPOLLIN));
  if (fds_.lifeline) RETURN_IF_ERROR(io::Watch(epoll_.get(), fds_.lifeline.get(), EPOLLIN));
  ASSIGN_OR_RETURN(control_,
                   ControlSocket::Open(epoll_.get(), std::move(fds_.socket), spec_.nonce));
  return absl::OkStatus();
}

void StoreHost::Run() {
  for (;;) {
    if (stop_deadline_ && (server_->connection_count() == 0 || io::BootNow() >= *stop_deadline_))
      over_ = true;
    EndIfAbandoned();
    if (over_) server_.reset();  // Closed before anybody is told.
    Report();
    if (over_) return;
    epoll_event events[16];
    int n = ::epoll_wait(epoll_.get(), events, 16, MillisecondsLeft());
    CHECK(n >= 0 || errno == EINTR);
    for (int i = 0; i < n; ++i) OnEvent(events[i].data.fd, events[i].events);
  }
}

void StoreHost::OnEvent(int fd, std::uint32_t events) {
  if (fd == server_->epoll_fd()) return server_->HandleReady();
  if (fds_.lifeline && fd == fds_.lifeline.get()) return OnLifeline();
  if (!control_->Owns(fd)) return;
  for (const auto& [command, fds] : control_->OnEvent(fd, events)) {
    if (const auto* stop = std::get_if<regroup::shim::Stop>(&command)) Stop(stop->deadline);
    if (std::holds_alternative<Kill>(command)) Stop(io::BootNow());
  }
}

void StoreHost::OnLifeline() {
  char bytes[256];
  ssize_t n = ::read(fds_.lifeline.get(), bytes, sizeof(bytes));
  if (n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN))) return;
  fds_.lifeline.reset();
  if (!stop_deadline_) Stop(io::BootNow() + spec_.lifeline_grace);
}

void StoreHost::Stop(Instant deadline) {
  if (!stop_deadline_ || deadline < *stop_deadline_) stop_deadline_ = deadline;
  server_->CloseListener();
}

void StoreHost::EndIfAbandoned() {
  const bool alone = server_->connection_count() == 0 && !control_->HasAgent();
  const Instant now = io::BootNow();
  if (!alone) {
    abandoned_due_.reset();
  } else if (!abandoned_due_) {
    abandoned_due_ = now + spec_.agent_patience;
  } else if (now >= *abandoned_due_) {
    over_ = over_ || !GroupMayLive();
    abandoned_due_ = now + kLookAgain;
  }
}

// Ranks of this node may still come to this store; of others' nodes those that live are connected.
bool StoreHost::GroupMayLive() const {
  const std::string lock =
      "../" + RunDirectoryName(spec_.job, spec_.generation, Role::kGroup) + "/" + kLockFile;
  const absl::StatusOr<bool> locked = io::IsLocked(fds_.directory.get(), lock);
  return !locked.ok() || *locked;
}

void StoreHost::Report() {
  State now;
  now.nonce = spec_.nonce;
  now.shim_pid = ::getpid();
  now.phase = over_ ? Phase::kFree : stop_deadline_ ? Phase::kStopping : Phase::kRunning;
  now.ever_started = true;
  now.stop_deadline = stop_deadline_;
  now.log_trouble = trouble_;
  const bool changed = !(now == reported_);
  if (changed || control_->Asked())
    control_->Send(now, changed ? ControlSocket::To::kAll : ControlSocket::To::kAsking);
  if (!changed) return;
  reported_ = now;
  absl::Status saved =
      io::ReplaceFileAt(fds_.directory.get(), kStateFile, Encode(now), io::Durability::kVolatile);
  if (!saved.ok()) std::fprintf(stderr, "%s\n", std::string(saved.message()).c_str());
}

int StoreHost::MillisecondsLeft() const {
  std::optional<Instant> next = stop_deadline_;
  if (abandoned_due_ && (!next || *abandoned_due_ < *next)) next = abandoned_due_;
  if (!next) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - io::BootNow());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 3600'000));
}

}  // namespace regroup::shim
