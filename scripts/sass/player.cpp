// Plays machine code of NVIDIA's GPUs (SASS of sm_75 to sm_120) on a CPU; `decoder.py` decodes it.
//
// What an instruction does is taken from its name (CUDA Binary Utilities, chapter 4) and from trying
// it out: kernels of this project that are played here give the same bytes as the CPU core.
//
// A warp's threads go on together as a path until a branch parts them. They meet again where a
// convergence barrier says so: BSSY notes who is there, BSYNC waits for all of those, BREAK takes
// threads off. So it shows which threads of a warp work together, given these barriers, and what
// that costs in issue slots. The cycles are a model: an instruction waits for the stalls and
// scoreboards that the compiler has encoded, with latencies that are assumed.
#include "warp.h"

using namespace sass;

template <class T>
static void put(u8* constants, s32 at, T value) {
  if (at >= 0) std::memcpy(constants + at, &value, sizeof(value));
}

extern "C" __attribute__((visibility("default"))) const char* sass_operations() { return kNames; }
extern "C" __attribute__((visibility("default"))) const char* sass_flags() { return kFlagNames; }

static void play_block(std::vector<std::unique_ptr<Warp>>& warps) {
  const auto all = [&](auto&& holds) { return std::all_of(warps.begin(), warps.end(), holds); };
  while (!all([](auto& warp) { return warp->has_ended(); })) {
    for (auto& warp : warps) warp->run();
    if (!all([](auto& warp) { return warp->has_ended() || warp->waits_for_block(); })) continue;
    for (auto& warp : warps) warp->pass_block_barrier();
  }
}

// Plays a kernel, with so many lines of the first-level cache for each warp. `places` says where in the
// constants it finds the threads of a block, the windows of shared and local memory, and its stack; -1 for
// nowhere. For `seed` see `Warp`.
extern "C" __attribute__((visibility("default"))) void sass_play(
    const Instruction* code, const u8* constants, const u8* tables, const u8* addresses, const u16* latencies,
    Count* counts, const s32* places, s32 n_blocks, s32 n_threads, s32 n_shared, u32 cache_lines, u32 seed) {
  Program program{code, {}, tables, addresses, latencies, cache_lines, counts};
  std::memcpy(program.constants, constants, kConstants);
  put(program.constants, places[0], n_threads);
  put(program.constants, places[1], kShared);
  put(program.constants, places[2], kLocal);
  put(program.constants, places[3], kLocalBytes - 64);
  for (s32 block = 0; block < n_blocks; ++block) {
    std::vector<u8> shared(static_cast<size_t>(n_shared) + 0x400);
    std::vector<std::unique_ptr<Warp>> warps;
    for (s32 first = 0; first < n_threads; first += 32) {
      const u32 of_warp = seed ? seed + static_cast<u32>(block * n_threads + first) : 0;
      warps.push_back(std::make_unique<Warp>(program, shared.data(), static_cast<u32>(block),
                                             static_cast<u32>(first), static_cast<u32>(n_threads - first),
                                             of_warp));
    }
    play_block(warps);
  }
}
