// Blend the taps of a run: along axis 2, then 1, then 0, whatever the order in memory, so that
// the storage of a volume never shows in the result.
#pragma once

#include "processor.h"
#include "taps.h"

namespace VOXPIPE_PATH_NAME {

inline Floats blend(Floats lower, Floats upper, Floats weight) {
  return (upper - lower) * weight + lower;  // a constant stays the very same constant
}

// Infinity and NaN beside a voxel that is met exactly: a tap of weight 0 says nothing, where 0
// times infinity would make NaN of the voxel. Integers have neither.
inline Floats blend_kept(Floats lower, Floats upper, Floats weight) {
  const Floats value = blend(lower, upper, weight);
  const Floats met = weight == 0.0f ? lower : (weight == 1.0f ? upper : value);
  return value == value ? value : met;
}

template <class W>
inline W blend_kept(W lower, W upper, W weight) {
  const W value = (upper - lower) * weight + lower;
  const W met = weight == 0 ? lower : (weight == 1 ? upper : value);
  return value == value ? value : met;
}

// One vector of voxels. UNIT is the axis along which the two taps of a pair are neighbours in memory.
template <class S, int UNIT, bool GATHERS>
__attribute__((always_inline)) inline Floats blend_pairs(const uint8_t* base, const Axis* axis,
                                                         const int32_t* offset, Floats wi,
                                                         Floats wj, Floats wk) {
  constexpr int P = UNIT == 0 ? 1 : 0, Q = UNIT == 2 ? 1 : 2;  // the other two, in order
  const uint8_t* p = base + axis[P].step;
  const uint8_t* q = base + axis[Q].step;
  const uint8_t* pq = p + axis[Q].step;
  const Pair t00 = Fetch<S>::pair(base, offset, GATHERS), t01 = Fetch<S>::pair(q, offset, GATHERS);
  const Pair t10 = Fetch<S>::pair(p, offset, GATHERS), t11 = Fetch<S>::pair(pq, offset, GATHERS);
  Floats i0, i1;  // blended over k and j, at the lower and the upper i
  if (UNIT == 2) {
    i0 = blend(blend(t00.lower, t00.upper, wk), blend(t01.lower, t01.upper, wk), wj);
    i1 = blend(blend(t10.lower, t10.upper, wk), blend(t11.lower, t11.upper, wk), wj);
  } else if (UNIT == 1) {  // P = i, Q = k
    i0 = blend(blend(t00.lower, t01.lower, wk), blend(t00.upper, t01.upper, wk), wj);
    i1 = blend(blend(t10.lower, t11.lower, wk), blend(t10.upper, t11.upper, wk), wj);
  } else {  // P = j, Q = k
    i0 = blend(blend(t00.lower, t01.lower, wk), blend(t10.lower, t11.lower, wk), wj);
    i1 = blend(blend(t00.upper, t01.upper, wk), blend(t10.upper, t11.upper, wk), wj);
  }
  return blend(i0, i1, wi);
}

template <class S, int UNIT, bool GATHERS>
void linear_pairs(const uint8_t* base, const Axis* axis, const Taps<float>& taps, int64_t count,
                  float* values) {
  for (int64_t v = 0; v < count; v += LANES)
    put_vector(values + v, blend_pairs<S, UNIT, GATHERS>(base, axis, taps.offset + v,
                                                         vector_at<Floats>(taps.weight[0] + v),
                                                         vector_at<Floats>(taps.weight[1] + v),
                                                         vector_at<Floats>(taps.weight[2] + v)));
}

// The voxels from ``v`` on that one vector holds: any strides; an axis that needs one tap only is
// left out.
template <class S, bool KEEPS>
__attribute__((always_inline)) inline void blend_vector(const uint8_t* base, const Axis* axis,
                                                        const Taps<float>& taps, int64_t v,
                                                        float* values) {
  Floats tap[8];
  for (int n = 0; n < 8; n++) {
    bool needed = true;
    int64_t away = 0;
    for (int a = 0; a < 3; a++)
      if (n >> (2 - a) & 1) {
        needed = needed && !axis[a].single;
        away += axis[a].step;
      }
    if (needed) tap[n] = fetch_one<S>(base + away, taps.offset + v);
  }
  for (int a = 2; a >= 0; a--) {
    if (axis[a].single) continue;
    const Floats weight = vector_at<Floats>(taps.weight[a] + v);
    const int up = 4 >> a;
    for (int n = 0; n < 8; n += up * 2) {
      bool needed = true;
      for (int b = 0; b < a; b++) needed = needed && !((n >> (2 - b) & 1) && axis[b].single);
      if (!needed) continue;
      tap[n] = KEEPS ? blend_kept(tap[n], tap[n + up], weight) : blend(tap[n], tap[n + up], weight);
    }
  }
  __builtin_memcpy(values + v, &tap[0], sizeof(Floats));
}

template <class S>
void linear_apart(const uint8_t* base, const Axis* axis, const Taps<float>& taps, int64_t count,
                  float* values) {
  for (int64_t v = 0; v < count; v += LANES) blend_vector<S, false>(base, axis, taps, v, values);
}

// In float64, where either end holds more than float32 can.
template <class S>
void linear_apart(const uint8_t* base, const Axis* axis, const Taps<double>& taps, int64_t count,
                  double* values) {
  const int64_t si = axis[0].single ? 0 : axis[0].step, sj = axis[1].single ? 0 : axis[1].step;
  const int64_t sk = axis[2].single ? 0 : axis[2].step;
  for (int64_t v = 0; v < count; v++) {
    const uint8_t* at = base + taps.offset[v];
    double tap[2][2];
    for (int i = 0; i < 2; i++)
      for (int j = 0; j < 2; j++) {
        const uint8_t* row = at + i * si + j * sj;
        const double lower = load_value<S, double>(row);
        const double upper = load_value<S, double>(row + sk);
        tap[i][j] = sk ? (upper - lower) * taps.weight[2][v] + lower : lower;
      }
    double j[2];
    for (int i = 0; i < 2; i++)
      j[i] = sj ? (tap[i][1] - tap[i][0]) * taps.weight[1][v] + tap[i][0] : tap[i][0];
    values[v] = si ? (j[1] - j[0]) * taps.weight[0][v] + j[0] : j[0];
  }
}

// Where a voxel may be met beside infinity or NaN, the loops above are gone through once more:
// what came out as NaN is looked at again, and only where a weight is 0 or 1.
template <class S> struct HasNan { static constexpr bool value = false; };
template <> struct HasNan<HalfTag> { static constexpr bool value = true; };
template <> struct HasNan<float> { static constexpr bool value = true; };
template <> struct HasNan<double> { static constexpr bool value = true; };

template <class W>
inline bool any_nan(const W* values, int64_t count) {
  int found = 0;
  for (int64_t v = 0; v < count; v++) found |= values[v] != values[v];
  return found != 0;
}

// Whether one of some voxels is NaN where a weight is 0 or 1.
template <class W>
inline bool may_be_met(const Axis* axis, const Taps<W>& taps, int64_t from, int64_t count,
                       const W* values) {
  int found = 0;
  for (int a = 0; a < 3; a++) {
    const W* weight = taps.weight[a] + from;
    for (int64_t v = 0; v < count && !axis[a].single; v++)
      found |= (values[from + v] != values[from + v]) & ((weight[v] == 0) | (weight[v] == 1));
  }
  return found != 0;
}

// Volumes with NaN for background have many such voxels: whole vectors of them.
template <class S>
inline void mend_met(const uint8_t* base, const Axis* axis, const Taps<float>& taps, int64_t count,
                     float* values) {
  for (int64_t v = 0; v < count; v += LANES)
    if (may_be_met(axis, taps, v, LANES, values))
      blend_vector<S, true>(base, axis, taps, v, values);
}

template <class S>
inline void mend_met(const uint8_t* base, const Axis* axis, const Taps<double>& taps, int64_t count,
                     double* values) {
  for (int64_t v = 0; v < count; v++) {
    if (!may_be_met(axis, taps, v, 1, values)) continue;
    double tap[8];
    for (int n = 0; n < 8; n++) {
      int64_t at = taps.offset[v];
      for (int a = 0; a < 3; a++)
        if (n >> (2 - a) & 1 && !axis[a].single) at += axis[a].step;
      tap[n] = load_value<S, double>(base + at);
    }
    for (int a = 2; a >= 0; a--)
      for (int n = 0; n < 8 && !axis[a].single; n += 8 >> a)
        tap[n] = blend_kept(tap[n], tap[n + (4 >> a)], taps.weight[a][v]);
    values[v] = tap[0];
  }
}

template <class S, class W>
inline void mend_run(const uint8_t* base, const Axis* axis, const Taps<W>& taps, int64_t count,
                     W* values) {
  if (!HasNan<S>::value || !any_nan(values, count)) return;
  if (may_be_met(axis, taps, 0, count, values)) mend_met<S>(base, axis, taps, count, values);
}

template <class S, bool GATHERS>
void linear_narrow(const uint8_t* base, const Geometry& g, const Taps<float>& taps, int64_t count,
                   float* values) {
  const bool full = !g.axis[0].single && !g.axis[1].single && !g.axis[2].single;
  const int64_t size = sizeof(typename Memory<S>::type);
  if (full && g.axis[2].step == size) linear_pairs<S, 2, GATHERS>(base, g.axis, taps, count, values);
  else if (full && g.axis[0].step == size) linear_pairs<S, 0, GATHERS>(base, g.axis, taps, count, values);
  else if (full && g.axis[1].step == size) linear_pairs<S, 1, GATHERS>(base, g.axis, taps, count, values);
  else linear_apart<S>(base, g.axis, taps, count, values);
}

template <class S>
void linear_run(const uint8_t* base, const Geometry& g, const Taps<float>& taps, int64_t count,
                float* values) {
  if (g.gathers) linear_narrow<S, true>(base, g, taps, count, values);
  else linear_narrow<S, false>(base, g, taps, count, values);
}

// Eight bytes are no pair for a register of pairs: float64 has its own way.
template <>
void linear_run<double>(const uint8_t* base, const Geometry& g, const Taps<float>& taps,
                        int64_t count, float* values) {
  linear_apart<double>(base, g.axis, taps, count, values);
}

template <class S>
void linear_run(const uint8_t* base, const Geometry& g, const Taps<double>& taps, int64_t count,
                double* values) {
  linear_apart<S>(base, g.axis, taps, count, values);
}

}  // namespace VOXPIPE_PATH_NAME
