// NOTE [ writes that change nothing ]
//
// About half of all TIA writes set a register to what it is. Where nobody sees the picture they need
// not be logged. A shadow, [kShadowSize], holds the last value written to each register: with kUnknown
// where the same value would have an effect, for a write to one player's graphics, for instance, takes
// over the other's; and kAlwaysLogged for the registers where it always has.
#pragma once

#include "bus.h"
#include "platform.h"

namespace rlbatch::atari {

constexpr u32 kShadowSize = kCXCLR + 1;
constexpr u32 kUnknown = 0x100, kAlwaysLogged = 0x200;

// The registers for which the same value has no effect, but for what `note_write` does.
constexpr u64 kRepeatable =
    1ull << kCOLUP0 | 1ull << kCOLUP1 | 1ull << kCOLUPF | 1ull << kCOLUBK | 1ull << kREFP0 |
    1ull << kREFP1 | 1ull << kPF0 | 1ull << kPF1 | 1ull << kPF2 | 1ull << kGRP0 | 1ull << kGRP1 |
    1ull << kENAM0 | 1ull << kENAM1 | 1ull << kENABL | 1ull << kHMP0 | 1ull << kHMP1 |
    1ull << kHMM0 | 1ull << kHMM1 | 1ull << kHMBL | 1ull << kVDELP0 | 1ull << kVDELP1 | 1ull << kVDELBL;

// What a change of a register makes unknown; 0 for nothing.
RLB_FN constexpr u32 coupled_register(u32 reg) {
  return reg == kGRP0 || reg == kENABL ? u32{kGRP1} : reg == kGRP1 ? u32{kGRP0} : 0u;
}

// Returns whether a write changes anything.
RLB_HOT bool note_write(u16* shadow, u32 reg, u32 value) {
  const u32 before = shadow[reg];
  if (before == value) return false;
  if (before & kAlwaysLogged) {
    for (u32 k = kHMP0; reg == kHMCLR && k <= kHMBL; ++k) shadow[k] = 0;
    return true;
  }
  shadow[reg] = static_cast<u16>(value);
  if (coupled_register(reg) && (before & 0xff) != value) shadow[coupled_register(reg)] |= kUnknown;
  return true;
}

// What the registers are before the first write of a frame.
RLB_FN void start_shadow(const Tia& tia, u16* shadow) {
  for (u32 k = 0; k < kShadowSize; ++k) shadow[k] = kRepeatable >> k & 1 ? kUnknown : kAlwaysLogged;
  for (u32 k = 0; k < 2; ++k) shadow[kGRP0 + k] = static_cast<u16>(tia.graphics[k] | kUnknown);
  shadow[kENABL] = static_cast<u16>(tia.ball | kUnknown);
}

// Notes what others have logged from `begin` to `end`, and before, if they have replayed the log: then only
// the effects of that are left.
RLB_FN void note_writes(const Run& run, u16* shadow, s32 begin, s32 end, u32 n_replays_before) {
  const bool is_replayed = run.n_replays != n_replays_before;
  if (is_replayed) start_shadow(run.state->tia, shadow);
  for (s32 k = is_replayed ? 0 : begin; k < end; ++k) {
    const Write w = unpacked_write(run.log[k], 0);
    note_write(shadow, w.reg, w.value);
  }
}

}  // namespace rlbatch::atari
