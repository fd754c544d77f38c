// Where the episodes of a game begin, found once on a host.
#pragma once

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "host_games.h"
#include "host_threads.h"

namespace rlbatch::atari {

// States of a game's resets; if more, fewer acts after them are known.
constexpr size_t kMostKnown = 11250;
// Ends of resets that are worth a thread of their own.
constexpr size_t kEndsOfThread = 8;

// Writes into a game where its power-on and its resets lead to.
struct StartFinder {
  HostGames& games;
  const s32 game;
  const s32 n_threads;  // At most.
  Scratch& own_scratch;

  const Options& options = games.options;
  HostGame& of_game = games[game];

  void find() {
    find_power_on();
    if (of_game.spec.n_timers) find_resets();
  }

  // Emulates power-on; see NOTE [ known power-on ].
  void find_power_on() {
    Slot slot = games.slot_of(game);
    games.environment(slot, own_scratch).power_on(0);
    Mt19937 begin;
    seed(begin, 0);
    PowerOn& found = of_game.power_on;
    found = {slot.state, slot.generators.system, n_draws_between(begin, slot.generators.environment), 0};
    found.is_known = !found.n_draws || options.repeat_probability == 0;
  }

  // Emulates resets, and the acts that may follow; see NOTE [ known resets ].
  void find_resets() {
    KnownResets& found = of_game.resets;
    std::vector<KnownReset>& states = of_game.known;
    std::vector<Slot> ends = ends_of_resets(found);
    if (ends.empty()) return;
    const s32 n_ends = static_cast<s32>(ends.size());
    const bool fires = options.fire_reset && of_game.spec.has_fire;
    const bool is_chance = fires && options.repeat_probability > 0;
    found.n_holds = is_chance ? kMostHeld + 1 : 1;
    for (s32 i = n_ends; i < found.n_holds * n_ends; ++i) ends.push_back(ends[static_cast<size_t>(i - n_ends)]);
    std::vector<Scratch> others = scratches_for(ends.size());
    const auto is_over = [](const Slot& end) { return end.state.rule.terminal; };
    for (s32 k = 0; std::none_of(ends.begin(), ends.end(), is_over); ++k) {
      const size_t n_before = states.size();
      states.resize(n_before + ends.size());
      found.n_acts = k;
      const bool is_full = states.size() + ends.size() > kMostKnown;
      const bool is_last = is_full || k == of_game.spec.most_acts || (k > 0 && k >= options.noop_max - 1);
      share_out(ends.size(), own_scratch, others, [&](size_t i, Scratch& scratch) {
        states[n_before + i] = known_reset(ends[i]);
        const s32 n_held = is_chance ? static_cast<s32>(i) / n_ends : fires;
        if (!is_last && (k < kMostHeld || n_held < kMostHeld)) act(ends[i], k < n_held, scratch);
      });
      if (is_last) break;
    }
    if (!states.empty()) found.n_ends = n_ends;
  }

  void act(Slot& slot, bool is_fire, Scratch& scratch) {
    HostEnvironment env = games.environment(slot, scratch);
    env.console.repeat_probability = 0;
    env.console.act(is_fire ? 1 : kActionNoop);
  }

  // Of the threads that help with so many ends.
  std::vector<Scratch> scratches_for(size_t n_ends) const {
    const size_t n = std::min(static_cast<size_t>(n_threads - 1), n_ends / kEndsOfThread);
    std::vector<Scratch> scratches;
    for (size_t k = 0; k < n; ++k) scratches.emplace_back(games.size());
    return scratches;
  }

  // Resets with all timers and keys that matter; returns the ends that differ.
  std::vector<Slot> ends_of_resets(KnownResets& found) {
    const GameSpec& spec = of_game.spec;
    Slot slot = games.slot_of(game);
    HostEnvironment env = games.environment(slot, own_scratch);
    env.load(0);
    std::vector<Slot> ends;
    std::set<u32> tried;
    while (tried.size() < static_cast<size_t>(spec.n_timers)) {
      Mt19937 ahead = slot.generators.system;
      const u32 timer = next_draw(ahead) % kTimers;
      if (tried.count(timer)) {
        slot.generators.system = ahead;
        continue;
      }
      if (!reset_with_all_keys(slot, timer, ends, found)) return {};
      tried.insert(timer);
    }
    for (u8(&of_key)[kTimers] : found.end_of) {
      if (spec.n_timers == 1) std::fill_n(of_key, kTimers, of_key[*tried.begin()]);
    }
    return ends;
  }

  // Resets with the timer that is drawn next. Returns false if the ends are too many, or if the generator
  // of the environment is used now so, now otherwise.
  bool reset_with_all_keys(Slot& slot, u32 timer, std::vector<Slot>& ends, KnownResets& found) {
    HostEnvironment env = games.environment(slot, own_scratch);
    env.console.repeat_probability = 0;
    u32 n_keys = 1;
    env.with_key_bits([&](u8, s32, s32) { n_keys *= 2; });
    const Mt19937 before = slot.generators.system;
    for (u32 key = 0; key < n_keys; ++key) {
      slot.generators.system = before;
      const Mt19937 drawn_from = slot.generators.environment;
      State& s = slot.state;
      s.session.frame_number = s.frame.buffer = s.frame.is_partial = 0;
      env.prepare_known_reset(key);
      env.console.reset_game();
      const s32 n_draws = n_draws_between(drawn_from, slot.generators.environment);
      if (!ends.empty() && n_draws != found.n_draws) return false;
      found.n_draws = n_draws;
      found.end_of[key][timer] = place_in(ends, slot);
    }
    return ends.size() <= 256;
  }

  static u8 place_in(std::vector<Slot>& ends, const Slot& slot) {
    const auto is_equal = [&](const Slot& end) {
      return !std::memcmp(&end.state, &slot.state, sizeof(State)) && end.screens == slot.screens;
    };
    const auto end = std::find_if(ends.begin(), ends.end(), is_equal);
    const auto place = static_cast<u8>(end - ends.begin());
    if (end == ends.end()) ends.push_back(slot);
    return place;
  }

  static s32 n_draws_between(Mt19937 from, const Mt19937& to) {
    s32 n = 0;
    for (; std::memcmp(&from, &to, sizeof(from)); ++n) next_draw(from);
    return n;
  }

  static KnownReset known_reset(const Slot& end) {
    KnownReset found{end.state, {}};
    const size_t size = end.screens.size() / 2;
    for (size_t i = 0; i < 2 && size; ++i) found.screens[i] = packed(end.screens.data() + i * size, size);
    return found;
  }
};

}  // namespace rlbatch::atari
