// torchrun's command line: every option in both spellings and by its PET_ variable, what becomes of
// it, and what is refused with which words.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <map>
#include <set>

#include "common/base/user_error.h"
#include "common/config/job_file.h"
#include "common/config/text.h"
#include "launcher/cli/commands/all.h"
#include "launcher/cli/commands/launch.h"
#include "tests/launcher/cli/commands/process.h"

namespace regroup::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Words = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

// What a command line comes to, without a process.
struct Outcome {
  absl::Status status;
  LaunchFlags flags;
  Meeting meeting;
  LaunchConfig config;
};

Outcome Read(Manner manner, const Words& args, const Variables& variables = {}) {
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  Outcome outcome;
  CommandLine line(CommandDescription{.name = "torchrun"});
  DescribeFlags(manner, line.app(), outcome.flags);
  absl::StatusOr<ParsedLine> parsed = line.Parse(args, true, {}, RulesOf(manner));
  outcome.status = parsed.status();
  if (parsed.ok()) {
    Words names;
    for (const Words& flag : parsed->given) names.push_back(flag[0]);
    absl::StatusOr<Meeting> meeting = Settle(manner, names, outcome.flags);
    outcome.status = meeting.status();
    if (meeting.ok()) {
      outcome.meeting = *meeting;
      absl::StatusOr<int> workers = 1;
      if (outcome.flags.job.workers.find_first_not_of("0123456789") == std::string::npos)
        workers = std::stoi(outcome.flags.job.workers);
      outcome.status = Apply(outcome.flags.torch, *workers, outcome.config);
    }
  }
  for (const auto& [name, value] : variables) ::unsetenv(name.c_str());
  return outcome;
}

std::string Fingerprint(const Outcome& outcome) {
  const LaunchFlags& f = outcome.flags;
  return Cat(LaunchConfigToJson(outcome.config), f.job.nodes.min, ":", f.job.nodes.max, " ",
             f.job.workers, " ", f.job.fields.max_restarts, " ", f.job.fields.grace.count(), " ",
             f.endpoint ? Cat(f.endpoint->host, " ", f.endpoint->port) : std::string("none"), " ",
             f.rdzv_id, " ", f.join_timeout ? f.join_timeout->count() : -1, " ",
             static_cast<int>(f.program.module), static_cast<int>(f.program.no_python),
             static_cast<int>(f.torch.run_path), static_cast<int>(f.torch.standalone), " ",
             f.log_dir, " ", f.torch.backend, " ", f.torch.print_completion, " ",
             outcome.meeting.node_name, outcome.meeting.notices.size());
}

struct OptionRow {
  std::string name, value;  // No value: a switch.
  Words others;             // Beside it, so that it makes a difference.
  bool effect = true;       // Something comes to be different.
};
const std::vector<OptionRow>& OptionRows() {
  static const std::vector<OptionRow> kRows = {
      {"nnodes", "1:4", {"--rdzv-backend", "c10d"}},
      {"nproc-per-node", "4", {}},
      {"rdzv-backend", "c10d", {"--nnodes", "2"}},
      {"rdzv-endpoint", "node0:29400", {"--nnodes", "2"}},
      {"rdzv-id", "abc", {}},
      {"rdzv-conf", "join_timeout=77", {"--nnodes", "2", "--rdzv-backend=c10d"}},
      {"standalone", "", {}},
      {"max-restarts", "3", {}},
      {"monitor-interval", "0.5", {}, false},
      {"start-method", "fork", {}, false},
      {"event-log-handler", "console", {}},
      {"role", "trainer", {}},
      {"module", "", {}},
      {"no-python", "", {}},
      {"run-path", "", {}},
      {"log-dir", "/tmp/x", {}},
      {"redirects", "0:3", {"--nproc-per-node", "2"}},
      {"tee", "3", {}},
      {"log-line-prefix-template", "${rank}:", {}},
      {"local-ranks-filter", "0,1", {}},
      {"duplicate-stdout-filters", "a,b", {}},
      {"duplicate-stderr-filters", "a,b", {}},
      {"node-rank", "1", {"--nnodes", "2"}},
      {"master-addr", "node0", {"--nnodes", "2"}},
      {"master-port", "1234", {"--nnodes", "2"}},
      {"local-addr", "127.0.0.1", {}},
      {"numa-binding", "node", {}},
      {"signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1", {}},
      {"shutdown-timeout", "7", {}},
      {"virtual-local-rank", "", {}},
      {"print-completion", "bash", {}},
      {"logs-specs", "default", {}, false}};
  return kRows;
}

TEST(EveryTorchrunOption, HasARow) {
  std::set<std::string> rows, options;
  for (const OptionRow& row : OptionRows()) rows.insert(row.name);
  for (const TorchrunOption& option : TorchrunOptions()) options.emplace(option.name);
  EXPECT_EQ(rows, options);
}

TEST(EveryTorchrunOption, MeansTheSameInEachSpellingAndByItsVariable) {
  for (const TorchrunOption& option : TorchrunOptions()) {
    auto row = std::find_if(OptionRows().begin(), OptionRows().end(),
                            [&](const OptionRow& r) { return r.name == option.name; });
    ASSERT_NE(row, OptionRows().end());
    SCOPED_TRACE(row->name);
    std::string underscores = row->name, variable = "PET_" + row->name;
    std::replace(underscores.begin(), underscores.end(), '-', '_');
    std::transform(variable.begin(), variable.end(), variable.begin(), [](unsigned char c) {
      return c == '-' ? '_' : static_cast<char>(std::toupper(c));
    });
    auto with = [&](Words words) {
      words.insert(words.begin(), row->others.begin(), row->others.end());
      words.push_back("x.py");
      return words;
    };
    auto typed = [&](const std::string& name) {
      return row->value.empty() ? Words{"--" + name} : Words{"--" + name, row->value};
    };
    const Outcome without = Read(Manner::kTorchrun, with({}));
    const Outcome dashes = Read(Manner::kTorchrun, with(typed(row->name)));
    ASSERT_TRUE(without.status.ok()) << without.status;
    ASSERT_TRUE(dashes.status.ok()) << dashes.status;
    EXPECT_EQ(Fingerprint(dashes) != Fingerprint(without), row->effect);
    const Outcome other = Read(Manner::kTorchrun, with(typed(underscores)));
    EXPECT_EQ(Fingerprint(other), Fingerprint(dashes));
    const std::string in_variable = row->value.empty() ? "2" : row->value;
    const Outcome by_variable = Read(Manner::kTorchrun, with({}), {{variable, in_variable}});
    EXPECT_EQ(Fingerprint(by_variable), Fingerprint(option.environment ? dashes : without));
    const Outcome in_run = Read(Manner::kRun, with(typed(row->name)));
    EXPECT_TRUE(in_run.status.ok()) << in_run.status;
    if (!row->value.empty()) continue;
    EXPECT_EQ(Fingerprint(Read(Manner::kTorchrun, with({}), {{variable, "0"}})),
              Fingerprint(without));
    EXPECT_THAT(std::string(Read(Manner::kTorchrun, with({}), {{variable, "x"}}).status.message()),
                HasSubstr(row->name));
  }
}

TEST(Torchrun, TheLineBeatsTheVariable) {
  const Outcome outcome =
      Read(Manner::kTorchrun, {"--nproc_per_node=3", "x.py"}, {{"PET_NPROC_PER_NODE", "5"}});
  EXPECT_EQ(outcome.flags.job.workers, "3");
}

// As torchrun: PROTOCOL §3.
TEST(Torchrun, RestartsNobodyUnlessAsked) {
  for (Manner manner : {Manner::kTorchrun, Manner::kRun})
    EXPECT_EQ(Read(manner, {"x.py"}).flags.job.fields.max_restarts, 0);
}

TEST(Torchrun, ShortFlagsAbbreviationsAndEmptyValues) {
  const Outcome outcome =
      Read(Manner::kTorchrun, {"-r3", "-t", "0:1,1:2", "-m", "--stand", "--rdzv-id", "", "x"});
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.flags.torch.redirects.all, 3);
  EXPECT_THAT(outcome.flags.torch.tee.For(3), ElementsAre(1, 2, 0));
  EXPECT_TRUE(outcome.flags.program.module && outcome.flags.torch.standalone);
}

struct MeetingRow {
  const char* name;
  Manner manner;
  Words args;
  std::string bounds, endpoint, node;  // Of node: what it begins with; "": the host's own name.
  int join_timeout_s;                  // -1: waits.
  std::size_t notices = 0;
};

std::vector<MeetingRow> MeetingRows() {
  const Manner t = Manner::kTorchrun, r = Manner::kRun;
  return {
      {"nothing", t, {}, "1", "", "", -1},
      {"standalone", t, {"--standalone"}, "1", "", "", -1},
      {"standalone ignores", t, {"--standalone", "--rdzv-endpoint=a:1"}, "1", "", "", -1, 1},
      {"standalone of a range", t, {"--standalone", "--nnodes=1:4"}, "1", "", "", -1},
      {"static", t, {"--nnodes=2", "--node_rank=1", "--master_addr=h"}, "2", "h:29500", "1-", 600},
      {"static port",
       t,
       {"--nnodes=2", "--master_addr=h", "--master_port=7"},
       "2",
       "h:7",
       "0-",
       600},
      {"static v6", t, {"--nnodes=2", "--master-addr=[::1]"}, "2", "[::1]:29500", "0-", 600},
      {"static endpoint", t, {"--nnodes=2", "--rdzv-endpoint=h:9"}, "2", "h:9", "0-", 600},
      {"static here", t, {"--nnodes=2"}, "2", "127.0.0.1:29500", "0-", 600},
      {"static range", t, {"--nnodes=2:4"}, "4", "127.0.0.1:29500", "0-", 600, 1},
      {"static timeout",
       t,
       {"--nnodes=2", "--rdzv-conf=timeout=9"},
       "2",
       "127.0.0.1:29500",
       "0-",
       9},
      {"static alone", t, {"--master-port=1234"}, "1", "", "", -1},
      {"c10d",
       t,
       {"--nnodes=1:4", "--rdzv-backend=c10d", "--rdzv-endpoint=h"},
       "1:4",
       "h:29400",
       "",
       600},
      {"c10d here", t, {"--nnodes=2", "--rdzv-backend=c10d"}, "2", "localhost:29400", "", 600},
      {"c10d with a rank", t, {"--rdzv-backend=c10d", "--node-rank=1"}, "1", "", "", -1, 1},
      {"c10d conf",
       t,
       {"--nnodes=2", "--rdzv-backend=c10d",
        "--rdzv-conf=join_timeout=5,last_call_timeout=1,timeout=9,store_type=tcp"},
       "2",
       "localhost:29400",
       "",
       5,
       2},
      {"run", r, {"--nnodes=2", "--rdzv-endpoint=h"}, "2", "h:29400", "", -1},
      {"run static",
       r,
       {"--nnodes=2", "--master-addr=h", "--node-rank=0"},
       "2",
       "h:29500",
       "0-",
       -1},
      {"run by rank",
       r,
       {"--nnodes=2", "--rdzv-endpoint=h", "--node-rank=1"},
       "2",
       "h:29400",
       "1-",
       -1},
      {"run conf",
       r,
       {"--nnodes=2", "--rdzv-endpoint=h", "--rdzv-conf=join_timeout=5"},
       "2",
       "h:29400",
       "",
       5},
      {"total", r, {"--nnodes=2", "--rdzv-endpoint=h", "-n", "8"}, "2", "h:29400", "", -1},
  };
}

TEST(Meeting, Table) {
  for (const MeetingRow& row : MeetingRows()) {
    Words args = row.args;
    args.push_back("x.py");
    const Outcome outcome = Read(row.manner, args);
    ASSERT_TRUE(outcome.status.ok()) << row.name << ": " << outcome.status;
    const LaunchFlags& flags = outcome.flags;
    EXPECT_EQ(FormatNnodes(flags.job.nodes.min, flags.job.nodes.max), row.bounds) << row.name;
    EXPECT_EQ(flags.endpoint ? FormatEndpoint(flags.endpoint->host, flags.endpoint->port) : "",
              row.endpoint)
        << row.name;
    EXPECT_EQ(outcome.meeting.node_name.substr(0, row.node.empty() ? std::string::npos : 2),
              row.node)
        << row.name;
    EXPECT_EQ(flags.join_timeout ? *flags.join_timeout / std::chrono::seconds(1) : -1,
              row.join_timeout_s)
        << row.name;
    EXPECT_EQ(outcome.meeting.notices.size(), row.notices) << row.name;
  }
}

TEST(Meeting, TimersAreNotWatchedAndThatIsSaid) {
  for (Manner manner : {Manner::kRun, Manner::kTorchrun}) {
    const auto notices = [&](const char* value) {
      return Read(manner, {"x"}, {{"TORCHELASTIC_ENABLE_FILE_TIMER", value}}).meeting.notices;
    };
    EXPECT_THAT(notices("1"),
                ElementsAre("TORCHELASTIC_ENABLE_FILE_TIMER=1 has no effect: timers of "
                            "torch.distributed.elastic.timer are not watched"));
    EXPECT_THAT(notices("0"), IsEmpty());
  }
}

// torchrun knows one option that begins with --max, `regroup run` two.
TEST(Meeting, AnAbbreviationMeansTorchrunsOption) {
  const Outcome outcome = Read(Manner::kTorchrun, {"--max=3", "--max-preemptions", "2", "x"});
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.flags.job.fields.max_restarts, 3);
  EXPECT_EQ(outcome.flags.job.fields.max_preemptions, 2);
  EXPECT_EQ(Read(Manner::kTorchrun, {"--max-p=4", "x"}).flags.job.fields.max_preemptions, 4);
  EXPECT_FALSE(Read(Manner::kTorchrun, {"--no", "x"}).status.ok());  // Several of torchrun's.
}

TEST(Meeting, AnyPortIsForOneNodeThatNeedsNone) {
  for (const Words& args : {Words{"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "x"},
                            Words{"--standalone", "--nnodes=1:4", "--rdzv-endpoint=h:0", "x"}}) {
    const Outcome outcome = Read(Manner::kTorchrun, args);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_FALSE(outcome.flags.endpoint);
    EXPECT_EQ(outcome.flags.job.nodes.max, 1);
  }
}

TEST(Meeting, TotalRanksAreSpread) {
  EXPECT_EQ(Read(Manner::kRun, {"-N", "2", "--rdzv-endpoint=h", "-n", "8", "x"}).flags.job.workers,
            "4");
  EXPECT_EQ(Read(Manner::kRun, {"-n", "3", "--ppn", "3", "x"}).flags.job.workers, "3");
}

TEST(Meeting, GraceInSeconds) {
  using std::chrono::seconds;
  EXPECT_EQ(Read(Manner::kRun, {"--shutdown-timeout", "7", "x"}).flags.job.fields.grace,
            seconds(7));
  const Variables variable = {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "9"}};
  EXPECT_EQ(Read(Manner::kTorchrun, {"x"}, variable).flags.job.fields.grace, seconds(9));
  EXPECT_EQ(Read(Manner::kTorchrun, {"--shutdown-timeout=7", "x"}, variable).flags.job.fields.grace,
            seconds(7));
  EXPECT_EQ(Read(Manner::kRun, {"x"}, variable).flags.job.fields.grace, seconds(30));
}

struct RefusalRow {
  Words args;
  std::string says;
  Variables variables = {};
};

TEST(Refused, Table) {
  const std::vector<RefusalRow> rows = {
      {{"--rdzv-backend", "etcd"}, "etcd is not served"},
      {{"--rdzv-backend=etcd-v2"}, "the coordinator is the rendezvous"},
      {{"--logs-specs", "mine"}, "regroup logs"},
      {{"--event-log-handler", "syslog"}, "null, console"},
      {{"--start-method", "forkserve"}, "forkserver"},
      {{"--monitor-interval", "soon"}, "number of seconds"},
      {{"--numa-binding", "nod"}, "--numa-binding node"},
      {{"--redirects", "4"}, "names no streams"},
      {{"--tee", "0:4"}, "names no streams"},
      {{"--tee", "1,0:3"}, "names no streams"},
      {{"--tee", "a"}, "names no streams"},
      {{"--local-ranks-filter", "0,x"}, "--local-ranks-filter"},
      {{"--signals-to-handle", "SIGTERM,SIGKILL"}, "SIGKILL"},
      {{"--role", std::string(64, 'r')}, "1 to 63 bytes"},
      {{"--print-completion", "fish"}, "bash, zsh, tcsh"},
      {{"--rdzv-conf", "join_timeout"}, "is not KEY=VALUE"},
      {{"--rdzv-backend=c10d", "--rdzv-conf", "join_timeout=x"}, "--rdzv-conf join_timeout"},
      {{"--rdzv-conf", "store_type=file"}, "store_type=file is not served"},
      {{"--standalone", "--nnodes", "2"}, "exclude each other"},
      {{"--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:0"}, "have to know which one"},
      {{"--nnodes", "2", "--node-rank", "2"}, "ranks 0 to 1"},
      {{"--nnodes", "0:1"}, "--nnodes"},
      {{"--nnodes", "2", "--node-rank=1", "--node-name=a"}, "--node-name and --node-rank"},
      {{"--grace=1s", "--shutdown-timeout=1"}, "are the same"},
      {{"-n", "3", "-N", "2"}, "cannot be spread over 2 nodes"},
      {{"-n", "4", "-N", "1:2", "--rdzv-backend=c10d"}, "fixed number of nodes"},
      {{"-n", "4", "--ppn", "3"}, "differ"},
      {{"--local-addr", "203.0.113.9"}, "not an address of this host"},
      {{"--local-addr", "no.such.host.invalid"}, "has no address"},
      {{"--virtual-local-rank", "--ppn=3"}, "names 2", {{"CUDA_VISIBLE_DEVICES", "0,1"}}},
      {{"--no-such"}, "unknown flag --no-such"},
      {{}, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "x"}}},
  };
  for (const RefusalRow& row : rows) {
    Words args = row.args;
    args.push_back("x.py");
    const Outcome outcome = Read(Manner::kTorchrun, args, row.variables);
    const UserErrorParts parts = PartsOf(outcome.status);
    EXPECT_THAT(Cat(parts.what, " / ", parts.because, " / ", parts.try_this), HasSubstr(row.says));
  }
}

// What describes a job is a field of a job file; of everything else it says what takes its place.
TEST(EveryTorchrunOption, StandsInAJobFileOrIsRefusedWithTheReason) {
  const std::map<std::string, std::string> fields = {{"nnodes", "2"},
                                                     {"nproc_per_node", "2"},
                                                     {"max_restarts", "1"},
                                                     {"shutdown_timeout", "9"},
                                                     {"role", "trainer"},
                                                     {"numa_binding", "node"},
                                                     {"virtual_local_rank", "true"}};
  for (const TorchrunOption& option : TorchrunOptions()) {
    if (option.name == "print-completion") continue;  // It is about a shell.
    for (char dash : {'-', '_'}) {
      std::string name(option.name);
      std::replace(name.begin(), name.end(), '-', '_');
      const auto field = fields.find(name);
      if (field == fields.end()) std::replace(name.begin(), name.end(), '_', dash);
      const std::string value = field == fields.end() ? "1" : field->second;
      const absl::Status status =
          ParseJobFile(Cat("name: a\nrun: x\n", name, ": ", value, "\n"), "j", "/w").status();
      if (field != fields.end()) {
        EXPECT_TRUE(status.ok()) << name << status;
        continue;
      }
      const UserErrorParts parts = PartsOf(status);
      EXPECT_EQ(parts.what, Cat("j:3: a job file has no ", name));
      EXPECT_FALSE(parts.because.empty()) << name;
      EXPECT_FALSE(parts.try_this.empty()) << name;
    }
  }
}

TEST(Signals, AnySubset) {
  Outcome outcome = Read(Manner::kTorchrun, {"x"});
  EXPECT_THAT(outcome.config.worker.ending_signals, ElementsAre(SIGTERM, SIGINT, SIGHUP, SIGQUIT));
  EXPECT_THAT(outcome.config.worker.forwarded_signals, ElementsAre(SIGUSR1, SIGUSR2));
  outcome = Read(Manner::kTorchrun, {"--signals-to-handle", "SIGTERM,SIGUSR1", "x"});
  EXPECT_THAT(outcome.config.worker.ending_signals, ElementsAre(SIGTERM));
  EXPECT_THAT(outcome.config.worker.forwarded_signals, ElementsAre(SIGUSR1));
  outcome = Read(Manner::kTorchrun, {"--signals-to-handle", "SIGINT", "x"});
  EXPECT_THAT(outcome.config.worker.ending_signals, ElementsAre(SIGINT));
  EXPECT_THAT(outcome.config.worker.forwarded_signals, IsEmpty());
  outcome =
      Read(Manner::kTorchrun, {"--signals-to-handle", "term, INT,SIGQUIT,hup,usr2,SIGCONT", "x"});
  EXPECT_THAT(outcome.config.worker.forwarded_signals, ElementsAre(SIGUSR2, SIGCONT));
  EXPECT_EQ(outcome.config.worker.handled_signals, "SIGTERM,SIGINT,SIGQUIT,SIGHUP,SIGUSR2,SIGCONT");
}

TEST(Meeting, TheEndpointSaysLocalhost) {
  struct Row {
    Words args;
    bool torchrun, run;
  };
  for (const Row& row :
       std::vector<Row>{{{}, true, false},
                        {{"--standalone"}, true, true},
                        {{"--nnodes=2", "--rdzv-endpoint=localhost:1"}, true, true},
                        {{"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"}, true, true},
                        {{"--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"}, false, false},
                        {{"--nnodes=2", "--rdzv-endpoint=node0:1"}, false, false},
                        {{"--nnodes=2", "--master-addr=localhost"}, true, true},
                        {{"--nnodes=2", "--master-addr=127.0.0.1"}, false, false},
                        {{"--master-port=29501"}, false, false}}) {
    for (Manner manner : {Manner::kTorchrun, Manner::kRun}) {
      Words args = row.args;
      args.push_back("x");
      const Outcome outcome = Read(manner, args);
      ASSERT_TRUE(outcome.status.ok()) << outcome.status;
      EXPECT_EQ(outcome.meeting.says_localhost,
                manner == Manner::kTorchrun ? row.torchrun : row.run)
          << testing::PrintToString(args);
    }
  }
  // torchrun's own default of a static group of two is an address.
  EXPECT_FALSE(Read(Manner::kTorchrun, {"--nnodes=2", "x"}).meeting.says_localhost);
}

TEST(Filters, TwoCommasAreOne) {
  EXPECT_THAT(SplitFilters("a,b,,c,"), ElementsAre("a", "b,c"));
  EXPECT_THAT(SplitFilters(""), IsEmpty());
}

TEST(JobNameFromId, AnotherTextIsAnotherName) {
  EXPECT_EQ(JobNameFromId("run_1"), "run-1");
  EXPECT_EQ(JobNameFromId("Job.7"), "job-7");
  const std::vector<std::string> odd = {
      "a b", "a/b", "日本", "中国", "-", std::string(80, 'a'), std::string(81, 'a'), "a--b"};
  std::set<std::string> names;
  for (const std::string& id : odd) {
    names.insert(JobNameFromId(id));
    EXPECT_LE(JobNameFromId(id).size(), 63u) << id;
  }
  EXPECT_EQ(names.size(), odd.size());
}

// The program under its own name, as far as the agent.
class ByName : public RegroupTest {
 protected:
  ByName() {
    std::filesystem::create_directory(folder_ + "/bin");
    std::filesystem::create_hard_link(std::filesystem::canonical(program_),
                                      folder_ + "/bin/regroup");
    program_ = folder_ + "/bin/regroup-torchrun";
    std::filesystem::create_symlink("regroup", program_);
    Write("bin/regroup-agent", "#!/bin/sh\nexec cat /proc/self/fd/$2\n", 0755);
    Write("train", "");
    Write("python", "#!/bin/sh\n", 0755);
    environment_["PYTHON_EXEC"] = folder_ + "/python";
  }
  LaunchConfig Launch(const Words& args, const std::string& says = "") {
    const Ended ended = Run(args);
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_THAT(ended.err,
                says.empty() ? IsEmpty() : testing::Matcher<std::string>(HasSubstr(says)));
    absl::StatusOr<LaunchConfig> config = LaunchConfigFromJson(ended.out);
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? *config : LaunchConfig();
  }
};

TEST_F(ByName, AnyFileRunsUnderPython) {
  const LaunchConfig config = Launch({"--standalone", "train", "--lr", "1"});
  EXPECT_THAT(config.argv, ElementsAre(folder_ + "/python", "-u", "train", "--lr", "1"));
  EXPECT_TRUE(config.worker.substitute_local_rank && config.python);
  EXPECT_EQ(config.worker.handled_signals, "SIGTERM,SIGINT,SIGHUP,SIGQUIT");
}

TEST_F(ByName, RunPathBeatsNoPython) {
  const LaunchConfig config = Launch({"--run-path", "--no-python", folder_ + "/train", "a"});
  ASSERT_EQ(config.argv.size(), 6u);
  EXPECT_THAT(config.argv[3], HasSubstr("runpy.run_path"));
  EXPECT_EQ(config.argv[5], "a");
}

TEST_F(ByName, OthersAreToldTheSameCommandWithTheirRank) {
  const LaunchConfig config =
      Launch({"--nnodes=2", "--nproc_per_node=2", "--master_addr=10.0.0.4", "train"},
             "OMP_NUM_THREADS=1 for each of 2 workers");
  EXPECT_TRUE(config.insecure && config.insecure_implied);
  EXPECT_THAT(config.others_command, ElementsAre("regroup-torchrun"));
  EXPECT_THAT(config.others_options,
              ElementsAre("--nnodes", "2", "--nproc-per-node", "2", "--node-rank", "1"));
  EXPECT_FALSE(config.node_name_explicit);
}

TEST_F(ByName, AnIdIsTheWorkersRunIdAsTyped) {
  const LaunchConfig config = Launch({"--rdzv-id", "Run_1", "train"});
  EXPECT_EQ(config.worker.run_id, "Run_1");
  EXPECT_EQ(config.spec.name, "run-1");
  EXPECT_EQ(Launch({"--rdzv-id", "none", "train"}).spec.name, "train");
  EXPECT_EQ(Launch({"--rdzv-id", "train", "train"}).worker.run_id, "") << "the default, as told";
}

TEST_F(ByName, CompletionForTheThreeShells) {
  for (const char* shell : {"bash", "zsh", "tcsh"}) {
    const Ended ended = Run({"--print-completion", shell});
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_THAT(ended.out, HasSubstr("--nproc-per-node"));
    EXPECT_THAT(ended.out, HasSubstr("regroup-torchrun"));
  }
}

TEST_F(ByName, WithoutAProgram) {
  const Ended ended = Run({});
  EXPECT_EQ(ended.code, 125);
  EXPECT_THAT(ended.err, HasSubstr("regroup-torchrun --help"));
  EXPECT_EQ(Run({"--help"}).code, 0);
}

}  // namespace
}  // namespace regroup::cli
