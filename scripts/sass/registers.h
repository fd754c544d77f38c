// The registers of a warp: what an instruction reads, and what it leaves to the threads that take part.
#pragma once

#include "machine.h"

namespace sass {

class Registers {
 protected:
  explicit Registers(Program& program) : program_(program) { predicates_[7] = predicates_[15] = ~0u; }

  // --- Operands. ---

  Words raw(const Source& s) const {
    Words words{};
    switch (s.kind) {
      case kRegister:
        if (s.value != kZero) words = registers_[s.value];
        break;
      case kUniform:
        if (s.value != kUniformZero) words = uniform_[s.value];
        break;
      case kImmediate: for_all([&](int l) { words[l] = s.value; }); break;
      case kConstant: {
        u32 value;
        std::memcpy(&value, program_.bank(s.bank) + s.value, 4);
        for_all([&](int l) { words[l] = value; });
        break;
      }
      default: break;
    }
    return words;
  }

  Words integers(const Source& s) const {
    Words words = raw(s);
    if (s.inverted) for_all([&](int l) { words[l] = ~words[l]; });
    if (s.negated) for_all([&](int l) { words[l] = -words[l]; });
    return words;
  }

  // As a term of a sum whose carry is wanted: what is negated is inverted, plus one.
  Longs terms(const Source& s) const {
    const Words words = raw(s);
    Longs longs;
    for_all([&](int l) { longs[l] = s.negated || s.inverted ? static_cast<u32>(~words[l]) : words[l]; });
    if (s.negated) for_all([&](int l) { ++longs[l]; });
    return longs;
  }

  Longs pairs(const Source& s) const {
    Source upper = s;
    if (s.kind == kConstant) upper.value += 4;
    const bool has_upper = (s.kind == kRegister && s.value != kZero) ||
                           (s.kind == kUniform && s.value != kUniformZero);
    if (has_upper) upper.value += 1;
    const Words low = raw(s), high = has_upper || s.kind == kConstant ? raw(upper) : Words{};
    Longs longs;
    for_all([&](int l) { longs[l] = static_cast<u64>(high[l]) << 32 | low[l]; });
    return longs;
  }

  Longs longs(const Source& s) const {
    Longs found = pairs(s);
    if (s.kind == kImmediate) for_all([&](int l) { found[l] = static_cast<u64>(s.bank) << 32 | s.value; });
    if (s.inverted) for_all([&](int l) { found[l] = ~found[l]; });
    if (s.negated) for_all([&](int l) { found[l] = -found[l]; });
    return found;
  }

  Words floats(const Source& s) const {
    Words words = raw(s);
    if (s.absolute) for_all([&](int l) { words[l] &= 0x7fffffff; });
    if (s.negated) for_all([&](int l) { words[l] ^= 0x80000000; });
    return words;
  }

  Longs doubles(const Source& s) const {
    Longs longs = pairs(s);
    if (s.kind == kImmediate) for_all([&](int l) { longs[l] <<= 32; });
    if (s.absolute) for_all([&](int l) { longs[l] &= ~(1ull << 63); });
    if (s.negated) for_all([&](int l) { longs[l] ^= 1ull << 63; });
    return longs;
  }

  Words source(u32 k) const { return integers(i_->sources[k]); }

  u32 condition(const Predicate& p) const { return p.negated ? ~predicates_[p.index] : predicates_[p.index]; }
  // --- Results, of the threads that take part. ---

  void set(const Words& words) { set(i_->target, words); }

  void set(const Longs& longs) {
    Words low, high;
    for_all([&](int l) {
      low[l] = static_cast<u32>(longs[l]);
      high[l] = static_cast<u32>(longs[l] >> 32);
    });
    set(i_->target, low);
    set(i_->target + 1u, high);
  }

  void set(u32 target, const Words& words) {
    if (target >= (i_->target_is_uniform ? kUniformZero : kZero)) return;
    Words& to = i_->target_is_uniform ? uniform_[target] : registers_[target];
    const u32 first = words[__builtin_ctz(mask_)];
    for_all([&](int l) {
      const u32 value = i_->target_is_uniform ? first : words[l];
      to[l] = mask_ >> l & 1 ? value : to[l];
    });
  }

  template <class Of>
  void set_words(const Of& of) {
    Words words;
    for_all([&](int l) { words[l] = of(l); });
    set(words);
  }

  void set_predicate(u32 index, u32 value) {
    if (index != 7 && index != 15) predicates_[index] = (predicates_[index] & ~mask_) | (value & mask_);
  }

  void set_comparison(u32 value) {
    const u32 also = condition(i_->conditions[0]);
    const auto together = [&](u32 one) {
      return i_->flags & kIsOr ? one | also : i_->flags & kIsXor ? one ^ also : one & also;
    };
    set_predicate(i_->predicates[0], together(value));
    if (i_->n_predicates > 1) set_predicate(i_->predicates[1], together(~value));
  }

  Program& program_;
  const Instruction* i_ = nullptr;
  u32 mask_ = 0;  // The threads that take part in the instruction.
  Words registers_[256]{};
  // A GPU has one of these for a warp. Here each thread has its own: it is not documented that no other
  // threads may run between setting and reading one, but compilers count on it.
  Words uniform_[64]{};
  u32 predicates_[16]{};  // Of the threads 0 to 6, of the warp 8 to 14; 7 and 15 are true.
};

}  // namespace sass
