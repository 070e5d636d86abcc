#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/base/rng.h"
#include "worker/comm/communicator.h"

namespace regroup::worker {

// What a rank brings: numbers of its own below 1/2.
template <typename T>
std::vector<T> Data(int rank, std::size_t count) {
  Rng rng(static_cast<std::uint64_t>(rank) * 1000 + count);
  std::vector<T> data(count);
  for (T& x : data) x = T(static_cast<float>(rng.Unit() - 0.5));
  return data;
}

// Stretches of these sizes for groups of so many ranks, in an order of their own, with owners at
// random; some ranks own nothing.
inline std::vector<Stretch> SomeStretches(int group, bool in_place,
                                          const std::vector<std::int64_t>& sizes) {
  Rng rng(11);
  std::vector<Stretch> stretches;
  std::int64_t from = 5;
  std::vector<std::int64_t> room(static_cast<std::size_t>(group), 7);
  for (const std::int64_t size : sizes) {
    const int owner = static_cast<int>(rng.Below(static_cast<std::uint64_t>(group)));
    std::int64_t& to = room[static_cast<std::size_t>(owner)];
    stretches.push_back({owner, from, in_place ? from : to, size});
    from += size + 3;
    to += size + 1;
  }
  std::reverse(stretches.begin(), stretches.end());
  return stretches;
}

}  // namespace regroup::worker
