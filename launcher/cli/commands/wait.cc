#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/text.h"
#include "launcher/cli/commands/all.h"
#include "launcher/cli/commands/reader.h"
#include "launcher/cli/commands/waiting.h"
#include "launcher/cli/render/lists.h"

namespace regroup::cli {
namespace {

class Wait : public Command {
 public:
  Wait()
      : Command({.name = "wait",
                 .summary = "wait until a job is over; exits with its code",
                 .usage = "regroup wait JOB [--timeout DURATION]",
                 .text = "Exits as `regroup run` would: with the job's code, 124 after --timeout, "
                         "125 when there is no "
                         "such job. Ctrl-C ends the waiting, not the job.",
                 .example = "regroup wait gpt-7 && regroup logs gpt-7 --tail 20",
                 .positionals = {{"JOB", "an id, a name, the beginning of an id, or last"}}}) {
    AddDuration(line().app(), "--timeout", timeout_, "stop waiting (exit 124) after this time");
    DescribeFlags(line().app(), options_);
    ScopeEnvironment(line().app(), "wait");
  }
  bool speaks_for_job() const override { return true; }

  absl::StatusOr<int> Run(const ParsedLine& words, const Terminal& terminal) override {
    RETURN_IF_ERROR(CheckWords(*this, words, 1, 1));
    ASSIGN_OR_RETURN(Reader reader, Reader::Open(options_, Cat("regroup wait ", words.rest[0])));
    ASSIGN_OR_RETURN(Found found, reader.FindJob(words.rest[0], true));
    if (IsOver(found.job)) return TellEnd(found.job, options_.json, terminal);
    if (!found.live && !found.held) {
      return UserError(
          absl::StatusCode::kUnavailable,
          Cat(found.job.id.value(), " is ", found.job.state, ", but its coordinator does not run"),
          found.place.label, Cat("regroup explain ", found.job.id.value()));
    }
    ASSIGN_OR_RETURN(Client client, Client::Dial(found.place));
    ASSIGN_OR_RETURN(JobView job, WaitForEnd(client, found.job.id.value(), timeout_, terminal));
    return TellEnd(job, options_.json, terminal);
  }

  std::function<int(int)> on_signal(const Terminal& terminal) override {
    return [terminal](int signal) {
      terminal.Say("regroup: stopped waiting; the job goes on\n");
      return 128 + signal;
    };
  }

 private:
  std::optional<Duration> timeout_;
  ReadOptions options_;
};

}  // namespace

std::unique_ptr<Command> MakeWait() { return std::make_unique<Wait>(); }

}  // namespace regroup::cli
