"""What lies upstream of a pipe: the facts by which mistakes are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch.utils.data import IterDataPipe

from ...datapipes.datapipe import draws
from ...datapipes.foreign import levels_of
from ...datapipes.iter import BatchPatches, Flush, OpenVolume, PatchSampler, Realize
from ...graph import Cut, NoCut, Pipe, chained_name, traits_of

Told: TypeAlias = "tuple[str, str] | None"
"""What happens because of a mistake, and how to mend it."""
Check: TypeAlias = "Callable[[Any, Seen], Told]"
"""Looks at one pipe."""
GraphCheck: TypeAlias = "Callable[[Pipe, Cut | NoCut], tuple[tuple[Pipe, str, str], ...]]"
"""Looks at a whole graph and how it is split: the pipe, what happens, how to mend it."""


@dataclass(frozen=True)
class Seen:
    """What lies upstream of a pipe, along one way at least, or along all."""

    splits: bool
    """Whether the graph can be split."""
    classes: frozenset[str] = frozenset()
    """Chained names of what is upstream."""
    shuffled: bool = False
    """Whether every way from a source goes through a shuffle."""
    shuffled_patches: bool = False
    """Whether patches, once they were cut, were shuffled or interleaved."""
    mixed_by: Pipe | None = None
    """The shuffle whose order this still is, with items at most left out or changed since."""
    patches: PatchSampler | None = None
    """The last pipe that cut patches."""
    voxels: bool = False
    """Whether items hold voxels by now."""
    opened: bool = False
    """Whether volumes were opened."""
    grouped: bool = False
    """Whether items are batches."""
    draws: bool = False
    """Whether something was drawn at random for the items."""
    divided: frozenset[Any] = frozenset()
    """Levels at which items were shared out."""
    moved_by: Pipe | None = None
    """The pipe that put items on a device, or locked their memory."""


def joined(parents: list[Seen], splits: bool) -> Seen:
    """Return what lies upstream of a pipe with these parents."""
    if len(parents) == 1:
        return parents[0]
    return Seen(
        splits,
        frozenset[str]().union(*(p.classes for p in parents)),
        bool(parents) and all(p.shuffled for p in parents),
        any(p.shuffled_patches for p in parents) or len(parents) > 1,
        None,
        next((p.patches for p in parents if p.patches is not None), None),
        any(p.voxels for p in parents),
        any(p.opened for p in parents),
        any(p.grouped for p in parents),
        any(p.draws for p in parents),
        frozenset[Any]().union(*(p.divided for p in parents)),
        next((p.moved_by for p in parents if p.moved_by is not None), None),
    )


def after(pipe: Pipe, before: Seen) -> Seen:
    """Return what lies upstream of the next pipe."""
    cuts, traits, name = isinstance(pipe, PatchSampler), traits_of(pipe), chained_name(pipe)
    keeps_order = traits.per_item or traits.filters or traits.watches
    mixes = shuffles(pipe) or name in ("interleave", "in_batch_shuffle")
    return Seen(
        before.splits,
        before.classes | {name},
        before.shuffled or shuffles(pipe),
        not cuts and (before.shuffled_patches or mixes),
        pipe if shuffles(pipe) else before.mixed_by if keeps_order else None,
        pipe if isinstance(pipe, PatchSampler) else before.patches,
        before.voxels or isinstance(pipe, (Realize, Flush, BatchPatches)),
        before.opened or isinstance(pipe, OpenVolume) or traits.opens,
        before.grouped or traits.group > 0,
        before.draws or draws(pipe),
        before.divided | set(levels_of(pipe)),
        pipe if name in ("to_device", "pin_memory") else before.moved_by,
    )


def shuffles(pipe: Any) -> bool:
    """Whether a pipe changes the order of what it is given."""
    return isinstance(pipe, IterDataPipe) and hasattr(type(pipe), "set_shuffle")


def patches_a_volume(before: Seen) -> int:
    """Return how many patches a volume gives; 0 if that depends on its shape, 1 without any."""
    if before.patches is None:
        return 1
    return 0 if before.patches.sampling == "grid" else before.patches.samples_per_volume
