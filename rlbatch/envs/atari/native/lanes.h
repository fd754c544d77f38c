// What the threads of a GPU's warp or block know of each other; on a host `grid.h` plays the GPU.
#pragma once

#include "platform.h"

#if defined(RLB_GRID)
#include "grid.h"
#elif defined(RLB_DEVICE)

namespace rlbatch::atari {

RLB_HOT s32 thread_index() { return static_cast<s32>(threadIdx.x); }
RLB_HOT s32 block_index() { return static_cast<s32>(blockIdx.x); }
RLB_HOT s32 block_size() { return static_cast<s32>(blockDim.x); }
RLB_HOT void block_barrier() { __syncthreads(); }
RLB_HOT u8* shared_memory() {
  extern __shared__ __align__(16) u8 rlb_shared[];
  return rlb_shared;
}

// The threads of the warp that are here together: those that may be named in what follows.
RLB_HOT u32 lanes_here() { return __activemask(); }

// Four bytes of the eight of b and a, numbered from the lowest of a on, by the selector's four lower
// nibbles; or, of a nibble that is 8 more, the byte's sign in all bits.
RLB_HOT u32 permute(u32 a, u32 b, u32 selector) {
  u32 result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(selector));
  return result;
}

RLB_HOT bool any(u32 lanes, bool condition) { return __any_sync(lanes, condition); }

RLB_HOT u32 least(u32 lanes, u32 value) {
#if __CUDA_ARCH__ >= 800
  return __reduce_min_sync(lanes, value);
#else
  u32 result = value;
  for (u32 rest = lanes; rest; rest &= rest - 1) {
    const u32 other = __shfl_sync(lanes, value, lowest_bit(rest));
    result = other < result ? other : result;
  }
  return result;
#endif
}

}  // namespace rlbatch::atari

#endif

namespace rlbatch::atari {

// Whether but one lane is named, which need not ask others: in a reset, mostly.
RLB_HOT bool is_one(u32 lanes) { return !(lanes & (lanes - 1)); }

}  // namespace rlbatch::atari
