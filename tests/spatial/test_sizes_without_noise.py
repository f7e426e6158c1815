"""The last digit of a header decides no size: volumes that are alike give patches of one size."""

from __future__ import annotations

import math
from typing import Any

import nibabel as nib
import numpy as np
import pytest

import voxpipe as vp
from voxpipe.spatial.plans.mapping import without_noise


def turned(degrees: float, spacing: float) -> Any:
    """An affine that turns in plane, as a float32 header keeps it."""
    angle = math.radians(degrees)
    affine = np.diag([spacing, spacing, spacing, 1.0])
    affine[:2, :2] = spacing * np.array(
        [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    )
    return affine.astype(np.float32)


@pytest.mark.parametrize("extent", ["edges", "centers"])
def test_files_of_one_size_stay_so(extent: str, tmp_path: Any) -> None:
    """101 voxels of half a millimetre are 50.5 of one, however the volume lies: 50, and a batch."""
    voxels = np.zeros((101, 101, 5) if extent == "edges" else (100, 100, 5), np.uint8)
    cases = []
    for number in range(60):
        image = nib.Nifti1Image(voxels, None)
        image.set_sform(turned(number / 2, 0.5), 1)
        image.to_filename(tmp_path / f"{number}.nii")
        cases.append({"image": str(tmp_path / f"{number}.nii")})

    pipe = vp.from_cases(cases).open_volume().spacing((1.0, 1.0, None), extent=extent)
    (batch,) = pipe.batch_patches(60)

    assert tuple(batch["image"].shape) == (60, 1, 50, 50, 5)


SIZES = {
    "spacing": (lambda p: p.spacing((1.0, 0.8, 0.4)), (50, 50, 25)),
    "centers": (lambda p: p.spacing((0.2, 2.0, 0.5), extent="centers"), (251, 20, 20)),
    "zoom": (lambda p: p.zoom((1.1, 1.1, 1.5), keep_size=False), (111, 44, 30)),
    "turn": (lambda p: p.rotate((0, 0, 90), keep_size=False), (80, 50, 20)),
    "quarter": (lambda p: p.rotate((0, 90, 0), keep_size=False), (20, 40, 101)),
    "longest": (lambda p: p.zoom(1.1).resize(50, longest=True), (50, 20, 10)),
    "part": (lambda p: p.rotate(1.0).center_crop(scale=0.7), (71, 28, 14)),
    "chain": (lambda p: p.spacing(1.0).foreground_crop(), (24, 16, 10)),
}


@pytest.mark.parametrize("op", SIZES)
def test_no_op_counts_noise(op: str) -> None:
    """Each op that finds a size, with headers a ten millionth larger and smaller on each axis."""
    chain, expected = SIZES[op]
    spacing, image = np.array([0.5, 1.0, 0.5]), np.zeros((101, 40, 20), np.uint8)
    image[20:69, 11:27] = 1
    found = set()
    for signs in np.ndindex(3, 3, 3):
        noisy = spacing * (1 + 1e-7 * (np.array(signs) - 1))
        cases = [{"image": vp.Volume(image, affine=np.diag([*noisy, 1.0]))}]
        found.add(next(iter(chain(vp.from_cases(cases).open_volume())))["image"].shape[1:])

    assert found == {expected}


def test_what_is_no_noise_counts() -> None:
    """A guard takes a millionth, and no more."""
    assert without_noise(50.499) == 50.499
    assert without_noise(11 - 2e-15) == 11
    assert without_noise(1000.498) == 1000.498
    assert without_noise(1000.50001) == 1000.5
    assert without_noise(0.00001, size=100) == 0
    assert without_noise(0.00001) == 0.00001
