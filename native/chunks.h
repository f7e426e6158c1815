// The C interface of what brings many chunks of one array to their places in a region of it.
//
// A chunk is decoded by a function of the library that owns its format, whose address the caller
// gives, and its part of the region is copied. Fields and strides are as in job.h; callers pack the
// job in volumes/chunks/native.py. Axes are those of the stored array.
#pragma once

#include <stdint.h>

#include "job.h"

// Raised whenever a field is added, moved or changes its meaning.
#define VOXPIPE_CHUNKS_ABI 4
#define VOXPIPE_CHUNK_AXES 8

// What the stored bytes of a chunk are, and the function that decodes them.
enum VoxpipeStored {
  VOXPIPE_PLAIN = 0,   // the voxels themselves
  VOXPIPE_BLOSC = 1,   // int (source, target, target size, threads)
  VOXPIPE_ZSTD = 2,    // size_t (target, target size, source, source size); and ``measure``,
                       // unsigned long long (source, source size): what its header says
  VOXPIPE_BLOSC2 = 3,  // int (source, int32 source size, int first item, int items, target, int32)
  VOXPIPE_STORED = 4
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
  VOXPIPE_DECODE = 2,  // its stored bytes are where its row says
  VOXPIPE_LOCATE = 3   // they are where ``places`` says
};

struct VoxpipeChunk {
  int64_t data;    // address of its stored bytes, or their place in a file
  int64_t size;    // how many there are
  int64_t first;   // BLOSC2: the first of its items in these bytes
  int64_t file;    // 1 and its descriptor; 0 where they are in memory. With ``data`` 0: not stored
  int64_t room;    // address of a chunk in C order, decoded or to be; 0 for ``scratch``, of PLACE for
                   // one that is not stored
  int64_t task;    // VoxpipeTask
  int64_t status;  // set: a VoxpipeStatus; what cannot be decoded is UNSUPPORTED, its part anything
  VoxpipePart parts[];  // one per axis
};

// Where stored bytes lie by the place of a chunk in the grid of chunks. So many chunks along each
// axis are a unit, in C order: a shard, or a chunk of a frame of blosc2 of which these are blocks.
struct VoxpipePlaces {
  int64_t is_frame;
  int64_t units;    // of all axes
  int64_t entries;  // address of two numbers per unit. Of a frame, address and size of its bytes,
                    // address 0 if it is not stored. Of shards, address of the table of its chunks
                    // (uint64 offset and length), 0 if nobody knows it, 1 if it is not there; and
                    // that of its path
  int64_t items;    // frame: items of a block
  int64_t root;     // shards: text that their paths begin with, all links followed; 0 for any
  int64_t per_unit[VOXPIPE_CHUNK_AXES];
  int64_t counts[VOXPIPE_CHUNK_AXES];  // of units
};

struct VoxpipeChunks {
  int64_t abi;     // VOXPIPE_CHUNKS_ABI
  int64_t stored;  // VoxpipeStored of all that have data
  int64_t decode;
  int64_t measure;
  int64_t count;
  int64_t chunks;   // address of so many VoxpipeChunk, each followed by its parts
  int64_t scratch;  // address of room for a chunk, and behind it for the longest that is in a file
  int64_t out;      // address of the region, whose last axis is without gaps
  int64_t fill;     // address of a row of voxels, which all rows of a chunk are that is not stored
  int64_t places;   // address of VoxpipePlaces
  int64_t indices;  // address of the place of each chunk in the grid, ``axes`` numbers
  int64_t longest;  // bytes of the longest chunk in a file for which there is room; no longer is read
  int64_t newest;   // address of a number, set to when a file that was opened was changed last: in
                    // nanoseconds since 1970, no times to come
  int64_t item;     // bytes of a voxel
  int64_t axes;     // 1 to VOXPIPE_CHUNK_AXES
  int64_t shape[VOXPIPE_CHUNK_AXES];  // of a chunk, in voxels
  int64_t out_stride[VOXPIPE_CHUNK_AXES];
};

// Returns DONE, or BAD_JOB. Keeps no state: any number of threads may call it.
VOXPIPE_PUBLIC int64_t voxpipe_place_chunks(const VoxpipeChunks* job);

// An array cut into chunks, or with ``is_whole`` 0 into blocks of chunks that begin anew in each.
struct VoxpipeGrid {
  int64_t axes;
  int64_t is_whole;
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
  int64_t has_clamp;
  int64_t clamp_start[3];
  int64_t clamp_stop[3];
  int64_t axes[3];
  int64_t box_shape[3];
  double matrix[12];  // 3x4
  double halo[3];
};

// Writes for each part that the region touches, and its box, in C order: its index, its row for
// ``voxpipe_place_chunks``, its number; and how many voxels they hold. Returns how many parts there
// are; with ``capacity`` 0 how many there may be, -1 for too many; -2 for a box that is none.
VOXPIPE_PUBLIC int64_t voxpipe_cover(int64_t grid, int64_t cover, int64_t capacity,
                                     int64_t indices, int64_t rows, int64_t numbers,
                                     int64_t voxels);

// VOXPIPE_CHUNKS_ABI of the library that was found.
VOXPIPE_PUBLIC int64_t voxpipe_chunks_abi(void);
