"""An error of a user's function arrives with what it held, and not with what torch made of it."""

import copyreg

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.core.errors import WorkerDied
from voxpipe.dataloader2 import DataLoader2, MultiProcessingReadingService


class Rejected(Exception):
    """Stand for an error with fields."""

    def __init__(self, number, reason):
        super().__init__(number, reason)
        self.number = number


def look_up(n):
    return {0: "zero"}[n]


def reject(n):
    raise Rejected(n, {"why": "too large"})


def fail_silently(n):
    raise IndexError


def fail_in_words(n):
    raise ValueError("too large", n)


def missing_file(n):
    raise FileNotFoundError(2, "No such file", "a.txt")


class Unreadable(Exception):
    """Stand for the many errors that pickle cannot make again: it is made of more than it holds."""

    def __init__(self, path, code):
        super().__init__(f"{path}: code {code}")


def read(n):
    raise Unreadable(f"{n}.txt", 5)


CHAINS = {
    "in workers": lambda pipe, f: pipe.map(f),
    "in shares": lambda pipe, f: pipe.sharding_filter().map(f).shuffle().batch(2),
    "in the planner": lambda pipe, f: pipe.map(f).filter(bool),
}


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("function", "kind", "args"),
    [
        (look_up, KeyError, (7,)),
        (reject, Rejected, (7, {"why": "too large"})),
        (fail_silently, IndexError, ()),
        (fail_in_words, ValueError, ("too large", 7)),
        (missing_file, FileNotFoundError, (2, "No such file")),
    ],
)
def test_an_error_arrives_with_what_it_held(chain, workers, function, kind, args):
    """From this process or a worker, wherever the function runs: the very arguments."""
    pipe = CHAINS[chain](IterableWrapper([7]), function)
    service = MultiProcessingReadingService(workers, "fork")
    with DataLoader2(pipe, None, service) as loader, pytest.raises(kind) as e:
        list(loader)

    assert e.value.args == args


def test_an_error_that_a_pipe_of_yours_changes_arrives_changed():
    """The last arguments hold, and not those that it was raised with."""

    class Explains(vp.datapipes.iter.IterDataPipe):
        def __init__(self, parent):
            self.parent = parent

        def __iter__(self):
            try:
                yield from self.parent
            except KeyError as error:
                error.args = ("no such label",)
                raise

    chain = Explains(IterableWrapper([7]).map(look_up))
    with DataLoader2(chain) as loader, pytest.raises(KeyError) as e:
        list(loader)

    assert e.value.args == ("no such label",)


def test_an_error_that_cannot_travel_is_told_with_its_place(monkeypatch):
    """It cannot be made again here; its name, message, pipe and item are told."""
    # tblib, which other tests may have imported, pickles any exception.
    monkeypatch.delitem(copyreg.dispatch_table, Unreadable, raising=False)
    service = MultiProcessingReadingService(1, "fork")
    with DataLoader2(IterableWrapper([7]).map(read), None, service) as loader:
        told = r"Unreadable: 7.txt: code 5\n  in batch 0\n  at .map\(read\)   test_errors_as_"
        with pytest.raises(WorkerDied, match=told):
            list(loader)
