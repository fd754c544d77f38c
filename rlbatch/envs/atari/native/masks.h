// The pixels of a line as bits, and how they become colours: what `tia.h` and screens share.
#pragma once

#include "platform.h"
#include "vectors.h"

namespace rlbatch::atari {

constexpr s32 kWidth = 160;  // Pixels per line.
constexpr s32 kMaxHeight = 250;

// Bit x is pixel x.
#if defined(RLB_AVX2)

struct Mask {
  union {
    __m256i v;
    u64 w[4];  // The last is 0.
  };
};

struct BelowTable {
  alignas(32) u64 of[kWidth + 1][4];
  constexpr BelowTable() : of{} {
    for (s32 n = 0; n <= kWidth; ++n) {
      for (s32 x = 0; x < n; ++x) of[n][x / 64] |= 1ull << x % 64;
    }
  }
};
static constexpr BelowTable kPixelsBelow{};

RLB_HOT Mask mask_of(__m256i v) {
  Mask m;
  m.v = v;
  return m;
}
RLB_HOT Mask no_pixels() { return mask_of(_mm256_setzero_si256()); }
RLB_HOT Mask pixels_below(s32 n) {
  return mask_of(_mm256_load_si256(reinterpret_cast<const __m256i*>(kPixelsBelow.of[n])));
}
RLB_HOT Mask operator&(const Mask& a, const Mask& b) { return mask_of(_mm256_and_si256(a.v, b.v)); }
RLB_HOT Mask operator|(const Mask& a, const Mask& b) { return mask_of(_mm256_or_si256(a.v, b.v)); }
RLB_HOT Mask without(const Mask& a, const Mask& b) {
  return mask_of(_mm256_andnot_si256(b.v, a.v));
}
RLB_HOT bool have_common(const Mask& a, const Mask& b) { return !_mm256_testz_si256(a.v, b.v); }

// Adds pixels that begin at a position, around the right edge. Shifts by less than 0, or by more than
// 63, give 0, so that every word takes what it needs.
RLB_HOT void add_pixels(Mask& m, u64 bits, s32 position) {
  const __m256i b = _mm256_set1_epi64x(static_cast<s64>(bits));
  const __m256i zero = _mm256_setzero_si256(), width = _mm256_set1_epi64x(kWidth);
  const __m256i to = _mm256_sub_epi64(_mm256_set1_epi64x(position), _mm256_set_epi64x(192, 128, 64, 0));
  const __m256i back = _mm256_sub_epi64(zero, to);
  const __m256i here = _mm256_or_si256(_mm256_sllv_epi64(b, to), _mm256_srlv_epi64(b, back));
  const __m256i around = _mm256_srlv_epi64(b, _mm256_add_epi64(back, width));
  m = m | (mask_of(here) & pixels_below(kWidth)) | mask_of(around);
}

#else

struct Mask {
  u64 w[3];
};

RLB_HOT Mask no_pixels() { return {{0, 0, 0}}; }
RLB_HOT Mask pixels_below(s32 n) {
  Mask m;
  m.w[0] = n >= 64 ? ~0ull : (1ull << (n & 63)) - 1;
  m.w[1] = n >= 128 ? ~0ull : n <= 64 ? 0 : (1ull << (n & 63)) - 1;
  m.w[2] = n >= 160 ? 0xffffffffull : n <= 128 ? 0 : (1ull << (n & 63)) - 1;
  return m;
}
RLB_HOT Mask operator&(const Mask& a, const Mask& b) {
  return {{a.w[0] & b.w[0], a.w[1] & b.w[1], a.w[2] & b.w[2]}};
}
RLB_HOT Mask operator|(const Mask& a, const Mask& b) {
  return {{a.w[0] | b.w[0], a.w[1] | b.w[1], a.w[2] | b.w[2]}};
}
RLB_HOT Mask without(const Mask& a, const Mask& b) {
  return {{a.w[0] & ~b.w[0], a.w[1] & ~b.w[1], a.w[2] & ~b.w[2]}};
}
RLB_HOT bool have_common(const Mask& a, const Mask& b) {
  return ((a.w[0] & b.w[0]) | (a.w[1] & b.w[1]) | (a.w[2] & b.w[2])) != 0;
}

// Adds pixels that begin at a position, around the right edge.
RLB_HOT void add_pixels(Mask& m, u64 bits, s32 position) {
  const s32 word = position >> 6, shift = position & 63;
  const u64 high = shift ? bits >> (64 - shift) : 0;
  m.w[word] |= bits << shift;
  if (word < 2) m.w[word + 1] |= high;
  if (position > 96) m.w[0] |= bits >> (kWidth - position);
  m.w[2] &= 0xffffffffull;
}

#endif

RLB_HOT Mask pixels_between(s32 from, s32 to) {
  return without(pixels_below(to), pixels_below(from));
}

// The eight bits from x on, which is a multiple of eight.
RLB_HOT u32 eight(const Mask& m, s32 x) { return m.w[x >> 6] >> (x & 63) & 0xff; }

// Every bit of a byte as a byte of zeros or ones.
struct SpreadTable {
  u64 of[256];
  constexpr SpreadTable() : of{} {
    for (s32 i = 0; i < 256; ++i) {
      for (s32 k = 0; k < 8; ++k) of[i] |= i >> k & 1 ? 0xffull << 8 * k : 0;
    }
  }
  RLB_FN u64 operator[](u32 bits) const { return of[bits]; }
};
RLB_CONST SpreadTable kSpread{};
constexpr u64 kEveryByte = 0x0101010101010101ull;

constexpr s32 kMaxLayers = 5;

// Who covers whom, as masks and colours from the back to the front, over a background.
struct Layers {
#if defined(RLB_DEVICE)
  Mask mask[kMaxLayers] = {};  // All of them are looked at.
  u8 colour[kMaxLayers] = {};
#else
  Mask mask[kMaxLayers];
  u8 colour[kMaxLayers];
#endif
  u8 background;
  s32 n;
  RLB_FN void add(const Mask& m, u8 c) {
    mask[n] = m;
    colour[n++] = c;
  }
};

RLB_HOT bool has_pixel(const Mask& m, s32 x) { return m.w[x >> 6] >> (x & 63) & 1; }

}  // namespace rlbatch::atari
