"""Preferences of pipes for reads: negotiated with the store and the memory, and shown."""

from dataclasses import replace

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import voxpipe as vp
from voxpipe.core.errors import SampleError
from voxpipe.volumes import AccessHint
from voxpipe.volumes.choose_scheme import choose_scheme
from voxpipe.volumes.scheme import Budget, Demand, StoreLayout

MIB = 2**20
STORE = StoreLayout((256, 256, 256), 2, (32, 32, 32), access="range", volumes=100, remote=True)
DEMAND = Demand((64.0,) * 3, (64.0,) * 3, 27.0, 2, 10**6, is_scattered=False)
BUDGET = Budget(2**31, workers=2, batches_ahead=4)


def agreed(hint, layout=STORE, budget=BUDGET):
    """Return the scheme with a hint, and without."""
    return choose_scheme(layout, replace(DEMAND, hint=hint), budget), choose_scheme(
        layout, DEMAND, budget
    )


def test_a_tile_is_whole_chunks():
    """The longest joined request is one tile, in whole units of the store."""
    scheme, before = agreed(AccessHint(tile=(48, 64, 64), largest=(128, 128, 64)))

    assert scheme.longest_run == 64 * 64 * 64 * 2
    assert before.longest_run > scheme.longest_run
    assert scheme.agreement == (
        "asked: tiles of 48x64x64, at most 128x128x64; the store's unit is 32x32x32; "
        "agreed: tiles of 64x64x64"
    )
    assert scheme.agreement in scheme.explain()
    assert not before.agreement


def test_a_cache_grows_within_the_memory():
    """Asked for more than there is, it gets the rest; the projected memory says so."""
    little, before = agreed(AccessHint(cache_bytes=before_bytes() + 8 * MIB))
    much, _ = agreed(AccessHint(cache_bytes=2**40))

    assert little.cache_bytes == before.cache_bytes + 8 * MIB
    assert little.projected_bytes == before.projected_bytes + 2 * 8 * MIB
    assert much.projected_bytes <= BUDGET.memory_bytes
    assert much.cache_bytes > little.cache_bytes


def before_bytes():
    """Return the bytes of the cache without a hint."""
    return choose_scheme(STORE, DEMAND, BUDGET).cache_bytes


def test_depth_is_of_patches_ahead():
    """Fewer patches are fetched ahead, or more; a local store fetches none."""
    few, before = agreed(AccessHint(depth=1))
    patch = 27 * 32**3 * 2

    assert few.ahead_bytes == patch < before.ahead_bytes
    assert "1 patches ahead" in few.agreement
    local = StoreLayout((256,) * 3, 2, (32,) * 3, access="range")
    assert agreed(AccessHint(depth=9), local)[0].ahead_bytes == 0


def test_a_mapped_file_joins_nothing():
    """A view has no requests; its scheme says that the hint has no effect."""
    scheme, before = agreed(AccessHint(tile=(8, 8, 8)), StoreLayout((64,) * 3, 2))

    assert "it is mapped" in scheme.agreement
    assert scheme.longest_run == before.longest_run


sizes = st.tuples(*[st.integers(1, 400)] * 3)


@given(sizes, st.none() | sizes, sizes, sizes)
def test_a_fitting_tile(tile, largest, unit, shape):
    """Whole units, no larger than asked or the volume, and at least one unit."""
    for axis, size in enumerate(AccessHint(tile=tile, largest=largest).fit(unit, shape)):
        assert size % unit[axis] == 0
        most = min(tile[axis], shape[axis])
        assert unit[axis] <= size < most + unit[axis]
        assert largest is None or size <= max(largest[axis], unit[axis])


def pipe_of(folder, function):
    """Return a chain over a chunked volume with a function behind the patches."""
    array = zarr.create_array(
        folder / "a.zarr", shape=(64, 64, 64), chunks=(16, 16, 16), dtype="i2"
    )
    array[:] = np.arange(64**3).reshape(64, 64, 64) % 999
    pipe = vp.from_cases([{"image": folder / "a.zarr"}]).open_volume()
    return pipe.lazy_patch((20, 20, 20), samples_per_volume=4).batch_patches(2).map(function)


def double(batch):
    """Double a batch, by tiles of its own."""
    return {**batch, "image": batch["image"] * 2}


def test_explain_shows_both_sides(tmp_path, monkeypatch):
    """A function states its hint; the batches stay the same."""
    pipe = pipe_of(tmp_path, double)
    before = [batch["image"] for batch in vp.DataLoader2(pipe, seed=1)]
    monkeypatch.setattr(double, "access_hint", AccessHint(tile=(16, 16, 40)), raising=False)

    with vp.DataLoader2(pipe, seed=1) as loader:
        text = loader.explain()
        after = [batch["image"] for batch in loader]

    assert (
        "asked: tiles of 16x16x40; the store's unit is 16x16x16; agreed: tiles of 16x16x48" in text
    )
    assert all((a == b).all() for a, b in zip(before, after, strict=True))


def test_hints_of_pipes_are_joined():
    """The smaller tile, the deeper look ahead, the larger cache."""
    one = AccessHint(tile=(8, 16, 8), depth=1, cache_bytes=5)
    other = AccessHint(tile=(16, 8, 8), largest=(9, 9, 9), depth=3)

    assert AccessHint.join([one, other]) == AccessHint((8, 8, 8), (9, 9, 9), 3, 5)
    assert AccessHint.join([one]) == one


def test_wrong_hints(tmp_path, monkeypatch):
    """Refused at construction, or by name as the loader is made."""
    for wrong in ({"tile": (0, 1, 1)}, {"depth": -1}, {"largest": (1, 2)}):
        with pytest.raises((ValueError, TypeError)):
            AccessHint(**wrong)
    monkeypatch.setattr(double, "access_hint", (16, 16, 16), raising=False)
    with pytest.raises(SampleError, match=r"access_hint is a voxpipe\.volumes\.AccessHint"):
        next(iter(vp.DataLoader2(pipe_of(tmp_path, double), seed=1)))
