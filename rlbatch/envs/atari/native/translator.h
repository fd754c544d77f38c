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

#include "instructions.h"

namespace rlbatch::atari {

class Translator : InstructionWriter {
 public:
  // With `skips_repeats` it leaves out TIA writes that change nothing, which only a picture shows.
  Translator(Cart cart, const u8* program, bool skips_repeats)
      : InstructionWriter(cart, program, skips_repeats) {}

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
      interpret<kKind>(m);
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

  // One instruction, and those in RAM that follow: some games run parts of their code there.
  template <Cart kKind>
  RLB_COLD static void interpret(Machine& m) {
    Registers r = registers(m);
    {
      SlowBus slow(m, true);
      do {
        --slow.bus.left;
        execute_slowly(slow.bus, r);
      } while (slow.bus.left > 0 && !is_plain_code<kKind>(r.pc));
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
};

}  // namespace rlbatch::atari
