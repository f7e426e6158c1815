"""torchdata's check that items are shuffled before workers share them out."""

from __future__ import annotations

from ..graph import Pipe, parents_of, traits_of, walk

__all__ = ["_check_shuffle_before_sharding"]


def _check_shuffle_before_sharding(datapipe: Pipe) -> bool:
    """Whether on every path to every ``sharding_filter`` there is a ``shuffle`` before it.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> source = IterableWrapper(range(4))
    >>> _check_shuffle_before_sharding(source.shuffle().sharding_filter())
    True
    >>> _check_shuffle_before_sharding(source.sharding_filter().shuffle())
    False
    """
    shuffled: dict[int, bool] = {}
    for pipe in walk(datapipe):
        before = [shuffled[id(p)] for p in parents_of(pipe)]
        if traits_of(pipe).shards and not all(before or [False]):
            return False
        shuffled[id(pipe)] = hasattr(type(pipe), "set_shuffle") or all(before or [False])
    return True
