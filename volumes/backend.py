"""The base class of backends, one per format, and the adapter for those written for TorchIO."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..core import IO_COUNTERS, Affine, ChunkGrid, Grid, Region
from ..core.errors import (
    BadHeader,
    CorruptVolume,
    OutOfVolume,
    SampleError,
    UnknownFormat,
    VolumeChanged,
    VolumeTooLarge,
)
from ..core.lru_cache import cached_property
from ..core.memory import usable_memory
from ..storage.content import array_key, content_key
from .chunks.chunked_array import NeededChunks
from .header import Header, Triple, affine_entries, affine_matrix
from .scheme import ReadScheme, SchemeRefusal, StoreLayout
from .voxels import Voxels, index_ranges, plain, refuse_unreadable, touch

if TYPE_CHECKING:
    import torch

    from ..storage.read_ahead import Closable

Channels = tuple[int, int]
"""A half-open interval of channels."""


class Backend(ABC):
    """One opened store: a header, and the voxels of a region. Subclass it for one of your own.

    A format implements :meth:`read`. Everything else follows, TorchIO's contract
    (``shape``, ``affine``, ``dtype``, ``backend[slices]``, ``to_tensor()``) included, and may be
    overridden where a store knows more: :attr:`content_key` and :attr:`is_current` for what is
    kept of a volume, :meth:`layout` and :meth:`adjust` for how it is read, :meth:`fetch` and
    :meth:`touched_bytes` for what that costs.
    Backends live in one process and never travel; a ``Volume`` does.

    Parameters
    ----------
    header
        Shape, affine, types, chunks and access: ``Header.of(shape, dtype, ...)``.
    name
        What messages call the store; no credentials. Empty for the volume's own name.

    Examples
    --------
    >>> class Ramp(Backend):
    ...     def __init__(self, request=None):
    ...         super().__init__(Header.of((1, 4, 5, 6), "int16", chunks=(4, 5, 1)), "a ramp")
    ...
    ...     def read(self, region, channels=None):  # of the whole: (1, 4, 5, 6)
    ...         return Voxels(np.indices(self.shape, np.int16)[3][(slice(None), *region.slices)])
    >>> Ramp().chunks, Ramp().layout(volumes=3).volumes, Ramp()[:, 0, 0, -2:].flatten().tolist()
    ((4, 5, 1), 3, [4, 5])
    """

    resident_bytes: int = 0
    """Memory that keeping this backend open costs, mapped files not counted."""

    def __init__(self, header: Header, name: str = "") -> None:
        self.header = header
        self.name = name
        self.shape: tuple[int, int, int, int] = header.shape
        """(C, I, J, K)."""
        self.dtype: np.dtype[Any] = header.dtype
        """Type of the values that reads return."""
        self.disk_dtype: np.dtype[Any] = header.disk_dtype
        """Type of the numbers as stored."""
        self.chunks: Triple | None = header.chunks
        """Spatial decode unit, None where there is none."""
        self.access: str = header.access
        """``"view"``, ``"range"`` or ``"stream"``."""

    counts_below: bool = False
    """Whether reads are entered in the tally by the backends that this one reads from."""
    counts_itself: bool = False
    """Whether :meth:`read` takes ``counts=True``, and enters itself in the tally."""
    keeps_chunks: bool = False
    """Whether decoded chunks go into the cache of the process."""
    remote: bool = False
    """Whether the store is reached through a network."""
    looks_ahead: bool = True
    """Whether it may be worth working out what a read needs, and calling :meth:`prefetch`."""

    levels: tuple[Affine, ...] = ()
    """Where coarser levels of the image lie, the next one first: 4x4, their index to the own."""

    @abstractmethod
    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Return the stored voxels of a spatial region that lies inside the volume.

        Parameters
        ----------
        region
            Three axes (I, J, K), not empty. In chunks beside its ``box`` anything may be returned.
        channels
            First, and one past the last; None for all.

        Returns
        -------
        Voxels: (C, i, j, k) of :attr:`disk_dtype`, with the slope and intercept of the header.
        """

    channels_at_once: int = 1
    """How many neighbouring channels lie in one chunk, and are decoded together."""

    def prefetch(self, region: Region, channels: Channels | None = None) -> Closable | None:
        """Begin to bring in the stored bytes of a region that is going to be read.

        They wait until the ticket is closed. None where nothing is gained by it.
        """
        return None

    @property
    def holds_descriptor(self) -> bool:
        """Whether it keeps a local file open, as it does whose voxels are not behind a URL."""
        return not self.remote

    def layout(self, volumes: int = 1) -> StoreLayout:
        """Return what a scheme needs to know of ``volumes`` volumes like this one."""
        return StoreLayout.of(self.header, volumes, remote=self.remote, shard=self.shards)

    def adjust(self, scheme: ReadScheme) -> ReadScheme | SchemeRefusal:
        """Return the scheme as this store can follow it, or why it cannot at all.

        A store may ask for less than it is given, not for more.
        """
        if scheme.cache_bytes and not self.keeps_chunks:
            return SchemeRefusal(f"{self.name} is decoded by a reader that keeps no chunks")
        return scheme

    @property
    def shards(self) -> Triple | None:
        """Spatial extent of the objects that hold chunks; None where each is an object."""
        return None

    first_version: Any = None
    """The version of the local path that was opened, for a backend that looks at none itself."""

    @property
    def is_current(self) -> bool:
        """Whether the store is still the one that was opened."""
        return self.first_version is None or bool(self.first_version.is_current)

    @property
    def version(self) -> Hashable:
        """What tells the version that was opened from others, the same in every process.

        Compared between processes that read one volume in one epoch; equal where nobody can tell.
        """
        return self.header.stamp or getattr(self.first_version, "stamp", ())

    def is_as_of(self, moment: int) -> bool:
        """Whether the store is the one that was opened, and nothing read was written since.

        Asked after each patch, so it has to take microseconds: no voxel is read for it, and no
        request sent.

        Parameters
        ----------
        moment
            When the volume was opened for this epoch, in whichever process, in nanoseconds since
            1970 (``time.time_ns()``).
        """
        first = self.first_version
        return self.is_current if first is None else bool(first.is_as_of(moment))

    @property
    def content_key(self) -> str:
        """A name for the stored content, the same in every process and run; empty for none.

        Statistics and tables that took a pass over all voxels are kept under it, on the disk too.
        It has to be another one where the content is: make it of version, size and time, or of a
        check sum. Where it is empty they are worked out anew.
        """
        return ""

    version_check: Callable[[], None] | None = None
    """Waits for what was asked when it was opened: whether it is what a manifest says."""

    def check_version(self) -> None:
        """Raise ``StaleEntry`` where it is not; called before voxels are handed out."""
        if self.version_check is not None:
            self.version_check()

    lists: bool = False
    """Whether :attr:`content_key` speaks of more than the stamp in the header: of a listing."""

    def forget_content_key(self) -> None:
        """Look again when :attr:`content_key` is asked for the next time."""
        return

    @cached_property
    def grid(self) -> Grid:
        """Spatial shape and affine."""
        return Grid(self.header.shape[1:], affine_matrix(self.header.affine))

    @property
    def affine(self) -> Affine:
        """4x4 float64, voxel index to world millimetres, RAS+."""
        return affine_matrix(self.header.affine)

    def needed_chunks(
        self, region: Region, channels: Channels | None = None
    ) -> NeededChunks | None:
        """Return the chunks that a read needs; None where every voxel can be read alone."""
        if self.header.chunks is None:
            return None
        return needed_of(self.header, region.pad(0), channels)  # whatever its box

    def touched_bytes(self, region: Region, channels: Channels | None = None) -> int:
        """Return how many bytes of stored voxels a read of ``region`` touches, in whole chunks."""
        chunks = self.needed_chunks(region, channels)
        first, last = channels or (0, self.shape[0])
        voxels = region.size * (last - first) if chunks is None else chunks.voxels
        return voxels * self.disk_dtype.itemsize

    def fetch(self, region: Region, channels: Channels | None = None) -> int | None:
        """Bring in the stored bytes of a region without decoding them; return how many.

        ``diagnose()`` measures a store by it. None, and nothing fetched, for a format that cannot
        tell the two apart.
        """
        return None

    def __getitem__(self, item: Any) -> torch.Tensor:
        """Return values as a 4-D tensor; integers keep their axis."""
        voxels, selection = self.select(item)
        is_boolean = self.header.dtype.kind == "b"
        part = replace(voxels, array=voxels.array[selection], boolean=is_boolean)
        return as_tensor(part.values(), self.header.tensor_dtype)

    def select(self, item: Any) -> tuple[Voxels, tuple[slice, ...]]:
        """Read the box around an index; return it and what remains to be selected from it."""
        self.check_version()
        channels, region, selection = smallest_box(index_ranges(item, self.shape, self.name))
        return self.read(region, channels), selection

    def to_tensor(self) -> torch.Tensor:
        """Return the values of the whole volume."""
        return self[...]


def read_counted(backend: Backend, region: Region, channels: Channels | None = None) -> Voxels:
    """Return the voxels of a region, checked and entered in the tally."""
    first, last = channels or (0, backend.shape[0])
    shape = (last - first, *region.shape)
    fits = len(region.start) == 3 and all(map(operator.le, region.stop, backend.shape[1:]))
    if not fits or min(region.start) < 0:
        check_inside(region, backend.shape, backend.name)
    size = math.prod(shape) * backend.disk_dtype.itemsize
    if not size:
        empty = np.empty(shape, backend.disk_dtype)
        return Voxels(empty, backend.header.slope, backend.header.intercept)
    # A wrong header may speak of any size. A view costs nothing before it is touched.
    if backend.access != "view" and 0 < usable_memory() < size:
        raise VolumeTooLarge(
            f"{region} of {backend.name}, of shape {backend.shape}, takes {size} bytes, and this "
            f"process may use {usable_memory()}.",
            do="Read smaller regions, or check the header.",
        )
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
        # The advice of the read is for the replaced file.
        what = f"{backend.name} was written again since it was opened: {error.what}"
        raise VolumeChanged(what) from error
    # Check user backends: the kernel would read past a short array.
    if voxels.array.shape != shape:
        raise BadHeader(
            f"the backend {type(backend).__name__} of {backend.name} answered shape "
            f"{voxels.array.shape} for {shape[0]} channels of {region}.",
            do="read() returns Voxels of (C, i, j, k), and keeps every axis.",
        )
    if backend.header.dtype.kind == "b":
        return replace(voxels, array=plain(voxels.array), boolean=True)
    return voxels


def check_inside(region: Region, shape: tuple[int, ...], name: str) -> None:
    """Raise ``OutOfVolume`` where a region reaches outside."""
    if len(region.start) != len(shape) - 1 or not (
        region.is_empty
        or (min(region.start) >= 0 and all(map(operator.le, region.stop, shape[1:])))
    ):
        msg = f"{region} does not lie inside {name}, of shape {shape}."
        raise OutOfVolume(msg, do="Intersect it with the volume first.")


def needed_of(
    header: Header, region: Region, channels: Channels | None = None
) -> NeededChunks | None:
    """Return the chunks that a read needs as far as a header tells: each of all channels asked."""
    if header.chunks is None:
        return None
    cuts = ChunkGrid(header.shape[1:], header.chunks)
    first, last = channels or (0, header.shape[0])
    chunks = cuts.touched_parts(region)
    size = math.prod(header.chunks) * (last - first) * header.disk_dtype.itemsize
    return NeededChunks(chunks, cuts.voxels(chunks) * (last - first), size)


class ViewBackend(Backend):
    """Voxels that can be addressed as one array, in memory or mapped: a region is a view."""

    looks_ahead = False

    def __init__(self, view: NDArray[Any], header: Header, name: str = "") -> None:
        super().__init__(header, name)
        self._view = plain(view).view()
        # A read hands out this memory; nobody may write through it.
        self._view.setflags(write=False)

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Return a view of the region."""
        first, last = channels or (0, self.shape[0])
        view = self._view[(slice(first, last), *region.slices)]
        return Voxels(view, self.header.slope, self.header.intercept)

    @cached_property
    def content_key(self) -> str:
        """Type, shape and every byte, digested at the first question."""
        return array_key(self._view)

    def fetch(self, region: Region, channels: Channels | None = None) -> int:
        """Touch every page on which the region lies."""
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
    """Return values as a contiguous tensor of the same type, in memory of its own.

    ``tensor_dtype`` names another type, of torch alone.
    """
    import torch

    own = values if values.flags.owndata and values.flags.writeable else values.copy()
    tensor = torch.from_numpy(np.ascontiguousarray(own, dtype=own.dtype.newbyteorder("=")))
    return tensor.to(getattr(torch, tensor_dtype)) if tensor_dtype else tensor


class ForeignBackend(Backend):
    """A backend that only fulfils TorchIO's contract, read through ``backend[slices]``.

    The type of its values may differ from its ``dtype`` (that of the file), so one
    voxel is read when it is opened.
    """

    def __init__(self, backend: Any, name: str) -> None:
        self._backend = backend
        self._content: str | None = None
        shape = tuple(int(n) for n in backend.shape)
        if len(shape) != 4 or min(shape) < 1:
            msg = f"the backend {type(backend).__name__} of {name} says shape {shape}."
            raise BadHeader(msg, do="A backend's shape is (C, I, J, K), all of them positive.")
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
        """What the backend says, if it says anything; asked once."""
        if self._content is None:
            key = str(getattr(self._backend, "content_key", None) or "")
            self._content = _digest_of(self._backend, key) if key else ""
        return self._content

    def forget_content_key(self) -> None:
        """Ask the backend again."""
        self._content = None

    def adjust(self, scheme: ReadScheme) -> ReadScheme | SchemeRefusal:
        """Ask the backend, if it has an opinion."""
        own = getattr(self._backend, "adjust", None)
        answer: ReadScheme | SchemeRefusal = super().adjust(scheme) if own is None else own(scheme)
        return answer

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Return what the backend answers for the region."""
        first, last = channels or (0, self.shape[0])
        return Voxels(plain(as_array(self._backend[(slice(first, last), *region.slices)])))


def content_of(backend: Backend) -> str:
    """Return the content key of a backend as caches use it, fit for a file name; empty for none.

    Keys of own classes are digested with the name of the class: two of them may count alike.
    """
    key = str(backend.content_key or "")
    is_ours = type(backend).__module__.partition(".")[0] == __name__.partition(".")[0]
    return key if is_ours or not key else _digest_of(backend, key)


def _digest_of(backend: Any, key: str) -> str:
    kind = type(backend)
    return content_key(f"{kind.__module__}.{kind.__qualname__}", (key,))


# Flags of tensors that NumPy cannot read, and the call that gives readable numbers.
_TO_NUMBERS = {
    "is_meta": "the tensor that holds the voxels: one on the device meta has a shape alone",
    "is_nested": "its parts one by one: tensor.unbind()",
    "is_quantized": "tensor.dequantize()",
}


def as_array(values: Any) -> NDArray[Any]:
    """Return a tensor or an array as an array, in the same memory if it can lie there.

    ``UnknownFormat`` for a tensor of packed or quantized numbers, and for voxels that are masked.
    """
    if np.ma.is_masked(values):
        what = "a masked array has voxels without a value, which a volume does not have."
        raise UnknownFormat(what, do="Choose their value: array.filled(0), say.")
    if not hasattr(values, "detach"):
        return np.asarray(values)
    for flag, call in _TO_NUMBERS.items():
        if getattr(values, flag, False):
            raise UnknownFormat(f"a tensor with {flag} holds no plain numbers.", do=f"Give {call}.")
    if str(getattr(values, "layout", "torch.strided")) != "torch.strided":
        what = f"a tensor of the layout {values.layout} does not store each voxel."
        raise UnknownFormat(what, do="Give tensor.to_dense().")
    tensor = values.detach().resolve_conj().resolve_neg().cpu()
    # NumPy has none of these; float32, or complex64, holds each of their values.
    if only_in_torch(values):
        tensor = tensor.float() if tensor.is_floating_point() else tensor.cfloat()
    try:
        return np.asarray(tensor.numpy())
    except (TypeError, RuntimeError):
        what = f"a tensor of {values.dtype} holds no plain numbers."
        do = "Convert it first: tensor.float(), or tensor.dequantize()."
        raise UnknownFormat(what, do=do) from None


# Where arrays of libraries keep what an affine is made of, each in its own way.
_GEOMETRY = ("spacing", "origin", "direction", "sampling", "itk_base")


def placed_array(thing: Any, *, has_affine: bool = False) -> tuple[Any, tuple[float, ...] | None]:
    """Return the voxels of an array or a tensor, and the affine that it has; None for none.

    Of a ``MetaTensor`` of MONAI, an image of TorchIO, and what has an ``affine`` as they do.
    ``UnknownFormat`` for a geometry of another form, unless the user ``has_affine``.
    """
    meta, name = getattr(thing, "meta", None), type(thing).__name__
    if hasattr(thing, "pending_operations"):
        return _of_metatensor(thing, meta or {}, has_affine)
    own = getattr(thing, "affine", None)
    if own is not None:
        # An image of TorchIO is no array, and has one.
        array = thing if hasattr(thing, "ndim") else thing.data
        return array, None if has_affine else affine_entries(as_array(own), f"a {name}")
    keys = {key for key in _GEOMETRY if hasattr(thing, key)} | {*(meta or ())} & {*_GEOMETRY}
    if keys and not has_affine:
        what = f"a {name} has a geometry that is not read: {', '.join(sorted(keys))}."
        raise UnknownFormat(what, do="Pass affine= to say where the voxels lie.")
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
        do = "Pass affine= to say where the voxels lie, RAS+."
        raise UnknownFormat(f"{what} has an affine in the space {space!r}.", do=do)
    spatial = tuple(int(n) for n in meta.get("spatial_shape", ()))
    if len(shape) == 3 and shape[1:] == spatial:
        plain = plain[..., None]
    elif len(shape) == 3 and shape != spatial:  # MONAI's come channel first
        do = "Write tensor[None] for (I, J, K), tensor[..., None] for (C, I, J)."
        raise UnknownFormat(f"{what} has a channel axis or none, and does not say which.", do=do)
    if len(shape) == 4 and shape[:3] == spatial != shape[1:]:
        do = "Bring them to the front: monai.transforms.EnsureChannelFirst()(tensor)."
        raise UnknownFormat(f"{what} has its channels last.", do=do)
    affine = as_array(tensor.affine).astype(np.float64)
    if affine.shape == (3, 3):  # of an image
        rows = np.insert(affine, 2, 0, axis=0)
        affine = np.insert(rows, 2, (0, 0, 1, 0), axis=1)
    entries = affine_entries(affine, what)
    if space == "LPS":
        entries = affine_entries(np.diag([-1.0, -1, 1, 1]) @ affine_matrix(entries), what)
    return plain, entries


def only_in_torch(values: Any) -> str:
    """Return the name of a tensor's type that NumPy lacks, such as ``bfloat16``; else nothing.

    Examples
    --------
    >>> import torch
    >>> only_in_torch(torch.zeros(1, dtype=torch.bfloat16)), only_in_torch(torch.zeros(1))
    ('bfloat16', '')
    """
    name = str(getattr(values, "dtype", "")).removeprefix("torch.")
    return name if name.startswith(("bfloat", "float8", "complex32")) else ""


def no_options(options: Mapping[str, Any], name: str, keys: tuple[str, ...] = ()) -> None:
    """Raise ``SampleError``, a ``TypeError``, for options that a format does not have."""
    unknown = [key for key in options if key not in keys]
    if unknown:
        have = ", ".join(keys) or "none"
        msg = f"{name} was opened with unknown option {unknown[0]!r}; its format has: {have}"
        raise SampleError(msg, do=f"Leave {unknown[0]}= out, or write one that the format has.")
