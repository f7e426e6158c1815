// Chunks, decoded and copied to their places in a region.

#include "chunks.h"

#include <string.h>
#if defined(_WIN32)
#define pread(...) -1
#else
#include <unistd.h>
#endif

namespace {

using Bytes = char*;
using Blosc = int (*)(const void*, void*, size_t, int);
using Zstd = size_t (*)(void*, size_t, const void*, size_t);
using ZstdMeasure = unsigned long long (*)(const void*, size_t);
using Blosc2 = int (*)(const void*, int32_t, int, int, void*, int32_t);

uint32_t little(const char* bytes) {
  const unsigned char* b = reinterpret_cast<const unsigned char*>(bytes);
  return b[0] | b[1] << 8 | b[2] << 16 | static_cast<uint32_t>(b[3]) << 24;
}

// What a library is handed bytes from outside with: nothing that its header contradicts. What is
// refused here the caller decodes in its own way, which says what is wrong.
bool decode(const VoxpipeChunks& job, const VoxpipeChunk& chunk, Bytes room, int64_t bytes) {
  Bytes data = reinterpret_cast<Bytes>(chunk.file ? job.scratch + bytes : chunk.data);
  const size_t size = static_cast<size_t>(chunk.size), wanted = static_cast<size_t>(bytes);
  if (chunk.size < 1) return false;
  if (chunk.file) {
    const int descriptor = static_cast<int>(chunk.file - 1);
    if (pread(descriptor, data, size, chunk.data) != chunk.size) return false;
  }
  switch (job.stored) {
    case VOXPIPE_PLAIN:
      if (size != wanted) return false;
      memcpy(room, data, wanted);
      return true;
    case VOXPIPE_BLOSC:  // version, codec, flags, item size, decoded size, block size, stored size
      return size >= 16 && little(data + 12) >= 16 && little(data + 12) <= size &&
             little(data + 4) == wanted &&
             reinterpret_cast<Blosc>(job.decode)(data, room, wanted, 1) == bytes;
    case VOXPIPE_ZSTD:
      return reinterpret_cast<ZstdMeasure>(job.measure)(data, size) == wanted &&
             reinterpret_cast<Zstd>(job.decode)(room, wanted, data, size) == wanted;
    default:
      return size <= INT32_MAX && wanted <= INT32_MAX &&
             reinterpret_cast<Blosc2>(job.decode)(
                 data, static_cast<int32_t>(size), static_cast<int>(chunk.first),
                 static_cast<int>(bytes / job.item), room, static_cast<int32_t>(bytes)) == bytes;
  }
}

void copy_part(const VoxpipeChunks& job, const VoxpipePart* parts, const int64_t* stride, Bytes out,
               const char* in, int64_t axis) {
  const int64_t length = parts[axis].length;
  if (axis + 1 == job.axes) {
    const int64_t bytes = length * job.item;
    if (bytes < 16 || bytes > 1024) {
      memcpy(out, in, static_cast<size_t>(bytes));
      return;
    }
    // A row is short: 16 bytes at once, the last ones twice where they are no multiple.
    for (int64_t n = 0; n < bytes - 16; n += 16) memcpy(out + n, in + n, 16);
    memcpy(out + bytes - 16, in + bytes - 16, 16);
    return;
  }
  for (int64_t n = 0; n < length; n++)
    copy_part(job, parts, stride, out + n * job.out_stride[axis], in + n * stride[axis], axis + 1);
}

// Whether a chunk lies in the region as it is decoded: whole, and in one piece.
bool is_in_place(const VoxpipeChunks& job, const VoxpipePart* parts, const int64_t* stride) {
  for (int64_t a = 0; a < job.axes; a++)
    if (parts[a].length != job.shape[a] || (job.shape[a] > 1 && job.out_stride[a] != stride[a]))
      return false;
  return true;
}

}  // namespace

int64_t voxpipe_chunks_abi(void) { return VOXPIPE_CHUNKS_ABI; }

int64_t voxpipe_place_chunks(const VoxpipeChunks* job) {
  if (!job || job->abi != VOXPIPE_CHUNKS_ABI || job->axes < 1 || job->axes > VOXPIPE_CHUNK_AXES ||
      job->stored < 0 || job->stored >= VOXPIPE_STORED || !job->out || !job->scratch)
    return VOXPIPE_BAD_JOB;
  int64_t stride[VOXPIPE_CHUNK_AXES], row[VOXPIPE_CHUNK_AXES] = {}, bytes = job->item;
  for (int64_t a = job->axes - 1; a >= 0; bytes *= job->shape[a--]) stride[a] = bytes;
  row[job->axes - 1] = job->item;
  const int64_t step = static_cast<int64_t>(sizeof(VoxpipeChunk)) +
                       job->axes * static_cast<int64_t>(sizeof(VoxpipePart));
  for (int64_t n = 0; n < job->count; n++) {
    VoxpipeChunk& chunk = *reinterpret_cast<VoxpipeChunk*>(job->chunks + n * step);
    Bytes out = reinterpret_cast<Bytes>(job->out), from = out;
    int64_t shift = 0;
    for (int64_t a = 0; a < job->axes; a++) {
      out += chunk.parts[a].out * job->out_stride[a];
      shift += chunk.parts[a].chunk * (chunk.is_row ? row : stride)[a];
    }
    const bool stored = chunk.data || chunk.file;
    const bool in_place = stored && !chunk.room && is_in_place(*job, chunk.parts, stride);
    from = in_place ? out : reinterpret_cast<Bytes>(chunk.room ? chunk.room : job->scratch);
    chunk.status = VOXPIPE_UNSUPPORTED;
    if (stored && !decode(*job, chunk, from, bytes)) continue;
    chunk.status = VOXPIPE_DONE;
    if (!in_place)
      copy_part(*job, chunk.parts, chunk.is_row ? row : stride, out, from + shift, 0);
  }
  return VOXPIPE_DONE;
}
