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
// Notation. Addresses are written as on the bus, 80h to FFh, and taken modulo 128. d2 and d3 are
// packed BCD numbers of two or three bytes, lowest byte first; digits are not validated.
//
// Source: black-box measurements of ale-py 0.12.1 (all 104 ROMs in lockstep).
#pragma once

#include "platform.h"

namespace rlbatch::atari {

// The order is that of GAMES in ../games.py: alphabetical, without the four ROMs that have no
// rules for one player.
enum class Rule : s32 {
  adventure, air_raid, alien, amidar, assault, asterix, asteroids, atlantis, atlantis2,
  backgammon, bank_heist, basic_math, battle_zone, beam_rider, berzerk, blackjack, bowling,
  boxing, breakout, carnival, casino, centipede, chopper_command, crazy_climber, crossbow,
  darkchambers, defender, demon_attack, donkey_kong, double_dunk, earthworld, elevator_action,
  enduro, entombed, et, fishing_derby, flag_capture, freeway, frogger, frostbite, galaxian,
  gopher, gravitar, hangman, haunted_house, hero, human_cannonball, ice_hockey, jamesbond,
  journey_escape, kaboom, kangaroo, keystone_kapers, king_kong, klax, koolaid, krull,
  kung_fu_master, laser_gates, lost_luggage, mario_bros, miniature_golf, montezuma_revenge, mr_do,
  ms_pacman, name_this_game, othello, pacman, phoenix, pitfall, pitfall2, pong, pooyan,
  private_eye, qbert, riverraid, road_runner, robotank, seaquest, sir_lancelot, skiing, solaris,
  space_invaders, space_war, star_gunner, superman, surround, tennis, tetris, tic_tac_toe_3d,
  time_pilot, trondead, turmoil, tutankham, up_n_down, venture, video_checkers, video_chess,
  video_cube, video_pinball, wizard_of_wor, word_zapper, yars_revenge, zaxxon,
};

constexpr s32 n_rules = 104;
static_assert(static_cast<s32>(Rule::zaxxon) + 1 == n_rules, "a rule is missing");

// Places in RuleState::extra.
enum Extra : s32 {
  extra_level = 0,          // darkchambers: the deepest level so far.
  extra_health = 1,         // darkchambers: health, 0 to 31.
  extra_computer = 0,       // hangman: the computer's points.
  extra_player = 1,         // hangman: the player's points.
  extra_misses = 0,         // human_cannonball: missed shots.
  extra_hole = 0,           // miniature_golf: the hole being played.
  extra_par = 1,            // miniature_golf: its par.
  extra_hits = 2,           // miniature_golf: hits added up at this hole.
  extra_left = 3,           // miniature_golf: the left display when last seen.
  extra_hits_at_start = 4,  // miniature_golf: what the left display showed when the hole began.
  extra_idle = 0,           // othello: consecutive frames without a cursor.
  extra_last_lives = 0,     // qbert: the signed lives byte of the previous frame.
  extra_lives_byte = 0,     // riverraid: the lives byte of the previous frame.
  extra_points = 0,         // tennis: lead in points, C5 less C6.
  extra_games = 1,          // tennis: lead in games, C7 less C8.
};

struct RuleState {
  s32 reward;         // Of the last frame.
  s32 score;          // The number whose gain is the reward; a count of faces in video_cube.
  s32 lives;          // Variable behind `rule_lives`, which not every game has.
  s32 mode;           // Game mode of this episode.
  s32 extra[5];       // See Extra.
  u8 terminal;        // The episode has ended. Recomputed every frame in most games.
  u8 started;         // breakout, chopper_command, star_gunner: the game has begun.
  u8 previous_timer;  // hangman, video_cube: the timer byte of the previous frame.
  u8 mode_changed;    // demon_attack: no rule has run since the mode was chosen.
};
static_assert(sizeof(RuleState) == 40, "plain bytes, without padding");

struct Memory {
  const u8* ram;       // 128 bytes of RIOT RAM.
  const u8* cart_ram;  // 128 bytes of a superchip cartridge; only klax reads them.
};

RLB_FN s32 bcd(s32 byte) { return 10 * (byte >> 4) + (byte & 15); }

// RAM, with numbers in the forms in which games keep them.
struct Ram {
  const u8* bytes;

  RLB_FN s32 operator[](u32 address) const { return bytes[address & 127]; }
  RLB_FN s32 low(u32 address) const { return (*this)[address] & 15; }
  RLB_FN s32 high(u32 address) const { return (*this)[address] >> 4; }
  RLB_FN s32 signed_byte(u32 address) const { return static_cast<s8>((*this)[address]); }

  RLB_FN s32 d(u32 address) const { return bcd((*this)[address]); }
  RLB_FN s32 d2(u32 low, u32 high) const { return d(low) + 100 * d(high); }
  RLB_FN s32 d3(u32 low, u32 middle, u32 high) const { return d2(low, middle) + 10000 * d(high); }

  // n digits, one to a byte's low half, units first; 10 is a blank.
  RLB_FN s32 digits(u32 units, u32 n) const {
    s32 sum = 0;
    for (u32 i = n; i-- > 0;) sum = 10 * sum + blank(low(units + i));
    return sum;
  }
  RLB_FN static s32 blank(s32 digit) { return digit == 10 ? 0 : digit; }
};

// The three usual shapes of a rule: the reward is the gain in score.
RLB_FN void count(RuleState& s, s32 score) {
  s.reward = score - s.score;
  s.score = score;
}

RLB_FN void rule(RuleState& s, s32 score, bool terminal) {
  count(s, score);
  s.terminal = terminal;
}

RLB_FN void rule(RuleState& s, s32 score, s32 lives, bool terminal) {
  rule(s, score, terminal);
  s.lives = lives;
}

// For scores that run over: `range` more if the reward is negative.
RLB_FN void wrap_reward(RuleState& s, s32 range) {
  if (s.reward < 0) s.reward += range;
}

RLB_FN void forbid_loss(RuleState& s) {
  if (s.reward < 0) s.reward = 0;
}

// Sets the reward and, for good, the end of the episode.
RLB_FN void finish(RuleState& s, s32 reward) {
  s.reward = reward;
  s.terminal = 1;
}

// -------------------------------------------------------------------------------------------------
// Games with rules of their own
// -------------------------------------------------------------------------------------------------

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

// -------------------------------------------------------------------------------------------------
// All games
// -------------------------------------------------------------------------------------------------

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
