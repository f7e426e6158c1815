"""A rank that leaves, or fails, is told to the others at once; a filter behind dealing ends alike.

What is told in these says that no limit was waited for: then a rank "waited", and did not leave.
"""

import pytest
from ranks import run_ranks
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.datapipes.iter import SHARDING_PRIORITIES
from voxpipe.graph import fingerprint
from voxpipe.reading_services import DistributedReadingService
from voxpipe.reading_services.replica import lengths_in_shares

WORLD = 3
LIMIT = 100.0
BAD = 7


def keep(number):
    return True


def is_kept(number):
    return number % 5 != 0


def unfit(number):
    """Fails at the third item of rank 1."""
    if number == BAD:
        raise ValueError(f"bad {number}")
    return number


def service(workers=0, uneven="drop"):
    ranks = DistributedReadingService(LIMIT, uneven=uneven)
    # A fork server of each rank would import torch anew.
    own = vp.MultiProcessingReadingService(workers, "fork")
    return vp.reading_services.SequentialReadingService(ranks, own) if workers else ranks


def numbers(count=30):
    return IterableWrapper(range(count))


def whole(function=keep):
    """A graph that is not split: rank *r* has r, r + 3, r + 6, ..."""
    return numbers().sharding_filter().map(function).filter(keep).batch(1).batch(1)


def told(act):
    try:
        return list(act())
    except Exception as error:
        return [type(error).__name__, str(error)]


def some(loader, count):
    """Begin an epoch, take some of it, and leave."""
    batches = iter(loader)
    return [next(batches) for _ in range(count)]


def until_left(rank, loader):
    """Rank 1 leaves after two items; then all do a whole epoch with the same loader."""
    with loader:
        first = told(lambda: some(loader, 2) if rank == 1 else loader)
        return first, len(list(loader))


def go_scenes(rank):
    """What every rank does in one job, by name; ranks do it in one order."""
    found = {}
    for workers in (0, 2):
        loader = vp.DataLoader2(whole(), None, service(workers), seed=7)
        found[f"left {workers}"] = until_left(rank, loader)
    behind = whole().to_device("cpu").prefetch(1)
    found["left behind"] = until_left(rank, vp.DataLoader2(behind, None, service(), seed=7))
    adapter = vp.OnError("skip", budget=3, errors=OSError)
    planned = numbers(60).map(keep).batch(3).collate()
    found["left counted"] = until_left(rank, vp.DataLoader2(planned, adapter, service(), seed=7))
    together = numbers(10).fullsync(LIMIT)
    found["left fullsync"] = until_left(rank, vp.DataLoader2(together, seed=7))

    with vp.DataLoader2(whole(unfit), None, service(), seed=7) as loader:
        found["failed"] = told(lambda: loader), told(lambda: loader)
    share = numbers(10).map(unfit) if rank == 1 else numbers(10)
    found["failed fullsync"] = told(lambda: share.fullsync(LIMIT))

    nobody = IterableWrapper(range(2)).sharding_filter().filter(keep).batch(1).batch(1)
    with vp.DataLoader2(nobody, None, service(uneven="pad"), seed=7) as loader:
        found["nothing to repeat"] = told(lambda: loader)

    found["refused"] = told(refused)
    for name, chain in dealt().items():
        for workers in (0, 2):
            with vp.DataLoader2(chain, None, service(workers, "pad"), seed=7) as loader:
                found[f"{name} {workers}"] = [told(lambda: loader), told(lambda: loader)]
    return found


def dealt():
    """Chains with a filter and a dealing point."""
    levels = SHARDING_PRIORITIES
    point = levels.MULTIPROCESSING
    before = numbers().filter(is_kept).sharding_round_robin_dispatch(point).map(unchanged)
    shares = numbers().sharding_filter().sharding_round_robin_dispatch(point).map(unchanged)
    after = shares.filter(is_kept).shuffle()
    return {"filter before": before, "filter after": after}


def refused():
    """A filter of which the plan knows nothing."""
    chain = numbers().sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
    return vp.DataLoader2(chain.filter(is_kept).map(unchanged), None, service(), seed=7)


def unchanged(number):
    return number


@pytest.fixture(scope="module")
def scenes():
    return run_ranks(WORLD, go_scenes)


@pytest.mark.parametrize("where", ["0", "2", "behind", "counted", "fullsync"])
def test_a_rank_that_leaves_lets_nobody_wait(scenes, where):
    """The others are told who it was, and that all can begin anew."""
    for rank, found in enumerate(scenes):
        first, following = found[f"left {where}"]
        if rank == 1:
            assert len(first) == 2
        else:
            assert first[0] == "RankMissing"
            assert f"rank 1 has left its epoch before the end, so rank {rank} ends" in first[1]
        assert (
            following == len(scenes) * 0 + found["left 0" if where in "02" else f"left {where}"][1]
        )
        assert following == (20 if where == "counted" else 10)


@pytest.mark.parametrize("where", ["failed", "failed fullsync"])
def test_a_rank_that_fails_is_named_with_its_error(scenes, where):
    """``RankFailed`` in both places; its own error there."""
    for rank, found in enumerate(scenes):
        kind, text = found[where][0] if where == "failed" else found[where]
        if rank == 1:
            assert (kind, text.splitlines()[0]) == ("ValueError", "bad 7")
        else:
            assert kind == "RankFailed"
            assert f"rank 1 failed, so rank {rank} ends its epoch too: ValueError: bad 7" in text


def test_the_next_epoch_begins_anew(scenes):
    """It fails in the same way, and is not a mixture of two."""
    for found in scenes:
        assert found["failed"][0] == found["failed"][1]


def test_a_rank_with_nothing_to_repeat_is_told_to_all(scenes):
    """It can never end with them: an error of the graph there, a failed rank on the others."""
    kinds = [found["nothing to repeat"][0] for found in scenes]
    assert kinds == ["RankFailed", "RankFailed", "GraphError"]
    assert "rank 2 has no item at all to repeat" in scenes[0]["nothing to repeat"][1]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_filter_beside_dealing_gives_every_item_once(scenes, where, workers):
    """In two epochs; every rank ends together, and only at the end items are repeated for that."""
    expected = {number for number in range(30) if is_kept(number)}
    for epoch in range(2):
        parts = [found[f"filter {where} {workers}"][epoch] for found in scenes]
        assert len({len(part) for part in parts}) == 1
        given = [number for part in parts for number in part]
        assert set(given) == expected
        repeated = len(given) - len(expected)
        tails = [len(part) - len(set(part)) for part in parts]
        assert sum(tails) == repeated
        for part, more in zip(parts, tails, strict=True):
            assert len(set(part[len(part) - more - 1 :])) == 1


def test_a_filter_that_would_end_ranks_apart_is_refused(scenes):
    """Where the plan is one, what is left out behind it is not known to the others."""
    for found in scenes:
        kind, text = found["refused"]
        assert kind == "GraphError"
        assert "Put the filter before .sharding_round_robin_dispatch()" in text


def test_asking_for_the_length_changes_nothing():
    """A progress bar on one rank is no other chain."""
    graph = whole()
    before = fingerprint(graph)

    assert lengths_in_shares(numbers().sharding_filter(), ranks=3, workers=2) == [10, 10, 10]
    lengths_in_shares(graph.datapipe.datapipe.datapipe, ranks=3, workers=2)

    assert fingerprint(graph) == before
