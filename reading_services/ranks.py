"""The processes of a torch.distributed job agree, once per epoch, on what they are about to do.

They put it down in the key-value store of the process group; a rank that does not come is known.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import zip_longest
from typing import Any, NoReturn

import torch.distributed as dist

from ..batching.job import BatchResult
from ..core.errors import GraphError, RankMissing, RanksDiffer
from ..datapipes.rank_barrier import (
    RankBarrier,
    job_store,
    rank_missing,
    store_reachable,
    wait_for_key,
)
from .delivered_batches import DeliveredBatches
from .planner import PAD
from .reading_service import Epoch, leave

# Which service of this process it is. Ranks make and run their loaders in one order, as they do
# with every collective; what runs beside each other is compared, so another order is told.
_NUMBERS = itertools.count()

# What becomes of a beginning, as it stands in the store; the number of a rank follows the latter.
_DECISION, _BEGIN, _GIVEN_UP = "decided", "begun", "given up by "

Cases = list[tuple[bool, list[Any]]]
"""A pair for each source: whether it lists a storage, and its cases or a text for each."""

_DO_START = (
    "Call torch.distributed.init_process_group() before the loop, in every rank (torchrun sets "
    "what it needs), or leave DistributedReadingService out."
)
_DO_LOOK = (
    "Look at what that rank did last; DistributedReadingService(timeout=...) is the limit. Every "
    "rank iterates the loader as often."
)


class Ranks:
    """All ranks of the job."""

    def __init__(self, timeout: float) -> None:
        if not is_started():
            raise RankMissing("this process is no rank of a torch.distributed job", do=_DO_START)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._timeout = timeout
        self._name = f"voxpipe/{next(_NUMBERS)}"
        self._turn, self._last = 0, ""
        self._barrier: RankBarrier | None = None

    def agree(
        self, claim: Mapping[str, Any], cases: Callable[[], Cases] | None = None
    ) -> dict[str, Any]:
        """Return the claim of rank 0, once every rank has the same claim but for the seed.

        Where only the ``data`` differ, it has the ``cases`` of rank 0 too; an error names a case.
        """
        claims = self._exchange("epoch", dict(claim))
        first: dict[str, Any] = claims[0]
        for rank, other in claims.items():
            differs = [key for key in first if key != "seed" and first[key] != other.get(key)]
            if differs and differs[0] != "data":
                raise self._differ(rank, differs[0], other, first)
        if cases is None or all(other["data"] == first["data"] for other in claims.values()):
            return first
        lists = self._exchange("cases", cases())
        for rank, other in lists.items():
            for (is_listed, theirs), (is_first, ours) in zip(other, lists[0], strict=True):
                if theirs != ours and not (is_listed and is_first):
                    pairs = zip_longest(theirs, ours, fillvalue="nothing")
                    each = next(f"rank {rank} has {a}, rank 0 {b}" for a, b in pairs if a != b)
                    raise self._differ(rank, "data", claims[rank], first, f": first, {each}")
        return {**first, "cases": lists[0]}

    @staticmethod
    def _differ(rank: int, key: str, other: Any, first: Any, why: str = "") -> RanksDiffer:
        return RanksDiffer(
            f"rank {rank} is about to run {key} {other.get(key)!r}, rank 0 {first[key]!r}{why}",
            do="Every rank makes the same chain of the same cases, loads the same state "
            "and runs its loaders in the same order.",
        )

    def meet(self) -> RankBarrier:
        """Return the barrier in which ranks tell each other of every item; made by all at once."""
        if self._barrier is None or not self._barrier.is_open:
            # All are here: they have just agreed.
            self._barrier = RankBarrier(self._timeout, do=_DO_LOOK)
        return self._barrier

    def _exchange(self, what: str, value: Any) -> dict[int, Any]:
        self._turn += 1
        store, before, self._last = job_store(), self._last, f"{what}/{self._turn}"
        place = f"{self._name}/{self._last}"
        with store_reachable(self.rank):
            store.set(f"{place}/{self.rank}", json.dumps(value, default=os.fspath))
        deadline = time.monotonic() + self._timeout
        texts, missing = {}, []
        for rank in range(self.size):
            with store_reachable(self.rank):
                answer = wait_for_key(store, f"{place}/{rank}", deadline)
            if answer is None:
                missing.append(rank)
            else:
                texts[rank] = answer
        # Before it begins or gives up: one that comes late finds every claim in its place, and
        # would begin alone. The first to say so decides for all; who gives up last may go on.
        with store_reachable(self.rank):
            # One step of the store: of two ranks that decide at once, one is the first.
            word = f"{_GIVEN_UP}{self.rank}" if missing else _BEGIN
            decision = store.compare_set(f"{place}/{_DECISION}", "", word).decode()
        if missing and decision == _BEGIN:
            with store_reachable(self.rank):
                texts = {rank: store.get(f"{place}/{rank}").decode() for rank in range(self.size)}
        elif missing:
            how = f"waited {self._timeout:g} s"
            raise rank_missing(self.rank, how, "to begin the epoch", missing, self.size, _DO_LOOK)
        elif decision != _BEGIN:
            by = decision.removeprefix(_GIVEN_UP)
            raise RankMissing(
                f"rank {self.rank} came late to the beginning of the epoch: rank {by} of "
                f"{self.size} had waited for its limit, and given up",
                do=_DO_LOOK,
            )
        if self.rank == 0 and self._turn > 1:
            # Everybody has read the one before, or would not have put this one down.
            for key in (*range(self.size), _DECISION):
                with contextlib.suppress(RuntimeError, NotImplementedError):
                    store.delete_key(f"{self._name}/{before}/{key}")
        return {rank: json.loads(text) for rank, text in texts.items()}

    def close(self) -> None:
        """Leave the barrier, if there is one."""
        barrier, self._barrier = self._barrier, None
        if barrier is not None:
            barrier.close()


def is_started() -> bool:
    """Whether this process is a rank of a job."""
    return dist.is_available() and dist.is_initialized()


def checked_timeout(seconds: float) -> float:
    """Return a limit in seconds; ``ValueError`` if it is none."""
    if not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
        raise ValueError(f"timeout is a number of seconds above 0, got {seconds!r}")
    return float(seconds)


# Ranks that have to ask each other before every batch, so that they end together.
#
# Of a graph that cannot be planned nobody knows how many items it has before they are made; and of
# items that fail, under ``OnError``, only one rank knows. They ask over gloo, in the consumers'
# processes.
#
# A rank that goes before the end says why and waits for nobody (``datapipes/rank_barrier.py``):
# what it raised ends the others with ``RankFailed``, and a loop that went elsewhere with
# ``RankMissing``, at their next item and not at their limit.

# What a rank tells before each item: one of these, or from _HAS on how much failed in it.
_END, _HAS = -1, 0
_START = DeliveredBatches()


class _InStep:
    """What one rank yields of an epoch that all end together."""

    def __init__(self, own: Epoch, barrier: RankBarrier) -> None:
        self.last = -1
        self._own = own
        self._barrier = barrier
        self._is_closed = self._has_agreed = self._has_left = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._is_closed:
            raise StopIteration
        try:
            return self._take()
        except StopIteration:
            self.close()
            raise
        except BaseException as error:
            self._barrier.part(error)  # at once: the others would wait for their limit
            self.close()
            raise

    def _take(self) -> Any:
        raise NotImplementedError

    def _tell(self, word: int) -> list[int]:
        words = self._barrier.tell(word)
        if self._has_left:  # while the others were waited for
            self._barrier.part()
            raise StopIteration
        return words

    def _own_batch(self) -> tuple[Any, int]:
        try:
            batch = next(self._own)
        except StopIteration:
            return None, _END
        # What could not be planned was found by every rank: it is no news to the others.
        failures = batch.failures if isinstance(batch, BatchResult) else ()
        return batch, _HAS + sum(failure.item >= 0 for failure in failures)

    def _end(self) -> NoReturn:
        self._has_agreed = True
        raise StopIteration

    def leave(self) -> None:
        """End the wait for an item that another thread is in; :meth:`close` is still to come."""
        self._has_left = True
        leave(self._own)

    def close(self) -> None:
        """End this rank's pass; the others are told if they are still at it."""
        self._is_closed = True
        if not self._has_agreed:
            self._barrier.part()
        self._own.close()


class LockstepEpoch(_InStep):
    """Yields the items of one rank as long as all ranks have one."""

    def __init__(
        self, own: Epoch, barrier: RankBarrier, uneven: str, cursor: DeliveredBatches = _START
    ) -> None:
        super().__init__(own, barrier)
        self._cursor = cursor
        self._pads = uneven == PAD
        self._last_item: Any = None
        self._has_item = False
        self._at_end = False

    def _take(self) -> Any:
        while True:
            item, word = self._own_batch() if not self._at_end else (None, _END)
            self._at_end = word == _END
            words = self._tell(min(word, _HAS))
            having = words.count(_HAS)
            if not having or (having < len(words) and not self._pads):
                self._end()
            if not self._at_end:
                self.last = self._own.last
                if self._pads:
                    self._last_item, self._has_item = item, True
            elif self._has_item:
                self.last += 1
                item = self._last_item
            else:
                msg = f"rank {self._barrier.rank} has no item at all to repeat"
                raise GraphError(msg, do='Give it a share: fewer ranks, or uneven="drop".')
            if not self._cursor.holds(self.last):
                return item

    def close(self) -> None:
        """End this rank's pass; the others are told if they are still at it."""
        self._last_item = None
        super().close()


class CountedEpoch(_InStep):
    """Yields one rank's parts of batches of which some could not be made, counted on all ranks.

    Only the rank whose item failed knows of it: alone it would reach the budget and end, while the
    others wait for it in their next collective. So they tell each other before each batch.
    """

    def _take(self) -> Any:
        batch, word = self._own_batch()
        words = self._tell(word)
        if word == _END:
            self._end()
        self.last = self._own.last
        elsewhere = sum(words) - word
        if not elsewhere:
            return batch
        if isinstance(batch, BatchResult):
            return replace(batch, elsewhere=elsewhere)
        return BatchResult(batch, (), elsewhere=elsewhere)
