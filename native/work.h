// What one call of a map works with.
#pragma once

#include "bend.h"
#include "finish.h"

namespace VOXPIPE_PATH_NAME {

// One limit on output voxels: outside low .. high along a matrix row they are not sampled.
struct Limit {
  double row[4];
  double low;
  double high;
  bool fills;  // with the fill; else with zero
};

constexpr int64_t MAX_CLIPS = 16;  // hard crops in one plan
constexpr int64_t MAX_LIMITS = 3 * (MAX_CLIPS + 1);  // and the volume itself

struct Limits {
  int count;
  Limit limit[MAX_LIMITS];
};

inline void limit_to(Limits& limits, const double* row, const Box& box, double low, double high,
                     bool fills) {
  double least_yet, most_yet;
  extremes(row, box, &least_yet, &most_yet);
  if (least_yet >= low && most_yet <= high) return;
  limits.limit[limits.count++] = Limit{{row[0], row[1], row[2], row[3]}, low, high, fills};
}

// The least coordinate that is rounded to ``voxel``, and the largest: halves go to even ones.
inline double least_rounded(double voxel) {
  return voxel - 0.5 + (even_below(voxel) == voxel ? 0 : GRAIN);
}

inline Limits limits_of(const VoxpipeJob& job) {
  Limits limits;
  limits.count = 0;
  const Box all = whole_output(job);
  const double* clip = reinterpret_cast<const double*>(job.clips);
  for (int64_t n = 0; n < job.clip_count; n++, clip += 15)
    for (int a = 0; a < 3; a++)
      limit_to(limits, clip + 4 * a, all, -REACH, clip[12 + a] - 1 + REACH, true);
  for (int a = 0; a < 3 && !job.control; a++) {
    const double first = static_cast<double>(job.first[a]), last = static_cast<double>(job.last[a]);
    const double* row = job.matrix + 4 * a;
    const bool zeros = job.padding == VOXPIPE_ZEROS;
    if (job.padding == VOXPIPE_CONSTANT)
      limit_to(limits, row, all, first - REACH, last + REACH, true);
    if (zeros && job.mode == VOXPIPE_LINEAR) limit_to(limits, row, all, first - 1, last + 1, false);
    if (zeros && job.mode == VOXPIPE_NEAREST)
      limit_to(limits, row, all, least_rounded(first), -least_rounded(-last), false);
  }
  return limits;
}

struct Work {
  const VoxpipeJob* job;
  Geometry g;
  Limits limits;
  Finish f;
  bool zeros;
  bool wide;  // blend in float64
  bool gathers;  // by instructions of their own
  Control control;
  Control earlier;  // of the place that ``control`` leads to
  double reach[3];  // how far both move a voxel to either side

  ~Work() {
    free(control.points);
    free(earlier.points);
  }
};

}  // namespace VOXPIPE_PATH_NAME
