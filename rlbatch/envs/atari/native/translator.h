// Programs as code of the host: the CPU without an interpreter, on x86-64.
//
// NOTE [ translation ]
//
// A block is what follows an address in plain ROM, up to a jump or to something that is not
// translated; a branch leaves it only where it is taken. Blocks are made when they are first needed,
// and jump to each other directly. What is common runs inline: RAM, ROM, the log of TIA writes.
// Other accesses call `read_slowly` and `write_slowly`; what is rare, such as decimal arithmetic, a
// stack outside the RAM, or an access that switches banks at a computed address, leaves the block
// before the instruction, which the interpreter then executes. Both must agree in all bits; the
// tests run every game with both.
//
// Within a block the cycles and instructions since its beginning are known, so that they are added
// where it is left, and `cycles + constant` is used within.
//
// A translator belongs to one thread and one cartridge, of any number of consoles.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <vector>

#include "m6502.h"
#include "x64.h"

namespace rlbatch::atari {

// What translated code works with.
struct Machine {
  s32 cycles, left, n_log, last_access, line_limit, log_base, line_phase;
  u32 latch, pc, a, x, y, sp, nz, c, v, d, i;
  u16 shadow[kCXCLR + 1];  // See NOTE [ writes that change nothing ].
  u8* ram;  // Less 0x80, so that addresses of the zero page can be added.
  u32* log;
  const u8* rom;
  const u8* slices;
  Run* run;
};

// NOTE [ writes that change nothing ]
//
// About half of all TIA writes set a register to what it is. Where nobody sees the picture they need
// not be logged. `shadow` holds the last value written to each register, with kUnknown where the
// same value would have an effect: a write to one player's graphics, for instance, takes over the
// other's.
constexpr u32 kUnknown = 0x100;

// The registers for which the same value has no effect, but for what `note_write` does.
constexpr u64 kRepeatable =
    1ull << kCOLUP0 | 1ull << kCOLUP1 | 1ull << kCOLUPF | 1ull << kCOLUBK | 1ull << kREFP0 |
    1ull << kREFP1 | 1ull << kPF0 | 1ull << kPF1 | 1ull << kPF2 | 1ull << kGRP0 | 1ull << kGRP1 |
    1ull << kENAM0 | 1ull << kENAM1 | 1ull << kENABL | 1ull << kHMP0 | 1ull << kHMP1 |
    1ull << kHMM0 | 1ull << kHMM1 | 1ull << kHMBL | 1ull << kVDELP0 | 1ull << kVDELP1 | 1ull << kVDELBL;

// What a change of a register makes unknown; 0 for nothing.
constexpr u32 partner(u32 reg) {
  return reg == kGRP0 || reg == kENABL ? u32{kGRP1} : reg == kGRP1 ? u32{kGRP0} : 0u;
}

inline void note_write(u16* shadow, u32 reg, u32 value) {
  if (reg == kHMCLR) {
    for (u32 k = kHMP0; k <= kHMBL; ++k) shadow[k] = 0;
  }
  if (reg > kCXCLR || !(kRepeatable >> reg & 1)) return;
  if (partner(reg) && (shadow[reg] & 0xffu) != value) shadow[partner(reg)] |= kUnknown;
  shadow[reg] = static_cast<u16>(value);
}

// What the registers are before the first write of a frame.
inline void start_shadow(const Tia& tia, u16* shadow) {
  for (u32 k = 0; k <= kCXCLR; ++k) shadow[k] = kUnknown;
  for (u32 k = 0; k < 2; ++k) shadow[kGRP0 + k] = static_cast<u16>(tia.graphics[k] | kUnknown);
  shadow[kENABL] = static_cast<u16>(tia.ball | kUnknown);
}

// The bus of the interpreter, for one access or instruction.
struct SlowBus {
  Machine& m;
  const bool writes;  // Or else only reads.
  const u32 n_replays;
  Bus<Cart::kAny> bus;

  SlowBus(Machine& machine, bool may_write)
      : m(machine),
        writes(may_write),
        n_replays(machine.run->n_replays),
        bus{*m.run, *m.run->state, m.rom, m.log, m.cycles, m.n_log, m.left,
            m.line_limit, m.last_access, m.latch} {}
  ~SlowBus() {
    if (writes) note_writes();
    m.cycles = bus.cycles;
    m.n_log = bus.n_log;
    m.left = bus.left;
    m.last_access = bus.last_access;
    m.latch = bus.latch;
  }

  void note_writes() {
    // Of writes before a replay only the effects are left.
    const bool is_replayed = m.run->n_replays != n_replays;
    if (is_replayed) start_shadow(m.run->state->tia, m.shadow);
    for (s32 k = is_replayed ? 0 : m.n_log; k < bus.n_log; ++k) {
      note_write(m.shadow, m.log[k] >> 8 & 63, m.log[k] & 0xff);
    }
  }
};

inline u32 read_slowly(Machine* m, u32 address, u32 latch) {
  m->latch = latch;
  return SlowBus(*m, false).bus.read(address);
}

inline void write_slowly(Machine* m, u32 address, u32 value) {
  SlowBus(*m, true).bus.write(address, value);
}

// What the stack gives up, wherever it is.
inline u32 pull_slowly(Machine* m, u32 opcode) {
  SlowBus slow(*m, false);
  slow.bus.latch = opcode;
  slow.bus.read_zero_page(m->sp);
  m->sp = (m->sp + 1) & 0xff;
  return slow.bus.read_zero_page(m->sp);
}

inline u32 flags_of(Machine* m) {
  return Registers{0, 0, 0, 0, 0, m->nz, m->c, m->v, m->d, m->i}.flags();
}

inline void set_flags(Machine* m, u32 flags) {
  Registers r{};
  r.set_flags(flags);
  m->nz = r.nz;
  m->c = r.c;
  m->v = r.v;
  m->d = r.d;
  m->i = r.i;
}

inline s32 next_line(Machine* m, s32 cycles) {
  const s32 past = (cycles - m->line_phase) % 76;
  return past ? cycles + 76 - past : cycles;
}

constexpr s32 kIsBpl = 256;  // Added to the period.

// Leaves out turns of a loop that waits for the timer; see `Bus::skip_wait`.
inline s32 skip_turns(Machine* m, s32 cycles, s32 period) {
  const bool is_bpl = period & kIsBpl;
  period &= ~kIsBpl;
  if (is_bpl && m->run->state->riot.timer > 128) return cycles;
  s32 turns = reads_until_zero(m->run->state->riot, cycles + 4, period);
  if (turns > (m->left - 2) / 2) turns = m->left >= 2 ? (m->left - 2) / 2 : 0;
  m->left -= 2 * turns;
  return cycles + turns * period;
}

// Why translated code returns; anything above is where a jump can be aimed at the block of `pc`.
enum Exit : u64 { kGo, kInterpret, kFlush, kStopped, kNumberOfExits };

class Translator {
 public:
  // With `skips_repeats` it leaves out TIA writes that change nothing, which only a picture shows.
  Translator(Cart cart, const u8* program, bool skips_repeats)
      : skips(skips_repeats),
        kind(cart == Cart::k2K ? Cart::k4K : cart), rom(program), places(kPlaces) {
    void* memory = mmap(nullptr, kCodeSize, PROT_READ | PROT_WRITE | PROT_EXEC,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) {
      code = static_cast<u8*>(memory);
      clear();
    }
  }
  ~Translator() {
    if (code) munmap(code, kCodeSize);
  }
  Translator(const Translator&) = delete;
  Translator& operator=(const Translator&) = delete;

  // Whether the system lets a program make code.
  bool works() const { return code != nullptr; }

  // As `run_cpu`.
  void run(Run& run, s32 n_instructions) {
    switch (kind) {
      case Cart::k4K: return run_as<Cart::k4K>(run, n_instructions);
      case Cart::kF8: return run_as<Cart::kF8>(run, n_instructions);
      case Cart::kF8SC: return run_as<Cart::kF8SC>(run, n_instructions);
      case Cart::kF6: return run_as<Cart::kF6>(run, n_instructions);
      case Cart::kF6SC: return run_as<Cart::kF6SC>(run, n_instructions);
      case Cart::kE0: return run_as<Cart::kE0>(run, n_instructions);
      case Cart::kFE: return run_as<Cart::kFE>(run, n_instructions);
      default: return run_as<Cart::kDPC>(run, n_instructions);
    }
  }

 private:
  static constexpr size_t kCodeSize = 1 << 20, kPlaces = 16384;
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

  // --- Running. ---

  template <Cart kKind>
  void run_as(Run& run, s32 n_instructions) {
    State& s = *run.state;
    const Registers r = unpacked(s.cpu);
    Machine m{s.cpu.cycles, n_instructions, run.n_log, run.last_access,
              s.tia.frame_start / 3 + 76 * (s.frame.max_lines + 1), run.log_base,
              s.tia.frame_start / 3, s.cpu.bus, r.pc, r.a, r.x, r.y, r.sp, r.nz, r.c, r.v, r.d, r.i,
              {}, s.riot.ram - 0x80, run.log, run.rom, s.cart.slice, &run};
    if (skips) start_shadow(s.tia, m.shadow);
    u8* jump_site = nullptr;
    u64 its_generation = 0;
    while (m.left > 0) {
      if (RLB_LIKELY(is_plain_code<kKind>(m.pc))) {
        Place& place = places[rom_offset<kKind>(s.cart, m.pc)];
        if (RLB_UNLIKELY(place.pc != m.pc)) {
          translate<kKind>(s.cart, m.pc, place);
        }
        if (jump_site && its_generation == generation) Assembler::aim(jump_site, place.entry);
        const u64 exit = enter(&m, place.entry);
        jump_site = nullptr;
        if (exit >= kNumberOfExits) {
          jump_site = reinterpret_cast<u8*>(exit);
          its_generation = generation;
          continue;
        }
        if (exit == kGo) continue;
        if (exit == kStopped) break;
        if (exit == kFlush) {
          flush_log(run, m.n_log, m.last_access);
          m.n_log = 0;
          continue;
        }
      }
      jump_site = nullptr;
      interpret(m);
    }
    pack(s.cpu, registers(m));
    s.cpu.cycles = m.cycles;
    s.cpu.bus = static_cast<u8>(m.latch);
    run.n_log = m.n_log;
    run.last_access = m.last_access;
  }

  static Registers registers(const Machine& m) {
    return {m.pc, m.a, m.x, m.y, m.sp, m.nz, m.c, m.v, m.d, m.i};
  }

  RLB_COLD static void interpret(Machine& m) {
    Registers r = registers(m);
    {
      SlowBus slow(m, true);
      --slow.bus.left;
      execute_slowly(slow.bus, r);
    }
    m.pc = r.pc;
    m.a = r.a;
    m.x = r.x;
    m.y = r.y;
    m.sp = r.sp;
    m.nz = r.nz;
    m.c = r.c;
    m.v = r.v;
    m.d = r.d;
    m.i = r.i;
  }

  // --- Operand for code. ---

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

  // --- Blocks. ---

  template <Cart kKind>
  RLB_COLD void translate(const CartState& state, u32 start, Place& place) {
    if (code + kCodeSize - as.at < kMaxBlockCode) clear();
    cart = &state;
    origin = pc = start;
    cycles = instructions = 0;
    is_over = false;
    sides.clear();
    branches.clear();
    place = {as.at, start};
    // What follows counts on instructions left, and on one more.
    as.apply(kCmp, kLeft, kMaxBlock);
    leave_if(kLessOrEqual, kInterpret);
    while (!is_over) {
      if (instructions == kMaxBlock || !is_plain(pc) || !is_fixed(pc)) {
        go(pc);
      } else if (!translate_instruction(rom + place_of(pc))) {
        leave_now(kInterpret);
      }
    }
    for (size_t i = 0; i < branches.size(); ++i) finish(branches[i]);
    for (const Side& side : sides) finish(side);
  }

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

  enum Mode { kImmediate, kZp, kZpX, kZpY, kAbs, kAbsX, kAbsY, kIndY, kXInd };

  static u32 length(Mode mode) { return mode >= kAbs && mode <= kAbsY ? 3 : 2; }

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

  static Reg index_of(Mode mode) { return mode == kZpX || mode == kAbsX ? kX : kY; }

  // The cycle that a read beyond the page costs.
  void add_crossing(u32 base, Reg index) {
    if ((base & 0xff) == 0) return;
    as.address(rdx, index, static_cast<s32>(base & 0xff));
    as.shift_right(rdx, 8);
    as.apply(kAdd, kCycles, rdx);
  }

  // rax = the operand's value. Returns false if that is not translated.
  bool read(Mode mode, const u8* p) {
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

  bool write(Mode mode, const u8* p, Reg value) {
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
    if (partner(reg)) {
      as.low_byte(rcx, rcx);
      as.apply(kCmp, rcx, value);
      u8* is_known = as.jump_later(kEqual);
      as.or_word(shadow(partner(reg)), kUnknown);
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

  // --- Instructions. ---

  u32 next_pc = 0;
  bool is_last = false;  // The block ends after the instruction.

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

  static s32 cost_of_read(Mode mode) {
    constexpr s32 kCost[9] = {2, 3, 4, 4, 4, 4, 4, 5, 6};
    return kCost[mode];
  }
  static s32 cost_of_write(Mode mode) {
    constexpr s32 kCost[9] = {0, 3, 4, 4, 4, 5, 5, 6, 6};
    return kCost[mode];
  }

  // ORA AND EOR ADC STA LDA CMP SBC.
  bool translate_accumulator(const u8* p) {
    constexpr Mode kModes[8] = {kXInd, kZp, kImmediate, kAbs, kIndY, kZpX, kAbsY, kAbsX};
    const u32 operation = p[0] >> 5, form = p[0] >> 2 & 7;
    const Mode mode = kModes[form];
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
    constexpr Mode kModes[8] = {kImmediate, kZp, kZp, kAbs, kZp, kZpY, kZp, kAbsY};
    const Mode mode = kModes[form];
    takes(is_load ? cost_of_read(mode) : cost_of_write(mode), length(mode));
    return is_load ? load_index(mode, p, kX) : write(mode, p, kX);
  }

  bool load_index(Mode mode, const u8* p, Reg to) {
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
    constexpr Mode kModes[8] = {kImmediate, kZp, kZp, kAbs, kZp, kZpX, kZp, kAbsX};
    const u32 operation = p[0] >> 5, form = p[0] >> 2 & 7;
    if (operation < 4 || form == 2 || form == 4 || form == 6) return false;
    const Mode mode = kModes[form];
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

  bool test_bits(Mode mode, const u8* p) {
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
    const s32 period = is_wait(p, target) ? 6 + extra + (p[0] == 0x10 ? kIsBpl : 0) : 0;
    branches.push_back({site, cycles + 2 + extra, instructions + 1, target, period});
    return true;
  }

  // See `Bus::skip_wait`.
  bool is_wait(const u8* p, u32 target) const {
    if ((p[0] != 0xd0 && p[0] != 0x10) || p[1] != 0xfb || !is_plain(target) || !is_fixed(target)) {
      return false;
    }
    const u8* load = rom + place_of(target);
    return (load[0] == 0xad || load[0] == 0xae || load[0] == 0xac) && load[1] == 0x84 && load[2] == 2;
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
    u8* is_in_ram = as.jump_later(kSign);
    write_slow_dynamic(value);
    u8* is_done = as.jump_later();
    Assembler::aim(is_in_ram, as.at);
    as.store_byte(Operand{kRam, 0, rcx}, value);
    Assembler::aim(is_done, as.at);
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
