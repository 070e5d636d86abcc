#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace regroup::worker {

// Up to four dimensions, row-major; a scalar has none.
class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  // REQUIRES: at most kMaxRank dimensions, each at least 1, product below 2^62.
  Shape(std::initializer_list<std::int64_t> dims);

  int rank() const { return rank_; }
  // REQUIRES: 0 <= axis < rank().
  std::int64_t dim(int axis) const;
  std::span<const std::int64_t> dims() const {
    return std::span(dims_).first(static_cast<std::size_t>(rank_));
  }
  std::int64_t elements() const;
  std::string ToString() const;  // "(384, 1536)"

  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::int64_t, kMaxRank> dims_{};  // Unused ones stay 0, so that == compares shapes.
  int rank_ = 0;
};

}  // namespace regroup::worker
