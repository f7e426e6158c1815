"""Limits of single pipes: a process that stays at one for too long is told with that pipe."""

import math
import threading

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.adapters import limits_of
from voxpipe.core.errors import GraphError, ItemTimeout


def hang(sample):
    if sample.case == "3":
        threading.Event().wait()
    return sample


def same(sample):
    return sample


def chain(function):
    cases = [{"image": np.zeros((4, 4, 4), np.uint8)} for _ in range(6)]
    pipe = vp.from_cases(cases).open_volume().lazy_patch(4).realize()
    return pipe.map(function).batch_patches(2)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "limit", [vp.Timeout(0.3, at="map"), vp.Timeout(item=math.inf, idle=0.3)], ids=["at", "idle"]
)
def test_the_pipe_that_a_process_stays_at_is_named(limit, workers):
    """Though a batch may take any time; what was made before comes first."""
    service = vp.MultiProcessingReadingService(workers)
    with vp.DataLoader2(chain(hang), [limit], service, seed=1) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(ItemTimeout, match=r"stayed(.|\n)*map\(hang\)") as told:
            next(batches)
    assert "for 0.3 s" in str(told.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_limit_of_another_pipe_does_not_count(workers):
    """Pipes that are within their limits are left alone, and the batches are the same."""
    service = vp.MultiProcessingReadingService(workers)
    with vp.DataLoader2(chain(same), [vp.Timeout(60, at="realize")], service, seed=1) as loader:
        assert len(list(loader)) == 3


def test_limits_of_pipes_add_up():
    """Each Timeout(at=) adds its own and keeps the others."""
    pipe = vp.Timeout(item=9)(chain(same))
    pipe = vp.Timeout(5, at="map")(vp.Timeout(7, at="realize")(pipe))

    limits = limits_of(pipe)

    assert (limits.item, limits.pipes) == (9, (("map", 5), ("realize", 7)))
    assert limits.poll == 1.25
    assert vp.Timeout(5, at="map")(pipe) is pipe
    assert limits_of(chain(same)).poll is None


def test_a_pipe_that_is_not_there_is_refused():
    """With those that there are."""
    with pytest.raises(GraphError, match="there is realize, map, batch_patches"):
        vp.Timeout(5, at="rotate")(chain(same))


def test_the_other_limits_beside_that_of_a_pipe_hold():
    """What is given is set; what is not stays as an adapter before it set it."""
    pipe = vp.from_cases([{"image": np.zeros((1, 4, 4, 4))}]).open_volume().realize().map(str)
    adapter = vp.Timeout(5, start=3, idle=2, at="map")

    limits = limits_of(adapter(vp.Timeout(60, start=7, stop=9)(pipe)))

    assert (limits.item, limits.start, limits.stop, limits.idle) == (60, 3, 9, 2)
    assert limits.pipes == (("map", 5),)
    assert repr(adapter) == "Timeout(5, at='map', start=3, idle=2)"
