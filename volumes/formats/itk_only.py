"""What a header says when the file has a form that this package leaves to SimpleITK."""

from __future__ import annotations

from ...core.errors import UnknownFormat
from ..backend import Backend
from .stored_file import LocalStoredFile, StoredFile


class ItkOnly(Exception):
    """The file is sound as far as can be told, and SimpleITK can read it. Its text says why."""


def open_with_itk(file: StoredFile, why: ItkOnly) -> Backend:
    """Open a file with SimpleITK.

    Raises
    ------
    UnknownFormat
        SimpleITK is not installed, or the file is behind a URL.
    """
    if not isinstance(file, LocalStoredFile):
        raise UnknownFormat(
            f"{file.name} can only be read from a local disk: {why}.",
            do="Copy it, or write it again in one piece, raw or with gzip.",
        )
    from .itk import is_installed, open_itk

    if not is_installed():
        raise UnknownFormat(
            f"{file.name} can only be read with SimpleITK: {why}.",
            do="pip install SimpleITK, or write it again in one piece, raw or with gzip.",
        )
    return open_itk(file.path, file.name)
