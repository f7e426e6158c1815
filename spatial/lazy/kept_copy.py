"""The copy of a made volume that is kept: by which name, and how it gets there.

It is a sharded zarr v3, as ``convert`` writes it, in a folder or behind a URL. Whoever needs it
first writes it, shard by shard, while others wait; what a killed process has written is continued.
Its name is a digest of what was done to which content, so what changes gets another.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core import Region
from ...core.errors import CacheBusy, DestinationBusy, GraphError
from ...core.remembered import Remembered
from ...volumes.backend import Backend
from ...volumes.cache.decoded_cache import LOCK_TIMEOUT
from ...volumes.content import content_key
from ...volumes.conversion.convert import version_of, write_planned
from ...volumes.conversion.convert_plan import ConvertPlan, plan_conversion
from ...volumes.conversion.converted_cache import ConvertedCache
from ...volumes.conversion.destination import destination_of
from ...volumes.conversion.recached import ConvertedCopy
from ...volumes.header import Header
from ...volumes.scheme import ReadScheme, Refused, StoreLayout
from ...volumes.source import LocatedSource, Options
from ...volumes.stores.location import is_url, local_path
from ...volumes.volume import Volume
from ..volume_like import stored_of
from .pending import PendingPlan

if TYPE_CHECKING:
    from .lazy_patch import LazyPatch
    from .made_volume import MadeVolume

# Part of every name: higher when resampling gives other bits, so that nothing old is read.
_REVISION = 1
# Voxels in memory are looked at piece by piece: each is copied if it is not contiguous.
_PIECE_BYTES = 32 * 1024**2
_DIGESTS: Remembered[str] = Remembered()


class KeptCopy(Volume):
    """A volume that is written when it is first read, and known before."""

    @property
    def place(self) -> str:
        """The folder or URL in which it is kept, without credentials."""
        source: Any = self._source
        return destination_of(source.place, source.storage_options).name

    def layout(self, volumes: int = 1) -> StoreLayout:
        """Return how ``volumes`` copies like this one are stored, whether they are there or not."""
        source: Any = self._source
        plan, remote = source.plan(), is_url(source.place)
        return StoreLayout.of(plan.result, volumes, remote=remote, shard=plan.shard)

    def adjust(self, scheme: ReadScheme) -> ReadScheme | Refused:
        """Return the scheme: it is followed."""
        return scheme


@dataclass(frozen=True, eq=False)
class KeptSource:
    """The copy of a made volume. It travels as what it is made of."""

    made: MadeVolume
    """What is kept."""
    place: str = field(repr=False)
    """Folder, absolute, or URL, of all copies."""
    chunk: int | None = None
    """Voxels along each axis of the decode unit; None as usual."""
    codec: str = "lz4"
    """``"lz4"``, ``"zstd"`` or ``"none"``."""
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """For fsspec."""

    @property
    def name(self) -> str:
        """Path or URL of the stored volume."""
        return self.made.name

    @property
    def token(self) -> str:
        """Equal for equal sources, in every process."""
        # Before Python 3.12 a cached_property holds one lock for all copies meanwhile, and voxels
        # in memory are digested: two threads may each have what the other one waits for.
        found: str | None = self.__dict__.get("_token")
        if found is None:
            how = (self.place, self.chunk, self.codec)
            found = content_key(made_key(self.made, opened=True), how)
            self.__dict__["_token"] = found
        return found

    def plan(self) -> ConvertPlan:
        """Return how the copy lies in its chunks; looks at headers alone."""
        return plan_conversion(self.made.header, chunk=self.chunk, codec=self.codec)

    def known_header(self) -> Header:
        """Return the header of the copy, whether it is there or not."""
        return self.plan().result

    def open(self) -> Backend:
        """Open the copy; make it if there is none of the content as it is now."""
        refuse_drawn(self.made.patch)
        plan = self.plan()
        key = content_key(version_of(self.made), plan.fingerprint())
        if not is_url(self.place):
            # Without a limit of its own: a folder that somebody names is theirs.
            cache = ConvertedCache(Path(self.place), sys.maxsize)
            path, held = cache.open(key, self.made, plan)
            return ConvertedCopy(path, held, plan.result, self.name)
        url = f"{self.place.rstrip('/')}/{key}.nii.zarr"
        target = destination_of(url, self.storage_options)
        if (target.record() or {}).get("key") != key:
            try:
                with target.locked(LOCK_TIMEOUT):
                    write_planned(self.made, plan, target)
            except DestinationBusy as error:  # whoever asked for voxels does not write
                raise CacheBusy(error.what, do=error.do) from error
        return LocatedSource(url, Options(storage_options=self.storage_options)).open()

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def kept_in(
    patch: LazyPatch,
    place: str,
    *,
    because: str,
    chunk: int | None = None,
    codec: str = "lz4",
    storage_options: Mapping[str, Any] | None = None,
) -> LazyPatch:
    """Return a patch that begins with what this one gives, read from a copy that is kept.

    Parameters
    ----------
    patch
        Of a whole volume; nothing may have been drawn for it.
    place
        Folder or URL of the copies.
    because
        After what, for ``explain``.
    chunk, codec
        As for ``convert``.
    storage_options
        For fsspec.
    """
    if not is_url(place):
        place = os.path.abspath(local_path(place))  # a worker may run in another directory
    made: Any = patch.flushed(because=because, tiled=True).volume
    source = KeptSource(made, place, chunk, codec, dict(storage_options or {}))
    copy = KeptCopy.of_source(source, patch.kind)
    return patch.flushed(because=because, tiled=True, copy=copy)


def made_key(made: MadeVolume, *, opened: bool = False) -> str:
    """Return a digest of what a made volume holds: what it is made of, how, and what was drawn.

    Parameters
    ----------
    made
        The volume; headers are read.
    opened
        Whether content is told by what was opened in this process, which asks no disk. By
        default it is told by what is there now.
    """
    return _key_of(made.patch, (made.soft, made.tiled), opened)


def _key_of(patch: LazyPatch, made: tuple[bool, ...], opened: bool) -> str:
    content = _opened if opened else content_of
    values = [
        (
            _text_of(step.op),
            json.dumps(drawn),
            step.key,
            "" if step.mask is None else content(step.mask),
        )
        for step, drawn in patch.acting
    ]
    recorded = repr(getattr(stored_of(patch.volume), "recorded_statistics", None))
    how = (
        *(_REVISION, json.dumps(patch.plan.to_json()), repr(patch.policy), str(patch.dtype)),
        *(patch.kind, patch.filled_after, values, recorded if values else "", *made),
    )
    within: Any = patch.volume
    if patch.members:
        members = tuple(_key_of(member, (), opened) for member in patch.members)
        return content_key("members", (members, how))
    of = made_key(within, opened=opened) if hasattr(within, "patch") else content(within)
    return content_key(of, how)


def refuse_drawn(patch: LazyPatch) -> None:
    """Raise ``GraphError`` with the pipe that draws something for a patch, if one does."""
    for step in _drawn(patch):
        raise GraphError(
            f"{step.describe()} draws for each item and epoch, and what is kept is the same in all",
            do="Put it after cache(), and leave it out of what is converted.",
        ).at(step.origin)


def _drawn(patch: LazyPatch) -> Iterator[Any]:
    made = patch.volume
    for member in patch.members:
        yield from _drawn(member)
    if hasattr(made, "patch") and not patch.members:
        yield from _drawn(made.patch)
    pending: PendingPlan = patch.pending
    plan = pending.begun
    for step in pending.steps:
        seen = pending.whole(plan) if step.asks_stored else plan
        if step.is_drawn(seen):
            yield step
        plan = step.apply(plan, pending.draws[step.stream_name])
    yield from (step for step in patch.values if step.is_drawn)


def content_of(volume: Volume) -> str:
    """Return a digest of what a volume holds now; voxels in memory are read for it, once."""
    if len(volume.parts) > 1:
        return content_key("channels of", tuple(map(content_of, volume.parts)))
    if volume.located is not None:
        return version_of(volume)
    found = volume.content_key
    digest = found or _DIGESTS.get_or(volume.token, lambda: _digest(volume))
    return content_key(digest, (volume.rearranged, tuple(volume.affine.ravel().tolist())))


def _opened(volume: Volume) -> str:
    if len(volume.parts) > 1:
        return content_key("channels of", tuple(map(_opened, volume.parts)))
    if volume.located is None:
        return content_of(volume)
    return content_key(volume.token, (volume.header.stamp, volume.rearranged))


def _digest(volume: Volume) -> str:
    digest = hashlib.blake2b(repr((volume.shape, volume.disk_dtype)).encode(), digest_size=16)
    channels, length, *plane = volume.shape
    row = channels * int(np.prod(plane)) * volume.disk_dtype.itemsize
    step = max(1, _PIECE_BYTES // max(1, row))
    for first in range(0, length, step):
        stop = min(length, first + step)
        found = volume.read(Region((first, 0, 0), (stop, *plane)))
        digest.update(repr((found.slope, found.intercept)).encode())
        digest.update(np.ascontiguousarray(found.array).data)
    return digest.hexdigest()


def _text_of(value: Any) -> str:
    """Return an op as text, the same in every process; functions count by their code, too.

    Examples
    --------
    >>> _text_of((1.5, {"a": len}))
    "(1.5, {'a': builtins.len})"
    """
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_text_of, value))})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_text_of(entry)}' for key, entry in value.items())}}}"
    if isinstance(value, np.ndarray):
        content = hashlib.blake2b(np.ascontiguousarray(value).data, digest_size=16).hexdigest()
        return f"array{value.shape}{value.dtype}{content}"
    if isinstance(value, functools.partial):
        return f"partial{_text_of((value.func, value.args, value.keywords))}"
    fields = getattr(value, "__dataclass_fields__", None)
    if fields is not None and not isinstance(value, type):
        return type(value).__qualname__ + _text_of([getattr(value, name) for name in fields])
    if hasattr(value, "__qualname__"):
        held = (cell.cell_contents for cell in getattr(value, "__closure__", None) or ())
        parts = (getattr(value, "__defaults__", None), *held) if _is_own(value) else ()
        code = _code_of(value.__code__) + _text_of(parts) if _is_own(value) else ""
        return f"{value.__module__}.{value.__qualname__}{code}"
    return repr(value)


def _is_own(function: Any) -> bool:
    return hasattr(function, "__code__")


def _code_of(code: Any) -> str:
    inner = (_code_of(c) if hasattr(c, "co_code") else repr(c) for c in code.co_consts)
    return repr((code.co_code, code.co_names, *inner))
