"""Where a loader is when an epoch does not go on as planned: Ctrl-C, another epoch, adapters."""

import pytest
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.core.errors import GraphError, TooManyFailures

# Batches of two of the numbers below twelve, of two workers.
EVENS_AND_ODDS = [[[a, a + 2]] for a in (0, 1, 4, 5, 8, 9)]


class Interrupted(IterDataPipe):
    """Numbers; before the third of the first pass comes Ctrl-C."""

    def __init__(self):
        self.interrupts = [KeyboardInterrupt()]

    def __iter__(self):
        for number in range(5):
            if number == 2 and self.interrupts:
                raise self.interrupts.pop()
            yield number


def put_into(seen, batches):
    for batch in batches:
        seen.append(batch)


def test_after_an_interrupt_the_epoch_goes_on():
    """The same iterator has the rest, and the state stays in its epoch."""
    with vp.DataLoader2(Interrupted(), seed=1) as loader:
        batches, seen = iter(loader), []
        with pytest.raises(KeyboardInterrupt):
            put_into(seen, batches)
        state = loader.state_dict()

        assert (state["epoch"], state["next_batch"]) == (0, len(seen))
        assert seen + list(batches) == [0, 1, 2, 3, 4]
        assert loader.state_dict()["epoch"] == 1
        assert list(batches) == []


def fails(number):
    if number == 1:
        raise OSError(f"no {number}")
    return number


def test_another_epoch_has_a_budget_of_its_own():
    """Also one that is set after a state was loaded and the iterator was made."""
    chain = IterableWrapper(range(3)).map(fails)
    adapter = vp.OnError("skip", budget=1, errors=OSError)
    with vp.DataLoader2(chain, adapter, seed=1) as loader:
        loader.load_state_dict({**loader.state_dict(), "failures": 1})
        with pytest.raises(TooManyFailures):
            list(loader)
        loader.load_state_dict({**loader.state_dict(), "failures": 1})
        batches = iter(loader)
        loader.set_epoch(5)

        assert list(batches) == [0, 2]
        assert loader.state_dict()["epoch"] == 6


def kept(numbers):
    return len(numbers) > 1


def test_other_adapters_leave_a_running_epoch_its_shares():
    """They count from the next epoch on; those that are refused never."""
    chain = IterableWrapper(range(12)).sharding_filter().batch(2).filter(kept).batch(1)
    service = vp.MultiProcessingReadingService(2, "fork")
    with vp.DataLoader2(chain, None, service, seed=1) as loader:
        batches = iter(loader)
        seen = [next(batches)]
        loader.adapters = [vp.Profile()]
        assert loader.state_dict()["shares"] == 2
        with pytest.raises(GraphError):
            loader.adapters = [vp.OnError("skip")]
        assert loader.state_dict()["shares"] == 2
        assert sorted(seen + list(batches)) == sorted(EVENS_AND_ODDS)
