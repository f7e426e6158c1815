"""Credentials that were given where cases are listed, for the volumes that were found there."""

from __future__ import annotations

import os
from typing import Any

from ..core.hidden import Hidden, origin_of
from ..graph import Pipe, walk
from .cases import ListCases

Inherited = dict[str, Hidden]
"""Storage options by scheme and bucket (``s3://scans``)."""


def inherited_options(parent: Pipe) -> Inherited:
    """Return the storage options of the listings upstream, by the buckets that they found.

    Ask once their cases have come: else this lists the storage.
    """
    found: Inherited = {}
    for pipe in walk(parent):
        if isinstance(pipe, ListCases) and pipe.storage_options:
            for case in pipe.listing():
                places = {origin_of(place) for place in case.values()}
                found.update({place: pipe.storage_options for place in places if place})
    return found


def options_for(source: Any, inherited: Inherited) -> Hidden | None:
    """Return the options for a source; None unless it lies in one of the buckets.

    A URL of another server gets none: credentials are for the place that they were given for.
    """
    if not inherited or not isinstance(source, (str, os.PathLike)):
        return None
    return inherited.get(origin_of(os.fspath(source)))
