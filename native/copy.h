// One tap per voxel, axes apart: crops, flips, turns and pads, and nearest zooms.
#pragma once

#include "processor.h"
#include "tables.h"
#include "tiles.h"
#include "turn.h"

namespace VOXPIPE_PATH_NAME {

struct Copy {
  const VoxpipeJob* job;
  const Finish* f;
  const Tables* tables;
  int along;    // output axis that runs along the source's densest axis
  int dense;    // output axis along which the output is densest
  int third;
  int64_t along_step;  // bytes between neighbours in the source, 0 where uneven
  int64_t dense_step;
  int64_t size;   // bytes of a stored voxel
  bool is_dense;  // neighbours along a row are neighbours in the source, in either direction
  bool as_stored;
  bool as_floats;  // vectors of neighbours become float32
};

inline int64_t length_of(const Copy& c, int n) {
  return c.tables->kept.end[n] - c.tables->kept.begin[n];
}

// Stored numbers that float32 holds exactly, and that vectors convert.
template <class S> constexpr bool IS_EXACT = sizeof(S) <= 2 || (HAS_NAN<S> && sizeof(S) == 4);

// The same finished; scaled by way of float64. Converted by loops: of a vector that is converted GCC
// 12 makes more, smaller ones.
inline Floats finish_exact(const Finish& f, Floats values) {
  if (!f.scaled) return finish_vector(f, values);
  const Doubles low = Doubles{} + f.low, high = Doubles{} + f.high;
  float each[LANES];
  double wide[LANES];
  put_vector(each, values);
  for (int n = 0; n < LANES; n++) wide[n] = static_cast<double>(each[n]);
  for (int n = 0; n < LANES; n += LANES / 2) {
    const Doubles value = vector_at<Doubles>(wide + n) * f.slope + f.intercept;
    put_vector(wide + n, f.has_epilogue ? in_range(value, f.scale, f.shift, low, high) : value);
  }
  for (int n = 0; n < LANES; n++) each[n] = static_cast<float>(wide[n]);
  return vector_at<Floats>(each);
}

// At least LANES voxels beside each other, from the first to the last or the other way.
template <class S>
void float_row(const Finish& f, const uint8_t* row, int64_t step, int64_t count, uint8_t* out) {
  for (int64_t next = 0; next < count; next += LANES) {
    const int64_t v = least(next, count - LANES);  // the last ones lie over those before
    put<Floats>(out + 4 * v, finish_exact(f, floats_along<S>(row, step, v)));
  }
}

// At most RUN voxels, side by side. ``row`` is the address of index 0 of the axis, the offsets say the
// rest.
VOXPIPE_INLINE void copy_row(const Copy& c, const uint8_t* row, const int64_t* offset, int64_t count,
                             uint8_t* out) {
  const uint8_t* first = row + offset[0];
  if (c.as_stored && c.along_step == c.size) {
    memcpy(out, first, static_cast<size_t>(count * c.size));
    return;
  }
  if (c.as_floats && count >= LANES)
    return with_stored(c.job->source_type, [&](auto s) {
      typedef VOXPIPE_TYPE(s) S;
      if constexpr (IS_EXACT<S>) float_row<S>(*c.f, first, c.along_step, count, out);
    });
  if (c.along_step == c.size) return convert_row(*c.job, *c.f, first, count, out);
  const auto pick = [&c, row, first, offset, count](uint8_t* to) VOXPIPE_ALWAYS {
    with_size(c.size, [=, &c](auto e) {
      typedef VOXPIPE_TYPE(e) E;
      constexpr int64_t SIZE = sizeof(E);
      // Compilers have vectors for mirrored ones.
      if (c.along_step == -SIZE)
        pick_elements<E>([=](int64_t v) { return first - v * SIZE; }, count, to);
      else pick_elements<E>([=](int64_t v) { return row + offset[v]; }, count, to);
    });
  };
  if (c.as_stored) return pick(out);
  uint8_t elements[RUN * 8];
  pick(elements);
  convert_row(*c.job, *c.f, elements, count, out);
}

// From a voxel of a slice to the same one of the next slice, which is 0 for the last. Lines of that
// are asked for ahead: at random places of a mapped file a copy takes half of the time so.
inline int64_t next_slice(const Copy& c, int64_t third) {
  const int64_t* offset = c.tables->offset[c.third];
  return third + 1 < c.tables->kept.end[c.third] ? offset[third + 1] - offset[third] : 0;
}

// Row by row, in tiles of which the rows become columns where the output is densest across them.
inline void copy_rows(const Work& w, const Copy& c, const uint8_t* base, uint8_t* out) {
  const int across = 3 - c.along - c.third;
  Tiling t{c.along, across, c.third, c.along != c.dense, false, false, 0, {TILE, TILE, TILE}};
  t.step[c.along] = RUN;
  // Rows that go straight to their places follow each other in memory: the whole slice.
  if (!t.turned && c.job->out_stride[c.along] == c.f->size) t.step[across] = c.job->out_size[across];
  each_tile(t, c.tables->kept, [&](const Box& tile) {
    const int64_t count = tile.end[c.along] - tile.begin[c.along];
    const int64_t* offset = c.tables->offset[c.along] + tile.begin[c.along];
    const int64_t first = least(offset[0], offset[count - 1]);
    const int64_t last = most(offset[0], offset[count - 1]);
    each_row(w, t, tile, out, [&](const int64_t* index, int64_t, int64_t, uint8_t* to) {
      const uint8_t* row = base + c.tables->offset[across][index[across]] +
                           c.tables->offset[c.third][index[c.third]];
      const int64_t ahead = next_slice(c, index[c.third]);
      if (c.is_dense && !t.turned) fetch_row(row + ahead + first, last - first + 1);
      copy_row(c, row, offset, count, to);
    });
  });
}

// The source's rows, of elements S, become the output's columns, of elements E, in squares that are
// turned in registers; the last ones of both axes lie over those before them. ``row_at`` loads a row of
// a square.
template <class S, class E, class RowAt>
void turn_slice(const Copy& c, const uint8_t* base, uint8_t* out, int64_t third, const RowAt& row_at) {
  constexpr int64_t N = Square<E>::N, SIZE = sizeof(S);
  const Box& kept = c.tables->kept;
  const int64_t width = length_of(c, c.along), height = length_of(c, c.dense);
  const bool is_mirrored = c.along_step < 0;  // from the last column to the first, then
  const int64_t way = c.job->out_stride[c.along], ahead = next_slice(c, third);
  int64_t index[3] = {kept.begin[0], kept.begin[1], kept.begin[2]};
  index[c.third] = third;
  if (is_mirrored) index[c.along] = kept.end[c.along] - 1;
  for (int n = 0; n < 3; n++) {
    base += c.tables->offset[n][index[n]];
    out += index[n] * c.job->out_stride[n];
  }
  // Not by fetch_line: GCC 12 leaves out a call that changes nothing, before it looks inside.
  const auto fetch_next = [&](int64_t row, int64_t column, int64_t count) VOXPIPE_ALWAYS {
    const uint8_t* from = base + ahead + row * c.dense_step + column * SIZE;
    const int64_t last = (width - column) * SIZE - 1;
    for (int64_t n = 0; n < count; n++, from += c.dense_step) {
      __builtin_prefetch(from, 0, 3);
      if (last < LINE) __builtin_prefetch(from + last, 0, 3);
    }
  };
  // All of a line is used at once: rows a multiple of 4096 bytes apart, as of planes of 320 or 512
  // voxels, crowd into one set of a level 1 cache, and drop out of it soon. What gets wider writes
  // more than it reads, and does so to no more places than a block has.
  turn_squares<E, (sizeof(E) > SIZE ? BLOCK / N : LINE / (N * SIZE))>(
      height, width, out, is_mirrored ? -way : way, [&](int64_t row, int64_t column) VOXPIPE_ALWAYS {
        return row_at(base + row * c.dense_step + column * SIZE); }, fetch_next);
}

inline bool turns_in_registers(const Copy& c) {
  return c.along != c.dense && c.dense_step && c.job->out_stride[c.dense] == c.f->size &&
         least(length_of(c, c.along), length_of(c, c.dense)) >= BLOCK && c.is_dense &&
         (c.as_stored || c.as_floats);
}

inline void turn_in_registers(const Copy& c, const uint8_t* base, uint8_t* out, int64_t third) {
  if (c.as_stored)
    return with_size(c.size, [&](auto e) {
      typedef VOXPIPE_TYPE(e) E;
      turn_slice<E, E>(c, base, out, third, load<typename Square<E>::Row>);
    });
  with_stored(c.job->source_type, [&](auto s) {
    typedef VOXPIPE_TYPE(s) S;
    if constexpr (IS_EXACT<S>)
      turn_slice<S, uint32_t>(c, base, out, third, [&](const uint8_t* from) {
        return (Square<uint32_t>::Row)finish_exact(*c.f, floats_at<S>(from));
      });
  });
}

inline Copy copy_of(const VoxpipeJob& job, const Finish& f, const Tables& tables) {
  Copy c{&job, &f, &tables, 2, 2, 0, 0, 0, size_of_type(job.source_type), false, false, false};
  for (int n = 1; n >= 0; n--) {
    if (length_of(c, n) < 2) continue;
    const auto reach = [&](int m) { return __builtin_llabs(job.source_stride[tables.source[m]]); };
    if (length_of(c, c.along) < 2 || reach(n) < reach(c.along)) c.along = n;
    if (job.out_stride[n] == f.size && (job.out_stride[c.dense] != f.size || length_of(c, c.dense) < 2))
      c.dense = n;
  }
  c.third = c.along == c.dense ? (c.along == 0 ? 1 : 0) : 3 - c.along - c.dense;
  c.along_step = even_step(tables, c.along);
  c.dense_step = even_step(tables, c.dense);
  c.as_stored = is_as_stored(job, f);
  c.is_dense = c.along_step == c.size || c.along_step == -c.size;
  // Vectors of four gain nothing.
  c.as_floats = LANES > 4 && job.out_type == VOXPIPE_F32 && c.is_dense &&
                with_stored(job.source_type, [](auto s) { return IS_EXACT<VOXPIPE_TYPE(s)>; });
  return c;
}

// What the tables keep, which is something. Where a volume ends within, each part by itself: what
// lies inside, and what padding repeats or mirrors.
inline void copy_kept(const Work& w, const Tables& tables, const uint8_t* base, uint8_t* out) {
  const Copy c = copy_of(*w.job, w.f, tables);
  const int axes[2] = {c.along, c.dense};
  for (int n : axes) {
    const int64_t bend = first_bend(tables, n);
    const bool has_parts = w.job->mode == VOXPIPE_COPY && bend < tables.kept.end[n];
    if (!has_parts || w.job->source_size[tables.source[n]] < BLOCK) continue;
    Tables first = tables, last = tables;
    first.kept.end[n] = last.kept.begin[n] = bend;
    copy_kept(w, first, base, out);
    return copy_kept(w, last, base, out);
  }
  if (!turns_in_registers(c)) return copy_rows(w, c, base, out);
  for (int64_t third = tables.kept.begin[c.third]; third < tables.kept.end[c.third]; third++)
    turn_in_registers(c, base, out, third);
}

// Whole numbers that float32 holds at every step are scaled in it, as an epilogue without limits.
inline Finish finish_exactly(const VoxpipeJob& job, Finish f) {
  const bool is_whole = round_even(f.slope) == f.slope && round_even(f.intercept) == f.intercept;
  const int64_t size = size_of_type(job.source_type);
  const double most_stored = size == 1 ? 255.0 : 65535.0;
  const double most_value = __builtin_fabs(f.slope) * most_stored + __builtin_fabs(f.intercept);
  if (!f.scaled || f.has_epilogue || size > 2 || job.source_type == VOXPIPE_F16 || !is_whole ||
      most_value > GRAINS)
    return f;
  f.scaled = false;
  f.has_epilogue = true;
  f.scale = f.slope;
  f.shift = f.intercept;
  f.low = -__builtin_inf();
  f.high = __builtin_inf();
  return f;
}

inline void copy_all(Work& w, const Tables& tables) {
  const VoxpipeJob& job = *w.job;
  w.f = finish_exactly(job, w.f);
  const uint8_t* element = w.zeros ? w.f.zero : w.f.fill;
  for (int64_t channel = 0; channel < job.channels; channel++) {
    const uint8_t* base =
        reinterpret_cast<const uint8_t*>(job.source) + channel * job.source_channel_stride;
    uint8_t* out = reinterpret_cast<uint8_t*>(job.out) + channel * job.out_channel_stride;
    fill_outside(job, tables.kept, element, w.f.size, out);
    if (voxels_of(tables.kept)) copy_kept(w, tables, base, out);
  }
}

}  // namespace VOXPIPE_PATH_NAME
