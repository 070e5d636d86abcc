#include "worker/train/replicas.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "common/base/user_error.h"
#include "worker/comm/in_process_communicator.h"
#include "worker/kernels/parallel_for.h"
#include "worker/train/train_state.h"

namespace regroup::worker {
namespace {

struct Held {
  TrainState& state;
  std::map<std::string, std::int64_t>& counters;
};

struct Row {
  const char* name;
  std::map<int, std::function<void(Held)>> changes;  // By rank, of five.
  const char* what;
  const char* because;
  const char* advice = "";
};

// The first has more than one piece.
ParamLayout Layout(int world) {
  return *ParamLayout::Replicated(
      {{"embed", {{.name = "wte.weight", .shape = {1500, 1000}}}, {}},
       {"head", {{.name = "ln.weight", .shape = {70}}, {.name = "ln.bias", .shape = {70}}}, {}}},
      world);
}

// What each rank is told.
std::vector<absl::Status> Compare(int world, const Row& row) {
  auto ranks = MakeInProcessCommunicators(world);
  std::vector<absl::Status> told(static_cast<std::size_t>(world));
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      SetThreadCount(2);
      const ParamLayout layout = Layout(world);
      TrainState state = *TrainState::Create(layout);
      for (std::size_t i = 0; i < state.weights.size(); ++i)
        state.weights[i] = static_cast<float>(i);
      std::map<std::string, std::int64_t> counters = {{"samples", 70}, {"step", 10}};
      if (const auto change = row.changes.find(r); change != row.changes.end())
        change->second({state, counters});
      told[static_cast<std::size_t>(r)] =
          CompareReplicas(*ranks[static_cast<std::size_t>(r)], layout, state.Tensors(layout),
                          HashState(state.Tensors(layout), counters), 10);
      EXPECT_TRUE(ranks[static_cast<std::size_t>(r)]->Barrier().ok());  // In step still.
    });
  }
  for (std::thread& t : threads) t.join();
  return told;
}

TEST(Replicas, EqualOnesAreEqual) {
  for (const int world : {1, 2, 5}) {
    for (const absl::Status& status : Compare(world, {})) EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(Replicas, EveryRankIsToldWhoDiffersAndWhere) {
  const auto weight = [](std::size_t at, float value) {
    return [=](Held held) { held.state.weights[at] = value; };
  };
  const std::vector<Row> rows = {
      {"the last element",
       {{4, weight(1'500'000 + 127 + 70, -1)}},
       "rank 4 no longer holds what",
       "1 of 9 tensors differ, the first is ln.bias of unit head",
       "if it is rank 4 again, do without its host"},
      {"the second piece",
       {{0, weight(1'400'000, -1)}},
       "rank 0 no longer holds what",
       "the first is wte.weight of unit embed"},
      {"a zero of another sign", {{2, weight(0, -0.0F)}}, "rank 2 no longer", "wte.weight"},
      {"a moment",
       {{3, [](Held h) { h.state.slots[1][7] = 1; }}},
       "rank 3 no longer",
       "the first is exp_avg_sq/wte.weight of unit embed"},
      {"two ranks, two tensors",
       {{1, [](Held h) { h.state.slots[0][5] = 1, h.state.slots[1][5] = 1; }}, {3, weight(9, 1)}},
       "ranks 1, 3 no longer hold what",
       "2 of 9 tensors differ, the first is exp_avg/wte.weight",
       "if it is ranks 1, 3 again, do without their hosts"},
      {"a counter",
       {{1, [](Held h) { h.counters["samples"] = 77; }}},
       "rank 1 no longer",
       "they count steps and samples differently"},
      {"no majority",
       {{0, weight(1, 5)}, {1, weight(2, 5)}, {3, weight(3, 5)}, {4, weight(4, 5)}},
       "ranks 1, 2, 3, 4 and the other ranks no longer hold the same",
       "wte.weight",
       "if they differ again, any of their hosts may be the wrong one"},
  };
  for (const Row& row : rows) {
    const std::vector<absl::Status> told = Compare(5, row);
    for (const absl::Status& status : told) {
      EXPECT_EQ(status, told[0]) << row.name;
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << row.name;
      const UserErrorParts parts = PartsOf(status);
      EXPECT_NE(parts.what.find("at step 10 "), std::string::npos) << row.name << parts.what;
      EXPECT_NE(parts.what.find(row.what), std::string::npos) << row.name << ": " << parts.what;
      EXPECT_NE(parts.because.find(row.because), std::string::npos)
          << row.name << ": " << parts.because;
      EXPECT_NE(parts.try_this.find("checkpoint before"), std::string::npos) << parts.try_this;
      EXPECT_NE(parts.try_this.find(row.advice), std::string::npos) << parts.try_this;
    }
  }
}

}  // namespace
}  // namespace regroup::worker
