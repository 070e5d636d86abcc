#include "agent/shell/worker_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace regroup::agent {
namespace {

using ::testing::ElementsAre;

GroupKey Key() { return {JobId("train-4"), Generation(2)}; }

TEST(WorkerEnvironment, LaunchedWorkersInheritEverythingButSecrets) {
  LaunchConfig launch;
  launch.executable = "/usr/bin/python3";
  launch.argv = {"/usr/bin/python3", "-u", "train.py"};
  launch.python = true;
  const GroupProgram program = LaunchedProgram(
      launch, {{"HOME", "/h"}, {"ODD NAME", "1"}, {"REGROUP_TOKEN", "secret"}}, "/work");
  EXPECT_THAT(program.command, ElementsAre("/usr/bin/python3", "-u", "train.py"));
  EXPECT_EQ(program.environment.at("ODD NAME"), "1");
  EXPECT_EQ(program.environment.at("PYTHONUNBUFFERED"), "1");
  EXPECT_FALSE(program.environment.contains("REGROUP_TOKEN"));
  EXPECT_EQ(program.directory, "/work");
  EXPECT_EQ(program.program, "");
}

TEST(WorkerEnvironment, AProgramIsCalledAsItWasTyped) {
  LaunchConfig launch;
  launch.executable = "/usr/bin/sh";
  launch.argv = {"sh", "-c", "true"};
  GroupProgram program = LaunchedProgram(launch, {}, "/work");
  EXPECT_EQ(program.program, "/usr/bin/sh");  // Of the launch command's PATH.
  EXPECT_THAT(program.command, ElementsAre("sh", "-c", "true"));
  launch.argv = {"./sh"};
  launch.executable = "/there/sh";
  program = LaunchedProgram(launch, {}, "/work");
  EXPECT_EQ(program.program, "");
  EXPECT_THAT(program.command, ElementsAre("./sh"));
}

TEST(WorkerEnvironment, MasterHasItsNameWhereAllRanksAreOnThisHost) {
  struct Row {
    const char* name;
    bool many_hosts;
    const char *store, *master;
  };
  for (const Row& row :
       {Row{"localhost", false, "127.0.0.1", "localhost"},
        Row{"localhost", true, "127.0.0.1", "127.0.0.1"},
        Row{"localhost", false, "10.0.0.4", "10.0.0.4"}, Row{"localhost", false, "::1", "::1"},
        Row{"", false, "127.0.0.1", "127.0.0.1"}}) {
    regroup::Run run;
    run.mine = {{0, 0}};
    run.many_hosts = row.many_hosts;
    run.store = {row.store, 41000};
    WorkerOptions options;
    options.master_name = row.name;
    EXPECT_EQ(FromEntries(PlanRank(run, run.mine[0], {}, "", "", "", options).environment)
                  .at("MASTER_ADDR"),
              row.master);
  }
}

TEST(WorkerEnvironment, SubmittedWorkersGetTheAllowListAndTheJobs) {
  JobSpec job;
  job.command = {"train.py", "--lr", "1"};
  job.environment = {{"A", "1"}, {"HOME", "/elsewhere"}};
  job.directory = "/shared";
  const GroupProgram program = SubmittedProgram(
      job, {{"HOME", "/h"}, {"PATH", "/nowhere"}, {"LD_PRELOAD", "x"}, {"RANDOM_THING", "y"}});
  EXPECT_THAT(program.command, ElementsAre("python3", "-u", "train.py", "--lr", "1"));
  EXPECT_EQ(program.environment.at("HOME"), "/elsewhere");
  EXPECT_EQ(program.environment.at("A"), "1");
  EXPECT_FALSE(program.environment.contains("RANDOM_THING"));
  EXPECT_EQ(program.environment.at("PYTHONUNBUFFERED"), "1");
  job.environment["PYTHON_EXEC"] = "/opt/python";
  EXPECT_EQ(SubmittedProgram(job, {}).command.at(0), "/opt/python");
  job.command = {"sh", "-c", "true"};
  EXPECT_THAT(SubmittedProgram(job, {}).command, ElementsAre("sh", "-c", "true"));
}

TEST(WorkerEnvironment, ThreadsFollowTorchrunUnlessTheWorkerIsOurs) {
  struct Row {
    const char* program;
    int workers;
    Environment before;
    const char* threads;  // Null: not set.
  };
  for (const Row& row :
       {Row{"python3", 1, {}, nullptr}, Row{"python3", 2, {}, "1"},
        Row{"python3", 2, {{"OMP_NUM_THREADS", "7"}}, "7"}, Row{"/x/regroup-worker", 2, {}, "4"},
        Row{"/x/regroup-worker", 16, {}, "1"},
        Row{"regroup-worker", 1, {{"OMP_NUM_THREADS", "3"}}, "3"}}) {
    GroupProgram program{{row.program}, row.before, "/"};
    AddGroupEnvironment(Key(), row.workers, 8, "/sock", program);
    const auto found = program.environment.find("OMP_NUM_THREADS");
    EXPECT_EQ(found == program.environment.end() ? "" : found->second,
              row.threads == nullptr ? "" : row.threads)
        << row.program << " " << row.workers;
    EXPECT_EQ(program.environment.contains("GOMP_SPINCOUNT"), IsNativeWorker(program.command));
  }
  GroupProgram told{{"regroup-worker"}, {{"GOMP_SPINCOUNT", "7"}}, "/"};
  AddGroupEnvironment(Key(), 1, 8, "/sock", told);
  EXPECT_EQ(told.environment.at("GOMP_SPINCOUNT"), "7");
}

TEST(WorkerEnvironment, RoleRunIdAndSignalsAreWhatTheLaunchCommandSaid) {
  GroupProgram program{{"python3"}, {}, "/"};
  WorkerOptions options;
  options.role = "trainer";
  options.run_id = "Run_1";
  options.handled_signals = "SIGTERM,SIGUSR1";
  AddGroupEnvironment(Key(), 1, 8, "/sock", program, options);
  EXPECT_EQ(program.environment.at("ROLE_NAME"), "trainer");
  EXPECT_EQ(program.environment.at("TORCHELASTIC_RUN_ID"), "Run_1");
  EXPECT_EQ(program.environment.at("TORCHELASTIC_SIGNALS_TO_HANDLE"), "SIGTERM,SIGUSR1");
}

TEST(WorkerEnvironment, WhatASubmittedJobAsks) {
  JobSpec job;
  EXPECT_EQ(SubmittedOptions(job), WorkerOptions());
  job.role = "trainer";
  job.numa_binding = "socket";
  job.virtual_local_rank = true;
  job.sets_master_port = true;
  const WorkerOptions options = SubmittedOptions(job);
  EXPECT_EQ(options.role, "trainer");
  EXPECT_EQ(options.numa_binding, "socket");
  EXPECT_TRUE(options.virtual_local_rank);
  EXPECT_TRUE(options.sets_master_port);
}

TEST(WorkerEnvironment, AListOfDevicesThatIsTooShortIsRefused) {
  EXPECT_TRUE(CheckDevices(2, {{"CUDA_VISIBLE_DEVICES", "0,1"}}).ok());
  EXPECT_EQ(CheckDevices(3, {{"CUDA_VISIBLE_DEVICES", "0,1"}}).message(),
            "virtual_local_rank: 3 workers need 3 devices, and CUDA_VISIBLE_DEVICES=0,1 names 2");
}

TEST(WorkerEnvironment, AGroupSeesTheDevicesOfItsSlots) {
  const NodeDevices counted{"", {"0", "1", "2", "3"}, "PCI_BUS_ID", ""};
  const NodeDevices told{"CUDA_VISIBLE_DEVICES", {"5", "6"}, "", ""};
  const NodeDevices amd{"HIP_VISIBLE_DEVICES", {"5", "6"}, "", ""};
  const NodeDevices told_of_none{"CUDA_VISIBLE_DEVICES", {}, "", ""};
  struct Row {
    const NodeDevices& node;
    std::vector<std::string> names;
    Environment before, after;
  };
  const std::string cuda = "CUDA_VISIBLE_DEVICES", hip = "HIP_VISIBLE_DEVICES",
                    order = "CUDA_DEVICE_ORDER";
  for (const Row& row : {
           Row{counted,
               {"2", "3"},
               {{"A", "b"}},
               {{"A", "b"}, {cuda, "2,3"}, {order, "PCI_BUS_ID"}}},
           Row{counted, {"2"}, {{order, "X"}}, {{order, "X"}, {cuda, "2"}}},
           Row{counted, {}, {}, {}},  // More slots than devices, or none.
           Row{told, {"6"}, {}, {{cuda, "6"}}},
           Row{told, {}, {}, {{cuda, "5,6"}}},
           Row{amd, {"6"}, {}, {{hip, "6"}}},
           Row{told_of_none, {}, {}, {{cuda, ""}}},
           Row{counted, {"2"}, {{cuda, "7"}}, {{cuda, "7"}}},  // Its job knows better.
           Row{counted, {"2"}, {{cuda, ""}}, {{cuda, ""}}},
           Row{counted, {"2"}, {{hip, "7"}}, {{hip, "7"}}},
       }) {
    Environment environment = row.before;
    ShowDevices(row.names, row.node, environment);
    EXPECT_EQ(environment, row.after);
  }
}

TEST(WorkerEnvironment, VirtualLocalRankShowsOneDevice) {
  struct Row {
    Environment group;
    const char *cuda, *hip;
  };
  regroup::Run run;
  run.mine = {{0, 4}, {1, 5}};
  WorkerOptions options;
  options.virtual_local_rank = true;
  for (const Row& row :
       {Row{{}, "1", ""}, Row{{{"CUDA_VISIBLE_DEVICES", "6, 7"}}, "7", ""},
        Row{{{"CUDA_VISIBLE_DEVICES", "6,7"}, {"HIP_VISIBLE_DEVICES", "2,3"}}, "3", "3"},
        Row{{{"HIP_VISIBLE_DEVICES", ""}}, "1", ""}}) {
    Environment made =
        FromEntries(PlanRank(run, run.mine[1], row.group, "", "", "", options).environment);
    EXPECT_EQ(made.at("LOCAL_RANK"), "0");
    EXPECT_EQ(made.at("RANK"), "5");
    EXPECT_EQ(made["CUDA_VISIBLE_DEVICES"], row.cuda);
    EXPECT_EQ(made["HIP_VISIBLE_DEVICES"], row.hip);
  }
}

TEST(WorkerEnvironment, ALoneRankThatSetsMasterPortServesItsOwnStore) {
  regroup::Run run;
  run.store = {"127.0.0.1", 41000};
  run.mine = {{0, 0}};
  run.world_size = 1;
  WorkerOptions options;
  auto made = [&] {
    return FromEntries(PlanRank(run, run.mine[0], {}, "", "", "", options).environment);
  };
  EXPECT_EQ(made().at("MASTER_PORT"), "41000");
  EXPECT_FALSE(made().contains("TORCHELASTIC_USE_AGENT_STORE"));  // The group's: True.
  options.sets_master_port = true;
  EXPECT_EQ(made().at("TORCHELASTIC_USE_AGENT_STORE"), "False");
  EXPECT_NE(made().at("MASTER_PORT"), "41000");
  EXPECT_GT(std::stoi(made().at("MASTER_PORT")), 1023);
  run.world_size = 2;
  EXPECT_EQ(made().at("MASTER_PORT"), "41000");
  EXPECT_FALSE(made().contains("TORCHELASTIC_USE_AGENT_STORE"));
}

TEST(WorkerEnvironment, TheBuiltInNodeCheckIsBesideTheOthers) {
  EXPECT_EQ(BuiltInGpuCheck("/opt/re group/bin/regroup-shim"),
            "exec '/opt/re group/bin/regroup-worker' check-gpu");
  EXPECT_EQ(BuiltInGpuCheck("/it's/regroup-shim"), "exec '/it'\\''s/regroup-worker' check-gpu");
}

TEST(WorkerEnvironment, LocalRankInArguments) {
  EXPECT_THAT(CommandOf({"p", "--gpu=${local_rank}", "${local_rank}", "$local_rank"}, 3),
              ElementsAre("p", "--gpu=3", "3", "$local_rank"));
  EXPECT_THAT(CommandOf({"p", "x"}, 3), ElementsAre());
}

TEST(WorkerEnvironment, TorchrunsVariablesInItsFormats) {
  GroupProgram program{{"python3"}, {}, "/"};
  AddGroupEnvironment(Key(), 2, 8, "/run/sock", program);
  regroup::Run run;
  run.generation = Generation(2);
  run.store = {"10.0.0.4", 41000};
  run.mine = {{0, 2}, {1, 3}};
  run.group_rank = 1;
  run.group_size = 2;
  run.world_size = 4;
  run.restart_count = 1;
  run.max_restarts = 3;
  run.resume_step = 96;
  const shim::RankPlan plan =
      PlanRank(run, run.mine[1], program.environment, "eth0", "/run/dir", "secret");
  EXPECT_EQ(plan.local_rank, 1);
  EXPECT_EQ(plan.rank, 3);
  Environment all = program.environment;
  for (auto& [name, value] : FromEntries(plan.environment)) all[name] = value;
  const Environment expected = {{"RANK", "3"},
                                {"LOCAL_RANK", "1"},
                                {"WORLD_SIZE", "4"},
                                {"LOCAL_WORLD_SIZE", "2"},
                                {"GROUP_RANK", "1"},
                                {"GROUP_WORLD_SIZE", "2"},
                                {"ROLE_RANK", "3"},
                                {"ROLE_WORLD_SIZE", "4"},
                                {"ROLE_NAME", "default"},
                                {"MASTER_ADDR", "10.0.0.4"},
                                {"MASTER_PORT", "41000"},
                                {"TORCHELASTIC_RESTART_COUNT", "1"},
                                {"TORCHELASTIC_MAX_RESTARTS", "3"},
                                {"TORCHELASTIC_RUN_ID", "train-4"},
                                {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                {"TORCHELASTIC_ERROR_FILE", "/run/dir/error.1.json"},
                                {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                                {"OMP_NUM_THREADS", "1"},
                                {"REGROUP_JOB", "train-4"},
                                {"REGROUP_GENERATION", "2"},
                                {"REGROUP_SOCKET", "/run/sock"},
                                {"REGROUP_LOCAL_RANK", "1"},
                                {"REGROUP_WORKER_TOKEN", WorkerToken("secret", 3, 1)},
                                {"REGROUP_RESUME_STEP", "96"}};
  EXPECT_EQ(all, expected);
}

TEST(WorkerEnvironment, ATokenIsOfOneRankOfOneGroup) {
  std::set<std::string> seen;
  for (const char* secret : {"secret", "another"}) {
    for (int rank : {0, 1, 11}) {
      for (int local_rank : {0, 1, 11}) seen.insert(WorkerToken(secret, rank, local_rank));
    }
  }
  EXPECT_EQ(seen.size(), 18u);
  EXPECT_EQ(WorkerToken("secret", 3, 1).size(), 64u);
}

TEST(WorkerEnvironment, TheInterfaceIsNamedOnSeveralHostsUnlessItIsSet) {
  regroup::Run run;
  run.mine = {{0, 0}};
  run.many_hosts = true;
  Environment plan = FromEntries(
      PlanRank(run, run.mine[0], {{"NCCL_SOCKET_IFNAME", "ib0"}}, "eth0", "", "").environment);
  EXPECT_EQ(plan.at("GLOO_SOCKET_IFNAME"), "eth0");
  EXPECT_EQ(plan.at("TP_SOCKET_IFNAME"), "eth0");
  EXPECT_FALSE(plan.contains("NCCL_SOCKET_IFNAME"));
  run.many_hosts = false;
  EXPECT_FALSE(FromEntries(PlanRank(run, run.mine[0], {}, "eth0", "", "").environment)
                   .contains("GLOO_SOCKET_IFNAME"));
}

TEST(WorkerEnvironment, AffinityIsDisjointAndComplete) {
  const std::vector<int> cpus = {0, 2, 4, 6, 8};
  EXPECT_THAT(CpusOf(0, 2, cpus), ElementsAre(0, 2));
  EXPECT_THAT(CpusOf(1, 2, cpus), ElementsAre(4, 6, 8));
  EXPECT_TRUE(CpusOf(0, 1, cpus).empty());
  EXPECT_TRUE(CpusOf(0, 6, cpus).empty());
}

}  // namespace
}  // namespace regroup::agent
