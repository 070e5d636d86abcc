#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "agent/core/events.h"

namespace regroup::agent {

// What the agent knows of one group. A value; Core alone changes it.
struct Group {
  Phase phase = Phase::kPreparing;
  int workers = 0;

  bool host_store = false;
  bool has_directory = false;  // Its run directory exists, in whole or in part.
  bool shim_spawned = false;
  bool shim_ready = false;
  bool checking = false;  // The node check runs.
  bool shim_gone = false;
  bool started = false;  // The started mark is (about to be) there. Never goes back.
  bool store_closed = false;
  std::optional<Address> store, witness;

  std::optional<Instant> stop_deadline;  // Never moves later.
  std::optional<Instant> kill_shim_at;   // It should have said by then that its ranks are gone.
  std::optional<Instant> signalled_at;   // First signal of ours to every rank.
  std::map<int, Instant> rank_signalled_at;

  std::optional<Instant> notice_deadline;
  bool signals_sent =
      false;  // Ranks that do not speak have had their SIGTERM, in this life or an earlier one.
  std::map<int, bool> speaking;  // Local rank → takes_notice, while its connection is open.
  std::set<int> told;            // Local ranks whose present connection has heard the notice.
  std::map<int, std::string> communicator_failed;

  std::map<int, RankStarted> starts;  // By local rank.
  std::map<int, RankEnded> exits;     // By local rank; the first one counts.
  bool supervisor_lost = false, store_lost = false;
  std::string refused;

  ReportNo number;  // Of the latest state.
  bool dirty = true;
  bool acked = false;

  bool busy() const { return phase != Phase::kFree && phase != Phase::kUnkillable; }
  bool holds_slots() const { return phase != Phase::kFree; }
};

// REQUIRES: now is not before any instant of the group.
GroupReport ReportOf(const GroupKey& key, const Group& group, Instant now);

// What an agent makes of a run directory that an earlier life of it left. REQUIRES: of this boot,
// and its shim lives or ranks were started.
Group Adopt(const RunRecord& record);

}  // namespace regroup::agent
