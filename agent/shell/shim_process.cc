#include "agent/shell/shim_process.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "agent/shell/child_exit.h"

namespace regroup::agent {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

// Between the end of a connection and the end of the process that held it lie microseconds.
constexpr auto kLookAgain = std::chrono::milliseconds(2);
constexpr int kLooksInDoubt = 9;  // Then each second: 2 ms doubled so often.

}  // namespace

std::shared_ptr<ShimProcess> ShimProcess::Make(asio::io_context& loop, std::string path,
                                               shim::Spec spec, bool wants_output,
                                               Handler handler) {
  return std::shared_ptr<ShimProcess>(
      new ShimProcess(loop, std::move(path), std::move(spec), wants_output, std::move(handler)));
}

ShimProcess::ShimProcess(asio::io_context& loop, std::string path, shim::Spec spec,
                         bool wants_output, Handler handler)
    : loop_(loop),
      path_(std::move(path)),
      spec_(std::move(spec)),
      wants_output_(wants_output),
      handler_(std::move(handler)),
      retry_(loop) {}

absl::Status ShimProcess::Spawn(const std::string& program, const shim::RunDirectory& directory,
                                const shim::ShimFds& fds) {
  absl::StatusOr<shim::ShimStart> start = shim::PrepareShim(program, directory, spec_.role, fds);
  if (!start.ok()) return start.status();
  absl::Status spawned = Spawn(*start);
  return spawned.ok() ? Connect(directory) : spawned;
}

absl::Status ShimProcess::Spawn(const shim::ShimStart& start) {
  absl::StatusOr<shim::SpawnedShim> spawned = shim::SpawnShim(start);
  if (!spawned.ok()) return spawned.status();
  // Outlives this object: a child must be reaped whatever became of its group.
  WhenOver(loop_, std::move(spawned->process), spawned->pid, [](std::optional<int>) {});
  return absl::OkStatus();
}

void ShimProcess::Adopt() {
  absl::StatusOr<shim::RunDirectory> directory = shim::OpenRunDirectory(path_);
  if (!directory.ok() || !Connect(*directory).ok()) Lost();
}

absl::Status ShimProcess::Connect(const shim::RunDirectory& directory) {
  absl::StatusOr<shim::Link> link = shim::Link::Connect(directory, spec_, wants_output_);
  if (!link.ok()) return link.status();
  link_ = *std::move(link);
  watch_.emplace(loop_, link_->fd());
  WaitReadable();
  if (link_->WantsWrite()) WaitWritable();
  return absl::OkStatus();
}

void ShimProcess::WaitReadable() {
  watch_->async_wait(asio::posix::stream_descriptor::wait_read,
                     [self = shared_from_this()](error_code error) {
                       if (!error && !self->dropped_ && self->watch_) self->OnReadable();
                     });
}

void ShimProcess::WaitWritable() {
  if (std::exchange(writing_, true)) return;
  watch_->async_wait(asio::posix::stream_descriptor::wait_write,
                     [self = shared_from_this()](error_code error) {
                       self->writing_ = false;
                       if (error || self->dropped_ || !self->link_) return;
                       if (!self->link_->OnWritable().ok())
                         return;  // The reading side sees the end.
                       if (self->link_->WantsWrite()) self->WaitWritable();
                     });
}

void ShimProcess::OnReadable() {
  for (;;) {
    absl::StatusOr<std::optional<shim::State>> state = link_->OnReadable();
    if (!state.ok()) return Lost();
    if (!*state) break;
    looks_ = 0;
    if (auto handle = handler_.state) handle(**state);
    if (dropped_ || !link_) return;
  }
  WaitReadable();
}

void ShimProcess::Send(const shim::Command& command) {
  if (!link_ || !link_->Send(command).ok()) return;
  if (link_->WantsWrite()) WaitWritable();
}

absl::Status ShimProcess::SendAdopt(const shim::Adoption& adoption, int rank0_stdin) {
  if (!link_) return absl::UnavailableError("the supervisor does not answer");
  return link_->SendAdopt(adoption, rank0_stdin);
}

void ShimProcess::Lost() {
  if (watch_) {
    watch_->release();
    watch_.reset();
  }
  link_.reset();
  retry_.expires_after(kLookAgain * (1 << std::min(looks_++, kLooksInDoubt)));
  retry_.async_wait([self = shared_from_this()](error_code error) {
    if (!error && !self->dropped_) self->Look();
  });
}

// The lock says whether it lives; the record is read after the lock was seen free, so it is the
// last one.
void ShimProcess::Look() {
  absl::StatusOr<shim::RunRecord> record = shim::ReadRunDirectory(path_);
  if (record.ok() && record->shim_alive) return Adopt();
  // Only what can be read says that it is gone: descriptors may be short here.
  const absl::StatusOr<bool> held = shim::IsHeld(path_);
  if (!record.ok() && (!held.ok() || *held)) return Lost();
  gone_ = true;
  shim::RunRecord last;
  if (record.ok()) {
    last = *std::move(record);
  } else {  // Removed, or it can't be read: nothing is known but that no process holds it.
    last.path = path_;
    last.spec = spec_;
  }
  if (auto handle = std::exchange(handler_, {}).gone) handle(last);
}

void ShimProcess::Drop() {
  dropped_ = true;
  handler_ = {};
  retry_.cancel();
  if (watch_) {
    watch_->release();
    watch_.reset();
  }
  link_.reset();
}

}  // namespace regroup::agent
