"""An error of the planner comes in its turn, after the batches that were planned before it."""

import threading

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core.errors import NotPicklable


class FailAt:
    """Raises at one case, while it is planned."""

    def __init__(self, case):
        self.case = case

    def __call__(self, sample):
        if sample.case == self.case:
            raise ValueError(f"bad {self.case}")
        return sample


class LockAt(FailAt):
    """Makes one case that cannot travel."""

    def __call__(self, sample):
        return sample.with_data(lock=threading.Lock()) if sample.case == self.case else sample


def taken(function, workers, order="plan"):
    cases = [{"image": np.full((4, 4, 4), n, np.uint8)} for n in range(9)]
    pipe = vp.from_cases(cases).map(function).open_volume().lazy_patch(4).batch_patches(1)
    service = vp.MultiProcessingReadingService(workers, order=order)
    got = []
    with vp.DataLoader2(pipe, None, service, seed=1) as loader:
        try:
            for batch in loader:
                got.append(int(batch["image"].max()))
        except (ValueError, NotPicklable) as error:
            return got, error
    return got, None


@pytest.mark.parametrize("order", ["plan", "as_ready"])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_planned_before_an_error_are_delivered(workers, order):
    """As many with workers, who are ahead, as without."""
    got, error = taken(FailAt("7"), workers, order)

    assert sorted(got) == list(range(7))
    assert "bad 7" in str(error)


def test_batches_before_one_that_cannot_travel_are_delivered():
    """Samples that cannot be sent are an error of their batch."""
    got, error = taken(LockAt("7"), 2)

    assert got == list(range(7))
    assert isinstance(error, NotPicklable)
