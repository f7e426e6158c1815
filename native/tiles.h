// The output of an affine, displaced or cubic map, in tiles. A tile is sampled row by row, out of a
// copy of the voxels that it meets where that pays; a vector goes from its coordinates to its result
// in registers. Tiles that lie inside the volume are told from those at an edge, whose coordinates
// are kept within it first, so that one loop serves both.
#pragma once

#include "cubic.h"
#include "nearest.h"
#include "tables.h"
#include "zoom.h"

namespace VOXPIPE_PATH_NAME {

// How the output is gone through: rows of tiles along ``lane``, side by side along ``across``.
struct Tiling {
  int lane, across, beyond;
  bool turned;  // rows are the output's columns
  bool pairs;   // taps are copied in pairs
  bool zooms;   // or as numbers, of rows that run along those of the source, i or k
  int unit;     // source axis along which voxels are neighbours
  int64_t step[3];
};

inline Tiling tiling_of(const Work& w) {
  const VoxpipeJob& job = *w.job;
  Tiling t{w.g.lane, 0, 0, false, false, false, densest_axis(w.g), {TILE, TILE, TILE}};
  int dense = 2;  // the output's axis of neighbours in memory, or -1
  while (dense >= 0 && (job.out_stride[dense] != w.f.size || job.out_size[dense] == 1)) dense--;
  t.turned = dense >= 0 && t.lane != dense;
  t.across = t.turned ? dense : (t.lane == 2 ? 1 : 2);
  t.beyond = 3 - t.lane - t.across;
  int source[3];
  const bool is_linear = job.mode == VOXPIPE_LINEAR && !w.wide;
  t.zooms = is_linear && t.unit != 1 && keeps_apart(job, source) && source[t.lane] == t.unit &&
            __builtin_fabs(w.g.axis[t.unit].row[t.lane]) <= MOST_ZOOM;
  for (const Axis& axis : w.g.axis) t.zooms &= !axis.reflects;
  t.pairs = is_linear && !t.zooms && !w.gathers;
  int64_t run = RUN;  // or fewer, of which grains can be counted: before the first, and rounded
  for (const Axis& axis : w.g.axis)
    while (run > 1 && __builtin_fabs(axis.row[t.lane]) * static_cast<double>(run - 1) > 252) run /= 2;
  const bool whole_runs = t.zooms || (job.mode == VOXPIPE_CUBIC && !job.control);
  t.step[t.lane] = whole_runs ? run : least(run, NEAR_RUN);
  for (int n = 0; n < 3; n++) t.step[n] = least(t.step[n], job.out_size[n]);
  return t;
}

// Bytes of a voxel in a copy.
inline int64_t size_in_copy(const Work& w, const Tiling& t) {
  return t.pairs ? PAIR : t.zooms ? int64_t{sizeof(float)} : size_of_type(w.job->source_type);
}

// A box of so many times the tile's voxels is copied.
inline double most_near(const Work& w) {
  return w.job->mode == VOXPIPE_LINEAR && !w.wide ? NEAR_PAIRS : NEAR_VOXELS;
}

// How far a tile reaches along a matrix row.
inline double span_of(const double* row, const int64_t* step) {
  double span = 0;
  for (int n = 0; n < 3; n++) span += __builtin_fabs(row[n]) * static_cast<double>(step[n] - 1);
  return span;
}

// Places the copy of a box of which ``first`` and ``last`` are known; returns whether it is small.
inline bool place_copy(const Work& w, const Tiling& t, NearBox& near) {
  const int64_t size = size_in_copy(w, t);
  const int64_t step = t.pairs || t.zooms || w.g.axis[t.unit].step > 0 ? size : -size;
  place_near(t.unit, t.pairs ? partner_of(t.unit) : rows_of(w.g, t.unit), step,
             t.zooms ? step * t.step[t.lane] : 16, near);
  // Behind pairs lies a plane as it is stored, of which they are made.
  const int64_t plane = t.pairs ? near.step[near.rows] * near.count(near.rows) / 2 : 0;
  return near.bytes + plane <= NEAR_BYTES && (t.zooms || near.step[near.planes()] <= MOST_STEP);
}

// Whether a tile's coordinates and places on its control grid can be counted, and a copy is small.
inline bool fits(const Work& w, const Tiling& t) {
  double voxels = 1, tile = 1;
  NearBox near{};
  for (int a = 0; a < 3; a++) {
    const double span = span_of(w.g.axis[a].row, t.step);
    near.last[a] = least(floor_of(span) + 2, w.g.axis[a].end - w.g.axis[a].start);
    if (span + 2 * w.reach[a] > MOST_GRAINS) return false;
    if (w.job->control && span_of(w.control.matrix + 4 * a, t.step) > MOST_GRAINS) return false;
    voxels *= near.last[a] + 1;
    tile *= static_cast<double>(t.step[a]);
  }
  return voxels > most_near(w) * tile || place_copy(w, t, near);
}

// Halves tiles until they fit; one of a single voxel does.
inline void shrink(const Work& w, Tiling& t) {
  while (!fits(w, t)) {
    int longest = 0;
    double span[3] = {};
    for (int n = 0; n < 3; n++) {
      for (int a = 0; a < 3; a++)
        span[n] += __builtin_fabs(w.g.axis[a].row[n]) +
                   (w.job->control ? __builtin_fabs(w.control.matrix[4 * a + n]) : 0.0);
      span[n] *= static_cast<double>(t.step[n] - 1);
      if (t.zooms && n == t.lane) span[n] /= RUN / TILE;  // long rows pay
      if (span[n] > span[longest]) longest = n;
    }
    t.step[longest] = (t.step[longest] + 1) / 2;
  }
}

// Calls act(tile) for each tile of a box of the output.
template <class Act>
inline void each_tile(const Tiling& t, const Box& all, const Act& act) {
  const int l = t.lane, b = t.beyond, a = t.across;
  int64_t at[3];
  for (at[l] = all.begin[l]; at[l] < all.end[l]; at[l] += t.step[l])
    for (at[b] = all.begin[b]; at[b] < all.end[b]; at[b] += t.step[b])
      for (at[a] = all.begin[a]; at[a] < all.end[a]; at[a] += t.step[a]) {
        Box tile;
        for (int n = 0; n < 3; n++) {
          tile.begin[n] = at[n];
          tile.end[n] = least(at[n] + t.step[n], all.end[n]);
        }
        act(tile);
      }
}

// Calls make(index, third, to, step, exact) for each slice of a tile, which puts the elements of a row
// side by side, rows ``step`` bytes apart: whole vectors unless ``exact``. ``index`` is that of the first
// voxel. Brings them to their places.
template <class Make>
VOXPIPE_INLINE void each_slice(const Work& w, const Tiling& t, const Box& box, uint8_t* out,
                               const Make& make) {
  const VoxpipeJob& job = *w.job;
  const int64_t size = w.f.size, wide = t.step[t.lane] <= NEAR_RUN ? NEAR_RUN : RUN;
  const int64_t count = box.length(t.lane), rows = box.length(t.across);
  const int64_t step = job.out_stride[t.lane], row_step = job.out_stride[t.across];
  const bool dense = !t.turned && step == size;
  alignas(64) uint8_t block[BLOCK_BYTES];
  int64_t index[3] = {box.begin[0], box.begin[1], box.begin[2]};
  for (int n = 0; n < 3; n++) out += index[n] * job.out_stride[n];
  for (int64_t third = 0; third < box.length(t.beyond); third++) {
    index[t.across] = box.begin[t.across];
    index[t.beyond] = box.begin[t.beyond] + third;
    make(index, third, dense ? out : block, dense ? row_step : wide * size, dense);
    if (!dense) turn_block(size, block, wide * size, rows, count, out, row_step, step);
    out += job.out_stride[t.beyond];
  }
}

// The same row by row: make(index, third, row, to).
template <class Make>
VOXPIPE_INLINE void each_row(const Work& w, const Tiling& t, const Box& box, uint8_t* out,
                             const Make& make) {
  each_slice(w, t, box, out, [&](int64_t* index, int64_t third, uint8_t* to, int64_t step, bool) {
    for (int64_t row = 0; row < box.length(t.across); row++, to += step) {
      index[t.across] = box.begin[t.across] + row;
      make(index, third, row, to);
    }
  });
}

// The voxels of a row that all limits of one kind keep.
inline Interval kept_by(const Work& w, int lane, const int64_t* index, int64_t count, bool fills) {
  Interval all{0, count};
  for (int n = 0; n < w.limits.count; n++) {
    const Limit& limit = w.limits.limit[n];
    if (limit.fills != fills) continue;
    const Line line = line_of(limit.row, lane, index);
    const double begin = line.at(index[lane]), end = line.at(index[lane] + count - 1);
    if (most(begin, end) < limit.low || least(begin, end) > limit.high) return Interval{0, 0};
    if (least(begin, end) >= limit.low && most(begin, end) <= limit.high) continue;
    all = part_inside(all, [&](int64_t v) {
      const double at = line.at(index[lane] + v);
      return at >= limit.low && at <= limit.high;
    });
  }
  return all;
}

inline void fill_around(const Finish& f, Interval kept, const uint8_t* element, int64_t count,
                        uint8_t* to) {
  if (kept.begin > 0) fill_row(element, f.size, kept.begin, to, f.size);
  if (kept.end < count) fill_row(element, f.size, count - kept.end, to + kept.end * f.size, f.size);
}

// Displaced voxels that lie outside become fill, and zero under "zeros" where one tap decides.
inline void cover_moved(const Work& w, const Places& places, int64_t count, uint8_t* to) {
  const bool rounds = w.zeros && w.job->mode == VOXPIPE_NEAREST;
  if (!rounds && w.job->padding != VOXPIPE_CONSTANT) return;
  const double reach = rounds ? 0 : REACH;
  for (int64_t v = 0; v < count; v++) {
    bool outside = false;
    for (int a = 0; a < 3; a++) {
      const Axis& axis = w.g.axis[a];
      const double at = rounds ? round_even(places.at[a][v]) : places.at[a][v];
      outside |= (at < axis.first - reach) | (at > axis.last + reach);
    }
    if (outside) fill_row(rounds ? w.f.zero : w.f.fill, w.f.size, 1, to + v * w.f.size, w.f.size);
  }
}

// How much is left of each voxel under padding "zeros".
inline void fade_row(const Work& w, const Places& places, int64_t count, double* fade) {
  for (int64_t v = 0; v < count; v++) fade[v] = 1;
  for (int a = 0; a < 3; a++) {
    const Axis& axis = w.g.axis[a];
    for (int64_t v = 0; v < count && axis.leaves; v++) {
      const double c = places.at[a][v];
      fade[v] *= most(0.0, least(1.0, least(c - axis.first, axis.last - c) + 1.0));
    }
  }
}

inline void sample_cubic(const Work& w, const Tiling& t, const Box& box, const Bent* bent,
                         const uint8_t* source, uint8_t* out) {
  const int64_t all = box.length(t.lane);
  each_row(w, t, box, out, [&](const int64_t* index, int64_t third, int64_t row, uint8_t* to) {
    const Interval part = kept_by(w, t.lane, index, all, true);
    const int64_t count = part.end - part.begin, from = (third * TILE + row) * NEAR_RUN + part.begin;
    const double first = static_cast<double>(index[t.lane] + part.begin);
    Places places;
    for (int a = 0; a < 3; a++) {
      const Line line = line_of(w.g.axis[a].row, t.lane, index);
      for (int32_t v = 0; v < count; v++) places.at[a][v] = line.at(first + v);
      for (int64_t v = 0; v < count && bent; v++)
        places.at[a][v] += bits_of<int32_t>(bent->by[a][from + v]) * GRAIN;
    }
    uint8_t* const begin = to + part.begin * w.f.size;
    if (count && w.wide) cubic_part<double>(w, source, places, count, begin);
    if (count && !w.wide) cubic_part<float>(w, source, places, count, begin);
    if (bent) cover_moved(w, places, count, begin);
    fill_around(w.f, part, w.f.fill, all, to);
  });
}

// What makes rows of a slice, ``step`` bytes apart: elements as they are stored, or numbers, which are
// finished already if they are float32 of a tile inside. Called row by row, maps take up to 1.1 times as
// long: what all rows share is brought into registers for each.
typedef void (*MakeRows)(const Work& w, const Reading& tile, uint8_t* out, int64_t step);

template <class V>
VOXPIPE_INLINE void put_part(uint8_t* to, const V& v, int64_t count, bool exact) {
  if (exact && count < LANES) __builtin_memcpy(to, &v, static_cast<size_t>(count) * sizeof(V) / LANES);
  else put<V>(to, v);
}

// Calls make(reading, to) for each of them. The reading is a copy: a store of bytes might change what
// others refer to, and would keep all of it out of registers.
template <class Make>
VOXPIPE_INLINE void make_rows(const Reading& tile, uint8_t* out, int64_t step, const Make& make) {
  Reading r = tile;
  for (int64_t row = 0; row < tile.rows; row++, out += step) {
    r.start = tile.across[row] + tile.start;
    for (int a = 0; a < 3; a++) r.along[a] = tile.along[a] + row * tile.along_step;
    make(r, out);
  }
}

// Numbers out of what ``S`` says (``linear_row``), or out of rows that are stretched.
template <class S, int UNIT, bool EDGE, bool ZOOMS>
void blended_rows(const Work& w, const Reading& tile, uint8_t* out, int64_t step) {
  const Finish f = w.f;
  make_rows(tile, out, step, [&](const Reading& r, uint8_t* to) VOXPIPE_ALWAYS {
    const auto done = [&](int64_t v, Floats value) VOXPIPE_ALWAYS {
      put_part(to + 4 * v, EDGE ? value : finish_vector(f, value), r.count - v, r.exact);
    };
    if constexpr (ZOOMS) zoom_row<UNIT>(r, *r.stretch, r.count, done);
    else linear_row<S, UNIT, EDGE>(r, r.count, done);
  });
}

template <class S, class W>
void apart_rows(const Work&, const Reading& tile, uint8_t* out, int64_t step) {
  make_rows(tile, out, step, [&](const Reading& r, uint8_t* to) {
    linear_apart<S, W>(r, r.count, reinterpret_cast<W*>(to));
  });
}

template <class E, bool EDGE, bool GATHERS>
void nearest_rows(const Work&, const Reading& tile, uint8_t* out, int64_t step) {
  typedef E Elements __attribute__((vector_size(LANES * sizeof(E))));
  constexpr int64_t SIZE = sizeof(E);
  make_rows(tile, out, step, [&](const Reading& r, uint8_t* to) VOXPIPE_ALWAYS {
    for (int64_t v = 0; v < r.count; v += LANES) {
      const Ints offsets = offsets_of<EDGE, true>(r, v);
      put_part(to + SIZE * v, elements_at<E, Elements, GATHERS>(r.base, offsets, ALL_LANES),
               r.count - v, r.exact);
    }
  });
}

template <class E>
void picked_rows(const Work&, const Reading& tile, uint8_t* out, int64_t step) {
  make_rows(tile, out, step, [&](const Reading& r, uint8_t* to) {
    const uint8_t* place[NEAR_RUN];
    places_of<true>(r, r.count, place);
    const uint8_t* const* places = place;
    pick_elements<E>([=](int64_t v) { return places[v]; }, r.count, to);
  });
}

template <bool EDGE>
inline MakeRows rows_of_tile(const Work& w, const Tiling& t, bool copied) {
  const int64_t type = w.job->source_type;
  if (w.job->mode == VOXPIPE_NEAREST)
    return with_size(size_of_type(type), [&](auto e) -> MakeRows {
      typedef VOXPIPE_TYPE(e) E;
      constexpr bool CAN = CAN_GATHER && sizeof(E) <= 4;
      if (!copied) return picked_rows<E>;
      return w.gathers ? nearest_rows<E, EDGE, CAN> : nearest_rows<E, EDGE, false>;
    });
  if (!copied || w.wide)
    return with_stored(type, [&](auto s) -> MakeRows {
      return w.wide ? apart_rows<VOXPIPE_TYPE(s), double> : apart_rows<VOXPIPE_TYPE(s), float>;
    });
  if (t.zooms)
    return t.unit == 0 ? blended_rows<Pair, 0, EDGE, true> : blended_rows<Pair, 2, EDGE, true>;
  const auto blends = [&](auto s) -> MakeRows {
    typedef VOXPIPE_TYPE(s) S;
    if constexpr (!IS_SAME<S, Pair> && (sizeof(S) > 4 || !CAN_GATHER)) return nullptr;
    else if (t.unit == 0) return blended_rows<S, 0, EDGE, false>;
    else return t.unit == 1 ? blended_rows<S, 1, EDGE, false> : blended_rows<S, 2, EDGE, false>;
  };
  return t.pairs ? blends(Tag<Pair>{}) : with_stored(type, blends);
}

// Where the voxels of a tile are, and what they are.
struct Tile {
  Box box;
  TileGrains grains;
  double low[3];  // the least and the largest coordinate
  double high[3];
  bool moved;   // by a field, or folded back: ``Bent`` says how far
  bool folded;
  bool empty;   // no voxel is sampled
  bool edge;    // not every tap of every voxel is at hand, or not every voxel is sampled
  bool copied;  // what it meets
  NearBox near;  // that, in a copy or where it lies
};

// Where the coordinates between two lie when they are folded back.
inline void fold_ends(const Axis& axis, double& low, double& high) {
  const double face = axis.first - 0.5, length = axis.last + 1.0 - axis.first;
  const double a = fold(low, axis.first, axis.last), b = fold(high, axis.first, axis.last);
  const double before = floor_of((low - face) / length);
  const double mirrors = floor_of((high - face) / length) - before;
  const bool at_first = mirrors > 1 || (mirrors == 1 && even_below(before) != before);
  const bool at_last = mirrors > 1 || (mirrors == 1 && even_below(before) == before);
  low = at_first ? face : least(a, b);
  high = at_last ? face + length : most(a, b);
}

// Coordinates that are folded back are moved, too.
inline void fold_tile(const Work& w, Tile& tile, Bent& bent) {
  tile.folded = false;
  for (int a = 0; a < 3; a++) {
    const Axis& axis = w.g.axis[a];
    if (!axis.reflects || (tile.low[a] >= axis.first && tile.high[a] <= axis.last)) continue;
    if (!tile.moved) memset(bent.by, 0, sizeof(bent.by));
    tile.moved = tile.folded = true;
    fold_ends(axis, tile.low[a], tile.high[a]);
    each_row_of(bent, tile.grains, Interval{0, bent.slices}, [&](PerAxis start, int64_t at) {
      for (int64_t v = 0; v < NEAR_RUN; v++) {
        const int32_t by = bits_of<int32_t>(bent.by[a][at + v]);
        const double there = tile.grains.origin[a] + by * GRAIN +
                             (tile.grains.along[a][v] + start[a]) * GRAIN;
        const double away = fold(there, axis.first, axis.last) - there;
        bent.by[a][at + v] = bits_of<float>(static_cast<uint32_t>(by) +
                                            static_cast<uint32_t>(whole_to_int(away * GRAINS)));
      }
    });
  }
}

// Whether a tile is empty or at an edge.
inline void find_edge(const Work& w, Tile& tile) {
  tile.empty = tile.edge = false;
  for (int n = 0; n < w.limits.count; n++) {
    const Limit& limit = w.limits.limit[n];
    double low, high;
    extremes(limit.row, tile.box, &low, &high);
    tile.empty |= high < limit.low || low > limit.high;
    tile.edge |= low < limit.low || high > limit.high;
  }
  for (int a = 0; a < 3; a++) {
    const Axis& axis = w.g.axis[a];
    const double low = tile.low[a], high = tile.high[a];
    if (w.job->mode == VOXPIPE_NEAREST)
      tile.edge |= round_even(low) < axis.start || round_even(high) > axis.end;
    else
      tile.edge |= axis.single || low < axis.start || high >= axis.end;
  }
}

// Places what a tile meets: in a copy, if that is small enough.
inline void place_tile(const Work& w, const Tiling& t, Tile& tile) {
  const int64_t size = size_of_type(w.job->source_type), stride = w.g.axis[t.unit].step;
  NearBox& near = tile.near;
  double voxels = 1, all = 1;
  for (int a = 0; a < 3; a++) {
    const Axis& axis = w.g.axis[a];
    // Two at least where there are two, as clamping takes the outermost two.
    near.first[a] = most(axis.start, least(axis.end - 1, floor_of(tile.low[a])));
    near.last[a] = least(axis.end, most(axis.start + 1, floor_of(tile.high[a]) + 1));
    voxels *= near.last[a] - near.first[a] + 1;
    all *= static_cast<double>(tile.box.length(a));
  }
  tile.copied = (stride == size || stride == -size) && voxels <= most_near(w) * all &&
                place_copy(w, t, near);
  if (tile.copied) return;
  for (int a = 0; a < 3; a++) {
    near.first[a] = w.g.axis[a].start;
    near.last[a] = w.g.axis[a].end;
    near.step[a] = w.g.axis[a].step;
  }
  near.origin = 0;
}

// ``data`` is where the voxels of ``near`` are.
inline Reading reading_of(const Work& w, const Tile& tile, const uint8_t* data) {
  const NearBox& near = tile.near;
  constexpr double MOST = 4294967295.0;
  Reading r;
  r.keeps = with_stored(w.job->source_type, [](auto s) { return HAS_NAN<VOXPIPE_TYPE(s)>; });
  r.base = data + near.origin;
  for (int a = 0; a < 3; a++) {
    const Axis& axis = w.g.axis[a];
    const bool one = axis.single || w.job->mode == VOXPIPE_NEAREST;
    const double last = near.last[a] - (one ? 0 : 1), origin = tile.grains.origin[a];
    // A tile beside the volume meets its last voxels alone. Coordinates that lie within the volume, but
    // not within what is at hand, are kept at what is counted.
    const double beside = axis.leaves || one ? 0 : MOST_GRAINS / 2;
    const bool below = tile.high[a] <= axis.start - beside;
    const bool above = tile.low[a] >= axis.end + beside;
    const bool off = tile.edge && (below || above), keeps = axis.leaves && !off;
    const double voxel = !off ? origin : (below ? near.first[a] : last);
    const double low = most(0.0, least(MOST, (axis.start - origin) * GRAINS));
    const double high = most(0.0, least(MOST, (axis.end - origin) * GRAINS));
    const uint32_t there = below ? 0 : 1u << GRAIN_BITS;
    r.low[a] = off ? there : (keeps ? static_cast<uint32_t>(low) : 0);
    r.high[a] = off ? there : (keeps ? static_cast<uint32_t>(high) : UINT32_MAX);
    r.first[a] = off ? 0 : static_cast<int32_t>(near.first[a] - origin);
    r.last[a] = off ? 0 : static_cast<int32_t>(last - origin);
    r.begin[a] = static_cast<int32_t>(near.first[a] - voxel);
    r.step[a] = near.step[a];
    r.single[a] = axis.single;
    r.along[a] = tile.grains.along[a];
    r.base += static_cast<int64_t>(voxel - near.first[a]) * near.step[a];
  }
  return r;
}

// Coordinates of a slice that is moved, in grains, but for what its rows begin with.
inline void move_slice(const Tile& tile, const Bent& bent, int64_t third,
                       uint32_t (*moved)[TILE * NEAR_RUN]) {
  for (int a = 0; a < 3; a++)
    for (int64_t v = 0; v < bent.rows * NEAR_RUN; v += LANES)
      put_vector(moved[a] + v, vector_at<Words>(tile.grains.along[a] + v % NEAR_RUN) +
                                   vector_at<Words>(bent.by[a] + third * TILE * NEAR_RUN + v));
}

// Rows of a tile of one channel: made, finished, and covered where nothing is sampled. PLAIN ones are
// neither moved nor at an edge.
template <bool PLAIN>
inline void sample_rows(const Work& w, const Tiling& t, const Tile& tile, const Bent& bent, Reading& r,
                        uint8_t* out) {
  const VoxpipeJob& job = *w.job;
  const bool at_edge = !PLAIN && tile.edge, is_moved = !PLAIN && tile.moved;
  const MakeRows make = at_edge ? rows_of_tile<true>(w, t, tile.copied)
                                : rows_of_tile<false>(w, t, tile.copied);
  const int64_t count = bent.count, rows = bent.rows;
  const bool nearest = job.mode == VOXPIPE_NEAREST;
  const bool is_done = nearest ? is_as_stored(job, w.f) : tile.copied && !w.wide && !at_edge;
  const bool as_is = is_done && (nearest || job.out_type == VOXPIPE_F32);
  const bool fades = w.zeros && at_edge && !nearest, covers = job.control && at_edge;
  constexpr int64_t MADE = (RUN + SPARE) * sizeof(double);
  alignas(64) uint8_t made[TILE * MADE];
  alignas(64) uint32_t moved[3][TILE * NEAR_RUN];
  r.along_step = is_moved ? NEAR_RUN : 0;
  Places places;
  double fade[RUN];
  const double* left = fades ? fade : nullptr;
  r.count = count;
  r.rows = at_edge ? 1 : rows;  // one by one, since some are not sampled at all
  each_slice(w, t, tile.box, out, [&](int64_t* index, int64_t third, uint8_t* to, int64_t step,
                                      bool exact) VOXPIPE_ALWAYS {
    const PerAxis beyond = r.start = tile.grains.beyond[third];
    r.exact = exact && as_is;
    if (is_moved) move_slice(tile, bent, third, moved);
    for (int64_t row = 0; row < rows; row++, to += step) {
      index[t.across] = tile.box.begin[t.across] + row;
      Interval some{0, count}, kept{0, count};  // which are not zero, which are not fill
      if (at_edge) some = kept_by(w, t.lane, index, count, false);
      if (at_edge) kept = kept_by(w, t.lane, index, count, true);
      const bool is_sampled = least(some.end, kept.end) > most(some.begin, kept.begin);
      r.across = tile.grains.across + row;
      for (int a = 0; a < 3; a++)
        r.along[a] = is_moved ? moved[a] + row * NEAR_RUN : tile.grains.along[a];
      if (is_sampled && (at_edge || row == 0)) make(w, r, as_is ? to : made, as_is ? step : MADE);
      if (as_is && !at_edge) break;
      uint8_t* const elements = made + (at_edge ? 0 : row * MADE);
      float* const narrow = reinterpret_cast<float*>(elements);
      if (is_sampled) {
        for (int a = 0; a < 3 && (fades || covers); a++)
          for (int64_t v = 0; v < count; v++)
            places.at[a][v] =
                tile.grains.origin[a] + (r.along[a][v] + r.across[0][a] + beyond[a]) * GRAIN;
        if (fades) fade_row(w, places, count, fade);
        if (nearest && !is_done) convert_row(job, w.f, elements, count, to);
        else if (is_done && !as_is) put_values<float>(job.out_type, narrow, count, to, w.f.size);
        else if (!is_done && w.wide)
          finish<double>(w.f, reinterpret_cast<double*>(elements), left, count, to, w.f.size);
        else if (!is_done) finish<float>(w.f, narrow, left, count, to, w.f.size);
        if (covers) cover_moved(w, places, count, to);
      }
      if (at_edge) fill_around(w.f, some, w.f.zero, count, to);
      if (at_edge) fill_around(w.f, kept, w.f.fill, count, to);
    }
  });
}

inline void sample_tile(const Work& w, const Tiling& t, const Box& box, Bent& bent, uint8_t* memory) {
  const VoxpipeJob& job = *w.job;
  Tile tile;
  tile.box = box;
  const double* const rows[3] = {w.g.axis[0].row, w.g.axis[1].row, w.g.axis[2].row};
  bent.count = tile.box.length(t.lane);
  bent.rows = tile.box.length(t.across);
  bent.slices = tile.box.length(t.beyond);
  tile.moved = job.control != 0;
  const bool cubic = job.mode == VOXPIPE_CUBIC;
  if (!cubic || tile.moved) count_tile(rows, t.lane, tile.box, t.across, tile.grains);
  for (int a = 0; a < 3; a++) extremes(rows[a], tile.box, tile.low + a, tile.high + a);
  if (tile.moved)
    bend_tile(w.control, w.earlier, steps_of(w.control, tile.box, t.lane, t.across), tile.grains, bent,
              tile.low, tile.high);
  if (!cubic) {
    fold_tile(w, tile, bent);
    for (int a = 0; a < 3 && tile.moved; a++) count_from(even_below(tile.low[a]), a, tile.grains);
    find_edge(w, tile);
    place_tile(w, t, tile);
    tile.copied &= !tile.empty;
  }
  // Rows of voxels are trimmed where no coordinate is kept from where it leads.
  const bool trims = t.pairs && tile.copied && !tile.edge && !tile.folded;
  const Slant slant = trims ? slant_of(w.g, tile.near, tile.box, w.reach) : Slant{};
  for (int64_t c = 0; c < job.channels; c++) {
    const uint8_t* source =
        reinterpret_cast<const uint8_t*>(job.source) + c * job.source_channel_stride;
    uint8_t* out = reinterpret_cast<uint8_t*>(job.out) + c * job.out_channel_stride;
    if (cubic) {
      sample_cubic(w, t, tile.box, tile.moved ? &bent : nullptr, source, out);
      continue;
    }
    Reading r = tile.empty ? Reading{} : reading_of(w, tile, tile.copied ? memory : source);
    Stretch along;
    r.stretch = tile.copied && t.zooms ? &along : nullptr;
    r.start = tile.grains.across[0] + tile.grains.beyond[0];  // of all rows, on the axis that they follow
    if (r.stretch) along = stretch_of(r, t.unit, bent.count);
    if (tile.copied && (t.pairs || t.zooms))
      with_stored(job.source_type, [&](auto s) {
        typedef VOXPIPE_TYPE(s) S;
        if constexpr (sizeof(S) <= 4) {
          if (t.zooms) copy_numbers<S>(w.g, tile.near, along, bent.count, source, memory);
          else copy_pairs<S>(w.g, tile.near, slant, source, memory);
        }
      });
    else if (tile.copied) copy_near(w.g, size_of_type(job.source_type), tile.near, source, memory);
    if (tile.edge || tile.moved) sample_rows<false>(w, t, tile, bent, r, out);
    else sample_rows<true>(w, t, tile, bent, r, out);
  }
}

// False where there is no memory: then nothing was written.
inline bool sample_map(const Work& w) {
  const bool cubic = w.job->mode == VOXPIPE_CUBIC;
  Tiling t = tiling_of(w);
  if (!cubic || w.job->control) shrink(w, t);
  // Behind a copy, whole vectors are read that are not used.
  uint8_t* memory = static_cast<uint8_t*>(malloc(sizeof(Bent) + NEAR_BYTES + 4 * LANES * 8));
  if (!memory) return false;
  Bent& bent = *reinterpret_cast<Bent*>(memory + NEAR_BYTES + 4 * LANES * 8);
  if (w.job->control) begin_route(bent.route);
  each_tile(t, whole_output(*w.job), [&](const Box& box) { sample_tile(w, t, box, bent, memory); });
  free(memory);
  return true;
}

}  // namespace VOXPIPE_PATH_NAME
