"""Which client reads a URL: fsspec for everything, obstore for buckets of which it costs less.

Of S3 it does not: what :mod:`.signed_get` sends for s3fs takes two thirds of obstore's processor
time, over TLS as well, and goes on in a forked child.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from typing import Any

from ...core.errors import MissingDependency
from . import obstore_ranges
from .fsspec_ranges import SerialFsspecRanges, open_fsspec
from .location import public_name
from .remote_ranges import RemoteRanges
from .retry import Retry

_SENT_HERE = ("s3://", "s3a://")
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
    if wish == "fsspec" or (not wish and url.startswith(_SENT_HERE) and _has_s3fs()):
        return open_fsspec(url, options, retry)
    settings = obstore_ranges.settings_of(url, options)
    if isinstance(settings, str):
        if wish and not settings.startswith("it is not used for"):
            raise MissingDependency(
                f"{CLIENT_VARIABLE}=obstore, but {public_name(url)} cannot be read with it: "
                f"{settings}.",
                do=f"Unset {CLIENT_VARIABLE}, or change the storage_options.",
            )
        return open_fsspec(url, options, retry)
    installed = obstore_ranges.is_installed()
    if wish and not installed:
        raise MissingDependency(
            f"{CLIENT_VARIABLE}=obstore, and it is not installed.",
            do='Install it: pip install "voxpipe[fast]".',
        )
    # In a child of a process that used it, only fsspec goes on.
    if installed and (wish or obstore_ranges.is_usable()):
        return obstore_ranges.ObstoreRanges(url, options, settings, retry)
    return open_fsspec(url, options, retry)


def _has_s3fs() -> bool:
    return importlib.util.find_spec("s3fs") is not None
