// Steps that change values, one after another, in as few passes over a channel as they can be done in.
//
// What changes each voxel on its own is done block by block, so that of several steps in a row the
// values stay in the cache; a filter, or coarser voxels, make plane after plane between them.
#pragma once

#include "processor.h"
#include "finish.h"
#include "noise.h"
#include "gamma.h"
#include "filter.h"
#include "coarsen.h"

namespace VOXPIPE_PATH_NAME {

constexpr int64_t VALUES_AT_ONCE = 4096;  // floats at once: 16 KiB stay in the fastest cache

// Do steps that change each voxel on its own.
inline void change_rows(const VoxpipeStep* step, const VoxpipeStep* end, const Rows& rows) {
  const int64_t count = rows.count * rows.width;
  for (float* v = rows.values; step < end; step++) {
    float number[4];
    for (int n = 0; n < 4; n++) number[n] = static_cast<float>(step->number[n]);
    if (step->kind == VOXPIPE_SCALE)
      for (int64_t n = 0; n < count; n++)
        v[n] = in_range(v[n], number[0], number[1], number[2], number[3]);
    else if (step->kind == VOXPIPE_BEND)
      bend_values(v, count, Exponent(step->number[0]), number[1], number[2], number[3]);
    else
      noise(*step, rows);
  }
}

// Do the steps from ``first`` on up to ``end``, of which ``maker`` makes planes, if it is one of them.
inline int64_t pass(const VoxpipeValues& job, const VoxpipeStep* first, const VoxpipeStep* maker,
                    const VoxpipeStep* end, Statistics* found) {
  const int64_t *size = job.size, width = size[2];
  const int64_t block = least(size[1], most<int64_t>(1, VALUES_AT_ONCE / width));
  float* values = reinterpret_cast<float*>(job.values);
  const bool makes = maker < end, filters = makes && maker->kind == VOXPIPE_FILTER;
  FilterPlanes filter{};
  CoarsePlanes coarse{};
  void* memory = nullptr;
  if (makes) memory = filters ? filter.begin(*maker, size) : coarse.begin(*maker, size);
  if (makes && !memory) return VOXPIPE_NO_MEMORY;
  const auto row_at = [&](int64_t i, int64_t j) { return values + (i * size[1] + j) * width; };
  // Rows as the steps before ``maker`` leave them.
  const auto load = [&](int64_t i, int64_t j, int64_t count, float* to) {
    copy_floats(row_at(i, j), count * width, to);
    change_rows(first, maker, Rows{to, count, width, job.channel, i, j});
  };
  const auto load_plane = [&](int64_t i, float* to) {
    for (int64_t j = 0; j < size[1]; j += block) load(i, j, least(block, size[1] - j), to + j * width);
  };
  const auto load_row = [&](int64_t i, int64_t j, float* to) { load(i, j, 1, to); };
  for (int64_t i = 0; i < size[0]; i++) {
    if (filters) filter.make(i, load_plane, row_at(i, 0));
    else if (makes) coarse.make(i, load_row, row_at(i, 0));
    for (int64_t j = 0; j < size[1]; j += block) {
      const Rows rows{row_at(i, j), least(block, size[1] - j), width, job.channel, i, j};
      change_rows(makes ? maker + 1 : first, end, rows);
      if (found) found->add(rows);
    }
  }
  free(memory);
  return VOXPIPE_DONE;
}

int64_t change(const VoxpipeValues& job) {
  const VoxpipeStep* step = reinterpret_cast<const VoxpipeStep*>(job.steps);
  const VoxpipeStep* const end = step + job.count;
  const auto next_maker = [=](const VoxpipeStep* from) {
    while (from < end && from->kind < VOXPIPE_FILTER) from++;
    return from;
  };
  Statistics found;
  found.count = 0;
  do {
    const VoxpipeStep *maker = next_maker(step), *last = maker < end ? next_maker(maker + 1) : end;
    const bool counts = job.statistics && last == end;
    const int64_t status = pass(job, step, maker, last, counts ? &found : nullptr);
    if (status) return status;
    step = last;
  } while (step < end);
  if (job.statistics) found.report(reinterpret_cast<double*>(job.statistics));
  return VOXPIPE_DONE;
}

}  // namespace VOXPIPE_PATH_NAME
