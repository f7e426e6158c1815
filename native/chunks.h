// The C interface of what brings many chunks of one array to their places in a region of it.
//
// A chunk is decoded by a function of the library that owns its format, whose address the caller
// gives, and its part of the region is copied. Fields and strides are as in job.h; callers pack the
// job in volumes/chunks/native.py. Axes are those of the stored array.
#pragma once

#include <stdint.h>

#include "job.h"

// Raised whenever a field is added, moved or changes its meaning.
#define VOXPIPE_CHUNKS_ABI 3
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

struct VoxpipeChunk {
  int64_t data;   // address of its stored bytes, or their place in a file
  int64_t size;   // how many there are
  int64_t first;  // BLOSC2: the first of its items in these bytes
  int64_t file;   // 1 and its descriptor; 0 where they are in memory, ``data`` too for one in ``room``
  int64_t room;   // address of a chunk in C order, decoded or to be; 0 for ``scratch``
  int64_t is_row;  // whether ``room`` is one row of voxels, which all rows are like
  int64_t status;  // set: a VoxpipeStatus; what cannot be decoded is UNSUPPORTED, its part anything
  VoxpipePart parts[];  // one per axis
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
  int64_t item;     // bytes of a voxel
  int64_t axes;     // 1 to VOXPIPE_CHUNK_AXES
  int64_t shape[VOXPIPE_CHUNK_AXES];  // of a chunk, in voxels
  int64_t out_stride[VOXPIPE_CHUNK_AXES];
};

// Returns DONE, or BAD_JOB. Keeps no state: any number of threads may call it.
VOXPIPE_PUBLIC int64_t voxpipe_place_chunks(const VoxpipeChunks* job);

// The table of a cache of decoded chunks: a row of numbers for each that is here or announced. What
// each function does, volumes/chunks/chunk_cache.py says in NumPy. Whoever calls has locked it; they
// take microseconds, and numbers: addresses of int64, or of bytes that are 0 or 1.
struct VoxpipeTable {
  int64_t capacity;
  int64_t depth;    // moments of a row
  int64_t columns;  // size, address, use: one after another
  int64_t moments;
  int64_t room;     // four numbers for each row; ``make_room`` sets the first ones to those it dropped
  int64_t bytes;    // set: how many these took
};

VOXPIPE_PUBLIC int64_t voxpipe_table_take(int64_t table, int64_t count, int64_t rows, int64_t here,
                                          int64_t addresses, int64_t uses);
// Returns 1, having changed nothing, where a row has no room for another moment.
VOXPIPE_PUBLIC int64_t voxpipe_table_announce(int64_t table, int64_t count, int64_t rows,
                                              int64_t here, int64_t expected, int64_t moment,
                                              int64_t keep);
// The others return how many they entered, dropped or took back.
VOXPIPE_PUBLIC int64_t voxpipe_table_put(int64_t table, int64_t count, int64_t rows, int64_t sizes,
                                         int64_t addresses, int64_t entered, int64_t most,
                                         int64_t uses);
VOXPIPE_PUBLIC int64_t voxpipe_table_make_room(int64_t table, int64_t over, int64_t most);
VOXPIPE_PUBLIC int64_t voxpipe_table_withdraw(int64_t table, int64_t count, int64_t rows,
                                              int64_t moment, int64_t uses);

// VOXPIPE_CHUNKS_ABI of the library that was found.
VOXPIPE_PUBLIC int64_t voxpipe_chunks_abi(void);
