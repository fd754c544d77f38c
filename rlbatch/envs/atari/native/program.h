// The program of one cartridge as code for a GPU, for a thread that resets alone and all others wait for.
//
// On a GPU a branch takes as long as ten additions, and an interpreter is made of branches. Where the
// program is known when the kernels are compiled, `RLB_PROGRAM` is its instructions, as `program.py` finds
// them, for the macros below: each becomes a few steps of its own, with an address that is known. What
// does not go without more ado is left to the interpreter: the TIA and the ports when they are read, VSYNC,
// VBLANK and timers, banks, decimal sums.
#pragma once

#include "uniform.h"

namespace rlbatch::atari {

#if defined(RLB_PROGRAM)

// A cartridge of 2 KiB is read as one of 4, where it is twice.
constexpr Cart kProgramKind = RLB_CART == static_cast<int>(Cart::k2K) ? Cart::k4K : static_cast<Cart>(RLB_CART);

RLB_CONST InstructionTable kInstructions{};

// The registers of a thread, each in a variable, while its program runs.
template <Cart kKind>
struct ProgramRunner {
  using Cpu = Interpreter<kKind, true>;
  Cpu cpu;  // A copy, which is nearer.
  u32 a, x, y, sp;

  RLB_HOT explicit ProgramRunner(const Cpu& of)
      : cpu(of), a(of.axys & 0xff), x(of.axys >> 8 & 0xff), y(of.axys >> 16 & 0xff), sp(of.axys >> 24) {}

  // Stops before an instruction, with so many of its block to come.
  RLB_HOT void leave(Cpu& to, u32 pc, s32 n_to_come) {
    cpu.left += n_to_come;
    cpu.pc = pc;
    cpu.axys = a | x << 8 | y << 16 | sp << 24;
    to = cpu;
  }

  RLB_HOT bool read(u32 address, u32& value) const {
    if ((address & 0x1280) == 0x80) {
      value = cpu.ram[address & 0x7f];
      return true;
    }
    if (!is_plain_data<kKind>(address)) return false;
    value = Cpu::rom_byte(offset_in<kKind>(cpu.banks, address));
    return true;
  }

  RLB_HOT bool write(u32 address, u32 value, s32 now) {
    if ((address & 0x1280) == 0x80) {
      cpu.ram[address & 0x7f] = static_cast<u8>(value);
      cpu.cycles = now;
      return true;
    }
    if (!cpu.is_logged(address, now)) return false;
    cpu.cycles = now;
    cpu.write_tia(address & 0x3f, value);
    return true;
  }

  RLB_HOT u32 set(u32& to, u32 value) { return cpu.nz = to = value & 0xff; }

  RLB_HOT u32 sum(u32 left, u32 right, u32 carry) {
    const u32 all = left + right + carry;
    cpu.c = all >> 8;
    return cpu.nz = all & 0xff;
  }

  RLB_HOT void add(u32 right) {
    const u32 before = a;
    a = sum(before, right, cpu.c);
    cpu.v = ((before ^ a) & (right ^ a)) << 3 & kFlagV;
  }

  RLB_HOT u32 shifted(Operation operation, u32 value) {
    const bool is_left = operation == kAsl || operation == kRol || operation == kAslA || operation == kRolA;
    const bool takes_carry = operation == kRol || operation == kRor || operation == kRolA || operation == kRorA;
    const u32 carry = takes_carry ? cpu.c : 0;
    cpu.c = is_left ? value >> 7 : value & 1;
    return cpu.nz = is_left ? (value << 1 | carry) & 0xff : value >> 1 | carry << 7;
  }

  // Where an instruction reads or writes; false if that is not known.
  template <u8 kMode>
  RLB_HOT bool address_of(u32 operand, u32& address, u32& crossed) const {
    crossed = 0;
    if constexpr (kMode == kZeroX || kMode == kZeroY) {
      address = (operand + (kMode == kZeroX ? x : y)) & 0xff;
    } else if constexpr (kMode == kAbsX || kMode == kAbsY) {
      const u32 index = kMode == kAbsX ? x : y;
      address = (operand + index) & 0xffff;
      crossed = ((operand & 0xff) + index) >> 8;
    } else if constexpr (kMode == kIndY) {
      if (operand < 0x80 || operand == 0xff) return false;
      const u32 low = cpu.ram[operand & 0x7f], high = cpu.ram[(operand + 1) & 0x7f];
      address = ((low | high << 8) + y) & 0xffff;
      crossed = (low + y) >> 8;
    } else {
      address = operand;
      return kMode == kZero || kMode == kAbs;
    }
    return true;
  }

  RLB_HOT bool push(u32 value) {
    if (sp < 0x80) return false;
    cpu.ram[sp & 0x7f] = static_cast<u8>(value);
    cpu.latch = value;
    sp = (sp - 1) & 0xff;
    return true;
  }

  // Does what an instruction does with a value that it has read, or that follows it; false for others.
  template <u8 kOperation>
  RLB_HOT bool use(u32 value) {
    switch (kOperation) {
      case kLda: set(a, value); break;
      case kLdx: set(x, value); break;
      case kLdy: set(y, value); break;
      case kOra: set(a, a | value); break;
      case kAnd: set(a, a & value); break;
      case kEor: set(a, a ^ value); break;
      case kAdc: add(value); break;
      case kSbc: add(value ^ 0xff); break;
      case kCmp: sum(a, value ^ 0xff, 1); break;
      case kCpx: sum(x, value ^ 0xff, 1); break;
      case kCpy: sum(y, value ^ 0xff, 1); break;
      case kBit:
        cpu.nz = (a & value) | (value & 0x80) << 1;
        cpu.v = value << 4 & kFlagV;
        break;
      default: return false;
    }
    return true;
  }

  // The instructions that reach no memory, and PHA and PLA.
  template <u8 kOperation>
  RLB_HOT bool step_inside() {
    switch (kOperation) {
      case kNoOp: break;
      case kTax: set(x, a); break;
      case kTay: set(y, a); break;
      case kTxa: set(a, x); break;
      case kTya: set(a, y); break;
      case kTsx: set(x, sp); break;
      case kTxs: sp = x; break;
      case kInx: set(x, x + 1); break;
      case kDex: set(x, x - 1); break;
      case kIny: set(y, y + 1); break;
      case kDey: set(y, y - 1); break;
      case kClc: cpu.c = 0; break;
      case kSec: cpu.c = 1; break;
      case kAslA: case kRolA: case kLsrA: case kRorA:
        a = shifted(static_cast<Operation>(kOperation), a);
        break;
      case kPha: return push(a);
      case kPla:
        if (sp < 0x80 || sp == 0xff) return false;
        sp += 1;
        cpu.latch = set(a, cpu.ram[sp & 0x7f]);
        break;
      default: return false;
    }
    return true;
  }

  // Executes an instruction that is no jump; returns false where it is left to others.
  template <u32 kOpcode>
  RLB_HOT bool step(u32 operand) {
    constexpr Instruction kIs = kInstructions.of[kOpcode];
    constexpr u8 kWith = kIs.access & ~kCrosses;
    const s32 now = cpu.cycles + kIs.cycles;
    if constexpr (kIs.mode == kImplied) {
      cpu.latch = kOpcode;
      if (!step_inside<kIs.operation>()) return false;
      cpu.cycles = now;
      return true;
    } else if constexpr (kIs.mode == kImmediate) {
      if (!use<kIs.operation>(operand)) return false;
      cpu.latch = operand;
      cpu.cycles = now;
      return true;
    } else {
      u32 address = 0, crossed = 0, value = 0;
      if (!address_of<kIs.mode>(operand, address, crossed)) return false;
      if constexpr (kWith == kWrites) {
        value = kIs.operation == kSta ? a : kIs.operation == kStx ? x : y;
        if (!write(address, value, now)) return false;
      } else {
        if (!read(address, value)) return false;
        if constexpr (kWith == kModifies) {
          if ((address & 0x1280) != 0x80) return false;
          if constexpr (kIs.operation == kInc || kIs.operation == kDec) {
            set(value, kIs.operation == kInc ? value + 1 : value - 1);
          } else {
            value = shifted(static_cast<Operation>(kIs.operation), value);
          }
          cpu.ram[address & 0x7f] = static_cast<u8>(value);
        } else if (!use<kIs.operation>(value)) {
          return false;
        }
        cpu.cycles = now + (kIs.access & kCrosses ? static_cast<s32>(crossed) : 0);
      }
      cpu.latch = value;
      return true;
    }
  }

  // A branch; returns whether it is taken.
  template <u32 kOpcode>
  RLB_HOT bool branch(u32 operand, s32 extra) {
    constexpr bool kIfSet = kOpcode >> 5 & 1;
    constexpr u32 kFlag = kOpcode >> 6;
    const bool is_set = kFlag == 0   ? (cpu.nz & 0x180) != 0
                        : kFlag == 1 ? cpu.v != 0
                        : kFlag == 2 ? cpu.c != 0
                                     : (cpu.nz & 0xff) == 0;
    cpu.latch = operand;
    cpu.cycles += is_set == kIfSet ? 2 + extra : 2;
    return is_set == kIfSet;
  }

  RLB_HOT void jump(u32 target) {
    cpu.latch = target >> 8;
    cpu.cycles += 3;
  }

  RLB_HOT bool call(u32 next, u32 target) {
    if (sp < 0x81) return false;
    push((next - 1) >> 8);
    push((next - 1) & 0xff);
    cpu.latch = target >> 8;
    cpu.cycles += 6;
    return true;
  }

  RLB_HOT bool come_back(u32& pc) {
    if (sp < 0x80 || sp > 0xfd) return false;
    const u32 back = cpu.ram[(sp + 1) & 0x7f] | cpu.ram[(sp + 2) & 0x7f] << 8;
    if (!is_plain_code<kKind>(back)) return false;
    cpu.latch = Cpu::rom_byte(offset_in<kKind>(cpu.banks, back));
    sp += 2;
    cpu.cycles += 6;
    pc = (back + 1) & 0xffff;
    return true;
  }
};

// The statements of a program. Where in the ROM a block is names it; all numbers are hexadecimal, but for
// those of instructions to come in a block.
#define RLB_ENTRY(at, address)                \
  case 0x##at:                                \
    if (pc != 0x##address) goto away;         \
    goto at_##at;
#define RLB_BLOCK(at, address, n)             \
  at_##at : pc = 0x##address, to_come = 0;    \
  if (m.cpu.left < n) goto away;              \
  m.cpu.left -= n;
#define RLB_LEAVE(address, n) { pc = 0x##address, to_come = n; goto away; }
#define RLB_STEP(address, opcode, operand, n) \
  if (!m.template step<0x##opcode>(0x##operand)) RLB_LEAVE(address, n)
#define RLB_BRANCH(opcode, operand, extra) if (m.template branch<0x##opcode>(0x##operand, extra))
#define RLB_GOTO(at) goto at_##at;
#define RLB_GO(address) { pc = 0x##address, to_come = 0; goto elsewhere; }
#define RLB_JUMP(target) m.jump(0x##target);
#define RLB_CALL(address, following, target, n) \
  if (!m.call(0x##following, 0x##target)) RLB_LEAVE(address, n)
#define RLB_RETURN(address, n)                  \
  if (!m.come_back(pc)) RLB_LEAVE(address, n)   \
  goto enter;

// A part of the ROM; as one function the whole takes minutes to compile. Returns whether another part goes on.
#define RLB_PART(number, entries, blocks)                                        \
  template <Cart kKind>                                                          \
  RLB_COLD bool run_part_##number(Interpreter<kKind, true>& cpu) {               \
    ProgramRunner<kKind> m(cpu);                                                 \
    u32 pc = cpu.pc;                                                             \
    s32 to_come = 0;                                                             \
  enter:                                                                         \
    to_come = 0;                                                                 \
    switch (offset_in<kKind>(m.cpu.banks, pc)) {                                 \
      entries                                                                    \
      default: if (offset_in<kKind>(m.cpu.banks, pc) / kPartBytes == number) goto away; \
    }                                                                            \
  elsewhere:                                                                     \
    m.leave(cpu, pc, 0);                                                         \
    return true;                                                                 \
    blocks                                                                       \
  away:                                                                          \
    m.leave(cpu, pc, to_come);                                                   \
    return false;                                                                \
  }
constexpr u32 kPartBytes = 512;  // `_PART` in `program.py`.
RLB_PROGRAM

// Runs as far as the program is known and goes without more ado.
template <Cart kKind>
RLB_HOT void run_program(Interpreter<kKind, true>& cpu) {
  bool goes_on = !(cpu.status & 8);  // Sums are not decimal.
  while (goes_on && is_plain_code<kKind>(cpu.pc)) {
    switch (offset_in<kKind>(cpu.banks, cpu.pc) / kPartBytes) {
#define RLB_CASE(number) case number: goes_on = run_part_##number<kKind>(cpu); break;
      RLB_PARTS
      default: goes_on = false;
    }
  }
}

#endif

}  // namespace rlbatch::atari
