// The line that the beam of the TIA is in: what of it is drawn, its collisions, its pixels.
//
// See NOTE [ lazy TIA ] in `tia.h`.
#pragma once

#include "objects.h"
#include "platform.h"
#if defined(RLB_DEVICE)
#include "picture.h"
#else
#include "pixels.h"
#endif

namespace rlbatch::atari {

// Whether a draw up to a clock would do nothing.
RLB_HOT bool is_drawn(const Tia& tia, s32 clock) {
  // Without a branch: on a GPU the three are read at once.
  return (clock < tia.window_start) | (clock <= tia.drawn) | (tia.drawn >= tia.window_end);
}

// Everything that outlives a replay is in `Tia`; the masks begin anew at `drawn`, because a replay ends by
// accounting for all that was drawn.
struct Line {
#if defined(RLB_DEVICE)
  Tia tia;  // A copy, which is nearer.
#else
  Tia& tia;
#endif
  const Picture& picture;
  Screen screen;  // Null: nobody will look.

  Mask line[kObjects];  // Pixels of the line, up to `from`; of those that are `present`.
  Mask full[kObjects];  // Of a whole line with the registers as they are.
  Mask visible;         // Where VBLANK was off.
  u8 from[kObjects + 1];
  u8 is_current[kObjects];       // Whether `full` is.
  u8 enabled;                    // A bit per object.
  u8 is_steady;                  // Nothing has changed within the line.
  u8 is_whole;                   // Nothing of the line has been taken yet.
  u8 is_repeat;                  // The line is as the one before, all of it.
  u8 present;                    // A bit per object that has had pixels in this line.
  u8 collided_to, painted_to;    // Pixels that collisions and colours have been taken from.
  u8 blank_from, blank_to;       // Pixels that HMOVE has blanked.

  RLB_FN Line(Tia& t, const Picture& p, Screen shown) : tia(t), picture(p), screen(shown) {}

  // How far a clock is in its line.
  RLB_HOT s32 phase(s32 clock) const {
    return static_cast<s32>(static_cast<u32>(clock - tia.frame_start) % u32{kLine});
  }

  RLB_FN s32 pixel() const {
    const s32 x = tia.drawn - tia.line_start - kBlank;
    return x > 0 ? x : 0;
  }

  RLB_GPU_CALL void begin() {
    RLB_IS_LOCAL(this);
    enabled = 0;
    for (s32 o = 0; o < kObjects; ++o) {
      is_current[o] = 0;
      enabled |= static_cast<u8>(is_enabled(tia, o) << o);
    }
    begin_line(pixel());
    is_steady = is_repeat = 0;
  }

  RLB_FN void begin_line(s32 x) {
    for (s32 o = 0; o <= kObjects; ++o) from[o] = static_cast<u8>(x);
    present = 0;
    is_whole = x == 0;
    visible = no_pixels();
    collided_to = painted_to = static_cast<u8>(x);
    blank_from = blank_to = static_cast<u8>(x < 8 ? x : 8);
  }

  // Draws up to a clock with the registers as they are.
  RLB_HOT void advance(s32 clock) {
    if (is_drawn(tia, clock)) return;
    if (clock > tia.window_end) clock = tia.window_end;
    tia.draw_began = tia.drawn;
    if (RLB_LIKELY(clock <= tia.line_start + kLine && !tia.hmove_blank)) {
      tia.drawn = clock;
    } else {
      advance_far(clock);
    }
  }

  // Into other lines, or where HMOVE blanks pixels.
  RLB_COLD void advance_far(s32 clock) {
    RLB_IS_LOCAL(this);
    while (clock > tia.line_start + kLine) {
      if (is_repeat && !screen && !tia.hmove_blank && !tia.stars) {
        skip_lines((clock - tia.line_start - 1) / kLine);
        continue;
      }
      pass_blank(tia.line_start + kLine);
      tia.drawn = tia.line_start + kLine;
      finish_line();
      end_line();
    }
    pass_blank(clock);
    tia.drawn = clock;
    // A draw that stops before the end of what is to be blanked clears a part of the row ahead.
    const s32 x = clock - tia.line_start;
    if (RLB_UNLIKELY(tia.hmove_blank) && x < kBlank + 8) {
      const s32 to = x < kBlank ? kBlank + 8 - x : 8;
      if (to > tia.zeroed_to) tia.zeroed_to = static_cast<u8>(to);
    }
  }

  // Lines that repeat and are not drawn leave nothing behind.
  RLB_HOT void skip_lines(s32 n) {
    tia.line_start += n * kLine;
    tia.drawn = tia.line_start;
    tia.row += n;
    tia.zeroed_to = 0;
  }

  // A draw up to a clock of this line uses up the blank that HMOVE has asked for.
  RLB_HOT void pass_blank(s32 clock) {
    if (RLB_LIKELY(!tia.hmove_blank) || pixel() >= 8) return;
    is_steady = is_repeat = 0;
    const s32 x = clock - tia.line_start - kBlank;
    blank_to = static_cast<u8>(x < 0 ? 0 : x < 8 ? x : 8);
    if (x >= 8) tia.hmove_blank = 0;
  }

  // What happens when the beam enters the next line.
  RLB_FN void end_line() {
    tia.line_start += kLine;
    ++tia.row;
    tia.zeroed_to = 0;
    is_repeat = is_steady;
    is_steady = 1;
    begin_line(0);
    set_mirrored(tia.ctrlpf & 1);
    for (s32 i = 0; i < 2; ++i) {
      if (tia.hide_first_copy[i]) {
        tia.hide_first_copy[i] = 0;
        is_current[kP0 + i] = 0;
        is_repeat = 0;
      }
    }
    if (RLB_UNLIKELY(tia.stars)) move_star();
  }

  // Notes that the line differs from the one before, and within itself unless it has just begun.
  RLB_HOT void touch() {
    is_repeat = 0;
    if (pixel() > 0) is_steady = 0;
  }

  RLB_FN void set_mirrored(u32 mirrored) {
    if (tia.is_mirrored == mirrored) return;
    tia.is_mirrored = static_cast<u8>(mirrored);
    is_current[kPF] = 0;
    touch();
  }

  RLB_FN void move_star() {
    static constexpr u8 kSteps[4] = {18, 33, 0, 17};
    tia.star_count = (tia.star_count + 1) & 3;
    tia.position[kM0] =
        static_cast<u8>(wrapped(tia.position[kM0] + kWidth - kSteps[tia.star_count]));
    tia.missile_shape = tia.star_count == 1 ? kWide : tia.star_count == 2 ? kOff : kNormal;
    is_current[kM0] = 0;
    touch();
  }

  RLB_HOT const Mask& full_mask(s32 object) {
    if (!is_current[object]) {
      full[object] = object_mask(tia, object);
      is_current[object] = 1;
    }
    return full[object];
  }

  // Takes over the pixels of an object up to x.
  RLB_HOT_GPU_CALL void take(s32 object, s32 x) {
    RLB_IS_LOCAL(this);
    const s32 begin = from[object];
    if (begin >= x) return;
    from[object] = static_cast<u8>(x);
    is_whole = 0;
    const u32 bit = 1u << object;
    if (!(enabled & bit)) return;
    const Mask& mask = full_mask(object);
    if (begin == 0 && x == kWidth) {
      line[object] = mask;
    } else {
      const Mask part = mask & pixels_between(begin, x);
      line[object] = present & bit ? line[object] | part : part;
    }
    present = static_cast<u8>(present | bit);
  }

  RLB_HOT void take_visible(s32 x) {
    if (from[kObjects] >= x) return;
    if (!(tia.vblank & 2)) visible = visible | pixels_between(from[kObjects], x);
    from[kObjects] = static_cast<u8>(x);
    is_whole = 0;
  }

  RLB_HOT void take_all(s32 x) {
    // Those that are off have no pixels, and are looked at before they are switched on.
    for (u32 rest = enabled; rest; rest &= rest - 1) take(lowest_bit(rest), x);
    take_visible(x);
  }

  // Takes over what an object was before a register of it changes.
  RLB_HOT void change(s32 object) {
    touch();
    take(object, pixel());
    is_current[object] = 0;
  }

  RLB_HOT void set_enabled(s32 object) {
    const u32 bit = 1u << object;
    const u32 now = is_enabled(tia, object) ? bit : 0;
    if ((enabled & bit) == now) return;
    enabled = static_cast<u8>((enabled & ~bit) | now);
  }

  // With both bits set the colours depend on what is enabled, anywhere on the line.
  RLB_HOT bool colours_depend_on_enabled() const { return (tia.ctrlpf & 6) == 6; }

  RLB_HOT void finish_line() {
    if (is_repeat) {  // It has the same collisions, and the same pixels.
      if (screen && tia.row < picture.height) repeat_row(screen, tia.row);
      return;
    }
    if (!screen && is_whole) {
      if (!(tia.vblank & 2)) collide_whole_line();
      return;
    }
    take_all(kWidth);
    collide(kWidth);
    paint(kWidth);
  }

  RLB_HOT void collide_whole_line() {
    const u32 open = kPairsOf[enabled] & ~static_cast<u32>(tia.collisions);
    if (!open) return;
    Mask once = no_pixels(), twice = no_pixels();
    for (u32 rest = enabled; rest; rest &= rest - 1) {
      const Mask& object = full_mask(lowest_bit(rest));
      twice = twice | (once & object);
      once = once | object;
    }
    if (have_common(twice, twice)) find_pairs(open, full, pixels_below(kWidth));
  }

  // Sets the latches of those pairs that meet where they are seen.
  RLB_COLD void find_pairs(u32 open, const Mask* objects, const Mask& seen) {
    RLB_IS_LOCAL(this);
    for (; open; open &= open - 1) {
      const s32 k = lowest_bit(open);
      if (have_common(objects[kPairs[k][0]] & objects[kPairs[k][1]], seen)) {
        tia.collisions = static_cast<u16>(tia.collisions | 1u << k);
      }
    }
  }

  // Accounts for everything up to `drawn`.
  RLB_GPU_CALL void finish() {
    RLB_IS_LOCAL(this);
    const s32 x = pixel();
    take_all(x);
    collide(x);
    paint(x);
  }

  RLB_HOT_GPU_CALL void collide(s32 x) {
    RLB_IS_LOCAL(this);
    const s32 begin = collided_to;
    if (begin >= x) return;
    collided_to = static_cast<u8>(x);
    u32 open = kPairsOf[present] & ~static_cast<u32>(tia.collisions);
    if (!open) return;
    const Mask seen = begin == 0 && x == kWidth ? visible : visible & pixels_between(begin, x);
    // Mostly nothing meets anything.
    Mask once = no_pixels(), twice = no_pixels();
    for (u32 rest = present; rest; rest &= rest - 1) {
      const Mask& object = line[lowest_bit(rest)];
      twice = twice | (once & object);
      once = once | object;
    }
    if (have_common(twice, seen)) find_pairs(open, line, seen);
  }

  // --- Pixels. ---

  RLB_GPU_CALL void paint(s32 x) {
    RLB_IS_LOCAL(this);
    if (!screen || painted_to >= x) {
      painted_to = painted_to < x ? static_cast<u8>(x) : painted_to;
      return;
    }
    if (tia.row < picture.height) blend(painted_to, x);
    painted_to = static_cast<u8>(x);
  }

  RLB_FN void add_playfield(Layers& layers) const {
    const bool is_score = (tia.ctrlpf & 2) != 0;
    if (!is_score) {
      layers.add(line[kPF], tia.colour[2]);
    } else {
      const Mask left = pixels_below(80);
      layers.add(line[kPF] & left, tia.colour[0]);
      layers.add(without(line[kPF], left), tia.colour[1]);
    }
  }

  RLB_FN void blend(s32 begin, s32 end) {
    for (s32 o = 0; o < kObjects; ++o) {
      if (!(present >> o & 1)) line[o] = no_pixels();
    }
    Layers layers;
    layers.n = 0;
    layers.background = tia.colour[3];
    const Mask first = line[kP0] | line[kM0], second = line[kP1] | line[kM1];
    if (tia.ctrlpf & 4) {
      layers.add(second, tia.colour[1]);
      layers.add(first, tia.colour[0]);
      if ((tia.ctrlpf & 2) && enabled == 1u << kPF) {
        add_playfield(layers);
      } else {
        layers.add(line[kPF] | line[kBL], tia.colour[2]);
      }
    } else {
      layers.add(line[kBL], tia.colour[2]);
      add_playfield(layers);
      // In score mode the left half of the playfield has the first player's priority.
      const bool is_score = (tia.ctrlpf & 2) != 0;
      layers.add(is_score ? without(second, line[kPF] & pixels_below(80)) : second, tia.colour[1]);
      layers.add(first, tia.colour[0]);
    }
    Mask shown = visible;
    if (blank_to > blank_from) shown = without(shown, pixels_between(blank_from, blank_to));
    write_row(screen, tia.row, layers, shown, begin, end);
  }

  // What a frame that ends in the middle of a line leaves to the right of the beam: a draw works in
  // groups of four pixels where only the playfield can differ within them.
  RLB_FN void paint_ahead() {
    if (!screen || tia.row >= picture.height) return;
    const s32 cleared = tia.zeroed_to;
    paint_group();
    const s32 x = pixel() > painted_to ? pixel() : painted_to;
    if (x < cleared) clear_pixels(screen, tia.row, x, cleared);
  }

  RLB_FN void paint_group() {
    const s32 x = pixel(), group = x & ~3;
    const s32 began = tia.draw_began - tia.line_start - kBlank;
    if (group == x || began > group || tia.drawn >= tia.window_end) return;
    if (tia.hmove_blank && x < 8) return;  // All of it is blanked.
    if (!draws_groups() || have_common(reach(), pixels_between(group, group + 4))) return;
    take_all(group + 4);
    paint(group + 4);
  }

  RLB_FN bool draws_groups() const {
    if (tia.vblank & 2) return false;
    const u32 score = tia.ctrlpf & 2;
    switch (enabled) {
      case 1 << kPF: case 1 << kP0: case 1 << kP1: case 1 << kM0: case 1 << kM1: case 1 << kBL:
      case 1 << kP0 | 1 << kP1: case 1 << kM0 | 1 << kM1:
      case 1 << kBL | 1 << kM0: case 1 << kBL | 1 << kM1: case 1 << kBL | 1 << kP1: return true;
      case 1 << kPF | 1 << kP0: case 1 << kPF | 1 << kP1: case 1 << kPF | 1 << kBL: return !score;
      default: return false;
    }
  }

  // Where the enabled objects but the playfield could be, whatever their patterns.
  RLB_FN Mask reach() const {
    Mask m = no_pixels();
    for (s32 i = 0; i < 2; ++i) {
      if (enabled & 1u << (kP0 + i)) m = m | player_mask(tia, i, 0xff);
      if (enabled & 1u << (kM0 + i)) m = m | missile_mask(tia, i);
    }
    if (enabled & 1u << kBL) m = m | ball_mask(tia);
    return m;
  }
};

}  // namespace rlbatch::atari
