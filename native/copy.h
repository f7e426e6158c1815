// One tap per voxel, axes apart: crops, flips, turns and pads, and nearest zooms.
#pragma once

#include "processor.h"
#include "nearest.h"
#include "turn.h"
#include "tables.h"

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
  bool as_stored;
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

// ``row`` is the address of index 0 of the axis, the offsets say the rest.
inline void copy_row(const Copy& c, const uint8_t* row, const int64_t* offset, int64_t count,
                     uint8_t* out, int64_t stride) {
  if (c.as_stored && c.along_step == c.f->size && stride == c.f->size) {
    __builtin_memcpy(out, row + offset[0], static_cast<size_t>(count * c.f->size));
    return;
  }
  if (c.as_stored && c.along_step == -c.f->size && stride == c.f->size) {
    mirror_row(c.f->size, row + offset[0], count, out);
    return;
  }
  for (int64_t v = 0; v < count && c.along_step && !c.as_stored; v += RUN)
    even_run(*c.job, *c.f, row + offset[v], c.along_step, least(RUN, count - v), out + v * stride,
             stride);
  if (c.along_step && !c.as_stored) return;
  for (int64_t v = 0; v < count; v += RUN)
    nearest_run(*c.job, *c.f, row, offset + v, least(RUN, count - v), out + v * stride, stride);
}

inline void copy_straight(const Copy& c, const uint8_t* base, uint8_t* out, int64_t third) {
  const Table& along = c.tables->of[c.along];
  const int rows = 3 - c.along - c.third;
  int64_t index[3];
  index[c.third] = third;
  index[c.along] = along.kept.begin;
  for (index[rows] = c.tables->of[rows].kept.begin; index[rows] < c.tables->of[rows].kept.end;
       index[rows]++) {
    const uint8_t* row = source_at(c, base, index) - along.lower[along.kept.begin];
    copy_row(c, row, along.lower + along.kept.begin, length_of(c, c.along), out_at(c, out, index),
             c.job->out_stride[c.along]);
  }
}

// The source's rows become the output's columns: a block of rows is turned in registers.
inline void copy_turned(const Copy& c, const uint8_t* base, uint8_t* out, int64_t third) {
  const Table &along = c.tables->of[c.along], &dense = c.tables->of[c.dense];
  const int64_t size = c.f->size, row_step = c.job->out_stride[c.dense];
  const int64_t column_step = c.job->out_stride[c.along];
  alignas(64) uint8_t block[BLOCK_BYTES];
  int64_t index[3];
  index[c.third] = third;
  const bool direct = c.as_stored && c.along_step == size && c.dense_step;
  const int64_t rows = direct ? most(BLOCK, 64 / size) : BLOCK;  // a cache line of the output
  const int64_t columns = direct ? length_of(c, c.along) : RUN;
  for (index[c.dense] = dense.kept.begin; index[c.dense] < dense.kept.end; index[c.dense] += rows)
    for (index[c.along] = along.kept.begin; index[c.along] < along.kept.end;
         index[c.along] += columns) {
      const int64_t count = least(columns, along.kept.end - index[c.along]);
      const int64_t height = least(rows, dense.kept.end - index[c.dense]);
      const uint8_t* from = source_at(c, base, index);
      int64_t from_step = c.dense_step;
      if (!direct) {
        const uint8_t* row = from - along.lower[index[c.along]] - dense.lower[index[c.dense]];
        for (int64_t r = 0; r < height; r++)
          copy_row(c, row + dense.lower[index[c.dense] + r], along.lower + index[c.along], count,
                   block + r * RUN * size, size);
        from = block;
        from_step = RUN * size;
      }
      turn_block(size, from, from_step, height, count, out_at(c, out, index), row_step,
                 column_step);
    }
}

inline Copy copy_of(const VoxpipeJob& job, const Finish& f, const Tables& tables) {
  Copy c{&job, &f, &tables, 2, 2, 0, 0, 0, false};
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
  c.as_stored = job.source_type == job.out_type && !f.scaled && !f.has_epilogue;
  return c;
}

inline void copy_all(const VoxpipeJob& job, const Finish& f, const Tables& tables) {
  const Copy c = copy_of(job, f, tables);
  const uint8_t* element = job.padding == VOXPIPE_ZEROS ? f.zero : f.fill;
  for (int64_t channel = 0; channel < job.channels; channel++) {
    const uint8_t* base =
        reinterpret_cast<const uint8_t*>(job.source) + channel * job.source_channel_stride;
    uint8_t* out = reinterpret_cast<uint8_t*>(job.out) + channel * job.out_channel_stride;
    if (!keeps_all(job, tables)) fill_outside(job, tables, element, f.size, out);
    if (!length_of(c, 0) || !length_of(c, 1) || !length_of(c, 2)) continue;
    const Interval slices = tables.of[c.third].kept;
    for (int64_t third = slices.begin; third < slices.end; third++)
      if (c.along == c.dense) copy_straight(c, base, out, third);
      else copy_turned(c, base, out, third);
  }
}

}  // namespace VOXPIPE_PATH_NAME
