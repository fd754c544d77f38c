// Screens on a GPU: rows of runs of one colour, in a few KB where pixels take 67. `pixels.h` has the
// same functions for a host.
//
// NOTE [ pictures ]
//
// A picture is never changed. A frame is drawn to a new one, row by row from the top; what it does
// not draw is copied, at its end, from the picture that the screen has shown before. So a number
// is enough to keep a picture: those of the last step are still there when the next one ends.
//
// The rows of all pictures lie in one ring of bytes. A run is
//
//   place << 4 | code  [colour, if place is 15]  [length, if code is 15]
//
// with a place in the picture's palette, which are the first 15 colours that are used, and the
// length - 1, if that is below 15. A row ends with pixel 160. Rows that are equal to the one above share
// its bytes.
//
// What is still needed is copied to the head of the ring before it is overwritten. The ring is large
// enough for all that is needed at a time, of any screen that was ever seen in these games, and
// then some. Should a row have been overwritten when it is read, `is_lost` says so, and the batch
// reports it as an error.
#pragma once

#include "masks.h"

namespace rlbatch::atari {

#if !defined(RLB_RING)
#define RLB_RING 16384
#endif

constexpr u32 kRing = RLB_RING;   // Bytes; a power of two, at most half of what 16 bits count.
constexpr u32 kRowBytes = 3 * kWidth;  // That no row exceeds.
constexpr s32 kPictures = 6;
constexpr u32 kPalette = 15;
constexpr u8 kNoPicture = 255;

struct Pictures {
  u32 head;              // Bytes that were ever put into the ring.
  u32 began[kPictures];  // What that was when the picture began.
  u16 row[kPictures][kMaxHeight];  // The same of a row; its lower 16 bits.
  u8 palette[kPictures][kPalette];
  u8 n_colours[kPictures];
  u8 shown[2];   // What the two screens show.
  u8 image[2];   // What the image that an episode's next step may recall is of;
  u8 n_image;    // 0 if there is none.
  u8 kept;       // The screen that was kept.
  u8 is_lost;
  // The picture that is being drawn.
  u8 drawn, buffer;
  u8 x;          // Pixels of its open row that are there.
  s16 open_row;  // -1 if none.
  s16 first_row, next_row;  // Drawn are those from the first to before the next.
  u32 last_start;           // Where the last row begins that is not a copy of another.
  u32 row_start;            // The same, of the open row.
  u8 ring[kRing];
};

static_assert(kRing <= 32768 && (kRing & (kRing - 1)) == 0 && sizeof(Pictures) % 4 == 0);

using Screens = Pictures*;
using Screen = Pictures*;

// --- Reading. ---

// Pixels of one colour.
struct Span {
  s32 length;
  u8 colour;
};

struct RowReader {
  const Pictures& pictures;
  const u8* palette;
  u32 at;
  bool is_lost;  // Then it reads as black.

  RLB_FN RowReader(const Pictures& p, s32 picture, s32 row) : pictures(p), palette(p.palette[picture]) {
    const u32 since = p.head - p.began[picture];
    const u32 age = static_cast<u16>(p.head - p.row[picture][row]);
    at = p.head - age;
    // Something may be written while it is read.
    is_lost = since > 65536 - 2 * kRowBytes || age > kRing - kRowBytes;
  }

  RLB_FN u8 byte() { return pictures.ring[at++ & (kRing - 1)]; }

  RLB_FN Span next() {
    if (is_lost) return {kWidth, 0};
    const u32 first = byte(), place = first >> 4, code = first & 15;
    const u8 colour = place == kPalette ? byte() : palette[place];
    const s32 length = code == 15 ? byte() : static_cast<s32>(code + 1);
    return {length, colour};
  }
};

// Whether two pictures are not the same.
RLB_FN bool differ(const Pictures& p, s32 a, s32 b, s32 height) {
  for (s32 row = 0; row < height; ++row) {
    RowReader first(p, a, row), second(p, b, row);
    Span one{0, 0}, other{0, 0};
    for (s32 x = 0; x < kWidth;) {
      if (!one.length) one = first.next();
      if (!other.length) other = second.next();
      if (one.colour != other.colour) return true;
      const s32 n = one.length < other.length ? one.length : other.length;
      one.length -= n;
      other.length -= n;
      x += n;
    }
  }
  return false;
}

// --- Writing. ---

RLB_FN void put_byte(Pictures& p, u32 byte) {
  p.ring[p.head & (kRing - 1)] = static_cast<u8>(byte);
  ++p.head;
}

RLB_FN u32 place_of(Pictures& p, u8 colour) {
  u8* palette = p.palette[p.drawn];
  const u32 n = p.n_colours[p.drawn];
  for (u32 i = 0; i < n; ++i) {
    if (palette[i] == colour) return i;
  }
  if (n == kPalette) return kPalette;
  palette[n] = colour;
  p.n_colours[p.drawn] = static_cast<u8>(n + 1);
  return n;
}

RLB_GPU_CALL void put_run(Pictures& p, u8 colour, s32 length) {
  const u32 place = place_of(p, colour);
  put_byte(p, place << 4 | static_cast<u32>(length <= 15 ? length - 1 : 15));
  if (place == kPalette) put_byte(p, colour);
  if (length > 15) put_byte(p, static_cast<u32>(length));
  p.x = static_cast<u8>(p.x + length);
}

// Copies pixels [p.x, end) of a row from another picture.
RLB_GPU_CALL void copy_runs(Pictures& p, s32 picture, s32 row, s32 end, bool without_colours = false) {
  RowReader reader(p, picture, row);
  p.is_lost |= reader.is_lost;
  for (s32 x = 0; x < end;) {
    const Span run = reader.next();
    const s32 stop = x + run.length < end ? x + run.length : end;
    const u8 colour = without_colours ? static_cast<u8>((run.colour & 0x0f) >> 1) : run.colour;
    if (stop > p.x) put_run(p, colour, stop - p.x);
    x += run.length;
  }
}

// Whether the row from `row_start` on has the same bytes as the last one.
RLB_FN bool repeats_last(const Pictures& p) {
  const u32 n = p.head - p.row_start;
  if (p.row_start - p.last_start != n) return false;
  for (u32 i = 0; i < n; ++i) {
    if (p.ring[(p.last_start + i) & (kRing - 1)] != p.ring[(p.row_start + i) & (kRing - 1)]) return false;
  }
  return true;
}

RLB_GPU_CALL void close_row(Pictures& p) {
  if (p.open_row < 0) return;
  if (p.x < kWidth) copy_runs(p, p.shown[p.buffer], p.open_row, kWidth);
  if (repeats_last(p)) {
    p.head = p.row_start;
    p.row[p.drawn][p.open_row] = static_cast<u16>(p.last_start);
  } else {
    p.last_start = p.row_start;
  }
  p.open_row = -1;
}

// Rows are drawn one after the other.
RLB_GPU_CALL void open_row(Pictures& p, s32 row, s32 begin) {
  if (row == p.open_row) return;
  close_row(p);
  if (p.first_row < 0) p.first_row = static_cast<s16>(row);
  p.next_row = static_cast<s16>(row + 1);
  p.open_row = static_cast<s16>(row);
  p.row[p.drawn][row] = static_cast<u16>(p.head);
  p.row_start = p.head;
  p.x = 0;
  if (begin > 0) copy_runs(p, p.shown[p.buffer], row, begin);
}

RLB_FN bool is_needed(const Pictures& p, s32 picture) {
  if (picture == p.shown[0] || picture == p.shown[1] || picture == p.kept) return true;
  for (s32 i = 0; i < p.n_image; ++i) {
    if (picture == p.image[i]) return true;
  }
  return false;
}

// Copies a picture to the head of the ring.
RLB_GPU_CALL void refresh(Pictures& p, s32 picture, s32 height) {
  const u32 began = p.head;
  u16 last = 0, last_copy = 0;
  for (s32 row = 0; row < height; ++row) {
    const u16 start = p.row[picture][row];
    if (row > 0 && start == last) {
      p.row[picture][row] = last_copy;
      continue;
    }
    RowReader reader(p, picture, row);
    p.is_lost |= reader.is_lost;
    const u32 first = reader.at, head = p.head;
    for (s32 x = 0; x < kWidth;) x += reader.next().length;
    for (u32 at = first; at != reader.at; ++at) put_byte(p, p.ring[at & (kRing - 1)]);
    last = start;
    last_copy = p.row[picture][row] = static_cast<u16>(head);
  }
  p.began[picture] = began;
}

// Before older pictures that are needed get lost.
RLB_FN void keep_needed(Pictures& p, s32 height) {
  for (s32 picture = 0; picture < kPictures; ++picture) {
    if (is_needed(p, picture) && p.head - p.began[picture] > kRing / 2) refresh(p, picture, height);
  }
}

RLB_GPU_CALL Screen begin_drawing(Screens screens, s32 buffer, s32 height) {
  Pictures& p = *screens;
  keep_needed(p, height);
  s32 free = 0;
  while (is_needed(p, free)) ++free;  // At most five are.
  p.drawn = static_cast<u8>(free);
  p.buffer = static_cast<u8>(buffer);
  p.began[free] = p.last_start = p.row_start = p.head;
  p.n_colours[free] = 0;
  p.open_row = p.first_row = p.next_row = -1;
  return screens;
}

RLB_FN void copy_row(Pictures& p, s32 from, s32 row, bool without_colours = false) {
  open_row(p, row, 0);
  copy_runs(p, from, row, kWidth, without_colours);
}

RLB_GPU_CALL void end_drawing(Screens screens, s32 height) {
  Pictures& p = *screens;
  if (p.first_row < 0) return;  // Nothing was drawn.
  close_row(p);
  const s32 first = p.first_row, next = p.next_row;
  for (s32 row = 0; row < first; ++row) copy_row(p, p.shown[p.buffer], row);
  for (s32 row = next; row < height; ++row) copy_row(p, p.shown[p.buffer], row);
  close_row(p);
  p.shown[p.buffer] = p.drawn;
}

RLB_FN void clear_screens(Screens screens, s32 height) {
  Pictures& p = *screens;
  p.head = 0;
  p.shown[0] = p.shown[1] = p.kept = kNoPicture;
  p.n_image = 0;
  begin_drawing(screens, 0, height);
  put_run(p, 0, kWidth);
  for (s32 row = 0; row < height; ++row) p.row[p.drawn][row] = 0;
  p.shown[0] = p.shown[1] = p.drawn;
}

RLB_GPU_CALL void grey_out(Screens screens, s32 buffer, s32 row, s32 height) {
  Pictures& p = *begin_drawing(screens, buffer, height);
  for (s32 k = 0; k < height; ++k) copy_row(p, p.shown[buffer], k, k >= row);
  close_row(p);
  p.shown[buffer] = p.drawn;
}

// Takes over both screens of other pictures, from which nothing was ever lost.
RLB_GPU_CALL void copy_shown(const Pictures& from, Pictures& p, bool is_swapped, s32 height) {
  p.head = from.head;
  p.kept = kNoPicture;
  p.n_image = 0;
  for (s32 k = 0; k < 2; ++k) {
    const s32 picture = from.shown[k];
    p.shown[k ^ s32{is_swapped}] = static_cast<u8>(picture);
    p.began[picture] = from.began[picture];
    p.n_colours[picture] = from.n_colours[picture];
    for (u32 i = 0; i < kPalette; ++i) p.palette[picture][i] = from.palette[picture][i];
    for (s32 row = 0; row < height; ++row) p.row[picture][row] = from.row[picture][row];
  }
  for (u32 i = 0; i < from.head; ++i) p.ring[i & (kRing - 1)] = from.ring[i & (kRing - 1)];
}

// The row is as the one above.
RLB_FN void repeat_row(Screen screen, s32 row) {
  Pictures& p = *screen;
  close_row(p);
  p.row[p.drawn][row] = p.row[p.drawn][row - 1];
  p.next_row = static_cast<s16>(row + 1);
}

RLB_FN void clear_pixels(Screen screen, s32 row, s32 begin, s32 end) {
  open_row(*screen, row, begin);
  put_run(*screen, 0, end - begin);
}

// The pixels that differ from the ones on their left.
RLB_HOT Mask edges(const Mask& m) {
  return {{m.w[0] ^ m.w[0] << 1, m.w[1] ^ (m.w[1] << 1 | m.w[0] >> 63), m.w[2] ^ (m.w[2] << 1 | m.w[1] >> 63)}};
}

// Blends layers into pixels [begin, end) of a row; those that are not shown become 0.
RLB_GPU_CALL void write_row(Screen screen, s32 row, const Layers& layers, const Mask& shown, s32 begin,
                      s32 end) {
  Pictures& p = *screen;
  open_row(p, row, begin);
  Mask changes = edges(shown);
  for (s32 k = 0; k < layers.n; ++k) changes = changes | edges(layers.mask[k]);
  changes = changes & pixels_between(begin + 1, end);
  s32 start = begin;
  u8 colour = colour_at(layers, shown, begin);
  for (s32 i = 0; i < 3; ++i) {
    for (u64 rest = changes.w[i]; rest; rest &= rest - 1) {
      const s32 x = 64 * i + lowest_bit(rest);
      const u8 next = colour_at(layers, shown, x);
      if (next == colour) continue;
      put_run(p, colour, x - start);
      start = x;
      colour = next;
    }
  }
  put_run(p, colour, end - start);
}

}  // namespace rlbatch::atari
