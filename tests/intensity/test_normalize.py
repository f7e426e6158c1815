"""Normalize: arithmetic, statistics, refusals."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from voxpipe.intensity import Normalize, ValueOp, normalize


class NoFacts:
    def statistics(self, above: float | None = None) -> Any:
        raise AssertionError("a fixed mean and deviation need no statistics")


class SomeFacts:
    def statistics(self, above: float | None = None) -> Any:
        return SimpleNamespace(mean=3.0, std=2.0)


@given(
    values=arrays(np.int16, (3, 4), elements=st.integers(-32768, 32767)),
    mean=st.floats(-1e5, 1e5),
    std=st.floats(1e-2, 1e5),
)
def test_it_is_float64_arithmetic_to_float32(values: Any, mean: float, std: float) -> None:
    """Within two roundings of float32 of the same formula in float64."""
    found = normalize(values, mean, std)

    expected = (values.astype(np.float64) - mean) / std
    assert found.dtype == np.float32
    assert np.allclose(found, expected, rtol=3 * np.finfo(np.float32).eps, atol=1e-30)


def test_a_small_difference_of_large_numbers_keeps_its_digits() -> None:
    """16777217 - 16777216 is 1, also on the way to float32."""
    assert normalize(np.array([2**24 + 1], np.int32), 2.0**24, 1).tolist() == [1]


def test_without_deviation_only_the_mean_is_subtracted() -> None:
    """A constant volume becomes zero, not NaN."""
    assert normalize(np.array([5, 5]), 5, 0).tolist() == [0, 0]


def test_it_works_in_place_on_any_strides() -> None:
    """The op changes the array that it is given, and returns that."""
    slot = np.zeros((2, 2, 2, 4), np.float32)[..., ::2]
    slot[...] = 7

    found = Normalize().apply(slot, {}, SomeFacts())

    assert found is slot
    assert np.all(slot == 2)


def test_statistics_are_asked_for_only_if_needed() -> None:
    """What is given is used; what is left out comes from the volume."""
    ones = np.ones((1, 1, 1, 1), np.float32)

    assert Normalize(0, 4).apply(ones.copy(), {}, NoFacts()).item() == 0.25
    assert Normalize(mean=0).apply(ones.copy(), {}, SomeFacts()).item() == 0.5
    assert Normalize(std=1).apply(ones.copy(), {}, SomeFacts()).item() == -2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"std": -1}, "std is a number >= 0 or None, got -1"),
        ({"std": float("nan")}, "std is a number >= 0"),
        ({"mean": float("inf")}, "mean is a finite number or None, got inf"),
    ],
)
def test_nonsense_statistics_are_refused(arguments: Any, message: str) -> None:
    """At construction, with the value."""
    with pytest.raises(ValueError, match=message):
        Normalize(**arguments)


def test_it_is_a_value_op() -> None:
    """It has the protocol's members, compares by value, pickles and describes itself."""
    op = Normalize(1, 2)

    assert isinstance(op, ValueOp)
    assert pickle.loads(pickle.dumps(op)) == op == Normalize(1.0, 2.0)
    assert op.describe() == "normalize by mean 1, deviation 2"
    assert "each volume" in Normalize().describe()
    assert "the mean of each volume" in Normalize(std=2).describe()
