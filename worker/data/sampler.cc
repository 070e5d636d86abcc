#include "worker/data/sampler.h"

#include <algorithm>
#include <bit>

#include "common/base/check.h"
#include "worker/tensor/counter_rng.h"

namespace regroup::worker {

SamplePermutation::SamplePermutation(std::uint64_t seed, std::int64_t data_epoch, std::int64_t size)
    : size_(static_cast<std::uint64_t>(size)) {
  CHECK(size >= 1);
  half_bits_ = static_cast<std::uint64_t>(std::bit_width(size_ - 1) + 1) / 2;
  const RngKey key =
      SeedKey(seed).Fold("sample order").Fold(static_cast<std::uint64_t>(data_epoch));
  for (std::uint64_t round = 0; round < std::size(round_keys_); ++round) {
    round_keys_[round] = key.Bits(round);
  }
}

std::uint64_t SamplePermutation::Encrypt(std::uint64_t value) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_, right = value & mask;
  for (std::uint64_t key : round_keys_) {
    const std::uint64_t mixed = left ^ (MixBits(right + key) & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

std::int64_t SamplePermutation::operator()(std::int64_t index) const {
  CHECK(index >= 0 && static_cast<std::uint64_t>(index) < size_);
  // The network permutes up to four times more numbers than there are samples; following its cycle
  // from one that is inside always comes back inside, and stays one to one.
  std::uint64_t value = static_cast<std::uint64_t>(index);
  do {
    value = Encrypt(value);
  } while (value >= size_);
  return static_cast<std::int64_t>(value);
}

Slice RankSlice(std::int64_t count, int rank, int world) {
  CHECK(count >= 0 && rank >= 0 && rank < world);
  const std::int64_t each = count / world, extra = count % world;
  return {.begin = rank * each + std::min<std::int64_t>(rank, extra),
          .size = each + (rank < extra ? 1 : 0)};
}

std::vector<std::int64_t> Sampler::Ids(std::int64_t position, std::int64_t count) const {
  CHECK(position >= 0 && count >= 0);
  std::vector<std::int64_t> ids;
  ids.reserve(static_cast<std::size_t>(count));
  while (count > 0) {
    const std::int64_t epoch = position / dataset_samples_, first = position % dataset_samples_;
    const std::int64_t here = std::min(count, dataset_samples_ - first);
    const SamplePermutation order(seed_, epoch, dataset_samples_);
    for (std::int64_t i = 0; i < here; ++i) ids.push_back(order(first + i));
    position += here;
    count -= here;
  }
  return ids;
}

}  // namespace regroup::worker
