// From screens to observations: palette, maximum of two frames, area resize.
//
//   palette indices --lut--> values --max--> pooled image --resize--> observation
//                   `------- pool -------------------'`-- resize_image --'
//
//   Resize resize;
//   if (!build_resize(210, 84, 84, resize)) return "cannot enlarge";
//   pool(Frames{screen0, screen1, NTSC_GRAY}, 210 * kRowPixels, pooled);
//   resize_image(pooled, resize, observation);
//
// The palette comes before the maximum. The resize gives the bytes of OpenCV's INTER_AREA, which
// ale-py and Gymnasium use; a target may be as large as the source or smaller, not larger.
// A `Resize` serves any number of images and threads. Colours are planes: three pooled images one
// after the other, an observation with the channels side by side.
//
// `resized_pixel` is the definition, `resized_pixel_of_words` the same sooner, on CUDA. The two above
// are for hosts: with vectors where AVX2, or AVX-512 with VBMI, is compiled for, unless RLB_PORTABLE is defined.
#pragma once

#include "platform.h"
#include "vectors.h"

namespace rlbatch::atari {

constexpr s32 kRowPixels = 160;   // Pixels of a source row.
constexpr s32 kMaxResized = 250;  // Rows or columns of any image.
constexpr s32 kBand = 12;         // Rows of an observation that are made together.
constexpr s32 kMaxPairs = 4;      // Pairs of neighbours that the fast path adds.
constexpr s32 kMaxUnit = 128;     // 255 of them fit into 16 bits with a sign.
constexpr f32 kNoFraction = 8388608.0f;  // 2^23
constexpr u64 kEightTimes = 0x0101010101010101u;

// Of a vector path: bytes and outputs of a vector; outputs that share a window of the sums, which
// is what one shuffle can reach; words of a window.
#if defined(RLB_AVX512)
constexpr s32 kVectorBytes = 64, kLanes = 16, kLaneGroup = 16, kLaneWindow = 64;
#else
constexpr s32 kVectorBytes = 32, kLanes = 8, kLaneGroup = 4, kLaneWindow = 8;
#endif

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
//    so an integer sum over `denominator` = the product of both units is exact. The float result
//    can round to another byte only where the exact one is a tie: any other sum is at least
//    1 / denominator away from one, half of that if the denominator is odd, and the errors add up
//    to less than 255 * (terms of a row + terms of a column + 3) / 2^24. `build_resize` checks it.
// 4. Hence the fast path: integers, columns first, and `resized_pixel` for the ties, which are few,
//    and few of which the float sum rounds the other way.
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

// The columns as the fast path wants them: output i adds `n_pairs` pairs of neighbours, some of
// which have a share of 0.
struct ResizeLanes {
  s32 n_pairs;
  s32 has_windows;  // 0: the pixels of some vector lie too far apart.
  u16 word[kRowPixels][2];  // Where the first pair lies in its window; for AVX2 as pairs of bytes.
  s16 share[kMaxPairs][kRowPixels][2];
};

// The columns as a GPU wants them: output i adds the pixels of two words, some with a share of 0.
struct ResizeWords {
  u32 share[kRowPixels][2];  // A byte per pixel.
  u8 first[kRowPixels];      // The number of the first word in its row.
};

struct Resize {
  ResizeAxis rows, columns;
  s32 denominator;
  u8 is_copy, is_block, is_exact_but_ties, has_words;  // The last: all outputs are in `words`.
  u64 inverse;   // Of the denominator, times 2^40 and rounded up.
  ResizeLanes lanes;
  ResizeWords words;
};

// One plane of one or two images of the same size. `second` may be null; `lut`, 256 bytes, is null
// where the images hold values already, not palette indices.
struct Frames {
  const u8* first;
  const u8* second;
  const u8* lut;
};

// Some rows of an observation on their way. The vector paths read, but do not use, what follows the
// totals of a row.
struct Band {
  s32 row, n_rows;
  s16 totals[kBand][kRowPixels + 96];
  u8 lines[kBand][kRowPixels];
  u32 ties[kBand];
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

// Half to even, for 0 <= x < kNoFraction: the sum has no bits left for a fraction.
RLB_FN s32 rounded(f32 x) { return static_cast<s32>((x + kNoFraction) - kNoFraction); }

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

RLB_FN void build_lanes(const ResizeAxis& columns, ResizeLanes& lanes) {
  lanes.n_pairs = (columns.max_count + 1) / 2;
  lanes.has_windows = 1;
  for (s32 i = 0; i < columns.target; ++i) {
    const s32 offset = columns.first[i] - columns.first[i - i % kLaneGroup];
    if (offset + 1 >= kLaneWindow) lanes.has_windows = 0;
    for (s32 j = 0; j < 2; ++j) {
      const s32 word = offset + j;
      const s32 bytes = 2 * word | (2 * word + 1) << 8;
      lanes.word[i][j] = static_cast<u16>(kVectorBytes == 64 ? word : bytes);
    }
    for (s32 k = 0; k < columns.count[i] && k < 2 * kMaxPairs; ++k) {
      lanes.share[k / 2][i][k % 2] = columns.share[columns.start[i] + k];
    }
  }
}

// Returns whether all outputs have their pixels within two words.
RLB_FN bool build_words(const ResizeAxis& columns, ResizeWords& words) {
  bool has_all = true;
  for (s32 i = 0; i < columns.target; ++i) {
    const s32 last = kRowPixels / 4 - 2, own = columns.first[i] / 4, word = own < last ? own : last;
    const s32 offset = columns.first[i] - 4 * word;
    words.first[i] = static_cast<u8>(word);
    has_all = has_all && offset + columns.count[i] <= 8;
    for (s32 k = 0; has_all && k < columns.count[i]; ++k) {
      const u32 share = static_cast<u32>(columns.share[columns.start[i] + k]);
      words.share[i][(offset + k) / 4] |= share << 8 * ((offset + k) % 4);
    }
  }
  return has_all;
}

// OpenCV takes 1 / (target / source) for the scale, and of 210 or 214 rows to 1 or 2 that is no whole
// number.
RLB_FN bool is_whole_scale(s32 size, s32 out_size) {
  return size % out_size == 0 && 1 / (static_cast<f64>(out_size) / size) == size / out_size;
}

// Screens are `height` rows of 160 pixels. Returns whether this resize is possible.
RLB_FN bool build_resize(s32 height, s32 out_height, s32 out_width, Resize& resize) {
  if (height < 1 || height > kMaxResized || out_height < 1 || out_height > height) return false;
  if (out_width < 1 || out_width > kRowPixels) return false;
  resize = Resize{};
  ResizeAxis &rows = resize.rows, &columns = resize.columns;
  build_axis(height, out_height, rows);
  build_axis(kRowPixels, out_width, columns);
  build_lanes(columns, resize.lanes);
  resize.has_words = build_words(columns, resize.words);
  resize.denominator = rows.unit * columns.unit;
  resize.inverse = (u64{1} << 40) / static_cast<u32>(resize.denominator) + 1;
  const s32 n_errors = rows.max_count + columns.max_count + 3;
  const s32 inverse_gap = resize.denominator % 2 ? 2 * resize.denominator : resize.denominator;
  resize.is_copy = height == out_height && kRowPixels == out_width;
  resize.is_block = is_whole_scale(height, out_height) && is_whole_scale(kRowPixels, out_width);
  resize.is_exact_but_ties = rows.unit <= kMaxUnit && resize.lanes.n_pairs <= kMaxPairs &&
                             inverse_gap < (1 << 16) / n_errors;
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
      sum += pooled_pixel(frames, y * kRowPixels + x);
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
  const s32 corner = rows.first[row] * kRowPixels + columns.first[column];
  f32 sum = 0;
  for (s32 y = 0; y < rows.count[row]; ++y) {
    f32 line = 0;
    for (s32 x = 0; x < columns.count[column]; ++x) {
      const f32 value = pooled_pixel(frames, corner + y * kRowPixels + x);
      line = line + rounded_product(value, column_weight[x]);
    }
    sum = sum + rounded_product(line, rows.weight[rows.start[row] + y]);
  }
  return static_cast<u8>(rounded(sum));
}

// The same, of an image that begins where a word does. See NOTE [ area resize ], 4.
RLB_FN u8 resized_pixel_of_words(const u8* image, const Resize& resize, s32 row, s32 column) {
  const Frames frames{image, nullptr, nullptr};
  if (!resize.is_exact_but_ties || !resize.has_words) return resized_pixel(frames, resize, row, column);
  const s32 first = resize.rows.first[row] * (kRowPixels / 4) + resize.words.first[column];
  const u32 *words = reinterpret_cast<const u32*>(image) + first, *share = resize.words.share[column];
  const u32 denominator = static_cast<u32>(resize.denominator);
  u32 sum = denominator / 2;
  for (s32 y = 0; y < resize.rows.count[row]; ++y, words += kRowPixels / 4) {
    const u32 line = dot_product(words[0], share[0], dot_product(words[1], share[1], 0));
    sum += line * static_cast<u32>(resize.rows.share[resize.rows.start[row] + y]);
  }
  const u32 value = static_cast<u32>(sum * resize.inverse >> 40);
  const bool is_tie = denominator % 2 == 0 && sum == value * denominator;
  return is_tie ? resized_pixel(frames, resize, row, column) : static_cast<u8>(value);
}

#if defined(RLB_AVX512)

using Bytes = __m512i;
inline Bytes load_bytes(const u8* from) { return _mm512_loadu_si512(from); }
inline void store_bytes(u8* to, Bytes x) { _mm512_storeu_si512(to, x); }
inline Bytes larger(Bytes a, Bytes b) { return _mm512_max_epu8(a, b); }
inline bool are_equal(Bytes a, Bytes b) { return _mm512_cmpneq_epi8_mask(a, b) == 0; }

// 256 entries: two tables of 128, chosen by the top bit.
struct Lookup {
  Bytes part[4];

  explicit Lookup(const u8* lut) {
    for (s32 i = 0; i < 4; ++i) part[i] = load_bytes(lut + 64 * i);
  }

  Bytes operator()(Bytes index) const {
    const Bytes low = _mm512_permutex2var_epi8(part[0], index, part[1]);
    const Bytes high = _mm512_permutex2var_epi8(part[2], index, part[3]);
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), low, high);
  }
};

// See `finish_plain`: outputs [i, i + 16).
template <s32 n_pairs>
inline void finish_lanes(const Resize& resize, s32 i, Band& band) {
  const f32 denominator = static_cast<f32>(resize.denominator);
  const __m512i word = _mm512_loadu_si512(resize.lanes.word[i]);
  __m512i share[n_pairs];
  for (s32 k = 0; k < n_pairs; ++k) share[k] = _mm512_loadu_si512(resize.lanes.share[k][i]);
  const s32 first = resize.columns.first[i], n_rows = band.n_rows;
  for (s32 row = 0; row < n_rows; ++row) {
    const s16* window = band.totals[row] + first;
    __m512i sum = _mm512_setzero_si512();
    for (s32 k = 0; k < n_pairs; ++k, window += 2) {
      const __m512i pair = _mm512_permutex2var_epi16(_mm512_loadu_si512(window), word,
                                                     _mm512_loadu_si512(window + 32));
      sum = _mm512_add_epi32(sum, _mm512_madd_epi16(pair, share[k]));
    }
    const __m512 exact = _mm512_cvtepi32_ps(sum);
    const __m512 quotient = _mm512_mul_ps(exact, _mm512_set1_ps(1 / denominator));
    const __m512i value = _mm512_cvtps_epi32(quotient);
    const __m512 whole = _mm512_mul_ps(_mm512_cvtepi32_ps(value), _mm512_set1_ps(denominator));
    const __m512 rest = _mm512_abs_ps(_mm512_sub_ps(exact, whole));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(band.lines[row] + i), _mm512_cvtepi32_epi8(value));
    band.ties[row] = _mm512_cmp_ps_mask(rest, _mm512_set1_ps(denominator / 2), _CMP_EQ_OQ);
  }
}

#elif defined(RLB_AVX2)

using Bytes = __m256i;
inline Bytes load_bytes(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
inline void store_bytes(void* to, Bytes x) { _mm256_storeu_si256(static_cast<__m256i*>(to), x); }
inline Bytes larger(Bytes a, Bytes b) { return _mm256_max_epu8(a, b); }
inline bool are_equal(Bytes a, Bytes b) {
  const Bytes difference = _mm256_xor_si256(a, b);
  return _mm256_testz_si256(difference, difference);
}

// 128 entries as eight tables of 16. A shuffle gives 0 where bit 7 of its index is set; so table k
// counts where the high digit of the index is at most k, and holds the difference to the next one:
// from the digit on they cancel out to the entry.
struct HalfLookup {
  Bytes difference[8];

  HalfLookup(const u8* lut, s32 parity) {
    Bytes next = _mm256_setzero_si256();
    for (s32 k = 7; k >= 0; --k) {
      u8 entries[32];
      for (s32 i = 0; i < 32; ++i) entries[i] = lut[32 * k + 2 * (i % 16) + parity];
      const Bytes table = load_bytes(entries);
      difference[k] = _mm256_xor_si256(table, next);
      next = table;
    }
  }

  Bytes operator()(Bytes index) const {
    Bytes value = _mm256_setzero_si256();
    for (s32 k = 0; k < 8; ++k) {
      const Bytes at = _mm256_add_epi8(index, _mm256_set1_epi8(static_cast<s8>(0x70 - 16 * k)));
      value = _mm256_xor_si256(value, _mm256_shuffle_epi8(difference[k], at));
    }
    return value;
  }
};

// Even and odd indices apart: odd ones are rare (colour loss).
struct Lookup {
  HalfLookup even, odd;

  explicit Lookup(const u8* lut) : even(lut, 0), odd(lut, 1) {}

  Bytes operator()(Bytes index) const {
    const Bytes half = _mm256_and_si256(_mm256_srli_epi16(index, 1), _mm256_set1_epi8(0x7F));
    const Bytes value = even(half);
    if (_mm256_testz_si256(index, _mm256_set1_epi8(1))) return value;
    return _mm256_blendv_epi8(value, odd(half), _mm256_slli_epi16(index, 7));
  }
};

// See `finish_plain`: outputs [i, i + 8).
template <s32 n_pairs>
inline void finish_lanes(const Resize& resize, s32 i, Band& band) {
  const f32 denominator = static_cast<f32>(resize.denominator);
  const __m256i word = load_bytes(resize.lanes.word[i]);
  __m256i share[n_pairs];
  for (s32 k = 0; k < n_pairs; ++k) share[k] = load_bytes(resize.lanes.share[k][i]);
  const s32 left = resize.columns.first[i], right = resize.columns.first[i + kLaneGroup];
  const s32 n_rows = band.n_rows;
  for (s32 row = 0; row < n_rows; ++row) {
    const s16* totals = band.totals[row];
    __m256i sum = _mm256_setzero_si256();
    for (s32 k = 0; k < n_pairs; ++k, totals += 2) {
      const __m256i windows =
          _mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(totals + right),
                              reinterpret_cast<const __m128i*>(totals + left));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_shuffle_epi8(windows, word), share[k]));
    }
    const __m256 exact = _mm256_cvtepi32_ps(sum);
    const __m256 quotient = _mm256_mul_ps(exact, _mm256_set1_ps(1 / denominator));
    const __m256i value = _mm256_cvtps_epi32(quotient);
    const __m256 whole = _mm256_mul_ps(_mm256_cvtepi32_ps(value), _mm256_set1_ps(denominator));
    const __m256 rest = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), _mm256_sub_ps(exact, whole));
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(value),
                                           _mm256_extracti128_si256(value, 1));
    const __m128i bytes = _mm_packus_epi16(words, words);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(band.lines[row] + i), bytes);
    const __m256 is_tie = _mm256_cmp_ps(rest, _mm256_set1_ps(denominator / 2), _CMP_EQ_OQ);
    band.ties[row] = static_cast<u32>(_mm256_movemask_ps(is_tie));
  }
}

#endif

// Outputs [i, i + kLanes) of the rows of a band, and which of them are ties.
template <s32 n_taps>
RLB_FN void finish_plain(const Resize& resize, s32 i, Band& band) {
  const s32 denominator = resize.denominator, n_rows = band.n_rows, half = denominator / 2;
  for (s32 row = 0; row < n_rows; ++row) band.ties[row] = 0;
  for (s32 lane = 0; lane < kLanes; ++lane) {
    s32 share[n_taps];
    for (s32 k = 0; k < n_taps; ++k) share[k] = resize.lanes.share[k / 2][i + lane][k % 2];
    const s32 first = resize.columns.first[i + lane];
    for (s32 row = 0; row < n_rows; ++row) {
      s32 sum = half;
      for (s32 k = 0; k < n_taps; ++k) sum += band.totals[row][first + k] * share[k];
      const s32 value = static_cast<s32>(static_cast<u64>(sum) * resize.inverse >> 40);
      band.lines[row][i + lane] = static_cast<u8>(value);
      if (sum == value * denominator && 2 * half == denominator) band.ties[row] |= 1u << lane;
    }
  }
}

template <s32 n_pairs>
RLB_FN void finish(const Resize& resize, s32 i, Band& band) {
#if defined(RLB_AVX2)
  if (resize.lanes.has_windows) return finish_lanes<n_pairs>(resize, i, band);
#endif
  if (resize.columns.max_count == 2 * n_pairs) return finish_plain<2 * n_pairs>(resize, i, band);
  finish_plain<2 * n_pairs - 1>(resize, i, band);
}

// Applies the lut, and takes the maximum, for all pixels.
RLB_FN void pool(const Frames& frames, s32 n_pixels, u8* out) {
  const u8 *lut = frames.lut, *first = frames.first;
  const u8* second = frames.second ? frames.second : first;
  s32 i = 0;
  if (!lut) {
    for (; i < n_pixels; ++i) out[i] = first[i] > second[i] ? first[i] : second[i];
    return;
  }
#if defined(RLB_AVX2)
  const Lookup lookup(lut);
  for (; i + kVectorBytes <= n_pixels; i += kVectorBytes) {
    const Bytes a = load_bytes(first + i), b = load_bytes(second + i);
    const Bytes value = lookup(a);
    store_bytes(out + i, are_equal(a, b) ? value : larger(value, lookup(b)));
  }
#elif !defined(__CUDACC__)
  // Much of a picture does not move, and is plain.
  for (; i + 8 <= n_pixels; i += 8) {
    u64 a, b;
    __builtin_memcpy(&a, first + i, 8);
    __builtin_memcpy(&b, second + i, 8);
    if (a == b && a == (a & 255) * kEightTimes) {
      const u64 value = lut[a & 255] * kEightTimes;
      __builtin_memcpy(out + i, &value, 8);
    } else {
      for (s32 k = i; k < i + 8; ++k) out[k] = pooled_pixel(frames, k);
    }
  }
#endif
  for (; i < n_pixels; ++i) out[i] = pooled_pixel(frames, i);
}

// The sums of a row's columns, times the unit of the rows.
RLB_FN void add_rows(const u8* image, const ResizeAxis& rows, s32 row, s16* totals) {
  const u8* pixels = image + rows.first[row] * kRowPixels;
  const s16* share = rows.share + rows.start[row];
#if defined(RLB_AVX2)
  for (s32 x = 0; x < kRowPixels; x += 16) {
    __m256i sum = _mm256_setzero_si256();
    for (s32 k = 0; k < rows.count[row]; ++k) {
      const u8* from = pixels + k * kRowPixels + x;
      const __m256i words =
          _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
      sum = _mm256_add_epi16(sum, _mm256_mullo_epi16(words, _mm256_set1_epi16(share[k])));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(totals + x), sum);
  }
#else
  for (s32 x = 0; x < kRowPixels; ++x) totals[x] = static_cast<s16>(share[0] * pixels[x]);
  for (s32 k = 1; k < rows.count[row]; ++k) {
    pixels += kRowPixels;
    for (s32 x = 0; x < kRowPixels; ++x) {
      totals[x] = static_cast<s16>(totals[x] + share[k] * pixels[x]);
    }
  }
#endif
}

// See NOTE [ area resize ], 4.
RLB_FN void resize_band(const u8* image, const Resize& resize, Band& band) {
  for (s32 k = 0; k < band.n_rows; ++k) {
    add_rows(image, resize.rows, band.row + k, band.totals[k]);
  }
  for (s32 i = 0; i < resize.columns.target; i += kLanes) {
    switch (resize.lanes.n_pairs) {
      case 1: finish<1>(resize, i, band); break;
      case 2: finish<2>(resize, i, band); break;
      case 3: finish<3>(resize, i, band); break;
      default: finish<kMaxPairs>(resize, i, band);
    }
    for (s32 k = 0; k < band.n_rows; ++k) {
      for (s32 x = i; band.ties[k] != 0; ++x, band.ties[k] >>= 1) {
        if ((band.ties[k] & 1) == 0) continue;
        const Frames frames{image, nullptr, nullptr};
        band.lines[k][x] = resized_pixel(frames, resize, band.row + k, x);
      }
    }
  }
}

// Any other resize.
RLB_FN void define_band(const u8* image, const Resize& resize, Band& band) {
  const Frames frames{image, nullptr, nullptr};
  for (s32 k = 0; k < band.n_rows; ++k) {
    for (s32 x = 0; x < resize.columns.target; ++x) {
      band.lines[k][x] = resized_pixel(frames, resize, band.row + k, x);
    }
  }
}

RLB_FN void copy_band(const u8* image, Band& band) {
  for (s32 k = 0; k < band.n_rows; ++k) {
    for (s32 x = 0; x < kRowPixels; ++x) band.lines[k][x] = image[(band.row + k) * kRowPixels + x];
  }
}

// Writes the observation to out[0], out[stride], ...
RLB_FN void resize_image(const u8* image, const Resize& resize, u8* out, s32 stride = 1) {
  const s32 width = resize.columns.target, height = resize.rows.target;
  Band band;
  for (band.row = 0; band.row < height; band.row += kBand) {
    band.n_rows = height - band.row < kBand ? height - band.row : kBand;
    if (resize.is_copy) {
      copy_band(image, band);
    } else if (resize.is_exact_but_ties) {
      resize_band(image, resize, band);
    } else {
      define_band(image, resize, band);
    }
    for (s32 k = 0; k < band.n_rows; ++k, out += width * stride) {
      if (stride == 1) {
        copy_bytes(band.lines[k], out, width);
      } else {
        for (s32 x = 0; x < width; ++x) out[x * stride] = band.lines[k][x];
      }
    }
  }
}

}  // namespace rlbatch::atari
