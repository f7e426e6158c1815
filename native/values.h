// The C interface of what is done to values in place: noise of voxels, filters along an axis, and
// coarser voxels along an axis.
//
// As in job.h every field has eight bytes, strides are in bytes, and axes are (i, j, k). The
// values are float32 of any strides. Callers pack the jobs in intensity/native.py.
#pragma once

#include <stdint.h>

#include "job.h"

// Raised whenever a field is added, moved or changes its meaning.
#define VOXPIPE_VALUES_ABI 2

enum VoxpipeNoiseKind { VOXPIPE_GAUSSIAN = 0, VOXPIPE_RICIAN = 1 };

struct VoxpipeNoise {
  int64_t abi;  // VOXPIPE_VALUES_ABI
  int64_t path;
  int64_t kind;
  int64_t values;  // address of voxel (0, 0, 0) of channel 0
  int64_t channels;
  int64_t channel_stride;
  int64_t size[3];
  int64_t stride[3];
  int64_t corner[3];  // lattice index of the first voxel, within 32 bits
  uint64_t key;
  double mean;
  double std;
};

struct VoxpipeFilter {
  int64_t abi;  // VOXPIPE_VALUES_ABI
  int64_t path;
  int64_t values;  // address of voxel (0, 0, 0) of channel 0
  int64_t channels;
  int64_t channel_stride;
  int64_t size[3];
  int64_t stride[3];
  int64_t axis;     // which of the three is filtered
  int64_t weights;  // address of radius + 1 floats: of the voxel itself, then of its neighbours
  int64_t radius;
};

struct VoxpipeCoarsen {
  int64_t abi;  // VOXPIPE_VALUES_ABI
  int64_t path;
  int64_t values;  // address of voxel (0, 0, 0) of channel 0
  int64_t channels;
  int64_t channel_stride;
  int64_t size[3];
  int64_t stride[3];
  int64_t axis;  // along which voxels become larger
  int64_t low;   // address of size[axis] int32: the voxel that is kept before each ...
  int64_t high;  // ... and the one after it, both within the axis
  int64_t part;  // address of size[axis] floats: how much of the way between them is gone
};

// All return a VoxpipeStatus, and keep no state: any number of threads may call them.
VOXPIPE_PUBLIC int64_t voxpipe_noise(const VoxpipeNoise* job);
VOXPIPE_PUBLIC int64_t voxpipe_filter(const VoxpipeFilter* job);
VOXPIPE_PUBLIC int64_t voxpipe_coarsen(const VoxpipeCoarsen* job);

// VOXPIPE_VALUES_ABI of the library that was found.
VOXPIPE_PUBLIC int64_t voxpipe_values_abi(void);
