"""The example that trains, validates, predicts and saves, on two scans of a few voxels."""

import sys

import nibabel
import numpy as np
import pytest
import torch
from checkout import ROOT

sys.path.insert(0, str(ROOT / "examples"))
import segment

AFFINE = np.array([[0, -1.0, 0, 10], [1.0, 0, 0, -4], [0, 0, 1.0, 7], [0, 0, 0, 1]])


@pytest.fixture
def cases(tmp_path):
    found = []
    for name, held_out in (("one", False), ("two", True)):
        generator = np.random.default_rng(len(found))
        label = generator.integers(0, 3, (50, 48, 49)).astype(np.uint8)
        paths = [tmp_path / f"{name}_{key}.nii.gz" for key in ("image", "label")]
        nibabel.save(nibabel.Nifti1Image((label * 100).astype(np.int16), AFFINE), paths[0])
        nibabel.save(nibabel.Nifti1Image(label, AFFINE), paths[1])
        found.append(segment.Case(name, *paths, held_out))
    return found


def test_it_trains_on_cases_that_are_not_held_out(cases):
    """Patches in batches, of the first case alone, normalised; labels at three scales."""
    batch = next(iter(segment.training(cases)))

    assert batch["image"].shape == (4, 1, 48, 48, 48)
    assert [tuple(label.shape[2:]) for label in batch["label"]] == [(48,) * 3, (24,) * 3, (12,) * 3]
    assert {meta["case"] for meta in batch["meta"]} == {"one"}
    assert set(batch["label"][0].unique().tolist()) <= {0, 1, 2}


def test_the_network_is_told_the_truth_at_every_scale(cases):
    """A batch moves the weights of each of its outputs; afterwards it gives one."""
    network = segment.new_network(classes=3, is_deep=True)
    before = [score.weight.clone() for score in (network.score, *network.coarser_scores)]
    segment.train(network, iter([next(iter(segment.training(cases)))]), seconds=60)

    after = [score.weight for score in (network.score, *network.coarser_scores)]
    assert len(after) == len(segment.SCALES)
    assert not any(torch.equal(*pair) for pair in zip(before, after, strict=True))
    assert network.eval()(torch.zeros(1, 1, 8, 8, 8)).shape == (1, 3, 8, 8, 8)


def test_whole_scans_are_predicted_where_they_lie(cases, tmp_path):
    """One NIfTI and one picture a held-out case, on the grid of its scan; Dice of each class."""

    def classes(batch):  # as of a network that was trained well: the greys tell the class
        found = 2 * (batch - batch.amin()) / (batch.amax() - batch.amin())
        return 1 - (found - torch.arange(3.0).reshape(1, 3, 1, 1, 1)).abs()

    scores = segment.validate(classes, [cases[1]], tmp_path)

    image = nibabel.load(tmp_path / "predictions" / "two.nii.gz")
    assert np.allclose(image.affine, AFFINE)
    assert image.shape == (50, 48, 49)
    assert scores == {1: 1.0, 2: 1.0}
    assert (tmp_path / "two.png").stat().st_size > 0
