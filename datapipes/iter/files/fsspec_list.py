"""List folders of any storage that fsspec reaches."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.utils.common import match_masks

from ....core.hidden import Hidden
from ....graph import Pipe, Traits, is_pipe
from ....volumes.stores.fsspec_ranges import reached
from ...datapipe import offered
from .connection import Connected, options_of, tried


@offered("list_files_by_fsspec")
class FSSpecFileLister(Connected):
    """Yield the path or URL of everything directly in a folder, sorted.

    Parameters
    ----------
    root
        Path or URL of a folder (or of one file, which is yielded itself), several of them, or
        a pipe that yields them.
    masks
        Pattern, or patterns, one of which the name must match, with its folder or without it:
        ``"*.nii.gz"``.
    storage_options, **options
        Of the file system. They are never written anywhere.

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

    traits: ClassVar[Any] = Traits()
    plain_arguments = frozenset({"root", "masks"})

    def __init__(
        self,
        root: str | Sequence[str] | Pipe,
        masks: str | list[str] = "",
        **options: Any,
    ) -> None:
        super().__init__()
        self.parent: Any = root
        if not is_pipe(root):
            self.parent = IterableWrapper([root] if isinstance(root, str) else list(root))
        self.masks = masks
        self.storage_options: Hidden = options_of(options)

    def __iter__(self) -> Iterator[str]:
        """Yield what each folder holds."""
        for root in self.parent:
            yield from self._below(root)

    def _below(self, root: str) -> Iterator[str]:
        options = self.storage_options
        system, path = reached(root, options)

        def asked() -> list[str] | None:
            # Another process may have written since the listing that the file system keeps.
            system.invalidate_cache()
            return None if system.isfile(path) else list(system.ls(path, detail=False))

        found = tried(root, options, "listing", asked)
        if found is None:
            yield root
            return
        for name in sorted(found):
            if match_masks(name, self.masks) or match_masks(posixpath.basename(name), self.masks):
                yield _as_written(root, name, system)


def _as_written(root: str, name: str, system: Any) -> str:
    """Return a name in the form of the root: with its protocol, and what it is chained to."""
    before, chain, after = root.partition("::")
    protocol, is_url, _ = before.partition("://")
    if not is_url:
        if not chain:
            return name
        protocol = before
    own = (system.protocol,) if isinstance(system.protocol, str) else system.protocol
    bare = next((name[len(p) + 3 :] for p in (*own, protocol) if name.startswith(f"{p}://")), name)
    return f"{protocol}://{bare}{chain}{after}"
