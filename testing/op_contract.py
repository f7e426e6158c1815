"""The contracts of spatial ops and value ops, as tests.

Subclass one in a test module, with methods that make the op::

    class TestShear(SpatialOpContract):
        def make(self) -> SpatialOp:
            return Shear((-0.3, 0.3))

        def make_nothing(self) -> SpatialOp:
            return Shear(0)
"""

from __future__ import annotations

import itertools
import json
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import Grid, Region, Stream
from ..datapipes.iter import from_cases
from ..intensity import ValueOp, ValueStep
from ..spatial import LazyPatch, Policy, Rotate, SourceVoxels, SpatialOp, SpatialPlan, resample
from ..spatial.plans.policy import Mode, Padding
from ..volumes import Volume
from .spatial_oracle import inside, sample_plan

# float32 results over values of 0 .. 1000 are exact to 1e-5 of the range.
_RANGE = 1000.0
_TOLERANCE = 1e-5 * _RANGE
# Epilogues of the resampler are exact to this part of the result's range.
_IN_PASSING = 1e-6
# More numbers than any op draws for one item.
_MOST_DRAWS = 512
_ITEMS = 3
_PADDINGS: tuple[Padding, ...] = ("border", "reflection", "constant", "zeros")
_MODES: tuple[Mode, ...] = ("linear", "nearest")
_POLICIES = [Policy(m, p, fill=-5) for m, p in itertools.product(_MODES, _PADDINGS)]


class OpContract:
    """Tests of one op; ``make`` returns one that acts, ``make_nothing`` one of zero strength."""

    kind: type
    """Base class of the ops."""

    def make(self) -> Any:
        """Return an op that acts on every item."""
        raise NotImplementedError(f"define make(self) in {type(self).__name__}: return the op")

    def make_nothing(self) -> Any:
        """Return an op that changes nothing, or None if its kind has none."""
        do = "return the op with a strength of zero, or None if its kind has none"
        raise NotImplementedError(f"define make_nothing(self) in {type(self).__name__}: {do}")

    def inputs(self) -> tuple[Any, ...]:
        """Return the further arguments of the op's ``draw``, after the random numbers."""
        return ()

    def test_it_is_an_op(self) -> None:
        """It has the members of its kind, compares by value and survives pickling."""
        op = self.make()

        assert isinstance(op, self.kind)
        assert op == self.make()
        assert hash(op) == hash(self.make())
        assert pickle.loads(pickle.dumps(op)) == op  # noqa: S301  our own bytes
        assert op != self.make_nothing()

    def test_the_same_stream_draws_the_same(self) -> None:
        """Drawn parameters depend on the stream and the plan alone, and are plain data."""
        stream = Stream(1, 0, (0,), "contract")
        params, again = (self.make().draw(stream.generator(), *self.inputs()) for _ in range(2))

        assert params is not None
        assert again == params
        assert json.loads(json.dumps(params)) == params

    def test_the_number_of_draws_is_fixed(self) -> None:
        """Each draw consumes equally many numbers of the stream."""
        op, following = self.make(), []

        for item in range(8):
            generator, fresh = (Stream(1, 0, (item,), "contract").generator() for _ in range(2))
            op.draw(generator, *self.inputs())
            rest = generator.random()
            following.append([fresh.random() == rest for _ in range(_MOST_DRAWS)].index(True))

        assert len(set(following)) == 1

    def test_it_describes_itself(self) -> None:
        """The description is one line, and differs from that of an op of zero strength."""
        text, nothing = self.make().describe(), self.make_nothing()

        assert text
        assert "\n" not in text
        assert nothing is None or nothing.describe() != text


class SpatialOpContract(OpContract):
    """Tests of one spatial op."""

    kind = SpatialOp

    GRID = Grid(
        (9, 8, 7),
        np.array([[1.1, 0.2, 0.0, -40], [-0.2, 0.9, 0.3, 12], [0.1, -0.2, 2.5, 7], [0, 0, 0, 1]]),
    )
    """Oblique, with voxels of different lengths; crops and patches must fit in it."""

    def inputs(self) -> tuple[Any, ...]:
        """Return the plan of the op."""
        return (SpatialPlan.identity(self.GRID),)

    def draw(self, op: SpatialOp, plan: SpatialPlan, item: int = 0) -> Any:
        """Return the op's parameters for one item."""
        return op.draw(Stream(1, 0, (item,), "contract").generator(), plan)

    def apply(self, op: SpatialOp, plan: SpatialPlan, item: int = 0) -> SpatialPlan:
        """Return the plan after the op."""
        params = self.draw(op, plan, item)
        return plan if params is None else op.then(plan, params)

    def test_zero_strength_is_the_identity_bit_for_bit(self) -> None:
        """A volume of 16-bit numbers is unchanged, on the same grid."""
        volume = np.random.default_rng(0).integers(-9999, 9999, (2, *self.GRID.shape), np.int16)

        plan = self.apply(self.make_nothing(), SpatialPlan.identity(self.GRID))

        assert plan.shape == self.GRID.shape
        assert np.array_equal(plan.affine, self.GRID.affine)
        assert np.array_equal(_resample(volume, plan, Policy(), volume.dtype), volume)

    def test_the_affine_is_that_of_the_output(self) -> None:
        """The affine places each output voxel at the source of its value, moved by the op.

        So the grids before and after differ only by the pull-back.
        """
        before = self.apply(Rotate((5, -4, 3)), SpatialPlan.identity(self.GRID))

        after = self.apply(self.make(), before)

        step = np.linalg.solve(before.matrix, after.matrix)
        assert np.allclose(after.affine, before.affine @ step, atol=1e-9)
        assert np.allclose(after.affine, self.GRID.affine @ after.matrix, atol=1e-9)
        assert after.grid.shape == after.shape
        assert after.source == before.source

    def test_fused_is_one_after_another(self) -> None:
        """Two fused ops equal the ops one after another, away from edges.

        On a volume that is linear in the index, interpolating twice is exact.
        """
        i, j, k = np.indices(self.GRID.shape)
        ramp = (3.0 * i - 2.0 * j + 5.0 * k)[None] + 100
        first = self.apply(Rotate((4, 3, -5)), SpatialPlan.identity(self.GRID))
        second = self.apply(self.make(), SpatialPlan.identity(first.grid))
        nan_outside = Policy("linear", "constant", fill=np.nan)

        direct = _resample(ramp, self.apply(self.make(), first), Policy(), np.dtype(np.float64))
        halfway = sample_plan(ramp, first, nan_outside)
        halfway[:, ~inside(first)] = np.nan
        reference = sample_plan(halfway, second, nan_outside)
        sees_all = np.isfinite(reference[0]) & inside(second)

        assert sees_all.any()
        assert np.allclose(direct[0][sees_all], reference[0][sees_all], rtol=0, atol=_TOLERANCE)

    def test_the_result_is_the_oracle_s(self) -> None:
        """Every padding rule equals float64 arithmetic, nearest and linear."""
        volume = np.random.default_rng(1).uniform(0, _RANGE, (2, *self.GRID.shape))
        plan = self.apply(Rotate((4, 3, -5)), SpatialPlan.identity(self.GRID))
        plan = self.apply(self.make(), plan)

        for policy in _POLICIES:
            actual = _resample(volume, plan, policy, np.dtype(np.float32))
            reference = sample_plan(volume, plan, policy)
            assert np.allclose(actual, reference, rtol=0, atol=_TOLERANCE), policy

    def test_the_source_region_suffices(self) -> None:
        """Voxels outside the source region have no influence."""
        volume = np.random.default_rng(2).uniform(0, _RANGE, (1, *self.GRID.shape))

        for item in range(3):
            plan = self.apply(self.make(), SpatialPlan.identity(self.GRID), item)
            for policy in _POLICIES:
                region = (slice(None), *plan.source_region(policy).slices)
                nan_volume = np.full_like(volume, np.nan)
                nan_volume[region] = volume[region]
                actual = _resample(nan_volume, plan, policy, np.dtype(np.float64))
                clean = _resample(volume, plan, policy, np.dtype(np.float64))
                assert np.array_equal(actual, clean), (item, policy)

    def test_what_is_drawn_survives_json(self) -> None:
        """Parameters from JSON give an equal plan."""
        op, plan = self.make(), SpatialPlan.identity(self.GRID)

        params = self.draw(op, plan)

        assert op.then(plan, json.loads(json.dumps(params))) == op.then(plan, params)

    def test_a_plan_survives_json(self) -> None:
        """A plan with this op in it comes back equal from JSON and from pickle."""
        plan = self.apply(self.make(), SpatialPlan.identity(self.GRID))

        assert SpatialPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
        assert pickle.loads(pickle.dumps(plan)) == plan  # noqa: S301  our own bytes

    def test_lattice_means_whole_voxels(self) -> None:
        """A lattice op is a copy and keeps the stored type; other ops do not keep it."""
        op = self.make()

        plan = self.apply(op, SpatialPlan.identity(self.GRID))

        assert plan.keeps_dtype == op.lattice
        assert plan.is_copy or not op.lattice


class ValueOpContract(OpContract):
    """Tests of one op that changes values."""

    kind = ValueOp

    SHAPE = (2, 15, 12, 11)
    """(C, I, J, K) of the volume."""
    AFFINE = np.array([[-1.0, 0.2, 0, 4], [0.2, 1.1, 0, 5], [0, 0, 2.5, 6], [0, 0, 0, 1]])
    """Oblique, with voxels of different lengths."""
    START, SIZE = (4, 3, 2), (5, 6, 7)
    """Patch that is compared with the whole volume."""

    def values(self) -> NDArray[Any]:
        """Return the voxels of the volume, of ``SHAPE``: small positive integers as float32."""
        random = np.random.default_rng(0)
        return random.integers(0, 5, self.SHAPE).astype(np.float32)

    def patch(self, op: ValueOp, item: int = 0) -> LazyPatch:
        """Return a lazy patch of the whole volume with the op pending."""
        volume = Volume(self.values(), affine=self.AFFINE, kind=op.kind)
        key = "label" if op.kind == "label" else "image"
        case = {key: volume}
        if op.mask_key is not None:
            inside = (self.values()[:1] > 1).astype(np.uint8)
            case[op.mask_key] = Volume(inside, affine=self.AFFINE, kind="label")
        sample = next(iter(from_cases([case]).open_volume()))
        patch: LazyPatch = sample[key]
        mask = sample[op.mask_key].volume if op.mask_key is not None else None
        pending = replace(patch.pending, identity=(item,))
        return patch.with_pending(pending).with_value(ValueStep(op, "contract", key=key, mask=mask))

    def test_it_has_a_name(self) -> None:
        """Messages use the name."""
        assert self.make().name

    def test_the_result_is_what_was_announced(self) -> None:
        """Shape and type are known before a voxel is read."""
        for item in range(_ITEMS):
            patch = self.patch(self.make(), item)
            voxels = patch.realize()

            assert voxels.shape == patch.shape
            assert voxels.dtype == patch.dtype
            assert np.isfinite(voxels).all()

    def test_it_is_repeatable(self) -> None:
        """Two realizations are equal, also of an unpickled patch."""
        patch = self.patch(self.make())
        again = pickle.loads(pickle.dumps(patch))  # noqa: S301  our own bytes

        assert np.array_equal(patch.realize(), patch.realize())
        assert np.array_equal(patch.realize(), again.realize())

    def test_it_acts(self) -> None:
        """The values or the shape of some item differ from the stored ones."""
        arrays = [self.patch(self.make(), item).realize() for item in range(_ITEMS)]

        assert any(not np.array_equal(array, self.values()) for array in arrays)

    def test_zero_strength_changes_nothing(self) -> None:
        """The result is equal to 1e-6 of the range."""
        op = self.make_nothing()
        if op is None:
            return

        voxels = self.patch(op).realize()

        assert _close(voxels, self.values())

    def test_a_channel_is_as_alone(self) -> None:
        """If the op is ``by_channel``, other channels have no influence on a channel."""
        patch = self.patch(self.make())
        if not patch.values[-1].op.by_channel:
            return
        ((step, params, facts),) = patch.acting_on(patch.plan)
        one = self.values()[:1]

        both = step.op.apply(np.concatenate([one * 9, one]), params, facts)

        assert np.array_equal(both[1:], step.op.apply(one.copy(), params, facts))

    def test_any_strides_will_do(self) -> None:
        """A slot of a batch may have gaps, which are not written."""
        patch = self.patch(self.make())
        reference = patch.realize()
        wide = np.full((*reference.shape[:3], 2 * reference.shape[3] + 1), 77, reference.dtype)
        slot = wide[..., -2::-2]

        patch.realize(slot)

        assert np.array_equal(slot, reference)
        assert (wide[..., ::2] == 77).all()

    def test_a_patch_of_the_whole_is_the_whole_of_a_patch(self) -> None:
        """The halo suffices, and the result does not depend on the start of a patch."""
        for item in range(_ITEMS):
            patch = self.patch(self.make(), item)
            whole = patch.realize()
            inside = tuple(slice(a, a + n) for a, n in zip(self.START, self.SIZE, strict=True))
            part = np.empty((whole.shape[0], *self.SIZE), whole.dtype)

            patch.realize(part, patch.plan.crop(self.START, self.SIZE))

            assert _close(part, whole[(slice(None), *inside)])

    def test_done_in_passing_is_done_afterwards(self) -> None:
        """As an epilogue of the resampler, if it has one, the op gives its own result."""
        for item in range(_ITEMS):
            patch = self.patch(self.make(), item)
            ((step, params, facts),) = patch.acting_on(patch.plan)
            epilogue = step.op.as_epilogue(params, facts)
            if epilogue is not None:
                values = self.values().astype(np.float32)
                reference = step.op.apply(values, params, facts)
                assert _close(patch.realize(), reference)

    def test_pointwise_means_each_value_on_its_own(self) -> None:
        """If the op is ``pointwise``, moved voxels get the same values."""
        op = self.make()
        if not op.pointwise:
            return
        patch = self.patch(op)
        ((_, params, facts),) = patch.acting_on(patch.plan)
        values = self.values().astype(np.float32)
        mirror = values[:, ::-1, :, ::-1].copy()

        reference = op.apply(values, params, facts)[:, ::-1, :, ::-1]

        assert np.array_equal(op.apply(mirror, params, facts), reference)


def _close(actual: NDArray[Any], reference: NDArray[Any]) -> bool:
    """Whether two arrays differ by at most 1e-6 of the range."""
    if actual.shape != reference.shape:
        return False
    wide = reference.astype(np.float64)
    most = _IN_PASSING * max(float(np.ptp(wide)), float(np.abs(wide).max()))
    return bool(np.allclose(actual, wide, rtol=0, atol=most))


def _resample(
    volume: NDArray[Any], plan: SpatialPlan, policy: Policy, dtype: np.dtype[Any]
) -> NDArray[Any]:
    out = np.empty((volume.shape[0], *plan.shape), dtype)
    source = SourceVoxels(volume, (0, 0, 0), Region(plan.bounds.start, plan.bounds.stop))
    resample(source, plan.matrix, policy, out, plan.kernel_stages)
    return out
