// Rows of a tile, blended along axis 2, then 1, then 0, whatever the order in memory, so that the
// storage of a volume never shows in the result.
#pragma once

#include "taps.h"
#include "turn.h"

namespace VOXPIPE_PATH_NAME {

template <class T>
VOXPIPE_INLINE T blend(T lower, T upper, T weight) {
  return (upper - lower) * weight + lower;  // a constant stays the very same constant
}

// Infinity and NaN beside a voxel that is met exactly: a tap of weight 0 says nothing, where 0
// times infinity would make NaN of the voxel. Integers have neither.
template <class T>
VOXPIPE_INLINE T blend_kept(T lower, T upper, T weight) {
  const T value = blend(lower, upper, weight), nothing = {}, all = nothing + 1;
  const T met = weight == nothing ? lower : (weight == all ? upper : value);
  return value == value ? value : met;
}

template <class V>
inline bool has_nan(V values) {
  if constexpr (sizeof(V) == sizeof(Floats) && sizeof(values[0]) == 4)
    return marked_lanes(values != values) != 0;
  bool found = false;
  for (size_t n = 0; n < sizeof(V) / sizeof(values[0]); n++) found |= values[n] != values[n];
  return found;
}

// The copy for linear maps: float32, each voxel beside the next one on another axis, so that four of
// its eight taps are 16 bytes in a row, and two loads bring all of them.
struct Pair { float of[2]; };
constexpr int64_t PAIR = sizeof(Pair);

constexpr int partner_of(int unit) { return unit == 1 ? 0 : 1; }

// By way of a copy of each plane as it is stored, behind the pairs.
template <class S>
void copy_pairs(const Geometry& g, const NearBox& near, const Slant& slant, const uint8_t* source,
                uint8_t* to) {
  constexpr int64_t SIZE = sizeof(S);
  const int64_t count = near.count(near.unit), step = g.axis[near.unit].step;
  const int64_t rows = near.count(near.rows), stride = near.step[near.rows] / 2;
  uint8_t* stored = to + near.bytes;
  const uint8_t* start = step < 0 ? stored + (count - 1) * SIZE : stored;
  RowEnds ends;
  each_plane(g, SIZE, near, source, [&](int64_t p, const uint8_t* from, int64_t ahead) {
    copy_plane(from, g.axis[near.rows].step, ahead, rows, count * SIZE, stored, stride);
    find_ends(slant, near, p, ends);
    for (int64_t r = 0; r < rows; r++) {
      const uint8_t* row = start + r * stride;
      const uint8_t* other = r + 1 < rows ? row + stride : row;
      uint8_t* at = to + p * near.step[near.planes()] + r * near.step[near.rows];
      for (int64_t v = ends.first[r]; v <= ends.last[r] && count < LANES; v++) {
        put<float>(at + v * PAIR, load_value<S, float>(row + v * step));
        put<float>(at + v * PAIR + 4, load_value<S, float>(other + v * step));
      }
      for (int64_t n = ends.first[r]; n <= ends.last[r] && count >= LANES; n += LANES) {
        const int64_t v = least(n, count - LANES);  // the last ones lie over those before
        const Floats a = floats_along<S>(row, step, v), b = floats_along<S>(other, step, v);
        put<Floats>(at + v * PAIR, interleaved<0>(a, b, ALL_LANES));
        put<Floats>(at + v * PAIR + 4 * LANES, interleaved<1>(a, b, ALL_LANES));
      }
    }
  });
}

// Four numbers at every fourth offset, of as many as a vector holds. As these instructions: of vectors
// that are put together GCC 12 makes others, and maps take up to 1.08 times as long.
VOXPIPE_INLINE Floats fours_of(const uint8_t* base, const int32_t* offset) {
#define F(v) load<Four>(base + offset[v])
#if LANES == 4
  return F(0);
#else
  const __m256 a = _mm256_insertf128_ps(_mm256_castps128_ps256(F(0)), F(4), 1);
#if LANES == 8
  return a;
#else
  const __m256 b = _mm256_insertf128_ps(_mm256_castps128_ps256(F(8)), F(12), 1);
  return _mm512_maskz_insertf32x8(0xffff, _mm512_castps256_ps512(a), b, 1);
#endif
#endif
#undef F
}

template <bool KEEPS, class V>
VOXPIPE_INLINE V blend_all(const V* taps, const V* weight, const bool* single) {
  V tap[8];
  for (int n = 0; n < 8; n++) tap[n] = taps[n];
#pragma GCC unroll 3
  for (int a = 2; a >= 0; a--) {
    if (single && single[a]) continue;
#pragma GCC unroll 4
    for (int n = 0; n < 8; n += 8 >> a) {
      const V lower = tap[n], upper = tap[n + (4 >> a)];
      tap[n] = KEEPS ? blend_kept(lower, upper, weight[a]) : blend(lower, upper, weight[a]);
    }
  }
  return tap[0];
}

// Out of eight taps, 4 i + 2 j + k, which may be infinite or no numbers if ``keeps``; along an axis that
// is ``single`` the lower ones.
template <class V>
VOXPIPE_INLINE V blend_eight(const V* taps, const V* weight, const bool* single, bool keeps) {
  const V value = blend_all<false>(taps, weight, single);
  return keeps && has_nan(value) ? blend_all<true>(taps, weight, single) : value;
}

// The eight taps of a vector out of pairs, whose planes are ``step`` bytes apart. Of each voxel four
// lie side by side.
template <int UNIT>
VOXPIPE_INLINE void take_pairs(const uint8_t* base, int64_t step, const int32_t* offsets, Floats* tap) {
  constexpr int PARTNER = partner_of(UNIT), THIRD = 3 - UNIT - PARTNER;
  Floats four[2][4];
  for (int n = 0; n < 4; n++) {
    four[0][n] = fours_of(base, offsets + n);
    four[1][n] = fours_of(base + step, offsets + n);
  }
  for (int third = 0; third < 2; third++) {
    turn_fours<LANES>(four[third]);
    for (int n = 0; n < 4; n++)
      tap[n / 2 * (4 >> UNIT) + n % 2 * (4 >> PARTNER) + third * (4 >> THIRD)] = four[third][n];
  }
}

// Two neighbours of at most 32 bits at each of LANES offsets, in the order of memory.
template <class S>
VOXPIPE_INLINE void gather_two(const uint8_t* base, Ints offsets, Floats& first, Floats& second) {
  constexpr int BITS = 8 * sizeof(S), REST = 32 - BITS;
  const auto number_of = [](Words bits) VOXPIPE_ALWAYS {
    if constexpr (IS_SAME<S, float>) return (Floats)bits;
    else if constexpr (IS_SAME<S, Half>) return half_to_float<Floats>(bits & 0xffffu);
    else if constexpr (IS_SIGNED<S>) return floats_of((Ints)(bits << REST) >> REST);
    else if constexpr (BITS < 32) return floats_of((Ints)(bits << REST >> REST));
    else return floats_of(bits);
  };
  Words one, other;
  if constexpr (BITS == 32) gather_pairs(base, offsets, one, other);
  else other = (one = gathered(base, offsets)) >> BITS;
  first = number_of(one);
  second = number_of(other);
}

// The eight taps of a vector out of voxels as they are stored.
template <class S, int UNIT>
VOXPIPE_INLINE void take_stored(const uint8_t* base, const int64_t* step, Ints offsets, Floats* tap) {
  constexpr int A = UNIT == 0 ? 1 : 0, B = UNIT == 2 ? 1 : 2;
  const bool backwards = step[UNIT] < 0;
  if (backwards) base += step[UNIT];
#pragma GCC unroll 4
  for (int n = 0; n < 4; n++) {
    const int lower = n / 2 * (4 >> A) + n % 2 * (4 >> B), upper = lower + (4 >> UNIT);
    Floats first, second;
    gather_two<S>(base + n / 2 * step[A] + n % 2 * step[B], offsets, first, second);
    tap[lower] = backwards ? second : first;
    tap[upper] = backwards ? first : second;
  }
}

// In float32, out of pairs, or of voxels as they are stored, ``S``: less to write, where gathering is as
// fast as loading. ``done(v, values)`` takes what comes out, vector by vector.
template <class S, int UNIT, bool EDGE, class Done>
VOXPIPE_INLINE void linear_row(const Reading& r, int64_t count, const Done& done) {
  constexpr bool PAIRS = IS_SAME<S, Pair>;
  int64_t step[3];  // to the upper taps
  for (int a = 0; a < 3; a++) step[a] = EDGE && r.single[a] ? 0 : r.step[a];
  // All offsets first, by way of memory: loads begin early, and none waits for a vector to be split.
  alignas(64) int32_t offsets[NEAR_RUN];
  for (int64_t v = 0; v < count && PAIRS; v += LANES)
    put_vector(offsets + v, offsets_of<EDGE, false>(r, v));
  for (int64_t v = 0; v < count; v += LANES) {
    Floats weight[3], tap[8];
    for (int a = 0; a < 3; a++) weight[a] = fraction_of(weight_of<EDGE>(r, a, r.at(a, v)));
    if constexpr (PAIRS) take_pairs<UNIT>(r.base, step[3 - UNIT - partner_of(UNIT)], offsets + v, tap);
    else take_stored<S, UNIT>(r.base, step, offsets_of<EDGE, false>(r, v), tap);
    bool keeps = r.keeps;
    if constexpr (!PAIRS) keeps = HAS_NAN<S>;
    done(v, blend_eight(tap, weight, EDGE ? r.single : nullptr, keeps));
  }
}

template <class S, class V, int... I>
VOXPIPE_INLINE V values_at(const uint8_t* const* place, int64_t away, Numbers<I...>) {
  return V{load_value<S, decltype(V{}[0] + 0)>(place[I] + away)...};
}

// Tap by tap: in float64, where either end holds more than float32 can, and where the voxels that a
// tile meets are too many to be copied.
template <class S, class W>
void linear_apart(const Reading& r, int64_t count, W* values) {
  constexpr int SOME = LANES / 2;
  typedef W V __attribute__((vector_size(SOME * sizeof(W))));
  const uint8_t* place[RUN];
  int32_t grains[3][RUN];
  int64_t away[8] = {};
  places_of<false>(r, count, place);
  for (int a = 0; a < 3; a++) {
    for (int n = 0; n < 8; n++) away[n] += n >> (2 - a) & 1 && !r.single[a] ? r.step[a] : 0;
    for (int64_t v = 0; v < count; v += LANES)
      put_vector(grains[a] + v, weight_of<true>(r, a, r.at(a, v)));
  }
  for (int64_t v = 0; v < count; v += SOME) {
    V weight[3], tap[8];
    for (int a = 0; a < 3; a++)
      weight[a] = __builtin_convertvector(vector_at<HalfInts>(grains[a] + v), V) *
                  static_cast<W>(GRAIN);
#pragma GCC unroll 8
    for (int n = 0; n < 8; n++)
      tap[n] = values_at<S, V>(place + v, away[n], typename NumbersBelow<SOME>::type{});
    put_vector(values + v, blend_eight(tap, weight, r.single, HAS_NAN<S>));
  }
}

}  // namespace VOXPIPE_PATH_NAME
