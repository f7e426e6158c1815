"""torch's pipes are told as they were written: defaults stay out, in texts and drawings."""

import pytest
from torch.utils.data.datapipes.iter import FileLister, IterableWrapper, StreamReader
from torch.utils.data.datapipes.map import SequenceWrapper

from voxpipe.graph import describe, explain_graph, parents_of, to_dot, to_mermaid

HERE = __file__.rpartition("/")[2]


def half(n):
    return n % 2


def trunk(branches):
    """Return the pipe that torch hides behind branches."""
    return parents_of(branches[0])[0]


def numbers():
    return IterableWrapper(range(4))


LINE = half.__code__.co_firstlineno
WRITTEN = {
    "demux(2, half)": lambda: trunk(numbers().demux(2, half)),
    "demux(2, half, drop_none=True, buffer_size=5)": lambda: trunk(
        numbers().demux(2, half, drop_none=True, buffer_size=5)
    ),
    "fork(2)": lambda: trunk(numbers().fork(2)),
    "fork(2, buffer_size=5)": lambda: trunk(numbers().fork(2, buffer_size=5)),
    "collate()": lambda: numbers().collate(),
    f"collate(half {HERE}:{LINE})": lambda: numbers().collate(half),
    f"map(half {HERE}:{LINE})": lambda: numbers().map(half),
    f"map(half {HERE}:{LINE}, input_col=1, output_col=-1)": lambda: numbers().map(half, 1, -1),
    f"filter(half {HERE}:{LINE}, input_col=0)": lambda: numbers().filter(half, 0),
    "batch(2)": lambda: numbers().batch(2),
    "groupby(half, keep_key=True, group_size=2)": lambda: numbers().groupby(
        half, keep_key=True, group_size=2
    ),
    "groupby(half)": lambda: numbers().groupby(half),
    "shuffle()": lambda: SequenceWrapper([5, 6]).shuffle(),
    "shuffle(indices=list of 2)": lambda: SequenceWrapper([5, 6]).shuffle(indices=[1, 0]),
    "list_files(masks='*.txt')": lambda: FileLister("texts", "*.txt"),
    "read_from_stream()": lambda: StreamReader(numbers()),
    "sharding_filter()": lambda: numbers().sharding_filter(),
}


@pytest.mark.parametrize("text", WRITTEN)
def test_as_it_was_written(text):
    """Arguments that were given, those after the first by name."""
    assert describe(WRITTEN[text]()) == text


def test_so_do_drawings_and_explanations():
    """All three ask the pipe."""
    low, high = numbers().demux(2, half)
    sink = low.zip(high)

    for text in (to_mermaid(sink), to_dot(sink), explain_graph(sink)):
        assert "demux(2, half)" in text
        assert "1000" not in text
        assert "False" not in text
