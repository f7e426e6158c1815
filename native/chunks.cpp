// Chunks, decoded and copied to their places in a region.

#include "interface.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <algorithm>
#if !defined(_WIN32)
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#endif
#if defined(__APPLE__)
#define st_mtim st_mtimespec
#define st_ctim st_ctimespec
#endif

namespace {

using Bytes = char*;
using Blosc = int (*)(const void*, void*, size_t, int);
using Zstd = size_t (*)(void*, size_t, const void*, size_t);
using ZstdMeasure = unsigned long long (*)(const void*, size_t);
using Check = uint32_t (*)(const void*, size_t);
using Blosc2 = int (*)(const void*, int32_t, int, int, void*, int32_t);

uint32_t little(const char* bytes) {
  const unsigned char* b = reinterpret_cast<const unsigned char*>(bytes);
  return b[0] | b[1] << 8 | b[2] << 16 | static_cast<uint32_t>(b[3]) << 24;
}

// Whether the header of a chunk of blosc, which its library believes, agrees with the bytes at hand and
// those wanted: version, codec, flags, item size, decoded size, size of a block, stored size.
bool is_sound(const char* head, size_t size, uint64_t least, uint64_t most, int64_t item) {
  if (size < 16 || size > INT32_MAX || most > INT32_MAX) return false;
  const uint32_t decoded = little(head + 4), block = little(head + 8), stored = little(head + 12);
  return (!item || item == (head[3] & 255)) && least <= decoded && decoded <= most && block > 0 &&
         block <= decoded && stored >= 16 && stored <= size;
}

// Gives a library nothing that a header contradicts, and believes no other length than the wanted one.
// What is refused here the caller decodes in its own way, which says what is wrong.
bool decode(const VoxpipeChunks& job, const VoxpipeChunk& chunk, Bytes room, int64_t bytes) {
  Bytes data = reinterpret_cast<Bytes>(chunk.file ? job.scratch + bytes : chunk.data);
  const size_t sum = job.check ? 4 : 0, wanted = static_cast<size_t>(bytes);
  if (chunk.size <= static_cast<int64_t>(sum)) return false;
  const size_t size = static_cast<size_t>(chunk.size) - sum;
#if !defined(_WIN32)
  if (chunk.file && pread(static_cast<int>(chunk.file - 1), data, size + sum, chunk.data) != chunk.size)
    return false;
#endif
  if (sum && reinterpret_cast<Check>(job.check)(data, size) != little(data + size)) return false;
  switch (job.stored) {
    case VOXPIPE_PLAIN:
      return size == wanted && memcpy(room, data, wanted);
    case VOXPIPE_BLOSC:
      return is_sound(data, size, wanted, wanted, 0) &&
             reinterpret_cast<Blosc>(job.decode)(data, room, wanted, 1) == bytes;
    case VOXPIPE_ZSTD:
      return reinterpret_cast<ZstdMeasure>(job.measure)(data, size) == wanted &&
             reinterpret_cast<Zstd>(job.decode)(room, wanted, data, size) == wanted;
    default:
      return is_sound(data, size, static_cast<uint64_t>(bytes + chunk.first * job.item), INT32_MAX,
                      job.item) && little(data + 8) == wanted &&
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

// Files of a read, opened once each and closed when it is done; a few at a time.
struct Files {
  int64_t newest = 0;  // when one that was closed was changed last
#if defined(_WIN32)
  int descriptor(int64_t, const char*, const char*, const int64_t*) { return -1; }
  static bool is_gone(const char*) { return true; }
  void close_all() {}
#else
  static constexpr int64_t MOST = 16;
  int64_t count = 0, shards[MOST];
  int open_now[MOST];

  static bool is_gone(const char* path) { return access(path, F_OK) != 0; }
  static int64_t nanoseconds(const timespec& t) { return int64_t{t.tv_sec} * 1000000000 + t.tv_nsec; }

  // As ``LocalRanges`` opens them; -1 for errors of that, and for a change since the index was read.
  int descriptor(int64_t shard, const char* path, const char* root, const int64_t* stamp) {
    for (int64_t n = 0; n < count; n++)
      if (shards[n] == shard) return open_now[n];
    if (count == MOST) close_all();
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat status;
    if (fstat(file, &status) || !S_ISREG(status.st_mode) || (root && !is_in(file, root)) ||
        nanoseconds(status.st_ctim) != stamp[0] || status.st_size != stamp[1]) {
      close(file);
      return -1;
    }
    shards[count] = shard;
    return open_now[count++] = file;
  }

  static bool is_in(int file, const char* root) {
    char link[32], target[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    const ssize_t size = readlink(link, target, sizeof target);
    return size > 0 && static_cast<size_t>(size) >= strlen(root) && !memcmp(target, root, strlen(root));
  }

  void close_all() {
    struct stat status;
    timespec now;
    for (int64_t n = 0; n < count; close(open_now[n++]))
      if (!fstat(open_now[n], &status) && !clock_gettime(CLOCK_REALTIME, &now))
        for (const timespec& time : {status.st_mtim, status.st_ctim})
          if (nanoseconds(time) <= nanoseconds(now)) newest = std::max(newest, nanoseconds(time));
    count = 0;
  }
#endif
};

// Finds the stored bytes of a chunk; false where the caller has to look.
bool locate(const VoxpipeChunks& job, int64_t n, VoxpipeChunk& chunk, Files& files) {
  const VoxpipePlaces& places = *reinterpret_cast<const VoxpipePlaces*>(job.places);
  const int64_t* index = reinterpret_cast<const int64_t*>(job.indices) + n * job.axes;
  int64_t unit = 0, inner = 0;
  for (int64_t a = 0; a < job.axes; a++) {
    unit = unit * places.counts[a] + index[a] / places.per_unit[a];
    inner = inner * places.per_unit[a] + index[a] % places.per_unit[a];
  }
  if (unit < 0 || unit >= places.units) return false;
  const int64_t* entry = reinterpret_cast<const int64_t*>(places.entries) + 2 * unit;
  chunk.data = chunk.size = chunk.first = chunk.file = 0;
  if (places.is_frame) {
    chunk.data = entry[0];
    chunk.size = entry[1];
    chunk.first = inner * places.items;
    return true;
  }
  const char *path = reinterpret_cast<const char*>(entry[1]), *root = reinterpret_cast<const char*>(places.root);
  if (!entry[0] || !path) return false;
  if (entry[0] == 1) return files.is_gone(path);  // nothing is stored of it
  const int file = files.descriptor(unit, path, root, reinterpret_cast<const int64_t*>(entry[0]));
  const uint64_t* place = reinterpret_cast<const uint64_t*>(entry[0]) + 2 * (1 + inner);
  const uint64_t start = place[0], stop = start + place[1];
  if (place[0] == UINT64_MAX && place[1] == UINT64_MAX) return file >= 0;
  if (stop < start || stop > INT64_MAX || place[1] > static_cast<uint64_t>(job.longest)) return false;
  chunk.data = static_cast<int64_t>(start);
  chunk.size = static_cast<int64_t>(place[1]);
  chunk.file = file + 1;
  return file >= 0;
}

int64_t* numbers_at(int64_t place) { return reinterpret_cast<int64_t*>(place); }

// What a box of an array has to do with chunks: the separating-axis test of OrientedBox.touches.
struct Box {
  double centre[3], back[3][3], half[3], low[3], high[3];

  bool set(const VoxpipeCover& c) {
    const auto turn = [&](int r, int k) { return c.matrix[4 * (r % 3) + k % 3]; };
    for (int r = 0; r < 3; r++)
      for (int k = 0; k < 3; k++)
        back[r][k] = turn(k + 1, r + 1) * turn(k + 2, r + 2) - turn(k + 1, r + 2) * turn(k + 2, r + 1);
    const double determinant = turn(0, 0) * back[0][0] + turn(1, 0) * back[0][1] + turn(2, 0) * back[0][2];
    if (!(fabs(determinant) > 0) || !isfinite(1 / determinant)) return false;
    for (int r = 0; r < 3; r++) half[r] = (static_cast<double>(c.box_shape[r]) - 1) / 2;
    for (int r = 0; r < 3; r++) {
      double reach = c.halo[r];
      centre[r] = c.matrix[4 * r + 3];
      for (int k = 0; k < 3; k++) {
        back[r][k] /= determinant;
        centre[r] += turn(r, k) * half[k];
        reach += fabs(turn(r, k)) * half[k];
      }
      low[r] = fmax(floor(centre[r] - reach), static_cast<double>(c.clamp_start[r]) - c.beyond);
      high[r] = fmin(ceil(centre[r] + reach) + 1, static_cast<double>(c.clamp_stop[r]) + c.beyond);
    }
    return true;
  }

  bool touches(const VoxpipeCover& c, const int64_t* first, const int64_t* last) const {
    double middle[3], reach[3];
    for (int r = 0; r < 3; r++) {
      double start = static_cast<double>(first[c.axes[r]]), stop = static_cast<double>(last[c.axes[r]]);
      // What lies before a face is read at the face: chunks there reach out to all of it.
      if (first[c.axes[r]] <= c.clamp_start[r]) start = fmin(start, low[r]);
      if (last[c.axes[r]] >= c.clamp_stop[r]) stop = fmax(stop, high[r]);
      middle[r] = (start + stop - 1) / 2 - centre[r];
      reach[r] = (stop - start - 1) / 2 + c.halo[r];
    }
    for (int r = 0; r < 3; r++) {
      double along = 0, most = half[r];
      for (int k = 0; k < 3; k++) {
        along += back[r][k] * middle[k];
        most += fabs(back[r][k]) * reach[k];
      }
      if (!(fabs(along) <= most + 1e-6)) return false;
    }
    return true;
  }
};

}  // namespace

int64_t voxpipe_place_chunks(const VoxpipeChunks* job) {
  int64_t stride[VOXPIPE_CHUNK_AXES], row[VOXPIPE_CHUNK_AXES] = {}, bytes = job->item;
  for (int64_t a = job->axes - 1; a >= 0; bytes *= job->shape[a--]) stride[a] = bytes;
  row[job->axes - 1] = job->item;
  const int64_t step = static_cast<int64_t>(sizeof(VoxpipeChunk)) +
                       job->axes * static_cast<int64_t>(sizeof(VoxpipePart));
  Files files;
  for (int64_t n = 0; n < job->count; n++) {
    VoxpipeChunk& chunk = *reinterpret_cast<VoxpipeChunk*>(job->chunks + n * step);
    if (chunk.task == VOXPIPE_LEAVE) continue;
    chunk.status = VOXPIPE_UNSUPPORTED;
    if (chunk.task == VOXPIPE_DECODE && job->places && !locate(*job, n, chunk, files)) continue;
    const bool stored = chunk.task != VOXPIPE_PLACE && (chunk.data || chunk.file);
    const bool is_row = chunk.task == VOXPIPE_PLACE ? !chunk.room : !stored;
    Bytes out = reinterpret_cast<Bytes>(job->out);
    int64_t shift = 0;
    for (int64_t a = 0; a < job->axes; a++) {
      out += chunk.parts[a].out * job->out_stride[a];
      shift += chunk.parts[a].chunk * (is_row ? row : stride)[a];
    }
    const bool in_place = stored && !chunk.room && is_in_place(*job, chunk.parts, stride);
    const int64_t target = is_row ? job->fill : chunk.room ? chunk.room : job->scratch;
    Bytes from = in_place ? out : reinterpret_cast<Bytes>(target);
    if (stored && !decode(*job, chunk, from, bytes)) continue;
    chunk.status = VOXPIPE_DONE;
    if (!in_place) copy_part(*job, chunk.parts, is_row ? row : stride, out, from + shift, 0);
  }
  files.close_all();
  return files.newest;
}

int64_t voxpipe_cover(int64_t at, int64_t where, int64_t capacity, int64_t indices, int64_t rows,
                      int64_t numbers, int64_t voxels) {
  const VoxpipeGrid& grid = *reinterpret_cast<const VoxpipeGrid*>(at);
  const VoxpipeCover& cover = *reinterpret_cast<const VoxpipeCover*>(where);
  int64_t first[VOXPIPE_CHUNK_AXES], count[VOXPIPE_CHUNK_AXES], total = 1;
  const auto part_of = [&](int64_t voxel, int64_t a) {
    return voxel / grid.chunk[a] * grid.per_chunk[a] + voxel % grid.chunk[a] / grid.block[a];
  };
  const auto start_of = [&](int64_t part, int64_t a) {
    return part / grid.per_chunk[a] * grid.chunk[a] + part % grid.per_chunk[a] * grid.block[a];
  };
  for (int64_t a = 0; a < grid.axes; a++) {
    first[a] = part_of(cover.start[a], a);
    count[a] = part_of(cover.stop[a] - 1, a) - first[a] + 1;
    if (count[a] < 1 || count[a] > (1 << 20) || (total *= count[a]) > (1 << 20)) return -1;
  }
  if (!capacity) return total;
  Box box;
  const bool culls = cover.has_box && total > 1;
  if (culls && !box.set(cover)) return -2;
  const int64_t fields = static_cast<int64_t>(sizeof(VoxpipeChunk)) / 8 + 3 * grid.axes;
  int64_t *index = numbers_at(indices), *row = numbers_at(rows), *number = numbers_at(numbers);
  int64_t& held = *numbers_at(voxels) = 0;
  for (int64_t n = 0; n < total; n++) {
    int64_t start[VOXPIPE_CHUNK_AXES], stop[VOXPIPE_CHUNK_AXES], rest = n, size = 1, order = 0;
    for (int64_t a = grid.axes - 1; a >= 0; rest /= count[a--]) {
      const int64_t part = index[a] = first[a] + rest % count[a];
      const int64_t begin = start_of(part, a), end = std::min(start_of(part + 1, a), grid.shape[a]);
      order += part * grid.steps[a];
      size *= end - begin;
      start[a] = std::max(begin, cover.start[a]);
      stop[a] = std::min(end, cover.stop[a]);
      int64_t* part_row = row + fields - 3 * (grid.axes - a);
      part_row[0] = start[a] - cover.start[a];
      part_row[1] = start[a] - begin;
      part_row[2] = stop[a] - start[a];
    }
    if (culls && !box.touches(cover, start, stop)) continue;
    memset(row, 0, static_cast<size_t>(fields - 3 * grid.axes) * 8);
    *number++ = order;
    held += size;
    index += grid.axes;
    row += fields;
  }
  return number - numbers_at(numbers);
}
