// A symmetric filter along one axis, in place; beyond its ends the outermost voxels go on.
//
// intensity/filters.py adds in the same order in float32, so both give the same bits.
#pragma once

#include "processor.h"
#include "numbers.h"

namespace VOXPIPE_PATH_NAME {

constexpr int64_t FILTER_LANES = 32;  // sums that stay in registers

// Sums for ``count`` places: ``middle + t * step`` and ``middle - t * step`` are the neighbours.
inline void filtered(const float* middle, int64_t step, const float* weights, int64_t radius,
                     int64_t count, float* out) {
  int64_t v = 0;
  for (; v + FILTER_LANES <= count; v += FILTER_LANES) {
    float sum[FILTER_LANES];
    for (int64_t l = 0; l < FILTER_LANES; l++) sum[l] = weights[0] * middle[v + l];
    for (int64_t t = 1; t <= radius; t++) {
      const float *before = middle + v - t * step, *after = middle + v + t * step, w = weights[t];
      for (int64_t l = 0; l < FILTER_LANES; l++) sum[l] += w * (before[l] + after[l]);
    }
    for (int64_t l = 0; l < FILTER_LANES; l++) out[v + l] = sum[l];
  }
  for (; v < count; v++) {
    float sum = weights[0] * middle[v];
    for (int64_t t = 1; t <= radius; t++)
      sum += weights[t] * (middle[v - t * step] + middle[v + t * step]);
    out[v] = sum;
  }
}

inline void fetch_row(const uint8_t* from, int64_t stride, int64_t count, float* to) {
  if (stride == sizeof(float)) memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
  else
    for (int64_t v = 0; v < count; v++) to[v] = load<float>(from + v * stride);
}

inline void store_row(const float* from, int64_t count, uint8_t* to, int64_t stride) {
  if (stride == sizeof(float)) memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
  else
    for (int64_t v = 0; v < count; v++) put<float>(to + v * stride, from[v]);
}

// Along k: each row, lengthened at both ends, is its own neighbours.
inline void filter_rows(const VoxpipeFilter& job, uint8_t* plane, float* memory) {
  const int64_t count = job.size[2], radius = job.radius;
  float *row = memory + radius, *out = memory + count + 2 * radius;
  for (int64_t j = 0; j < job.size[1]; j++) {
    uint8_t* at = plane + j * job.stride[1];
    fetch_row(at, job.stride[2], count, row);
    for (int64_t t = 1; t <= radius; t++) {
      row[-t] = row[0];
      row[count - 1 + t] = row[count - 1];
    }
    filtered(row, 1, reinterpret_cast<const float*>(job.weights), radius, count, out);
    store_row(out, count, at, job.stride[2]);
  }
}

// Across rows: a sheet of them, lengthened at both ends, is filtered row by row.
inline void filter_sheet(const VoxpipeFilter& job, uint8_t* sheet, float* memory) {
  const int64_t count = job.size[2], radius = job.radius, length = job.size[job.axis];
  const int64_t stride = job.stride[job.axis];
  float *rows = memory + radius * count, *out = memory + (length + 2 * radius) * count;
  for (int64_t n = 0; n < length; n++)
    fetch_row(sheet + n * stride, job.stride[2], count, rows + n * count);
  const size_t size = static_cast<size_t>(count) * sizeof(float);
  for (int64_t t = 1; t <= radius; t++) {
    memcpy(rows - t * count, rows, size);
    memcpy(rows + (length - 1 + t) * count, rows + (length - 1) * count, size);
  }
  const float* weights = reinterpret_cast<const float*>(job.weights);
  for (int64_t n = 0; n < length; n++) {
    filtered(rows + n * count, count, weights, radius, count, out);
    store_row(out, count, sheet + n * stride, job.stride[2]);
  }
}

int64_t filter(const VoxpipeFilter& job) {
  const int64_t length = job.size[job.axis], width = job.axis == 2 ? 1 : job.size[2];
  const int64_t floats = (length + 2 * job.radius) * width + job.size[2];
  float* memory = static_cast<float*>(malloc(static_cast<size_t>(floats) * sizeof(float)));
  if (!memory) return VOXPIPE_NO_MEMORY;
  const int across = job.axis == 0 ? 1 : 0;  // sheets of rows lie side by side on this axis
  for (int64_t c = 0; c < job.channels; c++) {
    uint8_t* channel = reinterpret_cast<uint8_t*>(job.values) + c * job.channel_stride;
    for (int64_t n = 0; n < job.size[across]; n++) {
      uint8_t* at = channel + n * job.stride[across];
      if (job.axis == 2) filter_rows(job, at, memory);
      else filter_sheet(job, at, memory);
    }
  }
  free(memory);
  return VOXPIPE_DONE;
}

}  // namespace VOXPIPE_PATH_NAME
