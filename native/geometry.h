// Where an output voxel comes from, and which output voxels need no second thought.
//
// A coordinate is the sum of m0*i, m1*j, m2*k and t, each rounded to a multiple of a grain, 2^-24
// voxel (spatial/plans/pull_back.py does the same). Sums of grains are exact, in float64 as in integers
// and in any order, so the kernel may add 32-bit integers and still round to the voxel of the slow
// path; and what is left behind the whole part has the 24 bits that a float32 holds.
#pragma once

#include "numbers.h"

namespace VOXPIPE_PATH_NAME {

constexpr int GRAIN_BITS = 24;
constexpr double GRAINS = 16777216.0;  // in a voxel
constexpr double GRAIN = 1.0 / GRAINS;
constexpr uint32_t BELOW_VOXEL = (1u << GRAIN_BITS) - 1;

// Exact for what the kernel takes, which is below 2^26 voxels.
inline double to_grain(double x) { return round_even(x * GRAINS) * GRAIN; }

inline double even_below(double at) { return 2 * floor_of(at / 2); }

// Output voxels of one run. A patch is rarely longer; what a run needs is 8 KiB, which stays in a
// level 1 cache.
constexpr int64_t RUN = 128;
// A vector loop may work on whole vectors behind the end of a run.
constexpr int64_t SPARE = 16;

// A coordinate this close to a voxel centre needs no neighbour (CENTRE_TOLERANCE there).
constexpr double CENTRE_TOLERANCE = 1e-6;
// How far beyond the last centre a coordinate still clamps to it before it is fill.
constexpr double REACH = 0.5 + CENTRE_TOLERANCE;

struct Axis {
  double row[4];   // row of the pull-back
  double first;    // voxels that count as volume, both ends included
  double last;
  double start;    // voxels at hand, both ends included
  double end;
  int64_t step;    // bytes
  bool leaves;     // some coordinate of the output lies outside the volume
  bool single;     // one tap is enough: one voxel at hand, or only voxel centres are met
  bool reflects;   // and is folded back
};

struct Geometry {
  Axis axis[3];
  int lane;          // output axis of the runs
};

// A source coordinate along one run, where v is the index along the lane.
struct Line {
  double slope;
  double rest;  // what the two other indices and the shift add

  inline double at(double v) const { return to_grain(slope * v) + rest; }
  inline double at(int64_t v) const { return at(static_cast<double>(v)); }
};

// ``index`` is that of any voxel of the run.
inline Line line_of(const double* row, int lane, const int64_t* index) {
  double rest = to_grain(row[3]);
  for (int n = 0; n < 3; n++)
    if (n != lane) rest += to_grain(row[n] * static_cast<double>(index[n]));
  return Line{row[lane], rest};
}

// A box of output voxels.
struct Box {
  int64_t begin[3];
  int64_t end[3];

  inline int64_t length(int a) const { return end[a] - begin[a]; }
};

// The least and the largest coordinate of a box of output voxels, as ``Line`` has them.
inline void extremes(const double* row, const Box& box, double* low, double* high) {
  *low = *high = to_grain(row[3]);
  for (int n = 0; n < 3; n++) {
    const double a = to_grain(row[n] * static_cast<double>(box.begin[n]));
    const double b = to_grain(row[n] * static_cast<double>(box.end[n] - 1));
    *low += least(a, b);
    *high += most(a, b);
  }
}

inline int64_t voxels_of(const Box& box) { return box.length(0) * box.length(1) * box.length(2); }

inline Box whole_output(const VoxpipeJob& job) {
  return Box{{0, 0, 0}, {job.out_size[0], job.out_size[1], job.out_size[2]}};
}

// The source axis along which memory is densest, of those with more than one voxel at hand.
inline int densest_axis(const Geometry& g) {
  int unit = 2;
  for (int a = 1; a >= 0; a--)
    if (g.axis[a].start < g.axis[a].end &&
        (g.axis[unit].start == g.axis[unit].end ||
         __builtin_llabs(g.axis[a].step) < __builtin_llabs(g.axis[unit].step)))
      unit = a;
  return unit;
}

// A run shorter than this is worth turning: one vector of eight is not filled.
constexpr int64_t SHORT = 8;

// Runs follow the source's memory: the voxels of one vector then share their cache lines.
inline int lane_of(const Geometry& g, const int64_t* shape) {
  const double* row = g.axis[densest_axis(g)].row;
  int lane = 2, longest = 2;
  for (int n = 1; n >= 0; n--) {
    if (__builtin_fabs(row[n]) > __builtin_fabs(row[lane])) lane = n;
    if (shape[n] > shape[longest]) longest = n;
  }
  return shape[lane] < SHORT ? longest : lane;
}

inline Geometry geometry_of(const VoxpipeJob& job) {
  Geometry g;
  for (int a = 0; a < 3; a++) {
    Axis& axis = g.axis[a];
    double off = 0;
    for (int n = 0; n < 4; n++) {
      axis.row[n] = job.matrix[4 * a + n];
      const double away = __builtin_fabs(axis.row[n] - round_even(axis.row[n]));
      off += away * (n < 3 ? static_cast<double>(job.out_size[n] - 1) : 1.0);
    }
    double low, high;
    extremes(axis.row, whole_output(job), &low, &high);
    axis.first = static_cast<double>(job.first[a]);
    axis.last = static_cast<double>(job.last[a]);
    axis.start = static_cast<double>(job.source_start[a]);
    axis.end = axis.start + static_cast<double>(job.source_size[a] - 1);
    axis.step = job.source_stride[a];
    axis.leaves = low < axis.first || high > axis.last || job.control != 0;
    axis.single = axis.start == axis.end || (off <= CENTRE_TOLERANCE && job.control == 0);
    axis.reflects = axis.leaves && job.padding == VOXPIPE_REFLECTION;
  }
  g.lane = lane_of(g, job.out_size);
  return g;
}

// Half-sample symmetric: the mirror stands on the outer face of the last voxel.
inline double fold(double c, double first, double last) {
  const double face = first - 0.5, length = last + 1.0 - first;
  const double away = __builtin_fabs(c - face);
  // Where the quotient is rounded across a whole number, the rest is a little below 0, or beyond.
  const double rest = away - 2 * length * floor_of(away / (2 * length));
  return __builtin_fabs(least(rest, 2 * length - rest)) + face;
}

// Output indices on one axis, half open.
struct Interval {
  int64_t begin;
  int64_t end;
};

// Those of ``all`` that are inside, which follow each other.
template <class Inside>
inline Interval part_inside(Interval all, const Inside& inside) {
  while (all.begin < all.end && !inside(all.begin)) all.begin++;
  while (all.begin < all.end && !inside(all.end - 1)) all.end--;
  return all;
}

}  // namespace VOXPIPE_PATH_NAME
