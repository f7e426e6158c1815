// Fetching ahead: before a slice of a tile is sampled, its cache lines are read once.
//
// A patch touches each line of an oblique box in a map larger than any cache, some thousand pages
// of it, in an order that no hardware foresees, and the arithmetic between two lines fills the
// window in which a processor would find the next one by itself. Prefetch instructions do not
// help: some processors drop them where the page is not in the TLB, which is the case that costs.
// Plain loads, a slice at a time, overlap each other and take a quarter off a cold patch.
#pragma once

#include "processor.h"
#include "vectors.h"

namespace VOXPIPE_PATH_NAME {

// Bytes of a cache line. Where it is 128, every line is read twice, which costs little.
constexpr double LINE_BYTES = 64.0;
// Slices between reading ahead and sampling. Of 1, 2 and 4, two is the fastest by 5 %.
constexpr int64_t AHEAD = 2;

// A box of output voxels.
struct Box {
  int64_t begin[3];
  int64_t end[3];
};

// Which voxels of a box to touch: all, but one in ``step`` along ``axis``, so that two neighbours
// lie about a cache line apart.
struct Stride {
  int axis;
  int64_t step;
};

inline Stride stride_of(const Geometry& g) {
  const int unit = densest_axis(g);
  const double* row = g.axis[unit].row;
  Stride stride{0, 1};
  for (int n = 1; n < 3; n++)
    if (__builtin_fabs(row[n]) > __builtin_fabs(row[stride.axis])) stride.axis = n;
  const double bytes = __builtin_fabs(row[stride.axis] * g.axis[unit].stride);
  const double step = bytes * static_cast<double>(RUN) <= LINE_BYTES ? static_cast<double>(RUN)
                                                                     : LINE_BYTES / bytes;
  stride.step = static_cast<int64_t>(most(1.0, step));
  return stride;
}

// One line of voxels along ``axis``; returns a number so that the loads are not left out.
inline uint64_t touch_line(const Geometry& g, const uint8_t* base, int axis, const int64_t* index,
                           int64_t end) {
  uint64_t sum = 0;
  Line lines[3];
  for (int a = 0; a < 3; a++) lines[a] = line_of(g.axis[a].row, axis, index);
  Doubles v;
  for (int n = 0; n < LANES / 2; n++) v[n] = static_cast<double>(index[axis] + n);
  for (int64_t n = index[axis]; n < end; n += LANES / 2, v += LANES / 2) {
    Doubles offset = Doubles{} + g.origin;
    for (int a = 0; a < 3; a++) {
      const Line& line = lines[a];
      const Doubles c = line.slope * v + line.rest;
      offset += round_even(between(c, g.axis[a].start, g.axis[a].end)) * g.axis[a].stride;
    }
    const Signed bytes = whole_to_int(offset);
    for (int lane = 0; lane < LANES / 2; lane++) sum += base[bytes[lane]];
  }
  return sum;
}

inline void touch(const Geometry& g, const uint8_t* base, const Box& box, const Stride& stride) {
  const int dense = stride.axis == 2 ? 1 : 2, third = 3 - stride.axis - dense;
  int64_t index[3];
  uint64_t sum = 0;
  const int64_t last = box.end[stride.axis] + stride.step - 1;  // the line of the end, too
  for (int64_t s = box.begin[stride.axis]; s < last; s += stride.step)
    for (int64_t t = box.begin[third]; t < box.end[third]; t++) {
      index[stride.axis] = s;
      index[third] = t;
      index[dense] = box.begin[dense];
      sum += touch_line(g, base, dense, index, box.end[dense]);
    }
  __asm__ volatile("" ::"r"(sum));
}

}  // namespace VOXPIPE_PATH_NAME
