// One environment of a batch: episodes, frame skip, and what an observation is made of.
//
// NOTE [ observations ]
//
// As in ale-py's AtariVectorEnv. An observation is made from an image, the maximum of the screens
// after the last frame of a step and after the one before it, resized. A step whose episode ends
// early keeps what it did not replace, so that
//   ending in the last frame     shows the maximum of the previous image and the frame before,
//   ending in any frame earlier  shows the previous observation once more.
// The first case needs the previous image in full size. It is made anew from the two screens that
// the console has anyway; only partial frames, which go on in the same screen, need a copy of it
// to be kept.
//
// NOTE [ known resets ]
//
// In most games nothing of an episode survives a reset (`Game.reset_depends_on`), but for bytes of the RAM
// that nothing else depends on, and for a few bits, the key; and the timer, which is random, makes for 75
// states at most. There the resets and the actions that begin an episode are emulated once, with all keys
// and timers that matter, and what they lead to is copied afterwards: with many of them for a GPU alone,
// where a warp waits for the reset of one thread. The bytes that survive are emulated from 0, but for
// bits of the key, so that what they were is to be added.
//
// With sticky actions it is a matter of chance whether FIRE, the first of these actions, is pressed, and
// for how many of them it is held. That is drawn first: with each number below kMostHeld all actions are
// known, with more the first kMostHeld.
//
// NOTE [ known power-on ]
//
// Loading a cartridge takes more than a hundred frames, and leads to the same console in all environments of a
// game: the generator of the hardware begins alike everywhere. So it is emulated once, and copied. But in two
// games the choice of a mode draws from the environment's generator, as sticky actions do; with these it is
// emulated in every environment.
//
// How images are made is the business of a canvas: `host_canvas.h`, `device_canvas.h`.
//
// NOTE [ frames that nobody sees ]
//
// Of the frames of a step only the last two leave pictures behind, unless the episode ends before,
// or one of the two does not draw all of its screen, so that what an earlier frame has drawn there
// shows. So the others are not drawn; but their states are recorded, and in such a case all frames
// of the step are drawn from these. Where that happens, it mostly happens again: then some
// steps are drawn as a whole.
//
// So it is with the frames of a reset and the actions that begin an episode, as far as they are not known,
// unless the last two draw less than any before. Then all are emulated once more to be drawn, from a copy of
// the state and of the random numbers. It takes the place of the observations, which are over.
#pragma once

#include "console.h"
#include "platform.h"
#include "preprocess.h"

namespace rlbatch::atari {

enum ObservationType : s32 { kGrayscale, kRgb, kRam };

struct Options {
  s32 observation_type, stack, height, width;
  s32 frame_skip, maxpool, noop_max, fire_reset;
  s32 episodic_life, life_loss_info, clip_reward, max_frames;
  f32 repeat_probability;
};

constexpr s32 kMostLeft = 31, kMostKeyBytes = 3, kMostKeys = 16, kMostNeeds = 3;
constexpr s32 kMostHeld = 4;

// A game as a batch plays it.
struct GameSpec {
  Config config;
  s32 default_mode, mode, difficulty, has_fire, n_actions;
  s32 actions[18];
  s32 n_timers;   // Of which the state after a reset depends; 0 if also on what was played.
  s32 most_acts;  // After a reset, of which all that is said here is true.
  s32 n_left;     // Bytes of RAM that a reset leaves, or adds something to; without the bits of the key.
  s32 left_at[kMostLeft], left_bits[kMostLeft];
  s32 key_at[kMostKeyBytes], key_bits[kMostKeyBytes];
  s32 needed_at[kMostNeeds], needed_bits[kMostNeeds];  // Bits of RAM with which all this is true, if
  s32 needed_from[kMostNeeds], needed_to[kMostNeeds];  // they are within these, around 255 if from > to.
};

// Where the resets of a game lead to, see NOTE [ known resets ]. The states, which others keep, are
// [n_acts + 1][n_holds][n_ends].
struct KnownResets {
  s32 n_ends;   // 0 if nothing is known.
  s32 n_acts;   // How many acts may follow.
  s32 n_holds;  // 1, or kMostHeld + 1 where it is a matter of chance for how many acts FIRE is held.
  s32 n_draws;  // That a reset takes from the environment's generator.
  u8 end_of[kMostKeys][kTimers];
};

// Where power-on leads to, see NOTE [ known power-on ].
struct PowerOn {
  State state;
  Mt19937 system;
  s32 n_draws;  // That it takes from the environment's generator.
  s32 is_known;
};

// What is kept of an environment from step to step, beside the console's state.
struct Episode {
  f64 episode_return;   // Raw.
  s32 episode_length;   // Steps.
  s32 elapsed;          // Frames since the reset, those of its no-ops left out.
  s32 newest;           // Place of the newest frame in the ring of observations.
  s32 reward, reward_raw, last_action;
  u8 terminated, truncated, life_lost;
  u8 has_ended;    // Only a reset goes on from here.
  u8 is_of_one;    // The last image is that of the current screen alone,
  u8 has_kept;     // or the maximum of it and the screen that was kept. Else it is of both screens.
  u8 steps_to_draw;  // So many steps are drawn as a whole.
  u8 padding[5];
};

// Writes what a step has led to, to a row of arrays that are named as in an `Episode`.
template <class Results>
RLB_FN void write_outcome(const Episode& e, const Results& results, s32 row) {
  results.reward[row] = e.reward;
  results.reward_raw[row] = e.reward_raw;
  results.episode_length[row] = e.episode_length;
  results.episode_return[row] = e.episode_return;
  results.last_action[row] = e.last_action;
  results.terminated[row] = e.terminated;
  results.truncated[row] = e.truncated;
  results.life_lost[row] = e.life_lost;
  results.has_ended[row] = e.has_ended;
}

RLB_FN s32 frame_size(const Options& o) {
  return o.observation_type == kRam ? 128 : o.height * o.width * (o.observation_type == kRgb ? 3 : 1);
}

constexpr s32 kSeen = 2;        // Frames that leave pictures behind.
constexpr s32 kMaxUnseen = 16;  // More frames than that in a step are drawn.
constexpr u8 kStepsToDraw = 50;

// The acts after a known reset that are known as well.
struct Opening {
  s32 n_acts, n_taken;
  s32 n_held;  // Acts for which FIRE is held; 0 if that is no matter of chance.
};

// Where a reset begins.
struct Start {
  State state;
  Generators generators;
};

template <class Canvas>
struct Environment {
  const GameSpec& game;
  const Options& options;
  Console console;
  Episode& e;
  Mt19937& noops;
  State* recorded;  // Scratch: [kMaxUnseen] states before the frames of a step; null to draw all.
  const KnownResets& resets;
  const PowerOn& known_power_on;
  Canvas canvas;

  RLB_FN State& state() const { return console.s; }
  RLB_FN bool has_images() const { return options.observation_type != kRam; }

  // --- Episodes. ---

  RLB_FN s32 draw_noops() {
    if (options.noop_max <= 0) return 0;
    const u32 n = static_cast<u32>(options.noop_max), rejected = (0u - n) % n;
    u64 product;
    do product = static_cast<u64>(next_draw(noops)) * n;
    while (static_cast<u32>(product) < rejected);
    return static_cast<s32>(product >> 32);
  }

  // Loads the cartridge, as a reset with a seed does. Mode and difficulty are chosen after that.
  RLB_FN void load(u32 value) {
    seed(noops, value);
    if (known_power_on.is_known) {
      state() = known_power_on.state;
      console.generators.system = known_power_on.system;
      seed(console.generators.environment, value);
      for (s32 i = 0; i < known_power_on.n_draws; ++i) next_draw(console.generators.environment);
    } else {
      power_on(value);
    }
    state().session.mode = game.mode;
    state().session.difficulty = game.difficulty;
  }

  // Nothing of it is seen: a reset follows.
  RLB_FN void power_on(u32 value) {
    console.is_blind = true;
    console.power_on(value, game.default_mode);
    console.is_blind = false;
  }

  RLB_FN void reset() {
    const s32 n_noops = draw_noops();
    const bool fires = options.fire_reset && game.has_fire;
    const s32 n_acts = fires && n_noops < 1 ? 1 : n_noops;
    emulate_rest(fires, is_reset_known() ? resume(n_acts) : -1, n_acts);
    begin_episode();
  }

  // Emulates the acts that are to be done after so many, and before them, if these are -1, the reset. See
  // NOTE [ frames that nobody sees ].
  RLB_FN void emulate_rest(bool fires, s32 n_done, s32 n_acts) {
    Start* const start = reinterpret_cast<Start*>(canvas.ring);
    const s32 ring_size = options.stack * frame_size(options);
    const bool fits = ring_size >= s32{sizeof(Start)} && ring_size % s32{alignof(Start)} == 0;
    bool is_blind = has_images() && fits && (n_done < 0 || n_acts - n_done > kSeen);
    if (is_blind) {
      start->state = state();
      start->generators = console.generators;
    }
    while (!reset_and_act(fires, n_done, n_acts, is_blind)) {
      state() = start->state;
      console.generators = start->generators;
      is_blind = false;
    }
  }

  // Returns whether all was drawn that is still to be seen.
  RLB_FN bool reset_and_act(bool fires, s32 n_done, s32 n_acts, bool is_blind) {
    console.is_blind = is_blind;
    if (n_done < 0) console.reset_game(n_acts < kSeen);
    for (s32 k = n_done < 0 ? 0 : n_done; k < n_acts; ++k) {
      console.is_blind = is_blind && k + kSeen < n_acts;
      act_in_reset(fires && k == 0);
    }
    console.is_blind = false;
    return !is_blind || console.n_covering >= kSeen;
  }

  RLB_FN void act_in_reset(bool is_fire) {
    console.act(is_fire ? 1 : kActionNoop);
    if (!is_fire && state().rule.terminal) console.reset_game();
  }

  // See NOTE [ known resets ]. Returns how many of the acts are done.
  RLB_FN s32 resume(s32 n_acts) {
    const s32 end = resets.end_of[reset_key()][console.draw_timer()];
    for (s32 i = 0; i < resets.n_draws; ++i) console.draw();
    const Opening done = draw_opening(n_acts < resets.n_acts ? n_acts : resets.n_acts);
    const s32 known = (done.n_acts * resets.n_holds + done.n_held) * resets.n_ends + end;
    u8 left[kMostLeft];
    for (s32 i = 0; i < game.n_left; ++i) left[i] = left_byte(i) & game.left_bits[i];
    const bool is_swapped = console.resume(canvas.known_state(known));
    for (s32 i = 0; i < game.n_left; ++i) left_byte(i) = static_cast<u8>(left_byte(i) + left[i]);
    state().cpu.bus = state().riot.ram[127];  // As after any frame.
    state().session.sticky_strength = done.n_taken > 0;
    if (has_images()) canvas.show_known(console, known, is_swapped);
    return done.n_acts;
  }

  // Draws which of so many acts take effect, as far as what they lead to is known.
  RLB_FN Opening draw_opening(s32 n_acts) const {
    Opening o{};
    bool is_held = false;
    for (; o.n_acts < n_acts && o.n_held < kMostHeld; ++o.n_acts) {
      if (console.takes_action()) {
        is_held = resets.n_holds > 1 && o.n_acts == 0;
        ++o.n_taken;
      }
      o.n_held += is_held;
    }
    return o;
  }

  RLB_FN bool is_reset_known() const {
    if (state().frame.is_partial) return false;  // The frame would go on in the reset.
    // Sticky actions make a matter of chance of what a reset does with actions.
    if (!resets.n_ends || (resets.n_draws && options.repeat_probability > 0)) return false;
    for (s32 i = 0; i < kMostNeeds; ++i) {
      const s32 bits = state().riot.ram[game.needed_at[i] & 0x7f] & game.needed_bits[i];
      const s32 from = game.needed_from[i], to = game.needed_to[i];
      if (static_cast<u8>(bits - from) > static_cast<u8>(to - from)) return false;
    }
    return true;
  }

  // Does `work` with every bit of the key: its byte of RAM, its place in that and its place in the key.
  template <class Work>
  RLB_FN void with_key_bits(const Work& work) const {
    s32 n = 0;
    for (s32 i = 0; i < kMostKeyBytes; ++i) {
      for (s32 bit = 0; bit < 8; ++bit) {
        if (game.key_bits[i] >> bit & 1) work(state().riot.ram[game.key_at[i] & 0x7f], bit, n++);
      }
    }
  }

  RLB_FN u32 reset_key() const {
    u32 key = 0;
    with_key_bits([&](u8 byte, s32 bit, s32 place) { key |= (byte >> bit & 1u) << place; });
    return key;
  }

  // A byte of RAM that a reset leaves, or adds something to.
  RLB_FN u8& left_byte(s32 i) const { return state().riot.ram[game.left_at[i] & 0x7f]; }

  // Makes the RAM one from which a reset is known; see NOTE [ known resets ].
  RLB_FN void prepare_known_reset(u32 key) {
    for (s32 i = 0; i < game.n_left; ++i) left_byte(i) = 0;
    for (s32 i = 0; i < kMostNeeds; ++i) {
      u8& byte = state().riot.ram[game.needed_at[i] & 0x7f];
      byte = static_cast<u8>((byte & ~game.needed_bits[i]) | game.needed_from[i]);
    }
    with_key_bits([&](u8& byte, s32 bit, s32 place) {
      byte = static_cast<u8>((byte & ~(1 << bit)) | (key >> place & 1) << bit);
    });
  }

  // The console is where an episode begins.
  RLB_FN void begin_episode() {
    e = Episode{};
    e.is_of_one = 1;
    canvas.clear_stack();
    if (has_images()) {
      canvas.push_image(console, e);
    } else {
      canvas.push_ram(console, e);
    }
  }

  // Counts rewards and steps from here, as if the episode began.
  RLB_FN void start_count() {
    e.episode_return = 0;
    e.episode_length = 0;
    e.reward = e.reward_raw = e.last_action = 0;
    e.terminated = e.truncated = e.life_lost = 0;
  }

  RLB_FN void step(s32 action_index, f32 strength) {
    const bool is_valid = action_index >= 0 && action_index < game.n_actions;
    const s32 action = is_valid ? game.actions[action_index] : kActionNoop;
    const s32 lives = console.lives();
    if (has_images()) canvas.recall_image(console, e);
    begin_unseen();
    s32 sum = 0, k = options.frame_skip;
    bool over = false, is_late = false, life_lost = false, has_second = false;
    for (; k > 0; --k) {
      console.is_blind = console.record && k > 2;
      sum += console.act(action, strength);
      over = state().rule.terminal;
      is_late = ++e.elapsed >= options.max_frames && options.max_frames > 0;
      life_lost = console.lives() < lives && console.lives() > 0;
      const bool is_last = over || is_late || (options.episodic_life && life_lost);
      if (console.record && must_redraw(k, is_last)) redraw();
      if (is_last) break;
      if (k == 2 && has_images() && options.maxpool) has_second = keep_second();
    }
    console.is_blind = false;
    console.record = nullptr;
    e.last_action = action_index;
    e.has_ended = k > 0;
    end_step(sum, over, is_late, life_lost);
    if (!has_images()) return canvas.push_ram(console, e);
    push_step(k, has_second);
  }

  // See NOTE [ frames that nobody sees ].
  RLB_FN void begin_unseen() {
    const bool is_possible = recorded && has_images() && options.frame_skip > 2 &&
                             options.frame_skip <= kMaxUnseen && !state().frame.is_partial;
    console.record = is_possible && !e.steps_to_draw ? recorded : nullptr;
    if (e.steps_to_draw) --e.steps_to_draw;
  }

  RLB_FN bool must_redraw(s32 k, bool is_last) const {
    if (state().frame.is_partial) return true;
    if (k > kSeen) return is_last;
    return state().tia.drawn < state().tia.window_end;
  }

  RLB_FN void redraw() {
    console.redraw(recorded, static_cast<s32>(console.record - recorded));
    e.steps_to_draw = kStepsToDraw;
  }

  RLB_FN void end_step(s32 sum, bool over, bool is_late, bool life_lost) {
    e.reward_raw = sum;
    e.reward = options.clip_reward ? (sum > 0) - (sum < 0) : sum;
    e.life_lost = life_lost;
    e.terminated = over || ((options.life_loss_info || options.episodic_life) && life_lost);
    e.truncated = is_late && !e.terminated;
    e.episode_return += sum;
    ++e.episode_length;
  }

  // After the last frame but one: if the next one goes on in its screen, a copy must be kept. Returns
  // whether it was.
  RLB_FN bool keep_second() {
    if (!state().frame.is_partial) return false;
    canvas.keep_screen(console);
    return true;
  }

  // Adds the observation of a step that ended with `k` frames to go.
  RLB_FN void push_step(s32 k, bool has_second) {
    const bool has_two = options.maxpool && options.frame_skip > 1;
    if (k >= 2 || (k == 1 && !has_two)) return canvas.push_last_again(e);
    if (k == 1) return canvas.push_recalled(console, e, has_second);
    // Mostly a frame that goes on draws nothing more, and nothing has to be kept.
    e.has_kept = has_second && canvas.kept_differs(console);
    e.is_of_one = !has_two || (has_second && !e.has_kept);
    canvas.push_image(console, e);
  }
};

}  // namespace rlbatch::atari
