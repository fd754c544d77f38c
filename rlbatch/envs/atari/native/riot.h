// The RIOT (6532): 128 bytes of RAM, the interval timer, and the two ports.
#pragma once

#include "platform.h"

namespace rlbatch::atari {

struct Riot {
  u8 ram[128];
  s32 stamp;            // CPU cycle at which the timer was set.
  s32 interrupt_stamp;  // CPU cycle of the first read after the timer ran out.
  s32 timer;            // The value it was set to.
  u8 shift;             // Cycles per count, as a power of two.
  u8 was_read;          // Since it ran out.
  u8 ddra;
  u8 switches;  // SWCHB.
  u8 joysticks;  // SWCHA.
  u8 padding[3];
};

constexpr u32 kTimers = 75;  // Values that the timer may begin with.

RLB_FN void reset_riot(Riot& riot, u32 draw) {
  riot.timer = static_cast<s32>(25 + draw % kTimers);
  riot.shift = 6;
  riot.stamp = riot.interrupt_stamp = 0;
  riot.was_read = riot.ddra = 0;
}

// What the timer has counted down to; below zero once it has run out.
RLB_HOT s32 timer_count(const Riot& riot, s32 cycles) {
  const u32 elapsed = static_cast<u32>(cycles - 1 - riot.stamp);
  return riot.timer - static_cast<s32>(elapsed >> riot.shift) - 1;
}

RLB_FN u8 read_timer(Riot& riot, s32 cycles) {
  const u32 elapsed = static_cast<u32>(cycles - 1 - riot.stamp);
  const s32 count = timer_count(riot, cycles);
  if (RLB_LIKELY(count >= 0)) return static_cast<u8>(count);
  // It has run out, and counts cycles until it is read for the first time.
  const s32 expiry = riot.timer << riot.shift;
  const s32 beyond = expiry - static_cast<s32>(elapsed) - 1;
  if (beyond <= -2 && !riot.was_read) {
    riot.was_read = 1;
    riot.interrupt_stamp = cycles;
  }
  if (!riot.was_read) return static_cast<u8>(beyond);
  const s32 skew = riot.interrupt_stamp - (riot.stamp + expiry);
  return static_cast<u8>(riot.timer - static_cast<s32>(elapsed >> riot.shift) - skew);
}

// How many reads, `period` cycles apart and the first at `cycles`, find the timer above zero.
RLB_FN s32 reads_until_zero(const Riot& riot, s32 cycles, s32 period) {
  const s32 elapsed = cycles - 1 - riot.stamp;
  const s32 zero = (riot.timer - 1) * (1 << riot.shift);
  return elapsed >= 0 && elapsed < zero ? (zero - elapsed + period - 1) / period : 0;
}

// Programs wait in a loop of a load of INTIM (LDA, LDX or LDY) and a branch back, BNE or BPL.
RLB_HOT bool loads_timer(u32 code) {
  const u32 load = code & 0xffffff;
  return load == 0x0284ad || load == 0x0284ae || load == 0x0284ac;
}

// How many turns of such a loop change nothing but the time. Of the instructions that are left, two
// stay at least, to set the registers.
RLB_HOT s32 idle_turns(const Riot& riot, s32 cycles, s32 period, bool is_bpl, s32 left) {
  if (is_bpl && riot.timer > 128) return 0;  // Such a value is negative, and ends the loop.
  const s32 turns = reads_until_zero(riot, cycles + 4, period), most = left < 2 ? 0 : (left - 2) / 2;
  return turns < most ? turns : most;
}

RLB_GPU_CALL u8 read_riot(Riot& riot, u32 address, s32 cycles) {
  switch (address & 7) {
    case 0: return riot.joysticks;
    case 1: return riot.ddra;
    case 2: return riot.switches;
    case 3: return 0;
    case 4: case 6: return read_timer(riot, cycles);
    default: {
      return timer_count(riot, cycles) < 0 && !riot.was_read ? 0x80 : 0;
    }
  }
}

RLB_GPU_CALL void write_riot(Riot& riot, u32 address, u8 value, s32 cycles) {
  if ((address & 0x14) == 0x14) {
    const u32 interval = address & 3;
    riot.timer = value;
    riot.shift = static_cast<u8>(interval == 0 ? 0 : interval == 1 ? 3 : interval == 2 ? 6 : 10);
    riot.stamp = cycles;
    riot.was_read = 0;
  } else if ((address & 7) == 1) {
    riot.ddra = value;
  }
}

}  // namespace rlbatch::atari
