// The log of TIA writes, and how the beam replays it; see NOTE [ lazy TIA ] in `tia.h`.
#pragma once

#include "tia.h"
#if defined(RLB_DEVICE)
#include "lanes.h"
#endif

namespace rlbatch::atari {

// A logged write: 18 bits of CPU cycles since the base of the log, register, value.
RLB_HOT u32 packed_write(u32 cycles, u32 reg, u8 value) { return cycles << 14 | reg << 8 | value; }

// What is written, where and when.
struct Write {
  u32 cycles, reg;
  u8 value;
};

RLB_HOT Write unpacked_write(u32 word, s32 base) {
  return {static_cast<u32>(base) + (word >> 14), word >> 8 & 63, static_cast<u8>(word)};
}

RLB_HOT void write(Beam& beam, const Write& w) { beam.write(w.reg, w.value, 3 * static_cast<s32>(w.cycles)); }

#if defined(RLB_DEVICE)

// NOTE [ writes of a warp ]
//
// Every thread has a log of its own, and is at another place of it, but their games do much the same
// at the same place of the screen. So those write that are behind, by the clock of the beam in steps of
// less than a line, and of these the ones to the lowest register; and with them all whose next write
// is to that register too.
RLB_HOT void write_all(Beam& beam, const Log log, s32 n, s32 base) {
  constexpr u32 kIdle = ~0u;
  const u32 lanes = lanes_here();
  u32 word = n > 0 ? log[0] : 0, following = n > 1 ? log[1] : 0;
  for (s32 k = 0;;) {
    const Write next = unpacked_write(word, base);
    const u32 first = least(lanes, k < n ? next.cycles >> 6 << 6 | next.reg : kIdle);
    if (first == kIdle) return;
    if (k >= n || next.reg != (first & 63)) continue;
    ++k;
    word = following;
    following = k + 1 < n ? log[k + 1] : 0;  // Early: it takes its time.
    write(beam, next);
  }
}

#else

RLB_HOT void write_all(Beam& beam, const Log log, s32 n, s32 base) {
  for (s32 k = 0; k < n; ++k) write(beam, unpacked_write(log[k], base));
}

#endif

constexpr s32 kGoesOn = kNever;  // Instead of a clock: the frame has not ended.

// Replays a log, and draws on to the last access of any kind. At the end of a frame, with where it
// had drawn before, what the last draw has left to the right of the beam is added.
RLB_COLD RLB_FN void replay(Tia& tia, const Picture& picture, const Log log, s32 n, s32 base,
                            s32 last_access, Screen screen, s32 drawn_before) {
  Beam beam(tia, picture, screen);
  beam.begin();
  write_all(beam, log, n, base);
  beam.advance(3 * last_access);
  beam.finish();
  if (drawn_before != kGoesOn && drawn_before != beam.tia.drawn) beam.paint_ahead();
#if defined(RLB_DEVICE)
  tia = beam.tia;
#endif
}

}  // namespace rlbatch::atari
