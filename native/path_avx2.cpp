// For x86 processors with AVX2. The instruction set is asked for here, not by a flag for
// one file, so that any build system can compile all files alike.

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif

#include <immintrin.h>

#define VOXPIPE_PATH_NAME voxpipe_avx2
#define LANES 8
#define VOXPIPE_ROUND(x) _mm256_cvtps_epi32(x)
#define VOXPIPE_MARKED(x) _mm256_movemask_ps((__m256)(x))
#define VOXPIPE_MULTIPLY_ADD(a, b, c) _mm256_fmadd_ps(a, b, c)
#define VOXPIPE_MULTIPLY_HALVES(a, b) _mm256_madd_epi16((__m256i)(a), (__m256i)(b))
#define VOXPIPE_FLOOR(x) _mm256_floor_pd(x)
#define VOXPIPE_MULTIPLY_WORDS(a, b) _mm256_mul_epu32((__m256i)(a), (__m256i)(b))
#define VOXPIPE_PICK(a, b, at) \
  _mm256_blendv_ps((__m256)VOXPIPE_PERMUTE(a, at), (__m256)VOXPIPE_PERMUTE(b, at), \
                   (__m256)_mm256_slli_epi32((__m256i)(at), 28))
#define VOXPIPE_PERMUTE(v, at) _mm256_permutevar8x32_ps((__m256)(v), (__m256i)(at))

#include "path.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
