"""The native kernel equals the slow path, on every path that this processor runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.core import Region
from voxpipe.spatial import Clip, Policy, Source, native, resample

pytestmark = pytest.mark.skipif(not native.available(), reason="the native kernel is not built")

STORED = ["u1", "i1", "u2", "i2", "u4", "i4", "f2", "f4", "f8"]
RESULTS = ["f4", "f2", "f8", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"]
PADDINGS = ["border", "reflection", "constant", "zeros"]


@pytest.fixture(autouse=True)
def environment_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOXPIPE_NATIVE", "")


def paths() -> list[str]:
    best = native.path()
    return list(native.PATHS[: native.PATHS.index(best) + 1]) if best else []


def sampled(path: str, source: Source, matrix: Any, policy: Policy, out: Any, clips: Any) -> Any:
    """The output by one path, "0" being the slow one; what is not written stays 77."""
    patch = pytest.MonkeyPatch()
    patch.setenv("VOXPIPE_NATIVE", path)
    try:
        resample(source, matrix, policy, out, clips)
    finally:
        patch.undo()
    return out


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """A stored volume of any type, order in memory and direction, inside a larger one."""
    dtype = np.dtype(draw(st.sampled_from(STORED)))
    shape = [draw(st.integers(1, 2)), *(draw(st.integers(1, 9)) for _ in range(3))]
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    order = draw(st.permutations(range(4)))
    room = [n + draw(st.integers(0, 2)) for n in shape]
    if dtype.kind == "f":
        memory = rng.normal(size=[room[a] for a in order]).astype(dtype)
    else:
        limits = np.iinfo(dtype)
        size = [room[a] for a in order]
        memory = rng.integers(limits.min, limits.max, size, dtype, endpoint=True)
    array = memory.transpose(np.argsort(order))[tuple(slice(-n, None) for n in shape)]
    steps = tuple(slice(None, None, draw(st.sampled_from([1, 1, -1]))) for _ in range(4))
    return array[steps]


def number(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high)


@st.composite
def matrices(draw: st.DrawFn, shape: tuple[int, ...]) -> np.ndarray:
    """One of the classes of plan: whole voxels, axes apart, or any affine map."""
    kind = draw(st.sampled_from(["whole", "apart", "shift", "affine", "affine", "flat"]))
    matrix = np.eye(4)
    signs = np.diag([*(draw(st.sampled_from([-1.0, 1.0])) for _ in range(3)), 1.0])
    turn = np.eye(4)[[*draw(st.permutations(range(3))), 3]]
    if kind == "whole":
        matrix = signs @ turn
        matrix[:3, 3] = [draw(st.integers(-4, 12)) for _ in range(3)]
        return matrix
    matrix[:3, 3] = [draw(number(-4, 12)) for _ in range(3)]
    if kind == "apart":
        matrix[:3, :3] = np.diag([draw(number(-1.5, 1.5)) for _ in range(3)])
        if draw(st.booleans()):
            matrix[:3, :3] = (turn @ matrix)[:3, :3]
    elif kind == "affine":
        matrix[:3, :3] += [[draw(number(-0.6, 0.6)) for _ in range(3)] for _ in range(3)]
        matrix = signs @ matrix if draw(st.booleans()) else matrix
    elif kind == "flat":
        matrix[draw(st.integers(0, 2)), :3] = 0
    return matrix


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, ...]:
    array = draw(arrays())
    shape = tuple(draw(st.integers(1, 7)) for _ in range(3))
    long = draw(st.integers(0, 2))
    # Once in a while longer than a run and a tile.
    shape = tuple(
        draw(st.sampled_from([7, 19, 33, 150])) if n == long else s for n, s in enumerate(shape)
    )
    matrix = draw(matrices(shape))
    first = [draw(st.integers(-3, 3)) for _ in range(3)]
    bounds = Region(tuple(first), tuple(a + n for a, n in zip(first, array.shape[1:], strict=True)))
    policy = Policy(
        draw(st.sampled_from(["linear", "nearest"])),
        draw(st.sampled_from(PADDINGS)),
        draw(st.sampled_from([0.0, -5.5, 300.0, 0.1])),
    )
    clips = ()
    if draw(st.integers(0, 3)) == 0:
        box = np.eye(4)
        box[0, 1], box[:3, 3] = draw(number(-0.3, 0.3)), draw(number(-2, 1))
        clips = (Clip(box, (4, 4, 30)),)
    slope, intercept = draw(st.sampled_from([(1.0, 0.0), (1.0, 0.0), (0.5, -3.25), (-1.1, 7.0)]))
    source = Source(array, tuple(first), bounds, slope, intercept)
    result = draw(st.sampled_from([array.dtype.str[1:], "f4", *RESULTS]))
    strides = draw(st.permutations(range(4)))
    return source, matrix, policy, clips, shape, np.dtype(result), strides


def empty(channels: int, shape: Any, dtype: Any, order: Any) -> np.ndarray:
    size = (channels, *shape)
    return np.full([size[a] for a in order], 77, dtype).transpose(np.argsort(order))


@given(case=cases())
def test_every_path_gives_the_bits_of_the_slow_one(case: Any) -> None:
    """Types, orders in memory, classes of plan, paddings, clips, slopes: bit for bit."""
    source, matrix, policy, clips, shape, dtype, order = case
    channels = source.array.shape[0]
    with np.errstate(invalid="ignore"):
        expected = sampled(
            "0", source, matrix, policy, empty(channels, shape, dtype, range(4)), clips
        )

    for path in paths():
        found = empty(channels, shape, dtype, order)
        sampled(path, source, matrix, policy, found, clips)
        assert np.array_equal(found, expected, equal_nan=dtype.kind == "f"), path
