"""Sources of objects in memory, and of the channels of several files on one grid.

Files are not copied together on disk. Each keeps its type, chunks and scaling and is read by its
own backend. Resampling goes file by file into the channels of one array.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from ..core import Affine, Grid, Region
from ..core.call_site import WarnOnce
from ..core.errors import (
    BadHeader,
    GridMismatch,
    LikelyMistake,
    SampleError,
    UnknownFormat,
    VolumeError,
)
from ..first_use import extensions, load
from ..storage.content import content_key
from ..storage.read_ahead import Closable, joint_ticket
from .array_source import from_array, is_instance
from .backend import Backend, Channels, content_of, placed_array, read_counted
from .formats.zarr_nodes import ZarrSource
from .header import IDENTITY, ONE_TIME, Access, Header, affine_entries
from .scheme import ReadScheme, SchemeRefusal, StoreLayout
from .session import Session, Source
from .source import LocatedSource, Options
from .voxels import Voxels


class StackMember(Protocol):
    """Interface of a stacked volume, with the meaning that it has in ``Volume``."""

    # ``opened_anew()`` and ``layout()`` of an unwritten copy describe the future copy.
    @property
    def name(self) -> str: ...
    @property
    def token(self) -> str: ...
    @property
    def content_key(self) -> str: ...
    @property
    def header(self) -> Header: ...
    @property
    def grid(self) -> Grid: ...
    @property
    def affine(self) -> Affine: ...
    def probe(self) -> Backend: ...
    def opened_anew(self, by: str) -> StackMember: ...
    def in_session(self, session: Session) -> StackMember: ...
    def layout(self, volumes: int = 1) -> StoreLayout: ...
    def adjust(self, scheme: ReadScheme) -> ReadScheme | SchemeRefusal: ...


class OwnSource:
    """A source that holds its backend, so handles keep only the backends that it reads."""

    _backend: Backend | None = None

    @property
    def backend(self) -> Backend:
        if self._backend is None:
            self._backend = self._make()
        return self._backend

    def _make(self) -> Backend:
        raise NotImplementedError

    def open(self) -> Backend:
        return self.backend

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_backend": None}


class StackedSource(OwnSource):
    """Concatenated channels of several volumes; pickled as these volumes."""

    def __init__(self, parts: Sequence[StackMember], *, apart: bool = False) -> None:
        if not parts:
            raise VolumeError("a volume of no channels.", do="Give a list of one path or more.")
        self.parts = tuple(parts)
        self._apart = apart
        self.name = " + ".join(part.name for part in parts)
        self.token = content_key("channels of", tuple(part.token for part in parts))

    def _make(self) -> Backend:
        return StackedBackend(self.parts, self.known_header(), self.name, apart=self._apart)

    def known_header(self) -> Header:
        """Return the common header; reads those of the parts and compares their grids."""
        if not self._apart:
            refuse_other_grids(self.parts)
            channels = {f"channel {number}": part for number, part in enumerate(self.parts)}
            warn_of_axes(channels, is_list=True)
        return stacked_header(self.parts)

    def opened_anew(self, by: str) -> StackedSource:
        """Return the source for a pass, with each part opened again."""
        parts = [part.opened_anew(by) for part in self.parts]
        if all(new is part for new, part in zip(parts, self.parts, strict=True)):
            return self
        return StackedSource(parts, apart=self._apart)

    def in_session(self, session: Session) -> StackedSource:
        return StackedSource([part.in_session(session) for part in self.parts], apart=self._apart)


def on_one_grid(parts: Sequence[StackMember]) -> bool:
    """Whether all parts have the grid of the first; reads headers."""
    grid = parts[0].grid
    return not any(grid.difference(other.grid) for other in parts[1:])


def refuse_other_grids(parts: Sequence[StackMember]) -> None:
    """Raise GridMismatch unless all parts have the grid of the first; reads headers."""
    first, *others = parts
    for other in others:
        if not (how := first.grid.difference(other.grid)):
            continue
        do = (
            "Open them under keys of their own, put .resample_to(one of these) after "
            "open_volume(), and .stack(keys, name) after the spatial pipes."
        )
        if all(part.header.shape[3] == 1 for part in parts):
            do = (
                "A list gives channels. Slices of a DICOM series are one volume: give their "
                "folder, and ⟦files=[names]⟧ for some of them."
            )
        msg = f"{first.name} and {other.name} are to be channels of one volume, and {how}"
        raise GridMismatch(msg, do=do)


_AXES_ONCE = WarnOnce()


def warn_of_axes(volumes: Mapping[str, Any], *, is_list: bool = False) -> None:
    """Warn if one volume names its axes, another does not, and both orders have one shape.

    The volumes have one grid; ``is_list`` if they are parts of a list. With an ``affine=`` that
    gives one of them the place of the other, ``BadHeader`` is raised.
    """
    pair = _in_two_orders(volumes)
    if pair is None:
        return
    first, plain = pair
    if volumes[plain].names_axes is None and not is_list:
        raise _two_orders(volumes, first, plain)
    name, letters = volumes[plain].name, letters_of(volumes[plain])
    axes = f"⟦open_volume(axes={{{plain!r}: {letters!r}}})⟧"
    text = (
        f"axes-not-named: {first!r} ({volumes[first].name}) names its axes, and {plain!r} "
        f"({name}) does not; their shape fits in both orders. Write "
        f"{f'Volume(..., axes={letters!r}) in the list' if is_list else axes} for an array as "
        f"SimpleITK, tifffile or zarr give it, and {letters[::-1]!r} for one as nibabel does."
    )
    # Once per data set: its cases share a format and a folder or a parent folder.
    place = os.path.dirname(os.path.dirname(name)), os.path.splitext(name)[1]
    _AXES_ONCE.warn((first, plain, *place), text, LikelyMistake)


def refuse_two_orders(volumes: Mapping[str, Any]) -> None:
    """Raise ``BadHeader`` where :func:`warn_of_axes` warns, as names of axes are used."""
    pair = _in_two_orders(volumes)
    if pair is not None:
        first, plain = pair
        raise _two_orders(volumes, first, plain)


def _in_two_orders(volumes: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return a key with named axes, and one without that fits in two orders; None without both."""
    has_names = {key: getattr(volume, "names_axes", True) for key, volume in volumes.items()}
    first = next((key for key, has in has_names.items() if has), None)
    plain = next((k for k, has in has_names.items() if not has and fits_twice(volumes[k])), None)
    return None if first is None or plain is None else (first, plain)


def fits_twice(volume: Any) -> bool:
    """Whether the grid of a volume has one shape in the order x, y, z and in z, y, x."""
    i, j, k = volume.grid.shape
    return bool(i == (j if k == 1 else k))


def _two_orders(volumes: Mapping[str, Any], first: str, key: str) -> BadHeader:
    """Return the error for a volume without names of axes that fits another in two orders."""
    letters = letters_of(volumes[key])
    names = {k: f"{k!r} ({volumes[k].name})" if k else volumes[k].name for k in (key, first)}
    one, other = names.values()
    msg = f"{one} does not name its axes, {other} does, and "
    do = f"Add ⟦open_volume(axes={{{key!r}: {letters!r}}})⟧, or " if key else "Give "
    do += f"vp.Volume(path, axes={letters!r}), for an array as tifffile or zarr give it, and "
    do += f"{letters[::-1]!r} for one as nibabel gives it."
    return BadHeader(f"{msg}two orders fit their shape", do=do)


def letters_of(volume: Any) -> str:
    """Return the axes of an array as SimpleITK gives it."""
    return "yx" if volume.grid.shape[2] == 1 else "zyx"


def stacked_header(parts: Sequence[StackMember]) -> Header:
    """Return the header of the channels of all parts, in their common stored type if they have one.

    Otherwise reads apply scaling, and the type is ``np.result_type`` of all values: int16 for uint8
    and int16, float32 for int16 and float32.
    """
    headers = [part.header for part in parts]
    first = headers[0]
    channels = sum(header.shape[0] for header in headers)
    chunks = [header.chunks for header in headers if header.chunks is not None]
    i, j, k = map(max, *chunks, (1, 1, 1)) if chunks else (1, 1, 1)
    accesses: set[Access] = {header.access for header in headers}
    order: tuple[Access, ...] = ("stream", "range", "view")
    common = replace(
        first,
        shape=(channels, *first.shape[1:]),
        affine=affine_entries(parts[0].affine, parts[0].name),
        chunks=(i, j, k) if chunks else None,
        access=next(access for access in order if access in accesses),
        stamp=tuple(number for header in headers for number in header.stamp),
        channel_names=_names_of_all(headers),
        times=first.times if len(headers) == 1 else ONE_TIME,
    )
    if len({_stored_as(header) for header in headers}) == 1:
        return replace(common, disk_dtype=first.disk_dtype.newbyteorder("="))
    values = np.result_type(*(header.dtype for header in headers))
    return replace(common, disk_dtype=values, slope=1.0, intercept=0.0, value_type=None)


def _names_of_all(headers: Sequence[Header]) -> tuple[str, ...]:
    """Return the names of channels of all headers; empty if none has names."""
    if not any(header.channel_names for header in headers):
        return ()
    names = (header.channel_names or ("",) * header.shape[0] for header in headers)
    return tuple(name for each in names for name in each)


def _stored_as(header: Header) -> tuple[Any, ...]:
    """Return the facts that must agree for stored numbers to have one meaning."""
    dtype = header.disk_dtype.newbyteorder("=")
    return (dtype, header.slope, header.intercept, header.value_type)


def _of_all(name: str) -> property:
    return property(lambda self: all(getattr(backend, name) for backend in self.below))


def _of_any(name: str) -> property:
    return property(lambda self: any(getattr(backend, name) for backend in self.below))


Read = tuple[Backend, Region, Channels | None]
"""A backend, and the region and channels of a read."""


class ComposedBackend(Backend):
    """A backend that reads from others, and combines their answers."""

    @property
    def below(self) -> Sequence[Backend]:
        raise NotImplementedError

    # Properties, as they may open the backends below, which a known header does not need.
    keeps_chunks = _of_all("keeps_chunks")
    is_current = _of_all("is_current")
    remote = _of_any("remote")
    lists = _of_any("lists")
    looks_ahead = _of_any("looks_ahead")

    @property
    def version(self) -> Hashable:
        return tuple(backend.version for backend in self.below)

    def is_as_of(self, moment: int) -> bool:
        return all(backend.is_as_of(moment) for backend in self.below)

    def forget_content_key(self) -> None:
        for backend in self.below:
            backend.forget_content_key()

    def reads(self, region: Region, channels: Channels | None) -> Iterable[Read]:
        """Return the reads of the backends below for a region."""
        raise NotImplementedError

    def prefetch(self, region: Region, channels: Channels | None = None) -> Closable | None:
        return joint_ticket(
            inner.prefetch(box, own) for inner, box, own in self.reads(region, channels)
        )

    def touched_bytes(self, region: Region, channels: Channels | None = None) -> int:
        reads = self.reads(region, channels)
        return sum(inner.touched_bytes(box, own) for inner, box, own in reads)

    def fetch(self, region: Region, channels: Channels | None = None) -> int | None:
        sizes = [inner.fetch(box, own) for inner, box, own in self.reads(region, channels)]
        return None if None in sizes else sum(filter(None, sizes))


class ViewedBackend(ComposedBackend):
    """A view of another backend, which answers all that does not depend on the view."""

    def __init__(self, inner: Backend, header: Header, *view: Any) -> None:
        super().__init__(header, inner.name)
        self._inner, self._view = inner, view

    @property
    def below(self) -> Sequence[Backend]:
        return (self._inner,)

    def check_version(self) -> None:
        self._inner.check_version()

    @property
    def shards(self) -> Any:
        return self._inner.shards

    @property
    def files(self) -> Any:
        return getattr(self._inner, "files", ())

    @property
    def content_key(self) -> str:
        inner = content_of(self._inner)
        return content_key(inner, self._view) if inner else ""

    def adjust(self, scheme: ReadScheme) -> ReadScheme | SchemeRefusal:
        return self._inner.adjust(scheme)


class StackedBackend(ComposedBackend):
    """Channels of several volumes, each read by its own backend in this process."""

    counts_below = True

    def __init__(
        self, parts: Sequence[StackMember], header: Header, name: str, *, apart: bool = False
    ) -> None:
        super().__init__(header, name)
        self._apart = apart
        self._parts = tuple(parts)
        self._raw = len({_stored_as(part.header) for part in parts}) == 1

    @property
    def content_key(self) -> str:
        keys = tuple(part.content_key for part in self._parts)
        return content_key("channels of", keys) if all(keys) else ""

    @property
    def below(self) -> list[Backend]:
        """Backends of the parts, opened here if they are not open."""
        return [part.probe() for part in self._parts]

    def layout(self, volumes: int = 1) -> StoreLayout:
        """Return the layout of all channels, at the speed of the slowest part."""
        layouts = [part.layout(volumes) for part in self._parts]
        slowest = min(layouts, key=lambda part: (part.bandwidth, part.decode_rate))
        return replace(
            slowest,
            itemsize=sum(part.itemsize for part in layouts),
            chunk=self.chunks,
            access=self.header.access,
        )

    def adjust(self, scheme: ReadScheme) -> ReadScheme | SchemeRefusal:
        for part in self._parts:
            answer = part.adjust(scheme)
            if isinstance(answer, SchemeRefusal):
                return answer
            scheme = answer
        return scheme

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Return the voxels of a region in one array; each part is read and counted on its own."""
        if self._apart:
            refuse_other_grids(self._parts)
        read = [read_counted(*part) for part in self.reads(region, channels)]
        slope, intercept = self.header.slope, self.header.intercept
        arrays = [voxels.array if self._raw else voxels.values() for voxels in read]
        dtype = np.result_type(*arrays) if self._raw else self.header.disk_dtype
        if len(arrays) == 1:
            return Voxels(arrays[0].astype(dtype, copy=False), slope, intercept)
        out = np.empty((sum(map(len, arrays)), *region.shape), dtype)
        return Voxels(np.concatenate(arrays, out=out), slope, intercept)

    def reads(self, region: Region, channels: Channels | None) -> Iterator[Read]:
        first, last = channels or (0, self.shape[0])
        begin = 0
        for part in self._parts:
            count = part.header.shape[0]
            own = (max(first - begin, 0), min(last - begin, count))
            begin += count
            if own[0] < own[1]:
                yield part.probe(), region, own


def source_of(thing: Any, options: Options, part: Callable[[Any], Any]) -> Source:
    """Return the source of a user's object; reads no disk. ``part`` makes volumes of a list."""
    several = isinstance(thing, (list, tuple))
    if several and not any(isinstance(item, (list, tuple)) for item in thing):
        return StackedSource([own for item in thing for own in part(item).parts])
    if isinstance(thing, (str, os.PathLike)):
        return LocatedSource(os.fsdecode(thing), options)
    is_array = is_instance(thing, "zarr", "Array", "Group")
    if is_array or is_instance(thing, "zarr.abc.store", "Store"):
        return ZarrSource(thing, options)
    return source_of_object(thing, options)


def source_of_object(thing: Any, options: Options) -> Source:
    """Return the source of an array, a tensor or an image of a library; refuse other objects.

    An entry point ``voxpipe.sources`` with the name of a package reads objects of its classes.
    Its function ``f(thing, options)`` returns a source, or None for an unknown object.
    """
    is_array = isinstance(thing, np.ndarray) or is_instance(thing, "torch", "Tensor")
    source = None if is_array else source_by_package(thing, options)
    is_image = source is not None or is_instance(thing, "torchio", "Image")
    if not (is_array or is_image):
        package = type(thing).__module__.partition(".")[0]
        kind = f"{package}.{type(thing).__name__}".removeprefix("builtins.")
        raise UnknownFormat(
            f"a volume cannot be made from a {kind}.",
            do="Give a path, a URL, an array or a tensor with its affine, an image of nibabel, "
            "TorchIO, ITK or SimpleITK, a zarr object, or a list of these. To leave it unopened in "
            "a case, name the volumes in open_volume(keys=).",
        )
    names = [n for n in options.reader_kwargs if n != "axes" or is_image]
    names += [n for n in ("reader", "storage_options") if getattr(options, n)]
    if names:
        msg = f"voxels in memory take no reader and no options, and {names[0]}= is given"
        raise SampleError(msg, do=f"Leave {names[0]}= out.")
    if source is not None:
        return source
    affine, axes = options.affine, options.reader_kwargs.get("axes")
    values, own = placed_array(thing, has_affine=affine is not None)
    if own is not None and axes is not None:
        msg = f"a {type(thing).__name__} has an affine along its own axes, and was given axes="
        raise SampleError(msg, do="Leave ⟦axes=⟧ out, or give ⟦affine=⟧ of the axes x, y, z too.")
    return from_array(values, affine or own or IDENTITY, axes, is_image=own is not None)


def source_by_package(thing: Any, options: Options) -> Source | None:
    """Return the source of an object by the entry point of a package in its class's MRO."""
    packages = (cls.__module__.partition(".")[0] for cls in type(thing).__mro__)
    for package in dict.fromkeys(packages):
        point = extensions("sources").get(package)
        opener = None if point is None else load(point)
        if opener and (source := opener(thing, options)) is not None:
            return source  # type: ignore[no-any-return]
    return None
