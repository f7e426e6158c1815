"""Conversion of volumes to sharded zarr v3: shard by shard, resumed after a kill, whole or absent.

One shard is read at a time, so memory does not grow with the volume. zarr-python writes the voxels
in their stored type. A NIfTI-2 header in the group (NIfTI-Zarr) holds the affine, the slope and the
intercept. OME-Zarr 0.5 metadata hold axes and spacing. Function :func:`open_copy` keeps copies in a
folder.
"""

from __future__ import annotations

import math
import os
import posixpath
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypedDict, Unpack, overload

import numpy as np

from ...core import Region, errors
from ...core.context import holding
from ...core.grid import XYZ
from ...core.progress import shows_progress
from ...core.sample import case_of
from ...storage import disk_cache
from ...storage.content import content_key
from ...storage.file_reader import LocalRanges
from ...storage.location import absolute_place, is_url, public_name
from ...storage.ranges import ReadRange
from ...storage.volume_cache import LOCK_TIMEOUT, refusal_of, refuse_full
from ..backend import Backend, Channels, content_of
from ..catalog.catalog import stamp_at
from ..catalog.find import plain_name
from ..formats.zarr_array import open_node
from ..formats.zarr_backend import ZarrBackend, stored_sum
from ..formats.zarr_nodes import image_of
from ..header import TIMES_STAY, Header, affine_entries
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
from .ome_group import (
    image_above,
    is_zarr2,
    list_label,
    plan_at,
    refuse_no_image,
    refuse_other_image,
    write_levels,
)
from .volume_file import as_stored, file_header, refuse_archive, refuse_times, writer_of
from .whole_file import write_file


def refuse_other_formats(destination: str) -> None:
    """Raise UnknownFormat where the name of a destination has the suffix of another format.

    A name without a suffix is accepted: the metadata in the folder identify it as zarr.
    """
    refuse_archive(destination)
    location = public_name(destination) if is_url(destination) else destination
    name = posixpath.basename(location.replace("\\", "/").rstrip("/"))
    if name.lower().endswith(GROUP) or plain_name(name) == name:
        return
    # As a URL, so that matchers use the name only and read no file.
    if is_recognised(BackendRequest(uri=f"file:///{name}")):
        place, stem = location.rstrip("/"), plain_name(name).removesuffix(GROUP)
        what = f"sharded zarr is written, and {place} is the name of another format."
        raise errors.UnknownFormat(what, do=f"Call it {place[: -len(name)]}{stem}.nii.zarr.")


Progress = Callable[[int, int], None]
"""``progress(done, total)`` in voxels (of all channels), called at the start and for each shard."""
GROUP = ".zarr"  # suffix of a copy
# Compressed scans take a third to a half of their bytes. With less than a quarter free, a copy
# would fill the disk.
_BEST_RATIO = 4
# Default level of Blosc. Higher levels of lz4hc take four times as long and store 1 % less.
_LEVEL = 5


@dataclass(frozen=True, repr=False)
class ConversionResult:
    """Layout of a written volume and the number of shards that were written."""

    location: str  # path or URL of the written volume
    chunk: tuple[int, int, int]  # voxels per inner chunk along I, J, K
    shard: tuple[int, int, int]  # voxels per shard along I, J, K
    new_shards: int  # shards that this call wrote
    reused_shards: int  # shards of an earlier call, killed or finished

    def __repr__(self) -> str:
        fields = [f"{key}={value!r}" for key, value in vars(self).items() if key != "location"]
        return f"ConversionResult({', '.join([repr(public_name(self.location)), *fields])})"


class FlushablePatch(Protocol):
    """A lazy patch."""

    def in_axes(self, axes: str) -> Any:
        """Return the patch with its named axes in another order."""

    def flush_plan(self, *, is_tiled: bool = ...) -> Any:
        """Return a patch of a volume that computes this one, tile by tile."""


class ConvertOptions(TypedDict, total=False):
    """Options of :func:`convert`."""

    chunk: int | None
    shard: int | None
    patch: int
    codec: str
    levels: int | None
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


@shows_progress("convert", "voxels")
def convert(
    volume: Any,
    destination: str | os.PathLike[str],
    *,
    chunk: int | None = None,
    shard: int | None = None,
    patch: int = 96,
    codec: str = "lz4hc",
    levels: int | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    timeout: float = LOCK_TIMEOUT,
) -> ConversionResult | list[ConversionResult]:
    """Write a volume, as stored or as a chain computes it, as sharded zarr v3 or OME-TIFF.

    A call resumes one that was killed and keeps its finished shards. It does nothing where the
    same volume was converted with the same arguments before.

    Parameters
    ----------
    volume
        A volume, or its path or URL, written in its stored type; a list of these on one grid, for
        their channels; a lazy patch, written in the type of its values; or a pipe of samples with
        lazy patches and no random draws. Patches are resampled block by block, so memory does not
        grow with the volume.
    destination
        Path or URL; by convention it ends in ``.nii.zarr``. ``.ome.zarr`` is a pyramid.
        ``img.zarr/labels/NAME`` is a label group of an image that was written before. ``.ome.tif``
        is an OME-TIFF, which ignores ``chunk``, ``shard`` and ``codec``. For a pipe, a folder, in
        which the volumes are called ``CASE/KEY.nii.zarr``. For a pipe of one volume also a name
        that ends in ``.zarr``.
    chunk, shard
        Voxels along each axis of the decode unit and of the stored object. Default chunks are
        about a quarter of ``patch`` and 128 KiB; default shards 32 MiB before compression.
    patch
        Voxels along each axis of later patches.
    codec
        ``"lz4hc"`` (decodes fastest), ``"lz4"`` (written fastest), ``"zstd"`` (stores least) or
        ``"none"``.
    levels
        Number of resolutions, each half as fine. By default ``.ome.zarr``, ``.ome.tif`` and label
        groups have them down to 256 voxels, others one. Labels are sampled. Others are averaged.
    overwrite
        Replace a zarr group at the destination. Other files and folders are never replaced, nor
        is a group with groups in it, such as the labels of an image.
    storage_options
        For fsspec, where the destination or the volume is a URL; never shown in messages.
    progress
        Called with the voxels done and the total.
    timeout
        Longest wait for another process that writes to the destination, in seconds.

    Returns
    -------
    The result; for a pipe, one for each volume.

    Raises
    ------
    DestinationExists
        Another file or folder is at the destination; this is a ``FileExistsError``.
    GraphError
        A pipe makes random draws for its samples.
    SampleError
        A sample of a pipe holds no lazy volume, or a case comes twice.
    UnknownFormat
        The destination has the suffix of another format.
    GridMismatch
        The labels do not cover the image of their group.
    DestinationBusy
        Another process kept writing for longer than the timeout.
    DestinationFull
        The disk is full; the next call resumes after the shards that are written.
    VolumeError
        The volume cannot be read, or a size is invalid.

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
        volume = volume.in_axes(XYZ).flush_plan(is_tiled=True).volume
    elif isinstance(volume, Iterable) and not (
        isinstance(volume, (str, list, tuple, Volume))
        or any(hasattr(volume, name) for name in ("__array__", "dataobj", "GetSpacing"))
    ):
        how: ConvertOptions = {"chunk": chunk, "shard": shard, "patch": patch, "codec": codec}
        how |= {"overwrite": overwrite, "storage_options": storage_options}
        how |= {"progress": progress, "timeout": timeout, "levels": levels}
        patches = _made_by(volume, place)
        return [convert(patch, where, **how) for patch, where in patches]
    elif not isinstance(volume, Volume):
        sources = volume if isinstance(volume, (list, tuple)) else [volume]
        paths = [os.fspath(one) for one in sources if isinstance(one, (str, os.PathLike))]
        remote = any(map(is_url, paths))
        volume = Volume(volume, storage_options=storage_options if remote else None)
    with holding(TIMES_STAY, True):  # or they are refused
        volume.header  # noqa: B018
    header = replace(volume.header, affine=affine_entries(volume.grid.affine, volume.name))
    plan = plan_conversion(header, chunk=chunk, shard=shard, patch=patch, codec=codec)
    refuse_itself(volume, place)
    if writer_of(place) is not None:
        refuse_times(header, place, volume.name)
        own: Any = {"overwrite": overwrite, "levels": levels, "options": storage_options or {}}
        write_file(place, volume, file_header(header), None, **own)
        whole = header.shape[1:]
        return ConversionResult(place, whole, whole, 1, 0)
    refuse_other_formats(place)
    refuse_no_image(place, storage_options or {})
    refuse_other_image(place, volume.grid, storage_options or {})
    plan = plan_at(plan, place, levels, storage_options or {})
    target = destination_of(place, storage_options or {})
    what = f"{volume.name} could not be converted to {target.name}"
    leave = "Or remove the hidden folder .NAME.part next to the destination."
    with target.lock(timeout), disk_errors(what, target.name, leave):
        new_shards, reused_shards = write_planned(
            volume, plan, target, overwrite=overwrite, progress=progress
        )
    list_label(place, storage_options or {})
    return ConversionResult(place, plan.chunk, plan.shard, new_shards, reused_shards)


def _made_by(samples: Iterable[Any], place: str) -> Iterator[tuple[Any, str]]:
    """Yield the lazy patches of samples and the destination of each."""
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
    """Write a volume to a locked destination; return the numbers of new and reused shards."""
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
    report = progress or (lambda *_: None)
    report(0, total)
    for index, region in plan.regions():
        if index not in shards:
            voxels = volume.read(region).array
            if plan.dtype.kind == "b":
                voxels = voxels.view(np.bool_)  # a read returns them as 0 and 1
            array[plan.index(region)] = plan.in_order(voxels)
            target.note(index)
            new_shards += 1
        ready += region.size * plan.header.shape[0]
        report(ready, total)
    if content_key(version_of(volume), plan.fingerprint()) != key:
        what = f"{volume.name} was written again while it was converted."
        raise errors.VolumeChanged(what, do="Convert it again once it is written.")
    is_label = getattr(volume, "kind", "") == "label"
    publish(array, plan, target, key, overwrite=overwrite, is_label=is_label)
    return new_shards, len(shards)


def publish(
    array: Any,
    plan: ConvertPlan,
    target: Destination,
    key: str,
    *,
    overwrite: bool,
    is_label: bool = False,
) -> None:
    """Record the check sums of all shards, so that none can replace another, and publish them.

    The coarser levels of the plan are written before.
    """
    counts = [-(-n // s) for n, s in zip(plan.stored_shape, plan.stored_shards, strict=True)]
    sums = [stored_sum(array, index) or b"" for index in np.ndindex(*counts)]
    record = {**array.attrs["voxpipe"], "sums": b"".join(sums).hex()}
    array.update_attributes({"voxpipe": record})
    above = image_above(target.name)
    is_label = is_label or above is not None
    write_levels(array, plan, target.store, partial(_create_array, plan), is_label=is_label)
    image = os.path.basename(target.name.rstrip("/"))
    document = group_document(plan, image, {"key": key})
    if above is not None:
        document["attributes"]["ome"]["image-label"] = {"source": {"image": "../../"}}
        document["zarr_format"] = 2 if is_zarr2(target.name) else 3
    target.publish(document, overwrite=overwrite)


def version_of(volume: Any) -> str:
    """Return a digest of a volume's location, its current version and its axis maps.

    A volume in memory has another digest in each process. Computed volumes return their own.
    """
    if not isinstance(volume, Volume):
        return str(volume.version())
    source = volume.located_source
    if len(volume.parts) > 1:
        return content_key("channels of", tuple(map(version_of, volume.parts)))
    if source is None:
        return volume.token
    # Results of its voxels must have the content key of this version.
    handle = SESSION.handles.by_token.get(volume.token)
    if handle is not None and handle.backend is not None:
        handle.backend.forget_content_key()
    version: tuple[Any, ...] = (stamp_at(source),)
    if volume.axis_map_key:
        version += (volume.axis_map_key,)
    if version[0].how == "metadata":
        # This stamp covers the metadata only, as a manifest compares it at each opening; a copy is
        # written once, so it may list all objects.
        backend = SESSION.handles.acquire(source, verify=True)
        backend.forget_content_key()
        version += (content_of(backend),)
    return content_key(source.token, version)


def known_version(volume: Any) -> str:
    """Return :func:`version_of` with the change times of local files; empty for arrays in memory.

    So it also changes where a file is replaced by another of the same size and modification time.
    """
    changes: list[Any] = []
    if isinstance(volume, Volume):
        for part in volume.parts:
            source = part.located_source
            if source is None or not stamp_at(source).version:
                return ""
            files: tuple[Any, ...] = ()  # of the path and of its header's references
            with suppress(errors.VoxpipeError):  # some open only with options of the reader
                files = getattr(part.probe(), "files", ()) if source.path else ()
            paths = {source.path, *(getattr(file, "path", "") for file in files)} - {""}
            # A folder changes with the labels that are added; its stamp lists the others.
            files_only = filter(os.path.isfile, sorted(paths))
            changes += [(path, os.stat(path).st_ctime_ns) for path in files_only]
            changes += [file.content_key for file in files]
    return content_key(version_of(volume), tuple(changes))


def create_arrays(plan: ConvertPlan, target: Destination) -> Any:
    """Create the arrays of the group, or open those of a killed call; return that of the voxels."""
    import zarr
    from zarr.codecs import Crc32cCodec
    from zarr.core.sync import sync

    header = np.frombuffer(nifti_bytes(plan.header), np.uint8)
    how: Any = {"compressors": [Crc32cCodec()], "filters": None, "overwrite": True}
    small: Any = zarr.create_array(
        target.store("nifti"), shape=header.shape, chunks=header.shape, dtype=header.dtype, **how
    )
    small[...] = header
    store = target.store("0")
    if sync(store.exists("zarr.json")):
        return zarr.open_array(store, mode="r+", zarr_format=3, config=_CONFIG)
    return _create_array(plan, store, plan.stored_shape)


# So a missing shard always means damage, and -0.0 and NaN keep their bits.
_CONFIG: Any = {"write_empty_chunks": True}


def _create_array(plan: ConvertPlan, store: Any, shape: tuple[int, ...]) -> Any:
    """Return a new array of a level; a coarser one of this shape replaces one of a killed call."""
    import zarr
    from zarr.codecs import BloscCodec, Crc32cCodec

    codec: Any = plan.codec
    blosc = [] if codec == "none" else [BloscCodec(cname=codec, clevel=_LEVEL, shuffle="shuffle")]
    return zarr.create_array(
        store,
        shape=shape,
        chunks=plan.stored_chunks,
        shards=plan.stored_shards,
        dtype=plan.dtype,
        compressors=[*blosc, Crc32cCodec()],
        filters=None,
        fill_value=0,
        dimension_names=plan.axes,
        attributes={"voxpipe": {"complete": True}},
        config=_CONFIG,
        overwrite=shape != plan.stored_shape,
    )


def refuse_itself(volume: Any, place: str) -> None:
    """Raise DestinationExists where a volume, or a part of it, is at the destination itself."""
    volume = getattr(volume, "stored_volume", volume)
    parts = getattr(volume, "parts", ())
    if len(parts) > 1:
        for part in parts:
            refuse_itself(part, place)
    source = getattr(volume, "located_source", None)
    if source is None:
        return
    own, target = (
        os.path.normcase(where.rstrip("/"))
        for where in (source.path or source.location, absolute_place(place))
    )
    is_same = own == target
    if source.path and not is_same and not is_url(place):
        with suppress(OSError):  # of missing files
            is_same = os.path.samefile(own, target)
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
        """Digest of the copy's name, which holds the content key of the original."""
        return content_key(os.path.basename(self._path), ())


class RetypedBackend(Backend):
    """A volume in another stored type, read and rounded region by region."""

    counts_below = True

    def __init__(self, volume: Any, header: Header, content_key: Callable[[], str]) -> None:
        self._volume, self._content_key = volume, content_key
        super().__init__(header, volume.name)

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Return a region in the stored type."""
        values = self._volume.read(region).values()
        array = as_stored(values[slice(*channels) if channels else slice(None)], self.header)
        is_boolean = self.header.dtype.kind == "b"
        return Voxels(array, self.header.slope, self.header.intercept, boolean=is_boolean)

    @property
    def content_key(self) -> str:
        """Key of the volume in this type."""
        return self._content_key()


def open_copy(folder: Path, key: str, volume: Any, plan: ConvertPlan) -> Backend:
    """Return the backend of a copy, written if missing; of the volume where the disk refuses it."""
    path, sums = folder / f"{key}{GROUP}", folder / disk_cache.SUMS / key
    size = math.prod(plan.header.shape) * plan.dtype.itemsize
    if not disk_cache.is_sound(path, sums):
        try:
            disk_cache.make_directory(folder)
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
    """Write a copy unless another process wrote it meanwhile; remove a damaged one first."""
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
                    target.drop()  # free the space
                raise
    except errors.DestinationBusy as error:  # the caller reads and knows no destination
        raise errors.CacheBusy(error.message, do=error.do) from error


class _Whole(LocalRanges):
    """A folder in which no file may be missing.

    A missing chunk of a zarr array reads as zeros. All chunks of a copy were written, so a missing
    one was removed, and reading zeros for it would be wrong.
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
