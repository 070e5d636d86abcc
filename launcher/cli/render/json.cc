#include "launcher/cli/render/json.h"

#include <nlohmann/json.hpp>

#include "common/config/names.h"
#include "common/config/values.h"
#include "common/report/format.h"
#include "common/report/reasons.h"
#include "launcher/cli/render/explain.h"
#include "launcher/cli/render/lists.h"

namespace regroup::cli {
namespace {

template <class Reason>
Json ReasonJson(const Reason& reason, const ReasonContext& context) {
  ReasonText text = Explain(reason, context);
  return {
      {"kind", text.kind}, {"brief", text.brief}, {"sentence", text.sentence}, {"next", text.next}};
}

Json ExitJson(const RankCause& cause) {
  Json out = {{"node", cause.node},
              {"rank", cause.rank},
              {"local_rank", cause.local_rank},
              {"pid", cause.exit.pid}};
  const char* kind = cause.exit.kind == ExitKind::kExited     ? "exited"
                     : cause.exit.kind == ExitKind::kSignaled ? "signaled"
                                                              : "exec_failed";
  out["kind"] = kind;
  out["code"] = cause.exit.code;
  out["by_regroup"] = cause.exit.after_stop || cause.exit.given_up;
  out["oom"] = cause.exit.oom == OomEvidence::kNone      ? "none"
               : cause.exit.oom == OomEvidence::kCounted ? "counted"
                                                         : "probable";
  if (cause.at != WallTime{}) out["at"] = Rfc3339(cause.at);
  if (!cause.exit.error.empty()) out["stderr"] = cause.exit.error;
  if (cause.exit.evidence == ErrorEvidence::kErrorFile) out["evidence"] = "error_file";
  if (cause.exit.evidence == ErrorEvidence::kCommunicator) out["evidence"] = "communicator";
  return out;
}

Json PhasesJson(const RestartPhases& p) {
  Json out = {{"down_s", Seconds(p.down)}};
  const std::pair<const char*, const std::optional<Duration>*> phases[] = {
      {"detect_s", &p.detect},   {"decide_s", &p.decide},        {"stop_s", &p.stop},
      {"form_s", &p.form},       {"spawn_s", &p.spawn},          {"init_s", &p.init},
      {"restore_s", &p.restore}, {"first_step_s", &p.first_step}};
  for (const auto& [name, value] : phases) {
    if (*value) out[name] = Seconds(**value);
  }
  return out;
}

const char* StateName(GenerationView::State state) {
  switch (state) {
    case GenerationView::State::kProposed: return "proposed";
    case GenerationView::State::kFormed: return "formed";
    case GenerationView::State::kRunning: return "running";
    case GenerationView::State::kOver: return "over";
    case GenerationView::State::kVoided: return "voided";
  }
  return "";
}

Json GenerationJson(const GenerationView& g, ReasonContext context) {
  context.generation = g.generation;
  Json out = {
      {"generation", g.generation.value()}, {"state", StateName(g.state)}, {"world", g.world}};
  out["members"] = Json::array();
  for (const MemberView& m : g.members) {
    out["members"].push_back({{"node", m.name},
                              {"id", m.node.value()},
                              {"address", m.address},
                              {"group_rank", m.group_rank},
                              {"ranks", m.ranks},
                              {"pids", m.pids}});
    if (m.free_slots > 0) out["members"].back()["free_slots_when_chosen"] = m.free_slots;
  }
  if (g.store) out["store"] = FormatEndpoint(g.store->host, g.store->port);
  if (g.formed_at) out["formed_at"] = Rfc3339(*g.formed_at);
  if (g.ended_at) out["ended_at"] = Rfc3339(*g.ended_at);
  if (g.ended) {
    out["ended"] = ReasonJson(*g.ended, context);
    if (const auto* failed = std::get_if<WorkerFailed>(&*g.ended))
      out["ended"]["cause"] = ExitJson(failed->cause);
    if (const auto* exec = std::get_if<ExecFailed>(&*g.ended))
      out["ended"]["cause"] = ExitJson(exec->cause);
  }
  out["charged"] = g.charged;
  for (const RankCause& other : g.consequences) out["consequences"].push_back(ExitJson(other));
  if (g.phases.down > Duration::zero()) out["restart"] = PhasesJson(g.phases);
  if (g.first_step) out["first_step"] = *g.first_step;
  if (g.last_step) out["last_step"] = *g.last_step;
  if (g.restored_step) out["restored_step"] = *g.restored_step;
  return out;
}

Json LeftOutJson(const LeftOutView& out) {
  return {{"node", out.name},
          {"id", out.node.value()},
          {"why", out.why},
          {"asked_again_in_s", Seconds(out.left)}};
}

Json TimeJson(const TimeAccount& t) {
  return {{"productive_s", Seconds(t.productive)},
          {"checkpoint_s", Seconds(t.checkpoint)},
          {"detect_s", Seconds(t.detect)},
          {"regroup_s", Seconds(t.regroup)},
          {"restore_s", Seconds(t.restore)},
          {"recompute_s", Seconds(t.recompute)},
          {"idle_s", Seconds(t.idle)}};
}

Json CostJson(const CostView& cost, double price) {
  Json out = {{"price_per_node_hour", price},
              {"node_hours", cost.node_hours},
              {"total", cost.total},
              {"lost_to_failures", cost.lost}};
  if (cost.per_million_tokens) out["per_million_tokens"] = *cost.per_million_tokens;
  if (cost.per_million_samples) out["per_million_samples"] = *cost.per_million_samples;
  return out;
}

struct BodyJson {
  const ReasonContext& context;

  Json operator()(const NodeJoined& e) const {
    return {{"type", "node_joined"},
            {"node", e.node},
            {"have", e.have},
            {"min", e.min},
            {"max", e.max}};
  }
  Json operator()(const NodeLeft& e) const {
    return {{"type", "node_left"}, {"node", e.node}, {"why", e.why}, {"stays", e.stays}};
  }
  Json operator()(const GenerationFormed& e) const {
    return {{"type", "generation_formed"},
            {"generation", e.generation.value()},
            {"nodes", e.nodes},
            {"world", e.world},
            {"took_s", Seconds(e.took)},
            {"members", e.members}};
  }
  Json operator()(const GenerationRunning& e) const {
    return {{"type", "generation_running"},
            {"generation", e.generation.value()},
            {"kept", e.kept},
            {"restart", PhasesJson(e.phases)}};
  }
  Json operator()(const GenerationEnded& e) const {
    ReasonContext own = context;
    own.generation = e.generation;
    return {{"type", "generation_ended"},
            {"generation", e.generation.value()},
            {"reason", ReasonJson(e.reason, own)},
            {"charged", e.charged},
            {"restarts", e.restarts},
            {"max_restarts", e.max_restarts}};
  }
  Json operator()(const CommitAccepted& e) const {
    return {{"type", "commit_accepted"}, {"generation", e.generation.value()}, {"step", e.step}};
  }
  Json operator()(const NodeWillLeave& e) const {
    return {{"type", "node_will_leave"},
            {"node", e.node},
            {"signal", e.notice.signal},
            {"left_s", Seconds(e.notice.left)}};
  }
  Json operator()(const Waits& e) const {
    return {{"type", "waits"}, {"reason", ReasonJson(e.reason, context)}};
  }
  Json operator()(const JobEnded& e) const {
    return {{"type", "job_ended"}, {"exit_code", e.exit_code}, {"state", e.state}};
  }
};

}  // namespace

Json EventJson(const JobEvent& event, const JobView& job) {
  ReasonContext context{job.id, job.generation, job.spec.origin};
  Json out = {{"number", event.number}, {"at", Rfc3339(event.at)}};
  out.update(std::visit(BodyJson{context}, event.body));
  return out;
}

Json JobJson(const JobView& job, bool detail) {
  ReasonContext context{job.id, job.generation, job.spec.origin};
  Json out = {{"job", job.id.value()},
              {"name", job.spec.name},
              {"state", job.state},
              {"launched", job.spec.origin == JobOrigin::kLaunched},
              {"nodes", job.nodes},
              {"min_nodes", job.spec.min_nodes},
              {"max_nodes", job.spec.max_nodes},
              {"world", job.world},
              {"generation", job.generation.value()},
              {"restarts", job.restarts_charged},
              {"max_restarts", job.spec.max_restarts},
              {"regroups", job.regroups},
              {"preemptions", job.preemptions},
              {"created_at", Rfc3339(job.created_at)},
              {"age_s", Seconds(job.age)}};
  if (job.spec.max_preemptions) out["max_preemptions"] = *job.spec.max_preemptions;
  if (job.spec.warm) out["warm"] = *job.spec.warm;
  if (job.spec.keeps_ranks()) out["in_place"] = true;
  if (job.step) out["step"] = *job.step;
  if (job.loss) out["loss"] = *job.loss;
  if (job.tokens_per_second) out["tokens_per_second"] = *job.tokens_per_second;
  if (job.committed_step) out["committed_step"] = *job.committed_step;
  if (!job.commit_path.empty()) out["commit_path"] = job.commit_path;
  if (job.started_at) out["started_at"] = Rfc3339(*job.started_at);
  if (job.ended_at) out["ended_at"] = Rfc3339(*job.ended_at);
  if (job.ran_for) out["ran_for_s"] = Seconds(*job.ran_for);
  if (job.why) out["why"] = ReasonJson(*job.why, context);
  if (job.failed) out["failed"] = ReasonJson(*job.failed, context);
  if (job.last_failure) out["last_failure"] = ExitJson(*job.last_failure);
  if (job.ran_for) out["exit_code"] = job.exit_code;
  if (std::optional<double> goodput = Goodput(job.time)) out["goodput"] = *goodput;
  out["time"] = TimeJson(job.time);
  if (job.cost) out["cost"] = CostJson(*job.cost, job.spec.price_per_node_hour.value_or(0));
  if (!detail) return out;
  out["command"] = job.spec.command;
  out["scale_up"] = NameOf(job.spec.scale_up);
  out["generations"] = Json::array();
  for (const GenerationView& g : job.generations)
    out["generations"].push_back(GenerationJson(g, context));
  out["events"] = Json::array();
  for (const JobEvent& event : job.events) out["events"].push_back(EventJson(event, job));
  for (const LeftOutView& left_out : job.left_out) out["left_out"].push_back(LeftOutJson(left_out));
  return out;
}

Json GpuJson(const Gpu& gpu) {
  Json out = {{"gpu", gpu.id},
              {"uuid", gpu.uuid},
              {"name", gpu.name},
              {"memory_bytes", gpu.memory_bytes},
              {"used_bytes", gpu.used_bytes},
              {"xids", gpu.xids}};
  if (gpu.celsius) out["celsius"] = *gpu.celsius;
  if (gpu.ecc_errors) out["ecc_errors"] = *gpu.ecc_errors;
  if (gpu.xids > 0) out["last_xid"] = gpu.last_xid;
  if (!gpu.trouble.empty()) out["trouble"] = gpu.trouble;
  return out;
}

Json NodeJson(const NodeView& node) {
  Json out = {{"node", node.name},           {"id", node.id.value()},
              {"state", node.state},         {"address", node.address},
              {"slots", node.slots},         {"slots_used", node.slots_used},
              {"gpu_slots", node.gpu_slots}, {"seen_s", Seconds(node.seen)}};
  out["jobs"] = Json::array();
  for (const JobId& job : node.jobs) out["jobs"].push_back(job.value());
  if (!node.note.empty()) out["note"] = node.note;
  out["launched"] = node.launched;
  out["coordinator_host"] = node.coordinator_host;
  out["warm_bytes"] = node.warm_bytes;
  out["gpus"] = Json::array();
  for (const Gpu& gpu : node.gpus) out["gpus"].push_back(GpuJson(gpu));
  out["build"] = node.version.build;
  return out;
}

std::string JobsDocument(const std::vector<JobView>& jobs) {
  Json out = {{"schema", "regroup.jobs/1"}, {"jobs", Json::array()}};
  for (const JobView& job : jobs) out["jobs"].push_back(JobJson(job, false));
  return Dump(out);
}

std::string NodesDocument(const std::vector<NodeView>& nodes,
                          const std::vector<CoordinatorMemory>& coordinators) {
  Json out = {{"schema", "regroup.nodes/1"}, {"nodes", Json::array()}};
  for (const NodeView& node : OncePerName(nodes)) out["nodes"].push_back(NodeJson(node));
  out["coordinators"] = Json::array();
  for (const auto& [coordinator, use] : coordinators) {
    out["coordinators"].push_back({{"coordinator", coordinator},
                                   {"memory_bytes", use.resident_bytes},
                                   {"memory_limit_bytes", use.limit_bytes},
                                   {"refused_connections", use.refused_connections}});
  }
  return Dump(out);
}

std::string ExplainDocument(const JobView& job, const std::vector<std::string>& output) {
  Json out = {{"schema", "regroup.explain/1"}};
  out.update(JobJson(job, true));
  if (!output.empty()) out["output_not_shown"] = output;
  return Dump(out);
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace regroup::cli
