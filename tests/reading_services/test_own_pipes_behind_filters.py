"""A sharding filter asks for workers: a pipe of one's own behind it runs in them."""

import os

import pytest
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

import voxpipe as vp
from voxpipe.adapters import Lint
from voxpipe.datapipes import DataPipe, PerItem
from voxpipe.graph import Cut, NoCut, Traits, cut


class WhoRuns(IterDataPipe):
    """Yields each item with the process that made it."""

    def __init__(self, source_datapipe):
        self.source_datapipe = source_datapipe

    def __iter__(self):
        for item in self.source_datapipe:
            yield item, os.getpid()


class KnownWhoRuns(WhoRuns):
    """The same, which says that it takes items one by one."""

    traits = Traits(per_item=True)


class OfOurs(DataPipe):
    """The same on our class, whose traits are a default and say nothing."""

    def __init__(self, source_datapipe):
        super().__init__()
        self.source_datapipe = source_datapipe

    def __iter__(self):
        for item in self.source_datapipe:
            yield item, os.getpid()


class ItemByItem(PerItem):
    """The same, one by one by its class."""

    def apply(self, item):
        return item, os.getpid()


class OwnFilter(IterDataPipe):
    """Divides as torch's filter does."""

    def __init__(self, source_datapipe):
        self.source_datapipe = source_datapipe
        self.apply_sharding(1, 0, SHARDING_PRIORITIES.DEFAULT)

    def apply_sharding(self, num_of_instances, instance_id, sharding_group):
        self.share = (instance_id, num_of_instances)

    def is_shardable(self):
        return True

    def __iter__(self):
        first, step = self.share
        yield from list(self.source_datapipe)[first::step]


def shares():
    return IterableWrapper(range(12)).shuffle().sharding_filter()


def processes(pipe, workers):
    """Return the items of an epoch, and the processes that the pipe ran in."""
    service = vp.MultiProcessingReadingService(workers, multiprocessing_context="fork")
    with vp.DataLoader2(pipe, None, service, seed=3) as loader:
        pairs = list(loader)
    if isinstance(pairs[0], list):
        pairs = [pair for batch in pairs for pair in batch]
    return [item for item, _ in pairs], {process for _, process in pairs}


CHAINS = {
    "at the end": lambda: WhoRuns(shares()),
    "batched": lambda: WhoRuns(shares()).batch(2),
    "shuffled": lambda: WhoRuns(shares()).shuffle(),
    "shuffled before": lambda: WhoRuns(shares().shuffle()),
    "of our class": lambda: OfOurs(shares()),
    "item by item": lambda: ItemByItem(shares()),
    "item by item, shuffled": lambda: ItemByItem(shares()).shuffle(),
    "a filter of one's own": lambda: WhoRuns(OwnFilter(IterableWrapper(range(12)).shuffle())),
}


@pytest.mark.parametrize("name", CHAINS)
def test_it_runs_in_every_worker(name):
    """Each item once, whatever follows the pipe; each worker has its share, or jobs as it can."""
    chain = CHAINS[name]()
    items, ran = processes(chain, 3)

    assert sorted(items) == [*range(12)]
    assert len(ran) == 3 or isinstance(cut(chain), Cut)
    assert os.getpid() not in ran


def test_without_workers_it_runs_here():
    """And the items are those of one worker."""
    items, ran = processes(WhoRuns(shares()), 0)

    assert sorted(items) == [*range(12)]
    assert ran == {os.getpid()}


def test_one_that_says_what_it_does_is_split_off():
    """Then batches are those of any number of workers."""
    split = cut(KnownWhoRuns(shares()).batch(2))

    assert isinstance(split, Cut)
    assert len(split.realizing) == 2
    one, several = (processes(KnownWhoRuns(shares()).batch(2), workers) for workers in (1, 3))
    assert one[0] == several[0]
    assert os.getpid() not in one[1] | several[1]


def test_without_a_filter_it_stays_here_and_lint_says_what_to_do():
    """The advice is right: what follows the filter goes to the workers."""
    chain = WhoRuns(IterableWrapper(range(12)).shuffle())
    told = {mistake.name: mistake for mistake in Lint().mistakes(chain)}
    idle = Lint().mistake_of_workers(chain, 2)

    assert processes(chain, 2)[1] == {os.getpid()}
    assert told["planned-functions"].message.startswith(
        "WhoRuns() runs in the process of the loader"
    )
    assert ".sharding_filter() before it" in told["planned-functions"].do
    assert ".sharding_filter() before" in idle.do


def test_lint_has_nothing_to_say_of_it_behind_a_filter():
    """Shares are what was asked for."""
    chain = WhoRuns(shares())

    assert isinstance(cut(chain), NoCut)
    assert Lint().mistakes(chain) == []
    assert Lint().mistake_of_workers(chain, 2) is None


def test_explain_says_why_the_graph_is_whole():
    """And how a pipe says what it does."""
    service = vp.MultiProcessingReadingService(2)
    with vp.DataLoader2(WhoRuns(shares()), None, service) as loader:
        told = loader.explain()

    assert "WhoRuns() works on the shares of sharding_filter()" in told
    assert "each of 2 workers runs the whole graph on its share" in told
