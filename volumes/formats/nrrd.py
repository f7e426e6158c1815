"""NRRD (``.nrrd``, ``.nhdr``): raw voxels mapped or by range, compressed ones decoded once."""

from __future__ import annotations

from dataclasses import replace

from ...core.errors import BadHeader
from ..backend import Backend
from .itk_only import ItkOnly, open_with_itk
from .nrrd_header import parse_nrrd
from .raw_backends import at_the_end, open_raw
from .spread import open_spread
from .stored_file import StoredFile

# Headers are text of some hundred bytes; notes of the user's may make them longer.
HEAD_BYTES = 256 * 1024


def open_nrrd(file: StoredFile) -> Backend:
    """Open a NRRD by its header, which may be in front of the voxels or beside them."""
    try:
        found = parse_nrrd(file.head(HEAD_BYTES), file.name)
    except ItkOnly as why:
        return open_with_itk(file, why)
    if len(found.data_files) > 1:
        raw, skip = replace(found.raw, offset=0), found.raw.offset
        return open_spread(raw, file, found.data_files, encoding=found.encoding, skip=skip)
    data = file.beside(found.data_files[0]) if found.data_files else file
    skip = 0 if found.data_files else found.length
    if found.line_skip:
        skip = _after_lines(data, skip, found.line_skip)
    raw = found.raw
    if found.from_end:
        raw = at_the_end(raw, file, data, skip)
    elif found.encoding == "raw":
        raw = replace(raw, offset=raw.offset + skip)
    files = [file] if data is file else [file, data]
    return open_raw(raw, files, file.name, encoding=found.encoding, skip=skip)


def _after_lines(file: StoredFile, start: int, count: int) -> int:
    """Return where the text after some lines begins."""
    head = file.head(start + HEAD_BYTES)
    for _ in range(count):
        start = head.find(b"\n", start) + 1
        if not start:
            raise BadHeader(
                f"{file.name} has fewer lines than the {count} that its header skips.",
                do="Check how the file was written.",
            )
    return start
