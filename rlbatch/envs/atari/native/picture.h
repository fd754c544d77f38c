// Screens on a GPU: rows of runs of one colour, in a few KB where pixels take 67. `pixels.h` has the
// same functions for a host.
//
// NOTE [ pictures ]
//
// A picture is never changed. A frame is drawn to a new one, row by row from the top; what it does
// not draw is copied, at its end, from the picture that the screen has shown before. So a number
// is enough to keep a picture: those of the last step are still there when the next one ends.
//
// The rows of all pictures lie one behind the other in one array, in the order in which they were
// drawn. When it is full, those that are still needed move to its front. A row consists of runs
//
//   place << 4 | code  [colour, if place is 15]  [length, if code is 15]
//
// with a place in the picture's palette, which are the first 15 colours that are used, and the
// length - 1, if that is below 15; it ends with pixel 160. Or, where that is shorter, and there are
// at most three colours, of
//
//   header (4 bytes)  edges  turns
//
// with a bit for every pixel that differs from the one on its left. Of these 20 bytes, the ones that
// are 0 are left out; the lower 20 bits of the header say which are there. Its upper 12 bits are
// three places. The first is that of the first pixel; an edge goes to the next place, or the one
// after that where its turn is 1. If there are but two colours, the third place is the first again,
// and there are no turns. That is for noise, which some games show in full screens.
//
// Rows that are equal to the one before share its bytes.
//
// There is room for all that is needed at a time, of the screens that these games were seen to show,
// and then some. Should it not be enough, `is_lost` says so, and the batch reports it as an error.
#pragma once

#include "masks.h"

namespace rlbatch::atari {

constexpr u32 kRoom = 16384;           // Bytes.
constexpr u32 kRowBytes = 3 * kWidth;  // That no row exceeds.
constexpr u16 kHasEdges = 0x8000;      // With the number of the byte where a row begins.
constexpr u16 kNoRow = 0xffff;
constexpr u32 kEdgeBytes = kWidth / 8, kMaxPlaces = 3;
constexpr u32 kLongRow = 24;           // Bytes of runs, from which on it may pay to look for edges.
constexpr s32 kPictures = 6;
constexpr u32 kPalette = 15;
constexpr u8 kNoPicture = 255;

struct Pictures {
  u16 row[kPictures][kMaxHeight];  // Where it begins.
  u8 first[kPictures];  // The row that was drawn first; after the last one follows row 0.
  alignas(8) u8 palette[kPictures][kPalette + 1];
  u8 n_colours[kPictures];
  u8 shown[2];   // What the two screens show.
  u8 image[2];   // What the image that an episode's next step may recall is of;
  u8 n_image;    // 0 if there is none.
  u8 kept;       // The screen that was kept.
  u8 is_lost;
  // The picture that is being drawn.
  u8 drawn, buffer;
  u8 height;
  u8 n_drawn;     // Rows that are there, the open one included.
  u8 x;           // Pixels of the open row that are there.
  s16 open_row;   // -1 if none.
  u16 last_row;   // Where the last one begins that is closed.
  u16 row_start;  // Where the open one begins.
  u32 head;       // Bytes that are taken.
  alignas(16) u8 bytes[kRoom];
};

static_assert(kRoom < kHasEdges && kMaxHeight < 256 && sizeof(Pictures) % sizeof(uint4) == 0);

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
  const bool has_edges, is_lost;
  u32 at;
  // Of a row with edges.
  u32 header = 0, unread = 0;  // A bit for each of its bytes that are to be read.
  u32 edges = 0, base = 0;     // The rest of the last byte, and the pixel that its lowest bit is of.
  u32 place = 0, turn = 0;     // Of the next run; the next bit of the turns.
  s32 x = 0;

  RLB_FN RowReader(const Pictures& p, s32 picture, s32 row)
      : pictures(p),
        palette(p.palette[picture]),
        has_edges(p.row[picture][row] & kHasEdges),
        is_lost(p.is_lost),
        at(p.row[picture][row] & ~u32{kHasEdges}) {
    if (!has_edges) return;
    for (u32 i = 0; i < 4; ++i) header |= u32{byte()} << 8 * i;
    unread = header & ((1u << kEdgeBytes) - 1);
    turn = 8 * (at + bit_count(unread));
  }

  RLB_FN u8 byte() { return pictures.bytes[at++]; }
  RLB_FN u32 nth_place(u32 n) const { return header >> (kEdgeBytes + 4 * n) & 15; }
  RLB_FN bool has_turns() const { return nth_place(2) != nth_place(0); }

  // What was lost reads as black.
  RLB_FN Span next() {
    if (is_lost) return {kWidth, 0};
    return has_edges ? next_to_edge() : next_run();
  }

  RLB_FN Span next_run() {
    const u32 first = byte(), code = first & 15, its_place = first >> 4;
    const u8 colour = its_place == kPalette ? byte() : palette[its_place];
    const s32 length = code == 15 ? byte() : static_cast<s32>(code + 1);
    return {length, colour};
  }

  RLB_FN Span next_to_edge() {
    const s32 begin = x;
    const u8 colour = palette[nth_place(place)];
    if (!edges && unread) {
      edges = byte();
      base = 8 * static_cast<u32>(lowest_bit(unread));
      unread &= unread - 1;
    }
    x = kWidth;
    if (edges) {
      x = static_cast<s32>(base) + lowest_bit(edges);
      edges &= edges - 1;
      const u32 n_places = has_turns() ? kMaxPlaces : 2;
      place += 1 + next_turn();
      if (place >= n_places) place -= n_places;
    }
    return {x - begin, colour};
  }

  RLB_FN u32 next_turn() {
    if (!has_turns()) return 0;
    const u32 bit = pictures.bytes[turn / 8] >> turn % 8 & 1;
    ++turn;
    return bit;
  }

  // Where the row ends, after all of it was read.
  RLB_FN u32 end() const { return has_edges && has_turns() ? (turn + 7) / 8 : at; }
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

// --- Room. ---

RLB_FN bool is_needed(const Pictures& p, s32 picture) {
  if (picture == p.shown[0] || picture == p.shown[1] || picture == p.kept) return true;
  for (s32 i = 0; i < p.n_image; ++i) {
    if (picture == p.image[i]) return true;
  }
  return false;
}

RLB_FN s32 n_rows(const Pictures& p, s32 picture) { return picture == p.drawn ? p.n_drawn : p.height; }

RLB_FN u32 start_of(const Pictures& p, s32 picture) {
  return p.row[picture][p.first[picture]] & ~u32{kHasEdges};
}

// The first picture that is needed of those that begin at a byte or after it; kPictures if there is none.
RLB_FN s32 needed_from(const Pictures& p, u32 at) {
  s32 found = kPictures;
  for (s32 i = 0; i < kPictures; ++i) {
    if (!n_rows(p, i) || !(i == p.drawn || is_needed(p, i)) || start_of(p, i) < at) continue;
    if (found == kPictures || start_of(p, i) < start_of(p, found)) found = i;
  }
  return found;
}

// Where the bytes of a picture end, which are all in one piece.
RLB_FN u32 end_of(const Pictures& p, s32 picture) {
  if (picture == p.drawn) return p.head;
  RowReader reader(p, picture, (p.first[picture] + p.height - 1) % p.height);
  for (s32 x = 0; x < kWidth;) x += reader.next().length;
  return reader.end();
}

constexpr u32 kPiece = sizeof(uint4);  // Bytes that are moved at once.

// Moves a picture that ends at a byte to the front, by so many pieces.
RLB_FN void move_picture(Pictures& p, s32 picture, u32 end, u32 by) {
  uint4* pieces = reinterpret_cast<uint4*>(p.bytes);
  for (u32 k = start_of(p, picture) / kPiece; k * kPiece < end; ++k) pieces[k - by] = pieces[k];
  for (s32 k = 0; k < n_rows(p, picture); ++k) {
    u16& row = p.row[picture][(p.first[picture] + k) % p.height];
    row = static_cast<u16>(row - by * kPiece);
  }
  if (picture == p.drawn) p.last_row = static_cast<u16>(p.last_row - by * kPiece);
}

// Moves what is needed to the front. No row is open.
RLB_GPU_CALL void make_room(Pictures& p) {
  if (p.is_lost) return;  // There is nothing to be read.
  u32 from = 0, to = 0;
  for (s32 i; (i = needed_from(p, from)) < kPictures;) {
    const u32 first = start_of(p, i) / kPiece, free = (to + kPiece - 1) / kPiece;
    const u32 by = free < first ? first - free : 0;
    from = end_of(p, i);
    to = from - by * kPiece;
    if (by) move_picture(p, i, from, by);
  }
  p.head = to;
}

// --- Writing. ---

RLB_FN void put_byte(Pictures& p, u32 byte) {
  if (p.head == kRoom) {
    p.is_lost = 1;
    return;
  }
  p.bytes[p.head++] = static_cast<u8>(byte);
}

// Adds runs to the open row. What it works with is at hand from its making to `finish`, so that there
// is nothing to wait for between runs.
struct RunWriter {
  Pictures& p;
  u64 palette[2];
  u32 n_colours, head, x;

  RLB_FN explicit RunWriter(Pictures& pictures)
      : p(pictures), n_colours(p.n_colours[p.drawn]), head(p.head), x(p.x) {
    const u64* from = reinterpret_cast<const u64*>(p.palette[p.drawn]);
    palette[0] = from[0];
    palette[1] = from[1];
  }

  RLB_FN void finish() {
    u64* to = reinterpret_cast<u64*>(p.palette[p.drawn]);
    to[0] = palette[0];
    to[1] = palette[1];
    p.n_colours[p.drawn] = static_cast<u8>(n_colours);
    p.head = head;
    p.x = static_cast<u8>(x);
  }

  // The number of the first byte that is a colour; 8 if there is none.
  RLB_FN static u32 byte_with(u64 bytes, u8 colour) {
    const u64 rest = bytes ^ colour * kEveryByte;
    const u64 found = (rest - kEveryByte) & ~rest & 0x80 * kEveryByte;
    return found ? static_cast<u32>(lowest_bit(found)) / 8 : 8;
  }

  RLB_FN u32 place_of(u8 colour) {
    u32 place = byte_with(palette[0], colour);
    if (place == 8) place += byte_with(palette[1], colour);
    if (place < n_colours) return place;
    if (n_colours == kPalette) return kPalette;
    const u64 byte = u64{colour} << 8 * (n_colours % 8), others = ~(u64{255} << 8 * (n_colours % 8));
    if (n_colours < 8) {
      palette[0] = (palette[0] & others) | byte;
    } else {
      palette[1] = (palette[1] & others) | byte;
    }
    return n_colours++;
  }

  RLB_FN void put(u8 colour, u32 length) {
    x += length;
    if (head + 3 > kRoom) {
      p.is_lost = 1;
      return;
    }
    const u32 place = place_of(colour);
    p.bytes[head++] = static_cast<u8>(place << 4 | (length <= 15 ? length - 1 : 15));
    if (place == kPalette) p.bytes[head++] = colour;
    if (length > 15) p.bytes[head++] = static_cast<u8>(length);
  }
};

RLB_GPU_CALL void put_run(Pictures& p, u8 colour, s32 length) {
  RunWriter writer(p);
  writer.put(colour, static_cast<u32>(length));
  writer.finish();
}

// Copies pixels [p.x, end) of a row from another picture.
RLB_GPU_CALL void copy_runs(Pictures& p, s32 picture, s32 row, s32 end, bool without_colours = false) {
  RowReader reader(p, picture, row);
  RunWriter writer(p);
  for (s32 x = 0; x < end;) {
    const Span run = reader.next();
    const s32 stop = x + run.length < end ? x + run.length : end, at = static_cast<s32>(writer.x);
    const u8 colour = without_colours ? static_cast<u8>((run.colour & 0x0f) >> 1) : run.colour;
    if (stop > at) writer.put(colour, static_cast<u32>(stop - at));
    x += run.length;
  }
  writer.finish();
}

// The edges of the open row, which is whole and has runs.
struct Edges {
  Mask edges = no_pixels(), turns = no_pixels();
  u32 place[kMaxPlaces] = {0, 0, 0}, n_places = 0, n_edges = 0;

  RLB_FN static void set(Mask& m, u32 i) { m.w[i / 64] |= u64{1} << i % 64; }
  RLB_FN static u32 byte(const Mask& m, u32 i) { return static_cast<u32>(m.w[i / 8] >> i % 8 * 8) & 255; }

  // Returns whether there are few enough colours.
  RLB_FN bool find(const Pictures& p) {
    u32 x = 0, last = 0;
    for (u32 at = p.row_start; at < p.head;) {
      const u32 first = p.bytes[at++], code = first & 15;
      u32 n = 0;
      while (n < n_places && place[n] != first >> 4) ++n;
      if (n == kMaxPlaces || first >> 4 == kPalette) return false;
      if (n == n_places) place[n_places++] = first >> 4;
      if (x && n != last) {
        set(edges, x);
        if ((n + kMaxPlaces - last) % kMaxPlaces == 2) set(turns, n_edges);
        ++n_edges;
      }
      last = n;
      x += code == 15 ? p.bytes[at++] : code + 1;
    }
    if (n_places < kMaxPlaces) place[2] = place[0];
    return true;
  }

  RLB_FN u32 header() const {
    u32 header = place[0] << 20 | place[1] << 24 | place[2] << 28;
    for (u32 i = 0; i < kEdgeBytes; ++i) header |= u32{byte(edges, i) > 0} << i;
    return header;
  }

  RLB_FN u32 n_turn_bytes() const { return n_places == kMaxPlaces ? (n_edges + 7) / 8 : 0; }
};

// Writes the open row as edges if that is shorter; returns whether it is.
RLB_GPU_CALL bool put_edges(Pictures& p) {
  const u32 n_bytes = p.head - p.row_start;
  Edges e;
  if (p.is_lost || n_bytes < kLongRow || !e.find(p)) return false;
  const u32 header = e.header(), n_edge_bytes = bit_count(header & ((1u << kEdgeBytes) - 1));
  if (4 + n_edge_bytes + e.n_turn_bytes() >= n_bytes) return false;
  p.head = p.row_start;
  for (u32 i = 0; i < 4; ++i) put_byte(p, header >> 8 * i);
  for (u32 i = 0; i < kEdgeBytes; ++i) {
    if (header >> i & 1) put_byte(p, Edges::byte(e.edges, i));
  }
  for (u32 i = 0; i < e.n_turn_bytes(); ++i) put_byte(p, Edges::byte(e.turns, i));
  return true;
}

// Whether the open row has the same bytes as the last one.
RLB_FN bool repeats_last(const Pictures& p, u16 row) {
  if (p.last_row == kNoRow || (p.last_row ^ row) & kHasEdges) return false;
  const u32 last = p.last_row & ~u32{kHasEdges}, n = p.head - p.row_start;
  if (p.row_start - last != n) return false;
  for (u32 i = 0; i < n; ++i) {
    if (p.bytes[last + i] != p.bytes[p.row_start + i]) return false;
  }
  return true;
}

RLB_GPU_CALL void close_row(Pictures& p) {
  if (p.open_row < 0) return;
  if (p.x < kWidth) copy_runs(p, p.shown[p.buffer], p.open_row, kWidth);
  const u16 row = static_cast<u16>(p.row_start | (put_edges(p) ? kHasEdges : 0));
  if (repeats_last(p, row)) {
    p.head = p.row_start;
  } else {
    p.last_row = row;
  }
  p.row[p.drawn][p.open_row] = p.last_row;
  p.open_row = -1;
}

// Rows are drawn one after the other.
RLB_GPU_CALL void open_row(Pictures& p, s32 row, s32 begin) {
  if (row == p.open_row) return;
  close_row(p);
  if (p.head + kRowBytes > kRoom) make_room(p);
  if (!p.n_drawn) p.first[p.drawn] = static_cast<u8>(row);
  ++p.n_drawn;
  p.open_row = static_cast<s16>(row);
  p.row_start = static_cast<u16>(p.head);
  p.x = 0;
  if (begin > 0) copy_runs(p, p.shown[p.buffer], row, begin);
}

RLB_GPU_CALL Screen begin_drawing(Screens screens, s32 buffer, s32 height) {
  Pictures& p = *screens;
  s32 free = 0;
  while (is_needed(p, free)) ++free;  // At most five are.
  p.drawn = static_cast<u8>(free);
  p.buffer = static_cast<u8>(buffer);
  p.height = static_cast<u8>(height);
  p.n_colours[free] = p.n_drawn = 0;
  p.open_row = -1;
  p.last_row = kNoRow;
  // Here, where the threads of a warp are together; in the middle of a picture each would be alone.
  if (p.head > kRoom / 2) make_room(p);
  return screens;
}

RLB_FN void copy_row(Pictures& p, s32 from, s32 row, bool without_colours = false) {
  open_row(p, row, 0);
  copy_runs(p, from, row, kWidth, without_colours);
}

RLB_GPU_CALL void end_drawing(Screens screens, s32 height) {
  Pictures& p = *screens;
  if (!p.n_drawn) return;
  close_row(p);
  const s32 first = p.first[p.drawn], next = first + p.n_drawn;
  for (s32 row = next; row < height; ++row) copy_row(p, p.shown[p.buffer], row);
  for (s32 row = 0; row < first; ++row) copy_row(p, p.shown[p.buffer], row);
  close_row(p);
  p.shown[p.buffer] = p.drawn;
}

RLB_FN void clear_screens(Screens screens, s32 height) {
  Pictures& p = *screens;
  p.head = 0;
  p.is_lost = 0;
  p.shown[0] = p.shown[1] = p.kept = kNoPicture;
  p.n_image = 0;
  begin_drawing(screens, 0, height);
  for (s32 row = 0; row < height; ++row) {
    open_row(p, row, 0);
    put_run(p, 0, kWidth);
  }
  close_row(p);
  p.shown[0] = p.shown[1] = p.drawn;
}

RLB_GPU_CALL void grey_out(Screens screens, s32 buffer, s32 row, s32 height) {
  Pictures& p = *begin_drawing(screens, buffer, height);
  for (s32 k = 0; k < height; ++k) copy_row(p, p.shown[buffer], k, k >= row);
  close_row(p);
  p.shown[buffer] = p.drawn;
}

// Takes over both screens of other pictures.
RLB_GPU_CALL void copy_shown(const Pictures& from, Pictures& p, bool is_swapped, s32 height) {
  p.head = from.head;
  p.is_lost = from.is_lost;
  p.kept = kNoPicture;
  p.n_image = 0;
  p.drawn = from.drawn;
  p.n_drawn = from.n_drawn;
  for (s32 k = 0; k < 2; ++k) {
    const s32 picture = from.shown[k];
    p.shown[k ^ s32{is_swapped}] = static_cast<u8>(picture);
    p.first[picture] = from.first[picture];
    p.n_colours[picture] = from.n_colours[picture];
    for (u32 i = 0; i < kPalette; ++i) p.palette[picture][i] = from.palette[picture][i];
    for (s32 row = 0; row < height; ++row) p.row[picture][row] = from.row[picture][row];
  }
  copy_bytes(from.bytes, p.bytes, static_cast<s32>(from.head));
}

// The row is as the one above.
RLB_FN void repeat_row(Screen screen, s32 row) {
  Pictures& p = *screen;
  close_row(p);
  p.row[p.drawn][row] = p.row[p.drawn][row - 1];
  ++p.n_drawn;
}

RLB_FN void clear_pixels(Screen screen, s32 row, s32 begin, s32 end) {
  open_row(*screen, row, begin);
  put_run(*screen, 0, end - begin);
}

// Layers in 32 pixels of a row.
struct LayerWords {
  u32 shown, mask[kMaxLayers];

  RLB_FN static u32 word(const Mask& m, s32 i) { return static_cast<u32>(m.w[i / 2] >> 32 * (i % 2)); }

  RLB_FN LayerWords(const Layers& layers, const Mask& all_shown, s32 i) : shown(word(all_shown, i)) {
    for (s32 k = 0; k < kMaxLayers; ++k) mask[k] = word(layers.mask[k], i);
  }

  // The pixels that differ from the ones on their left, and the first.
  RLB_FN u32 changes() const {
    u32 edges = shown ^ shown << 1;
    for (s32 k = 0; k < kMaxLayers; ++k) edges |= mask[k] ^ mask[k] << 1;
    return edges | 1;
  }

  // The colour of a pixel, of those of the background and the layers.
  RLB_FN u8 colour_at(const u32* colours, u32 x) const {
    u32 colour = colours[0];
    for (s32 k = 0; k < kMaxLayers; ++k) colour = mask[k] >> x & 1 ? colours[k + 1] : colour;
    return static_cast<u8>(shown >> x & 1 ? colour : 0);
  }
};

// Blends layers into pixels [begin, end) of a row; those that are not shown become 0.
RLB_GPU_CALL void write_row(Screen screen, s32 row, const Layers& layers, const Mask& shown, s32 begin,
                            s32 end) {
  RLB_IS_LOCAL(&layers);
  RLB_IS_LOCAL(&shown);
  Pictures& p = *screen;
  open_row(p, row, begin);
  RunWriter writer(p);
  u32 colours[kMaxLayers + 1] = {layers.background};
  for (s32 k = 0; k < kMaxLayers; ++k) colours[k + 1] = layers.colour[k];
  s32 start = begin;
  u8 colour = 0;
  for (s32 i = begin / 32; 32 * i < end; ++i) {
    const LayerWords words(layers, shown, i);
    const s32 from = begin - 32 * i, to = end - 32 * i;
    u32 rest = words.changes();
    if (from > 0) rest = (rest | 1u << from) & ~0u << from;
    if (to < 32) rest &= (1u << to) - 1;
    for (; rest; rest &= rest - 1) {
      const u32 x = static_cast<u32>(lowest_bit(rest));
      const u8 next = words.colour_at(colours, x);
      const s32 at = 32 * i + static_cast<s32>(x);
      if (next != colour && at > start) {
        writer.put(colour, static_cast<u32>(at - start));
        start = at;
      }
      colour = next;
    }
  }
  writer.put(colour, static_cast<u32>(end - start));
  writer.finish();
}

}  // namespace rlbatch::atari
