// From one number type to another: round half to even, saturate, NaN is 0, never truncate.
//
// Included once per path, inside its namespace. Nothing from the C++ library is used here or in
// any other header of the kernel: an inline function compiled for AVX-512 must not be the one
// that the linker picks for everybody.
#pragma once

#include "processor.h"

namespace VOXPIPE_PATH_NAME {

// Always inlined: what is chosen by a type is one call away from who asks, and loops become vectors.
#define VOXPIPE_ALWAYS __attribute__((always_inline))
#define VOXPIPE_INLINE VOXPIPE_ALWAYS inline

struct Half { uint16_t bits; };   // IEEE binary16
struct Brain { uint16_t bits; };  // bfloat16

template <class A, class B> constexpr bool IS_SAME = false;
template <class A> constexpr bool IS_SAME<A, A> = true;
template <class S> constexpr bool IS_REAL = IS_SAME<S, float> || IS_SAME<S, double>;
// Stored types that have infinity and NaN.
template <class S> constexpr bool HAS_NAN = IS_REAL<S> || IS_SAME<S, Half>;

template <class To, class From>
inline To bits_of(From value) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To result;
  __builtin_memcpy(&result, &value, sizeof(To));
  return result;
}

template <class T>
inline T load(const uint8_t* address) {
  T value;  // memcpy: an address need not be a multiple of the size
  __builtin_memcpy(&value, address, sizeof(T));
  return value;
}

template <class T>
inline void put(uint8_t* address, T value) {
  __builtin_memcpy(address, &value, sizeof(T));
}

template <class T>
inline T least(T a, T b) {
  return b < a ? b : a;
}

template <class T>
inline T most(T a, T b) {
  return a < b ? b : a;
}

// 1.5 * 2^52: adding it leaves no fractional bits, so the sum is rounded to a whole number,
// half to even, whose low bits are those of the integer. Exact below 2^51.
constexpr double WHOLE = 6755399441055744.0;

inline double round_even(double x) { return (x + WHOLE) - WHOLE; }

inline double floor_of(double x) {
#if defined(VOXPIPE_FLOOR)
  return __builtin_floor(x);
#else
  const double near = round_even(x);  // a call of floor() would not be vectorised
  return near - (near > x ? 1.0 : 0.0);
#endif
}

inline int64_t whole_to_int(double x) { return bits_of<int64_t>(x + WHOLE) - bits_of<int64_t>(WHOLE); }

// Of one number, float and uint32_t, or of a vector of them.
template <class F, class W>
VOXPIPE_INLINE F half_to_float(W half) {
  // Exponent and fraction go to where float has them; the product corrects the bias, and makes
  // subnormal halves normal.
  const W rest = (half & 0x7fffu) << 13;
  const W finite = bits_of<W>(bits_of<F>(rest) * 0x1p112f);
  const W magnitude = rest >= 0x0f800000u ? rest | 0x7f800000u : finite;  // infinity and NaN
  return bits_of<F>(magnitude | (half & 0x8000u) << 16);
}

VOXPIPE_INLINE Half float_to_half(float f) {
  const uint32_t bits = bits_of<uint32_t>(f), rest = bits & 0x7fffffffu;
  // Below 2^-14: adding 0.5 shifts the fraction to its place, and the sum is rounded.
  const uint32_t small = bits_of<uint32_t>(bits_of<float>(rest) + 0.5f) - bits_of<uint32_t>(0.5f);
  const uint32_t normal = (rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13;
  const uint32_t special = rest > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const uint32_t finite = rest < 0x38800000u ? small : normal;
  return Half{static_cast<uint16_t>(((bits >> 16) & 0x8000u) | (rest >= 0x47800000u ? special : finite))};
}

inline float to_odd(double d) {
  // Rounding twice is right if the first rounding marks whatever it lost in the last bit.
  const float f = static_cast<float>(d);
  const double back = static_cast<double>(f);
  uint32_t bits = bits_of<uint32_t>(f);
  if (back == d || f != f || __builtin_isinf(f) || (bits & 1u)) return f;
  const bool beyond = (back > d) == (f > 0);  // |f| > |d|
  return bits_of<float>(f == 0 ? (d < 0 ? 0x80000001u : 1u) : (beyond ? bits - 1 : bits + 1));
}

inline float to_odd(float f) { return f; }

VOXPIPE_INLINE Brain float_to_brain(float f) {
  const uint32_t bits = bits_of<uint32_t>(f);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return Brain{static_cast<uint16_t>(f != f ? (bits >> 16) | 0x40u : rounded)};
}

// A stored element as the number that it stands for, float or double.
template <class S, class W>
VOXPIPE_INLINE W load_value(const uint8_t* address) {
  const S stored = load<S>(address);
  if constexpr (IS_SAME<S, Half>) return static_cast<W>(half_to_float<float, uint32_t>(stored.bits));
  else return static_cast<W>(stored);
}

template <class D> constexpr bool IS_SIGNED = static_cast<D>(-1) < static_cast<D>(0);
template <class D> constexpr D HIGHEST = static_cast<D>(~uint64_t{0} >> (64 - 8 * sizeof(D) + IS_SIGNED<D>));
template <class D> constexpr D LOWEST = static_cast<D>(IS_SIGNED<D> ? -HIGHEST<D> - 1 : 0);

template <class D>
VOXPIPE_INLINE D small_integer(float value) {
  constexpr float LOW = LOWEST<D>, HIGH = HIGHEST<D>;
  const float real = most(LOW, least(HIGH, value == value ? value : 0.0f));
  // 1.5 * 2^23 rounds as WHOLE does; 16 bits are far below 2^22.
  return static_cast<D>(bits_of<int32_t>(real + 12582912.0f) - bits_of<int32_t>(12582912.0f));
}

template <class D>
inline D large_integer(double value) {
  // The type's ends; of 64 bits the upper one is the double above it.
  constexpr double LOW = static_cast<double>(LOWEST<D>), HIGH = static_cast<double>(HIGHEST<D>);
  const double real = value == value ? value : 0.0;
  if (real <= LOW) return LOWEST<D>;
  if (real >= HIGH) return HIGHEST<D>;
  return static_cast<D>(real > -0x1p51 && real < 0x1p51 ? round_even(real) : real);
}

// A working value, float or double, as an output element.
template <class D, class W>
VOXPIPE_INLINE D result_of(W value) {
  if constexpr (IS_SAME<D, Half>) return float_to_half(to_odd(value));
  // By way of float32, which is what everybody else has.
  else if constexpr (IS_SAME<D, Brain>) return float_to_brain(static_cast<float>(value));
  else if constexpr (IS_REAL<D>) return static_cast<D>(value);
  else if constexpr (sizeof(D) <= 2) return small_integer<D>(static_cast<float>(value));
  else return large_integer<D>(static_cast<double>(value));
}

// A C++ type as an argument: act(tag) is compiled for each, and ``typename decltype(tag)::type`` is it.
template <class T> struct Tag { typedef T type; };
#define VOXPIPE_TYPE(tag) typename decltype(tag)::type

// The answer of act(tag) of the type that a code stands for, one that can be worked with.
template <class Act>
VOXPIPE_INLINE auto with_stored(int64_t type, const Act& act) {
  switch (type) {
    case VOXPIPE_U8: return act(Tag<uint8_t>{});
    case VOXPIPE_I8: return act(Tag<int8_t>{});
    case VOXPIPE_U16: return act(Tag<uint16_t>{});
    case VOXPIPE_I16: return act(Tag<int16_t>{});
    case VOXPIPE_U32: return act(Tag<uint32_t>{});
    case VOXPIPE_I32: return act(Tag<int32_t>{});
    case VOXPIPE_F16: return act(Tag<Half>{});
    case VOXPIPE_F32: return act(Tag<float>{});
    default: return act(Tag<double>{});
  }
}

// The same of every type of an output.
template <class Act>
VOXPIPE_INLINE auto with_type(int64_t type, const Act& act) {
  switch (type) {
    case VOXPIPE_U64: return act(Tag<uint64_t>{});
    case VOXPIPE_I64: return act(Tag<int64_t>{});
    case VOXPIPE_BF16: return act(Tag<Brain>{});
    default: return with_stored(type, act);
  }
}

// Elements that are moved as they are, by their size.
template <class Act>
VOXPIPE_INLINE auto with_size(int64_t size, const Act& act) {
  switch (size) {
    case 1: return act(Tag<uint8_t>{});
    case 2: return act(Tag<uint16_t>{});
    case 4: return act(Tag<uint32_t>{});
    default: return act(Tag<uint64_t>{});
  }
}

inline int64_t size_of_type(int64_t type) {
  return with_type(type, [](auto t) { return static_cast<int64_t>(sizeof(VOXPIPE_TYPE(t))); });
}

}  // namespace VOXPIPE_PATH_NAME
