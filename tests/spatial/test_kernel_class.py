"""Which work a plan is, in the words of the kernel, and what explain() says about it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from voxpipe.core import Grid
from voxpipe.spatial import (
    Crop,
    Elastic,
    Flip,
    KernelClass,
    Orientation,
    Policy,
    Resize,
    Rotate,
    Rotate90,
    Spacing,
    SpatialOp,
    SpatialPlan,
    Translate,
    Zoom,
    kernel_class,
)
from voxpipe.spatial.plans.policy import LABEL

GRID = Grid((16, 16, 16), np.array([[0, 2, 0, 0], [1, 0, 0, 0], [0, 0, 3, 0], [0, 0, 0, 1.0]]))


def planned(*ops: SpatialOp) -> SpatialPlan:
    plan = SpatialPlan.identity(GRID)
    for op in ops:
        drawn: Any = op.draw(np.random.default_rng(0), plan)
        plan = op.then(plan, drawn)
    return plan


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        ([], "copy"),
        ([Crop((1, 1, 1), 8), Flip(), Rotate90(1), Orientation("LPS")], "copy"),
        ([Rotate((0, 0, 90))], "separable"),  # voxels of 1 and 2 mm change places
        ([Rotate((0, 0, 180))], "copy"),
        ([Zoom(1.3), Translate(2.5), Spacing(0.7), Resize(9), Flip(0), Rotate90(1)], "separable"),
        ([Rotate(10), Crop((3, 3, 3), (1, 1, 6))], "affine"),
        ([Rotate(10)], "affine"),
        ([Zoom(1.3), Crop((1, 1, 1), 8, hard=True), Zoom(0.7)], "affine"),
        ([Elastic(3), Flip()], "displacement"),
        ([Elastic(3), Rotate(10)], "displacement"),
    ],
    ids=["nothing", "lattice", "swap", "half", "scales", "line", "turn", "clip", "bent", "both"],
)
def test_every_plan_has_its_class(ops: list[SpatialOp], expected: KernelClass) -> None:
    """Copy where whole voxels move, separable where axes stay apart, and so on."""
    assert kernel_class(planned(*ops)) == expected


def test_cubic_has_no_tables() -> None:
    """The kernel tabulates linear and nearest only."""
    plan = planned(Zoom(1.3))

    assert kernel_class(plan, LABEL) == "separable"
    assert kernel_class(plan, Policy("cubic")) == "affine"


def test_an_axis_of_one_voxel_leads_nowhere() -> None:
    """A turned line along k still needs all three coordinates; a slice across z only two."""
    slice_turned = planned(Rotate((0, 0, 90)), Crop((0, 0, 4), (16, 16, 1)))

    assert kernel_class(slice_turned) == "separable"


def test_explain_tells_what_the_kernel_does_not_do() -> None:
    """Three displacements, or a hard crop before one, are done place by place by NumPy."""
    plan = SpatialPlan.identity(Grid((16, 16, 16), np.eye(4)))
    control = np.full((3, 4, 4, 4), 0.5)
    once = plan.displace(control, np.diag([0.2, 0.2, 0.2, 1]))
    twice = once.displace(control, np.diag([0.2, 0.2, 0.2, 1]))

    thrice = twice.displace(control, np.diag([0.2, 0.2, 0.2, 1]))
    cut = once.crop((2, 2, 2), (9, 9, 9), hard=True).displace(control, np.eye(4))

    assert kernel_class(once) == kernel_class(thrice) == "displacement"
    assert "NumPy" not in once.explain() + twice.explain()
    for plan in (thrice, cut):
        assert ", 2 displacement(s) or hard crop(s) before the last displacement, so by NumPy" in (
            plan.explain()
        )


def test_explain_tells_class_region_bytes_and_interpolations() -> None:
    """One line, with bytes where the stored type is known."""
    plan = planned(Zoom(0.5), Crop((6, 6, 6), 4))

    assert plan.explain() == (
        "4x4x4 from 16x16x16: separable linear interpolation of 4:12, 4:12, 4:12; "
        "512 voxels read, 1 interpolation"
    )
    assert plan.explain(dtype=np.int16, channels=2).endswith("; 2 KiB read, 1 interpolation")
    assert plan.explain(Policy(antialias=True)).endswith(
        "of 2:14, 2:14, 2:14, smoothed by 0.5, 0.5, 0.5 voxels before; "
        "1728 voxels read, 1 interpolation"
    )
