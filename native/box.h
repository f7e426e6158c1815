// The source of a tile, brought near: its box of voxels is copied before it is sampled.
//
// A patch touches each cache line of an oblique box in a map larger than any cache, some thousand
// pages of it, in an order that no hardware foresees; a line that is missed costs more than all that
// is calculated with it, and the arithmetic between two of them fills the window in which a
// processor would find the next one by itself. Copied row by row, lines are fetched many at a time;
// the copy is small, in a cache, and lies on a page or ten. Results do not change: the copy holds
// every voxel that a coordinate of the tile can meet, clamped ones included.
#pragma once

#include "vectors.h"

namespace VOXPIPE_PATH_NAME {

// Bytes of one copy; a quarter of a level 2 cache of today.
constexpr int64_t NEAR_BYTES = 256 * 1024;
// A box of so many times the tile's voxels is copied, as pairs or as they are stored; a larger one is
// a map that makes things smaller and meets a part of it only.
constexpr double NEAR_PAIRS = 64;
constexpr double NEAR_VOXELS = 16;
// Voxels of a tile along the runs, where it is copied: longer ones have larger boxes.
constexpr int64_t NEAR_RUN = 32;

// Rows of a tile on either axis across the runs. A tile of 128 x 16 x 16 voxels of 16 bits touches
// some thousand cache lines: they stay in a level 2 cache until its last row.
constexpr int64_t TILE = 16;

// Voxels on an axis whose grains are counted in 32 bits.
constexpr double MOST_GRAINS = 250;

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

// Where a copy lies: ``step`` bytes from voxel to voxel, rows of them along ``unit``.
struct NearBox {
  int unit;
  int rows;  // axis from one row to the next
  double first[3];
  double last[3];
  int64_t step[3];
  int64_t bytes;   // of one channel
  int64_t origin;  // from the first byte to voxel ``first``

  inline int planes() const { return 3 - unit - rows; }
  inline int64_t count(int a) const { return static_cast<int64_t>(last[a] - first[a]) + 1; }
};

// Places a box of which ``first`` and ``last`` are known, in rows of at least ``shortest`` bytes.
inline void place_near(int unit, int rows, int64_t step, int64_t shortest, NearBox& near) {
  const int64_t size = step < 0 ? -step : step, length = near.count(unit) * size;
  near.unit = unit;
  near.rows = rows;
  near.step[unit] = step;
  near.step[rows] = most((length + 15) / 16 * 16, shortest);
  near.step[near.planes()] = near.step[rows] * near.count(rows);
  near.bytes = near.step[near.planes()] * near.count(near.planes());
  near.origin = step < 0 ? length - size : 0;
}

// The faster of the other two axes of a volume in memory.
inline int rows_of(const Geometry& g, int unit) {
  const int a = unit == 0 ? 1 : 0, b = unit == 2 ? 1 : 2;
  return __builtin_llabs(g.axis[a].step) > __builtin_llabs(g.axis[b].step) ? b : a;
}

// Where the rows of a box begin and end of which a tile meets something: a turned tile meets half of
// its box. Between the largest of three ``low`` and the least of three ``high``, in voxels from
// ``first``, to all of which a row adds, and a plane.
struct Slant {
  int count;
  float low[3], high[3], row[3], plane[3];
};

// Coordinates of the output are inverse * (coordinates of the source), and lie within the tile.
inline Slant slant_of(const Geometry& g, const NearBox& near, const Box& box, const double* moves) {
  constexpr double FLAT = 1e-3;    // a row this parallel to a face of the tile does not end there
  constexpr double ROUNDING = 0.01;  // voxels of the output; float32 and an inverse are closer
  Slant slant;
  slant.count = 0;
  double cross[3][3], whole = 0;
  for (int a = 0; a < 3; a++) {
    const double *next = g.axis[(a + 1) % 3].row, *last = g.axis[(a + 2) % 3].row;
    for (int n = 0; n < 3; n++)
      cross[a][n] = next[(n + 1) % 3] * last[(n + 2) % 3] - next[(n + 2) % 3] * last[(n + 1) % 3];
  }
  for (int n = 0; n < 3; n++) whole += cross[0][n] * g.axis[0].row[n];
  for (int n = 0; n < 3; n++) {
    const double along = cross[near.unit][n] / whole;
    if (!(__builtin_fabs(along) > FLAT)) continue;
    // A row has taps of coordinates from one voxel before it to one behind it.
    double margin = ROUNDING, start = 0;
    for (int a = 0; a < 3; a++) {
      const double slope = cross[a][n] / whole;
      margin += __builtin_fabs(slope) * (moves[a] + (a == near.unit ? 0.0 : 1.0));
      start += slope * (near.first[a] - g.axis[a].row[3]);
    }
    const double ends[2] = {static_cast<double>(box.begin[n]) - margin - start,
                            static_cast<double>(box.end[n] - 1) + margin - start};
    const int m = slant.count++;
    slant.low[m] = static_cast<float>(ends[along < 0 ? 1 : 0] / along);
    slant.high[m] = static_cast<float>(ends[along < 0 ? 0 : 1] / along);
    slant.row[m] = static_cast<float>(-cross[near.rows][n] / whole / along);
    slant.plane[m] = static_cast<float>(-cross[near.planes()][n] / whole / along);
  }
  return slant;
}

// The first and the last voxel of each row of a plane; none where the last one comes before.
struct RowEnds {
  int32_t first[static_cast<int>(MOST_GRAINS) + 2 * SPARE];
  int32_t last[static_cast<int>(MOST_GRAINS) + 2 * SPARE];
};

inline void find_ends(const Slant& slant, const NearBox& near, int64_t plane, RowEnds& ends) {
  const float most_last = static_cast<float>(near.count(near.unit) - 1);
  Floats row;
  for (int n = 0; n < LANES; n++) row[n] = static_cast<float>(n);
  for (int64_t r = 0; r < near.count(near.rows); r += LANES, row += static_cast<float>(LANES)) {
    Floats low = {}, high = all_of(most_last);
    for (int n = 0; n < slant.count; n++) {
      const float shift = slant.plane[n] * static_cast<float>(plane);
      const Floats first = row * slant.row[n] + (slant.low[n] + shift);
      const Floats last = row * slant.row[n] + (slant.high[n] + shift + 1.0f);
      low = first > low ? first : low;
      high = last < high ? last : high;
    }
    low = low < most_last ? low : all_of(most_last);
    high = high > -1.0f ? high : all_of(-1.0f);
    put_vector(ends.first + r, __builtin_convertvector(low, Ints));
    put_vector(ends.last + r, __builtin_convertvector(high, Ints));
  }
}

// Asks for the lines of ``bytes`` bytes.
inline void fetch_row(const uint8_t* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes + LINE; at += LINE) fetch_line(from + least(at, bytes - 1));
}

// Calls act(p, row, ahead) for each plane of a box: where its first row begins in memory, and how many
// bytes on the next plane lies, which is asked for meanwhile; 0 if there is none.
template <class Act>
inline void each_plane(const Geometry& g, int64_t size, const NearBox& near, const uint8_t* source,
                       const Act& act) {
  for (int a = 0; a < 3; a++)
    source += static_cast<int64_t>(near.first[a] - g.axis[a].start) * g.axis[a].step;
  if (g.axis[near.unit].step < 0) source -= (near.count(near.unit) - 1) * size;
  const int64_t further = g.axis[near.planes()].step, planes = near.count(near.planes());
  for (int64_t p = 0; p < planes; p++, source += further) act(p, source, p + 1 < planes ? further : 0);
}

// Row by row and all of each: a processor foresees rows that are evenly spaced.
inline void copy_plane(const uint8_t* row, int64_t step, int64_t ahead, int64_t rows, int64_t bytes,
                       uint8_t* to, int64_t stride) {
  for (int64_t r = 0; r < rows; r++, row += step, to += stride) {
    if (ahead) fetch_row(row + ahead, bytes);
    copy_bytes(row, bytes, to);
  }
}

inline void copy_near(const Geometry& g, int64_t size, const NearBox& near, const uint8_t* source,
                      uint8_t* to) {
  each_plane(g, size, near, source, [&](int64_t p, const uint8_t* row, int64_t ahead) {
    copy_plane(row, g.axis[near.rows].step, ahead, near.count(near.rows), near.count(near.unit) * size,
               to + p * near.step[near.planes()], near.step[near.rows]);
  });
}

}  // namespace VOXPIPE_PATH_NAME
