// Where the taps of a tile of output voxels lie: coordinates in grains, and voxels to read from.
#pragma once

#include "box.h"

namespace VOXPIPE_PATH_NAME {

inline Floats fraction_of(Words grains) {
  return __builtin_convertvector((Ints)grains, Floats) * static_cast<float>(GRAIN);
}

// A number for each source axis, and a spare one.
typedef uint32_t PerAxis __attribute__((vector_size(16)));

// The coordinates of a tile in integers: the sum of three of these, in grains more than ``origin``.
// Sums of grains are exact, so they are those of ``Line``.
struct TileGrains {
  double origin[3];  // even, so that the last bit of the whole part says how to round a half
  uint32_t along[3][RUN + SPARE];  // by the index on the lane
  PerAxis across[TILE];            // by those on the other two
  PerAxis beyond[TILE];
};

inline void count_tile(const double* const* rows, int lane, const Box& box, int across,
                       TileGrains& tile) {
  const int beyond = 3 - lane - across;
  const int64_t count = most(NEAR_RUN, box.length(lane));
  for (int a = 0; a < 3; a++) {
    const double* row = rows[a];
    double low[3], sum = to_grain(row[3]);
    for (int n = 0; n < 3; n++)
      sum += low[n] = to_grain(row[n] * static_cast<double>(row[n] < 0 ? box.end[n] - 1 : box.begin[n]));
    tile.origin[a] = even_below(sum);
    const auto grains = [&](int n, int64_t v, double from) {
      const int64_t index = least(box.begin[n] + v, box.end[n] - 1);
      const double at = to_grain(row[n] * static_cast<double>(index));
      return static_cast<uint32_t>(whole_to_int((at - from) * GRAINS));
    };
    const double rest = sum - tile.origin[a];
    for (int64_t v = 0; v < count + SPARE; v++) tile.along[a][v] = grains(lane, v, low[lane]);
    for (int64_t v = 0; v < TILE; v++) {
      tile.across[v][a] = grains(across, v, low[across]);
      tile.beyond[v][a] = grains(beyond, v, low[beyond] - rest);
    }
  }
}

// A tile is counted from another voxel on one axis: sums are taken modulo 2^32 meanwhile.
inline void count_from(double origin, int a, TileGrains& tile) {
  const uint32_t more = static_cast<uint32_t>(static_cast<int64_t>(tile.origin[a] - origin));
  for (uint32_t& grains : tile.along[a]) grains += more << GRAIN_BITS;
  tile.origin[a] = origin;
}

struct Stretch;

// What a row of a tile is read by, on each source axis.
struct Reading {
  const uint8_t* base;       // where the voxel lies that the grains are counted from
  int64_t step[3];           // bytes from voxel to voxel
  const uint32_t* along[3];  // a coordinate is the grains of its voxel on the row, and ``start``
  PerAxis start;  // of all rows of a slice, with what each of them begins with beside that; then of one
  const PerAxis* across;
  int64_t rows, count;  // of a slice, and of voxels in each
  int64_t along_step;  // from one row's grains to the next: 0 unless each row has its own
  bool exact;          // nothing is stored behind the last voxel
  // For tiles at an edge: coordinates are kept between two, and lower taps between two voxels.
  uint32_t low[3], high[3];
  int32_t first[3], last[3];
  int32_t begin[3];  // where the voxels at hand, or their copy, begin
  bool single[3];  // one tap is enough
  bool keeps;      // voxels may be infinite, or no numbers
  const Stretch* stretch;  // of rows along those of the source; or null

  inline Words at(int a, int64_t v) const { return vector_at<Words>(along[a] + v) + start[a]; }
};

// Half to even.
inline Words rounded(Words at) {
  const Words odd = (at >> GRAIN_BITS) & 1;
  return (at + ((1u << (GRAIN_BITS - 1)) - 1) + odd) >> GRAIN_BITS;
}

template <class V, class T>
inline V kept(V at, T first, T last) {
  const V low = V{} + first, high = V{} + last;
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

// Steps in a copy have no more bits: two of them are multiplied at once.
constexpr int64_t MOST_STEP = INT16_MAX;

// Bytes to the taps of a vector, in the copy of a tile.
template <bool EDGE, bool NEAREST>
VOXPIPE_INLINE Ints offsets_of(const Reading& r, int64_t v) {
  Ints tap[3];
  Words least_rest = {};
  for (int a = 0; a < 3; a++) {
    const Words at = r.at(a, v), further = at + (1u << (GRAIN_BITS - 1));
    tap[a] = EDGE || !NEAREST ? tap_of<EDGE, NEAREST>(r, a, at) : (Ints)(further >> GRAIN_BITS);
    const Words rest = further & BELOW_VOXEL;
    least_rest = a == 0 || rest < least_rest ? rest : least_rest;
  }
  // Which of two voxels is even matters to places halfway between them alone, which are rare.
  if (!EDGE && NEAREST && __builtin_expect(any_zero(least_rest), 0))
    for (int a = 0; a < 3; a++) tap[a] = tap_of<false, true>(r, a, r.at(a, v));
  int32_t step[3];
  for (int a = 0; a < 3; a++) step[a] = static_cast<int32_t>(r.step[a]);
  if (EDGE) return tap[0] * step[0] + tap[1] * step[1] + tap[2] * step[2];
  return sum_of_products(tap[0] | tap[1] << 16, step[0], step[1]) +
         sum_of_products(tap[2], step[2], 0);
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
