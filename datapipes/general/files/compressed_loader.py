"""Compressed files, one at a time, as streams of what they hold."""

from __future__ import annotations

import bz2
import lzma
from typing import Any, ClassVar

from ....graph import Pipe, Traits
from ...datapipe import PerItem
from ...forms import offered
from .bounded_stream import MOST_BYTES, bounded, checked_most
from .streams import length_or_type_error, named_stream


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
