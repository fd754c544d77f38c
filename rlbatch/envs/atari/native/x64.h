// An assembler for the few x86-64 instructions that `translator.h` needs.
#pragma once

#include <cstring>

#include "platform.h"

namespace rlbatch::atari {

enum Reg : u32 {
  rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15, kNoIndex = 16,
};

enum Condition : u32 { kBelow = 2, kAboveOrEqual, kEqual, kNotEqual, kSign = 8, kNoSign,
                       kLess = 12, kGreaterOrEqual, kLessOrEqual };

// An operand in memory. The base must not be rsp or r12, nor the index rsp.
struct Operand {
  Reg base;
  s32 offset;
  Reg index = kNoIndex;
  u32 scale = 0;  // As a power of two.
};

// The operations that have a form `op r/m, reg` at 8 * op + 1, and an immediate form.
enum HostOperation : u32 { kAdd, kOr, kAdc, kSbb, kAnd, kSub, kXor, kCmp };

// Operands are of 32 bits where a name does not tell otherwise.
struct Assembler {
  u8* at = nullptr;

  void byte(u32 b) { *at++ = static_cast<u8>(b); }
  void word16(u32 w) {
    std::memcpy(at, &w, 2);
    at += 2;
  }
  void word32(u32 w) {
    std::memcpy(at, &w, 4);
    at += 4;
  }
  void word64(u64 w) {
    std::memcpy(at, &w, 8);
    at += 8;
  }

  // Prefix, opcode (of one byte, or two after 0x0f) and operands.
  void op_reg(u32 opcode, u32 reg, u32 rm, bool is_byte = false, bool is_wide = false) {
    prefix(reg, 0, rm, is_byte, is_wide);
    code(opcode);
    byte(0xc0 | (reg & 7) << 3 | (rm & 7));
  }
  void op_memory(u32 opcode, u32 reg, const Operand& m, bool is_byte = false, bool is_wide = false) {
    const bool has_index = m.index != kNoIndex;
    prefix(reg, has_index ? m.index : rax, m.base, is_byte, is_wide);
    code(opcode);
    const bool is_short = m.offset >= -128 && m.offset < 128;
    byte((is_short ? 0x40 : 0x80) | (reg & 7) << 3 | (has_index ? 4 : m.base & 7));
    if (has_index) byte(m.scale << 6 | (m.index & 7) << 3 | (m.base & 7));
    if (is_short) {
      byte(static_cast<u32>(m.offset));
    } else {
      word32(static_cast<u32>(m.offset));
    }
  }

  void move(Reg to, Reg from) { op_reg(0x89, from, to); }
  void move(Reg to, u32 value) {
    prefix(0, 0, to, false, false);
    byte(0xb8 | (to & 7));
    word32(value);
  }
  void move_wide(Reg to, u64 value) {
    prefix(0, 0, to, false, true);
    byte(0xb8 | (to & 7));
    word64(value);
  }
  void move_pointer(Reg to, Reg from) { op_reg(0x89, from, to, false, true); }
  void load(Reg to, const Operand& m) { op_memory(0x8b, to, m); }
  void load_pointer(Reg to, const Operand& m) { op_memory(0x8b, to, m, false, true); }
  void load_byte(Reg to, const Operand& m) { op_memory(0x0fb6, to, m); }
  void load_word(Reg to, const Operand& m) { op_memory(0x0fb7, to, m); }
  void store(const Operand& m, Reg from) { op_memory(0x89, from, m); }
  void store(const Operand& m, u32 value) {
    op_memory(0xc7, 0, m);
    word32(value);
  }
  void store_byte(const Operand& m, Reg from) { op_memory(0x88, from, m, true); }
  void store_byte(const Operand& m, u32 value) {
    op_memory(0xc6, 0, m);
    byte(value);
  }
  void store_word(const Operand& m, Reg from) {
    byte(0x66);
    op_memory(0x89, from, m);
  }
  void store_word(const Operand& m, u32 value) {
    byte(0x66);
    op_memory(0xc7, 0, m);
    word16(value);
  }
  void or_word(const Operand& m, u32 value) {
    byte(0x66);
    op_memory(0x81, kOr, m);
    word16(value);
  }
  void low_byte(Reg to, Reg from) { op_reg(0x0fb6, to, from, true); }
  void low_word(Reg to, Reg from) { op_reg(0x0fb7, to, from); }
  void address(Reg to, Reg base, s32 offset) { op_memory(0x8d, to, Operand{base, offset}); }

  void apply(HostOperation op, Reg to, Reg with) { op_reg(8 * op + 1, with, to); }
  void apply(HostOperation op, Reg to, u32 value) {
    op_reg(0x81, op, to);
    word32(value);
  }
  void apply(HostOperation op, Reg to, const Operand& m) { op_memory(8 * op + 3, to, m); }
  void apply(HostOperation op, const Operand& m, u32 value) {
    op_memory(0x81, op, m);
    word32(value);
  }
  void add_pointer(Reg to, Reg with) { op_reg(0x01, with, to, false, true); }
  void test(Reg a, u32 value) {
    op_reg(0xf7, 0, a);
    word32(value);
  }
  void test_byte(Reg a) { op_reg(0x84, a, a, true); }
  void shift_left(Reg a, u32 by) {
    op_reg(0xc1, 4, a);
    byte(by);
  }
  void shift_right(Reg a, u32 by) {
    op_reg(0xc1, 5, a);
    byte(by);
  }
  void set_byte(Condition c, const Operand& m) { op_memory(0x0f90 | c, 0, m); }

  void push(Reg r) {
    prefix(0, 0, r, false, false);
    byte(0x50 | (r & 7));
  }
  void pop(Reg r) {
    prefix(0, 0, r, false, false);
    byte(0x58 | (r & 7));
  }
  void call(Reg r) { op_reg(0xff, 2, r); }
  void jump(Reg r) { op_reg(0xff, 4, r); }
  void jump(const Operand& m) { op_memory(0xff, 4, m); }
  void jump(const u8* to) { aim(jump_later(), to); }
  void ret() { byte(0xc3); }

  // Jumps whose targets are told later. Both return what `aim` wants: where the offset is.
  u8* jump_later() {
    byte(0xe9);
    word32(0);
    return at - 4;
  }
  u8* jump_later(Condition c) {
    byte(0x0f);
    byte(0x80 | c);
    word32(0);
    return at - 4;
  }
  static void aim(u8* site, const u8* to) {
    const s32 offset = static_cast<s32>(to - (site + 4));
    std::memcpy(site, &offset, 4);
  }

 private:
  void prefix(u32 reg, u32 index, u32 rm, bool is_byte, bool is_wide) {
    const u32 rex = static_cast<u32>(is_wide) << 3 | (reg >> 3) << 2 | (index >> 3) << 1 | rm >> 3;
    if (rex || is_byte) byte(0x40 | rex);  // Bytes: bpl rather than ch.
  }
  void code(u32 opcode) {
    if (opcode > 0xff) byte(opcode >> 8);
    byte(opcode & 0xff);
  }
};

}  // namespace rlbatch::atari
