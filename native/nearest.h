// One tap per voxel: elements are moved as they are, or converted where the types differ.

template <class E>
void pick_elements(const uint8_t* base, const int64_t* offset, int64_t count, uint8_t* out,
                   int64_t stride) {
  if (stride == sizeof(E)) {
    for (int64_t v = 0; v < count; v++)
      put<E>(out + v * sizeof(E), load<E>(base + offset[v]));
  } else {
    for (int64_t v = 0; v < count; v++) put<E>(out + v * stride, load<E>(base + offset[v]));
  }
}

inline void pick_as_stored(int64_t size, const uint8_t* base, const int64_t* offset, int64_t count,
                           uint8_t* out, int64_t stride) {
  switch (size) {
    case 1: pick_elements<uint8_t>(base, offset, count, out, stride); break;
    case 2: pick_elements<uint16_t>(base, offset, count, out, stride); break;
    case 4: pick_elements<uint32_t>(base, offset, count, out, stride); break;
    default: pick_elements<uint64_t>(base, offset, count, out, stride); break;
  }
}

template <class S>
inline void pick_type(const uint8_t* base, const int64_t* offset, int64_t count, double* values) {
  for (int64_t v = 0; v < count; v++) values[v] = load_value<S, double>(base + offset[v]);
}

// Every stored type of at most 32 bits, and float64, is exact in float64.
inline void pick_values(int64_t type, const uint8_t* base, const int64_t* offset, int64_t count,
                        double* values) {
  switch (type) {
#define VOXPIPE_PICK(S) pick_type<S>(base, offset, count, values)
    VOXPIPE_SOURCE_TYPES(VOXPIPE_PICK)
#undef VOXPIPE_PICK
    default: break;
  }
}

inline void nearest_run(const VoxpipeJob& job, const Finish& f, const uint8_t* base,
                        const int64_t* offset, int64_t count, uint8_t* out, int64_t stride) {
  if (job.source_type == job.out_type && !f.scaled && !f.has_epilogue) {
    pick_as_stored(f.size, base, offset, count, out, stride);
    return;
  }
  double values[RUN];
  pick_values(job.source_type, base, offset, count, values);
  finish<double>(f, values, nullptr, count, out, stride);
}
