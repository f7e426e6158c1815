// Powers of values, and the statistics that values are bent and spread by.
//
// intensity/brightness.py takes the same steps in the same order, so both give the same bits: no
// library function, no contraction, and sums of sixteen lanes whatever a vector holds.
#pragma once

#include "processor.h"
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

  void add(const float* values, int64_t width) {
    if (!count) begin(values[0]);
    count += width;
    Statistics s = *this;  // in registers
    int64_t v = 0;
    for (; v + WIDTH <= width; v += WIDTH)
      for (int n = 0; n < WIDTH / LANES; n++) {
        const float* from = values + v + n * LANES;
        const Floats x = vector_at<Floats>(from);
        s.low[n] = x < s.low[n] ? x : s.low[n];
        s.high[n] = x > s.high[n] ? x : s.high[n];
        for (int h = 0; h < 2; h++) {
          const HalfFloats half = vector_at<HalfFloats>(from + h * HALF);
          const Doubles d = __builtin_convertvector(half, Doubles) - first;
          s.sum[2 * n + h] += d;
          s.square[2 * n + h] += d * d;
        }
      }
    for (int l = 0; v + l < width; l++) {
      const float x = values[v + l];
      const double d = static_cast<double>(x) - first;
      s.sum[l / HALF][l % HALF] += d;
      s.square[l / HALF][l % HALF] += d * d;
      s.low[l / LANES][l % LANES] = least(s.low[l / LANES][l % LANES], x);
      s.high[l / LANES][l % LANES] = most(s.high[l / LANES][l % LANES], x);
    }
    *this = s;
  }

  static double total(const Doubles* lanes) {
    double all = 0;
    for (int l = 0; l < WIDTH; l++) all += lanes[l / HALF][l % HALF];
    return all;
  }

  bool is_finite() const { return __builtin_isfinite(total(sum)); }
  double mean() const { return first + total(sum) / static_cast<double>(count); }

  // Of a sample, n - 1, as nnU-Net has it.
  double deviation() const {
    const double n = static_cast<double>(count), all = total(sum);
    const double variance = (total(square) - all * all / n) / (n > 1 ? n - 1 : 1.0);
    return __builtin_sqrt(variance < 0 ? 0 : variance);
  }

  template <class Take>
  static double taken(const Floats* lanes, const Take& take) {
    float all = lanes[0][0];
    for (int l = 1; l < WIDTH; l++) all = take(all, lanes[l / LANES][l % LANES]);
    return static_cast<double>(all);
  }

  double lowest() const { return taken(low, least<float>); }
  double highest() const { return taken(high, most<float>); }
};

}  // namespace VOXPIPE_PATH_NAME
