#include "common/config/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/agent_config.h"
#include "common/config/values.h"

namespace regroup {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Values {
  std::string text;
  bool quiet = false, module = false;
  int restarts = 0;
  Duration grace = std::chrono::seconds(30);
  NodeBounds nodes;
  std::string warm;
};

class FlagsTest : public ::testing::Test {
 protected:
  FlagsTest()
      : line_({.name = "run",
               .summary = "launch",
               .usage = "regroup run [OPTIONS] PROGRAM",
               .example = "regroup run x"}) {
    AddParsed(line_.app(), "-N,--nnodes", "MIN[:MAX]", "1", "nodes", [this](std::string_view text) {
      ASSIGN_OR_RETURN(values_.nodes, ParseNnodes(text));
      return absl::OkStatus();
    });
    AddText(line_.app(), "--log-dir", values_.text, "logs", "DIRECTORY");
    AddInt(line_.app(), "--max-restarts", values_.restarts, 0, 100, "restarts");
    AddDuration(line_.app(), "--grace", values_.grace, "grace");
    AddOptionalText(line_.app(), "-w,--warm", "[=MODULES]", "true", "warm",
                    [this](std::string_view text) {
                      if (text == "bad") return BadInput("bad is bad", "good is good", "good");
                      values_.warm = std::string(text);
                      return absl::OkStatus();
                    });
    AddSwitch(line_.app(), "-q,--quiet", values_.quiet, "quiet");
    AddSwitch(line_.app(), "-m,--module", values_.module, "module");
  }
  ~FlagsTest() override {
    for (const char* name : {"REGROUP_NNODES", "REGROUP_QUIET", "REGROUP_MAX_RESTARTS",
                             "REGROUP_RUN_NNODES", "REGROUP_WARM"})
      ::unsetenv(name);
  }
  absl::StatusOr<ParsedLine> Parse(const std::vector<std::string>& args, bool program = true) {
    return line_.Parse(args, program, {{"--standalone", "a one-node run needs no flag"}});
  }

  CommandLine line_;
  Values values_;
};

TEST_F(FlagsTest, FlagsEndAtTheProgram) {
  auto line = Parse({"-N", "2:4", "--max_restarts=3", "-q", "train.py", "--nnodes", "9", "-q"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_THAT(line->rest, ElementsAre("train.py", "--nnodes", "9", "-q"));
  EXPECT_EQ(values_.nodes, (NodeBounds{2, 4}));
  EXPECT_EQ(values_.restarts, 3);
  EXPECT_TRUE(values_.quiet);
  EXPECT_THAT(line->given, ElementsAre(ElementsAre("--nnodes", "2:4"),
                                       ElementsAre("--max-restarts", "3"), ElementsAre("--quiet")));
}

// The word behind it is the program, not its value.
TEST_F(FlagsTest, AValueThatMayBeLeftOut) {
  const std::tuple<std::vector<std::string>, std::string, std::string> rows[] = {
      {{"--warm", "train.py"}, "true", "--warm"},
      {{"-w", "train.py"}, "true", "--warm"},
      {{"-qw", "train.py"}, "true", "--warm"},
      {{"--warm=torch,numpy", "train.py"}, "torch,numpy", "--warm=torch,numpy"},
      {{"-w=torch", "train.py"}, "true", ""},
      {{"--warm", "-q", "train.py"}, "true", "--warm"}};
  for (const auto& [words, value, given] : rows) {
    values_.warm.clear();
    auto line = Parse(words);
    if (given.empty()) {
      EXPECT_FALSE(line.ok());
      continue;
    }
    ASSERT_TRUE(line.ok()) << line.status();
    EXPECT_EQ(values_.warm, value);
    EXPECT_THAT(line->rest, ElementsAre("train.py"));
    EXPECT_THAT(line->given, ::testing::Contains(ElementsAre(given)));
  }
  EXPECT_EQ(PartsOf(Parse({"--warm=", "train.py"}).status()).what, "--warm needs a value");
  const UserErrorParts typed = PartsOf(Parse({"--warm=bad", "train.py"}).status());
  EXPECT_EQ(typed.what, "--warm: bad is bad");
  EXPECT_EQ(typed.try_this, "--warm=good");
  ::setenv("REGROUP_WARM", "torch", 1);
  ASSERT_TRUE(Parse({"train.py"}).ok());
  EXPECT_EQ(values_.warm, "torch");
  ::setenv("REGROUP_WARM", "bad", 1);
  EXPECT_EQ(PartsOf(Parse({"train.py"}).status()).what, "REGROUP_WARM: bad is bad");
  EXPECT_TRUE(Parse({"--warm", "train.py"}).ok());
  const std::string help = RenderHelp(line_.Describe()),
                    page = RenderManPage(line_.Describe(), "1");
  EXPECT_THAT(help, HasSubstr("-w, --warm[=MODULES]"));
  EXPECT_THAT(help, ::testing::Not(HasSubstr("default true")));
  EXPECT_THAT(page, HasSubstr("\\-\\-warm[=MODULES]"));
}

TEST_F(FlagsTest, DashesEndFlags) {
  auto line = Parse({"-q", "--", "-weird", "--nnodes"});
  ASSERT_TRUE(line.ok());
  EXPECT_TRUE(line->dashes);
  EXPECT_THAT(line->rest, ElementsAre("-weird", "--nnodes"));
}

TEST_F(FlagsTest, WordsAndFlagsMixWithoutAProgram) {
  auto line = Parse({"train-4", "-q", "other"}, false);
  ASSERT_TRUE(line.ok());
  EXPECT_THAT(line->rest, ElementsAre("train-4", "other"));
  EXPECT_TRUE(values_.quiet);
}

TEST_F(FlagsTest, ShortFlagsCluster) {
  auto line = Parse({"-qmN2", "x"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_TRUE(values_.quiet && values_.module);
  EXPECT_EQ(values_.nodes.max, 2);
}

TEST_F(FlagsTest, LastOneWins) {
  ASSERT_TRUE(Parse({"--max-restarts", "1", "--max-restarts", "2", "x"}).ok());
  EXPECT_EQ(values_.restarts, 2);
}

TEST_F(FlagsTest, RepeatedOnesAreAllTaken) {
  std::vector<std::string> seen;
  AddRepeated(line_.app(), "--env", "NAME=VALUE", "variables", [&](std::string_view text) {
    seen.emplace_back(text);
    return text == "bad" ? absl::InvalidArgumentError("is bad") : absl::OkStatus();
  });
  ASSERT_TRUE(Parse({"--env", "A=1", "--env=B=2", "-q", "--env", "[C]", "x"}).ok());
  EXPECT_THAT(seen, ElementsAre("A=1", "B=2", "[C]"));
  EXPECT_EQ(PartsOf(Parse({"--env", "A=1", "--env", "bad", "x"}).status()).what, "--env: is bad");
}

TEST_F(FlagsTest, EnvironmentIsBeatenByTheCommandLine) {
  ::setenv("REGROUP_NNODES", "3", 1);
  ::setenv("REGROUP_QUIET", "yes", 1);
  ::setenv("REGROUP_MAX_RESTARTS", "7", 1);
  ASSERT_TRUE(Parse({"--max-restarts", "1", "x"}).ok());
  EXPECT_EQ(values_.nodes.min, 3);
  EXPECT_TRUE(values_.quiet);
  EXPECT_EQ(values_.restarts, 1);
}

TEST_F(FlagsTest, SwitchCanBeTurnedOff) {
  ::setenv("REGROUP_QUIET", "1", 1);
  ASSERT_TRUE(Parse({"--quiet=false", "x"}).ok());
  EXPECT_FALSE(values_.quiet);
}

TEST_F(FlagsTest, BadEnvironmentIsNamedAsSuch) {
  ::setenv("REGROUP_NNODES", "4:2", 1);
  UserErrorParts parts = PartsOf(Parse({"x"}).status());
  EXPECT_EQ(parts.what, "REGROUP_NNODES: \"4:2\" has its minimum above its maximum");
  EXPECT_EQ(parts.try_this, "REGROUP_NNODES=2:4");
}

TEST_F(FlagsTest, ScopedEnvironment) {
  ::setenv("REGROUP_NNODES", "3", 1);
  ::setenv("REGROUP_RUN_NNODES", "5", 1);
  ScopeEnvironment(line_.app(), "run");
  ASSERT_TRUE(Parse({"x"}).ok());
  EXPECT_EQ(values_.nodes.min, 5);
}

struct ErrorRow {
  std::vector<std::string> args;
  std::string what, because, try_this;
};

TEST_F(FlagsTest, Errors) {
  const ErrorRow rows[] = {
      {{"--nnodes", "4:2", "x"},
       "--nnodes: \"4:2\" has its minimum above its maximum",
       "MIN:MAX needs MIN at most MAX, and 4 is more than 2",
       "--nnodes 2:4"},
      {{"--nnode", "2", "x"},
       "unknown flag --nnode",
       "did you mean --nnodes?",
       "regroup run --help"},
      {{"--frobnicate", "x"},
       "unknown flag --frobnicate",
       "regroup run has no such flag",
       "regroup run --help"},
      {{"--standalone", "x"}, "unknown flag --standalone", "a one-node run needs no flag", ""},
      {{"-Z"}, "unknown flag -Z", "regroup run has no such flag", "regroup run --help"},
      {{"--nnodes"}, "--nnodes needs a value", "none was given", "--nnodes MIN[:MAX]"},
      {{"--nnodes=", "x"}, "--nnodes needs a value", "none was given", "--nnodes MIN[:MAX]"},
      {{"--max-restarts", "101"},
       "--max-restarts: \"101\" is out of range",
       "0 to 100 are allowed",
       "--max-restarts 100"},
      {{"--max-restarts", "-1"},
       "--max-restarts: \"-1\" is out of range",
       "0 to 100 are allowed",
       "--max-restarts 0"},
      {{"--max-restarts", "1e9"},
       "--max-restarts: \"1e9\" is not a whole number",
       "0 to 100 are allowed",
       ""},
      {{"--grace", "5"},
       "--grace: \"5\" is not a duration",
       "its unit is missing (ns us ms s m h d)",
       "a number with a unit, as in 90s, 2h14m or 500ms"}};
  for (const ErrorRow& row : rows) {
    absl::StatusOr<ParsedLine> line = Parse(row.args);
    ASSERT_FALSE(line.ok()) << row.what;
    UserErrorParts parts = PartsOf(line.status());
    EXPECT_EQ(parts.what, row.what);
    EXPECT_EQ(parts.because, row.because);
    EXPECT_EQ(parts.try_this, row.try_this);
  }
  EXPECT_FALSE(Parse({"--quiet=perhaps", "x"}).ok());
}

TEST_F(FlagsTest, HostileWordsAreOnlyWords) {
  for (const std::string& word :
       {std::string("--"), std::string("-"), std::string("--="), std::string("--=x"),
        std::string("---"), std::string("--nnodes\0=2", 11), std::string(1 << 20, '-'),
        std::string("--\xff\xfe"), std::string("--log-dir=[a,b]"), std::string("%%")}) {
    auto line = Parse({word, "x"});
    if (!line.ok()) {
      EXPECT_FALSE(PartsOf(line.status()).what.empty());
    }
  }
  ASSERT_TRUE(Parse({"--log-dir=[a,b]", "x"}).ok());
  EXPECT_EQ(values_.text, "[a,b]");
  ASSERT_TRUE(Parse({"--log-dir", "--quiet", "x"}).ok());
  EXPECT_EQ(values_.text, "--quiet");
}

TEST_F(FlagsTest, HelpComesFirst) {
  auto line = Parse({"--nnodes", "4:2", "--help"});
  ASSERT_TRUE(line.ok());
  EXPECT_TRUE(line->help);
  line = Parse({"x", "--help"});
  ASSERT_TRUE(line.ok());
  EXPECT_FALSE(line->help);  // The program's.
}

TEST_F(FlagsTest, OneDeclarationServesHelpAndManPage) {
  CommandDescription description = line_.Describe();
  std::string help = RenderHelp(description), page = RenderManPage(description, "0.1.0");
  EXPECT_EQ(description.flags.size(), 7u);
  EXPECT_THAT(help, HasSubstr("-N, --nnodes MIN[:MAX]"));
  EXPECT_THAT(help, HasSubstr("(default 1) [REGROUP_NNODES]"));
  EXPECT_THAT(page, HasSubstr("\\-N, \\-\\-nnodes MIN[:MAX]"));
  EXPECT_THAT(page, HasSubstr("Environment: REGROUP_MAX_RESTARTS."));
  for (std::size_t at = 0, end; at < help.size(); at = end + 1) {
    end = help.find('\n', at);
    EXPECT_LE(end - at, 80u) << help.substr(at, end - at);
  }
}

TEST(Help, OfAnotherProgramNamesItAndItsExitCodes) {
  const CommandDescription description = {.name = "train",
                                          .summary = "train a model",
                                          .usage = "other train",
                                          .example = "other train --fast",
                                          .exit_codes = {{0, "done"}, {11, "another rank died"}},
                                          .program = "other"};
  EXPECT_EQ(RenderHelp(description),
            "other train: train a model\n\nusage: other train\n\nexit codes:\n  0   done\n"
            "  11  another rank died\n\nexample:\n  other train --fast\n");
  const std::string page = RenderManPage(description, "1");
  EXPECT_THAT(page, HasSubstr(".TH OTHER-TRAIN 1"));
  EXPECT_THAT(page, HasSubstr(".SH NAME\nother\\-train \\- train a model\n"));
  EXPECT_THAT(page,
              HasSubstr(".SH EXIT STATUS\n.TP\n.B 0\ndone.\n.TP\n.B 11\nanother rank died.\n"));
  const auto refused = CommandLine(description).Parse({"--slow"}, false).status();
  EXPECT_EQ(PartsOf(refused).try_this, "other train --help");
}

TEST(AgentConfig, Rules) {
  struct Row {
    std::vector<std::string> args;
    std::string error;  // Of parsing or Validate; empty: fine.
  };
  const Row rows[] = {
      {{}, ""},
      {{"--coordinator", "localhost:5"}, ""},
      {{"--coordinator", "/run/regroup/coordinator.sock"}, ""},
      {{"--coordinator", "unix:/run/regroup/socket"}, ""},
      {{"--coordinator", "node0", "--insecure"}, ""},
      {{"--coordinator", "localhost:5,unix:/run/x,localhost:6"}, ""},
      {{"--coordinator", "localhost,node0"},
       "node0:29400 is asked over TCP, and no token was given"},
      {{"--coordinator", "localhost,localhost:x"}, "--coordinator: \"localhost:x\" has no port"},
      {{"--coordinator", "::1,::1,::1,::1,::1,::1,::1,::1"}, ""},
      {{"--coordinator", "::1,::1,::1,::1,::1,::1,::1,::1,::1"}, "--coordinator: 9 addresses"},
      {{"--coordinator", "node0"}, "node0:29400 is asked over TCP, and no token was given"},
      {{"--coordinator", "node0:x"}, "--coordinator: \"node0:x\" has no port"},
      {{"--node-name", "a b"}, "--node-name: 'a b' is not a node's name"},
      {{"--slots", "-1"}, "--slots: \"-1\" is out of range"},
      {{"--port-range", "9-5"}, "--port-range: \"9-5\" is empty"},
      {{"--grace", "0"}, "--grace: 0s leaves no time to save"}};
  for (const Row& row : rows) {
    AgentConfig config;
    CommandLine line({.name = "agent", .summary = "s", .usage = "u", .text = "", .example = "e"});
    DescribeFlags(line.app(), config);
    absl::Status status = line.Parse(row.args, false).status();
    if (status.ok()) status = Validate(config);
    EXPECT_EQ(PartsOf(status).what, row.error);
  }
}

}  // namespace
}  // namespace regroup
