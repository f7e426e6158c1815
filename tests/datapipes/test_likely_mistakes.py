"""Numbers that are allowed but hardly meant are told where they are written, and few others."""

import math
import pickle
import warnings
from typing import Any

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core.errors import LikelyMistake
from voxpipe.datapipes.datapipe import PerItem
from voxpipe.spatial import Rotate, Zoom
from voxpipe.spatial.ops.choices import OneOf


def opened() -> Any:
    return vp.from_cases([{"image": np.zeros((8, 8, 8), np.int16)}]).open_volume()


MISTAKES = [
    ("rotate(math.pi / 12)", "angle-in-radians", "write 15,"),
    ("rotate((-math.pi / 6, math.pi / 6))", "angle-in-radians", "write 30,"),
    ("rotate(0.3)", "angle-in-radians", "write 17.19,"),
    ("rotate((0, 0, math.pi / 2))", "angle-in-radians", "write 90,"),
    ("rotate((0, 0, (-3.14, 3.14)))", "angle-in-radians", "write 179.9,"),
    ("augment(rotate=(-0.5, 0.5))", "angle-in-radians", "rotate of at most 0.5"),
    ("one_of([OneOf([Rotate(0.1)])])", "angle-in-radians", "write 5.73,"),
    ("zoom(0.1)", "factor-far-below-1", r"factor=\(0.9, 1.1\)"),
    ("augment(zoom=(0.05, 0.2))", "factor-far-below-1", r"zoom=\(0.8, 1.2\)"),
    ("rescale_percentiles(0.005, 0.995)", "percentile-as-part", "write 99.5 "),
    ("rescale_percentiles(0, 1)", "percentile-as-part", "write 100 "),
    ("foreground_crop('image', above='p0.5')", "percentile-as-part", "write 50 "),
]
MEANT = [
    *("rotate((-15, 15))", "rotate(1)", "rotate((-1, 1))", "rotate((-1.7, 1.7))"),
    *("rotate((0.5, 10))", "rotate((0, 0, 3))", "rotate(0)", "augment(flip=0.5)"),
    *("zoom((0.3, 1))", "zoom(0.45)", "zoom(0.25, keep_size=False)"),
    "one_of([Rotate(10), Zoom(0.9)])",
    *("rescale_percentiles()", "rescale_percentiles(0, 1.5)"),
    *("foreground_crop('image', above='p1')", "foreground_crop('image', above='mean')"),
]
WORDS = {"math": math, "OneOf": OneOf, "Rotate": Rotate, "Zoom": Zoom}


def written(call: str) -> Any:
    """Return the pipe that a user writes as ``.call``."""
    return eval(f"opened().{call}", {**WORDS, "opened": opened})  # noqa: S307  calls of this file


@pytest.mark.parametrize(("call", "name", "message"), MISTAKES)
def test_a_likely_mistake_is_told_where_it_is_written(call: str, name: str, message: str) -> None:
    """By its name, in one sentence with the fix, once, when the pipe is made."""
    with pytest.warns(LikelyMistake, match=f"^{name}: .*{message}") as caught:
        pipe = written(call)

    (warning,) = caught
    assert str(warning.message).count(". ") == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pickle.loads(pickle.dumps(pipe))
        vp.FuseSpatial()(pipe)


def test_the_warning_is_of_the_line() -> None:
    """That of the pipe, in the user's file."""
    with pytest.warns(LikelyMistake) as caught:
        opened().rotate(0.2)

    assert caught[0].filename == __file__


@pytest.mark.parametrize("call", MEANT)
def test_what_people_mean_is_not_told(call: str) -> None:
    """Small whole angles, strong shrinking onto a smaller grid, percentiles as they are."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        written(call)


def test_nothing_is_told_of_what_was_drawn() -> None:
    """A record of a small angle is no mistake, nor an op that is made again."""
    pipe = opened().rotate((-15, 15))

    next(iter(pipe.replay({"rotate": {"degrees": [0.3, 0.2, 0.1]}})))["image"].realize()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("augment(rotate=15)", ": 15 degrees each time; rotate=(-15, 15) draws the angles"),
        ("rotate(-7.5)", ": -7.5 degrees each time; degrees=(-7.5, 7.5) draws the angles"),
        *[("augment(rotate=(-15, 15))", ""), ("rotate((0, 0, 5))", ""), ("augment(flip=0.5)", "")],
        ("rotate(90)", ""),
    ],
)
def test_explain_tells_a_fixed_angle_from_a_range(call: str, told: str) -> None:
    """One number turns each time by that, where TorchIO draws from such a range."""
    pipe = written(call)
    assert pipe.explain().count("each time") == bool(told)
    assert call + told in pipe.explain()
    turns = {str(sample["image"].draws) for _ in range(3) for sample in pipe}
    assert len(turns) == 1 or not told


def test_explain_leaves_what_a_user_calls_steps_alone() -> None:
    """Only the steps of our own pipes have angles."""

    class Mine(PerItem):
        def __init__(self, parent: Any) -> None:
            super().__init__()
            self.parent, self.steps = parent, 10

        def apply(self, item: Any) -> Any:
            return item

    pipe = Mine(opened().lazy_patch(4)).batch_patches(1)

    assert "each time" not in pipe.explain()
    assert len(list(pipe)) == 1
