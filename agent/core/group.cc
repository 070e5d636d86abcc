#include "agent/core/group.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

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

std::string NameOf(const GroupKey& key) {
  return absl::StrCat(key.job.value(), " generation ", key.generation.value());
}

void MarkFree(Group& group) {
  if (group.phase == Phase::kFree) return;
  group.phase = Phase::kFree;
  group.notice.deadline.reset();  // Nobody is left to be told.
  group.words_until.reset();
  group.killing.reset();
  ForsakeRanks(group);
  group.report.dirty = true;
}

void ForsakeRanks(Group& group) {
  group.in_place.retiring.reset();
  group.in_place.retired.clear();
  group.in_place.awaited.clear();
}

GroupReport ReportOf(const GroupKey& key, const Group& group, Instant now) {
  GroupReport report;
  report.number = group.report.number;
  report.job = key.job;
  report.generation = key.generation;
  report.phase = group.phase;
  // A closed store takes nobody in: members of this generation must not be sent there.
  if (!group.store.closed) report.store = group.store.address;
  report.witness = group.shim.witness;
  for (const auto& [local_rank, start] : group.ranks.starts) {
    report.started.push_back({.local_rank = local_rank,
                              .pid = start.pid,
                              .age = AgeAt(now, start.at),
                              .kept = group.ranks.kept.contains(local_rank)});
  }
  std::size_t room = kMaxReportedErrorBytes;
  for (const auto& [local_rank, exit] : group.ranks.exits) {
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
                            .evidence = exit.evidence,
                            .given_up = exit.given_up});
  }
  report.supervisor_lost = group.supervisor_lost;
  report.store_lost = group.store.lost;
  report.refused = group.refused;
  return report;
}

Group Adopt(const RunRecord& record) {
  Group group;
  group.phase = PhaseOf(record);
  group.workers = record.workers;
  group.slots = record.slots;
  group.shim.stage = record.shim_alive ? ShimStage::kReady : ShimStage::kGone;
  group.shim.checking = record.checking;
  group.shim.witness = record.witness;
  group.refused = record.check_failed;
  group.started = record.started;
  group.stop_deadline = record.stop_deadline;
  // When that was is not recorded. Whoever ended since is taken to have been told, since a failure
  // of its own would have been reported before the stop.
  group.signalled_at = record.stop_deadline ? std::optional<Instant>(Instant{}) : std::nullopt;
  group.notice.signals_sent = !record.signalled.empty();
  for (const RankStarted& start : record.starts) {
    // Without the mark it is a kept rank, which lives on whether this generation begins or not.
    if (!record.started || record.kept.contains(start.local_rank))
      group.ranks.kept.emplace(start.local_rank, start);
    if (record.started) group.ranks.starts.emplace(start.local_rank, start);
    group.in_place.were_able.insert(start.local_rank);
    if (record.signalled.contains(start.local_rank))
      group.notice.signalled_at.emplace(start.local_rank, Instant{});
  }
  for (const RankEnded& exit : record.exits) {
    // One that ended before this generation began is started anew with it.
    if (!record.started && group.ranks.kept.erase(exit.local_rank) > 0) continue;
    // As above: it was told, or its end has been reported.
    group.ranks.exits.emplace(exit.local_rank, exit).first->second.after_stop |=
        record.signalled.contains(exit.local_rank);
  }
  group.supervisor_lost = !record.shim_alive && !record.empty;
  group.store.hosted = group.store.spawned = record.store.hosted;
  group.store.address = record.store.address;
  // A store that is gone was lost, unless its group was over or being stopped: then it was closed,
  // or is of no use.
  const bool store_gone = record.store.hosted && record.store.address && !record.store.alive;
  group.store.closed = record.store.closed || (store_gone && record.empty);
  group.store.lost = store_gone && !record.stop_deadline && !group.store.closed;
  return group;
}

}  // namespace regroup::agent
