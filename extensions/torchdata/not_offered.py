"""Pipes of torchdata whose work is done by others now: they say by which."""

from __future__ import annotations

from types import new_class
from typing import Any, ClassVar, NoReturn

from ...core.errors import NotOffered
from ...datapipes.datapipe import DataPipe

_OBJECTS = (
    "Use .list_files_by_fsspec(), .open_files_by_fsspec() or .save_by_fsspec(), e.g. of s3://."
)
_AIS = (
    "the pipes of AIStore are not here: they want a client of their own for each object",
    "Use its S3 interface: .list_files_by_fsspec(endpoint_url=...), or from_cases(...).",
)
_IOPATH = ("the pipes of iopath are not here: fsspec does the same", _OBJECTS)
_S3 = ("the pipes of torchdata's own S3 client are not here: torchdata removed it, too", _OBJECTS)
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
    "files are not read from Google Drive: its links may answer with a web page, not the file",
    "Copy the files to a bucket or a web server, or download them once with gdown.",
)
"""The reason and the cure."""
_RAR = (
    "rar archives are not opened: only a proprietary program reads them, run on each archive",
    "Pack the files as .tar or .zip.",
)


class _LeftOut(DataPipe):
    """Refuse with :class:`~voxpipe.errors.NotOffered`, which names a replacement."""

    refusal: ClassVar[tuple[str, str]]

    def __new__(cls, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse, with the line where the pipe was written."""
        why, do = cls.refusal
        raise NotOffered(why, do=do).at(super().__new__(cls, *arguments, **options).origin)


def _left_out(name: str, form: str, refusal: tuple[str, str]) -> type[_LeftOut]:
    body = {"refusal": refusal, "__doc__": _LeftOut.__doc__, "__module__": __name__}
    return new_class(name, (_LeftOut,), {"form": form}, lambda names: names.update(body))


AISFileLister = _left_out("AISFileLister", "list_files_by_ais", _AIS)
AISFileLoader = _left_out("AISFileLoader", "load_files_by_ais", _AIS)
IoPathFileLister = _left_out("IoPathFileLister", "list_files_by_iopath", _IOPATH)
IoPathFileOpener = _left_out("IoPathFileOpener", "open_files_by_iopath", _IOPATH)
IoPathSaver = _left_out("IoPathSaver", "save_by_iopath", _IOPATH)
S3FileLister = _left_out("S3FileLister", "list_files_by_s3", _S3)
S3FileLoader = _left_out("S3FileLoader", "load_files_by_s3", _S3)
HuggingFaceHubReader = _left_out("HuggingFaceHubReader", "", _HUB)
DataFrameMaker = _left_out("DataFrameMaker", "dataframe", _FRAMES)
ParquetDataFrameLoader = _left_out("ParquetDataFrameLoader", "load_parquet_as_df", _PARQUET)
TFRecordLoader = _left_out("TFRecordLoader", "load_from_tfrecord", _RECORDS)
GDriveReader = _left_out("GDriveReader", "read_from_gdrive", DRIVE)
RarArchiveLoader = _left_out("RarArchiveLoader", "load_from_rar", _RAR)
