// Plays machine code of NVIDIA's GPUs (SASS of sm_90) on a CPU; `sass.py` decodes it.
//
// What an instruction does is taken from its name (CUDA Binary Utilities, chapter 4) and from trying
// it out: kernels of this project that are played here give the same bytes as the CPU core.
//
// A warp's threads go on together as a path until a branch parts them. They meet again where a
// convergence barrier says so: BSSY notes who is there, BSYNC waits for all of those, BREAK takes
// threads off. So it shows which threads of a warp work together, given these barriers, and what
// that costs in issue slots. The cycles are a model: an instruction waits for the stalls and
// scoreboards that the compiler has encoded, with latencies that are assumed.
#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

namespace {

using u8 = uint8_t;
using u16 = uint16_t;
using s16 = int16_t;
using u32 = uint32_t;
using s32 = int32_t;
using u64 = uint64_t;
using s64 = int64_t;

#define OPERATIONS(X)                                                                              \
  X(NOP) X(MOV) X(IMAD) X(IMAD_WIDE) X(IMAD_HI) X(IADD3) X(LEA) X(LEA_HI) X(LOP3) X(SHF) X(ISETP)    \
  X(SEL) X(PRMT) X(SGXT) X(VIMNMX) X(VIMNMX3) X(VIADDMNMX) X(FLO) X(POPC) X(BREV) X(IABS) X(R2UR)    \
  X(P2R) X(R2P) X(PLOP3) X(CS2R) X(S2R) X(LD) X(ST) X(LDL) X(STL) X(LDS) X(STS) X(LDC) X(BRA) X(BRX) \
  X(CALL) X(RET) X(EXIT) X(BSSY) X(BSYNC) X(BREAK) X(BMOV_GET) X(BMOV_SET) X(WARPSYNC) X(VOTE)       \
  X(REDUX) X(SHFL) X(BAR) X(FADD) X(FMUL) X(FFMA) X(FSEL) X(FSETP) X(DADD) X(DMUL) X(DSETP) X(I2F)   \
  X(I2F_64) X(F2I) X(F2I_64) X(F2F_64) X(MUFU_RCP) X(HFMA2)
#define ENUMERATOR(name) name,
enum Operation : u16 { OPERATIONS(ENUMERATOR) kOperations };
#define NAME(name) #name " "
const char kNames[] = OPERATIONS(NAME);

// In the order of `FLAGS` in `sass.py`.
enum Flag : u32 {
  kUnsigned = 1, kCarry = 2, kExtended = 4, kHigh = 8, kSignExtended = 16, kWraps = 32, kIs64 = 64,
  kShiftAmount = 128, kIsOr = 256, kRelu = 512, kDown = 1024, kUp = 2048, kClears = 4096,
  kUnordered = 8192, kLeft = 16384, kPairs16 = 32768,
};
enum Comparison : u8 { kLess = 1, kEqual, kLessEqual, kGreater, kNotEqual, kGreaterEqual };
enum Kind : u8 { kNothing, kRegister, kUniform, kImmediate, kConstant };

struct Source {
  u8 kind, negated, inverted, absolute;
  u32 value, bank;
};

struct Predicate {
  u8 index, negated;
};

struct Instruction {
  u16 operation;
  Predicate guard;
  u8 target, target_is_uniform, n_predicates, predicates[2];
  u8 n_sources, n_conditions, comparison, size;  // Bytes of an access; negative numbers are signed.
  u8 is_signed, padding;
  Source sources[4];
  Predicate conditions[3];
  u32 flags, table, second_table;
  s32 offset, to, immediate;
  u8 stall, write_barrier, read_barrier, waits;
};

struct Count {
  u64 slots, threads, cycles;
};

// Where the memories are that have no addresses of the host.
constexpr u64 kLocal = 0x0000200000000000, kShared = 0x0000300000000000;
constexpr u32 kLocalBytes = 1 << 15, kSharedBytes = 1 << 18;
constexpr u32 kZero = 255, kUniformZero = 63;
constexpr s32 kConstants = 0x400;

struct Words {
  u32 of[32];
  u32& operator[](int lane) { return of[lane]; }
  u32 operator[](int lane) const { return of[lane]; }
};

struct Longs {
  u64 of[32];
  u64& operator[](int lane) { return of[lane]; }
  u64 operator[](int lane) const { return of[lane]; }
};

template <class Work>
inline void for_all(const Work& work) {
  for (int lane = 0; lane < 32; ++lane) work(lane);
}

template <class Work>
inline void for_each(u32 mask, const Work& work) {
  for (; mask; mask &= mask - 1) work(__builtin_ctz(mask));
}

template <class Test>
inline u32 mask_of(const Test& test) {
  u32 mask = 0;
  for (int lane = 0; lane < 32; ++lane) mask |= static_cast<u32>(test(lane)) << lane;
  return mask;
}

template <class To, class From>
inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

template <class T>
bool compare(u8 how, T a, T b) {
  switch (how) {
    case kLess: return a < b;
    case kEqual: return a == b;
    case kLessEqual: return a <= b;
    case kGreater: return a > b;
    case kNotEqual: return a != b;
    default: return a >= b;
  }
}

struct Program {
  const Instruction* code;
  u8 constants[kConstants];
  const u8* tables;     // Bank 2: where jumps go.
  const u8* addresses;  // Bank 4: of global variables.
  const u16* latencies;
  Count* counts;

  const u8* bank(u32 number) const { return number == 0 ? constants : number == 2 ? tables : addresses; }
};

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

class Warp {
 public:
  Warp(Program& program, u8* shared, u32 block, u32 first_thread, u32 n_threads)
      : program_(program), shared_(shared), block_(block), first_thread_(first_thread),
        local_(new u8[32 * kLocalBytes]()) {
    live_ = n_threads >= 32 ? ~0u : (1u << n_threads) - 1;
    predicates_[7] = predicates_[15] = ~0u;
    ready_.push_back({0, live_});
  }

  // Runs to the end, or until all wait for the block.
  void run() {
    for (;;) {
      while (!ready_.empty()) {
        path_ = ready_.back();
        ready_.pop_back();
        while (path_.mask && step()) {
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
    u32 mask = 0;
    const s32 at = waiting_[0].at;
    for (const Waiting& one : waiting_) mask |= one.mask;
    waiting_.clear();
    ready_ = {{at + 1, mask}};
  }
  u64 cycles() const { return now_; }

 private:
  // --- Operands. ---

  Words raw(const Source& s) const {
    Words words{};
    switch (s.kind) {
      case kRegister:
        if (s.value != kZero) words = registers_[s.value];
        break;
      case kUniform: for_all([&](int l) { words[l] = s.value == kUniformZero ? 0 : uniform_[s.value]; }); break;
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
    const bool has_upper = (s.kind == kRegister && s.value != kZero) || (s.kind == kUniform && s.value != kUniformZero);
    if (has_upper) upper.value += 1;
    const Words low = raw(s), high = has_upper || s.kind == kConstant ? raw(upper) : Words{};
    Longs longs;
    for_all([&](int l) { longs[l] = static_cast<u64>(high[l]) << 32 | low[l]; });
    return longs;
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

  u32 condition(const Predicate& p) const { return p.negated ? ~predicates_[p.index] : predicates_[p.index]; }

  // --- Results, of the threads that take part. ---

  void set(const Words& words) {
    if (i_->target_is_uniform) {
      if (i_->target != kUniformZero) uniform_[i_->target] = words[__builtin_ctz(mask_)];
    } else if (i_->target != kZero) {
      Words& to = registers_[i_->target];
      for_all([&](int l) { to[l] = mask_ >> l & 1 ? words[l] : to[l]; });
    }
  }

  void set(const Longs& longs) {
    if (i_->target_is_uniform) {
      if (i_->target == kUniformZero) return;
      const u64 value = longs[__builtin_ctz(mask_)];
      uniform_[i_->target] = static_cast<u32>(value);
      uniform_[i_->target + 1] = static_cast<u32>(value >> 32);
    } else if (i_->target != kZero) {
      for_each(mask_, [&](int l) {
        registers_[i_->target][l] = static_cast<u32>(longs[l]);
        registers_[i_->target + 1u][l] = static_cast<u32>(longs[l] >> 32);
      });
    }
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
    const bool is_or = i_->flags & kIsOr;
    set_predicate(i_->predicates[0], is_or ? value | also : value & also);
    if (i_->n_predicates > 1) set_predicate(i_->predicates[1], is_or ? ~value | also : ~value & also);
  }

  // --- Memory. ---

  u8* place(int lane, u64 address, Operation space) const {
    if (space == LDL || space == STL) address = kLocal + static_cast<u32>(address);
    if (space == LDS || space == STS) address = kShared + static_cast<u32>(address);
    if (address - kLocal < kLocalBytes) return local_.get() + static_cast<u64>(lane) * kLocalBytes + (address - kLocal);
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
      for_all([&](int l) { found[l] = words[l]; });
    }
    for_all([&](int l) { found[l] += static_cast<u64>(static_cast<s64>(i_->offset)); });
    return found;
  }

  // Returns how many lines of memory beyond the first one are touched.
  u64 load(Operation space) {
    Longs from = addresses(space);
    if (i_->n_sources > 1) {
      const Words more = raw(i_->sources[1]);
      for_all([&](int l) { from[l] += more[l]; });
    }
    std::vector<u64> lines;
    for_each(mask_, [&](int l) {
      u32 words[4] = {0, 0, 0, 0};
      const u8* at = place(l, from[l], space);
      std::memcpy(words, at, i_->size);
      if (i_->is_signed) words[0] = static_cast<u32>(i_->size == 1 ? static_cast<int8_t>(words[0]) : static_cast<s16>(words[0]));
      for (u32 k = 0; k < (i_->size + 3u) / 4 && i_->target != kZero; ++k) registers_[i_->target + k][l] = words[k];
      // Local words of the same number lie side by side.
      const bool is_local = space == LDL || from[l] - kLocal < kLocalBytes;
      lines.push_back(is_local ? static_cast<u32>(from[l]) / 4 + (1ull << 60) : from[l] / 128);
    });
    std::sort(lines.begin(), lines.end());
    return static_cast<u64>(std::unique(lines.begin(), lines.end()) - lines.begin()) - 1;
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
    });
  }

  // --- Arithmetic. ---

  void multiply_add() {
    const Words a = integers(i_->sources[0]), b = integers(i_->sources[1]), c = integers(i_->sources[2]);
    const u32 carry = i_->flags & kCarry ? condition(i_->conditions[0]) : 0;
    Longs sums;
    for_all([&](int l) { sums[l] = static_cast<u64>(a[l]) * b[l] + c[l] + (carry >> l & 1); });
    set_words([&](int l) { return static_cast<u32>(sums[l]); });
    if (i_->n_predicates) set_predicate(i_->predicates[0], mask_of([&](int l) { return sums[l] >> 32 != 0; }));
  }

  void multiply_add_wide(bool keeps_high) {
    const Words a = integers(i_->sources[0]), b = integers(i_->sources[1]);
    const Longs c = pairs(i_->sources[2]);
    const u32 carry = i_->flags & kCarry ? condition(i_->conditions[0]) : 0;
    Longs sums;
    const u32 carries = mask_of([&](int l) {
      const u64 product = i_->flags & kUnsigned ? static_cast<u64>(a[l]) * b[l]
                                                : static_cast<u64>(static_cast<s64>(static_cast<s32>(a[l])) * static_cast<s32>(b[l]));
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
      for_all([&](int l) { words[l] |= (k & 4 ? a[l] : ~a[l]) & (k & 2 ? b[l] : ~b[l]) & (k & 1 ? c[l] : ~c[l]); });
    }
    set(words);
    if (!i_->n_predicates) return;
    set_predicate(i_->predicates[0], mask_of([&](int l) { return words[l] != 0; }) | condition(i_->conditions[0]));
  }

  void predicate_logic() {
    const u32 a = condition(i_->conditions[0]), b = condition(i_->conditions[1]), c = condition(i_->conditions[2]);
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
    const Words low = integers(i_->sources[0]), amount = integers(i_->sources[1]), high = integers(i_->sources[2]);
    const u32 width = i_->flags & kIs64 ? 64 : 32;
    set_words([&](int l) {
      const u32 by = i_->flags & kWraps ? amount[l] % width : std::min(amount[l], width);
      const u64 value = static_cast<u64>(high[l]) << 32 | low[l];
      const s64 with_sign = static_cast<s64>(value);
      if (i_->flags & kLeft) {
        const u64 shifted = by < 64 ? value << by : 0;
        return static_cast<u32>(i_->flags & kHigh ? shifted >> 32 : shifted);
      }
      const u64 shifted = i_->flags & kSignExtended ? static_cast<u64>(with_sign >> std::min(by, 63u)) : by < 64 ? value >> by : 0;
      return static_cast<u32>(i_->flags & kHigh ? shifted >> 32 : shifted);
    });
  }

  void compare_integers() {
    const Words a = integers(i_->sources[0]), b = integers(i_->sources[1]);
    const u8 how = i_->comparison;
    const u32 lower = i_->flags & kExtended ? condition(i_->conditions[1]) : 0;
    set_comparison(mask_of([&](int l) {
      const bool is_unsigned = i_->flags & kUnsigned;
      const auto holds = [&](u8 comparison) {
        return is_unsigned ? compare(comparison, a[l], b[l]) : compare(comparison, static_cast<s32>(a[l]), static_cast<s32>(b[l]));
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
      return compare(i_->comparison, x, y) || (i_->flags & kUnordered && (std::isnan(x) || std::isnan(y)));
    }));
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

  void choose_extreme() {
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

  // Rounds as the instruction says.
  template <class Of>
  void set_floats(const Of& of) {
    if (i_->flags & kDown) std::fesetround(FE_DOWNWARD);
    if (i_->flags & kUp) std::fesetround(FE_UPWARD);
    set_words([&](int l) {
      volatile float value = of(l);
      return bits<u32>(static_cast<float>(value));
    });
    std::fesetround(FE_TONEAREST);
  }

  void float_arithmetic() {
    const Words a = floats(i_->sources[0]), b = floats(i_->sources[1]), c = floats(i_->sources[2]);
    set_floats([&](int l) {
      const float x = bits<float>(a[l]), y = bits<float>(b[l]);
      return i_->operation == FADD ? x + y : i_->operation == FMUL ? x * y : std::fma(x, y, bits<float>(c[l]));
    });
  }

  void double_arithmetic() {
    const Longs a = doubles(i_->sources[0]), b = doubles(i_->sources[1]);
    Longs results;
    for_all([&](int l) {
      const double x = bits<double>(a[l]), y = bits<double>(b[l]);
      results[l] = bits<u64>(i_->operation == DADD ? x + y : x * y);
    });
    set(results);
  }

  void to_doubles() {
    Longs results;
    const Words words = i_->operation == F2F_64 ? floats(i_->sources[0]) : integers(i_->sources[0]);
    for_all([&](int l) {
      results[l] = bits<u64>(i_->operation == F2F_64    ? static_cast<double>(bits<float>(words[l]))
                             : i_->flags & kUnsigned ? static_cast<double>(words[l])
                                                     : static_cast<double>(static_cast<s32>(words[l])));
    });
    set(results);
  }

  // --- Where threads go. ---

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
      waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), [](const Waiting& w) { return !w.mask; }), waiting_.end());
      ready_.push_back({at + 1, wanted});
      return true;
    }
    return false;
  }

  void break_off() {
    Words& barrier = barriers_[i_->table];
    u32 others = 0;
    for_each(mask_, [&](int l) { others |= barrier[l]; });
    for_each(others, [&](int l) { barrier[l] &= barrier[l] & mask_ ? ~mask_ : ~0u; });
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
    u64 more_lines = 0;
    const bool goes_on = !mask_ || execute(more_lines);
    const u64 latency = program_.latencies[i_->operation];
    if (i_->write_barrier < 6) {
      u64& until = scoreboards_[i_->write_barrier];
      until = std::max(until, issued + latency + 2 * more_lines);
    }
    if (i_->read_barrier < 6) {
      u64& until = scoreboards_[i_->read_barrier];
      until = std::max(until, issued + program_.latencies[kOperations]);
    }
    u64 next = issued + std::max<u64>(i_->stall, 1);
    const bool is_jump = i_->operation >= BRA && i_->operation <= RET;
    if (is_jump && mask_ && path_.at != at + 1) next += latency;
    Count& count = program_.counts[at];
    count.slots += 1;
    count.threads += static_cast<u64>(__builtin_popcount(mask_));
    count.cycles += next - now_;
    now_ = next;
    return goes_on;
  }

  bool execute(u64& more_lines) {
    const Instruction& i = *i_;
    const auto source = [&](u32 k) { return integers(i.sources[k]); };
    switch (static_cast<Operation>(i.operation)) {
      case NOP: break;
      case MOV: case R2UR: set(source(0)); break;
      case IMAD: multiply_add(); break;
      case IMAD_WIDE: multiply_add_wide(false); break;
      case IMAD_HI: multiply_add_wide(true); break;
      case IADD3: add(); break;
      case LEA: case LEA_HI: shift_and_add(); break;
      case LOP3: logic(); break;
      case PLOP3: predicate_logic(); break;
      case SHF: funnel_shift(); break;
      case ISETP: compare_integers(); break;
      case FSETP: compare_reals(floats(i.sources[0]), floats(i.sources[1])); break;
      case DSETP: compare_reals(doubles(i.sources[0]), doubles(i.sources[1])); break;
      case SEL: case FSEL: {
        const bool is_float = i.operation == FSEL;
        const Words a = is_float ? floats(i.sources[0]) : source(0), b = is_float ? floats(i.sources[1]) : source(1);
        const u32 which = condition(i.conditions[0]);
        set_words([&](int l) { return which >> l & 1 ? a[l] : b[l]; });
        break;
      }
      case PRMT: {
        const Words a = source(0), b = source(1), c = source(2);
        set_words([&](int l) { return permuted(a[l], b[l], c[l]); });
        break;
      }
      case SGXT: {
        const Words a = source(0), width = source(1);
        set_words([&](int l) {
          const u32 by = 32 - width[l];
          return i.flags & kUnsigned ? a[l] << by >> by : static_cast<u32>(static_cast<s32>(a[l] << by) >> by);
        });
        break;
      }
      case VIMNMX: case VIMNMX3: case VIADDMNMX: choose_extreme(); break;
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
      case IABS: {
        const Words a = source(0);
        set_words([&](int l) { return static_cast<s32>(a[l]) < 0 ? -a[l] : a[l]; });
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
          if (mask[0] >> k & 1) set_predicate(k, mask_of([&](int l) { return (a[l] >> i.table >> k & 1) != 0; }));
        }
        break;
      }
      case CS2R: i.flags & kIs64 ? set(Longs{}) : set(Words{}); break;
      case S2R: {
        const u32 same = i.immediate == 1 ? block_ : i.immediate == 2 ? static_cast<u32>(kShared >> 32) : 0;
        set_words([&](int l) { return i.immediate == 0 ? first_thread_ + static_cast<u32>(l) : same; });
        break;
      }
      case LD: case LDL: case LDS: more_lines = load(static_cast<Operation>(i.operation)); break;
      case ST: case STL: case STS: store(static_cast<Operation>(i.operation)); break;
      case LDC: {
        const Words index = source(0);
        Longs values{};
        for_each(mask_, [&](int l) {
          std::memcpy(&values[l], program_.bank(i.table) + index[l] + i.offset, i.flags & kIs64 ? 8 : 4);
        });
        if (i.flags & kIs64) {
          set(values);
        } else {
          set_words([&](int l) { return static_cast<u32>(values[l]); });
        }
        break;
      }
      case BRA: go(all_conditions(), i.to); break;
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
      case VOTE: {
        const u32 votes = condition(i.conditions[0]) & mask_;
        if (i.n_predicates) set_predicate(i.predicates[0], votes ? ~0u : 0);
        set_words([&](int) { return votes; });
        break;
      }
      case REDUX: {
        const Words a = source(0);
        u32 least = ~0u;
        for_each(mask_, [&](int l) { least = std::min(least, a[l]); });
        set_words([&](int) { return least; });
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
      case FADD: case FMUL: case FFMA: float_arithmetic(); break;
      case DADD: case DMUL: double_arithmetic(); break;
      case I2F: {
        const Words a = source(0);
        set_floats([&](int l) { return i.flags & kUnsigned ? static_cast<float>(a[l]) : static_cast<float>(static_cast<s32>(a[l])); });
        break;
      }
      case I2F_64: case F2F_64: to_doubles(); break;
      case F2I: {
        const Words a = floats(i.sources[0]);
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
      case HFMA2: set_words([&](int) { return static_cast<u32>(i.immediate); }); break;
      default: fail(path_.at - 1, "an instruction that is not known");
    }
    return path_.mask != 0;
  }

  [[noreturn]] void fail(s32 at, const char* why) const {
    std::fprintf(stderr, "sass: block %u, instruction %x: %s\n", block_, static_cast<u32>(16 * at), why);
    for (const Waiting& one : waiting_) {
      std::fprintf(stderr, "  %08x wait at %x for %08x\n", one.mask, static_cast<u32>(16 * one.at), wanted_by(one));
    }
    std::abort();
  }

  Program& program_;
  u8* shared_;
  u32 block_, first_thread_;
  std::unique_ptr<u8[]> local_;
  const Instruction* i_ = nullptr;
  Path path_{};
  u32 mask_ = 0, live_ = 0;  // Threads of the instruction; those that have not ended.
  Words registers_[256]{};
  u32 uniform_[64]{};
  u32 predicates_[16]{};  // Of the threads 0 to 6, of the warp 8 to 14; 7 and 15 are true.
  Words barriers_[16]{};  // Of each thread, whom it waits for.
  std::vector<Path> ready_;
  std::vector<Waiting> waiting_;
  u64 now_ = 0, scoreboards_[6]{};
};

template <class T>
void put(u8* constants, u32 at, T value) {
  std::memcpy(constants + at, &value, sizeof(value));
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const char* sass_operations() { return kNames; }

// Plays a kernel; returns the cycles of all warps. `latencies` are those of the operations, and then
// of reading a register that is about to be overwritten.
extern "C" __attribute__((visibility("default"))) u64 sass_play(const Instruction* code, const u8* constants,
                                                               const u8* tables, const u8* addresses,
                                                               const u16* latencies, Count* counts, s32 n_blocks,
                                                               s32 n_threads, s32 n_shared) {
  Program program{code, {}, tables, addresses, latencies, counts};
  std::memcpy(program.constants, constants, kConstants);
  put(program.constants, 0x0, n_threads);
  put(program.constants, 0x20, kLocal);
  put(program.constants, 0x28, kLocalBytes - 64);
  u64 cycles = 0;
  for (s32 block = 0; block < n_blocks; ++block) {
    std::vector<u8> shared(static_cast<size_t>(n_shared) + 0x400);
    std::vector<std::unique_ptr<Warp>> warps;
    for (s32 first = 0; first < n_threads; first += 32) {
      warps.push_back(std::make_unique<Warp>(program, shared.data(), static_cast<u32>(block), static_cast<u32>(first),
                                             static_cast<u32>(n_threads - first)));
    }
    for (bool is_running = true; is_running;) {
      is_running = false;
      for (auto& warp : warps) {
        if (warp->waits_for_block()) warp->pass_block_barrier();
        warp->run();
        is_running |= !warp->has_ended();
      }
    }
    for (auto& warp : warps) cycles += warp->cycles();
  }
  return cycles;
}
