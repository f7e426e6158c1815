"""The barrier of ranks: before every item each sends the others a number, or why it leaves.

Numbers are sent over gloo, so each rank waits for all. A rank that leaves does not wait. It writes
the reason to the store of the job, and closes its connections: that ends the wait of the others.
They read the reason, and raise:

- ``RankFailed`` if its pipes raised an error;
- ``PrefetchTimeoutError`` if it made no item within its limit;
- ``RankMissing`` if its loop left the epoch, or there is no reason.

A barrier that one rank has left is closed on all; the next epoch makes another.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..core.errors import PrefetchTimeoutError, RankFailed, RankMissing, VoxpipeError
from ..core.redact import public_text

FAILURE, LATE, DEPARTURE = "failed", "late", "left"
# How often a store is asked: soon at first, as ranks mostly come together, then ten times a second.
_FIRST_LOOK, _LOOK = 0.001, 0.1
# A rank misses another at its own limit; then all ranks exchange the reason within this time.
_LATE_SECONDS = 2.0
# Characters of another rank's error: its cause, and not its whole text.
_LONGEST = 300


class RankBarrier:
    """All ranks of the job; made by all of them at once."""

    def __init__(self, timeout: float, *, do: str) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._timeout, self._do = timeout, do
        self._store = job_store()
        self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
        # They outlive the group: a thread of gloo that frees them waits for the interpreter.
        self._word, *self._answers = torch.zeros(self.size + 1, 1, dtype=torch.int64, device="cpu")
        self._name = f"voxpipe/circle/{self._group.group_name}"
        self._lock = threading.Lock()
        self._telling = self._closing = False
        self._process = os.getpid()

    @property
    def is_open(self) -> bool:
        """Whether no rank is known to have gone; a forked child is none."""
        return self._group is not None and not self._closing and os.getpid() == self._process

    def tell(self, word: int) -> list[int]:
        """Send all ranks a number, and return each rank's; a failure closes the barrier."""
        with self._lock:
            if not self.is_open:
                raise self._why_gone(None)
            group, self._telling = self._group, True
        try:
            self._word.fill_(word)
            dist.all_gather(self._answers, self._word, group=group)
        except RuntimeError as error:
            self._closing = True
            # Its frames hold the group: a forked child that collects them would wait for its end.
            raise self._why_gone(error) from error.with_traceback(None)
        finally:
            del group
            with self._lock:  # so that only one of two threads closes it
                self._telling, closing = False, self._closing
            if closing:
                self.close()
        return [int(number) for number in self._answers]

    def part(self, error: BaseException | None = None) -> None:
        """Leave the others with a reason: ``error``, or that this rank has left the epoch."""
        if not self.is_open:
            return
        why, what = DEPARTURE, ""
        if error is not None and not isinstance(error, (GeneratorExit, StopIteration)):
            why = LATE if isinstance(error, PrefetchTimeoutError) else FAILURE
            text = str(error).splitlines()[:1]
            what = public_text(": ".join([type(error).__name__, *text]))[:_LONGEST]
        with contextlib.suppress(RuntimeError):  # the store is gone, and with it the job
            self._store.set(f"{self._name}/gone/{self.rank}", json.dumps([why, what]))
        self.close()

    def close(self) -> None:
        """Close the connections; any number of times. A sending thread closes them afterwards."""
        # Not in a forked child, which shares them with the rank.
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._telling:
                self._closing = True
                return
            group, self._group = self._group, None
        if group is not None and dist.is_initialized():
            with contextlib.suppress(RuntimeError, AssertionError, ValueError):
                dist.destroy_process_group(group)  # the ranks may have parted already

    def _why_gone(self, error: RuntimeError | None) -> VoxpipeError:
        """Return the other ranks' error for a rank that did not come."""
        ends = f"so rank {self.rank} ends its epoch too"
        for rank in range(self.size):
            key, why, what = f"{self._name}/gone/{rank}", "", ""
            with contextlib.suppress(RuntimeError):  # the store is gone
                if self._store.check([key]):
                    why, what = json.loads(self._store.get(key))
            if why == FAILURE:
                return RankFailed(f"rank {rank} failed, {ends}: {what}", do=f"See rank {rank}.")
            if why == LATE:
                return PrefetchTimeoutError(f"rank {rank} was late, {ends}: {what}", do=self._do)
            if why == DEPARTURE and rank != self.rank:
                msg = f"rank {rank} has left its epoch before the end, {ends}"
                return RankMissing(msg, do="Every rank iterates as often, and as far.")
        if error is None:
            return RankMissing(f"rank {self.rank} has left this epoch already", do=self._do)
        return self._missing(error)

    def _missing(self, error: RuntimeError) -> RankMissing:
        """Return which ranks are not there: those that do not wait as this one does."""
        deadline = time.monotonic() + _LATE_SECONDS
        with store_reachable(self.rank):
            self._store.set(f"{self._name}/late/{self.rank}", "here")
            keys = [f"{self._name}/late/{rank}" for rank in range(self.size)]
            here = [wait_for_key(self._store, key, deadline) for key in keys]
        how = f"waited {self._timeout:g} s"
        if "imed out" not in str(error):
            how = "lost its connection to another"
        absent = [rank for rank, word in enumerate(here) if word is None]
        return rank_missing(self.rank, how, "for the next item", absent, self.size, self._do)


def rank_missing(
    rank: int, how: str, what_for: str, absent: list[int], size: int, do: str
) -> RankMissing:
    """Return the error of a rank that waited, and for whom."""
    ranks = ", ".join(map(str, absent))
    names = f"rank{'s' if len(absent) > 1 else ''} {ranks}" if absent else "some rank"
    return RankMissing(f"rank {rank} {how} {what_for}, and {names} of {size} did not come", do=do)


def job_store() -> Any:
    """Return the key-value store that every job has."""
    # torch has no public name for it; its own sharding and checkpoints use this one. A group of
    # gloo instead would wait for a missing rank without knowing which one it is.
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


def wait_for_key(store: Any, key: str, deadline: float) -> str | None:
    """Return the value at ``key`` of a store; None if there is none at the deadline."""
    # Polls the store. Ctrl-C cannot interrupt the store's own wait, and torch prints two warnings
    # if it ends without the key.
    pause = _FIRST_LOOK
    while not store.check([key]):
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return None
        time.sleep(min(pause, remaining))
        pause = min(2 * pause, _LOOK)
    return str(store.get(key).decode())


@contextlib.contextmanager
def store_reachable(rank: int) -> Iterator[None]:
    """Say which rank is gone if the store is."""
    try:
        yield
    except dist.DistNetworkError as error:
        msg = f"rank {rank} cannot reach the store of the job any more: rank 0, which keeps it, is "
        raise RankMissing(f"{msg}gone", do="See the log of rank 0.") from error
