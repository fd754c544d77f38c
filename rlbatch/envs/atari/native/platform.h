// What the host compiler and NVRTC have in common: integer names and function attributes. The
// shared headers include nothing else, so that they compile where there are no standard headers.
#pragma once

#if defined(__CUDACC__)
#define RLB_FN __device__ inline
#define RLB_HOT __device__ __forceinline__
#define RLB_COLD __device__ __noinline__
#define RLB_GPU_CALL __device__ __noinline__
#define RLB_HOT_GPU_CALL __device__ __noinline__
#define RLB_HOT_LAMBDA
#define RLB_CONST __device__ constexpr
#define RLB_LIKELY(condition) (condition)
#define RLB_UNLIKELY(condition) (condition)
// A thread's own memory is reached in fewer steps than memory that may be anybody's.
#define RLB_IS_LOCAL(pointer) __builtin_assume(__isLocal(pointer))
#else
#define RLB_FN inline
#define RLB_HOT inline __attribute__((always_inline))
#define RLB_COLD __attribute__((noinline))
#define RLB_GPU_CALL inline  // Called on a GPU, where all else is copied into its callers.
#define RLB_HOT_GPU_CALL RLB_HOT  // Where a caller on a GPU would have too much code with a copy.
#define RLB_HOT_LAMBDA __attribute__((always_inline))
#define RLB_CONST static constexpr
#define RLB_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define RLB_UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define RLB_IS_LOCAL(pointer)
#endif

// For a GPU, or for a host that plays one: see `grid.h`.
#if defined(__CUDACC__) || defined(RLB_GRID)
#define RLB_DEVICE
#endif

// Where programs can be translated to the processor's code.
#if !defined(RLB_DEVICE) && defined(__x86_64__) && defined(__unix__)
#define RLB_TRANSLATES
#endif

namespace rlbatch::atari {

using u8 = unsigned char;
using s8 = signed char;
using u16 = unsigned short;
using s16 = short;
using u32 = unsigned int;
using s32 = int;
using u64 = unsigned long long;
using s64 = long long;
using f32 = float;
using f64 = double;

// The number of the lowest bit that is set; there must be one.
RLB_FN s32 lowest_bit(u32 bits) {
#if defined(__CUDACC__)
  return __ffs(static_cast<s32>(bits)) - 1;
#else
  return __builtin_ctz(bits);
#endif
}

RLB_FN s32 lowest_bit(u64 bits) {
#if defined(__CUDACC__)
  return __ffsll(static_cast<s64>(bits)) - 1;
#else
  return __builtin_ctzll(bits);
#endif
}

RLB_FN u32 bit_count(u32 bits) {
#if defined(__CUDACC__)
  return static_cast<u32>(__popc(bits));
#else
  return static_cast<u32>(__builtin_popcount(bits));
#endif
}

// Adds the products of the four bytes of one word and those of another.
RLB_FN u32 dot_product(u32 a, u32 b, u32 sum) {
#if defined(__CUDACC__) && __CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ < 3
  // These declare `__dp4a` for unsigned numbers, but do not have it.
  asm("dp4a.u32.u32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
  return sum;
#elif defined(__CUDACC__)
  return __dp4a(a, b, sum);
#else
  for (s32 k = 0; k < 32; k += 8) sum += (a >> k & 255) * (b >> k & 255);
  return sum;
#endif
}

// The two must not overlap.
RLB_FN void copy_bytes(const u8* from, u8* to, s32 n) {
#if defined(__CUDACC__)
  for (s32 i = 0; i < n; ++i) to[i] = from[i];
#else
  __builtin_memcpy(to, from, static_cast<unsigned long>(n));
#endif
}

// Four bytes of a program, which begins where a word does and never changes.
RLB_HOT u32 word_at(const u8* program, u32 offset) {
#if defined(__CUDACC__)
  const u32* words = reinterpret_cast<const u32*>(program) + offset / 4;
  return __funnelshift_r(__ldg(words), __ldg(words + 1), 8 * (offset % 4));
#else
  u32 word;
  __builtin_memcpy(&word, program + offset, 4);
  return word;
#endif
}

// Four bytes of two words, from a byte of the first on: that of the offset in its word.
RLB_HOT u32 words_at(u32 first, u32 second, u32 offset) {
#if defined(__CUDACC__)
  return __funnelshift_r(first, second, 8 * offset);  // It takes five bits of the number.
#else
  return static_cast<u32>((u64{second} << 32 | first) >> 8 * (offset % 4));
#endif
}

// Words of one thread among those of its warp, so that the same word of all lies side by side.
#if defined(RLB_DEVICE)
struct Log {
  u32* first;
  RLB_HOT u32& operator[](s32 k) const { return first[32 * k]; }
};
#else
using Log = u32*;
#endif

#if !defined(__CUDACC__)
struct alignas(16) uint4 {
  u32 x, y, z, w;
};
#endif

static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8);

}  // namespace rlbatch::atari
