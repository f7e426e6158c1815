"""The table in docs/ops.md: each op gives what the call of MONAI or TorchIO beside it gives.

The references were made by the peers themselves (tests/data/make_op_references.py), from noise on
an oblique grid of unequal voxels, linear and nearest. Arrays and affines are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from checkout import ROOT

from voxpipe.core import Grid, Region, Stream
from voxpipe.graph.fingerprint import stable_text
from voxpipe.spatial import (
    Affine,
    CenterCrop,
    Crop,
    CropOrPad,
    DivisiblePad,
    Flip,
    Orientation,
    Pad,
    Policy,
    ResampleTo,
    Resize,
    Rotate,
    Rotate90,
    SourceVoxels,
    Spacing,
    SpatialOp,
    SpatialPlan,
    Translate,
    Zoom,
    resample,
)

FOLDER = ROOT / "tests" / "data"
TARGET = np.array([[0, 1.3, 0.1, -39], [-1.2, 0, 0.2, 17], [0.2, 0, 1.7, 8.3], [0, 0, 0, 1.0]])
GENERAL = np.array(
    [[1.1, 0.1, 0, 0.7], [0.05, 0.9, 0.2, -1.2], [0.1, 0, 1.05, 0.4], [0, 0, 0, 1.0]]
)
STRAIGHT_TARGET = np.array([[1.3, 0, 0, -37], [0, 1.1, 0, 10], [0, 0, 1.9, 6], [0, 0, 0, 1.0]])
RADIANS = np.degrees([0.3, -0.2, 0.4])
FAR = np.degrees([0.5, -0.6, 0.9])


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    name: str
    """Of the references."""
    ops: Sequence[SpatialOp]
    """What gives the same."""
    how: str = "both"
    """Which of MONAI's nearest values: eagerly and lazily it gives the same, but where said."""
    fill: float | None = None
    """What lies outside; None where the last voxel goes on."""
    grid: str = "oblique"
    """Which grid the volume has."""
    moves: bool = False
    """Whether the peer moves the content in the world, and leaves the affine as it is."""


def pulling(matrix: np.ndarray) -> Affine:
    """Return the op of a MONAI matrix, which leads from output to input, about the centres."""
    return Affine(np.linalg.inv(matrix), space="voxel")


def shear_of_monai() -> np.ndarray:
    return np.array([[1, 0.1, 0.2, 0], [0, 1, 0.3, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]])


def affine_of_torchio(scales: Any, degrees: Any, translation: Any) -> np.ndarray:
    """Return the forward matrix: turned about y, then x, then z, moved, then scaled."""
    turns = {}
    for axis, degree in zip("xyz", degrees, strict=True):
        one, other = {"x": (1, 2), "y": (2, 0), "z": (0, 1)}[axis]
        turns[axis] = np.eye(4)
        c, s = np.cos(np.radians(degree)), np.sin(np.radians(degree))
        turns[axis][one, [one, other]] = c, -s
        turns[axis][other, [one, other]] = s, c
    move = np.eye(4)
    move[:3, 3] = translation
    scale = np.diag([*scales, 1.0])
    return np.asarray(scale @ move @ turns["z"] @ turns["x"] @ turns["y"])


MONAI = [
    Row("spatial_resample", [ResampleTo(Grid((5, 6, 7), TARGET))]),
    Row("resample_to_match", [ResampleTo(Grid((5, 6, 7), TARGET))]),
    Row("spacing", [Spacing((0.85, 1.3, 1.9), extent="centers")], grid="straight"),
    Row("spacing_scale_extent", [Spacing((0.8, 0.63, 1.25))], grid="diagonal"),
    Row("resize", [Resize((6, 9, 4))], how="lazy"),
    Row("resize_align_corners", [Resize((6, 9, 4), extent="centers")], how="lazy"),
    Row("resize_longest", [Resize(11, longest=True)], how="lazy"),
    Row("zoom_grid", [Zoom((1.5, 2, 1), space="voxel", keep_size=False)], how="lazy"),
    Row("zoom", [Zoom((10 / 8, 9 / 7, 8 / 6), space="voxel")], how="lazy"),
    Row("rotate", [Rotate(tuple(-RADIANS), space="voxel")]),
    Row("rotate_growing", [Rotate(tuple(-RADIANS), space="voxel", keep_size=False)], how="lazy"),
    Row(
        "rotate_growing_far",
        [Rotate(tuple(-FAR), space="voxel", keep_size=False, method="backward")],
        how="lazy",
    ),
    Row(
        "rotate_growing_odd",
        [Rotate((0, 0, -np.degrees(0.5)), space="voxel", keep_size=False)],
        how="lazy",
    ),
    Row("rotate90", [Rotate90(1, (0, 2))]),
    Row("flip", [Flip((0, 2))]),
    Row("axis_flip", [Flip((1,), exactly_one=True)]),
    Row("orientation", [Orientation("PIR")]),
    Row("canonical", [Orientation()]),
    Row("affine", [pulling(GENERAL)], how="lazy"),
    Row(
        "affine_sized",
        [Affine(np.linalg.inv(GENERAL), space="voxel", shape=(6, 11, 8))],
    ),
    Row("affine_rotate", [Rotate(tuple(-RADIANS), space="voxel")]),
    Row("affine_shear", [pulling(shear_of_monai())], how="lazy"),
    Row("affine_translate", [Translate((-1.3, 0.7, -0.4), space="voxel")]),
    Row("affine_scale", [Zoom((1 / 1.2, 1 / 0.8, 1 / 1.1), space="voxel")], how="lazy"),
    Row("crop_center", [Crop(center=(4, 4, 3), size=(5, 4, 3))]),
    Row("crop_start_end", [Crop((1, 2, 0), end=(6, 7, 5))]),
    Row("crop_slices", [Crop(slices=(slice(1, 7), slice(None, -2), slice(-4, None)))]),
    Row("center_crop", [CenterCrop((6, 4, 4))]),
    Row("center_scale_crop", [CenterCrop(scale=(0.5, 0.7, 0.9))]),
    Row("pad_size", [Pad(size=(11, 7, 9))]),
    Row("pad_size_end", [Pad(size=(11, 7, 9), sides="end")]),
    Row("border_pad", [Pad(((1, 2), (0, 3), (2, 1)))]),
    Row("divisible_pad", [DivisiblePad((4, 4, 8))]),
    Row("divisible_pad_end", [DivisiblePad((4, 4, 8), sides="end")]),
    Row("crop_or_pad", [CropOrPad((6, 9, 6))]),
    Row("crop_or_pad_odd", [CropOrPad((5, 10, 9), side="center")]),
    Row("crop_or_pad_odder", [CropOrPad((9, 4, 3), side="center")]),
    Row("center_crop_odd", [CenterCrop((5, 4, 3), side="center")]),
    Row("divisible_pad_odd", [DivisiblePad((3, 5, 7))]),
]
TORCHIO = [
    Row("resample", [Spacing((0.6, 0.7, 1.25))], fill=0),
    Row("resample_to", [ResampleTo(Grid((5, 6, 7), STRAIGHT_TARGET))], fill=0),
    Row("resize", [Resize((5, 7, 11))], fill=0),
    Row("canonical", [Orientation()]),
    Row("orientation", [Orientation("PIR")]),
    Row("crop", [Crop((1, 0, 2), end=(6, 4, 5))]),
    Row("pad", [Pad(((1, 2), (0, 3), (2, 1)))]),
    Row("crop_or_pad", [CropOrPad((6, 9, 6))]),
    Row("shape_multiple", [DivisiblePad((2, 9, 8))], fill=0),
    Row("crop_or_pad_odd", [CropOrPad((5, 10, 9), side="start")]),
    Row("crop_or_pad_odder", [CropOrPad((9, 4, 3), side="start")]),
    Row("shape_multiple_odd", [DivisiblePad((3, 5, 7), side="start")], fill=0),
    Row("shape_multiple_crop", [CropOrPad((6, 5, 4), side="start")]),
    Row("flip", [Flip((0, 2))], moves=True),
    Row(
        "affine",
        [Affine(affine_of_torchio((1.2, 0.8, 1.1), (12, -7, 20), (2, -3, 1.5)))],
        fill=-50,
        moves=True,
    ),
    Row("affine_z", [Rotate((0, 0, 20))], fill=-50, moves=True),
    Row("affine_translate", [Translate((2, -3, 1.5))], fill=-50, moves=True),
    Row("affine_scale", [Zoom((1.2, 0.8, 1.1))], fill=-50, moves=True),
]
EVERY = [("monai", row) for row in MONAI]
EVERY += [("torchio", replace(row, grid="straight")) for row in TORCHIO]


def opened(peer: str) -> Any:
    with np.load(FOLDER / f"ops-{peer}.npz") as file:
        return dict(file)


def planned(ops: Sequence[SpatialOp], grid: Grid) -> SpatialPlan:
    plan = SpatialPlan.identity(grid)
    for op in ops:
        drawn = op.draw(Stream(1, 0, (0,), "peers").generator(), plan)
        assert drawn is not None
        plan = op.then(plan, drawn)
    return plan


def ties(plan: SpatialPlan) -> Any:
    """Return which output voxels lie half way between two, where rounding errors decide."""
    index = np.indices(plan.shape).reshape(3, -1)
    places = plan.matrix[:3, :3] @ index + plan.matrix[:3, 3:]
    return (np.abs(places % 1 - 0.5) < 1e-4).any(axis=0).reshape(plan.shape)


@pytest.mark.parametrize(("peer", "row"), EVERY, ids=[f"{p}-{r.name}" for p, r in EVERY])
def test_an_op_gives_what_its_peer_gives(peer: str, row: Row) -> None:
    """The same array to a tenth of a grey level of 1000, and the same affine."""
    file = opened(peer)
    arrays = {key: file[key] for key in file if key.split("/")[0] == row.name}
    volume = file["volume"]
    plan = planned(row.ops, Grid(volume.shape[1:], file[row.grid]))
    modes: tuple[Any, ...] = ("linear", "nearest")
    compared = 0

    for mode in modes:
        hows = ["eager"] if peer == "torchio" else ["both", row.how]
        for key in dict.fromkeys(f"{row.name}/{how}/{mode}" for how in hows):
            if key not in arrays:
                continue
            padding: Any = "border" if row.fill is None else "constant"
            found = np.empty((1, *plan.shape), np.float32)
            source = SourceVoxels(volume, (0, 0, 0), Region.of_shape(volume.shape[1:]))
            policy = Policy(mode, padding, fill=row.fill or 0)
            resample(source, plan.matrix, policy, found, plan.kernel_stages)
            expected = arrays[key] / 16
            assert found.shape == expected.shape
            clear = np.full(plan.shape, True) if mode == "linear" else ~ties(plan)
            assert clear.mean() > 0.5
            assert np.abs(found - expected)[:, clear].max() < 0.1, mode
            compared += 1
    (affine,) = (array for key, array in arrays.items() if key.endswith("affine"))

    assert compared == (1 if all(op.lattice for op in row.ops) else 2)
    assert np.allclose(file[row.grid] if row.moves else plan.affine, affine, atol=1e-4)


ODD = [
    ("monai", "crop_or_pad_odd", CropOrPad((5, 10, 9))),
    ("monai", "center_crop_odd", CenterCrop((5, 4, 3))),
    ("torchio", "crop_or_pad_odd", CropOrPad((5, 10, 9))),
    ("torchio", "shape_multiple_odd", DivisiblePad((3, 5, 7))),
    ("monai", "rotate_growing_far", Rotate(tuple(-FAR), space="voxel", keep_size=False)),
]


@pytest.mark.parametrize(("peer", "name", "op"), ODD, ids=[f"{p}-{n}" for p, n, _ in ODD])
def test_odd_differences_need_a_side(peer: str, name: str, op: SpatialOp) -> None:
    """The conditions of the table are ones: without the argument, an odd voxel lies elsewhere."""
    file = opened(peer)
    grid = file["oblique" if peer == "monai" else "straight"]
    (affine,) = (file[key] for key in file if key.startswith(f"{name}/") and "affine" in key)

    plan = planned([op], Grid(file["volume"].shape[1:], grid))

    assert not np.allclose(plan.affine, affine, atol=1e-4)


def test_a_side_is_named() -> None:
    """Where odd voxels go, the size of a box: one of few words."""
    for refused in (
        lambda: CropOrPad(5, side="left"),  # type: ignore[arg-type]
        lambda: CenterCrop(5, side="both"),  # type: ignore[arg-type]
        lambda: DivisiblePad(5, side="center"),  # type: ignore[arg-type]
        lambda: Pad(size=5, side=1),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match="side is"):
            refused()
    with pytest.raises(ValueError, match="method is"):
        Rotate(5, method="monai")  # type: ignore[arg-type]
    # States that were saved before there were sides still fit.
    assert "side" not in stable_text(CropOrPad(5))
    assert "'side': 'start'" in stable_text(CropOrPad(5, side="start"))
    assert CenterCrop(5, side="center").describe() == "center crop 5x5x5, odd voxels at the center"
    assert DivisiblePad(5, side="start").describe().endswith("5, odd voxels at the start")
