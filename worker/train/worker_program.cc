#include "worker/train/worker_program.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/user_error.h"
#include "common/config/env.h"
#include "common/config/flags.h"
#include "worker/check/gpu_check.h"
#include "worker/train/build_id.h"
#include "worker/train/commands.h"
#include "worker/train/environment.h"
#include "worker/train/generate.h"
#include "worker/train/plan_report.h"
#include "worker/train/termination.h"
#include "worker/train/train_config.h"
#include "worker/train/trainer.h"
#include "worker/train/worker_exit.h"

namespace regroup::worker {
namespace {

int Tell(const absl::Status& status) {
  UserErrorParts parts = PartsOf(status);
  if (parts.try_this.empty() && ExitOf(status) == WorkerExit::kUsage)
    parts.try_this = "regroup-worker --help";
  const std::string text =
      RenderUserError(UserError(status.code(), parts.what, parts.because, parts.try_this));
  std::fputs(text.c_str(), stderr);
  return static_cast<int>(ExitOf(status));
}

int Misuse(absl::Status status) { return Tell(WithExit(std::move(status), WorkerExit::kUsage)); }

// Of "train" and so on; of the program itself when it is empty.
int Help(std::string_view command) {
  for (const CommandDescription& description : DescribeWorker()) {
    if (description.name == command) std::fputs(RenderHelp(description).c_str(), stdout);
  }
  return 0;
}

int TrainMain(const std::vector<std::string>& args, const CudaBuild* cuda) {
  const absl::StatusOr<std::optional<TrainConfig>> config = ReadTrainConfig(args);
  if (!config.ok()) return Misuse(config.status());
  if (!*config) return Help("train");
  const absl::StatusOr<WorkerEnvironment> environment = ReadWorkerEnvironment();
  if (!environment.ok()) return Misuse(environment.status());
  Termination termination;
  Trainer trainer(**config, *environment, termination, cuda);
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
  if (!*config) return Help("generate");
  const absl::Status status = Generate(**config);
  return status.ok() ? 0 : Tell(status);
}

int PlanMain(const std::vector<std::string>& args) {
  const absl::StatusOr<std::optional<PlanConfig>> config = ReadPlanConfig(args);
  if (!config.ok()) return Misuse(config.status());
  if (!*config) return Help("plan");
  const absl::StatusOr<std::string> report = PlanReport(**config);
  if (!report.ok()) return Misuse(report.status());
  return std::fputs(report->c_str(), stdout) >= 0 && std::fflush(stdout) == 0
             ? 0
             : Tell(absl::UnavailableError("standard output cannot be written"));
}

// CUDA shows a process one MIG instance at most: a process for each, until one fails.
int CheckOneByOne(const VisibleDevices& visible) {
  std::map<std::string, std::string> environment = AllEnv();
  for (const std::string& name : visible.devices) {
    environment[visible.variable] = name;
    std::vector<std::string> entries;
    for (const auto& [key, value] : environment) entries.push_back(absl::StrCat(key, "=", value));
    std::vector<char*> pointers;
    for (std::string& entry : entries) pointers.push_back(entry.data());
    pointers.push_back(nullptr);
    std::string program = "regroup-worker", command = "check-gpu";
    char* const arguments[] = {program.data(), command.data(), nullptr};
    pid_t pid = 0;
    const int spawned =
        posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, arguments, pointers.data());
    if (spawned != 0) return Tell(absl::ErrnoToStatus(spawned, "no process for a check"));
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
      return WIFEXITED(status) ? WEXITSTATUS(status) : static_cast<int>(WorkerExit::kNoDevice);
  }
  return 0;
}

int CheckGpuMain(const std::vector<std::string>& args) {
  if (!args.empty() && (args[0] == "--help" || args[0] == "-h")) return Help("check-gpu");
  if (!args.empty()) {
    return Misuse(UserError(absl::StatusCode::kInvalidArgument,
                            absl::StrCat("unexpected word ", args[0]), "check-gpu takes none",
                            "regroup-worker check-gpu --help"));
  }
  const std::optional<VisibleDevices> visible = OwnVisibleDevices();
  if (visible && visible->devices.size() > 1 && AnyMigInstance(visible->devices))
    return CheckOneByOne(*visible);
  const absl::StatusOr<std::string> found = CheckGpus({.visible = visible});
  if (found.ok()) {
    std::printf("%s\n", found->c_str());
    return 0;
  }
  // One line: of a node check the last one is told.
  std::fprintf(stderr, "%s\n", std::string(found.status().message()).c_str());
  return static_cast<int>(WorkerExit::kNoDevice);
}

}  // namespace

int RunWorkerProgram(const std::vector<std::string>& words, const CudaBuild* cuda) {
  const std::string command = words.empty() ? "" : words[0];
  const std::vector<std::string> args(words.begin() + (words.empty() ? 0 : 1), words.end());
  if (command == "train") return TrainMain(args, cuda);
  if (command == "generate") return GenerateMain(args);
  if (command == "plan") return PlanMain(args);
  if (command == "check-gpu") return CheckGpuMain(args);
  if (command == "version" || command == "--version") {
    std::printf("regroup-worker %s (%s, build %s)\n", REGROUP_VERSION, REGROUP_BUILD_TYPE,
                BuildId().c_str());
    return 0;
  }
  if (command == "--help" || command == "-h" || command == "help") {
    return Help("");
  }
  if (command == "__man" && args.size() == 1) {  // Of the installation.
    const absl::Status written = WriteManPages(args[0], REGROUP_VERSION);
    return written.ok() ? 0 : Tell(written);
  }
  return Misuse(UserError(
      absl::StatusCode::kInvalidArgument,
      command.empty() ? std::string("no command given") : absl::StrCat("unknown command ", command),
      "train, generate, plan, check-gpu and version are known", "regroup-worker train --help"));
}

}  // namespace regroup::worker
