"""Write a file so that others see all of it or nothing, and check what is written on the way."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....core.errors import HashMismatch, SampleError
from ....volumes.cache.cache_directory import sync_folder
from ....volumes.stores.ranges import open_regular
from .streams import janitor

KINDS = ("sha256", "md5")
"""Kinds of hashes that files are checked with."""
PARTIAL = ".part"
"""End of the name of a file that is being written."""
_PIECE_BYTES = 1024**2


@dataclass(frozen=True)
class Hashes:
    """What files must be."""

    by_name: Mapping[str, str]
    """Hash in hexadecimal digits, by name or path."""
    kind: str = "sha256"
    """``"sha256"`` or ``"md5"``."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            msg = f"Invalid hash_type requested, should be one of {KINDS}, got {self.kind!r}"
            raise ValueError(msg)

    def begun(self) -> Any:
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

    def hold(self, path: str) -> bool:
        """Whether the file at ``path`` is what it must be; False if nobody knows."""
        if path not in self.by_name:
            return False
        digest = self.begun()
        with open(path, "rb", opener=open_regular) as file:
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
        return bool(digest.hexdigest() == self.by_name[path].lower())


def pieces_of(data: Any) -> Iterator[bytes]:
    r"""Yield what is to be written: bytes, text (as UTF-8), a stream, or several of the former.

    Raises
    ------
    SampleError
        It is something else.

    Examples
    --------
    >>> list(pieces_of("é")), list(pieces_of([b"a", "b"]))
    ([b'\xc3\xa9'], [b'a', b'b'])
    """
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


def write_whole(path: str, data: Any, hashes: Hashes | None = None, key: str = "") -> None:
    """Write ``data`` to ``path``; its folder is made.

    It is on the disk before it gets its name: a machine that loses its power leaves all of it or
    nothing.

    Parameters
    ----------
    path
        Where. What is there is replaced.
    data
        As of :func:`pieces_of`; a stream is closed.
    hashes
        What the file must be.
    key
        Tells the partial file from those of others. Who holds a key is the only one who writes
        under it, so what a killed writer left is written over.

    Raises
    ------
    HashMismatch
        The file is not what it must be; nothing was written.
    """
    folder = os.path.dirname(path)
    if folder:
        os.makedirs(folder, exist_ok=True)
    partial = f"{path}.{key or uuid.uuid4().hex}{PARTIAL}"
    digest = None if hashes is None else hashes.begun()
    try:
        with open(partial, "wb") as file:
            for piece in pieces_of(data):
                file.write(piece)
                if digest is not None:
                    digest.update(piece)
            file.flush()
            os.fsync(file.fileno())
        if hashes is not None:
            hashes.check(path, digest)
        os.replace(partial, path)
        sync_folder(Path(folder or "."))
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(partial)
        raise
    finally:
        janitor(data)
