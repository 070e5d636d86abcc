#include <unistd.h>

#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/job_fields.h"
#include "common/config/job_file.h"
#include "common/config/job_limits.h"
#include "common/config/names.h"
#include "common/config/text.h"
#include "common/report/reasons.h"
#include "launcher/cli/commands/all.h"
#include "launcher/cli/commands/job_flags.h"
#include "launcher/cli/commands/program.h"
#include "launcher/cli/commands/python_source.h"
#include "launcher/cli/commands/reader.h"
#include "launcher/cli/commands/waiting.h"
#include "launcher/cli/render/json.h"

namespace regroup::cli {
namespace {

std::string CurrentDirectory() {
  std::string here(limits::kDirectoryBytes, '\0');
  return ::getcwd(here.data(), here.size()) == nullptr ? "/" : here.c_str();
}

absl::Status AddVariable(std::string_view text, std::map<std::string, std::string>& environment) {
  std::size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    return UserError(absl::StatusCode::kInvalidArgument,
                     Cat(ShellQuote(text.substr(0, 60)), " is not NAME=VALUE"),
                     "a variable needs a name, '=' and a value", "NCCL_DEBUG=WARN");
  }
  environment[std::string(text.substr(0, equals))] = std::string(text.substr(equals + 1));
  return absl::OkStatus();
}

class Submit : public Command {
 public:
  Submit()
      : Command(
            {.name = "submit",
             .summary = "hand a job to a coordinator; it runs when nodes are free",
             .usage = "regroup submit FILE | [OPTIONS] -- PROGRAM ARGS...",
             .text = Cat(
                 "The job is described by a YAML file (- is standard input) or by flags and a "
                 "command after --. Nothing is copied: directory and program have to be on each "
                 "node. Jobs run as the agent's user, with a small environment and what `env:` or "
                 "--env adds.\n\n"
                 "Fields of a file: name, nnodes (N, MIN:MAX or {min, max, unit}), "
                 "nproc_per_node (a number, or gpu), run (a list, or a line for sh -c), workdir, "
                 "env, ",
                 ListOfJobFileFields(), "."),
             .example =
                 "regroup submit job.yaml\n"
                 "regroup submit --name gpt -N 2:4 --ppn 8 --wait -- python train.py --lr 3e-4\n"
                 "\n"
                 "# job.yaml\n"
                 "name: gpt\n"
                 "nnodes: 2:4\n"
                 "nproc_per_node: 8\n"
                 "run: [python, train.py, --lr, \"3e-4\"]\n"
                 "workdir: /shared/gpt\n"
                 "env: {NCCL_DEBUG: WARN}\n"
                 "grace: 60s\n"
                 "retry: {max: 3, exit_codes: {77: fail}}",
             .positionals = {
                 {"FILE", "a job file"},
                 {"PROGRAM ARGS...", "what each worker executes, found on its node"}}}) {
    constexpr int kDefaultRestarts = 3;
    job_.origin = JobOrigin::kSubmitted;
    job_.fields.max_restarts = kDefaultRestarts;
    DescribeFlags(line().app(), job_);
    AddText(line().app(), "--name", name_, "name of the job; none: the program's base name",
            "NAME");
    AddText(line().app(), "--workdir", directory_, "where workers start; none: this directory",
            "DIRECTORY");
    AddRepeated(line().app(), "--env", "NAME=VALUE",
                "a variable for the workers; may be given again",
                [this](std::string_view text) { return AddVariable(text, environment_); });
    AddText(line().app(), "--key", key_,
            "submitting twice with the same key makes one job; none: a random one", "KEY");
    AddSwitch(line().app(), "--wait", wait_, "wait until it is over and exit with its code");
    AddSwitch(line().app(), "--now-or-never", now_or_never_,
              "refuse it where no set of the nodes here could run it");
    AddSwitch(line().app(), "--dry-run", dry_run_, "check it, show it, keep nothing");
    DescribeFlags(line().app(), options_);
    ScopeEnvironment(line().app(), "submit");
  }
  bool speaks_for_job() const override { return wait_; }

  absl::StatusOr<int> Run(const ParsedLine& words, const Terminal& terminal) override {
    ASSIGN_OR_RETURN(JobSpec spec, Specification(words));
    const ProgramHints hints = HintsOfCommand(spec.command, spec.directory);
    spec.sets_master_port = hints.sets_master_port;
    if (hints.keeps_ranks && !spec.in_place) {
      spec.in_place = true;
      terminal.Say(InPlaceNotice(spec.name));
    }
    if (spec.sets_master_port && spec.max_nodes * spec.workers_per_node == 1)
      terminal.Say(OwnStoreNotice(spec.name));
    absl::StatusOr<Client> found = TheCoordinator(options_, "regroup submit ...");
    bool checked_here_only = dry_run_ && options_.coordinator.empty() &&
                             found.status().code() == absl::StatusCode::kUnavailable;
    if (checked_here_only) {
      terminal.Say("regroup: no coordinator runs here, so only the job itself was checked\n");
      RETURN_IF_ERROR(terminal.Print(RenderJobFile(spec)));
      return kDone;
    }
    ASSIGN_OR_RETURN(Client client, std::move(found));
    ASSIGN_OR_RETURN(Submitted submitted,
                     client.Submit(spec, key_.empty() ? NewKey() : key_, dry_run_, now_or_never_));
    const std::string& job = submitted.job;
    if (dry_run_) {
      RETURN_IF_ERROR(terminal.Print(RenderJobFile(spec)));
      return kDone;
    }
    std::string shown =
        options_.json ? Dump({{"schema", "regroup.submit/1"}, {"job", job}}) : Cat(job, "\n");
    if (!wait_ || !options_.json) RETURN_IF_ERROR(terminal.Print(shown));
    if (submitted.waits)
      terminal.Say(Cat(
          "regroup: ", job, " waits: it ",
          Explain(*submitted.waits, ReasonContext{JobId(job), Generation(), JobOrigin::kSubmitted})
              .brief,
          "\n"));
    if (!wait_) return kDone;
    {
      std::lock_guard lock(waiting_->mutex);
      waiting_->job = job;
    }
    ASSIGN_OR_RETURN(JobView over, WaitForEnd(client, job, std::nullopt, terminal));
    return TellEnd(over, options_.json, terminal);
  }

  std::function<int(int)> on_signal(const Terminal& terminal) override {
    return [terminal, waiting = waiting_](int signal) {
      std::lock_guard lock(waiting->mutex);
      if (!waiting->job.empty()) {
        terminal.Say(Cat("\nregroup: ", waiting->job, " goes on · regroup cancel ", waiting->job,
                         " ends it · regroup wait ", waiting->job, "\n"));
      }
      return 128 + signal;
    };
  }

 private:
  struct Waiting {
    std::mutex mutex;
    std::string job;  // Guarded by mutex.
  };

  absl::StatusOr<JobSpec> Specification(const ParsedLine& words) {
    if (words.rest.empty()) {
      return UserError(absl::StatusCode::kInvalidArgument, "there is nothing to submit",
                       "a job file, or -- and a program, is expected", "regroup submit --help");
    }
    bool is_file = !words.dashes && words.rest.size() == 1;
    if (words.dashes && words.words_before_dashes > 0) {
      return UserError(absl::StatusCode::kInvalidArgument, "both a job file and a program",
                       Cat(ShellQuote(words.rest[0]), " stands before --"), "one of them");
    }
    if (!is_file && !words.dashes) {
      return UserError(absl::StatusCode::kInvalidArgument, "one job file is expected",
                       Cat(ShellQuote(words.rest[1]), " is more; a program is given after --"),
                       Cat("regroup submit -- ", ShellJoin(words.rest)));
    }
    if (is_file && IsScript(words.rest[0])) {
      std::vector<std::string> command = {"regroup", "submit"};
      for (const auto& flag : words.given) command.insert(command.end(), flag.begin(), flag.end());
      command.insert(command.end(), {"--", "python", words.rest[0]});
      return UserError(absl::StatusCode::kInvalidArgument,
                       Cat(ShellQuote(words.rest[0]), " is a program, not a job file"),
                       "a job file is YAML; a program is given after --", ShellJoin(command));
    }
    if (is_file) {
      RETURN_IF_ERROR(OnlyFile(words));
      return ReadJobFile(words.rest[0], CurrentDirectory());
    }
    JobSpec spec;
    spec.name = name_.empty() ? DefaultJobName(words.rest) : name_;
    spec.command = words.rest;
    spec.directory = directory_.empty() ? CurrentDirectory() : directory_;
    spec.environment = environment_;
    RETURN_IF_ERROR(ValidateJobName("--name", spec.name));
    RETURN_IF_ERROR(Apply(job_, spec));
    RETURN_IF_ERROR(ValidateJobSpec(spec));
    return spec;
  }

  static bool IsScript(const std::string& word) {
    constexpr std::string_view kEnd = ".py";
    return word.size() > kEnd.size() && word.substr(word.size() - kEnd.size()) == kEnd;
  }

  // A file says what the job is; flags that say so too would be ignored.
  static absl::Status OnlyFile(const ParsedLine& words) {
    static const std::set<std::string> fine = {"--wait",     "--dry-run",     "--now-or-never",
                                               "--key",      "--coordinator", "--state-dir",
                                               "--insecure", "--token-file",  "--json"};
    for (const auto& flag : words.given) {
      if (fine.count(flag[0].substr(0, flag[0].find('='))) > 0) continue;
      return UserError(
          absl::StatusCode::kInvalidArgument, Cat(flag[0], " does not go with a job file"),
          "the file says what the job is", Cat("put it into ", ShellQuote(words.rest[0])));
    }
    return absl::OkStatus();
  }

  JobFlags job_;
  std::string name_, directory_, key_;
  std::map<std::string, std::string> environment_;
  bool wait_ = false, dry_run_ = false, now_or_never_ = false;
  ReadOptions options_;
  std::shared_ptr<Waiting> waiting_ =
      std::make_shared<Waiting>();  // Owners: this and the signal's handler.
};

}  // namespace

std::unique_ptr<Command> MakeSubmit() { return std::make_unique<Submit>(); }

}  // namespace regroup::cli
