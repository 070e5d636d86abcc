// PROTOCOL §4 (fencing, names), §5 (one coordinator serves any number of ids), §6 (versions).

#include "launcher/coordinator/core/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/limits.h"
#include "common/base/user_error.h"

namespace regroup::coordinator {
namespace {

using namespace std::chrono_literals;  // NOLINT
using ::testing::HasSubstr;

TEST(CheckVersion, OneMinorApartWorksBothWays) {
  struct Row {
    std::uint32_t major, minor;
    bool works;
  };
  const Version ours{1, 3, "ours"};
  for (const Row& row : std::vector<Row>{
           {1, 3, true}, {1, 2, true}, {1, 4, true}, {1, 1, false}, {1, 5, false}, {2, 3, false}})
    EXPECT_EQ(CheckVersion(ours, Version{row.major, row.minor, "theirs"}).ok(), row.works)
        << row.major << "." << row.minor;
  EXPECT_THAT(PartsOf(CheckVersion(ours, Version{2, 0, "theirs"})).because,
              ::testing::AllOf(HasSubstr("1.3"), HasSubstr("2.0")));
}

TEST(CheckFence, Table) {
  auto hello = [](const char* cluster, std::uint64_t epoch) {
    Hello h;
    h.cluster = ClusterId(cluster);
    h.highest_epoch = Epoch(epoch);
    return h;
  };
  const ClusterId ours("c");
  struct Row {
    const char* cluster;
    std::uint64_t epoch;
    Fence of_known, of_stranger;
  };
  for (const Row& row : std::vector<Row>{
           {"", 0, Fence::kPasses, Fence::kPasses},
           {"c", 4, Fence::kPasses, Fence::kPasses},
           {"c", 5, Fence::kPasses, Fence::kPasses},
           {"c", 6, Fence::kJournalTooOld, Fence::kUnprovedEpoch},
           {"c", kMaxEpoch, Fence::kJournalTooOld, Fence::kUnprovedEpoch},
           {"d", 1, Fence::kOtherCluster, Fence::kOtherCluster},
       }) {
    const Hello asked = hello(row.cluster, row.epoch);
    EXPECT_EQ(CheckFence(ours, Epoch(5), asked, true), row.of_known) << row.cluster << row.epoch;
    EXPECT_EQ(CheckFence(ours, Epoch(5), asked, false), row.of_stranger)
        << row.cluster << row.epoch;
  }
}

TEST(NextEpoch, AnAcceptedJournalGoesAboveTheFleet) {
  const ClusterId cluster("c");
  EXPECT_EQ(NextEpoch({}, false), Epoch(1));
  EXPECT_EQ(NextEpoch({cluster, Epoch(5), kRowFormat, Epoch()}, true), Epoch(6));
  const MetaRow too_old{cluster, Epoch(5), kRowFormat, Epoch(9)};
  EXPECT_EQ(NextEpoch(too_old, false), Epoch(6));
  EXPECT_EQ(NextEpoch(too_old, true), Epoch(10));
  const MetaRow made_up{cluster, Epoch(5), kRowFormat, Epoch(kMaxEpoch + 1)};
  EXPECT_EQ(NextEpoch(made_up, true), Epoch(6));
}

TEST(AdmitName, Table) {
  const std::map<std::string, std::string> live = {{"node", "10.0.0.1"}, {"node-2", "10.0.0.2"}};
  const NameTaken taken = [&](const std::string& name) -> std::optional<std::string> {
    auto found = live.find(name);
    if (found == live.end()) return std::nullopt;
    return found->second;
  };
  Hello hello;
  hello.name = "other";
  EXPECT_EQ(*AdmitName(hello, std::nullopt, taken), "other");
  hello.name = "node";
  EXPECT_EQ(*AdmitName(hello, std::nullopt, taken), "node-3");
  EXPECT_EQ(*AdmitName(hello, "node-7", taken), "node-7");  // What it was given before.
  EXPECT_EQ(*AdmitName(hello, "node-x", taken), "node-3");
  hello.name_explicit = true;
  hello.address = "10.0.0.9";
  const absl::Status refused = AdmitName(hello, std::nullopt, taken).status();
  EXPECT_THAT(PartsOf(refused).because,
              ::testing::AllOf(HasSubstr("10.0.0.1"), HasSubstr("10.0.0.9")));
}

LaunchedJob Existing(bool ended, std::optional<Duration> ended_for) {
  LaunchedJob job;
  job.id = JobId("train-3");
  job.spec.min_nodes = 2;
  job.spec.max_nodes = 3;
  job.ended = ended;
  job.ended_for = ended_for;
  return job;
}

TEST(DecideLaunch, Table) {
  LaunchRequest request;
  request.age = 60s;
  request.spec.min_nodes = 2;
  request.spec.max_nodes = 3;
  auto decide = [&](const std::optional<LaunchedJob>& mine,
                    const std::optional<LaunchedJob>& newest) {
    return DecideLaunch(request, mine, newest).index();
  };
  const auto join = LaunchDecision(JoinJob{}).index(), show = LaunchDecision(ShowResult{}).index(),
             begin = LaunchDecision(BeginJob{}).index(),
             refuse = LaunchDecision(absl::Status()).index();
  EXPECT_EQ(decide(std::nullopt, std::nullopt), begin);
  EXPECT_EQ(decide(std::nullopt, Existing(false, std::nullopt)), join);
  EXPECT_EQ(decide(std::nullopt, Existing(true, 59s)), show);   // It started before that end.
  EXPECT_EQ(decide(std::nullopt, Existing(true, 61s)), begin);  // After it.
  EXPECT_EQ(decide(std::nullopt, Existing(true, std::nullopt)), begin);
  EXPECT_EQ(decide(Existing(true, std::nullopt), std::nullopt),
            show);  // The same command, after a reconnect.
  EXPECT_EQ(decide(Existing(false, std::nullopt), std::nullopt), join);
  request.spec.max_nodes = 4;
  EXPECT_EQ(decide(std::nullopt, Existing(false, std::nullopt)), refuse);
  EXPECT_EQ(decide(std::nullopt, Existing(true, 1s)), show);
  request.standalone = true;
  EXPECT_EQ(decide(std::nullopt, Existing(false, std::nullopt)), begin);
}

TEST(CheckSameBounds, NamesBothValues) {
  JobSpec running, asked;
  running.min_nodes = running.max_nodes = 2;
  asked.min_nodes = 2;
  asked.max_nodes = 4;
  EXPECT_THAT(PartsOf(CheckSameBounds(JobId("j-1"), running, asked)).because,
              ::testing::AllOf(HasSubstr("--nnodes 2"), HasSubstr("2:4")));
  asked = running;
  asked.max_restarts = 5;
  EXPECT_THAT(PartsOf(CheckSameBounds(JobId("j-1"), running, asked)).because,
              ::testing::AllOf(HasSubstr("--max-restarts 0"), HasSubstr("5")));
  asked = running;
  running.max_preemptions = 3;
  EXPECT_THAT(
      PartsOf(CheckSameBounds(JobId("j-1"), running, asked)).because,
      ::testing::AllOf(HasSubstr("--max-preemptions 3"), HasSubstr("--max-preemptions unlimited")));
  running.max_preemptions.reset();
  asked.role = "evaluator";
  EXPECT_THAT(PartsOf(CheckSameBounds(JobId("j-1"), running, asked)).because,
              ::testing::AllOf(HasSubstr("--role default"), HasSubstr("--role evaluator")));
  asked = running;
  asked.node_check.timeout = std::chrono::seconds(5);  // Of no check.
  EXPECT_TRUE(CheckSameBounds(JobId("j-1"), running, asked).ok());
  asked.node_check.command = "nvidia-smi";
  EXPECT_THAT(PartsOf(CheckSameBounds(JobId("j-1"), running, asked)).because,
              ::testing::AllOf(HasSubstr("--node-check ''"), HasSubstr("'nvidia-smi'")));
  running.node_check.command = "nvidia-smi";
  EXPECT_THAT(PartsOf(CheckSameBounds(JobId("j-1"), running, asked)).because,
              ::testing::AllOf(HasSubstr("--node-check-timeout 60000ms"), HasSubstr("5000ms")));
  asked = running;
  running.warm = {{"torch", "numpy"}};
  EXPECT_THAT(
      PartsOf(CheckSameBounds(JobId("j-1"), running, asked)).because,
      ::testing::AllOf(HasSubstr("has --warm=torch,numpy,"), HasSubstr("command no --warm")));
  running.warm.emplace();
  EXPECT_THAT(
      PartsOf(CheckSameBounds(JobId("j-1"), asked, running)).because,
      ::testing::AllOf(HasSubstr("has no --warm,"), HasSubstr("this launch command --warm")));
  EXPECT_TRUE(CheckSameBounds(JobId("j-1"), running, running).ok());
  running.warm.reset();
  asked = running;
  asked.command = {"other"};
  asked.workers_per_node = 9;
  EXPECT_TRUE(CheckSameBounds(JobId("j-1"), running, asked).ok());  // Each launcher's own.
}

TEST(IsLoopback, Table) {
  for (const char* ip : {"127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1"})
    EXPECT_TRUE(IsLoopback(ip)) << ip;
  for (const char* ip : {"10.0.0.1", "fe80::1", "", "1.127.0.0"})
    EXPECT_FALSE(IsLoopback(ip)) << ip;
}

}  // namespace
}  // namespace regroup::coordinator
