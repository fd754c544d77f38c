// The objects of the TIA: their registers, and the pixels of a line that these make.
#pragma once

#include "masks.h"
#include "platform.h"

namespace rlbatch::atari {

constexpr s32 kLine = 228;   // Clocks per line,
constexpr s32 kBlank = 68;   // of which so many before its first pixel.
constexpr s32 kNever = 0x7fffffff;

enum TiaWrite : u32 {
  kVSYNC, kVBLANK, kWSYNC, kRSYNC, kNUSIZ0, kNUSIZ1, kCOLUP0, kCOLUP1, kCOLUPF, kCOLUBK, kCTRLPF,
  kREFP0, kREFP1, kPF0, kPF1, kPF2, kRESP0, kRESP1, kRESM0, kRESM1, kRESBL, kAUDC0,
  kAUDV1 = 0x1a, kGRP0, kGRP1, kENAM0, kENAM1, kENABL, kHMP0, kHMP1, kHMM0, kHMM1, kHMBL,
  kVDELP0, kVDELP1, kVDELBL, kRESMP0, kRESMP1, kHMOVE, kHMCLR, kCXCLR,
};

enum Object : s32 { kP0, kP1, kM0, kM1, kBL, kPF, kObjects };

// Which pairs of objects make which collision bit.
RLB_CONST u8 kPairs[15][2] = {{kM0, kP1}, {kM0, kP0}, {kM1, kP0}, {kM1, kP1}, {kP0, kPF},
                              {kP0, kBL}, {kP1, kPF}, {kP1, kBL}, {kM0, kPF}, {kM0, kBL},
                              {kM1, kPF}, {kM1, kBL}, {kBL, kPF}, {kP0, kP1}, {kM0, kM1}};

// The pairs that a set of objects can make.
struct PairSets {
  u16 of[1 << kObjects];
  constexpr PairSets() : of{} {
    for (u32 set = 0; set < 1u << kObjects; ++set) {
      u32 pairs = 0;
      for (u32 k = 0; k < 15; ++k) {
        if ((set >> kPairs[k][0] & 1) && (set >> kPairs[k][1] & 1)) pairs |= 1u << k;
      }
      of[set] = static_cast<u16>(pairs);
    }
  }
  RLB_FN u16 operator[](u32 set) const { return of[set]; }
};
RLB_CONST PairSets kPairsOf{};

enum MissileShape : u8 { kNormal, kWide, kOff };  // Of missile 0 in the star effect.

struct Tia {
  s32 frame_start;  // <= 0, a multiple of 3.
  s32 window_start, window_end;
  s32 drawn;       // See NOTE [ lazy TIA ].
  s32 line_start;  // Clock at which the line in progress began.
  s32 row;         // Of the screen that it goes to.
  s32 draw_began;  // Where `drawn` was before the last draw.
  s32 last_hmove;
  s32 vsync_finish;  // Before this clock the end of VSYNC does not end a frame.
  s32 dump_stamp;    // CPU cycle at which the paddles' capacitors began to charge.
  u32 playfield;     // 20 bits, the leftmost is bit 0.
  u16 collisions;    // A bit per pair.
  u8 position[5];    // P0 P1 M0 M1 BL
  u8 motion[5];      // HMxx, high nibble.
  u8 vsync, vblank, ctrlpf;
  u8 nusiz[2], reflect[2];
  u8 graphics[2], delayed_graphics[2], delay_graphics[2];
  u8 missile[2], missile_locked[2];
  u8 ball, delayed_ball, delay_ball;
  u8 colour[4];  // P0 P1 PF BK
  u8 hide_first_copy[2];
  u8 is_mirrored;  // The playfield, as it takes effect.
  u8 hmove_blank;
  u8 stars, star_count, missile_shape;  // The star effect.
  u8 is_dumped;
  u8 zeroed_to;  // Pixels of the line that a draw has cleared ahead; see `Line::advance_far`.
  u8 padding[2];
};

// What the pixel engine must know of the cartridge.
struct Picture {
  s32 height;
  u8 has_hmove_blanks;
  u8 colour_loss;  // The bit that colours get.
};

// --- What the registers mean. ---

RLB_HOT u32 reversed(u32 byte) {
  byte = (byte & 0xf0) >> 4 | (byte & 0x0f) << 4;
  byte = (byte & 0xcc) >> 2 | (byte & 0x33) << 2;
  return (byte & 0xaa) >> 1 | (byte & 0x55) << 1;
}

RLB_HOT u32 doubled(u32 bits) {  // Every one of 16 bits twice.
  bits = (bits | bits << 8) & 0x00ff00ff;
  bits = (bits | bits << 4) & 0x0f0f0f0f;
  bits = (bits | bits << 2) & 0x33333333;
  bits = (bits | bits << 1) & 0x55555555;
  return bits * 3;
}

RLB_HOT u64 quadrupled(u64 bits) {  // Every one of 16 bits four times.
  bits = (bits | bits << 24) & 0x000000ff000000ffull;
  bits = (bits | bits << 12) & 0x000f000f000f000full;
  bits = (bits | bits << 6) & 0x0303030303030303ull;
  bits = (bits | bits << 3) & 0x1111111111111111ull;
  return bits * 15;
}

RLB_HOT u32 reversed20(u32 bits) {
  u32 r = (bits & 0xaaaaa) >> 1 | (bits & 0x55555) << 1;
  r = (r & 0xccccc) >> 2 | (r & 0x33333) << 2;
  // Five groups of four, the other way round.
  return r >> 16 | (r >> 8 & 0xf0) | (r & 0xf00) | (r & 0xf0) << 8 | (r & 0xf) << 16;
}

// Where the copies of an object begin, by the low bits of NUSIZ: bit k for an offset of 16 * k.
RLB_CONST u8 kCopies[8] = {0x01, 0x03, 0x05, 0x07, 0x11, 0x01, 0x15, 0x01};

RLB_HOT s32 wrapped(s32 x) { return x >= kWidth ? x - kWidth : x; }

// At most 8 pixels at up to three places: 16 and 32 from the first, or 64.
RLB_HOT void add_copies(Mask& m, u64 bits, s32 position, u32 copies) {
  const u64 near = (copies & 1) | (copies & 2) << 15 | static_cast<u64>(copies & 4) << 30;
  if (near) add_pixels(m, bits * near, position);
  if (copies & 16) add_pixels(m, bits, wrapped(position + 64));
}

RLB_HOT u8 player_pattern(const Tia& tia, s32 i) {
  const u8 pattern = tia.delay_graphics[i] ? tia.delayed_graphics[i] : tia.graphics[i];
  return tia.reflect[i] ? static_cast<u8>(reversed(pattern)) : pattern;
}

RLB_HOT bool ball_is_enabled(const Tia& tia) {
  return tia.delay_ball ? tia.delayed_ball : tia.ball;
}

RLB_HOT bool is_enabled(const Tia& tia, s32 object) {
  switch (object) {
    case kP0: case kP1: return player_pattern(tia, object) != 0;
    case kM0: case kM1: return tia.missile[object - kM0] && !tia.missile_locked[object - kM0];
    case kBL: return ball_is_enabled(tia);
    default: return tia.playfield != 0;
  }
}

// The pixels of a player whose pattern may be set to all ones, to see where it could be.
RLB_GPU_CALL Mask player_mask(const Tia& tia, s32 i, u8 pattern) {
  RLB_IS_LOCAL(&tia);
  Mask m = no_pixels();
  const u32 mode = tia.nusiz[i] & 7, bits = reversed(pattern), hidden = tia.hide_first_copy[i];
  if (mode == 5) {
    if (!hidden) add_pixels(m, doubled(bits), wrapped(tia.position[i] + 1));
  } else if (mode == 7) {
    const u32 wide = static_cast<u32>(quadrupled(bits));
    if (!hidden) add_pixels(m, wide, wrapped(tia.position[i] + 1));
  } else {
    add_copies(m, bits, tia.position[i], kCopies[mode] & ~hidden);
  }
  return m;
}

RLB_GPU_CALL Mask missile_mask(const Tia& tia, s32 i) {
  RLB_IS_LOCAL(&tia);
  Mask m = no_pixels();
  u32 width = 1u << (tia.nusiz[i] >> 4 & 3);
  if (i == 0 && tia.missile_shape == kOff) return m;
  if (i == 0 && tia.missile_shape == kWide) width = width < 2 ? 2 : width;
  add_copies(m, (1u << width) - 1, tia.position[kM0 + i], kCopies[tia.nusiz[i] & 7]);
  return m;
}

RLB_FN Mask ball_mask(const Tia& tia) {
  Mask m = no_pixels();
  add_pixels(m, (1u << (1u << (tia.ctrlpf >> 4 & 3))) - 1, tia.position[kBL]);
  return m;
}

RLB_FN Mask playfield_mask(const Tia& tia) {
  const u32 left = tia.playfield, right = tia.is_mirrored ? reversed20(left) : left;
  Mask m = no_pixels();
  m.w[0] = quadrupled(left & 0xffff);
  m.w[1] = quadrupled((left >> 16) | (right & 0xfff) << 4);
  m.w[2] = quadrupled(right >> 12);
  return m;
}

RLB_FN Mask object_mask(const Tia& tia, s32 object) {
  switch (object) {
    case kP0: case kP1: return player_mask(tia, object, player_pattern(tia, object));
    case kM0: case kM1: return missile_mask(tia, object - kM0);
    case kBL: return ball_mask(tia);
    default: return playfield_mask(tia);
  }
}

}  // namespace rlbatch::atari
