"""The chain that most programs for torchdata have: shuffle, share out, decode, shuffle, batch."""

import os

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp

pytestmark = pytest.mark.filterwarnings(
    # forking with threads of torch around is what these tests ask for
    "ignore:This process.*is multi-threaded:DeprecationWarning"
)


def decode(number):
    return number, os.getpid()


def where(batch):
    return batch, os.getpid()


def usual(share=True):
    chain = IterableWrapper(range(12)).shuffle()
    chain = chain.sharding_filter() if share else chain
    return chain.map(decode).shuffle().batch(2).map(where)


def test_each_worker_decodes_its_share():
    """And batches it, in the same process; together they have every item once."""
    with vp.DataLoader2(
        usual(), None, vp.MultiProcessingReadingService(2, "fork"), seed=7
    ) as loader:
        batches = list(loader)
        told = loader.explain()

    decoders = {pid for batch, _ in batches for _, pid in batch}
    assert os.getpid() not in decoders
    assert len(decoders) == 2
    assert all(pid == made for batch, made in batches for _, pid in batch)
    assert sorted(number for batch, _ in batches for number, _ in batch) == list(range(12))
    assert "each of 2 workers runs the whole graph on its share" in told
    assert "map(decode" in told


def test_without_shares_the_planner_decodes_and_lint_says_so():
    """The batches are those of any number of workers then."""
    found = {mistake.name: mistake for mistake in vp.Lint().mistakes(usual(share=False))}
    with vp.DataLoader2(usual(share=False), seed=7) as loader:
        pids = {pid for batch, _ in loader for _, pid in batch}

    assert set(found) == {"planned-functions"}
    assert "map(decode" in found["planned-functions"].message
    assert ".sharding_filter()" in found["planned-functions"].do
    assert pids == {os.getpid()}


@pytest.mark.parametrize("workers", [0, 2])
def test_what_follows_item_by_item_is_planned(workers):
    """Any worker can do any item of it, so the order does not depend on them."""
    chain = IterableWrapper(range(12)).shuffle().sharding_filter().map(decode)
    service = vp.MultiProcessingReadingService(workers, "fork")
    with vp.DataLoader2(chain, None, service, seed=7) as loader:
        numbers = [number for number, _ in loader]
        shares = loader.state_dict()["shares"]

    with vp.DataLoader2(IterableWrapper(range(12)).shuffle(), seed=7) as alone:
        assert numbers == list(alone)
    assert shares == 0


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_its_length_is_that_of_the_shares(workers):
    """Each ends with a smaller batch of its own."""
    chain = IterableWrapper(range(10)).sharding_filter().map(decode).shuffle().batch(4)
    service = vp.MultiProcessingReadingService(workers, "fork")
    with vp.DataLoader2(chain, None, service, seed=7) as loader:
        assert len(loader) == len(list(loader)) == {0: 3, 1: 3, 2: 4, 3: 3}[workers]
