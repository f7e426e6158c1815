// From working values to output elements: slope and intercept, fade, epilogue, conversion.
#pragma once

#include "processor.h"
#include "numbers.h"
#include "vectors.h"

namespace VOXPIPE_PATH_NAME {

struct Finish {
  bool scaled, has_epilogue;
  double slope, intercept;
  double scale, shift, low, high;  // the epilogue
  int64_t type, size;
  uint8_t fill[8];  // the element that stands for the fill ...
  uint8_t zero[8];  // ... and for nothing, under padding "zeros"
};

// A number, or a vector of them, on a scale and between two ends; NaN stays NaN.
template <class W, class V>
VOXPIPE_INLINE V in_range(V value, W scale, W shift, V low, V high) {
  value = value * scale + shift;
  value = value < low ? low : value;  // one instruction each
  return value > high ? high : value;
}

// Elements ``stride`` bytes apart, of which value(n) is one.
template <class E, class Value>
inline void put_elements(uint8_t* out, int64_t stride, int64_t count, const Value& value) {
  constexpr int64_t SIZE = sizeof(E);
  if (stride == SIZE) for (int64_t n = 0; n < count; n++) put<E>(out + n * SIZE, value(n));
  else for (int64_t n = 0; n < count; n++) put<E>(out + n * stride, value(n));
}

// Never inlined: within a larger function compilers make worse vectors of it.
template <class D, class W>
__attribute__((noinline)) void put_row(const W* values, int64_t count, uint8_t* out, int64_t stride) {
  put_elements<D>(out, stride, count, [=](int64_t n) { return result_of<D>(values[n]); });
}

template <class W>
inline void put_values(int64_t type, const W* values, int64_t count, uint8_t* out, int64_t stride) {
  with_type(type, [&](auto d) { put_row<VOXPIPE_TYPE(d), W>(values, count, out, stride); });
}

inline void fill_row(const uint8_t* element, int64_t size, int64_t count, uint8_t* out,
                     int64_t stride) {
  with_size(size, [&](auto e) {
    typedef VOXPIPE_TYPE(e) E;
    put_elements<E>(out, stride, count, [value = load<E>(element)](int64_t) { return value; });
  });
}

// ``values`` may be changed; ``fade`` may be null.
template <class W>
inline void finish(const Finish& f, W* values, const double* fade, int64_t count, uint8_t* out,
                   int64_t stride) {
  const W slope = static_cast<W>(f.slope), intercept = static_cast<W>(f.intercept);
  const W scale = static_cast<W>(f.scale), shift = static_cast<W>(f.shift);
  const W low = static_cast<W>(f.low), high = static_cast<W>(f.high);
  for (int64_t v = 0; f.scaled && v < count; v++) values[v] = values[v] * slope + intercept;
  for (int64_t v = 0; fade && v < count; v++)
    values[v] = fade[v] == 0 ? 0 : static_cast<W>(static_cast<double>(values[v]) * fade[v]);
  for (int64_t v = 0; f.has_epilogue && v < count; v++)
    values[v] = in_range<W>(values[v], scale, shift, low, high);
  put_values<W>(f.type, values, count, out, stride);
}

// The same of one vector: slope, intercept and epilogue.
inline Floats finish_vector(const Finish& f, Floats values) {
  if (f.scaled) values = values * static_cast<float>(f.slope) + static_cast<float>(f.intercept);
  if (!f.has_epilogue) return values;
  return in_range<float>(values, static_cast<float>(f.scale), static_cast<float>(f.shift),
                         all_of(static_cast<float>(f.low)), all_of(static_cast<float>(f.high)));
}

inline Finish finish_of(const VoxpipeJob& job) {
  Finish f{job.slope != 1.0 || job.intercept != 0.0, job.has_epilogue != 0, job.slope, job.intercept,
           job.scale, job.shift, job.low, job.high, job.out_type, size_of_type(job.out_type), {}, {}};
  const double fill = f.has_epilogue ? in_range(job.fill, f.scale, f.shift, f.low, f.high) : job.fill;
  const double zero = f.has_epilogue ? in_range(0.0, f.scale, f.shift, f.low, f.high) : 0.0;
  put_values<double>(f.type, &fill, 1, f.fill, f.size);
  put_values<double>(f.type, &zero, 1, f.zero, f.size);
  return f;
}

}  // namespace VOXPIPE_PATH_NAME
