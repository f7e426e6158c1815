"""What every spatial op promises, as tests.

Subclass in a test module, and say how the op is made::

    class TestShear(SpatialOpContract):
        def make(self) -> SpatialOp:
            return Shear((-0.3, 0.3))

        def make_nothing(self) -> SpatialOp:
            return Shear(0)
"""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import Grid, Region, Stream
from ..spatial import Policy, Rotate, Source, SpatialOp, SpatialPlan, resample
from ..spatial.plans.policy import Mode, Padding
from .spatial_oracle import inside, sample_plan

# float32 results over values of 0 .. 1000: 1e-5 of the range is the promise.
_RANGE = 1000.0
_TOLERANCE = 1e-5 * _RANGE
# More than any op needs for one item.
_MOST_DRAWS = 512
_PADDINGS: tuple[Padding, ...] = ("border", "reflection", "constant", "zeros")
_MODES: tuple[Mode, ...] = ("linear", "nearest")


class SpatialOpContract:
    """Tests of one op; ``make`` returns one that acts, ``make_nothing`` one of zero strength."""

    GRID = Grid(
        (9, 8, 7),
        np.array([[1.1, 0.2, 0.0, -40], [-0.2, 0.9, 0.3, 12], [0.1, -0.2, 2.5, 7], [0, 0, 0, 1]]),
    )
    """Oblique, with voxels of different lengths; crops and patches must fit in it."""

    def make(self) -> SpatialOp:
        """Return an op that acts on every item."""
        raise NotImplementedError

    def make_nothing(self) -> SpatialOp:
        """Return an op that leaves ``GRID`` as it is."""
        raise NotImplementedError

    def draw(self, op: SpatialOp, plan: SpatialPlan, item: int = 0) -> Any:
        """Return what the op draws for one item."""
        return op.draw(Stream(1, 0, (item,), "contract").generator(), plan)

    def apply(self, op: SpatialOp, plan: SpatialPlan, item: int = 0) -> SpatialPlan:
        """Return the plan after the op."""
        drawn = self.draw(op, plan, item)
        return plan if drawn is None else op.then(plan, drawn)

    def test_it_is_a_spatial_op(self) -> None:
        """It has the members of the protocol, compares by value and survives pickling."""
        op = self.make()

        assert isinstance(op, SpatialOp)
        assert op == self.make()
        assert hash(op) == hash(self.make())
        assert pickle.loads(pickle.dumps(op)) == op  # noqa: S301  our own bytes
        assert op != self.make_nothing()

    def test_zero_strength_is_the_identity_bit_for_bit(self) -> None:
        """A volume of 16-bit numbers comes back unchanged, on the same grid."""
        volume = np.random.default_rng(0).integers(-9999, 9999, (2, *self.GRID.shape), np.int16)

        plan = self.apply(self.make_nothing(), SpatialPlan.identity(self.GRID))

        assert plan.shape == self.GRID.shape
        assert np.array_equal(plan.affine, self.GRID.affine)
        assert np.array_equal(_resampled(volume, plan, Policy(), volume.dtype), volume)

    def test_the_affine_is_that_of_the_output(self) -> None:
        """Each output voxel lies in the world where the plan takes its value, moved by the op.

        So the grids before and after differ by the pull-back, and by nothing else.
        """
        before = self.apply(Rotate((5, -4, 3)), SpatialPlan.identity(self.GRID))

        after = self.apply(self.make(), before)

        step = np.linalg.solve(before.matrix, after.matrix)
        assert np.allclose(after.affine, before.affine @ step, atol=1e-9)
        assert np.allclose(after.affine, self.GRID.affine @ after.matrix, atol=1e-9)
        assert after.grid.shape == after.shape
        assert after.source == before.source

    def test_fused_is_one_after_another(self) -> None:
        """Two ops fused give what they give one after another, where no edge is in the way.

        On a volume that is linear in the index, interpolating twice is exact.
        """
        i, j, k = np.indices(self.GRID.shape)
        ramp = (3.0 * i - 2.0 * j + 5.0 * k)[None] + 100
        first = self.apply(Rotate((4, 3, -5)), SpatialPlan.identity(self.GRID))
        second = self.apply(self.make(), SpatialPlan.identity(first.grid))
        nan_outside = Policy("linear", "constant", fill=np.nan)

        fused = _resampled(ramp, self.apply(self.make(), first), Policy(), np.dtype(np.float64))
        halfway = sample_plan(ramp, first, nan_outside)
        halfway[:, ~inside(first)] = np.nan
        expected = sample_plan(halfway, second, nan_outside)
        sees_all = np.isfinite(expected[0]) & inside(second)

        assert sees_all.any()
        assert np.allclose(fused[0][sees_all], expected[0][sees_all], rtol=0, atol=_TOLERANCE)

    def test_the_result_is_the_oracle_s(self) -> None:
        """Every padding rule gives what float64 arithmetic gives, nearest and linear."""
        volume = np.random.default_rng(1).uniform(0, _RANGE, (2, *self.GRID.shape))
        plan = self.apply(Rotate((4, 3, -5)), SpatialPlan.identity(self.GRID))
        plan = self.apply(self.make(), plan)

        for padding in _PADDINGS:
            for mode in _MODES:
                policy = Policy(mode, padding, fill=-5)
                found = _resampled(volume, plan, policy, np.dtype(np.float32))
                expected = sample_plan(volume, plan, policy)
                assert np.allclose(found, expected, rtol=0, atol=_TOLERANCE), (mode, padding)

    def test_the_source_region_suffices(self) -> None:
        """Voxels outside the region that is asked for have no influence."""
        volume = np.random.default_rng(2).uniform(0, _RANGE, (1, *self.GRID.shape))

        for item in range(3):
            plan = self.apply(self.make(), SpatialPlan.identity(self.GRID), item)
            for padding in _PADDINGS:
                for mode in _MODES:
                    policy = Policy(mode, padding, fill=-5)
                    region = plan.source_region(policy)
                    poisoned = np.full_like(volume, np.nan)
                    kept = (slice(None), *region.slices)
                    poisoned[kept] = volume[kept]
                    found = _resampled(poisoned, plan, policy, np.dtype(np.float64))
                    clean = _resampled(volume, plan, policy, np.dtype(np.float64))
                    assert np.array_equal(found, clean), (item, mode, padding)

    def test_the_same_stream_draws_the_same(self) -> None:
        """What is drawn depends on the stream and the plan alone, and is plain data."""
        op, plan = self.make(), SpatialPlan.identity(self.GRID)

        drawn = self.draw(op, plan)

        assert drawn is not None
        assert self.draw(op, plan) == drawn
        assert json.loads(json.dumps(drawn)) == drawn
        assert op.then(plan, json.loads(json.dumps(drawn))) == op.then(plan, drawn)

    def test_the_number_of_draws_is_fixed(self) -> None:
        """How far the stream advances does not depend on what is drawn."""
        op, plan = self.make(), SpatialPlan.identity(self.GRID)
        following = []

        for item in range(8):
            used, fresh = (Stream(1, 0, (item,), "contract").generator() for _ in range(2))
            op.draw(used, plan)
            rest = used.random()
            following.append([fresh.random() == rest for _ in range(_MOST_DRAWS)].index(True))

        assert len(set(following)) == 1

    def test_a_plan_survives_json(self) -> None:
        """A plan with this op in it comes back equal from JSON and from pickle."""
        plan = self.apply(self.make(), SpatialPlan.identity(self.GRID))

        assert SpatialPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
        assert pickle.loads(pickle.dumps(plan)) == plan  # noqa: S301  our own bytes

    def test_lattice_means_whole_voxels(self) -> None:
        """A lattice op is a copy and keeps the stored type; another gives up that type."""
        op = self.make()

        plan = self.apply(op, SpatialPlan.identity(self.GRID))

        assert plan.keeps_dtype == op.lattice
        assert plan.is_copy or not op.lattice

    def test_it_describes_itself(self) -> None:
        """The description is one line that tells it from an op of zero strength."""
        text = self.make().describe()

        assert text
        assert "\n" not in text
        assert text != self.make_nothing().describe()


def _resampled(
    volume: NDArray[Any], plan: SpatialPlan, policy: Policy, dtype: np.dtype[Any]
) -> NDArray[Any]:
    out = np.empty((volume.shape[0], *plan.shape), dtype)
    source = Source(volume, (0, 0, 0), Region(plan.bounds.start, plan.bounds.stop))
    resample(source, plan.matrix, policy, out, plan.kernel_stages)
    return out
