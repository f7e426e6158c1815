// The taps of a run: a byte offset and three weights per output voxel.
//
// ``inside`` is the loop that most voxels take: no clamping, no branch. ``anywhere`` is the
// general one; it gives bit for bit the same where both apply.
#pragma once

#include "processor.h"
#include "vectors.h"
#include "box.h"

namespace VOXPIPE_PATH_NAME {

template <class W>
struct Taps {
  int64_t from;                  // bytes from voxel (0, 0, 0) at hand to where offsets count from
  int32_t offset[RUN + SPARE];   // and from there to the lower tap: run_length sees to it that they fit
  W weight[3][RUN + SPARE];      // of the upper tap on each axis
  double fade[RUN + SPARE];      // padding "zeros": how far inside, 0 .. 1
};

// The same for one tap per voxel.
struct Spots {
  int64_t from;
  int32_t offset[RUN + SPARE];
};

// What is added to the coordinates of a run, in integers.
struct Grains {
  double low[3];                    // at least so many voxels
  uint32_t grains[3][RUN + SPARE];  // and so many grains more, below 2^32: see run_length
};

// What the index along the lane adds to the coordinates of a run: the same for all runs that begin
// at the same index, and kept until one begins elsewhere.
struct Advance : Grains {
  int64_t begin;              // first voxel of the run; -1 as long as there is none
  double by[3][RUN + SPARE];  // in voxels
};

inline void count_grains(double slope, Interval run, double& low, double* by, uint32_t* grains) {
  const int64_t count = run.end - run.begin;
  low = to_grain(slope * static_cast<double>(slope < 0 ? run.end - 1 : run.begin));
  Doubles v;
  for (int n = 0; n < LANES / 2; n++) v[n] = static_cast<double>(run.begin + n);
  for (int64_t n = 0; n < count + SPARE; n += LANES / 2, v += LANES / 2)
    put_vector(by + n, to_grain(slope * v));
  for (int64_t n = 0; n < count + SPARE; n++)
    grains[n] = static_cast<uint32_t>(whole_to_int((by[n] - low) * GRAINS));
}

inline void advance_to(const Geometry& g, Interval run, Advance& advance) {
  if (advance.begin == run.begin) return;  // runs that begin together end together
  advance.begin = run.begin;
  for (int a = 0; a < 3; a++)
    count_grains(g.axis[a].row[g.lane], run, advance.low[a], advance.by[a], advance.grains[a]);
}

// Where a run begins on one axis, in integers: coordinates are ``grains`` more than ``voxel``.
struct Start {
  int64_t voxel;
  uint32_t grains;
  int32_t step;
};

// In integers, which a processor has sooner than float64: short runs wait for where they begin.
inline Start start_of(const Axis& axis, const Line& line, double low, bool even) {
  const int64_t at = static_cast<int64_t>((line.rest + low) * GRAINS);  // whole, below 2^52
  const int bits = even ? GRAIN_BITS + 1 : GRAIN_BITS;
  const int64_t whole = at >> bits;
  return {even ? 2 * whole : whole, static_cast<uint32_t>(at - whole * (int64_t{1} << bits)),
          static_cast<int32_t>(axis.step)};
}

inline Floats fraction_of(Words grains) {
  return __builtin_convertvector((Ints)(grains & BELOW_VOXEL), Floats) * static_cast<float>(GRAIN);
}

inline void put_weight(float* to, Words grains) { put_vector(to, fraction_of(grains)); }

inline void put_weight(double* to, Words grains) {
  for (int n = 0; n < LANES; n++) to[n] = static_cast<double>(grains[n] & BELOW_VOXEL) * GRAIN;
}

// Whole vectors: a few voxels behind the end are worked out too, and never used.
template <class W>
inline void inside(const Geometry& g, const Line* lines, const Grains& advance, int64_t skip,
                   int64_t count, Taps<W>& taps) {
  Start start[3];
  taps.from = 0;
  for (int a = 0; a < 3; a++) {
    start[a] = start_of(g.axis[a], lines[a], advance.low[a], false);
    taps.from += (start[a].voxel - static_cast<int64_t>(g.axis[a].start)) * g.axis[a].step;
  }
  for (int64_t v = 0; v < count; v += LANES) {
    Ints offset = {};
    for (int a = 0; a < 3; a++) {
      const Words at = vector_at<Words>(advance.grains[a] + skip + v) + start[a].grains;
      put_weight(taps.weight[a] + v, at);
      offset += (Ints)(at >> GRAIN_BITS) * start[a].step;
    }
    put_vector(taps.offset + v, offset);
  }
}

// Half to even: the run starts at an even voxel, so the last bit of the whole part says which.
inline void inside_nearest(const Geometry& g, const Line* lines, const Grains& advance,
                           int64_t skip, int64_t count, Spots& spots) {
  Start start[3];
  spots.from = 0;
  for (int a = 0; a < 3; a++) {
    start[a] = start_of(g.axis[a], lines[a], advance.low[a], true);
    spots.from += (start[a].voxel - static_cast<int64_t>(g.axis[a].start)) * g.axis[a].step;
    start[a].grains += (1u << (GRAIN_BITS - 1)) - 1;
  }
  for (int64_t v = 0; v < count; v += LANES) {
    Ints offset = {};
    for (int a = 0; a < 3; a++) {
      const Words c = vector_at<Words>(advance.grains[a] + skip + v);
      const Words at = c + start[a].grains;
      const Words odd = ((at - ((1u << (GRAIN_BITS - 1)) - 1)) >> GRAIN_BITS) & 1;
      offset += (Ints)((at + odd) >> GRAIN_BITS) * start[a].step;
    }
    put_vector(spots.offset + v, offset);
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
      put_vector(places.at[a] + v, vector_at<Doubles>(advance.by[a] + skip + v) + lines[a].rest);
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
  double from = g.origin;
  for (int a = 0; a < 3; a++) {
    const Axis& axis = g.axis[a];
    from += most(axis.start, least(axis.end - 1.0, floor_of(places.at[a][0]))) * axis.stride;
  }
  taps.from = whole_to_int(from);
  for (int64_t v = 0; v < count; v += LANES / 2) {
    Doubles offset = Doubles{} + (g.origin - from);
    for (int a = 0; a < 3; a++) {
      const Axis& axis = g.axis[a];
      const Doubles c = vector_at<Doubles>(places.at[a] + v);
      const Doubles lower = between(floor_of(c), axis.start, axis.end - 1.0);
      const Doubles weight = c - lower;
      put_vector(taps.weight[a] + v,
                 as_weight(axis.leaves ? between(weight, 0.0, 1.0) : weight, W{}));
      offset += lower * axis.stride;
    }
    put_vector(taps.offset + v, __builtin_convertvector(offset, HalfInts));
  }
  return true;
}

// Offsets as differences from the first one, which is returned.
inline int64_t count_from(const double* offset, int64_t count, int32_t* difference) {
  for (int64_t v = 0; v < count; v++)
    difference[v] = static_cast<int32_t>(offset[v] - offset[0]);
  return whole_to_int(offset[0]);
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
  taps.from = count_from(offset, count, taps.offset);
}

inline void anywhere_nearest(const Geometry& g, int64_t count, Places& places, Spots& spots) {
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
  spots.from = count_from(offset, count, spots.offset);
}

// Whole vectors behind the end of a run read the last voxel again.
template <class W>
inline void spare(int64_t count, Taps<W>& taps) {
  for (int64_t v = count; v < count + SPARE; v++) {
    taps.offset[v] = taps.offset[count - 1];
    for (int a = 0; a < 3; a++) taps.weight[a][v] = 0;
  }
}

// The coordinates of a tile in integers: the sum of three of these, in grains more than ``origin``.
// Sums of grains are exact, so they are those of ``Line``.
struct TileGrains {
  double origin[3];
  uint32_t along[3][NEAR_RUN + SPARE];  // by the index on the lane
  uint32_t across[3][TILE];             // by those on the other two
  uint32_t beyond[3][TILE];
};

inline double least_along(double slope, int64_t begin, int64_t end) {
  return to_grain(slope * static_cast<double>(slope < 0 ? end - 1 : begin));
}

inline void list_grains(double slope, int64_t begin, int64_t end, double low, int64_t count,
                        uint32_t* grains) {
  for (int64_t n = 0; n < count; n++) {
    const double at = to_grain(slope * static_cast<double>(least(begin + n, end - 1)));
    grains[n] = static_cast<uint32_t>(whole_to_int((at - low) * GRAINS));
  }
}

// Nearest voxels are counted from an even one, so that the last bit of the whole part says how to
// round a half.
inline void count_tile(const double* const* rows, int lane, const Box& box, int across, bool even,
                       TileGrains& tile) {
  const int beyond = 3 - lane - across;
  for (int a = 0; a < 3; a++) {
    const double* row = rows[a];
    double low[3], sum = to_grain(row[3]);
    for (int n = 0; n < 3; n++) sum += low[n] = least_along(row[n], box.begin[n], box.end[n]);
    tile.origin[a] = even ? 2 * floor_of(sum / 2) : floor_of(sum);
    const double rest = sum - tile.origin[a];
    list_grains(row[lane], box.begin[lane], box.end[lane], low[lane], NEAR_RUN + SPARE,
                tile.along[a]);
    list_grains(row[across], box.begin[across], box.end[across], low[across], TILE,
                tile.across[a]);
    list_grains(row[beyond], box.begin[beyond], box.end[beyond], low[beyond] - rest, TILE,
                tile.beyond[a]);
  }
}

}  // namespace VOXPIPE_PATH_NAME
