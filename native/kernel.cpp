// The door of the library: check the job, choose the path for this processor.

#include "job.h"
#include "values.h"

namespace voxpipe_portable {
int64_t run(const VoxpipeJob& job);
int64_t change(const VoxpipeValues& job);
}
#if defined(__x86_64__)
namespace voxpipe_avx2 {
int64_t run(const VoxpipeJob& job);
int64_t change(const VoxpipeValues& job);
}
namespace voxpipe_avx512 {
int64_t run(const VoxpipeJob& job);
int64_t change(const VoxpipeValues& job);
}
#endif

namespace {

int64_t best_path() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    return VOXPIPE_AVX512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return VOXPIPE_AVX2;
#endif
  return VOXPIPE_PORTABLE;
}

bool is_between(int64_t value, int64_t low, int64_t high) { return low <= value && value <= high; }

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

bool is_known(const VoxpipeJob& job) {
  return is_between(job.mode, VOXPIPE_COPY, VOXPIPE_CUBIC) &&
         is_between(job.padding, VOXPIPE_BORDER, VOXPIPE_ZEROS) &&
         is_between(job.source_type, 0, VOXPIPE_F64) &&
         is_between(job.out_type, 0, VOXPIPE_TYPES - 1) && job.source && job.out &&
         job.channels >= 1 && is_between(job.clip_count, 0, MANY) &&
         (job.clip_count == 0 || job.clips);
}

bool is_consistent(const VoxpipeJob& job) {
  for (int a = 0; a < 3; a++) {
    if (!is_between(job.source_size[a], 1, MANY) || !is_between(job.out_size[a], 1, MANY)) return false;
    if (!is_between(job.source_start[a], -MANY, MANY) || !is_between(job.first[a], -MANY, MANY) ||
        !is_between(job.last[a], -MANY, MANY))
      return false;
    if (job.source_start[a] < job.first[a] ||
        job.source_start[a] + job.source_size[a] - 1 > job.last[a])
      return false;
    if (job.control && !is_between(job.control_size[a], 1, MANY)) return false;
    if (job.earlier && !is_between(job.earlier_size[a], 1, MANY)) return false;
  }
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

// Control points that are numbers, of which the padded copy is small.
bool is_field(int64_t control, const int64_t* size, const double* matrix, const int64_t* shape) {
  if (!control) return true;
  double count = 1;
  for (int a = 0; a < 3; a++) count *= static_cast<double>(size[a] + 3);
  if (count > 67108864.0) return false;  // 4 GiB
  const double* points = reinterpret_cast<const double*>(control);
  const int64_t all = 3 * size[0] * size[1] * size[2];
  for (int64_t n = 0; n < all; n++)
    if (!(__builtin_fabs(points[n]) < REMOTE)) return false;
  return stays_near(matrix, shape);
}

bool has_fields(const VoxpipeJob& job) {
  if (job.earlier && !job.control) return false;
  return is_field(job.control, job.control_size, job.control_matrix, job.out_size) &&
         is_field(job.earlier, job.earlier_size, job.earlier_matrix, job.source_size);
}

// Whether an array of values is one that can be gone through, and every step is known.
bool can_change(const VoxpipeValues& job) {
  if (!job.values || !job.steps || !is_between(job.channels, 1, MANY) ||
      !is_between(job.count, 0, VOXPIPE_MOST_STEPS))
    return false;
  for (int a = 0; a < 3; a++)
    if (!is_between(job.size[a], 1, MANY)) return false;
  const VoxpipeStep* steps = reinterpret_cast<const VoxpipeStep*>(job.steps);
  for (int64_t n = 0; n < job.count; n++) {
    const VoxpipeStep& step = steps[n];
    if (!is_between(step.kind, VOXPIPE_SCALE, VOXPIPE_COARSEN)) return false;
    for (int a = 0; a < 3; a++) {
      if (step.kind == VOXPIPE_FILTER && (!is_between(step.radius[a], 0, MANY) || !step.weights[a]))
        return false;
      if (step.kind == VOXPIPE_COARSEN && !(step.number[a] >= 1)) return false;
    }
  }
  return true;
}

// Whether its lattices can be counted with: NumPy takes those that are larger.
bool has_near_lattices(const VoxpipeValues& job) {
  const VoxpipeStep* steps = reinterpret_cast<const VoxpipeStep*>(job.steps);
  for (int64_t n = 0; n < job.count; n++)
    for (int a = 0; a < 3; a++) {
      if (steps[n].kind == VOXPIPE_COARSEN && !(steps[n].number[a] < REMOTE)) return false;
      if (!is_between(steps[n].corner[a], INT32_MIN, UINT32_MAX)) return false;
    }
  return true;
}

int64_t path_of(int64_t asked) {
  const int64_t best = best_path();
  return asked == VOXPIPE_BEST || asked > best ? best : asked;
}

}  // namespace

int64_t voxpipe_values_abi(void) { return VOXPIPE_VALUES_ABI; }

int64_t voxpipe_values(const VoxpipeValues* job) {
  if (!job || job->abi != VOXPIPE_VALUES_ABI || !can_change(*job)) return VOXPIPE_BAD_JOB;
  if (!has_near_lattices(*job)) return VOXPIPE_UNSUPPORTED;
#if defined(__x86_64__)
  if (path_of(job->path) == VOXPIPE_AVX512) return voxpipe_avx512::change(*job);
  if (path_of(job->path) == VOXPIPE_AVX2) return voxpipe_avx2::change(*job);
#endif
  return voxpipe_portable::change(*job);
}

int64_t voxpipe_abi(void) { return VOXPIPE_ABI; }

int64_t voxpipe_best_path(void) { return best_path(); }

int64_t voxpipe_run(const VoxpipeJob* job) {
  if (!job || job->abi != VOXPIPE_ABI || !is_known(*job)) return VOXPIPE_BAD_JOB;
  if (!is_consistent(*job)) return VOXPIPE_UNSUPPORTED;
  if (!stays_near(job->matrix, job->out_size)) return VOXPIPE_UNSUPPORTED;
  if (!has_fields(*job)) return VOXPIPE_UNSUPPORTED;
  const double* clips = reinterpret_cast<const double*>(job->clips);
  for (int64_t n = 0; n < job->clip_count; n++)
    if (!stays_near(clips + 15 * n, job->out_size)) return VOXPIPE_UNSUPPORTED;
#if defined(__x86_64__)
  const int64_t path = path_of(job->path);
  if (path == VOXPIPE_AVX512) return voxpipe_avx512::run(*job);
  if (path == VOXPIPE_AVX2) return voxpipe_avx2::run(*job);
#endif
  return voxpipe_portable::run(*job);
}
