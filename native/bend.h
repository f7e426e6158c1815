// Displacement: a uniform cubic B-spline on a coarse control grid, added to the coordinates.
//
// Control point p lies at control index p; beyond the ends the last one repeats. Every value is a
// weighted mean of control points, so no displacement exceeds the largest of them.

// One control point: the displacement along each source axis in source voxels, and a spare number.
typedef double Point __attribute__((vector_size(32)));
// Four points in a row are sixteen numbers of float32, in this many vectors.
constexpr int PARTS = 16 / LANES;
constexpr size_t CELL_BYTES = 64;

struct Control {
  int64_t size[3];
  double matrix[12];  // output index to control index
  int along;          // the control axis that runs follow, or -1 where they cross several
  // The points with their ends repeated, so that no cell needs a second thought: (a + 3, b + 3,
  // c + 3) Points where runs follow an axis. Else (a + 3, b + 3, c) cells, each of the sixteen
  // numbers of float32 that it takes from four points in a row: a cache line of its own, because
  // loads that straddle two take twice as long.
  void* padded;
  int64_t stride[3];  // between points, or cells, of ``padded``
  void* memory;       // to be freed
};

template <class T>
inline void spline_weights(T t, T* weight) {
  const T s = 1 - t;
  weight[0] = s * s * s / 6;
  weight[1] = (3 * t * t * t - 6 * t * t + 4) / 6;
  weight[2] = (3 * s * s * s - 6 * s * s + 4) / 6;
  weight[3] = t * t * t / 6;
}

inline double clamp_to(double c, int64_t size) {
  return most(0.0, least(static_cast<double>(size - 1), c));
}

inline int64_t within(int64_t n, int64_t size) { return n < 0 ? 0 : (n >= size ? size - 1 : n); }

// Places on one control axis along a run, kept on the grid; whole vectors, behind the end too.
inline void control_places(const Control& control, int axis, int lane, const int64_t* index,
                           Interval run, double* places) {
  const Line line = line_of(control.matrix + 4 * axis, lane, index);
  const double last = static_cast<double>(control.size[axis] - 1);
  Doubles v;
  for (int n = 0; n < LANES / 2; n++) v[n] = static_cast<double>(run.begin + n);
  for (int64_t n = 0; n < run.end - run.begin; n += LANES / 2, v += LANES / 2) {
    const Doubles place = to_grain(line.slope * v) + line.rest;
    put_vector(places + n, between(place, 0.0, last));
  }
}

// Control points that one run can meet along its axis: a grid is never finer than the output here.
constexpr int64_t LINE = RUN + 8;

// The points on the line of one run, the two other control axes blended. ``at`` is any place on
// the line; the first point is the one before ``low``.
inline void control_line(const Control& control, const double* at, int64_t low, int64_t count,
                         Point* line) {
  const int along = control.along, p = along == 0 ? 1 : 0, q = 3 - along - p;
  const double up = clamp_to(at[p], control.size[p]), uq = clamp_to(at[q], control.size[q]);
  const int64_t ip = static_cast<int64_t>(up), iq = static_cast<int64_t>(uq);
  double wp[4], wq[4];
  spline_weights(up - static_cast<double>(ip), wp);
  spline_weights(uq - static_cast<double>(iq), wq);
  const int64_t step = control.stride[along];
  for (int64_t n = 0; n < count; n++) line[n] = Point{};
  for (int a = 0; a < 4; a++)
    for (int b = 0; b < 4; b++) {
      const Point* row = static_cast<const Point*>(control.padded) + low * step +
                         (ip + a) * control.stride[p] + (iq + b) * control.stride[q];
      const double weight = wp[a] * wq[b];
      for (int64_t n = 0; n < count; n++)
        line[n] += load<Point>(reinterpret_cast<const uint8_t*>(row + n * step)) * weight;
    }
}

// Every cell is a cubic in the place within the cell: its voxels are worked out in whole vectors,
// which the next cell overwrites where they reach into it.
inline void bend_along(const Control& control, int lane, const int64_t* index, Interval run,
                       Places& places) {
  const int64_t count = run.end - run.begin;
  double at[3], u[RUN + SPARE], added[3][RUN + SPARE];
  for (int a = 0; a < 3; a++) at[a] = line_of(control.matrix + 4 * a, lane, index).at(run.begin);
  control_places(control, control.along, lane, index, run, u);
  for (int64_t v = count; v < count + SPARE; v++) u[v] = u[count - 1];
  const int64_t low = static_cast<int64_t>(least(u[0], u[count - 1]));
  const int64_t high = static_cast<int64_t>(most(u[0], u[count - 1]));
  Point line[LINE];
  control_line(control, at, low, high - low + 4, line);
  for (int64_t v = 0; v < count;) {
    const double cell = floor_of(u[v]);
    int64_t end = v + 1;
    while (end < count && u[end] >= cell && u[end] < cell + 1) end++;
    const Point* p = line + (static_cast<int64_t>(cell) - low);
    const Point k0 = (p[0] + 4 * p[1] + p[2]) / 6, k1 = (p[2] - p[0]) / 2;
    const Point k2 = (p[0] - 2 * p[1] + p[2]) / 2, k3 = (p[3] - p[0] + 3 * (p[1] - p[2])) / 6;
    for (int64_t n = v; n < end; n += LANES / 2) {
      const Doubles t = vector_at<Doubles>(u + n) - cell;
      for (int c = 0; c < 3; c++)
        put_vector(added[c] + n, ((k3[c] * t + k2[c]) * t + k1[c]) * t + k0[c]);
    }
    v = end;
  }
  for (int c = 0; c < 3; c++)
    for (int64_t v = 0; v < count; v++) places.at[c][v] += added[c][v];
}

// Products of the weights on the two outer control axes, of each voxel of a run, the weights on the
// inner one, and the first of its sixteen cells.
struct Spread {
  float outer[16][RUN + SPARE];
  float inner[4][RUN + SPARE];
  int64_t where[RUN + SPARE];
};

inline void spread_of(const Control& control, int lane, const int64_t* index, Interval run,
                      Spread& spread) {
  const int64_t count = run.end - run.begin;
  alignas(64) float weight[3][4][RUN + SPARE];
  double offset[RUN + SPARE], u[RUN + SPARE];
  for (int a = 0; a < 3; a++) {
    control_places(control, a, lane, index, run, u);
    const double stride = static_cast<double>(16 * control.stride[a]);
    for (int64_t v = 0; v < count; v += LANES / 2) {
      const Doubles place = vector_at<Doubles>(u + v), cell = floor_of(place);
      const Doubles before = a ? vector_at<Doubles>(offset + v) : Doubles{};
      put_vector(offset + v, before + cell * stride);
      put_vector(weight[a][0] + v, as_weight(place - cell, 0.0f));
    }
    for (int64_t v = 0; v < count; v += LANES) {
      Floats w[4];
      spline_weights(vector_at<Floats>(weight[a][0] + v), w);
      for (int n = 0; n < 4; n++) put_vector((a == 2 ? spread.inner[n] : weight[a][n]) + v, w[n]);
    }
  }
  for (int64_t v = 0; v < count; v += LANES / 2)
    put_vector(spread.where + v, whole_to_int(vector_at<Doubles>(offset + v)));
  for (int64_t v = 0; v < count; v += LANES)
    for (int n = 0; n < 16; n++)
      put_vector(spread.outer[n] + v, vector_at<Floats>(weight[0][n / 4] + v) *
                                          vector_at<Floats>(weight[1][n % 4] + v));
}

// Any direction: sixteen rows of four control points per voxel, in float32. The field is not separable
// along such a run, so this is the least there is: 192 products a voxel.
inline void bend_across(const Control& control, int lane, const int64_t* index, Interval run,
                        Places& places) {
  const int64_t count = run.end - run.begin;
  Spread spread;
  spread_of(control, lane, index, run, spread);
  const float* points = static_cast<const float*>(control.padded);
  int64_t away[16];
  for (int n = 0; n < 16; n++)
    away[n] = 16 * ((n / 4) * control.stride[0] + (n % 4) * control.stride[1]);
  alignas(64) Four moved[RUN + SPARE];
  for (int64_t v = 0; v < count; v++) {
    const float* from = points + spread.where[v];
    Four sum[4];
    for (int part = 0; part < PARTS; part++) {
      Floats even = {}, odd = {};  // two sums: one would wait for itself
      for (int n = 0; n < 16; n += 2) {
        even += vector_at<Floats>(from + away[n] + part * LANES) * spread.outer[n][v];
        odd += vector_at<Floats>(from + away[n + 1] + part * LANES) * spread.outer[n + 1][v];
      }
      even += odd;
      __builtin_memcpy(sum + part * (LANES / 4), &even, sizeof(even));
    }
    moved[v] = (sum[0] * spread.inner[0][v] + sum[1] * spread.inner[1][v]) +
               (sum[2] * spread.inner[2][v] + sum[3] * spread.inner[3][v]);
  }
  for (int64_t v = count; v < count + 4; v++) moved[v] = Four{};
  for (int64_t v = 0; v < count; v += 4) {
    const Fours turned = turn_fours(moved + v);
    for (int c = 0; c < 3; c++)
      put_vector(places.at[c] + v, vector_at<Point>(places.at[c] + v) +
                                       __builtin_convertvector(turned.of[c], Point));
  }
}

inline void bend(const Control& control, int lane, const int64_t* index, Interval run,
                 Places& places) {
  if (control.along >= 0) bend_along(control, lane, index, run, places);
  else bend_across(control, lane, index, run, places);
}

// Calls act(row, all) for every row of points, the ends of the two other axes repeated; number n of
// point k is row[n * all + k].
template <class Act>
inline void pad_rows(const Control& control, const double* points, const Act& act) {
  const int64_t* size = control.size;
  for (int64_t i = -1; i < size[0] + 2; i++)
    for (int64_t j = -1; j < size[1] + 2; j++)
      act(points + (within(i, size[0]) * size[1] + within(j, size[1])) * size[2],
          size[0] * size[1] * size[2]);
}

// The control axis along which a run moves, or -1 where it crosses several or jumps over points.
inline int control_axis(const Control& control, int lane) {
  int found = 0, count = 0;
  for (int a = 0; a < 3; a++)
    if (control.matrix[4 * a + lane] != 0) {
      found = a;
      count++;
    }
  return count > 1 || __builtin_fabs(control.matrix[4 * found + lane]) > 1 ? -1 : found;
}

inline void pad_along(const Control& control, const double* points) {
  double* to = static_cast<double*>(control.padded);
  const int64_t* size = control.size;
  pad_rows(control, points, [&](const double* row, int64_t all) {
    for (int64_t k = -1; k < size[2] + 2; k++)
      for (int n = 0; n < 4; n++) *to++ = n < 3 ? row[n * all + within(k, size[2])] : 0.0;
  });
}

inline void pad_across(const Control& control, const double* points) {
  float* to = static_cast<float*>(control.padded);
  const int64_t* size = control.size;
  pad_rows(control, points, [&](const double* row, int64_t all) {
    for (int64_t cell = 0; cell < size[2]; cell++)
      for (int64_t k = cell - 1; k < cell + 3; k++)
        for (int n = 0; n < 4; n++)
          *to++ = n < 3 ? static_cast<float>(row[n * all + within(k, size[2])]) : 0.0f;
  });
}

// Fills in ``control``; false where there is no memory. ``free(control.memory)`` afterwards.
inline bool control_of(const VoxpipeJob& job, int lane, Control& control) {
  control.memory = nullptr;
  if (!job.control) return true;
  for (int a = 0; a < 3; a++) control.size[a] = job.control_size[a];
  for (int n = 0; n < 12; n++) control.matrix[n] = job.control_matrix[n];
  control.along = control_axis(control, lane);
  const bool is_along = control.along >= 0;
  control.stride[2] = 1;
  control.stride[1] = control.size[2] + (is_along ? 3 : 0);
  control.stride[0] = (control.size[1] + 3) * control.stride[1];
  const size_t count = static_cast<size_t>((control.size[0] + 3) * control.stride[0]);
  control.memory = malloc(count * (is_along ? sizeof(Point) : CELL_BYTES) + CELL_BYTES);
  if (!control.memory) return false;
  const uintptr_t from = reinterpret_cast<uintptr_t>(control.memory);
  control.padded = static_cast<uint8_t*>(control.memory) + (CELL_BYTES - from % CELL_BYTES);
  const double* points = reinterpret_cast<const double*>(job.control);
  if (is_along) pad_along(control, points);
  else pad_across(control, points);
  return true;
}
