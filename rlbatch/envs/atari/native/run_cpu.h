// Lets the CPU run: alone on a host, with the other threads of its warp on a GPU.
#pragma once

#include "lanes.h"
#include "m6502.h"
#include "platform.h"
#if defined(RLB_DEVICE)
#include "uniform.h"
#endif

namespace rlbatch::atari {

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
#if defined(RLB_DEVICE)
    if (execute_uniformly(bus, r, word)) return is_jump(word & 0xff);
#else
    r.pc += 1;
    execute<true>(bus, r, word);
    return is_jump(word & 0xff);
#endif
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

#if defined(RLB_DEVICE)

constexpr s32 kFullLog = kLogSize - 64;  // From there on a thread waits to empty it with its warp.

// NOTE [ threads of a warp ]
//
// The threads of a warp play the same game at different places, and a warp does one thing at a time.
// So it runs those first that are behind, by the clock of the beam in steps of a few lines, and
// among these the lowest address: behind loops and branches they meet again. With the first run all
// that are at the same place of the program, up to the next jump. Threads whose logs are full wait,
// and all logs are replayed together.
//
// `scripts/gpu_estimate.py` counts how well that works; the clock alone, and steps of other
// lengths, work less well.

// Who runs first, for `least`; the lowest five bits are free.
RLB_HOT u32 turn_of(u32 cycles, u32 pc) { return (cycles >> 9) << 18 | (pc & 0x1fff) << 5; }

template <Cart kKind>
RLB_HOT void run_together(Run& run, Bus<kKind>& bus, Registers& r) {
  constexpr u32 kIdle = ~0u;
  const u32 lanes = lanes_here(), lane = lane_index();
  for (;;) {
    const bool can_run = bus.left > 0 && bus.n_log < kFullLog;
    const u32 first = least(lanes, can_run ? turn_of(static_cast<u32>(bus.cycles), r.pc) | lane : kIdle);
    if (first == kIdle) {
      if (!any(lanes, bus.left > 0)) return;
      flush_log(run, bus.n_log, bus.last_access);
      bus.n_log = 0;
      continue;
    }
    const u32 pc = from_lane(lanes, r.pc, first & 31);
    if (!can_run || r.pc != pc) continue;
    u32 n = 1;
    while (!execute_next(run, bus, r) && bus.left > 0) ++n;
    count_together(n, lane == (first & 31));
  }
}

#endif

// Runs until the frame ends, or for so many instructions.
template <Cart kKind>
RLB_FN void run_cpu(Run& run, s32 n_instructions) {
  Bus<kKind> bus = connect<kKind>(run, n_instructions);
  Registers r = unpacked(run.state->cpu);
#if defined(RLB_DEVICE)
  run_together(run, bus, r);
#else
  while (bus.left > 0) execute_next(run, bus, r);
#endif
  pack(run.state->cpu, r);
  disconnect(run, bus);
}

}  // namespace rlbatch::atari
