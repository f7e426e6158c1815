"""The general pipes of the stack, under the names that they have in torchdata 0.9."""

from .async_map_batches import BatchAsyncMapper
from .bucketbatch import BucketBatcher
from .cycle import Cycler, Repeater
from .dispatch import ShardingRoundRobinDispatcher
from .drop import Dropper
from .flatmap import FlatMapper
from .flatten import Flattener
from .from_map import MapToIterConverter
from .fullsync import FullSync
from .header import Header, LengthSetter
from .in_batch_shuffle import InBatchShuffler
from .in_memory_cache import InMemoryCacheHolder
from .indices import Enumerator, IndexAdder
from .longest import MultiplexerLongest, ZipperLongest
from .map_batches import BatchMapper
from .max_token_bucketize import MaxTokenBucketizer
from .pin_memory import PinMemory
from .prefetch import Prefetcher
from .random_split import RandomSplitter
from .round_robin_demux import RoundRobinDemultiplexer
from .rows2columnar import Rows2Columnar
from .sample_multiplexer import SampleMultiplexer
from .shuffled_flatmap import ShuffledFlatMapper
from .slice import Slicer
from .threadpool_map import ThreadPoolMapper
from .to_device import ToDevice
from .torch_pipes import (
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
from .unzip import UnZipper
from .zip_with_iter import IterKeyZipper
from .zip_with_map import MapKeyZipper

__all__ = [
    "SHARDING_PRIORITIES",
    "BatchAsyncMapper",
    "BatchMapper",
    "Batcher",
    "BucketBatcher",
    "Collator",
    "Concater",
    "Cycler",
    "Demultiplexer",
    "Dropper",
    "Enumerator",
    "FileLister",
    "FileOpener",
    "Filter",
    "FlatMapper",
    "Flattener",
    "Forker",
    "FullSync",
    "Grouper",
    "Header",
    "InBatchShuffler",
    "InMemoryCacheHolder",
    "IndexAdder",
    "IterDataPipe",
    "IterKeyZipper",
    "IterableWrapper",
    "LengthSetter",
    "MapKeyZipper",
    "MapToIterConverter",
    "Mapper",
    "MaxTokenBucketizer",
    "Multiplexer",
    "MultiplexerLongest",
    "PinMemory",
    "Prefetcher",
    "RandomSplitter",
    "Repeater",
    "RoundRobinDemultiplexer",
    "RoutedDecoder",
    "Rows2Columnar",
    "SampleMultiplexer",
    "Sampler",
    "ShardingFilter",
    "ShardingRoundRobinDispatcher",
    "ShuffledFlatMapper",
    "Shuffler",
    "Slicer",
    "StreamReader",
    "ThreadPoolMapper",
    "ToDevice",
    "UnBatcher",
    "UnZipper",
    "Zipper",
    "ZipperLongest",
]
