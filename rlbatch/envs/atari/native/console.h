// The console: frames, resets, inputs, and what an agent can do.
#pragma once

#include "platform.h"
#include "run_cpu.h"
#include "starts.h"
#include "state.h"
#if defined(RLB_TRANSLATES)
#include "translator.h"
#else
namespace rlbatch::atari {
class Translator;
}
#endif

namespace rlbatch::atari {

constexpr s32 kActionNoop = 0, kActionReset = 40;
constexpr s32 kPaddleMin = 27450;
constexpr f64 kPaddleStep = 23000.0;
constexpr s32 kResetFrames = 60, kSoftResetFrames = 4;

// The parts of the 18 actions, in ALE's order.
enum Press : u8 { kFire = 1, kUp = 2, kRight = 4, kLeft = 8, kDown = 16 };
RLB_CONST u8 kPresses[18] = {
    0, kFire, kUp, kRight, kLeft, kDown, kUp | kRight, kUp | kLeft, kDown | kRight, kDown | kLeft,
    kUp | kFire, kRight | kFire, kLeft | kFire, kDown | kFire, kUp | kRight | kFire,
    kUp | kLeft | kFire, kDown | kRight | kFire, kDown | kLeft | kFire};

RLB_FN u8 presses(s32 action) { return action >= 0 && action < 18 ? kPresses[action] : u8{0}; }

struct Console {
  const Config& config;
  const u8* rom;
  State& s;
  Generators& generators;
  Screens screens;  // Null where no frame is ever looked at.
  Log log;      // [kLogSize]
  f32 repeat_probability;
  // Of this cartridge; without them the program is interpreted. The second is for frames that are not
  // drawn.
  Translator *translator = nullptr, *blind_translator = nullptr;
  bool is_blind = false;    // Frames are not drawn.
  State* record = nullptr;  // Where to put the state before the next frame; it moves on.
  s32 most_drawn = 0;  // Clocks of its window that any frame has drawn since a reset cleared the screens.
  s32 n_covering = 0;  // Of the last frames, those of which each has drawn as much: nothing older shows.

#if defined(RLB_CART)  // Compiled for one game.
  RLB_FN Cart cart() const { return static_cast<Cart>(RLB_CART); }
  RLB_FN Rule rule_of() const { return static_cast<Rule>(RLB_RULE); }
#else
  RLB_FN Cart cart() const { return static_cast<Cart>(config.cart); }
  RLB_FN Rule rule_of() const { return static_cast<Rule>(config.rule); }
#endif
  RLB_FN bool draws() const { return screens && !is_blind; }
#if !defined(RLB_DEVICE)
  RLB_FN u8* screen() const {
    return screens ? begin_drawing(screens, s.frame.buffer, s.session.height) : nullptr;
  }
#endif
  RLB_FN s32 lives() const { return rule_lives(rule_of(), s.rule); }

  // --- Power and resets. ---

  // Everything that loading a cartridge does, with the first `reset_game`.
  RLB_FN void power_on(u32 environment_seed, s32 mode) {
    s = State{};
    s.session.mode = mode;
    seed(generators.system, config.system_seed);
    seed(generators.environment, environment_seed);
    for (s32 i = 0; i < 128; ++i) s.riot.ram[i] = static_cast<u8>(next_draw(generators.system));
    reset_riot(s.riot, next_draw(generators.system));
    power_on_cart(s.cart);
    s.frame.max_lines = 290;
    s.session.height = 210;
    s.riot.joysticks = 0xff;
    s.riot.switches = static_cast<u8>(0x3f | (config.detection_difficulty & 3) << 6);
    for (s32 k = 0; k < 4; ++k) s.session.charged_at[k] = config.has_paddles ? 0 : kNever;
    if (screens) clear_screens(screens, s.session.height);
    detect_format();
    system_reset();
    s.session.paddle_min = kPaddleMin;
    s.session.paddle_max = config.paddle_max;
    init_rule(s.rule);
    reset_game();
  }

  // Runs 60 frames, as ALE does to tell PAL from NTSC; they leave their traces in the RAM.
  RLB_FN void detect_format() {
    system_reset();
    s32 n_long = 0;
    for (s32 k = 0; k < 60; ++k) {
      run_frame();
      n_long += k >= 30 && lines_so_far() > 285;
    }
    s.session.is_pal = static_cast<u8>(config.detect_format ? n_long >= 15 : config.is_pal);
    s.session.height = config.detect_format && s.session.is_pal ? 250 : config.height;
    s.frame.max_lines = s.session.is_pal ? 342 : 290;
  }

  RLB_FN s32 lines_so_far() const { return (3 * s.cpu.cycles - s.tia.frame_start) / kLine; }

  RLB_GPU_CALL void system_reset() {
    s.cpu = Cpu{};
    reset_riot(s.riot, next_draw(generators.system));
    reset_tia(s.tia);
    s.frame.lines = 0;
    most_drawn = n_covering = 0;
    set_window();
    if (screens) clear_screens(screens, s.session.height);
    if (has_cart_ram(cart())) {
      for (s32 i = 0; i < 128; ++i) s.cart.ram[i] = static_cast<u8>(next_draw(generators.system));
    }
    reset_cart(cart(), s.cart);
    s.cpu.sp = 0xff;
    s.cpu.flags = 0x30;
    const u32 low = peek(0xfffc);
    s.cpu.pc = static_cast<u16>(low | peek(0xfffd) << 8);
    s.cpu.bus = static_cast<u8>(s.cpu.pc >> 8);
  }

  // The whole `reset_game` of ALE. Where its end is seen, no more than its first frames are blind.
  RLB_FN void reset_game(bool is_end_seen = false) {
    s.session.episode_frame_number = 0;
    for (s32 i = 0; i < 2; ++i) {
      s.session.paddle[i] = (s.session.paddle_min + s.session.paddle_max) / 2;
    }
    system_reset();
    emulate_many(kActionNoop, kResetFrames);
    if (is_end_seen) is_blind = false;
    soft_reset();
    reset_rule(rule_of(), s.rule, s.session.mode);
    start_mode(rule_of(), *this, s.session.mode);
    soft_reset();
    start_actions(rule_of(), *this);
  }

  // Draws what a reset draws for the hardware; returns what the timer begins with, from 0 on.
  RLB_FN u32 draw_timer() {
    const u32 timer = next_draw(generators.system) % kTimers;
    for (s32 i = 0; i < 128 && has_cart_ram(cart()); ++i) next_draw(generators.system);
    return timer;
  }

  // Does what `reset_game` and some actions do whose end is known: `after`, begun with frame number 0 and
  // buffer 0. All that they draw is drawn before. Returns whether the screens change places.
  RLB_FN bool resume(const State& after) {
    const s32 frame_number = s.session.frame_number;
    const u8 buffer = s.frame.buffer;
    s = after;
    s.session.frame_number += frame_number;
    s.frame.buffer ^= buffer;
    most_drawn = n_covering = 0;
    return buffer;
  }

  RLB_FN void soft_reset() {
    emulate_many(kActionReset, kSoftResetFrames);
    s.session.sticky_action = kActionNoop;
    s.session.sticky_strength = 0;
  }

  // --- What the games' mode routines and starting actions use. ---

  RLB_FN u8 ram(u32 address) const { return s.riot.ram[address & 0x7f]; }
  RLB_FN u8 cart_ram(u32 offset) const { return s.cart.ram[offset & 0x7f]; }
  RLB_FN RuleState& rule() { return s.rule; }
  RLB_FN u32 draw() { return next_draw(generators.environment); }

  // Holds SELECT for some frames, in which no rule runs, and lets go.
  RLB_FN void select(s32 n_frames) {
    set_sticks(0);
    set_switches(2);
    for (s32 k = 0; k < n_frames; ++k) run_frame();
    emulate(kActionNoop);
    count_frame();
  }

  // One frame with an action, and the game's rule.
  RLB_GPU_CALL void emulate(s32 action, f32 strength = 1.0f) {
    move_paddle(action, strength);
    set_sticks(action);
    set_switches(action == kActionReset ? 1 : 0);
    run_frame();
    const Memory memory{s.riot.ram, s.cart.ram};
    step_rule(rule_of(), s.rule, memory);
    s.cpu.bus = s.riot.ram[127];  // The last byte that is read from outside.
  }

  // Several frames between which only the rule looks at the RAM. That shows on the data bus, if the
  // next opcode comes from the TIA: no game's does, so the last byte of one rule is enough here.
  RLB_GPU_CALL void emulate_many(s32 action, s32 n_frames) {
    for (s32 k = 0; k < n_frames; ++k) {
      emulate(action);
      if (k + 1 < n_frames) s.cpu.bus = ram(0xc7);
    }
  }

  RLB_FN void count_frame() {
    ++s.session.frame_number;
    ++s.session.episode_frame_number;
  }

  // Whether an action takes effect, and not the last one again.
  RLB_FN bool takes_action() const {
    const f64 draw = next_draw(generators.environment) / 4294967296.0;
    next_draw(generators.environment);  // The other player's.
    return draw >= static_cast<f64>(repeat_probability);
  }

  // One frame of the agent: its action may give way to the last one. Returns the reward; after the end
  // of the episode, which the caller may know of, nothing runs and it is 0.
  RLB_FN s32 act(s32 action, f32 strength = 1.0f, bool is_over = false) {
    if (takes_action()) {
      s.session.sticky_action = action;
      s.session.sticky_strength = strength;
    }
    if (s.rule.terminal || is_over) return 0;
    s32 done = s.session.sticky_action;
    const bool is_legal = done >= 0 && done < 18 &&
                          (config.n_legal_actions == 18 || !(presses(done) & kFire));
    emulate(is_legal ? done : kActionNoop, s.session.sticky_strength);
    count_frame();
    return s.rule.reward;
  }

  // --- Inputs. ---

  RLB_FN void move_paddle(s32 action, f32 strength) {
    if (!config.has_paddles) return;
    const f64 size = kPaddleStep * static_cast<f64>(strength < 0 ? -strength : strength);
    const u8 press = presses(action);
    s32 by = 0;
    if (press & kRight) by = static_cast<s32>(-size);
    if (press & kLeft) by = static_cast<s32>(size);
    s32 at = s.session.paddle[0] + by;
    if (at < s.session.paddle_min) at = s.session.paddle_min;
    if (at > s.session.paddle_max) at = s.session.paddle_max;
    s.session.paddle[0] = at;
  }

  RLB_FN void set_sticks(s32 action) {
    const u8 press = presses(action);
    if (config.has_paddles) {
      const u32 button = config.swap_paddles ? 0x40 : 0x80;
      s.riot.joysticks = static_cast<u8>(press & kFire ? 0xff & ~button : 0xff);
      const s32 first = config.swap_paddles ? 1 : 0;
      s.session.charged_at[first] = cycles_to_charge(s.session.paddle[0]);
      s.session.charged_at[1 - first] = cycles_to_charge(s.session.paddle[1]);
      // Pong has paddles on the right as well, which nobody turns.
      s.session.charged_at[2] = s.session.charged_at[3] = config.swap_paddles ? 0 : kNever;
      s.session.fire = 0;
    } else {
      u32 bits = 0;
      if (press & kUp) bits |= 1;
      if (press & kDown) bits |= 2;
      if (press & kLeft) bits |= 4;
      if (press & kRight) bits |= 8;
      s.riot.joysticks = static_cast<u8>(~(config.swap_ports ? bits : bits << 4));
      s.session.fire = static_cast<u8>(press & kFire ? (config.swap_ports ? 2 : 1) : 0);
    }
  }

  // The capacitor of a paddle; in this order of operations.
  RLB_FN static s32 cycles_to_charge(s32 resistance) {
    f64 seconds = 1.6 * static_cast<f64>(resistance);
    seconds = seconds * 0.01e-6;
    return static_cast<s32>(seconds * 1.19e6);
  }

  RLB_FN void set_switches(u32 held) {
    s.riot.switches = static_cast<u8>(0x3c | (~held & 3) | (s.session.difficulty & 3) << 6);
  }

  // --- Frames. ---

  RLB_FN u8 peek(u32 address) { return read_any_cart(cart(), s.cart, rom, address, 0); }

  RLB_FN void run_instructions(Run& run) {
#if defined(RLB_TRANSLATES)
    Translator* chosen = run.screen ? translator : blind_translator;
    if (chosen) return chosen->run(run, kMaxInstructions);
#endif
    switch (cart()) {
      case Cart::k2K: return run_cpu<Cart::k4K>(run, kMaxInstructions);  // It is there twice.
      case Cart::k4K: return run_cpu<Cart::k4K>(run, kMaxInstructions);
      case Cart::kF8: return run_cpu<Cart::kF8>(run, kMaxInstructions);
      case Cart::kF8SC: return run_cpu<Cart::kF8SC>(run, kMaxInstructions);
      case Cart::kF6: return run_cpu<Cart::kF6>(run, kMaxInstructions);
      case Cart::kF6SC: return run_cpu<Cart::kF6SC>(run, kMaxInstructions);
      case Cart::kE0: return run_cpu<Cart::kE0>(run, kMaxInstructions);
      case Cart::kFE: return run_cpu<Cart::kFE>(run, kMaxInstructions);
      default: return run_cpu<Cart::kDPC>(run, kMaxInstructions);
    }
  }

  // One update of the picture: a frame, or a part of one that takes too long.
  RLB_GPU_CALL void run_frame() {
    if (record) *record++ = s;
    const bool begins = !s.frame.is_partial;
    if (begins) begin_frame();
    s.frame.is_partial = 1;
    s.frame.has_stopped = 0;
    const Picture picture{s.session.height, static_cast<u8>(config.has_hmove_blanks),
                          colour_loss()};
    const Screen screen = draws() ? begin_drawing(screens, s.frame.buffer, s.session.height) : nullptr;
    Run run{&s, cart(), rom, log, screen, picture, 0, s.cpu.cycles, kNoAccess, 0};
    const s32 drawn = s.tia.drawn;
    if (!s.cpu.is_jammed) run_instructions(run);
    flush_log(run, run.n_log, run.last_access, drawn);
    if (screen) end_drawing(screens, s.session.height);
    const s32 n_drawn = s.tia.drawn - s.tia.window_start;
    if (n_drawn > most_drawn) most_drawn = n_drawn;
    if (s.frame.has_stopped) {
      s.frame.is_partial = 0;
      s.frame.lines = lines_so_far();
      s.tia.draw_began = s.tia.drawn;  // Nobody asks any more; so that equal states have equal bytes.
    } else if (!s.frame.is_greyed) {
      // With a record all is to be drawn once more, on what was there before.
      if (!record) grey_rest();
      s.frame.is_greyed = 1;
    }
    const bool covers_all = n_drawn / kLine >= (most_drawn + kLine - kBlank - 1) / kLine;  // Whole rows.
    n_covering = screen && begins && s.frame.has_stopped && covers_all ? n_covering + 1 : 0;
  }

  // Draws `n` frames that were recorded, after which the console is as it is now.
  RLB_FN void redraw(const State* recorded, s32 n) {
    const Session session = s.session;  // Which frames leave alone, and those who run them do not.
    const RuleState rule = s.rule;
    is_blind = false;
    record = nullptr;
    for (s32 i = 0; i < n; ++i) {
      s = recorded[i];
      run_frame();
    }
    s.session = session;
    s.rule = rule;
  }

  RLB_FN u8 colour_loss() const { return s.session.is_pal && (s.frame.lines & 1); }

  // A frame's clock begins where the last one left the line.
  RLB_FN void begin_frame() {
    const s32 cycles = s.cpu.cycles;
    const u32 clocks = 3u * static_cast<u32>(cycles);
    Tia& tia = s.tia;
    tia.frame_start = -((3 * cycles - tia.frame_start) % kLine);
    tia.last_hmove = static_cast<s32>(static_cast<u32>(tia.last_hmove) - clocks);
    tia.vsync_finish = static_cast<s32>(static_cast<u32>(tia.vsync_finish) - clocks);
    s.riot.stamp -= cycles;
    // What nobody can ask for is 0, so that states that are equal in effect have equal bytes.
    tia.dump_stamp = config.has_paddles ? tia.dump_stamp - cycles : 0;
    s.riot.interrupt_stamp = s.riot.was_read ? s.riot.interrupt_stamp - cycles : 0;
    s.cart.dpc.stamp = cart() == Cart::kDPC ? s.cart.dpc.stamp - cycles : 0;
    s.cpu.cycles = 0;
    set_window();
    tia.drawn = tia.draw_began = tia.line_start = tia.window_start;
    tia.zeroed_to = 0;
    tia.row = 0;
    s.frame.buffer ^= 1;
    s.frame.is_greyed = 0;
    for (s32 i = 0; i < 4; ++i) tia.colour[i] = static_cast<u8>((tia.colour[i] & 0xfe) | colour_loss());
  }

  RLB_FN void set_window() {
    s.tia.window_start = s.tia.frame_start + kLine * config.ystart;
    s.tia.window_end = s.tia.window_start + kLine * s.session.height;
  }

  RLB_FN void grey_rest() {
    if (!draws()) return;
    const s32 row = lines_so_far() - config.ystart;
    grey_out(screens, s.frame.buffer, row > 0 ? row : 0, s.session.height);
  }
};

}  // namespace rlbatch::atari
