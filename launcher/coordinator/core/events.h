#pragma once

// What the shell tells the core: facts, in the order of the time stamps that the shell gave them on
// receipt.

#include <compare>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/base/control.h"
#include "common/base/ids.h"
#include "common/base/job_spec.h"
#include "common/base/time.h"

namespace regroup::coordinator {

// An agent's stream is up and its Hello was read. The shell sends nothing on it before SendWelcome.
struct SessionOpened {
  SessionId session;  // Rises; never used twice by one process.
  Hello hello;
};
// The stream is gone, whoever ended it; also after CloseSession. Later events of this session are
// dropped.
struct SessionBroken {
  SessionId session;
};
struct HeartbeatReceived {
  SessionId session;
  OrderNo obeyed;
  std::uint64_t warm_bytes = 0;
  std::optional<std::vector<Gpu>> gpus{};  // Unset: as before.
};
struct Reported {
  SessionId session;
  GroupReport report;
};
struct Progressed {
  SessionId session;
  WorkerProgress progress;
};
struct CommitAsked {
  SessionId session;
  CommitRequest request;
};
// What came of a Probe: kAccepted only if the close was read within 200 ms.
enum class ProbeResult { kRefused, kAccepted, kSilent };
struct Probed {
  NodeId node;
  JobId job;
  Generation generation;
  ProbeResult result = ProbeResult::kSilent;
};
struct Noticed {  // From an agent: its node will go away.
  SessionId session;
  Notice notice;
};

// A launch command asks to take part, or repeats that after a reconnect. Answered by AnswerLaunch.
struct LaunchAsked {
  SessionId session;
  LaunchRequest request;
  std::uint64_t free_bytes = std::numeric_limits<std::uint64_t>::max();  // Where the journal lies.
  std::uint64_t number_used = 0;  // The highest of a job in this state directory, whoever's it is.
};
// A launch command was interrupted: its node leaves the job. Or it has read that its job is over.
// Not answered; may be repeated.
struct LeaveAsked {
  SessionId session;
  int signal = 0;    // SIGINT, SIGTERM or SIGHUP; 0: its --join-timeout, or a result read.
  bool now = false;  // A second signal: without grace.
};

// Calls of clients. Each is answered by exactly one Answer, unless CallDropped came first.
struct SubmitAsked {
  CallId call;
  JobSpec spec;     // Passed ValidateJobSpec.
  std::string key;  // Idempotency key; not empty.
  std::uint64_t free_bytes = std::numeric_limits<std::uint64_t>::max();
  bool now_or_never = false;      // Refuse it where no nodes that are known could run it.
  std::uint64_t number_used = 0;  // As of LaunchAsked.
};
struct CancelAsked {
  CallId call;
  std::string job;  // An id, a name or `last`; never the beginning of an id.
  std::string by;   // Who, for people.
  bool now = false;
  int signal = 0;   // 0: `regroup cancel`.
  std::string key;  // Idempotency key; not empty.
};
struct ReadFilter {
  bool jobs = true, nodes = false;
  std::string job;      // What common/base/job_word.h says of a word. Empty: all jobs.
  std::string node;     // A name or id. Empty: all nodes.
  bool ended = false;   // With all jobs: ended ones too.
  bool detail = false;  // Generations and events.
  // Of a list: so many at most, 0: all of them, behind what ReadReply::next of the page before
  // says.
  int limit = 0;
  std::string after{};
  friend auto operator<=>(const ReadFilter&, const ReadFilter&) = default;
};
struct ReadAsked {
  CallId call;
  ReadFilter filter;
  bool wait_for_end = false;  // REQUIRES filter.job. Answered once that job is over (or preempted).
};
struct ForgetNodeAsked {  // The operator vouches that this node is gone: the proof of death of
                          // unreachable groups.
  CallId call;
  std::string node;  // A name or id.
};
struct CallDropped {
  CallId call;
};

struct Stalled {  // The coordinator could not act for so long (Standstill). Stepped at the time of
                  // the last step, before any deadline in between and the events that waited.
  Duration gap{};
  Instant until{};
  bool heard = false;  // Agents were, all the time: they were not told anything.
};
struct Tick {};  // A deadline is due, or there is work left from the step before.

using Event = std::variant<SessionOpened, SessionBroken, HeartbeatReceived, Reported, Progressed,
                           CommitAsked, Probed, Noticed, LaunchAsked, LeaveAsked, SubmitAsked,
                           CancelAsked, ReadAsked, ForgetNodeAsked, CallDropped, Stalled, Tick>;

}  // namespace regroup::coordinator
