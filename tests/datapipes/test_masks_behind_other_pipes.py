"""Where patches and crops lie when displacements, flushes or new labels came before."""

from __future__ import annotations

from typing import Any

import nibabel
import numpy as np
import pytest
from eager_chains import Eager

import voxpipe as vp
from voxpipe.core.errors import SampleError
from voxpipe.spatial import forget_masks

SHAPE = (24, 22, 20)


@pytest.fixture(autouse=True)
def forgotten(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "cache"))
    forget_masks()


def opened() -> Any:
    label = np.zeros(SHAPE, np.uint8)
    label[12:15, 5:9, 8:11] = 1
    label[3:5, 16:18, 14:16] = 4
    return vp.from_cases([{"image": label * np.float32(100), "label": label}]).open_volume()


def shares(pipe: Any, label: int = 1) -> list[bool]:
    return [bool((sample["label"].realize() == label).any()) for sample in pipe]


def test_a_mask_file_on_another_grid_is_another_mask(tmp_path: Any) -> None:
    """Counts on disk are those of the file with its affine, whoever gave that."""
    label = np.zeros((16, 16, 16), np.uint8)
    label[2:4] = 1
    nibabel.save(nibabel.Nifti1Image(label, np.eye(4)), tmp_path / "m.nii")
    moved = np.eye(4)
    moved[0, 3] = 8
    middles = []
    for affine in (np.eye(4), moved):
        forget_masks()  # as another process would be
        mask = vp.Volume(tmp_path / "m.nii", affine=affine)
        pipe = vp.from_cases([{"image": np.zeros((16, 16, 16))}]).open_volume()
        pipe = pipe.lazy_patch(4, samples_per_volume=8, mask=mask)
        starts = [sample["image"].draws["lazy_patch"]["start"][0] for sample in pipe]
        middles.append(np.mean(starts) + 2)

    assert middles[0] < 5
    assert 9 < middles[1] < 13


def test_patches_follow_a_displacement() -> None:
    """The class is in the patch, however far the field moved it."""
    pipe = opened().grid_distortion(0.4)
    pipe = pipe.lazy_patch(8, samples_per_volume=30, mask="label", class_weights={1: 1})
    assert shares(pipe) == [True] * 30


def test_patches_follow_flushes_and_are_one_place_for_all_volumes() -> None:
    """A blur starts the image anew, not the label: both must be cut at one place."""
    chains = [
        opened().rotate((0, 0, 20)).flush().flip(0),
        opened().rotate((0, 0, 20)).blur(0.5, unit="voxel").flip(0),
        opened().rotate((0, 0, 20)).flush(keys="label").flip(0),
        Eager()(opened().rotate((0, 0, 20)).flip(0)),
    ]
    given = {"samples_per_volume": 12, "mask": "label", "class_weights": {1: 1}}
    for chain in chains:
        for sample in chain.lazy_patch(7, **given):
            drawn = sample["image"].draws["lazy_patch"]
            assert sample["label"].draws["lazy_patch"] == drawn
            assert (sample["label"].realize() == 1).any()


def test_a_crop_about_labels_is_one_for_all_volumes() -> None:
    """Turned, then blurred: the box is that of the stored label, turned once."""
    for chain in (
        opened().rotate((0, 0, 20)).flush().flip(0),
        opened().rotate((0, 0, 20)).blur(0.5, unit="voxel").flip(0),
    ):
        sample = next(iter(chain.foreground_crop("label", classes=1, margin=1)))
        fused = opened().rotate((0, 0, 20)).flip(0).foreground_crop("label", classes=1, margin=1)
        wanted = next(iter(fused))["label"].draws["foreground_crop"]
        assert sample["image"].draws["foreground_crop"] == wanted
        assert sample["label"].draws["foreground_crop"] == wanted


def test_labels_are_meant_as_the_chain_has_them() -> None:
    """4 was called 1 before the crop, 1 was taken away."""
    renamed = opened().remap_labels({1: 0, 4: 1})
    for pipe in (
        renamed.label_crop(6, classes=1),
        renamed.foreground_crop("label", classes=1),
        renamed.lazy_patch(6, samples_per_volume=9, mask="label", class_weights={1: 1}),
        renamed.flush().flip(0).lazy_patch(6, mask="label", class_weights={1: 1}),
    ):
        for sample in pipe:
            inside = sample["label"].realize() == 1
            assert inside.any()
            assert np.array_equal(sample["image"].realize() == 400, inside)
    joined = opened().remap_labels({1: 7, 4: 7})
    pipe = joined.lazy_patch(6, samples_per_volume=20, mask="label", class_weights={7: 1})
    found = {int(sample["image"].realize().max()) for sample in pipe}
    assert found == {100, 400}
    assert all(s["label"].draws["lazy_patch"]["class"] == 7 for s in pipe)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda p: p.remap_labels({1: 0}).label_crop(6), "changes which labels"),
        (lambda p: p.remap_labels({1: 0}).lazy_patch(6, mask="label"), "changes which labels"),
        (lambda p: p.remap_labels({1: 0}).normalize(inside="label"), "changes which labels"),
        (lambda p: p.remap_labels({4: 1}).label_crop(6, classes=4), "no label becomes"),
        (lambda p: p.remap_labels({4: 1}, unknown=9).label_crop(6, classes=9), "does not name"),
        (lambda p: p.one_hot(5).label_crop(6, classes=4), "as it is stored"),
    ],
    ids=["crop", "patch", "normalize", "gone", "others", "one_hot"],
)
def test_what_nobody_can_map_back_is_refused(wrong: Any, words: str) -> None:
    """With the line, and what to do."""
    with pytest.raises(SampleError, match=words) as caught:
        next(iter(wrong(opened())))
    assert caught.value.do
