"""Pipes of torchdata that voxpipe leaves out on purpose: they say so, and what to use instead."""

from __future__ import annotations

from typing import Any

from ....core.errors import NotOffered
from ....graph import Pipe
from ...datapipe import DataPipe
from ...forms import offered

NO_DRIVE = (
    "files are not read from Google Drive: its links answer with web pages (a virus warning, a "
    "quota) that change without notice, instead of the file"
)
USE_A_BUCKET = "Copy the files to a bucket or a web server, or download them once with gdown."


@offered("read_from_gdrive")
class GDriveReader(DataPipe):
    """Refuse: files are not read from Google Drive.

    Raises
    ------
    NotOffered
        At construction.
    """

    def __init__(self, parent: Pipe, **options: Any) -> None:
        raise NotOffered(NO_DRIVE, do=USE_A_BUCKET).at(self.origin)


@offered("load_from_rar")
class RarArchiveLoader(DataPipe):
    """Refuse: rar archives are not opened.

    Raises
    ------
    NotOffered
        At construction.
    """

    def __init__(self, parent: Pipe, *, length: int = -1) -> None:
        msg = (
            "rar archives are not opened: the format is proprietary, and reading it means to run "
            "a program that is not part of Python on every archive"
        )
        raise NotOffered(msg, do="Pack the files as .tar or .zip.").at(self.origin)
