#include "common/report/reasons.h"

#include <string.h>

#include "common/config/text.h"
#include "common/config/values.h"
#include "common/report/format.h"
#include "common/report/text_style.h"

namespace regroup {
namespace {

std::string Logs(const ReasonContext& c, int rank) {
  std::string command = Cat("regroup logs ", c.job.value());
  if (c.generation.value() > 0) command += Cat(" --generation ", c.generation.value());
  return rank < 0 ? command : Cat(command, " --rank ", rank);
}

constexpr std::string_view kNodeCheck = "node check";  // As agents begin what they say of one.

std::string Node(const std::string& node) { return Cat("regroup nodes ", node); }

std::string ErrorText(int error_number) {
  const char* text = ::strerrordesc_np(error_number);
  return text == nullptr ? Cat("error ", error_number) : std::string(text);
}

std::string Nodes(const std::vector<std::string>& nodes) {
  constexpr std::size_t kShown = 5;
  if (nodes.empty()) return "no node";
  std::vector<std::string> first(
      nodes.begin(), nodes.begin() + static_cast<std::ptrdiff_t>(std::min(nodes.size(), kShown)));
  std::string text = JoinWords(first);
  return nodes.size() > kShown ? Cat(text, " and ", nodes.size() - kShown, " more") : text;
}

// ---- why something waits -----------------------------------------------------------------------

struct ExplainWait {
  const ReasonContext& c;

  ReasonText operator()(const BelowMinimum& r) const {
    std::string missing = r.missing.empty() ? "" : Cat("; missing: ", Nodes(r.missing));
    if (c.origin == JobOrigin::kSubmitted) {
      return {"below_minimum", Cat("needs ", Count(r.need, "node"), ", ", r.have, " free"),
              Cat("It needs ", Count(r.need, "node"), " and ", r.have, r.have == 1 ? " is" : " are",
                  " free, for ", AgeText(r.since), missing, "."),
              "regroup nodes"};
    }
    return {"below_minimum", Cat(r.have, " of ", Count(r.need, "node")),
            Cat(r.have, " of ", Count(r.need, "node"), r.have == 1 ? " is" : " are", " here, for ",
                AgeText(r.since), missing, "."),
            r.need > 1 ? std::string("start the same command on another node")
                       : Cat("regroup explain ", c.job.value())};
  }
  ReasonText operator()(const LastCall& r) const {
    return {"last_call", Cat(Count(r.have, "node"), ", last call ", ShortText(r.left)),
            Cat(Count(r.have, "node"), " are enough; others may still join for ", ShortText(r.left),
                "."),
            "nothing: it starts by itself"};
  }
  ReasonText operator()(const BackingOff& r) const {
    if (!r.why.empty()) {
      return {"backing_off", Cat(r.node, ": ", r.why, ", again in ", ShortText(r.left)),
              Cat(r.node, " could not prepare a generation: ", r.why, ". It tries again in ",
                  ShortText(r.left), "."),
              r.why.find(kNodeCheck) != std::string::npos
                  ? "what its node check says, or start without --node-check"
                  : Cat("regroup nodes ", r.node)};
    }
    return {"backing_off",
            Cat("waiting ", ShortText(r.left), " after ", Count(r.failures, "failure")),
            Cat("It failed ", Count(r.failures, "time"),
                " without progress, so the next start waits another ", ShortText(r.left), "."),
            Cat("regroup explain ", c.job.value())};
  }
  ReasonText operator()(const SlotsStopping& r) const {
    return {"slots_stopping", Cat(Nodes(r.nodes), " stopping, ", ShortText(r.left)),
            Cat("Old workers on ", Nodes(r.nodes), " are being stopped; they are killed in ",
                ShortText(r.left), "."),
            "nothing: it goes on by itself"};
  }
  ReasonText operator()(const AwaitReattach& r) const {
    return {"await_reattach", Cat(Nodes(r.nodes), " not back, ", ShortText(r.left)),
            Cat("The coordinator has restarted and waits up to ", ShortText(r.left), " for ",
                Nodes(r.nodes), " to come back."),
            "regroup nodes"};
  }
  ReasonText operator()(const FinishHold& r) const {
    return {"finish_hold", Cat(r.node, " silent at the end, ", ShortText(r.left)),
            Cat("Every rank that can be reached is done; ", r.node, " is waited for up to ",
                ShortText(r.left), " before anything runs again."),
            Node(r.node)};
  }
  ReasonText operator()(const UnreachableHold& r) const {
    return {"unreachable_hold", Cat("no node heard, ", ShortText(r.left)),
            Cat("None of ", Nodes(r.nodes),
                " can be heard, but their workers may still train; they are replaced in ",
                ShortText(r.left), " or on proof that they are dead."),
            r.nodes.empty() ? "regroup nodes" : Cat("regroup nodes forget ", r.nodes.front())};
  }
  ReasonText operator()(const BudgetVerdictOpen& r) const {
    return {"budget_verdict_open", Cat("verdict waits for ", Nodes(r.waiting_for)),
            Cat("The last restart or preemption was used; whether this end counts is known when ",
                Nodes(r.waiting_for), " has reported."),
            "nothing: it is decided by itself"};
  }
  ReasonText operator()(const BehindJob& r) const {
    return {"behind_job", Cat("behind ", r.job.value()),
            Cat("It is queued behind ", r.job.value(), "."),
            Cat("regroup explain ", r.job.value())};
  }
  ReasonText operator()(const MembersPreparing& r) const {
    return {"members_preparing", Cat(Nodes(r.nodes), " preparing, ", ShortText(r.since)),
            Cat("Preparing the next generation on ", Nodes(r.nodes), ", for ", ShortText(r.since),
                " so far."),
            "nothing: it goes on by itself"};
  }
  ReasonText operator()(const CannotFit& r) const {
    std::string brief = Cat("needs ", Count(r.need, "node"),
                            r.slots == kWorkerPerGpu ? " whose slots are GPUs" : "",
                            r.slots > 1 ? Cat(" with ", r.slots, " slots each") : std::string(),
                            ", this cluster has ", r.known);
    if (!r.node.empty() && r.largest < r.slots) {
      brief = Cat("needs ", Count(r.slots, "slot"), " on a node; the largest has ", r.largest, " (",
                  r.node, ")");
    }
    return {"cannot_fit", brief, Cat("It ", brief, ". Jobs behind it go first until that changes."),
            "regroup nodes"};
  }
  ReasonText operator()(const SavingBeforeLeave& r) const {
    return {
        "saving_before_leave", Cat(r.node, " saving, ", ShortText(r.left), " left"),
        Cat(r.node, " is about to leave and its job saves first; ", ShortText(r.left), " left."),
        Node(r.node)};
  }
};

// ---- why a generation ended --------------------------------------------------------------------

std::string WhoOf(const RankCause& cause) {
  std::string who = cause.rank < 0 ? "A worker" : Cat("Rank ", cause.rank);
  who += Cat(" on ", cause.node);
  return cause.exit.pid > 0 ? Cat(who, " (pid ", cause.exit.pid, ")") : who;
}

std::string SignalSentence(const RankCause& cause) {
  const RankExit& e = cause.exit;
  std::string killed = Cat(WhoOf(cause), " was killed by signal ", e.code);
  constexpr int kKill = 9;
  if (e.after_stop) return Cat(killed, ". Regroup sent it to stop the group.");
  if (e.oom == OomEvidence::kCounted)
    return Cat(killed, ": out of memory, its cgroup counted an OOM kill.");
  if (e.oom == OomEvidence::kProbable) {
    return Cat(killed, ": probably out of memory, the kernel of ", cause.node,
               " counted an OOM kill and there is no memory cgroup to tell whose.");
  }
  if (e.given_up)
    return Cat(killed, " by its agent: ", LastLine(e.error), ". It costs no restart.");
  if (e.code == kKill) {
    return Cat(killed,
               ". Regroup did not send it and its cgroup counted no OOM kill: something else on ",
               cause.node, " did.");
  }
  return Cat(killed, " (", SignalName(e.code), ").");
}

std::string CauseSentence(const RankCause& cause) {
  switch (cause.exit.kind) {
    case ExitKind::kSignaled: return SignalSentence(cause);
    case ExitKind::kExecFailed:
      return Cat(WhoOf(cause), " could not be started: ",
                 cause.exit.error.empty() ? ObstacleText(cause.exit.code, cause.exit.obstacle)
                                          : cause.exit.error,
                 ".");
    case ExitKind::kExited: break;
  }
  std::string memory = cause.exit.oom == OomEvidence::kNone ? "" : " after an OOM kill";
  const std::string said = SaidAtExit(cause.exit);
  return Cat(WhoOf(cause), " exited with code ", cause.exit.code, memory, said,
             said.empty() || said.back() != '.' ? "." : "");
}

std::string CauseBrief(const RankCause& cause) {
  std::string rank = cause.rank < 0 ? "" : Cat(" rank ", cause.rank);
  return Cat(cause.node, rank, ": ", ExitTextWithSender(cause.exit), SaidAtExit(cause.exit));
}

struct ExplainEnd {
  const ReasonContext& c;

  ReasonText operator()(const WorkerFailed& r) const {
    const bool started = r.cause.exit.kind != ExitKind::kExecFailed;
    return {"worker_failed", CauseBrief(r.cause), CauseSentence(r.cause),
            started ? Logs(c, r.cause.rank)
                    : Cat("what does ", r.cause.node,
                          " lack: processes (ulimit -u, pids.max), memory, room on a disk?")};
  }
  ReasonText operator()(const NodeLost& r) const {
    std::string silent =
        r.silent > Duration::zero() ? Cat(", silent for ", ShortText(r.silent)) : "";
    return {"node_lost", Cat(r.node, " lost (", r.how, ")"),
            Cat(r.node, " was lost: ", r.how, silent, ". Losing a node costs no restart."),
            Node(r.node)};
  }
  ReasonText operator()(const NodeRebooted& r) const {
    return {"node_rebooted", Cat(r.node, " rebooted"),
            Cat(r.node,
                " came back with another boot: its workers are gone. A reboot costs no restart."),
            Node(r.node)};
  }
  ReasonText operator()(const SupervisorLost& r) const {
    if (r.stopped) {
      return {"supervisor_lost", Cat(r.node, ": workers were stopped"),
              Cat("The workers of this job on ", r.node,
                  " had been told to stop, by a launch command or a coordinator that is gone; why "
                  "is not recorded. It costs no restart."),
              Node(r.node)};
    }
    return {"supervisor_lost", Cat(r.node, ": supervisor of the workers died"),
            Cat("The regroup-shim of this job on ", r.node,
                " died, so its workers were killed. It costs no restart."),
            Node(r.node)};
  }
  ReasonText operator()(const StoreLost& r) const {
    return {"store_lost", Cat(r.node, ": store of the generation died"),
            Cat("The process on ", r.node,
                " that served this generation's store died. It costs no restart."),
            Node(r.node)};
  }
  ReasonText operator()(const StartTimedOut& r) const {
    return {"start_timed_out", Cat(r.node, " did not start in ", ShortText(r.limit)),
            Cat(r.node, " did not start all of its workers within ", ShortText(r.limit), "."),
            Node(r.node)};
  }
  ReasonText operator()(const ExecFailed& r) const {
    return {"exec_failed", CauseBrief(r.cause),
            Cat(CauseSentence(r.cause), " ", r.cause.node, " is left out; it costs no restart."),
            r.cause.exit.obstacle == ExecObstacle::kDirectory
                ? Cat("make that directory on ", r.cause.node, ", or give another --workdir")
                : Cat("is the program there, and executable, on ", r.cause.node, "?")};
  }
  ReasonText operator()(const Preempted& r) const {
    return {
        "preempted", Cat(r.node, " preempted", r.saved ? " (saved)" : ""),
        Cat(r.node, " was told to leave, and left",
            r.saved ? " after a save. " : "; nothing was saved for it. ", "It costs no restart."),
        Node(r.node)};
  }
  ReasonText operator()(const Resized& r) const {
    std::string who = r.joined.empty() ? "" : Cat(": ", Nodes(r.joined), " joined");
    return {"resized", Cat(r.from, " to ", Count(r.to, "node"), who),
            Cat("The group went from ", r.from, " to ", Count(r.to, "node"), who,
                ". It costs no restart."),
            Cat("regroup explain ", c.job.value())};
  }
  ReasonText operator()(const Cancelled& r) const {
    return {"cancelled", Cat("cancelled by ", r.by), Cat("It was cancelled by ", r.by, "."),
            Cat("regroup logs ", c.job.value())};
  }
  ReasonText operator()(const Finished&) const {
    return {"finished", "finished", "Every rank exited with code 0.",
            Cat("regroup logs ", c.job.value())};
  }
};

// ---- why a job failed --------------------------------------------------------------------------

struct ExplainFail {
  const ReasonContext& c;

  ReasonText operator()(const BudgetSpent& r) const {
    std::string next =
        Cat("regroup explain ", c.job.value(), ", then --max-restarts ", r.max + 1, " or more");
    if (r.max == 0) {
      return {"budget_spent", "no restarts allowed (--max-restarts 0)",
              "It failed, and --max-restarts 0 allows no restart.", next};
    }
    return {"budget_spent", Cat(r.used, " of ", Count(r.max, "restart"), " used"),
            Cat("It failed again after its ", Count(r.used, "restart"), "."), next};
  }
  ReasonText operator()(const CrashLoop& r) const {
    return {"crash_loop", Cat("crash loop: ", Count(r.failures, "failure"), " without progress"),
            Cat("It failed ", Count(r.failures, "time"),
                " in a row without progress, so it was not started again."),
            Cat("regroup logs ", c.job.value(), " --stderr")};
  }
  ReasonText operator()(const ExitCodeSaysFail& r) const {
    return {"exit_code_says_fail", Cat("exit ", r.code, " means fail"),
            Cat("A worker exited with code ", r.code, ", which its retry.exit_codes maps to fail."),
            Logs(c, -1)};
  }
  ReasonText operator()(const NotExecutable& r) const {
    const std::string why = ErrorText(r.error_number);
    if (r.obstacle == ExecObstacle::kDirectory) {
      return {
          "not_executable", Cat("working directory ", r.program, ": ", why),
          Cat("The working directory ", r.program, " cannot be entered on the nodes: ", why, "."),
          "make it on each node, or give another --workdir"};
    }
    const std::string text = ObstacleText(r.error_number, r.obstacle);
    return {"not_executable", Cat(r.program, " could not be started: ", text),
            Cat(r.program, " could not be started on the nodes: ", text, "."),
            "is the program there, and executable, on each node?"};
  }
  ReasonText operator()(const CancelledBy& r) const {
    std::string how = r.signal == 0 ? "" : Cat(" (", SignalName(r.signal), ")");
    return {"cancelled_by", Cat("cancelled by ", r.who, how),
            Cat("It was cancelled by ", r.who, how, "."), Cat("regroup logs ", c.job.value())};
  }
  ReasonText operator()(const PreemptedAll&) const {
    return {"preempted_all", "every node left",
            "Every node was told to leave, and left. The job is kept.",
            "the same command goes on from its newest checkpoint"};
  }
  ReasonText operator()(const PreemptionsSpent& r) const {
    const std::string next =
        Cat("regroup explain ", c.job.value(), ", then --max-preemptions ", r.max + 1, " or more");
    if (r.max == 0) {
      return {"preemptions_spent", "no preemption allowed (--max-preemptions 0)",
              "A notice ended its generation, and --max-preemptions 0 allows none.", next};
    }
    return {"preemptions_spent", Cat(r.used, " of ", Count(r.max, "preemption"), " used"),
            Cat("A notice ended one more of its generations after its ",
                Count(r.used, "preemption"), ", all that --max-preemptions ", r.max, " allows."),
            next};
  }
};

template <class Variant, std::size_t... Index>
void AppendKinds(std::vector<std::string_view>& kinds, std::index_sequence<Index...>) {
  (kinds.push_back(Explain(Variant(std::in_place_index<Index>), ReasonContext{}).kind), ...);
}

// A program's name, a directory, who cancelled, what a node check said: any bytes, of anybody. This
// is where they become text for a terminal, so none of them is escaped elsewhere.
ReasonText Escaped(ReasonText text) {
  for (std::string* part : {&text.brief, &text.sentence, &text.next}) *part = EscapeControls(*part);
  return text;
}

}  // namespace

ReasonText Explain(const WaitReason& reason, const ReasonContext& context) {
  return Escaped(std::visit(ExplainWait{context}, reason));
}
ReasonText Explain(const EndReason& reason, const ReasonContext& context) {
  return Escaped(std::visit(ExplainEnd{context}, reason));
}
ReasonText Explain(const FailReason& reason, const ReasonContext& context) {
  return Escaped(std::visit(ExplainFail{context}, reason));
}

std::vector<std::string_view> AllReasonKinds() {
  std::vector<std::string_view> kinds;
  AppendKinds<WaitReason>(kinds, std::make_index_sequence<std::variant_size_v<WaitReason>>());
  AppendKinds<EndReason>(kinds, std::make_index_sequence<std::variant_size_v<EndReason>>());
  AppendKinds<FailReason>(kinds, std::make_index_sequence<std::variant_size_v<FailReason>>());
  return kinds;
}

}  // namespace regroup
