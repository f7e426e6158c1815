"""A patch through a lazy chain is that part of the whole transformed volume, edges included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import voxpipe as vp

SHAPE = (13, 11, 9)
AFFINE = np.array([[0.9, 0.2, 0, -4], [-0.2, 1.1, 0.1, 3], [0, 0.1, 1.6, 8], [0, 0, 0, 1.0]])
RANGE = 1000
# 1e-5 of the range; the coordinates of a patch are those of the whole up to rounding.
TOLERANCE = 1e-5 * RANGE
# How near to half way between two voxels rounding may decide.
UNSURE = 1e-5

random = np.random.default_rng(0)
IMAGE = random.integers(0, RANGE, SHAPE).astype(np.int16)
LABEL = random.integers(0, 5, SHAPE).astype(np.uint8)

OPS = {
    "affine": lambda pipe, u: pipe.affine(
        [[1, 0.2 * u, 0, u], [-0.1, 1.1, 0.1, 0], [0, 0.1 * u, 0.9, -u], [0, 0, 0, 1]]
    ),
    "elastic": lambda pipe, u: pipe.elastic((0, 2), spacing=6 + u),
    "flip": lambda pipe, u: pipe.flip((0, 2), p=0.6),
    "rotate": lambda pipe, u: pipe.rotate((-40, 40), keep_size=u < 0.5),
    "zoom": lambda pipe, u: pipe.zoom(0.8 + u / 2),
    "rotate90": lambda pipe, u: pipe.rotate90(1, (1, 2)),
    "hard": lambda pipe, u: pipe.crop((1, 0, 1), (9, 8, 7), hard=u < 0.5),
    "pad": lambda pipe, u: pipe.pad(2),
}
NEEDED = ("affine", "elastic", "flip")


def chain(names: list[str], strengths: list[float], **sampling: Any) -> Any:
    """The pipes of these names on a case of an image and a label."""
    pipe = vp.from_cases([{"image": IMAGE, "label": LABEL}]).open_volume(affine=AFFINE)
    for name, u in zip(names, strengths, strict=True):
        pipe = OPS[name](pipe, u)
    return pipe.translate(0, **sampling)


def sample_of(pipe: Any, seed: int) -> Any:
    torch.manual_seed(seed)
    return next(iter(pipe))


def undecided(patch: Any) -> Any:
    """Which voxels of a patch are so near a threshold that rounding decides."""
    plan = patch.plan
    index = np.indices(plan.shape).reshape(3, -1).T.astype(float)
    places = [plan.points_to_source(index)]
    places += [
        index @ clip.matrix[:3, :3].T + clip.matrix[:3, 3] for clip in plan.kernel_stages.clips
    ]
    for stage in plan.kernel_stages.earlier:
        if hasattr(stage, "shape"):
            return np.ones(plan.shape, dtype=bool)
    near = [(np.abs(place % 1 - 0.5) < UNSURE).any(axis=1) for place in places]
    return np.any(near, axis=0).reshape(plan.shape)


def alike(found: Any, expected: Any, unsure: Any, tolerance: float) -> bool:
    off = np.abs(found.astype(float) - expected.astype(float)) > tolerance
    return not (off & ~unsure).any()


names = st.lists(st.sampled_from(sorted(set(OPS) - set(NEEDED))), max_size=3, unique=True).flatmap(
    lambda more: st.permutations([*NEEDED, *more])
)


@given(
    names=names,
    seed=st.integers(0, 99),
    padding=st.sampled_from(["border", "reflection", "constant", "zeros"]),
    data=st.data(),
)
def test_a_patch_is_a_part_of_the_whole(names: Any, seed: int, padding: str, data: Any) -> None:
    """Of affine, elastic, flip and more in any order, then crop: anywhere, at edges too."""
    strengths = data.draw(st.lists(st.floats(0, 1), min_size=len(names), max_size=len(names)))
    sampling = {"padding": padding, **({"fill": -50} if padding == "constant" else {})}
    whole = sample_of(chain(names, strengths, **sampling), seed)
    shape = whole["image"].plan.shape
    size = [data.draw(st.integers(1, min(6, n))) for n in shape]
    # The first and the last place of an axis come up as often as all between.
    start = [
        data.draw(st.sampled_from([0, n - s]) | st.integers(0, n - s))
        for n, s in zip(shape, size, strict=True)
    ]

    patch = sample_of(chain(names, strengths, **sampling).crop(start, size, name="cut"), seed)

    box = (slice(None), *(slice(a, a + s) for a, s in zip(start, size, strict=True)))
    for key, tolerance in (("image", TOLERANCE), ("label", 0)):
        assert patch[key].draws == {**whole[key].draws, "cut": patch[key].draws["cut"]}
        found, expected = patch[key].realize(), whole[key].realize()[box]
        assert found.dtype == expected.dtype
        unsure = undecided(patch[key])
        assert alike(found, expected, unsure, tolerance)
        assert not unsure.all() or len(patch[key].plan.kernel_stages.earlier) > 0


@pytest.mark.parametrize("seed", range(3))
def test_patches_side_by_side_are_the_whole(seed: int) -> None:
    """Every voxel of the deformed volume, put together from patches that read on their own."""
    pipe = chain(["affine", "elastic", "flip"], [0.4, 0.3, 0.2])
    whole = sample_of(pipe, seed)["image"].realize()
    torch.manual_seed(seed)
    together = np.full_like(whole, np.nan)

    patches = list(pipe.lazy_patch(5, sampling="grid"))

    for sample in patches:
        start, size = (sample["image"].draws["lazy_patch"][name] for name in ("start", "size"))
        box = tuple(slice(a, a + s) for a, s in zip(start, size, strict=True))
        together[(slice(None), *box)] = sample["image"].realize()
    assert len(patches) == 3 * 3 * 2
    assert np.allclose(together, whole, rtol=0, atol=TOLERANCE)
