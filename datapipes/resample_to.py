"""Bring the volumes of a sample onto the grid of one of them, or onto a grid that is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from ..core import Sample
from ..core.errors import SampleError
from ..core.validate import as_keys
from ..graph import Pipe
from ..spatial import LazyPatch, ResampleTo
from .datapipe import PerItem, lazy_patches
from .spatial import SpatialPipe, sampling_of


class ResampleToPipe(SpatialPipe, form="resample_to", op=ResampleTo):
    """Bring volumes onto one grid: each voxel then holds what lies at its place in the world.

    It is part of the one interpolation that the plan of each volume is.

    Parameters
    ----------
    grid
        A ``Grid(shape, affine)``, for all volumes alike, anywhere among the spatial pipes. Or the
        key of a volume, whose grid the others get: then right after ``open_volume``, as volumes on
        different grids have no spatial op in common before.
    keys
        With a key: the volumes to bring there, by default all others. What is not named must lie
        on its grid.

    Raises
    ------
    TypeError
        ``grid`` is neither.
    SampleError
        A sample has no volume of that key, or a spatial pipe came before.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> case = {"ct": np.zeros((8, 8, 8)), "pet": np.zeros((4, 4, 4))}
    >>> pipe = from_cases([case]).open_volume().resample_to("ct").lazy_patch(4)
    >>> [patch.shape for patch in next(iter(pipe)).values()]
    [(1, 4, 4, 4), (1, 4, 4, 4)]
    """

    keywords: ClassVar[Mapping[str, Any]] = {"keys": None, **SpatialPipe.keywords}

    def __init__(self, parent: Pipe, *args: Any, **kwargs: Any) -> None:
        arguments = self.arguments(args, kwargs)
        grid, keys = arguments["grid"], arguments.get("keys")
        self.like = grid if isinstance(grid, str) else None
        self.keys = None if keys is None else as_keys("resample_to(keys=)", keys)
        if self.like is None:
            if keys is not None:
                msg = "keys= belongs to resample_to(key); a grid is for all volumes"
                raise TypeError(msg)
            super().__init__(parent, **arguments)
            return
        PerItem.__init__(self, parent)
        self.stream_names: tuple[str, ...] = ()
        self.is_step = False
        self.sampling = sampling_of(self, arguments)

    def apply(self, item: Any) -> Sample:
        """Return the sample with its volumes on one grid."""
        return super().apply(item) if self.like is None else self._brought(item, self.like)

    def _brought(self, item: Sample, like: str) -> Sample:
        lazy = lazy_patches(self, item, (like, *(self.keys or ())))
        if any(patch.pending.steps for patch in lazy.values()):
            raise SampleError(
                f"resample_to({like!r}) comes after a spatial pipe",
                do="Put it right after open_volume(), where each volume still has its own grid.",
            ).at(self.origin, item.case)
        self.sampling.refuse_unknown(lazy, item.case)
        brought = set(lazy if self.keys is None else self.keys) - {like}
        start = {
            key: patch.with_each(_beginning if key in brought else _beginning_here)
            for key, patch in lazy.items()
        }
        firsts = {key: patch.leaves[0] for key, patch in start.items()}
        references = {key: firsts[key].volume for key in lazy if key not in brought}
        shared = replace(firsts[like].pending, references={like: firsts[like].volume, **references})

        def moved(patch: LazyPatch) -> LazyPatch:
            return patch.with_pending(shared.of_moving(patch.volume))

        def stays(patch: LazyPatch) -> LazyPatch:
            return patch.with_pending(shared)

        return item.with_data(
            **{
                key: self.sampling.apply(key, patch).with_each(moved if key in brought else stays)
                for key, patch in start.items()
            }
        )


def _beginning(patch: LazyPatch) -> LazyPatch:
    """Return a patch that begins with a volume, which may be brought elsewhere."""
    begins = patch.commutes and not patch.members
    return patch if begins else patch.flushed()


def _beginning_here(patch: LazyPatch) -> LazyPatch:
    """Return a patch that begins with a volume on the grid to which it was brought already."""
    return _beginning(patch) if patch.pending.moving is None else patch.flushed()
