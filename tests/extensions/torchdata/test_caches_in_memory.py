"""Caches in memory hold real bytes, and what they hold is the same in every pass."""

import dataclasses
import functools
import itertools
import os
import pickle
import tempfile
import threading

import numpy as np
import pytest
import torch
from stack_sources import Counting, NoLength, first

import voxpipe as vp
from voxpipe.datapipes.epoch import set_epoch
from voxpipe.datapipes.iter import IterableWrapper
from voxpipe.datapipes.map import InMemoryCacheHolder, IterToMapConverter, SequenceWrapper
from voxpipe.datapipes.tensors import bytes_of

MB = 2**20


def megabyte(number):
    return np.full(MB, number % 256, np.uint8)


def held(pipe):
    """Return the bytes of the arrays that the cache keeps."""
    return sum(array.nbytes for array in pipe._items)


def test_a_cache_counts_the_bytes_of_arrays():
    """Four megabytes hold four arrays of one, where torchdata holds all forty."""
    pipe = IterableWrapper(range(40)).map(megabyte).in_memory_cache(size=4.01)

    seen = [int(array[0]) for array in pipe]

    assert seen == [*range(40)]
    assert held(pipe) == 4 * MB
    assert [int(array[0]) for array in pipe] == seen


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.zeros(MB, np.uint8),
        lambda: torch.zeros(MB // 4),
        lambda: {"image": torch.zeros(MB, dtype=torch.uint8), "name": "x"},
        lambda: [(np.zeros(MB // 2, np.uint8), np.zeros(MB // 2, np.uint8))],
        lambda: bytes(MB),
        lambda: vp.Sample({"image": np.zeros(MB, np.uint8)}),
        lambda: Pair(np.zeros(MB // 2, np.uint8), torch.zeros(MB // 2, dtype=torch.uint8)),
    ],
    ids=["array", "tensor", "mapping", "nested", "bytes", "sample", "dataclass"],
)
def test_items_are_measured_with_what_they_hold(make):
    """Arrays and tensors anywhere in an item count with their data."""
    assert MB <= bytes_of(make()) < 1.01 * MB


@dataclasses.dataclass
class Pair:
    """Two arrays."""

    one: object
    two: object


def test_a_thing_that_is_there_twice_counts_once():
    """One array under two keys is one array."""
    array = np.zeros(MB, np.uint8)

    assert bytes_of({"a": array, "b": array}) < 1.01 * MB


def test_circles_and_strange_tensors_are_measured():
    """Neither a list in itself nor a sparse tensor ends the pass."""
    circle = []
    circle.append(circle)

    assert bytes_of(circle) < 1000
    assert bytes_of(torch.eye(50).to_sparse()) > 0
    assert bytes_of(int) > 0


def test_only_what_is_missing_is_made_anew():
    """Of a parent that was kept whole nothing is asked; of one too large the first items."""
    whole = Counting(10)
    kept = whole.in_memory_cache()
    large = Counting(10)
    partly = large.map(megabyte).in_memory_cache(size=4.01)
    for pipe in (kept, kept, partly, partly):
        assert len(list(pipe)) == 10

    assert whole.asked == 10
    assert large.asked == 10 + 6


def test_the_very_same_objects_come_back():
    """From the first pass on."""
    pipe = IterableWrapper(range(3)).map(megabyte).in_memory_cache()

    assert [id(a) for a in list(pipe)] == [id(a) for a in list(pipe)]


def test_a_pass_that_was_left_keeps_nothing():
    """The next one begins anew and is complete."""
    parent = Counting(10)
    pipe = parent.in_memory_cache(size=1)

    assert first(pipe, 5) == [0, 1, 2, 3, 4]
    assert list(pipe) == [*range(10)]
    assert parent.asked == 15


def test_an_item_larger_than_the_cache_is_passed_on():
    """It is not kept, and neither is what came before it, which is made anew with it."""
    sizes = [1, 3, 1]
    arrays = [np.zeros(n * MB, np.uint8) for n in sizes]
    pipe = IterableWrapper(arrays, deepcopy=False).in_memory_cache(2)

    assert [a.nbytes for a in pipe] == [n * MB for n in sizes] == [a.nbytes for a in pipe]
    assert held(pipe) == MB


def test_its_length_is_known_at_the_latest_after_a_pass():
    """Where the parent has none."""
    pipe = NoLength([1, 2, 3]).in_memory_cache()
    with pytest.raises(TypeError, match="doesn't have valid length until the cache is loaded"):
        len(pipe)
    assert list(pipe) == [1, 2, 3]
    assert len(pipe) == 3
    assert len(IterableWrapper(range(4)).in_memory_cache()) == 4


def test_what_is_drawn_for_an_epoch_is_not_kept():
    """Draws for samples are refused, a shuffle before the cache is warned of."""
    patches = vp.from_cases([{"image": np.zeros((2, 2, 2))}]).open_volume().lazy_patch(1)
    with pytest.raises(vp.errors.GraphError, match="is drawn anew in every epoch") as told:
        patches.in_memory_cache()
    assert __file__.rsplit("/", 1)[-1] in str(told.value)
    with pytest.warns(UserWarning, match="keeps the order that shuffle"):
        IterableWrapper(range(4)).shuffle().in_memory_cache()


def test_patches_of_a_grid_are_kept_and_drawn_for_anew():
    """Where they lie is no draw; what comes after the cache differs in every epoch."""
    array = np.random.default_rng(0).random((8, 4, 4))
    grid = vp.from_cases([{"image": array}]).open_volume().lazy_patch(4, sampling="grid")

    def epochs(pipe):
        turned = pipe.rotate((-15, 15)).batch_patches(2)
        with vp.DataLoader2(turned, seed=5) as loader:
            return [[batch["image"].clone() for batch in loader] for _ in range(2)]

    plain, kept = epochs(grid), epochs(grid.in_memory_cache())

    assert [len(epoch) for epoch in plain] == [1, 1]
    assert all(torch.equal(a[0], b[0]) for a, b in zip(plain, kept, strict=True))
    assert not torch.equal(kept[0][0], kept[1][0])


def with_age(sample):
    return sample.with_data(age=len(sample.case))


@pytest.mark.parametrize("size", [None, 0.01, 0.003])
def test_cases_are_kept_and_drawn_for_anew(size):
    """Epochs are those without the cache, whether all, some or none were kept; resumed, too."""
    arrays = [np.random.default_rng(n).random((8, 8, 8)) for n in range(4)]
    cases = vp.from_cases([{"image": array, "case": f"c{n}"} for n, array in enumerate(arrays)])

    def chain(source):
        patches = source.shuffle().open_volume().lazy_patch(4).augment(rotate=(-15, 15))
        return patches.batch_patches(2)

    kept = chain(cases.map(with_age).in_memory_cache(size=size))
    with vp.DataLoader2(chain(cases.map(with_age)), seed=5) as loader:
        plain = [[batch["image"] for batch in loader] for _ in range(3)]
    with vp.DataLoader2(kept, seed=5) as loader:
        seen = [[batch["image"] for batch in loader] for _ in range(3)]
        next(iter(loader))
        state = loader.state_dict()
    with vp.DataLoader2(kept) as loader:
        loader.load_state_dict({**state, "epoch": 2})
        resumed = [batch["image"] for batch in loader]

    assert all(
        torch.equal(a, b)
        for x, y in zip(plain, seen, strict=True)
        for a, b in zip(x, y, strict=True)
    )
    assert torch.equal(resumed[0], plain[2][1])
    assert not torch.equal(plain[0][0], plain[1][0])


def test_channels_of_a_kept_stack_are_turned_alike():
    """In every epoch, as without the cache; though one of them begins anew at a flush."""
    case = {key: np.random.default_rng(0).random((8, 8, 8)) for key in ("t1", "t2")}
    stacked = vp.from_cases([case]).open_volume().flush(keys=["t1"]).stack(("t1", "t2"))

    def angles(pipe):
        turned = pipe.rotate((-30, 30))
        found = []
        for epoch in range(3):
            set_epoch(turned, 5, epoch)
            (sample,) = turned
            found.append([list(one.draws.values()) for one in sample["image"].members])
        return found

    kept = angles(stacked.in_memory_cache())

    assert [len(members) for members in kept] == [2, 2, 2]
    assert all(t1 == t2 for t1, t2 in kept)
    assert kept == angles(stacked)
    assert kept[0] != kept[1] != kept[2]


def test_kept_cases_are_drawn_for_anew_without_a_loader():
    """From torch's global generator, as ever."""
    cases = vp.from_cases([{"image": np.zeros((8, 8, 8))}]).in_memory_cache()
    pipe = cases.open_volume().lazy_patch(2)

    def places():
        torch.manual_seed(1)
        return [str(sample["image"].plan.affine) for _ in range(4) for sample in pipe]

    first_time = places()

    assert len(set(first_time)) > 1
    assert first_time == places()


@pytest.mark.parametrize("size", [0, -1])
@pytest.mark.parametrize("source", [IterableWrapper([1]), SequenceWrapper([1])])
def test_a_cache_of_nothing_is_refused(size, source):
    """At construction."""
    with pytest.raises(ValueError, match="megabytes above 0"):
        source.in_memory_cache(size=size)


def test_a_loader_keeps_its_own_cache():
    """The user's pipe does not change; in later epochs the parent is not asked."""
    parent = Counting(6)
    with vp.DataLoader2(parent.in_memory_cache(), seed=1) as loader:
        assert [list(loader) for _ in range(3)] == [[*range(6)]] * 3
    assert parent.asked == 0


# --- map-style -------------------------------------------------------------------------------


class Squares:
    """A sequence that counts how often it is asked."""

    def __init__(self):
        self.asked = []

    def __len__(self):
        return 10

    def __getitem__(self, index):
        self.asked.append(index)
        return np.full(MB, index**2, np.uint8)


def test_items_by_index_are_made_once():
    """The very same object is returned again."""
    squares = Squares()
    pipe = SequenceWrapper(squares, deepcopy=False).in_memory_cache()

    assert pipe[3] is pipe[3]
    assert squares.asked == [3]
    assert len(pipe) == 10


def test_items_by_index_are_bounded_in_bytes():
    """The oldest make room."""
    squares = Squares()
    pipe = InMemoryCacheHolder(SequenceWrapper(squares, deepcopy=False), size=2.01)
    for index in (0, 1, 2, 2, 1, 0):
        assert pipe[index][0] == index**2

    assert squares.asked == [0, 1, 2, 0]


def test_threads_get_the_same_object():
    """Also where two of them make an item at once."""
    both = threading.Barrier(2)

    class Slow(Squares):
        def __getitem__(self, index):
            both.wait(30)
            return super().__getitem__(index)

    pipe = SequenceWrapper(Slow(), deepcopy=False).in_memory_cache()
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(pipe[1])) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert seen[0] is seen[1]


def test_columns_of_a_map():
    """One map-style pipe each; none skipped by accident."""
    table = SequenceWrapper([(n, n + 10, n + 20) for n in range(4)])

    one, three = table.unzip(3, columns_to_skip=[1])

    assert [one[n] for n in range(4)] == [0, 1, 2, 3]
    assert [three[n] for n in range(4)] == [20, 21, 22, 23]
    assert len(one) == 4
    with pytest.raises(ValueError, match="sequence_length"):
        table.unzip(0)
    with pytest.raises(RuntimeError, match="skips all"):
        table.unzip(1, columns_to_skip=[0])


def test_a_map_is_loaded_when_it_is_asked():
    """Once, and by key."""
    parent = Counting(5)
    ages = parent.to_map_datapipe(lambda n: (f"k{n}", n + 1))

    assert isinstance(ages, IterToMapConverter)
    assert (len(ages), parent.asked) == (5, 0)
    assert [ages[f"k{n}"] for n in range(5)] == [1, 2, 3, 4, 5]
    assert parent.asked == 5
    with pytest.raises(IndexError, match="Index 'z' is invalid for IterToMapConverter"):
        ages["z"]


def test_what_a_map_has_loaded_does_not_travel():
    """A pickle is loaded anew."""
    parent = Counting(5)
    ages = parent.to_map_datapipe(_pair_of)
    assert ages[3] == 3

    twin = pickle.loads(pickle.dumps(ages))

    assert twin._map is None
    assert twin[3] == 3


def _pair_of(number):
    return number, number


def test_items_that_are_no_pairs_are_told():
    """By their class or their length; a key that comes twice is warned of."""
    with pytest.raises(TypeError, match="Cannot convert dictionary update element"):
        IterableWrapper([1]).to_map_datapipe()[0]
    with pytest.raises(ValueError, match="element has length 1, 2 is required"):
        IterableWrapper([(1,)]).to_map_datapipe()[0]
    with pytest.raises(TypeError, match="can only apply on IterDataPipe"):
        IterToMapConverter([1])
    with pytest.warns(UserWarning, match="Found duplicate key 0"):
        assert IterableWrapper([(0, "a"), (0, "b")]).to_map_datapipe()[0] == "b"


def test_a_length_that_needs_loading_is_warned_of():
    """The whole pipe is gone through for it."""
    ages = NoLength([(1, 2), (3, 4)]).to_map_datapipe()

    with pytest.warns(UserWarning, match="Data from prior DataPipe are loaded to get length"):
        assert len(ages) == 2
    assert len(ages) == 2


def test_a_map_is_gone_through():
    """In its order or another one; an empty list of indices is empty."""
    words = SequenceWrapper({"a": 1, "b": 2})

    assert list(SequenceWrapper("xyz").to_iter_datapipe()) == ["x", "y", "z"]
    assert list(words.to_iter_datapipe(indices=["b", "a"])) == [2, 1]
    assert list(words.to_iter_datapipe([])) == []
    assert len(words.to_iter_datapipe(["b"])) == 1
    from voxpipe.datapipes.iter import MapToIterConverter

    with pytest.raises(TypeError, match="can only apply on MapDataPipe"):
        MapToIterConverter([1])


@pytest.mark.parametrize("size", [None, 1e-4], ids=["all", "some"])
@pytest.mark.filterwarnings("ignore:in_memory_cache.. keeps the order:UserWarning")
def test_a_loader_that_begins_later_has_the_same_items(size):
    """A shuffle before the cache is told the first epoch in all of them, one after it each."""

    def loader():
        before = IterableWrapper(range(20)).shuffle().in_memory_cache(size)
        return vp.DataLoader2(before.shuffle().batch(3), seed=5)

    with loader() as one:
        epochs = [list(one) for _ in range(3)]
    with loader() as other:
        other.set_epoch(2)
        again = list(other)

    assert again == epochs[2]
    assert epochs[1] != epochs[2]
    assert all(sorted(itertools.chain(*epoch)) == list(range(20)) for epoch in epochs)


# --- in loaders whose graph is not split -----------------------------------------------------


def as_it_is(pipe, info):
    """Take the graph whole, and leave it."""
    return pipe


def noted(folder, item):
    """Return the item, and leave a file that says that it was made."""
    os.close(tempfile.mkstemp(prefix=f"{item}-", dir=folder)[0])
    return item


@pytest.mark.parametrize("kind", ["iterable", "map-style"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_runs_the_whole_graph_keeps_its_cache(tmp_path, kind, workers):
    """Each item is made once in three epochs, also where one of them was left in the middle."""
    fn = functools.partial(noted, tmp_path)
    if kind == "iterable":
        pipe = IterableWrapper(range(4)).sharding_filter().map(fn).in_memory_cache()
        service = vp.MultiProcessingReadingService(workers, "fork")
    else:
        pipe = SequenceWrapper(range(4)).map(fn).in_memory_cache().to_iter_datapipe()
        service = vp.MultiProcessingReadingService(workers, "fork", worker_init_fn=as_it_is)
    with vp.DataLoader2(pipe, None, service, seed=1) as loader:
        assert "not split: " in loader.explain()
        epochs = [list(loader), list(loader)]
        if not workers:  # a worker that was left in the middle of an epoch ends with it
            next(iter(loader))
        epochs.append(list(loader))

    assert epochs == [[0, 1, 2, 3]] * 3
    assert len(list(tmp_path.iterdir())) == 4


def test_what_draws_nothing_may_come_before():
    """Fixed parameters are no draws; patches that are cut afterwards are others in each epoch."""
    arrays = [np.random.default_rng(n).random((8, 8, 8)) for n in range(2)]
    opened = vp.from_cases([{"image": array} for array in arrays]).open_volume()
    before = opened.spacing(1.5).normalize()

    def epochs(source):
        patches = source.lazy_patch(3).augment(rotate=(-15, 15)).batch_patches(1)
        with vp.DataLoader2(patches, seed=5) as loader:
            return [[batch["image"] for batch in loader] for _ in range(3)]

    plain, kept = epochs(before), epochs(before.in_memory_cache())

    for x, y in zip(plain, kept, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(x, y, strict=True))
    assert not torch.equal(kept[1][0], kept[2][0])
    with pytest.raises(vp.errors.GraphError, match=r"spacing\(\(1, 2\)\) is drawn anew"):
        opened.spacing((1, 2)).in_memory_cache()
