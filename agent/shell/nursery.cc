#include "agent/shell/nursery.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/shell/child_exit.h"
#include "common/base/job_spec.h"
#include "common/config/values.h"
#include "common/io/proc.h"
#include "common/report/format.h"

namespace regroup::agent {
namespace {

namespace asio = boost::asio;
using asio::posix::stream_descriptor;
using boost::system::error_code;

// A new process of Python's size takes milliseconds, and longer where a host stands still for a
// moment. To import PyTorch anew takes as long as this.
constexpr auto kAnswerLimit = std::chrono::seconds(3);
constexpr std::size_t kMaxMessageBytes = 8192;
constexpr auto kNurseryEndLimit = std::chrono::seconds(1);  // From its connection's end to its own.

std::string HowItEnded(std::optional<int> status) {
  if (!status) return "";
  if (WIFSIGNALED(*status)) return absl::StrCat(" by ", SignalName(WTERMSIG(*status)));
  return absl::StrCat(" with exit code ", WEXITSTATUS(*status));
}

}  // namespace

struct Nursery::Asked {
  Asked(asio::io_context& loop, int fd) : answer(loop, fd), limit(loop, kAnswerLimit) {}
  stream_descriptor answer;  // Open until it is settled whether the shim runs.
  asio::steady_timer limit;
  shim::ShimStart start;
  std::function<void(const shim::ShimStart&)> failed;
};

std::shared_ptr<Nursery> Nursery::Start(asio::io_context& loop, const std::string& program,
                                        const shim::Spec& spec,
                                        const std::vector<std::string>& modules,
                                        std::function<void(std::string)> cold) {
  std::shared_ptr<Nursery> nursery(new Nursery(loop, std::move(cold)));
  if (!shim::WordsBeforeScript(spec.command)) {
    nursery->Fail("their program is no script or module that Python executes");
    return nursery;
  }
  absl::StatusOr<shim::SpawnedNursery> spawned = shim::SpawnNursery(program, spec, modules);
  if (!spawned.ok()) {
    nursery->Fail(std::string(spawned.status().message()));
    return nursery;
  }
  nursery->pid_ = spawned->child.pid;
  nursery->process_.reset(::fcntl(spawned->child.process.get(), F_DUPFD_CLOEXEC, 3));
  nursery->socket_.emplace(loop, spawned->socket.release());
  nursery->Listen();
  WhenOver(loop, std::move(spawned->child.process), spawned->child.pid,
           [weak = std::weak_ptr<Nursery>(nursery)](std::optional<int> status) {
             const std::shared_ptr<Nursery> self = weak.lock();
             if (!self) return;
             self->OnMessage();  // Its last words come before its end.
             self->Fail(absl::StrCat("its nursery has ended", HowItEnded(status)));
           });
  return nursery;
}

void Nursery::Listen() {
  socket_->async_wait(stream_descriptor::wait_read,
                      [weak = weak_from_this()](const error_code& error) {
                        const std::shared_ptr<Nursery> self = weak.lock();
                        if (error || !self || self->over_) return;
                        self->OnMessage();
                        if (self->socket_) self->Listen();
                      });
}

void Nursery::OnMessage() {
  if (over_ || closed_) return;
  char bytes[kMaxMessageBytes];
  ssize_t n = ::recv(socket_->native_handle(), bytes, sizeof(bytes), 0);
  // It has closed without reading all of ours. That is told first, and once; then what it has said.
  if (n < 0 && errno == ECONNRESET) n = ::recv(socket_->native_handle(), bytes, sizeof(bytes), 0);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  const std::string_view said(bytes, n > 0 ? static_cast<std::size_t>(n) : 0);
  if (said == "ready") {
    ready_ = true;
    TellSettled();
  } else if (said.starts_with("cold ")) {
    Fail(std::string(said.substr(5)));
  } else {
    AwaitEnd();
  }
}

// How it ended says more than that it says nothing any more.
void Nursery::AwaitEnd() {
  if (over_ || std::exchange(closed_, true)) return;
  socket_.reset();
  auto limit = std::make_shared<asio::steady_timer>(loop_, kNurseryEndLimit);
  limit->async_wait([weak = weak_from_this(), limit](const error_code& error) {
    const std::shared_ptr<Nursery> self = weak.lock();
    if (!error && self) self->Fail("its nursery has closed its connection");
  });
}

void Nursery::Fail(std::string why) {
  if (over_) return;
  End();
  if (auto cold = std::exchange(cold_, nullptr)) cold(std::move(why));
  TellSettled();
}

void Nursery::WhenSettled(std::function<void()> settled) {
  settled_.push_back(std::move(settled));
  if (ready() || over_) TellSettled();
}

void Nursery::TellSettled() {
  for (const auto& settled : std::exchange(settled_, {})) settled();
}

void Nursery::GiveUp() {
  Fail(absl::StrCat("their imports took longer than ", FormatDuration(kWarmUpLimit)));
}

std::uint64_t Nursery::Bytes() const { return process_ ? io::ResidentBytes(pid_) : 0; }

void Nursery::End() {
  over_ = true;
  socket_.reset();
  // By its descriptor, so that no other process of that number is meant.
  if (process_) ::syscall(SYS_pidfd_send_signal, process_.get(), SIGKILL, nullptr, 0);
  process_.reset();
}

void Nursery::StartShim(shim::ShimStart start, std::function<void(const shim::ShimStart&)> failed) {
  absl::StatusOr<io::UniqueFd> answer = shim::AskForShim(socket_->native_handle(), start);
  if (!answer.ok()) {
    Fail(std::string(answer.status().message()));
    return failed(start);
  }
  auto asked = std::make_shared<Asked>(loop_, answer->release());
  asked->start = std::move(start);
  asked->failed = std::move(failed);
  AwaitAnswer(asked);
  asked->limit.async_wait([self = shared_from_this(), asked](const error_code& error) {
    if (error || !asked->answer.is_open()) return;
    self->OnMessage();
    self->Fail("its nursery does not answer");
    Settle(*asked, false);
  });
}

// Such a wait may end too early: see child_exit.cc.
void Nursery::AwaitAnswer(const std::shared_ptr<Asked>& asked) {
  asked->answer.async_wait(
      stream_descriptor::wait_read, [self = shared_from_this(), asked](const error_code& error) {
        if (error || !asked->answer.is_open()) return;
        const std::optional<bool> allowed = shim::AllowShim(asked->answer.native_handle());
        if (!allowed) return self->AwaitAnswer(asked);
        if (!*allowed) {
          self->OnMessage();
          self->AwaitEnd();
        }
        Settle(*asked, *allowed);
      });
}

void Nursery::Settle(Asked& asked, bool allowed) {
  asked.limit.cancel();
  asked.answer.close();
  if (!allowed) asked.failed(asked.start);
  asked.start = {};  // With the lock of its directory.
}

}  // namespace regroup::agent
