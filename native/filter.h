// A symmetric filter along each axis; beyond its ends the outermost voxels go on.
//
// intensity/filters.py adds in the same order in float32, so both give the same bits.
#pragma once

#include "processor.h"
#include "numbers.h"

namespace VOXPIPE_PATH_NAME {

constexpr int64_t FILTER_LANES = 32;  // sums that stay in registers

inline float* copy_floats(const float* values, int64_t count, float* out) {
  memcpy(out, values, static_cast<size_t>(count) * sizeof(float));
  return out;
}

inline float* floats_in_memory(int64_t count) {
  return static_cast<float*>(malloc(static_cast<size_t>(count) * sizeof(float)));
}

// ``N`` sums at once, of what lies ``place(t)`` from ``from``, to both sides.
template <int64_t N, int64_t R, class Place>
inline void filter_some(const float* from, const Place& place, const float* weights,
                        int64_t any_radius, float* out) {
  const int64_t radius = R ? R : any_radius;
  const float* middle = from + place(0);
  float sum[N];
  for (int64_t l = 0; l < N; l++) sum[l] = weights[0] * middle[l];
  for (int64_t t = 1; t <= radius; t++) {
    const float *before = from + place(-t), *after = from + place(t), w = weights[t];
    for (int64_t l = 0; l < N; l++) sum[l] += w * (before[l] + after[l]);
  }
  for (int64_t l = 0; l < N; l++) out[l] = sum[l];
}

template <int64_t R, class Place>
inline void filter_all(const float* from, const Place& place, const float* weights,
                       int64_t radius, int64_t count, float* out) {
  int64_t v = 0;
  for (; v + FILTER_LANES <= count; v += FILTER_LANES)
    filter_some<FILTER_LANES, R>(from + v, place, weights, radius, out + v);
  for (; v + 8 <= count; v += 8) filter_some<8, 0>(from + v, place, weights, radius, out + v);
  for (; v < count; v++) filter_some<1, 0>(from + v, place, weights, radius, out + v);
}

// Along one axis of a step; one that it leaves alone is copied.
template <class Place>
inline void filtered(const VoxpipeStep& step, int axis, const float* from, const Place& place,
                     int64_t count, float* out) {
  const float* weights = reinterpret_cast<const float*>(step.weights[axis]);
  const int64_t radius = step.radius[axis];
  switch (radius) {
    case 0: copy_floats(from + place(0), count, out); return;
    case 1: return filter_all<1>(from, place, weights, radius, count, out);
    case 2: return filter_all<2>(from, place, weights, radius, count, out);
    case 3: return filter_all<3>(from, place, weights, radius, count, out);
    case 4: return filter_all<4>(from, place, weights, radius, count, out);
    default: return filter_all<0>(from, place, weights, radius, count, out);
  }
}

// Makes planes one after another, of those that lie around them and stay in the cache meanwhile.
struct FilterPlanes {
  const VoxpipeStep* step;
  const int64_t* size;
  float *ring, *sheet, *rows;
  int64_t* places;  // where in the ring the planes around one lie
  int64_t loaded, pitch, window;  // how many planes the ring holds

  // Returns memory that is to be freed; null where there is none.
  void* begin(const VoxpipeStep& s, const int64_t* shape) {
    step = &s;
    size = shape;
    pitch = size[2] + 2 * s.radius[2];
    window = least<int64_t>(2 * s.radius[0] + 1, size[0]);
    const int64_t sheets = size[2] * (size[1] * (window + 1) + 2 * s.radius[1]);
    float* memory = floats_in_memory(2 * (2 * s.radius[0] + 1) + sheets + size[1] * pitch);
    if (!memory) return nullptr;
    places = reinterpret_cast<int64_t*>(memory) + s.radius[0];
    ring = memory + 2 * (2 * s.radius[0] + 1);
    sheet = ring + size[2] * (size[1] * window + s.radius[1]);
    rows = sheet + size[2] * (size[1] + s.radius[1]) + s.radius[2];
    loaded = 0;
    return memory;
  }

  // Plane ``i`` into ``out``; ``load(plane, to)`` fetches one.
  template <class Load>
  void make(int64_t i, const Load& load, float* out) {
    const int64_t *radius = step->radius, width = size[2], plane = size[1] * width;
    for (; loaded < size[0] && loaded <= i + radius[0]; loaded++)
      load(loaded, ring + loaded % window * plane);
    for (int64_t t = -radius[0]; t <= radius[0]; t++)
      places[t] = most<int64_t>(0, least(size[0] - 1, i + t)) % window * plane;
    filtered(*step, 0, ring, [&](int64_t t) { return places[t]; }, plane, sheet);
    for (int64_t t = 1; t <= radius[1]; t++) {
      copy_floats(sheet, width, sheet - t * width);
      copy_floats(sheet + plane - width, width, sheet + plane + (t - 1) * width);
    }
    for (int64_t j = 0; j < size[1]; j++) {
      float* row = rows + j * pitch;
      filtered(*step, 1, sheet + j * width, [&](int64_t t) { return t * width; }, width, row);
      for (int64_t t = 1; t <= radius[2]; t++) {
        row[-t] = row[0];
        row[width - 1 + t] = row[width - 1];
      }
    }
    // After all rows are there: a load across two stores waits until both have left the processor.
    for (int64_t j = 0; j < size[1]; j++)
      filtered(*step, 2, rows + j * pitch, [](int64_t t) { return t; }, width, out + j * width);
  }
};

}  // namespace VOXPIPE_PATH_NAME
