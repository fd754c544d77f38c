// The host library: a C ABI over the headers, loaded with ctypes.
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "batch.h"
#include "console.h"
#include "host_batch.h"
#include "palette.h"

using namespace rlbatch::atari;

#define RLB_API extern "C" __attribute__((visibility("default")))

namespace {

// What one console owns on the host.
struct HostConsole {
  Config config;
  std::vector<u8> rom;
  std::vector<u8> screens = std::vector<u8>(2 * kMaxHeight * kWidth);
  std::vector<u32> log = std::vector<u32>(kLogSize);
  State state{};
  Generators generators{};
  f32 repeat_probability = 0;
  s32 frame_skip = 1, max_frames = 0, truncates_on_life_loss = 0;
  s32 reward_min = INT32_MIN, reward_max = INT32_MAX;
  s32 most_lives = 0;  // With fewer, one has been lost.

  std::unique_ptr<Translator> translator;

  Console console() {
    return {config,      rom.data(),         state,           generators, screens.data(),
            log.data(), repeat_probability, translator.get(), nullptr};
  }

  bool is_truncated() {
    if (max_frames > 0 && state.session.episode_frame_number >= max_frames) return true;
    return truncates_on_life_loss && console().lives() < most_lives;
  }
};

// Programs as the core wants them: a 2K one twice, and padding that is read, but never used.
std::vector<u8> prepared(const u8* rom, s32 size, Cart cart) {
  std::vector<u8> image(kMaxRom, 0);
  std::memcpy(image.data(), rom, static_cast<size_t>(size));
  if (cart == Cart::k2K) std::memcpy(image.data() + 2048, rom, 2048);
  return image;
}

bool is_sensible(const Config& c) {
  if (c.rule < 0 || c.rule >= n_rules || c.cart < 0 || c.cart > static_cast<s32>(Cart::kDPC)) return false;
  const Cart cart = static_cast<Cart>(c.cart);
  const s32 size = rom_size(cart);  // Of DPC there may be up to 255 bytes that a copier has added.
  const bool fits = cart == Cart::kDPC ? c.rom_size >= size && c.rom_size <= size + 255
                                       : c.rom_size == size;
  return fits && c.ystart >= 0 && c.ystart <= 64 && c.height >= 1 && c.height <= kMaxHeight;
}

enum Field : s32 {
  kRepeat, kFrameSkip, kMaxFrames, kTruncateOnLifeLoss, kRewardMin, kRewardMax, kMode, kDifficulty,
  kLives, kTerminal, kTruncated, kFrameNumber, kEpisodeFrameNumber, kHeightField,
};

HostConsole& at(void* handle) { return *static_cast<HostConsole*>(handle); }

const u8* gray_of(const HostConsole& c) {
  return c.state.session.is_pal ? PAL_GRAY : NTSC_GRAY;
}

}  // namespace

// Bytes of a saved environment, up to the last that `rlb_reseed` writes.
constexpr size_t kReseeded = sizeof(State) + sizeof(Generators) + sizeof(Mt19937);

// Bytes of a structure, for those who describe it elsewhere as well or have to make room; 0 for others.
RLB_API s64 rlb_size_of(const char* name) {
  const std::pair<const char*, size_t> sizes[] = {
      {"Config", sizeof(Config)},   {"GameSpec", sizeof(GameSpec)},
      {"Options", sizeof(Options)}, {"KnownResets", sizeof(KnownResets)},
      {"Job", sizeof(Job)},         {"Outputs", sizeof(Outputs)},
      {"Resize", sizeof(Resize)},   {"Slot", sizeof(Slot)},
      {"State", sizeof(State)},     {"Scratch", Scratch::kBytes},
      {"PowerOn", sizeof(PowerOn)}, {"Reseeded", kReseeded},
  };
  for (const auto& [known, size] : sizes) {
    if (!std::strcmp(known, name)) return static_cast<s64>(size);
  }
  return 0;
}

RLB_API void* rlb_console_new(const u8* rom, const Config* config) {
  if (!is_sensible(*config)) return nullptr;
  auto* c = new (std::nothrow) HostConsole;
  if (!c) return nullptr;
  c->config = *config;
  c->rom = prepared(rom, config->rom_size, static_cast<Cart>(config->cart));
  if (may_translate()) {
    c->translator = translator_of(static_cast<Cart>(config->cart), c->rom.data(), false);
  }
  return c;
}

RLB_API void rlb_console_free(void* handle) { delete static_cast<HostConsole*>(handle); }

// Starts in the mode that has been set before.
RLB_API void rlb_console_load(void* handle, u32 environment_seed) {
  HostConsole& c = at(handle);
  c.console().power_on(environment_seed, c.state.session.mode);
  // Those that the rule begins with, which may not be the game's. ale-py's atlantis2 has none.
  const Rule rule = c.console().rule_of();
  RuleState fresh{};
  reset_rule(rule, fresh, 0);
  c.most_lives = rule == Rule::atlantis2 ? c.console().lives() : rule_lives(rule, fresh);
}

RLB_API void rlb_console_reset(void* handle) { at(handle).console().reset_game(); }

RLB_API s32 rlb_console_act(void* handle, s32 action, f32 strength) {
  HostConsole& c = at(handle);
  s64 sum = 0;
  for (s32 k = 0; k < c.frame_skip; ++k) sum += c.console().act(action, strength, c.is_truncated());
  if (sum < c.reward_min) sum = c.reward_min;
  if (sum > c.reward_max) sum = c.reward_max;
  return static_cast<s32>(sum);
}

RLB_API f64 rlb_console_get(void* handle, s32 field) {
  HostConsole& c = at(handle);
  const Session& session = c.state.session;
  switch (field) {
    case kRepeat: return c.repeat_probability;
    case kFrameSkip: return c.frame_skip;
    case kMaxFrames: return c.max_frames;
    case kTruncateOnLifeLoss: return c.truncates_on_life_loss;
    case kRewardMin: return c.reward_min;
    case kRewardMax: return c.reward_max;
    case kMode: return session.mode;
    case kDifficulty: return session.difficulty;
    case kLives: return c.console().lives();
    case kTerminal: return c.state.rule.terminal;
    case kTruncated: return c.is_truncated();
    case kFrameNumber: return session.frame_number;
    case kEpisodeFrameNumber: return session.episode_frame_number;
    case kHeightField: return session.height;
    default: return 0;
  }
}

RLB_API void rlb_console_set(void* handle, s32 field, f64 value) {
  HostConsole& c = at(handle);
  const s32 whole = static_cast<s32>(value);
  switch (field) {
    case kRepeat: c.repeat_probability = static_cast<f32>(value); break;
    case kFrameSkip: c.frame_skip = whole < 1 ? 1 : whole; break;
    case kMaxFrames: c.max_frames = whole; break;
    case kTruncateOnLifeLoss: c.truncates_on_life_loss = whole; break;
    case kRewardMin: c.reward_min = whole; break;
    case kRewardMax: c.reward_max = whole; break;
    case kMode: c.state.session.mode = whole; break;
    case kDifficulty: c.state.session.difficulty = whole; break;
    default: break;
  }
}

RLB_API const u8* rlb_console_ram(void* handle) { return at(handle).state.riot.ram; }

RLB_API void rlb_console_set_ram(void* handle, s32 index, s32 value) {
  State& state = at(handle).state;
  state.riot.ram[index & 127] = state.cpu.bus = static_cast<u8>(value);
}

RLB_API const u8* rlb_console_screen(void* handle) { return at(handle).console().screen(); }

RLB_API void rlb_console_rgb(void* handle, u8* out) {
  HostConsole& c = at(handle);
  const u8* screen = c.console().screen();
  const auto& palette = c.state.session.is_pal ? PAL_RGB : NTSC_RGB;
  const u8* rgb = &palette[0][0];
  for (s32 i = 0; i < c.state.session.height * kWidth; ++i) {
    std::memcpy(out + 3 * i, rgb + 3 * screen[i], 3);
  }
}

RLB_API void rlb_console_gray(void* handle, u8* out) {
  HostConsole& c = at(handle);
  const u8* screen = c.console().screen();
  for (s32 i = 0; i < c.state.session.height * kWidth; ++i) out[i] = gray_of(c)[screen[i]];
}

RLB_API s64 rlb_console_state_size(void* handle, s32 include_rng) {
  const size_t screens = at(handle).screens.size();
  return static_cast<s64>(sizeof(State) + screens + sizeof(Mt19937) * (include_rng ? 2 : 1));
}

RLB_API void rlb_console_save(void* handle, u8* out, s32 include_rng) {
  HostConsole& c = at(handle);
  std::memcpy(out, &c.state, sizeof(State));
  std::memcpy(out + sizeof(State), c.screens.data(), c.screens.size());
  u8* generators = out + sizeof(State) + c.screens.size();
  std::memcpy(generators, &c.generators.system, sizeof(Mt19937));
  if (include_rng) {
    std::memcpy(generators + sizeof(Mt19937), &c.generators.environment, sizeof(Mt19937));
  }
}

RLB_API s32 rlb_console_restore(void* handle, const u8* in, s64 size) {
  HostConsole& c = at(handle);
  const bool has_rng = size == rlb_console_state_size(handle, 1);
  if (!has_rng && size != rlb_console_state_size(handle, 0)) return 1;
  std::memcpy(&c.state, in, sizeof(State));
  std::memcpy(c.screens.data(), in + sizeof(State), c.screens.size());
  const u8* generators = in + sizeof(State) + c.screens.size();
  std::memcpy(&c.generators.system, generators, sizeof(Mt19937));
  if (has_rng) {
    std::memcpy(&c.generators.environment, generators + sizeof(Mt19937), sizeof(Mt19937));
  }
  return 0;
}

// See `import_ale`; the screen has the height of the console's.
RLB_API s32 rlb_console_import(void* handle, const char* md5, const u8* bytes, s64 n,
                               const u8* screen) {
  HostConsole& c = at(handle);
  Console console = c.console();
  if (!import_ale(console, md5, bytes, n)) return 1;
  const size_t size = static_cast<size_t>(c.state.session.height * kWidth);
  std::memcpy(c.screens.data(), screen, size);
  std::memcpy(c.screens.data() + size, screen, size);
  return 0;
}

// --- What a GPU is given. ---

// Fills a `Resize`; returns 0 if there is none.
RLB_API s32 rlb_resize(s32 height, s32 out_height, s32 out_width, void* out) {
  return build_resize(height, out_height, out_width, *static_cast<Resize*>(out));
}

// --- Batches. ---

RLB_API void* rlb_batch_new(s32 n_envs, s32 n_games, const GameSpec* games, const u8* const* roms,
                            const s32* game_of, const Options* options, s32 n_threads, s32 n_finders) {
  for (s32 g = 0; g < n_games; ++g) {
    if (!is_sensible(games[g].config)) return nullptr;
  }
  HostGames wanted{*options, {}};
  for (s32 g = 0; g < n_games; ++g) {
    const Config& c = games[g].config;
    wanted.games.push_back({games[g], prepared(roms[g], c.rom_size, static_cast<Cart>(c.cart))});
  }
  auto batch = std::make_unique<HostBatch>(std::move(wanted));
  return batch->start(n_envs, game_of, n_threads, n_finders) ? batch.release() : nullptr;
}

RLB_API s32 rlb_batch_threads(void* handle) {
  return 1 + static_cast<s32>(static_cast<HostBatch*>(handle)->threads.size());
}

RLB_API void rlb_batch_free(void* handle) { delete static_cast<HostBatch*>(handle); }

RLB_API s64 rlb_batch_bytes(void* handle) { return static_cast<HostBatch*>(handle)->bytes_per_env(); }

RLB_API void rlb_batch_send(void* handle, s32 n, const Job* jobs, const Outputs* outputs) {
  static_cast<HostBatch*>(handle)->send(n, jobs, outputs);
}

RLB_API s32 rlb_batch_under_way(void* handle) { return static_cast<HostBatch*>(handle)->n_under_way; }

RLB_API void rlb_batch_wait(void* handle, s32 n) { static_cast<HostBatch*>(handle)->wait(n); }

RLB_API void rlb_batch_recv(void* handle, s32 n, s32* ids) {
  static_cast<HostBatch*>(handle)->recv(n, ids);
}

RLB_API void rlb_batch_run(void* handle, s32 n, const Job* jobs, const Outputs* outputs) {
  static_cast<HostBatch*>(handle)->run(n, jobs, outputs);
}

RLB_API const u8* rlb_batch_ram(void* handle, s32 env) {
  return static_cast<HostBatch*>(handle)->slots[static_cast<size_t>(env)].state.riot.ram;
}

RLB_API void rlb_batch_rgb(void* handle, s32 env, u8* out) {
  static_cast<HostBatch*>(handle)->render(env, out);
}

RLB_API s32 rlb_batch_height(void* handle, s32 env) {
  return static_cast<HostBatch*>(handle)->slots[static_cast<size_t>(env)].state.session.height;
}

RLB_API s32 rlb_batch_import(void* handle, s32 env, const char* md5, const u8* bytes, s64 n,
                             const u8* screen) {
  return static_cast<s32>(static_cast<HostBatch*>(handle)->import(env, md5, bytes, n, screen));
}

RLB_API s64 rlb_batch_state_size(void* handle) {
  return static_cast<HostBatch*>(handle)->state_size();
}

RLB_API void rlb_batch_save(void* handle, s32 env, u8* out) {
  static_cast<HostBatch*>(handle)->save(env, out);
}

// Writes `PowerOn` of a game.
RLB_API void rlb_batch_power_on(void* handle, s32 game, PowerOn* out) {
  *out = static_cast<HostBatch*>(handle)->games[game].power_on;
}

// Writes `KnownResets` of a game.
RLB_API void rlb_batch_known_resets(void* handle, s32 game, KnownResets* out) {
  *out = static_cast<HostBatch*>(handle)->games[game].resets;
}

// Writes the states of the known resets of a game, and of each the number of the first that shows the same.
RLB_API void rlb_batch_list_known(void* handle, s32 game, u8* out, s32* firsts) {
  static_cast<HostBatch*>(handle)->list_known(game, out, firsts);
}

RLB_API void rlb_batch_save_known(void* handle, s32 game, s32 i, u8* out) {
  static_cast<HostBatch*>(handle)->save_known(game, i, out);
}

// Gives a state that was saved the random numbers of another seed, from here on. Those of the console itself
// are the same in all environments.
RLB_API void rlb_reseed(u8* saved, u32 value) {
  saved += sizeof(State);
  Generators generators;
  std::memcpy(&generators, saved, sizeof(generators));
  seed(generators.environment, value);
  std::memcpy(saved, &generators, sizeof(generators));
  Mt19937 noops;
  seed(noops, value);
  std::memcpy(saved + sizeof(generators), &noops, sizeof(noops));
}

RLB_API void rlb_batch_restore(void* handle, s32 env, const u8* in) {
  static_cast<HostBatch*>(handle)->restore(env, in);
}
