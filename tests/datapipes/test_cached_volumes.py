"""cache() makes what comes before it once, and what comes after it stays as lazy as it was."""

import functools
import gc
import os
import shutil
import subprocess
import sys
import threading
import tracemalloc
import uuid
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakSet

import nibabel as nib
import numpy as np
import pytest
import torch

import voxpipe as vp
from voxpipe.core import IO_COUNTERS
from voxpipe.core.errors import CorruptVolume
from voxpipe.datapipes.open_volume import STORED_SUFFIX
from voxpipe.spatial.lazy import virtual_volume
from voxpipe.spatial.lazy.virtual_volume import TILES
from voxpipe.storage.content import behaviour_digest
from voxpipe.volumes import close_volumes
from voxpipe.volumes.conversion import convert_plan
from voxpipe.volumes.conversion.destination import LocalDestination

SHAPE = (40, 36, 30)


def write_case(folder, number, *, values=1000):
    """Write an image and a label of a sphere, of 1 x 1 x 1.4 mm."""
    rng = np.random.default_rng(number)
    places = np.stack(np.meshgrid(*map(np.arange, SHAPE), indexing="ij")) - 15
    label = ((places**2).sum(0) < 90).astype(np.uint8) * (number + 1)
    case = {}
    for key, array in {"image": rng.integers(0, values, SHAPE, np.int16), "label": label}.items():
        case[key] = str(folder / f"{number}_{key}.nii")
        nib.save(nib.Nifti1Image(array, np.diag([1, 1, 1.4, 1])), case[key])
    return case


@pytest.fixture
def cases(tmp_path):
    (tmp_path / "cases").mkdir()
    return [write_case(tmp_path / "cases", number) for number in range(2)]


def made(cases):
    """Return a chain in which nothing is drawn; its volumes have several tiles."""
    return vp.from_cases(cases).open_volume().spacing(0.5).normalize()


def patches(pipe):
    pipe = pipe.shuffle().lazy_patch((20, 20, 20), samples_per_volume=2)
    return pipe.augment(rotate=(-15, 15), zoom=(0.9, 1.1), flip=0.5).batch_patches(2)


def epochs(pipe, service=None, count=2):
    with vp.DataLoader2(patches(pipe), None, service, seed=5) as loader:
        return [
            {"meta": batch["meta"], **{key: batch[key].clone() for key in ("image", "label")}}
            for _ in range(count)
            for batch in loader
        ]


def assert_same(one, other):
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a["image"], b["image"])
        assert torch.equal(a["label"], b["label"])
        assert a["meta"] == b["meta"]


def kept(folder):
    """Return the time of writing of every volume that is kept in a folder, by its name."""
    return {path.name: (path / "zarr.json").stat().st_mtime_ns for path in folder.glob("*.zarr")}


@pytest.mark.parametrize("where", ["memory", "folder", "url"])
def test_batches_are_those_of_two_steps(cases, tmp_path, where):
    """Bit for bit, with what they tell of themselves; and labels are labels."""
    place = {"memory": (), "folder": (tmp_path / "kept",), "url": (f"memory://{tmp_path}/kept",)}
    pipe = made(cases)

    cached = epochs(pipe.cache(*place[where]))

    assert_same(cached, epochs(pipe.flush()))
    assert {batch["label"].dtype for batch in cached} == {torch.uint8}
    assert set(torch.cat([b["label"] for b in cached]).unique().tolist()) <= {0, 1, 2}


def test_a_voxel_has_the_same_bits_whatever_is_read(cases):
    """A region of what a flush leaves is that of the whole, and so is what is kept."""
    (sample, _) = made(cases).flush()
    volume = sample["image"].volume
    whole = sample["image"].realize()
    rng = np.random.default_rng(0)
    assert volume.shape[1] > volume.tile[0]
    for _ in range(5):
        start = rng.integers(0, [n - 12 for n in whole.shape[1:]])
        inside = tuple(slice(int(a), int(a) + 12) for a in start)
        part = sample["image"].plan.crop([s.start for s in inside], (12, 12, 12))
        out = np.empty((1, 12, 12, 12), np.float32)
        assert np.array_equal(sample["image"].realize(out, part), whole[(0, *inside)][None])


@pytest.mark.slow
def test_workers_write_each_volume_once(cases, tmp_path):
    """Two loaders at once with two workers each, and then one more."""
    folder = tmp_path / "kept"
    pipe = made(cases).cache(folder)
    plain = epochs(made(cases).flush())

    assert_same(epochs(pipe, vp.MultiProcessingReadingService(2)), plain)
    written = kept(folder)
    assert_same(epochs(pipe, vp.MultiProcessingReadingService(2)), plain)

    assert len(list(folder.glob("*.zarr"))) == 4
    assert kept(folder) == written


def test_workers_write_what_is_given_as_arrays(tmp_path):
    """They open the voxels of another process to tell by which name their copy is kept."""
    rng = np.random.default_rng(0)
    # Above what travels within its message, so that a worker finds them in a file.
    cases = [{"image": rng.random((40, 40, 40), np.float32)} for _ in range(2)]

    def read(made, service=None):
        adapters = [vp.Timeout(item=60, start=60)] if service else None
        pipe = made.lazy_patch(6).batch_patches(1)
        with vp.DataLoader2(pipe, adapters, service, seed=5) as loader:
            return [batch["image"].clone() for batch in loader]

    made = vp.from_cases(cases).open_volume().spacing(2.0)
    folder = tmp_path / "kept"
    found = read(made.cache(folder), vp.MultiProcessingReadingService(1))

    assert torch.equal(torch.cat(found), torch.cat(read(made.flush())))
    written = kept(folder)
    assert len(written) == 2
    read(made.cache(folder))
    assert kept(folder) == written
    shutil.rmtree(folder)
    read(made.cache(folder.as_uri()))
    assert set(kept(folder)) == set(written)


def test_another_file_or_chain_has_another_copy(cases, tmp_path):
    """Of the same file and chain there is one, whoever asks."""
    folder = tmp_path / "kept"
    made(cases).cache(folder).prepare(progress=lambda done, total: None)
    first = kept(folder)
    made(cases).cache(folder, keys=["image"]).prepare(progress=lambda done, total: None)
    assert kept(folder) == first
    assert len(first) == 4

    opened = vp.from_cases(cases).open_volume()
    opened.spacing(0.6).normalize().cache(folder).prepare(progress=lambda done, total: None)
    assert len(list(folder.glob("*.zarr"))) == 8
    write_case(tmp_path / "cases", 0, values=500)
    made(cases).cache(folder).prepare(progress=lambda done, total: None)
    assert len(list(folder.glob("*.zarr"))) == 10


def double(values):
    return values * 2


def twice(values):
    return values + values


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_chunks_that_are_written_anew_are_made_anew(tmp_path, where):
    """Under the same metadata, in one process, and nobody closes anything."""
    zarr = pytest.importorskip("zarr", minversion="3")
    stored = zarr.create_array(tmp_path / "a.zarr", shape=(8, 8, 8), chunks=(4, 4, 4), dtype="i2")
    place = () if where == "memory" else (tmp_path / "kept",)

    def largest():
        opened = vp.from_cases([{"image": tmp_path / "a.zarr"}]).open_volume()
        (sample,) = opened.spacing(2.0).cache(*place)
        return sample["image"].realize().max()

    for value in (5, 6, 7):
        stored[:] = value
        assert largest() == value


@pytest.mark.parametrize("how", ["memory", "folder"])
@pytest.mark.parametrize("source", ["mapped", "stacked", "stacked and mapped", "mask"])
def test_a_file_that_is_replaced_is_made_anew(tmp_path, source, how):
    """However a volume is seen, and whichever cache keeps what is made of it."""
    path, other = str(tmp_path / "seen.nii"), str(tmp_path / "other.nii")
    gap = vp.AxisMap.missing("K", [7], policy="mask" if source == "mask" else "nearest")
    axis_map = gap if "mapped" in source or source == "mask" else None

    def write(value, at, length=8):
        nib.save(nib.Nifti1Image(np.full((length, 8, 8), value, np.int16), np.eye(4)), at)

    write(1, path)
    write(0, other)
    case = {"image": [path, other] if "stacked" in source else path}
    pipe = vp.from_cases([case]).open_volume(axis_map=axis_map)
    pipe = pipe.spacing((0.5, 2, 2)).cache(*[tmp_path / "kept"] if how == "folder" else ())
    key = f"image{STORED_SUFFIX}" if source == "mask" else "image"

    def seen():
        (sample,) = pipe
        found = sample[key].realize()
        return int(found.max()), found.shape[1]

    # A mask tells of no values, and is of the size of what it speaks of.
    length = 12 if source == "mask" else 8
    assert seen() == (1, 16)
    write(2, tmp_path / "new.nii", length)
    os.replace(tmp_path / "new.nii", path)
    assert seen() == (1 if source == "mask" else 2, length * 2)


def test_a_shard_that_was_removed_is_not_taken_for_zeros(tmp_path):
    """A chunk that is absent from a zarr holds zeros; in a copy it was removed."""
    nib.save(nib.Nifti1Image(np.full((9, 9, 9), 5, np.int16), np.eye(4)), tmp_path / "a.nii")
    pipe = vp.from_cases([{"image": tmp_path / "a.nii"}]).open_volume()
    kept = pipe.cache(tmp_path / "kept", chunk=4)
    assert next(iter(kept.lazy_patch(2)))["image"].realize().max() == 5
    (entry,) = (tmp_path / "kept").glob("*.zarr")
    shutil.rmtree(entry / "0" / "c")

    with pytest.raises(CorruptVolume, match="was removed"):
        next(iter(kept))["image"].realize()


def test_voxels_in_memory_and_functions_count_by_what_they_are(tmp_path):
    """An array is known again by its content, a function by its code."""
    array = np.random.default_rng(0).integers(0, 9, (8, 8, 8), np.int16)
    for number, (content, fn) in enumerate(
        [(array, double), (array.copy(), double), (array + 1, double), (array, twice)]
    ):
        pipe = vp.from_cases([{"image": content}]).open_volume().map_values(fn).cache(tmp_path)
        assert next(iter(pipe))["image"].realize()[0, 0, 0, 0] == 2 * content[0, 0, 0]
        assert len(list(tmp_path.glob("*.zarr"))) == max(1, number)


FACTOR, LOCK = 2, threading.Lock()


class Scaled:
    """Scales, as a method and as a function."""

    def __init__(self, factor):
        self.factor = factor

    def scale(self, values):
        return values * self.factor

    def __call__(self, values):
        return self.scale(values)


def helper(values):
    return values * FACTOR


def helped(values, depth=1):
    return helped(values, depth - 1) if depth else helper(values)


def locked(values):
    with LOCK:
        return values


def test_methods_and_objects_count_by_their_fields(tmp_path):
    """And equal ones, made anew, are the same."""
    opened = vp.from_cases([{"image": np.ones((8, 8, 8), np.float32)}]).open_volume()
    for kind in (lambda factor: Scaled(factor).scale, Scaled):
        shutil.rmtree(tmp_path)
        for factor, copies in ((2, 1), (3, 2), (2, 2)):
            mapped = opened.map_values(kind(factor))
            for pipe in (mapped.cache(tmp_path), mapped.cache(memory_bytes=2**20)):
                assert next(iter(pipe))["image"].realize().max() == factor
            assert len(list(tmp_path.glob("*.zarr"))) == copies
    TILES.clear()


def test_functions_count_by_what_they_name(tmp_path, monkeypatch):
    """Helpers, and what these name: a function may name itself."""
    opened = vp.from_cases([{"image": np.ones((8, 8, 8), np.float32)}]).open_volume()
    seen = []
    for change in ((), ("FACTOR", 3), ("helper", double), ()):
        if change:
            monkeypatch.setattr(sys.modules[__name__], *change)
        patch = next(iter(opened.map_values(helped).cache(tmp_path)))["image"]
        seen.append((patch.realize().max(), len(list(tmp_path.glob("*.zarr")))))

    assert seen == [(2, 1), (3, 2), (2, 3), (2, 3)]


def test_an_inner_function_may_call_itself():
    """It is a name of what it sees."""

    def inner(start):
        def count_down(values):
            return values if start == 0 else count_down(values)

        return count_down

    assert behaviour_digest(inner(1)) == behaviour_digest(inner(1))
    assert behaviour_digest(inner(1)) != behaviour_digest(inner(2))


def test_a_variable_may_be_called_as_a_function_that_reads():
    """Its name is no access to the clock."""

    def scaled(values):
        time = 3
        return values * time

    assert behaviour_digest(scaled)


def test_functions_of_libraries_count_by_their_names():
    """Compiled ones too, with the version of the package."""
    digests = {behaviour_digest(function) for function in (np.abs, np.sqrt, np.clip, np.float32)}
    assert len(digests - {""}) == 4


IMPORTS = """
import functools, sys
from voxpipe.storage.content import behaviour_digest

def smooth(values):
    from wsgiref.util import guess_scheme
    return values

@functools.cache
def kept(values):
    return values + 1

if sys.argv[1] == "imported":
    import wsgiref.util, torch
print(behaviour_digest(smooth), behaviour_digest(kept))
"""


def test_a_digest_is_that_of_every_process(warm_python):
    """A module that a function imports may be loaded already, and torch too."""
    fresh = subprocess.run(
        [sys.executable, "-c", IMPORTS, "fresh"], capture_output=True, text=True, check=True
    )
    assert warm_python.run(IMPORTS, "imported").stdout == fresh.stdout
    smooth, kept = fresh.stdout.split()  # no empty one: both functions have a digest
    assert smooth != kept


def test_what_nobody_can_tell_apart_is_not_kept(tmp_path):
    """A function that computes with a lock, or reads a file."""
    opened = vp.from_cases([{"image": np.ones((8, 8, 8), np.float32)}]).open_volume()
    pipe = opened.map_values(locked).cache(tmp_path)
    words = r"after map_values.* has no name: it computes with .* a lock"
    with pytest.raises(vp.errors.GraphError, match=words) as told:
        next(iter(pipe))["image"].realize()
    assert os.path.basename(__file__) in str(told.value)
    assert "a partial or a dataclass" in str(told.value)


def test_what_is_drawn_before_is_refused(cases):
    """With the pipe, where the chain is written."""
    opened = vp.from_cases(cases).open_volume()
    for drawn, name in (
        (opened.rotate((-15, 15)), r"rotate\(\(-15, 15\)\)"),
        (opened.spacing(2.0).flip(0, p=0.5), "flip"),
        (opened.noise(0.1), "noise"),
        (opened.lazy_patch(8), "lazy_patch"),
        (opened.one_of([vp.spatial.Rotate((0, 3)), vp.spatial.Flip(0)]), "one_of"),
    ):
        with pytest.raises(
            vp.errors.GraphError, match=f"{name}.* is drawn anew in every epoch"
        ) as told:
            drawn.cache()
        assert os.path.basename(__file__) in str(told.value)
    grid = opened.lazy_patch(8, sampling="grid")
    with pytest.raises(vp.errors.GraphError, match=r"lazy_patch\(8.* cuts patches") as told:
        grid.cache()
    assert "drawn" not in str(told.value)
    assert not grid.flush().is_tiled
    with pytest.raises(TypeError, match="memory_bytes is for"):
        opened.cache("folder", memory_bytes=1)
    with pytest.raises(vp.errors.SampleError, match="'pet', but the sample has 'image', 'label'"):
        list(opened.cache(keys=["pet"]))


def test_keys_that_were_regrouped_are_kept(tmp_path):
    """Channels that came apart, or together, are the same in every epoch: in tiles, as flushed."""
    two = np.random.default_rng(0).normal(0, 1, (2, 12, 12, 12)).astype(np.float32)
    opened = vp.from_cases([{"two": two}]).open_volume().spacing(1.3)
    apart = opened.unstack("two", ("a", "b"))
    changed = opened.clamp(0, 1).unstack("two", ("a", "b"))

    for pipe in (apart, apart.stack(("b", "a"), "turned"), changed):
        flushed = pipe.flush()
        expected = {k: patch.realize() for k, patch in next(iter(flushed)).items()}
        assert flushed.is_tiled
        for kept in (pipe.cache(memory_bytes=10**8), pipe.cache(tmp_path)):
            found = {k: patch.realize() for k, patch in next(iter(kept)).items()}
            assert found.keys() == expected.keys()
            assert all(np.array_equal(found[k], expected[k]) for k in found)
    with pytest.raises(vp.errors.GraphError, match=r"flip.* is drawn anew"):
        opened.flip(0, p=0.5).unstack("two", ("a", "b")).cache()


def test_a_killed_writer_is_continued(cases, tmp_path, monkeypatch):
    """Parts that are finished are not made again."""
    monkeypatch.setattr(convert_plan, "SHARD_BYTES", 64 * 1024)
    notes = []
    note = LocalDestination.note

    def stop(self, shard):
        note(self, shard)
        notes.append(shard)
        if len(notes) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(LocalDestination, "note", stop)
    pipe = made(cases[:1]).cache(tmp_path, keys=["image"])
    with pytest.raises(KeyboardInterrupt):
        next(iter(pipe))["image"].realize()
    assert not list(tmp_path.glob("[!.]*.zarr"))

    whole = next(iter(pipe))["image"].realize()

    assert np.array_equal(whole, next(iter(made(cases[:1]).flush()))["image"].realize())
    assert len(notes) == len(set(notes)) > 3


@pytest.fixture
def no_other_user(monkeypatch):
    """Loaders that other tests left behind, and nobody has collected yet, keep tiles as well."""
    monkeypatch.setattr(virtual_volume, "_USERS", WeakSet())


def test_what_is_kept_in_memory_is_not_read_again(cases, no_other_user):
    """What fits is read once for all epochs."""
    with vp.DataLoader2(patches(made(cases).cache(memory_bytes=2**28)), seed=5) as loader:
        read = []
        for _ in range(3):
            before = IO_COUNTERS.snapshot()
            for _ in loader:
                pass
            read.append((IO_COUNTERS - before).bytes_read)
        kept_bytes = TILES.weight
    assert read[0] > read[1] + read[2]
    assert 0 < kept_bytes <= 2**28
    assert TILES.weight == 0  # the loader has ended


def test_what_is_kept_stays_as_long_as_a_loader_uses_it(cases, no_other_user):
    """The last one that ends lets it go; one that was never iterated does not count."""
    pipe = patches(made(cases).cache(memory_bytes=2**28))
    first, second, third = (vp.DataLoader2(pipe, seed=5) for _ in range(3))
    list(first), list(second)
    kept_bytes = TILES.weight

    second.shutdown()
    third.shutdown()
    assert TILES.weight == kept_bytes > 0

    first.shutdown()
    assert TILES.weight == 0


def test_what_is_kept_goes_with_the_last_chain_that_no_loader_reads():
    """It stays from one pass to the next, and with a sample whose chain is gone."""
    array = np.arange(512, dtype=np.int16).reshape(8, 8, 8)
    TILES.clear()
    gc.collect()
    chains = [
        vp.from_cases([{"image": array + n}]).open_volume().spacing(0.5).cache(memory_bytes=10**8)
        for n in range(2)
    ]
    for pipe in chains:
        next(iter(pipe))["image"].realize()
    kept_bytes = TILES.weight
    assert kept_bytes > 0
    next(iter(pipe))["image"].realize()
    assert TILES.weight == kept_bytes

    sample = next(iter(pipe))
    del pipe
    chains.clear()
    gc.collect()
    assert (TILES.weight, TILES.most) == (0, 0)
    sample["image"].realize()
    assert TILES.weight > 0
    del sample
    gc.collect()
    assert (TILES.weight, TILES.most) == (0, 0)


def test_memory_is_bounded(cases):
    """What does not fit is made again, and batches are the same."""
    most = 64**3 * 4 + 1000  # one tile of the image
    weights = []
    with vp.DataLoader2(patches(made(cases).cache(memory_bytes=most)), seed=5) as loader:
        batches = []
        for batch in loader:
            weights.append(TILES.weight)
            batches.append(batch["image"].clone())
    plain = epochs(made(cases).flush(), count=1)

    assert 0 < max(weights) <= most
    assert all(torch.equal(a, b["image"]) for a, b in zip(batches, plain, strict=True))


def test_only_the_chunks_that_a_patch_touches_are_read(cases, tmp_path):
    """Of a copy that is there."""
    pipe = made(cases[:1]).cache(tmp_path, keys=["image"], chunk=8)
    pipe.prepare(progress=lambda done, total: None)
    (sample,) = pipe.crop((0, 0, 0), (8, 8, 16))
    close_volumes()
    before = IO_COUNTERS.snapshot()

    sample["image"].realize()

    assert (IO_COUNTERS - before).bytes_read == 2 * 8**3 * 4


def test_a_state_goes_on_with_another_place(cases, tmp_path):
    """Where volumes are kept changes no batch, so a state is for any."""
    plain = epochs(made(cases).flush())
    with vp.DataLoader2(patches(made(cases).cache()), seed=5) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with vp.DataLoader2(patches(made(cases).cache(tmp_path))) as loader:
        loader.load_state_dict(state)
        assert torch.equal(next(iter(loader))["image"], plain[1]["image"])


def test_explain_tells_of_both_interpolations(cases, tmp_path):
    """One for each volume, and one for each patch of it."""
    for pipe, where in (
        (made(cases).cache(), "in memory"),
        (made(cases).cache(tmp_path / "kept"), f"in {tmp_path / 'kept'}"),
    ):
        with vp.DataLoader2(patches(pipe), seed=5) as loader:
            told = loader.explain()
        assert "2 interpolations, 0 copies   (mean" in told  # of image and label
        assert "kept: image and label are made once, cache at" in told
        assert f"{where}: 1 interpolations and 0 copies for each volume" in told
        assert "not fused" not in told
    assert not (tmp_path / "kept").exists()


def test_a_pipe_is_written_as_volumes(cases, tmp_path):
    """What a chain makes of each case, block by block: the voxels, their place, and labels."""
    pipe = made(cases)

    done = vp.convert(pipe, tmp_path / "out")

    found = vp.list_cases(f"{tmp_path}/out/*/", image="image.nii.zarr", label="label.nii.zarr")
    assert len(done) == 4
    for written, wanted in zip(found.open_volume(), pipe.flush(), strict=True):
        for key in ("image", "label"):
            assert np.array_equal(written[key].realize(), wanted[key].realize())
            assert written[key].dtype == wanted[key].dtype
            assert np.allclose(written[key].affine, wanted[key].affine)
    assert [one.new_shards for one in vp.convert(pipe, tmp_path / "out")] == [0] * 4


def test_a_lazy_patch_is_written_as_a_volume(cases, tmp_path):
    """Also one for which something was drawn: it is one volume as any other."""
    patch = next(iter(vp.from_cases(cases).open_volume().rotate((5, 15)).lazy_patch(16)))["label"]

    vp.convert(patch, tmp_path / "patch.nii.zarr")
    vp.convert(made(cases[:1]).map(only_image), tmp_path / "one.nii.zarr")

    written = vp.Volume(tmp_path / "patch.nii.zarr")
    assert np.array_equal(written.numpy(), patch.realize())
    assert np.allclose(written.affine, patch.affine)
    assert vp.Volume(tmp_path / "one.nii.zarr").spacing == pytest.approx((0.5, 0.5, 0.5))


def only_image(sample):
    return sample.replace(data={"image": sample["image"]})


def test_what_is_no_volume_is_not_written(cases, tmp_path):
    """What is drawn for an epoch, two volumes to one name, and samples without any."""
    opened = vp.from_cases(cases).open_volume()
    with pytest.raises(vp.errors.GraphError, match=r"rotate \(-15.0, 15.0\) degrees draws"):
        vp.convert(opened.rotate((-15, 15)), tmp_path / "out")
    with pytest.raises(vp.errors.SampleError, match="where another one is"):
        vp.convert(opened, tmp_path / "one.nii.zarr")
    with pytest.raises(vp.errors.SampleError, match="no lazy volume"):
        vp.convert(vp.from_cases(cases), tmp_path / "out")


def test_a_write_takes_no_more_memory_for_a_larger_volume(tmp_path, monkeypatch):
    """A block at a time: what is made at once, and what that reads, is the same for any length."""
    monkeypatch.setattr(convert_plan, "SHARD_BYTES", 64**3 * 4)
    sizes = []
    for length in (100, 400):
        array = np.broadcast_to(np.arange(length, dtype=np.int16)[:, None, None], (length, 40, 40))
        tracemalloc.start()
        vp.convert(vp.from_cases([{"image": array}]).open_volume().spacing(0.8), tmp_path / "out")
        sizes.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        shutil.rmtree(tmp_path / "out")
    assert sizes[1] < 1.2 * sizes[0]


def noted(folder, path):
    """Read a file, and note which process does."""
    (folder / f"{os.getpid()}-{uuid.uuid4().hex}").touch()
    image = nib.load(path)
    return np.asarray(image.dataobj), image.affine


@pytest.mark.slow
def test_workers_that_keep_volumes_in_memory_stay(cases, tmp_path):
    """One worker, the same in three epochs, reads each volume once."""
    (tmp_path / "notes").mkdir()
    opened = vp.from_cases(cases).open_volume(reader=functools.partial(noted, tmp_path / "notes"))
    pipe = patches(opened.spacing(0.5).cache())
    with vp.DataLoader2(pipe, None, vp.MultiProcessingReadingService(1), seed=5) as loader:
        assert [len(list(loader)) for _ in range(3)] == [2, 2, 2]

    readers = [path.name.split("-")[0] for path in (tmp_path / "notes").iterdir()]
    of_workers = [reader for reader in readers if reader != str(os.getpid())]
    assert len(of_workers) == 4
    assert len(set(of_workers)) == 1


def from_npy(path):
    """Read an array of a file, or the one of a folder."""
    path = Path(path)
    return np.load(path / "a.npy" if path.is_dir() else path), np.eye(4)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("is_folder", [False, True], ids=["file", "folder"])
def test_a_changed_file_of_a_reader_is_read_again(tmp_path, is_folder, workers):
    """The file has new voxels in each epoch; the cache keeps no old ones."""
    place = tmp_path / "a.npy"
    source = tmp_path if is_folder else place
    np.save(place, np.zeros(SHAPE, np.int16))
    opened = vp.from_cases([{"image": str(source)}]).open_volume(reader=from_npy)
    pipe = opened.spacing(0.5).cache().lazy_patch((8, 8, 8)).batch_patches(1)
    service = vp.MultiProcessingReadingService(workers) if workers else None
    with vp.DataLoader2(pipe, None, service, seed=5) as loader:
        for value in (1, 2, 3):
            np.save(place, np.full(SHAPE, value, np.int16))
            assert {int(v) for batch in loader for v in batch["image"].unique()} == {value}


@dataclass(frozen=True)
class OfItsOwn(vp.spatial.Translate):
    """Looks at the volume before it draws."""

    def draw(self, generator, plan):
        if plan.shape[0] > 1000:
            msg = "too large"
            raise ValueError(msg)
        return super().draw(generator, plan)


def test_what_can_be_told_only_of_a_volume_is_refused_with_that(cases, tmp_path):
    """An op of the user's that draws, and says nothing without a volume."""
    opened = vp.from_cases(cases).open_volume()
    for drawn in ((0, 3), 3):
        pipe = opened.one_of([OfItsOwn(drawn)]).cache(tmp_path)
        if drawn == 3:
            assert next(iter(pipe))["image"].realize().shape == (1, *SHAPE)
            continue
        with pytest.raises(vp.errors.GraphError, match="draws for each item and epoch"):
            next(iter(pipe))["image"].realize()


def test_an_op_that_looks_at_all_is_given_the_whole_volume(tmp_path):
    """Its mean is not that of a tile: in memory, in a copy, and converted."""
    scan = np.zeros((80, 70, 9), np.float32)
    scan[:40] = 100
    head = vp.from_cases([{"image": scan}]).open_volume().contrast(2.0, statistics_over="patch")
    whole = next(iter(head))["image"]
    expected = (scan - 50) * 2 + 50

    kept = [head.cache(), head.cache(tmp_path / "kept")]
    vp.convert(whole, tmp_path / "a.nii.zarr")

    for pipe in kept:
        assert np.array_equal(next(iter(pipe))["image"].realize()[0], expected)
    assert np.array_equal(vp.Volume(tmp_path / "a.nii.zarr").numpy()[0], expected)


def around_mean(values):
    return values - values.mean()


@pytest.mark.parametrize("order", ["stacked", "flushed", "turned"])
def test_an_op_that_looks_at_all_may_come_long_before_what_is_kept(tmp_path, order):
    """Before a stack, which may be flushed, a flush, and an op that samples anew."""
    scan = np.zeros((80, 70, 9), np.float32)
    scan[:40] = 100
    head = vp.from_cases([{"image": scan, "other": scan}]).open_volume()
    if order == "turned":
        head = head.map_values(around_mean, keys=["image"]).rotate(180)
    else:
        head = head.contrast(2.0, statistics_over="patch", keys=["image"])
    if order == "stacked":
        head = head.stack(("image", "other"))
    if order != "turned":
        head = head.flush()
    whole = next(iter(head))["image"]
    expected = scan - 50 if order == "turned" else (scan - 50) * 2 + 50

    made = [whole.realize()]
    for pipe in (head.cache(), head.cache(tmp_path / "kept"), head.flush()):
        made.append(next(iter(pipe))["image"].realize())
    vp.convert(whole, tmp_path / "a.nii.zarr")
    made.append(vp.Volume(tmp_path / "a.nii.zarr").numpy())

    for voxels in made:
        assert np.allclose(voxels[0], expected, atol=1e-3)


@pytest.mark.parametrize("form", ["file", "list"])
def test_a_volume_under_two_keys_is_kept_once(tmp_path, form):
    """What is done to its values is the same under each; so with other names in another chain."""
    place = tmp_path / "numbers.npy"
    np.save(place, np.arange(64, dtype=np.int16).reshape(4, 4, 4))
    given = str(place) if form == "file" else [str(place), str(place)]
    kept = tmp_path / "kept"

    for case in ({"one": given, "two": given}, {"three": given}):
        pipe = vp.from_cases([case]).open_volume().clamp(5, 9).contrast(0.5)
        sample = next(iter(pipe.cache(kept)))
        for patch in sample.values():
            patch.realize()

    assert len(list(kept.glob("*.zarr"))) == 1


def test_noise_differs_between_keys_that_are_made_apart():
    """Two keys of one array are one to a clamp, and two where numbers are drawn for each."""
    array = np.zeros((4, 4, 4), np.float32)
    head = vp.from_cases([{"one": array, "two": array}]).open_volume()

    for pipe, count in ((head.clamp(5, 9), 1), (head.noise((1.0, 2.0)), 2)):
        volumes = [patch.flush_plan().volume for patch in next(iter(pipe)).values()]
        assert len({virtual_volume.digest_of_made(volume) for volume in volumes}) == count
