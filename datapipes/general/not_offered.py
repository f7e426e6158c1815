# ruff: noqa: D101  (each class has the one docstring)
"""Pipes of torchdata whose work is done by others now: they say by which."""

from __future__ import annotations

from typing import Any, ClassVar

from ...core.errors import NotOffered
from ..datapipe import DataPipe

_OBJECTS = (
    "Use .list_files_by_fsspec(), .open_files_by_fsspec() or .save_by_fsspec(): fsspec opens "
    "s3://, gs:// and az:// as well."
)
_AIS = (
    "the pipes of AIStore are not here: they want a client of their own for each object",
    "Use its S3 interface: .list_files_by_fsspec(endpoint_url=...), or from_cases(...).",
)
_IOPATH = ("the pipes of iopath are not here: fsspec does the same", _OBJECTS)
_S3 = (
    "the pipes of torchdata's own S3 client are not here: it was removed from torchdata, too",
    _OBJECTS,
)
_HUB = (
    "data sets of the Hugging Face hub are not opened here",
    "Use datasets.load_dataset(..., streaming=True) as the source, or hf:// with fsspec.",
)
_FRAMES = (
    "torcharrow, of which torchdata makes data frames, is no longer developed",
    "Use .batch(...).map(pandas.DataFrame).",
)
_PARQUET = (
    "torcharrow, as whose data frames torchdata loads Parquet, is no longer developed",
    "Read the table with pyarrow or pandas and begin the chain with IterableWrapper(rows).",
)
_RECORDS = (
    "TFRecord files are not read: their records are messages of TensorFlow",
    "Read the table with the package tfrecord and begin the chain with IterableWrapper(rows).",
)
DRIVE = (
    "files are not read from Google Drive: its links answer with web pages (a virus warning, a "
    "quota) that change without notice, instead of the file",
    "Copy the files to a bucket or a web server, or download them once with gdown.",
)
"""Why, and what to do."""
_RAR = (
    "rar archives are not opened: the format is proprietary, and reading it means to run a program "
    "that is not part of Python on every archive",
    "Pack the files as .tar or .zip.",
)


class _LeftOut(DataPipe):
    refusal: ClassVar[tuple[str, str]]

    def __init_subclass__(cls, *, refusal: tuple[str, str], **more: Any) -> None:
        cls.refusal = refusal
        cls.__doc__ = "Refuse with :class:`~voxpipe.errors.NotOffered`, which says what to use."
        super().__init_subclass__(**more)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        why, do = self.refusal
        raise NotOffered(why, do=do).at(self.origin)


class AISFileLister(_LeftOut, form="list_files_by_ais", refusal=_AIS): ...


class AISFileLoader(_LeftOut, form="load_files_by_ais", refusal=_AIS): ...


class IoPathFileLister(_LeftOut, form="list_files_by_iopath", refusal=_IOPATH): ...


class IoPathFileOpener(_LeftOut, form="open_files_by_iopath", refusal=_IOPATH): ...


class IoPathSaver(_LeftOut, form="save_by_iopath", refusal=_IOPATH): ...


class S3FileLister(_LeftOut, form="list_files_by_s3", refusal=_S3): ...


class S3FileLoader(_LeftOut, form="load_files_by_s3", refusal=_S3): ...


class HuggingFaceHubReader(_LeftOut, refusal=_HUB): ...


class DataFrameMaker(_LeftOut, form="dataframe", refusal=_FRAMES): ...


class ParquetDataFrameLoader(_LeftOut, form="load_parquet_as_df", refusal=_PARQUET): ...


class TFRecordLoader(_LeftOut, form="load_from_tfrecord", refusal=_RECORDS): ...


class GDriveReader(_LeftOut, form="read_from_gdrive", refusal=DRIVE): ...


class RarArchiveLoader(_LeftOut, form="load_from_rar", refusal=_RAR): ...
