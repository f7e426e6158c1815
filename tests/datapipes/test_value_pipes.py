"""Value pipes and flushes in chains: what is fused, what is not, and what comes out."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

import voxpipe as vp
from voxpipe.core import IO_COUNTERS, Grid
from voxpipe.core.errors import SampleError
from voxpipe.datapipes.values import ValuePipe
from voxpipe.intensity import Facts, Params, ValueOp


@dataclass(frozen=True)
class Box(ValueOp):
    """The mean of three neighbours along the first axis."""

    name: ClassVar[str] = "box"
    commutes: ClassVar[bool] = False

    def halo(self, drawn: Params, grid: Grid) -> tuple[int, int, int]:
        """One on either side of the first axis."""
        return (1, 0, 0)

    def apply(self, array: NDArray[Any], drawn: Params, facts: Facts) -> NDArray[Any]:
        """Average; the outermost voxels are left as they are."""
        array[:, 1:-1] = (array[:, :-2] + array[:, 1:-1] + array[:, 2:]) / 3
        return array

    def describe(self) -> str:
        """One word."""
        return "box"


@dataclass(frozen=True)
class Where(ValueOp):
    """Write where a voxel lies on the lattice: its first index, and the item's key."""

    name: ClassVar[str] = "where"

    def apply(self, array: NDArray[Any], drawn: Params, facts: Facts) -> NDArray[Any]:
        """Overwrite the values."""
        array[...] = (facts.corner[0] + np.arange(array.shape[1]))[:, None, None]
        array[..., 0] = facts.key[0] % 2**20
        return array

    def describe(self) -> str:
        """One word."""
        return "where"


@dataclass(frozen=True)
class Forgetful(ValueOp):
    """An op of a user with a mistake in ``apply``."""

    result: str

    name: ClassVar[str] = "forgetful"

    def apply(self, array: NDArray[Any], drawn: Params, facts: Facts) -> Any:
        """Return nothing, or too little."""
        return {"nothing": None, "a list": [1.0], "too little": array[:, 1:]}[self.result]

    def describe(self) -> str:
        """One word."""
        return "forgetful"


def value_pipe(op: type, parent: Any) -> Any:
    """A pipe of an op that is not registered."""

    class Made(ValuePipe, op=op): ...

    return Made(parent)


def opened(shape: tuple[int, int, int] = (12, 10, 8)) -> Any:
    """A chain of one case: noise as image, blobs as label."""
    random = np.random.default_rng(0)
    image = random.normal(0, 1, shape).astype(np.float32)
    return vp.from_cases([{"image": image, "label": (image > 0).astype(np.uint8)}]).open_volume()


def image_of(pipe: Any) -> NDArray[Any]:
    """The image of the first sample."""
    found: NDArray[Any] = next(iter(pipe))["image"].realize()
    return found


def test_a_halo_is_taken_from_around_the_patch() -> None:
    """A patch of a filtered volume is what filtering the whole volume gives there."""
    whole = image_of(value_pipe(Box, opened()))

    part = image_of(value_pipe(Box, opened().crop((3, 2, 1), (4, 5, 6))))

    assert np.allclose(part, whole[:, 3:7, 2:7, 1:7])


def test_a_halo_is_part_of_what_is_read() -> None:
    """One voxel more on either side."""
    patch = next(iter(value_pipe(Box, opened().crop((3, 2, 1), (4, 5, 6)))))["image"]

    assert patch.source_region.start == (2, 2, 1)
    assert patch.source_region.shape == (6, 5, 6)


def test_what_commutes_does_not_break_the_fusion() -> None:
    """Normalize between two turns: still one interpolation each."""
    before = IO_COUNTERS.snapshot()

    next(iter(opened().rotate(10).normalize(1, 2).rotate(5).batch_patches(1)))

    assert (IO_COUNTERS.snapshot() - before).interpolations == 2


def further(pipe: Any) -> Any:
    """What comes after: a turn in voxel space, which does not ask the affine."""
    return pipe.rotate((0, 0, 15), space="voxel").crop((2, 2, 2), (4, 4, 4))


def test_what_does_not_commute_is_done_where_it_stands() -> None:
    """A filter, then a turn, is a turn of what was filtered: one interpolation more."""
    filtered = image_of(value_pipe(Box, opened().rotate(10)))
    expected = image_of(further(vp.from_cases([{"image": filtered[0]}]).open_volume()))
    before = IO_COUNTERS.snapshot()

    found = image_of(further(value_pipe(Box, opened().rotate(10))))

    assert (IO_COUNTERS.snapshot() - before).interpolations == 2
    assert np.allclose(found, expected, atol=1e-5)


def test_labels_stay_fused_where_images_cannot() -> None:
    """The filter concerns the image only."""
    pipe = value_pipe(Box, opened().rotate(10)).rotate(5)
    sample = next(iter(pipe))
    before = IO_COUNTERS.snapshot()

    sample["label"].realize()

    assert (IO_COUNTERS.snapshot() - before).interpolations == 1
    assert np.allclose(sample["image"].affine, sample["label"].affine)


def test_a_flush_is_an_eager_step() -> None:
    """Two interpolations, equal to realizing in between."""
    between = image_of(opened().rotate(10))
    expected = image_of(further(vp.from_cases([{"image": between[0]}]).open_volume()))

    found = next(iter(further(opened().rotate(10).flush("image"))))

    assert np.allclose(found["image"].realize(), expected, atol=1e-5)
    assert len(found["label"].pending.steps) == 3
    assert sorted(found["image"].draws) == sorted(found["label"].draws)


def test_a_flush_of_whole_voxels_changes_nothing() -> None:
    """Copies commute with it, in the stored type."""
    plain = image_of(opened().flip(0).crop((1, 2, 3), (5, 5, 5)))
    flushed = image_of(opened().flip(0).flush().crop((1, 2, 3), (5, 5, 5)))

    assert np.array_equal(plain, flushed)


def test_a_flush_of_nothing_is_refused() -> None:
    """It names what there is."""
    wrong = r"flush\(\) names 'mask', but the sample has 'image', 'label'"
    with pytest.raises(SampleError, match=wrong):
        next(iter(opened().flush("mask")))


def overlapping(pipe: Any) -> Iterator[Any]:
    """Patches that overlap by half."""
    yield from pipe.lazy_patch((4, 4, 4), sampling="grid", overlap=(2, 2, 2))


def test_patches_agree_on_the_lattice() -> None:
    """Also where a turn came before: an op that belongs to voxels gives the same in both."""
    for before in (opened(), opened().rotate(30)):
        whole = image_of(value_pipe(Where, before))
        for patch in overlapping(value_pipe(Where, before)):
            start = patch["image"].draws["lazy_patch"]["start"]
            inside = tuple(slice(a, a + 4) for a in start)
            found = patch["image"].realize()

            assert np.array_equal(found[..., 1:], whole[(slice(None), *inside)][..., 1:])


def test_keys_belong_to_the_case_before_patches_are_cut_and_to_the_patch_after() -> None:
    """So noise before cutting is one field, and after it is independent."""
    cut = list(overlapping(value_pipe(Where, opened())))
    before = {float(patch["image"].realize()[0, 0, 0, 0]) for patch in cut}
    after = {
        float(patch["image"].realize()[0, 0, 0, 0])
        for patch in value_pipe(Where, opened().lazy_patch(4, sampling="grid"))
    }

    assert len(before) == 1
    assert len(after) == len(list(opened().lazy_patch(4, sampling="grid")))


@pytest.mark.parametrize(
    ("result", "answer"),
    [
        ("nothing", "NoneType of shape ()"),
        ("a list", "list of shape (1,)"),
        ("too little", "ndarray of shape (1, 11, 10, 8)"),
    ],
)
def test_an_op_that_returns_no_voxels_is_named(result, answer):
    """With its answer and its line: a forgotten return is the usual mistake."""

    class ForgetfulPipe(ValuePipe, op=Forgetful): ...

    pipe = ForgetfulPipe(opened(), result).batch_patches(1)

    with pytest.raises(SampleError) as refusal:
        next(iter(vp.DataLoader2(pipe)))

    assert f"Forgetful.apply() returned {answer}" in str(refusal.value)
    assert "Return an array of shape (C, 12, 10, 8)." in str(refusal.value)
    assert "test_value_pipes.py" in str(refusal.value)
