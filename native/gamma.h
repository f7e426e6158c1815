// Powers of values, and the statistics that values are bent and spread by.
//
// intensity/brightness.py takes the same steps in the same order, so both give the same bits: no
// library function, no contraction, and sums of sixteen lanes whatever a vector holds.
#pragma once

#include "noise.h"

namespace VOXPIPE_PATH_NAME {

// An exponent in two parts, of which the larger has 12 bits: its products with whole numbers of
// binary digits are exact, and so an error does not grow with them.
struct Exponent {
  float large, small, log;  // log: the whole by what makes natural logarithms binary ones

  explicit Exponent(double gamma) {
    const uint32_t bits = bits_of<uint32_t>(static_cast<float>(gamma)) & 0xfffff000u;
    large = bits_of<float>(bits);
    small = static_cast<float>(gamma - static_cast<double>(large));
    log = static_cast<float>(gamma * 1.4426950408889634);
  }
};

// ``a`` to the power, for a >= 0; below 2^-126 it is 0. Within 2.5 units of the last place for
// exponents up to 2, and 4 up to 5. The logarithm is that of Cephes (logf), and so is the power of 2 (exp2f).
inline Floats power_of(Floats a, const Exponent& g) {
  Floats e, x, z;
  const Floats y = log_of_mantissa<Floats, Ints>(a, e, x, z) + z * -0.5f;
  const Floats t = (x + y) * g.log, whole = e * g.large, sum = whole + t;
  const Floats below = sum < 300.0f ? sum : all_of(300.0f);
  const Floats rounded = (below > -300.0f ? below : all_of(-300.0f)) + 12582912.0f;
  const Floats n = rounded - 12582912.0f, f = (whole - n) + (e * g.small + t), ff = f * f;
  const Floats b = f * 5.550332471162809e-2f + 2.402264791363012e-1f;
  const Floats c = f * 1.339887440266574e-3f + 9.618437357674640e-3f;
  const Floats p = (f * 6.931472028550421e-1f + 1.0f) + (b + (c + ff * 1.535336188319500e-4f) * ff) * ff;
  const Words unit = ((Words)rounded - bits_of<uint32_t>(12582912.0f) + 127u) << 23;
  Floats result = p * (Floats)unit;
  result = n < -126.0f ? Floats{} : result;
  result = n > 127.0f ? all_of(__builtin_inff()) : result;
  result = a < 1.17549435e-38f ? Floats{} : result;
  return a <= 3.4028234e38f ? result : a;
}

// Values by their distance from ``start``, of which ``inward`` makes a part of the range.
inline void bend_values(float* v, int64_t count, const Exponent exponent, const float start,
                        const float inward, const float outward) {
  if (outward == 0) return;
  const auto bent = [&](Floats value) {
    const Words part = (Words)((value - start) * inward), sign = part & 0x80000000u;
    return (Floats)((Words)power_of((Floats)(part ^ sign), exponent) | sign) * outward + start;
  };
  int64_t n = 0;
  for (; n + LANES <= count; n += LANES) put_vector(v + n, bent(vector_at<Floats>(v + n)));
  float rest[LANES] = {};
  const size_t bytes = static_cast<size_t>(count - n) * sizeof(float);
  memcpy(rest, v + n, bytes);
  put_vector(rest, bent(vector_at<Floats>(rest)));
  memcpy(v + n, rest, bytes);
}

// Of what a pass leaves, in sixteen lanes: voxel k of a row counts in lane k % 16.
struct Statistics {
  static constexpr int WIDTH = 16, HALF = LANES / 2;
  Doubles sum[WIDTH / HALF], square[WIDTH / HALF];
  Floats low[WIDTH / LANES], high[WIDTH / LANES];
  double first;
  int64_t count;

  void begin(float value) {
    first = static_cast<double>(value);  // all are counted from it, so that squares keep digits
    for (int n = 0; n < WIDTH / HALF; n++) sum[n] = square[n] = Doubles{};
    for (int n = 0; n < WIDTH / LANES; n++) low[n] = high[n] = all_of(value);
  }

  void add(const Rows& rows) {
    if (!count) begin(rows.values[0]);
    count += rows.count * rows.width;
    Statistics s = *this;  // in registers
    const float* row = rows.values;
    for (int64_t r = 0; r < rows.count; r++, row += rows.width) {
      int64_t v = 0;
      for (; v + WIDTH <= rows.width; v += WIDTH) s.add_sixteen(row + v);
      // What nothing is known of counts as the first one, which changes nothing.
      float rest[WIDTH];
      for (float& value : rest) value = static_cast<float>(first);
      memcpy(rest, row + v, static_cast<size_t>(rows.width - v) * sizeof(float));
      if (v < rows.width) s.add_sixteen(rest);
    }
    *this = s;
  }

  VOXPIPE_INLINE void add_sixteen(const float* values) {
    double wide[WIDTH];  // by a loop: of vectors that are converted GCC 12 makes more, smaller ones
    for (int n = 0; n < WIDTH; n++) wide[n] = static_cast<double>(values[n]) - first;
    for (int n = 0; n < WIDTH / HALF; n++) {
      const Doubles d = vector_at<Doubles>(wide + n * HALF);
      sum[n] += d;
      square[n] += d * d;
    }
    for (int n = 0; n < WIDTH / LANES; n++) {
      const Floats x = vector_at<Floats>(values + n * LANES);
      low[n] = x < low[n] ? x : low[n];
      high[n] = x > high[n] ? x : high[n];
    }
  }

  // Mean, deviation (of a sample, n - 1, as nnU-Net has it), least and largest value.
  void report(double* to) const {
    double all = 0, squares = 0;
    float least_yet = low[0][0], most_yet = high[0][0];
    for (int l = 0; l < WIDTH; l++) {
      all += sum[l / HALF][l % HALF];
      squares += square[l / HALF][l % HALF];
      least_yet = least(least_yet, low[l / LANES][l % LANES]);
      most_yet = most(most_yet, high[l / LANES][l % LANES]);
    }
    const double n = static_cast<double>(count);
    const double variance = (squares - all * all / n) / (n > 1 ? n - 1 : 1.0);
    to[0] = first + all / n;
    to[1] = __builtin_sqrt(variance < 0 ? 0 : variance);
    to[2] = static_cast<double>(least_yet);
    to[3] = static_cast<double>(most_yet);
  }
};

}  // namespace VOXPIPE_PATH_NAME
