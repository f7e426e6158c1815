"""Files and archives: list, open, unpack, check, save and keep them; read lines, rows, JSON.

The classes have the names that they have in torchdata.
"""

from ....graph import Traits as _Traits
from ....graph import register_traits as _register_traits
from .compressed_loader import Bz2FileLoader, XzFileLoader
from .csv_parser import CSVDictParser, CSVParser
from .decompressor import CompressionType, Decompressor, Extractor
from .disk_cache import EndOnDiskCacheHolder, OnDiskCacheHolder
from .fsspec_list import FSSpecFileLister
from .fsspec_open import FSSpecFileOpener
from .fsspec_save import FSSpecSaver
from .hash_checker import HashChecker
from .http_reader import HttpReader, OnlineReader
from .json_parser import JsonParser
from .left_out import (
    AISFileLister,
    AISFileLoader,
    DataFrameMaker,
    HuggingFaceHubReader,
    IoPathFileLister,
    IoPathFileOpener,
    IoPathSaver,
    ParquetDataFrameLoader,
    S3FileLister,
    S3FileLoader,
    TFRecordLoader,
)
from .line_reader import LineReader
from .paragraphs import ParagraphAggregator
from .refused import GDriveReader, RarArchiveLoader
from .saver import Saver
from .shard_expander import ShardExpander
from .streams import janitor
from .tar_loader import TarArchiveLoader
from .webdataset import WebDataset
from .zip_loader import ZipArchiveLoader

__all__ = [
    "AISFileLister",
    "AISFileLoader",
    "Bz2FileLoader",
    "CSVDictParser",
    "CSVParser",
    "CompressionType",
    "DataFrameMaker",
    "Decompressor",
    "EndOnDiskCacheHolder",
    "Extractor",
    "FSSpecFileLister",
    "FSSpecFileOpener",
    "FSSpecSaver",
    "GDriveReader",
    "HashChecker",
    "HttpReader",
    "HuggingFaceHubReader",
    "IoPathFileLister",
    "IoPathFileOpener",
    "IoPathSaver",
    "JsonParser",
    "LineReader",
    "OnDiskCacheHolder",
    "OnlineReader",
    "ParagraphAggregator",
    "ParquetDataFrameLoader",
    "RarArchiveLoader",
    "S3FileLister",
    "S3FileLoader",
    "Saver",
    "ShardExpander",
    "TFRecordLoader",
    "TarArchiveLoader",
    "WebDataset",
    "XzFileLoader",
    "ZipArchiveLoader",
    "janitor",
]

# torch's own pipe that opens files: an open file cannot travel to a worker.
_register_traits("FileOpenerIterDataPipe", lambda pipe: _Traits(per_item=True, voxels=True))
