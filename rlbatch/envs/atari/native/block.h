// How a block of a program becomes code of an x86-64 host: leaving it, and its accesses to memory.
//
// See NOTE [ translation ] in `translator.h`.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <vector>

#include "machine.h"
#include "x64.h"

namespace rlbatch::atari {

class BlockWriter {
 protected:
  BlockWriter(Cart cart, const u8* program, bool skips_repeats)
      : skips(skips_repeats),
        kind(cart == Cart::k2K ? Cart::k4K : cart), rom(program),
        places(static_cast<size_t>(rom_size(kind))) {
    void* memory = mmap(nullptr, kCodeSize, PROT_READ | PROT_WRITE | PROT_EXEC,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) {
      code = static_cast<u8*>(memory);
      clear();
    }
  }
  ~BlockWriter() {
    if (code) munmap(code, kCodeSize);
  }
  BlockWriter(const BlockWriter&) = delete;
  BlockWriter& operator=(const BlockWriter&) = delete;

  static constexpr size_t kCodeSize = 1 << 20;
  static constexpr s32 kMaxBlock = 64;            // Instructions.
  static constexpr ptrdiff_t kMaxBlockCode = 32768;  // Bytes.
  static constexpr u32 kNowhere = 0xffffffff;
  static constexpr Reg kM = rbx, kNz = rbp, kA = r12, kX = r13, kY = r14, kCycles = r15;
  static constexpr Reg kRam = r8, kLog = r9, kRom = r10;

  // A block, by the place of its first byte in the ROM.
  struct Place {
    const u8* entry;
    u64 pc;
  };
  // Code at the end of a block for the rare way out of an instruction.
  struct Side {
    u8* site;
    s32 cycles, instructions;
    u32 pc;
    Exit exit;
  };
  // The same for a branch that is taken.
  struct Taken {
    u8* site;
    s32 cycles, instructions;
    u32 target;
    s32 wait_period;  // 0: it is not the end of a loop that waits.
  };

  bool skips;
  Cart kind;
  const u8* rom;
  u8* code = nullptr;
  u8* first_block = nullptr;
  u64 (*enter)(Machine*, const u8*) = nullptr;
  const u8* leave = nullptr;
  u64 generation = 0;  // Of the code memory: it is used anew when it is full.
  std::vector<Place> places;
  std::vector<Side> sides;
  std::vector<Taken> branches;
  Assembler as;

  // Of the block that is being made.
  const CartState* cart = nullptr;
  u32 origin = 0;     // Where it begins.
  u32 pc = 0;         // Of the instruction.
  s32 cycles = 0;     // Before the instruction.
  s32 instructions = 0;
  s32 cost = 0;       // Cycles of the instruction, those for crossing a page left out.
  bool is_over = false;
  u32 next_pc = 0;
  bool is_last = false;  // The block ends after the instruction.

  // --- Memory for code. ---

  void clear() {
    ++generation;
    for (Place& place : places) place = {nullptr, kNowhere};
    as.at = code;
    enter = reinterpret_cast<u64 (*)(Machine*, const u8*)>(code);
    for (Reg r : {rbx, rbp, r12, r13, r14, r15, rax}) as.push(r);  // The last to align the stack.
    as.move_pointer(kM, rdi);
    for (const Field& f : kFields) as.load(f.reg, Operand{kM, f.offset});
    load_pointers();
    as.jump(rsi);
    leave = as.at;
    for (const Field& f : kFields) as.store(Operand{kM, f.offset}, f.reg);
    for (Reg r : {rcx, r15, r14, r13, r12, rbp, rbx}) as.pop(r);
    as.ret();
    first_block = as.at;
  }

  struct Field {
    Reg reg;
    s32 offset;
  };
  static constexpr Field kFields[5] = {{kA, offsetof(Machine, a)},
                                       {kX, offsetof(Machine, x)},
                                       {kY, offsetof(Machine, y)},
                                       {kNz, offsetof(Machine, nz)},
                                       {kCycles, offsetof(Machine, cycles)}};

  void load_pointers() {
    as.load_pointer(kRam, Operand{kM, offsetof(Machine, ram)});
    as.load_pointer(kLog, Operand{kM, offsetof(Machine, log)});
    as.load_pointer(kRom, Operand{kM, offsetof(Machine, rom)});
  }

  static constexpr Operand kLeft{kM, offsetof(Machine, left)};
  static constexpr Operand kSp{kM, offsetof(Machine, sp)};
  static constexpr Operand kC{kM, offsetof(Machine, c)};
  static constexpr Operand kV{kM, offsetof(Machine, v)};
  static constexpr Operand kD{kM, offsetof(Machine, d)};
  static constexpr Operand kPc{kM, offsetof(Machine, pc)};
  static constexpr Operand kNLog{kM, offsetof(Machine, n_log)};

  // --- What is known of addresses when a block is made. ---

  bool is_plain(u32 address) const {
    switch (kind) {
      case Cart::k4K: return is_plain_code<Cart::k4K>(address);
      case Cart::kF8: return is_plain_code<Cart::kF8>(address);
      case Cart::kF8SC: return is_plain_code<Cart::kF8SC>(address);
      case Cart::kF6: return is_plain_code<Cart::kF6>(address);
      case Cart::kF6SC: return is_plain_code<Cart::kF6SC>(address);
      case Cart::kE0: return is_plain_code<Cart::kE0>(address);
      case Cart::kFE: return is_plain_code<Cart::kFE>(address);
      default: return is_plain_code<Cart::kDPC>(address);
    }
  }

  // Offsets in the cartridge from which reads have no effect, and depend on the bank alone.
  u32 first_constant() const {
    return has_cart_ram(kind) ? 0x100 : kind == Cart::kDPC ? 0x80 : 0;
  }
  u32 end_of_constants() const {
    switch (kind) {
      case Cart::k4K: case Cart::kFE: return 0x1000;
      case Cart::kF8: case Cart::kF8SC: return 0xff8;
      case Cart::kF6: case Cart::kF6SC: return 0xff6;
      case Cart::kE0: return 0xfe0;
      default: return 0xfc0;
    }
  }
  bool is_constant(u32 address) const {
    const u32 offset = address & 0xfff;
    if (!(address & 0x1000) || offset < first_constant() || offset >= end_of_constants()) return false;
    return is_fixed(address);
  }
  u32 place_of(u32 address) const {
    switch (kind) {
      case Cart::k4K: return address & 0xfff;
      case Cart::kE0: return cart->slice[address >> 10 & 3] * 1024u + (address & 0x3ff);
      case Cart::kFE: return rom_offset<Cart::kFE>(*cart, address);
      default: return cart->bank * 4096u + (address & 0xfff);
    }
  }
  // Whether an address means the same whenever this block runs. Which slice is where can change, but
  // for the last one and that of the block.
  bool is_fixed(u32 address) const {
    return kind != Cart::kE0 || (address & 0xfff) >= 0xc00 || ((address ^ origin) & 0xc00) == 0;
  }
  static bool is_ram(u32 address) { return (address & 0x1280) == 0x80; }
  static bool is_tia(u32 address) { return (address & 0x1080) == 0; }

  // --- Leaving a block. ---

  // Before the instruction.
  void leave_if(Condition c, Exit exit) {
    sides.push_back({as.jump_later(c), cycles, instructions, pc, exit});
  }
  void leave_now(Exit exit) {
    sides.push_back({as.jump_later(), cycles, instructions, pc, exit});
    is_over = true;
  }
  // After it.
  void leave_after_if(Condition c, Exit exit, u32 next) {
    sides.push_back({as.jump_later(c), cycles + cost, instructions + 1, next, exit});
  }

  void count(s32 n_cycles, s32 n_instructions) {
    if (n_cycles) as.apply(kAdd, kCycles, static_cast<u32>(n_cycles));
    if (n_instructions) as.apply(kSub, kLeft, static_cast<u32>(n_instructions));
  }

  void finish(const Side& side) {
    Assembler::aim(side.site, as.at);
    count(side.cycles, side.exit == kStopped ? 0 : side.instructions);
    as.store(kPc, side.pc);
    as.move(rax, static_cast<u32>(side.exit));
    as.jump(leave);
  }

  void finish(const Taken& branch) {
    Assembler::aim(branch.site, as.at);
    count(branch.cycles, branch.instructions);
    if (branch.wait_period) {
      as.move_pointer(rdi, kM);
      as.move(rsi, kCycles);
      as.move(rdx, static_cast<u32>(branch.wait_period));
      call(skip_turns);
      as.move(kCycles, rax);
    }
    jump(branch.target);
  }

  // Leads to the end of the block: on at an address that is known.
  void go(u32 target) {
    count(cycles, instructions);
    jump(target);
    is_over = true;
  }

  void jump(u32 target) {
    if (is_plain(target) && is_fixed(target)) {
      const Place& place = places[place_of(target)];
      if (place.pc == target) return as.jump(place.entry);
      u8* site = as.jump_later();  // At first to what follows.
      as.store(kPc, target);
      as.move_wide(rax, reinterpret_cast<u64>(site));
    } else {
      as.store(kPc, target);
      as.move(rax, static_cast<u32>(kGo));
    }
    as.jump(leave);
  }

  template <class Function>
  void call(Function* function) {
    as.move_wide(rax, reinterpret_cast<u64>(function));
    as.call(rax);
    load_pointers();
  }

  // --- Accesses. An address that is not known is in rcx; values are in rax. ---

  enum AddressMode { kImmediate, kZp, kZpX, kZpY, kAbs, kAbsX, kAbsY, kIndY, kXInd };

  static u32 length(AddressMode mode) { return mode >= kAbs && mode <= kAbsY ? 3 : 2; }

  // The time of the instruction's accesses.
  void put_time(Reg to) { as.address(to, kCycles, cycles + cost); }

  // Readies a call that looks at the time.
  void put_machine() {
    put_time(rax);
    as.store(Operand{kM, offsetof(Machine, cycles)}, rax);
    as.move_pointer(rdi, kM);
  }

  void read_slow(u32 address, u32 latch) {
    as.move(rcx, address);
    read_slow_dynamic(latch);
  }

  void read_slow_dynamic(u32 latch) {
    put_machine();
    as.move(rsi, rcx);
    as.move(rdx, latch);
    call(read_slowly);
  }

  // rcx = (operand + index) & 0xff, with the sign of its bit 7.
  void zero_page_address(u32 operand, Reg index) {
    as.address(rcx, index, static_cast<s32>(operand));
    as.low_byte(rcx, rcx);
    as.test_byte(rcx);
  }

  // rcx becomes what to add to kRam; leaves unless the address is in the RAM.
  void only_ram() {
    as.move(rax, rcx);
    as.apply(kAnd, rax, 0x1280);
    as.apply(kCmp, rax, 0x80);
    leave_if(kNotEqual, kInterpret);
    as.low_byte(rcx, rcx);
    as.apply(kOr, rcx, 0x80);
  }

  void indexed_address(u32 base, Reg index) {
    as.address(rcx, index, static_cast<s32>(base));
    as.low_word(rcx, rcx);
  }

  // Leaves unless rax, an offset in the cartridge, is one of a constant.
  void only_constants() {
    const u32 first = first_constant(), end = end_of_constants();
    if (end - first == 0x1000) return;
    if (first) {
      as.address(rdx, rax, -static_cast<s32>(first));
      as.apply(kCmp, rdx, end - first);
    } else {
      as.apply(kCmp, rax, end);
    }
    leave_if(kAboveOrEqual, kInterpret);
  }

  // rax = what is at rcx. Keeps rsi.
  void read_dynamic() {
    as.test(rcx, 0x1000);
    u8* is_elsewhere = as.jump_later(kEqual);
    as.move(rax, rcx);
    as.apply(kAnd, rax, 0xfff);
    only_constants();
    s32 bank = 0;
    if (kind == Cart::kE0) {
      as.move(rdx, rax);
      as.shift_right(rdx, 10);
      as.load_pointer(rdi, Operand{kM, offsetof(Machine, slices)});
      as.load_byte(rdx, Operand{rdi, 0, rdx});
      as.shift_left(rdx, 10);
      as.apply(kAnd, rax, 0x3ff);
      as.apply(kAdd, rax, rdx);
    } else if (kind == Cart::kFE) {
      as.move(rdx, rcx);
      as.shift_right(rdx, 1);
      as.apply(kAnd, rdx, 0x1000);
      as.apply(kXor, rdx, 0x1000);
      as.apply(kAdd, rax, rdx);
    } else if (kind != Cart::k4K) {
      bank = cart->bank * 4096;
    }
    as.load_byte(rax, Operand{kRom, bank, rax});
    u8* is_done = as.jump_later();
    Assembler::aim(is_elsewhere, as.at);
    only_ram();
    as.load_byte(rax, Operand{kRam, 0, rcx});
    Assembler::aim(is_done, as.at);
  }

  static Reg index_of(AddressMode mode) { return mode == kZpX || mode == kAbsX ? kX : kY; }

  // The cycle that a read beyond the page costs.
  void add_crossing(u32 base, Reg index) {
    if ((base & 0xff) == 0) return;
    as.address(rdx, index, static_cast<s32>(base & 0xff));
    as.shift_right(rdx, 8);
    as.apply(kAdd, kCycles, rdx);
  }

  // rax = the operand's value. Returns false if that is not translated.
  bool read(AddressMode mode, const u8* p) {
    const u32 low = p[1], address = low | static_cast<u32>(p[2]) << 8;
    switch (mode) {
      case kImmediate: as.move(rax, low); return true;
      case kZp:
        if (low & 0x80) {
          as.load_byte(rax, Operand{kRam, static_cast<s32>(low)});
        } else {
          read_slow(low, low);
        }
        return true;
      case kZpX: case kZpY: read_zero_page_indexed(low, index_of(mode)); return true;
      case kAbs: read_absolute(address); return true;
      case kAbsX: case kAbsY: read_indexed(address, index_of(mode)); return true;
      case kXInd:
        x_indirect_address(low);
        read_dynamic();
        return true;
      default: return read_indirect(low);
    }
  }

  void read_zero_page_indexed(u32 operand, Reg index) {
    zero_page_address(operand, index);
    u8* is_in_ram = as.jump_later(kSign);
    read_slow_dynamic(operand);
    u8* is_done = as.jump_later();
    Assembler::aim(is_in_ram, as.at);
    as.load_byte(rax, Operand{kRam, 0, rcx});
    Assembler::aim(is_done, as.at);
  }

  void read_absolute(u32 address) {
    if (is_constant(address)) return as.move(rax, rom[place_of(address)]);
    if (is_ram(address)) {
      return as.load_byte(rax, Operand{kRam, static_cast<s32>((address & 0x7f) | 0x80)});
    }
    read_slow(address, address >> 8);
    ends_if_hot(address);
  }

  // An access that may switch banks ends the block.
  void ends_if_hot(u32 address) {
    if ((address & 0x1000) && (address & 0xfff) >= end_of_constants()) is_last = true;
  }

  // Whether what an index leads to is special, but does not switch banks: the TIA, or the beginning
  // of a cartridge that has more than ROM there.
  bool is_tame(u32 base) const {
    return is_tia(base) || ((base & 0x1000) && (base & 0xfff) < first_constant());
  }

  void read_indexed(u32 base, Reg index) {
    const u32 last = base + 255;
    if (last <= 0xffff && is_constant(base) && is_constant(last) && (base ^ last) < 0x1000 &&
        (kind != Cart::kE0 || place_of(last) == place_of(base) + 255)) {
      as.load_byte(rax, Operand{kRom, static_cast<s32>(place_of(base)), index});
    } else if (is_tame(base)) {
      indexed_address(base, index);
      add_crossing(base, index);
      return read_slow_dynamic(base >> 8);
    } else {
      indexed_address(base, index);
      read_dynamic();
    }
    add_crossing(base, index);
  }

  // rcx = the address that a pointer and Y make. Returns false if the pointer is not in the RAM.
  bool indirect_address(u32 at, bool has_crossing) {
    if (at < 0x80 || at == 0xff) return false;
    as.load_word(rcx, Operand{kRam, static_cast<s32>(at)});
    if (has_crossing) {
      as.low_byte(rsi, rcx);
      as.apply(kAdd, rsi, kY);
      as.shift_right(rsi, 8);
    }
    as.apply(kAdd, rcx, kY);
    as.low_word(rcx, rcx);
    return true;
  }

  // rcx = the pointer at (operand + X) & 0xff, which must be in the RAM.
  void x_indirect_address(u32 operand) {
    as.address(rcx, kX, static_cast<s32>(operand));
    as.low_byte(rcx, rcx);
    as.address(rdx, rcx, -0x80);
    as.apply(kCmp, rdx, 0x7fu);
    leave_if(kAboveOrEqual, kInterpret);
    as.load_word(rcx, Operand{kRam, 0, rcx});
  }

  bool read_indirect(u32 at) {
    if (!indirect_address(at, true)) return false;
    read_dynamic();
    as.apply(kAdd, kCycles, rsi);
    return true;
  }

  bool write(AddressMode mode, const u8* p, Reg value) {
    const u32 low = p[1], address = low | static_cast<u32>(p[2]) << 8;
    switch (mode) {
      case kZp: write_zero_page(low, value); return true;
      case kZpX: case kZpY: write_zero_page_indexed(low, index_of(mode), value); return true;
      case kAbs: write_absolute(address, value); return true;
      case kAbsX: case kAbsY:
        indexed_address(address, index_of(mode));
        if (is_tame(address)) {
          write_slow_dynamic(value);
          return true;
        }
        break;
      case kXInd: x_indirect_address(low); break;
      default:
        if (!indirect_address(low, false)) return false;
    }
    only_ram();
    as.store_byte(Operand{kRam, 0, rcx}, value);
    return true;
  }

  void write_zero_page(u32 address, Reg value) {
    if (address & 0x80) return as.store_byte(Operand{kRam, static_cast<s32>(address)}, value);
    write_tia(address & 0x3f, value);
  }

  void write_zero_page_indexed(u32 operand, Reg index, Reg value) {
    zero_page_address(operand, index);
    write_page_0(value);
  }

  // To the address in rcx, whose sign as a byte has been tested: it is in the RAM if that is set.
  void write_page_0(Reg value) {
    u8* is_in_ram = as.jump_later(kSign);
    write_slow_dynamic(value);
    u8* is_done = as.jump_later();
    Assembler::aim(is_in_ram, as.at);
    as.store_byte(Operand{kRam, 0, rcx}, value);
    Assembler::aim(is_done, as.at);
  }

  void write_absolute(u32 address, Reg value) {
    if (is_ram(address)) {
      return as.store_byte(Operand{kRam, static_cast<s32>((address & 0x7f) | 0x80)}, value);
    }
    if (is_tia(address)) return write_tia(address & 0x3f, value);
    as.move(rcx, address);
    write_slow_dynamic(value);
    ends_if_hot(address);
  }

  // To the address in rcx. The write may end the frame, and move the clock.
  void write_slow_dynamic(Reg value) {
    put_machine();
    as.move(rsi, rcx);
    as.move(rdx, value);
    call(write_slowly);
    as.load(kCycles, Operand{kM, offsetof(Machine, cycles)});
    as.apply(kSub, kCycles, static_cast<u32>(cycles + cost));
    as.apply(kCmp, kLeft, 0u);
    leave_after_if(kEqual, kStopped, next_pc);
  }

  void write_tia(u32 reg, Reg value) {
    if (reg == kVSYNC || reg == kVBLANK) {
      as.move(rcx, reg);
      return write_slow_dynamic(value);
    }
    put_time(rax);
    as.apply(kCmp, rax, Operand{kM, offsetof(Machine, line_limit)});
    leave_if(kGreaterOrEqual, kInterpret);
    as.store(Operand{kM, offsetof(Machine, last_access)}, rax);
    if (skips && reg <= kCXCLR) {
      if (reg >= kAUDC0 && reg <= kAUDV1) return;  // Nobody hears it.
      if (kRepeatable >> reg & 1) return log_change(reg, value);
      if (reg == kHMCLR) clear_shadows();
    }
    if (reg == kWSYNC) {
      as.move_pointer(rdi, kM);
      as.move(rsi, rax);
      call(next_line);
      as.address(kCycles, rax, -(cycles + cost));
    } else if (reg - kRSYNC <= kCXCLR - kRSYNC) {
      log_write(reg, value);
    }
  }

  static Operand shadow(u32 reg) {
    return {kM, static_cast<s32>(offsetof(Machine, shadow) + 2 * reg)};
  }

  void clear_shadows() {
    for (u32 k = kHMP0; k <= kHMBL; ++k) as.store_word(shadow(k), 0);
  }

  // Appends a write, unless it changes nothing; as `note_write`.
  void log_change(u32 reg, Reg value) {
    as.load_word(rcx, shadow(reg));
    as.apply(kCmp, rcx, value);
    u8* is_same = as.jump_later(kEqual);
    as.store_word(shadow(reg), value);
    if (coupled_register(reg)) {
      as.low_byte(rcx, rcx);
      as.apply(kCmp, rcx, value);
      u8* is_known = as.jump_later(kEqual);
      as.or_word(shadow(coupled_register(reg)), kUnknown);
      Assembler::aim(is_known, as.at);
    }
    log_write(reg, value);
    Assembler::aim(is_same, as.at);
  }

  // Appends a write at the time in rax to the log; see `packed_write`.
  void log_write(u32 reg, Reg value) {
    as.apply(kSub, rax, Operand{kM, offsetof(Machine, log_base)});
    as.shift_left(rax, 14);
    as.apply(kOr, rax, value);
    as.apply(kOr, rax, reg << 8);
    as.load(rcx, kNLog);
    as.store(Operand{kLog, 0, rcx, 2}, rax);
    as.apply(kAdd, rcx, 1u);
    as.store(kNLog, rcx);
    as.apply(kCmp, rcx, static_cast<u32>(kLogSize));
    leave_after_if(kEqual, kFlush, next_pc);
  }
};

}  // namespace rlbatch::atari
