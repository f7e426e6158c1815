"""Noise, filters, coarser voxels: known answers, and the same bits in NumPy and native code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_paths import NATIVE_PATHS

from voxpipe.intensity import native_values as native
from voxpipe.intensity import noise as counter_noise
from voxpipe.intensity.filters import CoarserVoxels, filter_axis, gaussian
from voxpipe.intensity.native_values import change_values
from voxpipe.intensity.noise import VoxelNoise

ANY_FIXTURE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
SIZES = st.tuples(st.integers(1, 2), *[st.integers(1, 9)] * 2, st.integers(1, 70))
CORNERS = st.tuples(*[st.integers(-1000, 1000)] * 3)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0_A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers(counter: Any, key: int, expected: Any) -> None:
    """The three vectors that its authors publish (Random123, kat_vectors, philox4x32 10)."""
    assert tuple(int(word) for word in counter_noise.philox(counter, key)) == expected


def test_normals_are_normal() -> None:
    """Moments, tails and the distribution function of 200,000 of them."""
    numbers = np.sort(counter_noise.normals((1, 50, 50, 80), (-7, 3, 1), 99).ravel())
    places = np.array([-2.0, -1.0, 0.0, 0.5, 1.5, 3.0])
    expected = [0.0227501, 0.1586553, 0.5, 0.6914625, 0.9331928, 0.9986501]

    assert abs(numbers.mean()) < 0.01
    assert abs(numbers.std() - 1) < 0.01
    assert abs((numbers**4).mean() - 3) < 0.1
    assert np.allclose(np.searchsorted(numbers, places) / numbers.size, expected, atol=0.005)


def test_neighbours_channels_and_planes_have_nothing_in_common() -> None:
    """No correlation beyond chance, of 40,000 pairs."""
    field = counter_noise.normals((2, 34, 34, 35), (0, 0, 0), 5)
    other = counter_noise.normals((2, 34, 34, 35), (0, 0, 0), 5, plane=1)
    pairs = [
        (field[:, 1:], field[:, :-1]),
        (field[:, :, 1:], field[:, :, :-1]),
        *((field[..., n:], field[..., :-n]) for n in (1, 2, 3)),
        (field[0], field[1]),
        (field, other),
    ]

    for one, two in pairs:
        assert abs(np.corrcoef(one.ravel(), two.ravel())[0, 1]) < 0.02


@given(size=SIZES, corner=CORNERS, key=st.integers(0, 2**64 - 1))
def test_a_voxel_has_its_number_wherever_a_patch_begins(size: Any, corner: Any, key: int) -> None:
    """A patch that begins elsewhere agrees where both are."""
    shape = (size[0], *(n + 3 for n in size[1:]))
    wide = counter_noise.normals(shape, tuple(c - 2 for c in corner), key)

    narrow = counter_noise.normals(size, corner, key)

    inside = tuple(slice(2, 2 + n) for n in size[1:])
    assert np.array_equal(narrow, wide[(slice(None), *inside)])


def strided(size: Any, seed: int) -> Any:
    """Positive float32 numbers that lie apart in memory, backwards along one axis."""
    wide = np.random.default_rng(seed).uniform(0, 9, (*size[:3], 2 * size[3])).astype(np.float32)
    return wide[:, ::-1, :, ::2] if seed % 2 else np.ascontiguousarray(wide[..., ::2])


@pytest.mark.parametrize("path", NATIVE_PATHS)
@given(size=SIZES, corner=CORNERS, key=st.integers(0, 2**64 - 1), seed=st.integers(0, 9))
@ANY_FIXTURE
def test_native_noise_has_the_bits_of_numpy(
    path: str, size: Any, corner: Any, key: int, seed: int
) -> None:
    """Gaussian and Rician, on any strides."""
    results = []
    for which in ("0", path):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VOXPIPE_NATIVE", which)
            plain, rician = strided(size, seed), strided(size, seed)
            change_values(plain, [VoxelNoise(corner, key, 1.5, 0.25)])
            change_values(rician, [VoxelNoise(corner, key, 1.5, rician=True)])
            results.append((plain, rician))

    assert np.array_equal(results[0][0], results[1][0])
    assert np.array_equal(results[0][1], results[1][1])


def test_a_long_row_is_worked_on_in_parts() -> None:
    """More voxels along the last axis than the native code takes at once."""
    found = np.zeros((1, 1, 2, 5003), np.float32)

    assert native.change_natively(found[0], 0, [VoxelNoise((0, 0, -2), 3, 1.0).native_step()])

    assert np.array_equal(found, counter_noise.normals(found.shape, (0, 0, -2), 3))


@pytest.mark.parametrize("path", NATIVE_PATHS)
@given(size=SIZES, sigma=st.floats(0.2, 4), seed=st.integers(0, 9), axis=st.integers(0, 2))
@ANY_FIXTURE
def test_native_filters_have_the_bits_of_numpy(
    path: str, size: Any, sigma: float, seed: int, axis: int
) -> None:
    """Along every axis, also where the filter is longer than the array."""
    results = []
    for which in ("0", path):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VOXPIPE_NATIVE", which)
            array = strided(size, seed)
            filter_axis(array, axis, gaussian(sigma))
            results.append(array)

    assert np.array_equal(results[0], results[1])


def coarsen_axis(array: Any, axis: int, factor: float, corner: int) -> None:
    """Make voxels larger along one axis."""
    factors, corners = [1.0] * 3, [0] * 3
    factors[axis], corners[axis] = factor, corner
    change_values(array, [CoarserVoxels(tuple(factors), tuple(corners))])


@pytest.mark.parametrize("path", NATIVE_PATHS)
@given(
    size=SIZES,
    factor=st.floats(1, 9),
    corner=st.integers(-1000, 1000),
    seed=st.integers(0, 9),
    axis=st.integers(0, 2),
)
@ANY_FIXTURE
def test_native_coarse_voxels_have_the_bits_of_numpy(
    path: str, size: Any, factor: float, corner: int, seed: int, axis: int
) -> None:
    """Along every axis, also where the factor is larger than the array."""
    results = []
    for which in ("0", path):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VOXPIPE_NATIVE", which)
            array = strided(size, seed)
            coarsen_axis(array, axis, factor, corner)
            results.append(array)

    assert np.array_equal(results[0], results[1])


@pytest.mark.parametrize("path", ["0", *NATIVE_PATHS])
def test_coarse_voxels_are_those_of_interp(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy's lines through every 2.5th voxel, rounded half to even, of an array from -3 on."""
    monkeypatch.setenv("VOXPIPE_NATIVE", path)
    values = np.random.default_rng(0).normal(size=24).astype(np.float32)
    kept = np.arange(-2, 9)
    inside = [k for k in kept if 0 <= np.rint(k * 2.5) + 3 < 24]
    places = (np.arange(24) - 3) / 2.5
    expected = np.interp(places, inside, [values[int(np.rint(k * 2.5)) + 3] for k in inside])
    array = values.reshape(1, 24, 1, 1).copy()

    coarsen_axis(array, 0, 2.5, -3)

    within = (places >= inside[0]) & (places <= inside[-1])
    assert within.sum() > 20
    assert np.allclose(array.ravel()[within], expected[within], atol=1e-6)


@pytest.mark.parametrize("path", ["0", *NATIVE_PATHS])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_voxel_that_is_kept_is_what_it_was(
    path: str, axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Infinite, or beside an infinite one: lines begin and end at it, and it lies on both."""
    monkeypatch.setenv("VOXPIPE_NATIVE", path)
    shape = [1, 3, 3, 3]
    shape[axis + 1] = 40
    array = np.ones(shape, np.float32)
    place: list[Any] = [0, 1, 1, 1]
    place[axis + 1] = 20
    array[tuple(place)] = np.inf
    place[axis + 1] = slice(None)
    kept = array[tuple(place)][::2].copy()

    coarsen_axis(array, axis, 2.0, 0)

    assert np.array_equal(array[tuple(place)][::2], kept)
    assert np.array_equal(np.isinf(kept), np.arange(20) == 10)
    assert np.isfinite(array).sum() >= array.size - 3


def test_a_missing_library_leaves_the_array_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller is told, and takes the same steps in NumPy."""
    monkeypatch.setattr(native, "_library", lambda: None)
    array = np.ones((1, 2, 2, 2), np.float32)

    step = VoxelNoise((0, 0, 0), 1, 1.0).native_step()
    assert not native.change_natively(array[0], 0, [step])
    assert (array == 1).all()
