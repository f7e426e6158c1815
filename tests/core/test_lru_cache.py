"""What is remembered: made once by however many threads, and as much as there is room for."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from voxpipe.core import IO_COUNTERS, Grid
from voxpipe.core.lru_cache import LRUCache
from voxpipe.spatial.placing.sampling_mask import sampling_mask
from voxpipe.volumes import Volume, volume_histogram, volume_statistics
from voxpipe.volumes.catalog.whole_pass import ForegroundRule, occupied_box

THREADS = 4
WAIT = 60.0


def test_threads_wait_for_the_first_of_them() -> None:
    """All of them ask before the first one is done; one makes it, all get the same object."""
    remembered: LRUCache[object] = LRUCache()
    asking = threading.Barrier(THREADS, timeout=WAIT)
    made = []

    def make() -> object:
        made.append(object())
        return made[-1]

    def ask(_: int) -> object:
        asking.wait()
        return remembered.get_or("key", make)

    with ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(ask, range(THREADS)))

    assert len(made) == 1
    assert {id(one) for one in found} == {id(made[0])}


def test_another_key_is_not_held_up() -> None:
    """While one is being made, a thread that wants something else gets it."""
    remembered: LRUCache[str] = LRUCache()
    with ThreadPoolExecutor(1) as threads:

        def make() -> str:
            return threads.submit(remembered.get_or, "b", lambda: "other").result(timeout=WAIT)

        assert remembered.get_or("a", make) == "other"


def test_a_failure_is_not_remembered() -> None:
    """The next one tries again."""
    remembered: LRUCache[int] = LRUCache()

    with pytest.raises(ZeroDivisionError):
        remembered.get_or(1, lambda: 1 // 0)

    assert remembered.get_or(1, lambda: 5) == 5


def test_the_heaviest_go_by_weight_and_age() -> None:
    """What was asked for lately stays; one that is too large stays alone."""
    remembered: LRUCache[bytes] = LRUCache(most=10, weigh=len)
    for name in "abc":
        remembered.get_or(name, lambda: b"1234")
        remembered.get("a")

    assert [remembered.get(name) is None for name in "abc"] == [False, True, False]
    remembered.get_or("large", lambda: bytes(20))
    assert [remembered.get(name) is None for name in ("a", "c", "large")] == [True, True, False]
    remembered.clear()
    assert len(remembered) == 0


def test_a_child_does_not_inherit_a_lock() -> None:
    """A process that was forked while something was being made makes it itself."""
    remembered: LRUCache[int] = LRUCache()

    def make() -> int:
        # As in a child: whoever holds the lock is not there.
        remembered.after_fork()
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(remembered.get_or, 1, lambda: 7).result(timeout=WAIT)

    assert remembered.get_or(1, make) == 7
    assert hasattr(os, "register_at_fork") or os.name == "nt"


@pytest.mark.parametrize(
    "ask",
    [
        volume_histogram,
        volume_statistics,
        lambda volume: occupied_box(volume, ForegroundRule()),
        lambda volume: sampling_mask(volume, volume.grid, (4, 4, 4), ()),
    ],
    ids=["histogram", "statistics", "occupied", "mask"],
)
def test_a_volume_is_read_once_by_many_threads(ask, tmp_path, monkeypatch) -> None:
    """As many reads as one thread makes, of a volume that nobody asked about.

    Its content is another one: what is known of equal voxels is found on the disk.
    """
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path))
    array = np.arange(8 * 8 * 8, dtype=np.int16).reshape(8, 8, 8) % 50
    grid = Grid((8, 8, 8), np.eye(4))
    before = IO_COUNTERS.snapshot()
    ask(Volume(array, affine=grid.affine))
    alone = (IO_COUNTERS - before).bytes_read
    volume = Volume(49 - array, affine=grid.affine)
    asking = threading.Barrier(THREADS, timeout=WAIT)

    def wait_and_ask(_: int) -> object:
        asking.wait()
        return ask(volume)

    before = IO_COUNTERS.snapshot()
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(wait_and_ask, range(THREADS)))

    assert (IO_COUNTERS - before).bytes_read == alone > 0
