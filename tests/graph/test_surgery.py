"""Pipes put in, taken out and replaced; the user's own graph stays as it was."""

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper, Mapper

from voxpipe.core.errors import GraphError
from voxpipe.graph import find, parents_of, replace_pipe, walk
from voxpipe.graph import node as node_module


def double(x):
    return 2 * x


def negative(x):
    return -x


def odd(x):
    return x % 2


def numbers():
    return IterableWrapper([1, 2, 3])


def test_a_pipe_is_replaced_and_the_given_graph_is_not_changed():
    """Readers are copied, the rest is shared."""
    source = numbers()
    middle = source.map(double)
    sink = middle.map(negative)

    changed = replace_pipe(sink, middle, source.map(str))

    assert list(sink) == [-2, -4, -6]
    assert parents_of(sink) == (middle,)
    assert next(iter(walk(changed))) is source
    assert parents_of(changed) != (middle,)


def test_the_last_pipe_can_be_replaced():
    """Nothing reads it, so the new one is the sink."""
    source = numbers()

    assert list(replace_pipe(source.map(double), source, IterableWrapper([5]))) == [10]
    assert replace_pipe(source, source, other := numbers()) is other


def test_what_is_put_behind_a_pipe_serves_all_its_readers():
    """A diamond keeps one source: both branches read the same new pipe."""
    source = numbers()
    left, right = source.map(double), source.map(negative)
    sink = left.zip(right)

    changed = replace_pipe(sink, source, source.map(double))

    assert len(find(changed, IterableWrapper)) == 1
    assert len(find(changed, Mapper)) == 3
    (inserted,) = {id(parents_of(p)[0]) for p in parents_of(changed)}
    assert parents_of(next(p for p in walk(changed) if id(p) == inserted)) == (source,)


def test_children_of_a_demux_are_rewired_together():
    """Both children keep one demultiplexer, on the new parent."""
    evens, odds = numbers().demux(2, odd)
    sink = evens.mux(odds)
    source = find(sink, IterableWrapper)[0]

    changed = replace_pipe(sink, source, IterableWrapper([10, 11, 12, 13]))

    assert sorted(changed) == [10, 11, 12, 13]
    assert len({id(parents_of(child)[0]) for child in parents_of(changed)}) == 1
    assert sorted(sink) == [1, 2]  # mux ends with the shortest


def test_a_pipe_is_removed_by_its_parent():
    """What read it reads what it read."""
    source = numbers()
    middle = source.map(double)

    assert list(replace_pipe(middle.map(negative), middle, source)) == [-1, -2, -3]
    assert replace_pipe(middle, middle, source) is source


def test_a_pipe_that_is_not_in_the_graph_is_named():
    """A mistake that would otherwise change nothing, silently."""
    with pytest.raises(GraphError, match=r"map\(double.*is not in this graph"):
        replace_pipe(numbers(), numbers().map(double), numbers())


def test_a_graph_of_diamonds_is_changed_in_linear_work(monkeypatch):
    """Each of 1 + 2 * 200 pipes is looked into a fixed number of times, not once per path."""
    looked = []
    inside = node_module.pipes_in
    monkeypatch.setattr(node_module, "pipes_in", lambda v: looked.append(1) or inside(v))
    source = sink = numbers()
    for _ in range(200):
        sink = sink.zip(sink.map(double))
    looked.clear()

    changed = replace_pipe(sink, source, source.map(negative))

    count = sum(1 for _ in walk(changed))
    assert count == 402
    assert len(looked) < 60 * count
