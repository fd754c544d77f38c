// Many environments on the cores of a host: threads that take jobs from a queue. The thread that waits
// for results is one of them: with a single one nobody has to be woken up.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "ale_state.h"
#include "batch.h"
#include "host_canvas.h"
#include "host_threads.h"

namespace rlbatch::atari {

enum JobKind : s32 {
  kStep,
  kReset,
  kLoad,         // Load with `seed`, and reset.
  kStepThrough,  // Step, and reset if that ends the episode.
  kLook,         // Only write the results, as they are.
  kStartCount,   // The same, as if the episode began here.
};

// What an environment is to do.
struct Job {
  s32 env;  // And the row of the outputs.
  s32 kind;
  s32 action;
  f32 strength;
  u32 seed;
};

// Arrays that the results go to, one row per environment; `after_observations` may be null.
//
// NOTE [ results of a step that resets ]
//
// Where kStepThrough resets, these are from after the reset: `observations`, `lives` and the two frame
// numbers. Those named `after_` are from before it; `after_observations` has rows of ended episodes
// only, unless `has_all_after`. All others tell of the step.
struct Outputs {
  u8 *observations, *after_observations;  // [n_envs][stack][frame]
  s32 *reward, *reward_raw, *lives, *after_lives, *frame_number, *episode_frame_number;
  s32 *episode_length, *last_action;
  f64* episode_return;
  u8 *terminated, *truncated, *life_lost, *has_ended;
  s32 has_all_after;
};

// Whether programs may be translated: not with RLBATCH_ATARI_TRANSLATE=0.
inline bool may_translate() {
  const char* wish = std::getenv("RLBATCH_ATARI_TRANSLATE");
  return !wish || wish[0] != '0';
}

// Null where programs cannot be translated.
inline std::unique_ptr<Translator> translator_of(Cart cart, const u8* rom, bool skips_repeats) {
#if defined(RLB_TRANSLATES)
  auto translator = std::make_unique<Translator>(cart, rom, skips_repeats);
  if (translator->works()) return translator;
#endif
  return nullptr;
}

using HostEnvironment = Environment<HostCanvas>;

// States of a game's resets; if more, fewer acts after them are known.
constexpr size_t kMostKnown = 11250;
// Ends of resets that are worth a thread of their own.
constexpr size_t kEndsOfThread = 8;

struct HostBatch {
  struct Slot {
    State state{};
    Generators generators{};
    Mt19937 noops{};
    Episode episode{};
    std::vector<u8> screens, ring, kept;
    s32 game = 0;
  };

  // Of a game, made when a thread first plays it, as they are large.
  struct Translators {
    std::unique_ptr<Translator> of_pictures, blind;
    bool are_made = false;
  };

  // What a thread works with.
  struct Scratch {
    std::vector<u32> log = std::vector<u32>(kLogSize);
    std::vector<u8> image = std::vector<u8>(kImageBytes), second = std::vector<u8>(kImageBytes);
    std::vector<u8> kept = std::vector<u8>(kMaxHeight * kWidth);
    std::vector<State> recorded = std::vector<State>(kMaxUnseen);
    std::vector<Translators> translators;  // Of every game.

    static constexpr size_t kImageBytes = 3 * kMaxHeight * kWidth;
    static constexpr size_t kBytes = kLogSize * sizeof(u32) + 2 * kImageBytes + kMaxHeight * kWidth +
                                     kMaxUnseen * sizeof(State);
  };

  Options options{};
  std::vector<GameSpec> games;
  std::vector<std::vector<u8>> roms;
  std::vector<Resize> resizes;                  // Of every game.
  std::vector<KnownResets> resets;              // The same,
  std::vector<std::vector<KnownReset>> known;  // and their states.
  std::vector<PowerOn> power_ons;               // Of every game.
  std::vector<Slot> slots;
  const bool translates = may_translate();

  std::vector<pthread_t> threads;
  Scratch own_scratch;  // Of the thread that receives,
  Waiter own_waiter;    // as this.
  std::mutex mutex;     // Of all that follows.
  std::condition_variable has_work, has_result;
  std::deque<std::pair<Job, Outputs>> queue;
  std::deque<s32> finished;
  size_t n_wanted = 0;
  std::atomic<bool> is_closing{false};
  std::atomic<size_t> n_queued{0}, n_finished{0};  // Sizes of the above, to be seen without the mutex.

  // Resets are found by `n_finders` threads at most, and steps taken by `n_threads`. Returns false if
  // observations can not have the wanted size.
  bool start(s32 n_envs, s32 n_games, const GameSpec* specs, std::vector<std::vector<u8>> images,
             const s32* game_of, const Options& wanted, s32 n_threads, s32 n_finders) {
    options = wanted;
    games.assign(specs, specs + n_games);
    roms = std::move(images);
    resizes.resize(static_cast<size_t>(n_games));
    slots.resize(static_cast<size_t>(n_envs));
    const bool has_images = options.observation_type != kRam;
    for (s32 g = 0; g < n_games && has_images; ++g) {
      const s32 height = games[static_cast<size_t>(g)].config.height;
      if (!build_resize(height, options.height, options.width, resizes[static_cast<size_t>(g)])) {
        return false;
      }
    }
    for (s32 i = 0; i < n_envs; ++i) slots[static_cast<size_t>(i)] = slot_of(game_of[i]);
    own_scratch.translators.resize(games.size());
    resets.resize(games.size());
    known.resize(games.size());
    power_ons.resize(games.size());
    for (s32 g = 0; g < n_games; ++g) {
      find_power_on(g);
      if (games[static_cast<size_t>(g)].n_timers) find_resets(g, n_finders);
    }
    start_threads(n_threads);
    return true;
  }

  // As many as the system allows: where these are fewer, the rest of them do all that there is.
  void start_threads(s32 n_threads) {
    const auto begin = [](void* batch) -> void* {
      static_cast<HostBatch*>(batch)->work();
      return nullptr;
    };
    pthread_t thread;
    for (s32 k = 1; k < n_threads && !pthread_create(&thread, nullptr, begin, this); ++k) {
      threads.push_back(thread);
    }
  }

  ~HostBatch() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      is_closing = true;
      queue.clear();
    }
    has_work.notify_all();
    for (pthread_t thread : threads) pthread_join(thread, nullptr);
  }

  void send(s32 n, const Job* jobs, const Outputs* outputs) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      for (s32 i = 0; i < n; ++i) queue.emplace_back(jobs[i], *outputs);
      n_queued = queue.size();
    }
    if (!threads.empty()) has_work.notify_all();
  }

  // Waits for so many jobs, and does some of them; returns their environments in the order in which
  // they finished.
  void recv(s32 n, s32* ids) {
    std::unique_lock<std::mutex> lock(mutex);
    n_wanted = static_cast<size_t>(n);
    while (finished.size() < n_wanted) {
      if (queue.empty()) {
        own_waiter.wait(lock, has_result, [this] { return n_finished >= n_wanted; });
      } else {
        carry_out_next(lock, own_scratch);
      }
    }
    for (s32 i = 0; i < n; ++i) {
      ids[i] = finished.front();
      finished.pop_front();
    }
    n_finished = finished.size();
  }

  void run(s32 n, const Job* jobs, const Outputs* outputs) {
    std::vector<s32> ids(static_cast<size_t>(n));
    send(n, jobs, outputs);
    recv(n, ids.data());
  }

  void work() {
    Scratch scratch;
    scratch.translators.resize(games.size());
    Waiter waiter;
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      waiter.wait(lock, has_work, [this] { return is_closing || n_queued; });
      if (is_closing) return;
      carry_out_next(lock, scratch);
      if (finished.size() >= n_wanted) has_result.notify_one();
    }
  }

  void carry_out_next(std::unique_lock<std::mutex>& lock, Scratch& scratch) {
    const std::pair<Job, Outputs> next = queue.front();
    queue.pop_front();
    n_queued = queue.size();
    lock.unlock();
    carry_out(next.first, next.second, scratch);
    lock.lock();
    finished.push_back(next.first.env);
    n_finished = finished.size();
  }

  const Translators& translators_of(size_t game, Scratch& scratch) const {
    Translators& found = scratch.translators[game];
    if (translates && !found.are_made) {
      const Cart cart = static_cast<Cart>(games[game].config.cart);
      found = {translator_of(cart, roms[game].data(), false), translator_of(cart, roms[game].data(), true),
               true};
    }
    return found;
  }

  Console console(Slot& slot, u32* log = nullptr, Translator* translator = nullptr,
                  Translator* blind_translator = nullptr) {
    const size_t game = static_cast<size_t>(slot.game);
    u8* screens = slot.screens.empty() ? nullptr : slot.screens.data();
    return {games[game].config, roms[game].data(), slot.state, slot.generators,
            screens,            log,               options.repeat_probability, translator,
            blind_translator};
  }

  HostEnvironment environment(Slot& slot, Scratch& scratch) {
    const size_t game = static_cast<size_t>(slot.game);
    const Translators& translators = translators_of(game, scratch);
    return {games[game],
            options,
            console(slot, scratch.log.data(), translators.of_pictures.get(), translators.blind.get()),
            slot.episode,
            slot.noops,
            scratch.recorded.data(),
            resets[game],
            power_ons[game],
            HostCanvas{options, resizes[game], slot.ring.data(), scratch.image.data(),
                       scratch.second.data(), scratch.kept.data(), known[game]}};
  }

  void carry_out(const Job& job, const Outputs& outputs, Scratch& scratch) {
    Slot& slot = slots[static_cast<size_t>(job.env)];
    HostEnvironment env = environment(slot, scratch);
    if (slot.episode.has_kept) unpack(slot.kept, scratch.kept.data());
    const bool steps = job.kind == kStep || job.kind == kStepThrough;
    if (job.kind == kLoad) env.load(job.seed);
    if (job.kind == kReset || job.kind == kLoad) env.reset();
    if (job.kind == kStartCount) env.start_count();
    if (steps) env.step(job.action, job.strength);
    write_outcome(slot.episode, outputs, job.env);
    if (job.kind == kStepThrough) {
      if (slot.episode.has_ended || outputs.has_all_after) write_after(env, outputs, job.env);
      if (slot.episode.has_ended) env.reset();
    }
    write_place(env, outputs, job.env);
    if (slot.episode.has_kept) {
      const s32 n = HostCanvas::n_pixels(env.console);
      slot.kept = packed(scratch.kept.data(), static_cast<size_t>(n));
    } else if (slot.kept.capacity()) {
      std::vector<u8>().swap(slot.kept);  // Frames that take two calls are rare.
    }
  }

  static void write_after(const HostEnvironment& env, const Outputs& o, s32 row) {
    if (o.after_observations) env.canvas.write_stack(env.e, o.after_observations + row * stack_size(env));
    o.after_lives[row] = env.console.lives();
  }

  // Where the environment is now.
  static void write_place(const HostEnvironment& env, const Outputs& o, s32 row) {
    const Session& session = env.state().session;
    env.canvas.write_stack(env.e, o.observations + row * stack_size(env));
    o.lives[row] = env.console.lives();
    o.frame_number[row] = session.frame_number;
    o.episode_frame_number[row] = session.episode_frame_number;
  }

  static s64 stack_size(const HostEnvironment& env) {
    return static_cast<s64>(env.options.stack) * frame_size(env.options);
  }

  // Emulates power-on; see NOTE [ known power-on ].
  void find_power_on(s32 game) {
    Slot slot = slot_of(game);
    environment(slot, own_scratch).power_on(0);
    Mt19937 begin;
    seed(begin, 0);
    PowerOn& found = power_ons[static_cast<size_t>(game)];
    found = {slot.state, slot.generators.system, n_draws_between(begin, slot.generators.environment), 0};
    found.is_known = !found.n_draws || options.repeat_probability == 0;
  }

  // Returns an environment that is none of the batch.
  Slot slot_of(s32 game) const {
    Slot slot;
    slot.game = game;
    if (options.observation_type != kRam) {
      slot.screens.resize(static_cast<size_t>(2 * games[static_cast<size_t>(game)].config.height * kWidth));
    }
    slot.ring.resize(ring_size());
    return slot;
  }

  // Emulates the resets of a game, and the acts that may follow; see NOTE [ known resets ].
  void find_resets(s32 game, s32 n_finders) {
    KnownResets& found = resets[static_cast<size_t>(game)];
    std::vector<KnownReset>& states = known[static_cast<size_t>(game)];
    std::vector<Slot> ends = ends_of_resets(game, found);
    if (ends.empty()) return;
    const s32 n_ends = static_cast<s32>(ends.size());
    const bool fires = options.fire_reset && games[static_cast<size_t>(game)].has_fire;
    const bool is_chance = fires && options.repeat_probability > 0;
    found.n_holds = is_chance ? kMostHeld + 1 : 1;
    for (s32 i = n_ends; i < found.n_holds * n_ends; ++i) ends.push_back(ends[static_cast<size_t>(i - n_ends)]);
    const s32 most_acts = games[static_cast<size_t>(game)].most_acts;
    std::vector<Scratch> others(std::min(static_cast<size_t>(n_finders - 1), ends.size() / kEndsOfThread));
    for (Scratch& scratch : others) scratch.translators.resize(games.size());
    const auto is_over = [](const Slot& end) { return end.state.rule.terminal; };
    for (s32 k = 0; std::none_of(ends.begin(), ends.end(), is_over); ++k) {
      const size_t n_before = states.size();
      states.resize(n_before + ends.size());
      found.n_acts = k;
      const bool is_full = states.size() + ends.size() > kMostKnown;
      const bool is_last = is_full || k == most_acts || (k > 0 && k >= options.noop_max - 1);
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
    HostEnvironment env = environment(slot, scratch);
    env.console.repeat_probability = 0;
    env.console.act(is_fire ? 1 : kActionNoop);
  }

  // Resets a game with all timers and keys that matter; returns the ends that differ.
  std::vector<Slot> ends_of_resets(s32 game, KnownResets& found) {
    const GameSpec& spec = games[static_cast<size_t>(game)];
    Slot slot = slot_of(game);
    HostEnvironment env = environment(slot, own_scratch);
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
    HostEnvironment env = environment(slot, own_scratch);
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

  KnownReset known_reset(const Slot& end) const {
    KnownReset found{end.state, {}};
    const size_t size = end.screens.size() / 2;
    for (size_t i = 0; i < 2 && size; ++i) found.screens[i] = packed(end.screens.data() + i * size, size);
    return found;
  }

  // Writes the states of the known resets of a game, and of each the number of the first one that shows
  // the same.
  void list_known(s32 game, u8* out, s32* firsts) const {
    const std::vector<KnownReset>& resets_of = known[static_cast<size_t>(game)];
    const auto shown_by = [&](s32 i) -> const std::array<std::vector<u8>, 2>& {
      return resets_of[static_cast<size_t>(i)].screens;
    };
    const auto is_less = [&](s32 a, s32 b) { return shown_by(a) < shown_by(b); };
    std::set<s32, decltype(is_less)> different(is_less);
    for (s32 i = 0; i < static_cast<s32>(resets_of.size()); ++i, out += sizeof(State)) {
      std::memcpy(out, &resets_of[static_cast<size_t>(i)].state, sizeof(State));
      firsts[i] = *different.insert(i).first;
    }
  }

  // Writes a known reset as `save` writes an environment.
  void save_known(s32 game, s32 i, u8* out) const {
    const KnownReset& reset = known[static_cast<size_t>(game)][static_cast<size_t>(i)];
    std::memset(out, 0, static_cast<size_t>(state_size()));
    std::memcpy(out, &reset.state, sizeof(State));
    out += sizeof(State) + sizeof(Generators) + sizeof(Mt19937) + sizeof(Episode);
    const s32 size = games[static_cast<size_t>(game)].config.height * kWidth;
    for (size_t k = 0; k < 2; ++k) unpack(reset.screens[k], out + k * static_cast<size_t>(size));
  }

  // --- Looking in from outside, while no job is under way. ---

  void render(s32 env, u8* out) {
    Slot& slot = slots[static_cast<size_t>(env)];
    const u8* screen = console(slot).screen();
    const u8(*palette)[3] = slot.state.session.is_pal ? PAL_RGB : NTSC_RGB;
    for (s32 i = 0; screen && i < slot.state.session.height * kWidth; ++i) {
      std::memcpy(out + 3 * i, palette[screen[i]], 3);
    }
  }

  // State, generators, episode, screens, ring and the kept screen, in this order.
  size_t max_screens() const { return options.observation_type == kRam ? 0 : 2 * kMaxHeight * kWidth; }
  size_t max_kept() const { return max_screens() / 2; }
  size_t ring_size() const {
    return static_cast<size_t>(options.stack) * static_cast<size_t>(frame_size(options));
  }

  s64 state_size() const {
    return static_cast<s64>(sizeof(State) + sizeof(Generators) + sizeof(Mt19937) + sizeof(Episode) +
                            max_screens() + ring_size() + max_kept());
  }

  void save(s32 env, u8* out) const {
    const Slot& slot = slots[static_cast<size_t>(env)];
    std::memset(out, 0, static_cast<size_t>(state_size()));
    put(out, &slot.state, sizeof(State));
    put(out, &slot.generators, sizeof(Generators));
    put(out, &slot.noops, sizeof(Mt19937));
    put(out, &slot.episode, sizeof(Episode));
    std::memcpy(out, slot.screens.data(), slot.screens.size());
    out += max_screens();
    put(out, slot.ring.data(), slot.ring.size());
    if (slot.episode.has_kept) unpack(slot.kept, out);
  }

  void restore(s32 env, const u8* in) {
    Slot& slot = slots[static_cast<size_t>(env)];
    get(in, &slot.state, sizeof(State));
    get(in, &slot.generators, sizeof(Generators));
    get(in, &slot.noops, sizeof(Mt19937));
    get(in, &slot.episode, sizeof(Episode));
    std::memcpy(slot.screens.data(), in, slot.screens.size());
    in += max_screens();
    get(in, slot.ring.data(), slot.ring.size());
    if (slot.episode.has_kept) {
      slot.kept = packed(in, static_cast<size_t>(slot.state.session.height * kWidth));
    }
  }

  // Puts an environment where a console was when ale-py saved it, with its screen, as if an episode
  // began there. Returns false, and changes nothing, if the bytes are not of this game.
  bool import(s32 env_number, const char* md5, const u8* bytes, s64 n, const u8* screen) {
    Slot& slot = slots[static_cast<size_t>(env_number)];
    HostEnvironment env = environment(slot, own_scratch);
    if (!import_ale(env.console, md5, bytes, n)) return false;
    for (size_t k = 0; k < slot.screens.size(); ++k) slot.screens[k] = screen[k % (slot.screens.size() / 2)];
    std::vector<u8>().swap(slot.kept);
    env.begin_episode();
    slot.episode.elapsed = slot.state.session.episode_frame_number;
    return true;
  }

  static void put(u8*& out, const void* from, size_t n) {
    std::memcpy(out, from, n);
    out += n;
  }
  static void get(const u8*& in, void* to, size_t n) {
    std::memcpy(to, in, n);
    in += n;
  }

  // Bytes of an environment: the largest of the batch.
  s64 bytes_per_env() const {
    size_t most = 0;
    for (const Slot& slot : slots) {
      const size_t bytes =
          sizeof(Slot) + slot.screens.size() + slot.ring.size() + slot.kept.capacity();
      most = bytes > most ? bytes : most;
    }
    return static_cast<s64>(most);
  }
};

}  // namespace rlbatch::atari
