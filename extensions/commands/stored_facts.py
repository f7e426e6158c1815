"""Facts of a stored volume that its header lacks: codec, levels, stored bytes, reader."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from ...storage.location import file_system
from ...volumes.registry import all_formats

# The first bytes of compressed files.
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x89PNG": "deflate",
    b"\xff\xd8\xff": "jpeg",
}
# Names of codecs by their names in NRRD.
_ENCODINGS = {"raw": "none", "gz": "gzip", "bz2": "bzip2", "ascii": "text", "txt": "text"}
_HEADER_BYTES = 4096  # of a text header; its fields of the encoding are among the first


def _backend_of(volume: Any) -> Any:
    """Return the backend of the file, below the views of channels and sections."""
    backend = volume.probe()
    while len(below := [*getattr(backend, "below", ())]) == 1:
        (backend,) = below
    return backend


def reader_of(volume: Any, form: str) -> str:
    """Return the class that reads a volume, and the library below it."""
    backend = _backend_of(volume)
    kind = type(backend)
    library = next((entry.needs for entry in all_formats() if entry.name == form), "")
    if form.startswith("zarr") and not backend.keeps_chunks:
        library = "zarr"
    return f"{kind.__module__}.{kind.__qualname__}" + (f", by {library}" if library else "")


def part_of(volume: Any) -> dict[str, Any]:
    """Return the label group and the time point that a volume is of a file; empty for all of it."""
    source = volume.located_source
    options = {} if source is None else source.options.reader_kwargs
    return {name: options[name] for name in ("label", "time") if options.get(name) is not None}


def stored_bytes(volume: Any, form: str) -> int | None:
    """Return the bytes of the files of a volume; None in memory, and for several files at a URL."""
    source = volume.located_source
    if source is None:
        return None
    files = getattr(_backend_of(volume), "files", ())
    # The place of a zarr at a URL is a folder, for which a server may send a listing.
    if not source.path and (len(files) > 1 or form == "zarr"):
        return None
    if not source.path:
        with suppress(Exception), _file_of(source) as file:
            return int(file.seek(0, os.SEEK_END))
        return None
    places = {getattr(file, "path", "") for file in files} - {""}
    if not places:
        below = (os.path.join(folder, name) for folder, _, n in os.walk(source.path) for name in n)
        places = {source.path} if os.path.isfile(source.path) else set(below)
    # An optional file of a format, such as the .mat of SPM, may be missing.
    return sum(os.stat(place).st_size for place in places if os.path.exists(place))


def _file_of(source: Any) -> Any:
    """Return the open file of a path or URL, for reading."""
    if source.path:
        return open(source.path, "rb")
    system, path = file_system(source.location, source.options.storage_options)
    return system.open(path, "rb")


def levels_of(volume: Any, form: str) -> int:
    """Return the number of stored resolutions, from the level that is read on."""
    source, levels = volume.located_source, len(getattr(_backend_of(volume), "levels", ()))
    if form == "tiff" and source is not None:
        import tifffile

        options = source.options.reader_kwargs
        with _file_of(source) as stream, tifffile.TiffFile(stream) as file:
            series = file.series[options.get("series") or 0]
            return len(series.levels) - (options.get("level") or 0)
    return 1 + levels


def codec_of(volume: Any, form: str) -> str:
    """Return the compression of stored voxels; ``"none"`` without, empty if unknown."""
    backend, source = _backend_of(volume), volume.located_source
    if form.startswith("zarr"):
        return _codec_of_zarr(backend)
    if source is None:
        return "none"
    with suppress(Exception):  # a fact for people, of a library that may be missing
        if form == "blosc2":
            return _codec_of_blosc2(source.path)
        if source.path and os.path.isdir(source.path):
            with open(backend.files[0].path, "rb") as file:
                return _CODECS[form](file, backend, source.options.reader_kwargs)
        with _file_of(source) as file:
            if find := _CODECS.get(form):
                return find(file, backend, source.options.reader_kwargs)
    return ""


def _codec_of_zarr(backend: Any) -> str:
    metadata = getattr(backend, "metadata", None)
    if metadata is None:
        return ""
    names = []
    for codec in metadata.codecs:
        inner = codec.settings.get("cname")
        names.append(f"{codec.name} ({inner})" if inner else codec.name)
    return ", ".join(names) or "none"


def _codec_of_tiff(stream: Any, _: Any, options: Mapping[str, Any]) -> str:
    import tifffile

    with tifffile.TiffFile(stream) as file:
        frame = file.series[options.get("series") or 0].keyframe
        return str(getattr(frame.compression, "name", frame.compression)).lower()


def _codec_of_hdf5(stream: Any, backend: Any, options: Mapping[str, Any]) -> str:
    import h5py

    with h5py.File(stream, "r") as file:
        every: list[Any] = []
        file.visititems(lambda _, node: every.append(node) if hasattr(node, "chunks") else None)
        name, size = options.get("dataset"), math.prod(backend.shape)
        dataset: Any = file[name] if name else next(each for each in every if each.size == size)
        names = [
            dataset.compression,
            "shuffle" * dataset.shuffle,
            "fletcher32" * dataset.fletcher32,
        ]
        return ", ".join(filter(None, names)) or "none"


def _codec_of_blosc2(path: str) -> str:
    import blosc2

    frame: Any = blosc2.open(path, mode="r")
    return f"blosc2 ({frame.schunk.cparams.codec.name.lower()})"


def _codec_of_dicom(file: Any, _: Any, options: Mapping[str, Any]) -> str:
    import pydicom

    return str(pydicom.dcmread(file, stop_before_pixels=True).file_meta.TransferSyntaxUID.name)


def _codec_of_text_header(file: Any, backend: Any, options: Mapping[str, Any]) -> str:
    head: bytes = file.read(_HEADER_BYTES)
    for line in head.split(b"\n"):
        name, _, value = line.decode("latin-1").replace("=", ":").partition(":")
        value = value.strip().lower()
        if name.strip().lower() == "encoding":
            return _ENCODINGS.get(value, value)
        if name.strip().lower() == "compresseddata":
            return "zlib" if value == "true" else "none"
    return _codec_of_bytes(file, backend, options)


def _codec_of_bytes(file: Any, _: Any, options: Mapping[str, Any]) -> str:
    file.seek(0)
    head: bytes = file.read(8)
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "none")


_CODECS: Mapping[str, Callable[[Any, Any, Mapping[str, Any]], str]] = MappingProxyType(
    {
        "dicom": _codec_of_dicom,
        "hdf5": _codec_of_hdf5,
        "metaimage": _codec_of_text_header,
        "nrrd": _codec_of_text_header,
        "tiff": _codec_of_tiff,
        "tiff-folder": _codec_of_tiff,
        "tiff-sequence": _codec_of_tiff,
        # Voxels after a header, or a whole file that is compressed.
        **dict.fromkeys(
            ("mgh", "nifti", "nifti-gz", "nifti-pair", "numpy", "raw", "simpleitk"), _codec_of_bytes
        ),
    }
)
