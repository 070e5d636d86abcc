// The real `regroup`, where no coordinator is needed: exit codes of CLI.md's table, what is said,
// what is handed on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>

#include "common/config/job_file.h"
#include "common/config/launch_config.h"
#include "launcher/cli/commands/command.h"
#include "tests/launcher/cli/commands/process.h"

namespace regroup::cli {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class ExitCodes : public RegroupTest {};

struct Row {
  std::vector<std::string> args;
  int code;
  std::string error;  // First line of standard error begins with it.
};

TEST_F(ExitCodes, MisuseIs2AndForJobs125) {
  Write("bad.yaml", "name: a\nrun: x\nnnode: 2\n");
  const Row rows[] = {
      {{"frobnicate"}, 2, "error: unknown command frobnicate"},
      {{"rnu", "x"}, 2, "error: unknown command rnu\nbecause: did you mean run?"},
      {{"--frobnicate"}, 2, "error: unknown flag --frobnicate"},
      {{"ps", "--frobnicate"}, 2, "error: unknown flag --frobnicate"},
      {{"ps", "a", "b"}, 2, "error: too many words: b"},
      {{"logs"}, 2, "error: regroup logs needs a job"},
      {{"logs", "x", "--rank", "a"}, 2, "error: --rank: \"a\" is not a whole number"},
      {{"logs", "x", "--rank", "0,"}, 2, "error: --rank: a rank is missing"},
      {{"logs", "x", "--grep", "("}, 2, "error: --grep: '(' is not a regular expression"},
      {{"logs", "x", "--since", "5"}, 2, "error: --since: \"5\" is not a duration"},
      {{"submit"}, 2, "error: there is nothing to submit"},
      {{"submit", "python", "train.py"}, 2, "error: one job file is expected"},
      {{"submit", "bad.yaml"}, 2, "error: bad.yaml:3: unknown field nnode"},
      {{"submit", "bad.yaml", "--wait"}, 125, "error: bad.yaml:3: unknown field nnode"},
      {{"submit", "job.yaml", "--", "x"}, 2, "error: both a job file and a program"},
      {{"submit", "--wait", "bad.yaml"}, 125, "error: bad.yaml:3: unknown field nnode"},
      {{"submit", "--nnodes", "2", "bad.yaml"}, 2, "error: --nnodes does not go with a job file"},
      {{"submit", "--env", "A", "--", "x"}, 2, "error: --env: A is not NAME=VALUE"},
      {{"submit", "--ppn", "cpu", "--", "x"},
       2,
       "error: --nproc-per-node: \"cpu\" is not for a submitted job\n"
       "because: it runs on nodes that may have other devices than this host\ntry: "
       "--nproc-per-node 8\n"},
      {{"completion", "ksh"}, 2, "error: no completion for ksh"},
      {{"plan", "--gpu", "b1"}, 2, "error: --gpu: \"b1\" is not known"},
      {{"plan", "--memory", "lots"}, 2, "error: --memory: \"lots\" is not a size"},
      {{"plan", "--world", "0"}, 2, "error: --world: \"0\" is out of range"},
      {{"run"}, 125, "error: there is no program to run"},
      {{"run", "--frobnicate", "x"}, 125, "error: unknown flag --frobnicate"},
      {{"run", "--logs-specs", "mine", "x"},
       125,
       "error: --logs-specs: there is no plug-in mine\nbecause: logs are always kept"},
      {{"run", "--nnodes", "4:2", "true"},
       125,
       "error: --nnodes: \"4:2\" has its minimum above its maximum"},
      {{"run", "--nnodes", "0", "true"}, 125, "error: --nnodes: \"0\" is out of range"},
      {{"run", "--nnodes", "1000000000", "true"},
       125,
       "error: --nnodes: \"1000000000\" is out of range"},
      {{"run", "--ppn", "1000000000", "true"},
       125,
       "error: --nproc-per-node: \"1000000000\" is out of range"},
      {{"run", "--ppn", "0", "true"}, 125, "error: --nproc-per-node: \"0\" is out of range"},
      {{"run", "--rdzv-id", "A_b", "true"}, 125, "error: --rdzv-id: A_b is not a name"},
      {{"run", "--node-name", "a b", "true"},
       125,
       "error: --node-name: 'a b' is not a node's name"},
      {{"run", "--join-timeout", "0", "true"}, 125, "error: --join-timeout: 0s is no time to join"},
      {{"run", "-m", "--no-python", "x"}, 125, "error: -m and --no-python exclude each other"},
      {{"wait"}, 125, "error: regroup wait needs a job"},
      {{"coordinator", "--local", "--listen", "127.0.0.1"},
       125,
       "error: --local and --listen exclude each other"},
      {{"agent", "--coordinator", "node0"},
       125,
       "error: node0:29400 is asked over TCP, and no token was given"}};
  for (const Row& row : rows) {
    Ended ended = Run(row.args);
    EXPECT_EQ(ended.code, row.code) << ::testing::PrintToString(row.args) << ended.err;
    EXPECT_THAT(ended.err, StartsWith(row.error));
    EXPECT_EQ(ended.out, "");
  }
}

TEST_F(ExitCodes, NotFoundIs1AndForJobs125) {
  EXPECT_EQ(Run({"logs", "train-1"}).code, 1);
  EXPECT_EQ(Run({"explain"}).code, 1);
  EXPECT_EQ(Run({"cancel", "train-1"}).code, 1);
  EXPECT_EQ(Run({"nodes", "node7"}).code, 1);
  EXPECT_EQ(Run({"man", "frobnicate"}).code, 1);
  EXPECT_EQ(Run({"submit", "missing.yaml"}).code, 1);
  Ended ended = Run({"wait", "train-1"});
  EXPECT_EQ(ended.code, 125);
  EXPECT_THAT(ended.err, AllOf(StartsWith("error: no job train-1"), HasSubstr("\ntry: ")));
}

TEST_F(ExitCodes, NothingHereIsNoError) {
  Ended ended = Run({"ps"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(ended.out, StartsWith("JOB"));
  EXPECT_EQ(Run({"nodes"}).code, 0);
  EXPECT_EQ(Run({"ps", "--json"}).out, "{\"schema\":\"regroup.jobs/1\",\"jobs\":[]}\n");
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/state"));  // Reading makes nothing.
}

TEST_F(ExitCodes, UnreachableIs125) {
  for (std::vector<std::string> args : {std::vector<std::string>{"ps"},
                                        {"nodes"},
                                        {"submit", "--", "true"},
                                        {"explain"},
                                        {"logs", "last"},
                                        {"wait", "last"},
                                        {"cancel", "last"}}) {
    environment_["REGROUP_COORDINATOR"] = "127.0.0.1:1";
    Ended ended = Run(args);
    EXPECT_EQ(ended.code, 125) << ::testing::PrintToString(args);
    EXPECT_THAT(ended.err,
                AllOf(StartsWith("error: the coordinator at 127.0.0.1:1 cannot be reached"),
                      HasSubstr("\nbecause: ")))
        << args[0];
    environment_["REGROUP_COORDINATOR"] = "unix:" + folder_ + "/no.socket";
    EXPECT_EQ(Run(args).code, 125) << ::testing::PrintToString(args);
  }
  environment_.erase("REGROUP_COORDINATOR");
  EXPECT_EQ(Run({"submit", "--", "true"}).code, 125);
}

TEST_F(ExitCodes, AnotherHostNeedsItsToken) {
  Ended ended = Run({"ps", "--coordinator", "node0"});
  EXPECT_EQ(ended.code, 125);
  EXPECT_THAT(ended.err, HasSubstr("\ntry: REGROUP_TOKEN=… regroup ps"));
}

TEST_F(ExitCodes, SeveralNodesNeedAnEndpointAndTheCommandIsShown) {
  Ended ended = Run({"run", "--nnodes", "2", "train.py"});
  EXPECT_EQ(ended.code, 125);
  EXPECT_THAT(ended.err, AllOf(StartsWith("error: --nnodes 2 needs --rdzv-endpoint HOST[:PORT]"),
                               HasSubstr("try: regroup run --nnodes 2 --rdzv-endpoint "),
                               HasSubstr(":29400 --rdzv-id train train.py")));
}

TEST_F(ExitCodes, ProgramIs126Or127) {
  Write("plain", "x");
  Write("bad", "#!/no/such/interpreter\n", 0755);
  EXPECT_EQ(Run({"run", "--no-python", "./plain"}).code, 126);
  EXPECT_EQ(Run({"run", "./bad"}).code, 126);
  EXPECT_EQ(Run({"run", "."}).code, 126);
  EXPECT_EQ(Run({"run", "./missing"}).code, 127);
  EXPECT_EQ(Run({"run", "missing.py"}).code, 127);
  Ended ended = Run({"run", "plain"});
  EXPECT_EQ(ended.code, 127);
  EXPECT_THAT(ended.err, HasSubstr("try: ./plain"));
}

// What a run starts for itself, where REGROUP_LISTEN is set for a service.
TEST_F(ExitCodes, TheTypedOneOfLocalAndListenWinsOverTheEnvironment) {
  environment_["REGROUP_LISTEN"] = "no address at all";
  Ended ended = Run({"coordinator", "--local", "--state-dir", "/dev/null/state"});
  EXPECT_EQ(ended.code, 125);
  EXPECT_THAT(ended.err, HasSubstr("/dev/null/state"));
  environment_["REGROUP_LISTEN"] = "127.0.0.1:1";
  environment_["REGROUP_LOCAL"] = "1";
  EXPECT_THAT(Run({"coordinator"}).err, StartsWith("error: --local and --listen exclude each"));
  EXPECT_THAT(Run({"coordinator", "--listen", "x:y"}).err, StartsWith("error: --listen is no add"));
}

TEST_F(ExitCodes, ClosedOrFullOutputIsAnError) {
  std::string command = program_ + " version > /dev/full";
  EXPECT_EQ(RunProgram("/bin/sh", {"-c", command}, environment_).code, 1);
}

// What people type before they know the commands.
TEST_F(ExitCodes, APlaceForAProgramIsNamed) {
  Write("train.py", "");
  Write("job", "");
  struct Row {
    std::vector<std::string> args;
    std::string says;
  };
  for (const Row& row : std::vector<Row>{
           {{"train.py"}, "try: regroup run train.py\n"},
           {{"train.py", "--lr", "a b"}, "try: regroup run train.py --lr 'a b'\n"},
           {{"./job", "x"}, "try: regroup run ./job x\n"},
           {{"job"}, "try: regroup run job\n"},
           {{"--nproc-per-node", "2", "train.py"},
            "try: regroup run --nproc-per-node 2 train.py\n"},
           {{"--nproc-per-node=2", "train.py"}, "try: regroup run --nproc-per-node=2 train.py\n"},
           {{"--frobnicate"}, "try: regroup --help\n"},
           {{"submi"}, "try: regroup submit --help\n"},
           {{"help", "train.py"}, "unknown command train.py"},
           {{"submit", "train.py"}, "try: regroup submit -- python train.py\n"},
           {{"submit", "--name", "a", "train.py"},
            "try: regroup submit --name a -- python train.py\n"}}) {
    const Ended ended = Run(row.args);
    EXPECT_EQ(ended.code, 2) << ended.err;
    EXPECT_THAT(ended.err, HasSubstr(row.says));
  }
}

TEST_F(ExitCodes, APortThatIsNone) {
  const Ended ended = Run({"run", "--rdzv-endpoint", "localhost:99999", "x"});
  EXPECT_EQ(ended.code, 125);
  EXPECT_EQ(ended.err,
            "error: --rdzv-endpoint: \"localhost:99999\" has no port\n"
            "because: a port is a number from 1 to 65535\n"
            "try: --rdzv-endpoint localhost:29400\n");
}

TEST_F(ExitCodes, AnAddressOfAnotherHostIsNotListenedAt) {
  const Ended ended = Run({"coordinator", "--insecure", "--listen", "203.0.113.9:29400"});
  EXPECT_EQ(ended.code, 125);
  EXPECT_THAT(ended.err,
              AllOf(StartsWith("error: this host does not have the address 203.0.113.9\n"),
                    HasSubstr("try: regroup coordinator --listen ")));
}

class Said : public RegroupTest {};

TEST_F(Said, AJobFileInTheHelpOfSubmit) {
  const std::string help = Run({"submit", "--help"}).out;
  const std::size_t at = help.find("  # job.yaml\n");
  ASSERT_NE(at, std::string::npos) << help;
  std::string file;
  std::istringstream lines(help.substr(at));
  for (std::string line; std::getline(lines, line);)
    file += line.substr(std::min<std::size_t>(2, line.size())) + "\n";
  const absl::StatusOr<JobSpec> job = ParseJobFile(file, "job.yaml", "/w");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->name, "gpt");
}

// Sentences that were hard to read once.
TEST_F(Said, InEnglish) {
  Write("scale.yaml", "name: a\nrun: x\nscale_up: sometimes\n");
  Write("home/notes", "");
  ASSERT_EQ(::chmod((folder_ + "/home").c_str(), 0755), 0);
  struct Row {
    std::vector<std::string> args;
    std::string says;
  };
  for (const Row& row :
       std::vector<Row>{{{"--help"}, "explain why a job restarted, waited or failed"},
                        {{"run", "--help"}, "stays out and is checked again"},
                        {{"explain"}, "error: there is no job yet\n"},
                        {{"submit", "scale.yaml"}, "use settle, now, next or never"},
                        {{"run", "--scale-up", "sometimes", "x"}, "use settle, now, next or never"},
                        {{"coordinator", "--local", "--state-dir", folder_ + "/home"},
                         "error: other users can read the state directory "}}) {
    const Ended ended = Run(row.args);
    std::string said = ended.out + ended.err;
    for (std::size_t at; (at = said.find("\n        ")) != said.npos;) {
      const std::size_t next = said.find_first_not_of(" \n", at);
      said.replace(at, (next == said.npos ? said.size() : next) - at, " ");
    }
    EXPECT_THAT(said, HasSubstr(row.says));
  }
}

TEST_F(Said, HelpOfEveryCommand) {
  Ended ended = Run({"--help"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(Run({}).code, 2);
  for (const CommandEntry& entry : AllCommands()) {
    std::string name(entry.name);
    if (!entry.hidden) {
      EXPECT_THAT(ended.out, HasSubstr("\n  " + name + " "));
    }
    Ended help = Run({name, "--help"});
    EXPECT_EQ(help.code, 0) << name;
    EXPECT_THAT(help.out, AllOf(HasSubstr("usage: regroup"), HasSubstr("example:\n  "))) << name;
    // A line of a shell, which need not start with the command: "source <(regroup completion
    // bash)".
    std::string example = help.out.substr(std::min(help.out.find("example:"), help.out.size()));
    EXPECT_THAT(example, ContainsRegex(entry.hidden ? "regroup " : "regroup[ -]" + name)) << name;
    EXPECT_EQ(help.err, "") << name;
  }
  EXPECT_EQ(Run({"help", "run"}).out, Run({"run", "-h"}).out);
}

TEST_F(Said, WhatATrainingWillTake) {
  Write("gpt.yaml", "layers: 2\nwidth: 64\nheads: 2\ncontext: 16\n");
  const Ended text = Run({"plan", "--config", "gpt.yaml", "--world", "2", "--memory", "80GiB"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("\n--strategy zero-1 is suggested: it takes "));
  environment_["REGROUP_PLAN_GPU"] = "h200";
  const Ended json = Run({"plan", "--config", "gpt.yaml", "--json"});
  EXPECT_EQ(json.code, 0) << json.err;
  EXPECT_THAT(json.out,
              AllOf(StartsWith("{\n  \"parameters\": 11"), HasSubstr("\"name\": \"h200\"")));
}

// The trainer has the options; the manual and completion have those that are a plan's own.
TEST_F(Said, TheManualHasEveryOptionOfAPlan) {
  const auto names = [](std::string text) {
    std::set<std::string> found;
    const std::regex name("REGROUP_PLAN_[A-Z_]+");
    for (std::sregex_iterator at(text.begin(), text.end(), name), end; at != end; ++at)
      found.insert(at->str());
    return found;
  };
  const std::set<std::string> options = names(Run({"plan", "--help"}).out);
  EXPECT_THAT(options, testing::Contains("REGROUP_PLAN_NPROC_PER_NODE"));
  EXPECT_EQ(names(Run({"__man", "plan"}).out), options);
}

TEST_F(Said, Version) {
  Ended ended = Run({"--version"});
  EXPECT_EQ(ended.code, 0);
  for (const char* word : {"regroup ", "commit ", "build ", "protocol 1.3", "CUDA ", "NCCL "})
    EXPECT_THAT(ended.out, HasSubstr(word));
  EXPECT_THAT(Run({"version", "--json"}).out, StartsWith("{\"schema\":\"regroup.version/1\""));
}

TEST_F(Said, ManualPagesAndCompletion) {
  EXPECT_THAT(Run({"__man", "run"}).out,
              AllOf(StartsWith(".TH REGROUP-RUN 1"), HasSubstr("REGROUP_NNODES")));
  std::filesystem::create_directory(folder_ + "/man");
  EXPECT_EQ(Run({"__man", folder_ + "/man"}).code, 0);
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/man/regroup-explain.1"));
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/man/regroup.1"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/man/regroup-__man.1"));
  Write("completion.bash", Run({"completion", "bash"}).out);
  std::string script =
      "source completion.bash; COMP_WORDS=(regroup run --nn); COMP_CWORD=2; _regroup; echo "
      "${COMPREPLY[@]}; "
      "COMP_WORDS=(regroup ex); COMP_CWORD=1; _regroup; echo ${COMPREPLY[@]}";
  script += "; COMP_WORDS=(regroup plan --m); COMP_CWORD=2; _regroup; echo ${COMPREPLY[@]}";
  Ended ended = RunProgram("/bin/bash", {"-c", script}, environment_, folder_);
  EXPECT_EQ(ended.out, "--nnodes\nexplain\n--memory --mfu\n") << ended.err;
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/man/regroup-plan.1"));
}

TEST_F(Said, DryRunShowsTheJobWithoutACoordinator) {
  Ended ended = Run({"submit", "--dry-run", "--ppn", "2", "-N", "2:4", "--env", "A=b c", "--",
                     "python", "Train.py"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out, AllOf(HasSubstr("name: python\n"), HasSubstr("nnodes: 2:4\n"),
                               HasSubstr("workdir: \"" + folder_ + "\"")));
  Write("job.yaml", ended.out);
  EXPECT_EQ(Run({"submit", "--dry-run", "job.yaml"}).out, ended.out);
}

TEST_F(Said, ControlBytesOfArgumentsAreEscaped) {
  EXPECT_THAT(Run({"\x1b[2J"}).err, Not(HasSubstr("\x1b")));
  EXPECT_THAT(Run({"logs", "\x1b]0;x\x07"}).err, Not(HasSubstr("\x1b")));
}

// What `run` hands to the agent: a stand-in for it, beside a hard link of the real `regroup`,
// prints its configuration.
class HandedOver : public RegroupTest {
 protected:
  HandedOver() {
    std::filesystem::create_directory(folder_ + "/bin");
    std::filesystem::create_hard_link(std::filesystem::canonical(program_),
                                      folder_ + "/bin/regroup");
    program_ = folder_ + "/bin/regroup";
    Write("bin/regroup-agent",
          "#!/bin/sh\nif [ \"$1\" = --launch-config-fd ]; then exec cat /proc/self/fd/$2; fi\necho "
          "\"$@\"\n",
          0755);
    Write("train.py", "");
    Write("python", "#!/bin/sh\n", 0755);
    environment_["PYTHON_EXEC"] = folder_ + "/python";
  }
  LaunchConfig Launch(const std::vector<std::string>& args) {
    Ended ended = Run(args);
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_EQ(ended.err, "");
    absl::StatusOr<LaunchConfig> config = LaunchConfigFromJson(ended.out);
    EXPECT_TRUE(config.ok()) << config.status() << ended.out;
    return config.ok() ? *config : LaunchConfig();
  }
};

TEST_F(HandedOver, EveryWordOfAPlanAndItsExitCode) {
  Write("bin/regroup-worker", "#!/bin/sh\nfor word; do echo \"<$word>\"; done\nexit 7\n", 0755);
  const Ended ended = Run({"plan", "--config", "a b.yaml", "--layers=3", "--help", "--", "x"});
  EXPECT_EQ(ended.out, "<plan>\n<--config>\n<a b.yaml>\n<--layers=3>\n<--help>\n<-->\n<x>\n");
  EXPECT_EQ(ended.code, 7);
  EXPECT_EQ(ended.err, "");
  EXPECT_EQ(Run({"help", "plan"}).out, "<plan>\n<--help>\n");
}

TEST_F(HandedOver, APlanWithoutItsProgramIsRefused) {
  const Ended ended = Run({"plan", "--config", "gpt.yaml"});
  EXPECT_EQ(ended.code, 1);
  EXPECT_EQ(ended.err, "error: cannot start " + folder_ +
                           "/bin/regroup-worker\nbecause: No such file or directory\ntry: is "
                           "Regroup installed completely? ./dev install\n");
}

TEST_F(HandedOver, OneNode) {
  std::int64_t before = BoottimeNanoseconds();
  LaunchConfig config = Launch({"run", "train.py", "--lr", "1\xff"});
  EXPECT_THAT(config.given, ElementsAre("train.py", "--lr", "1\xff"));
  EXPECT_THAT(config.argv, ElementsAre(folder_ + "/python", "-u", "train.py", "--lr", "1\xff"));
  EXPECT_TRUE(config.python);
  EXPECT_EQ(config.spec.name, "train");
  EXPECT_EQ(config.spec.max_restarts, 0);
  EXPECT_EQ(config.spec.max_nodes, 1);
  EXPECT_EQ(config.workers, 1);
  EXPECT_FALSE(config.endpoint.has_value());
  EXPECT_FALSE(config.node_name_explicit);
  EXPECT_THAT(config.state_dir, StartsWith(folder_ + "/state/regroup/"));
  EXPECT_THAT(config.log_dir, EndsWith("/logs/local"));
  EXPECT_GE(config.started_boottime_ns, before);
  EXPECT_LE(config.started_boottime_ns, BoottimeNanoseconds());
  struct stat info {};
  ASSERT_EQ(::stat(config.state_dir.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST_F(HandedOver, EverythingGiven) {
  environment_["REGROUP_MAX_RESTARTS"] = "3";
  LaunchConfig config = Launch({"run",
                                "-N2:3",
                                "--max-preemptions",
                                "7",
                                "--nproc_per_node",
                                "2",
                                "--rdzv-endpoint",
                                "10.0.0.4:1",
                                "--rdzv-id",
                                "my-id",
                                "--join-timeout",
                                "10m",
                                "--grace",
                                "61s",
                                "--scale-up",
                                "never",
                                "-m",
                                "--node-name",
                                "n1",
                                "--log-dir",
                                "out",
                                "--port-range",
                                "5-9",
                                "--insecure",
                                "-q",
                                "pkg.train",
                                "-x"});
  EXPECT_EQ(config.endpoint, (Endpoint{"10.0.0.4", 1}));
  EXPECT_EQ(config.spec.name, "my-id");
  EXPECT_EQ(config.spec.min_nodes, 2);
  EXPECT_EQ(config.spec.max_restarts, 3);
  EXPECT_EQ(config.spec.max_preemptions, 7);
  EXPECT_EQ(config.spec.scale_up, ScaleUp::kNever);
  EXPECT_EQ(config.workers, 2);
  EXPECT_EQ(config.join_timeout, Duration(std::chrono::minutes(10)));
  EXPECT_TRUE(config.insecure && config.quiet && config.node_name_explicit &&
              config.log_dir_explicit);
  EXPECT_EQ(config.log_dir, folder_ + "/out");
  EXPECT_EQ(config.ports, (PortRange{5, 9}));
  EXPECT_THAT(
      config.others_options,
      ElementsAre("--nnodes", "2:3", "--max-preemptions", "7", "--nproc-per-node", "2",
                  "--join-timeout", "10m", "--grace", "61s", "--scale-up", "never", "--log-dir",
                  "out", "--port-range", "5-9", "--quiet", "--max-restarts", "3"));
  EXPECT_THAT(config.others_program, ElementsAre("--module", "pkg.train", "-x"));
}

TEST_F(HandedOver, HugeCommandLinesAreCutForDisplayOnly) {
  std::vector<std::string> args = {"run", "train.py"};
  for (int i = 0; i < 10'000; ++i) args.push_back("argument-" + std::to_string(i));
  LaunchConfig config = Launch(args);
  EXPECT_EQ(config.argv.size(), 10'003u);
  EXPECT_LT(config.spec.command.size(), 3'000u);
  EXPECT_EQ(config.spec.command.back(), "...");
}

TEST_F(HandedOver, AgentGetsItsFlags) {
  EXPECT_EQ(Run({"agent", "--slots=2", "--sigterm_is_notice", "--coordinator", "127.0.0.1"}).out,
            "--slots 2 --sigterm-is-notice --coordinator 127.0.0.1\n");
}

TEST_F(HandedOver, AFlagBehindTheProgramThatWasMeantForUs) {
  struct Row {
    std::vector<std::string> args;
    std::string says;
  };
  for (const Row& row : std::vector<Row>{
           {{"train.py", "--nproc-per-node", "2", "--lr", "1"},
            "regroup: --nproc-per-node 2 stands behind train.py, which gets it, and one worker "
            "runs · "
            "for Regroup: regroup run --nproc-per-node 2 train.py --lr 1\n"},
           {{"train.py", "--nproc_per_node=2"}, "regroup run --nproc_per_node=2 train.py\n"},
           {{"--max-restarts", "2", "train.py", "--ppn", "4"},
            "regroup run --max-restarts 2 --ppn 4 train.py\n"},
           {{"--ppn", "2", "train.py", "--nproc-per-node", "2"}, ""},
           {{"-q", "train.py", "--nproc-per-node", "2"}, ""},
           {{"train.py", "--lr", "2"}, ""}}) {
    std::vector<std::string> args = row.args;
    args.insert(args.begin(), "run");
    const Ended ended = Run(args);
    EXPECT_EQ(ended.code, 0) << ended.err;
    if (row.says.empty()) {
      EXPECT_EQ(ended.err, "");
    } else {
      EXPECT_THAT(ended.err, HasSubstr(row.says));
    }
  }
}

TEST_F(HandedOver, BadStateDirectories) {
  Write("file", "");
  EXPECT_EQ(Run({"run", "--state-dir", "file", "train.py"}).code, 125);
  std::filesystem::create_directories(folder_ + "/open/documents");
  ::chmod((folder_ + "/open").c_str(), 0755);
  Ended ended = Run({"run", "--state-dir", "open", "train.py"});
  EXPECT_EQ(ended.code, 125);
  EXPECT_THAT(ended.err, HasSubstr("try: chmod 700 "));
}

TEST_F(HandedOver, MissingAgentIsSaid) {
  std::filesystem::remove(folder_ + "/bin/regroup-agent");
  Ended ended = Run({"run", "train.py"});
  EXPECT_EQ(ended.code, 125);
  EXPECT_THAT(ended.err, StartsWith("error: cannot start "));
}

}  // namespace
}  // namespace regroup::cli
