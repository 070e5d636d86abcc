#pragma once

// What an agent and a shim say to each other, and what lies in a run directory. Everything is
// absolute and repeatable: a shim answers every change with its whole state, so an agent that comes
// back asks once and knows all.
//
// Numbered: a program reads kOldestShimProtocol … kShimProtocol; unknown fields are skipped, a
// field is never given another meaning. Times are CLOCK_BOOTTIME (io::BootNow), valid for `boot`
// only.

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/control.h"
#include "common/base/ids.h"
#include "common/base/job_spec.h"
#include "common/base/time.h"
#include "common/io/log_files.h"

namespace regroup::shim {

inline constexpr std::uint32_t kShimProtocol = 1, kOldestShimProtocol = 1;

enum class Role : std::uint8_t { kGroup = 0, kStore = 1 };

struct ResourceLimit {
  int resource = 0;                  // RLIMIT_…
  std::uint64_t soft = 0, hard = 0;  // ~0 is RLIM_INFINITY.
  friend bool operator==(const ResourceLimit&, const ResourceLimit&) = default;
};

// Everything known when a group is prepared; written before a shim is started with it, or has it
// handed over, and never changed afterwards.
struct Spec {
  std::uint32_t version = kShimProtocol;
  Role role = Role::kGroup;
  std::string nonce;  // io::RandomHex(16). Workers carry it as REGROUP_GROUP, which finds them when
                      // all else is lost.
  BootId boot;
  ClusterId cluster;
  Epoch epoch;
  NodeId node;
  JobId job;
  Generation generation;

  // Role::kGroup.
  int workers = 1;
  NodeCheck node_check;  // Before any rank, in the same environment, directory and cgroup.
  std::vector<std::string>
      command;            // argv. The program is looked up in the PATH of the workers' environment.
  std::string program{};  // What is executed as command[0]; empty: that itself.
  std::vector<std::string> environment;  // "K=V", of all ranks; nothing else is inherited.
  std::string directory;                 // Working directory.
  mode_t umask = 022;
  std::string log_root;  // Logs go to io::LogDirectory(log_root, job, generation, rank).
  io::LogLimits log_limits;
  // Tmpfs folder for output that is to be shown while the disk is full: <passing>/<rank>. Empty:
  // none. Whoever shows the output removes it.
  std::string passing;
  std::string cgroup;  // Folder made by MakeGroupCgroup, which holds the ranks only; empty: none.
  Duration lifeline_grace = std::chrono::seconds(30);  // Of the stop that a closed lifeline causes.
  Duration unkillable_after =
      std::chrono::seconds(10);  // From the first SIGKILL to Phase::kUnkillable.
  std::vector<ResourceLimit> limits = {{4 /* RLIMIT_CORE */, 0, 0}};
  // How long this process waits for an agent that is away: with the last state of its group, which
  // no agent has taken to a coordinator yet; with a group of which no rank was ever started; a
  // store without client and agent.
  Duration agent_patience = std::chrono::minutes(2);
  // How long it waits, alone, for a disk that does not take the last of its logs.
  Duration log_patience = std::chrono::minutes(10);
  std::optional<int>
      oom_score_adj;  // Of the ranks. Raising needs no right; a refused lowering is skipped.

  // Its ranks may live on in their job's next generation (Adopt).
  bool keeps_ranks = false;

  // Role::kStore.
  std::vector<std::string> store_members;  // IPs that may connect.

  std::string agent_data;  // The agent's own; not looked at here.
  friend bool operator==(const Spec& a, const Spec& b) { return a.nonce == b.nonce; }
};

// ---- agent → shim ------------------------------------------------------------------------------

struct RankPlan {
  int local_rank = 0, rank = 0;
  std::vector<std::string> environment;  // Over the spec's; same keys are replaced.
  std::vector<int> cpus;                 // Affinity; empty: the shim's own.
  std::vector<std::string> command{};    // Instead of the spec's; empty: that one.
};

// First message on every connection. The shim answers with its state, or closes when nonce or
// version do not fit.
struct Hello {
  std::uint32_t version = kShimProtocol;
  std::string nonce;
  // The sender shows the output of workers as long as this connection lasts, and says by Shown how
  // far it is. It also gets a state at most every 10 ms while workers write.
  bool wants_output = false;
};
// Obeyed once in the life of a run directory (the mark lies there before the first rank starts);
// later ones, and any after a stop, change nothing. A rank that lives since an earlier generation
// is not started: it gets its number, and its output goes to that rank's folder. The others start
// once what their predecessors have left behind is gone.
struct StartRanks {
  std::vector<RankPlan> ranks;  // One per local rank, in order.
};
// The group goes on as that of its job's next generation: what it was is final from here on
// (Phase::kFree, ranks that live are kKept), and this shim has the new run directory. Comes with
// descriptors: the new directory, its lock, held by them, its listening socket and, with_stdin, the
// next stdin of local rank 0. The new spec has the nonce, the workers and the cgroup of the old
// one. All connections to the old socket are closed; refused (after a stop, with a spec that does
// not fit): the descriptors are, and nothing has changed.
struct Adopt {
  bool with_stdin = false;
};
// Sends `signal` to every rank's process group, at `deadline` SIGKILL to all there is. Repeated: an
// earlier deadline counts, a later one does not, the signal is sent once (again only if it is
// another one).
struct Stop {
  Instant deadline;
  int signal = 15;
  // Where every rank has exited 0: name in the state what they left behind before it is signalled;
  // or leave it as it is, outside the cgroup, and be free without it.
  bool name_leftovers = false, keep_leftovers = false;
};
// How far whoever shows the output is; replaces what was said before. See LogDrain.
struct Shown {
  struct Stream {
    int local_rank = 0;
    bool is_stderr = false;
    io::LogPosition position;  // io::kNotAwaited: not shown at all.
    friend bool operator==(const Stream&, const Stream&) = default;
  };
  std::vector<Stream> streams;            // One that is not named: nothing of it is shown yet.
  std::uint64_t room_bytes = 4ull << 30;  // Unshown, of the whole group: more, and workers wait.
  friend bool operator==(const Shown&, const Shown&) = default;
};
struct Kill {};   // Stop with the deadline now.
struct Query {};  // Send the state again.
// The last state of a free group is durable elsewhere: its witness may be refused from now on. A
// Kill says the same.
struct Release {};
using Command = std::variant<Hello, StartRanks, Stop, Kill, Query, Release, Shown, Adopt>;

// ---- shim → agent; also the file "state"

enum class RankPhase : std::uint8_t {
  kWaiting,   // No StartRanks yet.
  kStarting,  // Cloned; its exec has not been seen to succeed. Or kept, and its output still goes
              // to the folder of the generation before.
  kRunning,   // Before StartRanks: since an earlier generation.
  kEnded,
  kKept,  // Final. It lives on in the next generation. Older programs read kEnded.
};
// Values of exec_stage that people are told of in other words.
inline constexpr char kStageDirectory[] = "chdir", kStageInterpreter[] = "interpreter";

struct RankState {
  int local_rank = 0, rank = -1;
  RankPhase phase = RankPhase::kWaiting;
  pid_t pid = 0;
  std::uint64_t start_ticks = 0;
  Instant started_at{}, ended_at{};
  ExitKind exit_kind = ExitKind::kExited;  // kEnded only. kExecFailed: it never ran a single
                                           // instruction of its program.
  int code = 0;                            // Exit status, signal, errno.
  std::string exec_stage;   // kExecFailed: what failed: "clone", "chdir", "exec", …
  bool after_stop = false;  // A stop had been signalled before.
  OomEvidence oom = OomEvidence::kNone;
  bool logs_complete =
      false;               // kEnded: all it wrote is in its log files (or lost). Follows within ms.
  bool inherited = false;  // Its process is older than this generation.
  friend bool operator==(const RankState&, const RankState&) = default;
};

// A process that outlived its rank, which had exited 0.
struct LeftBehind {
  int local_rank = -1;  // Of its environment; -1: it has none.
  pid_t pid = 0;
  std::string name;
  friend bool operator==(const LeftBehind&, const LeftBehind&) = default;
};

struct State {
  std::uint32_t version = kShimProtocol;
  std::string nonce;
  pid_t shim_pid = 0;
  // kPreparing: the node check runs. kPrepared: no rank was started. kStarting: some exec is not
  // confirmed. kRunning: all were, some may have ended. kStopping: a stop was obeyed, or the
  // lifeline closed. kFree: nothing of the group is left; final, the shim exits once it is
  // released. kUnkillable: SIGKILL was `unkillable_after` ago and `left` still live; may yet become
  // kFree.
  Phase phase = Phase::kPrepared;
  std::string check_failed;  // How the node check failed, any bytes; the shim then stops by itself.
  bool ever_started = false;     // StartRanks was obeyed.
  std::vector<RankState> ranks;  // All local ranks, in order.
  std::optional<Instant> stop_deadline;
  std::vector<pid_t> left;           // At most 16; kStopping after the deadline and kUnkillable.
  bool cgroup_used = false;          // False: degraded mode, descendants are walked.
  std::uint64_t output_bytes = 0;    // Written to log files so far; grows while workers write.
  std::uint64_t lost_log_bytes = 0;  // Could not be written.
  std::uint64_t unshown_bytes = 0;   // Of whoever shows the output; as of when this was sent.
  bool disk_full = false;            // Output is not kept now.
  // Why; the last error. Of a store: the last client whose dialect it does not speak.
  std::string log_trouble;
  std::vector<LeftBehind> left_behind{};  // At most 16 of them.
  int left_behind_count = 0;
  bool left_behind_kept = false;  // Else they were ended.
  friend bool operator==(const State&, const State&) = default;
};

// ---- encoding

std::string Encode(const Spec& spec);
std::string Encode(const Command& command);
std::string Encode(const State& state);
absl::StatusOr<Spec> DecodeSpec(std::string_view bytes);
absl::StatusOr<Command> DecodeCommand(std::string_view bytes);
absl::StatusOr<State> DecodeState(std::string_view bytes);

// Messages travel as u32 length (little endian) and body.
inline constexpr std::size_t kMaxMessageBytes = 4u << 20;
std::string Frame(std::string_view body);
// Takes whole bodies off the front of `buffer`. INVALID_ARGUMENT: a length above the limit; the
// peer is not one of ours.
absl::StatusOr<std::vector<std::string>> TakeFrames(std::string& buffer);

// The environment of one rank: the spec's, over it the plan's, sorted by key; REGROUP_GROUP=<nonce>
// is added.
std::vector<std::string> RankEnvironment(const Spec& spec, const RankPlan& plan);

}  // namespace regroup::shim
