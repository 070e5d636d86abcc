#pragma once

// The scalar twin of attention on tensor cores (worker/cuda_kernels/tensor_attention.cu): a row at
// a time through tiles of 64 keys, and rounded to T where tiles are multiplied again. Of heads that
// they take; of others the plain twin.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/worker/kernels/tables.h"
#include "worker/kernels/arguments.h"
#include "worker/kernels/kernels.h"

namespace regroup::worker {

inline constexpr std::int64_t kTileKeys = 64;
inline constexpr float kLog2OfE = 1.44269504f;

// Row t of a head: q, k and v of it, and where it lies in out.
template <typename T>
struct TiledHead {
  const AttentionShape& s;
  const T* qkv;
  std::int64_t b, h;

  std::int64_t InOut(std::int64_t t) const {
    return (b * s.time + t) * s.width() + h * s.head_width;
  }
  // which: 0 q, 1 k, 2 v.
  std::int64_t InQkv(std::int64_t t, int which) const {
    return ((b * s.time + t) * 3 + which) * s.width() + h * s.head_width;
  }
  const T* Q(std::int64_t t) const { return qkv + InQkv(t, 0); }
  const T* K(std::int64_t t) const { return qkv + InQkv(t, 1); }
  const T* V(std::int64_t t) const { return qkv + InQkv(t, 2); }
  float Dot(const T* x, const T* y) const {
    float sum = 0;
    for (std::int64_t d = 0; d < s.head_width; ++d) sum += float{x[d]} * float{y[d]};
    return sum;
  }
};

template <typename T, typename Use>
void ForEachHead(const AttentionShape& s, const T* qkv, const Use& use) {
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) use(TiledHead<T>{s, qkv, b, h});
  }
}

inline bool OnTensorCores(const AttentionShape& s) {
  return s.head_width <= 128 && s.head_width % 8 == 0;
}

template <typename T>
void TiledAttentionForward(const AttentionForwardArgs<T>& args, void* /*workspace*/) {
  const AttentionShape& s = args.shape;
  const float scale = 1 / std::sqrt(static_cast<float>(s.head_width)), scale2 = scale * kLog2OfE;
  ForEachHead(s, args.qkv, [&](const TiledHead<T>& head) {
    for (std::int64_t t = 0; t < s.time; ++t) {
      float top = -std::numeric_limits<float>::infinity(), total = 0;
      std::vector<float> sums(static_cast<std::size_t>(s.head_width));
      for (std::int64_t first = 0; first <= t; first += kTileKeys) {
        const std::int64_t end = std::min(first + kTileKeys, t + 1);
        const float before = top;
        for (std::int64_t u = first; u < end; ++u)
          top = std::max(top, head.Dot(head.Q(t), head.K(u)));
        const float shrink = std::exp2((before - top) * scale2);
        total *= shrink;
        for (float& sum : sums) sum *= shrink;
        for (std::int64_t u = first; u < end; ++u) {
          const float p = std::exp2((head.Dot(head.Q(t), head.K(u)) - top) * scale2);
          total += p;
          for (std::size_t d = 0; d < sums.size(); ++d)
            sums[d] += float{T(p)} * float{head.V(u)[d]};
        }
      }
      for (std::size_t d = 0; d < sums.size(); ++d)
        args.out[head.InOut(t) + static_cast<std::int64_t>(d)] = T(sums[d] / total);
      args.log_sum_exp[(head.b * s.heads + head.h) * s.time + t] = top * scale + std::log(total);
    }
  });
}

template <typename T>
void TiledAttentionBackward(const AttentionBackwardArgs<T>& args, void* /*workspace*/) {
  const AttentionShape& s = args.shape;
  const float scale = 1 / std::sqrt(static_cast<float>(s.head_width)), scale2 = scale * kLog2OfE;
  std::vector<float> sums(static_cast<std::size_t>(s.batch * s.time * 3 * s.width()));
  ForEachHead(s, args.qkv, [&](const TiledHead<T>& head) {
    for (std::int64_t t = 0; t < s.time; ++t) {
      const T* dout = args.dout + head.InOut(t);
      const float delta = head.Dot(args.out + head.InOut(t), dout);
      const float lse = args.log_sum_exp[(head.b * s.heads + head.h) * s.time + t];
      float* dq = sums.data() + head.InQkv(t, 0);
      for (std::int64_t u = 0; u <= t; ++u) {
        float *dk = sums.data() + head.InQkv(u, 1), *dv = sums.data() + head.InQkv(u, 2);
        const float p = std::exp2(head.Dot(head.Q(t), head.K(u)) * scale2 - lse * kLog2OfE);
        const float ds = float{T(p * (head.Dot(dout, head.V(u)) - delta) * scale)};
        for (std::int64_t d = 0; d < s.head_width; ++d) {
          dv[d] += float{T(p)} * float{dout[d]};
          dk[d] += ds * float{head.Q(t)[d]};
          dq[d] += ds * float{head.K(u)[d]};
        }
      }
    }
  });
  for (std::size_t i = 0; i < sums.size(); ++i) args.dqkv[i] = T(sums[i]);
}

// The twin that rounds where this table does.
template <typename T>
const KernelTable<T>& TwinOf([[maybe_unused]] const KernelTable<T>& table) {
#if defined(REGROUP_CUDA_TABLE)
  if constexpr (sizeof(T) == 2) {
    static const KernelTable<T> tiled = [] {
      using Forward = AttentionForwardArgs<T>;
      using Backward = AttentionBackwardArgs<T>;
      KernelTable<T> twin = ReferenceKernels<T>();
      twin.attention_forward = +[](const Launch& on, const Forward& args) {
        static const Kernel<Forward> kTiled = TiledAttentionForward<T>;
        (OnTensorCores(args.shape) ? kTiled : ReferenceKernels<T>().attention_forward)(on, args);
      };
      twin.attention_backward = +[](const Launch& on, const Backward& args) {
        static const Kernel<Backward> kTiled = TiledAttentionBackward<T>;
        (OnTensorCores(args.shape) ? kTiled : ReferenceKernels<T>().attention_backward)(on, args);
      };
      return twin;
    }();
    if (&table == &CudaKernels<T>()) return tiled;
  }
#endif
  return ReferenceKernels<T>();
}

}  // namespace regroup::worker
