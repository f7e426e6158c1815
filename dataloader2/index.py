"""Write a manifest of a data set: what is known of every volume, so that epochs open no header."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from ..core.errors import SampleError, VoxpipeError
from ..core.redact import public_name
from ..datapipes.open_volume import LABELS
from ..storage.location import absolute_place
from ..volumes import Finding, Manifest, Volume, index_cases, read_manifest, write_manifest
from .check import (
    Report,
    is_opened,
    labels_among,
    no_cases,
    silent,
    tell_likely_labels,
    volumes_and_gaps,
)

_DIGITS = re.compile(r"\d+")


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
        Keys that hold labels, if the cases are not opened yet. Unless you give it, a key that
        looks like a label but is none of these brings a ``LikelyLabel`` warning.
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
    SampleError
        The volumes below a folder have other keys in every case.
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
    likely, sure = labels_among(volumes, labels is LABELS and not is_opened(cases))
    tell_likely_labels(likely, sure)
    if isinstance(cases, (str, os.PathLike)) and not os.fspath(cases).lower().endswith(".json"):
        _refuse_other_keys(os.fspath(cases), volumes)

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
    return Report((*sound, *bad, *missing), len(volumes), likely, sure)


def _refuse_other_keys(place: str, volumes: Sequence[tuple[str, str, Volume]]) -> None:
    """Raise where no two of several cases below a place share a key: no chain could use them."""
    of_case: dict[str, str] = {}
    for case, key, _ in volumes:
        of_case.setdefault(case, key)
    if len(of_case) < 2 or len({key for _, key, _ in volumes}) < len(volumes):
        return
    shown = ", ".join(f"{case} has {key}" for case, key in list(of_case.items())[:2])
    name, below = volumes[0][2].name, public_name(absolute_place(place)).rstrip("/")
    start = len(below) if name.startswith(below) else 0
    pattern = f"{name[:start]}{_DIGITS.sub('*', name[start:])}"
    raise SampleError(
        f"no two cases share a key: {shown}.",
        do=f'Give a pattern of files for each key, in quotes: "image={pattern}", for instance.',
    )


def _earlier(
    destination: str | os.PathLike[str], storage_options: Mapping[str, Any] | None
) -> Manifest | None:
    """Return the manifest that is there; None if there is none that can be read."""
    try:
        # Compared only: none of its volumes is opened.
        return read_manifest(destination, storage_options, follow="anywhere")
    except VoxpipeError:
        return None
