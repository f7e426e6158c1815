"""Pipes that keep batches in the worker: what they keep is never written over."""

import copyreg
import gc
from types import TracebackType

import numpy as np
import pytest

import voxpipe as vp


class Previous:
    """A function that hands over the image of the batch before along with each batch."""

    def __init__(self):
        self.last = None

    def __call__(self, batch):
        before, self.last = self.last, batch["image"]
        return {**batch, "before": batch["image"] if before is None else before}


def refuse_three(batch):
    """Fail for one case."""
    if int(batch["image"].max()) == 3:
        msg = "three"
        raise ValueError(msg)
    return batch


def drop_all(batches):
    """Take every batch and keep none, not even in the traceback of an error."""
    for batch in batches:
        del batch


def numbered(count, size=32):
    """Patches each of which holds its own number; large enough to lie in slots."""
    volumes = [{"image": np.full((size,) * 3, n, np.uint8)} for n in range(count)]
    return vp.from_cases(volumes).open_volume().lazy_patch(size)


@pytest.mark.filterwarnings("ignore::voxpipe.core.errors.IdleWorkers")  # one works, as asked
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_that_a_pipe_shuffles_stay_what_they_are(workers):
    """Behind a shuffle every batch still holds the voxels that its meta speaks of."""
    pipe = numbered(40).batch_patches(2).shuffle(buffer_size=8)

    with vp.DataLoader2(
        pipe, None, vp.MultiProcessingReadingService(workers, "fork"), seed=3
    ) as it:
        batches = list(it)

    found = [b["image"][:, 0, 0, 0, 0].tolist() for b in batches]
    assert found == [[int(m["case"]) for m in b["meta"]] for b in batches]
    assert len(batches) == 20


def test_a_batch_that_is_sent_twice_stays_what_it_is():
    """A slot with two batches in it is free when both are gone."""
    pipe = numbered(30).batch_patches(1).map(Previous())
    wrong = []

    with vp.DataLoader2(pipe, None, vp.MultiProcessingReadingService(1, "fork"), seed=3) as it:
        for number, batch in enumerate(it):
            if int(batch["before"].max()) != max(0, number - 1):
                wrong.append(number)
            del batch  # so that its slot may be used again at once

    assert wrong == []


def outcome(it):
    """Iterate to the error and return its message; pytest.raises would keep its frames."""
    try:
        for _ in it:
            pass
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("pickles_tracebacks", [False, True])
def test_a_batch_that_fails_gives_its_slot_back(pickles_tracebacks, monkeypatch):
    """Failing epochs of persistent workers use up nothing: no batch goes through the pipe."""
    if pickles_tracebacks:  # as in processes that use dask
        tblib = pytest.importorskip("tblib.pickling_support")
        table = copyreg.dispatch_table
        monkeypatch.setitem(table, ValueError, tblib.pickle_exception)
        monkeypatch.setitem(table, TracebackType, tblib.pickle_traceback)
    service = vp.MultiProcessingReadingService(
        1, "fork", persistent_workers=True, slot_bytes=12 * 2**20
    )
    pipe = numbered(4).batch_patches(1).map(refuse_three)

    with vp.DataLoader2(pipe, None, service, seed=3) as it:
        gc.collect()
        gc.disable()  # nothing waits for a collection either
        try:
            for _ in range(8):
                # SlotsUsedUp would be an error here, as any warning is.
                assert outcome(it).startswith("three")
        finally:
            gc.enable()
