import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.core import ChunkGrid, Region

ints = st.integers(-20, 20)


@st.composite
def regions(draw, axes=3):
    start = draw(st.tuples(*[ints] * axes))
    size = draw(st.tuples(*[st.integers(0, 15)] * axes))
    return Region(start, tuple(a + n for a, n in zip(start, size, strict=True)))


@given(regions(), regions())
def test_intersection_holds_the_voxels_of_both(a, b):
    """A voxel is in the intersection exactly if it is in both."""
    both = a.intersect(b)

    for voxel in [a.start, b.start, both.start, tuple(v - 1 for v in both.stop)]:
        one = Region(voxel, tuple(v + 1 for v in voxel))
        assert both.contains(one) == (a.contains(one) and b.contains(one))


@given(regions(), st.tuples(ints, ints, ints))
def test_shift_there_and_back_is_nothing(region, offset):
    """Shifting by an offset and by its negative gives the region back."""
    back = tuple(-o for o in offset)

    assert region.shift(offset).shift(back) == region


def test_pad_grows_both_sides():
    """Padding adds the halo below and above."""
    assert Region((2, 3), (4, 5)).pad(1) == Region((1, 2), (5, 6))
    assert Region((2, 3), (4, 5)).pad((0, 2)) == Region((2, 1), (4, 7))


def test_axes_must_agree():
    """Start and stop of different length are refused with both."""
    with pytest.raises(ValueError, match=r"\(0,\) and \(1, 2\)"):
        Region((0,), (1, 2))


@given(
    st.tuples(*[st.integers(1, 12)] * 3),
    st.tuples(*[st.integers(1, 5)] * 3),
    regions(),
)
def test_touched_chunks_are_those_that_share_a_voxel(shape, chunk, region):
    """A chunk is listed exactly if its voxels meet the region, each once, in C order."""
    grid = ChunkGrid(shape, chunk)
    every = [
        (i, j, k)
        for i in range(grid.counts[0])
        for j in range(grid.counts[1])
        for k in range(grid.counts[2])
    ]

    touched = list(
        map(tuple, grid.touched_parts(region.intersect(Region.of_shape(shape))).tolist())
    )

    boxes = [Region(*map(tuple, box)) for box in zip(*grid.bounds(np.array(every)), strict=True)]
    assert touched == [
        c for c, box in zip(every, boxes, strict=True) if not box.intersect(region).is_empty
    ]
