"""Computing with a lazy patch is refused before a voxel is read, and says what to write."""

import operator

import numpy as np
import pytest
import torch

import voxpipe as vp

OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv]
OPERATORS += [operator.mod, operator.pow, operator.lt, operator.le, operator.gt, operator.ge]


def patch():
    pipe = vp.from_cases([{"image": np.ones((2, 2, 2), np.int16)}]).open_volume()
    return next(iter(pipe))["image"]


def refused():
    return pytest.raises(TypeError, match=r"(?s)not read yet.*\.realize\(\)\.map\(f\)")


@pytest.mark.parametrize("operate", OPERATORS)
@pytest.mark.parametrize("other", [1, np.ones(1), torch.ones(1)], ids=["int", "array", "tensor"])
def test_operators_are_refused_on_both_sides(operate, other):
    """With numbers, arrays and tensors alike."""
    with refused():
        operate(patch(), other)
    with refused():
        operate(other, patch())


@pytest.mark.parametrize("function", [operator.neg, abs, np.exp])
def test_functions_of_elements_are_refused(function):
    """Signs, absolute values, and what NumPy does element by element."""
    with refused():
        function(patch())


def test_a_patch_still_becomes_an_array_when_asked():
    """Asking for voxels is no arithmetic; two patches can be compared by identity."""
    one = patch()

    assert np.asarray(one).sum() == 8
    assert one == one
    assert {one: 1}[one] == 1
