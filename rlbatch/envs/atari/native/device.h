// What a GPU runs: one thread per environment to step it, one block per environment to look at it.
//
//   step     actions -> states, pictures, results; what the newest frames are of (`View`)
//   observe  pictures -> frames in a ring -> stacks
//
// After both come a step whose job is kRestartJob, and `observe` again. It is no kernel of its own:
// that would hold the whole console once more, and be compiled for longer.
//
// Nothing here waits for the host, and all memory is the caller's. A batch with several games runs
// these once per game, each compiled for its cartridge.
#pragma once

#include "device_canvas.h"
#include "lanes.h"
#include "palette.h"
#include "preprocess.h"

namespace rlbatch::atari {

// The environments of one game; `_KernelBatch` in `../_device.py`. Arrays are of all environments of the
// batch, but for `logs`.
struct KernelBatch {
  const GameSpec* game;
  const Options* options;
  const Resize* resize;
  const u8* rom;
  const KnownResets* resets;
  const PowerOn* power_on;
  KnownStates known;
  State* states;
  Generators* generators;
  Mt19937* noops;
  Episode* episodes;
  Pictures* pictures;  // Null if only RAM is observed.
  View* views;
  State* records;  // [n_records] each; see `Environment::recorded`.
  u32* logs;       // [warps][kLogSize][32]
  u8* ring;        // [stack][frame_size] each.
  // Results, one each.
  s32 *reward, *reward_raw, *lives, *frame_number, *episode_frame_number, *episode_length, *last_action;
  f64* episode_return;
  u8 *terminated, *truncated, *life_lost, *has_ended;
  s32* errors;  // [kErrors] what went wrong so far: a count, or just 1.
  s32 n_envs, first, stride, n_records;  // Those of this game are first, first + stride, ...
};

enum DeviceError { kLostPicture, kNoSuchAction, kErrors };
enum DeviceJob : u8 { kNoJob, kStepJob, kResetJob, kLoadJob, kStartCountJob, kRestartJob };

// The environment of a thread; -1 if there is none.
RLB_FN s32 env_of_thread(const KernelBatch& b) {
  const s32 i = block_index() * block_size() + thread_index();
  const s32 env = b.first + i * b.stride;
  return env < b.n_envs ? env : -1;
}

// Runs `work` with an environment whose console is near at hand, and puts it back.
template <class Work>
RLB_FN void with_environment(const KernelBatch& b, s32 env, const Work& work) {
  const s32 thread = block_index() * block_size() + thread_index();
  State state = b.states[env];
  Episode episode = b.episodes[env];
  View view{};
  Pictures* pictures = b.pictures ? b.pictures + env : nullptr;
  const Log log{b.logs + thread / 32 * 32 * kLogSize + thread % 32};
  State* records = b.n_records ? b.records + static_cast<s64>(env) * b.n_records : nullptr;
  DeviceEnvironment environment{
      *b.game,
      *b.options,
      Console{b.game->config, b.rom, state, b.generators[env], pictures, log, b.options->repeat_probability},
      episode,
      b.noops[env],
      records,
      *b.resets,
      *b.power_on,
      DeviceCanvas{*b.options, pictures, view,
                   b.ring + static_cast<s64>(env) * b.options->stack * frame_size(*b.options),
                   b.known}};
  work(environment);
  b.states[env] = state;
  b.episodes[env] = episode;
  b.views[env] = view;
}

RLB_FN void write_place(const KernelBatch& b, s32 env, const DeviceEnvironment& environment) {
  const Session& session = environment.state().session;
  b.lives[env] = environment.console.lives();
  b.frame_number[env] = session.frame_number;
  b.episode_frame_number[env] = session.episode_frame_number;
}

// Gives every environment a job, and writes its results: `jobs` [n_envs], or null if all have `job`;
// `actions` [n_envs] of kStepJob, places in the action space; `seeds` [n_envs] of kLoadJob. Where an
// episode has ended, kRestartJob begins the next one; results but for the place stay those of the end.
RLB_FN void step_kernel(const KernelBatch& b, s32 job, const u8* jobs, const s64* actions, const u32* seeds) {
  const s32 env = env_of_thread(b);
  come_near(b.rom);
  if (env < 0) return;
  if (jobs) job = jobs[env];
  if (job == kRestartJob && !b.episodes[env].has_ended) return;
  with_environment(b, env, [&](DeviceEnvironment& environment) {
    if (job == kLoadJob) environment.load(seeds[env]);
    if (job == kLoadJob || job == kResetJob || job == kRestartJob) environment.reset();
    if (job == kStartCountJob) environment.start_count();
    if (job == kStepJob) {
      const s64 action = actions[env];
      const bool exists = action >= 0 && action < b.game->n_actions;
      if (!exists) b.errors[kNoSuchAction] = 1;
      environment.step(exists ? static_cast<s32>(action) : -1, 1.0f);
    }
    if (job != kRestartJob) write_outcome(environment.e, b, env);
    write_place(b, env, environment);
  });
}

// --- Looking at pictures: a block per environment. ---

// The values of palette indices in one plane.
struct Values {
  const u8* first;
  s32 stride;

  RLB_FN Values(const Options& o, bool is_pal, s32 plane) : first(is_pal ? PAL_GRAY : NTSC_GRAY), stride(1) {
    if (o.observation_type != kRgb) return;
    first = (is_pal ? PAL_RGB : NTSC_RGB)[0] + plane;
    stride = 3;
  }
  RLB_FN u8 operator[](u8 colour) const { return first[stride * colour]; }
};

// Fills words with pixels, from left to right.
struct RowWriter {
  u32* out;
  u32 word = 0;
  s32 x = 0;

  RLB_FN void put(u8 value, s32 n) {
    const u32 four = value * 0x01010101u;
    const s32 at = x & 3;
    x += n;
    if (at) {
      const s32 k = n < 4 - at ? n : 4 - at;
      word |= (four >> 8 * (4 - k)) << 8 * at;
      if (at + k < 4) return;
      *out++ = word;
      n -= k;
    }
    for (; n >= 4; n -= 4) *out++ = four;
    word = four & ((1u << 8 * n) - 1);
  }
};

// Writes a row of the maximum of one to three pictures.
RLB_FN void decode_row(const Pictures& p, const View& view, s32 row, const Values& values, u8* out) {
  constexpr s32 kMost = 3;
  RowReader readers[kMost] = {{p, view.picture[0], row},
                              {p, view.picture[view.n > 1 ? 1 : 0], row},
                              {p, view.picture[view.n > 2 ? 2 : 0], row}};
  s32 left[kMost] = {0, 0, 0};
  u8 value[kMost] = {0, 0, 0};
  RowWriter writer{reinterpret_cast<u32*>(out)};
  while (writer.x < kWidth) {
    s32 n = kWidth;
    u8 most = 0;
    for (s32 i = 0; i < kMost; ++i) {
      if (i >= view.n) continue;
      if (!left[i]) {
        const Span span = readers[i].next();
        left[i] = span.length;
        value[i] = values[span.colour];
      }
      n = left[i] < n ? left[i] : n;
      most = value[i] > most ? value[i] : most;
    }
    for (s32 i = 0; i < kMost; ++i) left[i] -= n;
    writer.put(most, n);
  }
}

// Makes the newest frame in the ring. Shared memory: [height][160].
RLB_FN void draw_frame(const KernelBatch& b, s32 env, u8* frame) {
  const Options& o = *b.options;
  const View view = b.views[env];
  const Session& session = b.states[env].session;
  const Pictures& p = b.pictures[env];
  const s32 n_planes = o.observation_type == kRgb ? 3 : 1;
  u8* image = shared_memory();
  if (p.is_lost) b.errors[kLostPicture] = 1;
  for (s32 plane = 0; plane < n_planes; ++plane) {
    const Values values(o, session.is_pal, plane);
    for (s32 row = thread_index(); row < session.height; row += block_size()) {
      decode_row(p, view, row, values, image + row * kWidth);
    }
    block_barrier();
    s32 row = thread_index() / o.width, column = thread_index() % o.width;
    for (s32 i = thread_index(); i < o.height * o.width; i += block_size()) {
      frame[i * n_planes + plane] = resized_pixel_of_words(image, *b.resize, row, column);
      for (column += block_size(); column >= o.width; column -= o.width) ++row;
    }
    block_barrier();
  }
}

// All threads of a block copy, by 16 bytes where both memories begin at a multiple of that.
RLB_FN void copy_together(const void* from, void* to, s32 n) {
  s32 done = 0;
  if ((reinterpret_cast<u64>(from) | reinterpret_cast<u64>(to)) % 16 == 0) {
    const uint4* words = static_cast<const uint4*>(from);
    for (s32 i = thread_index(); i < n / 16; i += block_size()) static_cast<uint4*>(to)[i] = words[i];
    done = n / 16 * 16;
  }
  for (s32 i = done + thread_index(); i < n; i += block_size()) {
    static_cast<u8*>(to)[i] = static_cast<const u8*>(from)[i];
  }
}

// Adds the newest frame to the ring of an environment, and writes its stack, the oldest first, to
// out [n_envs][stack][frame_size].
RLB_FN void observe_kernel(const KernelBatch& b, u8* out) {
  const s32 env = b.first + block_index() * b.stride;
  if (env >= b.n_envs) return;
  const Options& o = *b.options;
  const View view = b.views[env];
  const s32 size = frame_size(o), newest = b.episodes[env].newest;
  u8* ring = b.ring + static_cast<s64>(env) * o.stack * size;
  u8* frame = ring + newest * size;
  if (view.clears_stack) {
    for (s32 i = thread_index(); i < o.stack * size; i += block_size()) ring[i] = 0;
    block_barrier();
  }
  if (view.kind == View::kImage) draw_frame(b, env, frame);
  if (view.kind == View::kBytes) {
    for (s32 i = thread_index(); i < size; i += block_size()) frame[i] = b.states[env].riot.ram[i];
  }
  if (view.kind == View::kAgain && o.stack > 1) {
    const u8* last = ring + (newest ? newest - 1 : o.stack - 1) * size;
    for (s32 i = thread_index(); i < size; i += block_size()) frame[i] = last[i];
  }
  block_barrier();
  // The oldest comes after the newest.
  const s32 split = (o.stack - 1 - newest) * size;
  u8* stack = out + static_cast<s64>(env) * o.stack * size;
  copy_together(ring + (newest + 1) * size, stack, split);
  copy_together(ring, stack + split, o.stack * size - split);
  if (thread_index() == 0) b.views[env].kind = View::kNone, b.views[env].clears_stack = 0;
}

// --- States, in the form of `HostBatch::save`. ---

RLB_FN s64 saved_screens(const Options& o) {
  return o.observation_type == kRam ? 0 : 2 * kMaxHeight * kWidth;
}

// Where the parts of a saved state are; not aligned.
struct SavedState {
  u8 *state, *generators, *noops, *episode, *screens, *ring, *kept;

  RLB_FN SavedState(u8* at, const Options& o) {
    state = at;
    generators = at += sizeof(State);
    noops = at += sizeof(Generators);
    episode = at += sizeof(Mt19937);
    screens = at += sizeof(Episode);
    ring = at += saved_screens(o);
    kept = at += o.stack * frame_size(o);
  }
};

RLB_FN void write_pixels(const Pictures& p, u8 picture, s32 height, u8* out) {
  for (s32 row = thread_index(); row < height; row += block_size()) {
    RowReader reader(p, picture, row);
    for (s32 x = 0; x < kWidth;) {
      const Span span = reader.next();
      for (s32 end = x + span.length; x < end; ++x) out[row * kWidth + x] = span.colour;
    }
  }
}

// Writes the states of environments `ids`, a block each, to out [blocks][n_bytes].
RLB_FN void save_kernel(const KernelBatch& b, const s32* ids, u8* out, s64 n_bytes) {
  const s32 env = ids[block_index()];
  const Options& o = *b.options;
  u8* row = out + block_index() * n_bytes;
  for (s64 i = thread_index(); i < n_bytes; i += block_size()) row[i] = 0;
  block_barrier();
  const SavedState saved(row, o);
  const s32 ring_size = o.stack * frame_size(o);
  copy_together(&b.states[env], saved.state, sizeof(State));
  copy_together(&b.generators[env], saved.generators, sizeof(Generators));
  copy_together(&b.noops[env], saved.noops, sizeof(Mt19937));
  copy_together(&b.episodes[env], saved.episode, sizeof(Episode));
  copy_together(b.ring + static_cast<s64>(env) * ring_size, saved.ring, ring_size);
  if (!b.pictures) return;
  const Pictures& p = b.pictures[env];
  const s32 height = b.states[env].session.height;
  for (s32 k = 0; k < 2; ++k) write_pixels(p, p.shown[k], height, saved.screens + k * height * kWidth);
  if (b.episodes[env].has_kept) write_pixels(p, p.kept, height, saved.kept);
}

// Draws a picture from pixels; returns its number.
RLB_FN u8 picture_of(Pictures& p, const u8* pixels, s32 height) {
  begin_drawing(&p, 0, height);
  for (s32 row = 0; row < height; ++row, pixels += kWidth) {
    open_row(p, row, 0);
    for (s32 x = 0, begin = 0; begin < kWidth; begin = x) {
      while (x < kWidth && pixels[x] == pixels[begin]) ++x;
      put_run(p, pixels[begin], x - begin);
    }
  }
  close_row(p);
  return p.drawn;
}

// Reads the states of environments `ids`, a block each, from in [blocks][n_bytes]. Numbers from n_envs on are
// of no environment: `_known_pictures` in `../_device.py` has a batch with n_envs 0, and wants pictures of known
// states. Of these only the state and the pictures are written.
RLB_FN void restore_kernel(const KernelBatch& b, const s32* ids, u8* in, s64 n_bytes) {
  const s32 env = ids[block_index()];
  const Options& o = *b.options;
  const SavedState saved(in + block_index() * n_bytes, o);
  const s32 ring_size = o.stack * frame_size(o);
  const bool is_none = env >= b.n_envs;
  copy_together(saved.state, &b.states[env], sizeof(State));
  if (!is_none) {
    copy_together(saved.generators, &b.generators[env], sizeof(Generators));
    copy_together(saved.noops, &b.noops[env], sizeof(Mt19937));
    copy_together(saved.episode, &b.episodes[env], sizeof(Episode));
    copy_together(saved.ring, b.ring + static_cast<s64>(env) * ring_size, ring_size);
  }
  block_barrier();
  if (thread_index() > 0) return;
  if (!is_none) b.views[env] = View{};
  if (!b.pictures) return;
  Pictures& p = b.pictures[env];
  const s32 height = b.states[env].session.height;
  clear_screens(&p, height);
  for (s32 k = 0; k < 2; ++k) p.shown[k] = picture_of(p, saved.screens + k * height * kWidth, height);
  if (!is_none && b.episodes[env].has_kept) p.kept = picture_of(p, saved.kept, height);
  if (p.is_lost) b.errors[kLostPicture] = 1;
}

}  // namespace rlbatch::atari
