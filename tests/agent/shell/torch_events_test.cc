#include "agent/shell/torch_events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace regroup::agent {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

LaunchConfig Launch() {
  LaunchConfig launch;
  launch.argv = {"/usr/bin/python3", "-u", "train.py"};
  launch.output.events = "c10d";
  return launch;
}

// The second and third line are PyTorch 2.15's own, with other names and times.
TEST(TorchEvents, AreWrittenAsPyTorchWritesThem) {
  TorchEvents events(Launch(), "vm");
  events.JobKnown(JobId("train-4"));
  const std::string group = events.On(
      GenerationFormed{
          .generation = Generation(1), .nodes = 1, .world = 1, .took = 1500us, .members = {"a"}},
      "a", 0s);
  EXPECT_THAT(
      group,
      HasSubstr(
          "{\"name\": \"torchelastic.worker.status.RENDEZVOUS\", \"source\": \"AGENT\", "
          "\"timestamp\": 0, "
          "\"metadata\": {\"run_id\": \"train-4\", \"global_rank\": null, \"group_rank\": null, "
          "\"worker_id\": null, \"role\": \"default\", \"hostname\": \"vm\", \"state\": "
          "\"RENDEZVOUS\", "
          "\"total_run_time\": 0, \"rdzv_backend\": \"c10d\", \"raw_error\": null, \"metadata\": "
          "\"{\\\"group_world_size\\\": null, \\\"entry_point\\\": \\\"python3\\\"}\", "
          "\"agent_restarts\": 0, \"duration_ms\": 1.5}}\n"));
  EXPECT_EQ(
      events.Started(0, 0, 23861, 1s),
      "{\"name\": \"torchelastic.worker.status.START\", \"source\": \"WORKER\", \"timestamp\": 0, "
      "\"metadata\": {\"run_id\": \"train-4\", \"global_rank\": 0, \"group_rank\": 0, "
      "\"worker_id\": \"23861\", \"role\": \"default\", \"hostname\": \"vm\", \"state\": "
      "\"START\", "
      "\"total_run_time\": 1, \"rdzv_backend\": \"c10d\", \"raw_error\": null, \"metadata\": "
      "\"{\\\"group_world_size\\\": 1, \\\"entry_point\\\": \\\"python3\\\", \\\"local_rank\\\": "
      "[0], "
      "\\\"role_rank\\\": [0], \\\"role_world_size\\\": [1], \\\"exit_code\\\": [null], "
      "\\\"worker_pid\\\": [null]}\", \"agent_restarts\": 0, \"duration_ms\": null}}\n");
}

TEST(TorchEvents, AFailureNamesItsRankAndTheOthersWereTerminated) {
  TorchEvents events(Launch(), "vm");
  events.On(GenerationFormed{.generation = Generation(1), .nodes = 1, .world = 2, .members = {"a"}},
            "a", 0s);
  GenerationEnded ended;
  ended.restarts = 2;
  EXPECT_EQ(events.On(ended, "a", 0s), "");
  JobView job;
  job.state = "failed";
  GenerationView last;
  MemberView& member = last.members.emplace_back();
  member.name = "a";
  member.ranks = {0, 1};
  member.pids = {7, 8};
  RankCause cause;
  cause.node = "a";
  cause.rank = 1;
  cause.exit.kind = ExitKind::kSignaled;
  cause.exit.code = 9;
  last.ended = WorkerFailed{cause};
  job.generations.push_back(last);
  const std::string said = events.Ended(job, "a", 61s);
  EXPECT_THAT(
      said,
      HasSubstr(
          "\"global_rank\": 0, \"group_rank\": 0, \"worker_id\": \"7\", \"role\": \"default\", "
          "\"hostname\": \"vm\", \"state\": \"TERMINATED\""));
  EXPECT_THAT(said, HasSubstr("\"state\": \"FAILED\", \"total_run_time\": 61"));
  EXPECT_THAT(said, HasSubstr("\\\"exit_code\\\": [-9], \\\"worker_pid\\\": [8]"));
  EXPECT_THAT(said, HasSubstr("\"agent_restarts\": 2"));
  EXPECT_THAT(said, HasSubstr("\"raw_error\": \"{\\\"message\\\""));
}

TEST(TorchEvents, NothingIsSaidOfGenerationsWithoutThisNode) {
  TorchEvents events(Launch(), "vm");
  GenerationFormed formed;
  formed.members = {"b"};
  EXPECT_EQ(events.On(formed, "a", 0s), "");
}

}  // namespace
}  // namespace regroup::agent
