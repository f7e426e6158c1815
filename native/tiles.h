// The output of an affine or displaced map in tiles: each out of a copy of the voxels that it meets, where that
// pays, and in one pass, from coordinates to results in registers, where all of it lies inside.
#pragma once

#include "processor.h"
#include "box.h"
#include "general.h"
#include "copy.h"

namespace VOXPIPE_PATH_NAME {

// Where one vector lies in a copy.
struct TilePlace {
  Words at[3];
};

inline TilePlace place_of(const TileGrains& tile, const uint32_t* start, int64_t v) {
  TilePlace place;
  for (int a = 0; a < 3; a++) place.at[a] = vector_at<Words>(tile.along[a] + v) + start[a];
  return place;
}

// The copy for linear maps: float32, each voxel beside the next one on another axis, so that four of
// its eight taps are 16 bytes in a row, and two loads bring all of them.
constexpr int64_t PAIR = 2 * sizeof(float);

inline int partner_of(int unit) { return unit == 1 ? 0 : 1; }

template <int HALF, int... I>
inline Floats interleaved(Floats a, Floats b, Numbers<I...>) {
  return __builtin_shufflevector(a, b, (HALF * LANES / 2 + I / 2 + I % 2 * LANES)...);
}

// By way of a copy of each plane as it is stored, behind the pairs.
template <class S>
void copy_pairs(const Work& w, const NearBox& near, const Slant& slant, const uint8_t* source,
                uint8_t* to) {
  constexpr auto ALL = typename NumbersBelow<LANES>::type{};
  constexpr int64_t SIZE = sizeof(typename Memory<S>::type);
  const int64_t count = near.count(near.unit), step = w.g.axis[near.unit].step;
  const int64_t rows = near.count(near.rows), stride = near.step[near.rows] / 2;
  uint8_t* stored = to + near.channel;
  const uint8_t* start = step < 0 ? stored + (count - 1) * SIZE : stored;
  const auto floats = [&](const uint8_t* row, int64_t v) {
    return step > 0 ? floats_at<S>(row + v * SIZE)
                    : mirrored(floats_at<S>(row - (v + LANES - 1) * SIZE), ALL);
  };
  RowEnds ends;
  for (int64_t p = 0; p < near.count(near.planes()); p++) {
    copy_plane(w.g, SIZE, near, source, p, stored, stride);
    find_ends(slant, near, p, ends);
    for (int64_t r = 0; r < rows; r++) {
      const uint8_t* row = start + r * stride;
      const uint8_t* other = r + 1 < rows ? row + stride : row;
      uint8_t* at = to + p * near.step[near.planes()] + r * near.step[near.rows];
      for (int64_t v = ends.first[r]; v <= ends.last[r] && count < LANES; v++) {
        put<float>(at + v * PAIR, load_value<S, float>(row + v * step));
        put<float>(at + v * PAIR + 4, load_value<S, float>(other + v * step));
      }
      for (int64_t n = ends.first[r]; n <= ends.last[r] && count >= LANES; n += LANES) {
        const int64_t v = least(n, count - LANES);  // the last ones lie over those before
        const Floats a = floats(row, v), b = floats(other, v);
        put<Floats>(at + v * PAIR, interleaved<0>(a, b, ALL));
        put<Floats>(at + v * PAIR + 4 * LANES, interleaved<1>(a, b, ALL));
      }
    }
  }
}

template <>
inline void copy_pairs<double>(const Work&, const NearBox&, const Slant&, const uint8_t*, uint8_t*) {
}  // is blended in float64

inline void copy_pairs_of(const Work& w, const NearBox& near, const Slant& slant,
                          const uint8_t* source, uint8_t* to) {
  switch (w.job->source_type) {
#define VOXPIPE_PAIRS(S) copy_pairs<S>(w, near, slant, source, to)
    VOXPIPE_SOURCE_TYPES(VOXPIPE_PAIRS)
#undef VOXPIPE_PAIRS
    default: break;
  }
}

inline bool has_nan(Floats values) {
  const Ints marks = values != values;
  int found = 0;
  for (int n = 0; n < LANES; n++) found |= marks[n];
  return found != 0;
}

// Four numbers of LANES voxels each.
struct FourOf {
  Floats of[4];
};

__attribute__((always_inline)) inline Floats fours_of(const uint8_t* base, const int32_t* offset, int n) {
#define F(v) load<Four>(base + offset[v])
#if LANES == 4
  return F(n);
#else
  const __m256 a = _mm256_insertf128_ps(_mm256_castps128_ps256(F(n)), F(n + 4), 1);
#if LANES == 8
  return a;
#else
  const __m256 b = _mm256_insertf128_ps(_mm256_castps128_ps256(F(n + 8)), F(n + 12), 1);
  return _mm512_maskz_insertf32x8(0xffff, _mm512_castps256_ps512(a), b, 1);
#endif
#endif
#undef F
}

__attribute__((always_inline)) inline FourOf turned_fours(const Floats* row) {
  FourOf four = {row[0], row[1], row[2], row[3]};
  turn_fours<LANES>(four.of);
  return four;
}

template <int UNIT, bool KEEPS>
__attribute__((always_inline)) inline Floats blend_fours(const FourOf& lower, const FourOf& upper,
                                                         const Floats* weight) {
  constexpr int PARTNER = UNIT == 1 ? 0 : 1, THIRD = 3 - UNIT - PARTNER;
  Floats tap[8];  // 4 i + 2 j + k
  for (int n = 0; n < 4; n++) {
    const int at = n / 2 * (4 >> UNIT) + n % 2 * (4 >> PARTNER);
    tap[at] = lower.of[n];
    tap[at + (4 >> THIRD)] = upper.of[n];
  }
  for (int a = 2; a >= 0; a--)
    for (int n = 0; n < 1 << a; n++) {
      Floats& low = tap[n << (3 - a)];
      const Floats high = tap[(n << (3 - a)) + (4 >> a)];
      low = KEEPS ? blend_kept(low, high, weight[a]) : blend(low, high, weight[a]);
    }
  return tap[0];
}

// One row of a tile: ``out`` has room for whole vectors unless ``exact``.
template <int UNIT>
inline void linear_row(const Work& w, const uint8_t* base, const TileGrains& tile,
                       const uint32_t* start, int64_t count, bool exact, uint8_t* out) {
  constexpr int PARTNER = UNIT == 1 ? 0 : 1, THIRD = 3 - UNIT - PARTNER;
  const bool may_be_nan = w.job->source_type == VOXPIPE_F32 || w.job->source_type == VOXPIPE_F16;
  const uint8_t* above = base + w.g.axis[THIRD].step;
  // All offsets first, by way of memory: loads begin early, and none waits for a vector to be split.
  alignas(64) int32_t offsets[NEAR_RUN];
  for (int64_t v = 0; v < count; v += LANES) {
    const TilePlace place = place_of(tile, start, v);
    Ints offset = {};
    for (int a = 0; a < 3; a++)
      offset += (Ints)(place.at[a] >> GRAIN_BITS) * static_cast<int32_t>(w.g.axis[a].step);
    put_vector(offsets + v, offset);
  }
  for (int64_t v = 0; v < count; v += LANES) {
    const TilePlace place = place_of(tile, start, v);
    Floats weight[3];
    for (int a = 0; a < 3; a++) weight[a] = fraction_of(place.at[a]);
    Floats rows[2][4];
    for (int n = 0; n < 4; n++) {
      rows[0][n] = fours_of(base, offsets + v, n);
      rows[1][n] = fours_of(above, offsets + v, n);
    }
    const FourOf lower = turned_fours(rows[0]), upper = turned_fours(rows[1]);
    Floats value = blend_fours<UNIT, false>(lower, upper, weight);
    if (may_be_nan && has_nan(value)) value = blend_fours<UNIT, true>(lower, upper, weight);
    value = finish_vector(w.f, value);
    if (exact && count - v < LANES)
      __builtin_memcpy(out + 4 * v, &value, static_cast<size_t>(4 * (count - v)));
    else
      put<Floats>(out + 4 * v, value);
  }
}

// One tap: elements of E as they are stored.
template <class E>
inline void nearest_row(const Work& w, const uint8_t* base, const TileGrains& tile,
                        const uint32_t* start, int64_t count, bool exact, uint8_t* out) {
  typedef E Elements __attribute__((vector_size(LANES * sizeof(E))));
  constexpr uint32_t HALF = (1u << (GRAIN_BITS - 1)) - 1;
  for (int64_t v = 0; v < count; v += LANES) {
    const TilePlace place = place_of(tile, start, v);
    Ints offset = {};
    for (int a = 0; a < 3; a++) {
      const Words odd = (place.at[a] >> GRAIN_BITS) & 1;
      offset += (Ints)((place.at[a] + HALF + odd) >> GRAIN_BITS) *
                static_cast<int32_t>(w.g.axis[a].step);
    }
    alignas(64) int32_t offsets[LANES];
    put_vector(offsets, offset);
    // One by one: into these few lanes that is faster than a gather instruction, on AMD by a third.
#define VOXPIPE_GET_ELEMENT(n) load<E>(base + offsets[n])
    const Elements found = {VOXPIPE_ALL(VOXPIPE_GET_ELEMENT)};
#undef VOXPIPE_GET_ELEMENT
    constexpr int64_t SIZE = sizeof(E);
    if (exact && count - v < LANES)
      __builtin_memcpy(out + SIZE * v, &found, static_cast<size_t>(SIZE * (count - v)));
    else
      put<Elements>(out + SIZE * v, found);
  }
}

typedef void (*TileRow)(const Work& w, const uint8_t* base, const TileGrains& tile,
                        const uint32_t* start, int64_t count, bool exact, uint8_t* out);

// What makes a row of a tile in one pass; null where nothing does.
inline TileRow tile_row(const Work& w, int unit) {
  const VoxpipeJob& job = *w.job;
  if (job.mode == VOXPIPE_LINEAR && !w.wide)
    return unit == 0 ? linear_row<0> : unit == 1 ? linear_row<1> : linear_row<2>;
  const bool as_stored = job.source_type == job.out_type && !w.f.scaled && !w.f.has_epilogue;
  if (job.mode != VOXPIPE_NEAREST || !as_stored) return nullptr;
  switch (w.f.size) {
    case 1: return nearest_row<uint8_t>;
    case 2: return nearest_row<uint16_t>;
    case 4: return nearest_row<uint32_t>;
    default: return nullptr;
  }
}

// Moves go down, too: coordinates are counted from an even voxel below all of them.
inline void count_from_below(const Work& w, TileGrains& tile) {
  for (int a = 0; a < 3; a++) {
    const double below = 2 * floor_of((w.reach[a] + 1) / 2);
    tile.origin[a] -= below;
    for (uint32_t& grains : tile.along[a]) grains += static_cast<uint32_t>(below) << GRAIN_BITS;
  }
}

inline void add_moves(const Bent& bent, const TileGrains& tile, int64_t from, TileGrains& moved) {
  for (int a = 0; a < 3; a++)
    for (int64_t v = 0; v < NEAR_RUN; v += LANES)
      put_vector(moved.along[a] + v, vector_at<Words>(tile.along[a] + v) +
                                         vector_at<Words>(bent.by[a] + from + v));
}

// A tile that lies inside, out of its copy.
inline void sample_inside(const Work& w, const Box& box, int across, bool turned, TileRow make_row,
                          int64_t c) {
  const VoxpipeJob& job = *w.job;
  const int lane = w.g.lane, beyond = 3 - lane - across;
  const int64_t count = box.end[lane] - box.begin[lane], rows = box.end[across] - box.begin[across];
  const bool linear = job.mode == VOXPIPE_LINEAR;
  const bool converts = linear && job.out_type != VOXPIPE_F32;
  TileGrains tile;
  const double* const affine_rows[3] = {w.g.axis[0].row, w.g.axis[1].row, w.g.axis[2].row};
  count_tile(affine_rows, lane, box, across, !linear, tile);
  TileGrains moved;
  if (w.bent) count_from_below(w, tile);
  int64_t from = 0;
  for (int a = 0; a < 3; a++)
    from += static_cast<int64_t>(tile.origin[a] - w.g.axis[a].start) * w.g.axis[a].step;
  alignas(64) uint8_t block[BLOCK * NEAR_RUN * 8];
  alignas(64) float values[NEAR_RUN + SPARE];
  const int64_t size = w.f.size, wide = NEAR_RUN * size;
  const bool dense = !turned && job.out_stride[lane] == size;
  const uint8_t* base = w.source + from;
  for (int64_t third = 0; third < box.end[beyond] - box.begin[beyond]; third++) {
    uint8_t* out = w.out + c * job.out_channel_stride +
                   (box.begin[beyond] + third) * job.out_stride[beyond] +
                   box.begin[across] * job.out_stride[across] +
                   box.begin[lane] * job.out_stride[lane];
    for (int64_t row = 0; row < rows; row++) {
      uint32_t start[3];
      for (int a = 0; a < 3; a++) start[a] = tile.across[a][row] + tile.beyond[a][third];
      if (w.bent) add_moves(*w.bent, tile, (third * TILE + row) * NEAR_RUN, moved);
      const TileGrains& grains = w.bent ? moved : tile;
      uint8_t* to = dense ? out + row * job.out_stride[across] : block + row * wide;
      if (converts) {
        make_row(w, base, grains, start, count, false, reinterpret_cast<uint8_t*>(values));
        put_values<float>(job.out_type, values, count, to, size);
      } else {
        make_row(w, base, grains, start, count, dense, to);
      }
    }
    if (!dense)
      turn_block(size, block, wide, rows, count, out, job.out_stride[across], job.out_stride[lane]);
  }
}

inline void sample_tile(const Work& w, const Box& box, int across, bool turned,
                        Advance& advance) {
  const int third = 3 - w.g.lane - across;
  int64_t corner[3] = {box.begin[0], box.begin[1], box.begin[2]};
  for (; corner[third] < box.end[third]; corner[third]++)
    if (turned) sample_turned(w, box, across, corner, advance);
    else sample_straight(w, box, across, corner, advance);
}

// Tiles that are sampled out of copies.
struct Near {
  int unit;  // source axis along which voxels are neighbours
  TileRow make_row;
  uint8_t* memory;
  Work copied;  // as ``Work``, of the copy
};

// ``copied`` then describes the copy.
inline void describe_copy(const NearBox& near, const uint8_t* memory, Work& copied) {
  copied.source = memory + near.origin;
  copied.source_channel = near.channel;
  copied.g.origin = 0;
  for (int a = 0; a < 3; a++) {
    Axis& axis = copied.g.axis[a];
    axis.start = near.first[a];
    axis.end = near.last[a];
    axis.step = near.step[a];
    axis.stride = static_cast<double>(axis.step);
    copied.g.origin -= axis.start * axis.stride;
  }
}

inline void sample_near(const Work& w, const Box& box, int across, bool turned, Advance& advance,
                        Near& near) {
  const int64_t size = size_of_type(w.job->source_type);
  NearBox copy;
  double voxels = 1, tile = 1;
  for (int a = 0; a < 3; a++) {
    double low, high;
    ends_of(w, box, a, &low, &high);
    reach_over(w.g.axis[a], low, high, copy.first[a], copy.last[a]);
    voxels *= copy.last[a] - copy.first[a] + 1;
    tile *= static_cast<double>(box.end[a] - box.begin[a]);
  }
  if (w.bent && voxels > NEAR_VOXELS * tile) return sample_tile(w, box, across, turned, advance);
  if (near.make_row && (!w.bent || w.bent->counted) && is_interior(w, box)) {
    const bool linear = w.job->mode == VOXPIPE_LINEAR;
    if (linear) place_near(near.unit, partner_of(near.unit), PAIR, 16, copy);
    else place_near(near.unit, rows_of(w.g, near.unit), w.g.axis[near.unit].step, 16, copy);
    const int64_t plane = linear ? copy.step[copy.rows] * copy.count(copy.rows) / 2 : 0;
    if (copy.channel + plane <= NEAR_BYTES) {
      describe_copy(copy, near.memory, near.copied);
      const Slant slant = linear ? slant_of(w.g, copy, box, w.reach) : Slant{};
      for (int64_t c = 0; c < w.channels; c++) {
        const uint8_t* source = w.source + c * w.source_channel;
        if (linear) copy_pairs_of(w, copy, slant, source, near.memory);
        else copy_near(w.g, size, copy, source, near.memory);
        sample_inside(near.copied, box, across, turned, near.make_row, c);
      }
      return;
    }
  }
  place_near(near.unit, rows_of(w.g, near.unit), w.g.axis[near.unit].step, 16, copy);
  if (copy.channel * w.channels > NEAR_BYTES) return sample_tile(w, box, across, turned, advance);
  describe_copy(copy, near.memory, near.copied);
  for (int64_t c = 0; c < w.channels; c++)
    copy_near(w.g, size, copy, w.source + c * w.source_channel, near.memory + c * copy.channel);
  sample_tile(near.copied, box, across, turned, advance);
}

// Whether tiles of such sizes are sampled out of copies.
inline bool comes_near(const Work& w, int unit, const int64_t* step) {
  const int64_t size = size_of_type(w.job->source_type), stride = w.g.axis[unit].step;
  if (w.job->mode == VOXPIPE_CUBIC || (stride != size && stride != -size)) return false;
  double voxels = 1, tile = 1;
  for (int a = 0; a < 3; a++) {
    const Axis& axis = w.g.axis[a];
    if (axis.reflects) return false;
    double count = 2 + 2 * w.reach[a];
    for (int n = 0; n < 3; n++)
      count += __builtin_fabs(axis.row[n]) * static_cast<double>(least(step[n], w.g.shape[n]) - 1);
    if (count > MOST_GRAINS) return false;
    voxels *= least(count, axis.end - axis.start + 1);
    tile *= static_cast<double>(least(step[a], w.g.shape[a]));
  }
  return w.bent ||  // which asks tile by tile
         (voxels <= NEAR_VOXELS * tile &&
          voxels * static_cast<double>(size * w.channels) <= static_cast<double>(NEAR_BYTES));
}

inline void sample_channels(const Work& w, uint8_t* memory) {
  const VoxpipeJob& job = *w.job;
  const int lane = w.g.lane;
  int dense = 2;  // the output's axis of neighbours in memory
  for (int n = 1; n >= 0; n--)
    if (job.out_stride[n] == w.f.size && job.out_size[n] > 1 &&
        (job.out_stride[dense] != w.f.size || job.out_size[dense] == 1))
      dense = n;
  const bool turned = lane != dense && job.out_size[dense] > 1;
  const int across = turned ? dense : (lane == 2 ? 1 : 2), third = 3 - lane - across;
  const int unit = densest_axis(w.g);
  int64_t step[3] = {TILE, TILE, TILE};
  step[lane] = least(w.run, NEAR_RUN);
  const bool is_near = memory && comes_near(w, unit, step);
  if (!is_near && !w.bent) step[lane] = w.run;
  Near near{unit, tile_row(w, unit), memory, w};
  const double* const affine_rows[3] = {w.g.axis[0].row, w.g.axis[1].row, w.g.axis[2].row};
  Advance advance;
  advance.begin = -1;
  Box box;
  for (box.begin[lane] = 0; box.begin[lane] < w.g.shape[lane]; box.begin[lane] += step[lane])
    for (box.begin[third] = 0; box.begin[third] < w.g.shape[third]; box.begin[third] += TILE)
      for (box.begin[across] = 0; box.begin[across] < w.g.shape[across]; box.begin[across] += TILE) {
        for (int n = 0; n < 3; n++) box.end[n] = least(box.begin[n] + step[n], w.g.shape[n]);
        if (w.bent)
          bend_tile(w.control, w.earlier, affine_rows, w.reach, box, lane, across, *w.bent);
        if (is_near) sample_near(w, box, across, turned, advance, near);
        else sample_tile(w, box, across, turned, advance);
      }
}

inline void sample_general(Work& w) {
  const VoxpipeJob& job = *w.job;
  // Without memory, nothing is copied.
  uint8_t* memory = static_cast<uint8_t*>(malloc(NEAR_BYTES));
  for (int64_t c = 0; c < job.channels; c += CHANNELS) {
    w.channels = least(CHANNELS, job.channels - c);
    w.source = reinterpret_cast<const uint8_t*>(job.source) + c * job.source_channel_stride;
    w.source_channel = job.source_channel_stride;
    w.out = reinterpret_cast<uint8_t*>(job.out) + c * job.out_channel_stride;
    sample_channels(w, memory);
  }
  free(memory);
}

}  // namespace VOXPIPE_PATH_NAME
