"""What a blur starts anew keeps its surroundings, and knows where it comes from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import voxpipe as vp


def image() -> Any:
    i, j, k = np.ogrid[:24, :24, :24]
    return (1000 + i + 10 * j + 100 * k).astype(np.float32)


def opened() -> Any:
    return vp.from_cases([{"image": image()}]).open_volume()


def test_a_soft_crop_stays_soft_behind_a_blur() -> None:
    """Corners come from the volume, as they do without the blur."""
    crop = opened().crop((8,) * 3, (8,) * 3)
    plain = next(iter(crop.rotate((0, 0, 45))))["image"]
    blurred = next(iter(crop.blur(0.01, unit="voxel").rotate((0, 0, 45))))["image"]

    np.testing.assert_allclose(blurred.realize(), plain.realize(), atol=0.01)
    assert blurred.shape == plain.shape
    np.testing.assert_allclose(blurred.affine, plain.affine, atol=1e-12)
    padded = next(iter(crop.blur(0.01, unit="voxel").pad(2)))["image"].realize()
    np.testing.assert_allclose(padded[0], image()[6:18, 6:18, 6:18], atol=0.01)


def test_a_flush_and_a_hard_crop_are_hard() -> None:
    """There is nothing around what was asked to be gone."""
    edge = image()[8, 8, 8]
    for pipe in (
        opened().crop((8,) * 3, (8,) * 3).flush(),
        opened().crop((8,) * 3, (8,) * 3, hard=True).blur(0.01, unit="voxel"),
    ):
        found = next(iter(pipe.pad(2)))["image"].realize()
        np.testing.assert_allclose(found[0, :3, :3, :3], edge, atol=0.01)


@pytest.mark.parametrize(
    "between",
    [lambda p: p, lambda p: p.flush(), lambda p: p.blur(0.5, unit="voxel")],
    ids=["fused", "flush", "blur"],
)
def test_sources_give_the_whole_way(between: Any) -> None:
    """``file`` is the stored volume, so region and matrix are of that one."""
    pipe = between(opened().flip(0).crop((2, 3, 4), (12, 12, 12))).flip(1)
    pipe = pipe.crop((1, 1, 1), (5, 5, 5))
    (batch,) = vp.DataLoader2(pipe.realize().batch_patches(1))
    told = batch["meta"][0]["sources"]["image"]
    first = np.array(told["matrix"]) @ [0, 0, 0, 1]

    np.testing.assert_allclose(first[:3], [20, 13, 5], atol=1e-9)
    # What a blur looks at around the patch is read, too.
    for (a, b), start, stop in zip(told["region"], (16, 9, 5), (21, 14, 10), strict=True):
        assert a <= start < stop <= b
    patch = next(iter(pipe))["image"]
    np.testing.assert_allclose(patch.whole_plan.points_to_source([[0, 0, 0]])[0], [20, 13, 5])
    back = patch.whole_plan.inverse()
    assert back.shape == (24, 24, 24)
    np.testing.assert_allclose(back.points_to_output([[0, 0, 0]])[0], [20, 13, 5], atol=1e-9)
