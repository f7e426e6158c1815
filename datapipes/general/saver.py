"""Write data to files on the local disk, and check the hashes of files."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from ...core.errors import HashMismatch, SampleError
from ...graph import Pipe, Traits
from ...storage.disk_cache import sync_folder, write_beside
from ...storage.location import remote_errors
from ...storage.ranges import open_regular
from ..datapipe import PerItem
from ..forms import offered
from .streams import janitor, pair_of

KINDS = ("sha256", "md5")  # kinds of hashes that files are checked with
_PIECE_BYTES = 1024**2


@dataclass(frozen=True)
class ExpectedHashes:
    """What files must be."""

    by_name: Mapping[str, str]  # hash in hexadecimal digits, by name or path
    kind: str = "sha256"  # ``"sha256"`` or ``"md5"``

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            msg = f"Invalid hash_type requested, should be one of {KINDS}, got {self.kind!r}"
            raise ValueError(msg)

    def new_digest(self) -> Any:
        """Return what takes the bytes."""
        return hashlib.new(self.kind, usedforsecurity=False)

    def check(self, name: str, digest: Any) -> None:
        """Raise ``HashMismatch`` unless ``digest`` is what ``name`` must be."""
        wanted = self.by_name.get(name)
        if wanted is None:
            do = f"Add it to hash_dict; it is {digest.hexdigest()} now."
            raise HashMismatch(f"Unspecified hash for file {name}.", do=do)
        if digest.hexdigest() != wanted.lower():
            raise HashMismatch(
                f"the {self.kind} of {name} is {digest.hexdigest()}, which does not match the "
                f"expected {wanted}.",
                do="It may have been cut short, or changed at its source: fetch it again.",
            )

    def match(self, path: str) -> bool:
        """Whether the file at ``path`` is what it must be; False if nobody knows."""
        if path not in self.by_name:
            return False
        digest = self.new_digest()
        with open(path, "rb", opener=open_regular) as file:
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
        return bool(digest.hexdigest() == self.by_name[path].lower())


def pieces_of(data: Any) -> Iterator[bytes]:
    r"""Yield what is to be written: bytes, text (as UTF-8), a stream, or several of the former."""
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


def write_atomically(
    path: str, data: Any, hashes: ExpectedHashes | None = None, key: str = ""
) -> None:
    """Write ``data`` to ``path``; its folder is made, and a stream is closed."""

    def checked() -> Iterator[bytes]:
        digest = None if hashes is None else hashes.new_digest()
        for piece in pieces_of(data):
            if digest is not None:
                digest.update(piece)
            yield piece
        if hashes is not None:
            hashes.check(path, digest)

    folder = os.path.dirname(path)
    try:
        if folder:
            os.makedirs(folder, exist_ok=True)
        write_beside(Path(path), checked(), key=key)
        sync_folder(Path(folder))
    finally:
        janitor(data)


def checked_mode(mode: str) -> str:
    """Return a mode of writing: ``"w"`` is added to ``"b"`` or ``"t"``."""
    full = mode if "w" in mode else f"w{mode}"
    if sorted(full) not in (["w"], ["b", "w"], ["t", "w"]):
        raise ValueError(f"mode is 'w', 'wt' or 'wb', got {mode!r}")
    return full


@offered("save_to_disk")
class Saver(PerItem):
    """Write the data of each ``(name, data)`` to a file and yield its path.

    A file appears whole, under its name, or not at all; folders are made. What is there is
    replaced.

    Parameters
    ----------
    parent
        Yields ``(name, data)``: bytes, text (written as UTF-8), or an open file, which is copied in
        pieces and closed.
    mode
        ``"w"``, ``"wt"`` or ``"wb"``. What the data are decides; it is here for torchdata's sake.
    filepath_fn
        Makes the path of the name; by default the name is the path.

    Raises
    ------
    SampleError
        The parent yields something else than pairs, or what cannot be written.

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

    @property
    def traits(self) -> Traits:
        """Yields paths; may run a function."""
        return Traits(per_item=True, plain=True, runs_user_code=self.filepath_fn is not None)

    def apply(self, item: Any) -> Any:
        """Write one file and return its path."""
        name, data = pair_of(self, item)
        path = name if self.filepath_fn is None else self.filepath_fn(name)
        write_atomically(os.fspath(path), data)
        return path


class RedactedFile:
    """Does what the file does; what fails in it arrives as an error without secrets."""

    def __init__(self, file: Any, url: str, options: Mapping[str, Any]) -> None:
        self._file = file
        self._place = (url, options)

    def __getattr__(self, name: str) -> Any:
        if name in ("_file", "_place"):  # a copy is asked for these before it has them
            raise AttributeError(name)
        value = self._call(getattr, self._file, name)
        return partial(self._call, value) if callable(value) else value

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        item = self._call(next, self._file, None)  # of a file, which yields lines
        if item is None:
            raise StopIteration
        return item

    def __enter__(self) -> RedactedFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _call(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with remote_errors(*self._place):
            try:
                return call(*args, **kwargs)
            except (AttributeError, io.UnsupportedOperation) as error:
                passed: Exception = error  # what a file cannot do is asked by trying
            except ValueError as error:
                if not getattr(self._file, "closed", False):
                    raise
                passed = error  # it was closed before: nothing of the store's
        raise passed


@offered("check_hash")
class HashChecker(PerItem):
    """Pass ``(name, data)`` on if the data have the hash that the name must have.

    Parameters
    ----------
    parent
        Yields ``(name, data)``: bytes, text, or an open file.
    hash_dict
        Hash in hexadecimal digits, by name.
    hash_type
        ``"sha256"`` or ``"md5"``.
    rewind
        Whether an open file is put back to its beginning. One that cannot go back (a download)
        must not be: it is read to its end here.

    Raises
    ------
    HashMismatch
        The hash is another one, or ``hash_dict`` has none for this name.
    SampleError
        The parent yields something else than pairs, or the file cannot go back.

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
        """Return the item if it is the expected one."""
        name, data = pair_of(self, item)
        try:
            rewinds = hasattr(data, "read") and self.rewind
            if rewinds and not data.seekable():
                msg = f"{name} arrives as a stream that cannot go back"
                do = "Write it to disk first (on_disk_cache takes hash_dict), or give rewind=False."
                raise SampleError(msg, do=do)
            digest = self.hashes.new_digest()
            for piece in pieces_of(data):
                digest.update(piece)
            self.hashes.check(name, digest)
            if rewinds:
                data.seek(0)
        except BaseException:
            janitor(data)
            raise
        return name, data
