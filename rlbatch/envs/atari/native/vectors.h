// The vector instructions of the host compiler, where they are wanted.
#pragma once

#include "platform.h"

#if !defined(RLB_DEVICE) && !defined(RLB_PORTABLE) && defined(__AVX2__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 warns of its own header.
#include <immintrin.h>
#pragma GCC diagnostic pop
#define RLB_AVX2 1
#if defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512VBMI__)
#define RLB_AVX512 1
#endif
#endif
