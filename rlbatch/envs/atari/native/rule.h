// What the rule of a game keeps, what it reads, and the shapes that most rules have.
//
// Notation, here and in own_rules.h and games.h. Addresses are written as on the bus, 80h to FFh, and
// taken modulo 128. d2 and d3 are packed BCD numbers of two or three bytes, lowest byte first; digits
// are not validated.
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

}  // namespace rlbatch::atari
