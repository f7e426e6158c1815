"""Members of a choice that act on some volumes only: one draw for all, each its own op."""

import json
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import voxpipe as vp
from voxpipe.core.errors import SampleError, StateMismatch
from voxpipe.intensity import Brightness, Clamp, Gamma, LowResolution, Noise
from voxpipe.intensity.value_op import Facts, Params, ValueOp
from voxpipe.spatial import Flip, On, OneOf, RandomApply, RandomOrder, Rotate, SomeOf

CASES = 24
CT, T1, SEG = 10.0, 20.0, 3


@dataclass(frozen=True)
class Mark(ValueOp):
    """Give the first voxel of a label another one."""

    name: ClassVar[str] = "mark"
    keeps_dtype: ClassVar[bool] = True

    def apply(self, array: NDArray[Any], drawn: Params, facts: Facts) -> NDArray[Any]:
        """In place."""
        array[0, 0, 0, 0] = 1
        return array

    def describe(self) -> str:
        """In words."""
        return "mark"


def opened(count: int = CASES) -> Any:
    """Cases of three constant volumes."""
    case = {
        "ct": np.full((6, 5, 4), CT, np.float32),
        "t1": np.full((6, 5, 4), T1, np.float32),
        "seg": np.full((6, 5, 4), SEG, np.uint8),
    }
    return vp.from_cases([case] * count).open_volume(labels="seg")


def samples(pipe: Any) -> list[Any]:
    """All samples of one pass, whose seed is the same each time."""
    torch.manual_seed(3)
    return list(pipe)


def values(sample: Any) -> tuple[float, float, float]:
    """The first voxel of ct, t1 and seg."""
    ct, t1, seg = (float(np.asarray(sample[key])[0, 0, 0, 0]) for key in ("ct", "t1", "seg"))
    return ct, t1, seg


def test_a_member_acts_on_the_volumes_that_it_names() -> None:
    """Whatever was chosen, the other volume has the values that it had."""
    pipe = opened().one_of([On("ct", Brightness(add=1)), On("t1", Brightness(add=2))])

    found = {values(sample) for sample in samples(pipe)}

    assert found == {(CT + 1, T1, SEG), (CT, T1 + 2, SEG)}


def test_all_volumes_see_one_draw() -> None:
    """Each has the record of the same choice, that of what is done elsewhere too."""
    pipe = opened().one_of([On("ct", Brightness(add=(0, 1))), On("t1", Brightness(add=(5, 6)))])

    for sample in samples(pipe):
        drawn = sample["ct"].draws["one_of values"]
        assert drawn == sample["t1"].draws["one_of values"]
        (member,), (((amount),),) = drawn["chosen"], drawn["drawn"]
        ct, t1, _ = values(sample)
        assert (ct - CT, t1 - T1)[member] == pytest.approx(amount["add"], abs=1e-5)
        assert (ct - CT, t1 - T1)[1 - member] == 0


def test_the_other_members_act_where_the_pipe_says() -> None:
    """By default on all that are no labels, else on what keys= names; On() on its own keys."""
    ops = [Brightness(add=1), On("t1", Brightness(add=5))]

    default = {values(sample) for sample in samples(opened().some_of(ops, 2))}
    of_ct = {values(sample) for sample in samples(opened().some_of(ops, 2, keys="ct"))}

    assert default == {(CT + 1, T1 + 6, SEG)}
    assert of_ct == {(CT + 1, T1 + 5, SEG)}


def test_a_volume_on_which_nothing_acts_is_left_alone() -> None:
    """Its type is that of its voxels, and so it stays in the plan as it was."""
    pipe = opened().one_of([On("ct", Noise(1)), On("ct", Gamma(2))])

    (sample,) = samples(pipe)[:1]

    assert sample["t1"].values == ()
    assert sample["seg"].dtype == np.uint8


def test_labels_keep_their_type_beside_ops_on_intensities() -> None:
    """What is done elsewhere has no type, and float32 would lose the last digit of this one."""
    much = 2**24 + 1
    case = {"ct": np.zeros((3, 3, 3), np.float32), "seg": np.full((3, 3, 3), much, np.int32)}
    ops = [On("ct", Noise(1)), On("seg", Mark())]
    pipe = vp.from_cases([case]).open_volume(labels="seg").random_apply(ops, p=1)

    (sample,) = samples(pipe)

    seg = np.asarray(sample["seg"])
    assert (seg.dtype, seg.max(), seg.min()) == (np.int32, much, 1)


@pytest.mark.parametrize(
    "ops",
    [
        [OneOf([On("ct", Brightness(add=1)), On("t1", Brightness(add=2))]), Flip(0)],
        [
            On("ct", OneOf([Brightness(add=1), Brightness(add=2)])),
            On("t1", SomeOf([Clamp(0, 1)], 1)),
        ],
        [(Rotate(5), On("ct", Brightness(add=1))), RandomOrder([Flip(1), On("t1", Gamma(2))])],
        [RandomApply([On(["ct", "t1"], Noise(1)), Brightness(add=1)], p=0.5), Flip(2)],
    ],
    ids=["nested", "choice in On", "with spatial ops", "several keys"],
)
def test_choices_by_key_nest_and_replay(ops: list[Any]) -> None:
    """In any nesting a record, as JSON, gives the same voxels again."""
    for sample in samples(opened(6).one_of(ops)):
        draws = json.loads(json.dumps({**sample["ct"].draws, **sample["t1"].draws}))
        again = next(iter(opened(1).one_of(ops).replay(draws)))

        assert values(again) == values(sample)


def test_only_the_volume_that_waits_is_sampled_anew() -> None:
    """A member that does not commute ends the plan of the volumes that it names, no other's."""
    pipe = opened().rotate(5).one_of([On("ct", LowResolution(2)), On("t1", Gamma(2))]).rotate(5)

    text = pipe.explain()

    assert "not fused: ct is sampled anew after low_resolution in one_of()" in text
    assert "not fused: t1" not in text


def test_noise_differs_between_volumes_of_one_draw() -> None:
    """As with a pipe of its own."""
    zeros = np.zeros((6, 5, 4), np.float32)
    pipe = (
        vp.from_cases([{"a": zeros, "b": zeros}]).open_volume().one_of([On(["a", "b"], Noise(1))])
    )

    (sample,) = samples(pipe)

    assert not np.array_equal(np.asarray(sample["a"]), np.asarray(sample["b"]))


def test_explain_says_what_acts_where() -> None:
    text = opened().one_of([On("ct", Noise(0.1)), On(["ct", "t1"], Clamp(0, 1))]).explain()

    assert "one_of([noise std 0.1 on ct, clamp to 0 .. 1 on ct and t1])" in text


def test_an_op_that_is_told_keys_says_what_to_write() -> None:
    """Neither the class nor the pipe leaves a reader with the words of a dataclass."""
    with pytest.raises(TypeError, match=r"write On\('ct', Noise\(\.\.\.\)\) in a choice"):
        Noise(0.1, keys="ct")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: On("ct", Rotate(5)), "all volumes of a sample do alike"),
        (lambda: On("ct", OneOf([Rotate(5)])), "all volumes of a sample do alike"),
        (lambda: On("ct", Noise), "one value op"),
        (lambda: On("ct", [Noise(1), Gamma(2)]), "one value op"),
        (lambda: On(3, Noise(1)), "the key of a volume, or several"),
        (lambda: On([], Noise(1)), "at least one key"),
        (lambda: On("ct", OneOf([On("t1", Noise(1))])), "name keys once"),
        (lambda: opened().one_of([On("ct", Noise(1))], keys="t1"), "Leave keys= out"),
    ],
    ids=["spatial", "spatial choice", "class", "list", "number", "none", "twice", "keys="],
)
def test_what_cannot_be_meant_is_refused_at_once(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_key_that_no_sample_has_is_named() -> None:
    """By the pipe that was written, with what there is."""
    named = r"one_of\(\) is to change 'nope'(?s:.*)in "
    with pytest.raises(SampleError, match=rf"{named}On\(\)") as caught:
        samples(opened().one_of([On("nope", Noise(1))]))
    assert "choice()" not in str(caught.value)
    with pytest.raises(SampleError, match=f"{named}keys="):
        samples(opened().one_of([Noise(1)], keys="nope"))


def test_a_loader_resumes_in_the_middle_and_knows_the_chain() -> None:
    """Its state is that of any choice, and one of other keys is another chain."""

    def loader(key: str = "ct") -> Any:
        ops = [On(key, Brightness(add=(0, 1))), On("t1", Noise(1)), Flip(0)]
        return vp.DataLoader2(opened(6).one_of(ops).batch_patches(1), seed=5)

    with loader() as first:
        batches = iter(first)
        next(batches), next(batches)
        state = json.loads(json.dumps(first.state_dict()))
        rest = list(batches)
    with loader() as second:
        second.load_state_dict(state)
        again = list(second)
    with loader("t1") as other, pytest.raises(StateMismatch):
        other.load_state_dict(state)

    assert len(rest) == len(again) == 4
    for one, two in zip(rest, again, strict=True):
        assert one["meta"][0]["draws"] == two["meta"][0]["draws"]
        assert torch.equal(one["ct"], two["ct"])
        assert torch.equal(one["t1"], two["t1"])
