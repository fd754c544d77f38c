// What a program for the machine consists of, and the words of its 32 threads.
#pragma once

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <vector>

namespace sass {

using u8 = uint8_t;
using u16 = uint16_t;
using s16 = int16_t;
using u32 = uint32_t;
using s32 = int32_t;
using u64 = uint64_t;
using s64 = int64_t;

#define OPERATIONS(X)                                                                               \
  X(NOP) X(MOV) X(IMAD) X(IMAD_WIDE) X(IMAD_HI) X(IADD3) X(LEA) X(LEA_HI) X(LOP3) X(SHF) X(ISETP)   \
  X(SEL) X(SEL_64) X(MOV_64) X(IADD_64) X(PRMT) X(SGXT) X(VIMNMX) X(VIMNMX3) X(VIADDMNMX) X(FLO) X(POPC) X(BREV) X(IABS) X(R2UR)   \
  X(P2R) X(R2P) X(PLOP3) X(CS2R) X(S2R) X(LD) X(ST) X(LDL) X(STL) X(LDS) X(STS) X(LDC) X(BRA)       \
  X(BRX) X(BRA_DIV) X(CALL) X(RET) X(EXIT) X(BSSY) X(BSYNC) X(BREAK) X(BMOV_GET) X(BMOV_SET)        \
  X(WARPSYNC) X(ENDCOLLECTIVE) X(VOTE) X(REDUX) X(SHFL) X(MATCH) X(BAR) X(FADD) X(FMUL) X(FFMA) X(FSEL)      \
  X(FSETP) X(DADD) X(DMUL) X(DFMA) X(DSETP) X(I2F) X(I2F_64) X(F2I) X(F2I_64) X(F2F_64)             \
  X(MUFU_RCP) X(MUFU_RCP64) X(HFMA2) X(IDP)
#define ENUMERATOR(name) name,
enum Operation : u16 { OPERATIONS(ENUMERATOR) kOperations };
#define NAME(name) #name " "
const char kNames[] = OPERATIONS(NAME);

#define FLAGS(X)                                                                                     \
  X(Unsigned) X(Carry) X(Extended) X(High) X(SignExtended) X(Wraps) X(Is64) X(ShiftAmount) X(IsOr)    \
  X(Relu) X(Down) X(Up) X(Clears) X(Unordered) X(Left) X(Pairs16) X(IsXor) X(ToZero)
#define BIT_NUMBER(name) k##name##Bit,
enum FlagBit : u32 { FLAGS(BIT_NUMBER) };
#define BIT(name) k##name = 1u << k##name##Bit,
enum Flag : u32 { FLAGS(BIT) };
const char kFlagNames[] = FLAGS(NAME);
enum Comparison : u8 { kLess = 1, kEqual, kLessEqual, kGreater, kNotEqual, kGreaterEqual, kNan };
enum Kind : u8 { kNothing, kRegister, kUniform, kImmediate, kConstant };

struct Source {
  u8 kind, negated, inverted, absolute;
  u32 value, bank;  // Of an immediate of 64 bits, the lower and the upper ones.
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

// Behind the latencies of the operations: of reading a register that is about to be overwritten, and of
// a load that the first-level cache cannot answer.
enum : u32 { kReadLatency = kOperations, kMissLatency };

struct Count {
  u64 slots, threads, cycles, misses;
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
  u32 cache_lines;
  Count* counts;

  const u8* bank(u32 number) const { return number == 0 ? constants : number == 2 ? tables : addresses; }
};

}  // namespace sass
