// One tap per voxel, axes apart: crops, flips, turns and pads, and nearest zooms.
#pragma once

#include "processor.h"
#include "box.h"
#include "nearest.h"
#include "vectors.h"
#include "turn.h"
#include "tables.h"

namespace VOXPIPE_PATH_NAME {

struct Copy;

// Voxels beside each other that become float32, where a vector of them can: count of them, from
// the first to the last or mirrored.
typedef void (*FloatRowCopy)(const Finish&, const uint8_t* row, bool, int64_t count, uint8_t* out);
// A slice whose source rows become the output's columns.
typedef void (*SliceTurn)(const Copy&, const uint8_t* base, uint8_t* out, int64_t third);

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
  FloatRowCopy float_row;  // null where rows are moved otherwise
};

inline int64_t length_of(const Copy& c, int n) {
  return c.tables->of[n].kept.end - c.tables->of[n].kept.begin;
}

// Address of the first kept voxel of a slice.
inline const uint8_t* source_at(const Copy& c, const uint8_t* base, const int64_t* index) {
  for (int n = 0; n < 3; n++) base += c.tables->of[n].lower[index[n]];
  return base;
}

inline uint8_t* out_at(const Copy& c, uint8_t* out, const int64_t* index) {
  for (int n = 0; n < 3; n++) out += index[n] * c.job->out_stride[n];
  return out;
}

// A row of a square as it is stored.
template <class E> struct StoredRow {
  typedef E Source;
  typedef E Element;

  static inline typename Square<E>::Row at(const Finish&, const uint8_t* from) {
    return load<typename Square<E>::Row>(from);
  }
};

template <class W, class V>
inline V vector_in_range(const Finish& f, V values) {
  const V low = V{} + static_cast<W>(f.low), high = V{} + static_cast<W>(f.high);
  values = values * static_cast<W>(f.scale) + static_cast<W>(f.shift);
  return values < low ? low : (values > high ? high : values);  // NaN stays NaN
}

// A row of a square as float32: numbers that it holds exactly, scaled by way of float64.
template <class S> struct FloatRow {
  typedef typename Memory<S>::type Source;
  typedef uint32_t Element;

  static inline Square<uint32_t>::Row at(const Finish& f, const uint8_t* from) {
    Floats values = floats_at<S>(from);
    if (!f.scaled) {
      if (f.has_epilogue) values = vector_in_range<float>(f, values);
      return (Square<uint32_t>::Row)values;
    }
    HalfFloats halves[2];
    put_vector(halves, values);
    for (HalfFloats& half : halves) {
      Doubles wide = __builtin_convertvector(half, Doubles) * f.slope + f.intercept;
      if (f.has_epilogue) wide = vector_in_range<double>(f, wide);
      half = __builtin_convertvector(wide, HalfFloats);
    }
    return vector_at<Square<uint32_t>::Row>(halves);
  }
};

// At least LANES voxels beside each other, from the first to the last or the other way.
template <class S>
void float_row(const Finish& f, const uint8_t* row, bool is_mirrored, int64_t count, uint8_t* out) {
  constexpr int64_t SIZE = sizeof(typename Memory<S>::type);
  for (int64_t next = 0; next < count; next += LANES) {
    const int64_t v = least(next, count - LANES);  // the last ones lie over those before
    const uint8_t* from = is_mirrored ? row - (v + LANES - 1) * SIZE : row + v * SIZE;
    const Floats values = (Floats)FloatRow<S>::at(f, from);
    put<Floats>(out + v * int64_t{sizeof(float)}, is_mirrored ? mirrored(values, ALL_LANES) : values);
  }
}

// The answer of act(tag) of stored numbers that float32 holds exactly, and that vectors convert; null
// of others.
template <class Act>
inline auto with_floats(int64_t type, const Act& act) {
  typedef decltype(act(Tag<float>{})) Answer;
  return with_stored(type, [&](auto s) -> Answer {
    typedef VOXPIPE_TYPE(s) S;
    if constexpr (sizeof(S) <= 2 || (HAS_NAN<S> && sizeof(S) == 4)) return act(s);
    else return nullptr;
  });
}

// ``row`` is the address of index 0 of the axis, the offsets say the rest.
VOXPIPE_INLINE void copy_row(const Copy& c, const uint8_t* row, const int64_t* offset,
                             int64_t count, uint8_t* out, int64_t stride) {
  const int64_t size = c.size;
  const bool is_dense = c.as_stored && stride == size;
  if (is_dense && c.along_step == size) {
    memcpy(out, row + offset[0], static_cast<size_t>(count * size));
    return;
  }
  if (c.float_row && count >= LANES && stride == c.f->size)
    return c.float_row(*c.f, row + offset[0], c.along_step < 0, count, out);
  const auto pick = [&c, row, size](const int64_t* at, int64_t some, uint8_t* to) VOXPIPE_ALWAYS {
    with_size(size, [=, &c](auto e) {
      typedef VOXPIPE_TYPE(e) E;
      if (c.along_step) pick_even<E>(row + at[0], c.along_step, some, to);
      else pick_elements<E>([row, at](int64_t n) { return row + at[n]; }, some, to);
    });
  };
  if (is_dense) return pick(offset, count, out);
  uint8_t elements[RUN * 8];
  for (int64_t v = 0; v < count; v += RUN) {
    const int64_t some = least(RUN, count - v);
    pick(offset + v, some, elements);
    convert_row(*c.job, *c.f, elements, some, out + v * stride, stride);
  }
}

// From a voxel of a slice to the same one of the next slice, which is 0 for the last. Lines of that
// are asked for ahead: at random places of a mapped file a copy takes half of the time so.
inline int64_t next_slice(const Copy& c, int64_t third) {
  const Table& table = c.tables->of[c.third];
  return third + 1 < table.kept.end ? table.lower[third + 1] - table.lower[third] : 0;
}

inline void copy_straight(const Copy& c, const uint8_t* base, uint8_t* out, int64_t third) {
  const int rows = 3 - c.along - c.third;
  const Table &along = c.tables->of[c.along], &across = c.tables->of[rows];
  const int64_t* offset = along.lower + along.kept.begin;
  const int64_t first = least(offset[0], along.lower[along.kept.end - 1]);
  const int64_t last = most(offset[0], along.lower[along.kept.end - 1]);
  const int64_t ahead = next_slice(c, third), count = length_of(c, c.along);
  int64_t index[3] = {along.kept.begin, along.kept.begin, along.kept.begin};
  index[c.third] = third;
  index[rows] = 0;
  base += c.tables->of[c.third].lower[third];
  out = out_at(c, out, index);
  for (int64_t r = across.kept.begin; r < across.kept.end; r++) {
    const uint8_t* row = base + across.lower[r];
    for (int64_t at = first; c.is_dense && at < last + LINE; at += LINE)
      fetch_line(row + ahead + least(at, last));
    copy_row(c, row, offset, count, out + r * c.job->out_stride[rows], c.job->out_stride[c.along]);
  }
}

// Rows a multiple of this apart crowd into one set of a level 1 cache, and drop out of it before
// all of a line is used: planes of 320 or 512 voxels, for one. Then a block at a time is copied
// together. Of at most 16, 32, 64 and 128 rows, 64 are the fastest for patches of 128 voxels.
constexpr int64_t CROWDED = 4096;
constexpr int64_t BLOCK_ROWS = 64;
constexpr int64_t BLOCK_ROW_BYTES = 256;

// The length of parts that are equally long, none longer than ``most``.
inline int64_t part_length(int64_t length, int64_t most) {
  const int64_t parts = (length + most - 1) / most;
  return (length + parts - 1) / parts;
}

// The source's rows become the output's columns, in squares that are turned in registers; the last
// ones of both axes lie over those before them.
template <class R>
void turn_rows(const Copy& c, const uint8_t* base, uint8_t* out, int64_t third) {
  typedef typename R::Element E;
  constexpr int64_t N = Square<E>::N, SIZE = sizeof(typename R::Source);
  constexpr int64_t BLOCK_STRIDE = BLOCK_ROW_BYTES + LINE;
  const Interval along = c.tables->of[c.along].kept;
  const int64_t columns = length_of(c, c.along), rows = length_of(c, c.dense);
  const bool is_mirrored = c.along_step < 0;  // from the last column to the first, then
  const bool is_crowded = c.dense_step % CROWDED == 0;
  const int64_t way = c.job->out_stride[c.along], column_step = is_mirrored ? -way : way;
  const int64_t ahead = next_slice(c, third);
  const int64_t width = is_crowded ? part_length(columns, BLOCK_ROW_BYTES / SIZE) : columns;
  const int64_t height = is_crowded ? part_length(rows, BLOCK_ROWS) : rows;
  alignas(64) uint8_t block[BLOCK_ROWS * BLOCK_STRIDE];
  int64_t index[3];
  index[c.third] = third;
  index[c.dense] = c.tables->of[c.dense].kept.begin;
  index[c.along] = is_mirrored ? along.end - 1 : along.begin;
  base = source_at(c, base, index);
  out = out_at(c, out, index);
  // ``from`` is where the first voxel is read, ``at`` where it is stored.
  const auto turn = [&](const uint8_t* from, int64_t step, const uint8_t* at, uint8_t* to) {
    for (int64_t next_column = 0; next_column < width; next_column += N) {
      const int64_t column = least(next_column, width - N);
      const bool is_last = next_column + N >= width;
      for (int64_t next_row = 0; next_row < height; next_row += N) {
        const int64_t row = least(next_row, height - N);
        const uint8_t* line = at + ahead + column * SIZE + row * c.dense_step;
        if (is_last) line += N * SIZE - 1;
        for (int64_t n = 0; n < N && (is_last || next_column * SIZE % LINE == 0); n++)
          fetch_line(line + n * c.dense_step);
        const uint8_t* square = from + column * SIZE + row * step;
        turn_square<E>([&](int64_t n) { return R::at(*c.f, square + n * step); },
                       to + column * column_step + row * int64_t{sizeof(E)}, column_step);
      }
    }
  };
  for (int64_t next_row = 0; next_row < rows; next_row += height)
    for (int64_t next_column = 0; next_column < columns; next_column += width) {
      const int64_t column = least(next_column, columns - width);
      const int64_t row = least(next_row, rows - height);
      const uint8_t* at = base + column * SIZE + row * c.dense_step;
      uint8_t* to = out + column * column_step + row * int64_t{sizeof(E)};
      for (int64_t n = 0; n < height && is_crowded; n++)
        __builtin_memcpy(block + n * BLOCK_STRIDE, at + n * c.dense_step,
                         static_cast<size_t>(width * SIZE));
      if (is_crowded) turn(block, BLOCK_STRIDE, at, to);
      else turn(at, c.dense_step, at, to);
    }
}

// What turns a slice in registers, or null where none does.
inline SliceTurn slice_turn(const Copy& c) {
  const bool has_rows = c.dense_step && c.job->out_stride[c.dense] == c.f->size;
  if (!has_rows || least(length_of(c, c.along), length_of(c, c.dense)) < BLOCK) return nullptr;
  if (c.as_stored && c.is_dense)
    return with_size(c.f->size, [](auto e) -> SliceTurn {
      return turn_rows<StoredRow<VOXPIPE_TYPE(e)>>;
    });
  if (!c.float_row) return nullptr;
  return with_floats(c.job->source_type, [](auto s) -> SliceTurn {
    return turn_rows<FloatRow<VOXPIPE_TYPE(s)>>;
  });
}

// The same where voxels are spaced unevenly, or become something else.
inline void turn_uneven(const Copy& c, const uint8_t* base, uint8_t* out, int64_t third) {
  const Table &along = c.tables->of[c.along], &dense = c.tables->of[c.dense];
  const int64_t size = c.f->size;
  alignas(64) uint8_t block[BLOCK_BYTES];
  int64_t index[3];
  index[c.third] = third;
  for (index[c.dense] = dense.kept.begin; index[c.dense] < dense.kept.end; index[c.dense] += BLOCK)
    for (index[c.along] = along.kept.begin; index[c.along] < along.kept.end;
         index[c.along] += RUN) {
      const int64_t count = least(RUN, along.kept.end - index[c.along]);
      const int64_t rows = least(BLOCK, dense.kept.end - index[c.dense]);
      const uint8_t* row = source_at(c, base, index) - along.lower[index[c.along]] -
                           dense.lower[index[c.dense]];
      for (int64_t r = 0; r < rows; r++)
        copy_row(c, row + dense.lower[index[c.dense] + r], along.lower + index[c.along], count,
                 block + r * RUN * size, size);
      turn_block(size, block, RUN * size, rows, count, out_at(c, out, index),
                 c.job->out_stride[c.dense], c.job->out_stride[c.along]);
    }
}

inline Copy copy_of(const VoxpipeJob& job, const Finish& f, const Tables& tables) {
  Copy c{&job, &f, &tables, 2, 2, 0, 0, 0, size_of_type(job.source_type), false, false, nullptr};
  for (int n = 1; n >= 0; n--) {
    if (length_of(c, n) < 2) continue;
    const auto reach = [&](int m) {
      const int64_t step = job.source_stride[tables.of[m].source];
      return step < 0 ? -step : step;
    };
    if (length_of(c, c.along) < 2 || reach(n) < reach(c.along)) c.along = n;
    if (job.out_stride[n] == f.size && (job.out_stride[c.dense] != f.size || length_of(c, c.dense) < 2))
      c.dense = n;
  }
  c.third = c.along == c.dense ? (c.along == 0 ? 1 : 0) : 3 - c.along - c.dense;
  c.along_step = even_step(tables.of[c.along]);
  c.dense_step = even_step(tables.of[c.dense]);
  c.as_stored = is_as_stored(job, f);
  c.is_dense = c.along_step == c.size || c.along_step == -c.size;
  // Vectors of four gain nothing.
  if (LANES > 4 && job.out_type == VOXPIPE_F32 && c.is_dense)
    c.float_row = with_floats(job.source_type, [](auto s) -> FloatRowCopy {
      return float_row<VOXPIPE_TYPE(s)>;
    });
  return c;
}

// The first index whose offset is another step away than the one before; the end if there is none.
inline int64_t first_bend(const Table& table) {
  const int64_t* lower = table.lower;
  int64_t n = table.kept.begin + 2;
  while (n < table.kept.end && lower[n] - lower[n - 1] == lower[n - 1] - lower[n - 2]) n++;
  return least(n, table.kept.end);
}

// What the tables keep, which is something. Where a volume ends within, each part by itself: what
// lies inside, and what padding repeats or mirrors.
inline void copy_kept(const VoxpipeJob& job, const Finish& f, const Tables& tables,
                      const uint8_t* base, uint8_t* out) {
  const Copy c = copy_of(job, f, tables);
  const int axes[2] = {c.along, c.dense};
  for (int n : axes) {
    const Interval kept = tables.of[n].kept;
    const int64_t bend = first_bend(tables.of[n]);
    const bool has_parts = job.mode == VOXPIPE_COPY && bend < kept.end;
    if (!has_parts || job.source_size[tables.of[n].source] < BLOCK) continue;
    Tables part = tables;
    part.of[n].kept = Interval{kept.begin, bend};
    copy_kept(job, f, part, base, out);
    part.of[n].kept = Interval{bend, kept.end};
    copy_kept(job, f, part, base, out);
    return;
  }
  const SliceTurn move = c.along == c.dense ? copy_straight : slice_turn(c);
  const Interval slices = tables.of[c.third].kept;
  for (int64_t third = slices.begin; third < slices.end; third++)
    if (move) move(c, base, out, third);
    else turn_uneven(c, base, out, third);
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

inline void copy_all(const VoxpipeJob& job, const Finish& as_asked, const Tables& tables) {
  const Finish f = finish_exactly(job, as_asked);
  const uint8_t* element = job.padding == VOXPIPE_ZEROS ? f.zero : f.fill;
  const bool is_empty = tables.of[0].kept.begin == tables.of[0].kept.end ||
                        tables.of[1].kept.begin == tables.of[1].kept.end ||
                        tables.of[2].kept.begin == tables.of[2].kept.end;
  for (int64_t channel = 0; channel < job.channels; channel++) {
    const uint8_t* base =
        reinterpret_cast<const uint8_t*>(job.source) + channel * job.source_channel_stride;
    uint8_t* out = reinterpret_cast<uint8_t*>(job.out) + channel * job.out_channel_stride;
    if (!keeps_all(job, tables)) fill_outside(job, tables, element, f.size, out);
    if (!is_empty) copy_kept(job, f, tables, base, out);
  }
}

}  // namespace VOXPIPE_PATH_NAME
