// Where the taps of a tile of output voxels lie: coordinates in grains, and voxels to read from.
#pragma once

#include "processor.h"
#include "vectors.h"
#include "geometry.h"
#include "box.h"

namespace VOXPIPE_PATH_NAME {

inline Floats fraction_of(Words grains) {
  return __builtin_convertvector((Ints)grains, Floats) * static_cast<float>(GRAIN);
}

// The coordinates of a tile in integers: the sum of three of these, in grains more than ``origin``.
// Sums of grains are exact, so they are those of ``Line``.
struct TileGrains {
  double origin[3];  // even, so that the last bit of the whole part says how to round a half
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

inline void count_tile(const double* const* rows, int lane, const Box& box, int across,
                       TileGrains& tile) {
  const int beyond = 3 - lane - across;
  for (int a = 0; a < 3; a++) {
    const double* row = rows[a];
    double low[3], sum = to_grain(row[3]);
    for (int n = 0; n < 3; n++) sum += low[n] = least_along(row[n], box.begin[n], box.end[n]);
    tile.origin[a] = even_below(sum);
    const double rest = sum - tile.origin[a];
    list_grains(row[lane], box.begin[lane], box.end[lane], low[lane], NEAR_RUN + SPARE,
                tile.along[a]);
    list_grains(row[across], box.begin[across], box.end[across], low[across], TILE,
                tile.across[a]);
    list_grains(row[beyond], box.begin[beyond], box.end[beyond], low[beyond] - rest, TILE,
                tile.beyond[a]);
  }
}

// A tile is counted from another voxel on one axis: sums are taken modulo 2^32 meanwhile.
inline void count_from(double origin, int a, TileGrains& tile) {
  const uint32_t more = static_cast<uint32_t>(static_cast<int64_t>(tile.origin[a] - origin));
  for (uint32_t& grains : tile.along[a]) grains += more << GRAIN_BITS;
  tile.origin[a] = origin;
}

// What a row of a tile is read by, on each source axis.
struct Reading {
  const uint8_t* base;       // where the voxel lies that the grains are counted from
  int64_t step[3];           // bytes from voxel to voxel
  const uint32_t* along[3];  // a coordinate is the grains of its voxel on the row, and ``start``
  uint32_t start[3];
  // For tiles at an edge: coordinates are kept between two, and lower taps between two voxels.
  uint32_t low[3], high[3];
  int32_t first[3], last[3];
  bool single[3];  // one tap is enough
  bool keeps;      // voxels may be infinite, or no numbers

  inline Words at(int a, int64_t v) const { return vector_at<Words>(along[a] + v) + start[a]; }
};

// Half to even.
inline Words rounded(Words at) {
  const Words odd = (at >> GRAIN_BITS) & 1;
  return (at + ((1u << (GRAIN_BITS - 1)) - 1) + odd) >> GRAIN_BITS;
}

inline Ints kept(Ints voxel, int32_t first, int32_t last) {
  const Ints low = Ints{} + first, high = Ints{} + last;
  voxel = voxel < low ? low : voxel;
  return voxel > high ? high : voxel;
}

inline Words kept(Words at, uint32_t least_grains, uint32_t most_grains) {
  const Words low = Words{} + least_grains, high = Words{} + most_grains;
  at = at < low ? low : at;
  return at > high ? high : at;
}

// The (lower) tap of each voxel of a vector, as voxels from the origin.
template <bool EDGE, bool NEAREST>
VOXPIPE_INLINE Ints tap_of(const Reading& r, int a, Words at) {
  if (!EDGE) return (Ints)(NEAREST ? rounded(at) : at >> GRAIN_BITS);
  const bool rounds = NEAREST || r.single[a];
  const Words whole = rounds ? rounded(at) : kept(at, r.low[a], r.high[a]) >> GRAIN_BITS;
  return kept((Ints)whole, r.first[a], r.last[a]);
}

// The weight of the upper tap, in grains.
template <bool EDGE>
VOXPIPE_INLINE Words weight_of(const Reading& r, int a, Words at) {
  if (!EDGE) return at & BELOW_VOXEL;
  return kept(at, r.low[a], r.high[a]) - ((Words)tap_of<true, false>(r, a, at) << GRAIN_BITS);
}

// Bytes to the taps of a vector, in the copy of a tile.
template <bool EDGE, bool NEAREST>
VOXPIPE_INLINE Ints offsets_of(const Reading& r, int64_t v) {
  Ints offset = {};
  for (int a = 0; a < 3; a++)
    offset += tap_of<EDGE, NEAREST>(r, a, r.at(a, v)) * static_cast<int32_t>(r.step[a]);
  return offset;
}

// The same anywhere in a volume, of whole vectors.
template <bool NEAREST>
inline void places_of(const Reading& r, int64_t count, const uint8_t** places) {
  for (int64_t v = 0; v < count; v += LANES) {
    for (int n = 0; n < LANES; n++) places[v + n] = r.base;
    for (int a = 0; a < 3; a++) {
      const Ints voxel = tap_of<true, NEAREST>(r, a, r.at(a, v));
      for (int n = 0; n < LANES; n++) places[v + n] += voxel[n] * r.step[a];
    }
  }
}

}  // namespace VOXPIPE_PATH_NAME
