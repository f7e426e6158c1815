// Maps that keep the axes apart: a table per output axis, and no coordinates any more.
//
// A crop, flip, turn or pad is one, and so is a zoom. Where every row of the matrix has one
// number and every column too, output index n decides one source coordinate alone, so its padding
// and its rounding are worked out once per index instead of once per voxel.
#pragma once

#include "processor.h"
#include "geometry.h"
#include "finish.h"

namespace VOXPIPE_PATH_NAME {

struct Table {
  int source;        // source axis that this output axis runs along
  int64_t* offset;   // bytes to the voxel of each index
  Interval kept;     // indices that are sampled; those outside are fill
};

struct Tables {
  Table of[3];  // by output axis
  void* memory;
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

inline bool allocate(const VoxpipeJob& job, Tables& tables) {
  const int64_t total = job.out_size[0] + job.out_size[1] + job.out_size[2];
  tables.memory = malloc(static_cast<size_t>(total) * sizeof(int64_t));
  int64_t* offset = static_cast<int64_t*>(tables.memory);
  for (int n = 0; n < 3 && offset; offset += job.out_size[n++]) tables.of[n].offset = offset;
  return offset != nullptr;
}

inline void tabulate(const VoxpipeJob& job, const Geometry& g, const int* source, Tables& tables) {
  const bool zeros = job.padding == VOXPIPE_ZEROS, fills = job.padding == VOXPIPE_CONSTANT;
  for (int n = 0; n < 3; n++) {
    Table& table = tables.of[n];
    table.source = source[n];
    const Axis& axis = g.axis[source[n]];
    const int64_t origin[3] = {0, 0, 0};
    const Line line = line_of(axis.row, n, origin);
    for (int64_t v = 0; v < job.out_size[n]; v++) {
      const double at = axis.reflects ? fold(line.at(v), axis.first, axis.last) : line.at(v);
      const double voxel = most(axis.start, least(axis.end, round_even(at)));
      table.offset[v] = static_cast<int64_t>(voxel - axis.start) * axis.step;
    }
    table.kept = Interval{0, job.out_size[n]};
    if (!axis.leaves || !(zeros || fills)) continue;
    table.kept = part_inside(table.kept, [&](int64_t v) {
      const double at = zeros ? round_even(line.at(v)) : line.at(v), beyond = zeros ? 0 : REACH;
      return at >= axis.first - beyond && at <= axis.last + beyond;
    });
  }
}

inline Box kept_box(const Tables& tables) {
  Box box;
  for (int n = 0; n < 3; n++) {
    box.begin[n] = tables.of[n].kept.begin;
    box.end[n] = tables.of[n].kept.end;
  }
  return box;
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
inline int64_t first_bend(const Table& table) {
  const int64_t* offset = table.offset;
  int64_t n = table.kept.begin + 2;
  while (n < table.kept.end && offset[n] - offset[n - 1] == offset[n - 1] - offset[n - 2]) n++;
  return least(n, table.kept.end);
}

// The step between the offsets of an axis, or 0 where they are not evenly spaced.
inline int64_t even_step(const Table& table) {
  const int64_t* first = table.offset + table.kept.begin;
  const bool is_even = table.kept.end - table.kept.begin > 1 && first_bend(table) == table.kept.end;
  return is_even ? first[1] - first[0] : 0;
}

}  // namespace VOXPIPE_PATH_NAME
