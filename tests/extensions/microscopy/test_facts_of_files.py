"""Labels, axes and units of files hold without further words of the user."""

import numpy as np
import pytest
import tifffile
import zarr
from ome_files import write_image

import voxpipe as vp
from voxpipe.core.errors import BadHeader, LikelyMistake, SampleError
from voxpipe.extensions.pictures.planes import read_planes

VOXELS = np.arange(2 * 6 * 8, dtype=np.uint16).reshape(2, 6, 8)
AFFINE = np.diag([0.0005, 0.0005, 0.002, 1.0])


@pytest.fixture
def image(tmp_path):
    """The path of an OME-Zarr image of voxels of 2 x 0.5 x 0.5 um, with a label group."""
    path = str(tmp_path / "a.ome.zarr")
    vp.save(path, vp.Volume(VOXELS, axes="zyx", affine=AFFINE))
    labels = (VOXELS > 40).astype(np.uint8)
    mask = vp.Volume(labels, axes="zyx", affine=AFFINE, kind="label")
    vp.save(f"{path}/labels/nuclei", mask, like=path)
    return path


def read_bare(path):
    """Return an array whose axes have no names."""
    return np.load(path)["v"]


def read_axes(path, axes):
    """Return the name of the axes as a voxel: a reader with an argument of this name."""
    return np.full((1, 1, 1), len(axes), np.uint8)


def test_a_label_group_is_a_label(image):
    """By ``label=`` and by its path; an image is none."""
    assert vp.Volume(image, label="nuclei").kind == "label"
    assert vp.Volume(f"{image}/labels/nuclei").kind == "label"
    assert vp.Volume(image).kind == "intensity"

    case = {"image": image, "nuclei": f"{image}/labels/nuclei", "again": vp.Volume(image)}
    (sample,) = vp.from_cases([case]).open_volume().rotate((20, 0, 0))

    assert sample["nuclei"].realize().dtype == np.uint8
    assert sample["again"].realize().dtype == np.float32


def test_small_voxels_have_small_units(image):
    """Written without a unit, read in micrometres, also the labels."""
    assert vp.Volume(image).lengths == "0.5 x 0.5 x 2 um"
    assert vp.Volume(image, label="nuclei").lengths == "0.5 x 0.5 x 2 um"
    assert vp.Volume(image).spacing == pytest.approx((0.0005, 0.0005, 0.002))


def test_axes_of_a_reader_are_named_or_unknown(tmp_path):
    """``to_axes()`` refuses an array without names; ``axes=`` gives them."""
    path = str(tmp_path / "a.npz")
    np.savez(path, v=VOXELS)
    opened = vp.from_cases([{"image": path}])

    (unnamed,) = opened.open_volume(reader=read_bare).to_axes("zyx")
    with pytest.raises(BadHeader, match="names of the stored axes"):
        unnamed["image"].realize()
    (sample,) = opened.open_volume(reader=read_bare, axes="zyx").to_axes("zyx")

    np.testing.assert_array_equal(sample["image"].realize()[0], VOXELS)


def test_a_reader_with_axes_gets_them(tmp_path):
    """Its own argument comes first."""
    volume = vp.Volume(str(tmp_path / "none.xyz"), reader=read_axes, axes="zyx")

    assert volume.numpy().tolist() == [[[[3]]]]


@pytest.mark.parametrize("options", [{"axes": "zyx"}, {"series": 1}, {"level": 1}])
def test_options_without_effect_are_refused(image, options):
    """Every volume of the case is open already; a path of the case would use them."""
    words = "has no effect: 'image' is a Volume already"
    for source in (vp.from_cases([{"image": vp.Volume(image)}]), vp.from_ome(image)):
        pipe = source.open_volume(**options)
        with pytest.raises(SampleError, match=words):
            next(iter(pipe))
        # The loader looks at the first case before, and notes no error of it.
        batches = pipe.lazy_patch(1).batch_patches(1)
        for service in (None, vp.ThreadReadingService(1)):
            with (
                pytest.raises(SampleError, match=words),
                vp.DataLoader2(batches, None, service) as loader,
            ):
                next(iter(loader))


@pytest.mark.parametrize("unit", ["pixel", None])
def test_lengths_in_pixels_are_no_millimetres(tmp_path, unit):
    """They are printed, copied, drawn and shown in pixels; ``affine=`` gives a size."""
    place = write_image(tmp_path / "a.ome.zarr", VOXELS, "zyx", 3)
    group = zarr.open_group(place)
    ome = group.attrs["ome"]
    for axis in ome["multiscales"][0]["axes"]:
        axis.pop("unit")
        axis |= {"unit": unit} if unit else {}
    group.attrs["ome"] = ome
    volume = vp.Volume(place)
    assert volume.lengths == "0.5 x 0.5 x 0.5 px"
    assert " mm" not in str(volume)
    assert volume.to_napari()[0][1]["units"] == ("pixel",) * 3
    (plane, *_) = read_planes(volume, side=8)
    assert plane.length_text(2.0) == "2 voxels"
    vp.convert(place, tmp_path / "b.ome.zarr")
    vp.convert(place, tmp_path / "b.ome.tif")
    assert "millimeter" not in (tmp_path / "b.ome.zarr" / "zarr.json").read_text()
    assert vp.Volume(tmp_path / "b.ome.zarr").lengths == volume.lengths
    with pytest.warns(LikelyMistake, match="sizes are in pixels"):
        assert vp.Volume(tmp_path / "b.ome.tif").lengths == volume.lengths
    assert vp.Volume(place, affine=AFFINE).lengths == ""
    assert " mm" in str(vp.Volume(place, affine=AFFINE))


@pytest.mark.parametrize("flushes", [False, True])
def test_ops_in_micrometres_need_a_size_of_voxels(tmp_path, flushes):
    """Also after a flush; ``affine=`` gives the size, and other lengths count pixels."""
    path = tmp_path / "a.tif"
    metadata = {"axes": "ZYX", "unit": "pixel", "spacing": 1.0}
    tifffile.imwrite(path, VOXELS, imagej=True, resolution=(1, 1), metadata=metadata)
    opened = vp.from_cases([{"image": str(path)}])
    placed = opened.open_volume(affine=AFFINE).translate((0.5, 0, 0), unit="um")
    pixels = opened.open_volume()
    pixels = pixels.flush() if flushes else pixels

    assert next(iter(placed))["image"].shape == next(iter(pixels))["image"].shape
    assert next(iter(pixels.translate((1, 0, 0))))["image"].plan.matrix[0, 3] == -1
    for chain in pixels.translate((1, 0, 0), unit="um"), pixels.spacing(1.0, unit="um"):
        with pytest.raises(SampleError, match=r"those of .*a\.tif are numbers of pixels"):
            next(iter(chain))["image"].realize()


@pytest.mark.parametrize("name", ["a.npy", "a.tif", "stack"])
def test_ops_in_micrometres_need_a_size_in_the_file(tmp_path, name):
    """Arrays and plain TIFF files have none; ``affine=`` gives it."""
    np.save(tmp_path / "a.npy", VOXELS)
    tifffile.imwrite(tmp_path / "a.tif", VOXELS, photometric="minisblack")
    (tmp_path / "stack").mkdir()
    for number, plane in enumerate(VOXELS):
        tifffile.imwrite(tmp_path / "stack" / f"z{number}.tif", plane)
    opened = vp.from_cases([{"image": str(tmp_path / name)}])

    assert next(iter(opened.open_volume(affine=AFFINE).spacing(0.5, unit="um")))["image"].shape
    with pytest.raises(SampleError, match="no size of voxels was read in the file"):
        next(iter(opened.open_volume().spacing(0.5, unit="um")))["image"].realize()


def test_a_plane_has_two_lengths(tmp_path):
    """Data without a z axis have no third voxel size, in tifffile's metadata and ours."""
    size = {"PhysicalSizeX": 0.65, "PhysicalSizeY": 0.5}
    tifffile.imwrite(tmp_path / "a.ome.tif", np.zeros((3, 4)), metadata={"axes": "YX", **size})
    volume = vp.Volume(tmp_path / "a.ome.tif")
    assert volume.lengths == "0.65 x 0.5 um"
    assert "0.65 x 0.5 um" in repr(volume)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_planes_with_tags_of_colours_are_no_silent_channels(tmp_path, count):
    """By default tifffile writes 3 or 4 planes as colours, and other numbers as a stack."""
    planes, place = np.random.default_rng(0).random((count, 20, 30), "f4"), tmp_path / "a.tif"
    for own in ({}, {"metadata": None}):
        tifffile.imwrite(place, planes, **own)
        if count in (3, 4):
            with pytest.warns(LikelyMistake, match=f'the {count} planes of .*axes="zyx" for'):
                assert vp.Volume(place).shape == (count, 30, 20, 1)
        stack = vp.Volume(place, axes="zyx")
        np.testing.assert_array_equal(stack.numpy()[0].transpose(2, 1, 0), planes)
    for own in ({"photometric": "minisblack"}, {"imagej": True, "metadata": {"axes": "ZYX"}}):
        tifffile.imwrite(place, planes, **own)
        assert vp.Volume(place).shape == (1, 30, 20, count)
    tifffile.imwrite(place, planes, metadata={"axes": "CYX"})
    assert vp.Volume(place).shape == (count, 30, 20, 1)


@pytest.mark.filterwarnings("ignore:times-and-channels")
@pytest.mark.parametrize("before", ["", "clamp"])
@pytest.mark.parametrize(("channel", "of_b"), [("DAPI", 20), (0, 10)])
def test_channels_are_chosen_in_each_file(tmp_path, before, channel, of_b):
    """Files of one list have other orders, and several times; none is chosen by another's."""
    array = np.full((2, 4, 5, 6), 10, "u1")
    array[1] = 20
    for name, own, axes, voxels in (
        ("a", ("DAPI", "GFP"), "czyx", array),
        ("b", ("GFP", "DAPI"), "czyx", array),
        ("c", ("DAPI", "GFP"), "tczyx", np.stack([array] * 3)),
    ):
        channels = [{"label": label} for label in own]
        write_image(tmp_path / f"{name}.zarr", voxels, axes, 3, omero={"channels": channels})
    for order in ("abc", "cba", "bac"):
        cases = [{"case": name, "image": tmp_path / f"{name}.zarr"} for name in order]
        pipe = vp.from_cases(cases).open_volume()
        pipe = pipe.clamp(0, 255) if before else pipe
        kept = {
            sample.case: sample["image"].realize().mean((1, 2, 3)).tolist()
            for sample in pipe.select_channels(channel)
        }
        assert kept == {"a": [10], "b": [of_b], "c": [10, 10, 10]}
