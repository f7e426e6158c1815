"""Zarr, OME-Zarr and NIfTI-Zarr, in folders, behind URLs and as objects."""

import json
import shutil
import warnings

import fsspec
import nibabel
import numpy as np
import pytest
from nifti_files import AFFINE, crafted, numbered
from zarr_arrays import add_array

import voxpipe as vp
from voxpipe import check
from voxpipe.core import IO_COUNTERS, Region
from voxpipe.core.call_site import WarnOnce
from voxpipe.core.errors import (
    BadHeader,
    CorruptVolume,
    LikelyMistake,
    UnknownFormat,
    VolumeNotFound,
)
from voxpipe.storage.file_reader import LocalRanges
from voxpipe.testing import StoreCase, StoreContract
from voxpipe.volumes import Volume, find_volumes
from voxpipe.volumes.formats import chunked_backend, zarr_nodes

zarr = pytest.importorskip("zarr")
LocalStore, MemoryStore = zarr.storage.LocalStore, zarr.storage.MemoryStore

FORMATS = pytest.mark.parametrize("version", [2, 3], ids=["v2", "v3"])
SPATIAL = dict.fromkeys("xyz", "micrometer")
MILLIMETRES = dict.fromkeys("xyz", "millimeter")

# All time points of a file are its channels.
pytestmark = pytest.mark.filterwarnings("ignore:times-and-channels")


def write_array(store, array, chunks, version=3, **options):
    """Write with zarr-python; return its array."""
    made = zarr.create_array(
        store, shape=array.shape, chunks=chunks, dtype=array.dtype, zarr_format=version, **options
    )
    made[...] = array
    return made


def multiscales(axes, *levels, units=SPATIAL, **image):
    """Return OME metadata; each level is (scale, translation or None)."""
    datasets = []
    for n, (scale, translation) in enumerate(levels):
        steps = [{"type": "scale", "scale": list(scale)}]
        if translation is not None:
            steps.append({"type": "translation", "translation": list(translation)})
        datasets.append({"path": str(n), "coordinateTransformations": steps})
    entries = [{"name": a} | ({"unit": units[a]} if a in units else {}) for a in axes]
    return [{"axes": entries, "datasets": datasets, **image}]


def write_group(store, arrays, images=None, version=3, nifti=None):
    """Write a group of arrays, with OME metadata and a NIfTI header if given."""
    group = zarr.open_group(store, mode="w", zarr_format=version)
    for name, array in arrays.items():
        made = group.create_array(
            name, shape=array.shape, chunks=(1,) * (array.ndim - 2) + (4, 4), dtype=array.dtype
        )
        made[...] = array
    if nifti is not None:
        raw = np.frombuffer(nifti, np.uint8)
        group.create_array("nifti", shape=raw.shape, chunks=raw.shape, dtype="u1")[...] = raw
    if images is not None:
        ome = {"ome": {"version": "0.5", "multiscales": images}}
        group.attrs.update(ome if version == 3 else {"multiscales": images})
    return group


def scale(*spacing, origin=(0, 0, 0)):
    """Return an affine without rotation."""
    matrix = np.diag([*map(float, spacing), 1.0])
    matrix[:3, 3] = origin
    return matrix


class TestPlainArray(StoreContract):
    @pytest.fixture(params=[2, 3], ids=["v2", "v3"])
    def case(self, tmp_path, request):
        array = numbered((5, 6, 7))
        write_array(tmp_path / "a.zarr", array, (2, 4, 4), request.param)
        return StoreCase(tmp_path / "a.zarr", array[None], np.eye(4))


class TestPlainChannels(StoreContract):
    @pytest.fixture
    def case(self, tmp_path):
        array = numbered((3, 5, 6, 7), ">f4")
        write_array(tmp_path / "folder", array, (1, 2, 4, 4), 2)
        return StoreCase(tmp_path / "folder", array.astype("f4"), np.eye(4))


class TestShards(StoreContract):
    @pytest.fixture
    def case(self, tmp_path):
        array = numbered((8, 8, 8), np.uint16)
        write_array(tmp_path / "a.zarr", array, (2, 4, 4), shards=(8, 8, 4))
        return StoreCase(tmp_path / "a.zarr", array[None], np.eye(4))


class TestOmeZarr(StoreContract):
    @pytest.fixture(params=[2, 3], ids=["v0.4", "v0.5"])
    def case(self, tmp_path, request):
        array = numbered((2, 3, 5, 6, 7))
        images = multiscales("tczyx", ((1, 1, 2000, 500, 250), (0, 0, 30, 20, 10)))
        write_group(tmp_path / "a.ome.zarr", {"0": array}, images, request.param)
        expected = array.reshape(6, 5, 6, 7).transpose(0, 3, 2, 1)
        affine = scale(0.25, 0.5, 2, origin=(0.01, 0.02, 0.03))
        return StoreCase(tmp_path / "a.ome.zarr", expected, affine)


class TestNiftiZarr(StoreContract):
    @pytest.fixture(params=[2, 3], ids=["v2", "v3"])
    def case(self, tmp_path, request):
        array = numbered((2, 5, 6, 7))
        header = nibabel.Nifti1Image(array.transpose(3, 2, 1, 0), AFFINE).header.copy()
        header["scl_slope"], header["scl_inter"] = 0.5, -3
        # The OME metadata know no rotation: the NIfTI header has the word.
        images = multiscales("tzyx", ((1, 3, 2, 1.5), None), units=MILLIMETRES)
        raw = header.binaryblock + b"\1\0\0\0" + bytes(16)  # with an extension
        write_group(tmp_path / "a.nii.zarr", {"0": array}, images, request.param, raw)
        expected = (array.transpose(0, 3, 2, 1) * 0.5 - 3).astype(np.float32)
        return StoreCase(tmp_path / "a.nii.zarr", expected, AFFINE)


class TestRemoteZarr(StoreContract):
    spawnable = False  # fsspec's memory file system

    @pytest.fixture(params=[2, 3], ids=["v2", "v3"])
    def case(self, request):
        array = numbered((5, 6, 7))
        url = f"memory://remote/{request.param}.zarr"
        write_array(url, array, (2, 4, 4), request.param, overwrite=True)
        return StoreCase(url, array[None], np.eye(4))


class TestLocalStore(StoreContract):
    @pytest.fixture
    def case(self, tmp_path):
        array = numbered((5, 6, 7))
        write_array(tmp_path / "a.zarr", array, (2, 4, 4))
        return StoreCase(LocalStore(tmp_path / "a.zarr", read_only=True), array[None], np.eye(4))


class TestArrayInAGroup(StoreContract):
    @pytest.fixture
    def case(self, tmp_path):
        array = numbered((5, 6, 7))
        group = write_group(tmp_path / "a.zarr", {"deep/inside": array})
        return StoreCase(group["deep/inside"], array[None], np.eye(4))


class TestStoreInMemory(StoreContract):
    @pytest.fixture
    def case(self):
        array = numbered((15, 16, 17))
        store = MemoryStore()
        images = multiscales("zyx", ((2, 3, 4), None), units={})
        write_group(store, {"0": array}, images)
        return StoreCase(store, array.transpose(2, 1, 0)[None], scale(4, 3, 2))


class CountingStore(zarr.storage.WrapperStore):
    """Remembers which keys were asked for."""

    def __init__(self, store):
        super().__init__(store)
        self.asked = []

    def get(self, key, *args, **kwargs):
        self.asked.append(key)
        return super().get(key, *args, **kwargs)


@pytest.mark.parametrize(
    ("region", "chunks"),
    [
        (Region((4, 4, 4), (8, 8, 8)), 1),
        (Region((5, 6, 7), (6, 7, 8)), 1),
        (Region((3, 3, 3), (5, 5, 5)), 8),
        (Region((0, 0, 0), (12, 1, 1)), 3),
        (Region((5, 5, 5), (5, 9, 9)), 0),
    ],
)
def test_only_the_chunks_of_the_region_are_read(region, chunks):
    """No chunk beside the region is fetched, and the tally counts those that are."""
    store = MemoryStore()
    write_array(store, numbered((12, 12, 12)), (4, 4, 4))
    counting = CountingStore(store)
    volume = Volume(counting)
    assert volume.chunks == (4, 4, 4)
    counting.asked.clear()
    before = IO_COUNTERS.snapshot()

    volume.read(region)

    assert len([key for key in counting.asked if key.startswith("c/")]) == chunks
    assert (IO_COUNTERS - before).bytes_read == chunks * 4**3 * 2


def test_one_channel_reads_the_chunks_of_one_channel():
    """Indexing a channel leaves the others on the disk, folded axes included."""
    store = MemoryStore()
    array = numbered((3, 2, 4, 4, 4))
    write_group(store, {"0": array}, multiscales("tczyx", ((1, 1, 1, 1, 1), None)))
    counting = CountingStore(store)
    volume = Volume(counting)
    assert volume.shape == (6, 4, 4, 4)
    counting.asked.clear()

    part = volume[3, :, :, 0:1]

    assert part.numpy()[0, :, :, 0].tolist() == array[1, 1, 0].T.tolist()
    assert {key.split("/")[2] for key in counting.asked if key.startswith("0/c/")} == {"1"}


def test_a_v3_store_is_not_asked_for_v2_files(tmp_path, monkeypatch):
    """The format is known from the first document; probing others costs a round trip each."""
    write_group(
        tmp_path / "a.zarr", {"0": numbered((4, 4, 4))}, multiscales("zyx", ((1,) * 3, None))
    )
    asked = []
    real = LocalRanges.get

    def spy(self, key):
        asked.append(key)
        return real(self, key)

    monkeypatch.setattr(LocalRanges, "get", spy)

    assert Volume(tmp_path / "a.zarr").shape == (1, 4, 4, 4)
    assert asked
    assert [key for key in asked if "/." in f"/{key}"] == []


@FORMATS
def test_missing_chunks_hold_the_fill_value(tmp_path, version):
    """A chunk that was never written reads as the fill value."""
    made = zarr.create_array(
        tmp_path / "a.zarr",
        shape=(4, 4, 4),
        chunks=(2, 2, 2),
        dtype="i2",
        fill_value=7,
        zarr_format=version,
    )
    made[:2] = 1

    assert Volume(tmp_path / "a.zarr").numpy()[0, :, 0, 0].tolist() == [1, 1, 7, 7]


def test_two_axes_and_booleans(tmp_path):
    """A 2-D array has K = 1, and booleans stay what they are."""
    array = numbered((4, 6)) % 2 == 0
    write_array(tmp_path / "a.zarr", array, (2, 2))

    volume = Volume(tmp_path / "a.zarr", kind="label")

    assert (volume.shape, volume.chunks) == ((1, 4, 6, 1), (2, 2, 1))
    assert (volume.disk_dtype, volume.dtype) == (np.dtype(bool), np.dtype(bool))
    assert volume.numpy()[0, :, :, 0].tolist() == array.tolist()


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("qform", [0, 1])
def test_levels_of_a_nifti_pyramid_lie_on_each_other(tmp_path, level, qform):
    """A coarser level covers the same place, whether or not the header has a qform."""
    fine, coarse = numbered((4, 6, 8)), numbered((2, 3, 4))
    # Edge-aligned: the centre of a coarse voxel lies between those of two fine ones.
    images = multiscales("zyx", ((3, 2, 1.5), None), ((6, 4, 3), (1.5, 1, 0.75)), units=MILLIMETRES)
    image = nibabel.Nifti1Image(fine.transpose(2, 1, 0), None)
    image.set_sform(AFFINE, 1)
    image.set_qform(AFFINE, qform)
    raw = image.header.binaryblock
    write_group(tmp_path / "a.nii.zarr", {"0": fine, "1": coarse}, images, nifti=raw)

    volume = Volume(tmp_path / "a.nii.zarr", level=level)

    assert volume.numpy()[0].T.tolist() == (fine, coarse)[level].tolist()
    step = 2**level
    expected = AFFINE @ scale(step, step, step, origin=[(step - 1) / 2] * 3)
    np.testing.assert_allclose(volume.affine, expected, atol=1e-12)


def pyramid(path, fine, coarse, *scales, version="0.2"):
    """Write two levels with these scales along each axis, or without any."""
    levels = [((s,) * 3, None) for s in scales or (1, 1)]
    images = multiscales("zyx", *levels, units=MILLIMETRES, version=version)
    if not scales:
        for dataset in images[0]["datasets"]:
            del dataset["coordinateTransformations"]
    write_group(path, {"0": fine, "1": coarse}, images, version=2)
    return path


@pytest.mark.parametrize("size", [8, 9])
@pytest.mark.parametrize("version", ["0.1", "0.2", "0.3"])
def test_levels_without_a_scale_cover_the_same_box(tmp_path, size, version):
    """OME-Zarr had no transformations before 0.4: the shapes alone place a level."""
    fine, coarse = numbered((size,) * 3), numbered((4,) * 3)
    step = size / 4

    path = pyramid(tmp_path / "a.zarr", fine, coarse, version=version)

    affine = np.diag([step, step, step, 1])
    affine[:3, 3] = (step - 1) / 2
    np.testing.assert_allclose(Volume(path, level=1).affine, affine)
    np.testing.assert_allclose(Volume(path).affine, np.eye(4))


@pytest.mark.parametrize("version", ["0.3", "0.4"])
@pytest.mark.parametrize("scales", [(), (1, 1)], ids=["none", "equal"])
def test_a_level_without_its_own_scale_is_not_read_in_place_of_the_finest(
    tmp_path, scales, version
):
    """A ramp shows each voxel that is read at a place of the other grid."""
    fine = np.add.outer(np.arange(16.0), np.zeros((16, 16)))
    coarse = fine.reshape(8, 2, 8, 2, 8, 2).mean((1, 3, 5))
    path = pyramid(tmp_path / "a.zarr", fine, coarse, *scales, version=version)

    def patch(antialias):
        pipe = vp.from_cases([{"image": path}]).open_volume().spacing(2.0, antialias=antialias)
        (batch,) = pipe.batch_patches(1)
        return batch["image"]

    np.testing.assert_allclose(patch("level"), patch(True), atol=1e-4)


@pytest.mark.parametrize("scales", [(1, 1), (1, 3), (0.5, 0.25)])
def test_a_scale_that_contradicts_the_shapes_is_refused(tmp_path, scales):
    """The level has half as many voxels; an affine that is given places it."""
    path = pyramid(tmp_path / "a.zarr", numbered((8,) * 3), numbered((4,) * 3), *scales)

    with pytest.raises(BadHeader, match="has the shape 4x4x4, the finest level 8x8x8"):
        Volume(path, level=1).probe()
    given = np.diag([2.0, 2, 2, 1])
    np.testing.assert_array_equal(Volume(path, level=1, affine=given).affine, given)


def test_two_spacings_of_a_nifti_zarr(tmp_path):
    """OME-Zarr metadata that were edited do not move voxels, and are warned of."""
    array = numbered((4, 4, 4))
    images = multiscales("zyx", ((3, 2, 9), None), units=MILLIMETRES)
    raw = nibabel.Nifti1Image(array.transpose(2, 1, 0), AFFINE).header.binaryblock
    write_group(tmp_path / "a.nii.zarr", {"0": array}, images, nifti=raw)

    with pytest.warns(LikelyMistake, match="spacing 1.5x2x3 mm in its NIfTI header, 9x2x3 in OME"):
        affine = Volume(tmp_path / "a.nii.zarr").affine

    np.testing.assert_allclose(affine, AFFINE)


@pytest.mark.parametrize("axis", "xyz")
def test_an_axis_without_a_unit_among_others(tmp_path, axis):
    """A length without a unit beside micrometres could be 1000 times off; affine= opens it."""
    units = {name: unit for name, unit in SPATIAL.items() if name != axis}
    images = multiscales("zyx", ((3, 2, 1), None), units=units)
    write_group(tmp_path / "a.zarr", {"0": numbered((4, 4, 4))}, images)

    with pytest.raises(BadHeader, match=f"no unit for the axis {axis}, and units for others"):
        Volume(tmp_path / "a.zarr").affine  # noqa: B018

    given = Volume(tmp_path / "a.zarr", affine=np.diag([1.0, 2, 3, 1])).affine
    np.testing.assert_array_equal(given, np.diag([1.0, 2, 3, 1]))


@pytest.mark.parametrize("wrong", [0, -0.5])
@pytest.mark.parametrize("level", [0, 1])
def test_a_scale_that_is_no_length_is_refused(tmp_path, wrong, level):
    """Of any level; an affine that is given takes its place."""
    images = multiscales("zyx", ((2, wrong, 1), None), ((4, 1, 2), None))
    arrays = {"0": numbered((2, 4, 4)), "1": numbered((1, 2, 2))}
    write_group(tmp_path / "a.zarr", arrays, images)

    with pytest.raises(BadHeader, match=f"'y': {float(wrong)}"):
        Volume(tmp_path / "a.zarr", level=level).probe()
    given = scale(1, 2, 3)
    volume = Volume(tmp_path / "a.zarr", level=level, affine=given)
    np.testing.assert_array_equal(volume.affine, given)
    assert volume.numpy()[0].T.tolist() == arrays[str(level)].tolist()


@pytest.mark.parametrize("where", ["folder", "bucket"])
@pytest.mark.parametrize("version", [2, 3])
def test_a_level_by_its_own_path(tmp_path, where, version):
    """The place of its voxels is in the group: without affine= that is warned of."""
    store = tmp_path / "a.zarr" if where == "folder" else f"memory://levels/{version}.zarr"
    write_group(store, {"0": numbered((2, 4, 4))}, multiscales("zyx", ((2, 1, 1), None)), version)

    with pytest.warns(LikelyMistake, match=r"level-without-place: .* Open .*zarr with level="):
        assert Volume(f"{store}/0").spacing == (1, 1, 1)
    assert Volume(f"{store}/0", affine=scale(3, 2, 1)).spacing == (3, 2, 1)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("where", ["file", "bucket", "memory"])
def test_objects_of_zarr_are_warned_of_as_paths_are(tmp_path, where, version):
    """Of an array in its group, and of one whose store begins at the array itself."""
    array, names = numbered((2, 3, 4)), ("z", "y", "x")
    place = {"file": tmp_path / "a.zarr", "bucket": f"memory://objects/{version}.zarr"}.get(where)
    group = zarr.open_group(place or zarr.storage.MemoryStore(), mode="w", zarr_format=version)
    for key in ("ct", "pet/late"):
        folder = group.require_group(key.rpartition("/")[0]) if "/" in key else group
        for name, values in {key.rpartition("/")[2]: array, "x": np.arange(4.0)}.items():
            own = names if name != "x" else names[2:]
            how = {"dimension_names": own} if version == 3 else {}
            one = add_array(folder, name, data=values, **how)
            if version == 2:
                one.attrs["_ARRAY_DIMENSIONS"] = own
        alone = [zarr.open_array(f"{place}/{key}", mode="r")] if place else []
        for thing in (group[key], *alone):
            with pytest.warns(LikelyMistake, match="coordinates: zarr Array has .* along z, y, x"):
                assert Volume(thing).spacing == (1, 1, 1)
            assert Volume(thing, affine=scale(3, 2, 1)).spacing == (3, 2, 1)
    group.attrs["multiscales"] = multiscales("zyx", ((2, 1, 1), None))
    del group["x"]
    with pytest.warns(LikelyMistake, match="level-without-place: zarr Array .* Open its group"):
        assert Volume(group["ct"]).spacing == (1, 1, 1)


def test_a_flat_axis_without_a_unit(tmp_path):
    """Along one voxel no length can be wrong."""
    images = multiscales("zyx", ((1, 2, 1), None), units={"y": "micrometer", "x": "micrometer"})
    write_group(tmp_path / "a.zarr", {"0": numbered((1, 4, 4))}, images)

    np.testing.assert_allclose(Volume(tmp_path / "a.zarr").affine, scale(0.001, 0.002, 1))


@pytest.mark.parametrize(
    ("names", "shape"),
    [
        (("z", "y", "x"), (1, 4, 3, 2)),
        (("time", "depth", "Height"), (2, 1, 4, 3)),
        (("depth", "height", "width"), (1, 4, 3, 2)),
        (("channel", "y", "x"), (2, 4, 3, 1)),
        (("dim_0", "dim_1", "dim_2"), (1, 2, 3, 4)),
        ((None, "y", "x"), None),
        (("lat", "lon", "level"), None),
    ],
)
@pytest.mark.parametrize("kind", ["v2", "v3", "v2 in a bucket"])
def test_axes_have_names(tmp_path, monkeypatch, names, shape, kind):
    """Names of zarr 3 and of xarray in zarr 2 order the axes; unknown names are warned of."""
    monkeypatch.setattr(chunked_backend, "_AXES_ONCE", WarnOnce())
    array = numbered((2, 3, 4))
    store = f"memory://names/{abs(hash(names))}.zarr" if "bucket" in kind else tmp_path / "a.zarr"
    more = {} if "v2" in kind else {"dimension_names": names}
    made = write_array(store, array, array.shape, 2 if "v2" in kind else 3, **more, overwrite=True)
    if "v2" in kind:
        made.attrs["_ARRAY_DIMENSIONS"] = list(names)

    if shape is not None:
        assert Volume(store).shape == shape
        return
    with pytest.warns(LikelyMistake, match=r"unknown-axes: .* are read in stored order"):
        assert Volume(store).shape == (1, 2, 3, 4)
    assert Volume(store, axes="zyx").shape == (1, 4, 3, 2)


@pytest.mark.parametrize("version", [2, 3])
def test_scaled_values_in_a_bucket(version):
    """NetCDF's scale is refused behind a URL, too."""
    url = f"memory://scaled/{version}.zarr"
    made = write_array(url, numbered((2, 3, 4)), (2, 3, 4), version, overwrite=True)
    made.attrs["scale_factor"] = 0.5

    with pytest.raises(UnknownFormat, match=r"scale_factor = 0\.5, which changes its values"):
        Volume(url).numpy()


@pytest.mark.parametrize("answer", ["false", 0, [True]])
def test_a_completeness_that_is_no_truth_value(tmp_path, answer):
    """Text is no truth value: a lost shard would be read as zeros."""
    made = write_array(tmp_path / "a.zarr", numbered((2, 3, 4)), (2, 3, 4))
    made.attrs["voxpipe"] = {"complete": answer}

    with pytest.raises(BadHeader, match="is true or false, not"):
        Volume(tmp_path / "a.zarr").numpy()


def test_nifti_zarr_of_nifti2_big_endian_without_ome(tmp_path):
    """The header may be NIfTI-2 in either byte order, and the axes then are NIfTI's, reversed."""
    array = numbered((2, 5, 6, 7), ">i2")
    header = nibabel.Nifti2Header(endianness=">")
    header.set_data_shape((7, 6, 5, 1, 2))
    header.set_sform(AFFINE, 1)
    header.set_xyzt_units("micron")
    write_group(tmp_path / "a.nii.zarr", {"0": array}, version=2, nifti=header.binaryblock)

    volume = Volume(tmp_path / "a.nii.zarr")

    assert volume.numpy().tolist() == array.transpose(0, 3, 2, 1).tolist()
    assert volume.disk_dtype == np.dtype(">i2")
    np.testing.assert_allclose(volume.affine[:3], AFFINE[:3] * 0.001)


def test_transformations_of_the_image_act_after_those_of_the_level(tmp_path):
    """A scale of the whole image multiplies scale and translation of each level."""
    whole = {"coordinateTransformations": [{"type": "scale", "scale": [10, 10, 10]}]}
    images = multiscales("zyx", ((3, 2, 1), (6, 5, 4)), units=MILLIMETRES | {"z": "meter"}, **whole)
    write_group(tmp_path / "a.zarr", {"0": numbered((2, 2, 2))}, images)

    affine = Volume(tmp_path / "a.zarr").affine

    np.testing.assert_allclose(affine, scale(10, 20, 30000, origin=(40, 50, 60000)))


def test_old_ome_zarr_without_axes(tmp_path):
    """Before version 0.3 the axes were always t, c, z, y, x."""
    array = numbered((1, 2, 3, 4, 5))
    write_group(tmp_path / "a.zarr", {"0": array}, [{"datasets": [{"path": "0"}]}], version=2)

    assert Volume(tmp_path / "a.zarr").shape == (2, 5, 4, 3)


def image_of_06(axes="zyx", systems=("intrinsic",), **change):
    """Return the metadata of one image of OME-Zarr 0.6 in micrometres."""
    records = [
        {"name": a, "type": "space", "unit": "micrometer"} if a in SPATIAL else {"name": a}
        for a in axes
    ]
    place = {"input": {"path": "0"}, "output": {"name": "intrinsic"}}
    sizes = {"z": 2000, "y": 500, "x": 250}
    step = {"type": "scale", "scale": [sizes.get(a, 1) for a in axes], **place} | change
    return {
        "coordinateSystems": [{"name": name, "axes": records} for name in systems],
        "datasets": [{"path": "0", "coordinateTransformations": [step]}],
    }


def write_ome(path, array, image, version="0.6"):
    """Write a group of one image, whose metadata are given."""
    group = write_group(path, {"0": array})
    group.attrs["ome"] = {"version": version, "multiscales": [image]}
    return Volume(path)


@pytest.mark.parametrize("axes", ["zyx", "xyz", "tczyx", "tcxyz"])
def test_ome_zarr_06(tmp_path, axes):
    """The coordinate system in which the level lies names the axes and their units."""
    lengths = {"t": 2, "c": 1, "z": 4, "y": 5, "x": 6}
    array = numbered(tuple(lengths[a] for a in axes))
    volume = write_ome(tmp_path / "a.zarr", array, image_of_06(axes, ("world", "intrinsic")))

    assert volume.spacing == (0.25, 0.5, 2)
    order = [axes.index(a) for a in axes if a not in SPATIAL] + [axes.index(a) for a in "xyz"]
    np.testing.assert_array_equal(volume.numpy(), array.transpose(order).reshape(-1, 6, 5, 4))


def test_a_sequence_of_ome_zarr_06(tmp_path):
    """Its transformations act one after another, as ngff-zarr writes them."""
    scaled = {"type": "scale", "scale": [2000, 500, 250]}
    moved = {"type": "translation", "translation": [30, 20, 10]}
    inner = {"type": "sequence", "transformations": [scaled, {"type": "identity"}]}
    image = image_of_06(type="sequence", transformations=[inner, moved], output="intrinsic")
    volume = write_ome(tmp_path / "a.zarr", numbered((4, 4, 4)), image, "0.6.dev3")

    np.testing.assert_allclose(volume.affine, scale(0.25, 0.5, 2, origin=(0.01, 0.02, 0.03)))


@pytest.mark.parametrize(
    ("version", "image", "message"),
    [
        ("0.7", image_of_06(), r"OME-Zarr 0\.7.*0\.1 to 0\.6"),
        ("0.10", image_of_06(), r"OME-Zarr 0\.10"),
        ("1.0", image_of_06(), r"OME-Zarr 1\.0"),
        ("0.5", image_of_06(), "coordinateSystems came with version 0.6"),
        ("0.6", multiscales("zyx", ((1, 1, 1), None))[0], "output"),
        ("0.6", image_of_06(output="world"), "no coordinate system is called 'world'"),
        *(
            ("0.6", image_of_06(type=kind), f"type '{kind}' is not supported")
            for kind in ("rotation", "affine", "mapAxis", "byDimension", "displacements")
        ),
        (
            "0.6",
            image_of_06() | {"coordinateTransformations": [{"type": "affine"}]},
            "'affine' of the whole image",
        ),
        ("0.6", image_of_06(scale=[1, 2]), "not 3 numbers"),
        ("0.5", multiscales("zyx", ((1, 1, 1), None), units={"x": "lightyear"})[0], "lightyear"),
    ],
)
def test_other_ome_zarr_is_refused_by_name(tmp_path, version, image, message):
    """A newer version, and a transformation that is not read."""
    with pytest.raises(BadHeader, match=message):
        _ = write_ome(tmp_path / "a.zarr", numbered((4, 4, 4)), image, version).shape


def test_anatomical_orientations_of_axes(tmp_path):
    """Of RFC 4: an image in LPS lies at the same place in RAS+."""
    image = multiscales("zyx", ((3, 2, 1), (30, 20, 10)), units={})[0]
    values = ("inferior-to-superior", "anterior-to-posterior", "right-to-left")
    for entry, value in zip(image["axes"], values, strict=True):
        entry["orientation"] = {"type": "anatomical", "value": value}
    volume = write_ome(tmp_path / "a.zarr", numbered((4, 4, 4)), image, "0.5")
    np.testing.assert_array_equal(volume.affine, scale(-1, -2, 3, origin=(-10, -20, 30)))

    image["axes"][0]["orientation"]["value"] = "left-to-right"
    with pytest.raises(BadHeader, match="axis z with the orientation 'left-to-right'"):
        _ = write_ome(tmp_path / "b.zarr", numbered((4, 4, 4)), image, "0.5").shape


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([{"axes": [{"name": "z"}], "datasets": [{"path": "0"}]}], "axes"),
        ([{"axes": "zyx"}], "datasets"),
        (multiscales("zyx", ((1, 2), None)), "not 3 numbers"),
        (multiscales("zyx", ((1, 2, float("nan")), None)), "not 3 numbers"),
        (multiscales("czyx", ((1, 1, 1, 1), None)), "3 axes.*name 4"),
        (["what"], "make no sense"),
    ],
)
def test_senseless_metadata_are_refused(tmp_path, images, message):
    """OME metadata that contradict themselves or the array are a BadHeader."""
    write_group(tmp_path / "a.zarr", {"0": numbered((4, 4, 4))}, images)

    with pytest.raises(BadHeader, match=message):
        _ = Volume(tmp_path / "a.zarr").shape


def test_a_level_that_is_not_there(tmp_path):
    """The allowed levels are named; an unknown option is one too many."""
    write_group(
        tmp_path / "a.zarr", {"0": numbered((4, 4, 4))}, multiscales("zyx", ((1,) * 3, None))
    )

    fsspec.filesystem("memory").put(str(tmp_path / "a.zarr"), "/remote/l.zarr", recursive=True)

    for place in (tmp_path / "a.zarr", "memory://remote/l.zarr"):
        assert Volume(place, level=0).shape == (1, 4, 4, 4)
        with pytest.raises(ValueError, match="no level 1, but only level 0"):
            _ = Volume(place, level=1).shape
        with pytest.raises(ValueError, match="no level False"):
            _ = Volume(place, level=False).shape
        with pytest.raises(TypeError, match="lvel"):
            _ = Volume(place, lvel=1).shape


def test_a_group_without_metadata(tmp_path):
    """One array in a group is the volume; of several, the user has to choose."""
    write_group(tmp_path / "a.zarr", {"ct": numbered((4, 5, 6))})
    write_group(tmp_path / "b.zarr", {"ct": numbered((4, 5, 6)), "mr": numbered((4, 5, 6))})

    assert Volume(tmp_path / "a.zarr").shape == (1, 4, 5, 6)
    with pytest.raises(UnknownFormat, match="ct, mr"):
        _ = Volume(tmp_path / "b.zarr").shape
    assert Volume(tmp_path / "b.zarr" / "mr").shape == (1, 4, 5, 6)


def ome_attrs(version, **attrs):
    return {"ome": {"version": "0.5"} | attrs} if version == 3 else attrs


def write_collections(folder, version):
    """Write an image, a plate of one well with two fields, and two series of bioformats2raw."""
    images = multiscales("zyx", ((3, 2, 1), None))
    places = ["one", "plate/A/1/0", "plate/A/1/1", "bf/0", "bf/1"]
    for number, place in enumerate(places):
        path = folder / f"{place.partition('/')[0]}.zarr" / place.partition("/")[2]
        write_group(path, {"0": numbered((4, 4, 4)) + number}, images, version)
    parts = {
        "plate.zarr": {"plate": {"wells": [{"path": "A/1"}]}},
        "plate.zarr/A": {},
        "plate.zarr/A/1": {"well": {"images": [{"path": "0"}, {"path": "1"}]}},
        "bf.zarr": {"bioformats2raw.layout": 3},
        "bf.zarr/OME": {"series": ["1", "0"]},
    }
    for place, attrs in parts.items():
        group = zarr.open_group(folder / place, mode="a", zarr_format=version)
        group.attrs.update(ome_attrs(version, **attrs))


def test_an_array_of_a_group_that_was_written_anew(tmp_path):
    """Its own metadata tell, those of the group being the same."""
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=3)
    for dtype in ("i4", "f4"):
        add_array(group, "0", data=np.full((2, 4, 8), 7, dtype), overwrite=True)
        found = Volume(tmp_path / "a.zarr").numpy()
        assert (found.dtype, set(found.ravel().tolist())) == (np.dtype(dtype), {7})


@FORMATS
@pytest.mark.parametrize("far", [False, True])
def test_images_of_plates_and_series(tmp_path, version, far):
    """The error names them, and a search finds each of them, and nothing else."""
    write_collections(tmp_path, version)
    root = str(tmp_path)
    if far:
        root = f"memory://plates/{tmp_path.name}"
        fsspec.filesystem("memory").put(str(tmp_path), f"/plates/{tmp_path.name}", recursive=True)
    for place, names in (
        ("plate.zarr", "A/1/0, A/1/1"),
        ("plate.zarr/A/1", "0, 1"),
        ("bf.zarr", "1, 0"),
    ):
        with pytest.raises(UnknownFormat, match=rf"{place} is no image. Images in it: {names}"):
            _ = Volume(f"{root}/{place}").shape

    found = find_volumes(root)
    assert {case: set(volumes) for case, volumes in found.items()} == {
        "one": {"image"},
        "plate.zarr/A/1": {"0", "1"},
        "bf.zarr": {"0", "1"},
    }
    values = {
        int(Volume(place)[0, 0, 0, 0].numpy().item())
        for volumes in found.values()
        for place in volumes.values()
    }
    assert len(values) == 5
    if not far:
        assert not check(tmp_path).bad
        assert str(check(tmp_path / "plate.zarr")).endswith("2 checked, 0 bad")


def test_series_without_a_list_are_counted(tmp_path):
    """bioformats2raw may leave out the group OME."""
    write_collections(tmp_path, 2)
    shutil.rmtree(tmp_path / "bf.zarr" / "OME")

    with pytest.raises(UnknownFormat, match=r"Images in it: 0, 1\.\s+Give .*bf\.zarr/0"):
        _ = Volume(tmp_path / "bf.zarr").shape


def test_n5_and_references_at_the_root(tmp_path):
    """N5 is named, with what to do; references of kerchunk are read from the root of their URL."""
    array = numbered((4, 4, 4))
    write_array(tmp_path / "a.zarr", array, (4, 4, 4), 2, compressors=None)
    (tmp_path / "a.n5").mkdir()
    (tmp_path / "a.n5" / "attributes.json").write_text('{"n5": "2.5.0"}')
    document = (tmp_path / "a.zarr" / ".zarray").read_text()
    keys = {".zarray": document, "0.0.0": [str(tmp_path / "a.zarr" / "0.0.0")]}
    (tmp_path / "r.json").write_text(json.dumps({"version": 1, "refs": keys}))

    with pytest.raises(UnknownFormat, match=r"a\.n5 is an N5 container[\s\S]*to zarr"):
        _ = Volume(tmp_path / "a.n5").shape
    volume = Volume("reference://", storage_options={"fo": str(tmp_path / "r.json")})
    np.testing.assert_array_equal(volume.numpy()[0], array)


def test_what_is_no_zarr(tmp_path):
    """A missing folder, an empty one, a file and a broken document are told apart."""
    (tmp_path / "empty.zarr").mkdir()
    (tmp_path / "plain").mkdir()
    (tmp_path / "file.zarr").write_bytes(b"")
    (tmp_path / "broken.zarr").mkdir()
    (tmp_path / "broken.zarr" / "zarr.json").write_text("{")

    for name, error, message in (
        ("none.zarr", VolumeNotFound, "no folder"),
        ("empty.zarr", UnknownFormat, "folder without zarr.json"),
        ("plain", UnknownFormat, "folder without zarr.json"),
        ("file.zarr", UnknownFormat, "is a file"),
        ("broken.zarr", BadHeader, "zarr.json"),
    ):
        with pytest.raises(error, match=message):
            _ = Volume(tmp_path / name).shape
    with pytest.raises(VolumeNotFound, match="memory://nowhere"):
        _ = Volume("memory://nowhere/a.zarr").shape
    with pytest.raises(VolumeNotFound, match="MemoryStore"):
        _ = Volume(MemoryStore()).shape


def test_a_damaged_chunk_is_named(tmp_path):
    """An error while decoding says which region of which volume it was, and in which file."""
    write_array(tmp_path / "a.zarr", numbered((4, 4, 4)), (2, 2, 2))
    (tmp_path / "a.zarr" / "c" / "1" / "1" / "1").write_bytes(b"no zstd")
    volume = Volume(tmp_path / "a.zarr")

    assert volume.read(Region((0, 0, 0), (2, 2, 2))).array.shape == (1, 2, 2, 2)
    with pytest.raises(CorruptVolume, match=r"\[2:4, 2:4, 2:4\] of .*a\.zarr .*c/1/1/1"):
        volume.read(Region((2, 2, 2), (4, 4, 4)))


def test_a_url_that_was_written_again():
    """What was read to open it no longer holds; an error says so, and the next volume reads it."""
    url = "memory://remote/again.zarr"
    write_array(url, numbered((8, 8, 8)), (8, 8, 8), overwrite=True)
    volume = Volume(url)
    assert volume.shape == (1, 8, 8, 8)
    write_array(url, numbered((4, 4, 4)), (4, 4, 4), overwrite=True)

    with pytest.raises(CorruptVolume, match=r"written again.*zarr\.json[\s\S]*new Volume"):
        volume.numpy()

    again = Volume(url)
    assert np.array_equal(again.numpy()[0], numbered((4, 4, 4)))
    write_array(url, numbered((4, 4, 4)) + 1, (4, 4, 4), overwrite=True)
    assert np.array_equal(Volume(url).numpy()[0], numbered((4, 4, 4)) + 1)


def test_a_damaged_chunk_behind_a_url():
    """The metadata hold, so the error is about the chunk; copied again, it is read."""
    url = "memory://remote/damaged.zarr"
    write_array(url, numbered((4, 4, 4)), (4, 4, 4), overwrite=True)
    system = fsspec.filesystem("memory")
    whole = system.cat_file("/remote/damaged.zarr/c/0/0/0")
    system.pipe_file("/remote/damaged.zarr/c/0/0/0", b"no zstd")

    with pytest.raises(CorruptVolume, match=r"cannot be decoded, its bytes in c/0/0/0"):
        Volume(url).numpy()

    system.pipe_file("/remote/damaged.zarr/c/0/0/0", whole)
    assert np.array_equal(Volume(url).numpy()[0], numbered((4, 4, 4)))


def test_a_url_in_a_folder_of_another_name(monkeypatch):
    """A URL without a suffix is looked into."""
    write_array("memory://remote/volume", numbered((4, 5, 6)), (2, 2, 2), overwrite=True)

    assert Volume("memory://remote/volume").shape == (1, 4, 5, 6)
    assert zarr_nodes.METADATA_FILES[0] in str(fsspec.filesystem("memory").ls("/remote/volume"))


def test_pair_magic_does_not_matter_in_zarr(tmp_path):
    """The header in a group has no voxels behind it: offset and magic are not looked at."""
    raw = crafted((7, 6, 5), offset=0.0, magic=b"ni1\0")[:348]
    write_group(tmp_path / "a.nii.zarr", {"0": numbered((5, 6, 7))}, nifti=raw)

    assert Volume(tmp_path / "a.nii.zarr").spacing == (2, 3, 4)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(("key", "neutral"), [("scale_factor", 1.0), ("add_offset", 0)])
def test_conventions_of_netcdf_in_zarr_are_refused(tmp_path, version, key, neutral):
    """Files of xarray have them as attributes; values are others than the stored numbers."""
    for name, value in (("a", 0.5), ("b", neutral)):
        data, attributes = np.ones((4, 4, 4), np.int16), {key: value}
        path = tmp_path / f"{name}.zarr"
        zarr.create_array(path, data=data, zarr_format=version, attributes=attributes)

    with pytest.raises(UnknownFormat, match=rf"a\.zarr has the attribute {key} = 0\.5"):
        Volume(tmp_path / "a.zarr").probe()
    assert Volume(tmp_path / "b.zarr").numpy().all()


@pytest.mark.parametrize("key", ["_FillValue", "missing_value"])
@pytest.mark.parametrize(
    ("value", "dtype", "is_warned"),
    [(-1, "i2", True), (0, "u1", True), (-1.0, "f4", True), (float("nan"), "f4", False)],
)
def test_numbers_that_xarray_reads_as_missing(tmp_path, key, value, dtype, is_warned):
    """They are voxels here, with a warning; NaN is NaN in both."""
    xarray = pytest.importorskip("xarray")
    data = np.arange(24).reshape(2, 3, 4).astype(dtype)
    data[0, 0, 0] = np.array(value).astype(dtype)
    image = xarray.DataArray(data, dims=("z", "y", "x"), name="img")
    image.encoding = {key: np.dtype(dtype).type(value)}
    image.to_dataset().to_zarr(tmp_path / "a.zarr", zarr_format=3, consolidated=False)
    read = xarray.open_zarr(tmp_path / "a.zarr", chunks=None, consolidated=False)["img"].values

    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        found = Volume(tmp_path / "a.zarr/img").numpy()[0].T

    assert np.isnan(read[0, 0, 0])
    assert np.array_equal(found, data, equal_nan=dtype == "f4")
    assert [str(note.message).partition(":")[0] for note in notes] == ["missing-values"] * is_warned


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("way", ["path", "object"])
@pytest.mark.parametrize(
    ("attributes", "names"),
    [
        ({"resolution": [40, 4, 4], "offset": [0, 80, 0]}, "resolution, offset"),  # of Daisy
        ({"pixelResolution": {"dimensions": [4, 4, 40], "unit": "nm"}}, "pixelResolution"),  # of N5
        ({"voxel_size": 0.5}, "voxel_size"),
        ({"resolution": [1, 1, 1], "offset": [0, 0, 0], "name": "raw"}, ""),
    ],
)
def test_places_in_attributes(tmp_path, version, way, attributes, names):
    """Sizes and offsets of other programs are warned of, until ``affine=`` is given."""
    array = zarr.create_array(
        tmp_path / "a.zarr", shape=(2, 3, 4), dtype="u1", zarr_format=version, attributes=attributes
    )
    array[:] = 1
    source = tmp_path / "a.zarr" if way == "path" else array

    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        assert Volume(source).spacing == (1, 1, 1)
        assert Volume(source, affine=np.diag([4.0, 4, 40, 1])).spacing == (4, 4, 40)

    texts = [str(note.message) for note in notes]
    assert [f"has attributes {names}, which are not read" in text for text in texts] == [
        True
    ] * bool(names)


@pytest.mark.parametrize("way", ["path", "object"])
@pytest.mark.parametrize("step", [2.0, 0.0])
def test_units_and_steps_of_an_open_group(tmp_path, way, step):
    """A group of zarr-python has the unit of its file, and takes ``affine=`` for nonsense."""
    axes = [{"name": axis, "type": "space", "unit": "micrometer"} for axis in "zyx"]
    scale = [{"type": "scale", "scale": [step, 1.0, 1.0]}]
    levels = [{"path": "0", "coordinateTransformations": scale}]
    group = zarr.create_group(tmp_path / "a.ome.zarr")
    group.create_array("0", shape=(2, 3, 4), dtype="u1")[:] = 1
    group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": levels}]}
    source = group if way == "object" else tmp_path / "a.ome.zarr"

    if step:
        volume = Volume(source)
        volume.probe()
        assert "1 x 1 x 2 um" in str(volume)
    else:
        with pytest.raises(BadHeader, match=r"above 0.*\n.*affine="):
            _ = Volume(source).spacing
    assert Volume(source, affine=np.diag([4.0, 4, 40, 1])).spacing == (4, 4, 40)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("group", ["", "deep/"])
def test_coordinates_of_xarray(tmp_path, version, group):
    """The spacing that xarray stores as arrays is warned of, until ``affine=`` is given."""
    xarray = pytest.importorskip("xarray")
    data, steps = np.arange(24, dtype="i2").reshape(2, 3, 4), {"z": 4.0, "y": 3.0, "x": 2.0}
    coords = {axis: np.arange(n) * steps[axis] for axis, n in zip("zyx", data.shape, strict=True)}
    dataset = xarray.Dataset({"img": (("z", "y", "x"), data)}, coords=coords)
    how = {"zarr_format": version, "consolidated": False}
    dataset.to_zarr(tmp_path / "a.zarr", group=group or None, **how)
    dataset.drop_vars([*"zyx"]).to_zarr(tmp_path / "b.zarr", group=group or None, **how)
    affine = np.diag([2.0, 3, 4, 1])

    with pytest.warns(LikelyMistake, match=r"coordinates: .* along z, y, x, .*affine="):
        assert Volume(tmp_path / f"a.zarr/{group}img").spacing == (1, 1, 1)
    volume = Volume(tmp_path / f"a.zarr/{group}img", affine=affine)
    assert volume.spacing == (2, 3, 4)
    how = {"group": group or None, "chunks": None, "consolidated": False}
    read = xarray.open_zarr(tmp_path / "a.zarr", **how)["img"]
    assert np.array_equal(volume.numpy()[0].T, read)
    assert Volume(tmp_path / f"b.zarr/{group}img").spacing == (1, 1, 1)


@pytest.mark.parametrize(
    ("names", "fits"),
    [
        (("c", "z", "y", "x"), True),
        (("channel", "Depth", "height", "width"), True),
        (("dim_0", None, "y", "x"), True),
        (("c", "x", "y", "z"), False),
        (("c", "z", "x", "y"), False),
        ((None, "c", "y", "x"), False),
        (("time", "z", "y", "x"), False),
    ],
)
@pytest.mark.parametrize("version", [2, 3])
def test_names_of_axes_in_two_places(tmp_path, names, fits, version):
    """OME-Zarr's axes have to be those of the array: zarr's names and xarray's."""
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=version)
    more = {"dimension_names": names} if version == 3 else {}
    data = numbered((2, 3, 4, 5))
    array = add_array(group, "0", data=data, **more)
    if version == 2:
        array.attrs["_ARRAY_DIMENSIONS"] = names
    axes = [{"name": "c", "type": "channel"}, *({"name": n, "type": "space"} for n in "zyx")]
    dataset = {"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [1, 4, 3, 2]}]}
    image = {"axes": axes, "datasets": [dataset]}
    ome = {"version": "0.5", "multiscales": [image]}
    group.attrs.update({"ome": ome} if version == 3 else {"multiscales": [image]})

    if fits:
        assert np.array_equal(Volume(tmp_path / "a.zarr").numpy(), data.transpose(0, 3, 2, 1))
        return
    with pytest.raises(
        BadHeader, match=r"a\.zarr name its axes c, z, y, x, and its array (.|\n)*axes="
    ):
        _ = Volume(tmp_path / "a.zarr").shape
    volume = Volume(tmp_path / "a.zarr/0", axes="czyx", affine=np.diag([2.0, 3, 4, 1]))
    assert np.array_equal(
        volume.numpy(), zarr.open_array(tmp_path / "a.zarr/0")[...].transpose(0, 3, 2, 1)
    )


def ome_image(folder, axis, kind, step):
    """Write an OME-Zarr of three axes with zarr-python; the first has a name and a type."""
    group = zarr.open_group(folder, mode="w", zarr_format=2)
    add_array(group, "0", data=numbered((3, 4, 5)))
    axes = [{"name": name, "type": "space", "unit": "millimeter"} for name in (axis, "y", "x")]
    axes[0]["type"] = kind
    dataset = {"path": "0", "coordinateTransformations": [step]}
    image = {"version": "0.4", "axes": axes, "datasets": [dataset]}
    group.attrs["multiscales"] = [image]
    return folder


SCALE = {"type": "scale", "scale": [2, 0.5, 0.5]}


@pytest.mark.parametrize("axis", ["z", "depth", "slice"])
def test_an_axis_of_space_is_x_y_or_z(tmp_path, axis):
    """The type decides: "depth" and "slice" of space are z."""
    volume = Volume(ome_image(tmp_path / "a.zarr", axis, "space", SCALE))

    assert (volume.shape, volume.spacing) == ((1, 5, 4, 3), (0.5, 0.5, 2))


@pytest.mark.parametrize(("axis", "kind"), [("w", "space"), ("z", "channel")])
def test_a_type_that_does_not_fit_its_axis_is_refused(tmp_path, axis, kind):
    """Neither a channel called z nor an unknown axis of space is guessed."""
    with pytest.raises(BadHeader, match=f"the axis '{axis}' has the type '{kind}'"):
        _ = Volume(ome_image(tmp_path / "a.zarr", axis, kind, SCALE)).shape


@pytest.mark.parametrize("kind", ["affine", "rotation", "path"])
def test_a_place_that_is_not_understood_can_be_given(tmp_path, kind):
    """The advice of the error helps."""
    folder = ome_image(tmp_path / "a.zarr", "z", "space", {"type": kind, kind: [[1, 0, 0, 0]]})

    with pytest.raises(BadHeader, match=r"pass affine="):
        _ = Volume(folder).shape
    assert Volume(folder, affine=np.diag([1, 2, 3, 1])).spacing == (1, 2, 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"endian": "Little"}, "endian is 'little' or 'big'"),
        ({"endian": None}, "endian is 'little' or 'big'"),
        ({"fill_value": 70000}, "fill_value 70000 is no"),
        ({"fill_value": 1.5}, "fill_value 1.5 is no"),
        ({"dimension_names": ["x"]}, "1 dimension_names of 3 axes"),
    ],
)
def test_metadata_that_zarr_python_refuses(tmp_path, change, words):
    """Neither another byte order nor a wrapped fill value is guessed."""
    zarr.create_array(tmp_path / "a.zarr", data=numbered((2, 2, 2)), compressors=None)
    file = tmp_path / "a.zarr" / "zarr.json"
    document = json.loads(file.read_text())
    endian = change.pop("endian", "little")
    document["codecs"][0]["configuration"]["endian"] = endian
    file.write_text(json.dumps({**document, **change}))

    with pytest.raises(BadHeader, match=words):
        _ = Volume(tmp_path / "a.zarr").shape


def test_attributes_of_a_v2_array_in_an_archive_or_a_bucket(tmp_path):
    """A scale is refused, and names of axes count, as in a folder."""
    folder = tmp_path / "g.zarr"
    array = add_array(
        zarr.open_group(folder, mode="w", zarr_format=2), "ct", data=numbered((2, 3, 4))
    )
    array.attrs["_ARRAY_DIMENSIONS"] = ["z", "y", "x"]
    shutil.make_archive(folder, "zip", folder)
    fsspec.filesystem("memory").put(str(folder), "/attributes/g.zarr", recursive=True)
    places = [folder, tmp_path / "g.zarr.zip", "memory://attributes/g.zarr"]

    assert [Volume(place).shape for place in places] == [(1, 4, 3, 2)] * 3
