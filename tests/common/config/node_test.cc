// What depends on the node: launch configuration, state directory, hardware, environment, network
// rule.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/base/user_error.h"
#include "common/config/env.h"
#include "common/config/hardware.h"
#include "common/config/job_limits.h"
#include "common/config/launch_config.h"
#include "common/config/network_rule.h"
#include "common/config/state_dir.h"
#include "common/config/text.h"
#include "common/config/token.h"

namespace regroup {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

LaunchConfig Sample() {
  LaunchConfig config;
  config.given = {"train.py", "--name=\xff\x80\xc3\xa4\n\"", ""};
  config.executable = "/usr/bin/python3";
  config.argv = {"python3", "-u", "train.py"};
  config.python = true;
  config.spec.name = "train";
  config.spec.origin = JobOrigin::kLaunched;
  config.spec.min_nodes = 2;
  config.spec.max_nodes = 3;
  config.spec.max_restarts = 3;
  config.spec.grace = 61s;
  config.spec.restart_window = 1h;
  config.spec.max_preemptions = 2;
  config.spec.scale_up = ScaleUp::kNever;
  config.spec.command = config.given;
  config.spec.node_check = {"test -e \xff", 9s};
  config.spec.log_keep_bytes = kKeepAllLogs;
  config.workers = 2;
  config.endpoint = Endpoint{"fe80::1", 29401};
  config.join_timeout = 600s;
  config.node_name = "node0";
  config.node_name_explicit = true;
  config.state_dir = "/s t/\xff";
  config.log_dir = "/logs";
  config.log_dir_explicit = true;
  config.ports = {20000, 20100};
  config.insecure = config.quiet = true;
  config.started_boottime_ns = 123456789012345;
  config.insecure_implied = true;
  config.local_address = "10.0.0.5";
  config.worker = {.role = "trainer",
                   .run_id = "Run_1",
                   .substitute_local_rank = true,
                   .virtual_local_rank = true,
                   .numa_binding = "socket",
                   .ending_signals = {SIGTERM},
                   .forwarded_signals = {10, 12},
                   .handled_signals = "SIGTERM,SIGUSR1",
                   .master_name = "localhost",
                   .leave_children = true,
                   .sets_master_port = true};
  config.output = {.redirects = {1, 0},
                   .tee = {0, 3},
                   .shown_ranks = {1},
                   .prefix_template = "${rank}\xff",
                   .stdout_filters = {"a", "b,c"},
                   .stderr_filters = {"d"},
                   .prefixes = OutputOptions::Prefixes::kTee,
                   .notes_dir = "/notes",
                   .errors_fail = true,
                   .events = "static",
                   .attempts = true};
  config.others_command = {"regroup-torchrun"};
  config.others_options = {"--nnodes", "2:3"};
  config.others_program = {"train.py"};
  return config;
}

TEST(LaunchConfig, SurvivesTheTrip) {
  LaunchConfig config = Sample();
  absl::StatusOr<int> fd = WriteLaunchConfig(config);
  ASSERT_TRUE(fd.ok()) << fd.status();
  EXPECT_LT(::write(*fd, "x", 1), 0);  // Sealed.
  absl::StatusOr<LaunchConfig> back = ReadLaunchConfig(*fd);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, config);
  config.endpoint.reset();
  config.join_timeout.reset();
  config.spec.restart_window.reset();
  back = LaunchConfigFromJson(LaunchConfigToJson(config));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(*back, config);
}

TEST(LaunchConfig, GarbageIsRefused) {
  for (const char* text : {"", "{", "[]", "{}", "{\"job\": 3}", "{\"job\": {}}"})
    EXPECT_FALSE(LaunchConfigFromJson(text).ok()) << text;
  std::string json = LaunchConfigToJson(Sample());
  std::size_t at = json.find("\"workers\":2");
  ASSERT_NE(at, std::string::npos);
  EXPECT_FALSE(
      LaunchConfigFromJson(json.substr(0, at) + "\"workers\":\"2\"" + json.substr(at + 11)).ok());
  EXPECT_FALSE(ReadLaunchConfig(-1).ok());
}

class StateDirTest : public ::testing::Test {
 protected:
  StateDirTest() {
    std::string pattern = ::testing::TempDir() + "state_dir_XXXXXX";
    base_ = ::mkdtemp(pattern.data());
    ::setenv("XDG_STATE_HOME", base_.c_str(), 1);
  }
  ~StateDirTest() override {
    ::unsetenv("XDG_STATE_HOME");
    std::filesystem::remove_all(base_);
  }
  std::string base_;
};

TEST_F(StateDirTest, Defaults) {
  EXPECT_EQ(DefaultStateDirectory("", false)->path, base_ + "/regroup/" + HostName());
  EXPECT_EQ(DefaultStateDirectory("/x/../y/", false)->path, "/y");
  if (::geteuid() == 0) {
    EXPECT_EQ(DefaultStateDirectory("", true)->path, "/var/lib/regroup");
  }
  ::setenv("XDG_STATE_HOME", "relative/is/ignored", 1);
  EXPECT_THAT(DefaultStateDirectory("", false)->path, HasSubstr("/.local/state/regroup/"));
}

TEST_F(StateDirTest, IsMadePrivate) {
  std::string path = base_ + "/a/b";
  ASSERT_TRUE(MakeStateDirectory(path).ok());
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  ASSERT_TRUE(MakeStateDirectory(path).ok());
}

TEST_F(StateDirTest, OneOfOursIsTightened) {
  std::string path = base_ + "/a";
  for (const mode_t mode : {0755, 0775, 0777, 0711}) {
    for (const char* inside : {"", "/coordinator-29400", "/node-0", "/logs"}) {
      std::filesystem::create_directories(path + inside);
      ASSERT_EQ(::chmod(path.c_str(), mode), 0);
      const absl::StatusOr<std::string> said = MakeStateDirectory(path);
      ASSERT_TRUE(said.ok()) << said.status();
      EXPECT_THAT(*said, HasSubstr("it is 0700 now"));
      struct stat info {};
      ASSERT_EQ(::stat(path.c_str(), &info), 0);
      EXPECT_EQ(info.st_mode & 07777, 0700u);
      EXPECT_EQ(*MakeStateDirectory(path), "");
    }
  }
}

TEST_F(StateDirTest, AFolderOfOtherThingsOrForAllStaysAsItIs) {
  std::string path = base_ + "/a";
  std::filesystem::create_directories(path);
  ::chmod(path.c_str(), 01777);
  EXPECT_EQ(PartsOf(MakeStateDirectory(path).status()).try_this, "chmod 700 " + path);
  ::chmod(path.c_str(), 0755);
  std::filesystem::create_directories(path + "/documents");
  EXPECT_EQ(PartsOf(MakeStateDirectory(path).status()).try_this, "chmod 700 " + path);
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0755u);
}

TEST_F(StateDirTest, FileInTheWay) {
  std::string path = base_ + "/file";
  ASSERT_EQ(::symlink("/dev/null", path.c_str()), 0);
  EXPECT_FALSE(MakeStateDirectory(path).ok());
  EXPECT_EQ(PartsOf(MakeStateDirectory(path).status()).because, "it is no directory");
  EXPECT_FALSE(MakeStateDirectory(path + "/deeper").ok());
}

TEST(Host, NameIsAlwaysALabel) {
  EXPECT_TRUE(ValidateNodeName("node", HostName()).ok()) << HostName();
}

TEST(Hardware, Quotas) {
  EXPECT_EQ(CpuQuotaOf("max 100000"), std::nullopt);
  EXPECT_EQ(CpuQuotaOf("150000 100000"), 1.5);
  for (const char* bad : {"", "0 0", "-1 100000", "100000", "x y", "100000 0"})
    EXPECT_EQ(CpuQuotaOf(bad), std::nullopt) << bad;
}

TEST(Hardware, CpusRespectAffinity) {
  cpu_set_t before, one;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &before)) {
      CPU_SET(cpu, &one);
      break;
    }
  }
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(UsableCpus(), 1);
  EXPECT_EQ(*ResolveWorkersPerNode("cpu"), 1);
  ASSERT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);
  EXPECT_LE(UsableCpus(), CPU_COUNT(&before));
}

TEST(Hardware, AListOfDevicesMayBeTooShort) {
  using Environment = std::map<std::string, std::string>;
  EXPECT_FALSE(TooFewDevices(8, {}));
  EXPECT_FALSE(TooFewDevices(2, {{"CUDA_VISIBLE_DEVICES", "0, 1"}}));
  EXPECT_FALSE(TooFewDevices(2, {{"CUDA_VISIBLE_DEVICES", "0"}, {"HIP_VISIBLE_DEVICES", "0,1"}}));
  const Environment few = {{"CUDA_VISIBLE_DEVICES", "6, 7"}, {"HIP_VISIBLE_DEVICES", ""}};
  ASSERT_TRUE(TooFewDevices(3, few));
  EXPECT_EQ(TooFewDevices(3, few)->variable, "CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(TooFewDevices(3, few)->value, "6, 7");
  EXPECT_THAT(TooFewDevices(3, few)->devices, ::testing::ElementsAre("6", "7"));
  EXPECT_THAT(VisibleDevicesOf({{"CUDA_VISIBLE_DEVICES", ""}})->devices,
              ::testing::ElementsAre(""));
}

TEST(Hardware, VisibleDevices) {
  ::setenv("CUDA_VISIBLE_DEVICES", "0,1,2", 1);
  EXPECT_EQ(*ResolveWorkersPerNode("auto"), 3);
  EXPECT_EQ(*ResolveWorkersPerNode("gpu"), 3);
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
  EXPECT_EQ(*ResolveWorkersPerNode("auto"), UsableCpus());
  EXPECT_EQ(PartsOf(ResolveWorkersPerNode("gpu").status()).because,
            "CUDA_VISIBLE_DEVICES names none");
  ::setenv("HIP_VISIBLE_DEVICES", "0,1", 1);
  EXPECT_EQ(*ResolveWorkersPerNode("gpu"), 2);
  ::unsetenv("HIP_VISIBLE_DEVICES");
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  for (const char* bad : {"0", "-1", "1025", "1000000000", "two", ""})
    EXPECT_FALSE(ResolveWorkersPerNode(bad).ok()) << bad;
  EXPECT_EQ(*ResolveWorkersPerNode("8"), 8);
}

TEST(Hardware, DevicesOfThisHostAreNotThoseOfASubmittedJob) {
  for (const char* counted : {"cpu", "auto"}) {
    const UserErrorParts parts = PartsOf(ParseWorkersPerNode(counted).status());
    EXPECT_EQ(parts.what, Cat("\"", counted, "\" is not for a submitted job"));
    EXPECT_EQ(parts.because, "it runs on nodes that may have other devices than this host");
    EXPECT_EQ(parts.try_this, "8");
  }
  for (const char* bad : {"0", "-1", "1025", "two", ""}) {
    EXPECT_FALSE(ParseWorkersPerNode(bad).ok()) << bad;
    EXPECT_FALSE(PartsOf(ParseWorkersPerNode(bad).status()).try_this.empty()) << bad;
  }
  EXPECT_EQ(*ParseWorkersPerNode("1024"), 1024);
  EXPECT_EQ(*ParseWorkersPerNode("gpu"), kWorkerPerGpu);
}

TEST(Environment, ListsAndSecrets) {
  ::setenv("REGROUP_TEST_VARIABLE", "a=b", 1);
  EXPECT_EQ(AllEnv().at("REGROUP_TEST_VARIABLE"), "a=b");
  EXPECT_EQ(GetEnv("REGROUP_TEST_VARIABLE"), "a=b");
  ::unsetenv("REGROUP_TEST_VARIABLE");
  EXPECT_EQ(GetEnv("REGROUP_TEST_VARIABLE"), std::nullopt);
  EXPECT_TRUE(OnSubmitAllowList("PATH") && OnSubmitAllowList("LC_ALL"));
  EXPECT_FALSE(OnSubmitAllowList("AWS_SECRET_ACCESS_KEY") || OnSubmitAllowList("LD_PRELOAD"));
  EXPECT_TRUE(IsRegroupSecret("REGROUP_TOKEN"));
}

TEST(Token, ComesFromAFileOrTheEnvironment) {
  const std::string path = ::testing::TempDir() + "/token." + std::to_string(::getpid());
  std::ofstream(path) << "of-the-file-0123\n";
  ::unsetenv(kTokenVariable);
  EXPECT_EQ(*GivenToken(""), "");
  ::setenv(kTokenVariable, "of-the-environment", 1);
  EXPECT_EQ(*GivenToken(""), "of-the-environment");
  EXPECT_EQ(*GivenToken(path), "of-the-file-0123");
  EXPECT_FALSE(GivenToken("/no/such/file").ok());
  ::setenv(kTokenVariable, "too short", 1);
  EXPECT_THAT(PartsOf(GivenToken("").status()).what, ::testing::HasSubstr(kTokenVariable));
  ::unsetenv(kTokenVariable);
  ::unlink(path.c_str());
  EXPECT_FALSE(ValidateToken(std::string(kMaxTokenBytes + 1, 'a')).ok());
  EXPECT_FALSE(ValidateToken("0123456789abcde\x1b").ok());
}

TEST(NetworkRule, OnlyLoopbackIsFree) {
  for (const char* host : {"localhost", "127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(CheckNetworkRule({host, 29400}, false, "", "regroup run x").ok()) << host;
  }
  for (const char* host : {"node0", "10.0.0.4", "0.0.0.0", "::", "127.0.0.1.example.com",
                           "localhost.evil", "::ffff:10.0.0.1"}) {
    absl::Status status = CheckNetworkRule({host, 29400}, false, "", "regroup run -N 2 x");
    EXPECT_EQ(PartsOf(status).try_this,
              "REGROUP_TOKEN=… regroup run -N 2 x  (regroup token on its host prints it)")
        << host;
    EXPECT_TRUE(CheckNetworkRule({host, 29400}, true, "", "").ok());
    EXPECT_TRUE(CheckNetworkRule({host, 29400}, false, "0123456789abcdef", "").ok());
  }
}

}  // namespace
}  // namespace regroup
