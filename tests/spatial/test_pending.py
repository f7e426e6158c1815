"""Transform chains: resolved once, from headers and streams alone."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from voxpipe.core import CallSite, Grid
from voxpipe.core.errors import GraphError, GridMismatch, PatchSizeError
from voxpipe.spatial import (
    Augment,
    Crop,
    Flip,
    Rotate,
    SpatialPlan,
    Step,
    TransformChain,
    UniformPatch,
    Zoom,
)

GRID = Grid((20, 18, 16), np.diag([1, 1, 2.0, 1]))
PATCH = Step(UniformPatch((8, 8, 8)), "lazy_patch")
ROTATE = Step(Rotate((-15, 15)), "rotate")
FLIP = Step(Flip(p=0.5), "flip")
ORIGIN = CallSite("crop((0, 0, 0), (99, 1, 1))", "train.py", 7)


@dataclass
class Header:
    """A volume that counts how often its grid is asked for."""

    name: str = "ct.nii"
    own: Grid = GRID
    asked: list[int] = field(default_factory=list)

    @property
    def grid(self) -> Grid:
        self.asked.append(1)
        return self.own


def pending(*steps: Step, identity: tuple[int, ...] = (3, 1), **volumes: Any) -> TransformChain:
    plan = TransformChain(volumes or {"image": Header()}, seed=7, epoch=2, identity=identity)
    for step in steps:
        plan = plan.then(step)
    return plan


def test_nothing_is_read_before_it_is_asked_for() -> None:
    """Building, describing and pickling a plan touches no header; resolving reads it once."""
    volume = Header()
    plan = pending(PATCH, ROTATE, image=volume)

    text = plan.describe()
    pickle.dumps(plan)
    before = len(volume.asked)
    shapes = {plan.plan.shape for _ in range(3)}
    _ = plan.draws

    assert text == "patch 8x8x8 anywhere · rotate (-15.0, 15.0) degrees"
    assert (before, len(volume.asked)) == (0, 1)
    assert shapes == {(8, 8, 8)}


def test_an_empty_plan_is_the_volume() -> None:
    """With no step, the output is the stored grid."""
    assert pending().plan == SpatialPlan.identity(GRID)
    assert pending().draws == {}
    assert pending().describe() == "as it is"


def test_a_plan_is_a_function_of_seed_epoch_identity_and_names() -> None:
    """The same again is the same; any of the four changes what is drawn."""
    plans = [
        pending(PATCH).plan,
        pending(PATCH, identity=(3, 2)).plan,
        pending(Step(PATCH.op, "other")).plan,
        TransformChain({"image": Header()}, 8, 2, (3, 1)).then(PATCH).plan,
        TransformChain({"image": Header()}, 7, 3, (3, 1)).then(PATCH).plan,
    ]

    assert pending(PATCH).plan == plans[0]
    assert len(set(plans)) == 5


def test_a_step_does_not_change_what_others_draw() -> None:
    """Taking an op out of a chain, or adding one, leaves the other draws as they are."""
    alone = pending(PATCH, ROTATE).draws
    with_flip = pending(PATCH, FLIP, ROTATE, Step(Zoom((0.9, 1.1)), "zoom")).draws

    assert with_flip["rotate"] == alone["rotate"]
    assert with_flip["lazy_patch"] == alone["lazy_patch"]


def test_steps_before_the_patches_are_the_same_for_all_patches() -> None:
    """A volume that is turned as a whole is turned once, and cut in different places."""
    volume = pending(ROTATE, identity=(3,))

    patches = [
        replace(volume, identity=(*volume.identity, n))
        .then(PATCH)
        .then(Step(Augment(zoom=(1, 2)), "a"))
        for n in range(4)
    ]

    assert all(patch.draws["rotate"] == volume.draws["rotate"] for patch in patches)
    assert len({str(patch.draws["lazy_patch"]) for patch in patches}) == 4
    assert len({str(patch.draws["a"]) for patch in patches}) == 4


def test_what_does_not_act_is_told_and_keeps_the_type_decision() -> None:
    """An interpolating op that does not act this time still decides for float32."""
    plan = pending(Step(Rotate(5, p=0), "rotate"))

    assert plan.draws == {"rotate": None}
    assert plan.plan.is_copy
    assert not plan.plan.keeps_dtype
    assert pending(Step(Flip(p=0), "flip")).plan.keeps_dtype


def test_a_pending_plan_is_small_and_travels_unresolved() -> None:
    """The pickle does not grow by resolving, and gives the same plan over there."""
    plan = pending(PATCH, ROTATE, FLIP)
    fresh = pickle.dumps(plan)

    resolved = plan.plan
    over_there = pickle.loads(pickle.dumps(plan))

    assert len(pickle.dumps(plan)) <= len(fresh) + 16
    assert len(fresh) < 2000
    assert over_there.plan == resolved
    assert over_there.draws == plan.draws


def test_two_streams_of_one_name_are_refused() -> None:
    """They would draw the same numbers, silently."""
    with pytest.raises(GraphError, match="'rotate'") as caught:
        pending(ROTATE).then(Step(Zoom(2), "rotate", ORIGIN))
    assert caught.value.origin == ORIGIN


def test_an_error_knows_where_its_step_was_written() -> None:
    """The crop that does not fit is named with file and line."""
    plan = pending(PATCH, Step(Crop((0, 0, 0), (99, 1, 1)), "crop", ORIGIN))

    with pytest.raises(PatchSizeError, match=r"crop 0:99, 0:1, 0:1 leaves") as caught:
        _ = plan.plan
    assert "train.py:7" in str(caught.value)


def test_no_volume_is_no_plan() -> None:
    """There is nothing to plan for."""
    with pytest.raises(ValueError, match="at least one volume"):
        _ = TransformChain({}).first_plan


def moved(shift: float) -> Grid:
    affine = GRID.affine.copy()
    affine[0, 3] += shift
    return Grid(GRID.shape, affine)


def test_volumes_within_the_tolerance_share_a_grid() -> None:
    """An affine that went through float32 is the same grid; the first one's counts."""
    plan = pending(image=Header(), label=Header("seg.nii", moved(0.009)))

    assert plan.first_plan.source == GRID


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (moved(0.5), r"'image' and 'label' lie 0\.5 voxels apart \(at most 0\.01"),
        (Grid((20, 18, 15), GRID.affine), r"different shapes, \(20, 18, 16\) and \(20, 18, 15\)"),
    ],
    ids=["moved", "shape"],
)
def test_volumes_on_two_grids_are_refused(grid: Grid, message: str) -> None:
    """The message names both files, how far they are apart, and what to do."""
    plan = pending(image=Header(), label=Header("seg.nii", grid))

    with pytest.raises(GridMismatch, match=message) as caught:
        _ = plan.plan
    assert "ct.nii and seg.nii" in str(caught.value)
    is_shape = "shapes" in message
    assert ("affine=" in str(caught.value)) == (not is_shape)
    assert ("open_volume(keys=['image'])" in str(caught.value)) == is_shape
