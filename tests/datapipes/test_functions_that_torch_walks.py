"""torch's walk over graphs pickles what it looks into: no function of the user's may be there."""

import inspect

import numpy as np
import pytest
from torch.utils.data import DataLoader, IterDataPipe
from torch.utils.data.graph import traverse_dps

import voxpipe as vp
from voxpipe.datapipes import DataPipe
from voxpipe.datapipes.iter import IterableWrapper
from voxpipe.datapipes.map import SequenceWrapper
from voxpipe.extensions.torchdata.map_pipe import MapPipe
from voxpipe.graph import is_pipe, parents_of, walk


def kinds_of(kind):
    """Return all classes of pipes that voxpipe derives from ``kind``."""
    below = {one for child in kind.__subclasses__() for one in kinds_of(child)}
    return {one for one in {kind, *below} if one.__module__.startswith("voxpipe.")}


def name_of(kind):
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("voxpipe.datapipes.")


KINDS = sorted(kinds_of(DataPipe) | kinds_of(MapPipe), key=name_of)
assert len(KINDS) > 100


def seen(pipe):
    """Return the pipes that torch's walk finds, by ``id``."""
    found, todo = set(), [traverse_dps(pipe)]
    while todo:
        for number, (_, above) in todo.pop().items():
            found.add(number)
            todo.append(above)
    return found


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_every_pipe_can_be_walked_whatever_it_was_given(kind):
    """Of each class of the catalogue, given functions by place, by name, in lists and mappings."""
    parent = IterableWrapper([1])
    base = DataPipe if issubclass(kind, DataPipe) else MapPipe
    code = kind.__init__.__code__
    takes_more = code.co_argcount > 2 or code.co_flags & inspect.CO_VARARGS
    by_place = [lambda x: x] if takes_more else []
    pipe = base.__new__(kind, parent, *by_place, fn=lambda x: x)
    vars(pipe).update(parent=parent, settings_of_mine=[lambda x: x], by_key={"a": lambda x: x})

    assert seen(pipe) == {id(pipe), id(parent)}


def zipped(one, other):
    return one.zip_longest(other)


def numbers():
    return IterableWrapper([2, 1])


CHAINS = {
    "flatmap": lambda: IterableWrapper([[1, 2]]).flatmap(lambda x: x),
    "shuffled_flatmap": lambda: numbers().shuffled_flatmap(lambda x: [x]),
    "map_batches": lambda: numbers().map_batches(lambda some: some, 2),
    "threadpool_map": lambda: numbers().threadpool_map(lambda x: x),
    "bucketbatch": lambda: numbers().bucketbatch(2, sort_key=lambda some: sorted(some)),
    "max_token_bucketize": lambda: IterableWrapper(["ab"]).max_token_bucketize(
        4, len_fn=lambda text: len(text)
    ),
    "zip_with_iter": lambda: numbers().zip_with_iter(
        numbers(), key_fn=lambda x: x, merge_fn=lambda a, b: a
    ),
    "zip_with_map": lambda: numbers().zip_with_map(
        SequenceWrapper([0, 1, 2]), key_fn=lambda x: x, merge_fn=lambda a, b: a
    ),
    "to_map_datapipe": lambda: (
        numbers().to_map_datapipe(lambda x: (x, x)).to_iter_datapipe(indices=[1, 2])
    ),
    "fork": lambda: zipped(*[one.flatmap(lambda x: [x]) for one in numbers().fork(2)]),
    "demux": lambda: zipped(*numbers().demux(2, lambda x: x - 1)),
    "open_volume": lambda: vp.from_cases([{"image": np.ones((2, 2, 2))}]).open_volume().realize(),
    "from_cases": lambda: vp.from_cases([{"image": 1, "made_by": lambda: 3}]),
    "shard_expand": lambda: IterableWrapper(["a-{0..1}"]).shard_expand().map(len),
    "set_length": lambda: numbers().flatmap(lambda x: [x]).set_length(2),
}


@pytest.mark.filterwarnings("ignore:(Lambda|Local) function is not supported")
@pytest.mark.parametrize("name", CHAINS)
def test_lambdas_run_in_torchs_loader(name):
    """Without workers; and torch finds the pipes that we declare."""
    pipe = CHAINS[name]()
    assert seen(pipe) == {id(each) for each in walk(pipe) if is_pipe(each)}

    assert list(DataLoader(pipe, batch_size=None, collate_fn=lambda item: item)) != []


def test_forked_workers_of_torch_run_lambdas():
    """A forked worker inherits what could not be pickled."""
    pipe = IterableWrapper([[1, 2]] * 2).sharding_filter().flatmap(lambda x: x)
    assert isinstance(pipe, IterDataPipe)
    loader = DataLoader(pipe, batch_size=None, num_workers=2, multiprocessing_context="fork")

    assert sorted(loader) == [1, 1, 2, 2]


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_every_pipe_tells_its_source_under_torchdatas_name(kind):
    """Read and set, as torchdata's users do."""
    one, other = IterableWrapper([1]), IterableWrapper([2])
    base = DataPipe if issubclass(kind, DataPipe) else MapPipe
    pipe = base.__new__(kind, one)
    vars(pipe)["parent"] = one
    assert pipe.source_datapipe is one

    pipe.source_datapipe = other
    assert [*parents_of(pipe)] == [pipe.source_datapipe] == [other]


def test_where_there_are_several_sources_or_none():
    """The first; and what reads nothing has none."""
    one, other = numbers(), numbers()

    assert one.zip_longest(other).source_datapipe is one
    assert numbers().unzip(2)[1].source_datapipe.source_datapipe is not None
    with pytest.raises(AttributeError, match="source_datapipe"):
        _ = vp.from_cases([{"image": 1}]).source_datapipe


def test_a_pipe_of_ones_own_may_use_the_name():
    """As in torchdata's documentation of writing pipes."""

    class Own(DataPipe):
        def __init__(self, source_datapipe):
            super().__init__()
            self.source_datapipe = source_datapipe

        def __iter__(self):
            yield from self.source_datapipe

    source = numbers()
    assert list(Own(source)) == [2, 1]
    assert parents_of(Own(source)) == (source,)
