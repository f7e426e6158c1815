// The source of a tile, brought near: its box of voxels is copied before it is sampled.
//
// A patch touches each cache line of an oblique box in a map larger than any cache, some thousand
// pages of it, in an order that no hardware foresees; a line that is missed costs more than all that
// is calculated with it, and the arithmetic between two of them fills the window in which a
// processor would find the next one by itself. Copied row by row, lines are fetched many at a time;
// the copy is small, in a cache, and lies on a page or ten. Results do not change: the copy holds
// every voxel that a coordinate of the tile can meet, clamped ones included.
#pragma once

#include "processor.h"
#include "vectors.h"
#include "geometry.h"

namespace VOXPIPE_PATH_NAME {

// Bytes of one copy, of all channels; a quarter of a level 2 cache of today.
constexpr int64_t NEAR_BYTES = 256 * 1024;
// A box of so many times the tile's voxels is copied; a larger one is a map that makes things smaller
// and meets a part of it only.
constexpr double NEAR_VOXELS = 6;
// Voxels of a tile along the runs, where it is copied: longer ones have larger boxes.
constexpr int64_t NEAR_RUN = 32;

// Rows of a tile on either axis across the runs. A tile of 128 x 16 x 16 voxels of 16 bits touches
// some thousand cache lines: they stay in a level 2 cache until its last row.
constexpr int64_t TILE = 16;

// Voxels on an axis whose grains are counted in 32 bits.
constexpr double MOST_GRAINS = 250;

// A box of output voxels.
struct Box {
  int64_t begin[3];
  int64_t end[3];
};

// The least and the largest coordinate of a box of output voxels, as ``Line`` has them.
inline void extremes_over(const double* row, const Box& box, double* low, double* high) {
  *low = *high = to_grain(row[3]);
  for (int n = 0; n < 3; n++) {
    const double a = to_grain(row[n] * static_cast<double>(box.begin[n]));
    const double b = to_grain(row[n] * static_cast<double>(box.end[n] - 1));
    *low += least(a, b);
    *high += most(a, b);
  }
}

// Voxels of the source that are met between two coordinates on one axis, both ends included.
inline void reach_over(const Axis& axis, double low, double high, double& first, double& last) {
  // Two at least where there are two, as clamping takes the outermost two.
  first = most(axis.start, least(axis.end - 1, floor_of(low)));
  last = least(axis.end, most(axis.start + 1, floor_of(high) + 1));
}

// Bytes of a cache line. Where it is 128, every line is asked for twice, which costs little.
constexpr int64_t LINE = 64;

// Asks for a line, into the level 2 cache: rows are too short for the processor to find the next one
// by itself.
inline void fetch_line(const uint8_t* at) { __builtin_prefetch(at, 0, 2); }

typedef uint8_t Chunk __attribute__((vector_size(32)));

inline void copy_bytes(const uint8_t* from, int64_t count, uint8_t* to) {
  constexpr int64_t SIZE = sizeof(Chunk);
  if (count < SIZE) {
    for (int64_t n = 0; n < count; n++) to[n] = from[n];
    return;
  }
  for (int64_t n = 0; n < count - SIZE; n += SIZE) put<Chunk>(to + n, load<Chunk>(from + n));
  put<Chunk>(to + count - SIZE, load<Chunk>(from + count - SIZE));  // over what is there
}

// Where a copy lies: ``step`` bytes from voxel to voxel, ``channel`` from one channel to the next.
struct NearBox {
  double first[3];
  double last[3];
  int64_t step[3];
  int64_t channel;
  int64_t origin;  // from the first byte to voxel ``first``
};

// ``unit`` is the axis along which voxels are neighbours; ``first`` and ``last`` are known.
inline void near_box(const Geometry& g, int unit, int64_t size, NearBox& near) {
  const auto count = [&](int a) { return static_cast<int64_t>(near.last[a] - near.first[a]) + 1; };
  const int other[2] = {unit == 0 ? 1 : 0, unit == 2 ? 1 : 2};
  const bool falls = __builtin_fabs(g.axis[other[0]].stride) > __builtin_fabs(g.axis[other[1]].stride);
  const int rows = other[falls ? 1 : 0], planes = other[falls ? 0 : 1];
  near.step[unit] = g.axis[unit].step;
  near.step[rows] = (count(unit) * size + 15) / 16 * 16;
  near.step[planes] = near.step[rows] * count(rows);
  near.channel = near.step[planes] * count(planes);
  near.origin = g.axis[unit].step < 0 ? (count(unit) - 1) * size : 0;
}

inline void copy_near(const Geometry& g, int unit, int64_t size, const NearBox& near,
                      const uint8_t* source, uint8_t* to) {
  const auto count = [&](int a) { return static_cast<int64_t>(near.last[a] - near.first[a]) + 1; };
  for (int a = 0; a < 3; a++)
    source += static_cast<int64_t>(near.first[a] - g.axis[a].start) * g.axis[a].step;
  source -= near.origin;
  const int a = unit == 0 ? 1 : 0, b = unit == 2 ? 1 : 2;
  const int rows = near.step[a] < near.step[b] ? a : b, planes = rows == a ? b : a;
  const int64_t bytes = count(unit) * size;
  for (int64_t p = 0; p < count(planes); p++)
    for (int64_t r = 0; r < count(rows); r++) {
      const uint8_t* row = source + p * g.axis[planes].step + r * g.axis[rows].step;
      if (p + 1 < count(planes)) {
        const uint8_t* next = row + g.axis[planes].step;
        for (int64_t at = 0; at < bytes + LINE; at += LINE) fetch_line(next + least(at, bytes - 1));
      }
      copy_bytes(row, bytes, to + p * near.step[planes] + r * near.step[rows]);
    }
}

}  // namespace VOXPIPE_PATH_NAME
