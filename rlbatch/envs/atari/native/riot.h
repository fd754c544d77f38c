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

// Whether the timer has run out and has not been read since: bit 7 of INSTAT.
RLB_HOT bool has_interrupt(const Riot& riot, s32 cycles) {
  return timer_count(riot, cycles) < 0 && !riot.was_read;
}

// Programs wait in a loop of two instructions: a load of INTIM (LDA, LDX or LDY) and a branch back, BNE
// or BPL; or the same of INSTAT, also with BIT, and BPL.
enum Wait : u8 { kNoWait, kUntilZero, kUntilRunOut };

RLB_HOT Wait wait_of(u32 code, bool is_bpl) {
  const u32 opcode = code & 0xff, address = code >> 8 & 0xffff;
  const bool loads = opcode == 0xad || opcode == 0xae || opcode == 0xac;
  if (address == 0x284 && loads) return kUntilZero;
  return address == 0x285 && is_bpl && (loads || opcode == 0x2c) ? kUntilRunOut : kNoWait;
}

// How many turns of such a loop, which reads the timer every `period` cycles, change nothing but the time.
// Of the instructions that are left, two stay at least, to set the registers.
RLB_HOT s32 idle_turns(const Riot& riot, Wait wait, s32 cycles, s32 period, bool is_bpl, s32 left) {
  if (wait == kUntilZero && is_bpl && riot.timer > 128) return 0;  // That is negative, and ends the loop.
  const s32 elapsed = cycles + 3 - riot.stamp, end = (riot.timer - (wait == kUntilZero)) * (1 << riot.shift);
  const s32 turns = elapsed >= 0 && elapsed < end ? (end - elapsed + period - 1) / period : 0;
  const s32 most = left < 2 ? 0 : (left - 2) / 2;
  return turns < most ? turns : most;
}

RLB_HOT u8 read_port(Riot& riot, u32 address, s32 cycles) {
  const u32 reg = address & 7;
  if (reg & 4) return reg & 1 ? has_interrupt(riot, cycles) << 7 : read_timer(riot, cycles);
  return reg == 0 ? riot.joysticks : reg == 1 ? riot.ddra : reg == 2 ? riot.switches : u8{0};
}
RLB_GPU_CALL u8 read_riot(Riot& riot, u32 address, s32 cycles) { return read_port(riot, address, cycles); }

RLB_HOT bool sets_timer(u32 address) { return (address & 0x14) == 0x14; }

RLB_HOT void set_timer(Riot& riot, u32 address, u32 value, s32 cycles) {
  const u32 interval = address & 3;
  riot.timer = static_cast<s32>(value);
  riot.shift = static_cast<u8>(interval == 0 ? 0 : interval == 1 ? 3 : interval == 2 ? 6 : 10);
  riot.stamp = cycles;
  riot.was_read = 0;
}

RLB_GPU_CALL void write_riot(Riot& riot, u32 address, u8 value, s32 cycles) {
  if (sets_timer(address)) {
    set_timer(riot, address, value, cycles);
  } else if ((address & 7) == 1) {
    riot.ddra = value;
  }
}

}  // namespace rlbatch::atari
