"""Write a volume as sharded zarr v3: shard by shard, continued after a kill, whole or absent.

The volume is read one shard at a time, so the memory needed does not grow with it. Voxels are
written as they are stored, by zarr-python; the affine, the slope and the intercept go into a
NIfTI-2 header beside them (NIfTI-Zarr), axes and spacing into OME-Zarr 0.5 metadata. It can be
kept in a folder when it is first read (:func:`open_copy`).
"""

from __future__ import annotations

import math
import os
import posixpath
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypedDict, Unpack, overload

import numpy as np

from ...core import Region, errors
from ...core.sample import case_of
from ...storage import disk_cache
from ...storage.content import content_key
from ...storage.location import absolute_place, is_url, public_name
from ...storage.ranges import LocalRanges, ReadRange
from ...storage.volume_cache import LOCK_TIMEOUT, refusal_of, refuse_full
from ..backend import Backend, Channels, content_of
from ..catalog.find import plain_name
from ..catalog.manifest import stamp_at
from ..formats.zarr_array import open_node
from ..formats.zarr_backend import ZarrBackend
from ..formats.zarr_nodes import image_of
from ..header import Header, affine_entries
from ..registry import BackendRequest, is_recognised
from ..session import SESSION, opening_session
from ..volume import Volume
from ..voxels import Voxels
from .convert_plan import ConvertPlan, group_document, nifti_bytes, plan_conversion
from .destination import (
    Destination,
    LocalDestination,
    check_destination,
    destination_of,
    disk_errors,
)
from .volume_file import as_stored


def refuse_other_formats(destination: str) -> None:
    """Raise where the name of a zarr group to be written is that of another format.

    A folder without a suffix is fine: what is in it tells that it is zarr.
    """
    location = public_name(destination) if is_url(destination) else destination
    name = posixpath.basename(location.replace("\\", "/").rstrip("/"))
    if name.lower().endswith(GROUP) or plain_name(name) == name:
        return
    # As a URL, so that only the name counts, not what is there.
    if is_recognised(BackendRequest(uri=f"file:///{name}")):
        place, stem = location.rstrip("/"), plain_name(name).removesuffix(GROUP)
        what = f"sharded zarr is written, and {place} is the name of another format."
        raise errors.UnknownFormat(what, do=f"Call it {place[: -len(name)]}{stem}.nii.zarr.")


Progress = Callable[[int, int], None]
"""``progress(done, total)`` in voxels (of all channels), called at the start and for each shard."""
GROUP = ".zarr"  # suffix of a copy
# Compressed scans take a third to a half; less than a quarter of the voxels' bytes free means
# that the disk will be full.
_BEST_RATIO = 4
# Blosc's own middle. Higher levels of lz4hc take four times as long to write and store 1 % less.
_LEVEL = 5


@dataclass(frozen=True, repr=False)
class ConversionResult:
    """What a conversion did."""

    location: str  # path or URL of the written volume
    chunk: tuple[int, int, int]  # voxels per inner chunk along I, J, K
    shard: tuple[int, int, int]  # voxels per shard along I, J, K
    new_shards: int  # shards that this call wrote
    reused_shards: int  # shards that were there: of a call that was killed or had finished

    def __repr__(self) -> str:
        fields = [f"{key}={value!r}" for key, value in vars(self).items() if key != "location"]
        return f"ConversionResult({', '.join([repr(public_name(self.location)), *fields])})"


class FlushablePatch(Protocol):
    """A lazy patch."""

    def flush_plan(self, *, is_tiled: bool = ...) -> Any:
        """Return a patch of a volume that is made of this one, tile by tile."""


class ConvertOptions(TypedDict, total=False):
    """The options of :func:`convert`."""

    chunk: int | None
    shard: int | None
    patch: int
    codec: str
    overwrite: bool
    storage_options: Mapping[str, Any] | None
    progress: Progress | None
    timeout: float


Place = str | os.PathLike[str]


@overload
def convert(
    volume: Volume | Place | FlushablePatch, destination: Place, **options: Unpack[ConvertOptions]
) -> ConversionResult: ...


@overload
def convert(
    volume: Iterable[Any], destination: Place, **options: Unpack[ConvertOptions]
) -> list[ConversionResult]: ...


def convert(
    volume: Any,
    destination: str | os.PathLike[str],
    *,
    chunk: int | None = None,
    shard: int | None = None,
    patch: int = 96,
    codec: str = "lz4hc",
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    timeout: float = LOCK_TIMEOUT,
) -> ConversionResult | list[ConversionResult]:
    """Write a volume as sharded zarr v3: as it is stored, or as a chain makes it.

    A call that was killed is continued by the next one: shards that were finished are not
    written again. If the same volume was converted the same way before, nothing is done.

    Parameters
    ----------
    volume
        A volume, or a path or URL of one, which is written in its stored type; a list of these on
        one grid, for their channels; a lazy patch, of which what it gives is written, in its type;
        or a pipe that yields samples with these, for which nothing may be drawn. What is resampled
        is made block by block: the memory that it takes does not grow with the volume.
    destination
        Path or URL; by convention it ends in ``.nii.zarr``. For a pipe, a folder, in which the
        volumes are called ``CASE/KEY.nii.zarr``; or, where it yields one volume in all, a name that
        ends in ``.zarr``.
    chunk, shard
        Voxels along each axis of the decode unit and of the stored object; by default about
        a quarter of ``patch`` and 128 KiB, and 32 MiB before compression.
    patch
        Voxels along each axis of the patches that will be read.
    codec
        ``"lz4hc"`` (decodes fastest), ``"lz4"`` (written fastest), ``"zstd"`` (stores least) or
        ``"none"``.
    overwrite
        Replace the zarr group that is there. Nothing else is ever replaced.
    storage_options
        For fsspec, where the destination is a URL, and the volume is given as one. They never
        appear in messages.
    progress
        Called with voxels done and in all.
    timeout
        Longest wait for another process that writes to the same place, in seconds.

    Returns
    -------
    What was done; for a pipe, one for each volume.

    Raises
    ------
    DestinationExists
        Something else is there; this is a ``FileExistsError``.
    GraphError
        A pipe draws something for its samples.
    SampleError
        A sample of a pipe holds no lazy volume, or a case comes twice.
    UnknownFormat
        The name of the destination is that of another format.
    DestinationBusy
        Another process kept writing for longer than the timeout.
    DestinationFull
        The disk has no room; what is written stays, and is continued by the next call.
    VolumeError
        The volume cannot be read, or a size makes no sense.

    Examples
    --------
    >>> import tempfile
    >>> volume = Volume(np.arange(60, dtype=np.int16).reshape(3, 4, 5))
    >>> folder = tempfile.TemporaryDirectory()
    >>> convert(volume, f"{folder.name}/a.nii.zarr", chunk=2, shard=4).new_shards
    2
    >>> bool((Volume(f"{folder.name}/a.nii.zarr").numpy() == volume.numpy()).all())
    True
    >>> folder.cleanup()
    """
    place = os.fspath(destination)
    if hasattr(volume, "flush_plan"):
        volume = volume.flush_plan(is_tiled=True).volume
    elif isinstance(volume, Iterable) and not (
        isinstance(volume, (str, list, tuple, Volume))
        or any(hasattr(volume, name) for name in ("__array__", "dataobj", "GetSpacing"))
    ):
        how: ConvertOptions = {"chunk": chunk, "shard": shard, "patch": patch, "codec": codec}
        how |= {"overwrite": overwrite, "storage_options": storage_options}
        how |= {"progress": progress, "timeout": timeout}
        patches = _made_by(volume, place)
        return [convert(patch, where, **how) for patch, where in patches]
    elif not isinstance(volume, Volume):
        sources = volume if isinstance(volume, (list, tuple)) else [volume]
        paths = [os.fspath(one) for one in sources if isinstance(one, (str, os.PathLike))]
        remote = any(map(is_url, paths))
        volume = Volume(volume, storage_options=storage_options if remote else None)
    header = replace(volume.header, affine=affine_entries(volume.grid.affine, volume.name))
    plan = plan_conversion(header, chunk=chunk, shard=shard, patch=patch, codec=codec)
    refuse_itself(volume, place)
    refuse_other_formats(place)
    target = destination_of(place, storage_options or {})
    what = f"{volume.name} could not be converted to {target.name}"
    leave = "Or remove the hidden folder .NAME.part beside that place."
    with target.lock(timeout), disk_errors(what, target.name, leave):
        new_shards, reused_shards = write_planned(
            volume, plan, target, overwrite=overwrite, progress=progress
        )
    return ConversionResult(place, plan.chunk, plan.shard, new_shards, reused_shards)


def _made_by(samples: Iterable[Any], place: str) -> Iterator[tuple[Any, str]]:
    """Yield the lazy patches of samples, and where each is written."""
    is_one = place.rstrip("/").lower().endswith(".zarr")
    places: set[str] = set()
    for sample in samples:
        lazy = {k: v for k, v in dict(sample).items() if hasattr(v, "flush_plan")}
        case = case_of(sample)
        if not lazy:
            what = f"there is no lazy volume in the sample of {case or 'a pipe'}"
            do = "Convert a pipe after open_volume(), before realize()."
            raise errors.SampleError(what, do=do)
        for key, patch in lazy.items():
            patch.flush_plan().volume.refuse_drawn()
            where = place if is_one else f"{place.rstrip('/')}/{case}/{key}.nii.zarr"
            if where in places:
                what = f"{key!r} of case {case} would be written to {where}, where another one is"
                do = "Give a folder for several volumes, and each case a name of its own."
                raise errors.SampleError(what, do=do)
            places.add(where)
            yield patch, where


def write_planned(
    volume: Any,
    plan: ConvertPlan,
    target: Destination,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> tuple[int, int]:
    """Write a volume as planned, at a place that is locked; return the shards written and kept."""
    key = content_key(version_of(volume), plan.fingerprint())
    record = target.record()
    if record is not None and record.get("key") == key and not overwrite:
        return 0, sum(1 for _ in plan.regions())
    if check_destination(target, overwrite=overwrite):
        target.make_way()
    shards = target.finished_shards(key)
    array: Any = create_arrays(plan, target)
    total = math.prod(plan.header.shape)
    ready = new_shards = 0
    tell = progress or (lambda *_: None)
    tell(0, total)
    for index, region in plan.regions():
        if index not in shards:
            voxels = volume.read(region).array
            if plan.dtype.kind == "b":
                voxels = voxels.view(np.bool_)  # which a read hands out as 0 and 1
            voxels = voxels.transpose(0, 3, 2, 1)
            voxels = voxels if len(plan.axes) == 4 else voxels[0]
            array[plan.index(region)] = np.ascontiguousarray(voxels, dtype=plan.dtype)
            target.note(index)
            new_shards += 1
        ready += region.size * plan.header.shape[0]
        tell(ready, total)
    if content_key(version_of(volume), plan.fingerprint()) != key:
        what = f"{volume.name} was written again while it was converted."
        raise errors.VolumeChanged(what, do="Convert it again once it is written.")
    image = os.path.basename(target.name.rstrip("/"))
    target.publish(group_document(plan, image, {"key": key}), overwrite=overwrite)
    return new_shards, len(shards)


def version_of(volume: Any) -> str:
    """Return a digest of where a volume is, of the version that is there now, and of its axis maps.

    Two volumes in memory never have the same one, nor do two processes for one of them. A volume
    that is made of others tells its own.
    """
    if not isinstance(volume, Volume):
        return str(volume.version())
    source = volume.located_source
    if len(volume.parts) > 1:
        return content_key("channels of", tuple(map(version_of, volume.parts)))
    if source is None:
        return volume.token
    # What is worked out of its voxels shall be of the version that is looked at here.
    SESSION.handles.forget_content_key(volume.token)
    version: tuple[Any, ...] = (stamp_at(source),)
    if volume.axis_map_key:
        version += (volume.axis_map_key,)
    if version[0].how == "metadata":
        # Of so many objects a stamp tells of few: a manifest is compared with these at each
        # opening; a copy is made once, and looks at all.
        backend = SESSION.handles.acquire(source, verify=True)
        backend.forget_content_key()
        version += (content_of(backend),)
    return content_key(source.token, version)


def known_version(volume: Any) -> str:
    """Return what :func:`version_of` does; empty where nobody tells the version, as in memory.

    It differs too where a local file was replaced by one of its size and time of writing.
    """
    changes: list[Any] = []
    if isinstance(volume, Volume):
        for part in volume.parts:
            source = part.located_source
            if source is None or not stamp_at(source).version:
                return ""
            files: tuple[Any, ...] = ()  # the path, and others that its header names
            with suppress(errors.VoxpipeError):  # known by its name alone, without its options
                files = getattr(part.probe(), "files", ()) if source.path else ()
            paths = {source.path, *(getattr(file, "path", "") for file in files)} - {""}
            changes += [(path, os.stat(path).st_ctime_ns) for path in sorted(paths)]
            changes += [file.content_key for file in files]
    return content_key(version_of(volume), tuple(changes))


def create_arrays(plan: ConvertPlan, target: Destination) -> Any:
    """Create the arrays of the group, or find those of the call that was killed; return one."""
    import zarr
    from zarr.codecs import BloscCodec, Crc32cCodec
    from zarr.core.sync import sync

    header = np.frombuffer(nifti_bytes(plan.header), np.uint8)
    how: Any = {"compressors": [Crc32cCodec()], "filters": None, "overwrite": True}
    small: Any = zarr.create_array(
        target.store("nifti"), shape=header.shape, chunks=header.shape, dtype=header.dtype, **how
    )
    small[...] = header
    store = target.store("0")
    # A shard that is missing then always means damage; -0.0 and NaN keep their bits.
    config: Any = {"write_empty_chunks": True}
    if sync(store.exists("zarr.json")):
        return zarr.open_array(store, mode="r+", zarr_format=3, config=config)
    codec: Any = plan.codec
    blosc = [] if codec == "none" else [BloscCodec(cname=codec, clevel=_LEVEL, shuffle="shuffle")]
    return zarr.create_array(
        store,
        shape=plan.stored_shape,
        chunks=plan.stored_chunks,
        shards=plan.stored_shards,
        dtype=plan.dtype,
        compressors=[*blosc, Crc32cCodec()],
        filters=None,
        fill_value=0,
        dimension_names=plan.axes,
        attributes={"voxpipe": {"complete": True}},
        config=config,
    )


def refuse_itself(volume: Any, place: str) -> None:
    """Raise DestinationExists where a volume, or a part of it, would be written over itself."""
    volume = getattr(volume, "stored_volume", volume)
    parts = getattr(volume, "parts", ())
    if len(parts) > 1:
        for part in parts:
            refuse_itself(part, place)
    source = getattr(volume, "located_source", None)
    if source is None:
        return
    one, other = (
        os.path.normcase(where.rstrip("/"))
        for where in (source.path or source.location, absolute_place(place))
    )
    is_same = one == other
    if source.path and not is_same and not is_url(place):
        with suppress(OSError):  # that are not there
            is_same = os.path.samefile(one, other)
    if is_same:
        what = f"{volume.name} cannot be written over itself."
        raise errors.DestinationExists(what, do="Give another place.")


class ConvertedCopy(ZarrBackend):
    """A copy of a volume in a folder."""

    def __init__(self, path: Path, header: Header, name: str) -> None:
        node = open_node(_Whole(str(path), name), name, opening_session().chunks, str(path))
        super().__init__(image_of(node, 0, name), name)
        if not self.header.agrees_with(header):
            what = f"the copy of {name} at {path} is not what was written there."
            raise errors.CorruptVolume(what, do="Open the volume again: the copy is made anew.")
        self._path = str(path)

    @property
    def content_key(self) -> str:
        """The name of the copy, which is made of the content of the original."""
        return content_key(os.path.basename(self._path), ())


class RetypedBackend(Backend):
    """A volume in another stored type, which is read and rounded region by region."""

    counts_below = True

    def __init__(self, volume: Any, header: Header, content_key: Callable[[], str]) -> None:
        self._volume, self._content_key = volume, content_key
        super().__init__(header, volume.name)

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Return a region as it is stored."""
        values = self._volume.read(region).values()
        array = as_stored(values[slice(*channels) if channels else slice(None)], self.header)
        is_boolean = self.header.dtype.kind == "b"
        return Voxels(array, self.header.slope, self.header.intercept, boolean=is_boolean)

    @property
    def content_key(self) -> str:
        """Return the key of the volume in this type."""
        return self._content_key()


def open_copy(folder: Path, key: str, volume: Any, plan: ConvertPlan) -> Backend:
    """Return the backend of a copy, which is made if need be; of the volume where none can be."""
    path, sums = folder / f"{key}{GROUP}", folder / disk_cache.SUMS / key
    size = math.prod(plan.header.shape) * plan.dtype.itemsize
    if not disk_cache.is_sound(path, sums):
        try:
            disk_cache.make_directory(folder)
            # Refuse early a copy that the disk cannot hold.
            refuse_full(folder, size // _BEST_RATIO)
            _write(path, sums, volume, plan)
        except (OSError, errors.VoxpipeError) as error:
            if (refusal := refusal_of(error, folder)) is None:
                raise
            what = f"a copy of {volume.name}, before compression"
            disk_cache.warn_unused(folder, size, what, refusal, None)
            return RetypedBackend(volume, plan.result, lambda: content_key(path.name, ()))
    return ConvertedCopy(path, plan.result, volume.name)


def _write(path: Path, sums: Path, volume: Any, plan: ConvertPlan) -> None:
    """Write a copy, unless another process does; a damaged one is removed first."""
    target = LocalDestination(path, sums)
    try:
        with target.lock(LOCK_TIMEOUT):
            if disk_cache.is_sound(path, sums):
                return
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            try:
                write_planned(volume, plan, target)
            except OSError as error:
                if error.errno in disk_cache.FAILING | disk_cache.READ_ONLY_ERRORS:
                    target.drop()  # what it takes is needed for other things
                raise
    except errors.DestinationBusy as error:  # whoever asked for voxels does not write
        raise errors.CacheBusy(error.what, do=error.do) from error


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
        answers = super().get_ranges(ranges, most)
        for request, answer in zip(ranges, answers, strict=True):
            if answer is None:
                what = f"{request.object} of the copy of {self._volume} at {self.name} was removed."
                raise errors.CorruptVolume(what, do="Open the volume again: the copy is made anew.")
        return answers
