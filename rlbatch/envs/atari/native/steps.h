// What an instruction is to the interpreter for GPUs (`uniform.h`): a row of a table.
#pragma once

#include "platform.h"

namespace rlbatch::atari {

enum AddressMode : u8 {
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
  u32 masks;    // 0, none, 2 and 1, of 8 bits each; or one of flags.
};

enum Step : u32 {
  kCycles = 15, kDoesRead = 1 << 6, kDoesWrite = 1 << 7,
  kMayCross = 1 << 8,  // As what is carried into the upper byte of an address.
  kIsIndirect = 1 << 9, kIsIndirectX = 1 << 10, kShiftsRight = 1 << 11, kShiftsLeft = 1 << 12,
  kIsSum = 1 << 13, kSetsNz = 1 << 14, kIsAddition = 1 << 16,
  kIsOdd = 1 << 17,      // Executed by `execute_odd`: BIT, BRK, CLD, SED, jumps, and most with a stack.
  kIsUnknown = 1 << 18,  // Left to `execute_anywhere`.
  kBranchesIfNot = 1 << 19, kBranchesIfSet = 1 << 20, kIsBranch = kBranchesIfNot | kBranchesIfSet,
  kSetsC = 1 << 21,  // Not 15, which a compiler takes two steps to ask for, as a sign.
};
constexpr u32 kCarryAt = 24;  // The carry that goes in, by the one that there is.
constexpr u32 kLengthAt = 30;

constexpr u32 kTake = 0x7770;  // And the number of a byte; the others become 0.
constexpr u32 kKeepAll = 0x3210;

// Signs of bytes of `chosen`, in nibbles that take what is 0 with or without them. `kAddressMask` makes of
// them which bits an operand's address has.
constexpr u32 kAbsoluteSign = 1 << 15, kAlwaysSign = 1u << 31, kAddressMask = 0x449b;
enum RegisterByte : u32 { kByteA, kByteX, kByteY, kByteSp, kByteOther, kByteNone };

// The flags that a branch may ask for, in a word of their own; see `Interpreter::is_taken`.
constexpr u32 kFlagsN = 0x180, kFlagsNotZ = 0xff, kFlagC = 1 << 9, kFlagV = 1 << 10;

struct StepsTable {
  Steps of[256];

  static constexpr u32 into(RegisterByte r) { return (kKeepAll & ~(15u << 4 * r)) | 4u << 4 * r; }

  static constexpr void choose(Steps& s, RegisterByte left) {
    s.chosen = (s.chosen & ~0xf0000u) | left << 16;
  }

  static constexpr void keep(Steps& s, u32 registers) { s.kept = (s.kept & ~0xffffu) | registers; }

  static constexpr void set_masks(Steps& s, u32 a, u32 b, u32 c) {
    s.masks = a | b << 24 | c << 16;
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
    s.what |= (opcode >> 6 == 3) == if_set ? kBranchesIfNot : kBranchesIfSet;
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
    s.chosen = (kTake | index) | (kTake | kByteA) << 16 | kAlwaysSign;
    if (is_absolute) s.chosen |= kAbsoluteSign;
    s.kept = kKeepAll | (kTake | (i.access ? u32{kByteOther} : length - 1)) << 16;
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

}  // namespace rlbatch::atari
