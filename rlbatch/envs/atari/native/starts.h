// starts.h -- how an episode begins in each of the 104 games: its mode, and the first actions.
//
// Shortest use, in a reset of the game, after the RESET switch and `reset_rule` (games.h):
//
//     start_mode(Rule::pong, console, mode);      // The game's mode, and another RESET;
//     start_actions(Rule::pong, console);         // then the actions that start it.
//
// Console, the `Ops` of `start_mode` and `start_actions`, is any class with
//
//     u8 ram(u32 address)          A byte of RIOT RAM, address modulo 128.
//     u8 cart_ram(u32 offset)      A byte of the cartridge's RAM, 0 is the read port's F080.
//     void select(s32 frames)      A SELECT press: that many frames, then one without keys.
//     void soft_reset()            The RESET switch, 4 frames.
//     void act(s32 action)         One public step: sticky-action draws, frame counters, rules.
//     void emulate(s32 action)     One frame with the action, nothing else; RESET is allowed.
//     u32 draw()                   One raw draw of the environment's generator.
//     RuleState& rule()            The variables of its rule.
//
// Source: as in games.h.
#pragma once

#include "games.h"

namespace rlbatch::atari {

// Actions by ALE's number.
enum Action : s32 {
  action_noop = 0, action_fire = 1, action_up = 2, action_right = 3, action_left = 4,
  action_down = 5, action_up_fire = 10, action_reset = 40,
};

// No loop of a mode routine runs longer: a broken ROM must not hang it.
constexpr s32 max_tries = 1000;
constexpr s32 max_tries_adventure = 50;  // Each may take 257 frames.
constexpr s32 max_tries_et = 100;  // ALE raises an error after these.

// Frames of one SELECT press; 0 for games without a mode routine, and for the two whose routine
// is written out below.
RLB_FN s32 select_frames(Rule game) {
  switch (game) {
    case Rule::alien: case Rule::backgammon: case Rule::bank_heist: case Rule::breakout:
    case Rule::demon_attack: case Rule::freeway: case Rule::frostbite: case Rule::galaxian:
    case Rule::hero: case Rule::video_checkers: case Rule::video_chess:
    case Rule::yars_revenge: return 1;
    case Rule::asteroids: case Rule::atlantis: case Rule::basic_math: case Rule::battle_zone:
    case Rule::berzerk: case Rule::bowling: case Rule::casino: case Rule::centipede:
    case Rule::chopper_command: case Rule::crazy_climber: case Rule::crossbow:
    case Rule::defender: case Rule::flag_capture: case Rule::frogger: case Rule::hangman:
    case Rule::haunted_house: case Rule::human_cannonball: case Rule::ice_hockey:
    case Rule::kangaroo: case Rule::king_kong: case Rule::klax: case Rule::lost_luggage:
    case Rule::name_this_game: case Rule::othello: case Rule::pacman: case Rule::pong:
    case Rule::pooyan: case Rule::private_eye: case Rule::space_invaders:
    case Rule::space_war: case Rule::surround: case Rule::tennis: case Rule::tic_tac_toe_3d:
    case Rule::turmoil: case Rule::tutankham: case Rule::video_cube:
    case Rule::video_pinball: case Rule::word_zapper: return 2;
    case Rule::gopher: case Rule::mario_bros: case Rule::mr_do: return 5;
    case Rule::air_raid: case Rule::gravitar: case Rule::ms_pacman: case Rule::zaxxon: return 10;
    case Rule::star_gunner: return 15;
    case Rule::jamesbond: return 20;
    case Rule::et: return 25;
    default: return 0;
  }
}

// Address of the byte that equals the mode; 0 where the condition is another one.
RLB_FN u32 mode_address(Rule game) {
  switch (game) {
    case Rule::bank_heist: case Rule::asteroids: case Rule::berzerk: case Rule::crazy_climber:
    case Rule::freeway: case Rule::frostbite: case Rule::gravitar: case Rule::hero:
    case Rule::ice_hockey: case Rule::mario_bros: case Rule::mr_do: case Rule::private_eye:
    case Rule::tennis: return 0x80;
    case Rule::alien: return 0x81;
    case Rule::bowling: case Rule::zaxxon: return 0x82;
    case Rule::tic_tac_toe_3d: return 0x88;
    case Rule::atlantis: return 0x8D;
    case Rule::pong: return 0x96;
    case Rule::defender: return 0x9B;
    case Rule::battle_zone: return 0xA1;
    case Rule::centipede: return 0xA7;
    case Rule::air_raid: return 0xAA;
    case Rule::tutankham: return 0xAB;
    case Rule::breakout: return 0xB2;
    case Rule::galaxian: return 0xB3;
    case Rule::pooyan: return 0xBD;
    case Rule::video_pinball: return 0xC1;
    case Rule::basic_math: return 0xC5;
    case Rule::haunted_house: return 0xCC;
    case Rule::gopher: return 0xD3;
    case Rule::casino: return 0xD4;
    case Rule::flag_capture: return 0xD6;
    case Rule::word_zapper: return 0xDB;
    case Rule::space_invaders: return 0xDC;
    case Rule::name_this_game: return 0xDE;
    case Rule::chopper_command: return 0xE0;
    case Rule::yars_revenge: return 0xE3;
    case Rule::demon_attack: case Rule::turmoil: case Rule::video_chess: return 0xEA;
    case Rule::hangman: return 0xEE;
    case Rule::star_gunner: return 0xF4;
    default: return 0;
  }
}

template <class Ops>
RLB_FN bool shows_mode(Rule game, Ops& console, s32 mode) {
  const u32 address = mode_address(game);
  if (address != 0) return console.ram(address) == mode;
  const s32 one_less = mode & 255;  // Compared with a byte minus one, modulo 256.
  switch (game) {
    case Rule::backgammon: return console.ram(0xDC) == 3;
    case Rule::crossbow: return ((console.ram(0x8D) - 1) & 255) == one_less;
    case Rule::et: return ((console.ram(0xEA) - 1) & 255) == one_less;
    case Rule::frogger: return console.ram(0xDD) == 1 + 2 * mode;
    case Rule::human_cannonball:
      return ((console.ram(0xB6) - 1) & 255) == one_less && console.ram(0xB7) == 1;
    case Rule::jamesbond: return console.ram(0x8C) == mode || console.ram(0x8C) == mode + 0x48;
    case Rule::kangaroo: return console.ram(0xBA) == mode || console.ram(0xBA) == mode + 0x80;
    case Rule::king_kong: return console.ram(0xEC) == 2 * mode;
    case Rule::klax: return console.cart_ram(0xEA - 0x80) == mode;
    case Rule::lost_luggage: return console.ram(0x94) == 1 + 3 * mode;
    case Rule::ms_pacman:
      return mode == 0 ? console.ram(0x99) == 1 && console.ram(0xA1) == 1
                       : console.ram(0x99) == mode && console.ram(0xA1) == 0;
    case Rule::othello: return ((console.ram(0xDE) - 1) & 255) == one_less;
    case Rule::pacman: return ((console.ram(0xCC) - 1) & 255) == one_less && console.ram(0xE6) == 0;
    case Rule::space_war: return bcd(console.ram(0xA7)) == mode;
    case Rule::surround: return console.ram(0xF9) == mode + 1;
    case Rule::video_checkers: return console.ram(0xF6) == (mode >= 11 ? mode + 6 : mode);
    case Rule::video_cube: {
      const s32 kind = mode % 100;
      return (console.ram(0xFB) & 31) == (kind == 0 ? 0 : kind == 1 ? 2 : 8);
    }
    default: return true;
  }
}

template <class Ops>
RLB_FN void start_adventure(Ops& console, s32 mode) {
  for (s32 i = 0; i < max_tries_adventure && (console.ram(0xDD) >> 1 & 3) != mode; ++i) {
    console.select(2 + static_cast<s32>(console.draw() % 256));
    console.act(action_noop);
  }
  console.soft_reset();
}

// Moves the cursor of double_dunk's menu one line down.
template <class Ops>
RLB_FN void dunk_go_down(Ops& console) {
  const u8 line = console.ram(0xB0);
  for (s32 i = 0; i < max_tries && console.ram(0xB0) == line; ++i) {
    console.act(action_down);
    console.act(action_noop);
  }
}

template <class Ops>
RLB_FN void dunk_set_option(Ops& console, s32 bit, bool is_on) {
  for (s32 i = 0; i < max_tries && ((console.ram(0x80) & bit) != 0) != is_on; ++i) {
    console.act(is_on ? action_right : action_left);
    console.act(action_noop);
  }
}

template <class Ops>
RLB_FN void start_double_dunk(Ops& console, s32 mode) {
  const s32 option_bits[4] = {0x08, 0x10, 0x04, 0x20};  // For mode bits 0 to 3.
  console.select(1);
  dunk_go_down(console);
  for (s32 k = 0; k < 4; ++k) {
    dunk_go_down(console);
    dunk_set_option(console, option_bits[k], (mode >> k & 1) != 0);
  }
  console.soft_reset();
  console.act(action_up_fire);
  console.act(action_noop);
}

template <class Ops>
RLB_FN void before_selecting(Rule game, Ops& console) {
  switch (game) {
    case Rule::air_raid: return console.select(20);
    case Rule::berzerk:
      for (s32 i = 0; i < 20; ++i) console.act(action_noop);
      return;
    case Rule::gopher: return console.soft_reset();
    case Rule::pooyan: case Rule::yars_revenge: return console.select(2);
    default: return;
  }
}

RLB_FN s32 gravitar_lives(s32 mode) {
  const s32 lives[5] = {6, 15, 6, 100, 25};
  return 0 <= mode && mode < 5 ? lives[mode] : 0;
}

template <class Ops>
RLB_FN void after_selecting(Rule game, Ops& console, s32 mode) {
  switch (game) {
    case Rule::alien: console.rule().lives = console.ram(0xC0) & 15; return;
    case Rule::gravitar: console.rule().lives = gravitar_lives(mode); return;
    case Rule::video_cube: {
      const s32 cube = mode / 100 == 0 ? 1 : mode / 100;
      for (s32 i = 0; i < max_tries && bcd(console.ram(0x9F)) != cube; ++i) {
        console.act(action_right);
      }
      return;
    }
    default: return;
  }
}

// Chooses the mode as a player does, with the SELECT switch; most games then need a RESET.
template <class Ops>
RLB_FN void start_mode(Rule game, Ops& console, s32 mode) {
  if (game == Rule::adventure) return start_adventure(console, mode);
  if (game == Rule::double_dunk) return start_double_dunk(console, mode);
  const s32 frames = select_frames(game);
  if (frames == 0) return;
  if (game == Rule::demon_attack) console.rule().mode_changed = 1;
  before_selecting(game, console);
  const s32 tries = game == Rule::et ? max_tries_et : max_tries;
  for (s32 i = 0; i < tries && !shows_mode(game, console, mode); ++i) console.select(frames);
  console.soft_reset();
  after_selecting(game, console, mode);
}

template <class Ops>
RLB_FN void emulate_frames(Ops& console, s32 action, s32 n_frames) {
  for (s32 i = 0; i < n_frames; ++i) console.emulate(action);
}

// The actions with which an episode begins, one frame each.
template <class Ops>
RLB_FN void start_actions(Rule game, Ops& console) {
  switch (game) {
    case Rule::air_raid: case Rule::asterix: case Rule::enduro: case Rule::gopher:
    case Rule::journey_escape: case Rule::kaboom: case Rule::lost_luggage: case Rule::mr_do:
    case Rule::turmoil: case Rule::up_n_down: case Rule::yars_revenge:
      return console.emulate(action_fire);
    case Rule::elevator_action: case Rule::gravitar:
      return emulate_frames(console, action_fire, 16);
    case Rule::beam_rider: return console.emulate(action_right);
    case Rule::pitfall: case Rule::pitfall2: case Rule::private_eye:
      return console.emulate(action_up);
    case Rule::double_dunk: return console.emulate(action_up_fire);
    case Rule::skiing: return emulate_frames(console, action_down, 16);
    case Rule::keystone_kapers: case Rule::laser_gates: return console.emulate(action_reset);
    case Rule::sir_lancelot:
      console.emulate(action_reset);
      return console.emulate(action_left);
    case Rule::klax:
      console.emulate(action_fire);
      return console.emulate(action_noop);
    case Rule::entombed:
      console.emulate(action_fire);
      return emulate_frames(console, action_noop, 5);
    case Rule::casino:
      emulate_frames(console, action_noop, 60);
      return emulate_frames(console, action_fire, 2);
    case Rule::mario_bros:
      emulate_frames(console, action_noop, 10);
      return emulate_frames(console, action_fire, 7);
    case Rule::darkchambers: return emulate_frames(console, action_noop, 486);
    case Rule::video_cube:
      emulate_frames(console, action_noop, 61);
      console.emulate(action_fire);
      return emulate_frames(console, action_noop, 2);
    case Rule::word_zapper:
      emulate_frames(console, action_noop, 486);
      console.emulate(action_fire);
      return emulate_frames(console, action_noop, 2);
    default: return;
  }
}

}  // namespace rlbatch::atari
