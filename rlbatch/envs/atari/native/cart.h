// The cartridge: program ROM in banks, bank switching, extra RAM, and the DPC chip of Pitfall II.
//
// A program is prepared once (`prepared` in `host.cpp`) so that bank b starts at 4096 * b; a 2K ROM
// is there twice. The state holds bank numbers, never pointers.
#pragma once

#include "platform.h"

namespace rlbatch::atari {

// `kAny`: it is not known at compile time.
enum class Cart : s32 { k2K, k4K, kF8, kF8SC, kF6, kF6SC, kE0, kFE, kDPC, kAny };

// Bytes of a program; of DPC with its graphics.
constexpr s32 rom_size(Cart kind) {
  switch (kind) {
    case Cart::k2K: return 2048;
    case Cart::k4K: return 4096;
    case Cart::kF8: case Cart::kF8SC: case Cart::kE0: case Cart::kFE: return 8192;
    case Cart::kF6: case Cart::kF6SC: return 16384;
    default: return 10240;
  }
}

constexpr s32 kDpcGraphics = 8192;  // Offset of the 2 KB graphics ROM.
constexpr s32 kMaxRom = 16384 + 8;  // And a few bytes that are read, but never used.

// The display processor chip: eight data fetchers, three of which can make music, and a random
// number generator. Nothing but the stamp and the fraction is reset with the console.
struct Dpc {
  f64 fraction;  // Of a music clock.
  s32 stamp;     // CPU cycle of the last music read.
  u16 counter[8];
  u8 top[8], bottom[8], flag[8];
  u8 is_music[8];  // Only 5 to 7 can be.
  u8 random, padding[3];
};

struct CartState {
  u8 bank;      // F8, F6, DPC.
  u8 slice[4];  // E0, 1 KB each.
  u8 padding[3];
  u8 ram[128];  // F8SC, F6SC.
  Dpc dpc;
};

RLB_FN constexpr bool has_cart_ram(Cart kind) { return kind == Cart::kF8SC || kind == Cart::kF6SC; }

RLB_FN void power_on_cart(CartState& cart) {
  cart = CartState{};
  cart.dpc.random = 1;
}

RLB_FN void reset_cart(Cart kind, CartState& cart) {
  cart.bank = kind == Cart::kF8 || kind == Cart::kF8SC || kind == Cart::kDPC;
  for (s32 i = 0; i < 4; ++i) cart.slice[i] = static_cast<u8>(4 + i);
  cart.dpc.stamp = 0;
  cart.dpc.fraction = 0;
}

RLB_FN void clock_random(Dpc& dpc) {
  const u32 r = dpc.random;
  const u32 bit = ~((r >> 7) ^ (r >> 5) ^ (r >> 4) ^ (r >> 3)) & 1;
  dpc.random = static_cast<u8>(r << 1 | bit);
}

// Lets the music fetchers run for the cycles since they were last looked at.
RLB_FN void clock_music(Dpc& dpc, s32 cycles) {
  const f64 elapsed = static_cast<f64>(cycles - dpc.stamp);
  dpc.stamp = cycles;
  f64 clocks = elapsed * 15750.0;
  clocks = clocks / 1193191.66666667;
  clocks = clocks + dpc.fraction;
  const s32 whole = static_cast<s32>(clocks);
  dpc.fraction = clocks - static_cast<f64>(whole);
  if (whole <= 0) return;
  for (s32 i = 5; i < 8; ++i) {
    if (!dpc.is_music[i]) continue;
    const s32 period = dpc.top[i] + 1;
    s32 low = dpc.counter[i] & 0xff;
    if (dpc.top[i]) {
      low -= whole % period;
      if (low < 0) low += period;
    } else {
      low = 0;
    }
    if (low <= dpc.bottom[i]) {
      dpc.flag[i] = 0x00;
    } else if (low <= dpc.top[i]) {
      dpc.flag[i] = 0xff;
    }
    dpc.counter[i] = static_cast<u16>((dpc.counter[i] & 0x700) | low);
  }
}

RLB_FN u8 read_dpc(Dpc& dpc, const u8* rom, u32 offset, s32 cycles) {
  static constexpr u8 kAmplitude[8] = {0, 4, 5, 9, 6, 10, 11, 15};
  const u32 i = offset & 7, function = (offset >> 3) & 7;
  if ((dpc.counter[i] & 0xff) == dpc.top[i]) {
    dpc.flag[i] = 0xff;
  } else if ((dpc.counter[i] & 0xff) == dpc.bottom[i]) {
    dpc.flag[i] = 0x00;
  }
  u8 result = 0;
  if (function == 0 && i < 4) {
    result = dpc.random;
  } else if (function == 0) {
    clock_music(dpc, cycles);
    u32 voices = 0;
    for (u32 k = 0; k < 3; ++k) voices |= (dpc.is_music[5 + k] && dpc.flag[5 + k]) ? 1u << k : 0;
    result = kAmplitude[voices];
  } else if (function == 1) {
    result = rom[kDpcGraphics + 2047 - dpc.counter[i]];
  } else if (function == 2) {
    result = rom[kDpcGraphics + 2047 - dpc.counter[i]] & dpc.flag[i];
  } else if (function == 7) {
    result = dpc.flag[i];
  }
  if (!dpc.is_music[i]) dpc.counter[i] = (dpc.counter[i] - 1) & 0x7ff;
  return result;
}

RLB_FN void write_dpc(Dpc& dpc, u32 offset, u8 value) {
  const u32 i = offset & 7, function = (offset >> 3) & 7;
  if (function == 0) {
    dpc.top[i] = value;
    dpc.flag[i] = 0;
  } else if (function == 1) {
    dpc.bottom[i] = value;
  } else if (function == 2) {
    const u8 low = dpc.is_music[i] ? dpc.top[i] : value;
    dpc.counter[i] = static_cast<u16>((dpc.counter[i] & 0x700) | low);
  } else if (function == 3) {
    dpc.counter[i] = static_cast<u16>((value & 7) << 8 | (dpc.counter[i] & 0xff));
    if (i >= 5) dpc.is_music[i] = (value & 0x10) != 0;
  } else if (function == 6) {
    dpc.random = 1;
  }
}

// Switches the bank if an access to this offset of the cartridge does.
template <Cart kKind>
RLB_FN void touch_hot_spot(CartState& cart, u32 offset) {
  if constexpr (kKind == Cart::kF8 || kKind == Cart::kF8SC || kKind == Cart::kDPC) {
    if (offset == 0xff8 || offset == 0xff9) cart.bank = static_cast<u8>(offset - 0xff8);
  } else if constexpr (kKind == Cart::kF6 || kKind == Cart::kF6SC) {
    if (offset >= 0xff6 && offset <= 0xff9) cart.bank = static_cast<u8>(offset - 0xff6);
  } else if constexpr (kKind == Cart::kE0) {
    if (offset >= 0xfe0 && offset <= 0xff7) {
      cart.slice[(offset - 0xfe0) >> 3] = static_cast<u8>(offset & 7);
    }
  }
}

// The banks that are switched in, in a register.
template <Cart kKind>
RLB_HOT u32 packed_banks(const CartState& cart) {
  if constexpr (kKind == Cart::kE0) {
    return cart.slice[0] | u32{cart.slice[1]} << 8 | u32{cart.slice[2]} << 16 | u32{cart.slice[3]} << 24;
  }
  return cart.bank * 4096u;
}

// Where in the ROM a program byte is.
template <Cart kKind>
RLB_HOT u32 offset_in(u32 banks, u32 address) {
  if constexpr (kKind == Cart::k2K || kKind == Cart::k4K) {
    return address & 0xfff;
  } else if constexpr (kKind == Cart::kE0) {
    return (banks >> (address >> 7 & 24) & 0xff) * 1024u + (address & 0x3ff);
  } else if constexpr (kKind == Cart::kFE) {  // The bank is address line 13.
    return (address & 0x2000 ? 0u : 4096u) + (address & 0xfff);
  } else {
    return banks + (address & 0xfff);
  }
}

template <Cart kKind>
RLB_HOT u32 rom_offset(const CartState& cart, u32 address) {
  return offset_in<kKind>(packed_banks<kKind>(cart), address);
}

// Whether a byte is plain ROM.
template <Cart kKind>
RLB_HOT bool is_plain_data(u32 address) {
  if (!(address & 0x1000)) return false;
  const u32 offset = address & 0xfff;
  if constexpr (kKind == Cart::kE0) return offset < 0xfe0;
  if constexpr (kKind == Cart::kDPC) return offset >= 0x80 && offset < 0xfc0;
  if constexpr (has_cart_ram(kKind)) return offset >= 0x100 && offset < 0xff6;
  if constexpr (kKind == Cart::kF8 || kKind == Cart::kF6) return offset < 0xff6;
  return true;
}

// Whether the four bytes from a program counter on are plain ROM: read without any effect.
template <Cart kKind>
RLB_HOT bool is_plain_code(u32 pc) {
  constexpr bool kHasHotSpots = has_cart_ram(kKind) || kKind == Cart::kF8 || kKind == Cart::kF6;
  constexpr u32 kFirst = kKind == Cart::kDPC ? 0x80 : has_cart_ram(kKind) ? 0x100 : 0;
  constexpr u32 kEnd = kKind == Cart::kE0 ? 0xfdd : kKind == Cart::kDPC ? 0xfbd : kHasHotSpots ? 0xff3 : 0xffd;
  // One comparison, as every instruction asks for it: what is below the cartridge is far above it here.
  const bool is_inside = (pc & 0x1fff) - (0x1000 + kFirst) < kEnd - kFirst;
  return is_inside & (kKind != Cart::kE0 || (pc & 0x3ff) <= 0x3fd);
}

template <Cart kKind>
RLB_FN u8 read_cart(CartState& cart, const u8* rom, u32 address, s32 cycles) {
  const u32 offset = address & 0xfff;
  touch_hot_spot<kKind>(cart, offset);
  if constexpr (has_cart_ram(kKind)) {
    if (offset >= 0x80 && offset < 0x100) return cart.ram[offset - 0x80];
  }
  if constexpr (kKind == Cart::kDPC) {
    if (offset < 0x80 || offset >= 0xfc0) clock_random(cart.dpc);
    if (offset < 0x40) return read_dpc(cart.dpc, rom, offset, cycles);
  }
  return rom[rom_offset<kKind>(cart, address)];
}

template <Cart kKind>
RLB_FN void write_cart(CartState& cart, u32 address, u8 value) {
  const u32 offset = address & 0xfff;
  touch_hot_spot<kKind>(cart, offset);
  if constexpr (has_cart_ram(kKind)) {
    if (offset < 0x80) cart.ram[offset] = value;
  }
  if constexpr (kKind == Cart::kDPC) {
    clock_random(cart.dpc);
    if (offset >= 0x40 && offset < 0x80) write_dpc(cart.dpc, offset, value);
  }
}

#if defined(RLB_CART)  // Compiled for one game.

RLB_COLD RLB_FN u8 read_any_cart(Cart, CartState& cart, const u8* rom, u32 address, s32 cycles) {
  return read_cart<static_cast<Cart>(RLB_CART)>(cart, rom, address, cycles);
}

RLB_COLD RLB_FN void write_any_cart(Cart, CartState& cart, u32 address, u8 value) {
  write_cart<static_cast<Cart>(RLB_CART)>(cart, address, value);
}

#else

RLB_FN u8 read_any_cart(Cart kind, CartState& cart, const u8* rom, u32 address, s32 cycles) {
  switch (kind) {
    case Cart::k2K: return read_cart<Cart::k2K>(cart, rom, address, cycles);
    case Cart::k4K: return read_cart<Cart::k4K>(cart, rom, address, cycles);
    case Cart::kF8: return read_cart<Cart::kF8>(cart, rom, address, cycles);
    case Cart::kF8SC: return read_cart<Cart::kF8SC>(cart, rom, address, cycles);
    case Cart::kF6: return read_cart<Cart::kF6>(cart, rom, address, cycles);
    case Cart::kF6SC: return read_cart<Cart::kF6SC>(cart, rom, address, cycles);
    case Cart::kE0: return read_cart<Cart::kE0>(cart, rom, address, cycles);
    case Cart::kFE: return read_cart<Cart::kFE>(cart, rom, address, cycles);
    default: return read_cart<Cart::kDPC>(cart, rom, address, cycles);
  }
}

RLB_FN void write_any_cart(Cart kind, CartState& cart, u32 address, u8 value) {
  switch (kind) {
    case Cart::k2K: return write_cart<Cart::k2K>(cart, address, value);
    case Cart::k4K: return write_cart<Cart::k4K>(cart, address, value);
    case Cart::kF8: return write_cart<Cart::kF8>(cart, address, value);
    case Cart::kF8SC: return write_cart<Cart::kF8SC>(cart, address, value);
    case Cart::kF6: return write_cart<Cart::kF6>(cart, address, value);
    case Cart::kF6SC: return write_cart<Cart::kF6SC>(cart, address, value);
    case Cart::kE0: return write_cart<Cart::kE0>(cart, address, value);
    case Cart::kFE: return write_cart<Cart::kFE>(cart, address, value);
    default: return write_cart<Cart::kDPC>(cart, address, value);
  }
}

#endif

}  // namespace rlbatch::atari
