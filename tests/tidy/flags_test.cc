// Every flag of every command of every program says what it is for: in --help, in the environment
// and in the man page.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/config/flags.h"
#include "launcher/cli/commands/command.h"
#include "launcher/cli/commands/torch_flags.h"
#include "worker/train/commands.h"

namespace regroup::cli {
namespace {

// roff writes a dash as "\-", a backslash as "\e" and nothing as "\&".
std::string WithoutEscapes(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
    } else if (const char escaped = text[++i]; escaped != '&') {
      out += escaped == 'e' ? '\\' : escaped;
    }
  }
  return out;
}

bool WithoutEnvironmentInTorchrun(const std::string& name) {
  const std::vector<TorchrunOption>& all = TorchrunOptions();
  return std::any_of(all.begin(), all.end(), [&](const TorchrunOption& option) {
    return option.name == name && !option.environment;
  });
}

// What a command's flags lack, given its help and its man page.
std::vector<std::string> Findings(const CommandDescription& command, const std::string& help,
                                  const std::string& page) {
  std::vector<std::string> findings;
  auto contains = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  for (const FlagDescription& flag : command.flags) {
    const std::string& name = flag.names.back();
    if (name == "--help") continue;
    auto lacks = [&](const std::string& what) {
      findings.push_back(absl::StrCat(command.name, " ", name, ": ", what));
    };
    if (flag.help.empty()) lacks("no help");
    if (!flag.help.empty() && flag.help.back() == '.') lacks("help is no sentence of its own");
    const bool ours = flag.environment.rfind("REGROUP_", 0) == 0;
    const bool torchruns =
        command.name == "torchrun" &&
        (flag.environment.rfind("PET_", 0) == 0 ||
         (flag.environment.empty() && WithoutEnvironmentInTorchrun(name.substr(2))));
    if (!ours && !torchruns) lacks("no environment name");
    for (const std::string* text : {&help, &page}) {
      const std::string where = text == &help ? "--help" : "the man page";
      if (!contains(*text, name)) lacks("not in " + where);
      if (!contains(*text, flag.environment)) lacks("environment name not in " + where);
    }
  }
  if (command.example.empty()) findings.push_back(command.name + ": no example");
  if (!contains(page, command.example.substr(0, command.example.find('\n')))) {
    findings.push_back(command.name + ": example not in the man page");
  }
  return findings;
}

std::vector<std::string> Findings(const CommandDescription& command) {
  return Findings(command, RenderHelp(command), WithoutEscapes(RenderManPage(command, "1")));
}

TEST(FlagsTest, EveryFlagOfEveryCommandIsExplained) {
  int flags = 0;
  for (const CommandEntry& entry : AllCommands()) {
    if (entry.hidden) continue;
    CommandDescription command = entry.make()->line().Describe();
    flags += static_cast<int>(command.flags.size());
    for (const std::string& finding : Findings(command)) ADD_FAILURE() << finding;
  }
  EXPECT_GT(flags, 30) << "the commands were not found";
}

TEST(FlagsTest, EveryFlagOfTheWorkerIsExplained) {
  // What an agent tells its workers must not become a flag of theirs.
  const std::set<std::string> told = {"REGROUP_JOB",         "REGROUP_GENERATION",
                                      "REGROUP_SOCKET",      "REGROUP_LOCAL_RANK",
                                      "REGROUP_RESUME_STEP", "REGROUP_WORKER_TOKEN"};
  int flags = 0;
  for (const CommandDescription& command : worker::DescribeWorker()) {
    flags += static_cast<int>(command.flags.size());
    for (const std::string& finding : Findings(command)) ADD_FAILURE() << finding;
    std::set<std::string> variables = told;
    for (const FlagDescription& flag : command.flags) {
      EXPECT_TRUE(variables.insert(flag.environment).second) << flag.environment << " is taken";
    }
  }
  EXPECT_GT(flags, 20) << "the commands were not found";
}

// `regroup plan` hands its words on, and shows the flags of whom it becomes.
TEST(FlagsTest, FlagsOfRegroupPlanAreThoseOfRegroupWorkerPlan) {
  const auto described = [](const std::vector<CommandDescription>& commands) {
    for (const CommandDescription& command : commands) {
      if (command.name == "plan") return command;
    }
    return CommandDescription();
  };
  std::vector<CommandDescription> ours;
  for (const CommandEntry& entry : AllCommands()) ours.push_back(entry.make()->line().Describe());
  const std::vector<FlagDescription> theirs = described(worker::DescribeWorker()).flags;
  int own = 0;
  for (const FlagDescription& flag : described(ours).flags) {
    if (flag.names.back() == "--help") continue;
    const auto same = std::find_if(theirs.begin(), theirs.end(), [&](const FlagDescription& f) {
      return f.names == flag.names && f.placeholder == flag.placeholder &&
             f.environment == flag.environment;
    });
    EXPECT_NE(same, theirs.end()) << flag.names.back() << " " << flag.environment;
    own += flag.environment.rfind("REGROUP_PLAN_", 0) == 0 ? 1 : 0;
  }
  EXPECT_EQ(own, std::count_if(theirs.begin(), theirs.end(), [](const FlagDescription& f) {
              return f.environment.rfind("REGROUP_PLAN_", 0) == 0;
            }));
}

TEST(FlagsTest, APlantedFlagIsCaught) {
  CommandDescription good{.name = "x",
                          .example = "regroup x",
                          .flags = {{{"-f", "--flag"}, "N", "a number", "REGROUP_FLAG", "1"}}};
  const std::string page = "--flag REGROUP_FLAG regroup x";
  EXPECT_TRUE(Findings(good, page, page).empty());
  CommandDescription bad = good;
  bad.flags[0].help = "";
  EXPECT_EQ(Findings(bad, page, page), std::vector<std::string>{"x --flag: no help"});
  bad = good;
  bad.flags[0].environment = "";
  EXPECT_EQ(Findings(bad, page, page), std::vector<std::string>{"x --flag: no environment name"});
  EXPECT_EQ(Findings(good, page, "REGROUP_FLAG regroup x"),
            std::vector<std::string>{"x --flag: not in the man page"});
  EXPECT_EQ(Findings(good, page, "--flag regroup x"),
            std::vector<std::string>{"x --flag: environment name not in the man page"});
  EXPECT_EQ(Findings(good, page, "--flag REGROUP_FLAG"),
            std::vector<std::string>{"x: example not in the man page"});
}

}  // namespace
}  // namespace regroup::cli
