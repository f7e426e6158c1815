"""What torch's own pipes do, for the rewrites and the cut."""

from __future__ import annotations

from typing import Any

from ..graph import Traits, register_traits


def _map(pipe: Any) -> Traits:
    return Traits(per_item=True, opaque=True)


def _batch(pipe: Any) -> Traits:
    return Traits(group=pipe.batch_size, drop_last=pipe.drop_last)


def _filter(pipe: Any) -> Traits:
    return Traits(opaque=True)


# Of torch's own pipes, those that only move items: order, combine, divide, gather by key.
_MOVERS = (
    "ConcaterIterDataPipe",
    "DemultiplexerIterDataPipe",
    "ForkerIterDataPipe",
    "GrouperIterDataPipe",
    "IterableWrapperIterDataPipe",
    "MultiplexerIterDataPipe",
    "SamplerIterDataPipe",
    "ShufflerIterDataPipe",
    "UnBatcherIterDataPipe",
    "ZipperIterDataPipe",
    "FileListerIterDataPipe",
    "SequenceWrapperMapDataPipe",
    "_ChildDataPipe",
    "_DemultiplexerIterDataPipe",
    "_ForkerIterDataPipe",
)


def register_torch_pipes() -> None:
    """Fill the table for torch's pipes; one that is not in it is taken to do anything.

    A filter may drop items and a shuffle remembers them, so neither is per item: before
    voxels they run in the planner, after voxels the graph cannot be cut.
    """
    register_traits("MapperIterDataPipe", _map)
    register_traits("CollatorIterDataPipe", _map)
    register_traits("FilterIterDataPipe", _filter)
    register_traits("BatcherIterDataPipe", _batch)
    register_traits("ShardingFilterIterDataPipe", lambda pipe: Traits(shards=True))
    for name in _MOVERS:
        register_traits(name, lambda pipe: Traits())


register_torch_pipes()
