"""What every value op promises, as tests.

Subclass in a test module, and say how the op is made::

    class TestGamma(ValueOpContract):
        def make(self) -> ValueOp:
            return Gamma((0.7, 1.5))

        def make_nothing(self) -> ValueOp | None:
            return Gamma(1)
"""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import Stream
from ..datapipes.iter import from_cases
from ..intensity import ValueOp, ValueStep
from ..spatial import LazyPatch
from ..volumes import Volume

# Of the range of the result: the promise of what the resampler does in passing.
_TOLERANCE = 1e-6
_ITEMS = 3


class ValueOpContract:
    """Tests of one op; ``make`` returns one that acts, ``make_nothing`` one of zero strength."""

    SHAPE = (2, 15, 12, 11)
    """(C, I, J, K) of the volume."""
    AFFINE = np.array([[-1.0, 0.2, 0, 4], [0.2, 1.1, 0, 5], [0, 0, 2.5, 6], [0, 0, 0, 1]])
    """Oblique, with voxels of different lengths."""
    START, SIZE = (4, 3, 2), (5, 6, 7)
    """Of the patch that is compared with the whole."""

    def make(self) -> ValueOp:
        """Return an op that acts on every item."""
        raise NotImplementedError

    def make_nothing(self) -> ValueOp | None:
        """Return an op that leaves values as they are, or None if there is none of that kind."""
        raise NotImplementedError

    def values(self) -> NDArray[Any]:
        """Return the voxels of the volume, of ``SHAPE``: small positive integers as float32."""
        random = np.random.default_rng(0)
        return random.integers(0, 5, self.SHAPE).astype(np.float32)

    def patch(self, op: ValueOp, item: int = 0) -> LazyPatch:
        """Return the whole volume, not read yet, with the op still to be done."""
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

    def draw(self, op: ValueOp, item: int = 0) -> Any:
        """Return what the op draws for one item."""
        return op.draw(Stream(1, 0, (item,), "contract").generator())

    def test_it_is_a_value_op(self) -> None:
        """It compares by value, survives pickling, and is found under a name."""
        op = self.make()

        assert isinstance(op, ValueOp)
        assert op.name
        assert op == self.make()
        assert hash(op) == hash(self.make())
        assert pickle.loads(pickle.dumps(op)) == op  # noqa: S301  our own bytes
        assert op != self.make_nothing()

    def test_the_same_stream_draws_the_same(self) -> None:
        """What is drawn depends on the stream alone, and is plain data."""
        op = self.make()

        drawn = self.draw(op)

        assert drawn is not None
        assert self.draw(op) == drawn
        assert json.loads(json.dumps(drawn)) == drawn

    def test_the_number_of_draws_is_fixed(self) -> None:
        """How far the stream advances does not depend on what is drawn."""
        op, following = self.make(), []

        for item in range(8):
            used, fresh = (Stream(1, 0, (item,), "contract").generator() for _ in range(2))
            op.draw(used)
            rest = used.random()
            following.append([fresh.random() == rest for _ in range(512)].index(True))

        assert len(set(following)) == 1

    def test_the_result_is_what_was_announced(self) -> None:
        """Shape and type are known before a voxel is read."""
        for item in range(_ITEMS):
            patch = self.patch(self.make(), item)
            found = patch.realize()

            assert found.shape == patch.shape
            assert found.dtype == patch.dtype
            assert np.isfinite(found).all()

    def test_it_is_repeatable(self) -> None:
        """Twice the same, also in another process."""
        patch = self.patch(self.make())
        again = pickle.loads(pickle.dumps(patch))  # noqa: S301  our own bytes

        assert np.array_equal(patch.realize(), patch.realize())
        assert np.array_equal(patch.realize(), again.realize())

    def test_it_acts(self) -> None:
        """Some value differs from what was stored, or the shape does."""
        found = [self.patch(self.make(), item).realize() for item in range(_ITEMS)]

        assert any(not np.array_equal(one, self.values()) for one in found)

    def test_zero_strength_changes_nothing(self) -> None:
        """To 1e-6 of the range."""
        op = self.make_nothing()
        if op is None:
            return

        found = self.patch(op).realize()

        assert _close(found, self.values())

    def test_a_channel_is_as_alone(self) -> None:
        """If the op says so: with another beside it, whatever that holds."""
        patch = self.patch(self.make())
        if not patch.values[-1].op.by_channel:
            return
        ((step, drawn, facts),) = patch.acting_on(patch.plan)
        one = self.values()[:1]

        both = step.op.apply(np.concatenate([one * 9, one]), drawn, facts)

        assert np.array_equal(both[1:], step.op.apply(one.copy(), drawn, facts))

    def test_any_strides_will_do(self) -> None:
        """A slot of a batch need not be contiguous, and what lies between is left alone."""
        patch = self.patch(self.make())
        expected = patch.realize()
        wide = np.full((*expected.shape[:3], 2 * expected.shape[3] + 1), 77, expected.dtype)
        slot = wide[..., -2::-2]

        patch.realize(slot)

        assert np.array_equal(slot, expected)
        assert (wide[..., ::2] == 77).all()

    def test_a_patch_of_the_whole_is_the_whole_of_a_patch(self) -> None:
        """What lies in the halo suffices, and nothing depends on where a patch begins."""
        for item in range(_ITEMS):
            patch = self.patch(self.make(), item)
            whole = patch.realize()
            inside = tuple(slice(a, a + n) for a, n in zip(self.START, self.SIZE, strict=True))
            part = np.empty((whole.shape[0], *self.SIZE), whole.dtype)

            patch.realize(part, patch.plan.crop(self.START, self.SIZE))

            assert _close(part, whole[(slice(None), *inside)])

    def test_done_in_passing_is_done_afterwards(self) -> None:
        """As an epilogue of the resampler, if it is one, the op gives what it gives by itself."""
        for item in range(_ITEMS):
            patch = self.patch(self.make(), item)
            ((step, drawn, facts),) = patch.acting_on(patch.plan)
            epilogue = step.op.as_epilogue(drawn, facts)
            if epilogue is not None:
                passed = self.values().astype(np.float32)
                expected = step.op.apply(passed, drawn, facts)
                assert _close(patch.realize(), expected)

    def test_pointwise_means_each_value_on_its_own(self) -> None:
        """Voxels that are put elsewhere get the same values."""
        op = self.make()
        if not op.pointwise:
            return
        patch = self.patch(op)
        ((_, drawn, facts),) = patch.acting_on(patch.plan)
        values = self.values().astype(np.float32)
        turned = values[:, ::-1, :, ::-1].copy()

        expected = op.apply(values, drawn, facts)[:, ::-1, :, ::-1]

        assert np.array_equal(op.apply(turned, drawn, facts), expected)

    def test_it_describes_itself(self) -> None:
        """The description is one line that tells it from an op of zero strength."""
        text = self.make().describe()
        nothing = self.make_nothing()

        assert text
        assert "\n" not in text
        assert nothing is None or nothing.describe() != text


def _close(found: NDArray[Any], expected: NDArray[Any]) -> bool:
    """Whether two arrays differ by at most 1e-6 of the range."""
    if found.shape != expected.shape:
        return False
    wide = expected.astype(np.float64)
    most = _TOLERANCE * max(float(np.ptp(wide)), float(np.abs(wide).max()))
    return bool(np.allclose(found, wide, rtol=0, atol=most))
