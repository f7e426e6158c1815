// Blend the taps of a run: along axis 2, then 1, then 0, whatever the order in memory, so that
// the storage of a volume never shows in the result.

inline Floats blend(Floats lower, Floats upper, Floats weight) {
  return (upper - lower) * weight + lower;  // a constant stays the very same constant
}

// UNIT is the axis along which the two taps of a pair are neighbours in memory.
template <class S, int UNIT>
void linear_pairs(const uint8_t* base, const Axis* axis, const Taps<float>& taps, int64_t count,
                  float* values) {
  constexpr int P = UNIT == 0 ? 1 : 0, Q = UNIT == 2 ? 1 : 2;  // the other two, in order
  const uint8_t* p = base + axis[P].step;
  const uint8_t* q = base + axis[Q].step;
  const uint8_t* pq = p + axis[Q].step;
  for (int64_t v = 0; v < count; v += LANES) {
    const int32_t* offset = taps.offset + v;
    const Pair t00 = Fetch<S>::pair(base, offset), t01 = Fetch<S>::pair(q, offset);
    const Pair t10 = Fetch<S>::pair(p, offset), t11 = Fetch<S>::pair(pq, offset);
    const Floats wi = vector_at<Floats>(taps.weight[0] + v);
    const Floats wj = vector_at<Floats>(taps.weight[1] + v);
    const Floats wk = vector_at<Floats>(taps.weight[2] + v);
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
    const Floats value = blend(i0, i1, wi);
    __builtin_memcpy(values + v, &value, sizeof(value));
  }
}

// Any strides; an axis that needs one tap only is left out.
template <class S>
void linear_apart(const uint8_t* base, const Axis* axis, const Taps<float>& taps, int64_t count,
                  float* values) {
  for (int64_t v = 0; v < count; v += LANES) {
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
        if (needed) tap[n] = blend(tap[n], tap[n + up], weight);
      }
    }
    __builtin_memcpy(values + v, &tap[0], sizeof(Floats));
  }
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

// Infinity and NaN beside a voxel that is met exactly: a tap of weight 0 says nothing, where 0 times
// infinity would make NaN of the voxel. No loop above looks: what came out as NaN is looked at
// again, and only where a weight is 0 or 1. Integers have neither.
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

template <class W>
inline W blend_apart(W lower, W upper, W weight) {
  const W value = (upper - lower) * weight + lower;
  if (value == value) return value;
  return weight == 0 ? lower : (weight == 1 ? upper : value);
}

// One voxel: the taps lie ``up`` bytes apart on each axis, of which ``axis`` says whether it has two.
template <class S, class W>
inline W blend_voxel(const uint8_t* at, const Axis* axis, const int64_t* up, const W* weight) {
  W tap[8];
  for (int n = 0; n < 8; n++) {
    int64_t away = 0;
    for (int a = 0; a < 3; a++)
      if (n >> (2 - a) & 1 && !axis[a].single) away += up[a];
    tap[n] = load_value<S, W>(at + away);
  }
  for (int a = 2; a >= 0; a--)
    for (int n = 0; n < 8; n += 8 >> a)
      if (!axis[a].single) tap[n] = blend_apart(tap[n], tap[n + (4 >> a)], weight[a]);
  return tap[0];
}

template <class W>
inline bool meets_voxels(const Axis* axis, const W* weight) {
  bool meets = false;
  for (int a = 0; a < 3; a++)
    meets = meets || (!axis[a].single && (weight[a] == 0 || weight[a] == 1));
  return meets;
}

template <class S, class W>
inline void mend_run(const uint8_t* base, const Axis* axis, const Taps<W>& taps, int64_t count,
                     W* values) {
  if (!HasNan<S>::value || !any_nan(values, count)) return;
  int found = 0;  // in whole vectors: volumes with NaN for background have many
  for (int a = 0; a < 3; a++)
    for (int64_t v = 0; v < count && !axis[a].single; v++)
      found |= (values[v] != values[v]) & ((taps.weight[a][v] == 0) | (taps.weight[a][v] == 1));
  if (!found) return;
  const int64_t up[3] = {axis[0].step, axis[1].step, axis[2].step};
  for (int64_t v = 0; v < count; v++) {
    const W weight[3] = {taps.weight[0][v], taps.weight[1][v], taps.weight[2][v]};
    if (values[v] != values[v] && meets_voxels(axis, weight))
      values[v] = blend_voxel<S, W>(base + taps.offset[v], axis, up, weight);
  }
}

template <class S>
void linear_run(const uint8_t* base, const Geometry& g, const Taps<float>& taps, int64_t count,
                float* values) {
  const bool full = !g.axis[0].single && !g.axis[1].single && !g.axis[2].single;
  const int64_t size = sizeof(typename Memory<S>::type);
  if (full && g.axis[2].step == size) linear_pairs<S, 2>(base, g.axis, taps, count, values);
  else if (full && g.axis[0].step == size) linear_pairs<S, 0>(base, g.axis, taps, count, values);
  else if (full && g.axis[1].step == size) linear_pairs<S, 1>(base, g.axis, taps, count, values);
  else linear_apart<S>(base, g.axis, taps, count, values);
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
