import pytest
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

from voxpipe.core.errors import GraphError
from voxpipe.graph import fingerprint, verify
from voxpipe.graph.fingerprint import stable_text


class Draws(IterDataPipe):
    stream_names = ()

    def __init__(self, parent, *names, strength=1):
        self.parent, self.stream_names, self.strength = parent, names, strength


def test_two_streams_of_one_name_are_refused():
    """Two pipes in one chain that draw under one name would draw the same numbers."""
    graph = Draws(Draws(IterableWrapper([1]), "rotate"), "rotate")

    with pytest.raises(GraphError, match="'rotate'"):
        verify(graph)


def test_branches_may_share_a_name():
    """Two branches are two items: each may have its own rotate."""
    a = Draws(IterableWrapper([1]), "rotate")
    b = Draws(IterableWrapper([1]), "rotate")
    graph = a.zip(b)

    assert verify(graph) is graph


def test_what_is_not_a_pipe_is_refused():
    """A list is not a graph."""
    with pytest.raises(GraphError, match="got list"):
        verify([1, 2])


def double(x):
    return x * 2


def triple(x):
    return x * 3


def test_fingerprint_sees_settings_functions_and_edges():
    """Each of these graphs has a fingerprint of its own, and equal graphs share one."""
    graphs = [
        lambda: IterableWrapper([1]).map(double),
        lambda: IterableWrapper([1]).map(triple),
        lambda: Draws(IterableWrapper([1]), "a"),
        lambda: Draws(IterableWrapper([1]), "a", strength=2),
        lambda: IterableWrapper([1]).zip(IterableWrapper([1])),
    ]

    prints = [fingerprint(make()) for make in graphs]

    assert len(set(prints)) == len(graphs)
    assert prints == [fingerprint(make()) for make in graphs]


def test_stable_text_has_no_addresses():
    """Objects without a stable text are told by their class."""
    assert stable_text([object(), double]) == f"[object, {__name__}.double]"
