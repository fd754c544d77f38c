// The TIA (television interface adaptor): what writes to its registers do, and when.
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

#include "line.h"

namespace rlbatch::atari {

// Replays what was written to the TIA.
struct Beam : Line {
  using Line::Line;

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
