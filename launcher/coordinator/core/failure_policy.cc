#include "launcher/coordinator/core/failure_policy.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <tuple>

#include "common/base/rng.h"

namespace regroup::coordinator {
namespace {

constexpr int kFreeEndsInARow = 3;  // So many without progress are no coincidence.

const RankCause* RankOf(const EndReason& reason) {
  if (auto* failed = std::get_if<WorkerFailed>(&reason)) return &failed->cause;
  if (auto* exec = std::get_if<ExecFailed>(&reason)) return &exec->cause;
  return nullptr;
}

// Blame has an address where a node or its rank was the cause. A resize, a cancel and
// success have none.
struct NodeOf {
  std::string operator()(const WorkerFailed& r) const { return r.cause.node; }
  std::string operator()(const ExecFailed& r) const { return r.cause.node; }
  std::string operator()(const Resized&) const { return {}; }
  std::string operator()(const Cancelled&) const { return {}; }
  std::string operator()(const Finished&) const { return {}; }
  template <class R>
  std::string operator()(const R& r) const {
    return r.node;
  }
};

// Stops at the limit before it could overflow, however many times are asked for.
Duration Doubled(Duration first, int times, Duration limit) {
  Duration delay = first;
  for (int i = 0; i < times && delay < limit; ++i) delay *= 2;
  return std::min(delay, limit);
}

// As a shell has it: 127 only where the program itself is not there.
int ExecExitCode(int error_number, ExecObstacle obstacle) {
  return error_number == ENOENT && obstacle == ExecObstacle::kProgram ? 127 : 126;
}

// The convention of shells, so that scripts around a launch command read it as they
// read any program.
int ExitCodeOfExit(const RankExit& exit) {
  if (exit.kind == ExitKind::kSignaled) return 128 + exit.code;
  if (exit.kind == ExitKind::kExecFailed) return ExecExitCode(exit.code, exit.obstacle);
  return exit.code;
}

}  // namespace

bool IsWorse(const CauseAt& a, const CauseAt& b) {
  const int class_a = CauseClass(a.reason), class_b = CauseClass(b.reason);
  if (class_a != class_b) return class_a > class_b;
  // Beyond class and time the order must only be the same on every arrival of the same facts:
  // reports come in any order, and twice.
  if (a.at != b.at) return a.at < b.at;
  const RankCause *rank_a = RankOf(a.reason), *rank_b = RankOf(b.reason);
  return std::make_tuple(rank_a ? rank_a->rank : -1, std::visit(NodeOf{}, a.reason),
                         a.reason.index()) < std::make_tuple(rank_b ? rank_b->rank : -1,
                                                             std::visit(NodeOf{}, b.reason),
                                                             b.reason.index());
}

EndKind KindOf(const EndReason& reason) {
  // Cancelled and Finished end a job, not a row of failures; a notice and a resize
  // were wanted by somebody.
  if (ChargesBudget(reason)) return EndKind::kOwn;
  const bool neutral =
      std::holds_alternative<Preempted>(reason) || std::holds_alternative<Resized>(reason) ||
      std::holds_alternative<Cancelled>(reason) || std::holds_alternative<Finished>(reason);
  return neutral ? EndKind::kNeutral : EndKind::kFree;
}

Streak AfterEnd(Streak before, bool progressed, EndKind kind) {
  // The end that follows progress is itself the first of a new row.
  Streak streak = progressed ? Streak{} : before;
  if (kind == EndKind::kOwn) ++streak.own;
  if (kind == EndKind::kFree) ++streak.free;
  return streak;
}

std::string NodeOfReason(const EndReason& reason) { return std::visit(NodeOf{}, reason); }

int SameNodeEnds(std::span<const PastEnd> ends) {
  if (ends.empty() || KindOf(*ends.back().reason) != EndKind::kFree) return 0;
  const std::string node = NodeOfReason(*ends.back().reason);
  int same = 0;
  for (auto end = ends.rbegin(); end != ends.rend(); ++end) {
    if (KindOf(*end->reason) == EndKind::kFree) {
      if (NodeOfReason(*end->reason) != node) break;
      ++same;
    }
    if (end->progressed) break;  // It was the first after progress.
  }
  return same;
}

Duration RestartDelay(const Streak& streak, EndKind last, const Config& config,
                      std::uint64_t seed) {
  if (last == EndKind::kNeutral) return Duration{};
  const bool own = last == EndKind::kOwn;
  // How often the wait has doubled; below 0 there is none: the first own fault may be chance, and
  // of free ends only what repeats itself is more than bad luck.
  const int further =
      own ? streak.own - 2 : std::max(streak.free - kFreeEndsInARow, streak.same_node - 2);
  if (further < 0) return Duration{};
  const Duration limit = own ? config.retries.backoff_limit : config.retries.free_backoff_limit;
  const Duration delay = Doubled(config.retries.backoff_first, further, limit);
  // Jobs that failed together, by a file server perhaps, do not come back together.
  const double jitter = 0.8 + 0.4 * Rng(seed).Unit();
  return std::min(FromSeconds(Seconds(delay) * jitter), limit);
}

Duration MemberBackoff(int failures, const Config& config) {
  if (failures < 1) return Duration{};
  return Doubled(config.forming.member_backoff_first, failures - 1,
                 config.forming.member_backoff_limit);
}

std::optional<Duration> SettleTime(ScaleUp scale_up, int growths, int lost_newcomers,
                                   const Config& config) {
  if (scale_up == ScaleUp::kNext || scale_up == ScaleUp::kNever) return std::nullopt;
  // The first growth costs nobody's patience: a job that begins with few nodes takes
  // more as soon as they come.
  if (scale_up == ScaleUp::kNow || growths == 0) return Duration{};
  return Doubled(config.forming.settle, lost_newcomers, config.forming.settle * 1024);
}

int ChargesInWindow(int all, const std::vector<Duration>& ages, std::optional<Duration> window) {
  if (!window) return all;
  return static_cast<int>(
      std::count_if(ages.begin(), ages.end(), [&](Duration age) { return age <= *window; }));
}

std::optional<FailReason> FailsJob(const JobSpec& spec, const EndReason& reason, int charges,
                                   const Streak& streak, const Config& config) {
  if (auto* failed = std::get_if<WorkerFailed>(&reason)) {
    const RankExit& exit = failed->cause.exit;
    auto action = spec.exit_codes.find(exit.code);
    if (exit.kind == ExitKind::kExited && action != spec.exit_codes.end() &&
        action->second == ExitAction::kFail)
      return ExitCodeSaysFail{exit.code};
  }
  if (!ChargesBudget(reason)) return std::nullopt;
  if (charges + 1 > spec.max_restarts) return BudgetSpent{charges, spec.max_restarts};
  // The budget may be a million; so many failures in a row without a step of progress
  // are the same failure.
  if (streak.own >= config.retries.crash_loop) return CrashLoop{streak.own};
  return std::nullopt;
}

std::optional<FailReason> FailsForPreemption(const JobSpec& spec, const EndReason& reason,
                                             int preemptions) {
  if (!spec.max_preemptions || !std::holds_alternative<Preempted>(reason)) return std::nullopt;
  if (preemptions < *spec.max_preemptions) return std::nullopt;
  return PreemptionsSpent{preemptions, *spec.max_preemptions};
}

bool IsOfTheProgram(int error_number) {
  switch (error_number) {
    case EAGAIN:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case ENOSPC:
    case EDQUOT:
    case ETXTBSY: return false;
    default: return true;
  }
}

std::optional<FailReason> FailsForExec(const std::vector<ExcludedNode>& excluded, int nodes_left,
                                       const std::string& program) {
  if (excluded.empty()) return std::nullopt;
  // The same obstacle on two nodes is the program's, not a node's: a third would find it, too.
  const ExcludedNode& newest = excluded.back();
  const auto same = std::count_if(excluded.begin(), excluded.end(), [&](const ExcludedNode& node) {
    return node.error_number == newest.error_number && node.obstacle == newest.obstacle;
  });
  if (nodes_left > 0 && (same < 2 || !IsOfTheProgram(newest.error_number))) return std::nullopt;
  return NotExecutable{newest.error_number, program, newest.obstacle};
}

int ExitCodeOf(const FailReason& failed, const std::optional<EndReason>& root) {
  if (auto* cancelled = std::get_if<CancelledBy>(&failed))
    return cancelled->signal ? 128 + cancelled->signal : 143;
  if (std::holds_alternative<PreemptedAll>(failed) ||
      std::holds_alternative<PreemptionsSpent>(failed))
    return 143;
  if (auto* exec = std::get_if<NotExecutable>(&failed))
    return ExecExitCode(exec->error_number, exec->obstacle);
  if (root) {
    if (const RankCause* cause = RankOf(*root)) return ExitCodeOfExit(cause->exit);
  }
  return 125;
}

LeaveOutcome DecideLeave(const JobSpec& spec, int signal, int others) {
  if (others == 0)
    return signal == SIGTERM || signal == 0 ? LeaveOutcome::kPreempts : LeaveOutcome::kCancels;
  if (spec.min_nodes == spec.max_nodes && signal == SIGINT) return LeaveOutcome::kCancels;
  return LeaveOutcome::kLeaves;
}

}  // namespace regroup::coordinator
