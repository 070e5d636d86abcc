#include "agent/shell/run_remover.h"

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace regroup::agent {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kTryAgain = 20ms, kTryLater = 1s;

}  // namespace

RunRemover::RunRemover(boost::asio::io_context& loop, std::function<void(std::string)> warn)
    : loop_(loop), warn_(std::move(warn)), alive_(std::make_shared<bool>(true)) {}

RunRemover::~RunRemover() { *alive_ = false; }

void RunRemover::KillAt(const std::string& path) {
  if (path.empty()) return;
  absl::StatusOr<shim::RunRecord> record = shim::ReadRunDirectory(path);
  const absl::Status killed = record.ok() ? shim::KillShim(*record) : record.status();
  if (!killed.ok() && !absl::IsUnavailable(killed))  // Not started yet: its Kill awaits it.
    warn_(absl::StrCat("kill the process of ", path, ": ", std::string(killed.message())));
}

void RunRemover::Remove(const std::string& path, std::chrono::milliseconds waited) {
  const absl::Status removed = shim::RemoveRunDirectory(path);
  removing_.erase(path);
  if (removed.ok()) return;
  removing_.insert(path);
  const bool held = absl::IsFailedPrecondition(removed);
  if (!held && waited == 0ms)
    warn_(absl::StrCat("cannot remove ", path, ": ", std::string(removed.message())));
  if (held && waited == kLastWords) KillAt(path);
  After(waited < kLastWords ? kTryAgain : kTryLater, [this, path, waited] {
    Remove(path, std::min(waited + kTryAgain, kLastWords + kTryAgain));
  });
}

void RunRemover::End(const shim::UnreadableRun& run) {
  const absl::StatusOr<int> found = shim::KillUnreadable(run, /*cgroup_base=*/"");
  if (found.ok() && *found == 0) return Remove(run.path);
  After(kTryAgain, [this, run] { End(run); });
}

void RunRemover::After(std::chrono::milliseconds wait, std::function<void()> what) {
  auto timer = std::make_shared<boost::asio::steady_timer>(loop_, wait);
  timer->async_wait(
      [alive = alive_, timer, what = std::move(what)](const boost::system::error_code& error) {
        if (!error && *alive) what();
      });
}

}  // namespace regroup::agent
