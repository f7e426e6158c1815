"""Arguments that cannot be, and those of other libraries, are told with what to write."""

from typing import Any

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.spatial import Affine, Augment, Zoom
from voxpipe.spatial.ops.op import MOST_VOXELS


def opened() -> Any:
    return vp.from_cases([{"image": np.zeros((8, 8, 8), np.float32)}]).open_volume()


FACTOR = r"write factor=2 for a scale of 0\.5"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("zoom(1e9)", r"factors from 6e-08 to 1\.7e\+07"),
        ("zoom((1e-9, 1))", r"factors from 6e-08 to 1\.7e\+07"),
        ("augment(zoom=1e9)", r"^zoom takes factors from 6e-08"),
        ("affine(np.diag([1, 1, 1e-12, 1]))", "stretches by factors from 6e-08"),
        ("affine(np.diag([1e9, 1e9, 1e9, 1]))", "stretches by factors from 6e-08"),
        ("flush(keys=3)", r"^flush\(keys=\) takes the key of a volume, or several.*got 3"),
        ("noise(1, keys=[3])", r"^noise\(keys=\) takes the key of a volume.*got \[3\]"),
        ("rotate(5, name=3)", r"^name= is the name of the stream.*got 3"),
        ("drop_boxes(2.5, 0.1)", "whole number of voxels.*got 2.5"),
        ("drop_boxes((2, 3.5), 0.1)", "whole number of voxels.*got"),
        ("low_resolution(0.5)", FACTOR),
        ("low_resolution((0.5, 1))", FACTOR),
        ("anisotropy(0.5)", FACTOR),
    ],
)
def test_values_are_refused_with_the_allowed_ones(call: str, message: str) -> None:
    """When the pipe is made."""
    with pytest.raises(ValueError, match=message):
        eval(f"opened().{call}", {"opened": opened, "np": np})  # noqa: S307  calls of this file


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("zoom(scale=1.1)", "did you mean 'factor'"),
        ("zoom(zoom=1.1)", "did you mean 'factor'"),
        ("augment(scale=1.1)", "did you mean 'zoom'"),
        ("low_resolution(scale=0.5)", FACTOR),
        ("low_resolution(zoom_range=(0.5, 1))", FACTOR),
        ("anisotropy(scale=0.5)", FACTOR),
        ("anisotropy(downsampling=2)", "did you mean 'factor'"),
        ("elastic(scale=3)", "it has amount"),
    ],
)
def test_names_are_refused_with_the_same_hint(call: str, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        eval(f"opened().{call}", {"opened": opened})  # noqa: S307  calls of this file


def test_what_is_at_the_bound_is_taken() -> None:
    """A plan of such a factor has an inverse."""
    for factor in (float(MOST_VOXELS), 1 / MOST_VOXELS):
        assert Zoom((factor, factor)).factor == (factor, factor)
        assert Augment(zoom=factor).zoom == factor
        plan = next(iter(opened().affine(np.diag([factor, 1, 1, 1]))))["image"].plan
        assert np.isfinite(np.linalg.inv(plan.matrix)).all()
        assert Affine(np.diag([factor, 1, 1, 1])).p == 1
