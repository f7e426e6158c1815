"""A volume that is converted into the cache when it is first read, and read from there.

The rules are those of :mod:`.decoded_cache`, for folders. But a folder is opened again with every
read, so an entry in use must stay: whoever reads from it holds a shared lock on it, and only
entries that nobody holds are evicted.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import sys
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from ...core import OrientedBox, Region
from ...core.errors import (
    CacheBusy,
    CacheTooSmall,
    CorruptVolume,
    DestinationBusy,
    VolumeError,
    VoxpipeError,
)
from ...storage.content import content_key, opened_key
from ...storage.decoded_cache import (
    CONVERTED,
    LOCK_TIMEOUT,
    LOCKS,
    converted_entries,
    decoded_entries,
    make_room,
    size_of,
)
from ...storage.disk_cache import (
    BUDGET_VARIABLE,
    FAILING,
    SUMS,
    cache_budget,
    cache_directory,
    is_sound,
    make_directory,
    own_folder,
    seal,
    warn_unused,
)
from ...storage.locks import CLOSED, open_lock
from ...storage.ranges import LocalRanges, ReadRange
from ..backend import Backend, Channels
from ..formats.zarr_array import open_node
from ..formats.zarr_backend import ZarrBackend
from ..formats.zarr_nodes import image_of
from ..header import Header, affine_entries
from ..session import opening_session
from ..source import LocatedSource
from ..volume import Volume
from ..voxels import Voxels
from .convert import version_of, write_planned
from .convert_plan import ConvertPlan, plan_conversion
from .destination import LocalDestination

_SUFFIX = ".zarr"


@dataclass(frozen=True)
class ConvertedCache:
    """A directory of converted volumes."""

    directory: Path
    """Made when first needed."""
    budget: int
    """Most bytes that the entries may take together, with those of ``decoded``."""
    timeout: float = LOCK_TIMEOUT
    """Longest wait for another process that converts the same volume, in seconds."""
    decoded: Path | None = None
    """Directory of decoded volumes that share the budget, if there is one."""

    def __post_init__(self) -> None:
        # A folder of this user's own, in one that others may write to.
        object.__setattr__(self, "directory", own_folder(self.directory))

    def open(self, key: str, volume: Any, plan: ConvertPlan) -> tuple[Path, BinaryIO | None] | None:
        """Return the folder of an entry, and the file that keeps it there while it is open.

        There is no such file in a directory that may not be written to, where nothing is removed
        either. None, and a warning, where there is no entry and none can be written.
        """
        path = self.directory / f"{key}{_SUFFIX}"
        sums = self.directory / SUMS / key
        try:
            held = self._hold(key)
        except OSError as error:
            if error.errno not in FAILING | CLOSED:
                raise
            if is_sound(path, sums):
                return path, None
            self._warn(volume, plan, error)
            return None
        try:
            if not is_sound(path, sums):
                self._make(key, path, volume, plan)
            # The time of writing is the time of last use; a read-only directory keeps no order.
            with suppress(OSError):
                os.utime(path)
        except (OSError, VolumeError) as error:
            held.close()
            refusal = self._refusal(error)
            if refusal is None:
                raise
            self._warn(volume, plan, refusal)
            return None
        except BaseException:
            held.close()
            raise
        return path, held

    def _hold(self, key: str) -> BinaryIO:
        """Return the lock of an entry: while it is open nobody evicts it, there or not yet."""
        import fcntl

        make_directory(self.directory / LOCKS)
        held = open_lock(self.directory / LOCKS / key)
        fcntl.flock(held, fcntl.LOCK_SH)
        return held

    def _make(self, key: str, path: Path, volume: Any, plan: ConvertPlan) -> None:
        """Write an entry, unless another process does; what lies there unsound goes first."""
        # Find out early what the disk cannot hold.
        if shutil.disk_usage(self.directory).free < _bytes_of(plan) // _BEST_RATIO:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.directory))
        sums = self.directory / SUMS / key
        target = LocalDestination(path, sealed=lambda group: seal(group, sums))
        try:
            with target.locked(self.timeout):
                if is_sound(path, sums):
                    return
                _remove(path, self.directory / f".{key}.gone")
                try:
                    write_planned(volume, plan, target)
                except OSError as error:
                    if error.errno in FAILING | CLOSED:
                        target.drop()  # what it takes is needed for other things
                    raise
        except DestinationBusy as error:  # whoever asked for voxels does not write
            raise CacheBusy(error.what, do=error.do) from error
        size = size_of(path)
        if size > self.budget:
            shutil.rmtree(path)
            raise CacheTooSmall(
                f"{volume.name} converts to {size} bytes, and the cache at {self.directory} may "
                f"hold {self.budget}.",
                do=f"Raise {BUDGET_VARIABLE}, or point recache(directory=) to a larger disk.",
            )
        self._trim(keep=key)

    def _refusal(self, error: Exception) -> OSError | None:
        """Return what a full or closed disk said; None for an error of the volume that is read."""
        for each in (error, error.__cause__):
            # A voxpipe error may be an OSError, too: of what it wraps, the disk's word counts.
            if isinstance(each, OSError) and not isinstance(each, VoxpipeError):
                inside = str(each.filename or "").startswith(str(self.directory))
                refuses = each.errno in FAILING or (each.errno in CLOSED and inside)
                return each if refuses else None
        return None

    def _warn(self, volume: Any, plan: ConvertPlan, error: OSError) -> None:
        limit = None if self.budget == sys.maxsize else self.budget
        what = f"a copy of {volume.name}, before compression"
        warn_unused(self.directory, _bytes_of(plan), what, error, limit)

    def _trim(self, keep: str) -> None:
        """Remove the least recently used entries that nobody reads, until the budget is met."""
        held = list(converted_entries(self.directory, keep))
        if self.decoded is not None:
            held += decoded_entries(self.decoded)
        make_room(held, self.budget)


def _bytes_of(plan: ConvertPlan) -> int:
    return math.prod(plan.header.shape) * plan.dtype.itemsize


def _remove(path: Path, gone: Path) -> None:
    """Remove an entry that is not sound; renamed first, so that a kill leaves no half of it."""
    if not os.path.lexists(path):
        return
    shutil.rmtree(gone, ignore_errors=True)
    os.rename(path, gone)
    if gone.is_dir() and not gone.is_symlink():
        shutil.rmtree(gone, ignore_errors=True)
    else:
        gone.unlink()


# Compressed scans take a third to a half; less than a quarter of the voxels' bytes free means
# that the disk will be full.
_BEST_RATIO = 4


class RecachedSource:
    """The converted copy of a volume. It travels as the volume itself; copies are per machine."""

    def __init__(self, volume: Volume, chunk: int, codec: str, directory: str) -> None:
        self.volume = volume
        self.chunk, self.codec, self.directory = chunk, codec, directory
        self.name = volume.name
        self.rearranged = volume.rearranged
        self._token = ""

    @property
    def token(self) -> str:
        """Equal for equal copies of an original that is what it was; looks at its header."""
        if not self._token:
            how = ("recached", self.chunk, self.codec, self.directory)
            self._token = content_key(self.volume.token, (*how, opened_key(self.volume)))
        return self._token

    @property
    def located(self) -> LocatedSource | None:
        """Where the original is."""
        return self.volume.located

    @property
    def statistics(self) -> Any:
        """What a manifest says about the voxels, None if there is none."""
        return self.volume.recorded_statistics

    def plan(self) -> ConvertPlan:
        """Return how the copy lies in its chunks; looks at the header of the original alone."""
        affine = affine_entries(self.volume.affine, self.name)
        header = replace(self.volume.header, affine=affine)
        return plan_conversion(header, chunk=self.chunk, codec=self.codec)

    def known_header(self) -> Header:
        """Return the header of the copy, whether it is there or not."""
        return self.plan().result

    def opened_anew(self, by: str) -> RecachedSource:
        """Return the source for a pass: its original is opened anew, and names the copy."""
        volume = self.volume.opened_anew(by)
        return RecachedSource(volume, self.chunk, self.codec, self.directory)

    def open(self) -> Backend:
        """Open the copy; make it if this machine has none of the original as it is now."""
        plan = self.plan()
        key = content_key(version_of(self.volume), plan.fingerprint())
        # One budget for all that this machine keeps; a directory of its own has it to itself.
        shared = None if self.directory else cache_directory()
        folder = Path(self.directory) if shared is None else shared / CONVERTED
        cache = ConvertedCache(folder, cache_budget(), decoded=shared)
        return opened_copy(cache.open(key, self.volume, plan), key, self.volume, plan)


class ConvertedCopy(ZarrBackend):
    """A copy that is opened, and held: while it is open, nobody removes it."""

    def __init__(self, path: Path, held: Any, header: Header, name: str) -> None:
        # While the file is open, nobody evicts the copy; where nobody can, there is none.
        if held is not None:
            weakref.finalize(self, held.close)
        node = open_node(_Whole(str(path), name), name, opening_session().chunks, str(path))
        super().__init__(image_of(node, 0, name), name)
        if not self.header.agrees_with(header):
            raise CorruptVolume(
                f"the copy of {name} at {path} is not what was written there.",
                do="Open the volume again: the copy is made anew.",
            )
        self._path = str(path)

    @property
    def content_key(self) -> str:
        """The name of the copy, which is made of the content of the original."""
        return content_key(os.path.basename(self._path), ())


class Uncopied(Backend):
    """A volume of which no copy can be kept: read as it is, with the header of its copy."""

    counts_below = True
    culls = True

    def __init__(self, volume: Any, header: Header, content: str) -> None:
        self._volume, self._content = volume, content
        super().__init__(header, volume.name)

    def read(
        self, region: Region, channels: Channels | None = None, box: OrientedBox | None = None
    ) -> Voxels:
        """Return a region of the volume, in the type of the copy."""
        found = self._volume.read(region, box)
        boolean = self.header.dtype.kind == "b"  # which a read hands out as 0 and 1
        array = found.array[slice(*channels) if channels else slice(None)]
        if not boolean:
            array = array.astype(self.header.disk_dtype, copy=False)
        return Voxels(array, self.header.slope, self.header.intercept, boolean=boolean)

    @property
    def content_key(self) -> str:
        """That of the copy."""
        return self._content


def opened_copy(
    found: tuple[Path, Any] | None, key: str, volume: Any, plan: ConvertPlan
) -> Backend:
    """Return the backend of a copy that a cache has found or made; of the volume without one."""
    content = content_key(f"{key}.zarr", ())
    if found is None:
        return Uncopied(volume, plan.result, content)
    return ConvertedCopy(*found, plan.result, volume.name)


class _Whole(LocalRanges):
    """A folder in which no file may be missing.

    In zarr a chunk that is not there holds zeros. All chunks of a copy were written, so one
    that is not there was removed, by whoever cleans the disk, and must not be taken for zeros.
    """

    def __init__(self, root: str, name: str) -> None:
        super().__init__(root)
        self._volume = name

    def get_ranges(self, ranges: Sequence[ReadRange], most: int = 0) -> list[bytes | None]:
        """Return the bytes of each range."""
        found = super().get_ranges(ranges, most)
        for wanted, answer in zip(ranges, found, strict=True):
            if answer is None:
                raise CorruptVolume(
                    f"{wanted.object} of the copy of {self._volume} at {self.name} was removed.",
                    do="Open the volume again: the copy is made anew.",
                )
        return found


def recached(volume: Volume, chunk: int = 32, codec: str = "lz4", directory: str = "") -> Volume:
    """Return a volume with the same values, read from a sharded copy on the local disk.

    The copy is made at the first read, once per machine, and made anew when the original was
    written again. Nothing is done now. Voxels in memory, and zarr objects whose place nobody
    can tell, stay as they are.
    """
    if len(volume.parts) > 1:
        copies = [recached(part, chunk, codec, directory) for part in volume.parts]
        return Volume(copies, kind=volume.kind)
    if volume.located is None:
        return volume
    # The copy has the affine that the user gave, if any: it is written into it.
    return Volume.of_source(RecachedSource(volume, chunk, codec, directory), volume.kind)
