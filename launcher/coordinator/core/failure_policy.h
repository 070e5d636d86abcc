#pragma once

// What the end of a generation means for its job. Pure. PROTOCOL §3 and CLI.md, "Exit codes".

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/job_spec.h"
#include "common/base/reasons.h"
#include "common/base/time.h"
#include "launcher/coordinator/core/config.h"
#include "launcher/coordinator/core/rows.h"

namespace regroup::coordinator {

// A cause and when it happened, on the coordinator's clock.
struct CauseAt {
  EndReason reason;
  Instant at{};
};
// Root cause = worst class, then earliest time; then the lower rank or name, so that the order of
// arrival never matters.
bool IsWorse(const CauseAt& a, const CauseAt& b);

// A charged failure, a free one, or an end that says nothing about the job (preemption, drain,
// resize, success).
enum class EndKind { kOwn, kFree, kNeutral };
EndKind KindOf(const EndReason& reason);

// Ends in a row without progress. `same_node`: of the free ones, how many in a row one and the same
// node caused, up to the last.
struct Streak {
  int own = 0, free = 0, same_node = 0;
  friend bool operator==(const Streak&, const Streak&) = default;
};
Streak AfterEnd(Streak before, bool progressed, EndKind kind);

// The node that an end is about; empty: none.
std::string NodeOfReason(const EndReason& reason);

// How many free ends in a row, up to and with the last of `ends`, its node caused. A row ends at
// progress, or at a free end of another node; own faults are not looked at. `ends`: oldest first.
struct PastEnd {
  const EndReason* reason;
  bool progressed;
};
int SameNodeEnds(std::span<const PastEnd> ends);

// The first own fault and the first after progress are followed at once; each further one waits 1
// s, 2 s, … ± 20 %. A free end waits only when the same node caused the one before, or when three
// in a row brought no progress: whoever is left is not to blame. `seed` makes the jitter: equal
// seeds, equal delays.
Duration RestartDelay(const Streak& streak, EndKind last, const Config& config, std::uint64_t seed);

// How long a member that voided `failures` proposals in a row is no candidate.
Duration MemberBackoff(int failures, const Config& config);

// How long after the previous change the next growth may follow; nullopt: never by itself.
std::optional<Duration> SettleTime(ScaleUp scale_up, int growths, int lost_newcomers,
                                   const Config& config);

// Charges that still count: all of them, or those within the window. `ages` = how long ago each
// was.
int ChargesInWindow(int all, const std::vector<Duration>& ages, std::optional<Duration> window);

// Does this end, all by itself, fail the job? `charges` = counted before it.
std::optional<FailReason> FailsJob(const JobSpec& spec, const EndReason& reason, int charges,
                                   const Streak& streak, const Config& config);

// Does a notice that ended a generation fail the job? `preemptions` = counted before it. A notice
// is nobody's fault, so that this limit is a budget of its own, of patience instead of restarts.
std::optional<FailReason> FailsForPreemption(const JobSpec& spec, const EndReason& reason,
                                             int preemptions);

// Of a rank that could not be started (kExecFailed): does that say anything of the program? What a
// host lacks for a moment does not: processes, memory, descriptors, room, or a program that is just
// being written.
bool IsOfTheProgram(int error_number);

// A node could not execute the program and is left out: does that fail the job? REQUIRES: excluded
// has the newest at its end.
std::optional<FailReason> FailsForExec(const std::vector<ExcludedNode>& excluded, int nodes_left,
                                       const std::string& program);

// What launch commands and `wait` exit with after a job failed for `failed`, its last generation
// for `root`.
int ExitCodeOf(const FailReason& failed, const std::optional<EndReason>& root);

// A launch command leaves: what becomes of its job? `others` = launch commands that stay; `signal`
// 0: its --join-timeout passed.
enum class LeaveOutcome { kLeaves, kCancels, kPreempts };
LeaveOutcome DecideLeave(const JobSpec& spec, int signal, int others);

}  // namespace regroup::coordinator
