#include "launcher/cli/render/lists.h"

#include <cstdio>
#include <set>

#include "common/config/text.h"
#include "common/config/values.h"
#include "common/report/format.h"
#include "common/report/reasons.h"
#include "launcher/cli/render/table.h"

namespace regroup::cli {
namespace {

constexpr char kNone[] = "–";

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
  return JoinWords(notes);
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
  return Cat(why, " · ", Explain(EndReason(WorkerFailed{*job.last_failure}), context).brief);
}

bool IsOver(const std::string& state) {
  static const std::set<std::string> over = {"succeeded", "failed", "cancelled", "preempted"};
  return over.count(state) > 0;
}
bool IsOver(const JobView& job) { return IsOver(job.state); }

std::string RenderJobs(const std::vector<JobView>& jobs, const TextStyle& style) {
  Table table({{.title = "JOB", .id = true},
               {.title = "STATE"},
               {.title = "NODES"},
               {.title = "GEN", .right = true},
               {.title = "STEP"},
               {.title = "LOSS"},
               {.title = "RESTARTS"},
               {.title = "AGE", .width = 5},
               {.title = "WHY"}});
  for (const JobView& job : jobs) {
    bool started = job.generation.value() > 0;
    std::string bounds = Cat("(", FormatNnodes(job.spec.min_nodes, job.spec.max_nodes), ")");
    table.Add({job.id.value(), job.state,
               Cat(job.nodes > 0 ? std::to_string(job.nodes) : std::string(kNone), " ", bounds),
               started ? std::to_string(job.generation.value()) : kNone,
               job.step ? std::to_string(*job.step) : kNone, LossText(job.loss),
               started ? Cat(job.restarts_charged, "/", job.spec.max_restarts) : std::string(kNone),
               AgeText(IsOver(job) && job.ran_for ? *job.ran_for : job.age), WhyOf(job)});
  }
  return table.Render(style);
}

std::string RenderNodes(const std::vector<NodeView>& nodes, const TextStyle& style) {
  Table table({{.title = "NODE", .id = true},
               {.title = "STATE", .width = 7},
               {.title = "ADDRESS"},
               {.title = "SLOTS"},
               {.title = "JOB", .id = true},
               {.title = "SEEN", .width = 5},
               {.title = "NOTE"}});
  for (const NodeView& node : nodes) {
    table.Add({node.name, node.state, node.address, Cat(node.slots_used, "/", node.slots),
               JobsOf(node), AgeText(node.seen), NoteOf(node)});
  }
  return table.Render(style);
}

}  // namespace regroup::cli
