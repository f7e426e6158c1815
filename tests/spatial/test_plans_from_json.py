"""Plans as plain data: what was written comes back, and nothing else is taken for a plan."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from voxpipe.core import Grid
from voxpipe.core.errors import BadPlan, VoxpipeError
from voxpipe.spatial import SpatialPlan

GRID = Grid((8, 7, 6), np.diag([1.0, 2.0, 3.0, 1.0]))


def plan() -> SpatialPlan:
    """A plan with stages of both kinds."""
    turned = np.array([[0.8, 0.6, 0, 1], [-0.6, 0.8, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    begun = SpatialPlan.identity(GRID).then(turned, GRID.shape, lattice=False)
    control = np.random.default_rng(0).random((3, 4, 4, 4))
    return begun.displace(control, np.eye(4) / 4 + np.diag([0, 0, 0, 0.75])).crop(
        (1, 1, 1), (4, 4, 4), hard=True
    )


def told() -> Any:
    """The plan as JSON gives it."""
    return json.loads(json.dumps(plan().to_json()))


def test_a_plan_comes_back() -> None:
    """With its version, and both kinds of stages."""
    data = told()

    assert data["version"] == 1
    assert {name for stage in data["stages"] for name in stage} == {"clip", "displacement"}
    assert SpatialPlan.from_json(data) == plan()


def set_at(*path: Any) -> Callable[[Any], None]:
    """What puts the last of ``path`` where the others lead."""
    *way, last, value = path

    def change(data: Any) -> None:
        for step in way:
            data = data[step]
        data[last] = value

    return change


def stage_of(kind: str) -> int:
    return next(n for n, stage in enumerate(told()["stages"]) if kind in stage)


CLIP, BEND = stage_of("clip"), stage_of("displacement")
CHANGES = {
    "another version": (set_at("version", 2), "of version 2, and 1 is what is read here"),
    "no version": (lambda d: d.pop("version"), "has no version"),
    "missing": (lambda d: d.pop("bounds"), "a plan lacks bounds"),
    "unknown": (set_at("shpae", [1, 1, 1]), "unknown fields, shpae"),
    "unknown in source": (set_at("source", "origin", 0), "source has unknown fields, origin"),
    "nan": (set_at("matrix", 0, 0, math.nan), "matrix is finite numbers"),
    "infinite affine": (set_at("source", "affine", 0, 3, math.inf), "source.affine is finite"),
    "singular affine": (set_at("source", "affine", np.diag([1, 1, 0, 1]).tolist()), "an inverse"),
    "no matrix": (set_at("matrix", [[1, 2], [3, 4]]), "matrix of 4x4"),
    "ragged": (set_at("matrix", [[1, 2], [3]]), "rows of one length"),
    "perspective": (set_at("matrix", 3, [0, 0, 1, 1]), "last row is 0 0 0 1"),
    "words": (set_at("matrix", "abc"), "matrix is finite numbers"),
    "shape of floats": (set_at("shape", [4, 4, 4.5]), "shape is three integers"),
    "negative shape": (set_at("shape", [4, 4, -4]), "shape is three integers"),
    "shape of two": (set_at("source", "shape", [4, 4]), "source.shape is three integers"),
    "bounds": (set_at("bounds", [[0, 1], [0, 1]]), "three pairs of integers"),
    "bounds backwards": (set_at("bounds", 0, [3, 1]), "start <= stop"),
    "a flag of words": (set_at("keeps_dtype", "false"), "keeps_dtype is true or false"),
    "stages": (set_at("stages", {}), "stages is a list"),
    "unknown stage": (set_at("stages", 0, {"bend": {}}), r"stages\[0\] is one of clip"),
    "two in a stage": (set_at("stages", 0, {"clip": {}, "x": {}}), r"stages\[0\] is one of"),
    "a clip without": (set_at("stages", CLIP, "clip", {"shape": [1, 1, 1]}), "clip lacks matrix"),
    "control": (set_at("stages", BEND, "displacement", "control", [1, 2]), "shape \\(3, I, J, K"),
    "control nan": (
        set_at("stages", BEND, "displacement", "control", 0, 0, 0, 0, math.nan),
        "control is finite numbers",
    ),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_what_is_no_plan_is_refused_by_name(kind: str) -> None:
    """The field, what it should be, and what it was."""
    change, message = CHANGES[kind]
    data = told()
    change(data)

    with pytest.raises(BadPlan, match=message):
        SpatialPlan.from_json(data)


@pytest.mark.parametrize("data", ["a plan", 7, None, [1, 2]], ids=["str", "int", "none", "list"])
def test_what_is_no_mapping_is_refused(data: Any) -> None:
    """Not with an error of Python's about string indices."""
    with pytest.raises(BadPlan, match="a plan is a mapping with version, source"):
        SpatialPlan.from_json(data)
    assert issubclass(BadPlan, VoxpipeError)
