"""Divide every batch among the ranks of a torch.distributed job, over another service."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch.distributed as dist

from ..core.call_site import shorten
from ..core.errors import GraphError
from ..core.redact import public_text
from ..datapipes.cases import FindsCases
from ..graph import Pipe, chained_name, describe, fingerprint, parents_of, rebuild, traits_of, walk
from ..graph.node import copy_pipe
from ..graph.walk import readers
from .in_process import InProcessReadingService
from .multiprocessing import MultiProcessingReadingService
from .planner import UNEVEN, WRAP, DeliveredBatches, RankPart
from .ranks import Cases, CountedEpoch, LockstepEpoch, Ranks, is_started
from .reading_service import Epoch, ReadingService
from .torchdata_service import ReadingServiceInterface, TorchdataService
from .work import PlannedWork, ReplicatedWork, Work

_PACKAGE = f"{__name__.partition('.')[0]}."
# torchdata's: ranks may load a model or validate between two epochs.
USUAL_TIMEOUT = 1800.0


class _OuterService:
    """A service around another one, which runs the graph and provides all other methods."""

    inner: Any

    def __getattr__(self, name: str) -> Any:
        if name == "inner" or name.startswith("__"):  # copy() reads them before ``inner`` exists
            raise AttributeError(name)
        return getattr(self.inner, name)

    def distribute(self, graph: Pipe) -> Work:
        return self.divide(self.inner.distribute(graph))

    def divide(self, work: Work) -> Work:
        """Return this rank's part of ``work``, if the ranks are known already."""
        return self.inner.divide(work) if hasattr(self.inner, "divide") else work

    def alone(self) -> ReadingService:
        """Return a copy for measuring, which makes this rank's part and never waits for others."""
        has_ranks = hasattr(self.inner, "alone")
        service: ReadingService = self.inner.alone() if has_ranks else copy.copy(self.inner)
        return service


class DistributedReadingService(_OuterService):
    """Give rank *r* of *R* its part of every batch; all ranks end together.

    The batch size in the chain is that of all ranks together: ``.batch_patches(8)`` gives each of
    four ranks two patches, and the eight are those of a single process. So the run is the same on
    any number of ranks that divides the batch, and accepts a state from another number. (In
    torchdata the size is that of one rank.) Ranks agree on seed and position at the beginning of an
    epoch, through the store of the process group. After that they do not communicate, because all
    make the same plan. If their listings of a storage differ, all use the cases of rank 0.

    Alone it runs the graph in the rank's own process. For workers, put it before
    :class:`MultiProcessingReadingService` in a :class:`SequentialReadingService`. Workers take no
    part in collectives.

    If a chain does not end with batches of two or more items, each rank gets one of *R* items.
    Every rank runs a graph that cannot be planned on its share, so that graph needs
    ``.sharding_filter()``. Its batches have the size of one rank's part, too. Their items depend on
    the number of ranks. Before each item such ranks check that all have one.

    Without a process group an epoch raises ``RankMissing``. The seed is that of rank 0.

    Parameters
    ----------
    timeout
        Seconds that a rank waits for the others; then an error names the missing ranks.
    uneven
        Rule for a last batch that is too small: ``"drop"`` skips it, ``"pad"`` fills it with its
        last item, ``"wrap"`` with the first items of the epoch. If the graph cannot be planned,
        all ranks end with the first one (``"drop"``), or repeat their last item until all have
        ended (``"pad"``).
    """

    def __init__(self, timeout: float = USUAL_TIMEOUT, *, uneven: str = "drop") -> None:
        if uneven not in UNEVEN:
            raise ValueError(f"uneven is one of {UNEVEN}, got {uneven!r}")
        if not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
            raise ValueError(f"timeout is a number of seconds above 0, got {timeout!r}")
        self.timeout = float(timeout)
        self.uneven = uneven
        self._ranks: Ranks | None = None
        self._agreed_data: str | None = None
        self.inner: Any = InProcessReadingService()  # runs this rank's part
        self._waits = True

    def over(self, inner: ReadingService) -> DistributedReadingService:
        """Return a copy of this service with ``inner`` to run its part."""
        service = copy.copy(self)
        service.inner = inner
        return service

    def alone(self) -> DistributedReadingService:
        """Return a copy for measuring, which makes this rank's part and never waits for others."""
        service = copy.copy(self)
        service._waits = False
        return service

    def divide(self, work: Work) -> Work:
        """Return this rank's part of ``work``; all of it before a process group is started.

        Raises
        ------
        GraphError
            The ranks cannot have equal parts.
        """
        rank, count = (dist.get_rank(), dist.get_world_size()) if is_started() else (0, 1)
        part = RankPart(rank, count, self.uneven)
        if isinstance(work, PlannedWork):
            part.size(work.cut.group)
            if count > 1 and work.cut.filters:
                msg = "a filter after .sharding_round_robin_dispatch() skips items that the other "
                do = "Put the filter before .sharding_round_robin_dispatch()."
                raise GraphError(f"{msg}ranks do not know of: they would have more batches", do=do)
        elif count > 1 and not work.shards_ranks:
            msg = f"every one of {count} ranks would yield all items: {work.reason}"
            do = "Put .sharding_filter() after .shuffle(), so that ranks have shares."
            raise GraphError(msg, do=do)
        if isinstance(work, ReplicatedWork) and work.part.ranks == 1 < count:
            # Once: later calls get this graph.
            work = replace(work, graph=with_own_batches(work.graph, part))
        return replace(work, part=part)

    def agree(self, work: Work, seed: int, epoch: int, cursor: DeliveredBatches) -> int:
        """Wait for all ranks, and return the seed of rank 0; errors name the ranks at fault."""
        if self._ranks is None:
            self._ranks = Ranks(self.timeout)
        if self.uneven == WRAP and isinstance(work, ReplicatedWork):
            msg = f"a graph that cannot be planned has no items to wrap around to: {work.reason}"
            raise GraphError(msg, do='Give uneven="drop" or "pad".')
        claim = {
            "seed": seed,
            "epoch": epoch,
            "batch": cursor.next,
            "graph": fingerprint(_graph(work)),
            "data": self._data_of(work),
            "uneven": self.uneven,
        }
        sources = [p for p in walk(_graph(work)) if hasattr(type(p), "data_texts")]
        first = self._ranks.agree(claim, partial(_cases_of, sources))
        for source, (is_listed, listing) in zip(sources, first.get("cases", ()), strict=False):
            if is_listed:
                source.hold(listing)
                getattr(work, "replicas", {}).clear()
        return int(first["seed"])

    def _in_step(
        self, work: Work, run: Callable[[DeliveredBatches], Epoch], cursor: DeliveredBatches
    ) -> Epoch:
        """Return an epoch that ends together with the other ranks; ``run`` starts this rank's."""
        if work.part.ranks == 1 or (isinstance(work, PlannedWork) and not work.errors.tolerates):
            return run(cursor)
        assert self._ranks is not None
        barrier = self._ranks.meet()
        try:
            own = run(cursor if isinstance(work, PlannedWork) else DeliveredBatches())
        except BaseException as error:
            barrier.part(error)
            raise
        if isinstance(work, PlannedWork):
            return CountedEpoch(own, barrier)
        return LockstepEpoch(own, barrier, work.part, cursor)

    def _data_of(self, work: Work) -> str:
        pipes = list(walk(_graph(work)))
        if self._agreed_data is None or any(isinstance(pipe, FindsCases) for pipe in pipes):
            hashes = [p.data_hash() for p in pipes if hasattr(type(p), "data_hash")]
            content = "".join(hashes).encode()
            self._agreed_data = hashlib.blake2b(content, digest_size=8).hexdigest()
        return self._agreed_data

    def epoch(self, work: Work, seed: int, epoch: int, cursor: DeliveredBatches) -> Epoch:
        """Start one pass over this rank's part of the batches that ``cursor`` does not hold."""
        if not self._waits:
            own: Epoch = self.inner.epoch(work, seed, epoch, cursor)
            return own
        mine = self.divide(work)
        seed = self.agree(mine, seed, epoch, cursor)
        running = self._in_step(mine, partial(self.inner.epoch, mine, seed, epoch), cursor)
        # The seed of rank 0, which may differ from this rank's.
        running.seed = seed  # type: ignore[attr-defined]
        running.items_without_fill = partial(items_without_fill, mine)  # type: ignore[attr-defined]
        return running

    def shares(self, work: Work) -> int:
        """Return the number of processes that share a graph that cannot be split; else 0."""
        mine = self.divide(work)
        if isinstance(mine, ReplicatedWork):
            return int(self.inner.shares(work)) * mine.part.ranks
        # Positions count batches of all ranks, but rounds of single items depend on their number.
        return mine.part.ranks if mine.cut.group == 1 and mine.part.ranks > 1 else 0

    def explain(self, work: Work) -> str:
        """Return the text of this rank's part, and of where it runs."""
        mine = self.divide(work)
        part = explain_share(_graph(mine), mine.part, whole=isinstance(mine, ReplicatedWork))
        return f"{part}\n{self.inner.explain(work)}"

    def stop(self) -> None:
        """Stop the inner service, and close the barrier of the ranks."""
        self.inner.stop()
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.close()

    def __getstate__(self) -> dict[str, Any]:
        # A copy belongs to another loader, whose ranks agree separately.
        return {**self.__dict__, "_ranks": None, "inner": copy.copy(self.inner)}

    def __repr__(self) -> str:
        return f"DistributedReadingService(timeout={self.timeout:g}, uneven={self.uneven!r})"


def _cases_of(sources: Sequence[Pipe]) -> Cases:
    """Return the cases of sources that list a storage, and texts of the other sources' cases.

    Cases whose URLs hold a credential are texts too: the store of the job is not encrypted.
    """

    def of_source(source: Any) -> tuple[bool, list[Any]]:
        cases = source.listing() if isinstance(source, FindsCases) else None
        if cases is not None and all(
            public_text(f"{v}") == f"{v}" for c in cases for v in c.values()
        ):
            return True, cases
        return False, [public_text(text) for text in source.data_texts()]

    return list(map(of_source, sources))


_DO = (
    "Give vp.reading_services.SequentialReadingService(DistributedReadingService(), "
    "MultiProcessingReadingService(num_workers=...))."
)


class SequentialReadingService(_OuterService):
    """Divide batches among ranks, and run each rank's part in workers of its own.

    Parameters
    ----------
    services
        A :class:`DistributedReadingService`, then the service that runs its part:
        ``SequentialReadingService(DistributedReadingService(), MultiProcessingReadingService(4))``.
    """

    def __init__(self, *services: Any) -> None:
        self.services = tuple(services)
        self._check()
        ranks, inner = self.services[0], self.services[-1]
        if isinstance(inner, ReadingServiceInterface):
            inner = TorchdataService(inner)
        divides = isinstance(ranks, DistributedReadingService) and ranks is not self.services[-1]
        self.inner: Any = ranks.over(inner) if divides else inner

    def _check(self) -> None:
        runs = (InProcessReadingService, MultiProcessingReadingService, ReadingServiceInterface)
        kinds = []
        for service in self.services:
            if not isinstance(service, (DistributedReadingService, *runs)):
                msg = f"a sequence is made of reading services, got {shorten(service)}; {_DO}"
                raise TypeError(msg)
            kinds.append("rank" if isinstance(service, DistributedReadingService) else "run")
        if kinds not in (["rank"], ["run"], ["rank", "run"]):
            names = ", ".join(type(s).__name__ for s in self.services) or "nothing"
            msg = "a sequence is a service that divides batches among ranks, then one to run them"
            raise ValueError(f"{msg}; got {names}. {_DO}")
        if self.services[-1].__dict__.get("order") == "as_ready" and "rank" in kinds:
            msg = 'order="as_ready" gives ranks parts of different batches at a time'
            name = type(self.services[-1]).__name__
            raise ValueError(f'{msg}; give {name}(order="plan")')

    def __getstate__(self) -> dict[str, Any]:
        # A copy belongs to another loader, so its services are copies too. ``inner`` copies a
        # service in torchdata's form; a second copy would finalize objects that both share.
        services = (
            s if isinstance(s, ReadingServiceInterface) else copy.copy(s) for s in self.services
        )
        return {**self.__dict__, "services": tuple(services), "inner": copy.copy(self.inner)}

    def __repr__(self) -> str:
        return f"SequentialReadingService({', '.join(map(repr, self.services))})"


def without_parts(service: object, graph: Pipe) -> str:
    """Return the warning if no service divides the batches among ranks; else an empty text."""
    ranks = dist.get_world_size() if is_started() else 1
    services = getattr(service, "services", (service,))
    are_ours = all(type(part).__module__.startswith(_PACKAGE) for part in services)
    # A TorchdataService runs the user's service, which may divide the batches.
    dividing = (DistributedReadingService, TorchdataService)
    if ranks == 1 or not are_ours or any(isinstance(part, dividing) for part in services):
        return ""
    has_parts = any(
        getattr(pipe, "num_of_instances", 1) > 1 or chained_name(pipe) == "fullsync"
        for pipe in walk(graph)
    )
    if has_parts:
        return ""
    return (
        f"each of {ranks} ranks makes all batches, as no service divides them\n"
        "  Give vp.reading_services.SequentialReadingService(DistributedReadingService(), "
        f"{service!r}), or "
        "DistributedReadingService() alone. If every rank has cases of its own, ignore "
        "vp.errors.RanksAlike."
    )


def gathered_by(sink: Pipe) -> Pipe | None:
    """Return the pipe that makes the batches if only per-item pipes follow it; else None."""
    counts = readers(sink)
    pipe = sink
    while True:
        traits, parents = traits_of(pipe), parents_of(pipe)
        if traits.group:
            return pipe
        if (
            len(parents) != 1
            or not (traits.per_item or traits.main_process)
            or counts[id(pipe)] > 1
        ):
            return None
        pipe = parents[0]


def items_without_fill(work: Work) -> int:
    """Return the items of the last batch of all ranks before its fill, at the end of the epoch.

    It is 0 without fill, and -1 if the number is not known.
    """
    items = work.part.fill.items
    return items if items < 1 or gathered_by(_graph(work)) is not None else -1


def with_own_batches(sink: Pipe, part: RankPart) -> Pipe:
    """Return a whole graph whose batches have the size of one rank's part."""
    gatherer = gathered_by(sink)
    if gatherer is None or traits_of(gatherer).group == 1:
        return sink
    own: Any = copy_pipe(gatherer)
    own.batch_size = part.size(traits_of(gatherer).group) // part.ranks
    return rebuild(sink, lambda old, here: own if old is gatherer else here)


def explain_share(sink: Pipe, part: RankPart, *, whole: bool) -> str:
    """Return the text of one rank's part of a graph; ``whole`` graphs have the rank's batches."""
    gatherer = gathered_by(sink)
    group = traits_of(gatherer).group if gatherer is not None else 1
    if group > 1:
        total, own = (group * part.ranks, group) if whole else (group, group // part.ranks)
        how = f"{part.name}: its share" if whole else str(part)
        return f"{how}; {own} of the {total} items that a batch of all ranks has"
    items = "its share of the items" if whole else f"of each {part.ranks} items it has one"
    inside = next((p for p in reversed([*walk(sink)]) if traits_of(p).group > 1), None)
    if inside is None:
        return f"{part.name}: {items}"
    return (
        f"{part.name}: {items}; batches of {describe(inside)} stay whole, as pipes follow it "
        "that take more than one item"
    )


def _graph(work: Work) -> Pipe:
    return work.cut.onto(work.cut.planner) if isinstance(work, PlannedWork) else work.graph
