#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "tests/worker/train/step_ranks.h"

namespace regroup::worker {

// What may be put together in one training: worlds and shardings, numbers, recomputation,
// accumulation, optimizers, overlap.
inline constexpr int kWorlds[] = {1, 2, 3, 4, 6, 7, 9};  // Of nine ranks two have no sample.
struct Numbers {
  DType type;
  DType accumulated = DType::kF32;  // Gradients.
  std::string Name() const {
    return absl::StrCat(NameOf(type), " accumulated in ", NameOf(accumulated));
  }
};
inline constexpr Numbers kNumbers[] = {
    {DType::kF32}, {DType::kBF16}, {DType::kF16}, {DType::kBF16, DType::kBF16}};
inline StepRunnerOptions With(const Numbers& numbers, StepRunnerOptions options) {
  options.accumulate_type = options.reduce_type = numbers.accumulated;
  return options;
}
inline constexpr Recompute kRecomputes[] = {Recompute::kNone, Recompute::kSelective,
                                            Recompute::kFull};

// The largest share of a batch in one micro-batch, or in three that are not alike where it has as
// many samples.
inline int MicroBatchOf(int world, bool accumulates) {
  const int share = (Options().batch + world - 1) / world;
  return accumulates ? (share + 2) / 3 : share;
}

// By factor: which of its values. The first is the place in Placements().
enum Factor { kPlacement, kNumber, kRecompute, kAccumulates, kOptimizer, kOverlaps, kFactors };
using Cell = std::array<std::size_t, kFactors>;

inline const std::vector<std::pair<int, Sharding>>& Placements() {
  static const auto placements = [] {
    std::vector<std::pair<int, Sharding>> all;
    for (const int world : kWorlds) {
      for (const Sharding& sharding : ShardingsOf(world)) all.emplace_back(world, sharding);
    }
    return all;
  }();
  return placements;
}

inline std::vector<Cell> AllCells() {
  const Cell sizes{Placements().size(),    std::size(kNumbers),
                   std::size(kRecomputes), 2,
                   std::size(kOptimizers), 2};
  std::vector<Cell> cells{{}};
  for (std::size_t f = 0; f < kFactors; ++f) {
    std::vector<Cell> more;
    for (Cell cell : cells) {
      for (cell[f] = 0; cell[f] < sizes[f]; ++cell[f]) more.push_back(cell);
    }
    cells = std::move(more);
  }
  return cells;
}

// Cells that have any two values of two factors together, among a few hundred.
inline std::vector<Cell> PairwiseCells() {
  std::vector<Cell> all = AllCells(), chosen;
  Rng rng(1);
  for (std::size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[rng.Below(i)]);
  std::set<std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>> seen;
  const auto pairs_of = [](const Cell& cell) {
    std::vector<std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>> pairs;
    for (std::size_t f = 0; f < kFactors; ++f) {
      for (std::size_t g = f + 1; g < kFactors; ++g) pairs.emplace_back(f, cell[f], g, cell[g]);
    }
    return pairs;
  };
  for (std::size_t news = kFactors * (kFactors - 1) / 2; news > 0; --news) {
    for (const Cell& cell : all) {
      const auto pairs = pairs_of(cell);
      if (std::count_if(pairs.begin(), pairs.end(), [&](const auto& pair) {
            return !seen.contains(pair);
          }) < static_cast<std::ptrdiff_t>(news))
        continue;
      seen.insert(pairs.begin(), pairs.end());
      chosen.push_back(cell);
    }
  }
  return chosen;
}

inline std::string Describe(const Cell& cell) {
  const auto& [world, sharding] = Placements()[cell[kPlacement]];
  return absl::StrCat(sharding.Name(), " on ", world, ", ", kNumbers[cell[kNumber]].Name(),
                      ", recompute ", NameOf(kRecomputes[cell[kRecompute]]), ", accumulates ",
                      cell[kAccumulates], ", ", NameOf(kOptimizers[cell[kOptimizer]]),
                      ", overlaps ", cell[kOverlaps]);
}

}  // namespace regroup::worker
