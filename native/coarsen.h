// Lines between the voxels of one axis that are kept, in place: as if the others had never been.
//
// intensity/filters.py takes the same steps in float32, so both give the same bits.
#pragma once

#include "processor.h"
#include "linear.h"
#include "filter.h"

namespace VOXPIPE_PATH_NAME {

// ``count`` values between two rows, the same part of the way for all.
inline void between_rows(const float* low, const float* high, float part, int64_t count,
                         float* out) {
  for (int64_t v = 0; v < count; v++) {
    const float rise = (high[v] - low[v]) * part;
    out[v] = low[v] + rise;
  }
  if (part == 0 && any_nan(out, count))  // a voxel that is kept is what it is, beside infinity too
    for (int64_t v = 0; v < count; v++) out[v] = out[v] == out[v] ? out[v] : low[v];
}

// Along k: each place has its own two neighbours in the row.
inline void coarsen_rows(const VoxpipeCoarsen& job, uint8_t* plane, const int32_t* low,
                         const int32_t* high, const float* part, float* memory) {
  const int64_t count = job.size[2];
  float *row = memory, *out = memory + count;
  for (int64_t j = 0; j < job.size[1]; j++) {
    uint8_t* at = plane + j * job.stride[1];
    fetch_row(at, job.stride[2], count, row);
    for (int64_t v = 0; v < count; v++) {
      const float first = row[low[v]], rise = (row[high[v]] - first) * part[v];
      out[v] = first + rise;
    }
    if (any_nan(out, count))
      for (int64_t v = 0; v < count; v++) {
        const float first = row[low[v]];
        out[v] = (out[v] == out[v]) | (part[v] != 0) ? out[v] : first;
      }
    store_row(out, count, at, job.stride[2]);
  }
}

// Across rows: every row of a sheet lies between two others.
inline void coarsen_sheet(const VoxpipeCoarsen& job, uint8_t* sheet, const int32_t* low,
                          const int32_t* high, const float* part, float* memory) {
  const int64_t count = job.size[2], length = job.size[job.axis];
  const int64_t stride = job.stride[job.axis];
  float *rows = memory, *out = memory + length * count;
  for (int64_t n = 0; n < length; n++)
    fetch_row(sheet + n * stride, job.stride[2], count, rows + n * count);
  for (int64_t n = 0; n < length; n++) {
    between_rows(rows + low[n] * count, rows + high[n] * count, part[n], count, out);
    store_row(out, count, sheet + n * stride, job.stride[2]);
  }
}

int64_t coarsen(const VoxpipeCoarsen& job) {
  const int64_t length = job.size[job.axis], width = job.axis == 2 ? 1 : job.size[2];
  const int64_t floats = length * width + job.size[2];
  float* memory = static_cast<float*>(malloc(static_cast<size_t>(floats) * sizeof(float)));
  if (!memory) return VOXPIPE_NO_MEMORY;
  const int32_t* low = reinterpret_cast<const int32_t*>(job.low);
  const int32_t* high = reinterpret_cast<const int32_t*>(job.high);
  const float* part = reinterpret_cast<const float*>(job.part);
  const int across = job.axis == 0 ? 1 : 0;
  for (int64_t c = 0; c < job.channels; c++) {
    uint8_t* channel = reinterpret_cast<uint8_t*>(job.values) + c * job.channel_stride;
    for (int64_t n = 0; n < job.size[across]; n++) {
      uint8_t* at = channel + n * job.stride[across];
      if (job.axis == 2) coarsen_rows(job, at, low, high, part, memory);
      else coarsen_sheet(job, at, low, high, part, memory);
    }
  }
  free(memory);
  return VOXPIPE_DONE;
}

}  // namespace VOXPIPE_PATH_NAME
