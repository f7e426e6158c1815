"""What a patch and its plan print, for those who look before they read."""

import json

import numpy as np
import pytest

import voxpipe as vp


def first(build):
    case = {"image": np.zeros((8, 8, 8), np.float32), "case": "c"}
    return next(iter(build(vp.from_cases([case]).open_volume())))["image"]


@pytest.mark.parametrize(
    ("ask", "error", "told"),
    [
        (lambda plan: plan.points_to_source([[0, 0, np.nan]]), ValueError, r"\(N, 3\), got NaN or"),
        (lambda plan: plan.points_to_source([[0, 0]]), ValueError, r"\(N, 3\), got \(1, 2\)"),
        (lambda plan: plan.explain("linear"), TypeError, r"such as Policy\(.*, got 'linear'"),
        (
            lambda plan: vp.SpatialPlan.from_json(json.dumps(plan.to_json())),
            vp.errors.BadPlan,
            r"this is text\n.*json.loads",
        ),
    ],
)
def test_a_question_to_a_plan_that_has_no_answer_is_told(ask, error, told):
    with pytest.raises(error, match=told):
        ask(first(lambda pipe: pipe.rotate(5)).plan)


def test_a_plan_with_a_displacement_fits_on_a_screen():
    """Its control points are hundreds of numbers."""
    plan = first(lambda pipe: pipe.elastic(1, spacing=4)).plan

    assert "control points" in repr(plan)
    assert len(repr(plan)) < 500


def test_what_was_done_before_a_flush_is_told():
    patch = first(lambda pipe: pipe.rotate(5).flush().zoom(1.1).blur(1).flip(0))

    assert repr(patch) == (
        "LazyPatch(array (1, 8, 8, 8) float32: rotate 5.0 degrees; sampled anew: zoom 1.1 "
        "· blur sigma 1 mm; sampled anew: flip axis 0)"
    )


def test_interpolations_before_a_flush_are_told():
    """Of the plan since then there is one, which is not all."""
    patch = first(lambda pipe: pipe.rotate(5).flush().zoom(1.1))
    told, before = patch.explain().split("; of voxels that were made by: ")

    assert "separable linear interpolation" in told
    assert "affine linear interpolation" in before
    assert patch.explain().count("1 interpolation") == 2
    assert "made by" not in first(lambda pipe: pipe.rotate(5).zoom(1.1)).explain()
