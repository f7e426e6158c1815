// AVX-512 for processors that lack it, by SIMDe: what `make avx512` has path_avx512.cpp include.
#pragma once

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

#include <string.h>

// What SIMDe 0.7.4 lacks, or misspells in its alias: halves, each by AVX2.

#undef _mm512_maskz_insertf32x8
#define _mm512_maskz_insertf32x8(mask, a, b, half) simde_mm512_maskz_insertf32x8(mask, a, b, half)
#define _mm512_maskz_cvtps_epi32(mask, x) emulated_cvtps_epi32(x)
#define _mm512_maskz_roundscale_pd(mask, x, way) emulated_floor_pd(x)
#define _mm512_mask_storeu_ps(to, mask, x) emulated_mask_storeu_ps(to, mask, x)

inline simde__m512i emulated_cvtps_epi32(simde__m512 x) {
  simde__m512i whole;
  for (int half = 0; half < 2; half++) {
    __m256 part;
    memcpy(&part, reinterpret_cast<const char*>(&x) + 32 * half, 32);
    const __m256i rounded = _mm256_cvtps_epi32(part);
    memcpy(reinterpret_cast<char*>(&whole) + 32 * half, &rounded, 32);
  }
  return whole;
}

inline simde__m512d emulated_floor_pd(simde__m512d x) {
  simde__m512d floor;
  for (int half = 0; half < 2; half++) {
    __m256d part;
    memcpy(&part, reinterpret_cast<const char*>(&x) + 32 * half, 32);
    part = _mm256_floor_pd(part);
    memcpy(reinterpret_cast<char*>(&floor) + 32 * half, &part, 32);
  }
  return floor;
}

inline void emulated_mask_storeu_ps(float* to, unsigned mask, simde__m512 x) {
  for (int n = 0; n < 16; n++)
    if (mask >> n & 1) memcpy(to + n, reinterpret_cast<const char*>(&x) + 4 * n, 4);
}
