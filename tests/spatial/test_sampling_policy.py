"""Policies: what is allowed, and what each kind of volume gets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from voxpipe.spatial import INTENSITY, LABEL, Policy


def test_each_kind_has_its_policy() -> None:
    """Intensities are linear with border, labels nearest with background outside."""
    assert (INTENSITY.mode, INTENSITY.padding) == ("linear", "border")
    assert (LABEL.mode, LABEL.padding, LABEL.fill) == ("nearest", "constant", 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "spline"}, r"'linear', 'nearest', 'cubic', got 'spline'$"),
        ({"mode": "bilinear"}, r"'cubic', got 'bilinear': that is 'linear' here$"),
        ({"mode": ["bilinear"]}, r"'cubic', got \['bilinear'\]$"),
        ({"padding": "edge"}, r"'zeros', got 'edge': that is 'border' here$"),
        ({"padding": "reflect"}, r"'zeros', got 'reflect'$"),
        ({"padding": "wrap"}, r"'border', 'reflection', 'constant', 'zeros', got 'wrap'"),
        ({"dtype": "bool"}, r"integer or float type, got 'bool'"),
        ({"dtype": "complex64"}, r"integer or float type, got 'complex64'"),
    ],
)
def test_nonsense_is_refused(arguments: dict[str, Any], message: str) -> None:
    """A policy that cannot be carried out is refused when it is made."""
    with pytest.raises(ValueError, match=message):
        Policy(**arguments)


def test_the_type_of_the_result_is_native() -> None:
    """A type may be given by name or in another byte order, and becomes a native one."""
    assert Policy(dtype=">i2").dtype == np.dtype("=i2")
    assert Policy(dtype="float16") == Policy(dtype=np.float16)
