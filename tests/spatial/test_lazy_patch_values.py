"""Lazy patches: what they say before reading, what they read, what they give."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from voxpipe.core import IO_COUNTERS, Grid, Region
from voxpipe.core.errors import PatchSizeError
from voxpipe.intensity import Normalize, ValueStep
from voxpipe.spatial import (
    INTENSITY,
    LABEL,
    Crop,
    FixedPatch,
    Flip,
    LazyPatch,
    Policy,
    Rotate,
    Step,
    TransformChain,
    Translate,
)

GRID = Grid((10, 9, 8), np.diag([1, 1, 2.0, 1]))


@dataclass
class FakeVolume:
    """A volume in memory that notes what is read of it."""

    stored: np.ndarray
    kind: str = "intensity"
    name: str = "ct.nii"
    slope: float = 1.0
    intercept: float = 0.0
    reads: list[Region] = field(default_factory=list)

    grid: ClassVar[Grid] = GRID

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        scaled = (self.slope, self.intercept) != (1, 0)
        return np.dtype(np.float32) if scaled else self.stored.dtype.newbyteorder("=")

    def read(self, region: Region) -> SimpleNamespace:
        self.reads.append(region)
        array = self.stored[(slice(None), *region.slices)]
        return SimpleNamespace(array=array, slope=self.slope, intercept=self.intercept)


@pytest.fixture
def ct() -> FakeVolume:
    return FakeVolume(np.arange(2 * 720, dtype=">i2").reshape(2, 10, 9, 8))


@pytest.fixture
def seg() -> FakeVolume:
    stored = np.random.default_rng(0).integers(0, 4, (1, 10, 9, 8)).astype(np.uint8)
    return FakeVolume(stored, kind="label", name="seg.nii")


def patch(volume: FakeVolume, *ops: Any, policy: Policy = INTENSITY, **more: Any) -> LazyPatch:
    pending = TransformChain({"image": volume}, identity=(0,))
    for number, op in enumerate(ops):
        pending = pending.then(Step(op, f"step {number}"))
    return LazyPatch(volume, pending, policy, **more)


CUT = FixedPatch((2, 3, 1), (4, 4, 4))
TURN = Rotate((0, 0, 20))


def test_geometry_is_known_without_reading(ct: FakeVolume) -> None:
    """Shape, affine, spacing, type, region and provenance read no voxel."""
    lazy = patch(ct, CUT)

    assert lazy.shape == (2, 4, 4, 4)
    assert lazy.affine[:3, 3].tolist() == [2, 3, 2]
    assert lazy.grid == lazy.plan.grid
    assert lazy.spacing == (1, 1, 2)
    assert lazy.kind == "intensity"
    assert lazy.source_region == Region((2, 3, 1), (6, 7, 5))
    assert lazy.provenance() == {
        "file": "ct.nii",
        "stored_shape": list(ct.shape),
        "region": [[2, 6], [3, 7], [1, 5]],
        "matrix": [[1, 0, 0, 2], [0, 1, 0, 3], [0, 0, 1, 1], [0, 0, 0, 1]],
        "affine": lazy.affine.tolist(),
        "plan": lazy.plan.to_json(),
    }
    assert repr(lazy) == "LazyPatch(ct.nii: patch 4x4x4 at 2, 3, 1)"
    assert ct.reads == []


def test_a_patch_is_one_read_and_one_copy(ct: FakeVolume) -> None:
    """Exactly the source region is read, once, and lattice plans give the stored numbers."""
    before = IO_COUNTERS.snapshot()

    found = patch(ct, CUT, Flip(0)).realize()

    done = IO_COUNTERS - before
    assert ct.reads == [Region((2, 3, 1), (6, 7, 5))]
    assert (done.copies, done.interpolations) == (1, 0)
    assert found.dtype == np.int16
    assert np.array_equal(found, ct.stored[:, 2:6, 3:7, 1:5][:, ::-1])


def test_a_turned_patch_is_one_read_and_one_interpolation(ct: FakeVolume) -> None:
    """However many ops there are."""
    before = IO_COUNTERS.snapshot()

    found = patch(ct, CUT, TURN, Translate(0.3), Flip(1), Rotate(3)).realize()

    done = IO_COUNTERS - before
    assert len(ct.reads) == 1
    assert (done.copies, done.interpolations) == (0, 1)
    assert found.dtype == np.float32


def test_a_patch_outside_reads_nothing(seg: FakeVolume) -> None:
    """All fill needs no voxel."""
    found = patch(seg, FixedPatch((50, 0, 0), (2, 2, 2)), policy=LABEL).realize()

    assert seg.reads == []
    assert found.dtype == np.uint8
    assert not found.any()


@pytest.mark.parametrize(
    ("ops", "policy", "values", "expected"),
    [
        ((CUT,), INTENSITY, (), "int16"),
        ((CUT, TURN), INTENSITY, (), "float32"),
        ((CUT, Rotate(5, p=0)), INTENSITY, (), "float32"),
        ((CUT,), INTENSITY, (ValueStep(Normalize(0, 1), "n"),), "float32"),
        ((CUT, TURN), Policy(dtype="float16"), (), "float16"),
        ((CUT, TURN), Policy(dtype="int16"), (ValueStep(Normalize(0, 1), "n"),), "int16"),
    ],
    ids=["lattice", "turned", "turn that does not act", "value op", "asked", "asked, value op"],
)
def test_the_type_is_known_before_and_kept(
    ct: FakeVolume, ops: Any, policy: Policy, values: Any, expected: str
) -> None:
    """What ``dtype`` says is what ``realize`` gives."""
    lazy = patch(ct, *ops, policy=policy, values=values)

    assert lazy.dtype == np.dtype(expected)
    assert lazy.realize().dtype == np.dtype(expected)


def test_the_type_of_labels_and_of_scaled_volumes(ct: FakeVolume, seg: FakeVolume) -> None:
    """Labels keep their type under any op; scaled numbers are the floats that the volume says."""
    ct.slope, ct.intercept = 2.0, -100.0
    flags = FakeVolume(np.ones((1, 10, 9, 8), bool), kind="label")

    assert patch(seg, CUT, TURN, policy=LABEL).dtype == np.uint8
    assert patch(seg, CUT, TURN, policy=LABEL).realize().dtype == np.uint8
    assert patch(flags, CUT, TURN, policy=LABEL).realize().dtype == np.uint8
    scaled = patch(ct, CUT).realize()
    assert scaled.dtype == np.float32
    assert np.array_equal(scaled, ct.stored[:, 2:6, 3:7, 1:5] * 2.0 - 100)


def test_it_writes_into_the_slot_of_a_batch(ct: FakeVolume) -> None:
    """Any strides and any type; the slot is what is returned, and the rest stays untouched."""
    batch = np.full((2, 4, 4, 4, 2), -1, np.float64)
    slot = batch[..., 1]

    found = patch(ct, CUT).realize(slot)

    assert found is slot
    assert np.array_equal(slot, ct.stored[:, 2:6, 3:7, 1:5])
    assert np.all(batch[..., 0] == -1)


def test_a_slot_of_another_shape_is_refused(ct: FakeVolume) -> None:
    """The message has both shapes and the file."""
    with pytest.raises(PatchSizeError, match=r"ct.nii has shape \(2, 4, 4, 4\), its slot \(4,\)"):
        patch(ct, CUT).realize(np.empty(4))


def test_value_ops_come_after_the_one_interpolation(ct: FakeVolume) -> None:
    """Normalized patches are the normalized values of the plain ones, in order."""
    plain = patch(ct, CUT, TURN).realize()

    lazy = patch(
        ct, CUT, TURN, values=(ValueStep(Normalize(100, 2), "a"), ValueStep(Normalize(1, 4), "b"))
    )
    found = lazy.realize()
    double = lazy.realize(np.empty(lazy.shape, np.float64))

    assert np.allclose(found, ((plain - 100) / 2 - 1) / 4)
    assert np.array_equal(double, found)


def test_statistics_are_asked_of_the_volume_once(ct: FakeVolume) -> None:
    """The function that is passed in gets the volume; a fixed mean and deviation need none."""
    asked = []

    def statistics(volume: Any) -> SimpleNamespace:
        asked.append(volume)
        return SimpleNamespace(mean=10.0, std=2.0)

    plain = patch(ct, CUT).realize()
    found = patch(ct, CUT, values=(ValueStep(Normalize(), "n"),), statistics=statistics).realize()
    patch(ct, CUT, values=(ValueStep(Normalize(0, 1), "n"),), statistics=statistics).realize()

    assert asked == [ct]
    assert np.allclose(found, (plain - 10.0) / 2)


def test_it_is_an_array_and_a_tensor(ct: FakeVolume) -> None:
    """NumPy and torch get voxels of their own memory, never stale ones."""
    import torch

    lazy = patch(ct, CUT)

    assert np.asarray(lazy).dtype == np.int16
    assert np.asarray(lazy, dtype=np.float32).dtype == np.float32
    tensor = lazy.tensor()
    assert tensor.dtype == torch.int16
    assert np.array_equal(tensor.numpy(), lazy.realize())
    with pytest.raises(ValueError, match="no voxels yet"):
        lazy.__array__(copy=False)


def test_tensors_keep_16_unsigned_bits() -> None:
    """Torch has uint16, so a label of 65535 stays that."""
    volume = FakeVolume(np.full((1, 10, 9, 8), 65535, np.uint16), kind="label")

    tensor = patch(volume, CUT, policy=LABEL).tensor()

    assert str(tensor.dtype) == "torch.uint16"
    assert int(tensor[0, 0, 0, 0]) == 65535


def test_patches_of_one_sample_share_their_plan(ct: FakeVolume, seg: FakeVolume) -> None:
    """Also after pickling, so that headers and draws are worked out once."""
    pending = TransformChain({"image": ct, "label": seg}).then(Step(CUT, "cut"))
    sample = {
        "image": LazyPatch(ct, pending, INTENSITY),
        "label": LazyPatch(seg, pending, LABEL),
    }

    there = pickle.loads(pickle.dumps(sample))

    assert there["image"].pending is there["label"].pending
    assert there["image"].plan is there["label"].plan
    assert there["image"].volume is there["image"].pending.references["image"]
    assert np.array_equal(there["label"].realize(), sample["label"].realize())


def test_image_and_label_move_alike(seg: FakeVolume) -> None:
    """A label volume stored as an image too stays aligned with itself under any chain."""
    twin = FakeVolume((seg.stored > 1).astype(np.float32))
    label = FakeVolume((seg.stored > 1).astype(np.uint8), kind="label")
    pending = TransformChain({"image": twin, "label": label}).then(Step(CUT, "cut"))
    pending = pending.then(Step(Rotate((5, 10, 20)), "turn"))

    image = LazyPatch(twin, pending, Policy("nearest", "constant")).realize()
    moved = LazyPatch(label, pending, LABEL).realize()

    assert np.array_equal(image, moved)


def test_a_hard_crop_reads_no_more_than_its_box(ct: FakeVolume) -> None:
    """What is gone is not read either."""
    lazy = patch(ct, Crop((2, 2, 2), (4, 4, 4), hard=True), TURN)

    lazy.realize()

    assert Region((2, 2, 2), (6, 6, 6)).contains(ct.reads[0])
