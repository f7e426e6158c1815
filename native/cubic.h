// Cubic convolution (Keys 1981, a = -1/2): four taps per axis, third order, through the samples.
//
// Padding is a rule for taps here, not for coordinates: beyond the volume the last voxel repeats,
// is mirrored, or is zero. A run whose taps are all inside, with neighbours in memory along one
// axis, takes four taps at a time; every other one looks up each tap.
#pragma once

#include "work.h"

namespace VOXPIPE_PATH_NAME {

// Coordinates of a run as numbers.
struct Places {
  double at[3][RUN + SPARE];
};

struct CubicTaps {
  int64_t offset[3][4];  // bytes from voxel (0, 0, 0) at hand, per axis
  double weight[3][4];
  int count[3];  // 4, or 1 where one tap is enough
};

template <class T>
inline void keys_weights(T t, T* weight) {
  const T t2 = t * t, t3 = t2 * t;
  weight[0] = (2 * t2 - t3 - t) / 2;
  weight[1] = (3 * t3 - 5 * t2 + 2) / 2;
  weight[2] = (4 * t2 - 3 * t3 + t) / 2;
  weight[3] = (t3 - t2) / 2;
}

inline void cubic_axis(const Axis& axis, int64_t padding, int a, double c, CubicTaps& taps) {
  if (padding != VOXPIPE_ZEROS && padding != VOXPIPE_REFLECTION)
    c = most(axis.first, least(axis.last, c));
  const double lower = axis.single ? round_even(c) : floor_of(c);
  const int before = axis.single ? 0 : 1;
  taps.count[a] = axis.single ? 1 : 4;
  if (axis.single) taps.weight[a][0] = 1;
  else keys_weights(c - lower, taps.weight[a]);
  for (int n = 0; n < taps.count[a]; n++) {
    double tap = lower + (n - before);
    const bool outside = tap < axis.first || tap > axis.last;
    if (outside && padding == VOXPIPE_ZEROS) taps.weight[a][n] = 0;
    if (outside && padding == VOXPIPE_REFLECTION) tap = fold(tap, axis.first, axis.last);
    tap = most(axis.start, least(axis.end, tap));
    taps.offset[a][n] = static_cast<int64_t>(tap - axis.start) * axis.step;
  }
}

// ``slope`` and ``intercept`` are those of the taps themselves: under padding "zeros" a tap outside is
// the value zero, not the stored number. Elsewhere 1 and 0, and the sum is scaled.
template <class S, class W>
void cubic_apart(const Geometry& g, int64_t padding, double slope, double intercept,
                 const uint8_t* base, const Places& places, int64_t count, W* values) {
  for (int64_t v = 0; v < count; v++) {
    CubicTaps t;
    for (int a = 0; a < 3; a++) cubic_axis(g.axis[a], padding, a, places.at[a][v], t);
    double sum = 0;
    for (int i = 0; i < t.count[0]; i++)
      for (int j = 0; j < t.count[1]; j++)
        for (int k = 0; k < t.count[2]; k++) {
          const double stored =
              load_value<S, double>(base + t.offset[0][i] + t.offset[1][j] + t.offset[2][k]);
          sum += t.weight[0][i] * t.weight[1][j] * t.weight[2][k] * (stored * slope + intercept);
        }
    values[v] = static_cast<W>(sum);
  }
}

// Four neighbours in memory as values. By way of 32 bits: straight from 8 or 16, compilers convert
// one by one.
template <class S>
inline Four four_values(const uint8_t* at) {
  typedef int32_t FourInts __attribute__((vector_size(16)));
  typedef uint32_t FourWords __attribute__((vector_size(16)));
  typedef uint16_t FourMarks __attribute__((vector_size(8)));
  if constexpr (IS_SAME<S, Half>) {
    return half_to_float<Four>(__builtin_convertvector(load<FourMarks>(at), FourWords));
  } else {
    typedef S Stored __attribute__((vector_size(4 * sizeof(S))));
    if constexpr (sizeof(S) > 2) return __builtin_convertvector(load<Stored>(at), Four);
    else return __builtin_convertvector(__builtin_convertvector(load<Stored>(at), FourInts), Four);
  }
}

// The places of a run as the first of its taps, products of the weights on the two outer axes, and
// the weights along ``unit``, the axis of neighbours in memory.
struct CubicRun {
  int unit;
  int64_t offset[RUN + SPARE];
  float outer[16][RUN + SPARE];
  float inner[4][RUN + SPARE];
};

// False where some tap of the run is not at hand, or no axis has neighbours in memory.
inline bool cubic_inside(const Geometry& g, int64_t size, Places& places, int64_t count,
                         CubicRun& run) {
  run.unit = 2;
  while (run.unit >= 0 && g.axis[run.unit].step != size) run.unit--;
  if (run.unit < 0) return false;
  alignas(64) float weight[2][4][RUN + SPARE];
  double offset[RUN + SPARE];
  for (int64_t v = 0; v < count + LANES; v++) offset[v] = 0;
  for (int a = 0, outer = 0; a < 3; a++) {
    const Axis& axis = g.axis[a];
    double* at = places.at[a];
    const double stride = static_cast<double>(axis.step);  // exact, being below 2^51
    double low = at[0], high = low;
    for (int64_t v = 1; v < count; v++) {
      low = least(low, at[v]);
      high = most(high, at[v]);
    }
    if (axis.single || floor_of(low) - 1 < axis.start || floor_of(high) + 2 > axis.end)
      return false;
    for (int64_t v = count; v < count + LANES; v++) at[v] = at[count - 1];
    float(*to)[RUN + SPARE] = a == run.unit ? run.inner : weight[outer++];
    for (int64_t v = 0; v < count + LANES; v += LANES / 2) {
      const Doubles place = vector_at<Doubles>(at + v), lower = floor_of(place);
      put_vector(to[0] + v, __builtin_convertvector(place - lower, HalfFloats));
      put_vector(offset + v, vector_at<Doubles>(offset + v) + (lower - (axis.start + 1)) * stride);
    }
    for (int64_t v = 0; v < count; v += LANES) {
      Floats w[4];
      keys_weights(vector_at<Floats>(to[0] + v), w);
      for (int n = 0; n < 4; n++) put_vector(to[n] + v, w[n]);
    }
  }
  for (int64_t v = 0; v < count; v += LANES / 2)
    put_vector(run.offset + v, whole_to_int(vector_at<Doubles>(offset + v)));
  for (int64_t v = 0; v < count; v += LANES)
    for (int n = 0; n < 16; n++)
      put_vector(run.outer[n] + v,
                 vector_at<Floats>(weight[0][n / 4] + v) * vector_at<Floats>(weight[1][n % 4] + v));
  return true;
}

// Sixteen times four neighbours for a voxel, then four voxels at a time along the last axis.
template <class S>
void cubic_fours(const Geometry& g, const uint8_t* base, const CubicRun& run, int64_t count,
                 float* values) {
  const int p = run.unit == 0 ? 1 : 0, q = 3 - run.unit - p;
  int64_t away[16];
  for (int n = 0; n < 16; n++) away[n] = (n / 4) * g.axis[p].step + (n % 4) * g.axis[q].step;
  Four sums[4] = {};
  for (int64_t v = 0; v < count; v++) {
    const uint8_t* at = base + run.offset[v];
    Four even = {}, odd = {};  // two sums: one would wait for itself
    for (int n = 0; n < 16; n += 2) {
      even += four_values<S>(at + away[n]) * run.outer[n][v];
      odd += four_values<S>(at + away[n + 1]) * run.outer[n + 1][v];
    }
    sums[v % 4] = even + odd;
    if (v % 4 < 3 && v + 1 < count) continue;
    const int64_t first = v - v % 4;
    Four weighted[4] = {sums[0], sums[1], sums[2], sums[3]};
    turn_fours<4>(weighted);
    for (int n = 0; n < 4; n++) weighted[n] *= vector_at<Four>(run.inner[n] + first);
    put_vector(values + first, (weighted[0] + weighted[1]) + (weighted[2] + weighted[3]));
  }
}

// Voxels of one channel at ``places``, side by side.
template <class W>
inline void cubic_part(const Work& w, const uint8_t* base, Places& places, int64_t count,
                       uint8_t* to) {
  const VoxpipeJob& job = *w.job;
  CubicRun run;
  const bool scales_taps = w.zeros && w.f.scaled;
  const bool is_inside = !scales_taps && !w.wide &&
                         cubic_inside(w.g, size_of_type(job.source_type), places, count, run);
  const double slope = scales_taps ? w.f.slope : 1.0, intercept = scales_taps ? w.f.intercept : 0.0;
  Finish f = w.f;
  f.scaled = f.scaled && !scales_taps;
  W values[RUN + SPARE];
  with_stored(job.source_type, [&](auto s) {
    typedef VOXPIPE_TYPE(s) S;
    if constexpr (sizeof(W) == sizeof(float))
      if (is_inside) return cubic_fours<S>(w.g, base, run, count, values);
    cubic_apart<S, W>(w.g, job.padding, slope, intercept, base, places, count, values);
  });
  finish<W>(f, values, nullptr, count, to, f.size);
}

}  // namespace VOXPIPE_PATH_NAME
