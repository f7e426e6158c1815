"""At which levels pipes divide items: among ranks, among the workers of each, or both."""

from __future__ import annotations

from typing import Any

from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

RANKS, WORKERS = SHARDING_PRIORITIES.DISTRIBUTED, SHARDING_PRIORITIES.MULTIPROCESSING
LEVELS = (RANKS, WORKERS)


def levels_of(pipe: Any) -> tuple[Any, ...]:
    """Return the levels at which a pipe divides.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> source = IterableWrapper([1])
    >>> levels_of(source), levels_of(source.sharding_filter()) == LEVELS
    ((), True)
    """
    if not hasattr(type(pipe), "apply_sharding"):
        return ()
    group = getattr(pipe, "sharding_group_filter", None)
    if group is None or group == SHARDING_PRIORITIES.DEFAULT:
        return LEVELS
    return (group,)
