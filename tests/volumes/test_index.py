"""Indices, compared with NumPy's own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.volumes import Volume

SHAPE = (2, 3, 4, 5)
ARRAY = np.arange(np.prod(SHAPE)).reshape(SHAPE)


def entries(length):
    """Return integers within an axis, and any slices."""
    bound = st.none() | st.integers(-length - 2, length + 2)
    step = st.none() | st.integers(-3, 3).filter(bool)
    return st.integers(-length, length - 1) | st.builds(slice, bound, bound, step)


def numpys(index):
    """Return the index with which NumPy keeps every axis."""
    return tuple(slice(e, e + 1 or None) if isinstance(e, int) else e for e in index)


@pytest.mark.parametrize(
    ("item", "error", "message"),
    [
        ((0, 0, 0, 0, 0), IndexError, "Too many indices"),
        ((0, 0, 0, 0, ..., 0), IndexError, "Too many indices"),
        ((..., ...), IndexError, "Only one ellipsis"),
        (True, TypeError, "not understood"),
        (np.bool_(True), TypeError, "not understood"),
        (1.0, TypeError, "not understood"),
        ("0", TypeError, "not understood"),
        ([0, 1], TypeError, "not understood"),
        (None, TypeError, "not understood"),
        (np.array([0, 1]), TypeError, "not understood"),
    ],
)
def test_what_is_no_index(item, error, message):
    """Anything else is refused with the words that TorchIO uses."""
    with pytest.raises(error, match=message):
        Volume(ARRAY)[item]


@given(st.tuples(*map(entries, SHAPE)), st.integers(0, 4))
def test_any_index_selects_what_numpy_selects(index, length):
    """The part equals NumPy's, or the index is refused because it selects nothing."""
    index = index[:length]
    expected = ARRAY[numpys(index)]
    volume = Volume(ARRAY)

    if expected.size == 0:
        with pytest.raises(IndexError, match="selects nothing"):
            volume[index]
        return
    assert volume[index].numpy().tolist() == expected.tolist()


@given(st.integers(0, 3), st.integers(-20, 20))
def test_integers_out_of_range(axis, value):
    """An integer is in range exactly where NumPy's is."""
    index = (slice(None),) * axis + (value,)
    if -SHAPE[axis] <= value < SHAPE[axis]:
        assert Volume(ARRAY)[index].shape[axis] == 1
        return
    with pytest.raises(IndexError, match=f"index {value} is out of range for axis {axis}"):
        Volume(ARRAY)[index]
