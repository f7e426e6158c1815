"""Outputs of finished voxels, as classes, shares or numbers: an array, a zarr, or a file.

Boxes may come in any order. After a kill a box may come again with the same voxels.
"""

from __future__ import annotations

import itertools
import os
import posixpath
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from ..core import Grid, Region
from ..core.call_site import looking_ahead
from ..core.convert_dtype import convert_dtype
from ..core.errors import PatchSizeError, SampleError, VoxpipeError
from ..core.grid import XYZ
from ..core.validate import FieldChecks, as_choice, as_dtype, or_none
from ..spatial.plans.policy import LABEL
from ..spatial.resampling import native_resampler as native
from ..storage.location import absolute_place, is_url
from ..volumes import Header, Volume
from ..volumes.conversion.convert import create_arrays, publish
from ..volumes.conversion.convert_plan import ConvertPlan, plan_conversion
from ..volumes.conversion.destination import (
    Destination,
    LocalDestination,
    check_destination,
    destination_of,
    hold,
    part_folder,
    upload,
)
from ..volumes.conversion.ome_group import list_label, plan_at, refuse_no_image, refuse_other_image
from ..volumes.conversion.volume_file import (
    VolumeFile,
    as_stored,
    copy_turned,
    file_dtype,
    has_mark,
    refuse_unwritable,
)
from .stitcher import OpenCells

_IDENTITY_ROWS = (1.0, 0, 0, 0, 0, 1.0, 0, 0, 0, 0, 1.0, 0)  # the rows of the identity plan
_SHARD = "shard"  # first entry of shard keys, unlike those of cells
# A shard stays in memory until its last voxel, so it is smaller than one of convert().
_CHUNKS_PER_SHARD = 4
OUTPUTS = ("argmax", "softmax", "sigmoid", "logits")


class Output(Protocol):
    """Where finished voxels go; ``flush``, ``resume`` and ``drop`` do nothing by default."""

    folder: Path | None
    """Folder for a checkpoint; None if none is kept."""
    cells: OpenCells
    """Arrays that are not finished."""
    grid: Grid

    def begin(self, channels: int, dtype: np.dtype[Any]) -> None:
        """Set channels and type, before the first voxels."""

    def write(self, region: Region, voxels: NDArray[Any]) -> None:
        """Write the voxels (C, I, J, K) of a box."""

    def flush(self) -> None:
        """Write all voxels outside ``cells``, so that a kill loses none of them."""
        return

    def resume(self, regions: Iterable[Region]) -> None:
        """Register boxes written before a kill; ``cells`` has the open arrays."""
        return

    def finish(self, kind: str) -> Volume:
        """Return the whole volume, after every voxel was written."""

    def drop(self) -> None:
        """Remove an unfinished result that no run will continue."""
        return

    def close(self) -> None:
        """Release the open arrays, locks and files; written voxels stay for the next run."""
        self.cells.close()


class ArrayOutput(Output):
    """An array in memory, or the user's: any object with ``array[:, i, j, k] = voxels``.

    The user's array has the axes of the chain, such as those of ``to_axes("zyx")``.
    """

    folder: Path | None = None

    def __init__(self, grid: Grid, cells: OpenCells, array: Any = None, axes: str = XYZ) -> None:
        self.grid, self.cells, self.array = grid, cells, array
        self._is_new = array is None
        # The names of stored axes are those of x, y and z, or there are none.
        self._axes = XYZ if array is None or {*axes} != {*XYZ} else axes
        self._order = [XYZ.index(letter) for letter in self._axes]

    def begin(self, channels: int, dtype: np.dtype[Any]) -> None:
        """Make the array, or check the user's."""
        shape = (channels, *(self.grid.shape[axis] for axis in self._order))
        if self.array is None:
            self.array = np.zeros(shape, dtype)
        elif tuple(self.array.shape) != shape:
            msg = f"the destination has the shape {tuple(self.array.shape)}, the result {shape}"
            axes = "I, J, K" if self._axes == XYZ else ", ".join(self._axes)
            raise PatchSizeError(msg, do=f"Give an array (C, {axes}) of that shape.")
        own = getattr(self.array, "dtype", dtype)
        if isinstance(own, np.dtype) and not np.can_cast(dtype, own, "same_kind"):
            msg = f"the destination holds {own}, and the result is {dtype}"
            raise TypeError(f"{msg}. Give dtype={str(own)!r}, or an array of {dtype}")

    def write(self, region: Region, voxels: NDArray[Any]) -> None:
        value: Any = voxels.transpose(0, *(1 + axis for axis in self._order))
        if hasattr(self.array, "new_tensor"):  # a tensor takes tensors
            value = self.array.new_tensor(value)
        self.array[(slice(None), *(region.slices[axis] for axis in self._order))] = value

    def finish(self, kind: str) -> Volume:
        # The axes of a new array have names if those of the image have.
        is_named = self._axes != XYZ or (self._is_new and self.grid.axes == XYZ)
        own: Any = {"axes": f"c{self._axes}"} if is_named else {}
        return Volume(self.array, affine=self.grid.affine, kind=kind, **own)


class _LockedOutput(Output):
    """An output to a place under a lock: one process and one output at a time."""

    def __init__(
        self,
        place: str,
        target: Destination,
        locks: ExitStack,
        *,
        grid: Grid,
        cells: OpenCells,
        options: Mapping[str, Any],
        key: str,
        overwrite: bool,
        is_file: bool,
    ) -> None:
        self.place, self.target, self.grid, self.cells = place, target, grid, cells
        self._options, self._key, self._overwrite = options, key, overwrite
        self._locks = locks
        try:
            self._locks.enter_context(hold(target, place))
            # Not before: another writer may just have finished.
            if check_destination(target, overwrite=overwrite, is_file=is_file) and not is_file:
                target.make_way()
        except BaseException:
            # Only release the lock, so that the bytes of a killed run stay.
            self._locks.close()
            raise
        self.folder = target.folder if isinstance(target, LocalDestination) else None

    def drop(self) -> None:
        """Remove an unfinished result on a local disk."""
        if isinstance(self.target, LocalDestination):
            self.target.drop()

    def close(self) -> None:
        """Release the lock; written voxels stay for the next run."""
        self.cells.close()
        self._locks.close()


class ZarrOutput(_LockedOutput):
    """A sharded zarr, local or in a bucket; a complete shard is written at once."""

    _plan: ConvertPlan
    _array: Any
    _counts: dict[tuple[int, int, int], int]  # missing voxels of each shard
    unit = ""  # of lengths in the metadata; millimetres if empty

    def begin(self, channels: int, dtype: np.dtype[Any]) -> None:
        """Create the arrays, or open those of a killed run."""
        header = Header.of((channels, *self.grid.shape), dtype, self.grid.affine)
        header = replace(header, file_unit=self.unit)
        side = max(plan_conversion(header).chunk)
        shard = _CHUNKS_PER_SHARD * side
        plan = plan_conversion(header, chunk=side, shard=shard, codec="zstd")
        self._plan = plan_at(plan, self.place, None, self._options)
        self.target.finished_shards(self._key)
        self._array = create_arrays(self._plan, self.target)
        self._counts = {index: region.size for index, region in self._plan.regions()}

    def write(self, region: Region, voxels: NDArray[Any]) -> None:
        """Add the voxels of a box to their shards, and write those that are whole."""
        for index, shard, part in self._shards_of(region):
            key = (_SHARD, *index)
            piece = voxels[(slice(None), *part.shift([-a for a in region.start]).slices)]
            if part == shard:
                self._write_shard(index, shard, piece)
                continue
            if key in self.cells:
                buffer = self.cells.change(key)
            else:
                # In the stored order of axes, so that a complete shard needs no transpose.
                shape = (voxels.shape[0], *reversed(shard.shape))
                buffer = self.cells.new(key, shape, self._plan.dtype)
            place = part.shift([-a for a in shard.start])
            copy_natively(piece, buffer.transpose(0, 3, 2, 1)[(slice(None), *place.slices)])
            self._counts[index] -= part.size
            if self._counts[index] == 0:
                self._write_shard(index, shard, self.cells.pop(key).transpose(0, 3, 2, 1))

    def resume(self, regions: Iterable[Region]) -> None:
        """Count the missing voxels of each shard."""
        for region in regions:
            for index, _, part in self._shards_of(region):
                self._counts[index] -= part.size

    def _shards_of(self, region: Region) -> Iterable[tuple[tuple[int, int, int], Region, Region]]:
        """Yield index and box of each shard that a box touches, and their intersection."""
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
        self._array[self._plan.index(shard)] = self._plan.in_order(voxels)
        self.target.note(index)

    def finish(self, kind: str) -> Volume:
        """Write the metadata, which makes the volume visible."""
        self.cells.close()
        how = {"overwrite": self._overwrite, "is_label": kind == "label"}
        publish(self._array, self._plan, self.target, self._key, **how)
        list_label(self.place, self._options)
        self.close()
        options = self._options if is_url(self.place) else None
        return Volume(self.place, kind=kind, storage_options=options)


class FileOutput(_LockedOutput):
    """A NIfTI, NRRD or MetaImage file, written in place; uploaded at the end for a URL."""

    _header: Header

    def __init__(self, place: str, like: Volume | None, **how: Any) -> None:
        self._url, self._like = place if is_url(place) else "", like
        self._file: VolumeFile | None = None
        self._path, locks = Path(absolute_place(place)), ExitStack()
        if self._url:
            # Before the model runs, and again when it is sent.
            target = destination_of(place, how["options"])
            check_destination(target, overwrite=how["overwrite"], is_file=True)
            folder = tempfile.TemporaryDirectory(prefix="voxpipe-", ignore_cleanup_errors=True)
            self._path = Path(locks.enter_context(folder), posixpath.basename(place))
        super().__init__(str(self._path), LocalDestination(self._path), locks, is_file=True, **how)
        self.folder = None if self._url else self.folder

    def begin(self, channels: int, dtype: np.dtype[Any]) -> None:
        """Create the file, or open that of a killed run."""
        shape = (channels, *self.grid.shape)
        header = Header.of(shape, file_dtype(dtype), self.grid.affine)
        self._header = replace(header, file_unit=_unit_of(self._like))
        folder, own = part_folder(self.place), (self._like, self._key, copy_natively)
        self._file = VolumeFile(self._path, folder, self._header, *own)

    def write(self, region: Region, voxels: NDArray[Any]) -> None:
        assert self._file is not None
        self._file.write(region, as_stored(voxels, self._header))

    def flush(self) -> None:
        """Write the voxels that wait for the rest of their row."""
        if self._file is not None:
            self._file.flush()

    def finish(self, kind: str) -> Volume:
        """Rename the file to its name, and upload it."""
        assert self._file is not None
        # A program without the lock may have written a file there.
        check_destination(self.target, overwrite=self._overwrite, is_file=True)
        self._file.is_label = kind == "label"
        self._file.finish()
        self.cells.close()
        self.drop()
        if self._url:
            upload(self._path, self._url, self._options, overwrite=self._overwrite)
        self.close()
        options = self._options if self._url else None
        return Volume(self._url or self.place, kind=kind, storage_options=options)

    def close(self) -> None:
        try:
            if self._file is not None:
                self._file.release()
        finally:
            super().close()


def is_finished(place: str, key: str, options: Mapping[str, Any]) -> bool:
    """Whether the result at a place has this key."""
    if not refuse_unwritable(place):
        record = destination_of(place, options).record()
        return record is not None and record.get("key") == key
    return not is_url(place) and has_mark(Path(absolute_place(place)), key)


def _unit_of(like: Volume | None) -> str:
    """Return the unit of the stored volume; empty if its file needs further options."""
    try:
        with looking_ahead():
            return "" if like is None else like.header.file_unit
    except VoxpipeError:
        return ""


def output_at(
    destination: Any, grid: Grid, cells: OpenCells, like: Volume | None, *, axes: str, **how: Any
) -> Output:
    """Return the output for a destination: None or an array, of these axes, or a path or URL."""
    if not isinstance(destination, (str, os.PathLike)):
        return ArrayOutput(grid, cells, destination, axes)
    place = os.fspath(destination)
    how |= {"grid": grid, "cells": cells}
    if refuse_unwritable(place):
        return FileOutput(place, like, **how)
    refuse_no_image(place, how["options"])
    refuse_other_image(place, grid, how["options"])
    target = destination_of(place, how["options"])
    output = ZarrOutput(place, target, ExitStack(), is_file=False, **how)
    output.unit = _unit_of(like)
    return output


def copy_natively(voxels: NDArray[Any], target: NDArray[Any]) -> None:
    """Copy (C, I, J, K) to a target in another order of axes, as patches are copied."""
    source = native.SourceVoxels(voxels, (0, 0, 0), Region.of_shape(voxels.shape[1:]))
    if not native.run("copy", source, _IDENTITY_ROWS, LABEL, target):
        copy_turned(voxels, target)


# Results of the blended output of a model: classes, shares, or the numbers themselves.


@dataclass(frozen=True)
class Activation(FieldChecks):
    """Conversion of the blended output of a model, voxel by voxel.

    Examples
    --------
    >>> voxels = np.array([0.0, 3.0, 1.0], np.float32).reshape(3, 1, 1, 1)
    >>> Activation("argmax").of(voxels).item()
    1
    """

    output: str
    """One of ``OUTPUTS``."""
    dtype: Any = None
    """Type of the result; None: uint8, uint16 or uint32 for labels, by their number, or float32."""

    checks: ClassVar[Any] = {
        "output": partial(as_choice, choices=OUTPUTS),
        "dtype": or_none(as_dtype),
    }

    @property
    def kind(self) -> str:
        """The kind of the volume that it makes."""
        return "label" if self.output == "argmax" else "intensity"

    @property
    def before_resampling(self) -> Activation:
        """Conversion before a resample that interpolates."""
        first = "softmax" if self.output == "argmax" else self.output
        return Activation(first, np.dtype(np.float32))

    @property
    def after_resampling(self) -> Activation:
        """Conversion after that resample."""
        return self if self.output == "argmax" else Activation("logits", self.dtype)

    def channels(self, count: int) -> int:
        """Return how many channels the result has."""
        return 1 if self.output == "argmax" else count

    def dtype_of(self, count: int) -> np.dtype[Any]:
        """Return the type of the result for a number of channels of the model."""
        own: np.dtype[Any] | None = self.dtype
        if own is not None:
            if self.output == "argmax" and _largest_whole(own) < count - 1:
                msg = f"dtype={str(own)!r} cannot hold the labels of {count} classes"
                raise ValueError(f"{msg}: give a larger one, or none")
            return own
        if self.output != "argmax":
            return np.dtype(np.float32)
        return np.min_scalar_type(count - 1)

    def of(self, voxels: NDArray[Any]) -> NDArray[Any]:
        """Return the result for the blended output (C, I, J, K)."""
        dtype = self.dtype_of(voxels.shape[0])
        if self.output == "argmax":
            return _argmax(voxels, dtype)
        if self.output == "softmax":
            with np.errstate(invalid="ignore"):  # of infinite numbers shares are NaN
                voxels = np.exp(voxels - voxels.max(axis=0, keepdims=True))
            voxels /= voxels.sum(axis=0, keepdims=True)
        elif self.output == "sigmoid":
            with np.errstate(over="ignore"):  # 1 / (1 + inf) is 0
                voxels = 1 / (1 + np.exp(-voxels))
        return voxels if voxels.dtype == dtype else convert_dtype(voxels, dtype)


def _largest_whole(dtype: np.dtype[Any]) -> int:
    """Return up to which whole number a type holds each."""
    if dtype.kind == "b":
        return 1
    return int(np.iinfo(dtype).max) if dtype.kind in "iu" else 2 ** (np.finfo(dtype).nmant + 1)


def _argmax(voxels: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the first of the largest channels (1, I, J, K), as NumPy does."""
    # Channel by channel: NumPy gathers the channels of each voxel first, which takes longer.
    kind = np.min_scalar_type(voxels.shape[0] - 1)
    labels: NDArray[Any] = np.zeros((1, *voxels.shape[1:]), kind)
    largest = voxels[0].copy()
    for channel, values in enumerate(voxels[1:], 1):
        # Channels only grow: where this one is larger, its number is larger than the one there.
        np.maximum(labels[0], (values > largest) * kind.type(channel), out=labels[0])
        np.maximum(largest, values, out=largest)
    if np.isnan(largest).any():
        # Windows without NaN gave it: infinities of both signs, or shares of one.
        msg = "no class is the largest: infinite numbers of the model blend to NaN"
        raise SampleError(msg, do="Let it give finite numbers; float16 ends at 65504.")
    classes: NDArray[Any] = labels.astype(dtype, copy=False)
    return classes


class ActivatedOutput:
    """Converts blended voxels to classes or shares for an output."""

    def __init__(self, output: Output, activation: Activation) -> None:
        self._output, self._activation = output, activation

    def scale(self, shape: tuple[int, int, int]) -> None:
        """Divide the space of the output into the voxels of another shape."""
        grid = self._output.grid
        factors = np.divide(grid.shape, shape)
        step = np.diag([*factors, 1.0])
        step[:3, 3] = (factors - 1) / 2  # the outer faces stay
        self._output.grid = Grid(shape, grid.affine @ step)

    def begin(self, channels: int) -> None:
        """Set the number of channels of the model."""
        own = self._activation
        if own.output == "argmax" and channels == 1:
            msg = "the model gives one channel, whose argmax is 0 everywhere"
            do = 'Give ⟦output="sigmoid"⟧ or "logits", or let it give a channel for each class.'
            raise SampleError(msg, do=do)
        self._shape = own.channels(channels), own.dtype_of(channels)
        self._output.begin(*self._shape)

    def write(self, region: Region, voxels: NDArray[np.float32]) -> None:
        """Write the result for a box of blended voxels."""
        self._output.write(region, self._activation.of(voxels))

    def write_zeros(self, region: Region) -> None:
        """Write 0 to a box without windows."""
        self._output.write(region, np.zeros((self._shape[0], *region.shape), self._shape[1]))
