// How an instruction of a program becomes code of an x86-64 host, as a part of a block.
//
// See NOTE [ translation ] in `translator.h`.
#pragma once

#include "block.h"

namespace rlbatch::atari {

class InstructionWriter : protected BlockWriter {
 protected:
  using BlockWriter::BlockWriter;

  // Returns false, having emitted nothing that matters, if the interpreter must do it.
  bool translate_instruction(const u8* p) {
    u8* const began = as.at;
    const size_t n_sides = sides.size();
    is_last = false;
    if (!translate_opcode(p)) {
      as.at = began;
      sides.resize(n_sides);
      return false;
    }
    if (is_over) return true;
    cycles += cost;
    ++instructions;
    pc = next_pc;
    // Where a bank may have been switched, what follows is not known.
    if (is_last) {
      count(cycles, instructions);
      as.store(kPc, pc);
      as.move(rax, static_cast<u32>(kGo));
      as.jump(leave);
      is_over = true;
    }
    return true;
  }

  bool translate_opcode(const u8* p) {
    switch (p[0] & 3) {
      case 0: return translate_others(p);
      case 1: return translate_accumulator(p);
      case 2: return translate_shifts(p);
      default: return false;
    }
  }

  void takes(s32 n_cycles, u32 n_bytes) {
    cost = n_cycles;
    next_pc = pc + n_bytes;
  }

  static s32 cost_of_read(AddressMode mode) {
    constexpr s32 kCost[9] = {2, 3, 4, 4, 4, 4, 4, 5, 6};
    return kCost[mode];
  }
  static s32 cost_of_write(AddressMode mode) {
    constexpr s32 kCost[9] = {0, 3, 4, 4, 4, 5, 5, 6, 6};
    return kCost[mode];
  }

  // ORA AND EOR ADC STA LDA CMP SBC.
  bool translate_accumulator(const u8* p) {
    constexpr AddressMode kModes[8] = {kXInd, kZp, kImmediate, kAbs, kIndY, kZpX, kAbsY, kAbsX};
    const u32 operation = p[0] >> 5, form = p[0] >> 2 & 7;
    const AddressMode mode = kModes[form];
    if (operation == 4) {
      if (mode == kImmediate) return false;
      takes(cost_of_write(mode), length(mode));
      return write(mode, p, kA);
    }
    takes(cost_of_read(mode), length(mode));
    if (operation == 3 || operation == 7) {
      as.apply(kCmp, kD, 0u);
      leave_if(kNotEqual, kInterpret);
    }
    if (!read(mode, p)) return false;
    switch (operation) {
      case 0: as.apply(kOr, kA, rax); break;
      case 1: as.apply(kAnd, kA, rax); break;
      case 2: as.apply(kXor, kA, rax); break;
      case 3: add_to_accumulator(); return true;
      case 5: as.move(kA, rax); break;
      case 6: compare_with(kA); return true;
      default:
        as.apply(kXor, rax, 0xff);
        add_to_accumulator();
        return true;
    }
    as.move(kNz, kA);
    return true;
  }

  void add_to_accumulator() {
    as.load(rcx, kC);
    as.apply(kAdd, rcx, rax);
    as.apply(kAdd, rcx, kA);
    as.move(rdx, rcx);  // The overflow: both operands have another sign than the sum.
    as.apply(kXor, rdx, kA);
    as.apply(kXor, rax, rcx);
    as.apply(kAnd, rdx, rax);
    as.shift_right(rdx, 7);
    as.apply(kAnd, rdx, 1u);
    as.store(kV, rdx);
    as.low_byte(kA, rcx);
    as.move(kNz, kA);
    as.shift_right(rcx, 8);
    as.store(kC, rcx);
  }

  void compare_with(Reg r) {
    as.move(rcx, r);
    as.apply(kSub, rcx, rax);
    as.set_byte(kAboveOrEqual, kC);
    as.low_byte(kNz, rcx);
  }

  // ASL ROL LSR ROR STX LDX DEC INC, and those of one byte among them.
  bool translate_shifts(const u8* p) {
    const u32 operation = p[0] >> 5;
    switch (p[0]) {
      case 0x8a: transfer(kA, kX); return true;
      case 0x9a:
        takes(2, 1);
        as.store(kSp, kX);
        return true;
      case 0xaa: transfer(kX, kA); return true;
      case 0xba:
        takes(2, 1);
        as.load(kX, kSp);
        as.move(kNz, kX);
        return true;
      case 0xca: step(kX, -1); return true;
      case 0xea: takes(2, 1); return true;
      default: break;
    }
    const u32 form = p[0] >> 2 & 7;
    if (operation == 4 || operation == 5) return translate_x(p, operation == 5, form);
    if (form == 2 && operation < 4) {
      takes(2, 1);
      as.move(rax, kA);
      shift(operation);
      as.move(kA, rax);
      return true;
    }
    return translate_modify(p, operation, form);
  }

  bool translate_x(const u8* p, bool is_load, u32 form) {
    if (form == 2 || form == 4 || form == 6 || (!is_load && (form == 0 || form == 7))) return false;
    constexpr AddressMode kModes[8] = {kImmediate, kZp, kZp, kAbs, kZp, kZpY, kZp, kAbsY};
    const AddressMode mode = kModes[form];
    takes(is_load ? cost_of_read(mode) : cost_of_write(mode), length(mode));
    return is_load ? load_index(mode, p, kX) : write(mode, p, kX);
  }

  bool load_index(AddressMode mode, const u8* p, Reg to) {
    if (!read(mode, p)) return false;
    as.move(to, rax);
    as.move(kNz, rax);
    return true;
  }

  // rax = rax shifted, with the flags.
  void shift(u32 operation) {
    const bool is_left = operation < 2, is_rotation = operation & 1;
    as.move(rsi, rax);
    if (is_rotation) as.load(rdx, kC);
    if (is_left) {
      as.shift_right(rsi, 7);
      as.apply(kAdd, rax, rax);
      if (is_rotation) as.apply(kOr, rax, rdx);
      as.low_byte(rax, rax);
    } else {
      as.apply(kAnd, rsi, 1u);
      as.shift_right(rax, 1);
      if (is_rotation) {
        as.shift_left(rdx, 7);
        as.apply(kOr, rax, rdx);
      }
    }
    as.store(kC, rsi);
    as.move(kNz, rax);
  }

  // Read, modify, write: in the RAM.
  bool translate_modify(const u8* p, u32 operation, u32 form) {
    const u32 low = p[1], address = low | static_cast<u32>(p[2]) << 8;
    Operand m{kRam, 0, rcx};
    switch (form) {
      case 1:
        if (low < 0x80) return false;
        takes(5, 2);
        m = Operand{kRam, static_cast<s32>(low)};
        break;
      case 3:
        if (!is_ram(address)) return false;
        takes(6, 3);
        m = Operand{kRam, static_cast<s32>((address & 0x7f) | 0x80)};
        break;
      case 5:
        takes(6, 2);
        zero_page_address(low, kX);
        leave_if(kNoSign, kInterpret);
        break;
      case 7:
        takes(7, 3);
        indexed_address(address, kX);
        only_ram();
        break;
      default: return false;
    }
    as.load_byte(rax, m);
    if (operation < 4) {
      shift(operation);
    } else {
      as.apply(kAdd, rax, operation == 6 ? 0xffu : 1u);
      as.low_byte(rax, rax);
      as.move(kNz, rax);
    }
    as.store_byte(m, rax);
    return true;
  }

  void transfer(Reg to, Reg from) {
    takes(2, 1);
    as.move(to, from);
    as.move(kNz, from);
  }

  void step(Reg r, s32 by) {
    takes(2, 1);
    as.apply(kAdd, r, static_cast<u32>(by));
    as.low_byte(r, r);
    as.move(kNz, r);
  }

  void set_flag(const Operand& m, u32 value) {
    takes(2, 1);
    as.store(m, value);
  }

  bool translate_others(const u8* p) {
    if ((p[0] & 0x1f) == 0x10) return branch(p);
    switch (p[0]) {
      case 0x18: set_flag(kC, 0); return true;
      case 0x38: set_flag(kC, 1); return true;
      case 0x58: set_flag(Operand{kM, offsetof(Machine, i)}, 0); return true;
      case 0x78: set_flag(Operand{kM, offsetof(Machine, i)}, 1); return true;
      case 0xb8: set_flag(kV, 0); return true;
      case 0xd8: set_flag(kD, 0); return true;
      case 0xf8: set_flag(kD, 1); return true;
      case 0x88: step(kY, -1); return true;
      case 0xc8: step(kY, 1); return true;
      case 0xe8: step(kX, 1); return true;
      case 0x98: transfer(kA, kY); return true;
      case 0xa8: transfer(kY, kA); return true;
      case 0x20: return jump_to_subroutine(p);
      case 0x60: return_from_subroutine(); return true;
      case 0x6c: return jump_indirect(p);
      case 0x08: push_flags(); return true;
      case 0x28: pull_flags(); return true;
      case 0x48: push_accumulator(); return true;
      case 0x68: pull_accumulator(); return true;
      case 0x4c: {
        const u32 target = p[1] | static_cast<u32>(p[2]) << 8;
        if (!is_plain(target)) return false;
        cycles += 3;
        ++instructions;
        go(target);
        return true;
      }
      case 0x24: return test_bits(kZp, p);
      case 0x2c: return test_bits(kAbs, p);
      default: return translate_y(p);
    }
  }

  // STY LDY CPY CPX.
  bool translate_y(const u8* p) {
    constexpr AddressMode kModes[8] = {kImmediate, kZp, kZp, kAbs, kZp, kZpX, kZp, kAbsX};
    const u32 operation = p[0] >> 5, form = p[0] >> 2 & 7;
    if (operation < 4 || form == 2 || form == 4 || form == 6) return false;
    const AddressMode mode = kModes[form];
    if (operation == 4) {
      if (form == 0 || form == 7) return false;
      takes(cost_of_write(mode), length(mode));
      return write(mode, p, kY);
    }
    takes(cost_of_read(mode), length(mode));
    if (operation == 5) return load_index(mode, p, kY);
    if (form > 3) return false;
    if (!read(mode, p)) return false;
    compare_with(operation == 6 ? kY : kX);
    return true;
  }

  bool test_bits(AddressMode mode, const u8* p) {
    takes(cost_of_read(mode), length(mode));
    if (!read(mode, p)) return false;
    as.move(kNz, rax);
    as.apply(kAnd, kNz, kA);
    as.move(rdx, rax);
    as.apply(kAnd, rdx, 0x80);
    as.apply(kAdd, rdx, rdx);
    as.apply(kOr, kNz, rdx);
    as.shift_right(rax, 6);
    as.apply(kAnd, rax, 1u);
    as.store(kV, rax);
    return true;
  }

  bool branch(const u8* p) {
    takes(2, 2);
    const u32 target = (next_pc + (p[1] ^ 0x80u) - 0x80u) & 0xffff;
    if (!(target & 0x1000)) return false;  // The bus would show there.
    const s32 extra = (target ^ next_pc) & 0xff00 ? 2 : 1;
    const bool is_if_set = p[0] & 0x20;
    u8* site;
    switch (p[0] >> 6) {
      case 0:
        as.test(kNz, 0x180);
        site = as.jump_later(is_if_set ? kNotEqual : kEqual);
        break;
      case 1: case 2:
        as.apply(kCmp, p[0] >> 6 == 1 ? kV : kC, 0u);
        site = as.jump_later(is_if_set ? kNotEqual : kEqual);
        break;
      default:
        as.test_byte(kNz);
        site = as.jump_later(is_if_set ? kEqual : kNotEqual);
    }
    const Wait wait = wait_at(p, target);
    const s32 kind = (p[0] == 0x10 ? kIsBpl : 0) + (wait == kUntilRunOut ? kPolls : 0);
    const s32 period = wait == kNoWait ? 0 : 6 + extra + kind;
    branches.push_back({site, cycles + 2 + extra, instructions + 1, target, period});
    return true;
  }

  // See `Bus::skip_wait`.
  Wait wait_at(const u8* p, u32 target) const {
    if ((p[0] != 0xd0 && p[0] != 0x10) || p[1] != 0xfb || !is_plain(target) || !is_fixed(target)) {
      return kNoWait;
    }
    const u8* load = rom + place_of(target);
    return wait_of(load[0] | u32{load[1]} << 8 | u32{load[2]} << 16, p[0] == 0x10);
  }

  bool jump_to_subroutine(const u8* p) {
    const u32 target = p[1] | static_cast<u32>(p[2]) << 8, back = pc + 2;
    if (!is_plain(target)) return false;
    as.load(rcx, kSp);
    as.address(rdx, rcx, -0x81);
    as.apply(kCmp, rdx, 0x7fu);
    leave_if(kAboveOrEqual, kInterpret);
    as.store_byte(Operand{kRam, 0, rcx}, back >> 8 & 0xff);
    as.store_byte(Operand{kRam, -1, rcx}, back & 0xff);
    as.apply(kSub, kSp, 2u);
    cycles += 6;
    ++instructions;
    go(target);
    return true;
  }

  void return_from_subroutine() {
    as.load(rcx, kSp);
    as.address(rdx, rcx, -0x80);
    as.apply(kCmp, rdx, 0x7eu);
    leave_if(kAboveOrEqual, kInterpret);
    as.load_word(rsi, Operand{kRam, 1, rcx});
    as.test(rsi, 0x1000);  // It is read from, and not only to go there.
    leave_if(kEqual, kInterpret);
    as.move(rax, rsi);
    as.apply(kAnd, rax, 0xfff);
    only_constants();
    if (end_of_constants() == 0x1000) {  // What follows the last byte is the TIA.
      as.apply(kCmp, rax, 0xfffu);
      leave_if(kEqual, kInterpret);
    }
    as.apply(kAdd, kSp, 2u);
    as.apply(kAdd, rsi, 1u);
    as.low_word(rsi, rsi);
    cycles += 6;
    ++instructions;
    go_dynamically();
  }

  // To the address in rsi, which is in the cartridge.
  void go_dynamically() {
    as.store(kPc, rsi);
    count(cycles, instructions);
    if (kind != Cart::kE0 && kind != Cart::kFE) {
      const u32 bank = kind == Cart::k4K ? 0 : cart->bank * 4096u;
      as.move(rax, rsi);
      as.apply(kAnd, rax, 0xfff);
      as.shift_left(rax, 4);
      as.move_wide(rdx, reinterpret_cast<u64>(places.data() + bank));
      as.add_pointer(rax, rdx);
      as.apply(kCmp, rsi, Operand{rax, offsetof(Place, pc)});
      u8* is_unknown = as.jump_later(kNotEqual);
      as.jump(Operand{rax, offsetof(Place, entry)});
      Assembler::aim(is_unknown, as.at);
    }
    as.move(rax, static_cast<u32>(kGo));
    as.jump(leave);
    is_over = true;
  }

  bool jump_indirect(const u8* p) {
    const u32 at = p[1] | static_cast<u32>(p[2]) << 8;
    if (!is_ram(at) || (at & 0x7f) == 0x7f) return false;
    as.load_word(rsi, Operand{kRam, static_cast<s32>((at & 0x7f) | 0x80)});
    as.test(rsi, 0x1000);
    leave_if(kEqual, kInterpret);
    cycles += 5;
    ++instructions;
    go_dynamically();
    return true;
  }

  void push(Reg value) {
    as.load(rcx, kSp);
    as.address(rax, rcx, -1);
    as.low_byte(rax, rax);
    as.store(kSp, rax);
    as.test_byte(rcx);
    write_page_0(value);
  }

  // rax = what is pulled.
  void pull(u32 opcode) {
    as.load(rcx, kSp);
    as.address(rdx, rcx, -0x80);
    as.apply(kCmp, rdx, 0x7fu);
    u8* is_in_ram = as.jump_later(kBelow);
    put_machine();
    as.move(rsi, opcode);
    call(pull_slowly);
    u8* is_done = as.jump_later();
    Assembler::aim(is_in_ram, as.at);
    as.load_byte(rax, Operand{kRam, 1, rcx});
    as.apply(kAdd, kSp, 1u);
    Assembler::aim(is_done, as.at);
  }

  void push_accumulator() {
    takes(3, 1);
    push(kA);
  }

  void push_flags() {
    takes(3, 1);
    as.store(Operand{kM, offsetof(Machine, nz)}, kNz);
    as.move_pointer(rdi, kM);
    call(flags_of);
    as.move(r11, rax);
    push(r11);
  }

  void pull_accumulator() {
    takes(4, 1);
    pull(0x68);
    as.move(kA, rax);
    as.move(kNz, rax);
  }

  void pull_flags() {
    takes(4, 1);
    pull(0x28);
    as.move_pointer(rdi, kM);
    as.move(rsi, rax);
    call(set_flags);
    as.load(kNz, Operand{kM, offsetof(Machine, nz)});
  }
};

}  // namespace rlbatch::atari
