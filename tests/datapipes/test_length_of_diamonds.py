"""How many items there are, asked once, whatever the form of the graph."""

import pytest
from torch.utils.data import IterDataPipe

import voxpipe as vp
from voxpipe.datapipes.datapipe import length as item_count
from voxpipe.datapipes.iter import IterableWrapper

DIAMONDS = 40


class Asked(IterDataPipe):
    """Counts how often it is asked for its length."""

    def __init__(self, length=5):
        self.length, self.times = length, 0

    def __iter__(self):
        return iter(range(self.length))

    def __len__(self):
        self.times += 1
        assert self.times < 1000, "asked again and again"
        return self.length


class Curious(IterDataPipe):
    """Looks for more than a length in its parent."""

    def __init__(self, parent):
        self.parent = parent

    def __iter__(self):
        return iter(self.parent)

    def __len__(self):
        return self.parent.length


@pytest.mark.parametrize(
    "diamond",
    [
        lambda pipe: pipe.map(str).zip(pipe),
        lambda pipe: pipe.enumerate().zip_longest(pipe),
        lambda pipe: pipe.prefetch(2).zip(pipe.add_index("n")),
    ],
    ids=["torch", "ours", "both"],
)
def test_diamonds_ask_the_source_once(diamond):
    """Two to the fortieth times would never end."""
    source = pipe = Asked()
    for _ in range(DIAMONDS):
        pipe = diamond(pipe)

    assert item_count(pipe) == 5
    assert source.times == 1


def test_a_length_that_nobody_knows():
    """The error of the pipe that does not know, unless a pipe behind it does."""
    unknown = IterableWrapper(range(5)).filter(bool)
    diamond = unknown.map(str).zip(unknown)

    with pytest.raises(TypeError):
        item_count(diamond)
    assert item_count(diamond.set_length(4)) == 4


def test_a_pipe_that_looks_into_its_parent_is_asked_itself():
    """Where it is alone it is in any case."""
    source = Asked()
    shared = Curious(source)

    assert item_count(shared) == item_count(shared.zip(source)) == 5


def test_a_pass_that_runs_is_not_disturbed():
    """Torch's shuffle clears its buffer when it is dropped, and a copy would share that."""
    pipe = IterableWrapper(range(9)).shuffle(buffer_size=4).batch(1)
    items = iter(pipe)
    first = next(items)

    assert item_count(pipe) == 9
    assert sorted([*first, *(item for (item,) in items)]) == list(range(9))


def test_the_loader_counts_with_and_without_workers():
    """Its length, and its first batch with workers, ask a shared source no oftener."""
    pipe = IterableWrapper(range(3))
    for _ in range(DIAMONDS):
        pipe = pipe.zip(pipe)

    assert len(vp.DataLoader2(pipe)) == 3
