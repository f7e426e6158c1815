"""Digest of a virtual volume: its source content, its ops, and the parameters they drew.

Kept copies are named by this digest, so that a changed volume gets a new name.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from ...core import Region
from ...core.errors import GraphError
from ...core.lru_cache import LRUCache
from ...storage.content import behaviour_digest, content_key, opened_key
from ...volumes import Volume
from ...volumes.conversion.convert import version_of

# Part of every name: higher when resampling gives other bits, so that nothing old is read.
_REVISION = 1
# Voxels in memory are hashed in pieces: a non-contiguous piece is copied.
_PIECE_BYTES = 32 * 1024**2
_DIGESTS: LRUCache[str] = LRUCache()


def digest_of_made(volume: Any, *, at_open: bool = False) -> str:
    """Return a digest of a virtual volume: its source, its ops, and their draws."""
    # ``at_open`` uses the content as opened; the default checks the files again. Reads headers.
    return _key_of(volume.patch, (volume.soft, volume.is_tiled), at_open)


def _key_of(patch: Any, flags: tuple[bool, ...], at_open: bool) -> str:
    content = functools.partial(_content_of, at_open=at_open)
    values = [
        (
            _digest_of_step(step),
            json.dumps(params),
            # The key counts only if a step draws by it or has it in its parameters.
            step.key if step.is_drawn or '"key"' in json.dumps(params) else "",
            "" if step.mask is None else content(step.mask),
        )
        for step, params in patch.acting
    ]
    statistics = repr(
        getattr(getattr(patch.volume, "stored_volume", patch.volume), "recorded_statistics", None)
    )
    how = (
        *(_REVISION, json.dumps(patch.plan.to_json()), repr(patch.policy), str(patch.dtype)),
        *(patch.kind, patch.filled_after, values, statistics if values else "", *flags),
    )
    within = patch.volume
    if patch.members:
        members = tuple(_key_of(member, (), at_open) for member in patch.members)
        return content_key("members", (members, how))
    is_made = getattr(within, "access", "") == "made"
    of = digest_of_made(within, at_open=at_open) if is_made else content(within)
    return content_key(of, how)


def refuse_drawn(patch: Any) -> None:
    """Raise ``GraphError`` with the pipe that draws something for a patch, if one does."""
    for step in _digest_draws(patch):
        raise GraphError(
            f"{step.describe()} draws for each item and epoch, and what is kept is the same in all",
            do="Put it after cache(), and leave it out of what is converted.",
        ).at(step.origin)


def _digest_draws(patch: Any) -> Iterator[Any]:
    volume = patch.volume
    for member in patch.members:
        yield from _digest_draws(member)
    if getattr(volume, "access", "") == "made" and not patch.members:
        yield from _digest_draws(volume.patch)
    pending = patch.pending
    plan = pending.first_plan
    for step in pending.steps:
        step_plan = pending.through_flushes(plan) if step.looks_at_stored else plan
        if step.is_drawn(step_plan):
            yield step
        plan = step.apply(plan, pending.draws[step.stream_name])
    yield from (step for step in patch.values if step.is_drawn)


def _content_of(volume: Volume, at_open: bool) -> str:
    """Return a digest of a volume's content; voxels in memory are read once."""
    if len(volume.parts) > 1:
        parts = tuple(_content_of(part, at_open) for part in volume.parts)
        return content_key("channels of", parts)
    if volume.located_source is not None:
        if at_open:
            return content_key(volume.token, (opened_key(volume), volume.axis_map_key))
        return version_of(volume)
    key = volume.content_key
    digest = key or _DIGESTS.get_or(volume.token, lambda: _digest(volume))
    return content_key(digest, (volume.axis_map_key, tuple(volume.affine.ravel().tolist())))


def _digest(volume: Volume) -> str:
    digest = hashlib.blake2b(repr((volume.shape, volume.disk_dtype)).encode(), digest_size=16)
    channels, length, *plane = volume.shape
    row = channels * int(np.prod(plane)) * volume.disk_dtype.itemsize
    step = max(1, _PIECE_BYTES // max(1, row))
    for first in range(0, length, step):
        stop = min(length, first + step)
        voxels = volume.read(Region((first, 0, 0), (stop, *plane)))
        digest.update(repr((voxels.slope, voxels.intercept)).encode())
        digest.update(np.ascontiguousarray(voxels.array).data)
    return digest.hexdigest()


def _digest_of_step(step: Any) -> str:
    """Return a digest of how an op computes: its settings, and the code of functions in these."""
    op = step.op
    own = [getattr(op, field.name) for field in fields(op)] if is_dataclass(op) else [op]
    digest = behaviour_digest(type(op).__qualname__, *own)
    if not digest:
        raise GraphError(
            f"the copy after {step.describe()} has no name: it computes with a handle, a lock "
            "or a compiled object, or reads files, arguments or the environment",
            do="Give a function at the top of a module, a partial or a dataclass that computes "
            "with its arguments alone.",
        ).at(step.origin)
    return digest
