#include "common/base/reasons.h"

namespace regroup {
namespace {

bool IsCrashSignal(int signal) {
  return signal == 4 || signal == 6 || signal == 7 || signal == 8 || signal == 9 || signal == 11 ||
         signal == 31;
}

int ClassOfExit(const RankExit& exit) {
  if (exit.oom != OomEvidence::kNone) return 6;
  if (exit.evidence == ErrorEvidence::kCommunicator) return 2;
  if (exit.evidence == ErrorEvidence::kErrorFile) return 5;
  // It may be for another one's end that it did not go on, or others may have ended for its own:
  // which of them came first says more than how.
  if (exit.given_up) return 4;
  if (exit.kind == ExitKind::kSignaled && IsCrashSignal(exit.code)) return 5;
  return 4;
}

struct Classify {
  int operator()(const WorkerFailed& r) const { return ClassOfExit(r.cause.exit); }
  int operator()(const ExecFailed&) const { return 4; }
  int operator()(const StartTimedOut&) const { return 3; }
  int operator()(const NodeLost&) const { return 7; }
  int operator()(const NodeRebooted&) const { return 7; }
  int operator()(const SupervisorLost&) const { return 6; }
  int operator()(const StoreLost&) const { return 6; }
  int operator()(const Preempted&) const { return 8; }
  int operator()(const Resized&) const { return 1; }
  int operator()(const Cancelled&) const { return 9; }
  int operator()(const Finished&) const { return 0; }
};

}  // namespace

int CauseClass(const EndReason& reason) { return std::visit(Classify{}, reason); }

}  // namespace regroup
