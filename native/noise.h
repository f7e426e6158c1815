// Normal numbers that belong to voxels of a lattice: the same wherever a patch begins.
//
// intensity/noise.py does the same steps in the same order in float32, so both give
// the same bits: no library function but the square root, which IEEE 754 defines.
#pragma once

#include "vectors.h"

namespace VOXPIPE_PATH_NAME {

constexpr int64_t BLOCKS = 256;     // at once, of four voxels each: their numbers stay in the cache
constexpr int64_t SIDE_BY_SIDE = 16;  // of them

// Which blocks of some rows a vector is about, each by its row and its place in that, of which every
// second number counts; those that follow are those of the next row.
struct Blocks {
  Ints row, place;

  void advance(Ints by, int32_t in_row) {
    place += by;
    for (int32_t n = 0; n <= LANES / 2; n += in_row) {
      const Ints beyond = place >= in_row;
      place -= beyond & in_row;
      row -= beyond;
    }
  }
};

// The products of the lower halves, 64 bits each; the upper halves are never looked at.
inline Longs multiplied(Longs words, Longs factor) {
#if defined(VOXPIPE_MULTIPLY_WORDS)
  return (Longs)(VOXPIPE_MULTIPLY_WORDS(words, factor));
#else
  return (words & 0xffffffffu) * factor;
#endif
}

// Philox 4x32 of ten rounds: Salmon, Moraes, Dror & Shaw, "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011. ``x`` are the four words of each counter, of which the lower halves count.
inline void philox(Longs (&x)[4], uint64_t key) {
  const Longs zero = {};
  uint32_t low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; round++) {
    const Longs p = multiplied(x[0], zero + 0xD2511F53u), q = multiplied(x[2], zero + 0xCD9E8D57u);
    x[0] = (q >> 32) ^ x[1] ^ (zero + low);
    x[2] = (p >> 32) ^ x[3] ^ (zero + high);
    x[1] = q;
    x[3] = p;
    low += 0x9E3779B9u;
    high += 0xBB67AE85u;
  }
}

inline float floats_of(int32_t whole) { return static_cast<float>(whole); }

// The natural logarithm of the mantissa of ``number``, from sqrt(1/2) to sqrt(2), whose binary exponent
// is ``e``: two terms that are added last. It is that of Cephes (logf).
template <class F, class I>
inline F log_of_mantissa(F number, F& e, F& x, F& z) {
  const I shifted = bits_of<I>(number) - 0x3f3504f3;  // sqrt(1/2)
  e = floats_of(shifted >> 23);
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

// Rows of one plane of one channel, one after another in memory.
struct Rows {
  float* values;
  int64_t count, width;
  int64_t channel, i, j;  // of the first voxel
};

// ``value + (mean + std n)``, or ``sqrt((value + std n)^2 + (std m)^2)``.
VOXPIPE_INLINE void add_noise(const VoxpipeStep& s, const float* n, const float* m, int64_t count,
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

// Four normal numbers for each of SIDE_BY_SIDE blocks from ``at`` on, one after another.
inline void normals(const VoxpipeStep& s, const Rows& rows, int32_t in_row, int64_t part, Blocks& at,
                    float* out) {
  constexpr int64_t SOME = LANES / 2;
  uint32_t word[4][SIDE_BY_SIDE];
  float made[4][SIDE_BY_SIDE];
  for (int64_t l = 0; l < SIDE_BY_SIDE; l += SOME) {
    const Words zero = {};
    const auto word_of = [](int64_t number) { return static_cast<uint32_t>(number); };
    Longs x[4] = {(Longs)(zero + word_of(s.corner[0] + rows.i)),
                  (Longs)((Words)at.row + word_of(s.corner[1] + rows.j)),
                  (Longs)((Words)at.place + word_of(s.corner[2] >> 2)),
                  (Longs)(zero + word_of(2 * rows.channel + part))};
    philox(x, s.key);
    for (int w = 0; w < 4; w++)
      for (int64_t n = 0; n < SOME; n++) word[w][l + n] = static_cast<uint32_t>(x[w][n]);
    at.advance(Ints{} + int32_t{SOME}, in_row);
  }
  for (int w = 0; w < 4; w += 2)
    for (int64_t l = 0; l < SIDE_BY_SIDE; l++)
      normal_pair(word[w][l], word[w + 1][l], made[w][l], made[w + 1][l]);
#pragma GCC unroll 1  // else GCC 12 takes vectors apart
  for (int64_t l = 0; l < SIDE_BY_SIDE; l++)
    for (int w = 0; w < 4; w++) out[4 * l + w] = made[w][l];
}

// A block is four voxels of a row whose numbers are made together; the first and the last one of a
// row may hang over its ends.
inline void noise(const VoxpipeStep& s, const Rows& rows) {
  const int64_t before = s.corner[2] & 3;
  const int32_t in_row = static_cast<int32_t>((before + rows.width - 1) >> 2) + 1;
  const int64_t total = rows.count * in_row;
  float made[2][4 * BLOCKS];
  Blocks next[2] = {};  // of the two fields of numbers
  for (Blocks& blocks : next) blocks.advance(lane_numbers() >> 1, in_row);
  for (int64_t at = 0; at < total; at += BLOCKS) {
    const int64_t some = least(BLOCKS, total - at);
    for (int64_t part = 0; part < (s.kind == VOXPIPE_RICIAN ? 2 : 1); part++)
      for (int64_t n = 0; n < some; n += SIDE_BY_SIDE)
        normals(s, rows, in_row, part, next[part], made[part] + 4 * n);
    for (int64_t n = 0, here; n < some; n += here) {  // those of one row at a time
      const int64_t row = (at + n) / in_row, place = 4 * ((at + n) % in_row) - before;
      here = least(some - n, in_row - (at + n) % in_row);
      const int64_t begin = most<int64_t>(0, place), from = 4 * n + begin - place;
      const int64_t count = least(place + 4 * here, rows.width) - begin;
      add_noise(s, made[0] + from, made[1] + from, count, rows.values + row * rows.width + begin);
    }
  }
}

}  // namespace VOXPIPE_PATH_NAME
