"""The kernel lets other threads run while it works."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from voxpipe.core import Region
from voxpipe.spatial import Policy, SourceVoxels, resample
from voxpipe.spatial.resampling import native_resampler as native

pytestmark = pytest.mark.skipif(not native.available(), reason="the native kernel is not built")

ROUNDS = 20
FOREVER = 1000.0  # seconds; nobody is made to hand over the interpreter's lock


@pytest.fixture(autouse=True)
def nobody_is_interrupted() -> Iterator[None]:
    """Threads take turns only where one lets go of the interpreter's lock by itself."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(FOREVER)
    yield
    sys.setswitchinterval(usual)


class CountingLibrary:
    """Passes jobs on to a library, and counts the threads that are inside at once."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.inside = 0
        self.most = 0
        self.jobs = 0

    def voxpipe_run(self, job: bytes) -> int:
        self.inside += 1
        self.jobs += 1
        self.most = max(self.most, self.inside)
        status = int(self.library.voxpipe_run(job))
        self.inside -= 1
        return status


def threads_inside_at_once(library: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    counting = CountingLibrary(library)
    monkeypatch.setattr(native, "_library", lambda: counting)
    array = np.arange(24**3, dtype=np.float64).reshape(1, 24, 24, 24)
    source = SourceVoxels(array, (0, 0, 0), Region.of_shape((24, 24, 24)))
    turned = np.eye(4)
    turned[0, 1] = 0.3

    def work() -> None:
        out = np.empty((1, 24, 24, 24))  # cubic in float64: the kernel's longest job per voxel
        while counting.jobs < ROUNDS or (counting.most < 2 and counting.jobs < 50 * ROUNDS):
            resample(source, turned, Policy("cubic"), out)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    assert counting.jobs >= ROUNDS
    return counting.most


def test_two_threads_are_inside_the_kernel_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's lock is released for the length of a job."""
    assert threads_inside_at_once(native._library(), monkeypatch) == 2


def test_a_library_that_kept_the_lock_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same library called with the lock held never has two threads inside."""
    path = native._library()._name
    holding = ctypes.PyDLL(path)
    holding.voxpipe_run.argtypes = [ctypes.c_char_p]
    holding.voxpipe_run.restype = ctypes.c_int64
    monkeypatch.setattr("test_kernel_threads.ROUNDS", 2)

    assert threads_inside_at_once(holding, monkeypatch) == 1
