"""Crops and patches about voxels that a function of the user selects."""

import logging
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from zarr_arrays import add_array

import voxpipe as vp
from voxpipe.core import IO_COUNTERS
from voxpipe.core.errors import GraphError, PatchSizeError, SampleError

IMAGE = np.zeros((12, 11, 10), np.float32)
IMAGE[3:6, 4:9, 2:4] = 5.0
IMAGE[8, 1, 7] = -7.0


def above(array: Any) -> Any:
    """Select high values."""
    return array > 2


def below(array: Any) -> Any:
    """Select values under the mean of the whole volume, less 1."""
    return array < array.mean() - 1


def both(array: Any) -> Any:
    """Select where two channels differ, as one mask of three axes."""
    return array[0] != array[1]


def of_time(array: Any) -> Any:
    """Depend on more than voxels."""
    import os

    return array > float(os.environ["LIMIT"])


def counted(array: Any) -> Any:
    """Log each call."""
    logging.getLogger("calls").info("%s", array.shape)
    return array > 2


def opened(*images: Any) -> Any:
    return vp.from_cases([{"image": image} for image in images or (IMAGE,)]).open_volume()


def box(pipe: Any) -> list[list[int]]:
    """Return the box of the first sample, in voxels of the file."""
    patch = next(iter(pipe))["image"]
    start = patch.affine[:3, 3].astype(int)
    return [start.tolist(), (start + patch.shape[1:]).tolist()]


@pytest.mark.parametrize("margin", [0, 1, (2, 0, 1)])
@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("function", [above, below, lambda array: abs(array) > 2])
def test_the_box_is_monais(function: Any, margin: Any, k: int) -> None:
    """For a threshold, and for a function that needs the whole volume."""
    # Not at the top: workers import this module, and MONAI warns when it is imported.
    from monai.transforms import CropForeground

    crop = CropForeground(function, margin=margin, k_divisible=k, allow_smaller=False)
    start, stop = crop.compute_bounding_box(torch.from_numpy(IMAGE[None]))

    pipe = opened().foreground_crop(select_fn=function, margin=margin, divisible=k, overhang=True)

    assert box(pipe) == [start.tolist(), stop.tolist()]


def test_the_box_of_two_channels_is_monais() -> None:
    """A channel of interest is enough; a function may return three axes."""
    from monai.transforms import CropForeground

    image = np.stack([IMAGE, np.zeros_like(IMAGE)])
    start, stop = CropForeground(above).compute_bounding_box(torch.from_numpy(image))

    assert box(opened(image).foreground_crop(select_fn=above)) == [start.tolist(), stop.tolist()]
    assert box(opened(image).foreground_crop(select_fn=both)) == [[3, 1, 2], [9, 9, 8]]


def test_the_function_is_called_once_per_content(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """With the whole volume; not again in later epochs, nor for another chain."""
    path = tmp_path / "a.npy"
    np.save(path, IMAGE)
    caplog.set_level(logging.INFO, "calls")
    for _ in range(2):
        pipe = vp.from_cases([{"image": str(path)}]).open_volume()
        pipe = pipe.foreground_crop(select_fn=counted)
        for _ in range(2):
            assert next(iter(pipe))["image"].shape == (1, 3, 5, 2)

    assert caplog.messages == ["(1, 12, 11, 10)"]
    np.save(path, IMAGE[::-1] + 3)
    assert next(iter(pipe))["image"].shape == (1, 12, 11, 10)
    assert len(caplog.messages) == 2


def pyramid(folder: Any) -> str:
    """Write an OME-Zarr whose second level is half as fine, by another library."""
    root = zarr.create_group(str(folder / "a.zarr"), zarr_format=2)
    fine = np.zeros((16, 16, 16), np.float32)
    fine[4:8, 6:10, 2:12] = 5.0
    for name, array in {"0": fine, "1": fine[::2, ::2, ::2]}.items():
        add_array(root, name, data=array, chunks=(4, 4, 4))
    scale = {"0": 1.0, "1": 2.0}
    datasets = [
        {"path": p, "coordinateTransformations": [{"type": "scale", "scale": [s] * 3}]}
        for p, s in scale.items()
    ]
    axes = [{"name": n, "type": "space", "unit": "millimeter"} for n in "zyx"]
    root.attrs["multiscales"] = [{"version": "0.4", "axes": axes, "datasets": datasets}]
    return str(folder / "a.zarr")


def test_a_coarse_level_is_read_instead(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Its box has at most a voxel of that level more on each side, and an eighth is read."""
    caplog.set_level(logging.INFO, "calls")
    opened_file = vp.from_cases([{"image": pyramid(tmp_path)}]).open_volume()
    exact = next(iter(opened_file.foreground_crop(select_fn=counted)))["image"]
    coarse = next(iter(opened_file.foreground_crop(select_fn=counted, level=1)))["image"]

    assert exact.shape == (1, 10, 4, 4)
    assert coarse.shape > exact.shape
    assert all(a <= b <= a + 6 for a, b in zip(exact.shape, coarse.shape, strict=True))
    assert caplog.messages == ["(1, 16, 16, 16)", "(1, 8, 8, 8)"]
    caplog.clear()
    drawn = opened_file.lazy_patch(4, mask="image", select_fn=counted, level=1)
    assert next(iter(drawn))["image"].realize().max() == 5.0
    assert caplog.messages == ["(1, 8, 8, 8)"]


def middles(pipe: Any) -> set[float]:
    """Return the values in the middle of all patches of size 1."""
    return {float(sample["image"].realize().item()) for sample in pipe}


def test_patches_are_drawn_about_selected_voxels() -> None:
    """Each is a voxel of the mask, and every voxel of it is drawn."""
    pipe = opened().lazy_patch(1, samples_per_volume=300, mask="image", select_fn=above)

    assert middles(pipe) == {5.0}
    places = {tuple(s["image"].draws["lazy_patch"]["start"]) for s in pipe}
    assert len(places) == 30
    assert middles(opened().lazy_patch(1, samples_per_volume=9, mask="image", select_fn=below)) == {
        -7.0
    }


def test_the_mask_equals_one_that_is_stored() -> None:
    """The same draws as by the label of the selected voxels, with the other options too."""
    label = (IMAGE > 2).astype(np.uint8)
    cases = vp.from_cases([{"image": IMAGE, "label": label}]).open_volume()
    for options in (
        {"samples_per_volume": 20},
        {"samples_per_volume": 20, "min_fraction": 0.2},
        {"samples_per_volume": 20, "fallback": "anywhere"},
        {"sampling": "grid"},
    ):
        places = [
            [tuple(s["image"].whole_plan.affine[:3, 3]) for s in chain]
            for chain in (
                cases.lazy_patch(4, mask="label", name="p", **options),
                cases.lazy_patch(4, mask="image", select_fn=above, name="p", **options),
            )
            if torch.manual_seed(4)
        ]
        assert places[0] == places[1]


def test_it_moves_with_earlier_pipes() -> None:
    """The function sees the file, and the mask turns with the volume."""
    turned = opened().flip(0).rotate90(1)
    pipe = turned.lazy_patch(1, samples_per_volume=20, mask="image", select_fn=above)

    assert middles(pipe) == {5.0}


@pytest.mark.parametrize("kind", ["crop", "patch"])
@pytest.mark.parametrize("service", [vp.MultiProcessingReadingService, vp.ThreadReadingService])
def test_batches_of_workers_are_the_same(kind: str, service: Any) -> None:
    """A function at the top of a module travels to them."""
    pipe = opened(IMAGE, IMAGE * 2)
    if kind == "crop":
        pipe = pipe.foreground_crop(select_fn=above)
    else:
        pipe = pipe.lazy_patch(2, samples_per_volume=2, mask="image", select_fn=above)
    pipe = pipe.flip(0).batch_patches(2)
    with vp.DataLoader2(pipe, None, service(1), seed=3) as loader:
        made = [batch["image"].clone() for batch in loader]
    with vp.DataLoader2(pipe, seed=3) as loader:
        expected = [batch["image"].clone() for batch in loader]

    assert len(made) == len(expected) > 0
    assert all(torch.equal(a, b) for a, b in zip(made, expected, strict=True))


def test_a_lambda_is_refused_for_workers_by_name() -> None:
    """Without workers it is fine."""
    pipe = opened().foreground_crop(select_fn=lambda array: array > 2).batch_patches(1)

    with pytest.raises(GraphError, match="lambda"):
        vp.DataLoader2(pipe, None, vp.MultiProcessingReadingService(num_workers=1))
    with vp.DataLoader2(pipe) as loader:
        assert next(iter(loader))["image"].shape == (1, 1, 3, 5, 2)


def test_no_voxel_is_read_to_describe_it() -> None:
    """Construction and words of the chain read nothing."""
    before = IO_COUNTERS.snapshot()

    text = str(opened().foreground_crop(select_fn=above))
    op = vp.spatial.ForegroundCrop("image", select_fn=above)

    assert (IO_COUNTERS.snapshot() - before).reads == 0
    assert "select_fn" in text
    assert op.describe() == "crop to voxels by above of 'image'"
    assert op == vp.spatial.ForegroundCrop("image", select_fn=above)
    assert op != vp.spatial.ForegroundCrop("image", select_fn=below)


REFUSED = {
    "no function": (lambda: opened().foreground_crop(select_fn=3), "select_fn is a function"),
    "two": (
        lambda: opened().foreground_crop(select_fn=above, above=0),
        "classes= or select_fn=",
    ),
    "outside": (lambda: opened().foreground_crop(select_fn=of_time), "cannot be kept"),
    "mask": (lambda: opened().lazy_patch(4, select_fn=above), "select_fn belongs to mask="),
    "level": (lambda: opened().lazy_patch(4, mask="image", level=1), "level belongs to select_fn="),
    "weights": (
        lambda: opened().lazy_patch(4, weights="image", select_fn=above),
        "select_fn selects the voxels inside",
    ),
    "classes": (
        lambda: opened().lazy_patch(4, mask="image", select_fn=above, class_weights={1: 1}),
        "select_fn makes a mask without labels",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_at_construction(case: str) -> None:
    """By name."""
    wrong, words = REFUSED[case]
    with pytest.raises(ValueError, match=words):
        wrong()


def flat(array: Any) -> Any:
    """Forget the axes."""
    return array.ravel() > 0


LATE = {
    "shape": (lambda: opened().foreground_crop(select_fn=flat), SampleError, "Return a mask of"),
    "values": (
        lambda: opened().normalize(mean=0, std=2).foreground_crop(select_fn=above),
        SampleError,
        r"foreground_crop\(select_fn=\) looks at 'image' as it is stored",
    ),
    "values of a mask": (
        lambda: opened().normalize(mean=0, std=2).lazy_patch(4, mask="image", select_fn=above),
        SampleError,
        r"lazy_patch\(select_fn=\) looks at 'image' as it is stored",
    ),
    "nothing": (
        lambda: opened(IMAGE * 0).foreground_crop(select_fn=above),
        PatchSizeError,
        "no voxels by above of 'image'",
    ),
}


@pytest.mark.parametrize("case", LATE)
def test_what_a_volume_does_not_allow_is_refused(case: str) -> None:
    """With the first sample."""
    wrong, error, words = LATE[case]
    with pytest.raises(error, match=words):
        next(iter(wrong()))["image"].realize()
