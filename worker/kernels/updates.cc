#include "worker/kernels/updates.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "worker/kernels/fixed_chunks.h"
#include "worker/kernels/parallel_for.h"

namespace regroup::worker {
namespace {

constexpr std::int64_t kTaskElements = 16 * kSumBlock;

// use(begin, end) of pieces of so many elements, several threads at once.
template <typename Use>
void ForPieces(std::int64_t elements, const Use& use) {
  ParallelFor((elements + kTaskElements - 1) / kTaskElements, [&](std::int64_t task, int) {
    use(task * kTaskElements, std::min(elements, (task + 1) * kTaskElements));
  });
}

template <typename W>
struct LambMoments {
  W first, second, update;
};

template <typename W>
LambMoments<W> LambAt(const LambStep<W>& s, W gradient, W weight, W first, W second) {
  const W g = gradient * s.scale;
  const W m = first + (g - first) * s.rate1;
  const W v = second * s.beta2 + g * g * s.rate2;
  const W update = m * s.correction1 / (std::sqrt(v) * s.root2 + s.epsilon) + s.decay * weight;
  return {m, v, update};
}

template <typename W>
void SgdPiece(std::int64_t n, const SgdStep<W>& s, const W* __restrict gradient,
              W* __restrict weight, W* __restrict buffer) {
  for (std::int64_t i = 0; i < n; ++i) {
    const W direction = gradient[i] * s.scale + s.decay * weight[i];
    buffer[i] = s.momentum * buffer[i] + s.rate * direction;
    weight[i] -= s.lr * buffer[i];
  }
}

template <typename W>
void LambPiece(std::int64_t n, const LambStep<W>& s, const W* __restrict gradient,
               W* __restrict weight, W* __restrict first, W* __restrict second) {
  for (std::int64_t i = 0; i < n; ++i) {
    const LambMoments<W> at = LambAt(s, gradient[i], weight[i], first[i], second[i]);
    weight[i] -= s.lr * at.update;
    first[i] = at.first;
    second[i] = at.second;
  }
}

// Sum of the squares of value(i), i from 0 to n - 1, in an order of its own that never changes.
template <typename Value>
double SquareAll(std::int64_t n, const Value& value) {
  constexpr std::int64_t kLanes = 8;
  double lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const auto x = static_cast<double>(value(i + lane));
      lanes[lane] += x * x;
    }
  }
  double sum = 0;
  for (; i < n; ++i) {
    const auto x = static_cast<double>(value(i));
    sum += x * x;
  }
  for (const double lane : lanes) sum += lane;
  return sum;
}

template <typename W>
double SquareOthers(const TrustSquaresArgs<W>& args, std::int64_t begin, std::int64_t n) {
  const W *g = args.gradient + begin, *w = args.weight + begin;
  if (args.first_moment == nullptr)
    return SquareAll(n, [&](std::int64_t i) { return g[i] * args.step.scale; });
  const W *m = args.first_moment + begin, *v = args.second_moment + begin;
  return SquareAll(
      n, [&](std::int64_t i) { return LambAt(args.step, g[i], w[i], m[i], v[i]).update; });
}

}  // namespace

template <typename W>
void UpdateSgd(const SgdArgs<W>& args, void* /*workspace*/) {
  ForPieces(args.elements, [&](std::int64_t begin, std::int64_t end) {
    SgdPiece(end - begin, args.step, args.gradient + begin, args.weight + begin,
             args.buffer + begin);
  });
}
template void UpdateSgd(const SgdArgs<float>&, void*);
template void UpdateSgd(const SgdArgs<double>&, void*);

template <typename W>
void UpdateLamb(const LambArgs<W>& args, void* /*workspace*/) {
  ForPieces(args.elements, [&](std::int64_t begin, std::int64_t end) {
    LambPiece(end - begin, args.step, args.gradient + begin, args.weight + begin,
              args.first_moment + begin, args.second_moment + begin);
  });
}
template void UpdateLamb(const LambArgs<float>&, void*);
template void UpdateLamb(const LambArgs<double>&, void*);

// Blocks are cut where the flat order is, so a block of a tensor is one rank's, and its sum has the
// same bits whoever that is.
template <typename W>
void SquareForTrust(const TrustSquaresArgs<W>& args, void* /*workspace*/) {
  if (args.elements == 0) return;
  const std::int64_t first = args.first / kSumBlock, last = args.first + args.elements;
  ParallelFor((last - 1) / kSumBlock - first + 1, [&](std::int64_t block, int) {
    const std::int64_t begin = std::max(args.first, (first + block) * kSumBlock) - args.first,
                       end = std::min(last, (first + block + 1) * kSumBlock) - args.first;
    const W* w = args.weight + begin;
    args.of_weights[block] = SquareAll(end - begin, [&](std::int64_t i) { return w[i]; });
    args.of_others[block] = SquareOthers(args, begin, end - begin);
  });
}
template void SquareForTrust(const TrustSquaresArgs<float>&, void*);
template void SquareForTrust(const TrustSquaresArgs<double>&, void*);

}  // namespace regroup::worker
