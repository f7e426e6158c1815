// Displacement: a uniform cubic B-spline on a coarse control grid, added to the coordinates.
//
// Control point p lies at control index p; beyond the ends the last one repeats. Every value is a
// weighted mean of control points, so no displacement exceeds the largest of them.


// One control point: the displacement along each source axis in source voxels, and a spare number.
typedef double Point __attribute__((vector_size(32)));

// The cubic polynomial of one cell: the numbers of s^a t^b u^c, for each source axis, where s, t and
// u are the places on the control axes from the middle of the cell, -1/2 .. 1/2. About the middle
// no term outgrows the sum, so float32 is enough.
struct Cell {
  float of[3][64];
};

// Cells whose polynomial is kept, by the last bits of where they lie. A tile of the output meets
// fewer, as long as control points are eight voxels apart; and all of them fit a level 2 cache.
constexpr int64_t CELL_BITS[3] = {3, 3, 4};
constexpr int64_t CELLS = int64_t{1} << (CELL_BITS[0] + CELL_BITS[1] + CELL_BITS[2]);

struct Control {
  int64_t size[3];
  double matrix[12];  // output index to control index
  // Whole voxels that are taken from every control point and given to the shift of the pull-back:
  // what is left reaches equally far to both sides.
  double middle[3];
  double reach[3];  // and so far, in whole voxels
  int along;        // the control axis that runs follow, or -1 where they cross several
  // The points with their ends repeated, so that no cell needs a second thought: (a + 3, b + 3,
  // c + 3) of them.
  Point* padded;
  int64_t stride[3];  // between points
  Cell* cells;        // CELLS of them, where runs cross several axes
  int64_t* keys;      // which cell each of them is, or -1
  void* memory;       // to be freed
};

// How far a run is moved, in voxels.
struct Moves {
  float by[3][RUN + SPARE];
};

template <class T>
inline void spline_weights(T t, T* weight) {
  const T s = 1 - t;
  weight[0] = s * s * s / 6;
  weight[1] = (3 * t * t * t - 6 * t * t + 4) / 6;
  weight[2] = (3 * s * s * s - 6 * s * s + 4) / 6;
  weight[3] = t * t * t / 6;
}

// The same cubic as powers of the place from the middle of the cell.
template <class T>
inline void about_middle(T p0, T p1, T p2, T p3, T* k) {
  k[0] = ((p0 + p3) + 23 * (p1 + p2)) / 48;
  k[1] = ((p3 - p0) + 5 * (p2 - p1)) / 8;
  k[2] = ((p0 + p3) - (p1 + p2)) / 4;
  k[3] = ((p3 - p0) + 3 * (p1 - p2)) / 6;
}

inline Floats from_middle(const double* places, double cell) {
  float t[LANES];
  for (int half = 0; half < LANES; half += LANES / 2)
    put_vector(t + half, as_weight(vector_at<Doubles>(places + half) - cell - 0.5, 0.0f));
  return vector_at<Floats>(t);
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
                       Moves& moves) {
  const int64_t count = run.end - run.begin;
  double at[3], u[RUN + SPARE];
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
    Point k[4];
    about_middle(p[0], p[1], p[2], p[3], k);
    for (int64_t n = v; n < end; n += LANES) {
      const Floats t = from_middle(u + n, cell);
      for (int c = 0; c < 3; c++) {
        Floats sum = Floats{} + static_cast<float>(k[3][c]);
        for (int power = 2; power >= 0; power--) sum = sum * t + static_cast<float>(k[power][c]);
        put_vector(moves.by[c] + n, sum);
      }
    }
    v = end;
  }
}

// The polynomial of the cell whose first point is ``from``: one axis after the other.
inline void make_cell(const Control& control, const Point* from, Cell& cell) {
  Point k[4][4][4], l[4];
  for (int a = 0; a < 4; a++)
    for (int b = 0; b < 4; b++) {
      const uint8_t* row = reinterpret_cast<const uint8_t*>(from + a * control.stride[0] +
                                                            b * control.stride[1]);
      Point p[4];
      for (int c = 0; c < 4; c++) p[c] = load<Point>(row + c * static_cast<int64_t>(sizeof(Point)));
      about_middle(p[0], p[1], p[2], p[3], k[a][b]);
    }
  for (int a = 0; a < 4; a++)
    for (int c = 0; c < 4; c++) {
      about_middle(k[a][0][c], k[a][1][c], k[a][2][c], k[a][3][c], l);
      for (int b = 0; b < 4; b++) k[a][b][c] = l[b];
    }
  for (int b = 0; b < 4; b++)
    for (int c = 0; c < 4; c++) {
      about_middle(k[0][b][c], k[1][b][c], k[2][b][c], k[3][b][c], l);
      for (int a = 0; a < 4; a++)
        for (int axis = 0; axis < 3; axis++)
          cell.of[axis][16 * a + 4 * b + c] = static_cast<float>(l[a][axis]);
    }
}

inline const Cell& cell_at(const Control& control, const int64_t* index) {
  int64_t slot = 0, key = 0;
  for (int a = 0; a < 3; a++) {
    slot = (slot << CELL_BITS[a]) | (index[a] & ((int64_t{1} << CELL_BITS[a]) - 1));
    key += index[a] * control.stride[a];
  }
  if (control.keys[slot] != key) {
    make_cell(control, control.padded + key, control.cells[slot]);
    control.keys[slot] = key;
  }
  return control.cells[slot];
}

inline Floats cubic(const float* k, Floats t) {
  Floats sum = multiply_add(Floats{} + k[3], t, Floats{} + k[2]);
  sum = multiply_add(sum, t, Floats{} + k[1]);
  return multiply_add(sum, t, Floats{} + k[0]);
}

// The field is not separable along a run that crosses the control axes: 63 products a voxel and
// source axis, those of all voxels within one cell together. Multiplied and added in one step,
// which halves them, and is rounded once, everywhere.
inline void bend_across(const Control& control, int lane, const int64_t* index, Interval run,
                        Moves& moves) {
  const int64_t count = run.end - run.begin;
  double u[RUN + SPARE];
  float place[3][RUN + SPARE];
  int32_t cell[3][RUN + SPARE];
  for (int a = 0; a < 3; a++) {
    control_places(control, a, lane, index, run, u);
    for (int64_t v = 0; v < count; v += LANES / 2) {
      const Doubles at = vector_at<Doubles>(u + v), whole = floor_of(at);
      put_vector(cell[a] + v, __builtin_convertvector(whole, HalfInts));
      put_vector(place[a] + v, as_weight(at - whole - 0.5, 0.0f));
    }
    for (int64_t v = count; v < count + SPARE; v++) place[a][v] = 0;
  }
  for (int64_t v = 0; v < count;) {
    const int64_t at[3] = {cell[0][v], cell[1][v], cell[2][v]};
    int64_t end = v + 1;
    while (end < count && cell[0][end] == at[0] && cell[1][end] == at[1] && cell[2][end] == at[2])
      end++;
    const Cell& k = cell_at(control, at);
    for (int64_t n = v; n < end; n += LANES) {
      const Floats s = vector_at<Floats>(place[0] + n), t = vector_at<Floats>(place[1] + n);
      const Floats q = vector_at<Floats>(place[2] + n);
      for (int axis = 0; axis < 3; axis++) {
        Floats rows[4];
        for (int a = 0; a < 4; a++) {
          const float* of = k.of[axis] + 16 * a;
          Floats sum = multiply_add(cubic(of + 12, q), t, cubic(of + 8, q));
          sum = multiply_add(sum, t, cubic(of + 4, q));
          rows[a] = multiply_add(sum, t, cubic(of, q));
        }
        Floats sum = multiply_add(rows[3], s, rows[2]);
        sum = multiply_add(sum, s, rows[1]);
        put_vector(moves.by[axis] + n, multiply_add(sum, s, rows[0]));
      }
    }
    v = end;
  }
}

inline void bend(const Control& control, int lane, const int64_t* index, Interval run,
                 Moves& moves) {
  if (control.along >= 0) bend_along(control, lane, index, run, moves);
  else bend_across(control, lane, index, run, moves);
  const int64_t count = run.end - run.begin;
  for (int c = 0; c < 3; c++)
    for (int64_t v = count; v < count + SPARE; v++) moves.by[c][v] = moves.by[c][count - 1];
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

inline void find_middle(Control& control, const double* points) {
  const int64_t all = control.size[0] * control.size[1] * control.size[2];
  for (int c = 0; c < 3; c++) {
    double low = points[c * all], high = low;
    for (int64_t n = 1; n < all; n++) {
      low = least(low, points[c * all + n]);
      high = most(high, points[c * all + n]);
    }
    control.middle[c] = round_even((low + high) / 2);
    // One more: the sums of a spline are rounded.
    control.reach[c] = floor_of((high - low) / 2) + 2;
  }
}

inline void pad(const Control& control, const double* points) {
  Point* to = control.padded;
  const int64_t* size = control.size;
  const int64_t all = size[0] * size[1] * size[2];
  for (int64_t i = -1; i < size[0] + 2; i++)
    for (int64_t j = -1; j < size[1] + 2; j++)
      for (int64_t k = -1; k < size[2] + 2; k++, to++) {
        const double* from = points + (within(i, size[0]) * size[1] + within(j, size[1])) * size[2] +
                             within(k, size[2]);
        const Point point = {from[0] - control.middle[0], from[all] - control.middle[1],
                             from[2 * all] - control.middle[2], 0.0};
        put(reinterpret_cast<uint8_t*>(to), point);
      }
}

// Fills in ``control``; false where there is no memory. ``free(control.memory)`` afterwards.
inline bool control_of(const VoxpipeJob& job, int lane, Control& control) {
  control.memory = nullptr;
  if (!job.control) return true;
  for (int a = 0; a < 3; a++) control.size[a] = job.control_size[a];
  for (int n = 0; n < 12; n++) control.matrix[n] = job.control_matrix[n];
  control.along = control_axis(control, lane);
  control.stride[2] = 1;
  control.stride[1] = control.size[2] + 3;
  control.stride[0] = (control.size[1] + 3) * control.stride[1];
  const size_t cells = control.along >= 0 ? 0 : static_cast<size_t>(CELLS);
  const size_t count = static_cast<size_t>((control.size[0] + 3) * control.stride[0]);
  control.memory = malloc(count * sizeof(Point) + cells * (sizeof(Cell) + sizeof(int64_t)));
  if (!control.memory) return false;
  control.padded = static_cast<Point*>(control.memory);
  control.cells = reinterpret_cast<Cell*>(control.padded + count);
  control.keys = reinterpret_cast<int64_t*>(control.cells + cells);
  for (size_t n = 0; n < cells; n++) control.keys[n] = -1;
  const double* points = reinterpret_cast<const double*>(job.control);
  find_middle(control, points);
  pad(control, points);
  return true;
}
