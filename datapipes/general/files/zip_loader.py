"""Members of zip archives as streams, without loading the archive."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from typing import Any, ClassVar

from torch.utils.data.datapipes.utils.common import StreamWrapper

from ....graph import Pipe, Traits
from ...datapipe import DataPipe
from ...forms import offered
from .bounded_stream import MOST_BYTES, bounded, checked_most, damage_told
from .member_names import member_path
from .streams import length_or_type_error, named_stream

_COPY_BYTES = 1024**2


def open_zip(name: str, stream: Any) -> zipfile.ZipFile:
    """Return a zip archive: its table of contents is read, no member."""
    with damage_told(name):
        return zipfile.ZipFile(stream)


def spooled(stream: Any) -> Any:
    """Return a stream that can go back: the same, or a copy in a file without a name.

    The table of contents of a zip archive stands at its end.
    """
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


@offered("load_from_zip")
class ZipArchiveLoader(DataPipe):
    """Yield ``(path of the member, stream)`` for each file in each zip archive.

    Members are decoded as they are read. An archive that arrives as a stream that cannot go back
    is first written to a temporary file without a name.

    Parameters
    ----------
    parent
        Yields ``(path, binary stream)``.
    length
        What ``len()`` says, if it is known; else that is a TypeError.
    most_bytes
        What one member may hold, decoded; by default 16 GiB if it is compressed.

    Raises
    ------
    StreamError
        The archive is damaged or encrypted, a member leads out of it (``../x``, ``/x``), or
        holds more than it may.
    SampleError
        The parent yields something else than pairs of a name and an open file.

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

    traits: ClassVar[Any] = Traits(voxels=True)

    def __init__(self, parent: Pipe, length: int = -1, *, most_bytes: int | None = None) -> None:
        super().__init__()
        self.parent = parent
        self.length = length
        self.most_bytes = None if most_bytes is None else checked_most(most_bytes)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield the members, archive by archive, in the order of its table of contents."""
        for item in self.parent:
            name, stream = named_stream(self, item)
            del item
            given = stream.file_obj
            if not isinstance(given, zipfile.ZipFile):
                stream = spooled(stream)
            try:
                archive = given if isinstance(given, zipfile.ZipFile) else open_zip(name, stream)
                del given
                for info in archive.infolist():
                    if info.is_dir():
                        continue
                    path = member_path(name, info.filename)
                    with damage_told(path):
                        file = archive.open(info)
                    most = self.most_bytes
                    if most is None:
                        is_stored = info.compress_type == zipfile.ZIP_STORED
                        most = info.file_size if is_stored else MOST_BYTES
                    yield path, bounded(file, most, path, stream, size=info.file_size)
                    del file
            finally:
                # Closed now, or with the last member that somebody holds.
                stream.autoclose()

    def __len__(self) -> int:
        """Return ``length``; TypeError if it was not given."""
        return length_or_type_error(self, None, self.length)
