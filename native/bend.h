// Displacement: a uniform cubic B-spline on a coarse control grid, added to the coordinates.
//
// Control point p lies at control index p; beyond the ends the last one repeats. Every value is a
// weighted mean of control points, so no displacement exceeds the largest of them.
#pragma once

#include "processor.h"
#include "taps.h"

namespace VOXPIPE_PATH_NAME {

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
  bool counts;      // whether what a run spans on the grid can be said in 32 bits
  // The points with their ends repeated, so that no cell needs a second thought: (a + 3, b + 3,
  // c + 3) of them.
  Point* padded;
  int64_t stride[3];  // between points
  Cell* cells;        // CELLS of them
  int64_t* keys;      // which cell each of them is, or -1
  void* memory;       // to be freed
};

// How far a run is moved, in voxels.
struct Moves {
  float by[3][RUN + SPARE];
};

// A cubic B-spline between the two middle ones of four points, as powers of the place from the middle.
template <class T>
inline void about_middle(T p0, T p1, T p2, T p3, T* k) {
  k[0] = ((p0 + p3) + 23 * (p1 + p2)) / 48;
  k[1] = ((p3 - p0) + 5 * (p2 - p1)) / 8;
  k[2] = ((p0 + p3) - (p1 + p2)) / 4;
  k[3] = ((p3 - p0) + 3 * (p1 - p2)) / 6;
}

inline int64_t within(int64_t n, int64_t size) { return n < 0 ? 0 : (n >= size ? size - 1 : n); }

// A run on the control grid: which cell each voxel lies in, and where from the middle of it.
struct Route {
  int32_t cell[3][RUN + SPARE];
  float place[3][RUN + SPARE];
};

// Places on one control axis along a run, kept on the grid; whole vectors, behind the end too.
inline void follow_slowly(const Line& line, double last, Interval run, int32_t* cell, float* place) {
  Doubles v;
  for (int n = 0; n < LANES / 2; n++) v[n] = static_cast<double>(run.begin + n);
  for (int64_t n = 0; n < run.end - run.begin; n += LANES / 2, v += LANES / 2) {
    const Doubles at = between(to_grain(line.slope * v) + line.rest, 0.0, last);
    const Doubles whole = floor_of(at);
    put_vector(cell + n, __builtin_convertvector(whole, HalfInts));
    put_vector(place + n, as_weight(at - whole - 0.5, 0.0f));
  }
}

// The same in integers, where no voxel leaves the grid.
inline void follow(const Control& control, int lane, const int64_t* index, Interval run,
                   const Grains& along, int64_t skip, Route& route) {
  const int64_t count = run.end - run.begin;
  for (int a = 0; a < 3; a++) {
    const Line line = line_of(control.matrix + 4 * a, lane, index);
    const double last = static_cast<double>(control.size[a] - 1);
    const double one = line.at(run.begin), other = line.at(run.end - 1);
    if (least(one, other) < 0 || most(one, other) >= last || !control.counts) {
      follow_slowly(line, last, run, route.cell[a], route.place[a]);
    } else {
      const double at = line.rest + along.low[a], whole = floor_of(at);
      const uint32_t grains = static_cast<uint32_t>((at - whole) * GRAINS);
      for (int64_t v = 0; v < count; v += LANES) {
        const Words place = vector_at<Words>(along.grains[a] + skip + v) + grains;
        put_vector(route.cell[a] + v, (Ints)(place >> GRAIN_BITS) + static_cast<int32_t>(whole));
        put_vector(route.place[a] + v,
                   fraction_of(place) - 0.5f);
      }
    }
    for (int64_t v = count; v < count + SPARE; v++) route.place[a][v] = 0;
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
  Floats sum = multiply_add(all_of(k[3]), t, all_of(k[2]));
  sum = multiply_add(sum, t, all_of(k[1]));
  return multiply_add(sum, t, all_of(k[0]));
}

// Where the run moves along all axes of the grid: 63 products a voxel and source axis, those of all
// voxels within one cell together. Multiplied and added in one step, which halves them, and is
// rounded once, everywhere.
inline void bend_across(const Cell& k, const Route& route, Interval part, Moves& moves) {
  for (int64_t n = part.begin; n < part.end; n += LANES) {
    const Floats s = vector_at<Floats>(route.place[0] + n);
    const Floats t = vector_at<Floats>(route.place[1] + n);
    const Floats u = vector_at<Floats>(route.place[2] + n);
    for (int axis = 0; axis < 3; axis++) {
      Floats rows[4];
      for (int a = 0; a < 4; a++) {
        const float* of = k.of[axis] + 16 * a;
        Floats sum = multiply_add(cubic(of + 12, u), t, cubic(of + 8, u));
        sum = multiply_add(sum, t, cubic(of + 4, u));
        rows[a] = multiply_add(sum, t, cubic(of, u));
      }
      Floats sum = multiply_add(rows[3], s, rows[2]);
      sum = multiply_add(sum, s, rows[1]);
      put_vector(moves.by[axis] + n, multiply_add(sum, s, rows[0]));
    }
  }
}

typedef float Sixteen __attribute__((vector_size(64)));

template <class V, class T>
inline V cubic_of(V k0, V k1, V k2, V k3, T t) {
  return ((k3 * t + k2) * t + k1) * t + k0;
}

// Where it moves along one axis only: the places on the two others are worked in first.
inline void bend_along(const Cell& k, int along, const Route& route, Interval part, Moves& moves) {
  const int64_t v = part.begin;
  const float s = route.place[0][v], t = route.place[1][v], u = route.place[2][v];
  for (int axis = 0; axis < 3; axis++) {
    Sixteen planes[4];
    Four lines[4], left;
    for (int n = 0; n < 4; n++) planes[n] = vector_at<Sixteen>(k.of[axis] + 16 * n);
    if (along == 0) {
      for (int n = 0; n < 4; n++) {
        Four of[4];
        __builtin_memcpy(of, planes + n, sizeof(of));
        lines[n] = cubic_of(of[0], of[1], of[2], of[3], t);
      }
    } else {
      const Sixteen plane = cubic_of(planes[0], planes[1], planes[2], planes[3], s);
      __builtin_memcpy(lines, &plane, sizeof(plane));
    }
    if (along == 2) {
      left = cubic_of(lines[0], lines[1], lines[2], lines[3], t);
    } else {
      const Fours turned = turn_fours(lines);
      left = cubic_of(turned.of[0], turned.of[1], turned.of[2], turned.of[3], u);
    }
    for (int64_t n = part.begin; n < part.end; n += LANES)
      put_vector(moves.by[axis] + n, cubic_of(all_of(left[0]), all_of(left[1]), all_of(left[2]),
                                              all_of(left[3]),
                                              vector_at<Floats>(route.place[along] + n)));
  }
}

// Cell by cell: each is worked out in whole vectors, which the next one overwrites.
inline void bend_route(const Control& control, const Route& route, int64_t count, Moves& moves) {
  const int32_t *i = route.cell[0], *j = route.cell[1], *k = route.cell[2];
  for (int64_t v = 0; v < count;) {
    int64_t end = v + 1;
    while (end < count && i[end] == i[v] && j[end] == j[v] && k[end] == k[v]) end++;
    const int64_t at[3] = {i[v], j[v], k[v]};
    const Cell& cell = cell_at(control, at);
    if (control.along >= 0) bend_along(cell, control.along, route, Interval{v, end}, moves);
    else bend_across(cell, route, Interval{v, end}, moves);
    v = end;
  }
  for (int c = 0; c < 3; c++)
    for (int64_t v = count; v < count + SPARE; v++) moves.by[c][v] = moves.by[c][count - 1];
}

inline void bend(const Control& control, int lane, const int64_t* index, Interval run,
                 const Grains& along, int64_t skip, Moves& moves) {
  Route route;
  follow(control, lane, index, run, along, skip, route);
  bend_route(control, route, run.end - run.begin, moves);
}

// The field of an earlier op, at the places where the later one leads: added to its moves. ``places``
// are those of the matrix, with what both fields have in the middle.
inline void bend_again(const Control& control, const double* const* places, int64_t count,
                       Moves& moves) {
  Route route;
  Moves more;
  for (int a = 0; a < 3; a++) {
    const double* row = control.matrix + 4 * a;
    const double last = static_cast<double>(control.size[a] - 1);
    for (int64_t v = 0; v < count; v++) {
      double at = row[3];
      for (int c = 0; c < 3; c++)
        at += row[c] * (places[c][v] + static_cast<double>(moves.by[c][v]) - control.middle[c]);
      at = least(most(at, 0.0), last);
      const double whole = floor_of(at);
      route.cell[a][v] = static_cast<int32_t>(whole);
      route.place[a][v] = static_cast<float>(at - whole - 0.5);
    }
    for (int64_t v = count; v < count + SPARE; v++) route.place[a][v] = 0;
  }
  bend_route(control, route, count, more);
  for (int c = 0; c < 3; c++)
    for (int64_t v = 0; v < count + SPARE; v++) moves.by[c][v] += more.by[c][v];
}

// The control axis along which a run moves, or -1 where it crosses several.
inline int control_axis(const Control& control, int lane) {
  int found = 0, count = 0;
  for (int a = 0; a < 3; a++)
    if (control.matrix[4 * a + lane] != 0) {
      found = a;
      count++;
    }
  return count > 1 ? -1 : found;
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

// Fills in ``control``; false where there is no memory. ``free(control.memory)`` afterwards. ``lane``
// is the axis along which runs follow the grid, or -1 where they are bent before.
inline bool control_of(int64_t address, const int64_t* size, const double* matrix, int lane,
                       Control& control) {
  control.memory = nullptr;
  if (!address) return true;
  for (int a = 0; a < 3; a++) control.size[a] = size[a];
  for (int n = 0; n < 12; n++) control.matrix[n] = matrix[n];
  control.along = lane < 0 ? -1 : control_axis(control, lane);
  control.counts = true;
  for (int a = 0; a < 3 && lane >= 0; a++)
    control.counts =
        control.counts && __builtin_fabs(control.matrix[4 * a + lane]) * RUN + 2.0 < 255.0;
  control.stride[2] = 1;
  control.stride[1] = control.size[2] + 3;
  control.stride[0] = (control.size[1] + 3) * control.stride[1];
  constexpr size_t cells = static_cast<size_t>(CELLS);
  const size_t count = static_cast<size_t>((control.size[0] + 3) * control.stride[0]);
  control.memory = malloc(count * sizeof(Point) + cells * (sizeof(Cell) + sizeof(int64_t)));
  if (!control.memory) return false;
  control.padded = static_cast<Point*>(control.memory);
  control.cells = reinterpret_cast<Cell*>(control.padded + count);
  control.keys = reinterpret_cast<int64_t*>(control.cells + cells);
  for (size_t n = 0; n < cells; n++) control.keys[n] = -1;
  const double* points = reinterpret_cast<const double*>(address);
  find_middle(control, points);
  pad(control, points);
  return true;
}

}  // namespace VOXPIPE_PATH_NAME
