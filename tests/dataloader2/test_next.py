"""``next(loader)``: the running epoch goes on, or the next one begins."""

import gc
import weakref

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.core.errors import IteratorInvalidated, LoaderShutDown
from voxpipe.dataloader2 import DataLoader2
from voxpipe.dataloader2.iterator import PauseIteration

SERVICES = [None, vp.MultiProcessingReadingService(2, multiprocessing_context="fork")]


def add_one(x):
    return x + 1


class Failing(vp.datapipes.PerItem):
    """Fail for the items that are listed."""

    def __init__(self, parent, items):
        super().__init__(parent)
        self.items = items

    def apply(self, item):
        if item in self.items:
            raise ValueError("one")
        return item


class Asking(vp.datapipes.PerItem):
    """Ask the loader for another batch."""

    loader = None

    def apply(self, item):
        return next(self.loader)


def loader(count=3, **options):
    return DataLoader2(IterableWrapper(range(count)), seed=1, **options)


@pytest.mark.parametrize("service", SERVICES)
def test_epochs_follow_each_other(service):
    """StopIteration ends one, and the call after it begins the next."""
    chain = IterableWrapper(range(3)).shuffle().sharding_filter().map(add_one)
    with DataLoader2(chain, None, service, seed=1) as it, DataLoader2(chain, seed=1) as plain:
        for epoch in range(2):
            assert [next(it) for _ in range(3)] == list(plain)
            with pytest.raises(StopIteration):
                next(it)
            assert it.state_dict()["epoch"] == epoch + 1


def test_the_running_iterator_goes_on():
    """Of a loop, or of iter(): there is one position."""
    it = loader(6)
    batches = iter(it)

    assert [next(batches), next(it), next(batches), next(it)] == [0, 1, 2, 3]
    assert [(batch, next(it)) for batch in batches] == [(4, 5)]
    with pytest.raises(StopIteration):
        next(batches)
    assert next(it) == 0


def test_a_new_loop_is_a_new_epoch():
    """iter() ends the running one; a loop that was left has ended its own."""
    it = loader()
    next(it)

    assert list(it) == [0, 1, 2]
    for _ in it:
        break
    assert next(it) == 0
    assert it.state_dict()["epoch"] == 3


def test_a_state_is_that_of_the_next_batch():
    """Saved between two calls, and loaded into a running epoch."""
    it = loader()
    next(it)
    state = it.state_dict()

    assert [next(it), next(it)] == [1, 2]
    it.load_state_dict(state)
    assert next(it) == 1
    other = loader()
    other.load_state_dict(state)
    assert [next(other), next(other)] == [1, 2]
    it.set_epoch(5)
    assert (next(it), it.state_dict()["epoch"]) == (0, 5)
    it.seed(2)
    assert (next(it), it.state_dict()["epoch"]) == (0, 0)


def test_an_epoch_that_another_thread_has_begun_stays(monkeypatch):
    """Its first batch is taken between the end of the last epoch and the note of that."""
    it = loader()
    assert [next(it) for _ in range(3)] == [0, 1, 2]
    kind, plain = type(iter(loader())), type(iter(loader())).__next__
    others = []

    def end_late(batches):
        try:
            return plain(batches)
        except StopIteration:
            monkeypatch.undo()
            others.append(next(it))
            raise

    monkeypatch.setattr(kind, "__next__", end_late)
    with pytest.raises(StopIteration):
        next(it)

    assert others == [0]
    assert [next(it), next(it)] == [1, 2]


def test_a_pause_is_no_end():
    """The iterator resumes where it was."""
    it = loader()
    batches = iter(it)
    batches.limit(1)
    next(it)

    with pytest.raises(PauseIteration):
        next(it)
    batches.resume()
    batches.limit(None)
    assert [next(it), next(it)] == [1, 2]


def test_an_error_is_raised_again_until_a_new_epoch():
    """The rest of an epoch is not left out silently."""
    failing = [1]
    it = DataLoader2(Failing(IterableWrapper(range(3)), failing), seed=1)
    assert next(it) == 0
    for _ in range(2):
        with pytest.raises(ValueError, match="one"):
            next(it)
    failing.clear()
    assert list(it) == [0, 1, 2]


def test_after_shutdown_it_is_refused():
    """As iter() is."""
    it = loader()
    next(it)
    it.shutdown()

    with pytest.raises(LoaderShutDown):
        next(it)


def test_a_function_of_a_batch_may_not_ask():
    """It would wait for itself."""
    pipe = Asking(IterableWrapper(range(2)))
    it = DataLoader2(pipe, seed=1)
    Asking.loader = it

    with pytest.raises(IteratorInvalidated, match="asks the loader"):
        next(it)
    Asking.loader = None


@pytest.mark.parametrize("ends", [True, False])
def test_a_loader_that_is_dropped_goes(ends):
    """With the iterator that it holds, ended or in mid-epoch."""
    it = loader(1)
    next(it)
    if ends:
        with pytest.raises(StopIteration):
            next(it)
    gone = weakref.ref(it)
    del it
    gc.collect()

    assert gone() is None
