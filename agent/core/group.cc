#include "agent/core/group.h"

#include <algorithm>

namespace regroup::agent {
namespace {

// Of all ranks together: thousands that fail at once must fit into one message.
constexpr std::size_t kMaxReportedErrorBytes = 128 << 10;

Duration AgeAt(Instant now, Instant then) { return std::max(Duration::zero(), now - then); }

Phase PhaseOf(const RunRecord& record) {
  if (record.empty || record.killed) return Phase::kFree;
  if (record.unkillable) return Phase::kUnkillable;
  if (!record.shim_alive || record.stop_deadline) return Phase::kStopping;
  if (!record.started) return Phase::kPreparing;
  const bool all = static_cast<int>(record.starts.size()) >= record.workers;
  return all ? Phase::kRunning : Phase::kStarting;
}

}  // namespace

GroupReport ReportOf(const GroupKey& key, const Group& group, Instant now) {
  GroupReport report;
  report.number = group.number;
  report.job = key.job;
  report.generation = key.generation;
  report.phase = group.phase;
  if (!group.store_closed) report.store = group.store;
  report.witness = group.witness;
  for (const auto& [local_rank, start] : group.starts) {
    report.started.push_back(
        {.local_rank = local_rank, .pid = start.pid, .age = AgeAt(now, start.at)});
  }
  std::size_t room = kMaxReportedErrorBytes;
  for (const auto& [local_rank, exit] : group.exits) {
    const std::string error = exit.error.substr(0, room);
    room -= error.size();
    report.exits.push_back({.local_rank = local_rank,
                            .kind = exit.kind,
                            .code = exit.code,
                            .after_stop = exit.after_stop,
                            .oom = exit.oom,
                            .pid = exit.pid,
                            .age = AgeAt(now, exit.at),
                            .error = error,
                            .obstacle = exit.obstacle,
                            .evidence = exit.evidence});
  }
  report.supervisor_lost = group.supervisor_lost;
  report.store_lost = group.store_lost;
  report.refused = group.refused;
  return report;
}

Group Adopt(const RunRecord& record) {
  Group group;
  group.phase = PhaseOf(record);
  group.workers = record.workers;
  group.host_store = record.host_store;
  group.has_directory = true;
  group.shim_spawned = true;
  group.shim_ready = record.shim_alive;
  group.checking = record.checking;
  group.refused = record.check_failed;
  group.shim_gone = !record.shim_alive;
  group.started = record.started;
  group.store = record.store;
  group.witness = record.witness;
  group.stop_deadline = record.stop_deadline;
  group.signalled_at = record.stop_deadline ? std::optional<Instant>(Instant{}) : std::nullopt;
  group.signals_sent = record.noticed;
  for (const RankStarted& start : record.starts) {
    group.starts.emplace(start.local_rank, start);
    if (record.noticed) group.rank_signalled_at.emplace(start.local_rank, Instant{});
  }
  for (const RankEnded& exit : record.exits) group.exits.emplace(exit.local_rank, exit);
  group.supervisor_lost = !record.shim_alive && !record.empty;
  group.store_closed = record.host_store && record.store && !record.store_alive && record.empty;
  group.store_lost = record.host_store && record.store && !record.store_alive &&
                     !record.stop_deadline && !record.empty;
  return group;
}

}  // namespace regroup::agent
