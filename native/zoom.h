// Linear maps that keep the axes apart: one blend per axis and voxel instead of seven in all.
//
// Blending goes along k, then j, then i, as everywhere, so the result is that of the general path
// to the bit. What neighbours have in common is kept: of two planes (or rows) that one output
// plane needs, the next one mostly needs the same.
#pragma once

#include "processor.h"
#include "linear.h"
#include "work.h"
#include "tables.h"

namespace VOXPIPE_PATH_NAME {

// Source voxels of one row for a run of output voxels, at most.
constexpr int64_t SPAN = 2 * RUN;

struct Zoom {
  const Work* w;
  const Tables* tables;
  bool fades;
  int64_t run;  // output voxels of one run
};

inline bool is_along_i(const Geometry& g) { return densest_axis(g) == 0; }

inline int64_t upper_of(const Table& table, int64_t n) { return table.lower[n] + table.upper[n]; }

// Source voxels that a run of output voxels needs along its axis, as the offset of the first.
struct Reach {
  int64_t first;
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

// What the voxels of a row are: numbers, stored neighbours, and stored ones that lie apart.
template <class W> struct Voxels {
  const W* row;
  inline W operator()(int64_t v) const { return row[v]; }
};
template <class S, class W> struct Neighbours {
  const uint8_t* row;
  inline W operator()(int64_t v) const {
    return load_value<S, W>(row + v * static_cast<int64_t>(sizeof(typename Memory<S>::type)));
  }
};
template <class S, class W> struct Apart {
  const uint8_t* row;
  int64_t step;
  inline W operator()(int64_t v) const { return load_value<S, W>(row + v * step); }
};

// Two rows, by what their voxels are. A weight of 0 or 1 meets voxels, which keep what they are beside
// infinity; for all others the loop is as tight as without it.
template <class S, class W, class At>
inline void blend_rows(const At& lower, const At& upper, W weight, int64_t count, W* values) {
  if (HAS_NAN<S> && (weight == 0 || weight == 1))
    for (int64_t v = 0; v < count; v++) values[v] = blend_kept(lower(v), upper(v), weight);
  else
    for (int64_t v = 0; v < count; v++) values[v] = blend(lower(v), upper(v), weight);
}

// Index ``n`` of an output axis, from the two rows that it lies between.
template <class S, class W>
inline void blend_at(const Zoom& z, int axis, int64_t n, const W* lower, const W* upper,
                     int64_t count, W* values) {
  if (z.w->g.axis[axis].single)
    memcpy(values, lower, sizeof(W) * static_cast<size_t>(count));
  else
    blend_rows<S, W>(Voxels<W>{lower}, Voxels<W>{upper},
                     static_cast<W>(z.tables->of[axis].weight[n]), count, values);
}

// Source voxels of one row for a run of output voxels, side by side, and where between them each lies.
template <class W>
struct Stretch {
  bool single;
  bool meets;                      // some voxel
  int64_t first, count;            // bytes to the first source voxel, and how many there are
  int32_t at[RUN + SPARE];         // of them the lower tap
  W weight[RUN + SPARE];
  int32_t from[RUN / LANES + 1];   // the first that a vector takes, or -1 where they are far apart
};

template <class W>
inline void find_taps(const Zoom& z, int axis, int64_t begin, int64_t count, Stretch<W>& s) {
  const Table& table = z.tables->of[axis];
  const int64_t step = z.w->g.axis[axis].step;
  const Reach reach = reach_of(table, step, begin, begin + count);
  s.single = z.w->g.axis[axis].single;
  s.meets = false;
  s.first = reach.first;
  s.count = reach.count;
  for (int64_t v = 0; v < count; v++) {
    s.at[v] = static_cast<int32_t>(step ? (table.lower[begin + v] - s.first) / step : 0);
    s.weight[v] = static_cast<W>(table.weight[begin + v]);
    s.meets = s.meets || s.weight[v] == 0 || s.weight[v] == 1;
  }
  for (int64_t v = count; v < count + SPARE; v++) {
    s.at[v] = s.at[count - 1];
    s.weight[v] = 0;
  }
  for (int64_t v = 0; v < count; v += LANES) {
    int32_t low = s.at[v], high = low;
    for (int n = 1; n < LANES; n++) {
      low = least(low, s.at[v + n]);
      high = most(high, s.at[v + n]);
    }
    s.from[v / LANES] = high - low < 2 * LANES ? low : -1;
  }
}

// Behind ``row`` there is room for two vectors to be read.
template <class S, class W>
inline void stretch(const Stretch<W>& s, const W* row, int64_t count, W* values) {
  int64_t v = 0;
  if constexpr (sizeof(W) == sizeof(float))
    for (; v < count && s.from[v / LANES] >= 0 && !s.single; v += LANES) {
      const float* from = row + s.from[v / LANES];
      const Ints at = vector_at<Ints>(s.at + v) - s.from[v / LANES];
      const Floats lower = picked(from, at), upper = picked(from + 1, at);
      const Floats weight = vector_at<Floats>(s.weight + v);
      put_vector(values + v, HAS_NAN<S> && s.meets ? blend_kept(lower, upper, weight)
                                                   : blend(lower, upper, weight));
    }
  for (; v < count; v++) {
    const W lower = row[s.at[v]];
    values[v] = s.single ? lower : blend_kept(lower, row[s.at[v] + 1], s.weight[v]);
  }
}

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

// Calls act(at) with what the voxels of a row of stored ones are, neighbours or not.
template <class S, class W, class Act>
inline void with_row(int64_t step, const Act& act) {
  constexpr int64_t SIZE = sizeof(typename Memory<S>::type);
  if (step == SIZE) act([](const uint8_t* row) { return Neighbours<S, W>{row}; });
  else act([step](const uint8_t* row) { return Apart<S, W>{row, step}; });
}

// Rows along k: plane[i] holds what is blended over k and j.
template <class S, class W>
void zoom_along_k(const Zoom& z, const uint8_t* base, uint8_t* out, const Box& box) {
  const VoxpipeJob& job = *z.w->job;
  const Table &ti = z.tables->of[0], &tj = z.tables->of[1];
  const int64_t count = box.end[2] - box.begin[2];
  W plane[2][TILE][RUN + SPARE], row[2][RUN + SPARE], stored[SPAN + 3 * SPARE], values[RUN];
  Stretch<W> along;
  find_taps(z, 2, box.begin[2], count, along);
  Slots planes = EMPTY_SLOTS;
  const auto make_plane = [&](const uint8_t* at, W(*to)[RUN + SPARE]) {
    Slots rows = EMPTY_SLOTS;
    const auto row_of = [&](int64_t want, int64_t keep) {
      const int slot = rows.of(want, keep);
      if (rows.fresh) {
        with_row<S, W>(z.w->g.axis[2].step, [&](const auto& of) {
          const auto voxels = of(at + want + along.first);
          for (int64_t v = 0; v < along.count; v++) stored[v] = voxels(v);
        });
        stretch<S>(along, stored, count, row[slot]);
      }
      return row[slot];
    };
    for (int64_t j = box.begin[1]; j < box.end[1]; j++) {
      const W* lower = row_of(tj.lower[j], upper_of(tj, j));
      const W* upper = row_of(upper_of(tj, j), tj.lower[j]);
      blend_at<S>(z, 1, j, lower, upper, count, to[j - box.begin[1]]);
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
    for (index[1] = box.begin[1]; index[1] < box.end[1]; index[1]++) {
      const int64_t j = index[1] - box.begin[1];
      blend_at<S>(z, 0, i, plane[lower][j], plane[upper][j], count, values);
      fade_and_finish<W>(z, 2, index, count, values,
                         out + i * job.out_stride[0] + index[1] * job.out_stride[1] +
                             index[2] * job.out_stride[2],
                         job.out_stride[2]);
    }
  }
}

// Rows along i, collected in a block that is turned: row[k] holds what is blended over k.
template <class S, class W>
void zoom_along_i(const Zoom& z, const uint8_t* base, uint8_t* out, const Box& box) {
  const VoxpipeJob& job = *z.w->job;
  const Table &tj = z.tables->of[1], &tk = z.tables->of[2];
  const Axis* axis = z.w->g.axis;
  const int64_t count = box.end[0] - box.begin[0], size = z.w->f.size;
  W row[BLOCK][2][SPAN], blended[SPAN + 3 * SPARE], values[RUN + SPARE];
  alignas(64) uint8_t block[BLOCK_BYTES];
  Stretch<W> along;
  find_taps(z, 0, box.begin[0], count, along);
  Slots rows[BLOCK];
  for (int64_t k = 0; k < BLOCK; k++) rows[k] = EMPTY_SLOTS;
  int64_t index[3] = {box.begin[0], 0, 0};
  for (index[1] = box.begin[1]; index[1] < box.end[1]; index[1]++) {
    const int64_t j = index[1], lower = tj.lower[j], upper = upper_of(tj, j);
    for (index[2] = box.begin[2]; index[2] < box.end[2]; index[2]++) {
      const int64_t k = index[2], n = k - box.begin[2];
      const auto row_of = [&](int64_t want, int64_t keep) {
        const int slot = rows[n].of(want, keep);
        if (!rows[n].fresh) return row[n][slot];
        const uint8_t* from = base + along.first + want;
        with_row<S, W>(axis[0].step, [&](const auto& of) {
          const auto first = of(from + tk.lower[k]), second = of(from + upper_of(tk, k));
          const W weight = static_cast<W>(tk.weight[k]);
          if (axis[2].single)
            for (int64_t v = 0; v < along.count; v++) row[n][slot][v] = first(v);
          else
            blend_rows<S, W>(first, second, weight, along.count, row[n][slot]);
        });
        return row[n][slot];
      };
      const W* lower_row = row_of(lower, upper);
      blend_at<S>(z, 1, j, lower_row, row_of(upper, lower), along.count, blended);
      stretch<S>(along, blended, count, values);
      fade_and_finish<W>(z, 0, index, count, values, block + n * RUN * size, size);
    }
    turn_block(size, block, RUN * size, box.end[2] - box.begin[2], count,
               out + box.begin[0] * job.out_stride[0] + j * job.out_stride[1] +
                   box.begin[2] * job.out_stride[2],
               job.out_stride[2], job.out_stride[0]);
  }
}

template <class S, class W>
void zoom_channel(const Zoom& z, const uint8_t* base, uint8_t* out) {
  const Interval &i = z.tables->of[0].kept, &j = z.tables->of[1].kept, &k = z.tables->of[2].kept;
  if (is_along_i(z.w->g)) {
    for (int64_t a = i.begin; a < i.end; a += z.run)
      for (int64_t c = k.begin; c < k.end; c += BLOCK)
        zoom_along_i<S, W>(z, base, out, Box{{a, j.begin, c}, {least(a + z.run, i.end), j.end,
                                                               least(c + BLOCK, k.end)}});
    return;
  }
  for (int64_t b = j.begin; b < j.end; b += TILE)
    for (int64_t c = k.begin; c < k.end; c += z.run)
      zoom_along_k<S, W>(z, base, out, Box{{i.begin, b, c}, {i.end, least(b + TILE, j.end),
                                                             least(c + z.run, k.end)}});
}

// Output voxels of one run, of which the source voxels fit a row.
inline int64_t zoom_run(const Geometry& g, const Tables& tables) {
  const int axis = is_along_i(g) ? 0 : 2;
  const Table& table = tables.of[axis];
  int64_t run = RUN;
  for (int64_t v = table.kept.begin; v < table.kept.end; v += run) {
    const int64_t end = least(v + run, table.kept.end);
    if (run > 1 && reach_of(table, g.axis[axis].step, v, end).count > SPAN) {
      run /= 2;
      v = table.kept.begin - run;  // from the first one again
    }
  }
  return run;
}

// Whether the tables describe a plan for this path.
inline bool is_zoom(const Work& w, const int* source) {
  for (int n = 0; n < 3; n++)
    if (source[n] != n) return false;
  return densest_axis(w.g) != 1;
}

inline void zoom_all(const Work& w, const Tables& tables) {
  const VoxpipeJob& job = *w.job;
  const Zoom z{&w, &tables, w.zeros, zoom_run(w.g, tables)};
  const bool all = keeps_all(job, tables);
  for (int64_t c = 0; c < job.channels; c++) {
    const uint8_t* base = reinterpret_cast<const uint8_t*>(job.source) + c * job.source_channel_stride;
    uint8_t* out = reinterpret_cast<uint8_t*>(job.out) + c * job.out_channel_stride;
    if (!all) fill_outside(job, tables, w.zeros ? w.f.zero : w.f.fill, w.f.size, out);
    with_stored(job.source_type, [&](auto s) {
      typedef VOXPIPE_TYPE(s) S;
      if (w.wide) zoom_channel<S, double>(z, base, out);
      else zoom_channel<S, float>(z, base, out);
    });
  }
}

}  // namespace VOXPIPE_PATH_NAME
