"""Choices among ops: drawn per item, still one interpolation, in any nesting."""

import json
import pickle
from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import voxpipe as vp
from voxpipe.core import IO_COUNTERS
from voxpipe.core.draws import Choice
from voxpipe.core.errors import SampleError
from voxpipe.intensity import Facts, LowResolution, Normalize, Params, ValueOp
from voxpipe.spatial import (
    Elastic,
    Flip,
    OneOf,
    RandomApply,
    RandomOrder,
    Rotate,
    SomeOf,
    Translate,
    Zoom,
)

CASES = 40


@dataclass(frozen=True)
class Add(ValueOp):
    """Add a number."""

    much: float
    commutes: ClassVar[bool] = True
    name: ClassVar[str] = "add"

    def apply(self, array: NDArray[Any], drawn: Params, facts: Facts) -> NDArray[Any]:
        """In place."""
        array += self.much
        return array

    def describe(self) -> str:
        """In words."""
        return f"add {self.much:g}"


@dataclass(frozen=True)
class Late(Add):
    """One that does not commute."""

    commutes: ClassVar[bool] = False


def opened(count: int = CASES) -> Any:
    """Cases of one small volume each, ramps along the first axis."""
    ramp = np.broadcast_to(np.arange(6, dtype=np.float32)[:, None, None], (6, 5, 4)).copy()
    return vp.from_cases([{"image": ramp} for _ in range(count)]).open_volume()


def chosen(pipe: Any, name: str) -> list[Any]:
    """Which members acted on each sample, None where none did."""
    torch.manual_seed(3)  # each pass over a chain draws its seed from torch
    drawn = [sample["image"].draws[name] for sample in pipe]
    return [None if one is None else tuple(one["chosen"]) for one in drawn]


def test_one_of_chooses_by_weight() -> None:
    """Weights 0, 1 and 3: never, a quarter, three quarters; from a mapping alike."""
    ops = [Flip(0), Flip(1), Flip(2)]

    found = Counter(chosen(opened(400).one_of(ops, weights=(0, 1, 3)), "one_of"))
    again = Counter(chosen(opened(400).one_of(dict(zip(ops, (0, 1, 3), strict=True))), "one_of"))

    assert found == again
    assert set(found) == {(1,), (2,)}
    assert 0.18 < found[(1,)] / 400 < 0.32


def test_some_of_takes_different_ones_in_order() -> None:
    """Between one and two of three."""
    found = set(chosen(opened(200).some_of([Flip(0), Flip(1), Flip(2)], (1, 2)), "some_of"))

    assert found == {(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)}


def test_random_order_takes_all() -> None:
    """In any order, and the order counts: a turn then a move is not a move then a turn."""
    pipe = opened(60).random_order([Rotate((0, 0, 40), "voxel"), Translate((2, 0, 0), "voxel")])
    found = chosen(pipe, "random_order")

    assert set(found) == {(0, 1), (1, 0)}
    values = {order: next(iter_where(pipe, order)) for order in set(found)}
    assert not np.allclose(values[(0, 1)], values[(1, 0)])


def iter_where(pipe: Any, order: tuple[int, ...]) -> Any:
    """The images of the samples that got the members in this order."""
    for sample in pipe:
        if tuple(sample["image"].draws["random_order"]["chosen"]) == order:
            yield sample["image"].realize()


def test_random_apply_takes_all_or_none() -> None:
    """With its probability."""
    found = Counter(chosen(opened(400).random_apply([Flip(0), Flip(1)], p=0.25), "random_apply"))

    assert set(found) == {None, (0,)}
    assert 0.18 < found[(0,)] / 400 < 0.32


def test_nested_choices_stay_one_interpolation() -> None:
    """Chains in choices in choices, and an op after them."""
    inner = SomeOf([Rotate((5, 10)), (Zoom(1.1), Elastic(0.5, spacing=3))], 2)
    pipe = opened(4).one_of([inner, RandomOrder([Rotate(3), Zoom(0.9)])]).rotate(2).flip(0)
    before = IO_COUNTERS.snapshot()

    list(pipe.batch_patches(1))

    assert (IO_COUNTERS.snapshot() - before).interpolations == 4


def test_a_choice_is_what_its_members_do() -> None:
    """The chosen op with what it drew gives the same as that op alone."""
    pipe = opened(10).one_of([Rotate((-20, 20)), Zoom((0.5, 2))])
    for sample in pipe:
        drawn = sample["image"].draws["one_of"]
        (member,), ((values,),) = drawn["chosen"], drawn["drawn"]
        fixed = (
            opened(1).rotate(values["degrees"]) if member == 0 else opened(1).zoom(values["factor"])
        )
        expected = next(iter(fixed))["image"].realize()

        assert np.array_equal(sample["image"].realize(), expected)


def test_value_ops_and_spatial_ops_choose_alike() -> None:
    """A member with both: where the flip is, the hundred is added, also in nested choices."""
    marked = OneOf([(Flip(0), Add(100)), RandomApply([Flip(1), Add(1000)], p=0.5)])
    pipe = opened().one_of([marked, Add(0)])
    seen = set()
    for sample in pipe:
        image = sample["image"].realize()
        is_flipped = image[0, 0, 0, 0] % 100 == 5
        seen.add((bool(is_flipped), round(float(image.max()) - 5)))

    assert seen == {(True, 100), (False, 1000), (False, 0)}


def test_draws_are_json_and_workers_agree() -> None:
    """Two workers make the batches that none makes."""
    ops = [Rotate((-20, 20)), (Elastic(0.5, spacing=3), Normalize(1, 2))]

    def batches(service: Any) -> list[Any]:
        pipe = opened(6).one_of(ops).lazy_patch(3).batch_patches(2)
        with vp.DataLoader2(pipe, None, service, seed=1) as loader:
            return list(loader)

    alone, shared = batches(None), batches(vp.MultiProcessingReadingService(2))

    for one, two in zip(alone, shared, strict=True):
        assert np.array_equal(one["image"], two["image"])
        assert json.loads(json.dumps(one["meta"])) == two["meta"]


def test_choices_travel() -> None:
    """Frozen values: equal, hashable, picklable."""
    choices = OneOf([Rotate(5), RandomOrder([Flip(0), Normalize(0, 1)])], weights=[1, 2])

    assert pickle.loads(pickle.dumps(choices)) == choices
    assert hash(choices) == hash(pickle.loads(pickle.dumps(choices)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OneOf([]), "at least one op"),
        (lambda: OneOf(Rotate(5)), "takes a list of ops"),
        (lambda: OneOf([Rotate]), "chooses among ops such as Rotate"),
        (lambda: OneOf([5]), "got 5"),
        (lambda: OneOf([Flip(0)], weights=[1, 2]), "1 numbers of at least 0, one per op"),
        (lambda: OneOf([Flip(0), Flip(1)], weights=[0, 0]), "not all 0"),
        (lambda: OneOf([Flip(0), Flip(1)], weights=[1, "a"]), "one per op, got"),
        (lambda: OneOf([Flip(0), Flip(1)], weights=2), "one per op, got 2"),
        (lambda: OneOf({Flip(0): 1}, weights=[1]), "weights twice"),
        (lambda: SomeOf([Flip(0)], 2), "from 0 to 1"),
        (lambda: SomeOf([Flip(0), Flip(1)], 2, [1, 0]), "fewer ops have a weight"),
        (lambda: SomeOf([Flip(0)], 0.5), "whole number or"),
        (lambda: RandomApply([Flip(0)], p=3), "probability"),
        (lambda: OneOf([(Late(1), Rotate(5))]), "rotate 5.0 degrees may come after add 1"),
        (lambda: SomeOf([Late(1), Rotate(5)], 2), "does not commute"),
        (lambda: RandomOrder([Rotate(5), Late(1)]), "all spatial ones"),
        (lambda: Choice("one_of", 2, (float("nan"), 1)), "numbers of at least 0"),
    ],
)
def test_nonsense_is_refused_at_construction(make: Any, message: str) -> None:
    """With what is allowed."""
    with pytest.raises(ValueError, match=message):
        make()


def test_late_ops_are_fine_at_the_end() -> None:
    """One of several members does not come after another."""
    assert OneOf([(Rotate(5), Late(1)), Rotate(3)]).spatial is not None


def test_explain_speaks_the_words_of_the_ops() -> None:
    """Of nested choices and weights too, and no dataclass is shown cut."""
    nested = [Rotate((-15, 15)), [Flip(0), OneOf([Zoom(2), Elastic(1, spacing=4)], p=0.5)]]

    text = opened(1).one_of(nested).some_of({Flip(0): 1, Flip(1): 3}, 1).explain()

    inner = f"one_of (zoom 2.0; {Elastic(1, spacing=4).describe()}) (p=0.5)"
    assert f"one_of([rotate (-15.0, 15.0) degrees, [flip axis 0, {inner}]])" in text
    assert "some_of({flip axis 0: 1, flip axis 1: 3}, 1)" in text


def test_a_choice_is_named_as_it_was_written() -> None:
    """In errors, by its chained form."""
    with pytest.raises(SampleError, match=r"^random_apply\(\) is to change 'nope'"):
        list(opened(1).random_apply([Add(1)], keys="nope"))


def test_explain_says_why_a_member_makes_others_wait() -> None:
    """The reason of the op inside the choice."""
    pipe = opened(1).rotate(5).one_of([LowResolution(2), Add(1)]).rotate(5)

    assert "low_resolution in one_of() at" in pipe.explain()
    assert "(a coarser grid is made of the voxels so far" in pipe.explain()
