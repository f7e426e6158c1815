"""Every spatial pipe interpolates by itself, as eager libraries do: for comparing."""

from __future__ import annotations

from collections.abc import Sequence

from ..datapipes.iter import Cache, Flush, FusedSpatial, SpatialPipe
from ..datapipes.values import ChoicePipe
from ..graph import Pipe, Refused, Rule, Site, origin_of, parents_of, with_parents
from .adapter import Adapter


class Eager(Adapter):
    """Put a ``flush()`` before every spatial pipe that follows another one.

    ::

        lazy_patch                     lazy_patch
        rotate                   →     rotate
        normalize                      normalize
        flip                           flush, flip

    Each spatial pipe then interpolates what the one before it gave, and its padding begins at the
    edges of that: what libraries do that work eagerly, so that both results can be laid side by
    side. Draws, shapes and affines stay the same, and so does the place in the epoch, so a run
    may be resumed with or without it; voxels differ by what each interpolation blurs. Where a
    chain is longer than one op it is slower. Give it before ``FuseSpatial``.

    ``lazy_patch`` moves nothing, so a patch still takes its corners from the volume around it;
    write ``.flush()`` after it where that is not meant. What a choice (``one_of`` and the like)
    applies in turn is one plan still.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> from voxpipe.graph import explain_graph
    >>> pipe = from_cases([{"image": np.zeros((8, 8, 8), np.int16)}]).open_volume()
    >>> print(explain_graph(Eager()(pipe.rotate(15).flip())))
    0 from_cases(1 cases)
    1 open_volume()
    2 rotate(15)
    3 flush()
    4 flip()
    """

    def rules(self) -> Sequence[Rule]:
        return (Rule("sample anew", _after_another, _flush),)


def _is_spatial(pipe: Pipe) -> bool:
    if isinstance(pipe, ChoicePipe):
        return bool(pipe.steps)
    return isinstance(pipe, (SpatialPipe, FusedSpatial))


def _after_another(site: Site) -> Pipe | Refused | None:
    """Find a spatial pipe with another one upstream, and no flush of all volumes between."""
    pipe = site.pipe
    if not _is_spatial(pipe) or not any(map(_has_pending, parents_of(pipe))):
        return None
    if isinstance(pipe, FusedSpatial):
        return Refused("its members are one pipe already; give Eager before FuseSpatial")
    return pipe


def _has_pending(pipe: Pipe) -> bool:
    """Whether a spatial pipe at ``pipe`` or upstream has added to the plan of the samples."""
    stack, ids = [pipe], {id(pipe)}
    while stack:
        one = stack.pop()
        if isinstance(one, (Cache, Flush)) and one.keys is None:
            continue
        if _is_spatial(one):
            return True
        upstream = [parent for parent in parents_of(one) if id(parent) not in ids]
        ids.update(map(id, upstream))
        stack += upstream
    return False


def _flush(pipe: Pipe) -> Pipe:
    flushes = []
    for parent in parents_of(pipe):
        flushes.append(Flush(parent))
        flushes[-1].put_before = origin_of(pipe)
    return with_parents(pipe, flushes)
