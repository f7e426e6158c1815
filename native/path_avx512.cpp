// For x86 processors with AVX-512. The instruction set is asked for here, not by a flag for
// one file, so that any build system can compile all files alike.

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,prefer-vector-width=512")
// GCC's own intrinsics begin with a vector that is undefined on purpose (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <immintrin.h>

#define VOXPIPE_PATH_NAME voxpipe_avx512
#define LANES 16
#define VOXPIPE_PICK(a, b, at) \
  _mm512_permutex2var_ps((__m512)(a), (__m512i)(at), (__m512)(b))
#define VOXPIPE_ROUND(x) _mm512_maskz_cvtps_epi32(0xffff, x)
#define VOXPIPE_MARKED(x) _mm512_movepi32_mask((__m512i)(x))
#define VOXPIPE_MULTIPLY_ADD(a, b, c) _mm512_fmadd_ps(a, b, c)
#define VOXPIPE_ANY_ZERO(x) _mm512_testn_epi32_mask((__m512i)(x), (__m512i)(x))
#define VOXPIPE_MULTIPLY_HALVES(a, b) _mm512_maskz_madd_epi16(0xffff, (__m512i)(a), (__m512i)(b))
#define VOXPIPE_LOW_BYTES(x) _mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)(x))
#define VOXPIPE_LOW_SHORTS(x) _mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)(x))
#define VOXPIPE_GATHER(from, offsets) \
  _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), 0xffff, (__m512i)(offsets), from, 1)
#define VOXPIPE_GATHER_LONGS(from, offsets, half)                  \
  _mm512_mask_i32gather_epi64(_mm512_setzero_si512(), 0xff,        \
                              _mm512_maskz_extracti32x8_epi32(0xff, (__m512i)(offsets), half), from, 1)
#define VOXPIPE_FLOOR(x) _mm512_maskz_roundscale_pd(0xff, x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)
#define VOXPIPE_MULTIPLY_WORDS(a, b) _mm512_maskz_mul_epu32(0xff, (__m512i)(a), (__m512i)(b))

#include "path.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
