"""The resampler by example: exact copies, padding, rounding, types, memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from voxpipe.core import IO_COUNTERS, Region
from voxpipe.spatial import Clip, KernelStages, Policy, SourceVoxels, resample

BORDER = Policy("linear", "border")
TYPES = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"]


def shifted(*shift: float) -> np.ndarray:
    matrix = np.eye(4)
    matrix[: len(shift), 3] = shift
    return matrix


def line(values: Any, dtype: Any = np.float32) -> SourceVoxels:
    """Return a volume of one row along I."""
    array = np.array(values, dtype=dtype).reshape(1, -1, 1, 1)
    return SourceVoxels(array, (0, 0, 0), Region.of_shape(array.shape[1:]))


def sampled(
    source: SourceVoxels, matrix: np.ndarray, policy: Policy, count: int, dtype: Any
) -> Any:
    out = np.empty((1, count, 1, 1), dtype)
    resample(source, matrix, policy, out)
    return out.ravel().tolist()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("order", ["<", ">"])
def test_the_ends_of_every_type_survive_a_copy_and_nearest(dtype: str, order: str) -> None:
    """Largest and smallest numbers arrive bit for bit, from either byte order."""
    stored = np.dtype(order + dtype)
    limits = np.finfo(stored) if stored.kind == "f" else np.iinfo(stored)
    ends = [limits.min, limits.max, 0]
    native = stored.newbyteorder("=")
    third = np.diag([1.0, 1, 1, 1])
    third[0] = [1 / 3, 0, 0, 1 / 4]

    copied = sampled(line(ends, stored), np.eye(4), BORDER, 3, native)
    nearest = sampled(line(ends, stored), third, Policy("nearest"), 3, native)

    assert copied == np.array(ends, stored).tolist()
    assert nearest == np.array([ends[0], ends[1], ends[1]], stored).tolist()


@pytest.mark.parametrize(("number", "dtype"), [(2**24 + 1, "i4"), (65535, "u2"), (2**53 + 1, "i8")])
def test_labels_that_float32_cannot_hold_survive(number: int, dtype: str) -> None:
    """A label volume never passes through a float type."""
    labels = line([number, number - 1, number], dtype)

    for matrix in (np.eye(4), np.diag([-1.0, 1, 1, 1]) + shifted(2) - np.eye(4), shifted(0.3)):
        found = sampled(labels, matrix, Policy("nearest", "border"), 3, dtype)
        assert found == [number, number - 1, number]


@pytest.mark.parametrize(
    ("padding", "expected"),
    [
        ("border", [1, 1, 1, 2, 3, 3, 3]),
        ("reflection", [2, 1, 1, 2, 3, 3, 2]),
        ("constant", [-5, -5, 1, 2, 3, -5, -5]),
        ("zeros", [0, 0, 1, 2, 3, 0, 0]),
    ],
)
def test_padding_of_whole_voxels(padding: str, expected: list[float]) -> None:
    """Each rule, two voxels beyond either end of 1 2 3."""
    policy = Policy("linear", padding, fill=-5)

    assert sampled(line([1, 2, 3]), shifted(-2), policy, 7, np.float32) == expected


@pytest.mark.parametrize(
    ("padding", "expected"),
    [
        ("border", [1, 1, 1.75, 2.75, 3, 3]),
        ("reflection", [1.25, 1, 1.75, 2.75, 3, 2.25]),
        ("constant", [-5, 1, 1.75, 2.75, 3, -5]),
        ("zeros", [0, 0.75, 1.75, 2.75, 2.25, 0]),
    ],
)
def test_padding_between_voxels(padding: str, expected: list[float]) -> None:
    """Each rule, at six places from before the first to behind the last voxel of 1 2 3."""
    policy = Policy("linear", padding, fill=-5)

    found = [
        sampled(line([1, 2, 3]), shifted(x), policy, 1, np.float32)[0]
        for x in (-1.25, -0.25, 0.75, 1.75, 2.25, 3.75)
    ]

    assert found == expected


@pytest.mark.parametrize(
    ("padding", "expected"),
    [
        ("border", [1, 1, 2, 3, 3, 3]),
        ("reflection", [1, 1, 2, 3, 3, 2]),
        ("constant", [-5, 1, 2, 3, 3, -5]),
        ("zeros", [0, 1, 2, 3, 3, 0]),
    ],
)
def test_padding_of_nearest(padding: str, expected: list[float]) -> None:
    """The same places, nearest: nothing is blended."""
    policy = Policy("nearest", padding, fill=-5)

    found = [
        sampled(line([1, 2, 3]), shifted(x), policy, 1, np.float32)[0]
        for x in (-1.25, -0.25, 0.75, 1.75, 2.25, 3.75)
    ]

    assert found == expected


@pytest.mark.parametrize("shift", [0.3, 0.5, -0.5])
def test_a_constant_volume_stays_constant(shift: float) -> None:
    """Half a voxel outside is not outside: no edge darkens under a small shift."""
    policy = Policy("linear", "constant", fill=-1024)
    # One ulp beyond half a voxel, as a matrix that went through millimetres may be.
    for matrix in (shifted(shift), shifted(np.nextafter(shift, 2 * shift))):
        assert sampled(line([100, 100, 100], "i2"), matrix, policy, 3, np.float32) == [100] * 3


def test_nearest_rounds_half_to_even() -> None:
    """Exactly between two voxels the even index wins, as in NumPy and torch."""
    found = sampled(line([0, 1, 2, 3]), shifted(0.5), Policy("nearest", "border"), 3, "f4")

    assert found == [0, 2, 2]


def test_integers_round_and_saturate() -> None:
    """7.5 is 8, not 7; and 300 is 255, not 44."""
    stored = line([7, 8, 300, 400], "i2")

    assert sampled(stored, shifted(0.5), BORDER, 1, np.int16) == [8]
    assert sampled(stored, shifted(2.5), BORDER, 1, np.uint8) == [255]
    assert sampled(stored, shifted(2), BORDER, 2, np.uint8) == [255, 255]
    assert sampled(stored, shifted(2), Policy("nearest"), 2, np.uint8) == [255, 255]


def test_slope_and_intercept_come_before_fill_and_zeros() -> None:
    """Fill and zero are values, not stored numbers."""
    array = np.array([1, 2], np.int16).reshape(1, 2, 1, 1)
    scaled = SourceVoxels(
        array, (0, 0, 0), Region((0, 0, 0), (2, 1, 1)), slope=2.0, intercept=-10.0
    )
    fill = Policy("linear", "constant", fill=5)
    zeros = Policy("linear", "zeros")

    assert sampled(scaled, shifted(-1), fill, 4, np.float32) == [5, -8, -6, 5]
    assert sampled(scaled, shifted(-0.75), fill, 4, np.float32) == [5, -7.5, -6, 5]
    assert sampled(scaled, shifted(-1), zeros, 4, np.float32) == [0, -8, -6, 0]
    assert sampled(scaled, shifted(-0.75), zeros, 4, np.float32) == [-2, -7.5, -4.5, 0]
    nearest = Policy("nearest", "constant", fill=5)
    assert sampled(scaled, shifted(-0.75), nearest, 4, np.float32) == [5, -8, -6, 5]


def test_a_long_axis_is_exact() -> None:
    """At index 9999 a coordinate is as good as at 0: the ramp comes back to 1e-6."""
    ramp = np.arange(10_000, dtype=np.float64).reshape(1, -1, 1, 1)
    source = SourceVoxels(ramp[:, 9990:], (9990, 0, 0), Region.of_shape((10_000, 1, 1)))

    found = sampled(source, shifted(9990.3), BORDER, 9, np.float64)

    assert np.allclose(found, np.arange(9990.3, 9999), rtol=0, atol=1e-6)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("matrix", [np.eye(4), shifted(0.3, 0.2, 0.1)], ids=["copy", "shift"])
def test_strides_do_not_matter(mode: str, matrix: np.ndarray) -> None:
    """C and Fortran order, backward axes, boxes in larger arrays, odd addresses: one result."""
    volume = np.random.default_rng(0).integers(-99, 99, (2, 5, 6, 7), np.int16)
    boxed = np.zeros((2, 9, 9, 9), np.int16)[:, 2:7, 1:7, 1:8]
    boxed[...] = volume
    bytes_ = np.zeros(volume.nbytes + 1, np.uint8)
    odd = bytes_[1:].view(np.int16).reshape(volume.shape)
    odd[...] = volume
    record = np.zeros(volume.shape, np.dtype([("pad", "u1"), ("value", "<i2")]))
    record["value"] = volume
    wide = np.zeros((2, 5, 6, 14), np.float32)
    expected = np.empty((2, 5, 6, 7), np.float32)
    bounds = Region.of_shape((5, 6, 7))
    resample(SourceVoxels(volume, (0, 0, 0), bounds), matrix, Policy(mode), expected)

    for array in (
        np.asfortranarray(volume),
        np.ascontiguousarray(volume[:, ::-1, :, ::-1])[:, ::-1, :, ::-1],
        boxed,
        odd,
        record["value"],
        volume.astype(">i2"),
    ):
        found = wide[..., ::-2]
        array.flags.writeable = False
        resample(SourceVoxels(array, (0, 0, 0), bounds), matrix, Policy(mode), found)
        assert np.array_equal(found, expected)


def test_what_is_read_besides_the_region_has_no_influence() -> None:
    """A whole chunk gives bit for bit what the exact region gives."""
    volume = np.random.default_rng(0).normal(size=(1, 12, 12, 12)).astype(np.float32)
    matrix = shifted(3.2, 4.5, 2.9999995)
    bounds = Region.of_shape((12, 12, 12))
    out = np.empty((2, 1, 4, 4, 4), np.float32)

    resample(SourceVoxels(volume, (0, 0, 0), bounds), matrix, BORDER, out[0])
    exact = volume[:, 3:8, 4:9, 3:7]
    resample(SourceVoxels(exact, (3, 4, 3), bounds), matrix, BORDER, out[1])

    assert np.array_equal(out[0], out[1])


def test_missing_voxels_are_refused() -> None:
    """A source that lacks what the plan needs is an error that names both regions."""
    source = SourceVoxels(np.zeros((1, 3, 1, 1)), (0, 0, 0), Region.of_shape((9, 1, 1)))

    with pytest.raises(ValueError, match=r"needs Region\(2:6, .* only Region\(0:3, "):
        resample(source, shifted(2), BORDER, np.empty((1, 4, 1, 1)))


@pytest.mark.parametrize(
    ("array", "matrix", "out", "message"),
    [
        (np.zeros((2, 2, 2)), np.eye(4), np.zeros((1, 2, 2, 2)), r"a source is \(C, i, j, k\)"),
        (np.zeros((1, 2, 2, 2), "c8"), np.eye(4), np.zeros((1, 2, 2, 2)), "integers or floats"),
        (np.zeros((1, 2, 2, 2)), np.eye(3), np.zeros((1, 2, 2, 2)), "3x4 or 4x4"),
        (np.zeros((1, 2, 2, 2)), np.eye(4) * np.nan, np.zeros((1, 2, 2, 2)), "finite"),
        (np.zeros((1, 2, 2, 2)), np.eye(4), np.zeros((2, 2, 2, 2)), "with C = 1"),
        (np.zeros((1, 2, 2, 2)), np.eye(4), np.zeros((1, 2, 2, 2), bool), "got bool"),
    ],
    ids=["3-D", "complex", "3x3", "nan", "channels", "bool"],
)
def test_what_does_not_fit_is_refused(array: Any, matrix: Any, out: Any, message: str) -> None:
    """Wrong shapes and types are named, before anything is written."""
    with pytest.raises(ValueError, match=message):
        resample(SourceVoxels(array, (0, 0, 0), Region.of_shape((2, 2, 2))), matrix, BORDER, out)


def test_flags_are_numbers() -> None:
    """A stored bool is 0 or 1."""
    assert sampled(line([False, True], bool), shifted(0.5), BORDER, 1, np.float32) == [0.5]


def test_a_clip_is_fill_outside_its_box() -> None:
    """Up to half a voxel beyond the last centre is inside, as at the faces of a volume."""
    out = np.empty((1, 6, 1, 1), np.float32)
    clip = Clip(shifted(-1.25), (3, 1, 1))

    resample(line([1, 2, 3, 4, 5, 6]), np.eye(4), Policy(fill=-5), out, KernelStages((clip,)))

    assert out.ravel().tolist() == [-5, 2, 3, 4, -5, -5]


def test_empty_bounds_are_all_fill() -> None:
    """When a hard crop left nothing, every rule but zeros gives the fill."""
    nothing = SourceVoxels(np.zeros((1, 0, 0, 0)), (0, 0, 0), Region((2, 0, 0), (2, 1, 1)))

    for matrix in (np.eye(4), shifted(0.4)):
        assert sampled(nothing, matrix, Policy(fill=7), 2, np.float32) == [7, 7]
        assert sampled(nothing, matrix, Policy("linear", "zeros", 7), 2, np.float32) == [0, 0]


def test_a_clip_is_fill_also_where_no_voxel_is_needed() -> None:
    """Zeros lie outside the volume, fill outside the clip, though nothing is read."""
    out = np.empty((1, 4, 1, 1), np.float32)
    nothing = SourceVoxels(np.zeros((1, 0, 0, 0)), (0, 0, 0), Region.of_shape((3, 1, 1)))

    policy = Policy("nearest", "zeros", fill=7)
    resample(nothing, shifted(50), policy, out, KernelStages((Clip(shifted(-1), (2, 1, 1)),)))

    assert out.ravel().tolist() == [7, 0, 0, 7]


def test_an_output_without_voxels_is_nothing_to_do() -> None:
    """No channel and no extent are legal."""
    for shape in ((1, 0, 2, 2), (0, 2, 2, 2)):
        source = SourceVoxels(np.zeros((shape[0], 2, 2, 2)), (0, 0, 0), Region.of_shape((2, 2, 2)))
        resample(source, shifted(0.5), BORDER, np.empty(shape))


def test_calls_are_counted() -> None:
    """A copy is no interpolation, and nearest is one."""
    before = IO_COUNTERS.snapshot()

    sampled(line([1, 2]), np.eye(4), BORDER, 2, np.float32)
    sampled(line([1, 2]), shifted(0.5), BORDER, 2, np.float32)
    sampled(line([1, 2]), shifted(0.25), Policy("nearest"), 2, np.float32)

    done = IO_COUNTERS - before
    assert (done.copies, done.interpolations) == (1, 2)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_memory_stays_bounded(mode: str) -> None:
    """Beyond the output, a patch costs a few blocks, and a small part of its source's bytes."""
    volume = np.zeros((1, 128, 128, 128), np.int16)  # 4 MiB, 8 as float32, 16 as float64
    out = np.empty((1, 128, 128, 128), np.float32)
    source = SourceVoxels(volume, (0, 0, 0), Region.of_shape((128, 128, 128)))

    tracemalloc.start()
    resample(source, shifted(0.3, 0.2, 0.1), Policy(mode), out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 4 * 2**20


def test_torch_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hot path runs where torch cannot be imported."""
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)

    assert sampled(line([1, 2]), shifted(0.5), BORDER, 1, np.float32) == [1.5]
