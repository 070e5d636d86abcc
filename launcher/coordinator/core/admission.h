#pragma once

// Who may open a session, under which name, and which job a launch command takes part in. Pure.
// PROTOCOL §4, §5.

#include <functional>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/control.h"
#include "common/base/ids.h"
#include "common/base/time.h"
#include "launcher/coordinator/core/rows.h"

namespace regroup::coordinator {

// One minor apart works both ways.
absl::Status CheckVersion(const Version& ours, const Version& theirs);

// A session is for one cluster and no epoch above ours. A higher epoch proves that this journal is
// too old only where the node is `known`: its row was there when this coordinator started, or it
// takes part in a job. On a stranger's word nothing but its own session ends.
enum class Fence { kPasses, kOtherCluster, kJournalTooOld, kUnprovedEpoch };
Fence CheckFence(const ClusterId& cluster, Epoch epoch, const Hello& hello, bool known);

// The epoch of a coordinator that starts with this row. With `accept_journal` its operator vouches
// for a journal that was found older than the fleet: its agents follow again.
Epoch NextEpoch(const MetaRow& meta, bool accept_journal);

// The address of the node that has this name and is not lost, other than the one that asks;
// nullopt: the name is free.
using NameTaken = std::function<std::optional<std::string>(const std::string& name)>;
// The name under which a node is known. `current`: the one it has now, if it is known and not lost.
// An explicit name that is taken is refused with both addresses; a default one gets the first free
// suffix -2, -3, …
absl::StatusOr<std::string> AdmitName(const Hello& hello, const std::optional<std::string>& current,
                                      const NameTaken& taken);

// An address that other hosts can not reach.
bool IsLoopback(const std::string& ip);

// An existing job of the name that a launch command asks for.
struct LaunchedJob {
  JobId id;
  JobSpec spec;
  bool ended = false;
  std::optional<Duration>
      ended_for;  // Since its end; unset: it ended before this coordinator started.
};
struct JoinJob {
  JobId id;
};  // Unfinished: takes part.
struct ShowResult {
  JobId id;
};  // It ended after this launcher had started.
struct BeginJob {};
using LaunchDecision = std::variant<JoinJob, ShowResult, BeginJob, absl::Status>;

// `mine`: the job that this very launch command (its key) already takes part in. `newest`: the
// newest job of the name.
LaunchDecision DecideLaunch(const LaunchRequest& request, const std::optional<LaunchedJob>& mine,
                            const std::optional<LaunchedJob>& newest);

// Bounds, budget and role must be the same on every launch command of a job; the error names both
// values.
absl::Status CheckSameBounds(const JobId& job, const JobSpec& running, const JobSpec& asked);

}  // namespace regroup::coordinator
