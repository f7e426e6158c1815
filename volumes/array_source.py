"""Voxels in memory as a source: arrays, tensors, images of libraries, and a part of a volume.

A small array travels inside the pickle. A larger one is written to a temporary file on its first
journey, owned by the original, which the other process maps. On Linux that file has no name, so
nothing is left of it when the process is killed. It is on disk and not in memory: voxels that are
in memory already would be there twice.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import tempfile
import uuid
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import Affine
from ..core.errors import SampleError, VolumeError, VolumeReadError
from ..core.locks import ForkSafeLock
from ..core.lru_cache import cached_property
from ..storage.content import array_key, quick_key
from ..storage.disk_cache import FAILING, cache_directory, get_or_make, warn_unused
from .backend import (
    Backend,
    ViewBackend,
    as_array,
    only_in_torch,
    placed_array,
    read_counted,
    smallest_box,
)
from .formats.chunked_backend import plain_layout
from .formats.npy import map_npy
from .header import IDENTITY, Header, affine_entries, array_header, channels_first
from .voxels import index_ranges

INLINE_BYTES = 8 * 1024
"""A pickled volume stays below 16 kB; half of that leaves room for the header."""
HAS_NAMELESS = sys.platform == "linux" and os.path.isdir("/proc/self/fd")
"""Elsewhere the file has a name, and stays if the process is killed."""
SMALL_BYTES = 1024**2
"""An array of fewer bytes is digested in a millisecond, by each process that asks."""
_PLACES: weakref.WeakKeyDictionary[Any, tuple[int, str, int]] = weakref.WeakKeyDictionary()
_ORIGINALS: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_WRITING = ForkSafeLock()
# Weak: it is closed when the last array in it is gone.
_CURRENT: dict[bool, weakref.ref[_SharedFile]] = {}


class ArrayBackend(ViewBackend):
    """Voxels of a source in memory, here or in its file: one process digests them for all.

    Those that were written to have a source with another token in the next epoch.
    """

    _kept_of = ""

    def __init__(self, array: NDArray[Any], header: Header, name: str, token: str) -> None:
        super().__init__(array, header, name)
        self._token = token

    def note(self) -> None:
        """Remember the voxels, as something is kept of them: statistics, a table, a copy."""
        self._kept_of = self._kept_of or quick_key(self._view)

    @property
    def holds_what_is_kept(self) -> bool:
        """Whether voxels of which something was kept are the same; looks at no others."""
        return not self._kept_of or quick_key(self._view) == self._kept_of

    @cached_property
    def content_key(self) -> str:
        """Type, shape and every byte, digested; workers find what one of them has worked out."""
        self.note()
        small = self._view.nbytes < SMALL_BYTES
        file = None if small else cache_directory() / "digests" / f"{self._token}-{self._kept_of}"
        return get_or_make(file, _digest_of, lambda: array_key(self._view), str.encode)


def _digest_of(content: bytes) -> str | None:
    return content.decode("ascii", "replace") or None


class SharedArraySource:
    """The temporary file of voxels that are in the memory of another process."""

    def __init__(self, path: str, start: int, token: str, name: str, header: Header) -> None:
        self.token, self.name = token, name
        self._place = path, start
        self._header = header

    def open(self) -> Backend:
        """Map the file."""
        path, start = self._place
        return ArrayBackend(map_npy(path, self.name, start), self._header, self.name, self.token)

    def __reduce__(self) -> tuple[Any, ...]:
        place = *self._place, self.token, self.name, self._header
        return arrive, (self.token, SharedArraySource, *place)


def share_array(source: Any, header: Header, voxels: Callable[[], NDArray[Any]]) -> tuple[Any, ...]:
    """Return what ``__reduce__`` of a source in memory returns, which owns the file.

    ``voxels`` returns the stored numbers (C, I, J, K); it is called the first time only.
    """
    remember(source)
    with _WRITING:
        owner, path, start = _PLACES.get(source, (0, "", 0))
        # A forked child writes a file of its own: the parent's goes with the parent's object.
        if owner != os.getpid():
            path, start = _write(voxels(), source)
            _PLACES[source] = (os.getpid(), path, start)
    place = path, start, source.token, source.name, header
    return arrive, (source.token, SharedArraySource, *place)


def arrive(token: str, kind: Callable[..., Any], *args: Any) -> Any:
    """Return the original if it lives in this process, else one of a kind."""
    return original(token) or kind(*args)


def remember(source: Any) -> None:
    """Let copies that come back to this process find ``source``."""
    _ORIGINALS[source.token] = source


def original(token: str) -> Any:
    """Return the living source of this token in this process, or None."""
    return _ORIGINALS.get(token)


class _SharedFile:
    """A temporary file without a name, which is gone with the process however that ends.

    Each array lies behind the others, so that a thousand take one descriptor. Other processes
    open it by the descriptor of this one.
    """

    def __init__(self, memory: bool) -> None:
        if memory:
            self._fd = os.memfd_create("voxpipe-voxels", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                self._fd = os.dup(file.fileno())
        self.owner = os.getpid()
        self.path = f"/proc/{self.owner}/fd/{self._fd}"
        self._end = 0
        weakref.finalize(self, os.close, self._fd).atexit = False

    def add(self, array: NDArray[Any]) -> tuple[int, int]:
        """Write one array; return where it starts and ends, in bytes."""
        start = -(-self._end // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        try:
            with os.fdopen(os.dup(self._fd), "r+b") as file:
                file.seek(start)
                np.save(file, array, allow_pickle=False)
                self._end = file.seek(0, os.SEEK_END)
        except OSError:
            os.ftruncate(self._fd, self._end)  # others need the room
            raise
        return start, self._end

    def free(self, start: int, stop: int) -> None:
        """Give the space of one array back; where the disk cannot, it goes with the file."""
        # A forked child holds a copy of the array's owner; the voxels are not its own.
        if os.getpid() == self.owner:
            with (
                contextlib.suppress(OSError),
                mmap.mmap(self._fd, stop - start, offset=start) as memory,
            ):
                memory.madvise(mmap.MADV_REMOVE)


def _write(array: NDArray[Any], owner: Any) -> tuple[str, int]:
    """Write an array that lives as long as ``owner``; return the file and where it starts."""
    if not HAS_NAMELESS:
        handle, path = tempfile.mkstemp(prefix="voxpipe-", suffix=".npy")
        weakref.finalize(owner, _remove, path, os.getpid())
        with os.fdopen(handle, "wb") as stream:
            np.save(stream, array, allow_pickle=False)
        return path, 0
    try:
        file = _file(memory=False)
        start, stop = file.add(array)
    except OSError as error:
        # NumPy tells of a full disk without its number.
        if error.errno not in FAILING and error.errno is not None:
            raise
        folder = Path(tempfile.gettempdir())
        warn_unused(folder, array.nbytes, "voxels in memory", error, None, "TMPDIR")
        file = _file(memory=True)
        try:
            start, stop = file.add(array)
        except OSError as refusal:
            raise VolumeReadError(
                f"the {array.nbytes} bytes of voxels in memory cannot be handed to another "
                f"process: {refusal.strerror or refusal}.",
                do="Raise the limit of this process (ulimit -f), or save them to a file.",
            ) from None
    # This also holds the file: with the last array it is closed.
    weakref.finalize(owner, file.free, start, stop).atexit = False
    return file.path, start


def _file(*, memory: bool) -> _SharedFile:
    """Return the file of this process to which arrays are added: on disk, or where that is full."""
    reference = _CURRENT.get(memory)
    file = None if reference is None else reference()
    if file is None or file.owner != os.getpid():
        file = _SharedFile(memory)
        _CURRENT[memory] = weakref.ref(file)
    return file


def _remove(path: str, owner: int) -> None:
    # A forked child holds a copy of the owner; the file is not its own.
    if os.getpid() == owner and os.path.exists(path):
        os.unlink(path)


class ArraySource:
    """An array (C, I, J, K) in this process. Its voxels must not change while a pass reads them."""

    def __init__(self, array: NDArray[Any], header: Header, name: str, token: str = "") -> None:
        self.array = array
        self.name = name
        self.token = token or uuid.uuid4().hex
        self.backend = ArrayBackend(array, header, name, self.token)
        self._latest: ArraySource | None = None
        self._pass = ""

    def opened_anew(self, by: str) -> ArraySource:
        """Return the source for a pass: of another token where voxels were written to meanwhile.

        Statistics, tables and copies are kept by the token, and so are made anew, all of them.
        """
        latest = self._latest or self
        same_pass, self._pass = self._pass == by, by  # several cases may show one array
        if same_pass:
            return latest
        if not latest.backend.holds_what_is_kept:
            latest = self._latest = ArraySource(self.array, self.backend.header, self.name)
        return latest

    def open(self) -> Backend:
        """Return the backend; nothing has to be opened."""
        return self.backend

    def __reduce__(self) -> tuple[Any, ...]:
        header = self.backend.header
        if self.array.nbytes > INLINE_BYTES:
            return share_array(self, header, lambda: self.array)
        remember(self)
        # It arrives with the values of this moment, where something may be kept of earlier ones.
        self.backend.note()
        # ``copy`` drops the rest of a larger array of which this is a view.
        inline = self.array.copy(), header, self.name, self.token
        return arrive, (self.token, ArraySource, *inline)


def from_array(
    array: Any, affine: tuple[float, ...], axes: str | None = None, *, is_image: bool = False
) -> ArraySource:
    """Return the source of a tensor or an array of two to four axes; memory is shared.

    The axes of an image, which has an affine of its own, are x, y and z.
    """
    values = as_array(array)
    name = f"array {tuple(values.shape)} {values.dtype.name}"
    if axes is not None:
        values = plain_layout(values.shape, name, axes).fold(values)
    values = channels_first(values, name)
    name = f"array {tuple(values.shape)} {values.dtype.name}"
    more: Any = {"tensor_dtype": only_in_torch(array), "names_axes": is_image or axes is not None}
    return ArraySource(values, array_header(values, affine, name, **more), name)


def says_label(thing: Any) -> bool:
    """Whether an object says that it is a label: a ``LabelMap`` of TorchIO, or a list of labels.

    VolumeError for a list of which only some are, as a volume has one kind.
    """
    if isinstance(thing, (str, np.ndarray)):
        return False
    parts = thing if isinstance(thing, (list, tuple)) else (thing,)
    labels = [one for one in parts if _is_label(one)]
    if labels and len(labels) < len(parts):
        other = next(one for one in parts if not _is_label(one))
        what = f"a list mixes a label, {type(labels[0]).__name__}, with another volume, "
        do = 'Give it a kind, vp.Volume([...], kind="label") or "intensity", or a key for each.'
        raise VolumeError(f"{what}{type(other).__name__}; a volume has one kind", do=do)
    return bool(labels)


def _is_label(thing: Any) -> bool:
    is_volume = is_instance(thing, __package__, "Volume")
    return bool(thing.kind == "label") if is_volume else is_instance(thing, "torchio", "LabelMap")


def is_instance(thing: Any, module: str, *classes: str) -> bool:
    """Whether ``thing`` is of a class whose module is, then, already imported."""
    library = sys.modules.get(module)
    return isinstance(thing, tuple(getattr(library, c) for c in classes if hasattr(library, c)))


def from_object(thing: Any, affine: tuple[float, ...] | None, axes: Any = None) -> ArraySource:
    """Return the source of an array, a tensor or an image, at its own affine or the given one."""
    values, own = placed_array(thing, has_affine=affine is not None)
    if own is not None and axes is not None:
        what = f"a {type(thing).__name__} has an affine along its own axes, and was given axes="
        raise SampleError(what, do="Leave axes= out, or give affine= of the axes x, y, z too.")
    return from_array(values, affine or own or IDENTITY, axes, is_image=own is not None)


def select_to_memory(backend: Backend, item: Any, affine: Affine, name: str) -> ArraySource:
    """Return what an index selects, as a source in memory; its affine is that of the part."""
    ranges = index_ranges(item, backend.shape, name)
    channels, region, selection = smallest_box(ranges)
    voxels = read_counted(backend, region, channels)
    array = voxels.array[selection].copy(order="K")
    if voxels.boolean:
        array = array.view(np.bool_)
    # From an index into the ranges to the index that stands there.
    steps = np.diag([*(float(r.step) for r in ranges[1:]), 1.0])
    steps[:3, 3] = [r.start for r in ranges[1:]]
    entries = affine_entries(affine @ steps, name)
    part = f"{name}[{', '.join(map(_range_text, ranges))}]"
    line = {"slope": voxels.slope, "intercept": voxels.intercept}
    torch_type = backend.header.tensor_dtype
    header = array_header(array, entries, part, tensor_dtype=torch_type, **line)
    return ArraySource(array, header, part)


def _range_text(r: range) -> str:
    """Return a range as the slice that a user would write."""
    step = "" if r.step == 1 else f":{r.step}"
    return f"{r[0]}:{r[-1] + (1 if r.step > 0 else -1)}{step}"
