// The instructions that read and write memory.
#pragma once

#include "arithmetic.h"

namespace sass {

// A warp's share of the first-level cache: the lines that were used last.
class Cache {
 public:
  explicit Cache(u32 n_lines) : n_lines_(n_lines) {}

  // Returns whether the line had to be fetched.
  bool touch(u64 line) {
    auto at = std::find(lines_.begin(), lines_.end(), line);
    const bool is_new = at == lines_.end();
    if (is_new) at = lines_.size() < n_lines_ ? lines_.insert(at, line) : at - 1;
    std::copy_backward(lines_.begin(), at, at + 1);
    lines_.front() = line;
    return is_new;
  }

 private:
  const u32 n_lines_;
  std::vector<u64> lines_;  // The last one first.
};

// Lines of memory that a load has touched beyond the first one, or accesses that a bank of shared memory
// has taken beyond the first one; and lines that were not cached.
struct Traffic {
  u64 more_lines = 0, misses = 0;
};

class Memory : public Arithmetic {
 protected:
  Memory(Program& program, u8* shared)
      : Arithmetic(program),
        shared_(shared),
        local_(new u8[32 * kLocalBytes]()),
        cache_(program.cache_lines) {}

  // Carries out the instruction if it is one of these; returns whether it is.
  bool access(Traffic& traffic) {
    const Instruction& i = *i_;
    switch (static_cast<Operation>(i.operation)) {
      case LD: case LDL: case LDS: traffic = load(static_cast<Operation>(i.operation)); break;
      case ST: case STL: case STS: store(static_cast<Operation>(i.operation)); break;
      case LDC: {
        const Words index = source(0);
        for (u32 k = 0; k < i.size / 4u; ++k) {
          Words words{};
          for_each(mask_, [&](int l) {
            std::memcpy(&words[l], program_.bank(i.table) + index[l] + i.offset + 4 * k, 4);
          });
          set(i.target + k, words);
        }
        break;
      }
      default: return false;
    }
    return true;
  }

 private:
  u8* place(int lane, u64 address, Operation space) const {
    if (address % i_->size) {
      std::fprintf(stderr, "sass: %d bytes at %llx: expected a multiple\n", i_->size,
                   static_cast<unsigned long long>(address));
      std::abort();
    }
    if (space == LDL || space == STL) address = kLocal + static_cast<u32>(address);
    if (space == LDS || space == STS) address = kShared + static_cast<u32>(address);
    if (address - kLocal < kLocalBytes) {
      return local_.get() + static_cast<u64>(lane) * kLocalBytes + (address - kLocal);
    }
    if (address - kShared < kSharedBytes) return shared_ + (address - kShared);
    return reinterpret_cast<u8*>(address);
  }

  Longs addresses(Operation space) const {
    Longs found{};
    const bool is_long = space == LD || space == ST;
    if (is_long) {
      found = pairs(i_->sources[0]);
    } else {
      const Words words = raw(i_->sources[0]);
      for_all([&](int l) { found[l] = words[l] * i_->table; });
    }
    for_all([&](int l) { found[l] += static_cast<u64>(static_cast<s64>(i_->offset)); });
    const u32 other = space == ST || space == STL || space == STS ? 2 : 1;
    if (i_->n_sources <= other) return found;
    const Source& more = i_->sources[other];
    const Longs longs = pairs(more);
    for_all([&](int l) {
      found[l] += is_long && more.kind == kUniform ? longs[l] : static_cast<u32>(longs[l]);
    });
    return found;
  }

  // The line of 128 bytes that an address is in; 0 in shared memory, where there are none.
  static u64 line_of(u64 address, Operation space) {
    if (space == LDS || space == STS || address - kShared < kSharedBytes) return 0;
    // Local words of the same number lie side by side.
    const bool is_local = space == LDL || space == STL || address - kLocal < kLocalBytes;
    return is_local ? static_cast<u32>(address) / 4 + kLocal : address / 128;
  }

  Traffic load(Operation space) {
    const Longs from = addresses(space);
    std::vector<u64> lines;
    for_each(mask_, [&](int l) {
      u32 words[4] = {0, 0, 0, 0};
      const u8* at = place(l, from[l], space);
      std::memcpy(words, at, i_->size);
      if (i_->is_signed) {
        const int word = i_->size == 1 ? static_cast<int8_t>(words[0]) : static_cast<s16>(words[0]);
        words[0] = static_cast<u32>(word);
      }
      const u32 n_words = i_->target == kZero ? 0 : (i_->size + 3u) / 4;
      for (u32 k = 0; k < n_words; ++k) registers_[i_->target + k][l] = words[k];
      lines.push_back(line_of(from[l], space));
    });
    std::sort(lines.begin(), lines.end());
    lines.erase(std::unique(lines.begin(), lines.end()), lines.end());
    Traffic traffic;
    for (u64 line : lines) traffic.misses += line && cache_.touch(line);
    traffic.more_lines = std::max<u64>(lines.size(), n_in_a_bank(from, space)) - 1;
    return traffic;
  }

  // How many words of one bank of shared memory the threads ask for, at most; a word of all counts once.
  u64 n_in_a_bank(const Longs& from, Operation space) const {
    std::set<u64> words;
    for_each(mask_, [&](int l) {
      const bool is_shared = space == LDS || from[l] - kShared < kSharedBytes;
      for (u64 at = from[l] / 4; is_shared && at <= (from[l] + i_->size - 1) / 4; ++at) words.insert(at);
    });
    u64 n[32] = {}, most = 1;
    for (u64 word : words) most = std::max(most, ++n[word % 32]);
    return most;
  }

  void store(Operation space) {
    const Longs to = addresses(space);
    Words words[4];
    for (u32 k = 0; k < (i_->size + 3u) / 4; ++k) {
      Source part = i_->sources[1];
      if (part.kind == kRegister && part.value != kZero) part.value += k;
      words[k] = raw(part);
    }
    for_each(mask_, [&](int l) {
      const u32 values[4] = {words[0][l], words[1][l], words[2][l], words[3][l]};
      std::memcpy(place(l, to[l], space), values, i_->size);
      if (const u64 line = line_of(to[l], space)) cache_.touch(line);
    });
  }

  u8* shared_;
  std::unique_ptr<u8[]> local_;
  Cache cache_;
};

}  // namespace sass
