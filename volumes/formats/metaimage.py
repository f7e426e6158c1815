"""MetaImage (``.mha``, ``.mhd``): raw voxels mapped or by range, compressed ones decoded once."""

from __future__ import annotations

from dataclasses import replace

from ..backend import Backend
from .itk_only import ItkOnly, open_with_itk
from .metaimage_header import parse_metaimage
from .raw_backends import at_the_end, open_raw
from .spread import open_spread
from .stored_file import StoredFile

# Headers are text of some hundred bytes; notes of the user's may make them longer.
HEAD_BYTES = 256 * 1024


def open_metaimage(file: StoredFile) -> Backend:
    """Open a MetaImage by its header, which may be in front of the voxels or beside them."""
    try:
        found = parse_metaimage(file.head(HEAD_BYTES), file.name)
    except ItkOnly as why:
        return open_with_itk(file, why)
    if len(found.data_files) > 1:
        encoding, skip = "zlib" if found.is_compressed else "raw", found.raw.offset
        raw = replace(found.raw, offset=0)
        return open_spread(raw, file, found.data_files, encoding=encoding, skip=skip)
    data = file.beside(found.data_files[0]) if found.data_files else file
    files = [file] if data is file else [file, data]
    raw = found.raw
    if found.is_compressed:
        return open_raw(replace(raw, offset=0), files, file.name, encoding="zlib", skip=raw.offset)
    if found.from_end:
        raw = at_the_end(raw, file, data, raw.offset)
    return open_raw(raw, files, file.name)
