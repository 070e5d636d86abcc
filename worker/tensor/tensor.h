#pragma once

#include <cstddef>
#include <span>

#include "common/base/check.h"
#include "worker/tensor/dtype.h"

namespace regroup::worker {

// Elements of one number type, one after the other, in memory that somebody else owns.
struct Tensor {
  DType type = DType::kF32;
  std::byte* data = nullptr;
  std::size_t size = 0;  // Elements.

  Tensor() = default;
  Tensor(DType its_type, std::byte* its_data, std::size_t its_size)
      : type(its_type), data(its_data), size(its_size) {}
  template <TensorElement T>
  Tensor(std::span<T> elements)  // NOLINT(google-explicit-constructor)
      : type(DTypeOf<T>()),
        data(reinterpret_cast<std::byte*>(elements.data())),
        size(elements.size()) {}

  std::size_t element_bytes() const { return static_cast<std::size_t>(SizeOf(type)); }
  std::size_t bytes() const { return size * element_bytes(); }
  // REQUIRES: `element` <= size.
  std::byte* at(std::size_t element) const { return data + element * element_bytes(); }
  // REQUIRES: T is what it is of.
  template <TensorElement T>
  std::span<T> Elements() const {
    CHECK(type == DTypeOf<T>());
    return {reinterpret_cast<T*>(data), size};
  }
};

// use(T{}) for the T that `type` names.
template <typename Use>
auto WithType(DType type, const Use& use) {
  switch (type) {
    case DType::kF32: return use(float{});
    case DType::kBF16: return use(BFloat16{});
    case DType::kF16: return use(Half{});
  }
  CHECK(false);
}

}  // namespace regroup::worker
