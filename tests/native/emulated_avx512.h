// AVX-512 for processors that lack it, by SIMDe: what `make avx512` has path_avx512.cpp include.
#pragma once

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

#include <string.h>

// What SIMDe 0.7.4 lacks, or misspells in its alias: halves, each by AVX2.

#undef _mm512_maskz_insertf32x8
#define _mm512_maskz_insertf32x8(mask, a, b, half) simde_mm512_maskz_insertf32x8(mask, a, b, half)
#undef _mm512_maskz_madd_epi16
#define _mm512_maskz_madd_epi16(mask, a, b) simde_mm512_maskz_madd_epi16(mask, a, b)
#undef _mm512_testn_epi32_mask
#define _mm512_testn_epi32_mask(a, b) emulated_testn_epi32(a, b)
#undef _mm512_maskz_cvtepi32_epi8
#define _mm512_maskz_cvtepi32_epi8(mask, x) emulated_low_bits<uint8_t, simde__m128i>(x)
#undef _mm512_maskz_cvtepi32_epi16
#define _mm512_maskz_cvtepi32_epi16(mask, x) emulated_low_bits<uint16_t, simde__m256i>(x)
#undef _mm512_mask_i32gather_epi32
#define _mm512_mask_i32gather_epi32(to, mask, at, from, one) emulated_gather<uint32_t, 16>(at, from)
#undef _mm512_mask_i32gather_epi64
#define _mm512_mask_i32gather_epi64(to, mask, at, from, one) emulated_gather<uint64_t, 8>(at, from)
#undef _mm512_maskz_extracti32x8_epi32
#define _mm512_maskz_extracti32x8_epi32(mask, x, half) emulated_half(x, half)
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

inline unsigned emulated_testn_epi32(simde__m512i a, simde__m512i b) {
  uint32_t first[16], second[16];
  memcpy(first, &a, 64);
  memcpy(second, &b, 64);
  unsigned mask = 0;
  for (int n = 0; n < 16; n++) mask |= static_cast<unsigned>((first[n] & second[n]) == 0) << n;
  return mask;
}

template <class E, class V>
inline V emulated_low_bits(simde__m512i x) {
  uint32_t from[16];
  E low[16];
  V result;
  memcpy(from, &x, 64);
  for (int n = 0; n < 16; n++) low[n] = static_cast<E>(from[n]);
  memcpy(&result, low, sizeof(low));
  return result;
}

template <class E, int COUNT, class V>
inline simde__m512i emulated_gather(V at, const void* from) {
  int32_t offset[COUNT];
  E found[COUNT];
  simde__m512i result;
  memcpy(offset, &at, sizeof(offset));
  for (int n = 0; n < COUNT; n++)
    memcpy(found + n, static_cast<const char*>(from) + offset[n], sizeof(E));
  memcpy(&result, found, sizeof(found));
  return result;
}

inline simde__m256i emulated_half(simde__m512i x, int half) {
  simde__m256i result;
  memcpy(&result, reinterpret_cast<const char*>(&x) + 32 * half, 32);
  return result;
}
