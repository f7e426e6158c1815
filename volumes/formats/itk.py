"""What SimpleITK reads and voxpipe does not, and images that SimpleITK has in memory.

The header is read without voxels. These are decoded once, into the cache directory, and
mapped from there: ITK's readers decode everything for any region, but for a few formats.
"""

from __future__ import annotations

import importlib
import math
import os
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...core import IO_COUNTERS
from ...core.errors import (
    BadHeader,
    CorruptVolume,
    MissingDependency,
    UnknownFormat,
    VolumeTooLarge,
)
from ...core.memory import usable_memory
from ..array_source import ArraySource
from ..backend import Backend
from ..header import affine_entries
from ..raw_header import RawHeader, fold
from .itk_axes import world_affine
from .itk_ends import check_claims, check_end
from .raw_backends import DecodedRaw
from .stored_file import LocalStoredFile

# ITK's readers that read a part of a file: these are decoded slab by slab.
_STREAMING = ("MetaImageIO", "VTKImageIO", "MRCImageIO")
# Memory of one slab.
_SLAB_BYTES = 64 * 1024**2
_NUMBERS = {
    "Int8": "i1",
    "UInt8": "u1",
    "Int16": "i2",
    "UInt16": "u2",
    "Int32": "i4",
    "UInt32": "u4",
    "Int64": "i8",
    "UInt64": "u8",
    "Float32": "f4",
    "Float64": "f8",
}


def is_installed() -> bool:
    """Whether SimpleITK can be imported."""
    try:
        simpleitk()
    except ImportError:
        return False
    return True


def simpleitk() -> Any:
    """Return the module SimpleITK, which has no types."""
    return importlib.import_module("SimpleITK")


def itk_reads(path: str, follow: str = "beside") -> bool:
    """Whether SimpleITK is installed and recognises a file, by its name or its beginning."""
    # It opens what it is asked about, and would wait for the writer of a pipe.
    if not os.path.isfile(path) or not is_installed():
        return False
    try:
        check_claims(path, path, follow)
    except (BadHeader, MissingDependency):
        return True  # whoever opens it is told
    except OSError:
        return False
    return bool(_reader(path).GetImageIOFromFileName(path))


def open_itk(path: str, name: str, follow: str = "beside") -> Backend:
    """Open any file that SimpleITK reads; only the header is read.

    Raises
    ------
    BadHeader, UnknownFormat, LeadsOutside, MissingDependency
        SimpleITK cannot read it, or its voxels are no plain numbers.
    """
    file = LocalStoredFile(path, name)
    reader = _informed(path, name, follow)
    fields, image_io = _fields(reader, name), _image_io(reader)
    check_end(file, image_io, fields.voxel_bytes)
    voxels = _ItkVoxels(path, name, fields, reader.GetSize(), image_io)
    IO_COUNTERS.count(headers=1)
    return DecodedRaw(fields, [file], name, voxels.write)


def header_of(path: str, name: str) -> RawHeader:
    """Return what the header of a file says about its voxels."""
    return _fields(_informed(path, name), name)


def planes_of(path: str, name: str, fields: RawHeader) -> NDArray[Any]:
    """Return all voxels of a small file, in C order; they must be what ``fields`` says."""
    size = _informed(path, name).GetSize()
    return _ItkVoxels(path, name, fields, size, "").slab(0, size[-1])


def _informed(path: str, name: str, follow: str = "beside") -> Any:
    """Return a reader that has read the header."""
    check_claims(path, name, follow)
    reader = _reader(path)
    try:
        reader.ReadImageInformation()
    except RuntimeError as error:
        raise BadHeader(
            f"{name} cannot be read by SimpleITK: {_reason(error)}.", do="Check the file."
        ) from None
    return reader


def from_itk(image: Any, affine: tuple[float, ...] | None) -> ArraySource:
    """Return the source of a ``SimpleITK.Image``; its voxels are not copied.

    Parameters
    ----------
    image
        Two to four axes, any number of components; (C, I, J, K) are its components and
        axes in SimpleITK's order, and the affine turns LPS into RAS.
    affine
        Overrides the image's.
    """
    itk = simpleitk()
    # A copy shares the voxels until one of the two is written to.
    own = itk.Image(image)
    name = f"SimpleITK image {own.GetSize()} {own.GetPixelIDTypeAsString()}"
    fields = _fields(own, name)
    array = fields.view(np.asarray(_Memory(itk.GetArrayViewFromImage(own), own)))
    array = fold(array, (0, fields.channels), fields.channels)
    if affine is not None:
        fields = RawHeader(fields.shape, fields.dtype, 0, affine, axes=fields.axes)
    return ArraySource(array, fields.header("view"), name)


class _Memory:
    """The memory of an image as NumPy sees it; SimpleITK's own view does not keep it alive."""

    def __init__(self, view: NDArray[Any], owner: Any) -> None:
        self.__array_interface__ = view.__array_interface__
        self._owner = owner


@dataclass(frozen=True)
class _ItkVoxels:
    """Decodes the voxels of a file, in one piece or slab by slab."""

    path: str
    name: str
    fields: RawHeader
    size: tuple[int, ...]
    image_io: str

    def write(self, raw: BinaryIO) -> None:
        """Write all voxels, the fastest axis first."""
        whole = self.fields.voxel_bytes
        step = self.size[-1]
        if self.image_io in _STREAMING:
            step = max(1, min(step, _SLAB_BYTES * step // whole))
        elif 0 < usable_memory() < whole:
            raise VolumeTooLarge(
                f"{self.name} decodes to {whole} bytes, all of which SimpleITK needs at once.",
                do="Convert it to .nii or zarr on a machine with more memory.",
            )
        for first in range(0, self.size[-1], step):
            count = min(step, self.size[-1] - first)
            raw.write(self.slab(first, count).data)

    def slab(self, first: int, count: int) -> NDArray[Any]:
        """Return planes along the last axis, C order."""
        itk = simpleitk()
        reader = _reader(self.path)
        size = (*self.size[:-1], count)
        if count < self.size[-1]:
            reader.SetExtractIndex((*(0 for _ in self.size[:-1]), first))
            reader.SetExtractSize(size)
        try:
            image = reader.Execute()
        except (RuntimeError, MemoryError) as error:
            raise CorruptVolume(
                f"{self.name} cannot be decoded by SimpleITK: {_reason(error)}.",
                do="Copy or download the file again.",
            ) from None
        array: NDArray[Any] = itk.GetArrayFromImage(image)
        expected = math.prod(self.fields.shape) // self.size[-1] * count
        if image.GetSize() != size or array.size != expected or array.dtype != self.fields.dtype:
            raise CorruptVolume(
                f"{self.name} decodes to {image.GetSize()} {array.dtype.name}, and its header "
                f"speaks of {size} {self.fields.dtype.name}.",
                do="Check how the file was written.",
            )
        return np.ascontiguousarray(array)


def _reader(path: str) -> Any:
    itk = simpleitk()
    # Its warnings go to the terminal, past Python's; what matters is raised.
    itk.ProcessObject.SetGlobalWarningDisplay(False)
    reader = itk.ImageFileReader()
    reader.SetFileName(path)
    return reader


def _image_io(reader: Any) -> str:
    return str(reader.GetImageIO() or reader.GetImageIOFromFileName(reader.GetFileName()))


def _fields(image: Any, name: str) -> RawHeader:
    """Return what an image, or a reader that has read a header, says about the voxels."""
    size = tuple(int(n) for n in image.GetSize())
    count = len(size)
    pixel = image.GetPixelIDValue()
    components = _components(image)
    dtype, is_vector = _pixel_type(pixel, name)
    if not 1 <= count <= 5 or min(size) < 1 or components < 1:
        raise BadHeader(f"{name} holds no voxels: shape {size}.", do="Check the file.")
    matrix = np.array(image.GetDirection()).reshape(count, count) * np.array(image.GetSpacing())
    affine = world_affine([matrix[:, axis] for axis in range(min(count, 3))], image.GetOrigin()[:3])
    interleaved = (components,) if is_vector else ()
    first = len(interleaved)
    return RawHeader(
        shape=(*interleaved, *size, *(1,) * (3 - count)),
        dtype=dtype,
        offset=0,
        affine=affine_entries(affine, name),
        axes=(first, first + 1, first + 2),
    )


def _components(image: Any) -> int:
    """Return how many numbers a voxel has; readers and images call it differently."""
    ask = getattr(image, "GetNumberOfComponents", None) or image.GetNumberOfComponentsPerPixel
    return int(ask())


def _pixel_type(pixel: int, name: str) -> tuple[np.dtype[Any], bool]:
    """Return the type of the numbers, and whether a voxel may have several of them."""
    itk = simpleitk()
    for prefix in ("sitk", "sitkVector"):
        for text, code in _NUMBERS.items():
            if getattr(itk, prefix + text) == pixel:
                return np.dtype(code), prefix == "sitkVector"
    for text, code in (("Float32", "c8"), ("Float64", "c16")):
        if getattr(itk, f"sitkComplex{text}") == pixel:
            return np.dtype(code), False
    what = itk.GetPixelIDValueAsString(pixel)
    raise UnknownFormat(
        f"{name} holds voxels of SimpleITK's type {what}, which are no plain numbers.",
        do="Cast the image, for instance to sitkInt16.",
    )


def _reason(error: BaseException) -> str:
    """Return the sentence of an ITK error that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[-1].rstrip(".")
