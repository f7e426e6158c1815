"""Frames of voxels in files without a header of their own, such as those of detectors.

A frame is a picture of the last two axes. Each may have bytes before and after its voxels, and the
frames go on from file to file.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ...core import IO_COUNTERS
from ...core.call_site import shorten
from ...core.errors import BadHeader, SampleError, TruncatedVolume
from ...storage.location import is_url
from ...volumes import Volume
from ...volumes.backend import Backend
from ...volumes.formats.chunked_backend import SPATIAL, check_axes, named_layout
from ...volumes.formats.raw import RawHeader, SplitRaw, open_raw
from ...volumes.formats.stored_file import Format, StoredFile
from ...volumes.header import refuse_unreadable

_PICTURE = 2  # axes of a frame


def raw_volume(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    dtype: DTypeLike,
    shape: Sequence[int],
    axes: str = "zyx",
    offset: int = 0,
    frame_header_bytes: int = 0,
    frame_footer_bytes: int = 0,
    affine: ArrayLike | None = None,
    **options: Any,
) -> Volume:
    """Return the volume of files that are only bytes: frames, each maybe with a header or a footer.

    It reads as lazily and exactly as any other: a map of the file, or the rows of a region alone.
    In a chain: ``open_volume(reader="raw", dtype=..., shape=...)`` with the same options.

    Parameters
    ----------
    files
        Paths or URLs, in the order of their frames. Each file holds whole frames.
    dtype
        Type of the stored numbers, with their byte order: ``"<u2"``.
    shape
        Lengths of the ``axes``. The last two axes are the rows and columns of a frame.
    axes
        Letters of x, y, z, c and t, slowest first. Channels and times become C.
    offset
        Bytes before the frames of each file.
    frame_header_bytes, frame_footer_bytes
        Bytes around each frame.
    affine
        4x4 in millimetres, RAS+. By default a voxel is one millimetre.
    **options
        Further keywords of :class:`Volume`: ``kind``, ``io``, ``storage_options``.

    Raises
    ------
    TruncatedVolume
        The files hold fewer frames than the shape says.
    BadHeader
        They hold more, or bytes that are no whole frame.

    Examples
    --------
    Two files of 2 and 1 frames of 2 by 4 voxels, each frame with 3 bytes before it:

    >>> import tempfile
    >>> from pathlib import Path
    >>> folder, frames = Path(tempfile.mkdtemp()), np.arange(24, dtype="<u2").reshape(3, 2, 4)
    >>> _ = (folder / "a").write_bytes(b"HDR" + frames[0].tobytes() + b"HDR" + frames[1].tobytes())
    >>> _ = (folder / "b").write_bytes(b"HDR" + frames[2].tobytes())
    >>> volume = raw_volume(
    ...     [folder / "a", folder / "b"], dtype="<u2", shape=frames.shape, frame_header_bytes=3
    ... )
    >>> volume.shape, volume[:, :, :, 1:].numpy()[0, 3, 1].tolist()
    ((1, 4, 2, 3), [15, 23])
    """
    names = [files] if isinstance(files, (str, os.PathLike)) else [*files]
    if not names:
        raise SampleError("raw_volume() was given no file", do="Give one path or several.")
    texts = [os.fspath(name) for name in names]
    first, *others = [text if is_url(text) else os.path.abspath(text) for text in texts]
    fields: dict[str, Any] = {
        "dtype": np.dtype(dtype).str,
        "shape": tuple(shape),
        "axes": axes,
        "offset": offset,
        "frame_header_bytes": frame_header_bytes,
        "frame_footer_bytes": frame_footer_bytes,
    }
    fields = {key: value for key, value in fields.items() if value != _DEFAULTS.get(key)}
    if others:
        folder = os.path.dirname(first)
        fields["files"] = tuple(os.path.relpath(other, folder) for other in others)
        if any(name.startswith("..") for name in fields["files"]) and not is_url(first):
            options.setdefault("follow", "anywhere")  # the caller has named them
    return Volume(first, affine=affine, reader="raw", **fields, **options)


_DEFAULTS = {"axes": "zyx", "offset": 0, "frame_header_bytes": 0, "frame_footer_bytes": 0}


def open_frames(
    file: StoredFile,
    dtype: Any = None,
    shape: Sequence[int] = (),
    axes: str = "zyx",
    offset: int = 0,
    frame_header_bytes: int = 0,
    frame_footer_bytes: int = 0,
    files: Sequence[str] = (),
) -> Backend:
    """Return the backend of frames; ``files`` are relative to the folder of the first one."""
    name = file.name
    kind, sizes = _dtype_of(dtype, name), _shape_of(shape, name)
    letters = check_axes(axes, sizes, name)
    head, tail = frame_header_bytes, frame_footer_bytes
    for key, size in (
        ("offset", offset),
        ("frame_header_bytes", head),
        ("frame_footer_bytes", tail),
    ):
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise SampleError(f"{key}= of {name} is {shorten(size)}", do="Give a number of bytes.")
    if (head or tail or files) and not {*letters[-_PICTURE:]} <= {*SPATIAL}:
        msg = f"axes={letters!r} of {name} end in {letters[-_PICTURE:]}, and a frame has two of x, "
        raise SampleError(f"{msg}y and z", do="Store colours as an axis before them, or convert.")
    if isinstance(files, str):
        raise SampleError(f"files= of {name} is {files!r}", do="Give a list of names.")
    every = [file, *(file.beside(other) for other in files)]
    frame = math.prod(sizes[-_PICTURE:]) * kind.itemsize
    pitch, total = head + frame + tail, math.prod(sizes[:-_PICTURE])
    counts = [_frames_in(part, offset, pitch) for part in every]
    if sum(counts) != total:
        msg = f"{name}{f' and {len(files)} more' if files else ''} hold {sum(counts)} frames of "
        msg += f"{pitch} bytes, and shape={sizes} says {total}."
        error = TruncatedVolume if sum(counts) < total else BadHeader
        do = "Give the shape of all frames, and further files as files=; a list means channels."
        raise error(msg, do=do)
    fields = RawHeader(
        named_layout(sizes, letters, name), kind, offset + head, step=pitch * (head + tail > 0)
    )
    lead = len(sizes) - _PICTURE
    if len(every) == 1 and (lead <= 1 or not fields.step):
        return open_raw(replace(fields, step=fields.step * (lead > 0)), every, name)
    IO_COUNTERS.count(headers=1)
    starts = [fields.offset] * len(every)
    return SplitRaw(fields, every, name, lead=lead, counts=counts, starts=starts)


def _dtype_of(dtype: Any, name: str) -> np.dtype[Any]:
    try:
        kind = np.dtype(dtype if dtype is not None else "missing")
    except TypeError:
        msg = f"dtype= of {name} is {shorten(dtype)}"
        raise SampleError(msg, do='Give the stored type with its byte order: "<u2".') from None
    refuse_unreadable(kind, name)
    return kind


def _shape_of(shape: Any, name: str) -> tuple[int, ...]:
    try:
        sizes = tuple(map(operator.index, shape))
    except TypeError:
        sizes = ()
    if isinstance(shape, str) or len(sizes) < _PICTURE or min(sizes) < 1:
        msg = f"shape= of {name} is {shorten(shape)}"
        raise SampleError(msg, do="Give [frames, rows, columns], all positive.")
    return sizes


def _frames_in(file: StoredFile, offset: int, pitch: int) -> int:
    """Return the number of frames in a file; refuse other bytes after the last one."""
    count, rest = divmod(file.size - offset, pitch)
    if count < 0 or rest:
        msg = f"{file.name} holds {file.size} bytes: {max(count, 0)} frames of {pitch} after the "
        msg += f"first {offset}, and {rest if count >= 0 else 0} more."
        do = "Correct shape=, dtype=, offset= or the bytes around a frame, or copy the file again."
        raise BadHeader(msg, do=do)
    return count


FORMATS = (Format("raw", (), open_frames, (*_DEFAULTS, "dtype", "shape", "files")),)
