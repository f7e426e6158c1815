"""The processes of a torch.distributed job agree, once per epoch, on what they are about to do.

They agree through the job's own key-value store, which every process group has: a rank puts down
what it is about to do and reads what the others did. Nobody sends voxels or batches, and a rank
that does not come is known by its number, on every other rank. Workers never take part.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ...core.errors import RankMissing, RanksDiffer

# The store's own wait cannot be interrupted: Ctrl-C is seen after so many seconds at most.
_SLICE = 0.5
# A rank learns that another is missing at its own limit; then all tell each other within this.
_LATE_SECONDS = 2.0
# Which service of this process it is. Ranks make and run their loaders in one order, as they do
# with every collective; what runs beside each other is compared, so another order is told.
_NUMBERS = itertools.count()

_DO_START = (
    "Call torch.distributed.init_process_group() before the loop, in every rank (torchrun sets "
    "what it needs), or leave DistributedReadingService out."
)


class Ranks:
    """All ranks of the job.

    Parameters
    ----------
    timeout
        Seconds that ranks wait for each other.

    Raises
    ------
    RankMissing
        No process group was started.
    """

    def __init__(self, timeout: float) -> None:
        check_started()
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._timeout = timeout
        self._name = f"voxpipe/{next(_NUMBERS)}"
        self._turn = 0
        self._group: Any = None

    def agree(self, claim: Mapping[str, Any]) -> dict[str, Any]:
        """Return what rank 0 claims, once every rank has claimed the same but for the seed.

        Raises
        ------
        RanksDiffer
            Naming the ranks that are about to do something else, and what.
        RankMissing
            Naming those that did not come in time.
        """
        first: dict[str, Any] = {}
        told = self._exchange("epoch", json.dumps(dict(claim)))
        claims = {rank: json.loads(text) for rank, text in told.items()}
        first = claims[0]
        for rank, other in claims.items():
            differs = [key for key in first if key != "seed" and first[key] != other.get(key)]
            if differs:
                key = differs[0]
                raise RanksDiffer(
                    f"rank {rank} is about to run {key} {other.get(key)!r}, rank 0 {first[key]!r}",
                    do="Every rank makes the same chain of the same cases, loads the same state "
                    "and runs its loaders in the same order.",
                )
        return first

    def says(self, word: int) -> dict[int, int]:
        """Tell all ranks one number and return what each of them told; over gloo.

        Raises
        ------
        RankMissing
            Naming those that did not come in time.
        """
        if self._group is None:
            # All are here: they have just agreed.
            limit = timedelta(seconds=self._timeout)
            self._group = dist.new_group(backend="gloo", timeout=limit)
        words = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        try:
            dist.all_gather(words, torch.tensor([word], dtype=torch.int64), group=self._group)
        except RuntimeError as error:
            raise self._missing("late", self._present("late")) from error
        return {rank: int(told) for rank, told in enumerate(words)}

    def _exchange(self, what: str, text: str) -> dict[int, str]:
        """Return what every rank put down."""
        self._turn += 1
        store, place = _store(), f"{self._name}/{what}/{self._turn}"
        with self._reachable(what):
            store.set(f"{place}/{self.rank}", text)
        deadline = time.monotonic() + self._timeout
        told, missing = {}, []
        for rank in range(self.size):
            with self._reachable(what):
                found = self._wait(store, f"{place}/{rank}", deadline)
            if found is None:
                missing.append(rank)
            else:
                told[rank] = found
        if missing:
            raise self._missing(what, set(told))
        if self.rank == 0 and self._turn > 1:
            # Everybody has read the one before, or would not have put this one down.
            for rank in range(self.size):
                with contextlib.suppress(RuntimeError, NotImplementedError):
                    store.delete_key(f"{self._name}/{what}/{self._turn - 1}/{rank}")
        return told

    def _wait(self, store: Any, key: str, deadline: float) -> str | None:
        """Return what is at ``key``; None if nothing is there at the deadline."""
        while True:
            left = deadline - time.monotonic()
            try:
                store.wait([key], timedelta(seconds=min(_SLICE, max(left, 0.001))))
            except dist.DistNetworkError:
                raise
            except RuntimeError:  # DistStoreError: its time is over
                if left <= 0:
                    return None
                continue
            return str(store.get(key).decode())

    def _present(self, what: str) -> set[int]:
        """Return the ranks that wait as this one does, after each had the time to say so."""
        store, place = _store(), f"{self._name}/{what}/{self._turn}"
        deadline = time.monotonic() + _LATE_SECONDS
        with self._reachable(what):
            store.set(f"{place}/{self.rank}", "here")
            keys = {
                rank: self._wait(store, f"{place}/{rank}", deadline) for rank in range(self.size)
            }
        return {rank for rank, told in keys.items() if told is not None}

    def _missing(self, what: str, present: set[int]) -> RankMissing:
        gone = [str(rank) for rank in range(self.size) if rank not in present]
        names = f"rank{'s' if len(gone) > 1 else ''} {', '.join(gone)}" if gone else "some rank"
        when = "to begin the epoch" if what == "epoch" else "for the next batch"
        return RankMissing(
            f"rank {self.rank} waited {self._timeout:g} s {when}, and {names} of {self.size} did "
            "not come",
            do="Look at what that rank did last; DistributedReadingService(timeout=...) is the "
            "limit. Every rank iterates the loader as often.",
        )

    @contextlib.contextmanager
    def _reachable(self, what: str) -> Any:
        try:
            yield
        except dist.DistNetworkError as error:
            raise RankMissing(
                f"rank {self.rank} cannot reach the store of the job any more: rank 0, which keeps "
                "it, is gone",
                do="Look at what rank 0 did last.",
            ) from error

    def close(self) -> None:
        """Free the gloo group, if there is one."""
        group, self._group = self._group, None
        if group is not None and dist.is_initialized():
            with contextlib.suppress(RuntimeError, AssertionError, ValueError):
                dist.destroy_process_group(group)


def check_started() -> None:
    """Raise unless this process is a rank of a job.

    Raises
    ------
    RankMissing
        No process group was started.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise RankMissing("this process is no rank of a torch.distributed job", do=_DO_START)


def is_started() -> bool:
    """Whether this process is a rank of a job."""
    return dist.is_available() and dist.is_initialized()


def checked_timeout(seconds: float) -> float:
    """Return a limit in seconds; ``ValueError`` if it is none."""
    if not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
        raise ValueError(f"timeout is a number of seconds above 0, got {seconds!r}")
    return float(seconds)


def _store() -> Any:
    # torch has no public name for it; its own sharding and checkpoints use this one. A group of
    # gloo instead would wait for a missing rank without knowing which one it is.
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()
