// The interpreter for GPUs: all opcodes go through the same steps, told apart by a table.
//
// The threads of a warp execute together, wherever they are, and what they wait for most is their own
// answers: a branch takes as long as ten additions. So there are few branches. What an
// instruction is, is a row of `kSteps`: which bytes are chosen, which masks applied, which results
// kept; a branch is a choice of what comes next. The next instruction is fetched while one is executed.
//
//   operand (by mode) -> read -> logic, sum and shift to the right -> choice -> write
//
// Nothing is called from here: a call would cost all threads their barriers and descriptors. What is
// rare is left to `execute_anywhere`, with nothing done: undocumented opcodes, decimal sums, Pitfall
// II's chip, a stack that is no RAM. That is for one thread at a time, and its code is not in the
// instruction cache, so nothing that programs do in every frame is left to it.
#pragma once

#include "lanes.h"
#include "m6502.h"
#include "shadow.h"

namespace rlbatch::atari {

enum Mode : u8 {
  kNoMode, kImplied, kImmediate, kZero, kZeroX, kZeroY, kAbs, kAbsX, kAbsY, kIndX, kIndY, kRelative,
};

enum Operation : u8 {
  kNoOp, kLda, kLdx, kLdy, kSta, kStx, kSty, kOra, kAnd, kEor, kAdc, kSbc, kCmp, kCpx, kCpy, kBit,
  kAsl, kRol, kLsr, kRor, kDec, kInc, kAslA, kRolA, kLsrA, kRorA, kTax, kTay, kTxa, kTya, kTsx, kTxs,
  kInx, kDex, kIny, kDey, kClc, kSec, kCld, kSed, kPha, kPla, kPhp, kPlp, kBranch, kJmp, kJmpIndirect,
  kJsr, kRts, kRti, kBrk,
};

enum Access : u8 { kNothing = 0, kReads = 1, kWrites = 2, kModifies = 3, kCrosses = 4 };

struct Instruction {
  u8 mode, operation, cycles, access;
};

// The documented instructions but for rare ones. Source: MCS6500 programming manual (MOS Technology,
// 1976), appendix B.
struct InstructionTable {
  Instruction of[256];

  constexpr void group(u32 base, Operation operation) {
    of[base + 0x09] = {kImmediate, operation, 2, kNothing};
    of[base + 0x05] = {kZero, operation, 3, kReads};
    of[base + 0x15] = {kZeroX, operation, 4, kReads};
    of[base + 0x0d] = {kAbs, operation, 4, kReads};
    of[base + 0x1d] = {kAbsX, operation, 4, kReads | kCrosses};
    of[base + 0x19] = {kAbsY, operation, 4, kReads | kCrosses};
    of[base + 0x01] = {kIndX, operation, 6, kReads};
    of[base + 0x11] = {kIndY, operation, 5, kReads | kCrosses};
  }

  constexpr void modify(u32 base, Operation operation) {
    of[base + 0x06] = {kZero, operation, 5, kModifies};
    of[base + 0x16] = {kZeroX, operation, 6, kModifies};
    of[base + 0x0e] = {kAbs, operation, 6, kModifies};
    of[base + 0x1e] = {kAbsX, operation, 7, kModifies};
  }

  constexpr InstructionTable() : of{} {
    group(0x00, kOra), group(0x20, kAnd), group(0x40, kEor), group(0x60, kAdc);
    group(0xa0, kLda), group(0xc0, kCmp), group(0xe0, kSbc);
    modify(0x00, kAsl), modify(0x20, kRol), modify(0x40, kLsr), modify(0x60, kRor);
    modify(0xc0, kDec), modify(0xe0, kInc);
    of[0xa2] = {kImmediate, kLdx, 2, kNothing}, of[0xa0] = {kImmediate, kLdy, 2, kNothing};
    of[0xa6] = {kZero, kLdx, 3, kReads}, of[0xa4] = {kZero, kLdy, 3, kReads};
    of[0xb6] = {kZeroY, kLdx, 4, kReads}, of[0xb4] = {kZeroX, kLdy, 4, kReads};
    of[0xae] = {kAbs, kLdx, 4, kReads}, of[0xac] = {kAbs, kLdy, 4, kReads};
    of[0xbe] = {kAbsY, kLdx, 4, kReads | kCrosses}, of[0xbc] = {kAbsX, kLdy, 4, kReads | kCrosses};
    of[0xe0] = {kImmediate, kCpx, 2, kNothing}, of[0xc0] = {kImmediate, kCpy, 2, kNothing};
    of[0xe4] = {kZero, kCpx, 3, kReads}, of[0xc4] = {kZero, kCpy, 3, kReads};
    of[0xec] = {kAbs, kCpx, 4, kReads}, of[0xcc] = {kAbs, kCpy, 4, kReads};
    of[0x24] = {kZero, kBit, 3, kReads}, of[0x2c] = {kAbs, kBit, 4, kReads};
    of[0x85] = {kZero, kSta, 3, kWrites}, of[0x95] = {kZeroX, kSta, 4, kWrites};
    of[0x8d] = {kAbs, kSta, 4, kWrites}, of[0x9d] = {kAbsX, kSta, 5, kWrites};
    of[0x99] = {kAbsY, kSta, 5, kWrites}, of[0x81] = {kIndX, kSta, 6, kWrites};
    of[0x91] = {kIndY, kSta, 6, kWrites};
    of[0x86] = {kZero, kStx, 3, kWrites}, of[0x96] = {kZeroY, kStx, 4, kWrites};
    of[0x8e] = {kAbs, kStx, 4, kWrites};
    of[0x84] = {kZero, kSty, 3, kWrites}, of[0x94] = {kZeroX, kSty, 4, kWrites};
    of[0x8c] = {kAbs, kSty, 4, kWrites};
    for (u32 k = 0x10; k < 0x100; k += 0x20) of[k] = {kRelative, kBranch, 2, kNothing};
    constexpr u8 kOpcodes[] = {0x0a, 0x2a, 0x4a, 0x6a, 0xaa, 0xa8, 0x8a, 0x98, 0xba, 0x9a,
                               0xe8, 0xca, 0xc8, 0x88, 0x18, 0x38, 0xd8, 0xf8, 0xea};
    constexpr Operation kOperations[] = {kAslA, kRolA, kLsrA, kRorA, kTax, kTay, kTxa, kTya, kTsx, kTxs,
                                         kInx,  kDex,  kIny,  kDey,  kClc, kSec, kCld, kSed, kNoOp};
    for (u32 k = 0; k < sizeof(kOpcodes); ++k) of[kOpcodes[k]] = {kImplied, kOperations[k], 2, kNothing};
    of[0x4c] = {kAbs, kJmp, 3, kNothing}, of[0x20] = {kAbs, kJsr, 6, kNothing};
    of[0x60] = {kImplied, kRts, 6, kNothing}, of[0x40] = {kImplied, kRti, 6, kNothing};
    of[0x00] = {kImmediate, kBrk, 7, kNothing}, of[0x28] = {kImplied, kPlp, 4, kNothing};
    of[0x48] = {kImplied, kPha, 3, kNothing}, of[0x68] = {kImplied, kPla, 4, kNothing};
    of[0x08] = {kImplied, kPhp, 3, kNothing}, of[0x6c] = {kAbs, kJmpIndirect, 5, kNothing};
  }
};

// The steps of an instruction. With l, the left operand, and v, what was read or follows the opcode:
//
//   t = (v & mask 0) ^ mask 1      logic = (l & t) ^ (v & mask 2)      sum = l + t + carry in
//
// The registers are bytes of one word: A, X, Y, SP. The selectors are those of `permute`. Whole
// words, because a GPU would have to take smaller numbers out of them one by one.
struct alignas(16) Steps {
  u32 what;     // `Step`, and numbers.
  u32 chosen;   // Selectors: of the index from the registers; of l from the registers and v.
  u32 kept;     // Selectors: of the registers from them and the result; of the data bus.
  u32 masks;    // Three of 8 bits, or one of flags; and which bits of the operand's second byte there are.
};

enum Step : u32 {
  kCycles = 15, kLength = 3 << 4, kDoesRead = 1 << 6, kDoesWrite = 1 << 7, kMayCross = 1 << 8,
  kIsIndirect = 1 << 9, kIsIndirectX = 1 << 10, kShiftsRight = 1 << 11, kShiftsLeft = 1 << 12,
  kIsSum = 1 << 13, kSetsNz = 1 << 14, kSetsC = 1 << 15, kIsAddition = 1 << 16,
  kIsOdd = 1 << 17,      // Executed by `execute_odd`: BIT, BRK, CLD, SED, jumps, and most with a stack.
  kIsUnknown = 1 << 18,  // Left to `execute_anywhere`.
  kIsBranch = 1 << 19,
  kBranchesIfSet = 1 << 20,
};
constexpr u32 kLengthAt = 4, kCarryAt = 24;  // The carry that goes in, by the one that there is.

constexpr u32 kTake = 0x7770;  // And the number of a byte; the others become 0.
constexpr u32 kKeepAll = 0x3210;
enum RegisterByte : u32 { kByteA, kByteX, kByteY, kByteSp, kByteOther, kByteNone };

// The flags that a branch may ask for, in a word of their own; see `Interpreter::is_taken`.
constexpr u32 kFlagsN = 0x180, kFlagsNotZ = 0xff, kFlagC = 1 << 9, kFlagV = 1 << 10;

struct StepsTable {
  Steps of[256];

  static constexpr u32 into(RegisterByte r) { return (kKeepAll & ~(15u << 4 * r)) | 4u << 4 * r; }

  static constexpr void choose(Steps& s, RegisterByte left) {
    s.chosen = (s.chosen & 0xffff) | (kTake | left) << 16;
  }

  static constexpr void keep(Steps& s, u32 registers) { s.kept = (s.kept & ~0xffffu) | registers; }

  static constexpr void set_masks(Steps& s, u32 a, u32 b, u32 c) {
    s.masks = (s.masks & 0xff000000) | a | b << 8 | c << 16;
  }

  // A register as it is.
  static constexpr void transfer(Steps& s, RegisterByte from, u32 registers, bool sets_nz = true) {
    choose(s, from), keep(s, registers), set_masks(s, 0, 0xff, 0);
    if (sets_nz) s.what |= kSetsNz;
  }

  static constexpr void sum(Steps& s, RegisterByte left, u32 a, u32 b, u32 carries, u32 sets, u32 registers) {
    choose(s, left), keep(s, registers), set_masks(s, a, b, 0);
    s.what |= kIsSum | carries << kCarryAt | sets;
  }

  static constexpr void logic(Steps& s, u32 a, u32 b, u32 c, RegisterByte to = kByteA) {
    keep(s, into(to)), set_masks(s, a, b, c);
    s.what |= kSetsNz;
  }

  static constexpr void shift(Steps& s, u32 direction, bool takes_carry, bool is_of_memory) {
    choose(s, is_of_memory ? kByteOther : kByteA), keep(s, is_of_memory ? kKeepAll : into(kByteA));
    s.what |= direction | kSetsNz | kSetsC | (takes_carry ? 2u : 0u) << kCarryAt;
    if (direction == kShiftsLeft) s.what |= kIsSum;
  }

  // Taken where any of some flags is set, or none.
  static constexpr void branch(Steps& s, u32 opcode) {
    constexpr u32 kFlags[] = {kFlagsN, kFlagV, kFlagC, kFlagsNotZ};
    const bool if_set = opcode >> 5 & 1;
    s.masks = kFlags[opcode >> 6];
    s.what |= kIsBranch | ((opcode >> 6 == 3) == if_set ? 0u : u32{kBranchesIfSet});
  }

  static constexpr Steps steps_of(const Instruction& i, u32 opcode) {
    constexpr u32 kNoCarry = 0, kAlways = 3, kIfSet = 2;  // The carry that goes in.
    constexpr u32 kSums = kSetsNz | kSetsC | kIsAddition, kCompares = kSetsNz | kSetsC;
    if (i.mode == kNoMode) return {kIsUnknown | 1 << kLengthAt, 0, 0, 0};
    const bool is_absolute = i.mode == kAbs || i.mode == kAbsX || i.mode == kAbsY;
    const u32 length = i.mode == kImplied ? 1 : is_absolute ? 3 : 2;
    const RegisterByte index = i.mode == kZeroX || i.mode == kAbsX || i.mode == kIndX   ? kByteX
                               : i.mode == kZeroY || i.mode == kAbsY || i.mode == kIndY ? kByteY
                                                                                        : kByteNone;
    Steps s{};
    s.what = i.cycles | length << kLengthAt;
    if (i.access & kReads) s.what |= kDoesRead;
    if (i.access & kWrites) s.what |= kDoesWrite;
    if (i.access & kCrosses) s.what |= kMayCross;
    if (i.mode == kIndX || i.mode == kIndY) s.what |= kIsIndirect;
    if (i.mode == kIndX) s.what |= kIsIndirectX;
    s.chosen = (kTake | index) | (kTake | kByteA) << 16;
    s.kept = kKeepAll | (kTake | (i.access ? u32{kByteOther} : length - 1)) << 16;
    s.masks = is_absolute ? 0xff000000 : 0;
    switch (i.operation) {
      case kLda: logic(s, 0, 0, 0xff); break;
      case kLdx: logic(s, 0, 0, 0xff, kByteX); break;
      case kLdy: logic(s, 0, 0, 0xff, kByteY); break;
      case kOra: logic(s, 0xff, 0xff, 0xff); break;
      case kAnd: logic(s, 0xff, 0, 0); break;
      case kEor: logic(s, 0, 0xff, 0xff); break;
      case kSta: transfer(s, kByteA, kKeepAll, false); break;
      case kStx: transfer(s, kByteX, kKeepAll, false); break;
      case kSty: transfer(s, kByteY, kKeepAll, false); break;
      case kAdc: sum(s, kByteA, 0xff, 0, kIfSet, kSums, into(kByteA)); break;
      case kSbc: sum(s, kByteA, 0xff, 0xff, kIfSet, kSums, into(kByteA)); break;
      case kCmp: sum(s, kByteA, 0xff, 0xff, kAlways, kCompares, kKeepAll); break;
      case kCpx: sum(s, kByteX, 0xff, 0xff, kAlways, kCompares, kKeepAll); break;
      case kCpy: sum(s, kByteY, 0xff, 0xff, kAlways, kCompares, kKeepAll); break;
      case kAsl: shift(s, kShiftsLeft, false, true); break;
      case kRol: shift(s, kShiftsLeft, true, true); break;
      case kLsr: shift(s, kShiftsRight, false, true); break;
      case kRor: shift(s, kShiftsRight, true, true); break;
      case kAslA: shift(s, kShiftsLeft, false, false); break;
      case kRolA: shift(s, kShiftsLeft, true, false); break;
      case kLsrA: shift(s, kShiftsRight, false, false); break;
      case kRorA: shift(s, kShiftsRight, true, false); break;
      case kDec: sum(s, kByteOther, 0, 0xff, kNoCarry, kSetsNz, kKeepAll); break;
      case kInc: sum(s, kByteOther, 0, 0, kAlways, kSetsNz, kKeepAll); break;
      case kDex: sum(s, kByteX, 0, 0xff, kNoCarry, kSetsNz, into(kByteX)); break;
      case kInx: sum(s, kByteX, 0, 0, kAlways, kSetsNz, into(kByteX)); break;
      case kDey: sum(s, kByteY, 0, 0xff, kNoCarry, kSetsNz, into(kByteY)); break;
      case kIny: sum(s, kByteY, 0, 0, kAlways, kSetsNz, into(kByteY)); break;
      case kTax: transfer(s, kByteA, into(kByteX)); break;
      case kTay: transfer(s, kByteA, into(kByteY)); break;
      case kTxa: transfer(s, kByteX, into(kByteA)); break;
      case kTya: transfer(s, kByteY, into(kByteA)); break;
      case kTsx: transfer(s, kByteSp, into(kByteX)); break;
      case kTxs: transfer(s, kByteX, into(kByteSp), false); break;
      case kClc: sum(s, kByteNone, 0, 0, kNoCarry, kSetsC, kKeepAll); break;
      case kSec: sum(s, kByteNone, 0, 0xff, kAlways, kSetsC, kKeepAll); break;
      case kBit: case kPha: case kPla: case kPhp: case kPlp: case kJsr: case kRts: case kRti: case kBrk:
      case kJmp: case kJmpIndirect: case kCld: case kSed:
        s.what |= kIsOdd;
        break;
      case kBranch: branch(s, opcode); break;
      default: break;
    }
    return s;
  }

  constexpr StepsTable() : of{} {
    const InstructionTable table;
    for (u32 opcode = 0; opcode < 256; ++opcode) of[opcode] = steps_of(table.of[opcode], opcode);
  }
};
RLB_CONST StepsTable kSteps{};

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
constexpr s32 kMostAlone = 32;  // or where there are none, after which the log may be full.

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
  u32 pc, axys, nz, c, v, latch;
  u32 waits;   // For a replay of the log, to read collisions.
  u32 banks;   // See `packed_banks`.
  u32 stops;   // What `Step` is not executed.
  u32 status;  // Those of the flags that do not change here.

  RLB_HOT static const u32* program() { return near_memory().program; }
  RLB_HOT static u32 word_in(u32 offset) {
    return words_at(program()[offset / 4], program()[offset / 4 + 1], offset % 4);
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
  RLB_HOT static Steps steps_of(u32 word) { return near_memory().steps.of[word & 0xff]; }

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
    const bool is_set = (nz | c << 9 | v << 10) & s.masks;
    return ((s.what & kIsBranch) != 0) & (is_set == ((s.what & kBranchesIfSet) != 0));
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
    return ((nz >> 7 | nz >> 8) & 1) << 7 | v << 6 | status | static_cast<u32>((nz & 0xff) == 0) << 1 | c;
  }

  RLB_HOT void set_status(u32 p) {
    status = 0x30 | (p & 0x0c);
    stops = kIsUnknown | kIsOdd | (p & 8 ? u32{kIsAddition} : 0);
  }
  RLB_HOT void set_flags(u32 p) {
    nz = (p & 0x80) << 1 | (p & 2 ? 0 : 1);
    v = p >> 6 & 1;
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
    const u32 next = pc + (s.what >> kLengthAt & 3);
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
        v = value >> 6 & 1;
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

  // Reads, with what was on the bus before; false if that does more.
  RLB_HOT bool read(u32 address, s32 now, u32 noise, u32& value) {
    if ((address & 0x1280) == 0x80) {
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
      const u32 what = s.what, byte = word >> 8 & 0xff, mask = (s.masks >> 24) << 8 | 0xff;

      // What comes next is read while this is executed.
      const u32 after = pc + (what >> kLengthAt & 3), target = after + (byte ^ 0x80) - 0x80;
      const bool branches = is_taken(s);
      const u32 next_pc = branches ? target : after, next_at = place_of(next_pc);
      const s32 to_branch = branches ? 1 + static_cast<s32>((target ^ after) >> 8 & 1) : 0;
      const u32 next_low = program()[next_at / 4], next_high = program()[next_at / 4 + 1];

      // --- Operand. ---
      u32 index = permute(axys, 0, s.chosen), low = byte, noise = s.masks >> 24 ? word >> 16 & 0xff : byte;
      u32 address = word >> 8 & mask;
      if (what & kIsIndirect) {
        const u32 at = what & kIsIndirectX ? (byte + index) & 0xff : byte;
        if (at < 0x80 || at == 0xff) return false;
        low = ram[at & 0x7f];
        noise = ram[(at + 1) & 0x7f];
        address = low | noise << 8;
        if (what & kIsIndirectX) index = 0;
      }
      address = (address + index) & (what & kIsIndirect ? 0xffff : mask);
      const u32 crossed = what & kMayCross ? (low + index) >> 8 : 0;
      const s32 now = cycles + static_cast<s32>((what & kCycles) + crossed) + to_branch;
      const bool is_ram = (address & 0x1280) == 0x80;
      u8& cell = ram[address & 0x7f];
      u32 value = what & kDoesRead ? cell : byte;
      if (what & (kDoesRead | kDoesWrite) && !is_ram) {
        if (what & kDoesRead && (what & kDoesWrite || !read(address, now, noise, value))) return false;
        if (what & kDoesWrite && !is_logged(address, now) && !can_write(address, now)) return false;
      }
      const u32 next_word = words_at(next_low, next_high, next_at % 4);
      const Steps next = steps_of(next_word);

      // --- Operation. Nothing stands in the way any more. ---
      const u32 l = permute(axys, value, s.chosen >> 16);
      const u32 masked = ((value & s.masks) ^ s.masks >> 8) & 0xff;
      const u32 t = what & kShiftsLeft ? l : masked;
      const u32 carry = what >> (kCarryAt + c) & 1;
      const u32 sum = l + t + carry;
      const u32 logic = (l & t) ^ (value & s.masks >> 16);
      const u32 result = what & kIsSum ? sum & 0xff : what & kShiftsRight ? l >> 1 | carry << 7 : logic;
      cycles = now;
      pc = next_pc;
      c = what & kSetsC ? (what & kShiftsRight ? l & 1 : sum >> 8) : c;
      nz = what & kSetsNz ? result : nz;
      v = what & kIsAddition ? ((l ^ result) & (t ^ result)) >> 7 & 1 : v;
      axys = permute(axys, result, s.kept);
      latch = permute(word, what & kDoesWrite ? result : value, s.kept >> 16);
      if (what & kDoesWrite && is_ram) cell = static_cast<u8>(result);
      if (what & kDoesWrite && !is_ram) {
        if (is_logged(address, now)) {
          write_tia(address & 0x3f, result);
        } else {
          write_elsewhere(address, result);
        }
      }
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
