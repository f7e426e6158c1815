// The whole kernel, once per class of processors: a path_*.cpp sets VOXPIPE_PATH_NAME, LANES and the
// instruction set, and includes this.
#pragma once

#include "copy.h"
#include "steps.h"

namespace VOXPIPE_PATH_NAME {

inline bool is_wide(const VoxpipeJob& job) {  // as real_type in spatial/resampling/interpolate.py
  return job.source_type == VOXPIPE_F64 || job.out_type == VOXPIPE_F64 ||
         (job.out_type >= VOXPIPE_U32 && job.out_type <= VOXPIPE_I64);
}

// Whether stored elements can be worked with: 64-bit integers are moved, never calculated with.
inline bool is_supported(const VoxpipeJob& job) {
  const bool is_long = job.source_type == VOXPIPE_U64 || job.source_type == VOXPIPE_I64;
  const bool moves = job.mode == VOXPIPE_COPY || job.mode == VOXPIPE_NEAREST;
  if (is_long && (!moves || job.out_type != job.source_type || job.has_epilogue ||
                  job.slope != 1.0 || job.intercept != 0.0))
    return false;
  if (job.clip_count > MAX_CLIPS) return false;
  int source[3];
  return job.mode != VOXPIPE_COPY || (!job.control && keeps_apart(job, source));
}

int64_t run(const VoxpipeJob& job, bool gathers) {
  if (!is_supported(job)) return VOXPIPE_UNSUPPORTED;
  Work w{&job, geometry_of(job), limits_of(job), finish_of(job), job.padding == VOXPIPE_ZEROS,
         is_wide(job), gathers, {}, {}, {}};
  if (!control_of(job.control, job.control_size, job.control_matrix, w.g.lane, w.control) ||
      !control_of(job.earlier, job.earlier_size, job.earlier_matrix, -1, w.earlier))
    return VOXPIPE_NO_MEMORY;
  // What a field has in the middle moves the whole volume; what is left reaches to both sides. Such
  // moves are counted in 32 bits, beside the coordinates of a tile, which may be too few.
  const Control* const fields[2] = {&w.control, &w.earlier};
  for (int a = 0; a < 3; a++) {
    for (const Control* field : fields) {
      w.g.axis[a].row[3] += field->middle[a];
      w.reach[a] += field->reach[a];
    }
    if (2 * w.reach[a] > MOST_GRAINS - 2) return VOXPIPE_UNSUPPORTED;
  }
  int source[3];
  const bool copies = job.mode == VOXPIPE_COPY || job.mode == VOXPIPE_NEAREST;
  if (copies && keeps_apart(job, source)) {
    const int64_t indices = job.out_size[0] + job.out_size[1] + job.out_size[2];
    int64_t* memory = static_cast<int64_t*>(malloc(static_cast<size_t>(indices) * sizeof(int64_t)));
    if (!memory) return VOXPIPE_NO_MEMORY;
    copy_all(w, tables_of(job, w.g, source, memory));
    free(memory);
    return VOXPIPE_DONE;
  }
  return sample_map(w) ? VOXPIPE_DONE : VOXPIPE_NO_MEMORY;
}

}  // namespace
