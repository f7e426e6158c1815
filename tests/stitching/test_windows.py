"""Windows cover a volume, and cells are what lies between their faces."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.core.errors import PatchSizeError
from voxpipe.stitching.stitcher import CellMemory, OpenCells, Stitcher
from voxpipe.stitching.windows import Windows


@st.composite
def windows(draw):
    shape = draw(st.tuples(*[st.integers(1, 9)] * 3))
    size = draw(st.tuples(*[st.integers(1, 6)] * 3))
    overlap = tuple(draw(st.integers(0, n - 1)) for n in size)
    return Windows(shape, size, overlap, draw(st.booleans()))


class Result:
    """Takes voxels, and knows how often each came."""

    def __init__(self, shape):
        self.voxels, self.times = np.zeros((1, *shape), np.float32), np.zeros(shape, int)

    def begin(self, channels):
        assert channels == 1

    def write(self, region, voxels):
        self.voxels[(slice(None), *region.slices)] = voxels
        self.times[region.slices] += 1

    def write_zeros(self, region):
        self.write(region, np.zeros((1, *region.shape), np.float32))


@given(windows())
def test_a_window_covers_a_cell_or_does_not_touch_it(grid):
    """Cells of a window lie in it, and windows of a cell are those that list it."""
    counts = [len(axis.faces) - 1 for axis in grid.axes]
    cells = set(itertools.product(*map(range, counts)))
    by_window = {number: set(grid.cells(number)) for number in range(len(grid))}

    assert set().union(*by_window.values()) == cells
    for cell in cells:
        touching = [number for number, own in by_window.items() if cell in own]
        assert touching == list(grid.windows(cell))
        assert len(touching) == grid.touch_counts()[cell]
    assert sum(grid.region(cell).size for cell in cells) == np.prod(grid.shape)


@given(windows())
def test_sums_of_a_chain_are_a_band(grid):
    """In the order of a chain no more is open at once than is told beforehand."""
    cells = OpenCells(CellMemory(2**62))
    stitcher = Stitcher(grid, "crop" if grid.cuts else "mean", Result(grid.shape), cells)
    for number in range(len(grid)):
        stitcher.add(number, np.zeros((1, *grid.size), np.float32))

    assert cells.memory.most_bytes <= grid.band_bytes


@given(windows(), st.randoms(use_true_random=False), st.sampled_from(["mean", "gaussian", "hann"]))
def test_any_order_gives_each_voxel_once(grid, random, blend):
    """The mean of windows that agree is what they say; most of the sums may lie in a file."""
    if grid.cuts:
        blend = "crop"
    truth = np.random.default_rng(0).normal(size=grid.shape).astype(np.float32)
    result = Result(grid.shape)
    stitcher = Stitcher(grid, blend, result, OpenCells(CellMemory(64)))
    order = list(range(len(grid)))
    random.shuffle(order)
    for number in order:
        start = grid.start(number)
        index = np.ix_(
            *(
                np.clip(np.arange(a, a + n), 0, m - 1)
                for a, n, m in zip(start, grid.size, grid.shape, strict=True)
            )
        )
        stitcher.add(number, truth[index][None])
        stitcher.add(number, truth[index][None] + 1)  # once more counts nothing

    assert stitcher.is_whole
    assert (result.times == 1).all()
    assert np.allclose(result.voxels[0], truth, atol=1e-5)


def test_windows_that_do_not_come_leave_zeros():
    """Where no window comes there is 0; elsewhere those that came are enough."""
    result = Result((4, 1, 1))
    stitcher = Stitcher(Windows((4, 1, 1), (2, 1, 1), (1, 0, 0)), "mean", result)
    stitcher.leave_out([1, 2])
    stitcher.add(0, np.ones((1, 2, 1, 1), np.float32))

    assert stitcher.is_whole
    assert result.voxels.ravel().tolist() == [1, 1, 0, 0]
    assert (result.times == 1).all()


def test_windows_follow_each_other_as_voxels_of_a_file_do():
    """The slow axis last; of the others the first is the fastest."""
    grid = Windows((8, 8, 9), (4, 4, 4), (0, 0, 0))

    places = [grid.place(number) for number in grid.sort(range(len(grid)))]

    assert places[:5] == [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0), (0, 0, 1)]
    assert [place[2] for place in places] == [0] * 4 + [1] * 4 + [2] * 4


def test_what_one_window_gives_alone_is_left_as_it_is():
    """Neither weighted nor divided: bit for bit what the model gave."""
    values = np.random.default_rng(0).normal(size=(2, 1, 6, 6, 6)).astype(np.float32)
    result = Result((10, 6, 6))
    stitcher = Stitcher(Windows((10, 6, 6), (6, 6, 6), (2, 0, 0)), "gaussian", result)

    for number in (0, 1):
        stitcher.add(number, values[number])

    assert (result.voxels[0, :4] == values[0, 0, :4]).all()
    assert (result.voxels[0, 6:] == values[1, 0, 2:]).all()


def test_a_model_that_gives_another_size_is_refused():
    """The error says which shape came."""
    stitcher = Stitcher(Windows((4, 4, 4), (2, 2, 2), (0, 0, 0)), "mean", Result((4, 4, 4)))
    with pytest.raises(
        PatchSizeError, match=r"window of 2x2x2 voxels has the shape \(1, 1, 2, 2\)"
    ):
        stitcher.add(0, np.ones((1, 1, 2, 2), np.float32))
    stitcher.add(0, np.ones((1, 2, 2, 2), np.float32))
    with pytest.raises(PatchSizeError, match="2 channels, and the first had 1"):
        stitcher.add(1, np.ones((2, 2, 2, 2), np.float32))


def most_open(shape):
    """Return the most bytes of sums that are open at once, the slow axis last."""
    grid = Windows(shape, (4, 4, 4), (2, 2, 2))
    stitcher = Stitcher(grid, "gaussian", Result(shape))
    for number in grid.sort(range(len(grid))):
        stitcher.add(number, np.zeros((1, 4, 4, 4), np.float32))
    assert stitcher.is_whole
    return stitcher.cells.memory.most_bytes


def test_open_sums_do_not_grow_with_the_volume():
    """A longer volume has the same band, wherever its long axis is; so has one that is flat."""
    band = most_open((8, 8, 16))

    assert most_open((8, 8, 48)) == most_open((48, 8, 8)) == most_open((8, 48, 8)) == band
    # A band of two steps of a window, of the smallest face, in float32.
    assert band <= 8 * 8 * 4 * 4
    assert most_open((4, 24, 48)) <= 4 * 24 * 4 * 4
