"""The page on prediction: metrics of MONAI, case by case."""

import nibabel as nib
import numpy as np
import pytest
import torch

import voxpipe as vp

metrics = pytest.importorskip("monai.metrics")


@pytest.mark.filterwarnings("ignore:.*always_return_as_numpy:FutureWarning")  # MONAI's own
def test_dice_and_surface_distance_per_case(tmp_path):
    """A model that is right but for one voxel plane: its Dice and its distance are known."""
    label = np.zeros((12, 12, 12), np.uint8)
    label[3:9, 3:9, 3:9] = 1
    predicted = np.zeros_like(label)
    predicted[3:8, 3:9, 3:9] = 1
    for case, image in (("one", label), ("two", predicted)):
        (tmp_path / case).mkdir()
        nib.save(
            nib.Nifti1Image(image.astype(np.float32), np.diag([2.0, 2, 2, 1])),
            tmp_path / case / "ct.nii.gz",
        )
        nib.save(nib.Nifti1Image(label, np.diag([2.0, 2, 2, 1])), tmp_path / case / "seg.nii.gz")
    dice = metrics.DiceMetric(include_background=False)
    surface = metrics.SurfaceDistanceMetric(include_background=False, symmetric=True)

    def model(batch):
        return torch.cat([1 - batch, batch], 1)

    values = {}
    for case in vp.list_cases(f"{tmp_path}/*/", image="ct.nii.gz", label="seg.nii.gz"):
        result = vp.predict(model, case["image"], tmp_path / f"{case.case}.nii.gz", patch=8)
        volumes = (result, vp.Volume(case["label"], kind="label"))
        one_hot = [
            torch.nn.functional.one_hot(v.data[0].long(), 2).movedim(-1, 0)[None] for v in volumes
        ]
        values[case.case] = (
            dice(*one_hot).item(),
            surface(*one_hot, spacing=result.spacing).item(),
        )

    assert values["one"] == (1, 0)
    assert values["two"][0] == pytest.approx(2 * 180 / (180 + 216))
    assert 0 < values["two"][1] < 2  # in millimetres: one plane of six lies a voxel off
    assert dice.aggregate().item() == pytest.approx((1 + values["two"][0]) / 2)
