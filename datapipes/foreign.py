"""What torch's own pipes do, for the rewrites and the cut."""

from __future__ import annotations

from typing import Any

from ..graph import Traits, register_traits


def _map(pipe: Any) -> Traits:
    return Traits(per_item=True, opaque=True)


def _batch(pipe: Any) -> Traits:
    return Traits(group=pipe.batch_size, drop_last=pipe.drop_last)


def register_torch_pipes() -> None:
    """Fill the table for the pipes that the realizing part may hold; the rest only plan.

    A filter may drop items and a shuffle remembers them, so neither is per item: before
    voxels they run in the planner, after voxels the graph cannot be cut.
    """
    register_traits("MapperIterDataPipe", _map)
    register_traits("CollatorIterDataPipe", _map)
    register_traits("BatcherIterDataPipe", _batch)
    register_traits("ShardingFilterIterDataPipe", lambda pipe: Traits(shards=True))


register_torch_pipes()
