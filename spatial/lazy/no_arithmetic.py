"""Refuse to compute with voxels that have not been read, and say what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from ...core.errors import SampleError


def _refusing(sign: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *_: Any) -> NoReturn:
        raise _refused(self, sign)

    return refuse


def _refused(patch: Any, sign: str) -> SampleError:
    return SampleError(
        f"{sign} needs voxels, and those of {patch!r} are not read yet",
        do="Put .realize() before: .realize().map(f).batch_patches(4); or compute on the batch, "
        "with .map(f) after batch_patches.",
    )


class NoArithmetic:
    """Makes every operator and NumPy function of elements a SampleError, which is a TypeError.

    Left to NumPy, ``1 + patch`` would read the voxels in the planner; ``patch + 1`` would be an
    error that says nothing of what to do.
    """

    __slots__ = ()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> NoReturn:
        """Refuse NumPy's element-wise functions, and operators with an array on the left."""
        raise _refused(self, f"numpy.{ufunc.__name__}")

    __add__ = __radd__ = _refusing("+")
    __sub__ = __rsub__ = _refusing("-")
    __mul__ = __rmul__ = _refusing("*")
    __truediv__ = __rtruediv__ = _refusing("/")
    __floordiv__ = __rfloordiv__ = _refusing("//")
    __mod__ = __rmod__ = _refusing("%")
    __pow__ = __rpow__ = _refusing("**")
    __neg__ = _refusing("-")
    __abs__ = _refusing("abs()")
    __lt__ = _refusing("<")
    __le__ = _refusing("<=")
    __gt__ = _refusing(">")
    __ge__ = _refusing(">=")
