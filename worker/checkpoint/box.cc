#include "worker/checkpoint/box.h"

#include <algorithm>

#include "worker/tensor/counter_rng.h"

namespace regroup::worker {
namespace {

constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1;  // What measures are counted by.

// Of the dimensions from `from` on.
std::int64_t Inner(const Dims& shape, std::size_t from) {
  std::int64_t elements = 1;
  for (std::size_t d = from; d < shape.size(); ++d) elements *= shape[d];
  return elements;
}

}  // namespace

bool IsShape(const Dims& dims) {
  std::int64_t elements = 1;
  return dims.size() <= kMaxDims && std::all_of(dims.begin(), dims.end(), [&](std::int64_t n) {
           return n >= 1 && !__builtin_mul_overflow(elements, n, &elements) &&
                  elements <= kMaxElements;
         });
}

std::int64_t ElementsOf(const Dims& dims) { return Inner(dims, 0); }

std::vector<Box> BoxesOf(const Dims& shape, std::int64_t begin, std::int64_t end) {
  std::vector<Box> boxes;
  while (begin < end) {
    Box box{shape, shape};
    // The outermost dimension of which whole steps begin here and end within.
    std::size_t d = 0;
    while (d < shape.size() &&
           (begin % Inner(shape, d + 1) != 0 || end - begin < Inner(shape, d + 1)))
      ++d;
    const std::int64_t step = Inner(shape, d + 1);
    for (std::size_t i = 0; i < shape.size(); ++i) {
      box.begin[i] = i <= d ? begin / Inner(shape, i + 1) % shape[i] : 0;
      if (i < d) box.size[i] = 1;
    }
    std::int64_t steps = 1;
    if (d < shape.size()) {
      steps = std::min((end - begin) / step, shape[d] - box.begin[d]);
      box.size[d] = steps;
    }
    boxes.push_back(std::move(box));
    begin += steps * step;
  }
  return boxes;
}

bool HasBox(const Dims& shape, const Box& box) {
  if (box.begin.size() != shape.size() || box.size.size() != shape.size()) return false;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (box.begin[d] < 0 || box.size[d] < 1 || box.begin[d] >= shape[d] ||
        box.size[d] > shape[d] - box.begin[d])
      return false;
  }
  return true;
}

Runs::Runs(const Dims& shape, const Box& box) : shape_(shape), box_(box), outer_(shape.size()) {
  // Inwards of a dimension of which the box has only a part, it must have everything.
  bool whole = true;
  while (outer_ > 0 && whole) {
    --outer_;
    length_ *= box.size[outer_];
    whole = box.size[outer_] == shape[outer_];
  }
  for (std::size_t d = 0; d < outer_; ++d) count_ *= box.size[d];
}

std::int64_t Runs::Begin(std::int64_t run) const {
  std::int64_t element = 0, step = 1;
  for (std::size_t d = shape_.size(); d-- > 0;) {
    std::int64_t at = box_.begin[d];
    if (d < outer_) {
      at += run % box_.size[d];
      run /= box_.size[d];
    }
    element += at * step;
    step *= shape_[d];
  }
  return element;
}

std::uint64_t Coverage::Measure(const Box& box) const {
  std::uint64_t measure = 1;
  for (std::size_t d = 0; d < box.begin.size(); ++d) {
    const RngKey line = SeedKey(seed_).Fold(d);
    const auto place = [&](std::int64_t border) {
      return line.Bits(static_cast<std::uint64_t>(border)) % kPrime;
    };
    const std::uint64_t length =
        (place(box.begin[d] + box.size[d]) + kPrime - place(box.begin[d])) % kPrime;
    measure = static_cast<std::uint64_t>(static_cast<unsigned __int128>(measure) * length % kPrime);
  }
  return measure;
}

void Coverage::Add(const Box& box) { sum_ = (sum_ + Measure(box)) % kPrime; }

bool Coverage::IsWhole(const Dims& shape) const {
  return sum_ == Measure({Dims(shape.size(), 0), shape});
}

}  // namespace regroup::worker
