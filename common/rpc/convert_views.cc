#include <algorithm>
#include <limits>

#include "common/base/user_error.h"
#include "common/rpc/checker.h"
#include "common/rpc/convert.h"

namespace regroup {
namespace {

using wire::Checker;
using wire::EnumNumber;
using wire::Us;
using wire::WallOf;

constexpr int kMaxGenerationsShown = 1'000;
constexpr int kMaxEventsShown = 10'000;
constexpr int kMaxConsequences = 1'024;

constexpr std::pair<int, GenerationView::State> kStates[] = {
    {pb::GenerationView::STATE_PROPOSED, GenerationView::State::kProposed},
    {pb::GenerationView::STATE_FORMED, GenerationView::State::kFormed},
    {pb::GenerationView::STATE_RUNNING, GenerationView::State::kRunning},
    {pb::GenerationView::STATE_OVER, GenerationView::State::kOver},
    {pb::GenerationView::STATE_VOIDED, GenerationView::State::kVoided}};

pb::MemberView ToProto(const MemberView& value) {
  pb::MemberView out;
  out.set_node(value.node.value());
  out.set_name(value.name);
  out.set_address(value.address);
  out.set_group_rank(value.group_rank);
  for (int rank : value.ranks) out.add_ranks(rank);
  for (std::int64_t pid : value.pids) out.add_pids(pid);
  out.set_free_slots(value.free_slots);
  return out;
}

absl::StatusOr<MemberView> FromProto(const pb::MemberView& value) {
  Checker check;
  MemberView out;
  out.node = NodeId(check.Text("node", value.node(), kMaxIdBytes));
  out.name = check.Text("name", value.name(), kMaxTextBytes);
  out.address = check.Text("address", value.address(), kMaxTextBytes);
  out.group_rank = value.group_rank();
  if (check.Size("ranks", value.ranks_size(), kMaxRanks))
    out.ranks.assign(value.ranks().begin(), value.ranks().end());
  if (check.Size("pids", value.pids_size(), kMaxRanks))
    out.pids.assign(value.pids().begin(), value.pids().end());
  out.free_slots = value.free_slots();
  return check.Finish(std::move(out));
}

pb::TimeAccount ToProto(const TimeAccount& value) {
  pb::TimeAccount out;
  out.set_productive_ns(value.productive.count());
  out.set_checkpoint_ns(value.checkpoint.count());
  out.set_detect_ns(value.detect.count());
  out.set_regroup_ns(value.regroup.count());
  out.set_restore_ns(value.restore.count());
  out.set_recompute_ns(value.recompute.count());
  out.set_idle_ns(value.idle.count());
  return out;
}

absl::StatusOr<TimeAccount> FromProto(const pb::TimeAccount& value) {
  Checker check;
  TimeAccount out;
  out.productive = check.AnyDuration("productive", value.productive_ns());
  out.checkpoint = check.AnyDuration("checkpoint", value.checkpoint_ns());
  out.detect = check.AnyDuration("detect", value.detect_ns());
  out.regroup = check.AnyDuration("regroup", value.regroup_ns());
  out.restore = check.AnyDuration("restore", value.restore_ns());
  out.recompute = check.AnyDuration("recompute", value.recompute_ns());
  out.idle = check.AnyDuration("idle", value.idle_ns());
  return check.Finish(out);
}

pb::CostView ToProto(const CostView& value) {
  pb::CostView out;
  out.set_node_hours(value.node_hours);
  out.set_total(value.total);
  out.set_lost(value.lost);
  if (value.per_million_samples) out.set_per_million_samples(*value.per_million_samples);
  if (value.per_million_tokens) out.set_per_million_tokens(*value.per_million_tokens);
  return out;
}

absl::StatusOr<CostView> FromProto(const pb::CostView& value) {
  Checker check;
  CostView out;
  out.node_hours = check.Finite("node_hours", value.node_hours());
  out.total = check.Finite("total", value.total());
  out.lost = check.Finite("lost", value.lost());
  if (value.has_per_million_samples())
    out.per_million_samples = check.Finite("per_million_samples", value.per_million_samples());
  if (value.has_per_million_tokens())
    out.per_million_tokens = check.Finite("per_million_tokens", value.per_million_tokens());
  return check.Finish(out);
}

// The end of the year 2199.
constexpr std::int64_t kLastShownUs = 7'258'118'399'000'000;

absl::Status Unshowable(const std::string& what, const absl::Status& why) {
  return UserError(absl::StatusCode::kDataLoss, what + " cannot be shown whole",
                   std::string(why.message()), "the regroup of its coordinator's build");
}

}  // namespace

pb::GenerationView ToProto(const GenerationView& value) {
  pb::GenerationView out;
  out.set_generation(value.generation.value());
  out.set_state(static_cast<pb::GenerationView::State>(EnumNumber(value.state, kStates)));
  out.set_world(value.world);
  for (const MemberView& member : value.members) *out.add_members() = ToProto(member);
  if (value.store) *out.mutable_store() = ToProto(*value.store);
  if (value.formed_at) out.set_formed_at_us(Us(*value.formed_at));
  if (value.ended_at) out.set_ended_at_us(Us(*value.ended_at));
  if (value.ended) *out.mutable_ended() = ToProto(*value.ended);
  for (const RankCause& cause : value.consequences) *out.add_consequences() = ToProto(cause);
  out.set_charged(value.charged);
  *out.mutable_phases() = ToProto(value.phases);
  if (value.first_step) out.set_first_step(*value.first_step);
  if (value.last_step) out.set_last_step(*value.last_step);
  if (value.restored_step) out.set_restored_step(*value.restored_step);
  return out;
}

absl::StatusOr<GenerationView> FromProto(const pb::GenerationView& value) {
  Checker check;
  GenerationView out;
  out.generation = Generation(value.generation());
  out.state = check.Enum("state", value.state(), kStates);
  out.world = value.world();
  if (check.Size("members", value.members_size(), kMaxNodes)) {
    for (const pb::MemberView& member : value.members()) {
      out.members.push_back(check.Nested("members", FromProto(member)));
    }
  }
  if (value.has_store()) out.store = check.Nested("store", FromProto(value.store()));
  if (value.has_formed_at_us()) out.formed_at = WallOf(value.formed_at_us());
  if (value.has_ended_at_us()) out.ended_at = WallOf(value.ended_at_us());
  if (value.has_ended()) out.ended = check.Nested("ended", FromProto(value.ended()));
  if (check.Size("consequences", value.consequences_size(), kMaxConsequences)) {
    for (const pb::RankCause& cause : value.consequences()) {
      out.consequences.push_back(check.Nested("consequences", FromProto(cause)));
    }
  }
  out.charged = value.charged();
  out.phases = check.Nested("phases", FromProto(value.phases()));
  if (value.has_first_step()) out.first_step = value.first_step();
  if (value.has_last_step()) out.last_step = value.last_step();
  if (value.has_restored_step()) out.restored_step = value.restored_step();
  return check.Finish(std::move(out));
}

pb::LeftOutView ToProto(const LeftOutView& value) {
  pb::LeftOutView out;
  out.set_node(value.node.value());
  out.set_name(value.name);
  out.set_why(value.why);
  out.set_left_ns(value.left.count());
  return out;
}

absl::StatusOr<LeftOutView> FromProto(const pb::LeftOutView& value) {
  Checker check;
  LeftOutView out;
  out.node = NodeId(check.Text("node", value.node(), kMaxIdBytes));
  out.name = check.Text("name", value.name(), kMaxTextBytes);
  out.why = check.Text("why", value.why(), kMaxTextBytes);
  out.left = check.AnyDuration("left", value.left_ns());
  return check.Finish(std::move(out));
}

pb::JobView ToProto(const JobView& value) {
  pb::JobView out;
  out.set_id(value.id.value());
  *out.mutable_spec() = ToProto(value.spec);
  out.set_state(value.state);
  out.set_nodes(value.nodes);
  out.set_world(value.world);
  out.set_generation(value.generation.value());
  if (value.step) out.set_step(*value.step);
  if (value.loss && std::isfinite(*value.loss)) out.set_loss(*value.loss);
  if (value.tokens_per_second && std::isfinite(*value.tokens_per_second)) {
    out.set_tokens_per_second(*value.tokens_per_second);
  }
  out.set_restarts_charged(value.restarts_charged);
  out.set_regroups(value.regroups);
  out.set_preemptions(value.preemptions);
  if (value.committed_step) out.set_committed_step(*value.committed_step);
  out.set_commit_path(value.commit_path);
  out.set_created_at_us(Us(value.created_at));
  out.set_age_ns(value.age.count());
  if (value.started_at) out.set_started_at_us(Us(*value.started_at));
  if (value.ended_at) out.set_ended_at_us(Us(*value.ended_at));
  if (value.ran_for) out.set_ran_for_ns(value.ran_for->count());
  if (value.why) *out.mutable_why() = ToProto(*value.why);
  if (value.failed) *out.mutable_failed() = ToProto(*value.failed);
  out.set_exit_code(value.exit_code);
  for (const GenerationView& generation : value.generations)
    *out.add_generations() = ToProto(generation);
  for (const JobEvent& event : value.events) *out.add_events() = ToProto(event);
  for (const LeftOutView& left_out : value.left_out) *out.add_left_out() = ToProto(left_out);
  *out.mutable_time() = ToProto(value.time);
  if (value.cost) *out.mutable_cost() = ToProto(*value.cost);
  if (value.last_failure) *out.mutable_last_failure() = ToProto(*value.last_failure);
  return out;
}

absl::StatusOr<JobView> FromProto(const pb::JobView& value) {
  Checker check;
  JobView out;
  out.id = JobId(check.JobId("id", value.id()));
  if (check.Present("spec", value.has_spec()))
    out.spec = check.Nested("spec", FromProto(value.spec()));
  out.state = check.Text("state", value.state(), kMaxIdBytes);
  out.nodes = value.nodes();
  out.world = value.world();
  out.generation = Generation(value.generation());
  if (value.has_step()) out.step = value.step();
  if (value.has_loss()) out.loss = check.Finite("loss", value.loss());
  if (value.has_tokens_per_second()) {
    out.tokens_per_second = check.Finite("tokens_per_second", value.tokens_per_second());
  }
  out.restarts_charged = value.restarts_charged();
  out.regroups = value.regroups();
  out.preemptions = value.preemptions();
  if (value.has_committed_step()) out.committed_step = value.committed_step();
  out.commit_path = check.Text("commit_path", value.commit_path(), kMaxTextBytes);
  out.created_at = WallOf(value.created_at_us());
  out.age = check.AnyDuration("age", value.age_ns());
  if (value.has_started_at_us()) out.started_at = WallOf(value.started_at_us());
  if (value.has_ended_at_us()) out.ended_at = WallOf(value.ended_at_us());
  if (value.has_ran_for_ns()) out.ran_for = check.AnyDuration("ran_for", value.ran_for_ns());
  if (value.has_why()) out.why = check.Nested("why", FromProto(value.why()));
  if (value.has_failed()) out.failed = check.Nested("failed", FromProto(value.failed()));
  out.exit_code = check.Number<int>("exit_code", value.exit_code(), 0, 255);
  if (check.Size("generations", value.generations_size(), kMaxGenerationsShown)) {
    for (const pb::GenerationView& generation : value.generations()) {
      out.generations.push_back(check.Nested("generations", FromProto(generation)));
    }
  }
  if (check.Size("events", value.events_size(), kMaxEventsShown)) {
    for (const pb::JobEvent& event : value.events())
      out.events.push_back(check.Nested("events", FromProto(event)));
  }
  if (check.Size("left_out", value.left_out_size(), kMaxLeftOutShown)) {
    for (const pb::LeftOutView& left_out : value.left_out())
      out.left_out.push_back(check.Nested("left_out", FromProto(left_out)));
  }
  out.time = check.Nested("time", FromProto(value.time()));
  if (value.has_cost()) out.cost = check.Nested("cost", FromProto(value.cost()));
  if (value.has_last_failure())
    out.last_failure = check.Nested("last_failure", FromProto(value.last_failure()));
  return check.Finish(std::move(out));
}

pb::MemoryUse ToProto(const MemoryUse& value) {
  pb::MemoryUse out;
  out.set_resident_bytes(value.resident_bytes);
  out.set_limit_bytes(value.limit_bytes);
  out.set_refused_connections(value.refused_connections);
  return out;
}

MemoryUse FromProto(const pb::MemoryUse& value) {
  return {value.resident_bytes(), value.limit_bytes(), value.refused_connections()};
}

pb::NodeView ToProto(const NodeView& value) {
  pb::NodeView out;
  out.set_id(value.id.value());
  out.set_name(value.name);
  out.set_address(value.address);
  out.set_state(value.state);
  out.set_slots(value.slots);
  out.set_slots_used(value.slots_used);
  for (const JobId& job : value.jobs) out.add_jobs(job.value());
  out.set_seen_ns(value.seen.count());
  out.set_note(value.note);
  out.set_launched(value.launched);
  out.set_coordinator_host(value.coordinator_host);
  *out.mutable_version() = ToProto(value.version);
  out.set_warm_bytes(value.warm_bytes);
  for (const Gpu& gpu : value.gpus) *out.add_gpus() = ToProto(gpu);
  out.set_gpu_slots(value.gpu_slots);
  return out;
}

absl::StatusOr<NodeView> FromProto(const pb::NodeView& value) {
  Checker check;
  NodeView out;
  out.id = NodeId(check.Text("id", value.id(), kMaxIdBytes));
  out.name = check.Text("name", value.name(), kMaxTextBytes);
  out.address = check.Text("address", value.address(), kMaxTextBytes);
  out.state = check.Text("state", value.state(), kMaxIdBytes);
  out.slots = value.slots();
  out.slots_used = value.slots_used();
  if (check.Size("jobs", value.jobs_size(), kMaxGroupsPerNode)) {
    for (const std::string& job : value.jobs()) out.jobs.push_back(JobId(check.JobId("jobs", job)));
  }
  out.seen = check.AnyDuration("seen", value.seen_ns());
  out.note = check.Text("note", value.note(), kMaxTextBytes);
  out.launched = value.launched();
  out.coordinator_host = value.coordinator_host();
  out.warm_bytes = value.warm_bytes();
  out.gpus = check.Nested("gpus", GpusFromProto(value.gpus()));
  out.gpu_slots = value.gpu_slots();
  out.version = check.Nested("version", FromProto(value.version()));
  return check.Finish(std::move(out));
}

JobView ShowableJob(const pb::JobView& value, absl::Status* problem) {
  const std::string id = IsJobId(value.id()) ? value.id() : "?";
  absl::StatusOr<JobView> whole = FromProto(value);
  *problem = whole.ok() ? absl::OkStatus() : Unshowable("job " + id, whole.status());
  if (whole.ok()) return *std::move(whole);
  // Most of what a view tells lies in these.
  pb::JobView rest = value;
  rest.clear_time();
  rest.clear_cost();
  rest.clear_why();
  rest.clear_generations();
  rest.clear_events();
  absl::StatusOr<JobView> shown = FromProto(rest);
  if (shown.ok()) return *std::move(shown);
  JobView damaged;
  damaged.id = JobId(id);
  damaged.state = kDamaged;
  damaged.created_at = WallOf(std::clamp<std::int64_t>(value.created_at_us(), 0, kLastShownUs));
  damaged.exit_code = std::clamp(value.exit_code(), 0, 255);
  return damaged;
}

NodeView ShowableNode(const pb::NodeView& value, absl::Status* problem) {
  absl::StatusOr<NodeView> whole = FromProto(value);
  const std::string id = IsToken(value.id()) ? value.id() : "?";
  *problem = whole.ok() ? absl::OkStatus() : Unshowable("node " + id, whole.status());
  if (whole.ok()) return *std::move(whole);
  NodeView damaged;
  damaged.id = NodeId(id);
  damaged.name = IsNodeName(value.name()) ? value.name() : id;
  damaged.state = kDamaged;
  return damaged;
}

}  // namespace regroup
