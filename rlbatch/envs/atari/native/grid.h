// A GPU's grid on a host, for tests: a few blocks at a time, whose threads are fibers that give way
// where they have to wait for each other. What is wrong on a GPU shows here as well: a thread that is
// named and does not come, and with the compiler's sanitizers an index out of bounds or a missing barrier.
//
// For x86-64 with GCC or Clang.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "platform.h"

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#define RLB_UNWATCHED __attribute__((no_sanitize("thread")))  // For the grid itself.
#else
#define RLB_UNWATCHED
#endif

// Keeps what a function must keep, and goes on with another stack.
extern "C" void rlb_switch(void** save_stack, void* load_stack);
asm(R"(
.text
.p2align 4
.local rlb_switch
.type rlb_switch, @function
rlb_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

namespace rlbatch::atari {

// A thread of the grid for ThreadSanitizer, where that is compiled in: what one of them writes, others may
// touch only after `tell` here and `learn` there, of the same place.
#if defined(__SANITIZE_THREAD__)
class Watched {
 public:
  RLB_UNWATCHED void begin() { fiber_ = __tsan_create_fiber(0); }
  RLB_UNWATCHED void end() { __tsan_destroy_fiber(fiber_); }
  RLB_UNWATCHED void is_here() { fiber_ = __tsan_get_current_fiber(); }
  RLB_UNWATCHED void goes_on() { __tsan_switch_to_fiber(fiber_, __tsan_switch_to_fiber_no_sync); }
  static void tell(void* place) { __tsan_release(place); }
  static void learn(void* place) { __tsan_acquire(place); }

 private:
  void* fiber_ = nullptr;
};
#else
struct Watched {
  void begin() {}
  void end() {}
  void is_here() {}
  void goes_on() {}
  static void tell(void*) {}
  static void learn(void*) {}
};
#endif

class Grid {
 public:
  enum class Wait { kNothing, kMeeting, kLeast, kAny, kBarrier, kDone };

  struct Fiber {
    std::unique_ptr<u8[]> stack;
    void* top = nullptr;
    Watched watched;
    Wait wait = Wait::kNothing;
    u32 lanes = 0, value = 0, result = 0, n_barriers = 0;
  };

  static Grid*& current() {
    static thread_local Grid* grid = nullptr;
    return grid;
  }

  // Runs a kernel for all threads of all blocks, some blocks at a time.
  RLB_UNWATCHED static void launch(s32 n_blocks, s32 n_threads, size_t n_shared,
                                   const std::function<void()>& kernel) {
    std::deque<std::unique_ptr<Grid>> running;
    s32 next = 0;
    while (next < n_blocks && running.size() < kBlocksAtOnce) {
      running.push_back(std::make_unique<Grid>(n_threads, n_shared, kernel));
      running.back()->begin(next++);
    }
    while (!running.empty()) {
      std::unique_ptr<Grid> grid = std::move(running.front());
      running.pop_front();
      current() = grid.get();
      const bool is_done = grid->run_on();
      if (is_done && next == n_blocks) continue;
      if (is_done) grid->begin(next++);
      running.push_back(std::move(grid));
    }
    current() = nullptr;
  }

  // A piece of memory for every block: a sanitizer sees what is read beyond it.
  Grid(s32 n_threads, size_t n_shared, const std::function<void()>& kernel)
      : fibers(static_cast<size_t>(n_threads)),
        shared(new u8[n_shared]),
        n_shared_(n_shared),
        kernel_(&kernel) {}

  void begin(s32 number) {
    block = number;
    std::memset(shared.get(), 0xa5, n_shared_);
    for (Fiber& fiber : fibers) start(fiber);
  }

  RLB_UNWATCHED u32 wait(Wait what, u32 lanes, u32 value) {
    Fiber& fiber = fibers[at];
    fiber.wait = what;
    fiber.lanes = lanes;
    fiber.value = value;
    watched_.goes_on();
    rlb_switch(&fiber.top, main_);
    return fiber.result;
  }

  // Another place than the last barrier's, which some threads may have yet to leave.
  RLB_UNWATCHED void wait_for_all() {
    u8* place = &told_[++fibers[at].n_barriers % 2];
    Watched::tell(place);
    wait(Wait::kBarrier, 0, 0);
    Watched::learn(place);
  }

  std::vector<Fiber> fibers;
  std::unique_ptr<u8[]> shared;
  s32 block = 0;
  size_t at = 0;  // The thread that runs.

 private:
  static constexpr size_t kStack = 256 << 10;
  static constexpr size_t kBlocksAtOnce = 3;

  size_t n_shared_;
  const std::function<void()>* kernel_;
  void* main_ = nullptr;
  Watched watched_;  // Who runs the threads.
  u8 told_[3] = {};  // At barriers, and at the end.

  RLB_UNWATCHED static void enter() {
    Grid& grid = *current();
    (*grid.kernel_)();
    Watched::tell(&grid.told_[2]);
    grid.wait(Wait::kDone, 0, 0);
  }

  void start(Fiber& fiber) {
    if (!fiber.stack) fiber.stack.reset(new u8[kStack]);
    auto top = reinterpret_cast<u64>(fiber.stack.get() + kStack) & ~u64{15};
    u64* frame = reinterpret_cast<u64*>(top) - 8;  // Six registers, where to return to, and nothing.
    std::memset(frame, 0, 8 * sizeof(u64));
    frame[6] = reinterpret_cast<u64>(&enter);
    fiber.top = frame;
    fiber.watched.begin();
    fiber.wait = Wait::kNothing;
    fiber.n_barriers = 0;
  }

  // Lets every thread run until it has to wait; returns whether all are done.
  RLB_UNWATCHED bool run_on() {
    bool has_run = false, is_done = true;
    watched_.is_here();
    for (at = 0; at < fibers.size(); ++at) {
      if (fibers[at].wait == Wait::kNothing) {
        fibers[at].watched.goes_on();
        rlb_switch(&main_, fibers[at].top);
        has_run = true;
      }
      is_done = is_done && fibers[at].wait == Wait::kDone;
    }
    if (!is_done && !has_run && !release()) fail("threads wait for others that never come");
    if (is_done) end();
    return is_done;
  }

  RLB_UNWATCHED void end() {
    Watched::learn(&told_[2]);
    for (Fiber& fiber : fibers) fiber.watched.end();
  }

  // Lets those go on whose wait is over; false if nobody can.
  RLB_UNWATCHED bool release() {
    bool any_released = false;
    for (size_t warp = 0; warp < fibers.size(); warp += 32) any_released |= release_warp(warp);
    if (any_released) return true;
    for (size_t warp = 0; warp < fibers.size(); warp += 32) any_released |= let_meet(warp);
    return any_released || release_barrier();
  }

  size_t warp_end(size_t warp) const { return warp + 32 < fibers.size() ? warp + 32 : fibers.size(); }

  RLB_UNWATCHED bool release_warp(size_t warp) {
    for (size_t i = warp; i < warp_end(warp); ++i) {
      const Fiber& fiber = fibers[i];
      if (fiber.wait != Wait::kLeast && fiber.wait != Wait::kAny) continue;
      if (!(fiber.lanes >> (i - warp) & 1)) fail("a thread that is not named among the lanes is there");
      if (are_there(warp, fiber)) {
        exchange(warp, fiber.wait, fiber.lanes);
        return true;
      }
    }
    return false;
  }

  RLB_UNWATCHED bool are_there(size_t warp, const Fiber& one) const {
    for (size_t k = 0; k < 32; ++k) {
      if (!(one.lanes >> k & 1)) continue;
      if (warp + k >= fibers.size()) return false;
      const Fiber& other = fibers[warp + k];
      if (other.wait != one.wait || other.lanes != one.lanes) return false;
    }
    return true;
  }

  RLB_UNWATCHED void exchange(size_t warp, Wait what, u32 lanes) {
    u32 smallest = ~0u, any_true = 0;
    for (u32 rest = lanes; rest; rest &= rest - 1) {
      const Fiber& fiber = fibers[warp + static_cast<size_t>(lowest_bit(rest))];
      smallest = fiber.value < smallest ? fiber.value : smallest;
      any_true |= fiber.value;
    }
    for (u32 rest = lanes; rest; rest &= rest - 1) {
      Fiber& fiber = fibers[warp + static_cast<size_t>(lowest_bit(rest))];
      fiber.result = what == Wait::kLeast ? smallest : any_true;
      fiber.wait = Wait::kNothing;
    }
  }

  RLB_UNWATCHED bool let_meet(size_t warp) {
    u32 lanes = 0;
    for (size_t i = warp; i < warp_end(warp); ++i) {
      if (fibers[i].wait == Wait::kMeeting) lanes |= 1u << (i - warp);
    }
    for (u32 rest = lanes; rest; rest &= rest - 1) {
      Fiber& fiber = fibers[warp + static_cast<size_t>(lowest_bit(rest))];
      fiber.result = lanes;
      fiber.wait = Wait::kNothing;
    }
    return lanes != 0;
  }

  RLB_UNWATCHED bool release_barrier() {
    for (const Fiber& fiber : fibers) {
      if (fiber.wait != Wait::kBarrier) return false;  // Also for one that has returned: it has to come.
    }
    for (Fiber& fiber : fibers) fiber.wait = Wait::kNothing;
    return true;
  }

  [[noreturn]] void fail(const char* why) const {
    std::fprintf(stderr, "grid: block %d: %s\n", block, why);
    std::abort();
  }
};

RLB_UNWATCHED inline s32 thread_index() { return static_cast<s32>(Grid::current()->at); }
RLB_UNWATCHED inline s32 block_index() { return Grid::current()->block; }
RLB_UNWATCHED inline s32 block_size() { return static_cast<s32>(Grid::current()->fibers.size()); }
RLB_UNWATCHED inline u8* shared_memory() { return Grid::current()->shared.get(); }
RLB_UNWATCHED inline void block_barrier() { Grid::current()->wait_for_all(); }
RLB_UNWATCHED inline u32 lanes_here() { return Grid::current()->wait(Grid::Wait::kMeeting, 0, 0); }
inline u32 permute(u32 a, u32 b, u32 selector) {
  const u64 bytes = u64{b} << 32 | a;
  u32 result = 0;
  for (u32 i = 0; i < 4; ++i) {
    const u32 which = selector >> 4 * i & 7, byte = static_cast<u32>(bytes >> 8 * which & 0xff);
    const bool is_sign = selector >> 4 * i & 8;
    result |= (is_sign ? byte >> 7 ? 0xffu : 0u : byte) << 8 * i;
  }
  return result;
}
RLB_UNWATCHED inline bool any(u32 lanes, bool condition) {
  return Grid::current()->wait(Grid::Wait::kAny, lanes, condition) != 0;
}
RLB_UNWATCHED inline u32 least(u32 lanes, u32 value) {
  return Grid::current()->wait(Grid::Wait::kLeast, lanes, value);
}

}  // namespace rlbatch::atari
