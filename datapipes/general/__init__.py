"""torchdata's general pipes: files, archives, text, and items of any kind.

A pipe is loaded when it is used, under its name in :mod:`voxpipe.datapipes.iter` or
:mod:`voxpipe.datapipes.map`, or as a chained form; pipes of volumes need none of them.
"""

# ruff: noqa: F403  (type checkers follow the stars; a test compares the names)
from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...first_use import at_first_use
from ..datapipe import register_forms

if TYPE_CHECKING:  # type checkers see what the tables below name
    from .archives import *
    from .branches import *
    from .combine import *
    from .disk_cache import *
    from .fsspec_files import *
    from .functions import *
    from .http_reader import *
    from .in_memory_cache import *
    from .items import *
    from .main_process import *
    from .not_offered import *
    from .streams import *
    from .text import *
    from .threads import *
    from .torch_pipes import *

# Classes by module, behind the chained forms that they are made by, if any.
_ITER_PIPES = {
    "archives": (
        "CompressionType decompress:Decompressor extract:Extractor load_from_bz2:Bz2FileLoader "
        "load_from_tar:TarArchiveLoader load_from_xz:XzFileLoader load_from_zip:ZipArchiveLoader"
    ),
    "branches": (
        "random_split:RandomSplitter round_robin_demux:RoundRobinDemultiplexer unzip:UnZipper"
    ),
    "combine": (
        "SampleMultiplexer mux_longest:MultiplexerLongest zip_longest:ZipperLongest "
        "zip_with_iter:IterKeyZipper zip_with_map:MapKeyZipper"
    ),
    "disk_cache": "end_caching:EndOnDiskCacheHolder on_disk_cache:OnDiskCacheHolder",
    "fsspec_files": (
        "list_files_by_fsspec:FSSpecFileLister open_files_by_fsspec:FSSpecFileOpener "
        "save_by_fsspec:FSSpecSaver"
    ),
    "functions": (
        "bucketbatch:BucketBatcher flatmap:FlatMapper in_batch_shuffle:InBatchShuffler "
        "map_batches:BatchMapper max_token_bucketize:MaxTokenBucketizer "
        "rows2columnar:Rows2Columnar shuffled_flatmap:ShuffledFlatMapper"
    ),
    "http_reader": "read_from_http:HttpReader read_from_remote:OnlineReader",
    "in_memory_cache": "in_memory_cache:InMemoryCacheHolder",
    "items": (
        "MapToIterConverter add_index:IndexAdder cycle:Cycler drop:Dropper enumerate:Enumerator "
        "flatten:Flattener header:Header repeat:Repeater set_length:LengthSetter slice:Slicer"
    ),
    "main_process": (
        "pin_memory:PinMemory to_device:ToDevice fullsync:FullSync "
        "sharding_round_robin_dispatch:ShardingRoundRobinDispatcher"
    ),
    "not_offered": (
        "HuggingFaceHubReader dataframe:DataFrameMaker list_files_by_ais:AISFileLister "
        "list_files_by_iopath:IoPathFileLister list_files_by_s3:S3FileLister "
        "load_files_by_ais:AISFileLoader load_files_by_s3:S3FileLoader "
        "load_from_rar:RarArchiveLoader load_from_tfrecord:TFRecordLoader "
        "load_parquet_as_df:ParquetDataFrameLoader open_files_by_iopath:IoPathFileOpener "
        "read_from_gdrive:GDriveReader save_by_iopath:IoPathSaver"
    ),
    "streams": "check_hash:HashChecker save_to_disk:Saver",
    "text": (
        "lines_to_paragraphs:ParagraphAggregator parse_csv:CSVParser "
        "parse_csv_as_dict:CSVDictParser parse_json_files:JsonParser readlines:LineReader "
        "shard_expand:ShardExpander webdataset:WebDataset"
    ),
    "threads": "async_map_batches:BatchAsyncMapper threadpool_map:ThreadPoolMapper",
    "torch_pipes": (
        "Batcher Collator Concater Demultiplexer FileLister FileOpener Filter Forker Grouper "
        "IterableWrapper IterDataPipe Mapper Multiplexer RoutedDecoder Sampler SHARDING_PRIORITIES "
        "ShardingFilter Shuffler StreamReader UnBatcher Zipper"
    ),
}
_MAP_PIPES = {
    "items": "to_iter_datapipe:MapToIterConverter",
    "map_pipe": "in_memory_cache:InMemoryCacheHolder unzip:UnZipper",
}


def _forms(pipes: Mapping[str, str]) -> dict[str, str]:
    """Return the place of the class of each chained form."""
    pairs = ((m, name.rpartition(":")) for m, names in pipes.items() for name in names.split())
    return {form: f"{module}:{name}" for module, (form, _, name) in pairs if form}


HOMES = {module: re.sub(r"\w+:", "", names) for module, names in _ITER_PIPES.items()}
"""The names of :mod:`voxpipe.datapipes.iter` that are here, by module."""
if not TYPE_CHECKING:  # which takes what the stars bring
    __all__ = " ".join(HOMES.values()).split()
    __all__.sort(key=lambda name: (not name.isupper(), name))
__getattr__, __dir__ = at_first_use(globals(), HOMES)
_TO_MAP = {"to_map_datapipe": "map_pipe:IterToMapConverter"}
register_forms(__name__, _forms(_ITER_PIPES) | _TO_MAP, _forms(_MAP_PIPES))
