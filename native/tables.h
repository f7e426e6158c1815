// Maps that keep the axes apart: a table per output axis, and no coordinates any more.
//
// A crop, flip, turn or pad is one, and so is a zoom. Where every row of the matrix has one
// number and every column too, output index n decides one source coordinate alone, so its padding
// and its rounding are worked out once per index instead of once per voxel.
#pragma once

#include "finish.h"

namespace VOXPIPE_PATH_NAME {

struct Tables {
  int source[3];       // source axis that each output axis runs along
  int64_t* offset[3];  // on each output axis, bytes to the voxel of each index
  Box kept;            // what is sampled; the output around it is fill
};

// Whether the matrix keeps the axes apart; if so, which source axis belongs to each output axis.
inline bool keeps_apart(const VoxpipeJob& job, int* source) {
  if (job.control || job.clip_count) return false;
  unsigned left = 7;  // a bit for each source axis
  for (int n = 0; n < 3; n++) source[n] = -1;
  for (int a = 0; a < 3; a++)
    for (int n = 0; n < 3; n++) {
      // Along an axis of one voxel nothing moves, whatever the matrix says.
      if (job.matrix[4 * a + n] == 0 || job.out_size[n] == 1) continue;
      if (source[n] >= 0 || !(left >> a & 1)) return false;
      source[n] = a;
      left &= ~(1u << a);
    }
  for (int n = 0; n < 3; n++) {
    if (source[n] >= 0) continue;
    source[n] = __builtin_ctz(left);
    left &= left - 1;
  }
  return true;
}

// ``memory`` has room for a number for each index of each output axis.
inline Tables tables_of(const VoxpipeJob& job, const Geometry& g, const int* source, int64_t* memory) {
  const bool zeros = job.padding == VOXPIPE_ZEROS, fills = job.padding == VOXPIPE_CONSTANT;
  Tables tables;
  tables.kept = whole_output(job);
  for (int n = 0; n < 3; memory += job.out_size[n++]) {
    tables.source[n] = source[n];
    tables.offset[n] = memory;
    const Axis& axis = g.axis[source[n]];
    const int64_t origin[3] = {0, 0, 0};
    const Line line = line_of(axis.row, n, origin);
    for (int64_t v = 0; v < job.out_size[n]; v++) {
      const double at = axis.reflects ? fold(line.at(v), axis.first, axis.last) : line.at(v);
      const double voxel = most(axis.start, least(axis.end, round_even(at)));
      memory[v] = static_cast<int64_t>(voxel - axis.start) * axis.step;
    }
    if (!axis.leaves || !(zeros || fills)) continue;
    const Interval kept = part_inside(Interval{0, job.out_size[n]}, [&](int64_t v) {
      const double at = zeros ? round_even(line.at(v)) : line.at(v), beyond = zeros ? 0 : REACH;
      return at >= axis.first - beyond && at <= axis.last + beyond;
    });
    tables.kept.begin[n] = kept.begin;
    tables.kept.end[n] = kept.end;
  }
  return tables;
}

// Everything outside ``box``.
inline void fill_outside(const VoxpipeJob& job, const Box& box, const uint8_t* element, int64_t size,
                         uint8_t* out) {
  const int64_t stride = job.out_stride[2], behind = job.out_size[2] - box.end[2];
  if (voxels_of(box) == voxels_of(whole_output(job))) return;
  for (int64_t a = 0; a < job.out_size[0]; a++)
    for (int64_t b = 0; b < job.out_size[1]; b++) {
      uint8_t* row = out + a * job.out_stride[0] + b * job.out_stride[1];
      const bool is_kept = a >= box.begin[0] && a < box.end[0] && b >= box.begin[1] && b < box.end[1];
      fill_row(element, size, is_kept ? box.begin[2] : job.out_size[2], row, stride);
      if (is_kept) fill_row(element, size, behind, row + box.end[2] * stride, stride);
    }
}

// The first index whose offset is another step away than the one before; the end if there is none.
inline int64_t first_bend(const Tables& tables, int axis) {
  const int64_t *offset = tables.offset[axis], end = tables.kept.end[axis];
  int64_t n = tables.kept.begin[axis] + 2;
  while (n < end && offset[n] - offset[n - 1] == offset[n - 1] - offset[n - 2]) n++;
  return least(n, end);
}

// The step between the offsets of an axis, or 0 where they are not evenly spaced.
inline int64_t even_step(const Tables& tables, int axis) {
  const int64_t begin = tables.kept.begin[axis], end = tables.kept.end[axis];
  const bool is_even = end - begin > 1 && first_bend(tables, axis) == end;
  return is_even ? tables.offset[axis][begin + 1] - tables.offset[axis][begin] : 0;
}

}  // namespace VOXPIPE_PATH_NAME
