"""What is said of shapes that do not fit: the advice is one that helps."""

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core.errors import BadHeader, PatchSizeError


def batches_of(*shapes):
    cases = [{"image": np.zeros(shape, np.float32)} for shape in shapes]
    return list(vp.DataLoader2(vp.from_cases(cases).open_volume().batch_patches(2)))


def test_channels_that_differ_are_not_cropped():
    with pytest.raises(PatchSizeError, match="They differ in channels alone"):
        batches_of((1, 6, 6, 6), (2, 6, 6, 6))


def test_volumes_that_differ_are():
    with pytest.raises(PatchSizeError, match="Cut patches of one size"):
        batches_of((1, 6, 6, 6), (2, 6, 6, 7))


@pytest.mark.parametrize("affine", [np.eye(3), np.zeros(16), 2.0])
def test_an_affine_of_another_shape_is_told_as_given(affine):
    with pytest.raises(BadHeader, match=r"the affine given for .*, and a 4x4 is needed"):
        vp.Volume(np.zeros((4, 5, 6)), affine=affine)
