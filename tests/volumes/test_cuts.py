"""Cuts of arrays: what they are by definition, in memory that no header decides about."""

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.core import ChunkGrid, Region

LENGTHS = st.integers(1, 12)


@st.composite
def cut_axes(draw):
    """Length, chunk and block of one axis, and a part of it."""
    length, chunk, block = draw(LENGTHS), draw(LENGTHS), draw(LENGTHS)
    first, last = sorted(draw(st.tuples(st.integers(0, length), st.integers(0, length))))
    return (length, chunk, block), (first, last)


def owners(length, chunk, block):
    """Return of each voxel which part holds it, found by walking along the axis."""
    found, part = [], -1
    for voxel in range(length):
        part += voxel % chunk % block == 0
        found.append(part)
    return found


@given(st.lists(cut_axes(), min_size=1, max_size=3))
def test_every_voxel_lies_in_its_part(axes):
    """Blocks begin anew in every chunk; a region touches the parts of its voxels."""
    shape, chunk, block = zip(*(sizes for sizes, _ in axes), strict=True)
    spans = [span for _, span in axes]
    region = Region(tuple(a for a, _ in spans), tuple(b for _, b in spans))
    held = [owners(*sizes) for sizes, _ in axes]

    cuts = ChunkGrid(shape, chunk, block)
    touched = cuts.touched_parts(region)

    assert cuts.counts == tuple(each[-1] + 1 for each in held)
    expected = np.indices(cuts.counts).reshape(len(shape), -1).T
    inside = [
        [part in each[a:b] for part, each, (a, b) in zip(row, held, spans, strict=True)]
        for row in expected.tolist()
    ]
    assert touched.tolist() == expected[np.all(inside, axis=1)].tolist()
    pieces = cuts.parts_in(touched, region).tolist()
    for row, start, stop, piece in zip(
        touched.tolist(), *cuts.bounds(touched), pieces, strict=True
    ):
        for n, part in enumerate(row):
            voxels = [voxel for voxel, owner in enumerate(held[n]) if owner == part]
            assert [*range(start[n], stop[n])] == voxels
            taken = [voxel for voxel in voxels if spans[n][0] <= voxel < spans[n][1]]
            there, here, length = piece[n]
            assert [*range(there + spans[n][0], there + spans[n][0] + length)] == taken
            assert [*range(here + start[n], here + start[n] + length)] == taken


def test_a_header_that_claims_many_chunks_takes_no_memory():
    """Of an axis of 10**15 voxels, each a chunk."""
    tracemalloc.start()
    try:
        cuts = ChunkGrid((10**15, 8), (1, 8))
        touched = cuts.touched_parts(Region((10**14, 0), (10**14 + 2, 8)))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert touched.tolist() == [[10**14, 0], [10**14 + 1, 0]]
    assert most < 100_000
