#include "launcher/cli/render/explain.h"

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/text.h"
#include "common/config/values.h"
#include "launcher/cli/commands/all.h"
#include "launcher/cli/commands/job_parts.h"
#include "launcher/cli/commands/log_source.h"
#include "launcher/cli/commands/reader.h"
#include "launcher/cli/render/json.h"

namespace regroup::cli {
namespace {

class ExplainCommand : public Command {
 public:
  ExplainCommand()
      : Command(
            {.name = "explain",
             .summary = "explain why a job restarted, waited or failed",
             .usage = "regroup explain [JOB|NODE] [--generation G]",
             .text = "Explains the youngest job when none is named. Ended runs are read from "
                     "their journal, no "
                     "daemon needed.",
             .example = "regroup explain\nregroup explain train-4 --generation 1",
             .positionals = {
                 {"JOB|NODE", "an id, a name, the beginning of an id, last, or a node's name"}}}) {
    AddInt(line().app(), "--generation", generation_, 1, 1'000'000'000, "only this generation",
           "G");
    DescribeFlags(line().app(), options_);
    ScopeEnvironment(line().app(), "explain");
  }

  absl::StatusOr<int> Run(const ParsedLine& words, const Terminal& terminal) override {
    RETURN_IF_ERROR(CheckWords(*this, words, 0, 1));
    std::string selector = words.rest.empty() ? "last" : words.rest[0];
    ASSIGN_OR_RETURN(Reader reader, Reader::Open(options_, "regroup explain"));
    absl::StatusOr<Found> found = reader.FindJob(selector, true);
    if (found.status().code() == absl::StatusCode::kNotFound) {
      absl::StatusOr<std::string> node = Node(reader, selector, terminal);
      if (!node.ok()) return found.status();
      RETURN_IF_ERROR(terminal.Print(*node));
      return kDone;
    }
    RETURN_IF_ERROR(found.status());
    TellNotes(reader, terminal);
    std::optional<Generation> only;
    if (generation_) only = Generation(static_cast<std::uint64_t>(*generation_));
    if (only) RETURN_IF_ERROR(CheckGeneration(found->job, *only, "regroup explain"));
    const std::vector<std::string> output = OutputNotes(found->place, found->job.id);
    RETURN_IF_ERROR(terminal.Print(options_.json
                                       ? ExplainDocument(found->job, output)
                                       : RenderExplain(found->job, only, terminal.out(), output)));
    return kDone;
  }

 private:
  absl::StatusOr<std::string> Node(Reader& reader, const std::string& name,
                                   const Terminal& terminal) const {
    ASSIGN_OR_RETURN(std::vector<NodeView> nodes, reader.Nodes());
    for (const NodeView& node : nodes) {
      if (node.name != name && node.id.value() != name) continue;
      return options_.json ? NodesDocument({node}, reader.memory())
                           : RenderExplain(node, terminal.out());
    }
    return absl::NotFoundError(name);
  }

  std::optional<int> generation_;
  ReadOptions options_;
};

}  // namespace

std::unique_ptr<Command> MakeExplain() { return std::make_unique<ExplainCommand>(); }

}  // namespace regroup::cli
