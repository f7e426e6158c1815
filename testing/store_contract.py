"""The contracts of stores and backends of volumes, as tests: subclass one for your own format.

::

    class TestMyFormat(StoreContract):
        @pytest.fixture
        def case(self, tmp_path):
            array = np.arange(2 * 5 * 6 * 7, dtype=np.int16).reshape(2, 5, 6, 7)
            write_my_format(tmp_path / "a.mine", array)  # not with the code under test
            return StoreCase(tmp_path / "a.mine", array, np.eye(4))

pytest collects the inherited tests. The array should be small, and no two of its
voxels equal.
"""

from __future__ import annotations

import builtins
import json
import math
import multiprocessing
import os
import pickle
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from numpy.typing import NDArray

from ..core import Region
from ..volumes import ByteRange, RangeBackend, Volume, close_volumes
from ..volumes.header import Header
from ..volumes.session import SESSION

# Every batch carries its volumes.
MOST_PICKLED_BYTES = 16 * 1024
# Enough to start an interpreter on a busy machine.
_CHILD_SECONDS = 60.0
# Few, because they run once per format; Hypothesis cannot use function-scoped fixtures.
_RANDOM_REGIONS = 8
# A data set of any size must be readable with the usual 1024 descriptors of a process, most of
# which other code uses. With fewer open handles than usual, few volumes show it.
MOST_HANDLES, MOST_DESCRIPTORS = 8, 24
# More than ``MOST_DESCRIPTORS``: descriptors that stay open exceed the limit.
VOLUMES_IN_TURN = 30
_DESCRIPTORS = "/proc/self/fd"
_ANYTHING = 77  # content of the memory before a decode
_INDICES: dict[str, tuple[Any, ...]] = {
    "channel": (0,),
    "last": (..., -1),
    "flipped": (slice(None), slice(None, None, -1), slice(None, None, 2)),
    "mixed": (-1, slice(1, None), 1, slice(None, None, -2)),
}


@dataclass(frozen=True)
class StoreCase:
    """A stored volume and its voxels."""

    source: Any
    """The first argument of ``Volume``."""
    array: NDArray[Any]
    """All values, (C, I, J, K), in the type that reads return, of native byte order."""
    affine: NDArray[np.float64]
    """4x4, voxel index to world millimetres."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keywords of ``Volume``."""
    disk_dtype: np.dtype[Any] | None = None
    """Stored type with its byte order; None to skip the check."""


class StoreContract:
    """Inherited tests; a subclass gives the fixture ``case``, which returns a ``StoreCase``."""

    spawnable = True
    """Whether a spawned process can open the source."""

    def test_nothing_is_opened_at_construction(
        self, case: StoreCase, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Creating a volume and its ``repr`` do not access the disk."""
        _volume(case)  # imports the modules that read this kind of source
        with monkeypatch.context() as patch:
            patch.setattr(builtins, "open", _refuse)
            for name in ("stat", "open", "listdir", "scandir"):
                patch.setattr(os, name, _refuse)
            text = repr(_volume(case))

        assert text.startswith("Volume(")

    def test_the_header_is_right(self, case: StoreCase) -> None:
        """Shape, type and affine are those of the reference."""
        volume = _volume(case)

        assert volume.shape == case.array.shape
        assert volume.spatial_shape == case.array.shape[1:]
        assert volume.dtype == case.array.dtype
        assert volume.dtype.isnative
        # NIfTI-1 stores single precision.
        np.testing.assert_allclose(volume.affine, case.affine, rtol=1e-6, atol=1e-6)
        spacing = np.linalg.norm(case.affine[:3, :3], axis=0)
        np.testing.assert_allclose(volume.spacing, spacing, rtol=1e-6)

    def test_the_stored_type_is_told(self, case: StoreCase) -> None:
        """``disk_dtype`` is the type in the file, ``dtype`` the type of the values."""
        volume = _volume(case)

        voxels = volume.read(Region((0, 0, 0), (1, 1, 1)))

        if case.disk_dtype is not None:
            assert volume.disk_dtype == case.disk_dtype
        assert voxels.dtype == voxels.values().dtype == volume.dtype == case.array.dtype

    def test_the_header_is_plain_data(self, case: StoreCase) -> None:
        """A header is equal after a round trip through JSON, and names its unit."""
        header = _volume(case).header

        document = json.loads(json.dumps(header.document(), allow_nan=False))

        assert document["unit"] == "mm"
        assert Header.of_document(document) == header

    def test_all_values_are_right(self, case: StoreCase) -> None:
        """The whole volume equals the reference, as an array and as a tensor."""
        volume = _volume(case)

        _assert_equal(volume.numpy(), case.array)
        _assert_equal(volume.data.numpy(), case.array)

    def test_random_regions_are_right(self, case: StoreCase) -> None:
        """Any region inside equals the same part of the reference."""
        volume = _volume(case)
        generator = np.random.default_rng(0)

        for _ in range(_RANDOM_REGIONS):
            ends = [sorted(generator.integers(0, n + 1, 2)) for n in volume.spatial_shape]
            region = Region(tuple(a for a, _ in ends), tuple(b for _, b in ends))
            voxels = volume.read(region)
            assert voxels.array.shape == (volume.shape[0], *region.shape)
            _assert_equal(voxels.values(), case.array[(slice(None), *region.slices)])

    def test_indexing_keeps_axes_and_place(self, case: StoreCase) -> None:
        """A part has four axes, and its voxels keep their values and world positions."""
        volume = _volume(case)
        places = np.indices(case.array.shape)

        for name, index in _INDICES.items():
            part = volume[index]

            rows = [slice(e, e + 1 or None) if isinstance(e, int) else e for e in index]
            _assert_equal(part.numpy(), case.array[tuple(rows)], name)
            there = np.array([axis[tuple(rows)] for axis in places[1:]]).reshape(3, -1)
            here = np.indices(part.spatial_shape).reshape(3, -1)
            here = np.tile(here, part.shape[0])
            ours, theirs = _world(part.affine, here), _world(volume.affine, there)
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9, err_msg=name)

    def test_numpy_integers_are_integers_and_booleans_are_not(self, case: StoreCase) -> None:
        """NumPy's integers select like Python's; a boolean index, a usual mistake, is refused."""
        volume = _volume(case)

        part = volume[np.int64(0), np.uint8(1), np.int32(-1)]

        _assert_equal(part.numpy(), case.array[:1, 1:2, -1:])
        for wrong in (True, np.True_):
            with pytest.raises(TypeError, match="not understood"):
                volume[wrong]

    def test_outside_is_refused(self, case: StoreCase) -> None:
        """An index or a region outside the volume is an IndexError."""
        volume = _volume(case)
        i, j, k = volume.spatial_shape

        for beyond in (i, -i - 1, np.int64(i)):
            with pytest.raises(IndexError, match="out of range"):
                volume[:, beyond]
        with pytest.raises(IndexError, match="is not inside"):
            volume.read(Region((0, 0, 0), (i, j, k + 1)))
        with pytest.raises(IndexError, match="is not inside"):
            volume.read(Region((-1, 0, 0), (i, j, k)))

    def test_it_travels_in_every_state(self, case: StoreCase) -> None:
        """Pickles of an unopened, an opened and a loaded volume are small and read equal voxels."""
        volume = _volume(case)
        states = [pickle.dumps(volume)]
        assert volume.shape == case.array.shape
        states.append(pickle.dumps(volume))
        states.append(pickle.dumps(volume.load()))
        close_volumes()

        for state in states:
            assert len(state) < MOST_PICKLED_BYTES
            there = pickle.loads(state)  # noqa: S301  made above
            assert not there.is_loaded
            assert (there.name, there.kind, there.shape) == (volume.name, volume.kind, volume.shape)
            _assert_equal(there.numpy(), case.array)

    def test_loading_keeps_and_unloading_lets_go(self, case: StoreCase) -> None:
        """``load`` keeps the tensor, ``unload`` drops it; both return the volume."""
        volume = _volume(case)
        states = [volume.is_loaded]

        assert volume.load() is volume
        states.append(volume.is_loaded)
        assert volume.data is volume.data
        assert volume.unload() is volume
        states.append(volume.is_loaded)

        assert states == [False, True, False]

    def test_many_volumes_in_turn(self, case: StoreCase, tmp_path: Path) -> None:
        """Reading many volumes keeps few descriptors open."""
        self.read_in_turn(case, tmp_path, VOLUMES_IN_TURN)

    def read_in_turn(self, case: StoreCase, folder: Path, count: int) -> None:
        """Read one voxel of each of ``count`` volumes, counting open descriptors."""
        if not os.path.isdir(_DESCRIPTORS):
            pytest.skip("this system does not list descriptors")
        last = case.array[:, -1:, -1:, -1:]
        stop = case.array.shape[1:]
        region = Region(tuple(n - 1 for n in stop), stop)
        close_volumes()
        before = len(os.listdir(_DESCRIPTORS))
        most = 0

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SESSION.handles, "most", MOST_HANDLES)
            for volume in self.others(case, folder, count):
                _assert_equal(volume.read(region).values(), last)
                most = max(most, len(os.listdir(_DESCRIPTORS)))

        assert most - before < MOST_DESCRIPTORS

    def others(self, case: StoreCase, folder: Path, count: int) -> Iterator[Volume]:
        """Yield volumes with the voxels of the case that must be opened one by one.

        By default the same source with other affines. Stores that still share a descriptor may
        copy the files into ``folder`` instead.
        """
        for n in range(count):
            affine = np.diag([1.0 + n, 1, 1, 1])
            yield Volume(case.source, **{**case.options, "affine": affine})

    def test_threads_read_at_once(self, case: StoreCase) -> None:
        """Eight threads that read one volume all get the right voxels."""
        close_volumes()
        volume = _volume(case)
        places = [*range(volume.shape[-1])] * 4

        with ThreadPoolExecutor(8) as pool:
            slices = list(pool.map(lambda k: volume[..., k].numpy(), places))

        for k, voxels in zip(places, slices, strict=True):
            _assert_equal(voxels, case.array[..., k : k + 1])

    def test_a_forked_child_reads(self, case: StoreCase) -> None:
        """A child that was forked after the volume was read gets the right voxels."""
        if "fork" not in multiprocessing.get_all_start_methods():
            pytest.skip("this system cannot fork")
        volume = _volume(case)

        _assert_equal(volume.numpy(), case.array)
        _assert_equal(_read_in_child("fork", volume), case.array)

    def test_a_spawned_child_reads(self, case: StoreCase) -> None:
        """A spawned child gets the right voxels from the pickle."""
        if not self.spawnable:
            pytest.skip("the source exists in this process only")

        # Like "spawn", without a new interpreter for each test.
        _assert_equal(_read_in_child("forkserver", _volume(case)), case.array)


class BackendContract(StoreContract):
    """Tests of a ``Backend``: its data for the scheme, the caches and ``diagnose()``.

    A subclass gives ``case``; with a ``content_key``, its :meth:`rewrite` gives other content.
    """

    def rewrite(self, case: StoreCase, folder: Path) -> StoreCase | None:
        """Return the case rewritten with other voxels; None to skip."""
        return None

    def test_the_scheme_hears_of_shape_and_chunks(self, case: StoreCase) -> None:
        """The layout for the scheme has the right shape, chunks and bytes."""
        volume = _volume(case)
        itemsize = volume.disk_dtype.itemsize

        layout = volume.layout(volumes=3)

        assert (layout.shape, layout.chunk) == (volume.spatial_shape, volume.chunks)
        assert (layout.volumes, layout.itemsize) == (3, volume.shape[0] * itemsize)
        assert layout.access == volume.access

    def test_the_content_has_one_name(self, case: StoreCase) -> None:
        """The key is the same after reopening and after unpickling."""
        keys = {_volume(case).content_key}
        state = pickle.dumps(_volume(case))
        close_volumes()
        keys.add(_volume(case).content_key)
        keys.add(pickle.loads(state).content_key)  # noqa: S301  made above

        assert len(keys) == 1

    def test_other_content_has_another_name(self, case: StoreCase, tmp_path: Path) -> None:
        """Caches must not serve results of old voxels."""
        before = _volume(case).content_key
        other = self.rewrite(case, tmp_path)
        if other is None:
            pytest.skip("the subclass has no source of other content")
        assert before, "without a key nothing is kept, and nothing can be tested"

        volume = _volume(other)
        _assert_equal(volume.numpy(), other.array)

        assert volume.content_key not in ("", before)

    def test_fetching_and_touching_are_counted_in_bytes(self, case: StoreCase) -> None:
        """A voxel touches at most its chunk; fetching returns a number of bytes or None."""
        volume = _volume(case)
        one = Region((0, 0, 0), (1, 1, 1))
        unit = math.prod(volume.chunks or (1, 1, 1))
        most = unit * volume.shape[0] * volume.disk_dtype.itemsize

        size = volume.fetch(Region.of_shape(volume.spatial_shape))

        assert 0 <= volume.probe().touched_bytes(one) <= most
        assert size is None or size > 0


class RangeContract(BackendContract):
    """Tests of a ``RangeBackend``: its ranges, and the memory that it decodes into."""

    def test_ranges_lie_in_the_files(self, case: StoreCase) -> None:
        """Each tile has one list, the same when it comes alone, of ranges inside its files."""
        backend = self.backend(case)
        tiles = _tiles_of(backend)

        answer = [list(ranges) for ranges in backend.read_ranges(tiles)]

        assert len(answer) == len(tiles)
        for tile, ranges in zip(tiles, answer, strict=True):
            assert [list(each) for each in backend.read_ranges(tile[None])] == [ranges]
            for file, start, stop, *_ in ranges:
                assert 0 <= start < stop <= backend.files[file].size

    def test_a_tile_is_decoded_into_any_memory(self, case: StoreCase) -> None:
        """Old content of the memory has no effect; a backend with ``clears`` gets zeros."""
        backend = self.backend(case)
        tile = tuple(_tiles_of(backend)[0].tolist())
        shape = backend.channels_at_once, *backend.chunks
        contents = set()
        for before in (0, 0 if backend.clears else _ANYTHING):
            out = np.full(shape, before, backend.disk_dtype)
            for place in map(list, backend.read_ranges(np.array([tile]))[0]):
                with backend.files[place[0]].open() as file:
                    file.seek(place[1])
                    data = memoryview(file.read(place[2] - place[1]))
                backend.decode(data, out, ByteRange(*place), tile)
            contents.add(out.tobytes())

        assert len(contents) == 1

    def test_a_region_takes_the_bytes_of_its_tiles(self, case: StoreCase) -> None:
        """The bytes that are fetched are those of the ranges of the tiles, each once."""
        backend = self.backend(case)
        region = Region((0, 0, 0), tuple(min(1, n) for n in backend.shape[1:]))
        chunks = backend.needed_chunks(region).chunks
        ranges = {tuple(place)[:3] for each in backend.read_ranges(chunks) for place in each}

        assert backend.fetch(region) == sum(stop - start for _, start, stop in ranges)

    def backend(self, case: StoreCase) -> Any:
        """Return the open backend of the case."""
        backend = _volume(case).probe()
        assert isinstance(backend, RangeBackend)
        return backend


def _tiles_of(backend: Any) -> NDArray[np.int64]:
    """Return the numbers of all tiles, (N, 4)."""
    tile = backend.channels_at_once, *backend.chunks
    counts = [-(-n // t) for n, t in zip(backend.shape, tile, strict=True)]
    return np.stack([axis.ravel() for axis in np.indices(counts)], axis=1)


def _volume(case: StoreCase) -> Volume:
    return Volume(case.source, **case.options)


def _refuse(*args: Any, **kwargs: Any) -> NoReturn:
    raise AssertionError(f"nothing may be opened here, got {args}")


def _assert_equal(actual: NDArray[Any], reference: NDArray[Any], name: str = "") -> None:
    assert actual.dtype == reference.dtype, name
    np.testing.assert_array_equal(actual, reference, name)


def _world(affine: NDArray[np.float64], index: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(affine[:3, :3] @ index + affine[:3, 3:])


def _read_in_child(method: str, volume: Volume) -> NDArray[Any]:
    context: Any = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    child = context.Process(target=_read, args=(theirs, volume), daemon=True)
    with ours, warnings.catch_warnings():
        # The test forks on purpose while threads of zarr and fsspec run.
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
        theirs.close()
        try:
            assert ours.poll(_CHILD_SECONDS), f"{volume} is not read in {_CHILD_SECONDS:g} s"
            return np.asarray(ours.recv())  # an EOFError if the child died
        finally:
            child.kill()
            child.join()


def _read(pipe: Any, volume: Volume) -> None:
    # A copy: the array may be a view of a mapped file.
    pipe.send(np.array(volume.numpy()))
