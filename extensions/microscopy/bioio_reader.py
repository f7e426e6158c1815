"""Files of microscopes that the readers of bioio open: CZI of Zeiss, ND2 of Nikon, LIF of Leica.

A reader of bioio describes an image as an array of dask. A read computes the chunks of dask that a
region touches: single planes of CZI and LIF, and the chunks of the reader of ND2.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ...core import IO_COUNTERS, Region
from ...core.call_site import warn
from ...core.errors import (
    BadHeader,
    CorruptVolume,
    LikelyMistake,
    MissingDependency,
    SampleError,
    UnknownFormat,
)
from ...core.locks import ForkSafeLock
from ...core.suggest import few_names
from ...core.validate import MILLIMETRES, plain_unit, unit_word
from ...volumes.backend import Backend, Channels
from ...volumes.formats.chunked_backend import chunked_header, named_layout
from ...volumes.formats.stored_file import (
    FilesBackend,
    Format,
    LocalStoredFile,
    StoredFile,
    library_errors,
)
from ...volumes.header import IDENTITY, affine_entries
from ...volumes.voxels import Voxels
from .time_points import at_time

# The reader of each suffix, and the arguments that let it read single planes.
_PLANES = {"chunk_dims": ["Y", "X"]}
_READERS: dict[str, tuple[str, dict[str, Any]]] = {
    ".czi": ("bioio-czi", _PLANES),
    ".nd2": ("bioio-nd2", {}),
    ".lif": ("bioio-lif", _PLANES),
}
SUFFIXES = tuple(_READERS)
_INSTALL = "pip install 'voxpipe[bio]'"


def open_image(path: str, name: str) -> Any:
    """Return bioio's image of a local file; ``MissingDependency`` without bioio or its reader."""
    suffix = os.path.splitext(path)[1].lower()
    package, arguments = _READERS[suffix]
    try:
        import bioio
        from bioio_base.exceptions import UnsupportedFileFormatError
    except ImportError:
        msg = f"reading {name} needs bioio and {package}, which are not installed."
        raise MissingDependency(msg, do=_INSTALL) from None
    try:
        with library_errors(f"{name} cannot be opened", but=(UnsupportedFileFormatError,)):
            return bioio.BioImage(path, **arguments)
    except UnsupportedFileFormatError as error:
        # bioio says the same of a missing reader, and of a file that its reader refuses.
        if not _is_installed(package):
            msg = f"reading {name} needs {package}, which is not installed."
            raise MissingDependency(msg, do=_INSTALL) from None
        msg = f"{package} does not open {name}."
        raise BadHeader(msg, do="Copy the file again, or open it in its own program.") from error


def _is_installed(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package.replace("-", "_")) is not None


class BioioBackend(FilesBackend):
    """An image of bioio, as (C, I, J, K); times and channels are C, in stored order."""

    counts_itself = False

    def __init__(self, file: LocalStoredFile, image: Any, name: str) -> None:
        IO_COUNTERS.count(headers=1)
        self._array, self._lock = image.dask_data, ForkSafeLock()
        letters = [axis.lower() for axis in image.dims.order]
        shape = tuple(map(int, self._array.shape))
        self.sizes = dict(zip(letters, shape, strict=True))
        """Lengths of the stored axes, by letter."""
        names = tuple(map(str, image.channel_names or ()))
        names = names if len(names) == self.sizes.get("c", 1) else ()
        self._layout = named_layout(shape, letters, name, names)
        chunks = tuple(max(map(int, sizes)) for sizes in self._array.chunks)
        self.is_lazy = int(np.prod(self._array.numblocks)) > 1
        """Whether parts can be read alone; else a read decodes the whole image."""
        dtype, (affine, unit) = np.dtype(self._array.dtype), _affine(image, self.sizes, name)
        header = chunked_header(self._layout, chunks, dtype, name, affine)
        header = replace(header, access="range" if self.is_lazy else "stream", file_unit=unit)
        super().__init__([file], header, name)

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Return the stored voxels of a region."""
        index, (first, last) = self._layout.index(region, channels)
        msg = f"{region} of {self.name} cannot be decoded"
        # Readers share one handle of the file.
        with self._lock, library_errors(msg, kind=CorruptVolume):
            part = np.asarray(self._array[index.slices].compute(scheduler="synchronous"))
        return Voxels(self._layout.fold(part)[first:last])


def _affine(image: Any, sizes: dict[str, int], name: str) -> tuple[tuple[float, ...], str]:
    """Return the affine and the unit of lengths; bioio's readers give micrometres."""
    spacing = image.physical_pixel_sizes
    lengths = {axis: getattr(spacing, axis.upper(), None) for axis in "xyz"}
    if not any(lengths.values()):
        return IDENTITY, ""
    silent = [axis for axis in "xyz" if not lengths[axis] and sizes.get(axis, 1) > 1]
    if silent:
        msg = f"unknown-size: {name} has no voxel size along {', '.join(silent)}, which is read as "
        do = "Pass ⟦affine=numpy.diag([x, y, z, 1])⟧, with the voxel size in millimetres."
        warn(f"{msg}that along x. {do}", LikelyMistake)
    word = unit_word(str(getattr(image.dimension_properties.X, "unit", None) or "um"))
    unit = plain_unit(word) if word in MILLIMETRES else "um"
    usual = lengths["x"] or lengths["y"] or lengths["z"] or 1.0
    steps = [abs(float(lengths[axis] or usual)) * MILLIMETRES[unit] for axis in "xyz"]
    return affine_entries(np.diag([*steps, 1.0]), name), unit


def scenes_of(path: str, name: str) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the name of each scene of a file, and the lengths of its axes."""
    image = open_image(path, name)
    for scene in image.scenes:
        image.set_scene(scene)
        order = (axis.lower() for axis in image.dims.order)
        yield str(scene), dict(zip(order, map(int, image.shape), strict=True))


def open_bioio(
    file: StoredFile, scene: int | str | None = None, time: int | str | None = None
) -> Backend:
    """Return the backend of one scene of a file; ``scene`` is its name, or its number from 0.

    Raises
    ------
    MissingDependency
        bioio, or its reader of this format, is not installed.
    SampleError
        The file has no such scene or time point, or several scenes and none is chosen.
    """
    name = file.name
    if not isinstance(file, LocalStoredFile):
        msg = f"{name} is a URL, and the readers of bioio open files of a disk."
        raise UnknownFormat(msg, do="Copy it to a disk, or convert it to .ome.zarr.")
    image = open_image(file.path, name)
    scenes = [*map(str, image.scenes)]
    if scene is None and len(scenes) > 1:
        msg = f"{name} holds {len(scenes)} scenes: {few_names(scenes, 6)}"
        raise SampleError(msg, do="Give ⟦scene=NAME⟧ for one; vp.from_ome() makes a case of each.")
    by_name: dict[Any, int] = {**dict(zip(scenes, itertools.count(), strict=False))}
    number = 0 if scene is None else by_name.get(scene, scene)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(scenes):
        msg = f"{name} has no scene {scene!r}, but {few_names(scenes, 6)}"
        raise SampleError(msg, do=f"Give one of these names, or 0 to {len(scenes) - 1}.")
    image.set_scene(number)
    with library_errors(f"the metadata of {name} make no sense"):
        backend = BioioBackend(file, image, name)
    return backend if time is None else at_time(backend, time, name)


FORMATS = Format("bioio", SUFFIXES, open_bioio, ("scene", "time"), "bioio")
