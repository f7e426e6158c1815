"""What a loader tells of itself: how its graph runs, what that costs, and what limits it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..adapters.timed import untimed
from ..core.errors import BudgetExceeded, LoaderShutDown
from ..datapipes.cost import cost_of, passes_of
from ..datapipes.shuffle_plans import BATCHES as REPORTED
from ..datapipes.shuffle_plans import ShuffleReport, shuffle_report
from ..diagnosing import BATCHES, SECONDS, Diagnosis, Extent, Pace, Subject, diagnose
from ..graph import Change, Pipe, explain_rewritten, traits_of, walk
from ..reading_services import ReadingService
from ..reading_services.work import Work
from ..volumes.scheme import ReadScheme
from .asked import checked_step
from .behind import Tail
from .iterator import Turn
from .listed import AdapterLike
from .negotiated import Negotiated, negotiated
from .position import Position, Progress


class Explaining:
    """The part of a loader that answers questions; it needs what the loader runs."""

    _seed: int | None
    _position: Position
    _written: Pipe
    _graph: Pipe
    _whole: Pipe
    _tail: Tail
    _changes: Sequence[Change]
    _adapters: tuple[AdapterLike, ...]
    _service: ReadingService
    _work: Work
    _negotiated: Negotiated | None
    _pace: Pace
    _progress: Progress | None
    _shut_down: bool
    _turn: Turn

    def _where(self) -> Position:
        """Return where the next batch is."""
        raise NotImplementedError

    def explain(self) -> str:
        """Return the graph as written and as it runs, what was refused, where it runs, its cost.

        Says how voxels are read, too. Reads the headers of the first volumes, and no voxel.
        """
        parts = [
            explain_rewritten(self._written, self._whole, self._changes),
            self._service.explain(self._work),
            *filter(None, [self._tail.explain()]),
        ]
        cost = cost_of(untimed(self._graph), self._seed or 0, self._position.epoch)
        parts += [str(cost)] if cost is not None else []
        if any(traits_of(pipe).opens for pipe in walk(self._graph)):
            parts.append(self._reading())
        return "\n\n".join(parts)

    def _reading(self) -> str:
        """Return how voxels are read, in words."""
        try:
            return self._agreed().explain()
        except BudgetExceeded as error:
            return f"refused: {error}"

    def schemes(self) -> dict[str, ReadScheme]:
        """Return how the voxels of each key are read; empty where that cannot be planned.

        Negotiated once, before the first epoch or here; reads a few headers, and no voxel.

        Raises
        ------
        BudgetExceeded
            Batches and buffers need more memory than they may take; this is a ``MemoryError``.
        """
        return dict(self._agreed().schemes)

    def _agreed(self) -> Negotiated:
        found = self._negotiated
        if found is None:
            with self._turn:
                found = self._negotiated or self._negotiate()
        return found

    def _negotiate(self) -> Negotiated:
        here = self._where()
        run = (self._seed or 0, here.epoch, here.place.next)
        found = negotiated(untimed(self._graph), self._service, self._work, *run)
        self._work = replace(
            self._work,
            cache_bytes=found.cache_bytes,
            ahead_bytes=found.ahead_bytes,
            joinings=found.joinings,
            remote=found.remote,
        )
        self._negotiated = found
        return found

    def shuffle_report(
        self, *, batches: int = REPORTED, cache_bytes: int | None = None
    ) -> ShuffleReport:
        """Return what the order of the next epoch costs and gives; reads headers, and no voxel.

        Parameters
        ----------
        batches
            Batches that are planned, from the first.
        cache_bytes
            Decoded chunks that are kept; by default as the shuffle asks for.

        Raises
        ------
        GraphError
            The graph cannot be split, so nothing is planned.
        """
        run = {"seed": self._seed or 0, "epoch": self._where().epoch}
        graph = untimed(self._graph)
        return shuffle_report(graph, **run, batches=batches, cache_bytes=cache_bytes)

    def diagnose(
        self,
        *,
        step: Callable[[Any], object] | None = None,
        batches: int = BATCHES,
        seconds: float = SECONDS,
    ) -> Diagnosis:
        """Measure what each part could do alone, and return which one limits the loader.

        The parts are planning, fetching, decoding, resampling, transport and the consumer. They
        are measured on the plans of the next batches by copies of the graph and of the workers,
        so the loader stays where it is. Of several ranks it measures the one that calls it, which
        waits for no other. Takes about ten times ``seconds``, and the start of the
        workers.

        Parameters
        ----------
        step
            What you do with a batch, e.g. one training step; it is called some dozen times with
            real batches, so give it a copy of a model that matters. It has to wait for a device
            that it uses. Without it the time counts for which your loop has kept batches so far.
        batches
            Different batches that are looked at.
        seconds
            Time for which each part is measured, at least two batches per worker.

        Returns
        -------
        Diagnosis
            ``limit``, ``ceilings`` (batches/s) and ``advice``; print it for the table.

        Raises
        ------
        GraphError
            The graph cannot be split, so its parts cannot be measured apart; or its source
            cannot be planned twice, because it is an iterator or an epoch is running.
        """
        if self._shut_down:
            raise LoaderShutDown("this loader was shut down", do="Make a new DataLoader2.")
        checked_step(step)
        self._pace.interrupt()
        here = self._where()
        subject = Subject(
            self._graph,
            self._service,
            self._seed or 0,
            here.epoch,
            here.place,
            running=self._progress is not None and self._progress.begun,
            kept=self._pace.seconds(),
        )
        advice = self._agreed().advice
        # Before they happen, as they do where parts are measured.
        passes = passes_of(untimed(self._graph), self._seed or 0, here.epoch)
        found = diagnose(subject, Extent(batches, seconds), step)
        whole = (f"read as a whole: {each}." for each in passes)
        return replace(found, notes=(*found.notes, *whole, *advice))
