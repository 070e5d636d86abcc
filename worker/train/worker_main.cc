// regroup-worker: the native trainer. Subcommands train, generate and version.

#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/user_error.h"
#include "common/config/flags.h"
#include "worker/train/environment.h"
#include "worker/train/generate.h"
#include "worker/train/termination.h"
#include "worker/train/train_config.h"
#include "worker/train/trainer.h"
#include "worker/train/worker_exit.h"

namespace regroup::worker {
namespace {

constexpr char kHelp[] =
    "regroup-worker: train a GPT on text, data-parallel, and come back from anything\n\n"
    "usage: regroup-worker train --data PATH [OPTIONS]\n"
    "       regroup-worker generate --checkpoint DIR [OPTIONS]\n"
    "       regroup-worker version\n\n"
    "`regroup-worker train --help` and `regroup-worker generate --help` show all options.\n\n"
    "exit codes:\n"
    "  0   done\n"
    "  1   something that should not happen: no memory, a kernel that failed\n"
    "  2   a flag, a configuration, or data that can not be read\n"
    "  10  the group was not formed: ranks are missing, or on different hosts\n"
    "  11  another rank died, stopped or left in the middle of training\n"
    "  12  ranks were given different settings or data\n"
    "  13  the checkpoint directory can not be written\n"
    "  14  no checkpoint verifies, or they are of another model\n"
    "  15  the loss is not finite\n"
    "  16  all steps are done, but the last checkpoint could not be saved\n"
    "  17  saved for a notice, then nobody stopped this worker\n";

int Tell(const absl::Status& status) {
  UserErrorParts parts = PartsOf(status);
  if (parts.try_this.empty() && ExitOf(status) == WorkerExit::kUsage)
    parts.try_this = "regroup-worker --help";
  // Flags are judged by code that all of Regroup's programs share.
  if (absl::StartsWith(parts.try_this, "regroup train") ||
      absl::StartsWith(parts.try_this, "regroup generate")) {
    parts.try_this.insert(sizeof "regroup" - 1, "-worker");
  }
  const std::string text =
      RenderUserError(UserError(status.code(), parts.what, parts.because, parts.try_this));
  std::fputs(text.c_str(), stderr);
  return static_cast<int>(ExitOf(status));
}

int Misuse(absl::Status status) { return Tell(WithExit(std::move(status), WorkerExit::kUsage)); }

template <class Config>
int Help(CommandDescription description, void (*describe)(CLI::App&, Config&)) {
  Config config;
  CommandLine line(std::move(description));
  describe(line.app(), config);
  std::string text = RenderHelp(line.Describe());
  if (absl::StartsWith(text, "regroup ")) text.insert(sizeof "regroup" - 1, "-worker");
  std::fputs(text.c_str(), stdout);
  return 0;
}

int TrainMain(const std::vector<std::string>& args) {
  const absl::StatusOr<std::optional<TrainConfig>> config = ReadTrainConfig(args);
  if (!config.ok()) return Misuse(config.status());
  if (!*config) return Help<TrainConfig>(DescribeTrain(), &DescribeTrainFlags);
  const absl::StatusOr<WorkerEnvironment> environment = ReadWorkerEnvironment();
  if (!environment.ok()) return Misuse(environment.status());
  Termination termination;
  Trainer trainer(**config, *environment, termination);
  const absl::Status status = trainer.Run();
  const int code = status.ok() ? 0 : Tell(status);
  std::fflush(stdout);
  // Not `return`: tearing down would wait for a writer at a disk that may be slow, and nothing is
  // left to be saved.
  trainer.SayGoodbye();
  _exit(code);
}

int GenerateMain(const std::vector<std::string>& args) {
  const absl::StatusOr<std::optional<GenerateConfig>> config = ReadGenerateConfig(args);
  if (!config.ok()) return Misuse(config.status());
  if (!*config) return Help<GenerateConfig>(DescribeGenerate(), &DescribeGenerateFlags);
  const absl::Status status = Generate(**config);
  return status.ok() ? 0 : Tell(status);
}

int Main(const std::vector<std::string>& words) {
  const std::string command = words.empty() ? "" : words[0];
  const std::vector<std::string> args(words.begin() + (words.empty() ? 0 : 1), words.end());
  if (command == "train") return TrainMain(args);
  if (command == "generate") return GenerateMain(args);
  if (command == "version" || command == "--version") {
    std::printf("regroup-worker %s (%s)\n", REGROUP_VERSION, REGROUP_BUILD_TYPE);
    return 0;
  }
  if (command == "--help" || command == "-h" || command == "help") {
    std::fputs(kHelp, stdout);
    return 0;
  }
  return Misuse(UserError(
      absl::StatusCode::kInvalidArgument,
      command.empty() ? std::string("no command given") : absl::StrCat("unknown command ", command),
      "train, generate and version are known", "regroup-worker train --help"));
}

}  // namespace
}  // namespace regroup::worker

int main(int argc, char** argv) { return regroup::worker::Main({argv + 1, argv + argc}); }
