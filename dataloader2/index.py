"""Write a manifest of a data set: what is known of every volume, so that epochs open no header."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from ..core.errors import VoxpipeError
from ..datapipes.iter.open_volume import LABELS
from ..volumes import Finding, Manifest, Volume, index_cases, read_manifest, write_manifest
from .check import Report, no_cases, silent, volumes_and_gaps


def index(
    cases: Any,
    destination: str | os.PathLike[str] = "manifest.json",
    *,
    labels: Collection[str] = LABELS,
    statistics: bool = True,
    full_hash: bool = False,
    progress: Callable[[int, int], None] = silent,
    storage_options: Mapping[str, Any] | None = None,
    **reader_kwargs: Any,
) -> Report:
    """Write a manifest of every case, and report those that are left out since a volume is bad.

    Parameters
    ----------
    cases
        As of :func:`check`: a pipe of cases, a list, a folder or its URL, one volume.
    destination
        Path or URL of the manifest. What is there already is used: volumes that did not change
        since are not read again.
    labels
        Keys that hold labels, if the cases are not opened yet.
    statistics
        Whether to read every voxel for mean, range, percentiles and classes.
    full_hash
        Whether to read every stored byte for a digest.
    progress
        ``progress(done, total)`` in volumes.
    storage_options
        For fsspec, where volumes or the manifest are URLs. They are not written.
    **reader_kwargs
        For the backend, as of ``open_volume()``.

    Returns
    -------
    Report
        A finding per volume; a manifest is written unless all are bad.

    Raises
    ------
    VolumeNotFound
        There are no cases at all.
    BadManifest
        The destination cannot be written.

    Examples
    --------
    >>> report = index("scans/", "scans/manifest.json")  # doctest: +SKIP
    >>> pipe = from_manifest("scans/manifest.json").open_volume()  # doctest: +SKIP
    """
    volumes, missing = volumes_and_gaps(cases, storage_options, labels=labels, **reader_kwargs)
    if not volumes:
        raise no_cases()

    def counted() -> Iterator[tuple[str, str, Volume]]:
        progress(0, len(volumes))
        for done, (case, key, volume) in enumerate(volumes, 1):
            yield case, key, volume
            progress(done, len(volumes))

    known = _earlier(destination, storage_options)
    manifest, bad = index_cases(counted(), statistics=statistics, full_hash=full_hash, known=known)
    incomplete = {finding.case for finding in missing}
    kept = tuple(entry for entry in manifest.entries if entry.case not in incomplete)
    if kept:
        write_manifest(Manifest(kept), destination, storage_options)
    sound = [Finding(e.case, e.key, e.location, shape=e.header.shape) for e in kept]
    return Report((*sound, *bad, *missing), len(volumes))


def _earlier(
    destination: str | os.PathLike[str], storage_options: Mapping[str, Any] | None
) -> Manifest | None:
    """Return the manifest that is there; None if there is none that can be read."""
    try:
        # Compared only: none of its volumes is opened.
        return read_manifest(destination, storage_options, follow="anywhere")
    except VoxpipeError:
        return None
