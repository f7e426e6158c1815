// The output of an affine or displaced map in tiles: each out of a copy of the voxels that it meets, where that
// pays, and in one pass, from coordinates to results in registers, where all of it lies inside.
#pragma once

#include "processor.h"
#include "box.h"
#include "general.h"

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

template <class S>
__attribute__((noinline)) Floats mend_vector(const Work& w, const uint8_t* base,
                                             const int32_t* offset, const Floats* weight,
                                             Floats value) {
  Taps<float> taps;
  put_vector(taps.offset, vector_at<Ints>(offset));
  for (int a = 0; a < 3; a++) put_vector(taps.weight[a], weight[a]);
  float values[LANES];
  put_vector(values, value);
  if (may_be_met(w.g.axis, taps, 0, LANES, values))
    blend_vector<S, true>(base, w.g.axis, taps, 0, values);
  return vector_at<Floats>(values);
}

inline bool has_nan(Floats values) {
  const Ints marks = values != values;
  int found = 0;
  for (int n = 0; n < LANES; n++) found |= marks[n];
  return found != 0;
}

// One row of a tile: ``out`` has room for whole vectors unless ``exact``.
template <class S, int UNIT>
inline void linear_row(const Work& w, const uint8_t* base, const TileGrains& tile,
                       const uint32_t* start, int64_t count, bool exact, uint8_t* out) {
  for (int64_t v = 0; v < count; v += LANES) {
    const TilePlace place = place_of(tile, start, v);
    Ints offset = {};
    Floats weight[3];
    for (int a = 0; a < 3; a++) {
      offset += (Ints)(place.at[a] >> GRAIN_BITS) * static_cast<int32_t>(w.g.axis[a].step);
      weight[a] = fraction_of(place.at[a]);
    }
    alignas(64) int32_t offsets[LANES];
    put_vector(offsets, offset);
    // Out of a cache, gathers are faster than single loads on AMD, too.
    Floats value =
        blend_pairs<S, UNIT, true>(base, w.g.axis, offsets, weight[0], weight[1], weight[2]);
    if (HasNan<S>::value && has_nan(value))
      value = mend_vector<S>(w, base, offsets, weight, value);
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

template <class S>
inline TileRow linear_row_of(int unit) {
  return unit == 0 ? linear_row<S, 0> : unit == 1 ? linear_row<S, 1> : linear_row<S, 2>;
}

template <>
inline TileRow linear_row_of<double>(int) {
  return nullptr;  // eight bytes are no pair for a register of pairs
}

// What makes a row of a tile in one pass; null where nothing does.
inline TileRow tile_row(const Work& w, int unit) {
  const VoxpipeJob& job = *w.job;
  if (job.mode == VOXPIPE_LINEAR && !w.wide) {
    switch (job.source_type) {
#define VOXPIPE_ROW(S) return linear_row_of<S>(unit)
      VOXPIPE_SOURCE_TYPES(VOXPIPE_ROW)
#undef VOXPIPE_ROW
      default: return nullptr;
    }
  }
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
inline void sample_inside(const Work& w, const Box& box, int across, bool turned, TileRow make_row) {
  const VoxpipeJob& job = *w.job;
  const int lane = w.g.lane, beyond = 3 - lane - across;
  const int64_t count = box.end[lane] - box.begin[lane], rows = box.end[across] - box.begin[across];
  const bool linear = job.mode == VOXPIPE_LINEAR;
  const bool converts = linear && job.out_type != VOXPIPE_F32;
  TileGrains tile;
  const double* const rows_of[3] = {w.g.axis[0].row, w.g.axis[1].row, w.g.axis[2].row};
  count_tile(rows_of, lane, box, across, !linear, tile);
  TileGrains moved;
  if (w.bent) count_from_below(w, tile);
  int64_t from = 0;
  for (int a = 0; a < 3; a++)
    from += static_cast<int64_t>(tile.origin[a] - w.g.axis[a].start) * w.g.axis[a].step;
  alignas(64) uint8_t block[BLOCK * NEAR_RUN * 8];
  alignas(64) float values[NEAR_RUN + SPARE];
  const int64_t size = w.f.size, wide = NEAR_RUN * size;
  const bool dense = !turned && job.out_stride[lane] == size;
  for (int64_t c = 0; c < w.channels; c++) {
    const uint8_t* base = w.source + from + c * w.source_channel;
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
        turn_block(size, block, wide, rows, count, out, job.out_stride[across],
                   job.out_stride[lane]);
    }
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
  near_box(w.g, near.unit, size, copy);
  if (copy.channel * w.channels > NEAR_BYTES || (w.bent && voxels > NEAR_VOXELS * tile))
    return sample_tile(w, box, across, turned, advance);
  for (int64_t c = 0; c < w.channels; c++)
    copy_near(w.g, near.unit, size, copy, w.source + c * w.source_channel,
              near.memory + c * copy.channel);
  Work& copied = near.copied;
  copied.source = near.memory + copy.origin;
  copied.source_channel = copy.channel;
  copied.g.origin = 0;
  for (int a = 0; a < 3; a++) {
    Axis& axis = copied.g.axis[a];
    axis.start = copy.first[a];
    axis.end = copy.last[a];
    axis.step = copy.step[a];
    axis.stride = static_cast<double>(axis.step);
    copied.g.origin -= axis.start * axis.stride;
  }
  if (near.make_row && (!w.bent || w.bent->counted) && is_interior(w, box))
    sample_inside(copied, box, across, turned, near.make_row);
  else
    sample_tile(copied, box, across, turned, advance);
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
  const double* const rows_of[3] = {w.g.axis[0].row, w.g.axis[1].row, w.g.axis[2].row};
  Advance advance;
  advance.begin = -1;
  Box box;
  for (box.begin[lane] = 0; box.begin[lane] < w.g.shape[lane]; box.begin[lane] += step[lane])
    for (box.begin[third] = 0; box.begin[third] < w.g.shape[third]; box.begin[third] += TILE)
      for (box.begin[across] = 0; box.begin[across] < w.g.shape[across]; box.begin[across] += TILE) {
        for (int n = 0; n < 3; n++) box.end[n] = least(box.begin[n] + step[n], w.g.shape[n]);
        if (w.bent)
          bend_tile(w.control, w.earlier, rows_of, w.reach, box, lane, across, *w.bent);
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
