"""Mark where items are dealt out to workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

from ....graph import Pipe, Traits
from ...datapipe import DataPipe, length_of
from ...forms import offered


@offered("sharding_round_robin_dispatch")
class ShardingRoundRobinDispatcher(DataPipe):
    """Mark that everything above runs in one process, which deals its items out to the workers.

    By itself it passes the items on. A reading service with workers heeds it: what comes before
    runs once, in the process of the loader, and what comes after runs in the workers. Several that
    meet are one, where they meet.

    Parameters
    ----------
    source_datapipe
        The parent.
    sharding_group_filter
        ``SHARDING_PRIORITIES.MULTIPROCESSING``, and nothing else so far.

    Raises
    ------
    NotImplementedError
        For any other group.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> once = IterableWrapper(range(3))
    >>> list(once.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING))
    [0, 1, 2]
    """

    traits: ClassVar[Traits] = Traits(deals=True)

    def __init__(
        self, source_datapipe: Pipe, sharding_group_filter: SHARDING_PRIORITIES | None = None
    ) -> None:
        super().__init__()
        if sharding_group_filter != SHARDING_PRIORITIES.MULTIPROCESSING:
            msg = "`sharding_round_robin_dispatch` currently only supports "
            msg += f"`SHARDING_PRIORITIES.MULTIPROCESSING`, got {sharding_group_filter}"
            raise NotImplementedError(msg)
        self.parent = source_datapipe
        self.sharding_group_filter = sharding_group_filter

    def __iter__(self) -> Iterator[Any]:
        """Yield the parent's items."""
        yield from self.parent

    def __len__(self) -> int:
        """Return the parent's length."""
        return length_of(self, self.parent)
