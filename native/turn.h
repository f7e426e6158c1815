// Turning a block of elements: rows become columns, four or more at a time in registers.
#pragma once

#include "processor.h"
#include "geometry.h"

namespace VOXPIPE_PATH_NAME {

// Rows of a block. With 16, one turned row of float32 is a whole cache line.
constexpr int64_t BLOCK = 16;
// Channels that share the taps of a run; each has a block of its own.
constexpr int64_t CHANNELS = 4;
constexpr int64_t BLOCK_BYTES = BLOCK * RUN * 8;

// N vectors of N elements, N x N bytes x size = 16 per vector.
template <class E> struct Square;
template <> struct Square<uint8_t> {
  typedef uint8_t Row __attribute__((vector_size(16)));
  static inline Row low(Row a, Row b) {
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  }
  static inline Row high(Row a, Row b) {
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                   31);
  }
};
template <> struct Square<uint16_t> {
  typedef uint16_t Row __attribute__((vector_size(16)));
  static inline Row low(Row a, Row b) {
    return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  }
  static inline Row high(Row a, Row b) {
    return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
  }
};
template <> struct Square<uint32_t> {
  typedef uint32_t Row __attribute__((vector_size(16)));
  static inline Row low(Row a, Row b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
  static inline Row high(Row a, Row b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
};
template <> struct Square<uint64_t> {
  typedef uint64_t Row __attribute__((vector_size(16)));
  static inline Row low(Row a, Row b) { return __builtin_shufflevector(a, b, 0, 2); }
  static inline Row high(Row a, Row b) { return __builtin_shufflevector(a, b, 1, 3); }
};

// Interleaving row n with row n + N/2, log2(N) times, turns a square.
template <class E>
inline void turn_square(const uint8_t* from, int64_t from_stride, uint8_t* to, int64_t to_stride) {
  typedef typename Square<E>::Row Row;
  constexpr int N = 16 / sizeof(E);
  Row rows[N], next[N];
  for (int n = 0; n < N; n++) rows[n] = load<Row>(from + n * from_stride);
#pragma GCC unroll 4
  for (int stage = 1; stage < N; stage *= 2) {
#pragma GCC unroll 8
    for (int n = 0; n < N / 2; n++) {
      next[2 * n] = Square<E>::low(rows[n], rows[n + N / 2]);
      next[2 * n + 1] = Square<E>::high(rows[n], rows[n + N / 2]);
    }
#pragma GCC unroll 16
    for (int n = 0; n < N; n++) rows[n] = next[n];
  }
#pragma GCC unroll 16
  for (int n = 0; n < N; n++) put<Row>(to + n * to_stride, rows[n]);
}

// ``rows`` x ``count`` elements, each row dense, its rows from_stride apart. Element (r, c) goes to
// to + r * row_step + c * column_step.
template <class E>
void turn_elements(const uint8_t* from, int64_t from_stride, int64_t rows, int64_t count,
                   uint8_t* to, int64_t row_step, int64_t column_step) {
  constexpr int64_t N = 16 / sizeof(E), SIZE = sizeof(E);
  const bool dense = row_step == SIZE;
  int64_t c = 0;
  for (; dense && rows >= N && c + N <= count; c += N) {
    int64_t r = 0;
    for (; r + N <= rows; r += N)
      turn_square<E>(from + r * from_stride + c * SIZE, from_stride,
                     to + r * SIZE + c * column_step, column_step);
    for (; r < rows; r++)
      for (int64_t n = c; n < c + N; n++)
        put<E>(to + r * SIZE + n * column_step, load<E>(from + r * from_stride + n * SIZE));
  }
  for (; c < count; c++)
    for (int64_t r = 0; r < rows; r++)
      put<E>(to + r * row_step + c * column_step, load<E>(from + r * from_stride + c * SIZE));
}

inline void turn_block(int64_t size, const uint8_t* from, int64_t from_stride, int64_t rows,
                       int64_t count, uint8_t* to, int64_t row_step, int64_t column_step) {
  switch (size) {
    case 1: turn_elements<uint8_t>(from, from_stride, rows, count, to, row_step, column_step); break;
    case 2: turn_elements<uint16_t>(from, from_stride, rows, count, to, row_step, column_step); break;
    case 4: turn_elements<uint32_t>(from, from_stride, rows, count, to, row_step, column_step); break;
    default: turn_elements<uint64_t>(from, from_stride, rows, count, to, row_step, column_step); break;
  }
}

}  // namespace VOXPIPE_PATH_NAME
