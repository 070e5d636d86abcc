#include "common/base/status_macros.h"
#include "common/config/text.h"
#include "launcher/cli/commands/all.h"
#include "launcher/cli/commands/reader.h"
#include "launcher/cli/render/json.h"
#include "launcher/cli/render/lists.h"

namespace regroup::cli {
namespace {

class Ps : public Command {
 public:
  Ps()
      : Command({.name = "ps",
                 .summary = "list jobs: state, nodes, step, restarts, and why they wait",
                 .usage = "regroup ps [-a] [JOB]",
                 .text =
                     "Jobs of the coordinators of this host, or of --coordinator. With -a ended "
                     "ones too.",
                 .example = "regroup ps -a",
                 .positionals = {
                     {"JOB", "only this one: an id, a name, the beginning of an id, or last"}}}) {
    AddSwitch(line().app(), "-a,--all", all_, "also jobs that are over");
    DescribeFlags(line().app(), options_);
    ScopeEnvironment(line().app(), "ps");
  }

  absl::StatusOr<int> Run(const ParsedLine& words, const Terminal& terminal) override {
    RETURN_IF_ERROR(CheckWords(*this, words, 0, 1));
    ASSIGN_OR_RETURN(Reader reader, Reader::Open(options_, "regroup ps"));
    std::vector<JobView> jobs;
    if (words.rest.empty()) {
      ASSIGN_OR_RETURN(jobs, reader.Jobs(all_));
    } else {
      ASSIGN_OR_RETURN(Found found, reader.FindJob(words.rest[0], false));
      jobs.push_back(std::move(found.job));
    }
    TellNotes(reader, terminal);
    RETURN_IF_ERROR(
        terminal.Print(options_.json ? JobsDocument(jobs) : RenderJobs(jobs, terminal.out())));
    bool hint = jobs.empty() && reader.notes().empty() && !options_.json && terminal.err().terminal;
    if (hint)
      terminal.Say(all_ ? "regroup: no job has run here yet\n"
                        : "regroup: no job runs; -a shows ended ones\n");
    return kDone;
  }

 private:
  bool all_ = false;
  ReadOptions options_;
};

}  // namespace

std::unique_ptr<Command> MakePs() { return std::make_unique<Ps>(); }

}  // namespace regroup::cli
