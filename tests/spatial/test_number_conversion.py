"""Conversion between number types: rounding, saturation, exactness."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.core.convert_dtype import convert_dtype

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]


@pytest.mark.parametrize("name", INTEGERS)
def test_floats_round_half_to_even_and_saturate(name: str) -> None:
    """No value wraps round, and none is truncated."""
    limits = np.iinfo(name)
    values = np.array([0.5, 1.5, 2.5, 99.6, -1e30, 1e30, np.inf, -np.inf, np.nan])

    found = convert_dtype(values, np.dtype(name))

    low, high = int(limits.min), int(limits.max)
    assert found.tolist() == [0, 2, 2, 100, low, high, high, low, 0]


@given(
    values=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4),
    stored=st.sampled_from(INTEGERS),
    result=st.sampled_from(INTEGERS),
)
def test_integers_are_exact_or_saturate(values: list[int], stored: str, result: str) -> None:
    """Python's unbounded integers say what an integer becomes in another type."""
    have, want = np.iinfo(stored), np.iinfo(result)
    numbers = [min(max(v, int(have.min)), int(have.max)) for v in values]

    found = convert_dtype(np.array(numbers, dtype=stored), np.dtype(result))

    assert found.dtype == np.dtype(result)
    assert found.tolist() == [min(max(v, int(want.min)), int(want.max)) for v in numbers]


def test_two_to_the_24_plus_one_survives() -> None:
    """Integers that float32 cannot hold pass from float64 to integer types unharmed."""
    assert convert_dtype(np.array([2.0**24 + 1]), np.dtype("int32")).tolist() == [2**24 + 1]


def test_what_float16_cannot_hold_is_infinite() -> None:
    """A float type says infinity by itself, without a warning."""
    assert convert_dtype(np.array([1e6, -1e6]), np.dtype("float16")).tolist() == [np.inf, -np.inf]


def test_the_same_type_is_no_copy() -> None:
    """Nothing is done where nothing is to be done."""
    values = np.arange(3)

    assert convert_dtype(values, values.dtype) is values
