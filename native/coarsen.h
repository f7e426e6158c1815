// Lines between the voxels that are kept: every few along each axis, as if the others had never been.
//
// intensity/filters.py takes the same steps in float32, so both give the same bits.
#pragma once

#include "vectors.h"
#include "filter.h"

namespace VOXPIPE_PATH_NAME {

// Where the voxels of an axis lie between those that are kept.
struct Lines {
  int32_t* kept;  // indices of voxels, one more than there are lines
  int32_t* line;  // of each voxel its line, from kept[line] to kept[line + 1]
  float* part;    // and how much of it is gone
  int64_t count;
  bool moves;

  static int64_t words(int64_t size) { return 3 * size + 3 + LANES; }

  // Line ``m`` begins at the voxel of the lattice nearest to ``m factor``.
  void begin(int64_t size, double factor, int64_t corner, int32_t* memory) {
    line = memory;
    part = reinterpret_cast<float*>(memory + size);
    kept = memory + 2 * size;
    moves = factor > 1 && size > 1;
    const double length = moves ? factor : 1.0, first = floor_of(static_cast<double>(corner) / length);
    for (int64_t v = 0; v < size; v++) {
      const double place = static_cast<double>(corner + v) / length, whole = floor_of(place);
      line[v] = static_cast<int32_t>(whole - first);
      part[v] = static_cast<float>(place - whole);
    }
    count = line[size - 1] + 2;
    for (int64_t n = 0; n < count; n++) {
      const double nearest = round_even((first + static_cast<double>(n)) * length);
      const double at = nearest - static_cast<double>(corner), last = static_cast<double>(size - 1);
      kept[n] = static_cast<int32_t>(most(0.0, least(at, last)));
    }
  }
};

inline float between_two(float low, float high, float part) {
  const float there = low + (high - low) * part;
  return part == 0 ? low : there;  // a voxel that is kept is what it is, beside infinity too
}

// What lies along an axis one after another, ``count`` numbers each, between two that are kept:
// make(index, to) makes those in turn, ``made`` so far, and the last two of them are in ``two``.
template <class Make>
inline void between(const Lines& l, int64_t v, int64_t count, float* two, int64_t& made,
                    const Make& make, float* out) {
  const int64_t line = l.line[v];
  const float part = l.part[v];
  for (; made < line + (part == 0 ? 1 : 2); made++) make(l.kept[made], two + made % 2 * count);
  const float *low = two + line % 2 * count, *high = two + (line + 1) % 2 * count;
  if (part == 0) copy_floats(low, count, out);
  else for (int64_t n = 0; n < count; n++) out[n] = between_two(low[n], high[n], part);
}

// Makes planes one after another, each between two that have been made coarse within themselves.
struct CoarsePlanes {
  const int64_t* size;
  Lines lines[3];
  float *planes, *rows, *row, *packed;
  int64_t made;  // planes that are kept, so far

  // Returns memory that is to be freed; null where there is none.
  void* begin(const VoxpipeStep& s, const int64_t* shape) {
    size = shape;
    made = 0;
    int64_t count = (2 * size[1] + 4) * size[2] + 2 + 2 * LANES;
    for (int a = 0; a < 3; a++) count += Lines::words(size[a]);
    planes = floats_in_memory(count);
    if (!planes) return nullptr;
    rows = planes + 2 * size[1] * size[2];
    row = rows + 2 * size[2];
    packed = row + size[2];
    int32_t* words = reinterpret_cast<int32_t*>(packed + size[2] + 2 + 2 * LANES);
    for (int a = 0; a < 3; words += Lines::words(size[a++]))
      lines[a].begin(size[a], s.number[a], s.corner[a], words);
    return planes;
  }

  // Along k: the kept voxels side by side, then lines between them.
  void make_row(float* out) {
    const Lines l = lines[2];  // in registers: a store might change what it lies in
    float* const packed = this->packed;
    for (int64_t n = 0; n < l.count; n++) packed[n] = row[l.kept[n]];
    int64_t v = 0;
    // Of as many voxels as a vector holds, the lines follow each other within one.
    for (; v + LANES <= size[2]; v += LANES) {
      const float* from = packed + l.line[v];
      const Ints at = vector_at<Ints>(l.line + v) - l.line[v];
      const Floats low = picked(from, at), high = picked(from + 1, at);
      const Floats part = vector_at<Floats>(l.part + v), there = low + (high - low) * part;
      put_vector(out + v, part == 0.0f ? low : there);
    }
    for (; v < size[2]; v++)
      out[v] = between_two(packed[l.line[v]], packed[l.line[v] + 1], l.part[v]);
  }

  // Plane ``i`` into ``out``, the next one each time; ``load(plane, row, to)`` fetches one row.
  template <class Load>
  void make(int64_t i, const Load& load, float* out) {
    const auto make_plane = [&](int64_t plane, float* to) {
      const auto make_line = [&](int64_t line, float* to_line) {
        load(plane, line, lines[2].moves ? row : to_line);
        if (lines[2].moves) make_row(to_line);
      };
      int64_t made_rows = 0;
      for (int64_t j = 0; j < size[1]; j++)
        between(lines[1], j, size[2], rows, made_rows, make_line, to + j * size[2]);
    };
    between(lines[0], i, size[1] * size[2], planes, made, make_plane, out);
  }
};

}  // namespace VOXPIPE_PATH_NAME
