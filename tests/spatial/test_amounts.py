"""Amounts: their forms, what they draw, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.core import Grid
from voxpipe.spatial import (
    Affine,
    Augment,
    CenterCrop,
    Crop,
    CropOrPad,
    FixedPatch,
    Flip,
    GridPatch,
    Pad,
    Rotate,
    Rotate90,
    Shear,
    SpatialPlan,
    Translate,
    UniformPatch,
    Zoom,
)
from voxpipe.spatial.ops.op import as_amount, draw_amount

numbers = st.floats(-1000, 1000)
ranges = st.tuples(numbers, numbers).map(lambda pair: tuple(sorted(pair)))
entries = st.one_of(numbers, ranges)


@given(amount=st.one_of(entries, st.tuples(entries, entries, entries)), seed=st.integers(0, 99))
def test_draws_lie_in_their_ranges(amount: Any, seed: int) -> None:
    """A scalar is itself, a range holds what is drawn from it, per axis where it is per axis."""
    drawn = draw_amount(np.random.default_rng(seed), as_amount("x", amount))

    per_axis = amount if isinstance(amount, tuple) and len(amount) == 3 else (amount,) * 3
    for value, entry in zip(drawn, per_axis, strict=True):
        low, high = entry if isinstance(entry, tuple) else (entry, entry)
        assert low <= value <= high


def test_a_range_is_drawn_for_each_axis_on_its_own() -> None:
    """Three axes get three angles, and one zoom factor."""
    generator = np.random.default_rng(0)

    assert len(set(draw_amount(generator, (0.0, 1.0)))) == 3
    assert len(set(draw_amount(generator, (0.0, 1.0), isotropic=True))) == 1
    assert len(set(draw_amount(generator, ((0.0, 1.0),) * 3, isotropic=True))) == 3


def test_a_zoom_keeps_proportions_unless_asked() -> None:
    """One range is one factor; three ranges are three."""
    plan = SpatialPlan.identity(Grid((4, 4, 4), np.eye(4)))
    one, three = (
        op.draw(np.random.default_rng(0), plan)
        for op in (Zoom((0.5, 2)), Zoom(((0.5, 2), (0.5, 2), (0.5, 2))))
    )

    assert one is not None
    assert three is not None
    assert len(set(one["factor"])) == 1
    assert len(set(three["factor"])) == 3


def test_draws_are_uniform() -> None:
    """Each tenth of a range gets its share: 5 sigma of a binomial of 3000 draws."""
    generator = np.random.default_rng(0)

    drawn = [v for _ in range(1000) for v in draw_amount(generator, (-2.0, 8.0))]

    counts, _ = np.histogram(drawn, bins=10, range=(-2, 8))
    assert np.all(np.abs(counts - 300) < 5 * np.sqrt(3000 * 0.1 * 0.9))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rotate("ten"), r"degrees is a number.*got 'ten'"),
        (lambda: Rotate(True), r"degrees is a number.*got True"),
        (lambda: Rotate((1, 2, 3, 4)), r"got \(1, 2, 3, 4\)"),
        (lambda: Rotate((15, -15)), r"low <= high, got \(15, -15\)"),
        (lambda: Rotate(float("nan")), r"finite numbers, got nan"),
        (lambda: Rotate(5, p=1.5), r"p is a probability from 0 to 1, got 1.5"),
        (lambda: Rotate(5, space="mm"), r"space is one of 'world', 'voxel', got 'mm'"),
        (lambda: Zoom(0), r"factor takes numbers above 0, got 0"),
        (lambda: Zoom((-1, 2)), r"factor takes numbers above 0, got \(-1, 2\)"),
        (lambda: Translate((1, 2, (3, np.inf))), r"finite numbers, got \(3, inf\)"),
        (lambda: Shear(None), r"factor is a number.*got None"),
        (lambda: Augment(zoom=0), r"zoom takes numbers above 0"),
        (lambda: Augment(flip=2), r"flip is a probability"),
        (lambda: Augment(flip=(0.5, 0.5)), r"flip is one probability, or three"),
        (lambda: Flip(3), r"out of 0, 1, 2 .*, or names .*, got 3"),
        (lambda: Flip((0, 0)), r"different axes out of"),
        (lambda: Flip(()), r"out of 0, 1, 2 .*, or names .*, got \(\)"),
        (lambda: Flip((0, 1), p=(0.5,)), r"one for each of the 2 axes"),
        (lambda: Rotate90(1, (0,)), r"two different axes out of 0, 1, 2"),
        (lambda: Rotate90(1, (1, 1)), r"two different axes"),
        (lambda: Rotate90(0.5), r"whole number of quarter turns, or a range .*got 0.5"),
        (lambda: Crop((-1, 0, 0), (2, 2, 2)), r"start takes three integers >= 0"),
        (lambda: Crop((0, 0, 0), (2, 2)), r"2-D data have K = 1: write"),
        (lambda: CenterCrop((2, 2, 0)), r"0 on axis 2 of \(2, 2, 0\)"),
        (lambda: CropOrPad(4.5), r"size is counted in whole voxels, got 4.5"),
        (lambda: Pad(-1), r"pad takes an integer >= 0.*got -1"),
        (lambda: Pad(((1, 2), (3, 4))), r"three pairs"),
        (lambda: Pad(1.5), r"got 1.5"),
        (lambda: UniformPatch((8, 8)), r"a patch takes three integers >= 1, got \(8, 8\)"),
        (lambda: FixedPatch((0.5, 0, 0), (8, 8, 8)), r"start takes three integers"),
        (lambda: GridPatch((8, 8, 8), 8), r"overlap must be smaller than the patch"),
        (lambda: GridPatch((8, 8, 8), -1), r"overlap takes three integers >= 0"),
        (lambda: Affine(np.eye(3)), r"finite 4x4 matrix"),
        (lambda: Affine(np.zeros((4, 4))), r"row 0 0 0 1 and has an inverse"),
        (lambda: Affine(np.eye(4), shape=(4, 4, 4), p=0.5), r"acts always"),
    ],
)
def test_nonsense_is_refused_at_construction(make: Any, message: str) -> None:
    """The message shows the offending value and the allowed ones."""
    with pytest.raises(ValueError, match=message):
        make()


def test_lists_and_numpy_numbers_are_taken() -> None:
    """What a configuration file gives makes the same op as what a script gives."""
    assert Rotate([-15, np.float32(15)]) == Rotate((-15.0, 15.0))
    assert Crop(np.array([1, 2, 3]), [4, 5, 6]) == Crop((1, 2, 3), (4, 5, 6))
    assert Flip([0, 1]) == Flip((0, 1))
    assert Affine(np.eye(4).tolist()) == Affine(np.eye(4))
