// The interpreter for GPUs: all opcodes go through the same steps, told apart by a table.
//
// The threads of a warp execute together, wherever they are, and what they wait for most is their own
// answers: a branch takes as long as ten additions. So there are few branches. What an
// instruction is, is a row of `kSteps`: which bytes are chosen, which masks applied, which results
// kept; a branch is a choice of what comes next. The next instruction is fetched while one is executed.
//
//   operand (by mode) -> read -> logic, sum and shift to the right -> choice -> write
//
// The one branch on this way is for addresses that are in RAM, and for what is read or written elsewhere.
//
// Nothing is called from here: a call would cost all threads their barriers and descriptors. What is
// rare is left to `execute_anywhere`, with nothing done: undocumented opcodes, decimal sums, Pitfall
// II's chip, a stack that is no RAM. That is for one thread at a time, and its code is not in the
// instruction cache, so nothing that programs do in every frame is left to it.
#pragma once

#include "lanes.h"
#include "m6502.h"
#include "shadow.h"
#include "steps.h"

namespace rlbatch::atari {

// --- Shared memory: the table, the program, and behind these the RAM of every thread. ---

// A word between the RAMs of two threads sends them to different banks where they read at the same
// address.
constexpr u32 kRamStride = 132;

RLB_FN constexpr u32 program_bytes(Cart kind) {
  return kind == Cart::k2K || kind == Cart::k4K     ? 4096
         : kind == Cart::kF6 || kind == Cart::kF6SC ? 16384
                                                    : 8192;
}

#if defined(RLB_CART)
constexpr u32 kNearProgram = program_bytes(static_cast<Cart>(RLB_CART));
#else
constexpr u32 kNearProgram = program_bytes(Cart::kF6);
#endif

struct NearMemory {
  StepsTable steps;
  u32 program[kNearProgram / 4 + 1];  // A word more, so that the last bytes can be read as words.
};

RLB_HOT NearMemory& near_memory() { return *reinterpret_cast<NearMemory*>(shared_memory()); }
RLB_HOT u8* near_ram() {
  return shared_memory() + sizeof(NearMemory) + kRamStride * static_cast<u32>(thread_index());
}

// All threads of a block copy what they share, before any of them runs.
RLB_FN void come_near(const u8* rom) {
  NearMemory& m = near_memory();
  const u32 *steps = reinterpret_cast<const u32*>(&kSteps), *program = reinterpret_cast<const u32*>(rom);
  u32* near_steps = reinterpret_cast<u32*>(&m.steps);
  const u32 first = static_cast<u32>(thread_index()), n_threads = static_cast<u32>(block_size());
  for (u32 i = first; i < sizeof(kSteps) / 4; i += n_threads) near_steps[i] = steps[i];
  for (u32 i = first; i < kNearProgram / 4; i += n_threads) m.program[i] = program[i];
  block_barrier();
}

// Whether the program may run in RAM as well: to ask costs every instruction. See `Game.runs_ram`.
#if defined(RLB_RUNS_RAM)
constexpr bool kRunsRam = RLB_RUNS_RAM;
#else
constexpr bool kRunsRam = true;
#endif

constexpr s32 kMostAtOnce = 8;  // Instructions after which the other threads of the warp get a look in,
#if defined(RLB_PROGRAM)
constexpr s32 kMostAlone = 1;  // or where there are none, after which `program.h` goes on,
#else
constexpr s32 kMostAlone = 32;  // or after which the log may be full.
#endif

// The CPU of one thread, in registers: of one without company whose frame nobody sees, or of any.
template <Cart kKind, bool kAlone>
struct Interpreter {
  u8* ram;
  u32 ram_at;  // Its offset from the program, both in shared memory.
  State* state;
  Log log;
  u16* shadow;  // Of one alone; see `shadow.h`.
  s32 log_base, line_limit, line_start;
  s32 cycles, n_log, left, last_access;
  s32 until;  // With so many instructions left a run ends.
  u32 pc, axys, nz, c, v, latch;  // V is `kFlagV` or 0.
  u32 waits;   // For a replay of the log, to read collisions.
  u32 banks;   // See `packed_banks`.
  u32 stops;   // What `Step` is not executed.
  u32 status;  // D, I and the bits that are always set, as they are pushed.

  RLB_HOT static const u32* program() { return near_memory().program; }
  RLB_HOT static u32 word_in(u32 offset) {
    return words_at(program()[offset / 4], program()[offset / 4 + 1], offset);
  }

  // Whether the instruction at a program counter can be executed here.
  RLB_HOT static bool is_code(u32 pc) {
    const bool is_in_ram = kRunsRam & ((pc & 0x1280) == 0x80) & ((pc & 0x7f) <= 0x7d);
    return is_plain_code<kKind>(pc) | is_in_ram;
  }
  // Where it is, from the program on.
  RLB_HOT u32 place_of(u32 pc) const {
    const u32 in_program = offset_in<kKind>(banks, pc);
    return kRunsRam && !(pc & 0x1000) ? ram_at + (pc & 0x7f) : in_program;
  }
  RLB_HOT static u32 rom_byte(u32 offset) { return reinterpret_cast<const u8*>(program())[offset]; }
  // Not `word & 0xff`, which a compiler makes a shift and a mask of, before it adds where the table is.
  RLB_HOT static Steps steps_of(u32 word) { return near_memory().steps.of[permute(word, 0, 0x4440)]; }

  RLB_HOT u32 sp() const { return axys >> 24; }
  // Whether the stack is in RAM, from so many bytes below its pointer to so many above.
  RLB_HOT bool has_stack(u32 below, u32 above) const { return sp() >= 0x80 + below && sp() + above <= 0xff; }
  RLB_HOT u32 stacked(s32 by) const { return ram[(sp() + static_cast<u32>(by)) & 0x7f]; }
  RLB_HOT void store_stacked(s32 by, u32 value) const {
    ram[(sp() + static_cast<u32>(by)) & 0x7f] = static_cast<u8>(value);
  }
  RLB_HOT void move_stack(s32 by) { axys += static_cast<u32>(by) << 24; }

  // Whether it is a branch, and taken; without a branch of its own.
  RLB_HOT bool is_taken(const Steps& s) const {
    const bool is_set = (nz | c << 9 | v) & s.masks;
    return s.what & (is_set ? kBranchesIfSet : kBranchesIfNot);
  }

  // --- What ends a run. ---

  // BPL and BNE that may lead to where the timer is read, and BVC and BCC to the same distance.
  RLB_HOT static bool may_wait(u32 word) { return (word & 0xff3f) == 0xfb10; }

  // As in `Bus`.
  RLB_HOT void skip_wait(u32 target, s32 branch_cycles, bool is_bpl) {
    if (!is_code(target)) return;
    const Wait wait = wait_of(word_in(place_of(target)), is_bpl);
    if (wait == kNoWait) return;
    const s32 period = 4 + branch_cycles, turns = idle_turns(state->riot, wait, cycles, period, is_bpl, left);
    cycles += turns * period;
    left -= 2 * turns;
  }

  // A branch that may wait.
  RLB_HOT void branch(const Steps& s, u32 opcode) {
    if (!is_taken(s)) return;
    const u32 target = pc - 5;
    const s32 extra = (target ^ pc) & 0xff00 ? 2 : 1;
    cycles += extra;
    pc = target;
    const bool is_bpl = opcode == 0x10;
    if (is_bpl || opcode == 0xd0) skip_wait(target, 2 + extra, is_bpl);
  }

  RLB_HOT u32 flags() const {
    return ((nz >> 7 | nz >> 8) & 1) << 7 | v >> 4 | status | static_cast<u32>((nz & 0xff) == 0) << 1 | c;
  }

  RLB_HOT void set_status(u32 p) {
    status = 0x30 | (p & 0x0c);
    stops = kIsUnknown | kIsOdd | (p & 8 ? u32{kIsAddition} : 0);
  }
  RLB_HOT void set_flags(u32 p) {
    nz = (p & 0x80) << 1 | (p & 2 ? 0 : 1);
    v = p << 4 & kFlagV;
    c = p & 1;
    set_status(p);
  }

  // Writes to the stack, which some games have in the TIA.
  RLB_HOT bool push(u32 value, s32 now) {
    const u32 to = sp();
    if (to < 0x80 && !is_logged(to, now)) return false;
    cycles = now;
    if (to < 0x80) {
      write_tia(to & 0x3f, value);
    } else {
      ram[to & 0x7f] = static_cast<u8>(value);
    }
    latch = value;
    move_stack(-1);
    pc += 1;
    return true;
  }

  // What an instruction reads that is executed by its opcode: up to two bytes, one after the other.
  struct Reads {
    u32 n, at[2];
  };
  RLB_HOT Reads reads_of(u32 opcode, u32 address) const {
    switch (opcode) {
      case 0x24: return {1, {address & 0xff, 0}};                                     // BIT
      case 0x2c: return {1, {address, 0}};                                            // BIT
      case 0x28: case 0x68: return {2, {sp(), (sp() + 1) & 0xff}};                    // PLP, PLA
      case 0x6c: return {2, {address, (address & 0xff00) | ((address + 1) & 0xff)}};  // JMP ( )
      default: return {0, {0, 0}};
    }
  }

  // Executes what is told apart by its opcode; as `execute`.
  RLB_HOT bool execute_odd(const Steps& s, u32 word) {
    const u32 opcode = word & 0xff, byte = word >> 8 & 0xff, address = word >> 8 & 0xffff;
    const s32 now = cycles + static_cast<s32>(s.what & kCycles);
    const u32 next = pc + (s.what >> kLengthAt);
    if (s.what & kIsBranch) {
      cycles = now;
      latch = byte;
      pc = next;
      branch(s, opcode);
      return true;
    }
    const Reads reads = reads_of(opcode, address);
    u32 value = opcode == 0x24 ? byte : opcode == 0x28 || opcode == 0x68 ? opcode : address >> 8, low = 0;
    for (u32 k = 0; k < reads.n; ++k) {
      low = value;
      if (!read(k ? reads.at[1] : reads.at[0], now, value, value)) return false;
    }
    u32 to = next, on_bus = opcode;
    switch (opcode) {
      case 0x24: case 0x2c:  // BIT
        on_bus = value;
        nz = (axys & value & 0xff) | (value & 0x80) << 1;
        v = value << 4 & kFlagV;
        break;
      case 0x48: return push(axys & 0xff, now);  // PHA
      case 0x08: return push(flags(), now);      // PHP
      case 0x68:                                 // PLA
        on_bus = nz = value;
        move_stack(1);
        axys = (axys & ~0xffu) | value;
        break;
      case 0x28:  // PLP
        on_bus = value;
        move_stack(1);
        set_flags(value);
        break;
      case 0xd8: set_status(status & ~8u); break;  // CLD
      case 0xf8: set_status(status | 8); break;    // SED
      case 0x60: {                                 // RTS
        if (!has_stack(0, 2)) return false;
        const u32 back = stacked(1) | stacked(2) << 8;
        if (!is_plain_code<kKind>(back)) return false;
        on_bus = rom_byte(offset_in<kKind>(banks, back));
        to = (back + 1) & 0xffff;
        move_stack(2);
        break;
      }
      case 0x40:  // RTI
        if (!has_stack(0, 3)) return false;
        on_bus = stacked(3);
        to = stacked(2) | on_bus << 8;
        set_flags(stacked(1));
        move_stack(3);
        break;
      case 0x00: {  // BRK
        if (!has_stack(2, 0) || kKind == Cart::kDPC) return false;
        store_stacked(0, next >> 8);
        store_stacked(-1, next);
        store_stacked(-2, flags());
        move_stack(-3);
        set_status(status | 4);
        on_bus = rom_byte(offset_in<kKind>(banks, 0xffff));
        to = rom_byte(offset_in<kKind>(banks, 0xfffe)) | on_bus << 8;
        break;
      }
      case 0x6c:  // JMP ( )
        on_bus = value;
        to = low | value << 8;
        break;
      case 0x20:  // JSR
        if (!has_stack(1, 0)) return false;
        store_stacked(0, (next - 1) >> 8);
        store_stacked(-1, next - 1);
        move_stack(-2);
        [[fallthrough]];
      default:  // JMP
        on_bus = address >> 8;
        to = address;
    }
    latch = on_bus;
    pc = to;
    cycles = now;
    return true;
  }

  // --- What a run consists of. ---

  // What comes next may have been read from another bank: the run ends.
  RLB_HOT void switch_banks() {
    banks = packed_banks<kKind>(state->cart);
    until = left;
  }

  RLB_HOT static bool is_in_ram(u32 address) { return (address & 0x1280) == 0x80; }

  // Reads, with what was on the bus before; false if that does more.
  RLB_HOT bool read(u32 address, s32 now, u32 noise, u32& value) {
    if (is_in_ram(address)) {
      value = ram[address & 0x7f];
      return true;
    }
    if (is_plain_data<kKind>(address)) {
      value = rom_byte(offset_in<kKind>(banks, address));
      return true;
    }
    if (address & 0x1000) {
      if (kKind == Cart::kDPC) return false;
      value = read_cart<kKind>(state->cart, reinterpret_cast<const u8*>(program()), address, now);
      switch_banks();
      return true;
    }
    if (address & 0x80) {
      value = read_port(state->riot, address, now);
      return true;
    }
    last_access = now;
    const u32 reg = address & 15;
    if (reg < 8 && (n_log || !is_drawn(state->tia, 3 * now))) {
      waits = 1;
      return false;
    }
    const u32 shown = reg < 8 ? shown_collisions(state->tia.collisions, reg) : read_input(*state, reg, now);
    value = shown | (noise & 0x3f);
    return true;
  }

  // Whether a write goes to the log, or waits for the line, and does no more.
  RLB_HOT bool is_logged(u32 address, s32 now) const {
    const u32 reg = address & 0x3f;
    return !(address & 0x1080) && reg >= kWSYNC && reg <= kCXCLR && now < line_limit && n_log < kLogSize;
  }

  // Whether `write_elsewhere` does all that another one does.
  RLB_HOT bool can_write(u32 address, s32 now) const {
    if (address & 0x1000) return kKind != Cart::kDPC;
    if (address & 0x80) return sets_timer(address);
    return (address & 0x3f) <= kVBLANK && now < line_limit && n_log < kLogSize;
  }

  RLB_HOT void write_elsewhere(u32 address, u32 value) {
    if (address & 0x1000) {
      write_cart<kKind>(state->cart, address, static_cast<u8>(value));
      switch_banks();
    } else if (address & 0x80) {
      set_timer(state->riot, address, value, cycles);
    } else if (address & 0x3f) {
      write_dump(state->tia, static_cast<u8>(value), cycles);
      write_tia(kVBLANK, value);
    } else {
      last_access = cycles;
      if (!ends_frame(state->tia, static_cast<u8>(value), cycles)) return;
      state->frame.has_stopped = 1;
      left = 0;
    }
  }

  RLB_HOT void write_tia(u32 reg, u32 value) {
    last_access = cycles;
    if (reg == kWSYNC) {
      const s32 past = (cycles - line_start) % 76;
      cycles += past ? 76 - past : 0;
      return;
    }
    if (kAlone && !note_write(shadow, reg, value)) return;
    log[n_log++] = packed_write(static_cast<u32>(cycles - log_base), reg, static_cast<u8>(value));
  }

  // Writes what is no RAM; false if that does more. The clock goes on.
  RLB_HOT bool write(u32 address, u32 value, s32& now) {
    const bool goes_to_log = is_logged(address, now);
    if (!goes_to_log && !can_write(address, now)) return false;
    cycles = now;
    if (goes_to_log) {
      write_tia(address & 0x3f, value);
    } else {
      write_elsewhere(address, value);
    }
    now = cycles;
    return true;
  }

  // The operand of instructions whose address is in RAM, or that read what is no RAM; those that write there
  // do so. Returns false if that does more, with nothing done.
  RLB_HOT bool reach(const Steps& s, u32 word, u32 index, u32& address, u32& value, s32& now) {
    const u32 what = s.what, byte = word >> 8 & 0xff;
    u32 noise = s.chosen & kAbsoluteSign ? word >> 16 & 0xff : byte;
    if (what & kIsIndirect) {
      const bool is_x = what & kIsIndirectX;
      const u32 at = is_x ? (byte + index) & 0xff : byte;
      if (at < 0x80 || at == 0xff) return false;
      const u32 low = ram[at & 0x7f], by = is_x ? 0 : index;
      noise = ram[(at + 1) & 0x7f];
      address = ((low | noise << 8) + by) & 0xffff;
      now = cycles + static_cast<s32>((what & kCycles) + (((low + by) & what & kMayCross) >> 8));
    }
    if (what & kDoesRead) {
      if (what & kDoesWrite) return false;
      return read(address, now, noise, value);
    }
    if (!is_in_ram(address)) return write(address, permute(axys, 0, s.chosen >> 16), now);
    return true;
  }

  // As one question: each costs a GPU as much as ten additions.
  RLB_HOT bool is_common(const Steps& s, u32 word) const {
    return is_code(pc) & !(s.what & stops) & !may_wait(word);
  }

  // Executes a few instructions, the last one where another may be told apart by its opcode; returns false
  // where the next one is left to `execute_anywhere`, with nothing of it done.
  RLB_HOT bool run() {
    u32 word = word_in(place_of(pc));
    Steps s = steps_of(word);
    constexpr s32 kMost = kAlone ? kMostAlone : kMostAtOnce;
    until = left > kMost ? left - kMost : 0;
    bool goes_on = is_common(s, word);
    while (goes_on) {
      --left;
      const u32 what = s.what, byte = word >> 8 & 0xff, mask = permute(s.chosen, 0, kAddressMask);

      // What comes next is read while this is executed.
      const u32 after = pc + (what >> kLengthAt), target = after + (byte ^ 0x80) - 0x80;
      const bool branches = is_taken(s);
      const u32 next_pc = branches ? target : after, next_at = place_of(next_pc);
      const u32 next_low = program()[next_at / 4], next_high = program()[next_at / 4 + 1];

      // --- Operand. ---
      const u32 index = permute(axys, 0, s.chosen);
      const u32 crossed = ((((byte + index) & what) | (next_pc ^ after)) & kMayCross) >> 8;
      s32 now = cycles + static_cast<s32>((what & kCycles) + crossed + branches);
      u32 address = ((word >> 8 & mask) + index) & mask;
      u32 value = what & kDoesRead ? ram[address & 0x7f] : byte;
      const bool is_direct = is_in_ram(address) | !(what & (kDoesRead | kDoesWrite));
      if (!is_direct | ((what & kIsIndirect) != 0)) {
        if (!reach(s, word, index, address, value, now)) return false;
      }
      const u32 next_word = words_at(next_low, next_high, next_pc);
      const Steps next = steps_of(next_word);

      // --- Operation. Nothing stands in the way any more. ---
      const u32 l = permute(axys, value, s.chosen >> 16);
      const u32 masked = (value & s.masks) ^ s.masks >> 24;
      const u32 t = what & kShiftsLeft ? l : masked;
      const u32 carry = what >> (kCarryAt + c) & 1;
      const u32 sum = l + t + carry;
      const u32 logic = (l & t) ^ (value & s.masks >> 16);
      const u32 shifted = (l | carry << 8) >> 1, moved = what & kShiftsRight ? shifted : logic;
      const u32 result = what & kIsSum ? sum & 0xff : moved;
      cycles = now;
      pc = next_pc;
      c = what & kSetsC ? (what & kShiftsRight ? l & 1 : sum >> 8) : c;
      nz = what & kSetsNz ? result : nz;
      v = what & kIsAddition ? ((l ^ result) & (t ^ result)) << 3 & kFlagV : v;
      axys = permute(axys, result, s.kept);
      latch = permute(word, what & kDoesWrite ? result : value, s.kept >> 16);
      if (what & kDoesWrite && is_in_ram(address)) ram[address & 0x7f] = static_cast<u8>(result);
      // What comes next may have been read too early.
      if (kRunsRam && what & kDoesWrite && !(next_pc & 0x1000)) until = left;
      word = next_word;
      s = next;
      goes_on = (left > until) & is_common(s, word);
    }
    if (left <= until) return true;
    --left;
    return is_code(pc) && s.what & (kIsOdd | kIsBranch) && execute_odd(s, word);
  }
};

}  // namespace rlbatch::atari
