"""Where finished voxels go: an array, a sharded zarr, a file that viewers read.

All of them take boxes in any order, and one box again after a kill: it holds the same voxels.
"""

from __future__ import annotations

import itertools
import os
import posixpath
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..core import Grid, Region
from ..core.errors import PatchSizeError
from ..spatial.plans.policy import LABEL
from ..spatial.resampling import native
from ..storage.location import absolute_place, is_url
from ..volumes import Header, Volume
from ..volumes.conversion.convert import create_arrays
from ..volumes.conversion.convert_plan import ConvertPlan, group_document, plan_conversion
from ..volumes.conversion.destination import (
    Destination,
    LocalDestination,
    check_destination,
    destination_of,
    hold,
    part_folder,
    upload,
)
from ..volumes.conversion.volume_file import (
    VolumeFile,
    as_stored,
    copy_turned,
    file_dtype,
    has_mark,
    refuse_unwritable,
)
from .open_cells import OpenCells

_IDENTITY_ROWS = (1.0, 0, 0, 0, 0, 1.0, 0, 0, 0, 0, 1.0, 0)  # the rows of a plan that copies all
_SHARD = "shard"  # the first entry of the keys of shards, beside those of cells
# A shard is whole in memory until its last voxel came, so it is smaller than one of convert().
_CHUNKS_PER_SHARD = 4


class Output(Protocol):
    """Where finished voxels go."""

    folder: Path | None
    """Where what is needed to go on after a kill can be kept; None where nothing is."""
    cells: OpenCells
    """What holds arrays that are not finished."""

    def begin(self, channels: int, dtype: np.dtype[Any]) -> None:
        """Learn what will come, before the first voxels do."""

    def write(self, region: Region, voxels: NDArray[Any]) -> None:
        """Take the voxels (C, I, J, K) of a box."""

    def flush(self) -> None:
        """Write what is neither written nor in ``cells``, so that a kill loses none of it."""

    def resume(self, regions: Iterable[Region]) -> None:
        """Learn what was written before a kill; ``cells`` has what was open."""

    def finish(self, kind: str) -> Volume:
        """Return the whole volume, of which every voxel was written."""

    def drop(self) -> None:
        """Remove what is being written: nobody goes on with it."""

    def close(self) -> None:
        """Let go of locks and files; what is written stays, for the next run."""


class ArrayOutput:
    """An array in memory, or one of the user's: whatever takes ``array[:, i, j, k] = voxels``."""

    folder: Path | None = None

    def __init__(self, grid: Grid, cells: OpenCells, array: Any = None) -> None:
        self.grid, self.cells, self.array = grid, cells, array

    def begin(self, channels: int, dtype: np.dtype[Any]) -> None:
        """Make the array, or look at the one that was given."""
        shape = (channels, *self.grid.shape)
        if self.array is None:
            self.array = np.zeros(shape, dtype)
        elif tuple(self.array.shape) != shape:
            msg = f"the destination has the shape {tuple(self.array.shape)}, the result {shape}"
            raise PatchSizeError(msg, do="Give an array (C, I, J, K) of that shape.")
        own = getattr(self.array, "dtype", dtype)
        if isinstance(own, np.dtype) and not np.can_cast(dtype, own, "same_kind"):
            msg = f"the destination holds {own}, and the result is {dtype}"
            raise TypeError(f"{msg}. Give dtype={str(own)!r}, or an array of {dtype}")

    def write(self, region: Region, voxels: NDArray[Any]) -> None:
        """Put the voxels of a box into their place."""
        value: Any = voxels
        if hasattr(self.array, "new_tensor"):  # a tensor takes tensors
            value = self.array.new_tensor(voxels)
        self.array[(slice(None), *region.slices)] = value

    def flush(self) -> None:
        """Do nothing: nothing waits."""

    def resume(self, regions: Iterable[Region]) -> None:
        """Do nothing: an array does not outlive its process."""

    def finish(self, kind: str) -> Volume:
        """Return the volume."""
        return Volume(self.array, affine=self.grid.affine, kind=kind)

    def drop(self) -> None:
        """Do nothing: an array goes with whoever holds it."""

    def close(self) -> None:
        """Let go of what is open."""
        self.cells.close()


class _LockedOutput:
    """What is written at a place that one process at a time writes to, and in it one output."""

    def __init__(
        self, place: str, cells: OpenCells, target: Destination, *, overwrite: bool, is_file: bool
    ) -> None:
        self.place, self.cells, self.target = place, cells, target
        self._overwrite = overwrite
        self._locks = ExitStack()
        try:
            self._locks.enter_context(hold(target, place))
            # Not before: another writer may just have finished.
            if check_destination(target, overwrite=overwrite, is_file=is_file) and not is_file:
                target.make_way()
        except BaseException:
            # Without the error, so that what a run has written that was killed stays.
            self._locks.close()
            raise
        self.folder = target.folder if isinstance(target, LocalDestination) else None

    def flush(self) -> None:
        """Do nothing: what waits is in ``cells``."""

    def drop(self) -> None:
        """Remove what is being written on a local disk: nobody goes on with it."""
        if isinstance(self.target, LocalDestination):
            self.target.drop()

    def close(self) -> None:
        """Let go of the lock; what is written stays, for the next run."""
        self.cells.close()
        self._locks.close()


class ZarrOutput(_LockedOutput):
    """A sharded zarr, local or in a bucket; a shard is written when its last voxel came."""

    def __init__(
        self,
        place: str,
        grid: Grid,
        cells: OpenCells,
        options: Mapping[str, Any],
        key: str,
        overwrite: bool,
    ) -> None:
        target = destination_of(place, options)
        super().__init__(place, cells, target, overwrite=overwrite, is_file=False)
        self.grid, self._options, self._key = grid, options, key
        self._plan: ConvertPlan | None = None
        self._array: Any = None
        self._counts: dict[tuple[int, int, int], int] = {}

    def begin(self, channels: int, dtype: np.dtype[Any]) -> None:
        """Make the arrays, or find those of the run that was killed."""
        header = Header.of((channels, *self.grid.shape), dtype, self.grid.affine)
        side = plan_conversion(header).chunk
        self._plan = plan_conversion(
            header, chunk=max(side), shard=_CHUNKS_PER_SHARD * max(side), codec="zstd"
        )
        self.target.finished_shards(self._key)
        self._array = create_arrays(self._plan, self.target)
        self._counts = {index: region.size for index, region in self._plan.regions()}

    def write(self, region: Region, voxels: NDArray[Any]) -> None:
        """Add the voxels of a box to their shards, and write those that are whole."""
        assert self._plan is not None
        for index, shard, part in self._shards_of(region):
            key = (_SHARD, *index)
            piece = voxels[(slice(None), *part.shift([-a for a in region.start]).slices)]
            if part == shard:
                self._write_shard(index, shard, piece)
                continue
            if key in self.cells:
                buffer = self.cells.change(key)
            else:
                # As it is stored: nothing is left to be turned when it is whole.
                shape = (voxels.shape[0], *reversed(shard.shape))
                buffer = self.cells.new(key, shape, self._plan.dtype)
            place = part.shift([-a for a in shard.start])
            copy_natively(piece, buffer.transpose(0, 3, 2, 1)[(slice(None), *place.slices)])
            self._counts[index] -= part.size
            if self._counts[index] == 0:
                self._write_shard(index, shard, self.cells.pop(key).transpose(0, 3, 2, 1))

    def resume(self, regions: Iterable[Region]) -> None:
        """Count what is left of each shard."""
        for region in regions:
            for index, _, part in self._shards_of(region):
                self._counts[index] -= part.size

    def _shards_of(self, region: Region) -> Iterable[tuple[tuple[int, int, int], Region, Region]]:
        """Yield index and box of the shards that a box touches, and what they have in common."""
        assert self._plan is not None
        sizes = self._plan.shard
        pairs = zip(region.start, region.stop, sizes, strict=True)
        whole = Region.of_shape(self.grid.shape)
        for i, j, k in itertools.product(*(range(a // s, -(-b // s)) for a, b, s in pairs)):
            start = [n * s for n, s in zip((i, j, k), sizes, strict=True)]
            stop = [a + s for a, s in zip(start, sizes, strict=True)]
            shard = Region(start, stop).intersect(whole)
            yield (i, j, k), shard, shard.intersect(region)

    def _write_shard(
        self, index: tuple[int, int, int], shard: Region, voxels: NDArray[Any]
    ) -> None:
        assert self._plan is not None
        zyx = voxels.transpose(0, 3, 2, 1)
        zyx = zyx if len(self._plan.axes) == 4 else zyx[0]
        self._array[self._plan.index(shard)] = np.ascontiguousarray(zyx, self._plan.dtype)
        self.target.note(index)

    def finish(self, kind: str) -> Volume:
        """Write the metadata, by which the volume begins to exist."""
        assert self._plan is not None
        name = posixpath.basename(self.target.name.rstrip("/"))
        document = group_document(self._plan, name, {"key": self._key})
        self.cells.close()
        self.target.publish(document, overwrite=self._overwrite)
        self.close()
        options = self._options if is_url(self.place) else None
        return Volume(self.place, kind=kind, storage_options=options)


class FileOutput(_LockedOutput):
    """A NIfTI, NRRD or MetaImage file, written in place; behind a URL it is sent when whole."""

    def __init__(
        self,
        place: str,
        grid: Grid,
        cells: OpenCells,
        options: Mapping[str, Any],
        key: str,
        overwrite: bool,
        like: Volume | None = None,
    ) -> None:
        self._url = place if is_url(place) else ""
        self._temporary = ""
        self._file: VolumeFile | None = None
        self._header: Header | None = None
        self.grid, self._options, self._key, self._like = grid, options, key, like
        local = Path(absolute_place(place))
        if self._url:
            # Before the model runs, and again when it is sent.
            target = destination_of(place, options)
            check_destination(target, overwrite=overwrite, is_file=True)
            self._temporary = tempfile.mkdtemp(prefix="voxpipe-")
            local = Path(self._temporary, posixpath.basename(place))
        self._path = local
        try:
            target = LocalDestination(local)
            super().__init__(str(local), cells, target, overwrite=overwrite, is_file=True)
        except BaseException:
            self._remove_temporary()
            raise
        self.folder = None if self._url else self.folder

    def begin(self, channels: int, dtype: np.dtype[Any]) -> None:
        """Make the file, or find that of the run that was killed."""
        header = Header.of((channels, *self.grid.shape), file_dtype(dtype), self.grid.affine)
        self._header = header
        folder, own = part_folder(self.place), (self._like, self._key, copy_natively)
        self._file = VolumeFile(self._path, folder, header, *own)

    def write(self, region: Region, voxels: NDArray[Any]) -> None:
        """Put the voxels of a box into their place."""
        assert self._file is not None
        assert self._header is not None
        self._file.write(region, as_stored(voxels, self._header))

    def flush(self) -> None:
        """Write what waits for more of its row."""
        if self._file is not None:
            self._file.flush()

    def resume(self, regions: Iterable[Region]) -> None:
        """Do nothing: what was written is in the file."""

    def finish(self, kind: str) -> Volume:
        """Give the file its name, and send it where it belongs."""
        assert self._file is not None
        # Somebody else, who knows nothing of the lock, may have put a file there.
        check_destination(self.target, overwrite=self._overwrite, is_file=True)
        self._file.finish()
        self.cells.close()
        assert isinstance(self.target, LocalDestination)
        self.target.drop()
        if self._url:
            upload(self._path, self._url, self._options, overwrite=self._overwrite)
        self.close()
        options = self._options if self._url else None
        return Volume(self._url or self.place, kind=kind, storage_options=options)

    def close(self) -> None:
        """Let go of the file and the lock."""
        try:
            if self._file is not None:
                self._file.release()
        finally:
            super().close()
            self._remove_temporary()

    def _remove_temporary(self) -> None:
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)


def is_finished(place: str, key: str, options: Mapping[str, Any]) -> bool:
    """Whether what is at a place was written with this key."""
    if not refuse_unwritable(place):
        record = destination_of(place, options).record()
        return record is not None and record.get("key") == key
    return not is_url(place) and has_mark(Path(absolute_place(place)), key)


def output_at(
    destination: Any,
    grid: Grid,
    cells: OpenCells,
    *,
    options: Mapping[str, Any],
    key: str,
    overwrite: bool,
    like: Volume | None,
) -> Output:
    """Return the output for a destination: None or an array, or a path or URL."""
    if not isinstance(destination, (str, os.PathLike)):
        return ArrayOutput(grid, cells, destination)
    place = os.fspath(destination)
    if refuse_unwritable(place):
        return FileOutput(place, grid, cells, options, key, overwrite, like)
    return ZarrOutput(place, grid, cells, options, key, overwrite)


def copy_natively(voxels: NDArray[Any], target: NDArray[Any]) -> None:
    """Copy (C, I, J, K) to a target in another order of axes, as patches are copied."""
    source = native.SourceVoxels(voxels, (0, 0, 0), Region.of_shape(voxels.shape[1:]))
    if not native.run("copy", source, _IDENTITY_ROWS, LABEL, target):
        copy_turned(voxels, target)
