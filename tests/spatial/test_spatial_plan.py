"""Plans: composition, whole voxels, crops, inverse, description."""

from __future__ import annotations

import numpy as np
import pytest

from voxpipe.core import Grid, Region
from voxpipe.core.affine3x4 import affine3x4
from voxpipe.spatial import (
    LABEL,
    CenterCrop,
    Crop,
    CropOrPad,
    Flip,
    Pad,
    Policy,
    Rotate,
    Rotate90,
    SpatialPlan,
)
from voxpipe.spatial.plans.pull_back import whole_rows


def plan_of(shape: tuple[int, int, int], *, scale: float = 1.0) -> SpatialPlan:
    plan = SpatialPlan.identity(Grid(shape, np.eye(4)))
    return plan.then(np.diag([scale, 1, 1, 1]), shape, lattice=scale == 1)


def test_whole_voxels_are_measured_at_the_far_corner() -> None:
    """A scale of 1.0009 is 1.8 voxels off at the end of 1990 voxels: that is no copy."""
    assert not plan_of((1990, 4, 4), scale=1.0009).is_copy
    assert not plan_of((1990, 4, 4), scale=1 + 1e-7).is_copy
    assert plan_of((1990, 4, 4), scale=1 + 4e-8).is_copy


@pytest.mark.parametrize(
    ("matrix", "is_whole"),
    [
        (np.eye(4), True),
        (np.diag([-1.0, 1, -1, 1]), True),
        (np.eye(4)[[1, 2, 0, 3]], True),
        (np.diag([2.0, 1, 1, 1]), False),
        (np.diag([0.0, 1, 1, 1]), False),
        (np.array([[1.0, 0, 0, 0.5], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]), False),
        (np.full((4, 4), np.nan), False),
        (np.diag([1e300, 1, 1, 1]), False),
    ],
)
def test_whole_voxels_are_signed_permutations_and_shifts(
    matrix: np.ndarray, is_whole: bool
) -> None:
    """Turns, flips and whole shifts are; scales, half shifts and nonsense are not."""
    assert (whole_rows(affine3x4(matrix), (5, 5, 5)) is not None) == is_whole


def test_a_lattice_chain_composes_to_whole_voxels() -> None:
    """Crop, pad, flip and turn in a row are one copy, whatever their number."""
    plan = SpatialPlan.identity(Grid((9, 8, 7), np.diag([0.3, 0.7, 1.9, 1])))

    for op in (Pad(3), Rotate90(1, (0, 2)), Flip(1), Crop((1, 2, 3), (6, 6, 6)), Rotate90(3)):
        drawn = op.draw(np.random.default_rng(0), plan)
        assert drawn is not None
        plan = op.then(plan, drawn)

    assert plan.is_copy
    assert plan.keeps_dtype


def test_a_matrix_is_read_only() -> None:
    """Nobody can change a plan that someone else holds."""
    plan = plan_of((4, 4, 4))

    with pytest.raises(ValueError, match="read-only"):
        plan.matrix[0, 0] = 2
    with pytest.raises(ValueError, match="read-only"):
        plan.affine[0, 0] = 2


def test_an_inverse_brings_the_corners_back() -> None:
    """The inverse maps the source grid to the output grid, and its affine is the source's."""
    plan = SpatialPlan.identity(Grid((9, 8, 7), np.diag([1, 1, 2.5, 1])))
    turned = Rotate((10, 20, 30)).then(plan, {"degrees": [10, 20, 30]}).crop((1, 2, 3), (5, 5, 4))

    back = turned.inverse()

    assert back.shape == (9, 8, 7)
    assert np.allclose(back.affine, plan.affine, atol=1e-12)
    assert np.allclose(back.matrix @ turned.matrix, np.eye(4), atol=1e-12)
    assert back.source == turned.grid


def test_a_flat_plan_has_no_inverse() -> None:
    """A matrix that loses an axis is refused with the matrix."""
    with pytest.raises(ValueError, match="no inverse"):
        plan_of((4, 4, 4), scale=0).inverse()


@pytest.mark.parametrize(
    ("scale", "policy", "region"),
    [
        (1.0, Policy(), Region((0, 0, 0), (5, 4, 4))),
        (0.5, Policy(), Region((0, 0, 0), (3, 4, 4))),
        (0.45, Policy(), Region((0, 0, 0), (3, 4, 4))),
        (0.6, Policy(), Region((0, 0, 0), (4, 4, 4))),
        (0.6, LABEL, Region((0, 0, 0), (3, 4, 4))),
        (9.0, Policy(), Region((0, 0, 0), (5, 4, 4))),
    ],
)
def test_a_source_region_is_no_larger_than_needed(
    scale: float, policy: Policy, region: Region
) -> None:
    """Linear takes both neighbours of a coordinate, nearest one, and a voxel centre is one."""
    assert plan_of((5, 4, 4), scale=scale).source_region(policy) == region


@pytest.mark.parametrize(
    ("padding", "region"),
    [
        ("border", Region((0, 0, 0), (1, 4, 4))),
        ("constant", Region((0, 0, 0), (0, 0, 0))),
        ("zeros", Region((0, 0, 0), (0, 0, 0))),
        ("reflection", Region((1, 0, 0), (4, 4, 4))),
    ],
)
def test_padding_decides_what_is_read_far_outside(padding: str, region: Region) -> None:
    """A patch outside the volume needs its last voxel, nothing, or the mirrored voxels."""
    plan = SpatialPlan.identity(Grid((8, 4, 4), np.eye(4))).crop((-4, 0, 0), (3, 4, 4))

    assert plan.source_region(Policy("linear", padding)) == region


def test_a_soft_crop_keeps_the_volume_around_it() -> None:
    """Cropping and padding back gives the voxels that lie there; hard, it gives padding."""
    plan = SpatialPlan.identity(Grid((10, 10, 10), np.eye(4)))

    soft = plan.crop((3, 3, 3), (4, 4, 4)).crop((-3, -3, -3), (10, 10, 10))
    hard = plan.crop((3, 3, 3), (4, 4, 4), hard=True).crop((-3, -3, -3), (10, 10, 10))

    assert soft.source_region(LABEL) == Region((0, 0, 0), (10, 10, 10))
    assert hard.source_region(LABEL) == Region((3, 3, 3), (7, 7, 7))
    assert hard.bounds == Region((3, 3, 3), (7, 7, 7))
    assert hard.is_copy


def test_a_hard_crop_after_a_flip_narrows_the_right_voxels() -> None:
    """Bounds are kept in source indices, whichever way the grid runs."""
    plan = Flip(0).then(SpatialPlan.identity(Grid((10, 4, 4), np.eye(4))), {"axes": [0]})

    hard = plan.crop((1, 0, 0), (3, 4, 4), hard=True)

    assert hard.bounds == Region((6, 0, 0), (9, 4, 4))


def test_a_hard_crop_after_a_rotation_is_a_clip() -> None:
    """Its faces are oblique in the source, so they cannot be bounds."""
    plan = Rotate(20).then(plan_of((10, 10, 10)), {"degrees": [20, 0, 0]})

    hard = plan.crop((2, 2, 2), (5, 5, 5), hard=True).crop((-1, -1, -1), (7, 7, 7))

    assert hard.bounds == plan.bounds
    assert [clip.shape for clip in hard.kernel_stages.clips] == [(5, 5, 5)]
    assert hard.kernel_stages.clips[0].matrix[:3, 3] == pytest.approx([-1, -1, -1])
    assert not hard.is_copy


def test_crop_and_pad_undo_each_other() -> None:
    """Odd voxels go to the end both ways, so a padded grid crops back to itself."""
    plan = SpatialPlan.identity(Grid((5, 6, 7), np.eye(4)))

    padded = CropOrPad((8, 9, 10)).then(plan, {"size": [8, 9, 10]})
    back = CenterCrop((5, 6, 7)).then(padded, {"size": [5, 6, 7]})

    assert back == plan


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (Crop((2, 0, 0), (4, 4, 4)), r"crop 2:6, 0:4, 0:4 leaves the grid, .* \(5, 4, 4\)"),
        (CenterCrop((4, 5, 4)), r"center crop of \(4, 5, 4\) needs a grid as large"),
    ],
)
def test_a_crop_outside_the_grid_is_refused(op: Crop | CenterCrop, message: str) -> None:
    """The message names the box and the grid, and what to use instead."""
    plan = plan_of((5, 4, 4))

    with pytest.raises(ValueError, match=message) as caught:
        op.then(plan, op.draw(np.random.default_rng(0), plan))
    assert "crop_or_pad" in str(caught.value)


def test_a_plan_explains_itself() -> None:
    """One line says the shapes, the work and the voxels that are read."""
    plan = SpatialPlan.identity(Grid((10, 10, 10), np.eye(4)))
    turned = Rotate(20).then(plan, {"degrees": [20, 0, 0]}).crop((2, 2, 2), (4, 4, 4), hard=True)

    assert plan.explain() == (
        "10x10x10 from 10x10x10: copy of 0:10, 0:10, 0:10; 1000 voxels read, no interpolation"
    )
    assert turned.explain() == (
        "4x4x4 from 10x10x10: affine linear interpolation of 2:6, 1:7, 1:7, "
        "inside 1 hard crop(s); 144 voxels read, 1 interpolation"
    )
    far = plan.crop((50, 0, 0), (4, 4, 4))
    assert far.explain(LABEL) == "4x4x4 from 10x10x10: all fill"


def test_plans_compare_by_value() -> None:
    """Equal plans are equal and hash alike; any field tells two apart."""
    plan = plan_of((4, 4, 4))

    assert plan == plan_of((4, 4, 4))
    assert hash(plan) == hash(plan_of((4, 4, 4)))
    assert plan != plan.interpolate()
    assert plan != plan.crop((0, 0, 0), (4, 4, 3))
    assert plan != plan.crop((0, 0, 0), (4, 4, 4), hard=True).crop((1, 0, 0), (4, 4, 4))
