"""Write data to any storage that fsspec reaches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

from ....core.errors import placed
from ....core.hidden import Hidden
from ....graph import Pipe, Traits
from ....volumes.stores.fsspec_ranges import reached
from ....volumes.stores.location import is_url, local_path, remote_errors
from ...datapipe import offered
from .connection import Connected, options_of, tried
from .streams import janitor, length_or_type_error, pair_of
from .written import pieces_of, write_whole


@offered("save_by_fsspec")
class FSSpecSaver(Connected):
    """Write the data of each ``(name, data)`` to a path or URL, and yield that.

    Whole objects are put in one go, so a failed attempt is simply made again. Local files appear
    whole, and their folders are made.

    Parameters
    ----------
    parent
        Yields ``(name, data)``: bytes, text (as UTF-8) or an open file, which is read and closed.
    mode
        ``"w"`` or ``"wb"``; ``"a"`` and the like append, where the storage can, in one attempt.
    filepath_fn
        Makes the path or URL of the name; by default the name is the URL.
    kwargs_for_open
        Of ``fs.open()``, e.g. ``compression``; the file is then written in one attempt.
    storage_options, **options
        Of the file system. They are never written anywhere.

    Raises
    ------
    StoreUnavailable
        The store kept failing; see ``$VOXPIPE_REMOTE_DEADLINE``.
    VolumeReadError
        Any other failure of the store.
    SampleError
        The parent yields something else than pairs, or what cannot be written.

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
        super().__init__()
        self.parent = parent
        self.mode = mode
        self.filepath_fn = filepath_fn
        self.kwargs_for_open = Hidden(kwargs_for_open or {})
        self.storage_options: Hidden = options_of(options)

    @property
    def traits(self) -> Traits:
        """Yields paths; may run a function."""
        return Traits(per_item=True, plain=True, opaque=self.filepath_fn is not None)

    def __iter__(self) -> Iterator[Any]:
        """Write each item and yield where."""
        for item in self.parent:
            name, data = pair_of(self, item)
            del item
            url = name if self.filepath_fn is None else self.filepath_fn(name)
            try:
                self._write(url, data)
            except Exception as error:
                raise placed(error, self.origin)  # noqa: B904  the very same error
            finally:
                janitor(data)
            yield url

    def _write(self, url: str, data: Any) -> None:
        is_whole = self.mode.strip("bt") == "w" and not self.kwargs_for_open
        if is_whole and not is_url(url):
            write_whole(local_path(url), data)
            return
        system, path = reached(url, self.storage_options)
        content = b"".join(pieces_of(data))
        if is_whole:
            tried(url, self.storage_options, "writing", lambda: system.pipe_file(path, content))
            return
        binary = f"{self.mode.replace('t', '').replace('b', '')}b"
        remote = is_url(url)
        with (
            remote_errors(url, self.storage_options, "writing") if remote else nullcontext(),
            system.open(path, binary, **self.kwargs_for_open) as file,
        ):
            file.write(content)

    def __len__(self) -> int:
        """Return the length of the parent."""
        return length_or_type_error(self, self.parent)
