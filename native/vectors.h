// Vectors of LANES numbers, in the extension that GCC and Clang share.
//
// The compiler turns them into whatever the path's instruction set has; results do not depend on
// it, because no operation is contracted or reordered (-ffp-contract=off).
#pragma once

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

inline bool any_zero(Words x) {
#if defined(VOXPIPE_ANY_ZERO)
  return VOXPIPE_ANY_ZERO(x) != 0;
#else
  return marked_lanes((Ints)(x == 0)) != 0;
#endif
}

// low * a + high * b of the two halves of each number; the halves are not negative, and nothing has
// more than 15 bits.
inline Ints sum_of_products(Ints halves, int32_t a, int32_t b) {
#if defined(VOXPIPE_MULTIPLY_HALVES)
  const uint32_t both = static_cast<uint32_t>(b) << 16 | (static_cast<uint32_t>(a) & 0xffff);
  return (Ints)VOXPIPE_MULTIPLY_HALVES(halves, (Ints)(Words{} + both));
#else
  return (halves & 0xffff) * a + (halves >> 16) * b;
#endif
}

inline Ints lane_numbers() {
  Ints numbers;
  for (int n = 0; n < LANES; n++) numbers[n] = n;
  return numbers;
}

// The first ``count`` of a vector, what comes behind stays.
inline void put_some(float* to, Floats v, int64_t count) {
  put_vector(to, lane_numbers() < static_cast<int32_t>(count) ? v : vector_at<Floats>(to));
}

inline Doubles floor_of(Doubles x) {
#if defined(VOXPIPE_FLOOR)
  return VOXPIPE_FLOOR(x);
#else
  const Doubles near = (x + WHOLE) - WHOLE;
  return near - (Doubles)((near > x) & (Signed)(Doubles{} + 1.0));
#endif
}

inline Signed whole_to_int(Doubles x) { return (Signed)(x + WHOLE) - bits_of<int64_t>(WHOLE); }

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

// 0, 1, ... as a list of arguments.
template <int... I> struct Numbers {};
template <int N, int... I> struct NumbersBelow : NumbersBelow<N - 1, N - 1, I...> {};
template <int... I> struct NumbersBelow<0, I...> { typedef Numbers<I...> type; };
constexpr auto ALL_LANES = typename NumbersBelow<LANES>::type{};

// Where there are instructions for it: 32 bits at each of LANES offsets, of which elements are the first,
// two neighbours of 32 bits, in the order of memory, and the low bits of each number.
#if defined(VOXPIPE_GATHER)
constexpr bool CAN_GATHER = true;

inline Words gathered(const uint8_t* base, Ints offsets) {
  return (Words)VOXPIPE_GATHER(base, offsets);
}

inline void gather_pairs(const uint8_t* base, Ints offsets, Words& first, Words& second) {
  const auto low = VOXPIPE_GATHER_LONGS(base, offsets, 0);
  const auto high = VOXPIPE_GATHER_LONGS(base, offsets, 1);
  first = (Words)VOXPIPE_PICK(low, high, lane_numbers() * 2);
  second = (Words)VOXPIPE_PICK(low, high, lane_numbers() * 2 + 1);
}

// GCC 12 takes lanes one by one where it is not told how.
template <class V>
VOXPIPE_INLINE V low_bits(Words x) {
  if constexpr (sizeof(V) == LANES) return (V)VOXPIPE_LOW_BYTES(x);
  else if constexpr (sizeof(V) == 2 * LANES) return (V)VOXPIPE_LOW_SHORTS(x);
  else return (V)x;
}
#else
constexpr bool CAN_GATHER = false;
Words gathered(const uint8_t* base, Ints offsets);
void gather_pairs(const uint8_t* base, Ints offsets, Words& first, Words& second);
template <class V> V low_bits(Words x);
#endif

// One element at each of LANES offsets. One by one, by way of memory, unless ``GATHERS``: into few lanes
// that is faster than an instruction that gathers, on AMD by a third (decision 0040).
template <class E, class V, bool GATHERS, int... I>
VOXPIPE_INLINE V elements_at(const uint8_t* base, Ints offsets, Numbers<I...>) {
  if constexpr (GATHERS) return low_bits<V>(gathered(base, offsets));
  alignas(64) int32_t offset[LANES];
  put_vector(offset, offsets);
  return V{load<E>(base + offset[I])...};
}

template <int... I>
inline Floats mirrored(Floats values, Numbers<I...>) {
  return __builtin_shufflevector(values, values, (LANES - 1 - I)...);
}

// Elements of a and b in turns, of their first halves or their second.
template <int HALF, class V, int... I>
inline V interleaved(V a, V b, Numbers<I...>) {
  constexpr int N = sizeof...(I);
  return __builtin_shufflevector(a, b, (HALF * N / 2 + I / 2 + I % 2 * N)...);
}

// Step by step: compilers have no instruction that goes all the way.
inline Floats floats_of(Floats values) { return values; }
inline Floats floats_of(Ints values) { return __builtin_convertvector(values, Floats); }
inline Floats floats_of(Words values) { return __builtin_convertvector(values, Floats); }
inline Floats floats_of(Shorts v) { return floats_of(__builtin_convertvector(v, Ints)); }
inline Floats floats_of(Marks v) { return floats_of(__builtin_convertvector(v, Ints)); }
inline Floats floats_of(Bytes v) { return floats_of(__builtin_convertvector(v, Marks)); }
inline Floats floats_of(SignedBytes v) { return floats_of(__builtin_convertvector(v, Shorts)); }

template <class S>
inline Floats floats_at(const uint8_t* from) {
  typedef S Raw __attribute__((vector_size(LANES * sizeof(S))));
  return floats_of(load<Raw>(from));
}

template <>
inline Floats floats_at<Half>(const uint8_t* from) {
  return half_to_float<Floats>(__builtin_convertvector(load<Marks>(from), Words));
}

// Neighbours in memory, from ``v`` on: forwards or, with a ``step`` below 0, backwards.
template <class S>
VOXPIPE_INLINE Floats floats_along(const uint8_t* row, int64_t step, int64_t v) {
  constexpr int64_t SIZE = sizeof(S);
  return step > 0 ? floats_at<S>(row + v * SIZE)
                  : mirrored(floats_at<S>(row - (v + LANES - 1) * SIZE), ALL_LANES);
}

// Of 2 * LANES numbers those at LANES places.
inline Floats picked(const float* from, Ints at) {
#if defined(VOXPIPE_PICK)
  return (Floats)VOXPIPE_PICK(vector_at<Floats>(from), vector_at<Floats>(from + LANES), at);
#else
  Floats found;
  for (int n = 0; n < LANES; n++) found[n] = from[at[n]];
  return found;
#endif
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

}  // namespace VOXPIPE_PATH_NAME
