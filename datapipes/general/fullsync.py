"""Let all ranks end together: at the item that the first of them lacks."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, ClassVar

import torch.distributed as dist
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

from ...core.errors import PrefetchTimeoutError
from ...graph import Pipe, Traits
from ..background_iterator import BackgroundIterator, Exhausted, RunningAhead
from ..datapipe import SameLength
from ..forms import offered
from ..rank_barrier import RankBarrier
from ..tensors import BUFFER_BYTES

TIMEOUT = 1800.0  # seconds that a rank may take for an item, unless told otherwise: half an hour


class Announcement(IntEnum):
    """What a rank tells the others before each item."""

    ITEM = 1
    END = 2


@offered("fullsync")
class FullSync(RunningAhead, SameLength):
    """Yield items as long as every rank of ``torch.distributed`` has one.

    Without it a rank whose share is longer waits for ever for the others in its next collective.

    Before each item the ranks tell each other, over gloo, whether they have one. Each has one
    item made ahead by a thread. With one rank there is nothing to agree upon. This pipe
    is not replicable: a loader runs it in its own process, behind its workers.

    Parameters
    ----------
    datapipe
        The parent: this rank's share.
    timeout
        Seconds that any rank may take for an item.

    Raises
    ------
    PrefetchTimeoutError
        While iterating, on every rank: one took too long for an item; the message names it.
    RankFailed
        While iterating: another rank failed; the message names it and its error.
    RankMissing
        While iterating: another rank left its loop, is gone, or does not answer.
    """

    traits: ClassVar[Traits] = Traits(main_process=True)
    running = ("_ahead", "_barrier")
    _barrier: RankBarrier | None

    def __init__(self, datapipe: Pipe, timeout: float = TIMEOUT) -> None:
        super().__init__(datapipe)
        if not timeout > 0:
            raise ValueError(f"timeout is a number of seconds above 0, got {timeout}")
        if not dist.is_available():
            raise RuntimeError("Torch Distributed is required to be available")
        self.timeout = timeout
        self.fresh()

    def fresh(self) -> None:
        """Begin without a thread and a barrier of ranks."""
        self._ahead = None
        self._barrier = None

    def is_replicable(self) -> bool:
        """Return False: a worker is no rank."""
        return False

    def __iter__(self) -> Iterator[Any]:
        if not dist.is_initialized():
            msg = "Torch Distributed is required to be initialized to use `FullSync`: call "
            raise RuntimeError(msg + "torch.distributed.init_process_group() first")
        if dist.get_world_size() == 1:
            yield from self.parent
            return
        barrier = self._joined()
        # One item, of any size: a rank that waits for another has the next one ready.
        ahead = BackgroundIterator(self.parent, most=1, most_bytes=BUFFER_BYTES, name=self.chained)
        self._ahead = ahead
        try:
            while True:
                item, said = self._next_of(ahead)
                if Announcement.END in barrier.tell(said):
                    return
                yield item
        except BaseException as error:  # the loop's as well, if it goes elsewhere
            barrier.part(error)
            raise
        finally:
            ahead.stop()
            if self._ahead is ahead:
                self._ahead = None

    def _joined(self) -> RankBarrier:
        """Return the barrier of all ranks: they make it together, and another if one has left."""
        if self._barrier is None or not self._barrier.is_open:
            # A rank that is late says so after ``timeout``: the others have to be still there.
            do = "Look at what that rank did last, or give fullsync() a longer timeout=."
            self._barrier = RankBarrier(2 * self.timeout, do=do)
        return self._barrier

    def _next_of(self, ahead: BackgroundIterator) -> tuple[Any, Announcement]:
        """Return the next item, and what to tell the others."""
        try:
            return ahead.take(self.timeout), Announcement.ITEM
        except Exhausted:
            return None, Announcement.END
        except PrefetchTimeoutError:
            ahead.abandon()
            raise

    def shutdown(self) -> None:
        """End the thread and leave the other ranks; any number of times."""
        super().shutdown()
        barrier, self._barrier = self._barrier, None
        if barrier is not None:
            barrier.close()


@offered("sharding_round_robin_dispatch")
class ShardingRoundRobinDispatcher(SameLength):
    """Mark that everything above runs in one process, which deals its items out to the workers.

    By itself it passes the items on. A reading service with workers heeds it: what comes before
    runs once, in the process of the loader, and what comes after runs in the workers. Several that
    meet are one, where they meet.

    Parameters
    ----------
    sharding_group_filter
        ``SHARDING_PRIORITIES.MULTIPROCESSING``, and nothing else so far.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> once = IterableWrapper(range(3))
    >>> list(once.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING))
    [0, 1, 2]
    """

    traits: ClassVar[Traits] = Traits(dispatches=True)

    def __init__(
        self, source_datapipe: Pipe, sharding_group_filter: SHARDING_PRIORITIES | None = None
    ) -> None:
        super().__init__(source_datapipe)
        if sharding_group_filter != SHARDING_PRIORITIES.MULTIPROCESSING:
            msg = "`sharding_round_robin_dispatch` currently only supports "
            msg += f"`SHARDING_PRIORITIES.MULTIPROCESSING`, got {sharding_group_filter}"
            raise NotImplementedError(msg)
        self.sharding_group_filter = sharding_group_filter

    def __iter__(self) -> Iterator[Any]:
        yield from self.parent
