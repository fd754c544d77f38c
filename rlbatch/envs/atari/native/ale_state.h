// Consoles as ale-py saves them, for `from_ale`. On the host only.
//
// The format holds less than a console is made of: neither pictures nor the effects of registers that
// are about to change, nor the action that may be repeated. What is missing gets the value that it
// has after almost every frame.
#pragma once

#include <cstring>

#include "console.h"

namespace rlbatch::atari {

// Reads the fields in turn; once one is not as expected, `is_good` is false, and all that follows 0.
struct AleReader {
  const u8* at;
  const u8* end;
  bool is_good = true;

  u32 word() {
    if (!is_good || end - at < 4) {
      is_good = false;
      return 0;
    }
    u32 value;
    std::memcpy(&value, at, 4);
    at += 4;
    return value;
  }
  s32 number() { return static_cast<s32>(word()); }
  u8 byte() { return static_cast<u8>(word()); }
  u8 flag() {
    const u32 value = word();
    if (value != 0xfab1fab2 && value != 0xbad1bad2) is_good = false;
    return value == 0xfab1fab2;
  }
  AleReader text() {
    const u32 n = word();
    if (!is_good || static_cast<size_t>(end - at) < n) {
      is_good = false;
      return {at, at, false};
    }
    at += n;
    return {at - n, at};
  }
  void mark(const char* wanted) {
    const AleReader found = text();
    const size_t n = std::strlen(wanted);
    if (static_cast<size_t>(found.end - found.at) != n || std::memcmp(found.at, wanted, n)) {
      is_good = false;
    }
  }
  void count(u32 wanted) {
    if (word() != wanted) is_good = false;
  }
  // A number in decimal digits.
  u32 digits() {
    while (at < end && *at == ' ') ++at;
    if (at == end) is_good = false;
    u32 value = 0;
    for (; at < end && *at != ' '; ++at) value = 10 * value + (*at - u32{'0'});
    return value;
  }
};

inline void read_ale_random(AleReader text, Mt19937& generator) {
  for (u32& word : generator.words) word = text.digits();
  generator.next = text.digits();
}

inline void read_ale_cpu(AleReader& in, Cpu& cpu, Frame& frame) {
  in.mark("M6502Low");
  cpu.a = in.byte();
  cpu.x = in.byte();
  cpu.y = in.byte();
  cpu.sp = in.byte();
  in.word();  // The last opcode.
  cpu.pc = static_cast<u16>(in.word());
  u32 flags = 0x20;
  for (u32 bit : {7u, 6u, 4u, 3u, 2u}) flags |= static_cast<u32>(in.flag()) << bit;
  flags |= in.flag() ? 0u : 2u;
  flags |= in.flag();
  cpu.flags = static_cast<u8>(flags);
  const u32 execution = in.word();  // Bit 0: the frame has ended. Bit 1: an opcode has halted the CPU.
  cpu.is_jammed = execution >> 1 & 1;
  frame.is_partial = frame.is_greyed = ~execution & 1;
}

inline void read_ale_riot(AleReader& in, Riot& riot) {
  in.mark("M6532");
  in.count(128);
  for (u8& byte : riot.ram) byte = in.byte();
  riot.timer = in.number();
  riot.shift = in.byte();
  riot.stamp = in.number();
  riot.interrupt_stamp = in.number();
  riot.was_read = in.flag();
  riot.ddra = in.byte();
  in.word();  // The direction of the other port.
}

inline void read_ale_tia(AleReader& in, Tia& tia, Frame& frame) {
  in.mark("TIA");
  tia.frame_start = in.number();
  tia.window_start = in.number();
  tia.window_end = in.number();
  tia.drawn = in.number();
  in.word();  // What follows from the others.
  frame.lines = in.number();
  in.word();
  tia.vsync_finish = in.number();
  in.word();
  tia.vsync = in.byte();
  tia.vblank = in.byte();
  for (u8& size : tia.nusiz) size = in.byte();
  for (u8& colour : tia.colour) colour = in.byte();
  tia.ctrlpf = in.byte();
  in.word();
  for (u8& reflect : tia.reflect) reflect = static_cast<u8>(8 * in.flag());
  const u32 playfield = in.word();  // With PF1 the other way round.
  tia.playfield = (playfield & 0xff00f) | reversed(playfield >> 4 & 0xff) << 4;
  for (u8& graphics : tia.graphics) graphics = in.byte();
  for (u8& graphics : tia.delayed_graphics) graphics = in.byte();
  for (u8& missile : tia.missile) missile = static_cast<u8>(2 * in.flag());
  tia.ball = static_cast<u8>(2 * in.flag());
  tia.delayed_ball = static_cast<u8>(2 * in.flag());
  for (u8& motion : tia.motion) motion = in.byte() & 15;
  for (u8& delay : tia.delay_graphics) delay = in.flag();
  tia.delay_ball = in.flag();
  for (u8& locked : tia.missile_locked) locked = static_cast<u8>(2 * in.flag());
  tia.collisions = static_cast<u16>(in.word() & 0x7fff);
  for (u8& position : tia.position) position = static_cast<u8>(in.word() % kWidth);
  in.word();
  in.word();
  tia.last_hmove = in.number();
  tia.hmove_blank = in.flag();
  tia.stars = in.flag();
  tia.star_count = in.byte() & 3;
  tia.is_dumped = in.flag() ? 0x80 : 0;
  tia.dump_stamp = in.number();
  tia.is_mirrored = tia.ctrlpf & 1;
  tia.hide_first_copy[0] = tia.hide_first_copy[1] = 0;
  tia.missile_shape = kNormal;
  if (tia.stars) tia.missile_shape = tia.star_count == 1 ? kWide : tia.star_count == 2 ? kOff : kNormal;
  in.mark("TIASound");
  for (s32 k = 0; k < 7; ++k) in.word();
}

inline void read_ale_cart(AleReader& in, Cart kind, CartState& cart) {
  constexpr const char* kNames[] = {"2K", "4K", "F8", "F8SC", "F6", "F6SC", "E0", "FE", "DPC"};
  AleReader name = in.text();
  constexpr size_t kPrefix = 9;  // "Cartridge"
  const char* wanted = kNames[static_cast<s32>(kind)];
  const size_t n = std::strlen(wanted);
  if (static_cast<size_t>(name.end - name.at) != kPrefix + n ||
      std::memcmp(name.at + kPrefix, wanted, n)) {
    in.is_good = false;
    return;
  }
  if (kind == Cart::kE0) {
    in.count(4);
    for (u8& slice : cart.slice) slice = in.byte() & 7;
  } else if (kind != Cart::k2K && kind != Cart::k4K && kind != Cart::kFE) {
    const bool is_f6 = kind == Cart::kF6 || kind == Cart::kF6SC;
    cart.bank = in.byte() & (is_f6 ? 3 : 1);
  }
  if (has_cart_ram(kind)) {
    in.count(128);
    for (u8& byte : cart.ram) byte = in.byte();
  }
  if (kind != Cart::kDPC) return;
  Dpc& dpc = cart.dpc;
  in.count(8);
  for (u8& top : dpc.top) top = in.byte();
  in.count(8);
  for (u8& bottom : dpc.bottom) bottom = in.byte();
  in.count(8);
  for (u16& counter : dpc.counter) counter = in.word() & 0x7ff;
  in.count(8);
  for (u8& flag : dpc.flag) flag = in.byte();
  in.count(3);
  for (s32 k = 5; k < 8; ++k) dpc.is_music[k] = in.flag();
  dpc.random = in.byte();
  dpc.stamp = in.number();
  dpc.fraction = in.number() / 1e8;
}

// Whether the rule keeps a number of lives.
inline bool has_lives(Rule rule) {
  RuleState probe{};
  probe.lives = 7;
  return rule_lives(rule, probe) == 7;
}

inline void read_ale_rule(AleReader& in, Rule rule, RuleState& s, const Memory& memory) {
  RuleState stepped = s;
  step_rule(rule, stepped, memory);  // For what the format lacks.
  s.previous_timer = stepped.previous_timer;
  s.mode_changed = 0;
  s.reward = in.number();
  switch (rule) {
    case Rule::adventure: case Rule::backgammon: case Rule::tic_tac_toe_3d:
    case Rule::video_checkers: s.terminal = in.flag(); return;
    case Rule::video_chess:
      s.terminal = in.flag();
      s.lives = in.number();
      return;
    case Rule::tennis:
      s.terminal = in.flag();
      s.extra[extra_games] = in.number();
      s.extra[extra_points] = in.number();
      return;
    case Rule::darkchambers:
      s.terminal = in.flag();
      s.extra[extra_health] = in.number();
      s.extra[extra_level] = in.number();
      s.score = in.number();
      return;
    case Rule::miniature_golf:  // Its numbers are saved as flags, and lost.
      s.terminal = in.flag();
      for (s32 k = 0; k < 5; ++k) in.flag();
      for (s32 k = 0; k < 5; ++k) s.extra[k] = stepped.extra[k];
      return;
    case Rule::et: case Rule::mario_bros: case Rule::haunted_house:
      s.score = in.number();
      s.lives = in.number();
      s.terminal = in.flag();
      return;
    case Rule::hangman:
      s.extra[extra_computer] = in.number();
      s.extra[extra_player] = in.number();
      s.terminal = in.flag();
      return;
    case Rule::human_cannonball:
      s.score = in.number();
      s.extra[extra_misses] = in.number();
      s.terminal = in.flag();
      return;
    case Rule::video_cube:  // What came first is the number of the cube.
      s.score = in.number();
      s.reward = in.number();
      s.terminal = in.flag();
      return;
    default: break;
  }
  s.score = in.number();
  s.terminal = in.flag();
  if (rule == Rule::othello) s.extra[extra_idle] = in.number();
  if (rule == Rule::qbert) s.extra[extra_last_lives] = in.number();
  if (rule == Rule::riverraid) s.extra[extra_lives_byte] = in.number();
  if (rule == Rule::breakout) s.started = in.flag();
  if (rule == Rule::tetris) in.flag();  // That follows from the RAM.
  if (rule == Rule::atlantis2) s.lives = stepped.lives;
  if (has_lives(rule) && rule != Rule::atlantis2) s.lives = in.number();
  if (rule == Rule::star_gunner) s.started = in.flag();
  if (rule == Rule::chopper_command) s.started = stepped.started;
}

// Puts a console where another one was when ale-py saved it. `md5` is of the console's ROM, 32
// digits. Returns false, and changes nothing, if these are no such bytes, or another game's.
inline bool import_ale(Console& console, const char* md5, const u8* bytes, s64 n) {
  State s = console.s;
  Generators generators = console.generators;
  const Rule rule = console.rule_of();
  AleReader outer{bytes, bytes + n};
  for (s32& paddle : s.session.paddle) paddle = outer.number();
  s.session.frame_number = outer.number();
  s.session.episode_frame_number = outer.number();
  s.session.mode = outer.number();
  s.session.difficulty = outer.number();
  AleReader in = outer.text();
  s.session.paddle_min = outer.number();
  s.session.paddle_max = outer.number();
  in.mark(md5);
  in.mark("System");
  s.cpu = Cpu{};
  s.cpu.cycles = in.number();
  read_ale_random(in.text(), generators.system);
  read_ale_cpu(in, s.cpu, s.frame);
  read_ale_riot(in, s.riot);
  read_ale_tia(in, s.tia, s.frame);
  read_ale_cart(in, console.cart(), s.cart);
  s.rule.mode = s.session.mode;
  read_ale_rule(in, rule, s.rule, Memory{s.riot.ram, s.cart.ram});
  if (in.flag()) read_ale_random(in.text(), generators.environment);
  if (!outer.is_good || !in.is_good) return false;
  s.cpu.bus = s.riot.ram[127];
  s.session.sticky_action = kActionNoop;
  s.session.sticky_strength = 0;
  console.s = s;
  console.generators = generators;
  return true;
}

}  // namespace rlbatch::atari
