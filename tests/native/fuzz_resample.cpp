// Throws random shapes, strides, types, matrices and paddings at the kernel.
//
// Source and output are allocated to the byte, so that an address sanitizer sees every access
// beside them. All paths of this processor get the same job, and have to agree to the bit; what
// they leave alone must still be what it was. Built as a libFuzzer target, bytes come from there;
// else ``main`` draws them: fuzz_resample [count] [seed].

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "../../native/interface.h"

namespace {

// Numbers from bytes; zeros when they run out.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  uint32_t word() {
    uint32_t value = 0;
    const size_t count = size_ < 4 ? size_ : 4;
    memcpy(&value, data_, count);
    data_ += count;
    size_ -= count;
    return value;
  }

  int64_t below(int64_t n) { return static_cast<int64_t>(word() % static_cast<uint32_t>(n)); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  double real(double low, double high) { return low + (high - low) * (word() / 4294967295.0); }
  bool once_in(int64_t n) { return below(n) == 0; }

 private:
  const uint8_t* data_;
  size_t size_;
};

// FNV-1a of all results: one number to compare between processors and compilers.
uint64_t digest = 14695981039346656037u;

const int64_t SIZES[] = {1, 1, 2, 2, 4, 4, 8, 8, 2, 4, 8, 2};

// Memory of a (C, i, j, k) array in any order, with gaps and backward axes.
struct Array {
  std::vector<uint8_t> memory;
  int64_t origin = 0;
  int64_t stride[4];

  void lay_out(Bytes& bytes, const int64_t* shape, int64_t size) {
    int order[4] = {0, 1, 2, 3};
    for (int n = 3; n > 0; n--) {
      const int64_t m = bytes.below(n + 1);
      const int kept = order[n];
      order[n] = order[m];
      order[m] = kept;
    }
    int64_t step = size, span = size;
    for (int n = 0; n < 4; n++) {
      const int axis = order[n];
      step += bytes.once_in(4) ? bytes.below(3) * (bytes.once_in(3) ? 1 : size) : 0;
      stride[axis] = step;
      span += (shape[axis] - 1) * step;
      step *= shape[axis];
      if (bytes.once_in(4)) {
        origin += (shape[axis] - 1) * stride[axis];
        stride[axis] = -stride[axis];
      }
    }
    memory.assign(static_cast<size_t>(span), 0);
    memory.shrink_to_fit();
  }

  int64_t address() { return reinterpret_cast<int64_t>(memory.data()) + origin; }
};

// Whole numbers in the type, so that no NaN hides a difference.
void put_number(uint8_t* to, int64_t type, int64_t number) {
  const int64_t integer = number;
  const float real = static_cast<float>(number);
  const double wide = static_cast<double>(number);
  const uint16_t half = static_cast<uint16_t>(number & 0xbbff);  // never infinity or NaN
  if (type == VOXPIPE_F16) memcpy(to, &half, 2);
  else if (type == VOXPIPE_F32) memcpy(to, &real, 4);
  else if (type == VOXPIPE_F64) memcpy(to, &wide, 8);
  else memcpy(to, &integer, static_cast<size_t>(SIZES[type]));
}

double wild(Bytes& bytes) {
  const double numbers[] = {0.0, 1e300, -1e18, 1099511627776.0, 1e-300, NAN, INFINITY, 0.5};
  return numbers[bytes.below(8)];
}

void draw_matrix(Bytes& bytes, double* matrix) {
  const int64_t kind = bytes.below(6);
  const int64_t turn = bytes.below(3);
  for (int a = 0; a < 3; a++) {
    for (int n = 0; n < 3; n++) {
      const bool is_on = n == (kind == 1 ? (a + turn) % 3 : a);
      matrix[4 * a + n] = is_on ? (bytes.once_in(2) ? 1 : -1) : 0;
      if (kind == 2 && is_on) matrix[4 * a + n] = bytes.real(-2, 2);
      if (kind > 2) matrix[4 * a + n] += bytes.real(-0.7, 0.7);
    }
    matrix[4 * a + 3] = static_cast<double>(bytes.between(-5, 15));
    if (kind > 1) matrix[4 * a + 3] += bytes.real(0, 1);
  }
  if (bytes.once_in(20)) matrix[bytes.below(12)] = wild(bytes);
}

void draw_source(Bytes& bytes, VoxpipeJob& job, Array& source) {
  job.source_type = bytes.below(VOXPIPE_F64 + 1);
  job.channels = bytes.once_in(4) ? bytes.between(2, 6) : 1;
  int64_t shape[4] = {job.channels, 0, 0, 0};
  const bool is_large = bytes.once_in(4);  // whole tiles lie inside, whole squares are turned
  for (int a = 0; a < 3; a++)
    shape[1 + a] = is_large ? bytes.between(30, 60) : bytes.between(1, bytes.once_in(5) ? 40 : 9);
  source.lay_out(bytes, shape, SIZES[job.source_type]);
  for (size_t n = 0; n < source.memory.size(); n++)
    source.memory[n] = 0;
  for (int64_t c = 0; c < shape[0]; c++)
    for (int64_t i = 0; i < shape[1]; i++)
      for (int64_t j = 0; j < shape[2]; j++)
        for (int64_t k = 0; k < shape[3]; k++) {
          const int64_t number = (c * 977 + i * 131 + j * 37 + k * 11) % 251;
          put_number(source.memory.data() + source.origin + c * source.stride[0] +
                         i * source.stride[1] + j * source.stride[2] + k * source.stride[3],
                     job.source_type, number);
        }
  job.source = source.address();
  job.source_channel_stride = source.stride[0];
  for (int a = 0; a < 3; a++) {
    job.source_size[a] = shape[1 + a];
    job.source_stride[a] = source.stride[1 + a];
    job.source_start[a] = bytes.between(-3, 5);
    job.first[a] = job.source_start[a] - (bytes.once_in(3) ? bytes.below(5) : 0);
    job.last[a] = job.source_start[a] + shape[1 + a] - 1 + (bytes.once_in(3) ? bytes.below(5) : 0);
  }
}

void draw_job(Bytes& bytes, VoxpipeJob& job) {
  job.mode = bytes.below(4);
  job.padding = bytes.below(4);
  job.out_type = bytes.once_in(3) ? job.source_type : bytes.below(VOXPIPE_TYPES);
  for (int a = 0; a < 3; a++)
    job.out_size[a] = bytes.between(1, bytes.once_in(6) ? 150 : (bytes.once_in(3) ? 20 : 6));
  draw_matrix(bytes, job.matrix);
  const bool scaled = bytes.once_in(3);
  job.slope = scaled ? bytes.real(-2, 2) : 1;
  job.intercept = scaled ? bytes.real(-9, 9) : 0;
  job.fill = bytes.real(-300, 300);
  job.has_epilogue = bytes.once_in(4);
  job.scale = bytes.real(-1, 1);
  job.shift = bytes.real(-5, 5);
  job.low = -50;
  job.high = 60.5;
}

void draw_step(Bytes& bytes, VoxpipeStep& step, const std::vector<float>& weights) {
  memset(&step, 0, sizeof(step));
  step.kind = bytes.between(VOXPIPE_SCALE, VOXPIPE_COARSEN);
  step.key = bytes.word();
  const double low = bytes.real(-9, 9), high = low + bytes.real(1, 9);  // never infinite
  const double numbers[][4] = {{bytes.real(-2, 2), bytes.real(-5, 5), low, high},
                               {bytes.real(0.1, 1.5), low, bytes.real(-1, 1), bytes.real(-9, 9)},
                               {bytes.real(-2, 2), bytes.real(0, 2), 0, 0}};
  memcpy(step.number, numbers[step.kind > 2 ? 2 : step.kind], sizeof(step.number));
  for (int a = 0; a < 3; a++) {
    step.corner[a] = bytes.between(-99, 99);
    step.weights[a] = reinterpret_cast<int64_t>(weights.data());
    step.radius[a] = bytes.below(static_cast<int64_t>(weights.size()));
    if (step.kind == VOXPIPE_COARSEN) step.number[a] = bytes.once_in(3) ? 1 : bytes.real(1, 6);
  }
}

// All steps on all paths: the same numbers, and the same statistics of them.
void change_values(Bytes& bytes) {
  VoxpipeValues job;
  memset(&job, 0, sizeof(job));
  job.channel = bytes.below(3);
  size_t count = 1;
  for (int a = 0; a < 3; a++) {
    job.size[a] = bytes.between(1, bytes.once_in(a < 2 ? 9 : 3) ? 90 : 9);
    count *= static_cast<size_t>(job.size[a]);
  }
  std::vector<float> values(count);
  for (size_t n = 0; n < values.size(); n++)
    values[n] = static_cast<float>(static_cast<int64_t>(n * 977 % 251) - 60) / 16;
  std::vector<float> weights;
  for (int64_t n = bytes.between(1, 6); n > 0; n--) weights.push_back(static_cast<float>(n) / 20);
  std::vector<VoxpipeStep> steps(static_cast<size_t>(bytes.between(0, 5)));
  for (VoxpipeStep& step : steps) draw_step(bytes, step, weights);
  job.steps = reinterpret_cast<int64_t>(steps.data());
  job.count = static_cast<int64_t>(steps.size());
  std::vector<double> statistics(4);
  if (bytes.once_in(2)) job.statistics = reinterpret_cast<int64_t>(statistics.data());
  std::vector<uint8_t> expected;
  for (int64_t path = VOXPIPE_PORTABLE; path <= voxpipe_best_path(); path++) {
    std::vector<float> copy = values;
    job.path = path;
    job.values = reinterpret_cast<int64_t>(copy.data());
    if (voxpipe_values(&job) != VOXPIPE_DONE) abort();
    std::vector<uint8_t> found(copy.size() * sizeof(float) + 4 * sizeof(double));
    memcpy(found.data(), copy.data(), copy.size() * sizeof(float));
    memcpy(found.data() + copy.size() * sizeof(float), statistics.data(), 4 * sizeof(double));
    if (path == VOXPIPE_PORTABLE) {
      expected = found;
      for (uint8_t byte : found) digest = (digest ^ byte) * 1099511628211u;
    } else if (found != expected) {
      fprintf(stderr, "path %d changes values otherwise\n", static_cast<int>(path));
      abort();
    }
  }
}

int64_t run_on(VoxpipeJob job, Array out, int64_t path, std::vector<uint8_t>& result) {
  job.path = path;
  job.out = out.address();
  const int64_t status = voxpipe_run(&job);
  result = out.memory;
  return status;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes bytes(data, size);
  if (bytes.once_in(3)) {
    change_values(bytes);
    return 0;
  }
  VoxpipeJob job;
  memset(&job, 0, sizeof(job));
  Array source, out;
  draw_source(bytes, job, source);
  draw_job(bytes, job);
  std::vector<double> clips, control, earlier;
  if (bytes.once_in(5)) {
    job.clip_count = bytes.between(1, 18);
    clips.resize(static_cast<size_t>(15 * job.clip_count));
    for (int64_t n = 0; n < job.clip_count; n++) {
      draw_matrix(bytes, clips.data() + 15 * n);
      for (int a = 0; a < 3; a++) clips[static_cast<size_t>(15 * n + 12 + a)] = static_cast<double>(bytes.between(0, 30));
    }
    job.clips = reinterpret_cast<int64_t>(clips.data());
  }
  if (bytes.once_in(4)) {
    int64_t count = 3;
    for (int a = 0; a < 3; a++) count *= job.control_size[a] = bytes.between(1, 6);
    for (int64_t n = 0; n < count; n++)
      control.push_back(bytes.once_in(200) ? wild(bytes) : bytes.real(-4, 4));
    draw_matrix(bytes, job.control_matrix);
    for (int n = 0; n < 12; n++) job.control_matrix[n] *= bytes.once_in(2) ? 0.2 : 1;
    job.control = reinterpret_cast<int64_t>(control.data());
    if (bytes.once_in(3)) {
      count = 3;
      for (int a = 0; a < 3; a++) count *= job.earlier_size[a] = bytes.between(1, 6);
      for (int64_t n = 0; n < count; n++)
        earlier.push_back(bytes.once_in(200) ? wild(bytes) : bytes.real(-4, 4));
      draw_matrix(bytes, job.earlier_matrix);
      for (int n = 0; n < 12; n++) job.earlier_matrix[n] *= bytes.once_in(2) ? 0.2 : 1;
      job.earlier = reinterpret_cast<int64_t>(earlier.data());
    }
  }
  const int64_t shape[4] = {job.channels, job.out_size[0], job.out_size[1], job.out_size[2]};
  out.lay_out(bytes, shape, SIZES[job.out_type]);
  for (size_t n = 0; n < out.memory.size(); n++) out.memory[n] = static_cast<uint8_t>(77 + n % 3);
  for (int n = 0; n < 3; n++) job.out_stride[n] = out.stride[1 + n];
  job.out_channel_stride = out.stride[0];

  const std::vector<uint8_t> untouched = out.memory;
  std::vector<uint8_t> expected, found;
  const int64_t status = run_on(job, out, VOXPIPE_PORTABLE, expected);
  if (status != VOXPIPE_DONE && expected != untouched) abort();
  for (uint8_t byte : expected) digest = (digest ^ byte) * 1099511628211u;
  for (int64_t path = VOXPIPE_AVX2; path <= voxpipe_best_path(); path++)
    if (run_on(job, out, path, found) != status || found != expected) {
      fprintf(stderr, "path %d differs: mode %d padding %d types %d to %d\n", static_cast<int>(path),
              static_cast<int>(job.mode), static_cast<int>(job.padding),
              static_cast<int>(job.source_type), static_cast<int>(job.out_type));
      abort();
    }
  return 0;
}

#ifndef VOXPIPE_LIBFUZZER
int main(int count, char** arguments) {
  const long rounds = count > 1 ? atol(arguments[1]) : 2000;
  uint64_t state = count > 2 ? strtoull(arguments[2], nullptr, 10) : 1;
  std::vector<uint8_t> data(4096);
  for (long n = 0; n < rounds; n++) {
    for (uint8_t& byte : data) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      byte = static_cast<uint8_t>(state >> 56);
    }
    LLVMFuzzerTestOneInput(data.data(), data.size());
  }
  printf("%ld jobs, paths up to %d, digest %016llx\n", rounds,
         static_cast<int>(voxpipe_best_path()), static_cast<unsigned long long>(digest));
  return 0;
}
#endif
