"""Whoever asks what a patch reads is told the chunks that its read decodes, and no others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from manifests import index_cases, write_manifest
from representatives import representatives
from zarr_arrays import add_array

import voxpipe as vp
from voxpipe.batching.parts import _fetch, hold_reads
from voxpipe.core import IO_COUNTERS, Sample
from voxpipe.dataloader2 import volumes_of
from voxpipe.datapipes.cost import cost_of, measure_access
from voxpipe.datapipes.epoch import set_epoch
from voxpipe.datapipes.item_numbers import Visits
from voxpipe.datapipes.shuffle_plans import needed_chunks, shuffle_report, visit_bytes
from voxpipe.diagnosing.measurement import reads_of
from voxpipe.extensions.formats.blosc2 import Blosc2Blocks
from voxpipe.graph import clone
from voxpipe.volumes import AxisMap, Volume, close_volumes
from voxpipe.volumes.chunks.chunked_array import ChunkedArray
from voxpipe.volumes.chunks.ranged_chunks import RangedChunks

EDGE, SHAPE = 4, (40, 36, 44)
SOURCES = (RangedChunks, Blosc2Blocks)
VOXELS = np.random.default_rng(0).integers(-500, 500, SHAPE).astype(np.int16)


def _zarr(folder: Path) -> str:
    zarr.create_array(folder / "a.zarr", data=VOXELS, chunks=(EDGE,) * 3)
    return str(folder / "a.zarr")


def _shards(folder: Path) -> str:
    shards = (20, 12, 44)
    zarr.create_array(folder / "s.zarr", data=VOXELS, chunks=(EDGE,) * 3, shards=shards)
    return str(folder / "s.zarr")


def _channels(folder: Path) -> str:
    """Three channels, each in chunks of its own."""
    data = np.stack([VOXELS, VOXELS + 1, VOXELS + 2])
    zarr.create_array(folder / "c.zarr", data=data, chunks=(1, EDGE, EDGE, EDGE))
    return str(folder / "c.zarr")


def _b2nd(folder: Path) -> str:
    """Blocks that do not divide their chunk, so that they lie at no equal steps."""
    blosc2 = pytest.importorskip("blosc2")
    path = str(folder / "a.b2nd")
    blosc2.asarray(VOXELS, urlpath=path, mode="w", chunks=(10, 12, 44), blocks=(EDGE,) * 3)
    return path


def _hdf5(folder: Path) -> str:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("a", data=VOXELS, chunks=(EDGE,) * 3, compression="gzip")
    return str(folder / "a.h5")


def _mapped(folder: Path) -> Volume:
    """Sections that are stored elsewhere, and one that is not stored."""
    order = [*range(20, 44), -1, *range(20)]
    return Volume(_zarr(folder)).with_axis_map(AxisMap.from_table("K", order, "fill"))


def _manifest(folder: Path) -> Volume:
    """A volume of which a manifest tells the chunks, so that nobody opens it to count."""
    (folder / "one").mkdir()
    _zarr(folder / "one")
    listed = vp.list_cases(str(folder / "*/"), image="a.zarr")
    manifest, bad = index_cases(volumes_of(listed))
    assert bad == ()
    write_manifest(manifest, folder / "m.json")
    volume: Volume = next(iter(vp.from_manifest(folder / "m.json")))["image"]
    return volume


def _pyramid(folder: Path) -> str:
    """OME-Zarr 0.5 of two levels, stored (z, y, x)."""
    group = zarr.open_group(folder / "p.ome.zarr", mode="w", zarr_format=3)
    datasets = []
    for level in (0, 1):
        step = 2**level
        data = np.ascontiguousarray(VOXELS[::step, ::step, ::step].T)
        add_array(group, str(level), data=data, chunks=(EDGE,) * 3)
        scale = {"type": "scale", "scale": [float(step)] * 3}
        datasets.append({"path": str(level), "coordinateTransformations": [scale]})
    axes = [{"name": name, "type": "space", "unit": "millimeter"} for name in "zyx"]
    group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets}]}
    return str(folder / "p.ome.zarr")


FORMATS: dict[str, Callable[[Path], Any]] = {
    "zarr": _zarr,
    "shards": _shards,
    "channels": _channels,
    "b2nd": _b2nd,
    "hdf5": _hdf5,
    "mapped": _mapped,
    "manifest": _manifest,
    "pyramid": _pyramid,
}

CHAINS: dict[str, Callable[[Any], Any]] = {
    "crop": lambda p: p.crop((3, 5, 7), (17, 9, 11)),
    "turned": lambda p: p.lazy_patch((16, 16, 16)).rotate((-40, 40)),
    "blurred": lambda p: p.lazy_patch((16, 16, 16)).rotate((-40, 40)).blur(1.5, unit="voxel"),
    "blurred before": lambda p: p.lazy_patch((12, 12, 12)).blur(1.5, unit="voxel").rotate(30),
    "sharpened": lambda p: p.crop((8, 8, 8), (12, 12, 12)).rotate(25).sharpen(1.0, amount=1.0),
    "flushed": lambda p: p.lazy_patch((16, 16, 16)).rotate((20, 40)).flush().zoom(1.2),
    "coarser": lambda p: p.crop((4, 4, 4), (24, 24, 24)).rotate(20).low_resolution(2).zoom(1.5),
    "smoothed": lambda p: p.rotate((10, 20)).resize(12, antialias=True),
    "bent": lambda p: p.lazy_patch((12, 12, 12)).rotate(30).elastic(1.0, 6.0),
    "from a level": lambda p: p.rotate((5, 9)).resize(12, antialias="level"),
    "over the edge": lambda p: p.crop((24, 24, 24), (12, 12, 12)).rotate(30).pad(9),
    "mirrored": lambda p: p.crop((0, 2, 2), (9, 9, 9)).pad(4).rotate(30, padding="reflection"),
    "nothing": lambda p: p.crop((0, 0, 0), (8, 8, 8)).translate(90.0, padding="constant"),
    "noisy": lambda p: p.lazy_patch((16, 16, 16)).rotate(30).noise(3.0).normalize(mean=1, std=2),
}


@contextmanager
def noted(
    method: str, chunks: Callable[..., Any], owners: tuple[type, ...] = (ChunkedArray,)
) -> Iterator[set[tuple[int, ...]]]:
    """Collect the chunks with which a method of chunked arrays is called; it does its work."""
    found: set[tuple[int, ...]] = set()

    def noting(real: Callable[..., Any]) -> Callable[..., Any]:
        def noted_call(self: Any, *args: Any, **kwargs: Any) -> Any:
            found.update(map(tuple, chunks(self, *args)))
            return real(self, *args, **kwargs)

        return noted_call

    with pytest.MonkeyPatch.context() as patch:
        for owner in owners:
            patch.setattr(owner, method, noting(getattr(owner, method)))
        yield found


def first(pipe: Any, seed: int) -> Sample:
    """The first sample of an epoch, not worked out yet."""
    planner = clone(pipe)
    set_epoch(planner, seed, 0)
    sample: Sample = next(iter(planner))
    return sample


def decoded() -> AbstractContextManager[set[tuple[int, ...]]]:
    """Collect the chunks that reads decode: nothing is kept, so all of each region."""
    return noted("read", lambda array, region: array.needed_chunks(region).tolist())


# Every chain where chunks are cubes, and have another axis; elsewhere those that cull and widen.
PAIRS = [
    (form, chain)
    for form in FORMATS
    for chain in CHAINS
    if form in ("zarr", "channels") or chain in ("turned", "blurred before", "from a level")
]
QUICK = representatives(PAIRS)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: Any) -> Callable[[str], Any]:
    """Return what writes the same voxels in a format, once for all chains."""
    return functools.cache(lambda form: FORMATS[form](tmp_path_factory.mktemp(form)))


@pytest.mark.filterwarnings("ignore:length-beyond-volume")
@pytest.mark.parametrize(
    ("form", "chain"),
    [pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow) for pair in PAIRS],
)
def test_all_who_ask_get_the_chunks_of_the_read(
    form: str, chain: str, stored: Callable[[str], Any]
) -> None:
    """Read, look-ahead, counts, negotiation, explanation, report and joining agree."""
    pipe, seed = CHAINS[chain](vp.from_cases([{"image": stored(form)}]).open_volume()), 7
    close_volumes()  # what is kept would not be decoded again
    with decoded() as read:
        before = IO_COUNTERS.snapshot()
        first(pipe, seed)["image"].realize()
        done = IO_COUNTERS.snapshot() - before

    close_volumes()
    with noted("prefetch", lambda _, chunks, size: chunks, SOURCES) as ahead:
        ticket = first(pipe, seed)["image"].prefetch()
    if ticket is not None:
        ticket.close()
    assert ahead == read

    told = list(needed_chunks(first(pipe, seed)))
    axes = len(next(iter(read), ()))
    assert {each.chunk[len(each.chunk) - axes :] for each in told} == read
    assert len(told) == len(read)
    size = sum(each.bytes for each in told)

    measured = measure_access(pipe.batch_patches(1), seed, 0).demands["image"]
    assert measured.chunks == len(read)

    cost = cost_of(pipe.batch_patches(1), seed, 0)
    assert cost is not None
    assert cost.bytes_read == done.bytes_read
    assert cost.reads == done.reads == bool(read)

    report = shuffle_report(pipe.batch_patches(1), seed=seed, cache_bytes=0)
    assert report.bytes_per_sample == size
    assert visit_bytes([first(pipe, seed)], Visits(1, 1)) == size

    close_volumes()
    reads = reads_of([first(pipe, seed)])
    assert len(reads) == bool(read)
    with decoded() as measured_read:
        for one in reads:
            one.volume.read(one.region)
    assert measured_read == read


PAIR = ("a", "b")
SEVERAL: dict[str, Callable[[Any], Any]] = {
    "list, turned": lambda p: p.lazy_patch((12, 12, 12)).rotate(30).blur(1.5, unit="voxel"),
    "list, blurred": lambda p: p.lazy_patch((12, 12, 12)).blur(1.5, unit="voxel"),
    "list, flushed": lambda p: p.lazy_patch((12, 12, 12)).rotate(20).flush().rotate(10),
    "stacked": lambda p: p.gamma(1.2, in_range=(0, 1), keys=["a"]).stack(PAIR).lazy_patch(12),
    "stacked, blurred": lambda p: SEVERAL["stacked"](p).blur(1.5, unit="voxel"),
    "stacked, flushed": lambda p: SEVERAL["stacked, blurred"](p).rotate(20),
}


@pytest.mark.parametrize("chain", SEVERAL)
def test_all_who_ask_get_the_chunks_of_every_file(chain: str, stored: Callable[[str], Any]) -> None:
    """Of two files of one patch: read, counts, negotiation, explanation and report agree."""
    files = [stored("zarr"), stored("shards")]
    case: Any = {"image": files} if "list" in chain else dict(zip(PAIR, files, strict=True))
    pipe, seed = SEVERAL[chain](vp.from_cases([case]).open_volume()), 7
    close_volumes()
    before = IO_COUNTERS.snapshot()
    first(pipe, seed)["image"].realize()
    done = IO_COUNTERS.snapshot() - before
    chunks = done.bytes_read // (EDGE**3 * 2)

    assert chunks > 0
    assert done.reads == 2
    assert len(list(needed_chunks(first(pipe, seed)))) == chunks
    assert measure_access(pipe.batch_patches(1), seed, 0).demands["image"].chunks == chunks
    cost = cost_of(pipe.batch_patches(1), seed, 0)
    assert cost is not None
    assert (cost.reads, cost.bytes_read) == (2, done.bytes_read)
    report = shuffle_report(pipe.batch_patches(1), seed=seed, cache_bytes=0)
    assert report.bytes_per_sample == done.bytes_read
    assert len(reads_of([first(pipe, seed)])) == 2


@pytest.mark.parametrize("chain", ["list, blurred", "stacked", "stacked, blurred"])
def test_what_is_held_is_not_read_again(chain: str, stored: Callable[[str], Any]) -> None:
    """The halo of a filter of all channels is in memory, too; nobody reads a file twice."""
    files = [stored("zarr"), stored("shards")]
    case: Any = {"image": files} if "list" in chain else dict(zip(PAIR, files, strict=True))
    pipe = SEVERAL[chain](vp.from_cases([case]).open_volume())
    samples = [first(pipe, 7)] * 2
    (kept,), _ = hold_reads(samples[:1])
    before = IO_COUNTERS.snapshot()
    expected = kept["image"].realize()
    assert (IO_COUNTERS.snapshot() - before).reads == 0
    assert np.array_equal(expected, samples[1]["image"].realize())


def test_fetching_alone_brings_what_the_read_needs(tmp_path: Path) -> None:
    """``diagnose()`` measures the storage by the bytes of these chunks."""
    pipe = CHAINS["blurred"](vp.from_cases([{"image": _zarr(tmp_path)}]).open_volume())
    (one,) = reads_of([first(pipe, 5)])
    stored = {
        chunk: (tmp_path / "a.zarr" / "c" / "/".join(map(str, chunk))).stat().st_size
        for chunk in map(tuple, one.needed_chunks.chunks.tolist())
    }

    assert one.volume.fetch(one.region) == sum(stored.values())
    assert _fetch(one)
    assert len(stored) < one.volume.needed_chunks(one.region.pad(0)).chunks.shape[0]


def test_the_case_of_the_report(tmp_path: Path) -> None:
    """48 cubed, turned and blurred by 3: the halo is a good part of what is read."""
    big = np.ones((96, 96, 96), np.int16)
    zarr.create_array(tmp_path / "b.zarr", data=big, chunks=(8, 8, 8))
    pipe = vp.from_cases([{"image": str(tmp_path / "b.zarr")}]).open_volume()
    pipe = pipe.crop((24, 24, 24), (48, 48, 48)).rotate((30, 30, 30))
    sharp, blurred = (first(p, 0) for p in (pipe, pipe.blur(3.0, unit="voxel")))
    close_volumes()
    before = IO_COUNTERS.snapshot()
    blurred["image"].realize()
    done = IO_COUNTERS.snapshot() - before

    assert done.bytes_read == len(list(needed_chunks(blurred))) * 8**3 * 2
    assert len(list(needed_chunks(blurred))) > 1.5 * len(list(needed_chunks(sharp)))
