// The interpreter for GPUs: what instructions have in common exists once.
//
// All opcodes go through the same steps, so that the code is small, and the threads of a warp that
// do not execute the same instruction do the same for most of it:
//
//   operand (by mode) -> read -> operation -> write
//
// Of the documented opcodes all but BRK, RTI, PHP, PLP and JMP (...) are here; those that are not,
// and accesses of the stack that do not reach RAM, are left to `execute`.
#pragma once

#include "m6502.h"

namespace rlbatch::atari {

enum Mode : u8 { kNoMode, kImplied, kImmediate, kZero, kZeroX, kZeroY, kAbs, kAbsX, kAbsY, kIndX, kIndY, kRelative };

enum Operation : u8 {
  kNoOp, kLda, kLdx, kLdy, kSta, kStx, kSty, kOra, kAnd, kEor, kAdc, kSbc, kCmp, kCpx, kCpy, kBit,
  kAsl, kRol, kLsr, kRor, kDec, kInc, kAslA, kRolA, kLsrA, kRorA, kTax, kTay, kTxa, kTya, kTsx, kTxs,
  kInx, kDex, kIny, kDey, kClc, kSec, kCli, kSei, kClv, kCld, kSed, kBranch, kJmp, kJsr, kRts, kPha,
  kPla,
};

enum Access : u8 { kNothing = 0, kReads = 1, kWrites = 2, kModifies = 3, kCrosses = 4 };

struct Instruction {
  u8 mode, operation, cycles, access;
};

// The documented instructions. Source: MCS6500 programming manual (MOS Technology, 1976), appendix B.
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
    constexpr u8 kOpcodes[] = {0x0a, 0x2a, 0x4a, 0x6a, 0xaa, 0xa8, 0x8a, 0x98, 0xba, 0x9a, 0xe8, 0xca,
                               0xc8, 0x88, 0x18, 0x38, 0x58, 0x78, 0xb8, 0xd8, 0xf8, 0xea};
    constexpr Operation kOperations[] = {kAslA, kRolA, kLsrA, kRorA, kTax, kTay, kTxa, kTya,
                                         kTsx,  kTxs,  kInx,  kDex,  kIny, kDey, kClc, kSec,
                                         kCli,  kSei,  kClv,  kCld,  kSed, kNoOp};
    for (u32 k = 0; k < sizeof(kOpcodes); ++k) of[kOpcodes[k]] = {kImplied, kOperations[k], 2, kNothing};
    of[0x4c] = {kAbs, kJmp, 3, kNothing}, of[0x20] = {kAbs, kJsr, 6, kNothing};
    of[0x60] = {kImplied, kRts, 6, kNothing};
    of[0x48] = {kImplied, kPha, 3, kNothing}, of[0x68] = {kImplied, kPla, 4, kNothing};
  }
};
RLB_CONST InstructionTable kInstructions{};

// Whether the stack, from a byte before its pointer to two behind it, is RAM.
RLB_HOT bool is_stack_in_ram(u32 sp) { return sp >= 0x81 && sp < 0xfe; }

RLB_HOT u32 rotated_left(Registers& r, u32 m, u32 carry) {
  r.c = m >> 7;
  return r.nz = (m << 1 | carry) & 0xff;
}

RLB_HOT u32 rotated_right(Registers& r, u32 m, u32 carry) {
  r.c = m & 1;
  return r.nz = m >> 1 | carry << 7;
}

// Executes an instruction of plain ROM; returns false, with nothing done, if it is none of these.
template <Cart kKind>
RLB_HOT bool execute_uniformly(Bus<kKind>& bus, Registers& r, u32 word) {
  const u32 opcode = word & 0xff, byte = word >> 8 & 0xff, address16 = word >> 8 & 0xffff;
  const Instruction what = kInstructions.of[opcode];
  if (what.mode == kNoMode) return false;
  u8* const ram = bus.state.riot.ram;
  if (what.operation >= kJsr) {
    if (!is_stack_in_ram(r.sp)) return false;
    if (what.operation == kRts) {
      const u32 to = ram[(r.sp + 1) & 0x7f] | ram[(r.sp + 2) & 0x7f] << 8;
      if (!is_plain_code<kKind>(to)) return false;
    }
  }
  bus.cycles += what.cycles;
  bus.latch = opcode;
  r.pc += 1;

  // --- The operand. ---
  u32 address = byte, value = byte;
  if (what.mode >= kImmediate) {
    bus.latch = byte;
    r.pc += 1;
  }
  switch (what.mode) {
    case kZeroX: address = (byte + r.x) & 0xff; break;
    case kZeroY: address = (byte + r.y) & 0xff; break;
    case kAbs: case kAbsX: case kAbsY: {
      bus.latch = address16 >> 8;
      r.pc += 1;
      const u32 by = what.mode == kAbsX ? r.x : what.mode == kAbsY ? r.y : 0;
      if (what.access & kCrosses) bus.cycles += static_cast<s32>((byte + by) >> 8);
      address = (address16 + by) & 0xffff;
      break;
    }
    case kIndX: case kIndY: {
      const u32 at = what.mode == kIndX ? (byte + r.x) & 0xff : byte;
      const u32 low = bus.read(at);
      address = low | bus.read(at == 0xff ? 0x100 : at + 1) << 8;
      if (what.mode == kIndX) break;
      if (what.access & kCrosses) bus.cycles += static_cast<s32>((low + r.y) >> 8);
      address = (address + r.y) & 0xffff;
      break;
    }
    default: break;
  }
  if (what.access & kReads) value = bus.read(address);

  // --- The operation. ---
  switch (what.operation) {
    case kLda: r.nz = r.a = value; break;
    case kLdx: r.nz = r.x = value; break;
    case kLdy: r.nz = r.y = value; break;
    case kSta: value = r.a; break;
    case kStx: value = r.x; break;
    case kSty: value = r.y; break;
    case kOra: r.nz = r.a |= value; break;
    case kAnd: r.nz = r.a &= value; break;
    case kEor: r.nz = r.a ^= value; break;
    case kAdc: add(r, value); break;
    case kSbc: subtract(r, value); break;
    case kCmp: compare(r, r.a, value); break;
    case kCpx: compare(r, r.x, value); break;
    case kCpy: compare(r, r.y, value); break;
    case kBit:
      r.nz = (r.a & value) | (value & 0x80) << 1;
      r.v = value >> 6 & 1;
      break;
    case kAsl: case kRol: value = rotated_left(r, value, what.operation == kRol ? r.c : 0); break;
    case kLsr: case kRor: value = rotated_right(r, value, what.operation == kRor ? r.c : 0); break;
    case kDec: r.nz = value = (value - 1) & 0xff; break;
    case kInc: r.nz = value = (value + 1) & 0xff; break;
    case kAslA: case kRolA: r.a = rotated_left(r, r.a, what.operation == kRolA ? r.c : 0); break;
    case kLsrA: case kRorA: r.a = rotated_right(r, r.a, what.operation == kRorA ? r.c : 0); break;
    case kTax: r.nz = r.x = r.a; break;
    case kTay: r.nz = r.y = r.a; break;
    case kTxa: r.nz = r.a = r.x; break;
    case kTya: r.nz = r.a = r.y; break;
    case kTsx: r.nz = r.x = r.sp; break;
    case kTxs: r.sp = r.x; break;
    case kInx: r.nz = r.x = (r.x + 1) & 0xff; break;
    case kDex: r.nz = r.x = (r.x - 1) & 0xff; break;
    case kIny: r.nz = r.y = (r.y + 1) & 0xff; break;
    case kDey: r.nz = r.y = (r.y - 1) & 0xff; break;
    case kClc: r.c = 0; break;
    case kSec: r.c = 1; break;
    case kCli: r.i = 0; break;
    case kSei: r.i = 1; break;
    case kClv: r.v = 0; break;
    case kCld: r.d = 0; break;
    case kSed: r.d = 1; break;
    case kBranch: {
      // Bits 7 and 6 say which flag, bit 5 what it must be.
      const u32 which = opcode >> 6;
      const u32 flag = which == 0   ? (r.nz & 0x180) != 0
                       : which == 1 ? r.v
                       : which == 2 ? r.c
                                    : static_cast<u32>((r.nz & 0xff) == 0);
      if (flag != (opcode >> 5 & 1)) break;
      const u32 target = (r.pc + (byte ^ 0x80) - 0x80) & 0xffff;
      const s32 extra = (target ^ r.pc) & 0xff00 ? 2 : 1;
      bus.cycles += extra;
      r.pc = target;
      const bool may_wait = opcode == 0xd0 || opcode == 0x10;  // BNE, BPL
      if (may_wait && byte == 0xfb) bus.skip_wait(target, 2 + extra, opcode == 0x10);
      break;
    }
    case kJmp: r.pc = address; break;
    case kJsr: {
      const u32 back = r.pc - 1;
      ram[r.sp & 0x7f] = static_cast<u8>(back >> 8);
      ram[(r.sp - 1) & 0x7f] = static_cast<u8>(back);
      r.sp -= 2;
      r.pc = address;
      break;
    }
    case kRts: {
      const u32 to = ram[(r.sp + 1) & 0x7f] | ram[(r.sp + 2) & 0x7f] << 8;
      r.sp += 2;
      bus.read(to);
      r.pc = (to + 1) & 0xffff;
      break;
    }
    case kPha:
      bus.latch = ram[r.sp & 0x7f] = static_cast<u8>(r.a);
      r.sp -= 1;
      break;
    case kPla:
      r.sp += 1;
      bus.latch = r.nz = r.a = ram[r.sp & 0x7f];
      break;
    default: break;
  }
  if (what.access & kWrites) bus.write(address, value);
  return true;
}

}  // namespace rlbatch::atari
