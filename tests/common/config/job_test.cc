#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/user_error.h"
#include "common/config/job_file.h"
#include "common/config/job_limits.h"

namespace regroup {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::StartsWith;

JobSpec Good() {
  JobSpec spec;
  spec.name = "gpt";
  spec.command = {"python", "train.py"};
  spec.directory = "/shared/gpt";
  return spec;
}

TEST(JobLimits, Names) {
  for (const char* good : {"a", "gpt", "gpt-2", "0", "a0-b1"})
    EXPECT_TRUE(ValidateJobName("name", good).ok()) << good;
  EXPECT_TRUE(ValidateJobName("name", std::string(63, 'a')).ok());
  for (const std::string& bad :
       {std::string(), std::string("-a"), std::string("a-"), std::string("A"), std::string("a_b"),
        std::string("a b"), std::string("a/b"), std::string("a\nb"), std::string(64, 'a'),
        std::string("\xc3\xa4"), std::string("a\0b", 3)}) {
    EXPECT_FALSE(ValidateJobName("name", bad).ok()) << bad;
  }
}

TEST(JobLimits, NameFromAnything) {
  EXPECT_EQ(JobNameFrom("My_Train.v2"), "my-train-v2");
  EXPECT_EQ(JobNameFrom("---"), "job");
  EXPECT_EQ(JobNameFrom(""), "job");
  EXPECT_EQ(JobNameFrom("../../etc"), "etc");
  for (const std::string& text :
       {std::string(500, 'x'), std::string(62, 'a') + "-b", std::string("\x01\x02\xff"),
        std::string("a..b"), std::string("-a-")}) {
    EXPECT_TRUE(ValidateJobName("name", JobNameFrom(text)).ok()) << text;
  }
}

struct LimitRow {
  const char* name;
  void (*spoil)(JobSpec&);
  std::string what;  // Start of the error.
};

TEST(JobLimits, EveryLimitIsNamed) {
  const LimitRow rows[] = {
      {"nodes 0", [](JobSpec& s) { s.min_nodes = 0; }, "nnodes: minimum: 0 is out of range"},
      {"nodes 1e9", [](JobSpec& s) { s.max_nodes = 1'000'000'000; },
       "nnodes: maximum: 1000000000 is out of range"},
      {"nodes negative", [](JobSpec& s) { s.min_nodes = -5; }, "nnodes: minimum: -5"},
      {"4:2", [](JobSpec& s) { s.min_nodes = 4, s.max_nodes = 2; },
       "nnodes: 4:2 has its minimum above"},
      {"unit 0", [](JobSpec& s) { s.unit = 0; }, "nnodes: unit: 0"},
      {"unit too coarse", [](JobSpec& s) { s.min_nodes = 3, s.max_nodes = 3, s.unit = 2; },
       "nnodes: no multiple of unit 2"},
      {"workers", [](JobSpec& s) { s.workers_per_node = 1025; }, "nproc_per_node: 1025"},
      {"workers int max", [](JobSpec& s) { s.workers_per_node = 2147483647; },
       "nproc_per_node: 2147483647"},
      {"ranks", [](JobSpec& s) { s.max_nodes = 1000, s.workers_per_node = 66; },
       "nnodes x nproc_per_node: 1000 x 66 = 66000 ranks"},
      {"no command", [](JobSpec& s) { s.command.clear(); }, "run: there is no program"},
      {"empty program", [](JobSpec& s) { s.command = {""}; }, "run: there is no program"},
      {"many arguments", [](JobSpec& s) { s.command.resize(5000, "x"); }, "run: 5000 arguments"},
      {"long command", [](JobSpec& s) { s.command.push_back(std::string(70'000, 'x')); },
       "run: the command has 70017 bytes"},
      {"nul", [](JobSpec& s) { s.command.push_back(std::string("a\0b", 3)); },
       "run: an argument has a NUL"},
      {"relative", [](JobSpec& s) { s.directory = "gpt"; }, "workdir: gpt is not absolute"},
      {"long directory", [](JobSpec& s) { s.directory = "/" + std::string(5000, 'x'); },
       "workdir: a path of 5001 bytes"},
      {"variable", [](JobSpec& s) { s.environment["A-B"] = "x"; }, "env: A-B is not the name"},
      {"a variable of ours", [](JobSpec& s) { s.environment["RANK"] = "3"; },
       "env: RANK cannot be given"},
      {"another", [](JobSpec& s) { s.environment["REGROUP_GENERATION"] = "3"; },
       "env: REGROUP_GENERATION cannot be given"},
      {"empty variable", [](JobSpec& s) { s.environment[""] = "x"; }, "env: '' is not the name"},
      {"many variables",
       [](JobSpec& s) {
         for (int i = 0; i < 2000; ++i) s.environment["A" + std::to_string(i)];
       },
       "env: 2000 variables"},
      {"much environment", [](JobSpec& s) { s.environment["A"] = std::string(70'000, 'x'); },
       "env: 70003 bytes"},
      {"grace", [](JobSpec& s) { s.grace = -1s; }, "grace: -1000000000ns"},
      {"long grace", [](JobSpec& s) { s.grace = Duration::max(); }, "grace: "},
      {"start", [](JobSpec& s) { s.start_timeout = 0s; }, "start_timeout: 0s"},
      {"window", [](JobSpec& s) { s.restart_window = 0s; }, "restart_window: 0s"},
      {"restarts", [](JobSpec& s) { s.max_restarts = -1; }, "max_restarts: -1"},
      {"long check", [](JobSpec& s) { s.node_check.command = std::string(4097, 'x'); },
       "node_check: 4097 bytes"},
      {"nul in a check", [](JobSpec& s) { s.node_check.command = std::string("a\0b", 3); },
       "node_check: 3 bytes with a NUL"},
      {"check without time", [](JobSpec& s) { s.node_check.timeout = 0s; },
       "node_check_timeout: 0s is out of range"},
      {"endless check", [](JobSpec& s) { s.node_check.timeout = 61min; },
       "node_check_timeout: 1h1m is out of range"},
      {"little is kept", [](JobSpec& s) { s.log_keep_bytes = 100; },
       "log_keep: 100 B is out of range"},
      {"price", [](JobSpec& s) { s.price_per_node_hour = -0.5; },
       "price_per_node_hour: -0.5 is out of range"},
      {"price that is no number",
       [](JobSpec& s) { s.price_per_node_hour = std::numeric_limits<double>::quiet_NaN(); },
       "price_per_node_hour: nan is out of range"},
      {"exit code", [](JobSpec& s) { s.exit_codes[256] = ExitAction::kFail; },
       "retry.exit_codes: 256"}};
  EXPECT_TRUE(ValidateJobSpec(Good()).ok());
  for (const LimitRow& row : rows) {
    JobSpec spec = Good();
    row.spoil(spec);
    UserErrorParts parts = PartsOf(ValidateJobSpec(spec));
    EXPECT_THAT(parts.what, StartsWith(row.what)) << row.name;
    EXPECT_FALSE(parts.because.empty()) << row.name;
  }
}

constexpr char kCompleteExample[] = R"(name: gpt              # job.yaml; complete, and a test
nnodes: 2:4            # or {min: 2, max: 4, unit: 2}
nproc_per_node: 8
run: [python, train.py, --lr, "3e-4"]     # or a string: run by sh -c
workdir: /shared/gpt   # default: the submitter's; must exist on each node, else a reason naming both
env: {NCCL_DEBUG: WARN}
grace: 60s
retry: {max: 3, exit_codes: {77: fail}}
)";

TEST(JobFile, TheCompleteExample) {
  absl::StatusOr<JobSpec> spec = ParseJobFile(kCompleteExample, "job.yaml", "/home/u");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->name, "gpt");
  EXPECT_EQ(spec->min_nodes, 2);
  EXPECT_EQ(spec->max_nodes, 4);
  EXPECT_EQ(spec->unit, 1);
  EXPECT_EQ(spec->workers_per_node, 8);
  EXPECT_THAT(spec->command, ElementsAre("python", "train.py", "--lr", "3e-4"));
  EXPECT_EQ(spec->directory, "/shared/gpt");
  EXPECT_THAT(spec->environment, ElementsAre(Pair("NCCL_DEBUG", "WARN")));
  EXPECT_EQ(spec->grace, 60s);
  EXPECT_EQ(spec->max_restarts, 3);
  EXPECT_THAT(spec->exit_codes, ElementsAre(Pair(77, ExitAction::kFail)));
  EXPECT_EQ(spec->origin, JobOrigin::kSubmitted);
}

TEST(JobFile, Variants) {
  absl::StatusOr<JobSpec> spec = ParseJobFile(
      "name: a\nrun: echo $RANK | cat\nnnodes: {min: 2, max: 4, unit: 2}\n", "j", "/here");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(spec->command, ElementsAre("/bin/sh", "-c", "echo $RANK | cat"));
  EXPECT_EQ(spec->unit, 2);
  EXPECT_EQ(spec->directory, "/here");
  EXPECT_EQ(spec->max_restarts, 3);
  spec = ParseJobFile(
      "name: a\nrun: x\nnnodes: {min: 2}\nretry: {max: 0, window: 10m}\nscale_up: never\n", "j",
      "/here");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->max_nodes, 2);
  EXPECT_EQ(spec->restart_window, Duration(10min));
  EXPECT_EQ(spec->scale_up, ScaleUp::kNever);
}

TEST(JobFile, Preemptions) {
  const std::string file = "name: a\nrun: x\n";
  EXPECT_EQ(ParseJobFile(file, "j", "/here")->max_preemptions, std::nullopt);
  for (const auto& [text, limit] : {std::pair("0", 0), std::pair("1000000", 1'000'000)}) {
    absl::StatusOr<JobSpec> spec =
        ParseJobFile(file + "retry: {max_preemptions: " + text + "}\n", "j", "/here");
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->max_preemptions, limit);
    EXPECT_THAT(RenderJobFile(*spec), HasSubstr(std::string("max_preemptions: ") + text + "\n"));
  }
}

TEST(JobFile, PreemptionsOutOfRange) {
  for (const int limit : {-1, 1'000'001}) {
    JobSpec spec = Good();
    spec.max_preemptions = limit;
    EXPECT_EQ(PartsOf(ValidateJobSpec(spec)).what,
              absl::StrCat("max_preemptions: ", limit, " is out of range"));
  }
  const std::pair<std::string, std::string> rows[] = {
      {"retry: {max_preemptions: 1000001}", "retry.max_preemptions: \"1000001\" is out of range"},
      {"retry: {max_preemptions: [1]}", "retry.max_preemptions: a whole number is expected"},
      {"retry: 3", "retry: a map of exit_codes max max_preemptions window is expected"}};
  for (const auto& [text, what] : rows) {
    const absl::Status refused =
        ParseJobFile("name: a\nrun: x\n" + text + "\n", "job.yaml", "/home/u").status();
    EXPECT_EQ(PartsOf(refused).what, "job.yaml:3: " + what);
  }
}

TEST(JobFile, TorchrunsNames) {
  absl::StatusOr<JobSpec> job = ParseJobFile(
      "name: a\nrun: x\nmax_restarts: 4\nshutdown_timeout: 90\nrole: trainer\n"
      "numa_binding: socket\nvirtual_local_rank: true\n",
      "job.yaml", "/w");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->max_restarts, 4);
  EXPECT_EQ(job->grace, std::chrono::seconds(90));
  EXPECT_EQ(job->role, "trainer");
  EXPECT_EQ(job->numa_binding, "socket");
  EXPECT_TRUE(job->virtual_local_rank);
}

TEST(JobFile, Price) {
  absl::StatusOr<JobSpec> job =
      ParseJobFile("name: a\nrun: x\nprice_per_node_hour: 2.50\n", "job.yaml", "/w");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->price_per_node_hour, 2.5);
  EXPECT_THAT(RenderJobFile(*job), HasSubstr("price_per_node_hour: 2.5\n"));
}

TEST(JobFile, Warm) {
  const std::string file = "name: a\nrun: x\n";
  const std::vector<std::string> none, two = {"torch", "numpy.random"};
  const std::tuple<std::string, std::optional<std::vector<std::string>>, std::string> rows[] = {
      {"true", none, "warm: true\n"},
      {"on", none, "warm: true\n"},
      {"false", std::nullopt, ""},
      {"torch, numpy.random", two, "warm: torch,numpy.random\n"}};
  EXPECT_EQ(ParseJobFile(file, "j", "/here")->warm, std::nullopt);
  for (const auto& [text, warm, rendered] : rows) {
    absl::StatusOr<JobSpec> job =
        ParseJobFile(absl::StrCat(file, "warm: ", text, "\n"), "j", "/here");
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job->warm, warm) << text;
    EXPECT_THAT(RenderJobFile(*job),
                rendered.empty()
                    ? ::testing::Matcher<std::string>(::testing::Not(HasSubstr("warm")))
                    : ::testing::Matcher<std::string>(HasSubstr(rendered)));
    EXPECT_TRUE(ValidateJobSpec(*job).ok());
  }
  for (const auto& [text, what] :
       {std::pair{"a-b", "j:3: warm: a-b is no name of a module"},
        std::pair{"[torch]", "j:3: warm: true, false or names of modules is expected"},
        std::pair{"1torch", "j:3: warm: 1torch is no name of a module"}}) {
    const absl::Status refused = ParseJobFile(file + "warm: " + text + "\n", "j", "/here").status();
    EXPECT_EQ(PartsOf(refused).what, what);
  }
}

TEST(JobFile, InPlace) {
  const std::string file = "name: a\nrun: [python, train.py]\n";
  for (const bool in_place : {false, true}) {
    const std::string line = std::string("in_place: ") + (in_place ? "true" : "false") + "\n";
    absl::StatusOr<JobSpec> job = ParseJobFile(file + line, "j", "/here");
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job->in_place, std::optional<bool>(in_place));
    EXPECT_EQ(RenderJobFile(*job).find("in_place: true") != std::string::npos, in_place);
  }
  EXPECT_FALSE(ParseJobFile(file + "in_place: torch\n", "j", "/here").ok());
}

TEST(JobLimits, Warm) {
  JobSpec spec = Good();
  spec.warm = {{std::string(4096, 'x')}};
  EXPECT_TRUE(ValidateJobSpec(spec).ok());
  const std::pair<std::vector<std::string>, std::string> rows[] = {
      {{"torch", "a b"}, "'a b' is no name of a module"},
      {{"torch..x"}, "torch..x is no name of a module"},
      {{""}, "'' is no name of a module"},
      {{std::string(4097, 'x')}, "the names of the modules have 4097 bytes"}};
  for (const auto& [modules, what] : rows) {
    spec.warm = modules;
    EXPECT_EQ(PartsOf(ValidateJobSpec(spec)).what, absl::StrCat("warm: ", what));
  }
}

TEST(JobFile, RendersWhatItReads) {
  JobSpec spec = *ParseJobFile(kCompleteExample, "job.yaml", "/home/u");
  spec.unit = 2;
  spec.restart_window = 90min;
  spec.price_per_node_hour = 0.1;
  spec.log_keep_bytes = 3ull << 30;
  spec.role = "tr: #\"x";
  spec.node_check = {"test -e /dev/nvidia0 || { echo \"no: #device\"; exit 1; }", 90s};
  spec.numa_binding = "core-complex";
  spec.virtual_local_rank = true;
  spec.warm = {{"torch", "numpy"}};
  spec.environment["QUOTES"] = "a \"b\"\n: #c\t'";
  spec.command.push_back("");
  spec.command.push_back("yes");
  absl::StatusOr<JobSpec> again = ParseJobFile(RenderJobFile(spec), "again", "/elsewhere");
  ASSERT_TRUE(again.ok()) << again.status() << RenderJobFile(spec);
  EXPECT_EQ(*again, spec);
}

TEST(JobFile, NothingOfThisHostIsCounted) {
  const UserErrorParts parts = PartsOf(
      ParseJobFile("name: a\nrun: x\nnproc_per_node: cpu\n", "job.yaml", "/home/u").status());
  EXPECT_EQ(parts.what, "job.yaml:3: nproc_per_node: \"cpu\" is not for a submitted job");
  EXPECT_EQ(parts.because, "it runs on nodes that may have other devices than this host");
  EXPECT_EQ(parts.try_this, "nproc_per_node: 8");
}

TEST(JobFile, AWorkerForEachGpuOfItsNodes) {
  const absl::StatusOr<JobSpec> spec =
      ParseJobFile("name: a\nrun: x\nnnodes: 10000\nnproc_per_node: gpu\n", "job.yaml", "/home/u");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->workers_per_node, kWorkerPerGpu);
  const std::string text = RenderJobFile(*spec);
  EXPECT_THAT(text, ::testing::HasSubstr("nproc_per_node: gpu\n"));
  EXPECT_EQ(*ParseJobFile(text, "again", "/home/u"), *spec);
}

struct FileRow {
  std::string text, what, because;
};

// It was ignored in silence.
TEST(JobFile, ASecondDocumentIsRefused) {
  const absl::Status refused =
      ParseJobFile("name: a\nrun: x\n---\nname: b\nrun: y\n", "job.yaml", "/home/u").status();
  EXPECT_EQ(PartsOf(refused).what, "job.yaml:3: a second document");
  EXPECT_EQ(PartsOf(refused).because, "one file is one job");
  EXPECT_TRUE(ParseJobFile("---\nname: a\nrun: x\n...\n", "job.yaml", "/home/u").ok());
}

// yaml-cpp makes documents of it without end; they were all to be kept.
TEST(JobFile, ATextOfEndlessDocumentsIsRefused) {
  for (const char* text : {",", ",a: b\n", "name: a\nrun: x\n---\n,\n"}) {
    const absl::Status refused = ParseJobFile(text, "job.yaml", "/home/u").status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << text;
  }
}

// It would come back changed: a bad byte as three others.
TEST(JobFile, WhatIsNotUtf8IsRefusedWithItsLine) {
  for (const char* bad : {"\xff", "\xc3", "\xc3(", "\xed\xa0\x80", "\xf0\x9f\x98"}) {
    const std::string text = absl::StrCat("name: a\nrun: x\nrole: r", bad, "\n");
    const absl::Status refused = ParseJobFile(text, "job.yaml", "/home/u").status();
    EXPECT_EQ(PartsOf(refused).what, "job.yaml:3: not UTF-8") << absl::CHexEscape(bad);
  }
  EXPECT_TRUE(ParseJobFile("name: a\nrun: x\nrole: r\xc3\xa9", "job.yaml", "/home/u").ok());
}

constexpr char kKnown[] =
    "known are: env grace in_place log_keep max_restarts name nnodes node_check node_check_timeout "
    "nproc_per_node "
    "numa_binding price_per_node_hour retry role run scale_up shutdown_timeout virtual_local_rank "
    "warm workdir";

TEST(JobFile, Errors) {
  const std::string ok = "name: a\nrun: x\n";
  const FileRow rows[] = {
      {ok + "nnode: 2\n", "job.yaml:3: unknown field nnode", "did you mean nnodes?"},
      {ok + "zebra: 2\n", "job.yaml:3: unknown field zebra", kKnown},
      {ok + "rdzv_endpoint: node0\n", "job.yaml:3: a job file has no rdzv_endpoint",
       "nodes of a submitted job do not look for each other: the coordinator brings them together"},
      {ok + "node-rank: 1\n", "job.yaml:3: a job file has no node-rank",
       "the coordinator gives ranks, in natural order of nodes' names"},
      {ok + "shutdown_timeout: -1\n", "job.yaml:3: shutdown_timeout: \"-1\" is out of range",
       "0 to 31536000 are allowed"},
      {ok + "nnodes: 4:2\n", "job.yaml:3: nnodes: \"4:2\" has its minimum above its maximum",
       "MIN:MAX needs MIN at most MAX, and 4 is more than 2"},
      {ok + "nnodes: 0\n", "job.yaml:3: nnodes: \"0\" is out of range", "1 to 10000 are allowed"},
      {ok + "nproc_per_node: 1000000000\n",
       "job.yaml:3: nproc_per_node: \"1000000000\" is out of range", "1 to 1024 are allowed"},
      {ok + "nproc_per_node: [1]\n",
       "job.yaml:3: nproc_per_node: a whole number or gpu is expected", "this is a list"},
      {ok + "env: text\n", "job.yaml:3: env: a map NAME: value is expected", "this is text"},
      {ok + "env: {A: [1]}\n", "job.yaml:3: env: a map NAME: value is expected", "this is a list"},
      {ok + "grace: 60\n", "job.yaml:3: grace: \"60\" is not a duration",
       "its unit is missing (ns us ms s m h d)"},
      {ok + "role: \"\"\n", "job.yaml:3: role: '' is not a role",
       "1 to 63 bytes, no control characters"},
      {ok + "numa_binding: nodes\n", "job.yaml:3: numa_binding: nodes is not known",
       "use node, socket, exclusive or core-complex"},
      {ok + "virtual_local_rank: 1\n", "job.yaml:3: virtual_local_rank: true or false is expected",
       "this is text"},
      {ok + "tee: 3\n", "job.yaml:3: a job file has no tee",
       "nothing is shown where an agent runs a job: all output is kept"},
      {ok + "price_per_node_hour: -1\n", "job.yaml:3: price_per_node_hour: -1 is out of range",
       "0 to 1000000000 are allowed, without a currency"},
      {ok + "price_per_node_hour: $3.50\n",
       "job.yaml:3: price_per_node_hour: \"$3.50\" is not a number",
       "digits with a decimal point, as in 2.5, and nothing else"},
      {ok + "price_per_node_hour: .inf\n",
       "job.yaml:3: price_per_node_hour: \".inf\" is not a number",
       "digits with a decimal point, as in 2.5, and nothing else"},
      {ok + "price_per_node_hour: 1e400\n",
       "job.yaml:3: price_per_node_hour: \"1e400\" is not a number",
       "digits with a decimal point, as in 2.5, and nothing else"},
      {ok + "price_per_node_hour: [1]\n",
       "job.yaml:3: price_per_node_hour: a number without a currency is expected",
       "this is a list"},
      {ok + "retry: {maximum: 3}\n", "job.yaml:3: unknown field retry.maximum",
       "did you mean max?"},
      {ok + "retry: {exit_codes: {77: retyr}}\n",
       "job.yaml:3: retry.exit_codes: unknown action retyr", "did you mean retry?"},
      {ok + "retry: {exit_codes: {0: fail}}\n",
       "job.yaml:3: retry.exit_codes: \"0\" is out of range", "1 to 255 are allowed"},
      {ok + "name: b\n", "job.yaml:3: `name` is given twice", "one is allowed"},
      {"name: A_B\nrun: x\n", "job.yaml:1: name: A_B is not a name",
       "1 to 63 of a-z, 0-9 and '-', not starting or ending with '-'"},
      {"run: x\n", "job.yaml: the field name is missing", "a job has a name and a command"},
      {"name: a\n", "job.yaml: the field run is missing", "a job has a name and a command"},
      {"name: a\nrun: []\n", "job.yaml:2: run: there is no program", "a job needs a command"},
      {"name: a\nrun: [[x]]\n", "job.yaml:2: run: a list of words is expected", "this is a list"},
      {"- a\n", "job.yaml: not a job file", "a map of fields is expected, this is a list"},
      {"", "job.yaml: not a job file", "a map of fields is expected, this is empty"},
      {"name: [\n", "job.yaml:2: not YAML", "end of sequence flow not found"}};
  for (const FileRow& row : rows) {
    UserErrorParts parts = PartsOf(ParseJobFile(row.text, "job.yaml", "/home/u").status());
    EXPECT_EQ(parts.what, row.what) << row.text;
    EXPECT_EQ(parts.because, row.because) << row.text;
  }
}

TEST(JobFile, HostileFilesAreRefused) {
  EXPECT_FALSE(ParseJobFile(std::string(2 << 20, 'a'), "j", "/").ok());
  EXPECT_FALSE(ParseJobFile("name: " + std::string(100'000, '['), "j", "/").ok());
  EXPECT_FALSE(ParseJobFile("name: " + std::string(100'000, '{'), "j", "/").ok());
  EXPECT_FALSE(ParseJobFile(std::string("name: a\0run: x", 14), "j", "/").ok());
  EXPECT_FALSE(ParseJobFile("\xff\xfe\x00\x01", "j", "/").ok());
  EXPECT_FALSE(ParseJobFile("? [a]\n: b\n", "j", "/").ok());
  std::string bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n";
  for (char c = 'b'; c < 'z'; ++c) {
    const char last = static_cast<char>(c - 1);
    bomb += absl::StrFormat("%c: &%c [*%c,*%c,*%c]\n", c, c, last, last, last);
  }
  EXPECT_FALSE(ParseJobFile(bomb, "j", "/").ok());
  EXPECT_FALSE(ParseJobFile("name: &a a\nrun: &x [*x]\n", "j", "/").ok());
}

TEST(JobFile, MissingFile) {
  UserErrorParts parts = PartsOf(ReadJobFile("/nonexistent/job.yaml", "/").status());
  EXPECT_EQ(parts.what, "cannot read the job file /nonexistent/job.yaml");
  EXPECT_EQ(parts.because, "No such file or directory");
  EXPECT_FALSE(ReadJobFile("/", "/").ok());
}

}  // namespace
}  // namespace regroup
