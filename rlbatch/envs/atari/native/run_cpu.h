// Lets the CPU run: alone on a host, with the other threads of its warp on a GPU.
#pragma once

#include "lanes.h"
#include "m6502.h"
#include "platform.h"
#if defined(RLB_DEVICE)
#include "program.h"
#include "uniform.h"
#endif

namespace rlbatch::atari {

#if defined(RLB_DEVICE)

constexpr s32 kFullLog = kLogSize - 64;  // From there on a thread waits to empty it with its warp.

// NOTE [ threads of a warp ]
//
// The threads of a warp play the same game at different places, and a warp does one thing at a time.
// So it runs those that are behind, by the clock of the beam in spans of a few lines, and all of
// these together for a few instructions, wherever in the program they are: to the interpreter most
// instructions are the same. It stops at those that are not, such as jumps, and a thread that has
// come to one waits there for the others.
//
// All logs are replayed together. For that, threads whose logs are full wait, and so do those that read
// collisions: for a line, in which others come to do so.
//
// `scripts/gpu_estimate.py` counts how well that works. To run those alone that are at the same
// address, the lowest first, takes up to twice as long, where a game has many ways to go, and is a
// little faster where all stay together anyway.
//
// A thread whose environment is the only one of its warp to reset has no others to wait for. For that there
// is code of its own, which also leaves out writes that change nothing: together, threads rarely agree which.
// Where such resets are the rule it is made of the program itself, see `program.h`.
constexpr s32 kPatience = 76;  // Cycles of the CPU.
constexpr u32 kSpan = 256;

// Whose turn it is: of the least.
RLB_HOT u32 turn_of(s32 cycles, bool waits) {
  return static_cast<u32>(cycles + (waits ? kPatience : 0)) / kSpan << 1 | u32{waits};
}

RLB_HOT void copy_ram(const u8* from, u8* to) {
  for (s32 i = 0; i < 128; i += 4) {
    *reinterpret_cast<u32*>(to + i) = *reinterpret_cast<const u32*>(from + i);
  }
}

template <Cart kKind, bool kAlone>
RLB_HOT Interpreter<kKind, kAlone> load(const Run& run, u16* shadow, s32 left) {
  State& s = *run.state;
  const Registers r = unpacked(s.cpu);
  Interpreter<kKind, kAlone> cpu;
  cpu.ram = near_ram();
  cpu.ram_at = static_cast<u32>(cpu.ram - reinterpret_cast<const u8*>(near_memory().program));
  cpu.state = &s;
  cpu.log = run.log;
  cpu.shadow = shadow;
  cpu.log_base = run.log_base;
  cpu.line_start = s.tia.frame_start / 3;
  cpu.line_limit = cpu.line_start + 76 * (s.frame.max_lines + 1);
  cpu.cycles = s.cpu.cycles;
  cpu.n_log = run.n_log;
  cpu.left = left;
  cpu.last_access = run.last_access;
  cpu.pc = r.pc;
  cpu.axys = r.a | r.x << 8 | r.y << 16 | r.sp << 24;
  cpu.nz = r.nz;
  cpu.c = r.c;
  cpu.v = r.v ? kFlagV : 0;
  cpu.latch = s.cpu.bus;
  cpu.waits = 0;
  cpu.until = 0;
  cpu.banks = packed_banks<kKind>(s.cart);
  cpu.set_status(r.d << 3 | r.i << 2);
  return cpu;
}

template <Cart kKind, bool kAlone>
RLB_HOT void store(Run& run, const Interpreter<kKind, kAlone>& cpu) {
  Cpu& stored = run.state->cpu;
  Registers r{};
  r.pc = cpu.pc;
  r.a = cpu.axys & 0xff;
  r.x = cpu.axys >> 8 & 0xff;
  r.y = cpu.axys >> 16 & 0xff;
  r.sp = cpu.sp();
  r.nz = cpu.nz;
  r.c = cpu.c;
  r.v = cpu.v != 0;
  r.d = cpu.status >> 3 & 1;
  r.i = cpu.status >> 2 & 1;
  pack(stored, r);
  stored.cycles = cpu.cycles;
  stored.bus = static_cast<u8>(cpu.latch);
  run.n_log = cpu.n_log;
  run.last_access = cpu.last_access;
}

// Executes an instruction that the interpreter leaves to others.
template <Cart kKind, bool kAlone>
RLB_HOT void execute_other(Run& run, Interpreter<kKind, kAlone>& cpu) {
  u16* shadow = cpu.shadow;
  const s32 n_log = cpu.n_log;
  const u32 n_replays = run.n_replays;
  store(run, cpu);
  cpu = load<kKind, kAlone>(run, shadow, execute_anywhere(run, cpu.left));
  if (kAlone) note_writes(run, shadow, n_log, cpu.n_log, n_replays);
}

template <Cart kKind, bool kAlone>
RLB_HOT void replay_now(Run& run, Interpreter<kKind, kAlone>& cpu) {
  flush_log(run, cpu.n_log, cpu.last_access);
  cpu.n_log = 0;
  cpu.waits = 0;
}

template <Cart kKind>
RLB_HOT void run_together(Run& run, Interpreter<kKind, false>& cpu, u32 lanes) {
  constexpr u32 kIdle = ~0u;  // It waits, as all whose turns are odd.
  for (;;) {
    const bool can_run = cpu.left > 0 && cpu.n_log < kFullLog;
    const u32 turn = can_run ? turn_of(cpu.cycles, cpu.waits) : kIdle;
    const u32 first = least(lanes, turn);
    if (first == kIdle && !any(lanes, cpu.left > 0)) return;
    if (first & 1) {
      replay_now(run, cpu);
      continue;
    }
    if (turn != first) continue;
    if (cpu.run()) continue;
    if (cpu.waits) {
      ++cpu.left;  // It will come again.
      continue;
    }
    execute_other(run, cpu);
  }
}

template <Cart kKind>
RLB_HOT void run_alone(Run& run, Interpreter<kKind, true>& cpu) {
  while (cpu.left > 0) {
#if defined(RLB_PROGRAM)
    if constexpr (kKind == kProgramKind) run_program<kKind>(cpu);
    if (cpu.left <= 0) return;
#endif
    if (cpu.n_log >= kFullLog) replay_now(run, cpu);
    if (cpu.run()) continue;
    if (cpu.waits) {
      ++cpu.left;
      replay_now(run, cpu);
    } else {
      execute_other(run, cpu);
    }
  }
}

// Runs until the frame ends, or for so many instructions.
template <Cart kKind>
RLB_FN void run_cpu(Run& run, s32 n_instructions) {
  const u32 lanes = lanes_here();
  run.ram = near_ram();
  copy_ram(run.state->riot.ram, run.ram);
  if (is_one(lanes) && !run.screen) {
    u16 shadow[kShadowSize];
    start_shadow(run.state->tia, shadow);
    auto cpu = load<kKind, true>(run, shadow, n_instructions);
    run_alone(run, cpu);
    store(run, cpu);
  } else {
    auto cpu = load<kKind, false>(run, nullptr, n_instructions);
    run_together(run, cpu, lanes);
    store(run, cpu);
  }
  copy_ram(run.ram, run.state->riot.ram);
}

#else

// BRK, jumps, returns and branches.
RLB_HOT bool is_jump(u32 opcode) {
  return (opcode & 0x1f) == 0x10 || (opcode & 0x9f) == 0 || (opcode & 0xdf) == 0x4c;
}

// One instruction, wherever the program is. Returns whether the next one may be elsewhere.
template <Cart kKind>
RLB_HOT bool execute_next(Run& run, Bus<kKind>& bus, Registers& r) {
  --bus.left;
  if (RLB_LIKELY(is_plain_code<kKind>(r.pc))) {
    const u32 word = bus.fetch_word(r.pc);
    r.pc += 1;
    execute<true>(bus, r, word);
    return is_jump(word & 0xff);
  }
  pack(run.state->cpu, r);
  disconnect(run, bus);
  bus.left = execute_anywhere(run, bus.left);
  bus.cycles = run.state->cpu.cycles;
  bus.latch = run.state->cpu.bus;
  bus.n_log = run.n_log;
  bus.last_access = run.last_access;
  r = unpacked(run.state->cpu);
  return true;
}

// Runs until the frame ends, or for so many instructions.
template <Cart kKind>
RLB_FN void run_cpu(Run& run, s32 n_instructions) {
  Bus<kKind> bus = connect<kKind>(run, n_instructions);
  Registers r = unpacked(run.state->cpu);
  while (bus.left > 0) execute_next(run, bus, r);
  pack(run.state->cpu, r);
  disconnect(run, bus);
}

#endif

}  // namespace rlbatch::atari
