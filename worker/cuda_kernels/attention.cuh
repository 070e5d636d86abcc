#pragma once

// What the kernels of attention have in common: where a block's tile of a head lies, and what the
// backward ones are given.
#include "worker/cuda_kernels/kernels.h"

namespace regroup::worker::cuda {

// One head of one sequence, and the block's tile of it.
struct HeadTile {
  std::int64_t time;            // Of the sequence.
  int width;                    // Of the head.
  std::int64_t stride;          // From one position of out to the next; qkv has three times that.
  std::int64_t tile;            // Which of the sequence's.
  std::int64_t head;            // (batch, heads) as one number.
  std::int64_t in_qkv, in_out;  // Where the head's first numbers lie.
};

// Of tiles of so many positions.
template <int positions>
__device__ HeadTile TileOfBlock(const AttentionShape& s) {
  const std::int64_t tiles = (s.time + positions - 1) / positions;
  const std::int64_t head = blockIdx.x / tiles, b = head / s.heads, h = head % s.heads;
  const std::int64_t stride = s.heads * s.head_width;
  return {s.time,
          static_cast<int>(s.head_width),
          stride,
          static_cast<std::int64_t>(blockIdx.x) % tiles,
          head,
          b * s.time * 3 * stride + h * s.head_width,
          b * s.time * stride + h * s.head_width};
}

// delta (B, H, T) is the dot product of out and dout.
template <typename T>
struct AttentionGrads {
  AttentionBackwardArgs<T> args;
  float* delta;
};

// On tensor cores (tensor_attention.cu). T: BFloat16, Half. Probabilities, and the gradients of
// scores, are rounded to T before they are multiplied again, as FlashAttention-2 has it (Dao 2023).
// Whether they can: a head has at most 128 numbers, a multiple of eight, and arrays begin at
// multiples of 16 bytes.
template <typename T>
bool FitsTensorCores(const AttentionForwardArgs<T>& args);
template <typename T>
bool FitsTensorCores(const AttentionBackwardArgs<T>& args);
template <typename T>
void TensorAttentionForward(const Launch& launch, const AttentionForwardArgs<T>& args);
// REQUIRES: delta is there, or on its way on this stream.
template <typename T>
void TensorAttentionBackward(const Launch& launch, const AttentionGrads<T>& grads);

}  // namespace regroup::worker::cuda
