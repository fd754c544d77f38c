// The games of a batch on a host, and the environments that play them.
#pragma once

#include <cstdlib>
#include <memory>
#include <vector>

#include "batch.h"
#include "host_canvas.h"

namespace rlbatch::atari {

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

// A game, and where its episodes begin.
struct HostGame {
  GameSpec spec;
  std::vector<u8> rom;
  Resize resize{};
  PowerOn power_on{};
  KnownResets resets{};
  std::vector<KnownReset> known{};  // Their states.
};

// What is kept of an environment between two jobs.
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

  explicit Scratch(size_t n_games) : translators(n_games) {}
};

// What all environments of a batch share; makes them out of what is their own.
struct HostGames {
  Options options{};
  std::vector<HostGame> games;
  const bool translates = may_translate();

  size_t size() const { return games.size(); }
  HostGame& operator[](s32 game) { return games[static_cast<size_t>(game)]; }
  const HostGame& operator[](s32 game) const { return games[static_cast<size_t>(game)]; }

  // Returns false if observations can not have the wanted size.
  bool build_resizes() {
    if (options.observation_type == kRam) return true;
    for (HostGame& game : games) {
      if (!build_resize(game.spec.config.height, options.height, options.width, game.resize)) return false;
    }
    return true;
  }

  size_t ring_size() const {
    return static_cast<size_t>(options.stack) * static_cast<size_t>(frame_size(options));
  }

  // Returns an environment that has not been loaded yet.
  Slot slot_of(s32 game) const {
    Slot slot;
    slot.game = game;
    if (options.observation_type != kRam) {
      slot.screens.resize(static_cast<size_t>(2 * (*this)[game].spec.config.height * kWidth));
    }
    slot.ring.resize(ring_size());
    return slot;
  }

  Console console(Slot& slot, u32* log = nullptr, Translator* translator = nullptr,
                  Translator* blind_translator = nullptr) const {
    const HostGame& game = (*this)[slot.game];
    u8* screens = slot.screens.empty() ? nullptr : slot.screens.data();
    return {game.spec.config, game.rom.data(), slot.state, slot.generators,
            screens,          log,             options.repeat_probability, translator,
            blind_translator};
  }

  HostEnvironment environment(Slot& slot, Scratch& scratch) const {
    const HostGame& game = (*this)[slot.game];
    const Translators& translators = translators_of(slot.game, scratch);
    return {game.spec,
            options,
            console(slot, scratch.log.data(), translators.of_pictures.get(), translators.blind.get()),
            slot.episode,
            slot.noops,
            scratch.recorded.data(),
            game.resets,
            game.power_on,
            HostCanvas{options, game.resize, slot.ring.data(), scratch.image.data(),
                       scratch.second.data(), scratch.kept.data(), game.known}};
  }

  const Translators& translators_of(s32 game, Scratch& scratch) const {
    Translators& found = scratch.translators[static_cast<size_t>(game)];
    if (translates && !found.are_made) {
      const Cart cart = static_cast<Cart>((*this)[game].spec.config.cart);
      const u8* rom = (*this)[game].rom.data();
      found = {translator_of(cart, rom, false), translator_of(cart, rom, true), true};
    }
    return found;
  }
};

}  // namespace rlbatch::atari
