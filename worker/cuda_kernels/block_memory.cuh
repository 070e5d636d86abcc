#pragma once

namespace regroup::worker::cuda {

#if defined(__CUDACC__)
extern __shared__ __align__(16) unsigned char block_memory[];
// Geometry::block_bytes of memory that the threads of this block share. Nothing is in it at first.
template <typename Number>
__device__ Number* BlockMemory() {
  return reinterpret_cast<Number*>(block_memory);
}
#endif

}  // namespace regroup::worker::cuda
