"""The paths of the native library that this processor has: what a test compares with NumPy."""

from __future__ import annotations

import functools
import warnings

import pytest

from voxpipe.core.native_library import PATHS
from voxpipe.spatial.resampling import native_resampler as native


@functools.cache
def paths_here() -> list[str]:
    """Return the names of those paths, the plainest first; none if the library is not built."""
    with warnings.catch_warnings(action="ignore"):
        best = native.path()
    return list(PATHS[: PATHS.index(best) + 1]) if best else []


# Of a path that is not here a test is skipped by name: it would compare a lesser one unnoticed.
NATIVE_PATHS = [
    pytest.param(name, marks=() if name in paths_here() else pytest.mark.skip(f"no {name} here"))
    for name in PATHS
]
