"""Ranks after a resume, with a loader that was older than the job, and where items fail."""

import random
from unittest import mock

import pytest
import torch
from ranks import run_ranks
from torch.distributed import distributed_c10d
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.core.errors import TooManyFailures
from voxpipe.reading_services import DistributedReadingService, distributed

WORLD = 2


def keep(number):
    return number != 5


def uneven_graph():
    """Rank 0 has 0, 2, 4 and rank 1 has 1, 3: the filter makes this a graph that is not planned."""
    return IterableWrapper(range(6)).sharding_filter().filter(keep).batch(1).batch(1)


def padded(before=None):
    service = DistributedReadingService(60.0, uneven="pad")
    return vp.DataLoader2(uneven_graph(), None, service, seed=7)


def in_step_scenes(rank):
    """What every rank does in one job, by name; ranks do it in one order."""
    found = {}
    with padded() as loader:
        found["whole"] = [batch[0][0] for batch in loader]
    for place in range(1, 4):
        with padded() as loader:
            batches = iter(loader)
            for _ in range(place):
                next(batches)
            state = loader.state_dict()
            del batches
        with padded() as loader:
            loader.load_state_dict(state)
            batches = iter(loader)
            found[f"rest {place}"] = [batch[0][0] for batch in batches]
            found[f"ahead {place}"] = loader.state_dict()["ahead"]
    found["older"] = older_than_the_job()
    found["budget"] = past_the_budget()
    for name, chain in drawing_chains().items():
        service = DistributedReadingService(60.0)
        with vp.DataLoader2(chain, None, service, seed=7) as loader:
            found[name] = [batch.tolist() for batch in loader]
    found["fullsync"] = groups_of_fullsync(rank)
    return found


def fails(number):
    if number in (2, 6):  # both of rank 1
        raise OSError(f"no {number}")
    return number


def draw(number):
    return torch.stack([torch.rand(()), torch.tensor(random.random())]) + number


def drawing_chains():
    numbers = IterableWrapper(range(8)).map(draw)
    return {"batches that draw": numbers.batch(4).collate(), "items that draw": numbers}


def past_the_budget():
    """What came, how the epoch ended, and the count in the state before that."""
    chain = IterableWrapper(range(8)).map(fails).batch(4).collate()
    seen, count, ended = [], None, "not at all"
    adapter = vp.OnError("skip", budget=1, errors=OSError)
    with vp.DataLoader2(chain, adapter, DistributedReadingService(60.0), seed=7) as loader:
        try:
            for batch in loader:
                seen.append(batch.tolist())
                count = loader.state_dict()["failures"]
        except TooManyFailures:
            ended = "at its budget"
    return seen, count, ended


def groups_of_fullsync(rank):
    """How many process groups there are before, during and after an epoch with fullsync()."""
    groups = distributed_c10d._world.pg_map
    told = [len(groups)]
    with vp.DataLoader2(IterableWrapper(range(3 + rank)).fullsync(), seed=7) as loader:
        told.append(len(list(loader)))
        told.append(len(groups))
    told.append(len(groups))
    return told


def older_than_the_job():
    """A loader that is made, and asked, before init_process_group; then what it says, and has."""
    with mock.patch.object(distributed, "is_started", return_value=False):
        loader = vp.DataLoader2(IterableWrapper(range(12)), None, DistributedReadingService(60.0))
        alone = len(loader)
    with loader:
        length, count = len(loader), len(list(loader))
        return alone, length, count, loader.state_dict()["shares"]


@pytest.fixture(scope="module")
def scenes():
    return run_ranks(WORLD, in_step_scenes)


def test_a_rank_that_had_ended_repeats_its_last_item_after_a_resume(scenes):
    """With uneven="pad", from every place, the one behind its own end included."""
    assert [found["whole"] for found in scenes] == [[0, 2, 4], [1, 3, 3]]
    for found in scenes:
        for place in range(1, 4):
            assert found[f"rest {place}"] == found["whole"][place:]
            assert found[f"ahead {place}"] == ()


def test_a_loader_may_be_older_than_the_job(scenes):
    """Its length is that of what comes, and its state knows the ranks."""
    for found in scenes:
        alone, length, count, shares = found["older"]

        assert (alone, length, count, shares) == (12, 6, 6, WORLD)


def test_the_budget_of_failures_is_that_of_all_ranks(scenes):
    """Every rank ends with the same batch, and the state is that of one process."""
    assert [found["budget"] for found in scenes] == [
        ([[0, 1]], 1, "at its budget"),
        ([[3]], 1, "at its budget"),
    ]


def test_a_loader_that_is_shut_down_leaves_the_group_of_fullsync(scenes):
    """It is made once, for all epochs."""
    for found in scenes:
        before, items, during, after = found["fullsync"]

        assert (items, during, after) == (3, before + 1, before)


def test_functions_of_items_draw_the_same_on_any_number_of_ranks(scenes):
    """From the global generators: each item has its own numbers, whoever makes it."""
    for name, chain in drawing_chains().items():
        with vp.DataLoader2(chain, seed=7) as loader:
            alone = [batch.tolist() for batch in loader]
        parts = zip(*(found[name] for found in scenes), strict=True)
        if name == "items that draw":
            assert [item for turn in parts for item in turn] == alone
        else:
            assert [[*first, *second] for first, second in parts] == alone
