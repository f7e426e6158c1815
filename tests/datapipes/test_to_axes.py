"""`to_axes()`: sizes, amounts and tensors in the order of named axes; 2-D data with two axes."""

import nibabel
import numpy as np
import pytest
import tifffile
import torch
import zarr
from zarr_arrays import add_array

import voxpipe as vp
from voxpipe.core.errors import BadHeader, PatchSizeError, SampleError
from voxpipe.extensions.pictures.facts import facts_of_batch
from voxpipe.spatial import Rotate

RANDOM = np.random.default_rng(0)
STACK = RANDOM.integers(0, 4000, (6, 20, 24), np.uint16)  # z, y, x
STEPS = (2.0, 0.5, 0.25)  # of z, y, x in micrometres


def ome_zarr(folder, version):
    steps = [{"type": "scale", "scale": list(STEPS)}]
    axes = [{"name": name, "type": "space", "unit": "micrometer"} for name in "zyx"]
    image = {"axes": axes, "datasets": [{"path": "0", "coordinateTransformations": steps}]}
    group = zarr.open_group(str(folder / "a.ome.zarr"), mode="w", zarr_format=version)
    own = {"multiscales": [{**image, "version": "0.4"}]}
    group.attrs.update(own if version == 2 else {"ome": {**own, "version": "0.5"}})
    add_array(group, "0", data=STACK, chunks=(4, 8, 8))
    return folder / "a.ome.zarr"


def ome_zarr_2(folder):
    return ome_zarr(folder, 2)


def ome_zarr_3(folder):
    return ome_zarr(folder, 3)


def zarr_3(folder):
    zarr.create_array(str(folder / "a.zarr"), data=STACK, dimension_names=["z", "y", "x"])
    return folder / "a.zarr"


def zarr_2(folder):
    made = zarr.create_array(str(folder / "a.zarr"), data=STACK, zarr_format=2)
    made.attrs["_ARRAY_DIMENSIONS"] = ["z", "y", "x"]
    return folder / "a.zarr"


def ome_tiff(folder):
    sizes = {f"PhysicalSize{a}": step for a, step in zip("ZYX", STEPS, strict=True)}
    how = {"metadata": {"axes": "ZYX", **sizes}, "ome": True}
    tifffile.imwrite(folder / "a.ome.tif", STACK, photometric="minisblack", **how)
    return folder / "a.ome.tif"


def nifti(folder):
    nibabel.save(nibabel.Nifti1Image(STACK.T, np.diag([*STEPS[::-1], 1])), folder / "a.nii")
    return folder / "a.nii"


def npy(folder):
    np.save(folder / "a.npy", STACK)
    return vp.Volume(folder / "a.npy", axes="zyx")


@pytest.mark.parametrize("write", [ome_zarr_2, ome_zarr_3, zarr_2, zarr_3, ome_tiff, nifti, npy])
def test_every_format_comes_out_in_the_stated_order(tmp_path, write):
    """The whole volume, and a patch whose size is in that order; each voxel where it was."""
    opened = vp.from_cases([{"image": write(tmp_path)}]).open_volume()
    batch = next(iter(opened.to_axes("zyx").batch_patches(1)))
    assert np.array_equal(batch["image"][0, 0], STACK)
    assert batch["image"].is_contiguous()

    pipe = opened.to_axes("zyx").crop((1, 2, 3), (4, 8, 16))
    patch = next(iter(pipe))["image"]
    assert patch.shape == (1, 4, 8, 16)
    assert np.array_equal(patch.realize()[0], STACK[1:5, 2:10, 3:19])
    stored = next(iter(opened))["image"]
    assert patch.spacing == stored.spacing[::-1]
    assert np.allclose(patch.affine @ (0, 0, 0, 1), stored.affine @ (3, 2, 1, 1))
    assert next(iter(opened.lazy_patch((16, 8, 4))))["image"].shape == (1, 16, 8, 4)


def placed():
    image = vp.Volume(STACK.astype(np.float32), axes="zyx", affine=np.diag([*STEPS[::-1], 1]))
    return vp.from_cases([{"image": image}]).open_volume()


SAME = {
    "flip": (lambda p: p.flip(0), lambda p: p.flip(2)),
    "rotate90": (lambda p: p.rotate90(1, (1, 2)), lambda p: p.rotate90(1, (1, 0))),
    "spacing": (lambda p: p.spacing((1, 0.5, 0.6)), lambda p: p.spacing((0.6, 0.5, 1))),
    "zoom": (lambda p: p.zoom((1, 1.2, 0.8)), lambda p: p.zoom((0.8, 1.2, 1))),
    "translate": (lambda p: p.translate((2, 0, 1)), lambda p: p.translate((1, 0, 2))),
    "about z": (lambda p: p.rotate((20, 0, 0)), lambda p: p.rotate((0, 0, -20))),
    "voxels": (
        lambda p: p.rotate((0, 0, 20), space="voxel"),
        lambda p: p.rotate((-20, 0, 0), space="voxel"),
    ),
    "resize": (lambda p: p.resize((3, 10, 30)), lambda p: p.resize((30, 10, 3))),
    "pad": (lambda p: p.pad((0, 1, 2)), lambda p: p.pad((2, 1, 0))),
    "turned": (
        lambda p: p.rotate((20, 0, 0)).zoom((1, 1.2, 0.8)),
        lambda p: p.rotate((0, 0, -20)).zoom((0.8, 1.2, 1)),
    ),
    "flushed": (
        lambda p: p.rotate((20, 0, 0)).flush().zoom((1, 1.2, 0.8)),
        lambda p: p.rotate((0, 0, -20)).flush().zoom((0.8, 1.2, 1)),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_amounts_are_in_the_stated_order(name):
    """The same voxels as with amounts for x, y, z, in the other order."""
    stated, usual = SAME[name]
    one = next(iter(stated(placed().to_axes("zyx"))))["image"]
    other = next(iter(usual(placed())))["image"]
    assert np.allclose(one.realize()[0], other.realize()[0].T, rtol=1e-5, atol=0.01)
    assert one.spacing == pytest.approx(other.spacing[::-1])


def test_a_quarter_turn_is_that_of_numpy():
    """An angle about z turns y towards x, as `numpy.rot90` and `torchvision` turn an image."""
    cube = STACK.astype(np.float32)[:, :20, :20]
    opened = vp.from_cases([{"image": vp.Volume(cube, axes="zyx")}]).open_volume()
    turned = next(iter(opened.to_axes("zyx").rotate((90, 0, 0))))["image"].realize()
    assert np.array_equal(turned[0], np.rot90(cube, axes=(1, 2)))


def test_orders_follow_each_other():
    """The last one holds; with `transpose()` after it, names move with their axes."""
    assert next(iter(placed().to_axes("zyx").to_axes("yxz")))["image"].shape == (1, 20, 24, 6)
    pipe = placed().to_axes("zyx").transpose((1, 2, 0)).to_axes("xyz")
    assert next(iter(pipe))["image"].shape == (1, 24, 20, 6)
    pipe = placed().orientation("RAS").to_axes("zyx")
    assert next(iter(pipe))["image"].shape == (1, 6, 20, 24)


def test_an_orientation_keeps_the_order():
    """Letters in another order are refused, with those that the chain can have."""
    with pytest.raises(SampleError, match=r"undo the order 'zyx'(?s:.*)orientation\('SAR'\)"):
        next(iter(placed().to_axes("zyx").orientation("RAS")))["image"].shape  # noqa: B018
    turned = next(iter(placed().to_axes("zyx").orientation("IPL")))["image"]
    assert np.array_equal(turned.realize()[0], STACK[::-1, ::-1, ::-1])


def test_realized_voxels_keep_the_order():
    """They are opened again with the names of their axes."""
    pipe = placed().to_axes("zyx").realize().open_volume().zoom((1, 1.2, 0.8))
    expected = next(iter(SAME["zoom"][1](placed())))["image"].realize()[0].T
    assert np.allclose(next(iter(pipe))["image"].realize()[0], expected, rtol=1e-5, atol=0.01)


@pytest.mark.parametrize("adapters", [[], [vp.adapters.ToAxes("zyx")]], ids=["pipe", "adapter"])
def test_a_folder_of_copies_keeps_the_order_in_a_loader(tmp_path, adapters):
    """A loader fuses `to_axes()` with the pipes beside it."""
    opened = placed() if adapters else placed().to_axes("zyx")
    steps = (2.0, 1.0, 0.5)
    pipe = opened.spacing(steps).cache(tmp_path).batch_patches(1)
    with vp.DataLoader2(pipe, adapters) as loader:
        (batch,) = loader
    assert batch["image"].shape == (1, 1, 6, 10, 12)


@pytest.mark.parametrize(
    ("chain", "told"),
    [
        (lambda p: p.to_axes("zyx"), r"needs the names(?s:.*)open_volume\(axes=\"zyx\"\)"),
        (lambda p: p.center_crop((4, 4)), "two numbers are a size of 2-D data(?s:.*)6x20x24"),
    ],
    ids=["named", "plane"],
)
def test_axes_without_names_are_refused(chain, told):
    """Nothing is guessed: the file, or `axes=`, names them."""
    pipe = vp.from_cases([{"image": STACK}]).open_volume()
    with pytest.raises((BadHeader, PatchSizeError), match=told):
        next(iter(chain(pipe)))["image"].shape  # noqa: B018  which makes the plan


def test_a_plane_of_many_voxels_is_refused():
    """Two letters are for 2-D data, or for a patch of one plane."""
    with pytest.raises(PatchSizeError, match="leaves out z, along which there are 6 voxels"):
        next(iter(placed().to_axes("yx")))["image"].shape  # noqa: B018
    pipe = placed().lazy_patch((16, 8, 1)).to_axes("yx")
    assert next(iter(pipe))["image"].shape == (1, 8, 16)


@pytest.mark.parametrize("axes", ["tczyx", "zy x", "zz", "z", 3, "kj"])
def test_other_letters_are_refused(axes):
    """At the line that has them."""
    with pytest.raises(ValueError, match="letters x, y and z in their new order"):
        placed().to_axes(axes)


IMAGE = STACK[0].astype(np.float32)  # y, x


def tiff_2d(folder):
    tifffile.imwrite(folder / "b.tif", IMAGE, photometric="minisblack")
    return folder / "b.tif"


def zarr_2d(folder):
    zarr.create_array(str(folder / "b.zarr"), data=IMAGE, dimension_names=["y", "x"])
    return folder / "b.zarr"


def array_2d(folder):
    return IMAGE


@pytest.mark.parametrize("write", [tiff_2d, zarr_2d, array_2d])
def test_two_numbers_give_two_axes(tmp_path, write):
    """(B, C, Y, X), whatever names the file has."""
    opened = vp.from_cases([{"image": write(tmp_path)}]).open_volume()
    batch = next(iter(opened.center_crop((20, 24)).batch_patches(1)))["image"]
    assert batch.shape == (1, 1, 20, 24)
    assert np.array_equal(batch[0, 0], IMAGE)
    pipe = opened.lazy_patch((16, 8), samples_per_volume=3).augment(
        rotate=(-15, 15), zoom=((0.9, 1.1), 1), flip=(0.5, 0), translate=((-1, 1), 0)
    )
    pipe = pipe.elastic((0.5, (0, 0.5)), spacing=4).flip((0, 1)).normalize().blur(0.5)
    batch = next(iter(pipe.batch_patches(3)))["image"]
    assert batch.shape == (3, 1, 16, 8)
    assert "16, 8, 1" not in str(pipe)


PLANES = {
    "a grid": lambda p: p.lazy_patch((16, 8), sampling="grid", overlap=(4, 2)),
    "a region": lambda p: p.lazy_patch((16, 8), region=(18, 12), align=(1, 1)),
    "crop": lambda p: p.crop((2, 3), (16, 8)),
    "slices": lambda p: p.crop(slices=(slice(2, 18), slice(-8, None))),
    "crop_or_pad": lambda p: p.crop_or_pad((16, 8)),
    "resize": lambda p: p.resize((16, 8)),
    "random_crop": lambda p: p.center_crop((17, 9)).random_crop(((16, 16), (8, 8))),
    "spacing": lambda p: p.spacing((1.25, None)).center_crop((16, 8)),
    "scale": lambda p: p.to_axes("yx").center_crop(scale=(0.8, 0.3)).crop_or_pad((16, 8)),
    "pad": lambda p: p.pad((1, 2)).center_crop((16, 8)),
    "divisible_pad": lambda p: p.crop_or_pad((15, 7)).divisible_pad((16, 8)),
}


@pytest.mark.parametrize("name", PLANES)
def test_values_for_two_axes(name):
    """Every size, margin and overlap of 2-D data has two numbers."""
    pipe = PLANES[name](vp.from_cases([{"image": vp.Volume(IMAGE, axes="yx")}]).open_volume())
    patch = next(iter(pipe))["image"]
    assert patch.shape == (1, 16, 8)
    assert patch.realize().shape == (1, 16, 8)
    assert np.shape(patch.tensor()) == (1, 16, 8)


def test_fields_of_planes_have_two_distances():
    """A third of one cell changes nothing, and a volume refuses two."""

    def values(name, *args, **own):
        pipe = plane().lazy_patch((16, 16))
        return next(iter(getattr(pipe, name)(*args, **own)))["image"].realize()

    two, three = (values("grid_distortion", 0.3, cells=cells) for cells in ((4, 2), (4, 2, 1)))
    np.testing.assert_array_equal(two, three)
    with pytest.raises(PatchSizeError, match="two numbers are a size of 2-D data"):
        next(iter(placed().lazy_patch(4).elastic(1, spacing=(8, 8))))["image"].realize()


def test_realized_planes_have_two_axes():
    """Value pipes act on them, and they are opened again as they were."""
    pipe = vp.from_cases([{"image": IMAGE}]).open_volume().lazy_patch((16, 8))
    voxels = next(iter(pipe.realize().blur(1)))["image"]
    assert voxels.shape == (1, 16, 8)
    again = next(iter(pipe.realize().open_volume().center_crop((8, 8)).batch_patches(1)))
    assert again["image"].shape == (1, 1, 8, 8)


def test_errors_of_planes_name_two_sizes():
    """The hidden axis is in no message."""
    opened = vp.from_cases([{"image": IMAGE}]).open_volume()
    with pytest.raises(PatchSizeError) as caught:
        next(iter(opened.center_crop((80, 80))))["image"].shape  # noqa: B018
    assert "(80, 80) needs a grid as large, which has (20, 24)" in str(caught.value)
    with pytest.raises(PatchSizeError, match=r"the patch \(64, 64\), got \(70, 70\)"):
        opened.lazy_patch((64, 64), sampling="grid", overlap=(70, 70))


def loader_of(service=None):
    opened = vp.from_cases([{"image": vp.Volume(STACK, axes="zyx")}] * 4).open_volume()
    pipe = opened.to_axes("zyx").shuffle().lazy_patch((4, 8, 16), samples_per_volume=3)
    pipe = pipe.rotate(((-15, 15), 0, 0)).shuffle(buffer_size=6).batch_patches(2)
    return vp.DataLoader2(pipe, None, service, seed=3)


def equal(one, other):
    pairs = zip(one, other, strict=True)
    return all(np.array_equal(batch["image"], voxels) for batch, voxels in pairs)


def test_batches_are_the_same_in_every_way():
    """In threads, in a worker, by number, and after a state was restored."""
    with loader_of() as loader:
        batches = [batch["image"].clone() for batch in loader]
        assert batches[0].shape == (2, 1, 4, 8, 16)
        assert equal([loader.batch(n, epoch=0) for n in range(6)], batches)
    for service in (vp.ThreadReadingService(2), vp.MultiProcessingReadingService(1, "fork")):
        with loader_of(service) as loader:
            assert equal(loader, batches)
    with loader_of() as loader:
        next(iter(loader))
        state = loader.state_dict()
    with loader_of() as loader:
        loader.load_state_dict(state)
        assert equal(loader, batches[1:])


def test_predictions_keep_their_places():
    """Windows in any order, and of two axes, give the result on the stored grid."""

    def double(batch):
        shapes.add(tuple(batch.shape[2:]))
        return batch * 2

    shapes = set()
    windows = placed().to_axes("zyx").lazy_patch((4, 8, 16), sampling="grid")
    (result,) = vp.predict(double, windows, output="logits").values()
    assert np.allclose(result, 2.0 * STACK.T[None])
    planes = vp.from_cases([{"image": IMAGE}]).open_volume()
    windows = planes.lazy_patch((8, 16), sampling="grid", overlap=(2, 4))
    (result,) = vp.predict(double, windows, output="logits").values()
    assert np.allclose(np.squeeze(result), 2 * IMAGE)
    assert shapes == {(4, 8, 16), (8, 16)}
    result = vp.predict(double, IMAGE, patch=(8, 16), output="logits", mirror=True)
    assert np.allclose(np.squeeze(result), 2 * IMAGE)


def plane():
    return vp.from_cases([{"image": np.zeros((40, 48, 1), np.uint8)}]).open_volume(axes="xyz")


THIRD = {
    "rotate": (lambda p: p.rotate((0, 0, 15)), "2-D data turn by one"),
    "angles": (lambda p: p.augment(rotate=(15, 0, 0)), "2-D data turn by one"),
    "chances": (lambda p: p.augment(flip=(0.5, 0.5, 0.5)), "one for each of the two axes"),
    "flip": (lambda p: p.flip(2), "axes 0 and 1"),
    "rotate90": (lambda p: p.rotate90(1, (0, 2)), "axes 0 and 1"),
    "choice": (lambda p: p.one_of([Rotate((0, 0, 15))]), "2-D data turn by one"),
    "shear": (lambda p: p.shear((0, 0.1, 0.1)), "three shears"),
    "shears": (lambda p: p.augment(shear=(0.1, 0, 0)), "three shears"),
    "zoom": (lambda p: p.zoom((1, 1.1, 1.2)), "three values of factor="),
    "translate": (lambda p: p.translate((3, 3, (0, 3))), "three values of amount="),
    "spacing": (lambda p: p.spacing((1, 1, 2)), "three values of spacing="),
    "elastic": (lambda p: p.elastic((0, 1, 2), spacing=8), "three values of amount="),
    "nodes": (lambda p: p.elastic(1, spacing=(8, 8, 4)), "three values of spacing="),
    "largest": (lambda p: p.elastic(1, spacing=(5, 8, 8)), "three values of spacing="),
    "factors": (
        lambda p: p.grid_distortion(factors=((1, 1), (1, 1), (1, 1))),
        "three values of factors=",
    ),
    "cells": (lambda p: p.grid_distortion(cells=(4, 4, 2)), "three values of cells="),
    "pad": (lambda p: p.pad((1, 1, (0, 1))), "three values of amount="),
    "crop": (lambda p: p.random_crop((8, 8, 2)), "three values of size="),
    "zooms": (lambda p: p.augment(zoom=(1, 1, (0.9, 1.1))), "three values of zoom="),
}


@pytest.mark.parametrize("name", THIRD)
def test_a_third_axis_of_two_dimensional_data_is_refused(name):
    """At once where the chain has two axes, and by the plan where an adapter puts them."""
    chain, words = THIRD[name]
    with pytest.raises(SampleError, match=words):
        next(iter(chain(plane().lazy_patch((16, 16))).batch_patches(1)))
    with pytest.raises(SampleError, match=words):
        next(iter(vp.DataLoader2(chain(plane()).batch_patches(1), [vp.adapters.ToAxes("yx")])))


@pytest.mark.parametrize(
    ("chain", "words"),
    [
        (lambda p: p.elastic((0, 1, 2), spacing=(8, 8)), "spacing= has two values, and amount="),
        (lambda p: p.lazy_patch((8, 8), sampling="grid", overlap=(2, 2, 2)), "and overlap= three"),
    ],
)
def test_two_values_of_one_argument_and_three_of_another_are_refused(chain, words):
    """Neither is the number of axes."""
    with pytest.raises(SampleError, match=words):
        chain(plane())


ONE_VALUE = {
    "cells": lambda p: p.grid_distortion(),
    "two cells": lambda p: p.grid_distortion(cells=2),
    "factors": lambda p: p.grid_distortion(factors=((1, 1.2), (1, 1))),
    "scale": lambda p: p.center_crop(scale=0.5),
    "random scale": lambda p: p.random_crop(scale=0.5),
    "spacing": lambda p: p.elastic(1),
}


@pytest.mark.parametrize("name", ONE_VALUE)
def test_one_value_is_for_both_axes_of_two_dimensional_data(name):
    """Also before to_axes(), and where the op keeps three."""
    case = {"image": np.ones((40, 48, 1), np.uint8)}
    opened = vp.from_cases([case]).open_volume(axes="xyz")
    chain = ONE_VALUE[name]
    before, after = chain(opened.to_axes("yx")), chain(opened).to_axes("yx")

    for pipe in (before, after):
        voxels = next(iter(pipe.center_crop((8, 8))))["image"].realize()
        assert voxels.shape == (1, 8, 8)
        assert voxels.all()


def test_draws_of_two_dimensional_data_are_printed_with_two_axes():
    """One angle and two numbers in samples and batches; a turn of the stack before has three."""
    pipe = plane().lazy_patch((16, 16)).rotate(((-15, 15),)).zoom((0.9, 1.1)).shear(0.1)
    pipe = pipe.flip(p=(1, 1)).transpose((1, 0))
    lines = str(next(iter(pipe))).splitlines()
    draws = {line.split()[1]: line.split(maxsplit=2)[2] for line in lines if "drew" in line}
    assert list(draws) == ["lazy_patch", "rotate", "zoom", "shear", "flip", "transpose"]
    assert draws["lazy_patch"].endswith("size=(16, 16)")
    assert draws["rotate"].startswith("degrees=")
    assert "(" not in draws["rotate"]
    assert draws["zoom"].count(",") == draws["flip"].count(",") == 1
    assert (draws["shear"], draws["transpose"]) == ("factor=0.1", "axes=(1, 0)")
    batch = next(iter(pipe.batch_patches(1)))
    assert "shear: factor=0.1" in facts_of_batch(batch)[-1][1]
    stack = vp.from_cases([{"image": np.zeros((8, 8, 3))}]).open_volume(axes="xyz")
    stack = stack.rotate((0, 0, 5)).lazy_patch((4, 4, 1)).to_axes("yx").rotate(3)
    text = str(next(iter(stack)))
    assert [part in text for part in ("degrees=(0, 0, 5)", "degrees=3", "to_axes")] == [1, 1, 0]


@pytest.mark.parametrize("library", [np, torch], ids=["numpy", "torch"])
@pytest.mark.parametrize("shape", [(8, 8, 8), (6, 7, 8)])
def test_predictions_in_arrays_have_the_axes_of_the_chain(shape, library):
    """The shape of a cube does not tell; an array in another order is refused."""
    voxels = np.random.default_rng(0).integers(0, 4000, shape).astype("u2")
    case = {"case": "a", "image": vp.Volume(voxels, axes="zyx")}
    chain = vp.from_cases([case]).open_volume().to_axes("zyx").lazy_patch(5, sampling="grid")

    def model(images):
        return torch.cat([2000.0 - images.float(), images.float() - 2000.0], 1)

    result = library.zeros((1, *shape), dtype=library.uint8)
    volume = vp.predict(model, chain, result)["a"]
    np.testing.assert_array_equal(np.asarray(result)[0], voxels > 2000)
    np.testing.assert_array_equal(volume.numpy()[0].transpose(2, 1, 0), voxels > 2000)
    in_memory = vp.predict(model, chain)["a"]
    np.testing.assert_array_equal(in_memory.numpy(), volume.numpy())
    if len({*shape}) > 1:
        with pytest.raises(PatchSizeError, match=r"\(C, z, y, x\)"):
            vp.predict(model, chain, np.zeros((1, *shape[::-1]), "u1"))
