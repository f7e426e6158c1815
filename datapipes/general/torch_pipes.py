"""torch's own pipes under the names of torchdata, so that a script finds all in one place."""

from torch.utils.data import IterDataPipe as IterDataPipe
from torch.utils.data.datapipes.iter import *  # noqa: F403
from torch.utils.data.datapipes.iter import sharding as _sharding

SHARDING_PRIORITIES = _sharding.SHARDING_PRIORITIES
"""Among whom a ``sharding_filter()`` divides: ``DISTRIBUTED`` (ranks), ``MULTIPROCESSING`` (the
workers of each), ``DEFAULT`` (all)."""
