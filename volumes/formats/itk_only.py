"""What a header says when the file has a form that this package leaves to SimpleITK."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.errors import UnknownFormat
from ..backend import Backend
from .stored_file import LocalStoredFile, StoredFile


class ItkOnly(Exception):
    """The file is sound as far as can be told, and SimpleITK can read it.

    Parameters
    ----------
    why
        What SimpleITK is needed for.
    data_files
        Other files that the header names, which SimpleITK opens.
    """

    def __init__(self, why: str, data_files: Sequence[str] = ()) -> None:
        super().__init__(why)
        self.data_files = data_files


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
    for name in why.data_files:
        file.beside(name)  # a plain file, and not outside the folder
    return open_itk(file.path, file.name, file.follow)
