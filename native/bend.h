// Displacement: a uniform cubic B-spline on a coarse control grid, added to the coordinates.
//
// Control point p lies at control index p; beyond the ends the last one repeats. Every value is a
// weighted mean of control points, so no displacement exceeds the largest of them.
#pragma once

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
  // c + 3) of them; to be freed, as all that follows lies behind them. Null without a field.
  Point* points;
  int64_t stride[3];  // between points
  Cell* cells;        // CELLS of them
  int64_t* keys;      // which cell each of them is, or -1
};

// A cubic B-spline between the two middle ones of four points, as powers of the place from the middle.
inline void about_middle(Point* k, int step) {
  const Point p0 = k[0], p1 = k[step], p2 = k[2 * step], p3 = k[3 * step];
  k[0] = ((p0 + p3) + 23 * (p1 + p2)) / 48;
  k[step] = ((p3 - p0) + 5 * (p2 - p1)) / 8;
  k[2 * step] = ((p0 + p3) - (p1 + p2)) / 4;
  k[3 * step] = ((p3 - p0) + 3 * (p1 - p2)) / 6;
}

// Slices of a tile that go through the grid together: what lies between fits a level 1 cache.
constexpr int64_t SLICES = 8;
constexpr int64_t ROUTE = SLICES * TILE * NEAR_RUN;

// Neighbours on a row that lie within the cell of a slot.
struct Part {
  int32_t begin, count;
  int32_t slot, next;  // the next part of the same one, or -1
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
  int32_t first[CELLS], last[CELLS];  // part of each slot, or -1
  float* by[3];                       // how far voxels are moved, where their places are
};

// How far the voxels of a tile are moved: rows of NEAR_RUN, TILE of them a slice.
struct Bent {
  int64_t count, rows, slices;  // of voxels in a row, and so on
  // In voxels, float32, and then in whole grains, int32.
  float by[3][TILE * TILE * NEAR_RUN + SPARE];
  float more[3][ROUTE + SPARE];  // by an earlier field
  Route route;
};

// Calls act(start, at) for each row of some slices: the grains that it begins with, and its place.
template <class Act>
inline void each_row_of(const Bent& bent, const TileGrains& grains, Interval slices, const Act& act) {
  for (int64_t slice = slices.begin; slice < slices.end; slice++)
    for (int64_t row = 0; row < bent.rows; row++)
      act(grains.across[row] + grains.beyond[slice], ((slice - slices.begin) * TILE + row) * NEAR_RUN);
}

// The polynomial of the cell whose first point is ``from``: one axis after the other.
inline void make_cell(const Control& control, const Point* from, Cell& cell) {
  Point k[64];  // by a, b and c
  for (int n = 0; n < 64; n++) {
    const Point* at = from + n / 16 * control.stride[0] + n / 4 % 4 * control.stride[1] + n % 4;
    k[n] = load<Point>(reinterpret_cast<const uint8_t*>(at));
  }
  for (int step = 1; step < 64; step *= 4)
    for (int n = 0; n < 64; n++)
      if (n / step % 4 == 0) about_middle(k + n, step);
  for (int n = 0; n < 64; n++)
    for (int axis = 0; axis < 4; axis++)
      cell.of[n / 16][n / 4 % 4][axis][n % 4] = static_cast<float>(k[n][axis]);
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

inline Sixteen cubic_of(const Sixteen* k, float t) {
  return ((k[3] * t + k[2]) * t + k[1]) * t + k[0];
}

// Where it moves along one axis only: the places on the two others are worked in first.
inline void bend_along(const Cell& k, int64_t key, int along, Interval part, Plane& plane,
                       Route& route) {
  const float first = route.place[along == 0 ? 1 : 0][part.begin];
  const float second = route.place[along == 2 ? 1 : 2][part.begin];
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
      put_vector(route.by[axis] + n, sum * t + all_of(left[4 * axis]));
    }
}

// Voxels of one cell that come from several rows: places are gathered, and moves go back.
inline void bend_cell(const Cell& cell, int64_t slot, Route& route) {
  int64_t count = 0;
  for (int32_t n = route.first[slot]; n >= 0; n = route.part[n].next) {
    const Part& part = route.part[n];
    for (int a = 0; a < 3; a++)
      for (int64_t v = 0; v < part.count; v += LANES)
        put_vector(route.gathered[a] + count + v,
                   vector_at<Floats>(route.place[a] + part.begin + v));
    count += part.count;
  }
  bend_across(cell, count, route.gathered);
  count = 0;
  for (int32_t n = route.first[slot]; n >= 0; n = route.part[n].next) {
    const Part& part = route.part[n];
    for (int a = 0; a < 3; a++)
      for (int64_t v = 0; v < part.count; v += LANES)
        put_some(route.by[a] + part.begin + v, vector_at<Floats>(route.gathered[a] + count + v),
                 part.count - v);
    count += part.count;
  }
  route.first[slot] = -1;
}

inline void bend_noted(const Control& control, Route& route) {
  for (int32_t n = 0; n < route.parts; n++) {
    const int32_t slot = route.part[n].slot;
    if (route.first[slot] >= 0) bend_cell(control.cells[slot], slot, route);
  }
  route.parts = 0;
}

// Neighbours within the cell at ``index`` of the grid: bent at once, or noted.
inline void add_part(const Control& control, const int64_t* index, Interval part, Route& route) {
  int64_t slot = 0, key = 0;
  for (int a = 0; a < 3; a++) {
    slot = (slot << CELL_BITS[a]) | (index[a] & ((int64_t{1} << CELL_BITS[a]) - 1));
    key += index[a] * control.stride[a];
  }
  Cell& cell = control.cells[slot];
  if (control.keys[slot] != key) {
    if (route.first[slot] >= 0) bend_cell(cell, slot, route);  // what is noted of another one
    make_cell(control, control.points + key, cell);
    control.keys[slot] = key;
  }
  if (control.along >= 0)
    return bend_along(cell, key, control.along, part,
                      route.plane[index[control.along] & (PLANES - 1)], route);
  const int32_t n = route.parts++;
  route.part[n] = Part{static_cast<int32_t>(part.begin), static_cast<int32_t>(part.end - part.begin),
                       static_cast<int32_t>(slot), -1};
  (route.first[slot] < 0 ? route.first[slot] : route.part[route.last[slot]].next) = n;
  route.last[slot] = n;
}

// The parts of a row that begins at ``at``: ``ends`` has a bit for each voxel whose next one lies in
// another cell, and cell(a, v) is where on an axis a voxel lies.
template <class CellOf>
VOXPIPE_INLINE void add_parts(const Control& control, uint64_t ends, int64_t count, int64_t at,
                              const CellOf& cell, Route& route) {
  ends = (ends & ((uint64_t{1} << (count - 1)) - 1)) | uint64_t{1} << (count - 1);
  for (int64_t begin = 0, end; ends; ends &= ends - 1, begin = end) {
    end = __builtin_ctzll(ends) + 1;
    const int64_t index[3] = {cell(0, begin), cell(1, begin), cell(2, begin)};
    add_part(control, index, Interval{at + begin, at + end}, route);
  }
}

// Places of a tile on the grid, in integers: kept on it by limits, as grains more than ``origin``.
struct Steps {
  TileGrains grains;
  int64_t origin[3];
  uint32_t low[3];
  uint32_t high[3];
};

inline Steps steps_of(const Control& control, const Box& box, int lane, int across) {
  Steps steps;
  const double* const rows[3] = {control.matrix, control.matrix + 4, control.matrix + 8};
  count_tile(rows, lane, box, across, steps.grains);
  for (int a = 0; a < 3; a++) {
    double low, high;
    extremes(rows[a], box, &low, &high);
    const double last = static_cast<double>(control.size[a] - 1), origin = steps.grains.origin[a];
    const bool is_off = high <= 0 || low >= last;
    steps.origin[a] = static_cast<int64_t>(is_off ? (high <= 0 ? 0 : last) : origin);
    steps.low[a] = is_off ? 0 : static_cast<uint32_t>(most(-origin, 0.0) * GRAINS);
    steps.high[a] = is_off ? 0 : static_cast<uint32_t>(least(last - origin, 255.0) * GRAINS);
  }
  return steps;
}

inline void follow(const Control& control, const Steps& steps, Interval slices, Bent& bent) {
  Route& route = bent.route;
  const int64_t count = bent.count;
  each_row_of(bent, steps.grains, slices, [&](PerAxis start, int64_t at) {
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
    add_parts(control, ends, count, at, cell, route);
  });
  bend_noted(control, route);
}

// The field of an earlier op, at the places where the later one leads: added to its moves, ``by``.
inline void bend_again(const Control& control, const TileGrains& tile, Interval slices,
                       float* const* by, Bent& bent) {
  const int64_t count = bent.count;
  for (int a = 0; a < 3; a++) bent.route.by[a] = bent.more[a];
  each_row_of(bent, tile, slices, [&](PerAxis start, int64_t at) {
    int64_t cell[3][NEAR_RUN];
    for (int a = 0; a < 3; a++)
      for (int64_t v = 0; v < count; v++) {
        double place = control.matrix[4 * a + 3];
        for (int c = 0; c < 3; c++)
          place += control.matrix[4 * a + c] *
                   (tile.origin[c] + (tile.along[c][v] + start[c]) * GRAIN +
                    static_cast<double>(by[c][at + v]) - control.middle[c]);
        place = least(most(place, 0.0), static_cast<double>(control.size[a] - 1));
        const double whole = floor_of(place);
        cell[a][v] = whole_to_int(whole);
        bent.route.place[a][at + v] = static_cast<float>(place - whole - 0.5);
      }
    uint64_t ends = 0;
    for (int64_t v = 0; v + 1 < count; v++)
      for (int a = 0; a < 3; a++) ends |= uint64_t{cell[a][v] != cell[a][v + 1]} << v;
    add_parts(control, ends, count, at, [&](int a, int64_t v) { return cell[a][v]; }, bent.route);
  });
  bend_noted(control, bent.route);
  each_row_of(bent, tile, slices, [&](PerAxis, int64_t at) {
    for (int c = 0; c < 3; c++)
      for (int64_t v = at; v < at + count; v++) by[c][v] += bent.more[c][v];
  });
}

// Moves as grains, and where they lead at the most: the least and the largest coordinate.
inline void count_moves(const TileGrains& tile, Bent& bent, double* least_at, double* most_at) {
  for (int a = 0; a < 3; a++) {
    Ints lowest = Ints{} + INT32_MAX, highest = Ints{} + INT32_MIN;
    each_row_of(bent, tile, Interval{0, bent.slices}, [&](PerAxis start, int64_t at) {
      float* const by = bent.by[a] + at;
      for (int64_t v = bent.count; v < NEAR_RUN; v++) by[v] = by[bent.count - 1];
      for (int64_t v = 0; v < NEAR_RUN; v += LANES) {
        const Ints moved = round_int(vector_at<Floats>(by + v) * static_cast<float>(GRAINS));
        put_vector(by + v, moved);
        // In units of 64 grains, which leaves room for a sign; less exact is enough for an end.
        const Ints there = (Ints)((vector_at<Words>(tile.along[a] + v) + start[a]) >> 6) + (moved >> 6);
        lowest = there < lowest ? there : lowest;
        highest = there > highest ? there : highest;
      }
    });
    int32_t low = lowest[0], high = highest[0];
    for (int n = 1; n < LANES; n++) {
      low = least(low, lowest[n]);
      high = most(high, highest[n]);
    }
    least_at[a] = tile.origin[a] + low * (64 * GRAIN);
    most_at[a] = tile.origin[a] + (high + 2) * (64 * GRAIN);
  }
}

// How far voxels are moved whose coordinates are ``tile``, and whose places on the grid are ``steps``;
// the least and the largest coordinate afterwards.
inline void bend_tile(const Control& control, const Control& earlier, const Steps& steps,
                      const TileGrains& tile, Bent& bent, double* low, double* high) {
  for (int64_t slice = 0; slice < bent.slices; slice += SLICES) {
    const Interval slices{slice, least(slice + SLICES, bent.slices)};
    float* by[3];
    for (int a = 0; a < 3; a++) bent.route.by[a] = by[a] = bent.by[a] + slice * TILE * NEAR_RUN;
    follow(control, steps, slices, bent);
    if (earlier.points) bend_again(earlier, tile, slices, by, bent);
  }
  count_moves(tile, bent, low, high);
}

// Takes the middle out of the points of a field, and pads them.
inline void take_points(const double* from, Control& control) {
  const int64_t *size = control.size, all = size[0] * size[1] * size[2];
  for (int c = 0; c < 3; c++) {
    double low = from[c * all], high = low;
    for (int64_t n = 1; n < all; n++) {
      low = least(low, from[c * all + n]);
      high = most(high, from[c * all + n]);
    }
    control.middle[c] = round_even((low + high) / 2);
    // One more: the sums of a spline are rounded.
    control.reach[c] = floor_of((high - low) / 2) + 2;
  }
  const auto within = [](int64_t n, int64_t count) { return most<int64_t>(0, least(n, count - 1)); };
  uint8_t* to = reinterpret_cast<uint8_t*>(control.points);
  for (int64_t i = -1; i < size[0] + 2; i++)
    for (int64_t j = -1; j < size[1] + 2; j++)
      for (int64_t k = -1; k < size[2] + 2; k++, to += sizeof(Point)) {
        const double* p = from + (within(i, size[0]) * size[1] + within(j, size[1])) * size[2] +
                          within(k, size[2]);
        put(to, Point{p[0] - control.middle[0], p[all] - control.middle[1],
                      p[2 * all] - control.middle[2], 0.0});
      }
}

// Fills in ``control``; false where there is no memory. ``lane`` is the axis along which runs follow
// the grid, or -1 for a field that is met anywhere.
inline bool control_of(int64_t address, const int64_t* size, const double* matrix, int lane,
                       Control& control) {
  control.points = nullptr;
  if (!address) return true;
  memcpy(control.size, size, sizeof(control.size));
  memcpy(control.matrix, matrix, sizeof(control.matrix));
  control.along = lane < 0 ? -1 : 0;
  for (int a = 0, crossed = 0; a < 3 && lane >= 0; a++)
    if (matrix[4 * a + lane] != 0) control.along = crossed++ ? -1 : a;
  control.stride[2] = 1;
  control.stride[1] = size[2] + 3;
  control.stride[0] = (size[1] + 3) * control.stride[1];
  const size_t count = static_cast<size_t>((size[0] + 3) * control.stride[0]);
  control.points = static_cast<Point*>(
      malloc(count * sizeof(Point) + CELLS * (sizeof(Cell) + sizeof(int64_t))));
  if (!control.points) return false;
  control.cells = reinterpret_cast<Cell*>(control.points + count);
  control.keys = reinterpret_cast<int64_t*>(control.cells + CELLS);
  for (int64_t n = 0; n < CELLS; n++) control.keys[n] = -1;
  take_points(reinterpret_cast<const double*>(address), control);
  return true;
}

inline void begin_route(Route& route) {
  route.parts = 0;
  for (int32_t& first : route.first) first = -1;
  for (Plane& plane : route.plane) plane.key = -1;
}

}  // namespace VOXPIPE_PATH_NAME
