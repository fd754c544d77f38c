// The instructions that only compute.
#pragma once

#include "registers.h"

namespace sass {

class Arithmetic : public Registers {
 protected:
  using Registers::Registers;

  // Carries out the instruction if it is one of these; returns whether it is.
  bool compute() { return compute_integers() || compute_bits() || compute_reals(); }

 private:
  // The value of the first thread; a predicate says which threads have others.
  void to_uniform() {
    const Words a = source(0);
    const u32 first = a[__builtin_ctz(mask_)];
    if (i_->n_predicates) set_predicate(i_->predicates[0], mask_of([&](int l) { return a[l] != first; }));
    set(a);
  }

  bool compute_integers() {
    const Instruction& i = *i_;
    switch (static_cast<Operation>(i.operation)) {
      case MOV: set(source(0)); break;
      case R2UR: to_uniform(); break;
      case IMAD: multiply_add(); break;
      case IMAD_WIDE: multiply_add_wide(false); break;
      case IMAD_HI: multiply_add_wide(true); break;
      case IADD3: add(); break;
      case LEA: case LEA_HI: shift_and_add(); break;
      case LOP3: logic(); break;
      case PLOP3: predicate_logic(); break;
      case SHF: funnel_shift(); break;
      case ISETP: compare_integers(); break;
      case SEL: select(source(0), source(1)); break;
      case SEL_64: {
        const Longs a = longs(i.sources[0]), b = longs(i.sources[1]);
        const u32 which = condition(i.conditions[0]);
        set_longs([&](int l) { return which >> l & 1 ? a[l] : b[l]; });
        break;
      }
      case MOV_64: set(longs(i.sources[0])); break;
      case IADD_64: {
        const Longs a = longs(i.sources[0]), b = longs(i.sources[1]);
        set_longs([&](int l) { return a[l] + b[l]; });
        break;
      }
      case VIMNMX: case VIMNMX3: case VIADDMNMX: choose_extreme(); break;
      case IABS: {
        const Words a = source(0);
        set_words([&](int l) { return static_cast<s32>(a[l]) < 0 ? -a[l] : a[l]; });
        break;
      }
      case HFMA2: set_words([&](int) { return static_cast<u32>(i.immediate); }); break;
      default: return false;
    }
    return true;
  }

  bool compute_bits() {
    const Instruction& i = *i_;
    switch (static_cast<Operation>(i.operation)) {
      case PRMT: {
        const Words a = source(0), b = source(1), c = source(2);
        set_words([&](int l) { return permuted(a[l], b[l], c[l]); });
        break;
      }
      case IDP: {  // Of four bytes, or of two words and the lower two bytes, without a sign.
        const Words a = source(0), b = source(1), c = source(2);
        const u32 n = i.flags & kPairs16 ? 2 : 4, bits = 32 / n, mask = ~0u >> (32 - bits);
        set_words([&](int l) {
          u32 sum = c[l];
          for (u32 k = 0; k < n; ++k) sum += (a[l] >> k * bits & mask) * (b[l] >> k * 8 & 255);
          return sum;
        });
        break;
      }
      case SGXT: {
        const Words a = source(0), width = source(1);
        set_words([&](int l) {
          const u32 by = 32 - width[l];
          const u32 high = a[l] << by;
          return i.flags & kUnsigned ? high >> by : static_cast<u32>(static_cast<s32>(high) >> by);
        });
        break;
      }
      case FLO: {
        const Words a = source(0);
        set_words([&](int l) {
          const u32 zeros = a[l] ? static_cast<u32>(__builtin_clz(a[l])) : 32;
          return !a[l] ? ~0u : i.flags & kShiftAmount ? zeros : 31 - zeros;
        });
        break;
      }
      case POPC: {
        const Words a = source(0);
        set_words([&](int l) { return static_cast<u32>(__builtin_popcount(a[l])); });
        break;
      }
      case BREV: {
        const Words a = source(0);
        set_words([&](int l) {
          u32 reversed = 0;
          for (u32 k = 0; k < 32; ++k) reversed |= (a[l] >> k & 1) << (31 - k);
          return reversed;
        });
        break;
      }
      case P2R: {
        const Words a = source(0), mask = source(1);
        set_words([&](int l) {
          u32 all = 0;
          for (u32 k = 0; k < 7; ++k) all |= (predicates_[k] >> l & 1) << k;
          return (all & mask[l]) | (a[l] & ~mask[l]);
        });
        break;
      }
      case R2P: {
        const Words a = source(0), mask = source(1);
        for (u32 k = 0; k < 7; ++k) {
          if (!(mask[0] >> k & 1)) continue;
          set_predicate(k, mask_of([&](int l) { return (a[l] >> i.table >> k & 1) != 0; }));
        }
        break;
      }
      default: return false;
    }
    return true;
  }

  bool compute_reals() {
    const Instruction& i = *i_;
    switch (static_cast<Operation>(i.operation)) {
      case FSEL: select(floats(i.sources[0]), floats(i.sources[1])); break;
      case FSETP: compare_reals(floats(i.sources[0]), floats(i.sources[1])); break;
      case DSETP: compare_reals(doubles(i.sources[0]), doubles(i.sources[1])); break;
      case FADD: case FMUL: case FFMA: float_arithmetic(); break;
      case DADD: case DMUL: case DFMA: double_arithmetic(); break;
      case I2F: {
        if (i.flags & kIs64) {
          const Longs a = pairs(i.sources[0]);
          set_floats([&](int l) { return static_cast<float>(a[l]); });
          break;
        }
        Words a = source(0);
        if (i.flags & kPairs16) for_all([&](int l) { a[l] &= 0xffff; });
        set_floats([&](int l) {
          return static_cast<float>(i.flags & kUnsigned ? s64{a[l]} : s64{static_cast<s32>(a[l])});
        });
        break;
      }
      case I2F_64: case F2F_64: to_doubles(); break;
      case F2I: {
        const Words a = floats(i.sources[0]);
        if (i.flags & kIs64) {
          Longs longs;
          for_all([&](int l) { longs[l] = static_cast<u64>(std::clamp(bits<float>(a[l]), 0.0f, 0x1.fffffep63f)); });
          set(longs);
          break;
        }
        set_words([&](int l) { return clamped(bits<float>(a[l]), i.flags & kUnsigned); });
        break;
      }
      case F2I_64: {
        const Longs a = doubles(i.sources[0]);
        set_words([&](int l) { return clamped(bits<double>(a[l]), i.flags & kUnsigned); });
        break;
      }
      case MUFU_RCP: {
        const Words a = floats(i.sources[0]);
        set_floats([&](int l) { return 1.0f / bits<float>(a[l]); });
        break;
      }
      case MUFU_RCP64: {  // Of the upper word of a double; what follows in the code makes it exact.
        const Words a = source(0);
        set_words([&](int l) {
          const double divisor = bits<double>(static_cast<u64>(a[l]) << 32);
          return static_cast<u32>(bits<u64>(1.0 / divisor) >> 32);
        });
        break;
      }
      default: return false;
    }
    return true;
  }

  void multiply_add() {
    const Words a = integers(i_->sources[0]), b = integers(i_->sources[1]), c = integers(i_->sources[2]);
    const u32 carry = i_->flags & kCarry ? condition(i_->conditions[0]) : 0;
    Longs sums;
    for_all([&](int l) { sums[l] = static_cast<u64>(a[l]) * b[l] + c[l] + (carry >> l & 1); });
    set_words([&](int l) { return static_cast<u32>(sums[l]); });
    if (!i_->n_predicates) return;
    set_predicate(i_->predicates[0], mask_of([&](int l) { return sums[l] >> 32 != 0; }));
  }

  void multiply_add_wide(bool keeps_high) {
    const Words a = integers(i_->sources[0]), b = integers(i_->sources[1]);
    const Longs c = pairs(i_->sources[2]);
    const u32 carry = i_->flags & kCarry ? condition(i_->conditions[0]) : 0;
    Longs sums;
    const u32 carries = mask_of([&](int l) {
      const s64 with_signs = static_cast<s64>(static_cast<s32>(a[l])) * static_cast<s32>(b[l]);
      const u64 product = i_->flags & kUnsigned ? u64{a[l]} * b[l] : static_cast<u64>(with_signs);
      const unsigned __int128 sum = static_cast<unsigned __int128>(product) + c[l] + (carry >> l & 1);
      sums[l] = static_cast<u64>(sum);
      return sum >> 64 != 0;
    });
    if (keeps_high) {
      set_words([&](int l) { return static_cast<u32>(sums[l] >> 32); });
    } else {
      set(sums);
    }
    if (i_->n_predicates) set_predicate(i_->predicates[0], carries);
  }

  // Keeps the low words of sums, and as predicates how often they wrapped.
  void set_sums(const Longs& sums) {
    set_words([&](int l) { return static_cast<u32>(sums[l]); });
    for (u32 k = 0; k < i_->n_predicates; ++k) {
      set_predicate(i_->predicates[k], mask_of([&](int l) { return sums[l] >> 32 > k; }));
    }
  }

  void add() {
    Longs sums{};
    for (u32 k = 0; k < i_->n_sources; ++k) {
      const Longs more = terms(i_->sources[k]);
      for_all([&](int l) { sums[l] += more[l]; });
    }
    for (u32 k = 0; k < i_->n_conditions && i_->flags & kCarry; ++k) {
      const u32 carry = condition(i_->conditions[k]);
      for_all([&](int l) { sums[l] += carry >> l & 1; });
    }
    set_sums(sums);
  }

  void shift_and_add() {
    const Words a = integers(i_->sources[0]);
    Longs sums = terms(i_->sources[1]);
    const bool is_high = i_->operation == LEA_HI, has_upper = is_high && !(i_->flags & kSignExtended);
    const Words upper = has_upper ? integers(i_->sources[2]) : Words{};
    const u32 by = i_->sources[has_upper ? 3 : 2].value;
    const u32 carry = i_->flags & kCarry ? condition(i_->conditions[0]) : 0;
    for_all([&](int l) {
      const u64 value = i_->flags & kSignExtended ? static_cast<u64>(static_cast<s64>(static_cast<s32>(a[l])))
                                                  : static_cast<u64>(upper[l]) << 32 | a[l];
      sums[l] += static_cast<u32>(is_high ? value << by >> 32 : value << by);
      sums[l] += carry >> l & 1;
    });
    set_sums(sums);
  }

  void logic() {
    const Words a = integers(i_->sources[0]), b = integers(i_->sources[1]), c = integers(i_->sources[2]);
    Words words{};
    for (u32 k = 0; k < 8; ++k) {
      if (!(i_->table >> k & 1)) continue;
      for_all([&](int l) {
        words[l] |= (k & 4 ? a[l] : ~a[l]) & (k & 2 ? b[l] : ~b[l]) & (k & 1 ? c[l] : ~c[l]);
      });
    }
    set(words);
    if (!i_->n_predicates) return;
    const u32 any_bits = mask_of([&](int l) { return words[l] != 0; });
    set_predicate(i_->predicates[0], any_bits | condition(i_->conditions[0]));
  }

  void predicate_logic() {
    const u32 a = condition(i_->conditions[0]), b = condition(i_->conditions[1]);
    const u32 c = condition(i_->conditions[2]);
    const u32 tables[] = {i_->table, i_->second_table};
    u32 values[2] = {0, 0};
    for (u32 k = 0; k < 16; ++k) {
      if (!(tables[k / 8] >> k % 8 & 1)) continue;
      values[k / 8] |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
    }
    for (u32 k = 0; k < 2; ++k) set_predicate(i_->predicates[k], values[k]);
  }

  // Of two words, the low one first; the shift stops at their width, or wraps.
  void funnel_shift() {
    const Words low = integers(i_->sources[0]), amount = integers(i_->sources[1]);
    const Words high = integers(i_->sources[2]);
    const u32 width = i_->flags & kIs64 ? 64 : 32;
    set_words([&](int l) {
      const u32 by = i_->flags & kWraps ? amount[l] % width : std::min(amount[l], width);
      const u64 value = static_cast<u64>(high[l]) << 32 | low[l];
      const s64 with_sign = static_cast<s64>(value);
      if (i_->flags & kLeft) {
        const u64 shifted = by < 64 ? value << by : 0;
        return static_cast<u32>(i_->flags & kHigh ? shifted >> 32 : shifted);
      }
      const u64 shifted = i_->flags & kSignExtended ? static_cast<u64>(with_sign >> std::min(by, 63u))
                          : by < 64                 ? value >> by
                                                    : 0;
      return static_cast<u32>(i_->flags & kHigh ? shifted >> 32 : shifted);
    });
  }

  template <class Of>
  void set_longs(const Of& of) {
    Longs found;
    for_all([&](int l) { found[l] = of(l); });
    set(found);
  }

  void compare_long_integers() {
    const Longs a = longs(i_->sources[0]), b = longs(i_->sources[1]);
    set_comparison(mask_of([&](int l) {
      if (i_->flags & kUnsigned) return compare(i_->comparison, a[l], b[l]);
      return compare(i_->comparison, static_cast<s64>(a[l]), static_cast<s64>(b[l]));
    }));
  }

  void compare_integers() {
    if (i_->flags & kIs64) return compare_long_integers();
    const Words a = integers(i_->sources[0]), b = integers(i_->sources[1]);
    const u8 how = i_->comparison;
    const u32 lower = i_->flags & kExtended ? condition(i_->conditions[1]) : 0;
    set_comparison(mask_of([&](int l) {
      const bool is_unsigned = i_->flags & kUnsigned;
      const auto holds = [&](u8 comparison) {
        if (is_unsigned) return compare(comparison, a[l], b[l]);
        return compare(comparison, static_cast<s32>(a[l]), static_cast<s32>(b[l]));
      };
      if (!(i_->flags & kExtended)) return holds(how);
      // The upper words decide, unless they are equal.
      if (a[l] == b[l]) return (lower >> l & 1) != 0;
      return how == kEqual ? false : how == kNotEqual ? true : holds(how);
    }));
  }

  template <class T>
  void compare_reals(const T& a, const T& b) {
    set_comparison(mask_of([&](int l) {
      using Real = std::conditional_t<std::is_same_v<T, Longs>, double, float>;
      const Real x = bits<Real>(a[l]), y = bits<Real>(b[l]);
      const bool is_unordered = std::isnan(x) || std::isnan(y);
      if (i_->comparison == kNan) return is_unordered;
      return compare(i_->comparison, x, y) || (i_->flags & kUnordered && is_unordered);
    }));
  }

  void select(const Words& a, const Words& b) {
    const u32 which = condition(i_->conditions[0]);
    set_words([&](int l) { return which >> l & 1 ? a[l] : b[l]; });
  }

  static u32 permuted(u32 a, u32 selector, u32 c) {
    const u64 value = static_cast<u64>(c) << 32 | a;
    u32 result = 0;
    for (u32 k = 0; k < 4; ++k) {
      const u32 which = selector >> 4 * k & 15, byte = static_cast<u32>(value >> 8 * (which & 7)) & 255;
      result |= (which & 8 ? (byte & 128 ? 255 : 0) : byte) << 8 * k;
    }
    return result;
  }

  u32 lesser_or_greater(bool wants_lesser, u32 a, u32 b) const {
    const bool is_less = i_->flags & kUnsigned ? a < b : static_cast<s32>(a) < static_cast<s32>(b);
    const u32 found = is_less == wants_lesser ? a : b;
    return i_->flags & kRelu && static_cast<s32>(found) < 0 ? 0 : found;
  }

  void choose_long_extreme() {
    const Longs a = longs(i_->sources[0]), b = longs(i_->sources[1]);
    const u32 wants_lesser = condition(i_->conditions[0]);  // Of two; the other one made no difference.
    set_longs([&](int l) { return (a[l] < b[l]) == (wants_lesser >> l & 1) ? a[l] : b[l]; });
  }

  void choose_extreme() {
    if (i_->flags & kIs64) return choose_long_extreme();
    const Words a = integers(i_->sources[0]), b = integers(i_->sources[1]), c = integers(i_->sources[2]);
    const u32 wants_lesser = condition(i_->conditions[0]);
    set_words([&](int l) {
      const bool is_lesser = wants_lesser >> l & 1;
      if (i_->operation == VIADDMNMX) return lesser_or_greater(is_lesser, a[l] + b[l], c[l]);
      if (i_->flags & kPairs16) {
        const auto half = [&](u32 at) {
          const u32 x = a[l] >> at & 0xffff, y = b[l] >> at & 0xffff;
          return (x < y) == is_lesser ? x << at : y << at;
        };
        return half(0) | half(16);
      }
      const u32 first = lesser_or_greater(is_lesser, a[l], b[l]);
      return i_->operation == VIMNMX3 ? lesser_or_greater(is_lesser, first, c[l]) : first;
    });
  }

  static u32 clamped(double value, bool is_unsigned) {
    if (std::isnan(value)) return is_unsigned ? 0 : 0x80000000;
    if (is_unsigned) return static_cast<u32>(std::clamp(value, 0.0, 4294967295.0));
    return static_cast<u32>(static_cast<s32>(std::clamp(value, -2147483648.0, 2147483647.0)));
  }

  // Computes with the rounding that the instruction names.
  template <class Work>
  void with_rounding(const Work& work) {
    if (i_->flags & kDown) std::fesetround(FE_DOWNWARD);
    if (i_->flags & kUp) std::fesetround(FE_UPWARD);
    if (i_->flags & kToZero) std::fesetround(FE_TOWARDZERO);
    for_all(work);
    std::fesetround(FE_TONEAREST);
  }

  template <class Of>
  void set_floats(const Of& of) {
    Words words;
    with_rounding([&](int l) { words[l] = bits<u32>(static_cast<float>(of(l))); });
    set(words);
  }

  template <class Of>
  void set_doubles(const Of& of) {
    Longs longs;
    with_rounding([&](int l) { longs[l] = bits<u64>(static_cast<double>(of(l))); });
    set(longs);
  }

  void float_arithmetic() {
    const Words a = floats(i_->sources[0]), b = floats(i_->sources[1]), c = floats(i_->sources[2]);
    set_floats([&](int l) {
      const float x = bits<float>(a[l]), y = bits<float>(b[l]);
      if (i_->operation == FFMA) return std::fma(x, y, bits<float>(c[l]));
      return i_->operation == FADD ? x + y : x * y;
    });
  }

  void double_arithmetic() {
    const Longs a = doubles(i_->sources[0]), b = doubles(i_->sources[1]), c = doubles(i_->sources[2]);
    set_doubles([&](int l) {
      const double x = bits<double>(a[l]), y = bits<double>(b[l]);
      if (i_->operation == DFMA) return std::fma(x, y, bits<double>(c[l]));
      return i_->operation == DADD ? x + y : x * y;
    });
  }

  void to_doubles() {
    const Words words = i_->operation == F2F_64 ? floats(i_->sources[0]) : integers(i_->sources[0]);
    set_doubles([&](int l) {
      return i_->operation == F2F_64 ? static_cast<double>(bits<float>(words[l]))
             : i_->flags & kUnsigned ? static_cast<double>(words[l])
                                     : static_cast<double>(static_cast<s32>(words[l]));
    });
  }
};

}  // namespace sass
