// The TIA (television interface adaptor): objects, collisions, pixels.
//
// NOTE [ lazy TIA ]
//
// The CPU does not draw. It appends its TIA writes, with their CPU cycles, to a log, and `Beam`
// replays the log when somebody looks: at a read of a collision register, and at the end of a
// frame. While it replays, nothing is done per pixel. Each of the six objects is a mask of the 160
// pixels of a line, made when its registers have changed; a write to an object takes over the
// pixels of its old mask up to the beam. When a line is complete, its collisions are the ANDs of
// masks, and its pixels, if they are wanted, are colours blended by masks.
//
// Times are colour clocks, three per CPU cycle. `drawn` is the clock up to which the chip has drawn;
// a write takes effect there or, for some registers, a few clocks later. Outside the display window
// nothing moves it: there are no collisions there, and no work at the ends of lines.
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

// Replays TIA writes. Everything that outlives a replay is in `Tia`; the masks of the line in
// progress begin anew at `drawn`, because a replay ends by accounting for all that was drawn.
struct Beam {
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

  RLB_FN Beam(Tia& t, const Picture& p, Screen shown) : tia(t), picture(p), screen(shown) {}

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
    // A draw that stops before the first pixel, to be blanked, clears a part of the row ahead.
    const s32 x = clock - tia.line_start;
    if (RLB_UNLIKELY(tia.hmove_blank) && x < kBlank) {
      tia.zeroed_to = static_cast<u8>(kBlank + 8 - x);
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

  // --- Writes. ---

  RLB_HOT void write(u32 reg, u8 value, s32 clock) {
    RLB_IS_LOCAL(this);
    advance(clock + delay(reg, clock));
    switch (reg) {
      case kVBLANK:
        if ((tia.vblank ^ value) & 2) {
          touch();
          take_visible(pixel());
        }
        tia.vblank = value;
        break;
      case kNUSIZ0: case kNUSIZ1: write_size(static_cast<s32>(reg - kNUSIZ0), value); break;
      case kCOLUP0: case kCOLUP1: case kCOLUPF: case kCOLUBK:
        write_colour(reg - kCOLUP0, value);
        break;
      case kCTRLPF: write_control(value, clock); break;
      case kREFP0: case kREFP1: {
        const s32 i = static_cast<s32>(reg - kREFP0);
        if (tia.reflect[i] == (value & 8)) break;
        change(kP0 + i);
        tia.reflect[i] = value & 8;
        break;
      }
      case kPF0: write_playfield(0x0000f, static_cast<u32>(value >> 4)); break;
      case kPF1: write_playfield(0x00ff0, reversed(value) << 4); break;
      case kPF2: write_playfield(0xff000, static_cast<u32>(value) << 12); break;
      case kRESP0: case kRESP1: reset_player(static_cast<s32>(reg - kRESP0), clock); break;
      case kRESM0: case kRESM1: case kRESBL: reset_missile_or_ball(reg, clock); break;
      case kGRP0: case kGRP1: write_graphics(static_cast<s32>(reg - kGRP0), value); break;
      case kENAM0: case kENAM1: {
        const s32 i = static_cast<s32>(reg - kENAM0);
        if (tia.missile[i] == (value & 2)) break;
        before_enabling(kM0 + i);
        tia.missile[i] = value & 2;
        set_enabled(kM0 + i);
        break;
      }
      case kENABL:
        if (tia.ball == (value & 2)) break;
        before_enabling(kBL);
        tia.ball = value & 2;
        set_enabled(kBL);
        break;
      case kHMP0: case kHMP1: case kHMM1: case kHMBL: tia.motion[reg - kHMP0] = value >> 4; break;
      case kHMM0: write_missile_motion(value, clock); break;
      case kVDELP0: case kVDELP1: {
        const s32 i = static_cast<s32>(reg - kVDELP0);
        if (tia.delay_graphics[i] == (value & 1)) break;
        before_enabling(kP0 + i);
        is_current[kP0 + i] = 0;
        tia.delay_graphics[i] = value & 1;
        set_enabled(kP0 + i);
        break;
      }
      case kVDELBL:
        before_enabling(kBL);
        tia.delay_ball = value & 1;
        set_enabled(kBL);
        break;
      case kRESMP0: case kRESMP1: lock_missile(static_cast<s32>(reg - kRESMP0), value); break;
      case kHMOVE: move(clock); break;
      case kHMCLR:
        for (s32 i = 0; i < 5; ++i) tia.motion[i] = 0;
        break;
      case kCXCLR:
        touch();
        collided_to = static_cast<u8>(pixel());
        if (collided_to) is_whole = 0;
        tia.collisions = 0;
        break;
      default: break;
    }
  }

  RLB_HOT s32 delay(u32 reg, s32 clock) const {
    // Four bits per register: those of the playfield depend on the position.
    constexpr u64 kLow = 1ull << 4 * kVBLANK | 8ull << 4 * kNUSIZ0 | 8ull << 4 * kNUSIZ1 |
                         1ull << 4 * kREFP0 | 1ull << 4 * kREFP1;
    constexpr u64 kHigh = 8ull << 4 * (kRESM0 - 16) | 8ull << 4 * (kRESM1 - 16) |
                          1ull << 4 * (kGRP0 - 16) | 1ull << 4 * (kGRP1 - 16);
    if (reg - kPF0 < 3u) {
      const s32 cycle = phase(clock) / 3;
      return 0x3254 >> 4 * (cycle & 3) & 15;
    }
    return static_cast<s32>((reg < 16 ? kLow >> 4 * reg : reg < 32 ? kHigh >> 4 * (reg - 16) : 0) & 15);
  }

  RLB_HOT void before_enabling(s32 object) {
    const s32 x = pixel();
    touch();
    if (RLB_UNLIKELY(colours_depend_on_enabled())) paint_now();
    take(object, x);
  }

  // Paints up to the beam, before colours or priorities change.
  RLB_GPU_CALL void paint_now() {
    RLB_IS_LOCAL(this);
    if (!screen) return;
    const s32 x = pixel();
    if (x <= painted_to) return;
    take_all(x);
    paint(x);
  }

  RLB_FN void write_size(s32 i, u8 value) {
    const bool is_special = tia.hide_first_copy[i] || (i == 0 && tia.missile_shape != kNormal);
    if (tia.nusiz[i] == value && !is_special) return;
    change(kP0 + i);
    change(kM0 + i);
    tia.nusiz[i] = value;
    tia.hide_first_copy[i] = 0;
    if (i == 0) tia.missile_shape = kNormal;
  }

  RLB_FN void write_colour(u32 which, u8 value) {
    value = static_cast<u8>((value & 0xfe) | picture.colour_loss);
    if (tia.colour[which] == value) return;
    touch();
    paint_now();
    tia.colour[which] = value;
  }

  RLB_FN void write_control(u8 value, s32 clock) {
    if (tia.ctrlpf == value && tia.is_mirrored == (value & 1)) return;
    if ((tia.ctrlpf ^ value) & 6) paint_now();
    change(kBL);  // Which is a touch of the line.
    take(kPF, pixel());
    tia.ctrlpf = value;
    if (phase(clock) < 147) set_mirrored(value & 1);
  }

  RLB_FN void write_playfield(u32 bits, u32 value) {
    const u32 playfield = (tia.playfield & ~bits) | value;
    if (playfield == tia.playfield) return;
    before_enabling(kPF);
    is_current[kPF] = 0;
    tia.playfield = playfield;
    set_enabled(kPF);
  }

  RLB_FN void write_graphics(s32 i, u8 value) {
    // A write to one player moves the other's pattern into its delayed copy.
    const s32 other = 1 - i;
    if (tia.graphics[i] != value) {
      if (!tia.delay_graphics[i]) {
        before_enabling(kP0 + i);
        is_current[kP0 + i] = 0;
      }
      tia.graphics[i] = value;
      set_enabled(kP0 + i);
    }
    if (tia.delayed_graphics[other] != tia.graphics[other]) {
      if (tia.delay_graphics[other]) {
        before_enabling(kP0 + other);
        is_current[kP0 + other] = 0;
      }
      tia.delayed_graphics[other] = tia.graphics[other];
      set_enabled(kP0 + other);
    }
    if (i == 1 && tia.delayed_ball != tia.ball) {
      before_enabling(kBL);
      tia.delayed_ball = tia.ball;
      set_enabled(kBL);
    }
  }

  // Whether a player that is reset at `now` is being drawn at that moment: 1 within a copy, -1 in the
  // four clocks before one, 0 elsewhere.
  RLB_FN s32 reset_phase(s32 i, s32 now) const {
    const u32 mode = tia.nusiz[i] & 7;
    const s32 width = mode == 5 ? 16 : mode == 7 ? 32 : 8;
    s32 phase = 0;
    for (s32 k = 0; k < 5; ++k) {
      if (!(kCopies[mode] >> k & 1)) continue;
      const s32 e = (now - tia.position[i] - 16 * k + 2 * kWidth) % kWidth;
      if (e < 4) phase = -1;
      if (e >= 4 && e < 4 + width) phase = 1;
    }
    return phase;
  }

  RLB_FN void reset_player(s32 i, s32 clock) {
    const s32 x = phase(clock);
    const s32 now = x < kBlank ? 3 : (x - kBlank + 5) % kWidth;
    const s32 within = reset_phase(i, now);
    if (within > 0) advance(clock + 11);
    change(kP0 + i);
    tia.position[i] = static_cast<u8>(now);
    tia.hide_first_copy[i] = within >= 0;
  }

  RLB_FN void reset_missile_or_ball(u32 reg, s32 clock) {
    const s32 object = static_cast<s32>(kM0 + (reg - kRESM0));
    const s32 x = phase(clock), since = clock - tia.last_hmove;
    s32 now = x < kBlank ? 2 : (x - kBlank + 4) % kWidth;
    // A few strobes soon after a HMOVE land elsewhere.
    if (object == kM0 && since == 60 && x == 69) now = 8;
    if (object == kM1 && since == 9 && x == 18) now = 3;
    if (object == kBL) {
      if (since == 54 && (x == 60 || x == 69)) now = 10;
      if (since == 9 && x == 18) now = 3;
      if (since == 21 && x == 30) now = 6;
      if (since == 18 && x == 27) now = 5;
    }
    change(object);
    if (object == kM0) tia.missile_shape = kNormal;
    tia.position[object] = static_cast<u8>(now);
  }

  RLB_FN void write_missile_motion(u8 value, s32 clock) {
    if (clock - tia.last_hmove == 63 && tia.motion[kM0] == 7 && value >> 4 == 6) {
      tia.stars = 1;
      tia.star_count = 0;
    }
    tia.motion[kM0] = value >> 4;
  }

  RLB_FN void lock_missile(s32 i, u8 value) {
    before_enabling(kM0 + i);
    is_current[kM0 + i] = 0;
    if (tia.missile_locked[i] && !(value & 2)) {
      const u32 mode = tia.nusiz[i] & 7;
      const s32 middle = mode == 5 ? 8 : mode == 7 ? 16 : 4;
      tia.position[kM0 + i] = static_cast<u8>(wrapped(tia.position[i] + middle));
      if (i == 0) tia.missile_shape = kNormal;
    }
    tia.missile_locked[i] = value & 2;
    set_enabled(kM0 + i);
  }

  RLB_FN void move(s32 clock) {
    const s32 cycle = phase(clock) / 3;
    if (picture.has_hmove_blanks && (cycle <= 20 || cycle == 75)) {
      tia.hmove_blank = 1;
      const s32 x = pixel();
      if (x < 8) blank_from = blank_to = static_cast<u8>(x);
    }
    // An object without motion stays where it is, if the strobe is in its usual place.
    const bool is_usual = cycle < 12 && !tia.hide_first_copy[0] && !tia.hide_first_copy[1] &&
                          tia.missile_shape == kNormal;
    for (s32 o = 0; o < 5; ++o) {
      if (RLB_LIKELY(is_usual && !tia.motion[o])) continue;
      const s32 by = hmove_distance(tia.motion[o], cycle);
      const bool is_changed = by != 0 || (o < kM0 && tia.hide_first_copy[o]) ||
                              (o == kM0 && tia.missile_shape != kNormal);
      if (!is_changed) continue;
      change(o);
      tia.position[o] = static_cast<u8>((tia.position[o] + by + kWidth) % kWidth);
    }
    tia.hide_first_copy[0] = tia.hide_first_copy[1] = 0;
    tia.missile_shape = kNormal;
    tia.stars = 0;
    tia.last_hmove = clock;
  }

  // How far an object moves to the right, by the cycle of the line at which HMOVE is strobed.
  RLB_FN static s32 hmove_distance(u32 nibble, s32 cycle) {
    static constexpr s8 kEarly[21] = {-7, -7, -7, -7, -6, -5, -5, -4, -3, -2, -2,
                               -1, 0,  1,  1,  2,  3,  4,  4,  5,  6};
    static constexpr s8 kLate[20] = {-6, -5, -4, -4, -3, -2, -1, -1, 0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8, 8};
    const s32 wanted = nibble <= 7 ? -static_cast<s32>(nibble) : 16 - static_cast<s32>(nibble);
    if (cycle <= 20) return wanted > kEarly[cycle] ? wanted : kEarly[cycle];
    if (cycle < 55) return 0;
    if (cycle == 75) return wanted;
    const s32 late = wanted - kLate[cycle - 55];
    return late < 0 ? late : 0;
  }
};

RLB_FN void reset_tia(Tia& tia) {
  tia = Tia{};
  tia.vsync_finish = kNever;
}

}  // namespace rlbatch::atari
