// Linear maps that keep the axes apart: one blend per axis and voxel instead of seven in all.
//
// Blending goes along k, then j, then i, as everywhere, so the result is that of the general path
// to the bit. What neighbours have in common is kept: of two planes (or rows) that one output
// plane needs, the next one mostly needs the same.
#pragma once

#include "processor.h"
#include "general.h"
#include "tables.h"

namespace VOXPIPE_PATH_NAME {

// Source voxels of one row for a run of output voxels, at most; wider ones take the general path.
constexpr int64_t SPAN = 2 * RUN;
constexpr int64_t NOTHING = INT64_MIN;

// Two slots of something worth keeping, by the offset that it was made from.
struct Slots {
  int64_t key[2];
  bool fresh;  // whether the slot of the last call has to be made

  // The slot of ``want``; it may take the place of anything but ``keep``.
  inline int of(int64_t want, int64_t keep) {
    fresh = false;
    if (key[0] == want) return 0;
    if (key[1] == want) return 1;
    fresh = true;
    const int slot = key[0] == keep ? 1 : 0;
    key[slot] = want;
    return slot;
  }
};

constexpr Slots EMPTY_SLOTS = {{NOTHING, NOTHING}, false};

struct Zoom {
  const Work* w;
  const Tables* tables;
  bool fades;
};

// Loops for voxels that are met stay apart: those for all others are as tight as without them.
#define VOXPIPE_APART __attribute__((noinline))

template <class S, class W>
inline bool is_met(W weight) {
  return HasNan<S>::value && (weight == 0 || weight == 1);
}

template <class W>
VOXPIPE_APART void blend_met(const W* __restrict lower, const W* __restrict upper, W weight,
                             int64_t count, W* __restrict values) {
  if (weight == 0) {
    for (int64_t v = 0; v < count; v++) {
      const W low = lower[v], value = (upper[v] - low) * weight + low;
      values[v] = value == value ? value : low;
    }
  } else {
    for (int64_t v = 0; v < count; v++) {
      const W high = upper[v], value = (high - lower[v]) * weight + lower[v];
      values[v] = value == value ? value : high;
    }
  }
}

template <class W>
inline void blend_values(const W* lower, const W* upper, W weight, int64_t count, W* values) {
  for (int64_t v = 0; v < count; v++) values[v] = (upper[v] - lower[v]) * weight + lower[v];
}

// Whole vectors of neighbours; returns how many values are done.
template <class S>
inline int64_t along_pairs(const uint8_t* row, const int64_t* lower, const double* weight,
                           int64_t count, float* values) {
  int64_t v = 0;
  for (; v + LANES <= count; v += LANES) {
    const Pair taps = Fetch<S>::pair(row, lower + v);
    Floats w;
    for (int n = 0; n < LANES; n++) w[n] = static_cast<float>(weight[v + n]);
    put_vector(values + v, blend(taps.lower, taps.upper, w));
  }
  return v;
}

template <>
inline int64_t along_pairs<double>(const uint8_t*, const int64_t*, const double*, int64_t, float*) {
  return 0;
}

template <class S>
inline int64_t along_pairs(const uint8_t*, const int64_t*, const double*, int64_t, double*) {
  return 0;
}

// Along the row itself: values[v] from the two taps of index v.
template <class S, class W>
inline void along_row(const uint8_t* row, const Table& table, int64_t begin, int64_t count,
                      bool single, W* values) {
  const int64_t *lower = table.lower + begin, *upper = table.upper + begin;
  const double* weight = table.weight + begin;
  int64_t done = 0;
  if (!single && upper[0] == sizeof(typename Memory<S>::type))
    done = along_pairs<S>(row, lower, weight, count, values);
  for (int64_t v = done; v < count; v++) {
    const W tap = load_value<S, W>(row + lower[v]);
    const W next = load_value<S, W>(row + lower[v] + upper[v]);
    values[v] = single ? tap : (next - tap) * static_cast<W>(weight[v]) + tap;
  }
}

// Across rows: values[v] from voxel v of two rows.
template <class S, class W>
inline void across_rows(const uint8_t* lower, const uint8_t* upper, int64_t step, int64_t count,
                        W weight, bool single, W* values) {
  const int64_t size = sizeof(typename Memory<S>::type);
  if (single) {
    for (int64_t v = 0; v < count; v++) values[v] = load_value<S, W>(lower + v * step);
  } else if (step == size) {
    for (int64_t v = 0; v < count; v++) {
      const W tap = load_value<S, W>(lower + v * size);
      values[v] = (load_value<S, W>(upper + v * size) - tap) * weight + tap;
    }
  } else {
    for (int64_t v = 0; v < count; v++) {
      const W tap = load_value<S, W>(lower + v * step);
      values[v] = (load_value<S, W>(upper + v * step) - tap) * weight + tap;
    }
  }
}

template <class S, class W>
VOXPIPE_APART void keep_met(const uint8_t* met, int64_t step, int64_t count, W* values) {
  const int64_t size = sizeof(typename Memory<S>::type);
  if (step == size) {
    for (int64_t v = 0; v < count; v++) {
      const W tap = load_value<S, W>(met + v * size);
      values[v] = values[v] == values[v] ? values[v] : tap;
    }
  } else {
    for (int64_t v = 0; v < count; v++)
      if (values[v] != values[v]) values[v] = load_value<S, W>(met + v * step);
  }
}

// Which voxels along the lane are met.
template <class S, class W>
inline int64_t find_met(const Table& table, int64_t begin, int64_t count, int32_t* met) {
  int64_t found = 0;
  for (int64_t v = 0; v < count && HasNan<S>::value; v++)
    if (is_met<S>(static_cast<W>(table.weight[begin + v]))) met[found++] = static_cast<int32_t>(v);
  return found;
}

inline int64_t upper_of(const Table& table, int64_t n) { return table.lower[n] + table.upper[n]; }

template <class W>
inline void fade_and_finish(const Zoom& z, int lane, const int64_t* index, int64_t count,
                            W* values, uint8_t* out, int64_t stride) {
  double fade[RUN];
  if (z.fades)
    for (int64_t v = 0; v < count; v++) {
      double all = 1;
      for (int n = 0; n < 3; n++) all *= z.tables->of[n].fade[index[n] + (n == lane ? v : 0)];
      fade[v] = all;
    }
  finish<W>(z.w->f, values, z.fades ? fade : nullptr, count, out, stride);
}

// Rows along k: plane[i] holds what is blended over k and j.
template <class S, class W>
void zoom_along_k(const Zoom& z, const uint8_t* base, uint8_t* out, const Box& box) {
  const VoxpipeJob& job = *z.w->job;
  const Table &ti = z.tables->of[0], &tj = z.tables->of[1], &tk = z.tables->of[2];
  const Axis* axis = z.w->g.axis;
  const int64_t count = box.end[2] - box.begin[2];
  W plane[2][TILE][RUN], row[2][RUN], values[RUN];
  int32_t met[RUN];
  const int64_t mets = axis[2].single ? 0 : find_met<S, W>(tk, box.begin[2], count, met);
  Slots planes = EMPTY_SLOTS;
  const auto make_plane = [&](const uint8_t* at, W(*to)[RUN]) {
    Slots rows = EMPTY_SLOTS;
    const auto make_row = [&](int64_t want, int64_t keep) {
      const int slot = rows.of(want, keep);
      if (!rows.fresh) return slot;
      along_row<S, W>(at + want, tk, box.begin[2], count, axis[2].single, row[slot]);
      if (mets && any_nan(row[slot], count))
        for (int64_t n = 0; n < mets; n++) {
          const int64_t k = box.begin[2] + met[n];
          const int64_t tap = tk.weight[k] < 0.5 ? tk.lower[k] : upper_of(tk, k);
          W& value = row[slot][met[n]];
          value = value == value ? value : load_value<S, W>(at + want + tap);
        }
      return slot;
    };
    for (int64_t j = box.begin[1]; j < box.end[1]; j++) {
      const int lower = make_row(tj.lower[j], upper_of(tj, j));
      const int upper = make_row(upper_of(tj, j), tj.lower[j]);
      const W weight = static_cast<W>(axis[1].single ? 0.5 : tj.weight[j]);
      W* blended = to[j - box.begin[1]];
      if (axis[1].single) __builtin_memcpy(blended, row[lower], sizeof(W) * static_cast<size_t>(count));
      else if (is_met<S>(weight)) blend_met<W>(row[lower], row[upper], weight, count, blended);
      else blend_values<W>(row[lower], row[upper], weight, count, blended);
    }
  };
  const auto plane_of = [&](int64_t want, int64_t keep) {
    const int slot = planes.of(want, keep);
    if (planes.fresh) make_plane(base + want, plane[slot]);
    return slot;
  };
  int64_t index[3] = {box.begin[0], 0, box.begin[2]};
  for (; index[0] < box.end[0]; index[0]++) {
    const int64_t i = index[0];
    const int lower = plane_of(ti.lower[i], upper_of(ti, i));
    const int upper = plane_of(upper_of(ti, i), ti.lower[i]);
    const W weight = static_cast<W>(axis[0].single ? 0.5 : ti.weight[i]);
    const bool meets = is_met<S>(weight);
    for (index[1] = box.begin[1]; index[1] < box.end[1]; index[1]++) {
      const int64_t j = index[1] - box.begin[1];
      if (axis[0].single) __builtin_memcpy(values, plane[lower][j], sizeof(W) * static_cast<size_t>(count));
      else if (meets) blend_met<W>(plane[lower][j], plane[upper][j], weight, count, values);
      else blend_values<W>(plane[lower][j], plane[upper][j], weight, count, values);
      fade_and_finish<W>(z, 2, index, count, values,
                         out + i * job.out_stride[0] + index[1] * job.out_stride[1] +
                             index[2] * job.out_stride[2],
                         job.out_stride[2]);
    }
  }
}

// Source voxels that a run of output voxels needs along axis 0, as offsets of the ends.
struct Reach {
  int64_t first;  // byte offset of the lowest source index
  int64_t count;
};

inline Reach reach_of(const Table& table, int64_t step, int64_t begin, int64_t end) {
  int64_t low = INT64_MAX, high = INT64_MIN;
  for (int64_t v = begin; v < end && step; v++) {
    low = least(low, least(table.lower[v] / step, upper_of(table, v) / step));
    high = most(high, most(table.lower[v] / step, upper_of(table, v) / step));
  }
  return step ? Reach{low * step, high - low + 1} : Reach{0, 1};
}

// Rows along i, collected in a block that is turned: row[k] holds what is blended over k.
template <class S, class W>
void zoom_along_i(const Zoom& z, const uint8_t* base, uint8_t* out, const Box& box) {
  const VoxpipeJob& job = *z.w->job;
  const Table &ti = z.tables->of[0], &tj = z.tables->of[1], &tk = z.tables->of[2];
  const Axis* axis = z.w->g.axis;
  const int64_t count = box.end[0] - box.begin[0], size = z.w->f.size, step = axis[0].step;
  const Reach reach = reach_of(ti, step, box.begin[0], box.end[0]);
  W row[BLOCK][2][SPAN], blended[SPAN], values[RUN];
  alignas(64) uint8_t block[BLOCK_BYTES];
  Slots rows[BLOCK];
  for (int64_t k = 0; k < BLOCK; k++) rows[k] = EMPTY_SLOTS;
  int32_t at[RUN];  // where in a row the lower tap of each voxel is
  W weight[RUN];
  for (int64_t v = 0; v < count; v++) {
    const int64_t offset = ti.lower[box.begin[0] + v] - reach.first;
    at[v] = static_cast<int32_t>(step ? offset / step : 0);
    weight[v] = static_cast<W>(ti.weight[box.begin[0] + v]);
  }
  int32_t met[RUN];
  const int64_t mets = axis[0].single ? 0 : find_met<S, W>(ti, box.begin[0], count, met);
  const uint8_t* start = base + reach.first;
  int64_t index[3] = {box.begin[0], 0, 0};
  for (index[1] = box.begin[1]; index[1] < box.end[1]; index[1]++) {
    const int64_t j = index[1], lower = tj.lower[j], upper = upper_of(tj, j);
    const W over = static_cast<W>(axis[1].single ? 0.5 : tj.weight[j]);
    for (index[2] = box.begin[2]; index[2] < box.end[2]; index[2]++) {
      const int64_t k = index[2], n = k - box.begin[2];
      const auto row_of = [&](int64_t want, int64_t keep) {
        const int slot = rows[n].of(want, keep);
        if (!rows[n].fresh) return slot;
        const uint8_t *first = start + want + tk.lower[k], *second = start + want + upper_of(tk, k);
        const W across = static_cast<W>(tk.weight[k]);
        across_rows<S, W>(first, second, step, reach.count, across, axis[2].single, row[n][slot]);
        if (!axis[2].single && is_met<S>(across))
          keep_met<S, W>(across == 0 ? first : second, step, reach.count, row[n][slot]);
        return slot;
      };
      const W* lower_row = row[n][row_of(lower, upper)];
      const W* upper_row = row[n][row_of(upper, lower)];
      const W* over_j = lower_row;
      if (!axis[1].single) {
        if (is_met<S>(over)) blend_met<W>(lower_row, upper_row, over, reach.count, blended);
        else blend_values<W>(lower_row, upper_row, over, reach.count, blended);
        over_j = blended;
      }
      if (axis[0].single) {
        for (int64_t v = 0; v < count; v++) values[v] = over_j[at[v]];
      } else {
        for (int64_t v = 0; v < count; v++) {
          const W tap = over_j[at[v]];
          values[v] = (over_j[at[v] + 1] - tap) * weight[v] + tap;
        }
        if (mets && any_nan(values, count))
          for (int64_t m = 0; m < mets; m++) {
            const int32_t v = met[m];
            values[v] = values[v] == values[v] ? values[v] : over_j[at[v] + (weight[v] == 1)];
          }
      }
      fade_and_finish<W>(z, 0, index, count, values, block + n * RUN * size, size);
    }
    turn_block(size, block, RUN * size, box.end[2] - box.begin[2], count,
               out + box.begin[0] * job.out_stride[0] + j * job.out_stride[1] +
                   box.begin[2] * job.out_stride[2],
               job.out_stride[2], job.out_stride[0]);
  }
}

template <class S, class W>
void zoom_channel(const Zoom& z, const uint8_t* base, uint8_t* out, bool along_i) {
  const Interval &i = z.tables->of[0].kept, &j = z.tables->of[1].kept, &k = z.tables->of[2].kept;
  Box box;
  if (along_i) {
    for (int64_t a = i.begin; a < i.end; a += RUN)
      for (int64_t c = k.begin; c < k.end; c += BLOCK) {
        box = Box{{a, j.begin, c}, {least(a + RUN, i.end), j.end, least(c + BLOCK, k.end)}};
        zoom_along_i<S, W>(z, base, out, box);
      }
    return;
  }
  for (int64_t b = j.begin; b < j.end; b += TILE)
    for (int64_t c = k.begin; c < k.end; c += RUN) {
      box = Box{{i.begin, b, c}, {i.end, least(b + TILE, j.end), least(c + RUN, k.end)}};
      zoom_along_k<S, W>(z, base, out, box);
    }
}

inline bool is_along_i(const Geometry& g) { return densest_axis(g) == 0; }

// Whether the tables describe a plan for this path.
inline bool is_zoom(const Work& w, const int* source, const Tables& tables) {
  for (int n = 0; n < 3; n++)
    if (source[n] != n) return false;
  if (!is_along_i(w.g)) return densest_axis(w.g) == 2;
  const Table& table = tables.of[0];
  for (int64_t v = table.kept.begin; v < table.kept.end; v += RUN) {
    const int64_t end = least(v + RUN, table.kept.end);
    if (reach_of(table, w.g.axis[0].step, v, end).count > SPAN) return false;
  }
  return true;
}

inline void zoom_all(const Work& w, const Tables& tables) {
  const VoxpipeJob& job = *w.job;
  const Zoom z{&w, &tables, w.zeros};
  const bool along_i = is_along_i(w.g);
  const bool all = keeps_all(job, tables);
  for (int64_t c = 0; c < job.channels; c++) {
    const uint8_t* base = reinterpret_cast<const uint8_t*>(job.source) + c * job.source_channel_stride;
    uint8_t* out = reinterpret_cast<uint8_t*>(job.out) + c * job.out_channel_stride;
    if (!all) fill_outside(job, tables, w.zeros ? w.f.zero : w.f.fill, w.f.size, out);
    switch (job.source_type) {
#define VOXPIPE_ZOOM(S)                                    \
  if (w.wide) zoom_channel<S, double>(z, base, out, along_i); \
  else zoom_channel<S, float>(z, base, out, along_i)
      VOXPIPE_SOURCE_TYPES(VOXPIPE_ZOOM)
#undef VOXPIPE_ZOOM
      default: break;
    }
  }
}

}  // namespace VOXPIPE_PATH_NAME
