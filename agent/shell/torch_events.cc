#include "agent/shell/torch_events.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/shell/exit_error.h"
#include "common/report/failure_report.h"

namespace regroup::agent {
namespace {

using nlohmann::ordered_json;

// As Python's json.dumps has it: a space behind every comma and colon.
std::string Dumps(const ordered_json& value) {
  const bool is_object = value.is_object();
  if (!is_object && !value.is_array())
    return value.dump(-1, ' ', /*ensure_ascii=*/true, ordered_json::error_handler_t::replace);
  std::string text = is_object ? "{" : "[";
  for (auto at = value.begin(); at != value.end(); ++at) {
    if (at != value.begin()) text += ", ";
    if (is_object) absl::StrAppend(&text, Dumps(at.key()), ": ");
    text += Dumps(*at);
  }
  return text + (is_object ? "}" : "]");
}

const RankCause* FailureOf(const GenerationView& generation, int rank) {
  const RankCause* cause = CauseOf(&generation);
  if (cause != nullptr && cause->rank == rank) return cause;
  const auto other = std::find_if(generation.consequences.begin(), generation.consequences.end(),
                                  [rank](const RankCause& each) { return each.rank == rank; });
  const bool own = other != generation.consequences.end() && !other->exit.after_stop;
  return own ? &*other : nullptr;
}

int ExitCode(const RankCause& cause) {
  return cause.exit.kind == ExitKind::kSignaled ? -cause.exit.code : cause.exit.code;
}

}  // namespace

TorchEvents::TorchEvents(const LaunchConfig& launch, std::string host)
    : run_id_(launch.worker.run_id),
      role_(launch.worker.role),
      host_(std::move(host)),
      backend_(launch.output.events),
      program_(launch.argv.empty() ? "" : launch.argv[0]) {
  program_ = program_.substr(program_.find_last_of('/') + 1);
}

void TorchEvents::JobKnown(const JobId& job) {
  if (run_id_.empty()) run_id_ = job.value();
}

std::string TorchEvents::On(const JobEventBody& event, const std::string& node, Duration age) {
  if (const auto* ended = std::get_if<GenerationEnded>(&event)) restarts_ = ended->restarts;
  const auto* formed = std::get_if<GenerationFormed>(&event);
  if (formed == nullptr) return "";
  const auto mine = std::find(formed->members.begin(), formed->members.end(), node);
  if (mine == formed->members.end()) return "";
  const std::string text =
      absl::StrCat(Line("RENDEZVOUS", nullptr, formed->took.count() / 1e6, age),
                   Line("ASSIGN_WORKER_RANKS", nullptr, 0.0, age));
  group_rank_ = static_cast<int>(mine - formed->members.begin());
  nodes_ = formed->nodes;
  world_ = formed->world;
  return text;
}

std::string TorchEvents::Started(int rank, int local_rank, pid_t pid, Duration age) const {
  const Worker worker{rank, local_rank, pid};
  return Line("START", &worker, std::nullopt, age);
}

std::string TorchEvents::Ended(const JobView& job, const std::string& node, Duration age) const {
  const bool succeeded = job.state == "succeeded";
  std::string text;
  if (!job.generations.empty()) {
    const GenerationView& last = job.generations.back();
    for (const MemberView& member : last.members) {
      if (member.name != node) continue;
      for (std::size_t i = 0; i < member.ranks.size(); ++i) {
        Worker worker{member.ranks[i], static_cast<int>(i),
                      i < member.pids.size() ? member.pids[i] : 0};
        worker.failed = succeeded ? nullptr : FailureOf(last, worker.rank);
        const char* state = succeeded ? "SUCCEEDED" : worker.failed ? "FAILED" : "TERMINATED";
        text += Line(state, &worker, std::nullopt, age);
      }
    }
  }
  return text + Line(succeeded ? "SUCCEEDED" : "FAILED", nullptr, std::nullopt, age);
}

std::string TorchEvents::Line(std::string_view state, const Worker* worker,
                              std::optional<double> took_ms, Duration age) const {
  const std::string name(state);
  const bool in_group = group_rank_ >= 0;
  ordered_json more = {{"group_world_size", nullptr}, {"entry_point", program_}};
  if (in_group) more["group_world_size"] = nodes_;
  ordered_json metadata = {{"run_id", run_id_},
                           {"global_rank", nullptr},
                           {"group_rank", nullptr},
                           {"worker_id", nullptr},
                           {"role", role_},
                           {"hostname", host_},
                           {"state", name},
                           {"total_run_time", age / std::chrono::seconds(1)},
                           {"rdzv_backend", backend_},
                           {"raw_error", nullptr}};
  if (in_group) metadata["group_rank"] = group_rank_;
  if (worker != nullptr) {
    more["local_rank"] = ordered_json::array({worker->local_rank});
    more["role_rank"] = ordered_json::array({worker->rank});
    more["role_world_size"] = ordered_json::array({world_});
    more["exit_code"] = ordered_json::array({nullptr});
    more["worker_pid"] = ordered_json::array({nullptr});
    metadata["global_rank"] = worker->rank;
    metadata["worker_id"] = absl::StrCat(worker->pid);
  }
  if (worker != nullptr && worker->failed != nullptr) {
    more["exit_code"] = ordered_json::array({ExitCode(*worker->failed)});
    more["worker_pid"] = ordered_json::array({worker->pid});
    metadata["raw_error"] = ErrorFileOf(*worker->failed);
  }
  metadata["metadata"] = Dumps(more);
  metadata["agent_restarts"] = restarts_;
  metadata["duration_ms"] = nullptr;
  if (took_ms) metadata["duration_ms"] = *took_ms;
  const ordered_json event = {{"name", absl::StrCat("torchelastic.worker.status.", name)},
                              {"source", worker != nullptr ? "WORKER" : "AGENT"},
                              {"timestamp", 0},
                              {"metadata", metadata}};
  return absl::StrCat(Dumps(event), "\n");
}

}  // namespace regroup::agent
