#pragma once

// A run directory is the record of one group (or one store) on this node: <base>/<node
// id>/<job>.<generation>[.store]/
//
//   spec      written by the agent before the shim has the directory
//   lock      flocked by the shim as long as the directory is its own
//   socket    bound by the agent, served by the shim
//   started   the mark: StartRanks was obeyed. Written before the first rank
//   state     the shim's last state, replaced after it was reported; where the group was handed
//             over, before
//   agent     the agent's own notes (WriteAgentNotes)
//   shim.log  the shim's stderr: normally empty
//
// It lies on a tmpfs and is written without fsync: it survives every process, not a reboot.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/shim/protocol.h"
#include "common/base/ids.h"
#include "common/io/fd.h"

namespace regroup::shim {

inline constexpr char kSpecFile[] = "spec", kLockFile[] = "lock", kSocketFile[] = "socket",
                      kStartedFile[] = "started", kStateFile[] = "state", kAgentFile[] = "agent",
                      kShimLogFile[] = "shim.log";

// Makes and returns `<base>/<node>`: base is the first writable tmpfs of /run/regroup,
// $XDG_RUNTIME_DIR/regroup (the argument may be empty) and /dev/shm/regroup-<uid>.
// FAILED_PRECONDITION names them all.
absl::StatusOr<std::string> MakeRunBase(const NodeId& node, const std::string& xdg_runtime_dir);

// "<job>.<generation>" or "<job>.<generation>.store".
std::string RunDirectoryName(const JobId& job, Generation generation, Role role);

// An open run directory.
struct RunDirectory {
  std::string path;
  io::UniqueFd fd;
};
// Makes the directory and writes the spec; also `node_base`, where that has been removed.
// ALREADY_EXISTS: there is one for this job, generation and role.
absl::StatusOr<RunDirectory> CreateRunDirectory(const std::string& node_base, const Spec& spec);
absl::StatusOr<RunDirectory> OpenRunDirectory(const std::string& path);
// In place of the one that it was made with. REQUIRES: no shim has had the directory.
absl::Status WriteSpec(const RunDirectory& directory, const Spec& spec);
absl::StatusOr<Spec> ReadSpec(const RunDirectory& directory);
// The StartRanks that was obeyed. NOT_FOUND: none was.
absl::StatusOr<StartRanks> ReadStarted(const RunDirectory& directory);

// What a directory says, whoever lives.
struct RunRecord {
  std::string path;
  Spec spec;
  bool started = false;  // The mark.
  std::optional<State>
      state;  // The last one written; none: nothing was started and nothing ended yet.
  bool shim_alive = false;  // The lock is held.
  bool other_boot = false;  // Void: nothing of it can live.
  std::string agent_notes;
  // The shim died before its group was free: KillLeftovers, then report "supervisor lost". Also
  // true when it was never started (the agent died in between); then `started` is false and nothing
  // of the group ever ran.
  bool supervisor_lost() const {
    return !shim_alive && !other_boot && !(state && state->phase == Phase::kFree);
  }
};
absl::StatusOr<RunRecord> ReadRunDirectory(const std::string& path);
// A directory that is there and can't be understood: written by a newer program, or its files are
// gone, damaged, or not ours to read. Its name still says whose it is.
struct UnreadableRun {
  std::string path, why;
  JobId job;  // Empty: the name is not of a run directory.
  Generation generation;
  Role role = Role::kGroup;
  std::optional<Spec> spec;  // Where that much could be read.
  bool held = false;         // The lock is held: its shim lives.
  bool had_shim = false;     // There is a lock file, so a shim was (about to be) started.
};
struct RunScan {
  std::vector<RunRecord> records;
  std::vector<UnreadableRun> unreadable;
};
// An error means that nothing is known and nothing may be touched: descriptors or memory are short,
// the disk fails, or a lock can't be looked at. It may pass; ask again.
absl::StatusOr<RunScan> ScanRunDirectories(const std::string& node_base);

absl::Status WriteAgentNotes(const std::string& path, std::string_view notes);
// Does a process hold the lock? False without a directory.
absl::StatusOr<bool> IsHeld(const std::string& path);
// FAILED_PRECONDITION, and nothing is touched, as long as its lock is held.
// Beside the run directories of a launched node: Spec::passing of one generation; and all of them.
std::string PassingDirectory(const std::string& node_base, const JobId& job, Generation generation);
std::string PassingRoot(const std::string& node_base);
absl::Status RemoveRunDirectory(const std::string& path);

}  // namespace regroup::shim
