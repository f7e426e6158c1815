"""Begin a chain with a manifest: every header is known, no file is opened to plan an epoch."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ..core import Sample
from ..core.errors import VoxpipeError
from ..core.redact import Redacted, public_name
from ..volumes import Entry, Manifest, Volume, catalogued, read_manifest
from .cases import Seeded, imports_for


class FromManifest(Seeded):
    """Yield one sample per case of a manifest; see :func:`from_manifest`."""

    chained = "from_manifest"

    def __init__(
        self,
        location: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None = None,
        follow: str = "beside",
    ) -> None:
        super().__init__()
        self.storage_options = Redacted(storage_options or {})
        try:
            self.manifest: Manifest = read_manifest(location, self.storage_options, follow)
        except VoxpipeError as error:
            raise error.at(self.origin)  # noqa: B904  the very same error
        # One volume object for all epochs: it travels to each worker with its header.
        self._cases: list[tuple[str, dict[str, Volume]]] = [
            (case, {entry.key: self._volume(entry, follow) for entry in found})
            for case, found in self.manifest.cases().items()
        ]

    def _volume(self, entry: Entry, follow: str) -> Volume:
        return catalogued(entry, self.manifest.name, self.storage_options, follow)

    def __iter__(self) -> Iterator[Sample]:
        """Yield the cases in the order of the manifest."""
        seed, epoch = self._next_run()
        for index, (case, volumes) in enumerate(self._cases):
            identity = self._identity(index)
            yield Sample(dict(volumes), case=case, identity=identity, seed=seed, epoch=epoch)

    def __len__(self) -> int:
        """Return the number of cases."""
        return len(self._cases)

    def describe(self) -> str:
        """Return the name of the manifest and the number of cases."""
        return f"from_manifest({self.manifest.name!r}, {len(self)} cases)"

    def settings(self) -> Any:
        """Return nothing: which cases there are is what :meth:`data_hash` is about."""
        return ()

    @property
    def imports(self) -> tuple[str, ...]:  # type: ignore[override]
        """Ask for zarr if a volume is zarr."""
        return imports_for(entry.location for entry in self.manifest.entries)

    def data_hash(self) -> str:
        """Return 16 hex digits over the entries: places, headers and versions."""
        digest = hashlib.blake2b(digest_size=8)
        for e in self.manifest.entries:
            digest.update(repr((e.case, e.key, e.location, e.kind, e.header, e.stamp)).encode())
        return digest.hexdigest()

    def data_texts(self) -> Iterator[str]:
        """Yield a text for each entry, to say which of them differ."""
        for e in self.manifest.entries:
            yield f"{e.case} {e.key}={public_name(e.location)} {e.kind} {e.header} {e.stamp}"


def from_manifest(
    location: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    follow: str = "beside",
) -> FromManifest:
    """Begin a chain with the cases of a manifest that ``voxpipe index`` wrote.

    Chain ``open_volume()`` as after :func:`list_cases`. Shapes, affines and types come from
    the manifest; ``normalize()`` takes its statistics from there too. When a process first
    reads voxels of a volume, its version is compared with that of the manifest.

    Parameters
    ----------
    location
        Path or URL of the manifest.
    storage_options
        For fsspec, for the manifest and for the volumes. They are never written anywhere.
    follow
        ``"beside"``: volumes lie below the manifest; of one behind a URL on the same host, reached
        by the same scheme; of a local one where it says that it was made of; and what their
        headers name is beside these. ``"anywhere"``: all of them may be anywhere, and credentials
        go there.

    Raises
    ------
    BadManifest
        It is no manifest, an entry makes no sense, or a volume is elsewhere.
    StaleEntry
        Later, where voxels are read: the volume has changed since; the message says how.
    """
    return FromManifest(location, Redacted(storage_options or {}), follow)
