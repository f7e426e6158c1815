// Steps that change values, one after another, in as few passes over the array as they can be done in.
//
// What changes each voxel on its own is done block by block, so that of several steps in a row the
// values stay in the cache; a filter, or coarser voxels, make plane after plane between them. A
// pass ends before a step that asks for statistics, which the pass counts as it leaves values.
#pragma once

#include "processor.h"
#include "numbers.h"
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

// A step as it is done: one that keeps statistics is two, of which the second brings them back.
struct Stage {
  const VoxpipeStep* step;
  bool restores;
  float scale, shift, low, high;  // of SCALE and SPREAD, and of what is restored
  float start, inward, outward;   // of GAMMA
  double mean, deviation;         // before a bend

  bool makes_planes() const { return step->kind >= VOXPIPE_FILTER; }

  bool asks() const {
    return keeps_statistics(*step) || step->flags & (VOXPIPE_OF_PATCH | VOXPIPE_KEEP_RANGE);
  }

  void scale_by(double factor, double summand, double least_value, double most_value) {
    scale = static_cast<float>(factor);
    shift = static_cast<float>(summand);
    low = static_cast<float>(least_value);
    high = static_cast<float>(most_value);
  }

  // Take from ``s``, of what is there now, what the step asks for; false if there is no range.
  bool prepare(const Statistics& s, const Stage* before) {
    const double *number = step->number, infinity = __builtin_inf();
    const bool of_patch = step->flags & VOXPIPE_OF_PATCH, keeps = step->flags & VOXPIPE_KEEP_RANGE;
    if (restores) {
      const double now = s.deviation();
      const double factor = before->deviation / (LEAST_DEVIATION > now ? LEAST_DEVIATION : now);
      scale_by(factor, before->mean - s.mean() * factor, -infinity, infinity);
      return true;
    }
    if ((of_patch || keeps) && !s.is_finite()) return false;
    if (step->kind == VOXPIPE_SCALE) scale_by(number[0], number[1], number[2], number[3]);
    if (step->kind == VOXPIPE_SPREAD) {
      const double middle = of_patch ? s.mean() : number[1];
      scale_by(number[0], middle * (1 - number[0]), keeps ? s.lowest() : -infinity,
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
      for (int64_t n = 0; n < count; n++) {
        const float value = v[n] * scale + shift, below = value < low ? low : value;
        v[n] = below > high ? high : below;
      }
    } else if (step->kind == VOXPIPE_GAMMA) {
      bend_values(v, count, Exponent(step->number[0]), start, inward, outward);
    } else {
      noise(*step, rows);
    }
  }
};

// One channel, and memory for what a pass has between its planes.
struct Channel {
  const VoxpipeValues* job;
  int64_t number;
  uint8_t* voxels;
  Stage* stages;
  Statistics found;

  uint8_t* row(int64_t i, int64_t j) const { return voxels + i * job->stride[0] + j * job->stride[1]; }

  // Whether the rows of a plane follow each other, as floats that can be worked with where they are.
  bool is_dense() const {
    const int64_t size = sizeof(float);
    return job->stride[2] == size && job->stride[1] == job->size[2] * size &&
           !((reinterpret_cast<int64_t>(voxels) | job->stride[0]) & (size - 1));
  }

  // From the array to rows, or from rows to the array.
  void copy(const Rows& rows, bool stores) const {
    const int64_t width = rows.width, step = job->stride[2];
    const size_t bytes = static_cast<size_t>(width) * sizeof(float);
    for (int64_t r = 0; r < rows.count; r++) {
      uint8_t* at = row(rows.i, rows.j + r);
      float* values = rows.values + r * width;
      if (step == sizeof(float)) stores ? memcpy(at, values, bytes) : memcpy(values, at, bytes);
      else if (stores) for (int64_t v = 0; v < width; v++) put<float>(at + v * step, values[v]);
      else for (int64_t v = 0; v < width; v++) values[v] = load<float>(at + v * step);
    }
  }

  // Rows that are fetched, as the stages before a plane is made leave them.
  Rows begun(float* values, int64_t some, int64_t i, int64_t j, int64_t from, int64_t end) const {
    const Rows rows{values, some, job->size[2], number, i, j};
    copy(rows, false);
    for (int64_t n = from; n < end; n++) stages[n].change(rows);
    return rows;
  }

  // Do the stages from ``from`` on up to ``end``, of which ``maker`` makes planes, if it is one.
  int64_t pass(int64_t from, int64_t maker, int64_t end, bool counts) {
    const int64_t *size = job->size, width = size[2], plane = size[1] * width;
    const int64_t block = least(size[1], most<int64_t>(1, VALUES_AT_ONCE / width));
    const VoxpipeStep* step = maker < end ? stages[maker].step : nullptr;
    const bool filters = step && step->kind == VOXPIPE_FILTER;
    int64_t floats = step ? plane : block * width;
    if (step) floats += filters ? FilterPlanes::floats(*step, size) : CoarsePlanes::floats(size);
    const int64_t places = filters ? 2 * step->radius[0] + 1 : 1;
    float* memory = static_cast<float*>(malloc(static_cast<size_t>(floats) * sizeof(float)));
    int64_t* whole = static_cast<int64_t*>(malloc(static_cast<size_t>(places) * sizeof(int64_t)));
    if (!memory || !whole) {
      free(memory);
      free(whole);
      return VOXPIPE_NO_MEMORY;
    }
    FilterPlanes filter;
    CoarsePlanes coarse;
    if (filters) filter.begin(*step, size, memory + plane, whole);
    else if (step) coarse.begin(*step, size, memory + plane);
    const auto load_plane = [&](int64_t i, float* plane_of) {
      for (int64_t j = 0; j < size[1]; j += block)
        begun(plane_of + j * width, least(block, size[1] - j), i, j, from, maker);
    };
    const auto load_row = [&](int64_t i, int64_t j, float* line) { begun(line, 1, i, j, from, maker); };
    found.count = 0;
    for (int64_t i = 0; i < size[0]; i++) {
      float* made = is_dense() ? reinterpret_cast<float*>(row(i, 0)) : memory;
      if (filters) filter.make(i, load_plane, made);
      else if (step) coarse.make(i, load_row, made);
      for (int64_t j = 0; j < size[1]; j += block) {
        const int64_t some = least(block, size[1] - j);
        const bool in_place = made != memory;
        Rows rows{made + (step || in_place ? j * width : 0), some, width, number, i, j};
        if (!step && !in_place) copy(rows, false);
        for (int64_t n = step ? maker + 1 : from; n < end; n++) stages[n].change(rows);
        for (int64_t r = 0; counts && r < some; r++) found.add(rows.values + r * width, width);
        if (!in_place && from < end) copy(rows, true);
      }
    }
    free(memory);
    free(whole);
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
    Channel channel{&job, c, reinterpret_cast<uint8_t*>(job.values) + c * job.channel_stride, stages, {}};
    const int64_t status = channel.run(count);
    if (status) return status;
  }
  return VOXPIPE_DONE;
}

}  // namespace VOXPIPE_PATH_NAME
