// Many environments on the cores of a host: threads that take jobs from a queue. The thread that waits
// for results is one of them: with a single one nobody has to be woken up.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "ale_state.h"
#include "batch.h"
#include "host_games.h"
#include "host_starts.h"
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

// What became of a console of ale-py that an environment was to go on from.
enum class Imported : s32 { whole, of_another_game, with_other_paddles };

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

struct HostBatch {
  HostGames games;
  std::vector<Slot> slots;

  std::vector<pthread_t> threads;
  Scratch own_scratch;  // Of the thread that receives,
  Waiter own_waiter;    // as this.
  std::mutex mutex;     // Of all that follows.
  std::condition_variable has_work, has_result;
  std::deque<std::pair<Job, Outputs>> queue;
  std::deque<s32> finished;
  size_t n_wanted = 0;
  s32 n_under_way = 0;  // Jobs that were sent and not received; only the caller looks at it.
  std::atomic<bool> is_closing{false};
  std::atomic<size_t> n_queued{0}, n_finished{0};  // Sizes of the above, to be seen without the mutex.

  explicit HostBatch(HostGames wanted) : games(std::move(wanted)), own_scratch(games.size()) {}

  // Starts are found by `n_finders` threads at most, and steps taken by `n_threads`. Returns false if
  // observations can not have the wanted size.
  bool start(s32 n_envs, const s32* game_of, s32 n_threads, s32 n_finders) {
    if (!games.build_resizes()) return false;
    slots.reserve(static_cast<size_t>(n_envs));
    for (s32 i = 0; i < n_envs; ++i) slots.push_back(games.slot_of(game_of[i]));
    for (s32 g = 0; g < static_cast<s32>(games.size()); ++g) {
      StartFinder{games, g, n_finders, own_scratch}.find();
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
    n_under_way += n;
    if (!threads.empty()) has_work.notify_all();
  }

  // Waits for so many jobs, and does some of them.
  void wait(s32 n) {
    std::unique_lock<std::mutex> lock(mutex);
    n_wanted = static_cast<size_t>(n);
    while (finished.size() < n_wanted) {
      if (queue.empty()) {
        own_waiter.wait(lock, has_result, [this] { return n_finished >= n_wanted; });
      } else {
        carry_out_next(lock, own_scratch);
      }
    }
  }

  // Waits for so many jobs; returns their environments in the order in which they finished.
  void recv(s32 n, s32* ids) {
    wait(n);
    std::lock_guard<std::mutex> lock(mutex);
    for (s32 i = 0; i < n; ++i) {
      ids[i] = finished.front();
      finished.pop_front();
    }
    n_finished = finished.size();
    n_under_way -= n;
  }

  void run(s32 n, const Job* jobs, const Outputs* outputs) {
    std::vector<s32> ids(static_cast<size_t>(n));
    send(n, jobs, outputs);
    recv(n, ids.data());
  }

  void work() {
    Scratch scratch(games.size());
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

  void carry_out(const Job& job, const Outputs& outputs, Scratch& scratch) {
    Slot& slot = slots[static_cast<size_t>(job.env)];
    HostEnvironment env = games.environment(slot, scratch);
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

  // Writes the states of the known resets of a game, and of each the number of the first one that shows
  // the same.
  void list_known(s32 game, u8* out, s32* firsts) const {
    const std::vector<KnownReset>& resets_of = games[game].known;
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
    const KnownReset& reset = games[game].known[static_cast<size_t>(i)];
    std::memset(out, 0, static_cast<size_t>(state_size()));
    std::memcpy(out, &reset.state, sizeof(State));
    out += sizeof(State) + sizeof(Generators) + sizeof(Mt19937) + sizeof(Episode);
    const s32 size = games[game].spec.config.height * kWidth;
    for (size_t k = 0; k < 2; ++k) unpack(reset.screens[k], out + k * static_cast<size_t>(size));
  }

  // --- Looking in from outside, while no job is under way. ---

  void render(s32 env, u8* out) {
    Slot& slot = slots[static_cast<size_t>(env)];
    const u8* screen = games.console(slot).screen();
    const u8(*palette)[3] = slot.state.session.is_pal ? PAL_RGB : NTSC_RGB;
    for (s32 i = 0; screen && i < slot.state.session.height * kWidth; ++i) {
      std::memcpy(out + 3 * i, palette[screen[i]], 3);
    }
  }

  size_t max_screens() const { return games.options.observation_type == kRam ? 0 : 2 * kMaxHeight * kWidth; }
  size_t max_kept() const { return max_screens() / 2; }

  // State, generators, no-ops, episode, screens, ring and the kept screen, in this order: the form of
  // `save`, `restore` and `save_known`, and of `SavedState` in `device.h`.
  s64 state_size() const {
    return static_cast<s64>(sizeof(State) + sizeof(Generators) + sizeof(Mt19937) + sizeof(Episode) +
                            max_screens() + games.ring_size() + max_kept());
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
  // began there. Changes nothing where it cannot.
  Imported import(s32 env_number, const char* md5, const u8* bytes, s64 n, const u8* screen) {
    Slot& slot = slots[static_cast<size_t>(env_number)];
    HostEnvironment env = games.environment(slot, own_scratch);
    const State state = env.console.s;
    const Generators generators = env.console.generators;
    if (!import_ale(env.console, md5, bytes, n)) return Imported::of_another_game;
    const Session& session = env.console.s.session;
    const Config& config = env.console.config;
    // It would go on with theirs until the next reset, if that is known: to a console of this range.
    const bool has_same_range = session.paddle_min == kPaddleMin && session.paddle_max == config.paddle_max;
    if (config.has_paddles && !has_same_range) {
      env.console.s = state;
      env.console.generators = generators;
      return Imported::with_other_paddles;
    }
    for (size_t k = 0; k < slot.screens.size(); ++k) slot.screens[k] = screen[k % (slot.screens.size() / 2)];
    std::vector<u8>().swap(slot.kept);
    env.begin_episode();
    slot.episode.elapsed = slot.state.session.episode_frame_number;
    return Imported::whole;
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
