// Published figures of memory, operations and time, from our own layouts and functions.

#include "worker/plan/estimate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace regroup::worker {
namespace {

constexpr std::int64_t kBillion = 1'000'000'000;

// Of `billions` · 10⁹ parameters, in units of a quarter of that.
ParamLayout Layout(double billions, int world, Strategy strategy) {
  std::vector<UnitSpec> units;
  const auto quarters = static_cast<int>(4 * billions);
  for (int u = 0; u < quarters; ++u) {
    const std::string name = "unit." + std::to_string(u);
    units.push_back({name, {{.name = name, .shape = {kBillion / 4}}}, {}});
  }
  return *ParamLayout::Create(units, world, strategy);
}

struct Cell {
  int world;
  Strategy strategy;
  double gigabytes;  // As it is printed.
  int digits;        // Behind its point.
};

void ExpectCells(double billions, const std::vector<Cell>& cells) {
  for (const Cell& cell : cells) {
    const ParamLayout layout = Layout(billions, cell.world, cell.strategy);
    EXPECT_EQ(layout.param_elements(), static_cast<std::int64_t>(billions * kBillion));
    // A printed cell is rounded, and a rank may have a block of each unit more than its part.
    const double blocks = 16.0 * ParamLayout::kBlockElements * 4 * billions / kBillion;
    EXPECT_NEAR(static_cast<double>(MixedStateBytes(layout)) / kBillion, cell.gigabytes,
                0.5 * std::pow(10, -cell.digits) + blocks)
        << billions << " billion, " << NameOf(cell.strategy) << " on " << cell.world;
  }
}

// ZeRO's paper, table 1: 7.5 billion parameters on 1 to 1,024 ranks.
TEST(ModelStates, AreThoseOfZerosPaperFor7Point5BillionParameters) {
  constexpr Strategy kOne = Strategy::kZero1, kTwo = Strategy::kZero2, kThree = Strategy::kZero3;
  ExpectCells(7.5, {{1, kOne, 120, 0},
                    {1, kTwo, 120, 0},
                    {1, kThree, 120, 0},
                    {4, kOne, 52.5, 1},
                    {4, kTwo, 41.3, 1},
                    {4, kThree, 30, 0},
                    {16, kOne, 35.6, 1},
                    {16, kTwo, 21.6, 1},
                    {16, kThree, 7.5, 1},
                    {64, kOne, 31.4, 1},
                    {64, kTwo, 16.6, 1},
                    {64, kThree, 1.88, 2},
                    {256, kOne, 30.4, 1},
                    {256, kTwo, 15.4, 1},
                    {256, kThree, 0.47, 2},
                    {1024, kOne, 30.1, 1},
                    {1024, kTwo, 15.1, 1},
                    {1024, kThree, 0.12, 2},
                    {1024, Strategy::kReplicated, 120, 0}});
}

TEST(ModelStates, AreThosePublishedFor7BillionParameters) {
  ExpectCells(7, {{4, Strategy::kReplicated, 112, 0},
                  {2, Strategy::kZero1, 70, 0},
                  {4, Strategy::kZero1, 49, 0},
                  {4, Strategy::kZero3, 28, 0}});
}

// GPT-2 of 124M, its vocabulary padded to 50304, as llm.c trains it.
constexpr TrainedSize kGpt2{.parameters = 124'475'904, .layers = 12, .width = 768, .context = 1024};

TEST(Flops, OfGpt2AreThosePublished) {
  EXPECT_NEAR(CausalFlopsPerToken(kGpt2), 803.5e6, 0.05e6);
  EXPECT_NEAR(FullFlopsPerToken(kGpt2), 860e6, 0.5e6);
}

const Gpu& GpuOf(std::string_view name) {
  for (const Gpu& gpu : KnownGpus()) {
    if (gpu.name == name) return gpu;
  }
  ADD_FAILURE() << name;
  return KnownGpus()[0];
}

// llm.c's published runs: 218 k tokens/s per A100 are 56 % of its peak, 468 k per H100 38 %.
TEST(Time, OfPublishedRunsFollowsFromTheirMfu) {
  for (const auto& [gpu, mfu, tokens_per_s] :
       {std::tuple("a100", 0.56, 218e3), {"h100", 0.38, 468e3}, {"h200", 0.5, 615e3}}) {
    const double flops = 1e6 * CausalFlopsPerToken(kGpt2);
    const StepTime time =
        EstimateStep({.flops = flops}, GpuOf(gpu).short_flops, mfu,
                     GpuOf(gpu).memory_bytes_per_second, GpuOf(gpu).link_bytes_per_second);
    EXPECT_NEAR(1e6 / time.all_s(), tokens_per_s, 0.01 * tokens_per_s) << gpu;
  }
}

// AdamW reads and writes 28 bytes of a parameter: 0.73 ms of 124M, 9 ms of 1.56B on an H200.
TEST(Time, OfTheOptimizerIsThatOfItsBytes) {
  const Gpu& gpu = GpuOf("h200");
  const auto time = [&](double parameters) {
    return EstimateStep({.optimizer_bytes = 28 * parameters}, gpu.short_flops, 0.4,
                        gpu.memory_bytes_per_second, gpu.link_bytes_per_second);
  };
  EXPECT_NEAR(time(124.4e6).optimizer_s, 0.73e-3, 0.005e-3);
  EXPECT_NEAR(time(1.56e9).all_s(), 9e-3, 0.15e-3);
}

TEST(Time, IsOfComputingAgainAndOfMoving) {
  const StepTime time = EstimateStep({.flops = 3e12, .computed_again = 1.0 / 3, .moved_bytes = 9e9},
                                     100e12, 0.5, 1e12, 450e9);
  EXPECT_DOUBLE_EQ(time.compute_s, 0.08);
  EXPECT_DOUBLE_EQ(time.communication_s, 0.02);
  EXPECT_DOUBLE_EQ(time.all_s(), 0.1);
}

}  // namespace
}  // namespace regroup::worker
