#pragma once

// What the core asks of the shell. Actions of one step are carried out in order, after the rows of
// this and of all earlier steps are durable.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/base/control.h"
#include "common/base/ids.h"
#include "common/base/reasons.h"
#include "common/base/views.h"
#include "launcher/coordinator/core/rows.h"

namespace regroup::coordinator {

// To one session. Dropped by the shell when the session is gone by then.
struct SendWelcome {
  SessionId session;
  Welcome welcome;
};
struct SendOrder {  // Replaces a queued older one of the same job.
  SessionId session;
  Order order;
};
// The agent repeats a report until then; what the report caused is durable with this.
struct AckReport {
  SessionId session;
  ReportNo number;
};
// Accepted only once its row is durable: the checkpoint then counts for every later generation.
struct AnswerCommit {
  SessionId session;
  CommitAnswer answer;
};
struct AnswerLaunch {  // The job that this launch command takes part in, or why not.
  SessionId session;
  absl::Status refused;  // OK: accepted.
  JobId job;
};
struct SendNews {  // To a launch command: what happened to its job.
  SessionId session;
  JobId job;
  JobEvent event;
};
struct SendResult {  // To a launch command: its job is over, with detail. It leaves by itself.
  SessionId session;
  std::shared_ptr<const JobView> job;  // Not null; one for all of them.
};
// Whether an agent whose session is closed for this should stay away as it is; after anything else
// it dials again.
constexpr bool TellsToStayAway(absl::StatusCode why) {
  switch (why) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kDataLoss: return true;
    default: return false;
  }
}
struct CloseSession {  // SessionBroken follows and is ignored.
  SessionId session;
  absl::Status why;
};

// Dial this address once; answered by Probed with the same ids.
struct Probe {
  NodeId node;
  JobId job;
  Generation generation;
  Address address;
};

struct SubmitReply {
  JobId job;
  std::optional<WaitReason> waits{};  // It is in no hurry: no nodes that are known could run it.
};
// The job that the caller's word meant, so that it can be named in full.
struct CancelReply {
  JobId job;
};
struct ReadReply {
  std::vector<JobView> jobs;
  std::vector<NodeView> nodes;
  std::vector<std::string> warnings{};  // What concerns all of them; sentences.
  std::string next{};                   // Not empty: there are more behind it.
};
struct ForgetNodeReply {
  NodeId node;
};
using Reply = std::variant<SubmitReply, CancelReply, ReadReply, ForgetNodeReply, absl::Status>;
// Finishes a call of ReadAsked, SubmitAsked, CancelAsked or ForgetNodeAsked, exactly once. A caller
// that hung up is gone by then, and the answer with it.
struct Answer {
  CallId call;
  Reply reply;
};

struct StepDown {  // This journal must not go on: log, close everything, exit 125. No later step is
                   // carried out.
  absl::Status why;
};
struct Quit {};  // Ad-hoc mode: everything is over and told. Flush, exit 0.

using Action = std::variant<SendWelcome, SendOrder, AckReport, AnswerCommit, AnswerLaunch, SendNews,
                            SendResult, CloseSession, Probe, Answer, StepDown, Quit>;

enum class Severity { kDebug, kInfo, kWarning, kError };
struct Note {  // One log line, written once the step's rows are durable.
  Severity severity = Severity::kInfo;
  std::string what;  // A sentence without ids; greppable.
  std::vector<std::pair<std::string, std::string>> fields;
};

// What a step comes to. REQUIRES of the shell: rows first, all or none; then actions in order;
// notes may be written at any time after the rows. A step without rows waits for those of the steps
// before it as well.
struct Effects {
  std::vector<Row> rows;  // One atomic batch; at most one row per key.
  std::vector<Action> actions;
  std::vector<Note> notes;
};

}  // namespace regroup::coordinator
