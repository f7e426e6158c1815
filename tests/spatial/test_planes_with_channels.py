"""Channels of a 2-D image are not its first or last axis: told where a label lies beside."""

import numpy as np
import pytest

import voxpipe as vp


def opened(shape):
    case = {"image": np.zeros(shape, np.float32), "label": np.zeros((6, 5), np.uint8)}
    return vp.from_cases([case]).open_volume().lazy_patch((4, 4, 1))


@pytest.mark.parametrize("shape", [(3, 6, 5), (6, 5, 3)])
def test_channels_in_the_place_of_an_axis_are_told(shape):
    with pytest.raises(vp.errors.GridMismatch, match=r"\n  Give the channels.*\(C, I, J, 1\)"):
        _ = next(iter(opened(shape)))["image"].shape


def test_channels_in_their_place_are_read():
    assert next(iter(opened((3, 6, 5, 1))))["image"].shape == (3, 4, 4, 1)


def test_other_shapes_have_other_advice():
    with pytest.raises(vp.errors.GridMismatch, match="affine="):
        _ = next(iter(opened((7, 6, 4))))["image"].shape
