"""What a member of an archive is called: never a place outside of the archive."""

from __future__ import annotations

import os
import posixpath
import re

from ....core.errors import StreamError

_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")
_DRIVE = re.compile(r"^[A-Za-z]:")


def member_path(archive: str, name: str) -> str:
    """Return the path of a member, below that of its archive.

    Raises
    ------
    StreamError
        The name is absolute or leads out of the archive: written to disk under this name, it
        would land anywhere.

    Examples
    --------
    >>> member_path("a.tar", "./p0/ct.nii"), member_path("https://h/a.tar", "p0/ct.nii")
    ('a.tar/p0/ct.nii', 'https://h/a.tar/p0/ct.nii')
    >>> member_path("a.tar", "../ct.nii")
    Traceback (most recent call last):
    voxpipe.core.errors.StreamError: a.tar has a member '../ct.nii', which leads out of it
      Do not unpack this archive; ask who made it.
    """
    plain = name.replace("\\", "/")
    inside = posixpath.normpath(plain)
    outward = inside == ".." or inside.startswith(("../", "/")) or _DRIVE.match(plain)
    if outward or "\0" in name:
        msg = f"{archive} has a member {name!r}, which leads out of it"
        raise StreamError(msg, do="Do not unpack this archive; ask who made it.")
    # A backslash is part of a name here, unless it leads out elsewhere.
    inside = posixpath.normpath(name)
    if _URL.match(archive):
        return f"{archive}/{inside}"
    return os.path.normpath(os.path.join(archive, inside))
