// What the CPU reaches: memory, and the log of what it writes to the TIA.
//
// Every access inside an instruction has the time at which the instruction ends.
#pragma once

#include "platform.h"
#include "replay.h"
#include "state.h"

namespace rlbatch::atari {

#if defined(RLB_DEVICE)
constexpr s32 kLogSize = 512;
#else
constexpr s32 kLogSize = 2048;
#endif
constexpr s32 kNoAccess = -(1 << 24);   // Before any frame.
constexpr s32 kMaxInstructions = 25000;  // Of a frame; then it is a partial one.

// What a running console works with.
struct Run {
  State* state;
  Cart cart;
  const u8* rom;
  Log log;       // [kLogSize] TIA writes, see `packed_write`.
  Screen screen;  // The one that is drawn, or null.
  Picture picture;
  s32 n_log;
  s32 log_base;     // CPU cycles at which the log began.
  s32 last_access;  // CPU cycles of the last access to the TIA.
  u32 n_replays;    // Of the log.
#if defined(RLB_DEVICE)
  u8* ram;  // While the CPU runs; in shared memory.
#endif
};

RLB_COLD RLB_FN void flush_log(Run& run, s32 n_log, s32 last_access,
                               s32 drawn_before = kGoesOn) {
  ++run.n_replays;
  if (!n_log && drawn_before == kGoesOn && is_drawn(run.state->tia, 3 * last_access)) return;
  replay(run.state->tia, run.picture, run.log, n_log, run.log_base, last_access, run.screen,
         drawn_before);
}

RLB_FN u8 read_input(const State& s, u32 reg, s32 cycles) {
  if (reg >= 0xe) return 0;
  if (reg >= 0xc) {  // Fire buttons of the joysticks.
    return s.session.fire >> (reg - 0xc) & 1 ? 0 : 0x80;
  }
  const s32 needed = s.session.charged_at[reg - 8];
  if (needed == 0) return 0x80;
  if (needed == kNever || s.tia.is_dumped) return 0;
  const s32 charged = static_cast<s32>(static_cast<u32>(s.tia.dump_stamp) + static_cast<u32>(needed));
  return static_cast<u32>(cycles) > static_cast<u32>(charged) ? 0x80 : 0;
}

// The collisions that one of the first eight TIA registers shows, in bits 7 and 6.
RLB_HOT u32 shown_collisions(u32 latches, u32 reg) {
  if (reg == 6) return (latches >> 12 & 1) << 7;
  const u32 pair = reg == 7 ? 13 : 2 * reg;
  return (latches >> pair & 1) << 7 | (latches >> (pair + 1) & 1) << 6;
}

// Returns what a TIA register shows; the pixels up to now are accounted for first if that matters.
RLB_COLD RLB_FN u8 read_tia(Run& run, u32 address, s32 cycles, u8 bus, s32 n_log) {
  const u32 reg = address & 15;
  if (reg >= 8) return static_cast<u8>(read_input(*run.state, reg, cycles) | (bus & 0x3f));
  flush_log(run, n_log, cycles);
  return static_cast<u8>(shown_collisions(run.state->tia.collisions, reg) | (bus & 0x3f));
}

// VSYNC: whether its end ends the frame.
RLB_HOT bool ends_frame(Tia& tia, u8 value, s32 cycles) {
  tia.vsync = value;
  if (value & 2) {
    tia.vsync_finish = static_cast<s32>(static_cast<u32>(3 * cycles) + kLine);
    return false;
  }
  const bool ends = 3 * cycles >= tia.vsync_finish;
  if (ends) tia.vsync_finish = kNever;
  return ends;
}

// VBLANK, as far as the paddles go.
RLB_HOT void write_dump(Tia& tia, u8 value, s32 cycles) {
  if (tia.is_dumped && !(value & 0x80)) tia.dump_stamp = cycles;
  tia.is_dumped = value & 0x80;
}

template <Cart kKind>
struct Bus {
  Run& run;
  State& state;
  const u8* const rom;
  const Log log;
  s32 cycles;
  s32 n_log;
  s32 left;         // Instructions.
  s32 line_limit;   // CPU cycles from which on any TIA write ends the frame.
  s32 last_access;
  u32 latch;        // The last byte on the bus.

  RLB_HOT u8& ram(u32 address) const {
#if defined(RLB_DEVICE)
    return run.ram[address & 0x7f];
#else
    return state.riot.ram[address & 0x7f];
#endif
  }

  RLB_HOT u32 fetch_word(u32 pc) const {
    return word_at(rom, rom_offset<kKind>(state.cart, pc));
  }

  RLB_HOT u32 read_program(u32 address) {
    if constexpr (kKind == Cart::kAny) {
      return read_any_cart(run.cart, state.cart, rom, address, cycles);
    } else {
      return read_cart<kKind>(state.cart, rom, address, cycles);
    }
  }

  RLB_HOT void write_program(u32 address, u8 value) {
    if constexpr (kKind == Cart::kAny) {
      write_any_cart(run.cart, state.cart, address, value);
    } else {
      write_cart<kKind>(state.cart, address, value);
    }
  }

  RLB_HOT u32 read_tia_now(u32 address) {
    last_access = cycles;
    const u32 value = read_tia(run, address, cycles, static_cast<u8>(latch), n_log);
    if ((address & 15) < 8) {
      n_log = 0;
    }
    return value;
  }

  // Where speed does not matter these are called, so that there are not hundreds of copies of them.
  RLB_GPU_CALL u32 read_slowly(u32 address) { return read_now(address); }
  RLB_GPU_CALL u32 read_zero_page_slowly(u32 address) { return read_zero_page_now(address); }
  RLB_GPU_CALL void write_slowly(u32 address, u32 value, bool after_write) {
    write_now(address, value, after_write);
  }
  RLB_GPU_CALL void write_zero_page_slowly(u32 address, u32 value, bool after_write) {
    write_zero_page_now(address, value, after_write);
  }

  RLB_HOT u32 read(u32 address) {
    if constexpr (kKind == Cart::kAny) return read_slowly(address);
    return read_now(address);
  }
  RLB_HOT u32 read_zero_page(u32 address) {
    if constexpr (kKind == Cart::kAny) return read_zero_page_slowly(address);
    return read_zero_page_now(address);
  }
  RLB_HOT void write(u32 address, u32 value, bool after_write = false) {
    if constexpr (kKind == Cart::kAny) return write_slowly(address, value, after_write);
    write_now(address, value, after_write);
  }
  RLB_HOT void write_zero_page(u32 address, u32 value, bool after_write = false) {
    if constexpr (kKind == Cart::kAny) return write_zero_page_slowly(address, value, after_write);
    write_zero_page_now(address, value, after_write);
  }

  RLB_HOT u32 read_now(u32 address) {
    if (address & 0x1000) {
      latch = read_program(address);
    } else if (!(address & 0x80)) {
      latch = read_tia_now(address);
    } else if (!(address & 0x200)) {
      latch = ram(address);
    } else {
      latch = read_riot(state.riot, address, cycles);
    }
    return latch;
  }

  RLB_HOT u32 read_zero_page_now(u32 address) {
    return latch = address & 0x80 ? ram(address) : read_tia_now(address);
  }

  RLB_HOT void write_zero_page_now(u32 address, u32 value, bool after_write) {
    if (address & 0x80) {
      ram(address) = static_cast<u8>(value);
    } else {
      write_tia(address & 0x3f, static_cast<u8>(value), after_write);
    }
    latch = value;
  }

  RLB_HOT void write_now(u32 address, u32 value, bool after_write) {
    if (address & 0x1000) {
      write_program(address, static_cast<u8>(value));
    } else if (!(address & 0x80)) {
      write_tia(address & 0x3f, static_cast<u8>(value), after_write);
    } else if (!(address & 0x200)) {
      ram(address) = static_cast<u8>(value);
    } else {
      write_riot(state.riot, address, static_cast<u8>(value), cycles);
    }
    latch = value;
  }

  // What the CPU can see of a TIA write happens here, the rest goes to the log.
  RLB_HOT void write_tia(u32 reg, u8 value, bool after_write) {
    if (RLB_UNLIKELY(cycles >= line_limit)) stop();
    last_access = cycles;
    if (reg - kRSYNC > kCXCLR - kRSYNC) {  // VSYNC, VBLANK, WSYNC, and those that are nothing.
      if (reg == kWSYNC) {
        if (!after_write) wait_for_line();
        return;
      }
      if (reg == kVSYNC) {
        if (ends_frame(state.tia, value, cycles)) stop();
        return;
      }
      if (reg != kVBLANK) return;
      write_dump(state.tia, value, cycles);
    }
    log[n_log++] = packed_write(static_cast<u32>(cycles - run.log_base), reg, value);
    if (RLB_UNLIKELY(n_log == kLogSize)) {
      flush_log(run, n_log, cycles);
      n_log = 0;
    }
  }

  // Leaves out turns of a loop that waits for the timer.
  RLB_HOT void skip_wait(u32 target, s32 branch_cycles, bool is_bpl) {
    if (!is_plain_code<kKind>(target)) return;
    const Wait wait = wait_of(fetch_word(target), is_bpl);
    if (wait == kNoWait) return;
    const s32 period = 4 + branch_cycles, turns = idle_turns(state.riot, wait, cycles, period, is_bpl, left);
    cycles += turns * period;
    left -= 2 * turns;
  }

  RLB_HOT void stop() {
    state.frame.has_stopped = 1;
    left = 0;
  }

  RLB_HOT void wait_for_line() {
    const s32 past = (cycles - state.tia.frame_start / 3) % 76;
    if (past) cycles += 76 - past;
  }
};

template <Cart kKind>
RLB_HOT Bus<kKind> connect(Run& run, s32 left) {
  State& s = *run.state;
  const s32 limit = s.tia.frame_start / 3 + 76 * (s.frame.max_lines + 1);
  return {run,       s,    run.rom, run.log,         s.cpu.cycles,
          run.n_log, left, limit,   run.last_access, s.cpu.bus};
}

template <Cart kKind>
RLB_HOT void disconnect(Run& run, const Bus<kKind>& bus) {
  run.state->cpu.cycles = bus.cycles;
  run.state->cpu.bus = static_cast<u8>(bus.latch);
  run.n_log = bus.n_log;
  run.last_access = bus.last_access;
}

}  // namespace rlbatch::atari
