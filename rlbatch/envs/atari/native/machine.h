// What translated programs work with, and what they call where they do not go on alone.
#pragma once

#include <cstddef>

#include "m6502.h"
#include "shadow.h"

namespace rlbatch::atari {

// What translated code works with.
struct Machine {
  s32 cycles, left, n_log, last_access, line_limit, log_base, line_phase;
  u32 latch, pc, a, x, y, sp, nz, c, v, d, i;
  u16 shadow[kShadowSize];
  u8* ram;  // Less 0x80, so that addresses of the zero page can be added.
  u32* log;
  const u8* rom;
  const u8* slices;
  Run* run;
};

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
    if (writes) note_writes(*m.run, m.shadow, m.n_log, bus.n_log, n_replays);
    m.cycles = bus.cycles;
    m.n_log = bus.n_log;
    m.left = bus.left;
    m.last_access = bus.last_access;
    m.latch = bus.latch;
  }
};

// The two most common accesses do without a `Bus`, which takes longer to make than they do.
inline u32 read_slowly(Machine* m, u32 address, u32 latch) {
  if ((address & 0x1280) == 0x280) {
    return m->latch = read_riot(m->run->state->riot, address, m->cycles);
  }
  m->latch = latch;
  return SlowBus(*m, false).bus.read(address);
}

inline void write_slowly(Machine* m, u32 address, u32 value) {
  const u32 reg = address & 0x3f;
  const bool is_logged = !(address & 0x1080) && reg - kRSYNC <= kCXCLR - kRSYNC;
  if (is_logged && m->cycles < m->line_limit && m->n_log < kLogSize - 1) {
    const u32 since = static_cast<u32>(m->cycles - m->log_base);
    m->log[m->n_log++] = packed_write(since, reg, static_cast<u8>(value));
    note_write(m->shadow, reg, value);
    m->last_access = m->cycles;
    m->latch = value;
    return;
  }
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

// Added to the period.
constexpr s32 kIsBpl = 256, kPolls = 512;  // `kUntilRunOut`.

// Leaves out turns of a loop that waits for the timer; see `Bus::skip_wait`.
inline s32 skip_turns(Machine* m, s32 cycles, s32 period) {
  const bool is_bpl = period & kIsBpl;
  const Wait wait = period & kPolls ? kUntilRunOut : kUntilZero;
  period &= ~(kIsBpl | kPolls);
  const s32 turns = idle_turns(m->run->state->riot, wait, cycles, period, is_bpl, m->left);
  m->left -= 2 * turns;
  return cycles + turns * period;
}

// Why translated code returns; anything above is where a jump can be aimed at the block of `pc`.
enum Exit : u64 { kGo, kInterpret, kFlush, kStopped, kNumberOfExits };

}  // namespace rlbatch::atari
