"""Labels that say nothing of size or order: pictures, and squares without names of axes."""

import warnings

import h5py
import imagecodecs
import numpy as np
import pytest
import SimpleITK
import tifffile
import zarr

import voxpipe as vp
from voxpipe.core.errors import BadHeader, GridMismatch, LikelyMistake

SIZES = {f"PhysicalSize{axis}": 0.25 for axis in "XYZ"}
SQUARE = np.zeros((12, 12), np.uint8)
SQUARE[1:3, 4:11] = 1
CUBE = np.zeros((6, 6, 6), np.uint8)
CUBE[0:2, 1:4, 2:6] = 1


def picture(path, array, **how):
    """Write a picture by imagecodecs (PNG, JPEG) or SimpleITK (BMP); JPEG loses no flat values."""
    if path.suffix == ".bmp":
        SimpleITK.WriteImage(SimpleITK.GetImageFromArray(array), path)
        return str(path)
    encode = imagecodecs.png_encode if path.suffix == ".png" else imagecodecs.jpeg_encode
    path.write_bytes(encode(array, **how))
    return str(path)


def ome(path, array, **sizes):
    tifffile.imwrite(path, array, metadata={"axes": "ZYX"[-array.ndim :], **SIZES, **sizes})
    return str(path)


def values(pipe, *keys):
    batch = next(iter(pipe.batch_patches(1)))
    return [batch[key][0, 0].numpy() for key in keys]


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp"])
def test_a_picture_has_no_place_as_a_plain_tiff(tmp_path, suffix):
    """Its affine, its refusals and their cure; the two match each other."""
    label = np.full((40, 56), 200, np.uint8)
    mask, plain = picture(tmp_path / f"m{suffix}", label), str(tmp_path / "m.tif")
    tifffile.imwrite(plain, label)
    image = ome(tmp_path / "i.ome.tif", label)
    assert np.array_equal(vp.Volume(mask).affine, np.eye(4))
    assert vp.Volume(mask).spatial_shape == vp.Volume(plain).spatial_shape
    case = vp.from_cases([{"image": image, "label": mask}])
    texts = []
    for other in (mask, plain):
        case = vp.from_cases([{"image": image, "label": other}])
        for make in (lambda p: p.to_axes("yx"), lambda p: p.resample_to("image")):
            with pytest.raises(GridMismatch) as caught:
                values(make(case.open_volume()), "label")
            texts.append(caught.value.do)
    assert texts[:2] == texts[2:]
    assert all("open_volume(affine={'label': 'image'})" in text for text in texts)
    pair = vp.from_cases([{"image": plain, "label": mask}]).open_volume()
    assert np.array_equal(*values(pair.to_axes("yx"), "image", "label"))


def test_the_cure_of_a_mask_keeps_its_values(tmp_path):
    """As imagecodecs wrote them; ``affine={"label": "image"}`` with resampling, too."""
    label = np.zeros((40, 56), np.uint16)
    label[0, 0], label[10:20, 30:50] = 4, 700
    mask = picture(tmp_path / "m.png", label)
    case = vp.from_cases([{"image": ome(tmp_path / "i.ome.tif", label), "label": mask}])
    pipe = case.open_volume(affine={"label": "image"})
    for chain in (pipe, pipe.resample_to("image")):
        assert np.array_equal(*values(chain.to_axes("yx"), "image", "label"))


@pytest.mark.parametrize(("spacing", "warns"), [(0.25, True), (1.0, False)])
def test_the_resolution_of_a_picture_is_not_read(tmp_path, spacing, warns):
    """As that of a plain TIFF: with a warning unless it is a default of writers."""
    image = SimpleITK.GetImageFromArray(SQUARE)
    image.SetSpacing((spacing, spacing))
    SimpleITK.WriteImage(image, tmp_path / "a.png")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert np.array_equal(vp.Volume(tmp_path / "a.png").affine, np.eye(4))
        assert vp.Volume(tmp_path / "a.png", affine=np.diag([2, 2, 1, 1])).spacing[0] == 2
    assert [str(one.message).startswith("resolutions: ") for one in seen] == [True] * warns


def npy(folder, array):
    np.save(folder / "l.npy", array)
    return str(folder / "l.npy")


def hdf5(folder, array):
    with h5py.File(folder / "l.h5", "w") as file:
        file["raw"] = array
    return str(folder / "l.h5")


def plain_zarr(folder, array):
    zarr.create_array(str(folder / "l.zarr"), data=array)
    return str(folder / "l.zarr")


@pytest.mark.parametrize("write", [npy, hdf5, plain_zarr, lambda _, array: array])
@pytest.mark.parametrize("array", [SQUARE, CUBE], ids=["square", "cube"])
def test_two_orders_are_refused_with_the_place_of_the_image(tmp_path, write, array):
    """By key and by matrix; the cure gives the label of tifffile, and the other one of nibabel."""
    letters = "zyx"[-array.ndim :]
    image = ome(tmp_path / "i.ome.tif", array)
    case = vp.from_cases([{"image": image, "label": write(tmp_path, array)}])
    for place in ("image", vp.Volume(image).affine):
        for make in (lambda p: p, lambda p: p.to_axes(letters), lambda p: p.resample_to("image")):
            with pytest.raises(BadHeader, match=r"'label'.*two orders fit") as caught:
                values(make(case.open_volume(affine={"label": place})), "label")
            assert f"open_volume(axes={{'label': '{letters}'}})" in str(caught.value)
            assert f"vp.Volume(path, axes='{letters}')" in str(caught.value)
        for axes, expected in ((letters, array), (letters[::-1], array.T)):
            pipe = case.open_volume(affine={"label": place}, axes={"label": axes})
            (label,) = values(pipe.to_axes(letters), "label")
            assert np.array_equal(label, expected)


def test_a_volume_with_the_affine_of_the_image_is_refused(tmp_path):
    """Its cure is ``axes=`` of that Volume."""
    image = ome(tmp_path / "i.ome.tif", CUBE)
    affine = vp.Volume(image).affine

    def pipe(**how):
        label = vp.Volume(CUBE, affine=affine, kind="label", **how)
        return vp.from_cases([{"image": image, "label": label}]).open_volume().to_axes("zyx")

    with pytest.raises(BadHeader, match="two orders fit"):
        values(pipe(), "label")
    assert np.array_equal(*values(pipe(axes="zyx"), "image", "label"))


@pytest.mark.filterwarnings("ignore:axes-not-named")
def test_to_axes_refuses_two_orders_without_sizes_too(tmp_path):
    """Where only a warning came; after ``flush()`` and for a label that is resampled as well."""
    tifffile.imwrite(tmp_path / "i.tif", CUBE, photometric="minisblack")
    case = vp.from_cases([{"image": str(tmp_path / "i.tif"), "label": npy(tmp_path, CUBE)}])
    half = {"image": np.eye(4), "label": np.diag([0.5, 0.5, 0.5, 1])}
    chains = [
        case.open_volume().to_axes("zyx"),
        case.open_volume().flush().to_axes("zyx"),
        case.open_volume(affine=half).resample_to("image").to_axes("zyx"),
    ]
    for chain in chains:
        with pytest.raises(BadHeader, match=r"l\.npy.*two orders fit") as caught:
            values(chain, "label")
        assert "to_axes('zyx')" in str(caught.value)
    named = case.open_volume(affine=half, axes={"label": "zyx"}).resample_to("image")
    assert values(named.to_axes("zyx"), "label")[0].shape == CUBE.shape


def test_one_order_is_right(tmp_path):
    """Without a word in x, y, z; transposed, it is refused with the letters."""
    label = np.arange(60, dtype=np.uint8).reshape(3, 4, 5)
    image = ome(tmp_path / "i.ome.tif", label)
    case = vp.from_cases([{"image": image, "label": npy(tmp_path, label.T)}])
    pipe = case.open_volume(affine={"label": "image"})
    assert np.array_equal(*values(pipe.to_axes("zyx"), "image", "label"))
    case = vp.from_cases([{"image": image, "label": npy(tmp_path, label)}])
    with pytest.raises(GridMismatch, match=r"axes=\{'label': 'zyx'\}"):
        values(case.open_volume(affine={"label": "image"}), "label")
    pipe = case.open_volume(affine={"label": "image"}, axes={"label": "zyx"})
    assert np.array_equal(*values(pipe.to_axes("zyx"), "image", "label"))


def test_arrays_without_names_agree_with_each_other(tmp_path):
    """Nothing is refused, with a place by key or by matrix."""
    matrix = np.diag([0.5, 0.5, 0.5, 1])
    case = vp.from_cases([{"image": CUBE, "label": npy(tmp_path, CUBE)}])
    for how in ({}, {"image": matrix, "label": "image"}, {"image": matrix, "label": matrix}):
        pipe = case.open_volume(affine=how)
        assert np.array_equal(*values(pipe, "image", "label"))


def test_a_prediction_names_the_axes_of_its_image(tmp_path):
    """So it fits beside it, though it is an array in memory."""
    image = ome(tmp_path / "i.ome.tif", CUBE)
    found = vp.predict(lambda x: x, image, patch=6, output="logits", progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LikelyMistake)
        pipe = vp.from_cases([{"image": image, "found": found}]).open_volume().to_axes("zyx")
        image, found = values(pipe, "image", "found")
    assert np.array_equal(image, found)
