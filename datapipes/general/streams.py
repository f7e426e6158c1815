"""Open files as they travel along a chain, and what pipes that reach storage share."""

from __future__ import annotations

import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

from torch.utils.data.datapipes.utils.common import StreamWrapper

from ...core.errors import SampleError, StreamError, VoxpipeError
from ...core.redact import Redacted, public_value
from ...graph import Pipe
from ...storage.location import Secrets, public_name, remote_errors
from ...storage.retry import Attempts, default_retry, retry_sync
from ..datapipe import DataPipe, SameLength
from ..datapipe import length as known_length


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
    """Return the two parts of an item."""
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        what = f"a tuple of {len(item)}" if isinstance(item, tuple) else type(item).__name__
        msg = f"a pair of a name and data expected, got {what}"
        do = "Open the files first: .open_files(mode='b') or .open_files_by_fsspec('rb')."
        raise SampleError(msg, do=do).at(pipe.origin)
    return item[0], item[1]


def named_stream(pipe: DataPipe, item: Any) -> tuple[str, Any]:
    """Return name and stream of an item, the stream wrapped."""
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
    """Return ``length``, or that of ``parent`` where it is negative."""
    if length >= 0:
        return length
    try:
        if parent is not None:
            return known_length(parent)
    except (TypeError, NotImplementedError):
        pass
    msg = f"{type(pipe).__name__} instance doesn't have valid length: it shows when all are read"
    raise TypeError(msg)


# A stream that ends with an error where it would give more than it may.
#
# A few stored bytes may stand for gigabytes (1 kB of xz for 7 MB, 50 kB of nested ones for more
# than a disk holds). What is read in pieces does no harm, so nothing is decoded ahead; what is
# read in one go is stopped here, before memory or disk are full.

MOST_BYTES = 16 * 1024**3
"""What one file may hold, decoded, unless the user says otherwise: a volume of 2048 cubed int16."""
_PIECE_BYTES = 1024**2
# What decoders say of damaged bytes; OSError of gzip and bzip2, without a number.
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile)
# zipfile: encrypted members, and compressions that it does not know.
_REFUSALS = (RuntimeError, NotImplementedError)
_CANNOT_GO_BACK = "seeking backwards is not allowed"


@contextmanager
def naming_damage(name: str) -> Iterator[None]:
    """Turn what a decoder says of damaged bytes into a ``StreamError`` that names the file."""
    try:
        yield
    except VoxpipeError:
        raise
    except (*_DAMAGE, *_REFUSALS, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk, not the bytes
        do = "Look at the file: it may have been cut short while it was copied."
        if _CANNOT_GO_BACK in str(error):
            do = "This archive is read as it arrives: read each member before the next one."
        told = str(error) or type(error).__name__
        raise StreamError(f"{name} cannot be read: {told}.", do=do) from error


class _BoundedStream(io.BufferedIOBase):
    """Reads another stream, which buffers itself, up to a number of bytes.

    Examples
    --------
    >>> _BoundedStream(io.BytesIO(b"abc"), 3, "a.gz").read()
    b'abc'
    """

    def __init__(self, file: Any, most: int, name: str, size: int | None = None) -> None:
        self._file, self._most, self.name = file, most, name
        self._is_small = size is not None and size <= most
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with naming_damage(self.name):
            self._at = int(self._file.seek(offset, whence))
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size >= 0:
            return self._taken(self._file.read, size)
        if self._is_small:
            return self._taken(lambda _: self._file.read(), 0)
        pieces: list[bytes] = []
        while piece := self._taken(self._file.read, _PIECE_BYTES):
            pieces.append(piece)
        return b"".join(pieces)

    def read1(self, size: int = -1) -> bytes:
        return self._taken(self._file.read1, size if size >= 0 else _PIECE_BYTES)

    def readline(self, size: int | None = -1) -> bytes:
        wanted = size if size is not None and size >= 0 else self._most
        return self._taken(self._file.readline, wanted)

    def _taken(self, take: Callable[[int], bytes], wanted: int) -> bytes:
        with naming_damage(self.name):
            # One byte more tells that there are more.
            found = take(min(wanted, max(0, self._most - self._at + 1)))
        self._at += len(found)
        if self._at > self._most:
            raise StreamError(
                f"{self.name} holds more than the {self._most} bytes that it may.",
                do="If it really is that large, give most_bytes= to the pipe that opens it.",
            )
        return found

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def bounded(
    file: Any, most: int, name: str, parent: Any = None, *, size: int | None = None
) -> StreamWrapper:
    """Return ``file`` as a stream that gives at most ``most`` bytes, wrapped."""
    return StreamWrapper(_BoundedStream(file, most, name, size), parent, name=name)


def validate_most_bytes(most: int) -> int:
    """Return ``most`` if it is a number of bytes."""
    if isinstance(most, bool) or not isinstance(most, int) or most < 0:
        raise ValueError(f"most_bytes is a number of bytes, got {most!r}")
    return most


T = TypeVar("T")


class StoragePipe(SameLength):
    """A pipe with options that may hold credentials: they are shown nowhere, nor told apart.

    torchdata gives them as plain keywords; ``storage_options=`` takes them, too.
    """

    plain_arguments: ClassVar[frozenset[str]] = frozenset()  # keywords that hold no credentials

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Remember where the pipe was written, without options and queries of URLs."""
        shown = {key: value for key, value in kwargs.items() if key in cls.plain_arguments}
        if len(shown) < len(kwargs):
            shown["storage_options"] = Redacted(kwargs)
        public = {key: public_value(value) for key, value in shown.items()}
        return super().__new__(cls, *map(public_value, args), **public)

    def __init__(self, parent: Pipe, options: Mapping[str, Any]) -> None:
        super().__init__(parent)
        beside = {key: value for key, value in options.items() if key != "storage_options"}
        self.storage_options = Redacted({**(options.get("storage_options") or {}), **beside})


def with_retries(url: str, options: Mapping[str, Any], doing: str, call: Callable[[], T]) -> T:
    """Return what ``call`` returns; what fails for a moment is tried again, until the deadline."""
    with remote_errors(url, options, doing):
        what = f"{doing} {public_name(url)}"
        attempts = Attempts(default_retry(), what, Secrets(options, url).describe)
        return retry_sync(call, attempts)
