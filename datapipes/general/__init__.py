"""torchdata's general pipes: files, archives, text, and items of any kind.

A pipe is loaded when it is used, under its name in :mod:`voxpipe.datapipes.iter` or
:mod:`voxpipe.datapipes.map`, or as a chained form; pipes of volumes need none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...first_use import at_first_use
from ..forms import register_forms

if TYPE_CHECKING:
    from .files.compressed_loader import Bz2FileLoader, XzFileLoader
    from .files.csv_parser import CSVDictParser, CSVParser
    from .files.decompressor import CompressionType, Decompressor, Extractor
    from .files.disk_cache import EndOnDiskCacheHolder, OnDiskCacheHolder
    from .files.fsspec_list import FSSpecFileLister
    from .files.fsspec_open import FSSpecFileOpener
    from .files.fsspec_save import FSSpecSaver
    from .files.hash_checker import HashChecker
    from .files.http_reader import HttpReader, OnlineReader
    from .files.json_parser import JsonParser
    from .files.left_out import (
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
    from .files.line_reader import LineReader
    from .files.paragraphs import ParagraphAggregator
    from .files.refused import GDriveReader, RarArchiveLoader
    from .files.saver import Saver
    from .files.shard_expander import ShardExpander
    from .files.tar_loader import TarArchiveLoader
    from .files.webdataset import WebDataset
    from .files.zip_loader import ZipArchiveLoader
    from .items.async_map_batches import BatchAsyncMapper
    from .items.bucketbatch import BucketBatcher
    from .items.cycle import Cycler, Repeater
    from .items.dispatch import ShardingRoundRobinDispatcher
    from .items.drop import Dropper
    from .items.flatmap import FlatMapper
    from .items.flatten import Flattener
    from .items.from_map import MapToIterConverter
    from .items.fullsync import FullSync
    from .items.header import Header, LengthSetter
    from .items.in_batch_shuffle import InBatchShuffler
    from .items.in_memory_cache import InMemoryCacheHolder
    from .items.indices import Enumerator, IndexAdder
    from .items.longest import MultiplexerLongest, ZipperLongest
    from .items.map_batches import BatchMapper
    from .items.max_token_bucketize import MaxTokenBucketizer
    from .items.pin_memory import PinMemory
    from .items.random_split import RandomSplitter
    from .items.round_robin_demux import RoundRobinDemultiplexer
    from .items.rows2columnar import Rows2Columnar
    from .items.sample_multiplexer import SampleMultiplexer
    from .items.shuffled_flatmap import ShuffledFlatMapper
    from .items.slice import Slicer
    from .items.threadpool_map import ThreadPoolMapper
    from .items.to_device import ToDevice
    from .items.torch_pipes import (
        SHARDING_PRIORITIES,
        Batcher,
        Collator,
        Concater,
        Demultiplexer,
        FileLister,
        FileOpener,
        Filter,
        Forker,
        Grouper,
        IterableWrapper,
        IterDataPipe,
        Mapper,
        Multiplexer,
        RoutedDecoder,
        Sampler,
        ShardingFilter,
        Shuffler,
        StreamReader,
        UnBatcher,
        Zipper,
    )
    from .items.unzip import UnZipper
    from .items.zip_with_iter import IterKeyZipper
    from .items.zip_with_map import MapKeyZipper

# Where each class is, by its module below this package.
HOMES = {
    "files.compressed_loader": ("Bz2FileLoader", "XzFileLoader"),
    "files.csv_parser": ("CSVDictParser", "CSVParser"),
    "files.decompressor": ("CompressionType", "Decompressor", "Extractor"),
    "files.disk_cache": ("EndOnDiskCacheHolder", "OnDiskCacheHolder"),
    "files.fsspec_list": ("FSSpecFileLister",),
    "files.fsspec_open": ("FSSpecFileOpener",),
    "files.fsspec_save": ("FSSpecSaver",),
    "files.hash_checker": ("HashChecker",),
    "files.http_reader": ("HttpReader", "OnlineReader"),
    "files.json_parser": ("JsonParser",),
    "files.left_out": (
        "AISFileLister",
        "AISFileLoader",
        "DataFrameMaker",
        "HuggingFaceHubReader",
        "IoPathFileLister",
        "IoPathFileOpener",
        "IoPathSaver",
        "ParquetDataFrameLoader",
        "S3FileLister",
        "S3FileLoader",
        "TFRecordLoader",
    ),
    "files.line_reader": ("LineReader",),
    "files.paragraphs": ("ParagraphAggregator",),
    "files.refused": ("GDriveReader", "RarArchiveLoader"),
    "files.saver": ("Saver",),
    "files.shard_expander": ("ShardExpander",),
    "files.tar_loader": ("TarArchiveLoader",),
    "files.webdataset": ("WebDataset",),
    "files.zip_loader": ("ZipArchiveLoader",),
    "items.async_map_batches": ("BatchAsyncMapper",),
    "items.bucketbatch": ("BucketBatcher",),
    "items.cycle": ("Cycler", "Repeater"),
    "items.dispatch": ("ShardingRoundRobinDispatcher",),
    "items.drop": ("Dropper",),
    "items.flatmap": ("FlatMapper",),
    "items.flatten": ("Flattener",),
    "items.from_map": ("MapToIterConverter",),
    "items.fullsync": ("FullSync",),
    "items.header": ("Header", "LengthSetter"),
    "items.in_batch_shuffle": ("InBatchShuffler",),
    "items.in_memory_cache": ("InMemoryCacheHolder",),
    "items.indices": ("Enumerator", "IndexAdder"),
    "items.longest": ("MultiplexerLongest", "ZipperLongest"),
    "items.map_batches": ("BatchMapper",),
    "items.max_token_bucketize": ("MaxTokenBucketizer",),
    "items.pin_memory": ("PinMemory",),
    "items.random_split": ("RandomSplitter",),
    "items.round_robin_demux": ("RoundRobinDemultiplexer",),
    "items.rows2columnar": ("Rows2Columnar",),
    "items.sample_multiplexer": ("SampleMultiplexer",),
    "items.shuffled_flatmap": ("ShuffledFlatMapper",),
    "items.slice": ("Slicer",),
    "items.threadpool_map": ("ThreadPoolMapper",),
    "items.to_device": ("ToDevice",),
    "items.torch_pipes": (
        "Batcher",
        "Collator",
        "Concater",
        "Demultiplexer",
        "FileLister",
        "FileOpener",
        "Filter",
        "Forker",
        "Grouper",
        "IterableWrapper",
        "IterDataPipe",
        "Mapper",
        "Multiplexer",
        "RoutedDecoder",
        "Sampler",
        "SHARDING_PRIORITIES",
        "ShardingFilter",
        "Shuffler",
        "StreamReader",
        "UnBatcher",
        "Zipper",
    ),
    "items.unzip": ("UnZipper",),
    "items.zip_with_iter": ("IterKeyZipper",),
    "items.zip_with_map": ("MapKeyZipper",),
}
__all__ = [
    "SHARDING_PRIORITIES",
    "AISFileLister",
    "AISFileLoader",
    "BatchAsyncMapper",
    "BatchMapper",
    "Batcher",
    "BucketBatcher",
    "Bz2FileLoader",
    "CSVDictParser",
    "CSVParser",
    "Collator",
    "CompressionType",
    "Concater",
    "Cycler",
    "DataFrameMaker",
    "Decompressor",
    "Demultiplexer",
    "Dropper",
    "EndOnDiskCacheHolder",
    "Enumerator",
    "Extractor",
    "FSSpecFileLister",
    "FSSpecFileOpener",
    "FSSpecSaver",
    "FileLister",
    "FileOpener",
    "Filter",
    "FlatMapper",
    "Flattener",
    "Forker",
    "FullSync",
    "GDriveReader",
    "Grouper",
    "HashChecker",
    "Header",
    "HttpReader",
    "HuggingFaceHubReader",
    "InBatchShuffler",
    "InMemoryCacheHolder",
    "IndexAdder",
    "IoPathFileLister",
    "IoPathFileOpener",
    "IoPathSaver",
    "IterDataPipe",
    "IterKeyZipper",
    "IterableWrapper",
    "JsonParser",
    "LengthSetter",
    "LineReader",
    "MapKeyZipper",
    "MapToIterConverter",
    "Mapper",
    "MaxTokenBucketizer",
    "Multiplexer",
    "MultiplexerLongest",
    "OnDiskCacheHolder",
    "OnlineReader",
    "ParagraphAggregator",
    "ParquetDataFrameLoader",
    "PinMemory",
    "RandomSplitter",
    "RarArchiveLoader",
    "Repeater",
    "RoundRobinDemultiplexer",
    "RoutedDecoder",
    "Rows2Columnar",
    "S3FileLister",
    "S3FileLoader",
    "SampleMultiplexer",
    "Sampler",
    "Saver",
    "ShardExpander",
    "ShardingFilter",
    "ShardingRoundRobinDispatcher",
    "ShuffledFlatMapper",
    "Shuffler",
    "Slicer",
    "StreamReader",
    "TFRecordLoader",
    "TarArchiveLoader",
    "ThreadPoolMapper",
    "ToDevice",
    "UnBatcher",
    "UnZipper",
    "WebDataset",
    "XzFileLoader",
    "ZipArchiveLoader",
    "Zipper",
    "ZipperLongest",
]
__getattr__, __dir__ = at_first_use(globals(), HOMES)

# The chained forms, and what each makes.
_ITER_FORMS = {
    "add_index": "items.indices:IndexAdder",
    "async_map_batches": "items.async_map_batches:BatchAsyncMapper",
    "bucketbatch": "items.bucketbatch:BucketBatcher",
    "check_hash": "files.hash_checker:HashChecker",
    "cycle": "items.cycle:Cycler",
    "dataframe": "files.left_out:DataFrameMaker",
    "decompress": "files.decompressor:Decompressor",
    "drop": "items.drop:Dropper",
    "end_caching": "files.disk_cache:EndOnDiskCacheHolder",
    "enumerate": "items.indices:Enumerator",
    "extract": "files.decompressor:Extractor",
    "flatmap": "items.flatmap:FlatMapper",
    "flatten": "items.flatten:Flattener",
    "fullsync": "items.fullsync:FullSync",
    "header": "items.header:Header",
    "in_batch_shuffle": "items.in_batch_shuffle:InBatchShuffler",
    "in_memory_cache": "items.in_memory_cache:InMemoryCacheHolder",
    "lines_to_paragraphs": "files.paragraphs:ParagraphAggregator",
    "list_files_by_ais": "files.left_out:AISFileLister",
    "list_files_by_fsspec": "files.fsspec_list:FSSpecFileLister",
    "list_files_by_iopath": "files.left_out:IoPathFileLister",
    "list_files_by_s3": "files.left_out:S3FileLister",
    "load_files_by_ais": "files.left_out:AISFileLoader",
    "load_files_by_s3": "files.left_out:S3FileLoader",
    "load_from_bz2": "files.compressed_loader:Bz2FileLoader",
    "load_from_rar": "files.refused:RarArchiveLoader",
    "load_from_tar": "files.tar_loader:TarArchiveLoader",
    "load_from_tfrecord": "files.left_out:TFRecordLoader",
    "load_from_xz": "files.compressed_loader:XzFileLoader",
    "load_from_zip": "files.zip_loader:ZipArchiveLoader",
    "load_parquet_as_df": "files.left_out:ParquetDataFrameLoader",
    "map_batches": "items.map_batches:BatchMapper",
    "max_token_bucketize": "items.max_token_bucketize:MaxTokenBucketizer",
    "mux_longest": "items.longest:MultiplexerLongest",
    "on_disk_cache": "files.disk_cache:OnDiskCacheHolder",
    "open_files_by_fsspec": "files.fsspec_open:FSSpecFileOpener",
    "open_files_by_iopath": "files.left_out:IoPathFileOpener",
    "parse_csv": "files.csv_parser:CSVParser",
    "parse_csv_as_dict": "files.csv_parser:CSVDictParser",
    "parse_json_files": "files.json_parser:JsonParser",
    "pin_memory": "items.pin_memory:PinMemory",
    "random_split": "items.random_split:RandomSplitter",
    "read_from_gdrive": "files.refused:GDriveReader",
    "read_from_http": "files.http_reader:HttpReader",
    "read_from_remote": "files.http_reader:OnlineReader",
    "readlines": "files.line_reader:LineReader",
    "repeat": "items.cycle:Repeater",
    "round_robin_demux": "items.round_robin_demux:RoundRobinDemultiplexer",
    "rows2columnar": "items.rows2columnar:Rows2Columnar",
    "save_by_fsspec": "files.fsspec_save:FSSpecSaver",
    "save_by_iopath": "files.left_out:IoPathSaver",
    "save_to_disk": "files.saver:Saver",
    "set_length": "items.header:LengthSetter",
    "shard_expand": "files.shard_expander:ShardExpander",
    "sharding_round_robin_dispatch": "items.dispatch:ShardingRoundRobinDispatcher",
    "shuffled_flatmap": "items.shuffled_flatmap:ShuffledFlatMapper",
    "slice": "items.slice:Slicer",
    "threadpool_map": "items.threadpool_map:ThreadPoolMapper",
    "to_device": "items.to_device:ToDevice",
    "to_map_datapipe": "map.from_iter:IterToMapConverter",
    "unzip": "items.unzip:UnZipper",
    "webdataset": "files.webdataset:WebDataset",
    "zip_longest": "items.longest:ZipperLongest",
    "zip_with_iter": "items.zip_with_iter:IterKeyZipper",
    "zip_with_map": "items.zip_with_map:MapKeyZipper",
}
_MAP_FORMS = {
    "in_memory_cache": "map.in_memory_cache:InMemoryCacheHolder",
    "to_iter_datapipe": "items.from_map:MapToIterConverter",
    "unzip": "map.unzip:UnZipper",
}

register_forms(__name__, _ITER_FORMS, _MAP_FORMS)
