"""Compressed streams: gzip, bz2, xz, and whatever the first bytes say."""

from __future__ import annotations

import bz2
import gzip
import lzma
from enum import Enum
from typing import Any, ClassVar

from torch.utils.data.datapipes.utils.common import StreamWrapper

from ...core.errors import StreamError
from ...graph import Pipe, Traits
from ..datapipe import PerItem
from ..forms import offered
from .archives import open_tar, open_zip, spooled
from .streams import MOST_BYTES, bounded, checked_most, length_or_type_error, named_stream


class CompressionType(Enum):
    """What a file may be."""

    GZIP = "gzip"
    LZMA = "lzma"
    TAR = "tar"
    ZIP = "zip"
    BZIP2 = "bz2"


# The first that fits counts.
_SUFFIXES = {
    **dict.fromkeys((".tar", ".tar.gz", ".tar.xz", ".tgz", ".txz", ".tbz2"), CompressionType.TAR),
    ".tar.bz2": CompressionType.TAR,
    ".xz": CompressionType.LZMA,
    ".gz": CompressionType.GZIP,
    ".zip": CompressionType.ZIP,
    ".bz2": CompressionType.BZIP2,
}


@offered("decompress")
class Decompressor(PerItem):
    """Yield ``(path, stream of what is in it)`` for each ``(path, compressed stream)``.

    gzip, xz and bzip2 become a stream of bytes. For tar and zip the stream wraps an open
    ``TarFile`` or ``ZipFile``, which ``load_from_tar`` and ``load_from_zip`` take; its own
    ``extractall()`` writes nothing outside of the folder that it is given.

    Parameters
    ----------
    parent
        Yields ``(path, binary stream)``.
    file_type
        ``"gzip"``, ``"lzma"``, ``"tar"``, ``"zip"``, ``"bz2"`` or a ``CompressionType``; by
        default what the suffix of the path says.
    most_bytes
        What a decoded stream may hold; 16 GiB.

    Raises
    ------
    ValueError
        At construction: there is no such type.
    StreamError
        The suffix says nothing, the bytes are damaged, or more than there may be.
    SampleError
        The parent yields something else than pairs of a name and an open file.

    Examples
    --------
    >>> import io
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> file = io.BytesIO(gzip.compress(b"hello"))
    >>> pipe = IterableWrapper([("a.txt.gz", file)], deepcopy=False).decompress()
    >>> [(path, stream.read()) for path, stream in pipe]
    [('a.txt.gz', b'hello')]
    """

    traits: ClassVar[Any] = Traits(per_item=True, voxels=True)
    types = CompressionType

    def __init__(
        self,
        parent: Pipe,
        file_type: str | CompressionType | None = None,
        *,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        super().__init__(parent)
        if isinstance(file_type, str):
            file_type = CompressionType(file_type.lower())
        self.file_type = file_type
        self.most_bytes = checked_most(most_bytes)

    def apply(self, item: Any) -> tuple[str, Any]:
        """Return the decoded stream; it closes the compressed one."""
        name, stream = named_stream(self, item)
        try:
            return name, self._opened(name, stream, self.file_type or self._type_of(name))
        finally:
            stream.autoclose()

    def _opened(self, name: str, stream: Any, kind: CompressionType) -> Any:
        if kind is CompressionType.TAR:
            return StreamWrapper(open_tar(name, stream), stream, name=name)
        if kind is CompressionType.ZIP:
            held = spooled(stream)
            opened = StreamWrapper(open_zip(name, held), held, name=name)
            held.autoclose()
            return opened
        file: Any
        if kind is CompressionType.GZIP:
            file = gzip.GzipFile(fileobj=stream)
        elif kind is CompressionType.LZMA:
            file = lzma.LZMAFile(stream)  # noqa: SIM115  the wrapper closes it
        else:
            file = bz2.BZ2File(stream)
        return bounded(file, self.most_bytes, name, stream)

    def _type_of(self, name: str) -> CompressionType:
        lower = name.lower()
        for suffix, kind in _SUFFIXES.items():
            if lower.endswith(suffix):
                return kind
        kinds = ", ".join(repr(kind.value) for kind in CompressionType)
        raise StreamError(
            f"{name} has a suffix which does not match any compression that is known.",
            do=f"Give file_type=, one of {kinds}.",
        ).at(self.origin)

    def __len__(self) -> int:
        """Return the length of the parent."""
        return length_or_type_error(self, self.parent)


@offered("extract")
class Extractor(Decompressor):
    """The older name of :class:`Decompressor`."""


class CompressedLoader(PerItem):
    """Yield ``(path without its suffix, stream)`` for each ``(path, compressed stream)``."""

    traits: ClassVar[Any] = Traits(per_item=True, voxels=True)
    suffix: ClassVar[str]
    """What the path loses."""

    def __init__(self, parent: Pipe, length: int = -1, *, most_bytes: int = MOST_BYTES) -> None:
        super().__init__(parent)
        self.length = length
        self.most_bytes = checked_most(most_bytes)

    def decoded(self, stream: Any) -> Any:
        """Return a file of what a compressed one holds."""
        raise NotImplementedError

    def apply(self, item: Any) -> tuple[str, Any]:
        """Return the decoded stream; it closes the compressed one."""
        name, stream = named_stream(self, item)
        path = name.removesuffix(self.suffix)
        made = bounded(self.decoded(stream), self.most_bytes, path, stream)
        stream.autoclose()
        return path, made

    def __len__(self) -> int:
        """Return ``length`` if it was given, else that of the parent."""
        return length_or_type_error(self, self.parent, self.length)


@offered("load_from_xz")
class XzFileLoader(CompressedLoader):
    """Yield ``(path without .xz, stream)`` for each ``(path, xz or lzma stream)``.

    Bytes are decoded as they are read.

    Parameters
    ----------
    parent
        Yields ``(path, binary stream)``.
    length
        What ``len()`` says, if the parent does not know.
    most_bytes
        What one file may hold, decoded; 16 GiB.

    Raises
    ------
    StreamError
        While reading: the bytes are damaged or cut off, or more than there may be.
    SampleError
        The parent yields something else than pairs of a name and an open file.

    Examples
    --------
    >>> import io
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> file = io.BytesIO(lzma.compress(b"hello"))
    >>> pipe = IterableWrapper([("axx.xz", file)], deepcopy=False).load_from_xz()
    >>> [(path, stream.read()) for path, stream in pipe]
    [('axx', b'hello')]
    """

    suffix = ".xz"

    def decoded(self, stream: Any) -> Any:
        """Return a file of what an xz file holds."""
        return lzma.LZMAFile(stream)


@offered("load_from_bz2")
class Bz2FileLoader(CompressedLoader):
    """Yield ``(path without .bz2, stream)`` for each ``(path, bzip2 stream)``.

    Bytes are decoded as they are read.

    Parameters
    ----------
    parent
        Yields ``(path, binary stream)``.
    length
        What ``len()`` says, if the parent does not know.
    most_bytes
        What one file may hold, decoded; 16 GiB.

    Raises
    ------
    StreamError
        While reading: the bytes are damaged or cut off, or more than there may be.
    SampleError
        The parent yields something else than pairs of a name and an open file.

    Examples
    --------
    >>> import io
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> file = io.BytesIO(bz2.compress(b"hello"))
    >>> pipe = IterableWrapper([("a2b.bz2", file)], deepcopy=False).load_from_bz2()
    >>> [(path, stream.read()) for path, stream in pipe]
    [('a2b', b'hello')]
    """

    suffix = ".bz2"

    def decoded(self, stream: Any) -> Any:
        """Return a file of what a bzip2 file holds."""
        return bz2.BZ2File(stream)
