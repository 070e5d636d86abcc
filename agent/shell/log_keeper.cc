#include "agent/shell/log_keeper.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace regroup::agent {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kDefaultBytes = 100 << 20;  // Of each stream of each rank.
constexpr std::uint64_t kStreamsPerJob = 20;        // Of full length: what a job keeps on a node.
constexpr auto kFullDiskInterval = 30s;

}  // namespace

io::LogLimits LimitsOf(const JobSpec& job, bool kept_apart) {
  if (job.log_keep_bytes == kKeepAllLogs || (!job.log_keep_bytes && kept_apart))
    return io::LimitsFor(std::nullopt);
  return io::LimitsFor(job.log_keep_bytes.value_or(kDefaultBytes));
}

LogKeeper::LogKeeper(boost::asio::io_context& loop, boost::asio::thread_pool& disk,
                     std::string log_root, Handler handler)
    : disk_(disk),
      log_root_(std::move(log_root)),
      handler_(std::move(handler)),
      full_disk_timer_(loop) {}

LogKeeper::~LogKeeper() = default;

void LogKeeper::SetShown(std::map<GroupKey, shim::Shown> shown) {
  // Shown to its end: its shim has nothing to hold any more.
  for (auto& [key, before] : shown_) {
    if (shown.contains(key)) continue;
    for (shim::Shown::Stream& stream : before.streams) stream.position = io::kNotAwaited;
    handler_.send(key, before);
    const auto group = groups_.find(key);
    if (group != groups_.end() && group->second.removed) groups_.erase(group);
  }
  const std::map<GroupKey, shim::Shown> told = std::exchange(shown_, std::move(shown));
  for (auto& [key, now] : shown_) {
    now.room_bytes = RoomFor(key);
    const auto before = told.find(key);
    if (before == told.end() || !(before->second == now)) handler_.send(key, now);
  }
}

std::uint64_t LogKeeper::RoomFor(const GroupKey& key) const {
  std::uint64_t others = 0;
  for (const auto& [other, group] : groups_) {
    if (other.job == key.job && other != key && shown_.contains(other))
      others += group.unshown_bytes;
  }
  return kUnshownBytesPerJob - std::min(kUnshownBytesPerJob, others);
}

void LogKeeper::OnState(const GroupKey& key, const shim::State& state) {
  Group& group = groups_[key];
  group.unshown_bytes = state.unshown_bytes;
  group.disk_full = state.disk_full;
  if (state.disk_full) TellFullDisk();
}

void LogKeeper::OnGone(const GroupKey& key) {
  const auto group = groups_.find(key);
  if (group != groups_.end()) group->second.disk_full = false;
}

void LogKeeper::OnRemoved(const GroupKey& key) {
  const auto group = groups_.find(key);
  if (group == groups_.end()) return;
  if (!shown_.contains(key)) {
    groups_.erase(group);
    return;
  }
  group->second.removed = true;
}

void LogKeeper::TellFullDisk() {
  if (!handler_.tell || std::exchange(full_disk_told_, true)) return;
  handler_.tell(absl::StrCat("the disk of ", log_root_,
                             " is full: output is not kept, workers run on · free some: "
                             "regroup prune"));
  // A little later, so that whoever leaves out what it has just said does not leave out this.
  full_disk_timer_.expires_after(kFullDiskInterval + 100ms);
  full_disk_timer_.async_wait([this](boost::system::error_code error) {
    if (error) return;
    full_disk_told_ = false;
    if (std::any_of(groups_.begin(), groups_.end(),
                    [](const auto& entry) { return entry.second.disk_full; })) {
      TellFullDisk();
    }
  });
}

void LogKeeper::Prune(const GroupKey& current, io::LogLimits limits) {
  if (limits.keeps_all()) return;
  std::set<Generation> keep = {Generation(1), Generation(current.generation.value() - 1),
                               current.generation};
  for (const auto& [key, shown] : shown_) {
    if (key.job == current.job) keep.insert(key.generation);
  }
  const std::uint64_t most =
      limits.segment_bytes * static_cast<std::uint64_t>(limits.segments) * kStreamsPerJob;
  boost::asio::post(disk_, [root = log_root_, job = current.job, keep, most] {
    io::PruneLogs(root, job, most, keep).IgnoreError();
  });
}

}  // namespace regroup::agent
