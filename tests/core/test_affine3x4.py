import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.core.affine3x4 import (
    affine3x4,
    apply,
    compose,
    inverse,
    linear_of,
    matrix4x4,
    product,
)

# A handful of sums of products, each rounded once or twice.
TOLERANCE = 1e-13

numbers = st.floats(-100, 100)
affines = st.tuples(*[numbers] * 12)
linears = st.tuples(*[numbers] * 9)


def square(linear):
    """Return nine floats as a 3x3 array."""
    return np.array(linear).reshape(3, 3)


@given(affines, affines)
def test_composing_is_the_matrix_product(first, second):
    """Plain floats give what arrays give, up to the order of the sums."""
    slow = matrix4x4(first) @ matrix4x4(second)

    assert matrix4x4(compose(first, second)) == pytest.approx(slow, abs=TOLERANCE * 4e4)


@given(linears, linears, st.tuples(*[numbers] * 3))
def test_three_by_three(first, second, vector):
    """Products with a matrix and with a vector are those of arrays."""
    matrix = square(first)

    assert square(product(first, second)) == pytest.approx(
        matrix @ square(second), abs=TOLERANCE * 3e4
    )
    assert apply(first, vector) == pytest.approx(matrix @ vector, abs=TOLERANCE * 3e4)


whole = st.integers(-1000, 1000).map(float)


@given(st.tuples(*[whole] * 12), st.tuples(*[whole] * 12))
def test_whole_numbers_stay_exact(rows, step):
    """A chain of flips, turns and crops has no rounding."""
    assert matrix4x4(compose(rows, step)).tolist() == (matrix4x4(rows) @ matrix4x4(step)).tolist()


@given(
    st.tuples(*[st.floats(-0.3, 0.3)] * 9),
    st.tuples(*[st.floats(1e-4, 1e4)] * 3),
)
def test_the_inverse_undoes_whatever_the_spacing(noise, spacing):
    """Unequal spacings, a factor of 1e8 apart, cost no accuracy: columns keep their scale."""
    linear = tuple(((np.eye(3) + square(noise)) * spacing).ravel().tolist())
    if abs(np.linalg.det(np.eye(3) + square(noise))) < 0.05:
        return

    undone = square(inverse(linear)) @ square(linear)

    # Row i of the inverse has the unit 1 / spacing[i], so the error has spacing[j] / spacing[i].
    error = np.abs(undone - np.eye(3)) * np.array(spacing)[:, None] / np.array(spacing)
    assert error.max() < 1e-12


def test_an_inverse_beyond_the_range_of_products():
    """Entries whose third power is no double any more are inverted all the same."""
    for scale in (1e-150, 1e150):
        linear = tuple((square((2, 1, 0, 0, 2, 1, 1, 0, 2)) * scale).ravel().tolist())

        assert square(inverse(linear)) @ square(linear) == pytest.approx(np.eye(3))


def test_what_has_no_inverse_is_refused():
    """As arrays do it, a zero on the diagonal included."""
    for linear in ((1.0, 2.0, 3.0, 2.0, 4.0, 6.0, 0.0, 0.0, 1.0), (0.0,) * 9):
        with pytest.raises(np.linalg.LinAlgError):
            inverse(linear)


def test_there_and_back():
    """Rows become a read-only matrix without negative zeros, and the same rows again."""
    rows = (1.0, 2.0, 3.0, -0.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0)
    matrix = matrix4x4(rows)

    assert affine3x4(matrix) == rows
    assert linear_of(rows) == (1.0, 2.0, 3.0, 5.0, 6.0, 7.0, 9.0, 10.0, 11.0)
    assert not np.signbit(matrix[0, 3])
    assert matrix[3].tolist() == [0, 0, 0, 1]
    with pytest.raises(ValueError, match="read-only"):
        matrix[0, 0] = 5
    with pytest.raises(ValueError, match=r"3x4 or 4x4, got \(3, 3\)"):
        affine3x4(np.eye(3))
