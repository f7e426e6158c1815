"""Label groups of OME-Zarr against zarr-python: axes, units, and labels of other images."""

import numpy as np
import pytest
import torch
import zarr
from zarr_arrays import add_array

import voxpipe as vp
from voxpipe.__main__ import main
from voxpipe.core.errors import GridMismatch, VolumeError

SIZES = {"t": 3, "c": 2, "z": 4, "y": 16, "x": 20}
STEPS = {"t": 2.0, "c": 1.0, "z": 2.0, "y": 0.25, "x": 0.25}
TYPES = {"t": {"type": "time", "unit": "second"}, "c": {"type": "channel"}}
SPACE = {"type": "space", "unit": "micrometer"}


def write_image(folder, axes, version=3, sizes=SIZES, levels=1, is_down=False):
    """Write an image by zarr-python: 0.5, or 0.4 in zarr v2; ``is_down`` rounds lengths down."""
    group = zarr.open_group(folder, mode="w", zarr_format=version)
    array = np.arange(np.prod([sizes[a] for a in axes])).reshape([sizes[a] for a in axes])
    array, datasets = array.astype(np.uint16), []
    for level in range(levels):
        part = array[tuple(slice(None, None, 2**level if a in "yx" else 1) for a in axes)]
        if is_down:
            part = part[tuple(slice(sizes[a] // 2**level if a in "yx" else None) for a in axes)]
        add_array(group, str(level), data=part)
        scale = [STEPS[a] * (2**level if a in "yx" else 1) for a in axes]
        way = {"type": "scale", "scale": scale}
        datasets.append({"path": str(level), "coordinateTransformations": [way]})
    image = {"axes": [{"name": a, **TYPES.get(a, SPACE)} for a in axes], "datasets": datasets}
    old = {"multiscales": [{**image, "version": "0.4"}]}
    group.attrs.update({"ome": {"version": "0.5", "multiscales": [image]}} if version == 3 else old)
    return str(folder)


def stored(place):
    """Return the voxels, the axes, the steps and the unit of x of a label group."""
    group = zarr.open_group(place, mode="r")
    (image,) = dict(group.attrs).get("ome", group.attrs)["multiscales"]
    (way, *_) = image["datasets"][0]["coordinateTransformations"]
    axes = "".join(axis["name"] for axis in image["axes"])
    return group["0"][...], axes, way["scale"], image["axes"][-1].get("unit")


class Threshold(torch.nn.Module):
    """Two classes, of values above 100."""

    def forward(self, x):
        return torch.stack([x[:, 0] * 0 + 100.5, x[:, 0].float()], 1)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("axes", ["yx", "cyx", "zyx", "czyx"])
def test_labels_have_the_axes_of_their_image(tmp_path, axes, version):
    """But for channels; the voxels and steps are those of the image, and they are read again."""
    image = write_image(tmp_path / "i.zarr", axes, version)
    own = axes.replace("c", "")
    array = zarr.open_group(image, mode="r")["0"][...]
    expected = (array[0] if "c" in axes else array) > 100
    label = expected.astype(np.uint8)
    pipe = vp.from_ome(image).open_volume().select_channels(0)
    sizes = [n if n > 1 else 1 for n in (20, 16, 4)][: len(own)]
    pipe = pipe.lazy_patch(tuple(sizes), sampling="grid")

    vp.save(f"{image}/labels/saved", label, like=image, axes=own)
    vp.predict(Threshold(), pipe, f"{image}/labels/made", progress=False)

    for name in ("saved", "made"):
        voxels, names, steps, unit = stored(f"{image}/labels/{name}")
        assert np.array_equal(voxels, label)
        assert (names, unit) == (own, "micrometer")
        np.testing.assert_allclose(steps, [STEPS[axis] for axis in own])
        found = vp.Volume(image, label=name)
        assert np.array_equal(np.squeeze(found.numpy()), label.T)
        np.testing.assert_allclose(found.affine, vp.Volume(image).affine)
        chain = vp.from_ome(image, label=name).open_volume().to_axes(own)
        batch = next(iter(chain.batch_patches(1)))
        assert np.array_equal(batch["label"][0, 0].numpy(), label)


@pytest.mark.parametrize("axes", ["tyx", "tzyx"])
def test_labels_of_all_times_have_the_axes_of_their_image(tmp_path, axes):
    """Predicted case by case, and joined."""
    image = write_image(tmp_path / "i.zarr", axes)
    array = zarr.open_group(image, mode="r")["0"][...]
    pipe = vp.from_ome(image).open_volume()
    pipe = pipe.lazy_patch((20, 16) if axes == "tyx" else (20, 16, 4), sampling="grid")

    vp.predict(Threshold(), pipe, f"{image}/labels/made", progress=False)

    voxels, names, steps, unit = stored(f"{image}/labels/made")
    assert np.array_equal(voxels, array > 100)
    assert (names, unit) == (axes, "micrometer")
    np.testing.assert_allclose(steps, [STEPS[axis] for axis in axes])


@pytest.mark.filterwarnings("ignore:times-and-channels")  # of like=
@pytest.mark.parametrize("axes", ["yx", "zyx", "tyx"])
@pytest.mark.parametrize("is_down", [False, True])
def test_pyramids_of_planes(tmp_path, axes, is_down):
    """Levels of the labels follow those of the image; each level takes every second voxel."""
    sizes = {**SIZES, "y": 33, "x": 41}
    image = write_image(tmp_path / "i.zarr", axes, sizes=sizes, levels=3, is_down=is_down)
    label = np.random.default_rng(0).integers(0, 9, [sizes[a] for a in axes]).astype(np.uint8)
    vp.save(f"{image}/labels/saved", label, like=image, axes=axes)

    group = zarr.open_group(f"{image}/labels/saved", mode="r")
    image_levels = zarr.open_group(image, mode="r")
    for level in range(3):
        step = slice(None, None, 2**level)
        y, x = image_levels[str(level)].shape[-2:]
        assert np.array_equal(group[str(level)][...], label[..., step, step][..., :y, :x])
    datasets = group.attrs["ome"]["multiscales"][0]["datasets"]
    scales = [one["coordinateTransformations"][0]["scale"] for one in datasets]
    steps = [STEPS[a] for a in axes]
    assert scales == [[*steps[:-2], 0.25 * 2**level, 0.25 * 2**level] for level in range(3)]


def test_units_of_other_planes(tmp_path):
    """A plane without a z axis has the unit of its pixels."""
    affine = np.diag([0.00025, 0.00025, 1, 1])
    vp.save(tmp_path / "a.ome.zarr", np.ones((4, 5), np.uint8), axes="yx", affine=affine)
    assert stored(tmp_path / "a.ome.zarr")[3] == "micrometer"
    assert vp.Volume(tmp_path / "a.ome.zarr").lengths == "0.25 x 0.25 um"


@pytest.mark.parametrize("version", [2, 3])
def test_labels_of_another_image_are_refused(tmp_path, version):
    """By predict, before the model runs, by save and by convert; nothing is written."""
    image = write_image(tmp_path / "i.zarr", "zyx", version)
    other = write_image(tmp_path / "o.zarr", "zyx", sizes={**SIZES, "x": 12})
    shifted = vp.Volume(image).affine.copy()
    shifted[0, 3] += 2 * 0.00025
    array = np.zeros((20, 16, 4), np.uint8)
    model = torch.nn.Conv3d(1, 2, 1)
    model.register_forward_pre_hook(lambda *_: pytest.fail("the model ran"))
    writes = [
        lambda place: vp.predict(model, other, place, patch=4, progress=False),
        lambda place: vp.save(place, array[:12], like=other),
        lambda place: vp.save(place, array, affine=shifted),
        lambda place: vp.save(place, array[:, :, :3]),
        lambda place: vp.convert(vp.Volume(other), place),
    ]
    for write in writes:
        with pytest.raises(GridMismatch, match=r"labels/a .*i\.zarr of 20x16x4") as caught:
            write(f"{image}/labels/a")
        assert "Resample" in caught.value.do
    assert "labels" not in zarr.open_group(image, mode="r")


def test_labels_that_cover_their_image_are_written(tmp_path):
    """At a coarser level, resampled, flipped, or without a place in the shape of a level."""
    image = write_image(tmp_path / "i.zarr", "zyx", levels=2)
    flipped = vp.Volume(image).affine @ np.diag([-1, 1, 1, 1])
    flipped[0, 3] += 19 * 0.00025
    coarse = vp.Volume(image, level=1)
    sampled = vp.from_cases([{"image": image}]).open_volume().spacing((0.0006, 0.0005, 0.002))
    model = torch.nn.Conv3d(1, 2, 1)

    vp.save(f"{image}/labels/a", np.ones((20, 16, 4), np.uint8), affine=flipped)
    vp.save(f"{image}/labels/b", np.ones(coarse.spatial_shape, np.uint8), like=coarse)
    vp.save(f"{image}/labels/c", np.ones(coarse.spatial_shape, np.uint8))
    patch = next(iter(sampled))["image"]
    with pytest.raises(VolumeError, match="would be float32, and labels are whole numbers"):
        vp.save(f"{image}/labels/d", patch)
    vp.save(f"{image}/labels/d", patch, dtype="uint8")
    vp.predict(model, coarse, f"{image}/labels/e", patch=8, progress=False)

    assert sorted(zarr.open_group(image, mode="r")["labels"]) == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("version", [2, 3])
def test_a_conversion_names_label_groups_that_it_leaves(tmp_path, capsys, version):
    """One image is written; a label group is converted by its own path."""
    place = write_image(tmp_path / "a.zarr", "zyx", version)
    voxels = np.ones((4, 16, 20), np.uint8)
    vp.save(f"{place}/labels/nuclei", voxels, axes="zyx")

    assert main(["convert", place, str(tmp_path / "b.nii.zarr")]) == 0
    assert "label groups are not converted: nuclei." in capsys.readouterr().err
    assert main(["convert", f"{place}/labels/nuclei", str(tmp_path / "c.nii.zarr")]) == 0
    assert "label groups" not in capsys.readouterr().err

    np.testing.assert_array_equal(vp.Volume(tmp_path / "c.nii.zarr").numpy()[0].T, voxels)
