"""Ranks end together, fail together, and name the one that is late. Real ranks, over loopback."""

import contextlib
import traceback
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from stack_sources import Failing
from torch import multiprocessing
from torch.utils.data import IterDataPipe

from voxpipe.datapipes.iter import IterableWrapper

LIMIT = 120  # seconds after which ranks are taken to hang
RANKS = 2


class Stuck(IterDataPipe):
    """Yields one number, and then waits for longer than anybody does."""

    def __init__(self, until):
        super().__init__()
        self.until = until

    def __iter__(self):
        yield 0
        self.until.wait(LIMIT)
        yield 1


def collected(pipe):
    """Return what a pass yields, and the error at its end as text."""
    seen = []
    try:
        for item in pipe:
            seen.append(item)
    except Exception as error:
        return seen, f"{type(error).__name__}: {error}".splitlines()[0]
    return seen, ""


def run_rank(rank, store, answers, last):
    """Run every scene on one rank, and send what it saw."""
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=RANKS,
            timeout=timedelta(seconds=LIMIT),
        )
        found = {}
        uneven = IterableWrapper(range(11 + rank)).fullsync()
        found["uneven"] = [list(uneven), list(uneven)]
        left = iter(IterableWrapper(range(9)).fullsync())
        found["left"] = [next(left), next(left)]
        del left
        found["empty"] = list(IterableWrapper(range(5 * rank)).fullsync())
        failing = Failing(3, LookupError("three")) if rank else IterableWrapper(range(9))
        found["failed"] = collected(failing.fullsync())
        pipe = IterableWrapper(range(4)).fullsync()
        reading = iter(pipe)
        next(reading)
        pipe.pause()
        pipe.resume()
        found["paused"] = list(reading)
        pipe.shutdown()
        pipe.shutdown()
        late = Stuck(last) if rank else IterableWrapper(range(9))
        found["late"] = collected(late.fullsync(timeout=1.0))
        last.set()
        answers.put((rank, found))
    except BaseException:
        answers.put((rank, traceback.format_exc()))
    finally:
        with contextlib.suppress(Exception):
            dist.destroy_process_group()


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Return what each rank saw of each scene."""
    context = multiprocessing.get_context("forkserver")
    answers = context.Queue()
    store = tmp_path_factory.mktemp("ranks") / "store"
    last = [context.Event() for _ in range(RANKS)]
    ranks = [
        context.Process(target=run_rank, args=(rank, store, answers, last[rank]), daemon=True)
        for rank in range(RANKS)
    ]
    for process in ranks:
        process.start()
    try:
        found = dict(answers.get(timeout=LIMIT) for _ in ranks)
    finally:
        for process in ranks:
            process.join(10)
            process.kill()
            process.join()
            process.close()
        answers.close()
    assert all(isinstance(scenes, dict) for scenes in found.values()), found
    return found


def test_ranks_end_with_the_shortest(seen):
    """In every epoch, with the items of each rank's own share."""
    assert [seen[rank]["uneven"] for rank in range(RANKS)] == [[[*range(11)]] * 2] * RANKS
    assert [seen[rank]["empty"] for rank in range(RANKS)] == [[], []]


def test_ranks_may_leave_together(seen):
    """In the middle of an epoch: the next one works."""
    assert [seen[rank]["left"] for rank in range(RANKS)] == [[0, 1]] * RANKS


def test_a_rank_that_fails_ends_the_others(seen):
    """Its own error on the one, its number on the others; nobody waits for it."""
    assert seen[1]["failed"] == ([0, 1, 2], "LookupError: three")
    assert seen[0]["failed"][0] == [0, 1, 2]
    assert seen[0]["failed"][1].startswith("RankFailed: rank 1 failed, so rank 0 ends its epoch")
    assert seen[0]["failed"][1].endswith("LookupError: three")


def test_it_can_be_paused(seen):
    """And goes on where it was."""
    assert [seen[rank]["paused"] for rank in range(RANKS)] == [[1, 2, 3]] * RANKS


def test_a_rank_that_is_late_is_named(seen):
    """On every rank, after the time that was given."""
    assert seen[0]["late"][0] == [0] == seen[1]["late"][0]
    assert seen[0]["late"][1].startswith("PrefetchTimeoutError: rank 1 was late, so rank 0 ends")
    assert "Fail to fetch data within 1 seconds" in seen[0]["late"][1]
    assert seen[1]["late"][1].startswith("PrefetchTimeoutError: Fail to fetch data within 1 sec")


def test_without_ranks_it_says_what_to_call():
    """At the first item."""
    pipe = IterableWrapper(range(3)).fullsync()

    assert len(pipe) == 3
    assert not pipe.is_replicable()
    with pytest.raises(RuntimeError, match=r"init_process_group\(\) first"):
        list(pipe)


def test_one_rank_has_nothing_to_agree_upon(tmp_path):
    """The items pass through."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/one", rank=0, world_size=1)
    try:
        assert list(IterableWrapper(range(5)).fullsync()) == [*range(5)]
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_time_that_is_none_is_refused(timeout):
    """At construction."""
    with pytest.raises(ValueError, match="timeout is a number of seconds above 0"):
        IterableWrapper([1]).fullsync(timeout)


def test_copies_begin_without_a_group():
    """A group belongs to a process."""
    import pickle

    twin = pickle.loads(pickle.dumps(IterableWrapper([1]).fullsync(7)))

    assert (twin.timeout, twin._barrier, twin._ahead) == (7, None, None)
    assert torch.distributed.is_available()
