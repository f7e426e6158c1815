"""The order of axes of a whole loader."""

from __future__ import annotations

from typing import Any

from ...adapters.adapter import Adapter
from ...datapipes.spatial import ResampleToPipe
from ...graph import (
    Change,
    Pipe,
    RewriteResult,
    describe,
    parents_of,
    rebuild,
    traits_of,
    walk,
    with_parents,
)
from ...spatial.ops.axis_op import ToAxes as ToAxesOp

# Name of the added pipes: a chain may have ``to_axes()`` of its own.
_NAME = "axes of the loader"


class ToAxes(Adapter):
    """Put ``to_axes()`` after each ``open_volume()``: one order of axes for a whole loader.

    ::

        open_volume                    open_volume
        lazy_patch(16, 128, 128)   →   to_axes("zyx")
        batch_patches                  lazy_patch(16, 128, 128)
                                       batch_patches

    Sizes and amounts of the chain are then in this order, and so are the tensors. It comes after
    ``resample_to(key)``, where a chain has that.

    Parameters
    ----------
    axes
        The letters x, y and z in their order, or two of them for 2-D data.

    Raises
    ------
    ValueError
        The letters are others.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> pipe = from_cases([{"image": np.zeros((20, 48, 64))}]).open_volume(axes="zyx")
    >>> next(iter(ToAxes("zyx")(pipe.lazy_patch((8, 16, 32)))))["image"].shape
    (1, 8, 16, 32)
    """

    def __init__(self, axes: str = "zyx") -> None:
        self.axes = ToAxesOp(axes).axes

    def __repr__(self) -> str:
        return f"ToAxes({self.axes!r})"

    def rewrite(self, pipe: Pipe) -> RewriteResult:
        """Return the graph with an order of axes after each pipe that opens volumes."""
        changes: list[Change] = []
        ahead = {id(one) for own in filter(_is_ours, walk(pipe)) for one in parents_of(own)}

        def add(old: Pipe, new: Any) -> Pipe:
            is_moved = isinstance(old, ResampleToPipe) and old.like is not None
            (before,) = parents_of(new) if is_moved else (None,)
            if before is not None and _is_ours(before):
                new = with_parents(new, parents_of(before))
            elif not traits_of(old).opens:
                return new  # type: ignore[no-any-return]
            if id(old) in ahead:
                return new  # type: ignore[no-any-return]
            changes.append(Change("to axes", describe(old), became=f"then to_axes({self.axes!r})"))
            return new.to_axes(self.axes, name=_NAME)  # type: ignore[no-any-return]

        sink: Any = rebuild(pipe, add)
        return RewriteResult(pipe, sink if changes else pipe, tuple(changes))


def _is_ours(pipe: Any) -> bool:
    return getattr(pipe, "stream_names", ()) == (_NAME,)
