// The C interface of the library: one call, one job, plain numbers. No function keeps any state: any
// number of threads may call it.
//
// Every field has eight bytes, so a struct has no padding and no alignment to get wrong: callers pack
// it with one format string (native.py in spatial/resampling, intensity, volumes/chunks), and answer
// for what it says: sizes of at least 1, types and kinds that are named here. Strides are in bytes,
// may be negative, and need not be multiples of the element size. Axes are (i, j, k), those of chunks
// are the stored array's.
#pragma once

#include <stdint.h>

// Raised whenever a field is added, moved or changes its meaning (core/native_library.py).
#define VOXPIPE_ABI 7

#if defined(_WIN32)
#define VOXPIPE_PUBLIC extern "C" __declspec(dllexport)
#else
#define VOXPIPE_PUBLIC extern "C" __attribute__((visibility("default")))
#endif

// Types of stored and of output elements, native byte order.
enum VoxpipeType {
  VOXPIPE_U8, VOXPIPE_I8, VOXPIPE_U16, VOXPIPE_I16, VOXPIPE_U32, VOXPIPE_I32, VOXPIPE_U64, VOXPIPE_I64,
  VOXPIPE_F16, VOXPIPE_F32, VOXPIPE_F64,
  VOXPIPE_BF16,  // output only
  VOXPIPE_TYPES
};

enum VoxpipeMode { VOXPIPE_COPY, VOXPIPE_NEAREST, VOXPIPE_LINEAR, VOXPIPE_CUBIC };

enum VoxpipePadding { VOXPIPE_BORDER, VOXPIPE_REFLECTION, VOXPIPE_CONSTANT, VOXPIPE_ZEROS };

// Code for one class of processors. A better one is never chosen where it cannot run.
enum VoxpipePath {
  VOXPIPE_BEST, VOXPIPE_PORTABLE, VOXPIPE_AVX2, VOXPIPE_AVX512,
  VOXPIPE_AVX512_GATHER  // the same with gathers, where these are one load a lane and no more
};

enum VoxpipeStatus {
  VOXPIPE_DONE,
  VOXPIPE_UNSUPPORTED,  // nothing was written: take the slow path
  VOXPIPE_NO_MEMORY     // nothing was written, but by ``voxpipe_values``, whose first passes may be done
};

struct VoxpipeJob {
  int64_t path;  // VoxpipePath
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

// VOXPIPE_ABI of the library that was found.
VOXPIPE_PUBLIC int64_t voxpipe_abi(void);

// The best VoxpipePath that this processor runs.
VOXPIPE_PUBLIC int64_t voxpipe_best_path(void);

// Resamples; returns a VoxpipeStatus.
VOXPIPE_PUBLIC int64_t voxpipe_run(const VoxpipeJob* job);

// What is done to values in place: all steps of a channel, float32 (i, j, k) in C order, in one call.
enum VoxpipeStepKind {
  VOXPIPE_SCALE,     // numbers: scale, shift, low, high
  VOXPIPE_BEND,      // numbers: exponent, start, inward, outward: by distances from the start, of which
                     // ``inward`` makes a part of the range, and ``outward`` a distance again
  VOXPIPE_GAUSSIAN,  // numbers: mean, std; key, corner
  VOXPIPE_RICIAN,    // numbers: 0, std; key, corner
  VOXPIPE_FILTER,    // weights, radius
  VOXPIPE_COARSEN    // numbers: factors along the axes, of which 1 is none; corner
};

struct VoxpipeStep {
  int64_t kind;
  uint64_t key;
  double number[4];
  int64_t corner[3];   // lattice index of the first voxel
  int64_t weights[3];  // address of radius + 1 floats: of the voxel itself, then of its neighbours
  int64_t radius[3];   // 0 for an axis that is left alone
};

struct VoxpipeValues {
  int64_t path;  // VoxpipePath
  int64_t values;
  int64_t channel;  // its number, on which noise depends
  int64_t size[3];
  int64_t steps;  // address of ``count`` VoxpipeStep
  int64_t count;
  int64_t statistics;  // address of four doubles: mean, deviation, least and largest value afterwards; or 0
};

// Returns a VoxpipeStatus.
VOXPIPE_PUBLIC int64_t voxpipe_values(const VoxpipeValues* job);

// Decodes many chunks of one array, by a function of the library that owns their format, whose address
// the caller gives, and copies their parts to their places in a region.
#define VOXPIPE_CHUNK_AXES 8

// What the stored bytes of a chunk are, and the function that decodes them.
enum VoxpipeStored {
  VOXPIPE_PLAIN = 0,   // the voxels themselves
  VOXPIPE_BLOSC = 1,   // int (source, target, target size, threads)
  VOXPIPE_ZSTD = 2,    // size_t (target, target size, source, source size); and ``measure``,
                       // unsigned long long (source, source size): what its header says
  VOXPIPE_BLOSC2 = 3   // int (source, int32 source size, int first item, int items, target, int32)
};

// Where the part of a chunk lies along one axis, in voxels.
struct VoxpipePart {
  int64_t out;    // first voxel in the region
  int64_t chunk;  // first voxel in the chunk
  int64_t length;
};

// What is done with a chunk.
enum VoxpipeTask {
  VOXPIPE_LEAVE = 0,
  VOXPIPE_PLACE = 1,   // it is in ``room``, decoded
  VOXPIPE_DECODE = 2   // its stored bytes are where its row says, or ``places`` if there are any
};

struct VoxpipeChunk {
  int64_t data;    // address of its stored bytes, or their place in a file
  int64_t size;    // how many there are
  int64_t first;   // BLOSC2: the first of its items in these bytes
  int64_t file;    // 1 and its descriptor; 0 where they are in memory. With ``data`` 0: not stored
  int64_t room;    // address of a decoded chunk in C order; 0 for ``scratch``, and for PLACE: fill
  int64_t task;    // VoxpipeTask
  int64_t status;  // set: a VoxpipeStatus; what cannot be decoded is UNSUPPORTED, its part anything
  VoxpipePart parts[];  // one per axis
};

// Where stored bytes lie by the place of a chunk in the grid of chunks. So many chunks along each
// axis are a unit, in C order: a shard, or a chunk of a frame of blosc2 of which these are blocks.
struct VoxpipePlaces {
  int64_t is_frame;
  int64_t units;    // of all axes
  int64_t entries;  // address of two numbers per unit. Frame: address and size of its bytes, or 0.
                    // Shard: address of change time and size of its file, then offset and length of
                    // each chunk (uint64), 0 if unknown, 1 if missing; and the address of its path
  int64_t items;    // frame: items of a block
  int64_t root;     // shards: text that their paths begin with, all links followed; 0 for any
  int64_t per_unit[VOXPIPE_CHUNK_AXES];
  int64_t counts[VOXPIPE_CHUNK_AXES];  // of units
};

struct VoxpipeChunks {
  int64_t stored;  // VoxpipeStored of all that have data
  int64_t decode;
  int64_t measure;
  int64_t check;   // uint32 (bytes, size): a CRC-32C ends the stored bytes of each chunk; 0 if none does
  int64_t count;
  int64_t chunks;   // address of so many VoxpipeChunk, each followed by its parts
  int64_t scratch;  // address of room for a chunk, and behind it for the longest that is in a file
  int64_t out;      // address of the region, whose last axis is without gaps
  int64_t fill;     // address of a row of voxels, which all rows of a chunk are that is not stored
  int64_t places;   // address of VoxpipePlaces, or 0
  int64_t indices;  // address of the place of each chunk in the grid, ``axes`` numbers
  int64_t longest;  // bytes of the longest chunk in a file for which there is room; no longer is read
  int64_t item;     // bytes of a voxel
  int64_t axes;     // 1 to VOXPIPE_CHUNK_AXES
  int64_t shape[VOXPIPE_CHUNK_AXES];  // of a chunk, in voxels
  int64_t out_stride[VOXPIPE_CHUNK_AXES];
};

// Returns when a file that was opened was changed last: in nanoseconds since 1970, no times to come.
VOXPIPE_PUBLIC int64_t voxpipe_place_chunks(const VoxpipeChunks* job);

// An array cut into chunks, and these into blocks that begin anew in each, or that are the chunks.
struct VoxpipeGrid {
  int64_t axes;
  int64_t shape[VOXPIPE_CHUNK_AXES];
  int64_t chunk[VOXPIPE_CHUNK_AXES];
  int64_t block[VOXPIPE_CHUNK_AXES];
  int64_t per_chunk[VOXPIPE_CHUNK_AXES];
  int64_t steps[VOXPIPE_CHUNK_AXES];  // from one part to the next along an axis, in C order
};

// A region of it, and the box in that of which voxels are needed (core/region.py).
struct VoxpipeCover {
  int64_t start[VOXPIPE_CHUNK_AXES];
  int64_t stop[VOXPIPE_CHUNK_AXES];
  int64_t has_box;
  int64_t clamp_start[3];  // parts that reach these faces also hold what lies ``beyond`` them, or so
  int64_t clamp_stop[3];   // far; of a box that is not clamped, too far away to be reached
  int64_t axes[3];
  int64_t box_shape[3];
  double matrix[12];  // 3x4
  double halo[3];
  double beyond;
};

// Writes for each part that the region touches, and its box, in C order: its index, its row for
// ``voxpipe_place_chunks``, its number; and how many voxels they hold. Returns how many parts there
// are; with ``capacity`` 0 how many there may be, -1 for too many; -2 for a box that is none.
VOXPIPE_PUBLIC int64_t voxpipe_cover(int64_t grid, int64_t cover, int64_t capacity,
                                     int64_t indices, int64_t rows, int64_t numbers,
                                     int64_t voxels);
