"""An adapter of a user's that puts a ``flush()`` before every spatial pipe that follows another.

So chains interpolate at every pipe, as eager libraries do, and can be compared with fused ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from voxpipe.adapters import Adapter
from voxpipe.datapipes.iter import Cache, Flush, FusedSpatial, SpatialPipe
from voxpipe.datapipes.values import ChoicePipe
from voxpipe.graph import Pipe, Refused, Rule, Site, origin_of, parents_of, with_parents


class Eager(Adapter):
    """Put a ``flush()`` before every spatial pipe that follows another one."""

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
    flushes: list[Any] = []
    for parent in parents_of(pipe):
        flushes.append(Flush(parent))
        if (origin := origin_of(pipe)) is not None:
            flushes[-1].origin = replace(origin, call="flush()")
    return with_parents(pipe, flushes)
