"""OME-TIFF and OME-Zarr written by save, convert and predict, opened by tifffile and zarr."""

from contextlib import nullcontext

import fsspec
import numpy as np
import pytest
import tifffile
import torch
import zarr
from ome_files import write_image

import voxpipe as vp
from voxpipe.core.errors import (
    BadHeader,
    DestinationExists,
    LikelyMistake,
    SampleError,
    UnknownFormat,
    VolumeError,
)
from voxpipe.volumes.conversion.ome_group import reduce_blocks

# Movies are opened whole: the warning has tests of its own.
pytestmark = pytest.mark.filterwarnings("ignore:times-and-channels")

SHAPE = 2, 600, 520, 3
VOXELS = np.random.default_rng(0).integers(0, 999, SHAPE).astype("u2")
STORED = VOXELS.transpose(0, 3, 2, 1)
AFFINE = np.diag([0.0005, 0.0005, 0.002, 1.0])
LABELS = (VOXELS[:1] > 500).astype("u1") * 7


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """Return the paths of an OME-TIFF and an OME-Zarr of one image in micrometres."""
    folder = tmp_path_factory.mktemp("written")
    source = folder / "source.ome.tif"
    size = {"PhysicalSizeX": 0.5, "PhysicalSizeY": 0.5, "PhysicalSizeZ": 2.0}
    units = {f"PhysicalSize{axis}Unit": "µm" for axis in "XYZ"}
    metadata = {"axes": "CZYX", **size, **units}
    tifffile.imwrite(source, STORED, metadata=metadata, photometric="minisblack")
    vp.convert(source, folder / "image.ome.tif")
    vp.convert(source, folder / "image.ome.zarr")
    return folder


def means(voxels):
    """Return the means of blocks of 2 x 2, rounded as by NumPy."""
    c, z, y, x = voxels.shape
    blocks = voxels.astype(np.float64).reshape(c, z, y // 2, 2, x // 2, 2)
    return np.rint(blocks.mean((3, 5)))


def test_an_ome_tiff_is_read_by_tifffile(image):
    """Voxels, axes, levels as SubIFDs, sizes with their unit."""
    with tifffile.TiffFile(image / "image.ome.tif") as file:
        series = file.series[0]
        pixels = tifffile.xml2dict(file.ome_metadata)["OME"]["Image"]["Pixels"]
        shapes = [level.shape for level in series.levels]
        coarse = series.levels[1].asarray()

        np.testing.assert_array_equal(series.asarray(), STORED)
    assert series.axes == "CZYX"
    assert shapes == [(2, 3, 520, 600), (2, 3, 260, 300), (2, 3, 130, 150)]
    assert [pixels[f"PhysicalSize{axis}"] for axis in "XYZ"] == [0.5, 0.5, 2.0]
    assert {pixels[f"PhysicalSize{axis}Unit"] for axis in "XYZ"} == {"µm"}
    np.testing.assert_array_equal(coarse, means(STORED))


def test_an_ome_tiff_is_read_by_us(image):
    """Each level has its place; a region decodes tiles."""
    volume = vp.Volume(image / "image.ome.tif")
    coarse = vp.Volume(image / "image.ome.tif", level=1)

    np.testing.assert_array_equal(volume.numpy(), VOXELS)
    assert volume.lengths == "0.5 x 0.5 x 2 um"
    assert volume.chunks == (256, 256, 1)
    np.testing.assert_allclose(coarse.affine[:3, 3], [0.00025, 0.00025, 0])
    np.testing.assert_array_equal(coarse.numpy().transpose(0, 3, 2, 1), means(STORED))


def test_an_ome_zarr_is_read_by_zarr(image):
    """Levels and their scales, in micrometres; the means of blocks."""
    group = zarr.open_group(image / "image.ome.zarr", mode="r")
    (multiscale,) = group.attrs["ome"]["multiscales"]

    np.testing.assert_array_equal(group["0"][:], STORED)
    np.testing.assert_array_equal(group["1"][:], means(STORED))
    assert [dataset["path"] for dataset in multiscale["datasets"]] == ["0", "1", "2"]
    assert {axis.get("unit") for axis in multiscale["axes"]} == {None, "micrometer"}
    scale, shift = multiscale["datasets"][1]["coordinateTransformations"]
    np.testing.assert_allclose(scale["scale"], [1, 2, 1, 1])
    np.testing.assert_allclose(shift["translation"], [0, 0, 0.25, 0.25])
    assert group["1"].metadata.dimension_names == ("c", "z", "y", "x")


def test_an_ome_zarr_is_read_by_us(image):
    """Both formats place each level at the same spot."""
    for level in range(3):
        one, other = (vp.Volume(image / f"image.ome.{end}", level=level) for end in ("zarr", "tif"))

        np.testing.assert_array_equal(one.numpy(), other.numpy())
        np.testing.assert_allclose(one.affine, other.affine)


def test_arrays_without_an_affine_have_no_millimetres(tmp_path):
    """Neither the user nor a file has said how long a voxel is."""
    vp.save(tmp_path / "a.ome.zarr", np.zeros((4, 5, 6), "u1"))
    vp.save(tmp_path / "a.ome.tif", np.zeros((4, 5, 6), "u1"))

    document = zarr.open_group(tmp_path / "a.ome.zarr", mode="r").attrs["ome"]
    assert [axis.get("unit") for axis in document["multiscales"][0]["axes"]] == [None] * 3
    with tifffile.TiffFile(tmp_path / "a.ome.tif") as file:
        assert 'PhysicalSizeXUnit="pixel"' in file.ome_metadata
    for name in ("a.ome.zarr", "a.ome.tif"):
        assert vp.Volume(tmp_path / name).lengths == "1 x 1 x 1 px"


def test_the_number_of_levels_is_an_argument(tmp_path):
    """By name or by levels=; other formats refuse it."""
    volume = vp.Volume(VOXELS[:, :64, :64], affine=AFFINE)
    vp.save(tmp_path / "a.zarr", volume, levels=3)
    vp.save(tmp_path / "b.ome.zarr", volume)
    vp.save(tmp_path / "c.ome.tif", volume, levels=2)

    assert {*zarr.open_group(tmp_path / "a.zarr", mode="r")} == {"nifti", "0", "1", "2"}
    assert {*zarr.open_group(tmp_path / "b.ome.zarr", mode="r")} == {"nifti", "0"}
    with tifffile.TiffFile(tmp_path / "c.ome.tif") as file:
        assert len(file.series[0].levels) == 2
    with pytest.raises(SampleError, match=r"levels= is given for \.nii"):
        vp.save(tmp_path / "d.nii", volume, levels=2)
    with pytest.raises(SampleError, match="levels= is 0"):
        vp.save(tmp_path / "e.zarr", volume, levels=0)


def test_a_call_with_other_levels_writes_again(tmp_path):
    """The same levels are found; others need overwrite."""
    source = tmp_path / "a.npy"
    np.save(source, VOXELS[0, :64, :64])
    place = tmp_path / "a.zarr"

    assert vp.convert(source, place, levels=2).new_shards
    assert not vp.convert(source, place, levels=2).new_shards
    with pytest.raises(DestinationExists):
        vp.convert(source, place, levels=3)
    vp.convert(source, place, levels=3, overwrite=True)
    assert vp.Volume(place, level=2).shape == (1, 16, 16, 1)


def test_axes_of_long_steps_are_not_halved(tmp_path):
    """Along z a voxel is as long as 4 along x: levels halve x and y alone, twice."""
    vp.save(tmp_path / "a.zarr", vp.Volume(VOXELS[:, :64, :64], affine=AFFINE), levels=4)

    shapes = [vp.Volume(tmp_path / "a.zarr", level=n).shape[1:] for n in range(4)]
    assert shapes == [(64, 64, 3), (32, 32, 3), (16, 16, 3), (8, 8, 2)]


def test_a_block_at_the_end_may_be_smaller():
    """Odd lengths are rounded up, and means are of the voxels that are there."""
    voxels = np.arange(25, dtype=np.float32).reshape(1, 5, 5)

    coarse = reduce_blocks(voxels, (1, 2, 2), is_label=False)

    np.testing.assert_array_equal(coarse[0, :, 2], [(4 + 9) / 2, (14 + 19) / 2, 24])
    np.testing.assert_array_equal(
        reduce_blocks(voxels, (1, 2, 2), is_label=True), voxels[:, ::2, ::2]
    )


@pytest.fixture
def written(tmp_path):
    """Return the path of an OME-Zarr image."""
    place = f"{tmp_path}/image.ome.zarr"
    vp.save(place, vp.Volume(VOXELS, affine=AFFINE))
    return place


def two_classes(batch):
    """Return one more for class 1 where the first channel is above 500."""
    return torch.stack([torch.full_like(batch[:, 0], 500.5), batch[:, 0]], 1)


def test_label_groups_are_written_and_listed(written):
    """By save, convert and predict; labels of coarser levels are voxels, not means."""
    vp.save(f"{written}/labels/nuclei", LABELS, like=written)
    vp.convert(vp.Volume(LABELS, kind="label", affine=AFFINE), f"{written}/labels/cells")
    image = vp.Volume(written)
    found = vp.predict(two_classes, image, f"{written}/labels/found", patch=(256, 256, 3))

    listed = zarr.open_group(f"{written}/labels", mode="r").attrs["ome"]["labels"]
    assert listed == ["nuclei", "cells", "found"]
    for name in ("nuclei", "cells"):
        group = zarr.open_group(f"{written}/labels/{name}", mode="r")
        np.testing.assert_array_equal(group["0"][:], LABELS[0].T)
        np.testing.assert_array_equal(group["1"][:], LABELS[0].T[:, ::2, ::2])
        assert group.attrs["ome"]["image-label"] == {"source": {"image": "../../"}}
        np.testing.assert_array_equal(vp.Volume(written, label=name).numpy(), LABELS)
    assert found.kind == "label"
    np.testing.assert_array_equal(found.numpy()[0], VOXELS[0] > 500)
    (sample,) = vp.from_ome(written, label=["cells", "found"])
    np.testing.assert_array_equal(sample["found"].numpy(), found.numpy())
    with pytest.raises(DestinationExists):
        vp.save(f"{written}/labels/nuclei", LABELS, like=written)
    vp.save(f"{written}/labels/nuclei", LABELS * 2, like=written, overwrite=True)
    assert zarr.open_group(f"{written}/labels", mode="r").attrs["ome"]["labels"] == listed
    assert vp.Volume(written, label="nuclei").numpy().max() == 14


def test_labels_do_not_change_their_image(written):
    """A volume stays current, with its content key, when labels are added."""
    image = vp.Volume(written)
    key = image.content_key

    vp.save(f"{written}/labels/nuclei", LABELS, like=written)

    image.refuse_change()
    assert vp.Volume(written).content_key == key


def test_labels_need_an_image(tmp_path):
    """An image that is missing is refused with the cure."""
    with pytest.raises(VolumeError, match="is no zarr group") as error:
        vp.save(tmp_path / "none.zarr/labels/nuclei", LABELS)
    assert error.value.do
    with pytest.raises(UnknownFormat, match="suffix of no format that is written") as error:
        vp.save(tmp_path / "labels/nuclei", LABELS)
    assert "{image}.ome.zarr/labels/" in error.value.do


def test_images_of_ome_zarr_04_get_labels_of_zarr_v2(tmp_path):
    """Saved, and predicted at several times; zarr-python lists and reads them."""
    path = write_image(tmp_path / "old.zarr", MOVIE, "tczyx", 2, sizes={"t": 5, "z": 2})
    place = f"{path}/labels/cells"

    def bright(batch):
        return torch.cat([batch[:, :1] * 0 + 500.5, batch[:, :1]], 1)

    vp.save(place, MOVIE[:, 0], axes="tzyx", like=path, levels=2)
    vp.predict(bright, vp.from_ome(path).open_volume(), f"{path}/labels/found", patch=4)
    with pytest.raises(DestinationExists):
        vp.save(place, MOVIE[:, 0], axes="tzyx", like=path)
    vp.save(place, MOVIE[:, 1], axes="tzyx", like=path, levels=2, overwrite=True)

    labels = zarr.open_group(f"{path}/labels", mode="r", zarr_format=2)
    assert labels.attrs["labels"] == ["cells", "found"]
    np.testing.assert_array_equal(labels["cells/0"][...], MOVIE[:, 1])
    np.testing.assert_array_equal(labels["cells/1"][...], MOVIE[:, 1][..., ::2, ::2])
    np.testing.assert_array_equal(labels["found/0"][...], MOVIE[:, 0] > 500.5)
    (image,) = labels["cells"].attrs["multiscales"]
    assert image["version"] == "0.4"
    assert image["datasets"][0]["coordinateTransformations"][0]["scale"] == [5, 2, 0.5, 0.5]
    assert labels["cells"].attrs["image-label"]["source"] == {"image": "../../"}
    for sample in vp.from_ome(path, label="found").open_volume():
        time = sample["ome"]["time"]
        np.testing.assert_array_equal(sample["label"].realize()[0].T, MOVIE[time, 0] > 500.5)


def test_labels_of_zarr_v2_are_predicted_and_converted_once(tmp_path):
    """The same call returns the group of the first one; another run is refused."""
    path = str(write_image(tmp_path / "old.zarr", MOVIE[0, 0], "zyx", 2))
    place = tmp_path / "old.zarr/labels/found"
    how = {"patch": 4, "progress": False}

    for _ in range(2):
        found = vp.predict(two_classes, path, place, run="a", **how)
        assert vp.convert(found, f"{path}/labels/copy").location == f"{path}/labels/copy"

    np.testing.assert_array_equal(found.numpy()[0].T, MOVIE[0, 0] > 500.5)
    with pytest.raises(DestinationExists):
        vp.predict(two_classes, path, place, run="b", **how)


def test_labels_get_the_levels_of_their_image(tmp_path):
    """Strides of the labels, by default; those of a level begin there."""
    path = tmp_path / "small.ome.zarr"
    vp.convert(vp.Volume(VOXELS[0, :40, :32], affine=AFFINE), path, levels=3)
    labels = vp.save(path / "labels/all", LABELS[0, :40, :32], like=path, axes="xyz")
    vp.save(path / "labels/coarse", LABELS[0, :20, :16], axes="xyz")

    for level in range(3):
        (sample,) = vp.from_ome(path, label="all", level=level).open_volume().lazy_patch(2)
        assert sample["label"].shape == sample["image"].shape
    coarse = zarr.open_array(path / "labels/all/2", mode="r")[...]
    np.testing.assert_array_equal(coarse, labels.numpy()[0].T[:, ::4, ::4])
    assert "2" not in zarr.open_group(path / "labels/coarse", mode="r")


def test_predict_writes_an_ome_tiff_once(tmp_path):
    """A second run with the same name returns the file of the first."""
    source = tmp_path / "a.npy"
    np.save(source, VOXELS[:1])
    how = {"patch": (256, 256, 3), "run": "a"}

    first = vp.predict(two_classes, str(source), tmp_path / "p.ome.tif", **how)
    before = (tmp_path / "p.ome.tif").stat()
    vp.predict(two_classes, str(source), tmp_path / "p.ome.tif", **how)

    np.testing.assert_array_equal(tifffile.imread(tmp_path / "p.ome.tif"), VOXELS[0].T > 500)
    assert first.kind == "label"
    assert (tmp_path / "p.ome.tif").stat().st_ino == before.st_ino
    with tifffile.TiffFile(tmp_path / "p.ome.tif") as file:
        coarse = file.series[0].levels[1].asarray()
    np.testing.assert_array_equal(coarse, (VOXELS[0].T > 500)[:, ::2, ::2])


def test_types_and_scales_of_files(tmp_path):
    """Booleans are uint8; a scale is applied, as TIFF has none."""
    vp.save(tmp_path / "b.ome.tif", VOXELS[0] > 500)
    scan = vp.Volume(VOXELS[0, :16, :16].astype("i2"), affine=np.eye(4))
    model = vp.save(tmp_path / "m.nii", scan)
    vp.save(tmp_path / "f.ome.tiff", VOXELS[0, :16, :16] / 3, like=model, dtype="float32")

    assert tifffile.imread(tmp_path / "b.ome.tif").dtype == np.uint8
    np.testing.assert_allclose(
        tifffile.imread(tmp_path / "f.ome.tiff"), VOXELS[0, :16, :16].T / 3, rtol=1e-6
    )


def test_bucket_has_tiffs_and_labels():
    """URLs are destinations of both formats."""
    place = "memory://written-images/image.ome.zarr"
    vp.save(place, vp.Volume(VOXELS, affine=AFFINE))
    vp.save(f"{place}/labels/nuclei", LABELS)
    tiff = vp.save("memory://written-images/a.ome.tif", VOXELS[:, :32, :32])

    (sample,) = vp.from_ome(place, label="nuclei")
    np.testing.assert_array_equal(sample["label"].numpy(), LABELS)
    np.testing.assert_array_equal(tiff.numpy(), VOXELS[:, :32, :32])


def writers(array):
    """Yield functions that write an array by save, convert and predict."""
    both = torch.nn.Conv3d(1, 2, 1)
    yield lambda place, **own: vp.save(place, array, **own)
    yield lambda place, **own: vp.convert(vp.Volume(array), place, **own)
    yield lambda place, **own: vp.predict(both, vp.Volume(array), place, patch=8, **own)


@pytest.mark.parametrize("root", ["folder", "memory://kept-labels"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_labels_of_an_image_are_not_overwritten(tmp_path, root, zarr_format):
    """An image with labels is replaced by nobody; one without them, and the labels, may be."""
    root = str(tmp_path) if root == "folder" else f"{root}-{zarr_format}"
    array = np.arange(8 * 9 * 10, dtype=np.uint8).reshape(8, 9, 10)
    label = {"cells": (array, "zyx")}
    local = write_image(tmp_path / "own" / "a.zarr", array, "zyx", zarr_format, label)
    place = f"{root}/a.zarr"
    fsspec.core.url_to_fs(root)[0].put(local, place.removeprefix("memory:/"), recursive=True)

    for write in writers(array):
        with pytest.raises(DestinationExists, match="holds the groups labels, which overwrite="):
            write(place, overwrite=True)
        vp.save(f"{root}/free.ome.zarr", array, overwrite=True)
        write(f"{root}/free.ome.zarr", overwrite=True)
    np.testing.assert_array_equal(vp.Volume(place, label="cells").numpy()[0].T, array)


def test_labels_of_ome_zarr_04_at_a_url_are_refused(tmp_path):
    """In one sentence with a cure, before anything is written."""
    array = np.arange(8 * 9 * 10, dtype=np.uint8).reshape(8, 9, 10)
    local = write_image(tmp_path / "a.zarr", array, "zyx", 2)
    memory = fsspec.filesystem("memory")
    memory.put(local, "/labels-04/a.zarr", recursive=True)
    before = memory.find("/labels-04")

    for write in writers(array.T):
        with pytest.raises(VolumeError, match=r"0\.5 is written to a URL") as error:
            write("memory://labels-04/a.zarr/labels/nuclei")
        assert "vp.convert(image" in error.value.do
    assert memory.find("/labels-04") == before


@pytest.fixture
def small(tmp_path):
    """Return an OME-Zarr with named channels, and its array (c, z, y, x)."""
    array = np.arange(2 * 4 * 5 * 6, dtype=np.uint16).reshape(2, 4, 5, 6)
    omero = {"channels": [{"label": "A"}, {"label": "B"}]}
    path = tmp_path / "small.ome.zarr"
    write_image(path, array, "czyx", 3, sizes={"z": 2}, omero=omero)
    return path, array


def zarr_of(path):
    """Return the array of an image, the names of its axes, and its scale."""
    group = zarr.open_group(path, mode="r")
    image = group.attrs["ome"]["multiscales"][0]
    scale = image["datasets"][0]["coordinateTransformations"][0]["scale"]
    return group["0"][...], "".join(axis["name"] for axis in image["axes"]), scale


@pytest.mark.parametrize("way", ["convert", "chain", "save", "like", "cache"])
def test_files_have_stored_axes_after_to_axes(small, tmp_path, way):
    """A patch, a chain, an array on the grid of a patch, and kept volumes."""
    path, array = small
    chain = vp.from_ome(path).open_volume().to_axes("zyx")
    patch = next(iter(chain))["image"]
    place = tmp_path / "new.ome.zarr"
    if way == "convert":
        vp.convert(patch, place)
    elif way == "chain":
        (result,) = vp.convert(chain, tmp_path / "folder")
        place = result.location
    elif way == "save":
        vp.save(place, patch)
    elif way == "like":
        vp.save(place, patch.realize(), like=patch)
    else:
        kept = next(iter(chain.cache(tmp_path / "kept")))["image"]
        np.testing.assert_array_equal(kept.realize(), array)
        place = next((tmp_path / "kept").glob("*.zarr"))

    voxels, axes, scale = zarr_of(place)

    np.testing.assert_array_equal(voxels, array)
    assert (axes, scale) == ("czyx", [1.0, 2.0, 0.5, 0.5])
    assert way == "like" or vp.Volume(place).channel_names == ("A", "B")


def test_ome_tiff_and_nifti_have_stored_axes_after_to_axes(small, tmp_path):
    """Ops on values are made in the order of the chain."""
    path, array = small
    patch = next(iter(vp.from_ome(path).open_volume().to_axes("zyx").normalize(0, 2)))["image"]

    vp.convert(patch, tmp_path / "new.ome.tif")
    image = vp.save(tmp_path / "new.nii.gz", patch)

    np.testing.assert_array_equal(tifffile.imread(tmp_path / "new.ome.tif"), array / 2)
    np.testing.assert_array_equal(image.numpy(), array.transpose(0, 3, 2, 1) / 2)
    np.testing.assert_allclose(image.affine, vp.Volume(path).affine)


def test_arrays_that_fit_in_two_orders_need_axes(tmp_path):
    """On the grid of an image of named axes; other orders are named in the error."""
    cube = np.arange(4 * 5 * 4, dtype=np.uint16).reshape(4, 5, 4)
    vp.save(tmp_path / "cube.ome.zarr", cube, axes="zyx")
    vp.save(tmp_path / "box.ome.zarr", cube[1:], axes="zyx")
    place = tmp_path / "cube.ome.zarr/labels/cells"

    with pytest.raises(BadHeader, match=r"axes='zyx'.*axes='xyz'"):
        vp.save(place, cube, like=tmp_path / "cube.ome.zarr")
    with pytest.raises(BadHeader, match="two orders fit"):
        vp.save(tmp_path / "cube.nii.gz", cube, like=tmp_path / "cube.ome.zarr")
    with pytest.raises(BadHeader, match="axes='zyx'"):
        vp.save(tmp_path / "b.ome.zarr", cube[1:], like=tmp_path / "box.ome.zarr")
    vp.save(place, cube, like=tmp_path / "cube.ome.zarr", axes="zyx")

    np.testing.assert_array_equal(zarr_of(place)[0], cube)


MOVIE = np.random.default_rng(1).integers(0, 999, (3, 2, 4, 5, 6)).astype("u2")
STEPS = [5.0, 1.0, 2.0, 0.5, 0.5]


@pytest.fixture(params=["tczyx", "ctzyx", "imagej", "ome"])
def movie(request, tmp_path):
    """Return the path of an image of three times and two channels."""
    if request.param in ("imagej", "ome"):
        axes = {"imagej": "TZCYX", "ome": "TCZYX"}[request.param]
        array = MOVIE.transpose(["TCZYX".index(axis) for axis in axes])
        sizes = {"finterval": 5.0, "spacing": 2.0, "unit": "um"}
        if request.param == "ome":
            sizes = {f"PhysicalSize{axis}": n for axis, n in zip("XYZ", (0.5, 0.5, 2), strict=True)}
            sizes |= {"TimeIncrement": 5.0, "TimeIncrementUnit": "s"}
        path = tmp_path / {"imagej": "movie.tif", "ome": "movie.ome.tif"}[request.param]
        how = {"imagej": True, "resolution": (2, 2)} if request.param == "imagej" else {}
        metadata = {"axes": axes, **sizes}
        tifffile.imwrite(path, array, metadata=metadata, photometric="minisblack", **how)
        return path
    array = MOVIE.transpose(["tczyx".index(axis) for axis in request.param])
    omero = {"channels": [{"label": "A"}, {"label": "B"}]}
    return write_image(
        tmp_path / "movie.ome.zarr", array, request.param, 2, sizes={"t": 5, "z": 2}, omero=omero
    )


def test_times_stay_an_axis(movie, tmp_path):
    """Of OME-Zarr and OME-TIFF, with their step and its unit; read back at one time."""
    vp.convert(movie, tmp_path / "new.ome.zarr")
    vp.save(tmp_path / "new.ome.tif", vp.Volume(movie))

    voxels, axes, scale = zarr_of(tmp_path / "new.ome.zarr")
    np.testing.assert_array_equal(voxels, MOVIE)
    assert (axes, scale) == ("tczyx", STEPS)
    units = zarr.open_group(tmp_path / "new.ome.zarr").attrs["ome"]["multiscales"][0]["axes"]
    assert units[0] == {"name": "t", "type": "time", "unit": "second"}
    one = vp.Volume(tmp_path / "new.ome.zarr", time=2)
    np.testing.assert_array_equal(one.numpy(), MOVIE[2].transpose(0, 3, 2, 1))
    with tifffile.TiffFile(tmp_path / "new.ome.tif") as file:
        pixels = tifffile.xml2dict(file.ome_metadata)["OME"]["Image"]["Pixels"]
        assert file.series[0].axes == "TCZYX"
        np.testing.assert_array_equal(file.series[0].asarray(), MOVIE)
    assert (pixels["TimeIncrement"], pixels["TimeIncrementUnit"]) == (5.0, "s")


def test_times_of_parts_and_arrays(tmp_path):
    """Chosen channels, a chain, an array with axes=, and labels on the grid of an image."""
    omero = {"channels": [{"label": "A"}, {"label": "B"}]}
    path = write_image(
        tmp_path / "m.ome.zarr", MOVIE, "tczyx", 3, sizes={"t": 5, "z": 2}, omero=omero
    )
    chain = vp.from_ome(path, time="channels").open_volume().to_axes("zyx")
    (made,) = vp.convert(chain.normalize(0, 2), tmp_path / "chain")
    vp.convert(vp.Volume(path, channels=["B"]), tmp_path / "b.ome.zarr", levels=2)
    vp.save(f"{path}/labels/cells", MOVIE[:, 0], axes="tzyx", like=path)
    vp.save(tmp_path / "array.ome.zarr", MOVIE, axes="tczyx")

    np.testing.assert_array_equal(zarr_of(made.location)[0], MOVIE / 2)
    assert vp.Volume(made.location, time=0).channel_names == ("A", "B")
    voxels, axes, scale = zarr_of(tmp_path / "b.ome.zarr")
    np.testing.assert_array_equal(voxels, MOVIE[:, 1])
    assert (axes, scale) == ("tzyx", [5.0, 2.0, 0.5, 0.5])
    voxels, axes, scale = zarr_of(f"{path}/labels/cells")
    np.testing.assert_array_equal(voxels, MOVIE[:, 0])
    assert (axes, scale) == ("tzyx", [5.0, 2.0, 0.5, 0.5])
    np.testing.assert_array_equal(zarr_of(tmp_path / "array.ome.zarr")[0], MOVIE)


def test_formats_without_time_refuse_several_times(tmp_path):
    """The error names the number of times and the way out."""
    volume = vp.Volume(MOVIE, axes="tczyx")

    with pytest.raises(UnknownFormat, match=r"(?s)3 time points.*time=0"):
        vp.save(tmp_path / "new.nii.gz", volume)


def turned(angle, steps=(0.5, 0.5, 2.0), shear=0.0):
    """Return an affine that turns x towards y by degrees, with an origin."""
    c, s = np.cos(np.radians(angle)), np.sin(np.radians(angle))
    affine = np.eye(4)
    affine[:3, :3] = np.array([[c, -s, shear], [s, c, 0], [0, 0, 1]]) * steps
    affine[:3, 3] = 5, 6, 7
    return affine


@pytest.mark.parametrize("affine", [turned(10), turned(0.2), turned(90, shear=0.1)])
def test_rotations_are_not_lost_without_a_word(tmp_path, affine):
    """OME-Zarr keeps them for voxpipe, with a warning; OME-TIFF and 0.4 refuse them."""
    array = np.arange(4 * 5 * 6, dtype=np.uint8).reshape(4, 5, 6)
    volume = vp.Volume(array, affine=affine)
    old = write_image(tmp_path / "old.zarr", array.T, "zyx", 2)
    both = torch.nn.Conv3d(1, 2, 1)

    for n, write in enumerate(
        [
            lambda place: vp.save(place, array, affine=affine),
            lambda place: vp.convert(volume, place),
            lambda place: vp.predict(both, volume, place, patch=8, progress=False),
        ]
    ):
        with pytest.warns(LikelyMistake, match="rotation: .* has rotated or sheared axes") as found:
            write(tmp_path / f"{n}.ome.zarr")
        assert len(found) == 1
        np.testing.assert_allclose(vp.Volume(tmp_path / f"{n}.ome.zarr").affine, affine)
        (step,) = zarr.open_group(tmp_path / f"{n}.ome.zarr").attrs["ome"]["multiscales"][0][
            "datasets"
        ][0]["coordinateTransformations"]
        np.testing.assert_allclose(step["scale"][-3:], np.linalg.norm(affine[:3, :3], axis=0)[::-1])
        with pytest.warns(LikelyMistake, match="labels/one has rotated"):
            write(tmp_path / f"{n}.ome.zarr/labels/one")
        for place in (tmp_path / f"{n}.ome.tif", f"{old}/labels/one"):
            with pytest.raises(VolumeError, match="has rotated or sheared axes") as error:
                write(place)
            assert ".nii.gz" in error.value.do
        for name in ("zarr", "nii.zarr"):  # no format of viewers, or an exact one
            write(tmp_path / f"{n}.{name}")
            np.testing.assert_allclose(
                vp.Volume(tmp_path / f"{n}.{name}").affine, affine, rtol=1e-5
            )


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 0, 2)])
@pytest.mark.parametrize("signs", [(1, 1, 1), (-1, -1, 1), (1, -1, -1)])
def test_flips_and_permutations_are_no_rotation(tmp_path, order, signs):
    """Rounding of a header is none, either. OME-TIFF loses flips and permutations."""
    affine = np.eye(4)
    affine[:3, :3] = (np.diag(signs) * [0.5, 0.5, 2.0])[:, order] + 1e-6
    array = np.zeros((4, 5, 6), np.uint8)

    vp.save(tmp_path / "a.ome.zarr", array, affine=affine)
    np.testing.assert_allclose(vp.Volume(tmp_path / "a.ome.zarr").affine, affine)
    is_straight = order == (0, 1, 2) and signs == (1, 1, 1)
    how = pytest.warns(LikelyMistake, match="a.ome.tif loses mirrored or swapped axes, because")
    with nullcontext() if is_straight else how:
        vp.save(tmp_path / "a.ome.tif", array, affine=affine)


@pytest.mark.parametrize("suffix", ["ome.tif", "ome.tiff"])
def test_the_origin_of_an_ome_tiff_is_not_lost_without_a_word(tmp_path, suffix):
    """By each of the three functions that write; OME-Zarr keeps it."""
    affine = np.diag([0.5, 0.5, 2.0, 1.0])
    affine[:3, 3] = 0, 30, 0
    array = np.arange(4 * 5 * 6, dtype=np.uint8).reshape(4, 5, 6)
    volume = vp.Volume(array, affine=affine)

    for n, write in enumerate(
        [
            lambda place: vp.save(place, array, affine=affine),
            lambda place: vp.convert(volume, place),
            lambda place: vp.predict(
                torch.nn.Conv3d(1, 2, 1), volume, place, patch=8, progress=False
            ),
        ]
    ):
        with pytest.warns(LikelyMistake, match="place: .* loses its origin, because") as found:
            write(tmp_path / f"{n}.{suffix}")
        assert len(found) == 1
        write(tmp_path / f"{n}.ome.zarr")
        np.testing.assert_allclose(vp.Volume(tmp_path / f"{n}.ome.zarr").affine, affine)
