// Linear tiles whose rows run along rows of the source: one blend per axis and voxel, not seven in all.
//
// Blending goes along k, then j, then i, as everywhere. Rows that lie along k are stretched as they
// are copied, and two blends of four of them follow; rows along i are blended first and stretched then.
#pragma once

#include "processor.h"
#include "linear.h"

namespace VOXPIPE_PATH_NAME {

// A vector of the output picks its taps out of two of the source: with more voxels from one to the next
// they lie too far apart.
constexpr int64_t MOST_ZOOM = 2;
constexpr int64_t ZOOM_ROW = MOST_ZOOM * RUN + 2 + 2 * SPARE;

// Where between the source voxels of a row those of the output lie.
struct Stretch {
  bool single;            // on one of them
  bool meets;             // some weight is 0 or 1
  int64_t count;          // source voxels, from the first of the copy
  int32_t from[RUN];      // of each vector, its first source voxel
  int32_t at[RUN];        // and the (lower) tap of each voxel, from there
  float weight[RUN];
};

inline Stretch stretch_of(const Reading& r, int unit, int64_t count) {
  Stretch s;
  s.single = r.single[unit];
  s.meets = false;
  s.count = 0;
  for (int64_t v = 0; v < count; v += LANES) {
    const Words grains = r.at(unit, v);
    const Ints tap = tap_of<true, false>(r, unit, grains) - r.begin[unit];
    s.from[v] = least(tap[0], tap[LANES - 1]);
    s.count = most<int64_t>(s.count, most(tap[0], tap[LANES - 1]) + 2);
    put_vector(s.at + v, tap - s.from[v]);
    put_vector(s.weight + v, fraction_of(weight_of<true>(r, unit, grains)));
    for (int n = 0; n < LANES; n++) s.meets |= s.weight[v + n] == 0 || s.weight[v + n] == 1;
  }
  return s;
}

// A weight of 0 or 1 meets a voxel, which keeps what it is beside infinity; others need no such care.
VOXPIPE_INLINE Floats blend_of(bool keeps, Floats lower, Floats upper, Floats weight) {
  return keeps ? blend_kept(lower, upper, weight) : blend(lower, upper, weight);
}

// Behind ``row`` there is room for two vectors to be read.
template <class Done>
VOXPIPE_INLINE void stretch(const Stretch& s, bool keeps, const float* row, int64_t count,
                            const Done& done) {
  for (int64_t v = 0; v < count; v += LANES) {
    const float* from = row + s.from[v];
    const Ints at = vector_at<Ints>(s.at + v);
    const Floats lower = picked(from, at);
    done(v, s.single ? lower
                     : blend_of(keeps && s.meets, lower, picked(from + 1, at),
                                vector_at<Floats>(s.weight + v)));
  }
}

// The copy of a box in float32; rows along k are stretched to ``width`` voxels.
template <class S>
void copy_numbers(const Geometry& g, const NearBox& near, const Stretch& along, int64_t width,
                 const uint8_t* source, uint8_t* to) {
  constexpr int64_t SIZE = sizeof(S);
  const int64_t step = g.axis[near.unit].step, count = near.count(near.unit);
  const int64_t rows = near.count(near.rows);
  const auto row_at = [&](int64_t p, int64_t r) {
    return reinterpret_cast<float*>(to + p * near.step[near.planes()] + r * near.step[near.rows]);
  };
  each_plane(g, SIZE, near, source, [&](int64_t p, const uint8_t* from, int64_t ahead) {
    for (int64_t r = 0; r < rows; r++, from += g.axis[near.rows].step) {
      float* out = row_at(p, r);
      const uint8_t* row = step < 0 ? from + (count - 1) * SIZE : from;
      if (ahead) fetch_row(from + ahead, count * SIZE);
      for (int64_t v = 0; v < count && count < LANES; v++)
        out[v] = load_value<S, float>(row + v * step);
      for (int64_t n = 0; n < count && count >= LANES; n += LANES) {
        const int64_t v = least(n, count - LANES);  // the last ones lie over those before
        put_vector(out + v, floats_along<S>(row, step, v));
      }
    }
    // A plane at a time: what has just been stored is not there yet for vectors across two of it.
    for (int64_t r = 0; r < rows && near.unit == 2; r++) {
      alignas(64) float values[RUN];
      stretch(along, HAS_NAN<S>, row_at(p, r), width,
              [&](int64_t v, Floats value) { put_vector(values + v, value); });
      memcpy(row_at(p, r), values, sizeof(float) * static_cast<size_t>(width));
    }
  });
}

// A row out of four of the copy, which differ on two axes. ``done(v, values)`` takes what comes out.
template <int UNIT, class Done>
VOXPIPE_INLINE void zoom_row(const Reading& r, const Stretch& s, int64_t count, const Done& done) {
  constexpr int P = UNIT == 0 ? 1 : 0, Q = UNIT == 0 ? 2 : 1;
  constexpr int OUTER[2] = {P, Q};
  Floats weight[3];
  bool keeps = false;
  const uint8_t* base = r.base + r.begin[UNIT] * r.step[UNIT];
  for (int n = 0; n < 2; n++) {
    const int a = OUTER[n];
    const Words at = Words{} + (r.along[a][0] + r.start[a]), part = weight_of<true>(r, a, at);
    base += tap_of<true, false>(r, a, at)[0] * r.step[a];
    weight[a] = fraction_of(part);
    keeps |= r.keeps && (part[0] == 0 || part[0] == 1u << GRAIN_BITS);
  }
  const bool single[3] = {r.single[0], r.single[1], r.single[2]};
  const int64_t p = single[P] ? 0 : r.step[P], q = single[Q] ? 0 : r.step[Q];
  const auto mix = [&](int a, Floats lower, Floats upper) VOXPIPE_ALWAYS {
    return single[a] ? lower : blend_of(keeps, lower, upper, weight[a]);
  };
  const auto blended = [&](const uint8_t* at) VOXPIPE_ALWAYS {
    const Floats lower = mix(Q, load<Floats>(at), load<Floats>(at + q));
    return mix(P, lower, mix(Q, load<Floats>(at + p), load<Floats>(at + p + q)));
  };
  if (UNIT == 2)
    for (int64_t v = 0; v < count; v += LANES) done(v, blended(base + 4 * v));
  if (UNIT == 2) return;
  float row[ZOOM_ROW];
  for (int64_t v = 0; v < s.count; v += LANES) put_vector(row + v, blended(base + 4 * v));
  stretch(s, r.keeps, row, count, done);
}

}  // namespace VOXPIPE_PATH_NAME
