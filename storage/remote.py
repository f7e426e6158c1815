"""Which client reads a URL: obstore where it can, fsspec for everything else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..core.errors import MissingDependency
from .fsspec_ranges import SerialFsspecRanges, open_fsspec
from .location import public_name
from .obstore_ranges import ObstoreRanges, is_usable, settings_of
from .remote_ranges import RemoteRanges
from .retry import Retry

CLIENT_VARIABLE = "VOXPIPE_REMOTE"
"""``fsspec`` or ``obstore``: which client to use instead of the one that is chosen."""

RemoteStore = RemoteRanges | SerialFsspecRanges


def open_remote(url: str, options: Mapping[str, Any], retry: Retry | None = None) -> RemoteStore:
    """Return the objects below a URL.

    Parameters
    ----------
    url
        Of a folder, or of one object: its key is empty then.
    options
        Those of fsspec.
    retry
        When a failed request is sent again; by default that of the process.

    Raises
    ------
    MissingDependency
        A package for this kind of URL is not installed.
    ForkUnsafe
        obstore is asked for, in a child of a process that used it.
    """
    wish = os.environ.get(CLIENT_VARIABLE, "")
    if wish not in ("", "fsspec", "obstore"):
        msg = f"{CLIENT_VARIABLE} is fsspec or obstore, got {wish!r}"
        raise ValueError(msg)
    if wish == "fsspec":
        return open_fsspec(url, options, retry)
    settings = settings_of(url, options, os.environ)
    if isinstance(settings, str):
        if wish and not settings.startswith("it is not used for"):
            raise MissingDependency(
                f"{CLIENT_VARIABLE}=obstore, but {public_name(url)} cannot be read with it: "
                f"{settings}.",
                do=f"Unset {CLIENT_VARIABLE}, or change the storage_options.",
            )
        return open_fsspec(url, options, retry)
    # In a child of a process that used it, only fsspec goes on.
    if wish or is_usable():
        return ObstoreRanges(url, options, settings, retry, only=bool(wish))
    return open_fsspec(url, options, retry)


def open_for_versions(url: str, options: Mapping[str, Any]) -> RemoteStore:
    """Return the objects below a URL, by a client that names versions as in every other process.

    A process reads through obstore, and one that was forked from it through fsspec; versions of
    one are compared in the other. Where their words differ fsspec is asked, which takes a second
    of processor time to import and some milliseconds per listing.
    """
    store = open_remote(url, options)
    if isinstance(store, ObstoreRanges) and not store.versions_as_fsspec:
        return open_fsspec(url, options)
    return store
