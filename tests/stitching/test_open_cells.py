"""Sums lie in memory up to a limit, and a checkpoint's are not written over."""

import numpy as np

from voxpipe.stitching.stitcher import CellMemory, OpenCells


def test_no_more_in_memory_than_the_limit():
    """Of ten arrays two fit; all come back as they were left."""
    cells = OpenCells(CellMemory(2 * 80))
    for number in range(10):
        cells.put((number,), np.full(10, number, np.float64))
    for number in range(10):
        cells.change((number,))[:] += 1

    assert cells.memory.most_bytes <= 2 * 80
    assert [cells.pop((number,)).tolist() for number in range(10)] == [
        [number + 1] * 10 for number in range(10)
    ]
    assert (0,) not in cells


def test_several_share_a_memory(tmp_path):
    """Of four arrays of two files two fit: who needs room takes it of whoever came before."""
    memory = CellMemory(2 * 80)
    first, second = OpenCells(memory), OpenCells(memory)
    for number in range(2):
        first.put((number,), np.full(10, number, np.float64))
        second.put((number,), np.full(10, 10 + number, np.float64))
    for number in range(2):
        second.change((number,))[:] += 1
        first.change((number,))[:] += 1

    assert memory.most_bytes == 2 * 80
    assert [first.pop((n,))[0] for n in range(2)] == [1, 2]
    second.close()
    first.put((0,), np.zeros(20))
    first.put((1,), np.zeros(1))
    assert memory.most_bytes == 2 * 80
    first.close()


def test_places_are_used_again(tmp_path):
    """A file grows with what is open at once, not with what ever was."""
    cells = OpenCells(CellMemory(0), str(tmp_path / "sums"))
    for number in range(100):
        cells.put((number,), np.zeros(1000))
        cells.put((number, "other"), np.zeros(1000))
        cells.pop((number,))
        cells.pop((number, "other"))

    assert (tmp_path / "sums").stat().st_size <= 3 * 8000
    cells.close()


def test_a_checkpoint_stays_what_it_was(tmp_path):
    """What is added after it is not there for who takes it up."""
    path = str(tmp_path / "sums")
    cells = OpenCells(CellMemory(0), path)
    cells.put((0,), np.zeros(10))
    cells.put((1,), np.zeros(10))
    table = cells.write_all()
    cells.keep(table)
    for _ in range(3):
        cells.change((0,))[:] += 1
        cells.change((1,))[:] += 1
    cells.pop((1,))
    cells.put((2,), np.full(10, 7.0))
    cells.put((3,), np.full(10, 8.0))
    cells.close()

    again = OpenCells(CellMemory(1000), path)
    again.restore(table)
    assert again.pop((0,)).tolist() == again.pop((1,)).tolist() == [0.0] * 10
    again.close()
