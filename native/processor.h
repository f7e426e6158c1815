// The class of processors that the kernel is compiled for. A path_*.cpp sets it before it includes
// path.h; a header that is compiled alone gets what every processor has.
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "interface.h"

#ifndef VOXPIPE_PATH_NAME

#define VOXPIPE_PATH_NAME voxpipe_portable
#define LANES 4  // 16 bytes: NEON, SSE2
#if defined(__aarch64__)
#include <arm_neon.h>
#define VOXPIPE_ROUND(x) vcvtnq_s32_f32((float32x4_t)(x))
#define VOXPIPE_MULTIPLY_ADD(a, b, c) vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b))
#elif defined(__SSE2__)
#include <emmintrin.h>
#define VOXPIPE_MARKED(x) _mm_movemask_ps((__m128)(x))
#define VOXPIPE_ROUND(x) _mm_cvtps_epi32(x)
#define VOXPIPE_MULTIPLY_HALVES(a, b) _mm_madd_epi16((__m128i)(a), (__m128i)(b))
#define VOXPIPE_MULTIPLY_WORDS(a, b) _mm_mul_epu32((__m128i)(a), (__m128i)(b))
#endif

#endif
