// Turning a block of elements: rows become columns, up to sixteen at a time in registers.
#pragma once

#include "processor.h"
#include "vectors.h"

namespace VOXPIPE_PATH_NAME {

// Rows of a block. With 16, one turned row of float32 is a whole cache line.
constexpr int64_t BLOCK = 16;
constexpr int64_t BLOCK_BYTES = BLOCK * RUN * 8;

// A square of N x N elements, a vector for each row: as many as fit, and no more rows than a block. What
// is left of a vector then is for squares below, which are turned side by side.
template <class E> struct Square {
  static constexpr int SIZE = sizeof(E), MOST = BLOCK * SIZE;
  static constexpr int BYTES = 4 * LANES < MOST ? 4 * LANES : MOST;
  static constexpr int N = BYTES / SIZE, SIDE = 4 * LANES / BYTES;
  typedef E Row __attribute__((vector_size(BYTES)));
};

// In each LANE of the elements: those of a and b in turns, of their first halves or their second.
template <int LANE, int HALF, class V, int... I>
inline V mixed(V a, V b, Numbers<I...>) {
  constexpr int COUNT = sizeof...(I);
  return __builtin_shufflevector(
      a, b, (I / LANE * LANE + HALF * LANE / 2 + I % LANE / 2 + I % 2 * COUNT)...);
}

template <class V, int... I>
VOXPIPE_INLINE auto joined(V a, V b, Numbers<I...>) { return __builtin_shufflevector(a, b, I...); }

// Row ``n`` of SIDE squares, one after another in a vector.
template <class E, int SIDE, class RowAt>
VOXPIPE_INLINE auto row_of(const RowAt& row, int64_t n) {
  constexpr int N = Square<E>::N;
  if constexpr (SIDE == 1) return row(n);
  else return joined(row_of<E, SIDE / 2>(row, n), row_of<E, SIDE / 2>(row, n + SIDE / 2 * N),
                     typename NumbersBelow<SIDE * N>::type{});
}

// Interleaving row n with row n + N/2, log2(N) times, turns a square. ``row(n)`` is row n; with SIDE
// squares, row n + N that of the next.
template <class E, int SIDE, class RowAt>
inline void turn_square(const RowAt& row, uint8_t* to, int64_t to_stride) {
  typedef E Row __attribute__((vector_size(SIDE * Square<E>::BYTES)));
  constexpr int N = Square<E>::N;
  constexpr auto ALL = typename NumbersBelow<SIDE * N>::type{};
  Row rows[N], next[N];
#pragma GCC unroll 16
  for (int n = 0; n < N; n++) rows[n] = row_of<E, SIDE>(row, n);
#pragma GCC unroll 4
  for (int stage = 1; stage < N; stage *= 2) {
#pragma GCC unroll 8
    for (int n = 0; n < N / 2; n++) {
      next[2 * n] = mixed<N, 0>(rows[n], rows[n + N / 2], ALL);
      next[2 * n + 1] = mixed<N, 1>(rows[n], rows[n + N / 2], ALL);
    }
#pragma GCC unroll 16
    for (int n = 0; n < N; n++) rows[n] = next[n];
  }
#pragma GCC unroll 16
  for (int n = 0; n < N; n++) put<Row>(to + n * to_stride, rows[n]);
}

// ``rows`` x ``columns`` elements, at least as many as a square has, become columns that are
// ``column_step`` apart; the last squares of both axes lie over those before them. ``load(r, c)`` is a
// row of a square, from its first element on. GROUP squares beside each other follow each other;
// ``begin(r, c, count)`` asks for what is loaded later than the group of so many rows that begins there.
template <class E, int64_t GROUP = 1, int SIDE = Square<E>::SIDE, class Load, class Begin>
VOXPIPE_INLINE void turn_squares(int64_t rows, int64_t columns, uint8_t* to, int64_t column_step,
                                 const Load& load, const Begin& begin) {
  constexpr int64_t N = Square<E>::N, SIZE = sizeof(E), HEIGHT = SIDE * N;
  if constexpr (SIDE > 1)
    if (rows < HEIGHT) return turn_squares<E, GROUP, 1>(rows, columns, to, column_step, load, begin);
  for (int64_t first = 0; first < columns; first += GROUP * N)
    for (int64_t next_row = 0; next_row < rows; next_row += HEIGHT) {
      const int64_t row = least(next_row, rows - HEIGHT);
      const int64_t end = least(columns, first + GROUP * N);
      begin(row, first, HEIGHT);
      // Where the rows below go, to many places at once; to leave out those below the last takes 1.03 to
      // 1.07 of the time.
      for (int64_t n = first; n < end; n++)
        __builtin_prefetch(to + n * column_step + (row + HEIGHT) * SIZE, 1, 3);
      for (int64_t next = first; next < end; next += N) {
        const int64_t column = least(next, columns - N);
        turn_square<E, SIDE>([&](int64_t n) VOXPIPE_ALWAYS { return load(row + n, column); },
                             to + column * column_step + row * SIZE, column_step);
      }
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
    }, [](int64_t, int64_t, int64_t) {});
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

// In each four of the COUNT elements: four numbers of four, turned.
template <int COUNT, class V>
__attribute__((always_inline)) inline void turn_fours(V* rows) {
  constexpr auto ALL = typename NumbersBelow<COUNT>::type{};
  const V a = mixed<4, 0>(rows[0], rows[2], ALL), b = mixed<4, 0>(rows[1], rows[3], ALL);
  const V c = mixed<4, 1>(rows[0], rows[2], ALL), d = mixed<4, 1>(rows[1], rows[3], ALL);
  rows[0] = mixed<4, 0>(a, b, ALL);
  rows[1] = mixed<4, 1>(a, b, ALL);
  rows[2] = mixed<4, 0>(c, d, ALL);
  rows[3] = mixed<4, 1>(c, d, ALL);
}

}  // namespace VOXPIPE_PATH_NAME
