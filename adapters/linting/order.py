"""Mistakes of order: who is shuffled, and whether that mixes anything."""

from __future__ import annotations

from typing import Any

from ...graph import describe, traits_of
from .seen import Check, Seen, Told, patches_a_volume, shuffles


def _shuffled_batches(pipe: Any, before: Seen) -> Told:
    if not shuffles(pipe) or not before.grouped:
        return None
    what = f"{describe(pipe)} changes the order of batches, not what is in them"
    return what, "Put .shuffle() before the pipe that makes batches."


def _shuffled_voxels(pipe: Any, before: Seen) -> Told:
    if not shuffles(pipe) or not before.voxels or before.grouped:
        return None
    what = f"{describe(pipe)} keeps up to {getattr(pipe, 'buffer_size', 'all')} patches of voxels"
    return what, "Put .shuffle() before .realize(): descriptions cost nothing to keep."


def _one_volume_batches(pipe: Any, before: Seen) -> Told:
    if not traits_of(pipe).group or before.patches is None or before.shuffled_patches:
        return None
    count = patches_a_volume(before)
    if count == 1:
        return None
    what = f"{count or 'all'} patches of a volume follow each other into the same batches"
    return what, "Put .shuffle() after .lazy_patch(), or .interleave() for fewer reads."


def _small_shuffle(pipe: Any, before: Seen) -> Told:
    size = getattr(pipe, "buffer_size", None)
    count = patches_a_volume(before)
    if not shuffles(pipe) or before.grouped or not size or size > max(1, count):
        return None
    what = f"a buffer of {size} patches never holds more than one volume's {count}"
    return what, "Give .shuffle() a larger buffer_size: what it keeps are descriptions."


def _shuffled_twice(pipe: Any, before: Seen) -> Told:
    if not shuffles(pipe) or before.mixed_by is None:
        return None
    what = f"{describe(pipe)} mixes again what {describe(before.mixed_by)} has mixed"
    return what, "Leave one of them out, and give the other the larger buffer_size."


def _cycled_shuffle(pipe: Any, before: Seen) -> Told:
    if not shuffles(pipe) or "cycle" not in before.classes:
        return None
    what = f"{describe(pipe)} mixes the turns of cycle(): an item comes again before others came"
    return what, "Put .shuffle() before .cycle(n): each turn then has an order of its own."


CHECKS: dict[str, Check] = {
    "shuffled-batches": _shuffled_batches,
    "shuffled-voxels": _shuffled_voxels,
    "shuffled-twice": _shuffled_twice,
    "cycled-shuffle": _cycled_shuffle,
    "one-volume-batches": _one_volume_batches,
    "small-shuffle": _small_shuffle,
}
