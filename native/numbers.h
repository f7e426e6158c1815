// From one number type to another: round half to even, saturate, NaN is 0, never truncate.
//
// Included once per path, inside its namespace. Nothing from the C++ library is used here or in
// any other header of the kernel: an inline function compiled for AVX-512 must not be the one
// that the linker picks for everybody.
#pragma once

#include "processor.h"

namespace VOXPIPE_PATH_NAME {

typedef uint16_t Half;   // IEEE binary16
struct Brain { uint16_t bits; };  // bfloat16

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
#if VOXPIPE_HAS_FLOOR
  return __builtin_floor(x);
#else
  const double near = round_even(x);  // a call of floor() would not be vectorised
  return near - (near > x ? 1.0 : 0.0);
#endif
}

inline int64_t whole_to_int(double x) { return bits_of<int64_t>(x + WHOLE) - bits_of<int64_t>(WHOLE); }

inline float half_to_float(Half h) {
  // Exponent and fraction go to where float has them; the product corrects the bias, and makes
  // subnormal halves normal.
  const uint32_t rest = static_cast<uint32_t>(h & 0x7fff) << 13;
  const uint32_t finite = bits_of<uint32_t>(bits_of<float>(rest) * 0x1p112f);
  const uint32_t special = rest | 0x7f800000u;  // infinity and NaN
  const uint32_t magnitude = rest >= 0x0f800000u ? special : finite;
  return bits_of<float>(magnitude | (static_cast<uint32_t>(h & 0x8000) << 16));
}

inline Half float_to_half(float f) {
  const uint32_t bits = bits_of<uint32_t>(f);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t rest = bits & 0x7fffffffu;
  // Below 2^-14: adding 0.5 shifts the fraction to its place, and the sum is rounded.
  const uint32_t small = bits_of<uint32_t>(bits_of<float>(rest) + 0.5f) - bits_of<uint32_t>(0.5f);
  const uint32_t odd = (rest >> 13) & 1u;
  const uint32_t normal = (rest - 0x38000000u + 0xfffu + odd) >> 13;
  const uint32_t special = rest > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const uint32_t finite = rest < 0x38800000u ? small : normal;
  return static_cast<Half>(sign | (rest >= 0x47800000u ? special : finite));
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

inline uint16_t float_to_brain(float f) {
  const uint32_t bits = bits_of<uint32_t>(f);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>(f != f ? (bits >> 16) | 0x40u : rounded);
}

// The stored type as the number that it stands for.
template <class S> struct Stored {
  template <class W> static inline W value(S s) { return static_cast<W>(s); }
};
struct HalfTag {};
template <> struct Stored<HalfTag> {
  template <class W> static inline W value(Half h) { return static_cast<W>(half_to_float(h)); }
};
template <class S> struct Memory { typedef S type; };
template <> struct Memory<HalfTag> { typedef Half type; };

// Stored types that have infinity and NaN.
template <class S> constexpr bool HAS_NAN = false;
template <> constexpr bool HAS_NAN<HalfTag> = true;
template <> constexpr bool HAS_NAN<float> = true;
template <> constexpr bool HAS_NAN<double> = true;

template <class S, class W>
inline W load_value(const uint8_t* address) {
  return Stored<S>::template value<W>(load<typename Memory<S>::type>(address));
}

// A working value, float or double, as an output element.
template <class D> constexpr bool IS_SIGNED = static_cast<D>(-1) < static_cast<D>(0);

template <class D, class W>
inline D small_integer(W value) {
  constexpr int BITS = 8 * sizeof(D);
  constexpr float LOW = IS_SIGNED<D> ? -(1 << (BITS - 1)) : 0;
  constexpr float HIGH = IS_SIGNED<D> ? (1 << (BITS - 1)) - 1 : (1 << BITS) - 1;
  float real = static_cast<float>(value);
  real = real == real ? real : 0.0f;
  real = most(LOW, least(HIGH, real));
  // 1.5 * 2^23 rounds as WHOLE does; 16 bits are far below 2^22.
  return static_cast<D>(bits_of<int32_t>(real + 12582912.0f) - bits_of<int32_t>(12582912.0f));
}

template <class D, class W>
inline D large_integer(W value) {
  constexpr int BITS = 8 * sizeof(D);
  constexpr D HIGHEST = static_cast<D>(~uint64_t{0} >> (64 - BITS + (IS_SIGNED<D> ? 1 : 0)));
  constexpr D LOWEST = IS_SIGNED<D> ? static_cast<D>(-HIGHEST - 1) : 0;
  // HIGH is the type's end, or for 64 bits the double above it.
  constexpr double LOW = static_cast<double>(LOWEST), HIGH = static_cast<double>(HIGHEST);
  double real = static_cast<double>(value);
  real = real == real ? real : 0.0;
  if (real <= LOW) return LOWEST;
  if (real >= HIGH) return HIGHEST;
  if (real > -0x1p51 && real < 0x1p51) real = round_even(real);
  if (real <= LOW) return LOWEST;
  return real >= HIGH ? HIGHEST : static_cast<D>(real);
}

template <class D> struct Result {
  template <class W> static inline D of(W value) {
    if constexpr (sizeof(D) <= 2) return small_integer<D>(value);
    else return large_integer<D>(value);
  }
};
template <> struct Result<HalfTag> {
  static inline Half of(float v) { return float_to_half(v); }
  static inline Half of(double v) { return float_to_half(to_odd(v)); }
};
template <> struct Result<Brain> {  // by way of float32, which is what everybody else has
  template <class W> static inline Brain of(W v) {
    return Brain{float_to_brain(static_cast<float>(v))};
  }
};
template <> struct Result<float> {
  template <class W> static inline float of(W v) { return static_cast<float>(v); }
};
template <> struct Result<double> {
  template <class W> static inline double of(W v) { return static_cast<double>(v); }
};

// Always inlined, so that what is chosen by a type is one call away from who asks.
#define VOXPIPE_ALWAYS __attribute__((always_inline))
#define VOXPIPE_INLINE VOXPIPE_ALWAYS inline

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
    case VOXPIPE_F16: return act(Tag<HalfTag>{});
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
  return with_type(type, [](auto t) {
    return static_cast<int64_t>(sizeof(typename Memory<VOXPIPE_TYPE(t)>::type));
  });
}

// Two slots of something worth keeping, by the offset that it was made from.
struct Slots {
  int64_t key[2];
  bool fresh;  // whether the slot of the last call has to be made

  // The slot of ``want``; it may take the place of anything but ``keep``.
  inline int of(int64_t want, int64_t keep) {
    fresh = false;
    if (key[0] == want) return 0;
    if (key[1] == want) return 1;
    fresh = true;
    const int slot = key[0] == keep ? 1 : 0;
    key[slot] = want;
    return slot;
  }
};

constexpr Slots EMPTY_SLOTS = {{INT64_MIN, INT64_MIN}, false};

}  // namespace VOXPIPE_PATH_NAME
