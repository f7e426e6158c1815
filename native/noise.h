// Normal numbers that belong to voxels of a lattice: the same wherever a patch begins.
//
// intensity/noise.py does the same steps in the same order in float32, so both give
// the same bits: no library function but the square root, which IEEE 754 defines.
#pragma once

#include "processor.h"
#include "vectors.h"

namespace VOXPIPE_PATH_NAME {

constexpr int64_t NOISE_BLOCKS = 512;  // at once: 8 KiB of numbers stay in the fastest cache
constexpr int64_t NOISE_STEP = 16;     // blocks that are worked on side by side

struct Counters {
  uint32_t first[NOISE_BLOCKS];
  uint32_t second[NOISE_BLOCKS];
  uint32_t third[NOISE_BLOCKS];
};

struct Quads {
  uint32_t word[4][NOISE_STEP];
};

constexpr int64_t LONGS = LANES / 2;

// The products of the lower halves, 64 bits each; the upper halves are never looked at.
inline Longs multiplied(Longs words, Longs factor) {
#if defined(VOXPIPE_MULTIPLY_WORDS)
  return (Longs)(VOXPIPE_MULTIPLY_WORDS(words, factor));
#else
  return (words & 0xffffffffu) * factor;
#endif
}

inline Longs widened(const uint32_t* words) {
  Longs wide;
  for (int64_t l = 0; l < LONGS; l++) wide[l] = words[l];
  return wide;
}

// Philox 4x32 of ten rounds: Salmon, Moraes, Dror & Shaw, "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011.
inline void philox(const Counters& counters, int64_t at, uint32_t fourth, uint64_t key,
                   Quads& out) {
  const Longs zero = {};
  for (int64_t l = 0; l < NOISE_STEP; l += LONGS) {
    Longs a = widened(counters.first + at + l), b = widened(counters.second + at + l);
    Longs c = widened(counters.third + at + l), d = zero + fourth;
    uint32_t low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; round++) {
      const Longs p = multiplied(a, zero + 0xD2511F53u), q = multiplied(c, zero + 0xCD9E8D57u);
      a = (q >> 32) ^ b ^ (zero + low);
      c = (p >> 32) ^ d ^ (zero + high);
      b = q;
      d = p;
      low += 0x9E3779B9u;
      high += 0xBB67AE85u;
    }
    for (int64_t n = 0; n < LONGS; n++) {
      out.word[0][l + n] = static_cast<uint32_t>(a[n]);
      out.word[1][l + n] = static_cast<uint32_t>(b[n]);
      out.word[2][l + n] = static_cast<uint32_t>(c[n]);
      out.word[3][l + n] = static_cast<uint32_t>(d[n]);
    }
  }
}

inline float to_floats(int32_t whole) { return static_cast<float>(whole); }
inline Floats to_floats(Ints whole) { return __builtin_convertvector(whole, Floats); }

// The natural logarithm of the mantissa of ``number``, from sqrt(1/2) to sqrt(2), whose binary exponent
// is ``e``: two terms that are added last. It is that of Cephes (logf).
template <class F, class I>
inline F log_of_mantissa(F number, F& e, F& x, F& z) {
  const I shifted = bits_of<I>(number) - 0x3f3504f3;  // sqrt(1/2)
  e = to_floats(shifted >> 23);
  x = bits_of<F>((shifted & 0x007fffff) + 0x3f3504f3) - 1.0f;
  z = x * x;
  // Powers by pairs: what a processor can do side by side, and no chain of sums.
  const F zz = z * z;
  const F a = x * -2.4999993993e-1f + 3.3333331174e-1f;
  const F b = x * -1.6668057665e-1f + 2.0000714765e-1f;
  const F c = x * -1.2420140846e-1f + 1.4249322787e-1f;
  const F d = x * -1.1514610310e-1f + 1.1676998740e-1f;
  const F y = (a + b * z) + (c + d * z + zz * 7.0376836292e-2f) * zz;
  return y * x * z;
}

// sqrt(-2 ln u) for u in (0, 1], 31 bits of ``word``.
inline float radius_of(uint32_t word) {
  const float u = static_cast<float>(static_cast<int32_t>(word >> 1 | 1u)) * 4.656612873077393e-10f;
  float e, x, z, y = log_of_mantissa<float, int32_t>(u, e, x, z);
  y = y + e * -2.12194440e-4f;
  y = y + z * -0.5f;
  const float log = x + y + e * 0.693359375f;
  const float square = log * -2.0f;
  return __builtin_sqrtf(square > 0.0f ? square : 0.0f);
}

// Box & Muller (1958): two normal numbers of two words. Sine and cosine are those of Cephes.
inline void normal_pair(uint32_t one, uint32_t other, float& even, float& odd) {
  const float r = radius_of(one);
  // The top bits choose a quarter of the circle, the others an angle of at most 1/8 of it.
  const float x = static_cast<float>(static_cast<int32_t>(other << 2)) * 3.657295198167899e-10f;
  const float z = x * x;
  const float sine =
      ((z * -1.9515295891e-4f + 8.3321608736e-3f) * z + -1.6666654611e-1f) * z * x + x;
  const float cosine =
      ((z * 2.443315711809948e-5f + -1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z +
      z * -0.5f + 1.0f;
  const uint32_t quarter = other >> 30, swapped = quarter & 1u;
  const float c = swapped ? sine : cosine, s = swapped ? cosine : sine;
  even = r * bits_of<float>(bits_of<uint32_t>(c) ^ ((quarter + 1u) >> 1 & 1u) << 31);
  odd = r * bits_of<float>(bits_of<uint32_t>(s) ^ (quarter >> 1) << 31);
}

// Four numbers per counter, one after another.
inline void normals(const Counters& counters, int64_t count, uint32_t fourth, uint64_t key,
                    float* out) {
  for (int64_t at = 0; at < count; at += NOISE_STEP) {
    Quads words;
    float made[4][NOISE_STEP];
    philox(counters, at, fourth, key, words);
    for (int64_t l = 0; l < NOISE_STEP; l++)
      normal_pair(words.word[0][l], words.word[1][l], made[0][l], made[1][l]);
    for (int64_t l = 0; l < NOISE_STEP; l++)
      normal_pair(words.word[2][l], words.word[3][l], made[2][l], made[3][l]);
    for (int64_t l = 0; l < NOISE_STEP; l++)
      for (int w = 0; w < 4; w++) out[4 * (at + l) + w] = made[w][l];
  }
}

// Rows of one plane of one channel, one after another in memory.
struct Rows {
  float* values;
  int64_t count, width;
  int64_t channel, i, j;  // of the first voxel
};

// ``value + (mean + std n)``, or ``sqrt((value + std n)^2 + (std m)^2)``.
inline void add_noise(const VoxpipeStep& s, const float* n, const float* m, int64_t count,
                      float* values) {
  const float mean = static_cast<float>(s.number[0]), std = static_cast<float>(s.number[1]);
  if (s.kind == VOXPIPE_GAUSSIAN) {
    for (int64_t v = 0; v < count; v++) values[v] = values[v] + (n[v] * std + mean);
    return;
  }
  for (int64_t v = 0; v < count; v++) {
    const float real = values[v] + n[v] * std, imaginary = m[v] * std;
    values[v] = __builtin_sqrtf(real * real + imaginary * imaginary);
  }
}

inline void noise(const VoxpipeStep& s, const Rows& rows) {
  const int64_t before = s.corner[2] & 3, first = s.corner[2] >> 2;
  const int64_t last = (s.corner[2] + rows.width - 1) >> 2, blocks = last - first + 1;
  Counters counters;
  float even[4 * NOISE_BLOCKS], odd[4 * NOISE_BLOCKS];
  // Whole rows at a time, or parts of one where it is long.
  const int64_t most_rows = blocks < NOISE_BLOCKS ? NOISE_BLOCKS / blocks : 1;
  for (int64_t n = 0; n < NOISE_BLOCKS; n++)
    counters.first[n] = static_cast<uint32_t>(s.corner[0] + rows.i);
  for (int64_t j = 0; j < rows.count; j += most_rows) {
    const int64_t here = least(rows.count - j, most_rows);
    for (int64_t part = 0; part < blocks; part += NOISE_BLOCKS) {
      const int64_t some = least(blocks - part, NOISE_BLOCKS);
      const int64_t total = here * some, padded = (total + NOISE_STEP - 1) / NOISE_STEP * NOISE_STEP;
      for (int64_t r = 0; r < here; r++)
        for (int64_t b = 0; b < some; b++) {
          counters.second[r * some + b] = static_cast<uint32_t>(s.corner[1] + rows.j + j + r);
          counters.third[r * some + b] = static_cast<uint32_t>(first + part + b);
        }
      for (int64_t n = total; n < padded; n++) counters.second[n] = counters.third[n] = 0;
      normals(counters, total, static_cast<uint32_t>(2 * rows.channel), s.key, even);
      if (s.kind == VOXPIPE_RICIAN)
        normals(counters, total, static_cast<uint32_t>(2 * rows.channel + 1), s.key, odd);
      // Of the first block the voxels before the corner are left out, of the last those after.
      const int64_t skip = part == 0 ? before : 0, begin = 4 * part + skip - before;
      const int64_t count = least(4 * some - skip, rows.width - begin);
      for (int64_t r = 0; r < here; r++) {
        const int64_t at = 4 * r * some + skip;
        add_noise(s, even + at, odd + at, count, rows.values + (j + r) * rows.width + begin);
      }
    }
  }
}

}  // namespace VOXPIPE_PATH_NAME
