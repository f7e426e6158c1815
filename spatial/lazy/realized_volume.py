"""Voxels that ``realize()`` made, opened again: they lie where their patch lies.

A tensor says nothing of where it lies or what it means; the patch that it was made of does.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING, Any

from ...core import Sample
from ...core.errors import SampleError
from ...volumes.axis_map import AxisMap
from ...volumes.header import affine_matrix
from ...volumes.volume import Volume

if TYPE_CHECKING:
    from ...volumes.source import Source
    from .lazy_patch import LazyPatch


class RealizedVolume(Volume):
    """What ``realize()`` made of a patch, opened again: voxels in memory, on the patch's grid.

    Functions may have changed them meanwhile, so statistics are those of these voxels.
    """

    realized_from: LazyPatch
    """What they were made of."""

    @property
    def name(self) -> str:
        """Path or URL of the stored volume, without credentials."""
        return self.realized_from.volume.name

    def of_other(self, patch: LazyPatch) -> RealizedVolume:
        """Return the voxels as those of another patch on the same grid: of one channel."""
        volume = copy(self)
        assert isinstance(volume, RealizedVolume)
        volume.realized_from = patch
        return volume

    def channels_of(self, member: LazyPatch, first: int) -> RealizedVolume:
        """Return the channels from ``first`` on, as those of a member of a stack."""
        last = first + member.shape[0]
        volume = self.with_axis_map(AxisMap.from_table("C", range(first, last)))
        assert isinstance(volume, RealizedVolume)
        volume.kind, volume.realized_from = member.kind, member
        return volume

    def _of(self, source: Source, kind: str) -> Volume:
        """Return the same voxels arranged otherwise: they are made of the same patch."""
        affine = None if self._affine is None else affine_matrix(self._affine)
        volume = RealizedVolume.of_source(source, kind, affine)
        assert isinstance(volume, RealizedVolume)
        volume.realized_from = self.realized_from
        return volume


def opened_again(
    voxels: Any, patch: LazyPatch, kind: str, options: Mapping[str, Any]
) -> RealizedVolume:
    """Return the volume of an array or tensor that lies where a patch does."""
    volume = RealizedVolume(voxels, affine=patch.affine, kind=kind, **options)
    volume.realized_from = patch
    return volume


def realized_patch(sample: Sample, key: str) -> LazyPatch | None:
    """Return the patch on whose grid the array of a key lies; None if ``realize()`` made none.

    A new key has the grid of the first one of its size.

    Raises
    ------
    SampleError
        The array of the key has another size now, so its place is not known any more.
    """
    made: dict[str, Any] = {k: p for k, p in sample.patches.items() if hasattr(p, "with_pending")}
    shape = tuple(sample[key].shape)
    spatial = shape[-3:] if len(shape) > 2 else (*shape, 1)
    fits = [patch for patch in made.values() if patch.shape[1:] == spatial]
    if key not in made:
        return fits[0] if fits else None
    if made[key].shape[1:] != spatial:
        msg = f"{key!r} was realized as {made[key].shape} and is {shape} now"
        do = f"Say where it lies: open_volume(affine={{{key!r}: matrix}})."
        raise SampleError(f"{msg}, so its affine is not known", do=do)
    found: LazyPatch = made[key]
    return found


def in_memory(value: Any) -> bool:
    """Whether a volume's source is an array or a tensor, which has no header."""
    modules = {kind.__module__.split(".")[0] for kind in type(value).__mro__}
    return not modules.isdisjoint(("numpy", "torch")) and hasattr(value, "shape")
