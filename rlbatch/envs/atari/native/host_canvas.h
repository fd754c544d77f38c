// Observations on the host: images in full size, resized at once into a ring of frames.
#pragma once

#include <array>
#include <cstring>
#include <vector>

#include "batch.h"
#include "palette.h"
#include "preprocess.h"

namespace rlbatch::atari {

// Returns where the run of one value that begins at a place ends, at most at `last`.
inline size_t end_of_run(const u8* image, size_t begin, size_t last) {
  constexpr size_t kAtOnce = 8;  // Most runs are long.
  size_t end = begin + 1;
  // All of them are the first if each is the one before it.
  while (end + kAtOnce <= last && !std::memcmp(image + end, image + end - 1, kAtOnce)) end += kAtOnce;
  while (end < last && image[end] == image[begin]) ++end;
  return end;
}

// Screens that are kept, as pairs of a length and a value: most are plain.
inline std::vector<u8> packed(const u8* image, size_t n) {
  std::vector<u8> runs;
  for (size_t i = 0, end; i < n; i = end) {
    end = end_of_run(image, i, n - i < 255 ? n : i + 255);
    runs.push_back(static_cast<u8>(end - i));
    runs.push_back(image[i]);
  }
  runs.shrink_to_fit();
  return runs;
}

inline void unpack(const std::vector<u8>& runs, u8* image) {
  for (size_t k = 0; k < runs.size(); image += runs[k], k += 2) std::memset(image, runs[k + 1], runs[k]);
}

// A state of `KnownResets`.
struct KnownReset {
  State state;
  std::array<std::vector<u8>, 2> screens;  // Packed.
};

struct HostCanvas {
  const Options& options;
  const Resize& resize;
  u8* ring;    // [stack][frame_size] observations of single frames.
  u8* image;   // Scratch: an image, in the planes of `observation_type`.
  u8* second;  // Scratch of the same size.
  u8* kept;    // Scratch: the screen that was kept; lasts from step to step if `has_kept`.
  const std::vector<KnownReset>& known;

  static s32 n_pixels(const Console& c) { return c.s.session.height * kWidth; }
  s32 n_planes() const { return options.observation_type == kRgb ? 3 : 1; }

  static const u8* other_screen(const Console& c) {
    return c.screens + (c.s.frame.buffer ^ 1) * n_pixels(c);
  }

  // What `image` is of, beside the current screen; null if nothing.
  const u8* partner(const Console& c, const Episode& e) const {
    return e.has_kept ? kept : e.is_of_one ? nullptr : other_screen(c);
  }

  // The values of palette indices, in one plane.
  void lookup_table(bool is_pal, s32 plane, u8* lut) const {
    const u8(*rgb)[3] = is_pal ? PAL_RGB : NTSC_RGB;
    for (s32 i = 0; i < 256; ++i) lut[i] = rgb[i][plane];
  }

  // Writes the maximum of the values of one or two screens, in all planes.
  void pool_screens(const Console& c, const u8* first, const u8* other, u8* out) const {
    const bool is_pal = c.s.session.is_pal;
    if (options.observation_type == kGrayscale) {
      pool(Frames{first, other, is_pal ? PAL_GRAY : NTSC_GRAY}, n_pixels(c), out);
      return;
    }
    for (s32 plane = 0; plane < 3; ++plane) {
      u8 lut[256];
      lookup_table(is_pal, plane, lut);
      pool(Frames{first, other, lut}, n_pixels(c), out + plane * n_pixels(c));
    }
  }

  // `image` becomes that of the previous observation.
  void recall_image(const Console& c, const Episode& e) {
    if (options.frame_skip > 1 || e.has_kept) pool_screens(c, c.screen(), partner(c, e), image);
  }

  const State& known_state(s32 i) const { return known[static_cast<size_t>(i)].state; }

  void show_known(const Console& c, s32 i, bool is_swapped) {
    const KnownReset& reset = known[static_cast<size_t>(i)];
    const auto& [first, second_one] = reset.screens;
    unpack(is_swapped ? second_one : first, c.screens);
    unpack(is_swapped ? first : second_one, c.screens + n_pixels(c));
  }

  void keep_screen(const Console& c) { copy_bytes(c.screen(), kept, n_pixels(c)); }

  bool kept_differs(const Console& c) const {
    return __builtin_memcmp(kept, c.screen(), static_cast<size_t>(n_pixels(c))) != 0;
  }

  // --- The ring. ---

  void clear_stack() { __builtin_memset(ring, 0, static_cast<size_t>(options.stack * frame_size(options))); }

  u8* next_frame(Episode& e) {
    e.newest = e.newest + 1 == options.stack ? 0 : e.newest + 1;
    return ring + e.newest * frame_size(options);
  }

  void push_resized(const Console& c, Episode& e) {
    u8* out = next_frame(e);
    for (s32 plane = 0; plane < n_planes(); ++plane) {
      resize_image(image + plane * n_pixels(c), resize, out + plane, n_planes());
    }
  }

  void push_image(const Console& c, Episode& e) {
    pool_screens(c, c.screen(), partner(c, e), image);
    push_resized(c, e);
  }

  // The maximum of the recalled image and of the frame before the last.
  void push_recalled(const Console& c, Episode& e, bool has_second) {
    pool_screens(c, has_second ? kept : other_screen(c), nullptr, second);
    pool(Frames{image, second, nullptr}, n_planes() * n_pixels(c), image);
    e.has_kept = 0;
    push_resized(c, e);
  }

  void push_ram(const Console& c, Episode& e) { copy_bytes(c.s.riot.ram, next_frame(e), 128); }

  void push_last_again(Episode& e) {
    const u8* last = ring + e.newest * frame_size(options);
    u8* out = next_frame(e);
    if (out != last) copy_bytes(last, out, frame_size(options));
  }

  // Writes the stack, the oldest frame first.
  void write_stack(const Episode& e, u8* out) const {
    const s32 size = frame_size(options);
    for (s32 i = 1; i <= options.stack; ++i, out += size) {
      const s32 place = e.newest + i >= options.stack ? e.newest + i - options.stack : e.newest + i;
      copy_bytes(ring + place * size, out, size);
    }
  }
};

}  // namespace rlbatch::atari
