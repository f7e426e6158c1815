"""Mistakes of dividing: what workers and ranks get of the items."""

from __future__ import annotations

from typing import Any

from ...datapipes.foreign import levels_of
from ...graph import Cut, NoCut, Pipe, describe, traits_of, walk
from .seen import Check, GraphCheck, Seen, Told


def _unshuffled_shards(pipe: Any, before: Seen) -> Told:
    if not traits_of(pipe).shards or before.shuffled:
        return None
    what = "each worker and rank sees the same share of the items in every epoch"
    return what, "Put .shuffle() before .sharding_filter()."


def _shards_of_batches(pipe: Any, before: Seen) -> Told:
    if not traits_of(pipe).shards or not before.grouped:
        return None
    what = "whole batches are shared out after every worker made all of them"
    return what, "Put .sharding_filter() before the pipe that makes batches."


def _needless_sharding(pipe: Any, before: Seen) -> Told:
    if not traits_of(pipe).shards or not before.splits:
        return None
    what = "this chain is planned in one place, and workers take batches from there"
    return what, "Leave .sharding_filter() out: batches then do not depend on the workers."


def _divided_twice(pipe: Any, before: Seen) -> Told:
    if before.divided.isdisjoint(levels_of(pipe)):
        return None
    what = f"{describe(pipe)} takes a share of a share: items are lost, so loaders refuse it"
    return what, (
        "Leave one out, or give one SHARDING_PRIORITIES.DISTRIBUTED and the other "
        "SHARDING_PRIORITIES.MULTIPROCESSING."
    )


def _not_split(sink: Pipe, split: Cut | NoCut) -> tuple[tuple[Pipe, str, str], ...]:
    if not isinstance(split, NoCut):
        return ()
    every = [traits_of(pipe) for pipe in walk(sink)]
    if any(traits.shards for traits in every) and not any(traits.opens for traits in every):
        return ()  # shares are what was asked for, and no volume wants a planner
    return ((sink, f"the graph cannot be split: {split.reason}", _SPLIT),)


def _no_sharding(sink: Pipe, split: Cut | NoCut) -> tuple[tuple[Pipe, str, str], ...]:
    divided = any(traits_of(pipe).shards or traits_of(pipe).dispatches for pipe in walk(sink))
    return ((sink, _UNDIVIDED, _DIVIDE),) if isinstance(split, NoCut) and not divided else ()


_SPLIT = (
    "Workers then need torch and the whole chain, and the number of workers decides what is in a "
    "batch: move what it names before open_volume() or after batch_patches()."
)
_UNDIVIDED = "only one worker can make items of this graph, and every rank would see all of them"
_DIVIDE = "Put .sharding_filter() after .shuffle(), or make it a graph that can be split."

CHECKS: dict[str, Check] = {
    "unshuffled-shards": _unshuffled_shards,
    "shards-of-batches": _shards_of_batches,
    "needless-sharding": _needless_sharding,
    "divided-twice": _divided_twice,
}
OF_GRAPHS: dict[str, GraphCheck] = {"not-split": _not_split, "no-sharding": _no_sharding}
