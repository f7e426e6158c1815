"""Mistakes about what is drawn and interpolated: too often, or only once."""

from __future__ import annotations

from typing import Any

from ...datapipes.iter import SpatialPipe
from ...graph import chained_name, describe
from .seen import Check, Seen, Told

_CACHES = ("in_memory_cache", "on_disk_cache", "end_caching")


def _frozen_draws(pipe: Any, before: Seen) -> Told:
    if chained_name(pipe) not in _CACHES or not before.draws:
        return None
    what = f"{describe(pipe)} keeps patches and augmentations of the first epoch for all others"
    return what, "Put the cache before .lazy_patch() and before whatever draws."


def _twice_interpolated(pipe: Any, before: Seen) -> Told:
    if not isinstance(pipe, SpatialPipe) or not before.voxels:
        return None
    what = f"{describe(pipe)} interpolates voxels that were interpolated before"
    return what, "Put it before .flush() or .realize(): then all moves are made at once."


def _copied_batches(pipe: Any, before: Seen) -> Told:
    if chained_name(pipe) != "batch" or not before.opened or before.grouped:
        return None
    what = "torch's batch() gathers patches in a list, and collate() copies their voxels"
    return what, "Use .batch_patches(n): voxels are interpolated straight into the batch."


def _repeated_draws(pipe: Any, before: Seen) -> Told:
    if chained_name(pipe) not in ("repeat", "cycle") or not before.draws:
        return None
    what = f"{describe(pipe)} gives each patch again as it is: draws belong to the epoch"
    return what, "Leave it out and iterate more epochs, or give samples_per_volume= more."


CHECKS: dict[str, Check] = {
    "frozen-draws": _frozen_draws,
    "twice-interpolated": _twice_interpolated,
    "copied-batches": _copied_batches,
    "repeated-draws": _repeated_draws,
}
