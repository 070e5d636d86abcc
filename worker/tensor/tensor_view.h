#pragma once

#include <cstddef>
#include <span>

#include "common/base/check.h"
#include "worker/tensor/dtype.h"
#include "worker/tensor/shape.h"

namespace regroup::worker {

// A dense row-major tensor in memory that someone else owns.
struct TensorView {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;

  std::size_t bytes() const { return static_cast<std::size_t>(shape.elements()) * SizeOf(dtype); }

  // REQUIRES: T is this view's dtype.
  template <typename T>
  std::span<T> As() const {
    CHECK(dtype == kDTypeOf<T>);
    return {reinterpret_cast<T*>(data), static_cast<std::size_t>(shape.elements())};
  }
};

template <typename T>
TensorView ViewOf(T* data, const Shape& shape) {
  return {reinterpret_cast<std::byte*>(data), kDTypeOf<T>, shape};
}

}  // namespace regroup::worker
