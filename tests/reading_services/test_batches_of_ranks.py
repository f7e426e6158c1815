"""A batch size is that of all ranks together, also where a graph is not split."""

from dataclasses import replace

import pytest
from ranks import run_ranks
from torch.utils.data.datapipes.iter import FileLister, IterableWrapper

from voxpipe.core.errors import GraphError
from voxpipe.dataloader2 import (
    DataLoader2,
    DistributedReadingService,
    MultiProcessingReadingService,
    SequentialReadingService,
)
from voxpipe.reading_services.distributed import explain_share, gathered_by, with_own_batches
from voxpipe.reading_services.planner import RankPart
from voxpipe.reading_services.work import batch_count, replicate

WORLD = 2
FIRST = RankPart(0, WORLD, "drop")


def number(pair):
    return int(pair[1].read())


def split(folder):
    return FileLister(str(folder)).shuffle().sharding_filter().open_files().map(number)


def whole(folder):
    """A shuffle of what was read is not planned."""
    return split(folder).shuffle()


def taken(pipe, service):
    with DataLoader2(pipe, None, service, seed=4) as loader:
        return list(loader)


def scenes(rank, folder):
    """What each rank gets of both kinds of graphs."""
    alone = DistributedReadingService(60.0)
    # A fork server of each rank would import torch anew.
    workers = SequentialReadingService(
        DistributedReadingService(60.0), MultiProcessingReadingService(1, "fork")
    )
    found = {
        "split": taken(split(folder).batch(4), alone),
        "whole": taken(whole(folder).batch(4), alone),
        "workers": taken(whole(folder).batch(4), workers),
        "items": taken(whole(folder), alone),
    }
    for name, chain in (("split", split), ("whole", whole)):
        loader = DataLoader2(chain(folder).batch(4), None, DistributedReadingService(60.0))
        found[f"explain {name}"] = loader.explain()
    try:
        DataLoader2(whole(folder).batch(3), None, alone)
    except GraphError as error:
        found["three"] = str(error)
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbers")
    for n in range(8):
        (folder / f"{n}.txt").write_text(str(n))
    return run_ranks(WORLD, scenes, folder)


@pytest.mark.parametrize("graph", ["split", "whole", "workers"])
def test_a_shuffle_more_does_not_double_the_batch(ranks, graph):
    """Of a batch of four each of two ranks has two, and all items come once."""
    batches = [found[graph] for found in ranks]

    assert [[len(batch) for batch in own] for own in batches] == [[2, 2]] * WORLD
    assert sorted(n for own in batches for batch in own for n in batch) == list(range(8))


def test_what_is_not_gathered_goes_round_in_shares(ranks):
    """There is no batch to divide."""
    assert [len(found["items"]) for found in ranks] == [4, 4]


@pytest.mark.parametrize("graph", ["split", "whole"])
def test_explain_tells_what_a_batch_is(ranks, graph):
    """In the first sentence on where the graph runs."""
    for rank, found in enumerate(ranks):
        assert f"rank {rank} of 2: its " in found[f"explain {graph}"]
        assert "2 of the 4 items that a batch of all ranks has" in found[f"explain {graph}"]


def test_a_size_that_the_ranks_do_not_divide_is_refused_for_both(ranks):
    """At construction."""
    for found in ranks:
        assert "a batch of 3 cannot be divided among 2 ranks" in found["three"]


def numbers():
    return IterableWrapper(range(8))


def test_the_batch_at_the_end_is_the_one_that_is_divided():
    """Behind it pipes take items one by one; the graph that was given stays as it is."""
    pipe = numbers().batch(2).unbatch().batch(4).map(len)
    own = with_own_batches(pipe, FIRST)

    assert list(own) == [2, 2, 2, 2]
    assert list(pipe) == [4, 4]


@pytest.mark.parametrize(
    "chain",
    [lambda p: p.shuffle(), lambda p: p.unbatch(), lambda p: p],
    ids=["shuffle", "unbatch", "filter"],
)
def test_other_batches_stay_whole_and_explain_says_so(chain):
    """They are items as others are."""
    pipe = chain(numbers().batch(4)).map(str).filter(bool)

    assert gathered_by(pipe) is None
    assert with_own_batches(pipe, FIRST) is pipe
    assert "batches of batch(4) stay whole" in explain_share(pipe, FIRST, whole=True)


def test_a_batch_of_one_is_an_item():
    """Ranks take turns."""
    pipe = numbers().batch(1)

    assert with_own_batches(pipe, FIRST) is pipe
    assert explain_share(pipe, FIRST, whole=False) == "rank 0 of 2: of each 2 items it has one"


@pytest.mark.parametrize(("uneven", "expected"), [("drop", 2), ("pad", 3)])
def test_the_length_is_that_of_the_rank_with_which_all_end(uneven, expected):
    """Of nine items one rank has five, the other four: in batches of two."""
    graph = IterableWrapper(range(9)).sharding_filter().batch(2)
    work = replace(replicate(graph, "a test"), part=RankPart(0, WORLD, uneven))

    assert batch_count(work) == expected
    assert len(graph) == 5
