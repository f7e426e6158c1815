"""Archives and compressed files, as streams: the members of tar and zip, gzip, bzip2 and xz."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import posixpath
import re
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, ClassVar

from torch.utils.data.datapipes.utils.common import StreamWrapper

from ...core.errors import StreamError
from ...core.validate import validate_int
from ...datapipes.datapipe import DataPipe, PerItem
from ...graph import Pipe, Traits
from .streams import MOST_BYTES, bound_stream, named_stream, naming_damage

_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")
_DRIVE = re.compile(r"^[A-Za-z]:")


def member_path(archive: str, name: str) -> str:
    """Return the path of a member below that of its archive; one that leads out is an error."""
    plain = name.replace("\\", "/")
    inside = posixpath.normpath(plain)
    outward = inside == ".." or inside.startswith(("../", "/")) or _DRIVE.match(plain)
    if outward or "\0" in name:
        msg = f"{archive} has a member {name!r}, which leads out of it"
        raise StreamError(msg, do="Do not unpack this archive; ask who made it.")
    # A backslash is part of a name here, unless it leads out elsewhere.
    inside = posixpath.normpath(name)
    if _URL.match(archive):
        return f"{archive}/{inside}"
    return os.path.normpath(os.path.join(archive, inside))


# Headers that hold names and the like of the member after them.
_NOTES = {tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE}
_NOTES |= {tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}
# Paths have some hundred bytes, extended attributes at most 64 KiB each.
_MOST_NOTE_BYTES = 1024**2
# The checksum of a tar header is a sum: tarfile takes some gzip files for headers, by their time.
_MAGIC = {b"\x1f\x8b\x08": "gz", b"BZh": "bz2", b"\xfd7zXZ": "xz"}


class _CompleteTar(tarfile.TarInfo):
    """A header of a member; one that is cut off or garbled is an error, not the end."""

    @classmethod
    def fromtarfile(cls, tarfile_: Any) -> _CompleteTar:
        """Return the header at hand. tarfile itself takes a damaged one for the end."""
        try:
            return super().fromtarfile(tarfile_)
        except (tarfile.TruncatedHeaderError, tarfile.InvalidHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.SubsequentHeaderError(str(error)) from error  # type: ignore[attr-defined]

    def _proc_member(self, tarfile_: Any) -> Any:
        # tarfile reads long names into memory without a limit: the header of a small compressed
        # file may announce gigabytes.
        if self.type in _NOTES and self.size > _MOST_NOTE_BYTES:
            msg = f"a header of {self.size} bytes"
            raise tarfile.SubsequentHeaderError(msg)  # type: ignore[attr-defined]
        return super()._proc_member(tarfile_)  # type: ignore[misc]


def _compression_at(stream: Any) -> str:
    """Return the compression that the next bytes of ``stream`` show, as tarfile names it."""
    place = stream.tell()
    start = stream.read(5)
    stream.seek(place)
    return next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), "*")


def open_tar(name: str, stream: Any, mode: str = "r:*") -> tarfile.TarFile:
    """Return a tar archive; one that cannot go back is read as it arrives."""
    with naming_damage(name):
        can_go_back = hasattr(stream, "seekable") and stream.seekable()
        how: Any = mode if can_go_back else mode.replace(":", "|")
        if how == "r:*":
            how = f"r:{_compression_at(stream)}"
        # The archive holds no resource but the stream.
        tar = tarfile.open(fileobj=stream, mode=how, tarinfo=_CompleteTar)  # noqa: SIM115
        # extractall() writes nothing outside of its folder and creates no device.
        if hasattr(tarfile, "data_filter"):
            tar.extraction_filter = tarfile.data_filter
        return tar


class _ArchiveLoader(DataPipe):
    """A pipe that yields the members of each archive, which a subclass finds."""

    traits: ClassVar[Any] = Traits(voxels=True)

    def __init__(self, parent: Pipe, length: int = -1, *, most_bytes: int | None = None) -> None:
        super().__init__(parent)
        self.length = length
        if most_bytes is not None:
            validate_int("most_bytes", most_bytes, least=0, unit="bytes")
        self.most_bytes = most_bytes

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for item in self.parent:
            name, stream = named_stream(self, item)
            del item
            stream = self.prepare(stream)
            try:
                yield from self.members(name, stream)
            finally:
                # Closed now, or with the last open member.
                stream.autoclose()

    def prepare(self, stream: Any) -> Any:
        return stream

    def members(self, name: str, stream: Any) -> Iterator[tuple[str, Any]]:
        """Yield path and stream of each file in an archive, in the order of the archive."""
        raise NotImplementedError

    def __len__(self) -> int:
        if self.length < 0:
            msg = f"{type(self).__name__} instance doesn't have valid length: it shows when all "
            raise TypeError(msg + "are read")
        return self.length


class TarArchiveLoader(_ArchiveLoader, form="load_from_tar"):
    """Yield ``(path of the member, stream)`` for each file in each tar archive.

    The parent yields ``(path, binary stream)``. The archive is read as the members are, gzip,
    bzip2 or xz included: nothing is unpacked ahead. From a stream that cannot seek, read each
    member before the next one. Links, folders and devices are left out.

    ``mode`` is as of ``tarfile.open``, and ``length`` the result of ``len()``. ``most_bytes``
    limits the decoded bytes of one member; by default to 16 GiB in compressed archives.

    Raises
    ------
    StreamError
        The archive is damaged, cut off in the middle of a header included, a member leads out
        of it (``../x``, ``/x``), or holds more than it may.

    Examples
    --------
    >>> import io
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> file = io.BytesIO()
    >>> with tarfile.open(fileobj=file, mode="w") as tar:
    ...     info = tarfile.TarInfo("p0/note.txt")
    ...     info.size = 5
    ...     tar.addfile(info, io.BytesIO(b"hello"))
    >>> _ = file.seek(0)
    >>> pipe = IterableWrapper([("a.tar", file)], deepcopy=False).load_from_tar()
    >>> [(path, stream.read()) for path, stream in pipe]
    [('a.tar/p0/note.txt', b'hello')]
    """

    def __init__(
        self, parent: Pipe, mode: str = "r:*", length: int = -1, *, most_bytes: int | None = None
    ) -> None:
        super().__init__(parent, length, most_bytes=most_bytes)
        self.mode = mode

    def members(self, name: str, stream: Any) -> Iterator[tuple[str, Any]]:
        source = stream.file_obj
        tar = source if isinstance(source, tarfile.TarFile) else open_tar(name, stream, self.mode)
        is_plain = tar.fileobj is stream or getattr(tar.fileobj, "comptype", "") == "tar"
        while True:
            with naming_damage(name):
                info = tar.next()
            # tarfile would keep a kilobyte for every member.
            tar.members.clear()  # type: ignore[attr-defined]
            if info is None:
                return
            if info.isfile():
                path = member_path(name, info.name)
                with naming_damage(name):
                    file = tar.extractfile(info)
                most = self.most_bytes
                if most is None:
                    # An uncompressed member is no larger than its stored bytes.
                    most = info.size if is_plain and not info.issparse() else MOST_BYTES
                yield path, bound_stream(file, most, path, stream, size=info.size)


_COPY_BYTES = 1024**2


def open_zip(name: str, stream: Any) -> zipfile.ZipFile:
    """Return a zip archive: its table of contents is read, no member."""
    with naming_damage(name):
        return zipfile.ZipFile(stream)


def seekable_copy(stream: Any) -> Any:
    """Return a stream that can go back: the same, or a copy in a file without a name."""
    # A zip archive ends with its table of contents.
    if hasattr(stream, "seekable") and stream.seekable():
        return stream
    # The wrapper closes it, and with that it is gone from the disk.
    copy = tempfile.TemporaryFile()  # noqa: SIM115
    try:
        shutil.copyfileobj(stream, copy, _COPY_BYTES)
        copy.seek(0)
    except BaseException:
        copy.close()
        raise
    finally:
        stream.close()
    return StreamWrapper(copy)


class ZipArchiveLoader(_ArchiveLoader, form="load_from_zip"):
    """Yield ``(path of the member, stream)`` for each file in each zip archive.

    Members are decoded as they are read. An archive that arrives as a stream that cannot go back
    is first written to a temporary file without a name. Arguments and errors are those of
    :class:`TarArchiveLoader`; an encrypted archive is a ``StreamError``, too.

    Examples
    --------
    >>> import io
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> file = io.BytesIO()
    >>> with zipfile.ZipFile(file, "w") as archive:
    ...     archive.writestr("p0/note.txt", "hello")
    >>> pipe = IterableWrapper([("a.zip", file)], deepcopy=False).load_from_zip()
    >>> [(path, stream.read()) for path, stream in pipe]
    [('a.zip/p0/note.txt', b'hello')]
    """

    def prepare(self, stream: Any) -> Any:
        is_open = isinstance(stream.file_obj, zipfile.ZipFile)
        return stream if is_open else seekable_copy(stream)

    def members(self, name: str, stream: Any) -> Iterator[tuple[str, Any]]:
        source = stream.file_obj
        archive = source if isinstance(source, zipfile.ZipFile) else open_zip(name, stream)
        del source
        for info in archive.infolist():
            if info.is_dir():
                continue
            path = member_path(name, info.filename)
            with naming_damage(path):
                file = archive.open(info)
            most = self.most_bytes
            if most is None:
                is_stored = info.compress_type == zipfile.ZIP_STORED
                most = info.file_size if is_stored else MOST_BYTES
            yield path, bound_stream(file, most, path, stream, size=info.file_size)
            del file


class CompressionType(Enum):
    """Supported types of compressed files and archives."""

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
_DECODERS: dict[CompressionType, Callable[[Any], Any]] = {
    CompressionType.GZIP: lambda stream: gzip.GzipFile(fileobj=stream),
    CompressionType.LZMA: lzma.LZMAFile,
    CompressionType.BZIP2: bz2.BZ2File,
}


class Decompressor(PerItem, form="decompress"):
    """Yield ``(path, decoded stream)`` for each ``(path, compressed stream)``.

    gzip, xz and bzip2 become a stream of bytes. For tar and zip the stream wraps an open
    ``TarFile`` or ``ZipFile``, which ``load_from_tar`` and ``load_from_zip`` take; its own
    ``extractall()`` writes nothing outside of the folder that it is given.

    ``file_type`` is ``"gzip"``, ``"lzma"``, ``"tar"``, ``"zip"``, ``"bz2"`` or a
    ``CompressionType``; by default it follows from the suffix of the path. ``most_bytes`` limits a
    decoded stream (16 GiB). An unknown suffix, damaged or too many bytes raise ``StreamError``.

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
        self.most_bytes = validate_int("most_bytes", most_bytes, least=0, unit="bytes")

    def apply(self, item: Any) -> tuple[str, Any]:
        name, stream = named_stream(self, item)
        try:
            return name, self._open(name, stream, self.file_type or self._type_of(name))
        finally:
            stream.autoclose()

    def _open(self, name: str, stream: Any, kind: CompressionType) -> Any:
        if kind is CompressionType.TAR:
            return StreamWrapper(open_tar(name, stream), stream, name=name)
        if kind is CompressionType.ZIP:
            copy = seekable_copy(stream)
            archive = StreamWrapper(open_zip(name, copy), copy, name=name)
            copy.autoclose()
            return archive
        return bound_stream(_DECODERS[kind](stream), self.most_bytes, name, stream)

    def _type_of(self, name: str) -> CompressionType:
        lower = name.lower()
        for suffix, kind in _SUFFIXES.items():
            if lower.endswith(suffix):
                return kind
        kinds = ", ".join(repr(kind.value) for kind in CompressionType)
        msg = f"{name} has a suffix which does not match any compression that is known."
        raise StreamError(msg, do=f"Give file_type=, one of {kinds}.").at(self.origin)


class Extractor(Decompressor, form="extract"):
    """The older name of :class:`Decompressor`."""


class XzFileLoader(Decompressor, form="load_from_xz"):
    """Yield ``(path without .xz, stream)`` for each ``(path, xz or lzma stream)``.

    Bytes are decoded as they are read. ``length`` is the result of ``len()`` if the parent has
    none. ``most_bytes`` limits the decoded bytes of one file (16 GiB). Damaged, truncated or too
    many bytes raise ``StreamError``.

    Examples
    --------
    >>> import io
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> file = io.BytesIO(lzma.compress(b"hello"))
    >>> pipe = IterableWrapper([("axx.xz", file)], deepcopy=False).load_from_xz()
    >>> [(path, stream.read()) for path, stream in pipe]
    [('axx', b'hello')]
    """

    suffix: ClassVar[str] = ".xz"  # removed from the path
    kind: ClassVar[CompressionType] = CompressionType.LZMA

    def __init__(self, parent: Pipe, length: int = -1, *, most_bytes: int = MOST_BYTES) -> None:
        super().__init__(parent, self.kind, most_bytes=most_bytes)
        self.length = length

    def apply(self, item: Any) -> tuple[str, Any]:
        name, stream = named_stream(self, item)
        return super().apply((name.removesuffix(self.suffix), stream))

    def __len__(self) -> int:
        return self.length if self.length >= 0 else super().__len__()


class Bz2FileLoader(XzFileLoader, form="load_from_bz2"):
    """Yield ``(path without .bz2, stream)`` for each ``(path, bzip2 stream)``.

    Arguments and errors are those of :class:`XzFileLoader`.
    """

    suffix = ".bz2"
    kind = CompressionType.BZIP2
