#include "launcher/coordinator/shell/records.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/user_error.h"
#include "common/rpc/checker.h"
#include "common/rpc/convert.h"
#include "launcher/coordinator/core/accounting.h"
#include "proto/record.pb.h"

namespace regroup::coordinator {
namespace {

using wire::Checker;
using wire::EnumNumber;
using wire::Us;
using wire::WallOf;

constexpr std::pair<int, JobPhase> kJobPhases[] = {
    {pb::JOB_PHASE_QUEUED, JobPhase::kQueued},
    {pb::JOB_PHASE_GATHERING, JobPhase::kGathering},
    {pb::JOB_PHASE_FORMING, JobPhase::kForming},
    {pb::JOB_PHASE_RUNNING, JobPhase::kRunning},
    {pb::JOB_PHASE_REGROUPING, JobPhase::kRegrouping},
    {pb::JOB_PHASE_PREEMPTED, JobPhase::kPreempted},
    {pb::JOB_PHASE_ENDING, JobPhase::kEnding},
    {pb::JOB_PHASE_ENDED, JobPhase::kEnded}};
constexpr std::pair<int, VerdictState> kVerdictStates[] = {
    {pb::Verdict::STATE_SUCCEEDED, VerdictState::kSucceeded},
    {pb::Verdict::STATE_FAILED, VerdictState::kFailed},
    {pb::Verdict::STATE_CANCELLED, VerdictState::kCancelled}};
constexpr std::pair<int, GenerationPhase> kGenerationPhases[] = {
    {pb::GENERATION_PHASE_PROPOSED, GenerationPhase::kProposed},
    {pb::GENERATION_PHASE_FORMED, GenerationPhase::kFormed},
    {pb::GENERATION_PHASE_OVER, GenerationPhase::kOver}};

// ---- meta, node

pb::MetaRow Encode(const MetaRow& row) {
  pb::MetaRow out;
  out.set_cluster(row.cluster.value());
  out.set_epoch(row.epoch.value());
  out.set_format(row.format);
  out.set_older_than(row.older_than.value());
  return out;
}

absl::StatusOr<MetaRow> Decode(const pb::MetaRow& row) {
  return MetaRow{ClusterId(row.cluster()), Epoch(row.epoch()), row.format(),
                 Epoch(row.older_than())};
}

pb::NodeRow Encode(const NodeRow& row) {
  pb::NodeRow out;
  out.set_node(row.node.value());
  out.set_name(row.name);
  out.set_name_explicit(row.name_explicit);
  out.set_incarnation(row.incarnation.value());
  out.set_boot(row.boot.value());
  out.set_address(row.address);
  out.set_dialled(row.dialled);
  out.set_slots(row.slots);
  out.set_gpu_slots(row.gpu_slots);
  out.set_launched(row.launched);
  *out.mutable_version() = ToProto(row.version);
  out.set_lost(row.lost);
  out.set_lost_how(row.lost_how);
  if (row.launch) {
    out.mutable_launch()->set_key(row.launch->key);
    out.mutable_launch()->set_job(row.launch->job.value());
    out.mutable_launch()->set_workers(row.launch->workers);
    out.mutable_launch()->set_left(row.launch->left);
  }
  for (const TakenSlots& taken : row.taken) {
    pb::TakenSlots* added = out.add_taken();
    added->set_job(taken.job.value());
    added->set_generation(taken.generation.value());
    added->set_slots(taken.slots);
    added->set_unkillable(taken.unkillable);
  }
  return out;
}

absl::StatusOr<NodeRow> Decode(const pb::NodeRow& row) {
  Checker check;
  NodeRow out;
  out.node = NodeId(row.node());
  out.name = row.name();
  out.name_explicit = row.name_explicit();
  out.incarnation = Incarnation(row.incarnation());
  out.boot = BootId(row.boot());
  out.address = row.address();
  out.dialled = row.dialled();
  out.slots = row.slots();
  out.gpu_slots = row.gpu_slots();
  out.launched = row.launched();
  out.version = check.Nested("version", FromProto(row.version()));
  out.lost = row.lost();
  out.lost_how = row.lost_how();
  if (row.has_launch()) {
    out.launch = NodeLaunch{row.launch().key(), JobId(row.launch().job()), row.launch().workers(),
                            row.launch().left()};
  }
  for (const pb::TakenSlots& taken : row.taken()) {
    out.taken.push_back(
        {JobId(taken.job()), Generation(taken.generation()), taken.slots(), taken.unkillable()});
  }
  return check.Finish(std::move(out));
}

// ---- job

pb::JobSpecRow Encode(const JobSpecRow& row) {
  pb::JobSpecRow out;
  out.set_job(row.job.value());
  out.set_sequence(row.sequence);
  *out.mutable_spec() = ToProto(row.spec);
  out.set_key(row.key);
  out.set_standalone(row.standalone);
  out.set_created_at_us(Us(row.created_at));
  return out;
}

absl::StatusOr<JobSpecRow> Decode(const pb::JobSpecRow& row) {
  Checker check;
  JobSpecRow out;
  out.job = JobId(row.job());
  out.sequence = row.sequence();
  out.spec = check.Nested("spec", FromProto(row.spec()));
  out.key = row.key();
  out.standalone = row.standalone();
  out.created_at = WallOf(row.created_at_us());
  return check.Finish(std::move(out));
}

pb::TimeAccount Encode(const TimeAccount& account) {
  pb::TimeAccount out;
  out.set_productive_ns(account.productive.count());
  out.set_checkpoint_ns(account.checkpoint.count());
  out.set_detect_ns(account.detect.count());
  out.set_regroup_ns(account.regroup.count());
  out.set_restore_ns(account.restore.count());
  out.set_recompute_ns(account.recompute.count());
  out.set_idle_ns(account.idle.count());
  return out;
}

// An earlier build may have summed up more than can be told.
Duration Told(std::int64_t nanoseconds) {
  return std::clamp(Duration(nanoseconds), -kMaxDuration, kMaxDuration);
}

TimeAccount DecodeAccount(const pb::TimeAccount& account) {
  return {Told(account.productive_ns()), Told(account.checkpoint_ns()),
          Told(account.detect_ns()),     Told(account.regroup_ns()),
          Told(account.restore_ns()),    Told(account.recompute_ns()),
          Told(account.idle_ns())};
}

pb::JobStateRow Encode(const JobStateRow& row) {
  pb::JobStateRow out;
  out.set_job(row.job.value());
  out.set_phase(static_cast<pb::JobPhase>(EnumNumber(row.phase, kJobPhases)));
  out.set_last_number(row.last_number.value());
  out.set_last_formed(row.last_formed.value());
  if (row.verdict) {
    out.mutable_verdict()->set_state(
        static_cast<pb::Verdict::State>(EnumNumber(row.verdict->state, kVerdictStates)));
    out.mutable_verdict()->set_exit_code(row.verdict->exit_code);
    if (row.verdict->failed)
      *out.mutable_verdict()->mutable_failed() = ToProto(*row.verdict->failed);
  }
  out.set_cancel_key(row.cancel.key);
  out.set_stop_now(row.cancel.now);
  out.set_restarts_charged(row.ends.charged);
  for (Duration charge : row.ends.charges) out.add_charges_ns(charge.count());
  out.set_regroups(row.regroups);
  out.set_own_failures(row.ends.own);
  out.set_free_ends(row.ends.free);
  out.set_preemptions(row.ends.preemptions);
  out.set_best_step(row.reached.step);
  out.set_growths(row.growths);
  for (const ExcludedNode& node : row.excluded) {
    pb::ExcludedNode* added = out.add_excluded();
    added->set_node(node.node.value());
    added->set_name(node.name);
    added->set_error_number(node.error_number);
    added->set_obstacle(static_cast<pb::ExecObstacle>(EnumNumber(node.obstacle, wire::kObstacles)));
  }
  *out.mutable_account() = Encode(row.account);
  if (row.started_at) out.set_started_at_us(Us(*row.started_at));
  if (row.ended_at) out.set_ended_at_us(Us(*row.ended_at));
  out.set_ran_for_ns(row.ran_for.count());
  out.set_held_node_us(row.held.held.count());
  out.set_lost_node_us(row.held.lost.count());
  out.set_samples(row.reached.samples);
  out.set_tokens(row.reached.tokens);
  return out;
}

absl::StatusOr<JobStateRow> Decode(const pb::JobStateRow& row) {
  Checker check;
  JobStateRow out;
  out.job = JobId(row.job());
  out.phase = check.Enum("phase", row.phase(), kJobPhases);
  out.last_number = Generation(row.last_number());
  out.last_formed = Generation(row.last_formed());
  if (row.has_verdict()) {
    Verdict verdict;
    verdict.state = check.Enum("verdict.state", row.verdict().state(), kVerdictStates);
    verdict.exit_code = row.verdict().exit_code();
    if (row.verdict().has_failed())
      verdict.failed = check.Nested("verdict.failed", FromProto(row.verdict().failed()));
    out.verdict = std::move(verdict);
  }
  out.cancel.key = row.cancel_key();
  out.cancel.now = row.stop_now();
  out.ends.charged = row.restarts_charged();
  for (std::int64_t charge : row.charges_ns()) out.ends.charges.push_back(Duration(charge));
  out.regroups = row.regroups();
  out.ends.own = row.own_failures();
  out.ends.free = row.free_ends();
  out.ends.preemptions = row.preemptions();
  out.reached.step = row.best_step();
  out.growths = row.growths();
  for (const pb::ExcludedNode& node : row.excluded()) {
    out.excluded.push_back({NodeId(node.node()), node.name(), node.error_number(),
                            check.Enum("obstacle", node.obstacle(), wire::kObstacles)});
  }
  out.account = DecodeAccount(row.account());
  if (row.has_started_at_us()) out.started_at = WallOf(row.started_at_us());
  if (row.has_ended_at_us()) out.ended_at = WallOf(row.ended_at_us());
  out.ran_for = Told(row.ran_for_ns());
  out.held = {std::clamp(NodeTime(row.held_node_us()), NodeTime{}, kMaxNodeTime),
              std::clamp(NodeTime(row.lost_node_us()), NodeTime{}, kMaxNodeTime)};
  out.reached.samples = row.samples();
  out.reached.tokens = row.tokens();
  return check.Finish(std::move(out));
}

// ---- generation

pb::GenerationMember Encode(const GenerationMember& member) {
  pb::GenerationMember out;
  out.set_node(member.node.value());
  out.set_name(member.name);
  out.set_address(member.address);
  out.set_workers(member.workers);
  if (member.witness) *out.mutable_witness() = ToProto(*member.witness);
  out.set_witness_verified(member.witness_verified);
  for (std::int64_t pid : member.pids) out.add_pids(pid);
  out.set_free_slots(member.free_slots);
  return out;
}

absl::StatusOr<GenerationMember> Decode(const pb::GenerationMember& member) {
  Checker check;
  GenerationMember out;
  out.node = NodeId(member.node());
  out.name = member.name();
  out.address = member.address();
  out.workers = member.workers();
  if (member.has_witness()) out.witness = check.Nested("witness", FromProto(member.witness()));
  out.witness_verified = member.witness_verified();
  out.pids.assign(member.pids().begin(), member.pids().end());
  out.free_slots = member.free_slots();
  return check.Finish(std::move(out));
}

pb::GenerationRow Encode(const GenerationRow& row) {
  pb::GenerationRow out;
  out.set_job(row.job.value());
  out.set_generation(row.generation.value());
  out.set_phase(static_cast<pb::GenerationPhase>(EnumNumber(row.phase, kGenerationPhases)));
  out.set_voided(row.voided);
  out.set_elective(row.elective);
  for (const GenerationMember& member : row.members) *out.add_members() = Encode(member);
  if (row.store) *out.mutable_store() = ToProto(*row.store);
  out.set_restart_count(row.restart_count);
  out.set_resume_step(row.resume_step);
  out.set_proposed_at_us(Us(row.proposed_at));
  if (row.formed_at) out.set_formed_at_us(Us(*row.formed_at));
  if (row.ended_at) out.set_ended_at_us(Us(*row.ended_at));
  if (row.ended) *out.mutable_ended() = ToProto(*row.ended);
  out.set_verdict_open(row.verdict_open);
  out.set_charged(row.charged);
  out.set_progressed(row.progressed);
  for (const RankCause& cause : row.consequences) *out.add_consequences() = ToProto(cause);
  *out.mutable_phases() = ToProto(row.phases);
  if (row.steps.first) out.set_first_step(*row.steps.first);
  if (row.steps.last) out.set_last_step(*row.steps.last);
  if (row.steps.restored) out.set_restored_step(*row.steps.restored);
  return out;
}

absl::StatusOr<GenerationRow> Decode(const pb::GenerationRow& row) {
  Checker check;
  GenerationRow out;
  out.job = JobId(row.job());
  out.generation = Generation(row.generation());
  out.phase = check.Enum("phase", row.phase(), kGenerationPhases);
  out.voided = row.voided();
  out.elective = row.elective();
  for (const pb::GenerationMember& member : row.members()) {
    out.members.push_back(check.Nested("members", Decode(member)));
  }
  if (row.has_store()) out.store = check.Nested("store", FromProto(row.store()));
  out.restart_count = row.restart_count();
  out.resume_step = row.resume_step();
  out.proposed_at = WallOf(row.proposed_at_us());
  if (row.has_formed_at_us()) out.formed_at = WallOf(row.formed_at_us());
  if (row.has_ended_at_us()) out.ended_at = WallOf(row.ended_at_us());
  if (row.has_ended()) out.ended = check.Nested("ended", FromProto(row.ended()));
  out.verdict_open = row.verdict_open();
  if (out.verdict_open && !out.ended) check.Fail("verdict_open: is set, and ended is not");
  out.charged = row.charged();
  out.progressed = row.progressed();
  for (const pb::RankCause& cause : row.consequences()) {
    out.consequences.push_back(check.Nested("consequences", FromProto(cause)));
  }
  out.phases = check.Nested("phases", FromProto(row.phases()));
  if (row.has_first_step()) out.steps.first = row.first_step();
  if (row.has_last_step()) out.steps.last = row.last_step();
  if (row.has_restored_step()) out.steps.restored = row.restored_step();
  return check.Finish(std::move(out));
}

// ---- done, commit, event

pb::DoneRow Encode(const DoneRow& row) {
  pb::DoneRow out;
  out.set_job(row.job.value());
  out.set_node(row.node.value());
  out.set_generation(row.generation.value());
  for (int rank : row.local_ranks) out.add_local_ranks(rank);
  return out;
}

absl::StatusOr<DoneRow> Decode(const pb::DoneRow& row) {
  DoneRow out{JobId(row.job()), NodeId(row.node()), Generation(row.generation()), {}};
  out.local_ranks.assign(row.local_ranks().begin(), row.local_ranks().end());
  return out;
}

pb::CommitRow Encode(const CommitRow& row) {
  pb::CommitRow out;
  out.set_job(row.job.value());
  out.set_generation(row.generation.value());
  out.set_attempt(row.attempt);
  out.set_step(row.step);
  out.set_manifest_hash(row.manifest_hash);
  out.set_path(row.path);
  out.set_for_notice(row.for_notice);
  out.set_at_us(Us(row.at));
  return out;
}

absl::StatusOr<CommitRow> Decode(const pb::CommitRow& row) {
  return CommitRow{JobId(row.job()), Generation(row.generation()), row.attempt(),
                   row.step(),       row.manifest_hash(),          row.path(),
                   row.for_notice(), WallOf(row.at_us())};
}

pb::JobEventRow Encode(const JobEventRow& row) {
  pb::JobEventRow out;
  out.set_job(row.job.value());
  *out.mutable_event() = ToProto(row.event);
  return out;
}

absl::StatusOr<JobEventRow> Decode(const pb::JobEventRow& row) {
  Checker check;
  JobEventRow out;
  out.job = JobId(row.job());
  out.event = check.Nested("event", FromProto(row.event()));
  return check.Finish(std::move(out));
}

// Equal values have equal bytes, maps too.
std::string Serialize(const google::protobuf::Message& message) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    message.SerializeToCodedStream(&coded);
  }
  return bytes;
}

template <class Message>
absl::StatusOr<Value> DecodeAs(const std::string& bytes) {
  Message message;
  if (!message.ParseFromString(bytes)) return absl::DataLossError("is not a whole message");
  auto decoded = Decode(message);
  if (!decoded.ok()) return decoded.status();
  return Value(*std::move(decoded));
}

// "spec" of job/J/spec and of job/J/spec/…; empty: not a row of a job.
std::string KindOf(const std::string& key) {
  if (!absl::StartsWith(key, "job/")) return "";
  const std::size_t at = key.find('/', 4);
  if (at == std::string::npos) return "";
  return key.substr(at + 1, key.find('/', at + 1) - at - 1);
}

bool IsEvent(const std::string& key) { return KindOf(key) == "event"; }

absl::StatusOr<Value> DecodeValue(const std::string& key, const std::string& bytes) {
  if (key == "meta") return DecodeAs<pb::MetaRow>(bytes);
  if (absl::StartsWith(key, "node/")) return DecodeAs<pb::NodeRow>(bytes);
  const std::string kind = KindOf(key);
  if (kind == "spec") return DecodeAs<pb::JobSpecRow>(bytes);
  if (kind == "state") return DecodeAs<pb::JobStateRow>(bytes);
  if (kind == "gen") return DecodeAs<pb::GenerationRow>(bytes);
  if (kind == "done") return DecodeAs<pb::DoneRow>(bytes);
  if (kind == "commit") return DecodeAs<pb::CommitRow>(bytes);
  if (kind == "event") return DecodeAs<pb::JobEventRow>(bytes);
  return absl::DataLossError("is of a kind this program does not know");
}

absl::Status Unreadable(const JournalRow& row, const absl::Status& why) {
  return UserError(
      absl::StatusCode::kDataLoss, "a row of the journal cannot be read",
      absl::StrCat("row ", row.key, " (", row.value->size(), " bytes) ", why.message()),
      "restore the coordinator's folder from a backup");
}

#ifdef NDEBUG
constexpr bool kLooksAtEveryRow = false;
#else
constexpr bool kLooksAtEveryRow = true;
#endif

// Ids and names have a grammar, numbers their limits: what is left are texts, and times that were
// told.
bool HoldsForeignText(const Value& value) {
  if (const auto* generation = std::get_if<GenerationRow>(&value))
    return generation->ended.has_value() || !generation->consequences.empty();
  return !std::holds_alternative<MetaRow>(value) && !std::holds_alternative<DoneRow>(value);
}

}  // namespace

JournalRow EncodeRow(const Row& row) {
  JournalRow out{row.key, std::nullopt};
  if (row.value)
    out.value = std::visit([](const auto& value) { return Serialize(Encode(value)); }, *row.value);
  return out;
}

absl::Status CheckReadable(const Row& row, const JournalRow& encoded) {
  if (!row.value || !encoded.value || (!kLooksAtEveryRow && !HoldsForeignText(*row.value)))
    return absl::OkStatus();
  const absl::StatusOr<Value> again = DecodeValue(encoded.key, *encoded.value);
  return again.ok() ? absl::OkStatus() : Unreadable(encoded, again.status());
}

absl::StatusOr<std::vector<Row>> DecodeRows(std::span<const JournalRow> rows,
                                            std::vector<std::string>* left_out) {
  std::vector<Row> out;
  out.reserve(rows.size());
  for (const JournalRow& row : rows) {
    if (!row.value) continue;
    absl::StatusOr<Value> value = DecodeValue(row.key, *row.value);
    if (value.ok()) {
      out.push_back({row.key, *std::move(value)});
    } else if (IsEvent(row.key)) {
      left_out->push_back(PartsOf(Unreadable(row, value.status())).because);
    } else {
      return Unreadable(row, value.status());
    }
  }
  return out;
}

bool HasEnded(const std::string& state) {
  pb::JobStateRow row;
  return row.ParseFromString(state) && row.phase() == pb::JOB_PHASE_ENDED;
}

MetaRow MetaOf(std::span<const Row> rows) {
  for (const Row& row : rows) {
    if (row.value && std::holds_alternative<MetaRow>(*row.value))
      return std::get<MetaRow>(*row.value);
  }
  return MetaRow{};
}

}  // namespace regroup::coordinator
