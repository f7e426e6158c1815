// Displacement: a uniform cubic B-spline on a coarse control grid, added to the coordinates.
//
// Control point p lies at control index p; beyond the ends the last one repeats. Every value is a
// weighted mean of control points, so no displacement exceeds the largest of them.
#pragma once

#include "processor.h"
#include "box.h"
#include "taps.h"
#include "turn.h"

namespace VOXPIPE_PATH_NAME {

// One control point: the displacement along each source axis in source voxels, and a spare number.
typedef double Point __attribute__((vector_size(32)));

typedef float Sixteen __attribute__((vector_size(64)));

// The cubic polynomial of one cell: the numbers of s^a t^b u^c, where s, t and u are the places on
// the control axes from the middle of the cell, -1/2 .. 1/2. About the middle no term outgrows the
// sum, so float32 is enough.
struct Cell {
  float of[4][4][4][4];  // by a, b, source axis and c; the fourth source axis is a spare
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
  Cell* cells;        // CELLS of them
  int64_t* keys;      // which cell each of them is, or -1
  void* memory;       // to be freed
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

// Slices of a tile that go through the grid together: what lies between fits a level 1 cache.
constexpr int64_t SLICES = 8;
constexpr int64_t ROUTE = SLICES * TILE * NEAR_RUN;

// Neighbours on a row that lie within one cell.
struct Part {
  int32_t begin;
  int32_t count;
  int64_t key;   // of the cell
  int32_t slot;
  int32_t next;  // of the same slot of the cells, or -1
};

// A polynomial with the place on one control axis worked in: the same for all rows of a slice.
struct Plane {
  int64_t key;
  float place;
  float of[4][16];
};

constexpr int64_t PLANES = 8;

// Some slices of a tile on the control grid.
struct Route {
  float place[3][ROUTE + SPARE];     // from the middle of the cell
  float gathered[3][ROUTE + SPARE];  // places of all voxels of one cell
  Plane plane[PLANES];
  Part part[ROUTE];
  int32_t parts;
  int32_t first[CELLS], last[CELLS];  // part of each slot
};

// How far the voxels of a tile are moved: rows of NEAR_RUN, TILE of them a slice.
struct Bent {
  Box box;
  int lane;
  int across;
  double low[3];   // the least and the largest coordinate of a displaced voxel
  double high[3];
  // In voxels, float32, and then in whole grains, int32.
  float by[3][TILE * TILE * NEAR_RUN + SPARE];
  float more[3][ROUTE + SPARE];  // by an earlier field
  Route route;

  inline int beyond() const { return 3 - lane - across; }
  inline int64_t count(int axis) const { return box.end[axis] - box.begin[axis]; }
  inline int64_t at(const int64_t* index) const {
    const int64_t slice = index[beyond()] - box.begin[beyond()];
    return (slice * TILE + index[across] - box.begin[across]) * NEAR_RUN;
  }
};

// Calls act(index, at) for each row of some slices, with where it begins in them.
template <class Act>
inline void each_row_of(const Bent& bent, Interval slices, const Act& act) {
  int64_t index[3] = {bent.box.begin[0], bent.box.begin[1], bent.box.begin[2]};
  for (int64_t slice = slices.begin; slice < slices.end; slice++)
    for (int64_t row = 0; row < bent.count(bent.across); row++) {
      index[bent.beyond()] = bent.box.begin[bent.beyond()] + slice;
      index[bent.across] = bent.box.begin[bent.across] + row;
      act(index, ((slice - slices.begin) * TILE + row) * NEAR_RUN);
    }
}

inline PerAxis start_of_row(const Bent& bent, const TileGrains& grains, const int64_t* index) {
  return grains.across[index[bent.across] - bent.box.begin[bent.across]] +
         grains.beyond[index[bent.beyond()] - bent.box.begin[bent.beyond()]];
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
        for (int axis = 0; axis < 4; axis++)
          cell.of[a][b][axis][c] = static_cast<float>(l[a][axis]);
    }
}

inline const Cell& cell_at(const Control& control, int64_t slot, int64_t key) {
  if (control.keys[slot] != key) {
    make_cell(control, control.padded + key, control.cells[slot]);
    control.keys[slot] = key;
  }
  return control.cells[slot];
}

// Where runs move along all axes of the grid: 63 products a voxel and source axis, those of all
// voxels within one cell together, in place. Multiplied and added in one step, which halves them,
// and is rounded once, everywhere.
inline void bend_across(const Cell& k, int64_t count, float (*gathered)[ROUTE + SPARE]) {
  for (int64_t n = 0; n < count; n += 2 * LANES) {
    Floats s[2], t[2], u[2];
    for (int m = 0; m < 2; m++) {
      s[m] = vector_at<Floats>(gathered[0] + n + m * LANES);
      t[m] = vector_at<Floats>(gathered[1] + n + m * LANES);
      u[m] = vector_at<Floats>(gathered[2] + n + m * LANES);
    }
    for (int axis = 0; axis < 3; axis++) {
      Floats all[2];
#pragma GCC unroll 4
      for (int a = 3; a >= 0; a--) {
        Floats row[2];
#pragma GCC unroll 4
        for (int b = 3; b >= 0; b--) {
          const float* of = k.of[a][b][axis];
          const Floats k3 = all_of(of[3]), k2 = all_of(of[2]), k1 = all_of(of[1]), k0 = all_of(of[0]);
          for (int m = 0; m < 2; m++) {
            Floats sum = multiply_add(k3, u[m], k2);
            sum = multiply_add(sum, u[m], k1);
            sum = multiply_add(sum, u[m], k0);
            row[m] = b == 3 ? sum : multiply_add(row[m], t[m], sum);
          }
        }
        for (int m = 0; m < 2; m++) all[m] = a == 3 ? row[m] : multiply_add(all[m], s[m], row[m]);
      }
      for (int m = 0; m < 2; m++) put_vector(gathered[axis] + n + m * LANES, all[m]);
    }
  }
}

template <class V>
inline V cubic_of(const V* k, float t) {
  return ((k[3] * t + k[2]) * t + k[1]) * t + k[0];
}

// Where it moves along one axis only: the places on the two others are worked in first.
inline void bend_along(const Cell& k, int64_t key, int along, int64_t turn, Interval part,
                       Route& route, float* const* by) {
  const int64_t v = part.begin;
  const float first = route.place[along == 0 ? 1 : 0][v];
  const float second = route.place[along == 2 ? 1 : 2][v];
  Plane& plane = route.plane[turn];
  Sixteen rows[4];
  if (plane.key != key || plane.place != first) {
    plane.key = key;
    plane.place = first;
    for (int n = 0; n < 4; n++) {
      Sixteen of[4];
      for (int m = 0; m < 4; m++)
        of[m] = vector_at<Sixteen>(along == 0 ? k.of[n][m][0] : k.of[m][n][0]);
      rows[n] = cubic_of(of, first);
    }
    if (along != 2) turn_fours<16>(rows);
    __builtin_memcpy(plane.of, rows, sizeof(rows));
  } else {
    __builtin_memcpy(rows, plane.of, sizeof(rows));
  }
  const Sixteen left = cubic_of(rows, second);
  for (int axis = 0; axis < 3; axis++)
    for (int64_t n = part.begin; n < part.end; n += LANES) {
      const Floats t = vector_at<Floats>(route.place[along] + n);
      Floats sum = all_of(left[4 * axis + 3]) * t + all_of(left[4 * axis + 2]);
      sum = sum * t + all_of(left[4 * axis + 1]);
      put_vector(by[axis] + n, sum * t + all_of(left[4 * axis]));
    }
}

// Neighbours within the cell at ``index`` of the grid: bent at once, or noted.
inline void add_part(const Control& control, const int64_t* index, Interval part, Route& route,
                     float* const* by) {
  int64_t slot = 0, key = 0;
  for (int a = 0; a < 3; a++) {
    slot = (slot << CELL_BITS[a]) | (index[a] & ((int64_t{1} << CELL_BITS[a]) - 1));
    key += index[a] * control.stride[a];
  }
  if (control.along >= 0)
    return bend_along(cell_at(control, slot, key), key, control.along,
                      index[control.along] & (PLANES - 1), part, route, by);
  const int32_t n = route.parts++;
  route.part[n] = Part{static_cast<int32_t>(part.begin),
                       static_cast<int32_t>(part.end - part.begin), key,
                       static_cast<int32_t>(slot), -1};
  if (route.first[slot] < 0) route.first[slot] = n;
  else route.part[route.last[slot]].next = n;
  route.last[slot] = n;
}

// The parts of a row that begins at ``at``: ``ends`` has a bit for each voxel whose next one lies in
// another cell, and cell(a, v) is where on an axis a voxel lies.
template <class CellOf>
VOXPIPE_INLINE void add_parts(const Control& control, uint64_t ends, int64_t count, int64_t at,
                              const CellOf& cell, Route& route, float* const* by) {
  ends = (ends & ((uint64_t{1} << (count - 1)) - 1)) | uint64_t{1} << (count - 1);
  for (int64_t begin = 0, end; ends; ends &= ends - 1, begin = end) {
    end = __builtin_ctzll(ends) + 1;
    const int64_t index[3] = {cell(0, begin), cell(1, begin), cell(2, begin)};
    add_part(control, index, Interval{at + begin, at + end}, route, by);
  }
}

// Voxels of one cell that come from several rows: places are gathered, and moves go back.
inline void bend_parts(const Control& control, int32_t first, Route& route, float* const* by) {
  for (int32_t from = first, end; from >= 0; from = end) {
    const int64_t key = route.part[from].key, slot = route.part[from].slot;
    int64_t count = 0;
    for (end = from; end >= 0 && route.part[end].key == key; end = route.part[end].next) {
      const Part& part = route.part[end];
      for (int a = 0; a < 3; a++)
        for (int64_t n = 0; n < part.count; n += LANES)
          put_vector(route.gathered[a] + count + n,
                     vector_at<Floats>(route.place[a] + part.begin + n));
      count += part.count;
    }
    bend_across(cell_at(control, slot, key), count, route.gathered);
    count = 0;
    for (int32_t n = from; n != end; n = route.part[n].next) {
      const Part& part = route.part[n];
      for (int a = 0; a < 3; a++)
        for (int64_t v = 0; v < part.count; v += LANES)
          put_some(by[a] + part.begin + v, vector_at<Floats>(route.gathered[a] + count + v),
                   part.count - v);
      count += part.count;
    }
  }
}

inline void bend_noted(const Control& control, Route& route, float* const* by) {
  for (int32_t n = 0; n < route.parts; n++) {
    const int32_t slot = route.part[n].slot;
    if (route.first[slot] != n) continue;
    bend_parts(control, n, route, by);
    route.first[slot] = -1;
  }
  route.parts = 0;
}

// Places of a tile on the grid, in integers: kept on it by limits, as grains more than ``origin``.
struct Steps {
  TileGrains grains;
  int64_t origin[3];
  uint32_t low[3];
  uint32_t high[3];
};

inline void count_steps(const Control& control, const double* const* grid, const Bent& bent,
                        Steps& steps) {
  count_tile(grid, bent.lane, bent.box, bent.across, steps.grains);
  for (int a = 0; a < 3; a++) {
    double low, high;
    extremes(grid[a], bent.box, &low, &high);
    const double last = static_cast<double>(control.size[a] - 1), origin = steps.grains.origin[a];
    const bool is_off = high <= 0 || low >= last;
    steps.origin[a] = static_cast<int64_t>(is_off ? (high <= 0 ? 0 : last) : origin);
    steps.low[a] = is_off ? 0 : static_cast<uint32_t>(most(-origin, 0.0) * GRAINS);
    steps.high[a] = is_off ? 0 : static_cast<uint32_t>(least(last - origin, 255.0) * GRAINS);
  }
}

inline void follow(const Control& control, const Bent& bent, const Steps& steps, Interval slices,
                   Route& route, float* const* by) {
  const int64_t count = bent.count(bent.lane);
  each_row_of(bent, slices, [&](const int64_t* index, int64_t at) {
    const PerAxis start = start_of_row(bent, steps.grains, index);
    const auto place_at = [&](int a, int64_t v) {
      return kept(vector_at<Words>(steps.grains.along[a] + v) + start[a], steps.low[a],
                  steps.high[a]);
    };
    uint64_t ends = 0;
    for (int64_t v = 0; v < count; v += LANES) {
      Words differ = {};
      for (int a = 0; a < 3; a++) {
        const Words place = place_at(a, v);
        differ |= place ^ place_at(a, v + 1);
        put_vector(route.place[a] + at + v, fraction_of(place & BELOW_VOXEL) - 0.5f);
      }
      ends |= static_cast<uint64_t>(marked_lanes((Ints)(differ > BELOW_VOXEL))) << v;
    }
    const auto cell = [&](int a, int64_t v) {
      const uint32_t place = steps.grains.along[a][v] + start[a];
      return steps.origin[a] + (least(most(place, steps.low[a]), steps.high[a]) >> GRAIN_BITS);
    };
    add_parts(control, ends, count, at, cell, route, by);
  });
}

// The field of an earlier op, at the places where the later one leads: added to its moves.
inline void bend_again(const Control& control, const double* const* rows, Interval slices, Bent& bent) {
  const int64_t from = slices.begin * TILE * NEAR_RUN, begin = bent.box.begin[bent.lane];
  const int64_t count = bent.count(bent.lane);
  float* const more[3] = {bent.more[0], bent.more[1], bent.more[2]};
  each_row_of(bent, slices, [&](const int64_t* index, int64_t at) {
    int64_t cell[3][NEAR_RUN];
    Line lines[3];
    for (int a = 0; a < 3; a++) lines[a] = line_of(rows[a], bent.lane, index);
    for (int a = 0; a < 3; a++)
      for (int64_t v = 0; v < count; v++) {
        double place = control.matrix[4 * a + 3];
        for (int c = 0; c < 3; c++)
          place += control.matrix[4 * a + c] *
                   (lines[c].at(begin + v) + static_cast<double>(bent.by[c][from + at + v]) -
                    control.middle[c]);
        place = least(most(place, 0.0), static_cast<double>(control.size[a] - 1));
        const double whole = floor_of(place);
        cell[a][v] = whole_to_int(whole);
        bent.route.place[a][at + v] = static_cast<float>(place - whole - 0.5);
      }
    uint64_t ends = 0;
    for (int64_t v = 0; v + 1 < count; v++)
      for (int a = 0; a < 3; a++) ends |= uint64_t{cell[a][v] != cell[a][v + 1]} << v;
    add_parts(control, ends, count, at, [&](int a, int64_t v) { return cell[a][v]; }, bent.route, more);
  });
  bend_noted(control, bent.route, more);
  each_row_of(bent, slices, [&](const int64_t*, int64_t at) {
    for (int c = 0; c < 3; c++)
      for (int64_t v = at; v < at + count; v++) bent.by[c][from + v] += more[c][v];
  });
}

// Moves as grains, and where they lead at the most.
inline void count_moves(const TileGrains& tile, Bent& bent) {
  const int64_t count = bent.count(bent.lane);
  for (int a = 0; a < 3; a++) {
    Ints lowest = Ints{} + INT32_MAX, highest = Ints{} + INT32_MIN;
    each_row_of(bent, Interval{0, bent.count(bent.beyond())}, [&](const int64_t* index, int64_t at) {
      const uint32_t start = start_of_row(bent, tile, index)[a];
      float* const by = bent.by[a] + at;
      for (int64_t v = count; v < NEAR_RUN; v++) by[v] = by[count - 1];
      for (int64_t v = 0; v < NEAR_RUN; v += LANES) {
        const Ints moved = round_int(vector_at<Floats>(by + v) * static_cast<float>(GRAINS));
        put_vector(by + v, moved);
        // In units of 64 grains, which leaves room for a sign; less exact is enough for an end.
        const Ints there = (Ints)((vector_at<Words>(tile.along[a] + v) + start) >> 6) + (moved >> 6);
        lowest = there < lowest ? there : lowest;
        highest = there > highest ? there : highest;
      }
    });
    int32_t low = lowest[0], high = highest[0];
    for (int n = 1; n < LANES; n++) {
      low = least(low, lowest[n]);
      high = most(high, highest[n]);
    }
    bent.low[a] = tile.origin[a] + low * (64 * GRAIN);
    bent.high[a] = tile.origin[a] + (high + 2) * (64 * GRAIN);
  }
}

// Where the tile of output voxels in ``bent.box`` goes, whose coordinates, by the ``rows`` of the
// pull-back, are ``tile`` before it is moved.
inline void bend_tile(const Control& control, const Control& earlier, const double* const* rows,
                      const TileGrains& tile, Bent& bent) {
  const double* const grid[3] = {control.matrix, control.matrix + 4, control.matrix + 8};
  Steps steps;
  count_steps(control, grid, bent, steps);
  const int64_t last = bent.count(bent.beyond());
  for (int64_t slice = 0; slice < last; slice += SLICES) {
    const Interval slices{slice, least(slice + SLICES, last)};
    const int64_t from = slice * TILE * NEAR_RUN;
    float* const by[3] = {bent.by[0] + from, bent.by[1] + from, bent.by[2] + from};
    follow(control, bent, steps, slices, bent.route, by);
    bend_noted(control, bent.route, by);
    if (earlier.memory) bend_again(earlier, rows, slices, bent);
  }
  count_moves(tile, bent);
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
// is the axis along which runs follow the grid, or -1 for a field that is met anywhere.
inline bool control_of(int64_t address, const int64_t* size, const double* matrix, int lane,
                       Control& control) {
  control.memory = nullptr;
  if (!address) return true;
  for (int a = 0; a < 3; a++) control.size[a] = size[a];
  for (int n = 0; n < 12; n++) control.matrix[n] = matrix[n];
  control.along = lane < 0 ? -1 : control_axis(control, lane);
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

inline void begin_route(Route& route) {
  route.parts = 0;
  for (int32_t& first : route.first) first = -1;
  for (Plane& plane : route.plane) plane.key = -1;
}

}  // namespace VOXPIPE_PATH_NAME
