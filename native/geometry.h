// Where an output voxel comes from, and which output voxels need no second thought.
//
// A coordinate is ((m0*i + m1*j) + t) + m2*k in float64, the very operations of the slow path
// (spatial/pull_back.py), so both round to the same voxel on an axis of any length. They are
// monotonic in k: along a run of output voxels the ends tell about everything between, and a
// binary search finds exactly where a run enters and leaves the volume.

// Output voxels of one run. A patch is rarely longer; what a run needs is 8 KiB, which stays in a
// level 1 cache.
constexpr int64_t RUN = 128;
// A vector loop may work on whole vectors behind the end of a run.
constexpr int64_t SPARE = 16;

// A coordinate this close to a voxel centre needs no neighbour (CENTRE_TOLERANCE there).
constexpr double CENTRE_TOLERANCE = 1e-6;
// How far beyond the last centre a coordinate still clamps to it before it is fill.
constexpr double REACH = 0.5 + CENTRE_TOLERANCE;

struct Axis {
  double row[4];   // row of the pull-back
  double first;    // voxels that count as volume, both ends included
  double last;
  double start;    // voxels at hand, both ends included
  double end;
  double stride;   // bytes; exact, being below 2^51
  int64_t step;    // the same, as an integer
  bool leaves;     // some coordinate of the output lies outside the volume
  bool single;     // one tap is enough: one voxel at hand, or only voxel centres are met
  bool reflects;   // and is folded back
};

struct Geometry {
  Axis axis[3];
  int64_t shape[3];  // of the output
  int lane;          // output axis of the runs
  double origin;     // byte offset of volume index (0, 0, 0), for all that is at hand
};

// A source coordinate along one run: c = ((slope * v + with) + then) + late, where v is the index
// along the lane. Whichever axis the lane is, these are the operations of the slow path.
struct Line {
  double slope;
  double with;
  double then;
  double late;

  inline double at(int64_t v) const { return ((slope * static_cast<double>(v) + with) + then) + late; }
};

// ``index`` is that of any voxel of the run.
inline Line line_of(const double* row, int lane, const int64_t* index) {
  const double i = row[0] * static_cast<double>(index[0]);
  const double j = row[1] * static_cast<double>(index[1]);
  const double k = row[2] * static_cast<double>(index[2]);
  switch (lane) {
    case 0: return Line{row[0], j, row[3], k};
    case 1: return Line{row[1], i, row[3], k};
    default: return Line{row[2], 0.0, 0.0, (i + j) + row[3]};
  }
}

inline void extremes(const double* row, const int64_t* shape, double* low, double* high) {
  double ends[3];
  for (int a = 0; a < 3; a++) ends[a] = row[a] * static_cast<double>(shape[a] - 1);
  const double i = least(ends[0], 0.0), j = least(ends[1], 0.0), k = least(ends[2], 0.0);
  *low = ((i + j) + row[3]) + k;
  const double u = most(ends[0], 0.0), v = most(ends[1], 0.0), w = most(ends[2], 0.0);
  *high = ((u + v) + row[3]) + w;
}

// The source axis along which memory is densest, of those with more than one voxel at hand.
inline int densest_axis(const Geometry& g) {
  int unit = 2;
  for (int a = 1; a >= 0; a--)
    if (g.axis[a].start < g.axis[a].end &&
        (g.axis[unit].start == g.axis[unit].end ||
         __builtin_fabs(g.axis[a].stride) < __builtin_fabs(g.axis[unit].stride)))
      unit = a;
  return unit;
}

// A run shorter than this is worth turning: one vector of eight is not filled.
constexpr int64_t SHORT = 8;

// Runs follow the source's memory: the voxels of one vector then share their cache lines.
inline int lane_of(const Geometry& g) {
  const double* row = g.axis[densest_axis(g)].row;
  int lane = 2, longest = 2;
  for (int n = 1; n >= 0; n--) {
    if (__builtin_fabs(row[n]) > __builtin_fabs(row[lane])) lane = n;
    if (g.shape[n] > g.shape[longest]) longest = n;
  }
  return g.shape[lane] < SHORT ? longest : lane;
}

inline Geometry geometry_of(const VoxpipeJob& job) {
  Geometry g;
  g.origin = 0;
  for (int a = 0; a < 3; a++) g.shape[a] = job.out_size[a];
  for (int a = 0; a < 3; a++) {
    Axis& axis = g.axis[a];
    double off = 0;
    for (int n = 0; n < 4; n++) {
      axis.row[n] = job.matrix[4 * a + n];
      const double away = __builtin_fabs(axis.row[n] - round_even(axis.row[n]));
      off += away * (n < 3 ? static_cast<double>(g.shape[n] - 1) : 1.0);
    }
    double low, high;
    extremes(axis.row, g.shape, &low, &high);
    axis.first = static_cast<double>(job.first[a]);
    axis.last = static_cast<double>(job.last[a]);
    axis.start = static_cast<double>(job.source_start[a]);
    axis.end = axis.start + static_cast<double>(job.source_size[a] - 1);
    axis.step = job.source_stride[a];
    axis.stride = static_cast<double>(axis.step);
    axis.leaves = low < axis.first || high > axis.last || job.control != 0;
    axis.single = axis.start == axis.end || (off <= CENTRE_TOLERANCE && job.control == 0);
    axis.reflects = axis.leaves && job.padding == VOXPIPE_REFLECTION;
    g.origin -= axis.start * axis.stride;
  }
  g.lane = lane_of(g);
  return g;
}

// Half-sample symmetric: the mirror stands on the outer face of the last voxel.
inline double fold(double c, double first, double last) {
  const double face = first - 0.5, length = last + 1.0 - first;
  double away = __builtin_fabs(c - face);
  if (away >= 2 * length) away = __builtin_fmod(away, 2 * length);
  return least(away, 2 * length - away) + face;
}

// The part of a run whose coordinates lie in low .. high; half open, in output indices.
struct Interval {
  int64_t begin;
  int64_t end;
};

template <class Inside>
inline int64_t first_where(int64_t begin, int64_t end, const Inside& inside) {
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    if (inside(middle)) end = middle; else begin = middle + 1;
  }
  return begin;
}

// As found: value(k) is monotonic. Where it falls, the two ends swap their roles.
template <class Value>
inline Interval narrow(Interval run, bool falls, double low, double high, const Value& value) {
  if (run.begin >= run.end) return run;
  const double a = value(run.begin), b = value(run.end - 1);
  if (least(a, b) >= low && most(a, b) <= high) return run;  // nearly always
  if (falls) {
    run.begin = first_where(run.begin, run.end, [&](int64_t k) { return value(k) <= high; });
    run.end = first_where(run.begin, run.end, [&](int64_t k) { return value(k) < low; });
  } else {
    run.begin = first_where(run.begin, run.end, [&](int64_t k) { return value(k) >= low; });
    run.end = first_where(run.begin, run.end, [&](int64_t k) { return value(k) > high; });
  }
  return run;
}
