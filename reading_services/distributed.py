"""Divide every batch among the ranks of a torch.distributed job."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ..core.errors import GraphError
from ..graph import Pipe, chained_name, fingerprint, walk
from ..volumes.scheme import Budget
from .in_process import InProcessReadingService
from .place import Place
from .rank_part import UNEVEN, WRAP, Part, explained, with_own_batches
from .ranks import CountedEpoch, LockstepEpoch, Ranks, checked_timeout, is_started
from .reading_service import Budgeting, Epoch, ReadingService, leave
from .torchdata_service import TorchdataService
from .work import Planned, Replicated, Work

_PACKAGE = f"{__name__.partition('.')[0]}."
# torchdata's: ranks may load a model or validate between two epochs.
USUAL_TIMEOUT = 1800.0


class DistributedReadingService:
    """Give rank *r* of *R* its part of every batch; all ranks end together.

    The batch size in the chain is that of all ranks together: ``.batch_patches(8)`` gives each of
    four ranks two patches, and the eight are those that one process would have got. So the
    run is the same on any number of ranks that divides the batch, and a state may be loaded under
    another one. (In torchdata the size is that of one rank.) Ranks agree on seed and position at
    the beginning of an epoch, through the store of the process group; after that they need nothing
    of each other, because all make the same plan.

    By itself it runs the graph in the rank's own process; put it before
    :class:`MultiProcessingReadingService` in a :class:`SequentialReadingService` for workers.
    Workers take no part in collectives.

    Parameters
    ----------
    timeout
        Seconds that a rank waits for the others; then an error names those that did not come.
    uneven
        What becomes of a last batch that is too small: ``"drop"`` leaves it out, ``"pad"`` fills
        it up with its last item, ``"wrap"`` with the first items of the epoch. Of a graph that
        cannot be planned all ranks end with the first (``"drop"``), or repeat their last item
        until all have ended (``"pad"``).

    Notes
    -----
    A chain that does not end with a batch (or with one of one) has none to divide: of each *R*
    items every rank gets one. A graph that cannot be planned is run by every rank on its share, so
    it needs ``.sharding_filter()``; its batches are the part of one rank in size, too, but which
    items they hold depends on the number of ranks. There ranks ask each other before each item
    whether all have one.

    Without a process group an epoch raises ``RankMissing``. The seed is that of rank 0.
    """

    def __init__(self, timeout: float = USUAL_TIMEOUT, *, uneven: str = "drop") -> None:
        if uneven not in UNEVEN:
            raise ValueError(f"uneven is one of {UNEVEN}, got {uneven!r}")
        self.timeout = checked_timeout(timeout)
        self.uneven = uneven
        self._ranks: Ranks | None = None
        self._agreed_data: str | None = None
        self.inner: ReadingService = InProcessReadingService()
        """Runs this rank's part."""
        self._waits = True

    def over(self, inner: ReadingService) -> DistributedReadingService:
        """Return a copy of this service whose part ``inner`` runs."""
        copied = copy.copy(self)
        copied.inner = inner
        return copied

    def alone(self) -> DistributedReadingService:
        """Return a copy that makes this rank's part and waits for no other, for measuring."""
        copied = copy.copy(self)
        copied._waits = False
        return copied

    def divided(self, work: Work) -> Work:
        """Return what this rank does of ``work``; all of it where no process group is started yet.

        Raises
        ------
        GraphError
            The ranks cannot have equal parts.
        """
        if not is_started():
            rank, count = 0, 1
        else:
            import torch.distributed as dist

            rank, count = dist.get_rank(), dist.get_world_size()
        part = Part(rank, count, self.uneven)
        if isinstance(work, Planned):
            part.size(work.cut.group)
            if count > 1 and work.cut.filters:
                raise GraphError(
                    "what is left out after items are dealt out is not known to the other ranks: "
                    "they would have more batches",
                    do="Put the filter before .sharding_round_robin_dispatch().",
                )
        elif count > 1 and not work.shards_ranks:
            raise GraphError(
                f"every one of {count} ranks would yield all items: {work.reason}",
                do="Put .sharding_filter() after .shuffle(), so that ranks have shares.",
            )
        if isinstance(work, Replicated) and work.part.ranks == 1 < count:
            # Once: what is asked for later is this graph.
            work = replace(work, graph=with_own_batches(work.graph, part))
        return replace(work, part=part)

    def agree(self, work: Work, seed: int, epoch: int, place: Place) -> int:
        """Wait for all ranks and return the seed of rank 0.

        Raises
        ------
        RanksDiffer, RankMissing
            Naming ranks.
        """
        if self._ranks is None:
            self._ranks = Ranks(self.timeout)
        if self.uneven == WRAP and isinstance(work, Replicated):
            msg = f"a graph that cannot be planned has no items to wrap around to: {work.reason}"
            raise GraphError(msg, do='Give uneven="drop" or "pad".')
        claim = {
            "seed": seed,
            "epoch": epoch,
            "batch": place.next,
            "graph": fingerprint(_graph(work)),
            "data": self._data_of(work),
            "uneven": self.uneven,
        }
        return int(self._ranks.agree(claim)["seed"])

    def _in_step(self, work: Work, run: Callable[[Place], Epoch], place: Place) -> Epoch:
        """Return an epoch that ends with those of the other ranks; ``run`` starts this rank's."""
        if work.part.ranks == 1 or (isinstance(work, Planned) and not work.errors.tolerates):
            return run(place)
        assert self._ranks is not None
        circle = self._ranks.meet()
        try:
            own = run(place if isinstance(work, Planned) else Place())
        except BaseException as error:
            circle.part(error)
            raise
        if isinstance(work, Planned):
            return CountedEpoch(own, circle)
        return LockstepEpoch(own, circle, self.uneven, place)

    def _data_of(self, work: Work) -> str:
        if self._agreed_data is None:
            pipes = walk(_graph(work))
            hashes = [p.data_hash() for p in pipes if hasattr(type(p), "data_hash")]
            joined = "".join(hashes).encode()
            self._agreed_data = hashlib.blake2b(joined, digest_size=8).hexdigest()
        return self._agreed_data

    @property
    def num_workers(self) -> int:
        """Workers of this rank."""
        return int(getattr(self.inner, "num_workers", 0))

    @property
    def persistent_workers(self) -> bool | None:
        """Whether workers stay from epoch to epoch; None where that is left to what they read."""
        stay: bool | None = getattr(self.inner, "persistent_workers", False)
        return stay

    @persistent_workers.setter
    def persistent_workers(self, stay: bool | None) -> None:
        own: Any = self.inner
        if hasattr(own, "persistent_workers"):
            own.persistent_workers = stay

    def budgets(self, work: Work | None = None, *, remote: bool = False) -> tuple[Budget, ...]:
        """Return what reading ``work`` may spend, the first choice first.

        ``remote`` says that its volumes lie behind URLs.
        """
        own = self.inner if isinstance(self.inner, Budgeting) else InProcessReadingService()
        return own.budgets(work, remote=remote)

    def distribute(self, graph: Pipe) -> Work:
        """Split the graph, and take this rank's part."""
        return self.divided(self.inner.distribute(graph))

    def epoch(self, work: Work, seed: int, epoch: int, place: Place) -> Epoch:
        """Start one pass over this rank's part of the batches that ``place`` does not hold."""
        if not self._waits:
            return self.inner.epoch(work, seed, epoch, place)
        mine = self.divided(work)
        seed = self.agree(mine, seed, epoch, place)
        running = self._in_step(mine, partial(self.inner.epoch, mine, seed, epoch), place)
        return SeededEpoch(running, seed)

    def shares(self, work: Work) -> int:
        """Return among how many processes a graph is divided that cannot be split; else 0."""
        mine = self.divided(work)
        if isinstance(mine, Replicated):
            return self.inner.shares(work) * mine.part.ranks
        # Positions count batches of all ranks; but rounds of single items depend on their number.
        return mine.part.ranks if mine.cut.group == 1 and mine.part.ranks > 1 else 0

    def explain(self, work: Work) -> str:
        """Return which part this rank makes, and where."""
        mine = self.divided(work)
        part = explained(_graph(mine), mine.part, whole=isinstance(mine, Replicated))
        return f"{part}\n{self.inner.explain(work)}"

    def stop(self) -> None:
        """Free the group that ranks of whole graphs talk over, and what is kept for this one."""
        self.inner.stop()
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.close()

    def __getstate__(self) -> dict[str, Any]:
        # A copy belongs to another loader, whose ranks agree by themselves.
        return {**self.__dict__, "_ranks": None, "inner": copy.copy(self.inner)}

    def __repr__(self) -> str:
        return f"DistributedReadingService(timeout={self.timeout:g}, uneven={self.uneven!r})"


def without_parts(service: object, graph: Pipe) -> str:
    """Return what is told where this process is one of several ranks, and none has a part.

    Empty where there are no ranks, where a service divides them, one of the user's own may do so,
    or where the graph was divided before.
    """
    if not is_started():
        return ""
    import torch.distributed as dist

    ranks = dist.get_world_size()
    services = getattr(service, "services", (service,))
    ours = all(type(one).__module__.startswith(_PACKAGE) for one in services)
    if ranks == 1 or not ours or any(isinstance(one, _DIVIDING) for one in services):
        return ""
    divided = any(
        getattr(pipe, "num_of_instances", 1) > 1 or chained_name(pipe) == "fullsync"
        for pipe in walk(graph)
    )
    if divided:
        return ""
    return (
        f"each of {ranks} ranks makes all batches, and all make the same, as no service divides "
        "them\n"
        f"  Give SequentialReadingService(DistributedReadingService(), {service!r}), or "
        "DistributedReadingService() alone. If every rank has cases of its own, ignore "
        "vp.errors.RanksAlike."
    )


class SeededEpoch:
    """An epoch that knows under which seed it runs."""

    def __init__(self, running: Epoch, seed: int) -> None:
        self.seed = seed
        """That of rank 0, whatever this rank asked for."""
        self.last = -1
        self._running = running

    def __iter__(self) -> SeededEpoch:
        return self

    def __next__(self) -> Any:
        batch = next(self._running)
        self.last = self._running.last
        return batch

    def leave(self) -> None:
        """End the wait for a batch that another thread is in."""
        leave(self._running)

    def close(self) -> None:
        """Free what the pass holds."""
        self._running.close()


# What gives ranks their parts, or is a service of the user's that may.
_DIVIDING = (DistributedReadingService, TorchdataService)


def _graph(work: Work) -> Pipe:
    return work.cut.onto(work.cut.planner) if isinstance(work, Planned) else work.graph
