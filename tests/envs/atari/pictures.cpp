// Draws at random to pictures of runs and to pixels, and compares them; `test_pictures.py` runs it.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "picture.h"

using namespace rlbatch::atari;

namespace {

constexpr s32 kHeight = 40;

std::mt19937 generator;
s32 below(s32 n) { return static_cast<s32>(generator() % static_cast<u32>(n)); }

// Two screens of pixels: what `pixels.h` does, one by one.
struct Pixels {
  std::vector<u8> screens[2] = {std::vector<u8>(kHeight * kWidth), std::vector<u8>(kHeight * kWidth)};
};

Mask random_mask() {
  Mask m = no_pixels();
  for (s32 k = below(4); k > 0; --k) {
    const s32 from = below(kWidth), to = from + below(kWidth - from) + 1;
    m = below(2) ? m | pixels_between(from, to) : without(m, pixels_between(from, to));
  }
  if (below(12) == 0) {  // Noise.
    for (u64& word : m.w) word = u64{generator()} << 32 | generator();
    m = m & pixels_below(kWidth);
  }
  return m;
}

void draw(Pictures& p, Pixels& q, s32 buffer, u32 n_colours) {
  u8* screen = q.screens[buffer].data();
  begin_drawing(&p, buffer, kHeight);
  s32 row = below(6) == 0 ? below(kHeight) : 0;
  s32 x = row && below(2) ? below(kWidth) : 0;
  for (s32 n = below(3) ? kHeight : below(kHeight); row < kHeight && n > 0; ++row, --n, x = 0) {
    const bool follows = p.n_drawn && p.open_row < 0 && p.first[p.drawn] + p.n_drawn == row;
    if (x == 0 && n < kHeight && row > 0 && follows && below(3) == 0) {
      repeat_row(&p, row);
      copy_bytes(screen + (row - 1) * kWidth, screen + row * kWidth, kWidth);
      continue;
    }
    const bool is_last = n == 1;
    while (x < kWidth) {
      const s32 end = below(3) ? kWidth : x + below(kWidth - x) + 1;
      if (below(10) == 0) {
        clear_pixels(&p, row, x, end);
        for (s32 i = x; i < end; ++i) screen[row * kWidth + i] = 0;
      } else {
        Layers layers;
        layers.n = 0;
        layers.background = static_cast<u8>(generator() % n_colours);
        for (s32 k = below(6); k > 0; --k) layers.add(random_mask(), static_cast<u8>(generator() % n_colours));
        const Mask shown = below(4) ? pixels_below(kWidth) : random_mask();
        write_row(&p, row, layers, shown, x, end);
        for (s32 i = x; i < end; ++i) {
          u8 colour = layers.background;
          for (s32 k = 0; k < layers.n; ++k) colour = has_pixel(layers.mask[k], i) ? layers.colour[k] : colour;
          screen[row * kWidth + i] = has_pixel(shown, i) ? colour : u8{0};
        }
      }
      x = end;
      if (is_last && below(2)) break;  // The beam stops within the row.
    }
    if (below(2)) close_row(p);
  }
  end_drawing(&p, kHeight);
}

void grey(Pictures& p, Pixels& q, s32 buffer) {
  const s32 row = below(kHeight);
  grey_out(&p, buffer, row, kHeight);
  for (s32 i = row * kWidth; i < kHeight * kWidth; ++i) {
    u8& pixel = q.screens[buffer][static_cast<size_t>(i)];
    pixel = static_cast<u8>((pixel & 15) >> 1);
  }
}

bool shows(const Pictures& p, s32 picture, const std::vector<u8>& pixels) {
  for (s32 row = 0; row < kHeight; ++row) {
    RowReader reader(p, picture, row);
    s32 x = 0;
    while (x < kWidth) {
      const Span span = reader.next();
      for (s32 k = 0; k < span.length; ++k, ++x) {
        if (x >= kWidth || pixels[static_cast<size_t>(row * kWidth + x)] != span.colour) return false;
      }
    }
  }
  return true;
}

s32 n_rows_with_edges(const Pictures& p, s32 picture) {
  s32 n = 0;
  for (s32 row = 0; row < kHeight; ++row) n += p.row[picture][row] & kHasEdges ? 1 : 0;
  return n;
}

int fail(const char* what, s32 seed, s32 step) {
  std::printf("%s: seed %d, step %d\n", what, seed, step);
  return 1;
}

}  // namespace

int main() {
  const std::unique_ptr<Pictures> pictures(new Pictures());
  Pictures& p = *pictures;
  s32 n_with_edges = 0, n_moves = 0;
  for (s32 seed = 0; seed < 16; ++seed) {
    generator.seed(static_cast<u32>(seed));
    Pixels q;
    clear_screens(&p, kHeight);
    std::vector<u8> kept, image[2];
    for (s32 step = 0; step < 120; ++step) {
      const s32 buffer = below(2);
      const u32 head = p.head;
      if (below(15) == 0) {
        grey(p, q, buffer);
      } else {
        draw(p, q, buffer, seed % 2 ? 6 : 200);
      }
      if (below(9) == 0) {
        p.kept = p.shown[buffer];
        kept = q.screens[buffer];
      }
      if (below(9) == 0) {  // What a step may recall.
        p.n_image = 2;
        for (s32 k = 0; k < 2; ++k) {
          p.image[k] = p.shown[k];
          image[k] = q.screens[k];
        }
      }
      n_moves += p.head < head;
      n_with_edges += n_rows_with_edges(p, p.shown[buffer]);
      if (p.is_lost) return fail("lost", seed, step);
      for (s32 k = 0; k < 2; ++k) {
        if (!shows(p, p.shown[k], q.screens[k])) return fail("different", seed, step);
      }
      if (!kept.empty() && !shows(p, p.kept, kept)) return fail("not kept", seed, step);
      for (s32 k = 0; k < p.n_image; ++k) {
        if (!shows(p, p.image[k], image[k])) return fail("not to be recalled", seed, step);
      }
    }
    const std::unique_ptr<Pictures> copy(new Pictures());
    copy_shown(p, *copy, true, kHeight);
    for (s32 k = 0; k < 2; ++k) {
      if (!shows(*copy, copy->shown[k ^ 1], q.screens[k])) return fail("copied wrongly", seed, k);
    }
  }
  if (n_with_edges < 1000 || n_moves < 40) return fail("too easy", n_with_edges, n_moves);
  // More than there is room for is noticed.
  clear_screens(&p, kMaxHeight);
  for (s32 k = 0; k < 3; ++k) {
    begin_drawing(&p, k % 2, kMaxHeight);
    for (s32 row = 0; row < kMaxHeight; ++row) {
      Layers layers;
      layers.n = 0;
      layers.background = 0;
      Mask noise = no_pixels();
      for (u64& word : noise.w) word = u64{generator()} << 32 | generator();
      // A row ends with a run of two bytes, of which the second one may not fit.
      layers.add(noise & pixels_below(kWidth - 20), 2);
      write_row(&p, row, layers, pixels_below(kWidth), 0, kWidth);
    }
    end_drawing(&p, kMaxHeight);
  }
  if (!p.is_lost) return fail("loss unnoticed", 0, 0);
  const std::unique_ptr<Pictures> copy(new Pictures());
  copy_shown(p, *copy, false, kMaxHeight);
  if (!copy->is_lost) return fail("loss forgotten", 0, 0);
  std::printf("equal\n");
  return 0;
}
