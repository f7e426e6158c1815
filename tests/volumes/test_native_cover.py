"""Which chunks a region needs: by native code what ``ChunkGrid`` and ``OrientedBox`` say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.core import ChunkGrid, Region
from voxpipe.core.region import OrientedBox
from voxpipe.volumes.chunks import native_chunks as native
from voxpipe.volumes.chunks.native_chunks import PARTS, NativeGrid

pytestmark = pytest.mark.skipif(not native.is_available(3), reason="no native library")


@st.composite
def questions(draw):
    """Draw a grid of chunks, or of their blocks, and a region of it, perhaps with a turned box."""
    axes = draw(st.integers(1, 5))
    shape = [draw(st.integers(1, 40)) for _ in range(axes)]
    chunk = [draw(st.integers(1, 20)) for _ in range(axes)]
    block = [draw(st.integers(1, n)) for n in chunk] if draw(st.booleans()) else None
    spans = [sorted((draw(st.integers(0, n - 1)), draw(st.integers(0, n - 1)))) for n in shape]
    region = Region([a for a, _ in spans], [b + 1 for _, b in spans])
    if axes >= 3 and draw(st.booleans()):
        order = draw(st.permutations(range(axes)))[:3]
        box = draw(boxes([spans[axis] for axis in order], tuple(order)))
        region = Region(region.start, region.stop, box)
    return ChunkGrid(shape, chunk, block), region


@st.composite
def boxes(draw, spans, axes):
    """Draw a box near the middle of a region, turned, stretched and mirrored, perhaps clamped."""
    angle = st.floats(-3, 3)
    turn = np.eye(3)
    for a, b in ((0, 1), (0, 2), (1, 2)):
        one, size = np.eye(3), draw(angle)
        one[a, a] = one[b, b] = np.cos(size)
        one[a, b], one[b, a] = -np.sin(size), np.sin(size)
        turn = turn @ one
    turn = turn * [draw(st.sampled_from([0.3, 1.0, -1.0, 2.5])) for _ in range(3)]
    shape = tuple(draw(st.integers(1, 20)) for _ in range(3))
    middle = np.array([(a + b) / 2 + draw(st.floats(-5, 5)) for a, b in spans])
    offset = middle - turn @ ((np.array(shape) - 1) / 2)
    clamp = Region([a for a, _ in spans], [b + 1 for _, b in spans])
    return OrientedBox(
        np.column_stack([turn, offset]),
        shape,
        tuple(draw(st.sampled_from([0.0, 0.5, 1.0])) for _ in range(3)),
        clamp if draw(st.booleans()) else None,
        axes,
        draw(st.sampled_from([np.inf, 0.0, 2.0])),
    )


@given(questions())
def test_the_same_chunks_and_parts(question):
    """Their places, numbers, parts in the region, and voxels."""
    cuts, region = question
    expected = cuts.touched_parts(region)

    plan = NativeGrid(cuts).cover(region)

    chunks, rows, order, voxels = plan.chunks, plan.rows, plan.order, plan.voxels
    np.testing.assert_array_equal(chunks, expected)
    parts = rows[:, PARTS:].reshape(*expected.shape, 3)
    np.testing.assert_array_equal(parts, cuts.parts_in(expected, region))
    assert not rows[:, :PARTS].any()
    numbers = np.ravel_multi_index(tuple(expected.T), cuts.counts)
    np.testing.assert_array_equal(order, numbers)
    assert voxels == cuts.voxels(expected)


def test_what_is_no_box_is_left_to_numpy():
    """As is what touches more chunks than anybody could read."""
    flat = OrientedBox(np.zeros((3, 4)), (2, 2, 2), (1.0, 1.0, 1.0))
    huge = Region((0, 0, 0), (10**6,) * 3)

    assert (
        NativeGrid(ChunkGrid((9, 9, 9), (2, 2, 2))).cover(Region((0,) * 3, (9,) * 3, flat)) is None
    )
    assert NativeGrid(ChunkGrid(huge.stop, (2, 2, 2))).cover(huge) is None
