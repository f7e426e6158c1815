"""torch's own pipes under the names of torchdata, so that a script finds all in one place."""

from torch.utils.data import IterDataPipe as IterDataPipe
from torch.utils.data.datapipes.iter import Batcher as Batcher
from torch.utils.data.datapipes.iter import Collator as Collator
from torch.utils.data.datapipes.iter import Concater as Concater
from torch.utils.data.datapipes.iter import Demultiplexer as Demultiplexer
from torch.utils.data.datapipes.iter import FileLister as FileLister
from torch.utils.data.datapipes.iter import FileOpener as FileOpener
from torch.utils.data.datapipes.iter import Filter as Filter
from torch.utils.data.datapipes.iter import Forker as Forker
from torch.utils.data.datapipes.iter import Grouper as Grouper
from torch.utils.data.datapipes.iter import IterableWrapper as IterableWrapper
from torch.utils.data.datapipes.iter import Mapper as Mapper
from torch.utils.data.datapipes.iter import Multiplexer as Multiplexer
from torch.utils.data.datapipes.iter import RoutedDecoder as RoutedDecoder
from torch.utils.data.datapipes.iter import Sampler as Sampler
from torch.utils.data.datapipes.iter import ShardingFilter as ShardingFilter
from torch.utils.data.datapipes.iter import Shuffler as Shuffler
from torch.utils.data.datapipes.iter import StreamReader as StreamReader
from torch.utils.data.datapipes.iter import UnBatcher as UnBatcher
from torch.utils.data.datapipes.iter import Zipper as Zipper
from torch.utils.data.datapipes.iter import sharding as _sharding

SHARDING_PRIORITIES = _sharding.SHARDING_PRIORITIES
"""Among whom a ``sharding_filter()`` divides: ``DISTRIBUTED`` (ranks), ``MULTIPROCESSING`` (the
workers of each), ``DEFAULT`` (all)."""
