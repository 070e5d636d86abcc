#include <limits>

#include "common/rpc/checker.h"
#include "common/rpc/convert.h"

namespace regroup {
namespace {

using wire::Checker;
using wire::Overloaded;
using wire::Us;
using wire::WallOf;

constexpr int kMaxExitCode = 255;

template <class Repeated>
void Put(const std::vector<std::string>& values, Repeated* out) {
  for (const std::string& value : values) out->Add(std::string(value));
}

template <class Repeated>
std::vector<std::string> TakeTexts(Checker& check, std::string_view field, const Repeated& values) {
  std::vector<std::string> out;
  if (!check.Size(field, values.size(), kMaxNodes)) return out;
  out.reserve(values.size());
  for (const std::string& value : values) out.push_back(check.Text(field, value, kMaxTextBytes));
  return out;
}

std::string TakeText(Checker& check, std::string_view field, const std::string& value) {
  return check.Text(field, value, kMaxTextBytes);
}

std::optional<Duration> TakeOptional(Checker& check, std::string_view field, bool has,
                                     std::int64_t nanoseconds) {
  if (!has) return std::nullopt;
  return check.AnyDuration(field, nanoseconds);
}

}  // namespace

pb::WaitReason ToProto(const WaitReason& value) {
  pb::WaitReason out;
  std::visit(Overloaded{
                 [&](const BelowMinimum& r) {
                   auto* p = out.mutable_below_minimum();
                   p->set_have(r.have);
                   p->set_need(r.need);
                   p->set_since_ns(r.since.count());
                   Put(r.missing, p->mutable_missing());
                 },
                 [&](const LastCall& r) {
                   out.mutable_last_call()->set_have(r.have);
                   out.mutable_last_call()->set_left_ns(r.left.count());
                 },
                 [&](const BackingOff& r) {
                   out.mutable_backing_off()->set_failures(r.failures);
                   out.mutable_backing_off()->set_left_ns(r.left.count());
                   out.mutable_backing_off()->set_node(r.node);
                   out.mutable_backing_off()->set_why(r.why);
                 },
                 [&](const SlotsStopping& r) {
                   Put(r.nodes, out.mutable_slots_stopping()->mutable_nodes());
                   out.mutable_slots_stopping()->set_left_ns(r.left.count());
                 },
                 [&](const AwaitReattach& r) {
                   Put(r.nodes, out.mutable_await_reattach()->mutable_nodes());
                   out.mutable_await_reattach()->set_left_ns(r.left.count());
                 },
                 [&](const FinishHold& r) {
                   out.mutable_finish_hold()->set_node(r.node);
                   out.mutable_finish_hold()->set_left_ns(r.left.count());
                 },
                 [&](const UnreachableHold& r) {
                   Put(r.nodes, out.mutable_unreachable_hold()->mutable_nodes());
                   out.mutable_unreachable_hold()->set_left_ns(r.left.count());
                 },
                 [&](const BudgetVerdictOpen& r) {
                   Put(r.waiting_for, out.mutable_budget_verdict_open()->mutable_waiting_for());
                 },
                 [&](const BehindJob& r) { out.mutable_behind_job()->set_job(r.job.value()); },
                 [&](const MembersPreparing& r) {
                   Put(r.nodes, out.mutable_members_preparing()->mutable_nodes());
                   out.mutable_members_preparing()->set_since_ns(r.since.count());
                 },
                 [&](const SavingBeforeLeave& r) {
                   out.mutable_saving_before_leave()->set_node(r.node);
                   out.mutable_saving_before_leave()->set_left_ns(r.left.count());
                 },
                 [&](const CannotFit& r) {
                   out.mutable_cannot_fit()->set_need(r.need);
                   out.mutable_cannot_fit()->set_known(r.known);
                   out.mutable_cannot_fit()->set_slots(r.slots);
                   out.mutable_cannot_fit()->set_largest(r.largest);
                   out.mutable_cannot_fit()->set_node(r.node);
                 },
             },
             value);
  return out;
}

absl::StatusOr<WaitReason> FromProto(const pb::WaitReason& value) {
  Checker check;
  WaitReason out;
  switch (value.reason_case()) {
    case pb::WaitReason::kBelowMinimum: {
      const auto& p = value.below_minimum();
      out = BelowMinimum{p.have(), p.need(), check.AnyDuration("since", p.since_ns()),
                         TakeTexts(check, "missing", p.missing())};
      break;
    }
    case pb::WaitReason::kLastCall:
      out = LastCall{value.last_call().have(),
                     check.AnyDuration("left", value.last_call().left_ns())};
      break;
    case pb::WaitReason::kBackingOff:
      out = BackingOff{value.backing_off().failures(),
                       check.AnyDuration("left", value.backing_off().left_ns()),
                       TakeText(check, "node", value.backing_off().node()),
                       TakeText(check, "why", value.backing_off().why())};
      break;
    case pb::WaitReason::kSlotsStopping:
      out = SlotsStopping{TakeTexts(check, "nodes", value.slots_stopping().nodes()),
                          check.AnyDuration("left", value.slots_stopping().left_ns())};
      break;
    case pb::WaitReason::kAwaitReattach:
      out = AwaitReattach{TakeTexts(check, "nodes", value.await_reattach().nodes()),
                          check.AnyDuration("left", value.await_reattach().left_ns())};
      break;
    case pb::WaitReason::kFinishHold:
      out = FinishHold{TakeText(check, "node", value.finish_hold().node()),
                       check.AnyDuration("left", value.finish_hold().left_ns())};
      break;
    case pb::WaitReason::kUnreachableHold:
      out = UnreachableHold{TakeTexts(check, "nodes", value.unreachable_hold().nodes()),
                            check.AnyDuration("left", value.unreachable_hold().left_ns())};
      break;
    case pb::WaitReason::kBudgetVerdictOpen:
      out = BudgetVerdictOpen{
          TakeTexts(check, "waiting_for", value.budget_verdict_open().waiting_for())};
      break;
    case pb::WaitReason::kBehindJob:
      out = BehindJob{JobId(check.JobId("job", value.behind_job().job()))};
      break;
    case pb::WaitReason::kMembersPreparing:
      out = MembersPreparing{TakeTexts(check, "nodes", value.members_preparing().nodes()),
                             check.AnyDuration("since", value.members_preparing().since_ns())};
      break;
    case pb::WaitReason::kSavingBeforeLeave:
      out = SavingBeforeLeave{TakeText(check, "node", value.saving_before_leave().node()),
                              check.AnyDuration("left", value.saving_before_leave().left_ns())};
      break;
    case pb::WaitReason::kCannotFit: {
      const auto& p = value.cannot_fit();
      out =
          CannotFit{p.need(), p.known(), p.slots(), p.largest(), TakeText(check, "node", p.node())};
      break;
    }
    case pb::WaitReason::REASON_NOT_SET:
      check.Fail("wait reason: is missing or of a kind not known here");
  }
  return check.Finish(std::move(out));
}

pb::RankCause ToProto(const RankCause& value) {
  pb::RankCause out;
  out.set_node(value.node);
  out.set_rank(value.rank);
  out.set_local_rank(value.local_rank);
  *out.mutable_exit() = ToProto(value.exit);
  out.set_at_us(Us(value.at));
  return out;
}

absl::StatusOr<RankCause> FromProto(const pb::RankCause& value) {
  Checker check;
  RankCause cause;
  cause.node = TakeText(check, "node", value.node());
  cause.rank = check.Number<int>("rank", value.rank(), -1, kMaxRanks - 1);
  cause.local_rank =
      check.Number<int>("local_rank", value.local_rank(), -1, kMaxWorkersPerNode - 1);
  if (check.Present("exit", value.has_exit()))
    cause.exit = check.Nested("exit", FromProto(value.exit()));
  cause.at = WallOf(value.at_us());
  return check.Finish(std::move(cause));
}

pb::EndReason ToProto(const EndReason& value) {
  pb::EndReason out;
  std::visit(Overloaded{
                 [&](const WorkerFailed& r) {
                   *out.mutable_worker_failed()->mutable_cause() = ToProto(r.cause);
                 },
                 [&](const NodeLost& r) {
                   out.mutable_node_lost()->set_node(r.node);
                   out.mutable_node_lost()->set_how(r.how);
                   out.mutable_node_lost()->set_silent_ns(r.silent.count());
                 },
                 [&](const NodeRebooted& r) { out.mutable_node_rebooted()->set_node(r.node); },
                 [&](const SupervisorLost& r) {
                   out.mutable_supervisor_lost()->set_node(r.node);
                   out.mutable_supervisor_lost()->set_stopped(r.stopped);
                 },
                 [&](const StoreLost& r) { out.mutable_store_lost()->set_node(r.node); },
                 [&](const StartTimedOut& r) {
                   out.mutable_start_timed_out()->set_node(r.node);
                   out.mutable_start_timed_out()->set_limit_ns(r.limit.count());
                 },
                 [&](const ExecFailed& r) {
                   *out.mutable_exec_failed()->mutable_cause() = ToProto(r.cause);
                 },
                 [&](const Preempted& r) {
                   out.mutable_preempted()->set_node(r.node);
                   out.mutable_preempted()->set_saved(r.saved);
                 },
                 [&](const Resized& r) {
                   out.mutable_resized()->set_from(r.from);
                   out.mutable_resized()->set_to(r.to);
                   Put(r.joined, out.mutable_resized()->mutable_joined());
                 },
                 [&](const Cancelled& r) { out.mutable_cancelled()->set_by(r.by); },
                 [&](const Finished&) { out.mutable_finished(); },
             },
             value);
  return out;
}

absl::StatusOr<EndReason> FromProto(const pb::EndReason& value) {
  Checker check;
  EndReason out;
  switch (value.reason_case()) {
    case pb::EndReason::kWorkerFailed:
      out = WorkerFailed{check.Nested("cause", FromProto(value.worker_failed().cause()))};
      break;
    case pb::EndReason::kNodeLost:
      out = NodeLost{TakeText(check, "node", value.node_lost().node()),
                     TakeText(check, "how", value.node_lost().how()),
                     check.AnyDuration("silent", value.node_lost().silent_ns())};
      break;
    case pb::EndReason::kNodeRebooted:
      out = NodeRebooted{TakeText(check, "node", value.node_rebooted().node())};
      break;
    case pb::EndReason::kSupervisorLost:
      out = SupervisorLost{TakeText(check, "node", value.supervisor_lost().node()),
                           value.supervisor_lost().stopped()};
      break;
    case pb::EndReason::kStoreLost:
      out = StoreLost{TakeText(check, "node", value.store_lost().node())};
      break;
    case pb::EndReason::kStartTimedOut:
      out = StartTimedOut{TakeText(check, "node", value.start_timed_out().node()),
                          check.AnyDuration("limit", value.start_timed_out().limit_ns())};
      break;
    case pb::EndReason::kExecFailed:
      out = ExecFailed{check.Nested("cause", FromProto(value.exec_failed().cause()))};
      break;
    case pb::EndReason::kPreempted:
      out = Preempted{TakeText(check, "node", value.preempted().node()), value.preempted().saved()};
      break;
    case pb::EndReason::kResized:
      out = Resized{value.resized().from(), value.resized().to(),
                    TakeTexts(check, "joined", value.resized().joined())};
      break;
    case pb::EndReason::kCancelled:
      out = Cancelled{TakeText(check, "by", value.cancelled().by())};
      break;
    case pb::EndReason::kFinished: out = Finished{}; break;
    case pb::EndReason::REASON_NOT_SET:
      check.Fail("end reason: is missing or of a kind not known here");
  }
  return check.Finish(std::move(out));
}

pb::FailReason ToProto(const FailReason& value) {
  pb::FailReason out;
  std::visit(
      Overloaded{
          [&](const BudgetSpent& r) {
            out.mutable_budget_spent()->set_used(r.used);
            out.mutable_budget_spent()->set_max(r.max);
          },
          [&](const CrashLoop& r) { out.mutable_crash_loop()->set_failures(r.failures); },
          [&](const ExitCodeSaysFail& r) { out.mutable_exit_code_says_fail()->set_code(r.code); },
          [&](const NotExecutable& r) {
            out.mutable_not_executable()->set_error_number(r.error_number);
            out.mutable_not_executable()->set_program(r.program);
            out.mutable_not_executable()->set_obstacle(
                static_cast<pb::ExecObstacle>(wire::EnumNumber(r.obstacle, wire::kObstacles)));
          },
          [&](const CancelledBy& r) {
            out.mutable_cancelled_by()->set_who(r.who);
            out.mutable_cancelled_by()->set_signal(r.signal);
          },
          [&](const PreemptedAll&) { out.mutable_preempted_all(); },
          [&](const PreemptionsSpent& r) {
            out.mutable_preemptions_spent()->set_used(r.used);
            out.mutable_preemptions_spent()->set_max(r.max);
          },
      },
      value);
  return out;
}

absl::StatusOr<FailReason> FromProto(const pb::FailReason& value) {
  Checker check;
  FailReason out;
  switch (value.reason_case()) {
    case pb::FailReason::kBudgetSpent:
      out = BudgetSpent{value.budget_spent().used(), value.budget_spent().max()};
      break;
    case pb::FailReason::kCrashLoop: out = CrashLoop{value.crash_loop().failures()}; break;
    case pb::FailReason::kExitCodeSaysFail:
      out = ExitCodeSaysFail{value.exit_code_says_fail().code()};
      break;
    case pb::FailReason::kNotExecutable:
      out = NotExecutable{
          value.not_executable().error_number(),
          check.Text("program", value.not_executable().program(), kMaxJobTextBytes),
          check.Enum("obstacle", value.not_executable().obstacle(), wire::kObstacles)};
      break;
    case pb::FailReason::kCancelledBy:
      out = CancelledBy{TakeText(check, "who", value.cancelled_by().who()),
                        check.Number<int>("signal", value.cancelled_by().signal(), 0, 64)};
      break;
    case pb::FailReason::kPreemptedAll: out = PreemptedAll{}; break;
    case pb::FailReason::kPreemptionsSpent:
      out = PreemptionsSpent{value.preemptions_spent().used(), value.preemptions_spent().max()};
      break;
    case pb::FailReason::REASON_NOT_SET:
      check.Fail("fail reason: is missing or of a kind not known here");
  }
  return check.Finish(std::move(out));
}

pb::RestartPhases ToProto(const RestartPhases& value) {
  pb::RestartPhases out;
  out.set_down_ns(value.down.count());
  if (value.detect) out.set_detect_ns(value.detect->count());
  if (value.decide) out.set_decide_ns(value.decide->count());
  if (value.stop) out.set_stop_ns(value.stop->count());
  if (value.form) out.set_form_ns(value.form->count());
  if (value.spawn) out.set_spawn_ns(value.spawn->count());
  if (value.init) out.set_init_ns(value.init->count());
  if (value.restore) out.set_restore_ns(value.restore->count());
  if (value.first_step) out.set_first_step_ns(value.first_step->count());
  return out;
}

absl::StatusOr<RestartPhases> FromProto(const pb::RestartPhases& value) {
  Checker check;
  RestartPhases out;
  out.down = check.AnyDuration("down", value.down_ns());
  out.detect = TakeOptional(check, "detect", value.has_detect_ns(), value.detect_ns());
  out.decide = TakeOptional(check, "decide", value.has_decide_ns(), value.decide_ns());
  out.stop = TakeOptional(check, "stop", value.has_stop_ns(), value.stop_ns());
  out.form = TakeOptional(check, "form", value.has_form_ns(), value.form_ns());
  out.spawn = TakeOptional(check, "spawn", value.has_spawn_ns(), value.spawn_ns());
  out.init = TakeOptional(check, "init", value.has_init_ns(), value.init_ns());
  out.restore = TakeOptional(check, "restore", value.has_restore_ns(), value.restore_ns());
  out.first_step =
      TakeOptional(check, "first_step", value.has_first_step_ns(), value.first_step_ns());
  return check.Finish(out);
}

pb::JobEvent ToProto(const JobEvent& value) {
  pb::JobEvent out;
  out.set_number(value.number);
  out.set_at_us(Us(value.at));
  std::visit(
      Overloaded{
          [&](const NodeJoined& e) {
            auto* p = out.mutable_node_joined();
            p->set_node(e.node);
            p->set_have(e.have);
            p->set_min(e.min);
            p->set_max(e.max);
          },
          [&](const NodeLeft& e) {
            out.mutable_node_left()->set_node(e.node);
            out.mutable_node_left()->set_why(e.why);
            out.mutable_node_left()->set_stays(e.stays);
          },
          [&](const GenerationFormed& e) {
            auto* p = out.mutable_generation_formed();
            p->set_generation(e.generation.value());
            p->set_nodes(e.nodes);
            p->set_world(e.world);
            p->set_took_ns(e.took.count());
            Put(e.members, p->mutable_members());
          },
          [&](const GenerationRunning& e) {
            out.mutable_generation_running()->set_generation(e.generation.value());
            *out.mutable_generation_running()->mutable_phases() = ToProto(e.phases);
            out.mutable_generation_running()->set_kept(e.kept);
          },
          [&](const GenerationEnded& e) {
            auto* p = out.mutable_generation_ended();
            p->set_generation(e.generation.value());
            *p->mutable_reason() = ToProto(e.reason);
            p->set_charged(e.charged);
            p->set_restarts(e.restarts);
            p->set_max_restarts(e.max_restarts);
          },
          [&](const CommitAccepted& e) {
            out.mutable_commit_accepted()->set_generation(e.generation.value());
            out.mutable_commit_accepted()->set_step(e.step);
          },
          [&](const NodeWillLeave& e) {
            out.mutable_node_will_leave()->set_node(e.node);
            *out.mutable_node_will_leave()->mutable_notice() = ToProto(e.notice);
          },
          [&](const Waits& e) { *out.mutable_waits()->mutable_reason() = ToProto(e.reason); },
          [&](const JobEnded& e) {
            out.mutable_job_ended()->set_exit_code(e.exit_code);
            out.mutable_job_ended()->set_state(e.state);
          },
      },
      value.body);
  return out;
}

absl::StatusOr<JobEvent> FromProto(const pb::JobEvent& value) {
  Checker check;
  JobEvent out;
  out.number = check.Number<std::uint64_t>("number", value.number(), 0,
                                           std::numeric_limits<std::int64_t>::max());
  out.at = WallOf(value.at_us());
  switch (value.body_case()) {
    case pb::JobEvent::kNodeJoined: {
      const auto& p = value.node_joined();
      out.body = NodeJoined{TakeText(check, "node", p.node()), p.have(), p.min(), p.max()};
      break;
    }
    case pb::JobEvent::kNodeLeft:
      out.body =
          NodeLeft{TakeText(check, "node", value.node_left().node()),
                   TakeText(check, "why", value.node_left().why()), value.node_left().stays()};
      break;
    case pb::JobEvent::kGenerationFormed: {
      const auto& p = value.generation_formed();
      out.body = GenerationFormed{Generation(p.generation()), p.nodes(), p.world(),
                                  check.AnyDuration("took", p.took_ns()),
                                  TakeTexts(check, "members", p.members())};
      break;
    }
    case pb::JobEvent::kGenerationRunning:
      out.body =
          GenerationRunning{Generation(value.generation_running().generation()),
                            check.Nested("phases", FromProto(value.generation_running().phases())),
                            value.generation_running().kept()};
      break;
    case pb::JobEvent::kGenerationEnded: {
      const auto& p = value.generation_ended();
      out.body =
          GenerationEnded{Generation(p.generation()), check.Nested("reason", FromProto(p.reason())),
                          p.charged(), p.restarts(), p.max_restarts()};
      break;
    }
    case pb::JobEvent::kCommitAccepted:
      out.body = CommitAccepted{Generation(value.commit_accepted().generation()),
                                value.commit_accepted().step()};
      break;
    case pb::JobEvent::kNodeWillLeave:
      out.body = NodeWillLeave{TakeText(check, "node", value.node_will_leave().node()),
                               check.Nested("notice", FromProto(value.node_will_leave().notice()))};
      break;
    case pb::JobEvent::kWaits:
      out.body = Waits{check.Nested("reason", FromProto(value.waits().reason()))};
      break;
    case pb::JobEvent::kJobEnded:
      out.body =
          JobEnded{check.Number<int>("exit_code", value.job_ended().exit_code(), 0, kMaxExitCode),
                   TakeText(check, "state", value.job_ended().state())};
      break;
    case pb::JobEvent::BODY_NOT_SET: check.Fail("event: is missing or of a kind not known here");
  }
  return check.Finish(std::move(out));
}

}  // namespace regroup
