// Every flag of every command: help, environment name, manual page. A flag without one of them
// fails here.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "launcher/cli/commands/command.h"
#include "launcher/cli/render/completion.h"

namespace regroup::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

TEST(EveryCommand, HasSummaryUsageAndExample) {
  for (const CommandEntry& entry : AllCommands()) {
    CommandDescription description = entry.make()->line().Describe();
    if (entry.name.substr(0, 2) != "__") {
      EXPECT_EQ(description.name, entry.name);
    }
    EXPECT_FALSE(description.summary.empty()) << entry.name;
    EXPECT_NE(description.summary.back(), '.') << entry.name;
    EXPECT_THAT(description.usage, ContainsRegex("regroup[ -]")) << entry.name;
    EXPECT_THAT(description.example, ContainsRegex("regroup[ -]")) << entry.name;
  }
}

TEST(EveryFlag, HasHelpEnvironmentManEntryAndCompletion) {
  std::vector<CommandDescription> all;
  for (const CommandEntry& entry : AllCommands()) {
    CommandDescription description = entry.make()->line().Describe();
    std::string help = RenderHelp(description), page = RenderManPage(description, "0");
    std::set<std::string> environments;
    for (const FlagDescription& flag : description.flags) {
      std::string name = flag.names.back();
      EXPECT_FALSE(flag.help.empty()) << entry.name << " " << name;
      EXPECT_NE(flag.help.back(), '.') << entry.name << " " << name;
      EXPECT_THAT(
          flag.environment,
          MatchesRegex(entry.name == "torchrun" ? "((REGROUP|PET)_[A-Z_]+)?" : "REGROUP_[A-Z_]+"))
          << entry.name << " " << name;
      EXPECT_THAT(help, HasSubstr(name));
      // torchrun itself has no variable for some.
      if (flag.environment.empty() && entry.name == "torchrun") continue;
      EXPECT_TRUE(environments.insert(flag.environment).second)
          << flag.environment << " is of two flags";
      EXPECT_THAT(help, HasSubstr("[" + flag.environment + "]"));
      EXPECT_THAT(page, HasSubstr("Environment: " + flag.environment));
    }
    if (!entry.hidden) all.push_back(std::move(description));
  }
  for (const char* shell : {"bash", "zsh", "fish"}) {
    std::string script = RenderCompletion(shell, all);
    for (const CommandDescription& description : all) {
      for (const FlagDescription& flag : description.flags) {
        EXPECT_THAT(script, HasSubstr(flag.names.back().substr(2))) << shell;
      }
    }
  }
}

TEST(EveryFlag, HelpSaysWhatIsTaken) {
  for (const CommandEntry& entry : AllCommands()) {
    std::string help;
    for (const FlagDescription& flag : entry.make()->line().Describe().flags) help += flag.help;
    const bool counts_devices = entry.name == "run" || entry.name == "torchrun";
    EXPECT_EQ(help.find("gpu, cpu, or auto") != std::string::npos, counts_devices) << entry.name;
  }
}

// A worker's own variables must not become flags of a command that it runs.
TEST(EveryFlag, NoEnvironmentNameIsAWorkersVariable) {
  const std::set<std::string> of_workers = {"REGROUP_JOB",         "REGROUP_GENERATION",
                                            "REGROUP_SOCKET",      "REGROUP_LOCAL_RANK",
                                            "REGROUP_RESUME_STEP", "REGROUP_WORKER_TOKEN"};
  for (const CommandEntry& entry : AllCommands()) {
    for (const FlagDescription& flag : entry.make()->line().Describe().flags) {
      EXPECT_EQ(of_workers.count(flag.environment), 0u) << entry.name << " " << flag.environment;
    }
  }
}

}  // namespace
}  // namespace regroup::cli
