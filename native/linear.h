// Rows of a tile, blended along axis 2, then 1, then 0, whatever the order in memory, so that the
// storage of a volume never shows in the result.
#pragma once

#include "processor.h"
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

inline bool has_nan(Floats values) { return marked_lanes(values != values) != 0; }

// The copy for linear maps: float32, each voxel beside the next one on another axis, so that four of
// its eight taps are 16 bytes in a row, and two loads bring all of them.
constexpr int64_t PAIR = 2 * sizeof(float);

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

// Four numbers of LANES voxels each.
struct FourOf {
  Floats of[4];
};

VOXPIPE_INLINE Floats fours_of(const uint8_t* base, const int32_t* offset, int n) {
#define F(v) load<Four>(base + offset[v])
#if LANES == 4
  return F(n);
#else
  const __m256 a = _mm256_insertf128_ps(_mm256_castps128_ps256(F(n)), F(n + 4), 1);
#if LANES == 8
  return a;
#else
  const __m256 b = _mm256_insertf128_ps(_mm256_castps128_ps256(F(n + 8)), F(n + 12), 1);
  return _mm512_maskz_insertf32x8(0xffff, _mm512_castps256_ps512(a), b, 1);
#endif
#endif
#undef F
}

VOXPIPE_INLINE FourOf turned_fours(const Floats* row) {
  FourOf four = {row[0], row[1], row[2], row[3]};
  turn_fours<LANES>(four.of);
  return four;
}

// Out of eight taps, 4 i + 2 j + k; along an axis that is ``single`` the lower ones.
template <bool KEEPS, class V>
VOXPIPE_INLINE V blend_eight(V* tap, const V* weight, const bool* single) {
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

template <int UNIT, bool EDGE, bool KEEPS>
VOXPIPE_INLINE Floats blend_fours(const Reading& r, const FourOf& lower, const FourOf& upper,
                                  const Floats* weight) {
  constexpr int PARTNER = partner_of(UNIT), THIRD = 3 - UNIT - PARTNER;
  Floats tap[8];
  for (int n = 0; n < 4; n++) {
    const int at = n / 2 * (4 >> UNIT) + n % 2 * (4 >> PARTNER);
    tap[at] = lower.of[n];
    tap[at + (4 >> THIRD)] = upper.of[n];
  }
  return blend_eight<KEEPS>(tap, weight, EDGE ? r.single : nullptr);
}

// Out of pairs, in float32. ``done(v, values)`` takes what comes out, vector by vector.
template <int UNIT, bool EDGE, class Done>
VOXPIPE_INLINE void linear_row(const Reading& r, int64_t count, const Done& done) {
  constexpr int THIRD = 3 - UNIT - partner_of(UNIT);
  const uint8_t* above = r.base + (EDGE && r.single[THIRD] ? 0 : r.step[THIRD]);
  // All offsets first, by way of memory: loads begin early, and none waits for a vector to be split.
  alignas(64) int32_t offsets[NEAR_RUN];
  for (int64_t v = 0; v < count; v += LANES) put_vector(offsets + v, offsets_of<EDGE, false>(r, v));
  for (int64_t v = 0; v < count; v += LANES) {
    Floats weight[3];
    for (int a = 0; a < 3; a++) weight[a] = fraction_of(weight_of<EDGE>(r, a, r.at(a, v)));
    Floats rows[2][4];
    for (int n = 0; n < 4; n++) {
      rows[0][n] = fours_of(r.base, offsets + v, n);
      rows[1][n] = fours_of(above, offsets + v, n);
    }
    const FourOf lower = turned_fours(rows[0]), upper = turned_fours(rows[1]);
    Floats value = blend_fours<UNIT, EDGE, false>(r, lower, upper, weight);
    if (r.keeps && has_nan(value)) value = blend_fours<UNIT, EDGE, true>(r, lower, upper, weight);
    done(v, value);
  }
}

// Two neighbours of at most 32 bits at each of LANES offsets, in the order of memory.
template <class S>
VOXPIPE_INLINE void gather_two(const uint8_t* base, Ints offsets, Floats& first, Floats& second) {
  constexpr int BITS = 8 * sizeof(S), REST = 32 - BITS;
  if constexpr (BITS == 32) {
    gather_pairs(base, offsets, first, second);
    if constexpr (IS_SAME<S, int32_t>) {
      first = floats_of((Ints)first);
      second = floats_of((Ints)second);
    } else if constexpr (IS_SAME<S, uint32_t>) {
      first = floats_of((Words)first);
      second = floats_of((Words)second);
    }
    return;
  }
  const Words both = gathered(base, offsets), next = both >> (BITS % 32);
  if constexpr (IS_SAME<S, Half>) {
    first = half_to_float<Floats>(both & 0xffffu);
    second = half_to_float<Floats>(next);
  } else if constexpr (IS_SIGNED<S>) {
    first = floats_of((Ints)(both << REST) >> REST);
    second = floats_of((Ints)(next << REST) >> REST);
  } else {
    first = floats_of((Ints)(both << REST >> REST));
    second = floats_of((Ints)(next << REST >> REST));
  }
}

template <class S, int UNIT, bool EDGE, bool KEEPS>
VOXPIPE_INLINE Floats blend_gathered(const Reading& r, Ints offsets, const Floats* weight) {
  constexpr int A = UNIT == 0 ? 1 : 0, B = UNIT == 2 ? 1 : 2;
  const bool backwards = r.step[UNIT] < 0 && !(EDGE && r.single[UNIT]);
  const uint8_t* base = backwards ? r.base + r.step[UNIT] : r.base;
  const int64_t a = EDGE && r.single[A] ? 0 : r.step[A], b = EDGE && r.single[B] ? 0 : r.step[B];
  Floats tap[8];
#pragma GCC unroll 4
  for (int n = 0; n < 4; n++) {
    const int lower = n / 2 * (4 >> A) + n % 2 * (4 >> B), upper = lower + (4 >> UNIT);
    Floats first, second;
    gather_two<S>(base + n / 2 * a + n % 2 * b, offsets, first, second);
    tap[lower] = backwards ? second : first;
    tap[upper] = backwards ? first : second;
  }
  return blend_eight<KEEPS>(tap, weight, EDGE ? r.single : nullptr);
}

// Out of a copy as it is stored: less to write than pairs, where gathering is as fast as loading.
template <class S, int UNIT, bool EDGE, class Done>
VOXPIPE_INLINE void gathered_row(const Reading& r, int64_t count, const Done& done) {
  for (int64_t v = 0; v < count; v += LANES) {
    const Ints offsets = offsets_of<EDGE, false>(r, v);
    Floats weight[3];
    for (int a = 0; a < 3; a++) weight[a] = fraction_of(weight_of<EDGE>(r, a, r.at(a, v)));
    Floats value = blend_gathered<S, UNIT, EDGE, false>(r, offsets, weight);
    if (HAS_NAN<S> && has_nan(value)) value = blend_gathered<S, UNIT, EDGE, true>(r, offsets, weight);
    done(v, value);
  }
}

// Some voxels from their (lower) taps, ``away`` bytes from which the others lie.
template <class S, class V, bool KEEPS, int... I>
VOXPIPE_INLINE V blend_taps(const Reading& r, const uint8_t* const* place, const int64_t* away,
                            const V* weight, Numbers<I...>) {
  typedef decltype(V{}[0] + 0) W;
  V tap[8];
#pragma GCC unroll 8
  for (int n = 0; n < 8; n++) tap[n] = V{load_value<S, W>(place[I] + away[n])...};
  return blend_eight<KEEPS>(tap, weight, r.single);
}

// Tap by tap: in float64, where either end holds more than float32 can, and where the voxels that a
// tile meets are too many to be copied.
template <class S, class W>
void linear_apart(const Reading& r, int64_t count, W* values) {
  constexpr int SOME = LANES / 2;
  constexpr auto LANES_OF_SOME = typename NumbersBelow<SOME>::type{};
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
    V weight[3];
    for (int a = 0; a < 3; a++)
      weight[a] = __builtin_convertvector(vector_at<HalfInts>(grains[a] + v), V) *
                  static_cast<W>(GRAIN);
    V value = blend_taps<S, V, false>(r, place + v, away, weight, LANES_OF_SOME);
    bool found = false;
    for (int n = 0; n < SOME && HAS_NAN<S>; n++) found |= value[n] != value[n];
    if (found) value = blend_taps<S, V, true>(r, place + v, away, weight, LANES_OF_SOME);
    put_vector(values + v, value);
  }
}

}  // namespace VOXPIPE_PATH_NAME
