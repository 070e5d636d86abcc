#include "worker/tensor/shape.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"

namespace regroup::worker {

Shape::Shape(std::initializer_list<std::int64_t> dims) {
  CHECK(dims.size() <= kMaxRank);
  std::int64_t product = 1;
  for (std::int64_t dim : dims) {
    CHECK(dim >= 1);
    CHECK(!__builtin_mul_overflow(product, dim, &product) && product < (std::int64_t{1} << 62));
    dims_[static_cast<std::size_t>(rank_++)] = dim;
  }
}

std::int64_t Shape::dim(int axis) const {
  CHECK(axis >= 0 && axis < rank_);
  return dims_[static_cast<std::size_t>(axis)];
}

std::int64_t Shape::elements() const {
  std::int64_t product = 1;
  for (std::int64_t dim : dims()) product *= dim;
  return product;
}

std::string Shape::ToString() const { return absl::StrCat("(", absl::StrJoin(dims(), ", "), ")"); }

}  // namespace regroup::worker
