#include "launcher/cli/render/lists.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>

#include "common/config/text.h"
#include "common/config/values.h"
#include "common/report/format.h"
#include "common/report/reasons.h"
#include "launcher/cli/render/gpus.h"
#include "launcher/cli/render/table.h"
#include "launcher/coordinator/core/ranks.h"

namespace regroup::cli {
namespace {

constexpr auto& kNone = Table::kNothing;

std::string LossText(const std::optional<double>& loss) {
  if (!loss) return kNone;
  char text[48];
  std::snprintf(text, sizeof text, "%.3f", *loss);
  return text;
}

std::string JobsOf(const NodeView& node) {
  std::vector<std::string> jobs;
  for (const JobId& job : node.jobs) jobs.push_back(job.value());
  return jobs.empty() ? kNone : JoinWords(jobs, ",");
}

std::string NoteOf(const NodeView& node) {
  std::vector<std::string> notes;
  if (node.coordinator_host) notes.push_back("coordinator");
  if (!node.note.empty()) notes.push_back(node.note);
  if (!node.gpus.empty()) notes.push_back(GpuSummary(node.gpus));
  if (node.warm_bytes > 0) notes.push_back(Cat("warm ", FormatBytes(node.warm_bytes)));
  return JoinWords(notes);
}

bool IsGone(const NodeView& node) { return node.state == "lost" || node.state == "left"; }

// "11-22 14:03Z"
std::string StartText(const JobView& job) {
  if (!job.started_at) return kNone;
  std::string text = Rfc3339(*job.started_at).substr(5, 11) + "Z";
  std::replace(text.begin(), text.end(), 'T', ' ');
  return text;
}

std::string TookText(const JobView& job) {
  if (!job.started_at || !job.ended_at) return kNone;
  return AgeText(std::max<Duration>(*job.ended_at - *job.started_at, Duration{}));
}

}  // namespace

std::string WhyOf(const JobView& job) {
  ReasonContext context{job.id, job.generation, job.spec.origin};
  std::string why;
  if (job.failed) {
    why = Explain(*job.failed, context).brief;
  } else if (job.why) {
    why = Explain(*job.why, context).brief;
  }
  const bool by_failure = job.failed ? std::holds_alternative<BudgetSpent>(*job.failed) ||
                                           std::holds_alternative<CrashLoop>(*job.failed) ||
                                           std::holds_alternative<ExitCodeSaysFail>(*job.failed)
                                     : job.why && std::holds_alternative<BackingOff>(*job.why);
  if (!by_failure || !job.last_failure) return why;
  const RankCause& cause = *job.last_failure;
  // The budget stands in a column of its own.
  if (job.failed) {
    return Cat(ExitText(cause.exit), SaidAtExit(cause.exit), " (", cause.node,
               cause.rank < 0 ? "" : Cat(" rank ", cause.rank), ")");
  }
  return Cat(why, " · ", Explain(EndReason(WorkerFailed{*job.last_failure}), context).brief);
}

std::vector<NodeView> OncePerName(std::vector<NodeView> nodes) {
  std::stable_sort(nodes.begin(), nodes.end(), [](const NodeView& a, const NodeView& b) {
    if (a.name != b.name) return coordinator::NaturalLess(a.name, b.name);
    return std::pair(IsGone(a), a.seen) < std::pair(IsGone(b), b.seen);
  });
  // Two of one name may well live; of those that are gone the last is enough, and none where one is
  // back.
  std::vector<NodeView> once;
  for (NodeView& node : nodes) {
    const bool told = IsGone(node) && !once.empty() && once.back().name == node.name;
    if (!told) once.push_back(std::move(node));
  }
  return once;
}

bool IsOver(const std::string& state) {
  static const std::set<std::string> over = {"succeeded", "failed", "cancelled", "preempted"};
  return over.count(state) > 0;
}
bool IsOver(const JobView& job) { return IsOver(job.state); }

// A job that is over has no age: when it started and what it took are told.
std::string RenderJobs(const std::vector<JobView>& jobs, const TextStyle& style) {
  const auto over = [](const JobView& job) { return IsOver(job); };
  const bool any_over = std::any_of(jobs.begin(), jobs.end(), over);
  const bool all_over = any_over && std::all_of(jobs.begin(), jobs.end(), over);
  std::vector<Table::Column> columns = {{.title = "JOB", .id = true},
                                        {.title = "STATE"},
                                        {.title = "NODES", .spare = 3},
                                        {.title = "GEN", .right = true, .spare = 1},
                                        {.title = "STEP"},
                                        {.title = "LOSS"},
                                        {.title = "RESTARTS", .spare = 2}};
  if (!all_over) columns.push_back({.title = "AGE", .width = 5});
  if (any_over) columns.push_back({.title = "STARTED", .spare = 4});
  if (any_over) columns.push_back({.title = "TOOK", .width = 5});
  columns.push_back({.title = "WHY"});
  Table table(std::move(columns));
  for (const JobView& job : jobs) {
    bool started = job.generation.value() > 0;
    std::string bounds = Cat("(", FormatNnodes(job.spec.min_nodes, job.spec.max_nodes), ")");
    std::vector<std::string> cells = {
        job.id.value(),
        job.state,
        Cat(job.nodes > 0 ? std::to_string(job.nodes) : std::string(kNone), " ", bounds),
        started ? std::to_string(job.generation.value()) : kNone,
        job.step ? std::to_string(*job.step) : kNone,
        LossText(job.loss),
        started ? Cat(job.restarts_charged, "/", job.spec.max_restarts) : std::string(kNone)};
    if (!all_over) cells.push_back(IsOver(job) ? kNone : AgeText(job.age));
    if (any_over) cells.push_back(IsOver(job) ? StartText(job) : kNone);
    if (any_over) cells.push_back(TookText(job));
    cells.push_back(WhyOf(job));
    table.Add(std::move(cells));
  }
  return table.Render(style);
}

std::string RenderNodes(const std::vector<NodeView>& nodes, const TextStyle& style) {
  Table table({{.title = "NODE", .id = true},
               {.title = "STATE", .width = 7},
               {.title = "ADDRESS", .spare = 2},
               {.title = "SLOTS"},
               {.title = "JOB", .id = true},
               {.title = "SEEN", .width = 5, .spare = 1},
               {.title = "NOTE"}});
  for (const NodeView& node : OncePerName(nodes)) {
    table.Add({node.name, node.state, node.address, Cat(node.slots_used, "/", node.slots),
               JobsOf(node), AgeText(node.seen), NoteOf(node)});
  }
  return table.Render(style);
}

}  // namespace regroup::cli
