"""Reading services in torchdata's form: they prepare a graph, are told of epochs, keep a state."""

import functools
import gc
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from scenes import full_chain, same, write_cases
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.core.errors import StateMismatch
from voxpipe.reading_services import (
    CheckpointableReadingServiceInterface,
    ReadingServiceInterface,
    SeedGenerator,
    SequentialReadingService,
)


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return write_cases(tmp_path_factory.mktemp("cases"))


class Noting(ReadingServiceInterface):
    """Notes what it is told; the list is shared by copies."""

    def __init__(self, notes):
        self.notes = notes
        self.is_on = False

    def initialize(self, datapipe):
        self.is_on = True
        self.notes.append("initialize")
        return datapipe

    def initialize_iteration(self, seed_generator):
        """Without torchdata's second argument, which a subclass may leave out."""
        self.notes.append(seed_generator)
        self.notes.append("begin")

    def finalize_iteration(self):
        self.notes.append("end")

    def finalize(self):
        # Copies that were never used are collected too.
        if self.is_on:
            self.is_on = False
            self.notes.append("finalize")


def words(notes):
    return [note for note in notes if isinstance(note, str)]


def test_it_is_told_of_the_life_of_a_loader(cases):
    """Once at the beginning, around every epoch however it ends, and once at the end."""
    notes = []
    with vp.DataLoader2(full_chain(cases), None, Noting(notes), seed=7) as it:
        batches = list(it)
        for _ in it:
            break
    with vp.DataLoader2(full_chain(cases), seed=7) as alone:
        assert same(batches, list(alone))

    assert words(notes) == ["initialize", "begin", "end", "begin", "end", "finalize"]
    seeds = [note for note in notes if isinstance(note, SeedGenerator)]
    assert len({seed.generate_shared_seed() for seed in seeds}) == 2


def fail(number):
    raise ValueError("a mistake")


def test_an_epoch_that_fails_is_ended(cases):
    """The error is the user's; the service may clean up."""
    notes = []
    pipe = IterableWrapper([1]).map(fail)
    with (
        vp.DataLoader2(pipe, None, Noting(notes), seed=7) as it,
        pytest.raises(ValueError, match="a mistake"),
    ):
        list(it)

    assert words(notes) == ["initialize", "begin", "end", "finalize"]


class Adding(ReadingServiceInterface):
    def initialize(self, datapipe):
        return [*datapipe]  # anything that can be iterated

    def initialize_iteration(self, seed_generator, iter_reset_fn=None):
        return functools.partial(map, (10).__add__)


def test_what_an_epoch_returns_is_applied():
    """Services of torchdata change the graph for one epoch this way."""
    with vp.DataLoader2(IterableWrapper([1, 2]), None, Adding(), seed=7) as it:
        assert list(it) == [11, 12]
        assert list(it) == [11, 12]


class Counting(CheckpointableReadingServiceInterface):
    """Knows how often it was restored."""

    def __init__(self):
        self.restored = 0

    def initialize(self, datapipe):
        return datapipe

    def checkpoint(self):
        return json.dumps(self.restored).encode()

    def restore(self, datapipe, serialized_state):
        self.restored = json.loads(serialized_state) + 1
        return datapipe.map(functools.partial(pair, self.restored))


def unchanged(datapipe, info):
    return datapipe


def pair(restored, item):
    return restored, item


@pytest.mark.parametrize("wrap", [lambda s: s, SequentialReadingService])
def test_its_state_travels_in_that_of_the_loader(wrap):
    """restore() takes the place of initialize(); the position is the loader's, and JSON."""
    pipe = IterableWrapper(range(5))
    with vp.DataLoader2(pipe, None, wrap(Counting()), seed=7) as it:
        batches = iter(it)
        next(batches), next(batches)
        state = json.loads(json.dumps(it.state_dict()))
    with vp.DataLoader2(pipe, None, wrap(Counting()), seed=7) as it:
        it.load_state_dict(state)
        assert list(it) == [(1, 2), (1, 3), (1, 4)]
        everything = list(it)
        assert everything[0] == (1, 0)
        again = it.state_dict()
    with vp.DataLoader2(pipe, None, wrap(Counting()), seed=7) as it:
        it.load_state_dict(again)
        assert next(iter(it)) == (2, 0)


@pytest.mark.parametrize(
    ("service", "error"),
    [
        (vp.MultiProcessingReadingService(1, worker_init_fn=unchanged), StateMismatch),
        (Adding(), TypeError),
        (SequentialReadingService(Adding()), TypeError),
    ],
)
def test_a_state_with_one_of_a_service_wants_that_service(service, error):
    """It is not dropped without a word."""
    pipe = IterableWrapper(range(5))
    with vp.DataLoader2(pipe, None, Counting(), seed=7) as it:
        state = it.state_dict()

    with (
        vp.DataLoader2(pipe, None, service, seed=7) as it,
        pytest.raises(error, match="the state holds one of a reading service"),
    ):
        it.load_state_dict(state)


def test_a_service_without_a_state_adds_nothing_to_the_loaders():
    """The state is what it was."""
    with vp.DataLoader2(IterableWrapper(range(5)), None, Adding(), seed=7) as it:
        assert "service" not in it.state_dict()


class Ending(Counting):
    """Notes when what it prepared is freed."""

    def __init__(self, notes):
        super().__init__()
        self.notes = notes

    def initialize(self, datapipe):
        self.notes.append("initialize")
        return datapipe

    def restore(self, datapipe, serialized_state):
        self.notes.append("restore")
        return datapipe

    def finalize(self):
        self.notes.append("finalize")


def test_what_it_prepared_is_freed_before_it_is_restored():
    """A state that is loaded after an epoch takes nothing out of its hands."""
    notes = []
    service = Ending(notes)  # the loader has a copy; this one is finalized when it goes
    with vp.DataLoader2(IterableWrapper(range(5)), None, service, seed=7) as it:
        list(it)
        it.load_state_dict(it.state_dict())
        list(it)

    assert notes == ["initialize", "finalize", "restore", "finalize"]


class Pooled(ReadingServiceInterface):
    """Has a pool of threads from its beginning, as torchdata's users write it."""

    def __init__(self, notes):
        self.notes = notes
        self.pool = ThreadPoolExecutor(1)

    def initialize(self, datapipe):
        self.notes.append("initialize")
        return datapipe

    def initialize_iteration(self, seed_generator, iter_reset_fn=None):
        self.notes.append(self.pool.submit(str.upper, "works").result(timeout=30))

    def finalize(self):
        self.notes.append("finalize")
        self.pool.shutdown()


@pytest.mark.parametrize("wrap", [lambda service: service, SequentialReadingService])
def test_what_it_made_at_its_beginning_is_there_until_the_loader_ends(wrap):
    """Also where nobody but the loader keeps the service: nothing is freed before it is used."""
    notes = []
    loader = vp.DataLoader2(IterableWrapper([1, 2]), None, wrap(Pooled(notes)))
    gc.collect()

    assert list(loader) == list(loader) == [1, 2]
    assert notes == ["initialize", "WORKS", "WORKS"]
    loader.shutdown()
    assert notes[3] == "finalize"
