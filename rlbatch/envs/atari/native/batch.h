// One environment of a batch: episodes, frame skip, preprocessing, and the stack of observations.
//
// NOTE [ observations ]
//
// As in ale-py's AtariVectorEnv. An observation is made from two images of palette values, `raw[0]` of
// the last frame of a step and `raw[1]` of the one before it: their maximum, resized. A step whose
// episode ends early keeps images that it did not replace, so that
//   ending in the last frame     shows the maximum of the previous observation's and the frame before,
//   ending in any frame earlier  shows the previous observation once more.
// The first case needs the previous image in full size. It is made anew, at the start of a step, from
// the two screens that the console keeps anyway; only partial frames, which go on in the same
// screen, need a copy to be kept.
//
// NOTE [ frames that nobody sees ]
//
// Of the frames of a step only the last two leave pictures behind, unless the episode ends before,
// or one of the two does not draw all of its screen, so that what an earlier frame has drawn there
// shows. So the others are not drawn; but their states are recorded, and in such a case all frames
// of the step are drawn from these. Where that happens, it mostly happens again: then some
// steps are drawn as a whole.
#pragma once

#include "console.h"
#include "palette.h"
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

// A game as a batch plays it.
struct GameSpec {
  Config config;
  s32 default_mode, mode, difficulty, n_actions;
  s32 actions[18];
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
  u8 is_of_one;    // The last image is that of the current screen alone.
  u8 has_kept;     // The previous image is in `kept`.
  u8 steps_to_draw;  // So many steps are drawn as a whole.
  u8 padding[5];
};

constexpr s32 kMaxUnseen = 16;  // More frames than that in a step are drawn.
constexpr u8 kStepsToDraw = 50;

struct Environment {
  const GameSpec& game;
  const Options& options;
  const Resize& resize;
  Console console;
  Episode& e;
  Mt19937& noops;
  u8* ring;    // [stack][frame_size] observations of single frames.
  u8* image;   // Scratch: the pooled image, in the planes of `observation_type`.
  u8* kept;    // Scratch of the same size; what is in it if `e.has_kept` lasts from step to step.
  State* recorded;  // Scratch: [kMaxUnseen] states before the frames of a step; null to draw all.

  RLB_FN State& state() const { return console.s; }
  RLB_FN s32 n_pixels() const { return state().session.height * kWidth; }
  RLB_FN s32 n_planes() const { return options.observation_type == kRgb ? 3 : 1; }

  RLB_FN static s32 frame_size(const Options& o) {
    return o.observation_type == kRam ? 128 : o.height * o.width * (o.observation_type == kRgb ? 3 : 1);
  }

  // --- Images. ---

  // The values of palette indices, in one plane.
  RLB_FN void lookup_table(s32 plane, u8* lut) const {
    const bool is_pal = state().session.is_pal;
    const u8(*rgb)[3] = is_pal ? PAL_RGB : NTSC_RGB;
    const u8* gray = is_pal ? PAL_GRAY : NTSC_GRAY;
    for (s32 i = 0; i < 256; ++i) lut[i] = options.observation_type == kRgb ? rgb[i][plane] : gray[i];
  }

  // Writes the maximum of the values of one or two screens, in all planes.
  RLB_FN void pool_screens(const u8* first, const u8* second, u8* out) const {
    if (options.observation_type == kGrayscale) {
      pool(Frames{first, second, state().session.is_pal ? PAL_GRAY : NTSC_GRAY}, n_pixels(), out);
      return;
    }
    for (s32 plane = 0; plane < 3; ++plane) {
      u8 lut[256];
      lookup_table(plane, lut);
      pool(Frames{first, second, lut}, n_pixels(), out + plane * n_pixels());
    }
  }

  // Adds an observation of `image` to the ring.
  RLB_FN void push_image() {
    u8* out = next_frame();
    for (s32 plane = 0; plane < n_planes(); ++plane) {
      resize_image(image + plane * n_pixels(), resize, out + plane, n_planes());
    }
  }

  RLB_FN u8* next_frame() {
    e.newest = e.newest + 1 == options.stack ? 0 : e.newest + 1;
    return ring + e.newest * frame_size(options);
  }

  RLB_FN void push_ram() {
    u8* out = next_frame();
    for (s32 i = 0; i < 128; ++i) out[i] = state().riot.ram[i];
  }

  RLB_FN void push_last_again() {
    const u8* last = ring + e.newest * frame_size(options);
    u8* out = next_frame();
    if (out != last) copy_bytes(last, out, frame_size(options));
  }

  RLB_FN static bool is_at_most(const u8* a, const u8* b, s32 n) {
    for (s32 i = 0; i < n; ++i) {
      if (a[i] > b[i]) return false;
    }
    return true;
  }

  // Writes the stack, the oldest frame first.
  RLB_FN void write_stack(u8* out) const {
    const s32 size = frame_size(options);
    for (s32 i = 1; i <= options.stack; ++i, out += size) {
      const s32 place = e.newest + i >= options.stack ? e.newest + i - options.stack : e.newest + i;
      copy_bytes(ring + place * size, out, size);
    }
  }

  // --- Episodes. ---

  RLB_FN s32 draw_noops() {
    if (options.noop_max <= 0) return 0;
    const u32 n = static_cast<u32>(options.noop_max), rejected = (0u - n) % n;
    u64 product;
    do product = static_cast<u64>(next_draw(noops)) * n;
    while (static_cast<u32>(product) < rejected);
    return static_cast<s32>(product >> 32);
  }

  RLB_FN bool has_fire() const {
    for (s32 i = 0; i < game.n_actions; ++i) {
      if (game.actions[i] == 1) return true;
    }
    return false;
  }

  // Loads the cartridge, as a reset with a seed does. Mode and difficulty are chosen after that.
  RLB_FN void load(u32 value) {
    seed(noops, value);
    console.power_on(value, game.default_mode);
    state().session.mode = game.mode;
    state().session.difficulty = game.difficulty;
  }

  RLB_FN void reset() {
    console.reset_game();
    s32 n_noops = draw_noops();
    if (options.fire_reset && has_fire()) {
      console.act(1);
      --n_noops;
    }
    for (s32 k = 0; k < n_noops; ++k) {
      console.act(kActionNoop);
      if (state().rule.terminal) console.reset_game();
    }
    begin_episode();
  }

  // The console is where an episode begins.
  RLB_FN void begin_episode() {
    e = Episode{};
    for (s32 i = 0; i < options.stack * frame_size(options); ++i) ring[i] = 0;
    e.is_of_one = 1;
    if (options.observation_type == kRam) return push_ram();
    pool_screens(console.screen(), nullptr, image);
    push_image();
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
    const bool needs_images = options.observation_type != kRam;
    if (needs_images) recall_image();
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
      if (k == 2 && needs_images && options.maxpool) has_second = keep_second();
    }
    console.is_blind = false;
    console.record = nullptr;
    e.last_action = action_index;
    e.has_ended = k > 0;
    end_step(sum, over, is_late, life_lost);
    if (!needs_images) return push_ram();
    push_step(k, has_second);
  }

  // See NOTE [ frames that nobody sees ].
  RLB_FN void begin_unseen() {
    const bool is_possible = recorded && options.observation_type != kRam && options.frame_skip > 2 &&
                             options.frame_skip <= kMaxUnseen && !state().frame.is_partial;
    console.record = is_possible && !e.steps_to_draw ? recorded : nullptr;
    if (e.steps_to_draw) --e.steps_to_draw;
  }

  RLB_FN bool must_redraw(s32 k, bool is_last) const {
    if (state().frame.is_partial) return true;
    if (k > 2) return is_last;
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

  // `image` becomes that of the previous observation.
  RLB_FN void recall_image() {
    if (e.has_kept) {
      copy_bytes(kept, image, n_planes() * n_pixels());
    } else if (options.frame_skip > 1) {
      const bool is_of_one = e.is_of_one || !options.maxpool;
      pool_screens(console.screen(), is_of_one ? nullptr : other_screen(), image);
    }
  }

  RLB_FN const u8* other_screen() const {
    return console.screens + (state().frame.buffer ^ 1) * n_pixels();
  }

  // After the last frame but one: if the next one goes on in its screen, it is the image itself that
  // must be kept. Returns whether it was.
  RLB_FN bool keep_second() {
    if (!state().frame.is_partial) return false;
    pool_screens(console.screen(), nullptr, kept);
    return true;
  }

  // Adds the observation of a step that ended with `k` frames to go.
  RLB_FN void push_step(s32 k, bool has_second) {
    const s32 n = n_planes() * n_pixels();
    const bool has_two = options.maxpool && options.frame_skip > 1;
    if (k >= 2 || (k == 1 && !has_two)) return push_last_again();
    if (k == 1) {  // It ended in the last frame, which nobody sees.
      if (!has_second) pool_screens(other_screen(), nullptr, kept);
      pool(Frames{image, kept, nullptr}, n, image);
      e.has_kept = 0;
      return push_image();
    }
    e.is_of_one = 0;
    e.has_kept = 0;
    if (!has_two) {
      pool_screens(console.screen(), nullptr, image);
    } else if (has_second) {
      // Mostly such a frame draws nothing more, and nothing has to be kept.
      pool_screens(console.screen(), nullptr, image);
      e.is_of_one = is_at_most(kept, image, n);
      e.has_kept = !e.is_of_one;
      if (e.has_kept) {
        pool(Frames{image, kept, nullptr}, n, image);
        copy_bytes(image, kept, n);
      }
    } else {
      pool_screens(console.screen(), other_screen(), image);
    }
    push_image();
  }
};

}  // namespace rlbatch::atari
