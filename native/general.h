// Any affine map: the output in tiles, each tile in runs along the lane.
#pragma once

#include "processor.h"
#include "linear.h"
#include "cubic.h"
#include "nearest.h"
#include "turn.h"
#include "box.h"
#include "bend.h"

namespace VOXPIPE_PATH_NAME {

// One limit on output voxels: outside low .. high along a matrix row they are not sampled.
struct Limit {
  double row[4];
  double low;
  double high;
};

constexpr int64_t MAX_CLIPS = 16;  // hard crops in one plan
constexpr int64_t MAX_LIMITS = 3 * (MAX_CLIPS + 1);  // and the volume itself

struct Limits {
  int count;
  Limit limit[MAX_LIMITS];
};

inline void limit_to(Limits& limits, const double* matrix, const int64_t* shape,
                     const double* first, const double* last) {
  for (int a = 0; a < 3; a++) {
    double low, high;
    extremes(matrix + 4 * a, shape, &low, &high);
    if (low >= first[a] - REACH && high <= last[a] + REACH) continue;
    Limit& limit = limits.limit[limits.count++];
    for (int n = 0; n < 4; n++) limit.row[n] = matrix[4 * a + n];
    limit.low = first[a] - REACH;
    limit.high = last[a] + REACH;
  }
}

inline Limits limits_of(const VoxpipeJob& job) {
  Limits limits;
  limits.count = 0;
  const double* clips = reinterpret_cast<const double*>(job.clips);
  for (int64_t n = 0; n < job.clip_count; n++) {
    const double* clip = clips + 15 * n;
    const double first[3] = {0, 0, 0};
    const double last[3] = {clip[12] - 1, clip[13] - 1, clip[14] - 1};
    limit_to(limits, clip, job.out_size, first, last);
  }
  if (job.padding == VOXPIPE_CONSTANT && !job.control) {
    double first[3], last[3];
    for (int a = 0; a < 3; a++) {
      first[a] = static_cast<double>(job.first[a]);
      last[a] = static_cast<double>(job.last[a]);
    }
    limit_to(limits, job.matrix, job.out_size, first, last);
  }
  return limits;
}

// What one call works with; the run's arrays are in the frames below.
struct Work {
  const VoxpipeJob* job;
  Geometry g;
  Limits limits;
  Finish f;
  bool zeros;
  bool wide;         // blend in float64
  int64_t channels;  // of one pass, whose first ones are:
  const uint8_t* source;
  int64_t source_channel;  // bytes from one channel to the next
  uint8_t* out;
  int64_t run;  // output voxels of one run
  Control control;
  Control earlier;  // of the place that ``control`` leads to
  double reach[3];  // of both
  Bent* bent;       // how far the voxels of the tile at hand are moved, or null
};

// Where the elements of one run go: voxel v of channel c.
struct Target {
  uint8_t* row;  // voxel 0, be it in the run or before
  int64_t stride;
  int64_t channel_stride;

  inline uint8_t* at(int64_t channel, int64_t v) const {
    return row + channel * channel_stride + v * stride;
  }
};

inline void fill_between(const Work& w, const Target& to, const uint8_t* element, int64_t begin,
                         int64_t end) {
  if (begin >= end) return;
  for (int64_t c = 0; c < w.channels; c++)
    fill_row(element, w.f.size, end - begin, to.at(c, begin), to.stride);
}

template <class W>
inline void blend_type(const Work& w, const uint8_t* base, const Taps<W>& taps, int64_t count,
                       W* values) {
  switch (w.job->source_type) {
#define VOXPIPE_BLEND(S)                       \
  linear_run<S>(base, w.g, taps, count, values); \
  mend_run<S>(base, w.g.axis, taps, count, values)
    VOXPIPE_SOURCE_TYPES(VOXPIPE_BLEND)
#undef VOXPIPE_BLEND
    default: break;
  }
}

template <class W>
inline void blend_run(const Work& w, Taps<W>& taps, bool fades, int64_t begin, int64_t count,
                      const Target& to) {
  spare(count, taps);
  alignas(64) W values[RUN + SPARE];
  for (int64_t c = 0; c < w.channels; c++) {
    blend_type<W>(w, w.source + taps.from + c * w.source_channel, taps, count, values);
    finish<W>(w.f, values, fades ? taps.fade : nullptr, count, to.at(c, begin), to.stride);
  }
}

template <class W>
inline void linear_part(const Work& w, const Line* lines, const Advance& advance, int64_t start,
                        Interval part, bool is_inside, const Target& to) {
  const int64_t count = part.end - part.begin;
  if (count <= 0) return;
  alignas(64) Taps<W> taps;
  if (is_inside) {
    inside<W>(w.g, lines, advance, part.begin - start, count, taps);
  } else {
    Places places;
    places_of(lines, advance, part.begin - start, count, places);
    anywhere<W>(w.g, count, w.zeros, places, taps);
  }
  blend_run<W>(w, taps, w.zeros && !is_inside, part.begin, count, to);
}

inline void nearest_part(const Work& w, const Line* lines, const Advance& advance, int64_t start,
                         Interval part, bool is_inside, const Target& to) {
  const int64_t count = part.end - part.begin;
  if (count <= 0) return;
  Spots spots;
  if (is_inside) {
    inside_nearest(w.g, lines, advance, part.begin - start, count, spots);
  } else {
    Places places;
    places_of(lines, advance, part.begin - start, count, places);
    anywhere_nearest(w.g, count, places, spots);
  }
  for (int64_t c = 0; c < w.channels; c++)
    nearest_run(*w.job, w.f, w.source + spots.from + c * w.source_channel, spots.offset, count,
                to.at(c, part.begin), to.stride);
}

template <class W>
inline void cubic_part(const Work& w, Interval part, Places& places, const Target& to) {
  const int64_t count = part.end - part.begin;
  CubicRun run;
  const bool scales_taps = w.zeros && w.f.scaled;
  const bool is_inside =
      !scales_taps && !w.wide &&
      cubic_inside(w.g, size_of_type(w.job->source_type), places, count, run);
  const Scaling scaling{scales_taps ? w.f.slope : 1.0, scales_taps ? w.f.intercept : 0.0};
  Finish f = w.f;
  f.scaled = f.scaled && !scales_taps;
  W values[RUN + SPARE];
  for (int64_t c = 0; c < w.channels; c++) {
    const uint8_t* base = w.source + c * w.source_channel;
    cubic_run<W>(w.g, w.job->source_type, w.job->padding, scaling, base, places,
                 is_inside ? &run : nullptr, count, values);
    finish<W>(f, values, nullptr, count, to.at(c, part.begin), to.stride);
  }
}

// Voxels whose displaced place lies outside: fill under padding "constant", and nothing under
// "zeros" where one tap decides.
inline void cover_outside(const Work& w, Interval part, const bool* outside, const Target& to) {
  const uint8_t* element = w.zeros ? w.f.zero : w.f.fill;
  for (int64_t v = part.begin; v < part.end; v++)
    if (outside[v - part.begin]) fill_between(w, to, element, v, v + 1);
}

inline bool find_outside(const Work& w, int64_t count, const Places& places, bool* outside) {
  const bool rounds = w.zeros && w.job->mode == VOXPIPE_NEAREST;
  if (!rounds && w.job->padding != VOXPIPE_CONSTANT) return false;
  for (int64_t v = 0; v < count; v++) outside[v] = false;
  for (int a = 0; a < 3; a++) {
    const double low = w.g.axis[a].first - (rounds ? 0 : REACH);
    const double high = w.g.axis[a].last + (rounds ? 0 : REACH);
    for (int64_t v = 0; v < count; v++) {
      const double c = rounds ? round_even(places.at[a][v]) : places.at[a][v];
      outside[v] = outside[v] || c < low || c > high;
    }
  }
  return true;
}

// The displaced run in integers; false where some voxel needs a second thought. ``from`` is where it
// begins in the tile.
inline bool count_run(const Work& w, const Line* lines, const Advance& advance, int64_t skip,
                      int64_t count, int64_t from, Grains& grains) {
  for (int a = 0; a < 3; a++) {
    const Axis& axis = w.g.axis[a];
    const double reach = w.reach[a];
    if (axis.single) return false;
    const double low = advance.low[a] - reach;
    grains.low[a] = low;
    const uint32_t offset = static_cast<uint32_t>(reach) << GRAIN_BITS;
    Words least_yet = Words{} - 1, most_yet = {};
    for (int64_t v = 0; v < count; v += LANES) {
      const Words at = vector_at<Words>(advance.grains[a] + skip + v) + offset +
                       vector_at<Words>(w.bent->by[a] + from + v);
      least_yet = at < least_yet ? at : least_yet;
      most_yet = at > most_yet ? at : most_yet;
      put_vector(grains.grains[a] + v, at);
    }
    uint32_t lowest = least_yet[0], highest = most_yet[0];
    for (int n = 1; n < LANES; n++) {
      lowest = least(lowest, least_yet[n]);
      highest = most(highest, most_yet[n]);
    }
    const double start = lines[a].rest + low;
    if (start + lowest * GRAIN < axis.start || start + highest * GRAIN >= axis.end) return false;
  }
  return true;
}

// Rounded to grains in either way of counting, so that both find the same place.
inline void add_moves(const Bent& bent, int64_t from, int64_t count, Places& places) {
  for (int a = 0; a < 3; a++)
    for (int64_t v = 0; v < count; v++) {
      const float by = bent.by[a][from + v];
      places.at[a][v] += bent.counted ? bits_of<int32_t>(by) * GRAIN
                                      : to_grain(static_cast<double>(by));
    }
}

template <class W>
inline void sample_linear(const Work& w, const Line* lines, const Grains* grains, Interval part,
                          Places& places, const Target& to) {
  const int64_t count = part.end - part.begin;
  alignas(64) Taps<W> taps;
  if (grains) inside<W>(w.g, lines, *grains, 0, count, taps);
  else anywhere<W>(w.g, count, w.zeros, places, taps);
  blend_run<W>(w, taps, w.zeros && !grains, part.begin, count, to);
}

inline void sample_nearest(const Work& w, const Line* lines, const Grains* grains, Interval part,
                           Places& places, const Target& to) {
  const int64_t count = part.end - part.begin;
  Spots spots;
  if (grains) inside_nearest(w.g, lines, *grains, 0, count, spots);
  else anywhere_nearest(w.g, count, places, spots);
  for (int64_t c = 0; c < w.channels; c++)
    nearest_run(*w.job, w.f, w.source + spots.from + c * w.source_channel, spots.offset,
                count, to.at(c, part.begin), to.stride);
}

// Cubic, or displaced: every voxel by its place, whether it lies inside or not.
inline void sample_places(const Work& w, const int64_t* index, const Line* lines,
                          const Advance& advance, int64_t start, Interval part, const Target& to) {
  const int64_t count = part.end - part.begin, skip = part.begin - start;
  Places places;
  Grains counted;
  bool outside[RUN];
  const bool bends = w.bent != nullptr, is_cubic = w.job->mode == VOXPIPE_CUBIC;
  const int64_t from = bends ? w.bent->at(index) + skip : 0;
  const bool counts = bends && !is_cubic && w.bent->counted &&
                      count_run(w, lines, advance, skip, count, from, counted);
  const Grains* grains = counts ? &counted : nullptr;
  if (!grains) places_of(lines, advance, skip, count, places);
  if (bends && !grains) add_moves(*w.bent, from, count, places);
  const bool covers = bends && !grains && find_outside(w, count, places, outside);
  if (is_cubic && w.wide) cubic_part<double>(w, part, places, to);
  else if (is_cubic) cubic_part<float>(w, part, places, to);
  else if (w.job->mode == VOXPIPE_NEAREST) sample_nearest(w, lines, grains, part, places, to);
  else if (w.wide) sample_linear<double>(w, lines, grains, part, places, to);
  else sample_linear<float>(w, lines, grains, part, places, to);
  if (covers) cover_outside(w, part, outside, to);
}

inline void sample_part(const Work& w, const Line* lines, const Advance& advance, int64_t start,
                        Interval part, bool is_inside, const Target& to) {
  if (w.job->mode == VOXPIPE_NEAREST)
    nearest_part(w, lines, advance, start, part, is_inside, to);
  else if (w.wide)
    linear_part<double>(w, lines, advance, start, part, is_inside, to);
  else
    linear_part<float>(w, lines, advance, start, part, is_inside, to);
}

// The part of a run where every tap of every voxel is at hand, without clamping.
inline Interval interior(const Work& w, const Line* lines, Interval run) {
  for (int a = 0; a < 3; a++) {
    const Axis& axis = w.g.axis[a];
    const Line& line = lines[a];
    const bool falls = line.slope < 0;
    if (axis.reflects) return Interval{run.begin, run.begin};
    if (w.job->mode == VOXPIPE_NEAREST) {
      run = narrow(run, falls, axis.start, axis.end,
                   [&](int64_t k) { return round_even(line.at(k)); });
    } else {
      if (axis.single) return Interval{run.begin, run.begin};
      run = narrow(run, falls, axis.start, axis.end - 1.0,
                   [&](int64_t k) { return floor_of(line.at(k)); });
    }
  }
  return run;
}

// Under padding "zeros", the part where something of the volume is left.
inline Interval not_all_zero(const Work& w, const Line* lines, Interval run) {
  const bool nearest = w.job->mode == VOXPIPE_NEAREST;
  for (int a = 0; a < 3; a++) {
    const Axis& axis = w.g.axis[a];
    const Line& line = lines[a];
    if (!axis.leaves) continue;
    if (nearest)
      run = narrow(run, line.slope < 0, axis.first, axis.last,
                   [&](int64_t k) { return round_even(line.at(k)); });
    else
      run = narrow(run, line.slope < 0, axis.first - 1.0, axis.last + 1.0,
                   [&](int64_t k) { return line.at(k); });
  }
  return run;
}

inline void sample_run(const Work& w, const int64_t* index, const Line* lines, Interval run,
                       const Advance& advance, const Target& to) {
  Interval kept = run;
  for (int n = 0; n < w.limits.count; n++) {
    const Limit& limit = w.limits.limit[n];
    const Line line = line_of(limit.row, w.g.lane, index);
    kept = narrow(kept, line.slope < 0, limit.low, limit.high,
                  [&](int64_t v) { return line.at(v); });
  }
  if (kept.begin >= kept.end) kept = Interval{run.end, run.end};
  fill_between(w, to, w.f.fill, run.begin, kept.begin);
  fill_between(w, to, w.f.fill, kept.end, run.end);
  if (w.bent || w.job->mode == VOXPIPE_CUBIC) {
    if (kept.begin < kept.end) sample_places(w, index, lines, advance, run.begin, kept, to);
    return;
  }
  if (w.zeros) {
    Interval some = not_all_zero(w, lines, kept);
    if (some.begin >= some.end) some = Interval{kept.end, kept.end};
    fill_between(w, to, w.f.zero, kept.begin, some.begin);
    fill_between(w, to, w.f.zero, some.end, kept.end);
    kept = some;
  }
  if (kept.begin >= kept.end) return;
  Interval core = interior(w, lines, kept);
  if (core.begin >= core.end) core = Interval{kept.begin, kept.begin};
  sample_part(w, lines, advance, run.begin, Interval{kept.begin, core.begin}, false, to);
  sample_part(w, lines, advance, run.begin, core, true, to);
  sample_part(w, lines, advance, run.begin, Interval{core.end, kept.end}, false, to);
}

// The least and the largest coordinate of the voxels of a box, or of all of a tile that is displaced.
inline void ends_of(const Work& w, const Box& box, int a, double* low, double* high) {
  extremes_over(w.g.axis[a].row, box, low, high);
  if (!w.bent) return;
  *low = w.bent->counted ? w.bent->low[a] : *low - w.reach[a];
  *high = w.bent->counted ? w.bent->high[a] : *high + w.reach[a];
}

// Whether every voxel of a box is sampled, with all its taps at hand: then no run has to ask.
inline bool is_interior(const Work& w, const Box& box) {
  if (w.job->mode == VOXPIPE_CUBIC) return false;
  double low, high;
  for (int n = 0; n < w.limits.count; n++) {
    const Limit& limit = w.limits.limit[n];
    extremes_over(limit.row, box, &low, &high);
    if (low < limit.low || high > limit.high) return false;
  }
  for (int a = 0; a < 3; a++) {
    const Axis& axis = w.g.axis[a];
    ends_of(w, box, a, &low, &high);
    if (axis.reflects) return false;
    if (w.job->mode == VOXPIPE_NEAREST) {
      if (round_even(low) < axis.start || round_even(high) > axis.end) return false;
    } else if (axis.single || low < axis.start || high >= axis.end) {
      return false;
    }
  }
  return true;
}

// Runs along the lane, rows of them along ``across``, at one place on the third axis.
template <class To>
inline void sample_rows(const Work& w, const Box& box, int across, const int64_t* corner,
                        Advance& advance, const To& target_of) {
  const int lane = w.g.lane;
  const Interval run{box.begin[lane], box.end[lane]};
  int64_t index[3] = {corner[0], corner[1], corner[2]};
  advance_to(w.g, run, advance);
  const int third = 3 - lane - across;
  Box slice = box;
  slice.begin[third] = corner[third];
  slice.end[third] = corner[third] + 1;
  const bool is_inside = !w.bent && is_interior(w, slice);
  Line first[3], lines[3];
  index[across] = 0;
  for (int a = 0; a < 3; a++) first[a] = line_of(w.g.axis[a].row, lane, index);
  for (int64_t row = box.begin[across]; row < box.end[across]; row++) {
    index[across] = row;
    for (int a = 0; a < 3; a++) {  // sums of grains: exact in any order
      const double moved = to_grain(w.g.axis[a].row[across] * static_cast<double>(row));
      lines[a] = Line{first[a].slope, first[a].rest + moved};
    }
    const Target to = target_of(row - box.begin[across], index);
    if (is_inside) sample_part(w, lines, advance, run.begin, run, true, to);
    else sample_run(w, index, lines, run, advance, to);
  }
}

// Runs that end up along the output's own rows.
inline void sample_straight(const Work& w, const Box& box, int across, const int64_t* corner,
                            Advance& advance) {
  const VoxpipeJob& job = *w.job;
  sample_rows(w, box, across, corner, advance, [&](int64_t, const int64_t* index) {
    uint8_t* row = w.out;
    for (int n = 0; n < 3; n++)
      if (n != w.g.lane) row += index[n] * job.out_stride[n];
    return Target{row, job.out_stride[w.g.lane], job.out_channel_stride};
  });
}

// Runs across the output's rows: they are collected in a block, which is then turned.
inline void sample_turned(const Work& w, const Box& box, int across, const int64_t* corner,
                            Advance& advance) {
  const VoxpipeJob& job = *w.job;
  const int64_t size = w.f.size, count = box.end[w.g.lane] - box.begin[w.g.lane];
  alignas(64) uint8_t block[CHANNELS * BLOCK_BYTES];
  sample_rows(w, box, across, corner, advance, [&](int64_t row, const int64_t*) {
    return Target{block + (row * RUN - box.begin[w.g.lane]) * size, size, BLOCK_BYTES};
  });
  uint8_t* out = w.out;
  for (int n = 0; n < 3; n++)
    out += (n == w.g.lane || n == across ? box.begin[n] : corner[n]) * job.out_stride[n];
  for (int64_t c = 0; c < w.channels; c++)
    turn_block(size, block + c * BLOCK_BYTES, RUN * size, box.end[across] - box.begin[across],
               count, out + c * job.out_channel_stride, job.out_stride[across],
               job.out_stride[w.g.lane]);
}

}  // namespace VOXPIPE_PATH_NAME
