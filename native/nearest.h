// One tap per voxel: elements are moved as they are, or converted where the types differ.
#pragma once

#include "processor.h"
#include "geometry.h"
#include "finish.h"

namespace VOXPIPE_PATH_NAME {

template <class E, class O>
void pick_elements(const uint8_t* base, const O* offset, int64_t count, uint8_t* out,
                   int64_t stride) {
  if (stride == sizeof(E)) {
    for (int64_t v = 0; v < count; v++)
      put<E>(out + v * sizeof(E), load<E>(base + offset[v]));
  } else {
    for (int64_t v = 0; v < count; v++) put<E>(out + v * stride, load<E>(base + offset[v]));
  }
}

template <class O>
inline void pick_as_stored(int64_t size, const uint8_t* base, const O* offset, int64_t count,
                           uint8_t* out, int64_t stride) {
  switch (size) {
    case 1: pick_elements<uint8_t>(base, offset, count, out, stride); break;
    case 2: pick_elements<uint16_t>(base, offset, count, out, stride); break;
    case 4: pick_elements<uint32_t>(base, offset, count, out, stride); break;
    default: pick_elements<uint64_t>(base, offset, count, out, stride); break;
  }
}

// Where elements lie: at offsets, or evenly spaced.
template <class O> struct Scattered {
  const O* offset;
  inline int64_t at(int64_t v) const { return offset[v]; }
};
struct Even {
  int64_t step;
  inline int64_t at(int64_t v) const { return v * step; }
};
template <int64_t STEP> struct Fixed {
  inline int64_t at(int64_t v) const { return v * STEP; }
};

template <class S, class W, class Where>
inline void pick_type(const uint8_t* base, const Where& where, int64_t count, W* values) {
  for (int64_t v = 0; v < count; v++) values[v] = load_value<S, W>(base + where.at(v));
}

// Every stored type of at most 32 bits, and float64, is exact in float64.
template <class W, class O>
inline void pick_values(int64_t type, const uint8_t* base, const O* offset, int64_t count,
                        W* values) {
  switch (type) {
#define VOXPIPE_PICK(S) pick_type<S, W>(base, Scattered<O>{offset}, count, values)
    VOXPIPE_SOURCE_TYPES(VOXPIPE_PICK)
#undef VOXPIPE_PICK
    default: break;
  }
}

template <class W>
inline void pick_even(int64_t type, const uint8_t* base, int64_t step, int64_t count, W* values) {
  switch (type) {
#define VOXPIPE_PICK(S)                                                       \
  constexpr int64_t SIZE = sizeof(typename Memory<S>::type);                  \
  if (step == SIZE) pick_type<S, W>(base, Fixed<SIZE>{}, count, values);      \
  else if (step == -SIZE) pick_type<S, W>(base, Fixed<-SIZE>{}, count, values); \
  else pick_type<S, W>(base, Even{step}, count, values)
#define VOXPIPE_PICK_CASE(code, S) case code: { VOXPIPE_PICK(S); break; }
    VOXPIPE_PICK_CASE(VOXPIPE_U8, uint8_t)
    VOXPIPE_PICK_CASE(VOXPIPE_I8, int8_t)
    VOXPIPE_PICK_CASE(VOXPIPE_U16, uint16_t)
    VOXPIPE_PICK_CASE(VOXPIPE_I16, int16_t)
    VOXPIPE_PICK_CASE(VOXPIPE_U32, uint32_t)
    VOXPIPE_PICK_CASE(VOXPIPE_I32, int32_t)
    VOXPIPE_PICK_CASE(VOXPIPE_F16, HalfTag)
    VOXPIPE_PICK_CASE(VOXPIPE_F32, float)
    VOXPIPE_PICK_CASE(VOXPIPE_F64, double)
#undef VOXPIPE_PICK_CASE
#undef VOXPIPE_PICK
    default: break;
  }
}

// Whether one tap per voxel can be converted by way of float32 without a difference.
inline bool is_narrow(const VoxpipeJob& job, const Finish& f) {
  const bool is_exact = size_of_type(job.source_type) <= 2 || job.source_type == VOXPIPE_F32;
  const bool is_enough = f.size <= 2 || job.out_type == VOXPIPE_F32;
  return is_exact && is_enough && !f.scaled;
}

template <class O>
inline void nearest_run(const VoxpipeJob& job, const Finish& f, const uint8_t* base,
                        const O* offset, int64_t count, uint8_t* out, int64_t stride) {
  if (job.source_type == job.out_type && !f.scaled && !f.has_epilogue) {
    pick_as_stored(f.size, base, offset, count, out, stride);
  } else if (is_narrow(job, f)) {
    float values[RUN];
    pick_values<float>(job.source_type, base, offset, count, values);
    finish<float>(f, values, nullptr, count, out, stride);
  } else {
    double values[RUN];
    pick_values<double>(job.source_type, base, offset, count, values);
    finish<double>(f, values, nullptr, count, out, stride);
  }
}

// The same of evenly spaced voxels.
inline void even_run(const VoxpipeJob& job, const Finish& f, const uint8_t* base, int64_t step,
                     int64_t count, uint8_t* out, int64_t stride) {
  if (is_narrow(job, f)) {
    float values[RUN];
    pick_even<float>(job.source_type, base, step, count, values);
    finish<float>(f, values, nullptr, count, out, stride);
  } else {
    double values[RUN];
    pick_even<double>(job.source_type, base, step, count, values);
    finish<double>(f, values, nullptr, count, out, stride);
  }
}

template <class E>
inline void mirror_elements(const uint8_t* row, int64_t count, uint8_t* out) {
  constexpr int64_t SIZE = sizeof(E);
  for (int64_t v = 0; v < count; v++) put<E>(out + v * SIZE, load<E>(row - v * SIZE));
}

inline void mirror_row(int64_t size, const uint8_t* row, int64_t count, uint8_t* out) {
  switch (size) {
    case 1: mirror_elements<uint8_t>(row, count, out); break;
    case 2: mirror_elements<uint16_t>(row, count, out); break;
    case 4: mirror_elements<uint32_t>(row, count, out); break;
    default: mirror_elements<uint64_t>(row, count, out); break;
  }
}

}  // namespace VOXPIPE_PATH_NAME
