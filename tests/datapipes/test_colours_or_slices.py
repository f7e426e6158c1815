"""An array of colours, channels first, is a volume of three slices: told, unless it is one."""

import warnings
from typing import Any

import nibabel
import numpy as np
import pytest
import torch

import voxpipe as vp
from voxpipe.core.errors import LikelyMistake

COLOURS = np.zeros((3, 20, 17), np.uint8)


def planes() -> list[Any]:
    """What people have of an image in colours, opacity or not."""
    return [COLOURS, np.zeros((4, 17, 17), np.float32), torch.zeros(3, 32, 20)]


@pytest.mark.parametrize("array", planes(), ids=["uint8", "with opacity", "tensor"])
def test_colours_are_told_once_where_the_volumes_are_opened(array: Any) -> None:
    """With what to write, which then gives a plane of channels."""
    pipe = vp.from_cases([{"image": array}, {"image": array}]).open_volume()

    with pytest.warns(LikelyMistake, match=r"^colours-as-slices: 'image' of shape \(\d") as caught:
        list(pipe)

    (warning,) = caught
    assert warning.filename == __file__
    assert "array[..., None]" in str(warning.message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (sample,) = vp.from_cases([{"image": array[..., None]}]).open_volume()
    assert sample["image"].shape == (*array.shape, 1)


def test_what_is_meant_is_not_told(tmp_path: Any) -> None:
    """Slices with an affine, a header, a label of their shape; and arrays of other shapes."""
    path = str(tmp_path / "slices.nii")
    nibabel.save(nibabel.Nifti1Image(COLOURS, np.eye(4)), path)
    label = np.zeros(COLOURS.shape, np.uint8)
    meant = [
        vp.from_cases([{"image": COLOURS}]).open_volume(affine=np.eye(4)),
        vp.from_cases([{"image": COLOURS}]).open_volume(affine={"image": np.eye(4)}),
        vp.from_cases([{"image": vp.Volume(COLOURS, affine=np.eye(4))}]).open_volume(),
        vp.from_cases([{"image": path}]).open_volume(),
        vp.from_cases([{"image": COLOURS, "label": label}]).open_volume(),
        *(
            vp.from_cases([{"image": np.zeros(shape, np.uint8)}]).open_volume()
            for shape in ((5, 20, 20), (3, 16, 20), (2, 20, 20), (20, 20, 3), (3, 20, 20, 1))
        ),
    ]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for pipe in meant:
            assert len(list(pipe)) == 1
