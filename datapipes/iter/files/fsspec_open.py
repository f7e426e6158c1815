"""Open files of any storage that fsspec reaches."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from torch.utils.data.datapipes.utils.common import StreamWrapper

from ....core.errors import placed
from ....core.hidden import Hidden
from ....graph import Pipe, Traits
from ....volumes.stores.fsspec_ranges import reached
from ....volumes.stores.location import is_url, local_path, public_name
from ....volumes.stores.range_file import RangeFile
from ....volumes.stores.remote_file import RemoteFile
from ...datapipe import offered
from .connection import Connected, options_of, tried
from .discreet import DiscreetFile
from .http_stream import http_stream
from .streams import length_or_type_error

# Bytes of one request while a file is read from its beginning to its end.
_REQUEST_BYTES = 4 * 1024**2
_TEXT = frozenset({"encoding", "errors", "newline"})


@offered("open_files_by_fsspec")
class FSSpecFileOpener(Connected):
    """Yield ``(path, stream)`` for each path or URL.

    A stream from a bucket or a server asks for ranges as it is read, tries again what fails for
    a moment, and can go back and forth where the server knows ranges.

    Parameters
    ----------
    parent
        Yields paths or URLs.
    mode
        As of ``open``: ``"r"`` for text, ``"rb"`` for bytes. Any other mode is handed to the file
        system.
    kwargs_for_open
        ``encoding``, ``errors`` and ``newline`` for text; with other options the file system's
        own ``open()`` is used, which tries nothing again once it is open.
    storage_options, **options
        Of the file system. They are never written anywhere.

    Raises
    ------
    VolumeNotFound
        There is nothing at a URL.
    StoreUnavailable
        The store kept failing; see ``$VOXPIPE_REMOTE_DEADLINE``.
    VolumeReadError
        Any other failure of the store.

    Examples
    --------
    >>> import fsspec
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> fsspec.filesystem("memory").pipe("/notes/a.txt", b"hello")
    >>> pipe = IterableWrapper(["memory://notes/a.txt"]).open_files_by_fsspec("rb")
    >>> [(path, stream.read()) for path, stream in pipe]
    [('memory://notes/a.txt', b'hello')]
    """

    traits: ClassVar[Any] = Traits(per_item=True, voxels=True)
    plain_arguments = frozenset({"mode"})

    def __init__(
        self,
        parent: Pipe,
        mode: str = "r",
        *,
        kwargs_for_open: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.parent = parent
        self.mode = mode
        self.kwargs_for_open = Hidden(kwargs_for_open or {})
        self.storage_options: Hidden = options_of(options)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield the streams; each is closed with its last reference."""
        for url in self.parent:
            try:
                stream = self._opened(url)
            except Exception as error:
                raise placed(error, self.origin)  # noqa: B904  the very same error
            yield url, StreamWrapper(stream, name=public_name(url))
            del stream

    def _opened(self, url: str) -> Any:
        reads = sorted(self.mode.replace("t", "")) in (["r"], ["b", "r"], ["b"])
        if not reads or set(self.kwargs_for_open) - _TEXT:
            return self._by_file_system(url)
        if not is_url(url):
            file: Any = open(local_path(url), "rb")  # noqa: SIM115  the wrapper closes it
        elif url.partition("://")[0].lower() in ("http", "https"):
            file = http_stream(url, self.storage_options)
        else:
            remote = RemoteFile(url, self.storage_options, public_name(url))
            file = io.BufferedReader(RangeFile(remote), min(_REQUEST_BYTES, max(1, remote.size)))
        return file if "b" in self.mode else io.TextIOWrapper(file, **self.kwargs_for_open)

    def _by_file_system(self, url: str) -> Any:
        system, path = reached(url, self.storage_options)
        options, rest = self.storage_options, self.kwargs_for_open
        file = tried(url, options, "opening", lambda: system.open(path, self.mode, **rest))
        return DiscreetFile(file, url, options) if is_url(url) else file

    def __len__(self) -> int:
        """Return the length of the parent."""
        return length_or_type_error(self, self.parent)
