"""Sources in memory: arrays, tensors, images of libraries, and parts of a volume.

A small array is pickled. A larger one is written to a temporary file at its first pickling, which
the other process maps and the original source owns. On Linux that file has no name, so a killed
process leaves none. The file is on disk, as in memory the voxels would take twice their size.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import sys
import tempfile
import uuid
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import Affine, Region
from ..core.errors import VolumeError, VolumeReadError
from ..core.locks import ForkSafeLock
from ..core.lru_cache import cached_property
from ..storage.content import array_key, quick_key
from ..storage.disk_cache import FAILING, get_or_make, results_folder, warn_unused
from .backend import (
    Backend,
    Channels,
    ViewBackend,
    as_array,
    only_in_torch,
    read_counted,
    readable,
    smallest_box,
)
from .formats.chunked_backend import plain_layout
from .formats.npy import map_npy
from .header import Header, affine_entries, array_header, channels_first
from .voxels import Voxels, index_ranges, plain

INLINE_BYTES = 8 * 1024
"""Half of the 16 kB of a pickled volume, to leave room for the header."""
HAS_NAMELESS = hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")
"""Whether files without a name exist; a killed process leaves a named one."""
SMALL_BYTES = 1024**2
"""Arrays of fewer bytes, digested in a millisecond, are digested in each process."""
_PLACES: weakref.WeakKeyDictionary[Any, tuple[int, str, int]] = weakref.WeakKeyDictionary()
_ORIGINALS: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_WRITING = ForkSafeLock()
# Weak: a file is closed with its last array.
_CURRENT: dict[bool, weakref.ref[_SharedFile]] = {}


class ArrayBackend(ViewBackend):
    """Voxels of a source in memory, here or in its file; one process digests them for all.

    Changed voxels get a source with another token in the next epoch.
    """

    _kept_of = ""
    is_own = False  # whether parts may share its memory: files of other processes are freed

    def __init__(self, array: NDArray[Any], header: Header, name: str, token: str) -> None:
        super().__init__(array, header, name)
        self._token = token

    def note(self) -> None:
        """Note a digest of the voxels, as a cache will keep results of them."""
        self._kept_of = self._kept_of or quick_key(self._view)

    @property
    def holds_what_is_kept(self) -> bool:
        """Whether voxels with cached results are unchanged; reads no others."""
        return not self._kept_of or quick_key(self._view) == self._kept_of

    @cached_property
    def content_key(self) -> str:
        """Digest of type, shape and every byte; workers share it through a file."""
        self.note()
        small = self._view.nbytes < SMALL_BYTES
        file = None if small else results_folder("digests") / f"{self._token}-{self._kept_of}"
        return get_or_make(file, _digest_of, lambda: array_key(self._view), str.encode)


class TensorBackend(ArrayBackend):
    """Voxels of a tensor on another device, or of a type of torch; a read converts its region."""

    def __init__(self, tensor: Any, header: Header, name: str, token: str) -> None:
        Backend.__init__(self, header, name)
        self.tensor, self._token = tensor, token

    @property
    def _view(self) -> NDArray[Any]:  # type: ignore[override]
        return plain(as_array(self.tensor))

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Return a copy of the region."""
        first, last = channels or (0, self.shape[0])
        array = plain(as_array(self.tensor[(slice(first, last), *region.slices)]))
        array.setflags(write=False)
        return Voxels(array)

    def to_tensor(self) -> Any:
        """Return a copy on the device."""
        return self.tensor.clone()


def _digest_of(content: bytes) -> str | None:
    return content.decode("ascii", "replace") or None


class SharedArraySource:
    """Temporary file with the voxels of a source in another process."""

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
    """Return the value of ``__reduce__`` for a source in memory, which owns the file.

    ``voxels`` returns the stored numbers (C, I, J, K); only the first call uses it.
    """
    remember(source)
    with _WRITING:
        owner, path, start = _PLACES.get(source, (0, "", 0))
        # A forked child writes its own file, as the parent's is removed with the parent's source.
        if owner != os.getpid():
            path, start = _write(voxels(), source)
            _PLACES[source] = (os.getpid(), path, start)
    place = path, start, source.token, source.name, header
    return arrive, (source.token, SharedArraySource, *place)


def arrive(token: str, kind: Callable[..., Any], *args: Any) -> Any:
    """Return the original source if this process has it, else ``kind(*args)``."""
    return original(token) or kind(*args)


def remember(source: Any) -> None:
    """Register ``source`` for copies that return to this process."""
    _ORIGINALS[source.token] = source


def original(token: str) -> Any:
    """Return the source with this token in this process, or None."""
    return _ORIGINALS.get(token)


class _SharedFile:
    """A temporary file without a name, removed by the kernel when the process ends.

    Arrays are appended, so that a thousand take one descriptor. Other processes open the file by
    the descriptor of this process.
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
        """Free the space of one array; disks that cannot do so free it with the file."""
        # A forked child has a copy of the owner, but does not own the voxels.
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
        # NumPy's error for a full disk has no errno.
        if error.errno not in FAILING and error.errno is not None:
            raise
        folder = Path(tempfile.gettempdir())
        warn_unused(folder, array.nbytes, "voxels in memory", error, None, "TMPDIR")
        file = _file(memory=True)
        try:
            start, stop = file.add(array)
        except OSError as refusal:
            msg = f"the {array.nbytes} bytes of voxels in memory cannot be handed to another "
            do = "Raise the limit of this process (ulimit -f), or save them to a file."
            raise VolumeReadError(f"{msg}process: {refusal.strerror or refusal}.", do=do) from None
    # The finalizer also holds the file, which is closed with its last array.
    weakref.finalize(owner, file.free, start, stop).atexit = False
    return file.path, start


def _file(*, memory: bool) -> _SharedFile:
    """Return the file of this process for arrays: on disk, or in memory if the disk is full."""
    reference = _CURRENT.get(memory)
    file = None if reference is None else reference()
    if file is None or file.owner != os.getpid():
        file = _SharedFile(memory)
        _CURRENT[memory] = weakref.ref(file)
    return file


def _remove(path: str, owner: int) -> None:
    # A forked child has a copy of the owner, but does not own the file.
    if os.getpid() == owner and os.path.exists(path):
        os.unlink(path)


class ArraySource:
    """An array or tensor (C, I, J, K) in this process that must not change during a pass."""

    def __init__(self, array: Any, header: Header, name: str, token: str = "") -> None:
        self.array = array
        self.name = name
        self.token = token or uuid.uuid4().hex
        kind = TensorBackend if hasattr(array, "detach") else ArrayBackend
        self.backend = kind(array, header, name, self.token)
        self.backend.is_own = True
        self._latest: ArraySource | None = None
        self._pass = ""

    def opened_anew(self, by: str) -> ArraySource:
        """Return the source for a pass: with a new token if the voxels have changed.

        Statistics, tables and copies are cached by token, and so are computed again.
        """
        latest = self._latest or self
        same_pass, self._pass = self._pass == by, by  # several cases may use one array
        if same_pass:
            return latest
        if not latest.backend.holds_what_is_kept:
            latest = self._latest = ArraySource(self.array, self.backend.header, self.name)
        return latest

    def open(self) -> Backend:
        """Return the backend."""
        return self.backend

    def __reduce__(self) -> tuple[Any, ...]:
        header = self.backend.header
        if self.array.nbytes > INLINE_BYTES:
            return share_array(self, header, lambda: as_array(self.array))
        remember(self)
        # The copy has the present voxels, so later changes must be detected.
        self.backend.note()
        # ``copy`` drops the rest of a larger array of which this is a view.
        inline = as_array(self.array).copy(), header, self.name, self.token
        return arrive, (self.token, ArraySource, *inline)


def from_array(
    array: Any, affine: tuple[float, ...], axes: str | None = None, *, is_image: bool = False
) -> ArraySource:
    """Return the source of a tensor or array of two to four axes; shares its memory.

    The axes of an image, which has its own affine, are x, y and z.
    """
    more: Any = {"tensor_dtype": only_in_torch(array), "names_axes": is_image or axes is not None}
    device = getattr(getattr(array, "device", "cpu"), "type", "cpu")
    if axes is None and hasattr(array, "detach") and (more["tensor_dtype"] or device != "cpu"):
        name = f"tensor {tuple(array.shape)} on {device}"
        tensor: Any = channels_first(readable(array), name)
        like = np.broadcast_to(as_array(tensor.new_zeros(())), tensor.shape)
        return ArraySource(tensor, array_header(like, affine, name, **more), name)
    values = as_array(array)
    name = f"array {tuple(values.shape)} {values.dtype.name}"
    if axes is not None:
        layout = plain_layout(values.shape, name, axes)
        values, more["times"] = layout.fold(values), layout.times
    values = channels_first(values, name)
    name = f"array {tuple(values.shape)} {values.dtype.name}"
    return ArraySource(values, array_header(values, affine, name, **more), name)


_LABEL_GROUP = re.compile(r"\.zarr/labels/[^/]+/?(?:$|/\d+/?$)")


def says_label(thing: Any) -> bool:
    """Whether an object is a label volume, a ``LabelMap`` of TorchIO, or a list of labels.

    So is the path of a label group of OME-Zarr, ``img.zarr/labels/nuclei``.

    Raise VolumeError for a list of labels and other volumes, as a volume has one kind.
    """
    if isinstance(thing, (str, os.PathLike)):
        return _LABEL_GROUP.search(os.fspath(thing)) is not None
    if isinstance(thing, np.ndarray):
        return False
    parts = thing if isinstance(thing, (list, tuple)) else (thing,)
    labels = [part for part in parts if _is_label(part)]
    if labels and len(labels) < len(parts):
        other = next(part for part in parts if not _is_label(part))
        what = f"a list mixes a label, {type(labels[0]).__name__}, with another volume, "
        do = 'Give it a kind, vp.Volume([...], kind="label") or "intensity", or a key for each.'
        raise VolumeError(f"{what}{type(other).__name__}; a volume has one kind", do=do)
    return bool(labels)


def _is_label(thing: Any) -> bool:
    is_volume = is_instance(thing, __package__, "Volume")
    return bool(thing.kind == "label") if is_volume else is_instance(thing, "torchio", "LabelMap")


def is_instance(thing: Any, module: str, *classes: str) -> bool:
    """Whether ``thing`` is of one of some classes; imports no module."""
    library = sys.modules.get(module)
    return isinstance(thing, tuple(getattr(library, c) for c in classes if hasattr(library, c)))


def select_to_memory(backend: Backend, item: Any, affine: Affine, name: str) -> ArraySource:
    """Return the voxels at an index as a source in memory, with the affine of that part."""
    ranges = index_ranges(item, backend.shape, name)
    channels, region, selection = smallest_box(ranges)
    voxels = read_counted(backend, region, channels)
    array = voxels.array[selection]
    array = array if getattr(backend, "is_own", False) else array.copy(order="K")
    if voxels.boolean:
        array = array.view(np.bool_)
    # Matrix from positions in the ranges to indices of the volume.
    steps = np.diag([*(float(r.step) for r in ranges[1:]), 1.0])
    steps[:3, 3] = [r.start for r in ranges[1:]]
    entries = affine_entries(affine @ steps, name)
    part = f"{name}[{', '.join(map(_range_text, ranges))}]"
    line = {"slope": voxels.slope, "intercept": voxels.intercept}
    torch_type = backend.header.tensor_dtype
    header = array_header(array, entries, part, tensor_dtype=torch_type, **line)
    return ArraySource(array, header, part)


def _range_text(r: range) -> str:
    step = "" if r.step == 1 else f":{r.step}"
    return f"{r[0]}:{r[-1] + (1 if r.step > 0 else -1)}{step}"
