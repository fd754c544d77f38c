// From screens to observations: palette, maximum of two frames, area resize.
//
//   palette indices --lut--> values --max--> pooled image --area resize--> observation
//
// The palette comes before the maximum. The resize gives the bytes of OpenCV's INTER_AREA, which
// ale-py and Gymnasium use; a target may be smaller than the source or equal to it, not larger.
//
//   Resize resize;
//   if (!build_resize(210, 84, 84, resize)) return "cannot enlarge";
//   observe(Frames{screen0, screen1, NTSC_GRAY}, resize, pooled, observation);
//
// See NOTE [ area resize ]. On CUDA, `resized_pixel` is the body of a kernel; `observe` is for hosts.
#pragma once

#include "platform.h"

#if !defined(__CUDACC__) && !defined(RLB_PORTABLE) && defined(__AVX2__)
#include <immintrin.h>
#define RLB_PREPROCESS_AVX2 1
#if defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512VBMI__)
#define RLB_PREPROCESS_AVX512 1
#endif
#endif

namespace rlbatch::atari {

constexpr s32 kLine = 160;          // Pixels of a source row.
constexpr s32 kMaxResized = 250;    // Rows or columns of any image.
constexpr s32 kMaxPairs = 4;        // Pairs of taps that the vector paths can add.
constexpr s32 kLaneBytes = 10 * 64;  // The lanes of a resized row, four bytes each.

// NOTE [ area resize ]
//
// Output i of an axis with scale = source / target covers the interval [i, i + 1) * scale:
//
//   source   |  first  |         |         | first + count - 1 |
//   output        |<------------ scale ------------>|
//   weight         head      1    1     tail                     (all divided by scale)
//
// 1. The value of a pixel is defined in float32, rows first: each source row is summed from left to
//    right, then the sums are weighted and added from top to bottom. Every product and every sum
//    rounds; a fused multiply-add would give other bytes. The end rounds half to even.
// 2. If both scales are whole numbers, OpenCV adds integers and multiplies once by 1 / area; but
//    2 x 2 pixels round half up.
// 3. The overlaps are fractions with the common denominator `unit` = source / gcd(source, target),
//    so an integer sum over `denominator` = the product of both units is exact. The float result can
//    round to another byte only where the exact one is a tie: the nearest other sum is
//    1 / denominator away, and the errors add up to less than
//    255 * (taps of a row + taps of a column + 3) / 2^24. `build_resize` checks that this is enough.
// 4. Hence the fast path: integers, columns first, and `resized_pixel` for the ties (2 to 3 percent
//    of a game's pixels; the float sum goes the other way in about one of twenty).
//
// Source: the definition is the behaviour of cv2 4.10 (in ale-py) and 5.0, found by trying it out.

// The terms of one axis.
struct ResizeAxis {
  s32 source, target, unit, max_count;
  s16 first[kMaxResized];   // The first source pixel of an output.
  s16 count[kMaxResized];   // How many it covers, wholly or in part.
  s16 start[kMaxResized];   // Where its terms begin in:
  f32 weight[2 * kMaxResized];
  s16 share[2 * kMaxResized];  // The same, exactly, in 1 / unit.
};

// What the vector paths want to know of the columns: how to bring the two pixels of a pair of taps
// next to each other, and their shares.
struct ResizeLanes {
  s32 n_pairs;  // 0: the pixels of some vector lie too far apart.
  s32 padding[15];
  alignas(64) u8 shuffle[kLaneBytes];
  alignas(64) s16 share[kMaxPairs * kLaneBytes / 2];
};

struct Resize {
  ResizeAxis rows, columns;
  s32 denominator;
  u8 is_copy, is_block, is_exact_but_ties, padding;
  ResizeLanes lanes;
};

// One plane of one or two images of the same size. `second` may be null; `lut` is null where the
// images hold values already, not palette indices.
struct Frames {
  const u8* first;
  const u8* second;
  const u8* lut;
};

// Products that no compiler fuses with a sum.
RLB_FN f32 rounded_product(f32 a, f32 b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;  // The host library is compiled with -ffp-contract=off.
#endif
}

RLB_FN f64 rounded_product(f64 a, f64 b) {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

// Half to even, for 0 <= x < 2^22: the sum has no bits left for a fraction.
RLB_FN s32 rounded(f32 x) { return static_cast<s32>((x + 8388608.0f) - 8388608.0f); }

// The shares of [i, i + 1) * unit in pixels of `target / gcd` each.
RLB_FN s16 exact_share(const ResizeAxis& axis, s32 i, s32 pixel) {
  const s32 size = axis.target / (axis.source / axis.unit);
  const s32 left = pixel * size > i * axis.unit ? pixel * size : i * axis.unit;
  const s32 right = (pixel + 1) * size < (i + 1) * axis.unit ? (pixel + 1) * size
                                                             : (i + 1) * axis.unit;
  return static_cast<s16>(right - left);
}

RLB_FN void build_axis(s32 source, s32 target, ResizeAxis& axis) {
  s32 gcd = source;
  for (s32 rest = target; rest != 0;) {
    const s32 next = gcd % rest;
    gcd = rest;
    rest = next;
  }
  axis = ResizeAxis{};
  axis.source = source;
  axis.target = target;
  axis.unit = source / gcd;
  const f64 scale = static_cast<f64>(source) / target;
  s32 n_terms = 0;
  for (s32 i = 0; i < target; ++i) {
    const f64 begin = rounded_product(static_cast<f64>(i), scale), end = begin + scale;
    const f64 cell = scale < source - begin ? scale : source - begin;
    s32 whole = static_cast<s32>(begin), last = static_cast<s32>(end);
    whole += whole < begin;
    if (last > source - 1) last = source - 1;
    if (whole > last) whole = last;
    const f64 head = whole - begin;
    f64 tail = end - last;
    const bool has_head = head > 1e-3, has_tail = tail > 1e-3;
    if (tail > 1) tail = 1;
    if (tail > cell) tail = cell;
    axis.first[i] = static_cast<s16>(whole - has_head);
    axis.count[i] = static_cast<s16>(last + has_tail - axis.first[i]);
    axis.start[i] = static_cast<s16>(n_terms);
    if (axis.count[i] > axis.max_count) axis.max_count = axis.count[i];
    for (s32 pixel = axis.first[i]; pixel < last + has_tail; ++pixel, ++n_terms) {
      const f64 part = pixel < whole ? head : pixel < last ? 1.0 : tail;
      axis.weight[n_terms] = static_cast<f32>(part / cell);
      axis.share[n_terms] = exact_share(axis, i, pixel);
    }
  }
}

RLB_FN void build_lanes(const ResizeAxis& columns, ResizeLanes& lanes);

// Screens are `height` rows of 160 pixels. Returns whether this resize is possible.
RLB_FN bool build_resize(s32 height, s32 out_height, s32 out_width, Resize& resize) {
  if (height < 1 || height > kMaxResized || out_height < 1 || out_height > height) return false;
  if (out_width < 1 || out_width > kLine) return false;
  resize = Resize{};
  ResizeAxis &rows = resize.rows, &columns = resize.columns;
  build_axis(height, out_height, rows);
  build_axis(kLine, out_width, columns);
  const s32 errors = rows.max_count + columns.max_count + 3;
  resize.denominator = rows.unit * columns.unit;
  resize.is_copy = height == out_height && kLine == out_width;
  resize.is_block = height % out_height == 0 && kLine % out_width == 0;
  resize.is_exact_but_ties = rows.unit <= 128 && resize.denominator < (1 << 16) / errors;
  build_lanes(columns, resize.lanes);
  return true;
}

RLB_FN u8 pooled_pixel(const Frames& frames, s32 i) {
  const u8 a = frames.lut ? frames.lut[frames.first[i]] : frames.first[i];
  if (!frames.second) return a;
  const u8 b = frames.lut ? frames.lut[frames.second[i]] : frames.second[i];
  return a > b ? a : b;
}

// Whole scales. See NOTE [ area resize ], 2.
RLB_FN u8 block_pixel(const Frames& frames, const Resize& resize, s32 row, s32 column) {
  const s32 height = resize.rows.unit, width = resize.columns.unit;
  s32 sum = 0;
  for (s32 y = row * height; y < (row + 1) * height; ++y) {
    for (s32 x = column * width; x < (column + 1) * width; ++x) {
      sum += pooled_pixel(frames, y * kLine + x);
    }
  }
  if (height == 2 && width == 2) return static_cast<u8>((sum + 2) >> 2);
  const f32 weight = 1.0f / static_cast<f32>(height * width);
  return static_cast<u8>(rounded(rounded_product(static_cast<f32>(sum), weight)));
}

// One pixel of the observation, by definition. See NOTE [ area resize ], 1.
RLB_FN u8 resized_pixel(const Frames& frames, const Resize& resize, s32 row, s32 column) {
  if (resize.is_block) return block_pixel(frames, resize, row, column);
  const ResizeAxis &rows = resize.rows, &columns = resize.columns;
  const f32* column_weight = columns.weight + columns.start[column];
  const s32 corner = rows.first[row] * kLine + columns.first[column];
  f32 sum = 0;
  for (s32 y = 0; y < rows.count[row]; ++y) {
    f32 line = 0;
    for (s32 x = 0; x < columns.count[column]; ++x) {
      const f32 value = pooled_pixel(frames, corner + y * kLine + x);
      line = line + rounded_product(value, column_weight[x]);
    }
    sum = sum + rounded_product(line, rows.weight[rows.start[row] + y]);
  }
  return static_cast<u8>(rounded(sum));
}

#if defined(RLB_PREPROCESS_AVX512)

constexpr s32 kPoolStep = 64;

// 256 entries: two tables of 128, chosen by the top bit.
struct Lookup {
  __m512i part[4];

  explicit Lookup(const u8* lut) {
    for (s32 i = 0; i < 4; ++i) part[i] = _mm512_loadu_si512(lut + 64 * i);
  }

  __m512i operator()(const u8* from) const {
    const __m512i index = _mm512_loadu_si512(from);
    const __m512i low = _mm512_permutex2var_epi8(part[0], index, part[1]);
    const __m512i high = _mm512_permutex2var_epi8(part[2], index, part[3]);
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), low, high);
  }
};

inline __m512i pool_load(const u8* from) { return _mm512_loadu_si512(from); }
inline __m512i pool_max(__m512i a, __m512i b) { return _mm512_max_epu8(a, b); }
inline void pool_store(u8* to, __m512i x) { _mm512_storeu_si512(to, x); }

#elif defined(RLB_PREPROCESS_AVX2)

constexpr s32 kPoolStep = 32;

// 128 entries, indices 0 to 127: eight tables of 16. A shuffle gives 0 where bit 7 of its index is
// set, so that `difference[k]` counts where the high digit of the index is at most k, and the
// differences from there on cancel out to the entry.
struct HalfLookup {
  __m256i difference[8];

  HalfLookup(const u8* lut, s32 parity) {
    __m256i next = _mm256_setzero_si256();
    for (s32 k = 7; k >= 0; --k) {
      alignas(16) u8 entries[16];
      for (s32 i = 0; i < 16; ++i) entries[i] = lut[32 * k + 2 * i + parity];
      const __m128i part = _mm_load_si128(reinterpret_cast<const __m128i*>(entries));
      const __m256i both = _mm256_broadcastsi128_si256(part);
      difference[k] = _mm256_xor_si256(both, next);
      next = both;
    }
  }

  __m256i operator()(__m256i index) const {
    __m256i value = _mm256_setzero_si256();
    for (s32 k = 0; k < 8; ++k) {
      const __m256i at = _mm256_add_epi8(index, _mm256_set1_epi8(static_cast<s8>(0x70 - 16 * k)));
      value = _mm256_xor_si256(value, _mm256_shuffle_epi8(difference[k], at));
    }
    return value;
  }
};

// Odd indices are rare (colour loss).
struct Lookup {
  HalfLookup even, odd;

  explicit Lookup(const u8* lut) : even(lut, 0), odd(lut, 1) {}

  __m256i operator()(const u8* from) const {
    const __m256i index = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i half = _mm256_and_si256(_mm256_srli_epi16(index, 1), _mm256_set1_epi8(0x7F));
    const __m256i value = even(half);
    if (_mm256_testz_si256(index, _mm256_set1_epi8(1))) return value;
    return _mm256_blendv_epi8(value, odd(half), _mm256_slli_epi16(index, 7));
  }
};

inline __m256i pool_load(const u8* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
inline __m256i pool_max(__m256i a, __m256i b) { return _mm256_max_epu8(a, b); }
inline void pool_store(u8* to, __m256i x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x);
}

#endif
