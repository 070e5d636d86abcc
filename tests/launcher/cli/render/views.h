#pragma once

// The jobs and nodes of CLI.md's screens, made by hand.

#include "common/base/views.h"

namespace regroup::cli {

inline WallTime At(std::int64_t ms) {
  return WallTime{std::chrono::milliseconds(1'795'270'170'000 + ms)};
}  // 14:09:30

inline JobSpec Spec(const std::string& name, int min, int max, int restarts, JobOrigin origin) {
  JobSpec spec;
  spec.name = name;
  spec.origin = origin;
  spec.min_nodes = min;
  spec.max_nodes = max;
  spec.max_restarts = restarts;
  spec.command = {"train.py"};
  return spec;
}

inline MemberView Member(const std::string& name, int group_rank, std::vector<int> ranks) {
  return {NodeId("id-" + name), name, "10.0.0." + std::to_string(4 + group_rank), group_rank,
          std::move(ranks),     {}};
}

inline JobView Train() {
  using namespace std::chrono_literals;
  JobView job;
  job.id = JobId("train-4");
  job.spec = Spec("train", 2, 3, 3, JobOrigin::kLaunched);
  job.state = "running";
  job.nodes = 2;
  job.world = 4;
  job.generation = Generation(2);
  job.step = 8120;
  job.loss = 2.413;
  job.restarts_charged = 1;
  job.created_at = At(-600'000);
  job.age = 2h + 14min;
  GenerationView first;
  first.generation = Generation(1);
  first.state = GenerationView::State::kOver;
  first.world = 4;
  first.members = {Member("node0", 0, {0, 1}), Member("node1", 1, {2, 3})};
  first.formed_at = At(-590'000);
  first.ended_at = At(114);
  RankCause cause{"node1", 3, 1, {}, At(114)};
  cause.exit.kind = ExitKind::kSignaled;
  cause.exit.code = 9;
  cause.exit.pid = 48121;
  first.ended = WorkerFailed{cause};
  first.charged = true;
  first.last_step = 8108;
  GenerationView second = first;
  second.generation = Generation(2);
  second.state = GenerationView::State::kRunning;
  second.ended.reset();
  second.ended_at.reset();
  second.charged = false;
  second.formed_at = At(300);
  second.restored_step = 8096;
  second.phases.down = 310ms;
  second.phases.detect = 4ms;
  second.phases.decide = 1ms;
  second.phases.stop = 220ms;
  second.phases.form = 30ms;
  second.phases.spawn = 55ms;
  second.phases.init = 20ms;
  second.phases.restore = 2100ms;
  second.phases.first_step = 80ms;
  job.generations = {first, second};
  job.time.productive = 2h + 13min + 6s;
  job.time.checkpoint = 41s;
  job.time.recompute = 10s;
  job.time.restore = 2100ms;
  job.time.regroup = 300ms;
  job.events = {{1, At(-590'000), GenerationFormed{Generation(1), 2, 4, 41ms, {"node0", "node1"}}},
                {2, At(114), GenerationEnded{Generation(1), WorkerFailed{cause}, true, 1, 3}},
                {3, At(300), GenerationFormed{Generation(2), 2, 4, 30ms, {"node0", "node1"}}}};
  return job;
}

inline JobView Gpt() {
  using namespace std::chrono_literals;
  JobView job;
  job.id = JobId("gpt-7");
  job.spec = Spec("gpt", 2, 4, 3, JobOrigin::kSubmitted);
  job.state = "regrouping";
  job.nodes = 2;
  job.generation = Generation(5);
  job.step = 1004;
  job.loss = 3.101;
  job.age = 41min;
  job.why = MembersPreparing{{"node2"}, 1200ms};
  return job;
}

inline JobView Eval() {
  using namespace std::chrono_literals;
  JobView job;
  job.id = JobId("eval-2");
  job.spec = Spec("eval", 4, 4, 3, JobOrigin::kSubmitted);
  job.state = "queued";
  job.age = 3min;
  job.why = BelowMinimum{2, 4, 3min, {}};
  return job;
}

inline std::vector<NodeView> Nodes() {
  using namespace std::chrono_literals;
  NodeView node0{NodeId("id-node0"), "node0", "10.0.0.4", "ready", 2,    2,
                 {JobId("train-4")}, 400ms,   "",         true,    true, {}};
  NodeView node1{NodeId("id-node1"),
                 "node1",
                 "10.0.0.5",
                 "suspect",
                 2,
                 2,
                 {JobId("train-4")},
                 3100ms,
                 "lost in 1.9 s unless it reports",
                 true,
                 false,
                 {}};
  NodeView node2{
      NodeId("id-node2"),           "node2", "10.0.0.6", "leaving", 2, 1, {JobId("gpt-7")}, 200ms,
      "SIGTERM, 21 s left, saving", false,   false,      {}};
  return {node0, node1, node2};
}

}  // namespace regroup::cli
