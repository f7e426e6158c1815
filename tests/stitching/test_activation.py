"""What is made of a model's output is what NumPy makes of it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.core.errors import SampleError
from voxpipe.stitching.outputs import Activation


@given(st.data(), st.integers(1, 5))
def test_the_largest_channel_is_numpys(data, channels):
    """Of equal ones the first; where NaN is among them none is, which is refused."""
    numbers = st.sampled_from([-np.inf, -1.0, 0.0, 1.0, 1.5, np.inf, np.nan])
    count = 4 * channels
    flat = data.draw(st.lists(numbers, min_size=count, max_size=count))
    voxels = np.array(flat, np.float32).reshape(channels, 2, 1, 2)

    if np.isnan(voxels).any():
        with pytest.raises(SampleError, match="no class is the largest"):
            Activation("argmax").of(voxels)
        return
    found = Activation("argmax").of(voxels)

    assert found.dtype == np.uint8
    assert (found == voxels.argmax(0)[None]).all()


@pytest.mark.parametrize("dtype", ["uint16", "int16", "float32"])
def test_labels_of_any_type(dtype):
    """The type is the one that was asked for, also where 300 classes need two bytes."""
    voxels = np.zeros((300, 1, 1, 3), np.float32)
    voxels[[255, 0, 17], 0, 0, [0, 1, 2]] = 1

    found = Activation("argmax", np.dtype(dtype)).of(voxels)

    assert found.dtype == dtype
    assert found.ravel().tolist() == [255, 0, 17]


def test_more_classes_than_two_bytes_hold():
    """Labels above 65535 take four bytes, and are the numbers of their channels."""
    voxels = np.zeros((70_000, 1, 1, 1), np.float32)
    for number in (65_535, 65_536, 69_999):
        voxels[number] = number
        found = Activation("argmax").of(voxels)
        assert found.dtype == np.uint32
        assert found.item() == number
    assert Activation("argmax").dtype_of(65_536) == np.uint16
    with pytest.raises(ValueError, match="cannot hold the labels of 70000 classes"):
        Activation("argmax", np.dtype("uint16")).dtype_of(70_000)
