// One console as plain bytes: saving, restoring, comparing and moving to a GPU are copies.
#pragma once

#include "cart.h"
#include "platform.h"
#include "riot.h"
#include "rule.h"
#include "tia.h"

namespace rlbatch::atari {

// What is known of a cartridge before it runs. Shared by all of its consoles. See
// `console_config` in `../native_library.py`.
struct Config {
  s32 rule, cart, rom_size, ystart, height, is_pal, detect_format, has_hmove_blanks, has_paddles;
  s32 swap_ports, swap_paddles, n_legal_actions, paddle_max, detection_difficulty;
  u32 system_seed;
};

struct Cpu {
  s32 cycles;  // Since the frame began.
  u16 pc;
  u8 a, x, y, sp;
  u8 flags;     // N V 1 B D I Z C
  u8 bus;       // The last byte that was on the data bus.
  u8 is_jammed;  // An opcode that only a reset ends.
  u8 padding;
};

// The generator of the C++ standard: mt19937.
struct Mt19937 {
  u32 words[624];
  u32 next;
};

struct Frame {
  s32 lines;       // Of the last frame that ended properly.
  u8 is_partial;   // It goes on in the next call.
  u8 is_greyed;    // What it has not drawn has been made grey.
  u8 buffer;       // Which of the two screens is drawn.
  u8 has_stopped;  // The CPU has ended the frame.
  s32 max_lines;
};

// What the agent's side of the console knows.
struct Session {
  s32 paddle[2];
  s32 paddle_min, paddle_max;
  s32 frame_number, episode_frame_number;
  s32 mode, difficulty;
  s32 sticky_action;
  f32 sticky_strength;
  s32 height;
  u8 is_pal, has_input;  // Whether an input event has been set since power-on.
  u8 switches_held;      // Bit 0 RESET, bit 1 SELECT.
  u8 fire;               // Bit 0 player A, bit 1 player B.
  s32 charged_at[4];     // Cycles that INPT0 to 3 need to charge; see `paddle_charge`.
};

struct State {
  Cpu cpu;
  Riot riot;
  Tia tia;
  CartState cart;
  Frame frame;
  Session session;
  RuleState rule;
};

static_assert(sizeof(State) <= 1024);

// What a console needs beside its state, one per environment.
struct Generators {
  Mt19937 system, environment;
};

RLB_GPU_CALL void seed(Mt19937& g, u32 value) {
  g.words[0] = value;
  for (u32 i = 1; i < 624; ++i) {
    g.words[i] = 1812433253u * (g.words[i - 1] ^ g.words[i - 1] >> 30) + i;
  }
  g.next = 624;
}

RLB_GPU_CALL u32 next_draw(Mt19937& g) {
  if (g.next >= 624) {
    for (u32 i = 0; i < 624; ++i) {
      const u32 y = (g.words[i] & 0x80000000u) | (g.words[(i + 1) % 624] & 0x7fffffffu);
      g.words[i] = g.words[(i + 397) % 624] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
    }
    g.next = 0;
  }
  u32 y = g.words[g.next++];
  y ^= y >> 11;
  y ^= y << 7 & 0x9d2c5680u;
  y ^= y << 15 & 0xefc60000u;
  return y ^ y >> 18;
}

}  // namespace rlbatch::atari
