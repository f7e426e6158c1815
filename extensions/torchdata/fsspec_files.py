"""Files on any file system that fsspec knows: list, open and save them."""

from __future__ import annotations

import io
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, ClassVar

from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.utils.common import StreamWrapper, match_masks

from ...core.redact import RedactedDict
from ...datapipes.datapipe import locate_errors
from ...graph import Pipe, Traits, is_pipe
from ...storage.fsspec_ranges import file_system_of
from ...storage.location import is_url, local_path, public_name, remote_errors
from ...storage.remote import RangeFile, RemoteFile
from .http_reader import OPTIONS, http_stream
from .streams import (
    FileWriter,
    RedactingFile,
    StoragePipe,
    pieces_of,
    with_retries,
    write_atomically,
)


class FSSpecFileLister(StoragePipe, form="list_files_by_fsspec"):
    """Yield the path or URL of everything directly in a folder, sorted.

    - ``root``: path or URL of a folder (or of one file, which is yielded itself), several of them,
      or a pipe that yields them.
    - ``masks``: pattern, or patterns, one of which the name must match, with its folder or without
      it: ``"*.nii.gz"``.
    - ``storage_options``, or plain keywords: of the file system. They are never written anywhere.

    Raises
    ------
    VolumeNotFound
        There is nothing at the URL.
    StoreUnavailable
        The store kept failing; see ``$VOXPIPE_REMOTE_DEADLINE``.
    VolumeReadError
        Any other failure of the store.

    Examples
    --------
    >>> import fsspec
    >>> memory = fsspec.filesystem("memory")
    >>> memory.pipe({"/scans/b.nii": b"", "/scans/a.nii": b"", "/scans/notes.txt": b""})
    >>> list(FSSpecFileLister("memory://scans", "*.nii"))
    ['memory:///scans/a.nii', 'memory:///scans/b.nii']
    """

    plain_arguments = frozenset({"root", "masks"})

    def __init__(
        self, root: str | Sequence[str] | Pipe, masks: str | list[str] = "", **options: Any
    ) -> None:
        parent: Any = root
        if not is_pipe(root):
            parent = IterableWrapper([root] if isinstance(root, str) else list(root))
        super().__init__(parent, options)
        self.masks = masks

    def __iter__(self) -> Iterator[str]:
        for root in self.parent:
            yield from self._below(root)

    def __len__(self) -> int:
        raise TypeError("FSSpecFileLister instance doesn't have valid length: it shows in the end")

    def _below(self, root: str) -> Iterator[str]:
        options = self.storage_options
        system, path = file_system_of(root, options)

        def ask() -> list[str] | None:
            # Another process may have written since the listing that the file system keeps.
            system.invalidate_cache()
            return None if system.isfile(path) else list(system.ls(path, detail=False))

        names = with_retries(root, options, "listing", ask)
        if names is None:
            yield root
            return
        for name in sorted(names):
            if match_masks(name, self.masks) or match_masks(posixpath.basename(name), self.masks):
                yield _as_written(root, name, system)


def _as_written(root: str, name: str, system: Any) -> str:
    """Return a name in the form of the root: with its protocol and its chained URL."""
    before, chain, after = root.partition("::")
    protocol, is_url, _ = before.partition("://")
    if not is_url and not chain:
        return name
    own = (system.protocol,) if isinstance(system.protocol, str) else system.protocol
    bare = next((name[len(p) + 3 :] for p in (*own, protocol) if name.startswith(f"{p}://")), name)
    return f"{protocol}://{bare}{chain}{after}"


# Bytes of one request while a file is read from its beginning to its end.
_REQUEST_BYTES = 4 * 1024**2
_TEXT = frozenset({"encoding", "errors", "newline"})


class FSSpecFileOpener(StoragePipe, form="open_files_by_fsspec"):
    """Yield ``(path, stream)`` for each path or URL.

    A stream from a bucket or a server requests ranges as it is read, and retries transient
    failures. It can seek if the server supports ranges. Storage options and errors are those of
    :class:`FSSpecFileLister`.

    - ``mode``: ``"r"`` for text, ``"rb"`` for bytes. Any other is handed to the file system.
    - ``kwargs_for_open``: ``encoding``, ``errors`` and ``newline`` for text. With other options the
      file system's own ``open()`` is used, which retries nothing once it is open.

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
        super().__init__(parent, options)
        self.mode = mode
        self.kwargs_for_open = RedactedDict(kwargs_for_open or {})

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for url in self.parent:
            with locate_errors(self):
                stream = self._open(url)
            yield url, StreamWrapper(stream, name=public_name(url))
            del stream

    def _open(self, url: str) -> Any:
        is_web = url.partition("://")[0].lower() in ("http", "https")
        reads = sorted(self.mode.replace("t", "")) in (["r"], ["b", "r"], ["b"])
        if not reads or set(self.kwargs_for_open) - _TEXT:
            options, rest = self.storage_options, self.kwargs_for_open
            system, path = file_system_of(url, options)
            call = partial(system.open, path, self.mode, **rest)
            stream = with_retries(url, options, "opening", call)
            return RedactingFile(stream, url, options) if is_url(url) else stream
        if not is_url(url):
            file: Any = open(local_path(url), "rb")  # noqa: SIM115  the wrapper closes it
        elif is_web and set(self.storage_options) <= OPTIONS:
            file = http_stream(url, self.storage_options)
        else:
            remote = RemoteFile(url, self.storage_options, public_name(url))
            file = io.BufferedReader(RangeFile(remote), min(_REQUEST_BYTES, max(1, remote.size)))
        return file if "b" in self.mode else io.TextIOWrapper(file, **self.kwargs_for_open)


class FSSpecSaver(StoragePipe, FileWriter, form="save_by_fsspec"):
    """Write the data of each ``(name, data)`` to a path or URL, and yield that.

    Data are bytes, text (as UTF-8) or an open file, which is read and closed. Whole objects are put
    in one go, so a failed attempt is simply made again. Local files appear whole, and their folders
    are made. Storage options and errors are those of :class:`FSSpecFileLister`.

    - ``mode``: ``"w"`` or ``"wb"``; ``"a"`` and the like append, where the storage can, once.
    - ``filepath_fn``: makes the path or URL of the name; by default the name is the URL.
    - ``kwargs_for_open``: of ``fs.open()``, e.g. ``compression``; the file is then written once.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([("memory://out/1.txt", b"one")]).save_by_fsspec("wb"))
    ['memory://out/1.txt']
    """

    plain_arguments = frozenset({"mode", "filepath_fn"})

    def __init__(
        self,
        parent: Pipe,
        mode: str = "w",
        filepath_fn: Callable[[Any], Any] | None = None,
        *,
        kwargs_for_open: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(parent, options)
        self.mode = mode
        self.filepath_fn = filepath_fn
        self.kwargs_for_open = RedactedDict(kwargs_for_open or {})

    def write(self, path: str, data: Any) -> None:
        is_whole = self.mode.strip("bt") == "w" and not self.kwargs_for_open
        if is_whole and not is_url(path):
            write_atomically(local_path(path), data)
            return
        options = self.storage_options
        system, inner = file_system_of(path, options)
        content = b"".join(pieces_of(data))
        if is_whole:
            with_retries(path, options, "writing", lambda: system.pipe_file(inner, content))
            return
        binary = f"{self.mode.replace('t', '').replace('b', '')}b"
        with (
            remote_errors(path, options, "writing") if is_url(path) else nullcontext(),
            system.open(inner, binary, **self.kwargs_for_open) as file,
        ):
            file.write(content)
