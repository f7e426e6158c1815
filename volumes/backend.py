"""What every format answers, and how a backend written for TorchIO answers it too."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..core import Affine, ChunkGrid, Grid, OrientedBox, Region
from ..core.errors import BadHeader
from .fetched import touch
from .header import Header, Triple, affine_entries, affine_matrix
from .index import index_ranges
from .scheme import ReadScheme, Refused, StoreLayout
from .voxels import Voxels, plain, refuse_unreadable

if TYPE_CHECKING:
    import torch

    from .stores.read_ahead import Closes

Channels = tuple[int, int]
"""A half-open interval of channels."""


class Backend(ABC):
    """One opened store: a header, and the voxels of a region.

    A format implements :meth:`read`. Everything else follows, TorchIO's contract
    (``shape``, ``affine``, ``dtype``, ``backend[slices]``, ``to_tensor()``) included.
    Backends live in one process and never travel; a ``Volume`` does.
    """

    resident_bytes: int = 0
    """Memory that keeping this backend open costs, mapped files not counted."""

    def __init__(self, header: Header, name: str) -> None:
        self.header = header
        self.name = name

    culls: bool = False
    """Whether ``read`` takes an ``OrientedBox`` as third argument and reads no chunk beside it."""

    counts_below: bool = False
    """Whether reads are entered in the tally by the backends that this one reads from."""
    keeps_chunks: bool = False
    """Whether decoded chunks go into the cache of the process."""
    remote: bool = False
    """Whether the store is reached through a network."""

    levels: tuple[Affine, ...] = ()
    """Where coarser levels of the image lie, the next one first: 4x4, their index to the own."""

    @abstractmethod
    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Return the stored voxels of a spatial region that lies inside the volume."""

    @property
    def looks_ahead(self) -> bool:
        """Whether it may be worth working out what a read needs, and calling :meth:`prefetch`."""
        return self.access != "view"

    def prefetch(self, region: Region, box: OrientedBox | None = None) -> Closes | None:
        """Begin to bring in the stored bytes of a region that is going to be read, all channels.

        They wait until the ticket is closed. None where nothing is gained by it.
        """
        return None

    def layout(self, volumes: int = 1) -> StoreLayout:
        """Return what a scheme needs to know of ``volumes`` volumes like this one."""
        return StoreLayout.of(self.header, volumes, remote=self.remote, shard=self.shards)

    def adjust(self, scheme: ReadScheme) -> ReadScheme | Refused:
        """Return the scheme as this store can follow it, or why it cannot at all.

        A store may ask for less than it is given, not for more.
        """
        if scheme.cache_bytes and not self.keeps_chunks:
            return Refused(f"{self.name} is decoded by a reader that keeps no chunks")
        return scheme

    @property
    def shards(self) -> Triple | None:
        """Spatial extent of the objects that hold chunks; None where each is an object."""
        return None

    @property
    def is_current(self) -> bool:
        """Whether the store is still the one that was opened."""
        return True

    @property
    def content_key(self) -> str:
        """A name for the stored content, stable among processes; empty where there is none."""
        return ""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(C, I, J, K)."""
        return self.header.shape

    @cached_property
    def grid(self) -> Grid:
        """Spatial shape and affine."""
        return Grid(self.header.shape[1:], affine_matrix(self.header.affine))

    @property
    def affine(self) -> Affine:
        """4x4 float64, voxel index to world millimetres, RAS+."""
        return affine_matrix(self.header.affine)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values that reads return."""
        return self.header.dtype

    @property
    def disk_dtype(self) -> np.dtype[Any]:
        """Type of the numbers as stored."""
        return self.header.disk_dtype

    @property
    def chunks(self) -> Triple | None:
        """Spatial decode unit, None where there is none."""
        return self.header.chunks

    @property
    def access(self) -> str:
        """``"view"``, ``"range"`` or ``"stream"``."""
        return self.header.access

    def touched_bytes(self, region: Region, channels: Channels | None = None) -> int:
        """Return how many bytes of stored voxels a read of ``region`` touches, in whole chunks."""
        if self.chunks is not None:
            region = ChunkGrid(self.shape[1:], self.chunks).cover(region)
        first, last = channels or (0, self.shape[0])
        return region.size * (last - first) * self.disk_dtype.itemsize

    def fetch(self, region: Region, channels: Channels | None = None) -> int | None:
        """Bring in the stored bytes of a region without decoding them; return how many.

        None, and nothing fetched, for a format that cannot tell the two apart.
        """
        return None

    def __getitem__(self, item: Any) -> torch.Tensor:
        """Return values as a 4-D tensor; integers keep their axis."""
        voxels, selection = self.select(item)
        return as_tensor(Voxels(voxels.array[selection], voxels.slope, voxels.intercept).values())

    def select(self, item: Any) -> tuple[Voxels, tuple[slice, ...]]:
        """Read the box around an index; return it and what remains to be selected from it."""
        channels, region, selection = boxed(index_ranges(item, self.shape, self.name))
        return self.read(region, channels), selection

    def to_tensor(self) -> torch.Tensor:
        """Return the values of the whole volume."""
        return as_tensor(self.read(Region.of_shape(self.shape[1:])).values())


class ViewBackend(Backend):
    """Voxels that can be addressed as one array, in memory or mapped: a region is a view."""

    def __init__(self, view: NDArray[Any], header: Header, name: str) -> None:
        super().__init__(header, name)
        self._view = plain(view).view()
        # A read hands out this memory; nobody may write through it.
        self._view.setflags(write=False)

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Return a view of the region."""
        first, last = channels or (0, self.shape[0])
        view = self._view[(slice(first, last), *region.slices)]
        return Voxels(view, self.header.slope, self.header.intercept)

    def fetch(self, region: Region, channels: Channels | None = None) -> int:
        """Touch every page on which the region lies."""
        return touch(self.read(region, channels).array)


def boxed(ranges: tuple[range, ...]) -> tuple[Channels, Region, tuple[slice, ...]]:
    """Return the smallest box around four ranges, and the ranges as an index of that box.

    Examples
    --------
    >>> boxed((range(1), range(8, 2, -2), range(3), range(4)))[1:]
    (Region(4:9, 0:3, 0:4), (slice(0, 1, 1), slice(4, None, -2), slice(0, 3, 1), slice(0, 4, 1)))
    """
    low = [min(r[0], r[-1]) for r in ranges]
    high = [max(r[0], r[-1]) + 1 for r in ranges]
    selection = tuple(
        slice(r[0] - a, None if r.step < 0 else b - a, r.step)
        for r, a, b in zip(ranges, low, high, strict=True)
    )
    return (low[0], high[0]), Region(tuple(low[1:]), tuple(high[1:])), selection


def as_tensor(values: NDArray[Any]) -> torch.Tensor:
    """Return values as a contiguous tensor of the same type, in memory of its own."""
    import torch

    own = values if values.flags.owndata and values.flags.writeable else values.copy()
    return torch.from_numpy(np.ascontiguousarray(own, dtype=own.dtype.newbyteorder("=")))


class ForeignBackend(Backend):
    """A backend that only fulfils TorchIO's contract, read through ``backend[slices]``.

    The type of its values may differ from its ``dtype`` (that of the file), so one
    voxel is read when it is opened.
    """

    def __init__(self, backend: Any, name: str) -> None:
        self._backend = backend
        shape = tuple(int(n) for n in backend.shape)
        if len(shape) != 4 or min(shape) < 1:
            raise BadHeader(
                f"the backend {type(backend).__name__} of {name} says shape {shape}.",
                do="A backend's shape is (C, I, J, K), all of them positive.",
            )
        first = as_array(backend[(slice(0, 1),) * 4])
        try:
            disk_dtype = np.dtype(backend.dtype)
        except TypeError:  # some give a torch.dtype
            disk_dtype = first.dtype
        refuse_unreadable(first.dtype, name)
        affine = affine_entries(as_array(backend.affine), name)
        header = Header(shape, affine, disk_dtype, access="range", value_type=plain(first).dtype)
        super().__init__(header, name)

    def adjust(self, scheme: ReadScheme) -> ReadScheme | Refused:
        """Ask the backend, if it has an opinion."""
        own = getattr(self._backend, "adjust", None)
        answer: ReadScheme | Refused = super().adjust(scheme) if own is None else own(scheme)
        return answer

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Return what the backend answers for the region."""
        first, last = channels or (0, self.shape[0])
        array = plain(as_array(self._backend[(slice(first, last), *region.slices)]))
        if array.shape != (last - first, *region.shape):
            raise BadHeader(
                f"the backend {type(self._backend).__name__} of {self.name} answered shape "
                f"{array.shape} for {last - first} channels of {region}.",
                do="backend[slices] must return a 4-D tensor and keep every axis.",
            )
        return Voxels(array)


def as_array(values: Any) -> NDArray[Any]:
    """Return a tensor or an array as an array, sharing memory where possible."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        # NumPy has no bfloat16; float32 holds each of its values.
        if str(values.dtype) == "torch.bfloat16":
            values = values.float()
        values = values.numpy()
    return np.asarray(values)


def no_options(options: Mapping[str, Any], name: str, known: tuple[str, ...] = ()) -> None:
    """Raise ``TypeError`` for options that a format does not have."""
    unknown = [key for key in options if key not in known]
    if unknown:
        have = ", ".join(known) or "none"
        msg = f"{name} was opened with unknown option {unknown[0]!r}; its format has: {have}"
        raise TypeError(msg)
