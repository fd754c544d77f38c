// The kernels. With RLB_GRID a host's compiler makes functions of them that play a grid; else they
// are compiled for a GPU, and for one cartridge: RLB_CART, RLB_RULE and RLB_RUNS_RAM.
#include "device.h"

using namespace rlbatch::atari;

#if defined(RLB_GRID)

#define RLB_KERNEL(name, parameters, call)                                                      \
  extern "C" __attribute__((visibility("default"))) void name(s32 n_blocks, s32 n_threads,      \
                                                              s32 n_shared, RLB_PASS parameters) { \
    Grid::launch(n_blocks, n_threads, static_cast<size_t>(n_shared), [&] { call; });            \
  }
#define RLB_PASS(...) __VA_ARGS__

#else

// Of 128 threads at most, and four blocks of these at once: with 128 registers a thread, instead of the
// 168 of three blocks, there is less code, for which a GPU waits more than for anything else.
#define RLB_KERNEL(name, parameters, call) \
  extern "C" __global__ void __launch_bounds__(128, 4) name parameters { call; }

#endif

RLB_KERNEL(rlb_step, (const KernelBatch* b, s32 job, const u8* jobs, const s64* actions, const u32* seeds),
           step_kernel(*b, job, jobs, actions, seeds))
RLB_KERNEL(rlb_observe, (const KernelBatch* b, u8* out), observe_kernel(*b, out))
RLB_KERNEL(rlb_save, (const KernelBatch* b, const s32* ids, u8* out, s64 n_bytes),
           save_kernel(*b, ids, out, n_bytes))
RLB_KERNEL(rlb_restore, (const KernelBatch* b, const s32* ids, u8* in, s64 n_bytes),
           restore_kernel(*b, ids, in, n_bytes))

// What the host that allocates must know, for one thread: `SIZES` in `../device_code.py`.
RLB_FN void sizes_kernel(s32* out) {
  const u8* anywhere = reinterpret_cast<const u8*>(out);  // NVRTC knows no offsetof.
  const State& state = *reinterpret_cast<const State*>(anywhere);
  const Pictures& pictures = *reinterpret_cast<const Pictures*>(anywhere);
  const s64 ram = reinterpret_cast<const u8*>(&state.riot) - anywhere;
  const s64 head = reinterpret_cast<const u8*>(&pictures.head) - anywhere, bytes = pictures.bytes - anywhere;
  const s32 sizes[] = {sizeof(State),       sizeof(Generators), sizeof(Mt19937), sizeof(Episode),
                       sizeof(Pictures),    sizeof(View),       4 * kLogSize,    kMaxHeight * kWidth,
                       sizeof(KernelBatch), sizeof(Resize),     sizeof(NearMemory), kRamStride,
                       static_cast<s32>(ram), static_cast<s32>(head), static_cast<s32>(bytes)};
  for (s32 size : sizes) *out++ = size;
}
RLB_KERNEL(rlb_sizes, (s32* out), sizes_kernel(out))
