// Maps that keep the axes apart: a table per output axis, and no coordinates any more.
//
// A crop, flip, turn or pad is one, and so is a zoom. Where every row of the matrix has one
// number and every column too, output index n decides one source coordinate alone, so its padding,
// its rounding and its weight are worked out once per index instead of once per voxel.
#pragma once

#include "processor.h"
#include "geometry.h"
#include "finish.h"

namespace VOXPIPE_PATH_NAME {

struct Table {
  int source;        // source axis that this output axis runs along
  int64_t* lower;    // byte offset of the (lower) tap of each index
  int64_t* upper;    // byte offset of the upper tap, relative to the lower
  double* weight;    // of the upper tap
  double* fade;      // padding "zeros", linear
  Interval kept;     // indices that are sampled; those outside are fill
};

struct Tables {
  Table of[3];  // by output axis
  void* memory;
};

// Whether the matrix keeps the axes apart; if so, which source axis belongs to each output axis.
inline bool keeps_apart(const VoxpipeJob& job, int* source) {
  if (job.control || job.clip_count) return false;
  bool taken[3] = {false, false, false};
  for (int n = 0; n < 3; n++) source[n] = -1;
  for (int a = 0; a < 3; a++) {
    int found = -1;
    for (int n = 0; n < 3; n++) {
      // Along an axis of one voxel nothing moves, whatever the matrix says.
      if (job.matrix[4 * a + n] == 0 || job.out_size[n] == 1) continue;
      if (found >= 0 || source[n] >= 0) return false;
      found = n;
    }
    if (found < 0) continue;
    source[found] = a;
    taken[a] = true;
  }
  for (int n = 0; n < 3; n++)
    for (int a = 0; source[n] < 0 && a < 3; a++)
      if (!taken[a]) {
        source[n] = a;
        taken[a] = true;
      }
  return true;
}

inline bool allocate(const VoxpipeJob& job, Tables& tables) {
  int64_t total = 0;
  for (int n = 0; n < 3; n++) total += job.out_size[n];
  // Four numbers of eight bytes per index.
  uint8_t* memory = static_cast<uint8_t*>(malloc(static_cast<size_t>(total) * 32));
  tables.memory = memory;
  if (!memory) return false;
  for (int n = 0; n < 3; n++) {
    const int64_t bytes = job.out_size[n] * 8;
    Table& table = tables.of[n];
    table.lower = reinterpret_cast<int64_t*>(memory);
    table.upper = reinterpret_cast<int64_t*>(memory + bytes);
    table.weight = reinterpret_cast<double*>(memory + 2 * bytes);
    table.fade = reinterpret_cast<double*>(memory + 3 * bytes);
    memory += 4 * bytes;
  }
  return true;
}

inline void enter(const Axis& axis, bool linear, bool zeros, double c, int64_t n, Table& table) {
  if (axis.reflects) c = fold(c, axis.first, axis.last);
  table.upper[n] = 0;
  table.weight[n] = 0;
  table.fade[n] = 1;
  double lower = round_even(c);
  if (linear && zeros && axis.leaves)
    table.fade[n] = most(0.0, least(1.0, least(c - axis.first, axis.last - c) + 1.0));
  if (linear && !axis.single) {
    lower = most(axis.start, least(axis.end - 1.0, floor_of(c)));
    const double weight = c - lower;
    table.weight[n] = axis.leaves ? most(0.0, least(1.0, weight)) : weight;
    table.upper[n] = axis.step;
  }
  lower = most(axis.start, least(axis.end, lower));
  table.lower[n] = static_cast<int64_t>(lower - axis.start) * axis.step;
}

inline Interval kept_of(const Axis& axis, const Line& line, int64_t padding, bool linear,
                        int64_t count) {
  const bool zeros = padding == VOXPIPE_ZEROS;
  if (!axis.leaves || (!zeros && padding != VOXPIPE_CONSTANT)) return Interval{0, count};
  const double beyond = !zeros ? REACH : (linear ? 1.0 : 0.0);
  return part_inside(Interval{0, count}, [&](int64_t n) {
    const double at = zeros && !linear ? round_even(line.at(n)) : line.at(n);
    return at >= axis.first - beyond && at <= axis.last + beyond;
  });
}

inline void tabulate(const VoxpipeJob& job, const Geometry& g, bool linear, const int* source,
                     Tables& tables) {
  for (int n = 0; n < 3; n++) {
    Table& table = tables.of[n];
    table.source = source[n];
    const Axis& axis = g.axis[source[n]];
    const int64_t origin[3] = {0, 0, 0};
    const Line line = line_of(axis.row, n, origin);
    for (int64_t v = 0; v < job.out_size[n]; v++)
      enter(axis, linear, job.padding == VOXPIPE_ZEROS, line.at(v), v, table);
    table.kept = kept_of(axis, line, job.padding, linear, job.out_size[n]);
    if (table.kept.begin == table.kept.end) table.kept = Interval{0, 0};
  }
}

// Everything outside the box that the tables keep.
inline void fill_outside(const VoxpipeJob& job, const Tables& tables, const uint8_t* element,
                         int64_t size, uint8_t* out) {
  const Interval &i = tables.of[0].kept, &j = tables.of[1].kept, &k = tables.of[2].kept;
  const int64_t count = job.out_size[2], stride = job.out_stride[2];
  for (int64_t a = 0; a < job.out_size[0]; a++)
    for (int64_t b = 0; b < job.out_size[1]; b++) {
      uint8_t* row = out + a * job.out_stride[0] + b * job.out_stride[1];
      const bool is_kept = a >= i.begin && a < i.end && b >= j.begin && b < j.end;
      if (!is_kept) {
        fill_row(element, size, count, row, stride);
      } else {
        fill_row(element, size, k.begin, row, stride);
        fill_row(element, size, count - k.end, row + k.end * stride, stride);
      }
    }
}

inline bool keeps_all(const VoxpipeJob& job, const Tables& tables) {
  for (int n = 0; n < 3; n++)
    if (tables.of[n].kept.end - tables.of[n].kept.begin != job.out_size[n]) return false;
  return true;
}

// The step between the offsets of an axis, or 0 where they are not evenly spaced.
inline int64_t even_step(const Table& table) {
  const int64_t begin = table.kept.begin, end = table.kept.end;
  if (end - begin < 2) return 0;
  const int64_t step = table.lower[begin + 1] - table.lower[begin];
  for (int64_t n = begin + 2; n < end; n++)
    if (table.lower[n] - table.lower[n - 1] != step) return 0;
  return step;
}

}  // namespace VOXPIPE_PATH_NAME
