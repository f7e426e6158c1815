"""Low resolution before a spatial pipe: two grids, of which the first has only what stays."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import voxpipe as vp
from voxpipe.core import IO_COUNTERS
from voxpipe.datapipes.cost import explain
from voxpipe.spatial.lazy import read_plan
from voxpipe.spatial.lazy.read_plan import CoarseVolume

SHAPE = (40, 36, 32)
VOLUME = np.random.default_rng(0).normal(100, 20, SHAPE).astype(np.float32)


def opened(volume: Any = VOLUME) -> Any:
    return vp.from_cases([{"image": vp.Volume(volume, affine=np.diag([1, 1.1, 1.3, 1]))}])


def middle(pipe: Any, size: Any = 12) -> Any:
    return next(iter(pipe.center_crop(size)))["image"]


def by_all_voxels(patch: Any, monkeypatch: Any) -> Any:
    """Return the patch by way of every voxel of the finer grid."""
    with monkeypatch.context() as context:
        context.setattr(read_plan, "coarse_read", lambda *_: None)
        return patch.realize()


CHAINS = [
    lambda p: p.low_resolution(2),
    lambda p: p.low_resolution(3),
    lambda p: p.anisotropy(4, axes=1),
    lambda p: p.normalize(mean=90, std=11).clamp(-2, 2).low_resolution(2),
    lambda p: p.one_of([vp.spatial.Rotate(3)]).low_resolution(3),
]


@pytest.mark.parametrize("change", CHAINS, ids=["2", "3", "one axis", "values before", "choice"])
@pytest.mark.parametrize("later", ["affine", "displaced", "halo"])
def test_what_stays_is_enough(change: Any, later: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same voxels as by way of all, of a part of the voxels."""
    pipe = change(opened().open_volume().rotate((4, -3, 10))).zoom(1.5).rotate((0, 7, -12))
    pipe = pipe.elastic(1, spacing=8) if later == "displaced" else pipe
    pipe = pipe.center_crop(12)
    patch = next(iter(pipe.blur(1) if later == "halo" else pipe))["image"]

    source = patch.read_plan.volume
    found = patch.realize()

    assert isinstance(source, CoarseVolume)
    assert np.abs(found - by_all_voxels(patch, monkeypatch)).max() < 2e-4


def test_fewer_voxels_are_made() -> None:
    """One in eight or so, and the read of the stored volume is no larger."""
    pipe = opened().open_volume().rotate(5).low_resolution(2).zoom(1.5)
    patch = middle(pipe)

    made = patch.reads()[0].made_bytes
    touched = patch.plan.source_region(patch.policy).size * 4

    assert made < touched / 3
    assert patch.reads()[0].region.size < VOLUME.size / 4


@settings(max_examples=30, deadline=None)
@given(
    factor=st.sampled_from([1.7, 2, 2.5, 3, 5]),
    axes=st.sampled_from([0, 1, 2, None]),
    start=st.tuples(*[st.integers(0, 18)] * 3),
    first=st.sampled_from([0, 90, (3, 9, -4)]),
    size=st.integers(1, 14),
)
def test_a_patch_is_the_part_of_the_whole(
    factor: float, axes: Any, start: Any, first: Any, size: int
) -> None:
    """Wherever it lies and whatever way is taken, also across the faces."""
    pipe = opened().open_volume().rotate(first)
    pipe = pipe.low_resolution(factor) if axes is None else pipe.anisotropy(factor, axes=axes)
    pipe = pipe.rotate((5, -8, 20))
    whole = next(iter(pipe))["image"].realize()

    part = next(iter(pipe.crop(start, size)))["image"].realize()

    i, j, k = start
    expected = whole[:, i : i + size, j : j + size, k : k + size]
    assert np.abs(part - expected).max() < 2e-4


@pytest.mark.parametrize(
    "pipe",
    [
        opened().open_volume().low_resolution(2).rotate(5),
        opened().open_volume().rotate(5).low_resolution(2.5).rotate(5),
        opened().open_volume().rotate(5).low_resolution(2).rotate(5, mode="nearest"),
        opened().open_volume().rotate(5).noise(1).low_resolution(2).rotate(5),
        opened().open_volume().rotate(5).low_resolution(2).gamma(2).rotate(5),
        opened().open_volume().rotate(5).low_resolution(2, p=0).rotate(5),
        opened().open_volume().rotate(5).low_resolution(2).crop((0, 0, 0), 20, hard=True).rotate(5),
    ],
    ids=["copied", "broken", "nearest", "noise", "gamma", "never", "hard crop"],
)
def test_elsewhere_all_voxels_are_made(pipe: Any) -> None:
    """Where lines between those that stay are not what is sampled, or nothing is spared."""
    assert not isinstance(middle(pipe, 6).read_plan.volume, CoarseVolume)


def test_no_interpolation_more_where_none_came_before() -> None:
    """Two with one before, one where voxels were only moved; one read of a part."""
    counts = []
    for pipe in (opened().open_volume().flip(0), opened().open_volume().rotate(5)):
        patch = middle(pipe.anisotropy(3, axes=0).rotate(10), 8)
        before = IO_COUNTERS.snapshot()
        patch.realize()
        done = IO_COUNTERS.snapshot() - before
        counts.append((done.interpolations, done.copies, done.reads))
        assert patch.reads()[0].region.size < VOLUME.size / 4

    assert counts == [(1, 1, 1), (2, 0, 1)]


def test_explain_says_what_it_costs_and_why() -> None:
    """The op, its line and the two grids."""
    text = explain(opened().open_volume().rotate(5).low_resolution(2).rotate(5))

    assert "not fused: image is sampled anew after low_resolution at .low_resolution(2)" in text
    assert "(a coarser grid is made of the voxels so far, and what follows is sampled" in text
    assert "2 interpolations" in text
