import numpy as np
import pytest
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.core.errors import GraphError
from voxpipe.graph import (
    chained_name,
    clone,
    describe,
    find,
    parents_of,
    readers,
    walk,
    with_parents,
)


def double(x):
    return 2 * x


class Refuses(IterDataPipe):
    """Holds data that must never be pickled or copied to find the edges."""

    def __init__(self, parent):
        self.parent = parent
        self.data = np.zeros(3)

    def __iter__(self):
        return iter(self.parent)

    def __reduce_ex__(self, protocol):
        raise AssertionError("edges are found without pickling")


def diamond():
    left, right = IterableWrapper([1, 2, 3]).fork(2)
    return left.map(double).zip(right)


def test_parents_come_first_and_once():
    """A diamond's top is yielded once, before both of its readers."""
    sink = diamond()

    pipes = list(walk(sink))

    assert len(pipes) == len({id(p) for p in pipes})
    for position, pipe in enumerate(pipes):
        assert all(parent in pipes[:position] for parent in parents_of(pipe))
    assert pipes[-1] is sink


def test_edges_are_found_without_pickling():
    """A pipe that refuses to pickle still shows its parent."""
    source = IterableWrapper([1])

    assert parents_of(Refuses(source)) == (source,)


def test_a_hundred_diamonds_take_no_time():
    """The walk is linear where torch's own is exponential: 2**100 paths, 401 pipes."""
    pipe = IterableWrapper([1])
    for _ in range(100):
        left, right = pipe.fork(2)
        pipe = left.zip(right)

    assert len(list(walk(pipe))) == 1 + 100 * 4


def test_a_loop_is_refused():
    """A pipe upstream of itself is named."""
    first = IterableWrapper([1]).map(double)
    second = first.map(double)
    first.datapipe = second

    with pytest.raises(GraphError, match=r"map.*upstream of itself"):
        list(walk(second))


def test_readers_are_counted():
    """The pipe that two others read has two readers."""
    source = IterableWrapper([1])
    a, b = source.map(double), source.map(double)
    counts = readers(a.zip(b))

    assert counts[id(source)] == 2
    assert counts[id(a)] == 1


def test_clone_shares_nothing_that_runs():
    """A clone yields the same, keeps the diamond, and holds none of the original pipes."""
    sink = diamond()

    twin = clone(sink)

    assert not {id(p) for p in walk(sink)} & {id(p) for p in walk(twin)}
    assert len(list(walk(twin))) == len(list(walk(sink)))
    assert list(twin) == [(2, 1), (4, 2), (6, 3)]


def test_with_parents_leaves_the_original():
    """Moving a pipe makes a copy, and the same object if nothing moves."""
    a, b = IterableWrapper([1]), IterableWrapper([5])
    pipe = a.map(double)

    moved = with_parents(pipe, [b])

    assert (list(pipe), list(moved)) == ([2], [10])
    assert with_parents(pipe, [a]) is pipe


def test_find_by_class():
    """Find answers every instance, parents first."""
    sink = diamond()

    assert [type(p).__name__ for p in find(sink, IterableWrapper)] == [
        "IterableWrapperIterDataPipe"
    ]


def test_foreign_pipes_are_described_by_their_chained_name():
    """A torch map says which function it runs and where that stands."""
    text = describe(IterableWrapper([1]).map(double))

    assert text.startswith("map(double test_walk.py:")


class Reads(IterDataPipe):
    """Reads a pipe, and tells it so under a private name, as users' own pipes do."""

    def __init__(self, source):
        self._source = source
        vars(source)["_reader"] = self

    def __iter__(self):
        yield from self._source


class Notes(IterDataPipe):
    """Has a place for what reads from it."""

    def __init__(self, datapipe):
        self.datapipe = datapipe
        self._later = []

    def __iter__(self):
        yield from self.datapipe


def test_a_pipe_that_notes_its_reader_is_no_cycle():
    """In private: what reads from it comes later, whatever it calls its own parent."""
    noted = Notes(IterableWrapper([1, 2]))
    middle = Reads(noted)
    sink = middle.map(double)
    noted._later.append(sink)

    assert parents_of(noted) == (noted.datapipe,)
    assert parents_of(middle) == (noted,)
    assert [*walk(sink)] == [noted.datapipe, noted, middle, sink]
    assert list(sink) == [2, 4]


def test_a_copy_notes_the_reader_in_its_own_graph():
    """The user's pipes keep theirs."""
    sink = Reads(Notes(IterableWrapper([1, 2])))

    copied = clone(sink)

    assert copied._source._reader is copied is not sink
    assert sink._source._reader is sink
    assert list(vp.DataLoader2(sink.map(double))) == [2, 4]


def test_what_reads_itself_in_public_is_a_cycle():
    """There is no telling which comes first."""
    first = Notes(IterableWrapper([1]))
    first.datapipe = Notes(first)

    with pytest.raises(GraphError, match="upstream of itself"):
        list(walk(first))


@pytest.mark.parametrize("thing", [None, 3, IterableWrapper])
def test_what_is_no_pipe_has_no_chained_name(thing):
    """The name of its class would look like that of a pipe."""
    with pytest.raises(TypeError, match="a pipe expected, got"):
        chained_name(thing)


class CountedList(list):
    """A list that counts the entries that are looked at."""

    count = 0

    def __iter__(self):
        for entry in super().__iter__():
            self.count += 1
            yield entry


def test_data_of_a_pipe_is_not_looked_through():
    """However many walks; of a long list the first entry says whether it holds pipes."""
    cases = CountedList({"image": f"/scans/{n}.nii", "case": str(n)} for n in range(5000))
    pipe = vp.from_cases(cases)
    walks = 50
    cases.count = 0
    for _ in range(walks):
        assert list(walk(pipe)) == [pipe]
    assert cases.count <= walks

    pipes = [IterableWrapper([n]) for n in range(200)]
    assert len(list(walk(pipes[0].concat(*pipes[1:])))) == 201
