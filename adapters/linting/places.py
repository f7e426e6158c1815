"""Mistakes of place: what runs in a worker, or in the process of the loader, by mistake."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from ...graph import (
    Cut,
    NoCut,
    Pipe,
    chained_name,
    declares_traits,
    describe,
    parents_of,
    traits_of,
    walk,
)
from .seen import Check, GraphCheck, Seen, Told


def _early_device(pipe: Any, before: Seen) -> Told:
    if chained_name(pipe) not in ("to_device", "pin_memory") or before.grouped:
        return None
    if before.patches is None:
        return None
    what = f"{describe(pipe)} handles samples one by one, and a batch of them is copied again"
    return what, "Put it after .batch_patches(n), or give the adapter Runtime(device=...)."


def _device_midway(pipe: Any, before: Seen) -> Told:
    traits = traits_of(pipe)
    if before.moved_by is None or traits.per_item or traits.watches or traits.main_process:
        return None
    if before.patches is not None and not before.grouped:  # the device is the mistake, and told
        return None
    what = f"{describe(before.moved_by)} stays in this process, and {describe(pipe)} after it is "
    what += "none that can follow: with workers the loader refuses the graph"
    return what, f"Put {chained_name(before.moved_by)}() at the end of the chain."


def planned_functions(sink: Pipe, split: Cut | NoCut) -> tuple[tuple[Pipe, str, str], ...]:
    """Find what no worker runs, though it may do what workers are for: functions, own pipes."""
    if isinstance(split, NoCut):
        return ()
    opened: set[int] = set()
    found = []
    volumes = any(traits_of(pipe).opens for pipe in walk(sink))
    for pipe in walk(split.planner):
        traits = traits_of(pipe)
        behind = any(id(parent) in opened for parent in parents_of(pipe))
        mute = bool(parents_of(pipe)) and not (declares_traits(pipe) or traits.main_process)
        works = traits.runs_user_code or mute
        # Before volumes are opened, and to choose among them, it has names and headers to look at.
        if works and (not volumes or (traits.per_item and behind)):
            what = f"{describe(pipe)} runs in the process of the loader, and in no worker"
            found.append((pipe, what, _TO_WORKERS))
        if behind or traits.opens:
            opened.add(id(pipe))
    return tuple(found)


_TO_WORKERS = (
    "Put what shuffles, filters or gathers for the first time before it, so that it runs with the "
    "batch; or put .sharding_filter() before it: then each worker runs the chain on its share."
)


def _early_prefetch(sink: Pipe, split: Cut | NoCut) -> tuple[tuple[Pipe, str, str], ...]:
    """Find what is to make items ahead where a batch is made as a whole."""
    made = () if isinstance(split, NoCut) else split.realizing
    working = [n for n, pipe in enumerate(made) if not _hands_on(pipe)]
    last = working[-1] if working else 0
    return tuple(
        (pipe, f"{describe(pipe)} is inside of what makes one batch, and makes nothing ahead", _END)
        for pipe in made[:last]
        if chained_name(pipe) == "prefetch"
    )


_END = "Put .prefetch() at the end of the chain, or leave it out: workers make batches ahead."


def _hands_on(pipe: Pipe) -> bool:
    return traits_of(pipe).watches or chained_name(pipe) == "prefetch"


def _stranded_functions(sink: Pipe, split: Cut | NoCut) -> tuple[tuple[Pipe, str, str], ...]:
    """Find the functions that workers would have to run and cannot be sent."""
    runs = tuple(walk(sink)) if isinstance(split, NoCut) else split.realizing
    return tuple(
        (pipe, f"{describe(pipe)} has a function that workers cannot import", _TOP)
        for pipe in runs
        if any(map(_is_local, _functions(vars(pipe).values())))
    )


_TOP = "Define it at the top of a module (functools.partial of that is fine); or use no workers."


def _functions(values: Any) -> Iterator[Any]:
    """Yield the functions among what a pipe was given; what lies deeper is data."""
    for value in values:
        if isinstance(value, (list, tuple)) and len(value) <= _FEW:
            yield from (one for one in value if callable(one))
        elif isinstance(value, dict) and len(value) <= _FEW:
            yield from (one for one in value.values() if callable(one))
        elif callable(value):
            yield value


# Longer ones are data, and none that a call was written with.
_FEW = 100


def _is_local(function: Any) -> bool:
    """Whether a function has no name under which another process finds it."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", "")
    return "<lambda>" in name or "<locals>" in name


CHECKS: dict[str, Check] = {"early-device": _early_device, "device-midway": _device_midway}
OF_GRAPHS: dict[str, GraphCheck] = {
    "planned-functions": planned_functions,
    "early-prefetch": _early_prefetch,
    "stranded-functions": _stranded_functions,
}
