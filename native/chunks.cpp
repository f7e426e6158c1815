// Chunks, decoded and copied to their places in a region.

#include "chunks.h"

#include <string.h>

#include <algorithm>

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

const int64_t kNever = int64_t{1} << 62;  // where there is no moment

// A row of a table, whose number an array says.
struct Row {
  int64_t &size, &address, &use;
  int64_t* moments;
  Row(const VoxpipeTable& table, int64_t n)
      : size(reinterpret_cast<int64_t*>(table.columns)[n]),
        address((&size)[table.capacity]),
        use((&size)[2 * table.capacity]),
        moments(reinterpret_cast<int64_t*>(table.moments) + n * table.depth) {}
  void shift(int64_t from, int64_t depth) {
    memmove(moments + from, moments + from + 1, static_cast<size_t>(depth - from - 1) * 8);
    moments[depth - 1] = kNever;
  }
};

// What may be dropped: by when it is needed, of one moment by when it was used.
struct Candidate {
  int64_t rank, use, row;
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank < other.rank : use < other.use;
  }
};

VoxpipeTable& table_at(int64_t place) { return *reinterpret_cast<VoxpipeTable*>(place); }
int64_t* numbers_at(int64_t place) { return reinterpret_cast<int64_t*>(place); }
unsigned char* flags_at(int64_t place) { return reinterpret_cast<unsigned char*>(place); }

}  // namespace

int64_t voxpipe_table_take(int64_t place, int64_t count, int64_t rows, int64_t here,
                           int64_t addresses, int64_t uses) {
  const VoxpipeTable& table = table_at(place);
  for (int64_t n = 0; n < count; n++) {
    Row row(table, numbers_at(rows)[n]);
    row.shift(0, table.depth);
    row.use = uses + n;
    flags_at(here)[n] = row.size > 0;
    numbers_at(addresses)[n] = row.address;
  }
  return count;
}

int64_t voxpipe_table_announce(int64_t place, int64_t count, int64_t rows, int64_t here,
                               int64_t expected, int64_t moment, int64_t keep) {
  const VoxpipeTable& table = table_at(place);
  for (int64_t n = 0; n < count; n++)
    if (Row(table, numbers_at(rows)[n]).moments[table.depth - 1] != kNever) return 1;
  for (int64_t n = 0; n < count; n++) {
    Row row(table, numbers_at(rows)[n]);
    int64_t* free = row.moments;
    while (*free != kNever) free++;
    flags_at(here)[n] = row.size > 0;
    flags_at(expected)[n] = free > row.moments;
    *free = 2 * moment + (keep && row.size > 0);
  }
  return 0;
}

int64_t voxpipe_table_put(int64_t place, int64_t count, int64_t rows, int64_t sizes,
                          int64_t addresses, int64_t entered, int64_t most, int64_t uses) {
  int64_t number = 0;
  for (int64_t n = 0; n < count; n++) {
    Row row(table_at(place), numbers_at(rows)[n]);
    if (row.size || numbers_at(sizes)[n] > most) continue;
    row.size = numbers_at(sizes)[n];
    row.address = numbers_at(addresses)[n];
    row.use = uses + number;
    numbers_at(entered)[number++] = n;
  }
  return number;
}

int64_t voxpipe_table_make_room(int64_t place, int64_t over, int64_t most) {
  VoxpipeTable& table = table_at(place);
  int64_t* dropped = numbers_at(table.room);
  Candidate* all = reinterpret_cast<Candidate*>(dropped + table.capacity);
  int64_t bytes = 0, count = 0, number = 0;
  for (int64_t n = 0; n < table.capacity; n++) {
    Row row(table, n);
    if (!row.size || row.moments[0] != kNever) continue;
    all[count++] = {0, row.use, n};
    bytes += row.size;
  }
  const auto later = [](const Candidate& one, const Candidate& other) { return other < one; };
  int64_t gone = 0;
  const auto drop = [&](int64_t n) {
    Row row(table, n);
    gone += row.size;
    row.size = row.address = 0;
    for (int64_t m = 0; m < table.depth; m++) row.moments[m] &= ~int64_t{1};
    dropped[number++] = n;
  };
  if (count && bytes >= over) {  // enough that nobody has announced: nothing else is looked at
    std::make_heap(all, all + count, later);
    do {
      std::pop_heap(all, all + count--, later);
      drop(all[count].row);
    } while (gone < over);
  } else {
    count = bytes = 0;
    for (int64_t n = 0; n < table.capacity; n++) {
      Row row(table, n);
      if (!row.size) continue;
      const int64_t first = row.moments[0];
      bool counts = false;
      for (int64_t m = 0; m < table.depth; m++) counts |= row.moments[m] & 1;
      all[count++] = {counts ? -1 : first, first == kNever ? -row.use : row.use, n};
    }
    std::sort(all, all + count);
    for (int64_t n = 0; n < count; n++)
      if ((bytes += Row(table, all[n].row).size) > most) drop(all[n].row);
  }
  table.bytes = gone;
  return number;
}

int64_t voxpipe_table_withdraw(int64_t place, int64_t count, int64_t rows, int64_t moment,
                               int64_t uses) {
  const VoxpipeTable& table = table_at(place);
  int64_t number = 0;
  for (int64_t n = 0; n < count; n++) {
    Row row(table, numbers_at(rows)[n]);
    for (int64_t m = 0; m < table.depth; m++) {
      if (row.moments[m] == kNever || row.moments[m] >> 1 != moment) continue;
      row.shift(m, table.depth);
      row.use = uses + number++;
      break;
    }
  }
  return number;
}

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
