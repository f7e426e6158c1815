"""An epoch that is collected as garbage, wherever that happens, keeps nobody waiting."""

import gc
import threading
import weakref

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core.locks import DeferredActs, ForkSafeLock
from voxpipe.reading_services import reading_service as running
from voxpipe.storage.read_ahead import AHEAD
from voxpipe.volumes.chunks.chunk_cache import CHUNKS
from voxpipe.volumes.session import SESSION

# Of a thread that has nothing to wait for.
SECONDS = 20.0


class Collects:
    """A key in whose use garbage is collected, as where any memory is taken."""

    token = property(lambda self: self)

    def __hash__(self):
        gc.collect()
        return 1

    def __eq__(self, other):
        return self is other

    def open(self):
        raise OSError("nothing there")


def opened():
    with pytest.raises(OSError, match="nothing there"):
        SESSION.handles.acquire(Collects())


@pytest.mark.parametrize(
    "work",
    [
        lambda: CHUNKS.announce([Collects()]).close(),
        lambda: AHEAD.small.find("a", [(Collects(),)]),
        opened,
    ],
    ids=["chunks", "small answers", "handles"],
)
def test_inside_a_lock_that_its_end_needs(work, monkeypatch):
    """The epoch ends; what it frees is freed by whoever is inside, on leaving."""
    # One that an earlier test left would keep the volumes open.
    monkeypatch.setattr(running, "_RUNNING", weakref.WeakSet())
    voxels = [{"image": np.zeros((1, 16, 16, 16), np.float32)}] * 2
    pipe = vp.from_cases(voxels).open_volume().lazy_patch(8, samples_per_volume=2).batch_patches(2)
    cycle = [iter(vp.DataLoader2(pipe))]
    next(cycle[0])
    cycle.append(cycle)
    gc.disable()
    del cycle
    thread = threading.Thread(target=work, daemon=True)
    try:
        thread.start()
        thread.join(SECONDS)
    finally:
        if not thread.is_alive():  # or this thread would wait as well
            gc.enable()

    assert not thread.is_alive()


def test_acts_wait_for_whoever_is_inside():
    """Also one that comes while acts are done, and one of another thread."""
    turns, done = ForkSafeLock(), []
    acts = DeferredActs(turns)

    def first():
        acts.defer(lambda: done.append("second"))
        done.append("first")

    with acts, turns:
        other = threading.Thread(target=acts.defer, args=(first,))
        other.start()
        other.join(SECONDS)
        assert not other.is_alive()
        done.append("inside")

    assert done == ["inside", "first", "second"]
