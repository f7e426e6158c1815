"""The adapter that merges spatial pipes, and leaves realizing to the batch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from ..core.validate import as_flag
from ..datapipes.iter import BatchPatches, FusedSpatial, Realize, SpatialPipe, ValuePipe
from ..datapipes.spatial import flush_before, is_spatial, needs_flush_before
from ..graph import Pipe, Refused, RewriteResult, Rule, Site, parents_of, with_parents
from .adapter import Adapter

_LOG = logging.getLogger("voxpipe.fusion")

Pair = tuple[Pipe, Pipe]


class FuseSpatial(Adapter):
    """Merge neighbouring spatial pipes, and leave ``realize()`` to the batch where that is equal.

    ::

        lazy_patch                     lazy_patch
        rotate                   →     rotate + flip
        flip                           batch_patches
        realize
        batch_patches

    Each volume of a sample is then read once and interpolated once, and no tensor of a
    single patch exists. Items and draws stay the same. A ``DataLoader2`` applies it by
    itself, unless ``fuse=False`` is given.

    Parameters
    ----------
    lazy
        False: a ``flush()`` separates spatial pipes, as in eager libraries. A flag of the pipe, or
        of a ``with vp.lazy(...)`` block around it, precedes. Draws, shapes and affines stay the
        same, voxels do not.

    Fused pipes, and refusals with the reason, are in the ``changes`` of ``rewrite``'s result and in
    a loader's ``explain()``. They are logged under ``"voxpipe.fusion"`` at level DEBUG, and in an
    epoch the ops of each resample of each sample. The cost in ``explain()`` lists volumes that are
    sampled anew, and the pipe before that.
    """

    def __init__(self, lazy: bool = True) -> None:
        self.lazy = as_flag("lazy", lazy)

    def __repr__(self) -> str:
        return f"FuseSpatial({'' if self.lazy else 'lazy=False'})"

    def rules(self) -> Sequence[Rule]:
        anew = Rule("sample anew", _after_another, _flush)
        lazily = lambda pair: with_parents(pair[0], [_skip_first(pair)])  # noqa: E731
        return (
            *(() if self.lazy else (anew,)),
            Rule("fuse spatial", _neighbours, lambda pair: FusedSpatial(*pair)),
            Rule("change values lazily", _realized_before_values, lazily),
            Rule("realize in the batch", partial(_realized_before, BatchPatches), _skip_first),
        )

    def rewrite(self, pipe: Pipe) -> RewriteResult:
        result = super().rewrite(pipe)
        for change in result.changes:
            _LOG.debug("%s", change)
        return result


def _after_another(site: Site) -> Pipe | Refused | None:
    """Find a spatial pipe with a pipe upstream that has its plan, if either is not lazy."""
    if not is_spatial(site.pipe) or not needs_flush_before(site.pipe, default=False):
        return None
    if isinstance(site.pipe, FusedSpatial):
        return Refused("its members are one pipe already; give lazy=False to the first FuseSpatial")
    return site.pipe


def _flush(pipe: Pipe) -> Pipe:
    return with_parents(pipe, [flush_before(pipe, parent, NOT_LAZY) for parent in parents_of(pipe)])


NOT_LAZY = "FuseSpatial(lazy=False)"
"""Cause of a flush that the adapter puts into a graph."""


def _neighbours(site: Site) -> Pair | Refused | None:
    second = site.pipe
    if not isinstance(second, SpatialPipe):
        return None
    first = second.parent
    if not isinstance(first, (SpatialPipe, FusedSpatial)):
        return None
    for pipe in (first, second):
        if isinstance(pipe, SpatialPipe) and not pipe.is_step:
            return Refused(f"{pipe.describe()} {pipe.stands_apart}")
    if site.is_shared(first):
        return Refused(f"{first.describe()} has another reader")
    return first, second


_RUN = ("__iter__", "apply")  # methods that make items


def _realized_before(reader: type, site: Site) -> Pair | Refused | None:
    if not isinstance(site.pipe, reader):
        return None
    parent = parents_of(site.pipe)[0]
    # A subclass of the user's may override either one: then both run as they are.
    own: Any = type(site.pipe)
    others = [name for name in _RUN if getattr(own, name, None) is not getattr(reader, name, None)]
    if others or type(parent) is not Realize:
        return None
    if site.is_shared(parent):
        return Refused("realize() has another reader, which needs the tensors")
    return parent, site.pipe


def _realized_before_values(site: Site) -> Pair | Refused | None:
    """Return pipes with the same result for a patch, with or without a volume around it."""
    pair = _realized_before(ValuePipe, site)
    if not isinstance(pair, tuple):
        return pair
    assert isinstance(site.pipe, ValuePipe)
    op = site.pipe.step.op
    if op.looks_around:
        why = "looks at voxels around a patch, of which realize() leaves none"
        return Refused(f"{op.name} {why}; put it before realize()")
    if not op.commutes:
        return Refused(f"{op.name} does not treat every voxel alike; put it before realize()")
    return pair


def _skip_first(pair: Pair) -> Pipe:
    return with_parents(pair[1], parents_of(pair[0]))
