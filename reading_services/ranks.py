"""Agreement of the processes of a torch.distributed job, once per epoch.

The ranks write their claims to the key-value store of the process group, and find missing ranks.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import zip_longest
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from ..batching.job import BatchResult
from ..core.errors import GraphError, RankMissing, RanksDiffer
from ..core.validate import validate_int
from ..datapipes.rank_barrier import (
    RankBarrier,
    job_store,
    rank_missing,
    store_reachable,
    wait_for_key,
)
from .planner import PAD, DeliveredBatches, RankPart
from .reading_service import Epoch, leave
from .replica import MAX_SEED

# Numbers of the services of this process. Ranks must make and run their loaders in one order, as
# with every collective; a different order shows in the comparison of claims.
_NUMBERS = itertools.count()

# Keys and values in the store; the number of a rank follows the last one.
_DECISION, _BEGIN, _GIVEN_UP = "decided", "begun", "given up by "

Cases = list[tuple[bool, list[Any]]]
"""A pair for each source: whether it lists a storage, and its cases or their texts."""

_DO_START = (
    "Call torch.distributed.init_process_group() before the loop, in every rank (torchrun sets its "
    "variables), or leave DistributedReadingService out."
)
_DO_LOOK = (
    "See the log of that rank; DistributedReadingService(timeout=...) is the limit. Every "
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
        """Return the claim of rank 0, once every rank has the same claim except for the seed.

        If only the ``data`` differ, the claim includes the ``cases`` of rank 0; an error names a
        case.
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
                    pair = next(f"rank {rank} has {a}, rank 0 {b}" for a, b in pairs if a != b)
                    raise self._differ(rank, "data", claims[rank], first, f": first, {pair}")
        return {**first, "cases": lists[0]}

    @staticmethod
    def _differ(rank: int, key: str, other: Any, first: Any, why: str = "") -> RanksDiffer:
        return RanksDiffer(
            f"rank {rank} is about to run {key} {other.get(key)!r}, rank 0 {first[key]!r}{why}",
            do="Every rank makes the same chain of the same cases, loads the same state "
            "and runs its loaders in the same order.",
        )

    def meet(self) -> RankBarrier:
        """Return the barrier for the exchange before every item; all ranks call this together."""
        if self._barrier is None or not self._barrier.is_open:
            # All ranks have just agreed, so all take part.
            self._barrier = RankBarrier(self._timeout, do=_DO_LOOK)
        return self._barrier

    def _exchange(self, topic: str, value: Any) -> dict[int, Any]:
        self._turn += 1
        store, before, self._last = job_store(), self._last, f"{topic}/{self._turn}"
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
        # A late rank finds every claim and would begin alone, so each rank first writes whether it
        # begins or gives up. The first entry decides for all, and others follow it.
        with store_reachable(self.rank):
            # compare_set is atomic: if two ranks decide at once, one is the first.
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
            msg = f"rank {self.rank} came late to the beginning of the epoch: rank {by} of "
            do = _DO_LOOK
            raise RankMissing(f"{msg}{self.size} had waited for its limit, and given up", do=do)
        if self.rank == 0 and self._turn > 1:
            # All ranks have read the previous exchange, as they have written to this one.
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


def dist_share_seed(seed: int, process_group: Any = None) -> int:
    """Return the seed of rank 0 of a ``torch.distributed`` group, on every rank of it."""
    seed = validate_int("seed", seed, least=0, below=MAX_SEED)
    # Tensors have signed integers: shift the seeds, half of which would be too large.
    tensor = torch.tensor(seed - MAX_SEED // 2, dtype=torch.int64, device="cpu")
    source = 0 if process_group is None else dist.get_global_rank(process_group, 0)
    dist.broadcast(tensor, src=source, group=process_group)
    return int(tensor.item()) + MAX_SEED // 2


# An exchange of ranks before every batch, so that they end together.
#
# A graph that cannot be planned has an unknown number of items, and under ``OnError`` only one rank
# knows of a failed item. The ranks exchange over gloo, in the consumers' processes.
#
# A rank that leaves early reports the reason and does not wait (``datapipes/rank_barrier.py``). Its
# error ends the other ranks with ``RankFailed``, and the end of its loop with ``RankMissing``. They
# end at their next item, before their timeout.

# The number that a rank sends before each item: _END, or _HAS plus the failures in the item.
_END, _HAS = -1, 0


class _InStep(Iterator[Any]):
    """One rank's pass over an epoch that all ranks end together."""

    def __init__(self, own: Epoch, barrier: RankBarrier) -> None:
        self.last = -1
        self._own = own
        self._barrier = barrier
        self._is_closed = self._has_agreed = self._has_left = False

    def __next__(self) -> Any:
        if self._is_closed:
            raise StopIteration
        try:
            return self._take()
        except StopIteration:
            self.close()
            raise
        except BaseException as error:
            self._barrier.part(error)  # at once: the other ranks would wait for their timeout
            self.close()
            raise

    def _take(self) -> Any:
        raise NotImplementedError

    def _tell(self, word: int) -> list[int]:
        words = self._barrier.tell(word)
        if self._has_left:  # during the wait for the other ranks
            self._barrier.part()
            raise StopIteration
        return words

    def _own_batch(self) -> tuple[Any, int]:
        try:
            batch = next(self._own)
        except StopIteration:
            return None, _END
        # Every rank has found the failures of planning (item < 0): do not send them.
        failures = batch.failures if isinstance(batch, BatchResult) else ()
        return batch, _HAS + sum(failure.item >= 0 for failure in failures)

    def _end(self) -> NoReturn:
        self._has_agreed = True
        raise StopIteration

    def leave(self) -> None:
        self._has_left = True
        leave(self._own)

    def close(self) -> None:
        """End this rank's pass, and notify ranks that have not ended."""
        self._is_closed = True
        if not self._has_agreed:
            self._barrier.part()
        self._own.close()


class LockstepEpoch(_InStep):
    """One rank's items, as long as all ranks have one."""

    def __init__(
        self, own: Epoch, barrier: RankBarrier, part: RankPart, cursor: DeliveredBatches
    ) -> None:
        super().__init__(own, barrier)
        self._cursor = cursor
        self._pads, self._fill = part.uneven == PAD, part.fill
        self._last_items: list[Any] = []  # the last item, to repeat
        self._at_end = False

    def _take(self) -> Any:
        while True:
            item, word = self._own_batch() if not self._at_end else (None, _END)
            self._at_end = word == _END
            words = self._tell(min(word, _HAS))
            having = words.count(_HAS)
            if not having or (having < len(words) and not self._pads):
                self._end()
            if having < len(words):
                self._fill.items = -1
            if not self._at_end:
                self.last = self._own.last
                if self._pads:
                    self._last_items = [item]
            elif self._last_items:
                self.last += 1
                item = self._last_items[0]
            else:
                msg = f"rank {self._barrier.rank} has no item at all to repeat"
                raise GraphError(msg, do='Give it a share: fewer ranks, or uneven="drop".')
            if not self._cursor.holds(self.last):
                return item

    def close(self) -> None:
        """End this rank's pass, and notify ranks that have not ended."""
        self._last_items.clear()
        super().close()


class CountedEpoch(_InStep):
    """One rank's parts of batches, with failures counted over all ranks.

    Only one rank knows of a failed item. Alone it would exceed the budget and end, while the others
    wait for it in their next collective. So ranks exchange their counts before each batch.
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
