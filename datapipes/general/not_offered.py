"""Pipes of torchdata whose work is done by others now: they say by which."""

from __future__ import annotations

from typing import Any, ClassVar

from ...core.errors import NotOffered
from ...graph import Pipe
from ..datapipe import DataPipe
from ..forms import offered

_FSSPEC = (
    "Use .list_files_by_fsspec(), .open_files_by_fsspec() or .save_by_fsspec(): "
    "fsspec opens {protocols} as well."
)
_OBJECTS = _FSSPEC.format(protocols="s3://, gs:// and az://")
_TABLES = "Read the table with {library} and begin the chain with IterableWrapper(rows)."


class _LeftOut(DataPipe):
    why: ClassVar[str]
    instead: ClassVar[str]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise NotOffered(self.why, do=self.instead).at(self.origin)


class _Ais(_LeftOut):
    why = "the pipes of AIStore are not here: they want a client of their own for each object"
    instead = "Use its S3 interface: .list_files_by_fsspec(endpoint_url=...), or from_cases(...)."


class _IoPath(_LeftOut):
    why = "the pipes of iopath are not here: fsspec does the same"
    instead = _OBJECTS


class _S3(_LeftOut):
    why = "the pipes of torchdata's own S3 client are not here: it was removed from torchdata, too"
    instead = _OBJECTS


@offered("list_files_by_ais")
class AISFileLister(_Ais):
    """Refuse with :class:`~voxpipe.errors.NotOffered`, which says what to use."""


@offered("load_files_by_ais")
class AISFileLoader(_Ais):
    """Refuse with :class:`~voxpipe.errors.NotOffered`, which says what to use."""


@offered("list_files_by_iopath")
class IoPathFileLister(_IoPath):
    """Refuse with :class:`~voxpipe.errors.NotOffered`, which says what to use."""


@offered("open_files_by_iopath")
class IoPathFileOpener(_IoPath):
    """Refuse with :class:`~voxpipe.errors.NotOffered`, which says what to use."""


@offered("save_by_iopath")
class IoPathSaver(_IoPath):
    """Refuse with :class:`~voxpipe.errors.NotOffered`, which says what to use."""


@offered("list_files_by_s3")
class S3FileLister(_S3):
    """Refuse with :class:`~voxpipe.errors.NotOffered`, which says what to use."""


@offered("load_files_by_s3")
class S3FileLoader(_S3):
    """Refuse with :class:`~voxpipe.errors.NotOffered`, which says what to use."""


class HuggingFaceHubReader(_LeftOut):
    """Refuse with :class:`~voxpipe.errors.NotOffered`, which says what to use."""

    why = "data sets of the Hugging Face hub are not opened here"
    instead = "Use datasets.load_dataset(..., streaming=True) as the source, or hf:// with fsspec."


@offered("dataframe")
class DataFrameMaker(_LeftOut):
    """Refuse with :class:`~voxpipe.errors.NotOffered`, which says what to use."""

    why = "torcharrow, of which torchdata makes data frames, is no longer developed"
    instead = "Use .batch(...).map(pandas.DataFrame)."


@offered("load_parquet_as_df")
class ParquetDataFrameLoader(_LeftOut):
    """Refuse with :class:`~voxpipe.errors.NotOffered`, which says what to use."""

    why = "torcharrow, as whose data frames torchdata loads Parquet, is no longer developed"
    instead = _TABLES.format(library="pyarrow or pandas")


@offered("load_from_tfrecord")
class TFRecordLoader(_LeftOut):
    """Refuse with :class:`~voxpipe.errors.NotOffered`, which says what to use."""

    why = "TFRecord files are not read: their records are messages of TensorFlow"
    instead = _TABLES.format(library="the package tfrecord")


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
