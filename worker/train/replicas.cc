#include "worker/train/replicas.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "worker/checkpoint/checksum.h"
#include "worker/kernels/parallel_for.h"

namespace regroup::worker {
namespace {

constexpr std::size_t kPieceFloats = 1 << 20;  // Read by one thread at a time.

std::int64_t HashOf(std::span<const std::int64_t> hashes) {
  return static_cast<std::int64_t>(Xxh3(std::as_bytes(hashes)));
}

// The value that most ranks have; of several, the lowest rank's.
std::int64_t MostCommon(const std::vector<std::int64_t>& values) {
  return *std::max_element(values.begin(), values.end(), [&](std::int64_t a, std::int64_t b) {
    return std::count(values.begin(), values.end(), a) <
           std::count(values.begin(), values.end(), b);
  });
}

struct Difference {
  std::vector<int> odd;  // Ranks that do not hold what most hold.
  bool known = false;    // More ranks hold the other state, so that these are the wrong ones.
  int other = 0;         // Holds what the first of them should.
  std::size_t tensors = 0, first = 0;  // How many differ on the first odd rank, and the first.
};

// Collective; the same on all ranks.
absl::StatusOr<std::optional<Difference>> FindDifference(Group& ranks,
                                                         std::vector<std::int64_t> own,
                                                         std::size_t group) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(ranks.world_size()));
  all[static_cast<std::size_t>(ranks.rank())] = HashOf(own);
  RETURN_IF_ERROR(ranks.AllReduce(std::span(all), Reduction::kSum));  // The others brought zeros.
  Difference found;
  found.known = true;
  for (std::size_t place = 0; place < group; ++place) {
    std::vector<std::int64_t> alike;
    for (std::size_t r = place; r < all.size(); r += group) alike.push_back(all[r]);
    const std::int64_t common = MostCommon(alike);
    std::size_t odd = 0;
    for (std::size_t i = 0; i < alike.size(); ++i) {
      if (alike[i] == common) continue;
      found.odd.push_back(static_cast<int>(place + i * group));
      ++odd;
    }
    if (odd == 0) continue;
    found.known = found.known && 2 * odd < alike.size();
    if (found.odd.size() == odd) {
      const auto holder = std::ranges::find(alike, common) - alike.begin();
      found.other = static_cast<int>(place + static_cast<std::size_t>(holder) * group);
    }
  }
  if (found.odd.empty()) return std::nullopt;
  std::vector<std::int64_t> right = own, wrong = std::move(own);
  RETURN_IF_ERROR(ranks.Broadcast(std::as_writable_bytes(std::span(right)), found.other));
  RETURN_IF_ERROR(ranks.Broadcast(std::as_writable_bytes(std::span(wrong)), found.odd.front()));
  for (std::size_t t = right.size(); t-- > 0;) {
    if (right[t] == wrong[t]) continue;
    ++found.tensors;
    found.first = t;
  }
  std::ranges::sort(found.odd);
  return found;
}

// "exp_avg/wte.weight" is state of wte.weight.
std::string Describe(const ParamLayout& layout, const std::vector<StateTensor>& tensors,
                     const Difference& found) {
  if (found.first == tensors.size()) return "they count steps and samples differently";
  const std::string& name = tensors[found.first].info.name;
  const std::optional<ParamId> param =
      layout.Find(std::string_view(name).substr(name.find('/') + 1));  // npos + 1 is the beginning.
  std::string text =
      absl::StrCat(found.tensors, " of ", tensors.size(), " tensors differ, the first is ", name);
  if (param) {
    const UnitId unit = layout.params()[static_cast<std::size_t>(*param)].unit;
    absl::StrAppend(&text, " of unit ", layout.units()[static_cast<std::size_t>(unit)].name);
  }
  return text;
}

}  // namespace

std::vector<std::int64_t> HashState(const std::vector<StateTensor>& tensors,
                                    const std::map<std::string, std::int64_t>& counters) {
  std::vector<std::span<const float>> pieces;
  std::vector<std::size_t> first;  // Piece of each tensor, and the end.
  for (const StateTensor& t : tensors) {
    first.push_back(pieces.size());
    for (const StateSlice& slice : t.slices) {
      for (std::size_t at = 0; at < slice.data.size(); at += kPieceFloats)
        pieces.push_back(slice.data.subspan(at, std::min(kPieceFloats, slice.data.size() - at)));
    }
  }
  first.push_back(pieces.size());
  std::vector<std::int64_t> of_pieces(pieces.size());
  ParallelFor(static_cast<std::int64_t>(pieces.size()), [&](std::int64_t p, int) {
    const auto piece = static_cast<std::size_t>(p);
    of_pieces[piece] = static_cast<std::int64_t>(Xxh3(std::as_bytes(pieces[piece])));
  });
  std::vector<std::int64_t> hashes;
  for (std::size_t t = 0; t < tensors.size(); ++t)
    hashes.push_back(HashOf(std::span(of_pieces).subspan(first[t], first[t + 1] - first[t])));
  std::vector<std::int64_t> values;
  for (const auto& [name, value] : counters) values.push_back(value);
  hashes.push_back(HashOf(values));
  return hashes;
}

absl::Status CompareReplicas(Group& ranks, const ParamLayout& layout,
                             const std::vector<StateTensor>& tensors,
                             const std::vector<std::int64_t>& hashes, std::int64_t step,
                             int group) {
  if (ranks.world_size() == group) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::optional<Difference> found,
                   FindDifference(ranks, hashes, static_cast<std::size_t>(group)));
  if (!found) return absl::OkStatus();
  const bool one = found->odd.size() == 1;
  const std::string who = absl::StrCat(one ? "rank " : "ranks ", absl::StrJoin(found->odd, ", "));
  return UserError(
      absl::StatusCode::kDataLoss,
      found->known
          ? absl::StrCat("at step ", step, " ", who, one ? " no longer holds" : " no longer hold",
                         " what the other ranks hold")
          : absl::StrCat("at step ", step, " ", who, " and ",
                         group > 1 ? absl::StrCat("rank ", found->other) : "the other ranks",
                         " no longer hold the same"),
      absl::StrCat(Describe(layout, tensors, *found),
                   "; all must be copies of one training, so no checkpoint of it was made: a fault "
                   "of memory or of a processor, or one that computes differently"),
      absl::StrCat("start again from the checkpoint before; if ",
                   found->known ? absl::StrCat("it is ", who, " again, do without ",
                                               one ? "its host" : "their hosts")
                                : "they differ again, any of their hosts may be the wrong one"));
}

}  // namespace regroup::worker
