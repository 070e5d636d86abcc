#pragma once

#include <cstdint>
#include <vector>

namespace regroup::worker {

using Dims = std::vector<std::int64_t>;  // One number for each dimension of a tensor.

inline constexpr std::size_t kMaxDims = 8;
inline constexpr std::int64_t kMaxElements = std::int64_t{1} << 48;  // Of one tensor.

// At most kMaxDims numbers of at least 1, whose product is at most kMaxElements.
bool IsShape(const Dims& dims);
std::int64_t ElementsOf(const Dims& dims);  // REQUIRES: IsShape(dims).

// Elements begin[d] to begin[d] + size[d] in each dimension d. The box of a scalar has no
// dimension, and one element.
struct Box {
  Dims begin, size;
  friend bool operator==(const Box&, const Box&) = default;
};

// Elements [begin, end) of a tensor in row-major order, cut into as few boxes as that takes, in
// that order: 2n - 1 at most for n dimensions. REQUIRES: IsShape(shape), 0 <= begin < end <= its
// elements.
std::vector<Box> BoxesOf(const Dims& shape, std::int64_t begin, std::int64_t end);

// Whether a tensor has all of a box, which is not empty. Any numbers.
bool HasBox(const Dims& shape, const Box& box);

// A box, in its own row-major order, as runs of elements that are also side by side in its tensor.
// All runs are of one length. REQUIRES: HasBox(shape, box); both outlive this.
class Runs {
 public:
  Runs(const Dims& shape, const Box& box);
  std::int64_t length() const { return length_; }
  std::int64_t count() const { return count_; }
  // Its first element, in the row-major order of the tensor.
  std::int64_t Begin(std::int64_t run) const;

 private:
  const Dims& shape_;
  const Box& box_;
  std::size_t outer_ = 0;  // How many dimensions runs are counted in.
  std::int64_t length_ = 1, count_ = 1;
};

// Tells whether boxes are a whole tensor: each of its elements in exactly one of them. Each takes
// the same time, wherever it lies.
//
// Every border of every dimension has a random place on a line, and a box measures the product of
// the distances between its borders. Measures of boxes side by side add up, so those of boxes that
// are the whole add up to its own; others do so once in 2^58 times.
class Coverage {
 public:
  explicit Coverage(std::uint64_t seed) : seed_(seed) {}
  void Add(const Box& box);  // REQUIRES: the tensor has it.
  bool IsWhole(const Dims& shape) const;

 private:
  std::uint64_t Measure(const Box& box) const;

  std::uint64_t seed_;
  std::uint64_t sum_ = 0;
};

}  // namespace regroup::worker
