"""A name for stored content: same file, same size, same time of writing."""

from __future__ import annotations

import hashlib

# 128 bits: two of a billion files meet with a probability below 1e-20.
_DIGEST_BYTES = 16


def content_key(location: str, version: tuple[object, ...]) -> str:
    """Return a short key for a location in one version of its content.

    Examples
    --------
    >>> content_key("/a.nii", (10, 1)) == content_key("/a.nii", (10, 2))
    False
    """
    text = repr((location, *version))
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()
