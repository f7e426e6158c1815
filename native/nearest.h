// One tap per voxel: elements are moved as they are, or converted where the types differ.
#pragma once

#include "finish.h"

namespace VOXPIPE_PATH_NAME {

// Elements from anywhere side by side; ``at(v)`` is where one lies. It holds copies of what it needs:
// a store of bytes might change what it refers to.
template <class E, class At>
inline void pick_elements(const At& at, int64_t count, uint8_t* out) {
  for (int64_t v = 0; v < count; v++) put<E>(out + v * sizeof(E), load<E>(at(v)));
}

inline bool is_as_stored(const VoxpipeJob& job, const Finish& f) {
  return job.source_type == job.out_type && !f.scaled && !f.has_epilogue;
}

// Whether one tap per voxel can be converted by way of float32 without a difference.
inline bool is_narrow(const VoxpipeJob& job, const Finish& f) {
  const bool is_exact = size_of_type(job.source_type) <= 2 || job.source_type == VOXPIPE_F32;
  const bool is_enough = f.size <= 2 || job.out_type == VOXPIPE_F32;
  return is_exact && is_enough && !f.scaled;
}

// At most RUN stored elements side by side, as elements of the output that are not the same. Every
// stored type of at most 32 bits, and float64, is exact in float64.
inline void convert_row(const VoxpipeJob& job, const Finish& f, const uint8_t* elements,
                        int64_t count, uint8_t* out) {
  const auto convert = [&](auto w) {
    typedef VOXPIPE_TYPE(w) W;
    W values[RUN];
    with_stored(job.source_type, [&](auto s) {
      typedef VOXPIPE_TYPE(s) S;
      constexpr int64_t SIZE = sizeof(S);
      for (int64_t v = 0; v < count; v++) values[v] = load_value<S, W>(elements + v * SIZE);
    });
    finish<W>(f, values, nullptr, count, out, f.size);
  };
  is_narrow(job, f) ? convert(Tag<float>{}) : convert(Tag<double>{});
}

}  // namespace VOXPIPE_PATH_NAME
