"""Limits of single pipes: a process that stays at one for too long is told with that pipe."""

import math
import threading

import numpy as np
import pytest
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

import voxpipe as vp
from voxpipe.adapters import Limits, note_of
from voxpipe.core.errors import GraphError, ItemTimeout

pytestmark = pytest.mark.filterwarnings(
    # forking with threads of torch around is what these tests ask for
    "ignore:This process.*is multi-threaded:DeprecationWarning"
)
MULTIPROCESSING = SHARDING_PRIORITIES.MULTIPROCESSING


# Volumes stay open for a thread that hangs, so none may be left for the tests that follow.
LET_GO = threading.Event()


@pytest.fixture
def freed():
    """Let threads that hang in this process go at the end."""
    LET_GO.clear()
    yield
    LET_GO.set()


def hang(sample):
    if sample.case == "3":
        LET_GO.wait()
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
@pytest.mark.usefixtures("freed")
def test_the_pipe_that_a_process_stays_at_is_named(limit, workers):
    """Though a batch may take any time; what was made before comes first."""
    service = vp.MultiProcessingReadingService(workers, "fork")
    with vp.DataLoader2(chain(hang), [limit], service, seed=1) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(ItemTimeout, match=r"for more than(.|\n)*map\(hang\)") as told:
            next(batches)
    assert "0.3 s" in str(told.value)


def hang_here(sample):
    if sample.case == "3":
        LET_GO.wait()
    return sample


def hang_at_three(number):
    if number == 3:
        LET_GO.wait()
    return number


def in_planner(cases=6):
    """A function runs before volumes are opened: here, and not in the workers."""
    listed = [{"image": np.zeros((4, 4, 4), np.uint8)} for _ in range(cases)]
    pipe = vp.from_cases(listed).map(hang_here).open_volume().lazy_patch(4)
    return pipe.batch_patches(1)


def dealt():
    """A function runs before items are dealt out, to pipes that do not take them one by one."""
    numbers = IterableWrapper(range(6)).map(hang_at_three)
    return numbers.sharding_round_robin_dispatch(MULTIPROCESSING).map(same).flatmap(as_one)


def as_one(number):
    return [number]


LIMITS = {
    "at": [vp.Timeout(0.3, at="map")],
    "idle": [vp.Timeout(item=math.inf, idle=0.3)],
    "item": [vp.Timeout(item=0.5, start=60)],
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("make", [in_planner, dealt])
@pytest.mark.usefixtures("freed")
def test_a_pipe_that_plans_is_named_too(make, limit, workers):
    """It runs here, also where workers make the batches; what was planned before it comes first."""
    got = []
    service = vp.MultiProcessingReadingService(workers, "fork")
    with (
        vp.DataLoader2(make(), LIMITS[limit], service, seed=1) as loader,
        pytest.raises(ItemTimeout, match="hang_") as told,
    ):
        got.extend(loader)

    # Without workers the next batch is planned before one is handed out.
    assert len(got) == (2 if make is in_planner and not workers else 3)
    expected = "no batch for 0.5 s" if limit == "item" else "at one pipe for more than 0.3 s; stack"
    assert expected in str(told.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_many_short_stays_are_none(workers):
    """A pipe that goes on, item after item, is at none of them for long."""
    numbers = IterableWrapper(range(8)).map(slowly).batch(8).map(sum)
    pipe = numbers.sharding_round_robin_dispatch(MULTIPROCESSING).map(same)
    service = vp.MultiProcessingReadingService(workers, "fork")
    with vp.DataLoader2(pipe, [vp.Timeout(0.2, at="map")], service, seed=1) as loader:
        assert list(loader) == [28]


def slowly(number):
    LET_GO.clear()
    LET_GO.wait(0.06)
    return number


@pytest.mark.parametrize("workers", [0, 1])
def test_a_limit_of_another_pipe_does_not_count(workers):
    """Pipes that are within their limits are left alone, and the batches are the same."""
    service = vp.MultiProcessingReadingService(workers, "fork")
    with vp.DataLoader2(chain(same), [vp.Timeout(60, at="realize")], service, seed=1) as loader:
        assert len(list(loader)) == 3


def test_limits_of_pipes_add_up():
    """Each Timeout(at=) adds its own and keeps the others."""
    pipe = vp.Timeout(item=9)(chain(same))
    pipe = vp.Timeout(5, at="map")(vp.Timeout(7, at="realize")(pipe))

    limits = note_of(pipe, Limits)

    assert (limits.item, limits.pipes) == (9, (("map", 5), ("realize", 7)))
    assert limits.poll == 1.25
    assert vp.Timeout(5, at="map")(pipe) is pipe
    assert note_of(chain(same), Limits).poll is None


def test_a_pipe_that_is_not_there_is_refused():
    """With those that there are."""
    names = "there is FromCases, open_volume, lazy_patch, realize, map, batch_patches"
    with pytest.raises(GraphError, match=names):
        vp.Timeout(5, at="rotate")(chain(same))


def test_the_other_limits_beside_that_of_a_pipe_hold():
    """What is given is set; what is not stays as an adapter before it set it."""
    pipe = vp.from_cases([{"image": np.zeros((1, 4, 4, 4))}]).open_volume().realize().map(str)
    adapter = vp.Timeout(5, start=3, idle=2, at="map")

    limits = note_of(adapter(vp.Timeout(60, start=7, stop=9)(pipe)), Limits)

    assert (limits.item, limits.start, limits.stop, limits.idle) == (60, 3, 9, 2)
    assert limits.pipes == (("map", 5),)
    assert repr(adapter) == "Timeout(5, at='map', start=3, idle=2)"
