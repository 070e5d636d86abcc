#include <pwd.h>
#include <unistd.h>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/env.h"
#include "common/config/state_dir.h"
#include "common/config/text.h"
#include "common/report/text_style.h"
#include "launcher/cli/commands/all.h"
#include "launcher/cli/commands/reader.h"
#include "launcher/cli/render/json.h"
#include "launcher/cli/render/lists.h"

#include <nlohmann/json.hpp>

namespace regroup::cli {
namespace {

std::string Who() {
  const passwd* entry = ::getpwuid(::geteuid());
  std::string user = entry == nullptr ? "" : entry->pw_name;
  if (user.empty()) user = GetEnv("USER").value_or("");
  if (user.empty()) user = Cat("user ", ::geteuid());
  return EscapeControls(Cat(user, " on ", HostName()));
}

class Cancel : public Command {
 public:
  Cancel()
      : Command({.name = "cancel",
                 .summary = "end a job: its workers are asked to stop, then killed",
                 .usage = "regroup cancel JOB [--now]",
                 .text = "Workers get the job's --grace to stop. `regroup run` then exits with 143 "
                         "on every node. "
                         "Cancelling a job that is over changes nothing and exits with 1.",
                 .example = "regroup cancel gpt-7",
                 .positionals = {{"JOB", "an id, a name (its job that is not over), or last"}}}) {
    AddSwitch(line().app(), "--now", now_, "kill at once, without grace");
    DescribeFlags(line().app(), options_);
    ScopeEnvironment(line().app(), "cancel");
  }

  absl::StatusOr<int> Run(const ParsedLine& words, const Terminal& terminal) override {
    RETURN_IF_ERROR(CheckWords(*this, words, 1, 1));
    ASSIGN_OR_RETURN(Reader reader, Reader::Open(options_, Cat("regroup cancel ", words.rest[0])));
    ASSIGN_OR_RETURN(Found found, reader.FindJob(words.rest[0], false, JobPrefixes::kRefused));
    std::string id = found.job.id.value();
    if (found.job.state == "succeeded" || found.job.state == "failed" ||
        found.job.state == "cancelled") {
      return UserError(absl::StatusCode::kFailedPrecondition, Cat(id, " is over"),
                       Cat("it is ", found.job.state), Cat("regroup explain ", id));
    }
    if (!found.live) {
      return UserError(absl::StatusCode::kUnavailable, Cat(id, " cannot be cancelled"),
                       Cat("its coordinator does not ", found.held ? "answer" : "run", " (",
                           found.place.label, ")"),
                       Cat("regroup explain ", id));
    }
    ASSIGN_OR_RETURN(Client client, Client::Dial(found.place));
    ASSIGN_OR_RETURN(std::string cancelled, client.Cancel(id, now_, Who()));
    const bool waited = found.job.state == "queued" || found.job.state == "gathering";
    std::string text = Cat(cancelled, waited ? " cancelled\n" : " is being cancelled\n");
    if (options_.json) text = Dump({{"schema", "regroup.cancel/1"}, {"job", cancelled}});
    RETURN_IF_ERROR(terminal.Print(text));
    return kDone;
  }

 private:
  bool now_ = false;
  ReadOptions options_;
};

}  // namespace

std::unique_ptr<Command> MakeCancel() { return std::make_unique<Cancel>(); }

}  // namespace regroup::cli
