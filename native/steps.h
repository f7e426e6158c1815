// Steps that change values, one after another, in as few passes over the array as they can be done in.
//
// What changes each voxel on its own is done block by block, so that of several steps in a row the
// values stay in the cache; a filter, or coarser voxels, make plane after plane between them. A
// pass ends before a step that asks for statistics, which the pass counts as it leaves values.
#pragma once

#include "processor.h"
#include "finish.h"
#include "noise.h"
#include "gamma.h"
#include "filter.h"
#include "coarsen.h"

namespace VOXPIPE_PATH_NAME {

constexpr int64_t VALUES_AT_ONCE = 4096;  // floats at once: 16 KiB stay in the fastest cache
constexpr double LEAST_RANGE = 0x1p-126;  // one by less is no float32
constexpr double LEAST_DEVIATION = 1e-7;  // batchgeneratorsv2's, of a patch that is constant

inline bool keeps_statistics(const VoxpipeStep& step) {
  return step.kind == VOXPIPE_GAMMA && step.flags & VOXPIPE_KEEP_STATISTICS;
}

struct Scale {
  float factor, shift, low, high;
};

inline Scale scale_of(double factor, double shift, double low, double high) {
  return Scale{static_cast<float>(factor), static_cast<float>(shift), static_cast<float>(low),
               static_cast<float>(high)};
}

// A step as it is done: one that keeps statistics is two, of which the second brings them back.
struct Stage {
  const VoxpipeStep* step;
  bool restores;
  Scale scale;                   // of SCALE and SPREAD, and of what is restored
  float start, inward, outward;  // of GAMMA
  double mean, deviation;        // before a bend

  bool makes_planes() const { return step->kind >= VOXPIPE_FILTER; }

  bool asks() const {
    return keeps_statistics(*step) || step->flags & (VOXPIPE_OF_PATCH | VOXPIPE_KEEP_RANGE);
  }

  // Take from ``s``, of what is there now, what the step asks for; false if there is no range.
  bool prepare(const Statistics& s, const Stage* before) {
    const double *number = step->number, infinity = __builtin_inf();
    const bool of_patch = step->flags & VOXPIPE_OF_PATCH, keeps = step->flags & VOXPIPE_KEEP_RANGE;
    if (restores) {
      const double now = s.deviation();
      const double factor = before->deviation / (LEAST_DEVIATION > now ? LEAST_DEVIATION : now);
      scale = scale_of(factor, before->mean - s.mean() * factor, -infinity, infinity);
      return true;
    }
    if ((of_patch || keeps) && !s.is_finite()) return false;
    if (step->kind == VOXPIPE_SCALE) scale = scale_of(number[0], number[1], number[2], number[3]);
    if (step->kind == VOXPIPE_SPREAD) {
      const double middle = of_patch ? s.mean() : number[1];
      scale = scale_of(number[0], middle * (1 - number[0]), keeps ? s.lowest() : -infinity,
                       keeps ? s.highest() : infinity);
    }
    if (step->kind == VOXPIPE_GAMMA) {
      const double first = of_patch ? s.lowest() : number[1], last = of_patch ? s.highest() : number[2];
      const double length = last - first, sign = step->flags & VOXPIPE_INVERT ? -1.0 : 1.0;
      start = static_cast<float>(sign < 0 ? last : first);
      inward = __builtin_fabs(length) >= LEAST_RANGE ? static_cast<float>(sign / length) : 0.0f;
      outward = static_cast<float>(sign * length);
      if (keeps_statistics(*step)) {
        mean = s.mean();
        deviation = s.deviation();
      }
    }
    return true;
  }

  void change(const Rows& rows) const {
    float* v = rows.values;
    const int64_t count = rows.count * rows.width;
    if (restores || step->kind <= VOXPIPE_SPREAD) {
      const Scale s = scale;
      for (int64_t n = 0; n < count; n++) v[n] = in_range(v[n], s.factor, s.shift, s.low, s.high);
    } else if (step->kind == VOXPIPE_GAMMA) {
      bend_values(v, count, Exponent(step->number[0]), start, inward, outward);
    } else {
      noise(*step, rows);
    }
  }
};

// One channel.
struct Channel {
  const VoxpipeValues* job;
  int64_t number;
  float* voxels;
  Stage* stages;
  Statistics found;

  float* row(int64_t i, int64_t j) const { return voxels + (i * job->size[1] + j) * job->size[2]; }

  // Rows that are fetched, as the stages before a plane is made leave them.
  void begin(const Rows& rows, int64_t from, int64_t end) const {
    copy_floats(row(rows.i, rows.j), rows.count * rows.width, rows.values);
    for (int64_t n = from; n < end; n++) stages[n].change(rows);
  }

  // Do the stages from ``from`` on up to ``end``, of which ``maker`` makes planes, if it is one.
  int64_t pass(int64_t from, int64_t maker, int64_t end, bool counts) {
    const int64_t *size = job->size, width = size[2];
    const int64_t block = least(size[1], most<int64_t>(1, VALUES_AT_ONCE / width));
    const VoxpipeStep* step = maker < end ? stages[maker].step : nullptr;
    const bool filters = step && step->kind == VOXPIPE_FILTER;
    const int64_t floats = filters ? FilterPlanes::floats(*step, size) : step ? CoarsePlanes::floats(size) : 0;
    float* between = static_cast<float*>(malloc(static_cast<size_t>(floats + 1) * sizeof(float)));
    if (!between) return VOXPIPE_NO_MEMORY;
    FilterPlanes filter;
    CoarsePlanes coarse;
    if (filters) filter.begin(*step, size, between);
    else if (step) coarse.begin(*step, size, between);
    const auto load_plane = [&](int64_t i, float* to) {
      for (int64_t j = 0; j < size[1]; j += block)
        begin(Rows{to + j * width, least(block, size[1] - j), width, number, i, j}, from, maker);
    };
    const auto load_row = [&](int64_t i, int64_t j, float* to) {
      begin(Rows{to, 1, width, number, i, j}, from, maker);
    };
    found.count = 0;
    for (int64_t i = 0; i < size[0]; i++) {
      if (filters) filter.make(i, load_plane, row(i, 0));
      else if (step) coarse.make(i, load_row, row(i, 0));
      for (int64_t j = 0; j < size[1]; j += block) {
        const Rows rows{row(i, j), least(block, size[1] - j), width, number, i, j};
        for (int64_t n = step ? maker + 1 : from; n < end; n++) stages[n].change(rows);
        for (int64_t r = 0; counts && r < rows.count; r++) found.add(rows.values + r * width, width);
      }
    }
    free(between);
    return VOXPIPE_DONE;
  }

  int64_t run(int64_t count) {
    const VoxpipeStep* first = reinterpret_cast<const VoxpipeStep*>(job->steps);
    bool counted = false;
    for (int64_t at = 0, end; at < count; at = end) {
      const bool asks = stages[at].asks();
      int64_t maker = count, status = VOXPIPE_DONE;
      if (asks && !counted) status = pass(at, at, at, true);
      if (status) return status;
      for (end = at; end < count && (end == at || !stages[end].asks()); end++) {
        if (stages[end].makes_planes() && maker < end) break;
        if (stages[end].makes_planes()) maker = end;
        if (!stages[end].prepare(found, stages + end - 1)) return VOXPIPE_NO_RANGE + (stages[end].step - first);
      }
      counted = end < count && stages[end].asks();
      status = pass(at, maker, end, counted);
      if (status) return status;
    }
    return VOXPIPE_DONE;
  }
};

int64_t change(const VoxpipeValues& job) {
  const VoxpipeStep* steps = reinterpret_cast<const VoxpipeStep*>(job.steps);
  Stage stages[2 * VOXPIPE_MOST_STEPS];
  int64_t count = 0;
  for (int64_t n = 0; n < job.count; n++)
    for (int part = 0; part < (keeps_statistics(steps[n]) ? 2 : 1); part++) {
      stages[count] = Stage{};
      stages[count].step = steps + n;
      stages[count++].restores = part == 1;
    }
  for (int64_t c = 0; c < job.channels; c++) {
    const int64_t first = c * job.size[0] * job.size[1] * job.size[2];
    Channel channel{&job, c, reinterpret_cast<float*>(job.values) + first, stages, {}};
    const int64_t status = channel.run(count);
    if (status) return status;
  }
  return VOXPIPE_DONE;
}

}  // namespace VOXPIPE_PATH_NAME
