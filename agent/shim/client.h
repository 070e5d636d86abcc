#pragma once

// The agent's side of a shim: start it, talk to it, find it again, clean up after it. Nothing here
// blocks longer than a local system call; all descriptors are non-blocking and close-on-exec. One
// thread.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/shim/protocol.h"
#include "agent/shim/run_directory.h"
#include "common/base/control.h"
#include "common/io/address.h"
#include "common/io/fd.h"

namespace regroup::shim {

// ---- cgroups -----------------------------------------------------------------------------------

// Folder of a writable cgroup v2 hierarchy below which groups can be made, under this process's own
// cgroup (found through /proc/self/mountinfo, so also at /sys/fs/cgroup/unified). Only looks, makes
// nothing there. NOT_FOUND says why not: degraded mode.
absl::StatusOr<std::string> FindCgroupBase();
// The name of each cgroup of a group begins with regroup-<job>.<generation>.<mark>-; the mark is
// made of the path below which the agent keeps its run directories, since agents of two clusters
// may share a cgroup and have jobs of the same id.
std::string GroupCgroupPrefix(const std::string& node_base, const JobId& job,
                              Generation generation);
// <base>/<prefix><nonce prefix>; goes into Spec::cgroup, and so into the run directory, before it
// is made: what an agent that dies makes of it is found again. The shim removes it when its group
// is free.
std::string GroupCgroup(const std::string& base, const std::string& node_base, const Spec& spec);
absl::Status MakeGroupCgroup(const Spec& spec);
// Of a group whose shim never ran. What is not there, or not empty, stays as it is.
void RemoveEmptyCgroup(const std::string& path);

// ---- start -------------------------------------------------------------------------------------

// Agents that end with their terminal (`regroup run`) keep `write_end` open and pass `read_end` to
// every shim and store.
struct Lifeline {
  io::UniqueFd read_end, write_end;
};
absl::StatusOr<Lifeline> MakeLifeline();

struct ShimFds {
  int witness = -1;      // Listening TCP socket (io::ListenTcpInRange); for a store: its listening
                         // socket. Required.
  int lifeline = -1;     // Read end; -1: the shim outlives its agent.
  int rank0_stdin = -1;  // Becomes stdin of local rank 0; -1: /dev/null.
};
struct SpawnedShim {
  pid_t pid = 0;         // A child of this process: reap it (TryReap) once `process` is readable.
  io::UniqueFd process;  // pidfd: readable when the shim has ended.
};
// Locks the directory, binds its socket and starts `program` (regroup-shim; as a store if the spec
// says so) by posix_spawn. The caller closes its copies of `fds` afterwards (the witness: so that
// the shim is its only holder).
absl::StatusOr<SpawnedShim> SpawnShim(const std::string& program, const RunDirectory& directory,
                                      Role role, const ShimFds& fds);
// The same in two steps: as long as a ShimStart lives, the directory is locked and its socket
// takes connections.
struct ShimStart {
  std::vector<std::string> words;  // The program's path first.
  struct Passed {
    io::UniqueFd fd;
    int target = -1;
  };
  std::vector<Passed> passed;
};
absl::StatusOr<ShimStart> PrepareShim(const std::string& program, const RunDirectory& directory,
                                      Role role, const ShimFds& fds);
absl::StatusOr<SpawnedShim> SpawnShim(const ShimStart& start);
// What a living shim needs to have that directory as its next one (Adopt). As long as it lives, or
// a shim has taken it, the directory is locked and its socket takes connections.
struct Adoption {
  io::UniqueFd directory, lock, socket;
};
absl::StatusOr<Adoption> PrepareAdoption(const RunDirectory& directory);

// ---- nursery -----------------------------------------------------------------------------------

// How many words of the command stand before a script that Python executes, or before -m and a
// module; nullopt: it is neither.
std::optional<int> WordsBeforeScript(const std::vector<std::string>& command);
struct SpawnedNursery {
  SpawnedShim child;
  io::UniqueFd socket;  // Keeps messages apart. What comes: see nursery.py. Closed: it ends.
};
// For the command, program, environment and directory of `spec`; of no `modules` it finds them
// itself. REQUIRES: WordsBeforeScript.
absl::StatusOr<SpawnedNursery> SpawnNursery(const std::string& program, const Spec& spec,
                                            const std::vector<std::string>& modules);
// Has the nursery start the shim beside a child that forks warm ranks. The result becomes readable:
// with the pid of the shim, which waits for AllowShim; or at its end, when no shim will run.
absl::StatusOr<io::UniqueFd> AskForShim(int nursery_socket, const ShimStart& start);
// False: no shim will run. Nullopt: it has not answered yet.
std::optional<bool> AllowShim(int answer_socket);
// True when the child is gone and reaped (or is no child of ours).
bool TryReap(pid_t pid);

// ---- talk --------------------------------------------------------------------------------------

// A connection to a shim or store; right after SpawnShim, before the shim has even started to run,
// or to one found by ScanRunDirectories. Sends Hello by itself.
//
// Loop: wait until fd() is readable (and writable while WantsWrite()), then call OnReadable /
// OnWritable. After any error drop the link and look at the run directory (ReadRunDirectory): not
// shim_alive = its state is final, or the supervisor is lost; shim_alive = connect again. A dying
// shim's lock may outlive its sockets by some ms: then Connect says UNAVAILABLE, and one looks
// again a little later. One that answers nothing for seconds is ended by KillShim.
class Link {
 public:
  // UNAVAILABLE: nobody listens.
  static absl::StatusOr<Link> Connect(const RunDirectory& directory, const Spec& spec,
                                      bool wants_output);
  Link(Link&&) = default;
  Link& operator=(Link&&) = default;

  int fd() const { return fd_.get(); }
  bool WantsWrite() const { return !outgoing_.empty(); }
  // The newest state that arrived, if any. UNAVAILABLE at the end of the stream; a state that came
  // with the end is still returned first, so call until the error.
  absl::StatusOr<std::optional<State>> OnReadable();
  absl::Status OnWritable();
  absl::Status Send(const Command& command);  // Queues, and writes what fits now.
  // Adopt, at once: UNAVAILABLE when the shim is behind with reading. -1: no stdin.
  absl::Status SendAdopt(const Adoption& adoption, int rank0_stdin);

 private:
  Link(io::UniqueFd fd, std::string nonce) : fd_(std::move(fd)), nonce_(std::move(nonce)) {}
  io::UniqueFd fd_;
  std::string nonce_;
  std::string incoming_, outgoing_;
};

// ---- clean up ----------------------------------------------------------------------------------

// Kills what a dead shim left: its cgroup; without one every process that still is a known rank, is
// in a rank's session or carries REGROUP_GROUP=<nonce>, and their descendants. Returns how many
// live processes it found. Call again after a few ms until it has returned 0 twice. REQUIRES: the
// shim is gone (RunRecord::supervisor_lost).
absl::StatusOr<int> KillLeftovers(const RunRecord& record);
// One round of the same for a directory that can't be read: first what its shim has started (its
// descendants, and its agent's cgroups of that job and generation below `cgroup_base`, which may
// be empty), then the process that holds the lock. Call again until it has returned 0 twice.
absl::StatusOr<int> KillUnreadable(const UnreadableRun& run, const std::string& cgroup_base);
// SIGKILL to the shim of a record whose socket does not answer; then KillLeftovers.
absl::Status KillShim(const RunRecord& record);

}  // namespace regroup::shim
