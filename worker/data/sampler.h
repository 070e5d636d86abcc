#pragma once

#include <cstdint>
#include <vector>

namespace regroup::worker {

// A permutation of [0, size) keyed by (seed, data epoch), computed element by element: a Feistel
// network over the next even power of two, walked until it lands inside.
class SamplePermutation {
 public:
  // REQUIRES: size >= 1.
  SamplePermutation(std::uint64_t seed, std::int64_t data_epoch, std::int64_t size);
  // REQUIRES: 0 <= index < size.
  std::int64_t operator()(std::int64_t index) const;

 private:
  std::uint64_t Encrypt(std::uint64_t value) const;

  std::uint64_t size_, half_bits_;
  std::uint64_t round_keys_[4];
};

// A contiguous part of a global batch.
struct Slice {
  std::int64_t begin = 0, size = 0;  // In the global batch.
  friend bool operator==(const Slice&, const Slice&) = default;
};

// Rank's part of `count` samples: sizes differ by at most one, lower ranks take the larger ones.
// With more ranks than samples the last ranks get none. REQUIRES: count >= 0, 0 <= rank < world.
Slice RankSlice(std::int64_t count, int rank, int world);

// The order of samples: a function of (seed, dataset size, samples consumed) only. Rank and world
// slice it.
class Sampler {
 public:
  // REQUIRES: dataset_samples >= 1.
  Sampler(std::uint64_t seed, std::int64_t dataset_samples)
      : seed_(seed), dataset_samples_(dataset_samples) {}

  // Ids of the samples at positions [position, position + count) of the endless order; position =
  // samples consumed so far. Data epochs follow each other without a gap, each sample exactly once
  // in each. REQUIRES: both >= 0.
  std::vector<std::int64_t> Ids(std::int64_t position, std::int64_t count) const;
  std::int64_t DataEpoch(std::int64_t position) const { return position / dataset_samples_; }
  std::int64_t dataset_samples() const { return dataset_samples_; }

 private:
  std::uint64_t seed_;
  std::int64_t dataset_samples_;
};

}  // namespace regroup::worker
