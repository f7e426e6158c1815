"""Open files as they travel along a chain: bounded, written to the local disk, checked."""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import tarfile
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from torch.utils.data.datapipes.utils.common import StreamWrapper

from ...core.errors import HashMismatch, SampleError, StreamError, VoxpipeError
from ...core.redact import RedactedDict
from ...datapipes.datapipe import DataPipe, PerItem, SameLength
from ...graph import Pipe, Traits
from ...storage.disk_cache import sync_folder, write_beside
from ...storage.file_reader import open_regular
from ...storage.location import Secrets, is_url, local_path, public_name, remote_errors
from ...storage.retry import Attempts, default_retry, retry_sync

_OPEN_FIRST = "Open the files first: .open_files(mode='b') or .open_files_by_fsspec('rb')."


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
        raise SampleError(msg, do=_OPEN_FIRST).at(pipe.origin)
    return item[0], item[1]


def named_stream(pipe: DataPipe, item: Any) -> tuple[str, Any]:
    """Return name and stream of an item, the stream wrapped."""
    name, stream = pair_of(pipe, item)
    if not isinstance(name, str):
        msg = f"the first of a pair is a name, got {type(name).__name__}"
        raise SampleError(msg, do="Keep the path: .map(f, input_col=1)").at(pipe.origin)
    if not isinstance(stream, (io.IOBase, StreamWrapper)):
        msg = f"an open file expected for {name}, got {type(stream).__name__}"
        raise SampleError(msg, do=_OPEN_FIRST).at(pipe.origin)
    return name, stream if isinstance(stream, StreamWrapper) else StreamWrapper(stream, name=name)


# A few stored bytes may decode to gigabytes: 1 kB of xz to 7 MB, 50 kB of nested archives to more
# than a disk holds. Reads in pieces are harmless, so nothing is decoded ahead. A read of the whole
# stream stops here, before memory or disk are full.

MOST_BYTES = 16 * 1024**3
"""Decoded bytes of one file, at most, by default: a volume of 2048 cubed int16."""
_PIECE_BYTES = 1024**2
# Errors of decoders for damaged bytes; gzip and bzip2 raise OSError without a number.
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile)
# zipfile: encrypted members, and compressions that it does not know.
_REFUSALS = (RuntimeError, NotImplementedError)
_CANNOT_GO_BACK = "seeking backwards is not allowed"


@contextmanager
def naming_damage(name: str) -> Iterator[None]:
    """Turn a decoder's error for damaged bytes into a ``StreamError`` that names the file."""
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
        reason = str(error) or type(error).__name__
        raise StreamError(f"{name} cannot be read: {reason}.", do=do) from error


class _BoundedStream(io.BufferedIOBase):
    """Reads another stream, which buffers itself, up to a number of bytes."""

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
            return self._take(self._file.read, size)
        if self._is_small:
            return self._take(lambda _: self._file.read(), 0)
        pieces: list[bytes] = []
        while piece := self._take(self._file.read, _PIECE_BYTES):
            pieces.append(piece)
        return b"".join(pieces)

    def read1(self, size: int = -1) -> bytes:
        return self._take(self._file.read1, size if size >= 0 else _PIECE_BYTES)

    def readline(self, size: int | None = -1) -> bytes:
        limit = size if size is not None and size >= 0 else self._most
        return self._take(self._file.readline, limit)

    def _take(self, take: Callable[[int], bytes], limit: int) -> bytes:
        with naming_damage(self.name):
            # One byte beyond the limit proves that there are more.
            chunk = take(min(limit, max(0, self._most - self._at + 1)))
        self._at += len(chunk)
        if self._at > self._most:
            msg = f"{self.name} holds more than the {self._most} bytes that it may."
            do = "If it really is that large, give most_bytes= to the pipe that opens it."
            raise StreamError(msg, do=do)
        return chunk

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def bound_stream(
    file: Any, most: int, name: str, parent: Any = None, *, size: int | None = None
) -> StreamWrapper:
    """Return ``file`` as a stream that gives at most ``most`` bytes, wrapped."""
    return StreamWrapper(_BoundedStream(file, most, name, size), parent, name=name)


T = TypeVar("T")


class StoragePipe(SameLength):
    """A pipe with options that may hold credentials: they are neither shown nor compared.

    torchdata gives them as plain keywords; ``storage_options=`` takes them, too.
    """

    plain_arguments: ClassVar[frozenset[str]] = frozenset()  # keywords that hold no credentials

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Remember where the pipe was written, without options and queries of URLs."""
        plain = {key: value for key, value in kwargs.items() if key in cls.plain_arguments}
        if len(plain) < len(kwargs):
            plain["storage_options"] = RedactedDict(kwargs)
        return super().__new__(cls, *args, **plain)

    def __init__(self, parent: Pipe, options: Mapping[str, Any]) -> None:
        super().__init__(parent)
        beside = {key: value for key, value in options.items() if key != "storage_options"}
        self.storage_options = RedactedDict({**(options.get("storage_options") or {}), **beside})


def with_retries(url: str, options: Mapping[str, Any], doing: str, call: Callable[[], T]) -> T:
    """Return the result of ``call``; transient failures are retried until the deadline."""
    with remote_errors(url, options, doing):
        what = f"{doing} {public_name(url)}"
        attempts = Attempts(default_retry(), what, Secrets(options, url).describe)
        return retry_sync(call, attempts)


KINDS = ("sha256", "md5")  # kinds of hashes that files are checked with


@dataclass(frozen=True)
class ExpectedHashes:
    """Expected hashes of files."""

    by_name: Mapping[str, str]  # hash in hexadecimal digits, by name or path
    kind: str = "sha256"  # ``"sha256"`` or ``"md5"``

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            msg = f"Invalid hash_type requested, should be one of {KINDS}, got {self.kind!r}"
            raise ValueError(msg)

    def new_digest(self) -> Any:
        return hashlib.new(self.kind, usedforsecurity=False)

    def check(self, name: str, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield pieces; at the end raise ``HashMismatch`` unless they have the hash of ``name``."""
        digest = self.new_digest()
        for piece in pieces:
            digest.update(piece)
            yield piece
        target = self.by_name.get(name)
        if target is None:
            do = f"Add it to hash_dict; it is {digest.hexdigest()} now."
            raise HashMismatch(f"Unspecified hash for file {name}.", do=do)
        if digest.hexdigest() != target.lower():
            msg = f"the {self.kind} of {name} is {digest.hexdigest()}, which does not match the "
            do = "It may have been cut short, or changed at its source: fetch it again."
            raise HashMismatch(f"{msg}expected {target}.", do=do)

    def match(self, path: str) -> bool:
        """Whether the file at ``path`` has its expected hash; False if none is given."""
        if path not in self.by_name:
            return False
        with open(path, "rb", opener=open_regular) as file:
            digest = hashlib.file_digest(file, self.new_digest)
        return bool(digest.hexdigest() == self.by_name[path].lower())


def pieces_of(data: Any) -> Iterator[bytes]:
    r"""Yield the bytes of bytes, text (as UTF-8), a stream, or several bytes or texts."""
    if isinstance(data, str):
        yield data.encode()
    elif isinstance(data, (bytes, bytearray, memoryview)):
        yield bytes(data)
    elif hasattr(data, "read"):
        while piece := data.read(_PIECE_BYTES):
            yield piece.encode() if isinstance(piece, str) else piece
    elif hasattr(data, "__iter__") and not isinstance(data, dict):
        for part in data:
            yield from pieces_of(part)
    else:
        msg = f"bytes, text or an open file expected, got {type(data).__name__}"
        raise SampleError(msg, do="Turn it into bytes first: .map(f, input_col=1)")


def local_target(path: str) -> str:
    """Return the local path of a file to write; refuse a URL, of which a folder would be made."""
    if is_url(path):
        what = f"{public_name(path)} is a URL, and the file is written to a local disk"
        raise SampleError(what, do="Give a local path, or write with save_by_fsspec().")
    return local_path(path)


def write_atomically(
    path: str, data: Any, hashes: ExpectedHashes | None = None, key: str = ""
) -> None:
    """Write ``data`` to ``path``; its folder is made, and a stream is closed."""
    pieces = pieces_of(data)
    folder = os.path.dirname(path)
    try:
        if folder:
            os.makedirs(folder, exist_ok=True)
        new = pieces if hashes is None else hashes.check(path, pieces)
        write_beside(Path(path), new, key=key)
        sync_folder(Path(folder))
    finally:
        janitor(data)


def checked_mode(mode: str) -> str:
    """Return a mode of writing: ``"w"`` is added to ``"b"`` or ``"t"``."""
    full = mode if "w" in mode else f"w{mode}"
    if sorted(full) not in (["w"], ["b", "w"], ["t", "w"]):
        raise ValueError(f"mode is 'w', 'wt' or 'wb', got {mode!r}")
    return full


class FileWriter(PerItem):
    """Writes the data of each ``(name, data)`` where ``filepath_fn`` says, and yields that."""

    filepath_fn: Callable[[Any], Any] | None

    @property
    def traits(self) -> Traits:
        return Traits(per_item=True, plain=True, runs_user_code=self.filepath_fn is not None)

    def apply(self, item: Any) -> Any:
        name, data = pair_of(self, item)
        path = name if self.filepath_fn is None else self.filepath_fn(name)
        try:
            self.write(path, data)
        finally:
            janitor(data)
        return path

    def write(self, path: Any, data: Any) -> None:
        write_atomically(local_target(os.fspath(path)), data)


class Saver(FileWriter, form="save_to_disk"):
    """Write the data of each ``(name, data)`` to a file and yield its path.

    Data are bytes, text (written as UTF-8), or an open file, which is copied in pieces and closed;
    others are a ``SampleError``. A file appears whole, under its name, or not at all; folders are
    made. An existing file is replaced.

    ``filepath_fn`` makes the path of the name; by default the name is the path. ``mode`` (``"w"``,
    ``"wt"`` or ``"wb"``) has no effect: the type of the data decides.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([("out/1.txt", b"one")]).save_to_disk(mode="wb"))
    ['out/1.txt']
    """

    def __init__(
        self, parent: Pipe, mode: str = "w", filepath_fn: Callable[[Any], Any] | None = None
    ) -> None:
        super().__init__(parent)
        self.mode = checked_mode(mode)
        self.filepath_fn = filepath_fn


class RedactingFile(AbstractContextManager["RedactingFile"], Iterator[Any]):
    """A wrapper of a file that redacts secrets in its errors."""

    def __init__(self, file: Any, url: str, options: Mapping[str, Any]) -> None:
        self._file = file
        self._place = (url, options)

    def __getattr__(self, name: str) -> Any:
        if name in ("_file", "_place"):  # a copy is asked for these before it has them
            raise AttributeError(name)
        value = self._call(getattr, self._file, name)
        return partial(self._call, value) if callable(value) else value

    def __next__(self) -> Any:
        item = self._call(next, self._file, None)  # of a file, which yields lines
        if item is None:
            raise StopIteration
        return item

    def __exit__(self, *error: object) -> None:
        self.close()

    def _call(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with remote_errors(*self._place):
            try:
                return call(*args, **kwargs)
            except (AttributeError, io.UnsupportedOperation) as error:
                failure: Exception = error  # unsupported operations show only by trying
            except ValueError as error:
                if not getattr(self._file, "closed", False):
                    raise
                failure = error  # it was closed before: nothing of the store's
        raise failure


class HashChecker(PerItem, form="check_hash"):
    """Pass ``(name, data)`` on if the data have the hash that the name must have.

    Data are bytes, text, or an open file. ``hash_dict`` holds hashes in hexadecimal digits by name,
    and ``hash_type`` is ``"sha256"`` or ``"md5"``. Another hash, or none for this name, raises
    ``HashMismatch``. ``rewind`` puts an open file back to its beginning. A file that cannot go back
    (a download) is a ``SampleError`` then; with ``rewind=False`` it is read to its end here.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> source = IterableWrapper([("a.txt", b"hello")])
    >>> list(source.check_hash({"a.txt": "5d41402abc4b2a76b9719d911017c592"}, "md5"))
    [('a.txt', b'hello')]
    """

    traits: ClassVar[Any] = Traits(per_item=True, voxels=True)

    def __init__(
        self,
        parent: Pipe,
        hash_dict: Mapping[str, str],
        hash_type: str = "sha256",
        rewind: bool = True,
    ) -> None:
        super().__init__(parent)
        self.hashes = ExpectedHashes(hash_dict, hash_type)
        self.rewind = rewind

    def apply(self, item: Any) -> Any:
        name, data = pair_of(self, item)
        try:
            rewinds = hasattr(data, "read") and self.rewind
            if rewinds and not data.seekable():
                msg = f"{name} arrives as a stream that cannot go back"
                do = "Write it to disk first (on_disk_cache takes hash_dict), or give rewind=False."
                raise SampleError(msg, do=do)
            deque(self.hashes.check(name, pieces_of(data)), maxlen=0)
            if rewinds:
                data.seek(0)
        except BaseException:
            janitor(data)
            raise
        return name, data
