"""Two displacements in one chain: one interpolation, by the kernel, as NumPy does it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_paths import paths_here

from voxpipe.core import IO_COUNTERS, Grid
from voxpipe.datapipes.iter import from_cases
from voxpipe.spatial import Policy, SourceVoxels, SpatialPlan, resample
from voxpipe.spatial.resampling import native_resampler as native

needs_kernel = pytest.mark.skipif(not native.available(), reason="the kernel is not built")
# Of values of 0 to 255: displacements agree to 1e-5 of the range, not to the bit (decision 0005).
TOLERANCE = 255e-5


def bent(plan: SpatialPlan, numbers: np.random.Generator) -> SpatialPlan:
    """Return the plan after a field of up to 3 voxels about a middle of its own, on any grid."""
    matrix = np.eye(4)
    turned = np.eye(3) + numbers.normal(size=(3, 3)) * 0.2 * numbers.integers(0, 2)
    matrix[:3, :3] = turned * numbers.uniform(0.1, 0.4)
    matrix[:3, 3] = numbers.uniform(-1, 1, 3)
    middle = numbers.integers(-4, 5, (3, 1, 1, 1))
    return plan.displace(numbers.uniform(-3, 3, (3, *numbers.integers(1, 6, 3))) + middle, matrix)


def drawn(seed: int) -> tuple[Any, SpatialPlan, np.random.Generator]:
    numbers = np.random.default_rng(seed)
    shape = tuple(map(int, numbers.integers(1, 18, 3)))
    dtype = numbers.choice(["i2", "u1", "f4"])
    volume = numbers.integers(0, 255, (2, *shape)).astype(dtype)
    plan = bent(SpatialPlan.identity(Grid(shape, np.eye(4))), numbers)
    matrix = np.eye(4)
    matrix[:3, :3] += numbers.normal(size=(3, 3)) * 0.2
    plan = plan.then(matrix, tuple(map(int, numbers.integers(1, 24, 3))), lattice=False)
    return volume, bent(plan, numbers), numbers


def resampled(volume: Any, plan: SpatialPlan, policy: Policy) -> Any:
    out = np.full((2, *plan.shape), -1, np.float32)
    resample(
        SourceVoxels(volume, (0, 0, 0), plan.bounds), plan.matrix, policy, out, plan.kernel_stages
    )
    return out


@needs_kernel
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**30))
def test_the_kernel_gives_what_numpy_gives(seed: int) -> None:
    """On every path, for turned grids and hard crops after both; but where half a voxel decides."""
    volume, plan, numbers = drawn(seed)
    if numbers.random() < 0.3:
        plan = plan.crop((1, 0, 1), (5, 9, 20), hard=True)
    for mode in ("linear", "nearest", "cubic"):
        padding = str(numbers.choice(["border", "reflection", "constant", "zeros"]))
        policy = Policy(mode, padding, fill=7)  # type: ignore[arg-type]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VOXPIPE_NATIVE", "0")
            expected = resampled(volume, plan, policy)
            found = []
            for path in paths_here():
                patch.setenv("VOXPIPE_NATIVE", path)
                found.append(resampled(volume, plan, policy))
        decides = mode == "nearest" or padding == "constant"
        off = np.abs(found[0] - expected) > TOLERANCE
        assert off.sum() <= (max(2, off.size / 500) if decides else 0), (mode, padding)
        for other in found[1:]:
            assert np.array_equal(found[0], other), (mode, padding)


@needs_kernel
def test_it_is_the_kernel_that_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elastic and grid distortion in one chain: one interpolation, and NumPy has no part in it."""
    volume = np.random.default_rng(0).integers(0, 255, (20, 18, 16)).astype(np.int16)
    chain = from_cases([{"image": volume}]).open_volume().elastic(2, spacing=8)
    patch = next(iter(chain.rotate(10).grid_distortion(0.2, cells=2)))["image"]
    assert len(patch.plan.kernel_stages.earlier) == 1
    assert "NumPy" not in patch.explain()
    before = IO_COUNTERS.snapshot()

    def refuse(*_: Any) -> None:
        raise AssertionError

    # By its name: the package has a function that is called like the module.
    monkeypatch.setattr(sys.modules["voxpipe.spatial.resampling.resample"], "interpolate", refuse)
    patch.realize()

    assert (IO_COUNTERS.snapshot() - before).interpolations == 1


def test_the_region_suffices() -> None:
    """Voxels outside what both may reach have no influence."""
    for seed in range(20):
        volume, plan, _ = drawn(seed)
        values = volume.astype(np.float32)
        policy = Policy("linear", "border")
        region = plan.crop((0, 0, 0), tuple(min(n, 4) for n in plan.shape))
        kept = (slice(None), *region.source_region(policy).slices)
        poisoned = np.full_like(values, np.nan)
        poisoned[kept] = values[kept]

        found = resampled(poisoned, region, policy)

        assert np.array_equal(found, resampled(values, region, policy))
