// What translated programs work with, and what they call where they do not go on alone.
#pragma once

#include <cstddef>

#include "m6502.h"

namespace rlbatch::atari {

// What translated code works with.
struct Machine {
  s32 cycles, left, n_log, last_access, line_limit, log_base, line_phase;
  u32 latch, pc, a, x, y, sp, nz, c, v, d, i;
  u16 shadow[kCXCLR + 1];  // See NOTE [ writes that change nothing ].
  u8* ram;  // Less 0x80, so that addresses of the zero page can be added.
  u32* log;
  const u8* rom;
  const u8* slices;
  Run* run;
};

// NOTE [ writes that change nothing ]
//
// About half of all TIA writes set a register to what it is. Where nobody sees the picture they need
// not be logged. `shadow` holds the last value written to each register, with kUnknown where the
// same value would have an effect: a write to one player's graphics, for instance, takes over the
// other's.
constexpr u32 kUnknown = 0x100;

// The registers for which the same value has no effect, but for what `note_write` does.
constexpr u64 kRepeatable =
    1ull << kCOLUP0 | 1ull << kCOLUP1 | 1ull << kCOLUPF | 1ull << kCOLUBK | 1ull << kREFP0 |
    1ull << kREFP1 | 1ull << kPF0 | 1ull << kPF1 | 1ull << kPF2 | 1ull << kGRP0 | 1ull << kGRP1 |
    1ull << kENAM0 | 1ull << kENAM1 | 1ull << kENABL | 1ull << kHMP0 | 1ull << kHMP1 |
    1ull << kHMM0 | 1ull << kHMM1 | 1ull << kHMBL | 1ull << kVDELP0 | 1ull << kVDELP1 | 1ull << kVDELBL;

// What a change of a register makes unknown; 0 for nothing.
constexpr u32 partner(u32 reg) {
  return reg == kGRP0 || reg == kENABL ? u32{kGRP1} : reg == kGRP1 ? u32{kGRP0} : 0u;
}

inline void note_write(u16* shadow, u32 reg, u32 value) {
  if (reg == kHMCLR) {
    for (u32 k = kHMP0; k <= kHMBL; ++k) shadow[k] = 0;
  }
  if (reg > kCXCLR || !(kRepeatable >> reg & 1)) return;
  if (partner(reg) && (shadow[reg] & 0xffu) != value) shadow[partner(reg)] |= kUnknown;
  shadow[reg] = static_cast<u16>(value);
}

// What the registers are before the first write of a frame.
inline void start_shadow(const Tia& tia, u16* shadow) {
  for (u32 k = 0; k <= kCXCLR; ++k) shadow[k] = kUnknown;
  for (u32 k = 0; k < 2; ++k) shadow[kGRP0 + k] = static_cast<u16>(tia.graphics[k] | kUnknown);
  shadow[kENABL] = static_cast<u16>(tia.ball | kUnknown);
}

// The bus of the interpreter, for one access or instruction.
struct SlowBus {
  Machine& m;
  const bool writes;  // Or else only reads.
  const u32 n_replays;
  Bus<Cart::kAny> bus;

  SlowBus(Machine& machine, bool may_write)
      : m(machine),
        writes(may_write),
        n_replays(machine.run->n_replays),
        bus{*m.run, *m.run->state, m.rom, m.log, m.cycles, m.n_log, m.left,
            m.line_limit, m.last_access, m.latch} {}
  ~SlowBus() {
    if (writes) note_writes();
    m.cycles = bus.cycles;
    m.n_log = bus.n_log;
    m.left = bus.left;
    m.last_access = bus.last_access;
    m.latch = bus.latch;
  }

  void note_writes() {
    // Of writes before a replay only the effects are left.
    const bool is_replayed = m.run->n_replays != n_replays;
    if (is_replayed) start_shadow(m.run->state->tia, m.shadow);
    for (s32 k = is_replayed ? 0 : m.n_log; k < bus.n_log; ++k) {
      note_write(m.shadow, m.log[k] >> 8 & 63, m.log[k] & 0xff);
    }
  }
};

inline u32 read_slowly(Machine* m, u32 address, u32 latch) {
  m->latch = latch;
  return SlowBus(*m, false).bus.read(address);
}

inline void write_slowly(Machine* m, u32 address, u32 value) {
  SlowBus(*m, true).bus.write(address, value);
}

// What the stack gives up, wherever it is.
inline u32 pull_slowly(Machine* m, u32 opcode) {
  SlowBus slow(*m, false);
  slow.bus.latch = opcode;
  slow.bus.read_zero_page(m->sp);
  m->sp = (m->sp + 1) & 0xff;
  return slow.bus.read_zero_page(m->sp);
}

inline u32 flags_of(Machine* m) {
  return Registers{0, 0, 0, 0, 0, m->nz, m->c, m->v, m->d, m->i}.flags();
}

inline void set_flags(Machine* m, u32 flags) {
  Registers r{};
  r.set_flags(flags);
  m->nz = r.nz;
  m->c = r.c;
  m->v = r.v;
  m->d = r.d;
  m->i = r.i;
}

inline s32 next_line(Machine* m, s32 cycles) {
  const s32 past = (cycles - m->line_phase) % 76;
  return past ? cycles + 76 - past : cycles;
}

constexpr s32 kIsBpl = 256;  // Added to the period.

// Leaves out turns of a loop that waits for the timer; see `Bus::skip_wait`.
inline s32 skip_turns(Machine* m, s32 cycles, s32 period) {
  const bool is_bpl = period & kIsBpl;
  period &= ~kIsBpl;
  const s32 turns = idle_turns(m->run->state->riot, cycles, period, is_bpl, m->left);
  m->left -= 2 * turns;
  return cycles + turns * period;
}

// Why translated code returns; anything above is where a jump can be aimed at the block of `pc`.
enum Exit : u64 { kGo, kInterpret, kFlush, kStopped, kNumberOfExits };

}  // namespace rlbatch::atari
