#pragma once

// What an agent knows. It decides nothing: the rooms above are functions over it. Of all this only
// what run directories say outlives the process (RunRecord); the rest is learnt anew. Private to
// this folder.

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "agent/core/config.h"
#include "agent/core/events.h"
#include "agent/core/group.h"
#include "common/base/control.h"
#include "common/base/ids.h"
#include "common/base/time.h"

namespace regroup::agent {

// ---- the session --------------------------------------------------------------------------------
//
//   Away → Opened → Attached → Away
//
// Opened turns into Away as well: when the Welcome is refused or does not come.

struct Away {};
struct Opened {  // Hello was said, or will be once the run directories have been read.
  CoordinatorFound found;
  Instant silent_at;  // By then the Welcome must have come.
};
struct Attached {
  Duration heartbeat;
  Instant next_heartbeat;
  // By then something must have been heard. Unset: its coordinator answers no heartbeats.
  std::optional<Instant> silent_at;
  OrderNo obeyed;  // Orders of a session arrive in sequence.
};
using Session = std::variant<Away, Opened, Attached>;

// ---- jobs and workers ---------------------------------------------------------------------------

// What orders have said of one job.
struct Job {
  Generation highest;  // Of any prepare or run: lower ones are refused.
  Generation stopped_up_to, forgotten_up_to;
  // Of the newest order of this session; the next coordinator compares, then orders anew.
  std::optional<Prepare> prepare;
  std::optional<Run> run;
};

struct Progress {  // Of one rank.
  WorkerProgress last;
  bool unsent = false;
  Instant not_before{};
};

// One at a time goes to the coordinator: however often a worker asks, its node's session carries
// one question and one answer.
struct Commit {
  CommitRequest newest;
  std::optional<CommitRequest> in_flight;  // Sent in this session and not answered.
};

// ---- the end ------------------------------------------------------------------------------------

struct Result {  // Of a launch command's job.
  int exit_code = 0;
  Instant at;
};
struct Leaving {
  int signal = 0;  // 0: the join timeout is over.
  Instant since;
  Instant deadline;                   // Of the grace.
  bool now = false;                   // A second signal: without grace.
  std::optional<Instant> idle_since;  // No group is busy since then.
};
// Of a launch command of which nothing runs, one soon after the other.
struct Refusals {
  Instant first, last;
};
struct Ending {
  bool accepted = false;             // It has belonged to a job.
  std::optional<Refusals> refusals;  // Since a coordinator last accepted it.
  bool enough_joined = false;        // A spare waits as long as the job runs: no join timeout.
  std::optional<Result> result;
  std::optional<Leaving> leaving;
  bool left = false;  // Leave was ordered: no event counts any more.
};

struct State {
  State(Config config, Instant now) : config(std::move(config)), started_at(now), now(now) {}

  bool attached() const { return std::holds_alternative<Attached>(session); }
  Attached* attachment() { return std::get_if<Attached>(&session); }
  const Attached* attachment() const { return std::get_if<Attached>(&session); }
  Group* Find(const GroupKey& key);                           // Null: there is none.
  std::optional<GroupKey> HeirOf(const GroupKey& key) const;  // Gets its shim, and has its slots.
  bool IsHandingOver(const GroupKey& key) const;  // Its shim was asked to, and has not answered.
  bool AnyBusy() const;                           // Some group runs, or has yet to end.

  Config config;  // Cluster and epoch follow the coordinator.
  const Instant started_at;
  Instant now;           // Of the step in hand, or of the last one.
  bool scanned = false;  // Every run directory has been read: Hello may tell the whole inventory.
  bool ever_ran = false;

  Session session;
  Duration lease{};  // Of the last coordinator that welcomed this agent.
  // While there is none and this host hosts it.
  std::optional<Instant> next_coordinator_start;

  std::map<GroupKey, Group> groups;
  std::map<JobId, Job> jobs;
  // Until then what warm ranks of a job are forked from waits for its next group. Of jobs without
  // one, warm or not: an adopted group does not say.
  std::map<JobId, Instant> nurseries;
  ReportNo last_report;
  std::map<std::pair<GroupKey, int>, Progress> progress;  // By local rank.
  std::map<GroupKey, Commit> commits;                     // Asked and not answered.
  Ending ending;
};

}  // namespace regroup::agent
