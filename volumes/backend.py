"""Base class of backends, one per format, and the adapter of TorchIO backends."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..core import AS_READ, IO_COUNTERS, Affine, ChunkGrid, Grid, Region
from ..core.errors import (
    BadHeader,
    CorruptVolume,
    OutOfVolume,
    UnknownFormat,
    VolumeChanged,
    VolumeTooLarge,
    is_of_user,
    reader_error,
)
from ..core.lru_cache import cached_property
from ..core.memory import usable_memory
from ..storage.content import array_key, content_key
from .chunks.chunked_array import NeededChunks
from .header import Header, Triple, affine_entries, affine_matrix, refuse_unreadable
from .scheme import ReadScheme, SchemeRefusal, StoreLayout
from .voxels import Voxels, index_ranges, plain, touch

if TYPE_CHECKING:
    import torch

    from ..storage.read_ahead import Closable

Channels = tuple[int, int]
"""A half-open interval of channels."""


class Backend(ABC):
    """Open store: a header, and the voxels of regions. Subclass it for your own format.

    A format implements :meth:`read`. The class derives the rest from it, including TorchIO's
    contract: ``shape``, ``affine``, ``dtype``, ``backend[slices]``, ``to_tensor()``.
    A format may override:

    - :attr:`content_key` and :attr:`is_current`, for caches;
    - :meth:`layout` and :meth:`adjust`, for read schemes;
    - :meth:`fetch` and :meth:`touched_bytes`, for costs.

    A backend stays in its process; only a ``Volume`` is sent to others.

    Parameters
    ----------
    header
        Shape, affine, types, chunks and access: ``Header.of(shape, dtype, ...)``.
    name
        Name of the store in messages, without credentials. Empty for the name of the volume.

    Examples
    --------
    >>> class Ramp(Backend):
    ...     def __init__(self, request=None):
    ...         super().__init__(Header.of((1, 4, 5, 6), "int16", chunks=(4, 5, 1)), "a ramp")
    ...
    ...     def read(self, region, channels=None):  # the whole is (1, 4, 5, 6)
    ...         return Voxels(np.indices(self.shape, np.int16)[3][(slice(None), *region.slices)])
    >>> Ramp().chunks, Ramp().layout(volumes=3).volumes, Ramp()[:, 0, 0, -2:].flatten().tolist()
    ((4, 5, 1), 3, [4, 5])
    """

    resident_bytes: int = 0
    """Memory of this backend while open, without mapped files."""

    def __init__(self, header: Header, name: str = "") -> None:
        self.header = header
        self.name = name
        self.shape: tuple[int, int, int, int] = header.shape
        """(C, I, J, K)."""
        self.dtype: np.dtype[Any] = header.dtype
        """Type of values."""
        self.disk_dtype: np.dtype[Any] = header.disk_dtype
        """Type of stored numbers."""
        self.chunks: Triple | None = header.chunks
        """Spatial decode unit, if there is one."""
        self.access: str = header.access
        """``"view"``, ``"range"`` or ``"stream"``."""

    counts_below: bool = False
    """Whether inner backends count the reads."""
    counts_itself: bool = False
    """Whether :meth:`read` accepts ``counts=True`` and counts itself."""
    keeps_chunks: bool = False
    """Whether the chunk cache of the process keeps decoded chunks."""
    remote: bool = False
    """Whether the store is on a network."""
    looks_ahead: bool = True
    """Whether :meth:`prefetch` may be worth its planning."""

    levels: tuple[Affine, ...] = ()
    """Affines of coarser levels, finest first: 4x4, from their index to the own index."""

    @abstractmethod
    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Return the stored voxels of a spatial region inside the volume.

        Parameters
        ----------
        region
            Three axes (I, J, K), not empty. Values in chunks outside its ``box`` are undefined.
        channels
            First, and one past the last; None for all.

        Returns
        -------
        Voxels: (C, i, j, k) of :attr:`disk_dtype`, with the slope and intercept of the header.
        """

    channels_at_once: int = 1
    """Number of neighbouring channels in one chunk."""

    def prefetch(self, region: Region, channels: Channels | None = None) -> Closable | None:
        """Begin to fetch the stored bytes of a region; keep them until the ticket is closed.

        None if a read gains nothing from it.
        """
        return None

    @property
    def holds_descriptor(self) -> bool:
        """Whether it holds a local file open; by default, if it is not remote."""
        return not self.remote

    def layout(self, volumes: int = 1) -> StoreLayout:
        """Return the layout of ``volumes`` such volumes, from which a scheme is chosen."""
        return StoreLayout.of(self.header, volumes, remote=self.remote, shard=self.shards)

    def adjust(self, scheme: ReadScheme) -> ReadScheme | SchemeRefusal:
        """Return the scheme limited to this store's abilities, or the reason of a refusal.

        A store may reduce a scheme, and must not extend it.
        """
        if scheme.cache_bytes and not self.keeps_chunks:
            return SchemeRefusal(f"{self.name} is decoded by a reader that keeps no chunks")
        return scheme

    @property
    def shards(self) -> Triple | None:
        """Spatial extent of objects that hold chunks; None if each chunk is an object."""
        return None

    first_version: Any = None
    """Version of the local path at opening, for backends that check none themselves."""

    @property
    def is_current(self) -> bool:
        """Whether the store is unchanged since its opening."""
        return self.first_version is None or bool(self.first_version.is_current)

    @property
    def version(self) -> Hashable:
        """Version of the store at opening, the same in every process.

        Processes that read one volume in one epoch compare it. Unknown versions are equal.
        """
        return self.header.stamp or getattr(self.first_version, "stamp", ())

    def is_as_of(self, moment: int) -> bool:
        """Whether the store, and all objects that were read, are unchanged since ``moment``.

        Called after each patch, so it must take microseconds, without reads and requests.

        Parameters
        ----------
        moment
            First opening of the volume for this epoch, in any process, in nanoseconds since 1970
            (``time.time_ns()``).
        """
        first = self.first_version
        return self.is_current if first is None else bool(first.is_as_of(moment))

    @property
    def content_key(self) -> str:
        """Key of the stored content, the same in every process and run; empty for none.

        Caches keep statistics and tables of a pass over all voxels under it, on disk too. It must
        change with the content: derive it from version, size and time, or from a checksum.
        """
        return ""

    version_check: Callable[[], None] | None = None
    """Waits for the comparison with a manifest that began at opening; may raise ``StaleEntry``."""

    def check_version(self) -> None:
        """Raise ``StaleEntry`` if the store is not as in its manifest; called before reads."""
        if self.version_check is not None:
            self.version_check()

    lists: bool = False
    """Whether :attr:`content_key` depends on a listing, not only on the stamp in the header."""

    def forget_content_key(self) -> None:
        """Compute :attr:`content_key` anew at its next use."""
        return

    @cached_property
    def grid(self) -> Grid:
        """Spatial shape and affine."""
        header = self.header
        return Grid(header.shape[1:], affine_matrix(header.affine), AS_READ[not header.names_axes])

    @property
    def affine(self) -> Affine:
        """4x4 float64, voxel index to world millimetres, RAS+."""
        return affine_matrix(self.header.affine)

    def needed_chunks(
        self, region: Region, channels: Channels | None = None
    ) -> NeededChunks | None:
        """Return the chunks that a read needs; None for a store without chunks."""
        if self.header.chunks is None:
            return None
        return needed_of(self.header, region.pad(0), channels)  # without its box

    def touched_bytes(self, region: Region, channels: Channels | None = None) -> int:
        """Return the bytes of stored voxels that a read touches, in whole chunks."""
        chunks = None if self.chunks is None else self.needed_chunks(region, channels)
        first, last = channels or (0, self.shape[0])
        voxels = math.prod(region.shape) * (last - first) if chunks is None else chunks.voxels
        return voxels * self.disk_dtype.itemsize

    def fetch(self, region: Region, channels: Channels | None = None) -> int | None:
        """Fetch the stored bytes of a region without decoding; return their number.

        ``diagnose()`` measures stores by it. None if a format can only fetch and decode together.
        """
        return None

    def __getitem__(self, item: Any) -> torch.Tensor:
        """Return values as a 4-D tensor; integers keep their axis."""
        self.check_version()
        channels, region, selection = smallest_box(index_ranges(item, self.shape, self.name))
        voxels, is_boolean = self.read(region, channels), self.header.dtype.kind == "b"
        part = replace(voxels, array=voxels.array[selection], boolean=is_boolean)
        return as_tensor(part.values(), self.header.tensor_dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        values = read_counted(self, Region.of_shape(self.shape[1:])).values()
        # NumPy 1 knows no ``copy=None``.
        return np.asarray(values, dtype) if copy is None else np.array(values, dtype, copy=copy)

    def to_tensor(self) -> torch.Tensor:
        """Return the values of the whole volume."""
        whole = read_counted(self, Region.of_shape(self.shape[1:]))
        return as_tensor(whole.values(), self.header.tensor_dtype)


def read_counted(backend: Backend, region: Region, channels: Channels | None = None) -> Voxels:
    """Return the voxels of a region; check and count the read."""
    first, last = channels or (0, backend.shape[0])
    shape = (last - first, *region.shape)
    fits = len(region.start) == 3 and all(map(operator.le, region.stop, backend.shape[1:]))
    if not fits or min(region.start) < 0:
        check_inside(region, backend.shape, backend.name)
    size = math.prod(shape) * backend.disk_dtype.itemsize
    if not size:
        empty = np.empty(shape, backend.disk_dtype)
        return Voxels(empty, backend.header.slope, backend.header.intercept)
    # A wrong header may claim any size. A view takes no memory before its use.
    if backend.access != "view" and 0 < usable_memory() < size:
        msg = f"{region} of {backend.name}, of shape {backend.shape}, takes {size} bytes, and this "
        do = "Read smaller regions, or check the header."
        raise VolumeTooLarge(f"{msg}process may use {usable_memory()}.", do=do)
    if backend.counts_below:
        return backend.read(region, channels)
    if backend.version_check is not None:
        backend.version_check()
    try:
        if backend.counts_itself:
            voxels = backend.read(region, channels, counts=True)  # type: ignore[call-arg]
        else:
            IO_COUNTERS.count(reads=1, bytes_read=backend.touched_bytes(region, channels))
            voxels = backend.read(region, channels)
    except CorruptVolume as error:
        if isinstance(error, VolumeChanged) or backend.is_current:
            raise
        # The advice of the read is for the old file.
        msg = f"{backend.name} was written again since it was opened: {error.message}"
        raise VolumeChanged(msg) from error
    except Exception as error:
        kind = type(getattr(backend, "_backend", backend))
        raise reader_error(error, kind, "reading", backend.name)  # noqa: B904  it has its cause
    # Check user backends: the kernel would read past a short array.
    if not isinstance(voxels, Voxels) or voxels.array.shape != shape:
        part = (
            f"shape {voxels.array.shape}" if isinstance(voxels, Voxels) else type(voxels).__name__
        )
        msg = f"the backend {type(backend).__name__} of {backend.name} returned {part} for "
        do = "Return Voxels of (C, i, j, k) from read(), with every axis."
        raise BadHeader(f"{msg}{shape[0]} channels of {region}.", do=do)
    if backend.header.dtype.kind == "b":
        return replace(voxels, array=plain(voxels.array), boolean=True)
    return voxels


def check_inside(region: Region, shape: tuple[int, ...], name: str) -> None:
    """Raise ``OutOfVolume`` if a region is not inside a volume."""
    if len(region.start) != len(shape) - 1 or not (
        region.is_empty
        or (min(region.start) >= 0 and all(map(operator.le, region.stop, shape[1:])))
    ):
        msg = f"{region} is not inside {name}, of shape {shape}."
        raise OutOfVolume(msg, do="Intersect it with the volume first.")


def needed_of(
    header: Header, region: Region, channels: Channels | None = None
) -> NeededChunks | None:
    """Return the chunks of a read by a header alone: each holds all requested channels."""
    if header.chunks is None:
        return None
    cuts = ChunkGrid(header.shape[1:], header.chunks)
    first, last = channels or (0, header.shape[0])
    chunks = cuts.touched_parts(region)
    size = math.prod(header.chunks) * (last - first) * header.disk_dtype.itemsize
    return NeededChunks(chunks, cuts.voxels(chunks) * (last - first), size)


class ViewBackend(Backend):
    """Backend of one array, in memory or mapped: a region is a view."""

    looks_ahead = False

    def __init__(self, view: NDArray[Any], header: Header, name: str = "") -> None:
        super().__init__(header, name)
        self._view = plain(view).view()
        # Reads return this memory, which callers must not change.
        self._view.setflags(write=False)

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Return a view."""
        first, last = channels or (0, self.shape[0])
        view = self._view[(slice(first, last), *region.slices)]
        return Voxels(view, self.header.slope, self.header.intercept)

    @cached_property
    def content_key(self) -> str:
        """Digest of type, shape and bytes, computed at its first use."""
        return array_key(self._view)

    def fetch(self, region: Region, channels: Channels | None = None) -> int:
        """Touch every page of the region."""
        return touch(self.read(region, channels).array)


def smallest_box(ranges: tuple[range, ...]) -> tuple[Channels, Region, tuple[slice, ...]]:
    """Return the smallest box around four ranges, and the ranges as an index of that box.

    Examples
    --------
    >>> smallest_box((range(1), range(8, 2, -2), range(3), range(4)))[1:]
    (Region(4:9, 0:3, 0:4), (slice(0, 1, 1), slice(4, None, -2), slice(0, 3, 1), slice(0, 4, 1)))
    """
    low = [min(r[0], r[-1]) for r in ranges]
    high = [max(r[0], r[-1]) + 1 for r in ranges]
    selection = tuple(
        slice(r[0] - a, None if r.step < 0 else b - a, r.step)
        for r, a, b in zip(ranges, low, high, strict=True)
    )
    return (low[0], high[0]), Region(tuple(low[1:]), tuple(high[1:])), selection


def as_tensor(values: NDArray[Any], tensor_dtype: str = "") -> torch.Tensor:
    """Return values as a contiguous tensor that owns its memory.

    ``tensor_dtype`` names another type, which only torch has.
    """
    import torch

    own = values if values.flags.owndata and values.flags.writeable else values.copy()
    tensor = torch.from_numpy(np.ascontiguousarray(own, dtype=own.dtype.newbyteorder("=")))
    return tensor.to(getattr(torch, tensor_dtype)) if tensor_dtype else tensor


class ForeignBackend(Backend):
    """Adapter of a backend with TorchIO's contract alone, read through ``backend[slices]``.

    Its ``dtype`` is that of the file. One voxel is read at opening, for the type of its values.
    """

    def __init__(self, backend: Any, name: str) -> None:
        self._backend = backend
        self._content: str | None = None
        shape = tuple(int(n) for n in backend.shape)
        if len(shape) != 4 or min(shape) < 1:
            msg = f"the backend {type(backend).__name__} of {name} has shape {shape}."
            raise BadHeader(msg, do="Give it a shape (C, I, J, K) of positive numbers.")
        first = as_array(backend[(slice(0, 1),) * 4])
        try:
            disk_dtype = np.dtype(backend.dtype)
        except TypeError:  # some give a torch.dtype
            disk_dtype = first.dtype
        refuse_unreadable(first.dtype, name)
        affine = affine_entries(as_array(backend.affine), name)
        header = Header(
            shape, affine, disk_dtype, access="range", value_type=first.dtype.newbyteorder("=")
        )
        super().__init__(header, name)

    lists = True

    @property
    def content_key(self) -> str:
        """Key from the backend's own ``content_key``, read once; empty without one."""
        if self._content is None:
            key = str(getattr(self._backend, "content_key", None) or "")
            self._content = _digest_of(self._backend, key) if key else ""
        return self._content

    def forget_content_key(self) -> None:
        """Read the key again at its next use."""
        self._content = None

    def adjust(self, scheme: ReadScheme) -> ReadScheme | SchemeRefusal:
        """Return the answer of the backend's own ``adjust``, if it has one."""
        own = getattr(self._backend, "adjust", None)
        answer: ReadScheme | SchemeRefusal = super().adjust(scheme) if own is None else own(scheme)
        return answer

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Return the backend's values of the region."""
        first, last = channels or (0, self.shape[0])
        return Voxels(plain(as_array(self._backend[(slice(first, last), *region.slices)])))


def content_of(backend: Backend) -> str:
    """Return the content key of a backend for caches, valid as a file name; empty for none.

    The keys of user classes are digested with the class name, because two may use equal keys.
    """
    key = str(backend.content_key or "")
    return _digest_of(backend, key) if key and is_of_user(type(backend)) else key


def _digest_of(backend: Any, key: str) -> str:
    kind = type(backend)
    return content_key(f"{kind.__module__}.{kind.__qualname__}", (key,))


# Flags of tensors that NumPy cannot read, and the call that returns plain numbers.
_TO_NUMBERS = {
    "is_meta": "the tensor that holds the voxels: one on the device meta has a shape alone",
    "is_nested": "its parts one by one: tensor.unbind()",
    "is_quantized": "tensor.dequantize()",
}


def as_array(values: Any) -> NDArray[Any]:
    """Return a tensor or an array as an array, in the same memory if possible.

    Raise ``UnknownFormat`` for packed or quantized numbers and for masked voxels.
    """
    if np.ma.is_masked(values):
        msg = "a masked array has voxels without a value, which a volume does not have."
        raise UnknownFormat(msg, do="Choose their value: array.filled(0), say.")
    if not hasattr(values, "detach"):
        return np.asarray(values)
    tensor = readable(values).cpu()
    # NumPy lacks these types; float32 or complex64 holds each of their values.
    if only_in_torch(values):
        tensor = tensor.float() if tensor.is_floating_point() else tensor.cfloat()
    try:
        return np.asarray(tensor.numpy())
    except (TypeError, RuntimeError):
        msg = f"a tensor of {values.dtype} holds no plain numbers."
        do = "Convert it first: tensor.float(), or tensor.dequantize()."
        raise UnknownFormat(msg, do=do) from None


def readable(values: Any) -> Any:
    """Return a tensor without gradient, on its device; refuse packed or quantized numbers."""
    for flag, call in _TO_NUMBERS.items():
        if getattr(values, flag, False):
            raise UnknownFormat(f"a tensor with {flag} holds no plain numbers.", do=f"Give {call}.")
    if str(getattr(values, "layout", "torch.strided")) != "torch.strided":
        msg = f"a tensor of the layout {values.layout} does not store each voxel."
        raise UnknownFormat(msg, do="Give tensor.to_dense().")
    return values.detach().resolve_conj().resolve_neg()


# Attributes and keys of other libraries that hold parts of an affine.
_GEOMETRY = ("spacing", "origin", "direction", "sampling", "itk_base")


def placed_array(thing: Any, *, has_affine: bool = False) -> tuple[Any, tuple[float, ...] | None]:
    """Return the voxels of an array or a tensor, and its affine or None.

    Reads the affine of MONAI's ``MetaTensor``, of images of TorchIO, and of other objects with an
    ``affine``. Other geometries raise ``UnknownFormat``, unless the user ``has_affine``.
    """
    meta, name = getattr(thing, "meta", None), type(thing).__name__
    if hasattr(thing, "pending_operations"):
        return _of_metatensor(thing, meta or {}, has_affine)
    own = getattr(thing, "affine", None)
    if own is not None:
        # An image of TorchIO is not an array, but holds one.
        array = thing if hasattr(thing, "ndim") else thing.data
        return array, None if has_affine else affine_entries(as_array(own), f"a {name}")
    keys = {key for key in _GEOMETRY if hasattr(thing, key)} | {*(meta or ())} & {*_GEOMETRY}
    if keys and not has_affine:
        msg = f"a {name} has a geometry that is not read: {', '.join(sorted(keys))}."
        raise UnknownFormat(msg, do="Pass ⟦affine=⟧ to place the voxels.")
    return thing, None


def _of_metatensor(
    tensor: Any, meta: Mapping[str, Any], has_affine: bool
) -> tuple[Any, tuple[float, ...] | None]:
    what, shape = f"a MetaTensor of shape {tuple(tensor.shape)}", tuple(tensor.shape)
    if tensor.is_batch or len(shape) > 4:
        raise UnknownFormat(f"{what} is a batch.", do="Give one item of it, such as batch[0].")
    if tensor.pending_operations:
        do = "Apply them first: monai.transforms.lazy.functional.apply_pending(tensor)[0]."
        raise UnknownFormat(f"{what} has pending operations, which are not applied.", do=do)
    plain = tensor.as_tensor()
    if has_affine:
        return plain, None
    space = str(getattr(meta.get("space"), "value", meta.get("space") or "RAS"))
    if space not in ("RAS", "LPS"):
        do = "Pass ⟦affine=⟧ to place the voxels, RAS+."
        raise UnknownFormat(f"{what} has an affine in the space {space!r}.", do=do)
    spatial = tuple(int(n) for n in meta.get("spatial_shape", ()))
    if len(shape) == 3 and shape[1:] == spatial:
        plain = plain[..., None]
    elif len(shape) == 3 and shape != spatial:  # MONAI puts channels first
        do = "Write tensor[None] for (I, J, K), tensor[..., None] for (C, I, J)."
        raise UnknownFormat(f"{what} has a channel axis or none, and does not say which.", do=do)
    if len(shape) == 4 and shape[:3] == spatial != shape[1:]:
        do = "Bring them to the front: monai.transforms.EnsureChannelFirst()(tensor)."
        raise UnknownFormat(f"{what} has its channels last.", do=do)
    affine = as_array(tensor.affine).astype(np.float64)
    if affine.shape == (3, 3):  # a 2-D image
        rows = np.insert(affine, 2, 0, axis=0)
        affine = np.insert(rows, 2, (0, 0, 1, 0), axis=1)
    entries = affine_entries(affine, what)
    if space == "LPS":
        entries = affine_entries(np.diag([-1.0, -1, 1, 1]) @ affine_matrix(entries), what)
    return plain, entries


def only_in_torch(values: Any) -> str:
    """Return the name of a tensor's type if NumPy lacks it, such as ``bfloat16``; else empty.

    Examples
    --------
    >>> import torch
    >>> only_in_torch(torch.zeros(1, dtype=torch.bfloat16)), only_in_torch(torch.zeros(1))
    ('bfloat16', '')
    """
    name = str(getattr(values, "dtype", "")).removeprefix("torch.")
    return name if name.startswith(("bfloat", "float8", "complex32")) else ""
