// Vectors of LANES numbers, in the extension that GCC and Clang share.
//
// The compiler turns them into whatever the path's instruction set has; results do not depend on
// it, because no operation is contracted or reordered (-ffp-contract=off). Taps are fetched one
// by one and put together in registers, or by a gather instruction where the processor has a fast
// one: Geometry says so.
#pragma once

#include "processor.h"
#include "geometry.h"

namespace VOXPIPE_PATH_NAME {

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef int16_t Shorts __attribute__((vector_size(2 * LANES)));
typedef uint16_t Marks __attribute__((vector_size(2 * LANES)));
typedef uint8_t Bytes __attribute__((vector_size(LANES)));
typedef int8_t SignedBytes __attribute__((vector_size(LANES)));
typedef uint64_t Longs __attribute__((vector_size(4 * LANES)));  // LANES / 2 of them
typedef int64_t Signed __attribute__((vector_size(4 * LANES)));
typedef int32_t HalfInts __attribute__((vector_size(2 * LANES)));
typedef double Doubles __attribute__((vector_size(4 * LANES)));
typedef float HalfFloats __attribute__((vector_size(2 * LANES)));

// Minus nothing, which compilers leave out; plus nothing they may not, for the sake of -0.
inline Floats all_of(float x) { return x - Floats{}; }

template <class V, class T>
inline V vector_at(const T* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof(V));
  return v;
}

template <class V, class T>
inline void put_vector(T* to, V v) {
  __builtin_memcpy(to, &v, sizeof(V));
}

// The lanes that a comparison is true in, a bit each.
inline uint32_t marked_lanes(Ints marks) {
#if defined(VOXPIPE_MARKED)
  return static_cast<uint32_t>(VOXPIPE_MARKED(marks));
#else
  uint32_t bits = 0;
  for (int n = 0; n < LANES; n++) bits |= static_cast<uint32_t>(marks[n] & 1) << n;
  return bits;
#endif
}

inline Ints lane_numbers() {
  Ints numbers;
  for (int n = 0; n < LANES; n++) numbers[n] = n;
  return numbers;
}

// The first ``count`` of a vector, what comes behind stays.
inline void put_some(float* to, Floats v, int64_t count) {
#if defined(VOXPIPE_PUT_SOME)
  if (count < LANES) return VOXPIPE_PUT_SOME(to, v, (1u << count) - 1);
  put_vector(to, v);
#else
  put_vector(to, lane_numbers() < static_cast<int32_t>(count) ? v : vector_at<Floats>(to));
#endif
}

inline Doubles round_even(Doubles x) { return (x + WHOLE) - WHOLE; }

inline Doubles floor_of(Doubles x) {
#if defined(VOXPIPE_FLOOR)
  return VOXPIPE_FLOOR(x);
#else
  const Doubles near = round_even(x);
  return near - (Doubles)((near > x) & (Signed)(Doubles{} + 1.0));
#endif
}

// Half to even.
inline Ints round_int(Floats x) {
#if defined(VOXPIPE_ROUND)
  return (Ints)VOXPIPE_ROUND(x);
#else
  Ints whole;
  for (int n = 0; n < LANES; n++) whole[n] = static_cast<int32_t>(__builtin_rintf(x[n]));
  return whole;
#endif
}

inline Doubles to_grain(Doubles x) { return round_even(x * GRAINS) * GRAIN; }

inline Doubles between(Doubles x, double low, double high) {
  const Doubles l = Doubles{} + low, h = Doubles{} + high;
  x = x > l ? x : l;
  return x < h ? x : h;
}

inline Signed whole_to_int(Doubles x) { return (Signed)(x + WHOLE) - bits_of<int64_t>(WHOLE); }

inline HalfFloats as_weight(Doubles x, float) { return __builtin_convertvector(x, HalfFloats); }
inline Doubles as_weight(Doubles x, double) { return x; }

#define VOXPIPE_4(get, n) get(n), get(n + 1), get(n + 2), get(n + 3)
#define VOXPIPE_8(get) VOXPIPE_4(get, 0), VOXPIPE_4(get, 4)
#if LANES == 16
#define VOXPIPE_ALL(get) VOXPIPE_8(get), VOXPIPE_4(get, 8), VOXPIPE_4(get, 12)
#elif LANES == 4
#define VOXPIPE_ALL(get) VOXPIPE_4(get, 0)
#else
#define VOXPIPE_ALL(get) VOXPIPE_8(get)
#endif

struct Pair {
  Floats lower;
  Floats upper;
};

// Two neighbours in memory at each of LANES offsets, as values, and one alone.
template <class S> struct Fetch;

#define VOXPIPE_GET_16(n) load<uint16_t>(base + offset[n])
#define VOXPIPE_GET_32(n) load<uint32_t>(base + offset[n])
#define VOXPIPE_GET_ONE(n) load<T>(base + offset[n])

// LANES elements of four bytes, each a pair of two. ``gathers``: by the instruction for it, if any.
template <class O>
__attribute__((always_inline)) inline Words words_at(const uint8_t* base, const O* offset, bool) {
  return Words{VOXPIPE_ALL(VOXPIPE_GET_32)};
}

#if defined(VOXPIPE_GATHERS)
__attribute__((always_inline)) inline Words words_at(const uint8_t* base, const int32_t* offset,
                                                     bool gathers) {
  if (!gathers) return Words{VOXPIPE_ALL(VOXPIPE_GET_32)};
  // Masked, all set: without a mask, GCC's header warns of a register that it leaves undefined.
  return (Words)_mm512_mask_i32gather_epi32(_mm512_setzero_si512(), 0xffff,
                                            _mm512_loadu_si512(offset), base, 1);
}
#endif

template <> struct Fetch<uint8_t> {
  template <class O>
  __attribute__((always_inline)) static inline Pair pair(const uint8_t* base, const O* offset,
                                                          bool = false) {
    const Marks both = {VOXPIPE_ALL(VOXPIPE_GET_16)};
    const Ints lower = __builtin_convertvector(both & 255, Ints);
    const Ints upper = __builtin_convertvector(both >> 8, Ints);
    return {__builtin_convertvector(lower, Floats), __builtin_convertvector(upper, Floats)};
  }
};

template <> struct Fetch<int8_t> {
  template <class O>
  __attribute__((always_inline)) static inline Pair pair(const uint8_t* base, const O* offset,
                                                          bool = false) {
    const Marks both = {VOXPIPE_ALL(VOXPIPE_GET_16)};
    const Ints lower = __builtin_convertvector((Shorts)(both << 8) >> 8, Ints);
    const Ints upper = __builtin_convertvector((Shorts)both >> 8, Ints);
    return {__builtin_convertvector(lower, Floats), __builtin_convertvector(upper, Floats)};
  }
};

template <> struct Fetch<uint16_t> {
  template <class O>
  __attribute__((always_inline)) static inline Pair pair(const uint8_t* base, const O* offset,
                                                          bool gathers = false) {
    const Words both = words_at(base, offset, gathers);
    return {__builtin_convertvector((Ints)(both & 0xffff), Floats),
            __builtin_convertvector((Ints)(both >> 16), Floats)};
  }
};

template <> struct Fetch<int16_t> {
  template <class O>
  __attribute__((always_inline)) static inline Pair pair(const uint8_t* base, const O* offset,
                                                          bool gathers = false) {
    const Words both = words_at(base, offset, gathers);
    return {__builtin_convertvector((Ints)(both << 16) >> 16, Floats),
            __builtin_convertvector((Ints)both >> 16, Floats)};
  }
};

inline Floats floats_of_halves(Words half) {  // numbers.h: half_to_float
  const Words rest = (half & 0x7fff) << 13;
  const Words finite = (Words)((Floats)rest * 0x1p112f);
  const Words magnitude = rest >= 0x0f800000u ? (rest | 0x7f800000u) : finite;
  return (Floats)(magnitude | ((half & 0x8000) << 16));
}

template <> struct Fetch<HalfTag> {
  template <class O>
  __attribute__((always_inline)) static inline Pair pair(const uint8_t* base, const O* offset,
                                                          bool gathers = false) {
    const Words both = words_at(base, offset, gathers);
    return {floats_of_halves(both & 0xffff), floats_of_halves(both >> 16)};
  }
};

// Elements of four bytes come as 64-bit pairs, in the order in which one shuffle of two vectors
// leaves the lower and one the upper elements in place.
struct WordPair {
  Words lower;
  Words upper;
};

#define VOXPIPE_GET_64(n) load<uint64_t>(base + offset[n])

template <class O>
__attribute__((always_inline)) inline WordPair load_pairs(const uint8_t* base, const O* offset) {
#define G VOXPIPE_GET_64
#if LANES == 16
  const Words a = (Words)(Longs){G(0), G(1), G(4), G(5), G(8), G(9), G(12), G(13)};
  const Words b = (Words)(Longs){G(2), G(3), G(6), G(7), G(10), G(11), G(14), G(15)};
  return {__builtin_shufflevector(a, b, 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30),
          __builtin_shufflevector(a, b, 1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31)};
#elif LANES == 4
  const Words a = (Words)(Longs){G(0), G(1)};
  const Words b = (Words)(Longs){G(2), G(3)};
  return {__builtin_shufflevector(a, b, 0, 2, 4, 6), __builtin_shufflevector(a, b, 1, 3, 5, 7)};
#else
  const Words a = (Words)(Longs){G(0), G(1), G(4), G(5)};
  const Words b = (Words)(Longs){G(2), G(3), G(6), G(7)};
  return {__builtin_shufflevector(a, b, 0, 2, 8, 10, 4, 6, 12, 14),
          __builtin_shufflevector(a, b, 1, 3, 9, 11, 5, 7, 13, 15)};
#endif
#undef G
}

template <class O>
__attribute__((always_inline)) inline WordPair word_pairs(const uint8_t* base, const O* offset, bool) {
  return load_pairs(base, offset);
}

#if defined(VOXPIPE_GATHERS)
__attribute__((always_inline)) inline WordPair word_pairs(const uint8_t* base,
                                                          const int32_t* offset, bool gathers) {
  if (!gathers) return load_pairs(base, offset);
  const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(offset));
  const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(offset + 8));
  const Words a = (Words)_mm512_mask_i32gather_epi64(_mm512_setzero_si512(), 0xff, first, base, 1);
  const Words b = (Words)_mm512_mask_i32gather_epi64(_mm512_setzero_si512(), 0xff, second, base, 1);
  return {__builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
          __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31)};
}
#endif

template <> struct Fetch<float> {
  template <class O>
  __attribute__((always_inline)) static inline Pair pair(const uint8_t* base, const O* offset,
                                                          bool gathers = false) {
    const WordPair both = word_pairs(base, offset, gathers);
    return {(Floats)both.lower, (Floats)both.upper};
  }
};

template <> struct Fetch<int32_t> {
  template <class O>
  __attribute__((always_inline)) static inline Pair pair(const uint8_t* base, const O* offset,
                                                          bool gathers = false) {
    const WordPair both = word_pairs(base, offset, gathers);
    return {__builtin_convertvector((Ints)both.lower, Floats),
            __builtin_convertvector((Ints)both.upper, Floats)};
  }
};

template <> struct Fetch<uint32_t> {
  template <class O>
  __attribute__((always_inline)) static inline Pair pair(const uint8_t* base, const O* offset,
                                                          bool gathers = false) {
    const WordPair both = word_pairs(base, offset, gathers);
    return {__builtin_convertvector(both.lower, Floats),
            __builtin_convertvector(both.upper, Floats)};
  }
};

template <class S>
inline Floats fetch_one(const uint8_t* base, const int32_t* offset) {
#define VOXPIPE_GET(n) load_value<S, float>(base + offset[n])
  return Floats{VOXPIPE_ALL(VOXPIPE_GET)};
#undef VOXPIPE_GET
}

// a * b + c, rounded once. Where a processor cannot, it is worked out in float64, which holds the
// product, and rounded to odd there, so that the second rounding sees that something was lost.
inline Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(VOXPIPE_MULTIPLY_ADD)
  return (Floats)VOXPIPE_MULTIPLY_ADD(a, b, c);
#else
  HalfFloats part[3][2], result[2];
  const Floats from[3] = {a, b, c};
  for (int n = 0; n < 3; n++) __builtin_memcpy(part[n], from + n, sizeof(Floats));
  for (int half = 0; half < 2; half++) {
    const Doubles product = __builtin_convertvector(part[0][half], Doubles) *
                            __builtin_convertvector(part[1][half], Doubles);
    const Doubles added = __builtin_convertvector(part[2][half], Doubles);
    const Doubles sum = product + added, back = sum - product;
    const Doubles lost = (product - (sum - back)) + (added - back);
    const Signed bits = (Signed)sum;
    // Towards what was lost, if the last bit is even: up in magnitude where the signs agree.
    const Signed towards = ((Signed)sum ^ (Signed)lost) < 0 ? Signed{} - 1 : Signed{} + 1;
    const Signed moves = (Signed)(lost != 0.0) & (Signed)((bits & 1) == 0);
    result[half] = __builtin_convertvector((Doubles)(bits + (towards & moves)), HalfFloats);
  }
  Floats value;
  __builtin_memcpy(&value, result, sizeof(value));
  return value;
#endif
}

typedef float Four __attribute__((vector_size(16)));

// Four voxels of four numbers each, turned: four numbers of four voxels each.
struct Fours {
  Four of[4];
};

inline Fours turn_fours(const Four* from) {
  const Four a = __builtin_shufflevector(from[0], from[2], 0, 4, 1, 5);
  const Four b = __builtin_shufflevector(from[1], from[3], 0, 4, 1, 5);
  const Four c = __builtin_shufflevector(from[0], from[2], 2, 6, 3, 7);
  const Four d = __builtin_shufflevector(from[1], from[3], 2, 6, 3, 7);
  return {__builtin_shufflevector(a, b, 0, 4, 1, 5), __builtin_shufflevector(a, b, 2, 6, 3, 7),
          __builtin_shufflevector(c, d, 0, 4, 1, 5), __builtin_shufflevector(c, d, 2, 6, 3, 7)};
}

}  // namespace VOXPIPE_PATH_NAME
