// The CPU, a 6507.
//
// All registers live in local variables while the CPU runs. Opcode and operands are read as one
// word where the program is plain ROM; elsewhere (in RAM, at hot-spots, across the end of a bank) an
// instruction goes byte by byte, through the same code.
#pragma once

#include "bus.h"
#include "platform.h"
#include "state.h"

namespace rlbatch::atari {

struct Registers {
  u32 pc, a, x, y, sp;
  u32 nz;  // Zero flag: the low byte is 0. Negative flag: bit 7 or 8.
  u32 c, v, d, i;

  RLB_HOT u32 flags() const {
    return ((nz >> 7 | nz >> 8) & 1) << 7 | v << 6 | 0x30 | d << 3 | i << 2 |
           static_cast<u32>((nz & 0xff) == 0) << 1 | c;
  }
  RLB_HOT void set_flags(u32 p) {
    nz = (p & 0x80) << 1 | (p & 2 ? 0 : 1);
    v = p >> 6 & 1;
    d = p >> 3 & 1;
    i = p >> 2 & 1;
    c = p & 1;
  }
};

RLB_FN s32 from_bcd(u32 value) { return static_cast<s32>(10 * (value >> 4) + (value & 15)); }
RLB_FN u32 to_bcd(u32 value) { return value / 10 << 4 | value % 10; }

// The accumulator, and the carry in bit 8.
RLB_GPU_CALL u32 decimal_sum(u32 a, u32 m, u32 carry) {
  const u32 sum = static_cast<u32>(from_bcd(a) + from_bcd(m)) + carry;
  return to_bcd((sum & 0xff) % 100) | static_cast<u32>(sum > 99) << 8;
}

RLB_GPU_CALL u32 decimal_difference(u32 a, u32 m, u32 borrow) {
  s32 difference = from_bcd(a) - from_bcd(m) - static_cast<s32>(borrow);
  if (difference < 0) difference += 100;
  if (difference >= 0) return to_bcd(static_cast<u32>(difference) % 100);
  const u32 wrapped_value = static_cast<u32>(256 + difference);  // Digits above 9.
  return (10 * (wrapped_value >> 4) + (wrapped_value & 15)) & 0xff;
}

RLB_HOT void add(Registers& r, u32 m) {
  const u32 a = r.a, sum = RLB_LIKELY(!r.d) ? a + m + r.c : decimal_sum(a, m, r.c);
  r.c = sum >> 8;
  r.a = sum & 0xff;
  r.v = ((a ^ r.a) & (m ^ r.a) & 0x80) >> 7;
  r.nz = r.a;
}

RLB_HOT void subtract(Registers& r, u32 m) {
  const u32 a = r.a, borrow = 1 - r.c;
  if (RLB_LIKELY(!r.d)) {
    const u32 sum = a + (m ^ 0xff) + r.c;
    r.c = sum >> 8;
    r.a = sum & 0xff;
    r.v = ((a ^ r.a) & (a ^ m) & 0x80) >> 7;
  } else {
    r.a = decimal_difference(a, m, borrow);
    r.c = a >= m + borrow;
    r.v = ((a ^ r.a) & (r.a ^ m) & 0x80) >> 7;
  }
  r.nz = r.a;
}

RLB_HOT void compare(Registers& r, u32 with, u32 m) {
  r.c = with >= m;
  r.nz = (with - m) & 0xff;
}

// AND, rotate right, with the decimal fix-ups of the undocumented opcode.
RLB_HOT void and_rotate(Registers& r, u32 m) {
  const u32 value = r.a & m;
  r.a = value >> 1 | r.c << 7;
  if (!r.d) {
    r.nz = r.a;
    r.c = r.a >> 6 & 1;
    r.v = (r.a >> 6 ^ r.a >> 5) & 1;
    return;
  }
  r.nz = r.a | r.c << 8;
  r.v = (value ^ r.a) >> 6 & 1;
  if ((value & 15) + (value & 1) > 5) r.a = (r.a & 0xf0) | ((r.a + 6) & 0x0f);
  if ((value & 0xf0) + (value & 0x10) > 0x50) {
    r.a = (r.a + 0x60) & 0xff;
    r.c = 1;
  } else {
    r.c = 0;
  }
}

// Executes one instruction. `word` holds the opcode and, where the program is plain ROM, what follows.
template <bool kPlain, class BusT>
RLB_HOT void execute(BusT& bus, Registers& r, u32 word) {
  const u32 opcode = word & 0xff;
  u32 address = 0, value = 0;
  bus.latch = opcode;

  auto low = [&]() RLB_HOT_LAMBDA -> u32 {  // The next operand byte.
    if constexpr (kPlain) {
      bus.latch = word >> 8 & 0xff;
      r.pc += 1;
    } else {
      bus.read(r.pc);
      r.pc = (r.pc + 1) & 0xffff;
    }
    return bus.latch;
  };
  auto high = [&]() RLB_HOT_LAMBDA -> u32 {  // The one after it.
    if constexpr (kPlain) {
      bus.latch = word >> 16 & 0xff;
      r.pc += 1;
    } else {
      bus.read(r.pc);
      r.pc = (r.pc + 1) & 0xffff;
    }
    return bus.latch;
  };
  auto absolute = [&]() RLB_HOT_LAMBDA {
    address = low();
    address |= high() << 8;
  };
  auto indexed = [&](u32 by) RLB_HOT_LAMBDA {  // Without the cycle that crossing a page costs a read.
    absolute();
    address = (address + by) & 0xffff;
  };
  auto indexed_read = [&](u32 by) RLB_HOT_LAMBDA {
    absolute();
    bus.cycles += static_cast<s32>(((address & 0xff) + by) >> 8);
    address = (address + by) & 0xffff;
    value = bus.read(address);
  };
  auto zero_page = [&](u32 by) RLB_HOT_LAMBDA { address = (low() + by) & 0xff; };
  auto pointer = [&](u32 at) RLB_HOT_LAMBDA {  // The second byte is at 0x100 after 0xff.
    address = bus.read_zero_page(at);
    address |= (at == 0xff ? bus.read(0x100) : bus.read_zero_page(at + 1)) << 8;
  };
  auto x_indirect = [&]() RLB_HOT_LAMBDA { pointer((low() + r.x) & 0xff); };
  auto indirect_y = [&]() RLB_HOT_LAMBDA {
    pointer(low());
    address = (address + r.y) & 0xffff;
  };
  auto indirect_y_read = [&]() RLB_HOT_LAMBDA {
    pointer(low());
    bus.cycles += static_cast<s32>(((address & 0xff) + r.y) >> 8);
    address = (address + r.y) & 0xffff;
    value = bus.read(address);
  };
  auto immediate = [&]() RLB_HOT_LAMBDA { value = low(); };
  auto load_zero_page = [&](u32 by) RLB_HOT_LAMBDA {
    zero_page(by);
    value = bus.read_zero_page(address);
  };
  auto load_absolute = [&]() RLB_HOT_LAMBDA {
    absolute();
    value = bus.read(address);
  };
  auto push = [&](u32 byte, bool after_write = false) RLB_HOT_LAMBDA {
    bus.write_zero_page(r.sp, byte, after_write);  // 0x100 + SP decodes as SP does.
    r.sp = (r.sp - 1) & 0xff;
  };
  auto look_at_stack = [&]() RLB_HOT_LAMBDA { return bus.read_zero_page(r.sp); };
  auto pull = [&]() RLB_HOT_LAMBDA {
    r.sp = (r.sp + 1) & 0xff;
    return bus.read_zero_page(r.sp);
  };
  auto branch = [&](bool taken) RLB_HOT_LAMBDA {
    const u32 offset = low();
    if (taken) {
      const u32 target = (r.pc + (offset ^ 0x80) - 0x80) & 0xffff;
      const s32 extra = (target ^ r.pc) & 0xff00 ? 2 : 1;
      bus.cycles += extra;
      r.pc = target;
      if constexpr (kPlain) {
        const bool may_wait = opcode == 0xd0 || opcode == 0x10;  // BNE, BPL
        const bool is_bpl = opcode == 0x10;
        if (may_wait && offset == 0xfb) bus.skip_wait(target, 2 + extra, is_bpl);
      }
    }
  };
  auto shifted_left = [&](u32 m, u32 carry) RLB_HOT_LAMBDA {
    r.c = m >> 7;
    return r.nz = (m << 1 | carry) & 0xff;
  };
  auto shifted_right = [&](u32 m, u32 carry) RLB_HOT_LAMBDA {
    r.c = m & 1;
    return r.nz = m >> 1 | carry << 7;
  };

#define RLB_OP(code, n_cycles, body) \
  case code:                         \
    bus.cycles += n_cycles;          \
    body;                            \
    break;
// The eight addressing modes of the accumulator's operations, and those of the others.
#define RLB_READS(base, body)                                      \
  RLB_OP(base + 0x01, 6, { x_indirect(); value = bus.read(address); body }) \
  RLB_OP(base + 0x05, 3, { load_zero_page(0); body })              \
  RLB_OP(base + 0x09, 2, { immediate(); body })                    \
  RLB_OP(base + 0x0d, 4, { load_absolute(); body })                \
  RLB_OP(base + 0x11, 5, { indirect_y_read(); body })              \
  RLB_OP(base + 0x15, 4, { load_zero_page(r.x); body })            \
  RLB_OP(base + 0x19, 4, { indexed_read(r.y); body })              \
  RLB_OP(base + 0x1d, 4, { indexed_read(r.x); body })
#define RLB_RMW(base, body)                                                              \
  RLB_OP(base + 0x06, 5, { load_zero_page(0); body bus.write_zero_page(address, value); })   \
  RLB_OP(base + 0x16, 6, { load_zero_page(r.x); body bus.write_zero_page(address, value); }) \
  RLB_OP(base + 0x0e, 6, { load_absolute(); body bus.write(address, value); })           \
  RLB_OP(base + 0x1e, 7, { indexed(r.x); value = bus.read(address); body bus.write(address, value); })
#define RLB_BOTH(base, body)                                                              \
  RLB_OP(base + 0x07, 5, { load_zero_page(0); body bus.write_zero_page(address, value); })    \
  RLB_OP(base + 0x17, 6, { load_zero_page(r.x); body bus.write_zero_page(address, value); })  \
  RLB_OP(base + 0x0f, 6, { load_absolute(); body bus.write(address, value); })            \
  RLB_OP(base + 0x1f, 7, { indexed(r.x); value = bus.read(address); body bus.write(address, value); }) \
  RLB_OP(base + 0x1b, 7, { indexed(r.y); value = bus.read(address); body bus.write(address, value); }) \
  RLB_OP(base + 0x03, 8, { x_indirect(); value = bus.read(address); body bus.write(address, value); }) \
  RLB_OP(base + 0x13, 8, { indirect_y(); value = bus.read(address); body bus.write(address, value); })

  switch (opcode) {
    RLB_READS(0x00, r.nz = r.a |= value;)
    RLB_READS(0x20, r.nz = r.a &= value;)
    RLB_READS(0x40, r.nz = r.a ^= value;)
    RLB_READS(0x60, add(r, value);)
    RLB_READS(0xa0, r.nz = r.a = value;)
    RLB_READS(0xc0, compare(r, r.a, value);)
    RLB_READS(0xe0, subtract(r, value);)
    RLB_OP(0xeb, 2, { immediate(); subtract(r, value); })

    RLB_RMW(0x00, value = shifted_left(value, 0);)
    RLB_RMW(0x20, value = shifted_left(value, r.c);)
    RLB_RMW(0x40, value = shifted_right(value, 0);)
    RLB_RMW(0x60, value = shifted_right(value, r.c);)
    RLB_RMW(0xc0, r.nz = value = (value - 1) & 0xff;)
    RLB_RMW(0xe0, r.nz = value = (value + 1) & 0xff;)
    RLB_OP(0x0a, 2, r.a = shifted_left(r.a, 0))
    RLB_OP(0x2a, 2, r.a = shifted_left(r.a, r.c))
    RLB_OP(0x4a, 2, r.a = shifted_right(r.a, 0))
    RLB_OP(0x6a, 2, r.a = shifted_right(r.a, r.c))

    RLB_OP(0xa2, 2, r.nz = r.x = low())
    RLB_OP(0xa6, 3, { load_zero_page(0); r.nz = r.x = value; })
    RLB_OP(0xb6, 4, { load_zero_page(r.y); r.nz = r.x = value; })
    RLB_OP(0xae, 4, { load_absolute(); r.nz = r.x = value; })
    RLB_OP(0xbe, 4, { indexed_read(r.y); r.nz = r.x = value; })
    RLB_OP(0xa0, 2, r.nz = r.y = low())
    RLB_OP(0xa4, 3, { load_zero_page(0); r.nz = r.y = value; })
    RLB_OP(0xb4, 4, { load_zero_page(r.x); r.nz = r.y = value; })
    RLB_OP(0xac, 4, { load_absolute(); r.nz = r.y = value; })
    RLB_OP(0xbc, 4, { indexed_read(r.x); r.nz = r.y = value; })
    RLB_OP(0xe0, 2, compare(r, r.x, low()))
    RLB_OP(0xe4, 3, { load_zero_page(0); compare(r, r.x, value); })
    RLB_OP(0xec, 4, { load_absolute(); compare(r, r.x, value); })
    RLB_OP(0xc0, 2, compare(r, r.y, low()))
    RLB_OP(0xc4, 3, { load_zero_page(0); compare(r, r.y, value); })
    RLB_OP(0xcc, 4, { load_absolute(); compare(r, r.y, value); })
    RLB_OP(0x24, 3, { load_zero_page(0); r.nz = (r.a & value) | (value & 0x80) << 1; r.v = value >> 6 & 1; })
    RLB_OP(0x2c, 4, { load_absolute(); r.nz = (r.a & value) | (value & 0x80) << 1; r.v = value >> 6 & 1; })

    RLB_OP(0x85, 3, { zero_page(0); bus.write_zero_page(address, r.a); })
    RLB_OP(0x95, 4, { zero_page(r.x); bus.write_zero_page(address, r.a); })
    RLB_OP(0x8d, 4, { absolute(); bus.write(address, r.a); })
    RLB_OP(0x9d, 5, { indexed(r.x); bus.write(address, r.a); })
    RLB_OP(0x99, 5, { indexed(r.y); bus.write(address, r.a); })
    RLB_OP(0x81, 6, { x_indirect(); bus.write(address, r.a); })
    RLB_OP(0x91, 6, { indirect_y(); bus.write(address, r.a); })
    RLB_OP(0x86, 3, { zero_page(0); bus.write_zero_page(address, r.x); })
    RLB_OP(0x96, 4, { zero_page(r.y); bus.write_zero_page(address, r.x); })
    RLB_OP(0x8e, 4, { absolute(); bus.write(address, r.x); })
    RLB_OP(0x84, 3, { zero_page(0); bus.write_zero_page(address, r.y); })
    RLB_OP(0x94, 4, { zero_page(r.x); bus.write_zero_page(address, r.y); })
    RLB_OP(0x8c, 4, { absolute(); bus.write(address, r.y); })

    RLB_OP(0x10, 2, branch(!(r.nz & 0x180)))
    RLB_OP(0x30, 2, branch((r.nz & 0x180) != 0))
    RLB_OP(0x50, 2, branch(!r.v))
    RLB_OP(0x70, 2, branch(r.v != 0))
    RLB_OP(0x90, 2, branch(!r.c))
    RLB_OP(0xb0, 2, branch(r.c != 0))
    RLB_OP(0xd0, 2, branch((r.nz & 0xff) != 0))
    RLB_OP(0xf0, 2, branch((r.nz & 0xff) == 0))

    RLB_OP(0xaa, 2, r.nz = r.x = r.a)
    RLB_OP(0xa8, 2, r.nz = r.y = r.a)
    RLB_OP(0x8a, 2, r.nz = r.a = r.x)
    RLB_OP(0x98, 2, r.nz = r.a = r.y)
    RLB_OP(0xba, 2, r.nz = r.x = r.sp)
    RLB_OP(0x9a, 2, r.sp = r.x)
    RLB_OP(0xe8, 2, r.nz = r.x = (r.x + 1) & 0xff)
    RLB_OP(0xca, 2, r.nz = r.x = (r.x - 1) & 0xff)
    RLB_OP(0xc8, 2, r.nz = r.y = (r.y + 1) & 0xff)
    RLB_OP(0x88, 2, r.nz = r.y = (r.y - 1) & 0xff)
    RLB_OP(0x18, 2, r.c = 0)
    RLB_OP(0x38, 2, r.c = 1)
    RLB_OP(0x58, 2, r.i = 0)
    RLB_OP(0x78, 2, r.i = 1)
    RLB_OP(0xb8, 2, r.v = 0)
    RLB_OP(0xd8, 2, r.d = 0)
    RLB_OP(0xf8, 2, r.d = 1)

    RLB_OP(0x48, 3, push(r.a))
    RLB_OP(0x08, 3, push(r.flags()))
    RLB_OP(0x68, 4, { look_at_stack(); r.nz = r.a = pull(); })
    RLB_OP(0x28, 4, { look_at_stack(); r.set_flags(pull()); })
    RLB_OP(0x4c, 3, { absolute(); r.pc = address; })
    RLB_OP(0x6c, 5, {
      absolute();
      value = bus.read(address);
      r.pc = value | bus.read((address & 0xff00) | ((address + 1) & 0xff)) << 8;
    })
    RLB_OP(0x20, 6, {
      address = low();
      look_at_stack();
      push(r.pc >> 8 & 0xff);
      push(r.pc & 0xff, true);
      r.pc = address | high() << 8;
    })
    RLB_OP(0x60, 6, {
      look_at_stack();
      address = pull();
      address |= pull() << 8;
      bus.read(address);
      r.pc = (address + 1) & 0xffff;
    })
    RLB_OP(0x40, 6, {
      look_at_stack();
      r.set_flags(pull());
      address = pull();
      r.pc = address | pull() << 8;
    })
    RLB_OP(0x00, 7, {
      low();
      push(r.pc >> 8 & 0xff);
      push(r.pc & 0xff, true);
      push(r.flags(), true);
      r.i = 1;
      address = bus.read(0xfffe);
      r.pc = address | bus.read(0xffff) << 8;
    })

    // --- Undocumented opcodes. ---
    RLB_BOTH(0x00, value = shifted_left(value, 0); r.nz = r.a |= value;)
    RLB_BOTH(0x20, value = shifted_left(value, r.c); r.nz = r.a &= value;)
    RLB_BOTH(0x40, value = shifted_right(value, 0); r.nz = r.a ^= value;)
    RLB_BOTH(0x60, value = shifted_right(value, r.c); add(r, value);)
    RLB_BOTH(0xc0, value = (value - 1) & 0xff; compare(r, r.a, value);)
    RLB_BOTH(0xe0, value = (value + 1) & 0xff; subtract(r, value);)
    RLB_OP(0xa7, 4, { load_zero_page(0); r.nz = r.a = r.x = value; })
    RLB_OP(0xb7, 4, { load_zero_page(r.y); r.nz = r.a = r.x = value; })
    RLB_OP(0xaf, 4, { load_absolute(); r.nz = r.a = r.x = value; })
    RLB_OP(0xbf, 4, { indexed_read(r.y); r.nz = r.a = r.x = value; })
    RLB_OP(0xa3, 6, { x_indirect(); r.nz = r.a = r.x = bus.read(address); })
    RLB_OP(0xb3, 5, { indirect_y_read(); r.nz = r.a = r.x = value; })
    RLB_OP(0x87, 3, { zero_page(0); bus.write_zero_page(address, r.a & r.x); })
    RLB_OP(0x97, 4, { zero_page(r.y); bus.write_zero_page(address, r.a & r.x); })
    RLB_OP(0x8f, 4, { absolute(); bus.write(address, r.a & r.x); })
    RLB_OP(0x83, 6, { x_indirect(); bus.write(address, r.a & r.x); })
    RLB_OP(0x8b, 2, r.nz = r.a = (r.a | 0xee) & r.x & low())
    RLB_OP(0xab, 2, r.nz = r.a = r.x = (r.a | 0xee) & low())
    case 0x0b: RLB_OP(0x2b, 2, { r.nz = r.a &= low(); r.c = r.a >> 7; })
    RLB_OP(0x4b, 2, { value = r.a & low(); r.a = shifted_right(value, 0); })
    RLB_OP(0x6b, 2, and_rotate(r, low()))
    RLB_OP(0xcb, 2, {
      value = low();
      const u32 both = r.a & r.x;
      r.c = both >= value;
      r.nz = r.x = (both - value) & 0xff;
    })
    RLB_OP(0xbb, 4, { indexed_read(r.y); r.nz = r.a = r.x = r.sp = r.sp & value; })
    RLB_OP(0x93, 6, { indirect_y(); bus.write(address, r.a & r.x & ((address >> 8) + 1)); })
    RLB_OP(0x9f, 5, { indexed(r.y); bus.write(address, r.a & r.x & ((address >> 8) + 1)); })
    RLB_OP(0x9e, 5, { indexed(r.y); bus.write(address, r.x & ((address >> 8) + 1)); })
    RLB_OP(0x9c, 5, { indexed(r.x); bus.write(address, r.y & ((address >> 8) + 1)); })
    RLB_OP(0x9b, 5, {
      indexed(r.y);
      r.sp = r.a & r.x;
      bus.write(address, r.sp & ((address >> 8) + 1));
    })
    case 0x1a: case 0x3a: case 0x5a: case 0x7a: case 0xda: case 0xfa: RLB_OP(0xea, 2, )
    case 0x80: case 0x82: case 0x89: case 0xc2: RLB_OP(0xe2, 2, low())
    case 0x04: case 0x44: RLB_OP(0x64, 3, load_zero_page(0))
    case 0x14: case 0x34: case 0x54: case 0x74: case 0xd4: RLB_OP(0xf4, 4, load_zero_page(r.x))
    RLB_OP(0x0c, 4, load_absolute())
    case 0x1c: case 0x3c: case 0x5c: case 0x7c: case 0xdc: RLB_OP(0xfc, 4, indexed_read(r.x))
    default:  // The rest halt the CPU.
      bus.cycles += 2;
      bus.state.cpu.is_jammed = 1;
      bus.left = 0;
  }
#undef RLB_OP
#undef RLB_READS
#undef RLB_RMW
#undef RLB_BOTH
}

RLB_HOT Registers unpacked(const Cpu& cpu) {
  Registers r{cpu.pc, cpu.a, cpu.x, cpu.y, cpu.sp, 0, 0, 0, 0, 0};
  r.set_flags(cpu.flags);
  return r;
}

RLB_HOT void pack(Cpu& cpu, const Registers& r) {
  cpu.pc = static_cast<u16>(r.pc);
  cpu.a = static_cast<u8>(r.a);
  cpu.x = static_cast<u8>(r.x);
  cpu.y = static_cast<u8>(r.y);
  cpu.sp = static_cast<u8>(r.sp);
  cpu.flags = static_cast<u8>(r.flags());
}

// One instruction, wherever the program is; for all cartridges, because it is rare.
RLB_COLD RLB_FN void execute_slowly(Bus<Cart::kAny>& bus, Registers& r) {
  const u32 opcode = bus.read(r.pc);
  r.pc = (r.pc + 1) & 0xffff;
  execute<false>(bus, r, opcode);
}

// The same, where the program is not plain ROM.
RLB_COLD RLB_FN s32 execute_anywhere(Run& run, s32 left) {
  Bus<Cart::kAny> bus = connect<Cart::kAny>(run, left);
  Registers r = unpacked(run.state->cpu);
  execute_slowly(bus, r);
  pack(run.state->cpu, r);
  disconnect(run, bus);
  return bus.left;
}

}  // namespace rlbatch::atari
