// The C interface of the kernel: one call, one job, plain numbers.
//
// Every field has eight bytes, so the struct has no padding and no alignment to get wrong: the
// caller packs it with one format string (spatial/resampling/native.py). Strides are in bytes, may be
// negative, and need not be multiples of the element size. Axes are (i, j, k) throughout.
#pragma once

#include <stdint.h>

// Raised whenever a field is added, moved or changes its meaning.
#define VOXPIPE_ABI 2

#if defined(_WIN32)
#define VOXPIPE_PUBLIC extern "C" __declspec(dllexport)
#else
#define VOXPIPE_PUBLIC extern "C" __attribute__((visibility("default")))
#endif

// Types of stored and of output elements, native byte order.
enum VoxpipeType {
  VOXPIPE_U8 = 0,
  VOXPIPE_I8 = 1,
  VOXPIPE_U16 = 2,
  VOXPIPE_I16 = 3,
  VOXPIPE_U32 = 4,
  VOXPIPE_I32 = 5,
  VOXPIPE_U64 = 6,
  VOXPIPE_I64 = 7,
  VOXPIPE_F16 = 8,
  VOXPIPE_F32 = 9,
  VOXPIPE_F64 = 10,
  VOXPIPE_BF16 = 11,  // output only
  VOXPIPE_TYPES = 12
};

enum VoxpipeMode { VOXPIPE_COPY = 0, VOXPIPE_NEAREST = 1, VOXPIPE_LINEAR = 2, VOXPIPE_CUBIC = 3 };

enum VoxpipePadding {
  VOXPIPE_BORDER = 0,
  VOXPIPE_REFLECTION = 1,
  VOXPIPE_CONSTANT = 2,
  VOXPIPE_ZEROS = 3
};

// Code for one class of processors. A better one is never chosen where it cannot run.
enum VoxpipePath {
  VOXPIPE_BEST = 0,
  VOXPIPE_PORTABLE = 1,
  VOXPIPE_AVX2 = 2,
  VOXPIPE_AVX512 = 3
};

enum VoxpipeStatus {
  VOXPIPE_DONE = 0,
  VOXPIPE_UNSUPPORTED = 1,  // nothing was written: take the slow path
  VOXPIPE_BAD_JOB = 2,      // the caller has a bug
  VOXPIPE_NO_MEMORY = 3     // nothing was written
};

struct VoxpipeJob {
  int64_t abi;  // VOXPIPE_ABI
  int64_t path;
  int64_t mode;
  int64_t padding;

  int64_t source;  // address of voxel (0, 0, 0) of channel 0
  int64_t source_type;
  int64_t channels;
  int64_t source_channel_stride;
  int64_t source_size[3];  // voxels at hand, each at least 1
  int64_t source_stride[3];
  int64_t source_start[3];  // volume index of voxel (0, 0, 0)
  int64_t first[3];         // voxels that count as volume, in volume indices ...
  int64_t last[3];          // ... both ends included; the voxels at hand lie between them

  int64_t out;
  int64_t out_type;
  int64_t out_channel_stride;
  int64_t out_size[3];
  int64_t out_stride[3];

  double matrix[12];  // 3x4, output index to volume index; whole numbers if mode is COPY
  double slope;       // value = stored * slope + intercept
  double intercept;
  double fill;  // a value: after slope and intercept

  int64_t clips;  // address of clip_count x 15 doubles: 3x4 matrix, size
  int64_t clip_count;

  int64_t control;          // address of (3, a, b, c) doubles in C order, source voxels; or 0
  int64_t control_size[3];  // control points on each axis
  double control_matrix[12];  // 3x4, output index to index of the control grid

  // A second one, of the place that the first one leads to; only with a first one. Its points are
  // as those above, and its matrix leads from volume index to index of its grid.
  int64_t earlier;
  int64_t earlier_size[3];
  double earlier_matrix[12];

  int64_t has_epilogue;  // result = clamp(value * scale + shift, low, high), fill included
  double scale;
  double shift;
  double low;
  double high;
};

// Does the job; returns a VoxpipeStatus. Keeps no state: any number of threads may call it.
VOXPIPE_PUBLIC int64_t voxpipe_run(const VoxpipeJob* job);

// VOXPIPE_ABI of the library that was found.
VOXPIPE_PUBLIC int64_t voxpipe_abi(void);

// The best VoxpipePath that this processor runs.
VOXPIPE_PUBLIC int64_t voxpipe_best_path(void);
