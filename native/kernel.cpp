// The door of the library: check the job, choose the path for this processor.

#include "interface.h"

// What a path_*.cpp has, in a namespace of its own.
#define VOXPIPE_DECLARE(name)                       \
  namespace name {                                  \
  int64_t run(const VoxpipeJob& job, bool gathers); \
  int64_t change(const VoxpipeValues& job);         \
  }

VOXPIPE_DECLARE(voxpipe_portable)
#if defined(__x86_64__)
VOXPIPE_DECLARE(voxpipe_avx2)
VOXPIPE_DECLARE(voxpipe_avx512)
#endif

namespace {

struct Path {
  int64_t (*run)(const VoxpipeJob& job, bool gathers);
  int64_t (*change)(const VoxpipeValues& job);
  bool gathers;
};

// In the order of VoxpipePath.
const Path PATHS[] = {
    {voxpipe_portable::run, voxpipe_portable::change, false},
#if defined(__x86_64__)
    {voxpipe_avx2::run, voxpipe_avx2::change, false},
    {voxpipe_avx512::run, voxpipe_avx512::change, false},
    {voxpipe_avx512::run, voxpipe_avx512::change, true},
#endif
};

int64_t best_path() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    return __builtin_cpu_is("intel") ? VOXPIPE_AVX512_GATHER : VOXPIPE_AVX512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return VOXPIPE_AVX2;
#endif
  return VOXPIPE_PORTABLE;
}

const Path& path_of(int64_t asked) {
  const int64_t best = best_path();
  return PATHS[(asked == VOXPIPE_BEST || asked > best ? best : asked) - VOXPIPE_PORTABLE];
}

// Sizes, strides and indices beyond this are refused, so that no product below overflows and
// every offset is exact in float64.
constexpr int64_t MANY = int64_t{1} << 40;

// Coordinates beyond this are refused: below, sums of 2^-24 voxel are exact in float64.
constexpr double REMOTE = 67108864.0;

// Whether ``sizes`` elements ``strides`` apart span less than 2^50 bytes.
bool spans_little(const int64_t* sizes, const int64_t* strides) {
  double span = 0;
  for (int a = 0; a < 3; a++)
    span += static_cast<double>(sizes[a]) * __builtin_fabs(static_cast<double>(strides[a]));
  return span < 1125899906842624.0;
}

// Whether three numbers are not below ``low``, and not too many to count with.
bool can_count(const int64_t* three, int64_t low) {
  for (int a = 0; a < 3; a++)
    if (three[a] < low || three[a] > MANY) return false;
  return true;
}

bool is_consistent(const VoxpipeJob& job) {
  if (!can_count(job.source_size, 1) || !can_count(job.out_size, 1) ||
      !can_count(job.source_start, -MANY) || !can_count(job.first, -MANY) ||
      !can_count(job.last, -MANY))
    return false;
  for (int a = 0; a < 3; a++)
    if (job.source_start[a] < job.first[a] ||
        job.source_start[a] + job.source_size[a] - 1 > job.last[a])
      return false;
  return spans_little(job.source_size, job.source_stride) &&
         spans_little(job.source_start, job.source_stride) &&
         spans_little(job.out_size, job.out_stride);
}

// Whether every coordinate stays where its grains are counted exactly.
bool stays_near(const double* matrix, const int64_t* shape) {
  for (int a = 0; a < 3; a++) {
    double reach = __builtin_fabs(matrix[4 * a + 3]);
    for (int n = 0; n < 3; n++)
      reach += __builtin_fabs(matrix[4 * a + n]) * static_cast<double>(shape[n]);
    if (!(reach < REMOTE)) return false;
  }
  return true;
}

// Control points that are numbers, of which the padded copy is small; or none.
bool is_field(int64_t control, const int64_t* size, const double* matrix, const int64_t* shape) {
  if (!control) return true;
  if (!can_count(size, 1)) return false;
  double count = 1;
  for (int a = 0; a < 3; a++) count *= static_cast<double>(size[a] + 3);
  if (count > 67108864.0) return false;  // 4 GiB
  const double* points = reinterpret_cast<const double*>(control);
  const int64_t all = 3 * size[0] * size[1] * size[2];
  for (int64_t n = 0; n < all; n++)
    if (!(__builtin_fabs(points[n]) < REMOTE)) return false;
  return stays_near(matrix, shape);
}

bool stays_near(const VoxpipeJob& job) {
  const double* clips = reinterpret_cast<const double*>(job.clips);
  for (int64_t n = 0; n < job.clip_count; n++)
    if (!stays_near(clips + 15 * n, job.out_size)) return false;
  return stays_near(job.matrix, job.out_size) && (job.control || !job.earlier) &&
         is_field(job.control, job.control_size, job.control_matrix, job.out_size) &&
         is_field(job.earlier, job.earlier_size, job.earlier_matrix, job.source_size);
}

}  // namespace

int64_t voxpipe_abi(void) { return VOXPIPE_ABI; }

int64_t voxpipe_best_path(void) { return best_path(); }

int64_t voxpipe_run(const VoxpipeJob* job) {
  if (!is_consistent(*job) || !stays_near(*job)) return VOXPIPE_UNSUPPORTED;
  const Path& path = path_of(job->path);
  return path.run(*job, path.gathers);
}

int64_t voxpipe_values(const VoxpipeValues* job) {
  return path_of(job->path).change(*job);
}
