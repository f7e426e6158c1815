"""Where a loader is after what does not go on as planned: an interrupt, other epochs, other ranks."""

import pytest
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.core.errors import TooManyFailures


class Interrupted(IterDataPipe):
    """Numbers; before the third of the first pass comes Ctrl-C."""

    def __init__(self):
        self.interrupts = [KeyboardInterrupt()]

    def __iter__(self):
        for number in range(5):
            if number == 2 and self.interrupts:
                raise self.interrupts.pop()
            yield number


def test_after_an_interrupt_the_epoch_goes_on():
    """The same iterator has the rest, and the state stays in its epoch."""
    with vp.DataLoader2(Interrupted(), seed=1) as loader:
        batches, seen = iter(loader), []
        with pytest.raises(KeyboardInterrupt):
            while True:
                seen.append(next(batches))
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
        loader.load_state_dict({**loader.state_dict(), "failed": 1})
        with pytest.raises(TooManyFailures):
            list(loader)
        loader.load_state_dict({**loader.state_dict(), "failed": 1})
        batches = iter(loader)
        loader.set_epoch(5)

        assert list(batches) == [0, 2]
        assert loader.state_dict()["epoch"] == 6
