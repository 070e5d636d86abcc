#include <algorithm>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/text.h"
#include "common/config/values.h"
#include "launcher/cli/commands/all.h"
#include "launcher/cli/commands/log_source.h"
#include "launcher/cli/commands/reader.h"
#include "launcher/cli/render/explain.h"
#include "launcher/cli/render/json.h"

namespace regroup::cli {
namespace {

class ExplainCommand : public Command {
 public:
  ExplainCommand()
      : Command({.name = "explain",
                 .summary = "why: each restart with its cause and its seconds, ranks, waits, time",
                 .usage = "regroup explain [JOB|NODE] [--generation G]",
                 .text = "Explains the youngest job when none is named. Ended runs are read from "
                         "their journal, no "
                         "daemon needed.",
                 .example = "regroup explain\nregroup explain train-4 --generation 1",
                 .positionals = {
                     {"JOB|NODE", "an id, a unique prefix of one, last, or a node's name"}}}) {
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
    RETURN_IF_ERROR(CheckGeneration(found->job));
    std::optional<Generation> only;
    if (generation_) only = Generation(static_cast<std::uint64_t>(*generation_));
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
      return options_.json ? NodesDocument({node}) : RenderExplain(node, terminal.out());
    }
    return absl::NotFoundError(name);
  }

  absl::Status CheckGeneration(const JobView& job) const {
    if (!generation_) return absl::OkStatus();
    auto has = [&](const GenerationView& g) {
      return g.generation.value() == static_cast<std::uint64_t>(*generation_);
    };
    if (std::any_of(job.generations.begin(), job.generations.end(), has)) return absl::OkStatus();
    std::string known = job.generations.empty()
                            ? "it has none yet"
                            : Cat("it has ", job.generations.front().generation.value(), " to ",
                                  job.generations.back().generation.value());
    return UserError(absl::StatusCode::kNotFound,
                     Cat("no generation ", *generation_, " of ", job.id.value()), known,
                     Cat("regroup explain ", job.id.value()));
  }

  std::optional<int> generation_;
  ReadOptions options_;
};

}  // namespace

std::unique_ptr<Command> MakeExplain() { return std::make_unique<ExplainCommand>(); }

}  // namespace regroup::cli
