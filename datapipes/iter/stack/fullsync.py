"""Let all ranks end together: at the item that the first of them lacks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from enum import IntEnum
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from ....core.errors import PrefetchTimeoutError, RankFailed
from ....graph import Pipe, Traits
from ...datapipe import length_of, offered
from .ahead import Ahead, Ended
from .footprint import BUFFER_BYTES
from .running_ahead import RunningAhead

TIMEOUT = 1800.0
"""Seconds that a rank may take for an item, unless told otherwise: half an hour."""


class Said(IntEnum):
    """What a rank tells the others before each item."""

    ITEM = 1
    END = 2
    FAILED = 3
    LATE = 4


@offered("fullsync")
class FullSync(RunningAhead):
    """Yield items as long as every rank of ``torch.distributed`` has one.

    Without it a rank whose share is longer waits for ever for the others in its next collective.

    Parameters
    ----------
    datapipe
        The parent: this rank's share.
    timeout
        Seconds that any rank may take for an item.

    Notes
    -----
    Before each item the ranks tell each other, over gloo, whether they have one. Each has one
    item made ahead by a thread. With one rank there is nothing to agree upon. This pipe
    is not replicable: a loader runs it in its own process, behind its workers.

    Raises
    ------
    RuntimeError
        While iterating: ``torch.distributed`` is not initialised.
    PrefetchTimeoutError
        While iterating, on every rank: one took too long for an item; the message names it.
    RankFailed
        While iterating: another rank failed; the message names it.
    ValueError
        If the timeout is not above 0.
    """

    traits: ClassVar[Traits] = Traits(here=True)
    running = ("_ahead", "_group")
    _group: Any

    def __init__(self, datapipe: Pipe, timeout: float = TIMEOUT) -> None:
        super().__init__()
        if not timeout > 0:
            msg = f"timeout is a number of seconds above 0, got {timeout}"
            raise ValueError(msg)
        if not dist.is_available():
            raise RuntimeError("Torch Distributed is required to be available")
        self.parent = datapipe
        self.timeout = timeout
        self.fresh()

    def fresh(self) -> None:
        """Begin without a thread and a group."""
        self._ahead = None
        self._group = None

    def is_replicable(self) -> bool:
        """Return False: a worker is no rank."""
        return False

    def __iter__(self) -> Iterator[Any]:
        """Yield the items that all ranks have."""
        if not dist.is_initialized():
            msg = "Torch Distributed is required to be initialized to use `FullSync`: call "
            raise RuntimeError(msg + "torch.distributed.init_process_group() first")
        if dist.get_world_size() == 1:
            yield from self.parent
            return
        # One item, of any size: a rank that waits for another has the next one ready.
        ahead = Ahead(self.parent, most=1, most_bytes=BUFFER_BYTES, name=self.chained)
        self._ahead = ahead
        try:
            while True:
                item, said, error = self._next_of(ahead)
                every = self._told(said)
                if error is not None:
                    if said is Said.LATE:
                        ahead.abandon()
                    raise error
                self._refuse(every)
                if Said.END in every:
                    return
                yield item
        finally:
            ahead.stop()
            if self._ahead is ahead:
                self._ahead = None

    def _next_of(self, ahead: Ahead) -> tuple[Any, Said, BaseException | None]:
        """Return the next item, what to tell the others, and the error to raise after that."""
        try:
            return ahead.take(self.timeout), Said.ITEM, None
        except Ended:
            return None, Said.END, None
        except PrefetchTimeoutError as error:
            return None, Said.LATE, error
        except BaseException as error:
            return None, Said.FAILED, error

    def _told(self, said: Said) -> list[int]:
        """Tell the other ranks, and return what each has said."""
        table = torch.zeros(dist.get_world_size(), dtype=torch.int64)
        table[dist.get_rank()] = said
        try:
            dist.all_reduce(table, group=self._gloo())
        except RuntimeError as error:
            what = f"rank {dist.get_rank()} got no answer of the other ranks"
            if "imed out" in str(error):
                raise PrefetchTimeoutError(f"{what} within {2 * self.timeout:g} s") from error
            do = "See what they wrote last: one of them has ended or left the loop."
            raise RankFailed(what, do=do) from error
        return [int(word) for word in table]

    def _gloo(self) -> Any:
        """Return a group of this pipe's own, made by all ranks together at their first item."""
        if self._group is None:
            # A rank that is late says so after ``timeout``: the others have to be still there.
            wait = timedelta(seconds=2 * self.timeout)
            self._group = dist.new_group(backend="gloo", timeout=wait)
        return self._group

    def _refuse(self, every: list[int]) -> None:
        """Raise an error if another rank was late or failed."""
        late = [rank for rank, said in enumerate(every) if said == Said.LATE]
        if late:
            what = f"rank {late[0]} has made no item within {self.timeout:g} s"
            raise PrefetchTimeoutError(what, do="Give fullsync() a longer timeout=.")
        failed = [rank for rank, said in enumerate(every) if said == Said.FAILED]
        if failed:
            msg = f"rank {failed[0]} failed, so rank {dist.get_rank()} ends its epoch here"
            raise RankFailed(msg, do=f"See the error of rank {failed[0]}.")

    def __len__(self) -> int:
        """Return the length of this rank's share; another one may be shorter."""
        return length_of(self, self.parent)

    def shutdown(self) -> None:
        """End the thread and leave the group; any number of times."""
        super().shutdown()
        group, self._group = self._group, None
        if group is not None and dist.is_initialized():
            with contextlib.suppress(ValueError, RuntimeError):  # the ranks have parted already
                dist.destroy_process_group(group)
