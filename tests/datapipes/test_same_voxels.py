"""The same voxels: with an adapter and without, from a record, and no two noises alike."""

import json
from typing import Any

import numpy as np
import pytest
import torch

import voxpipe as vp
from voxpipe.intensity import Blur, Noise
from voxpipe.spatial import RandomApply
from voxpipe.volumes import Volume

VOLUME = np.random.default_rng(0).normal(100, 10, (24, 22, 20)).astype(np.float32)


def opened(**volumes: Any) -> Any:
    """Pipes of one case."""
    return vp.from_cases([volumes or {"image": VOLUME}]).open_volume()


@pytest.mark.parametrize(
    "change",
    [
        lambda pipe: pipe.blur(1.5, unit="voxel"),
        lambda pipe: pipe.one_of([Blur(1.5, unit="voxel"), Noise(1)]),
        lambda pipe: pipe.low_resolution(2.5),
        lambda pipe: pipe.noise(2.0).clamp(90, 110),
        lambda pipe: pipe.map_values(np.sort),
    ],
    ids=["blur", "choice", "low_resolution", "no halo", "map_values"],
)
def test_fusion_changes_no_voxel_after_realize(change: Any) -> None:
    """realize() leaves no volume around a patch, fused or not."""
    batches = []
    for fuse in (False, True):
        pipe = opened().lazy_patch(8).rotate((-20, 20)).blur(1, unit="voxel").realize()
        torch.manual_seed(1)
        loader = vp.DataLoader2(change(pipe).batch_patches(1), fuse=fuse)
        batches.append(next(iter(loader))["image"])

    assert torch.equal(*batches)


def test_a_refusal_says_where_to_put_the_op() -> None:
    """What cannot be put off is named, and what can is put off."""
    pipe = opened().lazy_patch(8).realize()

    refused = vp.FuseSpatial().rewrite(pipe.blur(1).batch_patches(1)).changes
    moved = vp.FuseSpatial().rewrite(pipe.noise(1).batch_patches(1)).changes

    assert any("blur looks at voxels around a patch" in str(change) for change in refused)
    assert any("change values lazily" in str(change) for change in moved)


@pytest.mark.parametrize(
    "change",
    [
        lambda pipe: pipe.clamp(90, 110, p=0.5),
        lambda pipe: pipe.rescale(p=0.5),
        lambda pipe: pipe.rescale_percentiles(5, 95, p=0.5),
        lambda pipe: pipe.noise((0, 1), p=0.9),
        lambda pipe: pipe.rician_noise((0, 1)),
        lambda pipe: pipe.drop_boxes((1, 3), (0, 0.1)),
        lambda pipe: pipe.drop_channels(0.5, p=0.5),
        lambda pipe: pipe.one_of([Noise(1), Noise(2)]),
        lambda pipe: pipe.random_apply([RandomApply([Noise(1), Noise(1)]), Noise(1)], p=0.5),
    ],
    ids=[
        *("clamp", "rescale", "rescale_percentiles", "noise", "rician_noise", "drop_boxes"),
        *("drop_channels", "one_of", "nested"),
    ],
)
def test_a_record_repeats_every_voxel(change: Any) -> None:
    """Under other seeds, of ops that act now and then and of noise, from JSON."""

    def batch(seed: int, record: Any = None) -> Any:
        torch.manual_seed(seed)
        pipe = change(opened(image=VOLUME, pet=VOLUME).lazy_patch(6))
        pipe = pipe if record is None else pipe.replay(record)
        return next(iter(pipe.batch_patches(1)))

    for seed in range(4):
        first = batch(seed)
        record = json.loads(json.dumps(first["meta"][0]["draws"]))
        again = batch(seed + 100, record)

        assert again["meta"][0]["draws"] == record
        assert torch.equal(again["image"], first["image"])
        assert torch.equal(again["pet"], first["pet"])


def test_noise_of_two_volumes_has_nothing_in_common() -> None:
    """Parameters are drawn for the sample, noise for each volume."""
    flat = np.zeros((16, 16, 16), np.float32)

    sample = next(iter(opened(image=flat, pet=flat).noise(1)))

    image, pet = (sample[key].realize().ravel() for key in ("image", "pet"))
    # 4096 pairs of independent numbers: six deviations of their correlation.
    assert abs(np.corrcoef(image, pet)[0, 1]) < 6 / 64


@pytest.mark.parametrize(
    "members",
    [
        [RandomApply([Noise(1), Noise(1)], p=1), Noise(1)],
        [Noise(1), RandomApply([Noise(1), Noise(1)], p=1)],
        [RandomApply([Noise(1)], p=1), RandomApply([Noise(1)], p=1), Noise(1)],
    ],
)
def test_noises_of_nested_choices_are_independent(members: Any) -> None:
    """Variances of three independent ones add up; equal ones would give 5 or 9."""
    flat = np.zeros((24, 24, 24), np.float32)

    found = next(iter(opened(image=flat).random_apply(members, p=1)))["image"].realize()

    assert found.var() == pytest.approx(3, abs=0.25)


def test_a_mask_of_an_earlier_step_counts() -> None:
    """What an earlier normalize took inside one label is not found for another label."""
    inside = np.zeros(VOLUME.shape, np.uint8)
    inside[:12] = 1
    halves = VOLUME + np.float32(50) * inside
    volume = Volume(halves)
    found = []

    for mask in (inside, 1 - inside):
        cases = [{"image": volume, "label": Volume(mask, kind="label")}]
        pipe = vp.from_cases(cases).open_volume().normalize(inside="label")
        # With a bound, so that no scale and shift of recorded numbers will do.
        sample = next(iter(pipe.rescale_percentiles(1, 99, above=-100)))
        found.append(sample["image"].realize())

    both = np.percentile(halves, (1, 99))
    expected = np.clip((halves - both[0]) / (both[1] - both[0]), 0, 1)
    for array in found:
        assert np.allclose(array[0], expected, atol=2e-3)
