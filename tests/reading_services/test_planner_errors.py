"""An error of the planner comes in its turn, after the batches that were planned before it."""

import threading

import numpy as np
import pytest
from torch.utils.data import IterDataPipe

import voxpipe as vp
from voxpipe.core.errors import NotPicklable, SampleError
from voxpipe.datapipes.datapipe import PerItem
from voxpipe.datapipes.item_numbers import items_from
from voxpipe.datapipes.iter import IterableWrapper
from voxpipe.graph import failed_item


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
    service = vp.MultiProcessingReadingService(workers, "fork", order=order)
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


# --- which case, or which item, it was ---------------------------------------------------------


class FailAtItem(FailAt):
    """Raises at one item that has no name."""

    def __call__(self, item):
        if item == self.case:
            raise ValueError(f"bad {item}")
        return item


class Keep(FailAtItem):
    """Keeps every item but one, at which it raises."""

    def __call__(self, item):
        super().__call__(int(getattr(item, "case", item)))
        return True


class Own(IterDataPipe):
    """A pipe of the user's that fails in the middle."""

    def __init__(self, parent, function):
        super().__init__()
        self.parent, self.function = parent, function

    def __iter__(self):
        for each in self.parent:
            yield self.function(each)


def failed(pipe, workers=0, adapters=None, skip=0, kind=ValueError):
    """Return what is told of an error, once some batches were delivered before."""
    service = vp.MultiProcessingReadingService(workers, "fork")
    with vp.DataLoader2(pipe, adapters, service, seed=1) as loader:
        state = loader.state_dict()
        loader.load_state_dict({**state, "next_batch": skip})
        with pytest.raises(kind) as error:
            list(loader)
    return [str(error.value), *getattr(error.value, "__notes__", [])]


def nine_cases():
    return vp.from_cases([{"image": np.full((4, 4, 4), n, np.uint8)} for n in range(9)])


def patches(pipe):
    return pipe.open_volume().lazy_patch(4).batch_patches(3)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("adapters", [None, [vp.Profile()]], ids=["plain", "profiled"])
def test_a_bad_case_before_a_shuffle_is_named(workers, adapters):
    """The shuffle asks for it long before its turn; its name is read off the pipe that failed."""
    told = failed(patches(nine_cases().map(FailAt("4")).shuffle()), workers, adapters)

    assert told[0] == "bad 4"
    assert "in case 4" in told
    assert any(".map(" in line and "test_planner_errors.py" in line for line in told)


def test_a_bad_case_in_a_filter_or_a_pipe_of_your_own_is_named():
    """Whatever the pipe calls its items."""
    assert "in case 4" in failed(patches(nine_cases().filter(Keep(4)).shuffle()))
    own = Own(nine_cases(), FailAt("4"))
    assert "in case 4" in failed(patches(own.shuffle()))


def test_a_bad_case_in_a_pipe_of_ours_is_named():
    """Also where the error is one of ours, whose message says it."""

    def without_name(sample):
        return sample if sample.case != "4" else "no sample"

    opened = nine_cases().map(without_name).shuffle().open_volume()
    (message, *_) = failed(opened.lazy_patch(4).batch_patches(3), kind=SampleError)

    assert "in item" in message


@pytest.mark.parametrize("workers", [0, 2])
def test_an_item_without_a_name_is_told_by_its_number(workers):
    """Among those that the pipe before yields."""
    told = failed(IterableWrapper(range(100, 120)).map(FailAtItem(107)).shuffle().batch(2), workers)
    assert "in item 7 of IterableWrapper(range(100, 120))" in told

    profiled = IterableWrapper(range(100, 120)).filter(Keep(107)).shuffle().batch(2)
    assert "in item 7 of IterableWrapper(range(100, 120))" in failed(
        profiled, adapters=[vp.Profile()]
    )


def test_the_number_is_that_of_the_whole_pass():
    """In the middle of an epoch that was resumed as well."""
    pipe = IterableWrapper(range(100, 120)).map(FailAtItem(115)).filter(bool).batch(2)
    assert "in item 15 of IterableWrapper(range(100, 120))" in failed(pipe, skip=5)


class Plain(PerItem):
    """A pipe of ours that fails at one item."""

    def apply(self, item):
        return FailAtItem(115)(item)


def test_what_a_resumed_pass_passes_over_is_counted():
    """Pipes at its end do not run for those."""
    with pytest.raises(ValueError, match="bad 115") as error:
        list(items_from(Plain(IterableWrapper(range(100, 120))), 5))

    assert failed_item(error.value) == ("", "item 15 of IterableWrapper(range(100, 120))")


def test_a_source_of_your_own_that_fails_tells_how_far_it_came():
    """It has no pipe before it."""

    class Source(IterDataPipe):
        def __iter__(self):
            yield from range(4)
            raise ValueError("no more")

    assert "in item 4 of Source()" in failed(Source().shuffle().batch(2))
