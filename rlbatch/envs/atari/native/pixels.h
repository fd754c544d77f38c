// Screens on the host: pixels as palette indices. `picture.h` has the same functions for a GPU.
#pragma once

#include "masks.h"

namespace rlbatch::atari {

using Screen = u8*;   // [height][160]; null: nobody will look.
using Screens = u8*;  // Two of them, which frames are drawn to in turn.

RLB_HOT Screen begin_drawing(Screens screens, s32 buffer, s32 height) {
  return screens + buffer * (height * kWidth);
}

RLB_HOT void end_drawing(Screens, s32) {}

RLB_FN void clear_screens(Screens screens, s32 height) {
  for (s32 i = 0; i < 2 * height * kWidth; ++i) screens[i] = 0;
}

// Takes the colours out of a screen from a row on.
RLB_FN void grey_out(Screens screens, s32 buffer, s32 row, s32 height) {
  u8* pixels = screens + buffer * (height * kWidth);
  for (s32 i = row * kWidth; i < height * kWidth; ++i) {
    pixels[i] = static_cast<u8>((pixels[i] & 0x0f) >> 1);
  }
}

// The row is as the one above.
RLB_HOT void repeat_row(Screen screen, s32 row) {
  u8* pixels = screen + row * kWidth;
  copy_bytes(pixels - kWidth, pixels, kWidth);
}

RLB_FN void clear_pixels(Screen screen, s32 row, s32 begin, s32 end) {
  for (s32 x = begin; x < end; ++x) screen[row * kWidth + x] = 0;
}

// Blends layers into pixels [begin, end) of a row; those that are not shown become 0.
RLB_FN void write_row(Screen screen, s32 row_number, const Layers& layers, const Mask& shown,
                      s32 begin, s32 end) {
  u8* row = screen + row_number * kWidth;
  const Mask written = pixels_between(begin, end);
#if defined(RLB_AVX512)
  for (s32 i = 0; i < 3; ++i) {
    if (!written.w[i]) continue;
    __m512i pixels = _mm512_set1_epi8(static_cast<char>(layers.background));
    for (s32 k = 0; k < layers.n; ++k) {
      pixels = _mm512_mask_mov_epi8(pixels, layers.mask[k].w[i],
                                    _mm512_set1_epi8(static_cast<char>(layers.colour[k])));
    }
    _mm512_mask_storeu_epi8(row + 64 * i, written.w[i],
                            _mm512_maskz_mov_epi8(shown.w[i], pixels));
  }
#else
  for (s32 x = begin & ~7; x < end; x += 8) {  // Eight pixels at a time.
    u64 pixels = layers.background * kEveryByte;
    for (s32 k = 0; k < layers.n; ++k) {
      const u64 where = kSpread[eight(layers.mask[k], x)];
      pixels = (pixels & ~where) | (layers.colour[k] * kEveryByte & where);
    }
    const u64 here = kSpread[eight(written, x)];
    u64 old;
    copy_bytes(row + x, reinterpret_cast<u8*>(&old), 8);
    const u64 merged = (old & ~here) | (pixels & kSpread[eight(shown, x)] & here);
    copy_bytes(reinterpret_cast<const u8*>(&merged), row + x, 8);
  }
#endif
}

}  // namespace rlbatch::atari
