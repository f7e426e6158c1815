"""Any batch of a run by its number: what iteration gives there, made without another one."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from sampled import sampled
from scenes import numbers_of_cases, same
from torch.utils.data.datapipes.iter import Shuffler

import voxpipe as vp
from voxpipe.core import IO_COUNTERS, Sample
from voxpipe.core.errors import GraphError, LoaderShutDown, StateMismatch
from voxpipe.dataloader2 import InProcessReadingService
from voxpipe.datapipes.datapipe import SameLength
from voxpipe.datapipes.item_numbers import OrderedItems, number_or_list
from voxpipe.reading_services.planner import DeliveredBatches, RankPart, jobs

SIZES = (6, 12, 7, 9, 8)  # edges: a grid has other counts in each case


def cases(mask=False):
    found = []
    for n, edge in enumerate(SIZES):
        image = np.arange(edge**3, dtype=np.int16).reshape(edge, edge, edge) + n
        label = (image % 7 == n).astype(np.uint8)
        case = {"case": f"c{n}", "image": image, "count": n % 3 + 1}
        found.append({**case, "label": label} if mask else case)
    return found


def opened(**kwargs):
    return vp.from_cases(cases(**kwargs)).shuffle().open_volume()


def twice(sample):
    return sample.with_data(count=2 * sample["count"])


def noisy(sample):
    return sample.with_data(noise=float(np.random.random()))


def patches():
    return opened().lazy_patch(4, samples_per_volume=3)


def is_large(sample):
    return sample["count"] > 1


ALL, LOCAL = vp.ShuffleSpec.all_patches(), vp.ShuffleSpec.chunk_local(10_000)
CHAINS = {
    "volumes": lambda: (
        vp.from_cases([{"image": np.full((4, 4, 4), n)} for n in range(7)]).shuffle().open_volume()
    ),
    "patches": patches,
    "all patches": lambda: patches().shuffle_plans(ALL),
    "torch's shuffle of patches": lambda: patches().shuffle(),
    "windows": lambda: patches().shuffle_plans(vp.ShuffleSpec.window(4)),
    "blocks of visits": lambda: patches().shuffle_plans(LOCAL),
    "visits in turn": lambda: patches().interleave(visits=2, patches_per_turn=2),
    "sharded": lambda: (
        vp.from_cases(cases())
        .shuffle()
        .sharding_filter()
        .open_volume()
        .flip(p=0.5)
        .lazy_patch(4)
        .shuffle(buffer_size=100)
    ),
    "counts of cases": lambda: opened().lazy_patch(4, samples_per_volume="count"),
    "counts, all": lambda: opened().lazy_patch(4, samples_per_volume="count").shuffle_plans(ALL),
    "counts, blocks": lambda: (
        opened().lazy_patch(4, samples_per_volume="count").shuffle_plans(LOCAL)
    ),
    "counts in turn": lambda: opened().lazy_patch(4, samples_per_volume="count").interleave(3),
    "grids": lambda: opened().lazy_patch(6, sampling="grid", overlap=2),
    "grids, all": lambda: opened().lazy_patch(6, sampling="grid").shuffle_plans(ALL),
    "grids in masks": lambda: opened(mask=True).lazy_patch(6, sampling="grid", mask="label"),
    "foreground": lambda: opened(mask=True).lazy_patch(
        4, samples_per_volume=2, mask="label", oversample=0.5
    ),
    "augmented": lambda: patches().augment(rotate=15).shuffle_plans(ALL).normalize(mean=3, std=2),
    "functions": lambda: (
        vp.from_cases(cases())
        .map(noisy)
        .map(twice)
        .shuffle()
        .open_volume()
        .lazy_patch(4, samples_per_volume=2)
    ),
    "in order only": lambda: (
        vp.from_cases(cases())
        .filter(is_large)
        .shuffle()
        .open_volume()
        .lazy_patch(4, samples_per_volume=3)
    ),
    "cycles": lambda: patches().shuffle_plans(ALL).cycle(2).shuffle(),
}
SERVICES = {
    "process": InProcessReadingService,
    "threads": partial(vp.ThreadReadingService, 2),
    "1 worker": partial(vp.MultiProcessingReadingService, 1),
    "2 workers": partial(vp.MultiProcessingReadingService, 2),
    "4 workers": partial(vp.MultiProcessingReadingService, 4),
}


def chain(name, drop_last=False):
    return CHAINS[name]().batch_patches(2, drop_last=drop_last)


def loader_of(name, service="process", **kwargs):
    return vp.DataLoader2(chain(name, **kwargs), None, SERVICES[service](), seed=5)


def plain(batches):
    """Return batches without entries that cannot be compared."""
    return [
        {k: v for k, v in one.items() if isinstance(v, torch.Tensor) or k == "meta"}
        for one in batches
    ]


@pytest.mark.parametrize("name", CHAINS)
def test_it_is_the_batch_of_that_place(name):
    """In any epoch, before, in and after an iteration; the iteration goes on."""
    with loader_of(name) as loader:
        iterator = iter(loader)
        first = [next(iterator), next(iterator)]
        early = [loader.batch(0), loader.batch(1, epoch=1)]
        epochs = [first + list(iterator), list(loader)]

        assert same(plain(early), plain([epochs[0][0], epochs[1][1]]))
        for epoch, batches in enumerate(epochs):
            again = [loader.batch(n, epoch=epoch) for n in reversed(range(len(batches)))]
            assert same(plain(again[::-1]), plain(batches))
        assert loader.state_dict()["epoch"] == 2


@pytest.mark.parametrize(
    ("name", "service"),
    sampled([(n, s) for n in CHAINS for s in [*SERVICES][1:]], 9),
)
def test_any_service_makes_it(name, service):
    """Also in another order."""
    with loader_of(name) as loader:
        expected = list(loader)
    with loader_of(name, service) as loader:
        assert same(plain(loader.batches(range(len(expected)))), plain(expected))
        assert same(plain(loader.batches([2, 0, 2])), plain([expected[n] for n in (2, 0, 2)]))
        assert same(plain([loader.batch(1)]), plain(expected[1:2]))
        assert same(plain(loader), plain(expected))


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize(
    "steps", [4, pytest.param(None, marks=pytest.mark.slow)], ids=["some places", "every place"]
)
def test_a_state_of_any_place_is_a_seek(name, steps):
    """The batches after it come, and none before it is planned where items have numbers."""
    with loader_of(name) as loader:
        expected = list(loader)
        state = {**loader.state_dict(), "epoch": 0}
    places = range(len(expected) + 1)
    for place in (
        places if steps is None else {n * len(expected) // steps for n in range(steps + 1)}
    ):
        with loader_of(name) as resumed:
            resumed.load_state_dict({**state, "next_batch": place})
            assert same(plain(resumed), plain(expected[place:]))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("uneven", ["drop", "pad", "wrap"])
@pytest.mark.parametrize("name", CHAINS)
def test_ranks_make_the_parts_of_one_batch(name, uneven, ranks):
    """The parts of all ranks together are the batch of one process that gathers as many."""
    cut = vp.DataLoader2(CHAINS[name]().batch_patches(4), seed=5)._work.cut
    run = (cut, 5, 1, DeliveredBatches())
    (one,) = [list(jobs(*run, RankPart(0, 1, uneven)))]
    parts = [list(jobs(*run, RankPart(rank, ranks, uneven))) for rank in range(ranks)]
    for job, *of_ranks in zip(one, *parts, strict=True):
        together = [item for part in of_ranks for item in part.items]
        assert [item.identity for item in together] == [item.identity for item in job.items]
        assert sum((part.numbers for part in of_ranks), ()) == job.numbers


@pytest.mark.parametrize("name", CHAINS)
def test_every_patch_comes_once_an_epoch(name):
    """Whatever the order."""
    turns = 2 if name == "cycles" else 1
    for drop_last in (False, True):
        with loader_of(name, drop_last=drop_last) as loader:
            for _ in range(2):
                keys = [str(m["identity"]) for batch in loader for m in batch["meta"]]
                assert len(set(keys)) * turns == len(keys) or drop_last


def test_one_case_is_opened_for_a_batch(tmp_path):
    """Not those of earlier batches; and the headers of no others are read."""
    import nibabel

    paths = []
    for n in range(40):
        paths.append({"image": str(tmp_path / f"{n}.nii"), "case": str(n)})
        nibabel.save(
            nibabel.Nifti1Image(np.full((8, 8, 8), n, np.int16), np.eye(4)), paths[-1]["image"]
        )
    pipe = vp.from_cases(paths).shuffle().open_volume().lazy_patch(4, samples_per_volume=2)
    with vp.DataLoader2(pipe.batch_patches(2), seed=1) as loader:
        loader.schemes()
        before = IO_COUNTERS.snapshot()
        batch = loader.batch(33)
        assert len({m["case"] for m in batch["meta"]}) == 1
        assert (IO_COUNTERS.snapshot() - before).headers <= 1


def test_what_is_not_there_is_refused():
    """A number beyond the epoch, a graph that cannot be split, a wrong number."""
    with loader_of("patches") as loader:
        with pytest.raises(IndexError, match="batch 99: epoch 0 has no such batch"):
            loader.batch(99)
        with pytest.raises(ValueError, match="a batch"):
            loader.batch(-1)
        with pytest.raises(ValueError, match="epoch"):
            loader.batch(0, epoch=-1)
    whole = vp.DataLoader2(opened().realize().shuffle())
    with pytest.raises(GraphError, match="follow from those before them"):
        whole.batch(0)


def test_a_cycle_without_an_end_has_any_batch():
    """The turns differ, and each is an epoch of its own."""
    pipe = patches().cycle().batch_patches(3)
    with vp.DataLoader2(pipe, seed=5) as loader:
        far = loader.batch(100, epoch=0)
        batches = iter(loader)
        turns = [[next(batches) for _ in SIZES] for _ in range(2)]
        again = [loader.batch(n, epoch=0) for n in range(2 * len(SIZES))]
    assert same(plain(again), plain(turns[0] + turns[1]))
    assert not same(plain(turns[0]), plain(turns[1]))
    assert len(far["meta"]) == 3


def test_the_reason_is_named():
    """explain() names the pipe because of which items come in order."""
    with loader_of("in order only") as loader:
        assert "filter(is_large" in loader.explain().partition("in order")[2]
    with loader_of("all patches") as loader:
        assert "in order" not in loader.explain()


def test_adapters_change_no_order():
    """Timers, limits and tolerance are between the pipes of the planner."""
    expected = plain(loader_of("all patches"))
    for adapter in (
        vp.adapters.Profile(),
        vp.adapters.Timeout(item=60),
        vp.adapters.OnError("skip"),
    ):
        with vp.DataLoader2(chain("all patches"), adapter, seed=5) as loader:
            assert same(plain(loader), expected)
            assert same(plain([loader.batch(1, epoch=0)]), expected[1:2])
            loader.load_state_dict({**loader.state_dict(), "epoch": 0, "next_batch": 4})
            assert same(plain(loader), expected[4:])


def test_a_rank_plans_its_own_part(monkeypatch):
    """The cases of the other ranks are not opened."""
    found = [{"image": np.full((4, 4, 4), n), "case": str(n)} for n in range(40)]
    cut = vp.DataLoader2(vp.from_cases(found).shuffle().open_volume().batch_patches(8))._work.cut
    made = numbers_of_cases(monkeypatch)
    for rank in range(4):
        made.clear()
        planned = list(jobs(cut, 5, 0, DeliveredBatches(), RankPart(rank, 4)))
        numbers = [item.identity[0] for job in planned for item in job.items]
        assert sorted(made) == sorted(numbers)
        assert len(numbers) == 10


@pytest.mark.parametrize("size", [1, 100])
def test_a_shuffle_that_is_off_leaves_the_pass_to_the_source(size):
    """Also behind a pipe whose items have no numbers: order and seed are those of the loader."""
    pipe = vp.from_cases(cases()).prefetch(2).shuffle(buffer_size=size).open_volume()
    adapter = vp.adapters.Shuffle(False)
    with vp.DataLoader2(pipe.lazy_patch(4).batch_patches(1), adapter, seed=5) as loader:
        metas = [meta for batch in loader for meta in batch["meta"]]
    assert [meta["identity"] for meta in metas] == [[n, 0] for n in range(len(SIZES))]
    assert {meta["seed"] for meta in metas} == {5}


class Hardest(SameLength):
    """An order of a user: by the number in each case, in a table of one epoch."""

    def by_number(self, items):
        return OrderedItems(items, self.order)

    def order(self, items):
        counts = [items[number]["count"] for number in range(len(items))]
        return sorted(range(len(items)), key=lambda number: (-counts[number], number)).__getitem__

    def __iter__(self):
        yield from self.by_number(number_or_list(self.parent))


def test_an_order_of_a_user_has_numbers():
    """It is a function from a place to a number."""
    pipe = Hardest(vp.from_cases(cases())).open_volume().lazy_patch(4).batch_patches(1)
    with vp.DataLoader2(pipe, seed=5) as loader:
        batches = list(loader)
        assert [batch["count"].item() for batch in batches] == [3, 2, 2, 1, 1]
        assert same(plain([loader.batch(3, epoch=0)]), plain(batches[3:4]))
        assert "in order" not in loader.explain()


def test_a_loader_that_was_shut_down_makes_nothing():
    """As it cannot be iterated."""
    loader = loader_of("patches")
    loader.shutdown()
    with pytest.raises(LoaderShutDown):
        loader.batch(0)


def test_pipes_that_keep_items_change_no_order(tmp_path):
    """Also those whose items have no numbers: a cache, a thread, one that only counts."""
    source = vp.from_cases(cases())

    def epoch(pipe, adapters=None):
        end = pipe.shuffle().open_volume().lazy_patch(4, samples_per_volume=2).shuffle()
        with vp.DataLoader2(end.batch_patches(2), adapters, seed=5) as loader:
            return [meta["identity"] for batch in loader for meta in batch["meta"]]

    expected = epoch(source)
    for pipe in (
        source.prefetch(2),
        source.in_memory_cache(),
        source.header(len(SIZES)),
        source.map(twice),
        source.map(twice).cache_items(tmp_path / "kept"),
    ):
        assert epoch(pipe) == expected
    runtime = vp.adapters.Runtime(at="map", threads=2)
    assert epoch(source.map(twice), runtime) == expected


class Backwards(Shuffler):
    """A user's own order, in the class of torch's."""

    def __iter__(self):
        yield from list(self.datapipe)[::-1]


class EverySecond(vp.datapipes.iter.from_cases):
    """A source of a user that yields some of its cases."""

    def __iter__(self):
        for number, (name, data) in list(enumerate(self.each_case()))[::2]:
            yield Sample(data, case=name, identity=(number,))


def some(count=6):
    return [{"image": np.full((4, 4, 4), n), "case": str(n)} for n in range(count)]


@pytest.mark.parametrize(
    ("make", "expected"),
    [(lambda: Backwards(vp.from_cases(some())), "543210"), (lambda: EverySecond(some()), "024")],
)
def test_a_subclass_that_iterates_in_another_way_is_asked(make, expected):
    """Its items are those of its own iteration, also in a loader."""
    assert "".join(sample.case for sample in make()) == expected
    with vp.DataLoader2(make(), seed=1) as loader:
        assert "".join(sample.case for sample in loader) == expected
        assert loader.batch(1, epoch=0).case == expected[1]


def test_patches_of_patches_take_turns_by_case():
    """Two visits to patches of one volume are one visit to the volume."""
    pipe = vp.from_cases(some(2)).open_volume().lazy_patch(3, samples_per_volume=2)
    pipe = pipe.lazy_patch(2, samples_per_volume=3).interleave(2)
    plainly = [sample.case for sample in pipe]
    with vp.DataLoader2(pipe.batch_patches(1), seed=1) as loader:
        assert [meta["case"] for batch in loader for meta in batch["meta"]] == plainly
    assert plainly[:4] == ["0", "1", "0", "1"]


def test_an_order_of_cases_that_cannot_be_planned_has_the_others():
    """The first visit gives no estimate of the memory of a visit."""
    found = [{**case, "n": "many" if case["case"] == "0" else 3} for case in some(4)]
    pipe = vp.from_cases(found).open_volume().lazy_patch(3, samples_per_volume="n")
    pipe = pipe.shuffle_plans(vp.ShuffleSpec.chunk_local(1000)).batch_patches(1)
    adapter = vp.OnError("skip", errors=(ValueError,))
    with vp.DataLoader2(pipe, adapter, seed=1) as loader:
        names = [meta["case"] for batch in loader for meta in batch["meta"]]
        assert sorted(names) == sorted(3 * ["1", "2", "3"])
        assert len(loader.failures) == 1
        assert "failed items move the numbers" in loader.explain()


def test_a_list_that_was_edited_is_another_one():
    """Though it is the same object."""
    found = some()
    with vp.DataLoader2(vp.from_cases(found).shuffle(), seed=1) as loader:
        state = loader.state_dict()
        found.append({"image": np.zeros((4, 4, 4)), "case": "late"})
        with pytest.raises(StateMismatch, match="6 cases, and are 7"):
            loader.load_state_dict(state)


def test_batches_in_threads_are_those_of_one():
    """While an epoch runs: functions of both draw from the global generators."""
    pipe = vp.from_cases(some(12)).map(noisy).open_volume().map(noisy).batch_patches(1)
    with vp.DataLoader2(pipe, seed=3) as loader:
        expected = [batch["noise"] for batch in loader]
        loader.set_epoch(0)
        with ThreadPoolExecutor(1) as thread:
            other = thread.submit(lambda: [loader.batch(n, epoch=0)["noise"] for n in range(12)])
            seen = [batch["noise"] for batch in loader]
            assert [float(n) for n in other.result(60)] == [float(n) for n in expected]
        assert [float(n) for n in seen] == [float(n) for n in expected]


def test_a_number_beyond_the_end_makes_no_other_batch(monkeypatch):
    """Where the length is known, it is refused first."""
    with loader_of("patches") as loader:
        before = IO_COUNTERS.snapshot()
        with pytest.raises(IndexError, match="batch 99: epoch 0 has no such batch, as it has 8"):
            list(loader.batches([0, 1, 99]))
        assert (IO_COUNTERS.snapshot() - before).reads == 0
