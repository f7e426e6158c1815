"""Items kept in a store: equal in every pass, made once, known by content, code and version."""

import collections
import functools
import itertools
import json
import operator
import os
import pathlib
import pickle
import sys

import fsspec
import nibabel
import numpy as np
import pytest
import SimpleITK
import torch
from fsspec.implementations.local import LocalFileSystem
from redis_server import RedisServer, need_redis
from s3_server import S3Server
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.core.errors import (
    CacheUnused,
    GraphError,
    SampleError,
    StoreUnavailable,
    StreamError,
)
from voxpipe.datapipes.datapipe import DataPipe
from voxpipe.graph import walk

pytestmark = pytest.mark.usefixtures("started_clients")


def note(log, item):
    """Write down that an item is made."""
    with open(log, "a", encoding="utf-8") as file:
        file.write(f"{item}\n")


def numbered(log, number):
    """Make an array, and write that down."""
    note(log, number)
    return {"number": number, "array": np.full((3, 4), number, np.int16)}


def made(log):
    """Return what was made, in order."""
    return log.read_text().splitlines() if log.exists() else []


def numbers_of(items):
    for item in items:
        assert item["array"].tolist() == [[item["number"]] * 4] * 3
    return [item["number"] for item in items]


def chain(log, store, numbers=range(4), **options):
    make = functools.partial(numbered, log)
    return IterableWrapper(numbers).map(make).cache_items(store, **{"version": 1, **options})


@pytest.fixture
def log(tmp_path):
    return tmp_path / "made.log"


@pytest.fixture(params=["folder", "file", "memory", "s3", "redis"])
def store(request, tmp_path):
    """Yield the arguments that name an empty store of each kind."""
    if request.param == "folder":
        yield {"store": tmp_path / "kept"}
    elif request.param == "file":
        yield {"store": f"file://{tmp_path}/kept"}
    elif request.param == "memory":
        fsspec.filesystem("memory").pipe("/kept/before.txt", b"")
        yield {"store": "memory://kept"}
        fsspec.filesystem("memory").rm("/kept", recursive=True)
    elif request.param == "s3":
        (tmp_path / "bucket").mkdir()
        with S3Server(tmp_path) as server:
            yield {"store": "s3://bucket/kept", "storage_options": server.storage_options}
    else:
        need_redis()
        with RedisServer(tmp_path) as server:
            yield {"store": server.url}


def test_each_item_is_made_once(log, store):
    """In a second pass, by another chain, and in another order alike."""
    pipe = chain(log, **store)

    assert numbers_of(pipe) == numbers_of(pipe) == [0, 1, 2, 3]
    assert numbers_of(chain(log, numbers=[3, 5, 0], **store)) == [3, 5, 0]
    assert made(log) == ["0", "1", "2", "3", "5"]
    assert len(pipe) == 4


def large_items(log, numbers, **options):
    make = functools.partial(thousand, log)
    return IterableWrapper(numbers).map(make).cache_items(version=1, **options)


def test_a_store_stays_within_its_bound(log, store, tmp_path):
    """Of items of a thousand bytes, 3500 bytes hold three; all of six arrive."""
    pipe = large_items(log, range(6), store_bytes=3500, **store)

    assert [len(item) for item in pipe] == [1000] * 6
    assert 2000 < sum(sizes_in(store, tmp_path)) <= 3500


def sizes_in(store, tmp_path):
    """Return the bytes of each entry."""
    place = str(store["store"])
    if place.startswith("redis"):
        from redis import Redis

        with Redis.from_url(place) as client:
            return [client.strlen(name) for name in client.keys("voxpipe:*")]
    if place.startswith("memory"):
        memory = fsspec.filesystem("memory")
        return [memory.size(name) for name in memory.glob("/kept/*.item")]
    return [path.stat().st_size for path in tmp_path.rglob("*.item")]


def test_the_oldest_item_leaves_a_folder_first(log, tmp_path):
    """By the time of writing."""
    list(large_items(log, range(3), store=tmp_path, store_bytes=3500))
    times = {read_number(path): path for path in tmp_path.glob("*.item")}
    for number, path in times.items():
        os.utime(path, (100 - number, 100 - number))
    list(large_items(log, [3], store=tmp_path, store_bytes=3500))

    assert sorted(map(read_number, tmp_path.glob("*.item"))) == [0, 1, 3]


FOREIGN = ["thesis.nii", "notes.item", f"{'a' * 31}.item", f"below/{'a' * 32}.item"]


@pytest.mark.parametrize("store", ["folder", "file", "memory", "s3"], indirect=True)
def test_other_files_of_a_folder_stay(log, store):
    """They are older and larger than the bound; a rest of a killed process is removed."""
    system, root = fsspec.url_to_fs(str(store["store"]), **store.get("storage_options", {}))
    rest = f"{'a' * 32}.item.77.part"
    system.makedirs(f"{root}/below", exist_ok=True)
    for name in (*FOREIGN, rest):
        system.pipe_file(f"{root}/{name}", bytes(4000))

    list(large_items(log, range(6), store_bytes=3500, **store))

    system.invalidate_cache()
    assert [system.exists(f"{root}/{name}") for name in FOREIGN] == [True] * 4
    assert not system.exists(f"{root}/{rest}")
    assert 2 <= len(system.glob(f"{root}/{'[0-9a-f]' * 32}.item")) <= 3


def test_two_writers_of_an_item_do_not_meet(log, tmp_path, monkeypatch):
    """Threads, or containers with equal process ids: one writes while the other renames."""
    move, others = LocalFileSystem.mv, [chain(log, tmp_path / "kept", [1])]

    def move_after_the_other(*args):
        if others:
            assert numbers_of(others.pop()) == [1]
        move(*args)

    monkeypatch.setattr(LocalFileSystem, "mv", move_after_the_other)
    for _ in range(2):
        assert numbers_of(chain(log, tmp_path / "kept", [1])) == [1]
    assert made(log) == ["1", "1"]
    assert len(list((tmp_path / "kept").iterdir())) == 1


def test_a_file_that_vanishes_before_its_rename_costs_one_item(log, tmp_path, monkeypatch):
    """Another process made room. The store is used on, without a warning."""
    move, removals = LocalFileSystem.mv, [os.remove]

    def move_too_late(system, part, path):
        if removals:
            removals.pop()(part)
        move(system, part, path)

    monkeypatch.setattr(LocalFileSystem, "mv", move_too_late)
    assert numbers_of(list(chain(log, tmp_path / "kept"))) == [0, 1, 2, 3]
    assert len(entry_files(tmp_path / "kept")) == 3


def read_number(path):
    return path.read_bytes()[-1]


def thousand(log, number):
    note(log, number)
    return bytes([number]) * 1000


def test_an_item_above_the_bound_is_not_kept(log, tmp_path):
    """One warning names the argument; the others stay."""
    large = functools.partial(thousand, log)
    pipe = IterableWrapper([1, 2]).map(large).cache_items(tmp_path, version=1, store_bytes=900)

    with pytest.warns(CacheUnused, match="above store_bytes=900") as warned:
        assert len(list(pipe)) == len(list(pipe)) == 2
    assert len(warned) == 1
    assert made(log) == ["1", "2", "1", "2"]


def test_an_item_is_made_again_when_its_time_is_over(log, store):
    """The reader decides how old an item may be."""
    list(chain(log, **store))
    list(chain(log, ttl=3600, **store))
    assert len(made(log)) == 4

    list(chain(log, ttl=1e-9, **store))
    assert len(made(log)) == 8


def test_the_server_forgets_items_after_their_time(tmp_path, log):
    """Redis frees their memory by itself."""
    need_redis()
    with RedisServer(tmp_path) as server:
        list(chain(log, server.url, ttl=3600))
        lives = [server.ask("PTTL", name) for name in server.entries()]

    assert len(lives) == 4
    assert all(0 < life <= 3600_000 for life in lives)


ITEMS = {
    "none": None,
    "numbers": [True, 1, -(2**80), 1.5, float("inf")],
    "text": ["ä\ud800\n", ""],
    "bytes": [b"\x00\n", b""],
    "nested": {"a": (1, [2, (3,)]), 2: {}, (1, "b"): ()},
    "array": np.arange(24, dtype=">i2").reshape(2, 3, 4)[:, ::-1],
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "empty": np.zeros((0, 3), np.float32),
    "texts": np.array(["a", "bc"]),
    "dates": np.array(["2020-01-01"], "M8[D]"),
    "scalars": [np.float32(1.5), np.int64(-1), np.bool_(True), np.datetime64("2020-01-01")],
    "complex": np.array([1 + 2j]),
    "tensor": torch.arange(6).reshape(2, 3).t(),
    "half": torch.tensor([1.5, 2.0], dtype=torch.bfloat16),
    "point": torch.tensor(3.0),
    "no element": torch.zeros((0, 2)),
    "flags": torch.tensor([True, False]),
    "sample": vp.Sample({"image": torch.ones(2), "name": "x"}, case="one", identity=(3, 1)),
}


def give(item, _):
    """Return the item, whatever is asked for."""
    return item


def same(one, other):
    """Whether two items have the same types and values."""
    if type(one) is not type(other):
        return False
    if isinstance(one, vp.Sample):
        own = [(item.case, item.identity, item.seed, item.epoch) for item in (one, other)]
        return own[0] == own[1] and same(dict(one), dict(other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (np.ndarray, torch.Tensor)):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return alike and bool((one == other).all())
    return bool(one == other)


@pytest.mark.parametrize("item", ITEMS.values(), ids=list(ITEMS))
def test_items_come_back_as_they_were(item, tmp_path):
    """With their types, shapes and values, from the second pass on; arrays may be written to."""
    pipe = IterableWrapper([0]).map(functools.partial(give, item))
    cached = pipe.cache_items(tmp_path, version=1)
    (first,), (second,) = cached, cached

    assert same(first, item)
    assert same(second, item)
    assert len(list(tmp_path.iterdir())) == 1
    if isinstance(second, np.ndarray):
        assert second.flags.writeable


Pair = collections.namedtuple("Pair", "one two")
UNSAFE = {
    "the item is a object": object(),
    "the item['a'][1] is a set": {"a": [1, {2}]},
    "the item is a PosixPath": pathlib.Path("a"),
    "the item[0] is a ndarray": [np.array([None])],
    "the item is a Pair": Pair(1, 2),
    "the item is a Tensor": torch.ones(1, requires_grad=True),
    "the item['x'] is a complex": {"x": 1j},
}


@pytest.mark.parametrize("words", UNSAFE)
def test_items_without_a_safe_form_are_refused(words, tmp_path):
    """By the place and the type of the object, with the way out."""
    make = functools.partial(give, UNSAFE[words])
    pipe = IterableWrapper([0]).map(make).cache_items(tmp_path, version=1)

    with pytest.raises(SampleError, match=r"no safe form(.|\n)*Turn it into arrays") as caught:
        list(pipe)
    assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_key_without_a_safe_form_is_refused(log, tmp_path):
    """Unless a function gives plain values in its place."""
    paths = [pathlib.Path("a"), pathlib.Path("b")]
    source = IterableWrapper(paths).map(functools.partial(named, log))

    with pytest.raises(SampleError, match=r"PosixPath(.|\n)*Give key_fn="):
        list(source.cache_items(tmp_path, version=1))
    pipe = source.cache_items(tmp_path, version=1, key_fn=str)
    assert list(pipe) == list(pipe) == ["a", "b"]
    assert made(log) == ["a", "b"]


def named(log, path):
    note(log, path)
    return path.name


def test_another_version_misses(log, tmp_path):
    """So does another argument of a function, and another chain before the cache."""
    list(chain(log, tmp_path))
    for version in (2, "1", "a"):
        list(chain(log, tmp_path, version=version))
    assert len(made(log)) == 16
    make = functools.partial(numbered, log)
    longer = IterableWrapper(range(4)).map(make).map(len).cache_items(tmp_path, version=1)
    assert list(longer) == [2, 2, 2, 2]
    assert len(made(log)) == 20


def test_another_code_misses_without_a_version(tmp_path):
    """A function that computes with its arguments is known by its code."""

    def results(function):
        return list(IterableWrapper([1, 2]).header(2).map(function).cache_items(tmp_path))

    assert results(lambda number: number + 1) == [2, 3]
    assert results(lambda number: number + 2) == [3, 4]
    assert results(functools.partial(pow, 2)) == [2, 4]
    assert results(functools.partial(pow, 3)) == [3, 9]


FACTOR = 1


def times_factor(number):
    return number * FACTOR


class Times:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, number):
        return number * self.factor[0]


THIS_MODULE = sys.modules[__name__]
ARRAY, OBJECT = np.ones((), np.int64), Times([1])
CHANGED = {  # a function, and where its factor is
    "global": (times_factor, lambda new: setattr(THIS_MODULE, "FACTOR", new)),
    "attribute": (OBJECT, lambda new: setattr(OBJECT, "factor", [new])),
    "method": (OBJECT.__call__, lambda new: OBJECT.factor.__setitem__(0, new)),
    "array": (functools.partial(operator.mul, ARRAY), lambda new: ARRAY.__setitem__((), new)),
}


@pytest.mark.parametrize("version", ["", 1])
@pytest.mark.parametrize(("function", "set_factor"), CHANGED.values(), ids=list(CHANGED))
def test_a_change_between_two_passes_of_a_pipe_misses(function, set_factor, version, tmp_path):
    """Also where a loader has gone through the pipe before, and if it is changed back."""
    pipe = IterableWrapper([1, 2]).header(2).map(function).cache_items(tmp_path, version=version)
    try:
        for factor in (1, 2, 1):
            set_factor(factor)
            assert [int(item) for item in pipe] == [factor, 2 * factor]
            with vp.DataLoader2(pipe.shuffle()) as loader:
                assert sorted(int(item) for item in loader) == [factor, 2 * factor]
    finally:
        set_factor(1)
    assert len(entry_files(tmp_path)) == 4


@pytest.mark.parametrize("service", ["this process", "threads", "fork"])
def test_a_change_between_two_epochs_misses(service, tmp_path, monkeypatch):
    """Of one loader, and of the next one."""
    pipe = IterableWrapper([1, 2, 3, 4]).map(times_factor).cache_items(tmp_path).batch(2)

    def results(loader):
        return [int(item) for batch in loader for item in batch]

    with vp.DataLoader2(pipe, reading_service=SERVICES[service]()) as loader:
        assert results(loader) == [1, 2, 3, 4]
        monkeypatch.setattr(THIS_MODULE, "FACTOR", 2)
        assert results(loader) == [2, 4, 6, 8]
    with vp.DataLoader2(pipe, reading_service=SERVICES[service]()) as loader:
        assert results(loader) == results(loader) == [2, 4, 6, 8]
    assert len(entry_files(tmp_path)) == 8


def test_code_that_shows_its_results_no_longer(tmp_path, monkeypatch):
    """The next pass is refused, as the construction would be."""
    pipe = IterableWrapper([1, 2]).map(times_factor).cache_items(tmp_path)
    list(pipe)
    monkeypatch.setattr(THIS_MODULE, "FACTOR", open)

    with pytest.raises(GraphError, match=r"does not show its results(.|\n)*version=1"):
        list(pipe)


def test_code_that_does_not_show_its_results_needs_a_version(log, tmp_path):
    """It reads a file; a lambda has no name to know it by."""
    source = IterableWrapper([str(log)]).header(1)

    with pytest.raises(GraphError, match=r"does not show its results(.|\n)*version=1"):
        chain(log, tmp_path, version="")
    with pytest.raises(GraphError, match=r"name(.|\n)*top of a module"):
        source.map(lambda path: pathlib.Path(path).read_text()).cache_items(tmp_path, version=1)


def plus(number, amount=1):
    return number + amount


def test_only_pipes_of_single_items_are_kept(tmp_path):
    """Others are refused by name; a batch of kept items is made of them."""
    source = IterableWrapper(range(4))

    for pipe in (source, source.shuffle(), source.map(plus).batch(2)):
        with pytest.raises(GraphError, match="does not take single items"):
            pipe.cache_items(tmp_path)
    batches = source.shuffle().set_shuffle(False).map(plus).cache_items(tmp_path).batch(2)
    assert list(batches) == [[1, 2], [3, 4]]


def test_a_cache_after_a_cache_counts_its_items(tmp_path):
    """So another function before the first one is another item for the second."""

    def results(function):
        once = IterableWrapper([1, 2]).header(2).map(function).cache_items(tmp_path / "a")
        return list(once.map(plus).cache_items(tmp_path / "b"))

    for _ in range(2):
        assert results(lambda number: number * 10) == [11, 21]
        assert results(lambda number: number * 20) == [21, 41]
    assert len(entry_files(tmp_path / "a")) == 4
    assert len(entry_files(tmp_path / "b")) == 3  # 20 plus 1 is kept once


def failing(log, sample):
    note(log, sample.case)
    if sample.case == "b.nii":
        raise vp.errors.CorruptVolume("b.nii is damaged.")
    return sample


def test_an_item_that_cannot_be_made_is_not_kept(log, scans, tmp_path):
    """It is left out as without the cache, in each epoch; the others are kept."""
    function = functools.partial(failing, log)
    pipe = patches(scans, lambda p: p.map(function).cache_items(tmp_path / "kept", version=1))
    with vp.DataLoader2(pipe, vp.OnError("skip")) as loader:
        for _ in range(2):
            assert [meta["case"] for batch in loader for meta in batch["meta"]] == ["a.nii"] * 2
        assert len(loader.failures) == 2 * 2

    assert log.read_text().count("a.nii") == 2
    assert len(entry_files(tmp_path / "kept")) == 2


def test_a_graph_shows_what_is_kept(tmp_path):
    """In `explain()`, in its drawing and as code."""
    pipe = IterableWrapper(range(4)).map(plus).cache_items("kept").batch(2)

    assert "map(plus" in vp.explain(pipe)
    assert ".cache_items('kept')" in vp.explain(pipe)
    assert ".map(plus)\n    .cache_items('kept')" in str(pipe.datapipe)


class TwoInside(DataPipe):
    """A pipe of another package, with two pipes inside it."""

    @property
    def inner_pipes(self):
        return tuple(walk(IterableWrapper([]).map(plus).batch(2)))[1:]

    def __iter__(self):
        yield from self.parent


def test_code_of_a_graph_has_the_inner_pipes_of_any_class():
    """By a property of `DataPipe`, which has none by default."""
    assert IterableWrapper([1]).map(plus).cache_items(version=1).realize().inner_pipes == ()
    assert ".map(plus)\n    .batch(2)" in str(TwoInside(IterableWrapper(range(4))))


def patches(paths, kept=lambda pipe: pipe):
    """Return batches of the patches of a grid, read from files."""
    cases = [{"image": str(path), "case": path.name} for path in paths]
    grid = vp.from_cases(cases).open_volume().lazy_patch(4, sampling="grid")
    return kept(grid.realize()).batch_patches(2)


@pytest.fixture
def scans(tmp_path):
    """Write two volumes with nibabel."""
    paths = [tmp_path / f"{name}.nii" for name in "ab"]
    for number, path in enumerate(paths):
        array = np.arange(128, dtype=np.int16).reshape(8, 4, 4) + 1000 * number
        nibabel.save(nibabel.Nifti1Image(array, np.diag([2.0, 1, 1, 1])), path)
    return paths


SERVICES = {
    "this process": lambda: None,
    "threads": lambda: vp.ThreadReadingService(2),
    "fork": lambda: vp.MultiProcessingReadingService(2, multiprocessing_context="fork"),
    "spawn": lambda: vp.MultiProcessingReadingService(2, multiprocessing_context="spawn"),
}


def joined(lists):
    return [*itertools.chain(*lists)]


def epochs(pipe, service, count=2):
    with vp.DataLoader2(pipe, reading_service=service, seed=3) as loader:
        return [[(b["image"].clone(), b["meta"]) for b in loader] for _ in range(count)]


@pytest.mark.parametrize("service", ["this process", "threads", "fork"])
def test_decoded_patches_are_kept(service, scans, tmp_path):
    """Batches and their records are those without the cache; the second loader reads no voxel."""
    store = tmp_path / "kept"
    plain = epochs(patches(scans), None)

    for _ in range(2):
        kept = epochs(patches(scans, lambda pipe: pipe.cache_items(store)), SERVICES[service]())
        for one, other in zip(joined(plain), joined(kept), strict=True):
            assert torch.equal(one[0], other[0])
            assert one[1] == other[1]
        assert len(list(store.iterdir())) == 4


def voxels_noted(log, sample):
    note(log, sample.identity)
    return sample.with_data(image=sample["image"] + 1)


@pytest.mark.parametrize("service", ["this process", "threads"])
def test_kept_patches_are_not_read(service, scans, tmp_path, log):
    """After a function, too; each patch is made once for two epochs of two loaders."""
    function = functools.partial(voxels_noted, log)

    def kept(pipe):
        return pipe.map(function).cache_items(tmp_path / "kept", version=1)

    plain = joined(epochs(patches(scans), None))
    for _ in range(2):
        batches = joined(epochs(patches(scans, kept), SERVICES[service]()))
        assert all(torch.equal(a[0] + 1, b[0]) for a, b in zip(plain, batches, strict=True))
    assert made(log) == ["(0, 0)", "(0, 1)", "(1, 0)", "(1, 1)"]


def test_a_changed_file_has_other_patches(scans, tmp_path):
    """Volumes are known by their content, at each item."""
    pipe = patches(scans, lambda pipe: pipe.cache_items(tmp_path / "kept"))
    before = epochs(pipe, None, 1)[0]
    nibabel.save(nibabel.Nifti1Image(np.full((8, 4, 4), 7, np.int16), np.eye(4)), scans[0])
    after = epochs(patches(scans, lambda p: p.cache_items(tmp_path / "kept")), None, 1)[0]

    assert not torch.equal(before[0][0], after[0][0])
    assert after[0][0].unique().tolist() == [7]
    assert torch.equal(before[1][0], after[1][0])


def millilitres(sample):
    """Return the volume of the voxels above 0."""
    voxel = abs(np.linalg.det(sample.patches["image"].affine[:3, :3]))
    return float((sample["image"] > 0).sum() * voxel / 1000)


@pytest.mark.parametrize("service", ["this process", "threads"])
@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz", "a.mha", "array"])
def test_a_function_of_the_spacing_sees_another_header(name, service, tmp_path):
    """The voxels are the same; a key counts the plan of the patch of each realized array."""
    array, path = np.ones((10, 10, 10), np.int16), tmp_path / name

    def results(spacing):
        affine = np.diag([spacing, 1.0, 1.0, 1.0])
        if name.endswith("mha"):
            file = SimpleITK.GetImageFromArray(array)
            file.SetSpacing([spacing, 1.0, 1.0])
            SimpleITK.WriteImage(file, str(path))
        elif name != "array":
            nibabel.save(nibabel.Nifti1Image(array, affine), path)
        cases = vp.from_cases([{"image": array if name == "array" else str(path)}])
        opened = cases.open_volume(**({"affine": {"image": affine}} if name == "array" else {}))
        pipe = opened.realize().shuffle().map(millilitres).cache_items(tmp_path / "kept")
        with vp.DataLoader2(pipe.batch(1), reading_service=SERVICES[service]()) as loader:
            return [item for batch in loader for item in batch]

    assert results(1.0) == results(1.0) == [1.0]
    assert results(3.0) == results(3.0) == [3.0]


def test_drawn_patches_are_refused(scans):
    """They differ in every epoch."""
    cases = [{"image": str(path)} for path in scans]
    drawn = vp.from_cases(cases).open_volume().lazy_patch(4).realize()

    with pytest.raises(GraphError, match=r"lazy_patch\(4\) is drawn anew(.|\n)*before it"):
        drawn.cache_items()


@pytest.mark.parametrize("store", ["folder", "s3", "redis"], indirect=True)
@pytest.mark.parametrize("service", ["this process", "threads", "fork"])
def test_workers_and_two_loaders_share_a_store(service, log, store):
    """Each item is made once for all of them."""
    for _ in range(2):
        pipe = chain(log, **store).batch(2)
        with vp.DataLoader2(pipe, reading_service=SERVICES[service]()) as loader:
            for _ in range(2):
                assert [numbers_of(batch) for batch in loader] == [[0, 1], [2, 3]]

    assert sorted(made(log)) == ["0", "1", "2", "3"]


@pytest.mark.slow
@pytest.mark.parametrize("store", ["folder", "redis"], indirect=True)
def test_workers_that_are_spawned_find_the_items_of_this_process(log, store):
    """Keys are the same in any process."""
    list(chain(log, **store))
    pipe = chain(log, **store).batch(2)
    with vp.DataLoader2(pipe, reading_service=SERVICES["spawn"]()) as loader:
        assert [numbers_of(batch) for batch in loader] == [[0, 1], [2, 3]]

    assert made(log) == ["0", "1", "2", "3"]


def test_a_state_does_not_depend_on_the_store(log, tmp_path):
    """A loader resumes with another store; another function is another chain."""
    with vp.DataLoader2(chain(log, tmp_path / "a").batch(2), seed=1) as loader:
        items = iter(loader)
        next(items)
        state = loader.state_dict()
    with vp.DataLoader2(chain(log, "memory://b").batch(2), seed=1) as loader:
        loader.load_state_dict(state)
        assert [numbers_of(batch) for batch in loader] == [[2, 3]]
    other = IterableWrapper(range(4)).map(plus).cache_items(tmp_path / "a").batch(2)
    with vp.DataLoader2(other, seed=1) as loader, pytest.raises(vp.errors.StateMismatch):
        loader.load_state_dict(state)


def entry_files(folder):
    return sorted(folder.glob("*.item"))


def damage_a_byte(paths):
    content = bytearray(paths[0].read_bytes())
    content[-1] ^= 1
    paths[0].write_bytes(content)


def swap(paths):
    contents = [path.read_bytes() for path in paths[:2]]
    for path, content in zip(paths[:2], reversed(contents), strict=True):
        path.write_bytes(content)


DAMAGES = {
    "a byte": damage_a_byte,
    "cut": lambda paths: paths[0].write_bytes(paths[0].read_bytes()[:-1]),
    "empty": lambda paths: paths[0].write_bytes(b""),
    "another item": swap,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
def test_a_damaged_entry_is_made_again(damage, log, tmp_path):
    """With one warning; afterwards it is sound."""
    store = tmp_path / "kept"
    list(chain(log, store))
    damage(entry_files(store))

    with pytest.warns(CacheUnused, match="is damaged") as warned:
        assert numbers_of(chain(log, store)) == [0, 1, 2, 3]
    assert len(warned) == 1
    assert numbers_of(chain(log, store)) == [0, 1, 2, 3]
    damage(entry_files(store))
    with pytest.raises(StreamError, match=r"is damaged(.|\n)*test_item_cache"):
        list(chain(log, store, on_error="raise"))


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.write_text, (self.path, "unpickled")


def forged(entry, item):
    """Return an entry with a right checksum and another item."""
    from voxpipe.storage.disk_cache import with_check_sum

    head, _, _ = entry.partition(b"\n")[2].partition(b"\n")
    text = json.dumps({**json.loads(head), "item": item})
    return with_check_sum(text.encode() + b"\n" + b"x" * 64)


HOSTILE = [
    ["array", 8, "O", [1]],
    ["array", 8, "|V8", [1]],
    ["array", 8, "<f8", [10**9]],
    ["tensor", 8, "torch.load", [1]],
    ["sample", ["dict"], "", [], ["image"]],
    ["eval", "1"],
    ["dict", [["list"], 1]],
    [],
]


@pytest.mark.parametrize("item", HOSTILE, ids=str)
def test_a_forged_entry_is_damaged(item, log, tmp_path):
    """It never gives objects, foreign memory or an error of the decoder."""
    list(chain(log, tmp_path / "kept", [1]))
    (path,) = entry_files(tmp_path / "kept")
    path.write_bytes(forged(path.read_bytes(), item))

    with pytest.warns(CacheUnused, match="is damaged"):
        assert numbers_of(chain(log, tmp_path / "kept", [1])) == [1]


def test_no_pickle_is_loaded(log, tmp_path):
    """Neither as an entry nor inside one."""
    list(chain(log, tmp_path / "kept", [1]))
    (path,) = entry_files(tmp_path / "kept")
    path.write_bytes(pickle.dumps(Bomb(tmp_path / "hit")))

    with pytest.warns(CacheUnused, match="is damaged"):
        list(chain(log, tmp_path / "kept", [1]))
    assert not (tmp_path / "hit").exists()


def test_the_default_is_a_private_folder_of_the_cache(log, monkeypatch, tmp_path):
    """Items may be scans of patients."""
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "cache"))

    list(chain(log, None))

    folder = tmp_path / "cache" / "items"
    assert len(entry_files(folder)) == 4
    assert folder.stat().st_mode & 0o077 == 0


WRONG = {
    "ttl and timeout": {"ttl": 0},
    "seconds above 0": {"timeout": float("inf")},
    "store_bytes": {"store_bytes": 0},
    "on_error is one of": {"on_error": "skip"},
}


@pytest.mark.parametrize("words", WRONG)
def test_arguments_are_checked(words, log, tmp_path):
    """At construction, by name."""
    with pytest.raises(ValueError, match=words):
        chain(log, tmp_path, **WRONG[words])


def test_a_folder_that_cannot_be_made_costs_only_time(log, tmp_path):
    """One warning, and all items arrive."""
    blocked = tmp_path / "kept"
    blocked.write_text("a file in the place of the folder")

    with pytest.warns(CacheUnused, match="Items are made again") as warned:
        assert numbers_of(chain(log, blocked)) == [0, 1, 2, 3]
    assert len(warned) == 1
    with pytest.raises(StoreUnavailable, match="the store failed"):
        list(chain(log, blocked, on_error="raise"))


def test_an_error_of_a_function_is_no_fault_of_the_store(tmp_path):
    """It is raised as without the cache, without a warning."""
    pipe = IterableWrapper([1, 0]).map(functools.partial(divmod, 1)).cache_items(tmp_path)

    with pytest.raises(ZeroDivisionError):
        list(pipe)
