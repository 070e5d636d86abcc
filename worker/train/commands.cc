#include "worker/train/commands.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "common/base/user_error.h"
#include "worker/train/generate.h"
#include "worker/train/plan_report.h"
#include "worker/train/train_config.h"
#include "worker/train/worker_exit.h"

namespace regroup::worker {
namespace {

CommandDescription DescribeProgram() {
  return {.name = "",
          .summary = "train a GPT on text, data-parallel, and come back from anything",
          .usage = "regroup-worker COMMAND [OPTIONS]",
          .text = "`regroup-worker COMMAND --help` shows all options of a command.",
          .example =
              "regroup-worker train --data /usr/share/common-licenses --checkpoint-dir ckpt\n"
              "regroup-worker generate --checkpoint ckpt",
          .positionals = {{"train", "train a model, alone or as one of many ranks"},
                          {"generate", "write text with a trained model"},
                          {"plan", "say what memory and time a training takes"},
                          {"check-gpu", "say whether the GPUs of this node are able to train"},
                          {"version", "say which version this is"}},
          .exit_codes = DescribeExits(),
          .program = "regroup-worker"};
}

CommandDescription DescribeCheckGpu() {
  return {.name = "check-gpu",
          .summary = "say whether the GPUs of this node are able to train",
          .usage = "regroup-worker check-gpu",
          .text =
              "Looks at the GPUs that CUDA_VISIBLE_DEVICES names, else at all: the driver knows "
              "each, it has neither failed nor an uncorrected memory error, nobody computes on "
              "it (5 s are given to what has just ended), and a product of two matrices on it is "
              "right and takes less than a second. Needs a driver and nothing else.\n\n"
              "This is what `--node-check gpu` runs on each node before each generation: a node "
              "that fails waits outside, with the reason.",
          .example = "regroup-worker check-gpu\nregroup submit --node-check gpu -N 4 -- train.py",
          .exit_codes = DescribeExits(),
          .program = "regroup-worker"};
}

template <class Config>
CommandDescription WithFlags(CommandDescription description, void (*describe)(CLI::App&, Config&)) {
  Config config;
  CommandLine line(std::move(description));
  describe(line.app(), config);
  return line.Describe();
}

}  // namespace

std::vector<CommandDescription> DescribeWorker() {
  return {DescribeProgram(), WithFlags<TrainConfig>(DescribeTrain(), &DescribeTrainFlags),
          WithFlags<GenerateConfig>(DescribeGenerate(), &DescribeGenerateFlags),
          WithFlags<PlanConfig>(DescribePlan(), &DescribePlanFlags), DescribeCheckGpu()};
}

absl::Status WriteManPages(const std::string& folder, std::string_view version) {
  for (const CommandDescription& command : DescribeWorker()) {
    const std::string path = folder + "/" + command.Page() + ".1";
    std::ofstream out(path);
    out << RenderManPage(command, version);
    out.close();
    if (!out) {
      return UserError(absl::StatusCode::kFailedPrecondition, "cannot write " + path,
                       std::strerror(errno), "");
    }
  }
  return absl::OkStatus();
}

}  // namespace regroup::worker
