"""What MONAI's and TorchIO's random transforms drew, given to the ops that docs/ops.md names.

The peers drew and made the references themselves (tests/data/make_random_references.py), on the
volume and the grids of test_ops_beside_peers.py. Given what they drew, the ops give what they made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from checkout import ROOT
from test_ops_beside_peers import affine_of_torchio, opened, planned, pulling, ties

from voxpipe.core import Grid, Region
from voxpipe.spatial import (
    Affine,
    Augment,
    Elastic,
    Policy,
    ResampleTo,
    Rotate,
    SourceVoxels,
    Spacing,
    SpatialOp,
    SpatialPlan,
    Translate,
    Zoom,
    positions,
    resample,
)

FOLDER = ROOT / "tests" / "data"
GREY = 0.1
"""Of a range of 1000; the references are stored in sixteenths."""
ITK_MARGIN = 0.125
"""Voxels by which ITK's spline reaches beyond the outer faces (itkBSplineTransformInitializer)."""
Params = Mapping[str, Any]


def drawn_by(peer: str, name: str) -> Params:
    """Return everything under the name of a row."""
    with np.load(FOLDER / f"random-{peer}.npz") as file:
        return {key.split("/")[1]: file[key] for key in file if key.split("/")[0] == name}


def turned_back(drawn: Params) -> tuple[float, ...]:
    """Return MONAI's angles, of a pull-back and in radians, as ours."""
    return tuple(-np.degrees(drawn["rotate"]))


def slid(drawn: Params) -> SpatialOp:
    """Return the op of MONAI's six factors: six shears, one after another, the first first."""
    matrix = np.eye(4)
    for factor, place in zip(drawn["shear"], np.argwhere(np.eye(3) == 0), strict=True):
        one = np.eye(4)
        one[tuple(place)] = factor
        matrix = one @ matrix
    return pulling(matrix)


OPS: dict[str, Callable[[Params], Sequence[SpatialOp]]] = {
    "monai-rand_affine": lambda drawn: [
        Rotate(turned_back(drawn), space="voxel"),
        slid(drawn),
        Translate(tuple(-drawn["translate"]), space="voxel"),
        Zoom(tuple(1 / drawn["scale"]), space="voxel"),
    ],
    "monai-rand_affine_bundle": lambda drawn: [
        Augment(rotate=turned_back(drawn), zoom=tuple(1 / drawn["scale"]), space="voxel")
    ],
    "monai-rand_rotate": lambda drawn: [Rotate(turned_back(drawn), space="voxel")],
    "torchio-random_affine": lambda drawn: [
        Affine(affine_of_torchio(drawn["scales"], drawn["degrees"], drawn["translation"]))
    ],
    "torchio-random_affine_z": lambda drawn: [
        Augment(rotate=tuple(drawn["degrees"]), zoom=float(drawn["scales"][0]))
    ],
}


def sampled(volume: Any, plan: SpatialPlan, policy: Policy) -> Any:
    """Return what the plan gives of a volume (C, I, J, K)."""
    found = np.empty((1, *plan.shape), np.float32)
    source = SourceVoxels(volume, (0, 0, 0), Region.of_shape(volume.shape[1:]))
    resample(source, plan.matrix, policy, found, plan.kernel_stages)
    return found


def policy_of(peer: str, mode: Any, fill: float) -> Policy:
    """Return how the peers sample here: MONAI repeats the border, TorchIO fills."""
    return Policy(mode, "border") if peer == "monai" else Policy(mode, "constant", fill=fill)


@pytest.mark.parametrize("name", OPS)
def test_what_was_drawn_gives_what_was_made(name: str) -> None:
    """The same voxels, linear and nearest."""
    peer, _, row = name.partition("-")
    drawn, file = drawn_by(peer, row), opened(peer)
    grid = Grid(file["volume"].shape[1:], file["oblique" if peer == "monai" else "straight"])
    plan = planned(OPS[name](drawn), grid)

    for mode in ("linear", "nearest"):
        found = sampled(file["volume"], plan, policy_of(peer, mode, -50))

        expected = drawn[mode] / 16
        clear = np.full(plan.shape, True) if mode == "linear" else ~ties(plan)
        assert clear.mean() > 0.9
        assert np.abs(found - expected)[:, clear].max() < GREY, mode
        assert np.abs(file["volume"] - expected).max() > 100  # it did something


ELASTIC = {"elastic": 0, "elastic_locked": 1}
"""Layers that are locked: none, as with ITK's outermost points like their neighbours, or one."""


def deformed(name: str) -> tuple[SpatialPlan, Params, Any]:
    """Return the plan of a row, what was drawn, and the peer's file.

    TorchIO's lattice of c control points reaches one beyond the faces of the grid. With a spacing
    of (n + 1/4) / (c - 3) voxels ours has points at the same places, and the outermost twice.
    """
    drawn, file = drawn_by("torchio", name), opened("torchio")
    grid = Grid(file["volume"].shape[1:], file["diagonal"])
    counts = drawn["points"].shape[1:]
    sizes = [(n + 2 * ITK_MARGIN) * s for n, s in zip(grid.shape, grid.spacing, strict=True)]
    spacing = [size / (c - 3) for size, c in zip(sizes, counts, strict=True)]
    op = Elastic(tuple(drawn["most"]), tuple(spacing), locked_layers=ELASTIC[name])
    said = {"amount": drawn["most"].tolist(), "key": int(drawn["key"])}
    return op.then(SpatialPlan.identity(grid), said), drawn, file


@pytest.mark.parametrize("name", ELASTIC)
def test_the_control_points_are_itk_s(name: str) -> None:
    """As many, at the same places; one locked layer here is TorchIO's ``locked_borders=2``.

    But for the third axis, where TorchIO 1.2.1 locks nothing.
    """
    plan, drawn, file = deformed(name)
    (stage,) = plan.stages
    spacing = np.diag(file["diagonal"])[:3].reshape(3, 1, 1, 1)

    mine = stage.control * spacing

    assert np.allclose(mine, drawn["points"], atol=1e-12)
    if ELASTIC[name]:
        moves = drawn["moves"].copy()
        assert moves[..., (0, 1, -2, -1)].any()
        moves[..., (0, 1, -2, -1)] = False
        assert np.array_equal(mine.any(axis=0), moves)
        assert moves.any()


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("name", ELASTIC)
def test_what_is_deformed_is_itk_s(name: str, mode: Any) -> None:
    """As near as sixteenths tell; nearest but for places half way."""
    plan, drawn, file = deformed(name)

    found = sampled(file["volume"], plan, policy_of("torchio", mode, float(file["volume"].min())))

    places = plan.points_to_source(np.indices(plan.shape).reshape(3, -1).T.astype(float))
    clear = (np.abs(places % 1 - 0.5) > 1e-4).all(axis=1).reshape(plan.shape)
    off = np.abs(found - drawn[mode] / 16)[:, clear]
    assert clear.mean() > 0.9
    assert off.max() < GREY
    assert mode == "nearest" or np.abs(file["volume"] - drawn[mode] / 16).max() > 100


def test_anisotropy_is_two_steps() -> None:
    """``torchio-anisotropy``: to a coarser grid by nearest, stored, and back by ``mode``."""
    drawn, file = drawn_by("torchio", "anisotropy"), opened("torchio")
    grid = Grid(file["volume"].shape[1:], file["straight"])
    coarser = Spacing((None, None, grid.spacing[2] * float(drawn["factor"])))

    down = planned([coarser], grid)
    stored = sampled(file["volume"], down, Policy("nearest", "border"))
    back = planned([ResampleTo(grid)], down.grid)

    assert down.shape == (8, 7, 4)
    for mode in ("linear", "nearest"):
        found = sampled(stored, back, policy_of("torchio", mode, 0))
        clear = np.full(back.shape, True) if mode == "linear" else ~ties(back)
        assert np.abs(found - drawn[mode] / 16)[:, clear].max() < GREY
    assert np.abs(drawn["linear"] / 16 - file["volume"]).max() > 100


@pytest.mark.parametrize("peer", ["monai", "torchio"])
def test_patches_of_a_grid_start_where_theirs_do(peer: str) -> None:
    """``monai-grid``, ``torchio-grid``: every step, the last one moved inward."""
    asked = (((20, 17, 9), (8, 8, 4), (2, 4, 0)), ((8, 8, 8), (8, 4, 3), (0, 2, 2)))
    starts = drawn_by(peer, "grid")

    for number, (shape, size, overlap) in enumerate(asked):
        mine = positions(shape, size, overlap)

        assert sorted(mine) == sorted(map(tuple, starts[str(number)].tolist()))
