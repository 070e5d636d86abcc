#include "launcher/cli/commands/all.h"
#include "launcher/cli/commands/exec.h"

namespace regroup::cli {
namespace {

constexpr char kPlanPrefix[] = "REGROUP_PLAN_";

// The flags of the trainer, of which those that are only for a plan are declared here, so that
// completion and the manual have them. regroup-worker reads them all, and checks them.
class Plan : public Command {
 public:
  Plan()
      : Command({.name = "plan",
                 .summary = "say what memory and time a training of regroup-worker takes",
                 .usage = "regroup plan --config FILE [OPTIONS]",
                 .text = "Becomes `regroup-worker plan`, starts no training and needs no data. "
                         "Shows for every strategy the memory of a rank by kind, what ranks move "
                         "in a step and which strategy fits; where none does, what would. Takes "
                         "all options of `regroup-worker train` besides these: `regroup plan "
                         "--help` has them.",
                 .example = "regroup plan --config gpt.yaml --world 8 --memory 80GiB\n"
                            "regroup plan --config gpt.yaml --world 8 --gpu h200 --json"}) {
    CLI::App& app = line().app();
    AddText(app, "--config", words_, "YAML file of names and values, as regroup-worker train reads",
            "FILE");
    AddText(app, "--world", words_, "ranks of the training, as in --world 4", "N");
    AddText(app, "--nproc-per-node", words_,
            "ranks of each host, where they are on several, as in --nproc-per-node 8", "N");
    AddText(app, "--memory", words_,
            "memory that one rank has: says which strategy fits, as in --memory 8GiB", "SIZE");
    AddText(app, "--gpu", words_,
            "estimate time and MFU on one such GPU per rank, as in --gpu h200", "NAME");
    AddText(app, "--mfu", words_,
            "per cent of the peak of --gpu that products are assumed to reach, as in --mfu 50",
            "N");
    AddText(app, "--link", words_, "bytes per second that a rank moves each way, as in --link 50GB",
            "SIZE");
    AddSwitch(app, "--show", switch_, "print the instructions of rank 0 under --strategy");
    AddSwitch(app, "--json", switch_, "print JSON, which has all that the text has");
    for (const char* flag : {"--world", "--nproc-per-node", "--memory", "--gpu", "--mfu", "--link",
                             "--show", "--json"})
      RenameEnvironment(app, flag, kPlanPrefix);
  }
  bool hands_words_on() const override { return true; }

  absl::StatusOr<int> Run(const ParsedLine& words, const Terminal&) override {
    std::vector<std::string> args = {"plan"};
    args.insert(args.end(), words.rest.begin(), words.rest.end());
    return BecomeSibling("regroup-worker", args);
  }

 private:
  // Never read.
  std::string words_;
  bool switch_ = false;
};

}  // namespace

std::unique_ptr<Command> MakePlan() { return std::make_unique<Plan>(); }

}  // namespace regroup::cli
