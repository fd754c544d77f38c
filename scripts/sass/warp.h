// Where a warp's threads go, and when.
#pragma once

#include "memory.h"

namespace sass {

struct Path {
  s32 at;
  u32 mask;
};

struct Waiting {
  s32 at;
  u32 mask;
  Operation why;
  u32 barrier;
  Words wanted;  // Of WARPSYNC.
};

class Warp : private Memory {
 public:
  // With a seed, threads that have parted take turns at random, as a GPU may let them, and so do warps.
  Warp(Program& program, u8* shared, u32 block, u32 first_thread, u32 n_threads, u32 seed)
      : Memory(program, shared),
        block_(block),
        first_thread_(first_thread),
        is_random_(seed != 0),
        random_(seed) {
    live_ = n_threads >= 32 ? ~0u : (1u << n_threads) - 1;
    ready_.push_back({0, live_});
  }

  // Runs to the end, until all wait for the block, or until another warp's turn comes.
  void run() {
    for (;;) {
      while (!ready_.empty()) {
        take_path();
        while (path_.mask && step()) {
          if (!steps_aside()) continue;
          ready_.push_back(path_);
          return;
        }
        while (let_meet()) {
        }
      }
      if (!live_ || waits_for_block()) return;
      if (!let_meet()) fail(0, "all threads wait for each other");
    }
  }

  bool has_ended() const { return !live_; }
  bool waits_for_block() const {
    u32 waiting = 0;
    for (const Waiting& one : waiting_) waiting |= one.why == BAR ? one.mask : 0;
    return live_ && waiting == live_;
  }

  void pass_block_barrier() {
    if (has_ended()) return;
    u32 mask = 0;
    const s32 at = waiting_[0].at;
    for (const Waiting& one : waiting_) mask |= one.mask;
    waiting_.clear();
    ready_ = {{at + 1, mask}};
  }

 private:
  void take_path() {
    if (is_random_) std::swap(ready_.back(), ready_[random_() % ready_.size()]);
    path_ = ready_.back();
    ready_.pop_back();
  }

  bool steps_aside() { return is_random_ && random_() % (ready_.empty() ? 128 : 8) == 0; }

  // Those that go elsewhere become paths of their own.
  void part(u32 going, const Words& where) {
    if (path_.mask & ~going) ready_.push_back({path_.at, path_.mask & ~going});
    path_.mask = 0;
    while (going) {
      const u32 to = where[__builtin_ctz(going)];
      const u32 together = going & mask_of([&](int l) { return where[l] == to; });
      going &= ~together;
      if (path_.mask) {
        ready_.push_back({static_cast<s32>(to), together});
      } else {
        path_ = {static_cast<s32>(to), together};
      }
    }
  }

  void go(u32 going, s32 to) {
    Words where;
    for_all([&](int l) { where[l] = static_cast<u32>(to); });
    if (going) part(going, where);
  }

  // Returns false if the path has to wait.
  bool meet(Operation why, const Words& wanted) {
    if (path_.mask & ~mask_) ready_.push_back({path_.at, path_.mask & ~mask_});
    path_.mask = mask_;
    if (why == BSYNC && !wanted[__builtin_ctz(mask_)]) return true;  // A barrier that was cleared.
    waiting_.push_back({path_.at - 1, mask_, why, i_->table, wanted});
    return false;
  }

  u32 wanted_by(const Waiting& one) const {
    const int lane = __builtin_ctz(one.mask);
    return (one.why == BSYNC ? barriers_[one.barrier][lane] : one.wanted[lane]) & live_;
  }

  bool let_meet() {
    for (const Waiting& one : waiting_) {
      if (one.why == BAR) continue;
      const u32 wanted = wanted_by(one);
      const s32 at = one.at;
      u32 here = 0;
      for (const Waiting& other : waiting_) here |= other.at == at ? other.mask : 0;
      if (wanted & ~here) continue;
      for (Waiting& other : waiting_) other.mask &= other.at == at ? ~wanted : ~0u;
      const auto has_gone = [](const Waiting& w) { return !w.mask; };
      waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), has_gone), waiting_.end());
      ready_.push_back({at + 1, wanted});
      return true;
    }
    return false;
  }

  void break_off() {
    Words& barrier = barriers_[i_->table];
    const u32 going = all_conditions();
    u32 others = 0;
    for_each(going, [&](int l) { others |= barrier[l]; });
    for_each(others, [&](int l) { barrier[l] &= barrier[l] & going ? ~going : ~0u; });
  }

  u32 all_conditions() const {
    u32 mask = mask_;
    for (u32 k = 0; k < i_->n_conditions; ++k) mask &= condition(i_->conditions[k]);
    return mask;
  }

  // Returns false if the path ends or has to wait.
  bool step() {
    const s32 at = path_.at;
    i_ = &program_.code[at];
    mask_ = path_.mask & condition(i_->guard);
    u64 issued = now_;
    for (u32 k = 0; k < 6; ++k) {
      if (i_->waits >> k & 1) issued = std::max(issued, scoreboards_[k]);
    }
    path_.at = at + 1;
    Traffic traffic;
    const bool goes_on = !mask_ || execute(traffic);
    const u64 latency = traffic.misses ? program_.latencies[kMissLatency] : program_.latencies[i_->operation];
    if (i_->write_barrier < 6) {
      u64& until = scoreboards_[i_->write_barrier];
      until = std::max(until, issued + latency + 2 * traffic.more_lines);
    }
    if (i_->read_barrier < 6) {
      u64& until = scoreboards_[i_->read_barrier];
      until = std::max(until, issued + program_.latencies[kReadLatency]);
    }
    u64 next = issued + std::max<u64>(i_->stall, 1);
    const bool is_jump = i_->operation >= BRA && i_->operation <= RET;
    if (is_jump && mask_ && path_.at != at + 1) next += latency;
    Count& count = program_.counts[at];
    count.slots += 1;
    count.threads += static_cast<u64>(__builtin_popcount(mask_));
    count.cycles += next - now_;
    count.misses += traffic.misses;
    now_ = next;
    return goes_on;
  }

  // Returns false if the path ends or has to wait.
  bool execute(Traffic& traffic) {
    if (compute() || access(traffic) || exchange()) return true;
    const Instruction& i = *i_;
    switch (static_cast<Operation>(i.operation)) {
      case NOP: case ENDCOLLECTIVE: break;
      case BRA: go(all_conditions(), i.to); break;
      case BRA_DIV:  // All together, unless they are those that are named.
        if (mask_ != source(0)[__builtin_ctz(mask_)]) go(path_.mask, i.to);
        break;
      case CALL: go(mask_, i.to); break;
      case BRX: case RET: {
        const s32 base = i.operation == BRX ? 16 * path_.at + i.offset : 0;
        Words where = source(0);
        for_all([&](int l) { where[l] = (where[l] + static_cast<u32>(base)) / 16; });
        const u32 going = all_conditions();
        if (going) part(going, where);
        break;
      }
      case EXIT:
        live_ &= ~mask_;
        path_.mask &= ~mask_;
        break;
      case BSSY: for_each(mask_, [&](int l) { barriers_[i.table][l] = mask_; }); break;
      case BSYNC: return meet(BSYNC, barriers_[i.table]);
      case BREAK: break_off(); break;
      case BMOV_GET:
        set(barriers_[i.table]);
        if (i.flags & kClears) for_each(mask_, [&](int l) { barriers_[i.table][l] = 0; });
        break;
      case BMOV_SET: {
        const Words from = source(0);
        for_each(mask_, [&](int l) { barriers_[i.table][l] = from[l]; });
        break;
      }
      case WARPSYNC: {
        Words wanted;
        for_all([&](int l) { wanted[l] = ~0u; });
        return meet(WARPSYNC, i.n_sources ? source(0) : wanted);
      }
      case BAR: return meet(BAR, Words{});
      default: fail(path_.at - 1, "an instruction that is not known");
    }
    return path_.mask != 0;
  }

  // What threads tell each other, and who they are; returns whether the instruction is one of these.
  bool exchange() {
    const Instruction& i = *i_;
    switch (static_cast<Operation>(i.operation)) {
      case CS2R: i.flags & kIs64 ? set(Longs{}) : set(Words{}); break;
      case S2R: {
        const u32 same = i.immediate == 1 ? block_ : i.immediate == 2 ? static_cast<u32>(kShared >> 32) : 0;
        set_words([&](int l) { return i.immediate == 0 ? first_thread_ + static_cast<u32>(l) : same; });
        break;
      }
      case VOTE: {
        const u32 votes = condition(i.conditions[0]) & mask_;
        if (i.n_predicates) set_predicate(i.predicates[0], votes ? ~0u : 0);
        set_words([&](int) { return votes; });
        break;
      }
      case REDUX: {
        const Words a = source(0);
        u32 least = ~0u, any_bits = 0;
        for_each(mask_, [&](int l) {
          least = std::min(least, a[l]);
          any_bits |= a[l];
        });
        set_words([&](int) { return i.flags & kIsOr ? any_bits : least; });
        break;
      }
      case MATCH: {
        const Words a = source(0);
        set_words([&](int l) { return mask_ & mask_of([&](int other) { return a[other] == a[l]; }); });
        break;
      }
      case SHFL: {
        const Words a = source(0), from = source(1);
        for_each(mask_, [&](int l) {
          if (!(mask_ >> (from[l] & 31) & 1)) fail(path_.at - 1, "a shuffle from a thread that is not there");
        });
        set_words([&](int l) { return a[from[l] & 31]; });
        break;
      }
      default: return false;
    }
    return true;
  }

  [[noreturn]] void fail(s32 at, const char* why) const {
    std::fprintf(stderr, "sass: block %u, instruction %x: %s\n", block_, static_cast<u32>(16 * at), why);
    for (const Waiting& one : waiting_) {
      std::fprintf(stderr, "  %08x wait at %x for %08x\n", one.mask, static_cast<u32>(16 * one.at),
                   wanted_by(one));
    }
    std::abort();
  }

  u32 block_, first_thread_;
  bool is_random_;
  std::mt19937 random_;
  u32 live_ = 0;  // The threads that have not ended.
  Path path_{};
  Words barriers_[16]{};  // Of each thread, whom it waits for.
  std::vector<Path> ready_;
  std::vector<Waiting> waiting_;
  u64 now_ = 0, scoreboards_[6]{};
};

}  // namespace sass
