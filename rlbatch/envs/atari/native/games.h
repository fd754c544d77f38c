// games.h -- the rules of the 104 games: reward, lives and the end of an episode, from RAM.
//
// Shortest use:
//
//     RuleState state;
//     init_rule(state);                           // Power-on, once per loaded ROM.
//     reset_rule(Rule::pong, state, mode);        // In every reset of the game; see starts.h.
//     step_rule(Rule::pong, state, memory);       // After every emulated frame.
//
// `step_rule` runs after *every* frame, those of a reset included, except the frames inside a
// SELECT press. `state.reward` is the reward of that one frame, not clipped.
//
// Not here: how an episode begins (starts.h); sticky actions, reward clipping, frame limits; the
// properties of the ROMs and their lists of modes, which are in ../games.py.
//
// Source: black-box measurements of ale-py 0.12.1 (all 104 ROMs in lockstep).
#pragma once

#include "own_rules.h"

namespace rlbatch::atari {

// Reads one frame's reward, score, lives and end from the memory after that frame.
RLB_FN void step_rule(Rule game, RuleState& s, const Memory& memory) {
  const Ram R{memory.ram};
  switch (game) {
    case Rule::adventure: return step_adventure(s, R);
    case Rule::air_raid: return rule(s, R.d3(0xAA, 0xA9, 0xA8), R[0xA7] == 0xFF);
    case Rule::alien: return rule(s, alien_score(R), R[0xC0] & 15, (R[0xC0] & 15) == 0);
    case Rule::amidar: return rule(s, R.d3(0xD9, 0xDA, 0xDB), R[0xD6] & 15, R[0xD6] == 0x80);
    case Rule::assault: return rule(s, R.d3(0x82, 0x81, 0x80), R[0xE5], R[0xE5] == 0);
    case Rule::asterix:
      return rule(s, R.d3(0xE0, 0xDF, 0xDE), R[0xD3] & 15, R[0xC7] == 1 && (R[0xD3] & 15) == 1);
    case Rule::asteroids:
      rule(s, 10 * R.d2(0xBE, 0xBD), R[0xBC] >> 4, R[0xBC] >> 4 == 0);
      return wrap_reward(s, 100000);
    case Rule::atlantis: return step_atlantis(s, R, 100 * R.d3(0xA2, 0xA3, 0xA1));
    case Rule::atlantis2: return step_atlantis(s, R, R.d3(0xA1, 0xA2, 0xA3));
    case Rule::backgammon: return step_backgammon(s, R);
    case Rule::bank_heist:
      return rule(s, R.d3(0xDA, 0xD9, 0xD8), R[0xD5], R[0xCE] == 1 && R[0xD5] == 0);
    case Rule::basic_math: return rule(s, R.d(0x84), R.d(0x86) != 0);
    case Rule::battle_zone:
      return rule(s, battle_zone_score(R), R[0xBA] & 15, (R[0xBA] & 15) == 0);
    case Rule::beam_rider: return step_beam_rider(s, R);
    case Rule::berzerk: return rule(s, R.d3(0xDF, 0xDE, 0xDD), R[0xDA] + 1, R[0xDA] == 0xFF);
    case Rule::blackjack: return step_blackjack(s, R);
    case Rule::bowling: return rule(s, R.d2(0xA1, 0xA6), R[0xA4] > 0x10);
    case Rule::boxing: return step_boxing(s, R);
    case Rule::breakout: return step_breakout(s, R);
    case Rule::carnival: return rule(s, 10 * R.d2(0xAE, 0xAD), R[0x83] == 0);
    case Rule::casino: return step_casino(s, R);
    case Rule::centipede:
      rule(s, R.d3(0xF6, 0xF5, 0xF4), (R[0xED] >> 4 & 7) + 1, (R[0xA6] & 0x40) != 0);
      return forbid_loss(s);
    case Rule::chopper_command: return step_chopper_command(s, R);
    case Rule::crazy_climber: return step_crazy_climber(s, R);
    case Rule::crossbow: return rule(s, R.d3(0x8D, 0x8C, 0x8B), R[0xE7] == 0x82);
    case Rule::darkchambers: return step_darkchambers(s, R);
    case Rule::defender: return rule(s, R.digits(0x9C, 6), R[0xC2], R[0xC2] == 0);
    case Rule::demon_attack: return step_demon_attack(s, R);
    case Rule::donkey_kong:
      return rule(s, 100 * R.d2(0x88, 0x87), R[0xA3],
                  R[0xA3] == 0 && R[0x8F] == 3 && R[0x8B] == 0x1F);
    case Rule::double_dunk: return step_double_dunk(s, R);
    case Rule::earthworld: return rule(s, R.d(0xA7), R.d(0xA7) == 10);
    case Rule::elevator_action:
      return rule(s, R.d3(0x89, 0x88, 0x87), R[0x83], R[0x83] == 0 && R[0x81] != 0);
    case Rule::enduro: return rule(s, enduro_score(R), R[0xAF] == 0xFF);
    case Rule::entombed: return rule(s, R[0xE3], (R[0xC7] & 3) == 0);
    case Rule::et: return step_et(s, R);
    case Rule::fishing_derby:
      return rule(s, R.d(0xBD) - R.d(0xBE), R[0xBD] == 0x99 || R[0xBE] == 0x99);
    case Rule::flag_capture: return rule(s, R.d(0xEA), R.d(0xEB) == 0);
    case Rule::freeway: return step_freeway(s, R);
    case Rule::frogger: return rule(s, R.d2(0xCE, 0xCC), R[0xD0], R[0xD0] == 0xFF);
    case Rule::frostbite:
      return rule(s, R.d3(0xCA, 0xC9, 0xC8), (R[0xCC] & 15) + 1,
                  (R[0xCC] & 15) == 0 && (R[0xF1] & 0x80) != 0);
    case Rule::galaxian: return step_galaxian(s, R);
    case Rule::gopher: return step_gopher(s, R);
    case Rule::gravitar:
      return rule(s, R.d3(0x89, 0x88, 0x87), R[0x81] == 0 ? 6 : R[0x84] + 1, R[0x81] == 1);
    case Rule::hangman: return step_hangman(s, R);
    case Rule::haunted_house: return step_haunted_house(s, R);
    case Rule::hero: return rule(s, R.d3(0xB9, 0xB8, 0xB7), R[0xB3], R[0xB3] == 0);
    case Rule::human_cannonball: return step_human_cannonball(s, R);
    case Rule::ice_hockey: return step_ice_hockey(s, R);
    case Rule::jamesbond:
      return rule(s, R.d3(0xDC, 0xDD, 0xDE), (R[0x86] & 15) + 1,
                  (R[0x86] & 15) == 0 && R[0x8C] == 0x68);
    case Rule::journey_escape: return step_journey_escape(s, R);
    case Rule::kaboom: return step_kaboom(s, R);
    case Rule::kangaroo:
      return rule(s, 100 * R.d2(0xA8, 0xA7), (R[0xAD] & 7) + 1, R[0xAD] == 0xFF);
    case Rule::keystone_kapers:
      return rule(s, R.d2(0x9C, 0x9B), R[0x96], R[0x96] == 0 && R[0x88] == 0);
    case Rule::king_kong: return rule(s, R.d2(0x83, 0x82), R[0xEE], R[0xEE] == 0);
    case Rule::klax: return step_klax(s, R, Ram{memory.cart_ram});
    case Rule::koolaid: return rule(s, 100 * R.d2(0x81, 0x80), R[0xD1] == 0x80);
    case Rule::krull:
      return rule(s, R.d3(0x9E, 0x9D, 0x9C), (R[0x9F] & 7) + 1,
                  R[0x9F] == 0 && R[0xA2] == 3 && R[0x80] == 0x80);
    case Rule::kung_fu_master:
      return rule(s, R.d3(0x9A, 0x99, 0x98), (R[0x9D] & 7) + 1, R[0x9D] == 0xFF);
    case Rule::laser_gates: return rule(s, R.d3(0x82, 0x81, 0x80), R[0x83] == 0);
    case Rule::lost_luggage:
      return rule(s, R.d3(0x96, 0x95, 0x94), R[0xCA],
                  R[0xCA] == 0 && R[0xC8] == 0x0A && R[0xA5] == 0 && R[0xA9] == 0);
    case Rule::mario_bros: return rule(s, 100 * R.d2(0x8A, 0x89), R[0x87], R[0x87] == 0);
    case Rule::miniature_golf: return step_miniature_golf(s, R);
    case Rule::montezuma_revenge:
      return rule(s, R.d3(0x95, 0x94, 0x93), (R[0xBA] & 7) + 1, R[0xBA] == 0 && R[0xFE] == 0x60);
    case Rule::mr_do: return rule(s, 10 * R.d2(0x82, 0x83), R[0xDB], R[0xDA] == 0x40);
    case Rule::ms_pacman:
      return rule(s, R.d3(0xF8, 0xF9, 0xFA), (R[0xFB] & 7) + 1,
                  (R[0xFB] & 15) == 0 && R[0xA7] == 0x53);
    case Rule::name_this_game:
      return rule(s, R.d3(0xC6, 0xC5, 0xC4), R[0xC7] & 7, (R[0xC7] & 7) == 0);
    case Rule::othello: return step_othello(s, R);
    case Rule::pacman:
      return rule(s, R.d3(0xCC, 0xCE, 0xD0), R[0x98] + 1, R[0x98] == 0 && R[0xE4] == 0x3F);
    case Rule::phoenix:
      return rule(s, 10 * (10 * R.d2(0xC8, 0xC9) + R.high(0xC7)), R[0xCB] & 7, R[0xCC] == 0x80);
    case Rule::pitfall: return step_pitfall(s, R);
    case Rule::pitfall2: return step_pitfall2(s, R);
    case Rule::pong: return rule(s, R[0x8E] - R[0x8D], R[0x8E] == 21 || R[0x8D] == 21);
    case Rule::pooyan:
      return rule(s, R.d3(0x8A, 0x89, 0x88), (R[0x96] & 7) + 1, R[0x96] == 0 && R[0x98] == 5);
    case Rule::private_eye: return rule(s, R.d3(0xCA, 0xC9, 0xC8), R[0xC2] > 1);
    case Rule::qbert: return step_qbert(s, R);
    case Rule::riverraid: return step_riverraid(s, R);
    case Rule::road_runner: return step_road_runner(s, R);
    case Rule::robotank:
      return rule(s, 12 * R[0xB6] + R[0xB5], (R[0xA8] & 15) + 1, R[0xA8] == 0 && R[0xB4] == 0xFF);
    case Rule::seaquest: return rule(s, R.d3(0xBA, 0xB9, 0xB8), R[0xBB] + 1, R[0xA3] != 0);
    case Rule::sir_lancelot:
      return rule(s, R.d3(0xA0, 0x9F, 0x9E), R[0xA9], R[0xA9] == 0 && R[0xA7] == 0xA0);
    case Rule::skiing: return step_skiing(s, R);
    case Rule::solaris: return rule(s, 10 * R.d3(0xDC, 0xDD, 0xDE), R[0xD9] & 15, R[0xD9] == 0);
    case Rule::space_invaders: return step_space_invaders(s, R);
    case Rule::space_war: return step_space_war(s, R);
    case Rule::star_gunner: return step_star_gunner(s, R);
    case Rule::superman: return step_superman(s, R);
    case Rule::surround: return step_surround(s, R);
    case Rule::tennis: return step_tennis(s, R);
    case Rule::tetris: return step_tetris(s, R);
    case Rule::tic_tac_toe_3d: return step_tic_tac_toe_3d(s, R);
    case Rule::time_pilot: return step_time_pilot(s, R);
    case Rule::trondead: return rule(s, R.d3(0xBF, 0xBE, 0xBD), 5 - R[0xC8], R[0xC8] == 5);
    case Rule::turmoil:
      return rule(s, 10 * (R.d2(0x89, 0x8A) + R[0xD3]), R[0xB9], R[0xB9] == 0 && R[0xC5] == 1);
    case Rule::tutankham:
      return rule(s, R.d2(0x9C, 0x9A), R[0x9E] & 3, R[0x9E] == 0 && R[0x81] != 0x84);
    case Rule::up_n_down:
      return rule(s, R.d3(0x82, 0x81, 0x80), (R[0x86] & 15) + 1,
                  R[0x94] > 0x40 && (R[0x86] & 15) == 0);
    case Rule::venture:
      return rule(s, 100 * R.d2(0xC8, 0xC7), (R[0xC6] & 7) + 1,
                  R[0xC6] == 0 && R[0xCD] == 0xFF && (R[0xBF] & 0x80) != 0);
    case Rule::video_checkers: return step_video_checkers(s, R);
    case Rule::video_chess: return step_video_chess(s, R);
    case Rule::video_cube: return step_video_cube(s, R);
    case Rule::video_pinball:
      return rule(s, R.d3(0xB0, 0xB2, 0xB4), 4 + (R[0xA8] & 1) - (R[0x99] & 7),
                  (R[0xAF] & 1) != 0);
    case Rule::wizard_of_wor: return step_wizard_of_wor(s, R);
    case Rule::word_zapper: return step_word_zapper(s, R);
    case Rule::yars_revenge:
      return rule(s, R.d3(0xE2, 0xE1, 0xE0), R[0x9E] >> 4, R[0x9E] >> 4 == 0);
    case Rule::zaxxon:
      return rule(s, 100 * R.d2(0xE9, 0xE8), R[0xEA] & 7, (R[0xEA] & 7) == 0);
  }
}

// Values at power-on. Frames run before the first `reset_rule`, and no rule may read rubbish.
RLB_FN void init_rule(RuleState& s) { s = RuleState{}; }

RLB_FN s32 start_lives(Rule game) {
  switch (game) {
    case Rule::et: case Rule::mario_bros: case Rule::tetris: return 0;
    case Rule::pitfall2: case Rule::video_chess: return 1;
    case Rule::donkey_kong: return 2;
    case Rule::assault: case Rule::asteroids: case Rule::demon_attack:
    case Rule::elevator_action: case Rule::frogger: case Rule::frostbite: case Rule::hero:
    case Rule::kung_fu_master: case Rule::mr_do: case Rule::pacman: case Rule::qbert:
    case Rule::robotank: case Rule::seaquest: case Rule::turmoil: case Rule::venture:
    case Rule::yars_revenge: return 4;
    case Rule::bank_heist: case Rule::battle_zone: case Rule::breakout:
    case Rule::crazy_climber: case Rule::phoenix: case Rule::star_gunner:
    case Rule::time_pilot: case Rule::trondead: case Rule::up_n_down: case Rule::zaxxon: return 5;
    case Rule::atlantis: case Rule::gravitar: case Rule::jamesbond:
    case Rule::montezuma_revenge: return 6;
    case Rule::haunted_house: return 9;
    default: return 3;
  }
}

RLB_FN s32 start_score(Rule game) {
  switch (game) {
    case Rule::pitfall: return 2000;
    case Rule::pitfall2: return 4000;
    case Rule::private_eye: return 1000;
    default: return 0;
  }
}

// Variables as a new episode finds them. Three outlive the old one: video_cube's timer,
// atlantis2's lives, and demon_attack's flag, which belongs to `start_mode`.
RLB_FN void reset_rule(Rule game, RuleState& s, s32 mode) {
  s.reward = 0;
  s.score = start_score(game);
  if (game != Rule::atlantis2) s.lives = start_lives(game);
  s.mode = mode;
  for (s32 i = 0; i < 5; ++i) s.extra[i] = 0;
  if (game == Rule::qbert) s.extra[extra_last_lives] = 2;
  if (game == Rule::riverraid) s.extra[extra_lives_byte] = 0x58;
  s.terminal = 0;
  s.started = 0;
  if (game != Rule::video_cube) s.previous_timer = 0;
}

// The number that ale-py's lives() returns.
RLB_FN s32 rule_lives(Rule game, const RuleState& s) {
  switch (game) {
    case Rule::adventure: return 1;
    // Not 0 when the episode has ended, as it is everywhere below.
    case Rule::alien: case Rule::chopper_command: return s.lives;
    // No lives.
    case Rule::bowling: case Rule::boxing: case Rule::carnival: case Rule::double_dunk:
    case Rule::enduro: case Rule::fishing_derby: case Rule::freeway: case Rule::ice_hockey:
    case Rule::journey_escape: case Rule::koolaid: case Rule::laser_gates: case Rule::pong:
    case Rule::private_eye: case Rule::skiing: case Rule::tennis: return 0;
    // One, until the end.
    case Rule::air_raid: case Rule::backgammon: case Rule::basic_math: case Rule::blackjack:
    case Rule::casino: case Rule::crossbow: case Rule::darkchambers: case Rule::earthworld:
    case Rule::entombed: case Rule::flag_capture: case Rule::hangman:
    case Rule::human_cannonball: case Rule::kaboom: case Rule::klax:
    case Rule::miniature_golf: case Rule::othello: case Rule::space_war: case Rule::superman:
    case Rule::surround: case Rule::tic_tac_toe_3d: case Rule::video_checkers:
    case Rule::video_cube: case Rule::word_zapper: return s.terminal ? 0 : 1;
    case Rule::riverraid: return s.terminal ? 0 : riverraid_lives(s.extra[extra_lives_byte]);
    default: return s.terminal ? 0 : s.lives;
  }
}

}  // namespace rlbatch::atari
