"""The length of a graph is asked of every pipe once, also where branches meet."""

import pytest
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.datapipes.length import length
from voxpipe.graph import clone


class Source(IterDataPipe):
    """Counts how often it is asked."""

    def __init__(self, count=4):
        self.count = count
        self.asked = 0

    def __len__(self):
        self.asked += 1
        if self.count is None:
            raise TypeError("unknown")
        return self.count

    def __iter__(self):
        yield from range(self.count)


def ours(pipe):
    return pipe.enumerate().zip_longest(pipe.enumerate())


def torchs(pipe):
    left, right = pipe.fork(2)
    return left.zip(right)


def both(pipe):
    return torchs(ours(pipe))


@pytest.mark.parametrize("diamond", [ours, torchs, both])
@pytest.mark.parametrize("count", [4, None])
def test_of_diamonds(diamond, count):
    """Forty of them have 2**40 paths; what is not known is asked for once, too."""
    source = pipe = Source(count)
    for _ in range(40):
        pipe = diamond(pipe)

    if count is None:
        with pytest.raises(TypeError):
            length(pipe)
    else:
        assert length(pipe) == count
    assert source.asked == 1


def test_of_a_loader_and_a_pipe_of_ours():
    """Both ask that way; nothing is remembered for the next time."""
    source = pipe = Source()
    for _ in range(40):
        pipe = both(pipe)
    last = pipe.enumerate()

    assert len(vp.DataLoader2(last)) == len(last) == 4
    source.count = 5
    assert len(last) == 5


def is_odd(n):
    return n % 2


CHAINS = {
    "batch": lambda p: p.batch(3),
    "concat": lambda p: p.concat(IterableWrapper(range(2))),
    "filter": lambda p: p.filter(is_odd),
    "shuffle": lambda p: p.shuffle(),
    "sharding": lambda p: p.sharding_filter(),
    "unbatch": lambda p: p.batch(2).unbatch(),
    "mux": lambda p: p.mux(IterableWrapper(range(9))),
    "demux": lambda p: p.demux(2, is_odd)[0],
    "fork": lambda p: p.fork(2)[1],
    "sampler": lambda p: p.map(str).zip(p.map(int)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_is_that_of_the_pipe(name):
    """Whatever torch says."""
    pipe = CHAINS[name](IterableWrapper(range(7)))
    expected = told_by(len, pipe)

    assert told_by(length, pipe) == expected


def told_by(function, pipe):
    try:
        return function(pipe)
    except TypeError as error:
        return str(error)


def test_asking_leaves_a_running_pass_alone():
    """Also that of a shuffle, whose copies empty its buffer when they go."""
    pipe = IterableWrapper(range(10)).shuffle()
    items = iter(pipe.map(str))
    first = next(items)

    assert length(pipe.map(str)) == 10
    assert sorted([first, *items]) == [str(n) for n in range(10)]


def test_a_copy_of_a_chain_leaves_a_running_pass_alone():
    """A copy of a shuffle has a buffer of its own, which it empties when it goes."""
    pipe = IterableWrapper(range(10)).shuffle()
    items = iter(pipe)
    first = next(items)

    del_me = clone(pipe)
    del del_me

    assert sorted([first, *items]) == list(range(10))
