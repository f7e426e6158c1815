// The taps of a run: a byte offset and three weights per output voxel.
//
// ``inside`` is the loop that most voxels take: no clamping, no branch. ``anywhere`` is the
// general one; it gives bit for bit the same where both apply.

template <class W>
struct Taps {
  int64_t offset[RUN + SPARE];   // bytes from voxel (0, 0, 0) at hand to the lower tap
  W weight[3][RUN + SPARE];      // of the upper tap on each axis
  double fade[RUN + SPARE];      // padding "zeros": how far inside, 0 .. 1
};

// The coordinates of one run without their last summand: the same for all runs that differ in it,
// and kept until a run differs in more.
struct Advance {
  int64_t begin;  // first voxel of the run; -1 as long as there is none
  double with[3];
  double by[3][RUN + SPARE];
};

inline void advance_to(const Line* lines, Interval run, Advance& advance) {
  bool is_same = advance.begin == run.begin;  // runs that begin together end together
  for (int a = 0; a < 3; a++) is_same = is_same && advance.with[a] == lines[a].with;
  if (is_same) return;
  advance.begin = run.begin;
  Doubles first;
  for (int n = 0; n < LANES / 2; n++) first[n] = static_cast<double>(run.begin + n);
  for (int a = 0; a < 3; a++) {
    advance.with[a] = lines[a].with;
    Doubles v = first;
    for (int64_t n = 0; n < run.end - run.begin; n += LANES / 2, v += LANES / 2)
      put_vector(advance.by[a] + n, (lines[a].slope * v + lines[a].with) + lines[a].then);
  }
}

// Whole vectors: a few voxels behind the end are worked out too, and never used.
template <class W>
inline void inside(const Geometry& g, const Line* lines, const Advance& advance, int64_t skip,
                   int64_t count, Taps<W>& taps) {
  Doubles late[3], stride[3];
  for (int a = 0; a < 3; a++) late[a] = Doubles{} + lines[a].late;
  for (int a = 0; a < 3; a++) stride[a] = Doubles{} + g.axis[a].stride;
  const Doubles origin = Doubles{} + g.origin;
  for (int64_t v = 0; v < count; v += LANES / 2) {
    Doubles offset = origin;
    for (int a = 0; a < 3; a++) {
      const Doubles c = vector_at<Doubles>(advance.by[a] + skip + v) + late[a];
      const Doubles lower = floor_of(c);
      put_vector(taps.weight[a] + v, as_weight(c - lower, W{}));
      offset += lower * stride[a];
    }
    put_vector(taps.offset + v, whole_to_int(offset));
  }
}

inline void inside_nearest(const Geometry& g, const Line* lines, const Advance& advance,
                           int64_t skip, int64_t count, int64_t* where) {
  Doubles late[3], stride[3];
  for (int a = 0; a < 3; a++) late[a] = Doubles{} + lines[a].late;
  for (int a = 0; a < 3; a++) stride[a] = Doubles{} + g.axis[a].stride;
  const Doubles origin = Doubles{} + g.origin;
  for (int64_t v = 0; v < count; v += LANES / 2) {
    Doubles offset = origin;
    for (int a = 0; a < 3; a++)
      offset += round_even(vector_at<Doubles>(advance.by[a] + skip + v) + late[a]) * stride[a];
    put_vector(where + v, whole_to_int(offset));
  }
}

// Coordinates of a run as numbers, for everything but the interior of an affine map.
struct Places {
  double at[3][RUN + SPARE];
};

inline void places_of(const Line* lines, const Advance& advance, int64_t skip, int64_t count,
                      Places& places) {
  for (int a = 0; a < 3; a++)
    for (int64_t v = 0; v < count; v += LANES / 2)
      put_vector(places.at[a] + v, vector_at<Doubles>(advance.by[a] + skip + v) + lines[a].late);
}

inline void fold_places(const Geometry& g, int64_t count, Places& places) {
  for (int a = 0; a < 3; a++)
    if (g.axis[a].reflects)
      for (int64_t v = 0; v < count; v++)
        places.at[a][v] = fold(places.at[a][v], g.axis[a].first, g.axis[a].last);
}

// The usual case of the function below in whole vectors: three axes with two taps each.
template <class W>
inline bool clamped(const Geometry& g, int64_t count, Places& places, Taps<W>& taps) {
  for (int a = 0; a < 3; a++) {
    if (g.axis[a].single) return false;
    for (int64_t v = count; v < count + LANES / 2; v++) places.at[a][v] = places.at[a][count - 1];
  }
  for (int64_t v = 0; v < count; v += LANES / 2) {
    Doubles offset = Doubles{} + g.origin;
    for (int a = 0; a < 3; a++) {
      const Axis& axis = g.axis[a];
      const Doubles c = vector_at<Doubles>(places.at[a] + v);
      const Doubles lower = between(floor_of(c), axis.start, axis.end - 1.0);
      const Doubles weight = c - lower;
      put_vector(taps.weight[a] + v,
                 as_weight(axis.leaves ? between(weight, 0.0, 1.0) : weight, W{}));
      offset += lower * axis.stride;
    }
    put_vector(taps.offset + v, whole_to_int(offset));
  }
  return true;
}

template <class W>
inline void anywhere(const Geometry& g, int64_t count, bool zeros, Places& places, Taps<W>& taps) {
  double offset[RUN];
  for (int64_t v = 0; v < count; v++) offset[v] = g.origin;
  for (int64_t v = 0; v < count; v++) taps.fade[v] = 1.0;
  fold_places(g, count, places);
  if (!zeros && clamped(g, count, places, taps)) return;
  for (int a = 0; a < 3; a++) {
    const Axis& axis = g.axis[a];
    const double* c = places.at[a];
    if (zeros && axis.leaves)
      for (int64_t v = 0; v < count; v++) {
        const double in = least(c[v] - axis.first, axis.last - c[v]) + 1.0;
        taps.fade[v] *= most(0.0, least(1.0, in));
      }
    if (axis.single) {
      for (int64_t v = 0; v < count; v++)
        offset[v] += most(axis.start, least(axis.end, round_even(c[v]))) * axis.stride;
      continue;
    }
    const double low = axis.start, high = axis.end - 1.0;
    const bool leaves = axis.leaves;
    for (int64_t v = 0; v < count; v++) {
      const double lower = most(low, least(high, floor_of(c[v])));
      const double weight = c[v] - lower;
      offset[v] += lower * axis.stride;
      taps.weight[a][v] = static_cast<W>(leaves ? most(0.0, least(1.0, weight)) : weight);
    }
  }
  for (int64_t v = 0; v < count; v++) taps.offset[v] = whole_to_int(offset[v]);
}

inline void anywhere_nearest(const Geometry& g, int64_t count, Places& places, int64_t* where) {
  double offset[RUN];
  for (int64_t v = 0; v < count; v++) offset[v] = g.origin;
  fold_places(g, count, places);
  for (int a = 0; a < 3; a++) {
    const Axis& axis = g.axis[a];
    for (int64_t v = 0; v < count; v++) {
      const double near = round_even(places.at[a][v]);
      offset[v] += most(axis.start, least(axis.end, near)) * axis.stride;
    }
  }
  for (int64_t v = 0; v < count; v++) where[v] = whole_to_int(offset[v]);
}

// Whole vectors behind the end of a run read the last voxel again.
template <class W>
inline void spare(int64_t count, Taps<W>& taps) {
  for (int64_t v = count; v < count + SPARE; v++) {
    taps.offset[v] = taps.offset[count - 1];
    for (int a = 0; a < 3; a++) taps.weight[a][v] = 0;
  }
}
