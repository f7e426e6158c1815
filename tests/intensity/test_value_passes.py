"""Changes of values: several in one pass, with the bits of NumPy; powers and statistics."""

from __future__ import annotations

import gc
import weakref
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_paths import NATIVE_PATHS

import voxpipe as vp
from voxpipe.intensity import Contrast, Epilogue, Gamma
from voxpipe.intensity import native_values as native
from voxpipe.intensity.brightness import power
from voxpipe.intensity.filters import AxisFilters, CoarserVoxels, gaussian
from voxpipe.intensity.native_values import NoRange, change_values
from voxpipe.intensity.noise import VoxelNoise

ANY_FIXTURE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
SIZES = st.tuples(st.integers(1, 2), *[st.integers(1, 9)] * 2, st.integers(1, 70))
CORNERS = st.tuples(*[st.integers(-1000, 1000)] * 3)
FACTORS = st.one_of(st.just(1.0), st.floats(1, 5))
EXPONENTS = st.floats(0.2, 3)


def of_gamma(**arguments: Any) -> Any:
    """What one of a patch does, of an exponent."""
    return lambda gamma: Gamma(gamma, **arguments).changes({"gamma": gamma}, None)[0]


def of_contrast(**arguments: Any) -> Any:
    """What one of a patch does, of a factor."""
    op = Contrast(1.0, statistics_over="patch", **arguments)
    return lambda factor: op.changes({"factor": factor}, None)[0]


CHANGES = st.one_of(
    st.builds(Epilogue, st.floats(-2, 2), st.floats(-50, 50)),
    st.builds(Epilogue, st.floats(-2, 2), st.just(0.0), st.floats(-90, 0), st.floats(1, 90)),
    EXPONENTS.map(of_contrast()),
    EXPONENTS.map(of_contrast(keep_range=True)),
    EXPONENTS.map(of_contrast(keep_range=True, middle=2.5)),
    EXPONENTS.map(of_gamma(statistics_over="patch")),
    EXPONENTS.map(of_gamma(statistics_over="patch", keep_statistics=True)),
    EXPONENTS.map(of_gamma(statistics_over="patch", keep_statistics=True, invert=True)),
    EXPONENTS.map(of_gamma(in_range=(-20, 30), invert=True)),
    EXPONENTS.map(of_gamma(statistics_over="patch", in_range=(-20, 30), keep_statistics=True)),
    st.builds(VoxelNoise, CORNERS, st.integers(0, 2**64 - 1), st.floats(0, 9), st.floats(-9, 9)),
    st.builds(
        VoxelNoise, CORNERS, st.integers(0, 2**64 - 1), st.floats(0, 9), rician=st.just(True)
    ),
    st.builds(AxisFilters, st.tuples(*[st.floats(0.05, 3).map(gaussian)] * 3)),
    st.builds(CoarserVoxels, st.tuples(*[FACTORS] * 3), CORNERS),
)


def values(size: Any, seed: int, strided: bool) -> Any:
    """Numbers of a scan; apart in memory, backwards along one axis, if ``strided``."""
    wide = np.random.default_rng(seed).normal(10, 30, (*size[:3], 2 * size[3]))
    wide = wide.astype(np.float32)
    return wide[:, ::-1, :, ::2] if strided else np.ascontiguousarray(wide[..., ::2])


@pytest.mark.parametrize(
    "change", [of_contrast()(2.0), of_gamma(statistics_over="patch", keep_statistics=True)(2.0)]
)
def test_nothing_holds_the_array_afterwards(change: Any) -> None:
    """It may lie in a slot of a batch, which would not be free before garbage is collected."""
    array = values((1, 2, 3, 4), 0, strided=False)
    reference = weakref.ref(array)
    gc.disable()
    try:
        change_values(array, [change, change])
        del array
        assert reference() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("path", NATIVE_PATHS)
@given(
    size=SIZES,
    seed=st.integers(0, 9),
    strided=st.booleans(),
    changes=st.lists(CHANGES, min_size=1, max_size=6),
)
@ANY_FIXTURE
def test_native_changes_have_the_bits_of_numpy(
    path: str, size: Any, seed: int, strided: bool, changes: Any
) -> None:
    """Any that follow each other, in one call, on any strides: as one after another in NumPy."""
    results = []
    for which in ("0", path):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VOXPIPE_NATIVE", which)
            array = values(size, seed, strided)
            change_values(array, changes)
            results.append(array)

    assert np.array_equal(results[0], results[1], equal_nan=True)


@pytest.mark.parametrize("path", ["0", *NATIVE_PATHS])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_patch_without_range_is_refused_at_its_change(
    path: str, wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those before it are done; the number says which one was not."""
    monkeypatch.setenv("VOXPIPE_NATIVE", path)
    array = np.ones((2, 3, 4, 21), np.float32)
    array[1, 2, 3, 20] = wrong

    with pytest.raises(NoRange, match=r"no mean or range for gamma\(\)") as caught:
        change_values(array, [Epilogue(2.0), of_gamma(statistics_over="patch")(0.5), Epilogue(3.0)])
    assert caught.value.number == 1
    change_values(array, [of_gamma(in_range=(0, 1))(0.5)])
    kept = of_gamma(in_range=(0, 1), statistics_over="patch", keep_statistics=True)(0.5)
    with pytest.raises(NoRange, match="no mean or range"):
        change_values(array, [kept])


@pytest.mark.parametrize("path", ["0", *NATIVE_PATHS])
@pytest.mark.parametrize("keeps", [False, True])
def test_a_range_that_float32_cannot_divide_by_is_none(
    path: str, keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers so close that they are equal, as far as arithmetic goes, stay finite."""
    monkeypatch.setenv("VOXPIPE_NATIVE", path)
    array = np.linspace(0, 1e-40, 60, dtype=np.float32).reshape(1, 1, 3, 20)

    change_values(array, [of_gamma(statistics_over="patch", keep_statistics=keeps)(0.5)])

    assert np.abs(array).max() <= 1e-40


@pytest.mark.parametrize("exponent", [0.5, 0.7, 1.0, 1.5, 2.0])
def test_powers_are_within_two_and_a_half_units_of_the_last_place(exponent: float) -> None:
    """From the smallest numbers up to large ones; ends are exact."""
    base = np.concatenate([np.geomspace(1e-36, 1e6, 40001), np.linspace(0, 1, 40001)])
    base = base.astype(np.float32)
    true = base.astype(np.float64) ** exponent
    inside = true > np.finfo(np.float32).tiny

    found = power(base, exponent)

    error = np.abs(found - true)[inside] / np.spacing(true[inside].astype(np.float32))
    assert error.max() < 2.5
    ends = np.array([0, 1, np.inf, np.nan], np.float32)
    assert np.array_equal(power(ends, exponent), ends, equal_nan=True)


def test_an_exponent_that_is_not_of_float32_is_taken_as_it_is() -> None:
    """``numpy.power`` rounds it first, and is further from the truth then."""
    base = np.geomspace(1e-30, 1, 10001).astype(np.float32)
    true = base.astype(np.float64) ** 0.7

    ours, theirs = power(base, 0.7), np.power(base, np.float32(0.7))

    assert np.abs(ours / true - 1).mean() < np.abs(theirs / true - 1).mean()


def test_powers_rise() -> None:
    """Never does a larger number become less by more than its rounding."""
    found = power(np.linspace(0, 1, 100001).astype(np.float32), 0.8)

    assert all(b >= a * (1 - 3e-7) for a, b in pairwise(found.tolist()))


def test_kept_statistics_are_kept() -> None:
    """Mean and deviation after a bend are those before, of values far from 0 as well."""
    array = values((2, 9, 9, 33), 0, strided=False) + np.float32(1000)
    before = [(c.mean(dtype=np.float64), c.std(dtype=np.float64)) for c in array]

    change_values(array, [of_gamma(statistics_over="patch", keep_statistics=True)(0.6)])

    after = [(c.mean(dtype=np.float64), c.std(dtype=np.float64)) for c in array]
    assert np.allclose(before, after, rtol=1e-6)


def test_ops_that_follow_each_other_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a chain does to values, up to an op that asks for statistics, or to a function."""
    calls = []
    change = native.change_natively

    def noted(channel: Any, number: int, steps: Any, statistics: Any) -> Any:
        calls.append((len(steps), statistics is not None))
        return change(channel, number, steps, statistics)

    monkeypatch.setattr(native, "change_natively", noted)
    pipe = vp.from_cases([{"image": np.arange(8**3, dtype=np.int16).reshape(8, 8, 8)}])
    pipe = (
        pipe.open_volume()
        .noise(1.0)
        .blur(1.0)
        .brightness(2.0, name="two")
        .gamma(0.7, statistics_over="patch")
    )
    pipe = pipe.map_values(np.tanh).noise(0.5, name="again").low_resolution(1.5)

    next(iter(pipe))["image"].realize()

    assert calls == [(3, True), (1, False), (2, False)]


def test_values_are_not_changed_twice_where_memory_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first passes may be done when a later one gets none."""
    library = native._library()
    if library is None:
        pytest.skip("the native library is not built")
    monkeypatch.setattr(library, "voxpipe_values", lambda job: 2)
    array = np.ones((1, 2, 2, 2), np.float32)

    with pytest.raises(MemoryError, match="no memory"):
        change_values(array, [Epilogue(2.0)])
    assert (array == 1).all()
