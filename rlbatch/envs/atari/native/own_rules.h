// What `step_rule` calls, in the alphabetical order of the games: the rules that take more than an
// expression, and scores kept in forms of their own. The other rules are in games.h.
//
// Source: as in games.h.
#pragma once

#include "rule.h"

namespace rlbatch::atari {

RLB_FN void step_adventure(RuleState& s, const Ram& R) {
  const bool won = R[0xB9] == 0x12;
  if (won) s.reward = 1;  // Never set back.
  s.terminal = R[0xE0] == 2 || won;
}

RLB_FN s32 alien_digit(s32 byte) { return byte == 0x80 ? 0 : byte >> 3; }

RLB_FN s32 alien_score(const Ram& R) {
  s32 sum = 0;
  for (u32 address = 0x83; address <= 0x8B; address += 2) {
    sum = 10 * sum + alien_digit(R[address]);
  }
  return 10 * sum;
}

// Both rules keep the old score on a terminal frame, whose reward is 0.
RLB_FN void step_atlantis(RuleState& s, const Ram& R, s32 score) {
  s.lives = R[0xF1];
  s.terminal = s.lives == 0xFF;
  if (s.terminal) {
    s.reward = 0;
  } else {
    count(s, score);
  }
}

// Nothing is set back here: an ended game keeps reporting its reward.
RLB_FN void step_backgammon(RuleState& s, const Ram& R) {
  const s32 player_out = static_cast<s8>(-R[0x80]);
  const s32 computer_out = R.signed_byte(0x8E);
  s8 player_in = 0;
  s8 computer_in = 0;
  for (u32 address = 0x81; address <= 0x9B; ++address) {
    if (address == 0x8E) continue;
    const s32 men = R.signed_byte(address);
    if (men > 0) computer_in = static_cast<s8>(computer_in + men);
    if (men < 0) player_in = static_cast<s8>(player_in - men);
  }
  if (player_in + player_out != 15 || computer_in + computer_out != 15) return;
  if (player_out == 15) {
    finish(s, 1);
  } else if (computer_out == 15) {
    finish(s, -1);
  }
}

RLB_FN s32 battle_zone_score(const Ram& R) {
  const s32 units = Ram::blank(R.high(0x9D));
  return 1000 * (units + 10 * Ram::blank(R.low(0x9E)) + 100 * Ram::blank(R.high(0x9E)));
}

RLB_FN void step_beam_rider(RuleState& s, const Ram& R) {
  rule(s, R.d3(0x89, 0x8A, 0x8B), R[0x85] == 0xFF);
  const s32 lives = R[0x85] + 1;
  // The byte flickers: one life fewer counts only together with the other byte.
  if (lives != s.lives - 1 || R[0x8C] == 1) s.lives = lives;
}

RLB_FN void step_blackjack(RuleState& s, const Ram& R) {
  const bool bust = R[0x86] == 0x0B && R[0x89] == 0xBB;
  count(s, bust ? 0 : R.d2(0x89, 0x86));
  s.terminal = bust || s.score >= 1000;
}

RLB_FN s32 boxing_points(s32 byte) { return byte == 0xC0 ? 100 : bcd(byte); }

RLB_FN void step_boxing(RuleState& s, const Ram& R) {
  const s32 mine = boxing_points(R[0x92]);
  const s32 theirs = boxing_points(R[0x93]);
  const bool time_is_up = R.high(0x90) == 0 && R.d(0x91) == 0;
  rule(s, mine - theirs, mine == 100 || theirs == 100 || time_is_up);
}

RLB_FN void step_breakout(RuleState& s, const Ram& R) {
  count(s, R.low(0xCD) + 10 * R.high(0xCD) + 100 * R.low(0xCC));
  s.lives = R[0xB9];
  if (s.lives == 5) s.started = 1;
  s.terminal = s.started && s.lives == 0;
}

RLB_FN void step_casino(RuleState& s, const Ram& R) {
  const s32 score = R.d2(0x95, 0x8C);
  if (R[0xD4] == 3) {
    s.reward = score - s.score;
    s.terminal = score > 0 && R[0x9E] == 0xAA;
  } else {
    const bool is_locked = (R[0xD3] & 0x80) != 0;
    if (!is_locked) s.reward = score - s.score;  // Else the old reward stays.
    s.terminal = score == 0 || (R.d(0x9E) > 0 && is_locked);
  }
  s.score = score;
}

RLB_FN void step_chopper_command(RuleState& s, const Ram& R) {
  if (R[0xC2] & 1) s.started = 1;
  rule(s, 100 * R.d2(0xEE, 0xEC), R[0xE4] & 15, s.started && (R[0xE4] & 15) == 0);
}

RLB_FN void step_crazy_climber(RuleState& s, const Ram& R) {
  const s32 sum = R[0x82] + 10 * R[0x83] + 100 * R[0x84] + 1000 * R[0x85];
  rule(s, 100 * sum, R[0xAA], R[0xAA] == 0);
  forbid_loss(s);
}

RLB_FN void step_darkchambers(RuleState& s, const Ram& R) {
  s.reward = 0;
  s.extra[extra_health] = R[0xCA] & 31;
  if (s.extra[extra_health] == 0) s.terminal = 1;
  if (R[0xD5] < s.extra[extra_level]) {
    s.terminal = 1;
    return;
  }
  s.extra[extra_level] = R[0xD5];
  const s32 score = 10 * R.d2(0xCC, 0xCF);
  if (score < s.score) {
    s.terminal = 1;
  } else {
    count(s, score);
  }
}

RLB_FN void step_demon_attack(RuleState& s, const Ram& R) {
  const bool is_title = R[0x81] == 0xAB && R[0x83] == 0xCD && R[0x85] == 0xEA;
  const bool is_over = R[0xF2] == 0 && R[0xF1] == 0xBD && !s.mode_changed;
  rule(s, is_title ? 0 : R.d3(0x85, 0x83, 0x81), R[0xF2] + 1, is_over);
  s.mode_changed = 0;
}

RLB_FN void step_double_dunk(RuleState& s, const Ram& R) {
  const s32 mine = R.d(0xF6);
  const s32 theirs = R.d(0xF7);
  rule(s, mine - theirs, (mine >= 24 || theirs >= 24) && R[0xFE] == 0xE7);
}

// Cars passed, from a counter of those still ahead: 200 on the first day, then 300.
RLB_FN s32 enduro_score(const Ram& R) {
  const s32 day = R[0xAD];
  const s32 ahead = R.d2(0xAB, 0xAC);
  if (day == 0) return 0;
  return day == 1 ? 200 - ahead : 200 + (day - 2) * 300 + 300 - ahead;
}

RLB_FN void step_et(RuleState& s, const Ram& R) {
  const s32 lives = static_cast<s8>(R[0xE5] + 1);
  rule(s, R.d3(0xE1, 0xE0, 0xDF), lives, lives == 0 && R[0x80] == 8);
}

RLB_FN void step_freeway(RuleState& s, const Ram& R) {
  rule(s, R.d(0xE7), R[0x96] == 1);
  forbid_loss(s);
  if (s.reward > 1) s.reward = 1;
}

RLB_FN void step_galaxian(RuleState& s, const Ram& R) {
  const bool is_over = (R[0xBF] & 0x80) != 0;
  rule(s, R.d3(0xAE, 0xAD, 0xAC), is_over ? 0 : R[0xB9] + 1, is_over);
  wrap_reward(s, 1000000);
}

RLB_FN void step_gopher(RuleState& s, const Ram& R) {
  const s32 carrots = (R[0xB4] & 1) + (R[0xB4] >> 1 & 1) + (R[0xB4] >> 2 & 1);
  rule(s, R.d3(0xB2, 0xB1, 0xB0), carrots, carrots == 0);
}

RLB_FN bool has_timed_out(RuleState& s, s32 timer) {
  const bool timed_out = timer == 0 && s.previous_timer == 255;
  s.previous_timer = static_cast<u8>(timer);
  return timed_out;
}

RLB_FN void step_hangman(RuleState& s, const Ram& R) {
  const s32 computer = R.d(0xEC);
  const s32 player = R.d(0xEB);
  s.reward = (player - s.extra[extra_player]) - (computer - s.extra[extra_computer]);
  s.extra[extra_player] = player;
  s.extra[extra_computer] = computer;
  s.terminal = has_timed_out(s, R[0xF1]) || s.reward != 0;
}

// The score is the number of matches used.
RLB_FN void step_haunted_house(RuleState& s, const Ram& R) {
  const bool is_won = R[0x99] == 0x44;
  const s32 matches = R.d(0x82);
  s.reward = (matches != s.score ? -1 : 0) + (is_won ? 100 : 0);
  s.score = matches;
  s.lives = R[0x96];
  s.terminal = s.lives == 0 || is_won;
}

RLB_FN void step_human_cannonball(RuleState& s, const Ram& R) {
  s.extra[extra_misses] = R.d(0xB7);
  rule(s, R.d(0xB6), R.d(0xB6) == 7 || s.extra[extra_misses] == 7);
}

RLB_FN void step_ice_hockey(RuleState& s, const Ram& R) {
  rule(s, R.d(0x8A) - R.d(0x8B), R[0x87] == 0 && R[0x86] == 0);
  if (s.reward > 1) s.reward = 1;
}

RLB_FN void step_journey_escape(RuleState& s, const Ram& R) {
  rule(s, R.d3(0x92, 0x91, 0x90), R[0x95] == 0 && R[0x96] == 0);
  if (s.reward == 50000) s.reward = 0;  // The money that one starts with.
}

RLB_FN void step_kaboom(RuleState& s, const Ram& R) {
  count(s, R.d3(0xA5, 0xA4, 0xA3));
  s.terminal = R[0xA1] == 0 || s.score == 999999;
}

// No byte of the 5 by 5 well is one of those of an empty or unfinished place.
RLB_FN bool klax_well_is_full(const Ram& R) {
  for (u32 address = 0xB3; address <= 0xCB; ++address) {
    const s32 tile = R[address];
    if (tile == 0 || tile == 2 || tile == 6 || tile == 10 || tile == 14) return false;
  }
  return true;
}

// C[k] is the byte that the cartridge shows at F080 + k.
RLB_FN void step_klax(RuleState& s, const Ram& R, const Ram& C) {
  const s32 limit = C[0xE9 - 0x80];
  const bool has_dropped_all = limit > 0 && C[0xEE - 0x80] == limit;
  const bool is_full = R[0xA8] == 4 && klax_well_is_full(R);
  const bool is_last_wave = C[0x9D - 0x80] == 0x99;
  rule(s, C.d3(0xB4 - 0x80, 0xB5 - 0x80, 0xB6 - 0x80), has_dropped_all || is_full || is_last_wave);
}

RLB_FN void step_miniature_golf(RuleState& s, const Ram& R) {
  const s32 left = R.d(0x87);
  const s32 right = R.d(0x88);
  const s32 hole = R.d(0xAF);
  s32* const e = s.extra;
  s.reward = 0;
  if (hole != e[extra_hole]) {
    const s32 hits = e[extra_left] + e[extra_hits] - e[extra_hits_at_start];
    if (hits > 0) s.reward = e[extra_par] - hits;
    if (hole == 0) s.terminal = 1;
    e[extra_hole] = hole;
    e[extra_hits] = 0;
    e[extra_hits_at_start] = e[extra_left];
  }
  if (right != 0) {
    e[extra_par] = right;
  } else {
    if (left < e[extra_left]) e[extra_hits] += e[extra_left];
    e[extra_left] = left;
  }
}

RLB_FN void step_othello(RuleState& s, const Ram& R) {
  s32& idle = s.extra[extra_idle];
  idle = R[0xC0] == 0 ? idle + 1 : 0;
  rule(s, R.d(0xCE) - R.d(0xD0), idle > 50);
}

RLB_FN s32 pitfall_lives(s32 marks) { return marks == 10 ? 3 : marks == 8 ? 2 : 1; }

RLB_FN void step_pitfall(RuleState& s, const Ram& R) {
  const s32 marks = R.high(0x80);
  const bool is_over = marks == 0 && R[0x9E] != 0;
  rule(s, R.d3(0xD7, 0xD6, 0xD5), pitfall_lives(marks), is_over);
}

RLB_FN void step_pitfall2(RuleState& s, const Ram& R) {
  const s32 score = R.d3(0xC9, 0xC8, 0xC7);
  rule(s, score, 1, score == 199000);
}

RLB_FN void step_qbert(RuleState& s, const Ram& R) {
  s32& last = s.extra[extra_last_lives];
  const s32 now = R.signed_byte(0x88);
  s.terminal = R[0x88] == 0xFE || (R[0x88] == 2 && last == -1);
  if (last - 1 == now) --s.lives;
  last = now;
  if (s.terminal) {
    s.reward = 0;
  } else {
    count(s, R.d3(0xDB, 0xDA, 0xD9));
  }
}

// A digit k is the byte 8 k; anything else is a blank.
RLB_FN s32 riverraid_digit(s32 byte) { return byte % 8 == 0 && byte <= 72 ? byte / 8 : 0; }

RLB_FN s32 riverraid_score(const Ram& R) {
  s32 sum = riverraid_digit(R[0xCD]);
  for (u32 address = 0xCF; address <= 0xD7; address += 2) {
    sum = 10 * sum + riverraid_digit(R[address]);
  }
  return sum;
}

RLB_FN void step_riverraid(RuleState& s, const Ram& R) {
  s32& lives_byte = s.extra[extra_lives_byte];
  rule(s, riverraid_score(R), R[0xC0] == 0x58 && lives_byte == 0x59);
  lives_byte = R[0xC0];
}

RLB_FN s32 riverraid_lives(s32 lives_byte) {
  return lives_byte == 0x58 ? 4 : lives_byte == 0x59 ? 1 : lives_byte / 8 + 1;
}

RLB_FN void step_road_runner(RuleState& s, const Ram& R) {
  const s32 lives = R[0xC4] & 7;
  const bool is_over = lives == 0 && (R[0xB9] != 0 || R[0xBD] != 0);
  rule(s, 100 * R.digits(0xC9, 4), lives + 1, is_over);
}

// Hundredths of a second, which cost reward. The byte of the minutes is binary.
RLB_FN void step_skiing(RuleState& s, const Ram& R) {
  rule(s, 6000 * R[0xE8] + R.d2(0xEA, 0xE9), R[0x91] == 0xFF);
  s.reward = -s.reward;
}

RLB_FN void step_space_invaders(RuleState& s, const Ram& R) {
  rule(s, R.d2(0xE8, 0xE6), R[0xC9], (R[0x98] & 0x80) != 0 || R[0xC9] == 0);
  wrap_reward(s, 10000);
}

RLB_FN void step_space_war(RuleState& s, const Ram& R) {
  rule(s, R.d(0xA7), R.d(0xA7) == 10 || R[0x80] == 0);
}

RLB_FN void step_star_gunner(RuleState& s, const Ram& R) {
  if (R[0x87] == 5) s.started = 1;
  rule(s, 100 * R.digits(0x83, 4), s.started ? R[0x87] & 15 : 5, R[0x87] == 0);
}

// The score is the time in seconds; the reward comes once, at the end.
RLB_FN void step_superman(RuleState& s, const Ram& R) {
  s.score = 60 * R.d(0xE3) + R.d(0xE2);
  s.terminal = (R[0x9F] & 0x40) != 0 && R[0x80] + 256 * R[0x81] == 0xF2AC;
  s.reward = s.terminal ? 5999 - s.score : 0;
}

RLB_FN void step_surround(RuleState& s, const Ram& R) {
  const s32 mine = R.d(0xF7);
  const s32 theirs = R.d(0xF6);
  rule(s, mine - theirs, mine == 10 || theirs == 10);
}

RLB_FN void step_tennis(RuleState& s, const Ram& R) {
  const s32 my_games = R[0xC7];
  const s32 their_games = R[0xC8];
  const s32 games = my_games - their_games;
  const s32 points = R[0xC5] - R[0xC6];
  s.reward = games - s.extra[extra_games];
  if (s.reward == 0) s.reward = points - s.extra[extra_points];
  s.extra[extra_games] = games;
  s.extra[extra_points] = points;
  const bool i_won = my_games >= 6 && games >= 2;
  const bool they_won = their_games >= 6 && -games >= 2;
  s.terminal = i_won || they_won || my_games == 7 || their_games == 7;
}

RLB_FN void step_tetris(RuleState& s, const Ram& R) {
  rule(s, R.d2(0xF1, 0xF2), (R[0xF3] & 0x80) != 0);
  forbid_loss(s);
  if (s.terminal) s.score = 0;
}

RLB_FN void step_tic_tac_toe_3d(RuleState& s, const Ram& R) {
  s.reward = 0;
  if (R[0xFF] == 0xF3 && R[0xFE] == 0x10) finish(s, R[0xE1] == 8 ? 1 : -1);
  for (u32 address = 0x9A; address <= 0xD9; ++address) {
    if (R[address] == 0) return;
  }
  s.terminal = 1;  // The board is full.
}

RLB_FN void step_time_pilot(RuleState& s, const Ram& R) {
  rule(s, 100 * R.d2(0x8D, 0x8F), R[0xA0] != 0);
  if ((R[0x80] & 15) == 2) s.lives = (R[0x8B] & 7) + 1;
}

// Nothing is set back here: an ended game keeps reporting its reward.
RLB_FN void step_video_checkers(RuleState& s, const Ram& R) {
  s32 n_black = 0;
  s32 n_white = 0;
  for (u32 address = 0x80; address <= 0xA2; ++address) {
    if (address == 0x88 || address == 0x91 || address == 0x9A) continue;  // Between the rows.
    const s32 piece = R[address];
    if (piece == 0x10 || piece == 0x20) ++n_black;
    if (piece == 0x90 || piece == 0xA0) ++n_white;
  }
  const s32 sign = s.mode >= 11 ? -1 : 1;
  if (n_black == 0) {
    finish(s, -sign);
  } else if (n_white == 0) {
    finish(s, sign);
  }
}

RLB_FN void step_video_chess(RuleState& s, const Ram& R) {
  s.reward = 0;
  if (R[0xE1] != 0x82) return;
  if (R[0xEE] == 0) finish(s, 1);
  if (R[0xEE] == 1) finish(s, -1);
}

RLB_FN bool cube_face_is_done(const Ram& R, u32 first) {
  for (u32 address = first + 1; address < first + 9; ++address) {
    if (R[address] != R[first]) return false;
  }
  return true;
}

RLB_FN void step_video_cube(RuleState& s, const Ram& R) {
  s32 n_faces = 0;
  for (u32 face = 0; face < 6; ++face) n_faces += cube_face_is_done(R, 0xA0 + 9 * face);
  const bool timed_out = has_timed_out(s, R[0xDB]);
  rule(s, n_faces, timed_out || n_faces == 6);
  if (timed_out) s.reward = -1;
}

RLB_FN void step_wizard_of_wor(RuleState& s, const Ram& R) {
  const s32 score = R.d2(0x86, 0x88);
  const s32 lives = R[0x8D] & 15;
  rule(s, 100 * (score >= 8000 ? score - 8000 : score), lives == 0 && R[0xF4] == 0xF8);
  if ((R[0xD7] & 1) == 0) s.lives = lives;
}

// Everything keeps its old value, the reward too, while no time is shown.
RLB_FN void step_word_zapper(RuleState& s, const Ram& R) {
  if (R.d(0xCF) == 0) return;
  count(s, 2 - R.signed_byte(0xDC));
  s.terminal = s.score == 3 || R.d(0xDE) == 0;
}

}  // namespace rlbatch::atari
