"""The lazy handle of one stored volume.

Constructing a ``Volume`` opens nothing. The first use of its geometry reads the header;
:meth:`Volume.read` reads one region. It holds neither file nor voxels: its pickle has 300 bytes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Hashable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..core import AS_READ, Affine, Grid, Region, ViewableVoxels
from ..core.context import holding
from ..core.errors import VolumeChanged, VolumeNotFound
from ..core.validate import as_choice
from .array_source import from_array, says_label, select_to_memory
from .axis_map import AxisMap
from .axis_map_source import AxisMappedSource, LabelBackend, StoredMaskSource
from .backend import Backend, as_array, check_inside, content_of, needed_of, read_counted
from .chunks.chunked_array import NeededChunks
from .header import Header, Shape, Triple, affine_entries, affine_matrix, given_affine
from .scheme import ReadScheme, SchemeRefusal, StoreLayout
from .session import OPENING, SESSION, OpenedVersion, Session, Source
from .source import USUAL_OPTIONS, LocatedSource, Options, warn_of_times
from .stack_source import StackedSource, source_of
from .voxels import Voxels, stored_number

if TYPE_CHECKING:
    import torch

    from ..storage.read_ahead import Closable
    from .header import Access  # not at run time: jedi cannot read a property of a Literal

_USUAL_ARGUMENTS = tuple(vars(USUAL_OPTIONS).values())
KINDS = ("intensity", "label")
"""Meanings of voxels; they decide the interpolation."""


class Volume(ViewableVoxels):
    """One stored volume, (C, I, J, K), read region by region.

    Parameters
    ----------
    source
        A path, a URL of fsspec, an array or a tensor ((I, J), (I, J, K) or (C, I, J, K)), an image
        of nibabel, TorchIO, ITK or SimpleITK, a ``MetaTensor``, or a zarr Store, Array or Group. A
        list of these is a volume of channels. An array must not change during an epoch.
    affine
        4x4, voxel index to world millimetres, RAS+; overrides the stored one.
    kind
        ``"intensity"`` or ``"label"``; by default a ``LabelMap`` of TorchIO is a label.
    reader
        ``reader(path) -> (voxels, affine)``, an object with ``create_backend(request)``, or a
        backend's name. Opens the source instead of the registered backends.
    storage_options
        Options of the fsspec file system, credentials for instance.
    io
        How bare voxels of local files are read: ``"mmap"``, ``"pread"``, ``"direct"`` (past the
        page cache) or ``"auto"``, which depends on the file system. The voxels are the same.
    follow
        Limit of references in headers (``ElementDataFile``, files of an OME-TIFF, external and
        virtual data of HDF5) and of links in a zarr folder. ``"same_folder"``: files in that of
        the header. ``"anywhere"``: any file that this process can read.
    **reader_kwargs
        For the backend or the reader: ``level=2`` of a zarr pyramid, or ``axes="zyx"`` of an array.
        The option ``channels=["DAPI"]`` keeps these channels of each time, by name or number.

    Raises
    ------
    UnknownFormat
        The source is none of the above.
    ValueError
        The kind, the mode, the affine or the shape of an array is invalid.

    Examples
    --------
    >>> volume = Volume(np.arange(24).reshape(2, 3, 4), affine=np.diag([2.0, 2, 5, 1]))
    >>> volume.shape, volume.spacing
    ((1, 2, 3, 4), (2.0, 2.0, 5.0))
    >>> volume[:, 1, ::2].affine[:3, 3].tolist()
    [2.0, 0.0, 0.0]
    """

    ndim = 4
    may_round = True  # whether a label of real numbers has classes: not after other sampling
    rounds = False  # whether the header, once read, is of a label of real numbers
    kind: str
    _source: Source
    _affine: tuple[float, ...] | None
    _header: Header | None = None
    _grid: Grid | None = None
    _data: torch.Tensor | None = None
    _stamp: tuple[Hashable, int] | None = None
    _is_fresh = False
    _renews = False  # whether its first use opens a remote store again
    _pass = ""
    _first: OpenedVersion | None = None  # first version in the pass and process
    _session: Session | None = None
    _to: tuple[Any, ...] = ()  # devices and types of its tensors

    def __init__(
        self,
        source: Any,
        *,
        affine: ArrayLike | None = None,
        kind: str | None = None,
        reader: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        io: str = "auto",
        follow: str = "same_folder",
        **reader_kwargs: Any,
    ) -> None:
        if kind is None:
            is_label = says_label(source) or "label" in reader_kwargs  # of a label group
            kind = "label" if is_label else "intensity"
        self.kind = kind if kind in KINDS else as_choice("kind", kind, KINDS)
        override = None if affine is None else given_affine(as_array(affine), "this volume")
        channels = reader_kwargs.pop("channels", None)
        if isinstance(reader, str):  # manifests hold it
            reader_kwargs["reader"], reader = reader, None
        arguments = (override, reader, dict(storage_options or {}), reader_kwargs, io, follow)
        is_usual = reader is None and arguments == _USUAL_ARGUMENTS
        options = USUAL_OPTIONS if is_usual else Options(*arguments)
        self._affine = override

        def part(item: Any) -> Volume:
            if isinstance(item, Volume):
                return item._of(item._source, kind)
            return Volume.of_source(source_of(item, options, part), kind, affine)  # type: ignore[arg-type]

        is_place = isinstance(source, (str, os.PathLike))
        place = LocatedSource(os.fsdecode(source), options) if is_place else None
        self._source = place or source_of(source, options, part)
        if channels is not None:
            self._source = AxisMappedSource(self._source, AxisMap.of_channels(channels))
        self._renews = True

    @classmethod
    def of_source(cls, source: Source, kind: str, affine: Affine | None = None) -> Volume:
        """Return the volume of a source; reads nothing."""
        volume = object.__new__(cls)
        volume.kind, volume._source = kind, source
        volume._affine = None if affine is None else affine_entries(affine, source.name)
        return volume

    @property
    def name(self) -> str:
        """Path or URL without credentials, or a description of the array."""
        return self._source.name

    @property
    def token(self) -> str:
        """Equal for volumes of the same source and options, in every process."""
        return self._source.token

    @property
    def located_source(self) -> LocatedSource | None:
        """Path or URL and its options; None for voxels in memory and zarr objects."""
        inner = getattr(self._source, "located_source", self._source)
        return inner if isinstance(inner, LocatedSource) else None

    @property
    def recorded_statistics(self) -> Any:
        """The ``Statistics`` in a manifest; None without."""
        return getattr(self._source, "statistics", None)

    @property
    def has_given_affine(self) -> bool:
        """Whether the user gave the affine."""
        return self._affine is not None

    def placed_at(self, affine: Affine) -> Volume:
        """Return the volume with another affine, in place of the stored one."""
        return Volume.of_source(self._source, self.kind, affine)

    @property
    def axis_map(self) -> AxisMap | None:
        """Map of its sections; None if they are shown as stored."""
        return getattr(self._source, "axis_map", None)

    @property
    def axis_map_key(self) -> str:
        """Key of all axis maps between the file and this volume; empty if there is none."""
        return getattr(self._source, "axis_map_key", "")

    def with_axis_map(self, axis_map: AxisMap) -> Volume:
        """Return the volume seen through an axis map: same affine, other keys."""
        below: Source = self._source
        if isinstance(self._source, AxisMappedSource):
            below, axis_map = self._source.source, self._source.axis_map.then(axis_map)
        return self._of(AxisMappedSource(below, axis_map), self.kind)

    @property
    def parts(self) -> tuple[Volume, ...]:
        """Volumes of the channels of a list, each read on its own; else this volume alone."""
        return getattr(self._source, "parts", (self,))

    @property
    def session(self) -> Session:
        """Owner of the open file, its chunks and prefetched bytes in this process."""
        return self._session or SESSION

    def in_session(self, session: Session) -> Volume:
        """Return the volume and its parts bound to a session of this process."""
        volume = self.__copy__()
        volume._session, volume._first = session, None
        if isinstance(self._source, StackedSource):
            volume._source = self._source.in_session(session)
        return volume

    def stored_mask(self) -> Volume | None:
        """Return a label volume with 1 at stored voxels; None unless the axis map has a mask."""
        source = self._source
        if isinstance(source, AxisMappedSource) and source.axis_map.has_mask:
            return self._of(StoredMaskSource(source), "label")
        return None

    def of_kind(self, kind: str) -> Volume:
        """Return the volume as another kind; only values of labels are rounded."""
        return self._of(self._source, kind)

    def _of(self, source: Source, kind: str) -> Volume:
        affine = None if self._affine is None else affine_matrix(self._affine)
        volume = Volume.of_source(source, kind, affine)
        volume._pass, volume._session, volume._to = self._pass, self._session, self._to
        return volume

    @property
    def content_key(self) -> str:
        """Equal for the same part of a file with the same content; empty if unknown."""
        content = content_of(self._backend())
        part_of = getattr(self.located_source or self._source, "part_of", None)
        return content if part_of is None else str(part_of(content))

    @property
    def shape(self) -> Shape:
        """(C, I, J, K)."""
        return (self._header or self.header).shape

    @property
    def spatial_shape(self) -> Triple:
        """(I, J, K)."""
        return self.header.shape[1:]

    @property
    def grid(self) -> Grid:
        """Spatial shape and affine."""
        if self._grid is None:
            has_header = self._header is not None or hasattr(self._source, "known_header")
            if self._affine is None and not has_header:
                # That of the open backend, shared by all copies of the volume in batches.
                self._grid = self._backend().grid
                return self._grid
            header = self._header or self.header
            affine = affine_matrix(self._affine or header.affine)
            self._grid = Grid(header.shape[1:], affine, AS_READ[not header.names_axes])
        return self._grid

    @property
    def affine(self) -> Affine:
        """4x4 float64, voxel index (of the centre) to world millimetres, RAS+; read-only."""
        return self.grid.affine

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Distance between voxel centres, in millimetres."""
        return self.grid.spacing

    @property
    def lengths(self) -> str:
        """Voxel size in the file's unit, such as ``"0.5 x 0.5 x 2 um"``; empty without a unit."""
        return "" if self._affine is not None else self.header.lengths

    @property
    def channel_names(self) -> tuple[str, ...]:
        """Name of each channel; empty where the file has none."""
        return self.header.channel_names

    @property
    def disk_dtype(self) -> np.dtype[Any]:
        """Stored type, with its byte order."""
        return self.header.disk_dtype

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of values: the stored one in native byte order; patches have booleans as uint8.

        With scaling: float32 for integers of up to 16 bits and floats of up to 32, else float64.
        """
        return self.header.dtype

    @property
    def chunks(self) -> Triple | None:
        """Spatial decode unit in voxels; None where every voxel can be read alone."""
        return (self._header or self.header).chunks

    @property
    def access(self) -> Access:
        """``"view"`` (mapped), ``"range"`` (byte ranges) or ``"stream"`` (from the start)."""
        return self.header.access

    @property
    def names_axes(self) -> bool | None:
        """Whether the file or ``axes=`` names the axes; None with ``affine=`` alone.

        True before the header is read.
        """
        if self._header is None or self._header.names_axes:
            return True
        return False if self._affine is None else None

    @property
    def header(self) -> Header:
        """Stored header, read at the first use."""
        if self._header is None:
            if hasattr(self._source, "known_header"):  # from a manifest, without an open file
                with holding(OPENING, self.session):
                    self._header = header = self._source.known_header()
                self.rounds = self.may_round and self.kind == "label" and header.dtype.kind == "f"
            else:
                self._backend()
        assert self._header is not None
        labels = self._header.of_labels if self.rounds else self._header
        return labels or self._backend().header  # which raises

    def layout(self, volumes: int = 1) -> StoreLayout:
        """Return how ``volumes`` volumes like this one are stored; reads the header."""
        return self._backend().layout(volumes)

    def adjust(self, scheme: ReadScheme) -> ReadScheme | SchemeRefusal:
        """Return the scheme as the store can follow it, or a refusal; reads the header."""
        return self._backend().adjust(scheme)

    def read(self, region: Region, *, rounds: bool = True) -> Voxels:
        """Return the stored voxels of a spatial region, all channels.

        Parameters
        ----------
        region
            Three axes (I, J, K), inside the volume. With a ``box``, voxels in chunks outside the
            box are undefined.
        rounds
            Whether labels of real numbers are rounded; else by a later `round_labels`.

        Raises
        ------
        OutOfVolume
            The region exceeds the volume; this is an ``IndexError``.
        """
        backend = self._backend()
        if rounds or not isinstance(backend, LabelBackend):
            return read_counted(backend, region)
        return backend.read_stored(region)

    def round_labels(self, voxels: Voxels, region: Region) -> Voxels:
        """Return stored numbers of a region, read without rounding, as labels."""
        backend = self._backend()
        return backend.round_labels(voxels, region) if isinstance(backend, LabelBackend) else voxels

    def stored_fill(self, fill: float) -> float | None:
        """Return the stored number of a label value; None if no number is read as this label."""
        header = self._header or self._backend().header
        return stored_number(header.disk_dtype, header.slope, header.intercept, fill)

    def prefetch(self, region: Region) -> Closable | None:
        """Prefetch the bytes for :meth:`read`, until the ticket is closed; None if useless."""
        return None if region.is_empty else self._backend().prefetch(region)

    @property
    def looks_ahead(self) -> bool:
        """Whether :meth:`prefetch` may be useful; opens the volume."""
        return self._backend().looks_ahead

    def needed_chunks(self, region: Region) -> NeededChunks | None:
        """Return the chunks that :meth:`read` needs, or None without chunks; reads no voxel."""
        if self.axis_map is None and hasattr(self._source, "known_header"):
            return needed_of(self.header, region)
        return self._backend().needed_chunks(region)

    def fetch(self, region: Region) -> int | None:
        """Read the stored bytes for :meth:`read` without decoding; return their number.

        None for formats that cannot separate reading from decoding.
        """
        backend = self.probe()
        check_inside(region, backend.shape, self.name)
        return 0 if region.is_empty else backend.fetch(region)

    def refuse_change(self) -> None:
        """Raise ``VolumeChanged`` where the stored version is not the one that was opened.

        Patches call it after reading their voxels; manifests are compared at opening.
        """
        backend = self._backend()
        version, moment = self._stamp or (backend.version, 0)
        if self._pass:
            first = self._first
            if first is None or first.key[0] != self._pass:
                own = OpenedVersion((self._pass, self._source.token), version, moment, backend.name)
                first = self._first = (self._session or SESSION).first_version(own)
            version, moment = first.version, first.moment
        try:
            current = backend.is_as_of(moment) if moment else backend.is_current
            if current and backend.version == version:
                return
            how = "was written again, or touched,"
        except VolumeNotFound:
            how = "was removed"
        del backend  # the traceback must not keep the file open
        msg = f"{self.name} {how} since it was opened for this epoch."
        do = "Leave volumes as they are while an epoch reads them, and begin the epoch again."
        raise VolumeChanged(msg, do=do)

    def opened_anew(self, by: str, *, renews: bool = False) -> Volume:
        """Return the volume for a pass, which reads its header again.

        All processes read one version in a pass. Only ``renews`` reads a remote header again.
        """
        renew = getattr(self._source, "opened_anew", None)
        source = self._source if renew is None else renew(by)
        has_header = hasattr(source, "known_header")
        if source is self._source and (has_header or getattr(source, "backend", None) is not None):
            return self
        anew = object.__new__(type(self))
        anew.__dict__.update(self.__dict__, _source=source, _header=None, _grid=None, _stamp=None)
        anew.rounds, anew._renews = False, renews
        inner = getattr(self._source, "located_source", self._source)
        if isinstance(inner, LocatedSource) and not has_header:
            anew._pass = by
        return anew

    def __getitem__(self, item: Any) -> Volume:
        """Read a part and return it as a volume in memory, with its own affine.

        Parameters
        ----------
        item
            Integers, slices (steps may be negative) and one ellipsis over (C, I, J, K).
            Every axis is kept.

        Raises
        ------
        IndexError
            An index is out of range, or the selection is empty.
        TypeError
            The index is none of the above.
        """
        whole = self._backend() if self._data is None else self._load()
        source = select_to_memory(whole, item, self.affine, self.name)
        part = Volume.of_source(source, self.kind)
        part._to = self._to
        return part

    @property
    def dataobj(self) -> Backend:
        """Open backend, as an array of values: ``volume.dataobj[0, 2:4]`` is a tensor."""
        return self.probe()

    def to(self, *to: Any, **others: Any) -> Volume:
        """Return the volume whose tensors get a device, a type or both; nothing is read.

        These are :attr:`data`, that of parts, and the values of :meth:`numpy`. Patches keep the
        stored type, :attr:`dtype`.

        Examples
        --------
        >>> Volume(np.ones((2, 2, 2))).to("cpu")[0, 1].data.device
        device(type='cpu')
        """
        import torch

        reduce(torch.Tensor.to, to := (*to, *others.values()), torch.empty(0))  # refuses others
        volume = self.__copy__()
        volume._to = (*self._to, *to)
        volume._data = None if self._data is None else reduce(torch.Tensor.to, to, self._data)
        return volume

    @property
    def data(self) -> torch.Tensor:
        """All values as a tensor (C, I, J, K), read once and kept until :meth:`unload`.

        Users may change it. :meth:`numpy` and parts of this volume then have the change; patches,
        made of the stored voxels, do not.
        """
        if self._data is None:
            data = self._backend().to_tensor()
            self._data = reduce(type(data).to, self._to, data)
        return self._data

    def _load(self) -> Backend:
        backend = from_array(self.data, affine_entries(self.affine, self.name)).backend
        backend.name = self.name
        return backend

    @property
    def is_loaded(self) -> bool:
        """Whether :attr:`data` is in memory."""
        return self._data is not None

    def load(self) -> Volume:
        """Read all values now; return this volume."""
        self.data  # noqa: B018  reading the property loads the voxels
        return self

    def unload(self) -> Volume:
        """Release :attr:`data`; return this volume."""
        self._data = None
        return self

    def close(self) -> None:
        """Close the file and its locks in this process after other reads; a read opens it again."""
        for part in self.parts:
            source = part.located_source or part._source
            self.session.handles.close_one(source.token, getattr(source, "path", ""))

    def __enter__(self) -> Volume:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def probe(self) -> Backend:
        """Open the volume now, and return its backend."""
        backend = self._backend()
        backend.check_version()
        return backend

    def numpy(self) -> NDArray[Any]:
        """Return all values, (C, I, J, K); maybe a read-only view of the file or of ``data``."""
        backend = self._load() if self._to or self.is_loaded else self._backend()
        return read_counted(backend, Region.of_shape(self.spatial_shape)).values()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        is_view = (self.is_loaded or self.access == "view") and not self.header.tensor_dtype
        values = self.numpy()
        array = values if dtype is None else values.astype(dtype, copy=False)
        is_own = array is not values or not is_view or values.flags.owndata
        if copy is False and is_own:
            raise ValueError("these voxels need new memory, which copy=False forbids")
        return array.copy() if copy and not (is_own and array.flags.writeable) else array

    def _backend(self) -> Backend:
        """Return the open backend of this process, checked against the known header."""
        source, handles = self._source, (self._session or SESSION).handles
        handle = handles.by_token.get(source.token) if self._is_fresh else None
        if handle is not None:  # the usual call: open, with the known header
            backend = handle.backend
            if backend is not None and backend.header is self._header:
                handle.use = next(handle.uses)
                return LabelBackend(backend) if self.rounds else backend
        if self._header is None and hasattr(source, "known_header"):
            self.header  # noqa: B018  notes it
        header = self._header
        if header is None and self._renews:
            self._renews, base = False, self.located_source
            if base is not None and not base.path:
                (self._session or SESSION).renew(source, base)
        # Taken before opening, so that later writes are detected.
        now = time.time_ns() if header is None else 0
        backend = handles.acquire(source, verify=header is None)
        if header is not None and backend.header is not header:
            backend = handles.agreeing(source, header)
        self._header = header = backend.header
        if self.kind == "label" and header.dtype.kind == "f":
            self.rounds = self.may_round
        if now:
            self._stamp = backend.version, now
        elif self._stamp is not None and not self._is_fresh and backend.version != self._stamp[0]:
            # The open backend may be that of an earlier epoch.
            backend = handles.opened_again(source, backend)
        if header.times.number > 1 and not self._is_fresh:
            warn_of_times(self._source, header)
        self._is_fresh = True
        return LabelBackend(backend) if self.rounds else backend

    def __getstate__(self) -> dict[str, Any]:
        own = dict.fromkeys(("_grid", "_data", "_session", "_first"))  # of this process
        return {**self.__dict__, **own, "_is_fresh": False, "_renews": False}

    def __copy__(self) -> Volume:
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        return copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Volume:
        # Sources are immutable, and copying an array would only cost memory.
        copy = self.__copy__()
        copy._data = None if self._data is None else self._data.clone()
        return copy

    def __repr__(self) -> str:
        lengths = self._header and self.lengths
        facts = "" if self._header is None else f", {self._header.shape} {self.header.dtype}"
        return f"Volume({self.name!r}, {self.kind}{facts}{f', {lengths}' if lengths else ''})"
