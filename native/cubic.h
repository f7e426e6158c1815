// Cubic convolution (Keys 1981, a = -1/2): four taps per axis, third order, through the samples.
//
// Padding is a rule for taps here, not for coordinates: beyond the volume the last voxel repeats,
// is mirrored, or is zero. A run whose taps are all inside, with neighbours in memory along one
// axis, takes four taps at a time; every other one looks up each tap.

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
  if (axis.single) {
    taps.count[a] = 1;
    const double near = round_even(axis.reflects ? fold(c, axis.first, axis.last) : c);
    const bool outside = padding == VOXPIPE_ZEROS && (near < axis.first || near > axis.last);
    taps.weight[a][0] = outside ? 0.0 : 1.0;
    const double tap = most(axis.start, least(axis.end, near));
    taps.offset[a][0] = static_cast<int64_t>(tap - axis.start) * axis.step;
    return;
  }
  taps.count[a] = 4;
  const double lower = floor_of(c);
  keys_weights(c - lower, taps.weight[a]);
  for (int n = 0; n < 4; n++) {
    double tap = lower + (n - 1);
    const bool outside = tap < axis.first || tap > axis.last;
    if (outside && padding == VOXPIPE_ZEROS) taps.weight[a][n] = 0;
    if (outside && padding == VOXPIPE_REFLECTION) tap = fold(tap, axis.first, axis.last);
    tap = most(axis.start, least(axis.end, tap));
    taps.offset[a][n] = static_cast<int64_t>(tap - axis.start) * axis.step;
  }
}

// Slope and intercept of the taps themselves: under padding "zeros" a tap outside is the value zero,
// not the stored number. Elsewhere 1 and 0, and the sum is scaled.
struct Scaling {
  double slope;
  double intercept;
};

template <class S, class W>
void cubic_apart(const Geometry& g, int64_t padding, const Scaling& scaling, const uint8_t* base,
                 const Places& places, int64_t count, W* values) {
  for (int64_t v = 0; v < count; v++) {
    CubicTaps t;
    for (int a = 0; a < 3; a++) cubic_axis(g.axis[a], padding, a, places.at[a][v], t);
    double sum = 0;
    for (int i = 0; i < t.count[0]; i++)
      for (int j = 0; j < t.count[1]; j++)
        for (int k = 0; k < t.count[2]; k++) {
          const double stored =
              load_value<S, double>(base + t.offset[0][i] + t.offset[1][j] + t.offset[2][k]);
          sum += t.weight[0][i] * t.weight[1][j] * t.weight[2][k] *
                 (stored * scaling.slope + scaling.intercept);
        }
    values[v] = static_cast<W>(sum);
  }
}

// Four neighbours in memory as values.
typedef float Four __attribute__((vector_size(16)));

typedef int32_t FourInts __attribute__((vector_size(16)));

template <class S>
inline Four four_values(const uint8_t* at) {
  typedef S Stored4 __attribute__((vector_size(4 * sizeof(S))));
  // By way of 32 bits: straight from 8 or 16, compilers convert one by one.
  const FourInts values = __builtin_convertvector(load<Stored4>(at), FourInts);
  return __builtin_convertvector(values, Four);
}

template <>
inline Four four_values<float>(const uint8_t* at) {
  return load<Four>(at);
}

template <>
inline Four four_values<uint32_t>(const uint8_t* at) {
  typedef uint32_t Stored4 __attribute__((vector_size(16)));
  return __builtin_convertvector(load<Stored4>(at), Four);
}

template <>
inline Four four_values<double>(const uint8_t* at) {
  return Four{load_value<double, float>(at), load_value<double, float>(at + 8),
              load_value<double, float>(at + 16), load_value<double, float>(at + 24)};
}

template <>
inline Four four_values<HalfTag>(const uint8_t* at) {
  return Four{load_value<HalfTag, float>(at), load_value<HalfTag, float>(at + 2),
              load_value<HalfTag, float>(at + 4), load_value<HalfTag, float>(at + 6)};
}

// The places of a run as the first of its taps and the weights of all.
struct CubicRun {
  int64_t offset[RUN];
  float weight[3][4][RUN];
};

// False where some tap of the run is not at hand.
inline bool cubic_inside(const Geometry& g, const Places& places, int64_t count, CubicRun& run) {
  for (int a = 0; a < 3; a++) {
    const Axis& axis = g.axis[a];
    double low = places.at[a][0], high = low;
    for (int64_t v = 1; v < count; v++) {
      low = least(low, places.at[a][v]);
      high = most(high, places.at[a][v]);
    }
    if (axis.single || floor_of(low) - 1 < axis.start || floor_of(high) + 2 > axis.end)
      return false;
  }
  double offset[RUN];
  for (int64_t v = 0; v < count; v++) offset[v] = g.origin;
  for (int a = 0; a < 3; a++)
    for (int64_t v = 0; v < count; v++) {
      const double lower = floor_of(places.at[a][v]);
      float weight[4];
      keys_weights(static_cast<float>(places.at[a][v] - lower), weight);
      for (int n = 0; n < 4; n++) run.weight[a][n][v] = weight[n];
      offset[v] += (lower - 1) * g.axis[a].stride;
    }
  for (int64_t v = 0; v < count; v++) run.offset[v] = whole_to_int(offset[v]);
  return true;
}

// Neighbours lie along ``unit``; ``p`` and ``q`` are the two other axes.
template <class S>
void cubic_fours(const Geometry& g, int unit, const uint8_t* base, const CubicRun& run,
                 int64_t count, float* values) {
  const int p = unit == 0 ? 1 : 0, q = 3 - unit - p;
  const int64_t sp = g.axis[p].step, sq = g.axis[q].step;
  for (int64_t v = 0; v < count; v++) {
    const uint8_t* at = base + run.offset[v];
    Four sum = {};
    for (int i = 0; i < 4; i++) {
      Four row = {};
      for (int j = 0; j < 4; j++)
        row += four_values<S>(at + i * sp + j * sq) * run.weight[q][j][v];
      sum += row * run.weight[p][i][v];
    }
    float total = 0;
    for (int n = 0; n < 4; n++) total += sum[n] * run.weight[unit][n][v];
    values[v] = total;
  }
}

template <class S>
inline bool cubic_together(const Geometry& g, const uint8_t* base, const CubicRun* run,
                           int64_t count, float* values) {
  if (!run) return false;
  for (int unit = 2; unit >= 0; unit--)
    if (g.axis[unit].step == sizeof(typename Memory<S>::type)) {
      cubic_fours<S>(g, unit, base, *run, count, values);
      return true;
    }
  return false;
}

template <class S>
inline bool cubic_together(const Geometry&, const uint8_t*, const CubicRun*, int64_t, double*) {
  return false;
}

// ``run`` is null where some tap is not at hand.
template <class W>
inline void cubic_run(const Geometry& g, int64_t type, int64_t padding, const Scaling& scaling,
                      const uint8_t* base, const Places& places, const CubicRun* run,
                      int64_t count, W* values) {
  switch (type) {
#define VOXPIPE_CUBIC_TYPE(S)                                  \
  if (!cubic_together<S>(g, base, run, count, values))         \
    cubic_apart<S, W>(g, padding, scaling, base, places, count, values)
    VOXPIPE_SOURCE_TYPES(VOXPIPE_CUBIC_TYPE)
#undef VOXPIPE_CUBIC_TYPE
    default: break;
  }
}
