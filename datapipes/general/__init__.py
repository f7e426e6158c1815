"""torchdata's general pipes: files, archives, text, and items of any kind.

A pipe is loaded when it is used, under its name in :mod:`voxpipe.datapipes.iter` or
:mod:`voxpipe.datapipes.map`, or as a chained form; pipes of volumes need none of them.
"""

# ruff: noqa: F403  (type checkers follow the stars; a test compares the names)
from __future__ import annotations

from typing import TYPE_CHECKING

from ...first_use import at_first_use
from ..forms import register_forms

if TYPE_CHECKING:  # type checkers see what the tables below name
    from .archives import *
    from .branches import *
    from .combine import *
    from .device import *
    from .disk_cache import *
    from .fsspec_files import *
    from .fullsync import *
    from .functions import *
    from .http_reader import *
    from .in_memory_cache import *
    from .items import *
    from .not_offered import *
    from .saver import *
    from .text import *
    from .threads import *
    from .torch_pipes import *
    from .webdataset import *

# The chained forms, and the class that each makes, by its module below this package.
_ITER_FORMS = {
    "add_index": "items:IndexAdder",
    "async_map_batches": "threads:BatchAsyncMapper",
    "bucketbatch": "functions:BucketBatcher",
    "check_hash": "saver:HashChecker",
    "cycle": "items:Cycler",
    "dataframe": "not_offered:DataFrameMaker",
    "decompress": "archives:Decompressor",
    "drop": "items:Dropper",
    "end_caching": "disk_cache:EndOnDiskCacheHolder",
    "enumerate": "items:Enumerator",
    "extract": "archives:Extractor",
    "flatmap": "functions:FlatMapper",
    "flatten": "items:Flattener",
    "fullsync": "fullsync:FullSync",
    "header": "items:Header",
    "in_batch_shuffle": "functions:InBatchShuffler",
    "in_memory_cache": "in_memory_cache:InMemoryCacheHolder",
    "lines_to_paragraphs": "text:ParagraphAggregator",
    "list_files_by_ais": "not_offered:AISFileLister",
    "list_files_by_fsspec": "fsspec_files:FSSpecFileLister",
    "list_files_by_iopath": "not_offered:IoPathFileLister",
    "list_files_by_s3": "not_offered:S3FileLister",
    "load_files_by_ais": "not_offered:AISFileLoader",
    "load_files_by_s3": "not_offered:S3FileLoader",
    "load_from_bz2": "archives:Bz2FileLoader",
    "load_from_rar": "not_offered:RarArchiveLoader",
    "load_from_tar": "archives:TarArchiveLoader",
    "load_from_tfrecord": "not_offered:TFRecordLoader",
    "load_from_xz": "archives:XzFileLoader",
    "load_from_zip": "archives:ZipArchiveLoader",
    "load_parquet_as_df": "not_offered:ParquetDataFrameLoader",
    "map_batches": "functions:BatchMapper",
    "max_token_bucketize": "functions:MaxTokenBucketizer",
    "mux_longest": "combine:MultiplexerLongest",
    "on_disk_cache": "disk_cache:OnDiskCacheHolder",
    "open_files_by_fsspec": "fsspec_files:FSSpecFileOpener",
    "open_files_by_iopath": "not_offered:IoPathFileOpener",
    "parse_csv": "text:CSVParser",
    "parse_csv_as_dict": "text:CSVDictParser",
    "parse_json_files": "text:JsonParser",
    "pin_memory": "device:PinMemory",
    "random_split": "branches:RandomSplitter",
    "read_from_gdrive": "not_offered:GDriveReader",
    "read_from_http": "http_reader:HttpReader",
    "read_from_remote": "http_reader:OnlineReader",
    "readlines": "text:LineReader",
    "repeat": "items:Repeater",
    "round_robin_demux": "branches:RoundRobinDemultiplexer",
    "rows2columnar": "functions:Rows2Columnar",
    "save_by_fsspec": "fsspec_files:FSSpecSaver",
    "save_by_iopath": "not_offered:IoPathSaver",
    "save_to_disk": "saver:Saver",
    "set_length": "items:LengthSetter",
    "shard_expand": "webdataset:ShardExpander",
    "sharding_round_robin_dispatch": "fullsync:ShardingRoundRobinDispatcher",
    "shuffled_flatmap": "functions:ShuffledFlatMapper",
    "slice": "items:Slicer",
    "threadpool_map": "threads:ThreadPoolMapper",
    "to_device": "device:ToDevice",
    "to_map_datapipe": "map_pipe:IterToMapConverter",
    "unzip": "branches:UnZipper",
    "webdataset": "webdataset:WebDataset",
    "zip_longest": "combine:ZipperLongest",
    "zip_with_iter": "combine:IterKeyZipper",
    "zip_with_map": "combine:MapKeyZipper",
}
_MAP_FORMS = {
    "in_memory_cache": "map_pipe:InMemoryCacheHolder",
    "to_iter_datapipe": "items:MapToIterConverter",
    "unzip": "map_pipe:UnZipper",
}
# Classes that no form makes, or only one of the other table.
_WITHOUT_FORM = {
    "archives": ("CompressionType",),
    "combine": ("SampleMultiplexer",),
    "items": ("MapToIterConverter",),
    "not_offered": ("HuggingFaceHubReader",),
    "torch_pipes": (
        *("Batcher", "Collator", "Concater", "Demultiplexer", "FileLister", "FileOpener"),
        *("Filter", "Forker", "Grouper", "IterableWrapper", "IterDataPipe", "Mapper"),
        *("Multiplexer", "RoutedDecoder", "Sampler", "SHARDING_PRIORITIES", "ShardingFilter"),
        *("Shuffler", "StreamReader", "UnBatcher", "Zipper"),
    ),
}


HOMES = dict(_WITHOUT_FORM)  # the names of :mod:`voxpipe.datapipes.iter` that are here, by module
for _place in _ITER_FORMS.values():
    _module, _, _name = _place.partition(":")
    if _module != "map_pipe":  # of :mod:`voxpipe.datapipes.map`
        HOMES[_module] = (*HOMES.get(_module, ()), _name)
if not TYPE_CHECKING:  # which takes what the stars bring
    __all__ = sorted(
        (n for names in HOMES.values() for n in names), key=lambda n: (not n.isupper(), n)
    )
__getattr__, __dir__ = at_first_use(globals(), HOMES)
register_forms(__name__, _ITER_FORMS, _MAP_FORMS)
