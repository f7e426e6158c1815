// Turning a block of elements: rows become columns, up to sixteen at a time in registers.
#pragma once

#include "processor.h"
#include "vectors.h"

namespace VOXPIPE_PATH_NAME {

// Rows of a block. With 16, one turned row of float32 is a whole cache line.
constexpr int64_t BLOCK = 16;
constexpr int64_t BLOCK_BYTES = BLOCK * RUN * 8;

// A square of N x N elements, a vector for each row: as many as fit, and no more rows than a block.
template <class E> struct Square {
  static constexpr int SIZE = sizeof(E), MOST = BLOCK * SIZE;
  static constexpr int BYTES = 4 * LANES < MOST ? 4 * LANES : MOST;
  static constexpr int N = BYTES / SIZE;
  typedef E Row __attribute__((vector_size(BYTES)));
};

// Interleaving row n with row n + N/2, log2(N) times, turns a square. ``row(n)`` is row n.
template <class E, class RowAt>
inline void turn_square(const RowAt& row, uint8_t* to, int64_t to_stride) {
  typedef Square<E> S;
  typedef typename S::Row Row;
  constexpr int N = S::N;
  constexpr auto ALL = typename NumbersBelow<N>::type{};
  Row rows[N], next[N];
#pragma GCC unroll 16
  for (int n = 0; n < N; n++) rows[n] = row(n);
#pragma GCC unroll 4
  for (int stage = 1; stage < N; stage *= 2) {
#pragma GCC unroll 8
    for (int n = 0; n < N / 2; n++) {
      next[2 * n] = interleaved<0>(rows[n], rows[n + N / 2], ALL);
      next[2 * n + 1] = interleaved<1>(rows[n], rows[n + N / 2], ALL);
    }
#pragma GCC unroll 16
    for (int n = 0; n < N; n++) rows[n] = next[n];
  }
#pragma GCC unroll 16
  for (int n = 0; n < N; n++) put<Row>(to + n * to_stride, rows[n]);
}

// ``rows`` x ``columns`` elements, at least as many as a square has, become columns that are
// ``column_step`` apart; the last squares of both axes lie over those before them. ``load(r, c)`` is a
// row of a square, from its first element on.
template <class E, class Load>
VOXPIPE_INLINE void turn_squares(int64_t rows, int64_t columns, uint8_t* to, int64_t column_step,
                                 const Load& load) {
  constexpr int64_t N = Square<E>::N, SIZE = sizeof(E);
  for (int64_t next_column = 0; next_column < columns; next_column += N)
    for (int64_t next_row = 0; next_row < rows; next_row += N) {
      const int64_t column = least(next_column, columns - N), row = least(next_row, rows - N);
      turn_square<E>([&](int64_t n) VOXPIPE_ALWAYS { return load(row + n, column); },
                     to + column * column_step + row * SIZE, column_step);
    }
}

// ``rows`` x ``count`` elements, each row dense, its rows from_stride apart. Element (r, c) goes to
// to + r * row_step + c * column_step.
template <class E>
void turn_elements(const uint8_t* from, int64_t from_stride, int64_t rows, int64_t count,
                   uint8_t* to, int64_t row_step, int64_t column_step) {
  constexpr int64_t N = Square<E>::N, SIZE = sizeof(E);
  if (row_step == SIZE && rows >= N && count >= N)
    return turn_squares<E>(rows, count, to, column_step, [=](int64_t r, int64_t c) VOXPIPE_ALWAYS {
      return load<typename Square<E>::Row>(from + r * from_stride + c * SIZE);
    });
  for (int64_t c = 0; c < count; c++)
    for (int64_t r = 0; r < rows; r++)
      put<E>(to + r * row_step + c * column_step, load<E>(from + r * from_stride + c * SIZE));
}

inline void turn_block(int64_t size, const uint8_t* from, int64_t from_stride, int64_t rows,
                       int64_t count, uint8_t* to, int64_t row_step, int64_t column_step) {
  with_size(size, [&](auto e) {
    turn_elements<VOXPIPE_TYPE(e)>(from, from_stride, rows, count, to, row_step, column_step);
  });
}

// Within each four elements: those of a and b in turns, from 2 * HALF on.
template <int HALF, class V, int... I>
inline V mixed_fours(V a, V b, Numbers<I...>) {
  return __builtin_shufflevector(
      a, b, (I / 4 * 4 + 2 * HALF + I % 4 / 2 + I % 2 * static_cast<int>(sizeof...(I)))...);
}

// In each four of the COUNT elements: four numbers of four, turned.
template <int COUNT, class V>
__attribute__((always_inline)) inline void turn_fours(V* rows) {
  constexpr auto ALL = typename NumbersBelow<COUNT>::type{};
  const V a = mixed_fours<0>(rows[0], rows[2], ALL), b = mixed_fours<0>(rows[1], rows[3], ALL);
  const V c = mixed_fours<1>(rows[0], rows[2], ALL), d = mixed_fours<1>(rows[1], rows[3], ALL);
  rows[0] = mixed_fours<0>(a, b, ALL);
  rows[1] = mixed_fours<1>(a, b, ALL);
  rows[2] = mixed_fours<0>(c, d, ALL);
  rows[3] = mixed_fours<1>(c, d, ALL);
}

}  // namespace VOXPIPE_PATH_NAME
