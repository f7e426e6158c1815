"""Write a volume as sharded zarr v3: shard by shard, continued after a kill, whole or absent.

The volume is read one shard at a time, so the memory needed does not grow with it. Voxels are
written as they are stored, by zarr-python; the affine, the slope and the intercept go into a
NIfTI-2 header beside them (NIfTI-Zarr), axes and spacing into OME-Zarr 0.5 metadata.
"""

from __future__ import annotations

import math
import os
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from ...core import Region
from ...core.errors import (
    DestinationExists,
    DestinationFull,
    SampleError,
    UnknownFormat,
    VolumeChanged,
    VolumeError,
    VoxpipeError,
)
from ...core.sample import case_of
from ...storage.content import content_key
from ...storage.decoded_cache import LOCK_TIMEOUT
from ...storage.disk_cache import FAILING, FULL
from ...storage.location import absolute_place, is_url, public_name
from ...storage.locks import CLOSED
from ..backend import content_of
from ..catalog.file_version import stamp_at
from ..catalog.find import plain_name
from ..header import affine_entries
from ..registry import BackendRequest, recognised
from ..session import SESSION
from ..volume import Volume
from .convert_plan import ConvertPlan, group_document, nifti_bytes, plan_conversion
from .destination import Destination, destination_of

_ZARR = ".zarr"


def refuse_other_formats(destination: str) -> None:
    """Raise where the name of a zarr group to be written is that of another format.

    A folder without a suffix is fine: what is in it tells that it is zarr.
    """
    shown = public_name(destination) if is_url(destination) else destination
    name = posixpath.basename(shown.replace("\\", "/").rstrip("/"))
    if name.lower().endswith(_ZARR) or plain_name(name) == name:
        return
    # As a URL, so that only the name counts, not what is there.
    if recognised(BackendRequest(uri=f"file:///{name}")):
        place, stem = shown.rstrip("/"), plain_name(name).removesuffix(_ZARR)
        raise UnknownFormat(
            f"sharded zarr is written, and {place} is the name of another format.",
            do=f"Call it {place[: -len(name)]}{stem}.nii.zarr.",
        )


Progress = Callable[[int, int], None]
"""``progress(done, total)`` in voxels (of all channels), called at the start and for each shard."""
# Blosc's own middle: higher levels of lz4 store little less.
_LEVEL = 5


@dataclass(frozen=True, repr=False)
class Converted:
    """What a conversion did."""

    location: str
    """Path or URL of the written volume."""
    chunk: tuple[int, int, int]
    """Voxels per inner chunk along I, J, K."""
    shard: tuple[int, int, int]
    """Voxels per shard along I, J, K."""
    written: int
    """Shards that this call wrote."""
    kept: int
    """Shards that were there: of a call that was killed, or of one that had finished."""

    def __repr__(self) -> str:
        told = [f"{key}={value!r}" for key, value in vars(self).items() if key != "location"]
        return f"Converted({', '.join([repr(public_name(self.location)), *told])})"


class HasLazyVolumes(Protocol):
    """A pipe that yields samples with lazy volumes, or any other iterable of them."""

    def __iter__(self) -> Iterator[Any]:
        """Yield the samples."""


class Flushes(Protocol):
    """A lazy patch."""

    def flushed(self, *, tiled: bool = ...) -> Any:
        """Return a patch of a volume that is made of this one, tile by tile."""


@overload
def convert(
    volume: Volume | str | os.PathLike[str] | Flushes,
    destination: str | os.PathLike[str],
    *,
    chunk: int | None = ...,
    shard: int | None = ...,
    patch: int = ...,
    codec: str = ...,
    overwrite: bool = ...,
    storage_options: Mapping[str, Any] | None = ...,
    progress: Progress | None = ...,
    timeout: float = ...,
) -> Converted: ...


@overload
def convert(
    volume: HasLazyVolumes,
    destination: str | os.PathLike[str],
    *,
    chunk: int | None = ...,
    shard: int | None = ...,
    patch: int = ...,
    codec: str = ...,
    overwrite: bool = ...,
    storage_options: Mapping[str, Any] | None = ...,
    progress: Progress | None = ...,
    timeout: float = ...,
) -> list[Converted]: ...


def convert(
    volume: Any,
    destination: str | os.PathLike[str],
    *,
    chunk: int | None = None,
    shard: int | None = None,
    patch: int = 96,
    codec: str = "lz4",
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    timeout: float = LOCK_TIMEOUT,
) -> Converted | list[Converted]:
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
        ``"lz4"`` (decodes fastest), ``"zstd"`` (stores least) or ``"none"``.
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
    >>> convert(volume, f"{folder.name}/a.nii.zarr", chunk=2, shard=4).written
    2
    >>> bool((Volume(f"{folder.name}/a.nii.zarr").numpy() == volume.numpy()).all())
    True
    >>> folder.cleanup()
    """
    place = os.fspath(destination)
    if hasattr(volume, "flushed"):
        volume = volume.flushed(tiled=True).volume
    elif isinstance(volume, Iterable) and not isinstance(volume, (str, list, tuple, Volume)):
        how: dict[str, Any] = {"chunk": chunk, "shard": shard, "patch": patch, "codec": codec}
        how |= {"overwrite": overwrite, "storage_options": storage_options}
        how |= {"progress": progress, "timeout": timeout}
        made = _made_by(volume, place)
        return [convert(patch, where, **how) for patch, where in made]
    elif not isinstance(volume, Volume):
        given = volume if isinstance(volume, (list, tuple)) else [volume]
        remote = any(is_url(os.fspath(one)) for one in given)
        volume = Volume(volume, storage_options=storage_options if remote else None)
    header = replace(volume.header, affine=affine_entries(volume.grid.affine, volume.name))
    plan = plan_conversion(header, chunk=chunk, shard=shard, patch=patch, codec=codec)
    _refuse_itself(volume, place)
    refuse_other_formats(place)
    target = destination_of(place, storage_options or {})
    with target.locked(timeout):
        try:
            written, kept = write_planned(
                volume, plan, target, overwrite=overwrite, progress=progress
            )
        except OSError as error:
            if isinstance(error, VoxpipeError):
                raise
            if error.errno not in FULL:
                if error.errno not in FAILING | CLOSED:
                    raise
                raise VolumeError(
                    f"{volume.name} could not be converted to {target.name}: {error.strerror}.",
                    do="Check the disks of both, and convert again.",
                ) from error
            raise DestinationFull(
                f"the disk of {target.name} is full: {error.strerror}.",
                do="Make room and convert again: what is written is continued. Or remove the "
                "hidden folder .NAME.part beside that place.",
            ) from error
    return Converted(place, plan.chunk, plan.shard, written, kept)


def _made_by(samples: Iterable[Any], place: str) -> Iterator[tuple[Any, str]]:
    """Yield the lazy patches of samples, and where each is written."""
    is_one = place.rstrip("/").lower().endswith(".zarr")
    written: set[str] = set()
    for sample in samples:
        lazy = {k: v for k, v in dict(sample).items() if hasattr(v, "flushed")}
        case = case_of(sample)
        if not lazy:
            what = f"there is no lazy volume in the sample of {case or 'a pipe'}"
            raise SampleError(what, do="Convert a pipe after open_volume(), before realize().")
        for key, patch in lazy.items():
            patch.flushed().volume.refuse_drawn()
            where = place if is_one else f"{place.rstrip('/')}/{case}/{key}.nii.zarr"
            if where in written:
                what = f"{key!r} of case {case} would be written to {where}, where another one is"
                do = "Give a folder for several volumes, and each case a name of its own."
                raise SampleError(what, do=do)
            written.add(where)
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
    found = target.record()
    if found is not None and found.get("key") == key and not overwrite:
        return 0, sum(1 for _ in plan.regions())
    if found is not None:
        if not overwrite:
            raise DestinationExists(
                f"{target.name} is there already.", do="Give another place, or overwrite=True."
            )
        if not target.is_group():
            raise DestinationExists(
                f"{target.name} is no zarr group, and nothing else is overwritten.",
                do="Give another place, or remove it yourself.",
            )
        target.make_way()
    done = target.finished(key)
    array: Any = _create(plan, target)
    total = math.prod(plan.header.shape)
    ready = written = 0
    tell = progress or (lambda done, total: None)
    tell(0, total)
    for index, region in plan.regions():
        if index not in done:
            array[plan.index(region)] = _turned(volume, plan, region)
            target.note(index)
            written += 1
        ready += region.size * plan.header.shape[0]
        tell(ready, total)
    if content_key(version_of(volume), plan.fingerprint()) != key:
        raise VolumeChanged(
            f"{volume.name} was written again while it was converted.",
            do="Convert it again once it is written.",
        )
    image = os.path.basename(target.name.rstrip("/"))
    target.publish(group_document(plan, image, {"key": key}), overwrite=overwrite)
    return written, len(done)


def version_of(volume: Any) -> str:
    """Return a digest of where a volume is, of the version that is there now, and of its axis maps.

    Two volumes in memory never have the same one, nor do two processes for one of them. A volume
    that is made of others tells its own.
    """
    if not isinstance(volume, Volume):
        return str(volume.version())
    located = volume.located
    if len(volume.parts) > 1:
        return content_key("channels of", tuple(map(version_of, volume.parts)))
    if located is None:
        return volume.token
    # What is worked out of its voxels shall be of the version that is looked at here.
    SESSION.handles.forget_content_key(volume.token)
    version: tuple[Any, ...] = (stamp_at(located),)
    if volume.rearranged:
        version += (volume.rearranged,)
    if version[0].how == "metadata":
        # Of so many objects a stamp tells of few: a manifest is compared with these at each
        # opening; a copy is made once, and looks at all.
        backend = SESSION.handles.acquire(located, verify=True)
        backend.forget_content_key()
        version += (content_of(backend),)
    return content_key(located.token, version)


def _turned(volume: Any, plan: ConvertPlan, region: Region) -> NDArray[Any]:
    """Return the stored numbers of a region, axes as they are written."""
    stored = volume.read(region).array
    if plan.dtype.kind == "b":
        stored = stored.view(np.bool_)  # which a read hands out as 0 and 1
    turned = stored.transpose(0, 3, 2, 1)
    return np.ascontiguousarray(turned if len(plan.axes) == 4 else turned[0], dtype=plan.dtype)


def _create(plan: ConvertPlan, target: Destination) -> Any:
    """Create the arrays of the group, or find those of the call that was killed; return one."""
    import zarr
    from zarr.codecs import BloscCodec
    from zarr.core.sync import sync

    header = np.frombuffer(nifti_bytes(plan.header), np.uint8)
    how: Any = {"compressors": None, "filters": None, "overwrite": True}
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
    blosc = None if codec == "none" else [BloscCodec(cname=codec, clevel=_LEVEL, shuffle="shuffle")]
    return zarr.create_array(
        store,
        shape=plan.stored_shape,
        chunks=plan.stored_chunks,
        shards=plan.stored_shards,
        dtype=plan.dtype,
        compressors=blosc,
        filters=None,
        fill_value=0,
        dimension_names=plan.axes,
        config=config,
    )


def _refuse_itself(volume: Any, place: str) -> None:
    volume = getattr(volume, "stored", volume)
    if len(volume.parts) > 1:
        for part in volume.parts:
            _refuse_itself(part, place)
    located = volume.located
    if located is None:
        return
    here = absolute_place(place)
    if (located.path or located.location).rstrip("/") == here.rstrip("/"):
        raise DestinationExists(
            f"{volume.name} cannot be written over itself.", do="Give another place."
        )
