// From working values to output elements: slope and intercept, fade, epilogue, conversion.
#pragma once

#include "processor.h"
#include "numbers.h"
#include "vectors.h"

namespace VOXPIPE_PATH_NAME {

struct Finish {
  bool scaled;
  double slope;
  double intercept;
  bool has_epilogue;
  double scale;
  double shift;
  double low;
  double high;
  int64_t type;
  int64_t size;
  uint8_t fill[8];  // the element that stands for the fill ...
  uint8_t zero[8];  // ... and for nothing, under padding "zeros"
};

template <class W>
inline void in_range(const Finish& f, W* values, int64_t count) {
  const W scale = static_cast<W>(f.scale), shift = static_cast<W>(f.shift);
  const W low = static_cast<W>(f.low), high = static_cast<W>(f.high);
  for (int64_t v = 0; v < count; v++) {
    const W value = values[v] * scale + shift;
    values[v] = value < low ? low : (value > high ? high : value);  // NaN stays NaN
  }
}

template <class D, class W>
void put_row(const W* values, int64_t count, uint8_t* out, int64_t stride) {
  typedef typename Memory<D>::type Element;
  if (stride == sizeof(Element)) {
    for (int64_t v = 0; v < count; v++)
      put<Element>(out + v * sizeof(Element), Result<D>::of(values[v]));
  } else {
    for (int64_t v = 0; v < count; v++) put<Element>(out + v * stride, Result<D>::of(values[v]));
  }
}

template <class W>
inline void put_values(int64_t type, const W* values, int64_t count, uint8_t* out,
                       int64_t stride) {
  with_type(type, [&](auto d) { put_row<VOXPIPE_TYPE(d), W>(values, count, out, stride); });
}

template <class W>
inline void scale(const Finish& f, W* values, int64_t count) {
  const W slope = static_cast<W>(f.slope), intercept = static_cast<W>(f.intercept);
  for (int64_t v = 0; v < count; v++) values[v] = values[v] * slope + intercept;
}

// ``values`` may be changed; ``fade`` may be null.
template <class W>
inline void finish(const Finish& f, W* values, const double* fade, int64_t count, uint8_t* out,
                   int64_t stride) {
  if (f.scaled) scale(f, values, count);
  if (fade)
    for (int64_t v = 0; v < count; v++)
      values[v] = fade[v] == 0 ? 0 : static_cast<W>(static_cast<double>(values[v]) * fade[v]);
  if (f.has_epilogue) in_range(f, values, count);
  put_values<W>(f.type, values, count, out, stride);
}

// The same of one vector: slope, intercept and epilogue.
inline Floats finish_vector(const Finish& f, Floats values) {
  if (f.scaled) values = values * static_cast<float>(f.slope) + static_cast<float>(f.intercept);
  if (!f.has_epilogue) return values;
  values = values * static_cast<float>(f.scale) + static_cast<float>(f.shift);
  const Floats low = all_of(static_cast<float>(f.low)), high = all_of(static_cast<float>(f.high));
  return values < low ? low : (values > high ? high : values);  // NaN stays NaN
}

inline Finish finish_of(const VoxpipeJob& job) {
  Finish f;
  f.slope = job.slope;
  f.intercept = job.intercept;
  f.scaled = job.slope != 1.0 || job.intercept != 0.0;
  f.has_epilogue = job.has_epilogue != 0;
  f.scale = job.scale;
  f.shift = job.shift;
  f.low = job.low;
  f.high = job.high;
  f.type = job.out_type;
  f.size = size_of_type(job.out_type);
  double both[2] = {job.fill, 0.0};
  if (f.has_epilogue) in_range(f, both, 2);
  put_values<double>(f.type, both, 1, f.fill, f.size);
  put_values<double>(f.type, both + 1, 1, f.zero, f.size);
  return f;
}

template <class E>
inline void repeat(const uint8_t* element, int64_t count, uint8_t* out, int64_t stride) {
  const E value = load<E>(element);
  if (stride == sizeof(E)) {
    for (int64_t v = 0; v < count; v++) put<E>(out + v * sizeof(E), value);
  } else {
    for (int64_t v = 0; v < count; v++) put<E>(out + v * stride, value);
  }
}

inline void fill_row(const uint8_t* element, int64_t size, int64_t count, uint8_t* out,
                     int64_t stride) {
  with_size(size, [&](auto e) { repeat<VOXPIPE_TYPE(e)>(element, count, out, stride); });
}

}  // namespace VOXPIPE_PATH_NAME
