"""Pipes at the wrong place, functions that fail: the message names the pipe and the way out."""

from typing import Any

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core.errors import SampleError
from voxpipe.intensity import Blur, Noise
from voxpipe.spatial import Rotate
from voxpipe.spatial.lazy.patch_report import breaks

VOLUME = np.zeros((8, 8, 8), np.float32)


def opened() -> Any:
    """Pipes of one case."""
    cases = [{"image": VOLUME, "label": VOLUME.astype(np.uint8)}]
    return vp.from_cases(cases).open_volume()


def fails(array: Any) -> Any:
    """A function with a mistake."""
    msg = "no such thing"
    raise RuntimeError(msg)


def turned(array: Any) -> Any:
    return array * np.complex64(1j)


def returns_nothing(array: Any) -> None:
    """Change in place, and forget to return."""
    array += 1


@pytest.mark.parametrize(
    "change",
    [
        lambda pipe: pipe.noise(1),
        lambda pipe: pipe.normalize(),
        lambda pipe: pipe.map_values(np.tanh),
        lambda pipe: pipe.one_of([Noise(1)]),
        lambda pipe: pipe.noise(1, keys="image"),
        lambda pipe: pipe.one_hot(2),
        lambda pipe: pipe.batch_patches(1),
    ],
    ids=["noise", "normalize", "map_values", "one_of", "keys", "one_hot", "batch_patches"],
)
@pytest.mark.parametrize("thing", ["a.nii", vp.Volume("a.nii")], ids=["path", "Volume"])
def test_nothing_is_changed_before_it_is_opened(change: Any, thing: Any) -> None:
    """No pipe passes paths through as if it had done its work."""
    pipe = change(vp.from_cases([{"image": thing}]))

    with pytest.raises(SampleError, match=r"Put open_volume\(\) before it") as caught:
        next(iter(pipe))

    assert "test_pipes_in_their_place.py" in str(caught.value)
    assert "in case a" in str(caught.value) or "in case 0" in str(caught.value)


def test_numbers_and_words_may_still_be_batched() -> None:
    """What is no path is none of our business."""
    batch = next(iter(vp.from_cases([{"age": 7}, {"age": 8}]).batch_patches(2)))

    assert batch["age"].tolist() == [7, 8]


@pytest.mark.parametrize(
    ("change", "do"),
    [
        (lambda pipe: pipe.batch_patches(1).noise(1), r"Put noise\(\) before batch_patches"),
        (lambda pipe: pipe.realize().foreground_crop(), r"Move realize\(\) after this pipe"),
        (lambda pipe: pipe.realize().move_boxes(), r"Put move_boxes\(\) before realize"),
    ],
    ids=["after a batch", "foreground_crop", "move_boxes"],
)
def test_a_message_says_which_way_to_move(change: Any, do: str) -> None:
    """Not where the pipe is already."""
    with pytest.raises(SampleError, match=do):
        next(iter(change(opened())))


@pytest.mark.parametrize(
    ("word", "meant"), [("scale", "zoom"), ("translation", "translate"), ("zom", "zoom")]
)
def test_words_of_other_libraries_are_known(word: str, meant: str) -> None:
    """augment(scale=...) is zoom, not space."""
    with pytest.raises(TypeError, match=f"did you mean {meant!r}"):
        opened().augment(**{word: 1.1})


@pytest.mark.parametrize("realize", [False, True])
def test_a_function_that_fails_is_named_where_it_was_given(realize: bool) -> None:
    """Its own error, with the pipe, its line and the case, not those of batch_patches."""
    pipe = opened().realize() if realize else opened()

    with pytest.raises(RuntimeError, match="no such thing") as caught:
        next(iter(pipe.map_values(fails).batch_patches(1)))

    notes = " ".join(caught.value.__notes__)
    assert ".map_values(fails)" in notes
    assert "test_pipes_in_their_place.py" in notes
    assert "in case 0" in notes


def test_a_function_that_returns_nothing_is_told_so() -> None:
    """In place is fine, but the array has to come back."""
    with pytest.raises(SampleError, match="returns_nothing returned None") as caught:
        next(iter(opened().map_values(returns_nothing).batch_patches(1)))

    assert ".map_values(returns_nothing)" in str(caught.value)


def test_a_function_that_returns_complex_numbers_is_told_so() -> None:
    """Half of each number would be lost."""
    with pytest.raises(SampleError, match="turned made complex numbers, complex64"):
        next(iter(opened().map_values(turned).batch_patches(1)))


def test_too_much_by_its_place_is_told_in_the_words_of_the_chain() -> None:
    """And not as the class that stands behind them, with the pipe before counted."""
    words = r"lazy_patch\(\) takes size by place, and was given 2 values; .*: samples_per_volume=, "
    with pytest.raises(TypeError, match=words):
        opened().lazy_patch(4, 2)
    with pytest.raises(
        TypeError, match=r"realize\(\) takes none by place, and was given 1 values$"
    ):
        opened().realize(3)


def test_what_breaks_fusion_in_a_choice_is_named() -> None:
    """The op, the rule, and where it was written."""
    sample = next(iter(opened().one_of([Blur(1), Noise(1)]).rotate(5)))

    (told,) = breaks(sample["image"])

    assert told.startswith("blur in one_of() at ")


@pytest.mark.parametrize(
    ("chain", "is_sampled_anew"),
    [
        (lambda pipe: pipe.rotate(5).one_of([Blur(1), Noise(1)]).flip(0), True),
        (lambda pipe: pipe.one_of([Blur(1), Rotate(5)]).flip(0), True),
        (lambda pipe: pipe.rotate(5).blur(1).one_of([Rotate(5)]), True),
        (lambda pipe: pipe.rotate(5).one_of([Noise(1)]).flip(0), False),
        (lambda pipe: pipe.one_of([Blur(1)]), False),
    ],
    ids=["values", "both kinds", "a choice after it", "commuting", "alone"],
)
def test_explain_names_a_choice_that_breaks_fusion(chain: Any, is_sampled_anew: bool) -> None:
    """It names the op after which voxels are sampled anew."""
    text = vp.explain(chain(opened().lazy_patch(4)))

    assert ("sampled anew" in text and "blur" in text.partition("sampled anew")[2]) == (
        is_sampled_anew
    )
