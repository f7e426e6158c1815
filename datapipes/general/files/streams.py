"""Open files as they travel along a chain: pairs of a name and a stream that closes itself.

The wrapper is torch's ``StreamWrapper``, which torch's own ``open_files`` yields as well: it
closes the file with the last reference to it, and a parent with the last of its children. So
whoever still holds a stream can read it, after the epoch too, and nobody else keeps it open.
"""

from __future__ import annotations

import io
from typing import Any

from torch.utils.data.datapipes.utils.common import StreamWrapper

from ....core.errors import SampleError
from ....graph import Pipe
from ...datapipe import DataPipe
from ...length import length as known_length


def janitor(thing: Any) -> None:
    """Close the streams in ``thing``: a stream, or dicts, lists and tuples of such.

    Examples
    --------
    >>> stream = StreamWrapper(io.BytesIO(b"abc"))
    >>> janitor(("a.txt", {"data": [stream]}))
    >>> stream.closed
    True
    """
    StreamWrapper.close_streams(thing)


def pair_of(pipe: DataPipe, item: Any) -> tuple[Any, Any]:
    """Return the two parts of an item.

    Raises
    ------
    SampleError
        It is no pair.
    """
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        what = f"a tuple of {len(item)}" if isinstance(item, tuple) else type(item).__name__
        msg = f"a pair of a name and data expected, got {what}"
        do = "Open the files first: .open_files(mode='b') or .open_files_by_fsspec('rb')."
        raise SampleError(msg, do=do).at(pipe.origin)
    return item[0], item[1]


def named_stream(pipe: DataPipe, item: Any) -> tuple[str, Any]:
    """Return name and stream of an item, the stream wrapped.

    Raises
    ------
    SampleError
        It is no pair of a name and an open file.
    """
    name, stream = pair_of(pipe, item)
    if not isinstance(name, str):
        msg = f"the first of a pair is a name, got {type(name).__name__}"
        raise SampleError(msg, do="Keep the path: .map(f, input_col=1)").at(pipe.origin)
    if not isinstance(stream, (io.IOBase, StreamWrapper)):
        msg = f"an open file expected for {name}, got {type(stream).__name__}"
        do = "Open the files first: .open_files(mode='b') or .open_files_by_fsspec('rb')."
        raise SampleError(msg, do=do).at(pipe.origin)
    return name, stream if isinstance(stream, StreamWrapper) else StreamWrapper(stream, name=name)


def length_or_type_error(pipe: DataPipe, parent: Pipe | None, length: int = -1) -> int:
    """Return ``length``, or that of ``parent`` where it is negative.

    Raises
    ------
    TypeError
        Neither is known.
    """
    if length >= 0:
        return length
    try:
        if parent is not None:
            return known_length(parent)
    except (TypeError, NotImplementedError):
        pass
    msg = f"{type(pipe).__name__} instance doesn't have valid length: it shows when all are read"
    raise TypeError(msg)
