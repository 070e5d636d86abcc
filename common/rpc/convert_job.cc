#include <limits>

#include "common/rpc/checker.h"
#include "common/rpc/convert.h"

namespace regroup {
namespace {

using wire::Checker;
using wire::EnumNumber;

constexpr std::pair<int, JobOrigin> kOrigins[] = {
    {pb::JOB_ORIGIN_LAUNCHED, JobOrigin::kLaunched},
    {pb::JOB_ORIGIN_SUBMITTED, JobOrigin::kSubmitted}};
constexpr std::pair<int, ScaleUp> kScaleUps[] = {{pb::SCALE_UP_SETTLE, ScaleUp::kSettle},
                                                 {pb::SCALE_UP_NOW, ScaleUp::kNow},
                                                 {pb::SCALE_UP_NEXT, ScaleUp::kNext},
                                                 {pb::SCALE_UP_NEVER, ScaleUp::kNever}};
constexpr std::pair<int, ExitAction> kExitActions[] = {{pb::EXIT_ACTION_RETRY, ExitAction::kRetry},
                                                       {pb::EXIT_ACTION_FAIL, ExitAction::kFail}};
constexpr std::pair<int, ExitKind> kExitKinds[] = {
    {pb::EXIT_KIND_EXITED, ExitKind::kExited},
    {pb::EXIT_KIND_SIGNALED, ExitKind::kSignaled},
    {pb::EXIT_KIND_EXEC_FAILED, ExitKind::kExecFailed}};
constexpr std::pair<int, OomEvidence> kOomEvidence[] = {
    {pb::OOM_EVIDENCE_NONE, OomEvidence::kNone},
    {pb::OOM_EVIDENCE_COUNTED, OomEvidence::kCounted},
    {pb::OOM_EVIDENCE_PROBABLE, OomEvidence::kProbable}};
constexpr std::pair<int, ErrorEvidence> kErrorEvidence[] = {
    {pb::ERROR_EVIDENCE_NONE, ErrorEvidence::kNone},
    {pb::ERROR_EVIDENCE_ERROR_FILE, ErrorEvidence::kErrorFile},
    {pb::ERROR_EVIDENCE_COMMUNICATOR, ErrorEvidence::kCommunicator}};
constexpr std::pair<int, NoticeSource> kNoticeSources[] = {
    {pb::NOTICE_SOURCE_SIGNAL, NoticeSource::kSignal}};

// Command, directory and environment of a job: argv and envp, so no NUL byte inside a string.
void CheckProgram(Checker& check, const pb::JobSpec& value, JobSpec& spec) {
  std::size_t bytes = value.directory().size() + value.node_check().size();
  for (const std::string& module : value.warm().modules()) bytes += module.size() + 1;
  for (const std::string& argument : value.command()) bytes += argument.size() + 1;
  for (const auto& [key, text] : value.environment()) bytes += key.size() + text.size() + 2;
  check.Number<int>("command, directory, environment, node_check and warm (bytes)", bytes, 0,
                    kMaxJobTextBytes);
  if (!check.status().ok()) return;
  const auto without_nul = [&](std::string_view field, const std::string& text) {
    if (text.find('\0') != std::string::npos)
      check.Fail(absl::StrCat(std::string(field), ": contains a NUL byte"));
    return text;
  };
  spec.directory = without_nul("directory", value.directory());
  spec.node_check.command = without_nul("node_check", value.node_check());
  for (const std::string& argument : value.command())
    spec.command.push_back(without_nul("command", argument));
  if (value.in_place()) spec.in_place = true;
  if (value.has_warm()) spec.warm.emplace();
  for (const std::string& module : value.warm().modules())
    spec.warm->push_back(without_nul("warm", module));
  for (const auto& [key, text] : value.environment()) {
    if (key.empty() || key.find('=') != std::string::npos)
      check.Fail("environment: a name is empty or contains '='");
    spec.environment[without_nul("environment", key)] = without_nul("environment", text);
  }
}

void CheckShape(Checker& check, const pb::JobSpec& value, JobSpec& spec) {
  spec.min_nodes = check.Number<int>("min_nodes", value.min_nodes(), 1, kMaxNodes);
  spec.max_nodes = check.Number<int>("max_nodes", value.max_nodes(), 1, kMaxNodes);
  if (spec.max_nodes < spec.min_nodes) {
    check.Fail(absl::StrCat("max_nodes: ", spec.max_nodes, " is below min_nodes ", spec.min_nodes));
  }
  spec.unit = check.Number<int>("unit", value.unit(), 1, kMaxNodes);
  if (spec.unit > 0 && spec.max_nodes / spec.unit * spec.unit < spec.min_nodes) {
    check.Fail(absl::StrCat("unit: no multiple of ", spec.unit, " is in [", spec.min_nodes, ", ",
                            spec.max_nodes, "]"));
  }
  spec.workers_per_node = value.workers_per_node();
  if (spec.workers_per_node == kWorkerPerGpu) return;
  check.Number<int>("workers_per_node", value.workers_per_node(), 1, kMaxWorkersPerNode);
  check.Number<int>("max_nodes * workers_per_node",
                    std::int64_t{spec.max_nodes} * spec.workers_per_node, 0, kMaxRanks);
}

}  // namespace

pb::JobSpec ToProto(const JobSpec& value) {
  pb::JobSpec out;
  out.set_name(value.name);
  out.set_origin(static_cast<pb::JobOrigin>(EnumNumber(value.origin, kOrigins)));
  out.set_min_nodes(value.min_nodes);
  out.set_max_nodes(value.max_nodes);
  out.set_unit(value.unit);
  out.set_workers_per_node(value.workers_per_node);
  for (const std::string& argument : value.command) out.add_command(argument);
  out.set_directory(value.directory);
  for (const auto& [key, text] : value.environment) (*out.mutable_environment())[key] = text;
  out.set_grace_ns(value.grace.count());
  out.set_start_timeout_ns(value.start_timeout.count());
  out.set_max_restarts(value.max_restarts);
  if (value.restart_window) out.set_restart_window_ns(value.restart_window->count());
  if (value.max_preemptions) out.set_max_preemptions(*value.max_preemptions);
  for (const auto& [code, action] : value.exit_codes) {
    (*out.mutable_exit_codes())[code] =
        static_cast<pb::ExitAction>(EnumNumber(action, kExitActions));
  }
  out.set_scale_up(static_cast<pb::ScaleUp>(EnumNumber(value.scale_up, kScaleUps)));
  if (value.price_per_node_hour) out.set_price_per_node_hour(*value.price_per_node_hour);
  out.set_role(value.role);
  out.set_numa_binding(value.numa_binding);
  out.set_virtual_local_rank(value.virtual_local_rank);
  out.set_sets_master_port(value.sets_master_port);
  out.set_node_check(value.node_check.command);
  out.set_node_check_timeout_ns(value.node_check.timeout.count());
  if (value.warm) {
    pb::Warm& warm = *out.mutable_warm();
    for (const std::string& module : *value.warm) warm.add_modules(module);
  }
  out.set_in_place(value.keeps_ranks());
  if (value.log_keep_bytes) out.set_log_keep_bytes(*value.log_keep_bytes);
  return out;
}

absl::StatusOr<JobSpec> FromProto(const pb::JobSpec& value) {
  Checker check;
  JobSpec spec;
  spec.name = check.JobName("name", value.name());
  spec.origin = check.Enum("origin", value.origin(), kOrigins);
  CheckShape(check, value, spec);
  CheckProgram(check, value, spec);
  spec.grace = check.NonNegative("grace", value.grace_ns());
  spec.start_timeout = check.NonNegative("start_timeout", value.start_timeout_ns());
  spec.max_restarts = check.Count("max_restarts", value.max_restarts());
  if (value.has_restart_window_ns()) {
    spec.restart_window = check.NonNegative("restart_window", value.restart_window_ns());
  }
  if (value.has_max_preemptions())
    spec.max_preemptions = check.Count("max_preemptions", value.max_preemptions());
  if (check.Size("exit_codes", static_cast<int>(value.exit_codes().size()), 256)) {
    for (const auto& [code, action] : value.exit_codes()) {
      const int key = check.Number<int>("exit_codes", code, 0, 255);
      spec.exit_codes[key] = check.Enum("exit_codes", action, kExitActions);
    }
  }
  spec.scale_up = check.Enum("scale_up", value.scale_up(), kScaleUps);
  if (value.has_price_per_node_hour())
    spec.price_per_node_hour = check.Finite("price_per_node_hour", value.price_per_node_hour());
  if (!value.role().empty()) spec.role = check.Text("role", value.role(), kMaxIdBytes);
  spec.numa_binding = check.Text("numa_binding", value.numa_binding(), kMaxIdBytes);
  spec.virtual_local_rank = value.virtual_local_rank();
  spec.sets_master_port = value.sets_master_port();
  if (value.has_log_keep_bytes()) spec.log_keep_bytes = value.log_keep_bytes();
  if (spec.node_check.wanted())
    spec.node_check.timeout =
        check.NonNegative("node_check_timeout", value.node_check_timeout_ns());
  return check.Finish(std::move(spec));
}

pb::Address ToProto(const Address& value) {
  pb::Address out;
  out.set_host(value.host);
  out.set_port(value.port);
  return out;
}

absl::StatusOr<Address> FromProto(const pb::Address& value) {
  Checker check;
  Address address;
  address.host = check.Ip("host", value.host());
  address.port = check.Number<std::uint16_t>("port", value.port(), 1, 65535);
  return check.Finish(std::move(address));
}

pb::RankExit ToProto(const RankExit& value) {
  pb::RankExit out;
  out.set_local_rank(value.local_rank);
  out.set_kind(static_cast<pb::ExitKind>(EnumNumber(value.kind, kExitKinds)));
  out.set_code(value.code);
  out.set_after_stop(value.after_stop);
  out.set_oom(static_cast<pb::OomEvidence>(EnumNumber(value.oom, kOomEvidence)));
  out.set_pid(value.pid);
  out.set_age_ns(value.age.count());
  out.set_error(value.error);
  out.set_obstacle(static_cast<pb::ExecObstacle>(EnumNumber(value.obstacle, wire::kObstacles)));
  out.set_evidence(static_cast<pb::ErrorEvidence>(EnumNumber(value.evidence, kErrorEvidence)));
  out.set_given_up(value.given_up);
  return out;
}

absl::StatusOr<RankExit> FromProto(const pb::RankExit& value) {
  Checker check;
  RankExit exit;
  exit.local_rank = check.Number<int>("local_rank", value.local_rank(), 0, kMaxWorkersPerNode - 1);
  exit.kind = check.Enum("kind", value.kind(), kExitKinds);
  exit.code = check.Number<int>("code", value.code(), 0, 4095);
  exit.after_stop = value.after_stop();
  exit.oom = check.Enum("oom", value.oom(), kOomEvidence);
  exit.pid =
      check.Number<std::int64_t>("pid", value.pid(), 0, std::numeric_limits<std::int32_t>::max());
  exit.age = check.NonNegative("age", value.age_ns());
  exit.error = check.Text("error", value.error(), kMaxErrorBytes);
  exit.obstacle = check.Enum("obstacle", value.obstacle(), wire::kObstacles);
  exit.evidence = check.Enum("evidence", value.evidence(), kErrorEvidence);
  exit.given_up = value.given_up();
  return check.Finish(std::move(exit));
}

pb::Notice ToProto(const Notice& value) {
  pb::Notice out;
  out.set_source(static_cast<pb::NoticeSource>(EnumNumber(value.source, kNoticeSources)));
  out.set_signal(value.signal);
  out.set_left_ns(value.left.count());
  return out;
}

absl::StatusOr<Notice> FromProto(const pb::Notice& value) {
  Checker check;
  Notice notice;
  notice.source = check.Enum("source", value.source(), kNoticeSources);
  notice.signal = check.Number<int>("signal", value.signal(), 0, 64);
  notice.left = check.NonNegative("left", value.left_ns());
  return check.Finish(notice);
}

}  // namespace regroup
