"""The native kernel equals the slow path, on every path that this processor runs."""

from __future__ import annotations

import dataclasses
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_paths import paths_here

from voxpipe.core import Region
from voxpipe.spatial import (
    Clip,
    Displacement,
    Epilogue,
    KernelStages,
    Policy,
    SourceVoxels,
    resample,
)
from voxpipe.spatial.resampling import native_resampler as native

pytestmark = pytest.mark.skipif(not native.available(), reason="the native kernel is not built")

STORED = ["u1", "i1", "u2", "i2", "u4", "i4", "f2", "f4", "f8"]
RESULTS = ["f4", "f2", "f8", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"]
LABELS = Policy("nearest", "constant", fill=9)
PADDINGS = ["border", "reflection", "constant", "zeros"]


@pytest.fixture(autouse=True)
def environment_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOXPIPE_NATIVE", "")


def sampled(
    path: str,
    source: SourceVoxels,
    matrix: Any,
    policy: Policy,
    out: Any,
    clips: Any = (),
    displacement: Any = None,
    earlier: Any = (),
    **more: Any,
) -> Any:
    """The output by one path, "0" being the slow one; what is not written stays 77."""
    patch = pytest.MonkeyPatch()
    patch.setenv("VOXPIPE_NATIVE", path)
    try:
        resample(source, matrix, policy, out, KernelStages(clips, displacement, earlier), **more)
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
    source = SourceVoxels(array, tuple(first), bounds, slope, intercept)
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

    for path in paths_here():
        found = empty(channels, shape, dtype, order)
        sampled(path, source, matrix, policy, found, clips)
        assert np.array_equal(found, expected, equal_nan=dtype.kind == "f"), path


@st.composite
def moves(draw: st.DrawFn) -> tuple[Any, ...]:
    """Whole voxels of a volume that holds whole squares of numbers, and some more, or some less."""
    lengths = st.sampled_from([15, 16, 17, 31, 33, 70, 128])
    shape = draw(st.permutations([draw(lengths), draw(lengths), draw(st.integers(1, 3))]))
    dtype = np.dtype(draw(st.sampled_from(STORED)))
    order = draw(st.permutations(range(3)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    memory = rng.integers(0, 100, [shape[a] for a in order]).astype(dtype)
    array = memory.transpose(np.argsort(order))[None]
    matrix = np.eye(4)[[*draw(st.permutations(range(3))), 3]]
    for axis in range(3):
        if draw(st.booleans()):
            matrix[axis] *= -1
            matrix[axis, 3] = shape[axis] - 1
    matrix[:3, 3] += [draw(st.sampled_from([0, 0, -3, 2])) for _ in range(3)]
    # What each output axis runs along, cut short or longer than what is there.
    more = draw(st.sampled_from([-1, 0, 1, 20]))
    size = (np.abs(matrix[:3, :3]).T @ shape).astype(int) + more
    scalings = [(1.0, 0.0), (0.5, -3.25), (1.0, -1024.0), (-3.0, 5.0)]
    slope, intercept = draw(st.sampled_from(scalings))
    bounds = Region.of_shape(shape)
    source = SourceVoxels(array, (0, 0, 0), bounds, slope, intercept)
    result = np.dtype(draw(st.sampled_from([dtype.str[1:], "f4", "f4", "i2"])))
    epilogues = [None, Epilogue(0.5, -0.25, 0.5, 7.0), Epilogue(1 / 3, 0.7, -9.1, 20.3)]
    epilogue = draw(st.sampled_from(epilogues))
    policy = Policy("nearest", draw(st.sampled_from(PADDINGS)), 9.0)
    order = draw(st.permutations(range(4)))
    return source, matrix, np.maximum(size, 1), policy, result, epilogue, order


@given(case=moves())
def test_whole_voxels_are_moved_in_squares_with_the_bits_of_the_slow_path(case: Any) -> None:
    """Crops, flips and turns of any order in memory, scaled and put into a range."""
    source, matrix, shape, policy, dtype, epilogue, order = case
    expected = empty(1, shape, dtype, range(4))
    sampled("0", source, matrix, policy, expected, epilogue=epilogue)

    for path in paths_here():
        found = empty(1, shape, dtype, order)
        sampled(path, source, matrix, policy, found, epilogue=epilogue)
        assert np.array_equal(found, expected), path


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("dtype", ["u1", "i2", "f2", "f4", "f8"])
def test_rows_4096_bytes_apart_are_turned_with_the_bits_of_the_slow_path(
    dtype: str, direction: int
) -> None:
    """Which crowd in a processor's cache, so that they go through a block: wider than one, too."""
    size = np.dtype(dtype).itemsize
    width = 256 // size + 17
    rows = np.zeros((70, 4096 // size), dtype)
    rows[:, :width] = np.random.default_rng(3).integers(0, 100, (70, width))
    array = rows[:, :width].T[None, ::direction, None, :]
    source = SourceVoxels(array, (0, 0, 0), Region.of_shape(array.shape[1:]))

    for result in (dtype, "f4"):
        expected = empty(1, array.shape[1:], result, range(4))
        sampled("0", source, np.eye(4), LABELS, expected)
        assert np.array_equal(expected, array.astype(result))
        for path in paths_here():
            found = empty(1, array.shape[1:], result, range(4))
            sampled(path, source, np.eye(4), LABELS, found)
            assert np.array_equal(found, expected), path


@pytest.mark.parametrize("directions", [(1, 1, 1), (-1, -1, -1)])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)])
@pytest.mark.parametrize("dtype", STORED)
def test_whole_tiles_inside_have_the_bits_of_the_slow_path(
    dtype: str, order: tuple[int, int, int], directions: tuple[int, int, int]
) -> None:
    """Turned patches of several tiles, of volumes in any order in memory and mirrored ones."""
    rng = np.random.default_rng(sum(map(ord, dtype)))
    numbers = rng.integers(0, 120, (2, 56, 60, 64)).astype(dtype)
    if np.dtype(dtype).kind == "f":
        numbers.flat[::997] = np.nan
    steps = tuple(slice(None, None, step) for step in directions)
    array = numbers.transpose(0, *(1 + n for n in order))[(slice(None), *steps)]
    matrix = np.eye(4)
    matrix[:3, :3] = [[0.8, 0.25, -0.2], [-0.2, 0.8, 0.25], [0.25, -0.2, 0.9]]
    matrix[:3, 3] = np.array(array.shape[1:]) / 2 - matrix[:3, :3] @ [18.0, 14.5, 17.0]
    source = SourceVoxels(array, (0, 0, 0), Region.of_shape(array.shape[1:]))

    for mode, result in (("linear", "f4"), ("linear", "i2"), ("nearest", dtype)):
        expected = empty(2, (37, 30, 35), result, range(4))
        sampled("0", source, matrix, Policy(mode, "border"), expected)
        for path in paths_here():
            found = empty(2, (37, 30, 35), result, range(4))
            sampled(path, source, matrix, Policy(mode, "border"), found)
            same = np.array_equal(found, expected, equal_nan=np.dtype(result).kind == "f")
            assert same, (path, mode)


TILTED = [[0.8, 0.25, -0.2], [-0.2, 0.8, 0.25], [0.25, -0.2, 0.9]]
IN_A_PLANE = [[1, 0, 0], [0, 0.9, 0.3], [0, -0.3, 0.9]]
SMALLER = [[2.2, 0.4, 0], [-0.4, 2.2, 0.3], [0, -0.3, 9.5]]


@pytest.mark.parametrize("padding", ["border", "reflection", "constant", "zeros"])
@pytest.mark.parametrize("turn", [TILTED, IN_A_PLANE, SMALLER])
@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8"])
def test_whole_tiles_at_an_edge_have_the_bits_of_the_slow_path(
    dtype: str, turn: list[list[float]], padding: str
) -> None:
    """Tiles that a corner of the volume cuts, beside tiles that lie all inside or all outside."""
    rng = np.random.default_rng(sum(map(ord, dtype + padding)))
    array = rng.integers(0, 120, (1, 56, 38, 44)).astype(dtype)
    if np.dtype(dtype).kind == "f":
        array.flat[::97] = np.nan
        array.flat[::89] = np.inf
    matrix = np.eye(4)
    matrix[:3, :3] = turn
    matrix[:3, 3] = [3, 5, 2] - matrix[:3, :3] @ [18.0, 24.0, 17.0]
    source = SourceVoxels(array, (0, 0, 0), Region.of_shape(array.shape[1:]), 2.0, -7.0)

    for mode, result in (("linear", "f4"), ("linear", "i2"), ("nearest", dtype), ("nearest", "f4")):
        policy = Policy(mode, padding, 5.0 if padding == "constant" else 0.0)
        expected = empty(1, (57, 50, 35), result, range(4))
        sampled("0", source, matrix, policy, expected)
        for path in paths_here():
            found = empty(1, (57, 50, 35), result, range(4))
            sampled(path, source, matrix, policy, found)
            same = np.array_equal(found, expected, equal_nan=np.dtype(result).kind == "f")
            assert same, (path, mode, result)


@pytest.mark.parametrize("shift", [-0.25, 0.0, 0.25])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_a_plane_is_met_from_either_side(mode: str, shift: float) -> None:
    """A tile within half a voxel of the only slice, or of the first one, is not beside it."""
    turn = np.array([[1, 0, 0, shift], [0, 0.9, 0.3, 1], [0, -0.3, 0.9, 12], [0, 0, 0, 1]])
    for slices in (1, 3):
        numbers = np.random.default_rng(slices).integers(0, 99, (1, slices, 40, 44))
        source = SourceVoxels(
            numbers.astype("u1"), (5, 0, 0), Region((5, 0, 0), (5 + slices, 40, 44))
        )
        matrix = turn + np.outer([1, 0, 0, 0], [0, 0, 0, 5.0])
        expected = empty(1, (1, 30, 33), "u1", range(4))
        sampled("0", source, matrix, Policy(mode, "border"), expected)
        for path in paths_here():
            found = empty(1, (1, 30, 33), "u1", range(4))
            sampled(path, source, matrix, Policy(mode, "border"), found)
            assert np.array_equal(found, expected), (path, slices)


@st.composite
def fields(draw: st.DrawFn) -> Displacement:
    """Control grids along the output's axes, across them, and of a single point."""
    size = [draw(st.integers(1, 6)) for _ in range(3)]
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    matrix = np.diag([*(draw(number(-0.4, 0.4)) for _ in range(3)), 1.0])
    matrix[:3, 3] = [draw(number(-1, 3)) for _ in range(3)]
    if draw(st.booleans()):
        matrix[:3, :3] += rng.normal(size=(3, 3)) * 0.1
    return Displacement(rng.normal(size=(3, *size)) * draw(number(0, 4)), matrix)


@given(case=cases(), field=fields(), earlier=st.none() | fields(), nearest=st.booleans())
def test_displacement_has_the_bits_of_the_slow_path(
    case: Any, field: Displacement, earlier: Displacement | None, nearest: bool
) -> None:
    """Of one field or two, along the runs or across, whatever type, padding, clips and order."""
    source, matrix, policy, clips, shape, dtype, order = case
    policy = Policy("nearest" if nearest else "linear", policy.padding, policy.fill)
    channels = source.array.shape[0]
    before = () if earlier is None else (earlier,)
    expected = empty(channels, shape, dtype, range(4))
    with np.errstate(invalid="ignore"):
        sampled("0", source, matrix, policy, expected, clips, field, before)

    for path in paths_here():
        found = empty(channels, shape, dtype, order)
        sampled(path, source, matrix, policy, found, clips, field, before)
        assert np.array_equal(found, expected, equal_nan=dtype.kind == "f"), path


@pytest.mark.parametrize("padding", PADDINGS)
def test_large_displaced_patches_have_the_bits_of_the_slow_path(padding: str) -> None:
    """Of more voxels than a block; in C order, and in that of NIfTI, along which runs turn."""
    rng = np.random.default_rng(2)
    field = Displacement(rng.normal(size=(3, 5, 4, 6)) * 3, np.diag([0.1, 0.09, 0.12, 1]))
    turn = np.array([[0.9, 0.3, 0, -3.0], [-0.3, 0.9, 0.1, 2.0], [0, -0.1, 1.1, 0.5], [0, 0, 0, 1]])
    voxels = rng.integers(-999, 999, (1, 40, 36, 44)).astype("i2")
    for array in (voxels, np.asfortranarray(voxels)):
        source = SourceVoxels(array, (0, 0, 0), Region.of_shape(array.shape[1:]))
        for matrix in (np.eye(4), turn):
            policy, more = Policy("linear", padding), {"displacement": field}
            expected = empty(1, (42, 40, 38), "f4", range(4))
            sampled("0", source, matrix, policy, expected, **more)
            for path in paths_here():
                found = empty(1, (42, 40, 38), "f4", range(4))
                sampled(path, source, matrix, policy, found, **more)
                assert np.array_equal(found, expected), path


@given(case=cases(), field=fields())
def test_cubic_agrees_with_the_slow_path(case: Any, field: Displacement) -> None:
    """It adds many products, in another order: to 1e-5 of the range, or one step of integers."""
    source, matrix, policy, clips, shape, _, order = case
    policy = Policy("cubic", policy.padding, policy.fill)
    moved = field if field.bounds[0][0] else None
    size = float(np.abs(source.array.astype(np.float64) * source.slope).max()) + 300
    channels = source.array.shape[0]
    expected = empty(channels, shape, "f8", range(4))
    sampled("0", source, matrix, policy, expected, clips, displacement=moved)

    for path in paths_here():
        found = empty(channels, shape, "f4", order)
        sampled(path, source, matrix, policy, found, clips, displacement=moved)
        assert np.allclose(found, expected, rtol=0, atol=1e-5 * size), path


def test_a_field_that_reaches_too_far_is_left_to_the_slow_path() -> None:
    """The kernel counts moves in 32 bits; farther ones are refused, and nothing is lost."""
    array = np.arange(9 * 9 * 9, dtype="f4").reshape(1, 9, 9, 9)
    control = np.random.default_rng(4).choice([-180.0, 180.0], (3, 3, 3, 3))
    field = Displacement(control, np.diag([0.25, 0.25, 0.25, 1]))
    source = SourceVoxels(array, (0, 0, 0), Region.of_shape(array.shape[1:]))
    expected, found = (empty(1, (9, 9, 9), "f4", range(4)) for _ in range(2))

    sampled("0", source, np.eye(4), Policy("linear", "reflection"), expected, displacement=field)
    sampled("", source, np.eye(4), Policy("linear", "reflection"), found, displacement=field)

    assert np.array_equal(found, expected)


def test_a_displacement_of_nearest_moves_whole_voxels() -> None:
    """A field of 1.2 voxels along one axis reads the next voxel, and fill behind the last."""
    ramp = np.arange(40, dtype=np.uint8).reshape(1, 1, 1, 40)
    source = SourceVoxels(ramp, (0, 0, 0), Region.of_shape((1, 1, 40)))
    field = Displacement(np.full((3, 1, 1, 1), [[[[0]]], [[[0]]], [[[1.2]]]]), np.eye(4))

    for path in ["0", *paths_here()]:
        found = empty(1, (1, 1, 40), np.uint8, range(4))
        sampled(path, source, np.eye(4), LABELS, found, displacement=field)
        assert found.ravel().tolist() == [*range(1, 40), 9]


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_a_constant_volume_stays_constant_however_it_moves(mode: str, padding: str) -> None:
    """Weights add up to one, inside the volume and, but for zeros, beyond."""
    array = np.full((1, 9, 9, 9), 100, np.int16)
    source = SourceVoxels(array, (0, 0, 0), Region.of_shape((9, 9, 9)))
    field = Displacement(np.random.default_rng(0).normal(size=(3, 4, 4, 4)), np.eye(4) * 0.25)
    shift = np.eye(4)
    shift[:3, 3] = 2.0

    for path in ["0", *paths_here()]:
        found = empty(1, (3, 3, 3), np.float32, range(4))
        policy = Policy(mode, padding, fill=100)
        sampled(path, source, shift, policy, found, displacement=field)
        assert np.allclose(found, 100, atol=1e-4)


@given(case=cases(), mode=st.sampled_from(["", "cubic"]), to_float=st.booleans())
def test_an_epilogue_rounds_where_the_slow_path_does(case: Any, mode: str, to_float: bool) -> None:
    """Of all stored types, scaled ones and fills: what is wide is scaled before it is rounded."""
    source, matrix, policy, clips, shape, dtype, order = case
    policy = dataclasses.replace(policy, mode=mode or policy.mode)
    epilogue = Epilogue(1 / 3, 0.7, -20.1, 1e9)  # no number that either type holds exactly
    channels, dtype = source.array.shape[0], np.dtype("f4") if to_float else dtype
    slow = empty(channels, shape, dtype, range(4))
    with np.errstate(invalid="ignore", over="ignore"):
        sampled("0", source, matrix, policy, slow, clips, epilogue=epilogue)

    for path in paths_here():
        found = empty(channels, shape, dtype, order)
        sampled(path, source, matrix, policy, found, clips, epilogue=epilogue)
        if policy.mode == "cubic" and dtype.kind == "f":  # as close as decision 0005 says
            assert np.allclose(found, slow, rtol=1e-5, equal_nan=True), path
        else:
            assert np.array_equal(found, slow, equal_nan=dtype.kind == "f"), path


@given(case=cases(), scale=number(-2, 2), shift=number(-9, 9))
def test_an_epilogue_is_the_last_step(case: Any, scale: float, shift: float) -> None:
    """Scaled, shifted and clamped, fill included; then converted."""
    source, matrix, policy, clips, shape, _, order = case
    epilogue = Epilogue(scale, shift, -20.0, 25.5)
    channels = source.array.shape[0]
    plain = empty(channels, shape, "f8", range(4))
    sampled("0", source, matrix, policy, plain, clips)
    expected = np.clip(plain * scale + shift, -20, 25.5)
    size = float(np.abs(plain).max()) * abs(scale) + 300

    for path in ["0", *paths_here()]:
        found = empty(channels, shape, "f4", order)
        sampled(path, source, matrix, policy, found, clips, epilogue=epilogue)
        assert np.allclose(found, expected, rtol=0, atol=1e-5 * size), path


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan, 65504.0, 1e-7, -6e-8, 3e38])
def test_numbers_at_the_ends_of_their_types(number: float) -> None:
    """Infinity, NaN, subnormal and huge floats arrive in every type as NumPy converts them."""
    array = np.full((1, 2, 3, 20), number, np.float32)
    source = SourceVoxels(array, (0, 0, 0), Region.of_shape((2, 3, 20)))
    turned = np.eye(4)
    turned[0, 2] = 0.01

    for dtype, mode in product(RESULTS, ["linear", "nearest"]):
        expected = empty(1, (2, 3, 20), dtype, range(4))
        with np.errstate(invalid="ignore"):
            sampled("0", source, turned, Policy(mode), expected)
        for path in paths_here():
            found = empty(1, (2, 3, 20), dtype, range(4))
            sampled(path, source, turned, Policy(mode), found)
            assert np.array_equal(found, expected, equal_nan=found.dtype.kind == "f")


def test_sixty_four_bits_are_moved_but_not_calculated_with() -> None:
    """Labels beyond 2^53 survive a nearest rotation; a linear one takes the slow path."""
    array = np.random.default_rng(0).integers(-(2**62), 2**62, (1, 9, 9, 9))
    source = SourceVoxels(array, (0, 0, 0), Region.of_shape((9, 9, 9)))
    turned = np.eye(4)
    turned[0, 1] = 0.3

    for mode in ("nearest", "linear"):
        expected = sampled("0", source, turned, Policy(mode), empty(1, (9, 9, 9), "i8", range(4)))
        for path in paths_here():
            found = empty(1, (9, 9, 9), "i8", range(4))
            sampled(path, source, turned, Policy(mode), found)
            assert np.array_equal(found, expected)


def test_a_missing_library_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the kernel there is one warning, and the slow path does the work."""
    native._library.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ramp = np.arange(4, dtype=np.float32).reshape(1, 4, 1, 1)
    source = SourceVoxels(ramp, (0, 0, 0), Region.of_shape((4, 1, 1)))
    try:
        with pytest.warns(RuntimeWarning, match="slow path.*not built") as caught:
            resample(source, np.eye(4), Policy(), np.empty((1, 4, 1, 1), np.float32))
        assert len(caught) == 1
        resample(source, np.eye(4), Policy(), np.empty((1, 4, 1, 1), np.float32))
        assert not native.available()
        assert native.path() is None
    finally:
        native._library.cache_clear()


def test_the_environment_switches_the_kernel_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """``VOXPIPE_NATIVE=0`` means no kernel, the name of a path that one."""
    monkeypatch.setenv("VOXPIPE_NATIVE", "0")
    assert not native.available()

    monkeypatch.setenv("VOXPIPE_NATIVE", "portable")
    assert native.path() == "portable"


def beside(number: float, dtype: str) -> SourceVoxels:
    """Ones around one voxel, (1, 5, 4, 40), of which the middle is ``number``."""
    array = np.ones((1, 5, 4, 40), dtype)
    array[0, 2, 2, 20] = number
    return SourceVoxels(array, (0, 0, 0), Region.of_shape((5, 4, 40)))


MEETING = {
    "half a voxel along k": (np.diag([1, 1, 0.5, 1.0]), (5, 4, 79)),
    "half a voxel along i": (np.diag([0.5, 1, 1, 1.0]), (9, 4, 40)),
    "half a voxel everywhere": (np.diag([0.5, 0.5, 0.5, 1.0]), (9, 7, 79)),
    "sheared": (np.eye(4) + np.outer([0, 0, 0.5, 0], [1, 0, 0, 0]), (5, 4, 40)),
    "sheared along j": (np.eye(4) + np.outer([0, 0.5, 0, 0], [1, 0, 0, 0]), (5, 4, 40)),
}
"""Pull-backs by which some voxels are met exactly, and others are not."""


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("pull_back", MEETING.values(), ids=MEETING)
def test_what_is_beside_infinity_is_met_alone(pull_back: Any, number: float) -> None:
    """A voxel of weight 1 is what comes out, whatever those of weight 0 are."""
    matrix, shape = pull_back
    for dtype, padding, order in product(
        ("f2", "f4", "f8"), ("border", "zeros", "constant", "reflection"), ("C", "F")
    ):
        source = beside(number, dtype)
        source = dataclasses.replace(source, array=np.asarray(source.array, order=order))
        policy = Policy("linear", padding)
        expected = sampled("0", source, matrix, policy, empty(1, shape, "f4", range(4)))
        places = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1)
        places = places @ matrix[:3, :3].T + matrix[:3, 3]
        met = (places == np.rint(places)).all(axis=-1)
        met &= ((places >= 0) & (places <= [4, 3, 39])).all(axis=-1)
        index = np.clip(np.rint(places).astype(int), 0, [4, 3, 39])
        stored = source.array[0][tuple(np.moveaxis(index, -1, 0))].astype(np.float32)
        np.testing.assert_array_equal(expected[0][met], stored[met])
        assert np.isfinite(expected[0][met]).sum() == met.sum() - 1
        for path in paths_here():
            found = sampled(path, source, matrix, policy, empty(1, shape, "f4", range(4)))
            assert np.array_equal(found, expected, equal_nan=True), (path, dtype, padding, order)


@pytest.mark.parametrize("mode", ["nearest", "cubic"])
def test_infinity_stays_where_it_is_met_alone(mode: str) -> None:
    """Its weight is 1 there, in every way of sampling."""
    matrix, shape = MEETING["half a voxel along k"]
    for path in ["0", *paths_here()]:
        found = empty(1, shape, "f4", range(4))
        with np.errstate(invalid="ignore"):
            sampled(path, beside(np.inf, "f4"), matrix, Policy(mode), found)
        assert found[0, 2, 2, 40] == np.inf


def test_zeros_outside_are_zeros_beside_infinity() -> None:
    """A place one voxel beyond an infinite face has nothing of it: zero, and not zero times it."""
    array = np.full((1, 3, 3, 3), np.inf, np.float32)
    source = SourceVoxels(array, (0, 0, 0), Region.of_shape((3, 3, 3)))
    moved = np.eye(4)
    moved[:3, :3] *= 0.5
    moved[0, 3] = -1.0
    for path in ["0", *paths_here()]:
        found = empty(1, (3, 3, 3), "f4", range(4))
        sampled(path, source, moved, Policy("linear", "zeros"), found)
        assert np.array_equal(found[0, :, 0, 0], [0, np.inf, np.inf]), path
