"""Levels of written labels are those of their image, also where its writer rounds down."""

import numpy as np
import pytest
import zarr
from ome_files import set_ome
from zarr_arrays import add_array

import voxpipe as vp
from voxpipe.core.errors import SampleError, VolumeNotFound

SHAPE = (9, 101, 67)
SHAPES = {"down": [SHAPE, (9, 50, 33), (9, 25, 16)], "up": [SHAPE, (9, 51, 34), (9, 26, 17)]}


def write_levels(path, shapes, exact):
    """Write an image of zeros; ``exact`` scales cover the same box by fewer voxels."""
    group = zarr.open_group(path, mode="w")
    axes = [{"name": axis, "type": "space", "unit": "micrometer"} for axis in "zyx"]
    datasets = []
    for number, shape in enumerate(shapes):
        add_array(group, str(number), data=np.zeros(shape, np.uint8))
        factors = np.divide(SHAPE, shape) if exact else np.array([1, 2**number, 2**number])
        scale = np.array([2.0, 0.5, 0.5]) * factors
        origin = np.array([10.0, 20, 30]) + (scale - [2.0, 0.5, 0.5]) / 2
        steps = [{"type": "scale", "scale": scale.tolist()}]
        steps.append({"type": "translation", "translation": origin.tolist()})
        datasets.append({"path": str(number), "coordinateTransformations": steps})
    set_ome(group, {"multiscales": [{"axes": axes, "datasets": datasets}]})
    return str(path)


def levels_of(path):
    group = zarr.open_group(path, mode="r")
    image = group.attrs["ome"]["multiscales"][0]
    return [group[one["path"]] for one in image["datasets"]], image["datasets"]


@pytest.mark.parametrize("rounded", SHAPES)
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("first", [0, 1])
def test_labels_have_the_shapes_and_places_of_the_levels(tmp_path, rounded, exact, first):
    """Saved at a level, they fit the image from there on, and ``from_ome`` finds their level."""
    path = write_levels(tmp_path / "a.ome.zarr", SHAPES[rounded], exact)
    image = vp.Volume(path, level=first)
    labels = np.arange(np.prod(image.spatial_shape), dtype=np.uint32).reshape(image.spatial_shape)
    vp.save(f"{path}/labels/own", labels, like=image)
    arrays, places = levels_of(f"{path}/labels/own")
    assert [array.shape for array in arrays] == SHAPES[rounded][first:]
    for array in arrays[1:]:
        factor = round(labels.shape[0] / array.shape[2])
        expected = labels[::factor, ::factor].T[:, : array.shape[1], : array.shape[2]]
        np.testing.assert_array_equal(array[:], expected)
    for own, of_image in zip(places, levels_of(path)[1][first:], strict=True):
        for one, two in zip(own.values(), of_image.values(), strict=True):
            if isinstance(one, list):
                np.testing.assert_allclose(one[0]["scale"], two[0]["scale"], rtol=1e-9)
                np.testing.assert_allclose(one[1]["translation"], two[1]["translation"], rtol=1e-9)
    for level in range(first, 3):
        pipe = vp.from_ome(path, label="own", level=level).open_volume().to_axes("zyx")
        batch = next(iter(pipe.lazy_patch((4, 8, 8)).batch_patches(1)))
        assert batch["label"].shape == (1, 1, 4, 8, 8)
    (sample,) = vp.from_ome(path, label="own", level={"image": first}).open_volume()
    assert sample["image"].shape == sample["label"].shape


@pytest.mark.parametrize("level", [{"label": 1}, -1, True, {"image": "1"}, "1", {"image": -1}])
def test_other_levels_are_refused(tmp_path, level):
    write_levels(tmp_path / "a.ome.zarr", SHAPES["up"], False)
    with pytest.raises(SampleError, match=r"from_ome\(level=\) is"):
        vp.from_ome(tmp_path, level=level)


def test_a_label_group_that_no_list_names_is_a_label(tmp_path):
    """``Volume(label=)`` and ``from_ome(label=)`` find it by its place."""
    path = write_levels(tmp_path / "a.ome.zarr", SHAPES["up"], False)
    write_levels(tmp_path / "a.ome.zarr" / "labels" / "own", SHAPES["up"], False)
    (sample,) = vp.from_ome(path, label="own").open_volume()
    assert sample["label"].shape == vp.Volume(path, label="own").shape
    with pytest.raises(VolumeNotFound, match="no label group 'other'"):
        vp.from_ome(path, label="other")
