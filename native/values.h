// The C interface of what is done to values in place: one call for all steps of a patch.
//
// As in job.h every field has eight bytes, strides are in bytes, and axes are (i, j, k). The
// values are float32 of any strides. Callers pack job and steps in intensity/native.py.
#pragma once

#include <stdint.h>

#include "job.h"

// Raised whenever a field is added, moved or changes its meaning.
#define VOXPIPE_VALUES_ABI 3

enum VoxpipeStepKind {
  VOXPIPE_SCALE = 0,     // numbers: scale, shift, low, high
  VOXPIPE_SPREAD = 1,    // numbers: factor, middle
  VOXPIPE_GAMMA = 2,     // numbers: gamma, low, high
  VOXPIPE_GAUSSIAN = 3,  // numbers: mean, std; key, corner
  VOXPIPE_RICIAN = 4,    // numbers: 0, std; key, corner
  VOXPIPE_FILTER = 5,    // weights, radius
  VOXPIPE_COARSEN = 6    // numbers: factors along the axes, of which 1 is none; corner
};

enum VoxpipeStepFlag {
  VOXPIPE_OF_PATCH = 1,         // a middle, or ends, of what is there
  VOXPIPE_KEEP_RANGE = 2,       // of SPREAD: clamp to smallest and largest value
  VOXPIPE_KEEP_STATISTICS = 4,  // of GAMMA: mean and deviation are brought back
  VOXPIPE_INVERT = 8            // of GAMMA: bend upside down
};

#define VOXPIPE_MOST_STEPS 64

struct VoxpipeStep {
  int64_t kind;
  int64_t flags;
  uint64_t key;
  double number[4];
  int64_t corner[3];   // lattice index of the first voxel, within 32 bits
  int64_t weights[3];  // address of radius + 1 floats: of the voxel itself, then of its neighbours
  int64_t radius[3];   // 0 for an axis that is left alone
};

struct VoxpipeValues {
  int64_t abi;  // VOXPIPE_VALUES_ABI
  int64_t path;
  int64_t values;  // address of voxel (0, 0, 0) of channel 0
  int64_t channels;
  int64_t channel_stride;
  int64_t size[3];
  int64_t stride[3];
  int64_t steps;  // address of ``count`` VoxpipeStep, at most VOXPIPE_MOST_STEPS
  int64_t count;
};

// Returns a VoxpipeStatus, or VOXPIPE_NO_RANGE plus the index of a step that asks for mean or range
// of values that are not finite. Keeps no state: any number of threads may call it.
#define VOXPIPE_NO_RANGE 1024
VOXPIPE_PUBLIC int64_t voxpipe_values(const VoxpipeValues* job);

// VOXPIPE_VALUES_ABI of the library that was found.
VOXPIPE_PUBLIC int64_t voxpipe_values_abi(void);
