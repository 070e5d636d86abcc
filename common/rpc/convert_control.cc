#include <limits>

#include "common/rpc/checker.h"
#include "common/rpc/convert.h"

namespace regroup {
namespace {

using wire::Checker;
using wire::EnumNumber;

constexpr std::int64_t kMaxNumber = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMaxPid = std::numeric_limits<std::int32_t>::max();
constexpr int kMaxSlots = kMaxWorkersPerNode;

constexpr std::pair<int, Phase> kPhases[] = {
    {pb::PHASE_PREPARING, Phase::kPreparing},   {pb::PHASE_PREPARED, Phase::kPrepared},
    {pb::PHASE_STARTING, Phase::kStarting},     {pb::PHASE_RUNNING, Phase::kRunning},
    {pb::PHASE_STOPPING, Phase::kStopping},     {pb::PHASE_FREE, Phase::kFree},
    {pb::PHASE_UNKILLABLE, Phase::kUnkillable}, {pb::PHASE_RETIRED, Phase::kRetired}};
constexpr std::pair<int, StopReason> kStopReasons[] = {
    {pb::STOP_REASON_FAILURE, StopReason::kFailure},
    {pb::STOP_REASON_ELECTIVE, StopReason::kElective},
    {pb::STOP_REASON_NOTICE, StopReason::kNotice},
    {pb::STOP_REASON_CANCELLED, StopReason::kCancelled},
    {pb::STOP_REASON_SUPERSEDED, StopReason::kSuperseded}};

Generation TakeGeneration(Checker& check, std::string_view field, std::uint64_t value) {
  return Generation(check.Number<std::uint64_t>(field, value, 1, kMaxNumber));
}

std::string TakeHash(Checker& check, const std::string& value) {
  const bool hex = value.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!hex || value.size() > 128)
    check.Fail("manifest_hash: is not at most 128 lower-case hexadecimal digits");
  return value;
}

absl::StatusOr<RankStart> FromProto(const pb::RankStart& value) {
  Checker check;
  RankStart start;
  start.local_rank = check.Number<int>("local_rank", value.local_rank(), 0, kMaxWorkersPerNode - 1);
  start.pid = check.Number<std::int64_t>("pid", value.pid(), 0, kMaxPid);
  start.age = check.NonNegative("age", value.age_ns());
  start.kept = value.kept();
  return check.Finish(start);
}

absl::StatusOr<Prepare> FromProto(const pb::Prepare& value) {
  Checker check;
  Prepare out;
  out.generation = TakeGeneration(check, "generation", value.generation());
  if (check.Present("spec", value.has_spec())) {
    out.spec.workers =
        check.Number<int>("spec.workers", value.spec().workers(), 1, kMaxWorkersPerNode);
    out.spec.job = check.Nested("spec.job", regroup::FromProto(value.spec().job()));
  }
  out.host_store = value.host_store();
  if (check.Size("store_members", value.store_members_size(), kMaxNodes)) {
    for (const std::string& ip : value.store_members()) {
      out.store_members.push_back(check.Ip("store_members", ip));
    }
  }
  if (!value.advertise().empty()) out.advertise = check.Ip("advertise", value.advertise());
  return check.Finish(std::move(out));
}

absl::StatusOr<Run> FromProto(const pb::Run& value) {
  Checker check;
  Run out;
  out.generation = TakeGeneration(check, "generation", value.generation());
  if (check.Present("store", value.has_store()))
    out.store = check.Nested("store", regroup::FromProto(value.store()));
  if (check.Size("mine", value.mine_size(), kMaxWorkersPerNode)) {
    for (const pb::RankAssignment& rank : value.mine()) {
      out.mine.push_back(
          {check.Number<int>("mine.local_rank", rank.local_rank(), 0, kMaxWorkersPerNode - 1),
           check.Number<int>("mine.rank", rank.rank(), 0, kMaxRanks - 1)});
    }
  }
  out.group_rank = check.Number<int>("group_rank", value.group_rank(), 0, kMaxNodes - 1);
  out.group_size = check.Number<int>("group_size", value.group_size(), 1, kMaxNodes);
  out.world_size = check.Number<int>("world_size", value.world_size(), 1, kMaxRanks);
  out.restart_count = check.Count("restart_count", value.restart_count());
  out.max_restarts = check.Count("max_restarts", value.max_restarts());
  out.many_hosts = value.many_hosts();
  out.resume_step = check.Number<std::int64_t>("resume_step", value.resume_step(), 0, kMaxNumber);
  return check.Finish(std::move(out));
}

absl::StatusOr<Stop> FromProto(const pb::Stop& value) {
  Checker check;
  Stop out;
  out.up_to = TakeGeneration(check, "up_to", value.up_to());
  out.grace = check.NonNegative("grace", value.grace_ns());
  out.reason = check.Enum("reason", value.reason(), kStopReasons);
  out.in_place = value.in_place();
  return check.Finish(out);
}

pb::Prepare ToProto(const Prepare& value) {
  pb::Prepare out;
  out.set_generation(value.generation.value());
  out.mutable_spec()->set_workers(value.spec.workers);
  *out.mutable_spec()->mutable_job() = regroup::ToProto(value.spec.job);
  out.set_host_store(value.host_store);
  for (const std::string& ip : value.store_members) out.add_store_members(ip);
  out.set_advertise(value.advertise);
  return out;
}

pb::Run ToProto(const Run& value) {
  pb::Run out;
  out.set_generation(value.generation.value());
  *out.mutable_store() = regroup::ToProto(value.store);
  for (const RankAssignment& rank : value.mine) {
    pb::RankAssignment* added = out.add_mine();
    added->set_local_rank(rank.local_rank);
    added->set_rank(rank.rank);
  }
  out.set_group_rank(value.group_rank);
  out.set_group_size(value.group_size);
  out.set_world_size(value.world_size);
  out.set_restart_count(value.restart_count);
  out.set_max_restarts(value.max_restarts);
  out.set_many_hosts(value.many_hosts);
  out.set_resume_step(value.resume_step);
  return out;
}

}  // namespace

pb::Version ToProto(const Version& value) {
  pb::Version out;
  out.set_major(value.major);
  out.set_minor(value.minor);
  out.set_build(value.build);
  return out;
}

absl::StatusOr<Version> FromProto(const pb::Version& value) {
  Checker check;
  Version out;
  out.major = value.major();
  out.minor = value.minor();
  out.build = check.Text("build", value.build(), kMaxIdBytes);
  return check.Finish(std::move(out));
}

pb::GroupReport ToProto(const GroupReport& value) {
  pb::GroupReport out;
  out.set_number(value.number.value());
  out.set_job(value.job.value());
  out.set_generation(value.generation.value());
  out.set_phase(static_cast<pb::Phase>(EnumNumber(value.phase, kPhases)));
  if (value.store) *out.mutable_store() = ToProto(*value.store);
  if (value.witness) *out.mutable_witness() = ToProto(*value.witness);
  for (const RankStart& start : value.started) {
    pb::RankStart* added = out.add_started();
    added->set_local_rank(start.local_rank);
    added->set_pid(start.pid);
    added->set_age_ns(start.age.count());
    added->set_kept(start.kept);
  }
  for (const RankExit& exit : value.exits) *out.add_exits() = ToProto(exit);
  out.set_supervisor_lost(value.supervisor_lost);
  out.set_store_lost(value.store_lost);
  out.set_refused(value.refused);
  return out;
}

absl::StatusOr<GroupReport> FromProto(const pb::GroupReport& value) {
  Checker check;
  GroupReport out;
  out.number = ReportNo(check.Number<std::uint64_t>("number", value.number(), 0, kMaxNumber));
  out.job = JobId(check.JobId("job", value.job()));
  out.generation = TakeGeneration(check, "generation", value.generation());
  out.phase = check.Enum("phase", value.phase(), kPhases);
  if (value.has_store()) out.store = check.Nested("store", FromProto(value.store()));
  if (value.has_witness()) out.witness = check.Nested("witness", FromProto(value.witness()));
  if (check.Size("started", value.started_size(), kMaxWorkersPerNode)) {
    for (const pb::RankStart& start : value.started()) {
      out.started.push_back(check.Nested("started", FromProto(start)));
    }
  }
  if (check.Size("exits", value.exits_size(), kMaxWorkersPerNode)) {
    for (const pb::RankExit& exit : value.exits())
      out.exits.push_back(check.Nested("exits", FromProto(exit)));
  }
  out.supervisor_lost = value.supervisor_lost();
  out.store_lost = value.store_lost();
  out.refused = check.Text("refused", value.refused(), kMaxTextBytes);
  return check.Finish(std::move(out));
}

pb::Hello ToProto(const Hello& value) {
  pb::Hello out;
  out.set_cluster(value.cluster.value());
  out.set_highest_epoch(value.highest_epoch.value());
  out.set_node(value.node.value());
  out.set_incarnation(value.incarnation.value());
  out.set_boot(value.boot.value());
  out.set_name(value.name);
  out.set_name_explicit(value.name_explicit);
  out.set_slots(value.slots);
  out.set_gpu_slots(value.gpu_slots);
  *out.mutable_version() = ToProto(value.version);
  out.set_address(value.address);
  out.set_dialled(value.dialled);
  out.set_launched(value.launched);
  for (const GroupReport& group : value.groups) *out.add_groups() = ToProto(group);
  for (const Notice& notice : value.notices) *out.add_notices() = ToProto(notice);
  out.set_no_cgroup(value.no_cgroup);
  return out;
}

absl::StatusOr<Hello> FromProto(const pb::Hello& value) {
  Checker check;
  Hello out;
  out.cluster = ClusterId(check.TokenOrEmpty("cluster", value.cluster()));
  out.highest_epoch =
      Epoch(check.Number<std::uint64_t>("highest_epoch", value.highest_epoch(), 0, kMaxEpoch));
  out.node = NodeId(check.Token("node", value.node()));
  out.incarnation =
      Incarnation(check.Number<std::uint64_t>("incarnation", value.incarnation(), 1, kMaxNumber));
  out.boot = BootId(check.Token("boot", value.boot()));
  out.name = check.NodeName("name", value.name());
  out.name_explicit = value.name_explicit();
  out.slots = check.Number<int>("slots", value.slots(), 1, kMaxSlots);
  out.gpu_slots = value.gpu_slots();
  out.version = check.Nested("version", FromProto(value.version()));
  out.address = check.IpOrEmpty("address", value.address());
  out.dialled = check.IpOrEmpty("dialled", value.dialled());
  out.launched = value.launched();
  int ranks = 0;
  for (const pb::GroupReport& group : value.groups())
    ranks += group.started_size() + group.exits_size();
  if (check.Size("groups", value.groups_size(), kMaxGroupsPerNode) &&
      check.Size("groups.started and groups.exits", ranks, kMaxRanksPerHello)) {
    for (const pb::GroupReport& group : value.groups())
      out.groups.push_back(check.Nested("groups", FromProto(group)));
  }
  if (check.Size("notices", value.notices_size(), 64)) {
    for (const pb::Notice& notice : value.notices())
      out.notices.push_back(check.Nested("notices", FromProto(notice)));
  }
  out.no_cgroup = check.Text("no_cgroup", value.no_cgroup(), kMaxTextBytes);
  return check.Finish(std::move(out));
}

pb::LaunchRequest ToProto(const LaunchRequest& value) {
  pb::LaunchRequest out;
  out.set_key(value.key);
  out.set_rdzv_id(value.rdzv_id);
  out.set_standalone(value.standalone);
  *out.mutable_spec() = ToProto(value.spec);
  out.set_age_ns(value.age.count());
  return out;
}

absl::StatusOr<LaunchRequest> FromProto(const pb::LaunchRequest& value) {
  Checker check;
  LaunchRequest out;
  out.key = check.Token("key", value.key());
  out.rdzv_id = check.JobName("rdzv_id", value.rdzv_id());
  out.standalone = value.standalone();
  if (check.Present("spec", value.has_spec()))
    out.spec = check.Nested("spec", FromProto(value.spec()));
  out.age = check.NonNegative("age", value.age_ns());
  return check.Finish(std::move(out));
}

pb::Heartbeat ToProto(const HeartbeatMessage& value) {
  pb::Heartbeat out;
  out.set_obeyed(value.obeyed.value());
  out.set_warm_bytes(value.warm_bytes);
  if (value.gpus) {
    pb::Gpus& gpus = *out.mutable_gpus();
    for (const Gpu& gpu : *value.gpus) *gpus.add_gpus() = ToProto(gpu);
  }
  return out;
}

absl::StatusOr<HeartbeatMessage> FromProto(const pb::Heartbeat& value) {
  Checker check;
  HeartbeatMessage out{OrderNo(value.obeyed()), value.warm_bytes()};
  if (value.has_gpus()) out.gpus = check.Nested("gpus", GpusFromProto(value.gpus().gpus()));
  return check.Finish(std::move(out));
}

pb::Gpu ToProto(const Gpu& value) {
  pb::Gpu out;
  out.set_id(value.id);
  out.set_uuid(value.uuid);
  out.set_name(value.name);
  out.set_memory_bytes(value.memory_bytes);
  out.set_used_bytes(value.used_bytes);
  if (value.celsius) out.set_celsius(*value.celsius);
  if (value.ecc_errors) out.set_ecc_errors(*value.ecc_errors);
  out.set_xids(value.xids);
  out.set_last_xid(value.last_xid);
  out.set_trouble(value.trouble);
  return out;
}

absl::StatusOr<std::vector<Gpu>> GpusFromProto(
    const google::protobuf::RepeatedPtrField<pb::Gpu>& value) {
  Checker check;
  std::vector<Gpu> out;
  if (!check.Size("gpus", value.size(), kMaxGpusPerNode)) return check.Finish(std::move(out));
  for (const pb::Gpu& gpu : value) {
    Gpu& seen = out.emplace_back();
    seen.id = check.Text("id", gpu.id(), kMaxIdBytes);
    seen.uuid = check.Text("uuid", gpu.uuid(), kMaxIdBytes);
    seen.name = check.Text("name", gpu.name(), kMaxIdBytes);
    seen.memory_bytes = gpu.memory_bytes();
    seen.used_bytes = gpu.used_bytes();
    if (gpu.has_celsius()) seen.celsius = gpu.celsius();
    if (gpu.has_ecc_errors()) seen.ecc_errors = gpu.ecc_errors();
    seen.xids = gpu.xids();
    seen.last_xid = gpu.last_xid();
    seen.trouble = check.Text("trouble", gpu.trouble(), kMaxTextBytes);
  }
  return check.Finish(std::move(out));
}

pb::WorkerProgress ToProto(const WorkerProgress& value) {
  pb::WorkerProgress out;
  out.set_job(value.job.value());
  out.set_generation(value.generation.value());
  out.set_rank(value.rank);
  out.set_step(value.step);
  out.set_samples(value.samples);
  // A diverged training says NaN; that is no number to show, and no reason to cut its session.
  if (value.loss && std::isfinite(*value.loss)) out.set_loss(*value.loss);
  if (value.tokens_per_second && std::isfinite(*value.tokens_per_second)) {
    out.set_tokens_per_second(*value.tokens_per_second);
  }
  if (value.restored_step) out.set_restored_step(*value.restored_step);
  if (value.init) out.set_init_ns(value.init->count());
  if (value.restore) out.set_restore_ns(value.restore->count());
  if (value.first_step) out.set_first_step_ns(value.first_step->count());
  if (value.checkpoint) out.set_checkpoint_ns(value.checkpoint->count());
  if (value.tokens) out.set_tokens(*value.tokens);
  return out;
}

absl::StatusOr<WorkerProgress> FromProto(const pb::WorkerProgress& value) {
  Checker check;
  WorkerProgress out;
  out.job = JobId(check.JobId("job", value.job()));
  out.generation = TakeGeneration(check, "generation", value.generation());
  out.rank = check.Number<int>("rank", value.rank(), 0, kMaxRanks - 1);
  out.step = check.Number<std::int64_t>("step", value.step(), 0, kMaxNumber);
  out.samples = check.Number<std::int64_t>("samples", value.samples(), 0, kMaxNumber);
  if (value.has_loss()) out.loss = check.Finite("loss", value.loss());
  if (value.has_tokens_per_second()) {
    out.tokens_per_second = check.Finite("tokens_per_second", value.tokens_per_second());
  }
  if (value.has_restored_step()) {
    out.restored_step =
        check.Number<std::int64_t>("restored_step", value.restored_step(), 0, kMaxNumber);
  }
  if (value.has_init_ns()) out.init = check.NonNegative("init", value.init_ns());
  if (value.has_restore_ns()) out.restore = check.NonNegative("restore", value.restore_ns());
  if (value.has_first_step_ns())
    out.first_step = check.NonNegative("first_step", value.first_step_ns());
  if (value.has_checkpoint_ns())
    out.checkpoint = check.NonNegative("checkpoint", value.checkpoint_ns());
  if (value.has_tokens())
    out.tokens = check.Number<std::int64_t>("tokens", value.tokens(), 0, kMaxNumber);
  return check.Finish(std::move(out));
}

pb::CommitRequest ToProto(const CommitRequest& value) {
  pb::CommitRequest out;
  out.set_job(value.job.value());
  out.set_generation(value.generation.value());
  out.set_attempt(value.attempt);
  out.set_step(value.step);
  out.set_manifest_hash(value.manifest_hash);
  out.set_path(value.path);
  out.set_for_notice(value.for_notice);
  return out;
}

absl::StatusOr<CommitRequest> FromProto(const pb::CommitRequest& value) {
  Checker check;
  CommitRequest out;
  out.job = JobId(check.JobId("job", value.job()));
  out.generation = TakeGeneration(check, "generation", value.generation());
  out.attempt = check.Number<std::uint64_t>("attempt", value.attempt(), 0, kMaxNumber);
  out.step = check.Number<std::int64_t>("step", value.step(), 0, kMaxNumber);
  out.manifest_hash = TakeHash(check, value.manifest_hash());
  out.path = check.Text("path", value.path(), kMaxTextBytes);
  out.for_notice = value.for_notice();
  return check.Finish(std::move(out));
}

pb::Welcome ToProto(const Welcome& value) {
  pb::Welcome out;
  out.set_cluster(value.cluster.value());
  out.set_epoch(value.epoch.value());
  out.set_name(value.name);
  *out.mutable_version() = ToProto(value.version);
  out.set_heartbeat_ns(value.heartbeat.count());
  out.set_lease_ns(value.lease.count());
  out.set_agent_restart_ns(value.agent_restart.count());
  out.set_answers_heartbeats(value.answers_heartbeats);
  return out;
}

absl::StatusOr<Welcome> FromProto(const pb::Welcome& value) {
  Checker check;
  Welcome out;
  out.cluster = ClusterId(check.Token("cluster", value.cluster()));
  out.epoch = Epoch(check.Number<std::uint64_t>("epoch", value.epoch(), 1, kMaxNumber));
  out.name = check.NodeName("name", value.name());
  out.version = check.Nested("version", FromProto(value.version()));
  // A heartbeat of zero would spin.
  constexpr std::int64_t kMillisecond = 1'000'000, kDay = 86'400'000'000'000;
  out.heartbeat =
      Duration(check.Number<std::int64_t>("heartbeat", value.heartbeat_ns(), kMillisecond, kDay));
  out.lease = Duration(check.Number<std::int64_t>("lease", value.lease_ns(), kMillisecond, kDay));
  if (value.agent_restart_ns() != 0) {
    out.agent_restart = Duration(
        check.Number<std::int64_t>("agent_restart", value.agent_restart_ns(), kMillisecond, kDay));
  }
  out.answers_heartbeats = value.answers_heartbeats();
  return check.Finish(std::move(out));
}

pb::Order ToProto(const Order& value) {
  pb::Order out;
  out.set_number(value.number.value());
  out.set_job(value.job.value());
  if (value.forget) out.mutable_forget()->set_up_to(value.forget->up_to.value());
  if (value.stop) {
    out.mutable_stop()->set_up_to(value.stop->up_to.value());
    out.mutable_stop()->set_grace_ns(value.stop->grace.count());
    out.mutable_stop()->set_reason(
        static_cast<pb::StopReason>(EnumNumber(value.stop->reason, kStopReasons)));
    out.mutable_stop()->set_in_place(value.stop->in_place);
  }
  if (value.prepare) *out.mutable_prepare() = ToProto(*value.prepare);
  if (value.run) *out.mutable_run() = ToProto(*value.run);
  if (value.notice) {
    out.mutable_notice()->set_generation(value.notice->generation.value());
    out.mutable_notice()->set_left_ns(value.notice->left.count());
  }
  return out;
}

absl::StatusOr<Order> FromProto(const pb::Order& value) {
  Checker check;
  Order out;
  out.number = OrderNo(check.Number<std::uint64_t>("number", value.number(), 0, kMaxNumber));
  out.job = JobId(check.JobId("job", value.job()));
  if (value.has_forget())
    out.forget = Forget{TakeGeneration(check, "forget.up_to", value.forget().up_to())};
  if (value.has_stop()) out.stop = check.Nested("stop", FromProto(value.stop()));
  if (value.has_prepare()) out.prepare = check.Nested("prepare", FromProto(value.prepare()));
  if (value.has_run()) out.run = check.Nested("run", FromProto(value.run()));
  if (value.has_notice()) {
    out.notice =
        WorkerNotice{TakeGeneration(check, "notice.generation", value.notice().generation()),
                     check.NonNegative("notice.left", value.notice().left_ns())};
  }
  return check.Finish(std::move(out));
}

pb::CommitAnswer ToProto(const CommitAnswer& value) {
  pb::CommitAnswer out;
  out.set_job(value.job.value());
  out.set_generation(value.generation.value());
  out.set_attempt(value.attempt);
  out.set_step(value.step);
  out.set_accepted(value.accepted);
  out.set_why_not(value.why_not);
  return out;
}

absl::StatusOr<CommitAnswer> FromProto(const pb::CommitAnswer& value) {
  Checker check;
  CommitAnswer out;
  out.job = JobId(check.JobId("job", value.job()));
  out.generation = TakeGeneration(check, "generation", value.generation());
  out.attempt = value.attempt();
  out.step = check.Number<std::int64_t>("step", value.step(), 0, kMaxNumber);
  out.accepted = value.accepted();
  out.why_not = check.Text("why_not", value.why_not(), kMaxTextBytes);
  return check.Finish(std::move(out));
}

}  // namespace regroup
